"""Deadlines for tests of searches that are stopped."""

from autoplan.deadline import Deadline

__all__ = ["Looks"]


class Looks(Deadline):
    """Ends when somebody has looked at it so many times."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    @property
    def reason(self):
        """What ended it."""
        self.looks -= 1
        return "enough" if self.looks < 0 else None
