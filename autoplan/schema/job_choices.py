"""Several numbers of devices and batches of a job, and the price of devices."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from autoplan.schema.base import Frozen

ZeroStage = Annotated[int, Field(ge=0, le=3)]
Batch = Annotated[int, Field(ge=1, le=10_000_000)]


def distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``values``; raises ValueError where one is given twice."""
    if len(set(values)) != len(values):
        raise ValueError(f"{list(values)} has a duplicate value")
    return values


class BatchRange(Frozen):
    """Global batches from one size to another: doubled from step to step, or by steps of a size."""

    first: Batch = Field(alias="from", description="smallest batch, in sequences")
    last: Batch = Field(alias="to", description="largest batch, in sequences")
    step: Batch | None = Field(default=None, description="difference of two batches; left out: each doubles")


Batches = (
    Batch
    | Annotated[tuple[Batch, ...], Field(min_length=1, max_length=64), AfterValidator(distinct)]
    | BatchRange
)


class PriceSpec(Frozen):
    """What a device costs an hour, and when it did."""

    per_device_hour: float = Field(ge=1e-6, le=1e6, description="price of one device for one hour")
    currency: str = Field(default="USD", pattern="^[A-Z]{3}$", description="its currency, such as USD")
    date: str = Field(
        pattern="^[0-9]{4}-[01][0-9]-[0-3][0-9]$", description="day of the price, such as 2026-11-01"
    )


def batches_of(batches: int | tuple[int, ...] | BatchRange) -> tuple[int, ...]:
    """Return the global batches to plan for, in the order asked for.

    Of a range that doubles, the last is the largest that is no larger than ``to``, and ``to`` itself.

    >>> batches_of(BatchRange.model_validate({"from": 256, "to": 1024}))
    (256, 512, 1024)
    >>> batches_of(BatchRange.model_validate({"from": 100, "to": 250, "step": 100}))
    (100, 200)
    """
    if isinstance(batches, int):
        return (batches,)
    if isinstance(batches, tuple):
        return batches
    if batches.step is not None:
        return tuple(range(batches.first, batches.last + 1, batches.step))
    doubled = [batches.first << i for i in range(24) if batches.first << i < batches.last]
    return (*doubled, batches.last) if batches.first <= batches.last else ()
