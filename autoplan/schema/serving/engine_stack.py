"""The file of an inference engine: what each version keeps in memory and how it schedules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from autoplan.errors import UnsupportedError
from autoplan.schema.base import (
    Bytes,
    Frozen,
    Sourced,
    SourcedBytes,
    SourcedCount,
    SourcedSeconds,
    SourcedShare,
)
from autoplan.schema.hardware import sourced_numbers

#: Formats of weights whose products quantize what they read.
FusedFormat = Literal["fp8", "nvfp4"]


class SourcedRatio(Sourced):
    """A sourced number without unit."""

    value: float = Field(ge=0, le=1e6, strict=False, description="a number")


class BudgetFacts(Frozen):
    """How an engine decides what its cache may take."""

    rule: Literal["share of the device", "static share", "share of what is free"] = Field(
        description="share of the device: weights, cache and all else within a share of it (vLLM);"
        " static share: weights and cache within one (SGLang); share of what is free: the cache within a"
        " share of what a profile run leaves (TensorRT-LLM)"
    )
    utilization: SourcedShare | None = Field(
        default=None, description="the share by default; left out: it follows from `reserve`"
    )


class CacheFacts(Frozen):
    """The cache of keys and values."""

    block_tokens: SourcedCount = Field(description="tokens of a block")
    mla_block_tokens: SourcedCount = Field(description="tokens of a block with latent attention")
    hybrid: Literal["groups", "ratio", "windows"] = Field(
        description="of layers with a window: groups: blocks of equal size for groups of layers (vLLM);"
        " ratio: a pool of their own with a share of the tokens (SGLang); windows: the tokens of the window"
        " alone (TensorRT-LLM)"
    )
    group_ratio: SourcedRatio | None = Field(
        default=None,
        description="most layers of the commoner kind over those of the rarer for one group of each",
    )
    window_tokens: SourcedShare | None = Field(
        default=None, description="tokens that layers with a window can keep over those of other layers"
    )
    fp8_ds_mla_bytes: SourcedBytes = Field(description="bytes of a token and layer in the format fp8_ds_mla")


class SamplerFacts(Frozen):
    """The sampler's peak in the profile run."""

    copies: SourcedRatio = Field(
        description="tensors of rows x vocabulary in fp32 that are alive at the peak of sampling"
    )
    flashinfer_copies: SourcedRatio | None = Field(
        default=None, description="the same where FlashInfer samples; left out: it takes no less"
    )
    row_per_multiprocessor: bool = Field(
        default=False, description="one more row of the vocabulary in fp32 for each multiprocessor"
    )


class ForwardFacts(Frozen):
    """The forward pass's peak in the profile run."""

    hidden_copies: SourcedRatio = Field(
        description="16-bit tensors of tokens x hidden size alive while the sampler runs"
    )
    gemm_workspace: SourcedBytes = Field(description="workspace of matrix products")
    gemm_workspace_hopper: SourcedBytes = Field(description="the same on Hopper and later")


class OverheadFacts(Frozen):
    """Memory outside of the allocator: context, modules, communicators."""

    base: SourcedBytes = Field(description="on one device alone")
    communicators: SourcedBytes = Field(description="in addition with several devices")


class GraphFacts(Frozen):
    """CUDA graphs of vLLM's size list."""

    bytes_each: SourcedBytes = Field(description="memory of one captured size")
    counted: bool = Field(
        description="whether they are taken off the cache; else they lie outside of the share"
    )
    largest: SourcedCount = Field(description="largest batch that is captured")
    largest_datacenter_blackwell: SourcedCount = Field(description="the same on B200, GB200, B300, GB300")


class ReserveFacts(Frozen):
    """What SGLang leaves free of weights and cache."""

    metadata: SourcedBytes = Field(description="for the metadata of attention and slack")
    per_chunk_token: SourcedBytes = Field(description="for activations, for each token of a chunk of prefill")
    least_chunk: SourcedCount = Field(description="tokens of a chunk that are reserved for at least")
    per_device: SourcedBytes = Field(description="for each device of an engine")
    per_graph_request: SourcedBytes = Field(description="for each request of the largest captured batch")
    per_attention_group: SourcedBytes = Field(
        description="for each request of the largest captured batch and group of data-parallel attention"
    )
    many_graph_requests: SourcedCount = Field(description="largest captured batch above which there is more")
    per_attention_group_many: SourcedBytes = Field(
        description="in addition above that, as `per_attention_group`"
    )
    prefill_graphs: bool = Field(description="whether prefill is captured in graphs by default")
    per_prefill_graph: SourcedBytes = Field(description="for each captured chunk of prefill")
    mla_prefill_graphs: SourcedBytes = Field(description="instead with latent attention")
    least: SourcedBytes = Field(description="least reserve of a large device")
    large_device: SourcedBytes = Field(description="memory above which a device is large")
    context: SourcedBytes = Field(
        description="memory of context and communicators, taken before the share is"
    )


class PaddingFacts(Frozen):
    """Multiples that sizes are padded to."""

    vocabulary: SourcedCount = Field(description="rows of the embedding and of the output projection")
    mxfp4_hidden: SourcedCount = Field(description="hidden size within experts in mxfp4")
    mxfp4_ffn: SourcedCount = Field(description="inner width of a device's part of an expert in mxfp4")


#: Largest size of a step that a file may state.
_MOST_TOKENS: Final = 10_000_000


class DefaultTier(Frozen):
    """Default sizes of a step on devices of some memory."""

    memory_from: Bytes = Field(description="least memory of a device; the last tier that fits holds")
    except_devices: tuple[str, ...] = Field(
        default=(), description="devices whose names begin so stay in the tier before"
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=_MOST_TOKENS)] = Field(description="most requests of a step")
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=_MOST_TOKENS)] = Field(
        description="most tokens of a step, or of a chunk"
    )


class GraphTier(Frozen):
    """Largest captured batch of decodes on devices of some memory (SGLang)."""

    memory_from: Bytes = Field(description="least memory of a device; the last tier that fits holds")
    narrow: Annotated[int, Field(ge=1, le=_MOST_TOKENS)] = Field(
        description="largest batch below tensor parallelism 4"
    )
    wide: Annotated[int, Field(ge=1, le=_MOST_TOKENS)] = Field(description="the same from 4 on")


class SchedulerFacts(Frozen):
    """How an engine fills a step."""

    prefill: Literal["mixed", "first"] = Field(
        description="mixed: chunks of prefill share a step with decodes; first: prefill has steps of its own"
    )
    admission: Literal["preempt", "reserve", "estimate"] = Field(
        description="preempt: a request is admitted while its prompt fits, and preempted where the cache runs"
        " out; reserve: only where input and output fit; estimate: by a share of the output that adapts"
    )
    asynchronous: bool = Field(description="whether the host prepares a step while the one before runs")
    chunked: bool = Field(default=True, description="whether a prompt may be divided over steps by default")
    prefix_caching: bool = Field(
        default=True, description="whether prompts that begin like earlier ones find their cache by default"
    )
    shares_tokens: bool = Field(
        default=False,
        description="whether attention data-parallel ranks share the default tokens of a step, each its part",
    )
    splits_layers: Literal["middle", "last", "first"] = Field(
        description="stages that hold the layers left over: those before the last, the last, or the first"
    )


class HandoffFacts(Frozen):
    """How a request goes from an engine that prefills to one that decodes."""

    sends: Literal["whole prompts", "chunks"] = Field(
        description="when keys and values are sent: whole prompts: all of them after prefill; chunks: each"
        " chunk of a prompt while the next one is computed"
    )
    first_token: Literal["prefill", "decode"] = Field(
        description="whose token is the first of an answer: prefill: that of the prefill engine, sent along;"
        " decode: the decode engine computes the last token of the prompt again"
    )
    seconds: SourcedSeconds | None = Field(
        default=None,
        description="time of a request between both engines besides its cache: router, handshake, polling;"
        " left out: 0",
    )


class StepFacts(Frozen):
    """How long a step takes beside its kernels: the host's part, and what is fitted of a version."""

    kernels: str = Field(min_length=2, description="engine whose measured kernels stand for its own")
    scale: SourcedRatio = Field(
        description="time of a step on the device over that of its kernels one after the other: gaps between"
        " kernels, kernels of other versions"
    )
    host: SourcedSeconds = Field(description="host time of a step: scheduling, inputs, outputs")
    host_per_request: SourcedSeconds = Field(description="in addition for each request of a step")
    front_end: SourcedSeconds = Field(
        description="time of a request outside of the engine: HTTP, processes, client"
    )
    front_end_per_token: SourcedSeconds = Field(
        description="in addition for each token of its prompt: tokenizer"
    )
    front_end_busy: SourcedSeconds | None = Field(
        default=None,
        description="time of it that no other request can have: one over the requests a second that one front"
        " end holds; left out: 0",
    )
    front_end_busy_per_token: SourcedSeconds | None = Field(
        default=None,
        description="the same for each token of its prompt: a tokenizer in one thread; left out: 0",
    )
    graphs: Literal["all", "decodes", "none"] = Field(
        description="steps that run as captured CUDA graphs: all; those of decodes alone; none"
    )
    eager_kernel: SourcedSeconds = Field(
        description="host time to launch one kernel outside of graphs: where kernels are shorter they wait"
    )
    pads: bool = Field(description="whether a batch of decodes is padded to the next captured size")
    largest_graph: SourcedCount = Field(description="largest batch of decodes that is captured")
    fuses_quantization: tuple[FusedFormat, ...] = Field(
        default=(),
        description="formats of weights whose inputs norms and activations quantize, not a kernel of its own",
    )
    fuses_norms: bool = Field(
        default=False,
        description="whether all-reduces of a tensor-parallel layer add the residual and norm the sum",
    )
    interval: SourcedRatio | None = Field(
        default=None,
        description="width of 90 % intervals over that of runs elsewhere, where `autoplan calibrate` fitted"
        " the numbers to runs of this machine; left out: 1",
    )
    decode_attention: Literal["grouped", "by head"] = Field(
        default="grouped",
        description="whether attention of decodes reads the keys of a group of query heads once, or for each",
    )
    padded_rows: SourcedCount | None = Field(
        default=None,
        description="rows that every expert of a device computes besides its own, in fp8 with scales of"
        " blocks: tiles that no token fills; left out: 0",
    )
    query_tile: SourcedCount | None = Field(
        default=None,
        description="queries that attention computes at once in steps with prompts, in FlashAttention 2,"
        " of which a decode fills one; left out: decodes beside prompts take as long as alone",
    )
    sinks_share: SourcedRatio | None = Field(
        default=None,
        description="rate of attention of prompts in models with attention sinks over that of others, on"
        " devices with FlashAttention 2, where it runs in Triton; left out: 1",
    )
    all_reduce: Literal["custom", "nccl"] = Field(description="whose all-reduce small messages take")
    triton_experts: str | None = Field(
        default=None,
        description="engine whose measured experts in mxfp4 stand for its own where a device has no products"
        " in 4 bits, since both run OpenAI's Triton kernels there; left out: `kernels`",
    )
    triton_on: tuple[str, ...] = Field(
        default=(),
        max_length=8,
        description="architectures of devices on which experts in mxfp4 run in OpenAI's Triton kernels, each"
        " launched from Python; left out: on none",
    )


Tiers = Annotated[tuple[DefaultTier, ...], Field(min_length=1)]


class EngineFacts(Frozen):
    """Everything known of one version."""

    budget: BudgetFacts = Field(description="how it decides what its cache may take")
    cache: CacheFacts = Field(description="the cache of keys and values")
    scheduler: SchedulerFacts = Field(description="how it fills a step")
    padding: PaddingFacts = Field(description="multiples that sizes are padded to")
    overhead: OverheadFacts = Field(description="memory outside of the allocator")
    defaults: Tiers = Field(description="default sizes of a step, by memory of a device")
    sampler: SamplerFacts | None = Field(default=None, description="the sampler's peak, where it is profiled")
    forward: ForwardFacts = Field(description="the forward pass's peak")
    graphs: GraphFacts | None = Field(default=None, description="CUDA graphs, where sizes are listed")
    reserve: ReserveFacts | None = Field(default=None, description="what is left free, where that is a rule")
    graph_tiers: tuple[GraphTier, ...] = Field(
        default=(), description="largest captured batch of decodes, by memory of a device"
    )
    step: StepFacts | None = Field(default=None, description="time of a step; left out: not known")
    eager_launch: SourcedSeconds | None = Field(
        default=None,
        description="host time to launch one kernel of an engine that neither compiles nor captures"
        " (search.enforce_eager); left out: step.eager_kernel",
    )
    handoff: HandoffFacts | None = Field(
        default=None, description="between pools for prefill and decode; left out: it has none"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        static = self.budget.rule == "static share"
        if static and (self.reserve is None or not self.graph_tiers):
            raise ValueError("rule: static share needs reserve and graph_tiers")
        if not static and self.budget.utilization is None:
            raise ValueError("budget.utilization is missing")
        if self.defaults[0].memory_from > 0:
            raise ValueError("the first tier of defaults must begin at 0 B")
        return self


class EngineChanges(Frozen):
    """What differs in a version from the one before it."""

    note: str | None = Field(default=None, description="what was checked")
    budget: BudgetFacts | None = Field(default=None, description="as in `facts`")
    cache: CacheFacts | None = Field(default=None, description="as in `facts`")
    scheduler: SchedulerFacts | None = Field(default=None, description="as in `facts`")
    padding: PaddingFacts | None = Field(default=None, description="as in `facts`")
    overhead: OverheadFacts | None = Field(default=None, description="as in `facts`")
    defaults: Tiers | None = Field(default=None, description="as in `facts`")
    sampler: SamplerFacts | None = Field(default=None, description="as in `facts`")
    forward: ForwardFacts | None = Field(default=None, description="as in `facts`")
    graphs: GraphFacts | None = Field(default=None, description="as in `facts`")
    reserve: ReserveFacts | None = Field(default=None, description="as in `facts`")
    graph_tiers: tuple[GraphTier, ...] | None = Field(default=None, description="as in `facts`")
    step: StepFacts | None = Field(default=None, description="as in `facts`")
    handoff: HandoffFacts | None = Field(default=None, description="as in `facts`")


class EngineSpec(Frozen):
    """An inference engine: the facts of its oldest known version, and what later ones change."""

    schema_version: Literal[1] = Field(alias="schema", description="version of this file format")
    kind: Literal["engine"] = Field(description="says that this file describes an inference engine")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="the name in job files; the file's too")
    title: str = Field(min_length=2, description="the name as its makers write it")
    note: str | None = Field(default=None, description="what a reader should know about the entry")
    sources: dict[str, str] = Field(
        description="the sources of the numbers below: a key and the source in full"
    )
    facts: EngineFacts = Field(description="what holds in the oldest known version")
    versions: Annotated[dict[str, EngineChanges], Field(min_length=1)] = Field(
        description="known versions, the oldest first, each with what differs from the one before"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = [f"{v!r} is not a version such as 0.19" for v in self.versions if not _VERSION.fullmatch(v)]
        if not wrong and sorted(self.versions, key=_order) != list(self.versions):
            wrong.append("versions must be in order, the oldest first")
        wrong += [
            f"{where} names the source {number.source!r}, which `sources` lacks"
            for where, number in _numbers(self)
            if number.source not in self.sources
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


@dataclass(frozen=True, slots=True)
class Engine:
    """One version of an engine."""

    name: str
    title: str
    version: str
    facts: EngineFacts
    sources: Mapping[str, str]
    #: Whether the job names no version: this is then the newest known one.
    version_assumed: bool = False

    def __str__(self) -> str:
        """Return the engine as a job file names it."""
        return f"{self.name}@{self.version}"


_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}(?:\.?(?:post|rc)[0-9]+)?")


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version)))


def _numbers(spec: EngineSpec) -> Iterator[tuple[str, Sourced]]:
    yield from sourced_numbers(spec.facts, "facts")
    for version, changes in spec.versions.items():
        yield from sourced_numbers(changes, f"versions.{version}")


def engine_at(spec: EngineSpec, version: str | None) -> Engine:
    """Return a known version of an engine; None is the newest.

    A version stands for its releases, such as 0.19 for 0.19.1. Raises UnsupportedError, with the known ones,
    for any other.
    """
    versions = list(spec.versions)
    engine = versions[-1] if version is None else _matching(version, versions)
    if engine is None:
        near = difflib.get_close_matches(version or "", versions, 1, 0.8)
        hint = f"did you mean {spec.name}@{near[0]}? " if near else ""
        raise UnsupportedError(
            f"{spec.title} {version!r} is not known: {hint}known versions are {', '.join(versions)}"
        )
    merged: dict[str, Any] = dict(spec.facts.__dict__)
    for name in versions[: versions.index(engine) + 1]:
        merged |= {key: new for key, new in _changes(spec.versions[name]).items() if new is not None}
    facts = EngineFacts.model_validate(merged)
    return Engine(spec.name, spec.title, engine, facts, spec.sources, version_assumed=version is None)


def _changes(changes: BaseModel) -> dict[str, Any]:
    return {key: value for key, value in changes.__dict__.items() if key != "note"}


def _matching(version: str, versions: list[str]) -> str | None:
    """Return the known version that ``version`` is, or that it is a release of; the longest such."""
    version = version.removeprefix("v")
    same = [name for name in versions if version == name or version.startswith((f"{name}.", f"{name}rc"))]
    return max(same, key=len, default=None)
