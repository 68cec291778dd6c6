"""The programs that may run a job, and the job once for each of their ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from autoplan.catalog.entries import assumed_stack, loaded, stack
from autoplan.catalog.roots import entry_names
from autoplan.errors import UnsupportedError
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.job import ChosenProgram, Job, RuleSpec
from autoplan.schema.program import ProgramSpec, ProgramWay, lacks

#: What a job says for the programs that are usual for its task and devices, and for layouts of no program.
USUAL: Final = "usual"
ANY_LAYOUT: Final = "any-layout"
#: Targets whose files no program of the catalogue writes, and those that they are built on.
_BUILT_ON: Final = {"ms-swift": ("trainer", "megatron-lm")}
#: Ways whose rules hold for other ways, one after the other, at most.
_MOST_STEPS: Final = 4


def program(name: str) -> ProgramSpec:
    """Return the program ``name``; raises CatalogError for an unknown one."""
    return loaded("program", name, ProgramSpec)


def rules_of(way: ProgramWay, job: Job) -> tuple[RuleSpec, ...]:
    """Return the rules of ``way`` for ``job``, those of the way that it is like before its own."""
    rules, names = way.rules, way.like
    for _ in range(_MOST_STEPS):
        if names is None:
            return tuple(rule.of_layouts for rule in rules if rule.holds_for(job))
        name, _, title = names.partition("/")
        base = next((one for one in program(name).ways if one.title == title), None)
        if base is None:
            raise UnsupportedError(f"like: {names} is no way of a program")
        rules, names = (*base.rules, *rules), base.like
    raise UnsupportedError(f"more than {_MOST_STEPS} ways are like each other")


@dataclass(frozen=True, slots=True)
class _Runs:
    """The job as ways run it, and what the other ways lack."""

    jobs: tuple[Job, ...]
    lacking: tuple[tuple[str, str], ...]


def with_programs(job: Job, wanted: str | Sequence[str] | None, *, stack_named: bool) -> Job:
    """Return ``job`` with one choice for each way in which a ``wanted`` program runs it.

    Where neither a program nor a stack is named, these are the programs that are usual, or where none of them
    can run the job all others. A job that names its stack is priced by it under every program. Raises
    CatalogError for an unknown program, UnsupportedError where none of those that are named can run the job.
    """
    if wanted == ANY_LAYOUT or (wanted is None and stack_named):
        return job
    if wanted is None or wanted == USUAL:
        return _as_usual(job, stack_named=stack_named)
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    runs = _runs(job, names, stack_named=stack_named)
    if runs.jobs:
        return _chosen(job, runs, None if stack_named else wanted)
    lacking = "; ".join(f"{title}: {words}" for title, words in runs.lacking)
    raise UnsupportedError(f"{lacking}{_others(job, names, stack_named=stack_named)}")


def _others(job: Job, names: Sequence[str], *, stack_named: bool) -> str:
    """Return which programs can run ``job``, behind what those of ``names`` lack: usual ones, or others."""
    for wanted in (_usual(job), entry_names("program")):
        left = [name for name in wanted if name not in names]
        able = [name for name in left if _runs(job, [name], stack_named=stack_named).jobs]
        if able:
            return f" ({', '.join(able)} can run it)"
    return ""


def _as_usual(job: Job, *, stack_named: bool) -> Job:
    """Return ``job`` as the usual programs run it, or else as others do; as it is where none can."""
    names = _usual(job)
    runs = _runs(job, names, stack_named=stack_named)
    if not runs.jobs:
        others = [name for name in entry_names("program") if name not in names]
        runs = _Runs(_runs(job, others, stack_named=stack_named).jobs, runs.lacking)
    programs = None if stack_named else USUAL
    if runs.jobs:
        return _chosen(job, runs, programs)
    return replace(job, lacking=runs.lacking, programs=programs)


def any_layout(job: Job) -> Job:
    """Return ``job`` for layouts that no program need express, priced by its stack.

    Where programs were chosen for it, that is the stack which is assumed on its node.
    """
    sizes = {(one.cluster.devices, one.workload.global_batch_size): one for one in reversed(job.choices)}
    priced_by, assumed = job.stack, job.stack_assumed
    if job.programs is not None:
        priced_by, assumed = with_software(assumed_stack(job.cluster.node), job.software), True

    def free(one: Job) -> Job:
        return replace(one, stack=priced_by, stack_assumed=assumed, program=None, choices=())

    choices = tuple(free(one) for one in reversed(sizes.values()))
    return replace(free(job), choices=choices if len(choices) > 1 else (), programs=None, lacking=())


def targets_of(chosen: ChosenProgram) -> frozenset[str]:
    """Return the launch targets that write what ``chosen`` runs: those of programs alike, too."""
    targets = {chosen.target}
    for name in entry_names("program"):
        if (entry := program(name)).title in chosen.alike:
            targets.update(way.target for way in entry.ways)
    return frozenset(target for target in targets if target is not None)


def written_for(job: Job, target: str | None = None, name: str | None = None) -> Job:
    """Return ``job`` for the programs that ``target`` writes, or for the one called ``name``.

    A job that names its stack or its programs is returned as it is, unless a program is named. Raises
    CatalogError for an unknown program, UnsupportedError where no such program can run the job.
    """
    if name is None and job.programs != USUAL:
        return job
    if name is not None:
        stack_named = job.programs is None and not job.stack_assumed
        return with_programs(any_layout(job), name, stack_named=stack_named)
    targets = {target, *_BUILT_ON.get(target or "", ())}
    names = tuple(
        other for other in entry_names("program") if targets & {way.target for way in program(other).ways}
    )
    return with_programs_again(replace(job, programs=names)) if names else job


def stack_of_way(target: str, way: str | None) -> str | None:
    """Return the stack of the way of this title in which a program runs what ``target`` writes, if any.

    >>> stack_of_way("trainer", "DeepSpeed"), stack_of_way("ms-swift", "Megatron-Core")
    ('deepspeed', 'megatron-core')
    """
    return next((one.stack for one in _ways_of(target) if one.title == way), None)


def stacks_of_target(target: str) -> tuple[str, ...]:
    """Return the stacks of all ways in which programs run what ``target`` writes.

    >>> stacks_of_target("trainer")
    ('hf-trainer', 'hf-fsdp2', 'deepspeed')
    """
    return tuple(dict.fromkeys(one.stack for one in _ways_of(target)))


def _ways_of(target: str) -> Iterator[ProgramWay]:
    targets = (target, *_BUILT_ON.get(target, ()))
    ways = (one for name in entry_names("program") for one in program(name).ways)
    return (one for one in ways if one.target in targets)


def _usual(job: Job) -> tuple[str, ...]:
    """Return the programs that are usual for the task and the devices of ``job``."""
    tasks = {"adapters"} if job.adapters is not None else {"pretrain", "fine-tune"}
    devices = max(choice.cluster.devices for choice in job.choices or (job,))
    return tuple(
        name
        for name in entry_names("program")
        if tasks.intersection((entry := program(name)).usual)
        and entry.least_devices <= devices <= (entry.most_devices or devices)
    )


def _runs(job: Job, names: Sequence[str], *, stack_named: bool) -> _Runs:
    jobs: dict[tuple[str, SoftwareSpec, tuple[RuleSpec, ...]], Job] = {}
    lacking: list[tuple[str, str]] = []
    for name in names:
        entry, runs = program(name), False
        missing, adapted = "", job.adapters is not None
        # What a way for the task of the job lacks says more than that others are for another task.
        for way in sorted(entry.ways, key=lambda way: ("adapters" in way.tasks) != adapted):
            one = _run(job, entry, way, stack_named=stack_named)
            if isinstance(one, str):
                missing = missing or one
            else:
                runs = True
                assert one.program is not None  # noqa: S101 - ``_run`` sets it
                key = (one.stack.name, _software(job, way), one.program.rules)
                jobs[key] = _with_alike(jobs[key], entry.title) if key in jobs else one
        if not runs:
            lacking.append((entry.title, missing))
    return _Runs(tuple(jobs.values()), tuple(lacking))


def _with_alike(job: Job, title: str) -> Job:
    """Return ``job``, which a program runs as the one called ``title`` would, with that said."""
    assert job.program is not None  # noqa: S101 - ``_run`` sets it
    if title in {job.program.title, *job.program.alike}:
        return job
    return replace(job, program=replace(job.program, alike=(*job.program.alike, title)))


def _run(job: Job, entry: ProgramSpec, way: ProgramWay, *, stack_named: bool) -> Job | str:
    """Return ``job`` as ``way`` runs it, or what the way lacks."""
    priced_by = job.stack if stack_named else with_software(stack(way.stack), _software(job, way))
    vendor = job.cluster.device.vendor
    if entry.vendors and vendor not in entry.vendors:
        return f"not for devices of {vendor}"
    listed = entry.models.get("full" if job.adapters is None else "adapters")
    unlisted = listed is not None and job.model.name not in listed
    missing = f"no recipe of {job.model.name}" if unlisted else lacks(way, job)
    if missing is None and job.model.moe is not None and priced_by.experts is None:
        missing = f"{priced_by.title} prices no models with experts"
    if missing is not None:
        return missing
    chosen = ChosenProgram(entry.name, entry.title, way.title, way.target, rules_of(way, job))
    return replace(job, stack=priced_by, stack_assumed=False, program=chosen, choices=())


def _software(job: Job, way: ProgramWay) -> SoftwareSpec:
    """Return what the software of ``way`` does unlike its stack: what the job says, else its defaults."""
    trained = job.adapters is not None or job.rl is not None
    defaults = {"loss": way.loss if trained else None} | way.defaults.model_dump(exclude_none=True)
    if way.eager_sinks and job.model.attention_sinks:
        defaults["attention"] = "eager"
    fused = way.fused_adapters and job.adapters is not None and job.rl is None
    if fused and job.adapters is not None and job.adapters.base != "int8":
        defaults["fused_adapters"] = True
    by_job = job.software.model_dump(exclude_none=True)
    return job.software.model_copy(update=defaults | by_job)


def with_programs_again(job: Job) -> Job:
    """Return ``job``, of which a part was changed, with the programs that run it as it is now.

    Raises UnsupportedError where none of those that are named can.
    """
    if job.programs is None:
        return job
    chosen = with_programs(any_layout(job), job.programs, stack_named=False)
    return replace(chosen, source=job.source)


def _chosen(job: Job, runs: _Runs, wanted: str | Sequence[str] | None) -> Job:
    """Return the first of the jobs of ``runs``, with all of several as its choices.

    Those that the stack of ``job`` prices come first.
    """
    alike = sorted(runs.jobs, key=lambda one: one.stack.name != job.stack.name)
    jobs = list(_with_each_size(job, alike))
    programs = wanted if wanted is None or isinstance(wanted, str) else tuple(wanted)
    first = replace(jobs[0], lacking=runs.lacking, programs=programs)
    return replace(first, choices=tuple(jobs)) if len(jobs) > 1 else first


def _with_each_size(job: Job, runs: Sequence[Job]) -> Iterator[Job]:
    """Yield the jobs ``runs`` for each number of devices and each batch of ``job``."""
    for one in runs:
        for choice in job.choices or (job,):
            yield replace(one, cluster=choice.cluster, workload=choice.workload)
