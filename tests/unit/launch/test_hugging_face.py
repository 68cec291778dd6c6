"""The Hugging Face Trainer, axolotl and LLaMA-Factory: what is refused, and what files of each kind say."""

import json
import shlex
from dataclasses import replace

import pytest
import yaml

import autoplan
from autoplan.catalog import load_entry, load_job
from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.recognition import recognised
from autoplan.launch.registry import find_target
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.post_training import RLSpec

AXOLOTL = """base_model: mistralai/Mistral-7B-v0.1
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: auto
{}
"""
FSDP2 = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true"
MEGATRON = """tensor_model_parallel_size: 2
pipeline_model_parallel_size: 2
sequence_parallel: true
use_distributed_optimizer: true
recompute_granularity: selective"""
FACTORY = """### model
model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
do_train: true
finetuning_type: {}
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
{}
"""
SCRIPT = """GPUS=8
torchrun --nproc_per_node=$GPUS run_clm.py --model_name_or_path mistralai/Mistral-7B-v0.1 --bf16 \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps=2 --block_size 2048 {}
"""


def read(target, text, **more):
    """Return what a file of a target says."""
    return find_target(target).read(LaunchFile("file", text, **more))


def trainer(**fields):
    """Return a JSON file of TrainingArguments."""
    return json.dumps({"per_device_train_batch_size": 2, "bf16": True, **fields}, indent=1)


@pytest.mark.parametrize(
    ("text", "layout", "batch"),
    [
        (trainer(), "dp=8,mbs=2,zero=0", 16),
        (
            trainer(gradient_checkpointing=True, fsdp="full_shard auto_wrap"),
            "mbs=2,zero=3,recompute=full",
            16,
        ),
        (trainer(fsdp=True, fsdp_config={"reshard_after_forward": False}), "dp=8,mbs=2,zero=2", 16),
        (
            trainer(fsdp=["shard_grad_op", "offload"], gradient_accumulation_steps=4),
            "mbs=2,zero=2",
            64,
        ),
        (
            trainer(deepspeed={"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}),
            "mbs=2,zero=3,offload=optimizer",
            16,
        ),
        (
            trainer(activation_checkpointing=True, activation_checkpointing_kwargs={"offload": True}),
            "mbs=2,zero=0,recompute=full,offload=activations",
            16,
        ),
    ],
)
def test_training_arguments_are_read(text, layout, batch):
    """Sharding of every kind and version, recompute and batches are the layout that they stand for."""
    found = read("trainer", text, devices=8)

    assert parse_layout(found.layout_string, layers=32, devices=8) == parse_layout(
        layout, layers=32, devices=8
    )
    assert found.job["workload"]["global_batch_size"] == batch
    assert found.job["precision"] == "bf16"
    assert recognised(LaunchFile("args.json", text)).name == "trainer"


def test_arguments_in_a_script_are_read():
    """A script's arguments, its launcher's devices, and mappings in JSON are read as the file is."""
    text = SCRIPT.format("--learning_rate $LR --fsdp --fsdp_config '{\"reshard_after_forward\": false}'")
    found = read("trainer", text)

    assert found.layout == parse_layout("dp=8,mbs=4,zero=2", layers=32, devices=8)
    assert found.job["workload"] == {"sequence_length": 2048, "global_batch_size": 64}
    assert found.job["model"] == "mistral-7b"
    assert recognised(LaunchFile("run.sh", text)).name == "trainer"


@pytest.mark.parametrize(
    ("more", "layout"),
    [
        ("", "dp=8,mbs=2,zero=0"),
        ("gradient_checkpointing: true\ndeepspeed: configs/zero2.json", "mbs=2,zero=2,recompute=full"),
        ("deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json", "mbs=2,zero=3,offload=optimizer"),
        ("deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_params.json", "mbs=2,zero=3"),
        ("deepspeed:\nfsdp_config:\n  fsdp_reshard_after_forward: false\nfsdp_version: 2", "mbs=2,zero=2"),
        ("fsdp: [full_shard]\nfsdp_config: {fsdp_offload_params: true}", "mbs=2,zero=3"),
        (
            f"{FSDP2}\ndp_shard_size: 2\ndp_replicate_size: 2\ntensor_parallel_size: 2",
            "tp=2,sp=off,dp=4,mbs=2,zero=3,dp_shard=2",
        ),
        ("fsdp_config:\n  offload_params: false\nsequence_parallel_degree: 2", "cp=2,dp=4,mbs=2,zero=3"),
        ("fsdp: [auto_wrap]\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}", "mbs=2,zero=2"),
        ("gradient_checkpointing: offload", "mbs=2,zero=0,recompute=full,offload=activations"),
    ],
)  # fmt: skip
def test_files_of_axolotl_are_read(more, layout):
    """FSDP of both versions, DeepSpeed's shipped files, degrees and recompute are the layout."""
    text = AXOLOTL.format(more)
    found = read("axolotl", text, devices=8)

    assert found.layout == parse_layout(layout, layers=32, devices=8)
    assert (found.job["model"], found.job["precision"]) == ("mistral-7b", "bf16")
    assert found.job.get("software", {}).get("offload_parameters", False) == (
        "offload_params: true" in more or "cpuoffload" in more
    )
    assert found.job["workload"]["global_batch_size"] == 2 * 4 * found.layout.dp
    assert recognised(LaunchFile("config.yml", text)).name == "axolotl"


@pytest.mark.parametrize(
    ("kind", "more", "layout"),
    [
        ("full", "", "mbs=1,zero=0,recompute=full"),
        ("full", "deepspeed: examples/deepspeed/ds_z3_config.json", "mbs=1,zero=3,recompute=full"),
        (
            "full",
            "deepspeed: examples/deepspeed/ds_z2_offload_config.json\ndisable_gradient_checkpointing: true",
            "mbs=1,zero=2,offload=optimizer",
        ),
        ("lora", "lora_rank: 16\nlora_target: all", "mbs=1,zero=0,recompute=full"),
        ("full", "fsdp: full_shard auto_wrap\nfsdp_config: {version: 2}", "mbs=1,zero=3,recompute=full"),
        (
            "full",
            MEGATRON,
            "tp=2,pp=2,dp=2,mbs=1,zero=1,recompute=selective",
        ),
    ],
)
def test_files_of_llama_factory_are_read(kind, more, layout):
    """Shipped files of DeepSpeed, adapters, and what is recomputed by default are the layout."""
    text = FACTORY.format(kind, more)
    found = read("llama-factory", text, devices=8)

    assert found.layout == parse_layout(layout, layers=32, devices=8)
    assert found.job["model"] == "llama3-8b"
    assert found.job.get("adapters") == ({"rank": 16, "targets": "all"} if kind == "lora" else None)
    assert recognised(LaunchFile("sft.yaml", text)).name == "llama-factory"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("trainer", trainer(deepspeed="configs/zero3.json")),
        ("axolotl", AXOLOTL.format("deepspeed: own/zero.json")),
        ("llama-factory", FACTORY.format("full", "deepspeed: own.json")),
    ],
)
def test_a_file_of_ones_own_leaves_the_sharding_open(target, text):
    """Where another file has the sharding, that is said, and nothing is assumed."""
    found = read(target, text, devices=8)

    assert "zero" in found.unspecified
    assert any("read that file" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("target", "text", "line", "sentence"),
    [
        ("trainer", trainer(per_device_train_batchsize=1), 4, "did you mean per_device_train_batch_size?"),
        ("trainer", trainer(fp16=True), 4, "both true"),
        ("trainer", trainer(fsdp="full_shrad"), 4, "'full_shrad' is none of"),
        (
            "trainer",
            trainer(fsdp=True, deepspeed={"zero_optimization": {"stage": 1}}),
            5,
            "exclude each other",
        ),
        ("trainer", trainer(deepspeed={"zero_optimization": {"stages": 1}}), 6, "did you mean stage?"),
        ("trainer", SCRIPT.format("--optim $OPTIM"), 3, "give --set OPTIM=VALUE"),
        ("trainer", SCRIPT.format("--fsdp_config '{no'"), 3, "no JSON object"),
        ("axolotl", AXOLOTL.format("micro_batch_sise: 4"), 7, "did you mean micro_batch_size?"),
        ("axolotl", AXOLOTL.format("dp_shard_size: 2"), 7, "needs fsdp_config"),
        ("axolotl", AXOLOTL.format("gradient_checkpointing: some"), 7, "none of true, false"),
        ("axolotl", AXOLOTL.format("activation_offloading: true"), 7, "needs gradient_checkpointing"),
        ("axolotl", AXOLOTL.format("fsdp_config: {}\nfsdp: [full_shard]\ndeepspeed: a.json"), 9, "exclude"),
        ("axolotl", AXOLOTL.format("tensor_parallel_size: 3"), 7, "does not divide"),
        ("llama-factory", FACTORY.format("full", "cutof_len: 1"), 10, "did you mean cutoff_len?"),
        ("llama-factory", FACTORY.format("fully", ""), 5, "none of lora"),
        ("llama-factory", FACTORY.format("full", "tensor_model_parallel_size: 3"), 10, "does not divide"),
        ("llama-factory", FACTORY.format("full", "fp16: true"), 10, "both true"),
    ],
)
def test_what_contradicts_is_refused(target, text, line, sentence):
    """Contradictions and misspellings are errors with their line."""
    with pytest.raises(SpecError) as caught:
        read(target, text, devices=8)

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert (problem.file, problem.line) == ("file", line)


def _lora(base):
    """Return adapters above a quantised base."""
    return AdapterSpec(rank=8, base=base)


@pytest.mark.parametrize(
    ("target", "stack", "layout", "changes", "part"),
    [
        ("trainer", "hf-fsdp2", "dp=8,zero=1", {}, "ZeRO-1 with FSDP2"),
        ("trainer", "hf-fsdp2", "dp=1,zero=3", {}, "nothing to shard over"),
        ("trainer", "hf-trainer", "dp=8,recompute=full:4", {}, "of some layers"),
        ("trainer", "deepspeed", "dp=8,zero=3", {"adapters": _lora("int8")}, "base in int8"),
        (
            "trainer",
            "hf-fsdp2",
            "dp=8,zero=3",
            {"adapters": AdapterSpec(rank=8, base="int8")},
            "base in int8",
        ),
        ("trainer", "hf-trainer", "dp=8", {"optimizer": "muon"}, "optimizer muon"),
        ("trainer", "deepspeed", "dp=8,zero=3,dp_shard=4", {}, "hybrid sharding"),
        ("axolotl", "hf-trainer", "tp=2,dp=4,zero=0", {}, "tensor and context parallelism"),
        ("axolotl", "fsdp2", "tp=2,dp=4,zero=3", {}, "sequence parallelism"),
        ("axolotl", "hf-trainer", "dp=8", {"optimizer": "adam"}, "optimizer adam"),
        ("llama-factory", "hf-fsdp2", "dp=8,zero=3,recompute=full,offload=activations", {}, "offload of act"),
        ("llama-factory", "hf-trainer", "dp=8,offload=optimizer", {}, "offload without FSDP or DeepSpeed"),
        ("llama-factory", "hf-trainer", "pp=2,dp=4", {}, "pipeline stages"),
    ],
)
def test_what_has_no_key_is_refused(target, stack, layout, changes, part):
    """A part that a target has no key for is named, with a layout that lacks it."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", stack), **changes)
    run = PlannedRun(job, parse_layout(layout, layers=32, devices=8))

    with pytest.raises(InexpressibleError) as caught:
        find_target(target).emit(run)

    assert part in caught.value.part
    assert caught.value.nearest or changes


@pytest.mark.parametrize("target", ["axolotl", "llama-factory", "trainer"])
@pytest.mark.parametrize(
    "said",
    [
        {"targets": "all"},
        {"targets": "attention"},
        {"targets": ("q_proj", "v_proj"), "base": "nf4", "dropout": 0.05},
        {"targets": "all", "base": "fp4", "double_quantization": False},
        {"targets": "all", "base": "int8", "dora": True},
    ],
)
def test_adapters_are_emitted_and_read_back(target, said):
    """Adapters and their base are those of the job, as are pages; fused kernels are those of its stack."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    adapters = AdapterSpec(rank=32, **said)
    job = replace(job, stack=load_entry("stack", "hf-trainer-liger"), adapters=adapters)
    job = replace(job, optimizer="paged-adamw-8bit")
    layout = parse_layout("dp=8,recompute=full", layers=32, devices=8)
    text = find_target(target).emit(PlannedRun(job, layout)).files[0].text
    found = read(target, text, devices=8)

    again = AdapterSpec.model_validate_json(json.dumps(found.job["adapters"]))
    assert (again.modules, again.base, again.doubly_quantized) == (
        adapters.modules,
        adapters.base,
        adapters.doubly_quantized,
    )
    assert (again.rank, again.dora, again.dropout) == (32, adapters.dora, adapters.dropout)
    assert found.job["optimizer"] == "paged-adamw-8bit"
    assert found.job["software"] == {"loss": "chunked", "fused_kernels": True}
    assert found.layout == layout


#: Methods, and the targets that have keys for each.
METHODS = [
    ({"method": "dpo"}, ("axolotl", "llama-factory", "trainer")),
    ({"method": "dpo", "precompute_ref_log_probs": True, "beta": 0.2}, ("axolotl", "trainer")),
    ({"method": "kto"}, ("axolotl", "llama-factory", "trainer")),
    ({"method": "orpo"}, ("axolotl", "llama-factory")),
    ({"method": "simpo"}, ("axolotl", "llama-factory")),
    ({"method": "grpo", "beta": 0.04}, ("axolotl", "trainer")),
    ({"method": "grpo", "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.4}, ("axolotl", "trainer")),
    ({"method": "grpo", "vllm_mode": "server"}, ("axolotl", "trainer")),
    (
        {"method": "grpo", "vllm_mode": "colocate", "vllm_enable_sleep_mode": True},
        ("axolotl", "trainer"),
    ),
]


@pytest.mark.parametrize("target", ["axolotl", "llama-factory", "trainer"])
@pytest.mark.parametrize(("said", "targets"), METHODS)
@pytest.mark.parametrize("adapters", [None, AdapterSpec(rank=8)])
def test_methods_are_emitted_and_read_back(target, said, targets, adapters):
    """A file says the method, its reference and its rollouts; a target without a key for them says so."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "hf-fsdp2"))
    job = replace(job, rl=RLSpec(**said), adapters=adapters)
    run = PlannedRun(job, parse_layout("dp=8,zero=3,recompute=full", layers=32, devices=8))
    if target not in targets:
        with pytest.raises(InexpressibleError):
            find_target(target).emit(run)
        return
    found = read(target, find_target(target).emit(run).files[0].text, devices=8)

    assert RLSpec.model_validate(found.job["rl"]) == job.rl
    assert (found.layout, found.job.get("adapters", {}).get("rank")) == (run.layout, adapters and 8)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("trl dpo {}", "dpo"),
        ("accelerate launch examples/scripts/kto.py {}", "kto"),
        (
            "torchrun --nproc-per-node 2 src/open_r1/grpo.py {} --beta 0.1",
            "grpo",
        ),
        ("python run_sft.py {} --output_dir dpo", None),
        ("python train.py {} --loss_type ipo", "dpo"),
        ("python train.py {} --num_generations 8", "grpo"),
    ],
)
def test_the_program_of_a_script_is_its_method(text, method):
    """TRL's programs are called as their methods; another program's is told by keys that one alone has."""
    usual = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 true"
    found = read("trainer", text.format(usual), devices=2)

    assert found.job.get("rl", {}).get("method") == method


def test_what_may_be_several_methods_stays_open():
    """DPO, KTO and ORPO all weigh a divergence by beta: a file that says no more leaves the method open."""
    found = read("trainer", "per_device_train_batch_size: 2\nbeta: 0.1\nmax_length: 1024\n", devices=2)

    assert "rl" in found.unspecified
    assert any("beta" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("target", "keys"),
    [
        ("axolotl", {"sample_packing": True, "pad_to_sequence_len": True}),
        ("llama-factory", {"neat_packing": True}),
        ("trainer", {"packing": True, "attn_implementation": "flash_attention_2"}),
    ],
)
def test_packed_documents_are_emitted_and_noted_when_read(target, keys):
    """Packed documents attend to themselves alone; how long they are no file says, so that a reader does."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "hf-trainer"))
    job = replace(job, adapters=AdapterSpec(rank=8))
    packed = replace(job, workload=Workload(sequence_length=8192, global_batch_size=128, documents=(700,)))
    layout = parse_layout("dp=8,recompute=full", layers=32, devices=8)
    emit = find_target(target).emit
    plain, text = (emit(PlannedRun(one, layout)).files[0].text for one in (job, packed))

    assert keys.items() <= yaml.safe_load(text).items()
    assert not keys.keys() & yaml.safe_load(plain).keys() - {"attn_implementation"}
    assert any("workload.documents" in note for note in read(target, text, devices=8).warnings)
    with pytest.raises(InexpressibleError, match="documents packed"):
        emit(PlannedRun(replace(packed, rl=RLSpec(method="dpo")), layout))


def test_a_chunked_loss_of_axolotl_is_emitted_and_read_back():
    """Liger's plugin has that loss alone; other losses, and those of pairs, have no key."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "hf-fsdp2"))
    chunked = replace(job, software=SoftwareSpec(loss="chunked"))
    layout = parse_layout("dp=8,zero=3,recompute=full", layers=32, devices=8)
    emit = find_target("axolotl").emit
    found = read("axolotl", emit(PlannedRun(chunked, layout)).files[0].text, devices=8)

    assert (found.layout, found.job["software"]) == (layout, {"loss": "chunked"})
    fused = replace(job, software=SoftwareSpec(loss="fused"))
    for other in (fused, replace(chunked, rl=RLSpec(method="dpo"))):
        with pytest.raises(InexpressibleError, match="the loss"):
            emit(PlannedRun(other, layout))


def test_adapters_of_trl_are_read_from_a_command():
    """Targets that are several words of one argument, and TRL's own defaults, are those of the job."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "hf-fsdp2"))
    job = replace(job, adapters=AdapterSpec(rank=8, targets=("q_proj", "v_proj"), base="nf4"))
    layout = parse_layout("dp=8,zero=3", layers=32, devices=8)
    words = shlex.join(find_target("trainer").emit(PlannedRun(job, layout)).arguments)
    found = read("trainer", f"torchrun --nproc-per-node 8 -m trl.scripts.sft {words}")
    assert found.layout == layout
    assert found.job["adapters"]["targets"] == ["q_proj", "v_proj"]
    assert "--bnb_4bit_quant_storage bfloat16" in words

    short = "torchrun --nproc-per-node 8 -m trl.scripts.sft --use_peft --per_device_train_batch_size 1"
    defaults = read("trainer", f"{short} --bf16 true").job["adapters"]
    assert (defaults["rank"], defaults["targets"], defaults["dropout"]) == (16, ["q_proj", "v_proj"], 0.05)


@pytest.mark.parametrize("sharded", [True, False], ids=["config", "strategy"])
@pytest.mark.parametrize("new", ["dp=8,zero=2,mbs=2", "dp=8,zero=3,recompute=none", "dp=8,zero=0,mbs=2"])
def test_edits_of_a_script_make_the_other_layout(new, sharded):
    """A script in which the edited arguments were replaced has the layout that they are for."""
    arguments = [
        "--per_device_train_batch_size 1",
        "--gradient_accumulation_steps 4",
        "--bf16 True",
        "--gradient_checkpointing True",
        *(["--fsdp", """--fsdp_config '{"version":2,"reshard_after_forward":true}'"""] if sharded else []),
        *([] if sharded else ["--fsdp 'full_shard auto_wrap'"]),
    ]
    text = "\n".join(
        ["torchrun --nproc_per_node 8 train.py \\", *(f"  {a} \\" for a in arguments), "  --seed 1", ""]
    )
    job = replace(load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "hf-fsdp2"))
    job = replace(job, workload=Workload(sequence_length=8192, global_batch_size=32))
    old, layout = (parse_layout(words, layers=32, devices=8) for words in ("dp=8,zero=3,recompute=full", new))
    target = find_target("trainer")

    edits = target.edits(LaunchFile("train.sh", text), job, old, layout)
    for edit in sorted(edits, key=lambda edit: not edit.before):
        name = edit.before.split(" ")[0]
        line = next((a for a in arguments if edit.before and a.split(" ")[0] == name), "--seed 1")
        added = edit.after if edit.before else f"--seed 1 {edit.after}"
        text = text.replace(line, added)
    configuration = target.read(LaunchFile("train.sh", text))

    assert edits
    assert parse_layout(configuration.layout_string, layers=32, devices=8) == layout


def test_a_section_in_another_file_is_not_edited():
    """What an edit would change stands in that file."""
    text = "base_model: a/b\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\ndeepspeed: zero2.json\n"
    job = replace(load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "deepspeed"))
    old, new = (parse_layout(words, layers=32, devices=8) for words in ("dp=8,zero=2", "dp=8,zero=3"))

    with pytest.raises(InexpressibleError, match=r"deepspeed is the file 'zero2\.json': edit that one"):
        find_target("axolotl").edits(LaunchFile("a.yaml", text), job, old, new)


OWN = """{before}{launcher} finetune.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 True \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps {steps} --model_max_length 512 {more}
"""


@pytest.mark.parametrize(
    ("before", "launcher", "devices"),
    [
        ("", "deepspeed --include localhost:0,1@worker:2,3", 4),
        ("export CUDA_VISIBLE_DEVICES=3\n", "python", 1),
        ("", "torchrun --nproc_per_node 2", 2),
    ],
)
def test_devices_of_a_program_of_its_own(before, launcher, devices):
    """They are those that the launcher includes or starts, or the one that is seen."""
    found = read("trainer", OWN.format(before=before, launcher=launcher, steps=4, more=""))

    assert found.job["devices"] == devices
    assert found.job["workload"]["global_batch_size"] == 8 * devices


@pytest.mark.parametrize(
    ("more", "adapters"),
    [
        ("--use_lora --lora_rank 8", {"rank": 8}),
        ("--use_peft_lora True --lora_r 8 --use_4bit_quantization True", {"rank": 8, "base": "nf4"}),
        ("--use_lora", None),
        ("--lora_rank 8", None),
    ],
)
def test_adapters_of_a_program_of_its_own(more, adapters):
    """Common names are read; what only the program knows stays open."""
    found = read("trainer", OWN.format(before="", launcher="torchrun --nproc_per_node 2", steps=1, more=more))

    if adapters is None:
        assert "adapters" in found.unspecified
    else:
        assert adapters.items() <= found.job["adapters"].items()


def test_what_a_command_prints_leaves_the_batch_open():
    """The steps that a script computes from the devices that it counts are no default."""
    text = OWN.format(
        before="N=$(nvidia-smi -L | wc -l)\n",
        launcher="torchrun --nproc_per_node $N",
        steps="$((64 / N))",
        more="",
    )
    found = read("trainer", text)

    assert {"global_batch_size", "devices"} <= set(found.unspecified)
    assert found.layout_fields["mbs"] == 2
