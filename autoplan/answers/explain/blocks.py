"""Why a layout does or does not fit, and what would make room, as blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.costs.core.prediction import Prediction
from autoplan.report.charts.chart_data import breakdown
from autoplan.report.document_fields import SCHEMA, Document, brief, difference_document
from autoplan.report.picture_report import memory_picture
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    DataTable,
    Heading,
    LayoutLine,
    Sentence,
    columns_of,
    data_table,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB, TIME_NAMES
from autoplan.report.wording.sentences import job_lines, surety_sentences
from autoplan.report.wording.standing_words import signed_seconds, standing_sentence
from autoplan.results.explanation import (
    Choice,
    Contrast,
    Difference,
    Explanation,
    Refusal,
    Remedy,
    Standing,
    judged_stage,
)
from autoplan.results.job_summary import job_document
from autoplan.schema.job import Job
from autoplan.units import format_seconds

# Comparison of a layout with the front, and costs of other choices, as tables and documents.


#: Parts that differ by less than this share of a step are not told.
_NEGLIGIBLE: Final = 1e-3


def standing_lines(standing: Standing) -> Iterator[Block]:
    """Yield why a layout is not on the front, with the step time of both plans by part."""
    yield Sentence(standing_sentence(standing), "good" if standing.place == "on the front" else "warning")
    if standing.against is None:
        return
    yield LayoutLine(standing.against.layout_string, indent=2)
    yield GAP
    parts = [d for d in standing.differences if _significant(d, standing)]
    total = Difference(
        "step",
        sum(d.own_seconds for d in standing.differences),
        sum(d.other_seconds for d in standing.differences),
    )
    rows = [(TIME_NAMES.get(d.part, d.part), d) for d in (*parts, total)]
    columns = [
        Column("part of a step", tuple(name for name, _ in rows), "text"),
        Column("this layout", tuple(format_seconds(d.own_seconds) for _, d in rows)),
        Column(f"plan {standing.rank}", tuple(format_seconds(d.other_seconds) for _, d in rows)),
        Column("difference", tuple(signed_seconds(d.lost_seconds) for _, d in rows)),
    ]
    yield data_table(columns)


def _significant(difference: Difference, standing: Standing) -> bool:
    step = sum(d.own_seconds for d in standing.differences)
    return max(difference.own_seconds, difference.other_seconds) > _NEGLIGIBLE * step


def refusal_blocks(job: Job, refusal: Refusal, terminal: Terminal) -> list[Block]:
    """Return the rules that a layout breaks as blocks."""
    parts: list[Block] = [
        *heading(job_lines(job, refusal.facts, terminal)),
        LayoutLine(str(refusal.layout)),
        GAP,
        Sentence("cannot run: it breaks these rules", "bad"),
        items(refusal.rules, ""),
        GAP,
    ]
    if refusal.nearest is None:
        parts.append(Sentence("no similar layout satisfies them"))
    else:
        predicted = refusal.nearest.predicted
        step, fits = format_seconds(predicted.step_seconds), "fits" if predicted.fits else "does not fit"
        parts.append(Sentence(f"the nearest layout that can run takes {step} per step and {fits}:"))
        text = refusal.nearest.layout_string
        parts.append(LayoutLine(text, indent=2))
    return parts


def refusal_document(job: Job, refusal: Refusal) -> Document:
    """Return why a layout cannot run as a document."""
    return {
        "schema": SCHEMA,
        "job": job_document(job, refusal.facts),
        "refusal": {
            "layout_string": str(refusal.layout),
            "rules": list(refusal.rules),
            "nearest": brief(refusal.nearest) if refusal.nearest else None,
        },
    }


def choice_blocks(job: Job, choice: Choice, terminal: Terminal) -> list[Block]:
    """Return the breakdown of the fastest plan and the cost of every other choice as blocks."""
    predicted = choice.best.predicted
    return [
        *heading(job_lines(job, choice.best.facts, terminal)),
        LayoutLine(choice.best.layout_string, "fastest: "),
        Sentence(limited_sentence(choice)),
        GAP,
        breakdown(predicted, terminal),
        GAP,
        Heading("what if: the fastest layout with one choice changed, each one solved"),
        choices_table(choice),
        GAP,
        items(surety_sentences(job, [predicted])),
    ]


def choices_table(choice: Choice) -> DataTable:
    """Return the fastest layout with one choice changed, each one solved, as a table."""
    best = choice.best.predicted.step_seconds
    rows = [_choice_row(alternative, best) for alternative in choice.alternatives]
    heads = ("what if", "step", "slower", "peak\n(GiB)", "largest loss")
    return data_table(columns_of(heads, rows, {"what if": "text", "largest loss": "text"}))


def limited_sentence(choice: Choice) -> str:
    """Return the sentence on the parts of the fastest plan's step, the largest first."""
    predicted = choice.best.predicted
    seconds = sorted(
        ((getattr(predicted.time, part), name) for part, name in TIME_NAMES.items()), reverse=True
    )
    shares = [
        f"{x / predicted.step_seconds * 100:.1f} % {name}"
        for x, name in seconds
        if x > 0.01 * predicted.step_seconds
    ]
    return f"step time {format_seconds(predicted.step_seconds)}: {', '.join(shares)}"


def _choice_row(alternative: Contrast, best: float) -> tuple[str, ...]:
    name = f"{alternative.key}: {alternative.value}"
    if alternative.plan is None:
        return name, "-", "-", "-", alternative.why
    predicted = alternative.plan.predicted
    slower = predicted.step_seconds / best - 1
    losses = [d for d in alternative.differences if d.lost_seconds > _NEGLIGIBLE * best]
    most = f"{TIME_NAMES[losses[0].part]} ({signed_seconds(losses[0].lost_seconds)})" if losses else "none"
    size = f"{predicted.peak_memory_bytes_per_device / GIB:.1f}"
    return name, format_seconds(predicted.step_seconds), f"{max(0.0, slower) * 100:.1f} %", size, most


def choice_document(job: Job, choice: Choice) -> Document:
    """Return the fastest plan and its alternatives as a document."""
    return {
        "schema": SCHEMA,
        "job": job_document(job, choice.best.facts),
        "choice": {
            "best": brief(choice.best),
            "alternatives": [
                {
                    "key": other.key,
                    "value": other.value,
                    "why": other.why,
                    "plan": brief(other.plan) if other.plan else None,
                    "differences": [difference_document(d) for d in other.differences],
                }
                for other in choice.alternatives
            ],
        },
    }


# The sentence on what bounds a step, and what it is made of.


#: What a step that waits for it is called.
_BOUND: dict[str, str] = {
    "compute": "compute-bound",
    "HBM bandwidth": "bandwidth-bound (HBM)",
    "host": "host-bound",
    "network": "network-bound",
    "PCIe": "bound by PCIe between its devices",
    "experts": "bound by the dispatch of tokens to experts",
    "pipeline": "bound by the pipeline bubble",
}
#: Classes below this share are left to the JSON document.
_LEAST = 0.01


def bound_sentence(explanation: Explanation) -> str:
    """Return the resource that bounds the step, with the share of each class of work; empty without shares.

    >>> from types import SimpleNamespace as Its
    >>> shares = [Its(name="small kernels and host", share=0.6), Its(name="HBM bandwidth", share=0.4)]
    >>> bound_sentence(Its(bound="host", bottlenecks=shares))
    'the step is host-bound: 60 % small kernels and host, 40 % HBM bandwidth'
    """
    if not explanation.bottlenecks:
        return ""
    shares = [f"{100 * x.share:.0f} % {x.name}" for x in explanation.bottlenecks if x.share >= _LEAST]
    return f"the step is {_BOUND[explanation.bound]}: {', '.join(shares)}"


# Sentences and table cells on whether a layout fits, and on remedies, for terminal and HTML page.


_REMEDY_HEADS: Final = ("#", "remedy", "saves\n(GiB)", "peak\n(GiB)", "needed\n(GiB)", "step", "fits")


def verdict_sentences(job: Job, predicted: Prediction) -> Iterator[str]:
    """Yield the sentences on memory, step time and host memory of a layout."""
    stage, limit = judged_stage(job, predicted), predicted.memory_limit_bytes
    yield (
        f"{'fits' if predicted.fits else 'does not fit'}: a device of stage {stage.stage}"
        f" uses {_gib(stage.total)} at its peak ({stage.event}), {_beyond(stage.total - limit)} the limit"
        f" of {_gib(limit)}, and {_gib(stage.total_high)} with fragmentation,"
        f" {_beyond(stage.total_high - limit)} the limit"
    )
    low, high = format_seconds(predicted.step_seconds_low), format_seconds(predicted.step_seconds_high)
    yield f"a step takes {format_seconds(predicted.step_seconds)}, 90 % between {low} and {high}"
    if stage.host:
        yield f"host memory: {_gib(stage.host)} per device"


def _beyond(size: float) -> str:
    return f"{_gib(abs(size))} {'over' if size > 0 else 'below'}"


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def remedy_title(explanation: Explanation) -> str:
    """Return the title of the list of remedies."""
    if not explanation.remedies:
        return "no change to this layout saves memory"
    if explanation.plan.predicted.fits:
        return "changes that save memory, the fastest first"
    if any(remedy.fits for remedy in explanation.remedies):
        return "changes that make it fit, the fastest first"
    return "changes that save memory: neither one nor two of them make it fit"


def _remedy_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """Return the cells of each remedy, under ``REMEDY_HEADS``."""
    short = "not enough alone" if any(remedy.fits for remedy in explanation.remedies) else "not enough"
    return [
        (str(number), *_numbers(remedy), "yes" if remedy.fits else short)
        for number, remedy in enumerate(explanation.remedies, start=1)
    ]


def _numbers(remedy: Remedy) -> tuple[str, ...]:
    predicted = remedy.plan.predicted
    sizes = (remedy.saved_bytes, predicted.peak_memory_bytes_per_device, predicted.memory_needed_bytes)
    # Adding zero turns "-0.0" into "+0.0".
    percent = round(remedy.slowdown * 100, 1) + 0.0
    step = f"{format_seconds(predicted.step_seconds)} ({percent:+.1f} %)"
    return (remedy.name, *(f"{size / GIB:,.1f}" for size in sizes), step)


def remedy_note(job: Job) -> str:
    """Return the sentence on which peak decides whether a layout fits."""
    if job.limits.memory_confidence == "central":
        return "a layout fits if its peak does (limits.memory_confidence: central)"
    return "a layout fits if its peak does with the most fragmentation and context; savings are of that, too"


#: Columns below which the last column says less.
_ROOMY: Final = 100


def explanation_blocks(job: Job, explanation: Explanation, terminal: Terminal) -> list[Block]:
    """Return the memory timeline of a layout and its remedies as blocks."""
    predicted = explanation.plan.predicted
    verdict, *more = verdict_sentences(job, predicted)
    return [
        *heading(job_lines(job, explanation.plan.facts, terminal)),
        LayoutLine(explanation.plan.layout_string),
        GAP,
        Sentence(verdict, "good" if predicted.fits else "bad"),
        *map(Sentence, more),
        *standing_lines(explanation.standing),
        Sentence(bound_sentence(explanation)),
        GAP,
        *memory_picture(predicted, judged_stage(job, predicted), terminal),
        GAP,
        *_remedies(explanation, terminal),
        GAP,
        items([remedy_note(job), *surety_sentences(job, [predicted])]),
    ]


def _remedies(explanation: Explanation, terminal: Terminal) -> Iterator[Block]:
    yield Heading(remedy_title(explanation))
    if not explanation.remedies:
        return
    yield data_table(remedy_columns(explanation, terminal))
    yield GAP
    yield Heading("changes by remedy")
    for number, remedy in enumerate(explanation.remedies, start=1):
        yield LayoutLine(remedy.change, f"{number:>2}  ")


def remedy_columns(explanation: Explanation, terminal: Terminal) -> list[Column]:
    """Return the remedies: what each saves, costs, and whether the layout fits with it."""
    rows = _remedy_rows(explanation)
    if terminal.width < _ROOMY:
        rows = [(*cells, fits if fits == "yes" else "no") for *cells, fits in rows]
    return columns_of(_REMEDY_HEADS, rows, {"remedy": "text", "fits": "verdict"})
