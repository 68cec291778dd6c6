"""Whether the rows of a scaling table are the fewest devices for each load, and their figures right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isclose
from typing import Any, Final

from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.deadline import Deadline
from autoplan.results.verdict import Check
from autoplan.schema.serving.saved_serving import SavedServingFront, SavedServingPlan
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.verification.serving.optimal_choices import Examined, choice_on
from autoplan.verification.serving.option_listing import listed_space
from autoplan.verification.serving.stated_plans import stated_plan

#: Devices up to which a table goes where the job leaves them out.
_MOST_DEVICES: Final = 64
_FIGURES: Final = ("time_to_first_token_seconds", "time_per_output_token_seconds", "output_tokens_per_second")


def largest_load(job: ServingJob, saved: SavedServingFront) -> ServingJob:
    """Return the job of the largest load of a table, on the devices that its plans were looked for on."""
    row = saved.scaling[-1] if len(saved.scaling) == len(job.loads) else {}
    return _on(_open(job, job.loads[-1]), row.get("devices"))


def _open(job: ServingJob, load: ServingJob) -> ServingJob:
    """Return the job of one load, whose fewest devices are asked for."""
    return replace(load, devices_open=True, loads=(), source=job.source)


def _sizes(job: ServingJob, load: ServingJob) -> list[int]:
    """Return the numbers of devices that are looked at in turn: more nodes where they are open."""
    devices, node = load.cluster.devices, load.cluster.node.devices
    if not job.devices_open:
        return [devices]
    most = min(_MOST_DEVICES, load.limits.devices or _MOST_DEVICES)
    return [devices, *(n for n in (node << k for k in range(1, 7)) if devices < n <= most)]


def _on(load: ServingJob, devices: object) -> ServingJob:
    """Return a job on the first of its sizes that holds ``devices``."""
    if not isinstance(devices, int):
        return load
    size = next((n for n in _sizes(load, load) if n >= devices), load.cluster.devices)
    return replace(load, cluster=replace(load.cluster, devices=size))


def scaling_checks(
    saved: SavedServingFront, job: ServingJob, costs: ServingCosts, deadline: Deadline
) -> Iterator[Check]:
    """Yield the check of each row: that fewer devices do not do, and what its plan is stated to give."""
    if not job.loads:
        return
    if len(saved.scaling) != len(job.loads):
        text = f"the table has {len(saved.scaling)} rows and the job {len(job.loads)} loads"
        yield Check("the table has a row for each load", "fails", (text,))
        return
    for load, row in zip(job.loads, saved.scaling, strict=True):
        yield _row(job, _open(job, load), row, costs, deadline, stopped=saved.certificate.stopped is not None)


def _row(
    job: ServingJob,
    load: ServingJob,
    row: Mapping[str, Any],
    costs: ServingCosts,
    deadline: Deadline,
    *,
    stopped: bool,
) -> Check:
    """Return the check of a row; after a search that was ``stopped`` fewer devices may do."""
    workload = load.workload
    amount = workload.request_rate if workload.request_rate is not None else workload.concurrency
    claim = f"the row of load {amount:g} has the fewest devices, and the figures of its plan"
    if row.get("request_rate") != workload.request_rate or row.get("concurrency") != workload.concurrency:
        return Check(claim, "fails", ("the row is of another load",))
    stated = row.get("devices")
    wrong = list(_figures(_on(load, stated), row, costs)) if stated is not None else []
    for size in _sizes(job, load):
        on_size = replace(load, cluster=replace(load.cluster, devices=size))
        most = min(size, stated - 1) if isinstance(stated, int) else size
        space = listed_space(on_size, costs, deadline)
        if not space.complete:
            return Check(claim, "not checked", ("the deadline ended before all engines were priced",))
        chosen, undecided = choice_on(Examined(on_size, (), costs, space), most, deadline)
        if undecided:
            return Check(claim, "not checked", (f"choices on {most} devices were not decided",))
        if chosen and not stopped:
            wrong.append(f"{chosen} holds every limit on fewer devices")
        if chosen or (isinstance(stated, int) and stated <= size):
            break
    return Check(claim, "fails" if wrong else "holds", tuple(wrong))


def _figures(load: ServingJob, row: Mapping[str, Any], costs: ServingCosts) -> Iterator[str]:
    """Yield what is wrong with the repriced plan of a row."""
    text, engines = row.get("layout_string"), row.get("engines")
    if not isinstance(text, str) or not isinstance(engines, list) or not engines:
        yield "the row has no plan"
        return
    if not all(isinstance(group, dict) for group in engines):
        yield "the engines of the row cannot be read"
        return
    plan = SavedServingPlan.model_construct(
        layout={}, layout_string=text, predicted={}, engines=tuple(engines), broken_limits=()
    )
    derived = stated_plan(load, plan, "its plan", costs)
    yield from (*derived.wrong, *derived.limits_broken)
    if derived.plan is None:
        return
    if derived.plan.devices != row.get("devices"):
        yield f"its plan takes {derived.plan.devices} devices, stated are {row.get('devices')}"
    for name in _FIGURES:
        value = getattr(derived.plan, name.removesuffix("_seconds"))
        stated_value = row.get(name)
        if not _same(stated_value, value):
            yield f"{name} is stated as {stated_value} and is {value}"


def _same(stated_value: object, value: float | None) -> bool:
    if value is None or not isinstance(stated_value, int | float):
        return stated_value is None and value is None
    return isclose(stated_value, value, rel_tol=1e-9)
