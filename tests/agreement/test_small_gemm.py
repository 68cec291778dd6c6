"""Small matrix products of inference engines against measured ones that the tables were not fitted to."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import entry_names, load_entry
from autoplan.costs.serving.least_times import gemm_light_seconds, ridge_tokens, table_gemm_seconds

POINTS = Path(__file__).resolve().parents[2] / "benchmarks" / "serving" / "data" / "gemm_points.csv"
TABLES = {
    (name, table.engine, table.weights): table
    for name in entry_names("engine-kernels")
    for table in load_entry("engine-kernels", name).gemm
}
#: Sweeps whose neighbouring shapes differ by a third: of the L40S because its cache holds many weights.
NOISY = {("b200-sxm-180gb", "vllm", "fp8"), ("l40s", "tensorrt-llm", "bf16")}


def small_gemm_seconds(m, n, k, table, device):
    """Return the time of a product by its table, at least its least time, as ``KernelPrices`` has it."""
    measured = float(table_gemm_seconds(np.asarray(float(m)), n, k, table, device))
    return max(measured, gemm_light_seconds(m, n, k, table.weights, device))


def errors():
    """Return the errors of each table; what a cache made faster than memory counts as its least time."""
    found = defaultdict(list)
    with POINTS.open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            key = (row["device"], row["engine"], row["weights"])
            device, shape = load_entry("device", row["device"]), [int(row[axis]) for axis in "mnk"]
            least = gemm_light_seconds(*shape, row["weights"], device)
            measured = max(float(row["microseconds"]) * 1e-6, least)
            found[key].append(abs(small_gemm_seconds(*shape, TABLES[key], device) / measured - 1))
    return found


ERRORS = errors()


@pytest.mark.parametrize("key", sorted(TABLES), ids="-".join)
def test_a_table_predicts_what_it_was_not_fitted_to(key):
    """The median error is at most 8 %, the mean 12 %; of the noisy sweep twice that."""
    factor = 2 if key in NOISY else 1

    assert len(ERRORS[key]) >= 15
    assert median(ERRORS[key]) <= 0.08 * factor
    assert mean(ERRORS[key]) <= 0.12 * factor


def test_all_points_together():
    """Over all devices, engines and formats half of the products are within 5 %."""
    assert median([error for group in ERRORS.values() for error in group]) <= 0.05


@given(
    key=st.sampled_from(sorted(TABLES)),
    shape=st.tuples(st.integers(1, 1024), st.integers(256, 100_000), st.integers(256, 60_000)),
    axis=st.integers(0, 2),
    factor=st.floats(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_products_are_slower_than_light_and_take_no_less_for_more_work(key, shape, axis, factor):
    """V1 and V2: never below bytes over bandwidth and FLOP over peak; monotone in m, n and k."""
    device, table = load_entry("device", key[0]), TABLES[key]
    larger = [int(size * (factor if at == axis else 1)) for at, size in enumerate(shape)]
    time = small_gemm_seconds(*shape, table, device)

    assert time >= gemm_light_seconds(*shape, key[2], device)
    assert small_gemm_seconds(*larger, table, device) >= time * (1 - 1e-9)


@pytest.mark.parametrize(
    ("device", "tokens"),
    [("a100-sxm4-80gb", 153), ("h100-sxm5-80gb", 295), ("h200-sxm-141gb", 206), ("b200-sxm-180gb", 281)],
)
def test_the_ridge_of_16_bits_and_of_fp8_is_the_same(device, tokens):
    """m* = P b / 2 W: half the bytes at twice the rate. int4 with 16-bit arithmetic has a quarter."""
    spec = load_entry("device", device)

    assert ridge_tokens("bf16", spec) == pytest.approx(tokens, abs=1.5)
    if spec.peak_flops("fp8"):
        assert ridge_tokens("fp8", spec) == pytest.approx(tokens, abs=1.5)
    assert ridge_tokens("int4-awq", spec) == pytest.approx(tokens / 4, rel=0.02)


def test_prefill_is_not_compute_bound_below_the_ridge():
    """With 128 new tokens reading the weights takes longer than computing, with 512 it is the other way."""
    device = load_entry("device", "h100-sxm5-80gb")
    for tokens, bound in ((128, "bytes"), (512, "rate")):
        least = gemm_light_seconds(tokens, 8192, 8192, "bf16", device)
        computing = 2 * tokens * 8192 * 8192 / device.peak_flops("bf16")
        assert (least > computing) == (bound == "bytes")
