"""Clock of a device in hours of work, over that of a short sweep.

Notation (this file only)::

    P, F  power limit and 16-bit peak of a device                        [W], [FLOP/s]
    P', F'  those of the device that the kernels were measured on        [W], [FLOP/s]
"""

from __future__ import annotations

from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec

__all__ = ["sustained_share"]


def sustained_share(kernels: KernelSpec, device: DeviceSpec) -> float:
    """Return the rate of kernels in long runs, under the power limit, over that in a sweep [1].

    The share of the measured device, times min(1, ((P/F) / (P'/F'))^(1/3)): dynamic power is proportional to
    f V^2 and the voltage V grows with the clock f, so f is proportional to the cube root of the power that
    there is for each FLOP/s of the peak.

    >>> from autoplan.catalog import kernels_for, load_entry
    >>> kernels = kernels_for("h100-sxm5-80gb")
    >>> h100, h20 = (load_entry("device", name) for name in ("h100-sxm5-80gb", "h20-96gb"))
    >>> sustained_share(kernels, h20) == sustained_share(kernels, h100)  # an H20 has more watts a FLOP/s
    True

    Leaves out: that a device with more power to spare clocks higher.
    Source: Weste and Harris, CMOS VLSI Design, chapter 5.
    """
    return kernels.gemm.sustained_share.value * _clock_share(kernels, device)


def _clock_share(kernels: KernelSpec, device: DeviceSpec) -> float:
    """Return a device's clock under load over that of the measured device [1], at most 1."""
    power, peak = kernels.gemm.power, kernels.gemm.peak
    own_peak = device.peak_flops("bf16") or device.peak_flops("fp16")
    if power is None or device.power is None:
        return 1.0
    flops = 1.0 if peak is None or own_peak is None else own_peak / peak.value
    return float(min(1.0, (device.power.value / power.value / flops) ** (1 / 3)))
