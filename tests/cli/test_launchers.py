"""Launchers, edits of YAML files and lost nodes, as a user runs them: output, messages, exit codes."""

import json

import yaml

JOB = "llama3-8b-8x-a100"
FSDP = """distributed_type: FSDP
num_processes: 8
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_activation_checkpointing: true
"""
NARROW = """kind: training
model: gpt2-xl
hardware: dgx-a100-80gb
devices: 16
stack: fsdp2
workload: {sequence_length: 1024, global_batch_size: 64}
search: {microbatch_size: 1, recompute: [none, full]}
"""


def test_a_launcher_is_written_whole(run, tmp_path):
    """A batch script goes to a file with its program, and the header says how it was made."""
    file = tmp_path / "train.sbatch"

    done = run(
        *("emit", JOB, "--for", "slurm", "--layout", "tp=2,zero=1", "--program", "pre.py --x 'a b'"),
        *("--framework", "megatron-lm", "--output", str(file)),
    )

    assert (done.exit_code, done.stdout) == (0, "")
    text = file.read_text(encoding="utf-8")
    assert "    pre.py --x 'a b'\n" in text
    assert "--framework megatron-lm --program 'pre.py --x '\"'\"'a b'\"'\"''\n" in text
    assert "# predicted step time" in text


def test_two_manifests_need_a_folder(run, tmp_path):
    """Standard output takes one file; a folder gets both, and no image is an error."""
    arguments = ("emit", JOB, "--for", "kubernetes", "--layout", "tp=2,zero=1")

    assert (
        "there are several files (pytorchjob.yaml, trainjob.yaml)" in run(*arguments, "--image", "i").stderr
    )
    assert "name it with --image" in run(*arguments).stderr
    done = run(*arguments, "--image", "i", "--output", str(tmp_path))

    assert done.exit_code == 0
    kinds = {yaml.safe_load(file.read_text(encoding="utf-8"))["kind"] for file in tmp_path.iterdir()}
    assert kinds == {"PyTorchJob", "TrainJob"}


def test_edits_of_a_yaml_file_name_key_and_line(run, tmp_path):
    """An improvement is edits of the user's own file: key, line, old and new value."""
    job, file = tmp_path / "job.yaml", tmp_path / "accelerate.yaml"
    job.write_text(NARROW.replace("devices: 16", "devices: 8"), encoding="utf-8")
    file.write_text(FSDP, encoding="utf-8")

    done = run("evaluate", str(job), "--from", str(file), "--format", "json")
    comparison = json.loads(done.stdout)["comparison"]
    first = comparison["improvements"][0]["edits"]

    assert {edit["path"].split(".")[0] for edit in first if edit["path"]} <= {
        "fsdp_config",
        "parallelism_config",
    }
    changed = next(edit for edit in first if edit["line"])
    lines = FSDP.splitlines()
    assert changed["before"].partition(":")[0] in lines[changed["line"] - 1]
    shown = run("evaluate", str(job), "--from", str(file)).stdout
    assert f"line {changed['line']}: {changed['before']} -> {changed['after']} (in fsdp_config)" in shown


def test_nodes_are_lost_and_the_batch_stays(run, tmp_path):
    """The plans are for the devices that are left, with all sequences of the batch."""
    job = tmp_path / "job.yaml"
    job.write_text(NARROW, encoding="utf-8")

    answer = json.loads(run("plan", str(job), "--lost-nodes", "1", "--format", "json").stdout)
    refused = run("plan", str(job), "--lost-nodes", "2")

    assert {plan["predicted"]["devices"] for plan in answer["front"]} == {8}
    assert {plan["predicted"]["global_batch_size"] for plan in answer["front"]} == {64}
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "no node is left without 2: the job has 2 of 8 devices" in refused.stderr
