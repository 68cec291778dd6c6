"""Pages of plans: their numbers are those of the document, and what users wrote is text."""

import json
import math
import re
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest

from autoplan import compare, evaluate, load_job, plan
from autoplan.answers.compare.blocks import layouts_document
from autoplan.answers.compare.page import comparison_page
from autoplan.answers.evaluate.page import evaluation_page
from autoplan.answers.plan.page import MOST_DETAILS, MOST_PLANS, plan_page
from autoplan.planning.communicating import placement, predicted_step, products
from autoplan.report.charts.chart_data import pieces_of
from autoplan.report.document_fields import front_document, plan_document
from autoplan.report.pages.page_sections import PageRequest
from autoplan.report.pages.pictures.timeline_picture import MOST_PIECES, timeline_picture
from autoplan.report.wording.sentences import CENTRE_ONLY
from tests.support.page_reader import PageReader, assert_stands_alone

JOB = "llama3.2-1b-2x-rtx3090"
CHOICES = """
schema: 1
kind: training
model: llama3.2-1b
hardware: 2x-rtx3090
devices: [1, 2]
stack: fsdp2
workload: {sequence_length: 4096, global_batch_size: [32, 64]}
price: {per_device_hour: 0.4, currency: USD, date: 2026-01-01}
limits: {step_time: 600 s, cost: 100}
"""
HOSTILE = "</pre></script><script>alert(1)</script>\"' onload=x <b>&amp;" + "\u202e\u2066\x1b\x00"


def request(command, timeline=None):
    """Return what a page shows beside an answer; ``timeline`` are words where steps would be."""

    def step_of(job, plan):
        return predicted_step(job, plan.layout) if timeline is None else timeline

    return PageRequest(command, step_of, products, placement)


@pytest.fixture(scope="module")
def front():
    """Return a front of several plans."""
    return plan(JOB)


@pytest.fixture(scope="module")
def text(front):
    """Return its page."""
    return plan_page(front, request("autoplan plan x"))


@pytest.fixture(scope="module")
def page(text):
    """Return its page as read."""
    return assert_stands_alone(text)


def test_points_are_the_plans_of_the_document(front, page):
    """Each point has the exact numbers, lies where they say, and leads to the row of its plan."""
    plans = front_document(front)["front"]
    points = page.attributes("a", "point")
    circles = [circle for circle in page.attributes("circle") if "fill" not in circle]

    assert [float(p["data-step-seconds"]) for p in points] == [x["predicted"]["step_seconds"] for x in plans]
    assert [float(p["data-memory-bytes"]) for p in points] == [
        x["predicted"]["peak_memory_bytes_per_device"] for x in plans
    ]
    assert [p["href"] for p in points] == [f"#plan-{n}" for n in range(1, len(plans) + 1)]
    for value, place in (("data-step-seconds", "cx"), ("data-memory-bytes", "cy")):
        values, places = [float(p[value]) for p in points], [float(c[place]) for c in circles]
        low, high = values.index(min(values)), values.index(max(values))
        slope = (places[high] - places[low]) / (values[high] - values[low])
        assert slope > 0 if place == "cx" else slope < 0
        assert places == pytest.approx([places[low] + slope * (v - values[low]) for v in values], abs=0.03)


def test_rows_of_the_front_are_those_of_the_document(front, page):
    """Every number of the table is the JSON's, and its text is that number, rounded."""
    plans = front_document(front)["front"]
    rows, texts = page.rows["plans of the front"][1:], page.texts["plans of the front"][1:]

    assert len(rows) == len(plans)
    for row, cells, entry in zip(rows, texts, plans, strict=True):
        p = entry["predicted"]
        size = p["peak_memory_bytes_per_device"]
        values = [p["step_seconds"], p["tokens_per_second_per_device"], p["model_flops_utilization"], size]
        assert row == [*values, size / p["memory_limit_bytes"], p["bubble_share"]]
        shown = [cells[4].replace(",", ""), cells[5], cells[6], cells[7].rstrip(CENTRE_ONLY), cells[9]]
        shares = [values[1], 100 * values[2], size / 2**30, 100 * row[4], 100 * row[5]]
        digits = (0, 1, 1, 0, 1)
        assert [float(x) for x in shown] == [round(x, n) for n, x in zip(digits, shares, strict=True)]


def test_one_plan_is_shown_and_others_can_be_chosen(front, text, page):
    """Without a script the fastest plan is shown; links lead to the others."""
    details = page.attributes("section", "detail")
    chosen = front.plans.index(front.fastest) + 1
    options = [a["value"] for a in page.attributes("option")]

    assert [a["id"] for a in details if "hidden" not in a] == [f"details-{chosen}"]
    assert min(len(front.plans), 2) <= len(details) <= MOST_DETAILS + 1
    assert [f"details-{value}" for value in options] == [a["id"] for a in details]
    assert ".detail[hidden]:target { display: block }" in text
    assert "prefers-color-scheme: dark" in text


def test_the_json_of_a_plan_is_that_of_the_document(front, page):
    """What is copied is what ``--format json`` has of this plan."""
    plans = front_document(front)["front"]
    copied = {label: text for label, text in page.copied.items() if label.endswith("as JSON")}

    assert copied
    for label, text in copied.items():
        assert json.loads(text) == plans[int(label.split()[1]) - 1]


def test_certificate_and_rejected_layouts_are_there(front, page):
    """What is proven, by its hashes, and each reason with its count."""
    assert front.certificate.job_hash in page.words
    assert front.certificate.cost_model_hash in page.words
    reasons = [cells[0] for cells in page.texts["rejected layouts"][1:]]
    assert sorted(reasons) == sorted(x.reason for x in front.rejected if x.layouts)
    assert page.copied["command"] == "autoplan plan x"
    assert len(page.texts["coefficients"]) > 30


def test_several_numbers_of_devices_and_batches_have_their_answers(tmp_path):
    """Each choice has a row; what differs between plans, costs and has a limit stands beside them."""
    file = tmp_path / "choices.yaml"
    file.write_text(CHOICES)
    front = plan(load_job(file))

    drawn = PageRequest("x", lambda _, own: str(own.layout), products, placement)
    page = assert_stands_alone(plan_page(front, drawn))
    answers = front_document(front)["answers"]

    assert len(answers) == 4
    assert page.rows["By devices and batch"][1:] == [
        [
            x["devices"],
            x["global_batch_size"],
            x["plans"][0]["step_seconds"] if x["plans"] else None,
            len(x["plans"]),
            sum(p["on_front"] for p in x["plans"]),
        ]
        for x in answers
    ]
    assert {"devices", "batch", "USD/1e9 tokens"} <= set(page.texts["plans of the front"][0])
    limits = [cells[0] for cells in page.texts["predicted against limits"]]
    assert {"step time", "cost of 1e9 tokens"} <= set(limits)


def test_a_page_is_the_same_twice(front, text):
    """Two runs write the same bytes."""
    assert plan_page(front, request("autoplan plan x")) == text


def test_a_front_of_very_many_plans_stays_small(front):
    """Some of them have a row, fewer can be chosen, and the page says so."""
    many = replace(front, plans=tuple(front.plans[n % len(front.plans)] for n in range(400)))
    page = assert_stands_alone(plan_page(many, request("x")))

    assert len(page.rows["plans of the front"]) == MOST_PLANS + 1
    assert f"{400 - MOST_PLANS} more plans" in page.words


def test_names_of_users_are_text(front):
    """Tags, quotes and characters that turn text around are shown, not obeyed."""
    job = replace(front.job, name=HOSTILE, model=front.job.model.model_copy(update={"title": HOSTILE}))
    rejected = (replace(front.rejected[0], reason=HOSTILE, layouts=7), *front.rejected)
    named = replace(front, job=job, rejected=rejected)
    text = plan_page(named, request(f"autoplan plan '{HOSTILE}'", HOSTILE))
    page = assert_stands_alone(text)

    assert len(page.scripts) == 1
    assert "alert" not in page.scripts[0]
    assert "<script>alert" not in text
    assert "<b>" not in text
    assert "\u202e" not in text
    assert page.words.count("<script>alert(1)</script>") >= 4


def test_what_cannot_be_is_explained():
    """A job without a plan has reasons, conflicts and rejected layouts, and no picture."""
    job = load_job(JOB)
    job = replace(job, limits=job.limits.model_copy(update={"peak_memory": 2.0**30}))
    front = plan(job)
    page = assert_stands_alone(plan_page(front, request("autoplan plan x", "")))

    assert "nothing is feasible" in page.words
    assert all(reason in page.words for reason in front.reasons)
    assert page.attributes("circle") == []


@pytest.mark.parametrize(
    ("job", "layout"),
    [
        ("llama3-8b-8x-a100", "tp=2,pp=4,mbs=1"),
        ("gpt3-175b-128x-a100", "tp=4,pp=32,dp=1,recompute=selective"),
    ],
)
def test_bars_and_limits_are_those_of_the_document(job, layout):
    """Times, memory by stage and limits of one layout, and bars as long as their numbers."""
    loaded = load_job(job)
    answer = evaluate(loaded, layout)
    text = evaluation_page(loaded, answer, request("x"))
    page, document = assert_stands_alone(text), plan_document(loaded, answer)
    predicted = document["predicted"]
    stages, limit = predicted["memory"]["stages"], predicted["memory_limit_bytes"]
    names = [
        cell for cell in page.texts["peak memory by stage"][0][3:] if "(" not in cell and cell != "peak event"
    ]

    assert json.loads(page.copied["the answer as JSON"]) == document
    assert [row for row in page.rows["parts of the step"] if row] == [
        [seconds, seconds / predicted["step_seconds"]] for seconds in predicted["time"].values() if seconds
    ]
    assert page.rows["peak memory by stage"][1:] == [
        [
            s["stage"],
            s["layers"],
            *(s[name] for name in names),
            s["total"],
            s["total_high"],
            s["total"] / limit,
        ]
        for s in stages
    ]
    assert page.rows["predicted against limits"][1:3] == [
        [predicted["peak_memory_bytes_per_device"], limit],
        [predicted["memory_needed_bytes"], limit],
    ]
    bars = re.findall(r'<svg class="stack".*?</svg>', text)
    scale = max(limit, *(s["total_high"] for s in stages))
    lengths = [sum(map(float, re.findall(r' width="([\d.]+)"', bar))) for bar in bars]
    assert lengths[0] == pytest.approx(100, abs=0.05)
    for bar in bars:
        boxes = [(float(x), float(w)) for x, w in re.findall(r' x="([\d.]+)" width="([\d.]+)"', bar)]
        assert all(x + w == pytest.approx(after, abs=0.01) for (x, w), (after, _) in pairwise(boxes))
    assert lengths[1:] == pytest.approx([100 * s["total"] / scale for s in stages], abs=0.05)


def test_the_timeline_is_that_of_the_step():
    """A short step is drawn whole: each piece begins and ends where the step says."""
    job = load_job("llama3-8b-8x-a100")
    job = replace(job, workload=job.workload.model_copy(update={"global_batch_size": 8}))
    timeline = predicted_step(job, "tp=2,pp=4,dp=1,mbs=1")
    html = "\n".join(timeline_picture(timeline))
    page = PageReader(html)
    boxes = [a for a in page.attributes("rect") if a.get("fill") and a.get("y", "10.00") != "10.00"]
    widths = {}
    for box in boxes:
        widths[box["y"]] = widths.get(box["y"], 0.0) + float(box["width"])
    pixels = max(widths.values()) / timeline.seconds
    by_stage = [sum(x.seconds for x in timeline.slices if x.stage == s) for s in range(4)]

    assert len(widths) == 4
    assert list(widths.values()) == pytest.approx([pixels * seconds for seconds in by_stage], rel=1e-3)
    assert "drawn are" not in html
    (zoom,) = page.attributes("div", "zoom")
    kinds, tick = [name for name, _ in json.loads(zoom["data-kinds"])], float(zoom["data-tick"])
    for stage, row in json.loads(zoom["data-pieces"]):
        own = [piece for piece in pieces_of(timeline) if piece.stage == stage]
        ends = list(accumulate(row[2::3]))
        shown = [(row[3 * n], row[3 * n + 1], end) for n, end in enumerate(ends) if row[3 * n] >= 0]
        assert [kinds[kind] for kind, *_ in shown] == [piece.kind for piece in own]
        assert [m if m >= 0 else None for _, m, _ in shown] == [piece.microbatch for piece in own]
        assert [tick * end for *_, end in shown] == pytest.approx([x.end for x in own], abs=tick)
    assert max(float(b["x"]) + float(b["width"]) for b in boxes) <= 1100


def test_of_a_long_step_both_ends_are_drawn():
    """A page stays small whatever the number of microbatches, and says what it leaves out."""
    timeline = predicted_step("llama3-8b-8x-a100", "tp=1,pp=8,dp=1,mbs=1")
    html = "\n".join(timeline_picture(timeline))
    page = PageReader(html)

    assert len(page.attributes("svg", "timeline")) == 2
    assert "drawn are the first and the last" in page.words
    assert len(page.attributes("rect")) < 1.5 * MOST_PIECES
    assert math.isclose(
        timeline.seconds, evaluate("llama3-8b-8x-a100", "tp=1,pp=8,dp=1,mbs=1").predicted.step_seconds
    )


def test_layouts_side_by_side_are_those_of_the_document():
    """The conclusion, steps and peaks of each layout, its timeline, crossovers, and the document to copy."""
    comparison = compare(JOB, ["tp=2,recompute=full", "pp=2,recompute=full"], deadline=0.0)
    steps = [predicted_step(JOB, plan.layout) for plan in comparison.plans]

    def written():
        return comparison_page(comparison, request("autoplan compare x"))

    text = written()
    page, document = assert_stands_alone(text), layouts_document(comparison)
    layouts = document["layouts"]

    assert json.loads(page.copied["the comparison as JSON"]) == document
    assert all(sentence in page.words for sentence in document["conclusion"])
    assert page.rows["step time of the layouts"][1:] == [[x["predicted"]["step_seconds"]] for x in layouts]
    assert [row[0] for row in page.rows["peak memory of the layouts"][1:]] == [
        x["predicted"]["peak_memory_bytes_per_device"] for x in layouts
    ]
    assert len(page.texts["crossovers"]) == 1 + sum(
        max(1, len(x["crossings"])) for x in document["crossovers"]
    )
    zooms = page.attributes("div", "zoom")
    assert {float(zoom["data-seconds"]) for zoom in zooms} == {max(step.seconds for step in steps)}
    for zoom, step in zip(zooms, steps, strict=True):
        rows = json.loads(zoom["data-pieces"])
        ends = [sum(pieces[2::3]) * float(zoom["data-tick"]) for _, pieces in rows]
        assert len(rows) == step.stages
        assert max(ends) == pytest.approx(step.seconds, rel=1e-5)
    assert written() == text


def test_the_step_of_a_layout_that_cannot_be_drawn_says_why():
    """In the place of its timeline stands the reason, and the other layouts are drawn."""
    comparison = compare(JOB, ["tp=2,recompute=full", "pp=2,recompute=full"], deadline=0.0)
    first = comparison.plans[0]

    def step_of(job, own):
        return "too <many> passes" if own == first else predicted_step(job, own.layout)

    drawn = PageRequest("x", step_of, products, placement)
    page = assert_stands_alone(comparison_page(comparison, drawn))

    assert "too <many> passes" in page.words
    assert len(page.attributes("div", "zoom")) == 1
