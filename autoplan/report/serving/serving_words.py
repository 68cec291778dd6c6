"""Loads, times and intervals of serving plans in words.

Layouts of engines in short: what differs from one device, one engine and the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import floor
from typing import Final, cast

from autoplan.catalog.request_traces import request_trace_of
from autoplan.costs.core.served_prediction import CLOSED_FORM_GAP, FIRST_TOKEN_GAP
from autoplan.errors import AutoplanError
from autoplan.report.wording.sentences import number_words
from autoplan.results.serving.serving_front import ServingPlan
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.request_lengths import (
    Length,
    LogNormalLength,
    RequestTrace,
    ServingWorkload,
    TraceLength,
    evenly_drawn,
)
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_seconds, format_share

#: Settings of an engine in words.
_SETTINGS: Final[dict[str, Callable[[float], str]]] = {
    "max_num_seqs": lambda value: f"max_num_seqs {value:,}",
    "max_num_batched_tokens": lambda value: f"max_num_batched_tokens {value:,}",
    "gpu_memory_utilization": lambda value: f"{format_share(value)} of memory",
    "block_tokens": lambda value: f"blocks of {number_words(int(value), 'token')}",
    "prefix_caching": lambda value: f"prefix cache {'on' if value else 'off'}",
}

#: Figures with intervals, as text calls them.
_INTERVALS: Final = {
    "time_to_first_token": "first token",
    "time_per_output_token": "time/token",
    "request_latency": "latency",
    "output_tokens_per_second": "tokens/s",
}


def load_words(job: ServingJob) -> str:
    """Return how the requests of a job come, and how long they are; those of a trace as it has them."""
    recorded = _trace_words(job)
    if recorded is not None:
        return f"{_arrival_words(job.workload)}; {recorded}"
    return f"{_arrival_words(job.workload)}; {_lengths_words(job.workload)}"


def _trace_words(job: ServingJob) -> str | None:
    """Return what the trace of a job has; None without one, or where it cannot be read any more."""
    lengths = job.workload.input_tokens, job.workload.output_tokens
    if not all(isinstance(length, TraceLength) for length in lengths):
        return None
    try:
        trace = request_trace_of(job)
    except AutoplanError:
        return None
    return None if trace is None else "; ".join(_parts_of(trace, job.workload))


def _parts_of(trace: RequestTrace, workload: ServingWorkload) -> Iterator[str]:
    count = len(trace.inputs)
    during = f" in {_duration(trace.seconds)}" if trace.seconds else ""
    prompt, answer = sum(trace.inputs) / count, sum(trace.outputs) / count
    yield (
        f"{trace.title or 'a trace'} of {count:,} requests{during}, prompts of {prompt:,.0f}, answers of"
        f" {answer:,.0f} tokens on average"
    )
    left_out = {"failed": trace.failed, "longer than is admitted": trace.refused}
    parts = [f"{number:,} {why}" for why, number in left_out.items() if number]
    if parts:
        yield f"without {', '.join(parts)}"
    if trace.repeated_share and not workload.prefix.hit_rate and not workload.prefix.shared_tokens:
        yield _repeated_words(trace, trace.repeated_share)


def _repeated_words(trace: RequestTrace, share: float) -> str:
    """Return how much of prompts repeats, which is no smaller than what a prefix cache finds, and its key."""
    # Rounded down: a cache that keeps everything finds no more.
    share_words = f"hit_rate: {floor(share * 100)} %"
    shared = trace.shared_tokens
    start = f", {shared:,} of each prompt by one shared start" if shared else ""
    keys = f"shared_tokens: {shared}, {share_words}" if shared else share_words
    return (
        f"{format_share(share)} of prompts' tokens repeat earlier ones{start}: a prefix cache that keeps them"
        f" all is workload.prefix: {{{keys}}}"
    )


def left_to_engine(job: ServingJob, plan: ServingPlan) -> dict[str, int | float | bool]:
    """Return the settings of the first engines that job and layout leave out, as the version sets them."""
    group, search = plan.groups[0], job.search
    capacity = group.predicted.capacity
    settings = {
        "max_num_seqs": (capacity.max_num_seqs, group.layout.seqs or search.max_num_seqs != "any"),
        "max_num_batched_tokens": (
            capacity.max_num_batched_tokens,
            group.layout.tokens or search.max_num_batched_tokens != "any",
        ),
        "gpu_memory_utilization": (capacity.utilization, search.gpu_memory_utilization),
        "block_tokens": (capacity.pool.block_tokens, search.block_tokens),
        "prefix_caching": (job.engine.facts.scheduler.prefix_caching, None),
    }
    return {name: value for name, (value, said) in settings.items() if not said}


def settings_lines(job: ServingJob, plan: ServingPlan) -> Iterator[str]:
    """Yield the settings that a job leaves to its engine, and what is assumed of prompts and server."""
    left = left_to_engine(job, plan)
    words = [_SETTINGS[name](value) for name, value in left.items()]
    yield f"left to {job.engine.title} {job.engine.version}: {', '.join(words)}"
    prefixes = [job.workload.prefix, *(kind.prefix for kind in job.workload.classes if kind.prefix)]
    shares = any(prefix.shared_tokens or prefix.hit_rate for prefix in prefixes)
    cached = "" if shares else "nothing of prompts is cached (workload.prefix), "
    yield f"assumed: {cached}lengths have the tokens of the chat template, the server is warm"


def _duration(seconds: float) -> str:
    """Return a time in the largest unit in which it is 1.5 or more.

    >>> _duration(3435.0), _duration(61.0), _duration(86_400.0)
    ('57 min', '61.0 s', '24.0 h')
    """
    if seconds >= 5400:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:.1f} s"


def _arrival_words(workload: ServingWorkload) -> str:
    if workload.concurrency is not None:
        return f"{workload.concurrency:,} clients, each with a request at a time"
    if workload.request_rate is not None:
        return f"{workload.request_rate:.4g} requests a second"
    return "as many requests as engines take"


def _lengths_words(workload: ServingWorkload) -> str:
    """Return the lengths of requests in words; requests that are alike stay in step, which is said."""
    if workload.classes:
        return f"{len(workload.classes)} classes of requests"
    prompts, answers = _length_words(workload.input_tokens), _length_words(workload.output_tokens)
    text = f"prompts of {prompts}, answers of {answers} tokens"
    if workload.alike:
        clients = workload.concurrency or 1
        lockstep = f": {clients:,} clients in lockstep" if clients > 1 else ""
        return f"{text}, all requests alike{lockstep}"
    means = [n for n in (workload.input_tokens, workload.output_tokens) if isinstance(n, int)]
    spread = workload.spread(workload.longest_request)
    return f"{text} (within {spread * 100:.0f} % of the mean)" if means and spread else text


def _length_words(length: Length) -> str:
    ends = evenly_drawn(length, 0.0)
    if isinstance(length, TraceLength):
        return "a trace's"
    if ends is None:
        shape = cast("LogNormalLength", length).lognormal
        return f"{shape.median:,} (median; p99 {shape.p99:,})"
    return f"{ends[0]:,}" if ends[0] == ends[1] else f"{ends[0]:,} to {ends[1]:,}"


def served_words(plan: ServingPlan) -> str:
    """Return time per token and throughput of a plan."""
    rate = f"{plan.output_tokens_per_second_per_device:,.0f} tokens/s per device"
    return f"{time_words(plan.time_per_output_token)} a token, {rate}"


def time_words(value: float | None) -> str:
    """Return a time with its unit; a dash without one."""
    return "-" if value is None else format_seconds(value)


def simulated_lines(plans: Sequence[ServingPlan]) -> Iterator[str]:
    """Yield which plans have the means of a simulation, and how far the closed form is from them."""
    numbered = [(number, plan) for number, plan in enumerate(plans, 1) if plan.is_simulated]
    if not numbered:
        return
    numbers = ", ".join(str(number) for number, _ in numbered)
    which = "simulated" if len(plans) == 1 else f"simulated: plan{'s' if len(numbered) > 1 else ''} {numbers}"
    runs = [run for _, plan in numbered for run in plan.simulations]
    gap, first = max(run.gap for run in runs), max(run.first_token_gap for run in runs)
    yield (
        f"{which}; the closed form differs by {format_share(gap)} in throughput or time per token and by"
        f" {format_share(first)} in the first token, more than {format_share(CLOSED_FORM_GAP)} or"
        f" {format_share(FIRST_TOKEN_GAP)}, so that the simulation counts"
    )


def interval_lines(plans: Sequence[ServingPlan]) -> Iterator[str]:
    """Yield how wide the 90 % intervals of plans are, and what that rests on."""
    plan = next((plan for plan in plans if plan.intervals is not None), None)
    if plan is None or plan.intervals is None:
        return
    widths = []
    for name, words in _INTERVALS.items():
        value, interval = getattr(plan, name), getattr(plan.intervals, name)
        if value and interval is not None:
            low, high = interval.low / value - 1, interval.high / value - 1
            widths.append(f"{words} {low * 100:+.0f} to {high * 100:+.0f} %")
    yield f"{plan.intervals.reasons[0]}: {', '.join(widths)}"
    yield from plan.intervals.reasons[1:]


def plan_parts(plan: ServingPlan) -> list[list[str]]:
    """Return the parts of the layout of each engine of ``plan``: of pools those that prefill first."""
    if plan.pools is None:
        return [list(engine_layout_parts(group.layout)) for group in plan.groups]
    roles = (("prefill", plan.pools.prefill), ("decode", plan.pools.decode))
    return [list(engine_layout_parts(layout, f"{role} engine")) for role, layout in roles]


def engine_layout_parts(layout: EngineLayout, name: str = "engine") -> Iterator[str]:
    """Yield what a layout of engines called ``name`` has that differs from the defaults, part by part.

    >>> list(engine_layout_parts(parse_serving_layout("tp=2,replicas=4,kv=fp8,seqs=64")))
    ['4 engines', 'tp 2', 'weights bf16', 'kv fp8', 'seqs 64']
    """
    yield number_words(layout.replicas, name)
    yield f"tp {layout.tp}"
    for key in ("pp", "ep", "adp", "dcp"):
        if getattr(layout, key) > 1:
            yield f"{key} {getattr(layout, key)}"
    yield f"weights {layout.weights}"
    if layout.kv != "auto":
        yield f"kv {layout.kv}"
    for key in ("seqs", "tokens", "spec"):
        if getattr(layout, key):
            yield f"{key} {getattr(layout, key)}"


def common_parts(plans: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """Return the parts that every engine of several plans has, to be said once above their table.

    >>> common_parts([[["1 engine", "tp 1", "seqs 8"]], [["1 engine", "tp 2", "seqs 8"]]])
    ['1 engine', 'seqs 8']
    """
    engines = [engine for plan in plans for engine in plan]
    return [part for part in engines[0] if len(plans) > 1 and all(part in engine for engine in engines)]
