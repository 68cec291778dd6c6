"""DeepSpeed's file beside arguments of Megatron-DeepSpeed: what it decides, and where both contradict.

The engine takes its sharding, its batches and its formats from the file that ``--deepspeed_config`` names,
which scripts often write themselves.
"""

from __future__ import annotations

from typing import Final

from autoplan.errors import AutoplanError, Problem
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE, Argument, Arguments
from autoplan.launch.scripts.pieces import Word, text_of, unknown_of
from autoplan.launch.scripts.script import Script

__all__ = ["with_deepspeed_file"]

_DEEPSPEED: Final = interface("deepspeed")
#: Arguments of Megatron-LM by the bindings of DeepSpeed that have to say the same.
_ALIKE: Final[dict[str, str]] = TABLE.data["deepspeed"]["alike"]
_FILE, _SWITCH = (TABLE.data["deepspeed"][name] for name in ("file", "switch"))


def with_deepspeed_file(arguments: Arguments, script: Script, file: LaunchFile) -> None:
    """Add to ``arguments`` what DeepSpeed's file says of sharding, and a problem for each contradiction.

    A file that lies nowhere, or whose text is not known, leaves them as they are.
    """
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
