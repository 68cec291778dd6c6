"""Loads, times and intervals of serving plans in words.

Layouts of engines in short: what differs from one device, one engine and the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast

from autoplan.catalog.request_traces import request_trace_of
from autoplan.costs.core.serving.served_prediction import CLOSED_FORM_GAP, FIRST_TOKEN_GAP
from autoplan.errors import AutoplanError
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.sentences import number_words
from autoplan.results.serving.serving_front import ServingPlan
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.request_lengths import (
    Length,
    LogNormalLength,
    ServingWorkload,
    TraceLength,
    evenly_drawn,
)
from autoplan.schema.serving.request_trace import RequestTrace
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_seconds, format_share

__all__ = ["interval_lines", "load_words", "served_words", "simulated_lines", "time_words"]

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
    if trace.repeated_share and not workload.prefix.hit_rate:
        yield (
            f"{format_share(trace.repeated_share)} of prompts' tokens repeat earlier ones: with a prefix"
            " cache say workload.prefix.hit_rate"
        )


def _duration(seconds: float) -> str:
    """Return a time in the largest unit of which there is at least one and a half.

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


def engine_layout_words(layouts: Sequence[EngineLayout], terminal: Terminal) -> str:
    """Return layouts of engines that serve together.

    >>> engine_layout_words([parse_serving_layout("tp=2,replicas=4,kv=fp8,seqs=64")], Terminal())
    '4 engines · tp 2 · weights bf16 · kv fp8 · seqs 64'
    """
    return " + ".join(f" {terminal.dot} ".join(engine_layout_parts(layout)) for layout in layouts)


def engine_layout_parts(layout: EngineLayout) -> Iterator[str]:
    """Yield what a layout has that differs from the defaults, part by part."""
    yield number_words(layout.replicas, "engine")
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
