"""Edits of overrides or of a TOML file of torchtitan that turn its layout into another."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.torchtitan.override_words import is_toml, read_overrides, read_toml
from autoplan.launch.frameworks.torchtitan.overrides import layout_overrides, training_overrides
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["torchtitan_edits"]

_MODE: Final = "activation_checkpoint.mode"
_OPTION: Final = "activation_checkpoint.selective_ac_option"
_RESHARD: Final = "parallelism.fsdp_reshard_after_forward"
_Words = Mapping[str, tuple[str, ...]]
_SEQUENCES: Final = "parallelism.enable_sequence_parallel"


def torchtitan_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of ``file`` that make its layout ``new`` instead of ``old``.

    Raises InexpressibleError for a layout that torchtitan, or the version of a TOML file, cannot express.
    """
    before, after = _overrides(job, old), _overrides(job, new)
    if is_toml(file):
        if new.tp > 1 and not new.sequence_parallel:
            raise InexpressibleError("tensor parallelism without sequence parallelism in a TOML file")
        entries = read_toml(file).entries
        return tuple(_toml_edits(entries, _changed(entries, before, after, old, new)))
    entries = read_overrides(file)[0].entries
    return tuple(_script_edits(entries, _changed(entries, before, after, old, new)))


def _overrides(job: Job, layout: Layout) -> dict[str, tuple[str, ...]]:
    """Return the words of each override by its path; the subcommand of recompute is the last one."""
    words = (*layout_overrides(job, layout), *training_overrides(job, layout))
    return {_path(group[0]): group for group in words}


def _path(word: str) -> str:
    if not word.startswith("--"):
        return _MODE
    section, _, key = word.removeprefix("--").partition(".")
    return f"{section}.{key.removeprefix('no-')}"


def _changed(
    entries: Mapping[str, Written], before: _Words, after: _Words, old: Layout, new: Layout
) -> dict[str, tuple[str, ...]]:
    """Return the words that change, by path; those to remove are empty."""
    paths = [path for path in dict.fromkeys((*before, *after)) if before.get(path) != after.get(path)]
    if (old.pp > 1) != (new.pp > 1) and _RESHARD in after and _RESHARD not in entries:
        # Where a file leaves it open, pipelines decide it.
        paths = [*dict.fromkeys((_RESHARD, *paths))]
    return {path: after.get(path, ()) for path in paths}


def _script_edits(entries: Mapping[str, Written], changed: _Words) -> Iterator[FileEdit]:
    for path, words in changed.items():
        entry, text = entries.get(path), shlex.join(words)
        if entry is not None:
            yield FileEdit(entry.words, text, entry.line)
        elif text:
            yield FileEdit("", text)


def _toml_edits(entries: Mapping[str, Written], changed: _Words) -> Iterator[FileEdit]:
    """Yield edits of lines ``key = value``; a key to add is named with its table."""
    for path, words in changed.items():
        if path == _SEQUENCES:
            continue
        value = _toml(path, words) if words else ""
        yield from _line(entries, path, value)
        if path == _MODE and value == '"selective"':
            # One of so many layers is what "selective" means there without this.
            yield from _line(entries, _OPTION, '"op"')


def _line(entries: Mapping[str, Written], path: str, value: str) -> Iterator[FileEdit]:
    table, _, key = path.rpartition(".")
    entry, text = entries.get(path), f"{key} = {value}" if value else ""
    if entry is not None:
        yield FileEdit(entry.words, text, entry.line)
    elif text:
        yield FileEdit("", f"[{table}] {text}")


def _toml(path: str, words: tuple[str, ...]) -> str:
    """Return the value of an override as TOML has it."""
    if path == _MODE:
        return json.dumps(words[0].partition(":")[2])
    if path.endswith("module_fqns_per_model_part"):
        return json.dumps([word.split(",") for word in words[1:]])
    if len(words) == 1:
        return "false" if ".no-" in words[0] else "true"
    return words[1] if words[1].isdigit() else json.dumps(words[1])
