"""Whose configuration a file is, and which file a script starts its training program with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.deciding_names import may_decide
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.accelerate_values import accelerate_words, overriding
from autoplan.launch.registry import TARGETS, target_names, targets
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Command, Script, beside_or_written, called_text, script_text
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices, variable_devices
from autoplan.launch.target import Target

#: Targets whose signs files of another one have too, which has signs of its own: NeMo its section ``trainer``
#: next to ``model``, Megatron-LM its section ``language_model`` next to keys of the top level, LLaMA-Factory
#: its program next to arguments of the Trainer, and ms-swift
#: its programs next to arguments of the Trainer and of Megatron-LM, and Megatron Bridge its script of
#: performance. The programs of verl and OpenRLHF say whose a script is, whatever else it has.
_ANY: Final = tuple(name for name in TARGETS if name not in {"verl", "openrlhf"})
_LOOSER: Final = {
    "nemo": ("megatron-bridge",),
    "megatron-bridge": ("megatron-lm",),
    "megatron-lm": ("axolotl",),
    "llama-factory": ("trainer",),
    "ms-swift": ("trainer", "megatron-bridge", "megatron-lm", "llama-factory", "axolotl"),
    "verl": _ANY,
    "openrlhf": _ANY,
}


#: Files that training programs are started with.
_NAMED: Final = re.compile(r"[\w./${}-]+\.(?:ya?ml|toml|json)\b")
#: Options that name data, and no file of keys.
_DATA: Final = re.compile(
    r"(?i)^--?(?![\w.-]*config)[\w.-]*(?:data|file|path|json|corpus|split|prompt|output|save)"
)
#: A service of KServe, which names the runtime that has its command.
_RUNTIME: Final = re.compile(r"(?ms)^kind:\s*InferenceService\b.*^\s+runtime\s*:\s*[\"']?([\w.-]+)")
#: Targets whose files say how a program is launched or sharded, and not what it trains.
_SHARDING: Final = frozenset({"accelerate", "deepspeed"})
#: Targets that are read with overrides of their keys.
_OVERRIDDEN: Final = frozenset({"automodel", "nanotron", "llm-foundry", "torchtune", "nemo"})


def recognised(file: LaunchFile) -> Target:
    """Return the target that ``file`` is of; raises SpecError where it is of none, or of several."""
    candidates = _recognising(file)
    if not candidates and (called := called_text(file)):
        # A script that only runs others is of the framework that these are of.
        candidates = _recognising(replace(file, text=called))
    looser = {name for t in candidates for name in _LOOSER.get(t.name, ())}
    candidates = [t for t in candidates if t.name not in looser]
    # What accelerate launches is a program of another framework where that has signs of its own.
    candidates = [t for t in candidates if t.name != "accelerate"] or candidates
    if len(candidates) == 1:
        return candidates[0]
    if (runtime := _RUNTIME.search(file.text)) is not None:
        line = file.text.count("\n", 0, runtime.end()) + 1
        sentence = f"its runtime {runtime[1]} is in another file: give both as one, with --- between them"
        raise SpecError([Problem(sentence, "runtime", file.name, line)])
    targets = ", ".join(target_names(emitted=False))
    names = ", ".join(t.name for t in candidates)
    seen = f"its content may be that of {names}" if names else "its content is that of no framework read here"
    message = f"the framework is not clear: {seen}; name one of {targets} (--framework)"
    raise SpecError([Problem(message, "$", file.name)])


def _recognising(file: LaunchFile) -> list[Target]:
    return [t for t in targets() if t.recognises is not None and t.recognises(file)]


def named_configuration(file: LaunchFile) -> LaunchFile | None:
    """Return the file that a script of no framework starts a training program with, where it lies there.

    A program in Python that has its values itself is such a file, where the script gives it no argument. It
    has the devices that the launcher of the script starts, and the overrides behind it; of a program of its
    own that may be the file of DeepSpeed alone. Raises SpecError for overrides that its framework would not
    be read with.
    """
    whole = replace(file, text=script_text(file))
    recognised_by = {name for name, recognises in _readers() if recognises(whole)}
    data = file.name.endswith((".yaml", ".yml", ".json", ".toml")) and not file.script
    others = recognised_by - {"accelerate"}
    if file.values is not None or others or data or not (_NAMED.search(whole.text) or ".py" in whole.text):
        return None
    script = read_script(file.text, file.name, file.variables, file.sibling)
    file = replace(file, sibling=beside_or_written(file.sibling, script))
    sharding: LaunchFile | None = None
    for inner, names, command, at in _named_files(script, file):
        behind = command.words[at + 1 :]
        if names in (["trainer"], ["axolotl"]):
            words = overriding(names[0], file, script, (command, behind))
            return replace(inner, arguments=(*words, *file.arguments))
        if set(names) - _SHARDING:
            return replace(inner, arguments=_overrides(names, behind, file))
        if names == ["deepspeed"]:
            sharding = sharding or replace(inner, arguments=tuple(_deciding(command.words)))
    if sharding is not None or recognised_by:
        return None if recognised_by else sharding
    _refuse_missing(script, file)
    return None


def _named_files(script: Script, file: LaunchFile) -> Iterator[tuple[LaunchFile, list[str], Command, int]]:
    """Yield the files that commands name, the last command first, with their targets and their places."""
    for command in reversed(script.commands):
        for at, word in enumerate(command.words):
            alone = word is command.words[-1] and word.text.endswith(".py")
            named = (alone or _NAMED.search(word.text)) and word.unknown is None
            text = file.sibling(word.text) if named else None
            if text is None:
                continue
            script_devices = variable_devices(script, command, file.variables)
            devices = script_devices or launched_devices(script, command)[0]
            inner = LaunchFile(
                word.text,
                text,
                file.variables,
                (),
                file.devices or (devices.value if devices else None),
                sibling=file.sibling,
                launcher=tuple(
                    (before.text, before.unknown.reason if before.unknown else "")
                    for before in accelerate_words(command.words[:at])
                ),
            )
            names = [name for name, recognises in _readers() if recognises(inner)]
            yield inner, names, command, at


def _deciding(words: Sequence[Word]) -> Iterator[str]:
    """Yield the options of a program of its own that may decide a degree or a size."""
    for at, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        behind = value if equals else words[at + 1].text if at + 1 < len(words) else ""
        if name.startswith("--") and may_decide(name.lstrip("-"), behind):
            yield f"{name}={behind}"


def _refuse_missing(script: Script, file: LaunchFile) -> None:
    """Raise SpecError where a program is started with a file that is not there."""
    for command in reversed(script.commands):
        programs = [at for at, word in enumerate(command.words) if word.text.endswith(".py")]
        for before, word in pairwise(command.words[programs[0] :] if programs else ()):
            if _DATA.search(before.text.partition("=")[0]):
                continue
            named = _NAMED.fullmatch(word.text.rpartition("=")[2]) is not None and word.unknown is None
            if named and file.sibling(word.text) is None:
                sentence = f"it starts a program of its own with {word.text}, which is not beside it"
                raise SpecError([Problem(sentence, "script", file.name, word.line or None)])


def _overrides(names: Sequence[str], behind: Sequence[Word], file: LaunchFile) -> tuple[str, ...]:
    """Return the overrides behind a configuration; raises SpecError where its framework is read without."""
    words = [word for word in behind if re.match(r"(?:--)?[\w.]+=", word.text)]
    if names[0] in _OVERRIDDEN:
        return tuple(word.text.lstrip("-") for word in words) + file.arguments
    for word in words:
        name, _, value = word.text.lstrip("-").partition("=")
        if may_decide(name.rpartition(".")[2], value):
            sentence = f"{word.text} is not read with files of {names[0]}: write it into the file"
            raise SpecError([Problem(sentence, name, file.name, word.line or None)])
    return file.arguments


def _readers() -> Iterator[tuple[str, Callable[[LaunchFile], bool]]]:
    """Yield the targets that are read, with what recognises their files."""
    return ((t.name, t.recognises) for t in targets() if t.recognises is not None)
