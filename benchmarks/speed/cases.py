"""The frozen cases: job files of this folder, more and more devices or layers, and the speed wished for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CASES", "DEEPER", "OVER_PROGRAMS", "PRICED", "Case", "job_file"]

_FOLDER = Path(__file__).parent / "cases"

#: The 8-device job whose layouts are all priced in process.
PRICED = "llama3-8b-8x-a100"


@dataclass(frozen=True, slots=True)
class Case:
    """One job to plan, and how many plain imports of the solver, pandas included, it should take at most."""

    name: str
    model: str
    devices: int
    layers: int
    target: float | None = None


#: Models on as many devices as they are trained on. "All searched" includes recompute of any number of layers
#: and every kind of offload.
CASES = (
    Case("llama2-7b-2x-a100", "Llama 2 7B", 2, 32),
    Case("llama3-8b-8x-a100", "Llama 3 8B", 8, 32, 1.5),
    Case("llama3-70b-64x-h100", "Llama 3 70B", 64, 80),
    Case("gpt3-175b-128x-a100", "GPT-3 175B", 128, 96),
    Case("gpt3-175b-512x-a100", "GPT-3 175B", 512, 96),
    Case("gpt3-175b-1024x-a100", "GPT-3 175B", 1024, 96, 5.0),
    Case("llama3.1-405b-1024x-h100", "Llama 3.1 405B", 1024, 126),
    Case("llama3.1-405b-4096x-h100", "Llama 3.1 405B", 4096, 126),
    Case("llama3.1-405b-16384x-h100", "Llama 3.1 405B", 16384, 126, 10.0),
    Case("llama3-8b-8x-a100-wide", "Llama 3 8B, all searched", 8, 32, 4.0),
    Case("llama3-70b-64x-h100-wide", "Llama 3 70B, all searched", 64, 80, 15.0),
    Case("llama4-maverick-512x-h100", "Llama 4 Maverick", 512, 48, 15.0),
    Case("qwen3-235b-a22b-512x-h100", "Qwen3 235B-A22B", 512, 94, 15.0),
    Case("deepseek-v3-256x-h100", "DeepSeek-V3", 256, 61, 5.0),
    Case("deepseek-v3-2048x-h100", "DeepSeek-V3", 2048, 61, 15.0),
)

#: The front over all programs that are usual for a job: measured by name (``--case``), and no part of a
#: record, whose cases have one stack each.
OVER_PROGRAMS = (
    Case("programs-lora-2x-rtx4090", "Llama 3 8B, LoRA", 2, 32, 2.5),
    Case("programs-8x-h100", "Llama 3 8B", 8, 32, 2.5),
    Case("programs-1024x-a100", "GPT-3 175B", 1024, 96, 8.0),
)

#: One question of more and more layers of one shape, on as many devices.
DEEPER = tuple(Case(f"{n}-layers-64x-h100", "Llama 3 8B's shape", 64, n) for n in (16, 32, 64, 128, 256))


def job_file(case: Case, folder: Path) -> Path:
    """Return the job file of ``case``; one of ``DEEPER`` is written below ``folder``."""
    if case not in DEEPER:
        return _FOLDER / f"{case.name}.yaml"
    here = folder / case.name
    here.mkdir()
    for name in ("model.yaml", "job.yaml"):
        text = (_FOLDER / "layers" / name).read_text(encoding="utf-8")
        text = re.sub(r"^layers: \d+$", f"layers: {case.layers}", text, flags=re.MULTILINE)
        (here / name).write_text(text, encoding="utf-8")
    return here / "job.yaml"
