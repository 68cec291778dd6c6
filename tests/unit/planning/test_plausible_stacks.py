"""An assumed stack: which, how sure, and how far a step moves among those that may be meant."""

from dataclasses import replace

import pytest

from autoplan import evaluate, load_job, plan
from autoplan.answers.plan.blocks import front_table
from autoplan.catalog import assumed_stack, entry_names, load_entry, resolve_job, stack
from autoplan.planning.plan_and_evaluate import plausible_stacks, stack_steps
from autoplan.report.render.terminal import Terminal
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.resolved_job import job_from, resolved

LAYOUT = "tp=2"


@pytest.fixture(scope="module")
def job():
    """Return a job of any layout that names no stack."""
    workload = Workload(sequence_length=8192, global_batch_size=128)
    where = {"hardware": "dgx-a100-80gb", "devices": 8, "program": "any-layout"}
    return resolve_job(JobSpec(kind="training", model="llama3-8b", workload=workload, **where))


def test_a_stack_that_no_job_names_is_assumed(job):
    """The stack is the usual one of the node, and the job remembers that nobody named it."""
    assert job.stack_assumed
    assert job.stack.name == "megatron-core"
    assert job_from(resolved(job), name="job") == job


def test_a_named_stack_is_not_assumed():
    """A job that names its stack has the intervals of that stack."""
    named = load_job("gpt3-6.7b-8x-v100")

    assert not named.stack_assumed
    assert named.stack == stack("megatron-core")
    assert evaluate(named, "tp=2").stacks == ()


@pytest.mark.parametrize("name", entry_names("stack"))
def test_the_interval_is_at_least_that_of_an_unknown_stack(name):
    """Time is as unsure as under `analytic`, whose numbers are of stacks that nobody knew (R7)."""
    node = load_entry("node", "dgx-a100-80gb").model_copy(update={"default_stack": name})
    own, unknown = stack(name).uncertainty, stack("analytic").uncertainty
    assumed = assumed_stack(node)

    for part in ("time", "time_modelled", "slower"):
        number, *both = (getattr(spec, part) for spec in (assumed.uncertainty, own, unknown))
        known = [each.value for each in both if each is not None]
        assert (number.value if number else None) == max(known, default=None)
        assert number is None or number.source in assumed.sources
    assert assumed.uncertainty.fragmentation == own.fragmentation


def test_a_node_without_a_usual_stack_is_priced_by_analytic():
    """No usual stack leaves the one without a framework."""
    node = load_entry("node", "dgx-a100-80gb").model_copy(update={"default_stack": None})

    assert assumed_stack(node) == stack("analytic")


def test_variants_are_not_meant():
    """Stacks whose name continues that of another are left out, and the one without a framework."""
    meant = plausible_stacks()

    assert {"ddp", "deepspeed", "fsdp1", "fsdp2", "megatron-core", "megatron-lm"} <= set(meant)
    assert not {"analytic", "fsdp2-compile", "fsdp2-rowwise", "megatron-lm-2022"} & set(meant)


def test_each_step_is_that_of_the_same_layout_under_the_stack(job):
    """The first is the assumed stack's; each one is what evaluating under that stack gives."""
    first, *others = evaluate(job, LAYOUT).stacks

    assert first.stack == job.stack.name
    assert first.step_seconds == evaluate(job, LAYOUT).predicted.step_seconds
    assert others
    for other in others:
        there = replace(job, stack=stack(other.stack), stack_assumed=False)
        layout = parse_layout(f"{LAYOUT},zero=1,sp=on", layers=32, devices=8)
        assert evaluate(there, layout).predicted.step_seconds == other.step_seconds


def test_stacks_that_cannot_run_the_layout_are_left_out(job):
    """DDP has no tensor parallelism."""
    layout = parse_layout(f"{LAYOUT},zero=1,sp=on", layers=32, devices=8)

    assert "ddp" not in [step.stack for step in stack_steps(job, layout)]


def test_a_front_says_how_far_its_fastest_plan_moves(job):
    """The sentence names the ends and every stack."""
    search = job.search.model_copy(update={"tensor_parallel": 2, "pipeline_parallel": 1, "zero_stage": 1})
    front = plan(replace(job, search=search))
    text = " ".join(front_table(front, Terminal(width=1000), details=True).split())

    assert front.stacks[0].step_seconds == front.fastest.predicted.step_seconds
    assert "stack: megatron-core, assumed: the usual one on dgx-a100-80gb; name one with stack:" in text
    assert all(step.stack in text for step in front.stacks)
    assert "the same layout takes" in text
