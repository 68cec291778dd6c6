"""Pictures of plans for a terminal: the front, memory by event, and the step by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from autoplan.costs.core.prediction import Prediction, StageMemory, StepTimeline
from autoplan.report.charts.chart_data import (
    PIECE_KINDS,
    Axis,
    EventBar,
    StepPiece,
    event_bars,
    picked_stages,
    pieces_of,
    round_values,
    scale_bytes,
)
from autoplan.report.render.blocks import GAP, Block, Heading, Picture, Piece, Sentence
from autoplan.report.render.terminal import Terminal, render, spread
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS
from autoplan.report.wording.sentences import number_words
from autoplan.results.explanation import judged_stage
from autoplan.results.front import Front
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_seconds


def front_pictures(front: Front, timeline: StepTimeline | str, terminal: Terminal) -> str:
    """Return the front, and the memory and the step of its fastest plan; ``timeline`` may say why not."""
    parts = [*front_plot(front, terminal), GAP, *_of_plan(front.job, front.fastest, timeline, terminal)]
    return render(parts, terminal)


def plan_pictures(job: Job, plan: Plan, timeline: StepTimeline | str, terminal: Terminal) -> str:
    """Return the memory by event and the step of ``plan``; ``timeline`` may say why it is not drawn."""
    return render(_of_plan(job, plan, timeline, terminal), terminal)


def _of_plan(job: Job, plan: Plan, timeline: StepTimeline | str, terminal: Terminal) -> Iterator[Block]:
    yield from memory_picture(plan.predicted, judged_stage(job, plan.predicted), terminal)
    yield GAP
    if isinstance(timeline, str):
        yield Sentence(timeline, "quiet")
    else:
        yield from timeline_rows(timeline, terminal)


_ROWS: Final = 14
_WIDEST: Final = 100
_LABEL: Final = 8
_TICKS: Final = 5


def front_plot(front: Front, terminal: Terminal) -> Iterator[Block]:
    """Yield the plans of ``front`` as marks on rows of text, with the limit; it must have a plan."""
    predicted = [plan.predicted for plan in front.plans]
    steps = [p.step_seconds for p in predicted]
    columns = min(_WIDEST, terminal.width - _LABEL - 2)
    limit = predicted[0].memory_limit_bytes
    room = 0.03 * (max(steps) - min(steps)) or 0.1 * steps[0]
    x = Axis(min(steps) - room, max(steps) + room, 0.0, columns - 1.0)
    highest = max(limit, *(p.peak_memory_bytes_per_device for p in predicted))
    y = Axis(0.0, 1.05 * highest, _ROWS - 1.0, 0.0)
    cells = [[" "] * columns for _ in range(_ROWS)]
    cells[round(y.at(limit))] = [terminal.rule] * columns
    for plan in (*front.plans, front.fastest):
        row = round(y.at(plan.predicted.peak_memory_bytes_per_device))
        cells[row][round(x.at(plan.predicted.step_seconds))] = terminal.point
    chosen = front.fastest.predicted
    place = (round(y.at(chosen.peak_memory_bytes_per_device)), round(x.at(chosen.step_seconds)))
    cells[place[0]][place[1]] = terminal.chosen_point
    yield Heading("the front: peak memory of a device (GiB) over step time")
    ticks = {round(y.at(size * GIB)): f"{size:g}" for size in round_values(0.0, y.high / GIB, _TICKS)}
    rows = [
        f"{ticks.get(row, ''):>{_LABEL - 1}} {terminal.wall}{''.join(line)}".rstrip()
        for row, line in enumerate(cells)
    ]
    key = (
        f"{terminal.chosen_point} the fastest   {terminal.point} other plans"
        f"   {terminal.rule * 2} limit {format_bytes(limit)}"
    )
    yield Picture((*(((row, ""),) for row in (*rows, _axis(x, columns))), ((key, "dim"),)))


def _axis(x: Axis, columns: int) -> str:
    """Return the marked step times below their places; one that would touch another is left out."""
    line = [" "] * (columns + _LABEL + 1)
    free = 0
    for seconds in round_values(x.low, x.high, _TICKS):
        words = format_seconds(seconds)
        start = _LABEL + 1 + round(x.at(seconds)) - len(words) // 2
        if start >= free and start + len(words) <= len(line):
            line[start : start + len(words)] = words
            free = start + len(words) + 2
    return "".join(line).rstrip()


#: Most pipeline stages in one chart.
MOST_STAGES: Final = 4

_LONGEST_BAR: Final = 100

_GAP: Final = "   "
_BETWEEN: Final[Piece] = ("  ", "")


def memory_picture(predicted: Prediction, fullest: StageMemory, terminal: Terminal) -> Iterator[Block]:
    """Yield the charts of at most four stages, among them ``fullest``, and the legend."""
    stages = picked_stages(predicted, fullest, MOST_STAGES)
    for stage in stages:
        yield Heading(_title(stage))
        yield _events(stage, predicted, terminal)
        yield GAP
    left_out = len(predicted.memory.stages) - len(stages)
    if left_out:
        yield Sentence(f"({number_words(left_out, 'more stage')}: --format json)", "quiet")
    yield Picture(tuple(_legend(predicted, stages, terminal)))


def _title(stage: StageMemory) -> str:
    return (
        f"stage {stage.stage} ({number_words(stage.layers, 'layer')}):"
        f" {stage.total / GIB:,.1f} GiB at its peak, in {stage.event};"
        f" {stage.total_high / GIB:,.1f} with fragmentation"
    )


def _events(stage: StageMemory, predicted: Prediction, terminal: Terminal) -> Picture:
    bars, scale = event_bars(stage), scale_bytes(predicted)
    names, sizes = [bar.event for bar in bars], [f"{bar.total / GIB:,.1f}" for bar in bars]
    taken = max(map(len, names)) + max(map(len, sizes)) + 6
    columns = min(_LONGEST_BAR, terminal.width - taken)
    mark = round(predicted.memory_limit_bytes / scale * columns)
    widths = max(map(len, names)), max(map(len, sizes))
    rows = []
    for name, size, bar in zip(names, sizes, bars, strict=True):
        style = "" if bar.high is None else "bold"
        labels = ((f"{name:<{widths[0]}}", style), _BETWEEN, (f"{size:>{widths[1]}}", style), _BETWEEN)
        rows.append((*labels, *_stack(bar, columns / scale, mark, terminal)))
    return Picture(tuple(rows))


def _stack(bar: EventBar, columns_per_byte: float, mark: int, terminal: Terminal) -> Iterator[Piece]:
    """Yield ``bar`` as letters, shaded up to its size with fragmentation, with the limit at ``mark``."""
    cells: list[Piece] = []
    reached = 0.0
    for name, size in bar.parts:
        reached += size
        # Rounds ends, not lengths, so that the length of the bar is its rounded sum.
        cells += [_looks(name)] * (round(reached * columns_per_byte) - len(cells))
    if bar.high is not None:
        cells += [(terminal.shade, "dim")] * (round(bar.high * columns_per_byte) - len(cells))
    cells += [(" ", "")] * (mark - len(cells))
    cells.insert(mark, (_mark(terminal), "bold red"))
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        yield "".join(sign for sign, _ in run), style


def _looks(name: str) -> Piece:
    return MEMORY_PARTS[name].letter, MEMORY_PARTS[name].style


def _mark(terminal: Terminal) -> str:
    return "┃" if terminal.unicode else "|"


def _legend(
    predicted: Prediction, stages: list[StageMemory], terminal: Terminal
) -> Iterator[tuple[Piece, ...]]:
    """Yield the legend, in lines that break between two entries."""
    bars = [bar for stage in stages for bar in event_bars(stage)]
    parts = [name for name in MEMORY_PARTS if any(dict(bar.parts)[name] > 0 for bar in bars)]
    limit = f"limit {predicted.memory_limit_bytes / GIB:,.1f} GiB"
    line: tuple[Piece, ...] = ()
    taken = 0
    for sign, style, name in (
        *((*_looks(name), name) for name in parts),
        (terminal.shade, "dim", "with fragmentation"),
        (_mark(terminal), "bold red", limit),
    ):
        entry: tuple[Piece, ...] = ((sign, style), (f" {name}", ""))
        length = len(sign) + 1 + len(name)
        if line and taken + len(_GAP) + length > terminal.width:
            yield line
            line, taken = (), 0
        if line:
            entry, length = ((_GAP, ""), *entry), len(_GAP) + length
        line, taken = (*line, *entry), taken + length
    yield line


#: Most stages in a picture, and the columns that a mean piece has at least: of more both ends are drawn.
_MOST_STAGES: Final = 8
_LEAST_COLUMNS: Final = 2
_STAGE_LABEL: Final = 9
#: Kinds of passes that begin with the last digit of their microbatch.
_NUMBERED: Final = frozenset({"forward", "backward"})


def timeline_rows(timeline: StepTimeline, terminal: Terminal) -> Iterator[Block]:
    """Yield a step as a row of letters for each stage, with its times and what the letters mean."""
    stages = spread(timeline.stages, _MOST_STAGES)
    pieces = [piece for piece in pieces_of(timeline) if piece.stage in stages]
    columns = terminal.width - _STAGE_LABEL
    yield Heading(f"timeline of the step: {format_seconds(timeline.seconds)}")
    rows: list[tuple[Piece, ...]] = []
    for start, end in _windows(timeline.seconds, len(pieces) / len(stages), columns):
        for stage in stages:
            label = f"stage {stage}"
            in_window = [x for x in pieces if x.stage == stage and x.end > start and x.start < end]
            kinds = _row(in_window, (start, end), columns)
            digits = _digits(in_window, (start, end), kinds)
            rows.append(((f"{label:<{_STAGE_LABEL}}", ""), *_runs(kinds, digits, terminal)))
        rows.append(((_time_axis(start, end, columns), "dim"),))
    yield Picture(tuple(rows))
    left_out = timeline.stages - len(stages)
    if left_out:
        yield Sentence(f"({number_words(left_out, 'more stage')}: --output trace.json)", "quiet")
    yield Picture((tuple(_time_legend(pieces, terminal)),))


def _windows(seconds: float, pieces: float, columns: int) -> list[tuple[float, float]]:
    """Return the spans that are drawn [s]: the step, or both of its ends where it has many pieces a stage."""
    most = columns / _LEAST_COLUMNS
    if pieces <= most:
        return [(0.0, seconds)]
    length = seconds * min(0.5, most / pieces)
    return [(0.0, length), (seconds - length, seconds)]


def _row(pieces: Sequence[StepPiece], window: tuple[float, float], columns: int) -> list[str]:
    """Return for each column what the stage does longest in its span; empty where it is done."""
    start, end = window
    width = (end - start) / columns
    seconds: list[dict[str, float]] = [{} for _ in range(columns)]
    for piece in pieces:
        for column in _columns(piece, window, columns):
            left = start + column * width
            shared = min(piece.end, left + width) - max(piece.start, left)
            seconds[column][piece.kind] = seconds[column].get(piece.kind, 0.0) + max(0.0, shared)
    return [max(by_kind, key=by_kind.__getitem__) if by_kind else "" for by_kind in seconds]


def _columns(piece: StepPiece, window: tuple[float, float], columns: int) -> range:
    """Return the columns that a piece has a part of."""
    start, end = window
    first, last = ((x - start) / (end - start) * columns for x in (piece.start, piece.end))
    return range(max(0, int(first)), min(columns - 1, int(last)) + 1)


def _digits(pieces: Sequence[StepPiece], window: tuple[float, float], kinds: Sequence[str]) -> dict[int, str]:
    """Return by column the last digit of the microbatch whose pass begins in it and goes on in the next."""
    digits: dict[int, str] = {}
    for piece in pieces:
        cells = [x for x in _columns(piece, window, len(kinds)) if kinds[x] == piece.kind]
        if (
            piece.kind in _NUMBERED
            and piece.microbatch is not None
            and len(cells) > 1
            and cells[0] not in digits
        ):
            digits[cells[0]] = str(piece.microbatch % 10)
    return digits


def _runs(kinds: Sequence[str], digits: Mapping[int, str], terminal: Terminal) -> Iterator[Piece]:
    """Yield runs of the same kind with their style."""
    for kind, same in groupby(enumerate(kinds), key=itemgetter(1)):
        letter = _letter(kind, terminal) if kind else " "
        text = "".join(digits.get(column, letter) for column, _ in same)
        yield text, PIECE_KINDS[kind].style if kind else ""


def _letter(kind: str, terminal: Terminal) -> str:
    return terminal.dot if kind == "idle" and terminal.unicode else PIECE_KINDS[kind].letter


def _time_axis(start: float, end: float, columns: int) -> str:
    first, last = format_seconds(start), format_seconds(end)
    return f"{'':<{_STAGE_LABEL}}{first}{last:>{max(1, columns - len(first))}}"


def _time_legend(pieces: Sequence[StepPiece], terminal: Terminal) -> Iterator[Piece]:
    kinds = {piece.kind for piece in pieces}
    for kind, looks in PIECE_KINDS.items():
        if kind in kinds:
            yield _letter(kind, terminal), looks.style
            yield f" {kind}   ", ""
    yield "0-9 last digit of a microbatch", ""
