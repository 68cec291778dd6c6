"""Edits of files of the Hugging Face Trainer and of what builds on it: axolotl and LLaMA-Factory.

The keys that a target emits for the layout of a file are compared with those of the new one; what differs is
edited where the file has it, and added where it has not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autoplan.launch.bindings.written_document import KeyEdit, WrittenDocument, changed_keys, key_edits
from autoplan.launch.configuration import FileEdit, LaunchFile, Values, Written
from autoplan.launch.frameworks.accelerate import accelerate_edits
from autoplan.launch.frameworks.accelerate_values import launcher_file
from autoplan.launch.frameworks.deepspeed import edits_beside_arguments
from autoplan.launch.frameworks.hugging_face.training_fields import TRAINER, stands
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

#: Other keys of the same meaning, which an edit changes where the file has them.
_SYNONYMS: Final[Mapping[str, Sequence[str]]] = TRAINER.data["synonyms"]
#: Sections that may be the name of another file, whose text these edits do not have.
_SECTIONS: Final = ("deepspeed", "fsdp_config")
#: Arguments that say how a run is sharded.
_SHARDING: Final = frozenset(TRAINER.keys[name] for name in ("fsdp", "fsdp_file", "deepspeed"))
#: How the path of the steps ends in a section of the launcher's file.
_STEPS: Final = f".{TRAINER.keys['steps']}"

#: Returns the keys that a target emits for a layout; raises InexpressibleError for what it lacks.
Document = Callable[[Layout], Mapping[str, Any]]


def training_edits(
    entries: Values, layouts: tuple[Layout, Layout], document: Document
) -> tuple[FileEdit, ...]:
    """Return the edits of a file with ``entries`` that make the first of ``layouts`` the second one.

    Raises InexpressibleError for a layout without keys, and where the section to edit is another file.
    """
    return tuple(key_edits(entries, _wanted(entries, layouts, document)))


def key_file_edits(
    file: LaunchFile, entries: Values, made: tuple[Job, Layout, Layout], document: Document
) -> tuple[FileEdit, ...]:
    """Return the edits of a file of keys and of DeepSpeed's beside it; raises as ``training_edits``."""
    layouts, section = made[1:], TRAINER.keys["deepspeed"]
    named = entries.get(section)
    name = named.value if named is not None and isinstance(named.value, str) else ""
    text = file.sibling(name) if name else None
    if text is None or section not in document(layouts[1]):
        return training_edits(entries, layouts, document)

    def keys(layout: Layout) -> Mapping[str, Any]:
        return {key: value for key, value in document(layout).items() if key != section}

    inner = (replace(edit, file=name) for edit in edits_beside_arguments(LaunchFile(name, text), *made))
    return (*inner, *training_edits(entries, layouts, keys))


def script_edits(entries: Values, layouts: tuple[Layout, Layout], document: Document) -> tuple[FileEdit, ...]:
    """Return the edits of the arguments of a script, whose ``entries`` they are; raises as training_edits."""
    after = document(layouts[1])
    wanted = {edit.path: edit.value for edit in _wanted(entries, layouts, document)}
    names = dict.fromkeys(path.partition(".")[0] for path in wanted)
    values = {name: wanted[name] if name in wanted else after.get(name) for name in names}
    edits = (_argument_edit(entries, name, value) for name, value in values.items())
    return tuple(edit for edit in edits if edit is not None)


def edits_of_another(
    document: WrittenDocument, launcher: Sequence[Word], file: LaunchFile, made: tuple[Job, Layout, Layout]
) -> tuple[str, Sequence[FileEdit], Written | None] | None:
    """Return the name and the edits of the file beside a script that decides its sharding.

    That of ``--deepspeed``, or that of ``accelerate launch`` with the argument that recomputes in its place;
    None where arguments decide.
    """
    named = document.given("deepspeed")
    name = str(named.value) if named is not None else ""
    if name and (text := file.sibling(name)) is not None:
        return name, edits_beside_arguments(LaunchFile(name, text), *made), None
    launched = any(word.text.rsplit("/", 1)[-1] == "accelerate" for word in launcher)
    decided = any(stands(document, name) for name in ("fsdp", "deepspeed"))
    inner = launcher_file(launcher, file) if launched and not decided else None
    if inner is None:
        return None
    names = (TRAINER.keys["recompute"], TRAINER.keys["earlier_recompute"])
    recompute = next((document.entries[name] for name in names if name in document.entries), None)
    return inner.name, accelerate_edits(inner, *made), recompute


def edits_beside(
    entries: Values,
    layouts: tuple[Layout, Layout],
    document: Document,
    beside: tuple[str, Sequence[FileEdit], Written | None],
) -> tuple[FileEdit, ...]:
    """Return the edits of a script whose sharding the file of ``accelerate launch`` beside it has.

    ``beside`` is the name of that file, its edits, and the argument that recomputes in its place.
    TrainingArguments without ``--fsdp`` take the sharding of the launcher, and leave ``--fsdp_config`` aside
    (transformers/training_args.py). They have the batches, which the launcher's file need not have.
    """
    name, made, recompute = beside

    def arguments(layout: Layout) -> Mapping[str, Any]:
        return {key: value for key, value in document(layout).items() if key not in _SHARDING}

    keys = (edit for edit in made if edit.path and (edit.before or not edit.path.endswith(_STEPS)))
    inner = (
        FileEdit(recompute.words, "", recompute.line)
        if recompute is not None and "activation_checkpointing" in edit.path
        else replace(edit, file=name)
        for edit in keys
    )
    return (*inner, *script_edits(entries, layouts, arguments))


def _argument_edit(entries: Values, name: str, value: object) -> FileEdit | None:
    """Return the edit that gives the argument ``name`` a value, or removes it where that is None."""
    written = entries.get(name)
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping) else str(value)
    after = (
        "" if value is None else f"--{name}" if name == TRAINER.keys["fsdp"] else f"--{name} {_quoted(text)}"
    )
    before = written.words if written is not None and not written.default else ""
    return FileEdit(before, after, written.line if before and written else None) if before != after else None


def in_python(edit: FileEdit) -> FileEdit:
    """Return the edit of an argument as one of a call in Python; those of keys are left.

    >>> in_python(FileEdit("bf16=False", "--bf16 True", 3)).after
    'bf16=True'
    >>> in_python(FileEdit("", "--optim adafactor")).after
    "optim='adafactor'"
    """
    if not edit.after.startswith("--"):
        return edit
    name, _, text = edit.after[2:].partition(" ")
    plain = {"": True, "True": True, "False": False}
    try:
        value = plain[text] if text in plain else json.loads(text.strip("'"))
    except ValueError:
        value = text
    return replace(edit, after=f"{name}={value!r}")


def _quoted(text: str) -> str:
    """Return a JSON object as one word of a shell; other values are plain words."""
    return f"'{text}'" if text.startswith("{") else text


def _wanted(entries: Values, layouts: tuple[Layout, Layout], document: Document) -> list[KeyEdit]:
    after = document(layouts[1])
    try:
        changed = list(changed_keys(document(layouts[0]), after))
    except InexpressibleError:
        # The keys of a layout that follows one which has none: those in which the file differs.
        changed = [edit for edit in changed_keys({}, after) if edit.path in entries or "." in edit.path]
    return list(_placed(entries, changed, after))


def _placed(entries: Values, changed: list[KeyEdit], after: Mapping[str, Any]) -> Iterator[KeyEdit]:
    """Yield the edits of the keys that the file has: a section that is another file is replaced as one."""
    replaced = set()
    for edit in (_own_key(entries, edit) for edit in changed):
        section = edit.path.partition(".")[0]
        section_entry = entries.get(section)
        if section in _SECTIONS and section_entry is not None and isinstance(section_entry.value, str):
            if section in after:
                raise InexpressibleError(f"{section} is the file {section_entry.value[:80]!r}: edit that one")
            if section not in replaced:
                yield KeyEdit(section, None, removed=True)
            replaced.add(section)
        else:
            yield edit


def _own_key(entries: Values, edit: KeyEdit) -> KeyEdit:
    """Return ``edit`` of the key that the file has for it."""
    synonym = next((name for name in _SYNONYMS.get(edit.path, ()) if name in entries), None)
    return edit if synonym is None or edit.path in entries else replace(edit, path=synonym)
