"""The frozen cases: job files of this folder, from 2 to 1,024 devices, and the speed wished for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["CASES", "PRICED", "Case"]

_FOLDER = Path(__file__).parent / "cases"

#: The 8-device job whose layouts are all priced in process.
PRICED = "llama3-8b-8x-a100"


@dataclass(frozen=True, slots=True)
class Case:
    """One job to plan, and how many imports of the solver it should take at most."""

    name: str
    devices: int
    target: float | None

    @property
    def path(self) -> Path:
        """The job file."""
        return _FOLDER / f"{self.name}.yaml"


CASES = (
    Case("llama2-7b-2x-a100", 2, None),
    Case("llama3-8b-8x-a100", 8, 2.0),
    Case("llama3-70b-64x-h100", 64, None),
    Case("gpt3-175b-128x-a100", 128, None),
    Case("gpt3-175b-512x-a100", 512, None),
    Case("gpt3-175b-1024x-a100", 1024, 10.0),
    Case("llama3.1-405b-1024x-h100", 1024, None),
    Case("llama3.1-405b-4096x-h100", 4096, None),
    Case("llama3.1-405b-16384x-h100", 16384, 20.0),
)
