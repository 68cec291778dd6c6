"""Engines that differ in max_num_seqs alone, under ever more load."""

from __future__ import annotations

from collections.abc import Iterable

from autoplan.costs.core.serving.served_prediction import EngineLoad, ServedPrediction
from autoplan.costs.core.serving.waiting_clients import of_more_clients
from autoplan.costs.serving.queueing.request_load import CLIENT_SECONDS
from autoplan.costs.serving.served_layouts import PricedEngine, served
from autoplan.deadline import check_deadline
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["LoadedEngines"]


class LoadedEngines:
    """Engines of ascending max_num_seqs; those that fall behind a load fall behind all later ones."""

    def __init__(self, job: ServingJob, engines: Iterable[PricedEngine]) -> None:
        self.job = job
        self.engines = [engine for engine in engines if engine.shortage is None]
        #: What engines did under the load before, by their size.
        self.before: dict[int, ServedPrediction] = {}

    def under(self, engine: PricedEngine, load: EngineLoad) -> ServedPrediction | None:
        """Return what an engine does under a load no less than any before; None where it does not keep up."""
        check_deadline()
        seqs, groups = engine.layout.seqs, engine.layout.adp
        known = self.before.get(seqs)
        predicted = None if known is None else of_more_clients(known, load, groups, CLIENT_SECONDS)
        if predicted is None:
            predicted = self.before[seqs] = served(self.job, engine, load)
        if load.kind == "maximum" or predicted.fits:
            return predicted
        self.engines.remove(engine)
        return None
