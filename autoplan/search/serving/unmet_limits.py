"""Why no plan holds limits of a serving job or its classes: those that clash, and the nearest that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, floor, inf, isfinite, log10
from typing import Any, Final

from autoplan.costs.core.served_prediction import Distribution
from autoplan.results.serving.capacity_answer import shortage_sentence
from autoplan.results.serving.plan_values import ClassOutcome, class_outcomes
from autoplan.results.serving.serving_front import ServingChange, ServingFront, ServingPlan
from autoplan.schema.serving.engine_layout import KV_BITS, WeightFormat, narrower_formats
from autoplan.schema.serving.request_lengths import RequestClass
from autoplan.schema.serving.serving_choices import ClassLimits, Percentiles, ServingObjective, TimeLimit
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.engine_options import Option
from autoplan.search.serving.engines import seqs_menu, tokens_menu
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.units import format_bytes, format_milliseconds, format_seconds

#: Limits that may clash, each with the objective that comes nearest to it.
_LIMITS: Final[dict[str, ServingObjective]] = {
    "time_to_first_token": "time_to_first_token",
    "time_per_output_token": "time_per_output_token",
    "request_latency": "request_latency",
    "goodput": "request_latency",
    "throughput": "throughput",
    "cost": "throughput_per_device",
    "energy": "throughput_per_device",
}
#: Factors of devices that are tried.
_MORE_DEVICES: Final = (2, 4, 8)


def explained(search: ServingSearch, front: ServingFront) -> ServingFront:
    """Return the empty ``front`` with its reasons, the limits that clash, and changes that help."""
    conflict = conflicting_limits(search, given_limits(search.job))
    reasons = tuple(_reasons(search, conflict))
    changes = (*(relaxed_limits(search, conflict) if conflict else ()), *_other_jobs(search))
    if not search.options.all:
        changes = (*_more_memory(search), *changes)
    return replace(front, reasons=reasons, conflict=tuple(conflict), changes=unqueued_first(changes))


def unqueued_first(changes: Iterable[ServingChange]) -> tuple[ServingChange, ...]:
    """Return ``changes`` in their order, but of values of one key those first in which no request waits.

    fp8 weights that leave room for half of the requests at once come after 4 bits that hold them all.
    """
    ordered = tuple(changes)
    places = {change.key: place for place, change in reversed(tuple(enumerate(ordered)))}
    return tuple(sorted(ordered, key=lambda change: (places[change.key], change.plan.saturated)))


def given_limits(job: ServingJob) -> list[str]:
    """Return the limits of ``job`` that may clash."""
    of_job = [name for name in _LIMITS if getattr(job.limits, name) is not None]
    return [*of_job, *class_limit_names(job)]


def _reasons(search: ServingSearch, conflict: list[str]) -> Iterator[str]:
    job, units = search.job, search.units
    if not units.units:
        yield f"no engine can run on {_devices(job)}"
        yield from (rejection.reason for rejection in units.rejected[:3])
    elif not search.priced:
        shortages = search.options.shortages
        if len(shortages) and sum(shortages.values()) == len(units.units):
            nearest, capacity = search.options.nearest_to_start()
            why = shortage_sentence(capacity, job.longest_request)
            yield f"no engine starts; the nearest, tp={nearest.tp},pp={nearest.pp},ep={nearest.ep}: {why}"
            yield from _memory_left_out(job)
        elif job.workload.request_rate is not None:
            yield (
                f"no engines on {_devices(job)} keep up with {job.workload.request_rate:g} requests a second"
            )
        else:
            yield _too_many_requests(search) or "no engine that starts can serve these requests"
    elif conflict:
        yield "no plan holds these limits together: " + ", ".join(
            _limit_words(job, name) for name in conflict
        )
    else:
        yield f"no choice of engines on {_devices(job)} serves the whole load"


def _devices(job: ServingJob) -> str:
    count = job.cluster.devices
    return f"{count} device" if count == 1 else f"{count} devices"


def _too_many_requests(search: ServingSearch) -> str | None:
    """Return the sentence on more requests than tokens of a step, where the job allows no other sizes."""
    units = search.units.units
    requests = min(seqs_menu(search.job, unit)[0] for unit in units)
    tokens = max(tokens_menu(search.job, unit)[-1] for unit in units)
    if requests <= tokens:
        return None
    return (
        f"max_num_seqs {requests:,} is more than max_num_batched_tokens, {tokens:,} at most:"
        " each request of a step needs a token"
    )


def _memory_left_out(job: ServingJob) -> Iterator[str]:
    """Yield what the job itself keeps engines from using, where that is less than they would."""
    limits, share = job.limits, job.search.gpu_memory_utilization
    if limits.peak_memory is not None:
        yield f"limits.peak_memory leaves them {format_bytes(limits.peak_memory)} of a device"
    if limits.memory_headroom:
        yield f"limits.memory_headroom takes {limits.memory_headroom * 100:g} % of a device"
    if share is not None:
        yield f"search.gpu_memory_utilization leaves them {share * 100:g} % of a device"


def _more_memory(search: ServingSearch) -> Iterator[ServingChange]:
    """Yield what makes a plan possible where one of the job's bounds on memory is lifted."""
    job, budget = search.job, search.job.engine.facts.budget.utilization
    device = ceil(job.cluster.device.memory.usable.value / 2**30)
    bounds: list[tuple[str, object, str, str]] = []
    if job.limits.peak_memory is not None:
        bounds.append(("limits.peak_memory", None, f"{device} GiB", "all of a device's memory"))
    if job.limits.memory_headroom:
        bounds.append(("limits.memory_headroom", 0.0, "0 %", "no headroom"))
    share = job.search.gpu_memory_utilization
    if share is not None and budget is not None and share < budget.value:
        text = f"{budget.value * 100:g} %"
        sentence = f"{text} of memory, the engine's own"
        bounds.append(("search.gpu_memory_utilization", budget.value, text, sentence))
    sampler = job.engine.facts.sampler
    if sampler is not None and sampler.flashinfer_copies is not None and not job.search.flashinfer_sampler:
        sentence = "FlashInfer samples, as in vLLM's image up to 0.11"
        bounds.append(("search.flashinfer_sampler", True, "true", sentence))
    for key, value, text, sentence in bounds:
        plan = _first_plan(_like(search, _with_value(job, key, value)))
        if plan is not None:
            yield ServingChange(key, text, sentence, plan=plan)


def _like(search: ServingSearch, job: ServingJob) -> ServingSearch:
    """Return a search of another job by the same costs."""
    return ServingSearch(job, search.costs, search.thinning)


def _first_plan(search: ServingSearch) -> ServingPlan | None:
    return next(iter(search.front(most_plans=1).plans), None)


def _with_value(job: ServingJob, key: str, value: object) -> ServingJob:
    """Return ``job`` with the value of a key such as ``limits.cost``."""
    section, _, name = key.partition(".")
    changes: dict[str, Any] = {section: getattr(job, section).model_copy(update={name: value})}
    return replace(job, **changes)


def _limit_text(name: str, value: TimeLimit) -> str:
    """Return the value of a limit in words: percentiles, a share, a rate or a time."""
    if isinstance(value, Percentiles):
        parts = value.model_dump(exclude_none=True).items()
        return " and ".join(f"{key} {format_seconds(part)}" for key, part in parts)
    if name == "goodput":
        return f"{value * 100:g} %"
    return f"{value:g}" if name in {"throughput", "cost", "energy"} else format_seconds(value)


def _limit_words(job: ServingJob, named: str) -> str:
    """Return a limit, of the job or of one of its classes, in words."""
    if not _is_of_class(named):
        return f"{named} {_limit_text(named, getattr(job.limits, named))}"
    class_name, _, name = named.partition(".")
    return f"{name} of class {class_name} {_limit_text(name, class_limit(job, named))}"


def _is_of_class(name: str) -> bool:
    """Whether a limit is one of a single class, which stands before a point."""
    return "." in name


def without_limits(job: ServingJob, names: Iterable[str]) -> ServingJob:
    """Return ``job`` without some of its limits, and of those of its classes."""
    dropped = list(names)
    cleared: dict[str, None] = dict.fromkeys(name for name in dropped if not _is_of_class(name))
    job = without_class_limits(job, filter(_is_of_class, dropped))
    return replace(job, limits=job.limits.model_copy(update=cleared))


def with_options(
    search: ServingSearch, job: ServingJob, options: Iterable[Option] | None = None
) -> ServingSearch:
    """Return a search of the same options, or of some of them, under other limits and objectives."""
    other = ServingSearch(job, search.costs, search.thinning, listed=search.units)
    chosen = search.priced if options is None else tuple(options)
    other.options.__dict__["all"] = tuple(option for option in chosen if not option.alone)
    other.pools.__dict__["all"] = tuple(option for option in chosen if option.alone)
    if (job.limits, job.workload) == (search.job.limits, search.job.workload):
        other.simulation = search.simulation
    return other


def conflicting_limits(search: ServingSearch, limits: list[str]) -> list[str]:
    """Return limits that no plan holds together, any fewer of which can be met; empty: not the limits."""
    job, needed = search.job, list(limits)

    def feasible(names: list[str]) -> bool:
        dropped = [name for name in limits if name not in names]
        return _first_plan(with_options(search, without_limits(job, dropped))) is not None

    if not search.priced or not feasible([]):
        return []
    for name in limits:
        fewer = [other for other in needed if other != name]
        if not feasible(fewer):
            needed = fewer
    return needed


def relaxed_limits(search: ServingSearch, conflict: list[str]) -> Iterator[ServingChange]:
    """Yield for each limit of a conflict the value nearest to it that a plan holds with the others."""
    for name in conflict:
        if _is_of_class(name):
            change = nearest_class_limit(
                search.job, name, search.priced, lambda job: _first_plan(with_options(search, job))
            )
            if change is not None:
                yield change
            continue
        job = replace(without_limits(search.job, [name]), objectives=(_LIMITS[name],))
        plan = _first_plan(with_options(search, job))
        value = None if plan is None else _value(search.job, name, plan)
        if plan is not None and value is not None:
            yield ServingChange(f"limits.{name}", *value, plan=plan)


def _value(job: ServingJob, name: str, plan: ServingPlan) -> tuple[str, str] | None:
    """Return the value of a limit that ``plan`` holds, and a sentence."""
    if name in {"throughput", "cost", "energy", "goodput"}:
        return _rate_value(job, name, plan)
    limit, run = getattr(job.limits, name), plan.statistics
    if isinstance(limit, Percentiles) and run is not None:
        key, text = _highest(limit, getattr(run, name))
        return f"{{{key}: {text}}}", f"at least {text} at {key} with the other limits, in a simulation"
    time = plan.longest_mean(name)
    if time is None:
        return None
    text = format_milliseconds(time)
    return text, f"at least {text} with the other limits"


def _highest(limit: Percentiles, times: Distribution) -> tuple[str, str]:
    """Return the highest percentile of a limit, and its time in ``times``."""
    key = next(one for one in ("p99", "p90", "p50", "mean") if getattr(limit, one) is not None)
    return key, format_milliseconds(getattr(times, key))


def _rate_value(job: ServingJob, name: str, plan: ServingPlan) -> tuple[str, str] | None:
    """Return the value of a limit on throughput, cost or energy; costs are rounded up to three digits."""
    rate, each = plan.output_tokens_per_second, plan.output_tokens_per_second_per_device
    if name == "throughput":
        return f"{int(rate)}", f"at most {rate:,.0f} output tokens a second are possible"
    power = job.cluster.device.power
    if name == "cost" and job.price is not None:
        cost = _upwards(job.price.per_device_hour / 3600 * 1e6 / each)
        return f"{cost:g}", f"at least {cost:g} {job.price.currency} for a million tokens"
    if name == "energy" and power is not None:
        joules = round(_upwards(power.value * 1e6 / each))
        return f"{joules} J", f"at least {joules:,} J for a million tokens"
    return None


def _upwards(value: float) -> float:
    """Return ``value`` rounded up to three digits."""
    unit = 10.0 ** (floor(log10(value)) - 2)
    return ceil(value / unit) * unit


def _other_jobs(search: ServingSearch) -> Iterator[ServingChange]:
    """Yield other formats and more devices, where they make a plan possible."""
    for key, value, sentence, job in other_formats(search.job):
        plan = _first_plan(_like(search, job))
        if plan is not None:
            yield ServingChange(key, value, sentence, plan=plan)
    yield from _more_devices(search)


def _more_devices(search: ServingSearch) -> Iterator[ServingChange]:
    """Yield the fewest devices that make a plan possible: twice, 4 and 8 times as many, then between them."""
    job, node = search.job, search.job.cluster.node.devices
    devices = job.cluster.devices
    most = min(job.limits.devices or inf, devices * _MORE_DEVICES[-1])
    numbers = [n for n in range(devices + 1, int(most) + 1) if n <= node or n % node == 0]

    def plan_on(devices: int) -> ServingPlan | None:
        larger = replace(job, cluster=replace(job.cluster, devices=devices), choices=())
        return _first_plan(_like(search, larger))

    low, best = -1, None
    for factor in _MORE_DEVICES:
        if devices * factor in numbers and (plan := plan_on(devices * factor)) is not None:
            best = numbers.index(devices * factor), plan
            break
        low = numbers.index(devices * factor) if devices * factor in numbers else low
    if best is None:
        return
    while best[0] - low > 1:
        middle = (best[0] + low) // 2
        plan = plan_on(numbers[middle])
        low, best = (middle, best) if plan is None else (low, (middle, plan))
    devices = numbers[best[0]]
    yield ServingChange("devices", str(devices), f"{devices} devices", plan=best[1])


def other_formats(job: ServingJob) -> Iterator[tuple[str, str, str, ServingJob]]:
    """Yield ``job`` with formats mixed, a narrower cache or narrower weights: key, value, words and job."""
    if not job.search.mixed_formats and len(job.precision.weights) * len(job.precision.kv_cache) > 1:
        key = "search.mixed_formats"
        yield key, "true", "engines of unlike formats", _with_value(job, key, True)  # noqa: FBT003
    if all(KV_BITS[kv] == 16 for kv in job.precision.kv_cache):
        key = "precision.kv_cache"
        yield key, "fp8", "keys and values in fp8", _with_value(job, key, ("fp8",))
    lacks_bf16 = job.cluster.device.peak_flops("bf16") is None
    plain: tuple[WeightFormat, ...] = ("fp16",) if lacks_bf16 else ()
    for name in (*plain, *narrower_formats(*job.precision.weights)):
        words = "4 bits (AWQ)" if name == "int4-awq" else name
        key = "precision.weights"
        yield key, name, f"weights in {words}", _with_value(job, key, (name,))


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
    low, high = -1, len(times) - 1
    if not times or (best := solve(_with_limit(job, named, times[high]))) is None:
        return None
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
    key, text = _highest(limit, times)
    sentence = f"{name} of class {outcome.name}: {text} at {key} with the other limits, in a simulation"
    return f"{{{key}: {text}}}", sentence
