"""Jobs as they would be on other links, with another batch or with longer sequences.

Notation (this file only)::

    t  measured time of a collective      L  that of the smallest message, its latency      [s]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from autoplan.results.comparing.crossovers import Knob, KnobName
from autoplan.schema.costmodel.kernel_spec import CollectiveTable
from autoplan.schema.hardware import NodeSpec
from autoplan.schema.job import Job
from autoplan.units import Dimension

__all__ = ["knob_of", "with_value"]


def knob_of(job: Job, name: KnobName) -> Knob:
    """Return the knob ``name`` with its value in ``job`` [byte/s, s or 1]."""
    return Knob(name, _PRESENT[name](job), _DIMENSIONS.get(name))


def with_value(job: Job, name: KnobName, value: float) -> Job:
    """Return ``job`` with ``value`` of the knob ``name`` [byte/s, s or 1].

    Measured tables of collectives stay the ones of the fabric: of their times t the part L scales with its
    latency and the rest, t - L, with one over its bandwidth.

    >>> from autoplan.catalog import load_job
    >>> job = with_value(load_job("llama2-7b-2x-a100"), "fabric_bandwidth", 25e9)
    >>> job.cluster.node.fabric.bandwidth.value / 1e9
    25.0
    """
    return _CHANGED[name](job, value)


_DIMENSIONS: Final[Mapping[str, Dimension]] = {
    "fabric_bandwidth": "bytes/s",
    "fabric_latency": "seconds",
    "network_bandwidth": "bytes/s",
    "network_latency": "seconds",
}

_PRESENT: Final[Mapping[KnobName, Callable[[Job], float]]] = {
    "fabric_bandwidth": lambda job: job.cluster.node.fabric.bandwidth.value,
    "fabric_latency": lambda job: job.cluster.node.fabric.latency.value,
    "network_bandwidth": lambda job: job.cluster.node.network.bandwidth_per_device.value,
    "network_latency": lambda job: job.cluster.node.network.latency.value,
    "global_batch_size": lambda job: float(job.workload.global_batch_size),
    "sequence_length": lambda job: float(job.workload.sequence_length),
}


def _with_fabric_bandwidth(job: Job, value: float) -> Job:
    factor = value / job.cluster.node.fabric.bandwidth.value
    return _with_tables(_with_fabric(job, ("bandwidth", "pair_bandwidth"), factor), 1.0, 1.0 / factor)


def _with_fabric_latency(job: Job, value: float) -> Job:
    factor = value / job.cluster.node.fabric.latency.value
    return _with_tables(_with_fabric(job, ("latency",), factor), factor, 1.0)


def _with_fabric(job: Job, names: tuple[str, ...], factor: float) -> Job:
    fabric = job.cluster.node.fabric
    numbers = {name: getattr(fabric, name) for name in names}
    scaled = {
        name: number.model_copy(update={"value": number.value * factor})
        for name, number in numbers.items()
        if number is not None
    }
    return _with_node(job, job.cluster.node.model_copy(update={"fabric": fabric.model_copy(update=scaled)}))


def _with_network(job: Job, name: str, value: float) -> Job:
    network = job.cluster.node.network
    changed = getattr(network, name).model_copy(update={"value": value})
    own = network.model_copy(update={name: changed})
    return _with_node(job, job.cluster.node.model_copy(update={"network": own}))


def _with_node(job: Job, node: NodeSpec) -> Job:
    return replace(job, cluster=replace(job.cluster, node=node), source=None)


def _with_tables(job: Job, latency: float, transfer: float) -> Job:
    """Return ``job`` with the measured collectives at ``latency`` and ``transfer`` times their time."""
    collectives = job.kernels.collectives
    tables = tuple(_scaled(table, latency, transfer) for table in collectives.tables)
    own = collectives.model_copy(update={"tables": tables})
    return replace(job, kernels=job.kernels.model_copy(update={"collectives": own}))


def _scaled(table: CollectiveTable, latency: float, transfer: float) -> CollectiveTable:
    least = min(table.microseconds)
    times = tuple(latency * least + transfer * (time - least) for time in table.microseconds)
    return table.model_copy(update={"microseconds": times})


def _with_workload(job: Job, name: str, value: float) -> Job:
    return replace(job, workload=job.workload.model_copy(update={name: round(value)}), source=None)


_CHANGED: Final[Mapping[KnobName, Callable[[Job, float], Job]]] = {
    "fabric_bandwidth": _with_fabric_bandwidth,
    "fabric_latency": _with_fabric_latency,
    "network_bandwidth": lambda job, value: _with_network(job, "bandwidth_per_device", value),
    "network_latency": lambda job, value: _with_network(job, "latency", value),
    "global_batch_size": lambda job, value: _with_workload(job, "global_batch_size", value),
    "sequence_length": lambda job, value: _with_workload(job, "sequence_length", value),
}
