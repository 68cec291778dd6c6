"""What small repositories start their jobs with: scripts of scripts, programs in Python, and other names."""

import json

import pytest

from autoplan.errors import SpecError
from autoplan.launch.scripts.shell_reader import read_script

ZERO = json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}})
FSDP = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_version: 1}
mixed_precision: bf16
num_machines: 1
num_processes: 4
"""
REPLICAS = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
TUNED = """model_name_or_path: meta-llama/Llama-3.2-3B-Instruct
stage: sft
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
bf16: true
"""
LOOP = """gpus=0,1
while (( "$#" )); do
  case "$1" in
    --gpus) gpus="$2"; shift 2 ;;
    --size) size="$2"; shift 2 ;;
    --) shift; break ;;
    *) echo "unknown $1"; exit 1 ;;
  esac
done
CUDA_VISIBLE_DEVICES=$gpus torchrun --nproc_per_node 2 train.py --per_device_train_batch_size ${size:-1} \\
    --bf16 --deepspeed ds.json
"""
PROGRAM = """import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, TrainingArguments, Trainer
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
peft_config = LoraConfig(lora_alpha=32, target_modules=["q_proj", "v_proj"])
args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=STEPS,
    bf16=True, optim="adamw_torch_fused", gradient_checkpointing=True)
"""
MODAL = """import modal, os, subprocess
MODEL = os.environ.get("MODEL", "Qwen/Qwen2.5-7B-Instruct")
N_GPU, FAST = 2, True
GPUS = 2
def serve():
    cmd = ["vllm", "serve", MODEL, "--tensor-parallel-size", str(GPUS), "--max-model-len", "8192"]
    cmd += ["--enforce-eager" if FAST_BOOT else "--no-enforce-eager"]
    if QUICK:
        cmd.extend(["--max-num-seqs", "4"])
    subprocess.Popen(cmd)
FAST_BOOT = QUICK = True
"""


def words_of(text: str, **options) -> list[list[str]]:
    """Return the words of the commands of a script."""
    return [
        [word.text for word in command.words] for command in read_script(text, "a.sh", **options).commands
    ]


def test_a_script_that_another_one_runs_is_followed(reading):
    """It has its arguments, round by round of its loop, and the variables that are exported to it."""
    files = {"job.sh": "bash run.sh --gpus 0,1 --size 4\n", "run.sh": LOOP, "ds.json": ZERO}
    found = reading(files)
    assert (found.layout_fields["mbs"], found.layout_fields["zero"], found.job["devices"]) == (4, 2, 2)
    assert "run.sh, which is followed" in " ".join(found.warnings)
    inner = {"b.sh": "echo $ONE ${TWO:-none} $1 $#\n"}
    said = words_of("export ONE=1\nTWO=2\nTHREE=3 bash b.sh x\n", sibling=inner.get)
    assert said[-1] == ["echo", "1", "none", "x", "1"]


def test_scripts_that_run_each_other_come_to_an_end():
    """A script that runs itself is followed once."""
    assert words_of("bash a.sh\n", sibling={"a.sh": "bash a.sh\necho end\n"}.get)[-1] == ["echo", "end"]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("while true; do n=1; break; done\necho $n\n", ["echo", "1"]),
        ("f() { while [[ $# -gt 0 ]]; do last=$1; shift; done; echo $last; }\nf a b c\n", ["echo", "c"]),
        ("while true; do n=1; sleep 1; done\necho end\n", ["echo", "end"]),
        ("sbatch --gpus=2 --wrap='python a.py --b 1'\n", ["python", "a.py", "--b", "1"]),
        ("read -r -d '' ALL <<EOF\npython a.py\nEOF\n$ALL --b 1\n", ["python", "a.py", "--b", "1"]),
    ],
)
def test_loops_wraps_and_documents_are_followed(text, last):
    """A loop whose conditions are known is followed round by round, one without an end once."""
    assert words_of(text)[-1] == last


def test_a_break_under_a_condition_that_is_not_known_is_not_taken():
    """What such a loop sets is not known."""
    text = "while true; do n=1; if [ -f x ]; then break; fi; n=2; done\npython a.py $n\n"
    assert read_script(text, "a.sh").commands[-1].words[-1].unknown is not None


def test_a_guard_counts_as_passed():
    """A script that ends where a variable is not set is started with it, unless it sets that itself."""
    guarded = 'if [ -z "$HF_TOKEN" ]; then\n  echo no\n  exit 1\nfi\npython a.py\n'
    assert words_of(guarded)[-1] == ["python", "a.py"]
    assert words_of(f"HF_TOKEN=\n{guarded}")[-1] == ["echo", "no"]


def test_arguments_that_a_loop_reads_are_refused(reading):
    """They are not taken for none."""
    text = 'while IFS= read -r line; do ARGS+=($line); done < args\nvllm serve "${ARGS[@]}"\n'
    with pytest.raises(SpecError) as caught:
        reading({"run.sh": text})
    assert "arguments depend on" in str(caught.value)


def test_the_launcher_of_llama_factory_decides_its_sharding(reading):
    """The command accelerate launch starts it with a file of its own."""
    start = "accelerate launch --config_file fsdp.yaml src/train.py tuned.yaml\n"
    found = reading({"run.sh": start, "fsdp.yaml": FSDP, "tuned.yaml": TUNED})
    assert found.framework == "llama-factory"
    assert (found.layout_fields["zero"], found.job["devices"]) == (3, 4)
    assert found.job["workload"]["global_batch_size"] == 128


def test_llama_factory_starts_on_all_devices_that_it_sees(reading):
    """Its command starts torchrun by itself."""
    start = "CUDA_VISIBLE_DEVICES=0,1,2,3 llamafactory-cli train --stage sft --finetuning_type full "
    words = "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --bf16 --cutoff_len 1024\n"
    assert reading({"run.sh": start + words}).job["devices"] == 4


def test_deepspeed_among_arguments_goes_over_the_launcher(reading):
    """A launcher of plain replicas starts a Trainer that shards by DeepSpeed."""
    start = "accelerate launch --config_file ddp.yaml train.py --per_device_train_batch_size 4 --bf16 true "
    found = reading({"run.sh": f"{start} --deepspeed ds.json\n", "ddp.yaml": REPLICAS, "ds.json": ZERO})
    assert (found.layout_fields["zero"], found.job["devices"]) == (2, 8)


def test_a_file_that_the_script_writes_is_read(reading):
    """A here-document holds the file of DeepSpeed."""
    text = f"cat <<EOT > ds.json\n{ZERO}\nEOT\ndeepspeed --num_gpus 4 train.py --deepspeed_config ds.json\n"
    assert reading({"run.sh": text}).layout_fields["zero"] == 2


def test_names_of_alpaca_are_the_trainers(reading):
    """micro_batch_size is that of a device, and batch_size that of all."""
    text = (
        "torchrun --nproc_per_node=4 finetune.py --base_model meta-llama/Llama-2-7b-hf --data_path d.json "
        "--batch_size 32 --micro_batch_size 2 --num_epochs 3 --cutoff_len 400 --lora_r 8 --fp16\n"
    )
    found = reading({"run.sh": text})
    assert (found.layout_fields["mbs"], found.job["adapters"]["rank"]) == (2, 8)
    assert found.job["workload"] == {"sequence_length": 400, "global_batch_size": 32}


def test_the_beginning_of_an_argument_is_that_argument(reading):
    """The parser takes it where it is that of one alone; other programs' names of a rank are read."""
    text = (
        "torchrun --nproc_per_node 2 train.py --per_device_train_batch 3 --bf16 --use_peft --peft_lora_r 4\n"
    )
    found = reading({"run.sh": text})
    assert (found.layout_fields["mbs"], found.job["adapters"]["rank"]) == (3, 4)


def test_a_key_that_decides_nothing_is_no_misspelling(reading):
    """Neither is a second value of one; what decides a layout stays an error."""
    text = f"{TUNED}learning_rate: 1e-5\nlearning_rate: 2e-5\nsave_stepp: 5\n"
    assert any("given twice" in warning for warning in reading({"tuned.yaml": text}).warnings)
    for added in ("cutoff_len: 4096\n", "gradient_acumulation_steps: 2\n"):
        with pytest.raises(SpecError):
            reading({"tuned.yaml": TUNED + added})


def test_a_program_around_the_trainer_is_read_by_its_constants(reading):
    """What is no constant is open; so is what the launcher decides."""
    found = reading({"train.py": PROGRAM}, devices=2)
    assert (found.framework, found.job["model"]) == ("trainer", "llama3.1-8b")
    assert (found.layout_fields["mbs"], found.layout_fields["recompute"]) == (4, "full")
    assert found.job["adapters"]["rank"] == 8
    assert {"zero", "global_batch_size"} <= set(found.unspecified)
    conditional = PROGRAM.replace("peft_config = Lora", "if USE:\n  peft_config = Lora")
    assert "adapters" in reading({"train.py": conditional}).unspecified
    with pytest.raises(SpecError):
        reading({"train.py": f"{PROGRAM})"})


@pytest.mark.parametrize(
    ("name", "text", "devices"),
    [
        ("run.sh", "torchrun --nproc_per_node 4 train.py 2>&1 | tee log.txt\n", 4),
        ("run.sh", "accelerate launch --multi_gpu --num_processes 4 train.py\n", 4),
        ("run.sh", "python train.py\n", None),
        ("Dockerfile", 'FROM python:3.12\nENTRYPOINT ["python", "train.py"]\n', None),
    ],
)
def test_a_script_of_no_argument_is_read_by_its_program(reading, name, text, devices):
    """What a program of the Trainer says itself holds where nothing is behind it."""
    found = reading({name: text, "train.py": PROGRAM})
    assert (found.framework, found.layout_fields["mbs"], found.layout_fields["recompute"]) == (
        "trainer",
        4,
        "full",
    )
    assert found.job.get("devices") == devices
    with pytest.raises(SpecError):
        reading({"run.sh": "python train.py --size 2\n", "train.py": PROGRAM})


def test_a_mapping_of_a_program_is_read_like_its_file(reading):
    """DeepSpeed's keys may stand in a dictionary of the program."""
    sharded = PROGRAM.replace("bf16=True", 'bf16=True, deepspeed={"zero_optimization": {"stage": 3}}')
    found = reading({"train.py": sharded}, devices=2)
    assert (found.layout_fields["zero"], found.layout_fields["mbs"]) == (3, 4)


def test_a_program_that_starts_an_engine_is_read(reading):
    """Words of its list are constants, f-strings and variables; one that is not known is refused."""
    program = MODAL.replace("N_GPU, FAST = 2, True", "FAST_BOOT = QUICK = True")
    program = program.replace('FAST_BOOT = QUICK = True\n"', "").removesuffix("FAST_BOOT = QUICK = True\n")
    found = reading({"app.py": program})
    assert (found.layout.tp, found.layout.seqs, found.job["model"]) == (2, 4, "qwen2.5-7b")
    other = reading({"app.py": program}, variables={"MODEL": "Qwen/Qwen2.5-32B"})
    assert other.job["model"] == "qwen2.5-32b"
    with pytest.raises(SpecError):
        reading({"app.py": program.replace("if QUICK:", "if chosen():")})


COMPOSE = """services:
  llm:
    image: {image}
    {entrypoint}
    command:
      - {first}
      - --tensor-parallel-size
      - "2"
    deploy:
      replicas: {copies}
"""


@pytest.mark.parametrize(
    ("image", "entrypoint", "first"),
    [
        ("node:latest", 'entrypoint: ["vllm"]', "serve\n      - Qwen/Qwen2.5-7B-Instruct"),
        ("my/vllm:local", "ipc: host", "--model\n      - Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_entry_points_and_images_of_the_users_own_are_read(reading, image, entrypoint, first):
    """An entry point stands apart from its arguments; an image may be named after the engine."""
    text = COMPOSE.format(image=image, entrypoint=entrypoint, first=first, copies=1)
    found = reading({"compose.yaml": text})
    assert (found.layout.tp, found.job["model"]) == (2, "qwen2.5-7b")


def test_copies_that_a_variable_says_are_given_or_refused(reading):
    """They are never one by default."""
    first = "--model\n      - Qwen/Qwen2.5-7B-Instruct"
    text = COMPOSE.format(
        image="vllm/vllm-openai:v0.11.0", entrypoint="ipc: host", first=first, copies="${N}"
    )
    assert reading({"compose.yaml": text}, variables={"N": "3"}).layout.replicas == 3
    with pytest.raises(SpecError) as caught:
        reading({"compose.yaml": text})
    assert "how many copies" in str(caught.value)
