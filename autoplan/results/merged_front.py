"""Objectives and limits over several numbers of devices and batches.

Between layouts of one number of devices N and one batch B, tokens per second are B s / T, cost and energy are
proportional to N T: all of them are monotone in the step time T, and N is the same. So one layout dominates
another in any set of objectives exactly where it does in those of T and memory that the set asks for, and a
layout that is dominated on the (T, memory) front of its N and B is dominated over all of them. Conversely,
what is dominated by a layout of another N or B is dominated by one on that layout's own front. The front over
all is therefore the set of non-dominated plans of all fronts.

Cost and energy of a layout per billion tokens.

Notation (this file only)::

    N  devices                                 [1]
    T  step seconds                            [s]
    B  sequences of a step                     [1]
    s  tokens of a sequence                    [1]
    c  price of a device-hour, in its currency [1]
    P  power limit of a device                 [W]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from autoplan.results.plan import Plan
from autoplan.schema.job import Job, Objective
from autoplan.units import format_seconds

BILLION: Final = 10**9


def steps_per_billion_tokens(job: Job) -> float:
    """Return the steps that train on a billion tokens [1]: 1e9 / (B s).

    >>> round(steps_per_billion_tokens(load_job("llama3-8b-8x-a100")), 1)  # 1e9 / (128 x 8,192)
    953.7

    Leaves out: padding, and tokens that are masked.
    """
    return BILLION / job.step_tokens


def cost_per_step(job: Job, step_seconds: float) -> float | None:
    """Return what a step costs [currency of the price]: N T c / 3600; None without a price.

    >>> from autoplan.schema.adapters import PriceSpec
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

    >>> energy_per_step(load_job("llama3-8b-8x-a100"), 30.0)  # 8 x 30 x 400
    96000.0

    Leaves out: hosts, network and cooling; and devices that draw less than their limit, as they do while they
    wait: it is an estimate from above.
    Source: the power limit of the device's file.
    """
    power = job.cluster.device.power
    return None if power is None else job.cluster.devices * step_seconds * power.value


_TIMED: Final = frozenset({"step_time", "tokens_per_second", "cost", "energy"})


def batch_of(plan: Plan) -> int:
    """Return the sequences of a step of ``plan``."""
    return plan.layout.dp * plan.layout.microbatch * plan.predicted.microbatches


#: Devices, sequences of a step, and program with its way: what tells the choices of a job apart.
ChoiceKey = tuple[int, int, str | None]


def choice_key(job: Job) -> ChoiceKey:
    """Return the devices, batch and program of ``job``, which identify it among the choices of a job."""
    program = None if job.program is None else job.program.key
    return job.cluster.devices, job.workload.global_batch_size, program


def plan_key(plan: Plan) -> ChoiceKey:
    """Return the key of the choice that ``plan`` is for; without a program where its front has one."""
    program = None if plan.program is None else plan.program.key
    return plan.layout.devices, batch_of(plan), program


def at_batch(job: Job, plan: Plan) -> Job:
    """Return the choice of ``job`` that ``plan`` is for."""
    key = plan_key(plan)
    for choice in job.choices:
        of_choice = choice_key(choice)
        if of_choice == key or (plan.program is None and of_choice[:2] == key[:2]):
            return choice
    return job


_SMALL: Final[Mapping[Objective, Callable[[Job, Plan], float]]] = {
    "step_time": lambda _, plan: plan.predicted.step_seconds,
    "tokens_per_second": lambda _, plan: -plan.predicted.tokens_per_second,
    "peak_memory": lambda _, plan: plan.predicted.peak_memory_bytes_per_device,
    "devices": lambda job, _: job.cluster.devices,
    "cost": lambda job, plan: _known(cost_per_step(job, plan.predicted.step_seconds)) * _steps(job),
    "energy": lambda job, plan: _known(energy_per_step(job, plan.predicted.step_seconds)) * _steps(job),
}


def _known(value: float | None) -> float:
    assert value is not None  # noqa: S101 - a job that asks for it without price or power is refused
    return value


def _steps(job: Job) -> float:
    return steps_per_billion_tokens(job)


def values_of(job: Job, plan: Plan) -> tuple[float, ...]:
    """Return the minimized values of the objectives of ``job``; tokens per second are negated."""
    return tuple(float(_SMALL[name](job, plan)) for name in job.objectives)


def target_of(job: Job, plan: Plan) -> str | None:
    """Return the launch target that writes ``plan``, of its program or else of its stack; None: none does."""
    program = plan.program or job.program
    return job.stack.launched_by if program is None else program.target


def inner_objectives(objectives: Sequence[Objective]) -> frozenset[str]:
    """Return which of step time and memory decide between layouts of one number of devices and one batch."""
    timed = {"step_time"} if _TIMED.intersection(objectives) else set()
    return frozenset((timed | {"peak_memory"}.intersection(objectives)) or {"step_time"})


def step_limit(job: Job) -> tuple[float, str] | None:
    """Return the longest step that the limits of ``job`` allow [s], with the limit; None without one."""
    limits = job.limits
    steps, name = steps_per_billion_tokens(job), "limits.{} allows"
    longest = []
    if limits.step_time is not None:
        longest.append((limits.step_time, f"{name.format('step_time')} {format_seconds(limits.step_time)}"))
    if limits.tokens_per_second is not None:
        seconds = job.step_tokens / limits.tokens_per_second
        longest.append(
            (seconds, f"limits.tokens_per_second requires {limits.tokens_per_second:,.0f} or more")
        )
    if limits.cost is not None and (one := cost_per_step(job, 1.0)) is not None and job.price is not None:
        cost = f"{name.format('cost')} {limits.cost:,.6g} {job.price.currency} for a billion tokens"
        longest.append((limits.cost / steps / one, cost))
    if limits.energy is not None and (one := energy_per_step(job, 1.0)) is not None:
        cost = f"{name.format('energy')} {limits.energy / 3.6e6:,.6g} kWh for a billion tokens"
        longest.append((limits.energy / steps / one, cost))
    return min(longest, default=None)


def question_fields(job: Job, plan: Plan) -> dict[str, Any]:
    """Return devices, batch, program, cost and energy of a plan.

    Money is in the currency of the price; a billion tokens are 1e9.
    """
    seconds, steps = plan.predicted.step_seconds, steps_per_billion_tokens(job)
    money, joules = cost_per_step(job, seconds), energy_per_step(job, seconds)
    return {
        "devices": plan.layout.devices,
        "global_batch_size": job.workload.global_batch_size,
        "program": None if job.program is None else job.program.key,
        "cost": None
        if money is None or job.price is None
        else {
            "per_step": money,
            "per_billion_tokens": money * steps,
            "currency": job.price.currency,
            "date": job.price.date,
        },
        "energy": None
        if joules is None
        else {
            "joules_per_step": joules,
            "joules_per_billion_tokens": joules * steps,
            "kind": "estimate",
            "basis": "every device at its power limit during the step",
        },
    }


def question_words(job: Job, jobs: Sequence[Job]) -> str:
    """Return program, devices and batch of ``job``: those in which ``jobs`` differ."""
    parts = []
    if job.program is not None and len({other.program for other in jobs}) > 1:
        parts.append(job.program.words)
    if len({other.cluster.devices for other in jobs}) > 1:
        parts.append(job.cluster.devices_words)
    if len({other.workload.global_batch_size for other in jobs}) > 1:
        parts.append(f"a batch of {job.workload.global_batch_size:,}")
    return ", ".join(parts)
