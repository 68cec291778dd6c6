"""Processes timed side by side, and the pricing of one job in this process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.cases import PRICED, Case, job_file

__all__ = ["IMPORT", "IMPORT_WITH_PANDAS", "Timing", "pricing", "results"]

_AS_THE_PROGRAM = """
import gc
gc.disable()
from autoplan.commands.lean import without_pandas
with without_pandas():
    from ortools.sat.python import cp_model
gc.freeze()
"""
#: What everything is measured in: the solver's import as the program does it.
IMPORT = ("-c", _AS_THE_PROGRAM)

#: The same import as any other program does it: what leaving out pandas saves.
IMPORT_WITH_PANDAS = ("-c", "from ortools.sat.python import cp_model")

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Timing:
    """One finished process: wall-clock and processor seconds, most memory it held, and what it printed."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str


def results(cases: Sequence[Case], repeat: int) -> dict[str, Any]:
    """Return the medians of ``repeat`` rounds, after one that warms the caches up.

    In each round every case runs once, and the import before each of them, so that a machine that slows down
    slows all of them. Python keeps what it compiles, as it does for an installed package, in a folder of
    this measurement. The pricing comes last: it loads numpy, and a process starts as large as its parent.
    """
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        commands = [_plan_of(job_file(case, Path(folder))) for case in cases]
        kept = _environment(Path(folder) / "compiled")
        rounds, plain = [], []
        for _ in range(repeat + 1):
            rounds.append([(_timed(IMPORT, kept), _timed(command, kept)) for command in commands])
            plain.append(_timed(IMPORT_WITH_PANDAS, kept))
    after = os.getloadavg()[0]
    rounds, plain = rounds[1:], plain[1:]
    solver = [alone for timings in rounds for alone, _ in timings]
    planned = [[run for _, run in timings] for timings in zip(*rounds, strict=True)]
    unit, plain_unit = _times(solver), _times(plain)
    return {
        "repeat": repeat,
        "processors": os.cpu_count(),
        "load_before": before,
        "load_after": after,
        "solver_import": {**unit, "peak_memory_bytes": _memory(solver)},
        "solver_import_with_pandas": {**plain_unit, "peak_memory_bytes": _memory(plain)},
        "rows": [_row(case, timings, unit, plain_unit) for case, timings in zip(cases, planned, strict=True)],
        "pricing": pricing(repeat, unit["seconds"]),
    }


def _plan_of(job: Path) -> tuple[str, ...]:
    return ("-m", "autoplan", "plan", str(job), "--format", "json")


def _environment(compiled: Path) -> dict[str, str]:
    """Return the variables of the processes: this one's, where Python keeps what it compiles."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # The program sets the same for itself: numpy, which the solver imports, starts no threads.
    return {"OPENBLAS_NUM_THREADS": "1", **kept, "PYTHONPYCACHEPREFIX": str(compiled)}


def _timed(arguments: Sequence[str], environment: Mapping[str, str]) -> Timing:
    """Run Python with ``arguments``; raises where it fails for another reason than infeasibility."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        child = subprocess.Popen([sys.executable, *arguments], stdout=output, cwd=_ROOT, env=environment)
        # wait4 alone tells the memory of this one child.
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            raise subprocess.CalledProcessError(child.returncode, child.args)
        output.seek(0)
        # Linux counts KiB, macOS bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        busy = usage.ru_utime + usage.ru_stime
        return Timing(seconds, busy, usage.ru_maxrss * unit, output.read().decode())


def _times(timings: Sequence[Timing]) -> dict[str, float]:
    return {
        "seconds": statistics.median(timing.seconds for timing in timings),
        "cpu_seconds": statistics.median(timing.cpu_seconds for timing in timings),
    }


def _memory(timings: Sequence[Timing]) -> int:
    return int(statistics.median(timing.peak_bytes for timing in timings))


def _row(
    case: Case, timings: Sequence[Timing], unit: dict[str, float], plain_unit: dict[str, float]
) -> dict[str, Any]:
    answer = json.loads(timings[0].output)
    certificate = answer["certificate"]
    times = _times(timings)
    return {
        "case": case.name,
        "model": case.model,
        "devices": case.devices,
        "layers": case.layers,
        **times,
        "seconds_of_rounds": [timing.seconds for timing in timings],
        "ratio": times["seconds"] / unit["seconds"],
        "cpu_ratio": times["cpu_seconds"] / unit["cpu_seconds"],
        "plain_ratio": times["seconds"] / plain_unit["seconds"],
        "plain_cpu_ratio": times["cpu_seconds"] / plain_unit["cpu_seconds"],
        "target_ratio": case.target,
        "peak_memory_bytes": _memory(timings),
        "status": certificate["status"],
        "plans": len(answer["front"]),
        "solves": certificate["solves"],
        "candidates": certificate["candidates"],
        "layouts_covered": certificate["layouts_covered"],
    }


def pricing(repeat: int, unit: float) -> dict[str, Any]:
    """Return the time of listing and pricing every candidate of the 8-device job, in this process.

    The prices of a candidate are linear in layers and recompute but for maxima, so they hold the price of
    each of its layouts.
    """
    from autoplan import load_job
    from autoplan.costs.device.machine import machine_of
    from autoplan.search.space.candidate_space import space_of
    from autoplan.search.space.choices import recompute_modes
    from autoplan.search.space.priced_candidates import priced, sized

    job = load_job(PRICED)
    seconds: list[float] = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        space, machine, modes = space_of(job), machine_of(job), recompute_modes(job)
        for candidates in space.groups:
            for group in sized(job, candidates, modes, even=False):
                priced(job, group, machine)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return {
        "job": PRICED,
        "seconds": median,
        "ratio": median / unit,
        "candidates": space.size,
        "layouts_covered": space.covered,
    }
