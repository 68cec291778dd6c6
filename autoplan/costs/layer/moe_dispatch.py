"""Time of MoE dispatch and combine, the all-to-all that sends tokens to experts and returns outputs.

Notation (this file only)::

    E, K   experts of a layer, experts of a token (top-k)       x   expert-parallel degree (ep)          [1]
    N, r   nodes of the expert-parallel group, ranks per node   y   expert-tensor-parallel degree (etp)  [1]
    t, s   tensor-parallel degree, sequence-parallel degree                                              [1]
    T, h   tokens of a microbatch, hidden size                  u   load factor of the fullest rank      [1]
    e      bytes of an element                                                                        [byte]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.scope import tokens_of
from autoplan.costs.core.sizes import element_bytes, sequence_parallel_degree
from autoplan.costs.device.machine import Links, Machine
from autoplan.costs.layer.moe import destinations_visited, load_factor
from autoplan.costs.network.collectives import Group, collective_seconds
from autoplan.costs.network.mesh import dispatch_groups
from autoplan.schema.job import Job


def dispatch_bytes(job: Job, candidates: Candidates) -> Array:
    """Return the bytes of a rank to dispatch, for one expert of each token [byte], shape [C]: e h T u / s.

    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), routing=RoutingSpec(load_variation=0.0))
    >>> float(dispatch_bytes(job, candidate("ep=8"))[0]) / 2**20  # 2 x 4,096 x 4,096 bytes in MiB
    32.0

    Leaves out: dispatch in FP8.
    Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
    """
    tokens = tokens_of(job, candidates)
    local_tokens = tokens / sequence_parallel_degree(candidates)
    size: Array = element_bytes(job) * job.model.hidden_size * local_tokens * load_factor(job, candidates)
    return size


def dispatch_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the exposed time of MoE dispatch and combine for one microbatch [s], shape [C], average layer.

    Two all-to-alls of e h T K u / s bytes over x ranks. A stack that sends a token once per node and once per
    rank of the node has the volume of ``destinations_visited``. With sequence parallelism and y > 1 the
    expert-tensor-parallel group all-gathers the routed tokens, y times the bytes, and reduce-scatters the
    outputs. Backward takes the same time.

    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), routing=RoutingSpec(load_variation=0.0))
    >>> one = candidate("ep=8")
    >>> links = Links(8, 7 * 2.0**24, 7 * 2.0**24, False, 0.0, 1.0, 0.0, 0.0, ())  # 7 x 16 MiB/s
    >>> dispatch_seconds(job, one, replace(machine_of(job), links=links)).tolist()  # twice 7/8 of 64 MiB
    [1.0]

    Leaves out: dispatch in FP8; overlap with another microbatch, for which see ``layer_time``.
    Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
    """
    model, moe_share, policy = job.model, moe_layer_share(job.model), job.stack.experts
    if model.moe is None or machine.overlap.everything:
        return np.zeros(len(candidates))
    token_bytes = dispatch_bytes(job, candidates)
    size = token_bytes * model.moe.top_k
    expert_group, expert_tensor_group = dispatch_groups(candidates)
    if policy is not None and policy.dispatch == "hierarchical":
        dispatch = hierarchical_dispatch_seconds(token_bytes, expert_group, model.moe.top_k, machine.links)
    else:
        dispatch = collective_seconds("all_to_all", size, expert_group, machine.links)
    seconds = 2.0 * dispatch
    if (candidates.etp > 1).any():
        y = expert_tensor_group.ranks
        group = Group(np.where(candidates.sequence_parallel == 1, y, 1.0), expert_tensor_group.stride)
        for operation in ("all_gather", "reduce_scatter"):
            seconds = seconds + collective_seconds(operation, size * y, group, machine.links)
    average: Array = moe_share * seconds
    return average


def hierarchical_dispatch_seconds(token_bytes: Array, ranks: Group, top_k: int, links: Links) -> Array:
    """Return the time of one hierarchical dispatch, or combine, of ``token_bytes`` per rank [s].

    A token crosses the network once per node that it visits, and the node's fabric once per rank. The two
    steps overlap for different tokens: the slower one determines the time.

    >>> links = Links(8, 1e15, 1e15, False, 0.0, 0.75, 0.0, 0.0, ())  # 0.75 byte/s over the network
    >>> two = Group(np.array([16.0]), np.array([1.0]))  # ranks of two nodes; of 2 choices 3/4 leave, once
    >>> hierarchical_dispatch_seconds(np.ones(1), two, 2, links).round(6).tolist()
    [1.0]

    Leaves out: latency between the two steps; imbalance between ranks, which ``token_bytes`` may include.
    Source: DeepSeek-AI, DeepEP, README: tokens cross RDMA to a rank of the node, then NVLink.
    """
    ranks_per_node = ranks.ranks_in_node(links)
    nodes = ranks.ranks / ranks_per_node
    network_bytes = token_bytes * destinations_visited(nodes, top_k) * (nodes - 1.0) / nodes
    fabric_bytes = token_bytes * destinations_visited(ranks.ranks, top_k)
    # Within a node it is an all-to-all among the node's ranks.
    fabric = collective_seconds("all_to_all", fabric_bytes, Group(ranks_per_node, ranks.stride), links)
    latency = links.launch + links.network_latency
    network = np.where(nodes > 1, latency + network_bytes / links.network_bandwidth, 0.0)
    slower: Array = np.maximum(fabric, network)
    return slower
