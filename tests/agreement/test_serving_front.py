"""The front of serving plans against brute force over all counts of engines (S2)."""

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.search.serving.engine_allocation import AllocationProblem, AllocationSearch, objective_values
from autoplan.search.serving.engine_options import undominated
from autoplan.search.serving.load_shares import WHOLE
from autoplan.search.serving.serving_search import ServingSearch
from tests.support.quick_cases import slow_after
from tests.support.serving_jobs import serving_job

OBJECTIVES = (
    ("throughput_per_device", "time_per_output_token"),
    ("throughput", "devices"),
    ("throughput_per_device", "time_to_first_token", "time_per_output_token"),
    ("devices", "request_latency"),
    ("throughput",),
)


class Engine:
    """An option with devices, a share, tokens a second and times, as the search looks at it."""

    def __init__(self, devices, share, tokens, tpot, ttft, classes=(), *, alone=False):
        self.alone = alone
        self.devices, self.share, self.layout = devices, share, f"{devices}-{share}-{tokens}"
        self.predicted, self.classes = self, classes
        self.output_tokens_per_second = tokens
        self.time_per_output_token, self.time_to_first_token = tpot, ttft
        self.request_latency = ttft + 100 * tpot
        self.load = self
        self.kind = "closed loop"


def front_by_force(problem):
    """Return the objectives of all choices that no other dominates."""
    values = set()
    for counts in product(*(range(problem.devices // option.devices + 1) for option in problem.options)):
        devices = sum(n * option.devices for n, option in zip(counts, problem.options, strict=True))
        loads = [
            sum(
                n * option.share
                for n, option in zip(counts, problem.options, strict=True)
                if name in (option.classes or problem.classes or ("",))
            )
            for name in problem.classes or ("",)
        ]
        if not 1 <= devices <= problem.devices or (problem.shared and set(loads) != {WHOLE}):
            continue
        rates = [option.predicted.output_tokens_per_second for option in problem.options]
        rate = sum(n * each for n, each in zip(counts, rates, strict=True))
        if rate < problem.least_rate or rate < problem.least_rate_per_device * devices:
            continue
        values.add(objective_values(problem, counts))
    return {v for v in values if not any(_beats(other, v) for other in values)}


def _beats(one, other):
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def front_by_search(problem):
    """Return the objectives of the choices that the search finds, without thinning."""
    search = AllocationSearch(problem, 0.0)
    while search.next() is not None:
        pass
    assert not search.stopped
    values = {known.values for known in search.allocations}
    return {v for v in values if not any(_beats(other, v) for other in values)}


engines = st.builds(
    Engine,
    st.sampled_from((1, 2, 3, 4, 8)),
    st.sampled_from((WHOLE, WHOLE // 2, WHOLE // 3, WHOLE * 2 // 3, WHOLE // 4)),
    st.integers(1, 90).map(float),
    st.sampled_from((0.01, 0.02, 0.03, 0.05)),
    st.sampled_from((0.1, 0.2, 0.9)),
)


@given(
    options=st.lists(engines, min_size=1, max_size=4),
    objectives=st.sampled_from(OBJECTIVES),
    shared=st.booleans(),
    least=st.sampled_from((0.0, 40.0)),
    each=st.sampled_from((0.0, 15.0)),
)
@settings(max_examples=25, deadline=None)
def test_the_front_equals_brute_force(options, objectives, shared, least, each):
    """On up to 8 devices the search finds every choice that no other dominates, and nothing else."""
    problem = AllocationProblem(tuple(options), 8, 8, objectives, shared, least, each)

    assert front_by_search(problem) == front_by_force(problem)


@pytest.mark.parametrize("load", [{"concurrency": 24}, {"request_rate": 3.0}, {}])
def test_the_front_of_a_job_equals_brute_force(load):
    """So it does with priced engines of a job on 4 devices."""
    job = serving_job(
        devices=4,
        stack="vllm@0.24",
        workload={"input_tokens": 512, "output_tokens": 128, **load},
        search={"max_num_seqs": (16, 64), "max_num_batched_tokens": 2048, "pipeline_parallel": 1},
    )
    name = job.cluster.device.name
    search = ServingSearch(job, ServingCosts(kernels_for(name), engine_kernels_for(name)))
    options = [option for option in search.candidates() if option.share in {0, WHOLE, WHOLE // 2}]
    problem = search.problem(options[::2][:7], job.objectives, 4)

    assert front_by_search(problem) == front_by_force(problem)


def random_serving_job(seed):
    """Return a job of a model, a load and objectives drawn at random, on up to four devices."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    load = rng.choice(
        [{}, {"concurrency": rng.choice([4, 24, 90])}, {"request_rate": rng.choice([0.5, 6.0])}]
    )
    lengths = {"input_tokens": rng.choice([128, 1024, 4000]), "output_tokens": rng.choice([32, 256])}
    return serving_job(
        rng.choice(["llama3.2-1b", "llama3.1-8b", "qwen3-8b"]),
        hardware=rng.choice(["dgx-h100", "dgx-a100-80gb", "8x-l40s"]),
        devices=rng.choice([1, 2, 3, 4]),
        stack="vllm@0.24",
        workload={**lengths, **load},
        search={"max_num_seqs": (16, 64), "max_num_batched_tokens": 2048, "pipeline_parallel": 1},
        objectives=rng.choice(OBJECTIVES),
    )


@pytest.mark.parametrize("seed", slow_after(2, range(100)))
def test_the_front_of_a_random_job_equals_brute_force(seed):
    """So it does with engines priced for other models, devices, loads and objectives."""
    job = random_serving_job(seed)
    name = job.cluster.device.name
    search = ServingSearch(job, ServingCosts(kernels_for(name), engine_kernels_for(name)))
    options = [option for option in search.candidates() if option.share in {0, WHOLE, WHOLE // 2}]
    problem = search.problem(options[:: max(1, len(options) // 6)][:6], job.objectives, 4)

    assert front_by_search(problem) == front_by_force(problem)


def test_the_front_with_drafts_equals_brute_force():
    """Numbers of drafts are engines of their own; the search weighs them as it does others."""
    job = serving_job(
        devices=4,
        stack="vllm@0.24",
        workload={"input_tokens": 512, "output_tokens": 128, "concurrency": 24},
        speculation={"method": "eagle3", "tokens": (0, 3), "acceptance": 0.7},
        search={"max_num_seqs": 64, "max_num_batched_tokens": 2048, "pipeline_parallel": 1},
    )
    name = job.cluster.device.name
    search = ServingSearch(job, ServingCosts(kernels_for(name), engine_kernels_for(name)))
    options = [option for option in search.options.all if option.share in {WHOLE, WHOLE // 2}]
    chosen = [o for spec in (0, 3) for o in [x for x in options if x.layout.spec == spec][:4]]
    problem = search.problem(chosen, job.objectives, 4)

    assert {option.layout.spec for option in chosen} == {0, 3}
    assert front_by_search(problem) == front_by_force(problem)


@given(options=st.lists(engines, min_size=1, max_size=4), shared=st.booleans())
@settings(max_examples=20, deadline=None)
def test_leaving_dominated_options_out_changes_no_front(options, shared):
    """An option that another of its size and share beats in every respect is on no front."""
    objectives = ("throughput_per_device", "time_per_output_token")
    problem = AllocationProblem(tuple(options), 8, 8, objectives, shared)
    fewer = replace(problem, options=tuple(undominated(options)))

    assert front_by_force(problem) == front_by_force(fewer)


def test_engines_that_fill_nodes_unevenly_are_packed():
    """Two nodes of 4 devices hold one engine of 3 each; 8 devices in one place would hold one of 2 more."""
    options = (Engine(3, 0, 30.0, 0.01, 0.1),)
    problem = AllocationProblem(options, 8, 4, ("throughput",), shared=False)
    search = AllocationSearch(problem, 0.0)

    assert search.next().counts == (2,)
    wide = replace(problem, options=(Engine(3, 0, 30.0, 0.01, 0.1), Engine(2, 0, 19.0, 0.01, 0.1)))
    assert AllocationSearch(wide, 0.0).next().counts == (0, 4)
