"""Classes of requests in a job file: weights and rates, and what contradicts itself."""

from pathlib import Path

import pytest

from autoplan.catalog.serving_jobs import serving_job_of_text
from autoplan.errors import SpecError
from autoplan.schema.serving.serving_spec import class_sets, job_of_classes, share_of_classes

JOB = """kind: serving
model: llama3.1-8b
hardware: dgx-h100
stack: vllm@0.24
workload:
{workload}
"""
CHAT = "{name: chat, input_tokens: 256, output_tokens: 128, MORE}"
RAG = "{name: rag, input_tokens: 9000, output_tokens: 200, MORE}"


def job_of(*classes, **keys):
    """Return the job of lines of classes and further keys of the workload."""
    lines = [f"  {key}: {value}" for key, value in keys.items()]
    lines += ["  classes:", *(f"    - {known}" for known in classes)]
    return serving_job_of_text(
        JOB.replace("{workload}", "\n".join(lines)), "job.yaml", name="job", base=Path()
    )


def with_rates(chat="request_rate: 6/s", rag="request_rate: 2/s"):
    """Return the two classes with what is said of each."""
    return CHAT.replace("MORE", chat), RAG.replace("MORE", rag)


def test_rates_of_classes_add_up_to_the_load():
    """A rate of each class is a share and a rate of all; lengths of the workload are not needed."""
    workload = job_of(*with_rates()).workload

    assert workload.request_rate == 8.0
    assert [known.weight for known in workload.classes] == [0.75, 0.25]
    assert workload.longest_tokens == 11040  # a fifth more than 9,000 and 200


def test_engines_of_one_class_admit_its_longest_request():
    """They get its part of the rate, and need not hold the longer requests of others."""
    job = job_of(*with_rates())
    chat = job_of_classes(job, ("chat",))

    assert chat.workload.request_rate == 6.0
    assert chat.longest_request == 460  # 256 + 51 and 128 + 25
    assert share_of_classes(job, ("rag",)) == 0.25
    assert class_sets(job) == (("chat",), ("rag",))
    assert job_of_classes(job, ("chat", "rag")) is job


def test_classes_of_a_closed_loop_share_all_engines():
    """Clients have requests of all classes, so that no engine is for one alone."""
    job = job_of(*with_rates("weight: 50 %", "weight: 50 %"), concurrency=16)

    assert class_sets(job) == ()


@pytest.mark.parametrize(
    ("chat", "rag", "keys", "line", "path", "words"),
    [
        ("weight: 50 %", "request_rate: 2/s", {}, 5, "workload", "give all of them the same key"),
        ("request_rate: 6/s", "request_rate: 2/s", {"request_rate": "8/s"}, 5, "workload", "leave"),
        ("weight: 50 %", "weight: 20 %", {}, 5, "workload", "add up to 70 %"),
        ("weight: 1, request_rate: 1/s", "request_rate: 1/s", {}, 7, "classes[0].weight", "unit"),
        ("limits: {goodput: 90 %}", "weight: 50 %", {}, 7, "classes[0].limits", "without one every request"),
        (
            "weight: 50 %",
            "weight: 50 %, limits: {time_to_first_token: {p90: 9 s}, request_latency: {p90: 5 s}}",
            {},
            8,
            "classes[1].limits",
            "contradict each other",
        ),
        (
            "weight: 50 %, limits: {time_to_first_token: {p50: 2 s, p99: 1 s}}",
            "weight: 50 %",
            {},
            7,
            "classes[0].limits.time_to_first_token",
            "makes that of p50 idle",
        ),
        ("weight: 50 %, limits: {devices: 4}", "weight: 50 %", {}, 7, "classes[0].limits.devices", "goodput"),
        (
            "weight: 50 %, prefix: {shared_tokens: 300}",
            "weight: 50 %",
            {},
            7,
            "classes[0]",
            "prefix.shared_tokens 300 is more than the longest prompt",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_where_it_stands(chat, rag, keys, line, path, words):
    """The error has file, line and path, and says what would be right."""
    with pytest.raises(SpecError) as caught:
        job_of(*with_rates(chat, rag), **keys)

    problems = [problem for problem in caught.value.problems if path in problem.path]
    assert problems, caught.value
    assert {problem.file for problem in problems} == {"job.yaml"}
    assert any(words in problem.message for problem in problems), problems
    assert any(problem.line is not None and abs(problem.line - line) <= 1 for problem in problems), problems
