"""Exposed time of tensor-parallel communication.

Notation (this file only)::

    T  tokens of a microbatch    [1]
    h  hidden size               [1]
    e  bytes of an element       [byte]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.sizes import backward_split
from autoplan.costs.device.kernels import memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.network.collectives import collective_seconds
from autoplan.costs.network.mesh import tensor_group
from autoplan.costs.network.overlap import Traffic, exposed_seconds
from autoplan.costs.network.tensor_calls import Calls, tensor_message
from autoplan.costs.network.volume import OPERATIONS
from autoplan.schema.job import Job


def tensor_seconds(job: Job, candidates: Candidates, machine: Machine, calls: Calls) -> Array:
    """Return the time of tensor-parallel collectives without overlap [s], shape [C].

    The sum over operations of calls times the time of one collective of e T h bytes. The all-gather of the
    input for a weight gradient overlaps with the preceding GEMM and takes no time. A stack that splits the
    second dimension (the tokens of several sequences) copies gathered or scattered tensors into order: 2 e T
    h bytes of HBM traffic.

    >>> one = candidate("tp=8")
    >>> links = Links(8, 7 * 2.0**23, 7 * 2.0**23, False, 0.0, 1.0, 0.0, 0.0, ())  # 7 x 8 MiB/s
    >>> forward = tensor_calls(job, one).forward  # two gathers and two scatters of 7/8 x 64 MiB
    >>> tensor_seconds(job, one, replace(machine, links=links), forward).tolist()
    [4.0]

    Leaves out: the slowdown of that GEMM under overlap.
    Source: Megatron-LM, megatron/core/tensor_parallel/layers.py, for the overlap with a GEMM; PyTorch
    torch/distributed/_functional_collectives.py, all_gather_single and reduce_scatter_single, for the copies.
    """
    if machine.overlap.everything:
        return np.zeros(len(candidates))
    size = tensor_message(job, candidates)
    group, links = tensor_group(candidates), machine.links
    seconds = np.zeros(len(candidates))
    for operation in OPERATIONS:
        count = getattr(calls, operation)
        if count.any():
            seconds = seconds + count * collective_seconds(operation, size, group, links)
    return seconds + _reordering_seconds(job, candidates, machine, size, calls)


def _reordering_seconds(
    job: Job, candidates: Candidates, machine: Machine, size: Array, calls: Calls
) -> Array:
    """Return the time to copy the parts of several sequences into order [s]; one sequence needs no copy."""
    if not job.stack.block.gather_reorder_copies:
        return np.zeros(1)
    copies = (calls.all_gather + calls.reduce_scatter) * (candidates.microbatch > 1)
    return copies * memory_bound_seconds(2 * size, machine)


def regather_seconds(job: Job, candidates: Candidates, machine: Machine, calls: Calls) -> Array:
    """Return the exposed all-gathers of the inputs of split weight gradients [s], shape [C]; else 0.

    Regathers times the time of one all-gather of e T h bytes: a split weight-gradient pass has no
    input-gradient GEMM to overlap with.

    >>> layouts = [f"tp=4,pp=2,schedule={name}" for name in ("1f1b", "zero-bubble")]
    >>> two = Candidates.of([parse_layout(x, layers=32, devices=8) for x in layouts])
    >>> links = Links(8, 3 * 2.0**24, 3 * 2.0**24, False, 0.0, 1.0, 0.0, 0.0, ())  # 3 x 16 MiB/s
    >>> backward = tensor_calls(job, two).backward  # two gathers of 3/4 x 64 MiB
    >>> regather_seconds(job, two, replace(machine, links=links), backward).tolist()
    [0.0, 2.0]

    Leaves out: overlap of the all-gather for one weight gradient with the GEMM of another.
    Source: sail-sg/zero-bubble-pipeline-parallelism, megatron/core/zbpp_utils.py, WeightGradStore.pop.
    """
    split, zero = backward_split(candidates), np.zeros(len(candidates))
    if not split.any():
        return zero
    gathers = Calls(all_gather=calls.regathers, reduce_scatter=zero, all_reduce=zero, regathers=zero)
    return split * tensor_seconds(job, candidates, machine, gathers)


def tensor_exposed(job: Job, candidates: Candidates, machine: Machine, calls: Calls, gemms: Array) -> Array:
    """Return the exposed tensor-parallel communication of a pass whose GEMMs take ``gemms`` [s], shape [C].

    With asynchronous tensor parallelism a GEMM starts on the part of its input that has arrived and sends
    each part of its output at once. All-gather and reduce-scatter expose what the GEMMs do not hide, at least
    the slowdown of the GEMMs under overlap. All-reduce is fully exposed.

    >>> one = candidate("tp=8")
    >>> links = Links(8, 7 * 2.0**23, 7 * 2.0**23, False, 0.0, 1.0, 0.0, 0.0, ())  # 7 x 8 MiB/s
    >>> machine = replace(machine_of(job), links=links)
    >>> overlap = replace(machine.overlap, tp_comm=True, interference=0.25)
    >>> forward, machine = tensor_calls(job, one).forward, replace(machine, overlap=overlap)
    >>> [tensor_exposed(job, one, machine, forward, np.array([x])).tolist() for x in (3.0, 8.0)]  # of 4 s
    [[1.0], [1.0]]

    Leaves out: the first part of an all-gather and the last of a reduce-scatter, which overlap with nothing.
    Source: pytorch/pytorch, torch/_inductor/fx_passes/micro_pipeline_tp.py; Wang et al. 2023 (ASPLOS),
    doi:10.1145/3567955.3567959.
    """
    if not machine.overlap.tp_comm:
        return tensor_seconds(job, candidates, machine, calls)
    zero = np.zeros(len(candidates))
    reduce_calls = replace(calls, all_gather=zero, reduce_scatter=zero)
    reduce_seconds = tensor_seconds(job, candidates, machine, reduce_calls)
    pipelined = tensor_seconds(job, candidates, machine, replace(calls, all_reduce=zero))
    return reduce_seconds + exposed_seconds(gemms, Traffic(pipelined, pipelined), machine)
