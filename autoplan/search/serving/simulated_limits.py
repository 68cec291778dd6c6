"""Simulations of the options that a search chooses: limits that break, and closed forms that are wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autoplan.costs.core.serving.pooled_prediction import PooledPrediction
from autoplan.costs.core.serving.served_prediction import ServedPrediction, SimulatedPrediction
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair
from autoplan.costs.serving.disaggregated.pooled_run import simulated_pools
from autoplan.costs.serving.served_layouts import PricedEngine, simulated
from autoplan.costs.serving.settled_predictions import settled, settled_pools
from autoplan.rules.class_limit_rules import broken_simulated, request_test
from autoplan.schema.serving.class_jobs import job_of_classes
from autoplan.schema.serving.request_trace import RequestTrace
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.engine_options import EngineOption, Option, holds
from autoplan.search.serving.pool_options import PoolOption

__all__ = ["SimulatedOptions"]


@dataclass
class SimulatedOptions:
    """Simulations of engines and pools under their loads, each done once."""

    job: ServingJob
    trace: RequestTrace | None = None
    runs: dict[tuple[str, float, tuple[str, ...]], SimulatedPrediction | None] = field(default_factory=dict)

    def of(
        self, engine: PricedEngine, predicted: ServedPrediction, classes: tuple[str, ...] = ()
    ) -> ServedPrediction:
        """Return ``predicted``, of engines for ``classes``, with its simulation and what that contradicts."""
        key = (str(engine.layout), predicted.load.amount, classes)
        if key not in self.runs:
            job = job_of_classes(self.job, classes)
            self.runs[key] = simulated(job, engine, predicted, self.trace, request_test(job))
        return settled(replace(predicted, simulation=self.runs[key]))

    def of_pools(self, pair: EnginePair, predicted: PooledPrediction) -> PooledPrediction:
        """Return what pools do with its simulation and what that contradicts."""
        pools = [
            f"{engine.engine.layout} {count}"
            for engine, count in ((pair.prefill, pair.prefill_engines), (pair.decode, pair.decode_engines))
        ]
        key = (" / ".join(pools), predicted.load.amount, ())
        if key not in self.runs:
            self.runs[key] = simulated_pools(self.job, pair, predicted, self.trace, request_test(self.job))
        return settled_pools(replace(predicted, simulation=self.runs[key]))

    def settled(self, option: Option) -> Option | None:
        """Return an option as its simulation leaves it: with other means, itself, or None where limits break.

        A limit on a mean has to hold in the closed form and in the simulation.
        """
        if option.predicted.simulation is not None:
            return option
        known: Option = option
        if isinstance(option, PoolOption):
            known = replace(option, predicted=self.of_pools(option.pair, option.predicted))
        elif isinstance(option, EngineOption):
            predicted = self.of(option.engine, option.predicted, option.classes)
            known = replace(option, predicted=predicted)
        run = known.predicted.simulation
        if run is None:
            return option
        broken = next(broken_simulated(self.job, run.statistics), None)
        return known if broken is None and holds(known, self.job) else None
