"""Recompute that hides the gradient reduction: what the menus leave out is never needed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoplan.catalog import resolve_job
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.stage_times import end_of_step, stage_backward
from autoplan.schema.job import JobSpec, Workload
from autoplan.search.alternatives.fastest_alternatives import alternatives_of
from autoplan.search.alternatives.reduction_overlap import with_more_reduction_overlap
from autoplan.search.alternatives.stage_alternatives import Scale
from autoplan.search.space.candidate_space import space_of
from autoplan.search.space.choices import recompute_modes
from autoplan.search.space.priced_candidates import priced, sized

BUSY = 2**36


def slow_job():
    """Return a job whose reductions are long: short sequences on two nodes, few microbatches."""
    workload = Workload(sequence_length=128, global_batch_size=16)
    spec = JobSpec(
        kind="training",
        model="llama3-8b",
        hardware="8x-l40s",
        devices=16,
        stack="analytic",
        workload=workload,
    )
    return resolve_job(spec)


def mixes_of(group, position, stage, layers, limit):
    """Return (backward, tail) of every mix of a stage that fits, in seconds."""
    counts = np.array([(s, f) for s, f in itertools.product(range(layers + 1), repeat=2) if s + f <= layers])
    mix = dict(zip(("selective", "full"), counts.T.astype(float), strict=True))
    here, n = group.stages.take((position, stage)), np.array(float(layers))
    _, fits = stage_fits(here.memory, n, mix, limit)
    backward, tail = stage_backward(here, n, mix) / group.v[position], end_of_step(here, n, mix).total
    return [(b, t) for b, t, fit in zip(backward, tail, fits, strict=True) if fit]


@pytest.mark.parametrize("pp", [2, 4])
def test_every_mix_has_an_option_as_good(pp):
    """As quick a backward, and a tail as short or no longer than the first stage's least."""
    job = slow_job()
    candidates = next(c for c in space_of(job).groups if c.pp == pp)
    (group,) = sized(job, candidates, recompute_modes(job), even=False)
    group = priced(job, group, machine_of(job))
    limit = memory_limit_bytes(job)
    scale = Scale.of(100.0, limit)
    held = group.layers // pp
    offered = np.where(np.isin(np.arange(1, group.layers + 1), [1, held]), 1.0, np.inf)
    more = 0
    for i in np.flatnonzero((group.m <= pp) & (group.v == 1) & ~group.gpipe):
        menu = alternatives_of(group, int(i), limit, np.tile(offered, (pp, 1)), scale)
        if menu.empty:
            continue
        longer = with_more_reduction_overlap(menu, group, int(i), limit, BUSY, scale)
        more += longer != menu
        enough = min(o.end_of_step_ticks for o in menu.stages[0]) + 1
        for stage in range(1, pp):
            for b, t in mixes_of(group, int(i), stage, held, limit):
                backward, tail = b / scale.tick_seconds + 1, max(t / scale.tick_seconds + 1, enough)
                assert any(
                    o.backward_ticks <= backward and o.end_of_step_ticks <= tail for o in longer.stages[stage]
                )
    assert more > 0
