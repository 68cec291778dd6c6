"""What a shell script does, as far as it is known without executing it, and scripts that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.scripts.pieces import Text, Word, text_of, unknown_of
from autoplan.launch.scripts.slurm_directives import Directive
from autoplan.launch.scripts.variables import Value

#: Launchers that run one command on every device: that of NVIDIA's Base Command Platform.
_RUNNERS: Final = frozenset({"bcprun"})
SHELLS: Final = frozenset({"bash", "sh", "zsh", "ksh", "dash"})


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a script runs; ``doubt`` says on what it depends, where that is not known.

    ``environment`` has the variables that are set for it alone.
    """

    words: tuple[Word, ...]
    line: int
    doubt: str = ""
    environment: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Script:
    """What a script does: commands in order, variables at its end, and the options of Slurm.

    ``written`` are the texts of files that it writes, by name. ``notes`` are sentences for the user;
    ``hints`` say which unset variables decide conditions.
    """

    file: str
    commands: tuple[Command, ...]
    variables: Mapping[str, Value]
    directives: Mapping[str, Directive]
    notes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    written: Mapping[str, Text] = field(default_factory=dict)


def script_place(words: Sequence[Word]) -> int | None:
    """Return the place of the word that a shell among ``words`` gets as its script, behind ``-c``.

    >>> script_place([Word(text, 1) for text in ("srun", "-l", "bash", "-xc", "python train.py")])
    4
    """
    for at, word in enumerate(words):
        if word.text in _RUNNERS:
            return next(
                (i + 1 for i, w in enumerate(words[:-1]) if i > at and w.text in {"-c", "--cmd"}), None
            )
        if word.text.rsplit("/", 1)[-1] not in SHELLS:
            continue
        places = [i for i in range(at + 1, len(words)) if not words[i].text.startswith("-")]
        if places and any(re.fullmatch(r"-[a-z]*c", w.text) for w in words[at + 1 : places[0]]):
            return places[0]
    return None


#: Names of shell scripts, and what runs them besides a shell.
_SCRIPT: Final = re.compile(r"[\w./-]+\.(?:sh|bash|slurm|sbatch)")
_RUNNING: Final = frozenset({*SHELLS, "srun", "sbatch", "nohup", "time", "exec"})


def called_place(words: Sequence[Word]) -> int | None:
    """Return the place of a script that a command runs: its first word, or behind a shell or Slurm.

    >>> [called_place([Word(text, 1) for text in line.split()]) for line in ("srun bash a.sh 8", "cp a.sh b")]
    [2, None]
    """
    for at, word in enumerate(words):
        if _SCRIPT.fullmatch(word.text) is not None:
            before = {other.text.rpartition("/")[2] for other in words[:at]}
            plain = all(other.text.startswith("-") for other in words[1:at]) or bool(before & SHELLS)
            return at if at == 0 or (before & _RUNNING and plain) else None
    return None


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
