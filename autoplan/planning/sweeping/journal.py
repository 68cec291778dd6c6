"""The journal of a sweep: each answer as it comes, one JSON value a line, safe against a kill at any moment.

A line is written whole and is on the disk before the next answer is taken, so that a kill loses no answer
that was told. What is left of a line without its end is cut off when the file is opened again. Answers are
found by the fingerprint of their job, so that a changed grid, cost model or program finds none that no
longer holds, and cells that ask the same share one. The file is locked by the system while a sweep writes
it: the lock ends with the process, however that ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from autoplan.errors import AutoplanError, CatalogError, Problem, SpecError
from autoplan.results.sweep import CellAnswer

__all__ = ["Journal", "journal_path"]

_ANSWER: Final[TypeAdapter[CellAnswer]] = TypeAdapter(CellAnswer)


def journal_path(output: Path) -> Path:
    """Return the journal of the results file ``output``, which lies beside it."""
    return output.with_name(f"{output.name}.journal")


class Journal:
    """Answers by the fingerprint of their job, in a file that one sweep writes at a time.

    Raises CatalogError for a file that cannot be read or written, SpecError for one that no sweep wrote, and
    AutoplanError where another sweep is writing it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, tuple[int, Any]] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error
        try:
            self._lock()
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def answer(self, fingerprint: str) -> CellAnswer | None:
        """Return the last answer to the job with ``fingerprint``, if there is any."""
        if fingerprint not in self._entries:
            return None
        number, value = self._entries[fingerprint]
        try:
            return _ANSWER.validate_python(value)
        except ValidationError as error:
            raise self._not_ours(number) from error

    def add(self, fingerprint: str, label: str, answer: CellAnswer) -> None:
        """Write one answer; it is on the disk when this returns."""
        value = dataclasses.asdict(answer)
        entry = {"fingerprint": fingerprint, "cell": label, "answer": value}
        line = json.dumps(entry, allow_nan=False).encode("ascii") + b"\n"
        try:
            while line:  # a signal may split a write; a torn line is cut off when it is read
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise self._unusable(error) from error
        self._entries[fingerprint] = (len(self._entries) + 1, value)

    def _lock(self) -> None:
        try:
            _lock_file(self._file)
        except BlockingIOError as error:
            raise AutoplanError(
                f"another sweep is writing {self.path}: wait for it, or name another --output"
            ) from error
        except OSError as error:
            raise self._unusable(error) from error

    def _read(self) -> None:
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:end].splitlines(), start=1):
            try:
                entry = json.loads(line)
                self._entries[str(entry["fingerprint"])] = (number, entry["answer"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise self._not_ours(number) from error
        if end < len(data):
            if end == 0 and not data.startswith(b'{"fingerprint"'[: len(data)]):
                raise self._not_ours(1)
            os.ftruncate(self._file, end)

    def _not_ours(self, number: int) -> SpecError:
        said = "not a line of a sweep's journal: move the file away, or name another --output"
        return SpecError([Problem(said, "$", str(self.path), number)])

    def _unusable(self, error: Exception) -> CatalogError:
        reason = getattr(error, "strerror", None) or str(error)
        return CatalogError(f"cannot write {self.path}: {reason}")


def _lock_file(file: int) -> None:
    """Lock an open file until it is closed; raises BlockingIOError where another process has it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(str(error)) from error
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
