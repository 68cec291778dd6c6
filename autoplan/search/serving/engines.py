"""Engines under a load, on nodes, and among several objectives: what a choice of them is made of.

Notation (this file only)::

    N  clients    X  requests of a second                                            [1]
    W  time from a request to the end of its answer    z  time of a client between   [s]

A box has a largest value for each objective; values are integers, each to be small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose
from typing import Final

from autoplan.costs.core.served_prediction import EngineLoad, ServedPrediction
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.queueing.request_load import CLIENT_SECONDS
from autoplan.costs.serving.served_layouts import PricedEngine, served
from autoplan.deadline import check_deadline
from autoplan.results.front import Rejection
from autoplan.rules.engine_rules import broken_engine_rules
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_choices import allowed_values
from autoplan.schema.serving.serving_spec import ServingJob

#: Devices of the largest engine that is tried where degrees are left open.
_LARGEST: Final = 64
#: Tokens of a step that are tried besides the engine's default.
_TOKENS: Final = (2048, 8192, 16384)


@dataclass(frozen=True, slots=True)
class EngineUnits:
    """The engines of a search space, and how many fell to which rule."""

    units: tuple[EngineLayout, ...]
    rejected: tuple[Rejection, ...]

    @property
    def total(self) -> int:
        """Engines of the complete space."""
        return len(self.units) + sum(rejection.layouts for rejection in self.rejected)


def engine_units(job: ServingJob) -> EngineUnits:
    """Return the engines of the job's degrees and formats that break no rule; sizes are left open."""
    units: list[EngineLayout] = []
    fallen: dict[str, int] = {}
    for layout in _degrees(job):
        broken = broken_engine_rules(job, layout) or _placement(job, layout)
        if broken:
            fallen[broken[0]] = fallen.get(broken[0], 0) + 1
        else:
            units.append(layout)
    return EngineUnits(tuple(units), tuple(Rejection(why, count) for why, count in fallen.items()))


def _placement(job: ServingJob, layout: EngineLayout) -> list[str]:
    """Return why an engine has no place: it lies within a node, or takes full ones."""
    size, node = layout.devices_per_engine, job.cluster.node.devices
    if size <= node or size % node == 0:
        return []
    return [f"an engine of {size} devices lies neither within a node of {node} nor on full nodes"]


def _degrees(job: ServingJob) -> Iterator[EngineLayout]:
    search = job.search
    # Every number: a degree that fits fewer devices fits these as well, and may leave the others idle.
    open_degrees = tuple(range(1, min(job.cluster.devices, _LARGEST) + 1))
    moe = job.model.moe is not None
    for tp in allowed_values(search.tensor_parallel, open_degrees):
        for pp in allowed_values(search.pipeline_parallel, open_degrees):
            for adp in allowed_values(search.attention_data_parallel, open_degrees if moe else (1,)):
                if tp * pp * adp <= job.cluster.devices:
                    yield from _formats(job, EngineLayout(tp=tp, pp=pp, adp=adp))


def _formats(job: ServingJob, shape: EngineLayout) -> Iterator[EngineLayout]:
    group = shape.tp * shape.adp
    experts = tuple(dict.fromkeys((1, group))) if job.model.moe else (1,)
    for ep in allowed_values(job.search.expert_parallel, experts):
        for dcp in allowed_values(job.search.decode_context_parallel, (1,)):
            if group % ep or shape.tp % dcp:
                continue
            for weights in job.precision.weights:
                for kv in job.precision.kv_cache:
                    for spec in job.speculation.tokens if job.speculation else (0,):
                        yield replace(shape, ep=ep, dcp=dcp, weights=weights, kv=kv, spec=spec)


def allowed_engines(job: ServingJob) -> tuple[int, ...] | None:
    """Return the numbers of engines that ``search.replicas`` allows; None: any."""
    replicas = job.search.replicas
    return None if isinstance(replicas, str) else allowed_values(replicas, ())


def tokens_menu(job: ServingJob, layout: EngineLayout) -> tuple[int, ...]:
    """Return the values of max_num_batched_tokens to choose among: the job's, else the default and others."""
    default = EngineScope(job, layout).step_sizes[1]
    return tuple(sorted(set(allowed_values(job.search.max_num_batched_tokens, (default, *_TOKENS)))))


def seqs_menu(job: ServingJob, layout: EngineLayout) -> tuple[int, ...]:
    """Return the values of max_num_seqs: the job's, else powers of two, three times them, and the default."""
    default = EngineScope(job, layout).step_sizes[0]
    steps = {n << k for n in (1, 3) for k in range(default.bit_length())}
    return tuple(
        sorted(set(allowed_values(job.search.max_num_seqs, {n for n in steps if n <= default} | {default})))
    )


def sizes_of_step(job: ServingJob, layout: EngineLayout, tokens: int) -> tuple[int, ...]:
    """Return the values of max_num_seqs beside so many tokens of a step: each request needs one of them."""
    return tuple(seqs for seqs in seqs_menu(job, layout) if seqs <= tokens)


def fit_nodes(sizes: Iterable[int], devices: int, node: int) -> bool:
    """Return whether engines have a place on nodes, the largest first; False where that is not clear.

    >>> fit_nodes([3, 3], 8, 4), fit_nodes([3, 3, 2], 8, 4)
    (True, False)
    """
    # Nodes by their free devices: best fit, so that thousands of nodes take no longer than their kinds.
    free = [0] * node + [-(-devices // node)]
    parts = [part for size in sizes for part in (*[node] * (size // node), size % node) if part]
    for part in sorted(parts, reverse=True):
        room = next((room for room in range(part, node + 1) if free[room]), None)
        if room is None:
            return False
        free[room] -= 1
        free[room - part] += 1
    return True


Box = tuple[float, ...]


class ObjectiveBoxes:
    """Boxes that together hold all that is better than every choice so far in some objective by a step."""

    def __init__(self, objectives: int) -> None:
        self.open: list[Box] = [(inf,) * objectives]

    def cut(self, steps: Sequence[int]) -> None:
        """Leave out what is in no objective as small as ``steps``, those of a choice.

        >>> boxes = ObjectiveBoxes(2)
        >>> boxes.cut((4, 9))
        >>> boxes.cut((7, 5))
        >>> sorted(boxes.open)
        [(4, inf), (7, 9), (inf, 5)]
        """
        cut = [box for box in self.open if all(most > step for most, step in zip(box, steps, strict=True))]
        uncut = [box for box in self.open if box not in set(cut)]
        parts = {(*box[:i], step, *box[i + 1 :]) for box in cut for i, step in enumerate(steps)}
        rivals = [*uncut, *parts]
        self.open = uncut + sorted(
            part for part in parts if not any(other != part and _within(part, other) for other in rivals)
        )


def _within(box: Box, other: Box) -> bool:
    return all(a <= b for a, b in zip(box, other, strict=True))


class LoadedEngines:
    """Engines of ascending max_num_seqs; those that fall behind a load fall behind all later ones."""

    def __init__(self, job: ServingJob, engines: Iterable[PricedEngine]) -> None:
        self.job = job
        self.engines = [engine for engine in engines if engine.shortage is None]
        #: What engines did under the load before, by their size.
        self.before: dict[int, ServedPrediction] = {}

    def under(self, engine: PricedEngine, load: EngineLoad) -> ServedPrediction | None:
        """Return what an engine does under a load no less than any before; None where it does not keep up."""
        check_deadline()
        seqs, groups = engine.layout.seqs, engine.layout.adp
        lighter = self.before.get(seqs)
        predicted = None if lighter is None else of_more_clients(lighter, load, groups, CLIENT_SECONDS)
        if predicted is None:
            predicted = self.before[seqs] = served(self.job, engine, load)
        if load.kind == "maximum" or predicted.fits:
            return predicted
        self.engines.remove(engine)
        return None


#: Relative difference up to which Little's law holds.
_EXACT = 1e-9


def of_more_clients(
    predicted: ServedPrediction, load: EngineLoad, groups: int, client_seconds: float
) -> ServedPrediction | None:
    """Return an engine of so many attention data-parallel ranks under more clients; None where it changes.

    An engine whose clients wait for room has the same throughput with more of them. By Little's law,
    N = X (W + z), each request then waits (N' - N) / X longer. A prediction that satisfies the law is of such
    an engine. Where blocks of the cache run short now and then, more clients change how often.

    >>> layout = EngineLayout(seqs=4)
    >>> engine = priced_engine(layout, unit_parts(EngineScope(serving_job, layout), h100_costs()))
    >>> few, many = (EngineLoad("closed loop", clients) for clients in (8.0, 40.0))
    >>> more = of_more_clients(served(serving_job, engine, few), many, 1, 1e-3)
    >>> priced = served(serving_job, engine, many)
    >>> isclose(more.time_to_first_token, priced.time_to_first_token)
    True
    >>> more.output_tokens_per_second == priced.output_tokens_per_second
    True

    Source: Little 1961, doi:10.1287/opre.9.3.383.
    """
    point, before = predicted.point, predicted.load
    closed = before.kind == load.kind == "closed loop" and before.amount <= load.amount
    alike = point.saturated and point.cause != "kv cache" and predicted.groups == groups
    if not closed or not alike or predicted.classes:
        return None
    rate = predicted.requests_per_second
    if not isclose(before.amount, rate * (point.request_latency + client_seconds), rel_tol=_EXACT):
        return None
    more = load.amount - before.amount
    late = point.time_to_first_token + more / rate
    waiting = replace(point, requests=point.requests + more / groups, time_to_first_token=late)
    return replace(predicted, load=load, point=waiting)
