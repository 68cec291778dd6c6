"""Records do what frozen dataclasses with slots do."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from inspect import signature

import pytest

from autoplan.records import record


class _Span:
    begin: float
    end: float = 1.0
    names: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)
    unit: str = field(default="s", kw_only=True)
    length: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", self.end - self.begin)


Recorded = record(type("Recorded", (), dict(_Span.__dict__)))
Plain = dataclass(frozen=True, slots=True)(type("Plain", (), dict(_Span.__dict__)))


@record
class Named:
    """A record whose fields are compared one by one."""

    name: str
    values: tuple[int, ...] = ()


@record
class Numbered(Named):
    """A record that adds a field to another."""

    number: int = 0


def test_fields_and_arguments_are_those_of_a_frozen_dataclass() -> None:
    """Fields, order and defaults of arguments, and the text of a value are the same."""
    ours, theirs = Recorded(0.25, names=["a"], unit="ms"), Plain(0.25, names=["a"], unit="ms")
    assert is_dataclass(Recorded)
    assert [x.name for x in fields(Recorded)] == [x.name for x in fields(Plain)]
    assert list(signature(Recorded).parameters) == list(signature(Plain).parameters)
    assert asdict(ours) == asdict(theirs)
    assert repr(ours).replace("Recorded", "Plain") == repr(theirs)
    assert Recorded.__slots__ == Plain.__slots__
    assert Recorded.__match_args__ == Plain.__match_args__


def test_records_are_equal_by_their_compared_fields() -> None:
    """Equality, hash and ``replace`` are those of a dataclass; a subclass is another class."""
    assert Recorded(0.25, note="x") == Recorded(0.25)
    assert Recorded(0.25) != Recorded(0.5)
    assert Named("a") != Numbered("a")
    assert hash(Numbered("a", (1,), 2)) == hash(replace(Numbered("a"), values=(1,), number=2))
    assert Named.__eq__(Named("a"), "a") is NotImplemented


def test_records_are_frozen_and_pickled() -> None:
    """No field is set or deleted, and a pickled record is the same."""
    one = Numbered("a", (1, 2), 3)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        one.name = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del one.name
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - of this test


def test_default_factories_make_a_value_for_each_record() -> None:
    """Two records share no list."""
    first, second = Recorded(0.0), Recorded(0.0)
    first.names.append("a")
    assert second.names == []
    assert first.length == 1.0


def test_missing_arguments_are_refused() -> None:
    """A record without a value for a field raises TypeError, as a dataclass does."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'begin'"):
        Recorded()
