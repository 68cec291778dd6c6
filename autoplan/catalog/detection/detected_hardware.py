"""The catalogue's entry of the devices that were found.

The driver's name of a device is compared with names of the catalogue word by word; memory decides between
variants. A word that no variant has means another device, and nothing is guessed.

How many nodes a job has, by the environment of Slurm, Kubernetes, torchrun, Ray or Open MPI.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autoplan.catalog.detection.device_query import FoundDevices, found_devices
from autoplan.errors import CatalogError
from autoplan.units import format_bytes

__all__ = ["DetectedHardware", "catalogue_name", "detected_hardware"]

#: Words of drivers' names that say nothing about which device it is.
_SILENT: Final = frozenset(
    {
        "nvidia",
        "geforce",
        "tesla",
        "amd",
        "instinct",
        "radeon",
        "generation",
        "server",
        "workstation",
        "edition",
    }
    | {"hbm2", "hbm2e", "hbm3", "hbm3e", "oam", "ac"}
)
_MEMORY: Final = re.compile(r"[0-9]+gb?")
_FORM: Final = re.compile(r"(sxm|pcie|nvl)[0-9]*")
#: Parts of catalogue names that the driver does not say: half a device, a clock.
_DETAIL: Final = re.compile(r"gcd|[0-9]+w|hbm[0-9]e?")
#: A driver reports a little less than what is on the device.
_MEMORY_TOLERANCE: Final = 0.08


@dataclass(frozen=True, slots=True)
class DetectedHardware:
    """What was found on this machine and in its environment, and the catalogue's entry for it."""

    devices: FoundDevices
    nodes: int
    nodes_variable: str | None
    device: str
    entry: str

    @property
    def total(self) -> int:
        """Devices of all nodes."""
        return self.devices.count * self.nodes


def detected_hardware(
    capacities: Callable[[], dict[str, float]], is_node: Callable[[str], bool]
) -> DetectedHardware:
    """Return the hardware of this machine; ``capacities`` are the bytes of each device of the catalogue.

    Raises CatalogError where there are no devices, or none that the catalogue knows.
    """
    devices = found_devices()
    nodes, variable = found_nodes()
    name = catalogue_name(devices, capacities())
    entry = f"{devices.count}x-{name}"
    if not is_node(entry):
        raise CatalogError(
            f"hardware: auto found {devices.count} x {devices.name}, and the catalogue has no node with so"
            f" many of {name}: choose 1, 2, 4 or 8 of them, or describe the node in a file of its own"
        )
    return DetectedHardware(devices, nodes, variable, name, entry)


def catalogue_name(devices: FoundDevices, capacities: dict[str, float]) -> str:
    """Return the catalogue's name of a device; raises CatalogError where there is none, or several.

    >>> one = FoundDevices("NVIDIA H100 80GB HBM3", 8, 85.5e9, "NVLink", "all pairs", "NVML")
    >>> catalogue_name(one, {"h100-sxm5-80gb": 85.5e9, "h100-pcie-80gb": 85.5e9, "h200-sxm-141gb": 150e9})
    'h100-sxm5-80gb'
    """
    words = frozenset(filter(None, re.split(r"[^a-z0-9]+", devices.name.lower())))
    fits = {
        name: family
        for name, capacity in capacities.items()
        if (family := _family(name, words)) is not None
        and abs(capacity / devices.memory_bytes - 1.0) <= _MEMORY_TOLERANCE
    }
    longest = max((len(family) for family in fits.values()), default=0)
    best = [name for name, family in fits.items() if len(family) == longest]
    if len(best) == 1:
        return best[0]
    called = f"{devices.name} with {format_bytes(devices.memory_bytes)}"
    if best:
        raise CatalogError(
            f"hardware: auto found {called}, which may be {' or '.join(sorted(best))}: name it"
        )
    near = difflib.get_close_matches("-".join(sorted(words - _SILENT)), capacities, 3, 0.4)
    hint = f"the nearest are {', '.join(near)}" if near else "see `autoplan catalog list device`"
    raise CatalogError(
        f"hardware: auto found {called}, which the catalogue does not have: {hint}; name one as hardware,"
        f" such as {devices.count}x-DEVICE, or describe the device in a catalogue of your own"
    )


def _family(name: str, words: frozenset[str]) -> frozenset[str] | None:
    """Return the words that ``name`` shares with a device's; None where it is another device."""
    parts = name.split("-")
    family = frozenset(
        x for x in parts if not (_MEMORY.fullmatch(x) or _FORM.fullmatch(x) or _DETAIL.fullmatch(x))
    )
    forms = {match[1] for part in parts if (match := _FORM.fullmatch(part))}
    said = {match[1] for word in words if (match := _FORM.fullmatch(word))}
    left = {
        word for word in words - family - _SILENT if not (_MEMORY.fullmatch(word) or _FORM.fullmatch(word))
    }
    # Names of PCIe cards say so; those of modules may not.
    other_form = said.isdisjoint(forms) if said and forms else bool(forms & {"pcie", "nvl"}) and not said
    return None if left or other_form or not family <= words else family


#: Variables with the number of nodes, the narrowest first: what torchrun gives its workers, what Kubeflow's
#: PyTorchJob and TrainJob set for torchrun, then the step and the job of Slurm.
_VARIABLES: Final = (
    "GROUP_WORLD_SIZE",
    "PET_NNODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
)
#: Variables with the number of processes, of all nodes and of one: those of workers of Ray Train, which
#: torchrun gives its own, too, and those of Open MPI.
_PROCESSES: Final = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)


def found_nodes() -> tuple[int, str | None]:
    """Return the number of nodes, and the variable that says so; one, and None, outside of a job.

    Raises CatalogError for a variable that is no number, such as the range of an elastic job.
    """
    for variable in _VARIABLES:
        if os.environ.get(variable):
            return _number(variable), variable
    for names in _PROCESSES:
        if all(os.environ.get(name) for name in names):
            everywhere, here = map(_number, names)
            if everywhere % here:
                raise CatalogError(
                    f"{names[0]}={everywhere} is no multiple of {names[1]}={here}: name the hardware"
                )
            return everywhere // here, names[0]
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
