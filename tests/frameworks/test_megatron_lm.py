"""What is emitted for Megatron-LM, checked by its own parser and read back from its own objects.

AUTOPLAN_FRAMEWORKS_PYTHON names a Python with torch and the packages that it imports, by default this one,
and AUTOPLAN_FRAMEWORK_WHEELS a folder with wheels of megatron-core, which have ``megatron.training``: its
newest release and the one before. Skipped where there is none.
"""

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.launch.frameworks.megatron.arguments import arities
from autoplan.launch.frameworks.megatron.megatron_lm import TARGET
from autoplan.launch.target import PlannedRun
from autoplan.schema.layout import parse_layout
from tests.frameworks.framework_python import asked, unpacked

NEWEST, BEFORE = (unpacked("megatron_core", release) for release in ("0.19.", "0.18."))
PARSER = Path(__file__).with_name("megatron_parser.py")

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not (NEWEST and BEFORE), reason="the wheels of megatron-core are not there"),
]

LLAMA, GPT, MIXTRAL, DEEPSEEK = (
    "llama3-8b-8x-a100",
    "gpt3-175b-128x-a100",
    "mixtral-8x7b-8x-h200",
    "deepseek-v3-256x-h100",
)
#: Layouts of different shapes.
ACCEPTED = {
    "uneven first stage": (LLAMA, "tp=2,pp=2,dp=2,stages=15/17,recompute=full,zero=1"),
    "uneven ends": (LLAMA, "pp=4,dp=2,stages=7/9/9/7,recompute=full:3,zero=1"),
    "uneven middle": (LLAMA, "pp=4,dp=2,stages=7/8/9/8,zero=1"),
    "interleaved": (GPT, "tp=8,pp=8,vpp=3,dp=2,recompute=selective,zero=1"),
    "experts": (MIXTRAL, "tp=2,dp=4,ep=4,etp=1,zero=1"),
    "latent attention": (DEEPSEEK, "tp=2,pp=16,dp=8,ep=8,recompute=selective,zero=1"),
    "context parallel": (LLAMA, "pp=2,dp=2,cp=2,zero=1"),
    "hybrid sharding": (LLAMA, "tp=2,dp=4,dp_shard=2,zero=1"),
    "optimizer offload": (LLAMA, "dp=8,offload=optimizer,zero=1"),
    "activation offload": (LLAMA, "dp=8,offload=activations,zero=1"),
    "one device": (LLAMA, "tp=1,dp=1"),
    "1,024 devices": (LLAMA, "tp=8,pp=4,dp=32,zero=1"),
    "sharded parameters": (LLAMA, "dp=8,zero=3"),
    "sharded gradients": (LLAMA, "dp=8,zero=2"),
    "units of recompute": (LLAMA, "tp=1,dp=8,recompute=full,recompute_num_layers=4"),
}
#: Changes that make accepted arguments wrong.
BROKEN = {
    "degrees beyond the devices": ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 3"),
    "stages that leave no layers": (
        "--decoder-first-pipeline-num-layers 15",
        "--decoder-first-pipeline-num-layers 32",
    ),
    "misspelt argument": ("--use-distributed-optimizer", "--use-distributed-optimiser"),
    "value that is no number": ("--micro-batch-size 1", "--micro-batch-size one"),
    "unknown recompute": ("--recompute-method uniform", "--recompute-method every"),
    "full recompute without a method": ("--recompute-method uniform", ""),
    "batch that does not divide": ("--global-batch-size 128", "--global-batch-size 127"),
    "unknown positions": ("--position-embedding-type rope", "--position-embedding-type rotary"),
    "layers that do not divide": (
        "--decoder-first-pipeline-num-layers 15",
        "--num-virtual-stages-per-pipeline-rank 0",
    ),
    "sequences beyond the positions": ("--max-position-embeddings 8192", "--max-position-embeddings 4096"),
}


def emitted(name, text):
    """Return a job, a layout of it, and the case of what is emitted."""
    job = autoplan.load_job(name)
    layout = parse_layout(text, layers=job.model.layers, devices=1)
    batch = max(job.workload.global_batch_size, layout.dp * layout.microbatch)
    job = replace(job, workload=job.workload.model_copy(update={"global_batch_size": batch}))
    emission = TARGET.emit(PlannedRun(job, layout))
    return (
        job,
        layout,
        {
            "world_size": layout.devices,
            "arguments": list(emission.arguments),
            "environment": dict(emission.environment),
        },
    )


@pytest.fixture(scope="module", params=[NEWEST, BEFORE], ids=["newest", "before"])
def accepted(request):
    """Return what the parser of a release says of every accepted case, by name."""
    cases = {name: emitted(*case) for name, case in ACCEPTED.items()}
    answers = asked(PARSER, [case for _, _, case in cases.values()], request.param)
    return dict(zip(cases, zip(cases.values(), answers, strict=True), strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_parser_accepts_and_its_objects_have_the_layout(accepted, name):
    """Degrees, batch, stages, recompute and sharding of the framework's objects are those of the layout."""
    (job, layout, _), answer = accepted[name]
    assert "accepted" in answer, answer
    found = answer["accepted"]

    degrees = {key: getattr(layout, key) for key in ("tp", "pp", "cp", "dp", "ep", "etp", "vpp")}
    assert {key: found[key] for key in degrees} == degrees
    assert (found["mbs"], found["sp"], found["layers"]) == (
        layout.microbatch,
        layout.sequence_parallel,
        job.model.layers,
    )
    assert found["global_batch_size"] % (found["mbs"] * found["dp"]) == 0
    assert found["sequence_length"] == job.workload.sequence_length
    assert found["stages"] == list(layout.layers)
    assert found["distributed_optimizer"] == (layout.zero > 0)
    assert found["fsdp"] == {2: "optim_grads", 3: "optim_grads_params"}.get(layout.zero)
    assert found["instances"] == (layout.dp * layout.cp // layout.dp_shard if layout.dp_shard else 1)
    assert found["optimizer_offload"] == layout.optimizer_offload
    assert found["experts"] == (job.model.moe.experts if job.model.moe else None)
    granularity = {"none": None, "selective": "selective"}.get(layout.mode, "full")
    assert found["recompute"][0] == granularity
    if layout.mode == "full":
        assert found["recompute"][1:] == ["uniform", layout.recompute_num_layers]
    assert bool(found["offloaded_layers"]) == layout.activation_offload


def test_broken_arguments_are_refused():
    """The parser that accepts what is emitted refuses it once it is broken."""
    _, _, case = emitted(LLAMA, "tp=2,pp=2,dp=2,stages=15/17,recompute=full,zero=1")
    text = "\n".join(case["arguments"])
    cases = []
    for old, new in BROKEN.values():
        lines = "\n".join(old.split())
        assert lines in text, old
        cases.append({**case, "arguments": text.replace(lines, "\n".join(new.split())).split("\n")})

    for name, answer in zip(BROKEN, asked(PARSER, cases, NEWEST), strict=True):
        assert "refused" in answer, name


def test_the_list_of_arguments_is_that_of_the_program():
    """Every argument of the version that the list is of is known, with the number of its values."""
    theirs = asked(PARSER, [], NEWEST, "--names")

    assert theirs["version"].startswith(f"{TARGET.version.removeprefix('core_v').rpartition('.')[0]}.")
    assert {name: arities().get(name) for name in theirs["arguments"]} == theirs["arguments"]
