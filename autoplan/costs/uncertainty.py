"""How sure a step time is: what share of it measured tables price, and the interval that follows.

Notation (this file only)::

    x     share of a step's seconds that no measured table prices                  [1]
    a, b  half-widths of the 90 % interval where x is 0, and what x = 1 adds       [1]
    w     half-width of a prediction's interval                                    [1]

Tables hold matrix products and fused attention of a device at 16 bits, inside a range of shapes, and
collectives inside its node. All else is modelled: memory-bound operations, launches, networks, stage
boundaries, and everything on a device that was not measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import hypot

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.layer_time import BlockTimes, block_times
from autoplan.schema.costmodel.stack import UncertaintySpec
from autoplan.schema.job import Job

__all__ = ["half_width", "modelled_compute", "within_tables"]

#: What sweeps of kernels were run at.
_SWEPT = ("bf16", "fp16")


def modelled_compute(
    job: Job, candidates: Candidates, machine: Machine, blocks: Sequence[BlockTimes]
) -> Array:
    """Return the share of the layers' compute that no table of kernels prices [1], shape [C].

    The time of the layers on a machine where all that tables hold takes none, over their time, which
    ``blocks`` tells of one layer of each kind [s].

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.layer.layer_time import block_times
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=2", layers=32, devices=8)])
    >>> job = load_job("llama3-8b-8x-a100")
    >>> machine = machine_of(job)
    >>> blocks = [block_times(job, one, machine)]
    >>> modelled_compute(replace(job, precision="fp32"), one, machine, blocks).tolist()  # swept at 16 bits
    [1.0]
    >>> bool(0.05 < modelled_compute(job, one, machine, blocks)[0] < 0.3)  # norms, additions, rotation
    True

    Leaves out: that neighbours in a table differ by more in some places than in others.
    """
    if job.precision not in _SWEPT or job.cluster.device.name not in job.kernels.devices:
        return np.ones(len(candidates))
    left = replace(
        machine,
        gemm=replace(machine.gemm, beyond=True),
        attention_forward=replace(machine.attention_forward, beyond=True),
        attention_backward=replace(machine.attention_backward, beyond=True),
    )
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    count = Counter(kinds.sequence)
    whole = rest = np.zeros(())
    for k, (kind, layer) in enumerate(zip(kinds.jobs(job), blocks, strict=True)):
        without = block_times(kind, candidates, left)
        layers = count[k] if kinds.several else 1
        whole = whole + layers * (layer.forward + layer.backward)
        rest = rest + layers * (without.forward + without.backward)
    share: Array = rest / whole
    return np.clip(share, 0.0, 1.0)


def within_tables(devices: int, machine: Machine) -> bool:
    """Return whether collectives between ``devices`` neighbours [1] are among those that were measured.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
    >>> [within_tables(n, machine) for n in (1, 8, 16)]
    [True, True, False]

    Leaves out: operations of which a node has no table, which scale from its bandwidth.
    """
    links = machine.links
    return devices == 1 or (devices <= links.devices_per_node and bool(links.tables))


def half_width(modelled: float, doubt: UncertaintySpec) -> float:
    """Return w, the half-width of the 90 % interval of a step time, as a share of it [1]: hypot(a, b x).

    >>> from autoplan.catalog import stack
    >>> doubt = stack("megatron-core").uncertainty
    >>> half_width(0.0, doubt) == doubt.time.value
    True
    >>> half_width(0.4, doubt) < half_width(0.8, doubt) < doubt.time.value + 0.8 * doubt.time_modelled.value
    True

    Leaves out: that what is modelled differs in how well it is.
    Source: least interval score (Gneiting and Raftery 2007, section 6.2) of published runs that the fit had
    not seen, ``python -m benchmarks.accuracy --leave-out group``; errors of parts taken to be independent.
    """
    return hypot(doubt.time.value, modelled * doubt.time_modelled.value)
