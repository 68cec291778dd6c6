"""The front against an enumerator that knows nothing of bounds, menus or the solver."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import kernels_for, load_entry, stack
from autoplan.costs.arrays import Candidates
from autoplan.costs.footprint import memory_limit_bytes, stage_memory, stage_needed
from autoplan.costs.machine import machine_of
from autoplan.costs.pipeline import pipeline_seconds
from autoplan.costs.scope import microbatches
from autoplan.costs.stage import stage_backward, stage_forward, stage_tail
from autoplan.costs.step import price_stages
from autoplan.plans import broken_rules
from autoplan.schema.job import Cluster, Job, Limits, RoutingSpec, SearchSpec, Workload
from autoplan.schema.layout import SCHEDULES, Layout, even_stages
from autoplan.schema.model import MixtureOfExperts, ModelSpec, MultiHeadLatentAttention
from autoplan.search.answer import search

INSTANCES = 240
SPARSE_INSTANCES = 40
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
                    for vpp in range(2, layers + 1):
                        if layers % vpp == 0 and pp * vpp <= layers:
                            yield tp, pp, dp, cp, mbs, zero, sp, vpp, "interleaved"


def splits(job: Job, pp: int, vpp: int):
    """Yield layers a stage: all ways, or the even one."""
    layers = job.model.layers
    even = job.search.stages == "even" or not job.stack.rules.uneven_stages
    if even:
        yield even_stages(layers, pp, vpp)
        return
    for counts in itertools.product(range(vpp, layers + 1, vpp), repeat=pp - 1):
        last = layers - sum(counts)
        if last >= vpp:
            yield (*counts, last)


def checkpoints(job: Job) -> list[int]:
    """Return how many layers may share an input: any number that the job names, else small divisors."""
    layers, wish = job.model.layers, job.search.checkpoint
    if wish != "any":
        return [int(k) for k in np.atleast_1d(wish)]
    most = (4 * layers) ** 0.5 if job.stack.rules.checkpoint_blocks else 1
    return [k for k in range(1, layers + 1) if layers % k == 0 and k <= most]


def mixes(job: Job, layers: int, checkpoint: int) -> list[tuple[int, int]]:
    """Return all (selective, full) counts of a stage that the job allows."""
    modes = job.search.recompute
    modes = {"none", "selective", "full"} if modes == "any" else set(np.atleast_1d(modes))
    return [
        (s, f)
        for s in range(layers + 1)
        for f in range(layers + 1 - s)
        if f % checkpoint == 0
        and (s == 0 or "selective" in modes)
        and (f == 0 or "full" in modes)
        and (s + f == layers or "none" in modes)
    ]


def all_points(job: Job) -> list[tuple[float, float, str, float]]:
    """Return (step, memory, name, bytes judged) of every layout of the job, or none when too many."""
    machine, points = machine_of(job), []
    choices_by_hand = itertools.product(candidates_by_hand(job), checkpoints(job))
    for (tp, pp, dp, cp, mbs, zero, sp, vpp, schedule, ep, etp), k in choices_by_hand:
        first = even_stages(job.model.layers, pp, vpp)
        if sum(first) != job.model.layers:
            continue
        none = (0,) * pp
        layout = Layout(
            tp, pp, dp, mbs, first, none, none, zero, vpp, sp, schedule, cp, ep, k, expert_tensor=etp
        )
        if broken_rules(job, layout):
            continue
        c = Candidates.of([layout])
        stages, m = price_stages(job, c, machine).take(0), microbatches(job, c)[0]
        for layers in splits(job, pp, vpp):
            choices = list(itertools.product(*(mixes(job, n, k) for n in layers)))
            if not choices:
                continue
            if len(points) + len(choices) > MOST_LAYOUTS:
                return []
            chosen = np.array(choices, dtype=float)
            held = np.array(layers, dtype=float)
            s, f = chosen[..., 0], chosen[..., 1]
            time = pipeline_seconds(
                stage_forward(stages, held) + 0 * s,
                stage_backward(stages, held, s, f),
                m,
                np.float64(vpp),
                SCHEDULES.index(schedule),
            )
            time = time + stage_tail(stages, held, s, f).total.max(axis=-1)
            memory = stage_memory(stages.memory, held, s, f).max(axis=-1)
            needed = stage_needed(stages.memory, held, s, f).max(axis=-1)
            columns = (time.tolist(), memory.tolist(), itertools.repeat(str(layout)), needed.tolist())
            points.extend(zip(*columns, strict=False))
    return points


def pareto(points, limit):
    """Return the non-dominated points within the limit, fastest first."""
    front, least = [], np.inf
    for time, memory, name, needed in sorted(points):
        fits = needed <= limit * (1 + 1e-12)
        if fits and memory <= least and (not front or memory < front[-1][1]):
            front.append((time, memory, name))
            least = memory
    return front


def instance(seed: int, *, experts: bool = False, **search):
    """Return a random job, narrowed by ``search``, with a memory limit that binds, and all its points."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    for _ in range(200):
        job = random_experts(rng, random_job(rng)) if experts else random_job(rng)
        job = replace(job, search=job.search.model_copy(update=search))
        points = all_points(job)
        if len(points) > 1:
            memories = sorted(needed for *_, needed in points)
            limit = memories[int(rng.random() ** 2 * (len(memories) - 1))] * 1.0000001
            limits = Limits(peak_memory=limit, memory_confidence=job.limits.memory_confidence)
            return replace(job, limits=limits), points
    raise AssertionError("no small instance found")


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_the_front_is_that_of_brute_force(seed):
    """S2: without thinning, the solver's front is the enumerator's, to the solver's ticks."""
    compare_with_brute_force(*instance(seed))


@pytest.mark.parametrize("seed", range(SPARSE_INSTANCES))
def test_the_front_of_experts_is_that_of_brute_force(seed):
    """S2: likewise over the ways to spread and split experts, with latent attention and without."""
    compare_with_brute_force(*instance(seed + 20_000, experts=True))


@pytest.mark.parametrize("seed", range(16))
def test_the_front_is_that_of_brute_force_with_shared_checkpoints(seed):
    """S2 with several layers a checkpoint, on few degrees."""
    wish = [(1, 2), "any", 3, (2, 4)][seed % 4]
    modes = ["any", ("none", "full"), "full", ("selective", "full")][seed // 4]
    narrow = {"tensor_parallel": 1, "context_parallel": 1, "microbatch_size": (1, 2), "schedule": "1f1b"}

    compare_with_brute_force(*instance(seed + 500, checkpoint=wish, recompute=modes, **narrow))


def compare_with_brute_force(job: Job, points) -> None:
    """Assert that nothing beats the front of ``job``, and that it beats nothing that exists."""
    limit = memory_limit_bytes(job)
    tick = limit / 2**16

    expected = pareto(points, limit - 2 * tick)
    front = [
        (p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device, str(p.layout))
        for p in search(job, thinning=0.0).plans
    ]

    for time, memory, name in expected:
        covered = [f for f in front if f[0] <= time * (1 + 1e-6) and f[1] <= memory + 2 * tick]
        assert covered, f"{name} ({time}, {memory}) beats the front {front}"
    for time, memory, name in front:
        assert memory <= limit
        better = [
            e
            for e in points
            if e[0] < time * (1 - 1e-6) and e[1] < memory - 2 * tick and e[3] <= limit - 2 * tick
        ]
        assert not better, f"{name} ({time}, {memory}) is beaten by {better[0]}"


@pytest.mark.parametrize("seed", range(40))
def test_a_thinned_front_matches_every_layout(seed):
    """Every layout has a plan at most 1 % slower and 1 % larger; plans differ by at least 1 %."""
    job, points = instance(seed + 10_000)
    limit = memory_limit_bytes(job)
    tick = limit / 2**16

    front = [(p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device) for p in search(job).plans]

    for time, memory, name, needed in points:
        if needed <= limit - 2 * tick:
            matched = [f for f in front if f[0] <= time * 1.0101 and f[1] <= memory * 1.0102]
            assert matched, f"{name} ({time}, {memory}) is matched by none of {front}"
    for (fast, large), (slow, small) in itertools.pairwise(front):
        assert fast <= slow
        assert small <= large * 0.9905
