"""The texts of shell scripts that a script names, where they lie beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.scripts.pieces import text_of, unknown_of
from autoplan.launch.scripts.script import Script

#: A script that a command names, at its start or behind a shell or Slurm.
_CALL: Final = re.compile(
    r"(?m)(?:^|[;&|\s(\"'])(?:(?:bash|sh|srun|sbatch|exec|nohup)\s+(?:-\S+\s+)*)*"
    r"((?:\.{0,2}/)?[\w./-]+\.(?:sh|bash|slurm|sbatch))\b"
)
_MOST: Final = 4


def called_text(file: LaunchFile) -> str:
    """Return the text of a shell script with those of the scripts that it names; none where it names none."""
    if file.values is not None or file.name.endswith((".yaml", ".yml", ".json", ".toml", ".py")):
        return ""
    seen: dict[str, str] = {}
    texts = [file.text]
    for text in texts:
        for match in _CALL.finditer(text):
            name = match[1].removeprefix("./")
            found = None if name in seen or len(seen) >= _MOST else file.sibling(name)
            if found is not None and found != file.text:
                seen[name] = found
                texts.append(found)
    return "\n".join(texts) if seen else ""


def script_text(file: LaunchFile) -> str:
    """Return the text that says whose a script is: its own, with that of the scripts that it runs."""
    return called_text(file) or file.text


def beside_or_written(sibling: Callable[[str], str | None], script: Script) -> Callable[[str], str | None]:
    """Return what reads a file that a script names: one beside it, else one that the script writes."""

    def text(name: str) -> str | None:
        written = script.written.get(name.rpartition("/")[2])
        if written is not None and unknown_of(written) is None:
            return text_of(written)
        return sibling(name) if written is None else None

    return text
