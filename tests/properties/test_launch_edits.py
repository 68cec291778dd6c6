"""Edits of a file make its layout the one that they are for, and change nothing else."""

import contextlib
import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autoplan.catalog import load_job
from autoplan.errors import AutoplanError
from autoplan.launch.bindings.written_document import edited_values, read_yaml
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.registry import find_target
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import Layout, parse_layout
from autoplan.schema.stage_layers import even_stages

LAYERS, DEVICES, BATCH = 32, 16, 256
FILES = {
    "deepspeed": """{
  "train_batch_size": 256, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16,
  "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
  "gradient_clipping": 1.0, "zero_optimization": {"stage": 3, "overlap_comm": true}
}""",
    "accelerate": """num_machines: 2
num_processes: 16
mixed_precision: bf16
distributed_type: FSDP
main_process_port: 29500
fsdp_config:
  fsdp_version: 2
  fsdp_state_dict_type: SHARDED_STATE_DICT
""",
    "nemo": """trainer: {num_nodes: 2, devices: 8, precision: bf16}
model:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  num_layers: 32
  micro_batch_size: 1
  global_batch_size: 256
  encoder_seq_length: 2048
  optim: {name: fused_adam, lr: 0.1}
""",
    "nanotron": """parallelism: {dp: 16, pp: 1, tp: 1, tp_mode: ALL_REDUCE, pp_engine: 1f1b}
tokens: {micro_batch_size: 1, batch_accumulation_per_replica: 16, sequence_length: 8192, train_steps: 9}
optimizer: {zero_stage: 0, clip_grad: 1.0}
model:
  model_config: {is_llama_config: true, hidden_size: 4096, intermediate_size: 14336, vocab_size: 128256,
    num_attention_heads: 32, num_hidden_layers: 32, num_key_value_heads: 8, max_position_embeddings: 8192}
""",
    "llm-foundry": """max_seq_len: 8192
global_train_batch_size: 256
device_train_microbatch_size: 1
max_duration: 10ba
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE}
""",
    "trainer": """{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "bf16": true,
  "optim": "adamw_torch_fused", "max_length": 8192, "learning_rate": 1e-5,
  "fsdp": true, "fsdp_config": {"version": 2, "reshard_after_forward": true}}""",
    "axolotl": """base_model: meta-llama/Meta-Llama-3-8B
sequence_len: 8192
micro_batch_size: 1
gradient_accumulation_steps: 16
optimizer: adamw_torch_fused
learning_rate: 1e-5
bf16: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true, auto_wrap_policy: TRANSFORMER_BASED_WRAP}
""",
    "llama-factory": """model_name_or_path: meta-llama/Meta-Llama-3-8B
finetuning_type: full
cutoff_len: 8192
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
learning_rate: 1e-5
bf16: true
disable_gradient_checkpointing: true
fsdp: full_shard auto_wrap
fsdp_config: {version: 2, reshard_after_forward: true}
""",
    "megatron-lm": """MODEL_ARGS:
  --num-layers: 32
  --tensor-model-parallel-size: 1
  --micro-batch-size: 1
  --global-batch-size: 256
  --seq-length: 8192
  --lr: 0.1
""",
}
TRAINERS = ("trainer", "axolotl", "llama-factory")
TRAINERS = ("trainer", "axolotl", "llama-factory")
FIRST = {
    **dict.fromkeys(("deepspeed", "accelerate", "llm-foundry", *TRAINERS), "zero=3"),
    "nemo": "tp=2,sp=off",
}
STACKS = {"deepspeed": "deepspeed", "accelerate": "fsdp2", **dict.fromkeys(TRAINERS, "hf-fsdp2")}


@st.composite
def layouts(draw):
    """Return a layout of LAYERS layers on DEVICES devices, of which a framework may lack parts."""
    tp, pp, cp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 1, 2, 4), (1, 1, 2)))
    assume(tp * pp * cp <= DEVICES)
    stages = even_stages(LAYERS, pp, 1)
    dp = DEVICES // (tp * pp * cp)
    zero = draw(st.integers(0, 3))
    layout = Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        microbatch=draw(st.sampled_from([1, 2, 4])),
        layers=stages,
        zero=zero,
        dp_shard=dp * cp // 2 if zero and dp * cp > 2 and draw(st.booleans()) else 0,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        optimizer_offload=zero > 0 and draw(st.booleans()),
    )
    return layout.with_uniform_recompute(draw(st.sampled_from(["none", "selective", "full"])))


def job_for(name):
    """Return the job of a file."""
    from autoplan.catalog import load_entry

    job = load_job("llama3-8b-8x-a100")
    stack = load_entry("stack", STACKS.get(name, "megatron-core"))
    return replace(job, stack=stack, workload=Workload(sequence_length=8192, global_batch_size=BATCH))


def expressible_edits(name, file, old, layout):
    """Return a layout and the edits towards it, or those of the nearest layout that has keys."""
    target, job = find_target(name), job_for(name)
    for _ in range(20):
        try:
            if target.emit is not None and name != "megatron-lm":
                target.emit(PlannedRun(job, layout))
            return layout, target.edits(file, job, old, layout)
        except InexpressibleError as error:
            assume(error.nearest)
            layout = error.nearest[0]
    pytest.fail(f"no nearest layout of {layout} has keys")


@pytest.mark.parametrize("name", FILES)
@given(layout=layouts())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_edits_make_the_layout(name, layout):
    """A file with its edits made is read as the layout that they are for."""
    target = find_target(name)
    file = LaunchFile(name, FILES[name], devices=DEVICES)
    old = parse_layout(FIRST.get(name, "zero=0"), layers=LAYERS, devices=DEVICES)
    wanted, edits = expressible_edits(name, file, old, layout)
    values = edited_values(read_yaml(file).entries, edits)
    words = tuple(word for edit in edits if not edit.path for word in edit.after.split())

    text = json.dumps(values) if name == "trainer" else yaml.safe_dump(values)
    edited = LaunchFile(name, text, arguments=words, devices=DEVICES)
    configuration = target.read(edited)

    microbatch = configuration.layout_fields.get("mbs") or wanted.microbatch
    text = configuration.layout_string
    assert parse_layout(text, layers=LAYERS, devices=DEVICES) == replace(wanted, microbatch=microbatch)
    assert len(edits) == len({edit.path or edit.after for edit in edits})


@pytest.mark.parametrize("name", FILES)
def test_the_same_layout_needs_no_edits(name):
    """A file that has the layout already is left as it is."""
    file = LaunchFile(name, FILES[name], devices=DEVICES)
    own = parse_layout(FIRST.get(name, "zero=0"), layers=LAYERS, devices=DEVICES)

    edits = find_target(name).edits(file, job_for(name), own, own)

    assert [edit for edit in edits if edit.path] == []


def test_edits_have_their_lines_and_keys():
    """An edit says where the value stands, what stands there, and what to write."""
    file = LaunchFile("accelerate.yaml", FILES["accelerate"] + "  fsdp_reshard_after_forward: true\n")
    old, new = (parse_layout(text, layers=LAYERS, devices=DEVICES) for text in ("zero=3", "zero=2"))

    (edit,) = find_target("accelerate").edits(file, job_for("accelerate"), old, new)

    path = "fsdp_config.fsdp_reshard_after_forward"
    assert (edit.path, edit.line, edit.after) == (path, 9, "fsdp_reshard_after_forward: false")
    assert edit.before == "fsdp_reshard_after_forward: True"


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_broken_file_is_an_error_and_never_a_crash(name, data):
    """Whatever is cut from a file or put into it, it is read, or refused with its reasons."""
    text = FILES[name]
    pieces = st.sampled_from(
        [*"{}[]:,\"'#&*!|>%@`-? \n\t0", "null", "${a}", "${multiply:2,", "auto", "-1", "[1]"]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(len(text), begin + 8)))
        text = text[:begin] + data.draw(pieces) + text[end:]
    with contextlib.suppress(AutoplanError):
        found = find_target(name).read(LaunchFile(name, text, devices=DEVICES))
        assert found.layout is None or found.layout.devices == DEVICES
