"""What clashes where nothing is feasible, and what would make a plan possible, for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from autoplan.report.wording.sentences import number_words
from autoplan.results import Front, Suggestion
from autoplan.units import format_bytes, format_seconds

__all__ = ["suggestion_lines"]


def suggestion_lines(front: Front) -> Iterator[RenderableType]:
    """Yield the clashing wishes and the numbered suggestions of a front without plans."""
    if front.conflict:
        yield Text(
            "no plan keeps all of these; without any one of them, the others can be kept", style="bold"
        )
        yield from (Text(f"- {wish}") for wish in front.conflict)
        yield Text("")
    if not front.suggestions:
        return
    yield Text("what would make a plan possible, each solved again", style="bold")
    for number, suggestion in enumerate(front.suggestions, start=1):
        yield Text(f"{number:>2}  {suggestion.kind}")
        for line in (*map(str, suggestion.edits), _then(suggestion)):
            yield Padding(Text(line), (0, 0, 0, 4))
        # One line, however narrow the terminal, so that it can be copied.
        yield Text(f"    {suggestion.plan.layout_string}", style="green", no_wrap=True, overflow="ignore")
    yield Text("")


def _then(suggestion: Suggestion) -> str:
    """Return what the fastest plan of the changed job costs."""
    predicted = suggestion.plan.predicted
    seconds, size = predicted.step_seconds, predicted.peak_memory_bytes_per_device
    devices = number_words(suggestion.devices, "device")
    return f"then: {format_seconds(seconds)} a step and {format_bytes(size)} on each of {devices}"
