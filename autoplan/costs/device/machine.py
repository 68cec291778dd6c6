"""Machine: achieved rates, bandwidths and latencies of a job's devices and software, in base units.

Notation (this file only)::

    x, half  extent of a kernel, and the extent at which its rate is half of the peak    [1]
    peak     achieved rate of a large kernel                                        [FLOP/s]

``machine_of`` reads facts (``hardware/``) and coefficients (``costmodels/``) once; the formulas in ``costs``
take a ``Machine``. ``ideal`` is the same machine at its theoretical limits: efficiency one, no latency, full
overlap. With it the same formulas give the lower bound.

Clock of a device in hours of work, over that of a short sweep.

Notation (this file only)::

    P, F    power limit and 16-bit peak of a device                      [W], [FLOP/s]
    P', F'  those of the device that the kernels were measured on        [W], [FLOP/s]
    r       power for each FLOP/s of the peak over that of the latter    [1]
    s, c    its sustained share and its ceiling                          [1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, get_args

from autoplan.costs.device.kernel_tables import AttentionGrid, GemmGrid, attention_grid, gemm_grid
from autoplan.errors import UnsupportedError
from autoplan.schema.costmodel.kernel_spec import CollectiveTable, GemmTable, KernelSpec
from autoplan.schema.costmodel.stack import OverlapPolicy, StackSpec
from autoplan.schema.hardware import DeviceSpec, Host
from autoplan.schema.job import Cluster, Job
from autoplan.schema.precision import NARROW, Precision

_EFFECTIVELY_FREE = 1e18


#: Rate of FlashAttention-1 in Triton over CUDA: FlashAttention-2 is 1.3 to 2.5 times as fast as the
#: Triton kernel, 1.7 to 3.0 times as the CUDA one (Dao 2023, arXiv 2307.08691, section 4.1). Geometric means.
_TRITON_OVER_CUDA: Final = 1.25
#: A guess: rate of the products of linear attention over chunks, over the peak. With the bytes that they
#: move, forward passes of FLA's Triton kernels fit shares of 0.36 on an H100 and 0.09 on a B200
#: (flashinfer-ai/flashinfer#3788 and #4078, 64 heads of values, 8,192 tokens: 1.045 and 0.797 ms); tiles are
#: of 64 tokens and of a head's width.
_LINEAR_ATTENTION_SHARE: Final = 0.25
#: Rate of 16-bit products on vector units over the data sheet's of fp32: in bf16 384 products of [1024, 1024]
#: and [1024, 140] reach 12.21 TFLOP/s on an A100 of 19.5; those of width 128, on tensor cores, 132.7
#: (pytorch/pytorch#83272, CUDA 11.6, where fp16 reaches 53.9). Products of large fp32 matrices: 23.25 of the
#: 38.7 of an RTX A6000 (cuBLAS in siboehm.com/articles/22/CUDA-MMM), 0.60.
VECTOR_SHARE: Final = 12.21 / 19.5


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate of a kernel by shape: ``peak`` [FLOP/s] times the efficiency of a measured table; ``launch`` [s].

    Without a table the rate saturates: ``peak`` times x/(x+half) for each extent. With ``beyond`` only shapes
    outside of the table's range take time, which separates modelled from measured seconds.
    """

    peak: float
    halves: tuple[float, ...]
    launch: float
    table: GemmGrid | AttentionGrid | None = None
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Links:
    """The fabric inside a node and the network between nodes.

    Bandwidths [byte/s] are those of a ring, one direction; latencies [s] are of one hop. ``pair_bandwidth``
    is that between two devices. In a ``mesh`` a group of n devices uses only the n - 1 links of a device to
    the others. ``tables`` are measured on this fabric, ``least`` on one that is at least as fast. With a
    ``shared_card`` a node has one network card, of which ``network_bandwidth`` is the share of each device.
    ``trees`` of an all-reduce between two nodes run at the rate of the fabric, which joins any two devices.
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
    least: tuple[CollectiveTable, ...] = ()
    shared_card: bool = False
    trees: bool = True


@dataclass(frozen=True, slots=True)
class Overlap:
    """Which communication overlaps with compute, and the slowdown of compute by it (``interference``)."""

    gradient_reduce: bool
    parameter_gather: bool
    tp_comm: bool
    tp_dgrad_reduce: bool
    p2p: bool
    interleaved_p2p: bool
    host_copies: bool
    everything: bool
    no_prefetch: bool
    interference: float


@dataclass(frozen=True, slots=True)
class Machine:
    """One device with its links and software at one precision, and a device's share of the host.

    ``host_link`` is the bandwidth between device and host, ``host_copy`` that of activation offload.
    ``linear_attention`` is the rate of products over chunks in linear attention.
    ``vector_flops`` is the rate of fp32 without tensor cores, of makers whose tensor cores need aligned rows;
    ``unaligned_share`` that of products whose rows are not aligned, over that of others.
    """

    peak_flops: float
    vector_flops: float | None
    gemm: Rate
    unaligned_share: float
    attention_forward: Rate
    attention_backward: Rate
    linear_attention: Rate
    hbm_bandwidth: float
    memory_bound_launch: float
    cache_bytes: float
    cache_speedup: float
    host_launch: float
    host_link: float
    host_copy: float
    cpu_optimizer_bandwidth: float
    links: Links
    overlap: Overlap
    element_bytes: int


def machine_of(job: Job) -> Machine:
    """Return the machine of ``job``: the rates of its devices and stack at its precision.

    Rates are [FLOP/s] and [byte/s], launches and latencies [s]: a fact times the efficiencies in the kernels'
    and the stack's files.

    >>> machine.peak_flops / 1e12  # TFLOP/s of an A100 in bf16
    312.0

    Raises UnsupportedError where the device has no matrix rate for the precision.

    Leaves out: different clocks of the devices of a job.
    Source: ``hardware`` and ``costmodels``, which have a source for every number.
    """
    peak = peak_flops(job.cluster, job.precision, tf32=job.stack.block.tf32)
    kernels = job.kernels
    memory_bound = kernels.memory_bound
    # Attention runs in 16 bits: only GEMMs with weights are in 8 bits.
    attention_peak = peak_flops(job.cluster, "bf16") if job.precision in NARROW else peak
    share = _attention_share(job) * sustained_share(kernels, job.cluster.device)
    older = attention_kernels(job) != "flash"
    return Machine(
        peak_flops=peak,
        vector_flops=job.cluster.device.peak_flops("fp32") if job.cluster.device.vendor == "nvidia" else None,
        gemm=_products_rate(job, peak),
        unaligned_share=_unaligned_share(job),
        attention_forward=_attention_rate(kernels, attention_peak * share, backward=False, flash2=older),
        attention_backward=_attention_rate(kernels, attention_peak * share, backward=True, flash2=older),
        linear_attention=_linear_attention_rate(attention_peak),
        hbm_bandwidth=job.cluster.device.memory.bandwidth.value * memory_bound.bandwidth_share.value,
        memory_bound_launch=memory_bound.launch.value,
        cache_bytes=job.cluster.device.l2_cache.value if job.cluster.device.l2_cache else 0.0,
        cache_speedup=memory_bound.cache_speedup.value if memory_bound.cache_speedup else 1.0,
        host_launch=job.stack.host_launch.value * _launch_factor(job.cluster.node.host),
        host_link=job.cluster.node.host.link_bandwidth.value,
        host_copy=job.cluster.node.host.link_bandwidth.value * _copy_share(job.stack),
        cpu_optimizer_bandwidth=_host_optimizer_bandwidth(job.stack),
        links=links_of(job.cluster, kernels),
        overlap=_overlap(job.stack),
        element_bytes=4 if job.precision == "fp32" else 2,
    )


def _launch_factor(host: Host) -> float:
    """Return the time of a launch on ``host`` over that of the hosts for which stacks tell theirs [1]."""
    return 1.0 if host.launch_factor is None else host.launch_factor.value


def _host_optimizer_bandwidth(stack: StackSpec) -> float:
    """Return the memory traffic of an optimizer step on the host [byte/s]; no limit where none runs there."""
    if stack.memory.offload_parameters and stack.fine_tuning and stack.fine_tuning.host_optimizer_bandwidth:
        return stack.fine_tuning.host_optimizer_bandwidth.value
    offload = stack.optimizer_offload
    return _EFFECTIVELY_FREE if offload is None else offload.cpu_optimizer_bandwidth.value


def attention_kernels(job: Job) -> str:
    """Return the attention kernels of ``job``, one of ``BlockPolicy.attention`` but ``sdpa``.

    PyTorch takes cuDNN's attention on compute capability 9.0, 10.0 and 10.3, and FlashAttention-2 elsewhere;
    documents packed into sequences, which it cannot tell apart, are left to FlashAttention-2.

    >>> job = load_job("llama3-8b-8x-h100")
    >>> attention_kernels(replace(job, stack=stack("hf-trainer"))), attention_kernels(job)
    ('flash', 'flash')
    >>> attention_kernels(replace(load_job("llama3-8b-8x-a100"), stack=stack("hf-trainer")))
    'flash2'

    Leaves out: sizes of heads that cuDNN refuses.
    Source: pytorch/pytorch v2.13.0, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
    check_prefer_cudnn_attention, where cuDNN is later than 9.15, as in the wheels from 2.11 on.
    """
    kernels = job.stack.block.attention
    if kernels != "sdpa":
        return kernels
    device = job.cluster.device
    of_data_centers = device.architecture == "blackwell" and device.memory.technology.startswith("HBM")
    packed = job.workload.documents is not None
    return "flash" if not packed and (of_data_centers or device.architecture == "hopper") else "flash2"


def _attention_share(job: Job) -> float:
    """Return the rate of the stack's attention over that of the measured kernels, at the same clock [1]."""
    block, measured = job.stack.block, job.kernels.attention
    kernels, table = attention_kernels(job), job.kernels.attention_table
    as_measured = kernels == "flash" or (table is not None and table.flash2 is not None)
    flash2 = 1.0 if as_measured else measured.flash2_share.value
    flash1 = {"flash1": 1.0, "masked": 1.0, "flash1-triton": _TRITON_OVER_CUDA}.get(kernels)
    older = 1.0 if flash1 is None else min(1.0, measured.flash1_share.value * flash1)
    return block.attention_share.value * flash2 * older


def _copy_share(stack: StackSpec) -> float:
    """Return the bandwidth of activation offload over that of the host link [1]."""
    return 1.0 if stack.activation_offload is None else stack.activation_offload.link_share.value


def _on_vector_units(job: Job) -> bool:
    """Return whether products run on the vector units of NVIDIA's devices, whose rows need no alignment."""
    device = job.cluster.device
    tensor_cores = job.stack.block.tf32 and device.peak_flops("tf32") is not None
    return job.precision == "fp32" and device.vendor == "nvidia" and not tensor_cores


def _unaligned_share(job: Job) -> float:
    share = job.kernels.gemm.unaligned_share
    return 1.0 if share is None or _on_vector_units(job) else share.value


def _products_rate(job: Job, peak: float) -> Rate:
    """Return the rate of products of weights, which on vector units hardly depends on extents."""
    kernels, device = job.kernels, job.cluster.device
    if _on_vector_units(job):
        return Rate(VECTOR_SHARE * peak, (), kernels.gemm.launch.value)
    return _gemm_rate(kernels, peak * _narrow_share(kernels, job.precision), device)


def _gemm_rate(kernels: KernelSpec, peak: float, device: DeviceSpec) -> Rate:
    """Return the rate of GEMMs: from the measured table if the kernels have one."""
    curve, table = kernels.gemm, kernels.gemm_table
    sustained = peak * sustained_share(kernels, device)
    if table is not None:
        table = table if device.name in kernels.devices else _with_own_waves(table, device)
        return Rate(sustained, (), table.launch, gemm_grid(table, half_inner=curve.half_k.value))
    halves = (curve.half_m.value, curve.half_n.value, curve.half_k.value)
    return Rate(sustained * curve.ceiling.value, halves, curve.launch.value)


def _with_own_waves(table: GemmTable, device: DeviceSpec) -> GemmTable:
    """Return the table of a relative with the waves of the multiprocessors that ``device`` has."""
    if table.waves is None or device.multiprocessors is None:
        return table
    waves = table.waves.model_copy(update={"multiprocessors": round(device.multiprocessors.value)})
    return table.model_copy(update={"waves": waves})


def _narrow_share(kernels: KernelSpec, precision: Precision) -> float:
    """Return the efficiency of products in 8 or 4 bits over that of products in 16 bits [1]."""
    shares = {"fp8": kernels.gemm.fp8_share, "mxfp8": kernels.gemm.fp8_share, "nvfp4": kernels.gemm.fp4_share}
    share = shares.get(precision)
    return share.value if share else 1.0


def _attention_rate(kernels: KernelSpec, peak: float, *, backward: bool, flash2: bool = False) -> Rate:
    """Return the rate of attention in forward or backward: from the measured table, or a curve."""
    curve, table = kernels.attention, kernels.attention_table
    if table is not None:
        return Rate(peak, (), table.launch, attention_grid(table, backward=backward, flash2=flash2))
    ceiling = curve.backward_ceiling if backward else curve.forward_ceiling
    return Rate(peak * ceiling.value, (curve.half_sequence.value, curve.half_rows.value), curve.launch.value)


def peak_flops(cluster: Cluster, precision: Precision, *, tf32: bool = True) -> float:
    """Return the dense peak of a device for GEMMs in ``precision`` [FLOP/s].

    fp32 has the tf32 rate where a device has one and the program asks for it, else that of vector units.

    >>> cluster = job.cluster
    >>> [peak_flops(cluster, "fp32", tf32=x) / 1e12 for x in (True, False)]  # of an A100
    [156.0, 19.5]

    Leaves out: rates with sparsity.
    Source: the device's data sheet, named in its file; PyTorch 1.12, torch.backends.cuda.matmul.allow_tf32 is
    False unless a program sets it, or float32_matmul_precision.
    """
    device = cluster.device
    rate = _peak_rate(device, precision)
    if precision == "fp32" and not tf32:
        rate = device.peak_flops("fp32") or rate
    if rate is not None:
        return rate
    supported = [p for p in get_args(Precision) if _peak_rate(device, p) is not None]
    raise UnsupportedError(
        f"{device.title} has no {precision} matrix rate: its precisions are {', '.join(supported)}"
    )


def _peak_rate(device: DeviceSpec, precision: Precision) -> float | None:
    if precision == "fp32":
        return device.peak_flops("tf32") or device.peak_flops("fp32")
    if precision == "nvfp4":
        # Other makers' 4-bit floats have another format.
        return device.peak_flops("fp4") if device.vendor == "nvidia" else None
    return device.peak_flops(precision)


def gemm_rate_of(cluster: Cluster, kernels: KernelSpec, precision: Precision) -> Rate:
    """Return the rate of matrix products of a device at ``precision`` [FLOP/s].

    >>> cluster = job.cluster
    >>> gemm_rate_of(cluster, kernels_for(cluster.device.name), "bf16").peak <= 312e12
    True

    Raises UnsupportedError where the device has no matrix rate for the precision.
    """
    peak = peak_flops(cluster, precision)
    return _gemm_rate(kernels, peak * _narrow_share(kernels, precision), cluster.device)


def attention_rate_of(cluster: Cluster, kernels: KernelSpec) -> Rate:
    """Return the rate of fused attention in forward, in 16 bits [FLOP/s].

    >>> cluster = job.cluster
    >>> attention_rate_of(cluster, kernels_for(cluster.device.name)).peak <= 312e12
    True
    """
    precision: Precision = "bf16" if cluster.device.peak_flops("bf16") else "fp16"
    share = sustained_share(kernels, cluster.device)
    return _attention_rate(kernels, peak_flops(cluster, precision) * share, backward=False)


def linear_attention_rate_of(cluster: Cluster) -> Rate:
    """Return the rate of products over chunks in linear attention, in 16 bits [FLOP/s].

    >>> linear_attention_rate_of(job.cluster).peak / 1e12  # a quarter
    78.0
    """
    precision: Precision = "bf16" if cluster.device.peak_flops("bf16") else "fp16"
    return _linear_attention_rate(peak_flops(cluster, precision))


def _linear_attention_rate(peak: float) -> Rate:
    return Rate(peak * _LINEAR_ATTENTION_SHARE, (), 0.0)


#: Fabrics whose devices have links to some others only. On two cube meshes of V100, tensor groups of 16 take
#: what rings take (Oneflow-Inc/DLPerf Megatron-LM, NCCL 2.8.3).
_MESHES: Final = frozenset({"mesh", "cube-mesh"})


def links_of(cluster: Cluster, kernels: KernelSpec) -> Links:
    """Return the links of a cluster at the shares that collectives reach [byte/s].

    >>> cluster = job.cluster
    >>> links_of(cluster, kernels_for(cluster.device.name)).devices_per_node
    8
    """
    fabric, network = cluster.node.fabric, cluster.node.network
    achieved = kernels.collectives
    pair = fabric.pair_bandwidth or fabric.bandwidth
    measured = cluster.node.name in achieved.fabrics
    slower = cluster.node.name in achieved.slower_fabrics or cluster.node.derived_from in achieved.fabrics
    return Links(
        devices_per_node=cluster.node.devices,
        fabric_bandwidth=fabric.bandwidth.value * achieved.fabric_share.value,
        pair_bandwidth=pair.value * achieved.fabric_share.value,
        mesh=fabric.topology == "mesh",
        fabric_latency=fabric.latency.value,
        network_bandwidth=network.bandwidth_per_device.value * achieved.network_share.value,
        network_latency=network.latency.value,
        launch=achieved.launch.value,
        tables=achieved.tables if measured else (),
        least=achieved.tables if slower and not measured else (),
        # Devices whose memory the network reads have a card each (catalog/hardware_names.py).
        shared_card=not network.direct_memory_access,
        trees=fabric.topology not in _MESHES,
    )


def _overlap(stack: StackSpec) -> Overlap:
    policy: OverlapPolicy = stack.overlap
    return Overlap(
        gradient_reduce=policy.gradient_reduce,
        parameter_gather=policy.parameter_gather,
        tp_comm=policy.tp_comm,
        tp_dgrad_reduce=policy.tp_dgrad_reduce,
        p2p=policy.p2p,
        interleaved_p2p=policy.interleaved_p2p,
        host_copies=stack.activation_offload is not None and stack.activation_offload.overlapped,
        everything=False,
        no_prefetch=policy.no_prefetch,
        interference=policy.interference.value,
    )


def ideal(machine: Machine, job: Job) -> Machine:
    """Return ``machine`` at its theoretical limits, for lower bounds.

    Every GEMM runs at peak, memory-bound kernels take no time, links have their nominal bandwidth [byte/s]
    and no latency, and all communication overlaps with compute.

    >>> limits = ideal(machine, job)
    >>> limits.gemm.peak / 1e12, limits.links.fabric_bandwidth / 1e9  # TFLOP/s and GB/s, data sheets
    (312.0, 300.0)

    Leaves out: memory traffic, which can only add time.
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
        least=(),
    )
    return replace(
        machine,
        vector_flops=None,
        gemm=peak,
        unaligned_share=1.0,
        attention_forward=peak,
        attention_backward=peak,
        linear_attention=peak,
        hbm_bandwidth=_EFFECTIVELY_FREE,
        memory_bound_launch=0.0,
        host_launch=0.0,
        cpu_optimizer_bandwidth=_EFFECTIVELY_FREE,
        host_copy=machine.host_link,
        links=links,
        overlap=Overlap(
            gradient_reduce=True,
            parameter_gather=True,
            tp_comm=True,
            tp_dgrad_reduce=True,
            p2p=True,
            interleaved_p2p=True,
            host_copies=True,
            everything=True,
            no_prefetch=False,
            interference=0.0,
        ),
    )


def serial(machine: Machine) -> Machine:
    """Return ``machine`` without any overlap, for upper bounds; rates are the same [FLOP/s, byte/s].

    >>> serial(machine).overlap.no_prefetch
    True

    Leaves out: contention, since nothing overlaps.
    """
    no_overlap = Overlap(
        gradient_reduce=False,
        parameter_gather=False,
        tp_comm=False,
        tp_dgrad_reduce=False,
        p2p=False,
        interleaved_p2p=False,
        host_copies=False,
        everything=False,
        no_prefetch=True,
        interference=1.0,
    )
    return replace(machine, overlap=no_overlap)


#: Clock over power, in logarithms: 1/3 where the voltage grows with the clock, 1 where it is at its floor.
_EXPONENT: Final = 1 / 2
#: Share of the peak that large products reach where no power limit slows them: that of an A100 in a sweep.
_UNTHROTTLED: Final = 0.92


def sustained_share(kernels: KernelSpec, device: DeviceSpec) -> float:
    """Return the rate of kernels in long runs, under the power limit, over that in a sweep [1].

    s r^(1/2) with r = (P/F) / (P'/F'), and at most what products reach at the full clock, 0.92 / c. Dynamic
    power is proportional to f V^2. The voltage V grows with the clock f down to a floor, so that f is between
    the cube root of the power that there is for each FLOP/s and proportional to it.

    >>> kernels = kernels_for("h100-sxm5-80gb")
    >>> h100, pcie = (load_entry("device", name) for name in ("h100-sxm5-80gb", "h100-pcie-80gb"))
    >>> round(sustained_share(kernels, pcie) / sustained_share(kernels, h100), 3)  # (350/756 / (700/989))^0.5
    0.809

    Leaves out: heat; static power, which does not fall with the clock.
    Source: Weste and Harris, CMOS VLSI Design, chapter 5.
    """
    share, ceiling = kernels.gemm.sustained_share.value, kernels.gemm.ceiling.value
    full = max(share, _UNTHROTTLED / ceiling)
    return min(share * float(_power_ratio(kernels, device) ** _EXPONENT), full)


def _power_ratio(kernels: KernelSpec, device: DeviceSpec) -> float:
    """Return r, a device's power for each FLOP/s of its peak over that of the measured device [1]."""
    power, peak = kernels.gemm.power, kernels.gemm.peak
    device_peak = device.peak_flops("bf16") or device.peak_flops("fp16")
    if power is None or device.power is None:
        return 1.0
    flops = 1.0 if peak is None or device_peak is None else device_peak / peak.value
    return float(device.power.value / power.value / flops)
