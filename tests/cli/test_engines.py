"""``emit``, ``read`` and ``evaluate --from`` of engines, on the command line."""

import json

JOB = "llama3-70b-8x-h100"


#: One engine of one device or two with few sizes: quick to plan.
SMALL = """\
schema: 1
kind: serving
model: llama3.1-8b
hardware: dgx-h100
devices: 2
stack: vllm@0.24
workload: {input_tokens: 1024, output_tokens: 256, concurrency: 32}
search: {tensor_parallel: [1, 2], pipeline_parallel: 1, max_num_batched_tokens: 2048,
  max_num_seqs: [4, 16, 64]}
"""


def test_what_is_emitted_is_read_and_priced(run, tmp_path):
    """A layout goes into a script, comes back by ``read``, has the same price, and is compared."""
    job, script = tmp_path / "job.yaml", tmp_path / "serve.sh"
    job.write_text(SMALL, encoding="utf-8")
    layout = "tp=1,replicas=2,seqs=4,tokens=2048"
    written = run("emit", str(job), "--for", "vllm", "--layout", layout, "--output", str(script))
    read = run("read", str(script), "--format", "json")
    named = run("evaluate", str(job), "--layout", layout, "--format", "json")
    priced = run("evaluate", str(job), "--from", str(script), "--format", "json")

    assert [done.exit_code for done in (written, read, named, priced)] == [0, 0, 0, 0]
    document = json.loads(read.stdout)
    assert document["framework"] == "vllm@0.24"
    assert document["layout"]["replicas"] == 2
    assert document["lines"]["seqs"] > document["lines"]["tp"] > 1
    answers = [json.loads(done.stdout) for done in (named, priced)]
    assert answers[0]["predicted"] == answers[1]["predicted"]
    assert answers[1]["configuration"]["layout_string"] == document["layout_string"]
    better = answers[1]["comparison"]
    assert better["throughput_per_device_gain"] > 0
    assert better["time_per_output_token_gain"] >= 0
    assert any(change.startswith("seqs: 4 to ") and "(line " in change for change in better["changes"])


#: What fits is what vLLM takes.
AUTO = (" --max-model-len auto",)


def test_vllm_starts_where_its_cache_holds_the_longest_context(run, tmp_path):
    """Llama 3.1 has 131,072 tokens, of which an L4 holds a quarter; SGLang starts with less."""
    script = tmp_path / "serve.sh"
    started = {}
    for said in ("", "  # no --max-model-len", " --max-model-len 65536", " --max-model-len 16384", *AUTO):
        script.write_text(f"vllm serve meta-llama/Llama-3.1-8B-Instruct{said}\n", encoding="utf-8")
        done = run("evaluate", "--from", str(script), "--hardware", "1x-l4", "--format", "json")
        started[said] = json.loads(done.stdout)

    shortages = [answer["predicted"]["shortage"] for answer in started.values()]
    assert shortages == [*["longest request"] * 3, None, None]
    better = started[""]["comparison"]
    assert better["throughput_per_device_gain"] is None
    assert "longest_request (--max-model-len): 131072 to 2456" in better["changes"]
    assert any("--max-model-len, here 131,072 tokens" in note for note in started[""]["differences"])


def test_a_script_of_engines_needs_hardware_alone(run, tmp_path):
    """The task and the model are those of the serve command, the load is assumed."""
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen3-4B --max-num-seqs 8\n", encoding="utf-8")
    beside = ("--from", str(script), "--hardware", "1x-rtx4090", "--format", "json")
    alone = run("evaluate", *beside)
    named = run("evaluate", *beside, "--model", "qwen3-4b", "--task", "serve")

    assert (alone.exit_code, named.exit_code) == (0, 0), alone.stderr
    answers = [json.loads(done.stdout) for done in (alone, named)]
    assert answers[0]["predicted"] == answers[1]["predicted"]
    assert "seqs=8" in answers[0]["configuration"]["layout_string"]
    script.write_text("python -m sglang.launch_server --model-path Qwen/Qwen3-4B --tp 1\n", encoding="utf-8")
    other = run("evaluate", *beside)
    assert other.exit_code == 0, other.stderr
    assert json.loads(other.stdout)["configuration"]["framework"].startswith("sglang@")


def test_a_plan_of_the_front_is_emitted(run, tmp_path):
    """Without a layout the job is planned, and the first plan or the one asked for is written."""
    job = tmp_path / "job.yaml"
    job.write_text(SMALL, encoding="utf-8")
    front = json.loads(run("plan", str(job), "--format", "json").stdout)["front"]
    emitted = run("emit", str(job), "--for", "vllm", "--plan", str(len(front)))

    assert emitted.exit_code == 0
    assert f"1 device: {front[-1]['layout_string']}" in emitted.stdout
    assert run("emit", str(job), "--for", "vllm", "--plan", str(len(front) + 1)).exit_code == 2
    saved = tmp_path / "front.json"
    run("plan", str(job), "--format", "json", "--output", str(saved))
    again = run("emit", str(saved), "--for", "vllm", "--plan", str(len(front)))
    assert again.exit_code == 0
    commands = [one.stdout.partition("set -euo")[2] for one in (emitted, again)]
    assert commands[0] == commands[1] != ""
    assert run("emit", str(saved), "--for", "vllm", "--layout", "tp=1").exit_code == 2


def test_what_an_engine_cannot_express_is_bad_input(run):
    """Exit code 2, with the part; and nothing is written."""
    done = run("emit", "deepseek-v3-8x-h200", "--for", "sglang", "--layout", "tp=8,dcp=2")

    assert done.exit_code == 2
    assert "decode context parallelism" in done.stderr
    assert done.stdout == ""


def test_a_broken_command_has_its_line(run, tmp_path):
    """File, line, argument and the one that was meant; no traceback."""
    script = tmp_path / "serve.sh"
    script.write_text("#!/bin/sh\nvllm serve m/x --tensor-paralel-size 2\n", encoding="utf-8")
    for command in (["read", str(script)], ["evaluate", JOB, "--from", str(script)]):
        done = run(*command)

        assert done.exit_code == 2
        assert "serve.sh:2" in done.stderr
        assert "did you mean --tensor-parallel-size?" in done.stderr
        assert "Traceback" not in done.stderr


def test_options_of_the_other_kind_are_refused(run):
    """Engines start no training program, and a training job loads no checkpoint."""
    assert run("emit", JOB, "--for", "vllm", "--program", "train.py").exit_code == 2
    assert run("emit", "llama3-8b-8x-a100", "--for", "megatron-lm", "--checkpoint", "m/x").exit_code == 2
