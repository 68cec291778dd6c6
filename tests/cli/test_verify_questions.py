"""``autoplan verify`` on answers under rules of the user's own, and over several devices and batches."""

import copy
import json

import pytest

from autoplan import Layout, evaluate, load_job, plan
from autoplan.report import front_document
from autoplan.report.document_fields import plan_document
from autoplan.results.plan import layout_fields
from tests.support.tampering import change, sealed

RULED = """
kind: training
model: llama3.2-1b
hardware: dgx-a100-80gb
devices: 2
stack: megatron-core
workload: {sequence_length: 4096, global_batch_size: 8}
search: {microbatch_size: 1, schedule: 1f1b, recompute: [none, full], zero_stage: [0, 1]}
rules:
  - recompute is uniform
  - rule: layers[0] <= layers[-1]
    because: the first stage has the embedding too
"""

SEVERAL = """
kind: training
model: llama3.2-1b
hardware: dgx-a100-80gb
devices: [1, 2]
stack: megatron-core
workload: {sequence_length: 4096, global_batch_size: [4, 8]}
search: {microbatch_size: 1, schedule: 1f1b, recompute: [none, full], zero_stage: 1}
rules: [recompute is uniform]
objectives: [step_time, peak_memory, devices]
"""


def planned(tmp_path, text):
    """Return the job of a file with ``text``, and the document of its answer."""
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return load_job(file), json.loads(json.dumps(front_document(plan(file))))


@pytest.fixture(scope="module")
def ruled(tmp_path_factory):
    """Return the job under rules of its own, and its answer."""
    return planned(tmp_path_factory.mktemp("ruled"), RULED)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Return the job over devices and batches, and its answer."""
    return planned(tmp_path_factory.mktemp("several"), SEVERAL)


@pytest.fixture
def refuted(run, tmp_path):
    """Return a function that verifies a document and returns what failed, by claim, with the exit code."""

    def check(document, *arguments):
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(sealed(document)))
        done = run("verify", file, "--format", "json", *arguments)
        checks = json.loads(done.stdout)["checks"]
        return done.exit_code, {c["claim"]: c["details"] for c in checks if c["finding"] == "fails"}

    return check


def one_more(left):
    """Count a layout more, or less, among those not on the front."""

    def change(rejected, by):
        (row,) = (r for r in rejected if r["kind"] == "not on the front")
        row["layouts"] += by

    return lambda document: change(document["rejected"], left)


def stated(job, layout):
    """Return a layout with its prediction, as an answer states it."""
    document = plan_document(job, evaluate(job, layout))
    for stage in document["predicted"]["memory"]["stages"]:
        del stage["events"]
    return {key: document[key] for key in ("layout", "layout_string", "predicted")}


@pytest.mark.parametrize("text", [RULED, SEVERAL, SEVERAL + "limits: {devices: 1}\n"])
def test_answers_under_own_rules_and_over_devices_are_verified(run, tmp_path, text):
    """Every claim holds, that of no better layout by listing them, and the job is that of its file."""
    job, file = tmp_path / "job.yaml", tmp_path / "plan.json"
    job.write_text(text)
    assert run("plan", job, "--format", "json", "--output", file).exit_code == 0
    done = run("verify", file, "--job", job, "--format", "json")

    checks = json.loads(done.stdout)["checks"]
    assert done.exit_code == 0, done.stdout
    assert {check["finding"] for check in checks if check["matters"]} == {"holds"}
    assert any("each choice bounded" in detail for check in checks for detail in check["details"])


def test_each_choice_says_what_was_looked_at(several, run, tmp_path):
    """The table has a line for each number of devices and each batch."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(several[1]))
    told = " ".join(run("verify", file).stdout.split())

    for words in ("1 device, a batch of 4", "2 devices, a batch of 4", "2 devices, a batch of 8"):
        assert f"{words}: " in told


def without(number):
    """Return a tampering that takes a plan out, and counts it among those not on the front."""

    def tamper(document):
        del document["front"][number]
        one_more(1)(document)

    return tamper


UNDER_RULES = {
    "the fastest plan gone": (without(0), "the distance of the fastest plan from its bound"),
    "a plan in the middle gone": (without(2), "where the front says that there is none"),
    "the smallest plan gone": (without(-1), "where the front says that there is none"),
    "another step": (change(("front", 1, "predicted", "step_seconds"), lambda x: x * 0.99), "is stated as"),
    "another memory": (
        change(("front", 1, "predicted", "peak_memory_bytes_per_device"), lambda x: x - 1e6),
        "is stated as",
    ),
    "a rule dropped": (lambda d: d["resolved"]["rules"].pop(), "the certificate is for the job"),
    "a rule dropped from the summary": (lambda d: d["job"]["rules"].pop(), "job.rules is not a list of 2"),
    "another count": (
        change(("certificate", "layouts_covered"), lambda x: x + 1),
        "layouts_covered is stated as",
    ),
}


@pytest.mark.parametrize("name", UNDER_RULES)
def test_tampering_under_own_rules_is_refuted(ruled, refuted, name):
    """Whatever is changed, something fails, and says what."""
    tamper, says = UNDER_RULES[name]
    document = copy.deepcopy(ruled[1])
    tamper(document)
    code, failed = refuted(document)

    assert code == 1
    assert any(says in detail for details in failed.values() for detail in details), failed


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (
            Layout(1, 2, 1, 1, (8, 8), (("full", (2, 1)),), 0, 1, sequence_parallel=False, schedule="1f1b"),
            "rules[0]: recompute is uniform",
        ),
        (
            Layout(1, 2, 1, 1, (9, 7), (), 0, 1, sequence_parallel=False, schedule="1f1b"),
            "the first stage has the embedding too (rules[1]: layers[0] <= layers[-1])",
        ),
    ],
)
def test_a_layout_that_breaks_an_own_rule_is_refuted_by_its_sentence(ruled, refuted, layout, rule):
    """Honestly priced, it is still no answer."""
    job, document = ruled[0], copy.deepcopy(ruled[1])
    free = copy.deepcopy(document["front"][0])
    free |= {"layout": layout_fields(layout), "layout_string": str(layout)}
    document["front"].insert(0, free)
    one_more(-1)(document)
    code, failed = refuted(document)

    assert job.rules
    assert code == 1
    (claim,) = (c for c in failed if c.endswith("layouts keep every rule"))
    assert failed[claim] == [f"plan 1 breaks a rule: {rule}"]


def test_a_beaten_plan_under_own_rules_is_refuted(ruled, refuted):
    """A layout of its own right, but slower and larger than a plan."""
    job, document = ruled[0], copy.deepcopy(ruled[1])
    document["front"].insert(1, stated(job, "tp=2,mbs=1,recompute=full:8"))
    one_more(-1)(document)
    code, failed = refuted(document)

    assert code == 1
    (order,) = failed["no plan of the front dominates another"]
    assert order in (
        "plan 2 is no smaller than plan 1, or faster",
        "plan 3 is no smaller than plan 2, or faster",
    )


def drop_answer(document):
    """Take an answer out."""
    document["answers"].pop()


def off_the_front(document):
    """Take a plan off the front over all, and its mark."""
    gone = document["front"].pop(1)
    here = (gone["predicted"]["devices"], gone["predicted"]["global_batch_size"])
    for answer in document["answers"]:
        if (answer["devices"], answer["global_batch_size"]) == here:
            for row in answer["plans"]:
                row["on_front"] &= row["layout_string"] != gone["layout_string"]


OVER_DEVICES = {
    "an answer gone": (
        drop_answer,
        "and the job asks for [(1, 4, None), (1, 8, None), (2, 4, None), (2, 8, None)]",
    ),
    "a plan off the front": (off_the_front, "no plan of the front is as good as one on"),
    "a plan off the front, still marked": (
        lambda d: d["front"].pop(1),
        "on_front is stated as True of",
    ),
    "a plan twice": (lambda d: d["front"].insert(1, d["front"][0]), "plan 2 is on the front twice"),
    "another order": (lambda d: d["front"].reverse(), "is before one that it should follow"),
    "another step on the front": (
        change(("front", 0, "predicted", "step_seconds"), lambda x: x * 0.99),
        "plan 1: predicted.step_seconds is stated as",
    ),
    "another step of an answer": (
        change(("answers", 1, "plans", 0, "step_seconds"), lambda x: x * 0.99),
        "1 device, a batch of 8: plan 1: predicted.step_seconds is stated as",
    ),
    "a plan of an answer gone": (
        lambda d: d["answers"][3]["plans"].pop(0),
        "2 devices, a batch of 8: the gap is stated as",
    ),
    "a plan for other devices": (
        change(("front", 0, "predicted", "devices"), 4),
        "which the job does not ask for",
    ),
    "another bound over all": (
        change(("certificate", "best_bound_step_seconds"), lambda x: x / 2),
        "over all, best_bound_step_seconds is stated as",
    ),
    "another count over all": (
        change(("certificate", "layouts_covered"), lambda x: x - 1),
        "over all, layouts_covered is stated as",
    ),
    "another status of an answer": (
        change(("answers", 0, "certificate", "status"), "infeasible"),
        "1 device, a batch of 4: status infeasible with",
    ),
    "another hash of an answer": (
        change(("answers", 0, "certificate", "job_hash"), "sha256:0"),
        "1 device, a batch of 4: the certificate is for the job sha256:0",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OVER_DEVICES)
def test_tampering_over_devices_and_batches_is_refuted(several, refuted, name):
    """Whatever is changed, something fails, and says what and of which choice."""
    tamper, says = OVER_DEVICES[name]
    document = copy.deepcopy(several[1])
    tamper(document)
    code, failed = refuted(document)

    assert code == 1
    assert any(says in detail for details in failed.values() for detail in details), failed


def test_a_plan_that_another_choice_beats_is_refuted(several, refuted):
    """The front over all holds what no answer beats."""
    document = copy.deepcopy(several[1])
    if all(p["on_front"] for a in document["answers"] for p in a["plans"]):
        pytest.fail("every plan is on the front: the example shows nothing")
    add = next(
        (answer, row) for answer in document["answers"] for row in answer["plans"] if not row["on_front"]
    )
    answer, row = add
    choice = next(
        c
        for c in several[0].choices
        if (c.cluster.devices, c.workload.global_batch_size)
        == (answer["devices"], answer["global_batch_size"])
    )
    document["front"].append(stated(choice, row["layout_string"]))
    row["on_front"] = True
    code, failed = refuted(document)

    assert code == 1
    assert f"plan {len(document['front'])} is dominated by one on" in " ".join(
        failed["no plan of the front dominates another"]
    )
