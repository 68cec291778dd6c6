"""Text bars, and evenly spread indices."""

from __future__ import annotations

from typing import Final

__all__ = ["bar", "spread"]

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int, *, unicode: bool = True) -> str:
    """Return a bar over ``share`` of ``width`` columns; any share above zero is visible.

    >>> bar(0.5, 8), bar(0.3, 4), bar(0.5, 8, unicode=False), bar(1e-9, 8)
    ('████', '█▎', '####', '▏')
    """
    share = min(1.0, max(0.0, share))
    if not unicode:
        return "#" * max(round(share * width), share > 0)
    eighths = max(round(share * width * 8), share > 0)
    full, rest = divmod(eighths, 8)
    return "█" * full + _EIGHTHS[rest].strip()


def spread(count: int, most: int) -> list[int]:
    """Return at most ``most`` indices of ``count``, evenly spread, with the first and the last.

    >>> spread(3, 12), spread(100, 4), spread(5, 1)
    ([0, 1, 2], [0, 33, 66, 99], [0])
    """
    if count <= most:
        return list(range(count))
    if most == 1:
        return [0]
    return [i * (count - 1) // (most - 1) for i in range(most)]
