"""Places of stages up to a number of layers: none that counts is missing."""

from __future__ import annotations

import numpy as np
import pytest

from autoplan.search.space.stage_contents import places_of

#: Two dense layers, then an MoE layer after each dense one, and windows by turns.
FIRST_DENSE, BY_TURNS = (0, 0) + (1,) * 30, (0, 1, 2, 1) * 8


def held(places, most):
    """Return first layer, number of layers and sequence of layer types of places up to ``most`` layers."""
    return [
        {
            (first, layers, order)
            for first, layers, order in zip(
                row.first.tolist(), row.layers.tolist(), row.orders[row.content].tolist(), strict=True
            )
            if layers <= most
        }
        for row in places.rows
    ]


@pytest.mark.parametrize("sequence", [FIRST_DENSE, BY_TURNS], ids=["first dense", "by turns"])
@pytest.mark.parametrize(("pp", "v"), [(2, 1), (4, 1), (4, 2), (8, 1)])
@pytest.mark.parametrize("most", [1, 5, 9, 16, 23, 32])
def test_places_up_to_a_number_of_layers_are_all_there(sequence, pp, v, most):
    """Each has the layers that it has among all places; contents are counted through over the stages."""
    whole = places_of(sequence, pp, v, even=False)
    few = whole.up_to(most)

    assert held(few, most) == held(whole, most)
    assert all(one <= other for one, other in zip(held(few, few.most), held(whole, few.most), strict=True))
    assert few.most >= min(most, whole.most)
    assert few.layers.max() == few.most
    assert few.starts == np.searchsorted(few.stages, range(pp)).tolist()
    assert few.contents == len(few.stages) == len(few.orders) == len(few.layers)


def test_few_layers_have_few_places():
    """Up to eight chunks nothing is rounded up; above, to multiples of eight."""
    whole = places_of(BY_TURNS, 2, 1, even=False)

    assert [whole.up_to(most).most for most in (1, 7, 8, 9, 17, 24, 25, 31)] == [1, 7, 8, 16, 24, 24, 31, 31]
    assert whole.up_to(31) is whole


def test_places_of_the_even_split_stay():
    """They are few, and one path needs all of them."""
    even = places_of(BY_TURNS, 4, 1, even=True)

    assert even.up_to(1) is even


def test_paths_within_a_number_of_layers_are_the_same():
    """The least sum over paths whose places have up to so many layers is that over all such paths."""
    rng = np.random.default_rng(7)
    whole = places_of(FIRST_DENSE, 4, 1, even=False)
    values = rng.uniform(1.0, 2.0, (5, whole.contents))
    few = whole.up_to(8)
    at = {key: i for i, key in enumerate(zip(whole.stages.tolist(), whole.orders.tolist(), strict=True))}
    same = values[:, [at[key] for key in zip(few.stages.tolist(), few.orders.tolist(), strict=True)]]
    short = np.where(whole.layers <= 8, values, np.inf)

    assert few.least_sum(same).tolist() == whole.least_sum(short).tolist()
    assert few.least_peak(same).tolist() == whole.least_peak(short).tolist()
