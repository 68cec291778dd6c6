"""torchtitan: what is emitted and refused, and what overrides and TOML files of the constructs in use say."""

from dataclasses import replace

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.catalog.programs import any_layout
from autoplan.errors import SpecError, UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.torchtitan.torchtitan import TARGET
from autoplan.launch.recognition import recognised
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout

P, LOCAL = "--parallelism.", "--training.local_batch_size"
RESHARD = "--parallelism.fsdp_reshard_after_forward"
RUN = """#!/usr/bin/bash
NGPU=${{NGPU:-"8"}}
CONFIG=${{CONFIG:-"llama3_8b"}}
torchrun --nproc_per_node=${{NGPU}} --rdzv_backend c10d -m torchtitan.train \\
    --module llama3 --config ${{CONFIG}} {}
"""
TOML = """# torchtitan 0.2
[model]
name = "llama3"
flavor = "{flavor}"

[training]
local_batch_size = 2
seq_len = 8192

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2  # inside a node
{parallelism}

[activation_checkpoint]
{recompute}
"""


def read(text, **more):
    """Return what a file says."""
    return TARGET.read(LaunchFile("run_train", text, **more))


def toml(flavor="8B", parallelism="", recompute='mode = "full"'):
    """Return a TOML file."""
    return TOML.format(flavor=flavor, parallelism=parallelism, recompute=recompute)


@pytest.mark.parametrize(
    ("overrides", "layout", "batch"),
    [
        ("", "dp=8,mbs=1,zero=3,recompute=selective", 8),
        ("--parallelism.tensor-parallel-degree=2 activation-checkpoint:none", "tp=2,dp=4,zero=3", 4),
        (
            "--parallelism.data_parallel_replicate_degree 8 --parallelism.data_parallel_shard_degree 1",
            "dp=8,zero=0,recompute=selective",
            8,
        ),
        (
            f"{P}data_parallel_replicate_degree=2 {P}context_parallel_degree 2 {RESHARD} never",
            "cp=2,dp=4,dp_shard=4,zero=2,recompute=selective",
            4,
        ),
        (
            f"{P}pipeline_parallel_degree 2 --training.local_batch_size 8 --training.global_batch_size 64",
            "pp=2,dp=4,mbs=1,zero=2,recompute=selective",
            64,
        ),
        (
            f"{P}pipeline_parallel_degree 4 {P}pipeline_parallel_schedule Interleaved1F1B {LOCAL} 8",
            "pp=4,vpp=2,dp=2,zero=2,recompute=selective,stages=8/9/8/7",
            16,
        ),
        (
            f"{P}pipeline_parallel_degree 2 {P}module_fqns_per_model_part layers.0 layers.1,norm,lm_head",
            None,
            None,
        ),
    ],
)
def test_overrides_are_read(overrides, layout, batch):
    """Overrides, what the configuration function sets, and devices of the launcher are one layout."""
    if layout is None:
        with pytest.raises(SpecError, match="model has 32 layers"):
            read(RUN.format(overrides))
        return
    found = read(RUN.format(overrides))

    assert parse_layout(found.layout_string, layers=32, devices=8) == parse_layout(
        layout, layers=32, devices=8
    )
    assert found.job["workload"] == {"sequence_length": 8192, "global_batch_size": batch}
    assert (found.job["model"], found.job["devices"]) == ("llama3.1-8b", 8)
    assert recognised(LaunchFile("run_train", RUN.format(overrides))).name == "torchtitan"


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        (toml(), "tp=2,dp=4,mbs=2,zero=3,recompute=full"),
        (toml(recompute='mode = "none"'), "tp=2,dp=4,mbs=2,zero=3"),
        (
            toml(recompute='mode = "selective"\nselective_ac_option = "op"'),
            "tp=2,dp=4,mbs=2,zero=3,recompute=selective",
        ),
        (toml(recompute='mode = "selective"'), "tp=2,dp=4,mbs=2,zero=3,recompute=full:16"),
        (
            toml(recompute='mode = "selective"\nselective_ac_option = "1"'),
            "tp=2,dp=4,mbs=2,zero=3,recompute=full",
        ),
        (
            toml(parallelism="pipeline_parallel_degree = 2\npipeline_parallel_schedule = '1F1B'"),
            "tp=2,pp=2,dp=2,mbs=1,zero=2,recompute=full",
        ),
    ],
)
def test_toml_files_are_read(text, layout):
    """Sections of TOML files are the layout that they stand for, recompute of every nth layer included."""
    found = read(text, devices=8)

    assert found.layout == parse_layout(layout, layers=32, devices=8)
    assert found.job["model"] == "llama3.1-8b"
    assert recognised(LaunchFile("llama3_8b.toml", text)).name == "torchtitan"


def test_values_that_a_function_of_ones_own_sets_stay_open():
    """What a configuration function that is not torchtitan's sets is named as not given."""
    found = read(RUN.format("--config my_model --parallelism.tensor_parallel_degree 4"))

    assert found.layout_fields["tp"] == 4
    assert {"pp", "cp", "mbs", "zero", "recompute", "model", "sequence_length"} <= set(found.unspecified)
    assert any("my_model" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (RUN.format("--parallelism.tensor_parallel_degree 3"), 5, "does not divide the 8 devices"),
        (RUN.format("--parallelism.tensor_paralel_degree 2"), 5, "did you mean tensor_parallel_degree?"),
        (RUN.format("--parallelism.data_parallel_shard_degree 4"), 5, "is not 8 devices"),
        (RUN.format("--parallelism.pipeline_parallel_degree $PP"), 5, "give --set PP=VALUE"),
        (RUN.format("--training.global_batch_size 12"), 5, "does not divide"),
        (toml(parallelism="tensor_parallel_degree = 4"), 13, "it is no TOML"),
        (toml(parallelism="pipeline_paralel_degree = 4"), 13, "did you mean pipeline_parallel_degree?"),
        (toml(parallelism="context_parallel_degree = 3"), 12, "does not divide the 8 devices"),
        (toml(parallelism='module_fqns_per_model_part = "all"\npipeline_parallel_degree = 2'), 13, "no list"),
        (toml(recompute='mode = "some"'), 16, "none of none, selective"),
    ],
)
def test_what_contradicts_is_refused(text, line, sentence):
    """Contradictions, misspellings and what depends on the environment are errors with their line."""
    with pytest.raises(SpecError) as caught:
        read(text, devices=8)

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert (problem.file, problem.line) == ("run_train", line)


@pytest.mark.parametrize(
    ("layout", "changes", "part"),
    [
        ("dp=8,zero=1", {}, "ZeRO-1"),
        ("cp=2,dp=4,zero=0", {}, "context parallelism without sharding"),
        ("tp=8,zero=3", {}, "nothing to shard over"),
        ("dp=4,cp=2,dp_shard=1,zero=2", {}, "hybrid sharding inside"),
        ("pp=2,dp=4,schedule=zero-bubble,zero=2", {}, "zero-bubble"),
        ("dp=8,zero=3,offload=optimizer", {}, "offload of optimizer states alone"),
        ("dp=8,zero=3,recompute=full,offload=activations", {}, "offload of activations"),
        ("dp=8,zero=3,recompute=full:4", {}, "differs by layer"),
        ("dp=8,zero=3,recompute=full,recompute_num_layers=2", {}, "units of 2"),
        ("pp=2,dp=4,zero=2,order=tp-cp-pp-dp", {}, "rank order"),
        ("dp=8,zero=3", {"precision": "fp8"}, "precision fp8"),
        ("dp=8,zero=3", {"optimizer": "muon"}, "optimizer muon"),
    ],
)
def test_what_has_no_override_is_refused(layout, changes, part):
    """A part that no override expresses is named, with a layout that lacks it."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "fsdp2"), **changes)
    run = PlannedRun(job, parse_layout(layout, layers=32, devices=8))

    with pytest.raises(InexpressibleError) as caught:
        TARGET.emit(run)

    assert part in caught.value.part
    assert caught.value.nearest or changes


def test_experts_are_divided_as_torchtitan_divides_them():
    """Experts are split without expert parallelism, and whole with it."""
    job = replace(autoplan.load_job("mixtral-8x7b-8x-h200"), stack=load_entry("stack", "fsdp2"))
    parts = {}
    for text in ("tp=2,dp=4,zero=3,etp=1", "tp=2,dp=4,ep=4,zero=3", "dp=8,ep=8,zero=3,dp_shard=4"):
        with pytest.raises(InexpressibleError) as caught:
            TARGET.emit(PlannedRun(job, parse_layout(text, layers=32, devices=8)))
        parts[text] = caught.value.part
    assert [part.split(" ")[0] for part in parts.values()] == ["experts", "expert", "ep=8"]


def test_choices_of_software_are_overrides():
    """Compilation, captured steps and 16-bit training are the overrides of that name."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    software = job.software.model_copy(update={"compile": True, "cuda_graphs": True, "pure_bf16": True})
    job = replace(job, stack=load_entry("stack", "fsdp2"), software=software)
    layout = parse_layout("dp=8,zero=3", layers=32, devices=8)
    emission = TARGET.emit(PlannedRun(job, layout))
    found = read(emission.files[0].text, devices=8)

    assert found.job["software"] == {"compile": True, "pure_bf16": True, "cuda_graphs": True}
    assert "module" not in " ".join(emission.notes)


def edited(text, edits, *, toml):
    """Return a file with the edits made; what is added goes to the end of a script, or into its table."""
    lines = text.splitlines()
    for edit in sorted(edits, key=lambda edit: not edit.before):
        if edit.before:
            key = edit.before.partition(" ")[0]
            assert key in lines[edit.line - 1]
            start = lines[edit.line - 1].index(key)
            behind = "" if toml else lines[edit.line - 1][start + len(edit.before) :]
            lines[edit.line - 1] = f"{lines[edit.line - 1][:start]}{edit.after}{behind}"
        elif toml:
            table, _, line = edit.after.partition(" ")
            lines.insert(lines.index(table) + 1, line)
        else:
            lines[-1] += f" {edit.after}"
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "new",
    [
        "dp=8,zero=3,recompute=full",
        "tp=2,dp=4,zero=2,recompute=full",
        "pp=4,dp=2,zero=2,recompute=selective,stages=7/9/9/7",
        "pp=2,vpp=2,dp=4,zero=3,recompute=full",
        "dp=8,dp_shard=4,mbs=2,zero=3,recompute=none",
        "cp=2,dp=4,zero=2,recompute=selective",
    ],
)
@pytest.mark.parametrize("kind", ["script", "toml"])
def test_edits_make_the_other_layout(kind, new):
    """A file in which the edits were made has the layout that they are for, and the batch of the job."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "fsdp2"))
    text = RUN.format(f"{P}tensor_parallel_degree 2 {LOCAL} 1 --training.global_batch_size 128")
    text = (
        toml() if kind == "toml" else f"{text.strip()} --training.disable_cuda_graphs --training.gc_freq 9\n"
    )
    file = LaunchFile("run_train", text, devices=8)
    old, layout = TARGET.read(file).layout, parse_layout(new, layers=32, devices=8)
    edits = TARGET.edits(file, job, old, layout)

    assert all(edit.line for edit in edits if edit.before)
    found = read(edited(text, edits, toml=kind == "toml"), devices=8)
    assert found.layout == layout
    assert found.job["workload"]["global_batch_size"] == job.workload.global_batch_size


@pytest.mark.parametrize(
    ("new", "batch", "said"),
    [
        ("tp=2,dp=4,mbs=2,zero=3,recompute=full", 8, "[training] tensor_parallel_degree = 2"),
        ("pp=2,dp=4,mbs=2,zero=3,recompute=full", 8, "which the version of the file has not"),
        ("dp=8,mbs=2,zero=3,recompute=full", 64, "accumulated gradients (batches of 16 follow)"),
    ],
)
def test_edits_of_an_earlier_file_have_its_tables(new, batch, said):
    """Its degrees are in other tables, and it accumulates no gradients."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "fsdp2"))
    job = replace(job, workload=Workload(sequence_length=8192, global_batch_size=batch))
    text = toml().replace("local_batch_size = 2", "batch_size = 1").replace("[parallelism]", "[experimental]")
    text = text.replace("data_parallel_shard_degree = -1\ntensor_parallel_degree = 2  # inside a node\n", "")
    file = LaunchFile("run_train", text, devices=8)
    old, layout = TARGET.read(file).layout, parse_layout(new, layers=32, devices=8)
    try:
        edits = [edit.after for edit in TARGET.edits(file, job, old, layout)]
    except InexpressibleError as error:
        edits = [error.part]
    assert any(said in edit for edit in edits), edits


def test_stages_alone_run_without_sharding():
    """Where nothing is sharded over, the nearest layout is the same with ZeRO stage 0."""
    job = replace(any_layout(autoplan.load_job("qwen3-1.7b-2x-rtx3090")), stack=load_entry("stack", "fsdp2"))
    plan = autoplan.evaluate(job, "pp=2,zero=2,vpp=4,schedule=interleaved,recompute=selective:6/none")
    with pytest.raises(UnsupportedError) as caught:
        autoplan.emit(plan, "torchtitan", job=job)
    said = str(caught.value)

    assert "sharding with nothing to shard over (dp=1, cp=1)" in said
    assert "The nearest layout that it can: tp=1,pp=2,dp=1,cp=1,ep=1,mbs=1,zero=0,vpp=4," in said
