"""Result of ``explain`` of a serving job: what bounds its best plan, why others lose, when that flips."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.core.iteration import IterationParts
from autoplan.results.serving.serving_front import ServingChange, ServingFront, ServingPlan
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Where the time of one group of engines goes, under the load that a plan gives it.

    ``decode`` is an iteration of decodes alone, ``mixed`` one with a chunk of a prompt beside them.
    ``queue_share``: part of the time to the first token that is neither its own prefill nor the step before;
    None where there is no load.
    """

    layout: EngineLayout
    decode: IterationParts
    mixed: IterationParts
    queue_share: float | None
    #: What keeps more requests from running, where they wait.
    waits_for: str | None
    #: Classes of requests that the engines get; empty: all.
    classes: tuple[str, ...] = ()

    @property
    def bound(self) -> str:
        """What bounds the engines: the queue where requests wait for room, else a resource of a decode."""
        return "queue" if self.waits_for else self.decode.bound


@dataclass(frozen=True, slots=True)
class LimitSlack:
    """One limit of a job: how near the best plan comes, and what the best plan without the limit gains.

    ``share`` is the part of the limit that is used, 1 on it. ``gain`` is the gain in the first objective;
    None where it was not solved.
    """

    limit: str
    allowed: str
    value: str
    share: float
    gain: float | None
    plan: ServingPlan | None


@dataclass(frozen=True, slots=True)
class ServingContrast:
    """The best plan with one choice forced; without one, ``plan`` is None and ``why`` the reason."""

    key: str
    value: str
    plan: ServingPlan | None
    why: str
    #: How much worse it is than the best plan, as a share of it.
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class LoadFlip:
    """A load up to which something holds, and what comes after it, both solved.

    ``holds`` is the largest load that was solved to hold and ``fails`` the smallest that was solved not to;
    None where no such load was reached.
    """

    subject: str
    unit: str
    holds: float | None
    fails: float | None
    after: str


@dataclass(frozen=True, slots=True)
class ServingExplanation:
    """Why the best plan of a serving job by its first objective is the best."""

    job: ServingJob
    front: ServingFront
    best: ServingPlan
    objective: ServingObjective
    engines: tuple[EngineParts, ...]
    limits: tuple[LimitSlack, ...]
    contrasts: tuple[ServingContrast, ...]
    flips: tuple[LoadFlip, ...]
    #: Why not everything was solved.
    stopped: str | None = None

    @property
    def tightest(self) -> LimitSlack | None:
        """The limit whose absence gains most; where none gains, the one that is used most."""
        return max(self.limits, key=lambda limit: (limit.gain or 0.0, limit.share), default=None)


@dataclass(frozen=True, slots=True)
class ServingRefusal:
    """A layout that cannot run: the rules that it breaks."""

    job: ServingJob
    layout: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServingStanding:
    """One layout against the front of its job.

    ``against`` is the number, from 1, of a plan that is no worse in every objective, with the loss of the
    layout to it by objective. ``changes`` make a layout that does not fit, or breaks a limit, do so.
    """

    job: ServingJob
    front: ServingFront
    plan: ServingPlan
    engines: tuple[EngineParts, ...]
    on_front: bool
    against: int | None
    losses: tuple[tuple[ServingObjective, float], ...]
    changes: tuple[ServingChange, ...]
    flips: tuple[LoadFlip, ...]
