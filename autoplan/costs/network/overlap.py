"""Overlap of communication with compute: exposed seconds, and the slowdown of compute by contention.

Notation (this file only)::

    C  seconds of compute without overlap   N  seconds of traffic without overlap  [s]
    F  seconds of copying at the rate of a node's fabric, at most N                [s]
    i  the stack's ``interference``                                                [1]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Links, Machine
from autoplan.costs.network.collectives import Group, Operation, collective_seconds, contention_seconds
from autoplan.costs.network.volume import Collective


@dataclass(frozen=True, slots=True)
class Traffic:
    """Communication: its seconds N, and the seconds F of contention with overlapped compute at i = 1."""

    seconds: Array
    contention: Array

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of two communications that run one after the other."""
        return Traffic(self.seconds + other.seconds, self.contention + other.contention)

    def scaled(self, times: Array | float) -> Traffic:
        """Return ``times`` as much communication."""
        return Traffic(times * self.seconds, times * self.contention)

    @property
    def share(self) -> Array:
        """F / N; 1 where nothing is sent."""
        share: Array = np.where(
            self.seconds > 0, self.contention / np.where(self.seconds > 0, self.seconds, 1.0), 1.0
        )
        return share


def traffic_of(operation: Operation, size: Array, group: Group, links: Links) -> Traffic:
    """Return the traffic of one collective on a full tensor of ``size`` bytes [s].

    Collectives take multiprocessors (SMs) and memory bandwidth from overlapped kernels, in proportion to the
    bytes that they copy: F is the time of that copy at the rate of a node's fabric.

    >>> links = Links(8, 400e9, 400e9, False, 0.0, 40e9, 0.0, 0.0, ())
    >>> groups = Group(np.array([64.0, 8.0]), np.array([1.0, 8.0]))  # eight devices of a node, and one
    >>> traffic = traffic_of("all_gather", np.array([64 / 63 * 320e9, 8 / 7 * 40e9]), groups, links)
    >>> traffic.seconds.round(9).tolist(), traffic.contention.round(9).tolist()  # 320 and 40 of 400 GB/s
    ([1.0, 1.0], [0.8, 0.1])

    Leaves out: which kernels and which collectives overlap; channels of rings that carry little.
    """
    seconds = collective_seconds(operation, size, group, links)
    return Traffic(seconds, contention_seconds(seconds, operation, size, group, links))


def message_traffic(part: Collective, machine: Machine, *, into_lists: bool = False) -> Traffic:
    """Return the traffic of one message of ``part`` [s]; the collective has ``part.calls`` of them.

    With ``into_lists`` an all-gather ends with one copy a rank (``all_gather`` into a list), launched by the
    host.

    >>> group, one = Group(np.array(8.0), np.array(1.0)), np.array(1.0)
    >>> part = Collective("all_gather", group, np.array(2.0**26), one, "forward", "dp")
    >>> plain, listed = (message_traffic(part, machine, into_lists=x) for x in (False, True))
    >>> bool(np.isclose(listed.seconds - plain.seconds, 8 * machine.host_launch))
    True
    """
    message = traffic_of(part.operation, part.message, part.group, machine.links)
    if not into_lists or part.operation != "all_gather":
        return message
    copies = machine.host_launch * part.group.ranks
    return message + Traffic(copies, copies)


def exposed_seconds(compute: Array, traffic: Traffic, machine: Machine) -> Array:
    """Return the exposed seconds of traffic that overlaps with compute [s]: max(N - C, i F).

    During communication compute runs at 1 - i F/N of its speed. If compute ends first, N - C is exposed; else
    compute has i F left to do. A stack without prefetch exposes all of N.

    >>> machine = machine_of(job)
    >>> machine = replace(machine, overlap=replace(machine.overlap, interference=0.25))
    >>> traffic = Traffic(np.array([2.0, 8.0]), np.array([2.0, 8.0]))  # inside a node: F = N
    >>> exposed_seconds(np.array([3.0, 3.0]), traffic, machine).tolist()  # 2 / 4; 8 - 3
    [0.5, 5.0]

    Leaves out: the slowdown of communication by compute.
    Source: a slowdown of compute in proportion to what communication copies; the factor i is fitted to the
    runs of benchmarks/accuracy, as the stack's file says.
    """
    if machine.overlap.no_prefetch:
        return traffic.seconds
    contention = machine.overlap.interference * traffic.contention
    exposed: Array = np.maximum(traffic.seconds - compute, contention)
    return exposed


def exposed_reduction(
    traffic: Array, window: Array, bucket: Array, chunks: Array, interference: Array
) -> Array:
    """Return the exposed seconds of a reduction or all-gather that overlaps with ``window`` seconds [s].

    Of v ``chunks`` all but the last communicate while others compute. The last ``bucket`` of the last chunk
    has no compute to overlap with: max((N - C)/v, N_bucket), at most N. Overlapped seconds slow compute by
    the factor i.

    >>> one, none = np.array(1.0), np.array(0.0)
    >>> float(exposed_reduction(np.array(10.0), np.array(4.0), one, one, none))  # 10 - 4
    6.0
    >>> float(exposed_reduction(np.array(3.0), np.array(4.0), one, one, none))  # the last bucket
    1.0

    Leaves out: the order in which buckets become ready.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2.3; Megatron-LM, --overlap-grad-reduce.
    """
    unhidden = np.minimum(np.maximum((traffic - window) / chunks, bucket), traffic)
    last_bucket = np.minimum(bucket, traffic)
    exposed: Array = np.maximum(unhidden, last_bucket + interference * (traffic - last_bucket))
    return exposed
