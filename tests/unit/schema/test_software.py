"""What a job says of its software moves what is predicted for it."""

from dataclasses import replace

import pytest

from autoplan import load_job
from autoplan.catalog import stack
from autoplan.errors import SpecError
from autoplan.planning.plan_and_evaluate import evaluate
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.layout import parse_layout

JOB = """
schema: 1
kind: training
model: qwen3-1.7b
hardware: 2x-rtx4090
devices: 2
stack: {stack}
precision: {precision}
workload: {{sequence_length: 2048, global_batch_size: 64}}
{software}
"""


def predicted(tmp_path, software, *, stack="ddp", precision="bf16"):
    """Return step seconds and bytes of one layout of a job with such a section."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(stack=stack, precision=precision, software=software), encoding="utf-8")
    job = load_job(path)
    layout = parse_layout("dp=2,mbs=4,recompute=full", layers=job.model.layers, devices=2)
    found = evaluate(job, layout).predicted
    return found.step_seconds, found.peak_memory_bytes_per_device


@pytest.mark.parametrize(
    ("software", "faster", "smaller"),
    [
        ("software: {loss: fused}", True, True),
        ("software: {loss: chunked}", True, True),
        ("software: {loss_chunks: 8}", None, True),
        ("software: {attention: eager}", False, False),
        ("software: {attention: masked}", False, None),
        ("software: {host_waits: 2048}", False, None),
        ("software: {fused_kernels: true}", True, None),
        ("software: {compile: true}", True, None),
        ("software: {pure_bf16: true}", True, True),
        ("software: {gradients: bf16}", True, True),
    ],
)
def test_each_choice_moves_time_or_memory(tmp_path, software, faster, smaller):
    """A fused kernel saves time, a narrower format bytes as well; scores in memory cost both."""
    plain, told = predicted(tmp_path, ""), predicted(tmp_path, software)

    assert (told[0] < plain[0]) is bool(faster)
    assert smaller is None or (told[1] < plain[1]) is smaller


@pytest.mark.parametrize("software", ["{gelu: formula}", "{dropout: true}"])
def test_choices_of_models_without_gates_cost_time_and_memory(tmp_path, software):
    """Kernels that GPT-2 has and Llama has not."""
    path = tmp_path / "job.yaml"
    text = JOB.replace("qwen3-1.7b", "gpt3-1.3b")

    def found(told):
        path.write_text(text.format(stack="ddp", precision="bf16", software=told), encoding="utf-8")
        job = load_job(path)
        layout = parse_layout("dp=2,mbs=4,zero=0", layers=job.model.layers, devices=2)
        predicted = evaluate(job, layout).predicted
        return predicted.step_seconds, predicted.memory.activations

    plain, told = found(""), found(f"software: {software}")
    fused = found(f"software: {software[:-1]}, compile: true}}")

    assert told[0] > plain[0]
    assert told[1] > plain[1]
    assert (fused[1] < told[1]) is ("gelu" in software)


def test_a_tiled_loss_takes_the_time_of_one_more_product(tmp_path):
    """Backward computes the logits again, where a chunked loss has made their gradient in forward."""
    chunked, tiled = (predicted(tmp_path, f"software: {{loss: {name}}}") for name in ("chunked", "tiled"))

    assert chunked[0] < tiled[0]
    assert tiled[1] < predicted(tmp_path, "")[1]


@pytest.mark.parametrize(
    ("more", "loss"),
    [("", "whole"), ("adapters: {rank: 8}", "tiled"), ("rl: dpo", "tiled")],
)
def test_a_program_has_the_loss_of_its_trainers(tmp_path, more, loss):
    """TRL's trainers of adapters and preferences tile it; the Trainer's own has whole logits."""
    path = tmp_path / "job.yaml"
    text = JOB.replace("stack: {stack}", "program: {stack}")
    path.write_text(text.format(stack="trainer", precision="bf16", software=more), encoding="utf-8")
    blocks = [one.stack.block for one in load_job(path).choices]

    assert {block.loss_recomputed for block in blocks} == {loss == "tiled"}
    assert {block.logits_bytes for block in blocks} == {0 if loss == "tiled" else 4}


def test_launches_move_steps_that_the_host_bounds(tmp_path):
    """Graphs take the host away; an optimizer that loops over tensors adds to it."""
    text = "workload: {{sequence_length: 128, global_batch_size: 2}}"
    small = JOB.replace("workload: {{sequence_length: 2048, global_batch_size: 64}}", text)

    def seconds(software):
        path = tmp_path / "small.yaml"
        path.write_text(small.format(stack="ddp", precision="bf16", software=software), encoding="utf-8")
        job = load_job(path)
        layout = parse_layout("dp=2,mbs=1", layers=job.model.layers, devices=2)
        return evaluate(job, layout).predicted.step_seconds

    plain = seconds("")

    assert seconds("software: {cuda_graphs: true}") < plain
    assert seconds("software: {deterministic: true}") > plain
    assert seconds("software: {optimizer_kernels: loop, pure_bf16: true}") > seconds(
        "software: {pure_bf16: true}"
    )


def test_kernels_of_adam_move_thirteen_tensors_more(tmp_path):
    """PyTorch's eight kernels move 20 tensors where a fused one moves 7; 8-bit Adam is one kernel always."""

    def seconds(kernels, optimizer="adamw"):
        section = f"optimizer: {optimizer}\nsoftware: {{optimizer_kernels: {kernels}}}"
        return predicted(tmp_path, section)[0]

    job = stack("ddp")
    listed = with_software(job, SoftwareSpec(optimizer_kernels="foreach")).memory
    traffic = 13 * job.memory.state_bytes * 1.72e9  # parameters of Qwen3 1.7B
    more = seconds("foreach") - seconds("fused")

    assert listed.update_passes == 13
    assert traffic / 1.008e12 < more < 1.4 * traffic / 1.008e12
    assert seconds("foreach", "adamw-8bit") - seconds("fused", "adamw-8bit") < 0.1 * more


@pytest.mark.parametrize("name", ["ddp", "hf-fsdp2", "fsdp2-compile"])
def test_a_compiled_layer_launches_as_few_kernels_in_every_stack(name):
    """The host launches what torch.compile made of a layer, whoever's modules it was."""
    compiled = with_software(stack(name), SoftwareSpec(compile=True))

    assert compiled.block.kernels == stack("fsdp2-compile").block.kernels


def test_buckets_and_early_stop_move_the_step(tmp_path):
    """The last bucket is exposed; a recompute that stops early leaves out a product."""
    plain = predicted(tmp_path, "")[0]

    assert predicted(tmp_path, "software: {bucket: 500 MiB}")[0] > plain
    assert predicted(tmp_path, "software: {recompute_early_stop: true}")[0] < plain


def test_weights_in_fp8_need_products_in_fp8(tmp_path):
    """They save memory under fp8, and are refused in bf16."""
    plain = predicted(tmp_path, "", stack="megatron-core", precision="fp8")
    told = predicted(tmp_path, "software: {fp8_weights: true}", stack="megatron-core", precision="fp8")

    assert told[1] < plain[1]
    with pytest.raises(SpecError, match="fp8_weights needs precision"):
        predicted(tmp_path, "software: {fp8_weights: true}")


def test_fused_permutation_moves_steps_of_experts_alone():
    """A model without experts permutes nothing."""

    def seconds(name, layout, *, fused):
        job = load_job(name)
        told = replace(job, stack=with_software(job.stack, SoftwareSpec(permute_fusion=fused)))
        return evaluate(told, layout).predicted.step_seconds

    moe, dense = ("mixtral-8x7b-8x-h200", "ep=8,dp=8,mbs=1"), ("llama3-8b-8x-a100", "tp=8,mbs=1")

    assert seconds(*moe, fused=True) < seconds(*moe, fused=False)
    assert seconds(*dense, fused=True) == seconds(*dense, fused=False)


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ({"dispatch_overlap": True}, {}),
        ({"experts": "fused"}, {"experts": "grouped"}),
        ({"dispatcher": "flex"}, {"dispatcher": "all-to-all"}),
    ],
    ids=str,
)
def test_what_recipes_choose_for_experts_shortens_their_steps(faster, slower):
    """Dispatch beside another microbatch, one kernel for an MLP, one copy of a token to a rank."""
    job = load_job("mixtral-8x7b-8x-h200")

    def seconds(chosen, layout="ep=8,dp=8,mbs=1"):
        told = replace(job, stack=with_software(job.stack, SoftwareSpec(**chosen)))
        return evaluate(told, layout).predicted.step_seconds

    assert seconds(faster) < seconds(slower)


def test_a_dispatch_has_nothing_beside_it_in_a_step_of_one_microbatch():
    """What overlaps is the dispatch of another microbatch."""
    job = load_job("mixtral-8x7b-8x-h200")
    once = replace(job, workload=job.workload.model_copy(update={"global_batch_size": 8}))
    told = replace(once, stack=with_software(once.stack, SoftwareSpec(dispatch_overlap=True)))
    layout = "ep=8,dp=8,mbs=1"

    assert evaluate(told, layout).predicted.step_seconds == evaluate(once, layout).predicted.step_seconds


def test_what_either_choice_fuses_is_fused():
    """Kernels that a library fuses stay so in a run that is not compiled; a compiler fuses the others."""
    plain = stack("litgpt")

    def block(**told):
        return with_software(plain, SoftwareSpec(**told)).block

    assert not block(compile=False).fused_norms
    assert block(compile=False, fused_kernels=True).fused_norms
    assert not block(compile=False, fused_kernels=True).fused_casts
    assert block(compile=True, fused_kernels=False).fused_norms
