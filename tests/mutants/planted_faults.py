"""Faults to plant, one at a time, and what they do to a file's text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["FAULTS", "TESTS", "Fault", "planted"]

#: Quick tests that must notice each fault, those that count by hand first.
TESTS = (
    "tests/agreement/hand_counts",
    "tests/agreement/test_worked_examples.py",
    "tests/unit/costs/serving/queueing/test_event_simulation.py",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: where it is, the text that it replaces, and what the cost model then believes."""

    file: str
    was: str
    becomes: str
    means: str


def planted(fault: Fault, text: str) -> str:
    """Return the text of the fault's file with the fault; raises ValueError unless it fits in one place."""
    places = text.count(fault.was)
    if places != 1:
        raise ValueError(f"{fault.file}: {fault.was!r} stands {places} times in it, not once: {fault.means}")
    return text.replace(fault.was, fault.becomes)


FAULTS = tuple(
    Fault(**entry)
    for entry in yaml.safe_load((Path(__file__).parent / "planted_faults.yaml").read_text(encoding="utf-8"))
)
