"""Process group, operation and bytes of a collective, as PyTorch writes them into the arguments of a kernel.

Names of the arguments are those of PyTorch's ``record_param_comms`` (torch/csrc/distributed/c10d,
ParamCommsUtils) and of Kineto's output_json.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from autoplan.calibration.traces.kernel_class import collective_of
from autoplan.calibration.traces.timeline_record import ProcessGroup

__all__ = ["collective_facts", "completed", "configured_groups"]

#: Bytes of an element, by the name of its type.
_ELEMENT_BYTES: Final = {
    "double": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
}
_MOST_RANKS: Final = 1 << 16
_LONGEST_LIST: Final = 1 << 20
_ELLIPSIS: Final = "..."


def collective_facts(name: str, args: Mapping[str, Any]) -> tuple[ProcessGroup, str, float]:
    """Return the group, the operation and the bytes of the full tensor of a kernel of communication.

    The full tensor is what is gathered, what is reduced or what a rank sends, as in ``Communication``; 0
    where the trace does not say.
    """
    said = _text(args.get("Collective name"))
    operation = collective_of(said) if said else "unknown"
    if operation == "unknown":
        operation = collective_of(name)
    return _group(args), operation, _message_bytes(operation, args)


def completed(group: ProcessGroup, configured: Mapping[str, ProcessGroup]) -> ProcessGroup:
    """Return a group with the ranks that ``configured`` has of it, where its kernels tell fewer."""
    known = configured.get(group.name)
    if known is None or len(group.ranks) >= len(known.ranks):
        return group
    return ProcessGroup(group.name, group.description or known.description, known.size, known.ranks)


def configured_groups(info: object) -> dict[str, ProcessGroup]:
    """Return the groups that ``distributedInfo`` lists, by name; what is malformed is left out."""
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups: dict[str, ProcessGroup] = {}
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("pg_name"), str):
            ranks = entry.get("ranks")
            size = _count(entry.get("pg_size"))
            name, description = entry["pg_name"], _text(entry.get("pg_desc"))
            groups[name] = ProcessGroup(name, description, size, _ranks(ranks))
    return groups


def _group(args: Mapping[str, Any]) -> ProcessGroup:
    return ProcessGroup(
        name=_text(args.get("Process Group Name")),
        description=_text(args.get("Process Group Description")),
        size=_count(args.get("Group size")),
        ranks=_ranks(args.get("Process Group Ranks")),
    )


def _message_bytes(operation: str, args: Mapping[str, Any]) -> float:
    elements = [_count(args.get(key)) or 0 for key in ("In msg nelems", "Out msg nelems")]
    element = _text(args.get("dtype")).lower()
    # Types of eight bits have long names: Float8_e4m3fn.
    size = 1 if element.startswith("float8") else _ELEMENT_BYTES.get(element, 0)
    return float(elements[operation == "all_gather"] * size)


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _ranks(value: object) -> tuple[int, ...]:
    """Return the ranks of a list, or of its text, which PyTorch cuts after thirty: ``[0, 8, ..., 248]``."""
    if isinstance(value, str) and len(value) < _LONGEST_LIST:
        value = [int(x) for x in re.findall(r"\d{1,7}", value.partition(_ELLIPSIS)[0])]
    if not isinstance(value, list):
        return ()
    return tuple(x for x in value[:_MOST_RANKS] if isinstance(x, int) and not isinstance(x, bool))
