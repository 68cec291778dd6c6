"""Events of a Chrome trace, one at a time: a JSON file of any size is read with bounded memory.

The format is the Trace Event Format: an object with the list ``traceEvents`` and other fields, or the list
alone, whose closing bracket may be missing.

Bytes of a trace file, plain or gzip, in pieces: memory stays bounded whatever the file holds.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from autoplan.catalog import open_file
from autoplan.errors import CatalogError, Problem, SpecError

#: A field of the trace and its value; ``traceEvents`` comes once for each event.
Item: TypeAlias = tuple[str, Any]

_EVENTS: Final = "traceEvents"
#: Larger values belong to no event of a profiler.
_LARGEST_VALUE: Final = 16 * 2**20
_LONGEST_NUMBER: Final = 5000
_SPACE: Final = " \t\r\n"


def trace_items(path: Path) -> Iterator[Item]:
    """Yield the fields of a trace, and its events one by one.

    Raises SpecError with the place of what is no JSON, CatalogError for a file that cannot be read.
    """
    text = _Text(pieces(path), str(path))
    opening = text.peek()
    if opening == "[":
        yield from _events(text, closed=False)
    elif opening == "{":
        yield from _fields(text)
    else:
        what = "it is empty" if not opening else f"it begins with {opening!r}"
        raise text.problem(f"no trace in JSON: {what}; known are Chrome traces and Nsight Systems' SQLite")


def _fields(text: _Text) -> Iterator[Item]:
    """Yield the fields of the object that the trace is."""
    text.take("{")
    while text.peek() != "}":
        key = text.value()
        if not isinstance(key, str):
            raise text.problem(f"expected the name of a field, found {_kind(key)}")
        text.take(":")
        if key == _EVENTS:
            yield from _events(text, closed=True)
        else:
            yield key, text.value()
        if text.peek() == ",":
            text.take(",")
        elif text.peek() != "}":
            raise text.problem("expected ',' or '}'")
    text.take("}")


def _events(text: _Text, *, closed: bool) -> Iterator[Item]:
    """Yield the events of a list; without ``closed`` it may lack its last bracket."""
    if text.peek() != "[":
        raise text.problem(f"{_EVENTS} is not a list")
    text.take("[")
    count = 0
    while (ahead := text.peek()) != "]":
        for event in text.complete_objects():
            yield _EVENTS, event
            count += 1
        if not ahead and not closed:
            return
        event = text.value(f"event {count}")
        if not isinstance(event, dict):
            raise text.problem(f"{_EVENTS}[{count}] is {_kind(event)}, not an object")
        yield _EVENTS, event
        count += 1
        if text.peek() == ",":
            text.take(",")
        elif text.peek() != "]" and (closed or text.peek()):
            raise text.problem(f"expected ',' or ']' after event {count - 1}")
    text.take("]")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


@dataclass(slots=True)
class _Text:
    """The text of a file from where it is read; only a window of it is in memory."""

    source: Iterator[bytes]
    name: str
    window: str = ""
    at: int = 0
    before: int = 0
    ended: bool = False
    decoder: Any = None

    def _fill(self) -> None:
        """Append the next piece of the file, and let go of what was read."""
        if self.decoder is None:
            self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        piece = next(self.source, b"")
        self.ended = not piece
        self.before += self.at
        self.window = self.window[self.at :] + self.decoder.decode(piece, self.ended)
        self.at = 0

    def peek(self) -> str:
        """Return the next sign that is no space, none at the end of the file."""
        while True:
            window, at = self.window, self.at
            while at < len(window) and window[at] in _SPACE:
                at += 1
            self.at = at
            if at < len(window):
                # A byte order mark may open a file.
                if window[at] != "\ufeff":
                    return window[at]
                self.at += 1
            elif self.ended:
                return ""
            else:
                self._fill()

    def take(self, sign: str) -> None:
        """Go past ``sign``, which must be next."""
        if self.peek() != sign:
            raise self.problem(f"expected {sign!r}")
        self.at += 1

    def value(self, what: str = "a value") -> Any:  # noqa: ANN401 - whatever JSON holds
        """Return the next value and go past it."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self.window, self.at)
            except RecursionError as error:
                raise self.problem(f"{what} is nested too deeply") from error
            except ValueError as error:
                if self.ended:
                    raise self._broken(what, error) from error
                if len(self.window) - self.at > _LARGEST_VALUE:
                    message = f"{what} is no JSON, or larger than {_LARGEST_VALUE // 2**20} MiB"
                    raise self.problem(message) from error
            else:
                if self.ended or not self._may_go_on(value, end):
                    self.at = end
                    return value
            self._fill()

    def complete_objects(self) -> Iterator[dict[str, Any]]:
        """Yield the objects from here on that are whole in the window, with another value after each.

        What comes after them, such as an object that the window cuts, is left for ``value``.
        """
        decode, between = _DECODER.raw_decode, _BETWEEN.match
        while True:
            try:
                value, end = decode(self.window, self.at)
            except (ValueError, RecursionError):
                return
            text = between(self.window, end)
            if not isinstance(value, dict) or text is None or text.end() == len(self.window):
                return
            self.at = text.end()
            yield value

    def _may_go_on(self, value: object, end: int) -> bool:
        """Return whether a number that seems to end at ``end`` may go on after the window, as in ``1.``."""
        if isinstance(value, dict | list | str):
            return False
        return not self.window[end : end + _LONGEST_NUMBER].strip("+-.0123456789eE")

    def _broken(self, what: str, error: ValueError) -> SpecError:
        place = getattr(error, "pos", 0)
        if place >= len(self.window.rstrip()) - 1 or "Unterminated" in str(error):
            return self.problem(
                f"the file ends within {what}: it is cut off; copy it again, or profile again"
            )
        return self.problem(f"{what} is no JSON: {getattr(error, 'msg', error)}", place - self.at)

    def problem(self, message: str, further: int = 0) -> SpecError:
        """Return an error at the present place of the file."""
        place = self.before + self.at + max(0, further)
        return SpecError([Problem(f"{message} (character {place:,})", "$", self.name)])


_BETWEEN: Final = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=[{])")
#: Names of kernels hold control characters at times.
_DECODER: Final = json.JSONDecoder(strict=False)


_PIECE: Final = 2**20
_GZIP: Final = b"\x1f\x8b"
#: More than any trace: their text shrinks ten- to fortyfold.
_LARGEST: Final = 32 * 2**30
_MOST_EXPANDED: Final = 250
#: Below, a high ratio does no harm.
_SMALL: Final = 64 * 2**20


def first_bytes(path: Path, count: int = 16) -> bytes:
    """Return the first bytes of a file; raises CatalogError if it cannot be read."""
    with open_file(path) as file:
        try:
            return file.read(count)
        except OSError as error:
            raise CatalogError(f"cannot read {path}: {error.strerror or error}") from error


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the bytes of ``path`` in pieces of a MiB, decompressed where the file is gzip.

    Raises CatalogError for a file that cannot be read, that ends within its gzip stream, or that expands more
    than a trace does.
    """
    packed = first_bytes(path, 2) == _GZIP
    with open_file(path) as file:
        try:
            yield from _unpacked(file, path) if packed else _plain(file)
        except EOFError as error:
            raise CatalogError(
                f"{path} ends within its gzip stream: it is cut off; copy it again, or profile again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise CatalogError(f"{path} is no whole gzip file: {error}") from error
        except OSError as error:
            raise CatalogError(f"cannot read {path}: {error.strerror or error}") from error


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _unpacked(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the decompressed bytes; refuse what expands without end."""
    total = 0
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        while piece := unpacked.read(_PIECE):
            total += len(piece)
            if total > max(_SMALL, _MOST_EXPANDED * file.tell()) or total > _LARGEST:
                raise CatalogError(
                    f"{path} expands more than {_MOST_EXPANDED} times, which no trace does: it is not read"
                )
            yield piece
