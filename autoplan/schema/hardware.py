"""The files of the hardware catalogue: a device, a node of devices, a cluster of nodes.

What is written here is what the hardware *is*; how far reality falls short of it belongs to the
cost models. `hardware/README.md` explains every field to people who add an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autoplan.schema.base import (
    Bytes,
    Frozen,
    Sourced,
    SourcedBandwidth,
    SourcedBytes,
    SourcedCount,
    SourcedFactor,
    SourcedFlopRate,
    SourcedSeconds,
    SourcedWatts,
)

EntryName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
SourceKey = Annotated[str, Field(min_length=2)]
SourceText = Annotated[str, Field(min_length=8)]

Topology = Literal["switch", "mesh", "cube-mesh", "bridge", "pcie-switch", "host"]

#: Fabrics in which one pair of devices does not get all the links of a device.
_PAIRED: frozenset[Topology] = frozenset({"mesh", "cube-mesh", "bridge"})


def sourced_numbers(model: BaseModel, path: str = "") -> Iterator[tuple[str, Sourced]]:
    """Yield each sourced number below ``model`` with its dotted path."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        where = f"{path}.{name}" if path else name
        if isinstance(value, Sourced):
            yield where, value
        elif isinstance(value, BaseModel):
            yield from sourced_numbers(value, where)


class _Entry(Frozen):
    """What every file of the hardware catalogue has."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema", description="version of this file format")
    name: EntryName = Field(description="the name in job files; the file is called the same")
    title: str = Field(min_length=2, description="the name for people, as its maker writes it")
    note: str | None = Field(default=None, description="what a reader should know about the entry")
    sources: dict[SourceKey, SourceText] = Field(
        description="the sources of the numbers below: a short key and the source in full"
    )

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        problems = [
            problem
            for where, number in sourced_numbers(self)
            for problem in _number_problems(where, number, self.sources)
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _number_problems(where: str, number: Sourced, sources: dict[str, str]) -> Iterator[str]:
    if number.source not in sources:
        names = ", ".join(sorted(sources)) or "none"
        yield f"{where} names the source {number.source!r}, which `sources` lacks (it has: {names})"
    if not getattr(number, "value", 0) > 0:
        yield f"{where} is not positive: leave the field out for what does not exist"


class PeakRates(Frozen):
    """Dense peak rates, without sparsity, of the matrix units where there are any.

    A 16-bit or 8-bit rate is the one with accumulation in fp32, as training uses it.
    """

    fp32: SourcedFlopRate | None = Field(default=None, description="true fp32, without tf32")
    tf32: SourcedFlopRate | None = Field(default=None, description="fp32 data in tf32 matrix units")
    bf16: SourcedFlopRate | None = Field(default=None, description="bf16, accumulated in fp32")
    fp16: SourcedFlopRate | None = Field(default=None, description="fp16, accumulated in fp32")
    fp8: SourcedFlopRate | None = Field(default=None, description="fp8, accumulated in fp32")
    mxfp8: SourcedFlopRate | None = Field(
        default=None, description="fp8 of which each 32 elements have a scale, accumulated in fp32"
    )
    int8: SourcedFlopRate | None = Field(default=None, description="int8, accumulated in int32")
    fp4: SourcedFlopRate | None = Field(default=None, description="4-bit floats")

    @model_validator(mode="after")
    def _check_sixteen_bit(self) -> Self:
        if self.bf16 is None and self.fp16 is None:
            raise ValueError("a device needs a bf16 or an fp16 peak rate")
        return self


class DeviceMemory(Frozen):
    """The memory of a device."""

    capacity: SourcedBytes = Field(description="total that the driver reports (nvidia-smi)")
    usable: SourcedBytes = Field(
        description="total that PyTorch reports; the context and the framework still come off it"
    )
    bandwidth: SourcedBandwidth = Field(description="data-sheet rate, reads and writes together")
    technology: str = Field(min_length=2, description="kind of memory, such as HBM3")

    @model_validator(mode="after")
    def _check_usable(self) -> Self:
        if self.usable.value > self.capacity.value:
            raise ValueError("usable memory is larger than the capacity")
        return self


class DeviceLink(Frozen):
    """The links that join a device to its peers without going over PCIe."""

    technology: Literal["nvlink", "xgmi", "roce"] = Field(description="kind of link")
    peers: Literal["node", "pair"] = Field(
        default="node", description="devices that it joins: all of a node, or two with a bridge"
    )
    bandwidth: SourcedBandwidth = Field(description="one direction, all links of one device together")


class DeviceSpec(_Entry):
    """One accelerator, as the software counts them."""

    kind: Literal["device"] = Field(description="says that this file describes a device")
    vendor: str = Field(min_length=2, description="maker, in lower case: nvidia, amd, intel")
    architecture: str = Field(min_length=2, description="generation, in lower case: ampere, cdna3")
    peak: PeakRates = Field(description="dense peak rates by precision; none where unsupported")
    memory: DeviceMemory = Field(description="size and speed of the device's memory")
    l2_cache: SourcedBytes | None = Field(default=None, description="last cache before the memory")
    multiprocessors: SourcedCount | None = Field(
        default=None, description="streaming multiprocessors (NVIDIA) or compute units (AMD)"
    )
    power: SourcedWatts | None = Field(default=None, description="power limit as shipped")
    pcie_bandwidth: SourcedBandwidth | None = Field(
        default=None, description="nominal PCIe rate of its slot, one direction"
    )
    peer_copies: bool = Field(
        default=True,
        description="whether the driver copies from device to device over PCIe; GeForce cards copy through"
        " host memory",
    )
    link: DeviceLink | None = Field(default=None, description="left out where there is only PCIe")

    def peak_flops(self, precision: str) -> float | None:
        """Return the dense peak rate at ``precision`` [FLOP/s], None where it is not supported.

        Raises ValueError for a word that is not a precision.
        """
        if precision not in PeakRates.model_fields:
            formats = ", ".join(PeakRates.model_fields)
            raise ValueError(f"{precision!r} is not a precision: one of {formats}")
        rate: SourcedFlopRate | None = getattr(self.peak, precision)
        return None if rate is None else rate.value


class Fabric(Frozen):
    """What joins the devices of one node."""

    topology: Topology = Field(
        description="switch (any pair at full rate), mesh (a link for each pair), cube-mesh (links "
        "for some pairs), bridge (bridged pairs, PCIe between them), pcie-switch (direct copies "
        "over PCIe), host (copies staged through host memory)"
    )
    bandwidth: SourcedBandwidth = Field(
        description="what one device sends into the fabric, one direction, over all its links"
    )
    pair_bandwidth: SourcedBandwidth | None = Field(
        default=None,
        description="what one device sends to one linked neighbour, one direction; left out where "
        "a pair gets the full bandwidth",
    )
    latency: SourcedSeconds = Field(
        description="one hop of a small message, without the start-up of the software"
    )

    @property
    def over_pcie(self) -> bool:
        """Whether devices copy to each other over PCIe alone, directly or through the memory of the host."""
        return self.topology in {"pcie-switch", "host"}

    @property
    def rate_differs_by_host(self) -> bool:
        """Whether lanes and root complexes decide the rate between devices, and nobody measured it."""
        return self.over_pcie and self.bandwidth.kind != "measured"

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if self.topology in _PAIRED and self.pair_bandwidth is None:
            raise ValueError(f"a {self.topology} fabric needs `pair_bandwidth`")
        if self.topology not in _PAIRED and self.pair_bandwidth is not None:
            raise ValueError(f"`pair_bandwidth` means nothing in a {self.topology} fabric")
        return self


class Host(Frozen):
    """The node's CPUs as the devices see them."""

    memory: SourcedBytes = Field(description="main memory of the whole node")
    link_bandwidth: SourcedBandwidth = Field(
        description="what one device copies from or to host memory, one direction"
    )
    launch_factor: SourcedFactor | None = Field(
        default=None,
        description="time in which its processors launch a kernel over that of the hosts for which stacks"
        " tell theirs (`host_launch`); left out: 1",
    )


class Network(Frozen):
    """What joins the nodes."""

    name: str = Field(min_length=3, description="for people, such as HDR InfiniBand 8 x 200 Gb/s")
    bandwidth_per_device: SourcedBandwidth = Field(
        description="the node's total, one direction, divided by its devices"
    )
    latency: SourcedSeconds = Field(
        description="one hop of a small message from device to device across nodes"
    )
    direct_memory_access: bool = Field(
        description="whether the network cards read device memory directly (GPUDirect)"
    )


class NodeSpec(_Entry):
    """The devices that share a fast fabric, with their host."""

    kind: Literal["node"] = Field(description="says that this file describes a node")
    device: EntryName = Field(description="name of an entry in hardware/devices")
    devices: int = Field(ge=1, le=10_000, description="number of devices")
    fabric: Fabric = Field(description="what joins the devices")
    host: Host = Field(description="the CPUs and their memory")
    network: Network = Field(description="the default network between such nodes")
    default_stack: str | None = Field(
        default=None, description="the software that a job uses when it names none"
    )
    derived_from: EntryName | None = Field(
        default=None,
        description="the node that numbers were taken from, where no file describes this one",
    )


class ClusterSpec(_Entry):
    """Alike nodes on one network."""

    kind: Literal["cluster"] = Field(description="says that this file describes a cluster")
    node: EntryName = Field(description="name of an entry in hardware/nodes")
    nodes: int = Field(ge=1, le=1_000_000, description="number of nodes")
    network: Network | None = Field(
        default=None, description="the network between the nodes; left out: the node's default"
    )


class RentedMachine(Frozen):
    """What a provider's machine is: so many of a device below a host, or a node of the catalogue."""

    node: EntryName | None = Field(default=None, description="name of an entry in hardware/nodes")
    device: EntryName | None = Field(default=None, description="name of an entry in hardware/devices")
    devices: int = Field(default=1, ge=1, le=10_000, description="number of devices")
    host_memory: Bytes | None = Field(default=None, description="main memory of the machine")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.node is None) == (self.device is None or self.host_memory is None):
            raise ValueError("a machine has a node, or a device and the memory of its host")
        return self


class MachinesSpec(Frozen):
    """Machines that are rented, whose numbers are those of nodes and devices."""

    schema_version: Literal[1] = Field(alias="schema", description="version of this file format")
    kind: Literal["machines"] = Field(description="says that this file lists machines")
    source: SourceText = Field(description="where devices and memory of the machines stand")
    machines: dict[EntryName, RentedMachine] = Field(description="machines by provider and name")


#: Any file of the hardware catalogue, distinguished by its ``kind``.
HardwareSpec = Annotated[DeviceSpec | NodeSpec | ClusterSpec, Field(discriminator="kind")]
