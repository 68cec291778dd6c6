"""NeMo: files of NeMo 1 and of its launcher, recipes of NeMo 2, overrides, and edits."""

import pytest

import autoplan
from autoplan.errors import SpecError
from autoplan.launch.configuration import FileEdit, LaunchFile
from autoplan.launch.frameworks.nemo import TARGET
from autoplan.launch.recognition import recognised
from autoplan.schema.layout import parse_layout

NEMO1 = """trainer:
  num_nodes: 4
  devices: 8
  precision: bf16-mixed
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 2
  sequence_parallel: true
  megatron_amp_O2: true
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  position_embedding_type: rope
  normalization: rmsnorm
  activation: fast-swiglu
  bias: false
  share_embeddings_and_output_weights: false
  override_vocab_size: 32000
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 1
  optim:
    name: mcore_distributed_optim
    grad_sync_dtype: bf16
"""
RECIPE = """MODEL_ARGS:
  trainer.num_nodes: 1
  trainer.devices: 8
  trainer.strategy.tensor_model_parallel_size: 2
  trainer.strategy.pipeline_model_parallel_size: 2
  trainer.strategy.context_parallel_size: 1
  data.micro_batch_size: 1
  data.global_batch_size: 8
"""
SCRIPT = """#!/bin/bash
TP=${TP:-4}
nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 trainer.devices=8 \\
    trainer.strategy.tensor_model_parallel_size=$TP trainer.strategy.pipeline_model_parallel_size=1 \\
    data.micro_batch_size=1 data.global_batch_size=64
"""


def read(text, **more):
    """Return what a file says."""
    file = LaunchFile("nemo.yaml", text, **more)
    assert recognised(file) is TARGET
    return TARGET.read(file)


def test_a_file_of_nemo_1_is_read_whole():
    """Degrees, references, recompute of blocks, the optimizer and the model are as in the file."""
    found = read(NEMO1)

    layout = "tp=4,pp=4,vpp=2,schedule=interleaved,sp=on,mbs=1,zero=1,recompute=full:2"
    assert found.layout == parse_layout(layout, layers=32, devices=32)
    assert found.job["workload"] == {"sequence_length": 4096, "global_batch_size": 128}
    assert (found.job["precision"], found.job["optimizer"]) == ("bf16", "adamw")
    assert found.job["software"] == {"gradients": "bf16"}
    assert (found.job["model"]["ffn_size"], found.job["model"]["kv_heads"]) == (16384, 8)
    assert found.values["tp"].line == 8
    assert found.unspecified == ()


def test_arguments_override_values_of_the_file():
    """An override has the last word, as Hydra has it, and one with ~ removes a value."""
    found = read(NEMO1, arguments=("model.tensor_model_parallel_size=8", "~model.optim.grad_sync_dtype"))

    assert (found.layout.tp, found.layout.dp) == (8, 1)
    assert "software" not in found.job


def test_fsdp_and_fp8_are_read():
    """PyTorch's FSDP is ZeRO-3, or ZeRO-2 for gradients alone; fp8 is a format."""
    text = NEMO1.replace("tensor_model_parallel_size: 4", "tensor_model_parallel_size: 1\n  fsdp: true", 1)
    text = text.replace("pipeline_model_parallel_size: 4", "pipeline_model_parallel_size: 1\n  fp8: true", 1)
    text = text.replace("virtual_pipeline_model_parallel_size: 2", "fsdp_sharding_strategy: grad")

    found = read(text.replace("sequence_parallel: true", "sequence_parallel: false"))

    assert (found.layout.zero, found.layout.dp, found.job["precision"]) == (2, 32, "fp8")


@pytest.mark.parametrize("text", [RECIPE, SCRIPT.replace("$TP", "2")])
def test_what_a_recipe_decides_stays_open(text):
    """Overrides of a recipe are read, and what they leave to it is no default."""
    found = TARGET.read(LaunchFile("recipe", text))

    assert found.layout is None
    assert found.layout_fields["tp"] == 2
    assert {"zero", "recompute", "precision", "model"} <= set(found.unspecified)
    assert found.defaults == ()
    assert any("recipe" in warning for warning in found.warnings)


def test_scripts_follow_variables():
    """Variables of a script have their values, and those of the environment go first."""
    assert TARGET.read(LaunchFile("run.sh", SCRIPT)).layout_fields["tp"] == 4
    assert TARGET.read(LaunchFile("run.sh", SCRIPT, variables={"TP": "8"})).layout_fields["tp"] == 8

    with pytest.raises(SpecError, match=r"tensor_model_parallel_size.*line 2"):
        TARGET.read(LaunchFile("run.sh", SCRIPT.replace("${TP:-4}", "$(nproc)")))


@pytest.mark.parametrize(
    ("old", "new", "line", "sentence"),
    [
        ("tensor_model_parallel_size: 4", "tensor_model_parallel_size: 3", 8, "does not divide"),
        ("tensor_model_parallel_size", "tensor_model_paralel_size", 8, "did you mean model.tensor_model_par"),
        ("num_layers: 32", "num_layers: 30", 9, "30 layers cannot be divided evenly"),
        ("micro_batch_size: 1", "micro_batch_size: 7", 7, "does not divide the global_batch_size=128"),
        ("sequence_parallel: true", "sequence_parallel: maybe", 11, "neither true nor false"),
        ("precision: bf16-mixed", "precision: tf32", 4, "'tf32' is none of"),
        ("normalization: rmsnorm", "normalization: batchnorm", 21, "'batchnorm' is none of"),
        ("num_layers: 32", "num_layers: ${other.layers}", 15, "give --arg model.num_layers=VALUE"),
        ("activations_checkpoint_method: block", "x: 1", 26, "needs model.activations_checkpoint_method"),
    ],
)
def test_what_contradicts_is_refused(old, new, line, sentence):
    """Errors have NeMo's own keys, and their lines."""
    with pytest.raises(SpecError) as caught:
        read(NEMO1.replace(old, new))

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert (problem.file, problem.line) == ("nemo.yaml", line)
    assert "--" not in problem.message.replace("--arg", "")


def test_edits_are_keys_of_the_file_or_overrides_of_the_script():
    """A recipe's YAML file has its keys edited where they stand, a script the words of its command."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    old, new = (parse_layout(text, layers=32, devices=8) for text in ("tp=2,pp=2,sp=off", "tp=4,pp=2,sp=off"))

    (key,) = TARGET.edits(LaunchFile("a.yaml", RECIPE), job, old, new)
    (word,) = TARGET.edits(LaunchFile("a.sh", SCRIPT, {"TP": "8"}), job, old, new)

    path = "trainer.strategy.tensor_model_parallel_size"
    assert key == FileEdit(f"{path}: 2", f"{path}: 4", 4, f"MODEL_ARGS.{path}")
    assert (word.before, word.after, word.line, word.path) == (f"{path}=8", f"{path}=4", 4, "")


def test_degrees_of_rollouts_are_none_of_nemo(tmp_path):
    """Configurations of verl name the degree of their engine as NeMo names that of the run."""
    path = tmp_path / "ppo_trainer.yaml"
    engine = "  rollout: {tensor_model_parallel_size: 2}\n"
    path.write_text(f"actor_rollout_ref:\n  model: {{path: m}}\n{engine}trainer: {{nnodes: 1}}\n", "utf-8")
    with pytest.raises(SpecError, match="the framework is not clear"):
        autoplan.read(path)
