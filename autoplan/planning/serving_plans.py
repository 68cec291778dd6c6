"""Plans of engines and pools for serving, with 90 % intervals, and changes that make one possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, Final, Protocol

from autoplan.catalog import (
    edited_text,
    engine_kernels_for,
    engine_kernels_origin,
    kernels_for,
    load_serving_job,
    serving_hashes,
    serving_intervals,
    serving_job_of_text,
)
from autoplan.catalog.entries import fuller_nodes, node
from autoplan.catalog.request_traces import request_trace_of
from autoplan.costs.serving.disaggregated.paired_pools import engine_pair, pooled
from autoplan.costs.serving.disaggregated.pool_simulation import simulated_pools
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.served_intervals import job_intervals, settled, settled_pools
from autoplan.costs.serving.served_layouts import (
    ServingCosts,
    engine_load,
    priced_engine,
    served,
    simulated,
    unit_parts,
)
from autoplan.deadline import Deadline, DeadlineOver, check_deadline
from autoplan.errors import AutoplanError, LayoutError, UnsupportedError, refuse_broken
from autoplan.results.serving.serving_front import (
    EngineGroup,
    PoolComparison,
    ServingChange,
    ServingFront,
    ServingPlan,
    plan_of_pools,
)
from autoplan.rules.engine_rules import (
    broken_engine_rules,
    broken_limits,
    broken_pool_rules,
    no_pools,
    request_test,
)
from autoplan.schema.layout import Layout
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout, parse_serving_layout
from autoplan.schema.serving.serving_spec import ServingJob

#: Most requests a second or clients, above which a load is a mistake of units.
_MOST_LOAD: Final = 1e6
#: Devices that are tried where a job leaves them out and those of the hardware do not do.
_MOST_DEVICES: Final = 64


class _ServingSearcher(Protocol):
    """A search of one job, which explains why nothing is feasible unless it is not asked to.

    One that its deadline stops before it has a plan is an error unless its front ``may_be_empty``.
    """

    def __call__(
        self, choice: ServingJob, *, explains: bool = True, may_be_empty: bool = False
    ) -> ServingFront: ...


def serving_job(job: ServingJob | str | Path) -> ServingJob:
    """Return the loaded job; raises UnsupportedError for one that this version cannot plan."""
    job = _recorded(job if isinstance(job, ServingJob) else load_serving_job(job))
    workload = job.workload
    wrong = {
        f"search.disaggregated: {no_pools(job)}": (
            True in job.search.disaggregated and no_pools(job) is not None
        ),
        f"a load above {_MOST_LOAD:,.0f} clients or requests a second is not supported: is its unit right?": (
            max(workload.concurrency or 0, workload.request_rate or 0) > _MOST_LOAD
        ),
        "a limit on the time to the first token needs a load: give concurrency or request_rate": (
            _needs_load(job)
        ),
    }
    sentences = [sentence for sentence, broken in wrong.items() if broken]
    if sentences:
        raise UnsupportedError("; ".join(sentences))
    return job


def _recorded(job: ServingJob) -> ServingJob:
    """Return ``job`` with the rate of its trace, where nothing else says how requests come."""
    workload = job.workload
    if workload.concurrency is not None or workload.request_rate is not None:
        return job
    trace = request_trace_of(job)
    if trace is None or not trace.rate:
        return job
    return replace(job, workload=workload.model_copy(update={"request_rate": trace.rate}))


def _needs_load(job: ServingJob) -> bool:
    need_load = {"time_to_first_token", "request_latency"}
    limits_of = [
        job.limits,
        *(requests.limits for requests in job.workload.classes if requests.limits is not None),
    ]
    limited = any(getattr(limits, name) is not None for limits in limits_of for name in need_load)
    without = job.workload.concurrency is None and job.workload.request_rate is None
    return without and (limited or not need_load.isdisjoint(job.objectives))


def serving_costs(job: ServingJob) -> ServingCosts:
    """Return what prices of the job's engines depend on besides job and layout: kernels, and its trace."""
    device = job.cluster.device.name
    return ServingCosts(kernels_for(device), engine_kernels_for(device), request_trace_of(job))


def plan_serving(
    job: ServingJob | str | Path,
    *,
    progress: object = None,  # noqa: ARG001 - as of any kind: nothing tells how far the search is
    deadline: Deadline | float | None = None,
    cache: object = None,  # noqa: ARG001 - as of any kind: answers are not kept
) -> ServingFront:
    """Return the front of a serving job: engines, sizes of their steps, and how many of each.

    Proven for mean values; percentiles are those of a simulation. The front is empty, with reasons, where no
    plan holds the limits. Where the job leaves its devices out and has a load, the plans take the fewest
    devices that hold the limits. Raises SpecError or CatalogError for a job that cannot be read.
    """
    job = serving_job(job)
    from autoplan.deadline import Deadline
    from autoplan.search.serving.serving_front_search import search_serving

    limit = Deadline.of(deadline, job.deadline)

    def front(choice: ServingJob, *, explains: bool = True, may_be_empty: bool = False) -> ServingFront:
        return search_serving(
            choice, serving_costs(choice), deadline=limit, explains=explains, may_be_empty=may_be_empty
        )

    answer = with_more_changes(_front(job, front, limit), serving_costs, limit)
    return _hashed(front_with_intervals(answer))


def _hashed(front: ServingFront) -> ServingFront:
    """Return ``front`` with the hashes of its job and of what its prices rest on."""
    job_hash, cost_model_hash = serving_hashes(front.job)
    certificate = replace(front.certificate, job_hash=job_hash, cost_model_hash=cost_model_hash)
    return replace(front, certificate=certificate)


def _front(job: ServingJob, front: _ServingSearcher, deadline: Deadline) -> ServingFront:
    """Return the front of the job's loads or numbers of devices, or of the fewest where they are left out."""
    if job.loads:
        fronts = _each(
            job.loads, lambda load, *, may_be_empty: _fewest(load, front, may_be_empty=may_be_empty), deadline
        )
        return _of_several(job, fronts[-1], fronts, scaling=fronts)
    if job.choices:
        answers = _each(job.choices, front, deadline)
        best = max(answers, key=lambda answer: answer.feasible)
        plans = tuple(plan for answer in answers for plan in answer.plans)
        return _of_several(job, best, answers, plans=plans, answers=answers)
    return _fewest(job, front, may_be_empty=False) if job.devices_open else front(job)


def _each(
    jobs: Sequence[ServingJob], front: Callable[..., ServingFront], deadline: Deadline
) -> tuple[ServingFront, ...]:
    """Return the front of each job, with equal shares of the time; once it is over, one has a plan at least.

    The others may be empty, and their certificates say so.
    """
    fronts: list[ServingFront] = []
    for number, one in enumerate(jobs):
        with deadline.share(len(jobs) - number):
            last = number == len(jobs) - 1 and not any(earlier.plans for earlier in fronts)
            fronts.append(front(one, may_be_empty=not last))
    return tuple(fronts)


def _of_several(
    job: ServingJob, best: ServingFront, fronts: Sequence[ServingFront], **parts: tuple[object, ...]
) -> ServingFront:
    """Return ``best`` as the answer of ``job``: it is proven only where each of ``fronts`` is."""
    certificate = best.certificate
    stopped = next((one.certificate.stopped for one in fronts if one.certificate.stopped), None)
    if stopped is not None:
        certificate = replace(certificate, status="feasible", stopped=stopped)
    changed: dict[str, Any] = {"job": job, "certificate": certificate, **parts}
    return replace(best, **changed)


def _fewest(job: ServingJob, front: _ServingSearcher, *, may_be_empty: bool) -> ServingFront:
    """Return the front on the fewest devices that hold the limits, where the job's are open on more nodes.

    Where none do, the reasons are those on the devices of the hardware. Where the deadline ends first, the
    front is one on any number of devices; see ``_ServingSearcher`` for a front without plans.
    """
    if not job.devices_open:
        return front(replace(job, devices_open=True), may_be_empty=may_be_empty)
    sizes = [replace(job, devices_open=True), *_larger(job)]
    looked: list[ServingFront] = []
    for size in sizes:
        looked.append(front(size, explains=not looked, may_be_empty=True))
        if looked[-1].feasible:
            return _of_several(looked[-1].job, looked[-1], looked)
    stopped = any(one.certificate.stopped for one in looked)
    if not stopped or may_be_empty:
        return _of_several(looked[0].job, looked[0], looked)
    return front(sizes[-1], may_be_empty=False)


def _larger(job: ServingJob) -> list[ServingJob]:
    """Return the job on more nodes, up to its limit."""
    node, most = job.cluster.node.devices, min(_MOST_DEVICES, job.limits.devices or _MOST_DEVICES)
    numbers = [n for k in range(1, 7) if job.cluster.devices < (n := node << k) <= most]
    return [replace(job, cluster=replace(job.cluster, devices=devices)) for devices in numbers]


def evaluate_serving(
    job: ServingJob | str | Path, layout: Layout | EngineLayout | DisaggregatedLayout | str
) -> tuple[ServingJob, ServingPlan]:
    """Return a layout with its prediction, whether or not it fits, and the job with as many devices.

    Engines share the load evenly. Raises LayoutError with every rule that the layout breaks.
    """
    job = serving_job(job)
    layout = read_engine_layout(job, layout)
    job = with_devices_of(job, layout)
    if isinstance(layout, DisaggregatedLayout):
        return job, plan_with_intervals(job, evaluated_pools(job, layout, serving_costs(job)))
    refuse_broken(layout, broken_engine_rules(job, layout))
    costs = serving_costs(job)
    engine = priced_engine(layout, unit_parts(EngineScope(job, layout), costs))
    predicted = served(job, engine, engine_load(job, layout.replicas), layout.replicas)
    simulation = simulated(job, engine, predicted, costs.trace, request_test(job))
    group = EngineGroup(layout, 1.0, settled(replace(predicted, simulation=simulation)))
    plan = ServingPlan((group,), tuple(broken_limits(job, group.predicted)))
    return job, plan_with_intervals(job, plan)


def read_engine_layout(
    job: ServingJob, layout: Layout | EngineLayout | DisaggregatedLayout | str
) -> EngineLayout | DisaggregatedLayout:
    """Return the layout of a string; omitted formats are the job's first, replicas fill the devices."""
    if isinstance(layout, EngineLayout | DisaggregatedLayout):
        return layout
    if isinstance(layout, Layout):
        raise LayoutError([f"{layout} is a layout of training, and the job is one of serving"])
    first = EngineLayout(weights=job.precision.weights[0], kv=job.precision.kv_cache[0])
    read = parse_serving_layout(layout, first)
    if isinstance(read, DisaggregatedLayout):
        return pools_with_formats(job, layout, read)
    if "replicas" in layout or "x=" in layout:
        return read
    return replace(read, replicas=max(1, job.cluster.devices // read.devices_per_engine))


def with_devices_of(job: ServingJob, layout: EngineLayout | DisaggregatedLayout) -> ServingJob:
    """Return the choice of ``job`` with the fewest devices that hold ``layout``, else with the most."""
    numbers = {choice.cluster.devices: choice for choice in job.choices or (job,)}
    return numbers[min((n for n in numbers if n >= layout.devices), default=max(numbers))]


def evaluated_pools(job: ServingJob, layout: DisaggregatedLayout, costs: ServingCosts) -> ServingPlan:
    """Return pools with their prediction, whether or not they fit.

    Engines of a pool share its part evenly. Raises LayoutError with every rule that the pools break.
    """
    refuse_broken(layout, broken_pool_rules(job, layout))
    pair = engine_pair(job, layout, costs)
    predicted = pooled(job, pair, engine_load(job, 1))
    simulation = simulated_pools(job, pair, predicted, costs.trace, request_test(job))
    pools = settled_pools(replace(predicted, simulation=simulation))
    return replace(plan_of_pools(layout, pools), broken=tuple(broken_limits(job, pools)))


def pools_with_formats(job: ServingJob, text: str, layout: DisaggregatedLayout) -> DisaggregatedLayout:
    """Return pools of a layout string; a pool without a number of engines takes what the other one leaves.

    Where neither says a number, each pool has one engine. Drafts are made where answers are decoded.
    """
    prefill, decode = text.split("/", 1)
    numbered = ["x=" in part or "replicas=" in part for part in (prefill, decode)]
    pools = [replace(layout.prefill, spec=0) if "spec" not in prefill else layout.prefill, layout.decode]
    for role, other in ((0, 1), (1, 0)):
        if not numbered[role] and numbered[other]:
            left = job.cluster.devices - pools[other].devices
            pools[role] = replace(pools[role], replicas=max(1, left // pools[role].devices_per_engine))
    return DisaggregatedLayout(*pools)


def plan_with_intervals(job: ServingJob, plan: ServingPlan) -> ServingPlan:
    """Return ``plan`` with the intervals of its figures; without, where it cannot serve."""
    if not plan.fits:
        return plan
    intervals = job_intervals(
        job,
        serving_intervals(),
        engine_kernels_origin(job.cluster.device.name),
        plan.groups[0].predicted.load.kind,
        plan.figures,
        plan.simulations,
        pools=plan.pooled is not None,
    )
    return replace(plan, intervals=intervals)


def front_with_intervals(front: ServingFront) -> ServingFront:
    """Return ``front`` with the intervals of its plans, and of those of its changes and answers."""
    job = front.job
    return replace(
        front,
        plans=tuple(plan_with_intervals(job, plan) for plan in front.plans),
        changes=tuple(
            replace(change, plan=plan_with_intervals(job, change.plan)) for change in front.changes
        ),
        answers=tuple(front_with_intervals(answer) for answer in front.answers),
        comparison=None if front.comparison is None else _compared(job, front.comparison),
        mixing=front.mixing and replace(front.mixing, plan=plan_with_intervals(job, front.mixing.plan)),
    )


def _compared(job: ServingJob, comparison: PoolComparison) -> PoolComparison:
    pools, both = (
        None if plan is None else plan_with_intervals(job, plan)
        for plan in (comparison.pools, comparison.both)
    )
    return replace(comparison, pools=pools, both=both)


#: Keys of `search` that a job may have narrowed too far, with what they are called.
_NARROWED: Final = {
    "tensor_parallel": "any tensor-parallel degree",
    "pipeline_parallel": "any pipeline depth",
    "expert_parallel": "any expert-parallel degree",
    "attention_data_parallel": "any number of attention data-parallel ranks",
    "replicas": "any number of engines",
    "max_num_seqs": "any max_num_seqs",
    "max_num_batched_tokens": "any max_num_batched_tokens",
}


def with_more_changes(
    front: ServingFront, costs: Callable[[ServingJob], ServingCosts], deadline: Deadline
) -> ServingFront:
    """Return a front without plans with further changes that help: choices left open, a shorter context.

    Each is solved, until ``deadline`` ends.
    """
    if front.feasible or front.job.choices:
        return front
    from autoplan.search.serving.unmet_limits import unqueued_first

    useful: list[ServingChange] = []
    narrower = any(
        change.key == "precision.weights" and not change.plan.saturated for change in front.changes
    )
    with suppress(DeadlineOver), deadline.in_force():
        useful.extend(islice(_that_help(_in_one_machine(front.job), costs), 1))
        most = useful[0].plan.devices if useful else inf
        useful[:0] = [] if narrower else _narrower_in_one_machine(front.job, costs, most)
        useful.extend(_that_help((*_opened(front.job), *_shorter(front.job)), costs))
    # One machine with more devices comes before several of few.
    several = [change for change in front.changes if change.key == "devices"]
    changes = [change for change in front.changes if change.key != "devices"]
    machines = [change for change in useful if change.key == "hardware"]
    others = [change for change in useful if change.key != "hardware"]
    return replace(front, changes=unqueued_first([*changes, *machines, *several, *others]))


def _that_help(
    changed_jobs: Iterable[tuple[str, str, str, ServingJob]], costs: Callable[[ServingJob], ServingCosts]
) -> Iterator[ServingChange]:
    """Yield the changes whose job has a plan."""
    from autoplan.search.serving.serving_search import ServingSearch

    for key, value, sentence, changed in changed_jobs:
        check_deadline()
        plans = ServingSearch(changed, costs(changed)).front(most_plans=1).plans
        if plans:
            yield ServingChange(key, value, sentence, plan=plans[0])


def _narrower_in_one_machine(
    job: ServingJob, costs: Callable[[ServingJob], ServingCosts], most: float
) -> list[ServingChange]:
    """Return narrower weights on the smallest machine of more devices that helps, fewer than ``most``.

    Also those on the smallest one on which no request waits, where that is another one.
    """
    from autoplan.search.serving.unmet_limits import other_formats

    changes: list[ServingChange] = []
    for key, name, words, larger in _in_one_machine(job):
        if larger.cluster.devices >= most:
            break
        formats = (change for change in other_formats(larger) if change[0] == "precision.weights")
        helpful = sorted(_that_help(formats, costs), key=lambda change: change.plan.saturated)
        if helpful:
            narrow = helpful[0]
            sentence = f"{words}, {narrow.sentence}"
            changes.append(ServingChange(key, name, sentence, narrow.edits, plan=narrow.plan))
            if not narrow.plan.saturated:
                break
    return changes[:1] if len(changes) < 2 or changes[-1].plan.saturated else [changes[0], changes[-1]]


def _in_one_machine(job: ServingJob) -> Iterator[tuple[str, str, str, ServingJob]]:
    """Yield the job on machines with more of its devices, where it has all of one machine's."""
    cluster, most = job.cluster, job.limits.devices or inf
    if cluster.devices != cluster.node.devices or job.price is not None:
        return
    for fuller in fuller_nodes(cluster.node):
        if fuller.devices <= most:
            larger = replace(cluster, node=fuller, devices=fuller.devices)
            words = f"{fuller.devices} devices in one machine"
            yield "hardware", fuller.name, words, replace(job, cluster=larger, choices=())


def _opened(job: ServingJob) -> Iterator[tuple[str, str, str, ServingJob]]:
    """Yield the job with each narrowed key of its search left open."""
    for name, sentence in _NARROWED.items():
        if not isinstance(getattr(job.search, name), str):
            search = job.search.model_copy(update={name: "any"})
            yield f"search.{name}", "any", sentence, replace(job, search=search)


def _shorter(job: ServingJob) -> Iterator[tuple[str, str, str, ServingJob]]:
    """Yield the job with the longest request that some engine admits, where its requests are shorter."""
    if job.workload.longest_request is None or request_trace_of(job) is not None:
        return
    from autoplan.search.serving.engines import engine_units

    units = engine_units(job).units
    admitted = max(
        (predict_capacity(EngineScope(job, unit)).pool.largest_context for unit in units), default=0
    )
    needed = job.workload.model_copy(update={"longest_request": None}).longest_tokens
    if needed <= admitted < job.workload.longest_request:
        workload = job.workload.model_copy(update={"longest_request": admitted})
        sentence = f"requests of {admitted:,} tokens at most"
        yield "workload.longest_request", str(admitted), sentence, replace(job, workload=workload)


def applied_change(front: ServingFront, number: int, folder: Path | None = None) -> str:
    """Return the job file of ``front`` with the change ``number``, from 1, and planned again.

    Relative paths in it are rewritten for a file in ``folder``, by default the current one. Raises
    UnsupportedError where there is no such change, where the job comes from no file, and where the edited
    file has no plan.
    """
    count = len(front.changes)
    if front.feasible:
        raise UnsupportedError("there is nothing to apply: the job has a plan as it is")
    if not 1 <= number <= count:
        have = {0: "no change that helps was found", 1: "there is one change, 1"}
        raise UnsupportedError(f"there is no change {number}: {have.get(count, f'changes are 1 to {count}')}")
    change, source = front.changes[number - 1], front.job.source
    if source is None:
        raise UnsupportedError("the job was built by a program and has no file to edit: make the edits there")
    edits = list(change.edits)
    machine = dict(edits).get("hardware")
    if machine is not None and "devices" in source.keys:
        edits.append(("devices", str(node(machine).devices)))
    text = edited_text(source, edits, folder or Path())
    try:
        edited = serving_job_of_text(text, source.reference, name=front.job.name, base=folder or Path())
        feasible = plan_serving(serving_job(edited)).feasible
    except AutoplanError as error:
        raise UnsupportedError(f"{source.reference} cannot be edited ({error}): edit it by hand") from error
    if not feasible:
        keys = " and of ".join(key for key, _ in change.edits)
        raise UnsupportedError(
            f"a new value of {keys} would change other keys too, since values in the file refer to each"
            " other: edit it by hand"
        )
    return text
