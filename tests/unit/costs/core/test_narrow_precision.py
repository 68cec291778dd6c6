"""Software that trains in 8 and 4 bits fuses what is between its products, unless its file says otherwise."""

from dataclasses import replace

import pytest

from autoplan.catalog import load_job, stack
from autoplan.catalog.programs import any_layout
from autoplan.costs.core.scope import at_precision
from autoplan.costs.predict import predict
from autoplan.schema.layout import parse_layout

FUSED = ("fused_norms", "fused_rope", "fused_activation", "fused_casts")


def job_in(precision, name):
    """Return a job of eight H100 in ``precision`` on the stack ``name``."""
    return replace(any_layout(load_job("llama3-8b-8x-h100")), stack=stack(name), precision=precision)


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
@pytest.mark.parametrize(
    ("name", "fused"), [("analytic", True), ("fsdp2", True), ("ddp", False), ("fsdp1", False)]
)
def test_kernels_of_a_stack_that_nobody_knows_are_fused_in_narrow_formats(name, fused, precision):
    """Transformer Engine and torch.compile do; linear layers that are swapped in keep their neighbours."""
    block = at_precision(job_in(precision, name)).stack.block
    before = stack(name).block

    assert [getattr(block, field) for field in FUSED] == [fused or getattr(before, field) for field in FUSED]
    assert at_precision(job_in("bf16", name)).stack.block == before


def test_an_unknown_stack_in_fp8_is_as_fast_as_one_that_says_what_it_fuses():
    """The choice moves the prediction, and by as much as the same switches of the block."""
    layout = parse_layout("mbs=1,zero=1", layers=32, devices=8)
    job = job_in("fp8", "analytic")
    block = job.stack.block.model_copy(update=dict.fromkeys(FUSED, True))
    told = replace(job, stack=job.stack.model_copy(update={"block": block, "by_precision": {}}))
    bare = replace(job, stack=job.stack.model_copy(update={"by_precision": {}}))
    seconds, fused, unfused = (predict(x, layout).step_seconds for x in (job, told, bare))

    assert seconds == fused < 0.9 * unfused
