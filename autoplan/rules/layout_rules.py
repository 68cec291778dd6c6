"""The rules of layouts, each with the sentence that a user reads.

A rule is a predicate over arrays of candidates: the search removes and counts candidates that break it, and
``evaluate`` reports the sentences that a single layout breaks. The last ones are what a fine-tune asks of its
stack: quantised bases, DoRA, paged states, updates in backward, offload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import (
    ANY_RECOMPUTE,
    Candidates,
    Ints,
    ScheduleCode,
    axis_stride,
    expert_stride,
    recompute_code,
)
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.core.parameters import OPTIMIZERS, moe_layer_share
from autoplan.costs.core.scope import microbatches, scope_of
from autoplan.costs.core.sizes import shard_ranks
from autoplan.costs.memory.model_states import host_bytes
from autoplan.costs.memory.offload import host_activation_bytes
from autoplan.rules.rule import Mask, Rule, among, divides
from autoplan.rules.user_constraints import (
    breaks,
    embedding_and_loss_counted,
    lacked_part,
    remainders_of,
    user_rules_of,
)
from autoplan.schema.costmodel.stack import FineTuningPolicy, StackSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, Layout, Order
from autoplan.schema.linear_attention import LinearAttention
from autoplan.schema.recompute import FULL
from autoplan.schema.stage_layers import chunks_of
from autoplan.schema.user_rules.expression import FALSE, Node
from autoplan.units import format_bytes

T = TypeVar("T")


def rules_for(job: Job) -> list[Rule]:
    """Return the rules of ``job``: of its model, devices, workload, stack, search space and user.

    A candidate satisfies a user's rule about single stages if at least one of its layouts does.
    """
    return [
        *rules_before_placement(job),
        *_shard_rules(job),
        *_order_rules(job),
        *memory_rules(job),
        *fine_tuning_rules(job),
        *_search_rules(job),
        *(Rule(user_rule.sentence, _not_broken(job, user_rule.relation)) for user_rule in user_rules_of(job)),
    ]


def rules_before_placement(job: Job) -> list[Rule]:
    """Return the rules of ``job`` that depend neither on the order of ranks nor on the shard size."""
    return [
        *_model_rules(job),
        *_expert_rules(job),
        *_job_rules(job),
        *_stack_rules(job),
        *_context_rules(job),
    ]


def _not_broken(job: Job, relation: Node) -> Callable[[Candidates], Mask]:
    def keeps(candidates: Candidates) -> Mask:
        remainders, numbers = remainders_of(job, relation, candidates)
        kept: Mask = np.array([node != FALSE for node in remainders], dtype=bool)[numbers]
        return kept

    return keeps


def _model_rules(job: Job) -> Iterator[Rule]:
    model, uneven = job.model, job.stack.rules.uneven_chunks
    yield Rule(f"tp divides the {model.heads} attention heads", lambda c: divides(model.heads, c.tp))
    yield Rule(
        f"tp divides the {model.kv_heads} key-value heads, or is a multiple of them",
        lambda c: divides(model.kv_heads, c.tp) | (c.tp % model.kv_heads == 0),
    )
    if model.linear_attention is not None:
        yield from _linear_attention_rules(model.linear_attention)
    if moe_layer_share(model) < 1:
        yield Rule(f"tp divides the MLP width of {model.ffn_size}", lambda c: divides(model.ffn_size, c.tp))
    yield Rule(
        f"pp x vpp is at most the {model.layers} layers",
        lambda c: np.asarray(c.pp * c.vpp <= model.layers) | _embedding_and_loss_counted(job, c),
        searched=uneven,
    )
    one_type = not layer_types_of(model, job.workload.sequence_length).several
    counting = ", or pp x vpp divides them with embedding and loss counted" if uneven and one_type else ""
    yield Rule(
        f"vpp divides the {model.layers} layers{counting}",
        lambda c: divides(model.layers, c.vpp) | _embedding_and_loss_counted(job, c),
        searched=uneven,
    )


def _linear_attention_rules(linear: LinearAttention) -> Iterator[Rule]:
    """Yield the rules of linear attention.

    Heads are divided as in Megatron-LM, megatron/core/ssm/mamba_mixer.py, and megatron/core/transformer/
    transformer_config.py of gated delta nets. Of the stacks only Megatron-LM splits its sequences.
    """
    kinds = {"gated-delta-net": "key heads", "mamba2": "groups"}
    heads, name = linear.key_heads, kinds[linear.kind]
    yield Rule(
        f"tp divides the {heads} {name} of linear attention",
        lambda c: divides(heads, c.tp),
    )
    yield Rule("linear attention is priced without context parallelism (cp = 1)", lambda c: c.cp == 1)


def _embedding_and_loss_counted(job: Job, candidates: Candidates) -> Mask:
    virtual = np.flatnonzero(np.bincount(candidates.vpp)).tolist()
    return among(candidates.vpp, [v for v in virtual if embedding_and_loss_counted(job, candidates.pp, v)])


def _expert_rules(job: Job) -> Iterator[Rule]:
    moe, policy, stack = job.model.moe, job.stack.experts, job.stack.title
    if moe is None or policy is None:
        yield Rule("ep is 1: the model has no experts", lambda c: c.ep == 1)
        yield Rule("etp is tp: the model has no experts", lambda c: c.etp == c.tp)
        return
    yield Rule(f"ep divides the {moe.experts} experts", lambda c: divides(moe.experts, c.ep))
    yield Rule(
        f"etp divides the expert MLP width of {moe.expert_ffn_size}",
        lambda c: divides(moe.expert_ffn_size, c.etp),
    )
    if shared := moe.shared_expert_ffn_size:
        yield Rule(f"tp divides the shared-expert MLP width of {shared}", lambda c: divides(shared, c.tp))
    yield Rule("ep x etp divides tp x dp x cp", lambda c: c.tp * c.dp * c.cp % (c.ep * c.etp) == 0)
    yield Rule(
        "etp other than tp needs sequence parallelism (sp)",
        lambda c: (c.etp == c.tp) | (c.sequence_parallel == 1) | (c.tp == 1),
    )
    if not policy.expert_parallel:
        yield Rule(f"{stack} has no expert parallelism (ep = 1)", lambda c: c.ep == 1)
    if policy.expert_tensor_parallel == "tp":
        yield Rule(f"{stack} has no expert tensor parallelism of its own (etp = tp)", lambda c: c.etp == c.tp)
    if policy.needs_sequence_parallel:
        yield Rule(
            f"{stack} needs sequence parallelism (sp) for tensor parallelism in MoE models",
            lambda c: (c.tp == 1) | (c.sequence_parallel == 1),
        )


def _job_rules(job: Job) -> Iterator[Rule]:
    devices, batch = job.cluster.devices, job.workload.global_batch_size
    sequence = job.workload.sequence_length
    yield Rule(
        f"tp x pp x dp x cp equals the {devices} devices",
        lambda c: np.asarray(c.tp * c.pp * c.dp * c.cp == devices),
    )
    yield Rule(
        f"dp x mbs divides the global batch of {batch} sequences",
        lambda c: divides(batch, c.dp * c.microbatch),
    )
    yield Rule(
        f"sequence parallelism needs tp > 1, and tp x cp divides the {sequence} tokens",
        lambda c: (c.sequence_parallel == 0) | ((c.tp > 1) & divides(sequence, c.tp * c.cp)),
    )
    yield Rule(
        "the interleaved schedule needs pp > 1 and a multiple of pp microbatches",
        lambda c: (
            (c.schedule != ScheduleCode.INTERLEAVED)
            | ((c.pp > 1) & divides(batch, c.dp * c.microbatch * c.pp))
        ),
    )
    if "zero-bubble" in job.stack.rules.schedules:
        yield Rule(
            "the zero-bubble schedule needs pp > 1",
            lambda c: (c.schedule != ScheduleCode.ZERO_BUBBLE) | (c.pp > 1),
        )


def _stack_rules(job: Job) -> Iterator[Rule]:
    stack, rules = job.stack.title, job.stack.rules
    zeros = ", ".join(map(str, rules.zero_stages))
    yield Rule(
        f"{stack} supports ZeRO stages {zeros}", lambda c: among(c.zero, rules.zero_stages) | _unsharded(c)
    )
    piped = ", ".join(map(str, rules.zero_stages_with_pipeline)) or "none"
    yield Rule(
        f"{stack} supports pipeline parallelism with ZeRO stages {piped}",
        lambda c: (
            among(c.zero, rules.zero_stages_with_pipeline) | _unsharded(c)
            if c.pp > 1
            else np.ones(len(c), bool)
        ),
    )
    if not rules.tensor_parallel:
        yield Rule(f"{stack} has no tensor parallelism", lambda c: c.tp == 1)
    if not rules.pipeline_parallel:
        yield Rule(f"{stack} has no pipeline parallelism", lambda c: np.full(len(c), c.pp == 1))
    if not rules.sequence_parallel:
        yield Rule(f"{stack} has no sequence parallelism", lambda c: np.asarray(c.sequence_parallel == 0))
    schedules = [ScheduleCode.of(s) for s in rules.schedules]
    yield Rule(
        f"{stack} supports the schedules {', '.join(rules.schedules)}",
        lambda c: among(c.schedule, schedules),
    )


def _unsharded(candidates: Candidates) -> Mask:
    """Return where nothing is sharded: on one data rank a framework runs without FSDP or ZeRO."""
    unsharded: Mask = (candidates.zero == 0) & candidates.single_data_rank
    return unsharded


def _shard_rules(job: Job) -> Iterator[Rule]:
    stack, hybrid = job.stack.title, job.stack.hybrid_sharding
    if hybrid is None:
        yield Rule(
            f"{stack} shards model states over all data-parallel ranks (no dp_shard)",
            lambda c: c.dp_shard == 0,
        )
        return
    if job.model.moe is not None:
        yield Rule(
            "ep x etp divides tp x dp_shard: expert-parallel groups are inside shard groups",
            lambda c: (c.dp_shard == 0) | (c.tp * c.dp_shard % (c.ep * c.etp) == 0),
        )
    stages = ", ".join(map(str, hybrid.zero_stages))
    yield Rule(
        f"{stack} supports dp_shard with ZeRO stages {stages}",
        lambda c: (c.dp_shard == 0) | among(c.zero, hybrid.zero_stages),
    )
    yield Rule(
        "dp_shard divides the dp x cp data-parallel ranks into at least two groups of at least two",
        lambda c: (c.dp_shard == 0) | _several_groups(c),
    )


def _several_groups(candidates: Candidates) -> Mask:
    ranks, shard = candidates.dp * candidates.cp, np.maximum(candidates.dp_shard, 1)
    several: Mask = (shard > 1) & (shard < ranks) & (ranks % shard == 0)
    return several


#: Orders with the pipeline axis between the context-parallel and the data-parallel axis.
_CP_PP_DP: Final[tuple[Order, ...]] = ("tp-cp-pp-dp",)


def _order_rules(job: Job) -> Iterator[Rule]:
    stack, orders = job.stack, job.stack.orders
    yield Rule(f"{stack.title} supports the rank orders {', '.join(orders)}", lambda c: _ordered(c, orders))
    if separated := tuple(order for order in orders if order in _CP_PP_DP):
        yield Rule(
            f"cp or pp is 1 in the rank order {', '.join(separated)}",
            lambda c: (c.cp == 1) | (c.pp == 1) | ~_ordered(c, separated),
        )
    plain: tuple[Order, ...] = stack.placement.without_cp_ep if stack.placement else ()
    if plain:
        yield Rule(
            f"{stack.title} supports the rank order {', '.join(plain)} with cp = 1 and ep = 1",
            lambda c: ((c.cp == 1) & (c.ep == 1)) | ~_ordered(c, plain),
        )
    if job.model.moe is not None and any(not order.endswith("pp") for order in orders):
        yield Rule(
            "pipeline stages have the same ranks for experts as for dense layers: the product of the degrees"
            " inside the pipeline axis is equal",
            lambda c: axis_stride(c, "pp") == expert_stride(c, "pp"),
        )


def _ordered(candidates: Candidates, orders: Sequence[Order]) -> Mask:
    return among(candidates.order, [ORDERS.index(order) for order in orders])


def _context_rules(job: Job) -> Iterator[Rule]:
    stack, model, sequence = job.stack, job.model, job.workload.sequence_length
    if job.workload.documents:
        yield Rule("packed documents are priced without context parallelism (cp = 1)", lambda c: c.cp == 1)
    if stack.context_parallel is None:
        yield Rule(f"{stack.title} has no context parallelism", lambda c: c.cp == 1)
        return
    if stack.context_parallel.comm_type == "all-to-all":
        heads = f"{model.heads} attention heads and the {model.kv_heads} key-value heads"
        yield Rule(
            f"all-to-all context parallelism (Ulysses) needs tp x cp to divide the {heads}",
            lambda c: (c.cp == 1) | divides(gcd(model.heads, model.kv_heads), c.tp * c.cp),
        )
        yield Rule(
            f"cp divides the {sequence} tokens",
            lambda c: divides(sequence, c.cp),
        )
        return
    yield Rule(
        f"2 x cp divides the {sequence} tokens (context parallelism with load balancing)",
        lambda c: (c.cp == 1) | divides(sequence, 2 * c.cp),
    )
    windows = [model.attention_window(layer) or sequence for layer in range(model.layers)]
    if stack.context_parallel.comm_type == "ring" and min(windows) < sequence:
        yield Rule(
            f"ring context parallelism does not support the sliding window of {min(windows)} tokens",
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
    if search.dp_shard == "all":
        yield Rule("search.dp_shard is all", lambda c: c.dp_shard == 0)
    elif search.dp_shard != "any":
        yield _narrowed("dp_shard", _listed(search.dp_shard), _shard_sizes)
    if search.schedule != "any":
        names = _listed(search.schedule)
        schedules = tuple(ScheduleCode.of(s) for s in names)
        yield Rule(f"search.schedule allows {', '.join(names)}", lambda c: among(c.schedule, schedules))
    if search.recompute != "any":
        modes = _listed(search.recompute)
        allowed_modes = [ANY_RECOMPUTE, *(recompute_code(mode) for mode in modes)]
        if job.stack.activation_offload is not None:
            yield Rule(
                f"search.recompute allows {', '.join(modes)} of all layers with activation offload",
                lambda c: among(c.uniform_recompute, allowed_modes),
            )
    if search.order != "any":
        orders: tuple[Order, ...] = _listed(search.order)
        yield Rule(f"search.order allows {', '.join(orders)}", lambda c: _ordered(c, orders))
    if search.sequence_parallel != "any":
        enabled = search.sequence_parallel == "on"
        yield Rule(
            f"search.sequence_parallel is {search.sequence_parallel}",
            lambda c: (c.tp == 1) | ((c.sequence_parallel == 1) == enabled),
        )


def _shard_sizes(candidates: Candidates) -> Ints:
    """Return the data-parallel shard size of each candidate."""
    ranks = candidates.dp * candidates.cp
    return np.where(candidates.dp_shard > 0, candidates.dp_shard, ranks)


def _narrowed(key: str, allowed: tuple[int, ...], of: Callable[[Candidates], Ints]) -> Rule:
    values = ", ".join(map(str, allowed))
    return Rule(f"search.{key} allows {values}", lambda c: among(of(c), allowed))


def broken_rules(job: Job, layout: Layout) -> list[str]:
    """Return the sentences of the rules that ``layout`` breaks; empty if it can run.

    Limits of memory and time are not among them: a layout beyond these can be evaluated.
    """
    candidates = Candidates.of([layout])
    broken = [r.sentence for r in rules_for(job) if not (r.searched or r.keeps(candidates)[0])]
    of_user = [rule.sentence for rule in user_rules_of(job) if breaks(job, rule.relation, layout)]
    return [*dict.fromkeys([*broken, *of_user]), *_stage_rules(job, layout)]


def _stage_rules(job: Job, layout: Layout) -> Iterator[str]:
    if sum(layout.layers) != job.model.layers:
        yield f"the layers of all stages add up to the {job.model.layers} layers"
    yield from _chunk_rules(layout, job.stack.rules.uneven_chunks)
    if not layout.even and not job.stack.rules.uneven_stages:
        yield f"{job.stack.title} supports even stages only"
    for mode, _ in layout.recomputed:
        if mode not in job.stack.rules.recompute:
            yield f"{job.stack.title} has no {mode} recompute"
        elif part := lacked_part(job, mode):
            yield f"recompute={mode} is of {part}, which the model lacks"
    if layout.activation_offload and layout.mode is None:
        yield "activation offload needs the same recompute mode in all layers"
    if any(n % (unit := layout.recompute_num_layers) for n in layout.counts(FULL)):
        yield f"recompute_num_layers={unit} divides the full-recompute layers of every stage"


def _chunk_rules(layout: Layout, uneven: bool) -> Iterator[str]:  # noqa: FBT001 - of the stack
    sentence = f"the layers of every stage are a multiple of vpp={layout.vpp}"
    chunks = chunks_of(layout.layers, layout.vpp)
    uneven_stages = [i for i, n in enumerate(layout.layers) if n % layout.vpp]
    if uneven_stages and not uneven:
        yield sentence
    elif any(0 < i < layout.pp - 1 or min(chunks[i]) < 0 for i in uneven_stages):
        yield f"{sentence}, except the first and the last"


def memory_rules(job: Job) -> Iterator[Rule]:
    """Yield the rules of ``job`` about recompute units and offload."""
    stack = job.stack
    if not stack.rules.recompute_several_layers:
        yield Rule(
            f"{stack.title} recomputes layer by layer (recompute_num_layers = 1)",
            lambda c: c.recompute_num_layers == 1,
        )
    if stack.optimizer_offload is None:
        yield Rule(f"{stack.title} has no optimizer offload", lambda c: c.optimizer_offload == 0)
    host = job.cluster.node.host.memory.value
    if stack.optimizer_offload is not None:
        on_host = stack.optimizer_offload.optimizers
        if on_host is not None and job.optimizer not in on_host:
            yield Rule(
                f"{stack.title} updates {', '.join(on_host)} on the host, not {job.optimizer}",
                lambda c: c.optimizer_offload == 0,
            )
        yield Rule(
            f"offloaded optimizer states of a node fit in its host memory of {format_bytes(host)}",
            lambda c: _states_fit(job, c, host),
        )
    if OPTIMIZERS[job.optimizer].paged or stack.memory.offload_parameters:
        states = "offloaded model states" if stack.memory.offload_parameters else "pages of optimizer states"
        yield Rule(
            f"{states} of a node fit in its host memory of {format_bytes(host)}",
            lambda c: np.asarray(_host_bytes_of_node(job, c) <= host),
        )
    yield from _activation_rules(job, host)


def _activation_rules(job: Job, host: float) -> Iterator[Rule]:
    stack, policy = job.stack, job.stack.activation_offload
    if policy is None:
        yield Rule(f"{stack.title} has no activation offload", lambda c: ~c.activation_offload)
        return
    if not policy.pipelines:
        yield Rule(
            f"{stack.title} supports activation offload with pp = 1 only",
            lambda c: ~c.activation_offload | (c.pp == 1),
        )
    modes = [recompute_code(mode) for mode in policy.recompute]
    yield Rule(
        f"{stack.title} supports activation offload with recompute={' or '.join(policy.recompute)} of all"
        " layers",
        lambda c: ~c.activation_offload | among(c.uniform_recompute, modes),
    )
    if not policy.partial:
        yield Rule(
            f"{stack.title} supports activation offload of all layers only (offload_every = 1)",
            lambda c: c.offload_every == 1,
        )
    layers = job.model.layers
    yield Rule(
        f"offload_every divides the {layers} layers",
        lambda c: (c.offload_every == 1) | divides(layers, c.offload_every),
    )
    full = recompute_code(FULL)
    yield Rule(
        "recompute_num_layers is 1 for activation offload without full recompute",
        lambda c: ~c.activation_offload | (c.uniform_recompute == full) | (c.recompute_num_layers == 1),
    )
    yield Rule(
        f"offloaded states and activations of a node fit in its host memory of {format_bytes(host)}",
        lambda c: _activations_fit(job, c, host),
    )


def _states_fit(job: Job, candidates: Candidates, host: float) -> Mask:
    fits: Mask = candidates.optimizer_offload == 0
    offloaded = np.flatnonzero(~fits)
    if len(offloaded):
        fits[offloaded] = _host_bytes_of_node(job, candidates.take(offloaded)) <= host
    return fits


def _activations_fit(job: Job, candidates: Candidates, host: float) -> Mask:
    fits: Mask = ~candidates.activation_offload
    offloaded = np.flatnonzero(~fits)
    if len(offloaded):
        offloading = candidates.take(offloaded)
        used = _host_bytes_of_node(job, offloading) + _activations_of_node(job, offloading)
        fits[offloaded] = used <= host
    return fits


def _activations_of_node(job: Job, candidates: Candidates) -> NDArray[np.floating[Any]]:
    """Return the offloaded activations of the first node [byte], with even stages.

    The first node has the first stages, which have the most microbatches in flight. Orders of ranks with more
    stages per node need less.
    """
    pp, devices, node_devices = candidates.pp, job.cluster.devices, job.cluster.node.devices
    even = np.full((len(candidates), pp), job.model.layers / pp)
    of_stages = host_activation_bytes(scope_of(job, candidates), even)
    first = max(1, min(pp, node_devices * pp // devices))
    size: NDArray[np.floating[Any]] = of_stages[:, :first].mean(axis=1) * min(node_devices, devices)
    return size


def _host_bytes_of_node(job: Job, candidates: Candidates) -> NDArray[np.floating[Any]]:
    """Return the offloaded optimizer states of a node [byte], with even stages."""
    scope = scope_of(job, candidates)
    parts = scope.weights
    outside = host_bytes(scope, parts.embedding) + host_bytes(scope, parts.head)
    layers = job.model.layers * host_bytes(scope, parts.layer)
    devices = min(job.cluster.node.devices, job.cluster.devices)
    size: NDArray[np.floating[Any]] = (outside + layers)[:, 0] / candidates.pp * devices
    return size


def missing_fine_tuning(job: Job, stack: StackSpec) -> str | None:
    """Return what of the job's fine-tune ``stack`` has not, in words that follow "has no"; None for nothing.

    >>> job = replace(load_job("llama3-8b-8x-a100"), optimizer="paged-adamw-8bit")
    >>> missing_fine_tuning(job, stack("megatron-core")), missing_fine_tuning(job, stack("torchtune"))
    ('paged optimizer (paged-adamw-8bit)', None)
    """
    policy = stack.fine_tuning or FineTuningPolicy()
    adapters, software = job.adapters, job.software
    wanted = (
        (
            adapters is not None and adapters.base is not None and adapters.base not in policy.bases,
            f"frozen base in {adapters.base if adapters else None}",
        ),
        (adapters is not None and adapters.dora and not policy.dora, "DoRA (adapters.dora)"),
        (
            adapters is not None and adapters.experts and policy.expert_adapters is None,
            "adapters of experts (adapters.experts)",
        ),
        (
            OPTIMIZERS[job.optimizer].paged and not policy.paged_optimizers,
            f"paged optimizer ({job.optimizer})",
        ),
        (
            bool(software.optimizer_in_backward) and not policy.optimizer_in_backward,
            "optimizer in backward (software.optimizer_in_backward)",
        ),
        (
            bool(software.offload_parameters) and not policy.offload_parameters,
            "offload of parameters (software.offload_parameters)",
        ),
    )
    return next((words for lacking, words in wanted if lacking), None)


def has_fine_tuning(job: Job, stack: StackSpec) -> bool:
    """Return whether ``stack`` has all of the job's fine-tune."""
    return missing_fine_tuning(job, stack) is None


def fine_tuning_rules(job: Job) -> Iterator[Rule]:
    """Yield the rules of what the stack has not, and those that its parts bring where it has them."""
    memory = job.stack.memory
    if lacking := missing_fine_tuning(job, job.stack):
        yield Rule(f"{job.stack.title} has no {lacking}", lambda c: np.zeros(len(c), dtype=bool))
    if job.adapters is not None and job.adapters.base is not None:
        yield Rule(
            f"a frozen base in {job.adapters.base} is not split by tensor parallelism (tp = 1)",
            lambda c: c.tp == 1,
        )
    if job.rl is not None:
        yield Rule(
            f"{job.rl.method} is priced with data-parallel ranks alone (tp = pp = cp = ep = 1)",
            lambda c: (c.tp == 1) & (c.cp == 1) & (c.ep == 1) & np.asarray(c.pp == 1),
        )
    if memory.optimizer_in_backward:
        yield Rule(
            "a step has one microbatch with an optimizer in backward, which updates at once:"
            f" mbs x dp = {job.workload.global_batch_size}",
            lambda c: np.asarray(microbatches(job, c) == 1),
        )
    if memory.offload_parameters:
        yield Rule(
            "offloaded parameters are sharded (zero=3, over two ranks or more)",
            lambda c: (c.zero == 3) & (shard_ranks(c) > 1),
        )
