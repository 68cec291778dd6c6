"""Ranks of a layout on the nodes of its machine, and what each link of a device carries in a step.

Notation (this file only)::

    t, c, d, p  tensor-, context- and data-parallel degree, stages of a pipeline      [1]
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.prediction import AxisTraffic, MeshAxis, MeshExtent, RankPlacement
from autoplan.costs.core.rank_strides import Axis, axis_stride
from autoplan.costs.device.machine import links_of
from autoplan.costs.network.collectives import Group, LinkOperation, link_bytes
from autoplan.costs.step_communication import step_communication
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["step_placement"]

_AXES: Final[tuple[Axis, ...]] = ("tp", "cp", "dp", "pp")


def step_placement(job: Job, layout: Layout) -> RankPlacement:
    """Return the mesh of ``layout`` on its machine, and the bytes that a device sends in a step ([byte]).

    The layout must be valid. Bytes are those of the mean rank of a stage, by axis.

    >>> one = parse_layout("tp=4,pp=2,mbs=1", layers=32, devices=8)
    >>> placement = step_placement(load_job("llama3-8b-8x-a100"), one)
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
