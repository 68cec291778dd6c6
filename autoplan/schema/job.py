"""Schema of job files, and the job with all names resolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from autoplan.deadline import DEFAULT_SECONDS
from autoplan.schema.adapters import AdapterSpec, Batches, PriceSpec, ZeroStage, distinct
from autoplan.schema.base import Bytes, Frozen, Joules, Seconds, Share
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.hardware import DeviceSpec, NodeSpec
from autoplan.schema.layout import Offload, Order, Schedule
from autoplan.schema.model import ModelSpec
from autoplan.schema.post_training import PostTrainingSpec, RLSpec, sequences_of_sample
from autoplan.schema.precision import NARROW, Optimizer, Precision
from autoplan.schema.recompute import RecomputeMode
from autoplan.schema.user_rules.expression import Node
from autoplan.schema.yaml.synonyms import value_meant

#: Deviations above the mean that few lengths exceed.
_FEW_DEVIATIONS: Final = 3.0

Length = Annotated[int, Field(ge=1, le=100_000_000)]


class DocumentLengths(Frozen):
    """Mean and standard deviation of the documents' lengths."""

    mean: float = Field(ge=1, le=1e8, strict=False, description="mean length of a document, in tokens")
    deviation: float = Field(
        default=0.0, ge=0, le=1e8, strict=False, description="standard deviation of the lengths, in tokens"
    )

    def pieces(self, sequence_length: int) -> tuple[tuple[float, float], ...]:
        """Return one length that costs as the distribution, (E[n^2] / E[n], 1): a token's own document.

        >>> DocumentLengths(mean=600, deviation=300).pieces(8192)
        ((750.0, 1.0),)
        """
        mean_piece = self.mean + self.deviation**2 / self.mean
        return ((min(mean_piece, float(sequence_length)), 1.0),)


Documents = DocumentLengths | Annotated[tuple[Length, ...], Field(min_length=1, max_length=10_000)]


def document_pieces(documents: Documents, sequence_length: int) -> tuple[tuple[float, float], ...]:
    """Return the pieces of documents in sequences: their lengths, and the share of the tokens that each has.

    What is longer than a sequence is cut into whole ones and a rest.

    >>> document_pieces((1000, 3000), 2000)
    ((1000.0, 0.5), (2000.0, 0.5))
    """
    if isinstance(documents, DocumentLengths):
        return documents.pieces(sequence_length)
    tokens: dict[float, float] = {}
    for length in documents:
        whole, rest = divmod(length, sequence_length)
        for piece, count in ((sequence_length, whole), (rest, 1)):
            if piece and count:
                tokens[float(piece)] = tokens.get(float(piece), 0.0) + piece * count
    total = sum(tokens.values())
    return tuple((piece, held / total) for piece, held in sorted(tokens.items()))


def long_document(documents: Documents) -> float:
    """Return a length that no document is longer than, or of a distribution all but a few [1].

    >>> long_document((90, 2048)), long_document(DocumentLengths(mean=600, deviation=300))
    (2048.0, 1500.0)
    """
    if isinstance(documents, DocumentLengths):
        return documents.mean + _FEW_DEVIATIONS * documents.deviation
    return float(max(documents))


Objective = Literal["step_time", "tokens_per_second", "peak_memory", "devices", "cost", "energy"]


Degree = Annotated[int, Field(ge=1, le=1_000_000)]
Degrees = Literal["any"] | Degree | Annotated[tuple[Degree, ...], Field(min_length=1)]


def _as_name(value: object) -> object:
    """Return a hardware name that is a number, such as 4090, as text."""
    return str(value) if type(value) is int else value


HardwareName = Annotated[str, BeforeValidator(_as_name, json_schema_input_type=str)]


class Workload(Frozen):
    """What one optimizer step trains on."""

    sequence_length: int = Field(ge=1, le=100_000_000, description="tokens of one sequence")
    global_batch_size: int = Field(
        ge=1, le=10_000_000, description="sequences of one optimizer step, over all devices"
    )
    documents: Documents | None = Field(
        default=None,
        description="documents packed into a sequence, none of which attends to another (block-diagonal"
        " attention): a sample of their lengths, or {mean, deviation}; left out: one a sequence",
    )


class WorkloadSpec(Frozen):
    """What one optimizer step trains on, for one global batch size or several."""

    sequence_length: int = Field(ge=1, le=100_000_000, description="tokens of one sequence")
    global_batch_size: Batches = Field(
        description="sequences of one optimizer step, over all devices; a list or a range {from, to} to plan"
        " for each"
    )
    documents: Documents | None = Field(
        default=None,
        description="documents packed into a sequence, none of which attends to another (block-diagonal"
        " attention): a sample of their lengths, or {mean, deviation}; left out: one a sequence",
    )


def _in_general(workload: object) -> object:
    return workload.model_dump() if isinstance(workload, Workload) else workload


#: Keys of ``search`` that, left out, allow less than some of their values do.
NARROW_BY_DEFAULT: Final = frozenset(
    (
        "dp_shard",
        "expert_tensor_parallel",
        "offload",
        "offload_every",
        "recompute_num_layers",
        "virtual_stages",
    )
)


class SearchSpec(Frozen):
    """The search space; each key narrows it, and an omitted key does not."""

    tensor_parallel: Degrees = Field(default="any", description="tensor-parallel degrees allowed")
    expert_parallel: Degrees = Field(default="any", description="expert-parallel degrees allowed")
    expert_tensor_parallel: Degrees = Field(
        default="any",
        description="degrees that may split the matrices of an expert; any: 1, and that of tensors",
    )
    pipeline_parallel: Degrees = Field(default="any", description="pipeline depths allowed")
    data_parallel: Degrees = Field(default="any", description="data-parallel degrees allowed")
    context_parallel: Degrees = Field(default="any", description="context-parallel degrees allowed")
    microbatch_size: Degrees = Field(default="any", description="sequences of a microbatch allowed")
    virtual_stages: Degrees = Field(
        default="any", description="virtual stages on a device (interleaved schedule) allowed"
    )
    zero_stage: Literal["any"] | ZeroStage | Annotated[tuple[ZeroStage, ...], Field(min_length=1)] = Field(
        default="any", description="ZeRO stages allowed, 0 to 3"
    )
    dp_shard: Literal["all"] | Degrees = Field(
        default="any",
        description="data-parallel shard sizes allowed under ZeRO: all data-parallel ranks (all), also those"
        " of one node (any, HSDP), or numbers",
    )
    sequence_parallel: Literal["any", "on", "off"] = Field(
        default="any", description="Megatron sequence parallelism where tensor_parallel > 1"
    )
    schedule: Literal["any"] | Schedule | Annotated[tuple[Schedule, ...], Field(min_length=1)] = Field(
        default="any", description="pipeline schedules allowed"
    )
    order: Literal["any"] | Order | Annotated[tuple[Order, ...], Field(min_length=1)] = Field(
        default="any",
        description="orders of the axes on the devices allowed, the innermost first: which run inside a node",
    )
    recompute: Literal["any"] | RecomputeMode | Annotated[tuple[RecomputeMode, ...], Field(min_length=1)] = (
        Field(default="any", description="activation recompute modes that layers may use")
    )
    recompute_num_layers: Degrees = Field(
        default=1,
        description="layers per unit of full recompute allowed; any: divisors of the layers, up to twice"
        " their square root",
    )
    stages: Literal["any", "even"] = Field(
        default="any", description="whether pipeline stages may have unequal numbers of layers"
    )
    offload: Offload | Annotated[tuple[Offload, ...], Field(min_length=1)] = Field(
        default="none",
        description="states offloaded to host memory: none, optimizer states, stored activations, or both",
    )
    offload_every: Degrees = Field(
        default=1,
        description="activations of one layer in so many are offloaded, with activation offload; any: 1, 2,"
        " 4, 8",
    )


class RoutingSpec(Frozen):
    """How evenly tokens spread over experts, and what becomes of those that are too many."""

    load_variation: Share | None = Field(
        default=None,
        description="standard deviation of the experts' loads over their mean; the stack's if left out",
    )
    capacity_factor: float | None = Field(
        default=None,
        ge=0.001,
        le=1_000,
        strict=False,
        description="most tokens of an expert over the mean, the rest is dropped; left out: none is",
    )
    padded: bool = Field(default=False, description="experts compute as many routed tokens as their capacity")

    @model_validator(mode="after")
    def _padded_to_something(self) -> Self:
        if self.padded and self.capacity_factor is None:
            raise ValueError("padded needs capacity_factor")
        return self


class Limits(Frozen):
    """Hard limits of plans."""

    memory_headroom: Share = Field(
        default=0.0, le=0.99, description="share of a device's memory to leave free"
    )
    peak_memory: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None, description="most memory of a device to use"
    )
    memory_confidence: Literal["upper", "central"] = Field(
        default="upper",
        description="what must fit: the peak with fragmentation and context at the upper ends of their"
        " ranges, or at their centres",
    )
    step_time: Annotated[Seconds, Field(gt=0)] | None = Field(
        default=None, description="longest optimizer step allowed"
    )
    tokens_per_second: Annotated[float, Field(ge=1e-6, le=1e15)] | None = Field(
        default=None, description="least tokens a second of all devices together"
    )
    devices: Degree | None = Field(default=None, description="most devices to use")
    cost: Annotated[float, Field(ge=1e-6, le=1e15)] | None = Field(
        default=None, description="most that a billion tokens may cost, in the currency of the price"
    )
    energy: Annotated[Joules, Field(gt=0)] | None = Field(
        default=None, description="most energy of a billion tokens, by the devices' power limits"
    )


def _relation(rule: str) -> Node:
    """Return the relation of a rule; the grammar is loaded for those who write one."""
    from autoplan.schema.user_rules.grammar import parse_relation

    return parse_relation(rule)


def _readable(rule: str) -> str:
    _relation(rule)
    return rule


class RuleSpec(Frozen):
    """A user's rule: a relation that every layout must satisfy, and the reason."""

    rule: Annotated[str, AfterValidator(_readable)] = Field(
        description="a relation such as tp * pp <= 8 or layers[0] <= layers[-1]",
        examples=["tp * pp <= 8"],
    )
    because: str | None = Field(
        default=None, min_length=1, max_length=200, description="the reason, which explanations repeat"
    )

    @property
    def relation(self) -> Node:
        """The relation, read."""
        return _relation(self.rule)


def _as_mapping(rule: object) -> object:
    """Return a rule that is written as text alone as the mapping that it is short for."""
    if isinstance(rule, str):
        return {"rule": rule}
    if not isinstance(rule, dict | RuleSpec):
        raise ValueError("a rule is text, such as 'tp * pp <= 8', or a mapping {rule: ..., because: ...}")  # noqa: TRY004
    return rule


RuleEntry = Annotated[RuleSpec, BeforeValidator(_as_mapping, json_schema_input_type=str | RuleSpec)]


def _job_kind(value: object) -> object:
    """Return ``value``; raises ValueError for a kind that no job has."""
    if isinstance(value, str) and value not in ("training", "serving"):
        meant = value_meant(value, ("training", "serving"))
        hint = f" - did you mean {meant!r}?" if meant else ""
        raise ValueError(f"{value!r} is neither training nor serving{hint}")
    return value


class JobSpec(Frozen):
    """A training job as its file says it."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Annotated[Literal["training"], BeforeValidator(_job_kind)] = Field(
        description="what the job does; a serving job has keys of its own"
    )
    model: Annotated[str, Field(min_length=1)] | ModelSpec = Field(
        description="a name in specs/models, a path to such a file, a config.json or the folder of a"
        " checkpoint, or the fields of a model"
    )
    hardware: HardwareName = Field(
        min_length=1,
        description="a name in hardware/ or a path to such a file; auto: what this machine and its job have",
    )
    devices: (
        Degree
        | Annotated[tuple[Degree, ...], Field(min_length=1, max_length=64), AfterValidator(distinct)]
        | None
    ) = Field(default=None, description="devices to use, or a list to plan for each; all when left out")
    stack: str | None = Field(
        default=None,
        min_length=1,
        description="whose cost model prices the job: a name in costmodels/stacks or a path to such a file;"
        " if left out, that of each program",
    )
    program: (
        Annotated[str, Field(min_length=1)]
        | Annotated[tuple[str, ...], Field(min_length=1, max_length=16), AfterValidator(distinct)]
        | None
    ) = Field(
        default=None,
        description="what is started: a name in specs/programs, a list of them, usual (those that are usual"
        " for the task and the devices) or any-layout (also layouts that no program runs); if left out"
        " without a stack, usual",
    )
    software: SoftwareSpec = Field(
        default_factory=SoftwareSpec, description="what the run's software does unlike its stack's defaults"
    )
    kernels: str | None = Field(
        default=None,
        min_length=1,
        description="whose curves price the device: a name in costmodels/kernels or a path to such a file;"
        " the device's own if left out",
    )
    workload: Annotated[WorkloadSpec, BeforeValidator(_in_general)] = Field(
        description="what one optimizer step trains on"
    )
    precision: Precision = Field(default="bf16", description="number format of GEMMs")
    optimizer: Optimizer = Field(
        default="adamw", description="optimizer, which determines the optimizer states"
    )
    adapters: AdapterSpec | None = Field(
        default=None, description="train low-rank adapters and freeze the model; left out: train all of it"
    )
    rl: PostTrainingSpec | None = Field(
        default=None,
        description="learn from preferences or rewards: dpo, kto, orpo, simpo or grpo, or a mapping with the"
        " method and more; left out: from the tokens of the sequences",
    )
    routing: RoutingSpec = Field(
        default_factory=RoutingSpec, description="how tokens spread over experts, in a model that has some"
    )
    search: SearchSpec = Field(default_factory=SearchSpec, description="what may be chosen")
    limits: Limits = Field(default_factory=Limits, description="hard limits")
    rules: Annotated[tuple[RuleEntry, ...], Field(max_length=50)] = Field(
        default=(), description="relations that every layout must satisfy, besides built-in rules"
    )
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1), AfterValidator(distinct)] | None = (
        Field(
            default=None,
            description="what the front trades; left out: step_time and peak_memory, and devices and"
            " tokens_per_second where there are several numbers of devices and batches",
        )
    )
    price: PriceSpec | None = Field(default=None, description="what a device costs an hour, and when")
    deadline: Seconds = Field(
        default=DEFAULT_SECONDS,
        description="how long a search may take; then it answers with the best plans so far and their gap",
    )

    @model_validator(mode="after")
    def _weights_are_in_fp8(self) -> Self:
        if self.software.fp8_weights and self.precision not in NARROW:
            raise ValueError(f"software.fp8_weights needs precision: {' or '.join(NARROW)}")
        return self


@dataclass(frozen=True, slots=True)
class Cluster:
    """The devices of a job: ``devices`` in all, on nodes that hold ``node.devices`` each."""

    device: DeviceSpec
    node: NodeSpec
    devices: int

    @property
    def nodes(self) -> int:
        """Number of nodes that the devices take."""
        return -(-self.devices // self.node.devices)

    @property
    def devices_words(self) -> str:
        """The devices in words: "1 device", "8 devices"."""
        return "1 device" if self.devices == 1 else f"{self.devices:,} devices"


@dataclass(frozen=True, slots=True)
class JobFile:
    """The file that a job was read from: its text, and the folder that relative paths in it start from.

    ``reference`` is what the user called it: a path, the name of a shipped job, or a line of options, which
    left out what ``assumed`` says in words. ``keys`` are its keys, and ``hardware`` is what it calls the
    hardware. A saved answer holds these two alone: ``text`` is then empty.
    """

    reference: str
    text: str
    folder: Path
    keys: frozenset[str]
    hardware: str
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenProgram:
    """What a job is run by: a program in one of its ways, with the launch target that writes it.

    ``rules`` are the relations that its layouts satisfy, ``alike`` the titles of other programs that run the
    same layouts in the same way, at the same cost.
    """

    name: str
    title: str
    way: str
    target: str | None
    rules: tuple[RuleSpec, ...] = ()
    alike: tuple[str, ...] = field(default=(), compare=False)

    @property
    def words(self) -> str:
        """The program and its way."""
        return f"{self.title} ({self.way})"

    @property
    def key(self) -> str:
        """Name of the program, and its way."""
        return f"{self.name}/{self.way}"


@dataclass(frozen=True, slots=True)
class Job:
    """A job with all names resolved: the input of predictions and search."""

    kind: ClassVar[Literal["training"]] = "training"
    name: str
    model: ModelSpec
    cluster: Cluster
    stack: StackSpec
    kernels: KernelSpec
    workload: Workload
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    adapters: AdapterSpec | None = None
    rl: RLSpec | None = None
    routing: RoutingSpec = field(default_factory=RoutingSpec)
    search: SearchSpec = field(default_factory=SearchSpec)
    limits: Limits = field(default_factory=Limits)
    rules: tuple[RuleSpec, ...] = ()
    objectives: tuple[Objective, ...] = ("step_time", "peak_memory")
    price: PriceSpec | None = None
    #: Whether nothing says which stack: ``stack`` is then the usual one of the node, less surely predicted.
    stack_assumed: bool = False
    #: What starts it; None where any layout that the stack can run is searched.
    program: ChosenProgram | None = None
    #: What the software does unlike its stack's defaults; part of ``stack``, so it is not compared.
    software: SoftwareSpec = field(default_factory=SoftwareSpec, compare=False)
    #: The jobs to plan for, where there are several numbers of devices or batches; this is the first.
    choices: tuple[Job, ...] = ()
    #: What the job says of programs, where they are chosen for it; not compared.
    programs: str | tuple[str, ...] | None = field(default=None, compare=False)
    #: Other programs that were looked at, each with what is against it; not compared.
    lacking: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    #: How long a search of this job may take [s]; no part of the question, so it is not compared.
    deadline: float = field(default=DEFAULT_SECONDS, compare=False)
    #: Lines of the rules in the job file, for messages; not compared.
    rule_lines: tuple[int, ...] = field(default=(), compare=False)
    #: What it was read from, where it was; not compared.
    source: JobFile | None = field(default=None, compare=False)

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample of the batch: of its sequence, or of both sequences of a pair."""
        return sequences_of_sample(self.rl) * self.workload.sequence_length

    @property
    def step_tokens(self) -> int:
        """Tokens that one optimizer step trains on."""
        return self.workload.global_batch_size * self.sample_tokens

    @property
    def relations(self) -> tuple[RuleSpec, ...]:
        """What every layout satisfies: the user's rules, then those of the program."""
        return self.rules if self.program is None else (*self.rules, *self.program.rules)
