"""Serving jobs and engines: what a file may say, and what is said of what it may not."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.catalog import load_serving_job
from autoplan.catalog.entries import engine, load_entry
from autoplan.catalog.serving_jobs import _powered
from autoplan.errors import LayoutError, SpecError, UnsupportedError
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, parse_serving_layout
from autoplan.schema.serving.request_lengths import longest_tokens, shortest_tokens
from tests.support.serving_jobs import serving_job, serving_spec

EVERYTHING = """\
schema: 1
kind: serving
model: llama3.1-70b
hardware: dgx-h100
devices: [4, 8]
stack: vllm@0.24.0
workload:
  input_tokens: {uniform: [819, 1024]}
  output_tokens: {lognormal: {median: 200, p99: 1000}}
  request_rate: 12/s
  arrivals: {gamma: 2.0}
  longest_request: 32768
  prefix: {shared_tokens: 512, hit_rate: 60 %}
  classes:
    - {name: chat, weight: 75 %, input_tokens: 800, output_tokens: 200, limits: {time_to_first_token: 1 s}}
    - {name: report, weight: 25 %, input_tokens: 8000, output_tokens: {trace: requests.csv}}
precision: {weights: [bf16, fp8, nvfp4], kv_cache: [auto, fp8], unquantized: [attention]}
speculation: {method: eagle3, tokens: [0, 1, 3], acceptance: 75 %}
search:
  tensor_parallel: [2, 4]
  pipeline_parallel: 1
  replicas: any
  expert_parallel: any
  attention_data_parallel: any
  decode_context_parallel: 1
  max_num_seqs: [128, 256]
  max_num_batched_tokens: any
  gpu_memory_utilization: 95 %
  block_tokens: 16
  disaggregated: [false, true]
  prefill: {tensor_parallel: 2}
  decode: {tensor_parallel: 4}
limits:
  time_to_first_token: {p99: 2 s}
  time_per_output_token: 40 ms
  request_latency: {mean: 20 s, p90: 40 s}
  goodput: 95 %
  throughput: 1000
  memory_headroom: 2 %
  peak_memory: 78 GiB
  devices: 16
  cost: 5
  energy: 2 kWh
objectives: [throughput_per_device, time_per_output_token, cost]
price: {per_device_hour: 2.5, date: 2026-11-01}
rules: ["tp * pp <= 8", {rule: "tp >= 2", because: the model is large}]
deadline: 20 s
"""


def written(tmp_path, text):
    """Return the path of a job file with ``text``."""
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(tmp_path, text):
    """Return the problems of a job file."""
    with pytest.raises(SpecError) as caught:
        load_serving_job(written(tmp_path, text))
    return caught.value.problems


def test_every_key_is_read(tmp_path):
    """A file with every key gives a job that has all of it."""
    job = load_serving_job(written(tmp_path, EVERYTHING))

    assert str(job.engine) == "vllm@0.24"
    assert [choice.cluster.devices for choice in job.choices] == [4, 8]
    assert job.workload.request_rate == 12.0
    assert job.longest_request == 32_768
    assert job.limits.time_to_first_token.p99 == 2.0
    assert job.precision.weights == ("bf16", "fp8", "nvfp4")
    assert [rule.rule for rule in job.rules] == ["tp * pp <= 8", "tp >= 2"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("acceptance: 75 %", "acceptance: 0.75"),
        ("disaggregated: [false, true]", "disaggregated: true"),
        ("weights: [bf16, fp8, nvfp4]", "weights: fp8"),
        ("tokens: [0, 1, 3]", "tokens: 3"),
        ("arrivals: {gamma: 2.0}", "arrivals: constant"),
        ("time_to_first_token: {p99: 2 s}", "time_to_first_token: 2 s"),
        ("devices: [4, 8]\n", ""),
    ],
)
def test_short_forms_are_read(tmp_path, old, new):
    """One choice needs no list, and a bare limit is on the mean."""
    assert old in EVERYTHING
    load_serving_job(written(tmp_path, EVERYTHING.replace(old, new, 1)))


def test_all_problems_are_told_at_once_with_their_lines(tmp_path):
    """Unknown keys have a suggestion, and each problem its line."""
    text = EVERYTHING.replace("model: llama3.1-70b", "model: llama9").replace("goodput:", "godput:")
    text = text.replace("weights: [bf16, fp8, nvfp4]", "weights: [bf17]")
    found = {problem.line: problem.message for problem in problems_of(tmp_path, text)}

    assert set(found) == {3, 17, 37}
    assert "no model is called 'llama9'" in found[3]
    assert "bf16" in found[17]
    assert "did you mean 'goodput'?" in found[37]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("stack: vllm@0.24.0", "stack: vllm@0.23", "vLLM '0.23' is not known"),
        ("stack: vllm@0.24.0", "stack: vllm@", "vLLM '' is not known"),
        ("stack: vllm@0.24.0", "stack: vlm", "did you mean vllm"),
        ("request_rate: 12/s", "request_rate: 0/s", "more than 0"),
        ("request_rate: 12/s", "request_rate: .inf", "not a finite number"),
        ("request_rate: 12/s", "request_rate: 12", "with its unit"),
        ("  arrivals: {gamma: 2.0}", "  concurrency: 8", "a loop is closed or open"),
        ("longest_request: 32768", "longest_request: 12", "less than input and output"),
        ("longest_request: 32768", "longest_request: 200000", "has 131,072 positions"),
        ("weight: 75 %", "weight: 60 %", "add up to 85 %"),
        ("time_to_first_token: {p99: 2 s}", "time_to_first_token: {p50: 3 s, p99: 2 s}", "contradict"),
        ("devices: 16\n", "devices: 2\n", "contradicts the job's 4 devices"),
        ("uniform: [819, 1024]", "uniform: [1024, 819]", "from the shorter to the longer"),
        ("tp * pp <= 8", "dp <= 8", "rules of serving may name"),
        ("method: eagle3", "method: draft_model", "belong together"),
        ("price: {per_device_hour: 2.5, date: 2026-11-01}", "", "cost needs a price"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, old, new, said):
    """A contradiction is an error that says what and where, never a default."""
    assert old in EVERYTHING
    assert said in " ".join(map(str, problems_of(tmp_path, EVERYTHING.replace(old, new, 1))))


def test_an_unknown_version_names_the_known_ones():
    """No other version stands in for one that nobody checked."""
    with pytest.raises(SpecError, match=r"known versions are 0\.11, 0\.12, .*0\.33"):
        serving_job(stack="vllm@9.9")


def test_a_version_stands_for_its_releases():
    """0.19.1 and v0.19 are 0.19; left out, it is the newest known one, and said to be assumed."""
    assert engine("vllm@0.19.1", Path()).version == engine("vllm@v0.19", Path()).version == "0.19"
    assert engine("sglang@0.5.8.post1", Path()).version == "0.5.8"
    newest = engine("vllm", Path())
    assert (newest.version, newest.version_assumed) == ("0.33", True)


def test_a_version_changes_what_it_lists_and_keeps_the_rest():
    """VLLM 0.20 raised its share to 92 % and counts graphs, and kept the scheduler of 0.14."""
    old, new = engine("vllm@0.19", Path()).facts, engine("vllm@0.20", Path()).facts

    assert (old.budget.utilization.value, new.budget.utilization.value) == (0.9, 0.92)
    assert (old.graphs.counted, new.graphs.counted) == (False, True)
    assert old.scheduler == new.scheduler


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
def test_every_number_of_an_engine_has_a_source(name):
    """R7: value, kind and source; the file refuses a source that it does not describe."""
    spec = load_entry("engine", name)
    broken = spec.model_dump(by_alias=True)
    broken["sources"] = {}

    with pytest.raises(ValueError, match="which `sources` lacks"):
        type(spec).model_validate(broken)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp=0", "must be an integer from 1"),
        ("replica=2", "did you mean 'replicas'"),
        ("tp=2,tp=4", "is given twice"),
        ("weights=fp7", "known formats are"),
        ("tp=2,ep=3", "does not divide"),
        ("tp=2,dcp=4", "does not divide tp=2"),
        ("seqs=512,tokens=256", "each request needs a token"),
        ("replicas=2,x=2", "is given twice"),
        ("tp", "is not of the form key=value"),
    ],
)
def test_layout_strings_that_are_wrong(text, said):
    """Each problem of a layout string is told."""
    with pytest.raises(LayoutError, match=said):
        parse_serving_layout(text)


def test_pools_of_disaggregated_layouts():
    """Two pools, each with its engines."""
    layout = parse_serving_layout("prefill=(tp=2,x=3)/decode=(tp=4,x=1,kv=fp8)")

    assert isinstance(layout, DisaggregatedLayout)
    assert (layout.prefill.replicas, layout.decode.kv, layout.devices) == (3, "fp8", 10)


def test_lengths_of_distributions():
    """What must be admitted is the longest of a range, the 99 % quantile of a long tail."""
    load = serving_spec(
        workload={
            "input_tokens": {"uniform": (10, 20)},
            "output_tokens": {"lognormal": {"median": 5, "p99": 50}},
        }
    ).workload

    assert (shortest_tokens(load.input_tokens), longest_tokens(load.input_tokens)) == (10, 20)
    assert load.longest_tokens == 70


def test_energy_needs_the_power_of_the_device():
    """A limit that nothing can be held against is refused."""
    spec = serving_spec(limits={"energy": 7.2e6})
    cluster = serving_job().cluster
    unknown = replace(cluster, device=cluster.device.model_copy(update={"power": None}))

    _powered(spec, cluster)
    with pytest.raises(UnsupportedError, match="energy needs the power of"):
        _powered(spec, unknown)
