"""Planning within a command whose answer is not the front, but one plan of it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

import typer

from autoplan.commands.lean import begin_work, load_solver
from autoplan.commands.options import command_deadline
from autoplan.commands.output import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoplan.deadline import Deadline
    from autoplan.kinds import AnyJob
    from autoplan.results.front import Front
    from autoplan.results.plan import Plan
    from autoplan.schema.job import Job


def asked_plan(  # noqa: PLR0913 - a keyword for each choice
    job: str,
    number: int | None,
    layout: str | None,
    deadline: float | None,
    *,
    target: str,
    program: str | None = None,
    choose: Callable[[Front], int],
    cache: bool | None = False,
) -> tuple[Job, Plan, int]:
    """Return the plan that a command line asks for, after its job, and its number on the front.

    ``job`` is a job to plan, or a saved answer; with ``layout`` nothing is searched. A job that leaves its
    program open is planned for those that ``target`` writes, or for ``program``; the ``number`` of a plan is
    that of the whole front, unless ``program`` is named. Without a ``number`` it is the one that ``choose``
    takes of the front.
    """
    from autoplan.catalog import load_job
    from autoplan.catalog.programs import written_for
    from autoplan.planning.plan_and_evaluate import chosen, evaluate
    from autoplan.planning.saved_plans import is_saved_plan, saved_number, saved_plan
    from autoplan.results.merged_front import at_batch

    if is_saved_plan(job):
        if layout is not None:
            raise typer.BadParameter("a saved plan has its layouts: give --plan", param_hint="--layout")
        if number is None:
            number = saved_number(job, target=target, program=program)
        return *saved_plan(job, number), number
    loaded = load_job(job)
    if program is not None or number is None:
        loaded = written_for(loaded, target, program)
    if layout is not None:
        loaded = chosen(loaded, layout)
        return loaded, evaluate(loaded, layout), 1
    front = planned(loaded, deadline, cache=cache)
    number = choose(front) if number is None and front.feasible else number or 1
    plan: Plan = planned_plan(front, number)
    return at_batch(loaded, plan), plan, number


def planned_plan(front: Any, number: int) -> Any:  # noqa: ANN401 - of any kind
    """Return plan ``number`` of a front; raises InfeasibleError with the reasons where it has none."""
    from autoplan.errors import InfeasibleError

    if not front.feasible:
        raise InfeasibleError([*front.reasons, "`autoplan plan` says what helps"])
    if number > len(front.plans):
        raise typer.BadParameter(f"the front has {len(front.plans)} plans", param_hint="--plan")
    return front.plans[number - 1]


def planned(job: AnyJob, deadline: float | None, *, cache: bool | None = False) -> Any:  # noqa: ANN401
    """Return the front of ``job``, with progress on standard error; a signal ends the command."""
    from autoplan.kinds import kind_of

    progress, limit = Progress(), command_deadline(job.deadline if deadline is None else deadline)
    with stopped_by_signals(limit):
        try:
            load_solver()
            front = kind_of(job).plan(job, progress=progress, deadline=limit, cache=cache)
        finally:
            progress.close()
    return front


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals(deadline: Deadline) -> Iterator[None]:
    """Make the first signal end ``deadline``; the next one is the system's to handle, which ends the program.

    After the block a signal ends the command, with the exit code by convention: 128 + its number.
    Nothing waits for Python then: not a long call of numpy or the solver either. Output is written whole or
    not at all, so nothing is left half-written.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        came.append(number)
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        deadline.stop()

    begin_work()
    before = {one: signal.signal(one, stop) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    if came:
        raise typer.Exit(128 + came[0])


_QUIET_SECONDS = 1.0


class Progress:
    """Progress line of the front, on a terminal only and after one second; erased at the end."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.written = False
        self.listening = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, plans: int, memory_share: float) -> None:
        """Report one more plan, at ``memory_share`` of the memory limit."""
        elapsed = time.monotonic() - self.started
        if self.listening and elapsed > _QUIET_SECONDS:
            self.written = True
            line = f"{plans} plans, down to {memory_share:.0%} of the memory limit, {elapsed:.0f} s"
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()

    def close(self) -> None:
        """Erase the line."""
        if self.written:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class Bar:
    """Progress bar on standard error, on a terminal only; erased at the end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = 0
        self.bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int, name: str) -> None:
        """Report ``done`` of ``total``; ``name`` is the current or last item."""
        self.done = done
        from rich.markup import escape

        if self.bar is None:
            self.bar = self._started()
            self.task = self.bar.add_task(self.what, total=total)
        described = f"{self.what} {escape(escaped(name))}"
        self.bar.update(self.task, completed=done, total=total, description=described)

    def _started(self) -> Any:  # noqa: ANN401 - rich's, imported when it is used
        from rich.console import Console
        from rich.progress import Progress as ProgressBar

        console = Console(stderr=True)
        bar = ProgressBar(*ProgressBar.get_default_columns(), console=console, transient=True)
        bar.disable = not console.is_terminal
        bar.start()
        return bar

    def __exit__(self, *_: object) -> None:
        # Older versions of rich end a line that was never begun.
        if self.bar is not None and not self.bar.disable:
            self.bar.stop()
