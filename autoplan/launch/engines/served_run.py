"""What is emitted for engines, and what is read of their commands, as values.

Checkpoints that engines load: the one of a model, and the format that the name of one says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from autoplan.catalog.model_names import published_format
from autoplan.errors import UnsupportedError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.configuration import LaunchFile, Values
from autoplan.launch.engines.arguments.engine_settings import (
    ArgumentList,
    EngineSettings,
    InexpressibleEngineError,
    PoolRole,
    WrittenArguments,
    argument_list,
    written_as,
)
from autoplan.launch.engines.arguments.sglang_arguments import sglang_options
from autoplan.launch.engines.arguments.tensorrt_llm_arguments import tensorrt_llm_options
from autoplan.launch.engines.arguments.vllm_arguments import vllm_options, vllm_v0_options
from autoplan.launch.known_models import hub_name
from autoplan.launch.target import Emission
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout, WeightFormat
from autoplan.schema.serving.request_lengths import LogNormalLength
from autoplan.schema.serving.serving_spec import ServingJob

_SIXTEEN: Final = frozenset({"bf16", "fp16"})
_WRITERS: Mapping[str, Callable[[EngineSettings, WrittenArguments], None]] = {
    "vllm": vllm_options,
    "vllm-v0": vllm_v0_options,
    "vllm-rocm": vllm_v0_options,
    "sglang": sglang_options,
    "tensorrt-llm": tensorrt_llm_options,
}


@dataclass(frozen=True, slots=True)
class EngineGroupToServe:
    """Engines that are alike, as many as the replicas of their layout; ``role`` of one of two pools."""

    layout: EngineLayout
    role: PoolRole | None = None


@dataclass(frozen=True, slots=True)
class ServedRun:
    """Engines to start: their job, what the user names besides, and the lines of the header comment.

    ``checkpoint`` takes the place of the model's own, ``draft_checkpoint`` is that of a draft model or of the
    heads that draft, ``image`` the container where the target has containers.
    """

    job: ServingJob
    groups: tuple[EngineGroupToServe, ...]
    header: tuple[str, ...] = ()
    checkpoint: str | None = None
    draft_checkpoint: str | None = None
    image: str = ""

    @property
    def known(self) -> ArgumentList:
        """The arguments of the job's engine; raises UnsupportedError for one that has none here."""
        engine = self.job.engine
        if engine.name not in _WRITERS:
            names = ", ".join(_WRITERS)
            raise UnsupportedError(f"{engine.title} cannot be emitted: engines are {names}")
        return argument_list(written_as(engine.name, engine.version), engine.version)


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """What engines are emitted for: an engine's own command, or what runs its containers.

    ``engines`` are those that it starts. ``version`` is its own, where it is not the engine's; ``check`` says
    how names were checked.
    """

    name: str
    title: str
    engines: tuple[str, ...]
    emit: Callable[[ServedRun], Emission]
    version: str = ""
    check: str = "names checked"


@dataclass(frozen=True, slots=True)
class EngineConfiguration:
    """What serve commands or their file say.

    ``layout`` has the engine's own defaults where they leave something open. ``job`` has the keys of a job
    file as far as they are known. ``defaults`` are the fields that took the engine's default, ``unspecified``
    those that stay open.
    """

    engine: str
    file: str
    layout: EngineLayout | DisaggregatedLayout
    job: Mapping[str, Any]
    values: Values
    checkpoint: str | None = None
    defaults: tuple[str, ...] = ()
    unspecified: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: Settings of the engine that are no part of a layout, by key of ``search``.
    search: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineFile:
    """A file to read; ``sibling_text`` returns the text of a file that it names, or None."""

    launch: LaunchFile
    sibling_text: Callable[[str], str | None] = field(default=lambda _: None)


def admitted_requests(job: ServingJob) -> str:
    """Return in words how long requests may be that the engines admit, and where that number is from."""
    workload, most = job.workload, f"requests of up to {job.longest_request:,} tokens are admitted"
    if workload.longest_request is not None:
        return f"{most}, the longest of the job"
    lengths = [x for kind in (workload, *workload.classes) for x in (kind.input_tokens, kind.output_tokens)]
    why = ""
    if any(isinstance(length, int) for length in lengths):
        why = ": the job gives means of their lengths"
    elif any(isinstance(length, LogNormalLength) for length in lengths):
        why = ": 99 % of the lengths that the job gives"
    return f"{most}, and longer ones refused{why} (workload.longest_request says otherwise)"


def written_arguments(run: ServedRun, group: EngineGroupToServe) -> tuple[EngineSettings, WrittenArguments]:
    """Return settings and arguments of one engine; raises InexpressibleEngineError for what it has not."""
    settings = _settings(run, group)
    written = WrittenArguments(run.known, group.layout)
    _WRITERS[run.known.engine](settings, written)
    return settings, written


def _settings(run: ServedRun, group: EngineGroupToServe) -> EngineSettings:
    job, layout = run.job, group.layout
    checkpoint, converted = _checkpoint(run, layout.weights)
    per_node = job.cluster.node.devices
    nodes = -(-layout.devices_per_engine // per_node)
    if layout.devices_per_engine % nodes:
        raise InexpressibleEngineError(
            f"engines of {layout.devices_per_engine} devices do not fill {nodes} nodes of {per_node} evenly"
        )
    speculation = job.speculation
    budget = job.engine.facts.budget.utilization
    return EngineSettings(
        checkpoint=checkpoint,
        layout=layout,
        experts=job.model.moe is not None,
        converted=converted,
        longest_request=job.longest_request,
        utilization=job.search.gpu_memory_utilization or (budget.value if budget is not None else None),
        block_tokens=job.search.block_tokens,
        cache_tokens=_cache_tokens(job, group.role),
        draft_method=speculation.method if layout.spec and speculation else None,
        draft_checkpoint=_draft(run) if layout.spec else None,
        role=group.role,
        nodes=nodes,
        enforce_eager=job.search.enforce_eager,
    )


def _cache_tokens(job: ServingJob, role: PoolRole | None) -> int | None:
    """Return the tokens of a cache that the job says; raises InexpressibleEngineError where none is told."""
    of_pool = getattr(job.search, role).cache_tokens if role is not None else None
    tokens: int | None = of_pool if of_pool is not None else job.search.cache_tokens
    if tokens is not None and job.engine.name != "sglang":
        raise InexpressibleEngineError(
            f"search.cache_tokens: {job.engine.title} is not told how many tokens a cache keeps"
        )
    return tokens


def _checkpoint(run: ServedRun, weights: WeightFormat) -> tuple[str, WeightFormat | None]:
    if run.checkpoint is None:
        return checkpoint_of(run.job.model, weights)
    named = format_named(run.checkpoint)
    if named in _SIXTEEN and weights in CONVERTED:
        return run.checkpoint, weights
    same = named == weights or {named, weights} in ({"fp8", "fp8-block"}, _SIXTEEN)
    if named is not None and not same:
        raise UnsupportedError(
            f"the name of {run.checkpoint} says {named}, and the layout has weights={weights}"
        )
    return run.checkpoint, None


def _draft(run: ServedRun) -> str | None:
    """Return what drafts; raises UnsupportedError where a method needs a checkpoint and none is named."""
    speculation = run.job.speculation
    if speculation is None or speculation.method in {"ngram", "mtp"}:
        return None
    if run.draft_checkpoint is None:
        what = (
            "the draft model" if speculation.method == "draft_model" else f"the heads of {speculation.method}"
        )
        raise UnsupportedError(f"{what} is a checkpoint of its own: name it with --draft-checkpoint")
    return run.draft_checkpoint


#: Formats that an engine makes of 16-bit weights while loading.
CONVERTED: Final = frozenset({"fp8", "fp8-block"})
#: Parts of names that say a format, the more exact ones first.
_FORMATS: Final[Mapping[str, WeightFormat]] = interface("names").data["formats"]
#: Publishers whose checkpoints in fp8 have scales of blocks of 128 x 128 (their config.json).
_BLOCKS: Final = frozenset({"qwen", "deepseek-ai", "zai-org", "moonshotai"})


def checkpoint_of(model: ModelSpec, weights: WeightFormat) -> tuple[str, WeightFormat | None]:
    """Return the checkpoint of ``model``, and the format that the engine makes of it while loading.

    Raises UnsupportedError where the model has no name on a hub, or none that ``weights`` can be made of.
    """
    name, published = hub_name(model), published_format(model.name)
    if name is None:
        raise UnsupportedError(f"no checkpoint of {model.name} is known: name one with --checkpoint")
    if weights == published or {weights, published} <= {"bf16", "fp16"}:
        return name, None
    if published == "bf16" and weights in CONVERTED:
        return name, weights
    raise UnsupportedError(
        f"weights={weights} are those of a checkpoint, and {name} has {published}: name one with --checkpoint"
    )


def format_named(checkpoint: str) -> WeightFormat | None:
    """Return the format that the name of a checkpoint says.

    >>> [format_named(x) for x in ("nvidia/DeepSeek-R1-FP4", "Qwen/Qwen3-32B-FP8", "meta-llama/Llama-3.1-8B")]
    ['nvfp4', 'fp8-block', None]
    """
    publisher, _, name = checkpoint.lower().rpartition("/")
    for part, written in _FORMATS.items():
        if re.search(rf"(?:^|[-_.])(?:{part})(?:[-_.]|$)", name):
            return "fp8-block" if written == "fp8" and publisher in _BLOCKS else written
    return None
