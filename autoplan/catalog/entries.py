"""Catalogue entries as validated models: devices, nodes, clusters, models, cost models."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from autoplan.catalog.hardware_names import (
    COUNTS,
    Relative,
    as_rented,
    counted_devices,
    derived_name,
    derived_node,
    devices_called,
    machine_called,
    nearest_kind,
    provider_of,
    rented_machines,
    split_name,
    unknown_hardware,
)
from autoplan.catalog.roots import (
    CLASSES,
    EntryKind,
    entry_names,
    entry_text,
    file_named,
    is_path,
    names_file,
    read_file,
)
from autoplan.catalog.stack_inheritance import read_stack
from autoplan.errors import CatalogError, Problem, SpecError, UnsupportedError
from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.hardware import ClusterSpec, DeviceSpec, HardwareSpec, NodeSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.yaml.loader import load_model, validate
from autoplan.schema.yaml.parser import parse_yaml

if TYPE_CHECKING:
    from autoplan.catalog.detection import DetectedHardware
    from autoplan.schema.costmodel.interval_spec import IntervalSpec
    from autoplan.schema.serving.engine_stack import Engine, EngineSpec

#: What a job writes for the hardware of the machine that it is planned on.
_AUTO: Final = "auto"
_SERVING_INTERVALS = "serving"
#: What no name has, and the most letters of one.
_NO_NAME: Final = re.compile(r"[^a-z0-9._-]+")
_LONGEST_NAME: Final = 200
#: What names a model on the Hugging Face hub.
_HUB_NAME: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*")
#: The stack without a framework, which stands for one that is not known.
_UNKNOWN_STACK = "analytic"
#: Key of the source of an uncertainty that is that of a stack that is not known.
_ASSUMED_SOURCE = "assumed-stack"

T = TypeVar("T", bound=Frozen)


@cache
def load_entry(kind: EntryKind, name: str) -> Frozen:
    """Return the entry ``name`` of ``kind``; of nodes also those that no file describes.

    Raises CatalogError for an unknown name, SpecError for an invalid entry.
    """
    if kind == "node" and name not in entry_names("node") and is_node(name):
        return _unwritten_node(name)
    text, file = entry_text(kind, name)
    entry = read_stack(text, file).spec if kind == "stack" else _read(text, CLASSES[kind], file)
    if isinstance(entry, ModelSpec):
        entry = entry.model_copy(update={"aliases": ()})
    inner = getattr(entry, "name", name)
    if inner != name:
        raise SpecError([Problem(f"the name {inner!r} is not that of the file, {name!r}", "$.name", file)])
    return entry


def _read(text: str, cls: type[Frozen], file: str) -> Frozen:
    return load_model(text, cls, name=file)


def loaded(kind: EntryKind, name: str, cls: type[T]) -> T:
    """Return the entry ``name`` of ``kind``, which has the class ``cls``."""
    entry = load_entry(kind, name)
    if not isinstance(entry, cls):
        raise CatalogError(f"{name!r} is not a {kind}")
    return entry


def written(kind: EntryKind, name: str) -> tuple[str, str]:
    """Return the text of an entry and its file; of a derived node the text that such a file would have."""
    if kind == "node" and name not in entry_names("node"):
        from autoplan.schema.yaml.writer import file_text

        derived = node(name)
        return file_text(derived), f"derived from its device and {derived.derived_from}"
    return entry_text(kind, name)


def stack(name: str) -> StackSpec:
    """Return the software stack ``name``."""
    return loaded("stack", name, StackSpec)


def stack_at(reference: str, base: Path) -> StackSpec:
    """Return the stack that ``reference`` names: an entry, or a file relative to ``base``."""
    if not is_path(reference):
        return stack(reference)
    path = file_named(reference, base)
    return read_stack(read_file(path), str(path)).spec


def kernels_at(reference: str, base: Path) -> KernelSpec:
    """Return the kernel curves that ``reference`` names: an entry, or a file relative to ``base``."""
    if not is_path(reference):
        return loaded("kernels", reference, KernelSpec)
    path = file_named(reference, base)
    return load_model(read_file(path), KernelSpec, name=str(path))


def engine(reference: str, base: Path) -> Engine:
    """Return the engine of ``NAME`` or ``NAME@VERSION``, an entry or a file relative to ``base``."""
    from autoplan.schema.serving.engine_stack import EngineSpec, engine_at

    before, at, after = reference.rpartition("@")
    versioned = bool(at) and "/" not in after
    name, version = (before, after) if versioned else (reference, None)
    if not is_path(name):
        return engine_at(loaded("engine", name, EngineSpec), version)
    path = file_named(name, base)
    return engine_at(load_model(read_file(path), EngineSpec, name=str(path)), version)


def engine_entry(name: str) -> EngineSpec:
    """Return the file of the engine ``name`` with all of its versions."""
    from autoplan.schema.serving.engine_stack import EngineSpec

    return loaded("engine", name, EngineSpec)


def device(name: str) -> DeviceSpec:
    """Return the device ``name``."""
    return loaded("device", name, DeviceSpec)


def node(name: str) -> NodeSpec:
    """Return the node ``name``."""
    return loaded("node", name, NodeSpec)


def is_node(name: str) -> bool:
    """Return whether a node is called ``name``: of a file, of its devices' number, or that is rented."""
    return name in entry_names("node") or _counted_device(name) is not None or name in rented_machines()


def _counted_device(name: str) -> tuple[int, str] | None:
    """Return number and name of the devices of a node that no file describes; None for other names.

    A device may be written without its hyphens, as most nodes that files describe have it: 1x-rtx4090; or
    as people call it, where that is one alone: 1x-a6000, 2x4090, of which others with 48 GB have more words.
    """
    count, written = counted_devices(name)
    if count is None or count > COUNTS[-1]:
        return None
    names = entry_names("device")
    plain = written.replace("-", "")
    same = [written] if written in names else [x for x in names if x.replace("-", "") == plain]
    devices = same or devices_called(written)
    meant = [one for one in devices if all(f"{other}-".startswith(f"{one}-") for other in devices)]
    return (count, meant[0]) if len(meant) == 1 else None


def _unwritten_node(name: str) -> NodeSpec:
    """Return the node ``4x-DEVICE``, or that of a rented machine: one of the catalogue, or a derived one."""
    counted = _counted_device(name)
    return _rented(name) if counted is None else _node_of(*counted)


def _rented(name: str) -> NodeSpec:
    machine = rented_machines()[name]
    if machine.node is not None or machine.device is None:
        return node(machine.node or name)
    return as_rented(_node_of(machine.devices, machine.device), name)


def _node_of(devices: int, device_name: str) -> NodeSpec:
    holders = _holders(device_name)
    plain = [holder for holder in holders if holder.fabric.topology != "bridge"]
    # A file of another number is of an unusual machine, such as six cards with a changed driver.
    for holder in plain if devices in COUNTS else ():
        if holder.devices == devices:
            return holder
    node_device = device(device_name)
    near = plain[0] if plain else node(nearest_kind(node_device))
    bridged = [holder.name for holder in holders if holder not in plain]
    return derived_node(node_device, devices, Relative(near, device(near.device)), bridged)


def _holders(device_name: str) -> list[NodeSpec]:
    """Return the nodes of the catalogue with a device, first those on whose fabric kernels were measured."""
    names = [n for n in entry_names("node") if device_name in entry_text("node", n)[0]]
    from autoplan.catalog.relatives import own_kernels

    kernels = own_kernels(device_name)
    measured = kernels.collectives.fabrics if kernels else ()
    ranks = {name: rank for rank, name in enumerate(measured)}
    names.sort(key=lambda name: (ranks.get(name, len(ranks)), name))
    return [holder for holder in map(node, names) if holder.device == device_name]


def assumed_stack(of_node: NodeSpec) -> StackSpec:
    """Return the stack of a job that names none: the usual one of ``of_node``, else ``analytic``."""
    return stack_if_assumed(of_node.default_stack or _UNKNOWN_STACK)


def stack_if_assumed(name: str) -> StackSpec:
    """Return the stack ``name`` as that of a job that names none.

    Its uncertainty of time is at least that of ``analytic``, whose numbers are those of a stack that is not
    known: the job may run under another one.
    """
    usual, unknown = stack(name), stack(_UNKNOWN_STACK)
    certain, least, sources = usual.uncertainty, unknown.uncertainty, dict(usual.sources)
    wider = {}
    for part in ("time", "time_modelled", "slower", "slow_host"):
        number, usual_value = getattr(least, part), getattr(certain, part)
        if number is not None and (usual_value is None or number.value > usual_value.value):
            wider[part] = number.model_copy(update={"source": _ASSUMED_SOURCE})
            why = f"{_UNKNOWN_STACK}, since the job names no stack: {unknown.sources[number.source]}"
            sources[_ASSUMED_SOURCE] = why
    return usual.model_copy(update={"uncertainty": certain.model_copy(update=wider), "sources": sources})


def serving_intervals() -> IntervalSpec:
    """Return how far measured serving runs lie from what is predicted of them."""
    from autoplan.schema.costmodel.interval_spec import IntervalSpec

    return loaded("intervals", _SERVING_INTERVALS, IntervalSpec)


def model(reference: str, base: Path) -> ModelSpec:
    """Return the model that ``reference`` names: an entry, also by a name on the hub, a file or a checkpoint.

    A file, relative to ``base``, is a model file of autoplan or a Hugging Face ``config.json``, which the
    folder of a checkpoint has.
    """
    if (config := _config_in(reference, base)) is not None:
        return _from_json(read_file(config), config)
    if not names_file(reference):
        entry = _model_entry(reference)
        return _of_checkpoint(loaded("model", entry, ModelSpec), entry, reference)
    from autoplan.schema.huggingface.model_config import detect_huggingface

    path = file_named(reference, base)
    text = read_file(path)
    if path.suffix.lower() == ".json":
        return _from_json(text, path)
    document = parse_yaml(text, name=str(path))
    if isinstance(document.value, dict) and detect_huggingface(document.value):
        return _from_huggingface(document.value, path)
    return validate(document, ModelSpec).model_copy(update={"aliases": ()})


def _config_in(reference: str, base: Path) -> Path | None:
    """Return the ``config.json`` of the folder ``reference``, unless a model is called so."""
    from autoplan.catalog.model_names import model_called

    if names_file(reference) or not is_path(reference):
        return None
    config = base / reference / "config.json"
    return config if model_called(reference) is None and os.path.isfile(config) else None  # noqa: PTH113


def _of_checkpoint(spec: ModelSpec, entry: str, reference: str) -> ModelSpec:
    """Return ``spec`` with the checkpoint that a job names as its source, where it is not the entry's."""
    if "/" not in reference:
        return spec
    from autoplan.catalog.model_names import hub_names

    word = reference.casefold()
    first, *others = hub_names(entry) or ("",)
    named = next((name for name in others if name.casefold() == word and name != first), None)
    if named is None and word not in {first.casefold(), *(name.casefold() for name in others)}:
        named = reference
    if named is None:
        return spec
    source = f"{named} on Hugging Face, of the architecture of {spec.source}"
    return spec.model_copy(update={"source": source})


def _model_entry(reference: str) -> str:
    """Return the entry of a model by any of its names, or the name itself where it looks like none.

    Raises CatalogError with what to do for one that no model has on the hub.
    """
    from autoplan.catalog.model_names import copied_model, model_called, models_like

    called = model_called(reference)
    if called is None and (_HUB_NAME.fullmatch(reference) or "/" not in reference):
        called = copied_model(reference)
    if called is not None:
        return called
    near = models_like(reference)
    if near:
        packed = len(near) == 1 and _HUB_NAME.fullmatch(reference)
        form = ", in a format that --base or --precision says" if packed else ""
        raise CatalogError(f"no model is called {reference!r}: did you mean {' or '.join(near)}{form}?")
    if _HUB_NAME.fullmatch(reference):
        raise CatalogError(
            f"no model is called {reference!r}: name the path of its config.json (`hf download {reference}"
            " config.json --local-dir .`), or one of `autoplan catalog list model`"
        )
    return reference if not is_path(reference) else str(file_named(reference, Path()))


def _from_json(text: str, path: Path) -> ModelSpec:
    from autoplan.schema.huggingface.model_config import detect_huggingface

    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError([Problem(f"not JSON: {error}", "$", str(path))]) from error
    if not isinstance(config, dict) or not detect_huggingface(config):
        raise SpecError([Problem("not a Hugging Face config: model_type is missing", "$", str(path))])
    return _from_huggingface(config, path)


def _from_huggingface(config: Mapping[str, object], path: Path) -> ModelSpec:
    """Return the model of a Hugging Face config; its errors name the file."""
    from autoplan.schema.huggingface.model_config import model_from_huggingface

    try:
        return model_from_huggingface(config, name=_name_of(path))
    except SpecError as error:
        raise SpecError([replace(problem, file=str(path)) for problem in error.problems]) from error
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: {error}") from error


def _name_of(path: Path) -> str:
    """Return the name of a model whose file has none: that of the file, after the name of its folder.

    >>> _name_of(Path("config.json")), _name_of(Path("/models/Llama 3/config.json"))
    ('config.json', 'llama-3-config.json')
    """
    words = "-".join(Path(os.path.normpath(path)).parts[-2:]).lower()
    return _NO_NAME.sub("-", words)[-_LONGEST_NAME:].lstrip("._-") or "model"


def hardware(reference: str, base: Path) -> tuple[NodeSpec, int]:
    """Return the node that ``reference`` names, and the number of devices of the entry.

    A node is one node, a cluster all of its nodes, ``auto`` what is found on this machine and in its
    environment. A device is refused, since the plan depends on the interconnect.
    """
    if reference == _AUTO:
        detected_node = detected()
        return node(detected_node.entry), detected_node.total
    entry = _hardware_entry(reference, base)
    if isinstance(entry, NodeSpec):
        return entry, entry.devices
    if isinstance(entry, ClusterSpec):
        of_cluster = node(entry.node)
        if entry.network is not None:
            of_cluster = of_cluster.model_copy(update={"network": entry.network})
        return of_cluster, of_cluster.devices * entry.nodes
    raise UnsupportedError(_bare_device(reference, entry))


def fuller_nodes(of_node: NodeSpec) -> tuple[NodeSpec, ...]:
    """Return machines with more of the devices of one that is called by their number, or of its provider.

    Those with the fewest come first.

    >>> [one.name for one in fuller_nodes(node("2x-rtx4090"))], fuller_nodes(node("dgx-h100"))
    (['4x-rtx4090', '8x-rtx4090'], ())
    >>> [one.name for one in fuller_nodes(node("aws-g5-xlarge"))]
    ['aws-g5-12xlarge', 'aws-g5-48xlarge']
    """
    if of_node.name in rented_machines():
        return _fuller_rented(of_node)
    if split_name(of_node.name) is None:
        return ()
    counts = [count for count in COUNTS if count > of_node.devices]
    return tuple(hardware(derived_name(count, of_node.device), Path())[0] for count in counts)


def _fuller_rented(of_node: NodeSpec) -> tuple[NodeSpec, ...]:
    provider, fuller = provider_of(of_node.name), dict[int, NodeSpec]()
    for name, machine in rented_machines().items():
        if provider_of(name) == provider and (machine.devices or 0) > of_node.devices:
            rented = node(name)
            if rented.device == of_node.device:
                fuller.setdefault(rented.devices, rented)
    return tuple(fuller[count] for count in sorted(fuller))


def detected() -> DetectedHardware:
    """Return the hardware of this machine and of its job; raises CatalogError where it is not known."""
    from autoplan.catalog.detection import detected_hardware

    def capacities() -> dict[str, float]:
        return {name: device(name).memory.capacity.value for name in entry_names("device")}

    return detected_hardware(capacities, is_node)


def is_hardware(name: str) -> bool:
    """Return whether a node or a cluster is called ``name``."""
    return name == _AUTO or name in entry_names("cluster") or is_node(name)


def _bare_device(reference: str, of: DeviceSpec) -> str:
    """Return why a device alone is no hardware, with the nodes that have it."""
    message = f"{reference!r} is a device; name a node or a cluster with this device"
    names = [node.name for node in _holders(of.name)]
    if of.name in entry_names("device"):
        counted = [derived_name(n, of.name) for n in COUNTS]
        names += [name for name in counted if name not in names]
    return f"{message}: {', '.join(sorted(names))}" if names else message


def find_hardware(name: str) -> tuple[DeviceSpec, NodeSpec | None]:
    """Return the device called ``name`` and None, or the node called ``name`` with its device."""
    if not is_path(name) and name in entry_names("device"):
        return device(name), None
    named, _ = hardware(name, Path())
    return device(named.device), named


def _hardware_entry(reference: str, base: Path) -> NodeSpec | ClusterSpec | DeviceSpec:
    if is_path(reference):
        path = file_named(reference, base)
        entry: NodeSpec | ClusterSpec | DeviceSpec = load_model(read_file(path), HardwareSpec, name=str(path))
        return entry
    if reference in entry_names("cluster"):
        return loaded("cluster", reference, ClusterSpec)
    if is_node(reference):
        return node(reference)
    if reference in entry_names("device"):
        return device(reference)
    machine = machine_called(reference)
    if machine is not None:
        return node(machine) if is_node(machine) else loaded("cluster", machine, ClusterSpec)
    raise CatalogError(unknown_hardware(reference))
