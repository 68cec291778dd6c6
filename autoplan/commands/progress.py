"""Progress of long computations on the terminal."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from autoplan.commands.output import escaped

__all__ = [
    "Bar",
    "Progress",
]


_QUIET_SECONDS = 1.0


class Progress:
    """Progress line of the front, on a terminal only and after one second; erased at the end."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.shown = False
        self.listening = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, plans: int, memory_share: float) -> None:
        """Report one more plan, at ``memory_share`` of the memory limit."""
        elapsed = time.monotonic() - self.started
        if self.listening and elapsed > _QUIET_SECONDS:
            self.shown = True
            line = f"{plans} plans, down to {memory_share:.0%} of the memory limit, {elapsed:.0f} s"
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()

    def close(self) -> None:
        """Erase the line."""
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class Bar:
    """Progress bar on standard error, on a terminal only; erased at the end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = 0
        self.shown: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int, name: str) -> None:
        """Report ``done`` of ``total``; ``name`` is the current or last item."""
        self.done = done
        from rich.markup import escape

        if self.shown is None:
            self.shown = self._started()
            self.task = self.shown.add_task(self.what, total=total)
        described = f"{self.what} {escape(escaped(name))}"
        self.shown.update(self.task, completed=done, total=total, description=described)

    def _started(self) -> Any:  # noqa: ANN401 - rich's, imported when it is used
        from rich.console import Console
        from rich.progress import Progress as Shown

        console = Console(stderr=True)
        shown = Shown(*Shown.get_default_columns(), console=console, transient=True)
        shown.disable = not console.is_terminal
        shown.start()
        return shown

    def __exit__(self, *_: object) -> None:
        # Older versions of rich end a line that was never begun.
        if self.shown is not None and not self.shown.disable:
            self.shown.stop()
