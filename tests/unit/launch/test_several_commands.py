"""Scripts with several commands of one program, arguments from outside, and programs of their own."""

import json

import pytest

from autoplan.errors import SpecError
from autoplan.launch.scripts.shell_reader import read_script

LAUNCH = "accelerate launch --num_processes 4 train.py"
COMMAND = "--model_name_or_path Qwen/Qwen2.5-7B --bf16 True --max_length 2048 --gradient_accumulation_steps 2"
SIZE = "--per_device_train_batch_size 2"
KEYS = """model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
max_length: 2048
bf16: true
gradient_checkpointing: true
output_dir: out
"""
REPLICAS = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 4\n"
STARTED = '#!/bin/bash\n#SBATCH --nodes=1\nsrun accelerate launch --config_file ddp.yaml -m src.train "$@"\n'
OWN_VERL = """python -m mine.main_grpo algorithm.adv_estimator=grpo \\
    data.max_prompt_length=1024 data.max_response_length=3072 data.train_batch_size=64 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 trainer.n_gpus_per_node=8 trainer.nnodes=1
"""


def test_what_commands_of_one_program_differ_in_is_open(reading):
    """No command is taken for the one that is meant."""
    text = "\n".join(f"{LAUNCH} {COMMAND} --per_device_train_batch_size {size}" for size in (8, 4))
    found = reading({"run.sh": text})

    assert found.layout_fields["mbs"] is None
    assert (found.layout_fields["dp"], found.job["workload"]["sequence_length"]) == (4, 2048)
    assert any("2 commands start the program" in note for note in found.warnings)


def test_commands_that_differ_in_no_size_are_read(reading):
    """Learning rates and folders decide nothing."""
    rates = (
        f"{LAUNCH} {COMMAND} --per_device_train_batch_size 8 --learning_rate {r}" for r in ("1e-5", "2e-5")
    )
    found = reading({"run.sh": "\n".join(rates)})
    assert (found.layout_fields["mbs"], found.job["model"]) == (8, "qwen2.5-7b")


def test_a_size_that_is_a_word_in_one_of_several_commands_is_refused(reading):
    """It is refused with its line, whichever command is meant."""
    text = "\n".join(f"{LAUNCH} {COMMAND} --per_device_train_batch_size {size}" for size in ("many", 4))
    with pytest.raises(SpecError) as caught:
        reading({"run.sh": text})
    assert (caught.value.problems[0].line, "'many'" in str(caught.value)) == (1, True)


def test_arguments_of_a_script_from_outside_are_all_of_them():
    """``"$@"`` has what --set gives by numbers, less those that are shifted away."""
    text = 'shift\ntrain "$@" $#'
    script = read_script(text, "run.sh", {"1": "a", "2": "--config", "3": "b c"})
    assert [word.text for word in script.commands[-1].words] == ["train", "--config", "b c", "2"]


def test_arguments_behind_a_file_of_keys_go_over_it(reading):
    """A job script gets the file of keys and further arguments; its launcher counts, too."""
    files = {"run.sh": "sbatch train.slurm --config keys.yaml --per_device_train_batch_size 1\n"}
    files |= {"train.slurm": STARTED, "keys.yaml": KEYS, "ddp.yaml": REPLICAS}
    found = reading(files)

    assert [found.layout_fields[name] for name in ("dp", "mbs", "zero")] == [4, 1, 0]
    assert found.job["workload"]["global_batch_size"] == 16


def test_arguments_behind_a_file_of_keys_that_differ_are_refused(reading):
    """What decides a layout is named with its line, and ``--arg`` says it."""
    lines = (f"sbatch train.slurm --config keys.yaml --gradient_accumulation_steps {n}" for n in (1, 2))
    files = {"run.sh": "\n".join(lines), "train.slurm": STARTED, "keys.yaml": KEYS, "ddp.yaml": REPLICAS}
    with pytest.raises(SpecError) as caught:
        reading(files)
    assert "which of several commands is meant" in str(caught.value)
    found = reading(files, arguments=["--gradient_accumulation_steps", "2"])
    assert found.job["workload"]["global_batch_size"] == 16


def test_a_program_of_its_own_around_verl_is_read_by_its_overrides(reading):
    """What its own configuration may set is open."""
    found = reading({"run.sh": OWN_VERL})
    assert (found.framework, found.layout_fields["mbs"]) == ("verl", 4)
    assert found.job["workload"]["sequence_length"] == 4096
    assert {"zero", "precision", "optimizer", "recompute"} <= set(found.unspecified)


def test_a_file_of_deepspeed_may_be_yaml(reading):
    """Its sections stand at the top level, and no model beside them."""
    text = "bf16:\n  enabled: true\nzero_optimization:\n  stage: 3\n"
    assert reading({"zero3.yaml": text}).layout_fields["zero"] == 3
    with pytest.raises(SpecError):
        reading({"own.yaml": f"model: a\n{text}"})


def test_keys_of_a_program_of_its_own_are_not_axolotls(reading):
    """A base model alone makes no file of axolotl, whose defaults would stand for what it does not say."""
    own = "base_model: Qwen/Qwen2.5-7B\nlearning_rate: 1.0e-5\nmax_seq_len: 2048\nbatch: 2\nepochs: 1\n"
    with pytest.raises(SpecError) as caught:
        reading({"sft.yaml": own})
    assert "framework is not clear" in str(caught.value)


def test_an_executable_of_vllm_in_a_variable_serves(reading):
    """The program is the one that the variable holds."""
    text = 'venv=.venv\nvllm_bin="$venv/bin/vllm"\n"$vllm_bin" serve Qwen/Qwen2.5-7B -tp 4 &\nwait $!\n'
    assert reading({"serve.sh": text}).layout.tp == 4


def test_eval_without_quotes_has_one_command_over_lines():
    """A shell splits such a text into words before it is a command."""
    script = read_script('run="torchrun train.py\n --lr 1"\neval $run', "run.sh", {})
    assert [word.text for word in script.commands[-1].words] == ["torchrun", "train.py", "--lr", "1"]


def test_weights_of_preferences_that_are_not_known_are_said(reading):
    """They decide no layout."""
    zero = json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}})
    text = f"while read -r b; do\n {LAUNCH} {COMMAND} {SIZE} --beta $b --deepspeed ds.json\ndone < list\n"
    found = reading({"dpo.sh": text, "ds.json": zero})
    assert found.layout_fields["zero"] == 2
    assert any("--beta" in note and "not read" in note for note in found.warnings)


def test_a_file_of_deepspeed_for_a_program_of_its_own_leaves_the_sharding_open(reading):
    """It goes over what the launcher says."""
    found = reading({"own.sh": "accelerate launch --num_processes 4 own.py --lr 1 --deepspeed ds.json\n"})
    assert (found.framework, found.layout_fields["zero"]) == ("accelerate", None)
