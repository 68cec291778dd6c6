"""Options and arguments whose help shows no default: their text says what is meant without them."""

from __future__ import annotations

from typing import Any

import typer


def option(name: str, metavar: str, text: str, *names: str, **limits: Any) -> Any:  # noqa: ANN401 - typer's
    """Return the option ``name``; ``limits`` are those of typer, such as ``min``."""
    return typer.Option(name, *names, metavar=metavar, help=text, show_default=False, **limits)


def argument(metavar: str, text: str) -> Any:  # noqa: ANN401 - typer's
    """Return the argument that the help calls ``metavar``."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)
