"""Use cases: plan, evaluate, capacity, explain, sweep, verify, calibrate, measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoplan.lazy import lazy as _lazy

if TYPE_CHECKING:
    from autoplan.planning.calibrating import (
        calibrate,
        calibrate_from_logs,
        calibrate_machine,
        calibrated_files,
        measured_file,
    )
    from autoplan.planning.explaining.applied_remedies import remedied
    from autoplan.planning.explaining.contrasts import explain_choice
    from autoplan.planning.explaining.layout_explanation import explain
    from autoplan.planning.infeasible.applied_edits import applied
    from autoplan.planning.infeasible.smallest_relaxations import suggested
    from autoplan.planning.listing import parameter_counts
    from autoplan.planning.measuring import measure
    from autoplan.planning.plan_and_evaluate import MOST_LAYERS, chosen, evaluate, plan
    from autoplan.planning.serving_capacity import capacity
    from autoplan.planning.sweeping.executors import dask_executor
    from autoplan.planning.sweeping.grid_planning import sweep
    from autoplan.planning.verifying import compared, verify

__all__ = [
    "MOST_LAYERS",
    "applied",
    "calibrate",
    "calibrate_from_logs",
    "calibrate_machine",
    "calibrated_files",
    "capacity",
    "chosen",
    "compared",
    "dask_executor",
    "evaluate",
    "explain",
    "explain_choice",
    "measure",
    "measured_file",
    "parameter_counts",
    "plan",
    "remedied",
    "suggested",
    "sweep",
    "verify",
]

_HOMES: Final = {
    "MOST_LAYERS": "autoplan.planning.plan_and_evaluate",
    "applied": "autoplan.planning.infeasible.applied_edits",
    "calibrate": "autoplan.planning.calibrating",
    "calibrate_from_logs": "autoplan.planning.calibrating",
    "calibrate_machine": "autoplan.planning.calibrating",
    "calibrated_files": "autoplan.planning.calibrating",
    "capacity": "autoplan.planning.serving_capacity",
    "chosen": "autoplan.planning.plan_and_evaluate",
    "compared": "autoplan.planning.verifying",
    "dask_executor": "autoplan.planning.sweeping.executors",
    "evaluate": "autoplan.planning.plan_and_evaluate",
    "explain": "autoplan.planning.explaining.layout_explanation",
    "explain_choice": "autoplan.planning.explaining.contrasts",
    "measure": "autoplan.planning.measuring",
    "measured_file": "autoplan.planning.calibrating",
    "parameter_counts": "autoplan.planning.listing",
    "plan": "autoplan.planning.plan_and_evaluate",
    "remedied": "autoplan.planning.explaining.applied_remedies",
    "suggested": "autoplan.planning.infeasible.smallest_relaxations",
    "sweep": "autoplan.planning.sweeping.grid_planning",
    "verify": "autoplan.planning.verifying",
}

__getattr__ = _lazy(__name__, _HOMES)
