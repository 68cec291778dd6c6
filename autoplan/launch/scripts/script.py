"""What a shell script does, known without executing it: commands, and options of Slurm and PBS."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.scripts.pieces import Text, Value, Word, text_of, unknown_of

_LINE: Final = re.compile(r"\s*#SBATCH\s+(.*)")
#: The request of nodes of PBS, or of a part of them.
_SELECT: Final = re.compile(r"\s*#PBS\s+-l\s*select=(\d{1,6})((?::\w+=[\w.]+)*)\s*(?:,.*)?$")
_SHORT: Final = {
    "N": "nodes",
    "n": "ntasks",
    "G": "gpus",
    "J": "job-name",
    "c": "cpus-per-task",
    "p": "partition",
}
_GPUS: Final = re.compile(r"(?:gpu:)?(?:[A-Za-z0-9_.-]+:)?([0-9]{1,6})(?:\(.*\))?")


@dataclass(frozen=True, slots=True)
class Directive:
    """The value of an option, and its line."""

    value: str
    line: int


def slurm_directives(text: str, line: int = 1) -> dict[str, Directive]:
    r"""Return the options of ``#SBATCH`` lines by long name; ``line`` is that of the first line of ``text``.

    >>> slurm_directives("#!/bin/bash\n#SBATCH -N 4 --gres=gpu:8")["nodes"]
    Directive(value='4', line=2)
    """
    directives: dict[str, Directive] = {}
    for number, content in enumerate(text.splitlines(), start=line):
        match = _LINE.match(content)
        if match:
            for name, value in _options(match[1]):
                directives[name] = Directive(value, number)
    return directives


def pbs_directives(text: str) -> dict[str, Directive]:
    r"""Return the nodes and the GPUs of each that ``#PBS -l select=`` asks for, by Slurm's names.

    >>> pbs_directives("#PBS -l select=32:ncpus=8:ngpus=8")["nodes"]
    Directive(value='32', line=1)
    """
    for number, content in enumerate(text.splitlines(), start=1):
        match = _SELECT.match(content)
        gpus = re.search(r":ngpus=(\d{1,4})\b", match[2]) if match else None
        if match and gpus:
            return {"nodes": Directive(match[1], number), "gpus-per-node": Directive(gpus[1], number)}
    return {}


def _options(text: str) -> list[tuple[str, str]]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return []
    options: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            options.append((name, value))
        elif word.startswith("-") and len(word) > 1 and word[1] in _SHORT:
            options.append((_SHORT[word[1]], word[2:].removeprefix("=")))
        elif options and not options[-1][1]:
            options[-1] = (options[-1][0], word)
    return options


def slurm_variables(directives: Mapping[str, Directive]) -> dict[str, str]:
    """Return the variables that Slurm sets for a script with such options."""
    values = {name: directive.value for name, directive in directives.items()}
    nodes, per_node = values.get("nodes", ""), values.get("ntasks-per-node", "")
    variables = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_NTASKS": values.get("ntasks", ""),
        "SLURM_GPUS_PER_NODE": values.get("gpus-per-node", ""),
        "SLURM_GPUS": gpus_in(values.get("gpus", "")),
        "SLURM_CPUS_PER_TASK": values.get("cpus-per-task", ""),
        "SLURM_GPUS_ON_NODE": gpus_in(values.get("gpus-per-node", "") or values.get("gres", "")),
    }
    if nodes.isdigit() and per_node.isdigit() and not variables["SLURM_NTASKS"]:
        variables["SLURM_NTASKS"] = str(int(nodes) * int(per_node))
    variables["SLURM_NPROCS"] = variables["SLURM_NTASKS"]
    # Scripts ask by it whether Slurm runs them.
    variables["SLURM_JOB_ID"] = "1" if directives else ""
    return {name: value for name, value in variables.items() if value.isdigit()}


def gpus_in(text: str) -> str:
    """Return the number of GPUs that an option names; empty where it names none.

    >>> gpus_in("gpu:a100:8"), gpus_in("4"), gpus_in("shard:2,gpu:2")
    ('8', '4', '2')
    """
    for part in text.split(","):
        match = _GPUS.fullmatch(part)
        if match and (part.startswith("gpu") or ":" not in part):
            return match[1]
    return ""


#: Launchers that run one command on every device: that of NVIDIA's Base Command Platform.
_RUNNERS: Final = frozenset({"bcprun"})
SHELLS: Final = frozenset({"bash", "sh", "zsh", "ksh", "dash"})


@dataclass(frozen=True, slots=True)
class Command:
    """A command and the variables of its ``environment``; ``doubt`` says on what it depends."""

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
