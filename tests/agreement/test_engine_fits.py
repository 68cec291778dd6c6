"""The fit of engines' numbers: what it finds where the answer is known, and what it leaves to the prior."""

from concurrent.futures import ThreadPoolExecutor
from math import log

import numpy as np
import pytest

from benchmarks.serving.engine_fitting.engine_fits import error_of, fit_engines, left_out_errors
from benchmarks.serving.engine_fitting.engine_numbers import fitted_text
from benchmarks.serving.engine_fitting.step_responses import (
    NUMBERS,
    Response,
    moved_logs,
    responses,
    step_owner,
)
from benchmarks.serving.served_jobs import engine_of, try_step
from benchmarks.serving.served_predictions import predicted
from benchmarks.serving.served_runs import ServedRun

START = (1.0, 1e-3, 1e-5, 8e-6, 8e-3)


def run(number, *, slower, engine="engine@1.0", group="a", share=0.9):
    """Return a run that is ``slower`` than predicted, of whose time the device has a ``share``."""
    grown = {"scale": 1 + 0.2 * share, "host": 2 - share}
    changes = tuple((log(grown.get(name, 1.0)),) for name in NUMBERS)
    return Response(
        f"{group}-{number}",
        engine,
        group,
        "device",
        "static",
        "model",
        group,
        ("request_latency_seconds",),
        START,
        (log(slower),),
        (1.0,),
        changes,
    )


def fitted(runs):
    """Return the fit of each version, and that of the family as "family"."""
    return {fit.engine: fit for fit in fit_engines(runs, lambda engine: engine.partition("@")[0])}


def test_many_slow_runs_raise_the_scale_of_a_step():
    """Twenty runs of four groups are a fifth slower than predicted, and the device has most of their time."""
    runs = [run(n, slower=1.2, group=f"g{n % 4}") for n in range(20)]
    fit = fitted(runs)["engine@1.0"]

    assert fit.after < 0.25 * fit.before
    assert 1.1 < fit.numbers["scale"] < 1.3


def test_a_version_with_one_run_stays_beside_its_family():
    """One run that is twice as slow moves its version by less than half of what it says."""
    runs = [run(n, slower=1.0, group=f"g{n % 4}") for n in range(20)]
    odd = run(0, slower=2.0, engine="engine@2.0", group="odd")
    fits = fitted([*runs, odd])

    assert fits["engine@2.0"].numbers["scale"] < 1.35 * fits["family"].numbers["scale"]
    assert abs(error_of(odd, fits["engine@2.0"].numbers)[0]) > 0.3


def test_a_group_that_is_left_out_does_not_help_its_own_fit():
    """The runs of a group are judged by the others: those are as fast as predicted, this one is not."""
    runs = [run(n, slower=1.0, group=f"g{n % 4}") for n in range(20)] + [
        run(n, slower=1.3, group="own") for n in range(20, 30)
    ]
    errors = left_out_errors(runs, lambda engine: engine.partition("@")[0], lambda x: x.group)

    assert min(abs(error[0]) for _, error in errors["own"]) > 0.2


@pytest.mark.parametrize(
    ("version", "owner"),
    [
        ("tensorrt-llm@0.9", "tensorrt-llm@0.9"),
        ("lmdeploy@0.2", "lmdeploy@0.1"),
        ("vllm@0.33", "vllm@0.14"),
        ("vllm@0.12.0", "vllm@0.12"),
    ],
)
def test_versions_share_the_numbers_of_the_last_one_that_has_its_own(version, owner):
    """A version without a step of its own has that of the one before."""
    assert step_owner(version) == owner


def test_fitted_numbers_replace_those_of_their_version_alone():
    """Everything else of a file stays as it is."""
    text = """facts:
  step:
    scale: {value: 1.0, kind: fitted, source: step}
    largest_graph: {value: 1, kind: data sheet, source: stepg}
versions:
  "0.5": {}
  "0.9":
    step:
      scale: {value: 1.0, kind: fitted, source: step}
      host: {value: 980 us, kind: fitted, source: step}
"""
    fits = [
        fit
        for fit in fitted([run(0, slower=1.0, engine="tensorrt-llm@0.9")]).values()
        if fit.engine == "tensorrt-llm@0.9"
    ]
    changed = fitted_text(text, "tensorrt-llm", fits).splitlines()
    before = text.splitlines()

    assert [n for n, line in enumerate(changed) if line != before[n]] == [8, 9]
    assert changed[9].endswith(" us, kind: fitted, source: step}")


STATIC = {
    "id": "x-1",
    "group": "Llama-3-8B|a100-sxm4-80gb|vllm",
    "hardware": {"gpu": "a100-sxm4-80gb", "gpus": 1},
    "model": {
        "name": "Llama-3-8B",
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 128256,
    },
    "workload": {"batch": 16, "input_len": 128, "output_len": 64, "mode": "static batch"},
    "measured": {"latency_ms": 2000, "output_tokens_per_s": 500},
    "layout": {"tp": 1, "weight_dtype": "fp16", "framework": "vllm (version not given)"},
}


@pytest.mark.slow
def test_responses_foretell_predictions_with_other_numbers():
    """What one factor does to a run tells what another does: a fit needs no further runs."""
    run = ServedRun.model_validate(STATIC)
    with ThreadPoolExecutor(1) as pool:
        (found,) = responses([run], pool)
    step = engine_of(run).facts.step
    name, base = str(engine_of(run)), predicted(run).values
    changed = step.model_copy(
        update={"scale": step.scale.model_copy(update={"value": 1.1 * step.scale.value})}
    )
    try_step(name, changed)
    try:
        again = predicted(run).values
    finally:
        try_step(name, None)

    changes, signs = np.array(found.changes[NUMBERS.index("scale")]), np.array(found.signs)
    foretold = moved_logs("scale", np.array(log(1.1)), changes, signs).tolist()
    actual = [log(again[metric] / base[metric]) for metric in run.figures]
    assert foretold == pytest.approx(actual, abs=2e-3)
    assert sorted(found.signs) == [-1.0, 1.0]
