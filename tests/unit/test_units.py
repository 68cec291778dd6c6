"""Quantities: what they mean, what is refused, and how numbers are printed."""

import pytest

from autoplan.units import (
    DIMENSIONS,
    UnitError,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_share,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "dimension", "expected"),
    [
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("80GiB", "bytes", 80 * 2**30),
        ("80\N{NO-BREAK SPACE}GiB", "bytes", 80 * 2**30),
        ("1 KB", "bytes", 1e3),
        ("1 kB", "bytes", 1e3),
        ("1 PiB", "bytes", 2**50),
        ("0 B", "bytes", 0),
        ("3.35 TB/s", "bytes/s", 3.35e12),
        ("400 Gb/s", "bytes/s", 50e9),
        ("400 Gbit/s", "bytes/s", 50e9),
        ("400 GB/s", "bytes/s", 400e9),
        ("1 GiB/s", "bytes/s", 2**30),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("1.1 EFLOP/s", "FLOP/s", 1.1e18),
        ("5 us", "seconds", 5e-6),
        ("5 \N{MICRO SIGN}s", "seconds", 5e-6),
        ("5 \N{GREEK SMALL LETTER MU}s", "seconds", 5e-6),
        ("2 min", "seconds", 120),
        ("6 %", "share", 0.06),
        ("6%", "share", 0.06),
        (".5 kW", "watts", 500),
        ("4e2 W", "watts", 400),
        ("  400  W ", "watts", 400),
        ("-1 W", "watts", -1),
    ],
)
def test_quantity_has_the_size_that_its_unit_says(text, dimension, expected):
    """A quantity is its number times its unit, decimal and binary, bits and bytes apart."""
    assert parse_quantity(text, dimension) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("value", [80, 80.5, "80", "-1", "1e9", " 7 ", 0])
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_bare_number_is_refused_with_an_example(value, dimension):
    """A number without a unit is an error that shows how to write it."""
    with pytest.raises(UnitError, match=r"has no unit: write for example \d"):
        parse_quantity(value, dimension)


@pytest.mark.parametrize(
    ("text", "dimension", "said"),
    [
        ("80 GB/s", "bytes", "'GB/s' measures bytes/s, not bytes"),
        ("80 GB", "bytes/s", "'GB' measures bytes, not bytes/s"),
        ("80 Gb", "bytes", "'Gb' is not a unit"),
        ("80 gib", "bytes", "'gib' is not a unit"),
        ("80 TFLOPS", "FLOP/s", "'TFLOPS' is not a unit"),
        ("20 S", "seconds", "'S' is not a unit"),
        ("lots", "bytes", "'lots' is not a number with a unit"),
        ("", "bytes", "'' is not a number with a unit"),
        ("1 2 GB", "bytes", "not a number with a unit"),
        ("1,5 GB", "bytes", "not a number with a unit"),
        ("nan GB", "bytes", "not a number with a unit"),
        ("inf GB", "bytes", "not a number with a unit"),
        ("\N{ARABIC-INDIC DIGIT THREE} GB", "bytes", "not a number with a unit"),
        ("1e999 GB", "bytes", "'1e999 GB' is too large"),
        (True, "bytes", "a value of type bool has no unit"),
        (None, "bytes", "a value of type NoneType has no unit"),
        (["80 GB"], "bytes", "a value of type list has no unit"),
        pytest.param(10**5000, "bytes", "of type int has no unit", id="huge number"),
        pytest.param("9" * 100_000 + " x y", "bytes", "'9{57}\\.{3}' is not a number", id="long text"),
    ],
)
def test_what_is_no_quantity_is_refused_in_a_sentence(text, dimension, said):
    """Unknown units, other dimensions and odd numbers are refused with the reason."""
    with pytest.raises(UnitError, match=said):
        parse_quantity(text, dimension)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.9, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (80 * 2**30, "80.0 GiB"),
        (-3 * 2**30, "-3.0 GiB"),
        (5000 * 2**50, "5000.0 PiB"),
    ],
)
def test_bytes_are_printed_with_the_prefix_that_fits(size, expected):
    """A size takes the largest binary prefix that leaves at least one, rounding included."""
    assert format_bytes(size) == expected


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0, "0 B/s"),
        (0.25, "0.25 B/s"),
        (999.4, "999 B/s"),
        (999.9, "1 kB/s"),
        (999.9e9, "1 TB/s"),
        (-2e9, "-2 GB/s"),
        (1.2345e18, "1230 PB/s"),
    ],
)
def test_rates_are_printed_without_an_exponent(rate, expected):
    """A rate takes the decimal prefix that fits, and no exponent at the edges."""
    assert format_rate(rate, "B/s") == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.00 s"),
        (12.3456, "12.35 s"),
        (0.99999, "1.00 s"),
        (0.99, "990.0 ms"),
        (0.000999999, "1.0 ms"),
        (5e-6, "5.0 us"),
        (5e-9, "5 ns"),
        (-0.5, "-500.0 ms"),
    ],
)
def test_durations_are_printed_in_the_unit_that_fits(seconds, expected):
    """A duration never rounds to a thousand of its unit, nor to nothing."""
    assert format_seconds(seconds) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (999.9, "1 k"),
        (999_999, "1 M"),
        (8.03e9, "8.03 B"),
        (4e15, "4000 T"),
    ],
)
def test_counts_are_printed_in_short(count, expected):
    """A count takes the suffix that fits, and no exponent at the edges."""
    assert format_count(count) == expected


def test_shares_are_printed_as_per_cent():
    """A share of one is printed in per cent."""
    assert format_share(1) == "100.0 %"


def test_no_unit_belongs_to_two_dimensions():
    """A unit says alone what it measures."""
    units = [unit for table in DIMENSIONS.values() for unit in table]

    assert len(units) == len(set(units))
