"""Pages of other answers: alone, small, with the numbers of their documents, and names of users as text."""

import json
import math
from dataclasses import replace

import pytest

import autoplan
from autoplan import evaluate, explain, guided_job, load_job
from autoplan.answers.diagnose.ask import diagnose
from autoplan.answers.diagnose.page import diagnosis_page
from autoplan.answers.explain.ask import explain_choice
from autoplan.answers.explain.page import choice_page, explanation_page, refusal_page
from autoplan.answers.gemm.ask import gemm
from autoplan.answers.gemm.blocks import gemm_document
from autoplan.answers.gemm.page import gemm_page
from autoplan.answers.gemm.single_product import GemmQuestion, ProductSettings
from autoplan.answers.guide.page import guide_page
from autoplan.answers.sweep.page import sweep_page
from autoplan.catalog import load_serving_job
from autoplan.planning import communicating
from autoplan.planning.communicating import predicted_step, products
from autoplan.planning.serving_plans import evaluate_serving, plan_serving
from autoplan.report.document_fields import explanation_document
from autoplan.report.pages.page_sections import MOST_NODES, PageRequest, placement_picture
from autoplan.report.pages.pictures.roofline_picture import layer_roofline
from autoplan.report.pages.serving_page import serving_front_page, serving_plan_page
from autoplan.report.serving.serving_document import serving_front_document, serving_plan_document
from autoplan.results.sweep import CellAnswer, Sweep, SweepRow
from autoplan.schema.grid_spec import Cell
from tests.support.page_reader import PageReader, assert_stands_alone
from tests.support.trace_events import annotation, call, kernel, written

JOB = "llama3.2-1b-2x-rtx3090"
FORWARD = "forward"
HOSTILE = "</pre></script><script>alert(1)</script>\"' onload=x <b>&amp;" + "\u202e\u2066\x1b\x00"


def assert_is_text(text):
    """The hostile name is shown and not obeyed."""
    page = assert_stands_alone(text)
    assert "alert(1)" in page.words
    assert "<script>alert" not in text
    assert "<b>" not in text
    assert "\u202e" not in text
    return page


@pytest.fixture(scope="module")
def job():
    """Return a job whose name is hostile."""
    loaded = load_job(JOB)
    return replace(loaded, name=HOSTILE, model=loaded.model.model_copy(update={"title": HOSTILE}))


def request(command):
    """Return what a page shows beside an answer."""

    def step_of(job, own):
        return predicted_step(job, own.layout)

    return PageRequest(command, step_of, products, communicating.placement)


def test_an_explanation_has_its_remedies_and_the_prediction(job):
    """The document to copy, a row for each remedy, the bottlenecks, and every picture of the layout."""
    answer = explain(job, "tp=2,mbs=8", deadline=0.0)
    page = assert_is_text(explanation_page(job, answer, request(f"autoplan '{HOSTILE}'")))

    document = explanation_document(job, answer)
    assert json.loads(page.copied["the explanation as JSON"]) == json.loads(json.dumps(document))
    assert len(page.texts["remedies"]) == 1 + len(answer.remedies)
    assert page.rows["what the step waits for"][1:] == [
        [x.seconds, pytest.approx(x.share)] for x in answer.bottlenecks
    ]
    for kind in ("memory", "timeline", "roofline", "placement", "stack"):
        assert page.attributes("svg", kind)


def test_a_refused_layout_has_its_rules_on_a_page(job):
    """Each rule that it breaks is said."""
    answer = explain(job, "tp=2,pp=1,ep=2", deadline=0.0)
    page = assert_is_text(refusal_page(job, answer, request("x")))

    assert answer.rules
    assert all(rule in page.words for rule in answer.rules)


@pytest.mark.slow
def test_the_fastest_plan_has_what_else_could_be(job):
    """A row for each other choice, and the fastest plan's pictures."""
    answer = explain_choice(job, deadline=20.0)
    page = assert_is_text(choice_page(job, answer, request("x")))

    (label,) = [name for name in page.texts if name == "answer"]
    assert len(page.texts[label]) == 1 + len(answer.alternatives)
    assert page.attributes("svg", "roofline")


@pytest.mark.parametrize("devices", [1, 4])
def test_a_product_is_on_its_roofline_or_among_its_schemes(devices):
    """The document to copy, and one bar or point for each part of the answer."""
    where = {"device": "a100-sxm4-80gb"} if devices == 1 else {"hardware": "dgx-a100-80gb", "devices": 4}
    answer = gemm(GemmQuestion(m=4096, n=4096, k=4096, settings=ProductSettings(), **where))
    page = assert_stands_alone(gemm_page(answer, request("x")))

    assert json.loads(page.copied["the answer as JSON"]) == json.loads(json.dumps(gemm_document(answer)))
    if devices == 1:
        assert len(page.attributes("circle")) == len(answer.time)
        assert [row for row in page.rows["memory of the product"] if row] == [
            [x.needed_bytes, x.limit_bytes] for x in answer.memory
        ]
    else:
        assert page.rows["time of the schemes"][1:] == [
            [x.serial_seconds, x.overlapped_seconds] for x in answer.schemes
        ]


@pytest.mark.slow
def test_a_guide_has_its_scaling_lines_and_its_best_layout():
    """A mark for each number of devices with a speedup; a hostile file name is text."""
    job, assumed = guided_job("llama3.2-1b", "2x-rtx3090", global_batch_size=8)
    guide = autoplan.guide(replace(job, name=HOSTILE), assumed=assumed, deadline=60.0)
    page = assert_is_text(guide_page(guide, request(f"autoplan {HOSTILE}")))

    for line in guide.scaling:
        speedups = [point for point in line.points if point.speedup is not None]
        drawn = page.attributes("svg", f"scaling-{line.kind}")
        assert len(drawn) == (len(speedups) > 1)
    assert page.attributes("svg", "roofline")


def test_a_diagnosis_sets_measured_beside_predicted(tmp_path):
    """Two bars whose sums are the steps, and the run to copy."""
    events = [
        annotation("ProfilerStep#3", 0, 100_000),
        call(10, 5, 1),
        kernel(HOSTILE, 20, 80_000, correlation=1),
    ]
    trace = written(tmp_path / "<b>rank0.json.gz", events)
    job = replace(load_job("llama3-8b-8x-a100"), name=HOSTILE)
    answer = diagnose(job, "tp=2,dp=4,mbs=1,recompute=full", [trace])
    page = assert_is_text(diagnosis_page(job, answer, HOSTILE, request("x")))

    measured, predicted = (row for row in page.rows["measured and predicted step"] if row)
    assert measured == [pytest.approx(answer.measured_seconds)]
    assert predicted == [pytest.approx(answer.predicted_seconds)]


def test_a_sweep_has_a_point_and_a_row_for_each_planned_cell():
    """Points lead to their rows; cells without a plan have a row and a reason."""
    planned = CellAnswer(
        "planned", layout="tp=1,dp=2", layers=16, devices_used=2, stack_used=HOSTILE, step_seconds=2.0,
        step_seconds_low=1.0, step_seconds_high=3.0, model_flops_utilization=0.5,
        peak_memory_bytes_per_device=2.0**33, fits=True,
    )  # fmt: skip
    rows = [
        SweepRow(Cell(1, {"model": HOSTILE}), planned),
        SweepRow(Cell(2, {"model": "b"}), CellAnswer("infeasible", (HOSTILE,))),
    ]
    page = assert_is_text(
        sweep_page(Sweep(HOSTILE, ("model",), tuple(rows)), request(f"autoplan sweep {HOSTILE}"))
    )
    (point,) = page.attributes("a", "point")

    assert (point["href"], point["data-step-seconds"]) == ("#cell-1", "2.0")
    assert [a["id"] for a in page.attributes("tr") if "id" in a] == ["cell-1", "cell-2"]


def test_serving_plans_are_points_rows_and_sections():
    """Each plan of the front is a point with the JSON's numbers and a row; some can be chosen."""
    job = replace(load_serving_job("llama3-70b-8x-h100"), name=HOSTILE)
    front = plan_serving(job, deadline=30.0)
    page = assert_is_text(serving_front_page(front, request(f"autoplan plan {HOSTILE}")))
    plans = serving_front_document(front)["front"]
    points = page.attributes("a", "point")

    assert [float(p["data-token-seconds"]) for p in points] == [
        x["predicted"]["time_per_output_token_seconds"] for x in plans
    ]
    assert [float(p["data-tokens-per-second"]) for p in points] == [
        x["predicted"]["output_tokens_per_second_per_device"] for x in plans
    ]
    assert len(page.attributes("section", "detail")) == len(plans)
    assert json.loads(page.copied["plan 1 as JSON"]) == json.loads(json.dumps(plans[0]))


def test_a_serving_layout_has_its_memory_and_limits():
    """Memory by part is the document's."""
    job, plan = evaluate_serving("llama3-70b-8x-h100", "tp=8")
    page = assert_stands_alone(serving_plan_page(job, plan, request("x")))
    (stage,) = serving_plan_document(job, plan)["predicted"]["memory"]

    sizes = [value for name, value in stage.items() if name != "stage" and value > 0]
    assert sorted(page.rows["memory of a device by stage"][1][1:]) == sorted(sizes)


@pytest.mark.parametrize(
    "name", [JOB, "deepseek-v3-256x-h100", "mixtral-8x7b-8x-h200", "gpt3-175b-128x-a100"]
)
def test_points_of_a_roofline_are_the_products_of_the_layers(name):
    """Each product is below its roof, lies where its numbers say, and has a row with them."""
    job = load_job(name)
    layout = evaluate(job, "tp=2").layout
    layers = products(job, layout)
    page = PageReader("\n".join(layer_roofline(layers)))
    circles = page.attributes("circle")

    assert len(circles) == len(layers.products) == len(page.rows["matrix products of a layer"]) - 1
    for x in layers.products:
        assert x.flops_per_second < min(layers.peak_flops, 1.001 * x.intensity * layers.hbm_bandwidth)
    logs = [math.log10(x.intensity) for x in layers.products]
    # Labelled points, those of forward, are drawn last, and each group from its last to its first.
    passes = [x.product_pass == FORWARD for x in layers.products]
    order = [n for n, first in enumerate(passes) if first] + [
        n for n, first in enumerate(passes) if not first
    ]
    places = dict(zip(reversed(order), (float(c["cx"]) for c in circles), strict=True))
    low, high = logs.index(min(logs)), logs.index(max(logs))
    slope = (places[high] - places[low]) / (logs[high] - logs[low])
    line = [places[low] + slope * (v - logs[low]) for v in logs]
    assert [places[n] for n in range(len(logs))] == pytest.approx(line, abs=0.03)


@pytest.mark.parametrize(
    ("name", "layout"), [(JOB, "tp=2"), ("deepseek-v3-256x-h100", "pp=8"), ("llama3-8b-8x-a100", "tp=2,cp=4")]
)
def test_attention_has_a_point_of_its_own_on_the_roofline(name, layout):
    """Forward and backward below the roof, with the seconds that the step is priced with, and a row each."""
    job = load_job(name)
    plan = evaluate(job, layout)
    layers = products(job, plan.layout)
    page = PageReader("\n".join(layer_roofline(layers)))
    forward, backward = layers.attention

    assert [p["class"] for p in page.attributes("polygon")] == ["diamond", "diamond"]
    assert page.rows["attention of a layer"][1][:2] == [forward.queries, forward.keys]
    assert [row[3] for row in page.rows["attention of a layer"][1:]] == [forward.seconds, backward.seconds]
    assert forward.calls == backward.calls == plan.layout.cp
    for x in layers.attention:
        assert layers.ridge < x.intensity
        assert x.flops_per_second < layers.peak_flops
    # Every key that a row attends to costs one product of the key width and one of the value width.
    widths = 2 * (job.model.head_dim + (job.model.mla.v_head_dim if job.model.mla else job.model.head_dim))
    tokens = plan.layout.microbatch * job.workload.sequence_length
    pairs = tokens * (job.workload.sequence_length + 1) / 2 * job.model.heads
    ranks = plan.layout.tp * plan.layout.cp
    if not any(job.model.attention_window(layer) for layer in range(job.model.layers)):
        assert forward.calls * forward.flops == pytest.approx(widths * pairs / ranks)


def test_unfused_attention_has_no_point_and_says_so():
    """Where a stack has no fused kernel, the picture has the products alone."""
    job = load_job(JOB)
    block = job.stack.block.model_copy(update={"attention": "eager"})
    eager = replace(job, stack=job.stack.model_copy(update={"block": block}))
    layers = products(eager, evaluate(job, "tp=2").layout)
    page = PageReader("\n".join(layer_roofline(layers)))

    assert layers.attention == ()
    assert page.attributes("polygon") == []
    assert "attention is not drawn" in page.words


def test_ranks_are_where_their_order_puts_them():
    """Every rank of a drawn node is named with its place on each axis; rows are what links carry."""
    job = load_job("gpt3-175b-128x-a100")
    placement = communicating.placement(job, evaluate(job, "tp=4,pp=8,recompute=full").layout)
    page = PageReader("\n".join(placement_picture(placement)))
    names = [a["aria-label"] for a in page.attributes("g") if "rank" in (a.get("aria-label") or "")]

    assert len(names) == MOST_NODES * 8
    assert names[5] == "rank 5 on node 0: tp 1, dp 1, pp 0"
    assert names[16] == "rank 16 on node 2: tp 0, dp 0, pp 1"
    rows = page.rows["bytes that a device sends in a step"][1:]
    assert [row[3:] for row in rows] == [[x.fabric_bytes, x.network_bytes] for x in placement.traffic]
