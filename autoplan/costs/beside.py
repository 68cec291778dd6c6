"""Communication beside compute: what the two take together.

Notation (this file only)::

    C  seconds of compute alone             N  seconds of traffic alone            [s]
    i  the stack's ``interference``         r  share of the fabric's rate          [1]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.arrays import Array
from autoplan.costs.collectives import Group, rate_share
from autoplan.costs.machine import Machine

__all__ = ["beside_seconds", "felt_share"]


def felt_share(group: Group, machine: Machine) -> Array:
    """Return the share of a device's compute that traffic of ``group`` takes while it flows [1]: i r.

    Collectives copy with multiprocessors and memory bandwidth of the kernels that they run beside, in
    proportion to the bytes that pass: i of them at the rate of a node's fabric, less where a network paces
    them.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import machine_of
    >>> machine = machine_of(load_job("llama3-70b-64x-h100"))
    >>> machine = replace(machine, overlap=replace(machine.overlap, interference=0.5), links=replace(
    ...     machine.links, fabric_bandwidth=400e9, network_bandwidth=40e9))
    >>> eight, one = Group(np.array(64.0), np.array(1.0)), Group(np.array(8.0), np.array(8.0))
    >>> [float(felt_share(group, machine)) for group in (eight, one)]  # 8 x 40 of 400 GB/s, and 40
    [0.4, 0.05]

    Leaves out: which kernels and which collectives meet; channels of rings that carry little.
    Source: the share is fitted to the runs of benchmarks/accuracy, as the stack's file says.
    """
    share: Array = machine.overlap.interference * rate_share(group, machine.links)
    return share


def beside_seconds(compute: Array, traffic: Array, group: Group, machine: Machine) -> Array:
    """Return the time of compute with traffic of ``group`` beside it [s]: max(N, C + i r N).

    While traffic flows, compute goes on at 1 - i r of its speed: if it ends first, at C / (1 - i r) <= N, the
    traffic counts; else it has i r N left to do. In a stack that waits for its traffic it is C + N.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import machine_of
    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
    >>> machine = replace(machine, overlap=replace(machine.overlap, interference=0.25))
    >>> eight = Group(np.array(8.0), np.array(1.0))  # a node, whose fabric sets the pace
    >>> beside_seconds(np.array([3.0, 3.0]), np.array([2.0, 8.0]), eight, machine).tolist()  # 3 + 2 / 4; 8
    [3.5, 8.0]

    Leaves out: what compute takes from the traffic.
    Source: as of ``felt_share``; the form is that of two flows of which one slows the other.
    """
    if machine.overlap.waits:
        return compute + traffic
    together: Array = np.maximum(traffic, compute + felt_share(group, machine) * traffic)
    return together
