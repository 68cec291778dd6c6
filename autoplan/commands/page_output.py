"""What pages of answers are made with: the pictures of a plan, and the command that was typed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

import typer

from autoplan.commands.output import is_typed
from autoplan.errors import UnsupportedError

if TYPE_CHECKING:
    from autoplan.costs.core.prediction import StepTimeline
    from autoplan.report.pages.plan_details import StepPictures
    from autoplan.results import Plan
    from autoplan.schema.job import Job

__all__ = [
    "MANY_PASSES",
    "drawn_step",
    "many_passes",
    "step_pictures",
    "typed_command",
]


#: Forward passes of all stages, above which only the fastest plan has a timeline: simulating one takes long.
_MOST_SLOTS: Final = 3_000
MANY_PASSES: Final = "this step has many passes: `autoplan evaluate --layout ... --output` draws its timeline"


def many_passes(plan: Plan) -> bool:
    """Return whether the forward passes of all stages are so many that drawing the step takes long."""
    return plan.predicted.microbatches * plan.layout.pp * plan.layout.vpp > _MOST_SLOTS


def step_pictures(job: Job, plan: Plan, *, timeline: str | None = None) -> StepPictures:
    """Return what the pictures of ``plan`` show; ``timeline`` says why its step is not drawn."""
    from autoplan import planning
    from autoplan.report.pages.plan_details import StepPictures

    return StepPictures(
        drawn_step(job, plan) if timeline is None else timeline,
        planning.products(job, plan.layout),
        planning.placement(job, plan.layout),
    )


def drawn_step(job: Job, plan: Plan) -> StepTimeline | str:
    """Return the predicted step of ``plan``, or why it is not drawn."""
    from autoplan import planning

    try:
        return planning.predicted_step(job, plan.layout)
    except UnsupportedError as error:
        return str(error)


def typed_command(context: typer.Context) -> str:
    """Return the command of ``context`` with what was given on the command line, as a shell reads it."""
    words = ["autoplan", *context.command_path.split()[1:]]
    for parameter in context.command.params:
        name = str(parameter.name)
        if is_typed(context, name):
            words += _words(parameter, context.params[name])
    return shlex.join(words)


def _words(parameter: Any, value: Any) -> list[str]:  # noqa: ANN401 - an option of click's, and what it holds
    """Return what is typed for ``parameter`` to have ``value``."""
    values = [str(getattr(x, "value", x)) for x in (value if isinstance(value, list | tuple) else [value])]
    if parameter.param_type_name != "option":
        return values
    name = max(parameter.opts, key=len)
    if parameter.is_flag:
        return [name if value else max(parameter.secondary_opts, key=len)]
    return [word for text in values for word in (name, text)]
