"""Small random jobs, all of whose layouts can be listed one by one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from autoplan.catalog import kernels_for, load_entry, stack
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Cluster, Job, Limits, SearchSpec, Workload
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec
from autoplan.schema.recompute import MODES
from autoplan.schema.stage_layers import even_stages

NODES = ("dgx-a100-80gb", "dgx-h100", "8x-l40s", "8x-v100-32gb")
STACKS = ("analytic", "megatron-core", "megatron-lm", "fsdp2", "ddp", "megatron-deepspeed")


def small_job(seed: int) -> Job:
    """Return a random job of up to 4 devices and 6 layers."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    heads, gated = rng.choice([2, 4]), rng.random() < 0.5
    model = ModelSpec(
        name="small",
        source="drawn at random",
        layers=rng.randint(1, 6),
        hidden_size=heads * rng.choice([64, 128]),
        heads=heads,
        kv_heads=rng.choice([h for h in (1, 2, 4) if heads % h == 0]),
        ffn_size=rng.choice([256, 1024, 4096]),
        vocabulary=rng.choice([1000, 32000]),
        activation="swiglu" if gated else "gelu",
        norm="rmsnorm" if gated else "layernorm",
    )
    node = load_entry("node", rng.choice(NODES))
    cluster = Cluster(load_entry("device", node.device), node, rng.choice([1, 2, 4]))
    return Job(
        name="small",
        model=model,
        cluster=cluster,
        stack=stack(rng.choice(STACKS)),
        kernels=kernels_for(cluster.device.name),
        precision="fp16",
        workload=Workload(sequence_length=rng.choice([128, 1024]), global_batch_size=rng.choice([4, 6, 8])),
        search=SearchSpec(
            recompute=rng.choice(["any", ("none", "full"), "selective", "none"]),
            stages=rng.choice(["any", "even"]),
            tensor_parallel=rng.choice(["any", (1, 2)]),
            schedule=rng.choice(["any", "1f1b", ("1f1b", "interleaved")]),
        ),
    )


def with_limit(job: Job, needed: list[float], share: float) -> Job:
    """Return ``job`` with a memory limit above that ``share`` of the bytes that its layouts need."""
    ranked = sorted(needed)
    limit = ranked[min(len(ranked) - 1, int(share * len(ranked)))] * 1.0000001
    return replace(job, limits=Limits(peak_memory=limit))


def with_zero_bubble(software: StackSpec) -> StackSpec:
    """Return a stack that has the zero-bubble schedule beside its own."""
    schedules = tuple(dict.fromkeys([*software.rules.schedules, "zero-bubble"]))
    rules = software.rules.model_copy(update={"schedules": schedules})
    return software.model_copy(update={"rules": rules})


def zero_bubble(job: Job) -> list[tuple[str, int]]:
    """Return the zero-bubble schedule where the stack of ``job`` has it."""
    return [("zero-bubble", 1)] if "zero-bubble" in job.stack.rules.schedules else []


def counts_embedding_and_loss(job: Job, pp: int, vpp: int) -> bool:
    """Return whether virtual stages are alike with the embedding and the head, or the head, as layers.

    Where layers differ, or divide without, none do.
    """
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    if not job.stack.rules.uneven_chunks or kinds.several or job.model.layers % vpp == 0:
        return False
    return any((job.model.layers + more) % (pp * vpp) == 0 for more in (1, 2))


def virtual_stages(job: Job, pp: int) -> list[int]:
    """Return how many virtual stages a device may have, from two on."""
    layers = job.model.layers
    whole = [v for v in range(2, layers + 1) if layers % v == 0 and v * pp <= layers]
    return sorted({*whole, *(v for v in range(2, layers + 2) if counts_embedding_and_loss(job, pp, v))})


def choices(job: Job) -> Iterator[Layout]:
    """Yield the first layout of every choice of degrees, microbatch, ZeRO stage and schedule."""
    n, batch, layers = job.cluster.devices, job.workload.global_batch_size, job.model.layers
    for pp, tp, cp in itertools.product(range(1, n + 1), repeat=3):
        if n % (tp * pp * cp) or (cp > 1 and job.stack.context_parallel is None):
            continue
        dp = n // tp // pp // cp
        sizes = [b for b in range(1, batch + 1) if batch % (dp * b) == 0] or [1]
        schedules = [("1f1b", 1)] if pp == 1 else [("1f1b", 1), ("gpipe", 1), *zero_bubble(job)]
        if pp > 1:
            schedules += [("interleaved", v) for v in virtual_stages(job, pp)]
        for mbs, zero, (schedule, vpp) in itertools.product(sizes, range(4), schedules):
            for sp in (False, True)[: 1 + (tp > 1)]:
                held = even_stages(layers, pp, vpp) if pp <= layers else (1,) * pp
                yield Layout(tp, pp, dp, mbs, held, (), zero, vpp, sp, schedule, cp)


def layouts(job: Job, first: Layout) -> Iterator[Layout]:
    """Yield every layout of the choice that ``first`` stands for."""
    total, pp, vpp = job.model.layers, first.pp, first.vpp
    even = (
        job.search.stages == "even"
        or not job.stack.rules.uneven_stages
        or counts_embedding_and_loss(job, pp, vpp)
    )
    if pp > total:
        yield first
        return
    counts = itertools.product(range(vpp, total + 1, vpp), repeat=pp)
    splits = [first.layers] if even else [held for held in counts if sum(held) == total]
    wish = job.search.recompute
    modes = ("none", "selective", "full") if wish == "any" else wish if isinstance(wish, tuple) else (wish,)
    if first.activation_offload:
        modes = (first.mode,)
    for held in splits:
        for mix in itertools.product(*(_mixes(n, modes) for n in held)):
            recomputed = tuple((mode.name, tuple(x[i] for x in mix)) for i, mode in enumerate(MODES))
            yield replace(first, layers=held, recomputed=recomputed)


def _mixes(layers: int, modes: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Return all counts of a stage, one for each recompute mode."""
    counts = [range(layers + 1) if mode.name in modes else (0,) for mode in MODES]
    return [
        mix
        for mix in itertools.product(*counts)
        if sum(mix) <= layers and ("none" in modes or sum(mix) == layers)
    ]


def allowed(job: Job) -> Iterator[Layout]:
    """Yield every layout of ``job`` that keeps its rules."""
    for first in choices(job):
        if not broken_rules(job, first):
            yield from layouts(job, first)
