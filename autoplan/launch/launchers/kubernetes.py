"""The target ``kubernetes``: a PyTorchJob of Kubeflow's Training Operator, and a TrainJob of its Trainer.

Fields and variables are those of Training Operator 1.9 (``kubeflow.org/v1``,
``pkg/controller.v1/pytorch/envvar.go``) and of Trainer 2 (``trainer.kubeflow.org/v1alpha1``,
``pkg/runtime/framework/plugins/torch/torch.go``).
"""

from __future__ import annotations

from typing import Any, Final

from autoplan.errors import UnsupportedError
from autoplan.launch.emitted_text import manifest_text
from autoplan.launch.launchers.torchrun import NodeGroup, job_name, node_group, node_lines, started_program
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, StartedProgram, Target

#: Resources of device plugins by vendor.
_RESOURCES: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
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
    """Return the plan as two manifests, of which a cluster takes the one that its controller knows.

    Raises UnsupportedError without an image, and for a device whose resource is not known.
    """
    started, group = started_program(run), node_group(run)
    if not started.image:
        raise UnsupportedError("kubernetes runs the program in a container: name it with --image")
    device = run.job.cluster.device
    if device.vendor not in _RESOURCES:
        resources = ", ".join(_RESOURCES)
        raise UnsupportedError(f"the resource of {device.name} is not known: vendors are {resources}")
    limits = {_RESOURCES[device.vendor]: group.per_node}
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


TARGET: Final = Target(
    name="kubernetes",
    framework="Kubernetes",
    version="with Kubeflow Training Operator 1.9 or Trainer 2",
    check="accepted by the framework's parser",
    emit=emit_kubernetes,
    starts=True,
)
