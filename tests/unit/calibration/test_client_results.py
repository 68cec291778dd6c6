"""Results of benchmark clients are read as they are written; what is none is refused with its line."""

import json

import pytest

from autoplan.calibration.engine_fit import read_client_results
from autoplan.errors import AutoplanError, SpecError

#: What `vllm bench serve --save-result` writes, without what is not read.
VLLM = {
    "date": "20261101-120000",
    "endpoint_type": "openai",
    "model_id": "meta-llama/Llama-3.1-8B",
    "num_prompts": 320,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 32,
    "duration": 50.0,
    "completed": 320,
    "failed": 0,
    "total_input_tokens": 320 * 1024,
    "total_output_tokens": 320 * 256,
    "request_throughput": 6.4,
    "output_throughput": 1638.4,
    "mean_ttft_ms": 310.5,
    "mean_tpot_ms": 11.25,
}
#: What SGLang's bench_serving appends to its --output-file.
SGLANG = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "max_concurrency": None,
    "random_input_len": 512,
    "duration": 100.0,
    "completed": 400,
    "total_input_tokens": 400 * 512,
    "total_output_tokens": 400 * 128,
    "output_throughput": 512.0,
    "mean_e2e_latency_ms": 2100.0,
    "mean_ttft_ms": 90.0,
    "mean_tpot_ms": 15.0,
}


def read(tmp_path, *documents):
    """Return the results of a file with one document on each line."""
    path = tmp_path / "result.json"
    path.write_text("\n".join(json.dumps(document) for document in documents))
    return read_client_results(path)


def test_a_result_of_vllm_is_a_closed_loop(tmp_path):
    """Clients, mean lengths, seconds."""
    (found,) = read(tmp_path, VLLM)

    assert (found.clients, found.requests, found.inputs, found.outputs) == (32, 320, (1024,), (256,))
    assert found.time_to_first_token == pytest.approx(0.3105)
    assert found.time_per_output_token == pytest.approx(0.01125)
    assert found.load == "32 clients"


def test_lines_of_sglang_are_runs_of_their_own(tmp_path):
    """A rate without a limit on clients is an open loop."""
    found = read(tmp_path, SGLANG, {**SGLANG, "request_rate": 8.0})

    assert [(run.clients, run.rate) for run in found] == [(None, 4.0), (None, 8.0)]
    assert [run.origin for run in found] == ["result.json:1", "result.json:2"]


def test_lengths_of_each_request_are_kept(tmp_path):
    """With --save-detailed the file has them."""
    (found,) = read(tmp_path, {**VLLM, "input_lens": [10, 20, 30], "output_lens": [1, 2, 3]})

    assert (found.inputs, found.outputs) == ((10, 20, 30), (1, 2, 3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 runs"),
        ("[1, 2]", "not an object"),
        ("{}", "completed, mean_ttft_ms"),
        ('{"completed": 3}\n{"completed": ', "not JSON"),
        (json.dumps({**VLLM, "completed": 0}), "completed, mean_ttft_ms"),
        (json.dumps({**VLLM, "mean_ttft_ms": "fast"}), "completed, mean_ttft_ms"),
        (json.dumps({**VLLM, "total_input_tokens": 0}), "total_input_tokens"),
        ("[" * 100_000, "not JSON"),
        (json.dumps(VLLM).replace("310.5", "1e999"), "completed, mean_ttft_ms"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, text, said):
    """With what is needed."""
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=said):
        read_client_results(path)


def test_a_file_that_is_not_there_is_an_error_of_the_user(tmp_path):
    """It is named."""
    with pytest.raises(AutoplanError, match=r"none\.json"):
        read_client_results(tmp_path / "none.json")


#: What `aiperf profile` writes, without percentiles.
AIPERF = {
    "schema_version": "1.4",
    "request_throughput": {"unit": "requests/sec", "avg": 0.8233},
    "request_count": {"unit": "requests", "avg": 10.0},
    "time_to_first_token": {"unit": "ms", "avg": 195.84, "count": 10},
    "inter_token_latency": {"unit": "ms", "avg": 35.2},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 52.69},
    "output_sequence_length": {"unit": "tokens", "avg": 64.0},
    "input_sequence_length": {"unit": "tokens", "avg": 255.6},
    "is_complete": True,
    "input_config": {
        "phases": [{"name": "warmup", "concurrency": 1}, {"name": "profiling", "concurrency": 2}]
    },
}


@pytest.mark.parametrize(
    ("config", "load"),
    [
        (AIPERF["input_config"], "2 clients"),
        (
            {"phases": [{"name": "profiling", "type": "poisson", "rate": 3.5, "concurrency": 64}]},
            "3.5 requests/s",
        ),
        ({"loadgen": {"concurrency": 8, "request_rate": None}}, "8 clients"),
        ({"perf_analyzer": {"stimulus": {"concurrency": 16}}}, "16 clients"),
        ({"perf_analyzer": {"stimulus": {"request_rate": 2.0}}}, "2 requests/s"),
    ],
)
def test_exports_of_genai_perf_and_aiperf_are_read(tmp_path, config, load):
    """Their loads are those that the client was asked for, in each version's place; times have units."""
    (result,) = read(tmp_path, {**AIPERF, "input_config": config})

    assert (result.load, result.requests, result.inputs, result.outputs) == (load, 10, (256,), (64,))
    assert result.time_to_first_token == pytest.approx(0.19584)
    assert result.time_per_output_token == pytest.approx(0.0352)
    assert result.output_tokens_per_second == pytest.approx(52.69)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"input_config": {}}, "the load is missing"),
        ({"input_config": None}, "the load is missing"),
        ({"input_config": {"phases": 3, "perf_analyzer": []}}, "the load is missing"),
        ({"is_complete": False}, "ended before it was done"),
        ({"was_cancelled": True}, "ended before it was done"),
        ({"request_count": None}, "request_count: a mean"),
        ({"time_to_first_token": {"unit": "parsec", "avg": 3}}, "time_to_first_token: a mean .* known unit"),
        ({"output_token_throughput": {"avg": -1}}, "output_token_throughput: a mean"),
    ],
)
def test_exports_without_a_figure_or_a_load_are_refused(tmp_path, changed, said):
    """The metric that is missing is named."""
    with pytest.raises(SpecError, match=said):
        read(tmp_path, {**AIPERF, **changed})


@pytest.mark.parametrize(("answered", "load"), [(3.9, "4 requests/s"), (2.0, "32 clients")])
def test_a_rate_with_a_bound_in_flight_is_what_binds(tmp_path, answered, load):
    """Requests at a rate that the server keeps up with are an open loop, though the client has a bound."""
    document = {**VLLM, "request_rate": 4.0, "request_throughput": answered}

    assert read(tmp_path, document)[0].load == load


def test_lengths_that_bench_serving_drew_spread(tmp_path):
    """SGLang draws random lengths from a share of a number to the number, which its result says."""
    drawn = {"dataset_name": "random", "random_input_len": 1000, "random_range_ratio": 0.0}
    document = {name: value for name, value in VLLM.items() if name not in {"input_lens", "output_lens"}}
    totals = {"completed": 100, "total_input_tokens": 50_000, "total_output_tokens": 6400}
    spread = read(tmp_path, {**document, **totals, **drawn})[0]
    alike = read(tmp_path, {**document, **totals})[0]

    assert (min(spread.inputs), max(spread.inputs)) == (6, 996)
    assert sum(spread.inputs) / len(spread.inputs) == pytest.approx(500, rel=0.01)
    assert spread.outputs == (64,)
    assert alike.inputs == (500,)
