"""What programs keep beside a block's tensors, counted by hand: norms, weights, gradients, copies, scores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.costs.predict import predict
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.layout import parse_layout
from tests.support.ideal_machines import ideal_job

#: The small model of ``ideal_job``, and its microbatch of two sequences of 256 tokens.
L, H, K, F, V, S, T = 8, 512, 256, 1024, 4096, 256, 512
LAYER = 2 * H * H + 2 * H * K + 3 * H * F + 2 * H
OUTSIDE = 2 * V * H + H


def job_of(name, *, software=None, devices=1, **more):
    """Return the small job under a stack with the choices of ``software``."""
    job = ideal_job(name, devices=devices, more=more)
    chosen = SoftwareSpec(**(software or {}))
    return replace(job, software=chosen, stack=with_software(job.stack, chosen))


def stage_of(job, text):
    """Return the memory of the only stage of a layout."""
    layout = parse_layout(text, layers=L, devices=job.cluster.devices, zero=0)
    (stage,) = predict(job, layout).memory.stages
    return stage


def with_fields(job, section, **fields):
    """Return ``job`` with fields of a section of its stack."""
    changed = getattr(job.stack, section).model_copy(update=fields)
    return replace(job, stack=job.stack.model_copy(update={section: changed}))


@pytest.mark.parametrize(("adapters", "kept"), [(None, 4), (AdapterSpec(rank=4), 2)])
def test_norms_of_transformers_keep_two_tensors(adapters, kept):
    """The input in fp32 in place of 2 bytes, and the normalised input where the norm is trained."""
    eager = job_of("deepspeed", adapters=adapters)
    native = with_fields(eager, "block", norm_copy_bytes=0)

    with_copies, without = (stage_of(job, "mbs=2").events[0].activations for job in (eager, native))
    assert with_copies - without == kept * T * H * (2 * L + 1)


def test_fused_norms_keep_none():
    """Of one kernel each backward needs the input and a number for each token."""
    eager, fused = (
        stage_of(job_of("hf-trainer", software=chosen), "mbs=2").events[0].activations
        for chosen in ({}, {"fused_kernels": True})
    )
    assert eager - fused >= 4 * T * H * (2 * L + 1)


def test_weights_that_autograd_holds_stay_until_backward():
    """All of a model's layers and its output layer, unless each layer is recomputed."""
    plain, held = (job_of("deepspeed", devices=8, software=chosen) for chosen in ({}, {"weights_held": True}))
    for text, weights in (
        ("zero=3,mbs=1", L * LAYER + V * H + H),
        ("zero=3,mbs=1,recompute=full", V * H + H),
        ("zero=2,mbs=1", 0),
    ):
        before, after = (stage_of(job, text).events[0].activations for job in (plain, held))
        assert after - before == 2 * weights


def test_shards_of_gradients_stay_and_follow_the_optimizer():
    """DeepSpeed has a buffer for them under ZeRO-3, on the host beside an offloaded optimizer."""
    job = job_of("deepspeed", devices=8)
    shard = 2 * (L * LAYER + OUTSIDE) / 8

    assert stage_of(job, "zero=3,mbs=1").events[0].gradients == shard
    offloaded = stage_of(job, "zero=3,mbs=1,offload=optimizer")
    assert offloaded.events[0].gradients == 0
    assert offloaded.host == (12 + 2) * (L * LAYER + OUTSIDE) / 8


def test_column_parallel_products_may_copy_their_inputs():
    """Queries, keys, values, gate and up have five inputs for two."""
    job = job_of("analytic", devices=2)
    copied = with_fields(job, "block", column_inputs_copied=True)

    before, after = (stage_of(x, "tp=2,mbs=2,sp=off").events[0].activations for x in (job, copied))
    assert after - before == (5 - 2) * 2 * T * H * L
    alone = (stage_of(x, "dp=2,mbs=1").events[0].activations for x in (job, copied))
    assert len(set(alone)) == 1


def test_a_policy_that_keeps_products_keeps_scores():
    """Of eager attention they are the output of a batched product."""
    job = job_of("ddp", software={"attention": "eager"})
    flash = job_of("ddp")
    heads = job.model.heads

    kept = [stage_of(x, "mbs=2,recompute=selective").events[0].activations for x in (job, flash)]
    assert kept[0] - kept[1] == L * T * heads * (2 * S - 4)


def test_a_shifted_loss_copies_its_logits():
    """Four bytes a logit more in forward and in backward than in one piece."""
    whole, shifted = (job_of("hf-trainer", software={"loss": loss}) for loss in ("whole", "shifted"))

    before, after = (stage_of(job, "mbs=2").events[0].logits for job in (whole, shifted))
    assert after - before == 4 * T * V
