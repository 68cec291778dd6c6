"""Snapshots of PyTorch's caching allocator: the peak that its history shows, and what lived then.

The history is a ring: its beginning may be lost, its end is the snapshot. Levels are therefore counted back
from the end. Fields are those of ``torch.cuda.memory._snapshot`` (PyTorch 2.13). An allocation is known by
the frames of the program that asked for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from autoplan.calibration.measurement import MemoryMeasurement
from autoplan.errors import Problem, SpecError

__all__ = ["measured_snapshot"]

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
            raise _problem(f"segments[{number}]", "is no segment", name)
        by_device.setdefault(_count(segment, "device", f"segments[{number}]", name, 0), []).append(segment)
    if not by_device:
        raise _problem("segments", "has no segment: nothing was allocated when it was taken", name)
    most = max(by_device, key=lambda d: sum(_count(x, "total_size", "segments", name) for x in by_device[d]))
    history = histories[most] if most < len(histories) else []
    entries = list(_entries(_list(history, f"device_traces[{most}]", name), name))
    return _measurement(by_device[most], entries, name)


def _measurement(
    segments: Sequence[Mapping[str, Any]], entries: Sequence[_AllocatorAction], name: str
) -> MemoryMeasurement:
    living = {address: (size, category) for address, size, category in _living_blocks(segments, name)}
    reserved = sum(_count(x, "total_size", "segments", name) for x in segments)
    requested = sum(_count(x, "requested_size", "segments", name, 0) for x in segments)
    allocated = sum(size for size, _ in living.values())
    peak, at = _peak(entries, allocated)
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


def _peak(entries: Sequence[_AllocatorAction], now: int) -> tuple[int, int]:
    """Return the highest allocation [byte] and after how many entries it was."""
    return _highest(entries, now, {"alloc"}, {"free_requested"})


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
                raise _problem(place, "is no list of blocks", name)
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
            raise _problem(place, "has no action", name)
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
        raise _problem(place, "is no list", name)
    return list(value)


def _count(value: Mapping[str, Any], key: str, place: str, name: str, missing: int | None = None) -> int:
    """Return a whole number from 0 of a dictionary; raises SpecError where it has none."""
    count = value.get(key, missing)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 2**64:
        raise _problem(f"{place}.{key}", f"is {repr(count)[:40]}, not a number of bytes", name)
    return count


def _problem(place: str, message: str, name: str) -> SpecError:
    return SpecError([Problem(f"no snapshot of the allocator: it {message}", f"$.{place}", name)])
