"""What holds for every matrix product: brute force agrees, bounds bound, solved extents are exact."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.answers.gemm.single_product import GemmQuestion, ProductSettings, pricing_job
from autoplan.costs.device.machine import ideal, machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.matmul.distributed_product import Terms, scheme_times
from autoplan.costs.matmul.product import (
    Product,
    element_size,
    hbm_bytes,
    intensity,
    largest_extent,
    least_words,
    least_words_of_any_memory,
    ridge_point,
    smallest_compute_bound,
    with_extent,
)
from autoplan.costs.matmul.product_costs import (
    block_bytes,
    forward_seconds,
    inference_tensors,
    needed_memory,
    segment_bytes,
    training_events,
)
from autoplan.search.matmul import SchemeQuestion, choose_scheme, priced_schemes, scheme_space
from tests.support.caching_allocator_model import CachingAllocator

SCHEMES = ("batch", "rows", "columns", "inner", "summa", "cannon", "2.5d", "3d")
HARDWARE = (("dgx-a100-80gb", 4), ("dgx-h100", 8), ("2x-rtx4090", 2), ("selene", 16), ("selene", 64))
WIDE = st.integers(1, 200_000)
FORMATS = st.sampled_from(["bf16", "fp16", "fp32"])
EXTENTS = st.sampled_from(["m", "n", "k"])


@cache
def job_of(hardware, devices, operands="bf16", memory=None):
    """Return the job that prices products."""
    given_settings = ProductSettings(operands=operands, memory=memory)
    return pricing_job(GemmQuestion(1, 1, 1, hardware=hardware, devices=devices, settings=given_settings))


@st.composite
def questions(draw):
    """Draw a product on several devices, with its candidates priced."""
    job = job_of(*draw(st.sampled_from(HARDWARE)))
    product = Product(
        draw(WIDE), draw(WIDE), draw(WIDE), batch=draw(st.sampled_from([1, 1, 3, 8])), partial=draw(FORMATS)
    )
    start = draw(st.sampled_from(["one-copy", "in-place"]))
    terms = Terms(start, draw(st.sampled_from(["sharded", "replicated"])))
    question = SchemeQuestion(product, terms, job, machine_of(job), 8.0 * 2**20)
    space = scheme_space(product, job.cluster.devices, job.cluster.node.devices, terms)
    return question, space


@settings(max_examples=25, deadline=None)
@given(questions(), st.floats(0.0, 1.3), st.sets(st.sampled_from(SCHEMES), max_size=3))
def test_the_chosen_scheme_is_that_of_brute_force(drawn, share, allowed):
    """The choice is the fastest candidate that fits and is allowed, or its rules exclude all of them."""
    question, space = drawn
    if not len(space):
        return
    priced = priced_schemes(question, space)
    low, high = float(np.min(priced.memory.needed)), float(np.median(priced.memory.needed))
    limit = low + (share - 0.2) * max(high - low, 2.0**20)
    chosen = choose_scheme(priced, limit, tuple(sorted(allowed)))
    rows = list(zip(priced.times.seconds, priced.memory.needed, priced.names, strict=True))
    kept = {"memory": [x[1] <= limit for x in rows], "scheme": [not allowed or x[2] in allowed for x in rows]}
    feasible = [x[:2] for x, *keeps in zip(rows, *kept.values(), strict=True) if all(keeps)]
    assert chosen.candidates == len(rows)
    if feasible:
        assert rows[chosen.index][:2] == min(feasible)
        assert chosen.seconds == min(feasible)[0]
        return

    rules = [kept[rule] for rule in chosen.conflict]
    assert chosen.index is None
    assert rules
    assert not any(map(all, zip(*rules, strict=True)))
    assert all(any(kept[rule]) for rule in chosen.conflict) or len(rules) == 1


@settings(max_examples=40, deadline=None)
@given(questions())
def test_no_scheme_sends_less_than_the_lower_bound(drawn):
    """Bytes of each candidate are at least the bound of Al Daas et al. and of Irony et al. (one copy)."""
    question, space = drawn
    product = replace(question.product, batch=1)
    one = replace(question, product=product, terms=Terms("one-copy", question.terms.result))
    devices = question.job.cluster.devices
    space = scheme_space(product, devices, question.job.cluster.node.devices, one.terms)
    if not len(space):
        return
    priced = priced_schemes(one, space)
    element = float(min(element_size(x) for x in (product.operands, product.output, product.partial)))
    for i in np.argsort(priced.bytes)[:20]:
        memory = float(priced.memory.tensors[i]) / element
        bound = element * least_words(product.m, product.n, product.k, devices, memory)

        assert priced.bytes[i] >= bound * (1 - 1e-9)


@given(WIDE, WIDE, WIDE, st.integers(1, 4096))
def test_the_lower_bound_is_continuous_between_its_cases(m, n, k, p):
    """At the numbers of devices where another extent is split the bound does not jump."""
    x, y, z = sorted((m, n, k), reverse=True)
    for edge in (x / y, x * y / z**2):
        below, above = (least_words_of_any_memory(m, n, k, edge * f) for f in (1 - 1e-9, 1 + 1e-9))

        assert below == pytest.approx(above, rel=1e-5, abs=1e-5 * (x * y + x * z + y * z) / edge)
    assert least_words_of_any_memory(m, n, k, p) >= 0.0
    assert least_words_of_any_memory(m, n, k, 1) == pytest.approx(0.0, abs=1e-6 * x * y)


@settings(max_examples=40, deadline=None)
@given(questions())
def test_times_lie_between_the_machine_at_its_limits_and_no_overlap(drawn):
    """R9: at theoretical limits nothing is slower, and without overlap nothing is faster."""
    question, space = drawn
    if not len(space):
        return
    times = scheme_times(space, question.product, question.terms, question.machine)
    limits = ideal(question.machine, question.job)
    least = scheme_times(space, question.product, question.terms, limits)

    assert (times.overlapped <= times.serial * (1 + 1e-12)).all()
    assert (least.seconds <= times.seconds * (1 + 1e-9)).all()
    assert (times.compute <= times.overlapped * (1 + 1e-12)).all()


@settings(max_examples=30, deadline=None)
@given(WIDE, WIDE, FORMATS, EXTENTS, st.booleans(), st.sampled_from(["a100-sxm4-80gb", "rtx-4090", "mi300x"]))
def test_the_largest_extent_fits_and_the_next_does_not(one, other, operands, extent, training, device):
    """The solved extent is exact over the integers, for inference and for training."""
    settings_of = ProductSettings(operands=operands)
    job = pricing_job(GemmQuestion(1, 1, 1, device=device, settings=settings_of))
    first, second = [name for name in ("m", "n", "k") if name != extent]
    product = Product(1, 1, 1, operands=operands, output=operands)
    product = with_extent(with_extent(product, first, one), second, other)

    def fits(value):
        asked = with_extent(product, extent, value)
        events = training_events(asked, job, (0.0, 0.0)).values()
        tensors = list(events) if training else [inference_tensors(asked, (0.0, 0.0))]
        return all(needed_memory(live, job).fits for live in tensors)

    largest = largest_extent(fits)

    assert largest == 0 or fits(largest)
    assert not fits(largest + 1)


@given(WIDE, WIDE, EXTENTS, st.sampled_from(["bf16", "fp8", "mxfp8", "nvfp4", "fp32"]), st.booleans())
def test_the_smallest_compute_bound_extent_is_exact(one, other, extent, operands, residual):
    """Its intensity is at least the ridge point, and that of the extent below it is not."""
    first, second = [name for name in ("m", "n", "k") if name != extent]
    product = Product(1, 1, 1, operands=operands, residual=residual)
    product = with_extent(with_extent(product, first, one), second, other)
    ridge = ridge_point(989e12, 3.35e12)
    smallest = smallest_compute_bound(product, extent, ridge)
    if smallest is None:
        assert intensity(with_extent(product, extent, 2**50)) < ridge
        return

    assert intensity(with_extent(product, extent, smallest)) >= ridge
    assert smallest == 1 or intensity(with_extent(product, extent, smallest - 1)) < ridge


@settings(max_examples=40, deadline=None)
@given(WIDE, WIDE, WIDE, EXTENTS, st.integers(1, 4))
def test_a_larger_product_takes_no_less_time_traffic_or_memory(m, n, k, extent, times):
    """Time, HBM traffic and memory do not fall as an extent grows."""
    job = job_of("dgx-a100-80gb", 4)
    machine = machine_of(job)
    small = Product(m, n, k)
    large = with_extent(small, extent, times * getattr(small, extent) + 1)

    assert forward_seconds(small, machine) <= forward_seconds(large, machine) * (1 + 1e-9)
    assert hbm_bytes(small) < hbm_bytes(large)
    needs = [needed_memory(inference_tensors(x, (0.0, 0.0)), job).needed for x in (small, large)]
    assert needs[0] <= needs[1]


SIZES = st.lists(st.one_of(st.integers(0, 2**21), st.integers(0, 2**25), st.integers(0, 2**40)), max_size=8)


@given(SIZES)
def test_what_is_reserved_is_no_less_than_the_allocator_reserves(sizes):
    """Segments of their own hold at least what PyTorch's rules make of the same tensors, in any order."""
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)

    assert allocator.allocated == block_bytes(sizes).sum()
    assert allocator.reserved <= segment_bytes(sizes).sum()
    if min(sizes, default=0) >= 20 * 2**20:
        assert allocator.reserved == segment_bytes(sizes).sum()


@given(SIZES)
def test_what_is_reserved_holds_what_is_allocated(sizes):
    """A segment holds its block, a block its tensor, and neither shrinks as a tensor grows."""
    ordered = np.sort(np.array(sizes, dtype=np.float64))
    blocks, segments = block_bytes(ordered), segment_bytes(ordered)

    assert (ordered <= blocks).all()
    assert (blocks <= segments).all()
    assert (np.diff(blocks) >= 0).all()
    assert (np.diff(segments) >= 0).all()


def test_the_limit_is_that_of_any_job():
    """A product asks for usable memory less headroom where a training job does, and a limit of its own."""
    job = job_of("dgx-a100-80gb", 4)

    assert memory_limit_bytes(job) == job.cluster.device.memory.usable.value
    assert memory_limit_bytes(job_of("dgx-a100-80gb", 4, "bf16", "10 GiB")) == 10 * 2**30
