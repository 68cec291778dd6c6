"""Ways to ask less of a job or to give it more: each kind as a ladder, the smallest change first."""

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

#: Nodes that are tried, beyond the job's own.
_MOST_NODES: Final = 64
#: Steps between the memory that is allowed and all of it that are tried under rules of the job's own.
_ROOM_PARTS: Final = 8
#: Parts of a sequence that are tried.
_SEQUENCE_PARTS: Final = 64
#: Low-rank adapters that are tried: common ones.
_ADAPTERS: Final = AdapterSpec(rank=16)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A changed job, and what was edited; ``relief`` is by how much each device has less to do."""

    job: Job
    edits: tuple[Edit, ...]
    relief: float = inf


@dataclass(frozen=True, slots=True)
class RelaxationKind:
    """One kind of change. ``steps`` are tried in order, the smallest first.

    On a ``steady`` ladder what follows enough is enough. Where the last rung of a ``bounded`` one leaves too
    little memory, so do the others. ``needed_bytes``, which rungs may use, is what the smallest layout needs
    of a device, where it is known. What ``costs_only`` changes no rule could be about.
    """

    name: str
    steps: Callable[[Job, float | None], Iterator[Relaxed]]
    steady: bool = False
    bounded: bool = False
    costs_only: bool = False


def _memory_limits(job: Job, needed: float | None) -> Iterator[Relaxed]:
    """Yield limits of the job's own that would leave enough of the device."""
    usable = job.cluster.device.memory.usable.value
    if needed is None or needed > usable:
        return
    yield from filter(None, (_with_room(job, needed) for needed in _sizes(job, needed, usable)))


def _sizes(job: Job, needed: float, usable: float) -> list[float]:
    """Return bytes to make room for: what is needed, or more where the job's own rules may ask for it."""
    if not job.rules:
        return [needed]
    least = max(needed, memory_limit_bytes(job))
    return [needed, *(least + (usable - least) * part / _ROOM_PARTS for part in range(1, _ROOM_PARTS + 1))]


def _with_room(job: Job, needed: float) -> Relaxed | None:
    """Return ``job`` with limits that leave ``needed`` bytes of a device; None where they do."""
    limits, usable = job.limits, job.cluster.device.memory.usable.value
    changed, edits = limits, []
    if limits.peak_memory is not None and limits.peak_memory < needed:
        size = float(-(-int(needed) // 2**20) * 2**20)
        changed = changed.model_copy(update={"peak_memory": min(size, usable)})
        edits.append(_edit("limits.peak_memory", limits.peak_memory, changed.peak_memory, "bytes"))
    if usable * (1 - limits.memory_headroom) < needed:
        share = max(0.0, int((1 - needed / usable) * 1000) / 1000)
        changed = changed.model_copy(update={"memory_headroom": share})
        edits.append(_edit("limits.memory_headroom", limits.memory_headroom, share, "share"))
    return Relaxed(replace(job, limits=changed), tuple(edits)) if edits else None


def _edit(key: str, before: float | None, after: float | None, dimension: str) -> Edit:
    texts = ["none" if x is None else quantity_text(x, dimension) for x in (before, after)]  # type: ignore[arg-type]
    return Edit(key, texts[0], texts[1])


def _confidence(job: Job, _: float | None) -> Iterator[Relaxed]:
    if job.limits.memory_confidence == "upper":
        limits: Limits = job.limits.model_copy(update={"memory_confidence": "central"})
        yield Relaxed(replace(job, limits=limits), (Edit("limits.memory_confidence", "upper", "central"),))


def _recompute(job: Job, _: float | None) -> Iterator[Relaxed]:
    yield from _wider(job, "recompute", ("none", "selective", "full"))


def _offload(job: Job, _: float | None) -> Iterator[Relaxed]:
    stack = job.stack
    words = ["none"] + ["optimizer"] * (stack.offload is not None)
    if stack.activation_offload is not None:
        words += ["activations"] + ["optimizer+activations"] * (stack.offload is not None)
    if len(words) > 1:
        yield from _wider(job, "offload", tuple(words))


def _wider(job: Job, key: str, domain: tuple[int, ...] | tuple[str, ...]) -> Iterator[Relaxed]:
    """Yield wider values of a ``search`` key: one value more, then all."""
    wish = getattr(job.search, key)
    if wish == "any":
        return
    allowed = wish if isinstance(wish, tuple) else (wish,)
    more = [value for value in domain if value not in allowed]
    for count in (1, 2):
        for extra in combinations(more, count):
            wider = {*allowed, *extra}
            order = domain if isinstance(domain[0], str) else sorted(wider)
            yield _searching(job, key, tuple(x for x in order if x in wider))
    if key != "offload" and len(more) > 2:
        yield _searching(job, key, "any")


def _searching(job: Job, key: str, value: object) -> Relaxed:
    search: SearchSpec = job.search.model_copy(update={key: value})
    edit = Edit(f"search.{key}", _listed(getattr(job.search, key)), _listed(value))
    return Relaxed(replace(job, search=search), (edit,))


def _listed(value: object) -> str:
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
            yield from _wider(job, key, domains[key])
        elif getattr(job.search, key) != "any":
            yield _searching(job, key, "any")

    return steps


def _open_search(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield a search that narrows nothing, where several keys do."""
    free = SearchSpec(offload=job.search.offload, offload_every=job.search.offload_every)
    keys = [key for key in SearchSpec.model_fields if getattr(job.search, key) != getattr(free, key)]
    if len(keys) > 1:
        edits = tuple(Edit(f"search.{key}", _listed(getattr(job.search, key)), "any") for key in keys)
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
    """Yield more devices: all numbers up to a node, then whole nodes, one more at a time and then twice.

    Twice the devices hold at most half of what one held, so the first numbers may be skipped.
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
    """Yield catalogued nodes whose devices hold more, the smallest first, those of the same maker first."""
    cluster = job.cluster
    own = cluster.device
    found = []
    for name in entry_names("node"):
        other = node(name)
        what = device(other.device)
        usable = what.memory.usable.value
        enough = usable > max(own.memory.usable.value, needed or 0.0)
        if enough and other.devices == cluster.node.devices and what.peak_flops(job.precision):
            found.append(
                (what.vendor != own.vendor, usable, "-" in name and name.split("-")[0] in _CLOUDS, name)
            )
    seen = set()
    for *_, name in sorted(found):
        what = device(node(name).device)
        if what.name not in seen:
            seen.add(what.name)
            changed = replace(
                job,
                cluster=Cluster(device=what, node=node(name), devices=cluster.devices),
                kernels=kernels_for(what.name),
            )
            yield Relaxed(changed, (Edit("hardware", cluster.node.name, name),))


#: Clouds sell what makers build: a maker's node is named where both are catalogued.
_CLOUDS: Final = frozenset({"aws", "azure", "gcp", "lambda"})


def _shorter_sequences(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield shorter sequences, the longest first, in parts of the job's."""
    length = job.workload.sequence_length
    parts = min(_SEQUENCE_PARTS, length)
    for part in range(parts - 1, 0, -1):
        yield _working(job, "sequence_length", length * part // parts)


def _working(job: Job, key: str, value: int) -> Relaxed:
    work: Workload = job.workload.model_copy(update={key: value})
    edit = Edit(f"workload.{key}", str(getattr(job.workload, key)), str(value))
    return Relaxed(replace(job, workload=work), (edit,), getattr(job.workload, key) / value)


def _smaller_batch(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield smaller batches that divide well, the largest first."""
    batch = job.workload.global_batch_size
    sizes = {batch * part // 16 for part in range(1, 16)} | {2**k for k in range(24)}
    sizes |= {batch // d * d for d in divisors(job.cluster.devices)}
    for size in sorted(sizes - {0}, reverse=True):
        if size < batch:
            yield _working(job, "global_batch_size", size)


def _larger_batch(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield the next batches that the devices divide."""
    batch, devices = job.workload.global_batch_size, job.cluster.devices
    if batch % devices:
        yield _working(job, "global_batch_size", -(-batch // devices) * devices)


def _smaller_optimizer(job: Job, _: float | None) -> Iterator[Relaxed]:
    """Yield AdamW with less state: another training, whose loss nobody has looked at here."""
    if job.adapters is None and job.optimizer in {"adamw", "adam"}:
        yield Relaxed(replace(job, optimizer="adamw-8bit"), (Edit("optimizer", job.optimizer, "adamw-8bit"),))


def _adapters(job: Job, _: float | None) -> Iterator[Relaxed]:
    if job.adapters is None:
        edit = Edit("adapters", "none", f"{{rank: {_ADAPTERS.rank}}}")
        yield Relaxed(replace(job, adapters=_ADAPTERS), (edit,))


def with_step_time(relaxed: Relaxed, seconds: float) -> Relaxed:
    """Return ``relaxed`` with a limit on the step that ``seconds`` keeps, rounded up to a thousandth."""
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

#: What costs the user least comes first.
KINDS: Final = (
    RelaxationKind("room on the device", _memory_limits, costs_only=True),
    RelaxationKind("recompute", _recompute),
    *(RelaxationKind(f"wider search.{key}", _search_key(key)) for key in _KEYS),
    RelaxationKind("an open search", _open_search),
    RelaxationKind("fewer rules of your own", _fewer_rules),
    RelaxationKind("offload to host memory", _offload),
    RelaxationKind("judging memory by its centre", _confidence, costs_only=True),
    RelaxationKind("more devices", _more_devices),
    RelaxationKind("larger devices", _larger_devices, costs_only=True),
    RelaxationKind("shorter sequences", _shorter_sequences, steady=True, bounded=True),
    RelaxationKind("a smaller batch", _smaller_batch, bounded=True),
    RelaxationKind("a larger batch", _larger_batch),
    RelaxationKind("a smaller optimizer", _smaller_optimizer, costs_only=True),
    RelaxationKind("low-rank adapters", _adapters, costs_only=True),
)
