"""Attention of inference engines against measured kernels that the tables were not fitted to."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from autoplan.catalog import entry_names, load_entry
from autoplan.costs.serving.iteration.measured_kernels import table_seconds

POINTS = Path(__file__).resolve().parents[2] / "benchmarks" / "serving" / "data" / "kernel_points.csv"
TABLES = {
    (name, *table.key): table
    for name in entry_names("engine-kernels")
    for table in load_entry("engine-kernels", name).kernels
}
#: Kernels whose extents say all that their time depends on; experts have curves of their own.
SMOOTH = {"decode-attention": 0.06, "prefill-attention": 0.06, "latent-decode": 0.07, "latent-prefill": 0.06}


def errors():
    """Return the errors of points by kernel."""
    found = defaultdict(list)
    with POINTS.open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            key = (row["device"], row["engine"], row["kernel"], row["format"])
            table = TABLES[(*key, int(row["head_dim"]), int(row["window"]))]
            device = load_entry("device", row["device"])
            extents = tuple(np.array([float(row[axis])]) for axis in ("first", "second", "third"))
            seconds = float(table_seconds((table,), extents, device, device)[0])
            found[row["kernel"]].append(abs(seconds / (float(row["microseconds"]) * 1e-6) - 1))
    return found


ERRORS = errors()


@pytest.mark.parametrize("kernel", sorted(SMOOTH))
def test_a_table_predicts_kernels_that_it_was_not_fitted_to(kernel):
    """Half of the kernels left out are within a few percent."""
    assert len(ERRORS[kernel]) >= 20
    assert median(ERRORS[kernel]) <= SMOOTH[kernel]


@pytest.mark.parametrize("name", entry_names("engine-kernels"))
def test_all_reduces_take_no_less_for_larger_messages(name):
    """V2: the times of a table rise with its sizes."""
    for table in load_entry("engine-kernels", name).all_reduce:
        assert list(table.microseconds) == sorted(table.microseconds)


@pytest.mark.parametrize("name", entry_names("engine-kernels"))
def test_experts_take_no_less_for_more_tokens(name):
    """V2: each curve rises with its tokens."""
    for table in load_entry("engine-kernels", name).experts:
        for curve in table.microseconds:
            assert list(curve) == sorted(curve)
