"""Pickles of plain values, read without executing anything.

A pickle is a program. Python's own reader runs it: it may import any function and call it, and its memo may
be made to fill memory. A snapshot of PyTorch's allocator (``torch.cuda.memory._dump_snapshot``) holds
dictionaries, lists, tuples, texts and numbers only, so that the instructions for these are enough; every
other one is refused. The instructions are those of Python's pickletools.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from autoplan.catalog import open_file
from autoplan.errors import CatalogError, Problem, SpecError

#: Python's objects for a snapshot take about ten times as much as its file.
_LARGEST: Final = 2 * 2**30
_WINDOW: Final = 2**20
_LONGEST_TEXT: Final = 2**24
_MOST_VALUES: Final = 200_000_000
#: How many times the values of a file there may be where each reference is followed, and how many more.
#: PyTorch writes the frames of a place in the code once for all events there: some ten times.
_SHARED_TIMES: Final = 100
_FEW_VALUES: Final = 1_000_000


class _Mark:
    """Where a group of values begins on the stack."""


_MARK: Final = _Mark()


def read_plain_pickle(path: Path) -> Any:  # noqa: ANN401 - whatever plain value it holds
    """Return the value of a pickle of dictionaries, lists, tuples, texts, numbers, booleans and None.

    Raises SpecError for any instruction that makes something else, CatalogError for a file that is cut off.
    """
    with open_file(path) as file:
        try:
            return _Machine(file, str(path)).run()
        except (IndexError, KeyError, TypeError, ValueError, struct.error, UnicodeError) as error:
            raise SpecError(
                [Problem(f"no whole pickle of a snapshot: {error!r:.80}", "$", str(path))]
            ) from error
        except OSError as error:
            raise CatalogError(f"cannot read {path}: {error.strerror or error}") from error


@dataclass(slots=True)
class _Machine:
    """Stack and memo of a pickle, and the file from which its instructions come."""

    file: BinaryIO
    name: str
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    window: bytes = b""
    at: int = 0
    before: int = 0
    #: Instructions so far, and whether lists or dictionaries are referred to once more.
    made: int = 0
    shared: bool = False

    def run(self) -> Any:  # noqa: ANN401
        """Follow the instructions to the end and return the value that they leave."""
        for self.made in range(_MOST_VALUES):
            opcode = self._bytes(1)
            if opcode == b".":
                return self._bounded(self._plain(self.stack.pop()))
            act = _INSTRUCTIONS.get(opcode)
            if act is None:
                raise self._refused(opcode)
            act(self)
        raise SpecError([Problem(f"more than {_MOST_VALUES:,} values", "$", self.name)])

    def _plain(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, _Mark):
            raise TypeError("a mark is no value")
        return value

    def _bounded(self, value: Any) -> Any:  # noqa: ANN401
        """Return ``value``; raises SpecError where it has far more values than were read, or has no end.

        A list may hold another one many times, and so on: whoever goes through it never comes to an end.
        """
        if self.shared and not _expands_to(value, self.made * _SHARED_TIMES + _FEW_VALUES):
            message = "its values refer to each other so often that they have no end: dump the snapshot again"
            raise SpecError([Problem(message, "$", self.name)])
        return value

    def recall(self, index: int) -> None:
        """Push a value that was kept under a number."""
        value = self.memo[index]
        self.shared = self.shared or isinstance(value, list | dict | tuple)
        self.push(value)

    def _refused(self, opcode: bytes) -> SpecError:
        import pickletools

        opcodes = {x.code.encode("latin-1"): x.name for x in pickletools.opcodes}
        what, place = opcodes.get(opcode, f"byte 0x{opcode.hex()}"), self.before + self.at - 1
        return SpecError(
            [
                Problem(
                    f"instruction {what} at byte {place:,}: a memory snapshot holds dictionaries,"
                    " lists, texts and numbers only, and nothing else of a pickle is read or executed",
                    "$",
                    self.name,
                )
            ]
        )

    def _bytes(self, count: int) -> bytes:
        """Return the next bytes of the file; raises CatalogError where it ends before."""
        at = self.at
        self.at = end = at + count
        if end > len(self.window):
            at, end = self._fill(at, count)
        return self.window[at:end]

    def _fill(self, at: int, count: int) -> tuple[int, int]:
        """Read on, so that ``count`` bytes from ``at`` are in the window; return where they are now."""
        self.before += at
        if self.before + count > _LARGEST:
            raise CatalogError(f"{self.name} is larger than {_LARGEST // 2**30} GiB")
        self.window = self.window[at:]
        self.window += self.file.read(max(_WINDOW, count - len(self.window)))
        if len(self.window) < count:
            place = self.before + len(self.window)
            raise CatalogError(f"{self.name} ends within its pickle, at byte {place:,}: it is cut off")
        self.at = count
        return 0, count

    def count(self, size: int) -> int:
        """Return the next whole number of ``size`` bytes, without a sign."""
        return int.from_bytes(self._bytes(size), "little")

    def push(self, value: Any) -> None:  # noqa: ANN401
        """Put a value on the stack."""
        self.stack.append(value)

    def text(self, size: int) -> None:
        """Push a text, whose length comes first in ``size`` bytes."""
        length = self.count(size)
        if length > _LONGEST_TEXT:
            raise ValueError(f"a text of {length:,} bytes")
        self.push(self._bytes(length).decode("utf-8", "surrogatepass"))

    def long(self, size: int) -> None:
        """Push an integer of any length up to that of an address, which comes first in ``size`` bytes."""
        length = self.count(size)
        if length > 16:
            raise ValueError(f"an integer of {length:,} bytes")
        self.push(int.from_bytes(self._bytes(length), "little", signed=True))

    def integer(self, size: int) -> None:
        """Push an integer of ``size`` bytes."""
        self.push(int.from_bytes(self._bytes(size), "little", signed=True))

    def double(self) -> None:
        """Push a floating-point number."""
        self.push(struct.unpack(">d", self._bytes(8))[0])

    def group(self) -> list[Any]:
        """Take the values above the last mark from the stack, and the mark."""
        values: list[Any] = []
        while not isinstance(top := self.stack.pop(), _Mark):
            values.append(top)
        return values[::-1]

    def tuple_of(self, count: int) -> None:
        """Push a tuple of the last values."""
        values = tuple(self._plain(x) for x in self.stack[-count:])
        if len(values) != count:
            raise IndexError("too few values for a tuple")
        self.stack[-count:] = [values]

    def append(self, values: list[Any]) -> None:
        """Append values to the list on the stack."""
        if not isinstance(self.stack[-1], list):
            raise TypeError("only a list takes values")
        self.stack[-1].extend(self._plain(x) for x in values)

    def set_items(self, values: list[Any]) -> None:
        """Set keys and values, one after another, in the dictionary on the stack."""
        if not isinstance(self.stack[-1], dict) or len(values) % 2:
            raise TypeError("only a dictionary takes keys and values")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | int | float | bool | None):
                raise TypeError("a key is no text and no number")
            self.stack[-1][key] = self._plain(value)

    def remember(self, index: int) -> None:
        """Keep the value on the stack under a number."""
        self.memo[index] = self._plain(self.stack[-1])

    def frame(self) -> None:
        """Go past the length of a frame."""
        self._bytes(8)


def _expands_to(value: Any, most: int) -> bool:  # noqa: ANN401
    """Return whether ``value`` has at most ``most`` values, each counted as often as it is referred to."""
    counts: dict[int, int] = {}
    waiting = [value] if isinstance(value, list | dict | tuple) else []
    while waiting:
        holder = waiting[-1]
        inner = list(holder.values()) if isinstance(holder, dict) else holder
        parts = [part for part in inner if isinstance(part, list | dict | tuple)]
        if id(holder) not in counts:
            # Nothing is counted yet: whoever comes back here before the end is inside of itself.
            counts[id(holder)] = -1
            waiting += {id(part): part for part in parts if id(part) not in counts}.values()
            if any(counts.get(id(part)) == -1 for part in parts):
                return False
            continue
        waiting.pop()
        if counts[id(holder)] == -1:
            counts[id(holder)] = len(inner) + sum(counts[id(part)] for part in parts)
            if counts[id(holder)] > most:
                return False
    return True


def _one(machine: _Machine) -> list[Any]:
    return [machine.stack.pop()]


def _two(machine: _Machine) -> list[Any]:
    value = machine.stack.pop()
    return [machine.stack.pop(), value]


_INSTRUCTIONS: Final[dict[bytes, Callable[[_Machine], Any]]] = {
    b"\x80": lambda m: m.count(1),
    b"\x95": _Machine.frame,
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"(": lambda m: m.push(_MARK),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),  # noqa: FBT003 - a value of the file
    b"\x89": lambda m: m.push(False),  # noqa: FBT003 - a value of the file
    b"J": lambda m: m.integer(4),
    b"K": lambda m: m.push(m.count(1)),
    b"M": lambda m: m.push(m.count(2)),
    b"\x8a": lambda m: m.long(1),
    b"\x8b": lambda m: m.long(4),
    b"G": _Machine.double,
    b"\x8c": lambda m: m.text(1),
    b"X": lambda m: m.text(4),
    b"\x8d": lambda m: m.text(8),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"t": lambda m: m.push(tuple(m.group())),
    b"a": lambda m: m.append(_one(m)),
    b"e": lambda m: m.append(m.group()),
    b"s": lambda m: m.set_items(_two(m)),
    b"u": lambda m: m.set_items(m.group()),
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"q": lambda m: m.remember(m.count(1)),
    b"r": lambda m: m.remember(m.count(4)),
    b"h": lambda m: m.recall(m.count(1)),
    b"j": lambda m: m.recall(m.count(4)),
}
