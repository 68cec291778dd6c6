"""What a step is bound by, named by ``explain``."""

import pytest

from autoplan import explain, load_job
from autoplan.answers.explain.blocks import bound_sentence
from autoplan.catalog import resolve_job
from autoplan.schema.job import JobSpec, Workload
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
        ("PCIe", "2x-rtx3090", "fsdp2", 512, "dp=2,mbs=1,zero=3,recompute=full", ""),
        ("compute", "dgx-a100-80gb", "ddp", 8192, "dp=2,mbs=1,recompute=full", ""),
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


@pytest.mark.parametrize(
    ("named", "model", "node", "stack", "length", "layout"),
    [
        # Gathers and reductions of all parameters for 512 tokens a device, over Ethernet.
        ("network", "qwen3-1.7b", "2x-rtx3090", "fsdp2", 512, "dp=4,mbs=1,zero=3"),
        # Nearly all experts of each token are on other nodes.
        ("experts", "qwen3-30b-a3b", "dgx-h100", "megatron-core", 4096, "dp=64,ep=64,mbs=4,zero=1"),
    ],
)
def test_the_cause_between_nodes_is_named(named, model, node, stack, length, layout):
    """A network-bound step of a dense model, and an expert-bound one."""
    devices = int(layout.split(",")[0].removeprefix("dp="))
    workload = Workload(sequence_length=length, global_batch_size=4 * devices)
    spec = JobSpec(
        kind="training", model=model, hardware=node, devices=devices, stack=stack, workload=workload
    )
    job = resolve_job(spec)
    found = explain(job, parse_layout(layout, layers=job.model.layers, devices=devices))

    assert found.bound == named, bound_sentence(found)
