"""Jobs in one line: ``--model NAME --hardware NODE --task lora`` stands for a job file.

Such a line is a reference to a job wherever the path of a file is one. Whatever it leaves out is assumed, and
the answer says so. All problems of the names in it are collected.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml

from autoplan.catalog.entries import device, engine_entry, hardware, is_hardware, model
from autoplan.catalog.hardware_names import machine_called, nodes_meant
from autoplan.catalog.job_option_names import JOB_OPTIONS, TASKS
from autoplan.catalog.model_names import model_called, published_format
from autoplan.catalog.roots import is_path
from autoplan.errors import AutoplanError, Problem, SpecError, UnsupportedError
from autoplan.schema.job import Cluster, Job
from autoplan.schema.model import ModelSpec
from autoplan.schema.post_training import RL_METHODS
from autoplan.schema.yaml.document import Document

R = TypeVar("R")


class Attempts:
    """Look-ups of a job that collect their problems.

    ``problems`` begin with those of the schema; ``wrong`` are the keys of these.
    """

    def __init__(
        self, document: Document | None, wrong: frozenset[str] = frozenset(), problems: Sequence[Problem] = ()
    ) -> None:
        self.document = document
        self.wrong = wrong
        self.problems = list(problems)

    def find(self, key: str, look_up: Callable[[], R], *, needs: Collection[str] = ()) -> R | None:
        """Return the result of ``look_up``, or None with its problem added at ``key``.

        A look-up that ``needs`` an invalid key is skipped.
        """
        if not self.wrong.isdisjoint(needs):
            return None
        try:
            return look_up()
        except SpecError as error:
            self.problems.extend(error.problems)
        except AutoplanError as error:
            document = self.document
            file = document.name if document else None
            line = document.line(key.split(".")) if document else None
            self.problems.append(Problem(str(error), f"$.{key}", file, line))
        return None

    def lines(self, key: str, entries: int) -> tuple[int, ...]:
        """Return the lines of the entries of the list at ``key``; empty without a file."""
        document = self.document
        return tuple(document.line([key, i]) for i in range(entries)) if document else ()

    def in_order(self) -> list[Problem]:
        """Return the problems by line; those of other files come last."""
        name = self.document.name if self.document else None
        return sorted(self.problems, key=lambda problem: (problem.file != name, problem.line or 0))


def clusters_of(reference: str, wanted: int | tuple[int, ...] | None, base: Path) -> tuple[Cluster, ...]:
    """Return one cluster for each number of devices ``wanted``; by default all devices of the hardware.

    Raises UnsupportedError for a number that fills no whole nodes.
    """
    node, available = hardware(reference, base)
    numbers = wanted if isinstance(wanted, tuple) else (wanted or available,)
    for devices in numbers:
        if devices > node.devices and devices % node.devices:
            raise UnsupportedError(
                f"{devices} devices are not a multiple of the {node.devices} devices of a node: "
                f"use {devices // node.devices * node.devices} or "
                f"{-(-devices // node.devices) * node.devices}"
            )
    kind = device(node.device)
    return tuple(Cluster(device=kind, node=node, devices=devices) for devices in numbers)


if TYPE_CHECKING:
    from autoplan.schema.serving.serving_choices import ServingObjective
    from autoplan.schema.serving.serving_spec import ServingJob

#: Tokens of a sequence that is assumed, where the model has as many positions.
ASSUMED_SEQUENCE: Final = 4096
#: Tokens of a batch that is assumed: that of GPT-3's smaller models (Brown et al. 2020, arXiv:2005.14165,
#: table 2.1).
ASSUMED_BATCH_TOKENS: Final = 2**19
#: Sequences of a device in a batch that is assumed for adapters: 2 in each of 8 microbatches, as torchtune's
#: recipe llama3_1/8B_lora has.
_ADAPTED_SEQUENCES: Final = 16
#: Rank of adapters that is assumed: that of Unsloth's notebooks; PEFT's default is 8.
_ASSUMED_RANK: Final = 16
#: Tokens of requests that are assumed: the 1k/1k of InferenceX's published runs.
_ASSUMED_TOKENS: Final = 1024
#: Clients that wait for answers, which are assumed: in the middle of InferenceX's 4 to 256.
_ASSUMED_CLIENTS: Final = 32
#: What a front of engines trades here: with a load, the time per token alone would leave clients waiting.
_SERVED_OBJECTIVES: Final[tuple[ServingObjective, ...]] = ("request_latency", "throughput_per_device")
#: Devices beside the usual one that words may stand for, as an answer lists them.
_MOST_OTHERS: Final = 2
#: Engines that are assumed, by the maker of the devices.
_ENGINES: Final = {"amd": "vllm-rocm"}
_ENGINE: Final = "vllm"

#: Other words for the same.
_CALLED: Final = {
    **dict.fromkeys(("training", "full", "full-finetune", "finetune", "fine-tune", "finetuning"), "train"),
    **dict.fromkeys(("sft", "pretrain", "pretraining", "pre-train", "fft"), "train"),
    **dict.fromkeys(("peft", "adapters"), "lora"),
    **dict.fromkeys(("serving", "inference", "infer", "generate"), "serve"),
}

J = TypeVar("J", Job, "ServingJob")

_SWITCHES: Final = frozenset({"adapters.experts"})
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,6}")
_NUMBERS: Final = re.compile(r"[0-9]{1,18}(,[0-9]{1,18})*")
_NODES: Final = re.compile(r"[1-9][0-9]{0,6}(,[1-9][0-9]{0,6})*")


@dataclass(frozen=True, slots=True)
class OptionJob:
    """The job file that options stand for, the name of the job, and what it assumes, in words."""

    text: str
    name: str
    assumed: tuple[str, ...]


def serves(reference: str) -> bool:
    """Return whether a line of options is one of a serving job; False where it cannot be read."""
    try:
        return _task(_options(reference)) == "serve"
    except AutoplanError:
        return False


def option_job(reference: str) -> OptionJob:
    """Return the job file that a line of options stands for.

    Raises SpecError with everything wrong with the options; what is wrong with values is left to whoever
    reads the file.
    """
    options = _options(reference)
    task = _task(options)
    _refuse_unfit(options, task)
    writer = _JobWriter(options, task)
    writer.assume()
    return OptionJob(writer.text(), writer.name(), tuple(writer.assumed))


def option_job_beside(reference: str, launched: Mapping[str, Any]) -> OptionJob:
    """Return the training job of a line of options beside a launch file, which has ``launched`` parts of one.

    ``launched`` has keys of a job file. What the options say replaces it, and what neither says is assumed.
    Raises SpecError with everything wrong with the options, and for sizes that only a model of the catalogue
    has a usual value of.
    """
    options = _options(reference, launched)
    task = _task(options) if "--task" in options else _task_of(launched)
    _refuse_unfit(options, task)
    writer = _JobWriter(options, task)
    writer.take(launched)
    if isinstance(launched.get("model"), Mapping) and "--model" not in options:
        missing = [key for key in _NEEDED[:2] if key not in writer.values]
        names = [name for name, option in JOB_OPTIONS.items() if option.key in missing]
        if names:
            raise SpecError([Problem("is missing, and the file does not say it", name) for name in names])
    else:
        writer.assume()
    document = _merged(launched, yaml.safe_load(writer.text()))
    return OptionJob(yaml.safe_dump(document, sort_keys=False), writer.name(), tuple(writer.assumed))


def _task_of(launched: Mapping[str, Any]) -> str:
    """Return the task of a launch file by its adapters."""
    adapters = launched.get("adapters")
    if not isinstance(adapters, Mapping):
        return "train"
    return "qlora" if adapters.get("base") is not None else "lora"


def _merged(launched: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job file of ``options``, with the keys that only the launch file has, also in sections."""
    joined = {key: value for key, value in launched.items() if key not in options}
    for key, value in options.items():
        before = launched.get(key)
        nested = before if isinstance(before, Mapping) and isinstance(value, dict) else None
        joined[key] = value if nested is None else _merged(nested, value)
    return joined


def _refuse_unfit(options: Mapping[str, str], task: str) -> None:
    """Raise SpecError for options that belong to another task."""
    unfit = [
        Problem(f"belongs to --task {' or '.join(JOB_OPTIONS[name].tasks)}, not {task}", name)
        for name in options
        if task not in JOB_OPTIONS[name].tasks
    ]
    if unfit:
        raise SpecError(unfit)


def usual_node(name: str, devices: int | None) -> tuple[str, list[str]]:
    """Return the node that ``8x-h100``, or ``h100`` of so many devices, means most often, and so in words.

    What is the name of hardware, of a file, or of nothing, is returned as it is.

    >>> usual_node("h100", 16)
    ('8x-h100-sxm5-80gb', ['h100-sxm5-80gb, not h100-nvl-94gb or h100-pcie-80gb (--hardware)'])
    >>> usual_node("dgx-h100", None)
    ('dgx-h100', [])
    """
    named = is_path(name) or is_hardware(name) or machine_called(name) is not None
    nodes = [] if named else nodes_meant(name, devices)
    if not nodes:
        return name, []
    usual, *rest = (node.partition("-")[2] for node in nodes)
    others = f", not {' or '.join(rest[:_MOST_OTHERS])}" if rest else ""
    return nodes[0], [f"{usual}{others} (--hardware)"]


def _values(options: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the options by the keys of a job file."""
    values = {key: value for name, value in options.items() if (key := JOB_OPTIONS[name].key)}
    return values | ({"devices": _devices_of_nodes(options)} if "--nodes" in options else {})


def read_options(reference: str, read: Callable[..., J], launched: Mapping[str, Any] | None = None) -> J:
    """Return the job of a line of options; ``read`` reads the text of a job file of its kind.

    ``launched`` is what a launch file says of the job, of training, as of ``option_job_beside``.
    """
    options = option_job(reference) if launched is None else option_job_beside(reference, launched)
    try:
        job = read(options.text, reference, name=options.name, base=Path(), reference=reference)
    except SpecError as error:
        raise _with_option_names(error) from None
    source = replace(job.source, assumed=options.assumed) if job.source else None
    return replace(job, source=source)


def _with_option_names(error: SpecError) -> SpecError:
    """Return ``error`` of the file of a line of options with the options in the place of keys and lines."""
    names = {f"$.{option.key}": name for name, option in JOB_OPTIONS.items() if option.key}
    problems = []
    for problem in error.problems:
        name = next((names[key] for key in names if problem.path.startswith(key)), None)
        mine = problem.path.startswith("$") and name is not None
        problems.append(replace(problem, path=str(name), file=None, line=None) if mine else problem)
    return SpecError(problems)


def assumed_sequence(of_model: ModelSpec) -> int:
    """Return the tokens of a sequence that is assumed."""
    return min(ASSUMED_SEQUENCE, of_model.max_positions or ASSUMED_SEQUENCE)


def assumed_batch(sequence_length: int, devices: int) -> int:
    """Return the sequences of a batch that is assumed, a multiple of the devices.

    >>> assumed_batch(4096, 2), assumed_batch(4096, 6), assumed_batch(4096, 1024)
    (128, 132, 1024)
    """
    return -(-max(ASSUMED_BATCH_TOKENS // sequence_length, 1) // devices) * devices


def _options(reference: str, launched: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the values of the options by name; raises SpecError for what neither has."""
    try:
        words = shlex.split(reference)
    except ValueError as error:
        raise SpecError(f"{reference!r} is no line of options: {error}") from error
    split = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    names, values = split[::2], split[1::2]
    unknown = [name for name in names if name not in JOB_OPTIONS]
    if unknown or len(names) != len(values):
        every = ", ".join(JOB_OPTIONS)
        raise SpecError(f"{(unknown or names)[-1]!r} is no option with a value: options of a job are {every}")
    options = dict(zip(names, values, strict=True))
    examples = {"--model": "llama3.1-8b", "--hardware": "2x-rtx4090, or auto for this machine's GPUs"}
    missing = [
        Problem(f"is missing, such as {name} {words}", name)
        for name, words in examples.items()
        if name not in options and JOB_OPTIONS[name].key not in (launched or ())
    ]
    if missing:
        raise SpecError(missing)
    return options


def _devices_of_nodes(options: Mapping[str, str]) -> str:
    """Return the devices of ``--nodes``; raises SpecError beside ``--devices`` and for no whole numbers."""
    nodes, name = options["--nodes"], options["--hardware"]
    if "--devices" in options:
        raise SpecError(
            [Problem(f"says the devices again, after --devices {options['--devices']}", "--nodes")]
        )
    if not _NODES.fullmatch(nodes):
        raise SpecError([Problem(f"{nodes!r} is no number of nodes, such as 4, or several, 2,4", "--nodes")])
    try:
        each = hardware(name, Path())[0].devices
    except AutoplanError:
        return nodes  # Whoever reads the file tells what is wrong with the hardware.
    return ",".join(str(int(number) * each) for number in nodes.split(","))


def _task(values: Mapping[str, str]) -> str:
    word = values.get("--task", TASKS[0]).casefold()
    task = _CALLED.get(word, word)
    if task not in TASKS:
        hint = f": --task lora --rl {word} learns by it" if word in RL_METHODS else ""
        raise SpecError([Problem(f"{word!r} is not one of {', '.join(TASKS)}{hint}", "--task")])
    return task


#: Numbers that a job needs, with any value where the model or the hardware is none.
_NEEDED: Final = (
    "workload.sequence_length",
    "workload.global_batch_size",
    "workload.input_tokens",
    "workload.output_tokens",
    "adapters.rank",
)


class _JobWriter:
    """The keys of a job file by their paths, to which what is left out is added."""

    def __init__(self, options: Mapping[str, str], task: str) -> None:
        devices = options.get("--devices", "")
        count = int(devices) if _NUMBER.fullmatch(devices) else None
        self.assumed: list[str] = []
        if "--hardware" in options:
            meant, self.assumed = usual_node(options["--hardware"], count)
            options = {**options, "--hardware": meant}
        self.values: dict[str, str] = _values(options)
        self.task = task
        self.launched: frozenset[str] = frozenset()

    def take(self, launched: Mapping[str, Any]) -> None:
        """Add what a launch file says and the options do not; what is no plain value is only not assumed."""
        for key in (option.key for option in JOB_OPTIONS.values() if option.key):
            section, _, name = key.partition(".")
            inner = launched.get(section)
            value = inner.get(name) if name and isinstance(inner, Mapping) else None if name else inner
            if isinstance(value, str | int):
                self.values.setdefault(key, str(value))
            elif value is not None:
                self.launched |= {key}

    def assume(self) -> None:
        """Add what is left out."""
        try:
            if self.task == "serve":
                self._assume_requests(model(self.values["model"], Path()))
            else:
                self._assume_workload(model(self.values["model"], Path()))
        except AutoplanError:
            # Whoever reads the file tells of the model and the hardware, and of nothing that is missing.
            for key in _NEEDED:
                if self.task in next(x.tasks for x in JOB_OPTIONS.values() if x.key == key):
                    self.values.setdefault(key, "1")
            if self.task == "serve":
                self.values.setdefault("stack", _ENGINE)

    def _assume_workload(self, spec: ModelSpec) -> None:
        length = assumed_sequence(spec)
        self._assume(
            "workload.sequence_length", length, f"sequences of {length:,} tokens", "--sequence-length"
        )
        # Whoever reads the file refuses a number of devices below one.
        devices = max(1, clusters_of(self.values["hardware"], self._devices(), Path())[-1].devices)
        batch = _ADAPTED_SEQUENCES * devices
        if self.task == "train":
            length_text = self.values["workload.sequence_length"]
            # Whoever reads the file refuses what is no number of tokens.
            number = int(length_text) if re.fullmatch(r"[0-9]{1,18}", length_text) else 0
            batch = assumed_batch(number or length, devices)
        self._assume("workload.global_batch_size", batch, f"a batch of {batch:,} sequences", "--batch")
        self._assume_fp16()
        if self.task != "train":
            self._assume("adapters.rank", _ASSUMED_RANK, f"adapters of rank {_ASSUMED_RANK}", "--rank")
        if self.task != "train" and spec.moe is not None:
            self._assume("adapters.targets", "attention", "adapters of attention alone", "--targets")
        if self.task == "qlora":
            self._assume("adapters.base", "nf4", "a frozen base in nf4", "--base")

    def _assume_requests(self, spec: ModelSpec) -> None:
        if "workload.trace" not in self.values:
            self._assume_load(spec)
        published = published_format(spec.name)
        if published != "bf16":
            self._assume("precision", published, f"weights in {published}, as published", "--precision")
        self._assume_fp16()
        # A job of serving that leaves its devices out asks for the fewest that serve its load.
        devices = clusters_of(self.values["hardware"], self._devices(), Path())[-1].devices
        self.values.setdefault("devices", str(devices))
        node, _ = hardware(self.values["hardware"], Path())
        name = _ENGINES.get(device(node.device).vendor, _ENGINE)
        newest = f"{name}@{list(engine_entry(name).versions)[-1]}"
        self._assume("stack", newest, f"the engine {newest}", "--stack")

    def _assume_fp16(self) -> None:
        """Assume fp16 where the devices have no bf16, such as V100 and T4."""
        node, _ = hardware(self.values["hardware"], Path())
        of_node = device(node.device)
        if of_node.peak_flops("bf16") is None:
            self._assume("precision", "fp16", f"fp16, as {of_node.title} has no bf16", "--precision")

    def _assume_load(self, spec: ModelSpec) -> None:
        tokens = min(_ASSUMED_TOKENS, (spec.max_positions or 2 * _ASSUMED_TOKENS) // 2)
        self._assume("workload.input_tokens", tokens, f"prompts of {tokens:,} tokens", "--input-tokens")
        self._assume("workload.output_tokens", tokens, f"answers of {tokens:,} tokens", "--output-tokens")
        if not {"workload.concurrency", "workload.request_rate"} & set(self.values):
            clients = f"{_ASSUMED_CLIENTS} clients"
            self._assume("workload.concurrency", _ASSUMED_CLIENTS, clients, "--concurrency, --request-rate")

    def _assume(self, key: str, value: int | str, words: str, option: str) -> None:
        if key not in self.values and key not in self.launched:
            self.values[key] = str(value)
            self.assumed.append(f"{words} ({option})")

    def _devices(self) -> int | tuple[int, ...] | None:
        count = self.values.get("devices")
        return tuple(map(int, count.split(","))) if count and _NUMBERS.fullmatch(count) else None

    def name(self) -> str:
        """Return the name of the job: model, task and hardware."""
        named = model_called(self.values.get("model", "")) or self.values.get("model", "model")
        words = "-".join((named, self.task, self.values["hardware"])).lower()
        return re.sub(r"[^a-z0-9._-]+", "-", words)

    def text(self) -> str:
        """Return the job file, with what is assumed in comments."""
        lines = [f"# Assumed: {words}." for words in self.assumed]
        lines += ["schema: 1", f"kind: {'serving' if self.task == 'serve' else 'training'}"]
        top = [key for key in ("model", "hardware", "devices", "stack", "program") if key in self.values]
        lines += [f"{key}: {_value(self.values[key])}" for key in top]
        for section in ("workload", "adapters"):
            inner = [key for key in self.values if key.startswith(f"{section}.")]
            # Keys in the order of the options, whatever was assumed.
            inner.sort(key=[option.key for option in JOB_OPTIONS.values()].index)
            if inner:
                parts = (f"{key.partition('.')[2]}: {_value(self.values[key], key)}" for key in inner)
                lines.append(f"{section}: {{{', '.join(parts)}}}")
        if self.task == "serve":
            lines.append(f"objectives: [{', '.join(_SERVED_OBJECTIVES)}]")
        if "precision" in self.values and self.task == "serve":
            formats = ", ".join(map(json.dumps, self.values["precision"].split(",")))
            lines.append(f"precision: {{weights: [{formats}]}}")
        elif "precision" in self.values:
            lines.append(f"precision: {_value(self.values['precision'])}")
        if "rl" in self.values:
            lines.append(f"rl: {_value(self.values['rl'])}")
        if "optimizer" in self.values:
            lines.append(f"optimizer: {_value(self.values['optimizer'])}")
        return "\n".join([*lines, ""])


def _value(text: str, key: str = "") -> str:
    """Return a value as YAML: numbers, several as a list, switches, and text that stays text."""
    if key in _SWITCHES and text.casefold() in {"true", "false"}:
        return text.casefold()
    if _NUMBERS.fullmatch(text):
        return text if "," not in text else f"[{text.replace(',', ', ')}]"
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*|[0-9]+x-[a-z0-9.-]+", text)
    return text if plain and text.casefold() not in {"null", "true", "false"} else json.dumps(text)
