"""Megatron-LM: what is emitted and refused, and what small scripts of the constructs in use say."""

import subprocess
from dataclasses import replace

import pytest

import autoplan
from autoplan.catalog import entry_names, load_entry, stack
from autoplan.errors import LayoutError, SpecError, UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.megatron.arguments import arities
from autoplan.launch.frameworks.megatron.megatron_lm import TARGET
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout

MODEL = """
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights --vocab-size 128256 --bf16
)
"""


@pytest.fixture(scope="module")
def job():
    """Return a shipped job on Megatron-Core."""
    return autoplan.load_job("llama3-8b-8x-a100")


def script(*arguments, before="", launcher="torchrun --nproc-per-node 8"):
    """Return a training script with ``arguments``, and with lines ``before`` them."""
    words = " ".join(arguments)
    return f'#!/bin/bash\n{before}\n{MODEL}\n{launcher} pretrain_gpt.py "${{MODEL_ARGS[@]}}" {words}\n'


def read(text, **more):
    """Return what a script says."""
    return TARGET.read(LaunchFile("train.sh", text, **more))


BATCH = ("--micro-batch-size 1", "--global-batch-size 64")


@pytest.mark.parametrize(
    ("arguments", "layout"),
    [
        (("--tensor-model-parallel-size 2", "--sequence-parallel"), "tp=2"),
        (("--pipeline-model-parallel-size=4", "--use-distributed-optimizer"), "tp=1,pp=4,zero=1"),
        (("--recompute-activations",), "tp=1,recompute=selective"),
        (("--recompute-granularity selective", "--recompute-modules mlp"), "tp=1,recompute=mlp"),
        (("--recompute-granularity selective", "--recompute-modules core_attn"), "tp=1,recompute=selective"),
        (
            ("--recompute-granularity full", "--recompute-method block", "--recompute-num-layers 3"),
            "tp=1,recompute=full:3",
        ),
        (
            ("--pipeline-model-parallel-size 4", "--num-layers-per-virtual-pipeline-stage 2"),
            "pp=4,vpp=4",
        ),
        (("--use-megatron-fsdp",), "tp=1,zero=3"),
        (("--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads"), "tp=1,zero=2"),
        (("--use-torch-fsdp2",), "tp=1,zero=3"),
        (
            ("--pipeline-model-parallel-size 4", "--decoder-first-pipeline-num-layers 5"),
            "pp=4,stages=5/9/9/9",
        ),
        (
            ("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-layout 'E(t|)*15tt|t*14L'"),
            None,
        ),
        (
            ("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-layout 'Et*15|t*17L'"),
            "pp=2,stages=15/17",
        ),
        (
            (
                "--context-parallel-size 2",
                "--use-distributed-optimizer",
                "--num-distributed-optimizer-instances 4",
            ),
            "tp=1,cp=2,zero=1,dp_shard=2",
        ),
        (("--optimizer-cpu-offload", "--use-distributed-optimizer"), "tp=1,zero=1,offload=optimizer"),
        (("--cpu-offloading-num-layers 8",), "tp=1,offload=activations,offload_every=4"),
        (("--deepspeed", "--zero-stage 2", "--checkpoint-activations"), "tp=1,zero=2,recompute=full"),
    ],
)
def test_arguments_are_read(arguments, layout):
    """Each argument of a layout is the choice that it stands for; what is no layout is an error."""
    if layout is None:
        with pytest.raises(SpecError):
            read(script(*BATCH, *arguments))
        return
    found = read(script(*BATCH, *arguments))

    assert found.layout == parse_layout(layout, layers=32, devices=8)
    assert found.job["model"] == "llama3-8b"
    assert found.job["workload"] == {"sequence_length": 8192, "global_batch_size": 64}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--tensor-model-parallel-size 3",),
            "tp=3 (line 11) x pp=1 x cp=1 = 3 does not divide the 8 devices",
        ),
        (("--micro-batch-size 3",), "mbs=3 (line 11) x dp=8"),
        (
            ("--pipeline-model-parallel-size 8", "--num-layers-per-virtual-pipeline-stage 3"),
            "3 does not divide the 4 layers of a stage",
        ),
        (
            ("--num-layers 30", "--pipeline-model-parallel-size 4"),
            "30 layers cannot be divided evenly into 4 stages",
        ),
        (
            ("--pipeline-model-parallel-size 4", "--decoder-first-pipeline-num-layers 31"),
            "1 layers are left for 3 stages",
        ),
        (("--tensor-model-paralel-size 2",), "did you mean --tensor-model-parallel-size?"),
        (("--num_layers 2",), "did you mean --num-layers?"),
        (("--micro-batch-size two",), "'two' is not an integer of at least 1"),
        (("--micro-batch-size",), "its value is missing"),
        (("--recompute-granularity full",), "full recompute needs --recompute-method"),
        (("--tensor-model-parallel-size $TP",), "TP, which is not set here (line 11): give --set TP=VALUE"),
        (("--tensor-model-parallel-size $(nproc)",), "the output of $(nproc)"),
        (("$(cat args.txt)",), "arguments depend on the output of $(cat args.txt)"),
        (
            ("--num-experts 8", "--moe-layer-freq '[1]*3'"),
            "a pattern of 3 layers, and the model has 32 layers",
        ),
    ],
)
def test_what_contradicts_or_is_not_known_is_refused(arguments, sentence):
    """Contradictions, misspellings and values that depend on execution are errors with their line."""
    with pytest.raises(SpecError) as caught:
        read(script(*BATCH, *arguments))

    problem = next(p for p in caught.value.problems if sentence in p.message)
    assert problem.file == "train.sh"
    assert problem.line == 11


def test_variables_and_arguments_come_from_the_command_line():
    """--set is the environment of the script and --arg further arguments of the program."""
    text = script(*BATCH, "--tensor-model-parallel-size ${TP:-2}", '"$@"')

    assert read(text).layout.tp == 2
    assert read(text, variables={"TP": "4"}).layout.tp == 4
    assert read(text, arguments=("--context-parallel-size", "2")).layout.cp == 2


@pytest.mark.parametrize(
    ("before", "launcher", "devices"),
    [
        ("", "torchrun --nproc_per_node=4 --nnodes=2", 8),
        ("G=4\nN=4", "python -m torch.distributed.launch --nproc_per_node $G --nnodes $N", 16),
        (
            "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8",
            "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8",
            32,
        ),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=4", "srun python", 8),
        ("", "srun -N 4 --ntasks-per-node 4 python", 16),
        ("", "torchrun --nproc_per_node $(nvidia-smi -L | wc -l)", None),
        ("", "python", None),
    ],
)
def test_devices_are_those_of_the_launcher(before, launcher, devices):
    """torchrun, Slurm and their kin say how many processes run; what is not known stays open."""
    found = read(script("--micro-batch-size 1", before=before, launcher=launcher))

    assert found.job.get("devices") == devices
    assert ("devices" in found.unspecified) == (devices is None)
    assert (found.layout is None) == (devices is None)


def test_defaults_and_open_fields_are_said():
    """What took the framework's default and what nothing gives is listed."""
    text = script("--micro-batch-size 1", launcher="python").replace("--vocab-size 128256", "")
    found = read(text)

    assert {"tp", "pp", "recompute", "zero", "optimizer"} <= set(found.defaults)
    assert {"devices", "dp", "global_batch_size", "model.vocabulary"} <= set(found.unspecified)
    assert (
        "but for the vocabulary, the model is llama3-8b or llama3.1-8b or mistral-7b-v0.3" in found.warnings
    )


def test_foreign_arguments_are_listed():
    """Arguments of a fork are not read, and said."""
    found = read(script(*BATCH, "--use-fused-rmsnorm", "--tokenizer-name-or-path x"))

    assert (
        "not arguments of Megatron-LM, not read: --use-fused-rmsnorm, --tokenizer-name-or-path"
        in found.warnings
    )


@pytest.mark.parametrize("name", entry_names("model"))
def test_each_model_is_emitted_and_read_back_or_refused(job, name):
    """What Megatron-LM's GPT model has is the same model when read back."""
    model = load_entry("model", name)
    its_job = replace(job, model=model, workload=Workload(sequence_length=512, global_batch_size=64))
    layout = parse_layout("tp=1", layers=model.layers, devices=1)
    try:
        text = TARGET.emit(PlannedRun(its_job, layout)).files[0].text
    except InexpressibleError:
        return
    found = load_entry("model", read(text, devices=1).job["model"])

    aside = {
        "name",
        "title",
        "source",
        "published_parameters",
        "published_active_parameters",
        "max_positions",
    }
    assert found.model_dump(exclude=aside) == model.model_dump(exclude=aside)


def test_recompute_of_modules_is_of_parts_that_the_model_has(job):
    """Two modules are read in any order; Llama has neither experts nor latents, for which there is a rule."""
    words = "--recompute-granularity selective --recompute-modules moe_act layernorm"
    text = TARGET.emit(PlannedRun(job, parse_layout("tp=2,mbs=2,zero=1", layers=32, devices=8))).files[0].text
    found = read(text.replace("--micro-batch-size", f"{words} --micro-batch-size"), devices=8)

    assert found.layout.mode == "layernorm_moe_act"
    with pytest.raises(LayoutError, match="recompute=layernorm_moe_act is of experts, which the model lacks"):
        autoplan.evaluate(job, found.layout)
    unknown = read(text.replace("--micro-batch-size", f"{words} core_attn --micro-batch-size"), devices=8)
    assert any(field.endswith("recompute") for field in unknown.unspecified)


@pytest.mark.parametrize(
    ("mode", "module"), [("selective", "core_attn"), ("mlp", "mlp"), ("mla_up_proj_mlp", "mla_up_proj mlp")]
)
def test_recompute_of_a_module_is_emitted_and_read_back(job, mode, module):
    """All layers recompute the modules that a mode is of."""
    layout = parse_layout(f"tp=2,mbs=2,recompute={mode},zero=1", layers=32, devices=8)
    text = TARGET.emit(PlannedRun(job, layout)).files[0].text

    assert f"--recompute-granularity selective --recompute-modules {module}" in " ".join(text.split())
    assert read(text, devices=8).layout == layout


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        ("tp=1,pp=4,schedule=gpipe", "no gpipe schedule"),
        ("tp=1,pp=2,recompute=full:3/none", "recompute that differs by layer or stage"),
        ("tp=1,recompute=full:3+selective:4", "recompute that differs by layer or stage"),
        (
            "tp=1,pp=4,schedule=gpipe,recompute=full:3/none/none/none",
            "no gpipe schedule (schedule=gpipe); recompute",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_the_nearest(job, layout, part):
    """Nothing is dropped: the parts are named, and the nearest layout that can be expressed is priced."""
    free = autoplan.load_job("llama3-8b-8x-a100")
    plan = autoplan.evaluate(replace(free, stack=load_entry("stack", "analytic")), layout)

    with pytest.raises(
        UnsupportedError, match=r"nearest layout that it can: tp=1.* s, [+-]\d+\.\d %"
    ) as caught:
        autoplan.emit(plan, "megatron-lm", job=replace(free, stack=load_entry("stack", "analytic")))

    assert part in str(caught.value)


def test_the_script_is_one_that_bash_reads(job, tmp_path):
    """The array that bash makes of the file has the arguments, whatever the values are."""
    plan = autoplan.evaluate(job, "tp=2,pp=4,mbs=1,stages=7/8/9/8")
    emission = autoplan.emit(
        plan, "megatron-lm", job=job, command="autoplan emit 'x\ny; touch /tmp/no' --for m"
    )
    file = tmp_path / "args.sh"
    file.write_text(emission.files[0].text, encoding="utf-8")

    done = subprocess.run(
        ["bash", "-euc", 'source "$1"; printf "%s\\n" "${MEGATRON_ARGS[@]}"', "-", str(file)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert tuple(done.stdout.splitlines()) == emission.arguments
    assert "Et*7|t*8|t*9|t*8L" in emission.arguments


def test_all_emitted_arguments_are_known():
    """Names that are emitted are in the list of the framework's arguments."""
    job = autoplan.load_job("deepseek-v3-256x-h100")
    layout = parse_layout("tp=2,pp=16,dp=8,ep=8,zero=1", layers=61, devices=256)
    arguments = TARGET.emit(PlannedRun(job, layout)).arguments

    assert [word for word in arguments if word.startswith("--") and word not in arities()] == []


@pytest.mark.parametrize(("dispatcher", "said"), [("all-to-all", None), ("flex", "flex")])
def test_a_dispatcher_is_emitted_and_read_back(dispatcher, said):
    """With the kernels that sort tokens as the plan is priced."""
    told = SoftwareSpec(dispatcher=dispatcher, permute_fusion=True)
    moe = autoplan.load_job("mixtral-8x7b-8x-h200")
    moe = replace(moe, software=told, stack=with_software(stack("megatron-core"), told))
    text = TARGET.emit(PlannedRun(moe, parse_layout("ep=8", layers=32, devices=8, zero=1))).files[0].text
    software = read(text, devices=8).job["software"]

    assert software.get("permute_fusion") is True
    assert software.get("dispatcher") == said
