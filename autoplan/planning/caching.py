"""Answers that are kept, so that the same question from many processes costs one search.

The lock is a file that its holder creates exclusively and touches every second. That is atomic on every
file system, NFS included, where locks of fcntl may be missing. A holder that died is noticed: at once on its
own machine, where its process is gone, and elsewhere when the file was not touched for a while, by the clock
of whoever waits. The lock saves work and nothing else: two holders would both search, and answers are
written whole in any case.

A file holds what the search decided, as JSON: layouts, certificate and rejections. Predictions are computed
anew when it is read. A file whose digest does not agree is as good as none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from autoplan.catalog.file_writing import write_whole
from autoplan.costs.predict import facts_of, predict_all
from autoplan.deadline import Deadline
from autoplan.errors import AutoplanError, CatalogError
from autoplan.kinds import kind_of
from autoplan.results.front import Certificate, Front, Rejection
from autoplan.results.plan import Plan
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout
from autoplan.version import __version__

if TYPE_CHECKING:
    from autoplan.schema.serving.serving_spec import ServingJob

R = TypeVar("R")

#: The environment variable that names the folder of answers, and turns the cache on.
CACHE_VARIABLE: Final = "AUTOPLAN_CACHE_DIR"
#: A process that searches for all has their deadline; on a loaded machine its answer may come so much later.
_GRACE_SECONDS: Final = 600.0


def cache_folder(cache: bool | str | Path | None) -> Path | None:  # noqa: FBT001 - as ``plan`` takes it
    """Return the folder of answers: that of ``cache``, of the environment, or the user's own; None for none.

    ``cache`` None asks the environment variable, True also the user's own folder, False turns it off.
    """
    if cache is False:
        return None
    if isinstance(cache, str | Path):
        return Path(cache)
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    if cache is None:
        return None
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home or Path.home() / ".cache") / "autoplan" / "answers"


def cached(
    job: Job,
    folder: Path,
    deadline: Deadline,
    search: Callable[[], Front],
    others: Sequence[tuple[float, float]] = (),
) -> Front:
    """Return the front of ``job``: the answer in ``folder``, or that of ``search``, which is written to it.

    The answer depends on the plans of other programs, ``others``, that the search is told of.

    Of many processes that ask at once one searches, and the others wait for its answer. Raises CatalogError
    where the folder cannot be used.
    """
    # Answers of a search that its deadline stopped are those of that deadline.
    question = f"{fingerprint(job)} {deadline.seconds} {sorted(others)}"
    question_hash = hashlib.sha256(question.encode()).hexdigest()
    path = folder / f"{question_hash}.json"
    if (answer := read_answer(path, job)) is not None:
        return answer
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = SolveLock(
            folder / f"{question_hash}.lock",
            answered=lambda: is_answered(path),
            may_wait=lambda: _patient(deadline),
        )
        lock.acquire()
    try:
        if (answer := read_answer(path, job)) is not None:
            return answer
        front = search()
        if not deadline.stopped:
            with _usable(folder):
                write_answer(path, front)
        return front
    finally:
        lock.release()


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Raise CatalogError for an error of the file system inside the block."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CatalogError(
            f"cannot use {folder} as cache: {reason}; name another folder in {CACHE_VARIABLE}, or turn the"
            " cache off (--no-cache)"
        ) from error


def _patient(deadline: Deadline) -> bool:
    if deadline.stopped:
        return False
    spent = time.monotonic() - deadline.started
    return deadline.seconds is None or spent < deadline.seconds + _GRACE_SECONDS


_TOUCHED_EVERY_SECONDS: Final = 1.0
#: A lock that was not touched for so long has lost its holder.
_STALE_SECONDS: Final = 20.0
#: Waiting processes look again after a random part of this.
_LOOK_SECONDS: Final = 0.2


class SolveLock:
    """The lock at ``path``; once acquired, ``held`` says whether this process has it.

    ``acquire`` waits until the holder is done or gone, ``answered`` says that waiting has become needless, or
    ``may_wait`` ends it. It raises OSError where the folder cannot be written.
    """

    def __init__(self, path: Path, *, answered: Callable[[], bool], may_wait: Callable[[], bool]) -> None:
        self.path, self.locked = path, False
        self._answered, self._may_wait = answered, may_wait
        self._owner = f"{_machine()} {os.getpid()} {secrets.token_hex(8)}"
        self._released = threading.Event()

    def acquire(self) -> None:
        """Wait for the lock until it is free or has become needless."""
        watched = _Watch()
        while not self._created():
            if self._answered() or not self._may_wait():
                return
            if watched.lost(self.path):
                self._remove_lost()
            time.sleep(_LOOK_SECONDS * random.uniform(0.2, 1.0))  # noqa: S311 - only to look at other times
        self.locked = True
        threading.Thread(target=self._touch, daemon=True).start()

    def release(self) -> None:
        """Give the lock back, where it is still this process's own."""
        self._released.set()
        if self.locked and _read(self.path) == self._owner:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def _created(self) -> bool:
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(self._owner)
        return True

    def _remove_lost(self) -> None:
        """Remove the file of a holder that is gone; of several who try, one has it."""
        aside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        with suppress(FileNotFoundError):
            self.path.rename(aside)
            aside.unlink(missing_ok=True)

    def _touch(self) -> None:
        while not self._released.wait(_TOUCHED_EVERY_SECONDS):
            with suppress(OSError):
                if _read(self.path) != self._owner:
                    return
                os.utime(self.path)


class _Watch:
    """What a waiting process has seen of a lock, and since when by its own clock."""

    def __init__(self) -> None:
        self.seen: tuple[str | None, int] | None = None
        self.since = time.monotonic()

    def lost(self, path: Path) -> bool:
        """Return whether the holder is gone."""
        owner = _read(path)
        try:
            now = (owner, path.stat().st_mtime_ns)
        except FileNotFoundError:
            return False
        if now != self.seen:
            self.seen, self.since = now, time.monotonic()
        return _process_is_gone(owner) or time.monotonic() - self.since > _STALE_SECONDS


def _machine() -> str:
    """Return the host, and the container on it, whose processes know each other's numbers."""
    try:
        numbers = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        numbers = ""
    return f"{socket.gethostname()}/{numbers}"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _process_is_gone(owner: str | None) -> bool:
    """Return whether ``owner`` is a process of this machine that has ended; unknown counts as alive."""
    parts = (owner or "").split()
    if len(parts) != 3 or parts[0] != _machine() or not parts[1].isdigit():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


#: Most answers of a folder; the ones that were asked for the longest ago go first.
MOST_FILES: Final = 1000
#: A search that was stopped by its deadline holds for the processes of one start, and not for the next one.
_STOPPED_SECONDS: Final = 600.0
#: What a process left that was killed while it wrote.
_LEFT_OVER_SECONDS: Final = 3600.0


@cache
def _reader_of(kind: type[R]) -> TypeAdapter[R]:
    """Return what reads values of ``kind``, which is built when an answer is read."""
    return TypeAdapter(kind)


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
    """Return whether the answer at ``path`` is whole and recent."""
    return _answer(path) is not None


def read_answer(path: Path, job: Job) -> Front | None:
    """Return the front of ``job`` at ``path``, if it is whole, valid and recent; else None."""
    answer = _answer(path)
    if answer is None:
        return None
    try:
        certificate = _certificate(answer["certificate"])
        rejected = _reader_of(tuple[Rejection, ...]).validate_json(json.dumps(answer["rejected"]))
        reasons = _reader_of(tuple[str, ...]).validate_json(json.dumps(answer["reasons"]))
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
    certificate: Certificate = _reader_of(Certificate).validate_json(json.dumps(plain))
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


#: Folders of code that no answer comes from.
APART: Final = frozenset({"answers", "calibration", "cli", "commands", "launch", "report", "verification"})


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


def fingerprint(job: Job | ServingJob) -> str:
    """Return a text that two jobs share when they are the same to the same program, whatever their names.

    It covers the resolved job: model, devices, network, the numbers of the cost model, search and limits; of
    a serving job also the trace of its requests. Raises as ``load_job`` does where that cannot be read.
    """
    named = " ".join((planner_name(), *kind_of(job).hashes(job)))
    return hashlib.sha256(named.encode()).hexdigest()
