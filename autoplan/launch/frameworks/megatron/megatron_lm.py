"""The target ``megatron-lm``: arguments of ``pretrain_gpt.py`` and its kin, as an array of a shell script.

What Megatron-LM has no argument for is refused. In layout strings of pipelines, such as
``--pipeline-model-parallel-layout 'Et*3|t*4|t*4|t*3L'``, E is the embedding, t a transformer layer, m a layer
of multi-token prediction and L the loss; virtual stages are divided by bars, in the order of layers, ``t*3``
repeats a layer, and ``(tt|)*2`` what is in the parentheses. Source: NVIDIA/Megatron-LM core_v0.19.0,
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autoplan.catalog.programs import program
from autoplan.costs.core.sizes import dropout_masks
from autoplan.launch.bindings.interface import argument_words, plan_values, target_of
from autoplan.launch.configuration import Configuration, FileEdit, LaunchFile
from autoplan.launch.emitted_text import argument_array, torchrun_words
from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun
from autoplan.lazy import Later
from autoplan.schema.costmodel.stack import ExpertPolicy
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, Layout
from autoplan.schema.model import ModelSpec
from autoplan.schema.program import missing_part
from autoplan.schema.recompute import FULL, modules_of
from autoplan.schema.stage_layers import chunks_of, counts_embedding_and_loss

#: Dropout of plans that are priced with its masks: that of GPT-2 and GPT-3, and Megatron-LM's default.
_DROPOUT: Final = 0.1
#: Layers whose activations are not offloaded: TransformerConfig wants fewer offloaded layers than all of
#: them, and the stack's model keeps two.
RESIDENT_LAYERS: Final = 2
#: Numbers of layers with full recompute that are proposed where those of a layout differ.
_BLOCKS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_Values = dict[str, Any]


def words_by_flag(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the words of each argument by its flag, in order."""
    return {words[0]: words for words in argument_words(TABLE, values)}


def model_values(job: Job) -> _Values:
    """Return the values of model and sequences; raises InexpressibleError for what has no argument."""
    model = job.model
    _refuse_missing_parts(job)
    latent = model.mla is not None
    values = plan_values(TABLE, "model", job)
    if not latent and model.kv_heads < model.heads:
        values |= {"grouped_queries": True, "kv_heads": model.kv_heads}
    if not latent and model.head_dim * model.heads != model.hidden_size:
        values["head_dim"] = model.head_dim
    # With latent attention, this is the norm of the latents, which the model has.
    values["qk_norm"] = bool(model.qk_norm or latent)
    if model.sliding_window is not None:
        values["window"] = f"{model.sliding_window.window - 1},0"
    values["max_positions"] = max(model.max_positions or 0, job.workload.sequence_length)
    values[model.activation] = model.activation in FLAGS
    values["no_bias"] = not model.bias.mlp
    values["qkv_bias"] = model.bias.qkv and not model.bias.mlp
    values["untied_embeddings"] = not model.tied_embeddings
    return values | dropout_values(job) | _experts(job)


def dropout_rate(job: Job) -> float:
    """Return the probability of dropout in attention and after each part: none where no mask is priced."""
    return _DROPOUT if dropout_masks(job) else 0.0


def dropout_values(job: Job) -> _Values:
    """Return the values of dropout, which Megatron-LM has at 0.1 unless it is told."""
    return dict.fromkeys(("attention_dropout", "hidden_dropout"), dropout_rate(job))


def arguments_left_out(job: Job) -> tuple[str, ...]:
    """Return the arguments of a model's config.json that no catalogue knows and that change no cost."""
    model, rotary = job.model, job.model.positions == "rope"
    needed = {
        "rope": rotary,
        "rope without latents": rotary and model.mla is None,
        "latents": model.mla is not None,
        "experts": model.moe is not None,
    }
    groups = TABLE.data["left_out"]
    return tuple(flag for group, flags in groups.items() if needed.get(group, True) for flag in flags)


def _experts(job: Job) -> _Values:
    moe, stack = job.model.moe, job.stack.experts
    if moe is None:
        return {}
    # The bias that balances experts belongs to sigmoid scores.
    balanced = moe.router_bias and not job.model.bias.mlp
    capacity = job.routing.capacity_factor
    return {
        "shared_expert_ffn_size": moe.shared_expert_ffn_size or None,
        "expert_layers": _frequency(job.model),
        "router_score": "sigmoid" if balanced else None,
        "router_bias": balanced,
        "capacity_factor": None if capacity is None else f"{capacity:g}",
        "padded_experts": job.routing.padded,
        "grouped_gemm": stack is not None and stack.grouped_gemm,
        **_dispatch(stack),
    }


def _dispatch(experts: ExpertPolicy | None) -> _Values:
    """Return how tokens come to their experts, as the plan is priced."""
    if experts is None:
        return {"dispatcher": "alltoall"}
    return {
        "dispatcher": "flex" if experts.dispatch == "hierarchical" else "alltoall",
        "fused_permute": experts.permute_fusion,
    }


def _frequency(model: ModelSpec) -> str | None:
    """Return which layers have experts; None where all do."""
    layers = [int(model.is_moe_layer(layer)) for layer in range(model.layers)]
    if all(layers):
        return None
    first = layers.index(1)
    if all(layers[first:]):
        return f"([0]*{first}+[1]*{len(layers) - first})"
    return f"[{','.join(map(str, layers))}]"


def _refuse_missing_parts(job: Job) -> None:
    """Raise InexpressibleError for the first part of ``job`` that Megatron-LM's GPT model does not have."""
    (way,) = program("megatron-lm").ways
    part = missing_part(job, way.without)
    if part is None and job.model.linear_attention is not None:
        part = "linear attention"
    if part is not None:
        raise InexpressibleError(f"{part} (in {job.model.name})")


def layout_values(job: Job, layout: Layout) -> _Values:
    """Return the values of ``layout``; raises InexpressibleError for the first part that has none."""
    if not layout.sequence_parallel and layout.tp > 1 and job.model.moe is not None:
        part = "tensor parallelism of a model with experts needs sequence parallelism (sp=on)"
        raise InexpressibleError(part, [replace(layout, sequence_parallel=True)])
    return {
        **plan_values(TABLE, "layout", job, layout),
        **_stages(layout),
        **_context(job, layout),
        **_expert_degrees(job, layout),
        **_order(layout),
        **_recompute(layout),
        **_sharding(layout),
        **_offload(job, layout),
    }


def _stages(layout: Layout) -> _Values:
    """Return the values of the schedule and of the layers of stages and virtual stages."""
    if layout.schedule in {"gpipe", "zero-bubble"}:
        part = f"it has no {layout.schedule} schedule (schedule={layout.schedule})"
        raise InexpressibleError(part, [replace(layout, schedule="1f1b")])
    stages, vpp, layers = layout.layers, layout.vpp, sum(layout.layers)
    virtual = {"vpp": vpp} if vpp > 1 else {}
    if len(set(stages)) == 1 and stages[0] % vpp == 0:
        return virtual
    if layout.even and counts_embedding_and_loss(layers, layout.pp, vpp) and layout.pp > 1:
        # Embedding and loss, or the loss, count as layers of virtual stages.
        return {"embedding_counted": -layers % vpp == 2, "loss_counted": True, "vpp": vpp}
    ends = _uneven_ends(stages, vpp)
    if ends:
        return ends | virtual
    if any(n < 0 for stage in chunks_of(stages, vpp) for n in stage):
        # The layout string cannot hold such virtual stages.
        raise InexpressibleError(f"stages {stages} do not have {vpp} virtual stages each")
    return {"stages": layout_text(stages, vpp)}


def _uneven_ends(stages: tuple[int, ...], vpp: int) -> _Values:
    """Return the values of first and last stages unlike the others; none if these do not suffice."""
    if len(stages) < 2 or any(n % vpp for n in stages):
        return {}
    first, last = {"first_stage": stages[0]}, {"last_stage": stages[-1]}
    if len(set(stages[1:])) == 1:
        return first
    if len(set(stages[:-1])) == 1:
        return last
    return first | last if len(set(stages[1:-1])) == 1 else {}


def _context(job: Job, layout: Layout) -> _Values:
    policy = job.stack.context_parallel
    if layout.cp == 1 or policy is None:
        return {}
    return {"cp_comm": TABLE["cp_comm"].names[policy.comm_type]}


def _expert_degrees(job: Job, layout: Layout) -> _Values:
    if job.model.moe is None:
        return {}
    return {"ep": layout.ep, "etp": layout.etp if layout.etp != layout.tp else None}


def _order(layout: Layout) -> _Values:
    if layout.order == ORDERS[0]:
        return {}
    if layout.order != "tp-cp-pp-dp":
        nearest = [replace(layout, order=order) for order in ORDERS[:2]]
        raise InexpressibleError(f"it does not number ranks in the order {layout.order}", nearest)
    if layout.cp > 1 or layout.ep > 1:
        part = f"the rank order {layout.order} with context or expert parallelism"
        raise InexpressibleError(part, [replace(layout, order=ORDERS[0])])
    return {"order": True}


def _recompute(layout: Layout) -> _Values:
    """Return the values of recompute: of all layers, or full recompute of the first of each stage."""
    unit, core = layout.recompute_num_layers, TABLE["recompute_modules"].names.get(layout.mode)
    modules = (core,) if core else modules_of(layout.mode or "none")
    if modules:
        return {"recompute": "selective", "recompute_modules": modules}
    if layout.mode == "full":
        return _full("uniform", unit)
    if layout.mode == "none":
        return {}
    count = _blocks(layout)
    if count is None or unit > 1:
        part = f"recompute that differs by layer or stage (recompute={layout.recompute})"
        raise InexpressibleError(part, _alike_recompute(layout))
    return _full("block", count)


def _full(method: str, count: int) -> _Values:
    return {"recompute": "full", "recompute_method": method, "recompute_num_layers": count}


def _blocks(layout: Layout) -> int | None:
    """Return the layers of each virtual stage with full recompute; None where stages differ in them."""
    if any(mode != FULL for mode, _ in layout.recomputed):
        return None
    chunks = chunks_of(layout.layers, layout.vpp)
    for count in range(1, max(map(max, chunks)) + 1):
        if all(
            sum(min(count, n) for n in stage) == f
            for stage, f in zip(chunks, layout.counts(FULL), strict=True)
        ):
            return count
    return None


def _alike_recompute(layout: Layout) -> list[Layout]:
    """Return layouts with recompute that blocks express, the one that recomputes least first."""
    single = replace(layout, recompute_num_layers=1)
    chunks = chunks_of(layout.layers, layout.vpp)
    blocks = [
        single.with_recompute({FULL: [sum(min(count, n) for n in stage) for stage in chunks]})
        for count in _BLOCKS
        if count <= max(map(max, chunks))
    ]
    return [*(layout.with_uniform_recompute(mode) for mode in ("none", "selective")), *blocks]


def _sharding(layout: Layout) -> _Values:
    if layout.zero == 0:
        return {}
    values: _Values = {"distributed_optimizer": True}
    if layout.zero > 1:
        # Megatron-FSDP takes no other format of checkpoints.
        strategy = TABLE["sharding"].names[layout.zero]
        values |= {"megatron_fsdp": True, "sharding": strategy, "checkpoint_format": "fsdp_dtensor"}
    if layout.dp_shard:
        values["optimizer_instances"] = layout.dp * layout.cp // layout.dp_shard
    return values


def _offload(job: Job, layout: Layout) -> _Values:
    values: _Values = {"optimizer_offload_fraction": 1.0} if layout.optimizer_offload else {}
    if not layout.activation_offload:
        return values
    without = replace(layout, activation_offload=False)
    if layout.pp > 1 or layout.mode != "none":
        part = "offload of activations with pipelines or recompute"
        raise InexpressibleError(part, [without])
    layers, every = job.model.layers, layout.offload_every
    count = layers - RESIDENT_LAYERS if every == 1 else layers // every
    if not 0 < count < layers:
        raise InexpressibleError(f"offload of activations of {count} of {layers} layers", [without])
    return {**values, "activation_offload": count}


def training_values(job: Job, layout: Layout) -> _Values:
    """Return the values of precision, optimizer, overlap; raises InexpressibleError for what has none."""
    _refuse_software(job)
    values = {**TABLE.data["precisions"][job.precision], **_formats(job), **_optimizer(job, layout)}
    overlap = job.stack.overlap
    reduces = bool(overlap.gradient_reduce) and layout.dp * layout.cp > 1
    values["overlapped_reduce"] = reduces
    if job.software.tp_comm_overlap and layout.tp > 1 and layout.sequence_parallel:
        values["tp_comm_overlap"] = True
    values["overlapped_gather"] = bool(reduces and overlap.parameter_gather and layout.zero)
    return values


def _formats(job: Job) -> _Values:
    """Return formats of weights and gradients that a plan is priced with, and kernels that a job chose."""
    memory, software = job.stack.memory, job.software
    eighths = software.fp8_weights or memory.parameter_bytes == 1
    name = "fp4_weights" if job.precision == "nvfp4" else "fp8_weights"
    mixed = job.precision not in {"fp32", "fp16"}
    return {
        name: bool(eighths),
        "bf16_gradients": mixed and memory.gradient_bytes == 2,
        "fp32_gradients": mixed and memory.gradient_bytes == 4,
        "fused_loss": software.loss == "fused",
        "attention_kernels": TABLE["attention_kernels"].names.get(software.attention or ""),
    }


def _optimizer(job: Job, layout: Layout) -> _Values:
    name = job.optimizer
    optimizers, moments = TABLE["optimizer"].names, TABLE["moments"].names
    if name not in optimizers:
        raise InexpressibleError(f"the optimizer {name}: its Adam decays weights as adamw does")
    aware = name in moments or layout.optimizer_offload
    if aware and layout.zero == 0:
        part = "8-bit, 16-bit or offloaded optimizer states without the distributed optimizer (zero=0)"
        raise InexpressibleError(part, [replace(layout, zero=1)])
    if aware and optimizers[name] != "adam":
        part = f"offload of the optimizer states of {name}"
        raise InexpressibleError(part, [replace(layout, optimizer_offload=False)])
    if layout.zero > 1 and optimizers[name] not in {"adam", "sgd"}:
        part = f"Megatron-FSDP (zero={layout.zero}) with {name}"
        raise InexpressibleError(part, [replace(layout, zero=1, dp_shard=0)])
    both = dict.fromkeys(("moments", "second_moments"), moments.get(name))
    return {"optimizer": optimizers[name], "precise_optimizer": aware, **both}


def _refuse_software(job: Job) -> None:
    """Raise InexpressibleError for choices of a job that no argument makes."""
    software = job.software
    parts = {
        "low-rank adapters": job.adapters is not None,
        "torch.compile of the model (software.compile)": software.compile is True,
        "parameters and states in bf16 alone (software.pure_bf16)": software.pure_bf16 is True,
        f"a loss by parts (software.loss: {software.loss})": software.loss in {"chunked", "tiled"},
        "deterministic kernels (software.deterministic)": software.deterministic is True,
        "16-bit weights in 8-bit formats under fp8 of another precision": (
            bool(software.fp8_weights) and job.precision not in {"fp8", "mxfp8", "nvfp4"}
        ),
    }
    for part, missing in parts.items():
        if missing:
            raise InexpressibleError(part)


_MOST: Final = 100_000
_REPEATED: Final = (re.compile(r"\(([^()]+)\)\*([0-9]{1,6})"), re.compile(r"(.)\*([0-9]{1,6})"))


def layout_text(stages: Sequence[int], vpp: int) -> str:
    """Return the layout of pipeline stages with so many layers, in ``vpp`` virtual stages each.

    >>> layout_text((3, 4, 4, 3), 1)
    'Et*3|t*4|t*4|t*3L'
    >>> layout_text((3, 4, 3), 2)
    'Et|tt|tt|tt|tt|tL'
    """
    chunks = chunks_of(stages, vpp)
    parts = [_layers(chunks[stage][v]) for v in range(vpp) for stage in range(len(stages))]
    return f"E{'|'.join(parts)}L"


def _layers(count: int) -> str:
    return f"t*{count}" if count > 2 else "t" * count


def chunks_in(text: str) -> list[str]:
    """Return the virtual stages of a layout, with every repetition written out.

    >>> chunks_in("Et*2|(t|)*2,mL")
    ['Ett', 't', 't', 'mL']

    Raises ValueError for what is no layout.
    """
    written = text.replace(",", "")
    for pattern in _REPEATED:
        counts = [int(match[2]) * len(match[1]) for match in pattern.finditer(written)]
        if sum(counts) > _MOST:
            raise ValueError(f"it repeats more than {_MOST} layers")
        written = pattern.sub(lambda match: match[1] * int(match[2]), written)
    unknown = sorted(set(written) - set("ELtm|"))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of E, L, t, m and |")
    if (
        not written.startswith("E")
        or not written.endswith("L")
        or written.count("E") + written.count("L") != 2
    ):
        raise ValueError("it must begin with one E (embedding) and end with one L (loss)")
    return written.split("|")


_FILE: Final = "megatron_args.sh"
#: What reads and edits files, which a plan that is written does without.
_FILES: Final = "autoplan.launch.frameworks.megatron.reading"
_RECOGNISES: Final[Later[[LaunchFile], bool]] = Later(_FILES, "is_megatron_file")
_READ: Final[Later[[LaunchFile], Configuration]] = Later(_FILES, "read_megatron_file")
_EDITS: Final[Later[[LaunchFile, Job, Layout, Layout], tuple[FileEdit, ...]]] = Later(_FILES, "edited_file")


def emit_megatron(run: PlannedRun) -> Emission:
    """Return the plan as a script of MEGATRON_ARGS; raises InexpressibleError for what has no argument."""
    job, layout = run.job, run.layout
    groups = {
        "model and sequences": model_values(job),
        "layout": layout_values(job, layout),
        "precision, optimizer and overlap": training_values(job, layout),
    }
    words = {title: tuple(words_by_flag(values).values()) for title, values in groups.items()}
    environment = {} if layout.zero > 1 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    arguments = tuple(word for group in words.values() for argument in group for word in argument)
    text = argument_array("MEGATRON_ARGS", (*run.header, _usage(job), *_left_out(job)), words, environment)
    return Emission((EmittedFile(_FILE, text),), arguments, environment, _notes(job), by_arguments=True)


def _usage(job: Job) -> str:
    program = 'pretrain_gpt.py "${MEGATRON_ARGS[@]}"'
    return f"usage: source {_FILE}; {torchrun_words(job)} {program} ..."


def _left_out(job: Job) -> tuple[str, ...]:
    """Return the line of the header on arguments of the model that the file does not hold."""
    names = " ".join(arguments_left_out(job))
    return (f"not in this file, as the model's own config.json has them: {names}",)


def _notes(job: Job) -> tuple[str, ...]:
    if job.stack.name.startswith("megatron"):
        return ()
    return (
        (
            f"the prediction is one for {job.stack.title}: set `stack: megatron-core` in the job to plan for"
            " Megatron-LM"
        ),
    )


TARGET: Final = target_of(TABLE, emit=emit_megatron, recognises=_RECOGNISES, read=_READ, edits=_EDITS)
