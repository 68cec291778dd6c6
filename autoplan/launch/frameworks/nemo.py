"""The target ``nemo``: YAML files of NeMo 1, of its launcher and of NeMo 2, and overrides in shell scripts.

Keys and defaults are those of NeMo 1's ``MegatronGPTModel`` (r2.0.0) and of NeMo 2's ``MegatronStrategy``.
What a shell script overrides belongs to a file or a recipe that is elsewhere, so that the rest stays open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.deciding_names import may_decide
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, FileEdit, LaunchFile, Values, Written
from autoplan.launch.frameworks.interpolated_values import OVERRIDE, overridden, resolved
from autoplan.launch.frameworks.megatron.argument_keys import (
    Key,
    add_key,
    key_of,
    keyed_edits,
    keyed_error,
    keyed_text,
    keys_of,
    refuse_misspelt,
)
from autoplan.launch.frameworks.megatron.arguments import FLAGS, Arguments
from autoplan.launch.frameworks.megatron.reading import configured
from autoplan.launch.frameworks.python_recipes import is_python, read_recipe
from autoplan.launch.scripts.pieces import Unknown, Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import training_command
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

_NEMO: Final = interface("nemo").data
#: Keys of NeMo 1 and of NeMo 2 by path, and all that are known.
NEMO_KEYS: Final[Mapping[str, Key]] = keys_of(_NEMO["keys"])
RECIPE_KEYS: Final[Mapping[str, Key]] = keys_of(_NEMO["recipe_keys"])
_KNOWN: Final[Mapping[str, object]] = {**NEMO_KEYS, **RECIPE_KEYS, **dict.fromkeys(_NEMO["special_keys"])}
#: The key of NeMo 1 that says whether layers are recomputed in whole or in part.
_GRANULARITY: Final = next(path for path, name in _NEMO["keys"].items() if name == "recompute")
#: Where a launcher or a test puts the keys of NeMo.
_WRAPPED: Final = ("MODEL_ARGS", "training")
_SCRIPT: Final = re.compile(r"\bnemo\s+llm\s+(?:pretrain|finetune)\b|megatron_gpt_\w+\.py")
_YAML: Final = re.compile(r"(?m)^\s+(?:trainer\.strategy\.)?(?:tensor|pipeline)_model_parallel_size\s*:")
#: Sections of NeMo 1 besides its trainer: a model with batches, and what writes checkpoints and logs.
_MICROBATCH: Final = next(path for path, name in _NEMO["keys"].items() if name == "mbs").rpartition(".")[2]
_MODEL: Final = re.compile(rf"(?m)^model\s*:[^\n]*\n(?:[ \t#][^\n]*\n|\n)*?\s+{_MICROBATCH}\s*:")
_MANAGED: Final = re.compile(r"(?m)^exp_manager\s*:")
#: Values of keys that are an argument, and of its absence.
_SPECIAL: Final = {
    f"{prefix}{FLAGS['distributed_optimizer']}": {"model.optim.name": _NEMO["sharded_optimizer"][sharded]}
    for prefix, sharded in (("", True), ("no ", False))
}


#: Sections of verl, whose engine for rollouts has degrees by NeMo's names.
_ROLLOUTS: Final = re.compile(r"(?m)^(?:actor_rollout_ref|rollout)\s*:")


def is_nemo(file: LaunchFile) -> bool:
    """Return whether a file is one of NeMo: a YAML file, or a script that starts its programs."""
    if is_python(file):
        return "megatron.bridge" not in file.text
    if _is_script(file):
        return _SCRIPT.search(file.text) is not None and re.search(r"[\w.]+\.\w+=", file.text) is not None
    if _ROLLOUTS.search(file.text) is not None:
        return False
    signs = _YAML.search(file.text) or (_MODEL.search(file.text) and _MANAGED.search(file.text))
    return signs is not None and re.search(r"(?m)^\s*trainer[.:]", file.text) is not None


def _is_script(file: LaunchFile) -> bool:
    return (file.values is None and file.text.startswith("#!")) or _SCRIPT.search(file.text) is not None


def read_nemo(file: LaunchFile) -> Configuration:
    """Return what a file of NeMo says; raises SpecError with all problems."""
    if is_python(file):
        return read_recipe("nemo", file)
    document, complete = _document(file)
    recipe = any(path in document.entries for path in RECIPE_KEYS)
    built = any(path.endswith("_target_") for path in document.entries)
    # Programs that train on take degrees and sizes of the checkpoint that they load.
    loaded = not recipe and not any(_NEMO["keys"].get(path) in {"tp", "pp"} for path in document.entries)
    if loaded:
        document.entries = {
            path: entry for path, entry in document.entries.items() if "${" not in str(entry.value)
        }
    arguments = Arguments(file.name, notes=document.notes)
    refuse_misspelt(arguments, document.entries, _KNOWN, "NeMo")
    _leave_open(document, arguments)
    aside = _NEMO["beside_selective"] if _is_selective(document) else ()
    for path, key in (RECIPE_KEYS if recipe else NEMO_KEYS).items():
        if path in document.entries and path not in aside:
            add_key(arguments, key, path, _known(document, path))
    _add_special_keys(document, arguments)
    devices = _devices(document)
    arguments.problems += document.problems
    try:
        arguments.stop_at_problems()
        self_contained = complete and (built or (not recipe and not loaded))
        configuration = configured(
            file,
            arguments,
            devices,
            (),
            "nemo",
            complete=self_contained,
            described=not recipe,
            more=_adapters(document, arguments),
        )
    except SpecError as error:
        raise keyed_error(error, RECIPE_KEYS if recipe else NEMO_KEYS) from error
    return _named(configuration, recipe=recipe, self_contained=self_contained)


def _named(configuration: Configuration, *, recipe: bool, self_contained: bool) -> Configuration:
    """Return a configuration whose warnings have keys, and say what a recipe decides."""
    keys = RECIPE_KEYS if recipe else NEMO_KEYS
    warnings = [keyed_text(warning, keys) for warning in configuration.warnings]
    if not self_contained:
        warnings.append("the recipe or file that is overridden has the rest, which is not read")
    elif recipe:
        warnings.append("the model is that of a class of NeMo: name it in the job")
    return replace(configuration, warnings=tuple(warnings))


def _leave_open(document: WrittenDocument, arguments: Arguments) -> None:
    """Leave the fields open that keys of the model or the trainer may decide which are not read."""
    for path, written in document.entries.items():
        section, _, name = path.rpartition(".")
        idle = path in _NEMO["idle_at_one"] and written.value == 1
        if section in _NEMO["deciding_sections"] and path not in _KNOWN and not idle:
            fields = may_decide(name, written.value)
            if fields:
                arguments.leave_open(fields, written.words, written.line)


def _is_selective(document: WrittenDocument) -> bool:
    """Return whether NeMo 1 recomputes selectively, where it does not use a method and a number of layers."""
    written = document.given(_GRANULARITY)
    return written is not None and written.value == "selective"


def _known(document: WrittenDocument, path: str) -> Written:
    """Return the value at a path; a reference to what the file does not say is refused."""
    written = document.entries[path]
    if isinstance(written.value, str) and "${" in written.value:
        document.text(path)
        return written.of(None)
    return written


def _document(file: LaunchFile) -> tuple[WrittenDocument, bool]:
    """Return the values of a file by path, and whether it has all values that are given."""
    if file.values is None and _is_script(file):
        return _overrides(file), False
    document = read_yaml(file)
    prefix = _prefix(document.entries)
    document.entries = {path.removeprefix(prefix): written for path, written in document.entries.items()}
    overridden(document, file.arguments)
    return resolved(document, file, _WRAPPED), True


def _prefix(entries: Values) -> str:
    """Return what the paths of NeMo's keys begin with in a file of a launcher or a test."""
    keys = ("trainer", "trainer.devices", "trainer.num_nodes")
    return next((f"{w}." for w in _WRAPPED if any(f"{w}.{key}" in entries for key in keys)), "")


def _overrides(file: LaunchFile) -> WrittenDocument:
    """Return the values that a script overrides."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    words, _ = training_command(script, _is_override)
    words += [Word(text, 0) for text in file.arguments]
    document = WrittenDocument(file.name, notes=list(script.notes))
    for word in words:
        match = OVERRIDE.fullmatch(word.text)
        if match is not None and match[1] in _KNOWN and word.unknown is not None:
            document.problems.append(Problem(_why(word.unknown), match[1], file.name, word.line or None))
        elif match is not None:
            overridden(document, [word.text])
            value = document.entries[match[1]].value if match[1] in document.entries else None
            document.entries[match[1]] = Written(value, word.line or None, word.text)
    if not any(path in _KNOWN for path in document.entries) and not document.problems:
        raise SpecError([Problem("there are no overrides of NeMo", "script", file.name)])
    return resolved(document, file, _WRAPPED)


def _is_override(name: str) -> bool:
    return name.lstrip("+~") in _KNOWN


def _why(unknown: Unknown) -> str:
    do = f"give --set {unknown.name}=VALUE" if unknown.name else "give it with --arg"
    return f"its value depends on {unknown.reason} (line {unknown.line}): {do}"


def _add_special_keys(document: WrittenDocument, arguments: Arguments) -> None:
    """Add the arguments that follow from keys which are no arguments themselves."""
    for path in ("trainer.precision", "trainer.plugins.precision"):
        _add_switch(document, arguments, path, "precisions")
    _add_switch(document, arguments, "model.activation", "activations")
    norm = _chosen(document, "model.normalization", "norms")
    if norm is not None:
        add_key(arguments, key_of("norm"), "model.normalization", norm)
    _optimizer(document, arguments)
    _fp8(document, arguments)
    _fsdp(document, arguments)
    for path in _NEMO["lengths"]:
        length = document.given(path)
        if length is not None and not (
            arguments.has("encoder_sequence_length") or arguments.has("sequence_length")
        ):
            add_key(arguments, key_of("sequence_length"), path, length)
    master = document.flag("model.megatron_amp_O2")
    if master is not None and not master.value and arguments.has("bf16"):
        arguments.notes.append(f"{master.words}: parameters stay in fp32 under autocast, which is not priced")


def _chosen(document: WrittenDocument, path: str, table: str) -> Written | None:
    """Return what ``table`` has for the name at ``path``; a name that it lacks is refused."""
    written, names = document.given(path), _NEMO[table]
    if written is None:
        return None
    name = str(written.value).lower()
    if name not in names:
        document.refuse(f"{name[:40]!r} is none of {', '.join(names)}", path)
        return None
    return written.of(names[name])


def _add_switch(document: WrittenDocument, arguments: Arguments, path: str, table: str) -> None:
    """Add the argument without a value that ``table`` has for the name at ``path``."""
    chosen = _chosen(document, path, table)
    if chosen is not None and chosen.value:
        add_key(arguments, key_of(chosen.value), path, replace(chosen, value=True))


def _optimizer(document: WrittenDocument, arguments: Arguments) -> None:
    path, written = "model.optim.name", document.text("model.optim.name")
    if written is not None:
        name, sharded = _NEMO["optimizers"].get(written.value, (written.value, False))
        for binding, value in (("optimizer", name), ("distributed_optimizer", sharded)):
            add_key(arguments, key_of(binding), path, replace(written, value=value))
    gradients = document.given("model.optim.grad_sync_dtype")
    if gradients is not None:
        shown = gradients.of(str(gradients.value) in {"bf16", "bfloat16"})
        add_key(arguments, key_of("bf16_gradients"), "model.optim.grad_sync_dtype", shown)


def _fp8(document: WrittenDocument, arguments: Arguments) -> None:
    written, eight = document.on("model.fp8"), document.on("model.fp8_e4m3")
    if written is not None:
        add_key(arguments, key_of("fp8_format"), "model.fp8", written.of("e4m3" if eight else "hybrid"))


def _fsdp(document: WrittenDocument, arguments: Arguments) -> None:
    """Add the arguments of PyTorch's FSDP, which NeMo shards over all data-parallel ranks."""
    written, sharded = document.on("model.fsdp"), _NEMO["fsdp"]
    if written is None:
        return
    strategy = document.text("model.fsdp_sharding_strategy", (*sharded, "hybrid"))
    name = strategy.value if strategy else "full"
    if name not in sharded:
        document.refuse("sharding over a part of the ranks is not read", "model.fsdp_sharding_strategy")
        return
    for switch in ("torch_fsdp2", *sharded[name]):
        add_key(arguments, key_of(switch), "model.fsdp", written)


def _adapters(document: WrittenDocument, arguments: Arguments) -> Fields:
    """Return NeMo 1's adapters, at queries, keys and values; those of other kinds stay open."""
    scheme = document.given("model.peft.peft_scheme")
    if scheme is None or str(scheme.value).lower() == "none":
        return {}
    rank = document.number("model.peft.lora_tuning.adapter_dim")
    if scheme.value != "lora" or rank is None:
        arguments.leave_open(["adapters"], scheme.words, scheme.line)
        return {}
    return {"adapters": replace(rank, value={"rank": rank.value, "targets": _NEMO["adapted"]})}


def _devices(document: WrittenDocument) -> Written | None:
    """Return the devices of all nodes; None where the file leaves them open."""
    shown = document.given("trainer.devices")
    if shown is None or shown.value in {-1, "auto", "-1"}:
        return None
    per_node, nodes = document.number("trainer.devices"), document.number("trainer.num_nodes")
    if per_node is None or nodes is None:
        return per_node
    return Written(per_node.value * nodes.value, per_node.line, f"{nodes.words} {per_node.words}")


def nemo_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits, overrides of a script or keys; raises InexpressibleError without a key."""
    document, _ = _document(file)
    recipe = any(path in document.entries for path in RECIPE_KEYS)
    special: Mapping[str, Mapping[str, Any]] = {} if recipe else _SPECIAL
    edits = keyed_edits(document.entries, RECIPE_KEYS if recipe else NEMO_KEYS, job, (old, new), special)
    if _is_script(file):
        return tuple(_as_override(edit) for edit in edits)
    prefix = _prefix(read_yaml(file).entries)
    return tuple(replace(edit, path=f"{prefix}{edit.path}") for edit in edits)


def _as_override(edit: FileEdit) -> FileEdit:
    """Return an edit of a key as one of the words of a command."""
    after = f"{edit.path}={edit.after.partition(': ')[2]}" if edit.after else f"~{edit.path}"
    return FileEdit(edit.before, after, edit.line)


TARGET: Final = target_of(interface("nemo"), recognises=is_nemo, read=read_nemo, edits=nemo_edits)
