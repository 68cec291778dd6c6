"""Facts that amend rows: what is known of measured runs that their rows do not say.

They are data, ``data/facts.yaml``: each says for which runs it holds and what is so. Rows of any file are
amended alike; those that no fact is about stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from autoplan.schema.base import Frozen
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.yaml.inheritance import merged
from autoplan.schema.yaml.loader import load_model
from benchmarks.accuracy.runs import Run, RunLayout

__all__ = ["FACTS", "Fact", "Told", "facts", "told_of", "with_knobs", "without_keyed_facts"]

FACTS: Final = Path(__file__).parent / "data" / "facts.yaml"

#: Whether facts that are keyed to a publication apply.
_KEYED: ContextVar[bool] = ContextVar("keyed", default=True)


class Runs(Frozen):
    """The runs that a fact is about: those for which all of it holds."""

    source: str | tuple[str, ...] = Field(default="", description="what the source starts with")
    stack: str | None = Field(default=None, description="the row's stack")
    stack_like: str = Field(default="", description="a regular expression found in the row's stack")
    model: str = Field(default="", description="what the model's name starts with")
    gpu: str | None = Field(default=None, description="the row's device")
    id: str = Field(default="", description="a regular expression that is in the row's id")
    layout: dict[str, Any] = Field(default_factory=dict, description="fields of the row's layout")

    @property
    def keyed(self) -> bool:
        """Whether it holds for named publications only, so that a new publication would lack it."""
        return bool(self.source)

    def hold(self, run: Run) -> bool:
        """Return whether they include ``run``."""
        return (
            run.source.startswith(self.source)
            and self.stack in {None, run.stack}
            and re.search(self.stack_like, run.stack, re.IGNORECASE) is not None
            and run.model.name.startswith(self.model)
            and self.gpu in {None, run.hardware.gpu}
            and re.search(self.id, run.id) is not None
            and all(getattr(run.layout, key) == value for key, value in self.layout.items())
        )


class Fact(Frozen):
    """What is so of some runs; what is left out it says nothing about."""

    runs: Runs = Field(description="the runs that it is about")
    source: str = Field(min_length=3, description="how it is known")
    priced_as: str | None = Field(default=None, description="the stack of the catalogue that prices them")
    knobs: dict[str, Any] = Field(default_factory=dict, description="what a stack that extends it would say")
    layout: dict[str, Any] = Field(default_factory=dict, description="fields of the layout as they were")
    node: str | None = Field(default=None, description="the node of the catalogue")
    usual_node: str | None = Field(default=None, description="the node where none has the row's devices")
    counted_layers: tuple[int, int] | None = Field(
        default=None, description="layers as which embedding and head count"
    )
    balanced: bool | None = Field(
        default=None, description="a pipeline is divided by the parameters of layers and output layer"
    )
    architecture: dict[str, Any] = Field(default_factory=dict, description="fields of the model")
    latent_attention_of: str | None = Field(default=None, description="a model of the catalogue")
    sustained_share: float | None = Field(
        default=None, description="rate of the machine's kernels over those of the device's file"
    )


class FactsFile(Frozen):
    """A file of facts, in the order in which they apply."""

    schema_version: Literal[1] = Field(alias="schema", description="version of this format")
    kind: Literal["run-facts"] = Field(description="this file holds facts on measured runs")
    facts: tuple[Fact, ...] = Field(description="later ones go over earlier ones")


@dataclass(frozen=True, slots=True)
class Told:
    """What a row and all facts about it tell; ``layout`` is the row's with what is known of it."""

    layout: RunLayout
    priced_as: str
    knobs: tuple[Mapping[str, Any], ...] = ()
    node: str | None = None
    usual_node: str | None = None
    counted_layers: tuple[int, int] = (0, 0)
    balanced: bool = False
    architecture: Mapping[str, Any] | None = None
    latent_attention_of: str | None = None
    sustained_share: float | None = None


#: What a later fact says in the place of an earlier one.
_SINGLE: Final = (
    "priced_as",
    "node",
    "usual_node",
    "counted_layers",
    "balanced",
    "latent_attention_of",
    "sustained_share",
)


@cache
def facts() -> tuple[Fact, ...]:
    """Return the facts of ``data/facts.yaml``; raises SpecError with whatever is wrong with the file."""
    return load_model(FACTS.read_text(encoding="utf-8"), FactsFile, name=str(FACTS)).facts


@contextmanager
def without_keyed_facts() -> Iterator[None]:
    """Price rows as those of a publication that no fact names: what a stranger's row would get."""
    token = _KEYED.set(False)
    try:
        yield
    finally:
        _KEYED.reset(token)


def told_of(run: Run) -> Told:
    """Return what is known of ``run``."""
    return _told(run, keyed=_KEYED.get())


@lru_cache(maxsize=256)
def _told(run: Run, *, keyed: bool) -> Told:
    told = Told(run.layout, run.stack)
    for fact in facts():
        if fact.runs.keyed and not keyed:
            continue
        if fact.runs.hold(run.model_copy(update={"layout": told.layout})):
            told = _amended(told, fact)
    return replace(told, priced_as=run.cost_model or told.priced_as, node=run.hardware.node or told.node)


def _amended(told: Told, fact: Fact) -> Told:
    single = {name: value for name in _SINGLE if (value := getattr(fact, name)) is not None}
    return replace(
        told,
        **single,
        layout=told.layout.model_copy(update=fact.layout),
        knobs=(*told.knobs, fact.knobs) if fact.knobs else told.knobs,
        architecture={**(told.architecture or {}), **fact.architecture},
    )


def with_knobs(stack: StackSpec, knobs: Mapping[str, Any]) -> StackSpec:
    """Return ``stack`` with what one that extends it would say; raises ValidationError for what none can.

    What a fact says of experts is left out where the stack has none.
    """
    if stack.experts is None:
        knobs = {section: fields for section, fields in knobs.items() if section != "experts"}
    plain = stack.model_dump(by_alias=True, exclude_unset=True)
    head = {key: plain[key] for key in ("kind", "name", "title", "description")}
    return StackSpec.model_validate(merged(plain, {**head, **knobs}, StackSpec))
