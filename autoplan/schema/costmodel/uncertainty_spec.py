"""How sure the predictions of a stack are."""

from __future__ import annotations

from pydantic import Field

from autoplan.schema.base import Frozen, PositiveBandwidth, SourcedShare
from autoplan.schema.costmodel.kernel_spec import SourcedFactor

__all__ = ["UncertaintySpec"]


class UncertaintySpec(Frozen):
    """Half-widths of the 90 % interval of a prediction, as shares of it."""

    time: SourcedShare = Field(description="of a step time that measured tables price altogether")
    time_modelled: SourcedShare = Field(
        description="what is added, as independent errors add, to one that they price none of"
    )
    slower: SourcedFactor | None = Field(
        default=None, description="width above a step time over the width below it; left out: 1"
    )
    order: SourcedShare | None = Field(
        default=None,
        description="difference of two step times of a job below which their order is often wrong;"
        " left out: not known",
    )
    slowest_host_copy: PositiveBandwidth | None = Field(
        default=None,
        description="rate of a ring through host memory, of devices without peer copies, on the slowest"
        " hosts, to which the interval reaches; left out: no host differs",
    )
    slowest_send: PositiveBandwidth | None = Field(
        default=None,
        description="rate of one rank's sends between the nodes of a pipeline on the slowest networks: the"
        " interval reaches to it; left out: as collectives",
    )
    memory: SourcedShare = Field(
        description="of allocated memory; what the allocator and the framework add has ranges of its own"
    )
