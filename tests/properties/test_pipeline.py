"""The closed forms of pipelines against the schedules played out, and what holds for every stage's times."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.costs.pipeline.schedule_simulation import simulate
from autoplan.costs.pipeline.schedules import pipeline_seconds
from autoplan.schema.layout import SCHEDULES
from autoplan.search.bounds.step_bound import Shares, least_makespan, least_zero_bubble, longest_stage
from autoplan.search.space.priced_candidates import Schedule

many = settings(max_examples=300, deadline=None)
times = st.one_of(st.floats(1e-6, 10.0), st.integers(0, 4).map(float))


def closed(forward, backward, m, v, schedule, weight=None):
    """Return the closed form for one candidate [s]; ``weight`` is the part of backward done apart."""
    index = np.array([SCHEDULES.index(schedule)])
    stages = np.array([forward]), np.array([backward])
    split_backward = None if weight is None else np.array([weight])
    return float(
        pipeline_seconds(*stages, np.array([float(m)]), np.array([float(v)]), index, split_backward)[0]
    )


@st.composite
def wild_stages(draw, most=7):
    """Return forward and backward of up to ``most`` stages, of any times."""
    pairs = draw(st.lists(st.tuples(times, times), min_size=1, max_size=most))
    return [f for f, _ in pairs], [b for _, b in pairs]


@st.composite
def likely_stages(draw, most=8, fewest=1):
    """Return stages of whole layers, some recomputed, with an embedding and a head."""
    p, layers = draw(st.integers(fewest, most)), draw(st.integers(2, 12))
    held = [layers + draw(st.integers(0, 1)) for _ in range(p)]
    again = [draw(st.integers(0, n)) for n in held]
    ratio = draw(st.floats(1.8, 2.5))
    forward = [float(n) for n in held]
    backward = [ratio * n + f for n, f in zip(held, again, strict=True)]
    embedding, head = draw(st.floats(0.0, 0.2)), draw(st.floats(0.0, 1.5))
    forward[0], backward[0] = forward[0] + embedding, backward[0] + embedding
    forward[-1], backward[-1] = forward[-1] + head, backward[-1] + 2 * head
    return forward, backward


# The forms are what the schedules take


@many
@given(wild_stages(), st.integers(1, 24), st.sampled_from(["1f1b", "gpipe"]))
def test_1f1b_and_gpipe_take_what_the_schedule_takes(stages, m, schedule):
    """Whatever the times, the closed form is the simulation's."""
    played = simulate(*stages, m, 1, schedule).seconds

    assert closed(*stages, m, 1, schedule) == pytest.approx(played, rel=1e-9)


@st.composite
def split_stages(draw, most=7):
    """Return forward, backward and weight gradient, a part of backward, of up to ``most`` stages."""
    rows = draw(st.lists(st.tuples(times, times, times), min_size=1, max_size=most))
    forward, inputs, weight = (list(row) for row in zip(*rows, strict=True))
    return forward, [b + w for b, w in zip(inputs, weight, strict=True)], weight


@settings(max_examples=1000, deadline=None)
@given(split_stages(), st.integers(1, 24))
def test_zero_bubble_takes_what_the_schedule_takes(stages, m):
    """Whatever the times, also with fewer microbatches than stages, the closed form is the simulation's."""
    forward, backward, weight = stages
    played = simulate(forward, backward, m, 1, "zero-bubble", weight=weight).seconds

    assert closed(forward, backward, m, 1, "zero-bubble", weight) == pytest.approx(played, rel=1e-9)


@many
@given(st.integers(1, 9), st.integers(0, 20), times, times, times)
def test_zero_bubble_of_equal_stages_takes_what_the_paper_says(p, more, forward, inputs, weight):
    """At most m (F + B + W) + (p - 1)(F + B - W) for W of at most F and B, m >= p; equal for F = B = W."""
    m, weight = p + more, min(weight, forward, inputs)
    seconds = closed([forward] * p, [inputs + weight] * p, m, 1, "zero-bubble", [weight] * p)

    assert seconds <= (m * (forward + inputs + weight) + (p - 1) * (forward + inputs - weight)) * (1 + 1e-9)
    equal = closed([forward] * p, [2 * forward] * p, m, 1, "zero-bubble", [forward] * p)
    assert equal == pytest.approx((3 * m + p - 1) * forward, rel=1e-9)


@many
@given(st.integers(1, 9), st.integers(1, 24), times, times, times)
def test_zero_bubble_of_equal_stages_is_never_slower_than_1f1b(p, m, forward, inputs, weight):
    """On the same times: nothing waits for a weight gradient. Unequal stages may wait at the end."""
    stages, weights = ([forward] * p, [inputs + weight] * p), [weight] * p

    assert closed(*stages, m, 1, "zero-bubble", weights) <= closed(*stages, m, 1, "1f1b") * (1 + 1e-12)


@many
@given(split_stages(), st.integers(1, 16), st.data())
def test_a_longer_part_never_makes_zero_bubble_shorter(stages, m, data):
    """The time is monotone in each forward, input gradient and weight gradient."""
    kind, i = data.draw(st.integers(0, 2)), data.draw(st.integers(0, len(stages[0]) - 1))
    more, longer = data.draw(times), [list(row) for row in stages]
    longer[kind][i] += more
    if kind == 2:
        longer[1][i] += more
    (f, b, w), (f2, b2, w2) = stages, longer

    assert closed(f2, b2, m, 1, "zero-bubble", w2) >= closed(f, b, m, 1, "zero-bubble", w) * (1 - 1e-12)


@many
@given(split_stages(), st.integers(1, 24))
def test_the_search_bounds_zero_bubble_from_below(stages, m):
    """By the sum and the largest of stage times, and the shares of forward and of input gradients."""
    forward, backward, weight = (np.array(row) for row in stages)
    p, both = len(forward), forward + backward
    if not both.all():
        return
    share = Shares(*(np.array([x]) for x in _shares_by_hand(forward, both, weight)))
    least = least_zero_bubble(np.array([float(m)]), p, np.array([both.sum()]), np.array([both.max()]), share)[
        0
    ]

    assert least <= closed(*stages[:2], m, 1, "zero-bubble", stages[2]) * (1 + 1e-9)
    assert least >= m * both.max() * (1 - 1e-12)


def _shares_by_hand(forward, both, weight):
    return (forward / both).min(), (forward / both).max(), (1 - weight / both).min()


@many
@given(likely_stages(fewest=2), st.integers(1, 5), st.sampled_from([2, 3, 4]))
def test_interleaved_takes_what_the_schedule_takes(stages, rounds, v):
    """Where stages are whole layers, recomputed or not, to a tenth of a per cent."""
    m = rounds * len(stages[0])
    played = simulate(*stages, m, v, "interleaved").seconds

    assert closed(*stages, m, v, "interleaved") == pytest.approx(played, rel=1e-3)


@many
@given(wild_stages(), st.integers(1, 5), st.sampled_from([2, 3, 4]))
def test_interleaved_is_never_overstated(stages, rounds, v):
    """Whatever the times, the form is at most the simulation's, and no less than 1F1B's chunks allow."""
    m = rounds * len(stages[0])
    played = simulate(*stages, m, v, "interleaved").seconds if len(stages[0]) > 1 else None
    both = [f + b for f, b in zip(*stages, strict=True)]

    assert closed(*stages, m, v, "interleaved") >= m * max(both) * (1 - 1e-12)
    assert played is None or closed(*stages, m, v, "interleaved") <= played * (1 + 1e-12)


@many
@given(st.integers(1, 9), st.integers(1, 24), times, times, st.sampled_from([1, 2, 4]))
def test_equal_stages_take_what_the_papers_say(p, m, forward, backward, v):
    """(m + (p-1)/v) t, of which v = 1 is 1F1B and GPipe."""
    m = m * p if v > 1 else m
    expected = (m + (p - 1) / v) * (forward + backward)

    for schedule in ("1f1b", "gpipe") if v == 1 else ("interleaved",):
        seconds = closed([forward] * p, [backward] * p, m, v, schedule)
        assert seconds == pytest.approx(expected, rel=1e-9)


# What holds for every input


@many
@given(wild_stages(), st.integers(1, 16), st.integers(1, 4), st.data())
def test_a_longer_stage_never_makes_a_step_shorter(stages, m, v, data):
    """The time is monotone in each forward and each backward, which the search's menus build on."""
    schedule = data.draw(st.sampled_from(["1f1b", "gpipe"])) if v == 1 else "interleaved"
    m = m * len(stages[0]) if v > 1 else m
    kind, i = data.draw(st.integers(0, 1)), data.draw(st.integers(0, len(stages[0]) - 1))
    longer = [list(row) for row in stages]
    longer[kind][i] += data.draw(times)

    assert closed(*longer, m, v, schedule) >= closed(*stages, m, v, schedule) * (1 - 1e-12)


@many
@given(wild_stages(), st.integers(1, 32))
def test_a_pipeline_takes_at_least_its_work(stages, m):
    """No schedule beats its slowest stage or one microbatch's way; 1F1B is never slower than GPipe."""
    both = [f + b for f, b in zip(*stages, strict=True)]
    plain, gpipe_makespan = closed(*stages, m, 1, "1f1b"), closed(*stages, m, 1, "gpipe")

    assert plain >= max(m * max(both), sum(both)) * (1 - 1e-12)
    assert plain <= gpipe_makespan * (1 + 1e-12)
    assert gpipe_makespan <= m * sum(both) * (1 + 1e-12)


@many
@given(wild_stages(), st.integers(1, 24), st.sampled_from(["1f1b", "gpipe", "2", "4"]))
def test_the_search_bounds_pipelines_from_below(stages, m, schedule):
    """What the search leaves out by the sum and the largest of stage times takes at least that long."""
    p, both = len(stages[0]), [f + b for f, b in zip(*stages, strict=True)]
    v = int(schedule) if schedule.isdigit() else 1
    m, name = (m * p, "interleaved") if v > 1 else (m, schedule)
    seconds = closed(*stages, m, v, name)
    one = [np.array([float(x)]) for x in (m, v)]
    kinds = {"gpipe": np.array([schedule == "gpipe"]), "split_backward": np.array([False])}
    group = SimpleNamespace(pp=p, m=one[0], v=one[1], **kinds)
    least = least_makespan(group, np.array([sum(both)]), np.array([max(both)]))[0]
    longest = longest_stage(Schedule(p, m, v, schedule == "gpipe"), sum(both), seconds)

    assert least <= seconds * (1 + 1e-9)
    assert max(both) <= longest * (1 + 1e-9)
    assert max(sum(both[:s]) / v + m * t for s, t in enumerate(both)) <= seconds * (1 + 1e-9)


@many
@given(st.lists(likely_stages(4, 4), min_size=1, max_size=4), st.data())
def test_candidates_together_take_what_each_takes_alone(stages, data):
    """One call for candidates of several schedules returns the time of each."""
    kinds = [
        data.draw(st.sampled_from([(8, 1, "1f1b"), (3, 1, "gpipe"), (8, 2, "interleaved")])) for _ in stages
    ]
    m, v, names = zip(*kinds, strict=True)
    forward, backward = (np.array([pair[k] for pair in stages]) for k in (0, 1))
    index = np.array([SCHEDULES.index(name) for name in names])
    together = pipeline_seconds(forward, backward, np.array(m, float), np.array(v, float), index)

    assert together.tolist() == [closed(*pair, *kind) for pair, kind in zip(stages, kinds, strict=True)]
