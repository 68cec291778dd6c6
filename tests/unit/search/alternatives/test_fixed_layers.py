"""The least layout of stages that have one number of layers each, against all layouts."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.alternatives.domain_reduction import least_of_fixed_layers
from autoplan.search.alternatives.stage_alternatives import Alternatives, slowest_path_ticks, step_ticks
from autoplan.search.space.priced_candidates import Schedule
from tests.support.listed_alternatives import alternative

CEILING = 10**9


@st.composite
def candidates(draw):
    """Return alternatives of one number of layers a stage, in one to four recompute mixes."""
    p = draw(st.integers(2, 4))
    kind = draw(st.sampled_from(["1f1b", "interleaved", "gpipe", "zero-bubble"]))
    v = 2 if kind == "interleaved" else 1
    m = p * draw(st.integers(1, 4)) if v > 1 else draw(st.integers(1, 4 * p))
    rows = []
    for _ in range(p):
        layers, forward = draw(st.integers(1, 3)), draw(st.integers(10, 30))
        weight = draw(st.integers(5, 15)) if kind == "zero-bubble" else 0
        row = []
        for full in range(draw(st.integers(1, 4))):
            backward = weight + draw(st.integers(20, 60))
            times = forward, backward, forward + backward, draw(st.integers(0, 200))
            row.append(alternative(layers, *times, draw(st.integers(1, 40)), -1, weight, full=full))
        rows.append(tuple(row))
    schedule = Schedule(p, m, v, gpipe=kind == "gpipe", split_backward=kind == "zero-bubble")
    return Alternatives(tuple(rows), schedule)


def layers_of(alternatives):
    """Return the layers of all stages."""
    return sum(row[0].layers for row in alternatives.stages)


@settings(max_examples=200, deadline=None)
@given(candidates(), st.integers(0, 3))
def test_the_layout_is_the_least_of_all_by_step_and_then_by_memory(alternatives, share):
    """Within a ceiling; infinite where no layout is within it."""
    layouts = sorted(
        (step_ticks(alternatives, x), max(o.memory_ticks for o in x))
        for x in itertools.product(*alternatives.stages)
    )
    ceiling = layouts[len(layouts) * share // 4][0] - (share == 0)
    least = least_of_fixed_layers(alternatives, layers_of(alternatives), ceiling)

    if alternatives.fixed:
        assert least is None
    elif share == 0:
        assert least == inf
    else:
        assert (least.step_ticks, least.memory_ticks) == layouts[0]
        assert step_ticks(alternatives, least.chosen) == least.step_ticks
        assert max(o.memory_ticks for o in least.chosen) == least.memory_ticks


@settings(max_examples=30, deadline=None)
@given(candidates())
def test_nothing_is_claimed_where_stages_choose_their_layers_or_have_too_many(alternatives):
    """A different number of layers, of one alternative or in all; another forward; places."""
    layers, rows = layers_of(alternatives), alternatives.stages
    first = rows[0][0]
    for changes in ({"layers": first.layers + 1}, {"forward_ticks": first.forward_ticks + 1}):
        more = replace(alternatives, stages=((*rows[0], first._replace(**changes)), *rows[1:]))
        assert least_of_fixed_layers(more, layers, CEILING) is None
    assert least_of_fixed_layers(alternatives, layers + 1, CEILING) is None
    assert least_of_fixed_layers(replace(alternatives, placed=True), layers, CEILING) is None


@settings(max_examples=100, deadline=None)
@given(candidates())
def test_the_slowest_path_is_no_longer_than_the_step(alternatives):
    """And as long where one stage is far slower than all others."""
    chosen = [row[0] for row in alternatives.stages]
    assert slowest_path_ticks(alternatives, chosen) <= step_ticks(alternatives, chosen)

    s, first = alternatives.schedule, chosen[0]
    slow = first._replace(backward_ticks=10**6, stage_ticks=first.forward_ticks + 10**6)
    others = [
        o._replace(forward_ticks=1, backward_ticks=1, weight_ticks=0, stage_ticks=2) for o in chosen[1:]
    ]
    if not s.gpipe and not s.split_backward and s.m > s.p:
        assert slowest_path_ticks(alternatives, [slow, *others]) == step_ticks(alternatives, [slow, *others])
