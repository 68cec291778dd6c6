"""What a job's devices and software reach, as plain numbers in base units.

Notation (this file only)::

    x, half  extent of an operation, and that at which its rate is half of the peak      [1]
    peak     rate that a large operation reaches                                    [FLOP/s]

``machine_of`` reads facts (``hardware/``) and coefficients (``costmodels/``) once; the formulas of this
floor take a ``Machine``. ``ideal`` gives the same machine at the speed of light: every curve at its
ceiling of one, no latency, everything overlapped. It prices the lower bound with the same formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, get_args

from autoplan.costs.device.kernel_tables import AttentionGrid, GemmGrid, attention_grid, gemm_grid
from autoplan.errors import UnsupportedError
from autoplan.schema.costmodel.kernel_spec import CollectiveTable, KernelSpec
from autoplan.schema.costmodel.stack import OverlapPolicy, StackSpec
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.job import Cluster, Job
from autoplan.schema.precision import EIGHT_BITS, Precision

__all__ = ["Links", "Machine", "Overlap", "Rate", "ideal", "machine_of", "serial"]

_EFFECTIVELY_FREE = 1e18


#: Rate of the first FlashAttention in Triton over the one in CUDA: FlashAttention-2 is 1.3 to 2.5 times as
#: fast as that one, 1.7 to 3.0 times as this one (Dao 2023, arXiv 2307.08691, section 4.1). Geometric means.
_TRITON_OVER_CUDA: Final = 1.25


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate by shape after ``launch`` [s]: ``peak`` [FLOP/s] times a measured table's share of it.

    Without a table a saturating one: ``peak`` times x/(x+half) for each extent. ``beyond`` leaves only what
    lies outside of the table's range, as if all that was measured took no time.
    """

    peak: float
    halves: tuple[float, ...]
    launch: float
    table: GemmGrid | AttentionGrid | None = None
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Links:
    """The fabric inside a node and the network between nodes.

    Bandwidths [byte/s] are what a ring reaches, one direction; latencies [s] are of one hop.
    ``pair_bandwidth`` is what two devices alone get; ``mesh`` says that a group of n devices uses only
    the n - 1 links between its members.
    """

    devices_per_node: int
    fabric_bandwidth: float
    pair_bandwidth: float
    mesh: bool
    fabric_latency: float
    network_bandwidth: float
    network_latency: float
    launch: float
    tables: tuple[CollectiveTable, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Which communication hides behind compute."""

    gradient_reduce: bool
    parameter_gather: bool
    tensor: bool
    tensor_backward: bool
    pipeline: bool
    interleaved: bool
    host_copies: bool
    everything: bool
    waits: bool
    interference: float


@dataclass(frozen=True, slots=True)
class Machine:
    """One device with its links and its software, at one precision; of the host, a device's share.

    ``host_link`` is what it copies to or from the host, ``host_copy`` what copies of activations reach of it.
    """

    peak_flops: float
    gemm: Rate
    attention_forward: Rate
    attention_backward: Rate
    hbm_bandwidth: float
    memory_bound_launch: float
    host_launch: float
    host_link: float
    host_copy: float
    host_update: float
    links: Links
    overlap: Overlap
    element_bytes: int


def machine_of(job: Job) -> Machine:
    """Return what ``job``'s devices and stack reach at its precision.

    Rates are [FLOP/s] and [byte/s], launches and latencies [s]: a fact times the shares of it that the
    kernels' file and the stack's say are reached.

    >>> from autoplan.catalog import load_job
    >>> machine_of(load_job("llama3-8b-8x-a100")).peak_flops / 1e12  # TFLOP/s of an A100 in bf16
    312.0

    Raises UnsupportedError where the device has no matrix rate for the precision.

    Leaves out: clocks that differ between devices of a job.
    Source: ``hardware`` and ``costmodels``, each number with its own.
    """
    peak = peak_flops(job.cluster, job.precision)
    kernels = job.kernels
    stream = kernels.stream
    # Only products of weights run in 8 bits.
    wide = peak_flops(job.cluster, "bf16") if job.precision in EIGHT_BITS else peak
    share = _attention_share(job) * _sustained_share(kernels, job.cluster.device)
    return Machine(
        peak_flops=peak,
        gemm=_gemm_rate(kernels, peak, job.cluster.device),
        attention_forward=_attention_rate(kernels, wide * share, backward=False),
        attention_backward=_attention_rate(kernels, wide * share, backward=True),
        hbm_bandwidth=job.cluster.device.memory.bandwidth.value * stream.bandwidth_share.value,
        memory_bound_launch=stream.launch.value,
        host_launch=job.stack.host_launch.value,
        host_link=job.cluster.node.host.link_bandwidth.value,
        host_copy=job.cluster.node.host.link_bandwidth.value * _copy_share(job.stack),
        host_update=job.stack.offload.host_update.value if job.stack.offload else _EFFECTIVELY_FREE,
        links=_links(job.cluster, kernels),
        overlap=_overlap(job.stack),
        element_bytes=4 if job.precision == "fp32" else 2,
    )


def _attention_share(job: Job) -> float:
    """Return what the stack's attention reaches of the kernels that were measured, at their clock [1]."""
    block, measured = job.stack.block, job.kernels.attention
    second = 1.0 if block.attention == "flash" else measured.flash2_share.value
    first = {"flash1": 1.0, "flash1-triton": _TRITON_OVER_CUDA}.get(block.attention)
    older = 1.0 if first is None else min(1.0, measured.flash1_share.value * first)
    return block.attention_share.value * second * older


def _copy_share(stack: StackSpec) -> float:
    """Return the share of the host link that copies of activations reach [1]."""
    return 1.0 if stack.activation_offload is None else stack.activation_offload.link_share.value


def _gemm_rate(kernels: KernelSpec, peak: float, device: DeviceSpec) -> Rate:
    """Return the rate of matrix products: from the measured table where there is one."""
    curve, table = kernels.gemm, kernels.gemm_table
    sustained = peak * _sustained_share(kernels, device)
    if table is not None:
        return Rate(sustained, (), table.launch, gemm_grid(table, half_inner=curve.half_k.value))
    halves = (curve.half_m.value, curve.half_n.value, curve.half_k.value)
    return Rate(sustained * curve.ceiling.value, halves, curve.launch.value)


def _sustained_share(kernels: KernelSpec, device: DeviceSpec) -> float:
    """Return what kernels reach in long runs, at the clock that power allows, over that of a sweep [1]."""
    return kernels.gemm.sustained_share.value * _clock_share(kernels, device)


def _clock_share(kernels: KernelSpec, device: DeviceSpec) -> float:
    """Return a device's clock under load over that of the devices whose training was timed [1], at most 1.

    Switching takes power as f V^2, and the voltage V grows with the clock f: f is as the cube root of the
    power limit (Weste and Harris, CMOS VLSI Design, chapter 5).
    """
    if kernels.gemm.power is None or device.power is None:
        return 1.0
    return float(min(1.0, (device.power.value / kernels.gemm.power.value) ** (1 / 3)))


def _attention_rate(kernels: KernelSpec, peak: float, *, backward: bool) -> Rate:
    """Return the rate of attention in one direction: from the measured table where there is one."""
    curve, table = kernels.attention, kernels.attention_table
    if table is not None:
        return Rate(peak, (), table.launch, attention_grid(table, backward=backward))
    ceiling = curve.backward_ceiling if backward else curve.forward_ceiling
    return Rate(peak * ceiling.value, (curve.half_sequence.value, curve.half_rows.value), curve.launch.value)


def peak_flops(cluster: Cluster, precision: Precision) -> float:
    """Return a device's dense peak [FLOP/s] for matrix products in ``precision``.

    fp32 counts the tf32 rate where a device has one, as frameworks use it for fp32 training.

    >>> from autoplan.catalog import load_job
    >>> peak_flops(load_job("llama3-8b-8x-a100").cluster, "fp32") / 1e12  # tf32 of an A100
    156.0

    Leaves out: rates with sparsity.
    Source: the device's data sheet, see its file.
    """
    device = cluster.device
    names = ("tf32", "fp32") if precision == "fp32" else (precision,)
    for name in names:
        rate = device.peak_flops(name)
        if rate is not None:
            return rate
    known = [p for p in get_args(Precision) if device.peak_flops(p) is not None]
    raise UnsupportedError(
        f"{device.title} has no {precision} matrix rate: set `precision` to one of {', '.join(known)}"
    )


def _links(cluster: Cluster, kernels: KernelSpec) -> Links:
    fabric, network = cluster.node.fabric, cluster.node.network
    reached = kernels.collectives
    pair = fabric.pair_bandwidth or fabric.bandwidth
    measured = cluster.node.name in reached.fabrics
    return Links(
        devices_per_node=cluster.node.devices,
        fabric_bandwidth=fabric.bandwidth.value * reached.fabric_share.value,
        pair_bandwidth=pair.value * reached.fabric_share.value,
        mesh=fabric.topology == "mesh",
        fabric_latency=fabric.latency.value,
        network_bandwidth=network.bandwidth_per_device.value * reached.network_share.value,
        network_latency=network.latency.value,
        launch=reached.launch.value,
        tables=reached.tables if measured else (),
    )


def _overlap(stack: StackSpec) -> Overlap:
    policy: OverlapPolicy = stack.overlap
    return Overlap(
        gradient_reduce=policy.gradient_reduce,
        parameter_gather=policy.parameter_gather,
        tensor=policy.tensor,
        tensor_backward=policy.tensor_backward,
        pipeline=policy.pipeline,
        interleaved=policy.interleaved,
        host_copies=stack.activation_offload is not None and stack.activation_offload.overlapped,
        everything=False,
        waits=policy.waits,
        interference=policy.interference.value,
    )


def ideal(machine: Machine, job: Job) -> Machine:
    """Return ``machine`` at the speed of light, for lower bounds.

    Every matrix product runs at peak, what only moves bytes takes no time, links run at their nominal rate
    [byte/s], nothing has a latency and all communication hides behind compute.

    >>> from autoplan.catalog import load_job
    >>> job = load_job("llama3-8b-8x-a100")
    >>> fastest = ideal(machine_of(job), job)
    >>> fastest.gemm.peak / 1e12, fastest.links.fabric_bandwidth / 1e9  # TFLOP/s and GB/s, data sheets
    (312.0, 300.0)

    Leaves out: the time of memory traffic, which can only add to it.
    """
    peak = Rate(machine.peak_flops, (), 0.0)
    fabric, network = job.cluster.node.fabric, job.cluster.node.network
    links = replace(
        machine.links,
        fabric_bandwidth=fabric.bandwidth.value,
        pair_bandwidth=(fabric.pair_bandwidth or fabric.bandwidth).value,
        fabric_latency=0.0,
        network_bandwidth=network.bandwidth_per_device.value,
        network_latency=0.0,
        launch=0.0,
        tables=(),
    )
    return replace(
        machine,
        gemm=peak,
        attention_forward=peak,
        attention_backward=peak,
        hbm_bandwidth=_EFFECTIVELY_FREE,
        memory_bound_launch=0.0,
        host_launch=0.0,
        host_update=_EFFECTIVELY_FREE,
        host_copy=machine.host_link,
        links=links,
        overlap=Overlap(
            gradient_reduce=True,
            parameter_gather=True,
            tensor=True,
            tensor_backward=True,
            pipeline=True,
            interleaved=True,
            host_copies=True,
            everything=True,
            waits=False,
            interference=0.0,
        ),
    )


def serial(machine: Machine) -> Machine:
    """Return ``machine`` with nothing overlapped, for upper bounds: the same rates [FLOP/s, byte/s].

    >>> from autoplan.catalog import load_job
    >>> serial(machine_of(load_job("llama3-8b-8x-a100"))).overlap.waits
    True

    Leaves out: what collectives take from kernels they run beside, as none do.
    """
    alone = Overlap(
        gradient_reduce=False,
        parameter_gather=False,
        tensor=False,
        tensor_backward=False,
        pipeline=False,
        interleaved=False,
        host_copies=False,
        everything=False,
        waits=True,
        interference=1.0,
    )
    return replace(machine, overlap=alone)
