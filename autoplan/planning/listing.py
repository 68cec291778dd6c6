"""What catalogue listings show of entries beyond their files."""

from __future__ import annotations

from collections.abc import Iterable

from autoplan.catalog import load_entry
from autoplan.costs.core.parameters import active_parameters, total_parameters
from autoplan.errors import AutoplanError
from autoplan.results.parameter_counts import ParameterCounts
from autoplan.schema.model import ModelSpec

__all__ = ["parameter_counts"]


def parameter_counts(names: Iterable[str]) -> dict[str, ParameterCounts]:
    """Return the parameter counts of the models ``names``, without those of invalid files."""
    counts = {}
    for name in names:
        try:
            model = load_entry("model", name)
        except AutoplanError:
            continue
        if isinstance(model, ModelSpec):
            counts[name] = ParameterCounts(total_parameters(model), active_parameters(model))
    return counts
