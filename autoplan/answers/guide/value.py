"""Result of ``guide``: how to train a model on some hardware, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.results.explanation import BottleneckShare, Contrast, Difference
from autoplan.results.front import Front
from autoplan.results.plan import Plan
from autoplan.schema.job import Job

# Strong and weak scaling over numbers of devices, against Amdahl's and Gustafson's laws.


ScalingKind = Literal["strong", "weak"]


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The best plan of one number of devices; ``speedup`` is in tokens per second over the base of the line.

    ``line`` is what the law says of it, from the base on. ``plan`` is None where there is none, and then
    ``why`` is the reason.
    """

    devices: int
    nodes: int
    global_batch_size: int
    plan: Plan | None
    why: str = ""
    speedup: float | None = None
    line: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingLine:
    """Plans over numbers of devices: with the same batch (strong), or as much batch for each device (weak).

    ``base`` are the devices of the point that speedups are over, and ``serial_share`` is that of the law
    through it and the next point; fewer devices than the base lack memory, and more gain more than their
    number. ``breaks_at`` are the devices from which on the plans fall below the law by more than the model's
    noise, and ``broken_by`` is the part of the step whose share grew most there.
    """

    kind: ScalingKind
    points: tuple[ScalingPoint, ...]
    base: int | None
    serial_share: float | None
    breaks_at: int | None
    broken_by: str | None


@dataclass(frozen=True, slots=True)
class RecomputeNeed:
    """Memory of the activations and logits of one sequence under a recompute mode [byte]."""

    mode: str
    activation_bytes: float
    logits_bytes: float
    transient_bytes: float


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Memory of one replica of the model, on one device that need not exist [byte].

    ``least_devices`` could hold its states if they were spread evenly, and nothing else.
    """

    parameters: int
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    framework_bytes: float
    sequences: tuple[RecomputeNeed, ...]
    limit_bytes: float
    least_devices: int

    @property
    def state_bytes(self) -> float:
        """Parameters, gradients and optimizer states [byte]."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def bytes_per_parameter(self) -> float:
        """States of a parameter [byte]."""
        return self.state_bytes / self.parameters


@dataclass(frozen=True, slots=True)
class LadderRung:
    """The fastest layout once ``name`` may be used, besides what the rungs below may.

    ``plan`` is None where there is none, and then ``why`` is the reason; ``least_bytes`` is then the least
    memory of a device with which a layout would fit, where it is memory that is missing. ``precision`` is
    that of the rung's job. Where the plan does not use ``name``, ``forced`` is the fastest one that does, if
    any.
    """

    name: str
    precision: str
    plan: Plan | None
    why: str = ""
    least_bytes: float | None = None
    proven: bool = True
    forced: Plan | None = None
    #: The plan of the nearest rung below that has one, and by part what the plan takes more or less than it.
    below: Plan | None = None
    changes: tuple[Difference, ...] = ()
    #: By part, what ``forced`` takes more or less than the plan.
    forced_changes: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class DegreeChoice:
    """A degree of the best layout, and the fastest layouts with other values of it.

    ``key`` is the search's: ``tensor_parallel`` or ``pipeline_parallel``.
    """

    key: str
    value: int
    others: tuple[Contrast, ...]


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the batch means for the best layout.

    ``most_replicas`` can work at once on the batch. With a critical batch size (tokens) of the user:
    ``steps_over_least`` and ``tokens_over_least`` are steps and tokens to a loss over the least possible
    ones, ``devices_at_critical`` those at which weak scaling reaches the critical batch.
    """

    tokens: int
    microbatches: int
    most_replicas: int
    critical_tokens: float | None = None
    steps_over_least: float | None = None
    tokens_over_least: float | None = None
    devices_at_critical: float | None = None


@dataclass(frozen=True, slots=True)
class PrecisionChange:
    """The fastest plan in another precision; None and the reason where there is none."""

    precision: str
    plan: Plan | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TrainingGuide:
    """How to train the model of ``job`` on its hardware.

    ``front`` is what ``plan`` answers, its fastest plan is the best one. ``assumed`` are the choices of the
    job that nobody made.
    """

    job: Job
    front: Front
    memory: MemoryNeeds
    rungs: tuple[LadderRung, ...]
    degrees: tuple[DegreeChoice, ...]
    scaling: tuple[ScalingLine, ...]
    bottlenecks: tuple[BottleneckShare, ...]
    batch: BatchFacts | None
    precisions: tuple[PrecisionChange, ...]
    assumed: tuple[str, ...] = ()

    @property
    def best(self) -> Plan | None:
        """The fastest plan; None where nothing is feasible."""
        return self.front.fastest if self.front.plans else None

    @property
    def simplest(self) -> LadderRung | None:
        """The first rung in the job's precision that has a plan: the simplest layout that works."""
        equal = [
            rung for rung in self.rungs if rung.plan is not None and rung.precision == self.job.precision
        ]
        return equal[0] if equal else None
