"""Pickles of plain values, read without executing anything.

A pickle is a program: it may import any function and call it, and its memo may be made to fill memory. A
snapshot of PyTorch's allocator (``torch.cuda.memory._dump_snapshot``) holds dictionaries, lists, tuples,
texts and numbers only. So every instruction is read before the first is followed, by the table of Python's
pickletools, and any that these values do not need is refused; Python's reader then gets no function to call.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from autoplan.catalog import open_file
from autoplan.errors import CatalogError, Problem, SpecError

#: Python's objects for a snapshot take about ten times as much as its file.
_LARGEST: Final = 2 * 2**30
_LONGEST_TEXT: Final = 2**24
_LONGEST_INTEGER_BITS: Final = 128
_MOST_VALUES: Final = 200_000_000
#: How many times the values of a file there may be where each reference is followed, and how many more.
#: PyTorch writes the frames of a place in the code once for all events there: some ten times.
_SHARED_TIMES: Final = 100
_FEW_VALUES: Final = 1_000_000

_OPCODES: Final = {x.code.encode("latin-1"): x for x in pickletools.opcodes}
_TEXTS: Final = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_PUTS: Final = frozenset({"MEMOIZE", "BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"BINGET", "LONG_BINGET"})
_ADMITTED: Final = (
    _TEXTS
    | _PUTS
    | _GETS
    | {"PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"}
    | {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"}
    | {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    | {"APPEND", "APPENDS", "SETITEM", "SETITEMS"}
)


def read_plain_pickle(path: Path) -> Any:  # noqa: ANN401 - whatever plain value it holds
    """Return the value of a pickle of dictionaries, lists, tuples, texts, numbers, booleans and None.

    Raises SpecError for any instruction that makes something else, CatalogError for a file that is cut off.
    """
    name = str(path)
    try:
        with open_file(path) as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise CatalogError(f"{name} is larger than {_LARGEST // 2**30} GiB")
        checked = _Instructions(_Content(content, name), name)
        checked.check()
        value = _PlainUnpickler(io.BytesIO(content)).load()
    except (pickle.PickleError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SpecError([Problem(f"no whole pickle of a snapshot: {error!r:.80}", "$", name)]) from error
    except OSError as error:
        raise CatalogError(f"cannot read {path}: {error.strerror or error}") from error
    # A list may hold another one many times, and so on: whoever goes through it never comes to an end.
    if checked.shared and not _expands_to(value, checked.count * _SHARED_TIMES + _FEW_VALUES):
        message = "its values refer to each other so often that they have no end: dump the snapshot again"
        raise SpecError([Problem(message, "$", name)])
    return value


class _PlainUnpickler(pickle.Unpickler):
    """Python's reader without any function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every function and class."""
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


class _Content(io.BytesIO):
    """The bytes of a pickle; raises CatalogError where it ends within an instruction."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, all of those that are asked for."""
        if size is not None and size > _LONGEST_TEXT:
            raise ValueError(f"a text of {size:,} bytes")
        data = super().read(size)
        if size is not None and len(data) < size:
            raise CatalogError(f"{self.name} ends within its pickle, at byte {self.tell():,}: it is cut off")
        return data


@dataclass(slots=True)
class _Instructions:
    """The instructions of a pickle, and what they make."""

    content: _Content
    name: str
    #: Instructions so far, and whether lists, dictionaries or tuples are referred to once more.
    count: int = 0
    shared: bool = False
    #: Whether the value that is kept under each number of the memo is a text.
    memo: dict[int, bool] = field(default_factory=dict)

    def check(self) -> None:
        """Go through all instructions; raises SpecError at the first that no plain value needs."""
        before = ""
        for self.count in range(_MOST_VALUES):
            code = self.content.read(1)
            opcode = _OPCODES.get(code)
            if opcode is None or opcode.name not in _ADMITTED:
                raise self._refused(code, opcode.name if opcode else f"byte 0x{code.hex()}")
            argument: Any = opcode.arg.reader(self.content) if opcode.arg else None
            if opcode.name == "STOP":
                return
            if isinstance(argument, int) and argument.bit_length() > _LONGEST_INTEGER_BITS:
                raise ValueError(f"an integer of {argument.bit_length():,} bits")
            if opcode.name in _PUTS:
                self._keep(len(self.memo) if argument is None else argument, text=before in _TEXTS)
            elif opcode.name in _GETS:
                self.shared = self.shared or not self.memo.get(argument, False)
            before = opcode.name
        raise SpecError([Problem(f"more than {_MOST_VALUES:,} values", "$", self.name)])

    def _keep(self, number: int, *, text: bool) -> None:
        """Note what is kept under ``number``; a number beyond those of all values would take memory."""
        if number > self.count:
            raise ValueError(f"a value is kept under {number:,}")
        self.memo[number] = text

    def _refused(self, code: bytes, what: str) -> SpecError:
        place = self.content.tell() - len(code)
        message = (
            f"instruction {what} at byte {place:,}: a memory snapshot holds dictionaries,"
            " lists, texts and numbers only, and nothing else of a pickle is read or executed"
        )
        return SpecError([Problem(message, "$", self.name)])


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
