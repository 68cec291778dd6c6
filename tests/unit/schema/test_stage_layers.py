"""How layers fall into stages and virtual stages, where they divide and where embedding and head stand in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.catalog import load_entry, load_job, stack
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.errors import LayoutError
from autoplan.planning.plan_and_evaluate import evaluate
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.layout import parse_layout
from autoplan.schema.stage_layers import chunks_of, even_stages, fewest_layers, order_of, orders_of

SPLITS = [(layers, pp, vpp) for layers in (30, 61, 94, 126) for pp in (2, 4, 8) for vpp in (1, 2, 3, 4, 8)]


@pytest.mark.parametrize(("layers", "pp", "vpp"), SPLITS)
def test_every_layer_is_in_one_virtual_stage(layers, pp, vpp):
    """Stages add up to the layers, and virtual stages to their stage's."""
    if fewest_layers(pp, vpp) > layers:
        return
    stages = even_stages(layers, pp, vpp)

    assert sum(stages) == layers
    assert [sum(chunks) for chunks in chunks_of(stages, vpp)] == list(stages)
    assert {len(chunks) for chunks in chunks_of(stages, vpp)} == {vpp}
    assert all(n % vpp == 0 for n in stages[1:-1])


@pytest.mark.parametrize(("layers", "pp", "vpp"), SPLITS)
def test_stages_hold_the_layers_of_the_model_in_order(layers, pp, vpp):
    """Numbered layers: each once, ascending in a stage; as for stages one by one where all divide."""
    if fewest_layers(pp, vpp) > layers:
        return
    stages, numbers = even_stages(layers, pp, vpp), tuple(range(layers))
    orders = orders_of(numbers, stages, vpp)

    assert sorted(n for order in orders for n in order) == list(numbers)
    assert all(list(order) == sorted(order) for order in orders)
    if layers % vpp == 0:
        before = [sum(stages[:i]) for i in range(pp)]
        assert orders == [order_of(numbers, a, n, vpp) for a, n in zip(before, stages, strict=True)]


def test_the_dense_layers_of_deepseek_are_in_the_stages_that_come_first():
    """61 layers in 16 virtual stages of four: three dense ones, and one with experts, are in the first."""
    kinds = layer_types_of(load_entry("model", "deepseek-v3"), 4096)
    orders = orders_of(kinds.sequence, even_stages(61, 4, 4), 4)

    assert [order.count(0) for order in orders] == [3, 0, 0, 0]
    assert [len(order) for order in orders] == [15, 16, 16, 14]


def recipe(name):
    """Return the job of NVIDIA's recipe for Llama 3.1 405B on 1,024 H100, on the stack ``name``."""
    job = load_job("llama3-70b-64x-h100")
    return replace(
        job,
        model=load_entry("model", "llama3.1-405b"),
        cluster=replace(job.cluster, devices=1024),
        workload=job.workload.model_copy(update={"global_batch_size": 512}),
        precision="fp8",
        stack=stack(name),
    )


RECIPE = "tp=8,pp=8,cp=2,vpp=8,mbs=1,zero=1"


def test_the_recipe_of_405b_takes_what_was_measured():
    """12.42 s (NVIDIA/dgxc-benchmarking, llama3.1, release 25.04), which no fit has seen; slow in fp8."""
    layout = parse_layout(RECIPE, layers=126, devices=1024)
    predicted = evaluate(recipe("megatron-bridge"), layout).predicted

    assert layout.layers == (15, *6 * (16,), 15)
    assert layout.dp == 8
    assert predicted.step_seconds == pytest.approx(12.42, rel=0.14)


def test_stacks_that_know_no_such_split_refuse_it():
    """Megatron-LM of 2022 wants virtual stages that are all alike."""
    broken = broken_rules(recipe("megatron-lm-2022"), parse_layout(RECIPE, layers=126, devices=1024))

    assert "vpp divides the 126 layers" in broken
    assert "the layers of every stage are a multiple of vpp=8" in broken


@pytest.mark.parametrize(
    "stages", ["16/15/16/16/16/16/16/15", "9/17/17/17/17/17/17/15", "9/21/16/16/16/16/16/16"]
)
def test_only_the_ends_hold_fewer(stages):
    """A middle stage does not, nor an end whose other virtual stages leave less than nothing to it."""
    layout = parse_layout(f"{RECIPE},stages={stages}", layers=126, devices=1024)
    sentence = "the layers of every stage are a multiple of vpp=8, except the first and the last"

    assert broken_rules(recipe("megatron-core"), layout) == [sentence]


def test_pipelines_need_a_layer_for_each_virtual_stage_but_the_ends():
    """Embedding and head may be alone in theirs: 62 layers are enough for 64 virtual stages, 61 are not."""
    assert parse_layout("pp=8,vpp=8", layers=62, devices=8).layers == (7, 8, 8, 8, 8, 8, 8, 7)
    with pytest.raises(LayoutError, match="needs 62 layers: the model has 61"):
        parse_layout("pp=8,vpp=8", layers=61, devices=8)
    with pytest.raises(LayoutError, match="needs 8 layers: the model has 7"):
        parse_layout("pp=8", layers=7, devices=8)
