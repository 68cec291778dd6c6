"""What is emitted for Megatron Bridge, applied to a recipe by its own functions and read back from it.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with torch and hydra-core, by default this one, and
AUTOPLAN_FRAMEWORK_WHEELS a folder with the wheels of Megatron Bridge and megatron-core; skipped where one of
them is missing.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.megatron_bridge import TARGET
from autoplan.launch.target import PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.stage_layers import chunks_of
from tests.frameworks.framework_python import asked, has_module, unpacked

PARSER = Path(__file__).with_name("megatron_bridge_parser.py")
FOLDERS = (unpacked("megatron_bridge"), unpacked("megatron_core", "0.19."))

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        not (all(FOLDERS) and has_module("hydra")),
        reason="the wheel of Megatron Bridge or of megatron-core is not there",
    ),
]

#: Model, layout and changes of the job, of different shapes.
ACCEPTED = {
    "one device": ("llama3-8b", "dp=1", {}),
    "even stages": ("llama3-70b", "tp=4,pp=4,dp=2,zero=1,recompute=selective", {}),
    "uneven first stage": ("llama3-8b", "tp=2,pp=2,dp=2,stages=15/17,recompute=full,zero=1", {}),
    "uneven middle": ("llama3-8b", "pp=4,dp=2,stages=7/8/9/8,zero=1", {"precision": "fp16"}),
    "interleaved": ("gpt3-175b", "tp=8,pp=8,vpp=3,dp=2,zero=1,recompute=full:6", {}),
    "experts": ("mixtral-8x7b", "tp=2,dp=4,ep=4,etp=1,zero=1", {}),
    "context parallel": ("llama3-8b", "pp=2,dp=2,cp=2,zero=1", {"precision": "fp8"}),
    "hybrid sharding": ("llama3-8b", "tp=2,dp=4,dp_shard=2,zero=1", {}),
    "optimizer offload": ("llama3-8b", "dp=8,offload=optimizer,zero=1", {}),
    "activation offload": ("llama3-8b", "dp=8,offload=activations,zero=1", {}),
    "gradients in bf16": ("llama3-8b", "dp=8,zero=1", {"stack": "megatron-bridge"}),
    "sharded parameters": ("llama3-8b", "dp=8,zero=3", {}),
    "without sharding": ("llama3-8b", "dp=8,zero=0", {"optimizer": "sgd"}),
    "1,024 devices": ("llama3-70b", "tp=8,pp=4,dp=32,zero=1", {}),
}
#: Changes that make an accepted file wrong, and whether what reads it here refuses it as well.
BROKEN = {
    "degrees beyond the devices": ("tensor_model_parallel_size: 2", "tensor_model_parallel_size: 3", True),
    "stages that leave no layers": ("first_pipeline_stage: 15", "first_pipeline_stage: 32", True),
    "unknown recompute": ("recompute_granularity: full", "recompute_granularity: every", True),
    "unknown method": ("recompute_method: uniform", "recompute_method: every", True),
    "full recompute without a method": ("recompute_method: uniform", "recompute_method: null", True),
    "batch that does not divide": ("global_batch_size: 1024", "global_batch_size: 1023", True),
    "lengths that differ": ("dataset:\n  seq_length: 2048", "dataset:\n  seq_length: 1024", False),
    "degree that is no number": (
        "pipeline_model_parallel_size: 2",
        "pipeline_model_parallel_size: two",
        True,
    ),
    "layers that do not divide": ("num_layers_in_first_pipeline_stage: 15", "num_layers: 33", True),
    "formats that are none": ("mixed_precision: bf16_mixed", "mixed_precision: bf61_mixed", False),
}


def emitted(model, text, changes):
    """Return a layout, the job, and the cases of the file and of the words that are emitted."""
    job, changes = autoplan.load_job("llama3-8b-8x-a100"), dict(changes)
    workload = Workload(sequence_length=2048, global_batch_size=1024)
    stack = load_entry("stack", changes.pop("stack", "megatron-core"))
    job = replace(job, model=load_entry("model", model), workload=workload, stack=stack, **changes)
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    emission = TARGET.emit(PlannedRun(job, layout))
    sizes = {"num_attention_heads": job.model.heads, "hidden_size": job.model.hidden_size}
    if job.model.moe is not None:
        sizes["num_moe_experts"] = job.model.moe.experts
    base = {"world_size": layout.devices, "sizes": sizes}
    text, words = emission.files[0].text, list(emission.arguments)
    return layout, job, {**base, "text": text}, {**base, "arguments": words}


@pytest.fixture(scope="module")
def accepted():
    """Return what Megatron Bridge says of file and words of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    asked_for = [case for _, _, *pair in cases.values() for case in pair]
    answers = asked(PARSER, asked_for, *FOLDERS)
    pairs = zip(answers[::2], answers[1::2], strict=True)
    return dict(zip(cases, zip(cases.values(), pairs, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_megatron_bridge_accepts_and_its_container_has_the_layout(accepted, name):
    """Degrees, stages, batches, recompute and sharding are those of the plan, not of the recipe."""
    (layout, job, *_), (found, by_words) = accepted[name]
    assert "accepted" in found, found
    assert by_words == found
    found = found["accepted"]

    assert found["degrees"] == [layout.tp, layout.pp, layout.cp, layout.ep, layout.dp]
    assert found["sequence_parallel"] == layout.sequence_parallel
    assert found["etp"] == layout.etp
    assert [tuple(stage) for stage in found["stages"]] == list(chunks_of(layout.layers, layout.vpp))
    assert found["microbatches"] == 1024 // (layout.dp * layout.microbatch)
    full = ["full", "uniform", 1] if layout.mode == "full" else ["full", "block", 2]
    kinds = {"none": [None, None, None], "selective": ["selective", None, None]}
    assert found["recompute"] == kinds.get(layout.mode, full)
    assert found["sharding"] == [layout.zero > 0, layout.zero > 1]
    if layout.zero > 1:
        assert found["strategy"] == "optim_grads_params"
    shard = layout.dp_shard or layout.dp * layout.cp
    assert found["instances"] == layout.dp * layout.cp // shard
    assert [bool(value) for value in found["offload"]] == [
        layout.optimizer_offload,
        layout.activation_offload,
    ]
    assert found["formats"][:2] == [job.precision != "fp16", job.precision == "fp16"]
    assert bool(found["formats"][2]) == (job.precision == "fp8")
    assert found["gradients"] == (job.precision != "fp16" and job.stack.memory.gradient_bytes == 4)
    assert found["optimizer"] == ("sgd" if job.optimizer == "sgd" else "adam")
    assert found["sequence_length"] == [2048, 2048]


@pytest.fixture(scope="module")
def broken():
    """Return every broken file, and what Megatron Bridge says of it."""
    _, _, case, _ = emitted("llama3-8b", "tp=2,pp=2,dp=2,stages=15/17,recompute=full,zero=1", {})
    assert all(old in case["text"] for old, _, _ in BROKEN.values())
    texts = [case["text"].replace(old, new) for old, new, _ in BROKEN.values()]
    answers = asked(PARSER, [{**case, "text": text} for text in texts], *FOLDERS)
    return dict(zip(BROKEN, zip(texts, answers, strict=True), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused(broken, name):
    """The framework refuses a file that is broken, and what reads it here if a layout depends on it."""
    text, answer = broken[name]

    assert "refused" in answer
    if BROKEN[name][2]:
        with pytest.raises(autoplan.SpecError):
            TARGET.read(LaunchFile("megatron_bridge.yaml", text, devices=8))
