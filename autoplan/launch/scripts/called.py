"""The texts of shell scripts that a script names, where they lie beside it."""

from __future__ import annotations

import re
from typing import Final

from autoplan.launch.configuration import LaunchFile

__all__ = ["called_text"]

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
