"""``python -m benchmarks.identical [--write DIR] [--against DIR]``: the frozen cases, byte for byte."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import unified_diff
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.identical.cases import Case, cases, write_inputs

__all__ = ["answers", "compared", "main", "without_versions"]

#: What differs between two versions that answer alike: their names, and the sum of their code.
_VERSIONS: Final = re.compile(
    r"(?<=autoplan )[0-9]+(?:\.[0-9]+)+(?: \(code [0-9a-f]+, ortools [0-9.]+\))?"
    r'|(?<="autoplan": ")[^"]*|(?<="autoplan_version": ")[^"]*'
)
_SHOWN_LINES: Final = 12
_SHOWN_CASES: Final = 5


def main(arguments: list[str] | None = None) -> int:
    """Answer every case, write and compare; return 1 where an answer differs."""
    options = _options(arguments)
    asked = [case for case in cases() if re.search(options.only, case.name)]
    before = read_answers(options.against, options.only) if options.against else None
    found = answers(asked)
    if options.write:
        write_answers(found, options.write)
    digest = sha256("".join(f"{name}\0{text}\0" for name, text in sorted(found.items())).encode()).hexdigest()
    print(f"cases: {len(found)}")
    print(f"sha256: {digest}")
    if before is None:
        return 0
    differing = compared(before, found)
    print(f"identical: {not differing}")
    for name, lines in islice(differing.items(), _SHOWN_CASES):
        print(f"{name}:", *islice(lines, _SHOWN_LINES), sep="\n  ")
    if len(differing) > _SHOWN_CASES:
        print(f"{len(differing)} differ: {', '.join(differing)}")
    return 1 if differing else 0


def answers(asked: list[Case]) -> dict[str, str]:
    """Return what each case prints and writes, in a folder of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, _inside(Path(folder)):
        write_inputs(Path())
        return {case.name: without_versions(_answer(case)) for case in asked}


def without_versions(text: str) -> str:
    """Return ``text`` without what names the version of the program.

    >>> without_versions("made by autoplan 0.1.0: autoplan emit")
    'made by autoplan : autoplan emit'
    """
    return _VERSIONS.sub("", text)


def compared(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the lines that differ, by case; a case that is on one side alone differs.

    >>> compared({"a": "1", "b": "2"}, {"a": "1", "b": "3"})["b"]
    ['-2', '+3']
    """
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: _differences(before.get(name), after.get(name)) for name in names}


def _differences(before: str | None, after: str | None) -> list[str]:
    if before is None or after is None:
        return ["only before" if after is None else "only now"]
    lines = unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))] or ["other ends of lines"]


def write_answers(found: Mapping[str, str], folder: Path) -> None:
    """Write a file for each answer; the files of cases that are no more are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.txt"):
        path.unlink()
    for name, text in found.items():
        (folder / f"{name}.txt").write_bytes(text.encode())


def read_answers(folder: Path, only: str = "") -> dict[str, str]:
    """Return the answers that ``write_answers`` has written, of cases whose name has the pattern ``only``."""
    written = {path.name.removesuffix(".txt"): path for path in sorted(folder.glob("*.txt"))}
    return {name: path.read_bytes().decode() for name, path in written.items() if re.search(only, name)}


def _answer(case: Case) -> str:
    from typer.testing import CliRunner

    from autoplan.cli.app import app

    done = CliRunner().invoke(app, list(case.arguments), env={"COLUMNS": "200", "AUTOPLAN_CACHE_DIR": None})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    written = "".join(f"\n--- {name}\n{text}" for name, text in _written(Path(case.output or "-")))
    return f"$ autoplan {' '.join(case.arguments)}\n{done.output}\nexit code {done.exit_code}{written}\n"


def _written(output: Path) -> Iterator[tuple[str, str]]:
    files = sorted(x for x in output.rglob("*") if x.is_file()) if output.is_dir() else [output]
    yield from ((str(x), x.read_bytes().decode()) for x in files if x.is_file())


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.identical",
        description="Answer the frozen cases, and say whether the answers are those of another version.",
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="write the answers, a file each")
    parser.add_argument("--against", type=Path, metavar="DIR", help="compare with what --write has written")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only the cases whose name has this")
    options = parser.parse_args(arguments)
    if options.against and not any(options.against.glob("*.txt")):
        parser.error(f"{options.against} holds no answers: write them with --write")
    return options


if __name__ == "__main__":
    sys.exit(main())
