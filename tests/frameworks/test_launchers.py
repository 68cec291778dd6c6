"""What is emitted for launchers, accepted by their own parsers and schemas.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with torch, kubeflow-training or kubeflow-trainer-api, by default
this one, and AUTOPLAN_FRAMEWORK_WHEELS a folder with SkyPilot's wheel; what is not there is skipped.
"""

import functools
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.catalog import load_entry, load_job
from autoplan.launch.registry import find_target, starting
from autoplan.launch.target import PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from tests.frameworks.framework_python import asked, has_module, installed_version, unpacked
from tests.frameworks.matrix import cell

PARSER = Path(__file__).with_name("launcher_parser.py")
SKYPILOT = unpacked("skypilot")
MODULES = {
    "torchrun": "torch",
    "skypilot": "jsonschema",
    "pytorchjob": "kubeflow",
    "trainjob": "kubeflow_trainer_api",
}
#: Plans of different shapes: framework, devices, layout, and the shipped model.
PLANS = {
    "tensor parallel": ("megatron-lm", 8, "tp=2,zero=1", "llama3-8b"),
    "pipeline": ("megatron-lm", 16, "tp=4,pp=2,zero=1,recompute=full", "llama3-8b"),
    "interleaved": ("megatron-lm", 32, "tp=2,pp=4,vpp=2,schedule=interleaved", "llama3-8b"),
    "uneven stages": ("megatron-lm", 24, "pp=3,stages=10/11/11", "llama3-8b"),
    "context parallel": ("megatron-lm", 16, "tp=4,cp=2,zero=1,recompute=selective", "llama3-8b"),
    "experts": ("megatron-lm", 64, "pp=4,ep=8,zero=1", "mixtral-8x7b"),
    "sharded parameters": ("deepspeed", 16, "zero=3", "llama3-8b"),
    "sharded on one node": ("accelerate", 8, "zero=3", "llama3-8b"),
    "one device": ("megatron-lm", 1, "tp=1", "gpt2-xl"),
    "1,024 devices": ("megatron-lm", 1024, "tp=4,pp=4,zero=1,recompute=full", "llama3-8b"),
}
#: Plans that torchrun starts.
STARTED = [name for name in PLANS if PLANS[name][0] != "accelerate"]
STACK = load_entry("stack", "fsdp2")
#: Changes that make what is emitted wrong: the kind of parser, what stands there, and what is written.
BROKEN = {
    "unknown option of torchrun": ("torchrun", "--nproc-per-node=8", "--nproc-for-node=8"),
    "processes that are no number": ("torchrun", "--nproc-per-node=8", "--nproc-per-node=many"),
    "nodes that are no number": ("torchrun", "--nnodes=2", "--nnodes=two"),
    "unknown key of a task": ("skypilot", "num_nodes:", "num_node:"),
    "nodes of a task as text": ("skypilot", "num_nodes: 2", "num_nodes: two"),
    "unknown key of resources": ("skypilot", "accelerators:", "accelerator:"),
    "misspelt replicas of a PyTorchJob": ("pytorchjob", "replicas:", "replica:"),
    "misspelt processes of a PyTorchJob": ("pytorchjob", "nprocPerNode:", "nprocPerNodes:"),
    "misspelt trainer of a TrainJob": ("trainjob", "trainer:\n    image", "trainers:\n    image"),
    "nodes of a TrainJob as text": ("trainjob", "numNodes: 2", "numNodes: two"),
}

pytestmark = pytest.mark.frameworks


def needs(kind):
    """Skip where the Python of the frameworks does not have a parser."""
    if not has_module(MODULES[kind]) or (kind == "skypilot" and SKYPILOT is None):
        pytest.skip(f"what has the parser of {kind} is not there")


def version_of(kind):
    """Return the version of what has the parser of a manifest."""
    packages = {"pytorchjob": "kubeflow-training", "trainjob": "kubeflow-trainer-api"}
    return installed_version(packages[kind]) if kind in packages else Path(SKYPILOT).name.split("-")[1]


def run_of(name):
    """Return the framework of a shape, its job, whose batch every shape divides, and its layout."""
    framework, devices, text, model = PLANS[name]
    job = load_job("llama3-8b-8x-a100")
    workload = Workload(sequence_length=1024, global_batch_size=4096)
    model = load_entry("model", model)
    layout = parse_layout(text, layers=model.layers, devices=devices)
    return framework, replace(job, workload=workload, model=model, stack=STACK), layout


def case_of(kind, name):
    """Return the case of what is emitted for a shape, and its number of nodes and processes of each."""
    framework, job, layout = run_of(name)
    launcher = {"pytorchjob": "kubernetes", "trainjob": "kubernetes"}.get(kind, kind)
    target = starting(find_target(launcher), framework, job.stack, image="registry/image:1")
    emission = target.emit(PlannedRun(job, layout))
    file = next(f for f in emission.files if kind in f.name or launcher != "kubernetes")
    nodes = -(-layout.devices // 8)
    shape = (nodes, layout.devices // nodes)
    if kind != "torchrun":
        return {"kind": kind, "text": file.text}, shape
    joined = file.text.replace("\\\n", " ")
    command = re.search(r"(?m)^torchrun (.*)$", joined)
    values = {"NODE_RANK": "0", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}
    words = [re.sub(r"\$(\w+)", lambda m: values.get(m[1], ""), w) for w in shlex.split(command[1])]
    return {"kind": kind, "words": words[:-1]}, shape


def broken_case(name):
    """Return the case of what is emitted for a pipeline, with its change."""
    kind, old, new = BROKEN[name]
    case, _ = case_of(kind, "pipeline")
    if kind == "torchrun":
        return {**case, "words": [word.replace(old, new) for word in case["words"]]}
    assert old in case["text"]
    return {**case, "text": case["text"].replace(old, new)}


@functools.cache
def answers(kind):
    """Return what a parser makes of all cases, by name: loading it is what takes time."""
    cases = {name: case_of(kind, name)[0] for name in PLANS if kind != "torchrun" or name in STARTED}
    cases |= {name: broken_case(name) for name in BROKEN if BROKEN[name][0] == kind}
    found = asked(PARSER, list(cases.values()), *([SKYPILOT] if kind == "skypilot" else []))
    return dict(zip(cases, found, strict=True))


@pytest.mark.parametrize("name", STARTED)
def test_torchrun_reads_nodes_processes_and_the_program(name):
    """Its parser finds as many nodes and processes as the plan has, and all arguments after the program."""
    needs("torchrun")
    case, (nodes, per_node) = case_of("torchrun", name)

    found = answers("torchrun")[name]

    assert found.get("error") is None
    assert (found["nodes"], found["processes"]) == ([nodes, nodes], per_node)
    assert found["words"] == case["words"][len(case["words"]) - len(found["words"]) :]
    assert found["words"][0] in {"pretrain_gpt.py", "train.py"}
    if nodes > 1:
        assert (found["endpoint"], found["backend"], found["rank"]) == ("node-0:29500", "static", 0)
    cell("torchrun", installed_version("torch"), name, f"accepted, starts {PLANS[name][0]}")


@pytest.mark.parametrize("kind", ["skypilot", "pytorchjob", "trainjob"])
@pytest.mark.parametrize("name", PLANS)
def test_manifests_are_accepted_and_kept(kind, name):
    """Schemas and models accept each manifest, read its nodes, and lose no field of it."""
    needs(kind)
    _, (nodes, per_node) = case_of(kind, name)

    found = answers(kind)[name]

    assert found.get("error") is None
    assert found.get("kept", True)
    if kind == "skypilot":
        assert (found["nodes"], found["accelerators"]) == (nodes, f"A100-80GB:{per_node}")
    elif kind == "pytorchjob":
        assert sum(found["replicas"].values()) == nodes
    else:
        assert found["nodes"] == nodes
    cell(kind, version_of(kind), name, f"accepted, starts {PLANS[name][0]}")


@pytest.mark.parametrize("name", STARTED)
def test_a_script_of_slurm_is_one_of_bash(name):
    """Bash takes what is emitted for Slurm, which has no parser of its own without a cluster."""
    framework, job, layout = run_of(name)
    script = starting(find_target("slurm"), framework, job.stack).emit(PlannedRun(job, layout)).files[0].text

    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    cell("slurm", "24.11 (names checked)", name, f"names checked, starts {framework}")


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused(name):
    """A changed manifest or command is an error, or loses the field, so that acceptance says something."""
    kind = BROKEN[name][0]
    needs(kind)

    found = answers(kind)[name]

    assert "error" in found or not found.get("kept", True)
