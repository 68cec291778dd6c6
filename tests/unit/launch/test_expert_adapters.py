"""Adapters of stacked experts and axolotl's fused functions: written for who has them, and read."""

from dataclasses import replace

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.costs.memory.activations import mlp_in_place
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.registry import find_target
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.layout import parse_layout

EXPERTS = "--model qwen3-30b-a3b --hardware 1x-h200-sxm-141gb --task lora --experts true"
STACKS = {"axolotl": "hf-trainer", "trainer": "hf-trainer", "unsloth": "unsloth"}
#: A file of axolotl, to which lines are added.
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 4
bf16: true
optimizer: adamw_torch_fused
"""


def emission_of(target, **changes):
    """Return what ``target`` writes for a LoRA of Qwen3-30B-A3B's attention and experts."""
    job = replace(autoplan.load_job(EXPERTS), stack=load_entry("stack", STACKS.get(target, "hf-trainer")))
    layout = parse_layout("dp=1,mbs=2,recompute=full", layers=job.model.layers, devices=1)
    return find_target(target).emit(PlannedRun(replace(job, **changes), layout))


@pytest.mark.parametrize("target", sorted(STACKS))
def test_adapters_of_experts_are_written_and_read(target):
    """PEFT names the parameters; to Unsloth modules of the MLP are those of experts."""
    file = emission_of(target).files[0]
    read = find_target(target).read(LaunchFile(file.name, file.text, devices=1))

    value = read.values["adapters"].value
    assert value["experts"] is True
    assert value["rank"] == 16
    assert value["targets"] == ("all" if target == "unsloth" else "attention")
    assert ("experts.gate_up_proj" in file.text) == (target != "unsloth")


def test_a_program_without_adapters_of_experts_refuses_them():
    """LLaMA-Factory has no key for PEFT's target_parameters, and its way says so before."""
    with pytest.raises(InexpressibleError, match="adapters of stacked experts"):
        emission_of("llama-factory")
    with pytest.raises(autoplan.AutoplanError, match="no adapters of stacked experts"):
        autoplan.load_job(f"{EXPERTS} --program llama-factory")


@pytest.mark.parametrize(
    ("more", "fused"),
    [
        ("", None),
        ("lora_mlp_kernel: false\n", False),
        ("lora_mlp_kernel: true\n", True),
        ("lora_qkv_kernel: true\n", False),
        ("trust_remote_code: true\n", False),
    ],
)
def test_what_a_file_of_axolotl_says_of_its_functions_is_read(more, fused):
    """One key leaves the others off; what the file does not say is the program's default."""
    read = find_target("axolotl").read(LaunchFile("config.yaml", AXOLOTL + more, devices=1))

    said = read.values["software"].value if "software" in read.values else {}
    assert said.get("fused_adapters") is fused


@pytest.mark.parametrize(
    ("more", "fused"),
    [("", True), ("--base int8", False), ("--rl dpo", False), ("--targets attention", False)],
)
def test_axolotl_fuses_adapters_by_default(more, fused):
    """Not with a base in 8 bits, nor for preferences and rewards; there is nothing to fuse in attention."""
    task = "qlora" if "base" in more else "lora"
    job = autoplan.load_job(
        f"--model llama3.1-8b --hardware 1x-a100-sxm4-80gb --program axolotl --task {task} {more}".strip()
    )

    assert {mlp_in_place(choice) for choice in job.choices or (job,)} == {fused}


@pytest.mark.parametrize("base", [None, "nf4"])
def test_unsloth_loads_a_checkpoint_in_4_bits_of_its_own(base):
    """That of gpt-oss is not dequantised then; the Trainer makes no nf4 of one in mxfp4."""
    adapters = AdapterSpec(rank=16, targets="attention", base=base)
    model = load_entry("model", "gpt-oss-20b")
    notes = {name: "\n".join(emission_of(name, model=model, adapters=adapters).notes) for name in STACKS}

    assert ("mxfp4" in notes["unsloth"]) == (base is None)
    assert ("load it dequantised" in notes["trainer"]) == (base is None)
    assert ("name one in bf16" in notes["trainer"]) == (base is not None)
