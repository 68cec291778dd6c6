"""Records of PyTorch's allocator: snapshots and memory timelines, read without being executed.

Formats are those of ``torch.cuda.memory._dump_snapshot`` (a pickle), the same value as JSON, and the memory
timelines of torch.profiler (``export_memory_timeline`` to .json or .raw.json.gz), of PyTorch 2.13, whose
categories are those of torch/profiler/_memory_profiler.py, in the order of ``_CATEGORY_TO_COLORS``.

The history of a snapshot is a ring: its beginning may be lost, its end is the snapshot. Levels are therefore
counted back from the end. An allocation is identified by the frames of the program that made it.

A pickle is a program: it may import any function and call it, and its memo may be made to fill memory. A
snapshot of PyTorch's allocator (``torch.cuda.memory._dump_snapshot``) holds dictionaries, lists, tuples,
texts and numbers only. So every instruction is read before the first is followed, by the table of Python's
pickletools, and any that these values do not need is refused; Python's reader then gets no function to call.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

from autoplan.calibration.measurement import MemoryMeasurement
from autoplan.calibration.traces.event_stream import first_bytes, pieces
from autoplan.catalog import open_file
from autoplan.errors import CatalogError, Problem, SpecError

#: Python's objects for a snapshot take about ten times as much as its file.
_LARGEST_PICKLE: Final = 2 * 2**30
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
            content = file.read(_LARGEST_PICKLE + 1)
        if len(content) > _LARGEST_PICKLE:
            raise CatalogError(f"{name} is larger than {_LARGEST_PICKLE // 2**30} GiB")
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


_PICKLE: Final = b"\x80"
_LARGEST: Final = 2**30


def read_memory(path: Path) -> MemoryMeasurement:
    """Return the memory at the peak that a snapshot or a memory timeline tells.

    Raises SpecError for a file of another kind, CatalogError for one that cannot be read.
    """
    name = str(path)
    value = read_plain_pickle(path) if first_bytes(path, 1) == _PICKLE else _json(path)
    if isinstance(value, dict) and "segments" in value:
        return measured_snapshot(value, name)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(x, list) for x in value):
        return measured_timeline(value[0], value[1], name)
    if isinstance(value, list) and value and isinstance(value[0], list):
        return measured_events(value, name)
    message = (
        "no memory record: known are torch.cuda.memory._dump_snapshot (pickle or JSON, with segments) and"
        " torch.profiler's export_memory_timeline (.json or .raw.json.gz)"
    )
    raise SpecError([Problem(message, "$", name)])


def _json(path: Path) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return the value of a JSON file, plain or gzip."""
    data = bytearray()
    for piece in pieces(path):
        data += piece
        if len(data) > _LARGEST:
            raise CatalogError(f"{path} is larger than {_LARGEST // 2**30} GiB of JSON: dump it as a pickle")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"no JSON and no pickle: {str(error)[:80]}"
        raise SpecError([Problem(message, "$", str(path), getattr(error, "lineno", None))]) from error


#: What each category of torch.profiler is called here, in its order.
_CATEGORIES: Final = (
    "parameters",
    "optimizer",
    "activations",  # INPUT
    "transient",  # TEMPORARY
    "activations",
    "gradients",
    "activations",  # AUTOGRAD_DETAIL
    "unknown",
)


def measured_timeline(times: Sequence[Any], sizes: Sequence[Any], name: str) -> MemoryMeasurement:
    """Return the peak of a timeline: at each time a row of bytes, a zero and then each category."""
    if len(times) != len(sizes) or not sizes:
        raise _problem(f"{len(times)} times and {len(sizes)} rows of sizes", name)
    best: list[float] = []
    for number, row in enumerate(sizes):
        if not isinstance(row, list) or len(row) != len(_CATEGORIES) + 1 or not all(map(_is_count, row)):
            raise _problem(f"row {number} is not {len(_CATEGORIES) + 1} numbers", name)
        if not best or sum(row) > sum(best):
            best = row[1:]
    return _measurement(best, name)


def measured_events(events: Sequence[Any], name: str) -> MemoryMeasurement:
    """Return the peak of a timeline of events: time, action, bytes and category of each."""
    now, total, most = [0.0] * len(_CATEGORIES), 0.0, -1.0
    best = list(now)
    for number, event in enumerate(events):
        if not isinstance(event, list) or len(event) != 4 or not all(map(_is_count, event)):
            raise _problem(f"event {number} is not four numbers", name)
        size, category = event[2], event[3]
        if not isinstance(category, int) or not 0 <= category < len(_CATEGORIES):
            raise _problem(f"event {number} has the category {category!r}", name)
        now[category] += size
        total += size
        if total > most:
            best, most = list(now), total
    return _measurement(best, name)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2.0**64


def _problem(message: str, name: str) -> SpecError:
    return SpecError([Problem(f"no memory timeline of torch.profiler: {message}", "$", name)])


def _measurement(best: Sequence[float], name: str) -> MemoryMeasurement:
    sums = dict.fromkeys(_CATEGORIES, 0.0)
    for category, size in zip(_CATEGORIES, best, strict=True):
        sums[category] += max(0.0, float(size))
    return MemoryMeasurement(
        source=name,
        kind="timeline",
        allocated=sum(sums.values()),
        reserved=0.0,
        requested=0.0,
        event="",
        categories=tuple(sums.items()),
        retries=0,
        out_of_memory=0,
    )


_MOST_ENTRIES: Final = 50_000_000
_GROWS: Final = {"segment_alloc", "segment_map"}
_SHRINKS: Final = {"segment_free", "segment_unmap"}
_EVENTS: Final = {"optimizer": "optimizer step", "backward": "backward", "activations": "forward"}


@dataclass(frozen=True, slots=True)
class _AllocatorAction:
    """One action of the allocator."""

    action: str
    address: int
    size: int
    category: str


def measured_snapshot(value: Mapping[str, Any], name: str) -> MemoryMeasurement:
    """Return the peak of the device of a snapshot that holds most; raises SpecError for a malformed one."""
    segments = _list(value.get("segments"), "segments", name)
    histories = _list(value.get("device_traces", []), "device_traces", name)
    by_device: dict[int, list[Mapping[str, Any]]] = {}
    for number, segment in enumerate(segments):
        if not isinstance(segment, dict):
            raise _snapshot_problem(f"segments[{number}]", "is no segment", name)
        by_device.setdefault(_count(segment, "device", f"segments[{number}]", name, 0), []).append(segment)
    if not by_device:
        raise _snapshot_problem("segments", "has no segment: nothing was allocated when it was taken", name)
    most = max(by_device, key=lambda d: sum(_count(x, "total_size", "segments", name) for x in by_device[d]))
    history = histories[most] if most < len(histories) else []
    entries = list(_entries(_list(history, f"device_traces[{most}]", name), name))
    return _snapshot_measurement(by_device[most], entries, name)


def _snapshot_measurement(
    segments: Sequence[Mapping[str, Any]], entries: Sequence[_AllocatorAction], name: str
) -> MemoryMeasurement:
    living = {address: (size, category) for address, size, category in _living_blocks(segments, name)}
    reserved = sum(_count(x, "total_size", "segments", name) for x in segments)
    requested = sum(_count(x, "requested_size", "segments", name, 0) for x in segments)
    allocated = sum(size for size, _ in living.values())
    peak, at = _highest(entries, allocated, {"alloc"}, {"free_requested"})
    sums: dict[str, float] = {}
    for size, category in _living_at(entries, at, living):
        sums[category] = sums.get(category, 0.0) + size
    return MemoryMeasurement(
        source=name,
        kind="snapshot",
        allocated=float(peak),
        reserved=float(_highest(entries, reserved, _GROWS, _SHRINKS)[0]),
        requested=float(requested),
        event=_EVENTS.get(entries[at - 1].category, "") if at else "",
        categories=tuple(sorted(sums.items(), key=lambda x: -x[1])),
        retries=sum(x.action in _SHRINKS for x in entries),
        out_of_memory=sum(x.action == "oom" for x in entries),
    )


def _highest(
    entries: Sequence[_AllocatorAction], now: int, grows: set[str], shrinks: set[str]
) -> tuple[int, int]:
    """Return the highest level before ``now`` [byte], and after how many entries it was."""
    best, at = now, len(entries)
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        now += entry.size * ((entry.action in shrinks) - (entry.action in grows))
        if now > best:
            best, at = now, index
    return best, at


def _living_at(
    entries: Sequence[_AllocatorAction], at: int, living: Mapping[int, tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    """Yield size and category of each block that lives after ``at`` entries."""
    requested: dict[int, int] = {}
    for index, entry in enumerate(entries):
        if entry.action == "alloc":
            requested[entry.address] = index
        elif entry.action == "free_requested":
            since = requested.pop(entry.address, None)
            # Freed later, and asked for before: in this history, or before it began.
            if index >= at and (since is None or since < at):
                yield entry.size, entries[since].category if since is not None else "unknown"
    for address, (size, category) in living.items():
        since = requested.get(address)
        if since is None:
            yield size, category
        elif since < at:
            yield size, entries[since].category


def _living_blocks(segments: Sequence[Mapping[str, Any]], name: str) -> Iterator[tuple[int, int, str]]:
    """Yield address, size and category of the blocks that hold a tensor."""
    categories: dict[int, str] = {}
    for number, segment in enumerate(segments):
        address = _count(segment, "address", f"segments[{number}]", name)
        for block in _list(segment.get("blocks", []), f"segments[{number}].blocks", name):
            place = f"segments[{number}].blocks"
            if not isinstance(block, dict):
                raise _snapshot_problem(place, "is no list of blocks", name)
            size = _count(block, "size", place, name)
            if block.get("state") == "active_allocated":
                # Older snapshots leave addresses of blocks out: they follow each other.
                yield (
                    _count(block, "address", place, name, address),
                    size,
                    _category(block.get("frames"), categories),
                )
            address += size


def _entries(history: Sequence[Any], name: str) -> Iterator[_AllocatorAction]:
    categories: dict[int, str] = {}
    for number, entry in enumerate(history[:_MOST_ENTRIES]):
        place = f"device_traces entry {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("action"), str):
            raise _snapshot_problem(place, "has no action", name)
        action = entry["action"]
        size = _count(entry, "size", place, name, 0)
        address = _count(entry, "addr", place, name, 0)
        yield _AllocatorAction(
            action, address, size, _category(entry.get("frames"), categories) if action == "alloc" else ""
        )


def _category(frames: object, categories: dict[int, str]) -> str:
    """Return what an allocation is for, by the program that asked for it.

    ``categories`` has the answers for lists of frames by identity: allocations of one place share theirs.
    """
    category = categories.get(id(frames))
    if category is None:
        category = categories[id(frames)] = _category_of_frames(frames)
    return category


def _category_of_frames(frames: object) -> str:
    names = set()
    for frame in frames[:200] if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            names.add(_frame_category(str(frame.get("filename", "")), str(frame.get("name", ""))))
    order = ("optimizer", "communication", "backward", "parameters", "activations")
    return next((category for category in order if category in names), "unknown")


@lru_cache(maxsize=65_536)
def _frame_category(file: str, function: str) -> str:
    """Return what a frame of a stack says of an allocation."""
    file = file.replace("\\", "/")
    if "torch/optim/" in file or "/optimizer" in file or function in {"_init_group", "optimizer_step"}:
        return "optimizer"
    if "torch/distributed/" in file and "fsdp" not in file and "tensor" not in file:
        return "communication"
    if function in {"_engine_run_backward", "backward"}:
        return "backward"
    in_module = "torch/nn/" in file or "torch/distributed/fsdp" in file
    if in_module and function in {"__init__", "reset_parameters", "_apply", "to", "to_empty", "cuda"}:
        return "parameters"
    return "activations" if function in {"forward", "_call_impl", "loss"} else "unknown"


def _list(value: object, place: str, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _snapshot_problem(place, "is no list", name)
    return list(value)


def _count(value: Mapping[str, Any], key: str, place: str, name: str, missing: int | None = None) -> int:
    """Return a whole number from 0 of a dictionary; raises SpecError where it has none."""
    count = value.get(key, missing)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 2**64:
        raise _snapshot_problem(f"{place}.{key}", f"is {repr(count)[:40]}, not a number of bytes", name)
    return count


def _snapshot_problem(place: str, message: str, name: str) -> SpecError:
    return SpecError([Problem(f"no snapshot of the allocator: it {message}", f"$.{place}", name)])
