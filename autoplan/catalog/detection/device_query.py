"""Devices of this machine, as the driver's library reports them: NVML (nvidia-ml-py) or AMD SMI (amdsmi)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Final, Literal

from autoplan.errors import CatalogError

__all__ = ["DeviceLinkFound", "FoundDevices", "found_devices"]

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
        except Exception as error:  # noqa: BLE001 - each version of a driver's library has its own
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
