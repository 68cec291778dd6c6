"""From a question to a file that a program starts with, each command the last line of the answer before."""

import ast
import html
import json
import re
import subprocess

import pytest

from autoplan.catalog import load_entry
from tests.support.journeys import JOURNEYS, emitted, words_after
from tests.support.quick_cases import slow_but
from tests.support.spec_runs import run_here

#: The journeys of `make test`; the others take longer or repeat a target.
QUICK = (
    "LoRA of 8B on two 4090 with TRL",
    "LoRA of 8B on one 4090 with Unsloth",
    "QLoRA of 8B on two 4090",
    "all of 8B on two A100 with FSDP2",
    "8B served on two 4090 with vLLM",
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def options_of(name, folder):
    """Return the options of a journey, with a model's config where it asks for one."""
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    return [str(config) if word == "CONFIG" else word for word in JOURNEYS[name][0]]


@pytest.mark.parametrize("name", slow_but(QUICK, JOURNEYS))
def test_the_next_command_writes_what_the_program_takes(name, tmp_path):
    """The answer ends in a command, and the file that it writes says the plan again, or is a program."""
    options, target = options_of(name, tmp_path), JOURNEYS[name][1]
    written, file = emitted(options, tmp_path)
    assert written == target
    if target == "unsloth":
        assert ast.parse(file.read_text(encoding="utf-8")).body
        return
    if target == "vllm":
        assert subprocess.run(["bash", "-n", file], check=False).returncode == 0
    devices = load_entry("node", options[options.index("--hardware") + 1]).devices
    found = run_here("read", file, "--devices", devices, "--format", "json")
    assert found.exit_code == 0, found.stderr
    plan = json.loads(run_here("plan", *options, "--format", "json").stdout)["front"][0]
    parts = json.loads(found.stdout)["layout_string"].split(",")
    uneven = [part for part in parts if not part.startswith("stages=")]
    assert len(uneven) > 5
    assert set(uneven) <= set(plan["layout_string"].split(","))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--model", "meta-llama/Llama-3.1-8B", "--devices", "1", "--hardware", "2x-rtx4090"),
            ("program: torchtune", "optimizer: paged-adamw", "optimizer_in_bwd=True"),
        ),
        (
            ("--model", "meta-llama/Llama-3.1-70B", "--hardware", "2x-rtx3090", "--program", "axolotl"),
            ("base: nf4", "offload_parameters: true", "offload_params: true"),
        ),
    ],
    ids=["all of 8B on one 4090", "QLoRA of 70B on two 3090"],
)
def test_what_does_not_fit_is_changed_and_written(options, says, tmp_path):
    """An answer without a plan ends in the command that makes its first change, and that job has a file."""
    task = () if "8B" in options[1] else ("--task", "lora")
    answer = run_here("plan", *options, *task)
    assert answer.exit_code == 1
    words = words_after(answer.stdout, "to make change 1: autoplan ")
    new = tmp_path / words[-1]
    applied = run_here(*words[: words.index(">")])
    new.write_text(applied.stdout, encoding="utf-8")
    _, file = emitted([new], tmp_path)
    said = applied.stdout + file.read_text(encoding="utf-8")
    for text in says:
        assert text in said


@pytest.mark.slow
def test_a_cluster_is_started_by_slurm(tmp_path):
    """70B on 64 H100: the plan of a program becomes a batch script that passes the shell's own parser."""
    job, file = tmp_path / "job.yaml", tmp_path / "train.sbatch"
    cluster = ("--hardware", "dgx-h100", "--devices", "64", "--program", "megatron-lm")
    assert (
        run_here("plan", "--model", "llama3-70b", *cluster, "--save", job, "--format", "json").exit_code == 0
    )
    done = run_here("emit", job, "--for", "slurm", "--program", "pretrain_gpt.py", "--output", file)
    assert done.exit_code == 0, done.stderr
    text = file.read_text(encoding="utf-8")
    assert "#SBATCH --nodes=8" in text
    assert subprocess.run(["bash", "-n", file], check=False).returncode == 0


def text_of(page):
    """Return the text of a page that a reader sees."""
    shown = re.sub(r"(?s)<(script|style).*?</\1>", " ", page.read_text(encoding="utf-8"))
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def test_a_teacher_explains_tensors_against_pipelines_from_one_page(tmp_path):
    """Two 3090: what each axis splits and sends, what it costs, and where the other one wins.

    Tensor parallelism sends the activations of a microbatch, 2 B x 2,048 tokens x 2,048, ten times a layer; a
    pipeline sends them once.
    """
    job, page = tmp_path / "job.yaml", tmp_path / "page.html"
    lines = ("model: llama3.2-1b", "hardware: 2x-rtx3090", "stack: megatron-core")
    work = "workload: {sequence_length: 2048, global_batch_size: 16}"
    job.write_text("\n".join(["schema: 1", "kind: training", *lines, work, ""]), encoding="utf-8")
    layouts = ("--layout", "tp=2,mbs=1", "--layout", "pp=2,mbs=1")
    assert run_here("compare", job, *layouts, "--output", page).exit_code == 0
    text = text_of(page)
    message = 2 * 2048 * 2048 / 2**20

    for words in ("split over", "copied over", "weights tp2", "pipeline bubble", "latency of a microbatch"):
        assert words in text.lower().replace(" | ", " "), words
    for operation, place in (
        ("all-gather", "before attention, MLP"),
        ("reduce-scatter", "after attention, MLP"),
        ("all-gather", "for weight gradients"),
        ("send", "to a stage, forward"),
    ):
        assert re.search(rf"{operation} {message:.1f} MiB[^a-z]*.{{0,40}}{place}", text), place
    assert re.search(r"Pick \S+: .* s a step, against .* s of \S+", text)
    assert re.search(r"bandwidth in a node \d+ GB/s [\d.]+ GB/s", text)
    assert page.read_text(encoding="utf-8").count("<svg") >= 1


def test_a_teacher_explains_a_distributed_product_from_one_page(tmp_path):
    """Two 3090: three ways to split Y = A W, the collective of each, and the bytes that a device sends.

    Split by columns a device gathers the other's half of A, by rows that of W; split by the inner extent it
    scatters half of Y, whose partial sums are as large.
    """
    m, n, k, page = 4096, 8192, 2048, tmp_path / "page.html"
    extents = ("--m", m, "--n", n, "--k", k, "--hardware", "2x-rtx3090", "--devices", 2)
    assert run_here("gemm", *extents, "--output", page).exit_code == 0
    text = text_of(page)
    halves = {"columns 2": m * k, "rows 2": k * n, "inner 2": m * n}

    for scheme, elements in halves.items():
        assert re.search(rf"{scheme} \d+ {elements * 2 / 2 / 2**20:.1f} MiB", text), scheme
    for words in (
        "all-gather of A",
        "all-gather of W",
        "reduce-scatter of Y",
        "column-parallel",
        "row-parallel",
    ):
        assert words in text, words
    assert "lower bound" in text.lower()
    assert "optimal, proven" in text
