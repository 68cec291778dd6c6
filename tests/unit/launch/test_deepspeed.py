"""DeepSpeed: what is emitted and refused, and what JSON files of the constructs in use say."""

import json
from dataclasses import replace

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.deepspeed import TARGET
from autoplan.launch.registry import find_target
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.layout import parse_layout

BATCHES = """{{
 "train_batch_size": {}, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": {}
}}"""


def read(document, **more):
    """Return what a JSON file says."""
    text = document if isinstance(document, str) else json.dumps(document, indent=2)
    return TARGET.read(LaunchFile("ds_config.json", text, **more))


@pytest.mark.parametrize(
    ("document", "devices", "layout", "batch"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 8, "mbs=2,zero=0", 64),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, 8, "mbs=4,zero=0", 64),
        ({"train_batch_size": 64}, 8, "mbs=8,zero=0", 64),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, 8, "mbs=2,zero=0", 64),
        ({"train_micro_batch_size_per_gpu": 2}, 8, "mbs=2,zero=0", 16),
        (
            {
                "train_batch_size": "auto",
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": 4,
                "zero_optimization": {"stage": 3, "offload_param": {"device": "none"}},
                "sequence_parallel_size": 2,
            },
            8,
            "cp=2,mbs=2,zero=3",
            32,
        ),
        (
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": 4,
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                "activation_checkpointing": {"cpu_checkpointing": True},
            },
            None,
            "mbs=2,zero=2,recompute=full,offload=optimizer+activations",
            64,
        ),
        (
            {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "mics_shard_size": 4}},
            8,
            "mbs=1,zero=3,dp_shard=4",
            8,
        ),
    ],
)
def test_files_are_read(document, devices, layout, batch):
    """Each key is the choice that it stands for, and batches follow from each other as in DeepSpeed."""
    found = read(document, devices=devices)

    assert parse_layout(found.layout_string, layers=32, devices=8) == parse_layout(
        layout, layers=32, devices=8
    )
    assert found.job["workload"]["global_batch_size"] == batch
    assert found.job["devices"] == 8


def test_values_that_another_program_fills_in_stay_open():
    """Values that are "auto", and the model, are listed as not given."""
    document = {
        "bf16": {"enabled": "auto"},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    }

    found = read(document, devices=8)

    assert {"mbs", "global_batch_size", "precision", "optimizer", "model"} <= set(found.unspecified)
    assert found.layout_fields["zero"] == 2


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (BATCHES.format(10, 1), 2, "does not divide train_batch_size 10"),
        (BATCHES.format(64, 4), 2, "is not 8 devices"),
        ('{\n "train_batch_size": 9\n}', 2, "do not divide 9"),
        ('{\n "train_batch_sise": 8\n}', 2, "did you mean train_batch_size?"),
        ('{\n "zero_optimization": {\n  "stages": 2\n }\n}', 3, "did you mean stage?"),
        ('{\n "zero_optimization": {\n  "stage": 4\n }\n}', 3, "4 is no ZeRO stage"),
        ('{\n "zero_optimization": {"stage": 1},\n "zero_optimization": {"stage": 2}\n}', 3, "given twice"),
        ('{\n "train_batch_size": "many"\n}', 2, "'many' is not an integer"),
        ('{\n "bf16": {"enabled": true},\n "fp16": {"enabled": true}\n}', 3, "both enabled"),
        ('{\n "train_batch_size": 8', 2, "neither JSON nor YAML"),
        ("[1, 2]", None, "no mapping"),
        ('{"a": &x [*x]}', None, "nested too deeply"),
        ("{" + '"a": {' * 3000, None, "neither JSON nor YAML"),
    ],
)  # fmt: skip
def test_what_contradicts_is_refused(text, line, sentence):
    """Contradictions, misspellings and what is no JSON are errors with their line."""
    with pytest.raises(SpecError) as caught:
        read(text, devices=8)

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert problem.file == "ds_config.json"
    assert line is None or problem.line == line


@pytest.mark.parametrize(
    ("layout", "changes", "part"),
    [
        ("dp=2,pp=4", {}, "pipeline stages (pp=4)"),
        ("tp=2,dp=4", {}, "sequence parallelism"),
        ("dp=8,zero=3,dp_shard=4", {}, "hybrid sharding"),
        ("dp=8,recompute=selective", {}, "recompute"),
        ("dp=8,recompute=full,recompute_num_layers=4", {}, "units of 4"),
        ("dp=8,offload=optimizer", {}, "without ZeRO"),
        ("dp=8,zero=1,offload=optimizer", {"optimizer": "muon"}, "optimizer states of muon"),
        ("dp=8,offload=activations", {}, "cpu_checkpointing"),
        ("dp=8", {"precision": "fp8"}, "precision fp8"),
        ("dp=8", {"optimizer": "adamw-8bit"}, "optimizer adamw-8bit"),
    ],
)
def test_what_has_no_key_is_refused(layout, changes, part):
    """A part that the file has no key for is named, and nothing is emitted."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), **changes)
    run = PlannedRun(job, parse_layout(layout, layers=32, devices=8))

    with pytest.raises(InexpressibleError) as caught:
        TARGET.emit(run)

    assert part in caught.value.part
    assert caught.value.nearest or changes.keys() & {"precision", "optimizer"}


def test_the_prediction_is_in_a_note():
    """JSON has no comments: the header is said beside the file."""
    job = replace(autoplan.load_job("llama3-8b-8x-a100"), stack=load_entry("stack", "deepspeed"))
    plan = autoplan.evaluate(job, "dp=8,zero=2,recompute=full")
    emission = autoplan.emit(plan, "deepspeed", job=job)

    assert json.loads(emission.files[0].text)["zero_optimization"] == {"stage": 2}
    assert any("predicted step time" in note for note in emission.notes)
    assert any("deepspeed.checkpointing" in note for note in emission.notes)


@pytest.mark.parametrize(
    ("target", "stack"),
    [
        ("deepspeed", "deepspeed"),
        ("accelerate", "deepspeed"),
        ("trainer", "deepspeed"),
        ("llama-factory", "deepspeed"),
        ("axolotl", "deepspeed"),
    ],
)
def test_offload_of_parameters_is_written_and_read(target, stack):
    """It is a key of ZeRO-3, which other stages lack."""
    job = autoplan.load_job("llama3-8b-8x-a100")
    software = job.software.model_copy(update={"offload_parameters": True})
    job = replace(job, stack=load_entry("stack", stack), software=software)
    layout = parse_layout("dp=8,zero=3,recompute=full,offload=optimizer", layers=32, devices=8)
    found, emission = find_target(target), find_target(target).emit(PlannedRun(job, layout))
    back = found.read(LaunchFile(emission.files[0].name, emission.files[0].text, devices=8))

    assert back.job["software"]["offload_parameters"] is True
    assert (back.layout_fields["zero"], back.layout_fields["offload"]) == (3, "optimizer")
    with pytest.raises(InexpressibleError, match="offload of parameters with zero=2") as caught:
        found.emit(PlannedRun(job, replace(layout, zero=2)))
    assert caught.value.nearest[0].zero == 3
