"""``calibrate`` of serving runs: what moves, by how much, and what other loads are predicted then."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from autoplan.answers.calibrate.ask import calibrate_serving
from autoplan.calibration.engine_fit import fit_engine, predicted_figures
from benchmarks.serving.one_point import RUNS, engine_run, machines_of, one_point_errors
from benchmarks.serving.served_runs import ServedRun, read_served_runs

JOB = "llama3.1-8b-1x-h100"


def results(tmp_path, factor, *clients):
    """Write what a machine would measure whose steps take ``factor`` of the shipped times."""
    path = tmp_path / "result.jsonl"
    shipped = Path(tmp_path / "shipped.jsonl")
    shipped.write_text("\n".join(json.dumps(row(n)) for n in clients))
    found = calibrate_serving(JOB, ["tp=1"], [shipped]).figures
    values = {(x.origin.rpartition(":")[2], x.figure): x.before for x in found}
    rows = [
        row(
            n,
            values[str(i), "time_to_first_token"] * factor,
            values[str(i), "time_per_output_token"] * factor,
            values[str(i), "output_tokens_per_second"] / factor,
        )
        for i, n in enumerate(clients, start=1)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def row(clients, first=0.1, each=0.01, rate=1000.0):
    """Return a result of the client."""
    return {
        "max_concurrency": clients,
        "request_rate": "inf",
        "completed": 4 * clients,
        "total_input_tokens": 4 * clients * 256,
        "total_output_tokens": 4 * clients * 64,
        "mean_ttft_ms": first * 1e3,
        "mean_tpot_ms": each * 1e3,
        "output_throughput": rate,
    }


def test_a_slower_machine_has_a_larger_scale(tmp_path):
    """The factor comes back within its prior, more of it with more runs, and intervals are narrower."""
    one = calibrate_serving(JOB, ["tp=1"], [results(tmp_path, 1.15, 32)])
    three = calibrate_serving(JOB, ["tp=1"], [results(tmp_path, 1.15, 8, 32, 64)])
    moved = [answer.numbers[0].after / answer.numbers[0].before for answer in (one, three)]

    assert 1.03 < moved[0] < moved[1] < 1.16
    assert three.interval < one.interval < 1
    assert three.numbers[0].left < one.numbers[0].left < 1


def test_a_machine_like_the_shipped_one_moves_nothing(tmp_path):
    """What was predicted is measured."""
    answer = calibrate_serving(JOB, ["tp=1"], [results(tmp_path, 1.0, 8, 64)])

    assert answer.numbers[0].after == pytest.approx(answer.numbers[0].before, rel=0.01)
    assert all(x.left_out == pytest.approx(x.measured, rel=0.02) for x in answer.figures)


def test_the_written_engine_is_used_by_a_job(run, tmp_path):
    """The file loads, its step is the fitted one, and intervals say why they are narrower."""
    file = results(tmp_path, 1.15, 8, 32)
    done = run(
        "calibrate", JOB, "--log", file, "--layout", "tp=1", "--output", tmp_path / "own", "--format", "json"
    )
    answer = json.loads(done.stdout)
    (written,) = answer["files"]
    text = yaml.safe_load(Path(written).read_text())
    assert list(text["versions"])[-1] == "0.24"

    job = tmp_path / "job.yaml"
    head = "schema: 1\nkind: serving\nmodel: llama3.1-8b\nhardware: dgx-h100\ndevices: 1\n"
    load = "workload: {input_tokens: 256, output_tokens: 64, concurrency: 32}\n"
    predicted = {}
    for stack in ("vllm@0.24", f"{written}@0.24"):
        job.write_text(f"{head}stack: {stack}\n{load}")
        shown = json.loads(run("evaluate", job, "--layout", "tp=1", "--format", "json").stdout)["predicted"]
        predicted[stack] = shown
    shipped, own = predicted.values()
    name = "time_per_output_token_seconds"

    assert own[name] > 1.02 * shipped[name]
    assert own[f"{name}_high"] / own[name] < shipped[f"{name}_high"] / shipped[name]
    assert any("calibrated with runs of this machine" in reason for reason in own["interval_reasons"])


@pytest.mark.parametrize(
    ("layouts", "said"),
    [(["tp=3"], "must divide"), (["nonsense"], "is not of the form"), ([], "each --log needs its --layout")],
)
def test_wrong_layouts_are_refused(run, tmp_path, layouts, said):
    """Exit code 2 with a sentence."""
    file = tmp_path / "result.json"
    file.write_text(json.dumps(row(8)))
    options = [word for layout in layouts for word in ("--layout", layout)]
    done = run("calibrate", JOB, "--log", file, *options)

    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")


def test_an_engine_that_cannot_have_run_is_refused(run, tmp_path):
    """A 70B in 16 bits on one device."""
    file = tmp_path / "result.json"
    file.write_text(json.dumps(row(8)))
    done = run("calibrate", "llama3-70b-8x-h100", "--log", file, "--layout", "tp=1,weights=bf16")

    assert done.exit_code == 2
    assert "cannot have run" in done.stderr


@pytest.mark.slow
def test_one_measured_run_helps_the_others_of_its_machine():
    """Published runs: calibrated on one load, the others of a machine are predicted better on the whole."""
    runs = [one for _, one in read_served_runs(RUNS) if isinstance(one, ServedRun)]
    machines = machines_of(runs)
    names = sorted(machines)[2::3]
    errors = [one_point_errors(name, machines[name]) for name in names]
    known = [one for one in errors if one is not None]

    assert len(known) >= 6
    assert sum(one.calibrated for one in known) < sum(one.shipped for one in known)
    assert max(one.calibrated - one.shipped for one in known) < 0.05


def test_priors_hold_a_wild_run_back():
    """A run three times as slow moves the scale by no more than the loss beyond its bend allows."""
    runs = [one for _, one in read_served_runs(RUNS) if isinstance(one, ServedRun)]
    measured = engine_run(next(iter(machines_of(runs).values()))[0])
    figures = predicted_figures(measured)
    slow = replace(measured.measured, time_per_output_token=3 * figures["time_per_output_token"])
    wild = replace(measured, measured=slow)
    fit = fit_engine([wild])

    assert 1.0 < fit.scale < 1.4
    assert fit.interval > 1.0
