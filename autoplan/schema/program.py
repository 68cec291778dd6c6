"""Programs: what one starts to train a model, which stack prices it, and what it can express.

A program runs a job in one or several ways, such as the Trainer of Hugging Face with DDP, FSDP2 or
DeepSpeed. What a way can express are relations between the fields of a layout, in the language of users'
rules, and lists of optimizers, precisions and other choices. Search, ``verify`` and ``emit`` read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.adapters import AdapterSpec, Base
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.kernel_spec import Name
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import Job, RuleSpec
from autoplan.schema.post_training import RLMethod
from autoplan.schema.precision import Optimizer, Precision

Task = Literal["pretrain", "fine-tune", "adapters"]
AdapterChoice = Literal["dora", "dropout", "modules", "experts", "plain-scales"]
RLChoice = RLMethod | Literal["dpo-precomputed", "kto-precomputed"]
Part = Literal[
    "geglu",
    "reglu",
    "relu",
    "silu",
    "alibi",
    "parallel block",
    "gate of attention",
    "norms behind sublayers",
    "norms of queries over all heads",
    "norm of embedding",
    "no final norm",
    "bias of head",
    "bias of MLP alone",
    "bias of attention alone",
    "LayerNorm without bias",
    "RMSNorm with bias",
    "norms of queries beside latents",
    "no bias of router",
    "capacity of experts",
    "LayerNorm",
    "learned positions",
    "MLP without a gate",
    "norms of queries",
    "norms of queries over all heads without experts",
    "latents",
    "sinks",
    "sinks off Hopper",
    "windows without sinks",
    "adapters beside experts",
]


def _adapts_beside_experts(job: Job) -> bool:
    """Return whether all linear modules of ``job`` have adapters, and stacked experts have none."""
    adapters = job.adapters
    if adapters is None or adapters.experts or job.model.moe is None:
        return False
    return adapters.targets == "all"


def _has_window(job: Job) -> bool:
    """Return whether a layer sees less than a sequence of ``job``."""
    window = job.model.sliding_window
    return window is not None and window.window < job.workload.sequence_length


#: Parts of jobs that a program may lack: in words, and whether a job has them.
_PARTS: Final[Mapping[Part, tuple[str, Callable[[Job], bool]]]] = {
    "geglu": ("activation geglu", lambda job: job.model.activation == "geglu"),
    "reglu": ("activation reglu", lambda job: job.model.activation == "reglu"),
    "relu": ("activation relu", lambda job: job.model.activation == "relu"),
    "silu": ("activation silu", lambda job: job.model.activation == "silu"),
    "alibi": ("alibi positions", lambda job: job.model.positions == "alibi"),
    "parallel block": ("attention and MLP in parallel", lambda job: job.model.parallel_block),
    "gate of attention": ("output gate of attention", lambda job: job.model.attention_output_gate),
    "norms behind sublayers": ("norms after attention and MLP", lambda job: job.model.post_norms),
    "norms of queries over all heads": (
        "norms of queries and keys over all heads",
        lambda job: job.model.qk_norm_across_heads,
    ),
    "norm of embedding": ("norm after the embedding", lambda job: job.model.embedding_norm),
    "no final norm": ("model without a final norm", lambda job: not job.model.final_norm),
    "bias of head": ("bias of the projection onto the vocabulary", lambda job: job.model.bias.head),
    "bias of MLP alone": (
        "biases of the MLP without those of attention",
        lambda job: job.model.bias.mlp and not (job.model.bias.qkv and job.model.bias.attention_output),
    ),
    "bias of attention alone": (
        "bias after attention alone",
        lambda job: job.model.bias.attention_output and not job.model.bias.mlp,
    ),
    "LayerNorm without bias": (
        "LayerNorm without a bias",
        lambda job: job.model.norm == "layernorm" and not job.model.bias.norm,
    ),
    "RMSNorm with bias": (
        "RMSNorm with a bias",
        lambda job: job.model.norm == "rmsnorm" and job.model.bias.norm,
    ),
    "norms of queries beside latents": (
        "norms of queries and keys in addition to those of latents",
        lambda job: job.model.qk_norm and job.model.mla is not None,
    ),
    "no bias of router": (
        "biases of experts without one of the router",
        lambda job: job.model.moe is not None and job.model.bias.mlp and not job.model.moe.router_bias,
    ),
    "LayerNorm": ("LayerNorm", lambda job: job.model.norm == "layernorm"),
    "learned positions": ("learned positions", lambda job: job.model.positions == "learned"),
    "MLP without a gate": ("MLP without a gate", lambda job: not job.model.gated),
    "norms of queries": ("norms of queries and keys", lambda job: job.model.qk_norm),
    "norms of queries over all heads without experts": (
        "norms of queries and keys over all heads in a dense model",
        lambda job: job.model.qk_norm_across_heads and job.model.moe is None,
    ),
    "latents": ("multi-head latent attention", lambda job: job.model.mla is not None),
    "sinks": ("attention sinks", lambda job: job.model.attention_sinks),
    "sinks off Hopper": (
        "attention sinks on devices other than Hopper, which its kernel is for",
        lambda job: job.model.attention_sinks and job.cluster.device.architecture != "hopper",
    ),
    "windows without sinks": (
        "sliding windows without attention sinks",
        lambda job: _has_window(job) and not job.model.attention_sinks,
    ),
    "adapters beside experts": (
        "adapters that leave experts out (adapters.targets: all): set adapters.experts: true",
        _adapts_beside_experts,
    ),
    "capacity of experts": (
        "capacity of experts (routing.capacity_factor)",
        lambda job: job.routing.capacity_factor is not None,
    ),
}


class ProgramRule(RuleSpec):
    """A relation of the layouts that a program can express, of any job or of those that choose something."""

    choices: tuple[str, ...] = Field(
        default=(),
        alias="with",
        description="optimizers and switches of `software` with which it holds, such as adamw-8bit or"
        " cuda_graphs; left out: with all",
    )

    def holds_for(self, job: Job) -> bool:
        """Return whether the relation is one of the layouts of ``job``."""
        on = {name for name in type(job.software).model_fields if getattr(job.software, name) is True}
        return not self.choices or bool({job.optimizer, *on}.intersection(self.choices))

    @property
    def of_layouts(self) -> RuleSpec:
        """The relation as one that a job has, without the choices that it goes with."""
        return RuleSpec.model_construct(rule=self.rule, because=self.because)


class ProgramWay(Frozen):
    """One way in which a program runs a job."""

    title: str = Field(min_length=1, max_length=40, description="what the way is called, such as FSDP2")
    stack: Name = Field(description="stack whose cost model prices it: a name in costmodels/stacks")
    target: Name | None = Field(
        default=None, description="launch target that writes its configuration; null: none does"
    )
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)] = Field(
        description="what it trains: all of a new model, all of one that was trained, or adapters"
    )
    optimizers: Annotated[tuple[Optimizer, ...], Field(min_length=1)] = Field(
        description="optimizers that it has"
    )
    precisions: Annotated[tuple[Precision, ...], Field(min_length=1)] = Field(
        description="number formats of GEMMs that it has"
    )
    software: tuple[str, ...] = Field(
        default=(),
        description="keys of a job's `software` that its configuration expresses, such as compile, or single"
        " values of them, such as loss=chunked",
    )
    bases: tuple[Base, ...] = Field(
        default=(), description="formats of a frozen base below adapters (QLoRA) that it has"
    )
    adapters: tuple[AdapterChoice, ...] = Field(
        default=(),
        description="choices of adapters that its configuration expresses, besides rank and the targets"
        " attention and all: DoRA, dropout, single GEMMs (modules), stacked experts (experts), and scales of"
        " a 4-bit base that are not quantised themselves (plain-scales)",
    )
    rl: tuple[RLChoice, ...] = Field(
        default=(),
        description="methods of preference and reinforcement learning that it has, and those of which the"
        " reference may be computed before training (dpo-precomputed, kto-precomputed)",
    )
    rl_bases: bool = Field(default=True, description="whether it has them on a quantised base")
    loss: Literal["fused", "chunked", "tiled"] | None = Field(
        default=None,
        description="loss of its trainers of adapters, preferences and rewards, where a job names none",
    )
    defaults: SoftwareSpec = Field(
        default=SoftwareSpec(),
        description="what its software does unlike its stack's, where a job does not say it otherwise",
    )
    fused_adapters: bool = Field(
        default=False,
        description="whether an MLP with adapters is one function, where a job has no rl, no base in int8 and"
        " does not say it otherwise",
    )
    eager_sinks: bool = Field(
        default=False,
        description="whether attention with sinks has its scores in memory, where a job names no kernel:"
        " transformers has no SDPA for it",
    )
    needs: tuple[Literal["base", "pure_bf16"], ...] = Field(
        default=(), description="what a job has that runs in this way: a quantised base, or all of it in bf16"
    )
    experts: bool = Field(default=False, description="whether it trains models with experts")
    linear_attention: bool = Field(
        default=False,
        description="whether it trains linear attention as transformers does, which alone is priced",
    )
    like: str | None = Field(
        default=None, description="PROGRAM/WAY whose rules hold, too: those of a library that both build on"
    )
    without: tuple[Part, ...] = Field(
        default=(), description="parts of models and of routing that its configuration does not have"
    )
    rules: tuple[ProgramRule, ...] = Field(
        default=(), max_length=50, description="relations that a layout satisfies where it can express it"
    )


class ProgramSpec(Frozen):
    """What one starts to train a model."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Literal["program"] = Field(description="says that this file describes a program")
    name: Name = Field(description="name of the entry, the same as its file's")
    title: str = Field(min_length=1, description="what the program is called")
    description: str = Field(default="", description="what it is, in a sentence or two")
    version: str = Field(min_length=1, description="version that names and limits were checked against")
    sources: dict[str, str] = Field(description="where its limits stand, by subject")
    vendors: tuple[str, ...] = Field(
        default=(), description="makers of the devices that it runs on; empty: any"
    )
    usual: tuple[Task, ...] = Field(
        default=(), description="tasks for which it is searched where a job names no program"
    )
    most_devices: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="most devices for which it is searched then; null: any number",
    )
    least_devices: int = Field(
        default=1, ge=1, le=1_000_000, description="fewest devices for which it is searched then"
    )
    models: dict[Literal["full", "adapters"], tuple[Name, ...]] = Field(
        default_factory=dict,
        description="models of the catalogue that its package has a recipe of, for all of them and for"
        " adapters; left out: it trains any",
    )
    ways: Annotated[tuple[ProgramWay, ...], Field(min_length=1, max_length=8)] = Field(
        description="ways in which it runs a job"
    )

    @model_validator(mode="after")
    def _ways_are_distinct(self) -> Self:
        titles = [way.title for way in self.ways]
        if len(set(titles)) < len(titles):
            raise ValueError("two ways have the same title")
        return self


def lacks(way: ProgramWay, job: Job) -> str | None:
    """Return what ``way`` lacks that ``job`` asks for, in words; None where it can run some layout of it."""
    parts = {
        "no adapters (LoRA)": job.adapters is not None and "adapters" not in way.tasks,
        "adapters alone": job.adapters is None and set(way.tasks) == {"adapters"},
        "no quantised base below adapters (QLoRA)": (
            job.adapters is not None and job.adapters.base not in (None, *way.bases)
        ),
        **_lacking_choices(way, job.adapters),
        **_lacking_rl(way, job),
        **_needs(way, job),
        f"no {job.optimizer}": job.optimizer not in way.optimizers,
        f"no {job.precision}": job.precision not in way.precisions,
        "no models with experts": job.model.moe is not None and not way.experts,
        "its linear attention is not priced, only that of transformers": (
            job.model.linear_attention is not None and not way.linear_attention
        ),
    }
    parts |= _lacking_software(way, job.software)
    if (part := missing_part(job, way.without)) is not None:
        parts[f"no {part}"] = True
    return next((words for words, missing in parts.items() if missing), None)


def _lacking_software(way: ProgramWay, software: SoftwareSpec) -> dict[str, bool]:
    """Return which choices of ``software`` the way does not express, in words."""
    chosen = {
        name: value for name in type(software).model_fields if (value := getattr(software, name)) is not None
    }
    values = {choice.partition("=")[0] for choice in way.software if "=" in choice}
    return {
        f"no software.{name}: {str(value).lower()}" if name in values else f"no key for software.{name}": True
        for name, value in chosen.items()
        if name not in way.software and f"{name}={str(value).lower()}" not in way.software
    }


def missing_part(job: Job, without: Iterable[Part]) -> str | None:
    """Return the first part of ``job`` among those that a program is ``without``, in words.

    Of positions that are learned, no program has more than the model.
    """
    length, rows = job.workload.sequence_length, job.model.max_positions
    if job.model.positions == "learned" and rows is not None and length > rows:
        return f"sequences of {length} tokens with {rows} learned positions"
    return next((_PARTS[name][0] for name in without if _PARTS[name][1](job)), None)


def _lacking_choices(way: ProgramWay, adapters: AdapterSpec | None) -> dict[str, bool]:
    """Return which choices of ``adapters`` the way does not express, in words."""
    if adapters is None:
        return {}
    four = adapters.base in {"nf4", "fp4"}
    chosen: dict[AdapterChoice, tuple[str, bool]] = {
        "dora": ("no DoRA", adapters.dora),
        "dropout": ("no dropout of adapters", adapters.dropout > 0),
        "modules": ("no adapters at single GEMMs", isinstance(adapters.targets, tuple)),
        "experts": ("no adapters of stacked experts", adapters.experts),
        "plain-scales": ("no base with scales in fp32", four and not adapters.doubly_quantized),
    }
    return {words: wished and name not in way.adapters for name, (words, wished) in chosen.items()}


def _lacking_rl(way: ProgramWay, job: Job) -> dict[str, bool]:
    """Return what of the job's preference or reinforcement learning the way does not have, in words."""
    if job.rl is None:
        return {}
    method, quantised = job.rl.method, job.adapters is not None and job.adapters.base is not None
    return {
        f"no {method}": method not in way.rl,
        f"no log-probabilities of the reference before training ({method})": (
            job.rl.precompute_ref_log_probs and f"{method}-precomputed" not in way.rl
        ),
        f"no software.loss with {method}": job.software.loss is not None,
        f"no packed documents with {method}": job.workload.documents is not None,
        f"no {method} on a quantised base ({way.title})": quantised and not way.rl_bases,
    }


def _needs(way: ProgramWay, job: Job) -> dict[str, bool]:
    """Return what ``job`` has not that the way is for, in words."""
    quantised = job.adapters is not None and job.adapters.base is not None
    return {
        f"a quantised base alone ({way.title})": "base" in way.needs and not quantised,
        "all in bf16 alone (software.pure_bf16)": "pure_bf16" in way.needs and not job.software.pure_bf16,
    }
