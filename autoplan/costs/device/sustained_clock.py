"""Clock of a device in hours of work, over that of a short sweep.

Notation (this file only)::

    P, F    power limit and 16-bit peak of a device                      [W], [FLOP/s]
    P', F'  those of the device that the kernels were measured on        [W], [FLOP/s]
    r       power for each FLOP/s of the peak over that of the latter    [1]
    s, c    its sustained share and its ceiling                          [1]
"""

from __future__ import annotations

from typing import Final

from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec

__all__ = ["sustained_share"]

#: Clock over power, in logarithms: 1/3 where the voltage grows with the clock, 1 where it is at its floor.
_EXPONENT: Final = 1 / 2
#: Share of the peak that large products reach where no power limit slows them: that of an A100 in a sweep.
_UNTHROTTLED: Final = 0.92


def sustained_share(kernels: KernelSpec, device: DeviceSpec) -> float:
    """Return the rate of kernels in long runs, under the power limit, over that in a sweep [1].

    s r^(1/2) with r = (P/F) / (P'/F'), and at most what products reach at the full clock, 0.92 / c. Dynamic
    power is proportional to f V^2. The voltage V grows with the clock f down to a floor, so that f is between
    the cube root of the power that there is for each FLOP/s and proportional to it.

    >>> from autoplan.catalog import kernels_for, load_entry
    >>> kernels = kernels_for("h100-sxm5-80gb")
    >>> h100, pcie = (load_entry("device", name) for name in ("h100-sxm5-80gb", "h100-pcie-80gb"))
    >>> round(sustained_share(kernels, pcie) / sustained_share(kernels, h100), 3)  # (350/756 / (700/989))^0.5
    0.809

    Leaves out: heat; static power, which does not fall with the clock.
    Source: Weste and Harris, CMOS VLSI Design, chapter 5.
    """
    share, ceiling = kernels.gemm.sustained_share.value, kernels.gemm.ceiling.value
    full = max(share, _UNTHROTTLED / ceiling)
    return min(share * float(_power_ratio(kernels, device) ** _EXPONENT), full)


def _power_ratio(kernels: KernelSpec, device: DeviceSpec) -> float:
    """Return r, a device's power for each FLOP/s of its peak over that of the measured device [1]."""
    power, peak = kernels.gemm.power, kernels.gemm.peak
    own_peak = device.peak_flops("bf16") or device.peak_flops("fp16")
    if power is None or device.power is None:
        return 1.0
    flops = 1.0 if peak is None or own_peak is None else own_peak / peak.value
    return float(device.power.value / power.value / flops)
