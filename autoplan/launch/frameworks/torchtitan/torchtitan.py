"""The target ``torchtitan``: overrides of a configuration function, as an array of a shell script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.launch.bindings.interface import Binding, plan_values, target_of
from autoplan.launch.configuration import FileEdit, LaunchFile, Values
from autoplan.launch.emitted_text import argument_array, torchrun_words
from autoplan.launch.frameworks import missing_parts
from autoplan.launch.frameworks.torchtitan.override_words import (
    FUNCTION,
    KEYS,
    TABLE,
    function_of,
    is_toml,
    read_overrides,
    read_toml,
)
from autoplan.launch.frameworks.torchtitan.torchtitan_values import (
    even_split,
    is_torchtitan,
    module_names,
    read_torchtitan,
)
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import USUAL_MODES
from autoplan.schema.stage_layers import chunks_of

_FILE: Final = "torchtitan_args.sh"
#: Most layers that embedding or head are tried as.
_MOST_COUNTED: Final = 4
#: The table of degrees, which versions before 0.1 have not.
_PARALLELISM: Final = "[parallelism]"
_Values = dict[str, Any]
_Overrides = Mapping[str, tuple[str, ...]]


def emit_torchtitan(run: PlannedRun) -> Emission:
    """Return the plan as a script of TORCHTITAN_ARGS; raises InexpressibleError for what has no override."""
    job, layout = run.job, run.layout
    groups = {
        "configuration function": model_words(job),
        "layout": tuple(_words(layout_overrides(job, layout)).values()),
        "sequences, formats, compilation and recompute": tuple(
            _words(training_overrides(job, layout)).values()
        ),
    }
    arguments = tuple(word for group in groups.values() for words in group for word in words)
    text = argument_array("TORCHTITAN_ARGS", (*run.header, _usage(job)), groups, {})
    return Emission((EmittedFile(_FILE, text),), arguments, notes=_notes(job), by_arguments=True)


def _usage(job: Job) -> str:
    program = '-m torchtitan.train ... "${TORCHTITAN_ARGS[@]}"'
    return f"usage: source {_FILE}; {torchrun_words(job)} {program}"


def _notes(job: Job) -> tuple[str, ...]:
    missing = (
        f"there is no configuration function for {job.model.name}: add {' and '.join(FUNCTION)} of yours"
    )
    model_notes = () if model_words(job) else (missing,)
    last = "overrides of your own stand before these, whose last word is a subcommand"
    stacks = ("fsdp2", "ddp")
    return (*model_notes, last, *missing_parts.stack_note(job, stacks, "fsdp2", "torchtitan"))


def _words(values: _Values) -> dict[str, tuple[str, ...]]:
    """Return the words of each override by binding, in the order of the table; recompute is a subcommand."""
    return {
        binding.name: _override(binding, values[binding.name])
        for binding in TABLE
        if values.get(binding.name) is not None
    }


def _override(binding: Binding, value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any value of a setting
    if binding.name == "recompute":
        return (f"activation-checkpoint:{value}",)
    if binding.kind == "switch":
        section, _, key = binding.key.partition(".")
        return (f"--{section}.{'' if value else 'no-'}{key}",)
    return (f"--{binding.key}", *map(str, value if isinstance(value, tuple) else (value,)))


def layout_overrides(job: Job, layout: Layout) -> _Values:
    """Return the overrides of degrees, stages, sharding and batches; raises InexpressibleError.

    All degrees are given, since those that are left out are those of the configuration function.
    """
    missing_parts.refuse_order(layout)
    _refuse_expert_degrees(job, layout)
    _refuse_offload(layout)
    values = {**plan_values(TABLE, "layout", job, layout), **_pipeline(job, layout), **_sharding(layout)}
    values |= _batches(job, layout)
    if layout.tp > 1:
        values["sp"] = layout.sequence_parallel
    return values


def _pipeline(job: Job, layout: Layout) -> _Values:
    schedules = TABLE.data["schedules"]
    if layout.schedule not in schedules:
        part = f"its zero-bubble schedules have several virtual stages (schedule={layout.schedule})"
        raise InexpressibleError(part, [replace(layout, schedule="1f1b")])
    if layout.pp == 1:
        return {}
    chunks = chunks_of(layout.layers, layout.vpp)
    split = tuple(chunks[stage][v] for v in range(layout.vpp) for stage in range(layout.pp))
    if min(split) < 0 or 0 in split[1:-1]:
        even = replace(layout, vpp=1, schedule="1f1b")
        raise InexpressibleError(f"stages {layout.layers} in {layout.vpp} virtual stages each", [even])
    # Who reads the overrides knows the layers of a model alone where it has a configuration function.
    equal = len(set(split)) == 1 and layout.vpp <= 2
    counted = _even(split, layout.vpp) if equal or function_of(job.model.name) else {}
    return {"schedule": schedules[layout.schedule], **(counted or {"modules": module_names(split)})}


def _even(split: tuple[int, ...], vpp: int) -> _Values:
    """Return the overrides of a split that torchtitan makes itself; none where it does not."""
    layers, stages = sum(split), len(split)
    for counted in range(_MOST_COUNTED**2):
        first, last = divmod(counted, _MOST_COUNTED)
        each = -(-(layers + first + last) // stages)
        if even_split(layers, stages, first, last) != split:
            continue
        ends = {"first_stage_less": first, "last_stage_less": last}
        # Two virtual stages are what an interleaved schedule has by default.
        if vpp <= 2:
            return ends
        if -(-(layers + first + last) // each) == stages:
            return {**ends, "layers_per_stage": each}
    return {}


def _refuse_expert_degrees(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError where experts are divided in another way than torchtitan has.

    Without expert parallelism they are split as other matrices are; with it they are whole, and tensor- and
    context-parallel ranks hold experts of their own.
    """
    if job.model.moe is None:
        return
    if layout.ep == 1 and layout.etp != layout.tp:
        part = f"experts that are whole under tensor parallelism alone (ep=1, etp={layout.etp})"
        raise InexpressibleError(part, [replace(layout, expert_tensor=0)])
    if layout.ep > 1 and layout.etp != 1:
        part = f"expert parallelism with experts that are split (etp={layout.etp})"
        raise InexpressibleError(part, [replace(layout, expert_tensor=1), replace(layout, ep=1)])
    ranks = (layout.dp_shard or layout.dp * layout.cp) * layout.tp if layout.zero else layout.cp * layout.tp
    if ranks % layout.ep:
        part = f"ep={layout.ep} beyond the {ranks} ranks of one sharded replica"
        unsharded = [replace(layout, dp_shard=0)] if layout.dp_shard else []
        nearest = [*unsharded, replace(layout, ep=1, expert_tensor=0)]
        raise InexpressibleError(part, nearest)


def _sharding(layout: Layout) -> _Values:
    replicate, shard = _refused_or_sizes(layout)
    return {"replicas": replicate, "shards": shard, "resharded": TABLE["resharded"].names.get(layout.zero)}


def _refused_or_sizes(layout: Layout) -> tuple[int, int]:
    """Return the ranks that replicate and those that shard; context-parallel ranks shard as well."""
    if layout.zero == 1:
        part = "ZeRO-1 with FSDP2, which shards gradients at least"
        replicas = replace(layout, zero=0, dp_shard=0, optimizer_offload=False)
        raise InexpressibleError(part, [*(replace(layout, zero=zero) for zero in (2, 3)), replicas])
    if layout.zero == 0:
        if layout.cp > 1:
            part = f"context parallelism without sharding over its ranks (cp={layout.cp}, zero=0)"
            raise InexpressibleError(part, [replace(layout, zero=zero) for zero in (2, 3)])
        return layout.dp, 1
    shard, left = divmod(layout.dp_shard or layout.dp * layout.cp, layout.cp)
    if left or not shard or layout.dp % shard:
        part = f"hybrid sharding inside of context-parallel groups (dp_shard={layout.dp_shard})"
        raise InexpressibleError(part, [replace(layout, dp_shard=0)])
    if shard * layout.cp == 1:
        part = "sharding with nothing to shard over (dp=1, cp=1)"
        alone = replace(layout, zero=0, dp_shard=0, optimizer_offload=False)
        raise InexpressibleError(part, [alone, *missing_parts.with_data_ranks(replace(layout, dp_shard=0))])
    return layout.dp // shard, shard


def _refuse_offload(layout: Layout) -> None:
    if layout.optimizer_offload:
        part = "offload of optimizer states alone: enable_cpu_offload offloads parameters with them"
        raise InexpressibleError(part, [replace(layout, optimizer_offload=False)])
    if layout.activation_offload:
        raise InexpressibleError("offload of activations", [replace(layout, activation_offload=False)])


def _batches(job: Job, layout: Layout) -> _Values:
    """Return the batch of a rank in one pass of the pipeline: all of its microbatches, else one."""
    count = missing_parts.microbatches(job, layout)
    if layout.pp == 1:
        return {"local_batch_size": layout.microbatch}
    return {"local_batch_size": layout.microbatch * count, "mbs": layout.microbatch}


def training_overrides(job: Job, layout: Layout) -> _Values:
    """Return the overrides of sequences, formats, compilation, and recompute; raises InexpressibleError."""
    software = job.software
    missing_parts.refuse_software(job, ("compile", "cuda_graphs", "pure_bf16", "loss"))
    if software.loss not in {None, "chunked"} or software.loss_chunks is not None:
        raise InexpressibleError(f"software.loss: {software.loss}, which the configuration function chooses")
    if job.precision not in TABLE["precision"].names:
        part = f"the precision {job.precision}: converters of the configuration function choose it"
        raise InexpressibleError(part)
    if job.optimizer != "adamw":
        raise InexpressibleError(f"the optimizer {job.optimizer}, which the configuration function creates")
    values = plan_values(TABLE, "training", job, layout)
    values["parameters"] = "bfloat16" if software.pure_bf16 else "float32"
    # Layers are compiled and steps captured as the plan is priced.
    compiled = software.compile if software.compile is not None else job.stack.block.fused_norms
    values |= {"compiled": bool(compiled), "components": "model,loss" if compiled else None}
    if software.cuda_graphs and (layout.pp > 1 or layout.ep > 1):
        raise InexpressibleError("captured steps (software.cuda_graphs) with pipelines or expert parallelism")
    return {**values, "uncaptured": not software.cuda_graphs, "recompute": _recompute(layout)}


def _recompute(layout: Layout) -> str:
    if layout.mode is None:
        part = f"recompute that differs by layer or stage (recompute={layout.recompute})"
        raise InexpressibleError(part, [layout.with_uniform_recompute(mode) for mode in USUAL_MODES])
    if layout.recompute_num_layers > 1:
        part = f"units of {layout.recompute_num_layers} recomputed layers"
        raise InexpressibleError(part, [replace(layout, recompute_num_layers=1)])
    return layout.mode


def model_words(job: Job) -> tuple[tuple[str, ...], ...]:
    """Return the words that name the configuration function of the model; none where there is none."""
    function = function_of(job.model.name)
    return tuple(zip(FUNCTION, function, strict=True)) if function else ()


def torchtitan_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits that make the layout ``new``; raises InexpressibleError for what has no override."""
    before, after = _overrides(job, old), _overrides(job, new)
    if is_toml(file):
        if new.tp > 1 and not new.sequence_parallel:
            raise InexpressibleError("tensor parallelism without sequence parallelism in a TOML file")
        entries = read_toml(file).entries
        changed = _changed(entries, before, after, old, new)
        return tuple(_in_its_tables(file, edit) for edit in _toml_edits(entries, changed))
    entries = read_overrides(file)[0].entries
    return tuple(_script_edits(entries, _changed(entries, before, after, old, new)))


def _overrides(job: Job, layout: Layout) -> dict[str, tuple[str, ...]]:
    """Return the words of each override by its path; the subcommand of recompute is the last one."""
    values = layout_overrides(job, layout) | training_overrides(job, layout)
    return {KEYS[name]: words for name, words in _words(values).items()}


def _changed(
    entries: Values, before: _Overrides, after: _Overrides, old: Layout, new: Layout
) -> dict[str, tuple[str, ...]]:
    """Return the words that change, by path; those to remove are empty."""
    paths = [path for path in dict.fromkeys((*before, *after)) if before.get(path) != after.get(path)]
    if (old.pp > 1) != (new.pp > 1) and KEYS["resharded"] in after and KEYS["resharded"] not in entries:
        # Where a file leaves it open, pipelines decide it.
        paths = [*dict.fromkeys((KEYS["resharded"], *paths))]
    return {path: after.get(path, ()) for path in (*paths, *_batch(entries, after, new))}


def _batch(entries: Values, after: _Overrides, new: Layout) -> Iterator[str]:
    """Yield the path of a batch that would follow otherwise; raises InexpressibleError before 0.1."""
    path, local = KEYS["global_batch_size"], KEYS["local_batch_size"]
    stated = entries.get(path)
    follows = str(int(after[local][1]) * new.dp)
    if follows == after[path][1] or (stated is not None and str(stated.value) != "-1"):
        return
    if local in entries and entries[local].words.startswith("batch_size"):
        raise InexpressibleError(f"accumulated gradients (batches of {follows} follow)")
    yield path


def _script_edits(entries: Values, changed: _Overrides) -> Iterator[FileEdit]:
    for path, words in changed.items():
        entry, text = entries.get(path), shlex.join(words)
        if entry is not None:
            yield FileEdit(entry.words, text, entry.line)
        elif text:
            yield FileEdit("", text)


def _toml_edits(entries: Values, changed: _Overrides) -> Iterator[FileEdit]:
    """Yield edits of lines ``key = value``; a key to add is named with its table."""
    for path, words in changed.items():
        if path == KEYS["sp"]:
            continue
        value = _toml(path, words) if words else ""
        yield from _line(entries, path, value)
        if path == KEYS["recompute"] and value == '"selective"':
            # One of so many layers is what "selective" means there without this.
            yield from _line(entries, KEYS["recompute_option"], '"op"')


def _in_its_tables(file: LaunchFile, edit: FileEdit) -> FileEdit:
    """Return an edit that adds a key as a file of an earlier version calls it; raises InexpressibleError.

    Such a file has degrees in other tables and no table of parallelism.
    """
    table, _, line = edit.after.partition(" ")
    earlier = TABLE.data["earlier_keys"]
    used = any(re.search(rf"(?m)^{name.rpartition('.')[2]}\s*=", file.text) for name in earlier)
    if edit.before or table != _PARALLELISM or _PARALLELISM in file.text or not used:
        return edit
    path = f"{_PARALLELISM[1:-1]}.{line.partition(' ')[0]}"
    names = [name.rpartition(".") for name, now in earlier.items() if now == path]
    named = next((x for x in names if f"[{x[0]}]" in file.text), None)
    if named is None:
        raise InexpressibleError(f"{path}, which the version of the file has not")
    return FileEdit("", f"[{named[0]}] {named[2]} = {line.partition(' = ')[2]}")


def _line(entries: Values, path: str, value: str) -> Iterator[FileEdit]:
    table, _, key = path.rpartition(".")
    entry, text = entries.get(path), f"{key} = {value}" if value else ""
    if entry is not None:
        yield FileEdit(entry.words, text, entry.line)
    elif text:
        yield FileEdit("", f"[{table}] {text}")


def _toml(path: str, words: tuple[str, ...]) -> str:
    """Return the value of an override as TOML has it."""
    if path == KEYS["recompute"]:
        return json.dumps(words[0].partition(":")[2])
    if path == KEYS["modules"]:
        return json.dumps([word.split(",") for word in words[1:]])
    if len(words) == 1:
        return "false" if ".no-" in words[0] else "true"
    return words[1] if words[1].isdigit() else json.dumps(words[1])


TARGET: Final = target_of(
    TABLE, emit=emit_torchtitan, recognises=is_torchtitan, read=read_torchtitan, edits=torchtitan_edits
)
