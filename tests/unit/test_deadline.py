"""The deadline in force: when it raises, where, and what is in force after it."""

from __future__ import annotations

import time

import pytest

from autoplan.deadline import ENDLESS, Deadline, DeadlineOver, check_deadline, current_deadline


def test_without_a_deadline_nothing_raises():
    """Outside of every block the endless deadline is in force."""
    assert current_deadline() is ENDLESS
    check_deadline()


def test_a_deadline_raises_once_it_is_over():
    """A deadline that lasts raises nothing; stopped, it raises at the next check."""
    deadline = Deadline(seconds=1e6)
    with deadline.in_force():
        check_deadline()
        deadline.stop()
        with pytest.raises(DeadlineOver):
            check_deadline()


def test_a_deadline_of_no_seconds_is_over():
    """Time ends a deadline as ``stop`` does."""
    with Deadline(seconds=0.0).in_force(), pytest.raises(DeadlineOver):
        check_deadline()


def test_a_deadline_that_is_not_in_force_does_not_raise():
    """What was made but not put in force, or was in force before, ends nothing."""
    over = Deadline(seconds=0.0)
    check_deadline()
    with over.in_force():
        pass
    check_deadline()


def test_the_deadline_before_is_in_force_again():
    """Blocks nest, and one that raises gives back what was in force before it."""
    outer, inner = Deadline(seconds=1e6), Deadline(seconds=0.0)

    def asked():
        with inner.in_force():
            assert current_deadline() is inner
            check_deadline()

    with outer.in_force():
        with pytest.raises(DeadlineOver):
            asked()
        assert current_deadline() is outer
        check_deadline()
    assert current_deadline() is ENDLESS


def test_no_handler_of_errors_takes_it_for_one():
    """``except Exception`` lets it pass, so a search does not go on after it."""
    assert not issubclass(DeadlineOver, Exception)


def test_a_share_ends_before_the_whole():
    """Inside a share the time ends sooner, and what is left after it is the whole again."""
    deadline = Deadline(seconds=1000.0)
    deadline.started -= 400.0
    with deadline.share(3):
        assert deadline.reason is None
        deadline.started -= 250.0
        assert deadline.reason == "its share of the deadline of 1000 s was reached"
    assert deadline.reason is None
    with deadline.share(1):
        deadline.started -= 348.0
        assert deadline.reason is None
        deadline.started -= 2.0
        assert deadline.reason == "the deadline of 1000 s was reached"


def test_a_share_of_endless_time_is_endless():
    """Without a deadline a share ends only when it is stopped."""
    deadline = Deadline(None)
    with deadline.share(4):
        assert deadline.reason is None
        deadline.stop()
        assert deadline.reason == "interrupted"


@pytest.mark.parametrize(("begun", "left"), [(0.5, 1.0), (4.0, 5.0), (30.0, 10.0)])
def test_a_machine_that_begins_slowly_has_more_time_for_its_answer(monkeypatch, begun, left):
    """A second is for the answer, and where the start took longer than that, more; at most half of all."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    deadline = Deadline(20.0, started=now[0] - begun)
    with deadline.in_force():
        now[0] = deadline.started + 20.0 - left - 0.01
        assert not deadline.over
        now[0] += 0.02
        assert deadline.over
