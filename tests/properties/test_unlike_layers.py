"""Models whose layers differ: the front against brute force, and stages against the sum of their layers."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import load_job, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.layer_types import layer_types_of, stage_layers_of
from autoplan.costs.device.machine import machine_of
from autoplan.costs.memory.footprint import saved_bytes, stage_memory
from autoplan.costs.memory.layout_memory import StageCounts
from autoplan.costs.predict import predict
from autoplan.costs.stage.mixed_stages import mixed_stages_of, price_layer_types
from autoplan.costs.stage.stage_times import stage_backward, stage_forward
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Limits, RuleSpec
from autoplan.schema.layout import Layout
from autoplan.schema.model import SlidingWindow
from autoplan.search.front_search import search
from tests.support.enumerated_fronts import (
    all_points,
    contradictions,
    orders,
    random_job,
    whole_front,
)
from tests.support.own_rules import OWN
from tests.support.quick_cases import slow_after, slow_but
from tests.support.unlike_layers import several, with_unlike_layers

INSTANCES = 45
PIPELINES = 20
OWN_INSTANCES = 16
MIX_RULES = 120


#: Rules that distinguish recompute mixes of a stage, so that it has several alternatives at one place.
OF_MIXES = [rule for rule in OWN if rule[0].startswith("sum(")]


def instance(seed: int, own=0, rules=OWN, **narrow):
    """Return a random job with unlike layers and a memory limit that binds, and all its points.

    It has ``own`` of the ``rules``.
    """
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    while True:
        job = with_unlike_layers(rng, random_job(rng))
        job = replace(job, search=job.search.model_copy(update=narrow))
        chosen = rng.sample(rules, own)
        keeps = [lambda x, means=means, job=job: means(x, job) for _, means in chosen]
        if not several(job):
            continue
        points = all_points(job, keeps, most=20_000)
        if len(points) > 1:
            memories = sorted(needed for *_, needed in points)
            limit = memories[int(rng.random() ** 2 * (len(memories) - 1))] * 1.0000001
            limits = Limits(peak_memory=limit, memory_confidence=job.limits.memory_confidence)
            rules = tuple(RuleSpec(rule=text) for text, _ in chosen)
            return replace(job, limits=limits, rules=rules), points


@pytest.mark.parametrize("seed", slow_after(4, range(INSTANCES)))
def test_the_front_is_that_of_brute_force(seed):
    """S2: dense layers before and among experts, windows by turns; any split, schedule and recompute."""
    job, points = instance(seed)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.parametrize("seed", slow_after(4, range(PIPELINES)))
def test_the_front_of_pipelines_is_that_of_brute_force(seed):
    """S2 where only pipelines are asked for: plain ones, and those whose chunks hold layers of two places."""
    schedule = ("1f1b", "interleaved") if seed % 2 else "any"
    narrow = {"pipeline_parallel": (2, 4), "tensor_parallel": 1, "schedule": schedule, "stages": "any"}
    job, points = instance(seed + 300, **narrow)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.parametrize("seed", slow_after(4, range(OWN_INSTANCES)))
def test_the_front_under_own_rules_is_that_of_brute_force(seed):
    """S1 with rules of the user's own about the stages."""
    job, points = instance(seed + 600, own=1 + seed % 2)
    front = whole_front(job)

    assert contradictions(job, points, front) == []
    assert not any(broken_rules(job, plan.layout) for plan in front.plans)


#: The first of the drawn jobs have several mixes at a place whose reduction a longer backward hides.
@pytest.mark.parametrize("seed", slow_but((8, 9, 19, 41), range(MIX_RULES)))
def test_the_front_of_pipelines_under_rules_on_mixes_is_that_of_brute_force(seed):
    """S1 where rules tell mixes apart and a longer backward may hide more of the reduction."""
    schedule = ("1f1b", "interleaved") if seed % 2 else "any"
    narrow = {"pipeline_parallel": (2, 4), "tensor_parallel": 1, "schedule": schedule, "stages": "any"}
    job, points = instance(seed, own=1, rules=OF_MIXES, **narrow)
    front = whole_front(job)

    assert contradictions(job, points, front) == []
    assert not any(broken_rules(job, plan.layout) for plan in front.plans)


def random_layout(rng: random.Random, total: int, pp: int, v: int) -> Layout:
    """Return a random split of the layers, each stage recomputed in part."""
    cuts = sorted(rng.sample(range(1, total // v), pp - 1))
    layers = tuple((b - a) * v for a, b in zip([0, *cuts], [*cuts, total // v], strict=True))
    full = tuple(rng.randint(0, n) for n in layers)
    selective = tuple(rng.randint(0, n - f) for n, f in zip(layers, full, strict=True))
    schedule = "interleaved" if v > 1 else "1f1b"
    recomputed = (("selective", selective), ("full", full))
    return Layout(1, pp, 8 // pp, 1, layers, recomputed, 1, v, False, schedule)


@pytest.mark.parametrize("seed", slow_after(4, range(20)))
def test_a_stage_is_the_sum_of_its_layers(seed):
    """Times and what is kept add up layer by layer: the first are recomputed whole, the next selectively."""
    rng = random.Random(seed)  # noqa: S311
    job = load_job("mixtral-8x7b-8x-h200")
    moe = job.model.moe.model_copy(update={"first_dense_layers": rng.choice([0, 3]), "every": 2})
    job = replace(job, model=job.model.model_copy(update={"layers": 12, "moe": moe, "ffn_size": 999}))
    v = rng.choice([1, 2])
    layout = random_layout(rng, 12, rng.choice([2, 4]), v)
    one = Candidates.of([layout])
    counts = StageCounts.of([layout])
    n, mix = counts.layers, counts.recomputed
    kinds = price_layer_types(job, one, machine_of(job))
    stages = mixed_stages_of(
        kinds, stage_layers_of(layer_types_of(job.model, job.workload.sequence_length), n, mix, [v])
    ).take(0)
    following, of_stage = orders(job, layout.layers, v), {mode: x[0] for mode, x in mix.items()}
    for stage in range(layout.pp):
        held = np.diff(following.table[1, stage, : layout.layers[stage] + 1]).astype(int).tolist()
        whole = layout.counts("full")[stage]
        again = whole + layout.counts("selective")[stage]
        at = [kind.take((0, stage)) for kind in kinds]
        forward = at[0].forward.fixed + sum(at[k].forward.layer for k in held)
        backward = at[0].backward.fixed + sum(at[k].backward.layer for k in held)
        backward += sum(at[k].recompute["full"] for k in held[:whole])
        backward += sum(at[k].recompute["selective"] for k in held[whole:again])
        kept = at[0].memory.entry + sum(at[k].memory.recomputed["full"] for k in held[:whole])
        kept += sum(at[k].memory.recomputed["selective"] for k in held[whole:again])
        kept += sum(at[k].memory.none for k in held[again:])

        assert stage_forward(stages, n[0])[stage] == pytest.approx(forward, rel=1e-12)
        assert stage_backward(stages, n[0], of_stage)[stage] == pytest.approx(backward, rel=1e-12)
        assert saved_bytes(stages.memory, n[0], of_stage)[stage] == pytest.approx(kept, rel=1e-12)
    used = stage_memory(stages.memory, n[0], of_stage)
    shown = [stage.total for stage in predict(job, layout).memory.stages]
    assert shown == pytest.approx(used.tolist(), rel=1e-12)


@pytest.mark.parametrize("devices", slow_after(1, (8, 16)))
def test_kinds_that_cost_the_same_make_no_difference(devices):
    """Eager attention works on all scores, windows or none: places and plain counts find the same front."""
    job = load_job("llama3-8b-8x-a100")
    eager = stack("megatron-lm")
    block = eager.block.model_copy(update={"attention": "eager"})
    eager = eager.model_copy(update={"block": block, "context_parallel": None})
    job = replace(job, stack=eager, cluster=replace(job.cluster, devices=devices))
    windows = SlidingWindow(window=1024, every=2)
    other = replace(job, model=job.model.model_copy(update={"sliding_window": windows}))

    assert several(other)
    assert not several(job)
    fronts = [search(x, thinning=0.05) for x in (job, other)]
    points = [
        [(p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device) for p in front.plans]
        for front in fronts
    ]
    assert np.array(points[0]) == pytest.approx(np.array(points[1]), rel=1e-4)
