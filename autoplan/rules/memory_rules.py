"""Rules about recompute units of several layers, and offload of optimizer states and activations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates, recompute_code
from autoplan.costs.core.optimizer_states import OPTIMIZERS
from autoplan.costs.core.scope import scope_of
from autoplan.costs.memory.model_states import host_bytes
from autoplan.costs.memory.offload import host_activation_bytes
from autoplan.rules.rule import Mask, Rule, among, divides
from autoplan.schema.job import Job
from autoplan.schema.recompute import FULL
from autoplan.units import format_bytes

__all__ = ["memory_rules"]


def memory_rules(job: Job) -> Iterator[Rule]:
    """Yield the rules of ``job`` about recompute units and offload."""
    stack = job.stack
    if not stack.rules.recompute_several_layers:
        yield Rule(
            f"{stack.title} recomputes layer by layer (recompute_num_layers = 1)",
            lambda c: c.recompute_num_layers == 1,
        )
    if stack.optimizer_offload is None:
        yield Rule(f"{stack.title} has no optimizer offload", lambda c: c.optimizer_offload == 0)
    host = job.cluster.node.host.memory.value
    if stack.optimizer_offload is not None:
        yield Rule(
            f"offloaded optimizer states of a node fit in its host memory of {format_bytes(host)}",
            lambda c: (c.optimizer_offload == 0) | (_host_bytes_of_node(job, c) <= host),
        )
    if OPTIMIZERS[job.optimizer].paged or stack.memory.offload_parameters:
        held = "offloaded model states" if stack.memory.offload_parameters else "pages of optimizer states"
        yield Rule(
            f"{held} of a node fit in its host memory of {format_bytes(host)}",
            lambda c: np.asarray(_host_bytes_of_node(job, c) <= host),
        )
    yield from _activation_rules(job, host)


def _activation_rules(job: Job, host: float) -> Iterator[Rule]:
    stack, policy = job.stack, job.stack.activation_offload
    if policy is None:
        yield Rule(f"{stack.title} has no activation offload", lambda c: ~c.activation_offload)
        return
    if not policy.pipelines:
        yield Rule(
            f"{stack.title} supports activation offload with pp = 1 only",
            lambda c: ~c.activation_offload | (c.pp == 1),
        )
    modes = [recompute_code(mode) for mode in policy.recompute]
    yield Rule(
        f"{stack.title} supports activation offload with recompute={' or '.join(policy.recompute)} of all"
        " layers",
        lambda c: ~c.activation_offload | among(c.uniform_recompute, modes),
    )
    if not policy.partial:
        yield Rule(
            f"{stack.title} supports activation offload of all layers only (offload_every = 1)",
            lambda c: c.offload_every == 1,
        )
    layers = job.model.layers
    yield Rule(
        f"offload_every divides the {layers} layers",
        lambda c: (c.offload_every == 1) | divides(layers, c.offload_every),
    )
    full = recompute_code(FULL)
    yield Rule(
        "recompute_num_layers is 1 for activation offload without full recompute",
        lambda c: ~c.activation_offload | (c.uniform_recompute == full) | (c.recompute_num_layers == 1),
    )
    yield Rule(
        f"offloaded states and activations of a node fit in its host memory of {format_bytes(host)}",
        lambda c: _activations_fit(job, c, host),
    )


def _activations_fit(job: Job, candidates: Candidates, host: float) -> Mask:
    fits: Mask = ~candidates.activation_offload
    offloaded = np.flatnonzero(~fits)
    if len(offloaded):
        offloading = candidates.take(offloaded)
        used = _host_bytes_of_node(job, offloading) + _activations_of_node(job, offloading)
        fits[offloaded] = used <= host
    return fits


def _activations_of_node(job: Job, candidates: Candidates) -> NDArray[np.floating[Any]]:
    """Return the offloaded activations of the first node [byte], with even stages.

    The first node has the first stages, which have the most microbatches in flight. Orders of ranks with more
    stages per node need less.
    """
    pp, devices, node_devices = candidates.pp, job.cluster.devices, job.cluster.node.devices
    even = np.full((len(candidates), pp), job.model.layers / pp)
    of_stages = host_activation_bytes(scope_of(job, candidates), even)
    first = max(1, min(pp, node_devices * pp // devices))
    size: NDArray[np.floating[Any]] = of_stages[:, :first].mean(axis=1) * min(node_devices, devices)
    return size


def _host_bytes_of_node(job: Job, candidates: Candidates) -> NDArray[np.floating[Any]]:
    """Return the offloaded optimizer states of a node [byte], with even stages."""
    scope = scope_of(job, candidates)
    parts = scope.weights
    outside = host_bytes(scope, parts.embedding) + host_bytes(scope, parts.head)
    layers = job.model.layers * host_bytes(scope, parts.layer)
    devices = min(job.cluster.node.devices, job.cluster.devices)
    size: NDArray[np.floating[Any]] = (outside + layers)[:, 0] / candidates.pp * devices
    return size
