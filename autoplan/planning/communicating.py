"""List what the ranks of a layout communicate in a step."""

from __future__ import annotations

from pathlib import Path

from autoplan.costs.core.prediction import Communication
from autoplan.costs.step_communication import step_communication
from autoplan.planning.plan_and_evaluate import chosen, plannable, valid_layout
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["communication"]


def communication(job: Job | str | Path, layout: Layout | str) -> tuple[Communication, ...]:
    """Return what one rank of each stage of ``layout`` communicates in a step, as its prediction prices it.

    Operation, process group, bytes of a message and calls, by stage. Raises as ``evaluate`` does.

    >>> messages = communication("llama3-8b-8x-a100", "tp=2,dp=4,mbs=1,recompute=full")
    >>> sorted({(message.axis, message.ranks) for message in messages})
    [('dp_shard', 4), ('tp', 2)]
    """
    job = chosen(plannable(job), layout)
    return step_communication(job, valid_layout(job, layout))
