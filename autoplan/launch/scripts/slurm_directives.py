"""Options of Slurm and PBS in a script, and the variables that those of Slurm set in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
