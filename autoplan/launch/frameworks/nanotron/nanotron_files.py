"""The target ``nanotron``: the YAML file of ``run_train.py``.

Keys, defaults and meanings are those of ``src/nanotron/config/`` and ``src/nanotron/parallel/context.py`` of
the version that TARGET names. Gradients of a data-parallel rank are accumulated, ranks are numbered along
tensor, context, data and pipeline parallelism, and the layers of stages follow from the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.errors import AutoplanError
from autoplan.launch.assembly import assembled
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.document_edits import changed_keys, key_edits
from autoplan.launch.frameworks.interpolated_values import overridden
from autoplan.launch.frameworks.missing_parts import microbatches, refuse_order, refuse_software
from autoplan.launch.frameworks.nanotron.balanced_stages import balanced_stages
from autoplan.launch.frameworks.written_document import WrittenDocument, read_yaml
from autoplan.launch.known_models import named_model
from autoplan.launch.target import InexpressibleError, Target
from autoplan.schema.huggingface.model_config import model_from_huggingface
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec

__all__ = ["TARGET", "nanotron_document", "read_nanotron"]

_TOP: Final = frozenset(
    {
        *("general", "parallelism", "model", "tokenizer", "checkpoints", "logging", "metrics_logging"),
        *("tokens", "optimizer", "data_stages", "profiler", "lighteval", "s3_upload"),
    }
)
_PARALLELISM: Final = frozenset(
    {
        *("dp", "pp", "tp", "pp_engine", "tp_mode", "tp_linear_async_communication", "recompute_layer"),
        *("tp_recompute_allgather", "expert_parallel_size", "context_parallel_size"),
        # Of earlier versions.
        *("recompute_granularity", "moe_layer_recompute", "enabled_moe"),
    }
)
_TOKENS: Final = frozenset(
    {
        *("sequence_length", "train_steps", "micro_batch_size", "batch_accumulation_per_replica"),
        *("val_check_interval", "limit_val_batches", "limit_test_batches"),
    }
)
_ENGINES: Final = {"1f1b": "1f1b", "afab": "gpipe"}
_TYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_OPTIMIZERS: Final = {"adamw": "adamw", "sgd": "sgd"}
#: Model classes by the sign in their section.
_FAMILIES: Final = {"is_llama_config": "llama", "is_qwen2_config": "qwen2"}
_MODEL: Final = "model.model_config"
_EXPERTS: Final = f"{_MODEL}.moe_config"


def is_nanotron(file: LaunchFile) -> bool:
    """Return whether a file is one of nanotron."""
    text = file.text
    return all(re.search(rf"(?m)^{section}\s*:", text) for section in ("parallelism", "tokens", "model"))


def read_nanotron(file: LaunchFile) -> Configuration:
    """Return what a YAML file of nanotron says; raises SpecError with all problems."""
    document = read_yaml(file)
    overridden(document, file.arguments)
    document.check_names("", _TOP, "nanotron")
    document.check_names("parallelism", _PARALLELISM, "nanotron", strict=True)
    document.check_names("tokens", _TOKENS, "nanotron", strict=True)
    values = {**_degrees(document), **_training(document)}
    document.stop_at_problems()
    _devices(document, file, values)
    document.stop_at_problems()
    model = _model(document)
    document.stop_at_problems()
    fields, hints = (None, []) if model is None else _described(model)
    if model is not None:
        values |= _stages(model, values, document)
    return assembled("nanotron", file, values, model=fields, warnings=[*document.notes, *hints])


def _degrees(document: WrittenDocument) -> dict[str, Written]:
    degrees = {name: document.number(f"parallelism.{name}") for name in ("dp", "pp", "tp")}
    for name, written in degrees.items():
        if written is None:
            document.refuse("it is missing", f"parallelism.{name}")
    tp = degrees["tp"]
    mode = document.text("parallelism.tp_mode", ("all_reduce", "reduce_scatter"))
    scattered = mode is not None and mode.value == "reduce_scatter" and tp is not None and tp.value > 1
    engine = document.text("parallelism.pp_engine", tuple(_ENGINES))
    experts = document.number("parallelism.expert_parallel_size")
    if experts is not None and experts.value > 1:
        document.refuse(
            "experts are an axis of their own here, which is not read", "parallelism.expert_parallel_size"
        )
    full = document.flag("parallelism.recompute_layer")
    values = {
        **degrees,
        "cp": document.number("parallelism.context_parallel_size") or Written(1, default=True),
        "ep": experts or Written(1, default=True),
        "sp": Written(scattered, mode.line, mode.words) if mode else Written(value=False, default=True),
        "schedule": Written(_ENGINES[engine.value], engine.line, engine.words)
        if engine
        else Written("gpipe", default=True),
        "recompute": Written("full" if full.value else "none", full.line, full.words)
        if full
        else Written("none", default=True),
    }
    pp = degrees["pp"]
    if pp is not None and pp.value == 1:
        values["schedule"] = Written("1f1b", pp.line, pp.words)
    return {key: written for key, written in values.items() if written is not None}


def _training(document: WrittenDocument) -> dict[str, Written]:
    zero = document.number("optimizer.zero_stage", least=0)
    if zero is not None and zero.value > 1:
        document.refuse("nanotron has ZeRO stages 0 and 1", "optimizer.zero_stage")
    kind = document.text("model.dtype", tuple(_TYPES))
    values = {
        "mbs": document.number("tokens.micro_batch_size"),
        "sequence_length": document.number("tokens.sequence_length"),
        "zero": zero,
        "precision": Written(_TYPES[kind.value], kind.line, kind.words)
        if kind
        else Written("bf16", default=True),
        "optimizer": _optimizer(document),
    }
    gradients = document.flag("optimizer.accumulate_grad_in_fp32")
    if gradients is not None:
        gradient_state = {"gradients": "fp32" if gradients.value else "bf16"}
        values["software"] = Written(gradient_state, gradients.line, gradients.words)
    return {key: written for key, written in values.items() if written is not None}


def _optimizer(document: WrittenDocument) -> Written | None:
    written = document.text("optimizer.optimizer_factory.name", ("adamw", "sgd"))
    return Written(_OPTIMIZERS[written.value], written.line, written.words) if written else None


def _devices(document: WrittenDocument, file: LaunchFile, values: dict[str, Written]) -> None:
    """Add the devices, which are the product of the degrees, and the batch of a step."""
    degrees = [values[key] for key in ("tp", "cp", "dp", "pp")]
    count = math.prod(written.value for written in degrees)
    words = " ".join(written.words for written in degrees if written.words)
    if file.devices is not None and file.devices != count:
        document.refuse(f"{words}: {count} devices, and not --devices {file.devices}", "parallelism")
    values["devices"] = Written(count, values["dp"].line, words)
    steps, mbs = document.number("tokens.batch_accumulation_per_replica"), values.get("mbs")
    if steps is not None and mbs is not None:
        batch = steps.value * mbs.value * values["dp"].value
        values["global_batch_size"] = Written(batch, steps.line, f"{mbs.words} {steps.words}")


def _model(document: WrittenDocument) -> ModelSpec | None:
    """Return the model; None, with a note, for a class that is not known."""
    prefix = f"{_MODEL}."
    fields = {
        path.removeprefix(prefix): written.value
        for path, written in document.entries.items()
        if path.startswith(prefix) and "." not in path.removeprefix(prefix)
    }
    family = next((name for sign, name in _FAMILIES.items() if fields.get(sign) is True), None)
    if family is None:
        document.notes.append("the class of the model is not known: name the model in the job")
        return None
    given = {key: value for key, value in fields.items() if value is not None}
    given |= {"model_type": family, "qkv_bias": bool(fields.get("attention_bias")), "sliding_window": None}
    if fields.get("sliding_window_size") is not None:
        document.notes.append("sliding_window_size: the model is read without a window")
    try:
        model = model_from_huggingface(given, name="model-of-nanotron")
    except AutoplanError as error:
        document.refuse(f"no model: {error}", _MODEL)
        return None
    return _with_experts(document, model)


def _with_experts(document: WrittenDocument, model: ModelSpec) -> ModelSpec:
    """Return the model with the experts of its section; their defaults are those of ``MoEConfig``."""
    section = document.entries.get(_EXPERTS)
    if section is None or section.words[-1:] != ":":
        return model
    sizes = {
        "experts": ("num_experts", 8),
        "top_k": ("top_k", 2),
        "expert_ffn_size": ("moe_intermediate_size", 1408),
    }
    moe: dict[str, Any] = {}
    for ours, (theirs, default) in sizes.items():
        written = document.number(f"{_EXPERTS}.{theirs}")
        moe[ours] = written.value if written else default
    shared, width = (
        document.flag(f"{_EXPERTS}.enable_shared_expert"),
        document.number(f"{_EXPERTS}.shared_expert_intermediate_size"),
    )
    if shared is not None and shared.value:
        moe["shared_expert_ffn_size"] = width.value if width else 5632
    layers = document.given(f"{_EXPERTS}.layers")
    if layers is not None and layers.value not in ([-1], list(range(model.layers))):
        document.refuse("experts in some layers alone are not read", f"{_EXPERTS}.layers")
    return ModelSpec.model_validate({**model.model_dump(by_alias=True), "moe": moe})


def _described(model: ModelSpec) -> tuple[Mapping[str, Any] | str | None, list[str]]:
    """Return the name of the entry that a model is, or its description as in a model file."""
    fields = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return named_model({**fields, "source": "model_config of a file of nanotron"})


def _stages(model: ModelSpec, values: Mapping[str, Written], document: WrittenDocument) -> dict[str, Written]:
    pp = values["pp"]
    stages = balanced_stages(model, pp.value)
    if min(stages) < 1:
        shown = "/".join(map(str, stages))
        document.refuse(f"nanotron's balance gives the stages {shown} layers", "parallelism.pp")
        document.stop_at_problems()
    return {"stages": Written(stages, pp.line, pp.words)} if pp.value > 1 else {}


def nanotron_document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of a plan; raises InexpressibleError for the first part that has none."""
    _refuse(job, layout)
    return {
        "parallelism": {
            "dp": layout.dp,
            "pp": layout.pp,
            "tp": layout.tp,
            "context_parallel_size": layout.cp,
            "pp_engine": "afab" if layout.schedule == "gpipe" else "1f1b",
            "tp_mode": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
            "recompute_layer": layout.mode == "full",
        },
        "tokens": {
            "micro_batch_size": layout.microbatch,
            "batch_accumulation_per_replica": microbatches(job, layout),
        },
        "optimizer": {"zero_stage": layout.zero},
    }


def _refuse(job: Job, layout: Layout) -> None:
    refuse_software(job, ("gradients",))
    refuse_order(layout)
    for part, lacking, change in _lacking(layout):
        if lacking:
            raise InexpressibleError(part, [replace(layout, **change)])
    if layout.mode not in {"none", "full"} or layout.recompute_num_layers > 1:
        one = replace(layout, recompute_num_layers=1)
        part = f"recompute that is selective, of some layers or of units (recompute={layout.recompute})"
        raise InexpressibleError(part, [one.with_uniform_recompute(mode) for mode in ("none", "full")])
    stages = balanced_stages(job.model, layout.pp)
    if layout.layers != stages:
        shown = "/".join(map(str, stages))
        none = (0,) * layout.pp
        near = replace(layout, layers=stages, selective=none, full=none) if min(stages) > 0 else None
        part = f"stages of {layout.layers} layers: its balance gives {shown}"
        raise InexpressibleError(part, [near.with_uniform_recompute(layout.mode)] if near else [])


def _lacking(layout: Layout) -> Iterator[tuple[str, bool, dict[str, Any]]]:
    """Yield the parts that nanotron lacks, whether the layout has them, and it without them."""
    yield "virtual stages", layout.vpp > 1, {"vpp": 1, "schedule": "1f1b"}
    other = layout.schedule not in {"1f1b", "gpipe"}
    yield f"the schedule {layout.schedule}", other, {"schedule": "1f1b"}
    yield "ZeRO-2 and ZeRO-3", layout.zero > 1, {"zero": 1, "dp_shard": 0}
    yield "hybrid sharding", layout.dp_shard > 0, {"dp_shard": 0}
    yield "expert parallelism", layout.ep > 1, {"ep": 1}
    yield "experts with a degree of their own", layout.etp != layout.tp, {"expert_tensor": 0}
    yield "offload to host memory", layout.offload != "none", _NOTHING_OFFLOADED


_NOTHING_OFFLOADED: Final[dict[str, Any]] = {"optimizer_offload": False, "activation_offload": False}


def nanotron_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file that make its layout ``new``."""
    del old
    wanted = changed_keys({}, nanotron_document(job, new))
    entries = read_yaml(file).entries
    return tuple(edit for edit in key_edits(entries, wanted) if not _same(edit, entries))


def _same(edit: FileEdit, entries: Mapping[str, Written]) -> bool:
    """Return whether an edit adds a default, or changes nothing but the case of a name."""
    written = entries.get(edit.path)
    if written is None:
        return edit.after in _DEFAULTS
    return isinstance(written.value, str) and edit.after.lower().endswith(f'"{written.value.lower()}"')


_DEFAULTS: Final = frozenset({"context_parallel_size: 1", "recompute_layer: false"})

TARGET: Final = Target(
    name="nanotron",
    framework="nanotron",
    version="2411b02 (April 2026)",
    check="names checked",
    recognises=is_nanotron,
    read=read_nanotron,
    edits=nanotron_edits,
)
