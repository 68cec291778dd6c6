"""Gradients of keys and values in context parallelism: as wide as the stack adds them up."""

from dataclasses import replace

import pytest

import autoplan
from autoplan.catalog import load_job, stack
from autoplan.catalog.programs import any_layout
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.layer.context_parallel import context_buffer_bytes, context_messages
from autoplan.schema.layout import parse_layout


def job_on(name, precision="bf16"):
    """Return a job of eight devices on the stack ``name``."""
    return replace(any_layout(load_job("llama3-8b-8x-h100")), stack=stack(name), precision=precision)


@pytest.mark.parametrize(
    ("name", "precision", "times"),
    [("fsdp2", "bf16", 2), ("fsdp2-compile", "bf16", 2), ("fsdp2", "fp32", 1), ("megatron-core", "bf16", 1)],
)
def test_gradients_are_sent_in_fp32_by_pytorch_alone(name, precision, times):
    """Twice the bytes of keys and values in 16 bits, the same in fp32; Transformer Engine sends 16 bits."""
    job, one = job_on(name, precision), Candidates.of([parse_layout("cp=4", layers=32, devices=8)])
    (forward,), backward = context_messages(job, one)
    size = forward.size[0] / (4 if forward.operation == "all_gather" else 1)

    assert backward[-1].operation == "send"
    assert backward[-1].size[0] == times * size


def test_a_ring_sends_keys_values_and_gradients_a_step_apart():
    """In c steps: keys and values first, both between, gradients home last; c - 1 times each in all."""
    one = Candidates.of([parse_layout("cp=4", layers=32, devices=8)])
    _, backward = context_messages(job_on("megatron-core"), one)
    elements = 2 * 1024 * 2048

    assert [float(x.calls[0]) for x in backward] == [1.0, 2.0, 1.0]
    assert sum(float(x.calls[0] * x.size[0]) for x in backward) == 2 * 3 * 2 * elements


def test_a_plan_lists_the_bytes_that_it_prices():
    """Per layer and microbatch c messages of 2 k T elements in four bytes."""
    messages = autoplan.communication(job_on("fsdp2"), "dp=2,cp=4,mbs=1,zero=3")
    sent = [x for x in messages if x.axis == "cp" and x.operation == "send"]

    assert {x.message_bytes for x in sent} == {4 * 2 * 1024 * 2048}
    assert {x.phase for x in sent} == {"backward"}


def test_buffers_hold_two_gradients_in_their_own_width():
    """All keys and values in 16 bits, and two messages of gradients in 32."""
    one = Candidates.of([parse_layout("cp=4", layers=32, devices=8)])
    elements = 2 * 1024 * 2048

    assert context_buffer_bytes(job_on("fsdp2"), one, 2.0)[0] == (4 * 2 + 2 * 4) * elements
    assert context_buffer_bytes(job_on("megatron-core"), one, 2.0)[0] == (2 * 2 + 2 * 2) * elements
