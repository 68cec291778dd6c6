"""Numbers with the range in which they were seen."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from autoplan.schema.base import Bytes, SourcedBytes
from autoplan.schema.costmodel.kernel_spec import SourcedFactor

__all__ = ["RangedBytes", "RangedFactor"]


class RangedBytes(SourcedBytes):
    """A sourced size with the range in which it was seen."""

    low: Bytes = Field(description="least that was seen")
    high: Bytes = Field(description="most that was seen")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _refuse_outside(self.low, self.value, self.high)
        return self


class RangedFactor(SourcedFactor):
    """A sourced ratio with the range in which it was seen."""

    low: float = Field(ge=0, le=1e6, strict=False, description="least that was seen")
    high: float = Field(ge=0, le=1e6, strict=False, description="most that was seen")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _refuse_outside(self.low, self.value, self.high)
        return self


def _refuse_outside(low: float, value: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError("the value is outside of its own range: low <= value <= high is needed")
