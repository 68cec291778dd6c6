"""Result of ``compare``: layouts of one job side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.results.explanation import Difference, differences
from autoplan.results.front import OrderNoise, order_noise
from autoplan.results.plan import Plan
from autoplan.results.serving.serving_front import SERVING_THINNING, ServingPlan, loss
from autoplan.schema.job import Job
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import Dimension

# Values of a link, batch or sequence at which another layout becomes the best.


KnobName = Literal[
    "fabric_bandwidth",
    "fabric_latency",
    "network_bandwidth",
    "network_latency",
    "global_batch_size",
    "sequence_length",
]


@dataclass(frozen=True, slots=True)
class Knob:
    """A number of the job or of its hardware that is varied, with its present value.

    ``dimension`` is None for counts: sequences of a step, tokens of a sequence.
    """

    name: KnobName
    present: float
    dimension: Dimension | None


@dataclass(frozen=True, slots=True)
class KnobSide:
    """The layouts priced at one ``value``: steps [s] and whether they fit, in their order.

    ``winner`` is the number of the best one, from 0: the fastest that fits. Where none fits it is None,
    unless none fits at the present value either: then it is the fastest.
    """

    value: float
    step_seconds: tuple[float, ...]
    fits: tuple[bool, ...]
    winner: int | None


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value at which the winner changes, and the layouts priced on either side of it.

    ``by_memory`` says that it changes because a layout fits on one side alone. Between ``noise_low`` and
    ``noise_high`` the two steps are closer than ``noise``, which the cost model cannot tell apart; these are
    None where the range ends first, and all three where nothing is known of that. ``microbatches`` of a step
    are those of each layout, where the batch is varied.
    """

    value: float
    below: KnobSide
    above: KnobSide
    by_memory: bool
    noise: float | None = None
    noise_low: float | None = None
    noise_high: float | None = None
    microbatches: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class KnobRange:
    """What the verdict is between the ``least`` and the ``most`` value of a knob: where it changes.

    ``why`` says why a knob was not solved, and is empty where it was.
    """

    knob: Knob
    least: float
    most: float
    crossings: tuple[Crossing, ...]
    winner_at_least: int | None = None
    winner_at_most: int | None = None
    why: str = ""

    @property
    def nearest(self) -> Crossing | None:
        """The crossing nearest to the present value, by ratio; None where the winner never changes."""
        present = self.knob.present
        return min(self.crossings, key=lambda x: max(x.value / present, present / x.value), default=None)


# Layouts of engines side by side, and the loads between which each is best.


@dataclass(frozen=True, slots=True)
class ComparedEngines:
    """One layout, its name, and its job on the devices that it takes."""

    name: str
    job: ServingJob
    plan: ServingPlan


@dataclass(frozen=True, slots=True)
class BestAtLoads:
    """Loads in a row at which the layout at a place is best; None where none holds the limits."""

    first: float
    last: float
    layout: int | None


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """Layouts of a serving job side by side.

    ``best`` has the place of the best layout by objective, of those that serve and hold the limits; ``loads``
    say which is best by the first objective of the job, from the least load that was tried to the most.
    """

    job: ServingJob
    layouts: tuple[ComparedEngines, ...]
    best: tuple[tuple[ServingObjective, int], ...]
    loads: tuple[BestAtLoads, ...]

    @property
    def feasible(self) -> tuple[int, ...]:
        """Places of the layouts that serve and hold every limit."""
        return tuple(place for place, one in enumerate(self.layouts) if one.plan.feasible)

    @property
    def decision(self) -> Decision | None:
        """Which layout to pick, and the objective that decides it; None where no layout holds the limits.

        Objectives count in the order of the job: the next one where the best of one are within the thinning
        of a front of each other. Where limits leave one layout, no objective decides.
        """
        left = list(self.feasible)
        if not left:
            return None
        if len(left) == 1:
            return Decision(left[0], None)
        for objective in self.job.objectives:
            plans = {place: self.layouts[place].plan for place in left}
            first = min(left, key=lambda place: loss(plans[left[0]], plans[place], objective))
            alike = [x for x in left if loss(plans[first], plans[x], objective) <= SERVING_THINNING]
            if len(alike) == 1:
                return Decision(first, objective)
            left = alike
        return Decision(left[0], None, tied=tuple(left))


@dataclass(frozen=True, slots=True)
class Decision:
    """The place of the layout to pick, and the objective by which it wins; None: limits leave no other.

    ``tied`` are the places of layouts that no objective tells apart.
    """

    place: int
    objective: ServingObjective | None
    tied: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AxisDegree:
    """An axis of the mesh and its degree."""

    axis: str
    degree: int


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """How the tensors of one kind are spread: split over some axes, copied over others.

    Axes of degree one, and those that the tensor does not meet, are left out.
    """

    tensor: str
    split: tuple[AxisDegree, ...]
    copied: tuple[AxisDegree, ...]


@dataclass(frozen=True, slots=True)
class CollectiveTraffic:
    """Messages of one operation at one place of a step, on the stage that sends most.

    ``message_bytes`` are of the full tensor of one call, ``sent_bytes`` what one rank sends in a step.
    ``calls_per_layer`` are those of one layer and microbatch; None where they are not those of layers, or
    happen once a step.
    """

    axis: str
    operation: str
    part: str
    phase: str
    ranks: int
    spans_nodes: bool
    message_bytes: float
    calls: float
    calls_per_layer: float | None
    sent_bytes: float

    @property
    def sent_bytes_per_layer(self) -> float | None:
        """What one rank sends for one layer and microbatch [byte]."""
        if self.calls_per_layer is None or not self.calls:
            return None
        return self.sent_bytes * self.calls_per_layer / self.calls


@dataclass(frozen=True, slots=True)
class AxisSeconds:
    """Communication of one axis in a step: in all and exposed [s]."""

    axis: str
    total_seconds: float
    exposed_seconds: float

    @property
    def hidden_seconds(self) -> float:
        """What compute hides [s]."""
        return max(0.0, self.total_seconds - self.exposed_seconds)


@dataclass(frozen=True, slots=True)
class ComparedLayout:
    """One of the layouts that are compared; ``name`` is what the user calls it.

    ``latency_seconds`` is the time of one microbatch through all stages, forward and backward.
    """

    name: str
    plan: Plan
    splits: tuple[TensorSplit, ...]
    traffic: tuple[CollectiveTraffic, ...]
    axes: tuple[AxisSeconds, ...]
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class UnsolvedKind:
    """A kind of layout that was asked for and has none, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class LayoutComparison:
    """Layouts of ``job`` in the order in which they were asked for, and where their order changes.

    ``best`` is the fastest layout of the whole job, proven so where ``best_proven``; None where it was not
    found, and then ``best_why`` says why. ``missing`` are kinds of layouts that the job has none of.
    """

    job: Job
    layouts: tuple[ComparedLayout, ...]
    knobs: tuple[KnobRange, ...]
    best: Plan | None
    best_proven: bool
    best_why: str = ""
    missing: tuple[UnsolvedKind, ...] = ()
    #: Whether the knobs have each kind of layouts planned again at every value.
    replanned: bool = False
    #: What is to be known of a file that a layout was read from.
    notes: tuple[str, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The layouts with their predictions."""
        return tuple(layout.plan for layout in self.layouts)

    @property
    def order(self) -> tuple[int, ...]:
        """Numbers of the layouts, from 0: those that fit before the others, the fastest first."""
        return ranked(
            [plan.predicted.step_seconds for plan in self.plans],
            [plan.predicted.fits for plan in self.plans],
        )

    @property
    def winner(self) -> ComparedLayout:
        """The fastest layout that fits; where none fits, the fastest."""
        return self.layouts[self.order[0]]

    @property
    def noise(self) -> OrderNoise | None:
        """The layouts that the model cannot tell apart from the fastest, by number from 1; None if alone.

        Layouts that do not fit take no part where one fits.
        """
        fitting = [plan for plan in self.plans if plan.predicted.fits or not self._some_fit]
        noise = order_noise(fitting, self.job.stack)
        if noise is None:
            return None
        number = [self.plans.index(plan) + 1 for plan in fitting]
        return OrderNoise(
            noise.share,
            tuple(number[n - 1] for n in noise.plans),
            simplest=number[noise.simplest - 1],
            smallest=number[noise.smallest - 1],
        )

    @property
    def _some_fit(self) -> bool:
        return any(plan.predicted.fits for plan in self.plans)

    def losses(self, number: int) -> tuple[Difference, ...]:
        """Return by part where layout ``number``, from 0, takes longer than the winner, the most first."""
        return differences(self.plans[number].predicted, self.winner.plan.predicted)


def ranked(step_seconds: list[float], fits: list[bool]) -> tuple[int, ...]:
    """Return the numbers of layouts, those that fit before the others, the fastest first.

    >>> ranked([3.0, 1.0, 2.0], [True, False, True])
    (2, 0, 1)
    """
    return tuple(sorted(range(len(fits)), key=lambda i: (not fits[i], step_seconds[i])))
