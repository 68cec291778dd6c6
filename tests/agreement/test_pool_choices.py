"""Pools in the front of serving plans: against brute force (S2), and against an independent listing."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.deadline import Deadline
from autoplan.planning.serving_plans import evaluate_serving, plan_serving
from autoplan.schema.serving.engine_layout import DisaggregatedLayout
from autoplan.search.serving.engine_allocation import AllocationProblem, objective_values
from autoplan.search.serving.engine_options import WHOLE
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.verification.serving.option_listing import listed_space
from tests.support.engine_choices import OBJECTIVES, Engine, engines, front_by_search
from tests.support.serving_jobs import serving_job
from tests.support.serving_relaxations import no_worse


def beats(one, other):
    """Whether one choice is no worse in all objectives and better in one."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def force(problem):
    """Return the objectives of all choices that no other dominates: pools alone, or engines without pools."""
    values = set()
    for counts in product(*(range(problem.devices // option.devices + 1) for option in problem.options)):
        chosen = [(n, option) for n, option in zip(counts, problem.options, strict=True) if n]
        if any(option.alone for _, option in chosen) and sum(n for n, _ in chosen) > 1:
            continue
        devices = sum(n * option.devices for n, option in chosen)
        shares = sum(n * option.share for n, option in chosen)
        if not 1 <= devices <= problem.devices or (problem.shared and shares != WHOLE):
            continue
        number = sum(n for n, option in chosen if not option.alone)
        if problem.engines is not None and number and number not in problem.engines:
            continue
        values.add(objective_values(problem, counts))
    return {v for v in values if not any(beats(other, v) for other in values)}


pairs = st.builds(
    lambda devices, tokens, tpot, ttft: Engine(devices, WHOLE, tokens, tpot, ttft, alone=True),
    st.integers(2, 8),
    st.integers(1, 300).map(float),
    st.sampled_from((0.01, 0.02, 0.03)),
    st.sampled_from((0.1, 0.2, 0.9)),
)


@given(
    options=st.lists(engines, max_size=3),
    pools=st.lists(pairs, min_size=1, max_size=4),
    objectives=st.sampled_from(OBJECTIVES),
    shared=st.booleans(),
    allowed=st.sampled_from((None, (1, 3))),
)
@settings(max_examples=25, deadline=None)
def test_the_front_with_pools_equals_brute_force(options, pools, objectives, shared, allowed):
    """On up to 8 devices the search finds every pair and every choice of engines that nothing dominates."""
    problem = AllocationProblem((*options, *pools), 8, 8, objectives, shared, engines=allowed)

    assert front_by_search(problem) == force(problem)


def job_of(load, devices=4, **more):
    """Return a small job that lets the planner choose pools."""
    search = {"max_num_seqs": (16, 64, 256), "max_num_batched_tokens": 8192, "disaggregated": (False, True)}
    return serving_job(
        "llama3.1-8b",
        devices=devices,
        stack="vllm@0.24",
        workload={"input_tokens": 3000, "output_tokens": 150, **load},
        search={**search, **more.pop("search", {})},
        **more,
    )


def search_of(job):
    """Return the search of a job."""
    name = job.cluster.device.name
    return ServingSearch(job, ServingCosts(kernels_for(name), engine_kernels_for(name)))


@pytest.mark.slow
@pytest.mark.parametrize("load", [{"concurrency": 24}, {"request_rate": 6.0}, {}])
def test_pairs_are_those_that_evaluate_prices(load):
    """Every listed pair of pools has the figures that `evaluate` gives its layout string."""
    search = search_of(job_of(load, search={"pipeline_parallel": 1}))
    options = search.pools.all
    assert options

    for option in options[:: max(1, len(options) // 4)]:
        text = str(option.layout)
        _, plan = evaluate_serving(search.job, text)
        assert plan.layout_string == text
        assert isinstance(plan.pools, DisaggregatedLayout)
        # Where the simulation counts, the closed form stands beside it.
        priced = plan.pooled.closed_form or plan
        assert priced.output_tokens_per_second == pytest.approx(option.predicted.output_tokens_per_second)
        assert priced.time_per_output_token == pytest.approx(option.predicted.time_per_output_token)


@pytest.mark.parametrize("load", [{"concurrency": 24}, {"request_rate": 6.0}, {}])
def test_the_listing_of_verify_has_all_pairs_and_none_that_is_better(load):
    """Pairs listed without the search are all sizes; what the search leaves out takes no fewer devices."""
    search = search_of(job_of(load, search={"pipeline_parallel": 1}))
    listed = listed_space(search.job, search.costs, Deadline(60.0)).pools
    own = {str(o.layout): o.predicted for o in search.pools.all}
    every = {str(o.layout): o.predicted for o in listed.pairs}

    assert own == {layout: every[layout] for layout in own}
    assert (search.pools.total, sum(map(len, search.pools.units.values()))) == (listed.sizes, listed.roles)
    for predicted in (every[layout] for layout in every.keys() - own.keys()):
        assert any(
            other.devices <= predicted.devices and no_worse(other, predicted, 0.005) for other in own.values()
        )


def test_the_front_of_a_job_with_pools_equals_brute_force():
    """So it does with priced pairs and engines of a job on 4 devices."""
    search = search_of(job_of({"concurrency": 24}, search={"pipeline_parallel": 1}))
    options = [option for option in search.candidates() if option.share in {WHOLE, WHOLE // 2}]
    joint = [option for option in options if not option.alone]
    pools = [option for option in options if option.alone]
    problem = search.problem([*joint[::2][:5], *pools], search.job.objectives, 4)

    assert pools
    assert front_by_search(problem) == force(problem)


@pytest.mark.slow
def test_pools_are_worth_it_where_prompts_hold_decodes_up():
    """With long prompts and a tight limit on the time per token, pools serve more; without a limit, less."""
    # The mixed steps of prompts of 6,000 tokens take longer than the limit allows on average.
    tight = plan_serving(
        job_of(
            {"request_rate": 10.0},
            devices=8,
            limits={"time_per_output_token": "4 ms", "time_to_first_token": "1 s"},
            search={"pipeline_parallel": 1},
            objectives=("devices",),
        )
    )
    free = plan_serving(job_of({}, search={"pipeline_parallel": 1}, objectives=("throughput_per_device",)))

    assert tight.comparison.worth_it
    assert tight.plans[0].pools is not None
    assert tight.plans[0].time_per_output_token <= 4e-3
    assert not free.comparison.worth_it
    assert free.comparison.gain < 0
    assert free.plans[0].pools is None
