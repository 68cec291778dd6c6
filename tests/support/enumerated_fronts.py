"""Random training jobs, and fronts by an enumerator that knows nothing of bounds, menus or the solver."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from autoplan.catalog import kernels_for, load_entry, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.layer_types import Prefixes, layer_types_of
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import stage_memory, stage_needed
from autoplan.costs.pipeline.schedules import pipeline_seconds
from autoplan.costs.stage.mixed_stages import mixed_stages_of, price_layer_types
from autoplan.costs.stage.stage_times import end_of_step, stage_backward, stage_forward, stage_weight
from autoplan.schema.job import Cluster, Job, Limits, RoutingSpec, SearchSpec, Workload
from autoplan.schema.layout import ORDERS, SCHEDULES, Layout
from autoplan.schema.model import MixtureOfExperts, ModelSpec, MultiHeadLatentAttention
from autoplan.schema.recompute import MODES
from autoplan.schema.stage_layers import even_stages
from autoplan.search.front_search import search
from tests.support.by_rules import keeping_rules
from tests.support.small_jobs import counts_embedding_and_loss, virtual_stages

__all__ = [
    "SPARSE_STACKS",
    "all_points",
    "contradictions",
    "listed",
    "orders",
    "random_experts",
    "random_job",
    "whole_front",
]

MOST_LAYOUTS = 60_000
NODES = ["dgx-a100-80gb", "dgx-h100", "8x-l40s", "8x-v100-32gb", "8x-mi300x"]
SPARSE_STACKS = ["analytic", "megatron-core", "fsdp2", "deepspeed"]
STACKS = ["analytic", "megatron-core", "megatron-lm", "fsdp2", "ddp", "megatron-deepspeed", "deepspeed"]


def random_experts(rng: random.Random, job: Job) -> Job:
    """Return ``job`` with a random model of experts, some with latent attention, in a stack that has both."""
    layers, count = job.model.layers, rng.choice([2, 4, 8])
    moe = MixtureOfExperts(
        experts=count,
        top_k=rng.randint(1, min(count, 3)),
        expert_ffn_size=rng.choice([128, 1024, 4096]),
        shared_expert_ffn_size=rng.choice([0, 512]),
        first_dense_layers=rng.randint(0, min(2, layers - 1)),
    )
    changes = {"moe": moe}
    if rng.random() < 0.4:
        mla = MultiHeadLatentAttention(
            q_lora_rank=rng.choice([None, 128]),
            kv_lora_rank=64,
            qk_nope_head_dim=32,
            qk_rope_head_dim=16,
            v_head_dim=32,
        )
        changes |= {"attention": "mla", "mla": mla, "head_dim": 48, "kv_heads": job.model.heads}
    return replace(
        job,
        model=job.model.model_copy(update=changes),
        stack=stack(rng.choice(SPARSE_STACKS)),
        routing=RoutingSpec(load_variation=rng.choice([None, 0.0, 0.3])),
    )


def random_job(rng: random.Random) -> Job:
    """Return a small random job: up to 8 devices and 12 layers, sizes that make trades."""
    heads = rng.choice([2, 4, 8])
    head_dim = rng.choice([32, 64, 128])
    gated = rng.random() < 0.5
    model = ModelSpec(
        name="random",
        source="drawn at random",
        layers=rng.randint(1, 12),
        hidden_size=heads * head_dim,
        heads=heads,
        kv_heads=rng.choice([h for h in (1, 2, 4, 8) if heads % h == 0]),
        ffn_size=rng.choice([256, 1024, 4096]),
        vocabulary=rng.choice([1000, 32000]),
        activation="swiglu" if gated else "gelu",
        norm="rmsnorm" if gated else "layernorm",
        tied_embeddings=rng.random() < 0.3,
    )
    node = load_entry("node", rng.choice(NODES))
    cluster = Cluster(load_entry("device", node.device), node, rng.choice([1, 2, 4, 6, 8]))
    modes = rng.choice(
        ["any", ("none", "full"), ("none", "selective"), "full", ("selective", "full"), "none"]
    )
    return Job(
        name="random",
        model=model,
        cluster=cluster,
        stack=stack(rng.choice(STACKS)),
        kernels=kernels_for(cluster.device.name),
        workload=Workload(
            sequence_length=rng.choice([128, 1024, 4096]),
            global_batch_size=rng.choice([4, 8, 12, 24]),
        ),
        precision="fp16",
        search=SearchSpec(
            recompute=modes,
            stages=rng.choice(["any", "any", "even"]),
            tensor_parallel=rng.choice(["any", (1, 2)]),
            schedule=rng.choice(["any", "any", "1f1b", "gpipe", ("1f1b", "interleaved")]),
        ),
        limits=Limits(memory_confidence=rng.choice(["upper", "central"])),
    )


def candidates_by_hand(job: Job):
    """Yield (tp, pp, dp, cp, mbs, zero, sp, vpp, schedule, ep, etp) of everything that divides."""
    for tp, pp, dp, cp, *rest in _dense_by_hand(job):
        several = range(1, tp * dp * cp + 1) if job.model.moe else [1]
        for ep, etp in itertools.product(several, {1, tp}):
            if tp * dp * cp % (ep * etp) == 0:
                yield tp, pp, dp, cp, *rest, ep, etp


def _dense_by_hand(job: Job):
    n, batch, layers = job.cluster.devices, job.workload.global_batch_size, job.model.layers
    for tp, pp, cp in itertools.product(range(1, n + 1), repeat=3):
        if n % (tp * pp * cp) or pp > layers:
            continue
        dp = n // tp // pp // cp
        for mbs in range(1, batch + 1):
            for zero, sp in itertools.product(range(4), (False, True)):
                if sp and tp == 1:
                    continue
                yield tp, pp, dp, cp, mbs, zero, sp, 1, "1f1b"
                if pp > 1:
                    yield tp, pp, dp, cp, mbs, zero, sp, 1, "gpipe"
                    yield tp, pp, dp, cp, mbs, zero, sp, 1, "zero-bubble"
                    for vpp in virtual_stages(job, pp):
                        yield tp, pp, dp, cp, mbs, zero, sp, vpp, "interleaved"


def splits(job: Job, pp: int, vpp: int):
    """Yield layers a stage: all ways, or the even one."""
    layers = job.model.layers
    even = job.search.stages == "even" or not job.stack.rules.uneven_stages
    if even or counts_embedding_and_loss(job, pp, vpp):
        yield even_stages(layers, pp, vpp)
        return
    for counts in itertools.product(range(vpp, layers + 1, vpp), repeat=pp - 1):
        last = layers - sum(counts)
        if last >= vpp:
            yield (*counts, last)


def checkpoints(job: Job) -> list[int]:
    """Return how many layers may share an input: any number that the job names, else small divisors."""
    layers, wish = job.model.layers, job.search.recompute_num_layers
    if wish != "any":
        return [int(k) for k in np.atleast_1d(wish)]
    most = (4 * layers) ** 0.5 if job.stack.rules.recompute_several_layers else 1
    return [k for k in range(1, layers + 1) if layers % k == 0 and k <= most]


def shards(job: Job) -> list[int]:
    """Return how many ranks may share state, 0 for all: nodes hold all devices, so fewer only where asked."""
    return list(range(job.cluster.devices)) if job.search.dp_shard != "any" else [0]


def orders_of_ranks(job: Job) -> tuple[str, ...]:
    """Return the orders in which ranks may be numbered: those of the stack, where there are several nodes."""
    return job.stack.orders if job.cluster.nodes > 1 else ORDERS[:1]


def offloads(job: Job) -> list[tuple[bool, bool]]:
    """Return whether optimizer state, and activations, may live in host memory: what the job asks for."""
    wish = {str(x) for x in np.atleast_1d(job.search.offload)}
    both = itertools.product((False, True), repeat=2)
    words = {(False, False): "none", (True, False): "optimizer", (False, True): "activations"}
    return [x for x in both if words.get(x, "optimizer+activations") in wish]


#: Recompute modes of layers whose counts a mix has, in this order.
COUNTED = tuple(mode.name for mode in MODES)


def mixes(job: Job, layers: int, unit: int) -> list[tuple[int, ...]]:
    """Return all counts of a stage, one for each recompute mode, that the job allows."""
    modes = job.search.recompute
    modes = {"none", "selective", "full"} if modes == "any" else set(np.atleast_1d(modes))
    counts = [range(layers + 1) if mode in modes else (0,) for mode in COUNTED]
    return [
        mix
        for mix in itertools.product(*counts)
        if (sum(mix) <= layers if "none" in modes else sum(mix) == layers)
        and mix[COUNTED.index("full")] % unit == 0
    ]


def mixes_of(job: Job, layout: Layout, layers: int) -> list[tuple[int, ...]]:
    """Return the counts of a stage of ``layout`` by recompute mode: all layers alike under offload."""
    if not layout.activation_offload:
        return mixes(job, layers, layout.recompute_num_layers)
    if layout.mode == "full" and layers % layout.recompute_num_layers:
        return []
    return [tuple(layers * (mode == layout.mode) for mode in COUNTED)]


def everies(job: Job) -> list[int]:
    """Return of how many layers one may be offloaded."""
    wish = job.search.offload_every
    policy = job.stack.activation_offload
    named = [1, 2, 4, 8] if wish == "any" else [int(n) for n in np.atleast_1d(wish)]
    return named if wish != "any" or (policy and policy.partial) else [1]


def listed(job: Job) -> Iterator[Layout]:
    """Yield everything that divides, with even stages that recompute nothing, or all if it is offloaded."""
    degrees, others = candidates_by_hand(job), (checkpoints(job), shards(job), offloads(job))
    choices_by_hand = itertools.product(degrees, *others, orders_of_ranks(job))
    for (tp, pp, dp, cp, mbs, zero, sp, vpp, schedule, ep, etp), k, shard, offload, order in choices_by_hand:
        first = even_stages(job.model.layers, pp, vpp)
        if sum(first) != job.model.layers or (shard and zero == 0):
            continue
        layout = Layout(
            *(tp, pp, dp, mbs, first, (), zero, vpp, sp, schedule, cp, ep),
            recompute_num_layers=k,
            dp_shard=shard,
            expert_tensor=etp,
            optimizer_offload=offload[0],
            activation_offload=offload[1],
            order=order,
        )
        for mode, every in itertools.product(("none", "selective", "full"), everies(job)):
            if offload[1] or (mode == "none" and every == everies(job)[0]):
                yield replace(
                    layout.with_uniform_recompute(mode) if offload[1] else layout, offload_every=every
                )


def count_up_to(job: Job, layouts: list[list[Layout]], most: int) -> int:
    """Return how many ways there are to fill the stages of ``layouts``; counting ends beyond ``most``."""
    count, of_stage = 0, functools.cache(lambda layout, n: len(mixes_of(job, layout, n)))
    for layout in itertools.chain.from_iterable(layouts):
        for layers in splits(job, layout.pp, layout.vpp):
            count += math.prod(of_stage(layout, n) for n in layers)
            if count > most:
                return count
    return count


def all_points(job: Job, own=(), most: int = MOST_LAYOUTS) -> list[tuple[float, float, str, float]]:
    """Return (step, memory, name, bytes judged) of every layout of the job, or none when too many.

    ``own`` are predicates that layouts have to keep beside the built-in rules.
    """
    layouts, points = keeping_rules(job, listed(job)), []
    if count_up_to(job, layouts, most) > most:
        return []
    for group in filter(None, layouts):
        c = Candidates.of(group)
        prices, batches_of_each = price_layer_types(job, c, machine_of(job)), microbatches(job, c)
        for i, layout in enumerate(group):
            points += points_of(job, layout, [kind.take(i) for kind in prices], batches_of_each[i], own)
    return points


def points_of(job, layout, kinds, m, own):
    """Yield the point of each way to fill the stages of ``layout``, which takes ``m`` microbatches."""
    for layers in splits(job, layout.pp, layout.vpp):
        choices = list(itertools.product(*(mixes_of(job, layout, n) for n in layers)))
        if own:
            filled = (with_stages(layout, layers, mix) for mix in choices)
            choices = [m for m, x in zip(choices, filled, strict=True) if all(keeps(x) for keeps in own)]
        if not choices:
            continue
        chosen = np.array(choices, dtype=float)
        held = np.array(layers, dtype=float)
        mix = {mode: chosen[..., i] for i, mode in enumerate(COUNTED)}
        mix = {mode: counts for mode, counts in mix.items() if mode in kinds[0].recompute}
        zero = 0 * chosen[..., 0]
        order = orders(job, layers, layout.vpp)
        stages = mixed_stages_of(kinds, order.layer_counts(np.arange(layout.pp), mix))
        time = pipeline_seconds(
            stage_forward(stages, held) + zero,
            stage_backward(stages, held, mix),
            m,
            np.float64(layout.vpp),
            SCHEDULES.index(layout.schedule),
            stage_weight(stages, held) + zero,
        )
        time = time + end_of_step(stages, held, mix).total.max(axis=-1)
        memory = stage_memory(stages.memory, held, mix).max(axis=-1)
        needed = stage_needed(stages.memory, held, mix).max(axis=-1)
        columns = (time.tolist(), memory.tolist(), itertools.repeat(str(layout)), needed.tolist())
        yield from zip(*columns, strict=False)


def orders(job, layers, vpp):
    """Return the kinds of the layers of each stage: chunks go to the stages in turn, round after round."""
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    if not kinds.several:
        return Prefixes.of([(0,) * n for n in layers], 1)
    held, left = [[] for _ in layers], iter(kinds.sequence)
    for _ in range(vpp):
        for stage, n in zip(held, layers, strict=True):
            stage.extend(next(left) for _ in range(n // vpp))
    return Prefixes.of(held, len(kinds.models))


def with_stages(layout, layers, mix):
    """Return ``layout`` with these layers, and counts by recompute mode, of its stages."""
    return replace(layout, layers=layers, recomputed=tuple(zip(COUNTED, zip(*mix, strict=True), strict=True)))


def pareto(points, limit):
    """Return the non-dominated points within the limit, fastest first."""
    front, least = [], np.inf
    for time, memory, name, needed in sorted(points):
        fits = needed <= limit * (1 + 1e-12)
        if fits and memory <= least and (not front or memory < front[-1][1]):
            front.append((time, memory, name))
            least = memory
    return front


def whole_front(job):
    """Return the front with every plan on it, however close to the next."""
    return search(job, thinning=0.0)


def contradictions(job, points, answer):
    """Return what speaks against the front of ``answer``, given ``points``, all layouts of ``job``."""
    limit = memory_limit_bytes(job)
    tick = limit / 2**16
    front = [
        (p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device, str(p.layout))
        for p in answer.plans
    ]
    missed = [
        f"{name} ({time}, {memory}) beats the front {front}"
        for time, memory, name in pareto(points, limit - 2 * tick)
        if not any(f[0] <= time * (1 + 1e-6) and f[1] <= memory + 2 * tick for f in front)
    ]
    large = [f"{name} needs {memory} of {limit}" for _, memory, name in front if memory > limit]
    fitting = [e for e in points if e[3] <= limit - 2 * tick]
    dominated = [
        f"{name} ({time}, {memory}) is dominated by {e}"
        for time, memory, name in front
        for e in fitting
        if e[0] < time * (1 - 1e-6) and e[1] < memory - 2 * tick
    ]
    return missed + large + dominated
