"""Each scheme executed on 4, 8 and 9 simulated ranks: results, and what was counted beside predictions."""

import numpy as np
import pytest

from autoplan.costs.device.machine import Links
from autoplan.costs.matmul.distributed_product import (
    Terms,
    rounds_of,
    scheme_name,
    scheme_tensors,
    sent_bytes,
    sent_messages,
    transfers_of,
)
from autoplan.costs.matmul.product import Product
from autoplan.search.matmul import scheme_space
from tests.support.simulated_ranks import COLUMNS, INNER, ROWS, Grid, assembled, executed

#: Multiples of all that 4, 8 and 9 ranks split them into, and wide enough for several panels.
M, N, K = 72, 144, 864
MOST_STEPS = 3
#: The same for batches, on 4 and 8 ranks.
SMALL = (8, 24, 144)
FORMATS = {"fp32": np.float32, "fp16": np.float16}


def candidates(product, ranks, terms, per_node=64):
    """Yield each candidate whose extents are multiples of their parts, with its arrays of length one."""
    space = scheme_space(product, ranks, per_node, terms)
    for i in range(len(space)):
        one = space.take(np.array([i]))
        grid = Grid(
            parts=tuple(int(getattr(one, x)[0]) for x in ("batch", "rows", "columns", "inner")),
            strides=tuple(int(getattr(one, f"{x}_stride")[0]) for x in ("batch", "rows", "columns", "inner")),
            steps=int(one.steps[0]),
            shifted=bool(one.shifted[0]),
            together=bool(one.together[0]),
        )
        depth = product.k // grid.parts[INNER] / grid.steps
        even = depth % grid.parts[ROWS] == depth % grid.parts[COLUMNS] == 0
        if (even or grid.shifted) and grid.steps <= MOST_STEPS and not one.overlapped[0]:
            yield one, grid


def predicted(one, product, terms):
    """Return bytes and messages that a rank sends, as the cost model says."""
    transfers = transfers_of(one, product, terms)
    rounds = float(rounds_of(one, product)[0])
    return (
        rounds * sum(float(sent_bytes(x)[0]) for x in transfers),
        rounds * sum(float(sent_messages(x)[0]) for x in transfers),
    )


def operands(batch, kind=np.float32, extents=(M, N, K)):
    """Return A and W whose product has entries of about 1."""
    generator = np.random.default_rng(0)
    m, n, k = extents
    a = generator.standard_normal((batch, m, k)) * k**-0.5
    w = generator.standard_normal((batch, k, n))
    return a.astype(kind), w.astype(kind)


@pytest.mark.parametrize("replicated", [False, True], ids=["sharded", "replicated"])
@pytest.mark.parametrize("ranks", [4, 8, 9])
def test_every_candidate_gives_the_product_and_sends_what_is_predicted(ranks, replicated):
    """Results equal the plain product; bytes and messages of the busiest rank are those of the formulas."""
    terms = Terms("one-copy", "replicated" if replicated else "sharded")
    product = Product(M, N, K, operands="fp32", output="fp32", partial="fp32")
    a, w = operands(1)
    plain = np.matmul(a.astype(np.float64), w.astype(np.float64))
    names = set()
    for one, grid in candidates(product, ranks, terms):
        blocks, counter = executed(a, w, grid, replicated=replicated)
        all_inner = replicated and grid.parts[INNER] == ranks
        y = blocks[ranks - 1][(0,)] if all_inner else None
        if y is None:
            y = assembled(blocks, grid, plain.shape, holder=ranks - 1 if replicated else None)
        names.add(scheme_name(*grid.parts, shifted=grid.shifted))

        assert np.abs(y - plain).max() < 1e-5, grid
        assert (counter.sent.max(), counter.messages.max()) == predicted(one, product, terms), grid

    assert names == {"rows", "columns", "inner", "summa", "3d"} | ({"2.5d"} if ranks == 8 else {"cannon"})


def test_transfers_leave_the_node_where_they_are_said_to():
    """On two nodes of four ranks, bytes cross where a group does and only there, in each order of axes."""
    product = Product(M, N, K, operands="fp32", output="fp32", partial="fp32")
    a, w = operands(1)
    links = Links(4, 1.0, 1.0, False, 0.0, 1.0, 0.0, 0.0, ())
    seen = {}
    for one, grid in candidates(product, 8, Terms(), per_node=4):
        if grid.steps > 1:
            continue
        _, counter = executed(a, w, grid, per_node=4)
        crossing = [
            float(sent_bytes(x)[0])
            for x in transfers_of(one, product, Terms())
            if x.group.ranks[0] > x.group.ranks_in_node(links)[0]
        ]

        assert (counter.across.max() > 0) == (sum(crossing) > 0), grid
        assert counter.across.max() <= sum(crossing), grid
        seen.setdefault((grid.parts, grid.shifted), set()).add(int(counter.across.sum()))

    assert sum(len(found) > 1 for found in seen.values()) > 3


@pytest.mark.parametrize("ranks", [4, 8])
def test_batches_are_split_aggregated_or_run_one_by_one(ranks):
    """Products of a batch that communicate together send the same bytes in fewer messages."""
    product = Product(*SMALL, batch=8, operands="fp32", output="fp32", partial="fp32")
    a, w = operands(8, extents=SMALL)
    plain = np.matmul(a.astype(np.float64), w.astype(np.float64))
    counts = {}
    for one, grid in candidates(product, ranks, Terms()):
        blocks, counter = executed(a, w, grid)

        assert np.abs(assembled(blocks, grid, plain.shape) - plain).max() < 1e-5, grid
        assert (counter.sent.max(), counter.messages.max()) == predicted(one, product, Terms()), grid
        counts[grid.parts, grid.steps, grid.shifted, grid.together] = counter

    pairs = [(counts[(*key[:3], True)], one_by_one) for key, one_by_one in counts.items() if not key[3]]
    assert len(pairs) > 5
    for aggregated, one_by_one in pairs:
        assert aggregated.sent.max() == one_by_one.sent.max()
        assert aggregated.messages.max() < one_by_one.messages.max() or one_by_one.messages.max() == 0
    assert counts[(ranks, 1, 1, 1), 1, False, True].sent.max() == 0


@pytest.mark.parametrize("ranks", [4, 8, 9])
def test_partial_sums_in_fp16_send_half_and_lose_digits(ranks):
    """Accumulation in fp32 is nearer to the product; in fp16 what is reduced has half the bytes."""
    a, w = operands(1, np.float16)
    plain = np.matmul(a.astype(np.float64), w.astype(np.float64))
    grid = Grid((1, 1, 1, ranks), (1, 1, 1, 1), steps=1, shifted=False, together=True)
    errors, sent = {}, {}
    for name, kind in FORMATS.items():
        product = Product(M, N, K, operands="fp16", output="fp16", partial=name)
        one = next(one for one, found in candidates(product, ranks, Terms()) if found.parts == grid.parts)
        blocks, counter = executed(a, w, grid, partial=kind, output=np.float64)
        errors[name] = np.abs(assembled(blocks, grid, plain.shape) - plain).max()
        sent[name] = counter.sent.max()

        assert (counter.sent.max(), counter.messages.max()) == predicted(one, product, Terms())

    assert sent["fp32"] == 2 * sent["fp16"]
    assert errors["fp32"] < 1e-5
    assert 10 * errors["fp32"] < errors["fp16"] < 0.02


@pytest.mark.parametrize("ranks", [4, 8, 9])
def test_shares_of_the_operands_are_one_copy_of_each(ranks):
    """What ranks hold of A, W and Y before panels move adds up to the operands."""
    product = Product(M, N, K, operands="fp32", output="fp32", partial="fp32")
    for one, _ in candidates(product, ranks, Terms()):
        tensors = scheme_tensors(one, product, Terms())

        assert [ranks * float(tensors[name][0]) for name in "AWY"] == [4 * M * K, 4 * K * N, 4 * M * N]
