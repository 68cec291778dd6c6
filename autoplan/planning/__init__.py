"""The use cases: what the command line calls and a launcher embeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoplan.lazy import lazy as _lazy

if TYPE_CHECKING:
    from autoplan.planning.answers import MOST_LAYERS, chosen, evaluate, plan
    from autoplan.planning.calibrating import calibrate, calibrated_files, measured_file
    from autoplan.planning.choosing import explain_choice
    from autoplan.planning.crews import dask_executor
    from autoplan.planning.explaining import explain
    from autoplan.planning.measuring import measure
    from autoplan.planning.suggesting import suggested
    from autoplan.planning.sweeping import sweep
    from autoplan.planning.verifying import verify

__all__ = [
    "MOST_LAYERS",
    "calibrate",
    "calibrated_files",
    "chosen",
    "dask_executor",
    "evaluate",
    "explain",
    "explain_choice",
    "measure",
    "measured_file",
    "plan",
    "suggested",
    "sweep",
    "verify",
]

_HOMES: Final = {
    "MOST_LAYERS": "autoplan.planning.answers",
    "calibrate": "autoplan.planning.calibrating",
    "calibrated_files": "autoplan.planning.calibrating",
    "chosen": "autoplan.planning.answers",
    "dask_executor": "autoplan.planning.crews",
    "evaluate": "autoplan.planning.answers",
    "explain": "autoplan.planning.explaining",
    "explain_choice": "autoplan.planning.choosing",
    "measure": "autoplan.planning.measuring",
    "measured_file": "autoplan.planning.calibrating",
    "plan": "autoplan.planning.answers",
    "suggested": "autoplan.planning.suggesting",
    "sweep": "autoplan.planning.sweeping",
    "verify": "autoplan.planning.verifying",
}

__getattr__ = _lazy(__name__, _HOMES)
