"""The target ``torchrun``: a script that every node runs, which starts a process for each of its devices.

Text in shell syntax is made here alone: words of plans and users are quoted, and files of a framework are
here-documents, so that what a launcher emits is whole. Options are those of ``torch/distributed/run.py``
(torch 2.13) and of ``accelerate launch`` (1.15).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from autoplan.errors import UnsupportedError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.emitted_text import as_comment
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, StartedProgram, Target

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

#: Port of the rendezvous, PyTorch's own default.
PORT: Final = 29500
#: Words of the usual training program of a framework.
_PROGRAMS: Final = {"megatron-lm": ("pretrain_gpt.py",), "torchtitan": ("-m", "torchtitan.train")}
_USUAL: Final = ("train.py",)
#: Frameworks whose program is told the file, and by which argument; accelerate's launcher is told itself.
_FILE_ARGUMENTS: Final = {"deepspeed": interface("deepspeed").data["file_argument"]}
_FOLDER: Final = "CONFIG_DIR"
_END: Final = "END_OF_FILE"
_LONGEST_NAME: Final = 40


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """How many nodes there are, and how many processes each has, one for a device."""

    nodes: int
    per_node: int


def node_group(run: PlannedRun) -> NodeGroup:
    """Return the nodes of a run; raises UnsupportedError for devices that do not fill them evenly."""
    devices, most = run.layout.devices, run.job.cluster.node.devices
    nodes = -(-devices // most)
    if devices % nodes:
        raise UnsupportedError(f"{devices} devices are no even number for each of {nodes} nodes of {most}")
    return NodeGroup(nodes, devices // nodes)


def started_program(run: PlannedRun) -> StartedProgram:
    """Return what a launcher starts; raises UnsupportedError where nothing is said."""
    if run.started is None:
        raise UnsupportedError("a launcher starts the program of a framework: name it with --framework")
    if not (run.started.emission.by_arguments or _told(run.started.framework)):
        message = f"{run.started.framework} is started by its own command: emit it without a launcher"
        raise UnsupportedError(message)
    return run.started


def _told(framework: str) -> bool:
    return framework in _FILE_ARGUMENTS or framework == "accelerate"


def job_name(run: PlannedRun) -> str:
    """Return a name for the job of a run: a label of letters, digits and dashes, as DNS has them.

    >>> job_name(PlannedRun(load_job("llama3-8b-8x-a100"), parse_layout("dp=8", layers=32, devices=8)))
    'llama3-8b'
    """
    dashed = "".join(c if c.isascii() and c.isalnum() else "-" for c in run.job.model.name.lower())
    return dashed.strip("-")[:_LONGEST_NAME].strip("-") or "training"


def file_lines(started: StartedProgram, folder: str) -> list[str]:
    """Return the lines that export variables and write the framework's files into ``folder``.

    ``folder`` is in shell syntax, such as ``$(mktemp -d)``.
    """
    emission = started.emission
    lines = [f"export {name}={shlex.quote(value)}" for name, value in emission.environment.items()]
    if emission.by_arguments:
        return lines
    lines += [f"{_FOLDER}={folder}", f'mkdir -p "${_FOLDER}"']
    for file in emission.files:
        end = _END
        while end in file.text:
            end += "_"
        name = shlex.quote(file.name)
        lines += [f"cat >\"${_FOLDER}\"/{name} <<'{end}'", *file.text.rstrip("\n").split("\n"), end]
    return lines


def start_lines(
    started: StartedProgram, group: NodeGroup, meeting: Sequence[str], rank: str = '"$NODE_RANK"'
) -> list[str]:
    """Return the lines of the words that start the processes of a node, in shell syntax.

    ``meeting`` are the options with which the processes of several torchruns find each other; ``rank`` is the
    node's, in shell syntax. MASTER_ADDR and MASTER_PORT are variables where there are several nodes.
    """
    if started.framework == "accelerate":
        first = _accelerate_words(started, group, rank)
    elif group.nodes == 1:
        first = ["torchrun", "--standalone", f"--nproc-per-node={group.per_node}"]
    else:
        first = ["torchrun", f"--nnodes={group.nodes}", f"--nproc-per-node={group.per_node}", *meeting]
    program = started.program or _PROGRAMS.get(started.framework, _USUAL)
    return [" ".join(first), shlex.join(program), *_arguments(started)]


def _accelerate_words(started: StartedProgram, group: NodeGroup, rank: str) -> list[str]:
    file = started.emission.files[0]
    words = ["accelerate", "launch", "--config_file", f'"${_FOLDER}"/{shlex.quote(file.name)}']
    if group.nodes == 1:
        return words
    words += ["--machine_rank", rank, "--main_process_ip", '"$MASTER_ADDR"', "--same_network"]
    words += ["--main_process_port", '"$MASTER_PORT"']
    if "distributed_type: DEEPSPEED\n" in file.text:
        words += ["--deepspeed_multinode_launcher", "standard"]
    return words


def _arguments(started: StartedProgram) -> Iterator[str]:
    """Yield a line for each option of the plan, with its values, and for each word that belongs to none."""
    argument = _FILE_ARGUMENTS.get(started.framework)
    if argument is not None:
        yield f'{argument} "${_FOLDER}"/{shlex.quote(started.emission.files[0].name)}'
    line: list[str] = []
    for word in started.emission.arguments:
        if line and (word.startswith("--") or not line[0].startswith("--")):
            yield shlex.join(line)
            line = []
        line.append(word)
    if line:
        yield shlex.join(line)
