"""Layouts of engines side by side: what decides between them, and what one of them alone holds."""

from dataclasses import replace

import pytest

import autoplan
from autoplan.answers.compare.blocks import engine_comparison_blocks, engine_comparison_document
from autoplan.report.render.terminal import WIDE, render
from autoplan.results.serving.serving_front import loss

JOB = "llama3.1-8b-1x-h100"


@pytest.fixture(scope="module")
def job():
    """Return a job without limits."""
    loaded = autoplan.load_job(JOB)
    return replace(loaded, limits=type(loaded.limits)())


def said(answer):
    """Return the text of a comparison in one line."""
    return " ".join(render(engine_comparison_blocks(answer, WIDE), WIDE).split())


def test_the_first_objective_that_tells_layouts_apart_decides(job):
    """The pick, the objective and the distance to the next are told, and by what the other is better."""
    answer = autoplan.compare(job, ["tp=1,weights=bf16,seqs=8", "tp=1,weights=bf16,seqs=64"])
    eight, many = (one.plan for one in answer.layouts)

    assert (answer.decision.place, answer.decision.objective) == (1, "throughput_per_device")
    worse = loss(many, eight, "throughput_per_device")
    assert (
        f"pick 2: throughput_per_device decides, the first objective; the next is {worse * 100:.0f} %"
        in said(answer)
    )
    assert "1 is better by time_per_output_token" in said(answer)
    assert engine_comparison_document(answer)["decision"] == {
        "layout": 2,
        "objective": "throughput_per_device",
        "tied": [],
    }


def test_the_order_of_objectives_counts_and_ties_go_to_the_next(job):
    """Latency first picks the other layout; as many devices decide nothing."""
    layouts = ["tp=1,weights=bf16,seqs=8", "tp=1,weights=bf16,seqs=64"]
    by_token = replace(job, objectives=("devices", "time_per_output_token"))
    answer = autoplan.compare(by_token, layouts)

    assert (answer.decision.place, answer.decision.objective) == (0, "time_per_output_token")
    assert "decides, where objectives before it are alike" in said(answer)
    alike = autoplan.compare(replace(job, objectives=("devices",)), layouts)
    assert alike.decision.tied == (0, 1)
    assert "1, 2 are alike in every objective of the job" in said(alike)


def test_a_limit_that_one_holds_and_another_breaks_is_told():
    """Where limits leave one layout, no objective decides; who holds what the other breaks is named."""
    answer = autoplan.compare(JOB, ["tp=1,weights=bf16,seqs=8", "tp=1,weights=fp8"])

    assert (answer.decision.place, answer.decision.objective) == (1, None)
    assert "pick 2: it alone holds every limit" in said(answer)
    assert "1 breaks a limit that 2 holds: time_to_first_token.p99 is" in said(answer)


def test_nothing_is_picked_where_none_holds_the_limits():
    """The sentence says so, and the document has no decision."""
    answer = autoplan.compare(JOB, ["tp=1,weights=bf16,seqs=8", "tp=1,weights=bf16,seqs=4"])

    assert answer.decision is None
    assert "none of these layouts holds every limit" in said(answer)
    assert engine_comparison_document(answer)["decision"] is None
