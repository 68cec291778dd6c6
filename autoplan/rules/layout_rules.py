"""The rules that a layout must keep, each with the sentence that a user reads.

A rule is a predicate over arrays of candidates, so the search removes what breaks one and counts it, and
``evaluate`` says which sentence a single layout breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Final, TypeVar

import numpy as np

from autoplan.costs.core.candidates import Candidates, Ints
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.core.rank_strides import axis_stride, expert_stride
from autoplan.rules.memory_rules import memory_rules
from autoplan.rules.rule import Mask, Rule, among, divides
from autoplan.rules.user_constraints import breaks, embedding_and_loss_counted, own_rules, what_is_left
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, RECOMPUTE, SCHEDULES, Layout, Order
from autoplan.schema.stage_layers import chunks_of
from autoplan.schema.user_rules.expression import FALSE, Node

__all__ = ["broken_rules", "rules_before_placement", "rules_for"]

T = TypeVar("T")

_INTERLEAVED = SCHEDULES.index("interleaved")
_ZERO_BUBBLE = SCHEDULES.index("zero-bubble")


def rules_for(job: Job) -> list[Rule]:
    """Return the rules of ``job``'s model, devices, workload, stack, search and user, in this order.

    A rule of the user that is about single stages is kept by every candidate that has some layout left by it.
    """
    return [
        *rules_before_placement(job),
        *_shard_rules(job),
        *_order_rules(job),
        *memory_rules(job),
        *_search_rules(job),
        *(Rule(own.sentence, _not_broken(job, own.relation)) for own in own_rules(job)),
    ]


def rules_before_placement(job: Job) -> list[Rule]:
    """Return the first of the rules of ``job``: all to which the order of ranks makes no difference.

    Nor do they ask how many ranks share state.
    """
    return [
        *_model_rules(job),
        *_expert_rules(job),
        *_job_rules(job),
        *_stack_rules(job),
        *_context_rules(job),
    ]


def _not_broken(job: Job, relation: Node) -> Callable[[Candidates], Mask]:
    return lambda c: np.array([left != FALSE for left in what_is_left(job, relation, c)], dtype=bool)


def _model_rules(job: Job) -> Iterator[Rule]:
    model, uneven = job.model, job.stack.rules.uneven_chunks
    yield Rule(f"tp divides the {model.heads} attention heads", lambda c: divides(model.heads, c.tp))
    yield Rule(
        f"tp divides the {model.kv_heads} key-value heads, or is a multiple of them",
        lambda c: divides(model.kv_heads, c.tp) | (c.tp % model.kv_heads == 0),
    )
    if expert_share(model) < 1:
        yield Rule(f"tp divides the MLP width of {model.ffn_size}", lambda c: divides(model.ffn_size, c.tp))
    yield Rule(
        f"pp x vpp is at most the {model.layers} layers",
        lambda c: np.asarray(c.pp * c.vpp <= model.layers) | _embedding_and_loss_counted(job, c),
        searched=uneven,
    )
    alike = not layer_types_of(model, job.workload.sequence_length).several
    counting = ", or with embedding and head into pp x vpp that are alike" if uneven and alike else ""
    yield Rule(
        f"vpp divides the {model.layers} layers into whole virtual stages{counting}",
        lambda c: divides(model.layers, c.vpp) | _embedding_and_loss_counted(job, c),
        searched=uneven,
    )


def _embedding_and_loss_counted(job: Job, candidates: Candidates) -> Mask:
    virtual = np.unique(candidates.vpp).tolist()
    return among(candidates.vpp, [v for v in virtual if embedding_and_loss_counted(job, candidates.pp, v)])


def _expert_rules(job: Job) -> Iterator[Rule]:
    moe, policy, stack = job.model.moe, job.stack.experts, job.stack.title
    if moe is None or policy is None:
        yield Rule("ep is 1: the model has no experts", lambda c: c.ep == 1)
        yield Rule("etp is tp: the model has no experts", lambda c: c.etp == c.tp)
        return
    yield Rule(f"ep divides the {moe.experts} experts", lambda c: divides(moe.experts, c.ep))
    yield Rule(
        f"etp divides the experts' width of {moe.expert_ffn_size}",
        lambda c: divides(moe.expert_ffn_size, c.etp),
    )
    if shared := moe.shared_expert_ffn_size:
        yield Rule(f"tp divides the shared experts' width of {shared}", lambda c: divides(shared, c.tp))
    yield Rule("ep x etp divides tp x dp x cp", lambda c: c.tp * c.dp * c.cp % (c.ep * c.etp) == 0)
    yield Rule(
        "experts are split as tensors are (etp = tp), or sequences are split, too (sp)",
        lambda c: (c.etp == c.tp) | (c.sequence_parallel == 1) | (c.tp == 1),
    )
    if not policy.expert_parallel:
        yield Rule(f"{stack} keeps all experts of a layer on every rank (ep = 1)", lambda c: c.ep == 1)
    if policy.expert_tensor_parallel == "tp":
        yield Rule(f"{stack} splits experts as it splits tensors (etp = tp)", lambda c: c.etp == c.tp)
    if policy.needs_sequence_parallel:
        yield Rule(
            f"{stack} splits sequences, too (sp), where it splits tensors beside experts",
            lambda c: (c.tp == 1) | (c.sequence_parallel == 1),
        )


def _job_rules(job: Job) -> Iterator[Rule]:
    devices, batch = job.cluster.devices, job.workload.global_batch_size
    sequence = job.workload.sequence_length
    yield Rule(
        f"tp x pp x dp x cp is the {devices} devices",
        lambda c: np.asarray(c.tp * c.pp * c.dp * c.cp == devices),
    )
    yield Rule(
        f"dp x mbs divides the global batch of {batch} sequences",
        lambda c: divides(batch, c.dp * c.microbatch),
    )
    yield Rule(
        f"sequence parallelism splits the {sequence} tokens evenly over tp > 1 ranks",
        lambda c: (c.sequence_parallel == 0) | ((c.tp > 1) & divides(sequence, c.tp * c.cp)),
    )
    yield Rule(
        "the interleaved schedule needs a pipeline and microbatches in multiples of pp",
        lambda c: (c.schedule != _INTERLEAVED) | ((c.pp > 1) & divides(batch, c.dp * c.microbatch * c.pp)),
    )
    if "zero-bubble" in job.stack.rules.schedules:
        yield Rule(
            "the zero-bubble schedule needs a pipeline", lambda c: (c.schedule != _ZERO_BUBBLE) | (c.pp > 1)
        )


def _stack_rules(job: Job) -> Iterator[Rule]:
    stack, rules = job.stack.title, job.stack.rules
    zeros = ", ".join(map(str, rules.zero_stages))
    yield Rule(f"{stack} has ZeRO stages {zeros}", lambda c: among(c.zero, rules.zero_stages))
    piped = ", ".join(map(str, rules.zero_stages_with_pipeline)) or "none"
    yield Rule(
        f"{stack} runs pipelines with ZeRO stages {piped}",
        lambda c: among(c.zero, rules.zero_stages_with_pipeline) if c.pp > 1 else np.ones(len(c), bool),
    )
    if not rules.tensor_parallel:
        yield Rule(f"{stack} does not split tensors", lambda c: c.tp == 1)
    if not rules.pipeline_parallel:
        yield Rule(f"{stack} has no pipelines", lambda c: np.full(len(c), c.pp == 1))
    if not rules.sequence_parallel:
        yield Rule(f"{stack} has no sequence parallelism", lambda c: np.asarray(c.sequence_parallel == 0))
    schedules = [SCHEDULES.index(s) for s in rules.schedules]
    yield Rule(
        f"{stack} has the schedules {', '.join(rules.schedules)}",
        lambda c: among(c.schedule, schedules),
    )


def _shard_rules(job: Job) -> Iterator[Rule]:
    stack, hybrid = job.stack.title, job.stack.hybrid
    if hybrid is None:
        yield Rule(f"{stack} shares state among all ranks of the data axis", lambda c: c.shard == 0)
        return
    if job.model.moe is not None:
        yield Rule(
            "ep x etp divides tp x shard: experts are spread and split within the ranks that share state",
            lambda c: (c.shard == 0) | (c.tp * c.shard % (c.ep * c.etp) == 0),
        )
    stages = ", ".join(map(str, hybrid.zero_stages))
    yield Rule(
        f"{stack} shares state within part of the data axis with ZeRO stages {stages}",
        lambda c: (c.shard == 0) | among(c.zero, hybrid.zero_stages),
    )
    yield Rule(
        "shard cuts the dp x cp ranks into several groups of several ranks",
        lambda c: (c.shard == 0) | _several_groups(c),
    )


def _several_groups(candidates: Candidates) -> Mask:
    ranks, shard = candidates.dp * candidates.cp, np.maximum(candidates.shard, 1)
    several: Mask = (shard > 1) & (shard < ranks) & (ranks % shard == 0)
    return several


#: Orders in which the pipeline stands between the context and the data axis.
_PARTED: Final[tuple[Order, ...]] = ("tp-cp-pp-dp",)


def _order_rules(job: Job) -> Iterator[Rule]:
    stack, orders = job.stack, job.stack.orders
    yield Rule(f"{stack.title} numbers ranks {' or '.join(orders)}", lambda c: _ordered(c, orders))
    if parted := tuple(order for order in orders if order in _PARTED):
        yield Rule(
            f"ranks that share gradients are neighbours: cp or pp is 1 in the order {', '.join(parted)}",
            lambda c: (c.cp == 1) | (c.pp == 1) | ~_ordered(c, parted),
        )
    plain: tuple[Order, ...] = stack.placement.plain if stack.placement else ()
    if plain:
        yield Rule(
            f"{stack.title} runs the order {', '.join(plain)} with cp = 1 and ep = 1",
            lambda c: ((c.cp == 1) & (c.ep == 1)) | ~_ordered(c, plain),
        )
    if job.model.moe is not None and any(not order.endswith("pp") for order in orders):
        yield Rule(
            "pipelines have the same ranks for experts as for all else: inside the pipeline's axis, those of"
            " experts are as many",
            lambda c: axis_stride(c, "pp") == expert_stride(c, "pp"),
        )


def _ordered(candidates: Candidates, orders: Sequence[Order]) -> Mask:
    return among(candidates.order, [ORDERS.index(order) for order in orders])


def _context_rules(job: Job) -> Iterator[Rule]:
    stack, model, sequence = job.stack, job.model, job.workload.sequence_length
    if stack.context is None:
        yield Rule(f"{stack.title} has no context parallelism", lambda c: c.cp == 1)
        return
    if stack.context.exchange == "all-to-all":
        heads = f"{model.heads} attention heads and the {model.kv_heads} key-value heads"
        yield Rule(
            f"context parallelism by all-to-all gives each rank whole heads: tp x cp divides the {heads}",
            lambda c: (c.cp == 1) | divides(gcd(model.heads, model.kv_heads), c.tp * c.cp),
        )
        yield Rule(
            f"context parallelism splits the {sequence} tokens evenly over cp ranks",
            lambda c: divides(sequence, c.cp),
        )
        return
    yield Rule(
        f"context parallelism splits the {sequence} tokens evenly into 2 cp chunks, two a rank",
        lambda c: (c.cp == 1) | divides(sequence, 2 * c.cp),
    )
    windows = [model.attention_window(layer) or sequence for layer in range(model.layers)]
    if stack.context.exchange == "ring" and min(windows) < sequence:
        yield Rule(
            f"a ring of cp ranks has no sliding windows, and the model has one of {min(windows)} tokens",
            lambda c: c.cp == 1,
        )


def _listed(value: T | tuple[T, ...]) -> tuple[T, ...]:
    return value if isinstance(value, tuple) else (value,)


def _search_rules(job: Job) -> Iterator[Rule]:
    search = job.search
    arrays: dict[str, Callable[[Candidates], Ints]] = {
        "tensor_parallel": lambda c: c.tp,
        "pipeline_parallel": lambda c: np.full(len(c), c.pp),
        "data_parallel": lambda c: c.dp,
        "expert_parallel": lambda c: c.ep,
        "expert_tensor_parallel": lambda c: c.etp,
        "context_parallel": lambda c: c.cp,
        "microbatch_size": lambda c: c.microbatch,
        "virtual_stages": lambda c: c.vpp,
        "zero_stage": lambda c: c.zero,
    }
    for key, of in arrays.items():
        allowed = getattr(search, key)
        if allowed != "any":
            yield _narrowed(key, _listed(allowed), of)
    if search.shard == "all":
        yield Rule("search.shard is all", lambda c: c.shard == 0)
    elif search.shard != "any":
        yield _narrowed("shard", _listed(search.shard), _sharing)
    if search.schedule != "any":
        names = _listed(search.schedule)
        known = tuple(SCHEDULES.index(s) for s in names)
        yield Rule(f"search.schedule allows {', '.join(names)}", lambda c: among(c.schedule, known))
    if search.recompute != "any":
        modes = _listed(search.recompute)
        kept = [0, *(1 + RECOMPUTE.index(mode) for mode in modes)]
        if job.stack.activation_offload is not None:
            yield Rule(
                f"search.recompute allows {', '.join(modes)}, of all layers where activations are offloaded",
                lambda c: among(c.moved, kept),
            )
    if search.order != "any":
        orders: tuple[Order, ...] = _listed(search.order)
        yield Rule(f"search.order allows {', '.join(orders)}", lambda c: _ordered(c, orders))
    if search.sequence_parallel != "any":
        wanted = search.sequence_parallel == "on"
        yield Rule(
            f"search.sequence_parallel is {search.sequence_parallel}",
            lambda c: (c.tp == 1) | ((c.sequence_parallel == 1) == wanted),
        )


def _sharing(candidates: Candidates) -> Ints:
    """Return how many ranks share state; all where ZeRO shares none, which is no choice."""
    ranks = candidates.dp * candidates.cp
    return np.where(candidates.shard > 0, candidates.shard, ranks)


def _narrowed(key: str, allowed: tuple[int, ...], of: Callable[[Candidates], Ints]) -> Rule:
    shown = ", ".join(map(str, allowed))
    return Rule(f"search.{key} allows {shown}", lambda c: among(of(c), allowed))


def broken_rules(job: Job, layout: Layout) -> list[str]:
    """Return the sentences that ``layout`` breaks, empty when it can run.

    Memory and time limits are not rules of this kind: a layout that breaks them can be priced.
    """
    candidates = Candidates.of([layout])
    broken = [r.sentence for r in rules_for(job) if not (r.searched or r.keeps(candidates)[0])]
    own = [rule.sentence for rule in own_rules(job) if breaks(job, rule.relation, layout)]
    return [*dict.fromkeys([*broken, *own]), *_stage_rules(job, layout)]


def _stage_rules(job: Job, layout: Layout) -> Iterator[str]:
    if sum(layout.layers) != job.model.layers:
        yield f"the stages add up to the {job.model.layers} layers"
    yield from _chunk_rules(layout, job.stack.rules.uneven_chunks)
    if not layout.even and not job.stack.rules.uneven_stages:
        yield f"{job.stack.title} splits layers evenly"
    if layout.activation_offload and layout.mode is None:
        yield "all layers are recomputed alike where activations are offloaded"
    if any(f % layout.checkpoint for f in layout.full):
        yield f"checkpoint={layout.checkpoint} divides the layers that each stage recomputes whole"


def _chunk_rules(layout: Layout, uneven: bool) -> Iterator[str]:  # noqa: FBT001 - of the stack
    sentence = f"every stage holds a multiple of vpp={layout.vpp} layers"
    unlike = [i for i, n in enumerate(layout.layers) if n % layout.vpp]
    if unlike and not uneven:
        yield sentence
    elif any(0 < i < layout.pp - 1 or min(chunks_of(layout.layers, layout.vpp)[i]) < 0 for i in unlike):
        yield f"{sentence}; fewer at the model's ends only"
