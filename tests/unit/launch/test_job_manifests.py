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


DOCKERFILE = """FROM python:3.12 AS build
ENTRYPOINT ["python", "other.py"]
FROM vllm/vllm-openai:v0.11.0
ARG UTILIZATION=0.8
ENV MODEL=Qwen/Qwen2.5-7B-Instruct \\
    LENGTH="8192"
RUN pip install x && \\
    # a comment
    echo done
"""


STARTED = 'COPY <<EOF /start.sh\nexec vllm serve $MODEL -tp 2 "\\$@"\nEOF\n'
LIMITED = '"--tensor-parallel-size", "2", "--max-model-len", "$LENGTH"]'


@pytest.mark.parametrize(
    ("commands", "line"),
    [
        (f'CMD ["--model", "$MODEL", \\\n  {LIMITED}\n', 11),
        (f'ENTRYPOINT ["vllm", "serve"]\nCMD ["$MODEL", {LIMITED}\n', 11),
        ("CMD vllm serve $MODEL \\\n  --tensor-parallel-size 2 --max-model-len $LENGTH\n", 11),
        ('CMD ["sh", "-c", "vllm serve $MODEL -tp 2 --max-model-len ${LENGTH}"]\n', 10),
        (f'{STARTED}ENTRYPOINT ["/start.sh"]\nCMD ["--max-model-len", "8192"]\n', 13),
    ],
)
def test_a_dockerfile_is_what_its_container_runs(tmp_path, commands, line):
    """The entry point of the last stage and the words behind it, with what the stage sets."""
    path = tmp_path / "Dockerfile"
    path.write_text(DOCKERFILE + commands, encoding="utf-8")
    found = autoplan.read(path)

    assert (found.engine, found.layout.tp, found.job["model"]) == ("vllm@0.11", 2, "qwen2.5-7b")
    assert found.job["workload"]["longest_request"] == 8192
    assert found.values["longest_request"].line == line


def test_a_dockerfile_that_trains_is_a_script(tmp_path):
    """Its command has a launcher and a program, as a script has."""
    command = 'CMD ["accelerate", "launch", "--num_processes", "4", "sft.py", "--bf16", \\\n'
    command += ' "--per_device_train_batch_size", "2", "--model_name_or_path", "Qwen/Qwen2.5-7B"]\n'
    path = tmp_path / "Dockerfile.train"
    path.write_text(f"FROM python:3.12\n{command}", encoding="utf-8")
    assert (autoplan.read(path).layout_fields["dp"], autoplan.read(path).layout_fields["mbs"]) == (4, 2)


def test_a_list_of_words_that_is_not_closed_has_its_line(tmp_path):
    """Docker would hand it to a shell, which can do nothing with it."""
    path = tmp_path / "Dockerfile"
    path.write_text('FROM vllm/vllm-openai:latest\nCMD ["--model", "m/x"\n', encoding="utf-8")
    with pytest.raises(SpecError, match=r"Dockerfile:2: CMD: its list of words"):
        autoplan.read(path)


def test_a_dockerfile_without_a_command_is_refused(tmp_path):
    """Nothing says what its container runs."""
    path = tmp_path / "Dockerfile"
    path.write_text("FROM vllm/vllm-openai:latest\nRUN pip install x\n", encoding="utf-8")
    with pytest.raises(SpecError):
        autoplan.read(path)
