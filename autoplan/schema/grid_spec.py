"""Grids of jobs: schema and validation of grid files.

The checks read the plain document, so that a mistake in one place hides none in another.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from autoplan.errors import Problem, SpecError
from autoplan.schema.base import Frozen
from autoplan.schema.job import JobSpec
from autoplan.schema.yaml.annotations import Place, below, fields, unfold
from autoplan.schema.yaml.document import Document, Lines, Plain, format_path, shown
from autoplan.schema.yaml.document import Path as KeyPath
from autoplan.schema.yaml.loader import validate

#: What one cell sets: values by dotted keys of a job, as the grid file writes them.
Settings = Mapping[str, Plain]

#: What the jobs of a grid are.
JobKind: TypeAlias = Literal["training", "serving"]

#: Most cells of a grid.
MOST_CELLS: Final = 100_000

#: Keys of a job that say how its file is read.
_NOT_SWEPT: Final = ("schema", "kind")


class GridSpec(Frozen):
    """Many jobs in one file: a base job, and for some of its keys the values to plan for."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Literal["sweep"] = Field(description="this file holds a grid of jobs")
    base: Annotated[str, Field(min_length=1)] | dict[str, Any] = Field(
        description="the job that all cells share: a name in specs/jobs or specs/serving, a path to a job"
        " file, or a job"
    )
    grid: Annotated[dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], Field(min_length=1)] = Field(
        description="lists of values by dotted key of a job, such as limits.memory_headroom;"
        " every combination of them is a cell"
    )
    exclude: tuple[Annotated[dict[str, Any], Field(min_length=1)], ...] = Field(
        default=(),
        description="cells to exclude: each entry names keys of the grid, and one or more of their values",
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One job of a grid: its ``number`` from 1, in the order of the file, and what it sets."""

    number: int
    settings: Settings

    @property
    def label(self) -> str:
        """The settings as one line.

        >>> Cell(1, {"devices": 2, "search.zero_stage": (0, 1)}).label
        'devices=2,search.zero_stage=[0, 1]'
        """
        return ",".join(f"{key}={text_of(value)}" for key, value in self.settings.items())


@dataclass(frozen=True, slots=True)
class Grid:
    """A checked grid: its cells, and the base job's file content with its folder.

    ``moved`` holds paths of the grid as they read from the base job's folder, by what the grid says.
    """

    name: str
    keys: tuple[str, ...]
    cells: tuple[Cell, ...]
    base: Mapping[str, Plain]
    folder: Path
    moved: Mapping[str, str]
    kind: JobKind = "training"


def text_of(value: Plain) -> str:
    """Return a setting as text: plain values as they are, lists and mappings as JSON.

    >>> text_of("6 %"), text_of(8), text_of((1, "any")), text_of(None)
    ('6 %', '8', '[1, "any"]', 'null')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def canonical(value: Plain) -> str:
    """Return a text that two values share exactly when they are the same to YAML.

    >>> canonical(1) == canonical(1.0), canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
    (False, True)
    """
    return json.dumps(value, sort_keys=True)


def spec_of_jobs(kind: JobKind) -> type[Frozen]:
    """Return the schema of job files of a kind; that of engines is imported where it is needed."""
    if kind == "training":
        return JobSpec
    from autoplan.schema.serving.serving_spec import ServingSpec

    return ServingSpec


@cache
def job_keys(kind: JobKind = "training") -> tuple[str, ...]:
    """Return the dotted keys of a job that a grid may set.

    >>> [key for key in job_keys() if key.startswith("adapters")][:4]
    ['adapters', 'adapters.rank', 'adapters.targets', 'adapters.experts']
    >>> [key for key in job_keys("serving") if key.startswith("precision.")][:2]
    ['precision.weights', 'precision.kv_cache']
    """
    return tuple(key for key in _keys_below(unfold(spec_of_jobs(kind)), "") if key not in _NOT_SWEPT)


def _keys_below(place: Place, prefix: str) -> Iterator[str]:
    for key in fields(place):
        yield f"{prefix}{key}"
        yield from _keys_below(below(place, key), f"{prefix}{key}.")


def products(values: Mapping[str, tuple[Plain, ...]]) -> Iterator[dict[str, Plain]]:
    """Yield every combination of ``values``; the last key changes fastest.

    >>> list(products({"a": (1, 2), "b": (3,)}))
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    for combination in product(*values.values()):
        yield dict(zip(values, combination, strict=True))


_Node = tuple[Plain, Lines | int]


@dataclass(frozen=True, slots=True)
class Base:
    """The base job of all cells: its document, and its path inside the grid file or None."""

    document: Document
    path: KeyPath | None

    @property
    def kind(self) -> JobKind:
        """What the jobs are."""
        return "serving" if self.document.at(("kind",)) == "serving" else "training"


def swept_values(document: Document, kind: JobKind = "training") -> dict[str, tuple[Plain, ...]]:
    """Return the values of each key of the grid that a job of ``kind`` has."""
    listed = document.at(("grid",))
    items = listed.items() if isinstance(listed, dict) else ()
    return {k: v for k, v in items if k in job_keys(kind) and isinstance(v, tuple) and v}


def with_settings(job: Plain, settings: Settings) -> Plain:
    """Return the mapping ``job`` with ``settings`` put at their dotted keys.

    >>> with_settings({"devices": 8, "limits": {"step_time": "2 s"}}, {"limits.memory_headroom": "6 %"})
    {'devices': 8, 'limits': {'step_time': '2 s', 'memory_headroom': '6 %'}}
    """
    node: _Node = (job, 1)
    for key, value in settings.items():
        node = _put(node, key.split("."), (value, 1))
    return node[0]


def _put(node: _Node, path: list[str], new: _Node) -> _Node:
    """Return ``node`` with ``new`` at ``path``; values that are not mappings are errors of the schema."""
    value, lines = node
    if not path:
        return new
    if value is None:
        value = {}
    if not isinstance(value, dict):
        return node
    inside = lines if isinstance(lines, Lines) else Lines(lines)
    inner, inner_lines = _put((value.get(path[0]), inside.below.get(path[0], inside.begin)), path[1:], new)
    keys = inside.keys if path[0] in inside.keys else {**inside.keys, path[0]: _own(inner_lines)}
    below = {**inside.below, path[0]: inner_lines}
    return {**value, path[0]: inner}, Lines(inside.begin, keys, below)


def _own(lines: Lines | int) -> int:
    return lines if isinstance(lines, int) else lines.begin


def grid_problems(document: Document, base: Base | None) -> Iterator[Problem]:
    """Yield the problems of keys, values and exclusions of a grid, and of its base job."""
    kind = base.kind if base is not None else "training"
    values = swept_values(document, kind)
    yield from _key_problems(document, kind)
    yield from _repeated(document, values)
    yield from _size_problems(document, values)
    yield from _exclude_problems(document, values)
    if base is not None:
        yield from _job_problems(document, base)


def _problem(document: Document, path: KeyPath, message: str, *, key: bool = False) -> Problem:
    return Problem(message, format_path(path), document.name, document.line(path, key=key))


def _key_problems(document: Document, kind: JobKind) -> Iterator[Problem]:
    listed = document.at(("grid",))
    keys = list(listed) if isinstance(listed, dict) else []
    for key in keys:
        if key not in job_keys(kind):
            yield _problem(document, ("grid", key), _unknown_key(key, job_keys(kind)), key=True)
        for outer in keys:
            if key.startswith(f"{outer}."):
                message = f"{shown(outer)} sets {shown(key)} too: remove one of them"
                yield _problem(document, ("grid", key), message, key=True)


def _unknown_key(key: str, keys: Iterable[str]) -> str:
    keys = list(keys)
    ends = [full for full in keys if full.endswith(f".{key}")]
    near = ends or difflib.get_close_matches(key, keys, 1)
    hint = f"did you mean {shown(near[0])}?" if near else f"known keys are {', '.join(keys)}"
    return f"unknown key {shown(key)}: {hint}"


def _repeated(document: Document, values: Mapping[str, tuple[Plain, ...]]) -> Iterator[Problem]:
    for key, listed in values.items():
        first: dict[str, int] = {}
        for index, value in enumerate(listed):
            before = first.setdefault(canonical(value), index)
            if before != index:
                message = f"{shown(value)} is a duplicate of entry {before}: remove one"
                yield _problem(document, ("grid", key, index), message)


def _size_problems(document: Document, values: Mapping[str, tuple[Plain, ...]]) -> Iterator[Problem]:
    cells = math.prod(map(len, values.values()))
    if cells > MOST_CELLS:
        message = f"the grid has {cells:,} cells: at most {MOST_CELLS:,} are supported"
        yield _problem(document, ("grid",), message, key=True)


def _entries(document: Document) -> list[tuple[int, dict[str, Plain]]]:
    """Return the entries of ``exclude`` that are mappings, with their places."""
    listed = document.at(("exclude",))
    entries = enumerate(listed if isinstance(listed, tuple) else ())
    return [(index, entry) for index, entry in entries if isinstance(entry, dict) and entry]


def _exclude_problems(document: Document, values: Mapping[str, tuple[Plain, ...]]) -> Iterator[Problem]:
    for index, entry in _entries(document):
        for key, wanted in entry.items():
            path: KeyPath = ("exclude", index, key)
            if key not in values:
                yield _problem(document, path, _unknown_key(key, values), key=True)
            elif missing := [one for one in _alternatives(wanted, values[key]) if one not in values[key]]:
                keys = ", ".join(shown(one) for one in missing)
                yield _problem(document, path, f"{keys} is not among the values of {shown(key)} in the grid")


def _alternatives(wanted: Plain, values: tuple[Plain, ...]) -> tuple[Plain, ...]:
    """Return the values that one key of an exclusion names: itself, or each entry of a list."""
    itself = not isinstance(wanted, tuple) or canonical(wanted) in map(canonical, values)
    return (wanted,) if itself or not isinstance(wanted, tuple) else wanted


def exclusions(document: Document, kind: JobKind = "training") -> list[dict[str, frozenset[str]]]:
    """Return the entries of ``exclude`` as the canonical values that each key may have to be left out."""
    values = swept_values(document, kind)
    return [
        {
            key: frozenset(canonical(one) for one in _alternatives(wanted, values.get(key, ())))
            for key, wanted in entry.items()
        }
        for _, entry in _entries(document)
    ]


def _job_problems(document: Document, base: Base) -> Iterator[Problem]:
    """Yield the schema errors of the base job and of each value of the grid."""
    values = swept_values(document, base.kind)
    firsts: dict[str, int] = dict.fromkeys(values, 0)
    for problem in _refused(document, base, firsts):
        if _swept_key(problem, values) is None:
            yield _in_base(problem, document, base)
    for key, listed in values.items():
        for index in range(len(listed)):
            for problem in _refused(document, base, {**firsts, key: index}):
                if _swept_key(problem, values) == key:
                    yield _in_grid(problem, document, key, index)


def _refused(document: Document, base: Base, chosen: Mapping[str, int]) -> tuple[Problem, ...]:
    """Return the problems of the base job with the chosen value of each key."""
    node: _Node = (base.document.value, base.document.lines)
    for key, index in chosen.items():
        path = ("grid", key, index)
        node = _put(node, key.split("."), (document.at(path), document.line(path)))
    try:
        validate(Document(base.document.name, *node), spec_of_jobs(base.kind))
    except SpecError as error:
        return error.problems
    return ()


def _swept_key(problem: Problem, keys: Iterable[str]) -> str | None:
    """Return the key of the grid that a problem of the merged job is about."""
    for key in keys:
        path = format_path(key.split("."))
        if problem.path == path or problem.path.startswith((f"{path}.", f"{path}[")):
            return key
    return None


def _in_grid(problem: Problem, document: Document, key: str, index: int) -> Problem:
    below = problem.path.removeprefix(format_path(key.split(".")))
    place = f"{format_path(('grid', key, index))}{below}"
    return Problem(problem.message, place, document.name, document.line(("grid", key, index)))


def _in_base(problem: Problem, document: Document, base: Base) -> Problem:
    if base.path is None:
        return problem
    return Problem(problem.message, format_path(base.path) + problem.path[1:], document.name, problem.line)
