"""Nodes that are meant by what people call hardware, such as ``2x4090``, and machines that providers rent.

Nodes that no file describes are derived from their device and from the nearest node that a file describes.
Such a node is called ``4x-h100-pcie-80gb``: a number of devices and the name of the device. It contains no
number of its own: each one is that of the device or of the other node, scaled where it is said so.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

from autoplan.catalog.roots import entry_names, entry_text, names_like, shipped_text
from autoplan.schema.base import NumberKind, Sourced, SourcedBandwidth, SourcedBytes
from autoplan.schema.hardware import (
    DeviceSpec,
    Fabric,
    Host,
    MachinesSpec,
    Network,
    NodeSpec,
    RentedMachine,
    sourced_numbers,
)
from autoplan.schema.yaml.loader import load_model

#: Numbers of devices of derived nodes.
COUNTS: Final = (1, 2, 4, 8)

#: Key of the device's file in the sources of a derived node.
_DEVICE: Final = "device"
_NAME: Final = re.compile(r"([1-9][0-9]{0,3})x-(.+)")

#: Nominal bandwidth of a PCIe slot from which it is of generation 5, and of generation 4 [byte/s].
_GENERATION_5: Final = 48e9
_GENERATION_4: Final = 24e9

#: The usual node of each kind of device, by generation of the slot: 5, 4, older.
_USUAL: Final[dict[str, tuple[str, str, str]]] = {
    "nvlink": ("dgx-h100", "dgx-a100-80gb", "8x-v100-32gb"),
    "xgmi": ("8x-mi300x", "8x-mi300x", "8x-mi300x"),
    "roce": ("8x-mi300x", "8x-mi300x", "8x-mi300x"),
    "pcie": ("8x-rtx-pro-6000", "8x-l40s", "4x-t4"),
    "pcie without peer copies": ("8x-rtx5090", "8x-rtx4090", "4x-t4"),
}

N = TypeVar("N", bound=Sourced)


@dataclass(frozen=True, slots=True)
class Relative:
    """The node that a derived one takes numbers from, with its device."""

    node: NodeSpec
    device: DeviceSpec


def derived_name(devices: int, device: str) -> str:
    """Return the name of the derived node of so many devices.

    >>> derived_name(4, "h100-pcie-80gb")
    '4x-h100-pcie-80gb'
    """
    return f"{devices}x-{device}"


def split_name(name: str) -> tuple[int, str] | None:
    """Return the number of devices in ``name`` and the rest of it; None for a name of another form.

    >>> split_name("4x-h100-pcie-80gb"), split_name("dgx-h100")
    ((4, 'h100-pcie-80gb'), None)
    """
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def nearest_kind(device: DeviceSpec) -> str:
    """Return the name of the usual node of devices like ``device``, for one that no node holds.

    It depends on the link between devices and on the generation of the PCIe slot; a slot that is not known
    counts as generation 4.
    """
    slot = device.pcie_bandwidth.value if device.pcie_bandwidth else _GENERATION_4
    generation = 0 if slot >= _GENERATION_5 else 1 if slot >= _GENERATION_4 else 2
    kind = "pcie" if device.peer_copies else "pcie without peer copies"
    if _joins_node(device) and device.link:
        kind = device.link.technology
    return _USUAL[kind][generation]


def derived_node(device: DeviceSpec, devices: int, relative: Relative, bridged: Iterable[str]) -> NodeSpec:
    """Return the node of ``devices`` devices with the numbers of ``device`` and of ``relative``.

    Numbers of a node with the same device are ``derived``, those of one with another device a ``guess``.
    ``bridged`` are nodes of the catalogue in which bridges join pairs of the device: a derived node has none.
    """
    part = _Origin(device, devices, relative)
    node, name = relative.node, derived_name(devices, device.name)
    parts = (part.fabric(), part.host(), part.network())
    fields = {
        "schema": 1,
        "kind": "node",
        "name": name,
        "title": f"{devices}x {device.title}",
        "note": _note(part, tuple(bridged)),
        "device": device.name,
        "devices": devices,
        "fabric": parts[0],
        "host": parts[1],
        "network": parts[2],
        "derived_from": node.name,
    }
    if node.default_stack:
        fields["default_stack"] = node.default_stack
    cited = {number.source for inner in parts for _, number in sourced_numbers(inner)}
    sources = {**node.sources, _DEVICE: f"hardware/devices/{device.name}.yaml, with its source there"}
    return NodeSpec.model_validate(
        {**fields, "sources": {key: sources[key] for key in sources if key in cited}}
    )


def _joins_node(device: DeviceSpec) -> bool:
    return device.link is not None and device.link.peers == "node"


def _note(part: _Origin, bridged: tuple[str, ...]) -> str:
    note = f"Derived: no file describes this node; its numbers are those of {part.device.name} and"
    note += f" of {part.relative.node.name}."
    if bridged:
        note += f" Without bridges between pairs, which {', '.join(bridged)} has."
    return note


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a derived node is made of; ``share`` is its devices over those of the other node."""

    device: DeviceSpec
    devices: int
    relative: Relative

    @property
    def share(self) -> float:
        return self.devices / self.relative.node.devices

    @property
    def same_device(self) -> bool:
        return self.relative.node.device == self.device.name

    def fabric(self) -> Fabric:
        """Return the fabric: the device's link where one joins all devices, else that of the other node."""
        fabric = self.relative.node.fabric
        bandwidth, pair = self._link(fabric)
        fields = {"topology": fabric.topology, "bandwidth": bandwidth, "latency": self._taken(fabric.latency)}
        return Fabric.model_validate({**fields, **({"pair_bandwidth": pair} if pair else {})})

    def _link(self, fabric: Fabric) -> tuple[SourcedBandwidth, SourcedBandwidth | None]:
        pair = fabric.pair_bandwidth
        if self.same_device:
            return self._taken(fabric.bandwidth), self._taken(pair) if pair else None
        if self.device.link is not None and _joins_node(self.device):
            each = self._of_device(self.device.link.bandwidth, "link.bandwidth of the device")
            if pair is None:
                return each, None
            share = pair.value / fabric.bandwidth.value
            words = f"the share of the device's links that a pair has in {self.relative.node.name}"
            return each, each.model_copy(update={"value": each.value * share, "note": words})
        slot = self.device.pcie_bandwidth
        if fabric.topology == "pcie-switch" and slot is not None:
            return self._of_device(slot, "pcie_bandwidth of the device"), None
        return self._by_slot(fabric.bandwidth), None

    def host(self) -> Host:
        """Return the host: memory by the number of devices, and the link by the slot."""
        host = self.relative.node.host
        memory: SourcedBytes = self._taken(host.memory, self.share)
        link = self._by_slot(host.link_bandwidth)
        launches = self._taken(host.launch_factor) if host.launch_factor else None
        return Host(memory=memory, link_bandwidth=link, launch_factor=launches)

    def network(self) -> Network:
        """Return the network: a network card for each device, or one for the node."""
        network, node = self.relative.node.network, self.relative.node
        own_card = network.direct_memory_access
        bandwidth = self._taken(network.bandwidth_per_device, 1.0 if own_card else 1 / self.share)
        return Network(
            name=f"{network.name}, of {node.devices} devices" if own_card else network.name,
            bandwidth_per_device=bandwidth,
            latency=self._taken(network.latency),
            direct_memory_access=own_card,
        )

    def _by_slot(self, number: SourcedBandwidth) -> SourcedBandwidth:
        """Return a bandwidth of the other node, less where the device's slot is narrower."""
        slot, other = self.device.pcie_bandwidth, self.relative.device.pcie_bandwidth
        share = min(1.0, slot.value / other.value) if slot and other else 1.0
        return self._taken(number, share)

    def _taken(self, number: N, share: float = 1.0) -> N:
        """Return a number of the other node, times ``share``."""
        kind: NumberKind = "derived" if self.same_device and number.kind != "guess" else "guess"
        times = "" if share == 1 else f", times {share:.4g}"
        words = f"as in {self.relative.node.name}{times}"
        value = getattr(number, "value") * share  # noqa: B009 - every kind of number has a value
        return number.model_copy(update={"value": value, "kind": kind, "note": words})

    def _of_device(self, number: SourcedBandwidth, words: str) -> SourcedBandwidth:
        """Return a number of the device."""
        kind: NumberKind = "guess" if number.kind == "guess" else "derived"
        return number.model_copy(update={"kind": kind, "source": _DEVICE, "note": words})


_FILE: Final = ("hardware", "machines.yaml")
#: Words that names of rented machines begin with.
_RENTING: Final = frozenset({"aws", "azure", "gcp", "lambda", "oci"})
#: Key of their file in the sources of a node.
_SOURCE: Final = "machines"


@cache
def rented_machines() -> Mapping[str, RentedMachine]:
    """Return the machines that providers rent, by names such as ``aws-g5-12xlarge``."""
    return _listed().machines


def provider_of(name: str) -> str | None:
    """Return who rents the machine ``name`` out; None for a node that anybody may have.

    >>> provider_of("aws-g5-12xlarge"), provider_of("dgx-h100")
    ('aws', None)
    """
    provider = name.partition("-")[0]
    return provider if provider in _RENTING else None


def as_rented(derived: NodeSpec, name: str) -> NodeSpec:
    """Return ``derived``, which has the devices of the machine ``name``, as that machine."""
    memory = derived.host.memory.model_copy(
        update={
            "value": rented_machines()[name].host_memory,
            "kind": "guess",
            "source": _SOURCE,
            "note": None,
        }
    )
    fields = {
        "name": name,
        "title": f"{derived.title} ({name})",
        "host": derived.host.model_copy(update={"memory": memory}),
        "sources": {**derived.sources, _SOURCE: _listed().source},
        "derived_from": derived.derived_from or derived.name,
    }
    return derived.model_copy(update=fields)


@cache
def _listed() -> MachinesSpec:
    return load_model(shipped_text(*_FILE), MachinesSpec, name="/".join(_FILE))


#: How many devices, before their name or after it: 2x4090, 8 x H100, 8*a100, A100x8, H100:8.
_BEFORE: Final = re.compile(r"([1-9][0-9]{0,3}) *[x*\u00d7][ _-]*(.+)")
_AFTER: Final = re.compile(r"(.*[0-9 _-])(?:[x*\u00d7]|:) *([1-9][0-9]?)")
#: Words around the name of a device that no entry has.
_ASIDE: Final = frozenset({"nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct", "intel"})
#: NVIDIA's system and the board in it, whose names people take for each other.
_SYSTEM: Final = re.compile(r"^[dh]gx-?")
#: Words of a machine's name that its provider's pages leave out, or write before it.
_PROVIDERS: Final = frozenset({"aws", "azure", "gcp", "oci", "standard"})
#: The most devices that a message names, and nodes that a file describes.
_MOST_DEVICES: Final = 3
_MOST_NODES: Final = 4


def nodes_like(name: str) -> list[str]:
    """Return names of nodes of the number of devices that ``name`` says, such as ``4x-h100``; else none.

    First those whose device most nodes of the catalogue have.

    >>> nodes_like("2x 4090"), nodes_like("8xA100-PCIe")
    (['2x-rtx-4090', '2x-rtx-4090-48gb'], ['8x-a100-pcie-80gb', '8x-a100-pcie-40gb'])
    """
    count, part = counted_devices(name)
    if count is None:
        return []
    most = min(count, COUNTS[-1])
    return [derived_name(most, d) for d in _usual_first(devices_called(part)) or _spelt_like(part)]


def nodes_meant(name: str, devices: int | None = None) -> list[str]:
    """Return nodes of the devices that ``name`` may stand for, the most usual first; none for no device.

    ``8x-h100`` says how many; a device alone is ``devices`` of them in one node, or nodes of eight.

    >>> nodes_meant("4xH200"), nodes_meant("MI300X", 16), nodes_meant("h100")
    (['4x-h200-sxm-141gb', '4x-h200-nvl-141gb'], ['8x-mi300x'], [])
    """
    said, part = counted_devices(name)
    most = COUNTS[-1]
    count = said or (most if devices and devices > most and devices % most == 0 else devices)
    return (
        [derived_name(count, d) for d in _usual_first(devices_called(part))]
        if count and count <= most
        else []
    )


def machine_called(words: str) -> str | None:
    """Return the node or cluster whose name has these words, but for its provider and DGX for HGX.

    >>> machine_called("p5.48xlarge"), machine_called("Standard_ND96isr_H100_v5"), machine_called("DGX H200")
    ('aws-p5-48xlarge', 'azure-nd96isr-h100-v5', 'hgx-h200')
    >>> machine_called("g5.12xlarge"), machine_called("1x-dgx-spark"), machine_called("h200")
    ('aws-g5-12xlarge', 'dgx-spark', None)
    """
    wanted = _machine(words.casefold().removeprefix("1x-"))
    names = {*entry_names("node"), *entry_names("cluster"), *rented_machines()}
    machines = [name for name in names if _machine(name) == wanted]
    return machines[0] if len(machines) == 1 else None


def _machine(name: str) -> str:
    words = "-".join(word for word in _words(name) if word not in _PROVIDERS)
    return _SYSTEM.sub("hgx-", words)


def devices_called(words: str) -> list[str]:
    """Return the devices of the catalogue that ``words`` may stand for.

    >>> devices_called("NVIDIA H100 80GB"), devices_called("rtx4090"), devices_called("A10")
    (['h100-pcie-80gb', 'h100-sxm5-80gb'], ['rtx-4090'], ['a10'])
    """
    wanted = [word for word in _words(words) if word not in _ASIDE]
    pieces = [_pieces(word) for word in wanted]
    names = entry_names("device")
    same = [name for name in names if [*_pieces(name)] == [piece for word in pieces for piece in word]]
    return same or [name for name in names if wanted and all(_has(name, word) for word in pieces)]


def unknown_hardware(reference: str) -> str:
    """Return the sentence on an unknown hardware name, with names that work."""
    sentence = f"no hardware is called {reference!r}: "
    of_file = "your own is named by a YAML file, such as ./node.yaml"
    count, part = counted_devices(reference)
    if count and (machine := machine_called(part)):
        return f"{sentence}did you mean {machine} with --nodes {count}? ({of_file})"
    near = nodes_like(reference)
    if near:
        several = f", with --devices {count} for several nodes" if (count or 0) > COUNTS[-1] else ""
        return f"{sentence}did you mean {_in_words(near[:_MOST_DEVICES])}{several}? ({of_file})"
    devices = _usual_first(devices_called(part))[:_MOST_DEVICES]
    if devices:
        counts = ", ".join(map(str, COUNTS[:-1]))
        named = _in_words([f"{derived_name(1, d)} to {derived_name(COUNTS[-1], d)}" for d in devices])
        described = ", ".join(sorted(sorted(_described(devices), key=len)[:_MOST_NODES]))
        also = f"; the catalogue also has {described}" if described else ""
        return f"{sentence}a node has {counts} or {COUNTS[-1]} of a device: {named}{also} ({of_file})"
    names = [*entry_names("node"), *entry_names("cluster")]
    near = [name for name in names if _SYSTEM.sub("", name) == _SYSTEM.sub("", reference.casefold())]
    near = near or names_like(reference, names)
    hint = f"did you mean {_in_words(near)}?" if near else "see `autoplan catalog list node`"
    return f"{sentence}{hint} ({of_file})"


def _usual_first(devices: list[str]) -> list[str]:
    """Return ``devices``, first those that most nodes have."""
    return sorted(devices, key=lambda device: -len(_described([device])))


def _described(devices: list[str]) -> list[str]:
    """Return the nodes that a file describes with one of ``devices``."""
    of_device = re.compile(rf"^device: *(?:{'|'.join(map(re.escape, devices))}) *$", re.MULTILINE)
    return [name for name in entry_names("node") if of_device.search(entry_text("node", name)[0])]


def counted_devices(name: str) -> tuple[int | None, str]:
    """Return the number of devices that ``name`` says, or None, and the rest of it.

    >>> counted_devices("2x-rtx4090"), counted_devices("8 x A100"), counted_devices("dgx-h100")
    ((2, 'rtx4090'), (8, 'a100'), (None, 'dgx-h100'))
    """
    word = name.casefold().strip()
    before = _BEFORE.fullmatch(word)
    if before:
        return int(before[1]), before[2]
    after = _AFTER.fullmatch(word)
    return (int(after[2]), after[1].rstrip()) if after and len(word) <= 100 else (None, word)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.casefold()[:100]) if word]


def _pieces(text: str) -> tuple[str, ...]:
    """Return the runs of letters and of digits of ``text``.

    >>> _pieces("rtx-4090"), _pieces("h100")
    (('rtx', '4090'), ('h', '100'))
    """
    return tuple(re.findall(r"[a-z]+|[0-9]+", text.casefold()))


def _has(name: str, word: tuple[str, ...]) -> bool:
    """Return whether ``word`` begins where a word of a device's ``name`` does, in whole runs."""
    parts = name.split("-")
    tails = [_pieces("-".join(parts[at:])) for at in range(len(parts))]
    return any(tail[: len(word)] == word for tail in tails)


def _spelt_like(part: str) -> list[str]:
    return difflib.get_close_matches(part, entry_names("device"), 3, 0.75)


def _in_words(words: list[str]) -> str:
    return " or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)
