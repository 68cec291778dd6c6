"""What is emitted for a framework and read back is the same layout and job."""

import contextlib
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autoplan.catalog import load_entry, load_job
from autoplan.errors import SpecError, UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.registry import find_target, starting
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Workload
from autoplan.schema.layout import Layout, parse_layout
from autoplan.schema.stage_layers import chunks_of, even_stages

MODELS = (
    "llama3-8b",
    "gpt3-1.3b",
    "qwen2.5-7b",
    "mistral-7b",
    "gpt2-xl",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "qwen3-30b-a3b",
)
DEGREES = st.sampled_from([1, 2, 4, 8])


entry_of, job_of = cache(load_entry), cache(load_job)


@st.composite
def stages_of(draw, layers):
    """Return layers of stages and the virtual stages of each: even ones, or uneven ones."""
    pp = draw(st.sampled_from([1, 2, 3, 4, 8]))
    vpp = draw(st.sampled_from([1, 1, 2, 4])) if pp > 1 else 1
    stages = list(even_stages(layers, pp, vpp))
    if pp > 1 and draw(st.booleans()):
        giver, taker = draw(st.permutations(range(pp)))[:2]
        moved = draw(st.integers(1, 3)) * vpp
        stages[giver] -= moved
        stages[taker] += moved
    assume(min(stages) > 0)
    assume(all(n >= 0 for chunk in chunks_of(stages, vpp) for n in chunk))
    assume(all(n % vpp == 0 for n in stages[1:-1]))
    return tuple(stages), vpp


@st.composite
def recompute_of(draw, stages, vpp):
    """Return the layers of stages by recompute mode, and the layers of a unit."""
    kind = draw(st.sampled_from(["none", "selective", "full", "units", "block"]))
    if kind == "selective":
        return (("selective", stages),), 1
    if kind in {"full", "units"}:
        return (("full", stages),), draw(st.sampled_from([2, 4])) if kind == "units" else 1
    if kind == "none":
        return (), 1
    count = draw(st.integers(1, 6))
    full = tuple(sum(min(count, n) for n in chunk) for chunk in chunks_of(stages, vpp))
    return (("full", full),), 1


@st.composite
def runs(draw):
    """Return a job and a layout of it, of which a framework may lack parts."""
    model = entry_of("model", draw(st.sampled_from(MODELS)))
    stages, vpp = draw(stages_of(model.layers))
    recomputed, unit = draw(recompute_of(stages, vpp))
    tp, cp, dp = draw(DEGREES), draw(st.sampled_from([1, 1, 2])), draw(DEGREES)
    assume(model.heads % tp == 0)
    zero = draw(st.integers(0, 3))
    moe = model.moe is not None
    layout = Layout(
        tp=tp,
        pp=len(stages),
        dp=dp,
        cp=cp,
        microbatch=draw(st.sampled_from([1, 2, 4])),
        layers=stages,
        recomputed=recomputed,
        recompute_num_layers=unit,
        zero=zero,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        sequence_parallel=tp > 1 and (moe or draw(st.booleans())),
        ep=draw(DEGREES) if moe else 1,
        expert_tensor=draw(st.sampled_from([0, 1])) if moe else 0,
        dp_shard=dp * cp // 2 if zero and dp * cp > 2 and draw(st.booleans()) else 0,
        order=draw(st.sampled_from(["tp-cp-dp-pp", "tp-cp-dp-pp", "tp-cp-pp-dp"])),
        optimizer_offload=draw(st.booleans()) and zero > 0,
        activation_offload=draw(st.booleans()) and len(stages) == 1 and not recomputed,
        offload_every=draw(st.sampled_from([1, 2, 4])),
    )
    # What is read passes the rules of the product: expert ranks divide those of a stage.
    assume(dp * cp * tp % (layout.ep * layout.etp) == 0)
    batch = dp * layout.microbatch * len(stages) * draw(st.integers(1, 4))
    job = replace(
        job_of("llama3-8b-8x-a100"),
        model=model,
        workload=Workload(sequence_length=draw(st.sampled_from([512, 1024])), global_batch_size=batch),
        precision=draw(st.sampled_from(["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"])),
        optimizer=draw(st.sampled_from(["adamw", "sgd", "muon", "lion"])),
    )
    return job, layout


@pytest.mark.parametrize("name", ["megatron-lm"])
@given(run=runs())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_what_is_emitted_is_read_back(name, run):
    """Layout, model, batch, precision and optimizer are those that were emitted."""
    job, layout = run
    target = find_target(name)
    try:
        emission = target.emit(PlannedRun(job, layout))
    except InexpressibleError:
        assume(False)

    main = emission.files[0]
    found = target.read(LaunchFile(main.name, main.text, devices=layout.devices))

    assert found.layout == layout
    assert found.job["model"] == job.model.name
    assert found.job["workload"] == job.workload.model_dump(exclude_none=True)
    assert (found.job["precision"], found.job["optimizer"]) == (job.precision, job.optimizer)
    assert target.recognises(LaunchFile(main.name, main.text))
    assert found.unspecified == ()


@pytest.mark.parametrize("name", ["slurm", "torchrun"])
@given(run=runs())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_what_a_launcher_starts_is_read_back(name, run):
    """A script that starts Megatron-LM says its layout, model and devices, whatever the plan is."""
    job, layout = run
    try:
        emission = starting(find_target(name), "megatron-lm", job.stack).emit(PlannedRun(job, layout))
    except UnsupportedError:
        assume(False)

    main = emission.files[0]
    found = find_target("megatron-lm").read(LaunchFile(main.name, main.text))

    assert found.layout == layout
    assert (found.job["model"], found.job["devices"]) == (job.model.name, layout.devices)


def expressible(target, run):
    """Return the run, or the nearest one that the target can express, and what it emits.

    Where no layout helps, it has the usual precision and optimizer.
    """
    usual = replace(run.job, precision="bf16", optimizer="adamw")
    for _ in range(30):
        try:
            return run, target.emit(run)
        except InexpressibleError as error:
            assume(error.nearest or run.job != usual)
            run = replace(run, layout=error.nearest[0]) if error.nearest else replace(run, job=usual)
    pytest.fail(f"no nearest layout of {run.layout} can be expressed")


#: Targets whose files have no model or another name for it, and the stacks that decide what is emitted.
ON_STACKS = [
    ("deepspeed", "deepspeed"),
    ("accelerate", "hf-fsdp2"),
    ("accelerate", "deepspeed"),
    ("accelerate", "megatron-core"),
    ("torchtitan", "fsdp2"),
    ("megatron-bridge", "megatron-bridge"),
    ("torchtune", "torchtune"),
    ("unsloth", "unsloth"),
    ("litgpt", "litgpt"),
    *(
        (name, stack)
        for name in ("trainer", "axolotl", "llama-factory")
        for stack in ("hf-fsdp2", "deepspeed")
    ),
]


#: Targets that write low-rank adapters.
ADAPTED = frozenset({"trainer", "axolotl", "llama-factory", "torchtune", "unsloth", "litgpt"})
ADAPTERS = [None, AdapterSpec(rank=8), AdapterSpec(rank=16, targets="attention")]


def written_adapters(name, job):
    """Return the adapters that a file says: Unsloth's names of an MLP are those of stacked experts, too."""
    whole = name != "unsloth" or job.model.moe is None
    return {"rank": job.adapters.rank, "targets": job.adapters.targets if whole else "attention"}


def read_again(name, stack, run, adapters):
    """Check that layout, batch, precision, optimizer and adapters are read as they were emitted."""
    job, layout = run
    job = replace(job, stack=entry_of("stack", stack), adapters=adapters if name in ADAPTED else None)
    target = find_target(name)
    run, emission = expressible(target, PlannedRun(job, layout))
    job = run.job

    main = emission.files[0]
    file = LaunchFile(main.name, main.text, arguments=emission.arguments, devices=run.layout.devices)
    found = target.read(file)

    layers, workload = job.model.layers, found.job["workload"]
    assert parse_layout(found.layout_string, layers=layers, devices=run.layout.devices) == run.layout
    assert workload["global_batch_size"] == job.workload.global_batch_size
    assert found.job["precision"] == job.precision
    assert found.job.get("optimizer", job.optimizer) == job.optimizer
    assert found.job.get("adapters") == (written_adapters(name, job) if job.adapters else None)
    assert target.recognises(file)


FEW, MANY = (
    settings(max_examples=n, deadline=None, suppress_health_check=list(HealthCheck)) for n in (10, 60)
)


@pytest.mark.parametrize(("name", "stack"), ON_STACKS)
@given(run=runs(), adapters=st.sampled_from(ADAPTERS))
@FEW
def test_files_without_a_model_are_read_back(name, stack, run, adapters):
    """What was emitted is read, for each framework and stack, where a file has no model."""
    read_again(name, stack, run, adapters)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stack"), [("megatron-lm", "megatron-core"), *ON_STACKS])
@given(run=runs(), adapters=st.sampled_from(ADAPTERS))
@MANY
def test_many_plans_are_read_back(name, stack, run, adapters):
    """So are more plans of each."""
    read_again(name, stack, run, adapters)


TEXTS = {
    "deepspeed": """{
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"}, "sequence_parallel_size": 1,
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
  "activation_checkpointing": {"cpu_checkpointing": false}
}""",
    "accelerate": """distributed_type: FSDP
num_processes: 8
mixed_precision: bf16
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
parallelism_config: {parallelism_config_dp_shard_size: 4, parallelism_config_tp_size: 2}
""",
}
TEXTS |= {
    "torchtitan": """[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[training]
local_batch_size = 2
[parallelism]
pipeline_parallel_degree = 2
module_fqns_per_model_part = [["layers.0"], ["layers.1"]]
[activation_checkpoint]
mode = "selective"
""",
    "trainer": """{"per_device_train_batch_size": 2, "bf16": true, "fsdp": ["full_shard", "offload"],
"fsdp_config": {"reshard_after_forward": true}, "activation_checkpointing_kwargs": {"offload": true},
"deepspeed": {"zero_optimization": {"stage": 2}}, "activation_checkpointing": true, "optim": "sgd"}""",
    "axolotl": """base_model: gpt2
micro_batch_size: 2
gradient_accumulation_steps: 4
fsdp: [full_shard]
fsdp_config: {offload_params: true, reshard_after_forward: true}
gradient_checkpointing: true
activation_offloading: hidden_states
adapter: lora
lora_r: 8
lora_target_modules: [q_proj]
""",
    "llama-factory": """model_name_or_path: gpt2
finetuning_type: lora
lora_target: all
deepspeed: examples/deepspeed/ds_z2_config.json
per_device_train_batch_size: 1
recompute_granularity: full
""",
    "megatron-bridge": """model:
  num_layers: 4
  tensor_model_parallel_size: 2
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
  recompute_modules: [core_attn]
train: {global_batch_size: 8, micro_batch_size: 1}
ddp: {use_megatron_fsdp: true}
mixed_precision: bf16_mixed
""",
}
PIECES = st.sampled_from(
    [
        *"{}[]:,\"'#&*!|>%@`-? \n\t0",
        "null",
        "true",
        "auto",
        "-1",
        "1e999",
        "[1]",
        "{}",
        "999999999999",
        "NO",
        "'",
        "\x07",
    ]
)


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_broken_file_is_an_error_and_never_a_crash(name, data):
    """Whatever is cut from a file or put into it, it is read, or refused with its reasons."""
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = begin + data.draw(st.integers(0, 12))
        text = text[:begin] + data.draw(PIECES) + text[end:]
    devices = data.draw(st.sampled_from([None, 1, 8]))
    with contextlib.suppress(SpecError):
        assert find_target(name).read(LaunchFile("file", text, devices=devices)).framework == name
