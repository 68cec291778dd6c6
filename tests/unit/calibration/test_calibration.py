"""Calibration: planted coefficients are found, wild runs do no harm, files say what was fitted."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from autoplan import load_job
from autoplan.answers.calibrate.ask import calibrated_files
from autoplan.calibration import COEFFICIENTS, Observation, Refits, fit, leave_out
from autoplan.calibration.kernelfile import attention_curve, gemm_curve, measured_kernels, memory_bound_curve
from autoplan.calibration.least_squares import Scatter, _scatter, number_of, with_values
from autoplan.calibration.outcome import calibrate
from autoplan.calibration.record import Environment, Record, collective_points, device_points, point_of
from autoplan.catalog import CLASSES, entry_names, find_hardware, kernels_for, load_entry
from autoplan.costs.device.kernels import attention_seconds, gemm_seconds_at_rate
from autoplan.costs.device.machine import Rate
from autoplan.costs.predict import Steps, predict_all
from autoplan.errors import SpecError, UnsupportedError
from autoplan.planning.plan_and_evaluate import valid_layout
from autoplan.schema.job import Workload
from autoplan.schema.yaml.loader import load_model
from autoplan.schema.yaml.writer import file_text
from benchmarks.policies import with_block
from tests.support.quick_cases import slow_after

BY_NAME = {coefficient.name: coefficient for coefficient in COEFFICIENTS}
LAYOUTS = ("tp=2", "tp=4", "tp=8", "tp=2,pp=2", "tp=1,pp=4,recompute=full", "tp=4,mbs=4", "tp=1,zero=1")
JOB = load_job("llama3-8b-8x-a100")


def jobs():
    """Return jobs that stress different things: a narrow and a wide model, one node and four."""
    four = replace(JOB, cluster=replace(JOB.cluster, devices=32))
    narrow = replace(JOB, model=load_entry("model", "llama3.2-1b"))
    shapes = [(JOB, 8192, 128), (narrow, 1024, 512), (four, 4096, 256)]
    return [replace(job, workload=Workload(sequence_length=s, global_batch_size=b)) for job, s, b in shapes]


def observed(truth, *, count=20, noise=0.03, seed=0):
    """Return ``count`` steps as if the coefficients were those of ``truth``, with some noise."""
    rng = random.Random(seed)  # noqa: S311 - noise
    pairs = [(job, valid_layout(job, text)) for text in LAYOUTS for job in jobs()][:count]
    steps = [predict_all(with_values(job, truth), [layout])[0].step_seconds for job, layout in pairs]
    return [
        Observation(job, layout, seconds * math.exp(rng.gauss(0, noise)))
        for (job, layout), seconds in zip(pairs, steps, strict=True)
    ]


def mean_error(seconds, observations):
    """Return the mean size of the errors of ``seconds``."""
    return np.mean([abs(p / x.seconds - 1) for p, x in zip(seconds, observations, strict=True)])


def values_of(found):
    """Return the fitted values of the job's coefficients by name."""
    job = found.job(JOB)
    return {coefficient.name: number_of(job, coefficient).value for coefficient in COEFFICIENTS}


PLANTED = {
    BY_NAME["block.norm_traffic"]: 2.0,
    BY_NAME["block.elementwise_traffic"]: 3.4,
    BY_NAME["gemm.sustained_share"]: 0.8,
}


def layer_traffic(values):
    """Elements that a layer moves for a token: norms and additions; rotations and activations, both ways."""
    norms, others = 22 * 4096, 4 * 40 * 128 + 8 * 14336
    return values["block.norm_traffic"] * norms + values["block.elementwise_traffic"] * others


@pytest.mark.slow
def test_planted_coefficients_are_found_from_twenty_noisy_steps():
    """What the steps feel is found to a few per cent, and the noise is recognised as such."""
    found = fit(observed(PLANTED))
    values = values_of(found)

    assert layer_traffic(values) == pytest.approx(22 * 4096 * 2.0 + (4 * 40 * 128 + 8 * 14336) * 3.4, rel=0.1)
    assert values["gemm.sustained_share"] == pytest.approx(0.8, abs=0.05)
    assert found.scatter < 0.08


def test_a_rate_that_nobody_feels_is_not_among_the_coefficients():
    """That of the first FlashAttention is there where a stack runs it, and only there."""
    older, triton = (
        replace(JOB, stack=with_block(JOB.stack, attention=x)) for x in ("flash1", "flash1-triton")
    )
    name = "attention.flash1_share"

    def fitted(job):
        return {e.coefficient.name for e in fit([Observation(job, valid_layout(job, "tp=8"), 1.0)]).estimates}

    assert name in fitted(older)
    assert name in fitted(triton)
    assert name not in fitted(JOB)


@pytest.mark.slow
def test_twenty_steps_improve_the_prediction_of_others():
    """Layouts that were not measured are predicted better than before."""
    every = observed(PLANTED, count=21)
    found = fit(every[:14])
    held = every[14:]
    before = [predict_all(x.job, [x.layout])[0].step_seconds for x in held]

    assert mean_error(found.predict(held), held) < 0.5 * mean_error(before, held)


@pytest.mark.parametrize("factor", slow_after(1, [0.2, 0.5, 2.0, 5.0]))
@pytest.mark.parametrize("count", slow_after(1, [1, 3]))
def test_wild_runs_stay_inside_of_the_bounds_and_do_little_harm(factor, count):
    """A few runs that are off by any factor cannot spoil the prediction of honest ones."""
    honest = observed({}, noise=0.0)
    wild = [replace(x, seconds=x.seconds * factor) for x in honest[:count]]
    found = fit(wild)

    for coefficient in COEFFICIENTS:
        assert coefficient.low <= number_of(found.job(JOB), coefficient).value <= coefficient.high
    assert all(abs(estimate.shift) <= 3 * estimate.prior for estimate in found.estimates)
    assert mean_error(found.predict(honest[3:]), honest[3:]) < 0.15


@pytest.mark.slow
def test_wild_runs_among_honest_ones_are_outvoted():
    """Three of twenty that took three times as long move nothing much."""
    honest = observed({}, noise=0.02)
    mixed = [replace(x, seconds=3 * x.seconds) if i % 7 == 0 else x for i, x in enumerate(honest)]
    left = [x for i, x in enumerate(honest) if i % 7]

    assert mean_error(fit(mixed).predict(left), left) < 0.06


def test_the_scatter_and_the_shifts_agree():
    """Neither can be improved by itself: a little to either side of each shift is worse."""
    found = Refits(observed(PLANTED, count=6))
    best, problem = found._of_all_rows, found._model.problem(Scatter())

    def objective(z):
        return np.log(_scatter(problem, problem.residuals(z))) * (4 + 6) + z @ z / 2

    least = objective(best.z)
    for k in range(len(best.z)):
        for step in (-0.3, 0.3):
            moved = best.z.copy()
            moved[k] = np.clip(moved[k] + step, problem.lower[k], problem.upper[k])
            assert objective(moved) >= least - 1e-3


@pytest.mark.slow
def test_the_order_of_runs_does_not_matter():
    """The same runs in another order give the same coefficients."""
    runs = observed(PLANTED, count=9)
    shuffled = runs[::2] + runs[1::2]

    assert values_of(fit(shuffled)) == pytest.approx(values_of(fit(runs)), rel=1e-3)


def test_without_runs_everything_stays():
    """The prior alone is what is shipped, number for number."""
    found = fit([])

    assert found.estimates == ()
    assert found.job(JOB) == JOB


def test_runs_that_are_predicted_rightly_move_nothing():
    """Where there is no error there is no change, and the deviations still narrow."""
    found = fit(observed({}, noise=0.0, count=9))

    assert all(abs(estimate.shift) < 1e-2 for estimate in found.estimates)
    assert min(estimate.narrowed for estimate in found.estimates) < 0.9


@pytest.mark.slow
def test_what_no_run_feels_is_not_informed():
    """On one node the share of the network cannot be known."""
    runs = [x for x in observed(PLANTED, count=9) if x.job.cluster.devices == 8]
    estimates = {estimate.coefficient.name: estimate for estimate in fit(runs).estimates}

    assert estimates["collectives.network_share"].shift == pytest.approx(0.0, abs=1e-9)
    assert estimates["collectives.network_share"].narrowed == pytest.approx(1.0)


def test_each_file_has_coefficients_of_its_own():
    """Runs on two families of devices move the kernels of each; other jobs keep theirs."""
    other = load_job("llama3-8b-8x-h100")
    runs = [*observed(PLANTED, count=4), Observation(other, valid_layout(other, "tp=4"), 9.0)]
    found = fit(runs)
    owners = {estimate.owner for estimate in found.estimates}
    elsewhere = load_job("qwen2.5-7b-8x-h200")

    assert {JOB.kernels.name, other.kernels.name, JOB.stack.name} <= owners
    assert found.job(elsewhere).kernels == elsewhere.kernels


@pytest.mark.slow
def test_a_group_is_left_out_together():
    """What predicts a run has seen no run of its group."""
    runs = [replace(x, group="all") for x in observed(PLANTED, count=6)]
    shipped = [predict_all(x.job, [x.layout])[0].step_seconds for x in runs]

    assert leave_out(runs) == pytest.approx(shipped, rel=1e-3)


def test_steps_are_those_of_the_prediction():
    """R1: what is fitted is the time that evaluate prints."""
    layouts = [valid_layout(JOB, text) for text in ("tp=2", "tp=4,mbs=2", "tp=8")]
    predicted = [prediction.step_seconds for prediction in predict_all(JOB, layouts)]

    assert Steps.of(JOB, layouts).seconds(JOB).tolist() == predicted


@pytest.mark.parametrize("coefficient", COEFFICIENTS, ids=lambda c: c.name)
def test_coordinates_have_an_inverse(coefficient):
    """Every value in the range, its ends too, stands somewhere on the line."""
    for share in (0.0, 0.3, 1.0):
        value = coefficient.low + share * (coefficient.high - coefficient.low)
        assert coefficient.value(coefficient.coordinate(value)) == pytest.approx(value, abs=1e-12)


@pytest.mark.slow
def test_calibrated_files_say_what_was_fitted_and_keep_the_rest():
    """Numbers that moved name the runs; all others keep kind and source; the files load."""
    runs = observed(PLANTED, count=8)
    answer = calibrate(runs, names=["job"] * len(runs), source="mine: 8 runs")
    texts = calibrated_files(answer)
    stack = load_model(texts["megatron-core-calibrated.yaml"], CLASSES["stack"], name="x")
    traffic = stack.block.elementwise_traffic

    assert not answer.kept
    assert answer.left_out.mean < answer.before.mean
    assert (traffic.kind, stack.sources[traffic.source]) == ("fitted", "mine: 8 runs")
    assert stack.memory == JOB.stack.memory
    assert {c.coefficient for c in answer.changes if c.moved} >= {"block.elementwise_traffic"}
    assert load_model(texts["a100-sxm4-80gb-calibrated.yaml"], CLASSES["kernels"], name="x")


@pytest.mark.slow
def test_shipped_values_are_kept_where_runs_contradict_each_other():
    """A fit that predicts runs left out worse than the shipped values is not used, and the bars grow."""
    exact = observed({}, noise=0.0, count=8)
    runs = [replace(x, seconds=x.seconds * (1.5 if i % 2 else 0.7)) for i, x in enumerate(exact)]
    answer = calibrate(runs, names=["job"] * len(runs), source="mine: 8 runs")

    if answer.kept:
        assert not any(change.moved for change in answer.changes)
        assert answer.stack.block == JOB.stack.block
    assert answer.kept or answer.left_out.mean <= answer.before.mean * 1.2
    assert answer.stack.uncertainty.time.value > JOB.stack.uncertainty.time.value


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 10])
def test_runs_that_are_predicted_rightly_narrow_the_interval(count):
    """Runs without an error leave (10 / (10 + n))^½ of it: the shipped width counts as ten runs."""
    runs = observed({}, noise=0.0, count=count)
    answer = calibrate(runs, names=["job"] * count, source=f"mine: {count} runs")
    width = answer.stack.uncertainty.time

    assert answer.interval == pytest.approx(math.sqrt(10 / (10 + count)), rel=1e-3)
    assert width.value == pytest.approx(answer.interval * JOB.stack.uncertainty.time.value, rel=0.05)
    assert (width.kind, answer.stack.sources[width.source]) == ("fitted", f"mine: {count} runs")


@pytest.mark.parametrize("kind", ["stack", "kernels", "device", "node", "cluster", "model", "job"])
def test_entries_are_written_as_they_were_read(kind):
    """A file that is written from an entry is read as the same entry."""
    for name in entry_names(kind):
        entry = load_entry(kind, name)
        text = file_text(entry)
        assert file_text(load_model(text, CLASSES[kind], name=name)) == text
        if kind in {"stack", "kernels"}:
            assert load_model(text, CLASSES[kind], name=name) == entry


PEAK, WIRE = 989e12, 3.35e12


def timings(noise=0.03):
    """Return times of a made-up device for the quick grid."""
    rng = np.random.default_rng(0)
    found = {}
    for point in device_points("quick"):
        if point.operation == "gemm":
            seconds = gemm_seconds_at_rate(
                point.sizes, Rate(PEAK * 0.75, (60, 90, 110), 4e-6), WIRE * 0.85, 2
            )
        elif point.operation == "attention":
            tokens, heads, size = point.sizes
            share, times = (0.5, 2.5) if point.variant == "backward" else (0.65, 1.0)
            rate = Rate(PEAK * share, (900, 9000), 1e-5)
            keys = (tokens + 1) / 2
            seconds = times * attention_seconds(np.ones(()), tokens, keys, np.array(float(heads)), size, rate)
        else:
            seconds = point.sizes[0] / (WIRE * 0.85) + 3e-6
        found[point] = float(seconds) * math.exp(rng.normal(0, noise))
    return found


START = {"half_m": 80, "half_n": 80, "half_k": 100, "half_sequence": 500, "half_rows": 13_000}


def test_curves_are_found_in_noisy_timings():
    """Ceilings and bandwidth come out within a few per cent, half extents roughly."""
    told = timings()
    gemm = gemm_curve(told, peak=PEAK, bandwidth=WIRE * 0.85, start=START)
    attention = attention_curve(told, peak=PEAK, start=START)
    memory_bound = memory_bound_curve(told, peak=WIRE)

    assert gemm.values["ceiling"] == pytest.approx(0.75, rel=0.05)
    assert gemm.values["half_k"] == pytest.approx(110, rel=0.4)
    assert attention.values["forward_ceiling"] == pytest.approx(0.65, rel=0.1)
    assert attention.values["backward_ceiling"] == pytest.approx(0.5, rel=0.1)
    assert memory_bound.values["bandwidth_share"] == pytest.approx(0.85, rel=0.05)
    assert max(x.median_error for x in (gemm, attention, memory_bound)) < 0.05


HERE = Environment("Made-up GPU", "2.13", "runtime 1")


def test_a_kernels_file_holds_what_was_measured_and_says_so(tmp_path):
    """Curves and tables replace the shipped ones, all else and its sources stay."""
    device, node = find_hardware("dgx-h100")
    record = Record(tmp_path / "points.jsonl", HERE)
    for point, seconds in timings().items():
        record.add(point, seconds)
    for point in collective_points("quick", 8):
        ranks, size = point.sizes
        record.add(point, 1e-5 + size / 300e9 * (ranks - 1) / ranks)
    record.add(point_of("gemm/forward/1x1x1"), None, reason="too small")
    base = kernels_for(device.name)
    measured = measured_kernels(record, base, device, node)
    kernels = load_model(file_text(measured.kernels), CLASSES["kernels"], name="x")

    assert kernels.name == "h100-sxm5-80gb-measured"
    assert kernels.gemm.ceiling.source == "measured-gemm"
    assert "Made-up GPU" in kernels.sources["measured-gemm"]
    assert kernels.gemm.sustained_share == base.gemm.sustained_share
    assert kernels.collectives.fabrics == ("dgx-h100",)
    assert {table.ranks for table in kernels.collectives.tables} == {2, 4, 8}
    assert (measured.failed, measured.tables) == (1, 9)
    assert 0.5 < kernels.collectives.fabric_share.value < 0.8


def test_a_record_goes_on_where_it_was_cut(tmp_path):
    """A line without its end is cut off, the others are kept."""
    file = tmp_path / "points.jsonl"
    first, second, *_ = device_points("quick")
    record = Record(file, HERE)
    record.add(first, 1e-3)
    record.add(second, 2e-3)
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    again = Record(file, HERE)

    assert again.seconds == {first: 1e-3}
    again.add(second, 2e-3)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("line", ["{}", "[]", "null", "not json", '{"point": "x/y/z", "seconds": 1}'])
def test_a_record_of_something_else_is_refused(tmp_path, line):
    """A file that autoplan did not write is named with its line."""
    file = tmp_path / "points.jsonl"
    file.write_text(line + "\n")

    with pytest.raises(SpecError, match=r"points\.jsonl:1"):
        Record(file, HERE)


def test_a_record_of_another_device_is_refused(tmp_path):
    """Measurements of two devices never mix."""
    file = tmp_path / "points.jsonl"
    Record(file, HERE).add(device_points("quick")[0], 1.0)

    with pytest.raises(UnsupportedError, match="Made-up GPU"):
        Record(file, replace(HERE, device="Other GPU"))
