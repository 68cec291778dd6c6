"""The parallel layout of a job: degrees, schedule, recompute, sharding and offload, and its layout string.

``tp=2,pp=2,dp=2,cp=1,ep=1,mbs=1,zero=1,vpp=1,sp=on,schedule=1f1b,recompute=selective`` names a
layout on the command line, in JSON and in reports. Uneven pipelines add ``stages=10/11/11`` (layers per
stage). Recompute that differs by stage has one entry per stage: ``recompute=full:4+selective:2/full/none``
is full recompute of four layers and selective recompute of two on the first stage, full recompute of all
layers on the second, none on the third. ``recompute_num_layers=4`` stores one input for every four layers
under full recompute (Megatron's ``--recompute-num-layers``). ``dp_shard=8`` shards model states over eight
data-parallel ranks and replicates them across the others (HSDP). ``offload=optimizer`` stores optimizer
states in host memory, ``offload=activations`` stored activations, ``offload=optimizer+activations`` both;
``offload_every=4`` offloads the activations of one layer in four. ``etp`` is the tensor-parallel degree of
experts, by default ``tp``. ``order=tp-pp-cp-dp`` numbers ranks along tensor, pipeline, context, then data
parallelism: groups of the first axes stay inside a node.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from autoplan.errors import LayoutError
from autoplan.schema.recompute import FULL, MODES, RECOMPUTE, Recompute, RecomputeMode
from autoplan.schema.renamed_keys import RENAMED_KEYS
from autoplan.schema.stage_layers import even_stages, fewest_layers

Schedule = Literal["1f1b", "gpipe", "interleaved", "zero-bubble"]
Offload = Literal["none", "optimizer", "activations", "optimizer+activations"]

SCHEDULES: Final[tuple[Schedule, ...]] = get_args(Schedule)
#: Indexed by the states in host memory: 1 for optimizer states, 2 for activations, 3 for both.
OFFLOADS: Final[tuple[Offload, ...]] = get_args(Offload)

#: Orders of the axes in which ranks are numbered, the innermost first; the first one is the default.
Order = Literal[
    "tp-cp-dp-pp",
    "tp-cp-pp-dp",
    "tp-pp-cp-dp",
    "pp-tp-cp-dp",
    "cp-dp-tp-pp",
    "cp-dp-pp-tp",
    "pp-cp-dp-tp",
]

ORDERS: Final[tuple[Order, ...]] = get_args(Order)

_LIMIT: Final = 10_000_000

#: What the value of a key of a layout is: a whole number, on or off, one of several words, a count for each
#: stage, or the recompute of the stages.
LayoutKind = Literal["number", "switch", "word", "counts", "recompute"]


@dataclass(frozen=True, slots=True)
class LayoutKey:
    """One key of a layout, as strings, documents, launch files and users' rules have it."""

    name: str
    kind: LayoutKind
    #: The value of a layout in documents.
    value: Callable[[Layout], object]
    #: Its column of ``Candidates``: numbers, 1 for on, or indices of words; empty: it is of stages.
    column: str = ""
    #: Words, in order; empty: no word.
    words: tuple[str, ...] = ()
    #: Least and most of a number.
    least: int = 1
    most: int = _LIMIT
    #: Whether every launch file, or its framework, says it.
    launched: bool = False
    #: Value that launch files need not say; None: there is none.
    usual: object = None
    #: Whether a layout string has it; others are what it comes to.
    written: bool = True
    #: Whether documents have it only where some stage has a count above 0.
    counted: bool = False


def _shard(layout: Layout) -> int:
    """Return the ranks that share model states [1]: all data-parallel ranks unless the layout says fewer."""
    return (layout.dp_shard or layout.dp * layout.cp) if layout.zero else 1


def _recompute_key(mode: Recompute) -> LayoutKey:
    """Return the key of the layers of each stage with one recompute mode."""
    return LayoutKey(
        mode.name, "counts", lambda x: list(x.counts(mode.name)), written=False, counted=not mode.usual
    )


#: Every key of a layout, in the order of documents. Strings, rules, launch files and documents read it here;
#: verification counts by lists of its own.
LAYOUT_KEYS: Final = (
    LayoutKey("tp", "number", lambda x: x.tp, "tp", launched=True),
    LayoutKey("pp", "number", lambda x: x.pp, launched=True),
    LayoutKey("dp", "number", lambda x: x.dp, "dp", launched=True),
    LayoutKey("cp", "number", lambda x: x.cp, "cp", launched=True),
    LayoutKey("ep", "number", lambda x: x.ep, "ep"),
    LayoutKey("etp", "number", lambda x: x.etp, "etp"),
    LayoutKey("mbs", "number", lambda x: x.microbatch, "microbatch", launched=True),
    LayoutKey("zero", "number", lambda x: x.zero, "zero", least=0, most=3, launched=True),
    LayoutKey("dp_shard", "number", _shard, "dp_shard"),
    LayoutKey("vpp", "number", lambda x: x.vpp, "vpp"),
    LayoutKey(
        "sp", "switch", lambda x: x.sequence_parallel, "sequence_parallel", ("on", "off"), launched=True
    ),
    LayoutKey("schedule", "word", lambda x: x.schedule, "schedule", SCHEDULES),
    LayoutKey("stages", "counts", lambda x: list(x.layers)),
    LayoutKey("recompute", "recompute", lambda x: x.recompute, launched=True),
    *(_recompute_key(mode) for mode in MODES),
    LayoutKey(
        "recompute_num_layers", "number", lambda x: x.recompute_num_layers, "recompute_num_layers", usual=1
    ),
    LayoutKey("offload", "word", lambda x: x.offload, "offload", OFFLOADS, usual="none"),
    LayoutKey("offload_every", "number", lambda x: x.offload_every, "offload_every", usual=1),
    LayoutKey("order", "word", lambda x: x.order, "order", ORDERS, usual=ORDERS[0]),
)

_NUMBERS: Final = {key.name: key for key in LAYOUT_KEYS if key.kind == "number"}
#: Keys of a layout string: numbers first.
_KEYS: Final = (*_NUMBERS, *(key.name for key in LAYOUT_KEYS if key.written and key.kind != "number"))


@dataclass(frozen=True, slots=True)
class Layout:
    """One complete layout.

    ``layers`` has one entry per pipeline stage, and so have the counts of ``recomputed``: how many of its
    layers use each recompute mode; a mode that no layer uses is left out. ``microbatch`` is counted in
    sequences. ``recompute_num_layers`` is the
    number of layers per recompute unit, ``dp_shard`` the data-parallel shard size under ZeRO: 0 for all
    data-parallel ranks. With activation offload, one layer in ``offload_every`` has its activations in host
    memory. ``expert_tensor`` is the tensor-parallel degree of experts, 0 for that of the other tensors.
    ``order`` names the axes in which ranks are numbered, the innermost first.
    """

    tp: int
    pp: int
    dp: int
    microbatch: int
    layers: tuple[int, ...]
    recomputed: tuple[tuple[str, tuple[int, ...]], ...] = ()
    zero: int = 0
    vpp: int = 1
    sequence_parallel: bool = False
    schedule: Schedule = "1f1b"
    cp: int = 1
    ep: int = 1
    recompute_num_layers: int = 1
    optimizer_offload: bool = False
    activation_offload: bool = False
    offload_every: int = 1
    expert_tensor: int = 0
    dp_shard: int = 0
    order: Order = ORDERS[0]

    def __post_init__(self) -> None:
        """Validate the counts per stage, and give options without effect their default value."""
        if self.expert_tensor == self.tp:
            object.__setattr__(self, "expert_tensor", 0)
        if not self.activation_offload:
            object.__setattr__(self, "offload_every", 1)
        counts = dict(self.recomputed)
        lengths = {len(self.layers), *map(len, counts.values())}
        if lengths != {self.pp}:
            entries = " and ".join(map(str, sorted(lengths)))
            raise LayoutError([f"pp={self.pp} needs one entry per stage: got {entries}"])
        used = tuple((mode.name, counts[mode.name]) for mode in MODES if any(counts.get(mode.name, ())))
        object.__setattr__(self, "recomputed", used)
        for stage, n in enumerate(self.layers):
            of_stage = [stages[stage] for _, stages in used]
            if min(of_stage, default=0) < 0 or sum(of_stage) > n or n < 1:
                raise LayoutError([f"stage {stage} recomputes {sum(of_stage)} of its {n} layers"])

    def counts(self, mode: str) -> tuple[int, ...]:
        """Return how many layers of each stage use recompute ``mode``."""
        return next((counts for name, counts in self.recomputed if name == mode), (0,) * self.pp)

    @property
    def recomputed_layers(self) -> int:
        """Layers of all stages that are recomputed."""
        return sum(sum(counts) for _, counts in self.recomputed)

    def with_recompute(self, counts: Mapping[str, Sequence[int]]) -> Layout:
        """Return the layout with ``counts`` of layers by stage in each recompute mode, and no others."""
        return replace(self, recomputed=tuple((mode, tuple(n)) for mode, n in counts.items()))

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def etp(self) -> int:
        """Tensor-parallel degree of experts."""
        return self.expert_tensor or self.tp

    @property
    def offload(self) -> Offload:
        """The states offloaded to host memory."""
        return OFFLOADS[self.optimizer_offload + 2 * self.activation_offload]

    @property
    def mode(self) -> RecomputeMode | None:
        """Recompute mode of all layers; None where layers differ."""
        entry = self.recompute
        return next((mode for mode in RECOMPUTE if mode == entry), None)

    def with_uniform_recompute(self, mode: RecomputeMode) -> Layout:
        """Return the layout with recompute mode ``mode`` in all layers."""
        return replace(
            self,
            recomputed=() if mode == "none" else ((mode, self.layers),),
            recompute_num_layers=self.recompute_num_layers if mode == FULL else 1,
        )

    @property
    def even(self) -> bool:
        """Whether the stages have the layers of an even split."""
        return self.layers == even_stages(sum(self.layers), self.pp, self.vpp)

    def __str__(self) -> str:
        """Return the layout string; ``parse_layout`` reads it back to the same layout."""
        sp = "on" if self.sequence_parallel else "off"
        text = (
            f"tp={self.tp},pp={self.pp},dp={self.dp},cp={self.cp},ep={self.ep},mbs={self.microbatch},"
            f"zero={self.zero},vpp={self.vpp},sp={sp},schedule={self.schedule},"
            f"recompute={self.recompute}"
        )
        more = (
            ("etp", self.etp, self.etp != self.tp),
            ("recompute_num_layers", self.recompute_num_layers, self.recompute_num_layers > 1),
            ("dp_shard", self.dp_shard, self.dp_shard > 0),
            ("offload", self.offload, self.offload != "none"),
            ("offload_every", self.offload_every, self.offload_every > 1),
            ("order", self.order, self.order != ORDERS[0]),
            ("stages", "/".join(map(str, self.layers)), not self.even),
        )
        return text + "".join(f",{key}={value}" for key, value, differs in more if differs)

    @property
    def recompute(self) -> str:
        """Recompute in the layout string: one mode, or one entry per stage."""
        entries = [
            _recompute_entry(n, {mode: counts[stage] for mode, counts in self.recomputed})
            for stage, n in enumerate(self.layers)
        ]
        return entries[0] if len(set(entries)) == 1 else "/".join(entries)


def _recompute_entry(layers: int, counts: Mapping[str, int]) -> str:
    """Return the recompute of a stage in the layout string, the mode of its first layers first."""
    for mode, count in counts.items():
        if count == layers:
            return mode
    return "+".join(f"{mode}:{count}" for mode, count in reversed([*counts.items()]) if count) or "none"


def parse_layout(text: str, *, layers: int, devices: int, zero: int = 0) -> Layout:
    """Return the layout of a layout string, for a model of ``layers`` layers on ``devices`` devices.

    Defaults: degrees and mbs 1, ``dp`` the remaining devices, ``zero`` as given, ``sp`` on for tp > 1,
    ``schedule`` 1f1b (interleaved for vpp > 1), even stages, no recompute, model states sharded over all
    data-parallel ranks, ``order`` the first of ORDERS. Raises LayoutError with all problems.

    >>> layout = parse_layout("tp=2,pp=3,recompute=full/none/selective:2", layers=32, devices=12)
    >>> layout.dp, layout.layers, layout.counts("full"), layout.counts("selective")
    (2, (11, 11, 10), (11, 0, 0), (0, 0, 2))
    >>> parse_layout(str(layout), layers=32, devices=12) == layout
    True
    """
    fields, problems = _split(text)
    numbers = {key: _number(key, fields[key], problems) for key in _NUMBERS if key in fields}
    tp, pp, cp = (numbers.get(key, 1) for key in ("tp", "pp", "cp"))
    vpp = numbers.get("vpp", 1)
    schedule = _schedule(fields.get("schedule"), vpp, problems)
    order = _order(fields.get("order"), problems)
    sp = _switch(fields.get("sp"), tp > 1, problems)
    offload = fields.get("offload", "none")
    if offload not in OFFLOADS:
        problems.append(f"offload={offload}: must be {', '.join(OFFLOADS[:-1])} or {OFFLOADS[-1]}")
    if problems:
        raise LayoutError(problems)
    stages = _stages(fields.get("stages"), layers, pp, vpp)
    dp = numbers.get("dp", max(1, devices // (tp * pp * cp)))
    shard = numbers.get("dp_shard", 0)
    return Layout(
        recompute_num_layers=numbers.get("recompute_num_layers", 1),
        optimizer_offload="optimizer" in offload,
        activation_offload="activations" in offload,
        offload_every=numbers.get("offload_every", 1),
        tp=tp,
        pp=pp,
        dp=dp,
        microbatch=numbers.get("mbs", 1),
        layers=stages,
        recomputed=_recomputed(fields.get("recompute", "none"), stages),
        zero=numbers.get("zero", zero),
        vpp=vpp,
        sequence_parallel=sp,
        schedule=schedule,
        cp=cp,
        ep=numbers.get("ep", 1),
        expert_tensor=numbers.get("etp", 0),
        dp_shard=0 if shard == dp * cp else shard,
        order=order,
    )


def devices_of(text: str) -> int:
    """Return the product of the degrees in a layout string; omitted degrees count as 1.

    >>> devices_of("tp=2,pp=2,dp=4,mbs=1")
    16
    """
    fields, problems = _split(text)
    numbers = [_number(key, fields[key], problems) for key in ("tp", "pp", "dp", "cp") if key in fields]
    if problems:
        raise LayoutError(problems)
    return math.prod(numbers)


def _split(text: str) -> tuple[dict[str, str], list[str]]:
    fields: dict[str, str] = {}
    problems: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (x.strip() for x in part.partition("="))
        if not equals or not value:
            problems.append(f"{part!r} is not of the form key=value")
        elif key not in _KEYS:
            problems.append(_unknown_key(key))
        elif key in fields:
            problems.append(f"{key!r} is given twice")
        else:
            fields[key] = value
    return fields, problems


def _unknown_key(key: str) -> str:
    if key in RENAMED_KEYS:
        return f"{key}: is called {RENAMED_KEYS[key]} now"
    near = difflib.get_close_matches(key, _KEYS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(_KEYS)}"
    return f"unknown layout key {key!r}: {hint}"


def _number(key: str, value: str, problems: list[str]) -> int:
    least, most = _NUMBERS[key].least, _NUMBERS[key].most
    if re.fullmatch(r"[0-9]{1,9}", value) and least <= int(value) <= most:
        return int(value)
    problems.append(f"{key}={value}: must be an integer from {least} to {most}")
    return least


def _schedule(value: str | None, vpp: int, problems: list[str]) -> Schedule:
    default: Schedule = "interleaved" if vpp > 1 else "1f1b"
    # Megatron's interleaved schedule is a 1F1B schedule too, so `vpp=2,schedule=1f1b` names it.
    if value is None or (value == "1f1b" and vpp > 1):
        return default
    for name in SCHEDULES:
        if value == name:
            if (name == "interleaved") != (vpp > 1):
                problems.append(f"schedule={name} with vpp={vpp}: vpp > 1 is the interleaved schedule")
            return name
    problems.append(f"schedule={value}: known schedules are {', '.join(SCHEDULES)}")
    return default


def _order(value: str | None, problems: list[str]) -> Order:
    for order in ORDERS:
        if value in {None, order}:
            return order
    problems.append(f"order={value}: known orders, the innermost axis first, are {', '.join(ORDERS)}")
    return ORDERS[0]


def _switch(value: str | None, default: bool, problems: list[str]) -> bool:  # noqa: FBT001
    if value is not None and value not in {"on", "off"}:
        problems.append(f"sp={value}: must be on or off")
    return default if value is None else value == "on"


def _stages(value: str | None, layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    if value is None:
        if (fewest := fewest_layers(pp, vpp)) > layers:
            raise LayoutError([f"pp={pp} with vpp={vpp} needs {fewest} layers: the model has {layers}"])
        return even_stages(layers, pp, vpp)
    entries = value.split("/")
    if not all(re.fullmatch(r"[1-9][0-9]{0,5}", e) for e in entries):
        raise LayoutError([f"stages={value}: must be layers per stage, such as 10/11/11"])
    counts = tuple(map(int, entries))
    if len(counts) != pp or sum(counts) != layers:
        needed = f"{pp} stages that add up to {layers} layers" if pp > 1 else f"one stage of {layers} layers"
        raise LayoutError([f"stages={value}: must be {needed}"])
    return counts


def _recomputed(value: str, stages: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    entries = value.split("/")
    if len(entries) == 1:
        entries = entries * len(stages)
    if len(entries) != len(stages):
        raise LayoutError([f"recompute={value}: must be one entry, or one for each of {len(stages)} stages"])
    counts = [_recompute_counts(entry, n) for entry, n in zip(entries, stages, strict=True)]
    return tuple((mode.name, tuple(of_stage[mode.name] for of_stage in counts)) for mode in MODES)


def _recompute_counts(entry: str, layers: int) -> dict[str, int]:
    """Return the layers of a stage of ``layers`` layers with each recompute mode."""
    counts: dict[str, int] = {mode.name: 0 for mode in MODES}
    if entry in RECOMPUTE:
        return counts | ({} if entry == "none" else {entry: layers})
    for part in entry.split("+"):
        match = re.fullmatch(r"([a-z]+):([0-9]{1,6})", part)
        if match is None or match[1] not in counts:
            wanted = f"must be {', '.join(RECOMPUTE)}, or counts such as full:4+selective:2"
            raise LayoutError([f"recompute={entry}: {wanted}"])
        counts[match[1]] += int(match[2])
    if sum(counts.values()) > layers:
        raise LayoutError([f"recompute={entry} counts more layers than the stage's {layers}"])
    return counts
