"""What is emitted for Megatron-LM, as fields of Megatron-Core's TransformerConfig, accepted and read back.

This needs the wheel of megatron-core alone, no checkout of Megatron-LM: its arguments are those fields by
other names. AUTOPLAN_FRAMEWORKS_PYTHON names a Python with it, by default this one; else this is skipped.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.launch.frameworks.megatron.megatron_lm import TARGET
from autoplan.launch.target import PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.stage_layers import chunks_of
from tests.frameworks.core_fields import core_case
from tests.frameworks.framework_python import asked, has_module

PARSER = Path(__file__).with_name("megatron_core_parser.py")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not has_module("megatron"), reason="megatron-core is not installed"),
]

#: Model and layout of different shapes.
ACCEPTED = {
    "one device": ("llama3-8b", "dp=1"),
    "tensor and sequence parallel": ("llama3-8b", "tp=8,dp=2,zero=1"),
    "even stages": ("llama3-70b", "tp=4,pp=4,dp=2,zero=1,recompute=selective"),
    "uneven first stage": ("llama3-8b", "tp=2,pp=2,dp=2,stages=15/17,recompute=full,zero=1"),
    "uneven ends": ("llama3-8b", "pp=4,dp=2,stages=7/9/9/7,recompute=full:3,zero=1"),
    "uneven middle": ("llama3-8b", "pp=4,dp=2,stages=7/8/9/8,zero=1"),
    "interleaved": ("gpt3-175b", "tp=8,pp=8,vpp=3,dp=2,recompute=selective,zero=1"),
    "embedding and loss counted": ("llama3.1-405b", "tp=8,pp=8,vpp=8,dp=2,zero=1"),
    "experts": ("mixtral-8x7b", "tp=2,dp=4,ep=4,etp=1,zero=1"),
    "context parallel": ("llama3-8b", "pp=2,dp=2,cp=2,zero=1"),
    "activation offload": ("llama3-8b", "dp=8,offload=activations,zero=1"),
    "units of recompute": ("llama3-8b", "dp=8,recompute=full,recompute_num_layers=4,zero=1"),
    "1,024 devices": ("llama3-70b", "tp=8,pp=4,dp=32,zero=1"),
}
#: Changes of fields that make an accepted case wrong.
BROKEN = {
    "heads that do not divide": {"num_attention_heads": 33},
    "query groups that do not divide": {"num_query_groups": 3},
    "full recompute without a method": {"recompute_method": None},
    "unknown recompute": {"recompute_granularity": "some"},
    "unknown method": {"recompute_method": "every"},
    "recompute of no layers": {"recompute_num_layers": None},
    "stages that leave no layers": {"num_layers_in_first_pipeline_stage": 32},
    "stages that do not divide": {"num_layers_in_first_pipeline_stage": None, "num_layers": 33},
    "layout of fewer stages": {
        "num_layers_in_first_pipeline_stage": None,
        "pipeline_model_parallel_layout": "Et*8|t*8|t*16L",
    },
    "expert parallel without experts": {"expert_model_parallel_size": 2},
    "offload with pipelines": {"cpu_offloading": True, "cpu_offloading_num_layers": 4},
    "sequence parallel without tensors": {"tensor_model_parallel_size": 1, "sequence_parallel": True},
}


def emitted(model, text):
    """Return a layout, and the case of what is emitted."""
    job = replace(
        autoplan.load_job("llama3-8b-8x-a100"),
        model=load_entry("model", model),
        workload=Workload(sequence_length=2048, global_batch_size=1024),
    )
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    run = PlannedRun(job, layout)
    return layout, core_case(run, TARGET.emit(run).arguments)


@pytest.fixture(scope="module")
def accepted():
    """Return what Megatron-Core says of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    answers = asked(PARSER, [case for _, case in cases.values()])
    return dict(zip(cases, zip(cases.values(), answers, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_megatron_core_accepts_and_its_object_has_the_layout(accepted, name):
    """Degrees, layers of virtual stages, recompute and microbatches of its objects are those of the plan."""
    (layout, _), answer = accepted[name]
    assert "accepted" in answer, answer
    found = answer["accepted"]

    assert found["num_layers"] == sum(layout.layers)
    assert found["tensor_model_parallel_size"] == layout.tp
    assert found["pipeline_model_parallel_size"] == layout.pp
    assert found["context_parallel_size"] == layout.cp
    assert found["expert_model_parallel_size"] == layout.ep
    assert found["expert_tensor_parallel_size"] == layout.etp
    assert found["sequence_parallel"] == layout.sequence_parallel
    assert found["microbatches"] == 1024 // (layout.dp * layout.microbatch)
    assert [tuple(stage) for stage in found["stages"]] == list(chunks_of(layout.layers, layout.vpp))
    granularity = {"none": None, "selective": "selective"}.get(layout.mode, "full")
    assert found["recompute_granularity"] == granularity
    if layout.mode == "full":
        assert (found["recompute_method"], found["recompute_num_layers"]) == (
            "uniform",
            layout.recompute_num_layers,
        )
    assert bool(found["cpu_offloading_num_layers"]) == layout.activation_offload


@pytest.fixture(scope="module")
def broken():
    """Return what Megatron-Core says of every broken case."""
    _, case = emitted("llama3-8b", "tp=2,pp=2,dp=2,stages=15/17,recompute=full,zero=1")
    cases = [{**case, "fields": {**case["fields"], **changes}} for changes in BROKEN.values()]
    return dict(zip(BROKEN, asked(PARSER, cases), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_fields_are_refused(broken, name):
    """Megatron-Core refuses what is broken, so that it would have refused what is emitted."""
    assert "refused" in broken[name]
