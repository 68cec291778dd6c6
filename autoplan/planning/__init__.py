"""The use cases: what the command line calls and a launcher embeds."""

from autoplan.planning.answers import MOST_LAYERS, evaluate, plan
from autoplan.planning.explaining import explain

__all__ = ["MOST_LAYERS", "evaluate", "explain", "plan"]
