"""The front of serving plans against brute force over all counts of engines (S2)."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.search.serving.engine_allocation import AllocationProblem, AllocationSearch
from autoplan.search.serving.engine_options import WHOLE, UndominatedOptions
from autoplan.search.serving.serving_search import ServingSearch
from tests.support.engine_choices import OBJECTIVES, Engine, engines, front_by_force, front_by_search
from tests.support.quick_cases import slow_after
from tests.support.serving_jobs import serving_job


@given(
    options=st.lists(engines, min_size=1, max_size=4),
    objectives=st.sampled_from(OBJECTIVES),
    shared=st.booleans(),
    least=st.sampled_from((0.0, 40.0)),
    each=st.sampled_from((0.0, 15.0)),
    mixed=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_the_front_equals_brute_force(options, objectives, shared, least, each, mixed):
    """On up to 8 devices the search finds every choice that no other dominates, and nothing else."""
    problem = AllocationProblem(tuple(options), 8, 8, objectives, shared, least, each, mixed_formats=mixed)

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


def test_engines_of_unlike_formats_serve_together_only_where_they_may():
    """Of 3 devices two take one format and one the other; of one format alone a device stays idle."""
    options = (
        Engine(2, 0, 30.0, 0.01, 0.1, formats=("bf16", "auto")),
        Engine(1, 0, 10.0, 0.01, 0.1, formats=("fp8", "auto")),
    )
    alike = AllocationProblem(options, 3, 8, ("throughput",), shared=False)

    assert AllocationSearch(alike, 0.0).next().counts in {(1, 0), (0, 3)}
    assert AllocationSearch(replace(alike, mixed_formats=True), 0.0).next().counts == (1, 1)


@given(options=st.lists(engines, min_size=1, max_size=4), shared=st.booleans(), mixed=st.booleans())
@settings(max_examples=20, deadline=None)
def test_leaving_dominated_options_out_changes_no_front(options, shared, mixed):
    """An option that another of its size, share and formats beats in every respect is on no front."""
    objectives = ("throughput_per_device", "time_per_output_token")
    problem = AllocationProblem(tuple(options), 8, 8, objectives, shared, mixed_formats=mixed)
    fewer = replace(problem, options=tuple(UndominatedOptions(options).remaining()))

    assert front_by_force(problem) == front_by_force(fewer)


def test_engines_that_fill_nodes_unevenly_are_packed():
    """Two nodes of 4 devices hold one engine of 3 each; 8 devices in one place would hold one of 2 more."""
    options = (Engine(3, 0, 30.0, 0.01, 0.1),)
    problem = AllocationProblem(options, 8, 4, ("throughput",), shared=False)
    search = AllocationSearch(problem, 0.0)

    assert search.next().counts == (2,)
    wide = replace(problem, options=(Engine(3, 0, 30.0, 0.01, 0.1), Engine(2, 0, 19.0, 0.01, 0.1)))
    assert AllocationSearch(wide, 0.0).next().counts == (0, 4)
