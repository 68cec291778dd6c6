"""What holds for all published runs at once: these tests share one pass over them."""

import pytest

from benchmarks.accuracy.fitting.coefficients import coefficients_of
from benchmarks.accuracy.fitting.kept import KEPT, load_left_out
from benchmarks.accuracy.fitting.leaving import KEYS, observations_of
from tests.support.all_runs import all_outcomes

pytestmark = pytest.mark.slow


def test_no_coefficient_fitted_on_runs_serves_a_single_source():
    """What one publication alone would set is shared with other stacks, or it is a guess."""
    listed = coefficients_of(all_outcomes())
    thin = [x for x in listed if x.fitted_on_runs and x.thin]

    assert [(x.file, x.name) for x in thin] == []


def test_the_kept_rows_are_of_the_runs_of_today():
    """Every kept row is a complete run with the step time that it had; few runs are newer than the rows."""
    today = {x.id: x for x in observations_of(all_outcomes())}
    for by in KEYS:
        kept = {x.id: x.measured for x in load_left_out(KEPT / f"{by}.csv")}
        assert kept == {key: pytest.approx(today[key].seconds, rel=1e-4) for key in kept}
        assert len(kept) > 0.8 * len(today)
