"""Options of a serving search: one engine with sizes of its steps and its share of the load, priced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, isfinite
from operator import le
from typing import Final, Protocol, TypeVar

from autoplan.costs.core.serving.pooled_prediction import PooledPrediction
from autoplan.costs.core.serving.served_prediction import EngineLoad, ServedPrediction
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.engine_iteration import EngineIteration
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.costs.serving.served_layouts import (
    PricedEngine,
    ServingCosts,
    engine_load,
    priced_engine,
    served,
    unit_parts,
)
from autoplan.deadline import check_deadline
from autoplan.rules.class_limit_rules import broken_means
from autoplan.schema.serving.class_jobs import class_sets, job_of_classes
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.engine_units import seqs_menu, tokens_menu
from autoplan.search.serving.load_shares import WHOLE, shares

__all__ = ["AnyOption", "EngineOption", "Option", "PricedOptions", "holds", "times_of", "undominated"]

#: Values of max_num_seqs below the clients of an engine that are tried: they let requests wait.
_CAPS: Final = 4


@dataclass(frozen=True, slots=True)
class EngineOption:
    """One engine with its sizes and its share of the load."""

    engine: PricedEngine
    #: Part of the load [1/WHOLE]; 0 if none exists.
    share: int
    predicted: ServedPrediction
    #: Classes of requests that it gets; empty: all. ``share`` is that of their load.
    classes: tuple[str, ...] = ()

    @property
    def layout(self) -> EngineLayout:
        """The layout of the engine."""
        return self.engine.layout

    @property
    def devices(self) -> int:
        """Devices of the engine."""
        return self.predicted.devices

    @property
    def alone(self) -> bool:
        """Whether nothing else serves with it."""
        return False


def _full(option: EngineOption) -> bool:
    return option.predicted.point.cause == "kv cache"


@dataclass
class PricedOptions:
    """The options of a job, priced unit by unit."""

    job: ServingJob
    units: tuple[EngineLayout, ...]
    costs: ServingCosts
    #: Prices of iterations that were computed, by engines without drafts.
    iterations: dict[EngineLayout, EngineIteration] = field(default_factory=dict)
    #: Classes of requests that the engines get, those of ``job``; empty: all, or those of each of its sets.
    classes: tuple[str, ...] = ()
    #: The options so far, of engines that get all of the classes: all of them only when all are priced.
    found: list[EngineOption] = field(default_factory=list)

    @cached_property
    def all(self) -> tuple[EngineOption, ...]:
        """Every option of the menus whose engine starts and keeps up with its share."""
        mixed: tuple[EngineOption, ...] = ()
        if False not in self.job.search.disaggregated:
            return mixed
        if self.classes or not self._routed or self.job.search.mixes_classes:
            self.found.clear()
            for unit in self.units:
                self.found.extend(self._of_unit(unit))
            mixed = tuple(self.found)
        return (*mixed, *(option for part in self._routed for option in part.all))

    @property
    def so_far(self) -> tuple[EngineOption, ...]:
        """The options that are priced already, where the deadline ended before all were."""
        return (*self.found, *(option for part in self._routed for option in part.found))

    @cached_property
    def _routed(self) -> tuple[PricedOptions, ...]:
        """The options of engines that only some classes of requests go to."""
        if self.classes:
            return ()
        return tuple(
            PricedOptions(job_of_classes(self.job, names), self.units, self.costs, self.iterations, names)
            for names in class_sets(self.job)
        )

    @cached_property
    def shortages(self) -> dict[str, int]:
        """Reasons why engines cannot serve, with how many units fell to each."""
        counts: dict[str, int] = {}
        for unit in self.units:
            shortage = self._shortage(unit)
            if shortage is not None:
                counts[shortage] = counts.get(shortage, 0) + 1
        return counts

    def _shortage(self, unit: EngineLayout) -> str | None:
        """Return why no size of a step lets the unit start."""
        smallest = replace(unit, tokens=tokens_menu(self.job, unit)[0], seqs=seqs_menu(self.job, unit)[0])
        return predict_capacity(EngineScope(self.job, smallest)).shortage

    def _of_unit(self, unit: EngineLayout) -> Iterator[EngineOption]:
        check_deadline()
        if self._shortage(unit) is not None:
            return
        # Neither weights nor the price of iterations depend on the sizes of steps.
        parts = unit_parts(EngineScope(self.job, unit), self.costs, self.plain(unit))
        loads = list(self._loads(unit))
        for tokens in tokens_menu(self.job, unit):
            engines: dict[int, PricedEngine] = {}
            for share, load in loads:
                for seqs in self._sizes(unit, load, tokens):
                    if seqs not in engines:
                        layout = replace(unit, seqs=seqs, tokens=tokens)
                        engines[seqs] = priced_engine(layout, parts)
                    option = self._option(engines[seqs], share, load)
                    if option is not None:
                        yield option
                    if option is not None and load.kind == "maximum" and _full(option):
                        # The cache is what limits: a larger max_num_seqs only takes of it.
                        break

    def plain(self, unit: EngineLayout) -> EngineIteration:
        """Return the prices of iterations without drafts, once for all numbers of drafts."""
        bare = replace(unit, spec=0)
        if bare not in self.iterations:
            self.iterations[bare] = engine_iteration(
                EngineScope(self.job, bare), self.costs.kernels, self.costs.measured
            )
        return self.iterations[bare]

    def _option(self, engine: PricedEngine, share: int, load: EngineLoad) -> EngineOption | None:
        """Return an engine under a load; None where it cannot serve, or does not keep up."""
        check_deadline()
        if engine.shortage is not None:
            return None
        predicted = served(self.job, engine, load)
        if load.kind != "maximum" and not predicted.fits:
            return None
        return EngineOption(engine, share, predicted, self.classes)

    def _loads(self, unit: EngineLayout) -> Iterator[tuple[int, EngineLoad]]:
        """Yield the shares that an engine of ``unit`` may get, with its load."""
        total = engine_load(self.job, 1)
        if total.kind == "maximum":
            yield 0, total
            return
        most = self.job.cluster.devices // unit.devices_per_engine
        mixed = len({other.devices_per_engine for other in self.units}) > 1
        for share in shares(most, mixed=mixed and most > 1):
            amount = total.amount * share / WHOLE
            if total.kind == "open loop" or amount >= 1 or share == WHOLE:
                yield share, EngineLoad(total.kind, amount)

    def _sizes(self, unit: EngineLayout, load: EngineLoad, tokens: int) -> Iterable[int]:
        """Return the values of max_num_seqs worth trying.

        More than the clients of a group only takes memory. Fewer let requests wait for a shorter time per
        token, which is worth it where that is limited. An open loop has the largest sizes.
        """
        menu = [seqs for seqs in seqs_menu(self.job, unit) if seqs <= tokens]
        if load.kind == "maximum":
            return menu
        if load.kind == "open loop":
            return menu[-1:] if len(menu) < 3 else [menu[-3], menu[-1]]
        clients = max(1, ceil(load.amount / unit.adp))
        enough, fewer = [s for s in menu if s >= clients][:1], [s for s in menu if s < clients]
        own = [known.limits for known in self.job.workload.classes if known.limits is not None]
        limited = any(limits.time_per_output_token is not None for limits in (self.job.limits, *own))
        return [*(fewer[-_CAPS:] if limited or not enough else ()), *enough]


class Option(Protocol):
    """What serves a share of a load: an engine, or pools of engines."""

    @property
    def share(self) -> int:
        """Part of the load [1/WHOLE]; 0 if none exists."""

    @property
    def devices(self) -> int:
        """Devices that it takes."""

    @property
    def alone(self) -> bool:
        """Whether nothing else serves with it."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of requests that it gets; empty: all."""

    @property
    def layout(self) -> object:
        """The layout, whose text identifies an option."""

    @property
    def predicted(self) -> ServedPrediction | PooledPrediction:
        """What it does under its share of the load."""


AnyOption = TypeVar("AnyOption", bound=Option)


def holds(option: Option, job: ServingJob) -> bool:
    """Return whether an engine holds every limit of ``job`` and of its classes on means."""
    return next(broken_means(job, option.predicted), None) is None


def times_of(option: Option) -> dict[str, float]:
    """Return the times of an option by their limits [s]; of a maximum the time per token alone."""
    predicted = option.predicted
    times = {"time_per_output_token": predicted.time_per_output_token}
    if predicted.load.kind != "maximum":
        times["time_to_first_token"] = predicted.time_to_first_token
        times["request_latency"] = predicted.request_latency
    return times


def undominated(options: Iterable[AnyOption]) -> list[AnyOption]:
    """Return the options that no other one of as many devices and the same load beats in every respect."""
    remaining: dict[tuple[int, int, bool, tuple[str, ...]], list[AnyOption]] = {}
    values: dict[tuple[int, int, bool, tuple[str, ...]], list[tuple[float, ...]]] = {}
    several = list(options)
    respects = {id(option): _respects(option) for option in several}
    for option in sorted(several, key=lambda option: (respects[id(option)], str(option.layout))):
        key, mine = (option.devices, option.share, option.alone, option.classes), respects[id(option)]
        rivals = values.setdefault(key, [])
        # Rivals come first in the order of their first respect, so that only the others decide.
        if not any(all(map(le, rival, mine)) for rival in rivals):
            rivals.append(mine)
            remaining.setdefault(key, []).append(option)
    return [option for rivals in remaining.values() for option in rivals]


def _respects(option: Option) -> tuple[float, ...]:
    """Return what a limit or an objective may look at, less being better."""
    times = times_of(option)
    finite = [value if isfinite(value) else 1e300 for value in times.values()]
    of_classes = [
        time
        for served_class in option.predicted.classes
        for time in (served_class.time_to_first_token, served_class.time_per_output_token)
    ]
    return (-option.predicted.output_tokens_per_second, *finite, *of_classes)
