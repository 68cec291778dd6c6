"""90 % intervals of serving plans: what they hold, what makes them wider, and whose widths they are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.catalog import load_serving_job, serving_intervals
from autoplan.costs.serving.served_intervals import (
    Distance,
    interval_of,
    served_intervals,
    spread_of,
    widening,
)
from autoplan.planning.serving_plans import evaluate_serving
from autoplan.schema.costmodel.interval_spec import IntervalSpec
from autoplan.schema.serving.engine_stack import SourcedRatio
from benchmarks.serving.outcomes import ServedOutcome, row_of
from tests.support.serving_jobs import serving_job

SPEC = serving_intervals()
FIGURES = (0.4, 0.02, 5.4, 900.0)


def intervals(load="closed loop", *, measured=True, engine=None, experts=None):
    """Return the intervals of ``FIGURES``."""
    engine = engine or load_serving_job("llama3-70b-8x-h100").engine
    return served_intervals(SPEC, load, FIGURES, Distance(measured, engine, experts=experts))


@pytest.mark.parametrize("load", ["closed loop", "open loop", "maximum"])
def test_every_interval_holds_its_figure(load):
    """Low below, high above, under each load."""
    found = intervals(load)
    for name, value in zip(
        ("time_to_first_token", "time_per_output_token", "request_latency", "output_tokens_per_second"),
        FIGURES,
        strict=True,
    ):
        interval = getattr(found, name)
        assert interval.low <= value <= interval.high
        assert interval.low > 0


def test_a_latency_lies_between_the_sums_of_its_parts():
    """TTFT + (O - 1) TPOT at both ends; tokens a second of a closed loop are its reciprocal."""
    found = intervals()
    low = found.time_to_first_token.low + 250 * found.time_per_output_token.low

    assert found.request_latency.low == pytest.approx(low)
    assert found.output_tokens_per_second.high == pytest.approx(900 * 5.4 / low)


def test_unmeasured_devices_and_assumed_versions_are_wider_and_say_so():
    """Each by its factor, with a sentence."""
    engine = load_serving_job("llama3-70b-8x-h100").engine
    assumed = replace(engine, version_assumed=True)
    plain, device, version = intervals(), intervals(measured=False), intervals(engine=assumed)

    for wider in (device, version):
        assert wider.time_per_output_token.high > plain.time_per_output_token.high
        assert len(wider.reasons) == len(plain.reasons) + 1
    assert widening(SPEC, Distance(measured=False, engine=assumed))[0] == pytest.approx(
        SPEC.unmeasured_device.value * SPEC.assumed_version.value
    )


def test_a_calibrated_engine_is_narrower():
    """By what its file says."""
    engine = load_serving_job("llama3-70b-8x-h100").engine
    step = engine.facts.step.model_copy(
        update={"interval": SourcedRatio(value=0.8, kind="derived", source="step")}
    )
    own = replace(engine, facts=engine.facts.model_copy(update={"step": step}))

    assert intervals(engine=own).time_per_output_token.high < intervals().time_per_output_token.high


@given(st.floats(1e-4, 1e4), st.floats(0.1, 4.0))
def test_a_wider_interval_holds_a_narrower_one(value, width):
    """For every figure and width."""
    spread = spread_of(SPEC, "closed loop", "time_per_output_token_seconds")
    narrow, wide = interval_of(value, spread, width), interval_of(value, spread, 1.1 * width)

    assert wide.low <= narrow.low <= value <= narrow.high <= wide.high


def test_the_benchmark_prints_the_intervals_of_plans():
    """The same widths for the same load, device and figure."""
    job = serving_job(
        "llama3.1-8b", stack="vllm@0.24", workload={"input_tokens": 99, "output_tokens": 9, "concurrency": 4}
    )
    _, plan = evaluate_serving(job, "tp=1")
    each = plan.time_per_output_token
    metric = "time_per_output_token_seconds"
    met = {"model": (job.model.layers, job.model.hidden_size), "device": job.cluster.device.name}
    assert job.model.moe is None
    row = row_of(ServedOutcome("x", mode="closed loop", values={metric: each}, **met), SPEC)

    assert row[f"predicted_{metric}_low"] == pytest.approx(plan.intervals.time_per_output_token.low)
    assert row[f"predicted_{metric}_high"] == pytest.approx(plan.intervals.time_per_output_token.high)


def test_models_with_experts_are_less_sure_in_a_closed_loop():
    """Their times per token reach farther above, and the answer says whose runs stand behind it."""
    dense, experts = (intervals(experts=x) for x in (False, True))

    assert experts.time_per_output_token.high > dense.time_per_output_token.high
    assert "of models with experts" in experts.reasons[0]
    assert "of models without experts" in dense.reasons[0]


def test_an_entry_with_a_figure_twice_is_refused():
    """And one whose source is not named."""
    fields = SPEC.model_dump(by_alias=True)
    twice = {**fields, "spreads": (*fields["spreads"], fields["spreads"][0])}
    for wrong, said in ((twice, "twice"), ({**fields, "source": "elsewhere"}, "lacks 'elsewhere'")):
        with pytest.raises(ValueError, match=said):
            IntervalSpec.model_validate(wrong)
