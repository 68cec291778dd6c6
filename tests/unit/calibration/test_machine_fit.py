"""The numbers of a machine, fitted to one step and to several."""

from dataclasses import replace

import pytest

from autoplan.calibration import Observation
from autoplan.calibration.least_squares import with_values
from autoplan.calibration.outcome import MACHINE_NUMBERS, calibrate_machine
from autoplan.catalog import load_job
from autoplan.costs.predict import predict
from autoplan.planning.plan_and_evaluate import valid_layout

HOST, CLOCK, NETWORK, FABRIC = MACHINE_NUMBERS


@pytest.fixture(scope="module")
def job():
    """Return a job on two nodes."""
    return load_job("llama3-70b-64x-h100")


def observed(job, layout, factor=1.0, truth=None):
    """Return a run of ``job`` as fast as it is with the numbers ``truth``, times ``factor``."""
    layout = valid_layout(job, layout)
    real = with_values(job, truth or {})
    return Observation(job, layout, factor * predict(real, layout).step_seconds)


def calibrated(observations):
    """Return the calibration and its values by name."""
    found = calibrate_machine(observations, [("job", str(x.layout), "log") for x in observations])
    return found, {change.coefficient: change.after for change in found.changes}


def test_a_slower_step_lowers_the_clock_and_predicts_the_others_better(job):
    """A machine at a clock 10 % below the shipped one is found from one layout."""
    truth = {CLOCK: 0.9 * job.kernels.gemm.sustained_share.value}
    found, values = calibrated([observed(job, "tp=8,pp=4", truth=truth)])
    other = observed(job, "tp=4,pp=8", truth=truth)
    here = replace(job, stack=found.stack, kernels=found.kernels)
    after = predict(here, other.layout).step_seconds
    before = predict(job, other.layout).step_seconds

    assert 0.88 < values["gemm.sustained_share"] / job.kernels.gemm.sustained_share.value < 0.98
    assert abs(after / other.seconds - 1) < 0.5 * abs(before / other.seconds - 1)


def test_one_step_narrows_the_interval_and_more_narrow_it_further(job):
    """The width says which runs, and is derived; a machine that was measured is no slower than it was."""
    one, _ = calibrated([observed(job, "tp=8,pp=4")])
    two, _ = calibrated([observed(job, "tp=8,pp=4"), observed(job, "tp=4,pp=8")])
    width = one.stack.uncertainty.time

    assert 0.7 < two.interval < one.interval < 1.0
    assert (width.kind, width.value < job.stack.uncertainty.time.value) == ("derived", True)
    assert "by 1 run: job tp=8" in width.note
    slower = [x.stack.uncertainty.slower.value for x in (two, one)]
    assert 1.0 <= slower[0] < slower[1] < job.stack.uncertainty.slower.value


def test_runs_that_contradict_each_other_are_said_to(job):
    """The same layout at half and at twice the time: both stay unexplained, and the interval is wider."""
    runs = [observed(job, "tp=8,pp=4", factor) for factor in (0.5, 2.0)]
    found, _ = calibrated(runs)

    assert all(run.unexplained for run in found.runs)
    assert found.interval > 1.0


def test_numbers_that_a_run_says_nothing_of_stay(job):
    """A clock as shipped moves nothing; shares stay shares."""
    same, values = calibrated([observed(job, "tp=8,pp=4")])
    fast, fastest = calibrated([observed(job, "tp=8,pp=4", 0.4)])

    assert not any(change.moved for change in same.changes)
    assert values["host_launch"] == job.stack.host_launch.value
    assert fastest["gemm.sustained_share"] <= 1.0
    assert fast.runs[0].unexplained
