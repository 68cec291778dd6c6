"""Quantities with units: ``"3.35 TB/s"`` in a file, a float in base units inside.

Base units: byte, byte/s, FLOP/s, second, watt, joule, and 1 for shares. Decimal and binary prefixes
differ (``GB`` is 1e9 bytes, ``GiB`` is 2**30), and so do bits and bytes (``Gb/s`` is an eighth of
``GB/s``). A number without its unit is an error wherever a unit is needed.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal

Dimension = Literal["bytes", "bytes/s", "FLOP/s", "seconds", "share", "watts", "joules"]

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {f"{p}i": 2.0 ** (10 * (i + 1)) for i, p in enumerate("KMGTP")}
_PREFIXES: Final = {**_DECIMAL, **_BINARY}
_RATE_STEPS: Final = tuple((prefix, _DECIMAL[prefix]) for prefix in "PTGMk")
_BINARY_STEPS: Final = tuple(reversed(_BINARY.items()))
_COUNT_STEPS: Final = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def _scaled(stem: str, factor: float, prefixes: dict[str, float]) -> dict[str, float]:
    return {prefix + stem: scale * factor for prefix, scale in prefixes.items()}


#: Every unit that a dimension knows, and its size in base units.
DIMENSIONS: Final[dict[Dimension, dict[str, float]]] = {
    "bytes": _scaled("B", 1.0, _PREFIXES),
    "bytes/s": {
        **_scaled("B/s", 1.0, _PREFIXES),
        **_scaled("b/s", 1 / 8, _DECIMAL),
        **_scaled("bit/s", 1 / 8, _DECIMAL),
    },
    "FLOP/s": _scaled("FLOP/s", 1.0, {**_DECIMAL, "E": 1e18}),
    "seconds": {
        "ns": 1e-9,
        **dict.fromkeys(("us", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s"), 1e-6),
        "ms": 1e-3,
        "s": 1.0,
        "min": 60.0,
        "h": 3600.0,
    },
    "share": {"%": 0.01},
    "watts": {"W": 1.0, "kW": 1e3},
    "joules": {**_scaled("J", 1.0, _DECIMAL), **_scaled("Wh", 3600.0, _DECIMAL)},
}

_EXAMPLES: Final[dict[Dimension, str]] = {
    "bytes": "80 GiB or 80 GB",
    "bytes/s": "3.35 TB/s or 400 Gb/s",
    "FLOP/s": "312 TFLOP/s",
    "seconds": "20 s or 5 us",
    "share": "6 %",
    "watts": "400 W",
    "joules": "250 kWh",
}

# The pattern backtracks: a text without end must not reach it.
_LONGEST: Final = 100
_QUANTITY: Final = re.compile(
    r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(\S*)\s*"
)


class UnitError(ValueError):
    """A text that is not a quantity of the wanted dimension."""


def parse_quantity(text: object, dimension: Dimension) -> float:
    """Return the size of ``text`` in the base unit of ``dimension``.

    Raises UnitError, with an example of what would be right, for a bare number, an unknown unit,
    a unit of another dimension, anything that is not finite, and anything but 0 that a float takes for 0.

    >>> parse_quantity("80 GiB", "bytes") - parse_quantity("80 GB", "bytes")
    5899345920.0
    >>> parse_quantity("400 Gb/s", "bytes/s")
    50000000000.0
    >>> parse_quantity("6 %", "share")
    0.06
    """
    example = f"write for example {_EXAMPLES[dimension]}"
    if not isinstance(text, str):
        raise UnitError(f"{_quoted(text)} has no unit: {example}")
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise UnitError(f"{_quoted(text)} is not a number with a unit: {example}")
    unit = match[2]
    if not unit:
        raise UnitError(f"{_quoted(text)} has no unit: {example}")
    scale = DIMENSIONS[dimension].get(unit)
    if scale is None:
        raise UnitError(f"{_unknown_unit(unit, dimension)}: {example}")
    value = float(match[1]) * scale
    if not math.isfinite(value):
        raise UnitError(f"{_quoted(text)} is too large")
    if value == 0 and re.search("[1-9]", re.split("[eE]", match[1])[0]):
        raise UnitError(f"{_quoted(text)} is too small")
    return value


#: Units that a file is written in; of two texts of one length, the earlier unit's is taken.
_WRITTEN: Final[dict[Dimension, tuple[str, ...]]] = {
    "bytes": ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB", "B"),
    "bytes/s": ("TB/s", "GB/s", "MB/s", "B/s"),
    "FLOP/s": ("PFLOP/s", "TFLOP/s", "GFLOP/s", "FLOP/s"),
    "seconds": ("h", "min", "s", "ms", "us", "ns"),
    "share": ("%",),
    "watts": ("kW", "W"),
    "joules": ("GWh", "MWh", "kWh", "Wh", "GJ", "MJ", "kJ", "J"),
}


_ROUNDING: Final = 1e-14


def quantity_text(value: float, dimension: Dimension) -> str:
    """Return the shortest text that ``parse_quantity`` reads as ``value``, to the rounding of a float.

    >>> quantity_text(3.35e12, "bytes/s"), quantity_text(0.87, "share"), quantity_text(5e-6, "seconds")
    ('3.35 TB/s', '87 %', '5 us')
    """
    units = DIMENSIONS[dimension]
    texts = [
        f"{_digits(value / units[unit], digits)} {unit}"
        for digits in range(1, 18)
        for unit in _WRITTEN[dimension]
    ]
    errors = {text: abs(parse_quantity(text, dimension) - value) for text in texts}
    close = [text for text, error in errors.items() if error <= _ROUNDING * value]
    if not close:
        return min(texts, key=lambda text: errors[text])
    # A digit or two more are worth being exact; fifteen more are not.
    most = len(min(close, key=len)) + 2
    return min(close, key=lambda text: (len(text) > most, errors[text] > 0, len(text)))


def _digits(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text else text


def _quoted(value: object) -> str:
    """Return ``value`` as a message quotes it, cut where it is long."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
        return repr(value)
    return f"a value of type {type(value).__name__}"


def _unknown_unit(unit: str, dimension: Dimension) -> str:
    home = next((d for d, units in DIMENSIONS.items() if unit in units), None)
    what = f"measures {home}, not {dimension}" if home else "is not a unit that is known here"
    return f"{_quoted(unit)} {what}"


def _scaled_text(value: float, steps: tuple[tuple[str, float], ...], digits: str) -> str:
    """Return ``value`` over the largest step that leaves at least 1 once it is rounded."""
    for prefix, scale in steps:
        text = format(value / scale, digits)
        if abs(float(text)) >= 1:
            return f"{_plain(text)} {prefix}"
    return f"{_plain(format(value, digits))} "


def _plain(text: str) -> str:
    """Return a rounded number without the exponent that three digits give it from 1000 on."""
    return f"{float(text):.0f}" if "e+" in text else text


def format_bytes(size: float) -> str:
    """Return ``size`` [byte] with a binary prefix.

    >>> format_bytes(80 * 2**30), format_bytes(2**30 - 1), format_bytes(512)
    ('80.0 GiB', '1.0 GiB', '512 B')
    """
    if abs(size) < 1023.5:
        return f"{size:.0f} B"
    return _scaled_text(size, _BINARY_STEPS, ".1f") + "B"


def format_rate(rate: float, unit: str) -> str:
    """Return ``rate`` [unit/s] with a decimal prefix.

    >>> format_rate(312e12, "FLOP/s"), format_rate(999.9e9, "B/s")
    ('312 TFLOP/s', '1 TB/s')
    """
    return _scaled_text(rate, _RATE_STEPS, ".3g") + unit


def format_milliseconds(seconds: float) -> str:
    """Return a duration in milliseconds, rounded up to three digits.

    >>> format_milliseconds(0.0123401), format_milliseconds(1.5)
    ('12.4 ms', '1500 ms')
    """
    scale = 10 ** max(0, 2 - len(str(int(seconds * 1000))) + 1)
    value = math.ceil(seconds * 1000 * scale) / scale
    return f"{value:g} ms"


def format_seconds(seconds: float) -> str:
    """Return ``seconds`` [s] in the unit that leaves three or four digits.

    >>> format_seconds(0.0123), format_seconds(12.3456), format_seconds(0.99999)
    ('12.3 ms', '12.35 s', '1.00 s')
    """
    if abs(seconds) >= 0.99995 or seconds == 0:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 0.99995e-3:
        return f"{seconds * 1e3:.1f} ms"
    if abs(seconds) >= 0.9995e-6:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e9:.3g} ns"


def format_share(share: float) -> str:
    """Return a ``share`` of one as per cent.

    >>> format_share(0.158)
    '15.8 %'
    """
    return f"{share * 100:.1f} %"


def format_count(count: float) -> str:
    """Return a large ``count`` in short.

    >>> format_count(8_030_261_248), format_count(41_200), format_count(999_999)
    ('8.03 B', '41.2 k', '1 M')
    """
    if abs(count) < 999.5:
        return f"{count:.0f}"
    return _scaled_text(count, _COUNT_STEPS, ".3g")
