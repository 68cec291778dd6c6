"""What is emitted for DeepSpeed, accepted by its own DeepSpeedConfig and read back from it.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with deepspeed, by default this one; skipped where it has none.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.deepspeed import OPTIMIZERS, TARGET
from autoplan.launch.target import PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from tests.frameworks.framework_python import asked, has_module

PARSER = Path(__file__).with_name("deepspeed_parser.py")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not has_module("deepspeed"), reason="deepspeed is not installed"),
]

#: Layouts of different shapes, and changes of the job.
ACCEPTED = {
    "data parallel": ("dp=8,zero=0", {}),
    "sharded states": ("dp=8,mbs=2,zero=1", {}),
    "sharded gradients": ("dp=4,mbs=4,zero=2,recompute=full", {}),
    "sharded parameters": ("dp=8,zero=3", {"precision": "fp16"}),
    "offload": ("dp=8,zero=2,offload=optimizer", {"optimizer": "lion"}),
    "offload of both": ("dp=8,zero=3,recompute=full,offload=optimizer+activations", {}),
    "context parallel": ("dp=4,cp=2,zero=3", {}),
    "tensor parallel": ("tp=2,dp=4,sp=off,zero=1", {}),
    "single precision": ("dp=8,zero=1", {"precision": "fp32", "optimizer": "adam"}),
    "one device": ("dp=1", {"optimizer": "sgd"}),
    "1,024 devices": ("dp=1024,zero=3", {"optimizer": "muon"}),
}
#: Changes that make an accepted file wrong.
BROKEN = {
    "batch that is no product": ('"train_batch_size": 1024', '"train_batch_size": 1020'),
    "stage that is none": ('"stage": 2', '"stage": 4'),
    "misspelt key of ZeRO": ('"stage": 2', '"stage": 2, "offload_optimiser": {"device": "cpu"}'),
    "two precisions": ('"bf16": {', '"fp16": {"enabled": true}, "bf16": {'),
    "offload to nowhere": ('"device": "cpu"', '"device": "disk"'),
    "microbatch of nothing": ('"train_micro_batch_size_per_gpu": 1', '"train_micro_batch_size_per_gpu": 0'),
    "option that was removed": ('"stage": 2', '"stage": 2, "mics_shard_size": 4'),
}


def emitted(text, changes):
    """Return a job, a layout of it, and the case of what is emitted."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    workload = Workload(sequence_length=8192, global_batch_size=1024)
    job = replace(job, workload=workload, **changes)
    return (
        job,
        layout,
        {"world_size": layout.devices, "text": TARGET.emit(PlannedRun(job, layout)).files[0].text},
    )


@pytest.fixture(scope="module")
def accepted():
    """Return what DeepSpeed says of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    answers = asked(PARSER, [case for _, _, case in cases.values()])
    return dict(zip(cases, zip(cases.values(), answers, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_deepspeed_accepts_and_its_object_has_the_layout(accepted, name):
    """Batch, degrees, stage, offload, precision and optimizer of its object are those of the plan."""
    (job, layout, _), answer = accepted[name]
    assert "accepted" in answer, answer
    found = answer["accepted"]

    assert (found["batch"], found["mbs"], found["dp"]) == (1024, layout.microbatch, layout.dp)
    assert found["mbs"] * found["steps"] * found["dp"] == found["batch"]
    assert found["tp"] == (layout.tp if layout.tp > 1 else 0)
    assert found["zero"] == layout.zero
    assert found["offload"] == ("cpu" if layout.optimizer_offload else None)
    assert found["cpu_checkpointing"] == layout.activation_offload
    assert (found["bf16"], found["fp16"]) == (job.precision == "bf16", job.precision == "fp16")
    assert found["optimizer"].lower() == OPTIMIZERS[job.optimizer].lower()


@pytest.fixture(scope="module")
def broken():
    """Return every broken file, and what DeepSpeed says of it."""
    _, _, case = emitted("dp=8,zero=2,offload=optimizer", {})
    assert all(old in case["text"] for old, _ in BROKEN.values())
    texts = [case["text"].replace(old, new) for old, new in BROKEN.values()]
    answers = asked(PARSER, [{**case, "text": text} for text in texts])
    return dict(zip(BROKEN, zip(texts, answers, strict=True), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_both(broken, name):
    """DeepSpeed refuses a file that is broken, and so does what reads it here."""
    text, answer = broken[name]

    assert "refused" in answer
    if name != "option that was removed":  # earlier versions have it
        with pytest.raises(autoplan.SpecError):
            TARGET.read(LaunchFile("ds_config.json", text, devices=8))
