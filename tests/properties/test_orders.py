"""Orders in which ranks are numbered: where groups lie, which are equivalent, and the front over all."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from autoplan.catalog import stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import machine_of
from autoplan.costs.network.mesh import (
    context_group,
    data_group,
    dispatch_groups,
    expert_group,
    pipeline_group,
    ranks_per_node,
    replica_group,
    shard_group,
    tensor_group,
)
from autoplan.costs.predict import predict_all
from autoplan.costs.stage.mixed_stages import price_stages
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.costmodel.stack import PlacementPolicy
from autoplan.schema.job import Limits, RuleSpec
from autoplan.schema.layout import ORDERS, Layout
from autoplan.search.front_search import search
from autoplan.search.space.candidate_space import space_of
from autoplan.verification.enumeration import counted
from tests.support.by_rules import keeping_rules
from tests.support.enumerated_fronts import (
    all_points,
    contradictions,
    listed,
    random_experts,
    random_job,
    whole_front,
)
from tests.support.quick_cases import slow_after

INSTANCES = 14
OWN_INSTANCES = 10
SPARSE_INSTANCES = 6
MOST_LAYOUTS = 6_000
#: Rules about the order as a job says them, and what each means.
RULES = [
    ("order != tp-cp-dp-pp", lambda x: x.order != "tp-cp-dp-pp"),
    ("order == pp-tp-cp-dp or tp == 1", lambda x: x.order == "pp-tp-cp-dp" or x.tp == 1),
    ("order in {cp-dp-tp-pp, tp-pp-cp-dp}", lambda x: x.order in {"cp-dp-tp-pp", "tp-pp-cp-dp"}),
    ("not order == tp-cp-dp-pp or pp == 1", lambda x: x.order != "tp-cp-dp-pp" or x.pp == 1),
    ("order == tp-cp-dp-pp or full[0] == 0", lambda x: x.order == "tp-cp-dp-pp" or not x.counts("full")[0]),
]


def any_order(job):
    """Return ``job`` on a stack like its own that has every order."""
    placement = PlacementPolicy(orders=ORDERS, kind="guess", source="guess")
    return replace(job, stack=job.stack.model_copy(update={"placement": placement}))


def clustered(rng, job):
    """Return ``job`` on two or three nodes of two or four devices each, all of its state shared."""
    size = rng.choice([2, 2, 2, 4])
    node = job.cluster.node.model_copy(update={"devices": size})
    cluster = replace(job.cluster, node=node, devices=size * rng.choice([2, 2, 3] if size == 2 else [2]))
    work = job.workload.model_copy(update={"global_batch_size": rng.choice([4, 6])})
    search = job.search.model_copy(update={"dp_shard": "all"})
    job = replace(job, cluster=cluster, workload=work, search=search)
    return any_order(job) if rng.random() < 0.3 else job


def instance(seed, *, experts=False, own=()):
    """Return a random job on several nodes with a limit that binds, and all its points."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    for _ in range(400):
        job = replace(
            random_job(rng), stack=stack(rng.choice(["analytic", "analytic", "megatron-core", "fsdp2"]))
        )
        job = clustered(rng, random_experts(rng, job) if experts else job)
        points = all_points(job, [means for _, means in own], MOST_LAYOUTS)
        if len(points) > 1:
            memories = sorted(needed for *_, needed in points)
            limit = memories[int(rng.random() ** 2 * (len(memories) - 1))] * 1.0000001
            limits = Limits(peak_memory=limit, memory_confidence=job.limits.memory_confidence)
            return replace(job, limits=limits, rules=tuple(RuleSpec(rule=text) for text, _ in own)), points
    raise AssertionError("no small instance found")


@pytest.mark.parametrize("seed", slow_after(2, range(INSTANCES)))
def test_the_front_over_orders_is_that_of_brute_force(seed):
    """S2, S6: on several nodes no order that would be better is missed."""
    job, points = instance(seed)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.parametrize("seed", slow_after(1, range(SPARSE_INSTANCES)))
def test_the_front_of_experts_over_orders_is_that_of_brute_force(seed):
    """Likewise where experts have axes of their own over the same ranks."""
    job, points = instance(seed + 3_000, experts=True)

    assert contradictions(job, points, whole_front(job)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_after(2, range(OWN_INSTANCES)))
def test_the_front_under_rules_about_orders_is_that_of_brute_force(seed):
    """S1: orders that are equivalent are not removed where a rule of the user's own tells them apart."""
    own = RULES[seed % len(RULES)]
    job, points = instance(seed + 6_000, own=[own])
    front = whole_front(job)

    assert contradictions(job, points, front) == []
    assert all(own[1](plan.layout) for plan in front.plans)


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_after(2, range(8)))
def test_a_search_key_and_a_rule_about_orders_say_the_same(seed):
    """``search.order`` and ``order in {...}`` give fronts of the same steps and memories."""
    job, _ = instance(seed)
    wish = tuple(random.Random(seed).sample(job.stack.orders, min(2, len(job.stack.orders))))  # noqa: S311
    narrowed = replace(job, search=job.search.model_copy(update={"order": wish}))
    ruled = replace(job, rules=(RuleSpec(rule=f"order in {{{', '.join(wish)}}}"),))
    fronts = [search(x, thinning=0.0).plans for x in (narrowed, ruled)]

    assert [p.predicted for p in fronts[0]] == [p.predicted for p in fronts[1]]
    assert {p.layout.order for p in fronts[0]} <= set(wish)


@pytest.mark.parametrize("seed", slow_after(2, range(16)))
def test_the_counts_of_orders_are_those_of_the_enumerator(seed):
    """Every layout in every order falls to one reason: the whole space, and both ways to list it agree."""
    rng = random.Random(seed)  # noqa: S311
    job = clustered(rng, random_experts(rng, random_job(rng)) if seed % 4 == 0 else random_job(rng))
    shards = rng.choice(["any", "any", "all", (2, 4)])
    wish = rng.choice(["any", "any", ORDERS[2], (ORDERS[0], ORDERS[4])])
    rules = (RuleSpec(rule=RULES[seed % len(RULES)][0]),) if seed % 3 == 0 else ()
    job = replace(job, search=job.search.model_copy(update={"dp_shard": shards, "order": wish}), rules=rules)
    space, again = space_of(job), counted(job)
    fallen, equivalent = Counter(), 0
    for rejection in space.rejected:
        if rejection.kind == "equivalent":
            equivalent += rejection.layouts
        else:
            fallen[rejection.reason.removeprefix("rule broken: ")] += rejection.layouts

    assert (space.total, space.covered, space.size) == (again.total, again.covered, again.candidates)
    assert (dict(fallen), equivalent) == ({k: n for k, n in again.by_rule.items() if n}, again.equivalent)
    assert space.total == space.covered + sum(fallen.values()) + equivalent


@pytest.mark.parametrize("name", ["analytic", "megatron-core"])
def test_one_node_has_one_order(name):
    """Inside a node no order differs from another: there are no more choices than with one order."""
    job = replace(random_job(random.Random(5)), stack=stack(name))  # noqa: S311
    alone = replace(job, stack=job.stack.model_copy(update={"placement": None}))
    asked = replace(job, search=job.search.model_copy(update={"order": job.stack.orders[-1]}))

    assert job.cluster.nodes == 1
    assert space_of(job).size == space_of(alone).size == space_of(asked).size
    assert space_of(job).total == space_of(alone).total
    assert {ORDERS[i] for g in space_of(asked).groups for i in g.order.tolist()} == {job.stack.orders[-1]}


def ranks_of(layout, axes):
    """Return the coordinates of every rank, by the order of ``layout``: the first axis changes fastest."""
    names = layout.order.split("-")
    counts = [range(axes[name]) for name in reversed(names)]
    return [dict(zip(reversed(names), place, strict=True)) for place in itertools.product(*counts)]


def members(places, free):
    """Return the ranks that share all coordinates with rank 0 but those of ``free``."""
    return [i for i, place in enumerate(places) if all(place[a] == 0 for a in place if a not in free)]


def evenly(found):
    """Return how many ranks there are and how far apart; they are evenly spaced."""
    gaps = set(np.diff(found).tolist())
    assert len(gaps) <= 1
    return len(found), gaps.pop() if gaps else None


def told(group):
    """Return how many ranks a group has and how far apart."""
    ranks, stride = float(group.ranks.reshape(-1)[0]), float(group.stride.reshape(-1)[0])
    return ranks, stride if ranks > 1 else None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("tp", "cp", "dp", "pp"), [(2, 3, 4, 5), (4, 1, 2, 3), (1, 2, 6, 2), (3, 2, 2, 1)])
def test_groups_are_where_ranks_are_numbered(order, tp, cp, dp, pp):
    """Each group has the ranks that a count through all of them finds, evenly spaced."""
    cp = 1 if order == "tp-cp-pp-dp" and pp > 1 else cp
    layout = Layout(tp, pp, dp, 1, (1,) * pp, cp=cp, ep=2, order=order)
    layout = replace(layout, zero=1, dp_shard=2 if dp * cp % 2 == 0 else 0)
    c = Candidates.of([layout])
    places = ranks_of(layout, {"tp": tp, "cp": cp, "dp": dp, "pp": pp})
    for group, free in ((tensor_group, "tp"), (context_group, "cp"), (pipeline_group, "pp")):
        assert told(group(c)) == evenly(members(places, {free}))
    data = members(places, {"cp", "dp"})
    share = layout.dp_shard or len(data)
    assert told(data_group(c)) == evenly(data)
    assert told(shard_group(c)) == evenly(data[:share])
    assert told(replica_group(c)) == evenly(data[::share])
    if tp * cp * dp % (2 * tp) == 0:
        experts = ranks_of(layout, {"tp": tp, "cp": 2, "dp": c.edp[0], "pp": pp})
        for group, free in zip((*dispatch_groups(c), expert_group(c)), ("cp", "tp", "dp"), strict=True):
            assert told(group) == evenly(members(experts, {free}))


@pytest.mark.parametrize("seed", slow_after(2, range(12)))
def test_orders_that_cut_groups_alike_cost_the_same(seed):
    """What removal rests on: where nodes cut all groups alike, every coefficient is the same number."""
    rng = random.Random(seed)  # noqa: S311
    job = random_experts(rng, random_job(rng)) if seed % 2 else random_job(rng)
    job = any_order(clustered(rng, replace(job, stack=stack("analytic"))))
    for group in filter(None, keeping_rules(job, listed(job))):
        c = Candidates.of(group)
        prices, cut = price_stages(job, c, machine_of(job)), ranks_per_node(c, job.cluster.node.devices)
        values = [getattr(prices, f.name) for f in fields(prices) if f.name != "memory"]
        values += [getattr(prices.memory, f.name) for f in fields(prices.memory)]
        values += [*prices.recompute.values(), *prices.memory.recomputed.values()]
        arrays = [np.broadcast_to(x, (len(c), c.pp)) for x in values if np.ndim(x)]
        first = {}
        for i, layout in enumerate(group):
            key = (replace(layout, order=ORDERS[0]), tuple(cut[:, i]))
            j = first.setdefault(key, i)
            assert all(np.array_equal(x[i], x[j]) for x in arrays)


@pytest.mark.parametrize("seed", slow_after(2, range(12)))
def test_predictions_in_every_order_are_within_their_bounds(seed):
    """R9 in every order; memory is the same in all of them."""
    rng = random.Random(seed)  # noqa: S311
    job = any_order(clustered(rng, replace(random_job(rng), stack=stack("analytic"))))
    found = list(itertools.chain.from_iterable(keeping_rules(job, listed(job))))
    for first in rng.sample(found, min(10, len(found))):
        layouts = [x for x in (replace(first, order=order) for order in ORDERS) if not broken_rules(job, x)]
        predicted = predict_all(job, layouts)

        bounds = [(p.step_seconds_lower_bound, p.step_seconds_upper_bound) for p in predicted]
        assert all(low <= p.step_seconds <= high for p, (low, high) in zip(predicted, bounds, strict=True))
        assert len({p.peak_memory_bytes_per_device for p in predicted}) == 1
