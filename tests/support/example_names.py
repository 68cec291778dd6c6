"""What examples in docstrings of internal modules may use without importing it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np

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
from autoplan.costs.core.served_prediction import EngineLoad, ServedPrediction, SimulatedPrediction
from autoplan.costs.device.machine import Links, ideal, machine_of
from autoplan.costs.layer.layer_time import layer_times
from autoplan.costs.network.tensor_calls import tensor_calls
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair, engine_pair, pooled
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration, HostTimes, Line, Sheet
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration, kernel_prices
from autoplan.costs.serving.iteration.kernel_prices import KernelPrices
from autoplan.costs.serving.iteration.measured_kernels import MeasuredKernels
from autoplan.costs.serving.queueing.open_loop import open_loop
from autoplan.costs.serving.queueing.request_load import EngineQueue, RequestLoad, length_moments
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from autoplan.costs.serving.served_layouts import (
    PricedEngine,
    ServingCosts,
    UnitParts,
    priced_engine,
    served,
    simulated,
    unit_parts,
)
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.engine_kernels import EngineKernelSpec
from autoplan.schema.costmodel.interval_spec import IntervalSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.job import RoutingSpec
from autoplan.schema.layout import parse_layout
from autoplan.schema.linear_attention import LinearAttention
from autoplan.schema.post_training import RLSpec
from autoplan.schema.serving.engine_layout import EngineLayout, parse_serving_layout
from autoplan.schema.serving.request_lengths import FixedLength
from autoplan.schema.serving.serving_choices import SpeculationSpec
from tests.support.affine_iteration import AffineIteration

__all__ = ["example_names"]

_DEVICE = "h100-sxm5-80gb"


def candidate(layout: str, *, layers: int = 32, devices: int = 8) -> Candidates:
    """Return one candidate: the layout of a text, for Llama 3 8B on eight devices unless it says others."""
    return Candidates.of([parse_layout(layout, layers=layers, devices=devices)])


@cache
def h100_kernels() -> tuple[KernelSpec, tuple[EngineKernelSpec, DeviceSpec] | None]:
    """Return the kernels of one H100: those of training, and those of engines."""
    return kernels_for(_DEVICE), engine_kernels_for(_DEVICE)


def h100_scope() -> EngineScope:
    """Return the scope of Llama 3.1 8B in vLLM on one H100."""
    return EngineScope(load_serving_job("llama3.1-8b-1x-h100"), EngineLayout())


@cache
def h100_prices() -> KernelPrices:
    """Return the prices of the kernels of vLLM on one H100."""
    return kernel_prices(h100_scope().job, *h100_kernels())


@cache
def h100_measured() -> MeasuredKernels:
    """Return the measured kernels of vLLM on one H100."""
    return MeasuredKernels(*engine_kernels_for(_DEVICE), engine="vllm")


@cache
def h100_iteration() -> EngineIteration:
    """Return the iterations of Llama 3.1 8B in vLLM on one H100."""
    return engine_iteration(h100_scope(), *h100_kernels())


@cache
def h100_costs() -> ServingCosts:
    """Return what engines on H100 are priced by."""
    return ServingCosts(*h100_kernels())


@cache
def h100_parts() -> UnitParts:
    """Return what engines of Llama 3.1 8B in vLLM on one H100 have in common."""
    return unit_parts(h100_scope(), h100_costs())


@cache
def h100_engine() -> PricedEngine:
    """Return an engine of Llama 3.1 8B in vLLM on one H100."""
    return priced_engine(EngineLayout(), h100_parts())


def h100_served() -> tuple[ServedPrediction, SimulatedPrediction | None]:
    """Return that engine under four clients: its closed form and its simulation."""
    job, load = h100_scope().job, EngineLoad("closed loop", 4.0)
    prediction = served(job, h100_engine(), load)
    return prediction, simulated(job, h100_engine(), prediction)


def h100_pair(pools: str) -> EnginePair:
    """Return the pools of a layout of Llama 3.1 8B in vLLM on H100."""
    return engine_pair(h100_scope().job, parse_serving_layout(pools), h100_costs())


@cache
def intervals() -> IntervalSpec:
    """Return the intervals of serving predictions."""
    return load_entry("intervals", "serving")


def second_steps() -> EngineIteration:
    """Return iterations whose layers, and whose head, take a second each whatever their size."""
    one, sheet = Line((1.0, 2.0), (1.0, 1.0)), Sheet((1.0, 2.0), (1.0, 2.0), ((0.0, 0.0), (0.0, 0.0)))
    host = HostTimes(0.0, 0.0, 0.0, hidden=True)
    return EngineIteration(one, one, one, sheet, sheet, host, 1.0, True, True, (), 512, 1, one, 1)


def qwen3_next() -> LinearAttention:
    """Return the linear attention of Qwen3-Next-80B-A3B."""
    return LinearAttention(
        kind="gated-delta-net", every=4, key_heads=16, value_heads=32, key_dim=128, value_dim=128
    )


#: Functions and classes by their names.
_CALLABLES = (
    AdapterSpec,
    AffineIteration,
    BlockPool,
    Candidates,
    EngineLayout,
    EngineLoad,
    EngineQueue,
    EngineScope,
    FixedLength,
    Links,
    MeasuredKernels,
    Prefixes,
    RLSpec,
    RequestLoad,
    RoutingSpec,
    SchedulerRules,
    SimpleNamespace,
    SoftwareSpec,
    SpeculationSpec,
    candidate,
    engine_iteration,
    engine_kernels_for,
    h100_costs,
    h100_engine,
    h100_iteration,
    h100_kernels,
    h100_measured,
    h100_pair,
    h100_parts,
    h100_prices,
    h100_scope,
    h100_served,
    ideal,
    intervals,
    kernels_for,
    layer_times,
    length_moments,
    load_entry,
    load_job,
    load_serving_job,
    machine_of,
    open_loop,
    parse_layout,
    parse_serving_layout,
    pooled,
    priced_engine,
    qwen3_next,
    replace,
    scope_of,
    second_steps,
    served,
    stack,
    tensor_calls,
    unit_parts,
    with_software,
)


def example_names() -> dict[str, object]:
    """Return the values by name; ``job`` is one of training, ``serving_job`` one of serving."""
    job, serving_job = load_job("llama3-8b-8x-a100"), load_serving_job("llama3.1-8b-1x-h100")
    values = {
        "Part": SimpleNamespace,
        "eagle": SpeculationSpec(method="eagle", tokens=(3,), acceptance=0.7),
        "h100": serving_job.cluster.device,
        "job": job,
        "machine": machine_of(job),
        "one": np.ones(1),
        "rules": SchedulerRules(4, 8, BlockPool(9, 4)),
        "serving_job": serving_job,
    }
    return {value.__name__: value for value in _CALLABLES} | values
