"""Serving jobs of shipped entries, for tests."""

from autoplan.catalog import resolve_serving_job
from autoplan.schema.serving.serving_spec import ServingSpec

__all__ = ["GIB", "serving_job", "serving_spec"]

GIB = 2**30


def serving_spec(model="llama3-8b", hardware="dgx-h100", devices=1, stack="vllm@0.11", **more):
    """Return the spec of a job of 1,024 tokens in and out, unless told otherwise."""
    return ServingSpec.model_validate(
        {
            "kind": "serving",
            "model": model,
            "hardware": hardware,
            "devices": devices,
            "stack": stack,
            "workload": {"input_tokens": 1024, "output_tokens": 1024},
            **more,
        }
    )


def serving_job(model="llama3-8b", hardware="dgx-h100", devices=1, stack="vllm@0.11", **more):
    """Return the job of ``serving_spec``."""
    return resolve_serving_job(serving_spec(model, hardware, devices, stack, **more))
