"""Cases to bytes: autoplan's own bookkeeping of one stage beside what the oracle counted.

Nothing here computes bytes: the coefficients of a stage and the moments of its peak come from
``autoplan.costs``; what is added up is what the oracle adds up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import scope_of
from autoplan.costs.memory.layout_memory import StageCounts, memory_predictions
from autoplan.costs.memory.timeline import SavedActivations, timeline_of
from autoplan.costs.network.stage_volume import stage_bytes
from autoplan.costs.network.volume import OPERATIONS
from autoplan.errors import AutoplanError
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import FULL
from benchmarks.memory.cases import Case, refuse_inexpressible
from benchmarks.memory.jobs import job_of, layout_of
from benchmarks.reading import Unreadable, read_entries
from benchmarks.skips import EXPECTED, Skipped, skipped_by

__all__ = ["QUANTITIES", "Bytes", "Outcome", "measured_bytes", "outcome_of", "outcomes_of_file"]


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes on rank 0, in the oracle's own meaning; None is what a side does not tell."""

    peak_bytes: float | None = None
    parameters: float | None = None
    gradients: float | None = None
    optimizer: float | None = None
    activations: float | None = None
    saved_per_layer: float | None = None
    all_gather: float | None = None
    reduce_scatter: float | None = None
    all_reduce: float | None = None


QUANTITIES = tuple(field.name for field in fields(Bytes))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: what autoplan says and what was counted, or why autoplan says nothing."""

    id: str
    predicted: Bytes | None = None
    measured: Bytes = Bytes()
    skipped: Skipped | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The case as an entry of ``rows``."""
        said = asdict(self.predicted or Bytes())
        return {
            "id": self.id,
            **{name: value for name, value in said.items() if name not in OPERATIONS},
            "comm": {name: said[name] for name in OPERATIONS},
            "skipped": str(self.skipped) if self.skipped else None,
        }


def outcomes_of_file(path: Path) -> list[Outcome]:
    """Return the outcome of every case of ``path``, in order; raises as ``read_entries`` does."""
    return [outcome_of(entry, index) for index, entry in enumerate(read_entries(path, "cases"))]


def outcome_of(entry: object, index: int) -> Outcome:
    """Return the outcome of one case, whatever it holds; ``index`` names a case without a name."""
    told = entry.get("id") if isinstance(entry, dict) else None
    name = told if isinstance(told, str) else f"case {index}"
    if isinstance(entry, Unreadable):
        return Outcome(name, skipped=Skipped("malformed case", entry.reason))
    try:
        case = Case.model_validate(entry)
    except ValidationError as error:
        return Outcome(name, skipped=skipped_by("malformed case", error))
    try:
        refuse_inexpressible(case.config)
        predicted = _predicted(case)
    except Skipped as skipped:
        return Outcome(name, skipped=skipped)
    except (AutoplanError, *EXPECTED) as error:
        return Outcome(name, skipped=skipped_by("autoplan refuses the case", error))
    return Outcome(name, predicted, measured_bytes(case))


def measured_bytes(case: Case) -> Bytes:
    """Return what the oracle counted, by the names of the contract."""
    measured = case.measured
    resident = _section(measured, "resident_between_steps")
    after = _section(measured, "after_backward")
    return Bytes(
        peak_bytes=_number(measured.get("peak_bytes")),
        parameters=_number(resident.get("parameters")),
        gradients=_number(after.get("gradients")),
        optimizer=_number(resident.get("optimizer")),
        activations=_number(measured.get("saved_after_first_forward")),
        saved_per_layer=_number(measured.get("saved_per_layer")),
        **{name: _number(_moved(case, name)) for name in OPERATIONS},
    )


def _moved(case: Case, operation: str) -> float:
    """Return full-tensor bytes of an operation over a step, all phases and groups together."""
    told = [entry for entry in case.comm_per_step if entry.get("op") == operation]
    return float(sum(_number(entry.get("full_tensor_bytes")) or 0.0 for entry in told))


def _section(measured: dict[str, Any], key: str) -> dict[str, Any]:
    section = measured.get(key)
    return section if isinstance(section, dict) else {}


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if known and isinstance(value, int | float) else None


def _predicted(case: Case) -> Bytes:
    """Return autoplan's bytes of the case's stage."""
    job, layout, index = job_of(case.config), layout_of(case.config), case.config.stage
    scope = scope_of(job, Candidates.of([layout]))
    counts = StageCounts.of([layout])
    stage = memory_predictions(scope, counts)[0].stages[index]
    _, kept = timeline_of(scope)
    moved = stage_bytes(scope, counts.layers, counts.recomputed)
    result = Bytes(
        peak_bytes=stage.allocated,
        parameters=stage.parameters,
        # All of them, as they stand after backward: at the peak they may not exist yet.
        gradients=stage.events[-1].gradients,
        optimizer=stage.optimizer,
        activations=_saved_by_stage(kept, layout, index),
        saved_per_layer=_saved_by_layer(kept, layout, index),
        **{name: float(moved[name][0, index]) for name in OPERATIONS},
    )
    if not all(isfinite(value) for value in asdict(result).values()):
        raise Skipped("the prediction is not finite")
    return result


def _saved_by_stage(kept: SavedActivations, layout: Layout, index: int) -> float:
    """Return what one forward of one microbatch leaves alive: the stage's layers and its head."""
    counts = {mode: of_stages[index] for mode, of_stages in layout.recomputed}
    plain = layout.layers[index] - sum(counts.values())
    layers = sum((n * kept.recomputed[mode] for mode, n in counts.items()), plain * kept.none)
    # A received input is the pipeline's, not born in this stage's forward.
    entry = 0.0 if index else kept.entry
    return float((layers + entry + kept.inputs + kept.logits)[0, index])


def _saved_by_layer(kept: SavedActivations, layout: Layout, index: int) -> float:
    """Return what a layer keeps; where only some are recomputed, a layer that is not."""
    if layout.counts(FULL)[index] == layout.layers[index]:
        return float(kept.recomputed[FULL][0, index])
    in_part = [mode for mode, counts in layout.recomputed if mode != FULL and counts[index]]
    return float((kept.recomputed[in_part[0]] if in_part else kept.none)[0, index])
