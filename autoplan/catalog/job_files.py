"""Jobs: reading a job file, resolving the names in it, and changing the values of some keys.

A change leaves everything else as its author wrote it: the positions are those of PyYAML's nodes, so that the
text around a value is copied and not written anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from autoplan.catalog.entries import assumed_stack, is_hardware, kernels_at, model, stack_at
from autoplan.catalog.job_option_names import is_option_job
from autoplan.catalog.model_names import model_called
from autoplan.catalog.option_jobs import Attempts, clusters_of, read_options, serves
from autoplan.catalog.programs import with_programs
from autoplan.catalog.relatives import kernels_for
from autoplan.catalog.roots import EntryKind, entry_names, entry_text, is_path, names_file, read_file
from autoplan.errors import AutoplanError, Problem, SpecError, UnsupportedError
from autoplan.schema.adapters import batches_of
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.software import with_software
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Cluster, Job, JobFile, JobSpec, Objective, Workload
from autoplan.schema.model import ModelSpec
from autoplan.schema.yaml.document import Plain
from autoplan.schema.yaml.loader import valid_part
from autoplan.schema.yaml.parser import parse_yaml

#: What a command for training says of a serving job.
SERVING_JOB: Final = "this is a serving job, which this command does not take"

_MOST_CHOICES: Final = 64
#: Placeholders of invalid required keys, so that the other keys are validated.
_STAND_INS: Final = {
    "kind": "training",
    "model": "none",
    "hardware": "none",
    "workload": {"sequence_length": 1, "global_batch_size": 1},
}


def is_serving_job(reference: str | Path) -> bool:
    """Return whether ``reference`` names a serving job; False where it cannot be read, too."""
    text = str(reference)
    if is_option_job(reference):
        return serves(text)
    if not (isinstance(reference, Path) or is_path(text)):
        return text not in entry_names("job") and text in entry_names("serving")
    try:
        document = parse_yaml(read_file(Path(reference)), name=text)
    except AutoplanError:
        return False
    return document.at(["kind"]) == "serving"


def load_job(reference: str | Path) -> Job:
    """Return the job that ``reference`` names: the path of a job file, or the name of a shipped job.

    It may also be a line of options, ``--model NAME --hardware NODE --task lora``. Raises SpecError with all
    problems of the file, CatalogError for unknown names.
    """
    if is_option_job(reference) and not serves(str(reference)):
        return read_options(str(reference), job_of_text)
    content, file, name, base = opened("job", reference)
    return job_of_text(content, file, name=name, base=base, reference=str(reference))


def job_of_text(text: str, file: str, *, name: str, base: Path, reference: str) -> Job:
    """Return the job of ``text``, a job file that messages call ``file``, with paths relative to ``base``.

    ``reference`` is what the user calls it. Raises SpecError with all problems of the text.
    """
    document = parse_yaml(text, name=file)
    if document.at(["kind"]) == "serving":
        message = f"{SERVING_JOB}: `autoplan plan {reference}` plans it"
        raise SpecError([Problem(message, "$.kind", document.name, document.line(["kind"]))])
    spec, wrong, problems = valid_part(document, JobSpec, _STAND_INS)
    job = _resolved(spec, name, base, Attempts(document, wrong, problems))
    keys = frozenset(document.value) if isinstance(document.value, dict) else frozenset()
    source = JobFile(reference, text, base, keys, str(document.at(["hardware"])))
    return replace(job, source=source)


def opened(kind: EntryKind, reference: str | Path) -> tuple[str, str, str, Path]:
    """Return text, file and name of a path or an entry, and the folder of its relative paths."""
    _refuse_other_kind(reference)
    text = str(reference)
    _refuse_parts(text, kind)
    if isinstance(reference, Path) or is_path(text):
        path = Path(reference)
        return read_file(path), text, path.stem, path.parent
    if kind == "job" and text not in entry_names("job") and text in entry_names("serving"):
        raise UnsupportedError(f"{text}: {SERVING_JOB}: `autoplan plan {text}` plans it")
    content, file = entry_text(kind, text)
    return content, file, text, Path()


def opened_job(reference: str | Path) -> tuple[str, str, str, Path]:
    """Return what ``opened`` does of a job of whatever kind."""
    return opened("serving" if is_serving_job(reference) else "job", reference)


def _refuse_other_kind(reference: object) -> None:
    """Raise UnsupportedError for a loaded job, which is one of the other kind."""
    kind = getattr(reference, "kind", None)
    if kind is not None:
        other = "training" if kind == "serving" else "serving"
        raise UnsupportedError(f"the job is one of {kind}, and this takes one of {other}")


def _refuse_parts(text: str, kind: EntryKind) -> None:
    """Raise UnsupportedError where a job is asked for by a line of options of the other kind, or by a part.

    A part is a model or hardware: the message says how a job is made of them.
    """
    if is_option_job(text):
        if kind == "serving":
            raise UnsupportedError(f"this command takes a job of serving: {text} --task serve")
        raise UnsupportedError(f"{SERVING_JOB}: `autoplan plan {text}` plans it")
    if names_file(text) or text in (*entry_names("job"), *entry_names("serving")):
        return
    if os.path.isfile(text):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return
    device = text in entry_names("device")
    if model_called(text) is not None:
        what, line = "a model", f"--model {text} --hardware 2x-rtx4090"
    elif device or (not is_path(text) and is_hardware(text)):
        what, line = "hardware", f"--model llama3.1-8b --hardware {'2x-' if device else ''}{text}"
    else:
        return
    raise UnsupportedError(
        f"{text} is {what}, not a job: `autoplan plan {line} --task lora` plans one (or --task train, serve)"
    )


def resolve_job(spec: JobSpec, *, name: str = "job", base: Path | None = None) -> Job:
    """Return ``spec`` with every name resolved; paths in it are relative to ``base``."""
    return _resolved(spec, name, base or Path(), Attempts(None))


def _resolved(spec: JobSpec, name: str, base: Path, attempts: Attempts) -> Job:
    the_model = attempts.find("model", lambda: _model(spec, base), needs={"model"})
    clusters = attempts.find(
        "hardware", lambda: clusters_of(spec.hardware, spec.devices, base), needs={"hardware"}
    )
    cluster = clusters[0] if clusters else None
    the_stack = attempts.find("stack", lambda: _stack(spec, cluster, base))
    kernels = attempts.find("kernels", lambda: _kernels(spec, cluster, base))
    batches = attempts.find("workload.global_batch_size", lambda: _batches(spec))
    for key in ("objectives", "limits"):
        attempts.find(key, lambda key=key: _priced(spec, key, cluster), needs={"price"})  # type: ignore[misc]
    if attempts.problems or not (the_model and cluster and clusters and the_stack and kernels and batches):
        raise SpecError(attempts.in_order())
    job = Job(
        name=name,
        model=the_model,
        cluster=cluster,
        stack=the_stack,
        kernels=kernels,
        workload=_workload(spec, batches[0]),
        precision=spec.precision,
        optimizer=spec.optimizer,
        adapters=spec.adapters,
        rl=spec.rl,
        routing=spec.routing,
        search=spec.search,
        limits=spec.limits,
        rules=spec.rules,
        objectives=spec.objectives or usual_objectives(len(clusters), len(batches)),
        price=spec.price,
        stack_assumed=not spec.stack,
        software=spec.software,
        deadline=spec.deadline,
        rule_lines=attempts.lines("rules", len(spec.rules)),
    )
    if len(clusters) * len(batches) > 1:
        choices = (replace(job, cluster=c, workload=_workload(spec, b)) for c in clusters for b in batches)
        job = replace(job, choices=tuple(choices))
    run = attempts.find("program", lambda: with_programs(job, spec.program, stack_named=bool(spec.stack)))
    if run is None:
        raise SpecError(attempts.in_order())
    return run


def _model(spec: JobSpec, base: Path) -> ModelSpec:
    """Return the model that the job names, or describes itself."""
    return spec.model if isinstance(spec.model, ModelSpec) else model(spec.model, base)


def _workload(spec: JobSpec, batch: int) -> Workload:
    work = spec.workload
    return Workload(sequence_length=work.sequence_length, global_batch_size=batch, documents=work.documents)


def _batches(spec: JobSpec) -> tuple[int, ...]:
    batches = batches_of(spec.workload.global_batch_size)
    if not 1 <= len(batches) <= _MOST_CHOICES:
        raise UnsupportedError(f"the range has {len(batches)} batches: 1 to {_MOST_CHOICES} are supported")
    return batches


def usual_objectives(devices: int, batches: int) -> tuple[Objective, ...]:
    """Return the default objectives of a job with these numbers of devices and of batches."""
    objectives: list[Objective] = ["step_time", "peak_memory"]
    if batches > 1:
        objectives.append("tokens_per_second")
    if devices > 1:
        objectives.append("devices")
    return tuple(objectives)


def _priced(spec: JobSpec, key: str, cluster: Cluster | None) -> None:
    """Raise UnsupportedError if objectives or limits need an unknown price or power."""
    needed = {"cost", "energy"}.intersection(spec.objectives or ())
    if key == "limits":
        needed = {name for name in ("cost", "energy") if getattr(spec.limits, name) is not None}
    if "cost" in needed and spec.price is None:
        raise UnsupportedError("cost needs a price, such as price: {per_device_hour: 2.5, date: 2026-11-01}")
    if "energy" in needed and cluster is not None and cluster.device.power is None:
        raise UnsupportedError(
            f"energy needs the power of {cluster.device.name}, which is missing in its file"
        )


def _stack(spec: JobSpec, cluster: Cluster | None, base: Path) -> StackSpec | None:
    """Return the stack of the job, or the one to assume on its node; None if neither is known."""
    if spec.stack:
        return with_software(stack_at(spec.stack, base), spec.software)
    return with_software(assumed_stack(cluster.node), spec.software) if cluster else None


def _kernels(spec: JobSpec, cluster: Cluster | None, base: Path) -> KernelSpec | None:
    """Return the kernel curves of the job, or of the device; None if neither is known."""
    if spec.kernels:
        return kernels_at(spec.kernels, base)
    return kernels_for(cluster.device.name) if cluster else None


#: Keys of a job file that may name other files.
_NAMING_FILES: Final = (
    "model",
    "hardware",
    "stack",
    "kernels",
    "workload.input_tokens.trace",
    "workload.output_tokens.trace",
)
#: Paths that YAML reads as text without quotes, wherever they are.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z0-9]")


def edited_file(job: Job, changes: Iterable[tuple[str, str]], folder: Path) -> tuple[str, Job]:
    """Return the text of the file of ``job`` with new values of keys, as a file of ``folder``, and its job.

    Values are YAML on one line; relative paths are rewritten for ``folder``. Raises UnsupportedError where
    ``job`` comes from no file, or where the edited file cannot be read.
    """
    source = job.source
    if source is None or not source.text:
        raise UnsupportedError("the job was built by a program and has no file to edit: make the edits there")
    text = edited_text(source, changes, folder)
    try:
        edited = job_of_text(text, source.reference, name=job.name, base=folder, reference=source.reference)
    except AutoplanError as error:
        raise UnsupportedError(f"{source.reference} cannot be edited ({error}): edit it by hand") from error
    return text, edited


def edited_text(source: JobFile, changes: Iterable[tuple[str, str]], folder: Path) -> str:
    """Return the text of a job file of any kind with new values of keys, as a file of ``folder``.

    Raises UnsupportedError where the text cannot be edited.
    """
    try:
        text = _moved(source, folder)
        for key, value in changes:
            text = with_value(text, key.split("."), value)
    except AutoplanError as error:
        raise UnsupportedError(f"{source.reference} cannot be edited ({error}): edit it by hand") from error
    return text if text.endswith("\n") else f"{text}\n"


def _moved(source: JobFile, folder: Path) -> str:
    """Return the text of ``source`` with its relative paths as those of a file in ``folder``."""
    text = source.text
    if source.folder.resolve() == folder.resolve():
        return text
    document = parse_yaml(text, name=source.reference)
    for key in _NAMING_FILES:
        named = document.at(key.split("."))
        if not isinstance(named, str):
            continue
        # An engine's file may have its version behind it.
        name, at, version = named.rpartition("@") if "@" in named else (named, "", "")
        if (names_file(name) or key.endswith(".trace")) and not Path(name).is_absolute():
            moved = Path(os.path.relpath(source.folder / name, folder)).as_posix() + at + version
            written = moved if _PLAIN.fullmatch(moved) else json.dumps(moved)
            text = with_value(text, key.split("."), written)
    return text


_Node: TypeAlias = Any
_ALIAS: Final = re.compile(r"\*[^\s,\[\]{}]+")


def with_value(text: str, path: Sequence[str], value: str) -> str:
    r"""Return ``text``, whose root is a mapping, with ``value`` at ``path``, a sequence of keys.

    Of a list of mappings the number of an item, from 0, is a key as well.
    ``value`` is YAML on one line. Keys that are missing are added at the end of their mapping. Items that a
    new list lacks are removed line by line, so that the comments at the others stay. Raises SpecError where
    ``text`` is no YAML. An anchor at a value that is replaced is gone, and aliases of it lead nowhere.

    >>> with_value("limits: {step_time: 2 s}  # ours", ["limits", "step_time"], "3 s")
    'limits: {step_time: 3 s}  # ours'
    >>> with_value("classes: [{name: chat}, {name: rag}]", ["classes", "1", "limits", "goodput"], "90 %")
    'classes: [{name: chat}, {name: rag, limits: {goodput: 90 %}}]'
    >>> with_value("devices: 8", ["search", "recompute"], "any")
    'devices: 8\nsearch: {recompute: any}\n'
    """
    return _YamlText(text).with_value(path, value)


class _YamlText:
    """A YAML text and its root node."""

    def __init__(self, text: str) -> None:
        self.text = text
        # The scanner in Python: libyaml counts positions in bytes.
        try:
            self.root: _Node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise SpecError(f"not valid YAML: {getattr(error, 'problem', None) or error}") from error
        self.line_end = "\r\n" if "\r\n" in text else "\n"

    def with_value(self, path: Sequence[str], value: str) -> str:
        mapping, keys = self.root, list(path)
        while True:
            entry = next(((k, v) for k, v in mapping.value if k.value == keys[0]), None)
            if entry is None:
                return self._with_entry(mapping, f"{keys[0]}: {_nested(keys[1:], value)}")
            key, node = entry
            item = _item(node, keys)
            if item is not None and not _is_alias(key, node):
                mapping, keys = item, keys[2:]
                continue
            if len(keys) == 1 or not isinstance(node, yaml.MappingNode) or _is_alias(key, node):
                break
            mapping, keys = node, keys[1:]
        if isinstance(node, yaml.SequenceNode) and not node.flow_style and not _is_alias(key, node):
            shorter = self._without_items(node, path, value)
            if shorter is not None:
                return shorter
        return self._replaced(key, node, _nested(keys[1:], value))

    def _with_entry(self, mapping: _Node, entry: str) -> str:
        """Return the text with ``entry`` after the last one of ``mapping``."""
        if not mapping.value:
            start, end = mapping.start_mark.index, mapping.end_mark.index
            return f"{self.text[:start]}{{{entry}}}{self.text[end:]}"
        end = self._end(*mapping.value[-1])
        if mapping.flow_style:
            return f"{self.text[:end]}, {entry}{self.text[end:]}"
        indent = " " * int(mapping.value[0][0].start_mark.column)
        line = self.text.find("\n", end) + 1
        before = self.text[:line] if line else f"{self.text}{self.line_end}"
        return f"{before}{indent}{entry}{self.line_end}{self.text[line:] if line else ''}"

    def _replaced(self, key: _Node, node: _Node, value: str) -> str:
        """Return the text with ``value`` in the place of ``node``, the value of ``key``."""
        start, end = node.start_mark.index, self._end(key, node)
        colon = self.text.index(":", key.end_mark.index) + 1
        if _is_alias(key, node):
            alias = _ALIAS.search(self.text, colon)
            start = alias.start() if alias else colon
        if start > colon and "\n" in self.text[colon:start]:
            # A value that begins on a line of its own: the key's line keeps its comment.
            first, rest = self.text.index("\n", colon), self.text[end:]
            return f"{self.text[:colon]} {value}{self.text[colon:first].rstrip(chr(13))}{rest}"
        space = "" if start > colon else " "
        return f"{self.text[: max(start, colon)]}{space}{value}{self.text[max(end, colon) :]}"

    def _without_items(self, node: _Node, path: Sequence[str], value: str) -> str | None:
        """Return the text without the items of a list that ``value`` lacks; None where it is another list."""
        items, remaining = _at(self.text, path), _at(f"value: {value}", ["value"])
        if not isinstance(items, tuple) or not isinstance(remaining, tuple) or not remaining:
            return None
        wanted, dropped = list(remaining), []
        for item, item_node in zip(items, node.value, strict=True):
            if wanted and item == wanted[0]:
                wanted.pop(0)
            else:
                dropped.append(item_node)
        if wanted:
            return None
        text = self.text
        for item_node in reversed(dropped):
            first = text.rfind("\n", 0, item_node.start_mark.index) + 1
            end = text.find("\n", self._end(node, item_node)) + 1
            text = text[:first] + (text[end:] if end else "")
        return text

    def _end(self, key: _Node, node: _Node) -> int:
        """Return where the text of ``node`` ends; ``key`` is before it."""
        if _is_alias(key, node):
            alias = _ALIAS.search(self.text, key.end_mark.index)
            return alias.end() if alias else int(key.end_mark.index)
        if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
            last = node.value[-1]
            return self._end(*(last if isinstance(last, tuple) else (node, last)))
        start, end = node.start_mark.index, node.end_mark.index
        return int(start) + len(self.text[start:end].rstrip())


def _item(node: _Node, keys: Sequence[str]) -> _Node | None:
    """Return the mapping of a list that the second of several keys numbers, from 0, or None."""
    if not isinstance(node, yaml.SequenceNode) or len(keys) < 3 or not keys[1].isdecimal():
        return None
    number = int(keys[1])
    item = node.value[number] if number < len(node.value) else None
    return item if isinstance(item, yaml.MappingNode) else None


def _is_alias(key: _Node, node: _Node) -> bool:
    """Return whether ``node`` is written elsewhere: it begins before its key, or before its list."""
    return bool(node.start_mark.index < key.start_mark.index)


def _nested(keys: Sequence[str], value: str) -> str:
    for key in reversed(keys):
        value = f"{{{key}: {value}}}"
    return value


def _at(text: str, path: Sequence[str]) -> Plain:
    return parse_yaml(text, name="edited").at(path)
