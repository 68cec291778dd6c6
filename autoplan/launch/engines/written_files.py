"""Files that a script writes by itself: the here-documents that it sends to a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from autoplan.launch.scripts.pieces import text_of, unknown_of
from autoplan.launch.scripts.script import Script

__all__ = ["written_files"]

#: ``cat > FILE << END`` in either order, and the lines up to END.
_DOCUMENT: Final = re.compile(
    r"^[ \t]*cat[ \t]*(?:"
    r"(?P<more>>>?)[ \t]*(?P<file>[^\s<>]+)[ \t]*<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)|"
    r"<<-?[ \t]*(?P<quote2>['\"]?)(?P<end2>\w+)(?P=quote2)[ \t]*(?P<more2>>>?)[ \t]*(?P<file2>[^\s<>]+)"
    r")[ \t]*\n(?P<text>.*?)^[ \t]*(?:(?P=end)|(?P=end2))[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_EXPANSION: Final = re.compile(r"\$\{\w+[^\w}]|\$\(|`")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def written_files(text: str, script: Script, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the files that a script writes, by name; those with unknown variables are left out.

    What a command appends (``>>``) comes behind, where the script runs that command for certain. Variables
    have the values that they have at the end of the script, or those given from outside.
    """
    known = {**variables, **_known(script)}
    certain = {command.line for command in script.commands if not command.doubt}
    files: dict[str, str] = {}
    for document in _DOCUMENT.finditer(text):
        quoted = document["quote"] or document["quote2"]
        name = _filled(document["file"] or document["file2"], known)
        content = document["text"] if quoted else _filled(document["text"], known)
        if name is None or content is None:
            continue
        name = name.strip("\"'").rsplit("/", 1)[-1]
        if (document["more"] or document["more2"]) == ">":
            files[name] = content
        elif text.count("\n", 0, document.start()) + 1 in certain:
            files[name] = files.get(name, "") + content
    return files


def _known(script: Script) -> dict[str, str]:
    texts = {name: value for name, value in script.variables.items() if isinstance(value, tuple)}
    return {name: text_of(value) for name, value in texts.items() if unknown_of(value) is None}


def _filled(text: str, known: Mapping[str, str]) -> str | None:
    """Return a text with its variables filled in; None where one is not known, or more than a variable."""
    names = [a or b for a, b in _VARIABLE.findall(text)]
    if _EXPANSION.search(text) or any(name not in known for name in names):
        return None
    return _VARIABLE.sub(lambda match: known[match[1] or match[2]], text)
