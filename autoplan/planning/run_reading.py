"""Load files of measured runs as observations, or report every problem of the file at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoplan.calibration import Observation
from autoplan.catalog import file_named, is_path, load_job, read_file
from autoplan.errors import AutoplanError, LayoutError, Problem, SpecError
from autoplan.planning.plan_and_evaluate import plannable, valid_layout
from autoplan.schema.job import Job
from autoplan.schema.run_files import LEAST_RUNS, RunSpec, RunsSpec
from autoplan.schema.yaml.document import Document, format_path
from autoplan.schema.yaml.loader import validate
from autoplan.schema.yaml.parser import parse_yaml

__all__ = ["load_runs"]


def load_runs(file: str | Path, *, least: int = LEAST_RUNS) -> tuple[RunsSpec, list[Observation]]:
    """Return the runs of ``file`` and their observations, in the same order.

    Raises SpecError with every problem of the file and of the jobs that it names, where the runs differ in
    stack or kernels, and where there are fewer than ``least``.
    """
    path = Path(file)
    document = parse_yaml(read_file(path), name=str(file))
    spec = validate(document, RunsSpec)
    if len(spec.runs) < least:
        message = f"at least {least} runs are needed; --machine fits what a machine has of its own to fewer"
        raise SpecError([Problem(message, "$.runs", document.name, document.line(("runs",)))])
    reader = _RunReader(document, path.parent)
    results = [reader.observation(index, run) for index, run in enumerate(spec.runs)]
    observations = [observation for observation in results if observation is not None]
    if not reader.problems:
        _refuse_mixed(observations, reader)
    if reader.problems:
        raise SpecError(list(dict.fromkeys(reader.problems)))
    return spec, observations


@dataclass(slots=True)
class _RunReader:
    """Reads runs one by one and collects their problems."""

    document: Document
    base: Path
    problems: list[Problem] = field(default_factory=list)
    jobs: dict[str, Job | None] = field(default_factory=dict)

    def observation(self, index: int, run: RunSpec) -> Observation | None:
        """Return the observation of a run; None where it has problems, which are noted."""
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
        """Return the job that a run names; problems of a job file refer to that file."""
        try:
            return plannable(load_job(file_named(reference, self.base) if is_path(reference) else reference))
        except SpecError as error:
            self.problems.extend(error.problems)
        except AutoplanError as error:
            self.note(index, "job", [str(error)])
        return None

    def note(self, index: int, key: str, sentences: Sequence[str]) -> None:
        """Add the problems of ``key`` of a run."""
        place = ("runs", index, key)
        line = self.document.line(place)
        self.problems.extend(Problem(x, format_path(place), self.document.name, line) for x in sentences)


def _refuse_mixed(observations: Sequence[Observation], reader: _RunReader) -> None:
    """Add a problem for every run whose stack or kernels differ from those of the first."""
    first = observations[0].job
    for index, observation in enumerate(observations[1:], start=1):
        job = observation.job
        if job.stack != first.stack:
            reader.note(index, "job", [_difference("the stack", job.stack.name, first.stack.name)])
        if job.kernels != first.kernels:
            reader.note(index, "job", [_difference("the kernels file", job.kernels.name, first.kernels.name)])


def _difference(what: str, own: str, other: str) -> str:
    if own == other:
        return f"{what} {own} of this run differs from the one of the same name in the first run"
    return (
        f"{what} of this run is {own}, that of the first run {other}: one stack and one kernels file are"
        " calibrated at a time, so put these runs into a separate file"
    )
