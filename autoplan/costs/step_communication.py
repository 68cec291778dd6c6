"""Communication of a step under a layout, message by message, and the ranks and links that it uses.

Notation (this file only)::

    m        microbatches of a step     v  virtual stages of a device                 [1]
    t, c, d  tensor-, context- and data-parallel degree     p  stages                 [1]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from autoplan.costs.core.candidates import Array, Axis, ByMode, Candidates, axis_stride, column
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.prediction import AxisTraffic, Communication, MeshAxis, MeshExtent, RankPlacement
from autoplan.costs.core.scope import Scope, scope_of
from autoplan.costs.device.machine import links_of
from autoplan.costs.layer.context_parallel import ContextMessage, context_messages
from autoplan.costs.layer.moe import destinations_visited
from autoplan.costs.layer.moe_dispatch import dispatch_bytes
from autoplan.costs.memory.layout_memory import StageCounts
from autoplan.costs.network.collectives import Group, LinkOperation, link_bytes
from autoplan.costs.network.mesh import context_group, dispatch_groups, pipeline_group
from autoplan.costs.network.stage_volume import PartVolume, layer_volume, outside_volume
from autoplan.costs.network.tensor_calls import repeated_layers
from autoplan.costs.stage.mixed_stages import layers_by_type
from autoplan.costs.stage.per_microbatch import boundary_bytes
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout


def step_communication(job: Job, layout: Layout) -> tuple[Communication, ...]:
    """Return what one rank of every stage communicates in a step of ``layout`` ([byte], [1]).

    The layout must be valid. A group of one rank communicates nothing.

    >>> one = parse_layout("tp=4,pp=2,mbs=1", layers=32, devices=8)
    >>> for x in step_communication(job, one):
    ...     if x.part == "boundary":  # 2 x 8,192 x 4,096 / 4 bytes, 128 microbatches
    ...         print(x.stage, x.phase, x.operation, x.axis, x.ranks, x.stride, x.message_bytes, x.calls)
    0 forward send pp 2 4 16777216.0 128.0
    1 backward send pp 2 4 16777216.0 128.0

    Leaves out: scalars such as the gradient norm and the loss; padding; broadcasts before the first step.
    Source: the messages that ``costs/stage`` and ``costs/layer`` price.
    """
    candidates, counts = Candidates.of([layout]), StageCounts.of([layout])
    types = layer_types_of(job.model, job.workload.sequence_length)
    layers = layers_by_type(types, candidates, counts)
    messages: list[_Message] = []
    for k, layer_job in enumerate(types.jobs(job)):
        scope = scope_of(layer_job, candidates)
        stage_layers = _Layers(layers.layers[k], {mode: n[k] for mode, n in layers.recomputed.items()})
        messages += _collectives(layer_volume(scope, stage_layers.all, stage_layers.recomputed))
        messages += [*_context(scope, stage_layers), *_dispatch(scope, stage_layers)]
        if k == 0:
            messages += [*_collectives(outside_volume(scope)), *_boundaries(scope)]
    return tuple(sorted((x for one in messages for x in one.of_stages(layout.pp)), key=lambda x: x.stage))


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers of each stage, and those with each recompute mode, shape [1, p]."""

    all: Array
    recomputed: ByMode


@dataclass(frozen=True, slots=True)
class _Message:
    """A message with its calls in a step, arrays that broadcast to [1, p]."""

    part: str
    phase: str
    operation: str
    axis: MeshAxis
    group: Group
    size: Array
    calls: Array

    def of_stages(self, stages: int) -> Iterator[Communication]:
        """Return the records of the stages that take part in it."""
        arrays = np.broadcast_arrays(
            *(np.asarray(x, dtype=np.float64) for x in (self.size, self.calls)),
            *(np.reshape(x, (-1, 1)) for x in (self.group.ranks, self.group.stride)),
            np.zeros((1, stages)),
        )
        size, calls, ranks, stride = (x[0].tolist() for x in arrays[:4])
        for stage in range(stages):
            if ranks[stage] > 1 and size[stage] > 0 and calls[stage] > 0:
                yield Communication(
                    stage=stage,
                    part=self.part,
                    phase=self.phase,
                    operation=self.operation,
                    axis=self.axis,
                    ranks=int(ranks[stage]),
                    stride=int(stride[stage]),
                    message_bytes=size[stage],
                    calls=calls[stage],
                )


def _collectives(volume: PartVolume) -> Iterator[_Message]:
    for part, collectives in volume.items():
        for x in collectives:
            yield _Message(part, x.when, x.operation, x.axis, x.group, x.message, x.calls)


def _context(scope: Scope, layers: _Layers) -> Iterator[_Message]:
    """Return the messages of context parallelism; recompute of attention repeats those of forward."""
    forward, backward = context_messages(scope.job, scope.candidates)
    recomputed = repeated_layers(scope.job, layers.recomputed, "attention")
    group = context_group(scope.candidates)

    def passed(phase: str, messages: tuple[ContextMessage, ...], times: Array | float) -> Iterator[_Message]:
        for x in messages:
            calls = times * scope.microbatches * column(x.calls)
            yield _Message("attention", phase, x.operation, "cp", group, column(x.size), calls)

    yield from passed("forward", forward, layers.all)
    yield from passed("backward", backward, layers.all)
    yield from passed("recompute", forward, recomputed)


def _dispatch(scope: Scope, layers: _Layers) -> Iterator[_Message]:
    """Return MoE dispatch and combine, the same in forward, in backward and where experts are recomputed."""
    job, candidates = scope.job, scope.candidates
    moe, policy = job.model.moe, job.stack.experts
    if moe is None:
        return
    expert, tensor = dispatch_groups(candidates)
    once, split = dispatch_bytes(job, candidates), candidates.sequence_parallel == 1
    routed = once * moe.top_k
    hierarchical = policy is not None and policy.dispatch == "hierarchical"
    sent = once * destinations_visited(expert.ranks, moe.top_k) if hierarchical else routed
    # Without sequence parallelism every rank of the expert-tensor-parallel group has all routed tokens.
    gathering = Group(np.where(split, tensor.ranks, 1.0), tensor.stride)
    repeated = repeated_layers(job, layers.recomputed, "experts")
    passes = {"forward": layers.all, "backward": layers.all, "recompute": repeated}
    share = moe_layer_share(job.model)
    for phase, times in passes.items():
        calls = share * times * scope.microbatches
        yield _Message("dispatch", phase, "all_to_all", "ep", expert, column(sent), 2.0 * calls)
        for operation in ("all_gather", "reduce_scatter"):
            size = column(routed * tensor.ranks)
            yield _Message("dispatch", phase, operation, "etp", gathering, size, calls)


def _boundaries(scope: Scope) -> Iterator[_Message]:
    """Return what the stages of a pipeline send: m v messages, none after the last and before the first."""
    c = scope.candidates
    group, size = pipeline_group(c), column(boundary_bytes(scope.job, c))
    chunks = column(c.vpp)
    for phase, end in (("forward", scope.last), ("backward", scope.first)):
        yield _Message("boundary", phase, "send", "pp", group, size, scope.microbatches * (chunks - end))


_AXES: Final[tuple[Axis, ...]] = ("tp", "cp", "dp", "pp")


def step_placement(job: Job, layout: Layout) -> RankPlacement:
    """Return the mesh of ``layout`` on its machine, and the bytes that a device sends in a step ([byte]).

    The layout must be valid. Bytes are those of the mean rank of a stage, by axis.

    >>> one = parse_layout("tp=4,pp=2,mbs=1", layers=32, devices=8)
    >>> placement = step_placement(job, one)
    >>> [(x.axis, x.degree, x.stride) for x in placement.axes]
    [('tp', 4, 1), ('cp', 1, 4), ('dp', 1, 4), ('pp', 2, 4)]
    >>> [x.fabric_bytes / 2**20 for x in placement.traffic if x.axis == "pp"]  # 128 messages of 16 MiB
    [2048.0, 2048.0]

    Leaves out: which of its neighbours a rank sends to; hosts between device and network.
    Source: the messages of ``step_communication``.
    """
    links = links_of(job.cluster, job.kernels)
    sent: dict[tuple[int, MeshAxis, int, int], tuple[float, float]] = {}
    for x in step_communication(job, layout):
        group = Group(np.array(float(x.ranks)), np.array(float(x.stride)))
        size = np.array(x.bytes)
        fabric, network = link_bytes(cast("LinkOperation", x.operation), size, group, links)
        key = (x.stage, x.axis, x.ranks, x.stride)
        before = sent.get(key, (0.0, 0.0))
        sent[key] = (before[0] + float(fabric), before[1] + float(network))
    candidates = Candidates.of([layout])
    degrees: dict[Axis, int] = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}
    return RankPlacement(
        devices=layout.devices,
        devices_per_node=links.devices_per_node,
        fabric_bandwidth=links.fabric_bandwidth,
        network_bandwidth=links.network_bandwidth,
        axes=tuple(MeshExtent(x, degrees[x], int(axis_stride(candidates, x)[0])) for x in _AXES),
        traffic=tuple(AxisTraffic(*key, *both) for key, both in sent.items()),
    )
