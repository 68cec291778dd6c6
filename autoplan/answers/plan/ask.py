"""What an answer says besides its front: narrower intervals, layouts that nothing starts, other links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from typing import Final

from autoplan.catalog import stack as stack_named
from autoplan.costs.uncertainty import MACHINE_SHARE, half_widths
from autoplan.errors import AutoplanError
from autoplan.planning.plan_and_evaluate import evaluate, plan
from autoplan.results.front import Front, LinkChoice, NarrowerIntervals
from autoplan.results.merged_front import at_batch
from autoplan.results.plan import Plan
from autoplan.schema.job import Job

__all__ = ["faster_layout", "link_choices", "narrower_intervals"]

#: Share of a step within which a layout is not called faster.
_NO_FASTER: Final = 1e-3


def faster_layout(front: Front) -> Plan | None:
    """Return the fastest layout of the fastest plan's stack, where the plan's program cannot express it.

    None where no program runs the plans, and where none is faster, within what the search tells apart.
    """
    fastest = front.fastest
    job = at_batch(front.job, fastest)
    if job.program is None:
        return None
    any_layout = replace(job, program=None, programs=None, choices=(), objectives=("step_time",))
    try:
        unrestricted = plan(any_layout, deadline=front.job.deadline)
    except AutoplanError:
        return None
    least = fastest.predicted.step_seconds * (1.0 - _NO_FASTER)
    faster = [one for one in unrestricted.plans if one.predicted.step_seconds < least]
    return faster[0] if faster else None


def link_choices(front: Front) -> list[LinkChoice]:
    """Return what is the fastest instead at the slowest and at the highest rate of copies between devices.

    The rate of copies over PCIe differs by ten times with the lanes and root complexes of hosts
    (``uncertainty.slowest_host_copy`` to the rate of a device's slot). Layouts whose step times the model
    cannot tell apart are one choice; a measured rate leaves none open.
    """
    job = at_batch(front.job, front.fastest)
    return [choice for rate in _rates_of_hosts(job) if (choice := _choice_at(front, job, rate)) is not None]


def _rates_of_hosts(job: Job) -> Iterator[float]:
    """Yield the rates of one node's fabric [byte/s] to which the interval reaches; none where it is known."""
    fabric, slowest = job.cluster.node.fabric, job.stack.uncertainty.slowest_host_copy
    one_node = job.cluster.devices > 1 and job.cluster.nodes == 1
    if slowest is None or not one_node or not fabric.rate_differs_by_host:
        return
    yield slowest.value / job.kernels.collectives.fabric_share.value
    yield max(job.cluster.node.host.link_bandwidth.value, fabric.bandwidth.value)


def _with_fabric(job: Job, rate: float) -> Job:
    """Return ``job`` with a fabric of ``rate`` [byte/s], of which no collective was measured."""
    node, collectives = job.cluster.node, job.kernels.collectives
    bandwidth = node.fabric.bandwidth.model_copy(update={"value": rate})
    fabric = node.fabric.model_copy(update={"bandwidth": bandwidth})
    unmeasured = collectives.model_copy(update={"fabrics": (), "slower_fabrics": ()})
    return replace(
        job,
        cluster=replace(job.cluster, node=node.model_copy(update={"fabric": fabric})),
        kernels=job.kernels.model_copy(update={"collectives": unmeasured}),
    )


def _choice_at(front: Front, job: Job, rate: float) -> LinkChoice | None:
    """Return the fastest layout with a fabric of ``rate`` [byte/s], where it is not the answer's."""
    at_rate = _with_fabric(job, rate)
    try:
        alternative = plan(
            replace(at_rate, programs=None, choices=(), objectives=("step_time",)), deadline=job.deadline
        )
    except AutoplanError:
        return None
    noise = job.stack.uncertainty.order.value if job.stack.uncertainty.order else 0.0
    fastest = evaluate(at_rate, front.fastest.layout).predicted.step_seconds
    if not alternative.plans or alternative.fastest.predicted.step_seconds >= fastest * (1.0 - noise):
        return None
    return LinkChoice(
        taken=job.cluster.node.fabric.bandwidth.value,
        rate=rate,
        layout=alternative.fastest.layout_string,
        seconds=alternative.fastest.predicted.step_seconds,
        fastest_seconds=fastest,
    )


def narrower_intervals(front: Front) -> NarrowerIntervals:
    """Return what the 90 % interval of the fastest plan of ``front`` becomes.

    A job that names its stack has the interval of that stack. The steps of a run on the machine determine the
    numbers that differ between machines, which cause the share m of a prediction's variance: its width falls
    to (1 - m)^1/2 at best, and is above what it is below (``calibration.outcome``); its host and
    libraries are no others then. Stack and kernel curves that are calibrated were measured already.
    """
    job, predicted = at_batch(front.job, front.fastest), front.fastest.predicted
    step = predicted.step_seconds
    below, above = step - predicted.step_seconds_low, predicted.step_seconds_high - step
    named: tuple[float, float] | None = None
    share, experts = predicted.modelled_share, job.model.moe is not None
    slow = step * predicted.slow_share
    links = above - slow - step * half_widths(share, job.stack.uncertainty, experts=experts)[1]
    if job.stack_assumed:
        uncertainty = stack_named(job.stack.name).uncertainty
        below, above = (width * step for width in half_widths(share, uncertainty, experts=experts))
        above += slow + links
        named = (step - below, step + above)
    links_left = tuple(link_choices(front))
    if any("calibrated" in name for name in (job.stack.name, job.kernels.name)):
        return NarrowerIntervals(named, None, links_left)
    remaining = sqrt(1.0 - MACHINE_SHARE)
    above = remaining * below + links
    return NarrowerIntervals(named, (step - remaining * below, step + above), links_left)
