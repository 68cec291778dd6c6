"""Communication beside compute: what the two take together.

Notation (this file only)::

    C  seconds of compute alone             N  seconds of traffic alone            [s]
    F  seconds of copying at the rate of a node's fabric, at most N                [s]
    i  the stack's ``interference``                                                [1]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.arrays import Array
from autoplan.costs.collectives import Group, Operation, collective_seconds, copy_seconds
from autoplan.costs.machine import Links, Machine

__all__ = ["Flow", "beside_seconds", "flow_of"]


@dataclass(frozen=True, slots=True)
class Flow:
    """Traffic: its seconds N, and what compute beside it feels of them where i is 1, F."""

    seconds: Array
    felt: Array

    def __add__(self, other: Flow) -> Flow:
        """Return one after the other."""
        return Flow(self.seconds + other.seconds, self.felt + other.felt)

    def scaled(self, times: Array | float) -> Flow:
        """Return so many of it."""
        return Flow(times * self.seconds, times * self.felt)

    @property
    def share(self) -> Array:
        """F / N; 1 where nothing flows."""
        share: Array = np.where(
            self.seconds > 0, self.felt / np.where(self.seconds > 0, self.seconds, 1.0), 1.0
        )
        return share


def flow_of(operation: Operation, size: Array, group: Group, links: Links) -> Flow:
    """Return one collective on a full tensor of ``size`` bytes [s].

    Collectives copy with multiprocessors and memory bandwidth of the kernels that they run beside, in
    proportion to the bytes that pass: F is what these take at the rate of a node's fabric.

    >>> links = Links(8, 400e9, 400e9, False, 0.0, 40e9, 0.0, 0.0, ())
    >>> groups = Group(np.array([64.0, 8.0]), np.array([1.0, 8.0]))  # eight devices of a node, and one
    >>> flow = flow_of("all_gather", np.array([64 / 63 * 320e9, 8 / 7 * 40e9]), groups, links)
    >>> flow.seconds.round(9).tolist(), flow.felt.round(9).tolist()  # at 8 x 40 of 400 GB/s, and at 40
    ([1.0, 1.0], [0.8, 0.1])

    Leaves out: which kernels and which collectives meet; channels of rings that carry little.
    Source: as of ``collective_seconds``; that the bytes count is read from the runs of benchmarks/accuracy,
    where a layer of 405B with one device of each node in its rings hides its traffic and feels little.
    """
    seconds = collective_seconds(operation, size, group, links)
    return Flow(seconds, copy_seconds(seconds, operation, size, group, links))


def beside_seconds(compute: Array, traffic: Flow, machine: Machine) -> Array:
    """Return the time of compute with traffic beside it [s]: max(N, C + i F).

    While traffic flows, compute goes on at 1 - i F/N of its speed: if it ends first, the traffic counts; else
    it has i F left to do. In a stack that waits for its traffic it is C + N.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import machine_of
    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
    >>> machine = replace(machine, overlap=replace(machine.overlap, interference=0.25))
    >>> flow = Flow(np.array([2.0, 8.0]), np.array([2.0, 8.0]))  # in a node, whose fabric sets the pace
    >>> beside_seconds(np.array([3.0, 3.0]), flow, machine).tolist()  # 3 + 2 / 4; 8
    [3.5, 8.0]

    Leaves out: what compute takes from the traffic.
    Source: two flows of which one slows the other; the share i is fitted to the runs of benchmarks/accuracy,
    as the stack's file says.
    """
    if machine.overlap.waits:
        return compute + traffic.seconds
    felt = machine.overlap.interference * traffic.felt
    together: Array = np.maximum(traffic.seconds, compute + felt)
    return together
