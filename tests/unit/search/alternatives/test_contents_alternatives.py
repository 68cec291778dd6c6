"""Prices of recompute mixes: the same under any limit, in any order of asking, and the fastest that fits."""

import numpy as np
import pytest

from autoplan import load_job
from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import machine_of
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.stage_times import stage_backward
from autoplan.schema.layout import parse_layout
from autoplan.search.alternatives.contents_alternatives import MixPrices
from autoplan.search.alternatives.stage_alternatives import Scale, mixes
from autoplan.search.space.choices import recompute_modes
from autoplan.search.space.priced_candidates import all_priced, sized

LIMIT = 80e9


@pytest.fixture(scope="module")
def group():
    """One candidate of a model with dense and MoE layers, priced."""
    job = load_job("deepseek-v3-256x-h100")
    one = Candidates.of([parse_layout("tp=1,pp=16,ep=16,mbs=1,zero=1", layers=61, devices=256)])
    (only,) = all_priced(job, sized(job, one, recompute_modes(job), even=False), machine_of(job))
    return only


@pytest.fixture(scope="module")
def contents(group):
    """Every content of up to seven layers: its stage, and its order of layer types."""
    places = group.places
    small = np.flatnonzero(places.layers <= 7)
    return places.stages[small], places.orders[small]


def test_neither_earlier_limits_nor_earlier_contents_change_an_answer(group, contents):
    """Prices that are remembered give what fresh ones do, and fewer contents fit into less memory."""
    scale = Scale.of(60.0, LIMIT)
    stage, order = contents
    used = MixPrices(group, 0, scale)
    used.fastest(stage[::3], order[::3], LIMIT)
    limits = [LIMIT * share for share in (0.9, 0.5, 0.7, 0.2)]
    answers = [used.fastest(stage, order, limit) for limit in limits]
    assert answers == [MixPrices(group, 0, scale).fastest(stage, order, limit) for limit in limits]
    fitting = [sum(one is not None for one in answer) for answer in answers]
    assert fitting[0] > fitting[2] > fitting[1] >= fitting[3]


def test_the_answer_is_the_fastest_mix_that_fits_of_all(group, contents):
    """Every mix is priced on its own here, as ``evaluate`` would."""
    limit, places = 0.6 * LIMIT, group.places
    chosen = MixPrices(group, 0, Scale.of(60.0, LIMIT)).fastest(*contents, limit)
    for stage, order, alternative in list(zip(*contents, chosen, strict=True))[::7]:
        row = places.rows[stage]
        at = np.flatnonzero(row.orders[row.content] == order)[0]
        layers = int(row.layers[at])
        listed = mixes(layers, group.modes, 1)
        coefficients = group.holding(0, int(stage))(int(row.first[at]), layers, listed)
        _, fits = stage_fits(coefficients.memory, np.array(float(layers)), listed, limit)
        seconds = stage_backward(coefficients, np.array(float(layers)), listed)
        if alternative is None:
            assert not fits.any()
            continue
        mix = np.logical_and.reduce([counts == alternative.count(mode) for mode, counts in listed.items()])
        assert (fits[mix] > 0).all()
        assert seconds[mix][0] <= seconds[fits > 0].min() * (1 + 1e-9)
