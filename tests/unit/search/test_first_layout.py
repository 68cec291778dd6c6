"""The time for a first layout after a deadline: of work, not of the clock alone."""

from __future__ import annotations

import time

from autoplan.deadline import GRACE_SECONDS, Grace


def test_a_busy_machine_stretches_the_grace_to_a_few_seconds(monkeypatch):
    """Without a processor a second of the clock ends nothing, and half a second of work or six seconds do."""
    grace = Grace(GRACE_SECONDS)
    worked = grace.worked_before
    monkeypatch.setattr(time, "process_time", lambda: worked)
    grace.started -= 2.0
    assert grace.reason is None

    monkeypatch.setattr(time, "process_time", lambda: worked + 0.6)
    assert grace.reason == "the deadline of 1 s was reached"

    monkeypatch.setattr(time, "process_time", lambda: worked)
    grace.started -= 4.0
    assert grace.reason is not None


def test_work_alone_does_not_end_the_grace(monkeypatch):
    """Several threads may do more work than the clock has seconds."""
    grace = Grace(GRACE_SECONDS)
    monkeypatch.setattr(time, "process_time", lambda: grace.worked_before + 9.0)

    assert grace.reason is None
