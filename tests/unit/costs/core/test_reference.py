"""What a reference, pairs and rollouts add to a step, by hand calculations and equal jobs without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.catalog import resolve_job
from autoplan.costs.core.parameters import total_parameters
from autoplan.costs.memory.event import REFERENCE
from autoplan.costs.predict import model_flops_per_step, predict
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import JobSpec, WorkloadSpec
from autoplan.schema.layout import parse_layout
from autoplan.schema.post_training import RLSpec

LORA = AdapterSpec(rank=16)


def job_of(stack, rl=None, batch=64, adapters=None):
    """Return a job of Llama 3.1 8B on eight A100 with a method."""
    work = WorkloadSpec(sequence_length=1024, global_batch_size=batch)
    job = resolve_job(
        JobSpec(kind="training", model="llama3.1-8b", hardware="dgx-a100-80gb", stack=stack, workload=work)
    )
    return replace(job, rl=None if rl is None else RLSpec(**rl), adapters=adapters)


def predicted(job, text):
    """Return the prediction of a layout."""
    return predict(job, parse_layout(text, layers=job.model.layers, devices=8))


def reference_event(prediction):
    """Return the memory of the forward of the reference."""
    return next(x for x in prediction.memory.stages[0].events if x.event == REFERENCE)


@pytest.mark.parametrize("stack", ["hf-trainer", "hf-fsdp2", "deepspeed"])
@pytest.mark.parametrize("adapters", [None, LORA])
def test_pairs_without_a_reference_are_twice_the_sequences(stack, adapters):
    """ORPO of b pairs is supervised training of 2 b sequences: the same seconds, bytes and FLOPs."""
    zero = {"hf-trainer": 0, "hf-fsdp2": 3, "deepspeed": 2}[stack]
    layout = "dp=8,zero={},mbs={},recompute=full".format
    pairs = predicted(job_of(stack, {"method": "orpo"}, 64, adapters), layout(zero, 1))
    sequences = predicted(job_of(stack, None, 128, adapters), layout(zero, 2))

    assert pairs.step_seconds == pytest.approx(sequences.step_seconds, rel=1e-12)
    assert pairs.memory.stages[0].total == sequences.memory.stages[0].total
    assert pairs.tokens_per_second == pytest.approx(sequences.tokens_per_second, rel=1e-12)
    assert pairs.model_flops_utilization == pytest.approx(sequences.model_flops_utilization, rel=1e-12)


@pytest.mark.parametrize(("stack", "layout"), [("hf-trainer", "dp=8"), ("hf-fsdp2", "dp=8,zero=3")])
def test_a_reference_computed_before_training_costs_nothing_in_a_step(stack, layout):
    """DPO with precompute_ref_log_probs is ORPO: the losses of pairs are a few numbers."""
    before = predicted(job_of(stack, {"method": "dpo", "precompute_ref_log_probs": True}), layout)
    without = predicted(job_of(stack, {"method": "orpo"}), layout)

    assert before.step_seconds == without.step_seconds
    assert before.memory == without.memory


@pytest.mark.parametrize(
    ("stack", "layout", "copies"),
    [
        ("deepspeed", "dp=8,zero=1", 2),  # bf16, and the reference whole
        ("deepspeed", "dp=8,zero=3", 2 / 8),
        ("hf-trainer", "dp=8", 4),  # fp32
        ("hf-fsdp2", "dp=8,zero=2", 4 / 8),
    ],
)
def test_a_full_fine_tune_keeps_a_copy_of_the_model(stack, layout, copies):
    """N parameters more, in the policy's format: whole, or one of eight shards where the policy's are."""
    dpo, orpo = (predicted(job_of(stack, {"method": name}), layout).memory for name in ("dpo", "orpo"))
    parameters = total_parameters(job_of(stack).model)

    assert dpo.parameters - orpo.parameters == pytest.approx(copies * parameters)
    assert (dpo.gradients, dpo.optimizer) == (orpo.gradients, orpo.optimizer)


def test_adapters_have_no_second_copy():
    """The reference of LoRA is the base: a forward more, and no parameter."""
    dpo, orpo = (predicted(job_of("hf-trainer", {"method": x}, 64, LORA), "dp=8") for x in ("dpo", "orpo"))

    assert dpo.memory.parameters == orpo.memory.parameters
    assert dpo.memory.stages[0].total == orpo.memory.stages[0].total
    # Forward without adapters, to backward of input gradients and to forward with them.
    assert 0.2 < dpo.time.compute / orpo.time.compute - 1 < 0.5


@pytest.mark.parametrize(
    ("method", "adapters", "weights", "attention"),
    [("dpo", None, 8, 16), ("kto", None, 12, 24), ("dpo", LORA, 6, 16), ("orpo", None, 6, 12)],
)
def test_flops_count_each_forward_once(method, adapters, weights, attention):
    """2 a weight and 4 for attention in each forward without a gradient."""
    job = job_of("hf-trainer", {"method": method}, 64, adapters)
    model, tokens = job.model, 64 * 1024 * (1 if method == "kto" else 2)
    per_token = weights * (total_parameters(model) - model.vocabulary * model.hidden_size)
    per_token += attention * model.layers * model.hidden_size * 512.5

    assert model_flops_per_step(job) == pytest.approx(per_token * tokens, rel=1e-12)


def test_a_reference_of_one_unit_is_gathered_whole():
    """TRL shards the reference under FSDP2 as one unit: 2 N bytes beside the policy's graph."""
    job = job_of("hf-fsdp2", {"method": "dpo"})
    event = reference_event(predicted(job, "dp=8,zero=3,recompute=full"))
    sharded = job_of("deepspeed", {"method": "dpo"})
    in_layers = reference_event(predicted(sharded, "dp=8,zero=3,recompute=full"))

    assert event.transient >= 2 * total_parameters(job.model)
    assert in_layers.transient < total_parameters(job.model)


def test_a_colocated_engine_takes_its_share_of_every_device():
    """30 % of the device while it is awake; asleep, or elsewhere, nothing."""
    rollouts = {"method": "grpo", "vllm_mode": "colocate"}
    usable = job_of("hf-trainer").cluster.device.memory.usable.value
    totals = [
        predicted(job_of("hf-trainer", rl, 64, LORA), "dp=8,recompute=full").memory.stages[0].total
        for rl in (
            rollouts,
            {**rollouts, "vllm_enable_sleep_mode": True},
            {"method": "grpo", "vllm_mode": "server"},
        )
    ]

    assert totals[0] - totals[1] == pytest.approx(0.3 * usable)
    assert totals[1] == totals[2]


def test_grpo_has_a_reference_where_it_weighs_the_divergence():
    """The reference's forward comes before the policy's, so that no activation is in memory beside it."""
    without, with_it = (job_of("hf-trainer", {"method": "grpo", "beta": beta}) for beta in (0.0, 0.04))
    layout = "dp=8,recompute=full"

    assert predicted(with_it, layout).memory.parameters > predicted(without, layout).memory.parameters
    assert reference_event(predicted(with_it, layout)).activations == 0


@pytest.mark.parametrize(
    "said",
    [
        {"method": "dpo", "vllm_mode": "colocate"},
        {"method": "grpo", "precompute_ref_log_probs": True},
        {"method": "grpo", "vllm_mode": "server", "vllm_gpu_memory_utilization": 0.5},
        {"method": "orpo", "precompute_ref_log_probs": True},
    ],
)
def test_keys_of_other_methods_are_refused(said):
    """A key that the method has no use for is a mistake."""
    with pytest.raises(ValueError, match="needs"):
        RLSpec(**said)
