"""Which axis runs inside a node and which across: what the prices choose, and why (S6).

The stack has every order of tensor, data and pipeline, so that nothing but the prices decides.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan
from autoplan.catalog import load_job, resolve_job, stack
from autoplan.costs.predict import predict
from autoplan.errors import LayoutError
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Job, JobSpec, SearchSpec, Workload
from autoplan.schema.layout import ORDERS, Layout, parse_layout
from benchmarks.policies import with_overlap


def on_nodes(model: str, hardware: str, devices: int, tokens: int, batch: int, **search) -> Job:
    """Return a job on several nodes, for a stack that has every order."""
    workload = Workload(sequence_length=tokens, global_batch_size=batch)
    narrowed = SearchSpec(**search)
    return resolve_job(
        JobSpec(
            kind="training",
            model=model,
            hardware=hardware,
            devices=devices,
            stack="analytic",
            workload=workload,
            search=narrowed,
        )
    )


def exposed(job: Job, layout: Layout, order: str):
    """Return the step [s] and the exposed communication of ``layout`` in ``order``."""
    other = replace(layout, order=order)
    assert broken_rules(job, other) == []
    found = predict(job, other)
    return found.step_seconds, found.time


def test_tensors_run_inside_and_pipelines_across_where_activations_are_most_bytes():
    """Across two boxes of 8 A100 on PCIe, tensors would wait 40 s a step, gradients 27 s, stages 0.6 s."""
    degrees = {"tensor_parallel": 2, "pipeline_parallel": 2}
    job = on_nodes("llama3-8b", "8x-a100-pcie-80gb", 16, 512, 64, schedule="1f1b", **degrees)
    fastest = autoplan.plan(job).plans[0].layout
    step, usual = exposed(job, fastest, ORDERS[0])
    tensors_across, waits_for_tensors = exposed(job, fastest, "cp-dp-pp-tp")
    data_across, waits_for_data = exposed(job, fastest, "tp-pp-cp-dp")

    assert (fastest.tp, fastest.pp, fastest.dp, fastest.order) == (2, 2, 4, "tp-cp-dp-pp")
    assert (usual.tp_exposed, usual.pp_exposed) == pytest.approx((0.20, 0.60), abs=0.03)
    assert waits_for_tensors.tp_exposed > 40
    assert waits_for_data.dp_exposed > 27
    assert step < min(data_across, tensors_across) / 10


def test_pipelines_run_inside_where_boundaries_are_many_and_gradients_few():
    """On two boxes of 8 L40S, activations would cross the network 256 times a step, gradients do so once.

    Four of a box's eight devices send a boundary at once, and share its card.
    """
    job = on_nodes("llama3-8b", "8x-l40s", 16, 4096, 1024, schedule="1f1b")
    fastest = autoplan.plan(job).plans[0].layout
    inside, few = exposed(job, fastest, fastest.order)
    across, many = exposed(job, fastest, ORDERS[0])

    assert (fastest.tp, fastest.pp, fastest.order) == (1, 4, "tp-pp-cp-dp")
    assert many.pp_exposed > 7 * few.pp_exposed
    assert many.pp_exposed - few.pp_exposed > 1.9 * (few.dp_exposed - many.dp_exposed) > 0
    assert inside < 0.9 * across


def test_data_runs_inside_and_tensors_across_where_weights_are_more_bytes_than_activations():
    """On 4 DGX A100, ZeRO-3 gathers 70 B parameters for 2,048 tokens at a time: these take the fabric.

    What hidden gathers take from compute is set to a fifth, so that no fit of it moves what is shown here.
    """
    narrow = {"zero_stage": 3, "pipeline_parallel": 1, "tensor_parallel": 16}
    job = on_nodes("llama3-70b", "dgx-a100-80gb", 32, 128, 32, **narrow)
    fifth = job.stack.overlap.interference.model_copy(update={"value": 0.2})
    job = replace(job, stack=with_overlap(job.stack, interference=fifth))
    fastest = autoplan.plan(job).plans[0].layout
    inside, gathers = exposed(job, fastest, fastest.order)
    across, waits = exposed(job, fastest, ORDERS[0])

    assert (fastest.tp, fastest.dp, fastest.order) == (16, 2, "cp-dp-tp-pp")
    assert waits.dp_exposed > 0.2 > 10 * gathers.dp_exposed
    assert gathers.tp_exposed < waits.tp_exposed + 0.2
    assert inside < 0.95 * across


def test_a_pipeline_that_a_node_cuts_waits_for_both_links():
    """Two stages a node: each has one neighbour inside and one across. Four devices a stage, then eight."""
    job = load_job("gpt3-175b-128x-a100")
    texts = ("tp=4,pp=2,dp=16", "tp=4,pp=16,dp=2", "tp=4,pp=8,dp=4")
    inside, cut, across = (
        predict(job, parse_layout(f"{text},order={order}", layers=96, devices=128, zero=1)).time.pp_exposed
        / (1536 / int(text.split("=")[-1]))
        for text, order in zip(texts, ("tp-cp-pp-dp", "tp-cp-pp-dp", "tp-cp-dp-pp"), strict=True)
    )

    assert cut == pytest.approx((inside + across) / 2)


def test_the_mapping_of_megatron_is_refused_beside_contexts_and_experts():
    """--use-tp-pp-dp-mapping takes cp = 1 and ep = 1, and stacks without it take one order."""
    job = load_job("gpt3-175b-128x-a100")
    layouts = [
        parse_layout(f"tp=2,pp=4{more},order=tp-cp-pp-dp", layers=96, devices=128, zero=1)
        for more in ("", ",cp=2", ",ep=2")
    ]
    plain, context, experts = (broken_rules(job, layout) for layout in layouts)
    alone = broken_rules(replace(job, stack=stack("fsdp2")), replace(layouts[0], zero=3))

    assert plain == []
    assert any("cp = 1 and ep = 1" in sentence for sentence in context)
    assert any("cp = 1 and ep = 1" in sentence for sentence in experts)
    assert alone == ["PyTorch FSDP2 (fully_shard, torchtitan) supports the rank orders tp-cp-dp-pp"]


def test_an_order_is_read_back_and_a_wrong_one_named():
    """The order is part of the layout's text where it is not the usual one."""
    text = "tp=2,pp=4,order=pp-tp-cp-dp"
    layout = parse_layout(text, layers=32, devices=16)

    assert str(layout).endswith(",order=pp-tp-cp-dp")
    assert parse_layout(str(layout), layers=32, devices=16) == layout
    assert "order" not in str(parse_layout("tp=2,order=tp-cp-dp-pp", layers=32, devices=16))
    with pytest.raises(
        LayoutError, match="order=tp-dp-pp: known orders, the innermost axis first, are tp-cp-dp-pp"
    ):
        parse_layout("tp=2,order=tp-dp-pp", layers=32, devices=16)
