"""The search: a job in, its proven Pareto front out. The only part that knows the solver."""

from __future__ import annotations

from autoplan.search.front_search import least_needed, search

__all__ = ["least_needed", "search"]
