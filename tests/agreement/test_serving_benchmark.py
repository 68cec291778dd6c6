"""The benchmark of measured serving runs: its rows, what it skips, and its intervals."""

import json
from dataclasses import replace
from math import exp

import pytest

from autoplan.catalog import serving_intervals
from benchmarks.serving import served_jobs
from benchmarks.serving.__main__ import DEFAULT_RUNS, main
from benchmarks.serving.conformal import coverage_of, spreads_of
from benchmarks.serving.outcomes import ServedOutcome, width_of
from benchmarks.serving.served_jobs import engine_name, engine_of
from benchmarks.serving.served_predictions import predicted
from benchmarks.serving.served_runs import METRICS, RunEngine, ServedRun, read_served_runs
from benchmarks.skips import Skipped
from tests.support.serving_runs import RUN


def report(tmp_path, capsys, *runs):
    """Return what the benchmark prints for ``runs``."""
    path = tmp_path / "runs.yaml"
    path.write_text("runs:\n" + "".join(f"- {json.dumps(run)}\n" for run in runs), encoding="utf-8")
    assert main(["--runs", str(path), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_row_has_each_figure_between_the_ends_of_its_interval(tmp_path, capsys):
    """The contract of the JSON: every metric with low and high, saturation, fit and reason."""
    (row,) = report(tmp_path, capsys, RUN)["rows"]

    assert row["fits"] is True
    assert row["skipped"] is None
    assert row["predicted_saturated"] is False
    for metric in METRICS:
        value = row[f"predicted_{metric}"]
        assert row[f"predicted_{metric}_low"] < value < row[f"predicted_{metric}_high"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"layout": {"tp": 1, "framework": "a new engine"}}, "engine is not known"),
        ({"workload": {"mode": "online"}}, "lengths of requests"),
        ({"model": {"name": "x"}}, "cannot be read"),
        ({"layout": {"tp": 1, "weight_dtype": "int3", "framework": "vllm 0.12.0"}}, "format of the weights"),
    ],
)
def test_a_row_that_cannot_be_priced_is_skipped_with_its_reason(tmp_path, capsys, changed, reason):
    """One odd row costs that row only."""
    rows = report(tmp_path, capsys, {**RUN, **changed}, RUN)["rows"]

    assert reason in rows[0]["skipped"]
    assert rows[0]["predicted_time_per_output_token_seconds"] is None
    assert rows[1]["skipped"] is None


def test_an_engine_that_does_not_start_is_said_not_to_fit(tmp_path, capsys):
    """A 70B in 16 bits is larger than the card: no figures, and no skip."""
    sizes = {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672}
    (row,) = report(tmp_path, capsys, {**RUN, "model": {**RUN["model"], **sizes}})["rows"]

    assert row["fits"] is False
    assert row["skipped"] is None
    assert row["predicted_output_tokens_per_second"] is None


def test_more_clients_than_the_cache_holds_are_said_to_saturate(tmp_path, capsys):
    """Demand above the cache waits for earlier requests to end."""
    load = {"concurrency": 600, "input_len": 4000, "output_len": 8, "mode": "online closed loop"}
    (row,) = report(tmp_path, capsys, {**RUN, "workload": load, "client": {"requests": 600}})["rows"]

    assert row["predicted_saturated"] is True


@pytest.mark.parametrize(
    ("framework", "engine"),
    [
        ("vllm 0.12.0", "vllm@0.12.0"),
        ("vLLM (version not given)", "vllm"),
        ("SGLang", "sglang"),
        ("sglang 0.5.8.post1", "sglang@0.5.8.post1"),
        ("FasterTransformer", "fastertransformer@5.0"),
        ("TensorRT-LLM 0.17", "tensorrt-llm@0.17"),
        ("vllm 0.99.0", "vllm@0.33"),
    ],
)
def test_frameworks_of_rows_name_versions_of_engines(framework, engine):
    """A version that is not known stands for the newest that is not newer."""
    assert engine_name(framework) == engine


def test_a_row_of_medians_is_predicted_by_the_middle_request():
    """Of Poisson arrivals some wait behind others: their mean is later than the middle one."""
    load = {"request_rate": 5, "input_len": 2048, "output_len": 16, "mode": "online open loop"}
    rows = ({**RUN, "workload": load, "measured": {"ttft_ms": 9, "medians": x}} for x in (False, True))
    mean, median = (predicted(ServedRun.model_validate(row)) for row in rows)

    assert median.values[METRICS[0]] < 0.98 * mean.values[METRICS[0]]
    assert median.values[METRICS[2]] == mean.values[METRICS[2]]


def test_a_sample_of_runs_is_predicted_no_worse_than_recorded(capsys):
    """60 rows, always the same: no figure of them is worse than in ``recorded_sample.yaml``."""
    assert main(["--sample", "60", "--check", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 60


def test_an_unknown_framework_is_not_taken_for_another():
    """There is no silent default."""
    with pytest.raises(Skipped, match="engine is not known"):
        engine_name("Triton")


POOLS = {
    **RUN,
    "hardware": {"gpu": "h100-sxm5-80gb", "gpus": 2},
    "layout": {"weight_dtype": "fp16", "framework": "TensorRT-LLM 1.0"},
    "disaggregated": {"prefill": {"workers": 1, "tp": 1}, "decode": {"workers": 1, "tp": 1}},
    "workload": {"concurrency": 12, "input_len": 256, "output_len": 256, "mode": "online closed loop"},
    "client": {"requests": 240},
}
SLOTS = {"prefill": {"max_num_tokens": 512}, "decode": {"max_batch_size": 4, "max_num_tokens": 4}}


def test_clients_beyond_the_batch_of_a_decode_pool_wait_for_its_places(tmp_path, capsys, monkeypatch):
    """12 clients on 4 places: 8 wait at any time, so that the first token comes 8 of 12 round trips late.

    By Little's law, where all but the wait for a place is short; a batch of 12 has no such wait.
    """
    (free,) = report(tmp_path, capsys, POOLS)["rows"]
    settings = {role: RunEngine.model_validate(SLOTS[role]) for role in SLOTS}
    monkeypatch.setattr(served_jobs, "_recipes", lambda: {POOLS["id"]: settings})
    (row,) = report(tmp_path, capsys, POOLS)["rows"]

    first, each = (row[f"predicted_{metric}"] for metric in METRICS[:2])
    assert first / (first + 255 * each) == pytest.approx(8 / 12, rel=0.1)
    assert row["predicted_saturated"] is True
    assert free["predicted_saturated"] is False
    assert free["predicted_time_to_first_token_seconds"] < 0.05 * first


def test_every_recipe_belongs_to_a_disaggregated_row():
    """Settings of a row that does not exist would be used by none."""
    rows = {
        row.id: row
        for path in DEFAULT_RUNS
        for _, row in read_served_runs(path)
        if isinstance(row, ServedRun)
    }

    assert all(rows[name].disaggregated is not None for name in served_jobs._recipes())


def loads(mode, error, publications):
    """Return fifteen runs of a load by so many publications, each off by the same logarithm."""
    return [
        ServedOutcome(
            f"{mode}-{n}",
            mode=mode,
            publication=f"{mode}-{n % publications}",
            measured={"time_to_first_token_seconds": exp(error)},
            values={"time_to_first_token_seconds": 1.0, **dict.fromkeys(METRICS[1:])},
        )
        for n in range(15)
    ]


@pytest.mark.parametrize(("publications", "share"), [(1, 0.75), (2, 0.5), (4, 0.0)])
def test_a_load_of_few_publications_leans_on_all_loads(publications, share):
    """Errors of 0.8 and of 0.2: each publication that is missing of four takes a quarter of the way."""
    runs = [*loads("closed loop", 0.8, 4), *loads("static", 0.2, publications)]
    spec = serving_intervals()
    spreads = {x.load: x for x in spreads_of(runs, spec) if x.model is None}
    wider = spec.other_publication.value

    assert spreads["all"].high == pytest.approx(0.8 * wider)
    assert spreads["static"].high == pytest.approx((0.2 + share * 0.6) * wider)
    assert spreads["static"].low == pytest.approx(0.2 * wider)


@pytest.mark.parametrize(("publications", "share"), [(4, 0.6), (10, 0.0)])
def test_models_with_experts_have_a_spread_that_leans_on_all_models(publications, share):
    """Errors of 0.6 with experts, 0.1 without: each publication missing of ten takes a tenth of the way."""
    with_experts = [replace(x, experts=True) for x in loads("closed loop", 0.6, publications)]
    dense = [replace(x, publication=f"dense-{x.publication}") for x in loads("closed loop", 0.1, 10)]
    spec = serving_intervals()
    spreads = {x.model: x for x in spreads_of([*with_experts, *dense], spec) if x.load == "closed loop"}
    wider = spec.other_publication.value

    assert spreads[None].low == pytest.approx(0.1 * wider)
    assert spreads["experts"].low == pytest.approx((0.6 - share * 0.5) * wider)
    assert spreads["dense"].high == pytest.approx(0.1 * wider)


def test_runs_that_no_fit_sees_are_not_widened_again():
    """Their errors are those of another publication as they are; coverage names them apart."""
    seen = loads("static", 0.2, 4) * 2
    unseen = [replace(x, fitted=False) for x in seen]
    ends = [spreads_of(runs, serving_intervals())[0].high for runs in (seen, unseen)]
    found = {x["of"]: x for x in coverage_of(unseen)}

    assert ends[0] == pytest.approx(serving_intervals().other_publication.value * ends[1])
    assert found["static, no fit sees"]["share"] == found["static"]["share"] == 1.0


@pytest.mark.parametrize(
    ("framework", "assumed"), [("SGLang 0.4.2", True), ("SGLang 0.5.8", False), ("vLLM", True)]
)
def test_a_version_that_no_file_knows_is_assumed(framework, assumed):
    """Older than all that are known, or not told: the interval is wider by as much as a plan's."""
    layout = {**RUN["layout"], "framework": framework}
    run = ServedRun.model_validate({**RUN, "layout": layout})
    spec = serving_intervals()

    assert engine_of(run).version_assumed is assumed
    wide = width_of(ServedOutcome("x", assumed=assumed), spec)
    assert wide == (spec.assumed_version.value if assumed else 1.0)
