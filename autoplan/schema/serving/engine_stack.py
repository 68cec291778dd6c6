"""The file of an inference engine: its facts by version, and one version of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from autoplan.errors import UnsupportedError
from autoplan.schema.base import Frozen, Sourced, SourcedSeconds
from autoplan.schema.hardware import sourced_numbers
from autoplan.schema.serving.engine_facts import (
    BudgetFacts,
    CacheFacts,
    DefaultTier,
    ForwardFacts,
    GraphFacts,
    GraphTier,
    HandoffFacts,
    OverheadFacts,
    PaddingFacts,
    ReserveFacts,
    SamplerFacts,
    SchedulerFacts,
    StepFacts,
)

Tiers = Annotated[tuple[DefaultTier, ...], Field(min_length=1)]


class EngineFacts(Frozen):
    """Everything known of one version."""

    budget: BudgetFacts = Field(description="how it decides what its cache may take")
    cache: CacheFacts = Field(description="the cache of keys and values")
    scheduler: SchedulerFacts = Field(description="how it fills a step")
    padding: PaddingFacts = Field(description="multiples that sizes are padded to")
    overhead: OverheadFacts = Field(description="memory outside of the allocator")
    defaults: Tiers = Field(description="default sizes of a step, by memory of a device")
    sampler: SamplerFacts | None = Field(default=None, description="the sampler's peak, where it is profiled")
    forward: ForwardFacts = Field(description="the forward pass's peak")
    graphs: GraphFacts | None = Field(default=None, description="CUDA graphs, where sizes are listed")
    reserve: ReserveFacts | None = Field(default=None, description="what is left free, where that is a rule")
    graph_tiers: tuple[GraphTier, ...] = Field(
        default=(), description="largest captured batch of decodes, by memory of a device"
    )
    step: StepFacts | None = Field(default=None, description="time of a step; left out: not known")
    eager_launch: SourcedSeconds | None = Field(
        default=None,
        description="host time to launch one kernel of an engine that neither compiles nor captures"
        " (search.enforce_eager); left out: step.eager_kernel",
    )
    handoff: HandoffFacts | None = Field(
        default=None, description="between pools for prefill and decode; left out: it has none"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        static = self.budget.rule == "static share"
        if static and (self.reserve is None or not self.graph_tiers):
            raise ValueError("rule: static share needs reserve and graph_tiers")
        if not static and self.budget.utilization is None:
            raise ValueError("budget.utilization is missing")
        if self.defaults[0].memory_from > 0:
            raise ValueError("the first tier of defaults must begin at 0 B")
        return self


class EngineChanges(Frozen):
    """What differs in a version from the one before it."""

    note: str | None = Field(default=None, description="what was checked")
    budget: BudgetFacts | None = Field(default=None, description="as in `facts`")
    cache: CacheFacts | None = Field(default=None, description="as in `facts`")
    scheduler: SchedulerFacts | None = Field(default=None, description="as in `facts`")
    padding: PaddingFacts | None = Field(default=None, description="as in `facts`")
    overhead: OverheadFacts | None = Field(default=None, description="as in `facts`")
    defaults: Tiers | None = Field(default=None, description="as in `facts`")
    sampler: SamplerFacts | None = Field(default=None, description="as in `facts`")
    forward: ForwardFacts | None = Field(default=None, description="as in `facts`")
    graphs: GraphFacts | None = Field(default=None, description="as in `facts`")
    reserve: ReserveFacts | None = Field(default=None, description="as in `facts`")
    graph_tiers: tuple[GraphTier, ...] | None = Field(default=None, description="as in `facts`")
    step: StepFacts | None = Field(default=None, description="as in `facts`")
    handoff: HandoffFacts | None = Field(default=None, description="as in `facts`")


class EngineSpec(Frozen):
    """An inference engine: the facts of its oldest known version, and what later ones change."""

    schema_version: Literal[1] = Field(alias="schema", description="version of this file format")
    kind: Literal["engine"] = Field(description="says that this file describes an inference engine")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="the name in job files; the file's too")
    title: str = Field(min_length=2, description="the name as its makers write it")
    note: str | None = Field(default=None, description="what a reader should know about the entry")
    sources: dict[str, str] = Field(
        description="the sources of the numbers below: a key and the source in full"
    )
    facts: EngineFacts = Field(description="what holds in the oldest known version")
    versions: Annotated[dict[str, EngineChanges], Field(min_length=1)] = Field(
        description="known versions, the oldest first, each with what differs from the one before"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = [f"{v!r} is not a version such as 0.19" for v in self.versions if not _VERSION.fullmatch(v)]
        if not wrong and sorted(self.versions, key=_order) != list(self.versions):
            wrong.append("versions must be in order, the oldest first")
        wrong += [
            f"{where} names the source {number.source!r}, which `sources` lacks"
            for where, number in _numbers(self)
            if number.source not in self.sources
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


@dataclass(frozen=True, slots=True)
class Engine:
    """One version of an engine."""

    name: str
    title: str
    version: str
    facts: EngineFacts
    sources: Mapping[str, str]
    #: Whether the job names no version: this is then the newest known one.
    version_assumed: bool = False

    def __str__(self) -> str:
        """Return the engine as a job file names it."""
        return f"{self.name}@{self.version}"


_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}(?:\.?(?:post|rc)[0-9]+)?")


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version)))


def _numbers(spec: EngineSpec) -> Iterator[tuple[str, Sourced]]:
    yield from sourced_numbers(spec.facts, "facts")
    for version, changes in spec.versions.items():
        yield from sourced_numbers(changes, f"versions.{version}")


def engine_at(spec: EngineSpec, version: str | None) -> Engine:
    """Return a known version of an engine; None is the newest.

    A version stands for its releases, such as 0.19 for 0.19.1. Raises UnsupportedError, with the known ones,
    for any other.
    """
    versions = list(spec.versions)
    engine = versions[-1] if version is None else _matching(version, versions)
    if engine is None:
        near = difflib.get_close_matches(version or "", versions, 1, 0.8)
        hint = f"did you mean {spec.name}@{near[0]}? " if near else ""
        raise UnsupportedError(
            f"{spec.title} {version!r} is not known: {hint}known versions are {', '.join(versions)}"
        )
    merged: dict[str, Any] = dict(spec.facts.__dict__)
    for name in versions[: versions.index(engine) + 1]:
        merged |= {key: new for key, new in _changes(spec.versions[name]).items() if new is not None}
    facts = EngineFacts.model_validate(merged)
    return Engine(spec.name, spec.title, engine, facts, spec.sources, version_assumed=version is None)


def _changes(changes: BaseModel) -> dict[str, Any]:
    return {key: value for key, value in changes.__dict__.items() if key != "note"}


def _matching(version: str, versions: list[str]) -> str | None:
    """Return the known version that ``version`` is, or that it is a release of; the longest such."""
    version = version.removeprefix("v")
    same = [name for name in versions if version == name or version.startswith((f"{name}.", f"{name}rc"))]
    return max(same, key=len, default=None)
