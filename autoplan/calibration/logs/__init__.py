"""Step times out of the logs of training frameworks, as they are."""

from autoplan.calibration.logs.step_log import StepLog, read_step_log

__all__ = ["StepLog", "read_step_log"]
