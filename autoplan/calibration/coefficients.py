"""The few coefficients of time that mechanisms leave open, and how far each may be from what is shipped.

A coefficient moves along a coordinate without end: the logarithm of a time or a factor, the logit of a
share. Its prior is a Gaussian around the shipped value there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar

from autoplan.schema.base import Frozen, NumberKind, Sourced
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job

__all__ = [
    "COEFFICIENTS",
    "PRIOR_WIDTHS",
    "Coefficient",
    "Part",
    "affecting",
    "number_of",
    "owner_of",
    "with_values",
]

Part: TypeAlias = Literal["stack", "kernels"]
S = TypeVar("S", bound=Frozen)

#: Standard deviation of the prior along the coordinate, by how the shipped number is known. Along a
#: logarithm 0.1 is 10 %; along the logit of a share, 0.1 is 2 points at 80 % and half a point at 97 %.
PRIOR_WIDTHS: Final[dict[NumberKind, float]] = {
    "data sheet": 0.10,  # restated from a maker: only another release of the software differs
    "measured": 0.15,  # measured on one machine: another one differs by a few per cent
    "derived": 0.25,  # as good as what it was derived from, on another machine
    "fitted": 0.35,  # made to meet other people's runs, with whatever else was wrong in them
    "guess": 0.80,  # nobody measured it: a factor of two either way is no surprise
}

#: By how much the logit reaches beyond 0 and 100 %, so that a share that is shipped as one of them can move.
_MARGIN: Final = 0.05


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A sourced number of a stack or of kernels, and the range outside of which it makes no sense.

    ``attention`` are the only kinds that feel it, none where all do.
    """

    part: Part
    path: tuple[str, ...]
    scale: Literal["log", "logit"]
    low: float
    high: float
    meaning: str
    attention: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the number as its file has it.

        >>> COEFFICIENTS[0].name
        'block.elementwise_traffic'
        """
        return ".".join(self.path)

    def coordinate(self, value: float) -> float:
        """Return where ``value`` stands on the line without end.

        >>> traffic, attention = COEFFICIENTS[:2]
        >>> traffic.coordinate(1.0), round(attention.coordinate(0.5), 12)
        (0.0, 0.0)
        """
        if self.scale == "log":
            return math.log(max(value, self.low))
        return math.log((value + _MARGIN) / (1.0 + _MARGIN - value))

    def value(self, coordinate: float) -> float:
        """Return the value at ``coordinate``, inside of the coefficient's range."""
        if self.scale == "log":
            free = math.exp(coordinate)
        else:
            free = (1.0 + 2.0 * _MARGIN) / (1.0 + math.exp(-coordinate)) - _MARGIN
        return min(max(free, self.low), self.high)


def _stack(path: str, scale: Literal["log", "logit"], low: float, high: float, meaning: str) -> Coefficient:
    return Coefficient("stack", tuple(path.split(".")), scale, low, high, meaning)


def _kernels(path: str, low: float, meaning: str, attention: tuple[str, ...] = ()) -> Coefficient:
    return Coefficient("kernels", tuple(path.split(".")), "logit", low, 1.0, meaning, attention)


COEFFICIENTS: Final[tuple[Coefficient, ...]] = (
    _stack("block.elementwise_traffic", "log", 0.5, 10.0, "traffic of activations, rotations and copies"),
    _stack("block.attention_share", "logit", 0.10, 1.0, "rate of attention over the measured kernels'"),
    _stack("block.norm_traffic", "log", 0.5, 10.0, "traffic of norms and additions"),
    _stack("overlap.interference", "logit", 0.0, 1.0, "hidden communication that slows compute"),
    _stack("host_launch", "log", 2e-7, 1e-4, "host time to launch a kernel"),
    _kernels("gemm.sustained_share", 0.30, "clock of long training over that of a sweep"),
    _kernels(
        "attention.flash1_share",
        0.10,
        "rate of the first FlashAttention over the second's",
        ("flash1", "flash1-triton"),
    ),
    _kernels("collectives.network_share", 0.02, "bandwidth of the network that a ring reaches"),
    _kernels("collectives.fabric_share", 0.02, "bandwidth of the fabric that a ring reaches"),
)


def _spec(job: Job, part: Part) -> StackSpec | KernelSpec:
    return job.stack if part == "stack" else job.kernels


def owner_of(job: Job, coefficient: Coefficient) -> str:
    """Return the name of the file that holds ``coefficient`` of ``job``."""
    return _spec(job, coefficient.part).name


def affecting(job: Job, coefficient: Coefficient) -> bool:
    """Return whether the time of ``job`` depends on ``coefficient`` at all."""
    return not coefficient.attention or job.stack.block.attention in coefficient.attention


def number_of(job: Job, coefficient: Coefficient) -> Any:  # noqa: ANN401 - each kind of sourced number
    """Return the sourced number of ``job`` that ``coefficient`` names."""
    here: Any = _spec(job, coefficient.part)
    for name in coefficient.path:
        here = getattr(here, name)
    return here


def with_values(job: Job, values: Mapping[Coefficient, float]) -> Job:
    """Return ``job`` with other values of some coefficients; what is said of them stays."""
    stack, kernels = job.stack, job.kernels
    for coefficient, value in values.items():
        if coefficient.part == "stack":
            stack = with_number(stack, coefficient.path, value=value)
        else:
            kernels = with_number(kernels, coefficient.path, value=value)
    return replace(job, stack=stack, kernels=kernels)


def with_number(model: S, path: tuple[str, ...], **update: object) -> S:
    """Return ``model`` with the fields ``update`` of the number at ``path`` changed."""
    inner = getattr(model, path[0])
    if len(path) > 1:
        changed: Frozen = with_number(inner, path[1:], **update)
    elif isinstance(inner, Sourced):
        changed = inner.model_copy(update=update)
    else:
        raise TypeError(f"{path[0]} is not a sourced number")
    return model.model_copy(update={path[0]: changed})
