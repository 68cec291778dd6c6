"""The hardware of this machine, and how many nodes its job has: ``hardware: auto``.

The driver's name of a device is compared with names of the catalogue word by word; memory decides between
variants. A word that no variant has means another device, and nothing is guessed. Nodes are those of the
environment of Slurm, Kubernetes, torchrun, Ray or Open MPI.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Final, Literal

from autoplan.errors import CatalogError
from autoplan.units import format_bytes

#: How devices reach each other: all pairs over the fabric, some, or none.
DeviceLinkFound = Literal["all pairs", "some pairs", "none", "one device"]

#: What the two libraries raise when they are imported without their driver: amdsmi lets a KeyError through.
_NOT_THERE: Final = (ImportError, OSError, KeyError, AttributeError, ValueError, RuntimeError)


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """Devices that a process of this machine may use: name, number, and memory of each [byte].

    ``fabric`` is the name of the direct link (NVLink, Infinity Fabric) and ``linked`` which pairs have it.
    ``library`` reported them; ``restricted_by`` is the environment variable that names them, if one does.
    """

    name: str
    count: int
    memory_bytes: float
    fabric: str
    linked: DeviceLinkFound
    library: str
    restricted_by: str | None = None


@dataclass(frozen=True, slots=True)
class _Library:
    """How to ask one library: its devices, and their name, memory, identity and links."""

    name: str
    fabric: str
    variables: tuple[str, ...]
    devices: Callable[[], Sequence[Any]]
    device_name: Callable[[Any], str]
    memory_bytes: Callable[[Any], float]
    identity: Callable[[Any], str]
    partitioned: Callable[[Any], bool]
    linked: Callable[[Any, Any], bool]


def found_devices() -> FoundDevices:
    """Return the devices of this machine.

    Raises CatalogError, with what to do, where no library is installed or none of them finds a device, and
    where devices differ.
    """
    why = []
    for name, opened in (("pynvml", _nvml), ("amdsmi", _amdsmi)):
        try:
            module = import_module(name)
        except _NOT_THERE as error:
            why.append(f"{name}: {_reason(error)}")
            continue
        try:
            with opened(module) as library:
                devices = library.devices()
                if devices:
                    return _described(library, devices)
            why.append(f"{name}: no devices")
        except CatalogError:
            raise
        except Exception as error:  # noqa: BLE001 - each version of a driver's library raises others
            why.append(f"{name}: {_reason(error)}")
    raise CatalogError(
        f"hardware: auto found no devices ({'; '.join(why)}): install nvidia-ml-py or amdsmi on a machine"
        " with devices, or name the hardware (`autoplan catalog list node`)"
    )


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:120]


def _described(library: _Library, devices: Sequence[Any]) -> FoundDevices:
    devices, variable = _visible(library, devices)
    names = [library.device_name(device) for device in devices]
    if len(set(names)) > 1:
        counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        raise CatalogError(
            f"hardware: auto found devices that differ ({counted}): choose some of one kind with"
            f" {library.variables[0]}, or name the hardware"
        )
    if any(library.partitioned(device) for device in devices):
        raise CatalogError("hardware: auto found devices split by MIG, which no entry of the catalogue is")
    return FoundDevices(
        name=names[0],
        count=len(devices),
        memory_bytes=min(library.memory_bytes(device) for device in devices),
        fabric=library.fabric,
        linked=_linked(library, devices),
        library=library.name,
        restricted_by=variable,
    )


def _linked(library: _Library, devices: Sequence[Any]) -> DeviceLinkFound:
    pairs = [(a, b) for i, a in enumerate(devices) for b in devices[i + 1 :]]
    if not pairs:
        return "one device"
    linked = [library.linked(a, b) for a, b in pairs]
    return "all pairs" if all(linked) else "some pairs" if any(linked) else "none"


def _visible(library: _Library, devices: Sequence[Any]) -> tuple[Sequence[Any], str | None]:
    """Return the devices that the environment leaves visible, and the variable that says so."""
    variable = next((name for name in library.variables if name in os.environ), None)
    if variable is None:
        return devices, None
    chosen = []
    for part in filter(None, (part.strip() for part in os.environ[variable].split(","))):
        if part.isdigit() and int(part) < len(devices):
            chosen.append(devices[int(part)])
            continue
        named = [device for device in devices if library.identity(device).startswith(part)]
        if part.isdigit() or len(named) != 1:
            raise CatalogError(
                f"{variable} names {part!r}, and this machine has {len(devices)} devices, from 0 to"
                f" {len(devices) - 1}"
            )
        chosen += named
    if not chosen:
        raise CatalogError(f"{variable} is empty, so no device is visible: unset it, or name the hardware")
    return chosen, variable


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@contextmanager
def _nvml(nvml: ModuleType) -> Iterator[_Library]:
    nvml.nvmlInit()
    try:
        yield _Library(
            name="NVML",
            fabric="NVLink",
            variables=("CUDA_VISIBLE_DEVICES",),
            devices=lambda: [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())],
            device_name=lambda device: _text(nvml.nvmlDeviceGetName(device)),
            memory_bytes=lambda device: float(nvml.nvmlDeviceGetMemoryInfo(device).total),
            identity=lambda device: _text(nvml.nvmlDeviceGetUUID(device)),
            partitioned=lambda device: _mig(nvml, device),
            linked=lambda a, b: _nvlink(nvml, a, b),
        )
    finally:
        nvml.nvmlShutdown()


def _mig(nvml: ModuleType, device: Any) -> bool:  # noqa: ANN401 - a handle of the library
    try:
        return bool(nvml.nvmlDeviceGetMigMode(device)[0])
    except nvml.NVMLError:  # devices without MIG
        return False


def _nvlink(nvml: ModuleType, a: Any, b: Any) -> bool:  # noqa: ANN401 - handles of the library
    try:
        status = nvml.nvmlDeviceGetP2PStatus(a, b, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except nvml.NVMLError:  # devices without NVLink
        return False
    return bool(status == nvml.NVML_P2P_STATUS_OK)


@contextmanager
def _amdsmi(smi: ModuleType) -> Iterator[_Library]:
    smi.amdsmi_init()
    try:
        yield _Library(
            name="AMD SMI",
            fabric="Infinity Fabric",
            variables=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
            devices=smi.amdsmi_get_processor_handles,
            device_name=lambda device: str(smi.amdsmi_get_gpu_asic_info(device)["market_name"]),
            memory_bytes=lambda device: float(
                smi.amdsmi_get_gpu_memory_total(device, smi.AmdSmiMemoryType.VRAM)
            ),
            identity=lambda device: str(smi.amdsmi_get_gpu_device_uuid(device)),
            partitioned=lambda _: False,
            linked=lambda a, b: (
                smi.amdsmi_topo_get_link_type(a, b)["type"] == smi.AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI
            ),
        )
    finally:
        smi.amdsmi_shut_down()


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

    Raises CatalogError without devices, or without one of the catalogue.
    """
    devices = found_devices()
    nodes, variable = found_nodes()
    name = catalogue_name(devices, capacities())
    entry = f"{devices.count}x-{name}"
    if not is_node(entry):
        raise CatalogError(
            f"hardware: auto found {devices.count} x {devices.name}, and the catalogue has no node with so"
            f" many of {name}: choose up to 8 of them, or describe the node in a file of its own"
        )
    return DetectedHardware(devices, nodes, variable, name, entry)


def catalogue_name(devices: FoundDevices, capacities: dict[str, float]) -> str:
    """Return the catalogue's name of a device; raises CatalogError for none or several.

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
    named = {match[1] for word in words if (match := _FORM.fullmatch(word))}
    left = {
        word for word in words - family - _SILENT if not (_MEMORY.fullmatch(word) or _FORM.fullmatch(word))
    }
    # Names of PCIe cards say so; those of modules may not.
    other_form = named.isdisjoint(forms) if named and forms else bool(forms & {"pcie", "nvl"}) and not named
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
