"""Collectives of a layout by kind, axis and place in a step, and the time of each axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, get_args

import numpy as np

from autoplan.costs.core.prediction import Communication
from autoplan.costs.device.machine import machine_of, serial
from autoplan.costs.network.collectives import Group, Operation, bus_bandwidth_factor
from autoplan.costs.predict import time_on
from autoplan.planning.communicating import communication
from autoplan.results import Plan
from autoplan.results.comparing.compared_layouts import AxisSeconds, CollectiveTraffic
from autoplan.schema.job import Job

__all__ = ["axis_seconds", "layout_traffic"]

#: Parts of a step whose messages are those of layers, so many for each layer and microbatch.
_OF_LAYERS: Final = frozenset({"layers", "experts", "attention", "dispatch"})
#: Phases that come once a step.
_ONCE: Final = frozenset({"step reduction", "step gather"})
#: Axes of a step's breakdown that communicate.
_AXES: Final = ("tp", "cp", "ep", "pp", "dp")


def layout_traffic(job: Job, plan: Plan) -> tuple[CollectiveTraffic, ...]:
    """Return what one rank of the stage that sends most takes part in, the most bytes first.

    The messages are those that the prediction prices (see ``communication``).
    """
    stages: dict[int, list[Communication]] = defaultdict(list)
    for message in communication(job, plan.layout):
        stages[message.stage].append(message)
    if not stages:
        return ()
    busiest = max(stages.values(), key=lambda messages: sum(map(_sent_bytes, messages)))
    return tuple(sorted(_grouped(job, plan, busiest), key=lambda traffic: -traffic.sent_bytes))


def _grouped(job: Job, plan: Plan, messages: Sequence[Communication]) -> Iterable[CollectiveTraffic]:
    groups: dict[tuple[object, ...], list[Communication]] = defaultdict(list)
    for x in messages:
        groups[x.axis, x.operation, x.part, x.phase, x.ranks, x.stride].append(x)
    for alike in groups.values():
        yield _traffic(job, plan, alike)


def _traffic(job: Job, plan: Plan, alike: Sequence[Communication]) -> CollectiveTraffic:
    first, calls = alike[0], sum(x.calls for x in alike)
    passes = plan.layout.layers[first.stage] * plan.predicted.microbatches
    repeated = first.part in _OF_LAYERS and first.phase not in _ONCE
    group = Group(np.asarray(float(first.ranks)), np.asarray(float(first.stride)))
    return CollectiveTraffic(
        axis=first.axis,
        operation=first.operation,
        part=first.part,
        phase=first.phase,
        ranks=first.ranks,
        spans_nodes=bool(group.ranks > group.ranks_among(job.cluster.node.devices)),
        message_bytes=sum(x.bytes for x in alike) / calls,
        calls=calls,
        calls_per_layer=calls / passes if repeated else None,
        sent_bytes=sum(map(_sent_bytes, alike)),
    )


def _sent_bytes(message: Communication) -> float:
    """Return what one rank sends of the messages of a step [byte]."""
    for operation in get_args(Operation):
        if operation == message.operation:
            return message.bytes * float(bus_bandwidth_factor(operation, np.asarray(float(message.ranks))))
    return message.bytes


def axis_seconds(job: Job, plan: Plan) -> tuple[AxisSeconds, ...]:
    """Return the communication of each axis that takes time [s]: in all, and exposed.

    Both are breakdowns of the slowest stage: by the step's upper bound, without overlap, and by the step.
    """
    alone, time = time_on(job, plan.layout, serial(machine_of(job))), plan.predicted.time
    seconds = [
        AxisSeconds(axis, getattr(alone, f"{axis}_exposed"), getattr(time, f"{axis}_exposed"))
        for axis in _AXES
    ]
    return tuple(
        AxisSeconds(x.axis, max(x.total_seconds, x.exposed_seconds), x.exposed_seconds)
        for x in seconds
        if x.total_seconds or x.exposed_seconds
    )
