"""A line on the terminal while a search runs long."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress"]

_QUIET_SECONDS = 1.0


class Progress:
    """Shows how far the front has come, after a second, on a terminal only; erased at the end."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.shown = False
        self.listening = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, plans: int, memory_share: float) -> None:
        """Tell of one more plan, at ``memory_share`` of the memory limit."""
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
