"""Rules about what is kept: checkpoints of several layers, and state and activations in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.scope import scope_of
from autoplan.costs.memory.model_states import host_bytes
from autoplan.costs.memory.offload import host_activation_bytes
from autoplan.rules.rule import Mask, Rule, among, divides
from autoplan.schema.job import Job
from autoplan.schema.layout import RECOMPUTE
from autoplan.units import format_bytes

__all__ = ["memory_rules"]


def memory_rules(job: Job) -> Iterator[Rule]:
    """Yield the rules of ``job`` about checkpoints and what is in host memory."""
    stack = job.stack
    if not stack.rules.checkpoint_blocks:
        yield Rule(f"{stack.title} checkpoints one layer at a time", lambda c: c.checkpoint == 1)
    if stack.offload is None:
        yield Rule(
            f"{stack.title} keeps the optimizer's state on the device", lambda c: c.optimizer_offload == 0
        )
    host = job.cluster.node.host.memory.value
    if stack.offload is not None:
        yield Rule(
            f"the optimizer's state of a node's devices fits into its host memory of {format_bytes(host)}",
            lambda c: (c.optimizer_offload == 0) | (_host_bytes_of_node(job, c) <= host),
        )
    yield from _activation_rules(job, host)


def _activation_rules(job: Job, host: float) -> Iterator[Rule]:
    stack, policy = job.stack, job.stack.activation_offload
    if policy is None:
        yield Rule(f"{stack.title} keeps activations on the device", lambda c: c.moved == 0)
        return
    if not policy.pipelines:
        yield Rule(
            f"{stack.title} offloads activations without pipelines only",
            lambda c: (c.moved == 0) | (c.pp == 1),
        )
    modes = [1 + RECOMPUTE.index(mode) for mode in policy.recompute]
    yield Rule(
        f"{stack.title} offloads activations with recompute={' or '.join(policy.recompute)} of all layers",
        lambda c: (c.moved == 0) | among(c.moved, modes),
    )
    if not policy.partial:
        yield Rule(
            f"{stack.title} offloads activations of all layers (offload_every = 1)",
            lambda c: c.offload_every == 1,
        )
    layers = job.model.layers
    yield Rule(
        f"offload_every divides the {layers} layers",
        lambda c: (c.offload_every == 1) | divides(layers, c.offload_every),
    )
    whole = 1 + RECOMPUTE.index("full")
    yield Rule(
        "checkpoint is 1 where activations are offloaded of layers that are not recomputed whole",
        lambda c: (c.moved == 0) | (c.moved == whole) | (c.checkpoint == 1),
    )
    yield Rule(
        f"what a node's devices offload, activations too, fits into its host memory of {format_bytes(host)}",
        lambda c: _activations_fit(job, c, host),
    )


def _activations_fit(job: Job, candidates: Candidates, host: float) -> Mask:
    fits: Mask = candidates.moved == 0
    moved = np.flatnonzero(~fits)
    if len(moved):
        some = candidates.take(moved)
        fits[moved] = _host_bytes_of_node(job, some) + _activations_of_node(job, some) <= host
    return fits


def _activations_of_node(job: Job, candidates: Candidates) -> NDArray[np.floating[Any]]:
    """Return what all devices of the first node keep of activations in host memory, with even stages.

    Pipelines are laid over nodes stage by stage, and the first stages have the most microbatches in flight;
    an order of ranks that puts more stages of a pipeline into a node fills it less.
    """
    pp, devices, here = candidates.pp, job.cluster.devices, job.cluster.node.devices
    even = np.full((len(candidates), pp), job.model.layers / pp)
    of_stages = host_activation_bytes(scope_of(job, candidates), even)
    first = max(1, min(pp, here * pp // devices))
    held: NDArray[np.floating[Any]] = of_stages[:, :first].mean(axis=1) * min(here, devices)
    return held


def _host_bytes_of_node(job: Job, candidates: Candidates) -> NDArray[np.floating[Any]]:
    """Return what all devices of a node keep of state in host memory, with the layers spread evenly."""
    scope = scope_of(job, candidates)
    parts = scope.weights
    outside = host_bytes(scope, parts.embedding) + host_bytes(scope, parts.head)
    layers = job.model.layers * host_bytes(scope, parts.layer)
    here = min(job.cluster.node.devices, job.cluster.devices)
    held: NDArray[np.floating[Any]] = (outside + layers)[:, 0] / candidates.pp * here
    return held
