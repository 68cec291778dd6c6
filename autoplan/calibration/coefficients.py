"""Coefficients of the time model that calibration fits, with their priors.

Each is fitted along an unbounded coordinate: the logarithm of a time or a factor, the logit of a share. Its
prior along that coordinate is a Gaussian around the shipped value.
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

Part: TypeAlias = Literal["stack", "kernels"]
S = TypeVar("S", bound=Frozen)

#: Standard deviation of the prior along the coordinate, by the kind of the shipped number. Along a
#: logarithm 0.1 is 10 %; along the logit of a share, 0.1 is 2 points at 80 % and half a point at 97 %.
PRIOR_WIDTHS: Final[dict[NumberKind, float]] = {
    "data sheet": 0.10,  # from a vendor: differs with software releases only
    "measured": 0.15,  # measured on one machine: others differ by a few per cent
    "derived": 0.25,  # derived from numbers of another machine
    "fitted": 0.35,  # fitted to published runs, including other errors of the model
    "guess": 0.80,  # not measured: may be off by a factor of two
}

#: Extension of the logit beyond 0 and 100 %, so that shares shipped as 0 or 1 can change.
_MARGIN: Final = 0.05


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A sourced number of a stack or of kernels, with its valid range.

    ``attention`` are the attention kernels that it applies to, empty for all. ``prior`` is the standard
    deviation of the prior along the coordinate; without it, that of the number's kind.
    """

    part: Part
    path: tuple[str, ...]
    scale: Literal["log", "logit"]
    low: float
    high: float
    meaning: str
    attention: tuple[str, ...] = ()
    prior: float | None = None

    @property
    def name(self) -> str:
        """The name of the number in its file.

        >>> COEFFICIENTS[0].name
        'block.elementwise_traffic'
        """
        return ".".join(self.path)

    def coordinate(self, value: float) -> float:
        """Return the unbounded coordinate of ``value``.

        >>> traffic, attention = COEFFICIENTS[:2]
        >>> traffic.coordinate(1.0), round(attention.coordinate(0.5), 12)
        (0.0, 0.0)
        """
        if self.scale == "log":
            return math.log(max(value, self.low))
        return math.log((value + _MARGIN) / (1.0 + _MARGIN - value))

    def value(self, coordinate: float) -> float:
        """Return the value at ``coordinate``, clipped to the coefficient's range."""
        if self.scale == "log":
            unclipped = math.exp(coordinate)
        else:
            unclipped = (1.0 + 2.0 * _MARGIN) / (1.0 + math.exp(-coordinate)) - _MARGIN
        return min(max(unclipped, self.low), self.high)


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
        ("flash1", "flash1-triton", "masked"),
    ),
    _kernels("collectives.network_share", 0.02, "bandwidth of the network that a ring reaches"),
    _kernels("collectives.fabric_share", 0.02, "bandwidth of the fabric that a ring reaches"),
)


def _spec(job: Job, part: Part) -> StackSpec | KernelSpec:
    return job.stack if part == "stack" else job.kernels


def owner_of(job: Job, coefficient: Coefficient) -> str:
    """Return the name of the file that contains ``coefficient`` of ``job``."""
    return _spec(job, coefficient.part).name


def affecting(job: Job, coefficient: Coefficient) -> bool:
    """Return whether the step time of ``job`` depends on ``coefficient``."""
    return not coefficient.attention or job.stack.block.attention in coefficient.attention


def number_of(job: Job, coefficient: Coefficient) -> Any:  # noqa: ANN401 - each kind of sourced number
    """Return the sourced number of ``job`` that ``coefficient`` names."""
    return number_at(_spec(job, coefficient.part), coefficient.path)


def number_at(model: Frozen, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - each kind of sourced number
    """Return the number at ``path`` of a stack or of kernels."""
    number: Any = model
    for name in path:
        number = getattr(number, name)
    return number


def prior_width(job: Job, coefficient: Coefficient) -> float:
    """Return the standard deviation of the prior of ``coefficient`` of ``job`` along its coordinate."""
    return coefficient.prior or PRIOR_WIDTHS[number_of(job, coefficient).kind]


def with_values(job: Job, values: Mapping[Coefficient, float]) -> Job:
    """Return ``job`` with new values of coefficients; their kind, source and note do not change."""
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
