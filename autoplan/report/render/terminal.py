"""A terminal: its width, colours and characters, and blocks as its text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from autoplan.report.render.blocks import Block

#: Width without a terminal.
PIPED_WIDTH: Final = 120

#: Width from which two charts are shown side by side.
SIDE_BY_SIDE_WIDTH: Final = 110

#: Lines of the first screen of an answer, at 100 columns.
SCREEN_LINES: Final = 40

#: Narrower terminals wrap lines, since numbers are not cut.
_NARROWEST: Final = 72
_WIDEST: Final = 400


@dataclass(frozen=True, slots=True)
class Terminal:
    """A destination of text: width, colours, and characters beyond ASCII."""

    width: int = PIPED_WIDTH
    colour: bool = False
    unicode: bool = True

    @property
    def dot(self) -> str:
        """Separator of the parts of a line."""
        return "·" if self.unicode else "|"

    @property
    def times(self) -> str:
        """The multiplication sign."""
        return "×" if self.unicode else "x"  # noqa: RUF001

    @property
    def to(self) -> str:
        """Separator of the ends of a range."""
        return "\N{EN DASH}" if self.unicode else "-"

    @property
    def ellipsis(self) -> str:
        """Mark of cut text."""
        return "…" if self.unicode else "..."

    @property
    def shade(self) -> str:
        """One column of an empty bar."""
        return "░" if self.unicode else "."

    @property
    def point(self) -> str:
        """Mark of a plot."""
        return "●" if self.unicode else "o"

    @property
    def chosen_point(self) -> str:
        """Mark of what is chosen in a plot."""
        return "◆" if self.unicode else "*"

    @property
    def rule(self) -> str:
        """One column of a line across a plot."""
        return "─" if self.unicode else "-"

    @property
    def wall(self) -> str:
        """The upright axis of a plot."""
        return "│" if self.unicode else "|"


#: A terminal so wide that no column is left out of a table, and nothing is cut or broken, as on a page.
WIDE: Final = Terminal(width=10_000)


def terminal_of(stream: TextIO | None, environment: Mapping[str, str] | None = None) -> Terminal:
    """Return the capabilities of ``stream``; None is a file in UTF-8 without colours.

    ``COLUMNS`` sets the width, ``NO_COLOR`` switches colours off and ``FORCE_COLOR`` on.
    """
    env = os.environ if environment is None else environment
    interactive = stream is not None and stream.isatty()
    colour = (interactive and env.get("TERM") != "dumb") or bool(env.get("FORCE_COLOR"))
    return Terminal(
        width=_width(env.get("COLUMNS", ""), interactive=interactive),
        colour=stream is not None and colour and not env.get("NO_COLOR"),
        unicode=stream is None or _carries(stream, "·×█▏░─│●◆…\N{EN DASH}"),  # noqa: RUF001
    )


def _width(columns: str, *, interactive: bool) -> int:
    if columns.isdecimal() and len(columns) < 6 and int(columns):
        width = int(columns)
    else:
        width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if interactive else PIPED_WIDTH
    return max(_NARROWEST, min(_WIDEST, width))


def _carries(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def render(blocks: Iterable[Block], terminal: Terminal) -> str:
    """Return ``blocks`` one below the other as text for ``terminal``, without trailing spaces."""
    # The library of terminals is imported where a text is laid out: documents do without.
    from autoplan.report.render.text import laid_out

    return laid_out(blocks, terminal)


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
