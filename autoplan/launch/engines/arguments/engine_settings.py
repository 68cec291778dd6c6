"""What one engine is started with, in no engine's own words, and the arguments of its version.

The lists of arguments are those of published packages; settings are looked up there while they are written.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Final, Literal

from autoplan.errors import UnsupportedError
from autoplan.launch.bindings.interface import Interface, interface, listed_data
from autoplan.schema.serving.engine_layout import EngineLayout, WeightFormat

#: Engines whose arguments are those in the list of another one: builds of one source.
_LISTED_AS: Final = {"vllm-rocm": "vllm-v0"}

#: Least similarity of a flag that was probably meant.
_SIMILAR: Final = 0.86
#: Types whose flags take no value.
_SWITCHES: Final = frozenset({"bool", "flag"})


@dataclass(frozen=True, slots=True)
class EngineArgument:
    """One argument: its flag with other spellings, the type of its value, its default and its choices.

    ``kind`` is int, float, str, json, list (several words), flag (no word) or bool (no word, and a second
    flag that switches it off). ``default`` is None also where only the running engine decides it.
    """

    flag: str
    kind: str
    aliases: tuple[str, ...] = ()
    default: object = None
    choices: tuple[object, ...] = ()
    optional: bool = False

    @property
    def switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.kind in _SWITCHES


@dataclass(frozen=True, slots=True)
class ArgumentList:
    """All arguments of one version, read in ``source``; ``complete`` where the engine knows no others."""

    engine: str
    version: str
    source: str
    complete: bool
    arguments: Mapping[str, EngineArgument] = field(repr=False)

    @property
    def table(self) -> Interface:
        """The bindings of the engine."""
        return interface("vllm" if _is_vllm(self.engine) else self.engine)

    @property
    def flags(self) -> Mapping[str, str]:
        """Flags by the names of their bindings."""
        return self.table.keys

    def find(self, flag: str) -> tuple[EngineArgument | None, bool]:
        """Return the argument that a flag is of, and whether the flag switches it off.

        Prefixes count where they are those of one argument alone, as argparse has it; vLLM also takes
        underscores in the place of dashes.

        >>> options = argument_list("vllm", "0.24")
        >>> [options.find(x)[0].flag for x in ("-tp", "--tensor_parallel_size", "--tensor-par")]
        ['--tensor-parallel-size', '--tensor-parallel-size', '--tensor-parallel-size']
        >>> options.find("--no-enable-prefix-caching")[1], options.find("--tensor-paralel-size")
        (True, (None, False))
        """
        if _is_vllm(self.engine) and flag.startswith("--"):
            flag = flag.replace("_", "-")
        spelled = self._spelled(flag)
        if spelled is not None or self.engine == "tensorrt-llm" or not flag.startswith("--"):
            return spelled or (None, False)
        begun = {
            id(a): (a, off)
            for name in self._names()
            if name.startswith(flag)
            for a, off in [self._spelled(name) or (None, False)]
        }
        return next(iter(begun.values())) if len(begun) == 1 else (None, False)

    def _spelled(self, flag: str) -> tuple[EngineArgument, bool] | None:
        if flag in self.arguments:
            return self.arguments[flag], False
        on = self.arguments.get("--" + flag.removeprefix("--no-")) if flag.startswith("--no-") else None
        return (on, True) if on is not None and on.kind == "bool" else None

    def _names(self) -> Iterator[str]:
        for name, argument in self.arguments.items():
            yield name
            if argument.kind == "bool" and name.startswith("--"):
                yield f"--no-{name.removeprefix('--')}"

    def nearest(self, flag: str) -> str | None:
        """Return the known flag that an unknown one was probably meant to be."""
        if _is_vllm(self.engine):
            flag = flag.replace("_", "-")
        return _closest(flag, tuple(self._names()))


@lru_cache(maxsize=256)
def _closest(flag: str, names: tuple[str, ...]) -> str | None:
    near = difflib.get_close_matches(flag, names, 1, _SIMILAR)
    return near[0] if near else None


def listed_versions(engine: str) -> tuple[str, ...]:
    """Return the versions whose arguments are listed, the oldest first.

    >>> listed_versions("tensorrt-llm")
    ('1.0', '1.1', '1.2')
    """
    return tuple(_shortened(version, engine) for version in listed_data(listed_as(engine))["versions"])


def listed_as(engine: str) -> str:
    """Return the engine whose list has the arguments of ``engine``, by its name in the catalogue.

    >>> listed_as("vllm-rocm"), listed_as("sglang")
    ('vllm-v0', 'sglang')
    """
    return _LISTED_AS.get(engine, engine)


def written_as(engine: str, version: str) -> str:
    """Return the engine of which a version has the arguments: vLLM's on ROCm are those of CUDA's V0 or V1.

    >>> written_as("vllm-rocm", "0.7"), written_as("vllm-rocm", "0.14"), written_as("sglang", "0.5.2")
    ('vllm-v0', 'vllm', 'sglang')
    """
    if engine not in _LISTED_AS:
        return engine
    return "vllm" if version in listed_versions("vllm") else _LISTED_AS[engine]


def _is_vllm(engine: str) -> bool:
    return engine.startswith("vllm")


def _shortened(version: str, engine: str) -> str:
    """Return a version as the files of engines name it: 0.24 for vLLM's 0.24.0."""
    return version.rsplit(".", 1)[0] if _is_vllm(engine) else version


@cache
def argument_list(engine: str, version: str) -> ArgumentList:
    """Return the arguments of a version; raises UnsupportedError, with the listed ones, for any other."""
    names = listed_versions(engine)
    if version not in names:
        raise UnsupportedError(
            f"the arguments of {engine} {version} are not listed: known versions are {', '.join(names)}"
        )
    table, place = listed_data(listed_as(engine)), names.index(version)
    order = {name: at for at, name in enumerate(table["versions"])}
    arguments: dict[str, EngineArgument] = {}
    for row in table["arguments"]:
        if order[row["first"]] <= place <= order[row["last"]]:
            made = EngineArgument(
                flag=row["flag"],
                kind=row["type"],
                aliases=tuple(row.get("aliases", ())),
                default=row.get("default"),
                choices=tuple(choice for choice in row.get("choices", ()) if choice is not None),
                optional=row.get("optional", False),
            )
            arguments |= dict.fromkeys((made.flag, *made.aliases), made)
    complete = table.get("complete", True)
    source = f"the wheel of {table['versions'][place]}" if complete else "documents and one commit"
    return ArgumentList(engine, version, source, complete, arguments)


#: What the engines of a pool do; of one pool they do both.
PoolRole = Literal["prefill", "decode"]
#: Where drafts come from, as in the section ``speculation`` of a job.
DraftMethod = Literal["ngram", "draft_model", "eagle", "eagle3", "mtp"]

#: What the numbers of a layout are for, where they are not called so.
PARTS: Final = {"pp": "pipeline stages", "dcp": "decode context parallelism", "ep": "expert parallelism"}
#: Settings of the memory of an engine by their bindings, and what they are for.
_MEMORY: Final = {
    "longest_request": ("longest_request", "the longest request"),
    "gpu_memory_utilization": ("utilization", "the share of memory"),
    "block_tokens": ("block_tokens", "the block of the cache"),
    "cache_tokens": ("cache_tokens", "the tokens of the cache"),
}


def _with(layout: EngineLayout, name: str, *values: object) -> tuple[EngineLayout, ...]:
    """Return layouts that have these values of a field."""
    changes: list[dict[str, Any]] = [{name: value} for value in values]
    return tuple(replace(layout, **change) for change in changes)


class InexpressibleEngineError(UnsupportedError):
    """A part of a layout that an engine or a manifest cannot express.

    ``part`` is a sentence on it, ``nearest`` has layouts without that part, the most alike first.
    """

    def __init__(self, part: str, nearest: Sequence[EngineLayout] = ()) -> None:
        self.part = part
        self.nearest: tuple[EngineLayout, ...] = tuple(nearest)
        super().__init__(part)


def refuse_first(*parts: tuple[Any, ...], of: str = "") -> None:
    """Raise InexpressibleEngineError for the first part that is there, with layouts behind its words."""
    for there, part, *nearest in parts:
        if there:
            raise InexpressibleEngineError(f"{part}{of}", nearest)


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

    def add_memory(self, settings: EngineSettings, *names: str) -> None:
        """Add the flags of settings that say what an engine's memory is for, where they are said."""
        for name in names:
            value = getattr(settings, _MEMORY[name][0])
            shown = f"{value:g}" if name == "gpu_memory_utilization" and value is not None else value
            if value is not None:
                self.add(name, shown, part=_MEMORY[name][1])

    def add_eager(self, settings: EngineSettings) -> None:
        """Add the flag of steps without CUDA graphs, where the settings have none."""
        if settings.enforce_eager:
            self.add("enforce_eager", part="steps without CUDA graphs")

    def add_nodes(self, nodes: int, part: str, address: str) -> None:
        """Add the flags of an engine on several nodes, where it is on several."""
        values = {"nodes": nodes, "node_rank": "$NODE_RANK", "node_address": address} if nodes > 1 else {}
        for name, value in values.items():
            self.add(name, value, part=part)

    def add_formats(self, settings: EngineSettings) -> None:
        """Add the flags of the formats of weights, also of those made while loading, and of the cache."""
        layout, table = self.layout, self.known.table
        if layout.weights in table["weights"].names:
            self.add("weights", table["weights"].names[layout.weights], part=f"weights={layout.weights}")
        if settings.converted is not None:
            part, nearest = f"weights={settings.converted}", _with(layout, "weights", "fp8", "bf16")
            name = table["converted"].names.get(settings.converted, settings.converted)
            self.add("converted", name, part=part, nearest=nearest)
        if layout.kv != "auto":
            name = table["kv"].names.get(layout.kv, layout.kv)
            self.add("kv", name, part=f"kv={layout.kv}", nearest=_with(layout, "kv", "auto"))

    def add_sizes(self, *names: str, times: int = 1) -> None:
        """Add the flags of numbers of the layout, ``times`` as much, where they are not the default."""
        for name in names:
            value, usual = getattr(self.layout, name) * times, getattr(EngineLayout(), name)
            if value != usual:
                self.add(name, value, part=PARTS.get(name, name), nearest=_with(self.layout, name, usual))
