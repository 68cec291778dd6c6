"""What a layout communicates, where its ranks are, what its products reach; parameters of models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autoplan.catalog import load_entry
from autoplan.costs.core.parameters import active_parameters, total_parameters
from autoplan.costs.core.prediction import Communication, LayerProducts, RankPlacement
from autoplan.costs.step_communication import step_communication, step_placement
from autoplan.costs.step_products import step_products
from autoplan.errors import AutoplanError
from autoplan.planning.plan_and_evaluate import chosen, plannable, valid_layout
from autoplan.results.plan import ParameterCounts
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec


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
