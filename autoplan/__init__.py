"""autoplan finds the best parallel layout for a model on given GPUs, and proves it.

>>> import autoplan
>>> job = autoplan.load_job("llama3-8b-8x-a100")
>>> plan = autoplan.evaluate(job, "tp=2,dp=4,mbs=1,recompute=full")
>>> plan.predicted.fits
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoplan.lazy import lazy as _lazy
from autoplan.version import __version__

if TYPE_CHECKING:
    from autoplan.answers.capacity.ask import capacity
    from autoplan.answers.compare.ask import compare
    from autoplan.answers.configure.ask import emit, read, read_values
    from autoplan.answers.explain.ask import explain
    from autoplan.answers.guide.ask import guide, guided_job
    from autoplan.answers.sweep.ask import sweep
    from autoplan.answers.verify.ask import verify
    from autoplan.catalog import load_grid, load_serving_job
    from autoplan.costs.core.prediction import Communication
    from autoplan.errors import (
        AutoplanError,
        CatalogError,
        InfeasibleError,
        LayoutError,
        SpecError,
        UnsupportedError,
    )
    from autoplan.kinds import load_job
    from autoplan.planning.communicating import communication
    from autoplan.planning.plan_and_evaluate import evaluate, plan
    from autoplan.planning.remaining_devices import remaining
    from autoplan.results.explanation import Explanation, Remedy
    from autoplan.results.front import Front
    from autoplan.results.plan import Plan
    from autoplan.results.serving.serving_front import ServingFront, ServingPlan
    from autoplan.results.sweep import Sweep
    from autoplan.results.verdict import Verdict
    from autoplan.schema.job import Job
    from autoplan.schema.layout import Layout
    from autoplan.schema.serving.engine_layout import EngineLayout
    from autoplan.schema.serving.serving_spec import ServingJob

__all__ = [
    "AutoplanError",
    "CatalogError",
    "Communication",
    "EngineLayout",
    "Explanation",
    "Front",
    "InfeasibleError",
    "Job",
    "Layout",
    "LayoutError",
    "Plan",
    "Remedy",
    "ServingFront",
    "ServingJob",
    "ServingPlan",
    "SpecError",
    "Sweep",
    "UnsupportedError",
    "Verdict",
    "__version__",
    "capacity",
    "communication",
    "compare",
    "emit",
    "evaluate",
    "explain",
    "guide",
    "guided_job",
    "load_grid",
    "load_job",
    "load_serving_job",
    "plan",
    "read",
    "read_values",
    "remaining",
    "sweep",
    "verify",
]

_HOMES = {
    "autoplan.answers.capacity.ask": "capacity",
    "autoplan.answers.compare.ask": "compare",
    "autoplan.answers.configure.ask": "emit read read_values",
    "autoplan.answers.explain.ask": "explain",
    "autoplan.answers.guide.ask": "guide guided_job",
    "autoplan.answers.sweep.ask": "sweep",
    "autoplan.answers.verify.ask": "verify",
    "autoplan.catalog": "load_grid load_serving_job",
    "autoplan.costs.core.prediction": "Communication",
    "autoplan.errors": "AutoplanError CatalogError InfeasibleError LayoutError SpecError UnsupportedError",
    "autoplan.kinds": "load_job",
    "autoplan.planning.communicating": "communication",
    "autoplan.planning.plan_and_evaluate": "evaluate plan",
    "autoplan.planning.remaining_devices": "remaining",
    "autoplan.results.explanation": "Explanation Remedy",
    "autoplan.results.front": "Front",
    "autoplan.results.plan": "Plan",
    "autoplan.results.serving.serving_front": "ServingFront ServingPlan",
    "autoplan.results.sweep": "Sweep",
    "autoplan.results.verdict": "Verdict",
    "autoplan.schema.job": "Job",
    "autoplan.schema.layout": "Layout",
    "autoplan.schema.serving.engine_layout": "EngineLayout",
    "autoplan.schema.serving.serving_spec": "ServingJob",
}

__getattr__ = _lazy(__name__, _HOMES)
