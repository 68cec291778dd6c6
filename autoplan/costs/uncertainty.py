"""Uncertainty of a step time: the share without measured kernels, and the 90 % prediction interval.

Notation (this file only)::

    x     modelled share of the step time, outside all measured tables             [1]
    a, b  half-widths of the 90 % interval: at x = 0, and the addition at x = 1    [1]
    w     half-width of the interval of a prediction                               [1]

Measured tables cover GEMMs and fused attention of a device at 16 bits within a range of shapes, and
collectives within a node. Everything else is modelled: memory-bound kernels, launches, networks, pipeline
send/receive, and all kernels of devices that were not measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import hypot
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.layer_time import LayerTimes
from autoplan.costs.network.mesh import pipeline_group
from autoplan.costs.stage.per_microbatch import boundary_bytes
from autoplan.schema.costmodel.interval_spec import UncertaintySpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

#: Share of the variance of a prediction that the numbers of a machine cause, m = 1 - (4.1/5.8)^2: errors of
#: groups left out of the fit have a standard deviation of 5.8 %, those of layouts around their group 4.1 %
#: (medians over groups, ``benchmarks/accuracy/data/left_out/group.csv``).
MACHINE_SHARE: Final = 0.5
#: Most that a run may be faster than predicted: an interval that reaches zero would say nothing.
_MOST_BELOW = 0.95
#: Precisions of the measured kernel tables.
MEASURED_PRECISIONS = ("bf16", "fp16")


def unmeasured(job: Job, machine: Machine) -> Machine | None:
    """Return ``machine`` with measured kernels that take no time; None where no kernel was measured.

    >>> unmeasured(job, machine).gemm.beyond, unmeasured(replace(job, precision="fp32"), machine)
    (True, None)
    """
    if job.precision not in MEASURED_PRECISIONS or job.cluster.device.name not in job.kernels.devices:
        return None
    return replace(
        machine,
        gemm=replace(machine.gemm, beyond=True),
        attention_forward=replace(machine.attention_forward, beyond=True),
        attention_backward=replace(machine.attention_backward, beyond=True),
    )


def modelled_compute(
    job: Job, candidates: Candidates, blocks: Sequence[LayerTimes], modelled_blocks: Sequence[LayerTimes]
) -> Array:
    """Return the modelled share of the layers' compute [1], shape [C].

    The time of the layers on the ``unmeasured`` machine, over their time. ``blocks`` has the times of one
    layer of every type [s], ``modelled_blocks`` those on the unmeasured machine, if there is one.

    >>> one = candidate("tp=2")
    >>> actual, modelled = ([layer_times(job, one, x)] for x in (machine, unmeasured(job, machine)))
    >>> modelled_compute(job, one, actual, ()).tolist()  # where nothing was measured
    [1.0]
    >>> bool(0.05 < modelled_compute(job, one, actual, modelled)[0] < 0.3)  # norms, additions, rotary
    True

    Leaves out: interpolation error, which varies over a table.
    """
    if not modelled_blocks:
        return np.ones(len(candidates))
    types = layer_types_of(job.model, job.workload.sequence_length)
    count = Counter(types.sequence)
    total_seconds = modelled_seconds = np.zeros(())
    for k, (modelled, layer) in enumerate(zip(modelled_blocks, blocks, strict=True)):
        layers = count[k] if types.several else 1
        total_seconds = total_seconds + layers * (layer.forward + layer.backward)
        modelled_seconds = modelled_seconds + layers * (modelled.forward + modelled.backward)
    share: Array = modelled_seconds / total_seconds
    return np.clip(share, 0.0, 1.0)


def within_tables(devices: int, machine: Machine) -> bool:
    """Return whether collectives between ``devices`` neighbouring devices [1] are measured.

    >>> [within_tables(n, machine) for n in (1, 8, 16)]
    [True, True, False]

    Leaves out: operations without a table in a node, which scale with its bandwidth.
    """
    return devices == 1 or any(table.ranks == devices for table in machine.links.tables)


def half_width(modelled: float, uncertainty: UncertaintySpec) -> float:
    """Return w, the half-width of the 90 % interval over the step time [1]: hypot(a, b x).

    >>> spec = stack("megatron-core").uncertainty
    >>> half_width(0.0, spec) == spec.time.value
    True
    >>> half_width(0.4, spec) < half_width(0.8, spec) < spec.time.value + 0.8 * spec.time_modelled.value
    True

    Leaves out: differences in accuracy between modelled parts.
    Source: least interval score (Gneiting and Raftery 2007, section 6.2) of published runs held out of the
    fit, ``python -m benchmarks.accuracy --leave-out group``; errors of parts are assumed independent.
    """
    return hypot(uncertainty.time.value, modelled * uncertainty.time_modelled.value)


def half_widths(
    modelled: float, uncertainty: UncertaintySpec, *, experts: bool = False
) -> tuple[float, float]:
    """Return the widths of the 90 % interval below and above a step time, over the step time [1].

    Runs are slower than predicted more often than faster, since what is not modelled takes time: the width
    above is ``uncertainty.slower`` times the one below, which is less than one. Modules of ``experts`` differ
    between programs on one stack by what no file says: padding, copies of weights, waits of the host.

    >>> below, above = half_widths(0.5, stack("analytic").uncertainty)
    >>> bool(below < 1.0 and below <= above)
    True
    >>> spec = stack("fsdp2").uncertainty
    >>> half_widths(0.0, spec, experts=True)[1] > half_widths(0.0, spec)[1]
    True

    Source: least interval score of published runs left out of the fit, as for ``half_width``.
    """
    width = half_width(modelled, uncertainty)
    ratio = (uncertainty.slower_with_experts if experts else None) or uncertainty.slower
    slower = ratio.value if ratio else 1.0
    return min(width, _MOST_BELOW), slower * width


def slow_machine(job: Job, machine: Machine) -> Machine:
    """Return ``machine`` with a slow host and the slowest libraries, to which the interval reaches.

    Host time differs between processors, and between programs on one stack by what they do beside launches:
    checks, logs, hooks; so does an optimizer step on the host, by cores, their binding and memory channels.
    Kernels that are small beside their launches say how much of a step hangs on it, also where the predicted
    host is just early enough.

    >>> machine, factor = machine_of(job), job.stack.uncertainty.slow_host
    >>> bool(slow_machine(job, machine).host_launch == factor.value * machine.host_launch)
    True

    Leaves out: that one host launches the kernels of several devices.
    Source: least interval score of published runs left out of the fit, as for ``half_width``.
    """
    factor, slowest = job.stack.uncertainty.slow_host, job.kernels.slowest_share
    times = factor.value if factor else 1.0
    slow = replace(
        machine,
        host_launch=times * machine.host_launch,
        cpu_optimizer_bandwidth=machine.cpu_optimizer_bandwidth / times,
    )
    if slowest is None:
        return slow
    names = ("gemm", "attention_forward", "attention_backward")
    rates = {name: getattr(machine, name) for name in names}
    slower = {name: replace(rate, peak=slowest.value * rate.peak) for name, rate in rates.items()}
    return replace(slow, **slower)


def slow_link_seconds(job: Job, layout: Layout, exposed_seconds: float, machine: Machine) -> float:
    """Return what a step may take longer on the slowest links of its kind [s].

    Hosts whose devices copy over PCIe differ by ten times with their lanes and root complexes, so that
    exposed communication inside such a node may take W / W' times as long, with the slowest rate W', where
    nobody measured the node's rate. Sends between the nodes of a pipeline go through one connection, where a
    collective has many: 2 m v V (1 / W' - 1 / W) for V bytes of m v messages each way.

    >>> layout = parse_layout("tp=2,pp=4", layers=32, devices=8)
    >>> slow_link_seconds(job, layout, 1.0, machine)  # one node, whose devices are joined by a switch
    0.0
    >>> cards = load_job("llama2-13b-8x-l40s")  # 12.8 GB/s are taken, 3.3 GB/s are reached
    >>> round(slow_link_seconds(cards, parse_layout("tp=8", layers=40, devices=8), 1.0, machine_of(cards)), 2)
    2.88

    Leaves out: communication that a slower link would expose.
    Source: AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md, and costmodels/kernels/l40s.yaml, for hosts; the
    stack's file for sends.
    """
    spec, links = job.stack.uncertainty, machine.links
    slower = 0.0
    if spec.slowest_host_copy is not None and job.cluster.node.fabric.rate_differs_by_host:
        slower += exposed_seconds * max(0.0, links.fabric_bandwidth / spec.slowest_host_copy.value - 1.0)
    one = Candidates.of([layout])
    group = pipeline_group(one)
    if spec.slowest_send is None or (group.ranks_in_node(links) == group.ranks).all():
        return slower
    sent = 2.0 * layout.vpp * float((microbatches(job, one) * boundary_bytes(job, one))[0])
    return slower + sent * max(0.0, 1.0 / spec.slowest_send.value - 1.0 / links.network_bandwidth)
