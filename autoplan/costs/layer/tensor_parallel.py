"""Time of what the ranks of the tensor axis send each other.

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

__all__ = ["regather_seconds", "tensor_exposed", "tensor_seconds"]


def tensor_seconds(job: Job, candidates: Candidates, machine: Machine, calls: Calls) -> Array:
    """Return the exposed time of tensor-parallel collectives over [T, h], shape [C] [s].

    The sum over operations of calls times the time of one on e T h bytes; what is gathered again for a
    weight gradient runs beside the product before it. A stack that splits the second dimension, tokens of
    several sequences, copies what it gathered, or scatters, into order: 2 e T h bytes through memory.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import Links, machine_of
    >>> from autoplan.costs.network.tensor_calls import tensor_calls
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> links = Links(8, 7 * 2.0**23, 7 * 2.0**23, False, 0.0, 1.0, 0.0, 0.0, ())  # 7 x 8 MiB/s
    >>> forward = tensor_calls(job, one).forward  # two gathers and two scatters of 7/8 x 64 MiB
    >>> tensor_seconds(job, one, replace(machine_of(job), links=links), forward).tolist()
    [4.0]

    Leaves out: the slowdown of that product.
    Source: Megatron-LM, megatron/core/tensor_parallel/layers.py, for what runs beside a product; PyTorch
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
    """Return what it takes to copy the parts of several sequences into order; of one they are."""
    if not job.stack.block.sequences_reordered:
        return np.zeros(1)
    copies = (calls.all_gather + calls.reduce_scatter) * (candidates.microbatch > 1)
    return copies * memory_bound_seconds(2 * size, machine)


def regather_seconds(job: Job, candidates: Candidates, machine: Machine, calls: Calls) -> Array:
    """Return what weight gradients that are done apart wait for their inputs, shape [C] [s]; else 0.

    Regathers times the time of one on e T h bytes: there is no input gradient's product to gather beside.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import Links, machine_of
    >>> from autoplan.costs.network.tensor_calls import tensor_calls
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> both = [f"tp=4,pp=2,schedule={name}" for name in ("1f1b", "zero-bubble")]
    >>> some = Candidates.of([parse_layout(x, layers=32, devices=8) for x in both])
    >>> links = Links(8, 3 * 2.0**24, 3 * 2.0**24, False, 0.0, 1.0, 0.0, 0.0, ())  # 3 x 16 MiB/s
    >>> backward = tensor_calls(job, some).backward  # two gathers of 3/4 x 64 MiB
    >>> regather_seconds(job, some, replace(machine_of(job), links=links), backward).tolist()
    [0.0, 2.0]

    Leaves out: gathering for one weight gradient while another is computed.
    Source: sail-sg/zero-bubble-pipeline-parallelism, megatron/core/zbpp_utils.py, WeightGradStore.pop.
    """
    apart, none = backward_split(candidates), np.zeros(len(candidates))
    if not apart.any():
        return none
    gathers = Calls(all_gather=calls.regathers, reduce_scatter=none, all_reduce=none, regathers=none)
    return apart * tensor_seconds(job, candidates, machine, gathers)


def tensor_exposed(job: Job, candidates: Candidates, machine: Machine, calls: Calls, gemms: Array) -> Array:
    """Return what is exposed of the collectives of a pass whose products take ``gemms`` [s], shape [C].

    Where the stack does so, a product begins with the part of its input that is there, and sends each part
    of its output on: of split sequences, what the products do not hide is left, at least what they feel.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import Links, machine_of
    >>> from autoplan.costs.network.tensor_calls import tensor_calls
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> links = Links(8, 7 * 2.0**23, 7 * 2.0**23, False, 0.0, 1.0, 0.0, 0.0, ())  # 7 x 8 MiB/s
    >>> machine = replace(machine_of(job), links=links)
    >>> overlap = replace(machine.overlap, tensor=True, interference=0.25)
    >>> forward, beside = tensor_calls(job, one).forward, replace(machine, overlap=overlap)
    >>> [tensor_exposed(job, one, beside, forward, np.array([x])).tolist() for x in (3.0, 8.0)]  # of 4 s
    [[1.0], [1.0]]

    Leaves out: the first part of a gather and the last of a scatter, which have nothing beside them.
    Source: pytorch/pytorch, torch/_inductor/fx_passes/micro_pipeline_tp.py; Wang et al. 2023 (ASPLOS),
    doi:10.1145/3567955.3567959.
    """
    if not machine.overlap.tensor:
        return tensor_seconds(job, candidates, machine, calls)
    none = np.zeros(len(candidates))
    whole = tensor_seconds(job, candidates, machine, replace(calls, all_gather=none, reduce_scatter=none))
    parts = tensor_seconds(job, candidates, machine, replace(calls, all_reduce=none))
    return whole + exposed_seconds(gemms, Traffic(parts, parts), machine)
