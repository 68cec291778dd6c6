"""What is emitted for accelerate, accepted by its own loader and launcher and read back from its plugins.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with accelerate, by default this one; skipped where it has none.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.accelerate import TARGET
from autoplan.launch.target import PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from tests.frameworks.framework_python import asked, has_module

PARSER = Path(__file__).with_name("accelerate_parser.py")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not has_module("accelerate"), reason="accelerate is not installed"),
]

#: Stack and layout of different shapes.
ACCEPTED = {
    "replicas": ("ddp", "dp=8,zero=0"),
    "sharded parameters": ("hf-fsdp2", "dp=8,mbs=2,zero=3,recompute=full"),
    "sharded gradients": ("hf-fsdp2", "dp=8,zero=2"),
    "hybrid": ("fsdp2", "dp=8,zero=3,dp_shard=4"),
    "tensor and context": ("fsdp2", "tp=2,cp=2,dp=4,sp=off,zero=3"),
    "hybrid with context": ("fsdp2", "cp=2,dp=8,zero=2,dp_shard=4"),
    "activations offloaded": ("fsdp2", "dp=8,zero=3,recompute=full,offload=activations"),
    "1,024 devices": ("hf-fsdp2", "dp=1024,zero=3"),
    "DeepSpeed": ("deepspeed", "dp=8,zero=2,offload=optimizer"),
    "DeepSpeed ZeRO-3": ("deepspeed", "dp=8,zero=3"),
    "Megatron-LM": ("megatron-core", "tp=2,pp=2,dp=2,recompute=full,zero=1"),
}
#: Changes that make an accepted file wrong.
BROKEN = {
    "unknown key": ("num_machines: 1", "num_machines: 1\nnum_nodes: 1"),
    "degrees beyond the processes": ("_dp_shard_size: 4", "_dp_shard_size: 8"),
    "sharding of FSDP1": ("fsdp_version: 2", "fsdp_version: 1"),
    "unknown precision": ("mixed_precision: bf16", "mixed_precision: bf61"),
    "resharding that is no truth value": ("reshard_after_forward: true", "reshard_after_forward: sometimes"),
    "unknown kind": ("distributed_type: FSDP", "distributed_type: FSPD"),
    "no mapping": ("compute_environment: LOCAL_MACHINE", "- compute_environment: LOCAL_MACHINE"),
}


def emitted(stack, text):
    """Return a job, a layout of it, and the case of what is emitted."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    workload = Workload(sequence_length=8192, global_batch_size=1024)
    job = replace(job, stack=load_entry("stack", stack), workload=workload)
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    emission = TARGET.emit(PlannedRun(job, layout))
    return job, layout, {"text": emission.files[0].text, "arguments": emission.arguments}


@pytest.fixture(scope="module")
def accepted():
    """Return what accelerate says of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    answers = asked(PARSER, [case for _, _, case in cases.values()])
    return dict(zip(cases, zip(cases.values(), answers, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_accelerate_accepts_and_its_plugins_have_the_layout(accepted, name):
    """Processes, degrees, sharding, recompute, offload and microbatches are those of the plan."""
    (_, layout, _), answer = accepted[name]
    assert "accepted" in answer, answer
    found = answer["accepted"]

    assert (found["processes"], found["precision"]) == (layout.devices, "bf16")
    shard = (layout.dp_shard // layout.cp) or layout.dp
    if "fsdp" in found:
        expected = (2, layout.zero == 3, layout.mode == "full", layout.activation_offload)
        assert tuple(found["fsdp"].values()) == expected
        sizes = (layout.dp // shard, shard, layout.tp, layout.cp, layout.devices)
        assert tuple(found["sizes"].values()) == sizes
    steps = 1024 // (layout.dp * layout.microbatch)
    if "deepspeed" in found:
        device = "cpu" if layout.optimizer_offload else "none"
        assert found["deepspeed"] == {"stage": layout.zero, "steps": steps, "offload": device}
    if "megatron" in found:
        megatron = found["megatron"]
        assert megatron["tensor_model_parallel_size"] == layout.tp
        assert megatron["pipeline_model_parallel_size"] == layout.pp
        assert megatron["context_parallel_size"] == layout.cp
        assert megatron["num_micro_batches"] == steps
        assert megatron["use_distributed_optimizer"] == (layout.zero == 1)
        assert megatron["sequence_parallel"] == layout.sequence_parallel
        assert (megatron["recompute_granularity"], megatron["recompute_method"]) == ("full", "uniform")


@pytest.fixture(scope="module")
def broken():
    """Return every broken file, and what accelerate says of it."""
    _, _, case = emitted("fsdp2", "dp=8,zero=3,dp_shard=4")
    assert all(old in case["text"] for old, _ in BROKEN.values())
    texts = [case["text"].replace(old, new) for old, new in BROKEN.values()]
    answers = asked(PARSER, [{"text": text} for text in texts])
    return dict(zip(BROKEN, zip(texts, answers, strict=True), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_both(broken, name):
    """The framework refuses a file that is broken, and so does what reads it here."""
    text, answer = broken[name]

    assert "refused" in answer
    with pytest.raises(autoplan.SpecError):
        TARGET.read(LaunchFile("accelerate.yaml", text))
