"""Predictions of runs by coefficients that were fitted without them: all of a group, or of a source.

Runs of a stack that is left out are priced as those of one that nobody knows, by the ``analytic`` stack with
the kernels, overlap and software that their rows tell; with ``assumed`` by the stack that a job takes which
names none, by a fit without the run's publication. Runs on a device that is left out are priced with
the curves of its nearest relative. Whatever fits is handed in, so that this module knows nothing of how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from autoplan.calibration import Observation as Measured
from autoplan.catalog import stack
from autoplan.catalog.entries import assumed_stack, stack_if_assumed
from autoplan.catalog.relatives import relatives_kernels
from autoplan.costs.predict import predict
from autoplan.costs.uncertainty import half_widths
from autoplan.schema.costmodel.interval_spec import UncertaintySpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from benchmarks.accuracy.fitting.shared import SharedFitter
from benchmarks.accuracy.outcomes import Outcome
from benchmarks.accuracy.runs import Run
from benchmarks.accuracy.stacks import told_stack

__all__ = [
    "KEYS",
    "Fitted",
    "Fitter",
    "Key",
    "LeftOut",
    "MakeFitter",
    "Observation",
    "as_shipped",
    "left_out",
    "observations_of",
    "shared_fitter",
]


#: Behind the name of the file that priced a run, where the job would not name it.
_ASSUMED: Final = " (assumed)"


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step of a complete row: the job and layout that ran, and its seconds."""

    id: str
    stack: str
    group: str
    source: str
    job: Job
    layout: Layout
    seconds: float
    run: Run


class Fitted(Protocol):
    """Coefficients that were fitted to observations."""

    def job(self, job: Job, /) -> Job:
        """Return ``job`` with the fitted coefficients."""
        ...


class Fitter(Protocol):
    """Fits to a set of observations, but for some of them."""

    def without(self, rows: Sequence[int], /) -> Fitted:
        """Return a fit to all observations but those at ``rows``."""
        ...


#: From observations to a fitter of them.
MakeFitter = Callable[[Sequence[Observation]], Fitter]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An observed step and its prediction by a fit that has not seen it [s].

    ``stack`` is the row's own, ``priced_by`` the file that priced it, and whether that was assumed. ``seen``
    counts the others of the fit that the own stack's file prices, too: where there are none, its coefficients
    are still the priors.
    """

    id: str
    group: str
    source: str
    stack: str
    priced_by: str
    seen: int
    measured: float
    predicted: float
    modelled_share: float
    slow_share: float
    experts: bool = False

    @property
    def error(self) -> float:
        """Predicted over measured step time, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def uncertainty(self) -> UncertaintySpec:
        """That of the stack that priced the run."""
        name, assumed, _ = self.priced_by.partition(_ASSUMED)
        return (stack_if_assumed(name) if assumed else stack(name)).uncertainty

    @property
    def ratio_of_experts(self) -> float | None:
        """Width above over the one below of a run of experts; None where it is that of other runs."""
        ratio = self.uncertainty.slower_with_experts if self.experts else None
        return ratio.value if ratio else None

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the interval that the pricing stack gives, over the prediction."""
        below, above = half_widths(self.modelled_share, self.uncertainty, experts=self.experts)
        return 1.0 - below, 1.0 + above + self.slow_share

    @property
    def covered(self) -> bool:
        """Whether the measured step time lies in the interval that the pricing stack gives."""
        low, high = self.ends
        return low <= self.measured / self.predicted <= high


def _same(observation: Observation) -> Job:
    return observation.job


def _of_unknown_stack(observation: Observation) -> Job:
    """Return the job as one whose stack has no file."""
    return replace(observation.job, stack=told_stack(observation.run, stack("analytic")))


def _of_assumed_stack(observation: Observation) -> Job:
    """Return the job as one that names no stack."""
    job = observation.job
    return replace(job, stack=told_stack(observation.run, assumed_stack(job.cluster.node)))


def _on_unknown_device(observation: Observation) -> Job:
    """Return the job as one on a device of which no kernel was measured: with those of its relative."""
    return replace(observation.job, kernels=relatives_kernels(observation.job.cluster.device.name))


@dataclass(frozen=True, slots=True)
class Key:
    """What is left out together, and how a job is priced by those who know nothing of it."""

    of: Callable[[Observation], str]
    unknown: Callable[[Observation], Job] = _same
    assumed: bool = False


#: Tables of one repository or paper are one source.
KEYS: Final[Mapping[str, Key]] = {
    "group": Key(lambda observation: observation.group),
    "source": Key(lambda observation: observation.source),
    "stack": Key(lambda observation: observation.job.stack.name, _of_unknown_stack),
    "assumed": Key(lambda observation: observation.source, _of_assumed_stack, assumed=True),
    "device": Key(lambda observation: observation.job.cluster.device.name, _on_unknown_device),
}


def observations_of(outcomes: Sequence[Outcome]) -> list[Observation]:
    """Return the complete rows whose step time was measured and can be predicted."""
    found = (_observation(outcome) for outcome in outcomes if outcome.complete)
    return [observation for observation in found if observation is not None]


def _observation(outcome: Outcome) -> Observation | None:
    run, job, plan = outcome.run, outcome.job, outcome.plan
    seconds = run.step_seconds if run and outcome.ran else None
    if run is None or job is None or plan is None or seconds is None:
        return None
    group = outcome.group or outcome.id
    return Observation(outcome.id, outcome.stack, group, outcome.publication, job, plan.layout, seconds, run)


def left_out(observations: Sequence[Observation], by: str, make: MakeFitter) -> list[LeftOut]:
    """Return every observation as predicted by a fit to those of all other groups (sources ...).

    One that would leave nothing to fit is left out of the answer.
    """
    key, fitter = KEYS[by], make(observations)
    found: list[LeftOut] = []
    for held in sorted({key.of(x) for x in observations}):
        rows = [row for row, x in enumerate(observations) if key.of(x) == held]
        others = [x for x in observations if key.of(x) != held]
        if others:
            fitted = fitter.without(rows)
            found += [_predicted(observations[row], key, fitted, others) for row in rows]
    return found


def _predicted(observation: Observation, key: Key, fitted: Fitted, others: Sequence[Observation]) -> LeftOut:
    job = fitted.job(key.unknown(observation))
    # It ran: a rule of a stack that stands in for its own does not count.
    found = predict(job, observation.layout)
    return LeftOut(
        id=observation.id,
        group=observation.group,
        source=observation.source,
        stack=observation.stack,
        priced_by=f"{job.stack.name}{_ASSUMED if key.assumed else ''}",
        seen=sum(x.job.stack.name == observation.job.stack.name for x in others),
        measured=observation.seconds,
        predicted=found.step_seconds,
        modelled_share=found.modelled_share,
        slow_share=found.slow_share,
        experts=job.model.moe is not None,
    )


def as_shipped(observations: Sequence[Observation]) -> list[LeftOut]:
    """Return runs that no fit sees as the shipped coefficients predict them."""
    return [_predicted(x, KEYS["source"], _Shipped(), ()) for x in observations]


class _Shipped:
    """The coefficients of the catalogue, as a fit."""

    def job(self, job: Job, /) -> Job:
        """Return ``job`` as it is."""
        return job


def shared_fitter(observations: Sequence[Observation]) -> SharedFitter:
    """Return the fits by which the shipped coefficients came about, from their priors."""
    return SharedFitter([Measured(x.job, x.layout, x.seconds, x.group) for x in observations])
