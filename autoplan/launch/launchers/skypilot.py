"""The target ``skypilot``: a task of ``sky launch``, whose commands run on every node.

Names of accelerators are those of ``sky/utils/gpu_names.py`` and of ``sky show-gpus``, variables those of
``sky/skylet/constants.py``, of the version that TARGET names.
"""

from __future__ import annotations

from typing import Final

from autoplan.errors import UnsupportedError
from autoplan.launch.emitted_text import manifest_text
from autoplan.launch.launchers.torchrun import PORT, job_name, node_group, node_lines, started_program
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, Target
from autoplan.schema.job import Job

_FILE: Final = "task.yaml"
#: Accelerators by our names of devices.
_ACCELERATORS: Final = {
    "a10": "A10",
    "a10g": "A10G",
    "a100-pcie-40gb": "A100",
    "a100-sxm4-40gb": "A100",
    "a100-pcie-80gb": "A100-80GB",
    "a100-sxm4-80gb": "A100-80GB",
    "a30": "A30",
    "a40": "A40",
    "b200-sxm-180gb": "B200",
    "b300-sxm-288gb": "B300",
    "gb200-186gb": "GB200",
    "gb300-288gb": "GB300",
    "gh200-96gb": "GH200",
    "h100-pcie-80gb": "H100",
    "h100-sxm5-80gb": "H100",
    "h200-sxm-141gb": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "mi300x": "MI300X",
    "rtx-a6000": "A6000",
    "t4": "T4",
    "v100-pcie-16gb": "V100",
    "v100-sxm2-16gb": "V100",
    "v100-pcie-32gb": "V100-32GB",
    "v100-sxm2-32gb": "V100-32GB",
}


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
    usage = f"usage: sky launch {_FILE} --workdir . (the folder with the training program)"
    text = manifest_text(document, (*run.header, usage))
    return Emission((EmittedFile(_FILE, text),), notes=started.emission.notes)


def _accelerator(job: Job) -> str:
    device = job.cluster.device.name
    if device not in _ACCELERATORS:
        accelerators = ", ".join(_ACCELERATORS)
        raise UnsupportedError(f"no accelerator of SkyPilot is known for {device}: known are {accelerators}")
    return _ACCELERATORS[device]


TARGET: Final = Target(
    name="skypilot",
    framework="SkyPilot",
    version="0.14.1",
    check="accepted by the framework's parser",
    emit=emit_skypilot,
    starts=True,
)
