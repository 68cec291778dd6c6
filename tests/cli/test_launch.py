"""``emit``, ``read`` and ``evaluate --from`` as a user runs them: output, messages, exit codes, files."""

import json
import os
import shlex

import pytest
import yaml

from autoplan.schema.layout import parse_layout

JOB = "llama3-8b-8x-a100"
SCRIPT = """#!/bin/bash
TP=${TP:-4}
ARGS=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --bf16
  --untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 64 --vocab-size 128256
  --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
torchrun --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}" "$@"
"""


@pytest.fixture
def script(tmp_path):
    """Return the file of a training script."""
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT, encoding="utf-8")
    return file


def test_emit_writes_a_file_or_into_a_folder(run, tmp_path):
    """A named file and a folder get the same whole file, which begins with the prediction."""
    arguments = ("emit", JOB, "--for", "megatron-lm", "--layout", "tp=2,pp=2,mbs=1")
    file = tmp_path / "args.sh"

    done = run(*arguments, "--output", str(file))
    run(*arguments, "--output", str(tmp_path))

    assert (done.exit_code, done.stdout) == (0, "")
    text = file.read_text(encoding="utf-8")
    assert text == (tmp_path / "megatron_args.sh").read_text(encoding="utf-8")
    assert "# predicted step time" in text
    assert "autoplan emit llama3-8b-8x-a100 --for megatron-lm --layout tp=2,pp=2,mbs=1" in text


def test_what_cannot_be_expressed_writes_nothing(run, tmp_path):
    """The error names the part and the nearest layout, and no file appears."""
    file = tmp_path / "args.sh"
    layout = "pp=4,dp=2,recompute=full:3/none/none/full"

    done = run("emit", JOB, "--for", "megatron-lm", "-l", layout, "-o", str(file))

    assert done.exit_code == 2
    assert "Megatron-LM cannot express this plan: recompute that differs" in done.stderr
    assert "The nearest layout that it can:" in done.stderr
    assert not file.exists()


def test_an_unknown_target_names_the_known_ones(run):
    """A near name is suggested."""
    done = run("emit", JOB, "--for", "megatron")

    assert (done.exit_code, done.stderr) == (
        2,
        "error: no target is called 'megatron': did you mean 'megatron-lm'?\n",
    )


def test_read_prints_the_contract(run, script):
    """The document has the layout, the job, defaults, open fields and lines."""
    found = json.loads(run("read", str(script), "--set", "TP=2", "--format", "json").stdout)

    layout = parse_layout("tp=2,recompute=full,zero=1", layers=32, devices=8)
    assert (found["schema"], found["framework"]) == (1, "megatron-lm")
    assert found["layout_string"] == str(layout)
    assert found["layout"]["dp"] == 4
    assert found["job"]["model"] == "llama3-8b"
    assert found["job"]["workload"] == {"sequence_length": 8192, "global_batch_size": 64}
    assert found["unspecified"] == []
    assert {"pp", "cp"} <= set(found["defaults"])
    assert found["lines"]["mbs"] == 7


def test_read_prints_a_job_that_evaluate_takes(run, script, tmp_path):
    """The job file needs the hardware alone, which ``read`` takes, and so does ``evaluate`` beside a file."""
    done = run("read", str(script), "--format", "yaml")
    job = tmp_path / "job.yaml"
    job.write_text(f"{done.stdout}hardware: dgx-a100-80gb\n", encoding="utf-8")

    assert yaml.safe_load(done.stdout)["devices"] == 8
    assert run("evaluate", str(job), "--layout", "tp=2").exit_code == 0
    beside = ("--from", str(script), "--format", "json")
    of_file, alone = (run("evaluate", x, *beside) for x in (str(job), "--hardware=dgx-a100-80gb"))
    assert json.loads(alone.stdout)["predicted"] == json.loads(of_file.stdout)["predicted"]
    half = run("evaluate", "--hardware", "dgx-a100-80gb", "--batch", "32", *beside)
    assert json.loads(half.stdout)["predicted"]["microbatches"] == 16
    # What neither says is named by its option.
    (tmp_path / "x.yaml").write_text("base_model: ./mine\nmicro_batch_size: 1\n", encoding="utf-8")
    asked = run("evaluate", "--hardware", "dgx-a100-80gb", "--from", str(tmp_path / "x.yaml"))
    assert (asked.exit_code, "--model: is missing" in asked.stderr) == (2, True)
    whole = run("read", str(script), "--hardware", "dgx-a100-80gb", "--output", str(tmp_path / "whole.yaml"))
    assert whole.exit_code == 0
    # Two nodes in the file are not the one of the hardware.
    (tmp_path / "two.sh").write_text(SCRIPT.replace("--nproc", "--nnodes 2 --nproc"), encoding="utf-8")
    read = run("read", str(tmp_path / "two.sh"), "--hardware", "dgx-a100-80gb", "--format", "yaml")
    assert yaml.safe_load(read.stdout)["devices"] == 16
    kept, written = (yaml.safe_load(x.read_text(encoding="utf-8")) for x in (job, tmp_path / "whole.yaml"))
    assert written == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SCRIPT.replace("--micro-batch-size 1", "--micro-batch-sise 1"),
            "train.sh:7: --micro-batch-sise: Megatron-LM",
        ),
        (SCRIPT.replace("${TP:-4}", "3"), "train.sh:2: tp: tp=3 (line 2) x pp=1 x cp=1 = 3 does not divide"),
        (
            SCRIPT.replace("${TP:-4}", "$(nproc)"),
            "train.sh:2: --tensor-model-parallel-size: its value depends on",
        ),
        ("hello\n", "the framework is not clear"),
        ("\0", "it is no text"),
        ("#" * (2**20 + 1), "is larger than 1 MiB"),
    ],
)
def test_bad_files_are_refused_with_file_and_line(run, tmp_path, text, message):
    """Contradictions, misspellings, commands and other files end with exit code 2 and no traceback."""
    file = tmp_path / "train.sh"
    file.write_text(text, encoding="utf-8")

    done = run("read", str(file))

    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_folders_and_pipes_are_refused(run, tmp_path):
    """Nothing waits for a writer who may never come."""
    pipe = tmp_path / "pipe.sh"
    os.mkfifo(pipe)

    assert "a pipe" in run("read", str(pipe)).stderr
    assert "a folder" in run("read", str(tmp_path)).stderr


def test_evaluate_from_a_file_names_the_edits_that_gain(run, script):
    """The layout of the file is priced for the job, and edits have the words and the line of the file.

    In what the file is not the job is said, its choices of software with it.
    """
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("--micro-batch-size 1", "--micro-batch-size 1 --grad-reduce-in-bf16"))
    done = run("evaluate", JOB, "--from", str(script), "--format", "json")
    found = json.loads(done.stdout)
    comparison = found["comparison"]

    assert found["layout_string"].startswith("tp=4,pp=1,dp=2")
    assert comparison["slower_than_best"] > 0
    first = comparison["improvements"][0]
    assert len(first["changes"]) == 1
    assert first["step_saved"] > 0
    lines = SCRIPT.splitlines()
    for edit in first["edits"]:
        assert edit["line"] is None or edit["before"].split()[-1] in lines[edit["line"] - 1]
    assert any("global_batch_size is 64 in the file (line 7)" in note for note in comparison["notes"])
    assert any("software is gradients: bf16 in the file" in note for note in comparison["notes"])


def test_evaluate_needs_a_layout_or_a_file(run):
    """Neither and both are refused."""
    assert run("evaluate", JOB).exit_code == 2
    assert run("evaluate", JOB, "--layout", "tp=2", "--from", "x.sh").exit_code == 2


def test_a_file_of_another_framework_than_the_job_has_is_said(run, tmp_path):
    """Megatron-Core has no ZeRO-3: the job names the stack of the file, which ``read`` suggests."""
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 1 --bf16 True"
        " --gradient_accumulation_steps 16 --fsdp full_shard --max_length 8192\n"
    )

    result = run("evaluate", "llama3-8b-8x-a100", "--from", str(script))
    suggested = run("read", str(script), "--format", "yaml")

    assert result.exit_code == 2
    assert "files of trainer usually run under hf-fsdp2: set `stack: hf-fsdp2`" in result.stderr
    assert "such as `stack: hf-fsdp2`" in suggested.stdout


def test_plan_names_the_fastest_plan_that_its_framework_can_express(run, tmp_path):
    """Where the first plans have stages that accelerate lacks, ``next:`` names one that `emit` accepts."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "{kind: training, model: gpt2, hardware: 2x-rtx3090, stack: fsdp2,"
        " workload: {sequence_length: 512, global_batch_size: 4},"
        " search: {tensor_parallel: 1, context_parallel: 1, recompute: none, virtual_stages: 1}}",
        encoding="utf-8",
    )
    line = run("plan", job).stdout.splitlines()[-1]
    words = shlex.split(line)

    assert words[:3] == ["next:", "autoplan", "emit"]
    assert int(words[words.index("--plan") + 1]) > 1
    assert run(*words[2:]).exit_code == 0
    target = words[words.index("--for") + 1]
    assert run("emit", job, "--for", target, "--plan", "1").exit_code == 2
    assert f"the fastest that {target} can express" in run("emit", job, "--for", target).stderr


def test_eager_weights_in_bf16_are_priced_as_the_trainer_runs_them(run, tmp_path):
    """By DDP, the way of the layout, though no program writes the choice; PyTorch's attention is told."""
    path = tmp_path / "train.py"
    path.write_text(
        """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
name = "meta-llama/Llama-3.2-3B"
kernels = "eager"
model = AutoModelForCausalLM.from_pretrained(name, dtype="bfloat16", attn_implementation=kernels)
args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True)
Trainer(model=model, args=args).train()
""",
        encoding="utf-8",
    )
    asked = ("evaluate", "--from", str(path), "--hardware", "1x-a100-sxm4-80gb", "--sequence-length", "2048")
    document = json.loads(run(*asked, "--format", "json").stdout)
    assert document["layout"]["zero"] == 0
    # 8 bytes of each of 3.2 G parameters, and the logits of 8,192 tokens; 16 bytes would be 51 GB.
    assert 26e9 < document["predicted"]["peak_memory_bytes_per_device"] < 42e9
    assert "eager attention has its scores in memory" in run(*asked).stdout
