"""Jobs without a plan that a program builds: what conflicts, and changes that work when they are made."""

import json
import re
from functools import cache

import pytest
import yaml

from autoplan.catalog import resolve_job
from autoplan.planning.infeasible.smallest_relaxations import suggested
from autoplan.planning.plan_and_evaluate import plan
from autoplan.schema.job import JobSpec
from autoplan.schema.yaml.loader import load_model
from tests.support.quick_cases import slow_but

LLAMA_70B = """
kind: training
model: llama3-70b
hardware: dgx-h100
devices: 8
program: any-layout
workload: {sequence_length: 8192, global_batch_size: 128}
"""

SMALL = """
kind: training
model: llama2-7b
hardware: dgx-a100-80gb
devices: %s
program: any-layout
workload: {sequence_length: 4096, global_batch_size: %s}
"""

PIPELINE = """
kind: training
model: llama2-7b
hardware: dgx-a100-80gb
devices: 2
program: any-layout
workload: {sequence_length: 8192, global_batch_size: 8}
search: {schedule: 1f1b, pipeline_parallel: 2, recompute: [none, full]}
"""

MEMORY = "memory: 2 devices of 79.2 GiB each (NVIDIA A100 SXM4 80GB)"

#: Jobs that have no plan, what clashes in each, and kinds of change that must be among the suggestions.
CASES = {
    "recompute ruled out": (
        (SMALL % (2, 8)).replace("4096", "16384")
        + "search: {schedule: 1f1b}\n"
        + "rules: [{rule: sum(full) == 0, because: whole recompute is too slow for us}, tp <= 2]",
        ["whole recompute is too slow for us (rules[0]: sum(full) == 0)", MEMORY],
        ["fewer rules of the job", "offload to host memory", "more devices", "larger devices"],
    ),
    "activations too large, and no recompute": (
        (SMALL % (2, 8)).replace("4096", "65536")
        + "stack: analytic\nsearch: {recompute: none, offload: optimizer, schedule: 1f1b}",
        ["search.recompute allows none", MEMORY],
        ["recompute", "offload to host memory", "more devices", "shorter sequences"],
    ),
    "a rule that nothing keeps": (
        PIPELINE + "rules: ['full[0] > layers[0]']",
        ["rules[0]: full[0] > layers[0]"],
        ["fewer rules of the job"],
    ),
}

#: The case of `make test`.
QUICK = "activations too large, and no recompute"


def job_of(text):
    """Return the job of a spec's text."""
    return resolve_job(load_model(text, JobSpec, name="job.yaml"))


def edited(text, edits):
    """Return the spec with edits made as a user makes them: what stands after each key."""
    plain = yaml.safe_load(text)
    for edit in edits:
        *parents, last = edit.key.split(".")
        here = plain
        for part in parents:
            here = here.setdefault(part, {})
        here[last] = yaml.safe_load(edit.after)
    return yaml.safe_dump(plain)


@pytest.fixture(scope="module")
def answers():
    """Return a function that answers a case once."""
    texts = {name: text for name, (text, *_) in CASES.items()} | {"70B": LLAMA_70B}
    return cache(lambda name: suggested(plan(job_of(texts[name]))))


def test_llama3_70b_on_one_node_lacks_memory_and_is_told_what_works(answers):
    """The named case: full training with AdamW on 8 H100 needs twice the memory."""
    front = answers("70B")
    edits = {str(edit) for suggestion in front.suggestions for edit in suggestion.edits}

    assert not front.feasible
    assert front.reasons[0].startswith("memory: the layout that needs least")
    assert [wish.split(":")[0] for wish in front.conflict] == ["memory"]
    assert "devices: 16 instead of 8" in edits
    assert "search.offload: [none, optimizer] instead of none" in edits
    assert any(edit.startswith("hardware: ") for edit in edits)
    assert "adapters: {rank: 16} instead of none" in edits
    # Neither shorter sequences nor a smaller batch shrink the training state.
    alone = {str(s.edits[0]) for s in front.suggestions if len(s.edits) == 1}
    assert not any("sequence_length" in edit or "batch" in edit for edit in alone)


@pytest.mark.parametrize("name", slow_but([QUICK], [*CASES, "70B"]))
def test_every_suggestion_works_when_it_is_made(answers, name):
    """The spec with the edits made has the plan that was promised."""
    text = LLAMA_70B if name == "70B" else CASES[name][0]
    front = answers(name)

    assert front.suggestions
    for suggestion in front.suggestions:
        again = plan(job_of(edited(text, suggestion.edits)))
        assert again.feasible, suggestion.edits
        fastest, promised = again.plans[0].predicted, suggestion.plan.predicted
        assert fastest.step_seconds == pytest.approx(promised.step_seconds, rel=1e-6)


@pytest.mark.parametrize("name", slow_but([QUICK], CASES))
def test_what_clashes_and_what_helps_is_named(answers, name):
    """The wishes are those that the case makes impossible, and no others; the obvious ways out are there."""
    _, conflict, kinds = CASES[name]
    front = answers(name)

    if conflict is not None:
        assert list(front.conflict) == conflict
    assert set(kinds) <= {suggestion.kind for suggestion in front.suggestions}


@pytest.mark.slow
def test_no_smaller_change_is_enough():
    """One node less, a sequence a 64th longer, a MiB less, a millisecond less: nothing fits."""
    text = SMALL % (2, 8) + "limits: {step_time: 2 s}"
    front = suggested(plan(job_of(text)))
    found = {s.kind: s.edits[0].after for s in front.suggestions}
    longer = int(found["shorter sequences"]) + 64

    assert not plan(job_of(edited(text, [_edit("workload.sequence_length", longer)]))).feasible
    fewer = range(3, int(found["more devices"]))
    assert not any(plan(job_of(edited(text, [_edit("devices", n)]))).feasible for n in fewer)
    text = SMALL % (2, 8) + "limits: {peak_memory: 40 GiB}"
    (room,) = (s for s in suggested(plan(job_of(text))).suggestions if s.kind == "a higher memory limit")
    size = int(re.fullmatch(r"(\d+) MiB", room.edits[0].after)[1])
    assert not plan(job_of(edited(text, [_edit("limits.peak_memory", f"{size - 2} MiB")]))).feasible


def _edit(key, after):
    from autoplan.results.front import Edit

    return Edit(key, "", str(after))


def test_the_command_line_prints_clash_and_suggestions(run, tmp_path):
    """Table and JSON hold the same, and the exit code is 1."""
    job = tmp_path / "job.yaml"
    job.write_text(SMALL % (4, 8) + "search: {tensor_parallel: 3, zero_stage: 1}")
    done = run("plan", job, "--format", "json")
    document = json.loads(done.stdout)
    table = run("plan", job, "--details").stdout

    assert done.exit_code == 1
    assert document["conflict"] == ["search.tensor_parallel allows 3"]
    assert document["suggestions"]
    for suggestion in document["suggestions"]:
        assert suggestion["layout_string"] in table
        for edit in suggestion["edits"]:
            assert f"{edit['key']}: {edit['after']} instead of {edit['before']}" in table


def test_a_rule_of_ones_own_is_named_with_its_line(run, tmp_path):
    """In the reason and in the clash; left out of the edited spec's rules, it is gone."""
    job = tmp_path / "job.yaml"
    job.write_text(PIPELINE + "rules:\n  - tp <= 2\n  - rule: full[0] > layers[0]\n    because: a slip\n")
    document = json.loads(run("plan", job, "--format", "json").stdout)
    named = "a slip (rules[1] (line 11): full[0] > layers[0])"

    assert document["reasons"][0].endswith(named)
    assert document["conflict"] == [named]
    (edit,) = document["suggestions"][0]["edits"]
    assert (edit["key"], edit["after"]) == ("rules", '["tp <= 2"]')
    assert [r["reason"] for r in document["rejected"] if r["kind"] == "not on the front"] == [
        (
            "fit into memory with some recompute, but none of them satisfies the limits and the"
            " job's own rules together"
        )
    ]


def test_a_feasible_front_needs_no_suggestions():
    """Nothing is asked where there is a plan."""
    front = plan(job_of(SMALL % (2, 8)))

    assert suggested(front) is front
