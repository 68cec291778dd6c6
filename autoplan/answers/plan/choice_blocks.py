"""The best plan of each program, and of each number of devices and batch, where a job has several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

from autoplan.report.render.blocks import GAP, Block, Column, DataTable, Sentence, data_table
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB
from autoplan.results import Front, Plan
from autoplan.results.merged_front import batch_of, choice_key
from autoplan.schema.job import ChosenProgram, Job
from autoplan.units import format_seconds

__all__ = ["choice_blocks"]

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
        shown = best[:_MOST_ROWS]
        yield _program_table(front, shown, terminal)
        if len(best) > len(shown):
            yield Sentence(f"({len(best) - len(shown)} more: --details)", "quiet")
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
    shown = ([answer for answer in best if answer.plans] if len(best) > _MOST_ROWS else best)[:_MOST_ROWS]
    plans = [answer.fastest if answer.plans else None for answer in shown]
    columns = [
        Column("devices", tuple(f"{answer.job.cluster.devices:,}" for answer in shown)),
        Column("batch", tuple(f"{answer.job.workload.global_batch_size:,}" for answer in shown)),
        Column("best plan", tuple(_number(front, plan) for plan in plans)),
        Column("step", tuple(map(_step_words, shown))),
        Column("tokens/s", tuple(f"{p.predicted.tokens_per_second:,.0f}" if p else "" for p in plans)),
        Column("memory\n(GiB)", tuple(_memory(plan) for plan in plans)),
    ]
    yield data_table(columns)
    if len(best) > len(shown):
        yield Sentence(f"({len(best) - len(shown)} more: --details or --format json)", "quiet")
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
