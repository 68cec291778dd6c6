"""Quantities with units: ``"3.35 TB/s"`` in a file, a float in base units inside.

Base units: byte, byte/s, FLOP/s, second, watt, and 1 for shares. Decimal and binary prefixes
differ (``GB`` is 1e9 bytes, ``GiB`` is 2**30), and so do bits and bytes (``Gb/s`` is an eighth of
``GB/s``). A number without its unit is an error wherever a unit is needed.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal

__all__ = [
    "DIMENSIONS",
    "Dimension",
    "UnitError",
    "format_bytes",
    "format_count",
    "format_rate",
    "format_seconds",
    "format_share",
    "parse_quantity",
]

Dimension = Literal["bytes", "bytes/s", "FLOP/s", "seconds", "share", "watts"]

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {f"{p}i": 2.0 ** (10 * (i + 1)) for i, p in enumerate("KMGT")}
_PREFIXES: Final = {**_DECIMAL, **_BINARY}


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
    "seconds": {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    "share": {"%": 0.01},
    "watts": {"W": 1.0, "kW": 1e3},
}

_EXAMPLES: Final[dict[Dimension, str]] = {
    "bytes": "80 GiB or 80 GB",
    "bytes/s": "3.35 TB/s or 400 Gb/s",
    "FLOP/s": "312 TFLOP/s",
    "seconds": "20 s or 5 us",
    "share": "6 %",
    "watts": "400 W",
}

_QUANTITY: Final = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(\S*)\s*")


class UnitError(ValueError):
    """A text that is not a quantity of the wanted dimension."""


def parse_quantity(text: object, dimension: Dimension) -> float:
    """Return the size of ``text`` in the base unit of ``dimension``.

    Raises UnitError, with an example of what would be right, for a bare number, an unknown unit,
    a unit of another dimension or anything that is not finite.

    >>> parse_quantity("80 GiB", "bytes") - parse_quantity("80 GB", "bytes")
    5899345920.0
    >>> parse_quantity("400 Gb/s", "bytes/s")
    50000000000.0
    >>> parse_quantity("6 %", "share")
    0.06
    """
    example = _EXAMPLES[dimension]
    if not isinstance(text, str):
        raise UnitError(f"{text!r} has no unit: write for example {example}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f"{text!r} is not a number with a unit: write for example {example}")
    number, unit = float(match[1]), match[2]
    units = DIMENSIONS[dimension]
    if not unit:
        raise UnitError(f"{text!r} has no unit: write for example {example}")
    if unit not in units:
        raise UnitError(_unknown_unit(unit, dimension))
    value = number * units[unit]
    if not math.isfinite(value):
        raise UnitError(f"{text!r} is not a finite quantity")
    return value


def _unknown_unit(unit: str, dimension: Dimension) -> str:
    home = next((d for d, units in DIMENSIONS.items() if unit in units), None)
    what = f"measures {home}, not {dimension}" if home else "is not a unit that is known here"
    return f"{unit!r} {what}: write for example {_EXAMPLES[dimension]}"


def format_bytes(size: float) -> str:
    """Return ``size`` [byte] with a binary prefix.

    >>> format_bytes(80 * 2**30)
    '80.0 GiB'
    """
    for prefix in ("Ti", "Gi", "Mi", "Ki"):
        scale = _BINARY[prefix]
        if abs(size) >= scale:
            return f"{size / scale:.1f} {prefix}B"
    return f"{size:.0f} B"


def format_rate(rate: float, unit: str) -> str:
    """Return ``rate`` [unit/s] with a decimal prefix.

    >>> format_rate(312e12, "FLOP/s")
    '312 TFLOP/s'
    """
    for prefix in ("P", "T", "G", "M", "k"):
        if abs(rate) >= _DECIMAL[prefix]:
            return f"{rate / _DECIMAL[prefix]:.3g} {prefix}{unit}"
    return f"{rate:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Return ``seconds`` [s] in the unit that leaves three or four digits.

    >>> format_seconds(0.0123), format_seconds(12.3456)
    ('12.3 ms', '12.35 s')
    """
    if abs(seconds) >= 1 or seconds == 0:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"


def format_share(share: float) -> str:
    """Return a ``share`` of one as per cent.

    >>> format_share(0.158)
    '15.8 %'
    """
    return f"{share * 100:.1f} %"


def format_count(count: float) -> str:
    """Return a large ``count`` in short.

    >>> format_count(8_030_261_248), format_count(41_200)
    ('8.03 B', '41.2 k')
    """
    for prefix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= scale:
            return f"{count / scale:.3g} {prefix}"
    return f"{count:.0f}"
