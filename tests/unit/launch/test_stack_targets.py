"""Which target runs a stack stands in its file alone: what plans, launchers and readers say agrees."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan
from autoplan.answers.plan.blocks import front_table
from autoplan.catalog import entry_names, load_entry, load_job
from autoplan.errors import UnsupportedError
from autoplan.launch.registry import TARGETS, find_target, starting, target_names, usual_stack
from autoplan.report.render.terminal import Terminal

STACKS = entry_names("stack")
FRAMEWORKS = [name for name in target_names(emitted=True) if not find_target(name).starts]


@pytest.fixture(scope="module")
def front():
    """A front of a small job, whose stack the tests replace."""
    return autoplan.plan(replace(load_job("llama3-8b-8x-a100"), objectives=("step_time",)))


@pytest.mark.parametrize("name", STACKS)
def test_plan_and_launchers_name_the_same_target_of_a_stack(front, name):
    """The next command of a plan names what `emit --for slurm` starts; without a target both say so."""
    stack = load_entry("stack", name)
    told = front_table(replace(front, job=replace(front.job, stack=stack)), Terminal()).splitlines()[-1]

    if stack.launched_by is None:
        assert f"--for TARGET (no target runs the stack {name}" in told
        with pytest.raises(UnsupportedError, match=f"no target runs the stack {name}: name the framework"):
            starting(find_target("slurm"), None, stack)
        return
    assert told.startswith("next: autoplan emit")
    assert told.endswith(f"--for {stack.launched_by}")
    assert stack.launched_by in FRAMEWORKS
    begun = starting(find_target("slurm"), None, stack)
    assert begun.framework.startswith(find_target(stack.launched_by).framework)


def test_files_of_a_target_are_read_as_jobs_of_one_stack():
    """Each target stands in one stack's file, and a stack that a target starts lists targets that exist."""
    listed = [target for name in STACKS for target in load_entry("stack", name).files_of]

    assert len(listed) == len(set(listed))
    assert set(listed) <= set(target_names(emitted=False)) <= set(TARGETS)
    for target in listed:
        stack = load_entry("stack", usual_stack(target))
        assert target in stack.files_of
        assert stack.launched_by is not None
        assert stack.launched_by in {*stack.files_of, "accelerate"}


def test_a_stack_inherits_its_target_and_not_the_files():
    """What extends a stack is started alike; files of a framework stay those of the stack that they name."""
    parent, child = load_entry("stack", "megatron-core"), load_entry("stack", "megatron-core-graphs")

    assert child.launched_by == parent.launched_by == "megatron-lm"
    assert parent.files_of == ("megatron-lm",)
    assert child.files_of == ()
