"""A job in one line: options in the place of a job file, as a person types them."""

import json
import shlex

import pytest

import autoplan

LORA = "--model openai-community/gpt2 --hardware 2x-rtx4090 --task lora"
TRAIN = "--model openai-community/gpt2 --hardware 2x-rtx4090 --stack megatron-lm --batch 64"
SERVE = "--model meta-llama/Llama-3.2-1B-Instruct --hardware 1x-rtx-4090 --task serve --concurrency 4"


def test_a_line_is_the_job_of_the_file_that_it_saves(run, tmp_path):
    """The saved file has the same answer; what was left out is said in the answer, the file and a note."""
    mine, saved = tmp_path / "mine.json", tmp_path / "job.yaml"
    assumed = ["sequences of 1,024 tokens (--sequence-length)", "adapters of rank 16 (--rank)"]
    options = [*LORA.split(), "--batch", "64"]

    assert run("plan", *options, "-f", "json", "-o", str(mine)).exit_code == 0
    written = run("plan", *options, "--save", str(saved), "-f", "json")
    assert f"note: {saved} has the job, assuming {', '.join(assumed)}" in written.stderr
    assert saved.read_text().startswith(f"# Assumed: {assumed[0]}.\n")

    one, other = json.loads(mine.read_text()), json.loads(written.stdout)
    assert one["job_file"].pop("assumed") == assumed
    assert one["job"].pop("name") == "gpt2-lora-2x-rtx4090"
    for document in (one, other):
        document.pop("answer_hash"), document["job"].pop("name", None), document["resolved"].pop("name")
        for plan in document["front"]:
            plan.pop("job_hash", None)
    assert one["front"] == other["front"]
    assert one["resolved"] == other["resolved"]
    for job in ([], ["--job", shlex.join(options)], ["--job", str(saved)]):
        assert run("verify", str(mine), *job).stdout.endswith(f"verified: {mine}\n")


def test_the_next_command_of_a_line_runs_as_printed(run):
    """The line is what further commands call the job; they and the library take it."""
    table = run("plan", *LORA.split(), "--stack", "hf-trainer").stdout
    assert "assumed: sequences of 1,024 tokens (--sequence-length), a batch of 32 sequences (--batch)" in (
        " ".join(table.split())
    )
    following = shlex.split(table.split("next: autoplan ")[1].splitlines()[0])
    assert following[:7] == ["emit", *LORA.split()]

    table = run("plan", *TRAIN.split()).stdout
    following = shlex.split(table.split("next: autoplan ")[1].splitlines()[0])
    emitted = run(*following)
    assert emitted.exit_code == 0, emitted.stderr
    assert f"autoplan emit {TRAIN} --for" in emitted.stdout

    layout = ("--layout", "dp=2,mbs=4")
    assert "assumed: " in run("evaluate", *LORA.split(), *layout).stdout
    assert run("explain", *LORA.split(), *layout, "--stack", "ddp").exit_code in {0, 1}
    assert autoplan.load_job(LORA).source.assumed[0].startswith("sequences of 1,024")


def test_nodes_are_all_of_their_devices():
    """Two nodes of two devices are four; the line that was typed stays as it was."""
    job = autoplan.load_job(f"{LORA} --nodes 2")
    assert job.cluster.devices == 4
    assert [x.cluster.devices for x in autoplan.load_job(f"{TRAIN} --nodes 1,2").choices] == [2, 4]
    assert job.source.reference == f"{LORA} --nodes 2"


@pytest.mark.parametrize(
    ("written", "node", "devices"),
    [
        ("--hardware '8 x H100'", "dgx-h100", 8),
        ("--hardware 2xA100-40GB", "2x-a100-sxm4-40gb", 2),
        ("--hardware h200 --devices 4", "4x-h200-sxm-141gb", 4),
        ("--hardware h100 --devices 16", "dgx-h100", 16),
        ("--hardware l40s --devices 2", "2x-l40s", 2),
    ],
)
def test_a_device_of_several_forms_is_the_most_usual_one(run, written, node, devices):
    """The answer says which form is assumed; the line it ends with means the same node."""
    line = f"--model llama3.1-8b --task lora {written}"
    job = autoplan.load_job(line)
    assert (job.cluster.node.name, job.cluster.devices) == (node, devices)
    assert job.source.assumed[0].endswith(" (--hardware)")
    next_line = run("plan", *shlex.split(line)).stdout.rpartition("next: autoplan ")[2]
    assert run(*shlex.split(next_line)).exit_code == 0


@pytest.mark.parametrize("task", ["train", "lora", "serve"])
def test_devices_without_bf16_take_fp16(run, task):
    """On V100 and T4 vLLM and PyTorch's matrix products refuse bf16."""
    line = ("--model", "openai-community/gpt2", "--hardware", "1x-t4", "--task", task)
    assert "fp16, as NVIDIA T4 has no bf16 (--precision)" in " ".join(run("plan", *line).stdout.split())
    assert "no bf16" not in run("plan", *line, "--precision", "fp16").stdout


def test_weights_whose_kernels_a_device_lacks_are_a_rule(run):
    """bf16 runs on no V100, and fp16 is the change that helps."""
    line = "--model llama3.1-8b --hardware 8x-v100-32gb --task serve --precision"
    document = json.loads(run("plan", *line.split(), "bf16", "-f", "json").stdout)
    assert "has no kernels for weights in bf16: use fp16" in " ".join(document["reasons"])
    assert [(x["key"], x["value"]) for x in document["changes"]] == [("precision.weights", "fp16")]
    assert run("plan", *line.split(), "int4-awq").exit_code == 1
    assert run("plan", *line.split(), "int4-gptq").exit_code == 0
    assert run("plan", *line.split(), "int4-awq", "--stack", "lmdeploy").exit_code == 0
    assert run("plan", *line.split(), "bf16", "--stack", "lmdeploy").exit_code == 1


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ("--model megatron-18b --hardware dgx-a100-80gb", " --checkpoint CHECKPOINT"),
        ("--model llama3.1-8b --hardware 1x-a10g --precision int4-awq", " --checkpoint CHECKPOINT"),
        ("--model llama3.1-8b --hardware 2x-l4", ""),
    ],
)
def test_the_next_command_of_engines_runs_as_printed(run, job, named):
    """Where no hub has a checkpoint of the format, the command has a place for its name."""
    last = run("plan", *job.split(), "--task", "serve").stdout.rstrip().splitlines()[-1]
    assert last.endswith(f"--for vllm{named}")
    assert run(*shlex.split(last.removeprefix("next: autoplan "))).exit_code == 0


def test_a_line_asks_for_engines(run, tmp_path):
    """A task of serving has tokens, clients and an engine, which are assumed and verified too."""
    saved = tmp_path / "served.json"
    assert run("plan", *SERVE.split(), "-f", "json", "-o", str(saved)).exit_code == 0
    assert run("verify", str(saved)).stdout.endswith(f"verified: {saved}\n")
    assert json.loads(saved.read_text())["assumed"][0] == "prompts of 1,024 tokens (--input-tokens)"
    layout = ("--layout", "tp=1,seqs=4")
    amd = SERVE.replace("1x-rtx-4090", "1x-mi300x")
    assert "vllm-rocm@" in run("evaluate", *amd.split(), *layout).stdout.replace("\n", " ")
    assert "max-num-seqs" in run("emit", *SERVE.split(), *layout, "--for", "vllm").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "give a job, or --model and --hardware"),
        ("--model gpt2", "--hardware: is missing, such as --hardware 2x-rtx4090, or auto"),
        ("llama3.1-8b", "`autoplan plan --model llama3.1-8b --hardware 2x-rtx4090 --task lora` plans one"),
        (
            "Qwen/Qwen3-8B",
            "`autoplan plan --model Qwen/Qwen3-8B --hardware 2x-rtx4090 --task lora` plans one",
        ),
        (
            "dgx-h100",
            "hardware, not a job: `autoplan plan --model llama3.1-8b --hardware dgx-h100",
        ),
        (
            "rtx-4090",
            "`autoplan plan --model llama3.1-8b --hardware 2x-rtx-4090",
        ),
        (f"{LORA} --task rlhf", "--task: 'rlhf' is not one of train, lora, qlora, serve"),
        (f"{LORA} --concurrency 3", "--concurrency: belongs to --task serve, not lora"),
        (f"{LORA} --sequence-length 4k", "--sequence-length: '4k' is not a whole number: write 4096"),
        (f"{LORA} --devices 3", "--hardware: 3 devices are not a multiple of the 2 devices of a node"),
        (f"{LORA} --devices 0", "--devices: 0 must be at least 1"),
        (f"{TRAIN} --devices 0", "--devices: 0 must be at least 1"),
        (f"{TRAIN} --sequence-length 1,2", "--sequence-length: a list is not a whole number"),
        (f"{LORA} --nodes 2 --devices 4", "--nodes: says the devices again, after --devices 4"),
        (f"{LORA} --nodes 0", "--nodes: '0' is no number of nodes, such as 4, or several, 2,4"),
        (f"{LORA} --precision float8", "--precision: 'float8' is not one of"),
        ("job.yaml --task lora", "job.yaml is a whole job: leave out --task, or it"),
        ("job.yaml --program trl", "leave out --program and set `program: trl` in it (and remove `stack`"),
        ("--model nope --hardware H100", "8x-h100-sxm5-80gb"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_of_its_options(run, words, said):
    """Errors name the option, never a line of a file that nobody wrote; a part of a job says how to go on."""
    done = run("plan", *words.split())
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert "$." not in done.stderr
    assert not done.stdout


def test_a_line_of_serving_has_a_load_all_devices_and_the_published_format(run):
    """Without a load the time per token alone would choose one request at a time, and clients would wait."""
    line = ("--model", "openai/gpt-oss-20b", "--hardware", "2x-rtx4090", "--task", "serve")
    answer = run("plan", *line, "-f", "json")
    assert answer.exit_code == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert document["assumed"][2:4] == [
        "32 clients (--concurrency, --request-rate)",
        "weights in mxfp4, as published (--precision)",
    ]
    assert document["job"]["devices"] == 2
    first = document["front"][0]
    assert first["layout"]["weights"] == "mxfp4"
    layout = first["layout"]
    assert layout["seqs"] * layout["replicas"] * layout["adp"] >= 32, "nobody waits for room"


@pytest.mark.parametrize(
    ("task", "target", "written"),
    [("lora", "axolotl", "base_model: {}\n"), ("serve", "vllm", "vllm serve {} ")],
)
def test_what_is_started_is_the_checkpoint_that_was_named(run, task, target, written):
    """A tuned checkpoint shares its architecture with the entry, and is not replaced by that of the entry."""
    for name in ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"):
        emitted = run("emit", "--model", name, "--hardware", "2x-rtx4090", "--task", task, "--for", target)
        assert emitted.exit_code == 0, emitted.stderr
        assert written.format(name) in emitted.stdout


def test_the_fastest_program_is_explained_beside_the_others(run, tmp_path):
    """Where several programs are usual, each has its fastest plan in the table of what else was possible."""
    saved = tmp_path / "job.yaml"
    front = json.loads(run("plan", *LORA.split(), "--save", str(saved), "-f", "json").stdout)
    answer = json.loads(run("explain", str(saved), "-f", "json").stdout)["choice"]
    fastest = min(plan["predicted"]["step_seconds"] for plan in front["front"])
    assert answer["best"]["predicted"]["step_seconds"] == pytest.approx(fastest)
    others = [other for other in answer["alternatives"] if other["key"] == "program"]
    assert len(others) == len(front["answers"]) - 1
    assert all(
        other["plan"] is None or other["plan"]["predicted"]["step_seconds"] >= fastest for other in others
    )


def test_commands_on_a_job_take_a_line(run, tmp_path):
    """What engines hold and where a run is slow are asked of a line, too."""
    missing = run("diagnose", *LORA.split(), "--layout", "dp=2,mbs=1", "--trace", str(tmp_path / "no.json"))
    assert "cannot read" in missing.stderr
    line = ("--model", "meta-llama/Llama-3.2-1B", "--hardware", "2x-rtx4090")
    assert "2 engines start" in run("capacity", *line, "--task", "serve").stdout
    assert "--task serve" in run("capacity", *line).stderr


@pytest.mark.parametrize(
    ("written", "meant"),
    [("--gpus", "--devices"), ("--seq_len", "--sequence-length"), ("--lora_r", "--rank")],
)
def test_an_option_by_the_name_that_another_program_has_is_told_ours(run, written, meant):
    """What people write first is named with its right form."""
    refused = run("plan", "--model", "gpt2", "--hardware", "1x4090", written, "2")

    assert refused.exit_code == 2
    assert f"{written} is {meant} here" in refused.output


def test_the_folder_of_a_checkpoint_is_a_model(run, tmp_path, monkeypatch):
    """Its config.json is read, from a line and from the job that the line saves."""
    folder = tmp_path / "mine"
    folder.mkdir()
    fields = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    fields |= {"intermediate_size": 1024, "vocab_size": 1000}
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    line = ("--model", "./mine", "--hardware", "1x4090", "--task", "lora", "--save", "job.yaml", "-f", "json")
    asked = json.loads(run("plan", *line).stdout)
    saved = json.loads(run("plan", "job.yaml", "-f", "json").stdout)

    assert asked["resolved"]["model"]["layers"] == 4
    assert saved["resolved"]["model"] == asked["resolved"]["model"]
    assert run("plan", "--model", "./other", "--hardware", "1x4090").exit_code == 2
