"""Relaxations of an infeasible job: of each kind a sequence of steps, the smallest change first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor, log10
from typing import Final

from autoplan.catalog.entries import device, fuller_nodes, node
from autoplan.catalog.hardware_names import derived_name, provider_of, rented_machines, split_name
from autoplan.catalog.programs import USUAL
from autoplan.catalog.relatives import kernels_for
from autoplan.catalog.roots import entry_names
from autoplan.costs.core.candidates import divisors
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.planning.infeasible.edited_jobs import Changes, keys_in_file, rules_text
from autoplan.results.merged_front import cost_per_step, energy_per_step, steps_per_billion_tokens
from autoplan.rules.user_constraints import without_rules
from autoplan.schema.job import Job, SearchSpec, long_document
from autoplan.schema.recompute import USUAL_MODES
from autoplan.units import quantity_text

#: Name of the kind that takes every restriction of the search away.
OPEN_SEARCH: Final = "an unrestricted search"

#: Most nodes that are tried.
_MOST_NODES: Final = 64
#: Memory limits tried between that of the job and all memory, where the job has rules.
_MEMORY_PARTS: Final = 8
#: Parts into which a sequence is divided for shorter ones.
_SEQUENCE_PARTS: Final = 64
#: Low-rank adapters that are tried, of a common rank, and a format of the frozen base below them.
_ADAPTERS: Final = "{rank: 16}"
_BASE: Final = "nf4"
#: Tokens of the sequences that are tried with it.
_SHORTER: Final = (2048, 1024, 512)
#: Optimizers of fewer bytes than AdamW's, or with these on the host, in the order of what they change.
_SMALL_OPTIMIZERS: Final = ("adamw-8bit", "paged-adamw", "paged-adamw-8bit")
#: The program whose recipes update in backward, and most sequences of a device in its one microbatch.
_UPDATES_IN_BACKWARD: Final = "torchtune"
_MOST_SEQUENCES: Final = 8
#: Share by which a limit is above what the plan needs, at least, before it is rounded to four digits.
_MARGIN: Final = 1e-4
#: A kilowatt-hour [J].
_KWH: Final = 3.6e6


@dataclass(frozen=True, slots=True)
class RelaxationKind:
    """One kind of relaxation; ``steps`` are tried in order, the smallest first.

    With ``monotone``, all steps after a sufficient one are sufficient. With ``bounded``, no step leaves
    enough memory if the last one does not. The arguments of ``steps`` are the job, one of its choices where
    it has several, and the least memory of a layout, where known [bytes]. With ``costs_only``, a relaxation
    changes predictions but cannot resolve a conflict of the job's rules; ``memory_only`` ones are tried
    only where no layout fits into memory, ``last`` ones where no other helps.
    """

    name: str
    steps: Callable[[Job, float | None], Iterator[Changes]]
    monotone: bool = False
    bounded: bool = False
    costs_only: bool = False
    memory_only: bool = False
    last: bool = False

    @property
    def widens_search(self) -> bool:
        """Whether it gives one key of ``search`` more values."""
        return self.name == "recompute" or self.name.startswith("wider search")


def _memory_limits(job: Job, needed: float | None) -> Iterator[Changes]:
    """Yield memory limits that leave enough of the device."""
    usable = job.cluster.device.memory.usable.value
    if needed is None or needed > usable:
        return
    yield from filter(None, (_with_memory(job, size, usable) for size in _memory_sizes(job, needed, usable)))


def _memory_sizes(job: Job, needed: float, usable: float) -> list[float]:
    """Return the memory limits to try: the least need, and more where the job has rules."""
    if not job.relations:
        return [needed]
    least = max(needed, memory_limit_bytes(job))
    return [
        needed,
        *(least + (usable - least) * part / _MEMORY_PARTS for part in range(1, _MEMORY_PARTS + 1)),
    ]


def _with_memory(job: Job, needed: float, usable: float) -> Changes:
    """Return limits that leave ``needed`` bytes of a device; empty where those of ``job`` already do."""
    limits, changes = job.limits, []
    if limits.peak_memory is not None and limits.peak_memory < needed:
        size = min(float(-(-int(needed) // 2**20) * 2**20), usable)
        changes.append(("limits.peak_memory", quantity_text(size, "bytes")))
    if usable * (1 - limits.memory_headroom) < needed:
        headroom = max(0.0, int((1 - needed / usable) * 1000) / 1000)
        changes.append(("limits.memory_headroom", quantity_text(headroom, "share")))
    return tuple(changes)


def _confidence(job: Job, _: float | None) -> Iterator[Changes]:
    if job.limits.memory_confidence == "upper":
        yield (("limits.memory_confidence", "central"),)


def _recompute(job: Job, _: float | None) -> Iterator[Changes]:
    yield from _wider_domain(job, "recompute", USUAL_MODES)


def _offload(job: Job, _: float | None) -> Iterator[Changes]:
    stack = job.stack
    words = ["none"] + ["optimizer"] * (stack.optimizer_offload is not None)
    if stack.activation_offload is not None:
        words += ["activations"] + ["optimizer+activations"] * (stack.optimizer_offload is not None)
    if len(words) > 1:
        yield from _wider_domain(job, "offload", tuple(words))


def _wider_domain(job: Job, key: str, domain: tuple[int, ...] | tuple[str, ...]) -> Iterator[Changes]:
    """Yield wider domains of a ``search`` key: one or two values more, then all."""
    requested = getattr(job.search, key)
    if requested == "any":
        return
    allowed = requested if isinstance(requested, tuple) else (requested,)
    more = [value for value in domain if value not in allowed]
    for count in (1, 2):
        for extra in combinations(more, count):
            wider = {*allowed, *extra}
            order = (*domain, *(x for x in allowed if x not in domain))
            yield _with_search(key, order if isinstance(domain[0], str) else sorted(wider), wider)
    if key != "offload" and len(more) > 2:
        yield ((f"search.{key}", "any"),)


def _with_search(key: str, order: Iterable[object], wider: set[int | str]) -> Changes:
    return ((f"search.{key}", f"[{', '.join(str(x) for x in order if x in wider)}]"),)


def _search_key(key: str) -> Callable[[Job, float | None], Iterator[Changes]]:
    def steps(job: Job, _: float | None) -> Iterator[Changes]:
        devices, batch = job.cluster.devices, job.workload.global_batch_size
        domains: dict[str, tuple[int, ...] | tuple[str, ...]] = {
            "tensor_parallel": divisors(devices),
            "pipeline_parallel": divisors(devices),
            "data_parallel": divisors(devices),
            "context_parallel": divisors(devices),
            "microbatch_size": divisors(batch),
            "virtual_stages": divisors(job.model.layers),
            "zero_stage": (0, 1, 2, 3),
            "schedule": job.stack.rules.schedules,
            "order": job.stack.orders,
        }
        if key in domains:
            yield from _wider_domain(job, key, domains[key])
        elif getattr(job.search, key) != "any":
            yield ((f"search.{key}", "any"),)

    return steps


def _open_search(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield an unrestricted search, where several keys restrict it."""
    free = SearchSpec(offload=job.search.offload, offload_every=job.search.offload_every)
    keys = [key for key in SearchSpec.model_fields if getattr(job.search, key) != getattr(free, key)]
    if len(keys) > 1:
        yield tuple((f"search.{key}", str(getattr(free, key))) for key in keys)


def _fewer_rules(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield the job without one of its rules, or two, or all."""
    count = len(job.rules)
    for dropped in dict.fromkeys(
        (*combinations(range(count), 1), *combinations(range(count), 2), tuple(range(count)))
    ):
        if dropped:
            yield (("rules", rules_text(without_rules(job, dropped))),)


def _device_limit(job: Job, _: float | None) -> Iterator[Changes]:
    most = job.limits.devices
    if most is not None and job.cluster.devices > most:
        yield (("limits.devices", str(job.cluster.devices)),)


def _fewer_devices(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield fewer devices, the most first, where a limit on devices, cost or energy asks for that."""
    limits, size, devices = job.limits, job.cluster.node.devices, job.cluster.devices
    if limits.devices is limits.cost is limits.energy is None:
        return
    most = min(devices - 1, limits.devices or devices)
    numbers = [n for n in range(most, 0, -1) if n <= size or n % size == 0]
    yield from ((("devices", str(n)),) for n in numbers)


def _more_devices(job: Job, needed: float | None) -> Iterator[Changes]:
    """Yield more devices: each number up to a node, then full nodes, one more at a time, then doubled.

    Before several nodes of few devices come machines with more of them, such as 2x-rtx4090 for 1x-rtx4090.
    Memory per device falls at most in proportion to devices, so numbers below that ratio are skipped.
    """
    cluster, allowed = job.cluster, job.limits.devices
    least = cluster.devices * max(1.0, (needed or 0.0) / memory_limit_bytes(job))
    size, most = cluster.node.devices, cluster.node.devices * max(_MOST_NODES, 4 * cluster.nodes)
    numbers = [n for n in range(cluster.devices + 1, size + 1) if n >= least]
    nodes = max(2, -(-int(least) // size), cluster.devices // size + 1)
    while nodes * size <= most:
        numbers.append(nodes * size)
        nodes = nodes + 1 if len(numbers) < size else 2 * nodes
    numbers = [n for n in numbers if allowed is None or n <= allowed]
    yield from ((("devices", str(n)),) for n in numbers if n <= size)
    yield from _fuller_nodes(job, least)
    yield from ((("devices", str(n)),) for n in numbers if n > size)


def _fuller_nodes(job: Job, least: float) -> Iterator[Changes]:
    """Yield machines with more of the devices of one that is called by their number, ``least`` or more."""
    cluster, allowed = job.cluster, job.limits.devices
    if cluster.nodes > 1 or job.limits.cost is not None:
        return
    for fuller in fuller_nodes(cluster.node):
        if fuller.devices >= least and (allowed is None or fuller.devices <= allowed):
            yield _with_hardware(job, fuller.name, fuller.devices)


def _larger_devices(job: Job, needed: float | None) -> Iterator[Changes]:
    """Yield nodes whose devices have more memory: of one vendor and provider first, then the smallest.

    Beside those that files describe they are of any device, where the job's are so many cards of one kind,
    and machines that the provider of the job's rents. None where the cost is limited: the price of other
    devices is not known.
    """
    cluster = job.cluster
    current = cluster.device
    larger = []
    count = cluster.node.devices
    provider = provider_of(cluster.node.name)
    names = [*entry_names("node"), *(name for name in rented_machines() if provider_of(name) == provider)]
    if split_name(cluster.node.name) is not None:
        names += [node(derived_name(count, name)).name for name in entry_names("device")]
    for name in names if job.limits.cost is None else ():
        other = node(name)
        candidate = device(other.device)
        usable = candidate.memory.usable.value
        has_more_memory = usable > max(current.memory.usable.value, needed or 0.0)
        if has_more_memory and other.devices == count and candidate.peak_flops(job.precision):
            others = candidate.vendor != current.vendor, provider_of(name) != provider
            alike = len({*candidate.name.split("-")} & {*current.name.split("-")})
            larger.append((*others, usable, -alike, len(name), name))
    seen = set()
    for *_, name in sorted(larger):
        if node(name).device not in seen:
            seen.add(node(name).device)
            yield _with_hardware(job, name)


def _with_hardware(job: Job, name: str, devices: int | None = None) -> Changes:
    """Return the change to the node ``name``, with the stack and the ``devices`` that the job has, or others.

    Defaults of the hardware would replace what the file leaves out; kernel curves that it names are those of
    another device.
    """
    other, keys = node(name), keys_in_file(job)
    changes = [("hardware", name)]
    if "stack" not in keys and job.program is None and (other.default_stack or "analytic") != job.stack.name:
        changes.append(("stack", job.stack.name))
    if "kernels" in keys:
        changes.append(("kernels", kernels_for(other.device).name))
    wanted = devices or job.cluster.devices
    if wanted != (job.cluster.devices if "devices" in keys else other.devices):
        changes.append(("devices", str(wanted)))
    return tuple(changes)


def _shorter_sequences(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield shorter sequences, the longest first, as fractions of the job's."""
    length = job.workload.sequence_length
    parts = min(_SEQUENCE_PARTS, length)
    for part in range(parts - 1, 0, -1):
        yield (("workload.sequence_length", str(length * part // parts)),)


def _shorter_packs(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield packed sequences that are shorter and as many times more: the same documents, tokens and step."""
    work = job.workload
    parts = 2
    while work.documents is not None and not work.sequence_length % parts:
        length = work.sequence_length // parts
        if length < long_document(work.documents):
            return
        batch = work.global_batch_size * parts
        yield (("workload.sequence_length", str(length)), ("workload.global_batch_size", str(batch)))
        parts *= 2


def _smaller_batch(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield smaller batch sizes with many divisors, the largest first."""
    batch = job.workload.global_batch_size
    sizes = {batch * part // 16 for part in range(1, 16)} | {2**k for k in range(24)}
    sizes |= {batch // d * d for d in divisors(job.cluster.devices)}
    for size in sorted(sizes - {0}, reverse=True):
        if size < batch:
            yield (("workload.global_batch_size", str(size)),)


def _larger_batch(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield the next larger batch size that is a multiple of the devices."""
    batch, devices = job.workload.global_batch_size, job.cluster.devices
    if batch % devices:
        yield (("workload.global_batch_size", str(-(-batch // devices) * devices)),)


def _chunked_loss(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield a loss that never has the logits of all tokens at once, where the stack has one that does."""
    if job.software.loss != "chunked" and job.stack.block.loss_chunks == 1:
        yield (("software.loss", "chunked"),)


def _small_optimizers(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield AdamW with 8-bit or paged states. It changes training; its effect on the loss is not modelled."""
    if job.adapters is None and job.optimizer in {"adamw", "adam"}:
        yield from ((("optimizer", name),) for name in _SMALL_OPTIMIZERS)


def _pure_bf16(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield training without fp32 copies of parameters and states, which changes its numerics."""
    memory = job.stack.memory
    if job.precision == "bf16" and job.software.pure_bf16 is None and memory.parameter_bytes > 2:
        yield (("software.pure_bf16", "true"),)


def _offloaded_parameters(job: Job, _: float | None) -> Iterator[Changes]:
    if not job.stack.memory.offload_parameters:
        yield (("software.offload_parameters", "true"),)


def _updates_in_backward(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield updates in backward by a program that has them, then with small states.

    They leave no gradients to accumulate: a step has one microbatch, so that the batch may be smaller, too.
    """
    if job.adapters is not None or job.software.optimizer_in_backward:
        return
    optimizers: list[Changes] = [()]
    if job.optimizer in {"adamw", "adam"}:
        optimizers += [(("optimizer", name),) for name in _SMALL_OPTIMIZERS]
    for program in reversed(tuple(_with_and_without(job, _UPDATES_IN_BACKWARD))):
        for optimizer in optimizers:
            for batch in _batches_at_once(job):
                yield (*program, *optimizer, ("software.optimizer_in_backward", "true"), *batch)


def _with_usual(job: Job) -> Iterator[Changes]:
    """Yield no change of the program, and the change to usual ones where the job names others."""
    yield from _with_and_without(job, USUAL) if job.programs is not None else ((),)


def _with_and_without(job: Job, program: str) -> Iterator[Changes]:
    """Yield no change of the program, and the change to ``program`` where the job names no stack."""
    yield ()
    if "stack" not in keys_in_file(job) and job.programs != program:
        yield (("program", program),)


def _batches_at_once(job: Job) -> Iterator[Changes]:
    """Yield the batch as it is, and those of a few sequences a device, the largest first."""
    yield ()
    batch, devices = job.workload.global_batch_size, job.cluster.devices
    sequences = _MOST_SEQUENCES
    while sequences:
        if sequences * devices < batch:
            yield (("workload.global_batch_size", str(sequences * devices)),)
        sequences //= 2


def _other_programs(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield the programs that are usual, then each other one, where the job names no stack."""
    if "stack" in keys_in_file(job):
        return
    programs = (job.programs,) if isinstance(job.programs, str) else job.programs or ()
    names = (USUAL, *entry_names("program"))
    yield from ((("program", name),) for name in names if name not in programs)


def _precomputed_reference(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield log-probabilities of the reference that are computed before training, which then has none."""
    if job.rl is not None and job.rl.passes.reference and job.rl.method != "grpo":
        yield (("rl", f"{{method: {job.rl.method}, precompute_ref_log_probs: true}}"),)


def _rollouts_asleep(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield a colocated engine that leaves the devices in training, and one that is elsewhere."""
    if job.rl is None or not job.rl.rollout_share:
        return
    for rest in ("vllm_mode: colocate, vllm_enable_sleep_mode: true", "vllm_mode: server"):
        beta = f", beta: {job.rl.beta}" if job.rl.beta is not None else ""
        yield (("rl", f"{{method: {job.rl.method}{beta}, {rest}}}"),)


def _adapters(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield adapters, with the programs that are usual where the job's own has none."""
    if job.adapters is None:
        for program in _with_usual(job):
            yield (*program, ("adapters", _adapters_of(job)))


def _adapters_of(job: Job) -> str:
    """Return adapters of a common rank, of attention alone where experts have none."""
    return _ADAPTERS if job.model.moe is None else f"{_ADAPTERS[:-1]}, targets: attention}}"


def _quantized_base(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield a frozen base in 4 bits below the adapters of the job, or below some of a common rank (QLoRA).

    Then also with the base in host memory, and with shorter sequences.
    """
    offloaded: Changes = (("software.offload_parameters", "true"),)
    length = job.workload.sequence_length
    for shorter in (length, *(size for size in _SHORTER if size < length)):
        change: Changes = (("workload.sequence_length", str(shorter)),) if shorter < length else ()
        for base in _bases(job):
            yield (*base, *change)
            yield (*base, *offloaded, *change)


def _bases(job: Job) -> Iterator[Changes]:
    """Yield the base of ``_quantized_base``, then for usual programs where the job names others."""
    if job.adapters is not None and job.adapters.base is not None:
        return
    base = ("adapters.base", _BASE)
    if job.adapters is None:
        base = ("adapters", f"{_adapters_of(job)[:-1]}, base: {_BASE}}}")
    yield from ((*program, base) for program in _with_usual(job))


def _larger_with_base(job: Job, _: float | None) -> Iterator[Changes]:
    """Yield larger devices, each with the base of ``_quantized_base``, for what neither makes possible."""
    for larger in _larger_devices(job, None):
        yield from ((*larger, *base) for base in _bases(job))


def longer_step(job: Job, seconds: float) -> Changes:
    """Return limits of ``job`` that just allow a step of ``seconds``: those that do not allow it already."""
    limits, changes = job.limits, []
    rate = job.step_tokens / seconds
    if limits.step_time is not None and limits.step_time < seconds:
        changes.append(("limits.step_time", f"{_above(seconds):.10g} s"))
    if limits.tokens_per_second is not None and limits.tokens_per_second > rate:
        changes.append(("limits.tokens_per_second", f"{_below(rate):.10g}"))
    steps = steps_per_billion_tokens(job)
    cost, energy = cost_per_step(job, seconds), energy_per_step(job, seconds)
    if limits.cost is not None and cost is not None and limits.cost < cost * steps:
        changes.append(("limits.cost", f"{_above(cost * steps):.10g}"))
    if limits.energy is not None and energy is not None and limits.energy < energy * steps:
        changes.append(("limits.energy", f"{_above(energy * steps / _KWH):.10g} kWh"))
    return tuple(changes)


def _above(value: float) -> float:
    """Return a number of four digits just above ``value``."""
    unit = _fourth_digit(value)
    return ceil(value * (1 + _MARGIN) / unit) * unit


def _below(value: float) -> float:
    """Return a number of four digits just below ``value``."""
    unit = _fourth_digit(value)
    return floor(value * (1 - _MARGIN) / unit) * unit


def _fourth_digit(value: float) -> float:
    """Return the worth of the fourth digit of ``value``."""
    return float(10.0 ** (floor(log10(value)) - 3))


_KEYS: Final = (
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "context_parallel",
    "expert_parallel",
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
    RelaxationKind(OPEN_SEARCH, _open_search),
    RelaxationKind("fewer rules of the job", _fewer_rules),
    RelaxationKind("a loss in chunks of tokens", _chunked_loss, costs_only=True, memory_only=True),
    RelaxationKind("offload to host memory", _offload),
    RelaxationKind("parameters in host memory", _offloaded_parameters, memory_only=True),
    RelaxationKind("the reference's log-probabilities before training", _precomputed_reference),
    RelaxationKind("rollouts that leave the devices", _rollouts_asleep, memory_only=True),
    RelaxationKind("another program", _other_programs),
    RelaxationKind("shorter packed sequences", _shorter_packs, memory_only=True),
    RelaxationKind("an 8-bit or paged optimizer", _small_optimizers, costs_only=True),
    RelaxationKind("all in bf16", _pure_bf16, costs_only=True),
    RelaxationKind("updates in backward", _updates_in_backward, memory_only=True),
    RelaxationKind("low-rank adapters", _adapters, costs_only=True),
    RelaxationKind("low-rank adapters on a quantised base", _quantized_base, memory_only=True),
    RelaxationKind("shorter sequences", _shorter_sequences, monotone=True, bounded=True),
    RelaxationKind("a smaller batch", _smaller_batch, bounded=True),
    RelaxationKind("a larger batch", _larger_batch),
    RelaxationKind("memory judged by the central estimate", _confidence, costs_only=True),
    RelaxationKind("a higher device limit", _device_limit, costs_only=True),
    RelaxationKind("fewer devices", _fewer_devices),
    RelaxationKind("more devices", _more_devices),
    RelaxationKind("larger devices", _larger_devices, costs_only=True),
    RelaxationKind(
        "larger devices, and low-rank adapters on a quantised base",
        _larger_with_base,
        memory_only=True,
        last=True,
    ),
)
