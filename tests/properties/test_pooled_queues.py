"""The closed form of pools agrees with their simulation (V3), and what holds for both (V2, V4)."""

import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.core.served_prediction import EngineLoad
from autoplan.costs.serving.disaggregated.paired_pools import engine_pair, pooled
from autoplan.costs.serving.disaggregated.pool_simulation import simulated_pools
from autoplan.costs.serving.served_layouts import ServingCosts, engine_load
from autoplan.schema.serving.engine_layout import parse_serving_layout
from tests.support.serving_jobs import serving_job

LAYOUTS = (
    "prefill=(tp=1,x=1)/decode=(tp=1,x=1)",
    "prefill=(tp=1,x=3)/decode=(tp=2,x=2)",
    "prefill=(tp=2,x=1)/decode=(tp=1,x=2)",
)
STACKS = ("vllm@0.24", "sglang@0.5.23", "tensorrt-llm")
LENGTHS = ((200, 900), (1500, 2500), (4000, 6000))


@cache
def priced(stack, layout, lengths):
    """Return a job and its pools."""
    workload = {"input_tokens": {"uniform": lengths}, "output_tokens": {"uniform": (120, 400)}}
    job = serving_job("llama3.1-8b", devices=8, stack=stack, workload={**workload, "concurrency": 1})
    name = job.cluster.device.name
    costs = ServingCosts(kernels_for(name), engine_kernels_for(name))
    return job, engine_pair(job, parse_serving_layout(layout), costs)


def asked(job, pair, share, kind):
    """Return the job under a share of the most that its pools answer."""
    top = pooled(job, pair, EngineLoad("maximum"))
    rate = share * top.most_requests_per_second
    load = {"concurrency": None, "request_rate": rate}
    if kind == "closed loop":
        alone = pooled(job, pair, EngineLoad("closed loop", 1.0)).request_latency
        load = {"concurrency": max(1, round(rate * alone)), "request_rate": None}
    if kind == "maximum":
        load = {"concurrency": None, "request_rate": None}
    return replace(job, workload=job.workload.model_copy(update=load))


@given(
    stack=st.sampled_from(STACKS),
    layout=st.sampled_from(LAYOUTS),
    lengths=st.sampled_from(LENGTHS),
    share=st.sampled_from((0.15, 0.4, 0.7)),
    kind=st.sampled_from(("closed loop", "open loop", "maximum")),
)
@settings(max_examples=6, deadline=None)
def test_pools_in_closed_form(stack, layout, lengths, share, kind):
    """Throughput and time per output token lie within 5 % of the simulation, where that is steady."""
    job, pair = priced(stack, layout, lengths)
    assume(pair.shortage is None)
    top = pooled(job, pair, EngineLoad("maximum"))
    # Pools that are nearly as fast as each other fill for longer than a run takes.
    least, other = sorted((top.most_prefilled, top.most_decoded))
    assume(kind != "maximum" or least < 0.8 * other)
    job = asked(job, pair, share, kind)
    predicted = pooled(job, pair, engine_load(job, 1))
    run = simulated_pools(job, pair, predicted)

    assert run.gap < 0.05
    if kind == "open loop":
        assert math.isclose(predicted.request_latency, run.statistics.request_latency.mean, rel_tol=0.06)


@given(
    stack=st.sampled_from(STACKS),
    layout=st.sampled_from(LAYOUTS),
    lengths=st.sampled_from(LENGTHS),
    clients=st.integers(1, 400),
)
@settings(max_examples=20, deadline=None)
def test_more_clients_are_never_answered_sooner(stack, layout, lengths, clients):
    """Throughput and both times grow with clients; throughput ends at what the slower pool does (V2)."""
    job, pair = priced(stack, layout, lengths)
    assume(pair.shortage is None)
    one, more = (pooled(job, pair, EngineLoad("closed loop", float(n))) for n in (clients, 2 * clients))

    near = 1 + 1e-3
    assert one.requests_per_second <= more.requests_per_second * near
    assert more.requests_per_second <= more.most_requests_per_second * near
    assert one.time_per_output_token <= more.time_per_output_token * near
    assert one.request_latency <= more.request_latency * near
    # Little's law, with the client's own time between two requests.
    away = clients / one.requests_per_second - one.request_latency
    assert away == pytest.approx(1e-3, abs=2e-3 * one.request_latency)


@given(layout=st.sampled_from(LAYOUTS), lengths=st.sampled_from(LENGTHS))
@settings(max_examples=9, deadline=None)
def test_rates_are_matched(layout, lengths):
    """The maximum is that of the slower part, and another engine of the faster pool adds nothing."""
    job, pair = priced("vllm@0.24", layout, lengths)
    top = pooled(job, pair, EngineLoad("maximum"))
    parts = (top.most_prefilled, top.most_decoded, top.most_transferred)
    faster = "decode" if top.limit == "prefill" else "prefill"
    more = replace(pair, **{f"{faster}_engines": getattr(pair, f"{faster}_engines") + 1})

    assert top.requests_per_second == pytest.approx(min(parts))
    assert pooled(job, more, EngineLoad("maximum")).requests_per_second == pytest.approx(min(parts))


def test_above_the_maximum_the_wait_of_pools_has_no_end():
    """An open loop that asks for more than the slower pool does is saturated."""
    job, pair = priced("vllm@0.24", LAYOUTS[0], LENGTHS[1])
    most = pooled(job, pair, EngineLoad("maximum")).most_requests_per_second
    over = pooled(job, pair, EngineLoad("open loop", 1.01 * most))

    assert over.saturated
    assert math.isinf(over.time_to_first_token)
    assert not over.fits


#: Two classes: prompts, answers, and tokens that the requests of one share.
CLASSES = (((64, 500), (60, 200), 0), ((2000, 6000), (100, 300), 1024), ((300, 900), (20, 400), 0))


def classes_on_pools(stack, layout, kinds, load):
    """Return the prediction of pools under two classes of requests, with its simulation."""
    kinds = tuple(
        {
            "name": name,
            "weight": 0.5,
            "input_tokens": {"uniform": prompts},
            "output_tokens": {"uniform": answers},
            "prefix": {"shared_tokens": shared},
        }
        for name, (prompts, answers, shared) in zip("ab", kinds, strict=True)
    )
    job = serving_job("llama3.1-8b", devices=8, stack=stack, workload={"classes": kinds, **load})
    name = job.cluster.device.name
    costs = ServingCosts(kernels_for(name), engine_kernels_for(name))
    pair = engine_pair(job, parse_serving_layout(layout), costs)
    predicted = pooled(job, pair, engine_load(job, 1))
    return predicted, simulated_pools(job, pair, predicted)


@given(
    stack=st.sampled_from(STACKS[:2]),
    layout=st.sampled_from(LAYOUTS),
    first=st.sampled_from(CLASSES),
    second=st.sampled_from(CLASSES),
    load=st.sampled_from(({"request_rate": 1.0}, {"request_rate": 4.0}, {"concurrency": 6})),
)
@settings(max_examples=5, deadline=None)
def test_classes_on_pools_in_closed_form(stack, layout, first, second, load):
    """Each class lies within 5 % of the simulation, its first token within 15 %; the mean is that of all."""
    predicted, run = classes_on_pools(stack, layout, (first, second), load)
    assume(not predicted.saturated)
    closed, simulated = predicted.classes, run.statistics.classes

    assert [known.name for known in closed] == [known.name for known in simulated] == ["a", "b"]
    for one, other in zip(closed, simulated, strict=True):
        assert math.isclose(one.time_per_output_token, other.time_per_output_token.mean, rel_tol=0.05)
        assert math.isclose(one.time_to_first_token, other.time_to_first_token.mean, rel_tol=0.15)
    mean = sum(known.share * known.time_to_first_token for known in closed)
    assert math.isclose(mean, predicted.time_to_first_token, rel_tol=0.01)


def test_a_class_that_shares_its_prompt_waits_less_on_pools():
    """Of two classes alike in lengths, the one whose prompts begin alike has its first token earlier."""
    alike, shared = CLASSES[1], (*CLASSES[1][:2], 0)
    predicted, run = classes_on_pools("vllm@0.24", LAYOUTS[0], (alike, shared), {"request_rate": 1.0})

    assert predicted.classes[0].time_to_first_token < predicted.classes[1].time_to_first_token
    times = [known.time_to_first_token.mean for known in run.statistics.classes]
    assert times[0] < times[1]
