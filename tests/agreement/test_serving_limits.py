"""What a plan holds, its simulation holds: limits of serving jobs, and requests of one length."""

import json
from random import Random

import pytest

from autoplan import plan
from autoplan.planning.serving_plans import serving_costs
from autoplan.results.serving.plan_values import serving_plan_values
from autoplan.schema.serving.saved_serving import SavedServingPlan
from autoplan.verification.serving.stated_plans import stated_plan
from tests.support.serving_jobs import serving_job

HARDWARE = ("2x-rtx4090", "dgx-h100", "dgx-a100-80gb")


def edge_job(seed):
    """Return a job of one device about as many clients of which fit, with a limit near what it reaches."""
    choose = Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    lengths = {
        "input_tokens": choose.choice((256, 1024, 4000)),
        "output_tokens": choose.choice((64, 256, 500)),
    }
    if choose.random() < 0.5:
        lengths = {name: {"fixed": value} for name, value in lengths.items()}
    limit = choose.choice(("time_to_first_token", "time_per_output_token", "request_latency"))
    seconds = {
        "time_to_first_token": (0.1, 3.0),
        "time_per_output_token": (0.01, 0.06),
        "request_latency": (3, 30),
    }
    return serving_job(
        "llama3.1-8b",
        choose.choice(HARDWARE),
        stack=choose.choice(("vllm@0.24", "sglang@0.5.23", "tensorrt-llm@1.0")),
        workload={**lengths, "concurrency": choose.choice((8, 24, 34, 36, 48, 100))},
        limits={limit: choose.uniform(*seconds[limit])},
        search={"pipeline_parallel": 1},
    )


def means(predicted, run):
    """Yield each time that may be limited, as predicted and as simulated."""
    for name in ("time_to_first_token", "time_per_output_token", "request_latency"):
        yield name, getattr(predicted, name), getattr(run, name).mean


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 100), marks=pytest.mark.slow)])
def test_a_limit_that_is_held_is_held_in_the_simulation(seeds):
    """No plan of a front breaks a limit in the closed form or in its simulation, and both are near."""
    for seed in seeds:
        job = edge_job(seed)
        for found in plan(job).plans:
            predicted = found.groups[0].predicted
            for name, closed, simulated in means(predicted, predicted.simulation.statistics):
                most = getattr(job.limits, name) or float("inf")
                assert closed <= most * 1.000001, (seed, name)
                assert simulated <= most * 1.000001, (seed, name)
                wide = 1.31 if name == "time_to_first_token" else 1.11
                assert 1 / wide - 0.1 < closed / simulated < wide, (seed, name)


def test_a_plan_whose_simulation_breaks_a_limit_is_refuted():
    """Under a limit between the closed form and the simulation a stated plan is told to break it."""
    workload = {"input_tokens": {"fixed": 1024}, "output_tokens": {"fixed": 128}, "concurrency": 16}
    search = {"max_num_seqs": 16}
    free = serving_job("llama3.1-8b", "dgx-h100", 2, "vllm@0.24", workload=workload, search=search)
    front = plan(free)
    found = front.plans[0]
    closed, simulated = found.time_to_first_token, found.longest_mean("time_to_first_token")
    assert closed < simulated
    limited = serving_job(
        "llama3.1-8b",
        "dgx-h100",
        2,
        "vllm@0.24",
        workload=workload,
        search=search,
        limits={"time_to_first_token": (closed + simulated) / 2},
    )
    saved = SavedServingPlan.model_validate_json(json.dumps(serving_plan_values(limited, found)))
    verdict = stated_plan(limited, saved, "plan 1", serving_costs(limited))

    assert any("in a simulation" in sentence for sentence in verdict.limits_broken)
