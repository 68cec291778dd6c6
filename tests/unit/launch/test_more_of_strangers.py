"""Further files that others start their jobs with: arguments of scripts and programs, and recipes."""

import pytest

from autoplan.answers.configure.words_of_scripts import in_words_of_script
from autoplan.catalog.programs import stack_of_way
from autoplan.errors import SpecError
from autoplan.launch.configuration import FileEdit, LaunchFile
from autoplan.launch.scripts.shell_reader import read_script

ARGUMENTS = """launcher=mpirun
for one in {words}; do
  if [[ $one == --launcher=* ]]; then launcher=${{one#*=}}; elif [[ $one == --tp=* ]]; then tp=${{one#*=}}; fi
done
run $launcher $tp
"""
SLURM = """#!/bin/bash
#SBATCH -N 4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 bash -c 'cp -r data /tmp'
srun {options} bash -c 'python train.py --model_name_or_path Qwen/Qwen3-8B --bf16 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --max_length 2048'
srun --nodes=1 --ntasks=1 cp -r /tmp/out .
"""
PARSED = """import argparse
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

def quantization(args):
    if not args.quantize:
        return None
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")

def main(args):
    half = args.bf16
    model = AutoModelForCausalLM.from_pretrained(args.model, quantization_config=quantization(args))
    config = SFTConfig(
        per_device_train_batch_size=args.batch_size, gradient_accumulation_steps=4, max_length=args.length,
        bf16=half, fp16=args.fp16 and not half, gradient_checkpointing=True, optim="adamw_torch",
    )
    SFTTrainer(model=model, args=config, peft_config=LoraConfig(r=args.rank)).train()

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--length", type=int{length})
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--bf16", action="store_true", default=True)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--quantize", action="store_true"{quantized})
    main(parser.parse_args())
"""
RECIPE = """recipe_version: "1"
model: Qwen/Qwen3-32B
container: vllm-node
defaults: {{port: 8000, tensor_parallel: {degree}, max_model_len: 16384}}
command: |
  vllm serve Qwen/Qwen3-32B --port {{port}} \\
    --speculative-config '{{{{"method": "ngram", "num_speculative_tokens": 2}}}}' \\
    -tp {{tensor_parallel}} --max-model-len {{max_model_len}}
"""


@pytest.mark.parametrize("words", ["$*", '"$@"'])
def test_a_loop_over_arguments_that_are_given_is_followed(words):
    """Those of a function, or those that are given from outside; else they stay unknown."""
    text = ARGUMENTS.format(words=words)
    given = {"1": "--launcher=torchrun", "2": "--tp=4"}

    run = read_script(text, "a.sh", given).commands[-1]

    assert [word.text for word in run.words] == ["run", "torchrun", "4"]
    assert all(word.unknown is None for word in run.words)


@pytest.mark.parametrize(("options", "devices"), [("--cpu-bind=none", 32), ("-N 2 --ntasks-per-node=8", 16)])
def test_the_srun_around_a_program_says_its_tasks(reading, options, devices):
    """Other steps of the job, which copy files, have tasks of their own."""
    assert reading({"a.slurm": SLURM.format(options=options)}).job["devices"] == devices


@pytest.mark.parametrize(
    ("quantized", "adapters"), [(", default=True", {"rank": 16, "base": "nf4"}), ("", {"rank": 16})]
)
def test_defaults_of_a_programs_arguments_are_read(reading, quantized, adapters):
    """They are what it runs with, and decide which of its branches it takes."""
    text = PARSED.replace("{quantized}", quantized).replace("{length}", ", default=1024")
    found = reading({"train.py": text})

    assert (found.layout_fields["mbs"], found.job["precision"]) == (2, "bf16")
    assert (found.job["model"], found.job["workload"]["sequence_length"]) == ("qwen3-4b", 1024)
    assert found.job["adapters"].items() >= adapters.items()
    assert ("base" in found.job["adapters"]) is ("base" in adapters)
    assert any("read as the default of this argument" in warning for warning in found.warnings)


def test_an_argument_without_a_default_stays_open(reading):
    """So does one that the program changes itself."""
    text = PARSED.replace("{quantized}", "").replace("{length}", ", required=True")
    changed = text.replace("    half = args.bf16\n", "    half = args.bf16\n    args.batch_size = 4\n")

    assert "sequence_length" in reading({"train.py": text}).unspecified
    assert "mbs" in reading({"train.py": changed}).unspecified


@pytest.mark.parametrize("degree", ["4", "four"])
def test_defaults_of_a_recipe_fill_its_command(reading, degree):
    """As ``str.format`` fills them; what is no number is refused with the line of the command."""
    text = RECIPE.format(degree=degree)
    if degree == "four":
        with pytest.raises(SpecError, match=r"recipe\.yaml:8: --tensor-parallel-size"):
            reading({"recipe.yaml": text})
        return
    found = reading({"recipe.yaml": text})
    assert (found.layout.tp, found.layout.spec, found.job["devices"]) == (4, 2, 4)


@pytest.mark.parametrize("before", ['F=""', 'F="--enforce-eager"'])
def test_a_switch_of_one_branch_alone_is_refused(reading, before):
    """Whether experts are divided over all devices is not taken from a branch that may not be taken."""
    script = f'{before}\nif nvidia-smi | grep -q H200; then F="--enable-expert-parallel"; fi\n'
    serve = "vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8 $F\n"
    with pytest.raises(SpecError, match=r"--enable-expert-parallel: its value depends on"):
        reading({"run.sh": script + serve})


def test_ms_swift_serves_with_names_of_its_own(reading):
    """A script that trains is read as a training whatever it deploys behind."""
    words = "--model Qwen/Qwen3-32B --vllm_tensor_parallel_size 4 --vllm_max_model_len 8192 --port 80\n"
    found = reading({"run.sh": f"CUDA_VISIBLE_DEVICES=0,1,2,3 swift deploy --infer_backend vllm {words}"})
    assert (found.layout.tp, found.job["workload"]["longest_request"]) == (4, 8192)

    with pytest.raises(SpecError, match="framework is not clear"):
        reading({"run.sh": f"swift deploy --infer_backend pt {words}"})


def test_a_pytorchjob_has_the_nodes_of_all_its_replicas(reading):
    """The training operator sets PET_NNODES."""
    train = (
        "torchrun --nnodes=$PET_NNODES --nproc_per_node=8 train.py --model_name_or_path Qwen/Qwen3-8B --bf16"
        " --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --max_length 512"
    )
    pod = f"template:\n        spec:\n          containers:\n            - command: [bash, -c, '{train}']\n"
    replicas = "".join(
        f"    {name}:\n      replicas: {count}\n      {pod}" for name, count in (("Master", 1), ("Worker", 3))
    )
    text = f"kind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n{replicas}"
    assert reading({"job.yaml": text}).job["devices"] == 32


def test_layers_of_state_spaces_are_refused_by_their_pattern(reading):
    """A hybrid is no decoder-only transformer, whatever its degrees."""
    text = "model:\n  pipeline_model_parallel_size: 2\n  hybrid_layer_pattern: 'ME|M*'\n"
    with pytest.raises(SpecError, match=r"bridge\.yaml:3: model\.hybrid_layer_pattern: .* hybrid"):
        reading({"bridge.yaml": text})


def test_keys_of_bridge_that_are_not_read_leave_open_what_they_may_decide(reading):
    """An unknown degree is no silent one, and two formats of numbers contradict each other."""
    text = "model:\n  tensor_model_parallel_size: 2\n  ulysses_parallel_size: 2\n"
    assert "cp" in reading({"bridge.yaml": text}).unspecified

    both = "model:\n  tensor_model_parallel_size: 2\noptimizer:\n  bf16: true\n  fp16: true\n"
    with pytest.raises(SpecError, match=r"bridge\.yaml:5: optimizer\.fp16: bf16 and fp16 are both true"):
        reading({"bridge.yaml": both})


@pytest.mark.parametrize(
    ("kind", "more", "refused"),
    [
        ("Deployment", "", True),
        ("Pod", "", True),
        ("StatefulSet", "", False),
        ("Deployment", ", --nnodes, '2'", False),
    ],
)
def test_an_engine_beyond_its_container_is_refused(reading, kind, more, refused):
    """A pod that is alone has the devices of its container; with others there may be more."""
    container = (
        "{image: own, command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-32B, --tp, '8'"
        f"{more}], resources: {{limits: {{nvidia.com/gpu: 4}}}}}}"
    )
    pod = f"containers: [{container}]"
    spec = pod if kind == "Pod" else f"template: {{spec: {{{pod}}}}}"
    files = {"engine.yaml": f"kind: {kind}\nspec: {{{spec}}}\n"}
    if refused:
        with pytest.raises(SpecError, match=r"engine\.yaml:2: .*takes 8 devices .* and its container has 4"):
            reading(files)
    else:
        assert reading(files).layout.tp == 8


def test_a_command_in_no_place_that_is_read_has_its_line(reading):
    """What is a manifest, and serves where no reader looks, is refused where it does."""
    text = "own:\n  image: vllm/vllm-openai\n  customCommand: |\n    vllm serve m/x\n"
    with pytest.raises(SpecError, match=r"own\.yaml:4: .*no serve command"):
        reading({"own.yaml": text})


def test_ms_swift_is_priced_as_what_it_is_built_on(reading):
    """DeepSpeed, replicas, or Megatron-LM, and not the stack of a node."""
    words = "--model Qwen/Qwen3-8B --per_device_train_batch_size 1 --max_length 512"
    ways = {
        f"NPROC_PER_NODE=8 swift sft {words} --deepspeed zero3": "deepspeed",
        f"NPROC_PER_NODE=8 swift sft {words}": "hf-trainer",
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --micro_batch_size 1": "megatron-core",
    }
    for script, stack in ways.items():
        found = reading({"run.sh": f"{script}\n"})
        assert stack_of_way(found.framework, found.way) == stack


SCRIPT = """TP=2
PP=${1:-4}
torchrun --nproc_per_node 8 pretrain_gpt.py \\
  --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size $PP \\
  --micro-batch-size 1
"""


def test_edits_have_the_words_of_the_script():
    """A value is changed where its variable is set, and a removed argument where it stands."""
    tp = FileEdit("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 1", 1)
    pp = FileEdit("--pipeline-model-parallel-size 4", "", 2)
    added = FileEdit("", "--sequence-parallel")
    seen = []

    def makes(file):
        seen.append((file.text, file.arguments))
        return True

    edits = in_words_of_script(LaunchFile("run.sh", SCRIPT), [tp, pp, added], makes)

    assert [(edit.before, edit.after, edit.line) for edit in edits] == [
        ("TP=2", "TP=1", 1),
        ("--pipeline-model-parallel-size $PP", "", 4),
        ("", "--sequence-parallel", None),
    ]
    assert seen[0][0].startswith("TP=1\n")
    assert seen[0][1] == ("--sequence-parallel",)


def test_edits_that_would_make_another_layout_keep_their_words():
    """A variable that decides more than the argument is not the one to change."""
    tp = FileEdit("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 1", 1)
    file = LaunchFile("run.sh", SCRIPT)
    assert in_words_of_script(file, [tp], lambda _: False) == (tp,)
    beyond = FileEdit("--seq-length 8", "--seq-length 16", 99)
    assert in_words_of_script(file, [beyond], lambda _: True) == (beyond,)


SERVICE = """kind: InferenceService
metadata: {name: llm}
spec:
  predictor:
    minReplicas: 2
    model:
      runtime: own
      args: [--max-model-len, "2048"]
"""
RUNTIME = """kind: ServingRuntime
metadata: {name: own}
spec:
  containers:
    - name: kserve-container
      image: vllm/vllm-openai:v0.11.0
      args: [--model, Qwen/Qwen2.5-7B, --tensor-parallel-size, "2"]
      resources: {limits: {nvidia.com/gpu: 2}}
"""


def test_a_service_of_kserve_adds_to_its_runtime(reading):
    """Its arguments follow, its replicas are those that run, and a runtime elsewhere is named."""
    found = reading({"both.yaml": f"{RUNTIME}---\n{SERVICE}"})
    assert (found.layout.tp, found.layout.replicas, found.job["model"]) == (2, 2, "qwen2.5-7b")
    assert found.job["workload"]["longest_request"] == 2048
    with pytest.raises(SpecError, match=r"llm\.yaml:7: runtime: its runtime own is in another file"):
        reading({"llm.yaml": SERVICE})


def test_a_shell_of_a_container_gets_the_arguments_behind_its_script(reading):
    """The first word behind it is its name."""
    script = "command: [bash, -c, 'vllm serve Qwen/Qwen2.5-7B \"$@\"', --]"
    words = f"containers:\n    - image: vllm/vllm-openai:v0.11.0\n      {script}\n      args: [-tp, '2']\n"
    assert reading({"pod.yaml": f"kind: Pod\nspec:\n  {words}"}).layout.tp == 2
