"""Candidates of the search as arrays, and the array types of ``autoplan.costs``.

Every formula works on arrays with one entry a candidate, so the search prices thousands of candidates with
the code that prices the single layout of ``evaluate``. Choices are integer codes; degrees divide the devices.

Notation (this file only)::

    t, c, d, p  tensor-, context- and data-parallel degree, stages of a pipeline      [1]

A layout's order names the axes from the innermost to the outermost. The stride of an axis is the product of
the degrees inside it. Experts have their own axes over the same ranks: ``etp`` replaces ``tp``, ``ep``
replaces ``cp``, and the expert data-parallel axis ``edp`` replaces ``dp``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum, IntFlag
from functools import cache, cached_property
from math import isqrt
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from autoplan.schema.layout import OFFLOADS, ORDERS, SCHEDULES, Offload, Schedule
from autoplan.schema.recompute import RECOMPUTE, RecomputeMode

if TYPE_CHECKING:
    from autoplan.schema.layout import Layout


Array: TypeAlias = NDArray[np.floating[Any]]
#: A number of each recompute mode of ``autoplan.schema.recompute``: layers of a stage with it, bytes that one
#: saves, or seconds that it adds. Counts may leave out modes that no layer has.
ByMode: TypeAlias = Mapping[str, Array]
Ints: TypeAlias = NDArray[np.int64]


_Arrays = TypeVar("_Arrays")


def taken(record: _Arrays, index: Any) -> _Arrays:  # noqa: ANN401 - whatever numpy takes as an index
    """Return a dataclass of arrays, or of such dataclasses, with every array indexed by ``index``."""
    return mapped(record, itemgetter(index))


def mapped(record: _Arrays, function: Callable[[Array], Array]) -> _Arrays:
    """Return a dataclass of arrays, or of such dataclasses, with ``function`` applied to every array.

    What there is for each recompute mode, an array or a dataclass, is a mapping.
    """

    def of_mode(x: Any) -> Any:  # noqa: ANN401 - an array, or a dataclass of arrays
        return function(x) if isinstance(x, np.ndarray) else mapped(x, function)

    values = _values_of(cast("Hashable", type(record)))(record)
    # Nearly all records within records are linear costs: a call less for each.
    return type(record)(
        *[
            function(x)
            if isinstance(x, np.ndarray)
            else Linear(function(x.fixed), function(x.layer))
            if type(x) is Linear
            else {mode: of_mode(of_x) for mode, of_x in x.items()}
            if type(x) is dict
            else mapped(x, function)
            for x in values
        ]
    )


def joined(records: Sequence[_Arrays]) -> _Arrays:
    """Return dataclasses of arrays as one with all entries; other fields are those of the first."""
    first, *others = records
    if not others:
        return first
    columns = zip(*map(_values_of(cast("Hashable", type(first))), records), strict=True)
    return type(first)(*map(_joined_column, columns))


def _joined_column(values: Sequence[Any]) -> Any:  # noqa: ANN401 - a field of any dataclass of arrays
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    if isinstance(values[0], dict):
        return {mode: np.concatenate([value[mode] for value in values]) for mode in values[0]}
    return joined(values) if is_dataclass(values[0]) else values[0]


@cache
def _values_of(kind: Any) -> Callable[[object], tuple[Any, ...]]:  # noqa: ANN401 - any dataclass
    return attrgetter(*(field.name for field in fields(kind)))


@dataclass(frozen=True, slots=True)
class Linear:
    """Cost of a stage that is linear in its layers: ``fixed`` plus ``layer`` per layer."""

    fixed: Array
    layer: Array

    def at(self, layers: Array) -> Array:
        """Return the cost of a stage with this number of layers, in the cost's unit.

        >>> Linear(1.0, 2.0).at(3)
        7.0
        """
        return self.fixed + layers * self.layer


def flag(condition: Any) -> Array:  # noqa: ANN401 - whatever numpy compares
    """Return 1.0 where ``condition`` holds, else 0.0."""
    return np.asarray(condition, dtype=np.float64)


def column(array: Array | Ints | NDArray[np.bool_]) -> Array:
    """Return ``array`` of shape [C] as float of shape [C, 1], which broadcasts over stages."""
    return np.asarray(array, dtype=np.float64)[:, None]


def broadcast(array: Array | float, shape: tuple[int, ...]) -> Array:
    """Return ``array`` in this ``shape``: itself where it has it, which takes numpy 6 us, else a view.

    >>> one = np.ones((2, 3))
    >>> broadcast(one, (2, 3)) is one, broadcast(2.0, (1, 2)).tolist()
    (True, [[2.0, 2.0]])
    """
    if isinstance(array, np.ndarray) and array.shape == shape:
        return array
    return np.broadcast_to(array, shape)


def distinct(codes: NDArray[Any]) -> Ints:
    """Return the distinct integers of ``codes`` in ascending order, without a sort where they are dense.

    >>> distinct(np.array([[3, 1], [1, 900]])).tolist(), distinct(np.array([True, True])).tolist()
    ([1, 3, 900], [1])

    ``np.unique`` does the same, but imports the whole of ``numpy.ma`` first, to ask whether they are masked.
    """
    flat = codes.astype(np.int64, copy=False).ravel()
    if not len(flat):
        return flat
    least = int(flat.min())
    if int(flat.max()) - least <= len(flat):
        return np.flatnonzero(np.bincount(flat - least)) + least
    ordered = np.sort(flat)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


def distinct_rows(columns: Sequence[NDArray[Any]]) -> tuple[Ints, Ints]:
    """Return the first index of each distinct row of integer ``columns``, and the number of every row.

    >>> first, numbers = distinct_rows([np.array([2, 7, 2]), np.array([5, 5, 5])])
    >>> first.tolist(), numbers.tolist()
    ([0, 1], [0, 1, 0])
    """
    numbers, count = np.zeros(len(columns[0]), dtype=np.int64), min(1, len(columns[0]))
    for column in columns:
        ranks, several = _ranks(column)
        if count <= 1:
            numbers, count = ranks, several
        elif several > 1:
            # Numbered anew after each column, so that no key exceeds the square of the rows.
            numbers, count = _ranks(numbers * several + ranks)
    first = np.zeros(count, dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return first, numbers


def _ranks(codes: NDArray[Any]) -> tuple[Ints, int]:
    """Return for each integer how many distinct smaller ones ``codes`` [C] has, and how many there are."""
    if not len(codes):
        return codes.astype(np.int64), 0
    least, most = int(codes.min()), int(codes.max())
    if least == most:
        return np.zeros(len(codes), dtype=np.int64), 1
    if most - least > len(codes):
        values = distinct(codes)
        return np.searchsorted(values, codes), len(values)
    places = np.subtract(codes, least, dtype=np.int64)
    present = np.zeros(most - least + 1, dtype=np.int64)
    present[places] = 1
    ranks = np.cumsum(present)
    return ranks.take(places) - 1, int(ranks[-1])


def host_choice(offload: Offload, mode: RecomputeMode, every: int = 1) -> tuple[int, int, int]:
    """Return the codes of what is offloaded to host memory, of the recompute of all layers, and n.

    With activation offload all layers use one recompute ``mode``, and one layer in n has its activations
    offloaded; without, layers may differ.

    >>> host_choice("optimizer", "full", 4), host_choice("activations", "none", 4)
    ((1, 0, 1), (2, 1, 4))
    """
    code = OffloadCode.of(offload)
    if not code & OffloadCode.ACTIVATIONS:
        return int(code), ANY_RECOMPUTE, 1
    return int(code), recompute_code(mode), every


def of_uniform_mode(candidates: Candidates, values: ByMode) -> Array:
    """Return of ``values`` [C] the one of the recompute mode of all layers, with activation offload; else 0.

    >>> texts = ("tp=8", "tp=8,offload=activations", "tp=8,recompute=full,offload=activations")
    >>> three = Candidates.of([parse_layout(text, layers=32, devices=8) for text in texts])
    >>> of_uniform_mode(three, {"none": np.full(3, 5.0), "full": np.full(3, 2.0)}).tolist()
    [0.0, 5.0, 2.0]
    """
    chosen: Array = np.zeros(len(candidates))
    for mode, value in values.items():
        chosen = np.where(candidates.uniform_recompute == recompute_code(mode), value, chosen)
    return chosen


#: Columns of candidates that are the numbers of a layout by the same name.
_NUMBERS: Final = ("tp", "dp", "cp", "ep", "microbatch", "zero", "vpp", "offload_every", "dp_shard")


@dataclass(frozen=True)
class Candidates:
    """Decision variables of ``C`` candidates with one pipeline depth ``pp``; arrays of shape [C].

    Layers per stage and recompute are not part of a candidate: they are chosen, or given, for it.
    ``dp_shard`` is the size of a shard group, 0 for all data-parallel ranks; ``schedule`` indexes
    ``autoplan.schema.layout.SCHEDULES``; ``offload``, ``uniform_recompute`` and ``offload_every`` are a
    ``host_choice``; ``order`` indexes ``autoplan.schema.layout.ORDERS``. Many formulas ask for the same
    degrees and strides: they are computed once, so that no array of a candidate may change.
    """

    pp: int
    tp: Ints
    dp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    microbatch: Ints
    zero: Ints
    sequence_parallel: Ints
    vpp: Ints
    schedule: Ints
    recompute_num_layers: Ints
    offload: Ints
    uniform_recompute: Ints
    offload_every: Ints
    dp_shard: Ints
    order: Ints

    def __len__(self) -> int:
        return len(self.tp)

    @cached_property
    def strides(self) -> dict[tuple[str, str], Array]:
        """Strides of axes, as they were computed."""
        return {}

    @cached_property
    def edp(self) -> Ints:
        """Expert data-parallel degree: tp dp cp / (ep etp) [1]."""
        degree: Ints = np.maximum(self.tp * self.dp * self.cp // (self.ep * self.etp), 1)
        return degree

    @property
    def single_data_rank(self) -> NDArray[np.bool_]:
        """Which candidates have no data parallelism, so that ZeRO shards nothing."""
        single: NDArray[np.bool_] = (self.dp * self.cp == 1) & (self.edp == 1)
        return single

    @cached_property
    def expert_shard(self) -> Ints:
        """Ranks of a shard group of experts: tp dp_shard / (ep etp), or edp without dp_shard [1]."""
        ranks = np.maximum(self.tp * self.dp_shard // (self.ep * self.etp), 1)
        return np.where(self.dp_shard > 0, ranks, self.edp)

    @property
    def optimizer_offload(self) -> Ints:
        """1 where optimizer states are offloaded to host memory."""
        return self.offload & OffloadCode.OPTIMIZER

    @property
    def activation_offload(self) -> NDArray[np.bool_]:
        """Which candidates offload activations to host memory."""
        offloaded: NDArray[np.bool_] = self.uniform_recompute != ANY_RECOMPUTE
        return offloaded

    def take(self, index: NDArray[Any]) -> Candidates:
        """Return the candidates at ``index`` (a mask or indices)."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        pp, *columns = _values_of(Candidates)(self)
        return Candidates(pp, *[column.take(index) for column in columns])

    def layout(self, i: int, layers: Sequence[int], recomputed: Mapping[str, Sequence[int]]) -> Layout:
        """Return candidate ``i`` with these layers and recompute of each stage: the inverse of ``of``.

        >>> layout = parse_layout("tp=2,pp=2,schedule=gpipe,recompute=full:3", layers=32, devices=8)
        >>> Candidates.of([layout]).layout(0, layout.layers, dict(layout.recomputed)) == layout
        True
        """
        from autoplan.schema.layout import ORDERS, Layout
        from autoplan.schema.recompute import FULL

        return Layout(
            **{name: int(getattr(self, name)[i]) for name in _NUMBERS},
            pp=self.pp,
            expert_tensor=int(self.etp[i]),
            layers=tuple(layers),
            recomputed=tuple((mode, tuple(counts)) for mode, counts in recomputed.items()),
            sequence_parallel=bool(self.sequence_parallel[i]),
            schedule=ScheduleCode(int(self.schedule[i])).schedule,
            # Without full recompute there are no recompute units.
            recompute_num_layers=int(self.recompute_num_layers[i]) if any(recomputed.get(FULL, ())) else 1,
            optimizer_offload=bool(self.optimizer_offload[i]),
            activation_offload=bool(self.activation_offload[i]),
            order=ORDERS[int(self.order[i])],
        )

    @staticmethod
    def of(layouts: Sequence[Layout]) -> Candidates:
        """Return the candidates of ``layouts``, which have one pipeline depth."""
        from autoplan.schema.layout import ORDERS

        def ints(values: Sequence[int]) -> Ints:
            return np.array(values, dtype=np.int64)

        host = [host_choice(x.offload, x.mode or "none", x.offload_every) for x in layouts]
        offload, recompute, every = map(ints, zip(*host, strict=True))
        return Candidates(
            **{
                name: ints([getattr(x, name) for x in layouts])
                for name in _NUMBERS
                if name != "offload_every"
            },
            pp=layouts[0].pp,
            etp=ints([x.etp for x in layouts]),
            sequence_parallel=ints([x.sequence_parallel for x in layouts]),
            schedule=ints([ScheduleCode.of(x.schedule) for x in layouts]),
            recompute_num_layers=ints([x.recompute_num_layers for x in layouts]),
            offload=offload,
            uniform_recompute=recompute,
            offload_every=every,
            order=ints([ORDERS.index(x.order) for x in layouts]),
        )


_SCHEDULES: tuple[str, ...] = SCHEDULES
_RECOMPUTE: tuple[str, ...] = RECOMPUTE


class ScheduleCode(IntEnum):
    """Pipeline schedules, in the order of ``autoplan.schema.layout.SCHEDULES``.

    >>> ScheduleCode.of("gpipe"), ScheduleCode(3).schedule
    (<ScheduleCode.GPIPE: 1>, 'zero-bubble')
    """

    ONE_F_ONE_B = 0
    GPIPE = 1
    INTERLEAVED = 2
    ZERO_BUBBLE = 3

    @classmethod
    def of(cls, schedule: str) -> ScheduleCode:
        """Return the code of ``schedule``."""
        return cls(_SCHEDULES.index(schedule))

    @property
    def schedule(self) -> Schedule:
        """The schedule's name in a layout string."""
        return SCHEDULES[self]


#: Code of a candidate each of whose layers chooses its recompute mode on its own.
ANY_RECOMPUTE: Final = 0


def recompute_code(mode: str) -> int:
    """Return the code of a candidate all of whose layers use recompute ``mode``.

    >>> recompute_code("none"), recompute_mode(recompute_code("full")), recompute_mode(ANY_RECOMPUTE)
    (1, 'full', None)
    """
    return 1 + _RECOMPUTE.index(mode)


def recompute_mode(code: int) -> RecomputeMode | None:
    """Return the recompute mode of all layers; None where each layer chooses its own."""
    return RECOMPUTE[code - 1] if code else None


class OffloadCode(IntFlag):
    """States in host memory, in the order of ``autoplan.schema.layout.OFFLOADS``.

    >>> OffloadCode.of("optimizer+activations").offload
    'optimizer+activations'
    """

    NOTHING = 0
    OPTIMIZER = 1
    ACTIVATIONS = 2

    @classmethod
    def of(cls, offload: Offload) -> OffloadCode:
        """Return the code of ``offload``."""
        return cls(OFFLOADS.index(offload))

    @property
    def offload(self) -> Offload:
        """The name of the states in a layout string."""
        return OFFLOADS[self]


class ShardCode(IntEnum):
    """Data-parallel shard sizes that are no number of ranks.

    ``ALL`` are all data-parallel ranks; ``NODE`` those of one node, until the order of ranks is known.
    """

    ALL = 0
    NODE = -1


Axis: TypeAlias = Literal["tp", "cp", "dp", "pp"]


_AXES: Final[tuple[Axis, ...]] = ("tp", "cp", "dp", "pp")


def _inside(axis: Axis, other: Axis) -> NDArray[np.bool_]:
    """Return for every order whether ``other`` is inside ``axis``."""
    orders = (order.split("-") for order in ORDERS)
    return np.array([order.index(other) < order.index(axis) for order in orders])


_INSIDE: Final = {(axis, other): _inside(axis, other) for axis in _AXES for other in _AXES}


def _stride(candidates: Candidates, axis: Axis, kind: str, degrees: dict[Axis, Ints | int]) -> Array:
    """Return the product of the degrees inside ``axis`` [1], shape [C], for one ``kind`` of degrees."""
    if (kind, axis) not in candidates.strides:
        stride = np.ones(len(candidates))
        for other, degree in degrees.items():
            stride = stride * np.where(_INSIDE[axis, other][candidates.order], degree, 1)
        candidates.strides[kind, axis] = stride
    return candidates.strides[kind, axis]


def axis_stride(candidates: Candidates, axis: Axis) -> Array:
    """Return the stride of ``axis`` [1], shape [C]: the product of the degrees inside it.

    >>> texts = ("tp=2,pp=4,dp=8", "tp=2,pp=4,dp=8,order=tp-pp-cp-dp")
    >>> both = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> axis_stride(both, "dp").tolist(), axis_stride(both, "pp").tolist()  # 2, 2 x 4; 2 x 8, 2
    ([2.0, 8.0], [16.0, 2.0])

    Leaves out: cluster schedulers that do not place consecutive ranks on a node.
    Source: Megatron-LM, megatron/core/parallel_state.py, RankGenerator, whose order is tp-cp-ep-dp-pp, or
    tp-cp-ep-pp-dp under --use-tp-pp-dp-mapping.
    """
    c = candidates
    return _stride(c, axis, "all", {"tp": c.tp, "cp": c.cp, "dp": c.dp, "pp": c.pp})


def expert_stride(candidates: Candidates, axis: Axis) -> Array:
    """Return the stride of an axis of experts [1], shape [C].

    ``axis`` is the axis that it replaces: ``tp`` for ``etp``, ``cp`` for ``ep``, ``dp`` for ``edp``.

    >>> texts = ("tp=2,pp=4,dp=8,ep=4", "tp=2,pp=4,dp=8,ep=4,order=pp-cp-dp-tp")
    >>> both = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> expert_stride(both, "cp").tolist(), expert_stride(both, "dp").tolist()  # 2, 4; 2 x 4, 4 x 4
    ([2.0, 4.0], [8.0, 16.0])

    Source: Megatron-LM, megatron/core/parallel_state.py, expert_decoder_rank_generator.
    """
    c = candidates
    return _stride(c, axis, "experts", {"tp": c.etp, "cp": c.ep, "dp": c.edp, "pp": c.pp})


def data_stride(candidates: Candidates) -> Array:
    """Return the stride of the data-parallel group with context parallelism [1], shape [C].

    >>> data_stride(candidate("tp=2,cp=2", layers=32, devices=16)).tolist()
    [2.0]
    """
    data = axis_stride(candidates, "dp")
    return np.where(candidates.cp > 1, axis_stride(candidates, "cp"), data)


def divisors(n: int) -> tuple[int, ...]:
    """Return the divisors of ``n``, ascending [1].

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)

    If d divides n, so does n / d, and the smaller of the two is at most the square root of n.
    """
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))
