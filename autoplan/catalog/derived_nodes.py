"""Nodes that no file describes, derived from their device and from the nearest node that a file describes.

A derived node is called ``4x-h100-pcie-80gb``: a number of devices and the name of the device. It contains no
number of its own: each one is that of the device or of the other node, scaled where it is said so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from autoplan.schema.base import NumberKind, Sourced, SourcedBandwidth, SourcedBytes
from autoplan.schema.hardware import DeviceSpec, Fabric, Host, Network, NodeSpec, sourced_numbers

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
        return Host(memory=memory, link_bandwidth=self._by_slot(host.link_bandwidth))

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
