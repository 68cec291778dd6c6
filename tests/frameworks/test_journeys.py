"""What the journeys of tests/journeys end in, taken by the real programs, and a fine-tune started with it."""

import ast
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.frameworks.framework_python import PYTHON, asked, has_module, wheel
from tests.support.journeys import JOURNEYS, emitted, words_after
from tests.support.spec_runs import run_here

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LINE = ("--hardware", "2x-rtx4090", "--devices", "1", "--task", "lora")


@pytest.mark.skipif(not (wheel("trl") and has_module("peft")), reason="TRL's wheel is not there")
@pytest.mark.parametrize("task", ["lora", "qlora"])
def test_trl_takes_the_file(task, tmp_path):
    """Model, length, microbatches, adapters and base are those of the plan, by TRL's own parser."""
    options, _ = JOURNEYS["LoRA of 8B on two 4090 with TRL"]
    options = [task if word == "lora" else word for word in options]
    _, file = emitted(options, tmp_path)
    plan = json.loads(run_here("plan", *options, "--format", "json").stdout)["front"][0]
    (found,) = asked(HERE / "trl_parser.py", [{"text": file.read_text(encoding="utf-8")}], wheel("trl"))
    assert found["accepted"] == {
        "model": "meta-llama/Llama-3.1-8B",
        "length": 4096,
        "mbs": plan["layout"]["mbs"],
        "steps": 32 // plan["layout"]["dp"] // plan["layout"]["mbs"],
        "recompute": "recompute=full" in plan["layout_string"],
        "rank": 16,
        "dropout": 0.0,
        "targets": "all-linear",
        "base": ["nf4", True] if task == "qlora" else None,
    }


METHODS = {
    "dpo": ({"method": "dpo"}, {"max_length": 1024, "precompute_ref_log_probs": False, "beta": 0.1}),
    "before training": (
        {"method": "dpo", "precompute_ref_log_probs": True, "beta": 0.3},
        {"max_length": 1024, "precompute_ref_log_probs": True, "beta": 0.3},
    ),
    "kto": ({"method": "kto"}, {"max_length": 1024, "precompute_ref_log_probs": False, "beta": 0.1}),
    "grpo": (
        {"method": "grpo", "beta": 0.04, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.4},
        {"beta": 0.04, "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.4},
    ),
}


@pytest.mark.skipif(not (wheel("trl") and has_module("peft")), reason="TRL's wheel is not there")
@pytest.mark.parametrize("name", METHODS)
def test_trl_learns_as_the_job_says(name, tmp_path):
    """DPO, KTO and GRPO on two A100: the program of the method takes the file as the job means it."""
    said, means = METHODS[name]
    job = tmp_path / "job.yaml"
    work = "workload: {sequence_length: 1024, global_batch_size: 32}\nadapters: {rank: 16}"
    device = "model: llama3.1-8b\nhardware: 2x-a100-pcie-80gb\nprogram: trainer"
    job.write_text(f"kind: training\nschema: 1\n{device}\n{work}\nrl: {json.dumps(said)}\n", encoding="utf-8")
    _, file = emitted([job], tmp_path)
    case = {"text": file.read_text(encoding="utf-8"), "method": said["method"]}
    (found,) = asked(HERE / "trl_parser.py", [case], wheel("trl"))
    assert means.items() <= found["accepted"].items()


@pytest.mark.skipif(not wheel("trl"), reason="TRL's wheel is not there")
def test_trl_refuses_what_is_misspelt(tmp_path):
    """The parser looks at every key, so that what it accepts is what is meant."""
    _, file = emitted(JOURNEYS["LoRA of 8B on two 4090 with TRL"][0], tmp_path)
    text = file.read_text(encoding="utf-8").replace('"lora_r"', '"lora_rank"')
    (found,) = asked(HERE / "trl_parser.py", [{"text": text}], wheel("trl"))
    assert "lora_rank" in found["refused"]


@pytest.mark.skipif(not wheel("axolotl"), reason="axolotl's wheel is not there")
def test_axolotl_takes_the_file(tmp_path):
    """The schema of axolotl accepts the keys of the plan."""
    _, file = emitted(JOURNEYS["LoRA of 8B on two 4090 with axolotl"][0], tmp_path)
    case = {"world_size": 2, "text": file.read_text(encoding="utf-8")}
    (found,) = asked(HERE / "axolotl_parser.py", [case], wheel("axolotl"))
    assert found["accepted"]["sequence_length"] == 4096


@pytest.mark.skipif(not wheel("torchtune"), reason="torchtune's wheel is not there")
def test_torchtune_has_the_keys(tmp_path):
    """All of 8B on one 4090: each override is a key of the config, or an argument of its model."""
    options = ("--model", "meta-llama/Llama-3.1-8B", "--hardware", "2x-rtx4090", "--devices", "1")
    answer = run_here("plan", *options, "--program", "torchtune")
    words = words_after(answer.stdout, "to make change 1: autoplan ")
    job = tmp_path / "new.yaml"
    job.write_text(run_here(*words[: words.index(">")]).stdout, encoding="utf-8")
    _, file = emitted([job], tmp_path)
    lines = [line.strip(" \\'") for line in file.read_text(encoding="utf-8").splitlines()]
    start = next(line for line in lines if line.startswith("exec tune run"))
    with zipfile.ZipFile(wheel("torchtune")) as archive:
        config = yaml.safe_load(archive.read(f"recipes/configs/{start.split()[-1]}.yaml"))
        source = archive.read("torchtune/models/llama3_1/_model_builders.py").decode()
    builder = config["model"]["_component_"].rpartition(".")[2]
    function = next(x for x in ast.walk(ast.parse(source)) if getattr(x, "name", "") == builder)
    arguments = {argument.arg for argument in function.args.args}
    overrides = [line.partition("=")[0] for line in lines if "=" in line and " " not in line]
    assert "optimizer_in_bwd" in overrides
    for key in overrides:
        section, _, inner = key.partition(".")
        assert section in config, key
        assert not inner or inner in (config[section] if section != "model" else arguments), key


@pytest.mark.skipif(not (has_module("peft") and has_module("transformers")), reason="PEFT is not installed")
def test_a_fine_tune_starts_with_what_is_emitted(tmp_path):
    """A tiny Llama learns on the CPU with the microbatches and adapters of the file: 16 (in + out) a GEMM."""
    config, file = ROOT / "examples/fine_tune/config.json", tmp_path / "training_args.json"
    job = ("--model", config, *LINE, "--sequence-length", 64, "--batch", 8, "--stack", "hf-trainer")
    assert run_here("emit", *job, "--for", "trainer", "--output", file).exit_code == 0
    program = ("-m", "examples.fine_tune.train", str(file), "--steps", "8")
    done = subprocess.run([sys.executable, *program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    attention = [(64, 64), (64, 32), (64, 32), (64, 64)]
    mlp = [(64, 128), (64, 128), (128, 64)]
    assert found["trained_parameters"] == 2 * sum(16 * (a + b) for a, b in (*attention, *mlp))
    document = json.loads(file.read_text(encoding="utf-8"))
    assert found["microbatch"] == document["per_device_train_batch_size"]
    assert found["microbatches"] * found["microbatch"] == 8
    assert found["losses"][-1] < found["losses"][0]


@pytest.mark.slow
@pytest.mark.skipif(not (wheel("trl") and has_module("peft")), reason="TRL's wheel is not there")
def test_dpo_starts_with_what_is_emitted(tmp_path):
    """TRL's own program learns from pairs on the CPU, two steps of a tiny Llama with the file's adapters."""
    config, file = ROOT / "examples/fine_tune/config.json", tmp_path / "training_args.json"
    job = ("--model", config, *LINE, "--rl", "dpo", "--sequence-length", 64, "--batch", 8)
    done = run_here("emit", *job, "--program", "trainer", "--for", "trainer", "--output", file)
    assert done.exit_code == 0, done.stderr
    assert "-m trl.scripts.dpo --config" in done.stderr
    made = subprocess.run([PYTHON, str(HERE / "tiny_model.py"), str(config), str(tmp_path)], check=False)
    assert made.returncode == 0
    with zipfile.ZipFile(wheel("trl")) as archive:
        archive.extractall(tmp_path / "trl")
    here = ("--use_cpu", "true", "--report_to", "none", "--max_steps", "2", "--output_dir", tmp_path / "out")
    data = ("--model_name_or_path", tmp_path, "--dataset_name", tmp_path / "data")
    words = map(str, (PYTHON, "-m", "trl.scripts.dpo", "--config", file, *data, *here))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "trl"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(words), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((tmp_path / "out/checkpoint-2/trainer_state.json").read_text(encoding="utf-8"))
    assert (state["global_step"], state["train_batch_size"]) == (2, 8)
    assert (tmp_path / "out/adapter_config.json").exists()


#: Trains a tiny model on the CPU, profiles three steps, and fetches each batch with a delay.
PROFILED = """
import sys, time
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset
delay, file = float(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
class Samples(Dataset):
    def __len__(self): return 100
    def __getitem__(self, at):
        time.sleep(delay)
        return torch.randn(64)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters())
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3)) as profiler:
    for _, batch in zip(range(5), DataLoader(Samples(), batch_size=4)):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
profiler.export_chrome_trace(file)
"""


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_an_engineer_finds_the_delay_that_was_planted(tmp_path):
    """Each sample of a real run takes 20 ms more: the data loader has lost at least 80 ms of a step."""
    delay, batch, trace, job = 0.02, 4, tmp_path / "rank0.json", tmp_path / "job.yaml"
    program = [PYTHON, "-c", PROFILED, str(delay), str(trace)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (
        "kind: training",
        f"model: {ROOT / 'examples/fine_tune/config.json'}",
        "hardware: 2x-rtx4090",
        "devices: 1",
        "stack: hf-trainer",
        f"workload: {{sequence_length: 64, global_batch_size: {batch}}}",
    )
    job.write_text("\n".join(["schema: 1", *lines, ""]), encoding="utf-8")
    question = ("diagnose", job, "--layout", f"mbs={batch}", "--trace", trace)
    found = json.loads(run_here(*question, "--format", "json").stdout)
    (loader,) = (finding for finding in found["findings"] if finding["kind"] == "data loader")
    assert loader["lost_seconds"] >= batch * delay
    assert loader["sentence"] in " ".join(run_here(*question).stdout.split())


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_every_rank_under_torchrun_asks_and_one_searches(tmp_path):
    """Three ranks of one start get one layout, from one search whose answer is kept."""
    program, marks = tmp_path / "ask.py", tmp_path / "marks"
    marks.mkdir()
    program.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "import autoplan\n"
        "rank = os.environ['RANK']\n"
        "def progress(plans, share):\n"
        "    (Path(sys.argv[1]) / rank).touch()\n"
        "    time.sleep(1.0 if plans == 1 else 0.0)\n"
        "front = autoplan.plan('llama2-7b-2x-a100', progress=progress)\n"
        "(Path(sys.argv[1]) / f'{rank}.said').write_text(front.fastest.layout_string)\n",
        encoding="utf-8",
    )
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")
    environment = {**os.environ, "AUTOPLAN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [PYTHON, *start, str(program), str(marks)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = {path.read_text(encoding="utf-8") for path in marks.glob("*.said")}
    assert len(list(marks.glob("*.said"))) == 3
    assert len(said) == 1
    assert len([path for path in marks.iterdir() if not path.suffix]) == 1
