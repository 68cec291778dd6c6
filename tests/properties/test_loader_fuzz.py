"""Any file gives a value or a SpecError, and quantities keep their size."""

import math
from typing import Annotated, Literal
from unittest import mock

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field

from autoplan.errors import SpecError
from autoplan.schema.base import Bytes, Frozen, Seconds, Share
from autoplan.schema.yaml import loader, parser
from autoplan.units import (
    DIMENSIONS,
    UnitError,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_share,
    parse_quantity,
)
from tests.support.edited_yaml import PIECES, edited, edits


class Ring(Frozen):
    """One member of a tagged union."""

    shape: Literal["ring"]
    width: int


class Mesh(Frozen):
    """The other member."""

    shape: Literal["mesh"]
    widths: tuple[int, int]


Fabric = Annotated[Ring | Mesh, Field(discriminator="shape")]


class Job(Frozen):
    """A schema with the shapes that real ones have."""

    model: str
    devices: int | tuple[int, ...]
    schedule: Literal["any", "1f1b"] | tuple[Literal["1f1b"], ...] = "any"
    memory: Bytes | None = None
    headroom: Share = 0.0
    step_time: Seconds | Literal["any"] = "any"
    fabrics: dict[str, Fabric | int] = Field(default_factory=dict)
    shapes: tuple[Ring | Mesh | int, ...] = ()


VALID = """\
# a job
model: llama3-8b
devices: [2, 4, 8]
schedule: any
memory: 80 GiB   # of one device
headroom: 6 %
step_time: &limit "20 s"
fabrics:
  inner: {shape: ring, width: 8}
  outer:
    shape: mesh
    widths: [2, 4]
shapes:
- {shape: ring, width: 1}
- 7
"""

LOADERS = sorted({yaml.SafeLoader, parser._LOADER}, key=lambda kind: kind.__name__)


def outcome(text: str, schema: object, kind: type) -> object:
    """Return what a text becomes with a parser, or the error that says what is wrong with it."""
    with mock.patch.object(parser, "_LOADER", kind):
        try:
            return loader.load_model(text, schema, name="x.yaml")
        except SpecError as error:
            return error


def is_answer(result: object, schema: type, text: str) -> bool:
    """Return whether ``result`` is a value of ``schema``, or problems that each tell what and where."""
    if not isinstance(result, SpecError):
        return isinstance(result, schema)
    lines = text.count("\n") + text.count("\r") + 2
    return bool(result.problems) and all(
        x.message.strip() and x.path.startswith("$") and (x.line is None or 1 <= x.line <= lines)
        for x in result.problems
    )


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
keys = st.sampled_from([*Job.model_fields, "shape", "width", "inner", "devics", "x y"])
trees = st.recursive(
    scalars | st.sampled_from(["any", "1f1b", "ring", "mesh", "80 GiB", "6 %"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
letters = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff"),
    max_size=8,
)
plain_trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**28), 10**28) | st.floats(1e-29, 1e29) | letters,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(letters, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("kind", LOADERS)
def test_the_text_that_is_edited_below_is_valid(kind):
    """The starting point of the edits loads."""
    assert outcome(VALID, Job, kind).memory == 80 * 2**30


@pytest.mark.parametrize("kind", LOADERS)
@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example(text="&a [*a]")
@example(text="? ? ? a")
@example(text="!<tag:yaml.org,2002:int> ''")
def test_any_text_gives_a_value_or_a_spec_error(kind, text):
    """No text, however broken, escapes as another exception."""
    assert is_answer(outcome(text, Job, kind), Job, text)


@pytest.mark.parametrize("kind", LOADERS)
@settings(max_examples=150, deadline=None)
@given(edits=edits)
def test_any_edit_of_a_valid_file_gives_a_value_or_a_spec_error(kind, edits):
    """A valid file that was damaged anywhere still reads, or says what is wrong."""
    text = edited(VALID, edits)

    assert is_answer(outcome(text, Job, kind), Job, text)


@settings(max_examples=300, deadline=None)
@given(tree=trees)
def test_any_tree_of_values_gives_a_model_or_a_spec_error(tree):
    """Values of every kind at every place are read, or refused with a path."""
    text = yaml.safe_dump(tree, allow_unicode=True)

    assert is_answer(outcome(text, Job, parser._LOADER), Job, text)
    assert is_answer(outcome(text, Fabric, parser._LOADER), Fabric, text)


@settings(max_examples=100, deadline=None)
@given(tree=trees)
def test_problems_stand_at_paths_of_the_file(tree):
    """A path leads to something in the file, or to a key that its mapping lacks."""
    text = yaml.safe_dump({"model": "m", "devices": 1, "fabrics": tree, "shapes": [tree]})
    result = outcome(text, Job, parser._LOADER)

    for problem in result.problems if isinstance(result, SpecError) else ():
        assert "literal[" not in problem.path
        assert "tuple[" not in problem.path
        assert not {"Ring", "Mesh"} & set(problem.path.replace("]", ".").split("."))


@settings(max_examples=200, deadline=None)
@given(tree=st.dictionaries(letters, plain_trees, min_size=1, max_size=3))
def test_what_is_written_is_read_back(tree):
    """Plain values survive being written as YAML 1.2 text and read again."""
    text = "".join(f"{written(key)}: {written(value)}\n" for key, value in tree.items())

    assert loader.parse_yaml(text, name="x.yaml").value == read_as(tree)


def written(value: object) -> str:
    """Return a value in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(k)}: {written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(part) for part in value) + "]"
    if isinstance(value, str):
        escaped = "".join(f"\\U{ord(c):08X}" if c in '"\\' or not c.isprintable() else c for c in value)
        return f'"{escaped}"'
    return repr(value).lower() if isinstance(value, bool) else repr(value).replace("None", "null")


def read_as(value: object) -> object:
    """Return a value with tuples for lists, as it is read."""
    if isinstance(value, dict):
        return {key: read_as(inner) for key, inner in value.items()}
    return tuple(read_as(part) for part in value) if isinstance(value, list) else value


# --- quantities

sizes = st.floats(0, 1e24, allow_nan=False)
dimensions = st.sampled_from(sorted(DIMENSIONS))


@given(number=st.floats(-1e12, 1e12, allow_subnormal=False), dimension=dimensions, data=st.data())
def test_a_quantity_is_its_number_times_its_unit(number, dimension, data):
    """Every number with every unit of a dimension reads as the product of both."""
    unit = data.draw(st.sampled_from(sorted(DIMENSIONS[dimension])))
    space = data.draw(st.sampled_from(["", " ", "  "]))

    assert parse_quantity(f"{number!r}{space}{unit}", dimension) == (number * DIMENSIONS[dimension][unit])


@given(number=st.integers() | st.floats(), dimension=dimensions)
def test_a_bare_number_is_never_a_quantity(number, dimension):
    """A number without a unit is refused, as a number and as text."""
    for bare in (number, str(number)):
        with pytest.raises(UnitError):
            parse_quantity(bare, dimension)


@given(
    text=st.text(max_size=20) | st.from_regex(r"[-+.0-9eE]{0,6} ?[a-zA-Z/%]{0,4}"),
    dimension=dimensions,
)
def test_any_text_is_a_finite_quantity_or_a_unit_error(text, dimension):
    """No text gives another exception, or a quantity that is not finite."""
    try:
        value = parse_quantity(text, dimension)
    except UnitError:
        return

    assert math.isfinite(value)


@given(number=st.floats(1e-3, 1e6), prefix=st.sampled_from("KMGTP"))
def test_binary_decimal_and_bit_prefixes_differ(number, prefix):
    """GiB is more than GB by the known ratio, and Gb/s is an eighth of GB/s."""
    decimal = parse_quantity(f"{number} {prefix}B", "bytes")
    binary = parse_quantity(f"{number} {prefix}iB", "bytes")
    bits = parse_quantity(f"{number} {prefix}b/s", "bytes/s")
    octets = parse_quantity(f"{number} {prefix}B/s", "bytes/s")

    assert binary / decimal == pytest.approx(1.024 ** (1 + "KMGTP".index(prefix)))
    assert octets == pytest.approx(8 * bits)


@given(size=sizes)
def test_what_is_printed_reads_as_about_the_same(size):
    """Printing and reading a quantity keeps it to the digits that are printed."""
    rate = parse_quantity(format_rate(size, "B/s"), "bytes/s")
    flops = parse_quantity(format_rate(size, "FLOP/s"), "FLOP/s")

    assert parse_quantity(format_bytes(size), "bytes") == pytest.approx(size, rel=0.051, abs=0.5)
    assert rate == pytest.approx(size, rel=0.0051)
    assert flops == pytest.approx(size, rel=0.0051)
    assert parse_quantity(format_share(size), "share") == pytest.approx(size, abs=0.00051, rel=1e-9)


@given(seconds=st.floats(1e-9, 1e6))
def test_a_printed_duration_reads_as_about_the_same(seconds):
    """Printing and reading a duration keeps it to two digits at least."""
    assert parse_quantity(format_seconds(seconds), "seconds") == pytest.approx(seconds, rel=0.051)


@given(number=st.floats(-1e17, 1e17))
def test_printed_numbers_have_no_exponent_where_a_prefix_fits(number):
    """A person never reads an exponent in a large size, rate or count."""
    texts = [format_bytes(number), format_count(number), format_rate(number, "B/s")]

    assert [text for text in texts if "e+" in text] == []
