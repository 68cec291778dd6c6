"""How long a search may go on: until a time, until somebody stops it, or until it is done.

A deadline is in force inside ``with deadline.in_force():``. Code that takes long calls ``check_deadline()``
between its steps, which are at most about 0.2 s apart; it raises DeadlineOver when the deadline has passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

#: Deadline of a question that names none [s].
DEFAULT_SECONDS: Final = 60.0

#: Part of a deadline that is kept for the answer: so many seconds, at most this share.
_RESERVED_SECONDS: Final = 1.0
_RESERVED_SHARE: Final = 0.2
#: On a slow machine more, which shows before the search: so many times as long as that took, and what share.
_SLOW_TIMES: Final = 1.25
_SLOW_SHARE: Final = 0.5

#: Time for a first plan after the deadline [s], and the most that a machine busy with others makes of it.
GRACE_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 6.0


class DeadlineOver(BaseException):
    """The deadline in force has passed. Not an error: no ``except Exception`` may take it for one."""


@dataclass(slots=True)
class Deadline:
    """Ends ``seconds`` after it was made, or when ``stop`` is called, such as by the handler of a signal.

    A search ends a little earlier: the last second, or a fifth of a short deadline, is for the answer. Where
    a second was not enough to begin, for a little longer than that took.
    """

    seconds: float | None = None
    started: float = field(default_factory=time.monotonic)
    stopped: bool = False
    #: How long it took from its start to the first search, None before one begins [s].
    begun_seconds: float | None = None
    #: When a share of it ends, from the start of the whole [s]; None outside of ``share``.
    share_seconds: float | None = None

    @staticmethod
    def of(deadline: Deadline | float | None, default: float) -> Deadline:
        """Return ``deadline``, which may be in seconds; one of ``default`` seconds where it is None."""
        if isinstance(deadline, Deadline):
            return deadline
        return Deadline(default if deadline is None else float(deadline))

    def stop(self) -> None:
        """End at once."""
        self.stopped = True

    @property
    def over(self) -> bool:
        """Whether the search is to come to an end."""
        return self.reason is not None

    @property
    def reason(self) -> str | None:
        """What ended it, in words; None while it lasts."""
        if self.stopped:
            return "interrupted"
        if self.seconds is None:
            return None
        elapsed = time.monotonic() - self.started
        if elapsed >= self.seconds - self._reserved(self.seconds):
            return f"the deadline of {self.seconds:g} s was reached"
        if self.share_seconds is not None and elapsed >= self.share_seconds:
            return f"its share of the deadline of {self.seconds:g} s was reached"
        return None

    def _reserved(self, seconds: float) -> float:
        """Return how much of a deadline of ``seconds`` is for the answer [s]."""
        reserved = min(_RESERVED_SECONDS, _RESERVED_SHARE * seconds)
        if self.begun_seconds is None or self.begun_seconds <= _RESERVED_SECONDS:
            return reserved
        return max(reserved, min(_SLOW_TIMES * self.begun_seconds, _SLOW_SHARE * seconds))

    @contextmanager
    def share(self, parts: int) -> Iterator[None]:
        """End after one of ``parts`` equal shares of the time that is left, inside the block.

        Several questions under one deadline then have an answer each: what one leaves, the next ones have.
        """
        if self.seconds is not None:
            elapsed = time.monotonic() - self.started
            self.share_seconds = elapsed + (self.seconds - elapsed) / parts
        try:
            yield
        finally:
            self.share_seconds = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Make this the deadline that ``check_deadline`` looks at, inside the block."""
        if self.begun_seconds is None and self.seconds is not None:
            self.begun_seconds = time.monotonic() - self.started
        token = _IN_FORCE.set(self)
        try:
            yield
        finally:
            _IN_FORCE.reset(token)


@dataclass(slots=True)
class Grace(Deadline):
    """Ends after so many seconds in which this process had a processor, and after a few by the clock.

    On a machine that is busy with other processes a second of the clock may be a tenth of one of work: too
    little for a plan, so that there would be no answer at all.
    """

    worked_before: float = field(default_factory=time.process_time)

    @property
    def reason(self) -> str | None:
        """What ended it; None while it lasts."""
        ended = super(Grace, self).reason  # dataclasses with slots have no super() without arguments
        worked = time.process_time() - self.worked_before
        longest = time.monotonic() - self.started >= _LONGEST_SECONDS
        return ended if longest or worked >= GRACE_SECONDS / 2 else None


#: Nobody stops the search, and nothing looks at a clock.
ENDLESS: Final = Deadline()

_IN_FORCE: ContextVar[Deadline] = ContextVar("deadline", default=ENDLESS)


def current_deadline() -> Deadline:
    """Return the deadline in force; ``ENDLESS`` where none is."""
    return _IN_FORCE.get()


def check_deadline() -> None:
    """Raise DeadlineOver where the deadline in force has passed."""
    if _IN_FORCE.get().over:
        raise DeadlineOver
