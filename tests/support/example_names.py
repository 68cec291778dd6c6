"""What examples in docstrings of internal modules may use without importing it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

from autoplan.catalog import (
    engine_kernels_for,
    kernels_for,
    load_entry,
    load_job,
    load_serving_job,
    stack,
)
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.layer_types import Prefixes
from autoplan.costs.core.scope import scope_of
from autoplan.costs.device.machine import Links, ideal, machine_of
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration, kernel_prices
from autoplan.costs.serving.iteration.kernel_prices import KernelPrices
from autoplan.costs.serving.iteration.measured_kernels import MeasuredKernels
from autoplan.costs.serving.queueing.length_moments import length_moments
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import RoutingSpec
from autoplan.schema.layout import parse_layout
from autoplan.schema.linear_attention import LinearAttention
from autoplan.schema.serving.engine_layout import EngineLayout, parse_serving_layout
from autoplan.schema.serving.serving_choices import SpeculationSpec
from tests.support.affine_iteration import AffineIteration

__all__ = ["example_names"]

_JOB, _DEVICE = "llama3.1-8b-1x-h100", "h100-sxm5-80gb"


@cache
def h100_prices() -> KernelPrices:
    """Return the prices of the kernels of vLLM on one H100."""
    return kernel_prices(load_serving_job(_JOB), kernels_for(_DEVICE), engine_kernels_for(_DEVICE))


def h100_scope() -> EngineScope:
    """Return the scope of Llama 3.1 8B in vLLM on one H100."""
    return EngineScope(load_serving_job(_JOB), EngineLayout())


@cache
def h100_iteration() -> EngineIteration:
    """Return the iterations of Llama 3.1 8B in vLLM on one H100."""
    return engine_iteration(h100_scope(), kernels_for(_DEVICE), engine_kernels_for(_DEVICE))


def qwen3_next() -> LinearAttention:
    """Return the linear attention of Qwen3-Next-80B-A3B."""
    return LinearAttention(
        kind="gated-delta-net", every=4, key_heads=16, value_heads=32, key_dim=128, value_dim=128
    )


def example_names() -> dict[str, object]:
    """Return the values by name."""
    return {
        "AdapterSpec": AdapterSpec,
        "AffineIteration": AffineIteration,
        "BlockPool": BlockPool,
        "Candidates": Candidates,
        "EngineLayout": EngineLayout,
        "EngineScope": EngineScope,
        "Links": Links,
        "MeasuredKernels": MeasuredKernels,
        "Prefixes": Prefixes,
        "RequestLoad": RequestLoad,
        "RoutingSpec": RoutingSpec,
        "SchedulerRules": SchedulerRules,
        "SimpleNamespace": SimpleNamespace,
        "SpeculationSpec": SpeculationSpec,
        "engine_iteration": engine_iteration,
        "engine_kernels_for": engine_kernels_for,
        "h100_iteration": h100_iteration,
        "h100_prices": h100_prices,
        "h100_scope": h100_scope,
        "ideal": ideal,
        "kernels_for": kernels_for,
        "length_moments": length_moments,
        "load_entry": load_entry,
        "load_job": load_job,
        "load_serving_job": load_serving_job,
        "machine_of": machine_of,
        "parse_layout": parse_layout,
        "parse_serving_layout": parse_serving_layout,
        "qwen3_next": qwen3_next,
        "replace": replace,
        "scope_of": scope_of,
        "stack": stack,
    }
