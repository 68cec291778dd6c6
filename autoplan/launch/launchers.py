"""Launchers: what starts a framework's program on the nodes of a cluster, with the arguments of a plan.

``torchrun`` is a script that every node runs, ``slurm`` a batch script, ``skypilot`` a task of ``sky
launch``, and ``kubernetes`` a PyTorchJob of Kubeflow's Training Operator and a TrainJob of its Trainer.
Text in shell syntax is made here alone: words of plans and users are quoted, and files of a framework are
here-documents, so that what a launcher emits is whole. Sources: ``torch/distributed/run.py`` (torch 2.13)
and ``accelerate launch`` (1.15); sbatch and srun of Slurm 24.11, whose ``--gpus-per-node`` counts devices
of any kind; ``sky/skylet/constants.py`` of SkyPilot 0.14.1; Training Operator 1.9
(``pkg/controller.v1/pytorch/envvar.go``) and Trainer 2 (``pkg/runtime/framework/plugins/torch/torch.go``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autoplan.errors import UnsupportedError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.emitted_text import as_comment, label, manifest_text, resource_of
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, StartedProgram, Target
from autoplan.schema.job import Job

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
    """Return the lines of a node that knows its rank; ``more`` hands the script's arguments on."""
    words = start_lines(started, group, MEETING)
    words += ['"$@"'] if more else []
    folded = [f"{line} \\" for line in words[:-1]] + words[-1:]
    command = [folded[0], *(f"    {line}" for line in folded[1:])]
    return [*file_lines(started, "$(mktemp -d)"), *command]


TORCHRUN: Final = Target(
    "torchrun",
    "torchrun",
    "of PyTorch 2.13",
    "accepted by the framework's parser",
    emit_torchrun,
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
    return label(run.job.model.name, "training")


def file_lines(started: StartedProgram, folder: str) -> list[str]:
    """Return the lines that export variables and write the files into ``folder``, in shell syntax."""
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


_BATCH_FILE: Final = "train.sbatch"
#: Options with which torchruns meet that do not know their rank.
_SLURM_MEETING: Final = (
    "--rdzv-backend=c10d",
    '--rdzv-id="$SLURM_JOB_ID"',
    '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"',
)
_JOB_FOLDER: Final = '"$SLURM_SUBMIT_DIR/autoplan-$SLURM_JOB_ID"'


def emit_slurm(run: PlannedRun) -> Emission:
    """Return the plan as a batch script; arguments of ``sbatch`` after it go to the training program."""
    started, group = started_program(run), node_group(run)
    usage = f"usage: sbatch {_BATCH_FILE} (add your partition, account and time limit)"
    options = {
        "job-name": job_name(run),
        "nodes": group.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": group.per_node,
    }
    directives = "".join(f"#SBATCH --{name}={value}\n" for name, value in options.items())
    head = f"#!/bin/bash\n{as_comment((*run.header, usage))}{directives}"
    lines = ["set -euo pipefail", *_slurm_meeting(group), *file_lines(started, _JOB_FOLDER)]
    lines += _command_lines(started, group)
    notes = (*started.emission.notes, "the folder of the job is one that all nodes share")
    body = "".join(f"{line}\n" for line in lines)
    return Emission((EmittedFile(_BATCH_FILE, f"{head}{body}"),), notes=notes)


def _slurm_meeting(group: NodeGroup) -> list[str]:
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
    first, *rest = start_lines(started, group, _SLURM_MEETING, rank='"$1"')
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


SLURM: Final = Target("slurm", "Slurm", "24.11", "names checked", emit_slurm, starts=True)


_TASK_FILE: Final = "task.yaml"
#: Accelerators by our names of devices.
_ACCELERATORS: Final[Mapping[str, str]] = interface("skypilot").data["accelerators"]


def emit_skypilot(run: PlannedRun) -> Emission:
    """Return the plan as a task; raises UnsupportedError for a device that SkyPilot has no name for."""
    started, group = started_program(run), node_group(run)
    several = group.nodes > 1
    meeting = [
        "MASTER_ADDR=${SKYPILOT_NODE_IPS%%$'\\n'*}",
        f"MASTER_PORT={PORT}",
        'NODE_RANK="$SKYPILOT_NODE_RANK"',
    ]
    lines = ["set -euo pipefail", *(meeting if several else ()), *node_lines(started, group)]
    image = {"image_id": f"docker:{started.image}"} if started.image else {}
    document = {
        "name": job_name(run),
        "num_nodes": group.nodes,
        "resources": {"accelerators": f"{_accelerator(run.job)}:{group.per_node}", **image},
        "run": "".join(f"{line}\n" for line in lines),
    }
    usage = f"usage: sky launch {_TASK_FILE} --workdir . (the folder with the training program)"
    text = manifest_text(document, (*run.header, usage))
    return Emission((EmittedFile(_TASK_FILE, text),), notes=started.emission.notes)


def _accelerator(job: Job) -> str:
    device = job.cluster.device.name
    if device not in _ACCELERATORS:
        accelerators = ", ".join(_ACCELERATORS)
        raise UnsupportedError(f"no accelerator of SkyPilot is known for {device}: known are {accelerators}")
    return _ACCELERATORS[device]


SKYPILOT: Final = Target(
    "skypilot", "SkyPilot", "0.14.1", "accepted by the framework's parser", emit_skypilot, starts=True
)


#: Variables of a node under each controller.
_OPERATOR: Final = {"NODE_RANK": "$RANK"}
_TRAINER: Final = {
    "NODE_RANK": "$PET_NODE_RANK",
    "MASTER_ADDR": "$PET_MASTER_ADDR",
    "MASTER_PORT": "$PET_MASTER_PORT",
}
#: Runtime of PyTorch that Kubeflow Trainer is installed with.
_RUNTIME: Final = "torch-distributed"


def emit_kubernetes(run: PlannedRun) -> Emission:
    """Return two manifests to choose from; raises UnsupportedError without an image or a known resource."""
    started, group = started_program(run), node_group(run)
    if not started.image:
        raise UnsupportedError("kubernetes runs the program in a container: name it with --image")
    limits = {resource_of(run.job.cluster.device): group.per_node}
    jobs = {
        "pytorchjob.yaml": _pytorch_job(run, started, group, limits),
        "trainjob.yaml": _train_job(run, started, group, limits),
    }
    files = tuple(
        EmittedFile(name, manifest_text(job, (*run.header, f"usage: kubectl create -f {name}")))
        for name, job in jobs.items()
    )
    return Emission(files, notes=(*started.emission.notes, "apply one of the two files"))


def _command(started: StartedProgram, group: NodeGroup, variables: dict[str, str]) -> list[str]:
    several = group.nodes > 1
    settings = [f'{name}="{value}"' for name, value in variables.items()] if several else []
    lines = ["set -euo pipefail", *settings, *node_lines(started, group)]
    return ["bash", "-c", "".join(f"{line}\n" for line in lines)]


def _pytorch_job(
    run: PlannedRun, started: StartedProgram, group: NodeGroup, limits: dict[str, int]
) -> dict[str, Any]:
    container = {
        # The operator looks for a container of this name.
        "name": "pytorch",
        "image": started.image,
        "command": _command(started, group, _OPERATOR),
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108 - the container's
    }
    memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    spec = {"restartPolicy": "Never", "template": {"spec": {"containers": [container], "volumes": [memory]}}}
    replicas = {"Master": {"replicas": 1, **spec}}
    if group.nodes > 1:
        replicas["Worker"] = {"replicas": group.nodes - 1, **_copied(spec)}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job_name(run)},
        "spec": {
            "nprocPerNode": str(group.per_node),
            # Pods stay after the job, with their logs.
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": replicas,
        },
    }


def _copied(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return an equal value that shares nothing, which YAML would write as an alias."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _train_job(
    run: PlannedRun, started: StartedProgram, group: NodeGroup, limits: dict[str, int]
) -> dict[str, Any]:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job_name(run)},
        "spec": {
            "runtimeRef": {"name": _RUNTIME},
            "trainer": {
                "image": started.image,
                "command": _command(started, group, _TRAINER),
                "numNodes": group.nodes,
                "numProcPerNode": group.per_node,
                "resourcesPerNode": {"limits": dict(limits)},
            },
        },
    }


KUBERNETES: Final = Target(
    "kubernetes",
    "Kubernetes",
    "with Kubeflow Training Operator 1.9 or Trainer 2",
    "accepted by the framework's parser",
    emit_kubernetes,
    starts=True,
)
