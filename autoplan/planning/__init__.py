"""The use cases: what the command line calls and a launcher embeds."""

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
