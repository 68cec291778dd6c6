"""Communication beside compute: what the two take together.

Notation (this file only)::

    C  seconds of compute alone             N  seconds of traffic alone            [s]
    F  seconds of copying at the rate of a node's fabric, at most N                [s]
    i  the stack's ``interference``                                                [1]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Links, Machine
from autoplan.costs.network.collectives import Group, Operation, collective_seconds, copy_seconds
from autoplan.costs.network.volume import Collective

__all__ = ["Traffic", "exposed_reduction", "exposed_seconds", "message_traffic", "traffic_of"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic: its seconds N, and what compute beside it feels of them where i is 1, F."""

    seconds: Array
    contention: Array

    def __add__(self, other: Traffic) -> Traffic:
        """Return one after the other."""
        return Traffic(self.seconds + other.seconds, self.contention + other.contention)

    def scaled(self, times: Array | float) -> Traffic:
        """Return so many of it."""
        return Traffic(times * self.seconds, times * self.contention)

    @property
    def share(self) -> Array:
        """F / N; 1 where nothing flows."""
        share: Array = np.where(
            self.seconds > 0, self.contention / np.where(self.seconds > 0, self.seconds, 1.0), 1.0
        )
        return share


def traffic_of(operation: Operation, size: Array, group: Group, links: Links) -> Traffic:
    """Return one collective on a full tensor of ``size`` bytes [s].

    Collectives copy with multiprocessors and memory bandwidth of the kernels that they run beside, in
    proportion to the bytes that pass: F is what these take at the rate of a node's fabric.

    >>> links = Links(8, 400e9, 400e9, False, 0.0, 40e9, 0.0, 0.0, ())
    >>> groups = Group(np.array([64.0, 8.0]), np.array([1.0, 8.0]))  # eight devices of a node, and one
    >>> flow = traffic_of("all_gather", np.array([64 / 63 * 320e9, 8 / 7 * 40e9]), groups, links)
    >>> flow.seconds.round(9).tolist(), flow.contention.round(9).tolist()  # at 8 x 40 of 400 GB/s, and at 40
    ([1.0, 1.0], [0.8, 0.1])

    Leaves out: which kernels and which collectives meet; channels of rings that carry little.
    """
    seconds = collective_seconds(operation, size, group, links)
    return Traffic(seconds, copy_seconds(seconds, operation, size, group, links))


def message_traffic(part: Collective, machine: Machine, *, into_lists: bool = False) -> Traffic:
    """Return the seconds of one message of ``part`` [s]; all of its calls are ``part.calls`` times that.

    With ``into_lists`` a gather ends with a copy for each rank, which the host launches.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
    >>> group, one = Group(np.array(8.0), np.array(1.0)), np.array(1.0)
    >>> part = Collective("all_gather", group, np.array(2.0**26), one, "forward")
    >>> plain, listed = (message_traffic(part, machine, into_lists=x) for x in (False, True))
    >>> bool(np.isclose(listed.seconds - plain.seconds, 8 * machine.host_launch))
    True
    """
    one = traffic_of(part.operation, part.message, part.group, machine.links)
    if not into_lists or part.operation != "all_gather":
        return one
    listed = machine.host_launch * part.group.ranks
    return one + Traffic(listed, listed)


def exposed_seconds(compute: Array, traffic: Traffic, machine: Machine) -> Array:
    """Return what traffic adds to the compute that it runs beside [s]: max(N - C, i F).

    While traffic flows, compute goes on at 1 - i F/N of its speed: if it ends first, the traffic counts; else
    it has i F left to do. In a stack that waits for its traffic it is N.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
    >>> machine = replace(machine, overlap=replace(machine.overlap, interference=0.25))
    >>> flow = Traffic(np.array([2.0, 8.0]), np.array([2.0, 8.0]))  # in a node, whose fabric sets the pace
    >>> exposed_seconds(np.array([3.0, 3.0]), flow, machine).tolist()  # 2 / 4; 8 - 3
    [0.5, 5.0]

    Leaves out: what compute takes from the traffic.
    Source: two flows of which one slows the other; the share i is fitted to the runs of benchmarks/accuracy,
    as the stack's file says.
    """
    if machine.overlap.waits:
        return traffic.seconds
    contention = machine.overlap.interference * traffic.contention
    exposed: Array = np.maximum(traffic.seconds - compute, contention)
    return exposed


def exposed_reduction(
    traffic: Array, window: Array, bucket: Array, chunks: Array, interference: Array
) -> Array:
    """Return what is exposed of a step's reduction, or gathering, beside a pass of ``window`` seconds [s].

    Of v ``chunks`` all but the last communicate while others still compute; of the last one's the ``bucket``
    that comes last has nothing beside it: max((N - C)/v, N_bucket), at most N; and compute feels the share i
    of what runs beside it.

    >>> one, none = np.array(1.0), np.array(0.0)
    >>> float(exposed_reduction(np.array(10.0), np.array(4.0), one, one, none))  # 10 beside 4
    6.0
    >>> float(exposed_reduction(np.array(3.0), np.array(4.0), one, one, none))  # the last bucket
    1.0

    Leaves out: the order in which buckets become ready.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2.3; Megatron-LM, --overlap-grad-reduce.
    """
    left = np.minimum(np.maximum((traffic - window) / chunks, bucket), traffic)
    alone = np.minimum(bucket, traffic)
    contention: Array = np.maximum(left, alone + interference * (traffic - alone))
    return contention
