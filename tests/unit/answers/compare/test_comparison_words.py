"""The conclusion of a comparison says which layout to pick, when another one, and when to combine."""

from dataclasses import replace

import pytest

from autoplan import compare, evaluate, load_job
from autoplan.answers.compare.blocks import place_words
from autoplan.answers.compare.comparison_words import conclusion, noise_words
from autoplan.answers.compare.value import Crossing, Knob, KnobRange, KnobSide

JOB = "llama3-8b-8x-a100"
BANDWIDTH = Knob("fabric_bandwidth", 300e9, "bytes/s")
BATCH = Knob("global_batch_size", 128.0, None)


@pytest.fixture(scope="module")
def job():
    """Return the job without the stacks that it may mean, which are not needed here."""
    return replace(load_job(JOB), stack_assumed=False)


@pytest.fixture(scope="module")
def both(job):
    """Return two layouts that fit, and no crossings."""
    return replace(compare(job, ["tp=2", "tp=8"], deadline=0.0), knobs=())


def said(comparison):
    """Return the conclusion as one text."""
    return " ".join(conclusion(comparison))


def crossing(value, below, above, *, by_memory=False, noise=None, low=None, high=None):
    """Return a crossing between winners ``below`` and ``above``."""
    sides = (KnobSide(value, (1.0, 1.0), (True, True), winner) for winner in (below, above))
    return Crossing(value, *sides, by_memory=by_memory, noise=noise, noise_low=low, noise_high=high)


def test_the_winner_and_what_decides_are_named(both):
    """The fastest layout that fits, the next one, and the part in which that loses most."""
    text = said(both)

    assert text.startswith("Pick tp=2: 37.14 s a step, against ")
    assert "tensor parallel communication (+" in text


def test_each_crossing_is_told_from_the_present_value(both):
    """Beyond the nearest crossing, on the side away from the present value, the other layout is picked."""
    slow = KnobRange(BANDWIDTH, 1e9, 1e13, (crossing(100e9, 1, 0), crossing(10e9, 0, 1)), 0, 0)
    small = KnobRange(BATCH, 4.0, 4096.0, (crossing(12.0, 1, 0),), 1, 0)
    large = KnobRange(BATCH, 4.0, 4096.0, (crossing(512.0, 0, None, by_memory=True),), 0, None)

    assert "Pick tp=8 where the bandwidth in a node is below 100 GB/s." in said(replace(both, knobs=(slow,)))
    text = said(replace(both, knobs=(slow, small)))
    assert "Pick tp=8 where the bandwidth in a node is below 100 GB/s or the global batch is below 12" in text
    assert "None of them fits where the global batch is 512 sequences or more." in said(
        replace(both, knobs=(large,))
    )


def test_a_knob_without_a_crossing_changes_nothing(both):
    """The range in which nothing flips is told; what was not solved is not called unchanged."""
    never = KnobRange(BANDWIDTH, 1e9, 1e12, (), 0, 0)
    unsolved = KnobRange(BATCH, 128.0, 128.0, (), why="not solved")
    text = said(replace(both, knobs=(never, unsolved)))

    assert "No bandwidth in a node from 1 GB/s to 1 TB/s changes the order." in text
    assert "global batch" not in text


def test_layouts_that_do_not_fit_are_told(job):
    """Where one does not fit the other is picked; where none does, the excess is told and the fastest."""
    one = compare(job, ["dp=8,mbs=4,zero=0", "tp=8"], deadline=0.0)
    none = compare(job, ["dp=8,mbs=4,zero=0", "dp=8,mbs=2,zero=0"], deadline=0.0)

    assert "Pick tp=8: " in said(one)
    assert "dp=8,mbs=4,zero=0 does not fit" in said(one)
    assert said(none).startswith("None of these layouts fits, the smallest is ")


def test_when_to_combine(both, job):
    """The best of the job combines axes, has the same degrees, is the winner, or is not known."""
    mixed, same, single = (evaluate(job, text) for text in ("tp=2,pp=2,vpp=2", "tp=2,sp=off", "pp=2,vpp=2"))
    least = both.winner.plan.predicted.step_seconds * 0.9
    mixed, same, single = (
        replace(plan, predicted=replace(plan.predicted, step_seconds=least)) for plan in (mixed, same, single)
    )

    assert "Combine: the proven best layout of the job has tp=2,pp=2,dp=2, " in said(
        replace(both, best=mixed, best_proven=True)
    )
    assert "10.0 % less" in said(replace(both, best=mixed, best_proven=True))
    assert "has the same degrees and other choices" in said(replace(both, best=same))
    assert "Combining axes gains nothing here: the best known layout" in said(replace(both, best=single))
    assert "nothing combined is faster" in said(replace(both, best=both.winner.plan, best_proven=True))
    assert "is not known (not solved: the deadline of 0 s was reached)." in said(both)


def test_the_band_that_is_too_close_to_call():
    """Both ends with one unit, one end alone, all values, memory, or nothing known."""
    assert noise_words(BANDWIDTH, crossing(1e9, 0, 1, noise=0.03, low=9e9, high=2e10)) == "9 to 20 GB/s"
    assert (
        noise_words(BANDWIDTH, crossing(1e9, 0, 1, noise=0.03, low=9e8, high=2e10)) == "900 MB/s to 20 GB/s"
    )
    assert noise_words(BANDWIDTH, crossing(1e9, 0, 1, noise=0.03, low=9e9)) == "above 9 GB/s"
    assert noise_words(BATCH, crossing(64.0, 0, 1, noise=0.03, high=96.0)) == "below 96 sequences"
    assert noise_words(BATCH, crossing(64.0, 0, 1, noise=0.03)) == "at all values"
    assert noise_words(BATCH, crossing(64.0, 0, 1, by_memory=True)) == "memory decides"
    assert noise_words(BATCH, crossing(64.0, 0, 1)) == ""


def test_every_message_has_a_place(job):
    """Whatever a layout communicates lands somewhere that has words."""
    layouts = ["tp=2,pp=2,recompute=full", "cp=2,tp=2", "dp=8", "tp=2,sp=off"]
    places = [
        place_words(message)
        for layout in compare(job, layouts, deadline=0.0).layouts
        for message in layout.traffic
    ]

    assert all(places)
    assert {"before attention, MLP", "after attention, MLP", "after input gradients"} <= set(places)
    assert "once, last backward on" in places
