"""What is emitted for axolotl, accepted by its own schema and read back from it.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with transformers, by default this one, and
AUTOPLAN_FRAMEWORK_WHEELS a folder with axolotl's wheel; skipped where one of them is missing.
"""

import ast
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import autoplan
from autoplan.catalog import load_entry
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.hugging_face.axolotl import TARGET
from autoplan.launch.frameworks.hugging_face.training_fields import key_names
from autoplan.launch.frameworks.missing_parts import mesh_sizes
from autoplan.launch.target import PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.post_training import RLSpec
from tests.frameworks.framework_python import asked, has_module, wheel

PARSER = Path(__file__).with_name("axolotl_parser.py")
WHEEL = wheel("axolotl")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not (WHEEL and has_module("transformers")), reason="axolotl's wheel is not there"),
]

#: Stack, layout and changes of the job, of different shapes.
ACCEPTED = {
    "one device": ("hf-trainer", "dp=1", {}),
    "replicas": ("hf-trainer", "dp=8,mbs=2,recompute=full", {"precision": "fp16"}),
    "replicas with Liger": ("hf-trainer-liger", "dp=8", {}),
    "low-rank adapters": ("hf-trainer", "dp=8,recompute=full", {"adapters": AdapterSpec(rank=16)}),
    "pairs of preferences": ("hf-trainer", "dp=8,recompute=full", {"rl": RLSpec(method="dpo")}),
    "rollouts on the devices": (
        "hf-fsdp2",
        "dp=8,zero=3",
        {"rl": RLSpec(method="grpo", vllm_mode="colocate", beta=0.04)},
    ),
    "sharded parameters": ("hf-fsdp2", "dp=8,mbs=4,zero=3,recompute=full", {}),
    "sharded gradients": ("hf-fsdp2", "dp=8,zero=2", {"optimizer": "muon"}),
    "hybrid": ("fsdp2", "dp=8,zero=3,dp_shard=4", {}),
    "tensor and context": ("fsdp2", "tp=2,cp=2,dp=4,sp=off,zero=3", {}),
    "hybrid with context": ("fsdp2", "cp=2,dp=8,zero=2,dp_shard=4", {}),
    "inputs in host memory": ("hf-fsdp2", "dp=8,zero=3,recompute=full,offload=activations", {}),
    "8-bit states": ("hf-fsdp2", "dp=8,zero=3", {"optimizer": "adamw-8bit"}),
    "DeepSpeed": ("deepspeed", "dp=8,zero=2,offload=optimizer", {}),
    "1,024 devices": ("hf-fsdp2", "dp=1024,zero=3,dp_shard=8", {}),
}
#: Changes that make an accepted file wrong.
BROKEN = {
    "degrees beyond the devices": ("dp_shard_size: 4", "dp_shard_size: 16"),
    "degree that is no number": ("tensor_parallel_size: 1", "tensor_parallel_size: one"),
    "sharding without FSDP": ("fsdp_config:", "fsdp_settings:"),
    "resharding that is no truth value": ("reshard_after_forward: true", "reshard_after_forward: sometimes"),
    "microbatch that is no number": ("micro_batch_size: 1", "micro_batch_size: one"),
    "unknown recompute": ("gradient_checkpointing: true", "gradient_checkpointing: every"),
    "version that is no number": ("fsdp_version: 2", "fsdp_version: two"),
    "sequence that is no number": ("sequence_len: 8192", "sequence_len: long"),
    "both kinds of sharding": ("fsdp_version: 2", "fsdp_version: 2\nfsdp: [full_shard]\ndeepspeed: ds.json"),
    "offload without recompute": ("gradient_checkpointing: true", "gradient_checkpointing: false"),
}


def emitted(stack, text, changes):
    """Return a job, a layout of it, and the case of what is emitted."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    workload = Workload(sequence_length=8192, global_batch_size=1024)
    job = replace(job, stack=load_entry("stack", stack), workload=workload, **changes)
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    emission = TARGET.emit(PlannedRun(job, layout))
    return job, layout, {"world_size": layout.devices, "text": emission.files[0].text}


@pytest.fixture(scope="module")
def accepted():
    """Return what axolotl says of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    answers = asked(PARSER, [case for _, _, case in cases.values()], WHEEL)
    return dict(zip(cases, zip(cases.values(), answers, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_axolotl_accepts_and_its_configuration_has_the_layout(accepted, name):
    """Batches, precision, recompute, sharding and the degrees of its mesh are those of the plan."""
    (job, layout, case), answer = accepted[name]
    assert "accepted" in answer, answer
    found = answer["accepted"]

    assert (found["mbs"], found["steps"]) == (layout.microbatch, 1024 // (layout.dp * layout.microbatch))
    assert (found["sequence_length"], found["model"]) == (8192, "meta-llama/Meta-Llama-3-8B")
    assert found["formats"] == [job.precision == "bf16", job.precision == "fp16"]
    assert found["recompute"] == (layout.mode == "full")
    assert bool(found["offload"]) == layout.activation_offload
    assert found["method"] == (job.rl.method if job.rl else None)
    assert found["adapters"][1] == (job.adapters.rank if job.adapters else None)
    if found["fsdp"]:
        assert found["fsdp"] == [2, layout.zero == 3]
        replicate, shard = mesh_sizes(layout)
        named = {"dp_replicate_size": replicate, "dp_shard_size": shard}
        sizes = {**named, "tp_size": layout.tp, "cp_size": layout.cp}
        assert found["sizes"] == {key: size for key, size in sizes.items() if size > 1}
    if found["deepspeed"]:
        assert found["deepspeed"]["zero_optimization"]["stage"] == layout.zero
    assert bool(found["fsdp"] or found["deepspeed"]) == (layout.zero > 0)
    assert set(yaml.safe_load(case["text"])) <= key_names("axolotl") | {
        *("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy")
    }


@pytest.fixture(scope="module")
def broken():
    """Return every broken file, and what axolotl says of it."""
    _, _, case = emitted("fsdp2", "dp=8,zero=3,dp_shard=4,recompute=full,offload=activations", {})
    assert all(old in case["text"] for old, _ in BROKEN.values())
    texts = [case["text"].replace(old, new) for old, new in BROKEN.values()]
    answers = asked(PARSER, [{**case, "text": text} for text in texts], WHEEL)
    return dict(zip(BROKEN, zip(texts, answers, strict=True), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_both(broken, name):
    """The framework refuses a file that is broken, and so does what reads it here."""
    text, answer = broken[name]

    assert "refused" in answer
    with pytest.raises(autoplan.SpecError):
        TARGET.read(LaunchFile("axolotl.yaml", text, devices=8))


def test_names_of_plugins_are_those_of_the_wheel():
    """The keys of plugins that a reader knows are the fields of their classes in the wheel."""
    found = set()
    with zipfile.ZipFile(WHEEL) as archive:
        for name in archive.namelist():
            if name.startswith("axolotl/integrations/") and name.endswith(("args.py", "config.py")):
                found |= set(fields_in(ast.parse(archive.read(name))))

    assert found - key_names("axolotl") == key_names("axolotl.plugins")


def fields_in(tree):
    """Yield the public fields of the classes of arguments in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Args", "Config")):
            names = (item.target.id for item in node.body if isinstance(item, ast.AnnAssign))
            yield from (name for name in names if not name.startswith("_") and name != "model_config")


def test_names_are_those_of_the_package():
    """The keys that a reader knows are those of the schema."""
    keys, inner = asked(PARSER, [None], WHEEL)[0]
    assert set(keys) == key_names("axolotl")
    assert set(inner) == key_names("axolotl.fsdp_config")
