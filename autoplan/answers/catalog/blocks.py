"""Catalogue listings, entries, and the entry of this machine, as documents and as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

import yaml

from autoplan.catalog import (
    COUNTS,
    FOLDERS,
    EntryKind,
    ExtendedStack,
    Found,
    entry_names,
    load_entry,
    read_stack,
    written,
)
from autoplan.catalog.detection import DetectedHardware
from autoplan.errors import AutoplanError
from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.render.blocks import (
    COLUMN_GAP,
    GAP,
    Block,
    Column,
    Heading,
    Sentence,
    data_table,
    fitted,
    total_width,
)
from autoplan.report.render.terminal import Terminal
from autoplan.results.plan import ParameterCounts
from autoplan.schema.adapters import batches_of
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.hardware import ClusterSpec, DeviceSpec, NodeSpec
from autoplan.schema.job import JobSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.program import ProgramSpec
from autoplan.schema.yaml.document import Path
from autoplan.schema.yaml.inheritance import OWN, Tree, completed, leaves
from autoplan.units import format_bytes, format_count, format_rate

# A stack with its inherited values, each marked with the stack that it comes from.


#: Where each value is from, by its path: a stack, the schema's default, or nothing for the file itself.
_Marks: TypeAlias = Mapping[Path, str]

_SOURCES: Final = "sources"
#: Keys before and after the model parameters.
_ENDS: Final = (*OWN, _SOURCES)
_DEFAULT: Final = "default"
#: Longest line that is padded so that marks form a column.
_WIDEST: Final = 60
#: Lines are not folded, so that a mark is on the line of its value.
_ENDLESS: Final = 1_000_000


def stack_text(stack: ExtendedStack) -> str:
    """Return ``stack`` as a YAML file without a parent, with comments on inherited values.

    ``# NAME`` is the stack that a value comes from, ``# default`` marks defaults.
    """
    complete = completed(stack.content, StackSpec)
    ordered = {key: complete[key] for key in (*OWN, *(x for x in complete if x not in _ENDS), _SOURCES)}
    marks = dict.fromkeys(_defaults(stack, complete), _DEFAULT) | stack.inherited
    lines = list(_lines(ordered, stack.origins, marks, ()))
    short = [len(line) for line, mark in lines if mark and len(line) <= _WIDEST]
    column = max(short, default=0)
    return "\n".join(f"{line:<{column}}  # {mark}" if mark else line for line, mark in lines) + "\n"


def stack_document(stack: ExtendedStack) -> Document:
    """Return the parents of ``stack``, the nearest first, its inherited values and its defaults by path."""
    return {
        "extends": list(stack.parents),
        "inherited": {_dotted(path): name for path, name in stack.inherited.items()},
        "defaults": [_dotted(path) for path in _defaults(stack, completed(stack.content, StackSpec))],
    }


def _defaults(stack: ExtendedStack, complete: Tree) -> list[Path]:
    """Return the paths of defaults in ``complete``."""
    written = {path for path, _ in leaves(stack.content)}
    return [path for path, _ in leaves(complete) if path not in written]


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _lines(content: Tree, origins: Tree, marks: _Marks, above: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of ``content`` below the keys ``above``, each with its mark."""
    for key, value in content.items():
        path, inner = (*above, key), origins.get(key)
        line = f"{'  ' * len(above)}{key}:"
        if isinstance(value, dict) and isinstance(inner, dict) and value:
            yield line, ""
            yield from _lines(value, inner, marks, path)
        else:
            yield f"{line} {_flow(value)}", marks.get(path, "")


def _flow(value: object) -> str:
    """Return ``value`` as YAML on one line.

    >>> _flow({"orders": ("tp-cp-dp-pp",), "note": "a: b"}), _flow(None)
    ("{orders: [tp-cp-dp-pp], note: 'a: b'}", 'null')
    """
    text: str = yaml.safe_dump(_lists(value), default_flow_style=True, sort_keys=False, width=_ENDLESS)
    return text.removesuffix("\n").removesuffix("\n...")


def _lists(value: object) -> object:
    """Return ``value`` with tuples converted to lists."""
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, tuple | list) else value


# Columns of the catalogue listing for each kind of entry.


Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fact:
    """One column of a listing: key in documents, head, its value of an entry, and the value's format.

    ``of`` is the path of the value's attribute, by default the key, or a function of the entry.
    """

    key: str
    head: str
    of: str | Callable[[Any], Any] = ""
    show: Callable[[Any], str] = str
    number: bool = False

    def value(self, entry: object) -> Any:  # noqa: ANN401 - whatever the entry has
        """Return the fact of ``entry``, with tuples as lists."""
        value = self.of(entry) if callable(self.of) else attrgetter(self.of or self.key)(entry)
        return list(value) if isinstance(value, tuple) else value

    def text(self, facts: Facts) -> str:
        """Return the cell of an entry; a dash if the value is missing."""
        value = facts.get(self.key)
        return "-" if value is None else self.show(value)


@dataclass(frozen=True, slots=True)
class _CountedModel:
    """A model with its parameters, which its file does not say."""

    spec: ModelSpec
    parameters: ParameterCounts


def _flops(rate: float) -> str:
    return format_rate(rate, "FLOP/s")


def _comma(number: int) -> str:
    return f"{number:,}"


def _commas(numbers: int | list[int]) -> str:
    return ", ".join(map(_comma, numbers)) if isinstance(numbers, list) else _comma(numbers)


def _numbers(values: int | tuple[int, ...] | None) -> int | list[int] | None:
    """Return one number, or several as a list."""
    if not isinstance(values, tuple):
        return values
    return values[0] if len(values) == 1 else list(values)


def _peak(entry: DeviceSpec) -> float | None:
    rate = entry.peak.bf16 or entry.peak.fp16
    return rate.value if rate else None


def _devices_of_cluster(entry: ClusterSpec) -> int | None:
    node = load_entry("node", entry.node)
    return entry.nodes * node.devices if isinstance(node, NodeSpec) else None


def _active(model: _CountedModel) -> int | None:
    return model.parameters.active if model.spec.moe else None


def _batches(entry: JobSpec) -> int | list[int] | None:
    return _numbers(batches_of(entry.workload.global_batch_size))


def _tasks(entry: ProgramSpec) -> list[str]:
    return list(dict.fromkeys(task for way in entry.ways for task in way.tasks))


def _parallelism(entry: StackSpec) -> list[str]:
    return [name for name in ("tensor", "sequence", "pipeline") if getattr(entry.rules, f"{name}_parallel")]


def _number(
    key: str, head: str, of: str | Callable[[Any], Any] = "", show: Callable[[Any], str] = _comma
) -> Fact:
    return Fact(key, head, of, show, number=True)


def _bandwidth(key: str, head: str, of: str) -> Fact:
    return _number(f"{key}_bytes_per_second", head, of, lambda rate: format_rate(rate, "B/s"))


def _names(key: str, head: str, of: str | Callable[[Any], Any] = "") -> Fact:
    return Fact(key, head, of, ", ".join)


_TITLE: Final = Fact("title", "title")
_MODEL: Final = Fact("model", "model")
_HARDWARE: Final = Fact("hardware", "hardware")
_DEVICES: Final = Fact("devices", "devices", lambda job: _numbers(job.devices), _commas, number=True)

#: The columns of each kind of entry, after its name.
COLUMNS: Final[dict[EntryKind, tuple[Fact, ...]]] = {
    "device": (
        _TITLE,
        _number("peak_flops", "16-bit peak", _peak, _flops),
        _number("memory_bytes", "memory", "memory.capacity.value", format_bytes),
        _bandwidth("memory_bandwidth", "bandwidth", "memory.bandwidth.value"),
    ),
    "node": (
        _TITLE,
        _number("devices", "devices"),
        Fact("device", "of"),
        Fact("fabric", "fabric", "fabric.topology"),
        _bandwidth("fabric_bandwidth", "per device", "fabric.bandwidth.value"),
        _bandwidth("network_bandwidth", "network", "network.bandwidth_per_device.value"),
    ),
    "cluster": (
        _TITLE,
        _number("nodes", "nodes"),
        Fact("node", "of"),
        _number("devices", "devices", _devices_of_cluster),
    ),
    "model": (
        Fact("title", "title", lambda model: model.spec.title or model.spec.name),
        _number("parameters", "parameters", "parameters.total", format_count),
        _number("active_parameters", "active", _active, format_count),
        _number("layers", "layers", "spec.layers"),
        _number("hidden_size", "hidden", "spec.hidden_size"),
        _number("experts", "experts", lambda model: model.spec.moe.experts if model.spec.moe else None),
    ),
    "job": (
        _MODEL,
        _DEVICES,
        _HARDWARE,
        _number("global_batch_size", "sequences", _batches, _commas),
        _number("sequence_length", "sequence length", "workload.sequence_length"),
    ),
    "serving": (
        _MODEL,
        _DEVICES,
        _HARDWARE,
        Fact("engine", "engine", "stack"),
        _number("longest_request_tokens", "longest request", "workload.longest_tokens"),
    ),
    "grid": (
        Fact("base", "base", lambda grid: grid.base if isinstance(grid.base, str) else None),
        _names("keys", "varied keys", lambda grid: list(grid.grid)),
        _number("combinations", "combinations", lambda grid: math.prod(map(len, grid.grid.values()))),
    ),
    "kernels": (
        Fact("devices", "devices", show=lambda names: ", ".join(names) or "any"),
        _number("collective_tables", "tables", lambda kernels: len(kernels.collectives.tables)),
    ),
    "stack": (
        _TITLE,
        _number("zero_stages", "ZeRO", "rules.zero_stages", lambda stages: ", ".join(map(str, stages))),
        _names("parallelism", "parallelism", _parallelism),
        _names(
            "schedules",
            "schedules",
            lambda stack: stack.rules.schedules if stack.rules.pipeline_parallel else [],
        ),
    ),
    "engine": (_TITLE, _names("versions", "versions", lambda engine: list(engine.versions))),
    "engine-kernels": (
        _names("devices", "devices"),
        _names("engines", "engines", lambda kernels: sorted({table.engine for table in kernels.gemm})),
        _number("gemm_tables", "tables", lambda kernels: len(kernels.gemm)),
    ),
    "intervals": (_TITLE, _number("spreads", "spreads", lambda intervals: len(intervals.spreads))),
    "program": (
        _TITLE,
        Fact("version", "version"),
        _names("ways", "ways", lambda program: [way.title for way in program.ways]),
        _names("tasks", "tasks", _tasks),
    ),
}


def entry_facts(kind: EntryKind, name: str, parameters: Mapping[str, ParameterCounts]) -> Facts:
    """Return the listed facts of one entry, in base units; ``parameters`` are those of models by name.

    Raises CatalogError or SpecError for an entry that does not load.
    """
    entry: object = load_entry(kind, name)
    if isinstance(entry, ModelSpec):
        entry = _CountedModel(entry, parameters[name])
    return {"name": name, **{fact.key: fact.value(entry) for fact in COLUMNS[kind]}}


_LEAST_TITLE: Final = 24

#: What follows the list of nodes.
_DERIVED: Final = (
    f"Also {', '.join(f'{count}x-DEVICE' for count in COUNTS)} for each entry of kind device, such as"
    " 4x-h100-pcie-80gb: derived where no file describes such a node (`autoplan catalog show NAME`)."
)

#: Parameters of the models of a catalogue by name, without those of invalid files.
_Parameters = Mapping[str, ParameterCounts]


def catalog_document(kinds: Sequence[EntryKind], parameters: _Parameters) -> Document:
    """Return the entries of ``kinds`` with their facts as a document."""
    document: Document = {"schema": SCHEMA, "catalog": {kind: _listing(kind, parameters) for kind in kinds}}
    return document | ({"derived_nodes": derived_nodes()} if "node" in kinds else {})


def derived_nodes() -> Document:
    """Return the derived nodes: for each device, the numbers of it that make one."""
    return {"name": "{devices}x-{device}", "devices": list(COUNTS), "device": list(entry_names("device"))}


def catalog_blocks(kinds: Sequence[EntryKind], parameters: _Parameters, terminal: Terminal) -> list[Block]:
    """Return the entries of ``kinds``, one table per kind."""
    return [part for kind in kinds for part in _section(kind, parameters, terminal)]


def _listing(kind: EntryKind, parameters: _Parameters) -> list[dict[str, Any]]:
    listing = []
    for name in entry_names(kind):
        try:
            listing.append(entry_facts(kind, name, parameters))
        except AutoplanError as error:
            # One invalid file of a user's catalogue must not hide the others.
            problem = str(error).splitlines()[0]
            listing.append({"name": name, "title": f"(invalid: {problem})", "problem": problem})
    return listing


def _section(kind: EntryKind, parameters: _Parameters, terminal: Terminal) -> Iterator[Block]:
    listing = _listing(kind, parameters)
    yield Heading(f"{'/'.join(FOLDERS[kind])}: {len(listing)} entries of kind {kind}")
    names = Column("name", tuple(facts["name"] for facts in listing), "text", "name")
    yield data_table([names, *_fact_columns(kind, listing, names.width, terminal)])
    if kind == "node":
        yield Sentence(_DERIVED, "quiet")
    yield GAP


def _fact_columns(
    kind: EntryKind, listing: Sequence[dict[str, Any]], taken: int, terminal: Terminal
) -> list[Column]:
    """Return the columns of facts that fit right of the names; the first is shortened if needed."""
    first, *rest = (
        Column(fact.head, tuple(map(fact.text, listing)), "number" if fact.number else "text")
        for fact in COLUMNS[kind]
    )
    room = terminal.width - taken - COLUMN_GAP
    while rest and room - total_width(rest) - COLUMN_GAP < min(first.width, _LEAST_TITLE):
        rest.pop()
    width = room - (total_width(rest) + COLUMN_GAP if rest else 0)
    return [fitted(first, max(width, _LEAST_TITLE), terminal), *rest]


def entries_text(entries: Sequence[Found], parameters: _Parameters) -> str:
    """Return the files of entries, each a YAML document after a comment that names it.

    Stacks are printed with their inherited values, other entries unchanged.
    """
    return "---\n".join(_entry_text(kind, name, parameters) for kind, name in entries)


def _entry_text(kind: EntryKind, name: str, parameters: _Parameters) -> str:
    text, file = written(kind, name)
    total = parameters[name].total if kind == "model" and name in parameters else None
    count = f" ({total:,} = {format_count(total)} parameters)" if total else ""
    head = f"# {kind} {name}{count}: {file}\n"
    if kind != "stack":
        return f"{head}{text.rstrip()}\n"
    stack = read_stack(text, file)
    parents = "".join(f"# extends {name}: {path}\n" for path, name in stack.files[1:])
    return f"{head}{parents}{stack_text(stack)}"


def entries_document(entries: Sequence[Found], parameters: _Parameters) -> Document:
    """Return the parsed values of entries as a document, quantities in base units."""
    return {"schema": SCHEMA, "entries": [_entry_document(kind, name, parameters) for kind, name in entries]}


def _entry_document(kind: EntryKind, name: str, parameters: _Parameters) -> Document:
    values = load_entry(kind, name).model_dump(mode="json", by_alias=True)
    document: Document = {"kind": kind, "name": name}
    if kind == "model" and name in parameters:
        document["parameters"] = parameters[name].total
    if kind == "stack":
        document |= stack_document(read_stack(*written(kind, name)))
    return {**document, "values": values}


def hardware_document(machine: DetectedHardware) -> Document:
    """Return what was found on this machine as plain values."""
    return {
        "schema": SCHEMA,
        "kind": "detected hardware",
        "devices": plain(machine.devices),
        "nodes": {"count": machine.nodes, "variable": machine.nodes_variable},
        "catalog": {"device": machine.device, "node": machine.entry, "devices": machine.total},
    }


def hardware_table(machine: DetectedHardware) -> str:
    """Return what was found as lines of text."""
    devices, node = machine.devices, load_entry("node", machine.entry)
    assert isinstance(node, NodeSpec)  # noqa: S101 - load_entry returns the kind that it is asked for
    by = f", chosen by {devices.restricted_by}" if devices.restricted_by else ""
    links = {
        "all pairs": f"{devices.fabric} between all pairs",
        "some pairs": f"{devices.fabric} between some pairs, which the entry leaves out",
        "none": f"no {devices.fabric}",
        "one device": "one device",
    }
    counted = (
        f"from {machine.nodes_variable}" if machine.nodes_variable else "nothing in the environment says more"
    )
    numbers = node.derived_from
    described = f"numbers derived from {numbers}" if numbers else f"described as {node.name}, {node.title}"
    each = f"{format_bytes(devices.memory_bytes)} each ({devices.library}{by})"
    lines = [
        ("found", f"{devices.count} x {devices.name}, {each}"),
        ("links", links[devices.linked]),
        ("nodes", f"{machine.nodes} ({counted})"),
        ("entry", f"{machine.entry}: {described}"),
        ("in a job", f"hardware: auto, which is now hardware: {machine.entry} with devices: {machine.total}"),
    ]
    return "".join(f"{head:<10}{text}\n" for head, text in lines)
