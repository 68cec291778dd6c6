"""What several tests make by hand: a certificate, the base of a grid, and the rows of its results."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from autoplan.results.front import Certificate

CERTIFICATE = Certificate(
    status="optimal",
    best_bound_step_seconds=32.9,
    gap=0.001,
    thinning=0.005,
    layouts_covered=12_345_678,
    candidates=412,
    candidates_solved=37,
    solver="CP-SAT",
    solves=120,
    layouts_total=23_456_789,
    solver_parameters=(("num_workers", 1),),
    stopped=None,
    job_hash="sha256:0",
    cost_model_hash="sha256:1",
    autoplan_version="0",
)

#: A job that is planned in milliseconds, up to where its grid begins.
GRID_HEAD = """\
kind: sweep
base:
  kind: training
  model: gpt2
  hardware: 2x-rtx3090-nvlink
  stack: fsdp2
  workload: {sequence_length: 512, global_batch_size: 16}
  search: {tensor_parallel: 1, pipeline_parallel: 1, microbatch_size: 1, recompute: none}
  objectives: [step_time]
grid:
"""


def rows_of(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file of results, without the seconds that planning took."""
    with file.open(encoding="utf-8", newline="") as text:
        return [{k: v for k, v in row.items() if k != "planning_seconds"} for row in csv.DictReader(text)]


def kept_answers(journal: Path, *, locked: bool = False) -> list[tuple[str, str, str]]:
    """Return fingerprint, cell and answer of all that the journal of a sweep holds, in its order.

    One that is ``locked`` by a sweep is read past the lock: what is being written at the time may raise.
    """
    name = f"file:{quote(str(journal))}?immutable=1" if locked else str(journal)
    with closing(sqlite3.connect(name, uri=locked)) as database:
        return database.execute("SELECT fingerprint, cell, answer FROM answers ORDER BY number").fetchall()
