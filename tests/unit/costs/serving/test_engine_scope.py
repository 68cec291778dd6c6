"""What follows from a job and a layout is derived once."""

import importlib
import inspect
import pkgutil

import autoplan.costs.serving
from autoplan.catalog import load_serving_job
from autoplan.costs.serving.engine_capacity import predict_capacity, stage_contents
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.queueing.scheduler_rules import scheduler_rules
from autoplan.schema.serving.engine_layout import EngineLayout
from tests.support.serving_jobs import serving_job


def functions_of_serving():
    """Return the functions of every module of autoplan/costs/serving by their full name."""
    package = autoplan.costs.serving
    names = [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return {
        f"{name}.{key}": value
        for name in names
        for key, value in vars(importlib.import_module(name)).items()
        if inspect.isfunction(value) and value.__module__ == name
    }


def test_capacity_and_rules_are_derived_once():
    """A second question returns the same value, not an equal one."""
    scope = EngineScope(load_serving_job("llama3-70b-8x-h100"), EngineLayout(tp=4, pp=2))

    for derive in (stage_contents, predict_capacity, scheduler_rules):
        assert derive(scope) is derive(scope)


def test_captured_batches_follow_the_memory_of_a_device():
    """SGLang captures 24 decodes on 24 GB below tp 4, 80 from there on; vLLM 512 on any device."""
    sizes = [
        EngineScope(serving_job("llama3-8b", hardware, tp, stack), EngineLayout(tp=tp)).captured_batch
        for hardware, stack in (("8x-rtx-4090", "sglang@0.5.8"), ("8x-rtx-4090", "vllm@0.19"))
        for tp in (1, 4)
    ]

    assert sizes == [24, 80, 512, 512]


def test_sizes_of_steps_share_weights_and_caches():
    """Other sizes have other capacities, of the same weights; of a scope that was resized as well."""
    scope = EngineScope(load_serving_job("llama3-70b-8x-h100"), EngineLayout(tp=4))
    few = scope.resized(EngineLayout(tp=4, seqs=64, tokens=2048))
    fewer = few.resized(EngineLayout(tp=4, seqs=8, tokens=2048))

    assert stage_contents(few) is stage_contents(scope) is stage_contents(fewer)
    assert (few.step_sizes, fewer.step_sizes) == ((64, 2048), (8, 2048))
    assert predict_capacity(few).max_num_seqs == 64 != predict_capacity(scope).max_num_seqs
    fresh = EngineScope(scope.job, few.layout)
    assert predict_capacity(few) == predict_capacity(fresh)
    assert scheduler_rules(few) == scheduler_rules(fresh)


def test_formulas_take_the_scope():
    """Only the pools of a layout are built from a job and a layout: their scopes are made there."""
    opened = {
        name.rpartition(".")[2]
        for name, function in functions_of_serving().items()
        if {"job", "layout"} <= set(inspect.signature(function).parameters)
    }

    assert opened == {"engine_pair", "pool_scope"}
