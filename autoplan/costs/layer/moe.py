"""Layers with experts: rows, products, exchange between ranks, and what is kept.

Notation (this file only)::

    E, K   experts of a layer, and those that a token visits        x   expert-parallel degree (ep)     [1]
    f, h   inner width of an expert, hidden size                    y   ranks that split an expert (etp) [1]
    t, s   tensor-parallel degree, over which sequences are split or not: s = t or 1                    [1]
    T      tokens of a microbatch        R  rows on which the experts of a rank work for one token      [1]
    u      load of the fullest rank over the mean                   e   bytes of an element             [1]

A token is copied to the ranks of the K experts that it visits, and what they give is sent back and added
up. ``mesh`` has the places of the y, the x and those ranks that hold the same experts (``edp``), as in
Megatron-LM, megatron/core/parallel_state.py: y x edp = t c d.

A model may have dense layers among those with experts. Given such a model, these functions count the average
layer, each kind by its share; stages are priced a kind at a time (``mixed_stages``).
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.device.kernels import Gemm
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec

__all__ = [
    "expert_elements",
    "expert_gemms",
    "expert_kernels",
    "expert_saved",
    "load_factor",
    "routed_per_token",
]

#: Elements of 16 bits that routing moves for each expert: its logit cast, scored, read and written by the
#: choice, in 32 bits.
_ROUTER_TRIPS = 8.0
#: Bytes that the router keeps: of each expert its logit in 16 bits and its share in 32, of each choice
#: two 64-bit indices and the weight in 32 and 16 bits.
_ROUTER_EXPERT_BYTES = 6
_ROUTER_CHOICE_BYTES = 22


def load_factor(job: Job, candidates: Candidates) -> Array:
    """Return u [1], shape [C]: what the fullest rank gets over the mean.

    With loads of experts that vary by v around their mean, a rank of E/x experts varies by v (x/E)^(1/2), and
    the fullest of x ranks is about (2 ln x)^(1/2) of that above the mean. A capacity factor is a ceiling, and
    what experts get that are padded to it.

    >>> from types import SimpleNamespace as Some
    >>> from autoplan.catalog import load_entry
    >>> from autoplan.schema.job import RoutingSpec
    >>> from autoplan.schema.layout import parse_layout
    >>> two = [parse_layout(f"ep={x}", layers=32, devices=8) for x in (1, 8)]
    >>> job = Some(model=load_entry("model", "mixtral-8x7b"), routing=RoutingSpec(load_variation=0.1))
    >>> load_factor(job, Candidates.of(two)).round(3).tolist()  # 1 + 0.1 x (2 ln 8)^(1/2)
    [1.0, 1.204]

    Leaves out: loads that depend on each other; how they change over a run; ranks that are full by turns.
    Source: the largest of normal variables, e.g. Gumbel 1958, Statistics of Extremes; the variation is the
    job's, or the stack's guess.
    """
    moe, routing = job.model.moe, job.routing
    x = candidates.ep.astype(np.float64)
    if moe is None:
        return np.ones_like(x)
    told = routing.load_variation
    guessed = job.stack.experts.load_variation.value if told is None and job.stack.experts else 0.0
    variation = guessed if told is None else told
    fullest = np.minimum(1.0 + variation * np.sqrt(x / moe.experts) * np.sqrt(2.0 * np.log(x)), x)
    capacity = routing.capacity_factor
    if capacity is None:
        return fullest
    return np.full_like(x, capacity) if routing.padded else np.minimum(fullest, capacity)


def routed_per_token(job: Job, candidates: Candidates) -> Array:
    """Return R [1], shape [C]: K u y / t where sequences are split, K u where every rank has all tokens.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("ep=2", "tp=2,sp=on", "tp=2,ep=2,sp=on,etp=1", "tp=2,sp=off")
    >>> some = Candidates.of([parse_layout(text, layers=32, devices=8) for text in texts])
    >>> job = load_job("mixtral-8x7b-8x-h200")
    >>> (routed_per_token(job, some) / load_factor(job, some)).tolist()
    [2.0, 2.0, 1.0, 2.0]

    Leaves out: rows that are padded to whole tiles.
    Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
    """
    return _chosen(job.model) * load_factor(job, candidates) * _spread(candidates)


def _chosen(model: ModelSpec) -> float:
    return float(model.moe.top_k) if model.moe else 0.0


def _spread(candidates: Candidates) -> Array:
    split = candidates.sequence_parallel == 1
    spread: Array = np.where(split, candidates.etp / candidates.tp, 1.0)
    return spread


def _whole(candidates: Candidates) -> Array:
    return np.where(candidates.sequence_parallel == 1, candidates.tp.astype(np.float64), 1.0)


def expert_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """Return the products of a layer's experts on one rank [1], each with how many there are of it.

    Of each of the E/x experts of a rank [T R x/E, h] x [h, f/y] (twice that width where gated) and back, as
    one kernel where the stack groups them; of the shared expert the same over all tokens and t; the router's
    [T/s, h] x [h, E]. Counts are for the average layer, see this file's head.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.job import RoutingSpec
    >>> from dataclasses import replace
    >>> from autoplan.schema.layout import parse_layout
    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), routing=RoutingSpec(load_variation=0.0))
    >>> one = Candidates.of([parse_layout("ep=4", layers=32, devices=8)])
    >>> up = expert_gemms(job, np.full(1, 4096.0), one)[1]
    >>> [float(np.max(x)) for x in up]  # 4,096 x 2 rows for 2 experts; 2 x 14,336 columns; both at once
    [4096.0, 28672.0, 4096.0, 1.0, 2.0]

    Leaves out: experts of a rank that get unlike numbers of rows; tiles that an expert's rows do not fill.
    Source: Fedus et al. 2021 (Switch), arXiv:2101.03961, section 2.1; held against measured layers of
    experts, see docs/formulas/time.md.
    """
    model, moe, share = job.model, job.model.moe, expert_share(job.model)
    if moe is None:
        return []
    h, up = np.asarray(float(model.hidden_size)), 2.0 if model.gated else 1.0
    t, y = candidates.tp.astype(np.float64), candidates.etp.astype(np.float64)
    held = moe.experts / candidates.ep
    rows = tokens * routed_per_token(job, candidates) / held
    inner = moe.expert_ffn_size / y
    grouped = job.stack.experts is not None and job.stack.experts.grouped
    times = (share, held) if grouped else (share * held, 1.0)
    found = [Gemm(tokens / _whole(candidates), np.asarray(float(moe.experts)), h, share)]
    found += [Gemm(rows, up * inner, h, *times), Gemm(rows, h, inner, *times)]
    if moe.shared_expert_ffn_size:
        inner = moe.shared_expert_ffn_size / t
        found += [Gemm(tokens, up * inner, h, share), Gemm(tokens, h, inner, share)]
    return found


def expert_elements(job: Job, candidates: Candidates, activation: float) -> Array:
    """Return elements moved for a token by what stands between a layer's experts' products [1], shape [C].

    In one direction, for the average layer: rows are read and written to put them in the order of their
    experts, again where they came from several ranks, and so on the way back, where each is added to its
    token: h (3 K/s + 1/s + 4 R); ``activation`` trips of R f/y and of the shared expert's width; routing.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("ep=1", layers=32, devices=8)])
    >>> float(expert_elements(load_job("mixtral-8x7b-8x-h200"), one, 3.0)[0])
    114752.0
    >>> 4096 * (3 * 2 + 1) + 3 * 2 * 14336 + 8 * 8  # no other ranks, so no second sorting
    114752

    Leaves out: indices and counts.
    Source: Megatron-LM, megatron/core/transformer/moe/moe_utils.py, permute and unpermute.
    """
    moe, share = job.model.moe, expert_share(job.model)
    whole = _whole(candidates)
    if moe is None:
        return np.zeros_like(whole)
    rows, h = routed_per_token(job, candidates), job.model.hidden_size
    far = np.where((candidates.ep > 1) & (candidates.ep < moe.experts), 4.0 * rows, 0.0)
    moved = h * ((3.0 * moe.top_k + 1.0) / whole + far)
    inner = rows * moe.expert_ffn_size / candidates.etp + moe.shared_expert_ffn_size / candidates.tp
    gate = 3.0 * h / whole if moe.shared_expert_gate else 0.0
    routed = _ROUTER_TRIPS * moe.experts / whole
    elements: Array = share * (moved + activation * inner + gate + routed)
    return elements


def expert_kernels(job: Job, candidates: Candidates) -> Array:
    """Return kernels of forward that experts add to the average layer [1], shape [C].

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("ep=4", layers=32, devices=8)])
    >>> expert_kernels(load_job("mixtral-8x7b-8x-h200"), one).tolist()  # 40, and 2 for each of 2 experts
    [44.0]

    Leaves out: waits of the host for counts of rows.
    Source: the stack's file.
    """
    moe, policy = job.model.moe, job.stack.experts
    if moe is None or policy is None:
        return np.zeros(len(candidates))
    held = moe.experts / candidates.ep
    kernels: Array = expert_share(job.model) * (policy.kernels + policy.kernels_each * held)
    return kernels


def expert_saved(job: Job, candidates: Candidates, inner: float, e: float) -> Array:
    """Return what experts keep of a token for backward [byte], shape [C], in a layer that has some.

    ``inner`` bytes for each element of an inner width: R (f/y inner + rows_kept e h), the shared expert's
    width over t, and the router's logits and choices over s.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("ep=1", layers=32, devices=8)])
    >>> float(expert_saved(load_job("mixtral-8x7b-8x-h200"), one, 6.0, 2.0)[0])
    188508.0
    >>> 2 * (14336 * 6 + 2 * 4096) + 6 * 8 + 22 * 2  # one copy of a row in Megatron-Core
    188508

    Leaves out: rows padded to whole tiles; buffers of the exchange.
    Source: counted on real PyTorch modules, benchmarks/memory (tokens of all experts on one rank); how many
    copies of a row a stack keeps is in its file.
    """
    moe, policy = job.model.moe, job.stack.experts
    whole = _whole(candidates)
    if moe is None:
        return np.zeros_like(whole)
    copies = policy.rows_kept if policy else 1
    width = inner * moe.expert_ffn_size / candidates.etp + copies * e * job.model.hidden_size
    shared = inner * moe.shared_expert_ffn_size / candidates.tp
    routed = (_ROUTER_EXPERT_BYTES * moe.experts + _ROUTER_CHOICE_BYTES * moe.top_k) / whole
    kept: Array = routed_per_token(job, candidates) * width + shared + routed
    return kept
