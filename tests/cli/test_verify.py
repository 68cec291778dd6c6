"""``autoplan verify``: plans that hold, and every way to tamper with one."""

import copy
import json
import re
import subprocess
import sys

import pytest

from autoplan import plan
from autoplan.report import front_document
from tests.support.tampering import change, sealed

JOBS = ("llama2-7b-2x-a100", "llama3.2-1b-2x-rtx3090")
JOB = JOBS[0]

SMALL = """
schema: 1
kind: training
model: llama2-7b
hardware: dgx-a100-80gb
devices: 2
stack: megatron-core
workload: {{sequence_length: 4096, global_batch_size: 8}}
{more}
"""


@pytest.fixture(scope="module")
def saved():
    """Return the document of a plan."""
    return json.loads(json.dumps(front_document(plan(JOB))))


@pytest.fixture
def refuted(run, tmp_path):
    """Return a function that verifies a document and returns what failed, with the exit code."""

    def check(document, *arguments):
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(sealed(document)))
        done = run("verify", file, "--format", "json", *arguments)
        checks = json.loads(done.stdout)["checks"] if done.stdout else []
        failed = [detail for c in checks if c["finding"] == "fails" for detail in c["details"]]
        return done.exit_code, failed

    return check


@pytest.mark.parametrize("job", JOBS)
def test_a_plan_is_verified_without_the_solver(process, tmp_path, job):
    """The answer holds in every claim that matters; the solver is not even imported."""
    file = tmp_path / "plan.json"
    assert process("plan", job, "--format", "json", "-o", file).returncode == 0
    script = (
        "import sys; from autoplan import verify; found = verify(sys.argv[1]); "
        "assert found.verified, found; "
        "assert not any(name.startswith('ortools') for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, file], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_the_table_says_what_was_covered(run, tmp_path):
    """Every claim has a line; the counts of what was looked at are there."""
    file = tmp_path / "plan.json"
    run("plan", JOB, "--format", "json", "--output", file)
    done = run("verify", file)

    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert text.endswith(f"verified: {file}")
    assert re.search(
        r"holds no layout dominates a plan, and every other is dominated, within 0.01, by one \d+ choices",
        text,
    )
    assert done.stdout.count("holds ") == 14
    assert done.stdout.count("not checked ") == 3


@pytest.mark.parametrize(
    "more",
    [
        "objectives: [step_time]",
        "objectives: [peak_memory]",
        "limits: {step_time: 6 s}",
        "limits: {memory_confidence: central, memory_headroom: 10 %}",
        "search: {stages: even, recompute: [none, full]}",
        "search: {offload: [none, optimizer+activations], offload_every: any, schedule: 1f1b}",
        "search: {offload: activations, recompute: selective}",
        "limits: {peak_memory: 10 GiB}",
        "limits: {step_time: 1 ms}",
        "search: {tensor_parallel: 3}",
    ],
)
def test_answers_of_every_kind_are_verified(run, tmp_path, more):
    """One objective, limits, narrowed searches, and nothing feasible."""
    job, file = tmp_path / "job.yaml", tmp_path / "plan.json"
    job.write_text(SMALL.format(more=more))
    code = run("plan", job, "--format", "json", "--output", file).exit_code
    done = run("verify", file, "--job", job, "--format", "json")

    assert code in {0, 1}
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["outcome"] == "verified"
    assert all(c["finding"] == "holds" for c in json.loads(done.stdout)["checks"] if c["matters"])


def test_the_best_so_far_is_verified_for_what_it_is(run, tmp_path):
    """After a deadline, the bound is all that is claimed of other layouts; no count is checked."""
    file = tmp_path / "plan.json"
    run("plan", JOB, "--deadline", "0", "--format", "json", "--output", file)
    done = run("verify", file)

    assert done.exit_code == 3
    assert "the search was stopped before it counted layouts" in " ".join(done.stdout.split())
    assert "holds        no layout is faster than the bound" in done.stdout


def without_plan(number):
    """Return a function that takes a plan out, and counts it among those not on the front."""

    def tamper(document):
        del document["front"][number]
        (left,) = (r for r in document["rejected"] if r["kind"] == "not on the front")
        left["layouts"] += 1

    return tamper


def slower(document):
    """Put a layout on the front in place of one that beats it."""
    second = copy.deepcopy(document["front"][1])
    document["front"] = [second, *document["front"][2:]]
    document["certificate"]["best_bound_step_seconds"] = second["predicted"]["step_seconds"]
    (left,) = (r for r in document["rejected"] if r["kind"] == "not on the front")
    left["layouts"] += 1


P = ("front", 0, "predicted")
C = ("certificate",)

TAMPERINGS = {
    "a faster step": (
        change((*P, "step_seconds"), lambda x: x * 0.999),
        "predicted.step_seconds is stated as",
    ),
    "less memory": (change((*P, "peak_memory_bytes_per_device"), lambda x: x - 1e6), "peak_memory_bytes_per"),
    "a component": (change((*P, "time", "bubble"), lambda x: x + 0.1), "predicted.time.bubble is stated as"),
    "a part of memory": (change((*P, "memory", "stages", 0, "optimizer"), 0.0), "optimizer is stated as 0.0"),
    "one number left out": (lambda d: d["front"][0]["predicted"].pop("fits"), "predicted.fits is not stated"),
    "another layout": (
        change(("front", 0, "layout_string"), lambda x: x.replace("tp=", "tp=2") if "tp=1" in x else "tp=1"),
        "",
    ),
    "an unreadable layout": (change(("front", 0, "layout_string"), "tp=two"), "plan 1: tp=two"),
    "another degree in words": (change(("front", 0, "layout", "dp"), 7), "layout.dp is stated as 7"),
    "a plan twice": (lambda d: d["front"].insert(0, d["front"][0]), "twice"),
    "plans in another order": (lambda d: d["front"].reverse(), "no smaller"),
    "the fastest plan gone": (without_plan(0), "the distance of the fastest plan from its bound"),
    "a plan in the middle gone": (without_plan(3), "where the front says that there is none"),
    "the smallest plan gone": (without_plan(-1), "where the front says that there is none"),
    "a slower plan as the fastest": (slower, "where the front says that there is none"),
    "no thinning": (change((*C, "thinning"), 0.0), "is 0.01 for every job"),
    "a bound too high": (change((*C, "best_bound_step_seconds"), lambda x: x * 1.01), "is above the fastest"),
    "a gap too small": (change((*C, "best_bound_step_seconds"), lambda x: x * 0.5), "the gap is stated as"),
    "another count": (change((*C, "layouts_covered"), lambda x: x + 1), "layouts_covered is stated as"),
    "a total too large": (change((*C, "layouts_total"), lambda x: x + 1), "layouts_total is stated as"),
    "another number of choices": (change((*C, "candidates"), lambda x: x - 1), "candidates is stated as"),
    "a reason's count": (change(("rejected", 0, "layouts"), lambda x: x + 2), "is stated as"),
    "a reason left out": (lambda d: d["rejected"].pop(0), "is stated as 0"),
    "proven infeasible": (change((*C, "status"), "infeasible"), "status infeasible with"),
    "a search that was stopped": (
        change((*C, "stopped"), "interrupted"),
        "what stopped the search is stated as",
    ),
    "another job's hash": (change((*C, "job_hash"), "sha256:0"), "the certificate is for the job sha256:0"),
    "another cost model's hash": (change((*C, "cost_model_hash"), "sha256:0"), "the cost model sha256:0"),
    "a larger batch": (
        change(("resolved", "workload", "global_batch_size"), lambda x: x * 2),
        "the certificate is for the job",
    ),
    "a faster device": (
        change(("resolved", "cluster", "node", "fabric", "latency", "value"), lambda x: x / 2),
        "the certificate is for the job",
    ),
    "another summary": (change(("job", "devices"), 4), "job.devices is stated as 4"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_refuted(saved, refuted, name):
    """Whatever is changed, something fails, and says what."""
    tamper, says = TAMPERINGS[name]
    document = copy.deepcopy(saved)
    tamper(document)
    code, failed = refuted(document)

    assert code == 1
    assert any(says in detail for detail in failed), failed


def test_a_number_of_ones_own_is_refuted(saved, refuted):
    """What nobody predicts cannot be stated."""
    document = copy.deepcopy(saved)
    document["front"][0]["predicted"]["magic"] = 1
    code, failed = refuted(document)

    assert code == 1
    assert "plan 1: predicted.magic is stated and is nothing that is predicted" in failed


def test_a_plan_for_another_job_is_refuted(saved, refuted):
    """With ``--job``, the plan must be for that job as it is today."""
    code, failed = refuted(saved, "--job", "llama3-8b-8x-a100")

    assert code == 1
    assert any("today" in detail for detail in failed)
    assert refuted(saved, "--job", JOB) == (0, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[1, 2]", "not a saved plan"),
        ('{"schema": 1}', "not a saved plan"),
        ('{"certificate": {}}', "Field required"),
        ("NaN", "NaN is not a JSON number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_plan_is_bad_input(run, tmp_path, text, says):
    """Exit code 2, with what is wrong and nothing on standard output."""
    file = tmp_path / "plan.json"
    file.write_text(text)
    done = run("verify", file)

    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_a_job_that_cannot_be_one_is_bad_input(saved, run, tmp_path):
    """The resolved job is read as strictly as a file."""
    document = copy.deepcopy(saved)
    document["resolved"]["workload"]["global_batch_size"] = -1
    del document["resolved"]["model"]["layers"]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    done = run("verify", file)

    assert done.exit_code == 2
    assert "$.resolved.workload.global_batch_size" in done.stderr
    assert "$.resolved.model.layers" in done.stderr
    assert run("verify", tmp_path / "none.json").exit_code == 2


def test_what_time_does_not_allow_is_not_checked(run, tmp_path):
    """What was not checked is said, in the last line and by the exit code, and is no refutation."""
    job, file = tmp_path / "job.yaml", tmp_path / "plan.json"
    more = "search: {data_parallel: 16, recompute: full, microbatch_size: 1}"
    job.write_text(SMALL.format(more=more).replace("devices: 2", "devices: 16").replace(": 8}", ": 16}"))
    assert run("plan", job, "--format", "json", "--output", file).exit_code == 0

    done = run("verify", file, "--deadline", "0")
    assert done.exit_code == 3
    assert "not checked  no layout dominates a plan" in done.stdout
    assert "the choices of degrees were not all enumerated" in " ".join(done.stdout.split())
    assert " ".join(done.stdout.split()).endswith("(2 claims are not checked)")
    assert run("verify", file).exit_code == run("verify", file, "--exhaustive").exit_code == 0
