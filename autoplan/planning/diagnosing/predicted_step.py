"""The predicted step of a layout as it unfolds, for a timeline viewer."""

from __future__ import annotations

from typing import Final

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.prediction import StepTimeline
from autoplan.costs.core.scope import microbatches
from autoplan.costs.step_timeline import step_timeline
from autoplan.errors import UnsupportedError
from autoplan.planning.plan_and_evaluate import chosen, plannable, valid_layout
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["predicted_step"]

#: Passes of all stages: more make a file that no viewer opens.
_MOST_PASSES: Final = 400_000


def predicted_step(job: Job, layout: Layout | str) -> StepTimeline:
    """Return a step of ``layout``, pass by pass; its parts are those of ``evaluate``.

    Raises LayoutError as ``evaluate`` does, UnsupportedError for more passes than a viewer shows.

    >>> from autoplan.catalog import load_job
    >>> timeline = predicted_step(load_job("llama3-8b-8x-a100"), "tp=2,pp=4")
    >>> timeline.stages, sorted({x.phase for x in timeline.slices})
    (4, ['backward', 'bubble', 'end of step', 'forward'])
    """
    job = chosen(plannable(job), layout)
    layout = valid_layout(job, layout)
    m = int(microbatches(job, Candidates.of([layout]))[0])
    passes = 2 * m * layout.pp * layout.vpp
    if passes > _MOST_PASSES:
        raise UnsupportedError(
            f"a step of {layout} has {passes:,} passes; a trace holds {_MOST_PASSES:,}: a smaller"
            " global batch size shows the same pattern"
        )
    if layout.vpp > 1 and m % layout.pp:
        raise UnsupportedError(
            f"the timeline of an interleaved schedule needs microbatches in multiples of pp={layout.pp}:"
            f" a step of {layout} has {m}"
        )
    return step_timeline(job, layout)
