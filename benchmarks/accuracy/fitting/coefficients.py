"""Every fitted coefficient of the cost models, with the measured runs behind it.

A coefficient of a stack serves the runs priced with that stack, one of kernels the runs on its devices.
Runs that only tell memory, or that they ran out of it, stand behind memory's coefficients alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, TypeAlias

from autoplan.catalog import entry_names, load_entry
from autoplan.schema.base import Sourced, SourcedSeconds, SourcedShare
from autoplan.schema.costmodel.kernel_spec import CostModel
from autoplan.schema.hardware import sourced_numbers
from benchmarks.accuracy.outcomes import Outcome

__all__ = ["Coefficient", "coefficients_of", "flag_of", "of_memory"]

#: Fewer sources or groups than this, and a coefficient may be a fit of what is peculiar to one of them.
LEAST: Final = 2

#: What the text of a source says when a number was fitted on the runs of this benchmark.
_RUNS: Final = "benchmarks/accuracy"

_Kind = Literal["stack", "kernels"]
#: A fitted number: its kind of file, its entry, its field, itself.
_Found: TypeAlias = tuple[_Kind, str, str, Sourced]


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A fitted number and how many complete rows, groups and publications it serves.

    ``fitted_on_runs`` is false for what was fitted on sweeps of kernels: runs only test it. ``thin``
    says which of the counts is too small, and is empty where none is.
    """

    file: str
    name: str
    value: float
    text: str
    fitted_on: str
    fitted_on_runs: bool
    rows: int
    groups: int
    sources: int
    thin: str


def coefficients_of(outcomes: Sequence[Outcome]) -> list[Coefficient]:
    """Return every fitted coefficient of the shipped cost models; one value for several files is one."""
    shared: dict[tuple[str, ...], list[_Found]] = {}
    for found in _fitted_numbers():
        kind, entry, where, number = found
        key = (kind, where, _value(number)[1], _source_text(kind, entry, number))
        shared.setdefault(key, []).append(found)
    return [_coefficient(outcomes, several) for several in shared.values()]


@cache
def _fitted_numbers() -> tuple[_Found, ...]:
    return tuple(
        (kind, entry, where, number)
        for kind, entry in _entries()
        for where, number in sourced_numbers(load_entry(kind, entry))
        if number.kind == "fitted"
    )


def _entries() -> Iterator[tuple[_Kind, str]]:
    kinds: tuple[_Kind, ...] = ("stack", "kernels")
    for kind in kinds:
        for name in entry_names(kind):
            yield kind, name


def _source_text(kind: _Kind, entry: str, number: Sourced) -> str:
    told = load_entry(kind, entry)
    return told.sources.get(number.source, "") if isinstance(told, CostModel) else ""


def _coefficient(outcomes: Sequence[Outcome], several: Sequence[_Found]) -> Coefficient:
    kind, entry, where, number = several[0]
    behind = [x for x in outcomes if any(_serves(k, name, w, x) for k, name, w, _ in several)]
    groups, sources = len({x.group for x in behind}), len({x.publication for x in behind})
    value, text = _value(number)
    return Coefficient(
        file=f"{'stacks' if kind == 'stack' else 'kernels'}: {', '.join(name for _, name, _, _ in several)}",
        name=where,
        value=value,
        text=text,
        fitted_on=number.source,
        fitted_on_runs=_RUNS in _source_text(kind, entry, number),
        rows=len(behind),
        groups=groups,
        sources=sources,
        thin=flag_of(len(behind), groups, sources),
    )


def _serves(kind: _Kind, entry: str, where: str, outcome: Outcome) -> bool:
    job = outcome.job
    if job is None or outcome.predicted is None:
        return False
    name = job.stack.name if kind == "stack" else job.kernels.name
    return name == entry and (of_memory(where) or outcome.error is not None)


#: Uncertainties of memory, beside those of time.
_OF_MEMORY: Final = {f"uncertainty.{name}" for name in ("fragmentation", "memory_lower", "memory_higher")}


def of_memory(where: str) -> bool:
    """Return whether the number at ``where`` is one of memory, not of time."""
    return where.startswith("memory.") or where in _OF_MEMORY


def flag_of(rows: int, groups: int, sources: int) -> str:
    """Return what is thin about the runs behind a coefficient, in words; nothing where enough are there.

    >>> flag_of(0, 0, 0), flag_of(28, 3, 1), flag_of(5, 1, 1), flag_of(98, 10, 4)
    ('no run', 'one source', 'one source, one group', '')
    """
    if rows == 0:
        return "no run"
    few = (("one source", sources < LEAST), ("one group", groups < LEAST))
    return ", ".join(words for words, applies in few if applies)


def _value(number: Sourced) -> tuple[float, str]:
    """Return the value of ``number``, and as its file writes it."""
    value = float(getattr(number, "value"))  # noqa: B009 -- every kind of sourced number has its own
    if isinstance(number, SourcedShare):
        return value, f"{100 * value:.4g} %"
    if isinstance(number, SourcedSeconds):
        return value, f"{1e6 * value:.4g} us"
    return value, f"{value:g}"
