"""Use cases: plan, evaluate, compare, guide, capacity, explain, sweep, verify, emit, read, calibrate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoplan.lazy import lazy as _lazy

if TYPE_CHECKING:
    from autoplan.answers.calibrate.ask import (
        calibrate,
        calibrate_from_logs,
        calibrate_machine,
        calibrated_files,
        measure,
        measured_file,
        measured_hardware,
    )
    from autoplan.answers.calibrate.serving_calibrating import calibrate_serving, calibrated_engine_file
    from autoplan.answers.capacity.ask import capacity
    from autoplan.answers.compare.ask import compare, compare_engines
    from autoplan.answers.configure.ask import (
        emit,
        is_saved_plan,
        read,
        read_text,
        read_values,
        saved_number,
        saved_plan,
    )
    from autoplan.answers.configure.comparing_files import (
        compare_file,
        evaluate_file,
        file_notes,
        job_beside,
    )
    from autoplan.answers.diagnose.ask import diagnose, predicted_step, run_record
    from autoplan.answers.explain.ask import explain, explain_choice
    from autoplan.answers.explain.explained_serving import explain_serving, explain_serving_layout
    from autoplan.answers.explain.remedies import remedied
    from autoplan.answers.gemm.ask import gemm
    from autoplan.answers.guide.ask import guide, guided_job
    from autoplan.answers.sweep.ask import sweep
    from autoplan.answers.sweep.executors import dask_executor
    from autoplan.answers.verify.ask import compared, verify
    from autoplan.planning.communicating import communication, parameter_counts, placement, products
    from autoplan.planning.infeasible.edited_jobs import applied
    from autoplan.planning.infeasible.smallest_relaxations import suggested
    from autoplan.planning.plan_and_evaluate import MOST_LAYERS, chosen, evaluate, plan
    from autoplan.planning.remaining_devices import remaining
    from autoplan.planning.serving_plans import applied_change

__all__ = [
    "MOST_LAYERS",
    "applied",
    "applied_change",
    "calibrate",
    "calibrate_from_logs",
    "calibrate_machine",
    "calibrate_serving",
    "calibrated_engine_file",
    "calibrated_files",
    "capacity",
    "chosen",
    "communication",
    "compare",
    "compare_engines",
    "compare_file",
    "compared",
    "dask_executor",
    "diagnose",
    "emit",
    "evaluate",
    "evaluate_file",
    "explain",
    "explain_choice",
    "explain_serving",
    "explain_serving_layout",
    "file_notes",
    "gemm",
    "guide",
    "guided_job",
    "is_saved_plan",
    "job_beside",
    "measure",
    "measured_file",
    "measured_hardware",
    "parameter_counts",
    "placement",
    "plan",
    "predicted_step",
    "products",
    "read",
    "read_text",
    "read_values",
    "remaining",
    "remedied",
    "run_record",
    "saved_number",
    "saved_plan",
    "suggested",
    "sweep",
    "verify",
]

_HOMES: Final = {
    "autoplan.answers.calibrate.ask": (
        "calibrate calibrate_from_logs calibrate_machine calibrated_files measure measured_file "
        "measured_hardware"
    ),
    "autoplan.answers.calibrate.serving_calibrating": "calibrate_serving calibrated_engine_file",
    "autoplan.answers.capacity.ask": "capacity",
    "autoplan.answers.compare.ask": "compare compare_engines",
    "autoplan.answers.configure.ask": "emit is_saved_plan read read_text read_values saved_number saved_plan",
    "autoplan.answers.configure.comparing_files": "compare_file evaluate_file file_notes job_beside",
    "autoplan.answers.diagnose.ask": "diagnose predicted_step run_record",
    "autoplan.answers.explain.ask": "explain explain_choice",
    "autoplan.answers.explain.explained_serving": "explain_serving explain_serving_layout",
    "autoplan.answers.explain.remedies": "remedied",
    "autoplan.answers.gemm.ask": "gemm",
    "autoplan.answers.guide.ask": "guide guided_job",
    "autoplan.answers.sweep.ask": "sweep",
    "autoplan.answers.sweep.executors": "dask_executor",
    "autoplan.answers.verify.ask": "compared verify",
    "autoplan.planning.communicating": "communication parameter_counts placement products",
    "autoplan.planning.infeasible.edited_jobs": "applied",
    "autoplan.planning.infeasible.smallest_relaxations": "suggested",
    "autoplan.planning.plan_and_evaluate": "MOST_LAYERS chosen evaluate plan",
    "autoplan.planning.remaining_devices": "remaining",
    "autoplan.planning.serving_plans": "applied_change",
}

__getattr__ = _lazy(__name__, _HOMES)
