"""Traces of requests: what is read, and what is refused with its line."""

import pytest

from autoplan.catalog import load_serving_job
from autoplan.catalog.request_traces import read_request_trace
from autoplan.errors import CatalogError, SpecError


def trace(tmp_path, text):
    """Return the path of a trace of this text."""
    path = tmp_path / "requests.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trace_is_read(tmp_path):
    """Lengths and arrivals since the first; other columns do not matter."""
    found = read_request_trace(
        trace(tmp_path, "arrival_s,input_tokens,x,output_tokens\n2,10,a,3\n2.5,7,b,1\n")
    )

    assert (found.inputs, found.outputs, found.arrivals) == ((10, 7), (3, 1), (0.0, 0.5))
    assert found.longest == 13


def test_a_trace_may_have_no_arrivals(tmp_path):
    """Then a rate or a number of clients says when requests come."""
    assert read_request_trace(trace(tmp_path, "input_tokens,output_tokens\n1,2\n")).arrivals == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input_tokens\n1\n", "has no column output_tokens"),
        ("input_tokens,output_tokens\n5,2\n5,\n", "output_tokens is missing"),
        ("input_tokens,output_tokens\n5,2\n,\n", "output_tokens is missing"),
        ("input_tokens,output_tokens\n5,2\n-5,2\n", "input_tokens is '-5'"),
        ("input_tokens,output_tokens\n0,2\n", "input_tokens is '0'"),
        ("input_tokens,output_tokens\n1e3,2\n", "input_tokens is '1e3'"),
        ("input_tokens,output_tokens,arrival_s\n1,2,nan\n", "arrival_s is nan"),
        ("input_tokens,output_tokens,arrival_s\n1,2,3\n1,2,1\n", "arrival_s is 1, before 3"),
        ("input_tokens,output_tokens,arrival_s\n1,2\n", "arrival_s is missing"),
        (
            "input_tokens,output_tokens,arrival_s\n1,2,0\n1,2,1e308\n",
            "arrival_s is 1e308, which is not within",
        ),
        (f"input_tokens,output_tokens\n1,2\n1,{'7' * 140_000}\n", "is no CSV file: field larger"),
        (f"input_tokens,output_tokens,note\n1,2,{'x' * 140_000}\n", "is no CSV file: field larger"),
        ("input_tokens,output_tokens\n", "has no requests"),
        ("", "has no column"),
    ],
)
def test_a_trace_with_holes_is_refused(tmp_path, text, said):
    """The message says which column of which line is wrong."""
    with pytest.raises(SpecError, match=said) as error:
        read_request_trace(trace(tmp_path, text))

    of_head = "column" in said or "no requests" in said
    assert error.value.problems[0].line == (1 if of_head else len(text.splitlines()))


def test_gaps_that_no_clock_has_are_none(tmp_path):
    """Requests less than a nanosecond apart came at once, and say no rate."""
    text = "input_tokens,output_tokens,arrival_s\r1,2,0\r3,4,5e-324\r5,6,1e-323\r"
    found = read_request_trace(trace(tmp_path, text))

    assert (found.inputs, found.arrivals, found.rate) == ((1, 3, 5), (0.0, 0.0, 0.0), 0.0)


def test_many_problems_are_not_all_told(tmp_path):
    """A file of another kind does not fill the screen."""
    with pytest.raises(SpecError) as error:
        read_request_trace(trace(tmp_path, "input_tokens,output_tokens\n" + "x,y\n" * 1000))

    assert len(error.value.problems) <= 22


def test_a_missing_trace_is_said(tmp_path):
    """As any other file that a job names."""
    with pytest.raises(CatalogError, match="requests"):
        read_request_trace(tmp_path / "requests.csv")


@pytest.mark.parametrize(
    ("lengths", "longest"),
    [
        ("input_tokens: {trace: requests.csv}, output_tokens: {trace: requests.csv}", 3020),
        ("input_tokens: {trace: requests.csv}, output_tokens: 100", 3120),
        ("input_tokens: 10, output_tokens: {trace: requests.csv}", 912),
        ("input_tokens: 10, output_tokens: {trace: requests.csv}, longest_request: 8000", 8000),
    ],
)
def test_the_longest_request_of_a_trace_must_be_admitted(tmp_path, lengths, longest):
    """As that of any other distribution: the engine is started for it."""
    trace(tmp_path, "input_tokens,output_tokens\n50,900\n3000,20\n")

    assert load_serving_job(traced_job(tmp_path, lengths)).longest_request == longest


def test_a_trace_that_exceeds_the_positions_of_the_model_is_refused(tmp_path):
    """With the line of the job that names it, and not at the engine's start."""
    trace(tmp_path, "input_tokens,output_tokens\n200000,900\n")
    lengths = "input_tokens: {trace: requests.csv}, output_tokens: {trace: requests.csv}"

    with pytest.raises(SpecError, match=r"200,900 tokens cannot be admitted.*131,072 positions"):
        load_serving_job(traced_job(tmp_path, lengths))


def traced_job(tmp_path, lengths):
    """Return the path of a serving job whose workload has these lengths."""
    path = tmp_path / "job.yaml"
    head = "kind: serving\nmodel: llama3.1-8b\nhardware: dgx-h100\ndevices: 1\nstack: vllm\n"
    path.write_text(f"{head}workload: {{{lengths}}}\n", encoding="utf-8")
    return path
