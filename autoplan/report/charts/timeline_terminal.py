"""The predicted step by stage as rows of letters for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from autoplan.costs.core.prediction import StepTimeline
from autoplan.report.charts.timeline_pieces import PIECE_KINDS, StepPiece, pieces_of
from autoplan.report.render.bars import spread
from autoplan.report.render.blocks import Block, Heading, Picture, Piece, Sentence
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.sentences import number_words
from autoplan.units import format_seconds

__all__ = ["timeline_rows"]

#: Most stages in a picture, and the columns that a mean piece has at least: of more both ends are drawn.
_MOST_STAGES: Final = 8
_LEAST_COLUMNS: Final = 2
_LABEL: Final = 9
#: Kinds of passes that begin with the last digit of their microbatch.
_NUMBERED: Final = frozenset({"forward", "backward"})


def timeline_rows(timeline: StepTimeline, terminal: Terminal) -> Iterator[Block]:
    """Yield a step as a row of letters for each stage, with its times and what the letters mean."""
    stages = spread(timeline.stages, _MOST_STAGES)
    pieces = [piece for piece in pieces_of(timeline) if piece.stage in stages]
    columns = terminal.width - _LABEL
    yield Heading(f"timeline of the step: {format_seconds(timeline.seconds)}")
    rows: list[tuple[Piece, ...]] = []
    for start, end in _windows(timeline.seconds, len(pieces) / len(stages), columns):
        for stage in stages:
            label = f"stage {stage}"
            in_window = [x for x in pieces if x.stage == stage and x.end > start and x.start < end]
            kinds = _row(in_window, (start, end), columns)
            digits = _digits(in_window, (start, end), kinds)
            rows.append(((f"{label:<{_LABEL}}", ""), *_runs(kinds, digits, terminal)))
        rows.append(((_axis(start, end, columns), "dim"),))
    yield Picture(tuple(rows))
    left_out = timeline.stages - len(stages)
    if left_out:
        yield Sentence(f"({number_words(left_out, 'more stage')}: --output trace.json)", "quiet")
    yield Picture((tuple(_legend(pieces, terminal)),))


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
    return [max(own, key=own.__getitem__) if own else "" for own in seconds]


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


def _axis(start: float, end: float, columns: int) -> str:
    first, last = format_seconds(start), format_seconds(end)
    return f"{'':<{_LABEL}}{first}{last:>{max(1, columns - len(first))}}"


def _legend(pieces: Sequence[StepPiece], terminal: Terminal) -> Iterator[Piece]:
    shown = {piece.kind for piece in pieces}
    for kind, looks in PIECE_KINDS.items():
        if kind in shown:
            yield _letter(kind, terminal), looks.style
            yield f" {kind}   ", ""
    yield "0-9 last digit of a microbatch", ""
