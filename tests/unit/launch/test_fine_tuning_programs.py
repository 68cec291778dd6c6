"""Programs of fine-tuning that are emitted: adapters, commands, names, refusals; and LitGPT read back."""

import ast
from dataclasses import replace
from itertools import pairwise

import pytest

import autoplan
from autoplan.catalog import entry_names, load_entry
from autoplan.errors import SpecError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks import litgpt, torchtune
from autoplan.launch.known_models import hub_name
from autoplan.launch.registry import find_target
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.layout import parse_layout
from tests.support.launch_shapes import command

PROGRAMS = ("torchtune", "unsloth", "litgpt")
#: Layouts that each program has, on one device and on eight.
ONE = {"torchtune": "dp=1,zero=0", "unsloth": "dp=1,zero=0", "litgpt": "dp=1,zero=0"}
EIGHT = {"torchtune": "dp=8,zero=3", "unsloth": "dp=8,zero=0", "litgpt": "dp=8,zero=3,recompute=full"}


def emitted(target, layout, *, devices=8, **changes):
    """Return what is emitted for Llama-3-8B under the stack of the target's name."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", target), **changes)
    parsed = parse_layout(layout, layers=job.model.layers, devices=devices)
    return find_target(target).emit(PlannedRun(job, parsed))


def adapters_in(target, emission):
    """Return rank, scale, dropout and whether the MLP has adapters, as the file says."""
    if target == "unsloth":
        body = ast.parse(emission.files[0].text).body
        tables = [x for x in body if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "ADAPTERS"]
        found = ast.literal_eval(tables[0].value)
        mlp = "gate_proj" in found["target_modules"]
        assert {"q_proj", "k_proj", "v_proj", "o_proj"} <= set(found["target_modules"])
        return found["r"], found["lora_alpha"], found["lora_dropout"], mlp
    words = command(emission.files[0].text)
    if target == "torchtune":
        keys = dict(word.split("=") for word in words if "=" in word)
        assert keys["model.lora_attn_modules"] == "[q_proj,k_proj,v_proj,output_proj]"
        values = [keys[f"model.{name}"] for name in ("lora_rank", "lora_alpha", "lora_dropout")]
        return int(values[0]), int(values[1]), float(values[2]), keys["model.apply_lora_to_mlp"] == "True"
    pairs = dict(pairwise(words))
    assert {pairs[f"--lora_{name}"] for name in ("query", "key", "value", "projection")} == {"true"}
    values = [pairs[f"--lora_{name}"] for name in ("r", "alpha", "dropout")]
    return int(values[0]), int(values[1]), float(values[2]), pairs["--lora_mlp"] == "true"


@pytest.mark.parametrize("target", PROGRAMS)
@pytest.mark.parametrize("targets", ["all", "attention"])
@pytest.mark.parametrize("layouts", [ONE, EIGHT], ids=["one", "eight"])
def test_adapters_are_written(target, targets, layouts):
    """Rank and products are those of the job, and there is no dropout, since none is priced."""
    emission = emitted(
        target,
        layouts[target],
        devices=1 if layouts is ONE else 8,
        adapters=AdapterSpec(rank=24, targets=targets),
    )

    assert adapters_in(target, emission) == (24, 48, 0.0, targets == "all")
    assert any(note.startswith("start it with: ") for note in emission.notes)


@pytest.mark.parametrize(
    ("target", "layout", "adapters", "begins"),
    [
        ("torchtune", "dp=8,zero=2", False, "tune run --nproc_per_node 8 full_finetune_distributed"),
        ("torchtune", "dp=1,zero=0", False, "tune run full_finetune_single_device --config llama3/8B_full"),
        ("torchtune", "dp=8,zero=3", True, "tune run --nproc_per_node 8 lora_finetune_distributed"),
        ("torchtune", "dp=1,zero=0", True, "tune run lora_finetune_single_device --config llama3/8B_lora"),
        ("torchtune", "dp=16,zero=3", False, "tune run --nnodes 2 --rdzv_id autoplan --rdzv_backend c10d"),
        ("litgpt", "dp=8,zero=3", False, "litgpt pretrain meta-llama/Meta-Llama-3-8B"),
        ("litgpt", "dp=8,zero=3,recompute=full", False, "litgpt finetune_full meta-llama/Meta-Llama-3-8B"),
        ("litgpt", "dp=8,zero=3,recompute=full", True, "litgpt finetune_lora meta-llama/Meta-Llama-3-8B"),
        ("litgpt", "dp=16,zero=3,dp_shard=8", False, "litgpt pretrain meta-llama/Meta-Llama-3-8B"),
    ],
)
def test_a_plan_chooses_the_command(target, layout, adapters, begins):
    """Recipe or command follow from the devices, the adapters and what is recomputed."""
    devices = int(layout.split(",")[0].removeprefix("dp="))
    changes = {"adapters": AdapterSpec(rank=8)} if adapters else {}
    words = command(emitted(target, layout, devices=devices, **changes).files[0].text)

    assert " ".join(words).startswith(begins)


@pytest.mark.parametrize(
    ("target", "layout", "changes", "part", "nearest"),
    [
        ("torchtune", "dp=8,zero=0", {}, "ZeRO-0 with FSDP2", "dp=8,zero=2"),
        ("torchtune", "tp=2,dp=4,zero=3", {}, "tensor and context", "dp=8,zero=3"),
        ("torchtune", "dp=8,zero=3", {"precision": "fp16"}, "precision fp16", None),
        ("torchtune", "dp=8,zero=3", {"model": load_entry("model", "qwen3-8b")}, "no full config", None),
        ("torchtune", "dp=8,zero=3", {"model": load_entry("model", "llama2-70b")}, "no full config", None),
        ("torchtune", "dp=8,zero=3", {"software": SoftwareSpec(loss="whole")}, "all tokens at once", None),
        ("unsloth", "dp=8,zero=3", {}, "ZeRO-3", "dp=8,zero=0"),
        ("litgpt", "dp=8,zero=2", {}, "ZeRO-2 on 8 devices", "dp=8,zero=3"),
        ("litgpt", "dp=8,zero=3", {"adapters": AdapterSpec(rank=8)}, "recompute=none", None),
        ("litgpt", "dp=8,zero=3,recompute=full:4", {}, "of each block", "dp=8,zero=3"),
        ("litgpt", "dp=8,zero=3", {"model": load_entry("model", "gpt2")}, "litgpt/config.py", None),
        ("litgpt", "dp=8,zero=3", {"software": SoftwareSpec(compile=False)}, "pretrain always", None),
    ],
)
def test_what_a_program_lacks_is_named(target, layout, changes, part, nearest):
    """A refusal has the part, and layouts without it where one helps."""
    with pytest.raises(InexpressibleError) as caught:
        emitted(target, layout, **changes)

    assert part in caught.value.part
    if nearest is not None:
        assert parse_layout(nearest, layers=32, devices=8) in caught.value.nearest


@pytest.mark.parametrize("target", PROGRAMS)
def test_a_choice_of_adapters_is_written_or_refused(target):
    """A field of ``adapters`` that a target does not know is refused where a job sets it, never dropped."""
    layout = "dp=8,zero=0" if target == "unsloth" else "dp=8,zero=3,recompute=full"
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", target))
    parsed = parse_layout(layout, layers=32, devices=8)

    find_target(target).emit(PlannedRun(replace(job, adapters=AdapterSpec(rank=8)), parsed))
    with pytest.raises(InexpressibleError, match=r"int8|quantised base"):
        find_target(target).emit(PlannedRun(replace(job, adapters=AdapterSpec(rank=8, base="int8")), parsed))


@pytest.mark.parametrize(
    ("target", "changes", "words"),
    [
        (
            "torchtune",
            {"adapters": AdapterSpec(rank=8, base="nf4", dora=True), "optimizer": "paged-adamw-8bit"},
            (
                "model.quantize_base=True",
                "model.use_dora=True",
                "optimizer=bitsandbytes.optim.PagedAdamW8bit",
            ),
        ),
        (
            "torchtune",
            {"software": SoftwareSpec(optimizer_in_backward=True), "optimizer": "paged-adamw"},
            ("optimizer_in_bwd=True", "clip_grad_norm=null", "~optimizer.fused"),
        ),
        (
            "litgpt",
            {
                "adapters": AdapterSpec(rank=8, base="nf4", dropout=0.1),
                "optimizer": "paged-adamw",
                "software": SoftwareSpec(pure_bf16=True),
            },
            ("--quantize bnb.nf4-dq", "--precision bf16-true", "--lora_dropout 0.1"),
        ),
        (
            "unsloth",
            {"adapters": AdapterSpec(rank=8, base="nf4", targets=("q_proj",))},
            ('"load_in_4bit": True', "\"target_modules\": ['q_proj']"),
        ),
    ],
)
def test_a_fine_tune_on_one_card_is_written(target, changes, words):
    """QLoRA, DoRA, paged states and updates in backward are keys of the program that has them."""
    text = emitted(target, "dp=1,zero=0", devices=1, **changes).files[0].text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("name", "adapters", "begins"),
    [
        ("unsloth/Llama-3.1-8B", True, "litgpt finetune_lora unsloth/Llama-3.1-8B"),
        ("unsloth/Llama-3.1-8B", False, "litgpt finetune_full unsloth/Llama-3.1-8B"),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            True,
            "litgpt finetune_lora meta-llama/Meta-Llama-3.1-8B-",
        ),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", True, "litgpt finetune_lora deepseek-ai/DeepSeek-R1-"),
        ("Qwen/Qwen2.5-Coder-14B-Instruct", True, "litgpt finetune_lora Qwen/Qwen2.5-Coder-14B-Instruct"),
    ],
)
def test_another_publishers_copy_is_fetched_by_the_name_of_its_architecture(name, adapters, begins):
    """LitGPT's own download has the checkpoint made before the command starts from it."""
    line = f"--model {name} --hardware 2x-h100-pcie --task {'lora' if adapters else 'train'} --program litgpt"
    job = autoplan.load_job(line)
    layout = parse_layout("dp=2,zero=3,recompute=full", layers=job.model.layers, devices=2)
    text = find_target("litgpt").emit(PlannedRun(job, layout)).files[0].text
    fetched = [line for line in text.splitlines() if "litgpt download" in line]

    assert " ".join(command(text)).startswith(begins)
    listed = {"Qwen/Qwen2.5-Coder-14B-Instruct": "Qwen2.5-14B"}.get(name, "Meta-Llama-3.1-8B")
    folder = f"[ -f checkpoints/{name}/lit_model.pth ]"
    copied = not name.startswith("meta-llama")
    assert fetched == [f"{folder} || litgpt download {name} --model_name {listed}"] * copied


def test_models_of_the_tables_are_in_the_catalogue():
    """Each name that a program is said to know is the hub's name of an entry, so that a job can have it."""
    names = {hub_name(load_entry("model", name)) for name in entry_names("model")}

    assert set(interface("torchtune").data["configs"]) <= names
    table = interface("litgpt").data
    assert {*table["listed"], *table["renamed"]} <= names


LITGPT = """checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3-8B
out_dir: out
precision: bf16-true
devices: {devices}
{more}train:
  global_batch_size: 64
  micro_batch_size: 4
  max_seq_length: 512
"""


@pytest.mark.parametrize(
    ("devices", "more", "layout", "optimizer"),
    [
        (4, "", {"dp": 4, "zero": 3, "recompute": "full"}, "adamw"),
        (1, "lora_r: 16\nquantize: bnb.nf4\n", {"dp": 1, "zero": 0, "recompute": "none"}, "paged-adamw"),
        (8, "model_name: Llama-3.2-1B\nnum_nodes: 2\n", {"dp": 16, "zero": 3, "dp_shard": 8}, "adamw"),
    ],
    ids=["full", "adapters", "pre-training"],
)
def test_files_of_litgpt_are_read(tmp_path, devices, more, layout, optimizer):
    """Keys choose the command, and the command and the devices what is sharded and recomputed."""
    file = tmp_path / "config.yaml"
    file.write_text(LITGPT.format(devices=devices, more=more))
    found = autoplan.read(file)

    assert found.framework == "litgpt"
    assert {key: found.layout_fields[key] for key in layout} == layout
    assert found.job["optimizer"] == optimizer
    assert found.job["software"] == {"pure_bf16": True}
    assert found.job.get("adapters", {}).get("base") == ("nf4" if "nf4" in more else None)


def test_devices_that_litgpt_counts_itself_are_open(tmp_path):
    """So is what follows from their number."""
    file = tmp_path / "config.yaml"
    file.write_text(LITGPT.format(devices="auto", more=""))

    assert {"devices", "zero", "recompute"} <= set(autoplan.read(file).unspecified)


@pytest.mark.parametrize("layout", ["dp=8,zero=3", "dp=8,zero=3,recompute=full", "dp=16,zero=3,dp_shard=8"])
def test_a_command_of_litgpt_is_read_back(layout):
    """What is emitted has the layout that is read."""
    devices = 16 if "16" in layout else 8
    emission = emitted("litgpt", layout, devices=devices)
    found = find_target("litgpt").read(LaunchFile("litgpt.sh", emission.files[0].text))

    assert found.layout == parse_layout(f"{layout},mbs={found.layout.microbatch}", layers=32, devices=devices)
    assert found.job["model"] == "llama3-8b"


def test_a_precision_that_litgpt_has_not_is_refused(tmp_path):
    """The message lists those that it has."""
    file = tmp_path / "config.yaml"
    file.write_text(LITGPT.format(devices=1, more="").replace("bf16-true", "bf61-true"))

    with pytest.raises(SpecError, match=r"config\.yaml:3: precision: 'bf61-true' is none of bf16-mixed"):
        autoplan.read(file)


@pytest.mark.parametrize("name", ["litgpt", "torchtune"])
@pytest.mark.parametrize("adapters", [None, AdapterSpec(rank=8)], ids=["full", "adapters"])
def test_a_program_lists_the_models_that_its_target_writes(name, adapters):
    """A model without a recipe is refused before it is planned; programs that can run it are named."""
    written = litgpt._model if name == "litgpt" else torchtune._config
    base = replace(autoplan.load_job("llama3-8b-8x-a100"), adapters=adapters)
    models = []
    for model in entry_names("model"):
        try:
            written(replace(base, model=load_entry("model", model)))
        except InexpressibleError:
            continue
        models.append(model)

    assert list(load_entry("program", name).models["full" if adapters is None else "adapters"]) == models


def test_a_model_without_a_recipe_is_refused_with_programs_that_have_one():
    """Of torchtune's ways it is one of the job's task that says what it lacks."""
    with pytest.raises(
        autoplan.AutoplanError, match=r"no recipe of phi4 \(axolotl, trainer, unsloth can run it\)"
    ):
        autoplan.load_job("--model phi4 --hardware 1x-a6000 --task lora --program torchtune")
