"""Jobs in the terms of the page's controls: names, words of fixed lists, bounded numbers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from autoplan.schema.base import Frozen
from autoplan.schema.precision import Optimizer, Precision

#: Largest numbers of a question: beyond any machine that the catalogue knows, and answered within a deadline.
LARGEST_NUMBERS: Final = {
    "devices": 16_384,
    "sequence_length": 4_194_304,
    "global_batch_size": 1_000_000,
    "headroom_percent": 90,
    "adapter_rank": 1_024,
    "input_tokens": 4_194_304,
    "output_tokens": 4_194_304,
    "longest_request": 4_194_304,
    "clients": 1_000_000,
    "requests_per_minute": 1_000_000,
    "first_token_ms": 3_600_000,
    "token_ms": 3_600_000,
    "shared_tokens": 4_194_304,
    "hit_percent": 99,
    "other_percent": 99,
    "other_input_tokens": 4_194_304,
    "other_output_tokens": 4_194_304,
    "other_first_token_ms": 3_600_000,
    "drafts": 16,
    "acceptance_percent": 100,
}

Name = Annotated[str, Field(min_length=1, max_length=200)]
Trade = Literal["step_time+peak_memory", "step_time", "peak_memory", "step_time+peak_memory+energy"]
Offloading = Literal["none", "none,optimizer", "none,activations", "none,optimizer,optimizer+activations"]

Load = Literal["clients", "requests", "maximum"]
LimitOn = Literal["mean", "p50", "p90", "p99"]
WeightFormats = Literal["bf16", "fp8", "bf16,fp8", "bf16,fp8,int4-awq", "int4-awq", "nvfp4", "mxfp4"]
KvFormats = Literal["auto", "fp8", "auto,fp8"]
Drafting = Literal["none", "ngram", "eagle", "eagle3", "mtp"]
ServingTrade = Literal[
    "throughput_per_device+time_per_output_token",
    "throughput_per_device+time_to_first_token",
    "throughput_per_device",
    "time_per_output_token",
    "devices",
]


def _number(name: str, description: str, default: int | None = None, *, least: int | None = None) -> Any:  # noqa: ANN401 - as Field
    """Return the field of a positive number, or of one whose default of 0 means that there is none."""
    if least is None:
        least = 0 if default == 0 else 1
    return Field(
        ... if default is None else default, ge=least, le=LARGEST_NUMBERS[name], description=description
    )


class _JobQuestion(Frozen):
    """What jobs of both kinds have."""

    model: Name = Field(description="a model of the catalogue")
    hardware: Name = Field(description="a node or a cluster of the catalogue")
    devices: int = _number("devices", "devices to use")
    headroom_percent: int = _number("headroom_percent", "memory to leave free [%]", 0)


class TrainingQuestion(_JobQuestion):
    """A training job."""

    kind: Literal["training"] = Field(description="what the job does")
    sequence_length: int = _number("sequence_length", "tokens of a sequence")
    global_batch_size: int = _number("global_batch_size", "sequences of an optimizer step")
    precision: Precision = Field(default="bf16", description="number format of GEMMs")
    optimizer: Optimizer = Field(default="adamw", description="optimizer")
    stack: Annotated[str, Field(max_length=200)] = Field(
        default="", description="a stack of the catalogue; empty: the usual one of the hardware"
    )
    adapter_rank: int = _number("adapter_rank", "rank of adapters; 0: none", 0)
    offload: Offloading = Field(default="none", description="states that may be offloaded to host memory")
    objectives: Trade = Field(default="step_time+peak_memory", description="what the front trades")


class ServingJobQuestion(_JobQuestion):
    """A serving job."""

    kind: Literal["serving"] = Field(description="what the job does")
    engine: Name = Field(description="an engine of the catalogue with its version, such as vllm@0.24")
    input_tokens: int = _number("input_tokens", "tokens of a prompt")
    output_tokens: int = _number("output_tokens", "tokens of an answer")
    longest_request: int = _number(
        "longest_request", "input and output that must be admitted; 0: those of a request", 0
    )
    load: Load = Field(
        default="clients",
        description="clients: each with one request at a time; requests: so many a minute; maximum: as many"
        " as engines take",
    )
    clients: int = _number("clients", "clients at once", 64)
    requests_per_minute: int = _number("requests_per_minute", "requests a minute", 60)
    shared_tokens: int = _number("shared_tokens", "tokens that all prompts begin with", 0)
    hit_percent: int = _number(
        "hit_percent", "share of the tokens of prompts that a prefix cache has already [%]", 0
    )
    other_percent: int = _number(
        "other_percent", "share of a second class of requests [%]; 0: there is one class", 0
    )
    other_input_tokens: int = _number("other_input_tokens", "tokens of a prompt of the second class", 8192)
    other_output_tokens: int = _number("other_output_tokens", "tokens of an answer of the second class", 256)
    other_first_token_ms: int = _number(
        "other_first_token_ms", "longest time to the first token of the second class [ms]; 0: any", 0
    )
    drafting: Drafting = Field(default="none", description="what drafts tokens, if anything does")
    drafts: int = _number("drafts", "drafts of a step, where drafting is better than none", 3)
    acceptance_percent: int = _number(
        "acceptance_percent", "share of drafts that the model accepts [%]", 70, least=0
    )
    weights: WeightFormats = Field(default="bf16", description="formats of weights that may be chosen")
    kv_cache: KvFormats = Field(default="auto", description="formats of keys and values that may be chosen")
    first_token_ms: int = _number("first_token_ms", "longest time to the first token [ms]; 0: any", 0)
    token_ms: int = _number("token_ms", "longest time for each further token [ms]; 0: any", 0)
    limit_on: LimitOn = Field(default="mean", description="mean or percentile that the two limits are on")
    trade: ServingTrade = Field(
        default="throughput_per_device+time_per_output_token", description="what the front trades"
    )


Question = TrainingQuestion | ServingJobQuestion
