"""Cost and energy of a layout per billion tokens.

Notation (this file only)::

    N  devices                                 [1]
    T  step seconds                            [s]
    B  sequences of a step                     [1]
    s  tokens of a sequence                    [1]
    c  price of a device-hour, in its currency [1]
    P  power limit of a device                 [W]
"""

from __future__ import annotations

from typing import Final

from autoplan.schema.job import Job

__all__ = ["BILLION", "cost_per_step", "energy_per_step", "steps_per_billion_tokens"]

BILLION: Final = 10**9


def steps_per_billion_tokens(job: Job) -> float:
    """Return the steps that train on a billion tokens [1]: 1e9 / (B s).

    >>> from autoplan.catalog import load_job
    >>> round(steps_per_billion_tokens(load_job("llama3-8b-8x-a100")), 1)  # 1e9 / (128 x 8,192)
    953.7

    Leaves out: padding, and tokens that are masked.
    """
    return BILLION / job.step_tokens


def cost_per_step(job: Job, step_seconds: float) -> float | None:
    """Return what a step costs [currency of the price]: N T c / 3600; None without a price.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.job_choices import PriceSpec
    >>> price = PriceSpec(per_device_hour=1.8, date="2026-11-01")
    >>> cost_per_step(replace(load_job("llama3-8b-8x-a100"), price=price), 30.0)  # 8 x 30 x 1.8 / 3600
    0.12

    Leaves out: storage, network and time between steps.
    """
    if job.price is None:
        return None
    return job.cluster.devices * step_seconds * job.price.per_device_hour / 3600.0


def energy_per_step(job: Job, step_seconds: float) -> float | None:
    """Return an estimate of what the devices take in a step [J]: N T P; None where P is not known.

    >>> from autoplan.catalog import load_job
    >>> energy_per_step(load_job("llama3-8b-8x-a100"), 30.0)  # 8 x 30 x 400
    96000.0

    Leaves out: hosts, network and cooling; and devices that draw less than their limit, as they do while they
    wait: it is an estimate from above.
    Source: the power limit of the device's file.
    """
    power = job.cluster.device.power
    return None if power is None else job.cluster.devices * step_seconds * power.value
