"""Relaxations of an infeasible job: of each kind a sequence of steps, the smallest change first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf
from typing import Final

from autoplan.catalog.entries import device, kernels_for, node
from autoplan.catalog.roots import entry_names
from autoplan.costs.core.divisors import divisors
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.results.suggestion import Edit
from autoplan.rules.user_constraints import without_rules
from autoplan.schema.job import AdapterSpec, Cluster, Job, Limits, SearchSpec, Workload
from autoplan.units import quantity_text

__all__ = ["KINDS", "RelaxationKind", "Relaxed", "with_step_time"]

#: Most nodes that are tried.
_MOST_NODES: Final = 64
#: Memory limits tried between that of the job and all memory, where the job has rules of its own.
_MEMORY_PARTS: Final = 8
#: Parts into which a sequence is divided for shorter ones.
_SEQUENCE_PARTS: Final = 64
#: Low-rank adapters that are tried, of a common rank.
_ADAPTERS: Final = AdapterSpec(rank=16)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A relaxed job and its edits; ``relief`` is the factor by which the work of a device decreases."""

    job: Job
    edits: tuple[Edit, ...]
    relief: float = inf


@dataclass(frozen=True, slots=True)
class RelaxationKind:
    """One kind of relaxation; ``steps`` are tried in order, the smallest first.

    With ``monotone``, all steps after a sufficient one are sufficient. With ``bounded``, no step leaves
    enough memory if the last one does not. The argument of ``steps`` after the job is the least memory of a
    layout, where known [bytes]. With ``costs_only``, a relaxation changes predictions but cannot resolve a
    conflict of the job's own rules.
    """

    name: str
    steps: Callable[[Job, float | None], Iterator[Relaxed]]
    monotone: bool = False
    bounded: bool = False
    costs_only: bool = False


def _memory_limits(job: Job, needed: float | None) -> Iterator[Relaxed]:
    """Yield memory limits that leave enough of the device."""
    usable = job.cluster.device.memory.usable.value
    if needed is None or needed > usable:
        return
    yield from filter(None, (_with_memory(job, needed) for needed in _memory_sizes(job, needed, usable)))


def _memory_sizes(job: Job, needed: float, usable: float) -> list[float]:
    """Return the memory limits to try: the least need, and more where the job has rules of its own."""
    if not job.rules:
        return [needed]
    least = max(needed, memory_limit_bytes(job))
    return [
        needed,
        *(least + (usable - least) * part / _MEMORY_PARTS for part in range(1, _MEMORY_PARTS + 1)),
    ]


def _with_memory(job: Job, needed: float) -> Relaxed | None:
    """Return ``job`` with limits that leave ``needed`` bytes of a device; None where they already do."""
    limits, usable = job.limits, job.cluster.device.memory.usable.value
    changed, edits = limits, []
    if limits.peak_memory is not None and limits.peak_memory < needed:
        size = float(-(-int(needed) // 2**20) * 2**20)
        changed = changed.model_copy(update={"peak_memory": min(size, usable)})
        edits.append(_edit("limits.peak_memory", limits.peak_memory, changed.peak_memory, "bytes"))
    if usable * (1 - limits.memory_headroom) < needed:
        headroom = max(0.0, int((1 - needed / usable) * 1000) / 1000)
        changed = changed.model_copy(update={"memory_headroom": headroom})
        edits.append(_edit("limits.memory_headroom", limits.memory_headroom, headroom, "share"))
    return Relaxed(replace(job, limits=changed), tuple(edits)) if edits else None


def _edit(key: str, before: float | None, after: float | None, dimension: str) -> Edit:
    texts = ["none" if x is None else quantity_text(x, dimension) for x in (before, after)]  # type: ignore[arg-type]
    return Edit(key, texts[0], texts[1])


def _confidence(job: Job, _: float | None) -> Iterator[Relaxed]:
    if job.limits.memory_confidence == "upper":
        limits: Limits = job.limits.model_copy(update={"memory_confidence": "central"})
        yield Relaxed(replace(job, limits=limits), (Edit("limits.memory_confidence", "upper", "central"),))


def _recompute(job: Job, _: float | None) -> Iterator[Relaxed]:
    yield from _wider_domain(job, "recompute", ("none", "selective", "full"))


def _offload(job: Job, _: float | None) -> Iterator[Relaxed]:
    stack = job.stack
    words = ["none"] + ["optimizer"] * (stack.optimizer_offload is not None)
    if stack.activation_offload is not None:
        words += ["activations"] + ["optimizer+activations"] * (stack.optimizer_offload is not None)
    if len(words) > 1:
        yield from _wider_domain(job, "offload", tuple(words))


def _wider_domain(job: Job, key: str, domain: tuple[int, ...] | tuple[str, ...]) -> Iterator[Relaxed]:
    """Yield wider domains of a ``search`` key: one or two values more, then all."""
    requested = getattr(job.search, key)
    if requested == "any":
        return
    allowed = requested if isinstance(requested, tuple) else (requested,)
    more = [value for value in domain if value not in allowed]
    for count in (1, 2):
        for extra in combinations(more, count):
            wider = {*allowed, *extra}
            order = domain if isinstance(domain[0], str) else sorted(wider)
            yield _with_search(job, key, tuple(x for x in order if x in wider))
    if key != "offload" and len(more) > 2:
        yield _with_search(job, key, "any")


def _with_search(job: Job, key: str, value: object) -> Relaxed:
    search: SearchSpec = job.search.model_copy(update={key: value})
    edit = Edit(f"search.{key}", _domain_text(getattr(job.search, key)), _domain_text(value))
    return Relaxed(replace(job, search=search), (edit,))


def _domain_text(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _search_key(key: str) -> Callable[[Job, float | None], Iterator[Relaxed]]:
    def steps(job: Job, _: float | None) -> Iterator[Relaxed]:
        devices, batch = job.cluster.devices, job.workload.global_batch_size
        domains: dict[str, tuple[int, ...] | tuple[str, ...]] = {
            "tensor_parallel": divisors(devices),
            "pipeline_parallel": divisors(devices),
            "data_parallel": divisors(devices),
            "microbatch_size": divisors(batch),
            "virtual_stages": divisors(job.model.layers),
            "zero_stage": (0, 1, 2, 3),
            "schedule": job.stack.rules.schedules,
            "order": job.stack.orders,
        }
        if key in domains:
            yield from _wider_domain(job, key, domains[key])
        elif getattr(job.search, key) != "any":
            yield _with_search(job, key, "any")

    return steps


def _open_search(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield an unrestricted search, where several keys restrict it."""
    free = SearchSpec(offload=job.search.offload, offload_every=job.search.offload_every)
    keys = [key for key in SearchSpec.model_fields if getattr(job.search, key) != getattr(free, key)]
    if len(keys) > 1:
        edits = tuple(Edit(f"search.{key}", _domain_text(getattr(job.search, key)), "any") for key in keys)
        yield Relaxed(replace(job, search=free), edits)


def _fewer_rules(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield the job without one of its own rules, or two, or all."""
    count = len(job.rules)
    for dropped in dict.fromkeys(
        (*combinations(range(count), 1), *combinations(range(count), 2), tuple(range(count)))
    ):
        if dropped:
            changed = without_rules(job, dropped)
            yield Relaxed(changed, (Edit("rules", _rules_text(job), _rules_text(changed)),))


def _rules_text(job: Job) -> str:
    """Return the rules of ``job`` as one line of YAML."""
    rules = [rule.model_dump(exclude_none=True) if rule.because else rule.rule for rule in job.rules]
    return json.dumps(rules, ensure_ascii=False)


def _more_devices(job: Job, needed: float | None) -> Iterator[Relaxed]:
    """Yield more devices: each number up to a node, then full nodes, one more at a time, then doubled.

    Memory per device falls at most in proportion to devices, so numbers below that ratio are skipped.
    """
    cluster = job.cluster
    least = cluster.devices * max(1.0, (needed or 0.0) / memory_limit_bytes(job))
    size, most = cluster.node.devices, cluster.node.devices * max(_MOST_NODES, 4 * cluster.nodes)
    numbers = [n for n in range(cluster.devices + 1, size + 1) if n >= least]
    nodes = max(2, -(-int(least) // size), cluster.devices // size + 1)
    while nodes * size <= most:
        numbers.append(nodes * size)
        nodes = nodes + 1 if len(numbers) < size else 2 * nodes
    for n in numbers:
        bigger = replace(job, cluster=replace(cluster, devices=n))
        yield Relaxed(bigger, (Edit("devices", str(cluster.devices), str(n)),), n / cluster.devices)


def _larger_devices(job: Job, needed: float | None) -> Iterator[Relaxed]:
    """Yield catalogued nodes whose devices have more memory: same vendor first, then the smallest."""
    cluster = job.cluster
    current = cluster.device
    larger = []
    for name in entry_names("node"):
        other = node(name)
        candidate = device(other.device)
        usable = candidate.memory.usable.value
        has_more_memory = usable > max(current.memory.usable.value, needed or 0.0)
        if has_more_memory and other.devices == cluster.node.devices and candidate.peak_flops(job.precision):
            larger.append(
                (
                    candidate.vendor != current.vendor,
                    usable,
                    "-" in name and name.split("-")[0] in _CLOUDS,
                    name,
                )
            )
    seen = set()
    for *_, name in sorted(larger):
        candidate = device(node(name).device)
        if candidate.name not in seen:
            seen.add(candidate.name)
            changed = replace(
                job,
                cluster=Cluster(device=candidate, node=node(name), devices=cluster.devices),
                kernels=kernels_for(candidate.name),
            )
            yield Relaxed(changed, (Edit("hardware", cluster.node.name, name),))


#: Nodes of cloud providers come after the same node of its vendor.
_CLOUDS: Final = frozenset({"aws", "azure", "gcp", "lambda"})


def _shorter_sequences(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield shorter sequences, the longest first, as fractions of the job's."""
    length = job.workload.sequence_length
    parts = min(_SEQUENCE_PARTS, length)
    for part in range(parts - 1, 0, -1):
        yield _with_workload(job, "sequence_length", length * part // parts)


def _with_workload(job: Job, key: str, value: int) -> Relaxed:
    work: Workload = job.workload.model_copy(update={key: value})
    edit = Edit(f"workload.{key}", str(getattr(job.workload, key)), str(value))
    return Relaxed(replace(job, workload=work), (edit,), getattr(job.workload, key) / value)


def _smaller_batch(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield smaller batch sizes with many divisors, the largest first."""
    batch = job.workload.global_batch_size
    sizes = {batch * part // 16 for part in range(1, 16)} | {2**k for k in range(24)}
    sizes |= {batch // d * d for d in divisors(job.cluster.devices)}
    for size in sorted(sizes - {0}, reverse=True):
        if size < batch:
            yield _with_workload(job, "global_batch_size", size)


def _larger_batch(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield the next larger batch size that is a multiple of the devices."""
    batch, devices = job.workload.global_batch_size, job.cluster.devices
    if batch % devices:
        yield _with_workload(job, "global_batch_size", -(-batch // devices) * devices)


def _smaller_optimizer(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield AdamW with 8-bit states. It changes training; its effect on the loss is not modelled."""
    if job.adapters is None and job.optimizer in {"adamw", "adam"}:
        yield Relaxed(replace(job, optimizer="adamw-8bit"), (Edit("optimizer", job.optimizer, "adamw-8bit"),))


def _adapters(job: Job, _: float | None) -> Iterator[Relaxed]:
    if job.adapters is None:
        edit = Edit("adapters", "none", f"{{rank: {_ADAPTERS.rank}}}")
        yield Relaxed(replace(job, adapters=_ADAPTERS), (edit,))


def with_step_time(relaxed: Relaxed, seconds: float) -> Relaxed:
    """Return ``relaxed`` with a step-time limit just above ``seconds``, rounded to four digits."""
    job = relaxed.job
    rounded = float(f"{seconds * 1.0005:.4g}")
    limits: Limits = job.limits.model_copy(update={"step_time": rounded})
    edit = _edit("limits.step_time", job.limits.step_time, rounded, "seconds")
    return Relaxed(replace(job, limits=limits), (*relaxed.edits, edit))


_KEYS: Final = (
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "microbatch_size",
    "virtual_stages",
    "zero_stage",
    "sequence_parallel",
    "schedule",
    "order",
    "stages",
)

#: In the order of cost to the user, the cheapest first.
KINDS: Final = (
    RelaxationKind("a higher memory limit", _memory_limits, costs_only=True),
    RelaxationKind("recompute", _recompute),
    *(RelaxationKind(f"wider search.{key}", _search_key(key)) for key in _KEYS),
    RelaxationKind("an unrestricted search", _open_search),
    RelaxationKind("fewer rules of the job", _fewer_rules),
    RelaxationKind("offload to host memory", _offload),
    RelaxationKind("memory judged by the central estimate", _confidence, costs_only=True),
    RelaxationKind("more devices", _more_devices),
    RelaxationKind("larger devices", _larger_devices, costs_only=True),
    RelaxationKind("shorter sequences", _shorter_sequences, monotone=True, bounded=True),
    RelaxationKind("a smaller batch", _smaller_batch, bounded=True),
    RelaxationKind("a larger batch", _larger_batch),
    RelaxationKind("a smaller optimizer", _smaller_optimizer, costs_only=True),
    RelaxationKind("low-rank adapters", _adapters, costs_only=True),
)
