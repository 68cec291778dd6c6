"""The ground that every file schema stands on: frozen models, quantities, numbers with a source."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    ValidationInfo,
    WithJsonSchema,
)

from autoplan.units import Dimension, UnitError, parse_quantity, quantity_text

#: The key of pydantic's validation context that says: this comes from a file, so units are needed.
FROM_FILE = "from_file"

#: The key of pydantic's serialization context that says: this goes to a file, so units are written.
TO_FILE = "to_file"

#: What a quantity other than 0 may be: wider than any hardware or run, and far from where arithmetic fails.
RANGES: Final[dict[Dimension, tuple[str, str]]] = {
    "bytes": ("1 B", "1000 PB"),
    "bytes/s": ("1 B/s", "1000 PB/s"),
    "FLOP/s": ("1 MFLOP/s", "1000 EFLOP/s"),
    "seconds": ("0.001 ns", "1000000 h"),
    "share": ("0.000001 %", "100 %"),
    "watts": ("0.001 W", "1000000 kW"),
    "joules": ("1 J", "1000000 PJ"),
}

NumberKind = Literal["data sheet", "measured", "derived", "fitted", "guess"]


class LeftOutAtDefault:
    """Marks a field that a resolved job leaves out at its default, as did documents from before it."""


class Frozen(BaseModel):
    """A value read from a file: immutable, and strict about what it is given."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True, allow_inf_nan=False)


def _quantity(dimension: Dimension, example: str) -> tuple[object, ...]:
    """Return the annotations of a field that is a text with a unit in a file, a float inside."""
    least, most = (parse_quantity(text, dimension) for text in RANGES[dimension])

    def read(value: object, info: ValidationInfo) -> float:
        # Python callers give base units as floats; in a file a bare number is an error.
        bare = isinstance(value, float) and not (info.context or {}).get(FROM_FILE)
        size: float = value if bare else parse_quantity(value, dimension)  # type: ignore[assignment]
        # A share above 1 and what is negative have other sentences.
        if 0 < size < least or (size > most and dimension != "share"):
            raise UnitError(f"{value!r} must be from {' to '.join(RANGES[dimension])}")
        return size

    def write(value: float, info: SerializationInfo) -> float | str:
        return quantity_text(value, dimension) if (info.context or {}).get(TO_FILE) else value

    schema = {"type": "string", "examples": [example], "description": f"with its unit: {example}"}
    return (BeforeValidator(read), PlainSerializer(write), Field(ge=0), WithJsonSchema(schema))


Bytes = Annotated[float, *_quantity("bytes", "80 GiB")]
Bandwidth = Annotated[float, *_quantity("bytes/s", "3.35 TB/s")]
FlopRate = Annotated[float, *_quantity("FLOP/s", "312 TFLOP/s")]
Seconds = Annotated[float, *_quantity("seconds", "5 us")]
Share = Annotated[float, *_quantity("share", "6 %"), Field(le=1)]
Watts = Annotated[float, *_quantity("watts", "400 W")]
Joules = Annotated[float, *_quantity("joules", "250 kWh")]


class Sourced(Frozen):
    """A number that says what kind of knowledge it is and where it comes from."""

    kind: NumberKind = Field(description="how the number is known; a guess is called a guess")
    source: str = Field(min_length=3, description="a key of the file's `sources`, or the source in words")
    note: str | None = Field(default=None, description="anything a reader should know about the number")


class SourcedBytes(Sourced):
    """A sourced size."""

    value: Bytes = Field(description="size with its unit, such as 80 GiB")


class SourcedBandwidth(Sourced):
    """A sourced data rate."""

    value: Bandwidth = Field(description="data rate with its unit, such as 3.35 TB/s")


class SourcedFlopRate(Sourced):
    """A sourced arithmetic rate."""

    value: FlopRate = Field(description="arithmetic rate with its unit, such as 312 TFLOP/s")


class SourcedSeconds(Sourced):
    """A sourced duration."""

    value: Seconds = Field(description="duration with its unit, such as 5 us")


class SourcedShare(Sourced):
    """A sourced share of one."""

    value: Share = Field(description="share with its unit, such as 82 %")


class SourcedFactor(Sourced):
    """A sourced ratio that may exceed one."""

    value: float = Field(ge=0, le=1e6, strict=False, description="a ratio without a unit")


class SourcedWatts(Sourced):
    """A sourced power."""

    value: Watts = Field(description="power with its unit, such as 400 W")


class SourcedCount(Sourced):
    """A sourced count."""

    value: int = Field(ge=0, le=1_000_000, description="a whole number")


_S = TypeVar("_S", SourcedBytes, SourcedBandwidth, SourcedShare)


def _positive(number: _S) -> _S:
    if not number.value > 0:
        raise ValueError("the value must be more than 0, since something is divided by it")
    return number


#: Sourced numbers that something is divided by.
PositiveBytes = Annotated[SourcedBytes, AfterValidator(_positive)]
PositiveBandwidth = Annotated[SourcedBandwidth, AfterValidator(_positive)]
PositiveShare = Annotated[SourcedShare, AfterValidator(_positive)]
