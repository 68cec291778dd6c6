"""How many nodes a job has, by the environment of Slurm, Kubernetes, torchrun or Open MPI."""

from __future__ import annotations

import os
import re
from typing import Final

from autoplan.errors import CatalogError

__all__ = ["found_nodes"]

#: Variables with the number of nodes, the narrowest first: what torchrun gives its workers, what Kubeflow's
#: PyTorchJob and TrainJob set for torchrun, then the step and the job of Slurm.
_VARIABLES: Final = (
    "GROUP_WORLD_SIZE",
    "PET_NNODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
)
#: Open MPI says the number of processes, of all nodes and of one.
_PROCESSES: Final = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


def found_nodes() -> tuple[int, str | None]:
    """Return the number of nodes, and the variable that says so; one, and None, outside of a job.

    Raises CatalogError for a variable that is no number, such as the range of an elastic job.
    """
    for variable in _VARIABLES:
        if os.environ.get(variable):
            return _number(variable), variable
    if all(os.environ.get(variable) for variable in _PROCESSES):
        everywhere, here = map(_number, _PROCESSES)
        if everywhere % here:
            raise CatalogError(
                f"{_PROCESSES[0]}={everywhere} is no multiple of {_PROCESSES[1]}={here}: name the hardware"
            )
        return everywhere // here, _PROCESSES[0]
    return 1, None


def _number(variable: str) -> int:
    text = os.environ[variable].strip()
    # A range of one number is how torchrun writes a fixed one, too.
    fixed = re.fullmatch(r"([1-9][0-9]{0,5})(?::\1)?", text)
    if fixed is None:
        raise CatalogError(
            f"{variable}={text!r} is not a number of nodes: name `hardware` and `devices` in the job, or"
            " unset it"
        )
    return int(fixed[1])
