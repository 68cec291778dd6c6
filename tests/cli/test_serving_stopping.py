"""A serving search that is stopped: by a deadline or a signal, with the plans so far, as in training."""

import json
import signal

import pytest

from autoplan.answers.plan import command as plan_command
from autoplan.catalog import resolve_serving_job
from autoplan.errors import UnsupportedError
from autoplan.planning.serving_plans import plan_serving
from autoplan.search.serving import serving_front_search
from tests.support.deadlines import Looks
from tests.support.serving_jobs import serving_spec

SPREAD = "{lognormal: {median: 1000, p99: 8000}}, output_tokens: {lognormal: {median: 300, p99: 2000}}"
LARGE = f"""
kind: serving
model: mixtral-8x7b
hardware: dgx-h100
devices: 64
stack: vllm
workload: {{input_tokens: {SPREAD}, request_rate: 50/s}}
limits: {{time_to_first_token: {{p99: 2 s}}}}
search: {{disaggregated: [false, true]}}
"""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Plans so far may take as long as a busy machine needs: what they are counts here, not when."""
    monkeypatch.setattr(serving_front_search, "GRACE_SECONDS", 120.0)


def job(**more):
    """Return a job of a few hundred options whose limit is decided by simulation."""
    lengths = {"input_tokens": {"lognormal": {"median": 500, "p99": 4000}}, "output_tokens": 200}
    return resolve_serving_job(
        serving_spec(
            model="llama3-8b",
            devices=more.pop("devices", 4),
            workload={**lengths, "request_rate": 8.0},
            limits={"time_to_first_token": {"p99": 2.0}},
            **more,
        )
    )


@pytest.mark.parametrize("looks", [0, 1, 3, 10, 40, 160])
@pytest.mark.parametrize("devices", [4, (1, 2, 4)])
def test_a_serving_search_that_is_stopped_has_the_plans_so_far(looks, devices):
    """Each keeps every limit, none dominates another, and the certificate says what stopped it."""
    whole = plan_serving(job(devices=devices))
    front = plan_serving(job(devices=devices), deadline=Looks(looks))
    best = max(plan.output_tokens_per_second_per_device for plan in whole.plans)

    assert front.plans
    assert all(plan.feasible for plan in front.plans)
    assert (front.certificate.status, front.certificate.stopped) == ("feasible", "enough")
    for plan in front.plans:
        assert plan.output_tokens_per_second_per_device <= best * 1.001


def test_a_job_of_which_nothing_is_found_in_time_is_refused():
    """Where no engine can run there is no plan, and the error says that the search was stopped."""
    with pytest.raises(UnsupportedError, match="enough before any plan was found"):
        plan_serving(job(search={"tensor_parallel": 3}), deadline=Looks(0))


def test_the_deadline_of_a_serving_job_is_told(run, tmp_path):
    """In the table and in the document, whose claims are checked but for what is not claimed."""
    (tmp_path / "job.yaml").write_text(LARGE, encoding="utf-8")
    table = run("plan", tmp_path / "job.yaml", "--deadline", "0")
    assert table.exit_code == 0
    said = " ".join(table.stdout.split())
    assert "the best plans so far, not proven optimal (the deadline of 0 s was reached)" in said

    file = tmp_path / "plan.json"
    assert (
        run("plan", tmp_path / "job.yaml", "--deadline", "0", "--format", "json", "--output", file).exit_code
        == 0
    )
    certificate = json.loads(file.read_text())["certificate"]
    assert (certificate["status"], certificate["stopped"]) == ("feasible", "the deadline of 0 s was reached")
    verdict = run("verify", file, "--deadline", "3")
    assert (verdict.exit_code, "fails " in verdict.stdout) == (3, False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_answered_with_the_serving_plans_so_far(run, monkeypatch, tmp_path, number):
    """The exit code is that of the signal, and there is a plan."""
    (tmp_path / "job.yaml").write_text(LARGE, encoding="utf-8")
    monkeypatch.setattr(plan_command, "load_solver", lambda: signal.raise_signal(number))
    done = run("plan", tmp_path / "job.yaml", "--format", "json")
    document = json.loads(done.stdout)

    assert done.exit_code == 128 + number
    assert document["front"]
    assert document["certificate"]["stopped"] == "interrupted"


SEVERAL = """
schema: 1
kind: training
model: llama3-8b
hardware: dgx-h100
devices: [{devices}]
workload: {{sequence_length: 4096, global_batch_size: [{batches}]}}
"""


def test_many_choices_end_with_the_deadline_and_do_not_fill_the_disk(run, tmp_path):
    """A thousand numbers of devices and batches: what is not solved is said once, and takes little room."""
    devices, batches = (", ".join(str(step * n) for n in range(1, 33)) for step in (8, 64))
    file, answer = tmp_path / "job.yaml", tmp_path / "plan.json"
    text = SEVERAL.format(devices=devices, batches=batches)
    file.write_text(f"{text}stack: megatron-core\n", encoding="utf-8")
    done = run("plan", file, "--deadline", "0", "--format", "json", "--output", answer)
    document = json.loads(answer.read_text())

    assert done.exit_code == 0
    assert len(document["front"]) == 1
    assert len(document["answers"]) == 1024
    assert answer.stat().st_size < 3 * 2**20
    assert "not solved for 1,023 numbers of devices and batches" in " ".join(
        run("plan", file, "--deadline", "0", "--details").stdout.split()
    )


@pytest.mark.parametrize("text", ["40", "40 s", "40s", "0.5 min", "1h"])
def test_a_deadline_is_a_number_of_seconds_or_has_a_unit(run, text):
    """As a job's file writes it, or bare."""
    assert run("plan", "llama3-8b-8x-a100", "--deadline", text).exit_code == 0


@pytest.mark.parametrize("text", ["40 kg", "inf", "nan", "-1 s", "-1", "soon", "1e999", ""])
def test_what_is_no_time_is_refused_in_words(run, text):
    """With what would be right."""
    done = run("plan", "llama3-8b-8x-a100", "--deadline", text)

    assert (done.exit_code, "--deadline" in done.stderr) == (2, True)
