"""Files of measured steps: what a user ran, and how long its steps took."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autoplan.schema.base import Frozen, Seconds

#: With fewer, leaving one out leaves nothing to judge a calibration of all coefficients by.
LEAST_RUNS = 3


class RunSpec(Frozen):
    """One measured run."""

    job: str = Field(min_length=1, description="a job file, relative to this file, or a shipped job")
    layout: str = Field(description="the layout that ran, such as tp=2,mbs=1,recompute=selective")
    step_time: Annotated[Seconds, Field(gt=0)] = Field(description="seconds of a step, once warm: 12.3 s")
    note: str | None = Field(default=None, description="anything a reader should know about the run")


class RunsSpec(Frozen):
    """Measured runs of one stack on devices of one family."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Literal["runs"] = Field(description="this file holds measured runs")
    runs: Annotated[tuple[RunSpec, ...], Field(min_length=1)] = Field(
        description="the runs: three or more, better ten that differ in what they stress; one with --machine"
    )
