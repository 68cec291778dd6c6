"""Search for the front of a job, or the answer that another process has found to the same question."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from autoplan.deadline import Deadline
from autoplan.errors import CatalogError
from autoplan.results import Front
from autoplan.schema.job import Job

__all__ = ["CACHE_VARIABLE", "cache_folder", "cached"]

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
    """Return the front of ``job``: the answer in ``folder``, or that of ``search``, which is kept there.

    The answer depends on the plans of other programs, ``others``, that the search is told of.

    Of many processes that ask at once one searches, and the others wait for its answer. Raises CatalogError
    where the folder cannot be used.
    """
    from autoplan.planning.caching.answer_file import is_answered, read_answer, write_answer
    from autoplan.planning.caching.planner_identity import fingerprint
    from autoplan.planning.caching.solve_lock import SolveLock

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
