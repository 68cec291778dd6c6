"""Records are what the standard library's frozen dataclasses with slots are, made in less time."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from pydantic import TypeAdapter

from autoplan import records

OPTIONS = {"frozen": True, "slots": True}


def classes(make):
    """Return one class of each kind, made by the decorator ``make``."""

    @make(**OPTIONS)
    class Plain:
        """Some fields."""

        first: int
        second: float = 2.0
        third: tuple[int, ...] = ()
        kind: ClassVar[str] = "plain"

        @property
        def twice(self):
            return 2 * self.first

    @make(**OPTIONS)
    class Fields:
        shown: int
        hidden: int = field(default=3, repr=False, compare=False)
        made: list = field(default_factory=list, hash=False)
        derived: int = field(init=False, default=7)
        later: int = field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "later", self.shown + 1)

    @make(**OPTIONS)
    class Own:  # noqa: PLW1641 - the decorator adds a hash
        value: int

        def __eq__(self, other):
            return isinstance(other, Own) and abs(self.value) == abs(other.value)

        def __repr__(self):
            return f"|{self.value}|"

    @make(**OPTIONS)
    class Longer(Plain):
        fourth: str = "x"

    @make(**OPTIONS, kw_only=True)
    class Named:
        first: int = 1
        second: int

    @make(**OPTIONS, eq=False)
    class Identity:
        value: int

    @make(**OPTIONS)
    class Empty:
        pass

    @make(**OPTIONS)
    class One:
        value: object

    return SimpleNamespace(**{name: made for name, made in locals().items() if inspect.isclass(made)})


OURS, THEIRS = classes(records.dataclass), classes(dataclass)
MADE = {
    "plain": lambda c: c.Plain(1, third=(4,)),
    "fields": lambda c: c.Fields(1, made=[2]),
    "defaults": lambda c: c.Fields(1),
    "own functions": lambda c: c.Own(-3),
    "inherited": lambda c: c.Longer(1, 5.0, fourth="y"),
    "named": lambda c: c.Named(second=2),
    "empty": lambda c: c.Empty(),
    "one": lambda c: c.One("x"),
}
# Pickle finds classes by their name.
Plain, Fields = OURS.Plain, OURS.Fields
Plain.__qualname__, Fields.__qualname__ = "Plain", "Fields"
THEIRS.Plain.__qualname__, THEIRS.Fields.__qualname__ = "Plain", "Fields"


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_record_says_and_has_what_a_dataclass_does(make):
    """Text, values, hash and signature are those of the standard library's class."""
    ours, theirs = make(OURS), make(THEIRS)
    assert repr(ours) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert type(ours).__match_args__ == type(theirs).__match_args__
    assert type(ours).__slots__ == type(theirs).__slots__
    assert str(inspect.signature(type(ours))) == str(inspect.signature(type(theirs)))
    assert type(ours).__init__.__annotations__ == type(theirs).__init__.__annotations__
    assert not hasattr(ours, "__dict__")


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_equal_records_have_equal_hashes(make):
    """Equality and hash go by the values that are compared."""
    assert make(OURS) == make(OURS)
    assert make(OURS) != object()
    assert hash(make(OURS)) == hash(make(THEIRS))


def test_fields_that_are_not_compared_do_not_count():
    """``compare`` and ``hash`` of a field are honoured."""
    assert OURS.Fields(1, 2) == OURS.Fields(1, 5)
    assert hash(OURS.Fields(1, made=[1])) == hash(OURS.Fields(1, made=[2]))
    assert OURS.Fields(1, made=[1]) != OURS.Fields(1, made=[2])
    assert OURS.Plain(1) != OURS.Longer(1)


def test_records_without_equality_are_equal_to_themselves_alone():
    """``eq=False`` leaves identity."""
    one = OURS.Identity(1)
    assert one == one  # noqa: PLR0124
    assert one != OURS.Identity(1)


def test_a_record_with_an_array_is_equal_to_itself():
    """Values are compared as tuples are, by identity first."""
    array = np.zeros(2)
    assert OURS.One(array) == OURS.One(array)


@pytest.mark.parametrize("name", ["first", "unknown"])
def test_nothing_of_a_record_can_be_set_or_deleted(name):
    """Both are refused as the standard library refuses them."""
    with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(Plain(1), name, 2)
    with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
        delattr(Plain(1), name)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_records_travel_between_processes(protocol):
    """Pickle and copy return an equal record."""
    for one in (Plain(1, third=(4,)), Fields(1, made=[2])):
        again = pickle.loads(pickle.dumps(one, protocol))  # noqa: S301 - our own
        assert (again, repr(again)) == (one, repr(one))
        assert copy.deepcopy(one) == copy.copy(one) == one


def test_a_record_is_replaced_and_matched_as_a_dataclass():
    """Functions and statements for dataclasses take records."""
    assert dataclasses.replace(Plain(1), second=9.0) == Plain(1, 9.0)
    match Plain(1, 2.5):
        case Plain(first, second):
            assert (first, second) == (1, 2.5)


def test_pydantic_reads_a_record():
    """Saved answers are validated as records."""
    assert TypeAdapter(Plain).validate_json('{"first": 3, "third": [1]}') == Plain(3, third=(1,))


def test_a_record_that_holds_itself_has_a_text():
    """Its text ends."""
    held = []
    one = OURS.One(held)
    held.append(one)
    assert "..." in repr(one)


@pytest.mark.parametrize("arguments", [(), (1, 2.0, (), 4), {"unknown": 1}])
def test_wrong_arguments_are_refused(arguments):
    """They are a TypeError, as in a call of any function."""
    given = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
    with pytest.raises(TypeError):
        Plain(*given[0], **given[1])


def test_other_dataclasses_are_those_of_the_standard_library():
    """What is not frozen, or has no slots, is made by it."""

    @records.dataclass(slots=True)
    class Changing:
        value: int

    one = Changing(1)
    one.value = 2
    assert repr(one).endswith("Changing(value=2)")
