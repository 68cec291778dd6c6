"""The answer of ``plan`` on one screen: programs, a thinned front, the fastest plan by part, proof and trust.

What was rejected, counts of layouts and the sources of figures are details.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from autoplan.answers.plan.choice_blocks import choice_blocks
from autoplan.answers.plan.value import LinkChoice, NarrowerIntervals
from autoplan.catalog.job_option_names import reference_words
from autoplan.costs.core.prediction import Prediction
from autoplan.report.charts.breakdown import breakdown, fullest_stage, memory_rows, time_rows
from autoplan.report.choices_report import basis_sentences, question_sentences
from autoplan.report.front_report import MOST_ROWS, plans_table
from autoplan.report.render.bars import spread
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    FactRow,
    Facts,
    LayoutLine,
    Sentence,
    TypedLines,
    data_table,
    heading,
    items,
)
from autoplan.report.render.terminal import SCREEN_LINES, Terminal, render
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import (
    certificate_sentence,
    front_sentences,
    job_lines,
    proof_sentence,
    rejected_rows,
    rejected_sentence,
    risk_sentence,
    space_sentence,
)
from autoplan.report.wording.standing_words import noise_sentence
from autoplan.report.wording.suggestion_words import next_change, suggestion_lines
from autoplan.results import Front, Plan
from autoplan.results.merged_front import at_batch, target_of
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_seconds

__all__ = ["front_table"]

#: Plans that a front shows however long the rest is.
_FEWEST_ROWS: Final = 3
#: Parts of step and memory below this share are summed up.
_SMALL_PART: Final = 0.005


def front_table(
    front: Front,
    terminal: Terminal,
    *,
    all_plans: bool = False,
    details: bool = False,
    emitted: int = 1,
    intervals: NarrowerIntervals | None = None,
    unexpressed: Plan | None = None,
) -> str:
    """Return the plans of a job as a screen, or the reasons why there are none; ``details`` add the rest.

    Plan number ``emitted`` is the one that the last line says how to emit. ``intervals`` are those of the
    fastest plan after what narrows them, where they are to be told; ``unexpressed`` is a faster layout that
    its program cannot express, for the details.
    """
    head = list(heading(job_lines(front.job, front.facts, terminal)))
    if not front.plans:
        return render([*head, *_infeasible(front, details=details)], terminal)
    above = [*head, *choice_blocks(front, terminal), *_noise(front)]
    below = [GAP, *_fastest(front, terminal), GAP, items(_sureties(front, intervals))]
    following = list(_next_lines(front, emitted))
    lines = render([*above, *below, *following], terminal).count("\n")
    more = _details(front, terminal, unexpressed) if details else ()
    rows = _rows(front, terminal, None if all_plans or details else SCREEN_LINES - lines)
    if all_plans:
        rows = list(range(len(front.plans)))
    return render([*above, *_plans(front, rows, terminal), *below, *more, *following], terminal)


def _noise(front: Front) -> Iterator[Block]:
    """Yield which plans the cost model cannot tell apart, to be read before their table."""
    if front.order_noise is not None:
        yield Sentence(noise_sentence(front.order_noise), "quiet")
        yield GAP


def _rows(front: Front, terminal: Terminal, lines: int | None) -> list[int]:
    """Return the plans to show: evenly spread, and as many as ``lines`` have room for."""
    count = len(front.plans)
    most = min(count, MOST_ROWS)
    if lines is None:
        return spread(count, most)
    for number in range(most, _FEWEST_ROWS, -1):
        rows = spread(count, number)
        if render(list(_plans(front, rows, terminal)), terminal).count("\n") <= lines:
            return rows
    return spread(count, min(most, _FEWEST_ROWS))


def _plans(front: Front, rows: Sequence[int], terminal: Terminal) -> Iterator[Block]:
    yield plans_table(front.job, [(row + 1, front.plans[row]) for row in rows], terminal)
    if len(rows) < len(front.plans):
        yield Sentence(f"({len(front.plans) - len(rows)} more: --all or --format json)", "quiet")


def _fastest(front: Front, terminal: Terminal) -> Iterator[Block]:
    """Yield the layout of the fastest plan, and its step and memory by part."""
    plan, predicted = front.fastest, front.fastest.predicted
    yield LayoutLine(plan.layout_string, "fastest: " if len(front.plans) > 1 else "the plan: ")
    step, peak = format_seconds(predicted.step_seconds), format_bytes(predicted.peak_memory_bytes_per_device)
    yield Facts(
        (
            FactRow(f"step {step}", (_time_words(predicted, terminal),)),
            FactRow(f"memory {peak}", (_memory_words(predicted, terminal),)),
        )
    )


def _time_words(predicted: Prediction, terminal: Terminal) -> str:
    """Return the parts of a step, the longest first."""
    step = predicted.step_seconds
    return _part_words(
        time_rows(predicted.time),
        step,
        lambda seconds: f"{format_seconds(seconds)} ({100 * seconds / step:.0f} %)",
        terminal,
    )


def _memory_words(predicted: Prediction, terminal: Terminal) -> str:
    """Return the parts of the peak memory of a device [GiB], the largest first."""
    stage, limit = fullest_stage(predicted), predicted.memory_limit_bytes
    parts = _part_words(memory_rows(stage), stage.total, lambda size: f"{size / GIB:.1f}", terminal)
    where = f" of stage {stage.stage}" if len(predicted.memory.stages) > 1 else ""
    return f"of {format_bytes(limit)}, in {stage.event}{where}: {parts}"


def _part_words(
    parts: Sequence[tuple[str, float]], whole: float, words: Callable[[float], str], terminal: Terminal
) -> str:
    ranked = sorted(parts, key=lambda part: -part[1])
    shown = [part for part in ranked if part[1] >= _SMALL_PART * whole]
    other = sum(size for _, size in ranked[len(shown) :])
    if other >= _SMALL_PART * whole:
        shown.append(("other", other))
    return f" {terminal.dot} ".join(f"{name} {words(size)}" for name, size in shown)


def _sureties(front: Front, intervals: NarrowerIntervals | None) -> Iterator[str]:
    """Yield one sentence of proof and one of trust, and what figures and marks of the table rest on."""
    yield f"{proof_sentence(front.certificate)}; --details: what was covered, rejected and not searched"
    yield _trust(front, intervals)
    if intervals is not None and intervals.links:
        yield _link_words(intervals.links)
    yield from basis_sentences(front.job)
    if risk := risk_sentence(front):
        yield risk


def _trust(front: Front, intervals: NarrowerIntervals | None) -> str:
    """Return the 90 % interval of the fastest plan, and what makes it narrower."""
    predicted, job = front.fastest.predicted, at_batch(front.job, front.fastest)
    ends = _ends(predicted.step_seconds_low, predicted.step_seconds_high)
    memory = f"memory within {100 * job.stack.uncertainty.memory.value:.3g} %"
    narrower = "; ".join(_narrower(job, intervals))
    return f"90 % interval: {ends}, {memory}" + (f"; {narrower}" if narrower else "")


def _link_words(links: Sequence[LinkChoice]) -> str:
    """Return which layouts are faster where devices copy at other rates, and how to know the rate."""
    there = "; ".join(
        f"at {x.rate / 1e9:.2g} GB/s {x.layout} takes {format_seconds(x.seconds)}, plan 1"
        f" {format_seconds(x.fastest_seconds)}"
        for x in links
    )
    taken = f"{links[0].taken / 1e9:.2g} GB/s is taken"
    tells = "autoplan hardware --measure tells"
    return f"the choice hangs on the rate between devices over PCIe, {taken}: {there}; {tells}"


def _narrower(job: Job, intervals: NarrowerIntervals | None) -> Iterator[str]:
    """Yield what narrows the interval of a step time, and to what."""
    if intervals is None:
        return
    if intervals.named is not None:
        ends = _ends(*intervals.named)
        yield f"name the program or the stack, {job.stack.name} is assumed: {ends}"
    if intervals.calibrated is not None:
        ends = _ends(*intervals.calibrated)
        yield f"calibrate with one run (autoplan calibrate JOB --layout L --log FILE): {ends} at best"


def _ends(low: float, high: float) -> str:
    return f"{format_seconds(low)} to {format_seconds(high)}"


def _next_lines(front: Front, emitted: int) -> Iterator[Block]:
    """Yield the command that writes plan ``emitted`` as the configuration of a framework."""
    if front.job.source is None:
        return
    if front.job.program is None and front.job.lacking:
        yield TypedLines(
            ("next: no program runs this job: change what each of them lacks, as said above",), "quiet"
        )
        return
    reference = reference_words(front.job.source.reference)
    number = "" if emitted == 1 else f" --plan {emitted}"
    plan = front.plans[emitted - 1]
    job = at_batch(front.job, plan)
    target, stack = target_of(job, plan), job.stack
    if emitted > 1:
        yield Sentence(f"- {_passed_over(front, plan, emitted)} for {target}", "quiet")
    next_command = f"next: autoplan emit {reference} --for {target or 'TARGET'}{number}"
    if target is None:
        next_command += f" (no target runs the stack {stack.name}: autoplan emit --help lists them)"
    yield TypedLines((next_command,), "quiet")


def _passed_over(front: Front, plan: Plan, emitted: int) -> str:
    """Return that plans before ``emitted`` cannot be written, and what that costs."""
    slower = plan.predicted.step_seconds / front.fastest.predicted.step_seconds - 1.0
    before = "plan 1" if emitted == 2 else f"plans 1 to {emitted - 1}"
    return f"{before} cannot be written: plan {emitted}, {100 * slower:.1f} % slower, is the first that can,"


def _details(front: Front, terminal: Terminal, unexpressed: Plan | None) -> Iterator[Block]:
    """Yield the fastest plan as bars, every answer by program, devices and batch, and all sentences."""
    from autoplan.report.choices_report import answers_table

    yield GAP
    yield breakdown(front.fastest.predicted, terminal)
    yield GAP
    yield from answers_table(front, terminal)
    printed = {*basis_sentences(front.job), noise_sentence(front.order_noise), risk_sentence(front)}
    yield from _unexpressed(front, unexpressed)
    sentences = [*question_sentences(front), *front_sentences(front)]
    printed.add(rejected_sentence(front.rejected))
    yield items([sentence for sentence in sentences if sentence not in printed])
    yield from _rejected(front)


def _rejected(front: Front) -> Iterator[Block]:
    """Yield what was rejected, a reason a line; nothing where every layout was covered."""
    rows = rejected_rows(front.rejected)
    if rows:
        counts, reasons = zip(*rows, strict=True)
        yield GAP
        yield data_table([Column("layouts", counts), Column("rejected, as", reasons, "text")])
        yield GAP


def _unexpressed(front: Front, faster: Plan | None) -> Iterator[Block]:
    """Yield that a layout which the program of the fastest plan cannot express would be faster."""
    program = at_batch(front.job, front.fastest).program
    if faster is None or program is None:
        return
    gain = 1.0 - faster.predicted.step_seconds / front.fastest.predicted.step_seconds
    faster_by = f"{100 * gain:.1f} % faster, and nothing starts it"
    yield Sentence(f"{faster_by}, as {program.words} cannot express it (program: any-layout):", "quiet")
    yield LayoutLine(faster.layout_string, indent=2)
    yield GAP


def _first_reason(front: Front) -> Sequence[str]:
    """Return why there is no plan; of several programs that of the first, and which the others are."""
    titles = [answer.job.program.title for answer in front.answers if answer.job.program]
    others = [title for title in dict.fromkeys(titles) if title != titles[0]]
    if not others:
        return front.reasons
    return (front.reasons[0], f"{', '.join(others)}: nothing is feasible either; --details: why")


def _infeasible(front: Front, *, details: bool) -> Iterator[Block]:
    yield Sentence("nothing is feasible", "bad")
    yield items(front.reasons if details else _first_reason(front), "")
    yield GAP
    yield from suggestion_lines(front, details=details)
    if details:
        sentences = (
            certificate_sentence(front.certificate),
            space_sentence(front),
        )
        yield items([sentence for sentence in sentences if sentence])
        yield from _rejected(front)
    else:
        yield items([f"{proof_sentence(front.certificate)}; --details: what was covered and rejected"])
    yield from next_change(front)
