"""Catalogue listings, entries, and the entry of this machine, as documents and as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from autoplan.report.document_fields import SCHEMA, Document
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
from autoplan.report.render.terminal import Terminal, render
from autoplan.results import ParameterCounts
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.interval_spec import IntervalSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.grid_spec import GridSpec
from autoplan.schema.hardware import ClusterSpec, DeviceSpec, NodeSpec
from autoplan.schema.job import JobSpec
from autoplan.schema.job_choices import batches_of
from autoplan.schema.model import ModelSpec
from autoplan.schema.program import ProgramSpec
from autoplan.schema.serving.engine_stack import EngineSpec
from autoplan.schema.serving.serving_spec import ServingSpec
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
    """One column of a listing: key in documents, head, and format of the value."""

    key: str
    head: str
    show: Callable[[Any], str] = str
    number: bool = False

    def text(self, facts: Facts) -> str:
        """Return the cell of an entry; a dash if the value is missing."""
        value = facts.get(self.key)
        return "-" if value is None else self.show(value)


def _flops(rate: float) -> str:
    return format_rate(rate, "FLOP/s")


def _bytes_per_second(rate: float) -> str:
    return format_rate(rate, "B/s")


def _comma(number: int) -> str:
    return f"{number:,}"


def _commas(numbers: int | list[int]) -> str:
    return ", ".join(map(_comma, numbers)) if isinstance(numbers, list) else _comma(numbers)


def _numbers(values: tuple[int, ...]) -> int | list[int]:
    """Return one number, or several as a list."""
    return values[0] if len(values) == 1 else list(values)


_TITLE: Final = Fact("title", "title")

#: The columns of each kind of entry, after its name.
COLUMNS: Final[dict[EntryKind, tuple[Fact, ...]]] = {
    "device": (
        _TITLE,
        Fact("peak_flops", "16-bit peak", _flops, number=True),
        Fact("memory_bytes", "memory", format_bytes, number=True),
        Fact("memory_bandwidth_bytes_per_second", "bandwidth", _bytes_per_second, number=True),
    ),
    "node": (
        _TITLE,
        Fact("devices", "devices", _comma, number=True),
        Fact("device", "of"),
        Fact("fabric", "fabric"),
        Fact("fabric_bandwidth_bytes_per_second", "per device", _bytes_per_second, number=True),
        Fact("network_bandwidth_bytes_per_second", "network", _bytes_per_second, number=True),
    ),
    "cluster": (
        _TITLE,
        Fact("nodes", "nodes", _comma, number=True),
        Fact("node", "of"),
        Fact("devices", "devices", _comma, number=True),
    ),
    "model": (
        _TITLE,
        Fact("parameters", "parameters", format_count, number=True),
        Fact("active_parameters", "active", format_count, number=True),
        Fact("layers", "layers", _comma, number=True),
        Fact("hidden_size", "hidden", _comma, number=True),
        Fact("experts", "experts", _comma, number=True),
    ),
    "job": (
        Fact("model", "model"),
        Fact("devices", "devices", _commas, number=True),
        Fact("hardware", "hardware"),
        Fact("global_batch_size", "sequences", _commas, number=True),
        Fact("sequence_length", "sequence length", _comma, number=True),
    ),
    "serving": (
        Fact("model", "model"),
        Fact("devices", "devices", _commas, number=True),
        Fact("hardware", "hardware"),
        Fact("engine", "engine"),
        Fact("longest_request_tokens", "longest request", _comma, number=True),
    ),
    "grid": (
        Fact("base", "base"),
        Fact("keys", "varied keys", ", ".join),
        Fact("combinations", "combinations", _comma, number=True),
    ),
    "kernels": (
        Fact("devices", "devices", lambda names: ", ".join(names) or "any"),
        Fact("collective_tables", "tables", _comma, number=True),
    ),
    "stack": (
        _TITLE,
        Fact("zero_stages", "ZeRO", lambda stages: ", ".join(map(str, stages)), number=True),
        Fact("parallelism", "parallelism", ", ".join),
        Fact("schedules", "schedules", ", ".join),
    ),
    "engine": (_TITLE, Fact("versions", "versions", ", ".join)),
    "engine-kernels": (
        Fact("devices", "devices", ", ".join),
        Fact("engines", "engines", ", ".join),
        Fact("gemm_tables", "tables", _comma, number=True),
    ),
    "intervals": (_TITLE, Fact("spreads", "spreads", _comma, number=True)),
    "program": (
        _TITLE,
        Fact("version", "version"),
        Fact("ways", "ways", ", ".join),
        Fact("tasks", "tasks", ", ".join),
    ),
}


def entry_facts(kind: EntryKind, name: str, parameters: Mapping[str, ParameterCounts]) -> Facts:
    """Return the listed facts of one entry, in base units; ``parameters`` are those of models by name.

    Raises CatalogError or SpecError for an entry that does not load.
    """
    entry = load_entry(kind, name)
    if isinstance(entry, ModelSpec):
        return {"name": name, **_model(entry, parameters[name])}
    return {"name": name, **_READERS[kind](entry)}


def _device(entry: DeviceSpec) -> Facts:
    rate = entry.peak.bf16 or entry.peak.fp16
    return {
        "title": entry.title,
        "peak_flops": rate.value if rate else None,
        "memory_bytes": entry.memory.capacity.value,
        "memory_bandwidth_bytes_per_second": entry.memory.bandwidth.value,
    }


def _node(entry: NodeSpec) -> Facts:
    return {
        "title": entry.title,
        "devices": entry.devices,
        "device": entry.device,
        "fabric": entry.fabric.topology,
        "fabric_bandwidth_bytes_per_second": entry.fabric.bandwidth.value,
        "network_bandwidth_bytes_per_second": entry.network.bandwidth_per_device.value,
    }


def _cluster(entry: ClusterSpec) -> Facts:
    node = load_entry("node", entry.node)
    devices = entry.nodes * node.devices if isinstance(node, NodeSpec) else None
    return {"title": entry.title, "nodes": entry.nodes, "node": entry.node, "devices": devices}


def _model(entry: ModelSpec, parameters: ParameterCounts) -> Facts:
    return {
        "title": entry.title or entry.name,
        "parameters": parameters.total,
        "active_parameters": parameters.active if entry.moe else None,
        "layers": entry.layers,
        "hidden_size": entry.hidden_size,
        "experts": entry.moe.experts if entry.moe else None,
    }


def _job(entry: JobSpec) -> Facts:
    return {
        "model": entry.model,
        "devices": _numbers(entry.devices) if isinstance(entry.devices, tuple) else entry.devices,
        "hardware": entry.hardware,
        "global_batch_size": _numbers(batches_of(entry.workload.global_batch_size)),
        "sequence_length": entry.workload.sequence_length,
    }


def _serving(entry: ServingSpec) -> Facts:
    return {
        "model": entry.model,
        "devices": _numbers(entry.devices) if isinstance(entry.devices, tuple) else entry.devices,
        "hardware": entry.hardware,
        "engine": entry.stack,
        "longest_request_tokens": entry.workload.longest_tokens,
    }


def _engine(entry: EngineSpec) -> Facts:
    return {"title": entry.title, "versions": list(entry.versions)}


def _engine_kernels(entry: EngineKernelSpec) -> Facts:
    return {
        "devices": list(entry.devices),
        "engines": sorted({table.engine for table in entry.gemm}),
        "gemm_tables": len(entry.gemm),
    }


def _intervals(entry: IntervalSpec) -> Facts:
    return {"title": entry.title, "spreads": len(entry.spreads)}


def _grid(entry: GridSpec) -> Facts:
    return {
        "base": entry.base if isinstance(entry.base, str) else None,
        "keys": list(entry.grid),
        "combinations": math.prod(len(values) for values in entry.grid.values()),
    }


def _kernels(entry: KernelSpec) -> Facts:
    return {"devices": list(entry.devices), "collective_tables": len(entry.collectives.tables)}


def _stack(entry: StackSpec) -> Facts:
    rules = entry.rules
    parallelism = {
        "tensor": rules.tensor_parallel,
        "sequence": rules.sequence_parallel,
        "pipeline": rules.pipeline_parallel,
    }
    return {
        "title": entry.title,
        "zero_stages": list(rules.zero_stages),
        "parallelism": [name for name, supported in parallelism.items() if supported],
        "schedules": list(rules.schedules) if rules.pipeline_parallel else [],
    }


def _program(entry: ProgramSpec) -> Facts:
    return {
        "title": entry.title,
        "version": entry.version,
        "ways": [way.title for way in entry.ways],
        "tasks": list(dict.fromkeys(task for way in entry.ways for task in way.tasks)),
    }


# Each reader takes the class of its kind; models also take their parameters.
_READERS: Final[dict[EntryKind, Callable[[Any], Facts]]] = {
    "device": _device,
    "node": _node,
    "cluster": _cluster,
    "job": _job,
    "serving": _serving,
    "grid": _grid,
    "kernels": _kernels,
    "stack": _stack,
    "engine": _engine,
    "engine-kernels": _engine_kernels,
    "intervals": _intervals,
    "program": _program,
}


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
    """Return what nodes there are that no file describes: for each device, so many of it."""
    return {"name": "{devices}x-{device}", "devices": list(COUNTS), "device": list(entry_names("device"))}


def catalog_table(kinds: Sequence[EntryKind], parameters: _Parameters, terminal: Terminal) -> str:
    """Return the entries of ``kinds``, one table per kind."""
    parts = [part for kind in kinds for part in _section(kind, parameters, terminal)]
    return render(parts, terminal)


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
    devices = machine.devices
    return {
        "schema": SCHEMA,
        "kind": "detected hardware",
        "devices": {
            "name": devices.name,
            "count": devices.count,
            "memory_bytes": devices.memory_bytes,
            "fabric": devices.fabric,
            "linked": devices.linked,
            "library": devices.library,
            "restricted_by": devices.restricted_by,
        },
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
