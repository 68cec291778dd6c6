"""The answer of ``plan`` on one screen: programs, a thinned front, the fastest plan by part, proof and trust.

What was rejected, counts of layouts and the sources of figures are details.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Final

from autoplan.catalog.job_option_names import reference_words
from autoplan.costs.core.prediction import Prediction
from autoplan.report.charts.chart_data import breakdown, fullest_stage, memory_rows, time_rows
from autoplan.report.choices_report import basis_sentences, question_columns, question_sentences
from autoplan.report.render.blocks import (
    COLUMN_GAP,
    GAP,
    Block,
    Column,
    DataTable,
    FactRow,
    Facts,
    LayoutLine,
    Sentence,
    TypedLines,
    data_table,
    heading,
    items,
    total_width,
)
from autoplan.report.render.terminal import SCREEN_LINES, Terminal, bar, render, spread
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import (
    CENTRE_ONLY,
    certificate_sentence,
    front_sentences,
    job_lines,
    layout_parts,
    only_at_centre,
    proof_sentence,
    rejected_rows,
    rejected_sentence,
    risk_sentence,
    space_sentence,
    wrap_parts,
)
from autoplan.report.wording.standing_words import noise_sentence
from autoplan.report.wording.suggestion_words import next_change, suggestion_lines
from autoplan.results.front import Front, LinkChoice, NarrowerIntervals
from autoplan.results.merged_front import at_batch, batch_of, choice_key, target_of
from autoplan.results.plan import Plan
from autoplan.schema.job import ChosenProgram, Job
from autoplan.units import format_bytes, format_seconds

__all__ = ["MOST_ROWS", "choice_blocks", "front_table", "plans_table"]

#: Plans that a front shows however long the rest is.
_FEWEST_ROWS: Final = 3
#: Fewest lines of the head of a table, whose rows have one or more.
_HEAD_LINES: Final = 2
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
        if number + _HEAD_LINES + (number < count) > lines:
            continue
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
    parts: Sequence[tuple[str, float]], total: float, words: Callable[[float], str], terminal: Terminal
) -> str:
    ranked = sorted(parts, key=lambda part: -part[1])
    large = [part for part in ranked if part[1] >= _SMALL_PART * total]
    other = sum(size for _, size in ranked[len(large) :])
    if other >= _SMALL_PART * total:
        large.append(("other", other))
    return f" {terminal.dot} ".join(f"{name} {words(size)}" for name, size in large)


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
    reported = predicted.peak_memory_bytes_low, predicted.peak_memory_bytes_high
    memory = f"reported memory {format_bytes(reported[0])} to {format_bytes(reported[1])}"
    narrower = "; ".join(_narrower(job, intervals))
    return f"90 % interval: {ends}, {memory}" + (f"; {narrower}" if narrower else "")


def _link_words(links: Sequence[LinkChoice]) -> str:
    """Return which layouts are faster where devices copy at other rates, and how to know the rate."""
    reversals = "; ".join(
        f"at {x.rate / 1e9:.2g} GB/s {x.layout} takes {format_seconds(x.seconds)}, plan 1"
        f" {format_seconds(x.fastest_seconds)}"
        for x in links
    )
    taken = f"{links[0].taken / 1e9:.2g} GB/s is taken"
    tells = "autoplan hardware --measure tells"
    return f"the choice hangs on the rate between devices over PCIe, {taken}: {reversals}; {tells}"


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
    yield from next_change(front.job, front.suggestions)


#: Programs, and numbers of devices or batches, that have a row.
_MOST_ROWS: Final = 6


def choice_blocks(front: Front, terminal: Terminal) -> Iterator[Block]:
    """Yield the best plan of each program with what other programs lack, and that of each size."""
    yield from _programs(front, terminal)
    yield from _sizes(front)


def _programs(front: Front, terminal: Terminal) -> Iterator[Block]:
    jobs = front.job.choices or (front.job,)
    runs = {job.program for job in jobs if job.program}
    if len(runs) > 1 or any(run.alike for run in runs):
        best = sorted(_best_runs(front, several=_several(jobs)).items(), key=lambda row: _step_of(row[1]))
        first = best[:_MOST_ROWS]
        yield _program_table(front, first, terminal)
        if len(best) > len(first):
            yield Sentence(f"({len(best) - len(first)} more: --details)", "quiet")
    if front.job.lacking:
        lacks = "; ".join(f"{title}: {words}" for title, words in front.job.lacking)
        yield Sentence(f"cannot run this job: {lacks}", "quiet")
    if front.job.lacking or len(runs) > 1:
        yield GAP


def _several(jobs: Sequence[Job]) -> bool:
    """Return whether ``jobs`` are run by several programs, rather than by one in several ways."""
    return len({title for job in jobs if job.program for title in _titles(job.program)}) > 1


def _titles(program: ChosenProgram) -> tuple[str, ...]:
    return program.title, *program.alike


def _best_runs(front: Front, *, several: bool) -> dict[str, Front]:
    """Return the answer with the fastest plan of each program, or of each way of one, by its words.

    The way of a program is said where it has several.
    """
    ways: dict[str, set[str]] = {}
    for job in front.job.choices or (front.job,):
        for title in _titles(job.program) if job.program else ():
            ways.setdefault(title, set()).add(job.program.way if job.program else "")
    best: dict[str, tuple[str, Front]] = {}
    for answer in front.answers or (front,):
        program = answer.job.program
        for title in _titles(program) if program else ():
            key = title if several else program.words if program else ""
            if key not in best or _step_of(answer) < _step_of(best[key][1]):
                way = f" ({program.way})" if program and len(ways[title]) > 1 else ""
                best[key] = (f"{title}{way}", answer)
    return dict(best.values())


def _best_answers(front: Front, key: Callable[[Job], Hashable]) -> list[Front]:
    """Return of the answers with the same ``key`` the one with the fastest plan."""
    best: dict[Hashable, Front] = {}
    for answer in front.answers:
        other = best.get(key(answer.job))
        if other is None or _step_of(answer) < _step_of(other):
            best[key(answer.job)] = answer
    return list(best.values())


def _step_of(answer: Front) -> float:
    """Return the step of the fastest plan [s]; infinite where there is none."""
    return answer.fastest.predicted.step_seconds if answer.plans else float("inf")


def _program_table(front: Front, rows: Sequence[tuple[str, Front]], terminal: Terminal) -> DataTable:
    answers = [answer for _, answer in rows]
    plans = [answer.fastest if answer.plans else None for answer in answers]
    least = front.fastest.predicted.step_seconds
    return data_table(
        (
            Column("program", tuple(name for name, _ in rows), "text"),
            Column("best plan", tuple(_number(front, plan) for plan in plans)),
            Column("step", tuple(map(_step_words, answers))),
            Column("slower", tuple(_slower(plan, least) for plan in plans)),
            Column("90 % interval", tuple(_interval(plan, terminal) for plan in plans)),
            Column("memory\n(GiB)", tuple(_memory(plan) for plan in plans)),
        )
    )


def _sizes(front: Front) -> Iterator[Block]:
    if len({choice_key(answer.job)[:2] for answer in front.answers}) < 2:
        return
    best = _best_answers(front, lambda job: choice_key(job)[:2])
    rows = ([answer for answer in best if answer.plans] if len(best) > _MOST_ROWS else best)[:_MOST_ROWS]
    plans = [answer.fastest if answer.plans else None for answer in rows]
    columns = [
        Column("devices", tuple(f"{answer.job.cluster.devices:,}" for answer in rows)),
        Column("batch", tuple(f"{answer.job.workload.global_batch_size:,}" for answer in rows)),
        Column("best plan", tuple(_number(front, plan) for plan in plans)),
        Column("step", tuple(map(_step_words, rows))),
        Column("tokens/s", tuple(f"{p.predicted.tokens_per_second:,.0f}" if p else "" for p in plans)),
        Column("memory\n(GiB)", tuple(_memory(plan) for plan in plans)),
    ]
    yield data_table(columns)
    if len(best) > len(rows):
        yield Sentence(f"({len(best) - len(rows)} more: --details or --format json)", "quiet")
    yield GAP


def _number(front: Front, plan: Plan | None) -> str:
    """Return the number of a plan on the front; empty where another one dominates it."""
    if plan is None:
        return ""
    same = (
        number
        for number, other in enumerate(front.plans, 1)
        if other.layout == plan.layout and other.program == plan.program and batch_of(other) == batch_of(plan)
    )
    return str(next(same, ""))


def _step_words(answer: Front) -> str:
    if answer.plans:
        return format_seconds(answer.fastest.predicted.step_seconds)
    return "not solved" if answer.certificate.stopped else "none fits"


def _slower(plan: Plan | None, least: float) -> str:
    if plan is None or plan.predicted.step_seconds <= least:
        return ""
    return f"+{100 * (plan.predicted.step_seconds / least - 1):.0f} %"


def _interval(plan: Plan | None, terminal: Terminal) -> str:
    if plan is None:
        return ""
    low, high = plan.predicted.step_seconds_low, plan.predicted.step_seconds_high
    return f"{format_seconds(low)} {terminal.to} {format_seconds(high)}"


def _memory(plan: Plan | None) -> str:
    return f"{plan.predicted.peak_memory_bytes_per_device / GIB:.1f}" if plan else ""


#: Plans of a front that a table shows unless all are asked for.
MOST_ROWS: Final = 12

#: Columns below which a table leaves out what is least asked for, and all that other columns say, too.
_ROOMY: Final = 100
_WIDE: Final = 140
_BAR: Final = 10


def plans_table(job: Job, plans: Sequence[tuple[int, Plan]], terminal: Terminal) -> DataTable:
    """Return plans and their numbers as a table, with as many columns as ``terminal`` has room for."""
    extra = question_columns(job, [plan for _, plan in plans])
    room = terminal.width - (total_width(extra) if extra else 0)
    columns = [*extra, *_columns([plan for _, plan in plans], terminal, room)]
    numbers = Column("#", tuple(str(number) for number, _ in plans))
    taken = total_width((numbers, *columns)) + COLUMN_GAP
    layouts = tuple(
        wrap_parts(layout_parts(plan.layout, terminal), max(16, terminal.width - taken), terminal)
        for _, plan in plans
    )
    return data_table((numbers, Column("layout", layouts, "text"), *columns))


def _columns(plans: Sequence[Plan], terminal: Terminal, room: int) -> list[Column]:
    """Return the figures of plans for which there is ``room`` in a terminal [columns]."""
    predictions = [plan.predicted for plan in plans]
    step, within = _step_columns(predictions, terminal)
    tokens = _number_column(
        "tokens/s\n/device", [p.tokens_per_second_per_device for p in predictions], "{:,.0f}".format
    )
    use = _number_column("MFU\n(%)", [p.model_flops_utilization for p in predictions], _percent)
    memory = _memory_columns(predictions, terminal)
    bubble = _number_column("bubble\n(%)", [p.bubble_share for p in predictions], _percent)
    if room < _ROOMY:
        return [step, use, *memory[:2]]
    if room < _WIDE:
        return [step, within, use, *memory[:2]]
    return [step, within, tokens, use, *memory, bubble]


def _number_column(head: str, values: Sequence[float], words: Callable[[float], str]) -> Column:
    return Column(head, tuple(map(words, values)), values=tuple(values))


def _step_columns(predictions: Sequence[Prediction], terminal: Terminal) -> tuple[Column, Column]:
    """Return the columns of step time and its interval, in seconds or milliseconds."""
    first = predictions[0].step_seconds
    scale, unit = (1.0, "s") if first >= 1 else (1e3, "ms")
    digits = 2 if first * scale < 100 else 1

    def show(seconds: float) -> str:
        return f"{seconds * scale:,.{digits}f}"

    steps = _number_column(f"step\n({unit})", [p.step_seconds for p in predictions], show)
    within = tuple(
        f"{show(p.step_seconds_low)} {terminal.to} {show(p.step_seconds_high)}" for p in predictions
    )
    return replace(steps, look="strong"), Column(f"90 % interval\n({unit})", within)


def _memory_columns(predictions: Sequence[Prediction], terminal: Terminal) -> list[Column]:
    limit = predictions[0].memory_limit_bytes
    sizes = [p.peak_memory_bytes_per_device for p in predictions]
    shares = [size / limit for size in sizes]
    marked = tuple(starmap(_share, zip(shares, predictions, strict=True)))
    bars = tuple(bar(share, _BAR, unicode=terminal.unicode) for share in shares)
    return [
        _number_column("memory\n(GiB)", sizes, lambda size: f"{size / GIB:,.1f}"),
        Column("of limit\n(%)", marked, values=tuple(shares)),
        Column("", bars, "bar", "memory"),
    ]


def _share(share: float, predicted: Prediction) -> str:
    mark = CENTRE_ONLY if only_at_centre(predicted) else ""
    return f"{share * 100:.0f}{mark}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"
