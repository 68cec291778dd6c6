"""llm-foundry: what its YAML files say."""

import pytest

from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.llm_foundry import TARGET
from autoplan.launch.recognition import recognised
from autoplan.schema.layout import parse_layout

TEXT = """variables:
  max_seq_len: 2048
max_seq_len: ${variables.max_seq_len}
model:
  name: mpt_causal_lm
  d_model: 4096
  n_heads: 32
  n_layers: 32
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  attn_config:
    alibi: true
  no_bias: true
optimizer:
  name: decoupled_lionw
max_duration: 10ba
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  activation_checkpointing: true
  activation_cpu_offload: true
"""


def read(text, devices=8, **more):
    """Return what a file says."""
    file = LaunchFile("foundry.yaml", text, devices=devices, **more)
    assert recognised(file) is TARGET
    return TARGET.read(file)


def test_a_file_is_read_whole():
    """Sharding, recompute, offload, batch, precision, optimizer and MPT's sizes are as in the file."""
    found = read(TEXT)

    layout = "dp=8,mbs=4,zero=3,recompute=full,offload=activations"
    assert found.layout == parse_layout(layout, layers=32, devices=8)
    assert found.job["workload"] == {"sequence_length": 2048, "global_batch_size": 64}
    assert (found.job["precision"], found.job["optimizer"]) == ("bf16", "lion")
    model = found.job["model"]
    assert model == "mpt-7b" or (model["positions"], model["ffn_size"]) == ("alibi", 16384)
    assert found.unspecified == ()


@pytest.mark.parametrize(
    ("old", "new", "layout"),
    [
        ("FULL_SHARD", "SHARD_GRAD_OP", "mbs=4,zero=2"),
        ("FULL_SHARD", "NO_SHARD", "mbs=4,zero=0"),
        ("FULL_SHARD", "HYBRID_SHARD\n  data_parallel_shard_degree: 4", "mbs=4,zero=3,dp_shard=4"),
        ("FULL_SHARD", "FULL_SHARD\n  data_parallel_replicate_degree: 4", "mbs=4,zero=3,dp_shard=2"),
        ("microbatch_size: 4", "microbatch_size: 32", "mbs=8,zero=3"),
        ("fsdp_config:", "metadata:", "mbs=4,zero=0"),
    ],
)
def test_shardings_are_read(old, new, layout):
    """Each strategy is its ZeRO stage, groups are shard sizes, and a microbatch is at most a rank's batch."""
    recomputed = "none" if new == "metadata:" else "full,offload=activations"

    found = read(TEXT.replace(old, new))

    assert found.layout == parse_layout(f"{layout},recompute={recomputed}", layers=32, devices=8)


def test_what_is_found_at_run_time_or_elsewhere_stays_open():
    """An automatic microbatch and a model of the Hub are named, and not guessed."""
    text = TEXT.replace("microbatch_size: 4", "microbatch_size: auto")
    text = text.replace(
        "name: mpt_causal_lm", "name: hf_causal_lm\n  pretrained_model_name_or_path: some/model"
    )

    found = read(text)

    assert {"mbs", "model"} <= set(found.unspecified)
    assert any("some/model (line 6)" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("old", "new", "line", "sentence"),
    [
        ("FULL_SHARD", "SHARD_ALL", 22, "is none of"),
        (
            "activation_checkpointing:",
            "activation_checkpointin:",
            23,
            "did you mean activation_checkpointing",
        ),
        ("batch_size: 64", "batch_size: 60", 18, "do not divide"),
        ("n_layers: 32", "n_layers: many", 8, "is not an integer"),
        ("${variables.max_seq_len}\nmodel", "${variables.length}\nmodel", 3, "give --arg max_seq_len=VALUE"),
        ("activation_cpu_offload", "cpu_offload", 24, "not priced"),
    ],
)
def test_what_contradicts_is_refused(old, new, line, sentence):
    """Errors have their lines."""
    with pytest.raises(SpecError) as caught:
        read(TEXT.replace(old, new))

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert (problem.file, problem.line) == ("foundry.yaml", line)
