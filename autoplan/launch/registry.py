"""Targets by name, each imported when it is asked for; and which plans a target can express."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Final

from autoplan.catalog import entry_names, entry_text
from autoplan.catalog import stack as stack_named
from autoplan.catalog.programs import targets_of
from autoplan.errors import UnsupportedError
from autoplan.launch.target import Emission, InexpressibleError, PlannedRun, StartedProgram, Target
from autoplan.results.front import Front
from autoplan.results.merged_front import at_batch, target_of
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

#: Module of each target, which has it as ``TARGET``, or as the name behind a colon where it has several.
#: A reader recognises files in this order.
TARGETS: Final = {
    "megatron-lm": "autoplan.launch.frameworks.megatron.megatron_lm",
    "megatron-bridge": "autoplan.launch.frameworks.megatron_bridge",
    "deepspeed": "autoplan.launch.frameworks.deepspeed",
    "accelerate": "autoplan.launch.frameworks.accelerate",
    "torchtitan": "autoplan.launch.frameworks.torchtitan.torchtitan",
    "trainer": "autoplan.launch.frameworks.hugging_face.trainer",
    "axolotl": "autoplan.launch.frameworks.hugging_face.axolotl",
    "ms-swift": "autoplan.launch.frameworks.ms_swift",
    "primus": "autoplan.launch.frameworks.primus",
    "automodel": "autoplan.launch.frameworks.automodel",
    "llama-factory": "autoplan.launch.frameworks.hugging_face.llama_factory",
    "torchtune": "autoplan.launch.frameworks.torchtune",
    "unsloth": "autoplan.launch.frameworks.hugging_face.unsloth",
    "litgpt": "autoplan.launch.frameworks.litgpt",
    "nemo": "autoplan.launch.frameworks.nemo",
    "nanotron": "autoplan.launch.frameworks.nanotron",
    "llm-foundry": "autoplan.launch.frameworks.llm_foundry",
    "verl": "autoplan.launch.frameworks.reinforcement:VERL_TARGET",
    "openrlhf": "autoplan.launch.frameworks.reinforcement:OPENRLHF_TARGET",
    "torchrun": "autoplan.launch.launchers:TORCHRUN",
    "slurm": "autoplan.launch.launchers:SLURM",
    "skypilot": "autoplan.launch.launchers:SKYPILOT",
    "kubernetes": "autoplan.launch.launchers:KUBERNETES",
}


def find_target(name: str) -> Target:
    """Return the target called ``name``; raises UnsupportedError with the known names for any other."""
    if name not in TARGETS:
        near = difflib.get_close_matches(name, TARGETS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(TARGETS)}"
        raise UnsupportedError(f"no target is called {name!r}: {hint}")
    module, _, attribute = TARGETS[name].partition(":")
    target: Target = getattr(import_module(module), attribute or "TARGET")
    return target


def starting(
    launcher: Target, framework: str | None, stack: StackSpec, program: Sequence[str] = (), image: str = ""
) -> Target:
    """Return ``launcher`` for a framework, by default that of the ``stack``; raises UnsupportedError."""
    training_target = find_target(framework or _framework_of(stack))
    emit, inner = launcher.emit, training_target.emit
    if emit is None or inner is None or training_target.starts:
        raise UnsupportedError(
            f"{launcher.name} cannot start {training_target.name}: frameworks are {_startable()}"
        )

    def emitted(run: PlannedRun) -> Emission:
        started = StartedProgram(training_target.name, inner(run), tuple(program), image)
        return emit(replace(run, started=started))

    inner_name = f"{training_target.framework} {training_target.version} ({training_target.check})"
    return replace(launcher, framework=f"{inner_name}, started by {launcher.framework}", emit=emitted)


def _framework_of(stack: StackSpec) -> str:
    """Return the target that runs a stack, as its file says."""
    if stack.launched_by is None:
        raise UnsupportedError(
            f"no target runs the stack {stack.name}: name the framework to start, one of {_startable()}"
        )
    return stack.launched_by


def _startable() -> str:
    """Return the frameworks that a launcher can start, in words."""
    return ", ".join(t.name for t in targets() if t.emit is not None and not t.starts)


def usual_stack(target: str) -> str | None:
    """Return the stack that jobs read from files of ``target`` have, as stacks say; None if there is none."""
    for name in entry_names("stack"):
        text, _ = entry_text("stack", name)
        if target in text and target in stack_named(name).files_of:
            return name
    return None


def target_names(*, emitted: bool) -> tuple[str, ...]:
    """Return the names of the targets that can be emitted, or of those whose files can be read."""
    return tuple(t.name for t in targets() if (t.emit if emitted else t.read) is not None)


def targets() -> Iterator[Target]:
    """Yield all targets, in the order in which readers recognise files."""
    return (find_target(name) for name in TARGETS)


def expressible_number(front: Front, target: str | None = None) -> int:
    """Return the number of the fastest plan that its target can express; 1 where there is none.

    ``target`` is one of a framework, in the place of that of each plan's program or stack.
    That is the first one where a program runs the plans: its rules left out all others, and it is not written
    to be sure.
    """
    for number, plan in enumerate(front.plans, 1):
        job = at_batch(front.job, plan)
        run, name = plan.program or job.program, target_of(job, plan)
        if target is not None and not find_target(target).starts:
            # What one program is to run is not written for another where that has plans.
            name = target if run is None or target in targets_of(run) else None
        if name is None:
            continue
        by_rules = run is not None and run.target == name
        if by_rules or missing_part(find_target(name), job, plan.layout) is None:
            return number
    return 1


def missing_part(target: Target, job: Job, layout: Layout) -> str | None:
    """Return what of ``layout`` the target cannot express; None where it can, or is only read."""
    missing = inexpressible(target, PlannedRun(job, layout))
    return missing.part if missing else None


def inexpressible(target: Target, run: PlannedRun) -> InexpressibleError | None:
    """Return what the target cannot express of ``run``; None where it can all."""
    try:
        if target.emit is not None:
            target.emit(run)
    except InexpressibleError as error:
        return error
    return None
