"""How long requests may be that emitted engines admit: the job's longest, which the header explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan
from autoplan.catalog import load_serving_job
from autoplan.schema.serving.request_lengths import (
    LogNormal,
    LogNormalLength,
    ServingWorkload,
    UniformLength,
)

FLAGS = {"vllm": "--max-model-len", "sglang": "--context-length", "tensorrt-llm": "--max_seq_len"}
TAIL = LogNormalLength(lognormal=LogNormal(median=100, p99=900))
WORKLOADS = {
    "the job gives means": {"input_tokens": 512, "output_tokens": 128},
    "99 % of the lengths": {"input_tokens": TAIL, "output_tokens": UniformLength(uniform=(1, 64))},
    "the longest of the job": {"input_tokens": 512, "output_tokens": 128, "longest_request": 4096},
    "longer ones refused (workload": {
        "input_tokens": UniformLength(uniform=(1, 700)),
        "output_tokens": UniformLength(uniform=(1, 64)),
    },
}


@pytest.mark.parametrize("engine", FLAGS)
@pytest.mark.parametrize("words", WORKLOADS)
def test_engines_admit_the_longest_request_of_the_job(engine, words):
    """The argument is what the workload says is its longest request, and the header says whence."""
    job = load_serving_job("llama3.1-8b-1x-h100")
    stack = autoplan.catalog.entries.engine(engine, job.source.folder)
    job = replace(job, engine=stack, workload=ServingWorkload(**WORKLOADS[words], concurrency=4))
    plan = autoplan.evaluate(job, "tp=1,seqs=32")
    emission = autoplan.emit(plan, engine, job=job)
    text = "\n".join(file.text for file in emission.files)
    (line,) = {line for line in text.splitlines() if "are admitted" in line}

    longest = job.workload.longest_tokens
    assert f"{longest:,} tokens are admitted" in line
    assert words in line
    assert f"{FLAGS[engine]} {longest}" in text.replace("=", " ").replace("\\\n", " ")
