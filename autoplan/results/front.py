"""Results of ``plan``: Pareto-optimal plans, certificate, rejected layouts, and changes that help.

``ParetoFront``, ``Change`` and ``Rejection`` are those of any kind of job; ``Front``, ``Suggestion`` and
``Certificate`` are those of training.

Plans whose step times are closer than the cost model can tell apart, what narrows the interval of a step
time, and what the choice of a layout hangs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, Self, TypeVar

from autoplan.costs.core.prediction import JobFacts
from autoplan.results.merged_front import at_batch, choice_key
from autoplan.results.plan import Plan, StackStep
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, Layout

RejectionKind = Literal["rule", "equivalent", "memory", "not on the front"]
Status = Literal["optimal", "feasible", "infeasible"]


J = TypeVar("J")
P = TypeVar("P")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Rejection:
    """How many layouts fell to one reason, the first that applies; with the front they make the space.

    A layout falls to a ``rule``, is ``equivalent`` to one that is covered (or dominated by it under any
    limit), belongs to a choice of degrees that does not fit in ``memory`` even with full recompute, or is
    covered and ``not on the front``: dominated within the tolerance by a plan of it, or above a limit. Of a
    serving job layouts are engines by degrees and formats.
    """

    reason: str
    layouts: int
    kind: RejectionKind = "rule"


@dataclass(frozen=True, slots=True)
class Change(Generic[P]):
    """A change of a job that makes a plan possible, and the best ``plan`` with it."""

    plan: P = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class ParetoFront(Generic[J, P, C]):
    """The Pareto-optimal plans of a job of any kind; empty when nothing is feasible.

    Then ``reasons`` say why, and ``conflict`` is a minimal unsatisfiable subset of the requirements.
    """

    job: J
    plans: tuple[P, ...]
    certificate: C
    rejected: tuple[Rejection, ...]
    reasons: tuple[str, ...] = ()
    conflict: tuple[str, ...] = ()
    #: The fronts for each number of devices, and of training each batch, where the job asks for several.
    answers: tuple[Self, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether there is any plan."""
        return bool(self.plans)

    @property
    def answered(self) -> bool:
        """Whether the question is answered with a plan."""
        return self.feasible


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of a job file: key, present value and new value as YAML."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.after} instead of {self.before}"


@dataclass(frozen=True, slots=True)
class Suggestion(Change[Plan]):
    """The smallest sufficient change of one kind: its edits, and the fastest plan with them."""

    kind: str
    edits: tuple[Edit, ...]
    devices: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is proven about a front.

    ``status`` optimal: no layout of the space dominates a plan of the front, and every layout is dominated,
    within a share of ``thinning`` of time and memory, by one of them; feasible: the search was ``stopped``,
    by its allowance of work, a time limit or the user, and the front is the best so far.
    ``best_bound_step_seconds`` is the solver's proven bound on the fastest step, ``fastest_gap`` the distance
    of the fastest plan from it, and ``gap`` the largest distance of a plan from the bound within its memory:
    after a stop the fastest plan may be proven and a smaller one not.
    ``layouts_covered`` counts complete layouts (with stages and recompute), ``candidates`` the choices of
    degrees, microbatch, ZeRO stage and schedule among them, ``candidates_solved`` those that reached the
    solver, the rest being excluded by bounds. ``layouts_total`` counts the whole space: it is what was
    covered and what fell to rules or is equivalent to another layout. ``job_hash`` names the resolved job
    with its cost model, ``cost_model_hash`` the cost model alone; ``solver_parameters`` are those of every
    solve. ``unsearched`` names what can run and is no part of the space.
    """

    status: Status
    best_bound_step_seconds: float | None
    gap: float | None
    thinning: float
    layouts_covered: int
    candidates: int
    candidates_solved: int
    solver: str
    solves: int
    layouts_total: int
    solver_parameters: tuple[tuple[str, float], ...]
    stopped: str | None
    job_hash: str
    cost_model_hash: str
    autoplan_version: str
    unsearched: tuple[str, ...] = ()
    fastest_gap: float | None = None


@dataclass(frozen=True, slots=True)
class Front(ParetoFront[Job, Plan, Certificate]):
    """The plans of a training job, fastest first.

    Without a plan, ``further_conflicts`` are other minimal sets that leave no plan either, and
    ``suggestions`` what would make a plan possible; with ``conflict`` they are filled where they were asked
    for.
    """

    kind: ClassVar[Literal["training"]] = "training"

    facts: JobFacts = field(kw_only=True)
    further_conflicts: tuple[tuple[str, ...], ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    #: What ended the search for these before it was complete, such as a deadline.
    suggestions_stopped: str | None = None
    #: Whether smaller layouts are left out because plans of other programs dominate them.
    cut_by_others: bool = False
    #: The fastest layout under each stack that may be meant, where the job names none.
    stacks: tuple[StackStep, ...] = ()

    @property
    def order_noise(self) -> OrderNoise | None:
        """The plans that the model cannot tell apart from the fastest; None with several sizes of a job.

        Between programs, it is the noise of the stack that prices the fastest plan.
        """
        sizes = {choice_key(answer.job)[:2] for answer in self.answers}
        if len(sizes) > 1 or not self.plans:
            return None
        return order_noise(self.plans, at_batch(self.job, self.fastest).stack)

    @property
    def fastest(self) -> Plan:
        """The plan with the shortest step; there has to be one."""
        return min(self.plans, key=lambda plan: plan.predicted.step_seconds)


@dataclass(frozen=True, slots=True)
class OrderNoise:
    """Plans within ``share`` of the fastest step, by their number on the front, from 1.

    ``simplest`` is the one whose layout has the fewest parts, ``smallest`` the one of least memory.
    """

    share: float
    plans: tuple[int, ...]
    simplest: int
    smallest: int


def order_noise(plans: Sequence[Plan], stack: StackSpec) -> OrderNoise | None:
    """Return which ``plans`` may be the fastest; None where one alone may be, or the stack does not say.

    ``uncertainty.order`` of the stack is the difference of two step times of one job below which the cost
    model is often wrong about their order.
    """
    if stack.uncertainty.order is None or not plans:
        return None
    share = stack.uncertainty.order.value
    most = min(plan.predicted.step_seconds for plan in plans) * (1 + share)
    near = [number for number, plan in enumerate(plans, start=1) if plan.predicted.step_seconds <= most]
    if len(near) < 2:
        return None
    return OrderNoise(
        share,
        tuple(near),
        simplest=min(near, key=lambda n: (parts_of(plans[n - 1].layout), n)),
        smallest=min(near, key=lambda n: plans[n - 1].predicted.peak_memory_bytes_per_device),
    )


def parts_of(layout: Layout) -> int:
    """Return how many parts a layout has that its user must set up, tune and debug.

    Each kind of model parallelism, sequence parallelism, virtual stages, uneven stages, a mix of recompute,
    offload, and sharding or rank orders other than the usual.

    >>> parts_of(parse_layout("tp=2,dp=4,sp=off", layers=32, devices=8))
    1
    >>> parts_of(parse_layout("tp=2,pp=2,sp=off,dp=2,stages=17/15,recompute=full:4", layers=32, devices=8))
    4
    """
    mixed = 0 < layout.recomputed_layers < sum(layout.layers) or len(layout.recomputed) > 1
    return sum(
        (
            layout.tp > 1,
            layout.pp > 1,
            layout.cp > 1,
            layout.ep > 1,
            layout.vpp > 1,
            layout.sequence_parallel,
            len(set(layout.layers)) > 1,
            mixed,
            layout.optimizer_offload,
            layout.activation_offload,
            layout.expert_tensor > 0,
            layout.dp_shard > 0,
            layout.order != ORDERS[0],
        )
    )


@dataclass(frozen=True, slots=True)
class LinkChoice:
    """Another layout is the fastest where copies between devices go at another rate that hosts have.

    ``taken`` is the catalogue's rate and ``rate`` the other one [byte/s]; there ``layout`` takes ``seconds``,
    and the fastest plan of the answer ``fastest_seconds``.
    """

    taken: float
    rate: float
    layout: str
    seconds: float
    fastest_seconds: float


@dataclass(frozen=True, slots=True)
class NarrowerIntervals:
    """The 90 % interval of the fastest plan's step [s] after what narrows it; None where that does not help.

    ``named`` is that of its stack, where the job names none, ``calibrated`` that after a run was measured, at
    best. ``links`` are what is faster at other rates between devices, for which a measured rate decides.
    """

    named: tuple[float, float] | None
    calibrated: tuple[float, float] | None
    links: tuple[LinkChoice, ...] = ()
