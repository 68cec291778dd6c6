"""Links with other latencies and bandwidths, for the question where a choice flips.

Notation (this file only)::

    t   measured time of a collective, and t0 of its smallest message      [s]
    x   latency over that of the links, and y bandwidth over theirs        [1]
"""

from __future__ import annotations

from dataclasses import replace

from autoplan.costs.device.machine import Machine
from autoplan.schema.costmodel.kernel_spec import CollectiveTable

__all__ = ["with_scaled_links"]


def with_scaled_links(
    machine: Machine, *, across: bool = False, latency: float = 1.0, bandwidth: float = 1.0
) -> Machine:
    """Return ``machine`` with x times the latency and y times the bandwidth of a level of its links [1].

    Inside a node start-up of a collective and hops scale with x, and the time of bytes with 1 / y; of a
    measured table x t0 + (t - t0) / y, which is the table itself where both are 1. ``across`` nodes hops and
    bandwidth of the network do, and nothing inside a node changes.

    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
    >>> with_scaled_links(machine) == machine
    True
    >>> faster = with_scaled_links(machine, across=True, bandwidth=2.0).links
    >>> faster.network_bandwidth / machine.links.network_bandwidth, faster.tables == machine.links.tables
    (2.0, True)

    Leaves out: a protocol that is chosen by the size of a message, and would change with the latency.
    Source: the latency-bandwidth model (Hockney 1994, doi:10.1016/S0167-8191(06)80021-9).
    """
    links = machine.links
    if latency == bandwidth == 1.0:
        return machine
    if across:
        scaled = replace(
            links,
            network_bandwidth=bandwidth * links.network_bandwidth,
            network_latency=latency * links.network_latency,
        )
    else:
        scaled = replace(
            links,
            fabric_bandwidth=bandwidth * links.fabric_bandwidth,
            pair_bandwidth=bandwidth * links.pair_bandwidth,
            fabric_latency=latency * links.fabric_latency,
            launch=latency * links.launch,
            tables=tuple(_scaled(table, latency, bandwidth) for table in links.tables),
            least=tuple(_scaled(table, latency, bandwidth) for table in links.least),
        )
    return replace(machine, links=scaled)


def _scaled(table: CollectiveTable, latency: float, bandwidth: float) -> CollectiveTable:
    smallest = table.microseconds[0]
    times = (latency * smallest + max(0.0, t - smallest) / bandwidth for t in table.microseconds)
    return table.model_copy(update={"microseconds": tuple(times)})
