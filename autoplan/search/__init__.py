"""Search: from a job to its Pareto front with a proof of optimality. No other package imports the solver."""

from __future__ import annotations

from autoplan.search.front_search import least_needed, search

__all__ = ["least_needed", "search"]
