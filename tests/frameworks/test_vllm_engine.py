"""The event simulation against vLLM's engine, step by step: queues, admission, preemption and percentiles.

AUTOPLAN_VLLM_PYTHON names a Python with vLLM, by default the one that ``make test-frameworks`` makes beside
the environment; skipped where there is none. The engine runs a tiny model of dummy weights on the CPU; time
is counted in its steps, so that nothing depends on how fast a machine is.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.run_statistics import run_statistics
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from tests.support.affine_iteration import AffineIteration

ENGINE = Path(__file__).with_name("vllm_engine_steps.py")
PYTHON = Path(os.environ.get("AUTOPLAN_VLLM_PYTHON", Path(sys.prefix) / "vllm" / "bin" / "python"))
#: Tokens of a block: vLLM's attention on CPUs takes multiples of 32.
BLOCK = 32
#: Loads that fill an engine's cache, its places or its steps: clients of a closed loop or the longest gap of
#: an open one [steps], max_num_seqs, max_num_batched_tokens, blocks of the cache.
LOADS = {
    "cache full, open loop": {"gap": 3, "seqs": 4, "tokens": 128, "blocks": 18},
    "cache full, many at once": {"gap": 1, "seqs": 16, "tokens": 128, "blocks": 24},
    "places full, open loop": {"gap": 3, "seqs": 4, "tokens": 128, "blocks": 200},
    "steps full, closed loop": {"clients": 10, "seqs": 16, "tokens": 128, "blocks": 400},
    "cache full, closed loop": {"clients": 6, "seqs": 4, "tokens": 128, "blocks": 14},
    "shared prompts": {"gap": 4, "seqs": 8, "tokens": 128, "blocks": 400, "shared": 3 * BLOCK},
}

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON.exists(), reason="vLLM is not installed"),
]


def case_of(name):
    """Return the requests of a load, drawn by its place among ``LOADS``, and the settings of their engine."""
    asked, draw = LOADS[name], random.Random(list(LOADS).index(name))  # noqa: S311 - a test draws
    shared = asked.get("shared", 0)
    # The first request leaves in the cache what later ones begin with.
    requests = [{"arrival": 0, "input": shared + 1, "output": 1, "shared": shared}] if shared else []
    step = 10 if shared else 0
    for _ in range(40):
        tokens = draw.randint(5, 300)
        requests.append(
            {"arrival": step, "input": shared + tokens, "output": draw.randint(1, 40), "shared": shared}
        )
        step += draw.randint(0, asked.get("gap", 0))
    settings = {
        "max_num_seqs": asked["seqs"],
        "max_num_batched_tokens": asked["tokens"],
        "block_size": BLOCK,
        "num_gpu_blocks_override": asked["blocks"] + 1,
        "enable_prefix_caching": bool(shared),
        "async_scheduling": False,
        "max_model_len": 512 if shared else 384,
    }
    return {"settings": settings, "requests": requests, "clients": asked.get("clients", 0)}


@pytest.fixture(scope="module")
def runs():
    """Return what vLLM did with each load, by name."""
    done = subprocess.run(
        [str(PYTHON), str(ENGINE)],
        input=json.dumps([case_of(name) for name in LOADS]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(LOADS, json.loads(done.stdout), strict=True))


def simulated(name, blocks):
    """Return the simulation of a load, and its requests without the one that fills the prefix cache."""
    asked, case = LOADS[name], case_of(name)
    shared = asked.get("shared", 0)
    requests = case["requests"][1:] if shared else case["requests"]
    load = RequestLoad(
        tuple(request["input"] for request in requests),
        tuple(request["output"] for request in requests),
        () if case["clients"] else tuple(float(request["arrival"]) for request in requests),
        clients=case["clients"],
        client_seconds=0.0,
    )
    rules = SchedulerRules(asked["seqs"], asked["tokens"], BlockPool(blocks, BLOCK, shared_tokens=shared))
    return simulate(load, rules, AffineIteration(1.0)), requests


@pytest.mark.parametrize("name", LOADS)
def test_every_request_has_its_tokens_in_the_steps_of_vllm(runs, name):
    """Each is scheduled, has its first token and ends in the same step; as many are preempted."""
    real = runs[name]
    run, requests = simulated(name, real["blocks"])
    seen = real["requests"][-len(requests) :]

    assert real["blocks"] == LOADS[name]["blocks"]
    for field in ("scheduled", "first", "last"):
        assert getattr(run, field) == [times[field] for times in seen], field
    assert run.counts.preempted == real["preempted"]


def test_loads_fill_what_they_say(runs):
    """Where the cache is full requests are preempted, and elsewhere none is; prompts fill steps."""
    for name, real in runs.items():
        assert (real["preempted"] > 0) == name.startswith("cache full"), name
        assert max(real["tokens"]) <= LOADS[name]["tokens"]
    assert sum(tokens == 128 for tokens in runs["steps full, closed loop"]["tokens"]) > 20
    assert {times["cached"] for times in runs["shared prompts"]["requests"][1:]} == {3 * BLOCK}


@pytest.mark.parametrize("name", [name for name in LOADS if "open" in name or "once" in name])
def test_percentiles_are_those_of_vllm(runs, name):
    """Means and percentiles of first token, time per token and latency, counted from vLLM's own steps."""
    run, requests = simulated(name, runs[name]["blocks"])
    seen, statistics = runs[name]["requests"], run_statistics(run)
    first, last, queued, outputs = (
        np.array(column, float)
        for column in zip(
            *(
                (t["first"], t["last"], r["arrival"], r["output"])
                for t, r in zip(seen, requests, strict=True)
            ),
            strict=True,
        )
    )
    several = outputs > 1
    times = {
        "time_to_first_token": first - queued,
        "time_per_output_token": ((last - first) / np.maximum(outputs - 1, 1))[several],
        "request_latency": last - queued,
    }
    for field, measured in times.items():
        told = getattr(statistics, field)
        assert told.mean == pytest.approx(measured.mean())
        for percentile in (50, 90, 99):
            assert getattr(told, f"p{percentile}") == pytest.approx(np.percentile(measured, percentile))
