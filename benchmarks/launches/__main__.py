"""Reads public launch files and counts what of them is read right, stays open, is wrong, or is refused."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from autoplan.answers.configure.ask import read
from autoplan.errors import AutoplanError
from autoplan.launch.configuration import Configuration
from autoplan.launch.engines.served_run import EngineConfiguration
from benchmarks.launches.breakages import broken_files, lines_of_variants
from benchmarks.launches.round_trip import Trip, engine_trip, lines_of_trips, round_trip
from benchmarks.reading import Unreadable, read_entries

_FILES: Final = tuple(sorted(Path(__file__).parent.glob("files*.yaml")))
_KINDS: Final = ("right", "open", "wrong", "refused")


@dataclass(frozen=True, slots=True)
class Score:
    """One value of a file: what it should be, what is read, and whether that is right, open or wrong."""

    file: str
    framework: str
    field: str
    wanted: Any
    found: Any
    kind: str


def scored(entry: Mapping[str, Any], texts: Mapping[str, str], folder: Path) -> Iterator[Score]:
    """Yield the score of every value of an entry; its files, ``texts`` by path, are written to ``folder``."""
    name = f"{entry['repository']}/{entry['path']}"
    try:
        found = found_values(_read(entry, texts, folder))
    except AutoplanError as error:
        yield from _of_refused(entry, name, str(error))
        return
    if "refused" in entry:
        yield Score(name, entry["framework"], "$", "refused", "read", "wrong")
        return
    for field, wanted in entry["values"].items():
        value = found.get(field)
        kind = "right" if value == wanted else "open" if value is None else "wrong"
        yield Score(name, entry["framework"], field, wanted, value, kind)
    for field in entry.get("open", ()):
        value = found.get(field)
        yield Score(name, entry["framework"], field, None, value, "right" if value is None else "wrong")


def _read(
    entry: Mapping[str, Any], texts: Mapping[str, str], folder: Path
) -> Configuration | EngineConfiguration:
    """Return what is read of an entry, whose files are written to ``folder``."""
    for place, text in texts.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    variables = dict(entry.get("set", {}))
    return read(folder / entry["path"], devices=entry.get("devices"), variables=variables)


def _of_refused(entry: Mapping[str, Any], name: str, message: str) -> Iterator[Score]:
    """Yield the scores of a file that is refused: right where that is what it should be, for this reason."""
    if "refused" in entry:
        kind = "right" if entry["refused"] in message else "wrong"
        yield Score(name, entry["framework"], "$", entry["refused"], message[:200], kind)
        return
    for field, wanted in entry["values"].items():
        yield Score(name, entry["framework"], field, wanted, message[:200], "refused")


def found_values(read_file: Configuration | EngineConfiguration) -> dict[str, Any]:
    """Return what is read of a file by field; those of adapters and workload by their own names."""
    job: dict[str, Any] = dict(read_file.job)
    flat = {key: value for key, value in job.items() if not isinstance(value, Mapping)}
    for section in ("adapters", "software"):
        flat |= {f"{section}.{key}": value for key, value in (job.get(section) or {}).items()}
    flat |= dict(job.get("workload") or {})
    if isinstance(read_file, Configuration):
        return {**flat, **dict(read_file.layout_fields)}
    layout = asdict(read_file.layout)
    for pool in [key for key, value in layout.items() if isinstance(value, Mapping)]:
        layout |= {f"{pool}.{key}": value for key, value in layout.pop(pool).items()}
    layout = {key: None if key in read_file.unspecified else value for key, value in layout.items()}
    return {**flat, **dict(read_file.search), **layout}


def scores_of(repositories: Path, lists: Iterable[Path] = _FILES) -> list[Score]:
    """Return the scores of all files of ``lists`` that clones hold; other repositories are left out."""
    scores: list[Score] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, entry in enumerate(_entries(lists)):
            texts = _texts(repositories, entry)
            if texts:
                scores += scored(entry, texts, Path(folder) / str(number))
    return scores


def _entries(lists: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for file in lists:
        for number, entry in enumerate(read_entries(file, "runs")):
            if isinstance(entry, Unreadable) or not isinstance(entry, dict):
                raise TypeError(f"entry {number + 1} of {file.name} is no mapping")
            yield entry


def _texts(repositories: Path, entry: Mapping[str, Any]) -> dict[str, str]:
    """Return a file and those beside it, at its commit; nothing where no clone of its repository is there."""
    clone = repositories / str(entry["repository"]).replace("/", "+") / "repo"
    if not clone.is_dir():
        return {}
    shown = ("git", "-C", str(clone), "show")
    return {
        path: subprocess.run(
            [*shown, f"{entry['commit']}:{path}"], capture_output=True, text=True, check=True
        ).stdout
        for path in (entry["path"], *entry.get("beside", ()))
    }


def _trips(repositories: Path, lists: Iterable[Path]) -> Iterator[Trip]:
    """Yield what becomes of every file that is read, emitted and read again."""
    with tempfile.TemporaryDirectory() as folder:
        for number, entry in enumerate(_entries(lists)):
            texts = _texts(repositories, entry)
            if not texts or "refused" in entry:
                continue
            with contextlib.suppress(AutoplanError):
                found = _read(entry, texts, Path(folder) / str(number))
                name = f"{entry['repository']}/{entry['path']}"
                if isinstance(found, Configuration):
                    yield round_trip(name, found)
                else:
                    yield engine_trip(name, found)


def _lines(scores: list[Score]) -> Iterator[str]:
    frameworks = dict.fromkeys(score.framework for score in scores)
    yield f"{'framework':<16}{'files':>6}" + "".join(f"{kind:>9}" for kind in _KINDS)
    for name in (*frameworks, ""):
        own = [score for score in scores if name in {score.framework, ""}]
        counts = Counter(score.kind for score in own)
        files = len({score.file for score in own})
        yield f"{name or 'all':<16}{files:>6}" + "".join(f"{counts[kind]:>9}" for kind in _KINDS)
    total = len(scores) or 1
    yield ", ".join(f"{kind} {sum(s.kind == kind for s in scores) / total:.1%}" for kind in _KINDS)
    for score in scores:
        if score.kind != "right":
            yield f"{score.kind:<8}{score.file}: {score.field} is {score.wanted!r}, read as {score.found!r}"


def main(arguments: list[str] | None = None) -> int:
    """Print the scores of all files; returns 1 where a value is wrong, and 2 where no clone is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launches", description=__doc__)
    parser.add_argument("--repositories", type=Path, required=True, help="folder of OWNER+NAME/repo clones")
    parser.add_argument("--files", type=Path, nargs="*", default=_FILES, help="lists of files to read")
    parser.add_argument("--again", action="store_true", help="emit what is read, and read that again")
    parser.add_argument("--broken", action="store_true", help="break the files, and count what is refused")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    if options.broken:
        pairs = ((entry, _texts(options.repositories, entry)) for entry in _entries(options.files))
        print("\n".join(lines_of_variants(broken_files(pair for pair in pairs if pair[1]))))
        return 0
    if options.again:
        print("\n".join(lines_of_trips(_trips(options.repositories, options.files))))
        return 0
    scores = scores_of(options.repositories, options.files)
    if not scores:
        lists = ", ".join(file.name for file in options.files)
        print(f"{options.repositories} has no clone of the repositories in {lists}", file=sys.stderr)
        return 2
    if options.format == "json":
        print(json.dumps({"rows": [asdict(score) for score in scores]}, indent=1, default=str))
    else:
        print("\n".join(_lines(scores)))
    return int(any(score.kind == "wrong" for score in scores))


if __name__ == "__main__":
    sys.exit(main())
