"""Pipeline schedules, played out: the published orders, examples by hand, and what holds for every input."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoplan.costs.pipeline.schedule_simulation import Task, orders, simulate
from autoplan.costs.pipeline.schedules import microbatches_in_flight
from autoplan.schema.layout import SCHEDULES

NAMES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def numbers(order, kinds="FBW"):
    """Return microbatches in the order of their tasks, counted from 1 as figures do."""
    return "".join(str(task.microbatch + 1) for task in order if task.kind in kinds)


def rows(trace):
    """Return kind, microbatch, start and end of what each stage does."""
    return [[(*slot.task[:2], slot.start, slot.end) for slot in row] for row in trace.stages]


# The published orders


def test_1f1b_is_the_published_figure():
    """Four stages, eight microbatches: figure 2 of Qi et al. 2023, row by row."""
    assert [numbers(order) for order in orders("1f1b", 4, 8, 1)] == [
        "1234152637485678",
        "1231425364758678",
        "1213243546576878",
        "1122334455667788",
    ]


def test_gpipe_is_the_published_figure():
    """Four microbatches go forward in order and backward in reverse: figure 2c of Huang et al. 2019."""
    assert [numbers(order) for order in orders("gpipe", 4, 4, 1)] == ["12344321"] * 4


def test_zero_bubble_is_the_published_figure():
    """Four stages, eight microbatches: figure 3 (top) of Qi et al. 2023, row by row."""
    assert [numbers(order) for order in orders("zero-bubble", 4, 8, 1)] == [
        "123411522633744855667788",
        "123142153264375486576878",
        "121324315426537648758678",
        "112233441552663774885678",
    ]


def test_interleaving_is_the_published_figure():
    """Four stages of two chunks, eight microbatches: fig. 4 of Narayanan et al. 2021, its outer rows."""
    first, *_, last = orders("interleaved", 4, 8, 2)

    assert numbers(first, "F") == numbers(last, "F") == "1234123456785678"
    assert numbers(first, "B") == numbers(last, "B") == "1234123456785678"
    assert [t.chunk for t in first if t.kind == "F"] == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert [t.chunk for t in first if t.kind == "B"] == [1, 1, 1, 1, 0, 0, 0, 0] * 2
    # Warm-up of 2 x 3 + 4 and of 4 chunks, then forward and backward in turn.
    assert "".join(t.kind for t in first) == "F" * 10 + "FB" * 6 + "B" * 10
    assert "".join(t.kind for t in last) == "F" * 4 + "FB" * 12 + "B" * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2f2b", 2, 2, 1), "none of gpipe, 1f1b, interleaved, zero-bubble"),
        (("1f1b", 2, 0, 1), "whole numbers from 1"),
        (("1f1b", 2, 2, 2), "interleaved is what v > 1 means"),
        (("interleaved", 2, 2, 1), "interleaved is what v > 1 means"),
        (("interleaved", 4, 6, 2), "multiples of p=4: got m=6"),
    ],
)
def test_what_no_schedule_is_defined_for_is_refused(arguments, message):
    """An order is given only where the schedule's authors define one."""
    with pytest.raises(ValueError, match=message):
        orders(*arguments)


def test_zero_bubble_needs_to_know_the_weight_gradient():
    """The split of backward is never guessed."""
    with pytest.raises(ValueError, match="needs the weight gradient"):
        simulate([1], [2], 1, 1, "zero-bubble")


# Examples by hand


def test_two_microbatches_on_three_uneven_stages():
    """The middle stage sends its second forward late, the first stage its backward: 9 + 6.5 seconds."""
    trace = simulate([1, 4, 1], [3, 0.5, 1], 2, 1, "1f1b")

    assert rows(trace) == [
        [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 9.5, 12.5), ("B", 1, 12.5, 15.5)],
        [("F", 0, 1, 5), ("F", 1, 5, 9), ("B", 0, 9, 9.5), ("B", 1, 11, 11.5)],
        [("F", 0, 5, 6), ("B", 0, 6, 7), ("F", 1, 9, 10), ("B", 1, 10, 11)],
    ]
    assert trace.seconds == 15.5
    assert trace.busy == (8, 9, 4)
    assert trace.idle == (7.5, 6.5, 11.5)
    assert trace.in_flight == (2, 2, 1)


def test_a_slow_first_stage_hides_the_others():
    """Two seconds forward and four back, against one and two: the second stage shows in one second alone."""
    trace = simulate([2, 1], [4, 2], 2, 1, "1f1b")

    assert rows(trace) == [
        [("F", 0, 0, 2), ("F", 1, 2, 4), ("B", 0, 5, 9), ("B", 1, 9, 13)],
        [("F", 0, 2, 3), ("B", 0, 3, 5), ("F", 1, 5, 6), ("B", 1, 6, 8)],
    ]


def test_gpipe_turns_at_the_last_stage():
    """Forwards end at 1 + 2 x 2, and as much again goes back, the second microbatch first."""
    trace = simulate([1, 2], [1, 2], 2, 1, "gpipe")

    assert rows(trace) == [
        [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 1, 7, 8), ("B", 0, 9, 10)],
        [("F", 0, 1, 3), ("F", 1, 3, 5), ("B", 1, 5, 7), ("B", 0, 7, 9)],
    ]


def test_a_transfer_delays_its_receiver_alone():
    """Half a second on the wire: the sender goes on at once, the receiver starts half a second later."""
    trace = simulate([1, 1], [1, 1], 2, 1, "1f1b", latency=0.5)

    assert rows(trace) == [
        [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 4, 5), ("B", 1, 6, 7)],
        [("F", 0, 1.5, 2.5), ("B", 0, 2.5, 3.5), ("F", 1, 3.5, 4.5), ("B", 1, 4.5, 5.5)],
    ]


def test_chunks_go_round_the_stages():
    """Two chunks of a second forward: the second waits for the last stage, and a transfer from there."""
    trace = simulate([2, 2], [4, 4], 2, 2, "interleaved", latency=0.5)
    first = {slot.task: (slot.start, slot.end) for slot in trace.stages[0]}
    last = {slot.task: (slot.start, slot.end) for slot in trace.stages[1]}

    assert first[Task("F", 0, 0)] == (0, 1)
    assert last[Task("F", 0, 0)] == (1.5, 2.5)
    assert first[Task("F", 0, 1)] == (3, 4)
    assert last[Task("F", 0, 1)] == (4.5, 5.5)
    assert last[Task("B", 0, 1)] == (5.5, 7.5)
    assert first[Task("B", 0, 1)] == (8, 10)
    # The last stage is done with the second microbatch's F and B meanwhile.
    assert last[Task("B", 0, 0)] == (10.5, 12.5)
    assert trace.in_flight == (2, 1.5)


def test_weight_gradients_fill_the_drain():
    """All tasks a second long: B leaves before W, and W of the last stage waits for the end."""
    trace = simulate([1, 1], [2, 2], 2, 1, "zero-bubble", weight=[1, 1])

    assert rows(trace) == [
        [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 3, 4), ("W", 0, 4, 5), ("B", 1, 5, 6), ("W", 1, 6, 7)],
        [("F", 0, 1, 2), ("B", 0, 2, 3), ("F", 1, 3, 4), ("B", 1, 4, 5), ("W", 0, 5, 6), ("W", 1, 6, 7)],
    ]


def test_zero_bubble_can_lose_where_a_late_stage_has_the_weights():
    """A last stage that starves could do W while it waits; ZB-H1 keeps it for the end, 1 second later."""
    uneven = {"forward": [4, 1], "backward": [1, 4], "m": 2, "v": 1, "weight": [0.5, 3]}

    assert simulate(schedule="zero-bubble", **uneven).seconds == 16
    assert simulate(schedule="1f1b", **uneven).seconds == 15


# Equal stages


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("m", [1, 2, 3, 7, 8, 9, 24])
def test_equal_stages_pay_for_p_minus_1_more_microbatches(p, m):
    """GPipe and 1F1B take (m + p - 1)(F + B)."""
    for schedule in ("gpipe", "1f1b"):
        assert simulate([1.0] * p, [2.5] * p, m, 1, schedule).seconds == (m + p - 1) * 3.5


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("v", [2, 4])
@pytest.mark.parametrize("backward", [0.5, 1.0, 2.5])
def test_interleaving_divides_the_bubble_of_equal_stages(p, groups, v, backward):
    """Interleaved takes (m + (p - 1)/v)(F + B), in as few microbatches as there are stages too."""
    trace = simulate([1.0] * p, [backward] * p, groups * p, v, "interleaved")

    assert trace.seconds == (groups * p + (p - 1) / v) * (1 + backward)


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize(("inputs", "weight"), [(1.0, 1.0), (1.25, 0.75), (1.0, 1.5), (0.5, 2.0)])
def test_zero_bubble_idles_as_published(p, inputs, weight):
    """From m = p on, ZB-H1 idles (p-1)(F + B - W), and (p-1)F where W is longer than B."""
    work = 1.0 + inputs + weight
    for m in (p, p + 1, 3 * p):
        trace = simulate([1.0] * p, [inputs + weight] * p, m, 1, "zero-bubble", weight=[weight] * p)
        assert trace.idle == ((p - 1) * max(1.0, 1.0 + inputs - weight),) * p
        assert trace.busy == (m * work,) * p


@pytest.mark.parametrize("p", range(1, 9))
def test_latency_shows_where_the_schedule_waits_for_it(p):
    """GPipe pays the way there and back, 1F1B again every p microbatches, interleaved once for each chunk."""
    late = 0.125
    for m in range(1, 3 * p + 2):
        even, rounds, rest = (m + p - 1) * 3, (m - 1) // p, (m - 1) % p
        crossings = 2 * (p - 1) * (rounds + 1) + 2 * max(0, rest - 1)
        assert simulate([1] * p, [2] * p, m, 1, "gpipe", late).seconds == even + 2 * (p - 1) * late
        assert simulate([1] * p, [2] * p, m, 1, "1f1b", late).seconds == even + crossings * late
    for m in (p, 2 * p, 3 * p) if p > 1 else ():
        trace = simulate([1] * p, [2] * p, m, 2, "interleaved", late)
        assert trace.seconds == (m + (p - 1) / 2) * 3 + 2 * (2 * p - 1) * late


# Microbatches in flight


def in_flight(p, m, v, schedule):
    """Return the closed form of ``schedules``, for one candidate."""
    index = np.array([[SCHEDULES.index(schedule)]])
    return tuple(microbatches_in_flight(p, np.full((1, 1), float(m)), np.full((1, 1), float(v)), index)[0])


@pytest.mark.parametrize("p", range(1, 9))
def test_as_many_microbatches_are_in_flight_as_said(p):
    """The closed form counts what each stage holds at most, for every m and v."""
    for m in range(1, 3 * p + 2):
        for schedule in ("gpipe", "1f1b"):
            assert simulate([1] * p, [2] * p, m, 1, schedule).in_flight == in_flight(p, m, 1, schedule)
    for v in (2, 3, 4):
        for m in (p, 2 * p, 3 * p):
            trace = simulate([1] * p, [2] * p, m, v, "interleaved")
            assert trace.in_flight == pytest.approx(in_flight(p, m, v, "interleaved"), rel=1e-12)


@pytest.mark.parametrize("p", range(1, 9))
def test_zero_bubble_holds_as_much_as_1f1b(p):
    """Until B, each stage holds what it holds under 1F1B; until W, min(m, p): at most the first stage's."""
    for m in range(1, 3 * p + 2):
        trace = simulate([1] * p, [2] * p, m, 1, "zero-bubble", weight=[1] * p)
        assert trace.in_flight == tuple(min(m, p - i) for i in range(p))
        for row in trace.stages:
            steps = [{"F": 1, "B": 0, "W": -1}[slot.task.kind] for slot in row]
            assert max(np.cumsum(steps)) == min(m, p)


# What holds for every input. Times are eighths, so that sums are exact and shorter means shorter.

eighths = st.integers(0, 64).map(lambda n: n / 8)


@st.composite
def pipes(draw, schedules=NAMES):
    """Return arguments of ``simulate``."""
    schedule = draw(st.sampled_from(schedules))
    stages = draw(st.lists(st.tuples(eighths, eighths, st.integers(0, 4)), min_size=1, max_size=5))
    interleaved = schedule == "interleaved"
    return {
        "forward": [f for f, _, _ in stages],
        "backward": [b for _, b, _ in stages],
        "m": len(stages) * draw(st.integers(1, 3)) if interleaved else draw(st.integers(1, 12)),
        "v": draw(st.sampled_from([2, 4])) if interleaved else 1,
        "schedule": schedule,
        "latency": draw(eighths),
        "weight": [b * share / 4 for _, b, share in stages],
    }


@given(pipes())
def test_every_task_is_done_once(pipe):
    """Each stage does F and B, and under zero-bubble W, once for each chunk of each microbatch."""
    trace = simulate(**pipe)
    kinds = "FBW" if pipe["schedule"] == "zero-bubble" else "FB"
    every = {Task(kind, n, c) for kind in kinds for n in range(pipe["m"]) for c in range(pipe["v"])}

    assert len(trace.stages) == len(pipe["forward"])
    for row in trace.stages:
        assert {slot.task for slot in row} == every
        assert len(row) == len(every)


@given(pipes())
def test_a_stage_does_one_thing_at_a_time(pipe):
    """No slot starts before the one before it ends, and work and waiting add up to the step."""
    trace = simulate(**pipe)

    for row, busy, idle in zip(trace.stages, trace.busy, trace.idle, strict=True):
        assert row[0].start >= 0
        assert all(a.end <= b.start for a, b in pairwise(row))
        assert busy + idle == trace.seconds
    for busy, forward, backward in zip(trace.busy, pipe["forward"], pipe["backward"], strict=True):
        assert busy == pipe["m"] * (forward + backward)


@given(pipes())
def test_nothing_starts_before_what_it_needs(pipe):
    """F follows F of the stage before, B follows B of the stage behind, each a transfer later."""
    trace = simulate(**pipe)
    p, v, late = len(pipe["forward"]), pipe["v"], pipe["latency"]
    slots = {(i, slot.task): slot for i, row in enumerate(trace.stages) for slot in row}

    for (i, task), slot in slots.items():
        kind, n, c = task
        place = c * p + i + (1 if kind == "B" else -1)
        if kind == "W":
            assert slot.start >= slots[i, Task("B", n, c)].end
        elif place == p * v:
            assert slot.start >= slots[i, Task("F", n, c)].end
        elif place >= 0:
            needed = slots[place % p, Task(kind, n, place // p)]
            assert slot.start >= needed.end + (late if p > 1 else 0)


@given(pipes())
def test_no_step_beats_its_busiest_stage_and_the_way_there(pipe):
    """A stage waits for F of those before it, and after its last B these still have theirs to do."""
    trace = simulate(**pipe)
    v, late = pipe["v"], pipe["latency"]

    for i, busy in enumerate(trace.busy):
        there = sum(pipe["forward"][:i]) / v + i * late
        back = sum(pipe["backward"][:i]) / v + i * late
        # Under zero-bubble the stage's own weight gradients may be what comes last.
        assert trace.seconds >= there + busy + (0 if pipe["schedule"] == "zero-bubble" else back)
    assert trace.seconds >= sum(pipe["forward"]) + sum(pipe["backward"]) - sum(pipe["weight"])


@given(pipes(), st.data())
def test_no_time_can_grow_and_the_step_shrink(pipe, data):
    """A step is monotone in each stage's times, in latency and in microbatches."""
    before = simulate(**pipe).seconds
    i = data.draw(st.integers(0, len(pipe["forward"]) - 1))
    more = data.draw(eighths)

    for name in ("forward", "backward"):
        times = [t + more * (j == i) for j, t in enumerate(pipe[name])]
        assert simulate(**{**pipe, name: times}).seconds >= before
    assert simulate(**{**pipe, "latency": pipe["latency"] + more}).seconds >= before
    whole = len(pipe["forward"]) if pipe["schedule"] == "interleaved" else 1
    assert simulate(**{**pipe, "m": pipe["m"] + whole}).seconds >= before


@given(pipes())
def test_twice_the_times_are_twice_the_step(pipe):
    """The step scales with its times."""
    double = {name: [2 * t for t in pipe[name]] for name in ("forward", "backward", "weight")}

    assert simulate(**{**pipe, **double, "latency": 2 * pipe["latency"]}).seconds == (
        2 * simulate(**pipe).seconds
    )


@given(pipes(["1f1b"]))
def test_1f1b_is_never_slower_than_gpipe_without_latency(pipe):
    """Going in turn saves memory and costs nothing; with one microbatch the two are the same."""
    plain, gpipe_makespan = ({**pipe, "schedule": name, "latency": 0.0} for name in ("1f1b", "gpipe"))

    assert simulate(**plain).seconds <= simulate(**gpipe_makespan).seconds
    assert simulate(**{**plain, "m": 1}).seconds == simulate(**{**gpipe_makespan, "m": 1}).seconds


@settings(max_examples=200)
@given(pipes(["zero-bubble"]))
def test_zero_bubble_is_never_slower_where_the_delay_fits(pipe):
    """Stage i ends i weight gradients late, which is nothing where the backwards before it take as long."""
    p, late = len(pipe["forward"]), pipe["latency"]
    assume(all(i * pipe["weight"][i] <= sum(pipe["backward"][:i]) + i * late for i in range(p)))

    assert simulate(**pipe).seconds <= simulate(**{**pipe, "schedule": "1f1b"}).seconds


@given(eighths, eighths, st.integers(0, 4), st.integers(1, 8), st.integers(1, 24), eighths)
def test_zero_bubble_is_never_slower_on_equal_stages(forward, backward, share, p, m, latency):
    """With equal stages the delay always fits, whatever the weight gradient's share and the latency."""
    equal = {"forward": [forward] * p, "backward": [backward] * p, "m": m, "v": 1, "latency": latency}
    zero = simulate(**equal, schedule="zero-bubble", weight=[backward * share / 4] * p)

    assert zero.seconds <= simulate(**equal, schedule="1f1b").seconds
