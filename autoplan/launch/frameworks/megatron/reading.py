"""Files with arguments of Megatron-LM: which they are, what they say, and the edits that change their layout.

A script with the arguments of a command, or arguments that are no command: YAML files, and what a program has
parsed. The latter have three forms: ``MODEL_ARGS`` with arguments as keys (``model_config.yaml`` of
Megatron-LM's functional tests), the nested ``model_parallel`` and ``language_model`` of the experimental
``--yaml-cfg`` (``megatron/training/yaml_arguments.py``), and values by the names of argparse, such as those
of an ``argparse.Namespace``. Megatron-DeepSpeed takes its sharding, batches and formats from the file that
``--deepspeed_config`` names, which scripts often write themselves.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from autoplan.errors import AutoplanError, Problem, SpecError
from autoplan.launch.assembly import assembled, with_devices
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, FileEdit, LaunchFile, Values, Written
from autoplan.launch.frameworks.interpolated_values import overridden
from autoplan.launch.frameworks.megatron.argument_keys import (
    CORE_KEYS,
    Key,
    add_key,
    key_of,
    keyed_edits,
    keyed_error,
    refuse_misspelt,
    value_words,
)
from autoplan.launch.frameworks.megatron.arguments import (
    FLAGS,
    READ_FLAGS,
    TABLE,
    Argument,
    Arguments,
    arities,
    parse_arguments,
)
from autoplan.launch.frameworks.megatron.megatron_lm import (
    layout_values,
    training_values,
    words_by_flag,
)
from autoplan.launch.frameworks.megatron.read_layout import read_layout
from autoplan.launch.frameworks.megatron.read_model import ReadModel, read_model
from autoplan.launch.known_models import named_model, other_architecture
from autoplan.launch.scripts.pieces import Word, text_of, unknown_of
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices, training_command
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

#: Programs around Megatron-LM that do not train.
_NO_TRAINING: Final = re.compile(
    r"^(?:run_)?(?:text_gen\w*|generate\w*|eval\w*|convert\w*|preprocess\w*|gpt_(?:static|dynamic)_inference\w*)\.py$"
)

#: What a program of Megatron-LM is called, and an argument of its models.
_OF_MEGATRON: Final = ("pretrain_", FLAGS["hidden_size"])


#: A script that starts the program of Megatron-LM, and reads files with its arguments.
_STARTED: Final = re.compile(
    r"\A(?=[\s\S]*^\s*(?:source|\.)\s)[\s\S]*?^(?!\s*#).*\bpretrain_gpt\.py\b", re.MULTILINE
)


def is_megatron(file: LaunchFile) -> bool:
    """Return whether a file has arguments of Megatron-LM, or starts its program with those of other files."""
    if _STARTED.search(file.text) is not None and not file.name.endswith((".py", ".md")):
        return True
    # With dashes or, as in some forks, with underscores.
    flags = {name: (FLAGS[name], f"--{FLAGS[name][2:].replace('-', '_')}") for name in TABLE.data["signs"]}
    found = {name for name, spelt in flags.items() if any(flag in file.text for flag in spelt)}
    # A microbatch and a sequence are arguments of other programs, too.
    sized = found - {"mbs", "sequence_length"} or any(word in file.text for word in _OF_MEGATRON)
    return len(found) >= 2 and bool(sized) and not file.name.endswith(".py")


def dashed(words: Sequence[Word]) -> list[Word]:
    """Return words whose arguments are called as Megatron-LM's are, where all of a fork have underscores."""
    names = [word.text.partition("=")[0] for word in words if word.text.startswith("--")]
    if any("-" in name[2:] and name in arities() for name in names):
        return list(words)
    return [replace(word, text=_with_dashes(word.text)) for word in words]


def _with_dashes(text: str) -> str:
    name, equals, value = text.partition("=")
    other = name.replace("_", "-")
    return f"{other}{equals}{value}" if name not in arities() and other in arities() else text


def read_megatron(file: LaunchFile) -> Configuration:
    """Return what a shell script with arguments of Megatron-LM says; raises SpecError with all problems."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    words, command = training_command(script, lambda name: _with_dashes(name) in arities())
    words = dashed(words)
    devices, why = launched_devices(script, command)
    if not words:
        raise SpecError([Problem(_nothing(script), "script", file.name)])
    _refuse_others(command, file)
    words += [Word(text, 0) for text in file.arguments]
    notes = [*script.notes]
    if command is not None and command.doubt:
        notes.append(f"the command in line {command.line} runs only under {command.doubt}")
    if devices is None and file.devices is None and why:
        notes.append(why)
    try:
        arguments = parse_arguments(words, file.name, READ_FLAGS)
        with_deepspeed_file(arguments, script, file)
        return configured(file, arguments, devices, notes)
    except SpecError as error:
        hints = [Problem(hint, "script", file.name) for hint in dict.fromkeys(script.hints)]
        raise SpecError([*error.problems, *hints]) from error


def _refuse_others(command: Command | None, file: LaunchFile) -> None:
    """Raise SpecError where the training program is one of a model that is no decoder-only transformer."""
    for word in command.words if command is not None else ():
        program = word.text.rsplit("/", 1)[-1]
        if _NO_TRAINING.search(program):
            raise SpecError([Problem(f"{program} trains nothing", "script", file.name, word.line or None)])
        kind = other_architecture(program) if program.endswith(".py") else None
        if kind is not None:
            sentence = f"{program} trains {kind}, and plans are of decoder-only transformers"
            raise SpecError([Problem(sentence, "model", file.name, word.line or None)])


def _nothing(script: Script) -> str:
    """Return why a script has no arguments of Megatron-LM."""
    more = f"; {'; '.join(script.notes)}" if script.notes else ""
    return f"there are no arguments of Megatron-LM{more}"


def configured(  # noqa: PLR0913 - what a reader knows besides its arguments
    file: LaunchFile,
    arguments: Arguments,
    devices: Written | None,
    notes: Sequence[str],
    framework: str = "megatron-lm",
    *,
    complete: bool = True,
    described: bool = True,
    more: Values | None = None,
) -> Configuration:
    """Return the configuration that arguments and ``more`` are; raises SpecError with all problems.

    Where they are not ``complete``, what they leave open stays open, as another file or a recipe has it.
    Where the model is not ``described``, of its sizes only the layers are taken.
    """
    for flag in TABLE.data["other_layers"]:
        if flag in arguments.given:
            sentence = "plans are of decoder-only transformers: its layers are of other kinds"
            arguments.problems.append(Problem(sentence, flag, file.name, arguments.given[flag].line or None))
    arguments.stop_at_problems()
    model = read_model(arguments, file.name) if described else ReadModel(None)
    layers = model.lines.get("layers") if described else arguments.number("layers")
    arguments.stop_at_problems()
    experts = "moe" in model.fields if model.fields else arguments.has("experts")
    values = read_layout(arguments, layers.value if layers else None, experts=experts)
    if not complete:
        values = {key: written for key, written in values.items() if not written.default}
    values |= more or {}
    if devices is not None:
        values["devices"] = devices
    arguments.stop_at_problems()
    values = dict(with_devices(file, known_alone(values, arguments.opened)))
    if framework == "megatron-lm" and complete and _SWITCH not in arguments.given and not arguments.opened:
        values |= _overlap(arguments, values)
    if complete:
        values |= following_values(arguments, values)
    arguments.stop_at_problems()
    chosen, hints = named_model(model.fields)
    if model.fields is not None:
        names = model.defaults if chosen is not None and not isinstance(chosen, str) else ()
        values |= {name: Written(None, default=True) for name in names}
    aside = [f"{flag}: {why}" for flag, why in TABLE.data["aside"].items() if flag in arguments.given]
    warnings = [*notes, *arguments.notes, *aside, *hints]
    missing = model.missing if not isinstance(chosen, str) else ()
    return assembled(
        framework, file, values, model=chosen, open_fields=missing, opened=arguments.opened, warnings=warnings
    )


def _overlap(arguments: Arguments, values: Values) -> Fields:
    """Return what of the communication runs beside compute unlike in the stack, which has all of it.

    Without the arguments nothing does; one data-parallel rank has nothing to reduce.
    """
    reduced = arguments.flag("overlapped_reduce") is not None
    chosen: dict[str, bool] = {}
    if any(values[key].value != 1 for key in ("dp", "cp") if key in values):
        chosen = {} if reduced else {"overlap_grad_reduce": False}
        if values["zero"].value and not (reduced and arguments.flag("overlapped_gather")):
            chosen["overlap_param_gather"] = False
    if arguments.flag("tp_comm_overlap") is not None:
        chosen["tp_comm_overlap"] = True
    before = values["software"].value if "software" in values else {}
    return {"software": Written({**before, **chosen}, default=not before)} if chosen else {}


def following_values(arguments: Arguments, values: Values) -> Fields:
    """Return the values that follow from the data-parallel degree."""
    fields: Fields = {}
    dp, mbs = values.get("dp"), values.get("mbs")
    if dp is not None and mbs is not None and "global_batch_size" not in values:
        fields["global_batch_size"] = Written(dp.value * mbs.value, default=True)
    return fields | sharded_ranks(arguments, values)


def sharded_ranks(arguments: Arguments, values: Values) -> Fields:
    """Return the ranks that optimizer states are sharded over, where there are several instances."""
    instances = arguments.number("optimizer_instances")
    dp, cp, zero = (values.get(key) for key in ("dp", "cp", "zero"))
    if instances is None or instances.value == 1 or not (dp and cp and zero) or zero.value == 0:
        return {}
    ranks = dp.value * cp.value
    if ranks % instances.value:
        message = f"{instances.value} instances do not divide the {ranks} data-parallel ranks"
        arguments.refuse(message, "optimizer_instances", instances.line)
    return {"dp_shard": instances.of(ranks // instances.value)}


_DEEPSPEED: Final = interface("deepspeed")
#: Arguments of Megatron-LM by the bindings of DeepSpeed that have to say the same.
_ALIKE: Final[dict[str, str]] = TABLE.data["deepspeed"]["alike"]
_FILE, _SWITCH = (TABLE.data["deepspeed"][name] for name in ("file", "switch"))


def with_deepspeed_file(arguments: Arguments, script: Script, file: LaunchFile) -> None:
    """Add what DeepSpeed's file, where known, says of sharding, and a problem for a contradiction."""
    named = arguments.given.get(_FILE)
    if named is None or _SWITCH not in arguments.given or not named.values:
        return
    document = _document(named.values[-1], script, file)
    if document is None:
        return
    line = named.line
    for binding, ours in _ALIKE.items():
        theirs = document.number(binding, least=0)
        given = arguments.number(ours, least=0)
        if theirs is not None and given is not None and theirs.value != given.value:
            _refuse(arguments, ours, given, f"{document.path(binding)} of its file is {theirs.value}")
    for ours in ("bf16", "fp16"):
        other = document.flag("fp16" if ours == "bf16" else "bf16")
        given = arguments.flag(ours)
        if given is not None and other is not None and other.value:
            _refuse(arguments, ours, given, f"{other.words} stands in its file")
    stage = document.number("zero", least=0)
    flag = FLAGS["zero_stage"]
    if stage is not None and flag not in arguments.given:
        arguments.given[flag] = Argument(flag, (Word(str(stage.value), line),), line)
        arguments.notes.append(f"ZeRO stage {stage.value} is that of the file in line {line}")


def _refuse(arguments: Arguments, name: str, given: Written, why: str) -> None:
    sentence = f"{given.words} contradicts DeepSpeed's file: {why}"
    arguments.problems.append(Problem(sentence, FLAGS[name], arguments.file, given.line))


def _document(word: Word, script: Script, file: LaunchFile) -> WrittenDocument | None:
    """Return DeepSpeed's file, as the script writes it or as it lies there; None where it is not known."""
    written = script.written.get(word.text.rpartition("/")[2])
    known = written is not None and unknown_of(written) is None
    text = text_of(written) if written is not None and known else None
    if written is None and word.unknown is None:
        text = file.sibling(word.text)
    if text is None:
        return None
    try:
        document = read_yaml(LaunchFile(word.text, text), _DEEPSPEED)
    except AutoplanError:
        return None
    return document if not document.problems else None


_SECTION: Final = "MODEL_ARGS"
#: Names that argparse gives the arguments, by binding: the first of several.
_NAMES: Final = {name: path for path, name in reversed(list(TABLE.data["python_names"].items()))}
_NESTED: Final = re.compile(r"(?m)^(?:language_model|model_parallel)\s*:")
#: Names of ``ModelParallelConfig``, and of the arguments next to both sections; others are the model's.
_PARALLEL: Final = frozenset(TABLE.data["nested_names"]["model_parallel"])
_BESIDE: Final = frozenset(TABLE.data["nested_names"]["beside"])


def is_megatron_file(file: LaunchFile) -> bool:
    """Return whether a file is one of Megatron-LM: a script, or one of the documents."""
    return is_megatron(file) or is_nested_document(file)


def read_megatron_file(file: LaunchFile) -> Configuration:
    """Return what a file says; raises SpecError with all problems."""
    return read_argument_document(file) if is_argument_document(file) else read_megatron(file)


def edited_file(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file that make its layout ``new`` instead of ``old``."""
    edits = document_edits if is_argument_document(file) else megatron_edits
    return edits(file, job, old, new)


def megatron_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits that make the layout ``new``; raises InexpressibleError for what has no argument."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    words, _ = training_command(script, arities().__contains__)
    words += [Word(text, 0) for text in file.arguments]
    arguments = parse_arguments(words, file.name, frozenset()).given
    before, after = _flags(job, old), _flags(job, new)
    return tuple(_edits(arguments, before, after))


def _flags(job: Job, layout: Layout) -> dict[str, tuple[str, ...]]:
    return words_by_flag(layout_values(job, layout) | training_values(job, layout))


def _edits(
    arguments: dict[str, Argument], before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> Iterator[FileEdit]:
    """Yield the edits of arguments in which two layouts differ."""
    also = {FLAGS[name]: FLAGS[other] for name, other in TABLE.data["also"].items()}
    for flag in dict.fromkeys((*before, *after)):
        old, new = before.get(flag), after.get(flag)
        if old == new:
            continue
        entry = arguments.get(flag) or arguments.get(also.get(flag, ""))
        words = shlex.join(new) if new else ""
        if entry is not None:
            line = next((value.line for value in entry.values if value.line), entry.line)
            yield FileEdit(entry.words, words, line or None)
        elif words:
            yield FileEdit("", words)


def is_argument_document(file: LaunchFile) -> bool:
    """Return whether a file is a YAML file with arguments, or no file but values."""
    if file.values is not None or is_nested_document(file):
        return True
    return re.search(rf"(?m)^{_SECTION}\s*:", file.text) is not None


def is_nested_document(file: LaunchFile) -> bool:
    """Return whether a file is one for ``--yaml-cfg``."""
    return _NESTED.search(file.text) is not None and _NAMES["tp"] in file.text


def read_argument_document(file: LaunchFile) -> Configuration:
    """Return what a document says; raises SpecError with all problems."""
    document = read_yaml(file)
    keys = _keys(document)
    if not keys:
        words = [*_words(document), *(Word(text, 0) for text in file.arguments)]
        arguments = parse_arguments(words, file.name, READ_FLAGS)
        arguments.notes += document.notes
        return configured(file, arguments, None, ())
    overridden(document, file.arguments)
    arguments = Arguments(file.name, notes=document.notes)
    refuse_misspelt(arguments, document.entries, keys, "Megatron-LM")
    for path, key in keys.items():
        if path in document.entries and not _unused(document, path):
            add_key(arguments, key, path, document.entries[path])
    _activation(document, arguments)
    devices = _devices(document, arguments) if file.devices is None else None
    arguments.problems += document.problems
    try:
        arguments.stop_at_problems()
        return configured(file, arguments, devices, ())
    except SpecError as error:
        raise keyed_error(error, keys) from error


def _words(document: WrittenDocument) -> Iterator[Word]:
    """Yield the words of the arguments in the section of a test."""
    prefix = f"{_SECTION}."
    for path, written in document.entries.items():
        flag = path.removeprefix(prefix)
        if not path.startswith(prefix) or written.value is False:
            continue
        line = written.line or 0
        yield Word(flag, line)
        if written.value is not True and written.value is not None:
            several = arities().get(flag, "1") in {"*", "+"}
            yield from (Word(text, line) for text in value_words(written.value, several=several))


def _keys(document: WrittenDocument) -> Mapping[str, Key]:
    """Return the keys of a document by path; none where arguments are keys themselves."""
    if any(path.startswith(f"{_SECTION}.--") for path in document.entries):
        return {}
    nested = any(path in document.entries for path in ("model_parallel", "language_model"))
    if not nested:
        return CORE_KEYS
    keys = {f"{section}{name}": key for name, key in CORE_KEYS.items() for section in _sections(name)}
    keys[f"language_model.{_NAMES['kv_heads']}"] = key_of("kv_heads and grouped_queries")
    return keys


def _sections(name: str) -> tuple[str, str, str]:
    """Return the sections that a name may stand in, its own first."""
    if name in _BESIDE:
        return ("", "language_model.", "model_parallel.")
    model, parallel = "language_model.", "model_parallel."
    return (parallel, model, "") if name in _PARALLEL else (model, parallel, "")


def _unused(document: WrittenDocument, path: str) -> bool:
    """Return whether a value is a default of argparse that another one makes idle."""
    grouped = document.entries.get(_NAMES["grouped_queries"])
    return path == _NAMES["kv_heads"] and grouped is not None and not grouped.value


def _activation(document: WrittenDocument, arguments: Arguments) -> None:
    path = "language_model.activation_func"
    names = TABLE.data["activation_names"]
    written = document.text(path, tuple(names))
    if written is not None and names[written.value]:
        shown = Written(value=True, line=written.line, words=written.words)
        add_key(arguments, key_of(names[written.value]), path, shown)


def _devices(document: WrittenDocument, arguments: Arguments) -> Written | None:
    """Return the number of processes; a world of one process that has several ranks is not started yet."""
    world = document.number("world_size")
    degrees = [arguments.number(name) for name in ("tp", "pp", "cp")]
    several = any(degree is not None and degree.value > 1 for degree in degrees)
    return None if world is None or (world.value == 1 and several) else world


def document_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a document that make its layout ``new``; see ``keyed_edits``."""
    document = read_yaml(file)
    keys = _keys(document)
    if not keys:
        kinds = {"0": "on", "+": "words", "*": "words"}
        keys = {
            f"{_SECTION}.{flag}": Key(flag, kinds.get(arity, "value"))  # type: ignore[arg-type]
            for flag, arity in arities().items()
        }
    return keyed_edits(document.entries, keys, job, (old, new))
