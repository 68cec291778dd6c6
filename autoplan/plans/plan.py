"""A plan: a layout with what it is predicted to cost."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.predict import Prediction
from autoplan.schema.layout import Layout

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One layout and its prediction."""

    layout: Layout
    predicted: Prediction

    @property
    def layout_string(self) -> str:
        """The text that names the layout on a command line."""
        return str(self.layout)
