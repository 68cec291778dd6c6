"""Measured tables: what a file may say, how shapes are read from them, and that time never falls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from autoplan.costs.device.kernel_tables import (
    attention_efficiency,
    attention_grid,
    attention_inside,
    gemm_efficiency,
    gemm_grid,
    gemm_inside,
    grid,
    interpolated,
    within,
)
from autoplan.errors import SpecError
from autoplan.schema.costmodel.kernel_spec import AttentionTable, GemmTable
from autoplan.schema.yaml.loader import load_model

GEMM = """
kind: measured
source: sweep
valid_for: bf16 products
outputs: [1048576, 4194304, 16777216]
inner: [512, 4096]
shares: [
  [0.2, 0.3],
  [0.4, 0.6],
  [0.6, 0.8]]
launch: 3 us
"""
WAVES = """
waves:
  multiprocessors: 100
  weight: 100 %
  tiles: [{rows: 256, columns: 128, rate: 100 %}]
"""
ATTENTION = """
valid_for: bf16, causal
launch: 9 us
forward:
  kind: measured
  source: sweep
  sequences: [1024, 4096]
  rows: [8, 32]
  shares: [[0.1, 0.2], [0.3, 0.5]]
backward: {kind: derived, source: paper, at: [1024, 4096], values: [0.5, 0.8]}
head_dim: {kind: derived, source: paper, at: [64, 128], values: [0.7, 1]}
"""
CASES = settings(max_examples=200, deadline=None)
EXTENT = st.integers(1, 200_000)
SHARE = st.floats(1e-3, 1.0)


def gemm(text=GEMM):
    """Return the table of products that ``text`` holds."""
    return load_model(text, GemmTable, name="table.yaml")


def attention(text=ATTENTION):
    """Return the table of attention that ``text`` holds."""
    return load_model(text, AttentionTable, name="table.yaml")


def refusal(text, model=GemmTable):
    """Return what is said about ``text``, which is not a table."""
    with pytest.raises(SpecError) as caught:
        load_model(text, model, name="table.yaml")
    return str(caught.value)


@st.composite
def gemm_tables(draw):
    """Draw a table of products, monotone or not, with waves or without."""
    outputs = sorted(draw(st.sets(st.integers(1, 2**32), min_size=1, max_size=4)))
    inner = sorted(draw(st.sets(st.integers(1, 2**15), min_size=1, max_size=4)))
    row = st.lists(SHARE, min_size=len(inner), max_size=len(inner))
    shares = draw(st.lists(row, min_size=len(outputs), max_size=len(outputs)))
    table = gemm(draw(st.sampled_from([GEMM, GEMM + WAVES, GEMM + WAVES.replace("100 %", "40 %")])))
    grown = {"outputs": tuple(outputs), "inner": tuple(inner), "shares": tuple(map(tuple, shares))}
    return gemm_grid(table.model_copy(update=grown))


def test_table_is_read_as_written():
    """Extents, shares and the launch come out of the file in base units."""
    table = gemm(GEMM + WAVES)

    assert table.outputs == (2**20, 2**22, 2**24)
    assert table.shares[1] == (0.4, 0.6)
    assert table.launch == pytest.approx(3e-6)
    assert table.waves.tiles[0].rows == 256
    assert attention().backward.values == (0.5, 0.8)


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("[512, 4096]", "[4096, 512]", "inner must ascend: 512 stands after 4096"),
        ("[512, 4096]", "[512, 512]", "inner must ascend: 512 stands after 512"),
        ("1048576,", "0,", "outputs"),
        ("[1048576, 4194304, 16777216]", "[]", "outputs"),
        (",\n  [0.6, 0.8]]", "]", "shares has 2 rows: `outputs` asks for 3"),
        ("[0.4, 0.6]", "[0.4]", "row 2 of shares has 1 entries: `inner` asks for 2"),
        ("0.8]", "1.1]", "shares"),
        ("0.2,", "0,", "shares"),
        ("source: sweep", "source: x", "source"),
        ("kind: measured", "kind: known", "kind"),
        ("launch: 3 us", "launch: 3", "launch"),
        ("valid_for: bf16 products", "valid: always", "valid"),
    ],
)
def test_bad_table_of_products_is_refused(good, bad, complaint):
    """What is wrong with a table is said by name, with what would be right."""
    assert good in GEMM
    assert complaint in refusal(GEMM.replace(good, bad))


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("[1024, 4096]\n  rows", "[4096, 1024]\n  rows", "sequences must ascend: 1024 stands after 4096"),
        ("[8, 32]", "[8]", "row 1 of shares has 2 entries: `rows` asks for 1"),
        ("[0.5, 0.8]", "[0.5]", "values has 1 entries: `at` asks for 2"),
        ("[64, 128]", "[128, 64]", "at must ascend: 64 stands after 128"),
        ("values: [0.7, 1]", "values: [0, 1]", "values"),
    ],
)
def test_bad_table_of_attention_is_refused(good, bad, complaint):
    """The same for attention and its ratios."""
    assert good in ATTENTION
    assert complaint in refusal(ATTENTION.replace(good, bad), AttentionTable)


def test_waves_need_tiles_that_are_no_faster_than_the_fastest():
    """A tile's rate is a share of the fastest one's, and there is at least one tile."""
    assert "rate" in refusal((GEMM + WAVES).replace("rate: 100 %", "rate: 120 %"))
    assert "rate" in refusal((GEMM + WAVES).replace("rate: 100 %", "rate: 0 %"))
    assert "tiles" in refusal(GEMM + WAVES.replace("[{rows: 256, columns: 128, rate: 100 %}]", "[]"))


def test_cells_are_met_and_the_way_between_them_is_logarithmic():
    """In a cell its own share; half way, in logarithms, the geometric mean of the neighbours."""
    table = gemm_grid(gemm())

    assert_allclose(gemm_efficiency(2048, 2048, [512, 4096], table), [0.4, 0.6])
    assert_allclose(gemm_efficiency(1024, 2048, 512, table), (0.2 * 0.4) ** 0.5)
    assert_allclose(gemm_efficiency(2048, 2048, (512 * 4096) ** 0.5, table), (0.4 * 0.6) ** 0.5)


def test_beyond_the_edges_the_share_stays():
    """A smaller or larger product reaches what the nearest edge of the table reaches."""
    table = gemm_grid(gemm())

    assert_allclose(gemm_efficiency([1, 2**20], [1, 2**20], [1, 2**20], table), [0.2, 0.8])


def test_inner_widths_below_the_table_fill_the_pipeline_as_often():
    """With a half width of 512, k = 256 takes (256 + 512)/(512 + 512) of the time of k = 512."""
    table = gemm_grid(gemm(), half_inner=512.0)
    k = np.array([64.0, 256.0, 512.0, 4096.0])

    shares = gemm_efficiency(2048, 2048, k, table)
    assert_allclose(shares[2:], [0.4, 0.6])
    assert_allclose(k[1] / shares[1] / (k[2] / shares[2]), 768 / 1024)
    assert (np.diff(k / shares) > 0).all()


def test_inside_says_where_the_table_was_measured():
    """Both the entries of the output and the inner width must lie within the table, edges included."""
    table = gemm_grid(gemm())

    inside = gemm_inside([1024, 1024, 4096, 1023], [1024, 1024, 4097, 1024], [512, 511, 512, 512], table)
    assert inside.tolist() == [True, False, False, False]
    assert attention_inside(2048, [4, 8, 32, 33], 128, attention_grid(attention())).tolist() == [
        False,
        True,
        True,
        False,
    ]
    assert not attention_inside(2048, 8, 256, attention_grid(attention()))


def test_table_of_one_cell_is_a_flat_number():
    """An axis may have a single extent."""
    table = grid([[4096]], [0.5])

    assert_allclose(interpolated(table, [1, 4096, 1e9]), 0.5)
    assert within(table, [1, 4096, 1e9]).tolist() == [False, True, False]


def test_shapes_are_broadcast():
    """Extents combine like arrays do."""
    table = gemm_grid(gemm(GEMM + WAVES))

    assert gemm_efficiency(np.ones((3, 1)), np.ones(4), 512.0, table).shape == (3, 4)
    assert attention_efficiency(1024, np.ones(5), 128, attention_grid(attention())).shape == (5,)


def test_a_share_that_would_shorten_the_time_is_lowered():
    """Four times the entries at five times the share would take less time: it takes the same."""
    table = gemm_grid(gemm(GEMM.replace("[0.2, 0.3]", "[0.08, 0.3]")))

    assert_allclose(gemm_efficiency([1024, 2048], [1024, 2048], 512, table), [0.08, 0.32])


def test_one_tile_more_than_a_wave_costs_a_second_wave():
    """100 tiles of 256 x 128 fill 100 multiprocessors; the 101st waits for a wave of its own."""
    table = gemm_grid(gemm(GEMM + WAVES))
    n = 128 * np.array([100, 101, 200])

    seconds = 256 * n / gemm_efficiency(256, n, 512, table)
    assert seconds[1] == pytest.approx(seconds[2])
    assert seconds[1] > 1.4 * seconds[0]


def test_tiles_lie_either_way():
    """Rows and columns of the output can change places."""
    table = gemm_grid(gemm(GEMM + WAVES))

    assert gemm_efficiency(300, 9000, 512, table) == gemm_efficiency(9000, 300, 512, table)


def test_a_wave_that_does_not_show_changes_nothing():
    """With a weight of zero the table is read at m n itself."""
    silent = gemm_grid(gemm(GEMM + WAVES.replace("weight: 100 %", "weight: 0 %")))

    assert_allclose(
        gemm_efficiency(300, 9000, 512, silent), gemm_efficiency(300, 9000, 512, gemm_grid(gemm()))
    )


@CASES
@given(gemm_tables(), EXTENT, EXTENT, EXTENT, st.integers(0, 2), st.integers(1, 10_000))
def test_a_larger_product_never_takes_less_time(table, m, n, k, axis, more):
    """Whatever a table holds, time grows with each extent, and the efficiency is a share."""
    grown = [m, n, k]
    grown[axis] += more
    shares = gemm_efficiency([m, grown[0]], [n, grown[1]], [k, grown[2]], table)
    before, after = np.array([float(m * n * k), float(np.prod(grown, dtype=np.float64))]) / shares

    assert np.all((shares > 0) & (shares <= 1))
    assert after >= before * (1 - 1e-9)


@CASES
@given(
    st.lists(SHARE, min_size=4, max_size=4),
    st.lists(st.floats(0.01, 3), min_size=2, max_size=2),
    st.tuples(EXTENT, EXTENT, st.integers(1, 512)),
    st.integers(0, 2),
    st.integers(1, 10_000),
    st.booleans(),
)
def test_longer_wider_and_more_attention_never_takes_less_time(cells, ratios, shape, axis, more, backward):
    """The same for attention at a given number of keys, forward and backward."""
    text = ATTENTION.replace("[[0.1, 0.2], [0.3, 0.5]]", str([cells[:2], cells[2:]]))
    table = attention_grid(attention(text.replace("[0.7, 1]", str(ratios))), backward=backward)
    grown = list(shape)
    grown[axis] += more
    points = [np.array(pair, dtype=np.float64) for pair in zip(shape, grown, strict=True)]
    shares = attention_efficiency(*points, table)
    before, after = np.prod(points, axis=0) / shares

    assert np.all((shares > 0) & (shares <= 1))
    assert after >= before * (1 - 1e-9)


def test_backward_and_head_size_scale_the_forward_share():
    """Ratios are read at their own extents and multiply the share."""
    table = attention_grid(attention())

    assert attention_efficiency(4096, 32, 128, table) == pytest.approx(0.5)
    back = attention_grid(attention(), backward=True)
    assert attention_efficiency(4096, 32, 128, back) == pytest.approx(0.4)
    assert attention_efficiency(4096, 32, 64, table) == pytest.approx(0.35)
