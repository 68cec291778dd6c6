"""The target ``torchrun``: a script that every node runs, which starts a process for each of its devices."""

from __future__ import annotations

from typing import Final

from autoplan.launch.header import as_comment
from autoplan.launch.launchers.node_script import (
    PORT,
    NodeGroup,
    file_lines,
    node_group,
    start_lines,
    started_program,
)
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, StartedProgram, Target

__all__ = ["MEETING", "TARGET", "emit_torchrun", "node_lines"]

_FILE: Final = "train.sh"
#: Options with which nodes of known rank find each other.
MEETING: Final = (
    '--node-rank="$NODE_RANK"',
    '--master-addr="$MASTER_ADDR"',
    '--master-port="$MASTER_PORT"',
)


def emit_torchrun(run: PlannedRun) -> Emission:
    """Return the plan as a bash script; several nodes each know their rank and the first one's address."""
    started, group = started_program(run), node_group(run)
    usage = f"usage: bash {_FILE}"
    if group.nodes > 1:
        usage = f"usage, on node R of {group.nodes}: MASTER_ADDR=HOST NODE_RANK=R bash {_FILE}"
    lines = ["set -euo pipefail", *_meeting_lines(group), *node_lines(started, group, more=True)]
    text = f"#!/usr/bin/env bash\n{as_comment((*run.header, usage))}" + "".join(f"{x}\n" for x in lines)
    return Emission((EmittedFile(_FILE, text),), notes=started.emission.notes)


def _meeting_lines(group: NodeGroup) -> list[str]:
    """Return the lines that check what a node has to know."""
    if group.nodes == 1:
        return []
    last = group.nodes - 1
    return [
        ': "${MASTER_ADDR:?set it to the address of the first node}"',
        f': "${{NODE_RANK:?set it to the number of this node, 0 to {last}}}"',
        f'MASTER_PORT="${{MASTER_PORT:-{PORT}}}"',
    ]


def node_lines(started: StartedProgram, group: NodeGroup, *, more: bool = False) -> list[str]:
    """Return the lines that write files and start processes on a node that knows its rank.

    With ``more``, arguments of the script go to the training program.
    """
    words = start_lines(started, group, MEETING)
    words += ['"$@"'] if more else []
    folded = [f"{line} \\" for line in words[:-1]] + words[-1:]
    command = [folded[0], *(f"    {line}" for line in folded[1:])]
    return [*file_lines(started, "$(mktemp -d)"), *command]


TARGET: Final = Target(
    name="torchrun",
    framework="torchrun",
    version="of PyTorch 2.13",
    check="accepted by the framework's parser",
    emit=emit_torchrun,
    starts=True,
)
