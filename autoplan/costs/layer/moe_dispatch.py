"""Time in which the tokens of a microbatch come to their experts, and what these give comes back.

Notation (this file only)::

    E, K   experts of a layer, and those that a token visits           x   expert-parallel degree (ep)   [1]
    N, r   nodes that the x ranks are on, ranks of a node              y   ranks that split an expert    [1]
    t, s   tensor-parallel degree; over how many ranks sequences are split between products              [1]
    T, h   tokens of a microbatch, hidden size                         u   load of the fullest rank      [1]
    e      bytes of an element                                                                        [byte]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.core.sizes import sequence_split
from autoplan.costs.device.machine import Links, Machine
from autoplan.costs.layer.moe import load_factor
from autoplan.costs.network.collectives import Group, collective_seconds
from autoplan.costs.network.mesh import dispatch_groups
from autoplan.schema.job import Job

__all__ = ["destinations_visited", "dispatch_seconds", "tokens_seconds"]


def dispatch_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the exposed time to send a microbatch's rows to experts and back [s], shape [C], average layer.

    Twice an all-to-all of e h T K u / s bytes over x ranks, or where the stack sends a token once to each
    node and there once to each rank, what ``destinations_visited`` counts. Where sequences are split and
    y > 1, the y ranks of an expert gather the rows, y times as many bytes, and scatter their sums. Backward is the same.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import Links, machine_of
    >>> from autoplan.schema.job import RoutingSpec
    >>> from autoplan.schema.layout import parse_layout
    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), routing=RoutingSpec(load_variation=0.0))
    >>> one = Candidates.of([parse_layout("ep=8", layers=32, devices=8)])
    >>> links = Links(8, 7 * 2.0**24, 7 * 2.0**24, False, 0.0, 1.0, 0.0, 0.0, ())  # 7 x 16 MiB/s
    >>> dispatch_seconds(job, one, replace(machine_of(job), links=links)).tolist()  # twice 7/8 of 64 MiB
    [1.0]

    Leaves out: rows sent in 8 bits; exchange that runs beside another microbatch.
    Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
    """
    model, share, policy = job.model, expert_share(job.model), job.stack.experts
    if model.moe is None or machine.overlap.everything:
        return np.zeros(len(candidates))
    tokens = candidates.microbatch * float(job.workload.sequence_length) / candidates.cp
    split = tokens / sequence_split(candidates)
    sent = machine.element_bytes * model.hidden_size * split * load_factor(job, candidates)
    size = sent * model.moe.top_k
    others, splits = dispatch_groups(candidates)
    if policy is not None and policy.exchange == "tokens":
        once = tokens_seconds(sent, others, model.moe.top_k, machine.links)
    else:
        once = collective_seconds("all_to_all", size, others, machine.links)
    seconds = 2.0 * once
    if (candidates.etp > 1).any():
        y = splits.ranks
        inside = Group(np.where(candidates.sequence_parallel == 1, y, 1.0), splits.stride)
        for operation in ("all_gather", "reduce_scatter"):
            seconds = seconds + collective_seconds(operation, size * y, inside, machine.links)
    exchanged: Array = share * seconds
    return exchanged


def destinations_visited(places: Array, chosen: int) -> Array:
    """Return how many of n ``places`` that share all experts a token visits [1]: n (1 - (1 - 1/n)^K).

    >>> destinations_visited(np.array([1.0, 2.0, 16.0]), 8).round(2).tolist()  # of 2 both, of 16 ranks 6.5
    [1.0, 1.99, 6.45]

    Leaves out: that a token visits no expert twice; routers that prefer few nodes.
    Source: the chance that none of K choices is of a place.
    """
    missed = (1.0 - 1.0 / places) ** chosen
    visited: Array = places * (1.0 - missed)
    return visited


def tokens_seconds(sent: Array, ranks: Group, chosen: int, links: Links) -> Array:
    """Return the time of one exchange of ``sent`` bytes of tokens [s].

    Over the network a token goes to the other nodes that it visits, inside each on to their ranks, at the
    same time for different tokens: the slower of the two.

    >>> links = Links(8, 1e15, 1e15, False, 0.0, 0.75, 0.0, 0.0, ())  # 0.75 byte/s over the network
    >>> two = Group(np.array([16.0]), np.array([1.0]))  # ranks of two nodes; of 2 choices 3/4 leave, once
    >>> tokens_seconds(np.ones(1), two, 2, links).round(6).tolist()
    [1.0]

    Leaves out: what each step waits for another; load that differs between ranks, which ``sent`` may have.
    Source: DeepSeek-AI, DeepEP, README: tokens go over RDMA to a rank of the node, from there over NVLink.
    """
    within = ranks.ranks_in_node(links)
    nodes = ranks.ranks / within
    away = sent * destinations_visited(nodes, chosen) * (nodes - 1.0) / nodes
    inside = sent * destinations_visited(ranks.ranks, chosen)
    # As an all-to-all among a node's ranks, of which each keeps its own share.
    fabric = collective_seconds("all_to_all", inside, Group(within, ranks.stride), links)
    network = np.where(nodes > 1, links.launch + links.network_latency + away / links.network_bandwidth, 0.0)
    slower: Array = np.maximum(fabric, network)
    return slower
