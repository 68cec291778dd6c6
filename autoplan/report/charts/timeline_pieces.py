"""What each stage does in a step, as pieces: the same for a page and for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from autoplan.costs.core.prediction import StepSlice, StepTimeline

__all__ = ["PIECE_KINDS", "PieceLooks", "StepPiece", "pieces_of"]


class PieceLooks(NamedTuple):
    """How a kind of piece is shown: colour (Okabe and Ito 2008; Tol 2021), letter and terminal style."""

    colour: str
    letter: str
    style: str


PIECE_KINDS: Final = {
    "forward": PieceLooks("#56b4e9", "F", "black on bright_blue"),
    "backward": PieceLooks("#44aa99", "B", "black on green"),
    "weight gradient": PieceLooks("#cc79a7", "W", "black on magenta"),
    "recompute": PieceLooks("#f0e442", "R", "black on yellow"),
    "communication": PieceLooks("#cc3311", "C", "white on red"),
    "offload": PieceLooks("#999933", "H", "black on cyan"),
    "optimizer": PieceLooks("#aa4499", "O", "black on white"),
    "idle": PieceLooks("#8c8c8c", ".", "dim"),
}
_KIND_OF_PART: Final = {
    "bubble": "idle",
    "recompute": "recompute",
    "overhead": "offload",
    "optimizer": "optimizer",
}


@dataclass(frozen=True, slots=True)
class StepPiece:
    """Slices of one pass, one after another, in which a stage does the same: start and end [s]."""

    stage: int
    kind: str
    microbatch: int | None
    start: float
    end: float


def pieces_of(timeline: StepTimeline) -> Iterator[StepPiece]:
    """Yield what each stage does, stage by stage in the order of time."""
    for (stage, kind, microbatch, _, _), same in groupby(timeline.slices, _kind_of_pass):
        pieces = list(same)
        yield StepPiece(stage, kind, microbatch, pieces[0].start, pieces[-1].start + pieces[-1].seconds)


def _kind_of_pass(x: StepSlice) -> tuple[int, str, int | None, int, str]:
    kind = "communication" if x.part.endswith("_exposed") else _KIND_OF_PART.get(x.part, x.phase)
    return x.stage, kind, x.microbatch, x.chunk, x.phase
