"""Layers of several kinds: sequences, what a stage holds of them, and a dense-first model worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.catalog import load_entry, load_job
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.predict import facts_of, predict
from autoplan.report.wording.sentences import stage_layer_types
from autoplan.schema.layout import parse_layout
from autoplan.schema.model import MixtureOfExperts, ModelSpec
from autoplan.schema.stage_layers import order_of
from autoplan.search.space.stage_contents import places_of

#: Attention 4 h^2, two norms, and the MLP's three matrices, or a router and four experts.
DENSE = 4 * 1024**2 + 2 * 1024 + 3 * 1024 * 4096
EXPERTS = 4 * 1024**2 + 2 * 1024 + 4 * 1024 + 4 * 3 * 1024 * 2048
TABLE = 32_000 * 1024


def dense_first():
    """Return a job for six layers of which the first two are dense, on four devices."""
    model = ModelSpec(
        name="dense-first",
        source="made up",
        layers=6,
        hidden_size=1024,
        heads=8,
        ffn_size=4096,
        vocabulary=32_000,
        moe=MixtureOfExperts(experts=4, top_k=2, expert_ffn_size=2048, first_dense_layers=2),
    )
    job = load_job("mixtral-8x7b-8x-h200")
    return replace(job, model=model, cluster=replace(job.cluster, devices=4))


def stages_of(text):
    """Return what each stage of a layout holds."""
    job = dense_first()
    return predict(job, parse_layout(text, layers=6, devices=4)).memory.stages


def test_parameters_of_a_stage_are_those_of_its_own_layers():
    """Two dense layers and one with experts on the first stage, three of those on the second."""
    first, second = stages_of("pp=2,dp=2,zero=1,stages=3/3")

    assert first.parameters == 2 * (TABLE + 2 * DENSE + EXPERTS)
    assert second.parameters == 2 * (3 * EXPERTS + TABLE + 1024)
    assert first.gradients == 2 * first.parameters
    assert first.optimizer == pytest.approx(12 / 2 * (TABLE + 2 * DENSE + EXPERTS), rel=1e-12)


def test_a_boundary_moves_whole_layers():
    """A layer that the first stage gets beyond the two dense ones is one with experts."""
    two, three, four = (stages_of(f"pp=2,dp=2,zero=1,stages={n}/{6 - n}")[0] for n in (2, 3, 4))

    assert three.parameters - two.parameters == 2 * EXPERTS
    assert four.parameters - three.parameters == 2 * EXPERTS
    assert two.parameters == 2 * (TABLE + 2 * DENSE)


def test_the_first_layers_of_a_stage_are_recomputed_whole():
    """Each keeps its input of 2h bytes a token in place of its own tensors, first the dense ones."""
    kept = [
        stages_of(f"pp=2,dp=2,zero=1,stages=3/3,recompute={entry}/none")[0].activations
        for entry in ("none", "full:1", "full:2", "full")
    ]
    tokens = dense_first().workload.sequence_length
    # Outside of the MLP a layer keeps norm inputs, products' inputs, queries, keys, values twice, statistics.
    dense = [kept[0] - kept[1], kept[1] - kept[2]]
    experts = kept[2] - kept[3]
    in_flight = 2

    # Dense: 6 bytes of each of 4,096 inner elements; experts: of 2,048 of two, each with a copy of its row,
    # and of the router 6 bytes for each expert and 22 for each choice.
    assert dense[0] == dense[1]
    assert experts - dense[0] == in_flight * tokens * (2 * (6 * 2048 + 2 * 1024) + 6 * 4 + 22 * 2 - 6 * 4096)


def test_chunks_hold_layers_of_different_places():
    """Two chunks of one layer or more each: the first device has the first layers of both halves."""
    assert order_of((0, 0, 1, 1, 1, 1), 0, 4, v=2) == (0, 0, 1, 1)
    assert order_of((0, 0, 1, 1, 1, 1), 4, 2, v=2) == (1, 1)

    first, second = stages_of("pp=2,dp=2,zero=1,schedule=interleaved,vpp=3,stages=3/3")
    assert first.parameters == 2 * (TABLE + DENSE + 2 * EXPERTS)
    assert second.parameters == 2 * (DENSE + 2 * EXPERTS + TABLE + 1024)


@pytest.mark.parametrize(
    ("name", "tokens", "kinds"),
    [
        ("deepseek-v3", 4096, [3, 58]),
        ("moonlight-16b-a3b", 8192, [1, 26]),
        ("llama4-maverick", 4096, [24, 24]),
        ("llama4-maverick", 16384, [12, 12, 24]),
        ("gpt-oss-20b", 4096, [12, 12]),
        ("mixtral-8x7b", 8192, [32]),
        ("llama3-8b", 8192, [32]),
    ],
)
def test_kinds_of_published_models(name, tokens, kinds):
    """Layers differ by experts and by windows shorter than the sequence."""
    found = layer_types_of(load_entry("model", name), tokens)

    assert sorted(np.bincount(found.sequence).tolist()) == sorted(kinds)
    assert found.several == (len(kinds) > 1)


def test_places_lead_from_the_first_layer_to_the_last():
    """Three stages of four layers, the first dense: by hand."""
    places = places_of((0, 1, 1, 1), 3, 1, even=False)
    held = [list(zip(row.first.tolist(), row.layers.tolist(), strict=True)) for row in places.rows]

    assert held == [[(0, 1), (0, 2)], [(1, 1), (2, 1), (1, 2)], [(3, 1), (2, 2)]]
    assert [len(row.orders) for row in places.rows] == [2, 2, 2]
    # The least sum takes (0, 1), then one of one layer, then one of two.
    values = np.array([[5.0, 9.0, 1.0, 4.0, 7.0, 2.0]])
    assert places.least_sum(values).tolist() == [8.0]
    assert places.least_peak(values).tolist() == [5.0]
    assert places.smallest_peak(values[0]) == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "tokens", "stages", "words"),
    [
        ("deepseek-v3", 4096, "2/59", ["2 dense", "1 dense, 58 MoE"]),
        ("gpt-oss-20b", 4096, "11/13", ["6 local, 5 global", "6 local, 7 global"]),
        (
            "llama4-maverick",
            16384,
            "3/45",
            ["2 dense local, 1 MoE local", "22 dense local, 11 MoE local, 12 MoE global"],
        ),
        ("llama3-8b", 8192, "16/16", []),
    ],
)
def test_reports_say_which_kinds_a_stage_holds(name, tokens, stages, words):
    """Only where layers differ."""
    job = dense_first()
    workload = job.workload.model_copy(update={"sequence_length": tokens})
    job = replace(job, model=load_entry("model", name), workload=workload)
    layout = parse_layout(f"pp=2,dp=2,stages={stages}", layers=job.model.layers, devices=4)

    assert stage_layer_types(facts_of(job).layers, layout) == words
