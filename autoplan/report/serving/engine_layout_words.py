"""Layouts of engines in short: what differs from one device, one engine and the engine's defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.sentences import number_words
from autoplan.schema.serving.engine_layout import EngineLayout

__all__ = ["common_parts", "engine_layout_parts", "engine_layout_words"]


def engine_layout_words(layouts: Sequence[EngineLayout], terminal: Terminal) -> str:
    """Return layouts of engines that serve together.

    >>> from autoplan.schema.serving.engine_layout import parse_serving_layout
    >>> engine_layout_words([parse_serving_layout("tp=2,replicas=4,kv=fp8,seqs=64")], Terminal())
    '4 engines · tp 2 · weights bf16 · kv fp8 · seqs 64'
    """
    return " + ".join(f" {terminal.dot} ".join(engine_layout_parts(layout)) for layout in layouts)


def engine_layout_parts(layout: EngineLayout) -> Iterator[str]:
    """Yield what a layout has that differs from the defaults, part by part."""
    yield number_words(layout.replicas, "engine")
    yield f"tp {layout.tp}"
    for key in ("pp", "ep", "adp", "dcp"):
        if getattr(layout, key) > 1:
            yield f"{key} {getattr(layout, key)}"
    yield f"weights {layout.weights}"
    if layout.kv != "auto":
        yield f"kv {layout.kv}"
    for key in ("seqs", "tokens", "spec"):
        if getattr(layout, key):
            yield f"{key} {getattr(layout, key)}"


def common_parts(plans: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """Return the parts that every engine of several plans has, to be said once above their table.

    >>> common_parts([[["1 engine", "tp 1", "seqs 8"]], [["1 engine", "tp 2", "seqs 8"]]])
    ['1 engine', 'seqs 8']
    """
    engines = [engine for plan in plans for engine in plan]
    return [part for part in engines[0] if len(plans) > 1 and all(part in engine for engine in engines)]
