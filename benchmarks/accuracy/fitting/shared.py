"""The coefficients that are fitted on runs, each with one value in several files, and their fit.

``data/priors.yaml`` lists them with what they were taken to be before. Fits start from there and not from
what is shipped, which has seen every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import yaml

from autoplan.calibration import COEFFICIENTS, Estimate, Fit, Observation, Refits
from autoplan.calibration.least_squares import Coefficient, Part, number_at, number_of, owner_of, with_number
from autoplan.catalog import entry_text, load_entry, read_stack
from autoplan.schema.base import NumberKind, Sourced
from autoplan.schema.job import Job

__all__ = ["Refitted", "Shared", "SharedFit", "SharedFitter", "shared_coefficients"]

#: Derivative of the logarithm of a step time by a deviation of a prior from which on a run tells something.
_FELT: Final = 1e-3
_PRIORS: Final = Path(__file__).parents[1] / "data" / "priors.yaml"


@dataclass(frozen=True, slots=True)
class Shared:
    """One coefficient that several entries share, and its prior; ``files`` are those that write it."""

    name: str
    coefficient: Coefficient
    files: tuple[str, ...]
    prior: float
    kind: NumberKind

    def serves(self, part: Part, name: str) -> bool:
        """Return whether the entry ``name`` has it, written in its own file or inherited."""
        return part == self.coefficient.part and _written_in(part, name, self.coefficient.path) in self.files

    def prices(self, job: Job) -> bool:
        """Return whether ``job`` has it: its entry does, and the job's software wrote no other number there.

        Captured steps take their launches from the graph (``software.cuda_graphs``).
        """
        part, name = self.coefficient.part, owner_of(job, self.coefficient)
        return self.serves(part, name) and _told(number_of(job, self.coefficient)) == _told_in(
            part, name, self.coefficient
        )


@cache
def shared_coefficients() -> tuple[Shared, ...]:
    """Return what ``data/priors.yaml`` lists, in its order."""
    known = {(c.part, c.name): c for c in COEFFICIENTS}
    entries = yaml.safe_load(_PRIORS.read_text(encoding="utf-8"))["coefficients"]
    return tuple(
        Shared(x["name"], known[x["part"], x["path"]], tuple(x["files"]), float(x["prior"]), x["kind"])
        for x in entries
    )


@cache
def _written_in(part: Part, name: str, path: tuple[str, ...]) -> str:
    """Return the name of the entry whose file writes the number at ``path`` of the entry ``name``."""
    if part == "kernels":
        return name
    return read_stack(*entry_text("stack", name)).inherited.get(path, name)


def _told(number: Sourced) -> tuple[str, str | None]:
    """Return what a number says of itself, which no fit changes."""
    return number.source, number.note


@cache
def _told_in(part: Part, name: str, coefficient: Coefficient) -> tuple[str, str | None]:
    """Return what the number of ``coefficient`` says of itself in the entry ``name``."""
    return _told(number_at(load_entry(part, name), coefficient.path))


def _shared_by(job: Job, coefficient: Coefficient) -> str | None:
    """Return the name under which ``job`` shares ``coefficient``; None where its value is its file's own."""
    alike = (x for x in shared_coefficients() if x.coefficient == coefficient)
    return next((x.name for x in alike if x.prices(job)), None)


def _at_priors(job: Job) -> Job:
    """Return ``job`` as it would be priced had no run been looked at."""
    stack, kernels = job.stack, job.kernels
    for x in shared_coefficients():
        told = {"value": x.prior, "kind": x.kind}
        if not x.prices(job):
            continue
        if x.coefficient.part == "stack":
            stack = with_number(stack, x.coefficient.path, **told)
        else:
            kernels = with_number(kernels, x.coefficient.path, **told)
    return replace(job, stack=stack, kernels=kernels)


@dataclass(frozen=True, slots=True)
class SharedFit:
    """A fit that starts from the priors, for jobs as they are shipped."""

    fit: Fit

    def values(self) -> dict[str, float]:
        """Return the shared coefficients by name; one that affects none of the runs is left out."""
        shifts = {x.owner: x.shift for x in self.fit.estimates}
        return {x.name: _shifted(x, shifts[x.name]) for x in shared_coefficients() if x.name in shifts}

    def job(self, job: Job) -> Job:
        """Return ``job`` with the values of the fit in place of the shipped ones."""
        return self.fit.job(_at_priors(job))


class SharedFitter:
    """Fits of the shared coefficients to some of ``observations``; making the fitter fits them all."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        placed = [replace(x, job=_at_priors(x.job)) for x in observations]
        self._shipped = {
            x.name: number_of(observation.job, x.coefficient).value
            for x in shared_coefficients()
            for observation in observations
            if x.prices(observation.job)
        }
        self._fits: dict[tuple[int, ...], SharedFit] = {}
        self._refits = Refits(placed, owner=_shared_by, initial=self._from_prior)

    def _from_prior(self, coefficient: Coefficient, owner: str) -> float:
        """Return how far what is shipped is from the prior: the fit to all has to end near it."""
        prior = next(x.prior for x in shared_coefficients() if x.name == owner)
        return coefficient.coordinate(self._shipped[owner]) - coefficient.coordinate(prior)

    def without(self, rows: Sequence[int]) -> SharedFit:
        """Return a fit to all observations but those at ``rows``, made once."""
        key = tuple(rows)
        if key not in self._fits:
            self._fits[key] = SharedFit(self._refits.without(rows)[0])
        return self._fits[key]

    def rows_moved_by(self, name: str) -> list[int]:
        """Return the observations that ``name`` moves by 0.1 % or more within a deviation of its prior."""
        column = [x.owner for x in self._refits.of_all.estimates].index(name)
        return np.flatnonzero(np.abs(self._refits.jacobian[:, column]) >= _FELT).tolist()

    def whole(self) -> list[Refitted]:
        """Return what the fit to all observations makes of each coefficient."""
        estimates = {e.owner: e for e in self._refits.of_all.estimates}
        return [
            _refitted(x, self._shipped[x.name], estimates[x.name])
            for x in shared_coefficients()
            if x.name in estimates
        ]


@dataclass(frozen=True, slots=True)
class Refitted:
    """A coefficient before any run, as the runs have it now, and as it is shipped.

    ``narrowed`` is the standard deviation that is left over that of the prior; ``files`` write the number.
    """

    name: str
    files: tuple[str, ...]
    prior: float
    fitted: float
    shipped: float
    narrowed: float


def _refitted(shared: Shared, shipped: float, estimate: Estimate) -> Refitted:
    fitted = _shifted(shared, estimate.shift)
    return Refitted(shared.name, shared.files, shared.prior, fitted, shipped, estimate.narrowed)


def _shifted(shared: Shared, shift: float) -> float:
    """Return the value of a coefficient that is ``shift`` away from its prior."""
    line = shared.coefficient
    return float(line.value(line.coordinate(shared.prior) + shift))
