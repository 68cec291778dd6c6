"""The command line that the benchmarks on a file of rows share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["parser_of", "run"]

T = TypeVar("T")


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of ``python -m benchmarks.NAME`` with its ``--format``."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what to print")
    return parser


def run(
    files: Path | Sequence[Path],
    form: str,
    *,
    read: Callable[[Any], Sequence[T]],
    row_of: Callable[[T], Mapping[str, Any]],
    summary_of: Callable[[Sequence[T]], dict[str, Any]],
    render: Callable[[dict[str, Any]], str],
    then: Callable[[Sequence[T], dict[str, Any]], int] | None = None,
) -> int:
    """Print the outcomes of ``files`` as a table or as one JSON object; 2 where they cannot be read.

    ``then`` is what to do after printing, and returns the exit code.
    """
    try:
        outcomes = read(files)
    except (OSError, ValueError) as error:
        names = str(files) if isinstance(files, Path) else ", ".join(map(str, files))
        print(f"cannot read {names}: {error}", file=sys.stderr)
        return 2
    summary = summary_of(outcomes)
    if form == "json":
        rows = [row_of(outcome) for outcome in outcomes]
        print(json.dumps({"rows": rows, "summary": summary}, allow_nan=False))
    else:
        print(render(summary))
    return then(outcomes, summary) if then else 0
