"""Sentences about layouts that are compared: which to pick, when another one, and when to combine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.answers.compare.value import Crossing, Knob, KnobRange, LayoutComparison
from autoplan.report.wording.part_names import TIME_NAMES
from autoplan.results.plan import Plan
from autoplan.schema.layout import Layout
from autoplan.units import format_bytes, format_rate, format_seconds

KNOB_NAMES: Final = {
    "fabric_bandwidth": "bandwidth in a node",
    "fabric_latency": "latency in a node",
    "network_bandwidth": "bandwidth between nodes",
    "network_latency": "latency between nodes",
    "global_batch_size": "global batch",
    "sequence_length": "sequence length",
}

_COUNTED: Final = {"global_batch_size": "sequences", "sequence_length": "tokens"}
#: Losses below this share of a step are not named.
_NEGLIGIBLE: Final = 0.005
#: Latency over that of the winner, up to which another layout is said to be the sooner one.
_MUCH_SOONER: Final = 0.9
#: Most parts of a step that are named as what decides.
_MOST_PARTS: Final = 2


def knob_value(knob: Knob, value: float) -> str:
    """Return ``value`` of ``knob`` with its unit.

    >>> knob_value(Knob("fabric_bandwidth", 1.0, "bytes/s"), 19.25e9)
    '19.2 GB/s'
    """
    if knob.dimension == "bytes/s":
        return format_rate(value, "B/s")
    if knob.dimension == "seconds":
        return format_seconds(value)
    return f"{value:,.0f} {_COUNTED[knob.name]}"


def conclusion(comparison: LayoutComparison) -> list[str]:
    """Return the sentences that conclude: which layout to pick, when the other, when to combine."""
    return [
        *_pick(comparison),
        *_indistinct(comparison),
        *_others(comparison),
        *_latency(comparison),
        *_combine(comparison),
    ]


def _pick(comparison: LayoutComparison) -> Iterator[str]:
    winner, order = comparison.winner, comparison.order
    step = winner.plan.predicted.step_seconds
    if not winner.plan.predicted.fits:
        least = min(comparison.plans, key=lambda plan: plan.predicted.memory_needed_bytes)
        over = least.predicted.memory_needed_bytes - least.predicted.memory_limit_bytes
        yield (
            f"None of these layouts fits, the smallest is {format_bytes(over)} over the limit: without that"
            f" limit {winner.name} is the fastest, {format_seconds(step)} a step."
        )
        return
    second = comparison.layouts[order[1]]
    text = f"Pick {winner.name}: {format_seconds(step)} a step"
    if not second.plan.predicted.fits:
        yield f"{text}; {_unfit(comparison)}."
        return
    longer = second.plan.predicted.step_seconds
    yield (
        f"{text}, against {format_seconds(longer)} of {second.name}, {(longer / step - 1) * 100:.1f} % more:"
        f" {_deciding(comparison, order[1])}."
    )
    if any(not plan.predicted.fits for plan in comparison.plans):
        yield f"Of the others, {_unfit(comparison)}."


def _unfit(comparison: LayoutComparison) -> str:
    names = [x.name for x in comparison.layouts if not x.plan.predicted.fits]
    return f"{_listed(names)} {'do' if len(names) > 1 else 'does'} not fit"


def _deciding(comparison: LayoutComparison, number: int) -> str:
    """Return the parts of the step in which layout ``number`` loses most against the winner."""
    step = comparison.winner.plan.predicted.step_seconds
    lost = [x for x in comparison.losses(number) if x.lost_seconds > _NEGLIGIBLE * step][:_MOST_PARTS]
    if not lost:
        return "no part of the step decides"
    parts = [f"{_part_name(x.part)} (+{format_seconds(x.lost_seconds)})" for x in lost]
    saved = [x for x in comparison.losses(number) if x.lost_seconds < -_NEGLIGIBLE * step][-1:]
    against = [f", against {_part_name(x.part)} (-{format_seconds(-x.lost_seconds)})" for x in saved]
    return f"{_listed(parts)} {'decide' if len(parts) > 1 else 'decides'}{''.join(against)}"


def _part_name(part: str) -> str:
    """Return the name of a part of the step in a sentence.

    >>> _part_name("tp_exposed"), _part_name("bubble")
    ('tensor parallel communication', 'pipeline bubble')
    """
    of_axis = part.endswith("_exposed") and part != "pp_exposed"
    return f"{TIME_NAMES[part]} communication" if of_axis else TIME_NAMES[part]


def _indistinct(comparison: LayoutComparison) -> Iterator[str]:
    noise = comparison.noise
    if noise is None:
        if comparison.job.stack.uncertainty.order is None:
            yield "How close two steps must be for the cost model to confuse their order is not known here."
        return
    names = [comparison.layouts[number - 1].name for number in noise.plans]
    simplest = comparison.layouts[noise.simplest - 1].name
    yield (
        f"{_listed(names)} are within {noise.share * 100:.3g} %, less than the cost model can tell apart:"
        f" take the simplest, {simplest}, or measure them."
    )


def _others(comparison: LayoutComparison) -> Iterator[str]:
    """Yield where another layout is to be picked, and which knobs change nothing."""
    flips: dict[int | None, list[str]] = {}
    for knob in comparison.knobs:
        if knob.nearest is not None:
            winner, words = _flip(knob, knob.nearest)
            flips.setdefault(winner, []).append(words)
    for number, where in flips.items():
        if number is None:
            yield f"None of them fits where {_listed(where, 'or')}."
        else:
            yield f"Pick {comparison.layouts[number].name} where {_listed(where, 'or')}."
    solved = [x for x in comparison.knobs if not x.crossings and not x.why]
    if solved:
        ranges = [
            f"{KNOB_NAMES[x.knob.name]} from {knob_value(x.knob, x.least)} to {knob_value(x.knob, x.most)}"
            for x in solved
        ]
        yield f"No {_listed(ranges, 'or')} changes the order."


def _flip(solved: KnobRange, crossing: Crossing) -> tuple[int | None, str]:
    """Return the winner beyond ``crossing``, seen from the present value, and where that is, in words."""
    knob, upward = solved.knob, crossing.value > solved.knob.present
    name, value = KNOB_NAMES[knob.name], knob_value(knob, crossing.value)
    beyond = crossing.above if upward else crossing.below
    if knob.dimension is None:
        where = f"the {name} is {value} or more" if upward else f"the {name} is below {value}"
        alone = crossing.by_memory and beyond.winner is not None
        return beyond.winner, f"{where} (memory decides)" if alone else where
    return beyond.winner, f"the {name} is {'above' if upward else 'below'} {value}"


def noise_words(knob: Knob, crossing: Crossing) -> str:
    """Return the values between which the two steps are within the noise of the model."""
    if crossing.by_memory:
        return "memory decides"
    if crossing.noise is None:
        return ""
    low, high = crossing.noise_low, crossing.noise_high
    if low is None and high is None:
        return "at all values"
    if low is None or high is None:
        end = "below " if low is None else "above "
        return end + knob_value(knob, high if high is not None else low or 0.0)
    first, last = knob_value(knob, low), knob_value(knob, high)
    number, unit = first.split(" ", 1)
    return f"{number} to {last}" if last.endswith(f" {unit}") else f"{first} to {last}"


def _latency(comparison: LayoutComparison) -> Iterator[str]:
    """Yield the sentence on latency against throughput, where they have different winners."""
    layouts = comparison.layouts
    quickest = min(layouts, key=lambda x: x.latency_seconds)
    if quickest.latency_seconds > comparison.winner.latency_seconds * _MUCH_SOONER:
        return
    yield (
        f"One microbatch passes soonest under {quickest.name}, in {format_seconds(quickest.latency_seconds)}"
        f" against {format_seconds(comparison.winner.latency_seconds)}: fewer tokens a second, but sooner."
    )


def _combine(comparison: LayoutComparison) -> Iterator[str]:
    best, winner = comparison.best, comparison.winner.plan
    if best is None:
        yield f"Whether a combination is faster is not known ({comparison.best_why})."
        return
    status = "proven best" if comparison.best_proven else "best known"
    if best.layout == winner.layout:
        combined = _model_axes(best.layout) > 1
        more = f"it combines {_model_axes_words(best.layout)}" if combined else "nothing combined is faster"
        yield f"It is the {status} layout of the whole job: {more}."
        return
    gain = 1 - best.predicted.step_seconds / winner.predicted.step_seconds
    parts = f"{_model_axes_words(best.layout)}, {format_seconds(best.predicted.step_seconds)}"
    if _model_axes_words(best.layout) == _model_axes_words(winner.layout):
        less = f"{format_seconds(best.predicted.step_seconds)} a step, {max(gain, 0.0) * 100:.1f} % less"
        yield f"The {status} layout of the job has the same degrees and other choices: {less}."
    elif _model_axes(best.layout) > 1 and _gains(comparison, best):
        yield f"Combine: the {status} layout of the job has {parts} a step, {gain * 100:.1f} % less."
    elif comparison.job.cluster.devices < 4:
        yield (
            f"{comparison.job.cluster.devices} devices have room for one axis; the {status} layout of the job"
            f" has {parts} a step, {max(gain, 0.0) * 100:.1f} % less."
        )
    else:
        yield (
            f"Combining axes gains nothing here: the {status} layout of the job has {parts} a step,"
            f" {max(gain, 0.0) * 100:.1f} % less."
        )


def _gains(comparison: LayoutComparison, best: Plan) -> bool:
    return best.predicted.step_seconds < comparison.winner.plan.predicted.step_seconds


def _model_axes(layout: Layout) -> int:
    return sum(degree > 1 for degree in (layout.tp, layout.pp, layout.cp, layout.ep))


def _model_axes_words(layout: Layout) -> str:
    degrees = (("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp), ("ep", layout.ep), ("dp", layout.dp))
    parts = [f"{name}={degree}" for name, degree in degrees if degree > 1]
    return ",".join(parts) or "one device"


def _listed(names: list[str], last: str = "and") -> str:
    """Return ``names`` as a list in a sentence.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    *most, end = names
    return f"{', '.join(most)} {last} {end}" if most else end
