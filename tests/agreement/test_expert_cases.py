"""Models with experts on real machines: what is chosen comes out of the prices."""

from dataclasses import replace

import pytest

from autoplan import evaluate, plan
from autoplan.catalog import load_job
from autoplan.errors import LayoutError
from autoplan.schema.job import RoutingSpec, SearchSpec
from autoplan.search.space.candidate_space import space_of


@pytest.fixture(scope="module")
def mixtral():
    """Mixtral 8x7B on eight H200, and its front."""
    job = load_job("mixtral-8x7b-8x-h200")
    return job, plan(job)


@pytest.fixture(scope="module")
def deepseek():
    """DeepSeek-V3 on 256 H100, and its front."""
    job = load_job("deepseek-v3-256x-h100")
    return job, plan(job)


def test_mixtral_on_eight_h200_is_planned_over_all_spreads(mixtral):
    """Every degree of its experts is considered, whole and split, and the answer is proven."""
    job, front = mixtral
    spreads = {
        (int(ep), bool(e < t))
        for c in space_of(job).groups
        for ep, e, t in zip(c.ep, c.etp, c.tp, strict=True)
    }
    assert {ep for ep, _ in spreads} == {1, 2, 4, 8}
    assert any(whole for _, whole in spreads)
    assert front.certificate.status == "optimal"
    assert front.plans
    assert all(p.predicted.fits for p in front.plans)


def test_mixtral_spreads_its_experts_because_their_weights_do_not_fit(mixtral):
    """On one rank 46.7 billion parameters with 6 bytes and their state are more than a device holds."""
    job, front = mixtral
    best = front.plans[0]
    assert best.layout.ep > 1
    alone = replace(job, search=SearchSpec(expert_parallel=1, tensor_parallel=1, pipeline_parallel=1))
    assert not plan(alone).plans
    assert evaluate(job, "ep=1").predicted.memory.parameters > 0.6 * best.predicted.memory_limit_bytes


def test_mixtrals_choice_of_ep_is_what_the_prices_say(mixtral):
    """With ep fixed to any other degree no layout is faster, and one of the same pipeline is slower."""
    job, front = mixtral
    best = front.plans[0]
    for ep in {1, 2, 4, 8} - {best.layout.ep}:
        other = plan(replace(job, search=SearchSpec(expert_parallel=ep))).plans
        assert all(p.predicted.step_seconds >= best.predicted.step_seconds * (1 - 1e-9) for p in other)


def test_exchange_of_mixtral_is_priced_by_its_bytes(mixtral):
    """Two of eight copies a token: at ep=8 all-to-alls of 4 x 4,096 x 4,096 bytes, four a layer."""
    job, _ = mixtral
    even = replace(job, routing=RoutingSpec(load_variation=0.0))
    exposed = evaluate(even, "ep=8").predicted.time.ep_exposed
    each = exposed / (32 * 4 * 256 / 8)
    nominal = 7 / 8 * 2 * 2 * 4096 * 4096 / job.cluster.node.fabric.bandwidth.value
    assert nominal < each < 2.5 * nominal


def test_deepseek_v3_on_256_h100_is_planned(deepseek):
    """Its front is proven, spreads experts, keeps them whole, and pays for their exchange."""
    _, front = deepseek
    assert front.certificate.status == "optimal"
    best = front.plans[0]
    assert best.layout.ep >= 8
    assert best.layout.pp > 1
    assert best.predicted.time.ep_exposed > 0
    assert best.predicted.fits


def test_deepseek_v3_does_not_fit_without_spreading_its_experts(deepseek):
    """With all 256 experts on every rank no layout of 256 H100 holds the model."""
    job, _ = deepseek
    assert not plan(replace(job, search=SearchSpec(expert_parallel=1, tensor_parallel=1))).plans


def test_exchange_across_nodes_costs_more(deepseek):
    """Eight ranks of a node exchange over the fabric, sixty-four over the network, for the same rows."""
    job, _ = deepseek
    even = replace(job, routing=RoutingSpec(load_variation=0.0))
    near, far = (evaluate(even, f"pp=4,ep={x}").predicted.time.ep_exposed for x in (8, 64))
    assert far > 3 * near


def test_deepseek_cannot_spread_experts_over_more_ranks_than_a_stage_has(deepseek):
    """Ep x etp has to divide the ranks of a stage."""
    job, _ = deepseek
    with pytest.raises(LayoutError, match="ep x etp divides tp x dp x cp"):
        evaluate(job, "pp=16,ep=32")
