"""Search: from a job to its Pareto front with a proof of optimality. No other package imports the solver."""

from __future__ import annotations

from autoplan.search.front_search import search
from autoplan.search.infeasibility import fits_memory, least_needed

__all__ = ["fits_memory", "least_needed", "search"]
