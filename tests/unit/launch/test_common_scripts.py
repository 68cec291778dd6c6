"""Scripts as they are commonly written: defaults of launchers, arguments behind files, programs of before."""

from dataclasses import replace

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.registry import find_target
from autoplan.launch.target import PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout

ADAPTERS = "adapter: lora\nlora_r: 8\n"
AXOLOTL = f"base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\nmicro_batch_size: 1\n{ADAPTERS}"
ZERO3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
SIZES = '{"train_micro_batch_size_per_gpu": 8, "train_batch_size": 32, "zero_optimization": {"stage": 0}}'
TRAINER = "--model_name_or_path m/x --per_device_train_batch_size 2 --max_length 1024 --bf16"
PRETRAINING = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --micro-batch-size 1"
    " --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000"
)
SLURM = """#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export WORLD_SIZE=$((SLURM_GPUS_ON_NODE*SLURM_NNODES))
export LAUNCHER="accelerate launch --config_file zero3.yaml --num_machines $SLURM_NNODES \\
    --num_processes $WORLD_SIZE --main_process_ip $MASTER_ADDR --role \\$(hostname -s|tr -dc '0-9'): "
srun bash -c "$LAUNCHER run_sft.py sft.yaml"
"""
LAUNCHED = """distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, offload_optimizer_device: none, offload_param_device: none}
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
KEYS = "model_name_or_path: m/x\nper_device_train_batch_size: 1\nmax_seq_length: 4096\nbf16: true\n"
BEAKER = """version: v2
tasks:
  - name: finetune
    replicas: 4
    image:
      beaker: someone/image
    command: ['/bin/sh', '-c']
    arguments: ['accelerate launch
        --mixed_precision bf16
        --num_machines 4
        --num_processes 32
        finetune.py
        --model_name_or_path meta-llama/Meta-Llama-3-8B
        --max_seq_length 4096
        --per_device_train_batch_size 1
        --gradient_accumulation_steps 4
    ']
    envVars:
      - name: WANDB_PROJECT
        value: x
"""


@pytest.mark.parametrize(
    ("start", "devices"),
    [
        ("torchrun", 1),
        ("torchrun --nnodes 2", 2),
        ("python -m torch.distributed.launch", 1),
        ("CUDA_VISIBLE_DEVICES=0,1,2 accelerate launch --mixed_precision bf16", 3),
        ("CUDA_VISIBLE_DEVICES=0,1,2 accelerate launch --num_processes 2", 2),
    ],
)
def test_launchers_start_what_they_start_by_default(reading, start, devices):
    """PyTorch's launchers start one process on a node, accelerate one on each device that it sees."""
    assert reading({"run.sh": f"{start} train.py {TRAINER}\n"}).layout_fields["dp"] == devices


def test_deepspeed_starts_on_devices_that_are_not_known(reading):
    """Its launcher takes all devices of the node."""
    assert reading({"run.sh": f"deepspeed train.py {TRAINER}\n"}).layout_fields["dp"] is None


@pytest.mark.parametrize(
    "start", ["accelerate launch -m axolotl.cli.train", "axolotl train", "accelerate launch train.py"]
)
def test_arguments_go_over_a_file_of_axolotl(reading, start):
    """They have the names of its keys."""
    script = f"{start} a.yml --deepspeed zero3.json --micro_batch_size 4 --gradient_accumulation_steps 2\n"
    found = reading({"run.sh": script, "a.yml": AXOLOTL, "zero3.json": ZERO3}, devices=2)

    assert (found.layout_fields["mbs"], found.layout_fields["zero"]) == (4, 3)
    assert found.job["workload"] == {"sequence_length": 2048, "global_batch_size": 16}


def test_the_program_of_llama_factory_before_is_read_as_it(reading):
    """It recomputes by default, and its adapters have a rank of 8."""
    words = "--stage sft --do_train --model_name_or_path meta-llama/Llama-2-7b-hf --finetuning_type lora"
    words += " --cutoff_len 1024 --per_device_train_batch_size 1 --gradient_accumulation_steps 8"
    words += " --quantization_bit 4 --fp16"
    found = reading({"run.sh": f"deepspeed --num_gpus 4 ../../src/train_bash.py \\\n  {words}\n"})

    assert found.framework == "llama-factory"
    assert (found.layout_fields["dp"], found.layout_fields["recompute"]) == (4, "full")
    assert (found.job["adapters"]["rank"], found.job["adapters"]["base"]) == (8, "nf4")


def test_commands_with_batches_are_rivals_whatever_their_other_arguments(reading):
    """One with few arguments trains, too, where it has a batch of training."""
    few = "accelerate launch --num_processes 4 train.py --per_device_train_batch_size 1 --max_length 256"
    many = f"accelerate launch --num_processes 4 train.py {TRAINER} --learning_rate 1e-5 --warmup_steps 9"
    found = reading({"run.sh": f"{few}\n\n{many} --num_train_epochs 1 --gradient_checkpointing true\n"})

    assert (found.layout_fields["mbs"], found.layout_fields["dp"]) == (None, 4)
    assert "sequence_length" in found.unspecified


def test_a_substitution_in_a_command_for_a_shell_is_one_word(reading):
    """What stands behind ``$(a | b)`` belongs to the command, beside a value that is not known."""
    found = reading({"run.sh": SLURM, "zero3.yaml": LAUNCHED, "sft.yaml": KEYS})
    assert (found.layout_fields["dp"], found.layout_fields["zero"], found.layout_fields["mbs"]) == (64, 3, 1)


def test_degrees_of_a_program_around_deepspeed_are_open(reading):
    """Its arguments may decide what the file of DeepSpeed has no keys for."""
    script = "torchrun --nproc_per_node 4 cli/train.py --pipe_parallel_size {} --deepspeed_config ds.json\n"
    files = {"run.sh": script.format(2), "ds.json": SIZES}
    assert reading(files).layout_fields["pp"] is None
    assert reading({**files, "run.sh": script.format(1)}).layout_fields["pp"] == 1


@pytest.mark.parametrize(("program", "rank"), [("train.py", None), ("examples/sft.py", 16)])
def test_ranks_that_are_not_given_are_those_of_trl_alone(reading, program, rank):
    """Another program has defaults of its own."""
    found = reading({"run.sh": f"python {program} {TRAINER} --use_peft\n"})
    assert (found.job.get("adapters") or {}).get("rank") == rank


def test_words_of_precision_that_are_a_programs_own_leave_it_open(reading):
    """TrainingArguments have no ``mixed_precision``."""
    words = TRAINER.replace("--bf16", "--mixed_precision bf16")
    found = reading({"run.sh": f"python t.py {words}\n"})
    assert "precision" in found.unspecified


def test_keys_of_programs_have_other_names_in_files_too(reading):
    """``model_name`` and ``peft_enabled`` are those of TRL."""
    text = "model_name: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 1\npeft_enabled: true\nlora_r: 4\n"
    found = reading({"sft.yaml": text})
    assert (found.job["model"], found.job["adapters"]["rank"]) == ("qwen2.5-0.5b", 4)
    found = reading({"sft.yaml": text.replace("peft_enabled: true", "mode: qlora")})
    assert "adapters" in found.unspecified


def test_experiments_of_beaker_are_scripts(reading):
    """Their tasks have command and arguments, as containers have."""
    found = reading({"finetune.yaml": BEAKER})
    assert (found.layout_fields["dp"], found.layout_fields["mbs"], found.job["model"]) == (32, 1, "llama3-8b")
    assert found.job["workload"] == {"sequence_length": 4096, "global_batch_size": 128}


COUNTED = """if command -v nvidia-smi; then
    export NUM_GPU=$(nvidia-smi -L | wc -l)
else
    export NUM_GPU=0
fi
vllm serve Qwen/Qwen2.5-7B --tensor-parallel-size $NUM_GPU
"""


def test_a_value_of_a_branch_that_is_said_from_outside_holds(reading):
    """It chooses among the branches, and no other value does."""
    assert reading({"run.sh": COUNTED}, variables={"NUM_GPU": "2"}).layout.tp == 2
    with pytest.raises(SpecError, match="depends on the condition in line 1"):
        reading({"run.sh": COUNTED.replace("$(nvidia-smi -L | wc -l)", "8")}, variables={"NUM_GPU": "2"})


PROGRAM = """import fire
from trl import SFTConfig, SFTTrainer

def main(size: int = 4, steps=2, length: int = 1024):
    SFTTrainer(m, args=SFTConfig(per_device_train_batch_size=size, max_length=length, bf16=True))

def other(size=8):
    return size
"""


@pytest.mark.parametrize(
    ("start", "size"),
    [("fire.Fire(main)", 4), ("main()", 4), ("main(size=2)", None), ("fire.Fire(main)\nsize = 3", None)],
)
def test_programs_have_the_defaults_of_the_function_that_they_start(reading, start, size):
    """Of a function that is called with arguments, and of a name with two values, nothing is known."""
    assert reading({"sft.py": f"{PROGRAM}\n{start}\n"}).layout_fields["mbs"] == size


OFFLOADED = """{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
  "offload_param": {"device": "cpu"}}, "train_micro_batch_size_per_gpu": "auto"}
"""


def test_a_script_of_llama_factory_is_edited_beside_its_file_of_deepspeed():
    """Batches stand in the script, the stage in the file that it names, and parameters stay on the host."""
    words = "--model_name_or_path meta-llama/Llama-2-7b-hf --finetuning_type full --cutoff_len 1024 --bf16"
    words += " --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --deepspeed ds.json"
    file = LaunchFile(
        "run.sh", f"deepspeed --num_gpus 8 train_bash.py {words}\n", sibling=lambda _: OFFLOADED
    )
    target = find_target("llama-factory")
    job = autoplan.load_job("llama3-8b-8x-a100")
    software = job.software.model_copy(update={"offload_parameters": True})
    workload = Workload(sequence_length=1024, global_batch_size=16)
    job = replace(job, stack=load_entry("stack", "deepspeed"), software=software, workload=workload)
    old = target.read(file).layout
    edits = target.edits(file, job, old, replace(old, microbatch=2))

    assert [(edit.before, edit.after, edit.file) for edit in edits] == [
        ("--per_device_train_batch_size 1", "--per_device_train_batch_size 2", ""),
        ("--gradient_accumulation_steps 2", "--gradient_accumulation_steps 1", ""),
    ]


@pytest.mark.parametrize(
    ("name", "text", "kernels"),
    [
        ("a.yaml", f"{AXOLOTL}attn_implementation: eager\n", "eager"),
        ("a.yaml", f"{AXOLOTL}flash_attention: true\n", "flash2"),
        ("a.yaml", f"{AXOLOTL}sdp_attention: true\nflash_attention: false\n", "sdpa"),
        ("a.yaml", AXOLOTL, None),
        ("a.yaml", f"{KEYS}attn_implementation: kernels-community/vllm-flash-attn3\n", "sdpa"),
        (
            "a.sh",
            f"torchrun --nproc_per_node 2 a.py {TRAINER} --attn_implementation flash_attention_2\n",
            "flash2",
        ),
        ("a.sh", f"torchrun --nproc_per_node 2 a.py {TRAINER} --attn_implementation flex_attention\n", None),
        ("a.sh", "swift sft --model Qwen/Qwen2.5-7B --max_length 4096 --attn_impl eager\n", "eager"),
        (
            "a.sh",
            f"{PRETRAINING} --attention-backend unfused\n",
            "eager",
        ),
    ],
)
def test_the_attention_that_a_file_names_is_priced(reading, name, text, kernels):
    """Eager attention takes three times as long and its scores memory: it is no detail of a file."""
    read = reading({name: text})
    assert (read.job.get("software") or {}).get("attention") == kernels
    assert any("flex_attention" in warning for warning in read.warnings) is ("flex" in text)


@pytest.mark.parametrize(
    ("target", "layout", "words"),
    [
        ("trainer", "dp=8,zero=0", {"eager": '"eager"', "sdpa": '"sdpa"', "flash2": '"flash_attention_2"'}),
        ("axolotl", "dp=8,zero=0", {"eager": ": eager", "sdpa": ": sdpa", "flash2": ": flash_attention_2"}),
        ("llama-factory", "dp=8,zero=0", {"eager": ": disabled", "sdpa": ": sdpa", "flash2": ": fa2"}),
        ("megatron-lm", "tp=8,zero=0", {"eager": " unfused", "flash": " fused", "flash2": " flash"}),
    ],
)
def test_the_attention_of_a_job_is_written_and_read_again(target, layout, words, reading):
    """In the program's words; a job without a choice leaves it to the program."""
    stack = "megatron-core" if target == "megatron-lm" else "hf-trainer"
    job = replace(autoplan.load_job("llama3-8b-8x-h100"), stack=load_entry("stack", stack), program=None)
    parsed = parse_layout(layout, layers=job.model.layers, devices=8)
    for kernels in (None, *words):
        adapters = AdapterSpec(rank=8) if target == "trainer" else None
        chosen = replace(job, software=SoftwareSpec(attention=kernels), adapters=adapters)
        file = find_target(target).emit(PlannedRun(chosen, parsed)).files[0]
        lines = [line for line in file.text.splitlines() if "attn" in line or "attention-backend" in line]
        assert [words[kernels] in line for line in lines] == ([True] if kernels else [])
        read = reading({file.name: file.text})
        assert (read.job.get("software") or {}).get("attention") == kernels


LOADED = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-3B", torch_dtype=torch.bfloat16{more})
args = TrainingArguments("out", per_device_train_batch_size=4, bf16={autocast}, gradient_checkpointing=True)
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("more", "autocast", "software"),
    [
        ("", True, {"pure_bf16": True}),
        (', attn_implementation="eager"', True, {"attention": "eager", "pure_bf16": True}),
        ("", False, {}),
    ],
)
def test_weights_that_a_program_loads_in_bf16_are_trained_in_bf16(reading, more, autocast, software):
    """The Trainer casts none: 8 bytes a parameter, not 16. Without autocast the precision is open."""
    read = reading({"train.py": LOADED.format(more=more, autocast=autocast)}, devices=1)
    assert read.job.get("software", {}) == software
    assert read.job.get("precision") == ("bf16" if autocast else None)


def test_a_call_of_unsloth_names_its_model_first_and_trains_in_its_type(reading):
    """The model may be the first argument; mixed precision is that of the weights where none is told."""
    text = """from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-14B", load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=32)
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2)).train()
"""
    read = reading({"train.py": text})
    assert (read.job["model"], read.job["precision"]) == ("qwen3-14b", "bf16")


@pytest.mark.parametrize(
    ("words", "software"),
    [
        ("", {"overlap_grad_reduce": False}),
        ("--overlap-grad-reduce", {}),
        ("--use-distributed-optimizer", {"overlap_grad_reduce": False, "overlap_param_gather": False}),
        ("--use-distributed-optimizer --overlap-grad-reduce", {"overlap_param_gather": False}),
        ("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", {}),
        ("--tensor-model-parallel-size 8 --sequence-parallel --tp-comm-overlap", {"tp_comm_overlap": True}),
    ],
)
def test_megatron_overlaps_what_its_arguments_say(reading, words, software):
    """Without the arguments nothing runs beside compute; one data-parallel rank has nothing to reduce."""
    assert reading({"a.sh": f"{PRETRAINING} {words}\n"}).job.get("software", {}) == software


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('"stage": 2', ["zero_optimization.overlap_comm is not on: reductions are priced beside backward"]),
        ('"stage": 2, "overlap_comm": true', []),
        ('"stage": 3', []),
        (
            '"stage": 3, "zero_quantized_weights": true',
            ["zero_optimization.zero_quantized_weights: gathers of quantized weights are not priced"],
        ),
    ],
)
def test_what_deepspeed_is_not_priced_with_is_said_beside_a_script_too(reading, keys, said):
    """Notes on DeepSpeed's file are those of the script that names it: ZeRO-3 alone overlaps by default."""
    sharded = f'{{"zero_optimization": {{{keys}}}, "bf16": {{"enabled": true}}}}'
    script = f"deepspeed --num_gpus 8 train.py {TRAINER} --deepspeed ds.json\n"
    warnings = reading({"run.sh": script, "ds.json": sharded}).warnings
    assert [warning for warning in warnings if warning.startswith("zero_optimization")] == said
