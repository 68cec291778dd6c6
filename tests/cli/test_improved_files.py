"""Public launch files improved by edits that ``evaluate --from`` suggests: priced as promised when made."""

import json
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

PUBLIC = yaml.safe_load(
    Path(__file__).parents[1].joinpath("support", "public_launches.yaml").read_text(encoding="utf-8")
)
#: The end of a public file's path, with the stack, the sequence length and the batch of the job.
FILES = {
    "gpt3_7b_tp1_pp4_memory_speed/model_config.yaml": ("megatron-core", 8192, 8),
    "configs/tp_hsdp.yaml": ("fsdp2", 8192, 64),
    "finetune_hf_llama/ds_config.json": ("deepspeed", 2048, 256),
}


def edited(text, edits):
    """Return a file with the edits of its keys made, and the arguments that the others are."""
    document, words = yaml.safe_load(text), []
    for edit in edits:
        if not edit["path"]:
            words.append(edit["after"])
            continue
        *sections, key = edit["path"].split(".")
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = yaml.safe_load(edit["after"].removeprefix(f"{key}: "))
    text = json.dumps(document) if text.startswith("{") else yaml.safe_dump(document, sort_keys=False)
    return text, words


@pytest.mark.parametrize("path", FILES)
def test_a_file_with_its_edits_made_is_priced_as_promised(path, run, tmp_path):
    """Each suggestion is read back as the layout that it is for, and its step is the one promised."""
    stack, length, batch = FILES[path]
    case = next(case for case in PUBLIC if case["path"].endswith(path))
    job, file = tmp_path / "job.yaml", tmp_path / Path(path).name
    workload = f"workload: {{sequence_length: {length}, global_batch_size: {batch}}}"
    head = "schema: 1\nkind: training\nmodel: llama3-8b\nhardware: dgx-h100\ndevices: 8\n"
    job.write_text(f"{head}stack: {stack}\n{workload}\n", encoding="utf-8")

    file.write_text(case["text"], encoding="utf-8")
    told = run("evaluate", str(job), "--from", str(file), "--format", "json")
    improvements = json.loads(told.stdout)["comparison"]["improvements"]
    assert improvements
    for improvement in improvements:
        text, words = edited(case["text"], improvement["edits"])
        file.write_text(text, encoding="utf-8")
        added = [part for word in words for part in ("--arg", word)]
        read = run("read", str(file), "--devices", "8", *added, "--format", "json")
        assert read.exit_code == 0, read.stderr
        layout = json.loads(read.stdout)["layout_string"]
        priced = run("evaluate", str(job), "--layout", layout, "--format", "json")

        seconds = json.loads(priced.stdout)["predicted"]["step_seconds"]
        assert seconds == pytest.approx(improvement["predicted"]["step_seconds"])


ARGUMENTS = """train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16 True \\
    --gradient_accumulation_steps 1 --max_length 2048 --gradient_checkpointing
"""
FSDP = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
ZERO = """{
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "overlap_comm": true},
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto"
}
"""


LAUNCHED = """distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""


@pytest.mark.parametrize(
    ("start", "name", "text"),
    [
        ("accelerate launch --config_file fsdp.yaml ", "fsdp.yaml", FSDP),
        ("accelerate launch --config_file zero.yaml ", "zero.yaml", LAUNCHED),
        ("deepspeed --num_gpus 8 --deepspeed ds.json ", "ds.json", ZERO),
    ],
)
def test_the_sharding_of_a_script_is_edited_in_the_file_that_decides_it(run, tmp_path, start, name, text):
    """Without --fsdp the Trainer leaves --fsdp_config aside, and it takes all of DeepSpeed's file."""
    script, beside, job = tmp_path / "run.sh", tmp_path / name, tmp_path / "job.yaml"
    launcher, _, rest = start.partition("--deepspeed")
    program, _, arguments = ARGUMENTS.partition(" ")
    option = f"--deepspeed{rest}" if rest else ""
    script.write_text(f"{launcher}{program} {option}{arguments}")
    beside.write_text(text)
    assert run("read", str(script), "--hardware", "dgx-h100", "--output", str(job)).exit_code == 0
    told = run("evaluate", str(job), "--from", str(script), "--format", "json")
    best = json.loads(told.stdout)["comparison"]["improvements"][-1]

    assert {edit["file"] for edit in best["edits"]} == {"", name}
    beside.write_text(edited(text, [edit for edit in best["edits"] if edit["file"]])[0])
    for edit in best["edits"]:
        if not edit["file"]:
            assert edit["before"] in script.read_text()
            script.write_text(script.read_text().replace(edit["before"], edit["after"]))
    read = json.loads(run("read", str(script), "--format", "json").stdout)
    assert read["layout_string"] == best["layout_string"]


PROGRAM = """from transformers import AutoModelForCausalLM, TrainingArguments, Trainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
args = TrainingArguments(output_dir="out", per_device_train_batch_size=1, gradient_accumulation_steps=16,
    bf16=True, gradient_checkpointing=True, max_seq_length=1024)
"""
KEYS = """model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 1
gradient_accumulation_steps: 1
bf16: true
gradient_checkpointing: true
deepspeed: ds.json
{length}: 2048
"""
AXOLOTL = """base_model: Qwen/Qwen2.5-7B
micro_batch_size: 1
gradient_accumulation_steps: 1
bf16: true
gradient_checkpointing: true
sequence_len: 2048
deepspeed: ds.json
"""


@pytest.mark.parametrize(
    "text",
    [
        KEYS.format(length="max_length"),
        f"{KEYS.format(length='cutoff_len')}stage: sft\nfinetuning_type: full\n",
        AXOLOTL,
    ],
    ids=["trainer", "llama-factory", "axolotl"],
)
def test_the_file_of_deepspeed_that_keys_name_is_edited(run, tmp_path, text):
    """Its stage is edited where it stands, and batches in the file of keys."""
    keys, beside, job = tmp_path / "keys.yaml", tmp_path / "ds.json", tmp_path / "job.yaml"
    keys.write_text(text)
    beside.write_text(ZERO)
    options = ("--devices", "8", "--hardware", "dgx-h100", "--output", str(job))
    assert run("read", str(keys), *options).exit_code == 0
    told = run("evaluate", str(job), "--from", str(keys), "--format", "json")
    best = json.loads(told.stdout)["comparison"]["improvements"][-1]

    assert "ds.json" in {edit["file"] for edit in best["edits"]}
    beside.write_text(edited(ZERO, [edit for edit in best["edits"] if edit["file"]])[0])
    keys.write_text(edited(text, [edit for edit in best["edits"] if not edit["file"]])[0])
    read = json.loads(run("read", str(keys), "--devices", "8", "--format", "json").stdout)
    assert read["layout_string"] == best["layout_string"]


def test_a_program_in_python_is_edited_as_its_calls_are_written(run, tmp_path):
    """An edit of what a script starts is words of Python, and gives the step that it promises."""
    script, program = tmp_path / "run.sh", tmp_path / "train.py"
    script.write_text("torchrun --nproc_per_node 4 train.py\n")
    program.write_text(PROGRAM)
    asked = ("evaluate", "--from", str(script), "--hardware", "4x-a100-sxm4-80gb", "--format", "json")
    best = json.loads(run(*asked).stdout)["comparison"]["improvements"][-1]
    for edit in best["edits"]:
        before = edit["before"] or 'output_dir="out"'
        assert before in program.read_text()
        after = edit["after"] if edit["before"] else f"{before}, {edit['after']}"
        program.write_text(program.read_text().replace(before, after))
    compile(program.read_text(), "train.py", "exec")
    told = json.loads(run(*asked).stdout)
    assert told["predicted"]["step_seconds"] == pytest.approx(best["predicted"]["step_seconds"])
