"""The target ``deepspeed``: the JSON file that ``deepspeed.initialize`` and the Hugging Face Trainer take.

Keys and meanings are those of ``deepspeed/runtime/config.py``, ``runtime/zero/config.py`` and
``runtime/activation_checkpointing/`` of the version that TARGET names. Pipeline stages are an argument of
``PipelineModule``, and recompute is a call of the training program: the file configures both alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.launch.assembly import assembled
from autoplan.launch.bindings.deciding_names import fields_named
from autoplan.launch.bindings.interface import interface, nested, plan_values, target_of
from autoplan.launch.bindings.written_document import (
    KeyEdit,
    WrittenDocument,
    changed_keys,
    key_edits,
    read_yaml,
)
from autoplan.launch.configuration import Configuration, Fields, FileEdit, LaunchFile, Values, Written, stated
from autoplan.launch.frameworks import missing_parts
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.post_training import RL_METHODS

_FILE: Final = "ds_config.json"
_TABLE: Final = interface("deepspeed")
#: Optimizers by ours; an Adam decays weights as AdamW does unless it is told not to.
OPTIMIZERS: Final[Mapping[str, str]] = _TABLE["optimizer"].names
#: Those with an implementation for states in host memory.
_ON_HOST: Final = frozenset({"adamw", "adam", "lion"})
#: Optimizers of bitsandbytes that the Trainer makes beside a file of DeepSpeed.
OF_TRAINER: Final = frozenset({"adamw-8bit"})
BATCHES: Final = ("global_batch_size", "mbs", "steps")


def emit_deepspeed(run: PlannedRun) -> Emission:
    """Return the plan as JSON, its prediction in the notes; raises InexpressibleError for what has no key."""
    job, layout = run.job, run.layout
    text = json.dumps(deepspeed_document(job, layout), indent=2)
    notes = (
        *run.header,
        *_notes(job, layout),
        *missing_parts.stack_note(job, ("deepspeed",), "deepspeed", "DeepSpeed"),
    )
    return Emission((EmittedFile(_FILE, f"{text}\n"),), notes=notes)


def deepspeed_document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the content of the file; raises InexpressibleError for what has no key."""
    refuse_for_zero(job, layout)
    full = layout.mode == "full"
    values = {
        **plan_values(_TABLE, "written", job, layout),
        "steps": missing_parts.microbatches(job, layout),
        "cp": layout.cp if layout.cp > 1 else None,
        "tp": layout.tp if layout.tp > 1 else None,
        job.precision: True,
        "decoupled_decay": False if job.optimizer == "adam" else None,
        "untested_optimizer": True if job.optimizer == "sgd" and layout.zero else None,
        "optimizer_offload": "cpu" if layout.optimizer_offload else None,
        "pinned_offload": layout.optimizer_offload or None,
        "parameter_offload": "cpu" if job.software.offload_parameters else None,
        # The section of recompute stands in the file where layers are recomputed.
        "partitioned_activations": False if full else None,
        "activation_offload": layout.activation_offload if full else None,
    }
    return nested(_TABLE, values)


def deepspeed_section(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the content of the file without recompute, which the Trainer turns on.

    Adapters and choices of software are the caller's, whose keys stand beside the section, and so is an
    optimizer that DeepSpeed lacks: the Trainer makes it where the file has none.
    """
    tested = "adamw" if job.optimizer in OF_TRAINER else job.optimizer
    if tested != job.optimizer and layout.optimizer_offload:
        without = replace(layout, optimizer_offload=False)
        raise InexpressibleError(f"offload of the optimizer states of {job.optimizer}", [without])
    software = SoftwareSpec(offload_parameters=job.software.offload_parameters)
    plain = replace(job, adapters=None, software=software, optimizer=tested)
    document = deepspeed_document(plain, layout)
    document.pop(_TABLE.keys["recompute"], None)
    if tested != job.optimizer:
        section, _, _ = _TABLE.keys["optimizer"].partition(".")
        document.pop(section)
        document[_TABLE.keys["untested_optimizer"]] = True
    return document


def refuse_for_zero(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError for the first part of a plan that ZeRO of DeepSpeed does not have."""
    # Whether the model is built under zero.Init is a matter of the user's program.
    expressed = ("gradients", "offload_parameters", "weights_held")
    missing_parts.refuse_software(job, expressed, rl=RL_METHODS)
    missing_parts.refuse_pipeline(layout, "they are an argument of PipelineModule, not a key of the file")
    missing_parts.refuse_experts(layout)
    missing_parts.refuse_order(layout)
    if layout.sequence_parallel:
        part = "sequence parallelism with tensor parallelism (sp=on)"
        raise InexpressibleError(part, [replace(layout, sequence_parallel=False)])
    if layout.dp_shard:
        part = f"hybrid sharding (dp_shard={layout.dp_shard}): MiCS was removed before DeepSpeed 0.19.8"
        raise InexpressibleError(part, [replace(layout, dp_shard=0)])
    if job.precision not in {"fp32", "bf16", "fp16"}:
        raise InexpressibleError(f"the precision {job.precision}")
    missing_parts.named(job, "optimizer", OPTIMIZERS)
    _refuse_offload(job, layout)
    _refuse_recompute(layout)


def _refuse_offload(job: Job, layout: Layout) -> None:
    without = replace(layout, optimizer_offload=False)
    if job.software.offload_parameters and layout.zero < 3:
        raise InexpressibleError(f"offload of parameters with zero={layout.zero}", [replace(layout, zero=3)])
    if layout.optimizer_offload and layout.zero == 0:
        part = "offload of optimizer states without ZeRO (zero=0)"
        raise InexpressibleError(part, [replace(layout, zero=1), without])
    if layout.optimizer_offload and job.optimizer not in _ON_HOST:
        raise InexpressibleError(f"offload of the optimizer states of {job.optimizer}", [without])
    if layout.activation_offload and (layout.mode != "full" or layout.offload_every > 1):
        full = replace(layout, offload_every=1).with_uniform_recompute("full")
        part = "offload of activations other than the inputs of all recomputed layers (cpu_checkpointing)"
        raise InexpressibleError(part, [full, replace(layout, activation_offload=False)])


def _refuse_recompute(layout: Layout) -> None:
    if layout.mode not in {"none", "full"}:
        part = f"recompute that is selective or of some layers (recompute={layout.recompute})"
        raise InexpressibleError(part, [layout.with_uniform_recompute(mode) for mode in ("none", "full")])
    if layout.recompute_num_layers > 1:
        part = f"units of {layout.recompute_num_layers} recomputed layers"
        raise InexpressibleError(part, [replace(layout, recompute_num_layers=1)])


def _notes(job: Job, layout: Layout) -> list[str]:
    cluster = job.cluster
    notes = [f"start it with: deepspeed --num_gpus {min(cluster.devices, cluster.node.devices)} PROGRAM ..."]
    if layout.mode == "full":
        notes.append(
            "DeepSpeed recomputes what the program asks for: call deepspeed.checkpointing.checkpoint for each"
            " layer, or turn on gradient_checkpointing in the Trainer"
        )
    notes.append("the learning rate and its kin are yours: add them to optimizer.params")
    return notes


#: A section of the top level, which is read from YAML, too.
_IN_YAML: Final = re.compile(r"(?m)^zero_optimization\s*:\s*(?:#.*)?$")


def is_deepspeed(file: LaunchFile) -> bool:
    """Return whether a file is a JSON file of DeepSpeed."""
    signs = (_TABLE.keys.get(sign, sign) for sign in _TABLE.data["signs"])
    if f'"{interface("trainer").keys["mbs"]}"' in file.text:
        return False  # the Trainer's arguments, with DeepSpeed's configuration inside
    if file.name.endswith((".yaml", ".yml")) and _IN_YAML.search(file.text):
        return not re.search(r"(?m)^(?!#)\w*model\w*\s*:", file.text)
    return file.text.lstrip().startswith("{") and any(f'"{sign}"' in file.text for sign in signs)


#: Degrees that a program of its own has arguments for.
_DEGREES: Final = frozenset({"tp", "pp", "cp", "ep"})


def read_deepspeed(file: LaunchFile) -> Configuration:
    """Return what a file says, with ``--name=value`` of the program that it is for; raises SpecError."""
    document = read_yaml(file, _TABLE)
    document.check_sections()
    values = zero_values(document)
    for path, fields in _TABLE.data["undecided"].items():
        if _counts(document, path):
            document.opened |= set(fields)
    for argument in file.arguments:
        fields = _DEGREES.intersection(fields_named(argument.partition("=")[0]))
        document.opened |= fields
        document.notes += [f"{argument} may decide {', '.join(sorted(fields))}: left open"] if fields else []
    _batches(document, file, values)
    document.stop_at_problems()
    document.notes += _unpriced(document, values)
    if document.path("recompute") not in document.entries:
        document.opened.add("recompute")
        document.notes.append("recompute is turned on by the training program, which is not read: left open")
    return assembled("deepspeed", file, values, opened=document.opened, warnings=document.notes)


def _unpriced(document: WrittenDocument, values: Values) -> list[str]:
    """Return notes on what a file says and nothing is priced for.

    Source: DeepSpeed 0.19.8, runtime/zero/config.py, overlap_comm_valid: left out it is on for stage 3 alone.
    """
    notes = [f"{path}: {why}" for path, why in _TABLE.data["aside"].items() if _counts(document, path)]
    stage, overlap = values.get("zero"), document.entries.get("zero_optimization.overlap_comm")
    beside = overlap is not None and str(overlap.value).lower() == "true"
    if stage is not None and stage.value in {1, 2} and not beside:
        notes.append("zero_optimization.overlap_comm is not on: reductions are priced beside backward")
    return notes


def _counts(document: WrittenDocument, path: str) -> bool:
    """Return whether a key is given with a value that does something."""
    entry = document.entries.get(path)
    if entry is None:
        return False
    device = document.given(f"{path}.device")
    if device is not None:
        return bool(device.value != "none")
    if isinstance(entry.value, bool):
        return entry.value
    return not (isinstance(entry.value, int) and entry.value in {0, 1})


def zero_values(document: WrittenDocument) -> Fields:
    """Return the values of all fields but batches that the file or DeepSpeed's defaults give."""
    one, autotp, shard = Written(1, default=True), document.number("tp", least=0), document.number("dp_shard")
    tp = autotp.of(max(1, autotp.value)) if autotp else one
    values = {"tp": tp, "pp": one, **document.bound("cp"), "ep": one}
    values |= {"sp": Written(value=False, default=True), "zero": _stage(document), **stated(dp_shard=shard)}
    if shard is not None:
        document.notes.append(f"{shard.words}: DeepSpeed 0.19.8 refuses MiCS, which was removed")
    rest = [_offload(document), _precision(document), document.bound("parameter_offload")]
    return with_software(values, *rest, _optimizer(document))


def named_deepspeed(document: WrittenDocument, file: LaunchFile, name: str) -> WrittenDocument | None:
    """Return DeepSpeed's file ``name``, without lines, its notes added to ``document``; None for none."""
    text = file.sibling(name)
    if text is None:
        return None
    inner = read_yaml(LaunchFile(name, text), _TABLE)
    inner.check_sections()
    inner.entries = {path: replace(entry, line=None) for path, entry in inner.entries.items()}
    document.notes.append(f"{name}: read with this file")
    return inner


def sharding_of(document: WrittenDocument, inner: WrittenDocument) -> Fields:
    """Return what a file or section of DeepSpeed says of sharding, for the ``document`` that names it."""
    values = zero_values(inner)
    document.problems += inner.problems
    document.notes += [*inner.notes, *_unpriced(inner, values)]
    document.opened |= inner.opened
    names = {"tp", "cp", "zero", "dp_shard", "offload", "optimizer", "software"}
    return {key: written for key, written in values.items() if key in names}


def inner_document(document: WrittenDocument) -> WrittenDocument:
    """Return the mapping ``deepspeed`` of another document as one of DeepSpeed, with its keys checked."""
    inner = WrittenDocument(document.file, table=_TABLE)
    inner.entries |= {
        path.removeprefix("deepspeed."): written
        for path, written in document.entries.items()
        if path.startswith("deepspeed.")
    }
    inner.check_sections()
    return inner


def enabled_precision(inner: WrittenDocument) -> Fields:
    """Return the precision that a file of DeepSpeed turns on by itself."""
    precision = _precision(inner).get("precision")
    return {} if precision is None or precision.default else {"precision": precision}


def with_software(values: Values, *others: Values) -> Fields:
    """Return the values of all, with the choices of software that any of them has.

    >>> from autoplan.launch.frameworks.deepspeed import with_software
    >>> one, other = ({"software": Written({name: True})} for name in ("compile", "pure_bf16"))
    >>> with_software(one, other)["software"].value
    {'compile': True, 'pure_bf16': True}
    """
    joined = dict(values)
    for other in others:
        before = joined.get("software")
        joined |= other
        if before is not None and "software" in other:
            joined["software"] = replace(before, value={**before.value, **other["software"].value})
    return joined


def _stage(document: WrittenDocument) -> Written:
    stage = document.number("zero", least=0)
    if stage is not None and stage.value > 3:
        document.refuse(f"{stage.value} is no ZeRO stage", "zero")
    return stage or Written(0, default=True)


def _offload(document: WrittenDocument) -> Fields:
    device, former = (
        document.text("optimizer_offload", ("none", "cpu", "nvme")),
        document.on("earlier_offload"),
    )
    if device is None and former is not None:
        # The name before 0.4.
        device = former.of("cpu")
    states = device if device is not None and device.value != "none" else None
    if states is not None and states.value == "nvme":
        document.notes.append("states on NVMe are read as states in host memory")
    section, inputs = document.entries.get(document.path("recompute")), document.on("activation_offload")
    recompute = section.of("full") if section else Written("none", default=True)
    moved = {"optimizer": states, "activations": inputs}
    names = [name for name, offloaded in moved.items() if offloaded is not None]
    written = states or inputs
    return {"recompute": recompute, **({"offload": written.of("+".join(names))} if written else {})}


def _precision(document: WrittenDocument) -> Fields:
    """Return the precision; nothing where another program fills it in."""
    values = [
        (name, written)
        for key, name in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"))
        if (written := document.on(key)) is not None
    ]
    if len({name for name, _ in values}) > 1:
        lines = " and ".join(str(written.line) for _, written in values)
        document.refuse(f"bf16 and fp16 are both enabled (lines {lines})", "fp16")
    filled = document.automatic("bf16") or document.automatic("fp16")
    usual = {} if filled else {"precision": Written("fp32", default=True)}
    stated = {"precision": values[0][1].of(values[0][0])} if values else usual
    return stated | document.bound("gradients")


def _optimizer(document: WrittenDocument) -> Fields:
    """Return the optimizer; nothing where the training program has its own."""
    written = document.text("optimizer")
    if written is None:
        return {}
    name = written.value.lower()
    decoupled = document.flag("decoupled_decay")
    if name == "adam" and (decoupled is None or decoupled.value):
        name = "adamw"
    if name not in OPTIMIZERS:
        document.notes.append(f"the optimizer {written.value[:40]!r} is not priced: left open")
        return {}
    return {"optimizer": written.of(name)}


def _batches(document: WrittenDocument, file: LaunchFile, values: Fields) -> None:
    """Add batches and the data-parallel degree: train_batch_size is the product of the other two and dp."""
    batch, mbs, steps = (document.number(key) for key in BATCHES)
    if document.opened & {"tp", "pp", "cp"}:
        values |= {key: one for key, one in (("global_batch_size", batch), ("mbs", mbs)) if one}
        return
    model = values["tp"].value * values["cp"].value
    dp = file.devices // model if file.devices and file.devices % model == 0 else None
    if batch and mbs and steps:
        product = mbs.value * steps.value
        if batch.value % product:
            names = [document.path(name) for name in BATCHES]
            shown = f"{names[1]} {mbs.value} (line {mbs.line})"
            shown += f" x {names[2]} {steps.value} (line {steps.line})"
            sentence = f"{shown} = {product} does not divide {names[0]} {batch.value}"
            document.refuse(sentence, "global_batch_size")
            return
        dp = batch.value // product
        values["dp"] = batch.of(dp)
        if file.devices is None:
            values["devices"] = batch.of(dp * model)
    stated = {"global_batch_size": batch, "mbs": mbs}
    values |= {key: written for key, written in stated.items() if written is not None}
    if dp is not None and not (batch and mbs):
        values |= _filled(document, dp, batch, mbs, steps)


def _filled(
    document: WrittenDocument, dp: int, batch: Written | None, mbs: Written | None, steps: Written | None
) -> Fields:
    """Return the batch or the microbatch that follows; steps that nothing gives are one."""
    if steps is None and any(document.automatic(key) for key in BATCHES):
        return {}
    count = steps.value if steps else 1
    if mbs is not None:
        return {"global_batch_size": Written(mbs.value * count * dp, mbs.line, mbs.words, default=not steps)}
    if batch is None:
        return {}
    if batch.value % (count * dp):
        sentence = f"{count} microbatches of {dp} data-parallel ranks do not divide {batch.value}"
        document.refuse(sentence, "global_batch_size")
        return {}
    return {"mbs": Written(batch.value // (count * dp), batch.line, batch.words, default=not steps)}


def deepspeed_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file that make its layout ``new``; raises InexpressibleError without a key."""
    after, entries = deepspeed_document(job, new), read_yaml(file).entries
    try:
        wanted = list(changed_keys(deepspeed_document(job, old), after))
    except InexpressibleError:
        # Layouts of earlier versions: all that a layout decides is written anew.
        of_layout = _TABLE.data["of_layout"]
        wanted = [edit for edit in changed_keys({}, after) if edit.path.partition(".")[0] in of_layout]
        wanted.append(KeyEdit(_TABLE.keys["dp_shard"], None, removed=True))
    batches = [_TABLE.keys[name] for name in BATCHES]
    if any(edit.path in batches for edit in wanted):
        # DeepSpeed derives the third of these keys from two, and the file may have a batch of its own.
        keys = [key for key in batches if key in entries]
        wanted = [edit for edit in wanted if edit.path not in batches]
        wanted += [KeyEdit(key, after[key]) for key in (keys if len(keys) > 1 else batches)]
    return tuple(key_edits(entries, wanted))


def edits_beside_arguments(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file beside TrainingArguments, which fill in batches that it leaves ``auto``."""
    entries = read_yaml(file).entries
    batches = {_TABLE.keys[name] for name in BATCHES}
    stated = {path for path in batches if path in entries and entries[path].value != "auto"}
    edits = deepspeed_edits(file, job, old, new)
    return tuple(edit for edit in edits if edit.path not in batches or edit.path in stated)


TARGET: Final = target_of(
    _TABLE, emit=emit_deepspeed, recognises=is_deepspeed, read=read_deepspeed, edits=deepspeed_edits
)
