"""Attention over sequences that several ranks share: its kernels, what it sends, and what waits for it.

Notation (this file only)::

    b, s  sequences of a microbatch, tokens of each            [1]
    c, t  context- and tensor-parallel degree                  [1]
    T     tokens of a microbatch on one rank, b s / c          [1]
    q, k  width of queries, of keys (and of values), over t    [1]
    e     bytes of an element                               [byte]
    u, n  seconds of one step's kernel, of its transfer        [s]

Each rank has c-th parts of all sequences, cut in 2 c chunks of which it takes one from the front and one from
the end, so that causal attention gives all ranks as much to do. In a *ring* keys and values go round: c
steps, each a kernel over s / c queries and half as many keys in the mean, beside the transfer for the next.
With *all-gather* they come at once, beside the first step. With *all-to-all* each rank gets all tokens of
some heads before attention, and gives its outputs back after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, flag
from autoplan.costs.core.scope import tokens_of
from autoplan.costs.core.sizes import attention_widths
from autoplan.costs.device.kernels import attention_seconds, memory_bound_seconds
from autoplan.costs.device.machine import Machine, Rate
from autoplan.costs.layer.mla import head_widths
from autoplan.costs.network.collectives import Group, collective_seconds, ring_step_seconds
from autoplan.costs.network.mesh import context_group
from autoplan.costs.network.overlap import Traffic, exposed_seconds
from autoplan.schema.job import Job

__all__ = [
    "ContextTimes",
    "attention_steps",
    "context_buffer_bytes",
    "context_times",
    "key_value_elements",
    "step_kernel_seconds",
]

#: Elements moved to add a step's gradient to their sum: both are read, the sum is written.
_ADDED = 3


def _by_heads(job: Job) -> bool:
    return job.stack.context is not None and job.stack.context.exchange == "all-to-all"


def attention_steps(job: Job, candidates: Candidates) -> Array:
    """Return the kernels of one layer's attention [1], shape [C]: c, or 1 where heads are split.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("cp=4", layers=32, devices=8)])
    >>> attention_steps(load_job("llama3-8b-8x-a100"), one).tolist()
    [4.0]

    Leaves out: second streams, on which two steps may run at once.
    Source: Liu et al. 2023 (Ring Attention), arXiv:2310.01889, section 3; Jacobs et al. 2023 (Ulysses),
    arXiv:2309.14509, section 3.
    """
    c = candidates.cp.astype(np.float64)
    return np.ones_like(c) if _by_heads(job) else c


def step_kernel_seconds(job: Job, candidates: Candidates, keys: float, rate: Rate) -> Array:
    """Return u, the time of one step's attention kernel [s], shape [C].

    b sequences of s / c tokens that attend to ``keys`` / c others, or b of s over a / (t c) heads. Several
    short sequences are never taken to be faster than the longer ones of as many tokens, b / g of g s / c.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> two = Candidates.of([parse_layout(text, layers=32, devices=8) for text in ("tp=8", "tp=2,cp=4")])
    >>> times = step_kernel_seconds(load_job("llama3-8b-8x-a100"), two, 4096.5, Rate(1e9, (), 0.0))
    >>> [round(float(x), 2) for x in times]  # GFLOP: 4 x 8,192 x 4,096.5 x 4,096 / 8, and 4 / 16
    [68.73, 17.18]

    Leaves out: that steps without a diagonal have no masked half to skip.
    """
    model, s = job.model, float(job.workload.sequence_length)
    b, c = candidates.microbatch, candidates.cp
    heads, width = np.maximum(1.0, model.heads / candidates.tp), sum(head_widths(model)) / 2
    if _by_heads(job):
        whole = np.full(len(candidates), s)
        return attention_seconds(b.astype(np.float64), whole, keys, heads / c, width, rate)
    seconds = np.zeros(len(candidates))
    for g in range(1, int(np.gcd(b, c).max()) + 1):
        common = (b % g == 0) & (c % g == 0)
        part = g / c
        here = attention_seconds(b / g, s * part, keys * part, heads, width, rate) / g
        seconds = np.where(common, np.maximum(seconds, here), seconds)
    return seconds


@dataclass(frozen=True, slots=True)
class ContextTimes:
    """Seconds that the context axis adds to one layer and microbatch, arrays of shape [C].

    ``merge_*`` is memory traffic that adds up what the steps computed, ``wait_*`` exposed communication.
    """

    merge_forward: Array
    merge_backward: Array
    wait_forward: Array
    wait_backward: Array


def context_times(
    job: Job, candidates: Candidates, machine: Machine, forward: Array, backward: Array
) -> ContextTimes:
    """Return what the context axis adds to a layer [s], ``forward`` and ``backward`` being u of a step.

    A ring waits max(u, n) - u in each of c - 1 steps, where a transfer sends 2 k e T bytes; backward c times,
    twice the bytes but for the first and the last step, since gradients follow. An all-gather waits for what
    is longer than the first step's kernel; its gradients go round, and the last step of that shows.
    All-to-all moves q, k, v and the output, each e T times its width, and waits for all. Of what is hidden,
    the share ``interference`` is felt. c - 1 partial outputs are added up in memory.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import Links, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-h100"), Candidates.of([parse_layout("cp=8", layers=32, devices=8)])
    >>> links = Links(8, 2.0**20, 2.0**20, False, 0.0, 1.0, 0.0, 0.0, ())  # 1 MiB/s
    >>> none = replace(machine_of(job).overlap, interference=0.0)
    >>> slow = replace(machine_of(job), links=links, overlap=none)
    >>> found = context_times(job, one, slow, np.ones(1), np.ones(1))
    >>> float(found.wait_forward[0])  # 7 steps: 2 x 1,024 x 2 x 1,024 bytes take 4 s, the kernel 1 s
    21.0

    Leaves out: compression of keys and values; contention between the axes.
    Source: Liu et al. 2023, arXiv:2310.01889, section 3; Jacobs et al. 2023, arXiv:2309.14509, section 3;
    NVIDIA Transformer Engine, context_parallel.py; PyTorch, torch/distributed/tensor/experimental, attention.
    """
    zero = np.zeros(len(candidates))
    if job.stack.context is None or not (candidates.cp > 1).any():
        return ContextTimes(zero, zero, zero, zero)
    merge = _merge_seconds(job, candidates, machine)
    if machine.overlap.everything:
        return ContextTimes(*merge, zero, zero)
    waits = {"ring": _ring_exposed, "all-gather": _gather_exposed, "all-to-all": _all_to_all_exposed}
    found = waits[job.stack.context.exchange](job, candidates, machine, forward, backward)
    several = flag(candidates.cp > 1)
    return ContextTimes(*merge, *(several * seconds for seconds in found))


def _widths(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return q and k, the width of a rank's queries and of its keys: the mean of keys' and values'."""
    width = sum(head_widths(job.model)) / 2
    return attention_widths(job.model, candidates.tp.astype(np.float64), width)


def key_value_elements(job: Job, candidates: Candidates) -> Array:
    """Return the elements of a rank's keys and values of one layer and microbatch [1], shape [C]: 2 k T.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("cp=8", layers=32, devices=8)])
    >>> float(key_value_elements(load_job("llama3-8b-8x-a100"), one)[0])  # 2 x 1,024 x 1,024
    2097152.0

    Leaves out: stacks that copy shared key-value heads before they send them.
    Source: NVIDIA Transformer Engine, context_parallel.py, whose buffers have the shape of keys and values.
    """
    elements: Array = 2.0 * _widths(job, candidates)[1] * tokens_of(job, candidates)
    return elements


def _merge_seconds(job: Job, candidates: Candidates, machine: Machine) -> tuple[Array, Array]:
    policy = job.stack.context
    if policy is None or policy.exchange == "all-to-all":
        return np.zeros(len(candidates)), np.zeros(len(candidates))
    q, k = _widths(job, candidates)
    more = candidates.cp - 1.0
    tokens = more * tokens_of(job, candidates)
    forward = memory_bound_seconds(policy.merge_bytes * tokens * q, machine, calls=0)
    moved = _ADDED * machine.element_bytes * tokens * (q + 2 * k)
    return (
        forward + more * machine.memory_bound_launch,
        memory_bound_seconds(moved, machine, calls=0) + more * machine.memory_bound_launch,
    )


def _ring_exposed(
    job: Job, candidates: Candidates, machine: Machine, forward: Array, backward: Array
) -> tuple[Array, Array]:
    size = machine.element_bytes * key_value_elements(job, candidates)
    group, c = context_group(candidates), candidates.cp.astype(np.float64)
    one, two = (ring_step_seconds(n * size, group, machine.links) for n in (1.0, 2.0))
    # Gradients go one step behind keys and values, and once more to where they belong.
    both = np.maximum(c - 2.0, 0.0) * _beside(backward, two, machine)
    back = 2.0 * _beside(backward, one, machine) + both
    return (c - 1.0) * _beside(forward, one, machine), back


def _gather_exposed(
    job: Job, candidates: Candidates, machine: Machine, forward: Array, backward: Array
) -> tuple[Array, Array]:
    size = machine.element_bytes * key_value_elements(job, candidates)
    group, c = context_group(candidates), candidates.cp.astype(np.float64)
    gather = collective_seconds("all_gather", size * c, group, machine.links)
    step = ring_step_seconds(size, group, machine.links)
    # A step's gradients go on beside the next kernel, the last one's beside none.
    gradients = (c - 1.0) * _beside(backward, step, machine) + step
    return _beside(forward, gather, machine), _beside(backward, gather, machine) + gradients


def _all_to_all_exposed(
    job: Job, candidates: Candidates, machine: Machine, forward: Array, backward: Array
) -> tuple[Array, Array]:
    del forward, backward  # Nothing runs beside it.
    q, k = _widths(job, candidates)
    token = machine.element_bytes * tokens_of(job, candidates)
    group = context_group(candidates)
    wide, narrow = (_all_to_all(token * width, group, machine) for width in (q, k))
    return 2.0 * wide + 2.0 * narrow, 2.0 * wide + 2.0 * narrow


def _all_to_all(size: Array, group: Group, machine: Machine) -> Array:
    return collective_seconds("all_to_all", size, group, machine.links)


def _beside(kernel: Array, transfer: Array, machine: Machine) -> Array:
    """Return what a transfer adds to the kernel that it runs beside."""
    return exposed_seconds(kernel, Traffic(transfer, transfer), machine)


def context_buffer_bytes(job: Job, candidates: Candidates, element_bytes: float) -> Array:
    """Return what attention's backward has alive for the context axis [byte], shape [C].

    A ring has two buffers of keys and values, and as many of their gradients: 8 k e T; an all-gather has all
    keys and values, and two buffers of gradients: 2 k e T (c + 2).

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("cp=8", layers=32, devices=8)])
    >>> float(context_buffer_bytes(load_job("llama3-8b-8x-a100"), one, 2.0)[0])  # 4 x 2 x 2,097,152
    16777216.0

    Leaves out: outputs of steps that wait to be merged in forward; sums in fp32.
    Source: NVIDIA Transformer Engine, context_parallel.py, p2p_comm_buffers; PyTorch,
    torch/distributed/tensor/experimental, attention, whose rotater keeps what it gathered.
    """
    policy = job.stack.context
    if policy is None or policy.exchange == "all-to-all":
        return np.zeros(len(candidates))
    buffers = 4.0 if policy.exchange == "ring" else candidates.cp + 2.0
    several = flag(candidates.cp > 1)
    held: Array = several * buffers * element_bytes * key_value_elements(job, candidates)
    return held
