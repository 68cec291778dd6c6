"""What a step of a layout consists of: passes, messages, ranks and products; parameters of models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from autoplan.catalog import load_entry
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.parameters import active_parameters, total_parameters
from autoplan.costs.core.prediction import Communication, LayerProducts, RankPlacement, StepTimeline
from autoplan.costs.core.scope import microbatches
from autoplan.costs.step_communication import step_communication, step_placement
from autoplan.costs.step_products import step_products
from autoplan.costs.step_timeline import step_timeline
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.planning.plan_and_evaluate import chosen, plannable, valid_layout
from autoplan.results.plan import ParameterCounts
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec

#: Passes of all stages: more make a file that no viewer opens.
_MOST_PASSES: Final = 400_000


def communication(job: Job | str | Path, layout: Layout | str) -> tuple[Communication, ...]:
    """Return what one rank of each stage of ``layout`` communicates in a step, as its prediction prices it.

    Operation, process group, bytes of a message and calls, by stage. Raises as ``evaluate`` does.

    >>> messages = communication("llama3-8b-8x-a100", "tp=2,dp=4,mbs=1,recompute=full")
    >>> sorted({(message.axis, message.ranks) for message in messages})
    [('dp_shard', 4), ('tp', 2)]
    """
    job = chosen(plannable(job), layout)
    return step_communication(job, valid_layout(job, layout))


def placement(job: Job | str | Path, layout: Layout | str) -> RankPlacement:
    """Return the ranks of ``layout`` on the nodes of ``job``, and the bytes of each link in a step.

    Raises as ``evaluate`` does.

    >>> answer = placement("llama3-8b-8x-a100", "tp=2,dp=4,mbs=1,recompute=full")
    >>> answer.nodes, sorted({x.axis for x in answer.traffic})
    (1, ['dp_shard', 'tp'])
    """
    job = chosen(plannable(job), layout)
    return step_placement(job, valid_layout(job, layout))


def products(job: Job | str | Path, layout: Layout | str) -> LayerProducts:
    """Return the matrix products of the layers of ``layout`` as its prediction prices them.

    Raises as ``evaluate`` does.

    >>> len(products("llama3-8b-8x-a100", "tp=2,dp=4,mbs=1").products)  # four, each with two gradients
    12
    """
    job = chosen(plannable(job), layout)
    return step_products(job, valid_layout(job, layout))


def parameter_counts(names: Iterable[str]) -> dict[str, ParameterCounts]:
    """Return the parameter counts of the models ``names``, without those of invalid files."""
    counts = {}
    for name in names:
        try:
            model = load_entry("model", name)
        except AutoplanError:
            continue
        if isinstance(model, ModelSpec):
            counts[name] = ParameterCounts(total_parameters(model), active_parameters(model))
    return counts


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
