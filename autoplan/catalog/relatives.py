"""What an entry without measurements takes from its nearest relatives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from math import inf, log
from typing import TYPE_CHECKING, Final

from autoplan.catalog.entries import device, loaded
from autoplan.catalog.roots import entry_names, entry_text
from autoplan.schema.costmodel.kernel_spec import KernelSpec

if TYPE_CHECKING:
    from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
    from autoplan.schema.hardware import DeviceSpec


#: Kernels of a device that has no relative: the mean of the measured devices.
_MEAN: Final = "default"


def kernels_for(device_name: str) -> KernelSpec:
    """Return the kernel curves measured on ``device_name``, else those of its nearest measured relative.

    Before these come curves that a file lends to it. Without a relative: the mean of the measured devices.
    """
    return own_kernels(device_name) or _lent_kernels(device_name) or relatives_kernels(device_name)


def own_kernels(device_name: str) -> KernelSpec | None:
    """Return the kernel curves measured on ``device_name``, or on a device that a file says is like it."""
    return next((spec for spec in _specs_naming(device_name) if device_name in spec.devices), None)


def _lent_kernels(device_name: str) -> KernelSpec | None:
    """Return the kernel curves that a file lends to ``device_name``, which was not measured."""
    return next((spec for spec in _specs_naming(device_name) if device_name in spec.lent_to), None)


def relatives_kernels(device_name: str) -> KernelSpec:
    """Return the kernel curves of ``device_name`` where it was not measured.

    They are those of the measured device of its maker and architecture whose kind of memory, HBM or GDDR, is
    the same and whose power a FLOP/s of the peak is nearest; of several those with the same memory, then the
    nearest bandwidth. Without any: the mean of the measured devices.
    """
    return loaded("kernels", _relatives_name(device_name, os.environ.get("AUTOPLAN_CATALOG")), KernelSpec)


@cache
def _relatives_name(device_name: str, catalogue: str | None) -> str:  # noqa: ARG001 - what it is known for
    """Return the file of the kernels of a device's nearest measured relative, in the user's catalogue."""
    first_one, of = own_kernels(device_name), device(device_name)
    relatives = [
        (other, spec)
        for other, spec in _measured_like(of)
        if first_one is None or spec.name != first_one.name
    ]
    return min(relatives, key=lambda relative: _distance(of, relative[0]))[1].name if relatives else _MEAN


def _specs_naming(device_name: str) -> Iterator[KernelSpec]:
    """Yield the files of kernels in which ``device_name`` stands, the file of that name first."""
    for name in sorted(entry_names("kernels"), key=lambda name_of_spec: name_of_spec != device_name):
        if device_name in entry_text("kernels", name)[0]:
            yield loaded("kernels", name, KernelSpec)


def _measured_like(of: DeviceSpec) -> Iterator[tuple[DeviceSpec, KernelSpec]]:
    """Yield the measured devices of the same maker, architecture and kind of memory, with their kernels."""
    for name in entry_names("device"):
        if name == of.name or of.architecture not in entry_text("device", name)[0]:
            continue
        other, spec = device(name), own_kernels(name)
        alike = (other.vendor, other.architecture, _stacked(other)) == (
            of.vendor,
            of.architecture,
            _stacked(of),
        )
        if alike and spec is not None and spec.devices[0] == name:
            yield other, spec


def _stacked(of: DeviceSpec) -> bool:
    """Return whether the memory is stacked on the package (HBM), as on chips for data centres."""
    return of.memory.technology.upper().startswith("HBM")


def _distance(of: DeviceSpec, other: DeviceSpec) -> tuple[float, bool, float, str]:
    """Return how far ``other`` is from ``of``: power a FLOP/s, memory, its bandwidth, and the name."""
    one, two = _watts_a_flop(of), _watts_a_flop(other)
    power = abs(log(one / two)) if one and two else inf
    bandwidth = abs(log(of.memory.bandwidth.value / other.memory.bandwidth.value))
    return round(power, 6), of.memory.technology != other.memory.technology, bandwidth, other.name


def _watts_a_flop(of: DeviceSpec) -> float | None:
    """Return the power limit over the 16-bit peak [W s]; None where the power is not known."""
    peak = of.peak_flops("bf16") or of.peak_flops("fp16")
    return of.power.value / peak if of.power is not None and peak else None


def engine_kernels_for(device_name: str) -> tuple[EngineKernelSpec, DeviceSpec] | None:
    """Return the measured kernels of engines for ``device_name``, and the device that they were measured on.

    A device that no file names has those of the device that its kernels of training are taken from. None
    where that has none either.
    """
    named = _engine_kernels_naming(device_name)
    if named is not None:
        return named
    taken_from = kernels_for(device_name).devices[:1]
    return _engine_kernels_naming(taken_from[0]) if taken_from else None


def engine_kernels_origin(device_name: str) -> tuple[bool, str | None]:
    """Return whether kernels of engines hold for ``device_name``, else the device whose kernels it has.

    None where it has kernels of training that are its own, or the mean of all devices.
    """
    measured = engine_kernels_for(device_name)
    if measured is not None:
        spec, on = measured
        return device_name in spec.devices, None if device_name in spec.devices else on.name
    kernels = kernels_for(device_name)
    return False, None if device_name in kernels.devices else next(iter(kernels.devices), None)


def _engine_kernels_naming(device_name: str) -> tuple[EngineKernelSpec, DeviceSpec] | None:
    """Return the kernels of engines that a file has for ``device_name``; None where no file names it."""
    from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec

    names = entry_names("engine-kernels")
    for name in sorted(names, key=lambda name: name != device_name):
        if device_name in entry_text("engine-kernels", name)[0]:
            spec = loaded("engine-kernels", name, EngineKernelSpec)
            if device_name in spec.devices:
                return spec, device(spec.devices[0])
    return None
