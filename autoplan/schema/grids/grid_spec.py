"""Schema of grid files: a base job, and the values of varied keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from autoplan.schema.base import Frozen
from autoplan.schema.job import JobSpec
from autoplan.schema.yaml.annotations import Place, below, fields, unfold
from autoplan.schema.yaml.document import Plain

__all__ = [
    "MOST_CELLS",
    "Cell",
    "Grid",
    "GridSpec",
    "JobKind",
    "Settings",
    "canonical",
    "job_keys",
    "products",
    "spec_of_jobs",
    "text_of",
]

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
    ['adapters', 'adapters.rank', 'adapters.targets', 'adapters.base']
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
