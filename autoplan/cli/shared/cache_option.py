"""The option by which commands keep answers for the same question."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["CacheOption"]

CacheOption = Annotated[
    bool | None,
    typer.Option(
        "--cache/--no-cache",
        help="Take the answer that was found before to the same question, and keep it. Left out: only where"
        " AUTOPLAN_CACHE_DIR names a folder.",
        show_default=False,
    ),
]
