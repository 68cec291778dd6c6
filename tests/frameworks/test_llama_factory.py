"""What is emitted for LLaMA-Factory, accepted by its own argument classes and read back from them.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with transformers and peft, by default this one, and
AUTOPLAN_FRAMEWORK_WHEELS a folder with LLaMA-Factory's wheel; skipped where one of them is missing.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.hugging_face.llama_factory import TARGET
from autoplan.launch.frameworks.hugging_face.training_fields import OPTIM, key_names
from autoplan.launch.target import PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.post_training import RLSpec
from tests.frameworks.framework_python import asked, has_module, wheel

PARSER = Path(__file__).with_name("llama_factory_parser.py")
WHEEL = wheel("llamafactory")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not (WHEEL and has_module("peft")), reason="LLaMA-Factory's wheel is not there"),
]

ATTENTION = AdapterSpec(rank=4, targets="attention")
#: Stack, layout and changes of the job, of different shapes.
ACCEPTED = {
    "one device": ("hf-trainer", "dp=1", {}),
    "replicas": ("hf-trainer", "dp=8,mbs=2,recompute=full", {"precision": "fp16"}),
    "low-rank adapters": ("hf-trainer", "dp=8,recompute=full", {"adapters": AdapterSpec(rank=16)}),
    "adapters of attention": (
        "hf-fsdp2",
        "dp=8,zero=3",
        {"adapters": AdapterSpec(rank=4, targets="attention")},
    ),
    "pairs without a reference": ("hf-trainer", "dp=8,recompute=full", {"rl": RLSpec(method="orpo")}),
    "pairs on adapters": (
        "hf-fsdp2",
        "dp=8,zero=3",
        {"adapters": AdapterSpec(rank=16), "rl": RLSpec(method="dpo", beta=0.2)},
    ),
    "sharded parameters": ("hf-fsdp2", "dp=8,mbs=4,zero=3,recompute=full", {}),
    "sharded gradients": ("hf-fsdp2", "dp=8,zero=2", {"optimizer": "sgd"}),
    "DeepSpeed": ("deepspeed", "dp=8,zero=2,offload=optimizer", {}),
    "DeepSpeed ZeRO-3": ("deepspeed", "dp=8,zero=3,recompute=full", {}),
    "1,024 devices": ("hf-fsdp2", "dp=1024,zero=3", {}),
}
#: Changes that make an accepted file wrong.
BROKEN = {
    "misspelt key": ("per_device_train_batch_size", "per_device_train_batchsize"),
    "misspelt length": ("cutoff_len", "cutof_len"),
    "two precisions": ("fp16: false", "fp16: true"),
    "unknown kind of training": ("finetuning_type: full", "finetuning_type: fully"),
    "strategy that is none": ("full_shard auto_wrap", "full_shrad auto_wrap"),
    "resharding that is no truth value": ("reshard_after_forward: true", "reshard_after_forward: some"),
    "misspelt sharding": ("fsdp_config:", "fsdp_confg:"),
    "misspelt recompute": ("disable_gradient_checkpointing", "disable_gradient_checkpoint"),
    "no mapping": ("finetuning_type:", "- finetuning_type:"),
    "key given twice": ("bf16: true", "bf16: true\nbf16: {}"),
}


def emitted(stack, text, changes):
    """Return a job, a layout of it, and the case of what is emitted."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    workload = Workload(sequence_length=8192, global_batch_size=1024)
    job = replace(job, stack=load_entry("stack", stack), workload=workload, **changes)
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    return job, layout, {"text": TARGET.emit(PlannedRun(job, layout)).files[0].text}


@pytest.fixture(scope="module")
def accepted():
    """Return what LLaMA-Factory says of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    answers = asked(PARSER, [case for _, _, case in cases.values()], WHEEL)
    return dict(zip(cases, zip(cases.values(), answers, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_llama_factory_accepts_and_its_arguments_have_the_layout(accepted, name):
    """Batches, precision, optimizer, recompute, sharding and adapters are those of the plan."""
    (job, layout, _), answer = accepted[name]
    assert "accepted" in answer, answer
    found = answer["accepted"]

    assert (found["mbs"], found["steps"]) == (layout.microbatch, 1024 // (layout.dp * layout.microbatch))
    assert found["sequence_length"] == 8192
    assert found["formats"] == [job.precision == "bf16", job.precision == "fp16", False]
    assert found["recompute"] == (layout.mode == "full")
    if job.rl is not None:
        assert found["learns"][:2] == ["dpo", {"dpo": "sigmoid"}.get(job.rl.method, job.rl.method)]
    if job.adapters is None:
        assert found["adapters"][0] == "full"
    else:
        assert found["adapters"][:2] == ["lora", job.adapters.rank]
        assert (found["adapters"][2] == ["all"]) == (job.adapters.targets == "all")
    if found["fsdp"]:
        assert (found["fsdp"], found["reentrant"]) == ([2, layout.zero == 3], False)
    if found["stage"] is not None:
        assert found["stage"] == layout.zero
    else:
        assert found["optim"] == OPTIM[job.optimizer]
    assert bool(found["fsdp"] or found["stage"]) == (layout.zero > 0)


@pytest.fixture(scope="module")
def broken():
    """Return every broken file, and what LLaMA-Factory says of it."""
    _, _, case = emitted("hf-fsdp2", "dp=8,zero=3,recompute=full", {})
    assert all(old in case["text"] for old, _ in BROKEN.values())
    texts = [case["text"].replace(old, new) for old, new in BROKEN.values()]
    answers = asked(PARSER, [{"text": text} for text in texts], WHEEL)
    return dict(zip(BROKEN, zip(texts, answers, strict=True), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_both(broken, name):
    """The framework refuses a file that is broken, and so does what reads it here."""
    text, answer = broken[name]

    assert "refused" in answer
    with pytest.raises(autoplan.SpecError):
        TARGET.read(LaunchFile("llama_factory.yaml", text, devices=8))


def test_names_are_those_of_the_package():
    """The keys that a reader knows are those of the argument classes."""
    assert set(asked(PARSER, [None], WHEEL)[0]) == key_names("llama-factory") | key_names("trainer")
