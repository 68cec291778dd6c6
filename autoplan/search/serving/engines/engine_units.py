"""The engines that a serving job may choose: degrees and formats, and the sizes of their steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.results.front import Rejection
from autoplan.rules.engine_rules import broken_engine_rules
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["EngineUnits", "allowed_engines", "engine_units", "seqs_menu", "sizes_of_step", "tokens_menu"]

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
    for tp in _allowed(search.tensor_parallel, open_degrees):
        for pp in _allowed(search.pipeline_parallel, open_degrees):
            for adp in _allowed(search.attention_data_parallel, open_degrees if moe else (1,)):
                if tp * pp * adp <= job.cluster.devices:
                    yield from _formats(job, EngineLayout(tp=tp, pp=pp, adp=adp))


def _formats(job: ServingJob, shape: EngineLayout) -> Iterator[EngineLayout]:
    group = shape.tp * shape.adp
    experts = tuple(dict.fromkeys((1, group))) if job.model.moe else (1,)
    for ep in _allowed(job.search.expert_parallel, experts):
        for dcp in _allowed(job.search.decode_context_parallel, (1,)):
            if group % ep or shape.tp % dcp:
                continue
            for weights in job.precision.weights:
                for kv in job.precision.kv_cache:
                    for spec in job.speculation.tokens if job.speculation else (0,):
                        yield replace(shape, ep=ep, dcp=dcp, weights=weights, kv=kv, spec=spec)


def _allowed(choice: str | int | tuple[int, ...], values: Iterable[int]) -> tuple[int, ...]:
    if isinstance(choice, str):
        return tuple(values)
    return choice if isinstance(choice, tuple) else (choice,)


def allowed_engines(job: ServingJob) -> tuple[int, ...] | None:
    """Return the numbers of engines that ``search.replicas`` allows; None: any."""
    replicas = job.search.replicas
    return None if isinstance(replicas, str) else _allowed(replicas, ())


def tokens_menu(job: ServingJob, layout: EngineLayout) -> tuple[int, ...]:
    """Return the values of max_num_batched_tokens to choose among: the job's, else the default and others."""
    default = EngineScope(job, layout).step_sizes[1]
    return tuple(sorted(set(_allowed(job.search.max_num_batched_tokens, (default, *_TOKENS)))))


def seqs_menu(job: ServingJob, layout: EngineLayout) -> tuple[int, ...]:
    """Return the values of max_num_seqs: the job's, else powers of two, three times them, and the default."""
    default = EngineScope(job, layout).step_sizes[0]
    steps = {n << k for n in (1, 3) for k in range(default.bit_length())}
    return tuple(
        sorted(set(_allowed(job.search.max_num_seqs, {n for n in steps if n <= default} | {default})))
    )


def sizes_of_step(job: ServingJob, layout: EngineLayout, tokens: int) -> tuple[int, ...]:
    """Return the values of max_num_seqs beside so many tokens of a step: each request needs one of them."""
    return tuple(seqs for seqs in seqs_menu(job, layout) if seqs <= tokens)
