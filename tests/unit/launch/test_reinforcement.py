"""Scripts of verl and OpenRLHF: what they train, with rollouts as a job has them, or a refusal."""

from pathlib import Path

import pytest

from autoplan.answers.configure.ask import read
from autoplan.errors import SpecError

VERL = """MODEL=Qwen/Qwen2.5-7B-Instruct
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.train_batch_size=256 \\
    data.max_prompt_length=1024 data.max_response_length=3072 \\
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=8 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
"""
VERL_SFT = """torchrun --nnodes=1 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer \\
    data.train_batch_size=64 data.micro_batch_size_per_gpu=2 data.max_length=4096 \\
    model.partial_pretrain=Qwen/Qwen3-4B model.enable_gradient_checkpointing=True \\
    ulysses_sequence_parallel_size=2 model.lora_rank=32
"""
SFT = """set -x
read -r -d '' commands <<EOF
openrlhf.cli.train_sft --pretrain meta-llama/Meta-Llama-3-8B --bf16 --zero_stage 3 \\
   --train_batch_size 256 --micro_train_batch_size 2 --gradient_checkpointing --adam_offload
EOF
deepspeed --include localhost:0,1,2,3 --module $commands
"""
DOTTED = """deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo --model.model_name_or_path \\
   meta-llama/Llama-3.1-8B-Instruct --train.micro_batch_size 1 --data.max_len 8192 --ds.zero_stage 3 \\
   --ds.ring_attn_size 2 --model.beta 0.1 --ds.lora.rank 16
"""
PPO = """ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-7B \\
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 4 --colocate_all_models \\
   --vllm_gpu_memory_utilization 0.6 --vllm_enable_sleep --advantage_estimator rloo --bf16 \\
   --zero_stage 3 --prompt_max_len 1024 --generate_max_len 3072 --micro_train_batch_size 1 \\
   --train_batch_size 128
"""


@pytest.fixture
def script(tmp_path: Path):
    """Return what writes a text as a script, and reads it."""

    def reading(text: str, **options):
        file = tmp_path / "train.sh"
        file.write_text(text, encoding="utf-8")
        return read(file, **options)

    return reading


def test_the_actor_of_verl_is_a_job_with_rollouts(script):
    """Batches count completions, shards that move between phases are no offload, and the rest is said."""
    found = script(VERL)
    assert (found.framework, found.job["model"]) == ("verl", "qwen2.5-7b")
    assert found.layout_string.startswith("tp=1,pp=1,dp=16,cp=1,ep=1,mbs=4,zero=3")
    assert found.job["workload"] == {"sequence_length": 4096, "global_batch_size": 512}
    assert found.job["rl"] == {
        "method": "grpo",
        "beta": 0.001,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.6,
        "vllm_enable_sleep_mode": True,
    }
    assert found.job["software"] == {"attention": "flash2"}
    assert any("rollouts with tensor parallelism 2" in warning for warning in found.warnings)


def test_what_verl_leaves_to_its_version_is_open(script):
    """Batches of tokens, earlier keys, a critic and a user's configuration are said, and not assumed."""
    key = "actor_rollout_ref.actor.ppo_micro_batch_size"
    dynamic = VERL.replace(f"{key}_per_gpu=4", "actor_rollout_ref.actor.use_dynamic_bsz=True")
    assert "mbs" in script(dynamic).unspecified
    earlier = script(VERL.replace(f"{key}_per_gpu=4", f"{key}=64"))
    assert {"mbs", "global_batch_size"} <= set(earlier.unspecified)
    critic = script(VERL.replace("adv_estimator=grpo", "adv_estimator=gae"))
    assert "rl" not in critic.job
    assert any("critic" in warning for warning in critic.warnings)
    own = script(
        VERL.replace("main_ppo \\", "main_ppo --config-name=mine \\").replace("trainer.nnodes=2", "")
    )
    assert any("mine is the user's" in warning for warning in own.warnings)


def test_megatron_in_verl_has_the_degrees_that_are_given(script):
    """Degrees that a script leaves out differ by the version of verl."""
    prefix = "actor_rollout_ref.actor.megatron"
    megatron = VERL.replace(
        "main_ppo \\",
        f"main_ppo --config-name='ppo_megatron_trainer' {prefix}.tensor_model_parallel_size=4 \\",
    )
    found = script(megatron)
    assert (found.layout_fields["tp"], found.layout_fields["zero"]) == (4, 1)
    assert {"pp", "recompute"} <= set(found.unspecified)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("tensor_model_parallel_size=2", "tensor_model_parallel_size=7", "do not divide the 16"),
        ("per_gpu=4", "per_gpu=four", "is not an integer"),
        ("trainer.nnodes=2", "trainer.nnodes=$(cat nodes)", "depends on the output"),
    ],
)
def test_what_verl_cannot_run_is_refused(script, old, new, sentence):
    """Engines that do not divide the devices, and values of another kind, are errors with their line."""
    with pytest.raises(SpecError) as caught:
        script(VERL.replace(old, new))
    assert sentence in str(caught.value)
    assert caught.value.problems[0].line


def test_samples_of_verl_are_an_ordinary_fine_tune(script):
    """FSDP over all ranks, of which some divide sequences."""
    found = script(VERL_SFT)
    assert found.layout_string.startswith("tp=1,pp=1,dp=2,cp=2,ep=1,mbs=2,zero=3")
    assert (found.job["model"], found.job["adapters"]["rank"]) == ("qwen3-4b", 32)
    assert "mbs" in script(VERL_SFT.replace("micro_batch_size_per_gpu", "micro_batch_size")).unspecified
    assert "recompute" in script(VERL_SFT.replace("model.enable_gradient_checkpointing=True", "")).unspecified


def test_openrlhf_is_read_from_a_here_document(script):
    """Its scripts read the command into a variable; what is left out has the program's default."""
    found = script(SFT)
    assert found.layout_string.startswith("tp=1,pp=1,dp=4,cp=1,ep=1,mbs=2,zero=3")
    assert found.layout_fields["offload"] == "optimizer"
    assert found.job["workload"] == {"sequence_length": 2048, "global_batch_size": 256}
    assert found.job["model"] == "llama3-8b"


def test_openrlhf_of_both_versions_has_the_same_keys(script):
    """Arguments of 0.11 have sections in their names, and bf16 by default."""
    found = script(DOTTED)
    assert found.layout_string.startswith("tp=1,pp=1,dp=4,cp=2,ep=1,mbs=1,zero=3")
    assert (found.job["precision"], found.job["rl"]) == ("bf16", {"method": "dpo", "beta": 0.1})
    assert "precision" in script(DOTTED.replace("--ds.zero_stage 3", "--ds.param_dtype auto")).unspecified


def test_the_actor_of_openrlhf_is_a_job_with_rollouts(script):
    """Engines on the devices that train take their memory; elsewhere they take none."""
    found = script(PPO)
    assert found.layout_string.startswith("tp=1,pp=1,dp=8,cp=1,ep=1,mbs=1,zero=3")
    assert found.job["workload"]["sequence_length"] == 4096
    assert (found.job["rl"]["vllm_mode"], found.job["rl"]["vllm_enable_sleep_mode"]) == ("colocate", True)
    assert script(PPO.replace("--colocate_all_models", "")).job["rl"]["vllm_mode"] == "server"
    assert "rl" not in script(PPO.replace("--advantage_estimator rloo", "")).job


@pytest.mark.parametrize(("old", "new"), [("--bf16", "--bf16 --fp16"), ("--zero_stage 3", "--zero_stagee 3")])
def test_what_openrlhf_does_not_take_is_refused(script, old, new):
    """A second precision and a misspelt argument are errors with their line."""
    with pytest.raises(SpecError) as caught:
        script(PPO.replace(old, new))
    assert caught.value.problems[0].line


@pytest.mark.parametrize("size", ["many", "-2", "0.5"])
def test_a_microbatch_of_samples_that_is_no_number_is_refused(tmp_path, size):
    """It is left open for what it counts, and still a number."""
    file = tmp_path / "sft.sh"
    file.write_text(
        "torchrun --nproc_per_node 2 -m verl.trainer.fsdp_sft_trainer data.train_batch_size=16 \\\n"
        f"    data.micro_batch_size={size} model.partial_pretrain=Qwen/Qwen2.5-7B\n"
    )
    with pytest.raises(SpecError) as caught:
        read(file)
    assert (caught.value.problems[0].line, "integer" in str(caught.value)) == (2, True)
