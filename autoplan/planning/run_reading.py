"""Files of measured runs: to observations, or to every problem of the file at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoplan.calibration import Observation
from autoplan.catalog import is_path, load_job, read_file
from autoplan.errors import AutoplanError, LayoutError, Problem, SpecError
from autoplan.planning.plan_and_evaluate import plannable, valid_layout
from autoplan.schema.job import Job
from autoplan.schema.run_files import RunSpec, RunsSpec
from autoplan.schema.yaml.document import Document, format_path
from autoplan.schema.yaml.loader import validate
from autoplan.schema.yaml.parser import parse_yaml

__all__ = ["load_runs"]


def load_runs(file: str | Path) -> tuple[RunsSpec, list[Observation]]:
    """Return the runs of ``file`` and, in their order, the steps that they measured.

    Raises SpecError with every problem of the file and of the jobs that it names, and where the runs do not
    share one stack and one family of kernels.
    """
    path = Path(file)
    document = parse_yaml(read_file(path), name=str(file))
    spec = validate(document, RunsSpec)
    reader = _Reader(document, path.parent)
    read = [reader.observation(index, run) for index, run in enumerate(spec.runs)]
    found = [observation for observation in read if observation is not None]
    if not reader.problems:
        _refuse_mixtures(found, reader)
    if reader.problems:
        raise SpecError(list(dict.fromkeys(reader.problems)))
    return spec, found


@dataclass(slots=True)
class _Reader:
    """Reads runs one by one, and gathers what is wrong with them."""

    document: Document
    base: Path
    problems: list[Problem] = field(default_factory=list)
    jobs: dict[str, Job | None] = field(default_factory=dict)

    def observation(self, index: int, run: RunSpec) -> Observation | None:
        """Return what the run measured, or None with its problems noted."""
        if run.job not in self.jobs:
            self.jobs[run.job] = self._job(index, run.job)
        job = self.jobs[run.job]
        if job is None:
            return None
        try:
            return Observation(job, valid_layout(job, run.layout), run.step_time)
        except LayoutError as error:
            self.note(index, "layout", error.reasons)
        return None

    def _job(self, index: int, reference: str) -> Job | None:
        """Return the job that a run names; its problems stand in its own file, if it has one."""
        try:
            return plannable(load_job(self.base / reference if is_path(reference) else reference))
        except SpecError as error:
            self.problems.extend(error.problems)
        except AutoplanError as error:
            self.note(index, "job", [str(error)])
        return None

    def note(self, index: int, key: str, sentences: Sequence[str]) -> None:
        """Note what is wrong with ``key`` of a run."""
        place = ("runs", index, key)
        line = self.document.line(place)
        self.problems.extend(Problem(x, format_path(place), self.document.name, line) for x in sentences)


def _refuse_mixtures(found: Sequence[Observation], reader: _Reader) -> None:
    """Note every run whose stack or kernels are not those of the first."""
    first = found[0].job
    for index, observation in enumerate(found[1:], start=1):
        job = observation.job
        if job.stack != first.stack:
            reader.note(index, "job", [_mixture("the stack", job.stack.name, first.stack.name)])
        if job.kernels != first.kernels:
            reader.note(index, "job", [_mixture("the kernels file", job.kernels.name, first.kernels.name)])


def _mixture(what: str, own: str, other: str) -> str:
    if own == other:
        return f"{what} {own} of this run is not the one of the same name of the first run"
    return (
        f"{what} of this run is {own}, that of the first run {other}: one of each is calibrated at a time,"
        " so put these runs into a file of their own"
    )
