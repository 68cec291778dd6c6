"""Jobs in the terms of the page's controls: names, words of fixed lists, bounded numbers."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from autoplan.schema.base import Frozen
from autoplan.schema.job import Optimizer
from autoplan.schema.precision import Precision

__all__ = [
    "LARGEST_NUMBERS",
    "Drafting",
    "KvFormats",
    "LimitOn",
    "Load",
    "Name",
    "Offloading",
    "Question",
    "ServingJobQuestion",
    "ServingTrade",
    "Trade",
    "TrainingQuestion",
    "WeightFormats",
]

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


class _JobQuestion(Frozen):
    """What jobs of both kinds have."""

    model: Name = Field(description="a model of the catalogue")
    hardware: Name = Field(description="a node or a cluster of the catalogue")
    devices: int = Field(ge=1, le=LARGEST_NUMBERS["devices"], description="devices to use")
    headroom_percent: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["headroom_percent"],
        description="memory to leave free [%]",
    )


class TrainingQuestion(_JobQuestion):
    """A training job."""

    kind: Literal["training"] = Field(description="what the job does")
    sequence_length: int = Field(
        ge=1, le=LARGEST_NUMBERS["sequence_length"], description="tokens of a sequence"
    )
    global_batch_size: int = Field(
        ge=1, le=LARGEST_NUMBERS["global_batch_size"], description="sequences of an optimizer step"
    )
    precision: Precision = Field(default="bf16", description="number format of GEMMs")
    optimizer: Optimizer = Field(default="adamw", description="optimizer")
    stack: Annotated[str, Field(max_length=200)] = Field(
        default="", description="a stack of the catalogue; empty: the usual one of the hardware"
    )
    adapter_rank: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["adapter_rank"],
        description="rank of adapters; 0: none",
    )
    offload: Offloading = Field(default="none", description="states that may be offloaded to host memory")
    objectives: Trade = Field(default="step_time+peak_memory", description="what the front trades")


class ServingJobQuestion(_JobQuestion):
    """A serving job."""

    kind: Literal["serving"] = Field(description="what the job does")
    engine: Name = Field(description="an engine of the catalogue with its version, such as vllm@0.24")
    input_tokens: int = Field(ge=1, le=LARGEST_NUMBERS["input_tokens"], description="tokens of a prompt")
    output_tokens: int = Field(ge=1, le=LARGEST_NUMBERS["output_tokens"], description="tokens of an answer")
    longest_request: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["longest_request"],
        description="input and output that must be admitted; 0: those of a request",
    )
    load: Load = Field(
        default="clients",
        description="clients: each with one request at a time; requests: so many a minute; maximum: as many"
        " as engines take",
    )
    clients: int = Field(default=64, ge=1, le=LARGEST_NUMBERS["clients"], description="clients at once")
    requests_per_minute: int = Field(
        default=60,
        ge=1,
        le=LARGEST_NUMBERS["requests_per_minute"],
        description="requests a minute",
    )
    shared_tokens: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["shared_tokens"],
        description="tokens that all prompts begin with",
    )
    hit_percent: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["hit_percent"],
        description="share of the tokens of prompts that a prefix cache has already [%]",
    )
    other_percent: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["other_percent"],
        description="share of a second class of requests [%]; 0: there is one class",
    )
    other_input_tokens: int = Field(
        default=8192,
        ge=1,
        le=LARGEST_NUMBERS["other_input_tokens"],
        description="tokens of a prompt of the second class",
    )
    other_output_tokens: int = Field(
        default=256,
        ge=1,
        le=LARGEST_NUMBERS["other_output_tokens"],
        description="tokens of an answer of the second class",
    )
    other_first_token_ms: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["other_first_token_ms"],
        description="longest time to the first token of the second class [ms]; 0: any",
    )
    drafting: Drafting = Field(default="none", description="what drafts tokens, if anything does")
    drafts: int = Field(
        default=3,
        ge=1,
        le=LARGEST_NUMBERS["drafts"],
        description="drafts of a step, where drafting is better than none",
    )
    acceptance_percent: int = Field(
        default=70,
        ge=0,
        le=LARGEST_NUMBERS["acceptance_percent"],
        description="share of drafts that the model accepts [%]",
    )
    weights: WeightFormats = Field(default="bf16", description="formats of weights that may be chosen")
    kv_cache: KvFormats = Field(default="auto", description="formats of keys and values that may be chosen")
    first_token_ms: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["first_token_ms"],
        description="longest time to the first token [ms]; 0: any",
    )
    token_ms: int = Field(
        default=0,
        ge=0,
        le=LARGEST_NUMBERS["token_ms"],
        description="longest time for each further token [ms]; 0: any",
    )
    limit_on: LimitOn = Field(default="mean", description="mean or percentile that the two limits are on")
    trade: ServingTrade = Field(
        default="throughput_per_device+time_per_output_token", description="what the front trades"
    )


Question = TrainingQuestion | ServingJobQuestion
