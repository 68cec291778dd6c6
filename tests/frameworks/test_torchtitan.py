"""What is emitted for torchtitan, accepted by its own ConfigManager and read back from its objects.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with torchtitan, by default this one; skipped where it has none.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.catalog import load_entry
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.torchtitan.override_words import CONFIG_FUNCTIONS, DEFAULTS
from autoplan.launch.frameworks.torchtitan.torchtitan import TARGET
from autoplan.launch.target import PlannedRun
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.stage_layers import chunks_of
from tests.frameworks.framework_python import asked, has_module

PARSER = Path(__file__).with_name("torchtitan_parser.py")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not has_module("torchtitan"), reason="torchtitan is not installed"),
]

#: Model and layout of different shapes.
ACCEPTED = {
    "one device": ("llama3-8b", "dp=1"),
    "replicas": ("llama3-8b", "dp=8,zero=0"),
    "sharded parameters": ("llama3-8b", "dp=8,mbs=2,zero=3,recompute=full"),
    "sharded gradients": ("qwen3-14b", "dp=8,zero=2,recompute=selective"),
    "hybrid": ("llama3-8b", "dp=8,zero=3,dp_shard=4"),
    "tensor and context": ("llama3-8b", "tp=2,cp=2,dp=4,sp=off,zero=3"),
    "hybrid over context alone": ("llama3-8b", "cp=2,dp=4,zero=2,dp_shard=2"),
    "even stages": ("llama3-70b", "tp=2,pp=4,dp=2,zero=2"),
    "stages one less at the end": ("llama3-8b", "pp=4,dp=2,zero=2,stages=8/9/8/7"),
    "uneven stages": ("llama3-8b", "pp=4,dp=2,zero=3,stages=7/9/9/7"),
    "interleaved": ("llama3-70b", "tp=2,pp=4,vpp=2,dp=2,zero=2"),
    "interleaved with five virtual stages": ("llama3-70b", "pp=4,vpp=5,dp=2,zero=2"),
    "interleaved and uneven": ("llama3-8b", "pp=4,vpp=2,dp=2,zero=2,stages=6/8/10/8"),
    "GPipe": ("llama3-8b", "pp=2,dp=4,schedule=gpipe,zero=3"),
    "experts": ("qwen3-30b-a3b", "tp=2,dp=4,ep=8,etp=1,zero=3"),
    "latent attention": ("deepseek-v3", "tp=2,pp=4,dp=8,ep=8,etp=1,zero=2,recompute=full"),
    "1,024 devices": ("llama3-70b", "tp=8,pp=4,dp=32,zero=2,dp_shard=8"),
}
#: Changes that make accepted overrides wrong, and whether what reads them here refuses them as well.
BROKEN = {
    "misspelt key": ("--parallelism.tensor_parallel_degree", "--parallelism.tensor_paralel_degree"),
    "degrees beyond the devices": ("tensor_parallel_degree 2", "tensor_parallel_degree 3"),
    "shard degree beyond the devices": ("data_parallel_shard_degree 2", "data_parallel_shard_degree 4"),
    "degree that is no number": ("context_parallel_degree 1", "context_parallel_degree one"),
    "degree of nothing": ("pipeline_parallel_degree 2", "pipeline_parallel_degree 0"),
    "unknown resharding": ("fsdp_reshard_after_forward never", "fsdp_reshard_after_forward sometimes"),
    "unknown schedule": ("pipeline_parallel_schedule 1F1B", "pipeline_parallel_schedule 2F2B"),
    "unknown format": ("mixed_precision_param bfloat16", "mixed_precision_param float61"),
    "batch that is no multiple": ("global_batch_size 1024", "global_batch_size 1020"),
    "microbatches that do not divide": (
        "pipeline_parallel_microbatch_size 2",
        "pipeline_parallel_microbatch_size 3",
    ),
    "stages that do not suit the ranks": (
        "stage_less_layers 0",
        "stage_less_layers 0 --parallelism.pipeline_parallel_layers_per_stage 11",
    ),
    "unknown recompute": ("activation-checkpoint:none", "activation-checkpoint:every"),
}


def emitted(model, text):
    """Return a job, a layout of it, and the case of what is emitted."""
    job = replace(
        autoplan.load_job("llama3-8b-8x-a100"),
        stack=load_entry("stack", "fsdp2"),
        model=load_entry("model", model),
        workload=Workload(sequence_length=4096, global_batch_size=1024),
    )
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    emission = TARGET.emit(PlannedRun(job, layout))
    return job, layout, {"world_size": layout.devices, "arguments": list(emission.arguments)}


@pytest.fixture(scope="module")
def accepted():
    """Return what torchtitan says of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    answers = asked(PARSER, [case for _, _, case in cases.values()])
    return dict(zip(cases, zip(cases.values(), answers, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_torchtitan_accepts_and_its_objects_have_the_layout(accepted, name):
    """Degrees, sharding, stages, microbatches, recompute and formats of its objects are those of the plan."""
    (job, layout, _), answer = accepted[name]
    assert "accepted" in answer, answer
    found = answer["accepted"]

    shard = (layout.dp_shard // layout.cp or layout.dp) if layout.zero else 1
    degrees = [layout.tp, layout.pp, layout.cp, layout.ep, layout.dp // shard, shard]
    assert found["degrees"] == degrees
    assert found["sequence_parallel"] == (layout.sequence_parallel or layout.tp == 1)
    if layout.zero:
        assert found["reshard"] == (layout.zero == 3)
    assert found["steps"] == 1024 // (layout.dp * layout.microbatch)
    assert (found["recompute"], found["sequence_length"]) == (layout.mode, 4096)
    assert found["formats"] == ["float32", "bfloat16"]
    assert not found["compiled"]
    assert not found["captured"]
    model = job.model
    assert found["model"] == [model.layers, model.hidden_size, model.vocabulary, model.heads]
    if layout.pp > 1:
        chunks = chunks_of(layout.layers, layout.vpp)
        split = [chunks[stage][v] for v in range(layout.vpp) for stage in range(layout.pp)]
        assert [sum(name.startswith("layers.") for name in part) for part in found["stages"]] == split
        modules = [name for part in found["stages"] for name in part]
        assert modules == ["tok_embeddings", *(f"layers.{i}" for i in range(model.layers)), "norm", "lm_head"]
        names = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe", "interleaved": "ScheduleInterleaved1F1B"}
        assert found["schedule"] == names[layout.schedule]


@pytest.fixture(scope="module")
def broken():
    """Return every broken list of overrides, and what torchtitan says of it."""
    _, _, case = emitted("llama3-8b", "tp=2,pp=2,dp=2,mbs=2,zero=2")
    text = " ".join(case["arguments"])
    assert all(old in text for old, _ in BROKEN.values())
    texts = [text.replace(old, new) for old, new in BROKEN.values()]
    answers = asked(PARSER, [{**case, "arguments": text.split()} for text in texts])
    return dict(zip(BROKEN, zip(texts, answers, strict=True), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_overrides_are_refused_by_both(broken, name):
    """Torchtitan refuses overrides that are broken, and so does what reads them here."""
    text, answer = broken[name]

    assert "refused" in answer
    with pytest.raises(autoplan.SpecError):
        TARGET.read(LaunchFile("run.sh", f"torchrun --nproc-per-node 8 -m torchtitan.train {text}\n"))


def test_functions_set_what_the_table_says():
    """Models, defaults and values of configuration functions are those of the package."""
    cases = [{"module": function["module"], "config": name} for name, function in CONFIG_FUNCTIONS.items()]
    answers = asked(PARSER, cases)

    for (name, function), answer in zip(CONFIG_FUNCTIONS.items(), answers, strict=True):
        found = answer["accepted"]
        theirs = {**found["defaults"], **found["values"]}
        ours = {**found["defaults"], **function["values"]}
        assert theirs | {"training.steps": 0} == ours | {"training.steps": 0}, name
        assert {key: found["defaults"][key] for key in DEFAULTS} == dict(DEFAULTS)
        assert set(found["optimizers"]) == {"AdamW"}
        for entry in function["models"]:
            model = load_entry("model", entry)
            assert found["model"] == [model.layers, model.hidden_size, model.vocabulary, model.heads], name
