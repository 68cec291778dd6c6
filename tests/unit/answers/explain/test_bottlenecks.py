"""What a step is bound by, named by ``explain``."""

import pytest

from autoplan import explain, load_job
from autoplan.answers.explain.blocks import bound_sentence
from autoplan.schema.layout import parse_layout

JOB = """
schema: 1
kind: training
model: qwen3-1.7b
hardware: {hardware}
devices: 2
stack: {stack}
workload: {{sequence_length: {length}, global_batch_size: 2}}
search: {{tensor_parallel: [1], pipeline_parallel: [1], context_parallel: [1]}}
{software}
"""


@pytest.mark.parametrize(
    ("named", "hardware", "stack", "length", "layout", "software"),
    [
        # Two thousand launches of microseconds each, of kernels that are shorter.
        ("host", "dgx-h100", "ddp", 128, "dp=2,mbs=1", ""),
        # The same with launches captured: 28 bytes a parameter of the update, at 128 tokens a device.
        ("HBM bandwidth", "dgx-h100", "ddp", 128, "dp=2,mbs=1", "software: {cuda_graphs: true}"),
        # Gathers and reductions of all parameters over PCIe.
        ("network", "2x-rtx3090", "fsdp2", 512, "dp=2,mbs=1,zero=3,recompute=full", ""),
        ("compute", "dgx-h100", "ddp", 8192, "dp=2,mbs=1,recompute=full", ""),
    ],
)
def test_the_cause_is_named(tmp_path, named, hardware, stack, length, layout, software):
    """A host-bound, a bandwidth-bound, a network-bound and a compute-bound step."""
    path = tmp_path / "job.yaml"
    text = JOB.format(hardware=hardware, stack=stack, length=length, software=software)
    path.write_text(text, encoding="utf-8")
    job = load_job(path)
    found = explain(job, parse_layout(layout, layers=job.model.layers, devices=2))

    assert found.bound == named, bound_sentence(found)
    assert sum(x.share for x in found.bottlenecks) == pytest.approx(1.0)
    assert bound_sentence(found)
