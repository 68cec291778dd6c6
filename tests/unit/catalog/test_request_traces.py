"""Traces of requests: what is read, and what is refused with its line."""

import pytest

from autoplan.catalog import load_serving_job
from autoplan.catalog.request_traces import read_request_trace, request_trace_of
from autoplan.errors import AutoplanError, CatalogError, SpecError
from autoplan.planning.serving_plans import serving_job
from autoplan.schema.serving.request_lengths import RecordedRequests
from tests.support.spec_runs import run_here


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


AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805900,20000,5000
2023-11-16 18:17:00.0000000,0,7
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 00:00:00.509930+00:00,76,15
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,1,0.4,ChatGPT,472,18,490,Conversation log
45,1,2.5,ChatGPT,1087,230,1317,Conversation log
118,2,0.1,GPT-4,417,0,417,API log
"""
MOONCAKE = """{"timestamp": 27000, "input_length": 1300, "output_length": 52, "hash_ids": [1, 2, 3]}
{"timestamp": 27000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 9]}
{"timestamp": 30500, "input_length": 600, "output_length": 3, "hash_ids": [1, 7]}
"""


@pytest.mark.parametrize(
    ("text", "title", "inputs", "outputs", "arrivals", "failed"),
    [
        (AZURE_2023, "Azure's trace", (374, 396, 20000), (44, 109, 5000), (0.0, 4.314579, 60.0), 1),
        (AZURE_2024, "Azure's trace", (2162, 76, 2399), (5, 15, 6), (0.0, 0.5, 0.99007), 0),
        (BURSTGPT, "BurstGPT", (472, 1087), (18, 230), (0.0, 40.0), 1),
        (MOONCAKE, "Mooncake's trace", (1300, 1100, 600), (52, 5, 3), (0.0, 0.0, 3.5), 0),
    ],
    ids=["azure 2023", "azure 2024", "burstgpt", "mooncake"],
)
def test_a_published_trace_is_recognised_by_its_columns(
    tmp_path, text, title, inputs, outputs, arrivals, failed
):
    """Lengths, and seconds since the first request in order; failed requests are counted."""
    found = read_request_trace(trace(tmp_path, text))

    assert (found.title, found.inputs, found.outputs, found.failed) == (title, inputs, outputs, failed)
    assert found.arrivals == pytest.approx(arrivals, abs=2e-6)


def test_blocks_that_prompts_begin_with_again_are_counted(tmp_path):
    """Two blocks of 512 tokens of the second prompt and one of the third came before; a tail does not."""
    found = read_request_trace(trace(tmp_path, MOONCAKE))

    assert found.repeated_share == pytest.approx((1024 + 512) / 3000)
    assert found.shared_tokens == 512
    assert read_request_trace(trace(tmp_path, AZURE_2023)).repeated_share is None


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (AZURE_2023.replace("GeneratedTokens", "Tokens"), "has no column GeneratedTokens", 1),
        (BURSTGPT.replace("Timestamp", "When"), "has no column Timestamp", 1),
        (
            AZURE_2023.replace("2023-11-16 18:15:50", "soon"),
            "TIMESTAMP is 'soon.9951690': a date and time",
            3,
        ),
        (BURSTGPT.replace("1087", "many"), "Request tokens is 'many': a whole number", 3),
        (MOONCAKE + "[1]\n", "the line is no JSON object", 4),
        (MOONCAKE.replace("30500", '"x"'), "timestamp is 'x': milliseconds are needed", 3),
    ],
)
def test_what_is_wrong_with_a_published_trace_is_told_with_its_line(tmp_path, text, said, line):
    """A column that lacks, a cell that is no number or no date."""
    with pytest.raises(SpecError, match=said) as error:
        read_request_trace(trace(tmp_path, text))

    assert error.value.problems[0].line == line


def test_a_part_of_a_trace_by_time_is_read(tmp_path):
    """From its start, since the first request of the file, for its duration; times begin anew."""
    path = trace(tmp_path, BURSTGPT)
    middle = read_request_trace(path, RecordedRequests(file="x", start=30.0, duration=60.0))
    rest = read_request_trace(path, RecordedRequests(file="x", start=30.0))

    assert (middle.inputs, middle.arrivals, middle.failed) == ((1087,), (0.0,), 0)
    assert (rest.inputs, rest.failed) == ((1087,), 1)
    with pytest.raises(SpecError, match="has no requests from 500 s on"):
        read_request_trace(path, RecordedRequests(file="x", start=500.0))
    with pytest.raises(SpecError, match="has no column arrival_s"):
        read_request_trace(
            trace(tmp_path, "input_tokens,output_tokens\n1,2\n"), RecordedRequests(file="x", start=1.0)
        )


def test_a_file_that_changed_is_read_again(tmp_path):
    """A part is kept by what its file was when it was read."""
    part = RecordedRequests(file="x", duration=1000.0)
    before = read_request_trace(trace(tmp_path, BURSTGPT), part)
    after = read_request_trace(trace(tmp_path, BURSTGPT.replace("472", "4721")), part)

    assert (before.inputs[0], after.inputs[0]) == (472, 4721)


CLASS = "{name: a, weight: 100 %, input_tokens: 8, output_tokens: 8}"
JOB = """
kind: serving
model: llama3.1-8b
hardware: dgx-h100
stack: vllm@0.24
workload: {WORKLOAD}
"""


@pytest.mark.parametrize(
    ("workload", "rate", "longest", "requests"),
    [
        ("{trace: requests.csv}", 2 / 60, 25_000, 3),
        ("{trace: {file: requests.csv, duration: 30 s}}", 1 / 4.314579, 505, 2),
        ("{trace: requests.csv, longest_request: 4096}", 1 / 4.314579, 4096, 2),
        ("{trace: requests.csv, output_tokens: {fixed: 10}}", 2 / 60, 20_010, 3),
    ],
)
def test_a_job_takes_lengths_and_times_of_its_trace(tmp_path, workload, rate, longest, requests):
    """The load is the recorded one, as far as the job does not say another; long requests are refused."""
    trace(tmp_path, AZURE_2023)
    (tmp_path / "job.yaml").write_text(JOB.replace("WORKLOAD", workload[1:-1]), encoding="utf-8")
    job = serving_job(tmp_path / "job.yaml")

    assert job.workload.request_rate == pytest.approx(rate, rel=1e-5)
    assert job.longest_request == longest
    assert len(request_trace_of(job).inputs) == requests
    assert job.devices_open


def test_a_trace_with_other_lengths_or_classes_contradicts_itself(tmp_path):
    """One file has the requests; classes have lengths of their own."""
    trace(tmp_path, AZURE_2023)
    wrong = {
        "trace: requests.csv, input_tokens: {trace: other.csv}": "from one trace, not several",
        f"trace: requests.csv, classes: [{CLASS}]": "one class",
        "trace: requests.csv, longest_request: 100": "admits no request",
    }
    for workload, said in wrong.items():
        (tmp_path / "job.yaml").write_text(JOB.replace("WORKLOAD", workload), encoding="utf-8")
        with pytest.raises(AutoplanError, match=said):
            serving_job(tmp_path / "job.yaml")


@pytest.mark.parametrize(("text", "title"), [(AZURE_2023, "Azure's trace"), (MOONCAKE, "Mooncake's trace")])
def test_a_published_trace_is_planned_by_one_line(tmp_path, text, title):
    """The first screen says what the trace is and how its requests come; verify knows the answer."""
    path = trace(tmp_path, text)
    words = (
        "--model",
        "llama3.1-8b",
        "--hardware",
        "dgx-h100",
        "--devices",
        "1",
        "--task",
        "serve",
        "--request-trace",
        path,
    )
    screen = run_here("plan", *words)
    saved = tmp_path / "plan.json"
    run_here("plan", *words, "--output", saved)

    assert f"requests a second; {title} of 3 requests" in screen.stdout
    assert "clients" not in screen.stdout
    assert (" repeat earlier ones" in screen.stdout.replace("\n", " ")) == (text == MOONCAKE)
    assert run_here("verify", saved).exit_code == 0
