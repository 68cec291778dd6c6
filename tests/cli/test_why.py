"""``autoplan explain``: why a layout is not on the front, and why the fastest plan wins."""

import json
from dataclasses import replace

import pytest

from autoplan import InfeasibleError, evaluate, load_job, plan
from autoplan.answers.explain.ask import explain, explain_choice
from autoplan.planning.plan_and_evaluate import read_layout
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import SearchSpec

JOB = "llama2-7b-2x-a100"
LARGE = "llama3-8b-8x-a100"


@pytest.fixture(scope="module")
def job():
    """Return a shipped job."""
    return load_job(JOB)


@pytest.fixture(scope="module")
def front(job):
    """Return its front."""
    return plan(job)


def test_a_plan_of_the_front_is_on_the_front(job, front):
    """It has its rank, and nothing to be compared with."""
    for rank, one in list(enumerate(front.plans, start=1))[::5]:
        standing = explain(job, one.layout).standing
        assert (standing.place, standing.rank, standing.against) == ("on the front", rank, None)


@pytest.mark.parametrize(
    "layout", ["tp=2,mbs=1,recompute=full", "pp=2,mbs=1,recompute=full", "tp=2,mbs=4,sp=off,recompute=full"]
)
def test_a_layout_that_loses_is_told_to_which_plan_and_where(job, front, layout):
    """The plan is no slower and no larger; the parts add up to the difference of the steps."""
    found = explain(job, layout)
    standing, own = found.standing, found.plan.predicted

    assert own.fits
    assert standing.place in {"dominated", "dominated within tolerance"}
    other = standing.against.predicted
    assert standing.against == front.plans[standing.rank - 1]
    slack = 1.0 if standing.place == "dominated" else 1.0102
    assert other.step_seconds <= own.step_seconds * slack
    assert other.peak_memory_bytes_per_device <= own.peak_memory_bytes_per_device * slack
    lost = sum(part.lost_seconds for part in standing.differences)
    assert lost == pytest.approx(own.step_seconds - other.step_seconds, abs=1e-9)
    assert [d.lost_seconds for d in standing.differences] == sorted(
        (d.lost_seconds for d in standing.differences), reverse=True
    )


def test_a_layout_that_is_not_searched_is_told_so(job):
    """Checkpoints of several layers are priced, not searched: one may be better than the front."""
    layout = "tp=2,mbs=1,recompute_num_layers=4,recompute=full"
    stack = job.stack.model_copy(
        update={"rules": job.stack.rules.model_copy(update={"recompute_several_layers": True})}
    )
    standing = explain(replace(job, stack=stack), layout).standing

    assert standing.place in {"dominated", "dominated within tolerance", "not searched"}


def test_a_layout_above_the_limit_on_the_step_is_too_slow(job, front):
    """It fits, and is held against the fastest plan."""
    fast = front.plans[0].predicted.step_seconds
    limited = replace(job, limits=job.limits.model_copy(update={"step_time": fast * 1.05}))
    standing = explain(limited, front.plans[-1].layout).standing

    assert standing.place == "too slow"
    assert standing.rank == 1


@pytest.mark.parametrize("layout", ["tp=3", "tp=2,dp=4", "tp=1,dp=2,mbs=3", "zero=3", "pp=2,tp=2"])
def test_a_refused_layout_has_its_rules_and_a_near_one_that_keeps_them(job, layout):
    """The rules are those that `evaluate` tells; the nearest layout breaks none, and is priced."""
    refused = read_layout(job, layout)
    found = explain(job, layout)

    assert list(found.rules) == broken_rules(job, refused)
    assert found.rules
    assert not broken_rules(job, found.nearest.layout)
    assert found.nearest == evaluate(job, found.nearest.layout)


def test_what_cannot_run_is_printed_with_exit_code_1(run):
    """Rules and the nearest layout, as a table and as JSON; there is no picture of it."""
    done = run("explain", LARGE, "-l", "tp=3")
    document = json.loads(run("explain", LARGE, "-l", "tp=3", "-f", "json").stdout)

    assert done.exit_code == 1
    assert "cannot run: it breaks these rules" in done.stdout
    assert "tp divides the 32 attention heads" in document["refusal"]["rules"]
    assert document["refusal"]["nearest"]["layout_string"] in done.stdout
    picture = run("explain", LARGE, "-l", "tp=3", "-f", "table", "-o", "x.svg")
    assert picture.exit_code == 2


def test_every_alternative_is_the_fastest_of_its_kind(job):
    """Each has the value that it stands for, is no faster, and is what a narrowed search finds."""
    choice = explain_choice(job)
    best = choice.best.predicted.step_seconds
    fields = {
        "tensor_parallel": "tp",
        "pipeline_parallel": "pp",
        "data_parallel": "dp",
        "microbatch_size": "microbatch",
        "zero_stage": "zero",
        "virtual_stages": "vpp",
    }

    assert choice.best.predicted == plan(job).plans[0].predicted
    assert {a.key for a in choice.alternatives} >= {"tensor_parallel", "pipeline_parallel", "microbatch_size"}
    for other in choice.alternatives:
        value = int(other.value) if other.key in fields else other.value
        narrowed = replace(job, search=SearchSpec(**{other.key: value}))
        front = plan(narrowed)
        assert front.feasible == (other.plan is not None), other
        if other.plan is None:
            assert other.why
            continue
        if other.key in fields:
            assert getattr(other.plan.layout, fields[other.key]) == value
        again = front.plans[0].predicted.step_seconds
        assert other.plan.predicted.step_seconds == pytest.approx(again, rel=1e-6)
        assert again >= best * (1 - 1e-6)
        lost = sum(part.lost_seconds for part in other.differences)
        assert lost == pytest.approx(other.plan.predicted.step_seconds - best, abs=1e-9)


def test_the_choice_is_printed(run):
    """A row for each alternative, and the same in JSON."""
    done = run("explain", JOB)
    document = json.loads(run("explain", JOB, "--format", "json").stdout)

    assert done.exit_code == 0
    assert f"fastest: {document['choice']['best']['layout_string']}" in done.stdout
    for other in document["choice"]["alternatives"]:
        assert f"{other['key']}: {other['value']}" in done.stdout
    assert run("explain", JOB, "--output", "x.svg").exit_code == 2


def test_a_job_without_a_plan_has_no_choice(run):
    """Its reasons are told, with exit code 1."""
    done = run("explain", "llama3-70b-8x-a100")

    assert done.exit_code == 1
    assert "memory: the layout that needs least" in done.stderr
    with pytest.raises(InfeasibleError):
        explain_choice("llama3-70b-8x-a100")
