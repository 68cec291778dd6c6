"""Pools in closed form: front ends that have one request at a time, and where a first token comes from."""

from dataclasses import replace
from math import exp

import pytest

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.core.served_prediction import EngineLoad
from autoplan.costs.serving.disaggregated.paired_pools import engine_pair, pooled
from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.schema.serving.engine_layout import parse_serving_layout
from tests.support.serving_jobs import serving_job


def priced(layout, busy=None):
    """Return a job of 1,000 tokens in and 100 out, one with a front end of other times, and their pools."""
    workload = {"input_tokens": {"fixed": 1000}, "output_tokens": {"fixed": 100}, "request_rate": 1.0}
    job = serving_job("llama3.1-8b", devices=8, stack="vllm@0.24", workload=workload)
    name = job.cluster.device.name
    costs = ServingCosts(kernels_for(name), engine_kernels_for(name))
    facts = job.engine.facts
    each = busy and facts.step.front_end_busy.model_copy(update={"value": busy})
    step = facts.step.model_copy(update={"front_end_busy": each, "front_end_busy_per_token": None})
    other = replace(job, engine=replace(job.engine, facts=facts.model_copy(update={"step": step})))
    return job, other, engine_pair(job, parse_serving_layout(layout), costs)


@pytest.mark.parametrize(("engines", "rate"), [(1, 20.0), (2, 40.0)])
def test_a_request_waits_for_the_tokenizer_of_its_engine(engines, rate):
    """2 ms + 1,000 x 3.7 us = 5.7 ms, 11.4 % of the time: a wait of 0.114 / 0.886 x 5.7 / 2 = 0.37 ms."""
    job, wide, pair = priced(f"prefill=(tp=1,x={engines})/decode=(tp=1,x={engines})")

    first, without = (pooled(x, pair, EngineLoad("open loop", rate)).time_to_first_token for x in (job, wide))

    assert first - without == pytest.approx(5.7e-3 + 0.367e-3, rel=1e-3)


def test_a_front_end_decides_where_it_serves_fewer_requests_than_devices_do():
    """50 ms a request are 20 of them a second with any number of clients; a batch passes no front end."""
    job, slow, pair = priced("prefill=(tp=2,x=1)/decode=(tp=2,x=1)", busy=0.05)
    batch, loop = EngineLoad("maximum"), EngineLoad("closed loop", 512.0)

    assert pooled(slow, pair, batch).requests_per_second == pooled(job, pair, batch).requests_per_second > 21
    assert pooled(slow, pair, loop).requests_per_second == pytest.approx(20.0, rel=0.002)
    assert pooled(slow, pair, EngineLoad("open loop", 21.0)).saturated
    assert pooled(slow, pair, EngineLoad("open loop", 21.0)).limit == "front end"
    assert not pooled(job, pair, EngineLoad("open loop", 21.0)).saturated


def test_a_first_token_that_came_with_the_prompt_does_not_wait_for_the_running_iteration():
    """SGLang puts it out as it composes; the second waits for the iteration that runs, and for its own."""
    workload = {"input_tokens": {"fixed": 1000}, "output_tokens": {"fixed": 100}, "request_rate": 4.0}
    job = serving_job("llama3.1-8b", devices=8, stack="sglang@0.5.23", workload=workload)
    name = job.cluster.device.name
    costs = ServingCosts(kernels_for(name), engine_kernels_for(name))
    pair = engine_pair(job, parse_serving_layout("prefill=(tp=1,x=1)/decode=(tp=1,x=1)"), costs)
    pools = pooled(job, pair, EngineLoad("open loop", 4.0))
    step, answered = pools.decode.point.step_seconds, 99 * pools.time_per_output_token

    busy = 1 - exp(-4.0 * 99 * step)
    assert pools.decode.point.time_to_first_token == pytest.approx(busy * step / 2)
    assert answered == pytest.approx((99 + busy) * step)
