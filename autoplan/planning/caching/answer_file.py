"""Answers of the search as files: whole or not at all, checked when read, and not too many of them.

A file holds what the search decided, as JSON: layouts, certificate and rejections. Predictions are computed
anew when it is read. A file whose digest does not agree is as good as none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from autoplan.catalog.file_writing import write_whole
from autoplan.costs.predict import facts_of, predict_all
from autoplan.errors import AutoplanError
from autoplan.results import Certificate, Front, Plan, Rejection
from autoplan.rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout

__all__ = ["MOST_FILES", "is_answered", "read_answer", "write_answer"]

#: Most answers of a folder; the ones that were asked for the longest ago go first.
MOST_FILES: Final = 1000
#: A search that was stopped by its deadline holds for the processes of one start, and not for the next one.
_STOPPED_SECONDS: Final = 600.0
#: What a process left that was killed while it wrote.
_LEFT_OVER_SECONDS: Final = 3600.0

_CERTIFICATE: Final = TypeAdapter(Certificate)
_REJECTIONS: Final = TypeAdapter(tuple[Rejection, ...])
_REASONS: Final = TypeAdapter(tuple[str, ...])


def write_answer(path: Path, front: Front) -> None:
    """Write ``front``, without its job and its predictions; raises OSError where that fails."""
    answer = {
        "layouts": [str(plan.layout) for plan in front.plans],
        "certificate": dataclasses.asdict(front.certificate),
        "rejected": [dataclasses.asdict(rejection) for rejection in front.rejected],
        "reasons": front.reasons,
        "cut_by_others": front.cut_by_others,
    }
    text = json.dumps(answer, allow_nan=False)
    write_whole(path, json.dumps({"digest": _digest(text), "answer": text}).encode())
    _prune(path.parent)


def is_answered(path: Path) -> bool:
    """Return whether there is an answer at ``path`` that is whole and recent."""
    return _answer(path) is not None


def read_answer(path: Path, job: Job) -> Front | None:
    """Return the front of ``job`` at ``path``; None where there is none that is whole, valid and recent."""
    answer = _answer(path)
    if answer is None:
        return None
    try:
        certificate = _certificate(answer["certificate"])
        rejected = _REJECTIONS.validate_json(json.dumps(answer["rejected"]))
        reasons = _REASONS.validate_json(json.dumps(answer["reasons"]))
        layouts = [_layout(job, text) for text in answer["layouts"]]
        cut = bool(answer["cut_by_others"])
    except (AutoplanError, KeyError, TypeError, ValidationError):
        return None
    # An answer that is asked for stays; that it could not be noted does no harm.
    if certificate.stopped is None:
        with suppress(OSError):
            os.utime(path)
    facts = facts_of(job)
    predicted = predict_all(job, layouts)
    plans = tuple(Plan(*pair, facts) for pair in zip(layouts, predicted, strict=True))
    return Front(job, plans, certificate, rejected, reasons, facts=facts, cut_by_others=cut)


def _certificate(plain: dict[str, Any]) -> Certificate:
    """Return the certificate of JSON values; parameters that were integers stay integers."""
    certificate = _CERTIFICATE.validate_json(json.dumps(plain))
    parameters = tuple((str(name), value) for name, value in plain["solver_parameters"])
    return dataclasses.replace(certificate, solver_parameters=parameters)


def _layout(job: Job, text: str) -> Layout:
    layout = parse_layout(text, layers=job.model.layers, devices=job.cluster.devices)
    if broken := broken_rules(job, layout):
        raise AutoplanError("; ".join(broken))
    return layout


def _answer(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_bytes())
        if _digest(document["answer"]) != document["digest"]:
            return None
        answer: dict[str, Any] = json.loads(document["answer"])
        stopped = answer["certificate"]["stopped"] is not None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return None if stopped and not _recent(path, _STOPPED_SECONDS) else answer


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _recent(path: Path, seconds: float) -> bool:
    try:
        return abs(time.time() - path.stat().st_mtime) < seconds
    except OSError:
        return False


def _prune(folder: Path) -> None:
    """Remove the oldest answers beyond the most, and what killed processes left; another may do so, too."""
    with suppress(OSError):
        answers = sorted(_ages(folder, "*.json"))
        for _, path in answers[: max(0, len(answers) - MOST_FILES)]:
            path.unlink(missing_ok=True)
        for pattern in (".*", "*.lock"):
            for changed, path in _ages(folder, pattern):
                if time.time() - changed > _LEFT_OVER_SECONDS:
                    path.unlink(missing_ok=True)


def _ages(folder: Path, pattern: str) -> Iterator[tuple[float, Path]]:
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            if path.is_file():
                yield path.stat().st_mtime, path
