"""What engines of one role need of an iteration."""

from dataclasses import replace

import pytest

from autoplan.catalog import engine_kernels_for, kernels_for, load_serving_job
from autoplan.catalog.entries import engine
from autoplan.costs.serving.disaggregated.role_engines import decode_engine, prefill_engine
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_layouts import ServingCosts, unit_parts
from autoplan.schema.serving.engine_layout import EngineLayout


@pytest.mark.parametrize(("role", "starts"), [(prefill_engine, False), (decode_engine, True)])
def test_only_prefill_needs_iterations_that_hold_a_prompt(tmp_path, role, starts):
    """TensorRT-LLM divides no prompt; a decode engine of it with 8 tokens a step never has one of 1,024."""
    job = replace(load_serving_job("llama3.1-8b-1x-h100"), engine=engine("tensorrt-llm@1.0", tmp_path))
    layout = EngineLayout(seqs=8, tokens=8)
    name = job.cluster.device.name
    parts = unit_parts(EngineScope(job, layout), ServingCosts(kernels_for(name), engine_kernels_for(name)))

    assert (role(layout, parts).engine.shortage is None) is starts
