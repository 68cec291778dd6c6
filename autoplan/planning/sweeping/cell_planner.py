"""One job of a sweep: what identifies it, and planning it to an answer that travels between processes."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Final

from autoplan import __version__
from autoplan.errors import AutoplanError
from autoplan.planning.plan_and_evaluate import plan
from autoplan.results.front import Front
from autoplan.results.sweep import CellAnswer
from autoplan.schema.job import Job
from autoplan.schema.resolved_job import hashes

__all__ = ["APART", "fingerprint", "plan_cell", "planner_name", "refusal"]

#: Folders of code that no answer of a sweep comes from.
APART: Final = frozenset({"calibration", "cli", "launch", "report", "verification"})


@cache
def planner_name() -> str:
    """Return what plans are the same by: the version of autoplan, its code and its solver.

    The code is that which an answer comes from: commands, reports and checks may change, and answers stay.
    """
    root = Path(str(files("autoplan")))
    digest = hashlib.sha256()
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in root.rglob("*.py")):
        if name.split("/")[0] not in APART:
            digest.update(name.encode())
            digest.update(file.read_bytes())
    try:
        solver = version("ortools")
    except PackageNotFoundError:
        solver = "unknown"
    return f"autoplan {__version__} (code {digest.hexdigest()[:12]}, ortools {solver})"


def fingerprint(job: Job) -> str:
    """Return a text that two jobs share when they are the same to the same program, whatever their names.

    It covers the resolved job: model, devices, network, the numbers of the cost model, search and limits.
    """
    return hashlib.sha256(f"{planner_name()} {hashes(job)[0]}".encode()).hexdigest()


def plan_cell(job: Job) -> CellAnswer:
    """Return the answer to ``job``: its best plan, or why there is none."""
    started = time.perf_counter()
    try:
        answer = _answer(plan(job))
    except AutoplanError as error:
        answer = refusal(error)
    seconds = time.perf_counter() - started
    return dataclasses.replace(answer, planning_seconds=seconds, planner=planner_name())


def refusal(error: AutoplanError) -> CellAnswer:
    """Return the answer to a job that cannot be planned."""
    problems = getattr(error, "problems", None) or getattr(error, "reasons", None)
    said = [str(getattr(each, "message", each)) for each in problems] if problems else [str(error)]
    return CellAnswer("invalid", tuple(said))


def _answer(front: Front) -> CellAnswer:
    job, status = front.job, front.certificate.status
    if not front.plans:
        return CellAnswer(
            "infeasible",
            tuple(front.reasons),
            devices_used=job.cluster.devices,
            stack_used=job.stack.name,
            certificate=status,
        )
    best = front.plans[0]
    predicted = best.predicted
    return CellAnswer(
        "planned",
        devices_used=best.layout.devices,
        stack_used=job.stack.name,
        layout=best.layout_string,
        layers=sum(best.layout.layers),
        step_seconds=predicted.step_seconds,
        step_seconds_low=predicted.step_seconds_low,
        step_seconds_high=predicted.step_seconds_high,
        tokens_per_second=predicted.tokens_per_second,
        tokens_per_second_per_device=predicted.tokens_per_second_per_device,
        model_flops_utilization=predicted.model_flops_utilization,
        peak_memory_bytes_per_device=predicted.peak_memory_bytes_per_device,
        peak_memory_bytes_high=predicted.peak_memory_bytes_high,
        memory_limit_bytes=predicted.memory_limit_bytes,
        fits=predicted.fits,
        plans=len(front.plans),
        certificate=status,
    )
