"""Running the program on broken specs, and what has to hold of every such run."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner, Result

from autoplan.answers.sweep import ask as grid_planning
from autoplan.answers.sweep import executors
from autoplan.cli.app import app
from tests.support.broken_specs import BrokenSpec, whole_files

#: A run that takes longer, on the processor or on the clock of a busy machine, has hung; nothing is measured.
KILLED_AFTER_SECONDS = 10
KILLED_AFTER_CLOCK_SECONDS = 12 * KILLED_AFTER_SECONDS


def run_here(*arguments):
    """Run the program in this process and return its result."""
    # Older versions mix both streams unless told not to; newer ones never do.
    mixes = "mix_stderr" in inspect.signature(CliRunner).parameters
    runner = CliRunner(mix_stderr=False) if mixes else CliRunner()
    return runner.invoke(app, [str(a) for a in arguments])


@contextmanager
def swept_here(monkeypatch) -> Iterator[None]:
    """Plan the cells of a sweep in this process, which is what may not fail."""
    with ThreadPoolExecutor(1) as executor:
        monkeypatch.setattr(grid_planning, "LocalCrew", lambda _workers: executors.ForeignExecutor(executor))
        yield


class HungError(BaseException):
    """A run that did not end: nothing in the program may take it for an error of its own."""


@contextmanager
def killed_when_hung() -> Iterator[None]:
    """End the block with HungError when it takes far too long, where the system can."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise HungError

    limits = (
        (signal.SIGPROF, signal.ITIMER_PROF, KILLED_AFTER_SECONDS),
        (signal.SIGALRM, signal.ITIMER_REAL, KILLED_AFTER_CLOCK_SECONDS),
    )
    before = {number: signal.signal(number, stop) for number, _, _ in limits}
    for _, timer, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, timer, _ in limits:
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def assert_answered_or_refused(spec: BrokenSpec, folder: Path) -> int:
    """Run the command of ``spec`` in ``folder``, the current one; return its exit code, 0, 1 or 2.

    It ends without a traceback, with an answer or with an error that names a file or the layout.
    """
    spec.write(folder)
    case = f"seed {spec.seed}, {' '.join(spec.command)}, {spec.name}:\n{spec.data[:2_000]!r}\n"
    done = ended_well(spec.command, case)
    if done.exit_code == 2:
        assert any(name in done.stderr for name in (*whole_files(), "dp=2")), case + done.stderr
    return done.exit_code


def ended_well(command: Sequence[str], case: str) -> Result:
    """Run ``command`` in this process and return its result: an answer, or an error that is told.

    It ends in time and without a traceback, with exit code 0, 1 or 2; ``case`` is what a failure says.
    """
    with killed_when_hung():
        done = run_here(*command)

    case += done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), case
    assert done.exit_code in {0, 1, 2}, case
    assert "Traceback" not in done.output, case
    assert (done.exit_code == 2) == done.stderr.startswith("error: "), case
    assert bool(done.stdout) == (done.exit_code != 2), case
    assert all(line.isprintable() for line in done.output.split("\n")), case
    return done
