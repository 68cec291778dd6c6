"""The target ``slurm``: a batch script for ``sbatch``, which starts one launcher on each node with ``srun``.

Options are those of the manual pages of sbatch and srun of Slurm 24.11; ``--gpus-per-node`` counts devices of
any kind that the cluster calls GPUs.
"""

from __future__ import annotations

from typing import Final

from autoplan.launch.emitted_text import as_comment
from autoplan.launch.launchers.torchrun import (
    PORT,
    NodeGroup,
    file_lines,
    job_name,
    node_group,
    start_lines,
    started_program,
)
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, StartedProgram, Target

_FILE: Final = "train.sbatch"
#: Options with which torchruns meet that do not know their rank.
_MEETING: Final = (
    "--rdzv-backend=c10d",
    '--rdzv-id="$SLURM_JOB_ID"',
    '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"',
)
_FOLDER: Final = '"$SLURM_SUBMIT_DIR/autoplan-$SLURM_JOB_ID"'


def emit_slurm(run: PlannedRun) -> Emission:
    """Return the plan as a batch script; arguments of ``sbatch`` after it go to the training program."""
    started, group = started_program(run), node_group(run)
    usage = f"usage: sbatch {_FILE} (add your partition, account and time limit)"
    options = {
        "job-name": job_name(run),
        "nodes": group.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": group.per_node,
    }
    directives = "".join(f"#SBATCH --{name}={value}\n" for name, value in options.items())
    head = f"#!/bin/bash\n{as_comment((*run.header, usage))}{directives}"
    lines = ["set -euo pipefail", *_meeting_lines(group), *file_lines(started, _FOLDER)]
    lines += _command_lines(started, group)
    notes = (*started.emission.notes, "the folder of the job is one that all nodes share")
    body = "".join(f"{line}\n" for line in lines)
    return Emission((EmittedFile(_FILE, f"{head}{body}"),), notes=notes)


def _meeting_lines(group: NodeGroup) -> list[str]:
    if group.nodes == 1:
        return []
    return [
        'HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "MASTER_ADDR=${HOSTS%%$'\\n'*}",
        f"MASTER_PORT={PORT}",
        "export MASTER_ADDR MASTER_PORT",
    ]


def _command_lines(started: StartedProgram, group: NodeGroup) -> list[str]:
    """Return the command as an array, and the line that starts it on every node.

    accelerate has to know the rank of a node, which only the node itself does.
    """
    first, *rest = start_lines(started, group, _MEETING, rank='"$1"')
    ranked = started.framework == "accelerate" and group.nodes > 1
    array = rest if ranked else [first, *rest]
    lines = ["COMMAND=(", *(f"    {line}" for line in array), ")"]
    start = "srun --kill-on-bad-exit=1"
    if not ranked:
        return [*lines, f'{start} "${{COMMAND[@]}}" "$@"']
    words = first.replace('"$1"', '"$SLURM_NODEID"')
    return [
        "export CONFIG_DIR",
        *lines,
        f'{start} bash -c \'exec {words} "$@"\' accelerate "${{COMMAND[@]}}" "$@"',
    ]


TARGET: Final = Target(
    name="slurm",
    framework="Slurm",
    version="24.11",
    check="names checked",
    emit=emit_slurm,
    starts=True,
)
