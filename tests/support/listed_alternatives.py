"""Alternatives of stages that are few enough for all their layouts to be tried."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from autoplan.schema.recompute import MODES
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, step_ticks
from autoplan.search.space.priced_candidates import Schedule

__all__ = ["all_layouts", "alternative", "candidates"]


def alternative(*numbers: int, **recomputed: int) -> Alternative:
    """Return an alternative of these fields, with as many layers ``recomputed`` by mode."""
    return Alternative(*numbers, recomputed=tuple(recomputed.get(mode.name, 0) for mode in MODES))


@st.composite
def candidates(draw, most_stages=4, virtual=True):
    """Return alternatives of 1 to 3 layers a stage, each in one or two recompute mixes, and layers in all."""
    p = draw(st.integers(2, most_stages))
    v = draw(st.sampled_from([1, 2])) if virtual else 1
    m = draw(st.integers(1, 4)) * p + (draw(st.integers(1, p)) if v == 1 else 0)
    placed = draw(st.booleans())
    rows = []
    for s in range(p):
        row = []
        firsts = range(s, min(3 * s, s + 2) + 1) if placed else [-1]
        for first, layers in itertools.product(firsts, draw(st.sets(st.integers(1, 3), min_size=1))):
            for full in range(draw(st.integers(1, 2))):
                forward = layers * draw(st.integers(10, 30))
                backward = layers * draw(st.integers(20, 60)) + 9 * full
                times = forward, backward, forward + backward, draw(st.integers(0, 200))
                row.append(alternative(layers, *times, draw(st.integers(1, 40)), first, full=full))
        rows.append(tuple(row))
    schedule = Schedule(p, m, v, gpipe=False)
    return Alternatives(tuple(rows), schedule, placed=placed), draw(st.integers(p, 3 * p))


def all_layouts(alternatives, layers):
    """Return the step, the memory and the alternatives of every layout, the best first."""
    layouts = [((), 0)]
    for row in alternatives.stages:
        layouts = [
            ((*chosen, o), through + o.layers)
            for chosen, through in layouts
            for o in row
            if not alternatives.placed or o.first == through
        ]
    complete = [chosen for chosen, through in layouts if through == layers]
    priced = [(step_ticks(alternatives, x), max(o.memory_ticks for o in x), x) for x in complete]
    return sorted(priced, key=lambda layout: layout[:2])
