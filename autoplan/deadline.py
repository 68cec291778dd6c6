"""How long a search may go on: until a time, until somebody stops it, or until it is done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

__all__ = ["ENDLESS", "Deadline"]


@dataclass(slots=True)
class Deadline:
    """Ends ``seconds`` after it was made, or when ``stop`` is called, such as by the handler of a signal."""

    seconds: float | None = None
    started: float = field(default_factory=time.monotonic)
    stopped: bool = False

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
        if self.seconds is not None and time.monotonic() - self.started >= self.seconds:
            return f"the time limit of {self.seconds:g} s was reached"
        return None


#: Nobody stops the search, and nothing looks at a clock.
ENDLESS: Final = Deadline()
