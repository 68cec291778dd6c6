"""Limits of serving jobs on means, percentiles, goodput, throughput, cost and devices."""

from math import inf

import pytest

from autoplan.costs.core.served_prediction import Distribution, LatencyStatistics
from autoplan.rules.engine_rules import (
    broken_mean_limits,
    broken_rate_limits,
    broken_simulated_limits,
    good_requests,
    least_rate_per_device,
    simulated_limits,
)
from autoplan.schema.serving.serving_choices import Percentiles, ServingLimits
from tests.support.serving_jobs import serving_job


def run_of(p99=1.0, goodput=1.0):
    """Return statistics of a run with this time to the first token at p99."""
    times = Distribution(0.5, 0.4, 0.8, p99)
    return LatencyStatistics(10, 1.0, times, times, times, times, 1.0, 1.0, goodput, goodput, 0, None)


def test_a_mean_over_its_limit_is_said():
    """With both numbers; a wait without end breaks every limit."""
    limits = ServingLimits(time_to_first_token=0.5, time_per_output_token=Percentiles(mean=0.04, p99=0.1))
    times = {"time_to_first_token": inf, "time_per_output_token": 0.05, "request_latency": 9.0}

    assert list(broken_mean_limits(limits, times)) == [
        "time_to_first_token is without end, over 500.0 ms",
        "time_per_output_token is 50.0 ms, over 40.0 ms",
    ]


def test_only_percentiles_and_goodput_need_a_simulation():
    """A bare limit, or one on the mean, is decided in closed form."""
    limits = ServingLimits(
        time_to_first_token=Percentiles(mean=1.0, p90=2.0), request_latency=3.0, goodput=0.9
    )

    assert simulated_limits(limits) == ("time_to_first_token.p90", "goodput")
    assert simulated_limits(ServingLimits(request_latency=3.0)) == ()


def test_a_percentile_over_its_limit_is_said():
    """And so is too small a share of good requests."""
    limits = ServingLimits(time_to_first_token=Percentiles(p99=0.9), goodput=0.95)

    assert list(broken_simulated_limits(limits, run_of(p99=1.0, goodput=0.9))) == [
        "time_to_first_token.p99 is 1.00 s in a simulation, over 900.0 ms",
        "goodput is 90.0 % in a simulation, under 95.0 %",
    ]
    assert list(broken_simulated_limits(limits, run_of(p99=0.8))) == []


def test_a_good_request_holds_every_limit():
    """A bare limit, and of several percentiles the highest, is what one request may take."""
    good = good_requests(
        ServingLimits(time_to_first_token=Percentiles(p50=1.0, p99=2.0), request_latency=9.0)
    )

    assert good is not None
    assert (good(1.5, 5.0, 8.0), good(2.5, 0.1, 8.0), good(1.5, 0.1, 9.5)) == (True, False, False)
    assert good_requests(ServingLimits(throughput=5.0)) is None


def test_a_cost_is_a_rate_of_each_device():
    """3.6 an hour is 0.001 a second: 0.5 for a million tokens needs 2,000 a second and device."""
    job = serving_job(
        devices=4,
        limits={"cost": 0.5, "devices": 4, "throughput": 9000},
        price={"per_device_hour": 3.6, "date": "2026-11-01"},
    )

    assert least_rate_per_device(job) == pytest.approx(2000)
    said = list(broken_rate_limits(job, 8000.0, 8))
    assert [sentence.split()[0] for sentence in said] == ["throughput", "cost:", "the"]
    assert list(broken_rate_limits(job, 9000.0, 4)) == []
