"""Adapters of stacked experts: parameters, products, and copies of the stacks that a forward makes."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from autoplan import evaluate, load_job
from autoplan.catalog import load_entry, stack
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.rank_parameters import layer_weights
from autoplan.costs.layer.expert_adapters import adapted_expert_gemms, expert_adapter_elements
from autoplan.costs.layer.moe import dequantized_stacks, expert_saved_bytes
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.layout import parse_layout

H, F, E, K, R = 2048, 768, 128, 8, 16
STACK = E * 3 * H * F


def job_of(name, *, experts=True, base=None):
    """Return LoRA of Qwen3-30B-A3B as the stack of this name runs it."""
    adapters = AdapterSpec(rank=R, targets="attention", experts=experts, base=base)
    job = load_job("--model qwen3-30b-a3b --hardware 1x-h200-sxm-141gb --task lora --sequence-length 1024")
    return replace(job, stack=stack(name), adapters=adapters, program=None, programs=None, choices=())


def one(text="mbs=1"):
    """Return the candidate of a layout."""
    return Candidates.of([parse_layout(text, layers=48, devices=1)])


def test_each_expert_has_two_matrices_at_both_of_its_stacks():
    """They have r E (h + 2 f) and r E (f + h), beside those of attention."""
    with_experts, without = (
        float(layer_weights(job_of("hf-trainer", experts=x), one()).trained[0, 0]) for x in (True, False)
    )
    assert with_experts - without == R * E * (H + 2 * F) + R * E * (F + H)


def test_merged_adapters_save_their_sums_and_split_ones_outputs_of_rank_r():
    """A token has K routed copies; their inputs are saved where an adapter needs them."""
    c, tokens = one(), 1024
    frozen, merged = (
        float(expert_saved_bytes(job_of("hf-trainer", experts=x), c, 6.0, 2.0)[0]) for x in (False, True)
    )
    assert merged - frozen == pytest.approx(K * 2 * H + 2 * STACK / tokens)
    frozen, split = (
        float(expert_saved_bytes(job_of("unsloth", experts=x), c, 6.0, 2.0)[0]) for x in (False, True)
    )
    assert split - frozen == pytest.approx(K * (2 * H + 2 * 2 * R))


def test_merged_adapters_need_the_weight_gradients_of_the_stacks():
    """Both grouped products have one; split adapters leave the stacks frozen."""
    tokens = np.full(1, 1024.0)
    assert len(adapted_expert_gemms(job_of("hf-trainer"), tokens, one())) == 2
    assert adapted_expert_gemms(job_of("unsloth"), tokens, one()) == []
    moved = [float(x[0]) for x in expert_adapter_elements(job_of("hf-trainer"), tokens, one())]
    assert moved == [5 * STACK, 2 * STACK]
    routed = 1024 * K
    moved = [float(x[0]) for x in expert_adapter_elements(job_of("unsloth"), tokens, one())]
    assert moved == pytest.approx([5 * (2 * F + H) * routed, (2 * (2 * F + H) + 3 * (H + F)) * routed])


def test_unsloth_dequantises_stacks_again_in_backward():
    """It saves none of their copies; backward holds the larger stack and its transpose."""
    job = job_of("unsloth", experts=False, base="nf4")
    assert float(dequantized_stacks(job, one())[0]) == 0
    kept = job.stack.experts.model_copy(update={"dequantized_again": False})
    pinned = replace(job, stack=job.stack.model_copy(update={"experts": kept}))
    assert float(dequantized_stacks(pinned, one())[0]) == STACK
    text = "mbs=1,recompute=none"
    again, held = (evaluate(x, text).predicted.memory.stages[0].total for x in (job, pinned))
    assert held - again > 40 * 2 * STACK


def test_adapters_of_experts_have_neither_dora_nor_dropout():
    """PEFT's ParamWrapper has none of both."""
    for more in ({"dora": True}, {"dropout": 0.1}):
        with pytest.raises(ValidationError, match="neither dora nor dropout"):
            AdapterSpec(rank=8, experts=True, **more)


def test_a_dense_model_and_a_stack_without_them_say_so():
    """Each error names what to leave out or to choose."""
    job = job_of("hf-trainer")
    with pytest.raises(Exception, match=r"leave out `adapters.experts`"):
        evaluate(replace(job, model=load_entry("model", "llama3-8b")), "mbs=1")
    with pytest.raises(Exception, match=r"no adapters of experts .*unsloth"):
        evaluate(replace(job, stack=stack("torchtune")), "mbs=1")
