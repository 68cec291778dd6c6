"""nanotron: what its YAML files say, and the layers of its stages."""

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.nanotron import TARGET, balanced_stages, nanotron_document
from autoplan.launch.recognition import recognised
from autoplan.launch.target import InexpressibleError
from autoplan.schema.layout import parse_layout

TEXT = """model:
  dtype: bfloat16
  model_config:
    is_llama_config: true
    hidden_act: silu
    hidden_size: 4096
    intermediate_size: 14336
    max_position_embeddings: 8192
    num_attention_heads: 32
    num_hidden_layers: 32
    num_key_value_heads: 8
    tie_word_embeddings: false
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  optimizer_factory:
    name: adamW
  zero_stage: 1
parallelism:
  dp: 2
  pp: 4
  tp: 2
  pp_engine: 1f1b
  tp_mode: REDUCE_SCATTER
  recompute_layer: true
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 2
  sequence_length: 8192
  train_steps: 100
"""


def read(text, **more):
    """Return what a file says."""
    file = LaunchFile("nanotron.yaml", text, **more)
    assert recognised(file) is TARGET
    return TARGET.read(file)


def test_a_file_is_read_whole():
    """Degrees, batch, precision and the model are as in the file; stages follow from the balance."""
    found = read(TEXT)

    layout = "tp=2,pp=4,dp=2,sp=on,mbs=2,zero=1,recompute=full,stages=9/9/8/6"
    assert found.layout == parse_layout(layout, layers=32, devices=16)
    assert found.job["workload"] == {"sequence_length": 8192, "global_batch_size": 32}
    assert (found.job["model"], found.job["devices"]) == ("llama3-8b", 16)
    assert found.job["software"] == {"gradients": "fp32"}
    assert found.unspecified == ()


def test_defaults_are_those_of_nanotron():
    """Without an engine all microbatches go forward first, and sequences are not scattered."""
    lean = TEXT.replace("  pp_engine: 1f1b\n  tp_mode: REDUCE_SCATTER\n  recompute_layer: true\n", "")

    found = read(lean)

    assert (found.layout.schedule, found.layout.sequence_parallel, found.layout.mode) == (
        "gpipe",
        False,
        "none",
    )
    assert {"schedule", "sp", "recompute", "cp"} <= set(found.defaults)


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-1.3b", "qwen2.5-7b"])
def test_every_layer_is_on_a_stage(name, pp):
    """Stages have all layers, and the last ones, with the output layer, no more than the first."""
    model = load_entry("model", name)

    stages = balanced_stages(model, pp)

    assert (len(stages), sum(stages)) == (pp, model.layers)
    assert stages[-1] <= stages[0]


@pytest.mark.parametrize(
    ("old", "new", "line", "sentence"),
    [
        ("zero_stage: 1", "zero_stage: 3", 18, "stages 0 and 1"),
        ("  tp: 2", "  tp: two", 22, "'two' is not an integer"),
        ("  tp: 2", "  tpp: 2", 22, "'tpp' is no key of nanotron"),
        ("pp_engine: 1f1b", "pp_engine: zb", 23, "'zb' is none of"),
        ("  dp: 2", "  dp: 2\n  expert_parallel_size: 2", 21, "not read"),
        ("num_hidden_layers: 32", "num_hidden_layers: 3", 21, "balance gives the stages"),
    ],
)
def test_what_contradicts_is_refused(old, new, line, sentence):
    """Errors have their lines."""
    with pytest.raises(SpecError) as caught:
        read(TEXT.replace(old, new))

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert (problem.file, problem.line) == ("nanotron.yaml", line)


def test_other_devices_than_the_degrees_are_refused():
    """The product of the degrees is the number of devices."""
    with pytest.raises(SpecError, match="16 devices, and not --devices 8"):
        read(TEXT, devices=8)


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        ("pp=2,vpp=2", "virtual stages"),
        ("zero=3", "ZeRO-2 and ZeRO-3"),
        ("recompute=selective", "recompute"),
        ("pp=2", "its balance gives 18/14"),
        ("zero=1,offload=optimizer", "offload"),
    ],
)
def test_what_has_no_key_is_refused_with_the_nearest(layout, part):
    """A part without a key is named, with a layout that has none of it."""
    job = autoplan.load_job("llama3-8b-8x-a100")

    with pytest.raises(InexpressibleError) as caught:
        nanotron_document(job, parse_layout(layout, layers=32, devices=8))

    assert part in caught.value.part
    assert caught.value.nearest
