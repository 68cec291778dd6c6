"""Attention under context parallelism: kernel time, exposed communication and buffers.

Notation (this file only)::

    b, s  sequences of a microbatch, tokens of a sequence      [1]
    c, t  context- and tensor-parallel degree                  [1]
    T     tokens of a microbatch on one rank, b s / c          [1]
    q, k  width of queries, of keys (and of values), over t    [1]
    e, g  bytes of an element, of an element of its gradient   [byte]
    u, n  seconds of the kernel and of the transfer of a step  [s]

Context parallelism cuts a sequence into 2 c chunks. A rank owns one chunk from the front and one from the
end, so that causal attention is balanced. In *ring attention* keys and values travel around the ranks in c
steps: the kernel of a step (s / c queries, on average half as many keys) overlaps with the transfer for the
next step. With *all-gather* all keys and values arrive in one collective that overlaps with the first step.
With *all-to-all* (Ulysses) a rank receives all tokens of a part of the heads before attention and returns its
outputs after attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, distinct_rows, flag
from autoplan.costs.core.scope import tokens_of
from autoplan.costs.core.sizes import attention_widths, element_bytes
from autoplan.costs.device.kernels import attention_seconds, memory_bound_seconds
from autoplan.costs.device.machine import Machine, Rate
from autoplan.costs.layer.mla import head_widths
from autoplan.costs.network.collectives import Group, collective_seconds, ring_step_seconds
from autoplan.costs.network.mesh import context_group
from autoplan.costs.network.overlap import Traffic, exposed_seconds
from autoplan.schema.job import Job
from autoplan.schema.post_training import sequences_of_sample


def _splits_heads(job: Job) -> bool:
    return job.stack.context_parallel is not None and job.stack.context_parallel.comm_type == "all-to-all"


def attention_steps(job: Job, candidates: Candidates) -> Array:
    """Return the number of attention kernels of a layer [1], shape [C]: c, or 1 with all-to-all.

    >>> attention_steps(job, candidate("cp=4")).tolist()
    [4.0]

    Leaves out: a second CUDA stream that runs two steps concurrently.
    Source: Liu et al. 2023 (Ring Attention), arXiv:2310.01889, section 3; Jacobs et al. 2023 (Ulysses),
    arXiv:2309.14509, section 3.
    """
    c = candidates.cp.astype(np.float64)
    return np.ones_like(c) if _splits_heads(job) else c


def step_kernel_seconds(job: Job, candidates: Candidates, keys: float, rate: Rate) -> Array:
    """Return u, the time of the attention kernel of one step [s], shape [C].

    A kernel has b sequences of s / c queries and ``keys`` / c keys; with all-to-all b sequences of s queries
    and a / (t c) heads. The time is at least that of b / g sequences of g s / c tokens, for each g that
    divides both b and c: short sequences are not faster than long ones with the same number of tokens.

    >>> two = Candidates.of([parse_layout(text, layers=32, devices=8) for text in ("tp=8", "tp=2,cp=4")])
    >>> times = step_kernel_seconds(job, two, 4096.5, Rate(1e9, (), 0.0))
    >>> [round(float(x), 2) for x in times]  # GFLOP: 4 x 8,192 x 4,096.5 x 4,096 / 8, and 4 / 16
    [68.73, 17.18]

    Leaves out: steps off the diagonal, which have no masked half to skip.
    """
    model, s = job.model, float(job.workload.sequence_length)
    # Thousands of candidates have some hundred kernels.
    first, numbers = distinct_rows([candidates.microbatch, candidates.cp, candidates.tp])
    b, c = candidates.microbatch[first] * sequences_of_sample(job.rl), candidates.cp[first]
    heads, width = np.maximum(1.0, model.heads / candidates.tp[first]), sum(head_widths(model)) / 2
    if _splits_heads(job):
        sequence = np.full(len(first), s)
        return attention_seconds(b.astype(np.float64), sequence, keys, heads / c, width, rate)[numbers]
    seconds = np.zeros(len(first))
    for g in range(1, int(np.gcd(b, c).max()) + 1):
        at = np.flatnonzero((b % g == 0) & (c % g == 0))
        if len(at):
            part = g / c[at]
            merged_seconds = attention_seconds(b[at] / g, s * part, keys * part, heads[at], width, rate) / g
            seconds[at] = np.maximum(seconds[at], merged_seconds)
    return seconds[numbers]


@dataclass(frozen=True, slots=True)
class ContextTimes:
    """Seconds that context parallelism adds to a layer for one microbatch, arrays of shape [C].

    ``merge_*`` is the memory-bound time to merge the partial results of the steps; ``exposed_*`` is exposed
    communication.
    """

    merge_forward: Array
    merge_backward: Array
    exposed_forward: Array
    exposed_backward: Array


def context_times(
    job: Job, candidates: Candidates, machine: Machine, forward: Array, backward: Array
) -> ContextTimes:
    """Return the time that context parallelism adds to a layer [s].

    ``forward`` and ``backward`` are u, the seconds of a step's kernel. Ring attention exposes max(u, n) - u
    in each of c - 1 steps; a transfer has 2 k e T bytes. Its backward has c transfers: of keys
    and values in all but the last, of their gradients (2 k g T bytes) in all but the first. An all-gather
    exposes what takes longer than the first kernel; its gradients travel in a ring whose last step is
    exposed. All-to-all of q, k, v and the output, e T bytes times the width of each, is fully exposed. Hidden
    communication slows compute by ``interference``. The c - 1 partial outputs are merged in memory.

    >>> job, one = load_job("llama3-8b-8x-h100"), candidate("cp=8")
    >>> links = Links(8, 2.0**20, 2.0**20, False, 0.0, 1.0, 0.0, 0.0, ())  # 1 MiB/s
    >>> overlap = replace(machine_of(job).overlap, interference=0.0)
    >>> slow = replace(machine_of(job), links=links, overlap=overlap)
    >>> times = context_times(job, one, slow, np.ones(1), np.ones(1))
    >>> float(times.exposed_forward[0])  # 7 steps: 2 x 1,024 x 2 x 1,024 bytes take 4 s, the kernel 1 s
    21.0

    Leaves out: compression of keys and values; contention with the other parallelism axes.
    Source: Liu et al. 2023, arXiv:2310.01889, section 3; Jacobs et al. 2023, arXiv:2309.14509, section 3;
    NVIDIA Transformer Engine, context_parallel.py; PyTorch, torch/distributed/tensor/experimental, attention.
    """
    zero = np.zeros(len(candidates))
    if job.stack.context_parallel is None or not (candidates.cp > 1).any():
        return ContextTimes(zero, zero, zero, zero)
    merge = _merge_seconds(job, candidates, machine)
    if machine.overlap.everything:
        return ContextTimes(*merge, zero, zero)
    formulas = {"ring": _ring_exposed, "all-gather": _all_gather_exposed, "all-to-all": _all_to_all_exposed}
    exposed = formulas[job.stack.context_parallel.comm_type](job, candidates, machine, forward, backward)
    context_parallel = flag(candidates.cp > 1)
    return ContextTimes(*merge, *(context_parallel * seconds for seconds in exposed))


def _widths(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return q and k, the widths of queries and of keys on a rank; k is the mean over keys and values."""
    width = sum(head_widths(job.model)) / 2
    return attention_widths(job.model, candidates.tp.astype(np.float64), width)


def key_value_elements(job: Job, candidates: Candidates) -> Array:
    """Return the elements of keys and values of a layer and microbatch on a rank [1], shape [C]: 2 k T.

    >>> float(key_value_elements(job, candidate("cp=8"))[0])  # 2 x 1,024 x 1,024
    2097152.0

    Leaves out: stacks that replicate shared key-value heads before sending.
    Source: NVIDIA Transformer Engine, context_parallel.py, whose buffers have the shape of keys and values.
    """
    elements: Array = 2.0 * _widths(job, candidates)[1] * tokens_of(job, candidates)
    return elements


class ContextMessage(NamedTuple):
    """A message of context parallelism in one layer's pass over a microbatch: bytes and calls, shape [C].

    ``size`` is that of the full tensor of a collective, and of what a rank sends to the next one in a ring.
    """

    operation: Literal["send", "all_gather", "all_to_all"]
    size: Array
    calls: Array


def context_messages(
    job: Job, candidates: Candidates
) -> tuple[tuple[ContextMessage, ...], tuple[ContextMessage, ...]]:
    """Return the messages of context parallelism in forward and in backward of a layer ([byte], [1]).

    Ring: 2 k e T bytes of keys and values in c - 1 steps; their gradients, 2 k g T bytes, travel one step
    behind, so that backward has c steps. All-gather: all keys and values once in each pass, and gradients in
    c steps of a ring. All-to-all: e T times the width of queries, keys, values and outputs.

    >>> forward, backward = context_messages(load_job("llama3-8b-8x-h100"), candidate("cp=8"))
    >>> [(x.operation, float(x.size[0]), float(x.calls[0])) for x in backward]  # 2 x 2 x 1,024 x 1,024
    [('send', 4194304.0, 1.0), ('send', 8388608.0, 6.0), ('send', 4194304.0, 1.0)]

    Leaves out: the copies that put keys and values into one message.
    Source: NVIDIA Transformer Engine, context_parallel.py, AttnFuncWithCPAndKVP2P; PyTorch,
    torch/distributed/tensor/experimental, _templated_ring_attention_backward; DeepSpeed,
    deepspeed/sequence/layer.py.
    """
    policy, c = job.stack.context_parallel, candidates.cp.astype(np.float64)
    if policy is None:
        return (), ()
    parallel = flag(c > 1)
    if policy.comm_type == "all-to-all":
        token_bytes = element_bytes(job) * tokens_of(job, candidates)
        widths = _widths(job, candidates)
        both = tuple(ContextMessage("all_to_all", token_bytes * width, 2.0 * parallel) for width in widths)
        return both, both
    elements = key_value_elements(job, candidates)
    size, gradients = element_bytes(job) * elements, _gradient_bytes(job) * elements
    if policy.comm_type == "all-gather":
        gather = ContextMessage("all_gather", size * c, parallel)
        return (gather,), (gather, ContextMessage("send", gradients, c * parallel))
    # Gradients travel one step behind keys and values, and need one more step to return to their owner.
    backward = (
        ContextMessage("send", size, parallel),
        ContextMessage("send", size + gradients, np.maximum(c - 2.0, 0.0)),
        ContextMessage("send", gradients, parallel),
    )
    return (ContextMessage("send", size, c - 1.0),), backward


def _gradient_bytes(job: Job) -> float:
    """Return g, the bytes of an element of the gradients that travel; not less than of what they are of."""
    policy = job.stack.context_parallel
    return max(element_bytes(job), policy.gradient_bytes if policy else 0)


def _merge_seconds(job: Job, candidates: Candidates, machine: Machine) -> tuple[Array, Array]:
    """Return the memory-bound time to merge the results of all steps [s]: outputs, then gradients."""
    policy = job.stack.context_parallel
    if policy is None or policy.comm_type == "all-to-all":
        return np.zeros(len(candidates)), np.zeros(len(candidates))
    q, k = _widths(job, candidates)
    merges = candidates.cp - 1.0
    tokens = merges * tokens_of(job, candidates)
    forward = memory_bound_seconds(policy.merge_bytes * tokens * q, machine, calls=0)
    # A kernel's gradient is read, and the sum read and written.
    accessed = machine.element_bytes + 2 * _gradient_bytes(job)
    added = memory_bound_seconds(accessed * tokens * (q + 2 * k), machine, calls=0)
    return (
        forward + merges * machine.memory_bound_launch,
        added + merges * machine.memory_bound_launch,
    )


def _ring_exposed(
    job: Job, candidates: Candidates, machine: Machine, forward: Array, backward: Array
) -> tuple[Array, Array]:
    group = context_group(candidates)

    def exposed(messages: tuple[ContextMessage, ...], kernel: Array) -> Array:
        return sum(
            (
                x.calls * _transfer_exposed(kernel, ring_step_seconds(x.size, group, machine.links), machine)
                for x in messages
            ),
            np.zeros(len(candidates)),
        )

    forward_messages, backward_messages = context_messages(job, candidates)
    return exposed(forward_messages, forward), exposed(backward_messages, backward)


def _all_gather_exposed(
    job: Job, candidates: Candidates, machine: Machine, forward: Array, backward: Array
) -> tuple[Array, Array]:
    group = context_group(candidates)
    _, (gathered, ring) = context_messages(job, candidates)
    gather = collective_seconds("all_gather", gathered.size, group, machine.links)
    step = ring_step_seconds(ring.size, group, machine.links)
    # The gradients of a step travel during the next kernel; no kernel overlaps with the last transfer.
    gradients = (ring.calls - 1.0) * _transfer_exposed(backward, step, machine) + step
    forward_exposed = _transfer_exposed(forward, gather, machine)
    return forward_exposed, _transfer_exposed(backward, gather, machine) + gradients


def _all_to_all_exposed(
    job: Job, candidates: Candidates, machine: Machine, forward: Array, backward: Array
) -> tuple[Array, Array]:
    del forward, backward  # No compute overlaps with all-to-all.
    group, (messages, _) = context_group(candidates), context_messages(job, candidates)
    seconds = sum(
        (x.calls * _all_to_all(x.size, group, machine) for x in messages), np.zeros(len(candidates))
    )
    return seconds, seconds


def _all_to_all(size: Array, group: Group, machine: Machine) -> Array:
    return collective_seconds("all_to_all", size, group, machine.links)


def _transfer_exposed(kernel: Array, transfer: Array, machine: Machine) -> Array:
    """Return the exposed time of a transfer that overlaps with a kernel [s]."""
    return exposed_seconds(kernel, Traffic(transfer, transfer), machine)


def context_buffer_bytes(job: Job, candidates: Candidates, element_bytes: float) -> Array:
    """Return the communication buffers of context parallelism in attention's backward [byte], shape [C].

    Ring attention has two buffers of keys and values and two of their gradients: 4 k (e + g) T. All-gather
    has all keys and values and two buffers of gradients: 2 k T (e c + 2 g).

    >>> float(context_buffer_bytes(job, candidate("cp=8"), 2.0)[0])  # 4 x 2 x 2,097,152
    16777216.0

    Leaves out: unmerged outputs of steps in forward.
    Source: NVIDIA Transformer Engine, context_parallel.py, p2p_comm_buffers; PyTorch,
    torch/distributed/tensor/experimental, attention, whose rotater retains the gathered tensors.
    """
    policy = job.stack.context_parallel
    if policy is None or policy.comm_type == "all-to-all":
        return np.zeros(len(candidates))
    copies = 2.0 if policy.comm_type == "ring" else candidates.cp
    buffer_bytes = copies * element_bytes + 2.0 * max(element_bytes, policy.gradient_bytes)
    size: Array = flag(candidates.cp > 1) * buffer_bytes * key_value_elements(job, candidates)
    return size
