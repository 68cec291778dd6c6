"""accelerate: what is emitted and refused, and what YAML files of each kind say."""

from dataclasses import replace

import pytest

import autoplan
from autoplan.answers.configure.comparing_files import compare_file, evaluate_file
from autoplan.catalog import load_entry
from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.accelerate import TARGET
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.layout import parse_layout

HEAD = "num_machines: 2\nnum_processes: 16\nmixed_precision: bf16\ndistributed_type: {}\n"
FSDP1 = HEAD.format("FSDP") + "fsdp_config:\n  fsdp_sharding_strategy: {}\n"
FSDP2 = HEAD.format("FSDP") + "fsdp_config:\n  fsdp_version: 2\n"
SIZES = (
    FSDP2
    + """parallelism_config:
  parallelism_config_dp_replicate_size: {}
  parallelism_config_dp_shard_size: {}
  parallelism_config_tp_size: {}
  parallelism_config_cp_size: {}
"""
)
PROGRAM = ("--per_device_train_batch_size", "2", "--gradient-accumulation-steps=4")


def read(text, **more):
    """Return what a file says."""
    return TARGET.read(LaunchFile("accelerate.yaml", text, **more))


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        (FSDP1.format("FULL_SHARD"), "zero=3"),
        (FSDP1.format("2"), "zero=2"),
        (FSDP1.format("NO_SHARD"), "zero=0"),
        (FSDP1.format("HYBRID_SHARD"), "zero=3,dp_shard=8"),
        (FSDP1.format("HYBRID_SHARD_ZERO2"), "zero=2,dp_shard=8"),
        (FSDP2, "zero=3"),
        (FSDP2 + "  fsdp_reshard_after_forward: false\n  fsdp_activation_checkpointing: true\n",
         "zero=2,recompute=full"),
        (SIZES.format(2, 2, 2, 2), "tp=2,sp=off,cp=2,dp=4,zero=3,dp_shard=4"),
        (SIZES.format(1, 16, 1, 1), "zero=3"),
        (HEAD.format("MULTI_GPU"), "zero=0"),
        (HEAD.format("DEEPSPEED"), "zero=2"),
        (HEAD.format("DEEPSPEED") + "deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n",
         "zero=3,offload=optimizer"),
        (HEAD.format("MEGATRON_LM") + "megatron_lm_config:\n  megatron_lm_tp_degree: 2\n"
         "  megatron_lm_pp_degree: 4\n"
         "  megatron_lm_context_parallel_size: 1\n  megatron_lm_use_distributed_optimizer: true\n"
         "  megatron_lm_recompute_granularity: selective\n", "tp=2,sp=off,pp=4,zero=1,recompute=selective"),
        (HEAD.format("MEGATRON_LM") + "megatron_lm_config:\n  megatron_lm_tp_degree: 2\n",
         "tp=2,sp=off,cp=2,zero=0,recompute=full"),
    ],
)  # fmt: skip
def test_files_are_read(text, layout):
    """Each section and strategy is the layout that it stands for; the rest is accelerate's default."""
    found = read(text)
    own = parse_layout(found.layout_string, layers=32, devices=16)

    assert own == parse_layout(layout, layers=32, devices=16)
    assert found.job["devices"] == 16
    assert {"mbs", "global_batch_size", "model"} <= set(found.unspecified)


@pytest.mark.parametrize(
    "text",
    [
        FSDP2 + "  fsdp_offload_params: true\n",
        HEAD.format("DEEPSPEED") + "deepspeed_config:\n  zero_stage: 3\n  offload_param_device: cpu\n",
    ],
)
def test_parameters_in_host_memory_are_a_choice_of_the_software(text):
    """FSDP's offload and that of ZeRO-3 put parameters, gradients and states there."""
    found = read(text)

    assert found.job["software"] == {"offload_parameters": True}
    assert found.layout_fields["zero"] == 3


def test_batches_are_arguments_of_the_program():
    """The batch is the product of the program's arguments and the data-parallel ranks."""
    found = read(SIZES.format(1, 8, 2, 1), arguments=PROGRAM)

    assert found.layout_fields["mbs"] == 2
    assert found.job["workload"]["global_batch_size"] == 2 * 4 * 8


def test_another_file_with_the_layout_is_named():
    """Where DeepSpeed's own file has the layout, that is said, and nothing is assumed."""
    found = read(HEAD.format("DEEPSPEED") + "deepspeed_config:\n  deepspeed_config_file: ds.json\n")

    assert "zero" in found.unspecified
    assert any("ds.json" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (SIZES.format(2, 8, 2, 1), 8, "= 32 is not num_processes 16"),
        (FSDP2.replace("fsdp_version", "fsdp_verison"), 6, "did you mean fsdp_version?"),
        (FSDP2.replace("num_machines", "num_machine"), 1, "did you mean num_machines?"),
        (HEAD.format("FSPD"), 4, "'FSPD' is not read"),
        (FSDP1.format("SHARD_ALL"), 6, "'shard_all' is none of"),
        (FSDP1.format("HALF"), 6, "'half' is none of"),
        (HEAD.format("'NO'").replace("bf16", "tf32"), 3, "'tf32' is none of"),
        (SIZES.format(1, "many", 1, 1), 9, "'many' is not an integer"),
        ("num_processes: 8\nnum_processes: 4\ndistributed_type: 'NO'\n", 2, "given twice"),
        ("num_processes: 8\n", None, "distributed_type is missing"),
    ],
)
def test_what_contradicts_is_refused(text, line, sentence):
    """Contradictions, misspellings and unknown values are errors with their line."""
    with pytest.raises(SpecError) as caught:
        read(text)

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert (problem.file, problem.line) == ("accelerate.yaml", line)


@pytest.mark.parametrize(
    ("stack", "layout", "part"),
    [
        ("fsdp2", "dp=2,pp=4,zero=3", "pipeline stages (pp=4)"),
        ("fsdp2", "tp=2,dp=4,zero=3", "sequence parallelism"),
        ("fsdp2", "dp=8,zero=1", "ZeRO-1 with FSDP2"),
        ("fsdp2", "tp=8,sp=off,zero=3", "nothing to shard over"),
        ("fsdp2", "dp=8,zero=3,recompute=selective", "recompute"),
        ("fsdp2", "dp=8,zero=3,offload=optimizer", "offload of optimizer states alone"),
        ("deepspeed", "cp=2,dp=4,zero=3", "context parallelism with DeepSpeed"),
        ("megatron-core", "tp=2,pp=2,dp=2,zero=1", "recompute=none"),
        ("megatron-core", "pp=2,vpp=2,dp=4,recompute=full", "virtual stages"),
        ("megatron-core", "pp=2,dp=4,recompute=full,stages=15/17", "stages other than even ones"),
    ],
)
def test_what_has_no_key_is_refused_with_the_nearest(stack, layout, part):
    """A part that the section has no key for is named, with a layout that lacks it."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", stack))
    run = PlannedRun(job, parse_layout(layout, layers=32, devices=8))

    with pytest.raises(InexpressibleError) as caught:
        TARGET.emit(run)

    assert part in caught.value.part
    assert caught.value.nearest


def test_what_a_file_leaves_open_is_said_where_it_is_priced():
    """A microbatch that the file has no key for is taken as one sequence, and that is a note."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "fsdp2"))
    file = LaunchFile(
        "accelerate.yaml",
        SIZES.format(1, 16, 1, 1)
        .replace("num_processes: 16", "num_processes: 8")
        .replace("_dp_shard_size: 16", "_dp_shard_size: 8"),
    )
    found, own, job = evaluate_file(job, file)
    comparison = compare_file(
        job,
        file,
        found,
        own,
        autoplan.plan(
            replace(job, search=job.search.model_copy(update={"tensor_parallel": 1, "pipeline_parallel": 1}))
        ),
    )

    assert any("taken as usual: mbs=1" in note for note in comparison.notes)
