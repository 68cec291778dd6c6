"""Arguments of Megatron-LM in YAML files and in values that a program holds."""

from argparse import Namespace

import pytest

import autoplan
from autoplan.errors import SpecError, UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.recognition import recognised
from autoplan.schema.layout import parse_layout

ARGUMENTS = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 1024
  --num-attention-heads: 16
  --seq-length: 1024
  --max-position-embeddings: 1024
  --vocab-size: 50304
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --no-load-optim: false
  --bf16: true
  --micro-batch-size: 2
  --global-batch-size: 32
  --recompute-granularity: selective
"""
NESTED = """language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 8
  activation_func: swiglu
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 2
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  bf16: true
micro_batch_size: 2
global_batch_size: 32
seq_length: 1024
max_position_embeddings: 1024
vocab_size: 50304
use_distributed_optimizer: true
"""
#: As `vars(parse_args())` has them after validation: also what the user does not give.
PARSED = {
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": 4,
    "num_layers_per_virtual_pipeline_stage": 4,
    "context_parallel_size": 1,
    "num_layers": 32,
    "encoder_num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "group_query_attention": True,
    "num_query_groups": 8,
    "seq_length": 8192,
    "encoder_seq_length": 8192,
    "max_position_embeddings": 8192,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "vocab_size": 128256,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "bf16": True,
    "fp16": False,
    "fp8": None,
    "use_distributed_optimizer": True,
    "sequence_parallel": True,
    "recompute_granularity": None,
    "recompute_modules": None,
    "world_size": 8,
    "optimizer": "adam",
    "exp_avg_dtype": "torch.float32",
}


def read(text, **more):
    """Return what a file says."""
    file = LaunchFile("model_config.yaml", text, **more)
    target = recognised(file)
    assert target.name == "megatron-lm"
    return target.read(file)


def test_arguments_as_keys_are_read():
    """True is an argument without a value, false none, and every value has its line."""
    found = read(ARGUMENTS, devices=8)

    layout = "tp=2,pp=2,sp=on,mbs=2,zero=1,recompute=selective"
    assert found.layout == parse_layout(layout, layers=24, devices=8)
    assert (found.values["tp"].line, found.values["recompute"].line) == (10, 18)


def test_the_nested_form_is_read():
    """Sections have the names of Megatron-Core's configurations."""
    found = read(NESTED, devices=8)

    layout = "tp=2,pp=2,sp=on,mbs=2,zero=1,recompute=full,recompute_num_layers=2"
    assert found.layout == parse_layout(layout, layers=24, devices=8)
    assert (found.job["model"]["kv_heads"], found.job["model"]["activation"]) == (8, "swiglu")


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "sentence"),
    [
        (ARGUMENTS, "--hidden-size", "--hiden-size", 5, "did you mean --hidden-size"),
        (ARGUMENTS, "size: 2\n  --seq", "size: 3\n  --seq", None, "does not divide"),
        (NESTED, "hidden_size", "hiden_size", 3, "did you mean language_model.hidden_size"),
        (NESTED, "recompute_method", "x", 7, "needs language_model.recompute_method"),
        (NESTED, "bf16: true", "bf16: 16", 14, "neither true nor false"),
        (NESTED, "swiglu", "mish", 6, "'mish' is none of"),
    ],
)
def test_what_contradicts_is_refused(text, old, new, line, sentence):
    """Errors have the keys of the file, and their lines."""
    if line is None:
        text = text.replace("--tensor-model-parallel-size: 2", "--tensor-model-parallel-size: 3")
    with pytest.raises(SpecError) as caught:
        read(text.replace(old, new), devices=8)

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert problem.line == (10 if line is None else line)


@pytest.mark.parametrize("held", [Namespace(**PARSED), PARSED])
def test_parsed_arguments_are_read(held):
    """A namespace and a mapping say the same; values have no lines, and idle defaults say nothing."""
    found = autoplan.read_values(held, "megatron-lm")

    layout = "tp=2,pp=2,vpp=4,schedule=interleaved,sp=on,mbs=1,zero=1"
    assert found.layout == parse_layout(layout, layers=32, devices=8)
    assert (found.job["model"], found.job["devices"]) == ("llama3-8b", 8)
    assert found.unspecified == ()
    assert all(written.line in {None, 0} for written in found.values.values())


def test_devices_that_are_said_go_before_the_world_size():
    """A launcher that has not started ranks yet says how many there will be."""
    found = autoplan.read_values({**PARSED, "world_size": 1}, "megatron-lm", devices=16)

    assert found.layout.dp == 4
    with pytest.raises(SpecError, match="does not divide the 2 devices"):
        autoplan.read_values({**PARSED, "world_size": 2}, "megatron-lm")


def test_values_of_other_frameworks_are_read():
    """Nested mappings are read as the files that they would be."""
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    batches = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    held = {**batches, "zero_optimization": zero, "bf16": {"enabled": True}}

    found = autoplan.read_values(held, "deepspeed")

    layout = parse_layout("dp=8,sp=off,mbs=2,zero=2,offload=optimizer", layers=32, devices=8)
    assert parse_layout(found.layout_string, layers=32, devices=8) == layout
    nested = {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 2}}
    assert autoplan.read_values(nested, "accelerate").layout_fields["zero"] == 3


def test_what_are_no_values_is_refused():
    """Anything but a mapping or a namespace, and contradictions in one, are errors without lines."""
    with pytest.raises(UnsupportedError, match="a mapping or a namespace, not list"):
        autoplan.read_values([1], "megatron-lm")
    with pytest.raises(SpecError, match="values of Megatron-LM: micro_batch_size: 'x' is not an integer"):
        autoplan.read_values({**PARSED, "micro_batch_size": "x"}, "megatron-lm")
    deep = {}
    deep["inner"] = deep
    with pytest.raises(SpecError, match="nested too deeply"):
        autoplan.read_values(deep, "deepspeed")
