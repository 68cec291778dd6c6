"""Launchers: scripts that bash runs as they are meant, manifests, quoting, and what is refused."""

import functools
import json
import os
import shlex
import subprocess
from dataclasses import replace

import pytest
import yaml

import autoplan
from autoplan.catalog import load_entry, load_job
from autoplan.errors import UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.registry import find_target, starting, target_names
from autoplan.launch.target import PlannedRun
from autoplan.schema.layout import parse_layout

LAUNCHERS = ("torchrun", "slurm", "skypilot", "kubernetes")
STACKS = {"megatron-lm": "megatron-core", "deepspeed": "deepspeed", "accelerate": "fsdp2"}
LAYOUTS = {"megatron-lm": "tp=2,zero=1", "deepspeed": "zero=3", "accelerate": "zero=3"}
#: A program that says how it was started, in the place of what is not installed here.
RECORDER = """#!/usr/bin/env python3
import json, os, sys
names = ("CUDA_DEVICE_MAX_CONNECTIONS", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
paths = [word for word in sys.argv if word.endswith((".json", ".yaml"))]
files = {path: open(path).read() for path in paths}
print(json.dumps({"words": sys.argv, "files": files, "env": {name: os.environ.get(name) for name in names}}))
"""
#: srun as it is for the second of two nodes.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=1 exec "$@"
"""


def job_of(framework, devices=8):
    """Return a job for the stack of a framework, on nodes of eight devices."""
    job = load_job("llama3-8b-8x-a100")
    cluster = replace(job.cluster, devices=devices)
    return replace(job, stack=load_entry("stack", STACKS[framework]), cluster=cluster)


@functools.cache
def run_of(framework, devices=8):
    """Return a run of a framework."""
    job = job_of(framework, devices)
    return PlannedRun(job, parse_layout(LAYOUTS[framework], layers=job.model.layers, devices=devices))


def emitted(launcher, framework, devices=8, program=()):
    """Return what is emitted for a launcher."""
    image = "registry/image:1" if launcher == "kubernetes" else ""
    target = starting(
        find_target(launcher), framework, load_entry("stack", STACKS[framework]), program, image
    )
    return target.emit(run_of(framework, devices))


@pytest.fixture
def run_script(tmp_path):
    """Return a function that runs a script with recorders for launchers, and returns what they were given."""
    programs = {"torchrun": RECORDER, "accelerate": RECORDER, "srun": SRUN}
    programs["scontrol"] = "#!/bin/bash\necho node-0\necho node-1\n"
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)

    def run(text, arguments=(), **environment):
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        slurm = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node-[0-1]"}
        done = subprocess.run(
            ["bash", "-c", text, "script", *arguments],
            env={"PATH": path, "TMPDIR": str(tmp_path), **slurm, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def scripts_of(launcher, emission):
    """Return the bash scripts in what is emitted."""
    if launcher in {"torchrun", "slurm"}:
        return [emission.files[0].text]
    documents = [yaml.safe_load(file.text) for file in emission.files]
    if launcher == "skypilot":
        return [documents[0]["run"]]
    pods = documents[0]["spec"]["pytorchReplicaSpecs"].values()
    containers = [pod["template"]["spec"]["containers"][0] for pod in pods]
    return [*(c["command"][2] for c in containers), documents[1]["spec"]["trainer"]["command"][2]]


ENVIRONMENT = {
    "torchrun": {"NODE_RANK": "1", "MASTER_ADDR": "node-0"},
    "slurm": {},
    "skypilot": {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "node-0\nnode-1"},
    "kubernetes": {
        "RANK": "1",
        "MASTER_ADDR": "node-0",
        "MASTER_PORT": "29500",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "node-0",
        "PET_MASTER_PORT": "29500",
    },
}


@pytest.mark.parametrize("devices", [8, 16])
@pytest.mark.parametrize("framework", STACKS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_scripts_start_the_framework_with_the_plan(launcher, framework, devices, run_script):
    """Each script starts the processes of its node with all arguments and files of the plan."""
    emission = emitted(launcher, framework, devices)
    alone = find_target(framework).emit(run_of(framework, devices))

    for script in dict.fromkeys(scripts_of(launcher, emission)):
        done = run_script(script, **ENVIRONMENT[launcher])
        words = done["words"][1:]

        assert [word for word in alone.arguments if word not in words] == []
        assert "train.py" in words or "pretrain_gpt.py" in words
        if framework == "megatron-lm":
            assert tuple(words[-len(alone.arguments) :]) == alone.arguments
            assert done["env"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
        else:
            (text,) = done["files"].values()
            assert yaml.safe_load(text) == yaml.safe_load(alone.files[0].text)
        if framework == "accelerate":
            assert ("--machine_rank" in words) == (devices > 8)
        else:
            assert "--nproc-per-node=8" in words
            assert ("--nnodes=2" in words) == (devices > 8)
        if devices > 8:
            shown = " ".join(words)
            assert "node-0" in shown
            assert "29500" in shown
            rank = "--machine_rank 1" if framework == "accelerate" else "--node-rank=1"
            assert rank in shown or (launcher == "slurm" and "--rdzv-id=7" in shown)


def test_arguments_after_a_script_go_to_the_program(run_script):
    """What the user adds comes last."""
    script = (
        emitted("torchrun", "megatron-lm", program=["my dir/pre.py", "--data", "$HOME;`id`"]).files[0].text
    )

    words = run_script(script, arguments=("--lr", "1e-4 * 2"))["words"]

    assert words[-2:] == ["--lr", "1e-4 * 2"]
    assert words[3:6] == ["my dir/pre.py", "--data", "$HOME;`id`"]


def test_words_of_users_reach_no_shell_and_no_other_key():
    """A program with quotes, lines and braces is the same words in every form."""
    hostile = ["a'b\"c", "x\ny: z", "{}", "--image", "#", "END_OF_FILE"]

    for launcher in LAUNCHERS:
        emission = emitted(launcher, "deepspeed", program=hostile)
        for script in scripts_of(launcher, emission):
            subprocess.run(["bash", "-n", "-c", script], check=True)
            assert shlex.join(hostile) in script
        for file in emission.files:
            if launcher in {"skypilot", "kubernetes"}:
                assert set(yaml.safe_load(file.text)) <= {
                    *("name", "num_nodes", "resources", "run", "apiVersion", "kind", "metadata", "spec")
                }


def test_a_batch_script_is_read_back():
    """What is emitted for Slurm has the layout, the devices and the model that it was emitted for."""
    file = emitted("slurm", "megatron-lm", 16).files[0]

    found = find_target("megatron-lm").read(LaunchFile(file.name, file.text))

    assert found.layout == parse_layout("tp=2,zero=1", layers=32, devices=16)
    assert found.job["model"] == "llama3-8b"
    assert "#SBATCH --nodes=2\n" in file.text
    assert file.text.index("#SBATCH") < file.text.index("set -euo")


def test_manifests_have_nodes_devices_and_image():
    """Replicas, processes and resources are those of the plan; one node has no workers."""
    operator, trainer = (yaml.safe_load(f.text) for f in emitted("kubernetes", "megatron-lm", 32).files)
    replicas = operator["spec"]["pytorchReplicaSpecs"]
    container = replicas["Worker"]["template"]["spec"]["containers"][0]

    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 3)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert (container["name"], container["image"]) == ("pytorch", "registry/image:1")
    assert trainer["spec"]["trainer"]["numNodes"] == 4
    assert trainer["spec"]["trainer"]["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 8}}
    alone = yaml.safe_load(emitted("kubernetes", "megatron-lm").files[0].text)
    assert set(alone["spec"]["pytorchReplicaSpecs"]) == {"Master"}
    task = yaml.safe_load(emitted("skypilot", "megatron-lm", 32).files[0].text)
    assert (task["num_nodes"], task["resources"]) == (4, {"accelerators": "A100-80GB:8"})


def test_the_framework_is_by_default_that_of_the_stack():
    """Megatron's stack starts Megatron-LM, FSDP's accelerate."""
    for framework, stack in STACKS.items():
        target = starting(find_target("torchrun"), None, load_entry("stack", stack))
        assert target.framework.startswith(find_target(framework).framework)
        assert target.framework.endswith("started by torchrun")


def test_what_cannot_be_started_is_refused():
    """A target that is no framework, a missing image, and a plan that the framework lacks are errors."""
    job = job_of("megatron-lm")
    plan = autoplan.evaluate(job, "tp=2,zero=1")

    with pytest.raises(UnsupportedError, match="slurm cannot start torchrun: frameworks are megatron-lm"):
        autoplan.emit(plan, "slurm", job=job, framework="torchrun")
    with pytest.raises(UnsupportedError, match="slurm cannot start nemo"):
        autoplan.emit(plan, "slurm", job=job, framework="nemo")
    with pytest.raises(UnsupportedError, match="megatron-lm is no launcher"):
        autoplan.emit(plan, "megatron-lm", job=job, program=["x"])
    with pytest.raises(UnsupportedError, match="name it with --image"):
        autoplan.emit(plan, "kubernetes", job=job)
    partial = autoplan.evaluate(job, "pp=4,dp=2,recompute=full:3/none/none/full")
    with pytest.raises(UnsupportedError, match="cannot express this plan: recompute that differs"):
        autoplan.emit(partial, "slurm", job=job)
    assert set(LAUNCHERS) <= set(target_names(emitted=True))
    assert not set(LAUNCHERS) & set(target_names(emitted=False))
