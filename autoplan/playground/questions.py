"""What the page may ask: plans, remedies and launch files of a training or a serving question; its choices.

Nothing in a question is a path, a file name or a text that is read as a file: names are compared with the
lists of the catalogue before anything is opened. First come jobs in the terms of the controls: names, words
of fixed lists, bounded numbers; then what the controls offer, with names and colours of parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar, get_args
from urllib.parse import urlencode

from pydantic import Field

from autoplan.catalog import EntryKind, entry_names, load_entry
from autoplan.errors import AutoplanError, CatalogError, SpecError
from autoplan.launch.engines.engine_targets import ENGINE_TARGETS, MANIFEST_TARGETS
from autoplan.launch.registry import find_target, target_names
from autoplan.report.wording.part_names import MEMORY_PARTS, SERVED_MEMORY, TIME_COLOURS, TIME_NAMES
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.hardware import ClusterSpec, NodeSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.precision import Optimizer, Precision
from autoplan.schema.serving.engine_stack import EngineSpec
from autoplan.schema.yaml.document import Document, Plain, shown
from autoplan.schema.yaml.loader import validate
from autoplan.version import __version__

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


_LONGEST_LAYOUT: Final = 8_192

#: A question; ``kind`` says which.
_Kinded = Annotated[Question, Field(discriminator="kind", description="the question")]


class _PlanBody(Frozen):
    """Body of a request for a plan, or for remedies."""

    question: _Kinded


class _LaunchBody(_PlanBody):
    """Body of a request for a launch file."""

    layout: str = Field(min_length=1, max_length=_LONGEST_LAYOUT, description="the layout to emit")
    target: Name = Field(description="the framework or launcher")
    image: Annotated[str, Field(max_length=300, pattern=r"^([A-Za-z0-9][A-Za-z0-9._/:@-]*)?$")] = Field(
        default="", description="the container that a launcher starts the program in"
    )


#: The front of a question, the changes that would make it feasible, or the launch file of a layout.
AskPath = Literal["plan", "remedies", "launch"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks; ``layout``, ``target`` and ``image`` are those of a launch file."""

    path: AskPath
    question: Question
    layout: str = ""
    target: str = ""
    image: str = ""


class UnknownNameError(CatalogError):
    """A name that is not in the list of a control; ``known`` is that list."""

    def __init__(self, key: str, value: str, names: tuple[str, ...]) -> None:
        self.known = names
        super().__init__(f"$.question.{key}: {shown(value)} is not in the list: known are {', '.join(names)}")


def ask_from(path: AskPath, body: bytes) -> Ask:
    """Return what the ``body`` of a request asks for.

    Raises SpecError with every problem of a body that is no such JSON object, and UnknownNameError with the
    known names for a name that no list has.
    """
    read = _valid(_json_value(body), _LaunchBody if path == "launch" else _PlanBody)
    question = read.question
    _check_names(question)
    if not isinstance(read, _LaunchBody):
        return Ask(path, question)
    serves = isinstance(question, ServingJobQuestion)
    _check_name("target", read.target, tuple(ENGINE_TARGETS) if serves else target_names(emitted=True))
    return Ask(path, question, read.layout, read.target, read.image)


def linked_query(fields: dict[str, Any]) -> str | None:
    """Return the query of a link to the question with ``fields``; None where it is no question."""
    try:
        request = ask_from("plan", json.dumps({"question": fields}).encode())
    except AutoplanError:
        return None
    return query_of(request.question)


def query_of(question: Question) -> str:
    """Return the query of a link that reproduces ``question``."""
    return urlencode(question.model_dump())


M = TypeVar("M", bound=Frozen)


def _valid(value: Plain, body_class: type[M]) -> M:
    return validate(Document("request", value, 1), body_class)


def _json_value(body: bytes) -> Plain:
    """Return the JSON of ``body`` with lists as tuples; raises SpecError for what is no plain JSON."""
    try:
        return _frozen(
            json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
        )
    except SpecError:
        raise
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the body is not JSON: {error}") from error


def _refuse_constant(text: str) -> NoReturn:
    raise SpecError(f"{text} is no number of JSON: give a finite number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise SpecError("a key of the body is given twice")
    return value


def _frozen(value: Any) -> Plain:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value)
    return {key: _frozen(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def engine_names() -> tuple[str, ...]:
    """Return the engines of the catalogue with each of their versions, the newest first."""
    engines = (load_entry("engine", name) for name in entry_names("engine"))
    return tuple(
        f"{engine.name}@{version}"
        for engine in engines
        if isinstance(engine, EngineSpec)
        for version in reversed(engine.versions)
    )


def _check_names(question: Question) -> None:
    _check_name("model", question.model, entry_names("model"))
    _check_name("hardware", question.hardware, entry_names("node") + entry_names("cluster"))
    if isinstance(question, ServingJobQuestion):
        _check_name("engine", question.engine, engine_names())
    elif question.stack:
        _check_name("stack", question.stack, entry_names("stack"))


def _check_name(key: str, value: str, names: tuple[str, ...]) -> None:
    if value not in names:
        raise UnknownNameError(key, value, names)


#: What is asked when the page opens without a link, or with one that says the kind alone.
_FIRST: Final = {
    "kind": "training",
    "model": "llama3-8b",
    "hardware": "dgx-a100-80gb",
    "devices": 8,
    "sequence_length": 8192,
    "global_batch_size": 128,
    "precision": "bf16",
    "optimizer": "adamw",
    "stack": "",
    "objectives": "step_time+peak_memory",
    "headroom_percent": 0,
    "adapter_rank": 0,
    "offload": "none",
    "target": "megatron-lm",
}
_FIRST_SERVED: Final = {
    "kind": "serving",
    "model": "llama3.1-8b",
    "hardware": "dgx-h100",
    "devices": 1,
    "headroom_percent": 0,
    "engine": "vllm@0.24",
    "input_tokens": 1024,
    "output_tokens": 1024,
    "longest_request": 0,
    "load": "clients",
    "clients": 64,
    "requests_per_minute": 120,
    "weights": "bf16,fp8",
    "kv_cache": "auto,fp8",
    "first_token_ms": 2000,
    "token_ms": 40,
    "limit_on": "mean",
    "shared_tokens": 0,
    "hit_percent": 0,
    "other_percent": 0,
    "other_input_tokens": 8192,
    "other_output_tokens": 256,
    "other_first_token_ms": 5000,
    "drafting": "none",
    "drafts": 3,
    "acceptance_percent": 70,
    "trade": "throughput_per_device+time_per_output_token",
    "target": "vllm",
}
_LOADS: Final = {
    "clients": "clients, a request each",
    "requests": "requests at random times",
    "maximum": "as much as engines take",
}
_DRAFTING: Final = {
    "none": "nothing",
    "ngram": "n-grams of the prompt",
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "mtp": "the model's own layer (MTP)",
}
_LIMITED: Final = {
    "mean": "means (proven)",
    "p50": "medians (simulated)",
    "p90": "90 % of requests (simulated)",
    "p99": "99 % of requests (simulated)",
}
_SERVING_TRADES: Final = {
    "throughput_per_device+time_per_output_token": "throughput and time per token",
    "throughput_per_device+time_to_first_token": "throughput and first token",
    "throughput_per_device": "throughput alone",
    "time_per_output_token": "time per token alone",
    "devices": "fewest devices",
}
_KV: Final = {"auto": "as computed (16 bits)", "fp8": "fp8", "auto,fp8": "the better of 16 bits and fp8"}
_OFFLOADING: Final = {
    "none": "nothing",
    "none,optimizer": "optimizer states, if that helps",
    "none,activations": "activations, if that helps",
    "none,optimizer,optimizer+activations": "optimizer states and activations, if that helps",
}
_TRADES: Final = {
    "step_time+peak_memory": "step time and memory",
    "step_time": "step time alone",
    "peak_memory": "memory alone",
    "step_time+peak_memory+energy": "step time, memory and energy",
}


def page_choices() -> dict[str, Any]:
    """Return the choices of every control as one JSON object; entries that cannot be read are left out."""
    nodes = {entry.name: entry for entry in _entries("node") if isinstance(entry, NodeSpec)}
    clusters = [entry for entry in _entries("cluster") if isinstance(entry, ClusterSpec)]
    return {
        "version": __version__,
        "models": [
            {**_choice(entry.name, entry.title or entry.name), "positions": entry.max_positions}
            for entry in _entries("model")
            if isinstance(entry, ModelSpec)
        ],
        "hardware": [
            *(_hardware(entry, entry, 1) for entry in nodes.values()),
            *(_hardware(entry, nodes[entry.node], entry.nodes) for entry in clusters if entry.node in nodes),
        ],
        "stacks": [
            _choice(entry.name, entry.title) for entry in _entries("stack") if isinstance(entry, StackSpec)
        ],
        "precisions": [_choice(name, name) for name in get_args(Precision)],
        "optimizers": [_choice(name, name) for name in get_args(Optimizer)],
        "objectives": [_choice(name, _TRADES[name]) for name in get_args(Trade)],
        "offloading": [_choice(name, _OFFLOADING[name]) for name in get_args(Offloading)],
        "targets": [_choice(name, find_target(name).framework) for name in target_names(emitted=True)],
        "largest": dict(LARGEST_NUMBERS),
        "first": {"training": dict(_FIRST), "serving": dict(_FIRST_SERVED)},
        **_serving_choices(),
        "time_parts": [[key, name, TIME_COLOURS[key]] for key, name in TIME_NAMES.items()],
        "memory_parts": [[key, key, part.colour] for key, part in MEMORY_PARTS.items()],
    }


def _serving_choices() -> dict[str, Any]:
    """Return the choices of controls that serving jobs alone have."""
    manifests = {target.name for target in MANIFEST_TARGETS}
    return {
        "engines": [_choice(name, name.replace("@", " ")) for name in sorted(engine_names(), key=_is_old)],
        "loads": [_choice(name, _LOADS[name]) for name in get_args(Load)],
        "weights": [_choice(name, name.replace(",", " or ")) for name in get_args(WeightFormats)],
        "kv_caches": [_choice(name, _KV[name]) for name in get_args(KvFormats)],
        "limit_ons": [_choice(name, _LIMITED[name]) for name in get_args(LimitOn)],
        "draftings": [_choice(name, _DRAFTING[name]) for name in get_args(Drafting)],
        "trades": [_choice(name, _SERVING_TRADES[name]) for name in get_args(ServingTrade)],
        "engine_targets": [
            {**_choice(name, target.title), "engines": list(target.engines), "image": name in manifests}
            for name, target in ENGINE_TARGETS.items()
        ],
        "served_memory_parts": [[key, name, colour] for key, (name, colour) in SERVED_MEMORY.items()],
    }


def _is_old(engine: str) -> bool:
    """Return whether an engine has no target, so that it comes after those that can be launched."""
    name = engine.partition("@")[0]
    return not any(name in target.engines for target in ENGINE_TARGETS.values())


def _entries(kind: EntryKind) -> Iterator[Frozen]:
    for name in entry_names(kind):
        with suppress(AutoplanError):
            yield load_entry(kind, name)


def _choice(name: str, title: str) -> dict[str, Any]:
    return {"name": name, "title": title}


def _hardware(entry: NodeSpec | ClusterSpec, of_node: NodeSpec, nodes: int) -> dict[str, Any]:
    """Return a node or a cluster, with the devices of a node and the usual number of nodes."""
    return {
        **_choice(entry.name, entry.title or entry.name),
        "device": of_node.device,
        "devices_per_node": of_node.devices,
        "nodes": nodes,
    }
