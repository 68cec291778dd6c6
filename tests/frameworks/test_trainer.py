"""What is emitted for the Hugging Face Trainer, accepted by its own argument parser and read back from it.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with transformers, by default this one; skipped where it has none.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.hugging_face.trainer import TARGET
from autoplan.launch.frameworks.hugging_face.training_fields import OPTIM, key_names
from autoplan.launch.target import PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from tests.frameworks.framework_python import asked, has_module

PARSER = Path(__file__).with_name("trainer_parser.py")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        not (has_module("transformers") and has_module("deepspeed")), reason="transformers is not installed"
    ),
]

#: Stack, layout and changes of the job, of different shapes.
ACCEPTED = {
    "one device": ("hf-trainer", "dp=1", {}),
    "replicas": ("hf-trainer", "dp=8,mbs=2,zero=0,recompute=full", {}),
    "replicas with Liger": ("hf-trainer-liger", "dp=8,zero=0", {"precision": "fp16"}),
    "sharded parameters": ("hf-fsdp2", "dp=8,mbs=4,zero=3,recompute=full", {}),
    "sharded gradients": ("hf-fsdp2", "dp=8,zero=2", {"optimizer": "sgd"}),
    "inputs in host memory": ("hf-fsdp2", "dp=8,zero=3,recompute=full,offload=activations", {}),
    "8-bit states": ("hf-trainer", "dp=8", {"optimizer": "adamw-8bit"}),
    "DeepSpeed": ("deepspeed", "dp=8,zero=2,offload=optimizer", {}),
    "DeepSpeed ZeRO-3": ("deepspeed", "dp=8,zero=3,recompute=full", {"optimizer": "lion"}),
    "DeepSpeed ZeRO-1 in single precision": ("deepspeed", "dp=4,zero=1", {"precision": "fp32"}),
    "1,024 devices": ("hf-fsdp2", "dp=1024,zero=3", {}),
}
#: Changes that make an accepted file wrong.
BROKEN = {
    "misspelt field": ('"per_device_train_batch_size"', '"per_device_train_batchsize"'),
    "two precisions": ('"fp16": false', '"fp16": true'),
    "unknown optimizer": ('"adamw_torch_fused"', '"adamw_torch_fusde"'),
    "batch that is no product": ('"train_batch_size": 1024', '"train_batch_size": 1016'),
    "other microbatches in DeepSpeed": ('_per_gpu": 1', '_per_gpu": 2'),
    "stage that is none": ('"stage": 2', '"stage": 4'),
    "misspelt key of ZeRO": ('"stage": 2', '"stage": 2, "offload_optimiser": {"device": "cpu"}'),
    "resharding that is no truth value": ('"reshard_after_forward": true', '"reshard_after_forward": "some"'),
    "strategy that is none": ('"fsdp": true', '"fsdp": "full_shrad"'),
    "offload to nowhere": ('"device": "cpu"', '"device": "disk"'),
}


def emitted(stack, text, changes):
    """Return a job, a layout of it, and what is emitted."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    workload = Workload(sequence_length=8192, global_batch_size=1024)
    job = replace(job, stack=load_entry("stack", stack), workload=workload, **changes)
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    return job, layout, TARGET.emit(PlannedRun(job, layout))


@pytest.fixture(scope="module")
def accepted():
    """Return what the parser says of the file and of the arguments of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    texts = [{"world_size": c[1].devices, "text": c[2].files[0].text} for c in cases.values()]
    words = [{"world_size": c[1].devices, "arguments": list(c[2].arguments)} for c in cases.values()]
    answers = asked(PARSER, [*texts, *words])
    pairs = zip(answers[: len(texts)], answers[len(texts) :], strict=True)
    return dict(zip(cases, zip(cases.values(), pairs, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_trainer_accepts_and_its_arguments_have_the_layout(accepted, name):
    """Batches, precision, optimizer, recompute and sharding of file and arguments are those of the plan."""
    (job, layout, _), (found, by_words) = accepted[name]
    assert "accepted" in found, found
    assert found == by_words
    found = found["accepted"]

    assert (found["mbs"], found["steps"]) == (layout.microbatch, 1024 // (layout.dp * layout.microbatch))
    assert found["precision"] == {"fp32": "no"}.get(job.precision, job.precision)
    assert found["offload"] == layout.activation_offload
    by_plugin = "fsdp" in found and found["fsdp"]["recompute"]
    assert (found["recompute"] or by_plugin) == (layout.mode == "full")
    if "deepspeed" not in found:
        assert found["optim"] == OPTIM[job.optimizer]
        assert ("fsdp" in found) == (layout.zero > 0)
    if "fsdp" in found:
        assert (found["fsdp"]["version"], found["fsdp"]["reshard"]) == (2, layout.zero == 3)
    if "deepspeed" in found:
        offload = "cpu" if layout.optimizer_offload else None
        own = found["deepspeed"]
        assert (own["stage"], own["batch"], own["offload"]) == (layout.zero, 1024, offload)
        assert own["optimizer"] == job.optimizer


@pytest.fixture(scope="module")
def broken():
    """Return every broken file, and what the parser says of it."""
    texts = {}
    sources = [emitted(*ACCEPTED[name])[2].files[0].text for name in ("sharded parameters", "DeepSpeed")]
    for name, (old, new) in BROKEN.items():
        source = next(text for text in sources if old in text)
        texts[name] = source.replace(old, new)
    answers = asked(PARSER, [{"world_size": 8, "text": text} for text in texts.values()])
    return dict(zip(texts, zip(texts.values(), answers, strict=True), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_both(broken, name):
    """The Trainer refuses a file that is broken, and so does what reads it here."""
    text, answer = broken[name]

    assert "refused" in answer
    if name != "unknown optimizer":  # one that is not priced is read as AdamW, and that is said
        with pytest.raises(autoplan.SpecError):
            TARGET.read(LaunchFile("training_args.json", text, devices=8))


def test_names_are_those_of_the_package():
    """The fields that a reader knows are those of TrainingArguments."""
    assert asked(PARSER, [None]) == [sorted(key_names("trainer"))]
