"""Serving jobs whose answers are tampered with."""

from tests.support.serving_jobs import serving_job

__all__ = ["JOBS", "job_of"]

SEARCH = {"max_num_seqs": (16, 64), "max_num_batched_tokens": 2048, "pipeline_parallel": 1}
LOAD = {"input_tokens": 512, "output_tokens": 64, "concurrency": 24}
JOBS = {
    "two devices": {"devices": 2, "limits": {"time_per_output_token": 0.012, "goodput": 0.9}},
    "infeasible": {"devices": 2, "limits": {"time_per_output_token": 0.001, "request_latency": 60.0}},
    "several": {"devices": (1, 2), "limits": {}},
    "fewest": {"devices": None, "limits": {}},
    "sixteen devices": {"devices": 16, "limits": {}, "search": {**SEARCH, "tensor_parallel": (1, 2)}},
}


def job_of(kind):
    """Return the job of a kind."""
    settings = {"search": SEARCH, **JOBS[kind]}
    load = {**LOAD, "concurrency": 300} if kind == "sixteen devices" else LOAD
    if kind == "fewest":
        load = {"input_tokens": 512, "output_tokens": 64, "request_rate": 100.0}
    return serving_job("llama3.1-8b", stack="vllm@0.24", workload=load, **settings)
