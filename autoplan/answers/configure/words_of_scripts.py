"""Edits of arguments as edits of a script's text, in which variables hold their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from autoplan.launch.configuration import FileEdit, LaunchFile

__all__ = ["in_words_of_script"]

#: An assignment that is a line of its own, of a value or of the default of a variable.
_ASSIGNED: Final = re.compile(
    r"(?P<head>\s*(?:export\s+|local\s+|readonly\s+)?[A-Za-z_]\w*=[\"']?(?:\$\{\w+:[-=])?)(?P<value>[\w.]+)"
    r"(?P<tail>\}?[\"']?\s*(?:[;#].*)?)"
)


def in_words_of_script(
    file: LaunchFile, edits: Sequence[FileEdit], makes: Callable[[LaunchFile], bool]
) -> tuple[FileEdit, ...]:
    """Return edits whose words stand in the text of a script: ``TP=2 -> TP=1`` for an argument ``${TP}``.

    An argument whose value is that of a variable is changed where the variable is set, or else where the
    argument stands. ``makes`` says whether a file has the layout that the edits make; where the edited text
    has another one, or an argument stands in several lines, the edits are returned as they are.
    """
    lines = file.text.splitlines()
    if any(edit.path or edit.file for edit in edits):
        return tuple(edits)
    placed_edits: list[FileEdit] = []
    for edit in edits:
        placed = _placed(lines, edit)
        if placed is None:
            return tuple(edits)
        placed_edits.append(placed)
        if placed.line is not None:
            line = lines[placed.line - 1]
            lines[placed.line - 1] = line.replace(placed.before, placed.after, 1)
    words = [word for edit in placed_edits if edit.line is None for word in edit.after.split()]
    edited = replace(file, text="\n".join(lines) + "\n", arguments=(*file.arguments, *words))
    return tuple(placed_edits) if makes(edited) else tuple(edits)


def _placed(lines: Sequence[str], edit: FileEdit) -> FileEdit | None:
    """Return an edit whose words stand in its line, or adds some; None where no line is the one to change."""
    if not edit.before or edit.line is None:
        return None if edit.before else edit
    if not 0 < edit.line <= len(lines) or edit.before in lines[edit.line - 1]:
        return edit if 0 < edit.line <= len(lines) else None
    before, after = edit.before.split(), edit.after.split()
    match = _ASSIGNED.fullmatch(lines[edit.line - 1])
    one_value = len(before) == len(after) == 2 and before[0] == after[0]
    if match is not None and one_value and match["value"] == before[1]:
        changed = f"{match['head']}{after[1]}{match['tail']}"
        return replace(edit, before=match[0].strip(), after=changed.strip())
    argument = re.compile(rf"(?<!\S){re.escape(before[0])}" + r"[ =]\S+" * (len(before) - 1) + r"(?!\S)")
    places = [
        (number, match[0])
        for number, line in enumerate(lines, 1)
        if not line.lstrip().startswith("#") and (match := argument.search(line)) is not None
    ]
    return replace(edit, before=places[0][1], line=places[0][0]) if len(places) == 1 else None
