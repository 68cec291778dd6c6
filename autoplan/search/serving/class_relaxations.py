"""Limits of single request classes that clash with others, and the nearest values that a plan holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import floor, isfinite
from typing import Final

from autoplan.costs.core.serving.latencies import Distribution
from autoplan.results.serving.class_outcomes import ClassOutcome, class_outcomes
from autoplan.results.serving.serving_front import ServingChange, ServingPlan
from autoplan.schema.serving.request_lengths import RequestClass
from autoplan.schema.serving.serving_limits import ClassLimits, Percentiles, TimeLimit
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.engine_options import Option
from autoplan.units import format_milliseconds, format_seconds

__all__ = [
    "class_limit",
    "class_limit_names",
    "nearest_class_limit",
    "said_class_limit",
    "without_class_limits",
]

#: Limits of a class by name, with what a simulation of it has.
_SIMULATED: Final = {
    "time_to_first_token": "simulated_first_token",
    "time_per_output_token": "simulated_token",
    "request_latency": "simulated_latency",
}
#: Multiples of the longest mean of a class that are tried as well.
_ABOVE: Final = (1.5, 2.0, 4.0, 8.0)
_NAMES: Final = (*_SIMULATED, "goodput")

#: The best plan of a job whose options are those of a search; None where it has none.
Solve = Callable[[ServingJob], ServingPlan | None]


def class_limit_names(job: ServingJob) -> list[str]:
    """Return the limits of single classes that may clash: the class and the limit, joined by a point."""
    return [
        f"{request_class.name}.{name}"
        for request_class in job.workload.classes
        for name in _NAMES
        if request_class.limits is not None and getattr(request_class.limits, name) is not None
    ]


def class_limit(job: ServingJob, named: str) -> TimeLimit:
    """Return the limit of a class by its name."""
    request_class, name = _split(job, named)
    value: TimeLimit = getattr(request_class.limits, name)
    return value


def _split(job: ServingJob, named: str) -> tuple[RequestClass, str]:
    class_name, _, name = named.partition(".")
    return next(
        request_class for request_class in job.workload.classes if request_class.name == class_name
    ), name


def without_class_limits(job: ServingJob, named: Iterable[str]) -> ServingJob:
    """Return ``job`` without these limits of its classes."""
    for one in named:
        job = _with_limit(job, one, None)
    return job


def _with_limit(job: ServingJob, named: str, value: float | None) -> ServingJob:
    changed, name = _split(job, named)
    limits = (changed.limits or ClassLimits()).model_copy(update={name: value})
    classes = tuple(
        request_class.model_copy(update={"limits": limits}) if request_class is changed else request_class
        for request_class in job.workload.classes
    )
    return replace(job, workload=job.workload.model_copy(update={"classes": classes}))


def said_class_limit(job: ServingJob, named: str) -> str:
    """Return a limit of a class in words."""
    class_name, _, name = named.partition(".")
    value = class_limit(job, named)
    if isinstance(value, Percentiles):
        parts = value.model_dump(exclude_none=True).items()
        bounds = " and ".join(f"{key} {format_seconds(part)}" for key, part in parts)
    else:
        bounds = f"{value * 100:g} %" if name == "goodput" else format_seconds(value)
    return f"{name} of class {class_name} {bounds}"


def nearest_class_limit(
    job: ServingJob, named: str, options: Sequence[Option], solve: Solve
) -> ServingChange | None:
    """Return the value of a limit of a class that a plan holds with all others; None where none does.

    Of a limit on a mean it is the least, by bisection over the times that engines and pools give the class. A
    percentile and goodput are those of the best plan without the limit, in its simulation.
    """
    request_class, name = _split(job, named)
    number = job.workload.classes.index(request_class)
    key = f"workload.classes.{number}.limits.{name}"
    limit = class_limit(job, named)
    if name != "goodput" and not isinstance(limit, Percentiles):
        times = sorted(set(_times(options, request_class.name, name)))
        # Goodput counts single requests by the same limit, which may take more than any mean.
        above = [times[-1] * factor for factor in _ABOVE] if times else []
        return _nearest_mean(job, (named, key), [*times, *above], solve)
    plan = solve(without_class_limits(job, [named]))
    outcome = _outcome(plan, request_class.name)
    if plan is None or outcome is None:
        return None
    change = _simulated_value(outcome, name, limit)
    return None if change is None else ServingChange(key, *change, plan=plan)


def _times(options: Sequence[Option], class_name: str, name: str) -> Iterator[float]:
    """Yield the finite times that options give a class."""
    for option in options:
        for served in option.predicted.classes:
            if served.name == class_name and isfinite(getattr(served, name)):
                yield getattr(served, name)


def _nearest_mean(
    job: ServingJob, limit: tuple[str, str], times: Sequence[float], solve: Solve
) -> ServingChange | None:
    named, key = limit
    low, best, high = -1, None, len(times) - 1
    if not times or (plan := solve(_with_limit(job, named, times[high]))) is None:
        return None
    best = plan
    while high - low > 1:
        middle = (low + high) // 2
        plan = solve(_with_limit(job, named, times[middle]))
        low, high, best = (middle, high, best) if plan is None else (low, middle, plan)
    text = format_milliseconds(times[high])
    class_name, _, name = named.partition(".")
    sentence = f"{name} of class {class_name}: at least {text} with the other limits"
    return ServingChange(key, text, sentence, plan=best)


def _outcome(plan: ServingPlan | None, name: str) -> ClassOutcome | None:
    return None if plan is None else next((x for x in class_outcomes(plan) if x.name == name), None)


def _simulated_value(outcome: ClassOutcome, name: str, limit: TimeLimit) -> tuple[str, str] | None:
    """Return the value of a simulated limit that the plan of ``outcome`` holds, and a sentence."""
    if name == "goodput":
        if outcome.goodput is None or floor(outcome.goodput * 1000) < 1:
            return None
        share = f"{floor(outcome.goodput * 1000) / 10:g} %"
        return share, f"goodput of class {outcome.name}: {share} with the other limits, in a simulation"
    times: Distribution | None = getattr(outcome, _SIMULATED[name])
    if times is None or not isinstance(limit, Percentiles):
        return None
    key = next(one for one in ("p99", "p90", "p50", "mean") if getattr(limit, one) is not None)
    text = format_milliseconds(getattr(times, key))
    sentence = f"{name} of class {outcome.name}: {text} at {key} with the other limits, in a simulation"
    return f"{{{key}: {text}}}", sentence
