"""Manifests of jobs are read as the scripts that they run, in the lines of the manifest."""

import pytest

import autoplan
from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.job_manifests import with_script

DSTACK = """type: task
name: train
nodes: 2
env:
  - MODEL=meta-llama/Llama-3.1-8B
commands:
  - pip install trl
  - |
    accelerate launch --num_processes $DSTACK_GPUS_NUM sft.py \\
      --model_name_or_path $MODEL \\
      --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
      --bf16 True --gradient_checkpointing True --max_length 2048
resources:
  gpu: H100:8
"""
SKYPILOT = """resources:
  accelerators: {A100: 4}
num_nodes: 2
envs: {SEQ: 4096}
run: |
  torchrun --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE --nnodes $SKYPILOT_NUM_NODES pretrain_gpt.py \\
    --tensor-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 8 \\
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length $SEQ \\
    --max-position-embeddings 4096 --bf16
"""
PYTORCH_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers:
            - name: pytorch
              env:
                - {name: LAYERS, value: "24"}
              command: [torchrun, --nproc_per_node=8, --nnodes=2]
              args:
                - pretrain_gpt.py
                - --tensor-model-parallel-size=${TP}
                - --num-layers=$(LAYERS)
                - --hidden-size=1024
                - --num-attention-heads=16
                - --micro-batch-size=1
                - --global-batch-size=16
                - --seq-length=1024
                - --max-position-embeddings=1024
                - --fp16
"""


def read(tmp_path, text, name="job.yaml", **more):
    """Return what is read of a text in a file."""
    file = tmp_path / name
    file.write_text(text)
    return autoplan.read(file, **more)


def test_a_task_of_dstack_has_the_devices_of_its_nodes(tmp_path):
    """Variables of dstack count devices; those of the task are its environment."""
    found = read(tmp_path, DSTACK, ".dstack.yml")

    assert found.framework == "trainer"
    assert found.job["devices"] == 16
    assert found.job["model"] == "llama3.1-8b"
    assert found.job["workload"] == {"sequence_length": 2048, "global_batch_size": 128}
    assert found.values["mbs"].line == 11


def test_a_task_of_skypilot_starts_megatron(tmp_path):
    """Nodes and accelerators are those of the task, and lines those of its file."""
    found = read(tmp_path, SKYPILOT)

    assert (found.framework, found.job["devices"]) == ("megatron-lm", 8)
    assert found.layout_fields["tp"] == 4
    assert found.job["workload"]["sequence_length"] == 4096
    assert found.values["tp"].line == 7


def test_a_job_of_kubernetes_takes_variables_from_outside(tmp_path):
    """Both ways to write a variable are filled in: of the container, and of a template."""
    found = read(tmp_path, PYTORCH_JOB, "job.yaml-template", variables={"TP": "2"})

    assert (found.layout_fields["tp"], found.layout_fields["dp"]) == (2, 8)
    assert found.layout is not None
    assert sum(found.layout.layers) == 24
    assert found.values["tp"].line == 16


def test_a_job_without_a_variable_is_refused_in_its_line(tmp_path):
    """A degree that a variable decides is no default."""
    with pytest.raises(SpecError, match=r"job\.yaml:16: .*TP"):
        read(tmp_path, PYTORCH_JOB)


@pytest.mark.parametrize("text", ["#!/bin/bash\ntorchrun train.py\n", "model: {layers: 4}\n", "type: none\n"])
def test_other_files_stay_as_they_are(text):
    """A script, and YAML that holds none, are not changed."""
    file = LaunchFile("file.yaml", text)

    assert with_script(file) is file


def test_a_manifest_that_is_no_yaml_is_refused_with_its_line():
    """A bracket that is not closed has a line."""
    with pytest.raises(SpecError, match=r"task\.yaml:3: "):
        with_script(LaunchFile("task.yaml", "type: task\ncommands: [a, b\nname: c\n"))
