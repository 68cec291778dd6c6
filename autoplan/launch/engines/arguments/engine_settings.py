"""What one engine is started with, in no engine's own words, and its arguments while they are written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from autoplan.errors import UnsupportedError
from autoplan.launch.engines.arguments.argument_list import ArgumentList
from autoplan.schema.serving.engine_layout import EngineLayout, WeightFormat

#: What the engines of a pool do; of one pool they do both.
PoolRole = Literal["prefill", "decode"]
#: Where drafts come from, as in the section ``speculation`` of a job.
DraftMethod = Literal["ngram", "draft_model", "eagle", "eagle3", "mtp"]

#: What the numbers of a layout are for, where they are not called so.
PARTS: Final = {
    "pp": "pipeline stages",
    "dcp": "decode context parallelism",
    "ep": "expert parallelism",
}


class InexpressibleEngineError(UnsupportedError):
    """A part of a layout that an engine or a manifest cannot express.

    ``part`` is a sentence on it, ``nearest`` has layouts without that part, the most alike first.
    """

    def __init__(self, part: str, nearest: Sequence[EngineLayout] = ()) -> None:
        self.part = part
        self.nearest: tuple[EngineLayout, ...] = tuple(nearest)
        super().__init__(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine of ``layout``, whose replicas are not its concern.

    ``checkpoint`` is what it loads; ``converted`` is the format that it makes of 16-bit weights while
    loading, None where those of the checkpoint stay. ``nodes`` is how many the engine spans.
    """

    checkpoint: str
    layout: EngineLayout
    experts: bool
    converted: WeightFormat | None = None
    longest_request: int | None = None
    utilization: float | None = None
    block_tokens: int | None = None
    #: Most tokens of a cache; None: what memory holds.
    cache_tokens: int | None = None
    draft_method: DraftMethod | None = None
    draft_checkpoint: str | None = None
    role: PoolRole | None = None
    nodes: int = 1
    enforce_eager: bool = False


@dataclass(slots=True)
class WrittenArguments:
    """Arguments of one engine while they are written: each flag is looked up in the list of the version.

    ``options`` are flags with their words; ``document`` is what a file of options has besides.
    """

    known: ArgumentList
    layout: EngineLayout
    options: list[tuple[str, ...]] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)

    def add(
        self, name: str, value: object = None, *, part: str, nearest: Sequence[EngineLayout] = ()
    ) -> None:
        """Add the flag of a binding with its value; ``part`` is what it is for, where a version lacks it."""
        flag = self.known.flags[name]
        argument = self.known.arguments.get(flag)
        title = f"{self.known.engine} {self.known.version}"
        if argument is None:
            raise InexpressibleEngineError(f"{part}: {title} has no {flag}", nearest)
        if argument.choices and value is not None and value not in argument.choices:
            shown = ", ".join(map(str, argument.choices))
            raise InexpressibleEngineError(f"{part}: {flag} of {title} takes {shown}", nearest)
        words = () if value is None else (json.dumps(value) if isinstance(value, Mapping) else str(value),)
        self.options.append((flag, *words))

    def add_sizes(self, *names: str, parts: Mapping[str, str] | None = None) -> None:
        """Add the flags of numbers of the layout, where they are not the default of their keys."""
        usual = EngineLayout()
        for name in names:
            value = getattr(self.layout, name)
            if value != getattr(usual, name):
                without: Any = {name: getattr(usual, name)}
                part = (parts or PARTS).get(name, name)
                self.add(name, value, part=part, nearest=(replace(self.layout, **without),))
