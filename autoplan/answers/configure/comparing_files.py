"""Compare the layout that a file runs with the proven best, and find the changes that gain most."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from autoplan.answers.configure.ask import read_text
from autoplan.answers.configure.file_notes import file_notes
from autoplan.answers.configure.words_of_scripts import in_words_of_script
from autoplan.catalog import stack as stack_named
from autoplan.catalog.job_files import job_of_text
from autoplan.catalog.option_jobs import read_options
from autoplan.catalog.programs import USUAL, any_layout, stack_of_way, stacks_of_target, written_for
from autoplan.costs.predict import predict
from autoplan.errors import AutoplanError, LayoutError, Problem, SpecError, UnsupportedError
from autoplan.launch.bindings.written_document import edited_values, read_yaml
from autoplan.launch.configuration import (
    Configuration,
    FileComparison,
    FileEdit,
    Improvement,
    LaunchFile,
)
from autoplan.launch.registry import find_target, missing_part, usual_stack
from autoplan.launch.target import InexpressibleError
from autoplan.planning.infeasible.edited_jobs import on_all
from autoplan.planning.plan_and_evaluate import chosen, evaluate, read_layout
from autoplan.results.front import Front
from autoplan.results.plan import Plan, preference
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.costmodel.software import with_software
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout
from autoplan.schema.recompute import FULL, USUAL_MODES, RecomputeMode
from autoplan.schema.stage_layers import chunks_of, even_stages

#: Most choices that change together, besides all of them.
_MOST_CHANGES: Final = 3
#: Most combinations of one number of changes that are priced, besides those towards the best layout.
_MOST_PRICED: Final = 400
#: Layers of a virtual stage that full recompute is tried of.
_BLOCKS: Final = (1, 2, 4, 8, 16)
#: What arguments of Megatron-LM leave to the tokenizer.
_VOCABULARY: Final = "model.vocabulary"
#: Gains below this share of a step are not told.
_LEAST_GAIN: Final = 0.005


def job_beside(reference: str, file: LaunchFile, framework: str | None = None) -> Job:
    """Return the job that ``file`` is for, on the hardware of a line of options, which may say more of it.

    Where neither the file nor an option says how many devices, these are all of the hardware. Raises
    SpecError for options and files that cannot be read, UnsupportedError for a file that starts engines.
    """
    configuration = read_text(file, framework)
    if not isinstance(configuration, Configuration):
        raise UnsupportedError(f"{file.name} starts engines: add --task serve, --model and its load")
    if _VOCABULARY in configuration.unspecified and "--model" not in shlex.split(reference):
        hints = [hint for hint in configuration.warnings if "vocabulary" in hint]
        sentence = "; ".join(["the file does not say the vocabulary of its model: give --model NAME", *hints])
        raise SpecError([Problem(sentence, "model", file.name)])
    job = read_options(reference, job_of_text, configuration.job)
    if "devices" in configuration.job:
        return job
    devices = (job.choices or (job,))[0].cluster.devices
    return read_options(reference, job_of_text, read_text(replace(file, devices=devices), framework).job)


def evaluate_file(
    job: Job, file: LaunchFile, framework: str | None = None
) -> tuple[Configuration, Plan, Job]:
    """Return what ``file`` says, its layout priced for ``job``, and the choice of ``job`` that it is for.

    The layout is that of the file; model, batch, precision and hardware are those of the job. Devices that
    the file leaves open are the job's. Raises SpecError for a file that cannot be read, LayoutError for a
    layout that the job's devices or stack cannot run.
    """
    configuration = read_text(file, framework)
    if "devices" not in configuration.values:
        configuration = read_text(replace(file, devices=job.cluster.devices), framework)
    job = _started_by(job, configuration)
    try:
        return configuration, evaluate(job, configuration.layout_string), job
    except LayoutError as error:
        raise LayoutError([*error.reasons, *_other_stack(job, configuration.framework)]) from error


def _started_by(job: Job, configuration: Configuration) -> Job:
    """Return ``job`` as the program whose file it is runs its layout, where the job names no program.

    Of several ways of the program, such as FSDP2 and DeepSpeed, it is that of the file. Where the program's
    rules exclude the layout, which the file contradicts, or the way lacks what the job asks for, its stack
    alone prices it.
    """
    framework, layout, way = configuration.framework, configuration.layout_string, configuration.way
    try:
        written = written_for(job, framework)
        of_way = tuple(x for x in written.choices if x.program is not None and x.program.way == way)
        written = replace(written, choices=of_way) if of_way else written
    except UnsupportedError:
        written = any_layout(job)  # What its program is not written files for is still priced.
    if job.programs != USUAL:
        return chosen(job, layout)
    one = chosen(written, layout)
    name = stack_of_way(framework, way) or usual_stack(framework)
    of_file = one.program is not None and way in {None, one.program.way}
    if name is None or (of_file and not broken_rules(one, read_layout(one, layout))):
        return one
    ways = stacks_of_target(framework) if way is None else ()
    free = [_under(any_layout(job), each, layout) for each in dict.fromkeys((*ways, name))]
    return next((x for x in free if not broken_rules(x, read_layout(x, layout))), free[0])


def _under(job: Job, name: str, layout: str) -> Job:
    priced_by = with_software(stack_named(name), job.software)
    return chosen(on_all(job, lambda x: replace(x, stack=priced_by, stack_assumed=False)), layout)


def _other_stack(job: Job, framework: str) -> Iterator[str]:
    """Yield what to do where the stack of ``job`` is not the usual one of the file's framework."""
    stack = usual_stack(framework)
    if stack is not None and stack != job.stack.name:
        yield (
            f"the job's stack is {job.stack.name}, and files of {framework} usually run under {stack}:"
            f" set `stack: {stack}` in the job"
        )


def compare_file(
    job: Job, file: LaunchFile, configuration: Configuration, run: Plan, front: Front
) -> FileComparison:
    """Return the comparison of the layout ``run`` of ``file`` with ``front``, and what gains most."""
    notes = file_notes(job, configuration, run)
    if not front.plans:
        return FileComparison(file.name, configuration.framework, run, None, proven=True, notes=tuple(notes))
    best = front.fastest
    missing = _missing(job, file, configuration.framework, run, best)
    if missing is not None:
        notes.append(f"{configuration.framework} cannot express the best layout: {missing}")
    proven = front.certificate.status == "optimal"
    if find_target(configuration.framework).edits is None:
        name = configuration.framework
        notes.append(f"no edits are written for files of {name}: change them by hand, where it has the keys")
    improvements, cut = _improvements(job, file, configuration.framework, run, front)
    improvements = [_in_its_words(job, file, configuration.framework, each) for each in improvements]
    notes += [cut] if cut else []
    more = tuple(improvements), tuple(notes)
    return FileComparison(file.name, configuration.framework, run, best, proven, *more)


def _in_its_words(job: Job, file: LaunchFile, framework: str, improvement: Improvement) -> Improvement:
    """Return an improvement whose edits have the words of the script, where they can be told so."""
    if not improvement.edits or file.values is not None:
        return improvement
    reads = partial(_has_layout, file=file, framework=framework, wanted=(job, improvement.plan))
    return replace(improvement, edits=in_words_of_script(file, improvement.edits, reads))


def _missing(job: Job, file: LaunchFile, framework: str, run: Plan, best: Plan) -> str | None:
    """Return what of the best layout the framework, or a file of its kind, cannot express."""
    target = find_target(framework)
    try:
        if target.edits is not None and target.emit is None:
            target.edits(file, job, run.layout, best.layout)
    except InexpressibleError as error:
        return error.part
    return missing_part(target, job, best.layout)


@dataclass(frozen=True, slots=True)
class _Change:
    """One choice of a layout that changes: its name, and what it sets; ``value`` tells equal names apart."""

    name: str
    apply: Callable[[Layout], Layout]
    value: str = ""

    @property
    def key(self) -> str:
        """What tells one change from the others of a file."""
        return f"{self.name} {self.value}"


def _improvements(
    job: Job, file: LaunchFile, framework: str, run: Plan, front: Front
) -> tuple[list[Improvement], str]:
    """Return the best layout of each number of changes that gains over fewer ones, and what was not tried.

    The last one is the fastest plan of the front that the framework can express, with all its changes.
    """
    pricer = _Pricer(job, file, framework, run)
    best = front.fastest
    towards = _changes_towards(best.layout)
    wanted = [change for change in towards if change.apply(run.layout) != run.layout]
    choices = _distinct([*wanted, *_small_changes(run.layout)], run.layout)
    tried, left = 0, 0
    for count in range(1, _MOST_CHANGES + 1):
        groups = _ranked(choices, count, pricer)
        ours = [group for group in groups if all(change in wanted for change in group)]
        listed = list(dict.fromkeys((*ours, *groups)))
        room = max(len(ours), _MOST_PRICED)
        tried, left = tried + min(room, len(listed)), left + max(0, len(listed) - room)
        for group in listed[:room]:
            pricer.price(group)
    if len(wanted) > _MOST_CHANGES:
        pricer.price(tuple(wanted))
    improvements = _gaining(pricer)
    improvements += _expressible(
        job, file, framework, run, front, improvements[-1].plan if improvements else run
    )
    sentence = f"{left} of {tried + left} combinations of up to {_MOST_CHANGES} changes were not tried"
    return improvements, sentence if left else ""


def _distinct(changes: Sequence[_Change], run: Layout) -> list[_Change]:
    """Return changes that make different layouts, the first of equal ones."""
    kept: dict[Layout, _Change] = {}
    for change in changes:
        with contextlib.suppress(AutoplanError):
            kept.setdefault(change.apply(run), change)
    kept.pop(run, None)
    return list(kept.values())


def _ranked(choices: Sequence[_Change], count: int, pricer: _Pricer) -> list[tuple[_Change, ...]]:
    """Return the groups of this number of choices of different kinds, those whose parts save most first."""
    groups = [
        group
        for group in itertools.combinations(choices, count)
        if len({change.name for change in group}) == count
    ]
    return sorted(groups, key=lambda group: math.prod(pricer.ratio(change) for change in group))


def _gaining(pricer: _Pricer) -> list[Improvement]:
    """Return the best of each number of changes that gains over that of fewer ones."""
    improvements: list[Improvement] = []
    priced, last = pricer.priced, pricer.run
    for count in sorted({len(group) for group, _, _ in priced}):
        alike = sorted((p for p in priced if len(p[0]) == count), key=lambda p: preference(p[1]))
        gaining = [
            p for p in alike if preference(p[1]) < preference(last) and _gain(last, p[1]) > _LEAST_GAIN
        ]
        for group, plan, edits in gaining:
            if _makes(pricer.job, pricer.file, pricer.framework, (plan, edits)):
                improvements.append(Improvement(plan, tuple(change.name for change in group), edits))
                last = plan
                break
    return improvements


def _expressible(
    job: Job, file: LaunchFile, framework: str, run: Plan, front: Front, last: Plan
) -> Iterator[Improvement]:
    """Yield the fastest plan of the front that the framework can express, where it gains over ``last``."""
    target = find_target(framework)
    for plan in sorted(front.plans, key=preference):
        if preference(plan) >= preference(last) or _gain(last, plan) <= _LEAST_GAIN:
            return
        if missing_part(target, job, plan.layout) is not None:
            continue
        with contextlib.suppress(AutoplanError):
            edits = target.edits(file, job, run.layout, plan.layout) if target.edits else ()
            if _makes(job, file, framework, (plan, edits)):
                names = [c.name for c in _changes_towards(plan.layout) if c.apply(run.layout) != run.layout]
                yield Improvement(plan, tuple(names), edits)
                return


@dataclass(slots=True)
class _Pricer:
    """Prices groups of changes of one file's layout, each layout once."""

    job: Job
    file: LaunchFile
    framework: str
    run: Plan
    priced: list[tuple[tuple[_Change, ...], Plan, tuple[FileEdit, ...]]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    seen: set[Layout] = field(default_factory=set)

    def ratio(self, change: _Change) -> float:
        """Return the step that a change alone makes over the file's; 1 where it makes none that runs."""
        return self.seconds.get(change.key, 1.0)

    def price(self, group: tuple[_Change, ...]) -> None:
        """Add the layout that a group makes, if it can run and the framework can express it."""
        target, run = find_target(self.framework), self.run
        layout = _changed(self.job, run.layout, group)
        if layout is None or layout in self.seen or layout == run.layout:
            return
        self.seen.add(layout)
        if broken_rules(self.job, layout) or missing_part(target, self.job, layout) is not None:
            return
        try:
            plan = Plan(layout, predict(self.job, layout), run.facts)
            edits = target.edits(self.file, self.job, run.layout, layout) if target.edits else ()
        except AutoplanError:
            return
        if len(group) == 1:
            self.seconds[group[0].key] = plan.predicted.step_seconds / run.predicted.step_seconds
        self.priced.append((group, plan, edits))


def _makes(job: Job, file: LaunchFile, framework: str, improved: tuple[Plan, Sequence[FileEdit]]) -> bool:
    """Return whether a file of keys, or a script beside one, has layout and batch after its edits."""
    target, (plan, edits) = find_target(framework), improved
    if target.read is None or not any(edit.path for edit in edits):
        return True
    edited = (_edited_beside if any(edit.file for edit in edits) else _edited_keys)(file, edits)
    return _has_layout(edited, file, framework, (job, plan))


def _has_layout(edited: LaunchFile, file: LaunchFile, framework: str, wanted: tuple[Job, Plan]) -> bool:
    """Return whether a file has the layout of a plan, and the batch of the job or that of ``file`` before."""
    target, (job, plan) = find_target(framework), wanted
    devices = plan.layout.devices
    if target.read is None:
        return False
    try:
        configuration = target.read(replace(edited, devices=devices))
        layout = parse_layout(configuration.layout_string, layers=sum(plan.layout.layers), devices=devices)
        batch = _batch(configuration)
        if batch not in {None, job.workload.global_batch_size}:
            before = target.read(replace(file, devices=devices))
            return layout == plan.layout and batch == _batch(before)
    except AutoplanError:
        return False
    return layout == plan.layout


def _batch(configuration: Configuration) -> object:
    return (configuration.job.get("workload") or {}).get("global_batch_size")


def _edited_keys(file: LaunchFile, edits: Sequence[FileEdit]) -> LaunchFile:
    """Return a file of keys after its edits, those without a key as arguments."""
    words = [word for edit in edits if not edit.path for word in edit.after.split()]
    values = edited_values(read_yaml(file).entries, edits)
    return replace(file, text="", values=values, arguments=(*file.arguments, *words))


def _edited_beside(file: LaunchFile, edits: Sequence[FileEdit]) -> LaunchFile:
    """Return a file after its edits, and after those of the files of keys that were read with it."""
    inside = [edit for edit in edits if not edit.file]
    if any(edit.path for edit in inside):
        edited = _edited_keys(file, inside)
    else:
        text, words = file.text, list(file.arguments)
        for edit in inside:
            match = re.search(rf"{re.escape(edit.before)}(?![\w-])", text) if edit.before else None
            text = f"{text[: match.start()]}{edit.after}{text[match.end() :]}" if match else text
            words += [] if edit.before else edit.after.split()
        edited = replace(file, text=text, arguments=tuple(words))

    def sibling(name: str) -> str | None:
        inner, others = file.sibling(name), [edit for edit in edits if edit.file == name]
        if inner is None or not others:
            return inner
        return json.dumps(edited_values(read_yaml(LaunchFile(name, inner)).entries, others))

    return replace(edited, sibling=sibling)


def _gain(before: Plan, after: Plan) -> float:
    """Return the share of a step that a change saves; 1 where the layout did not fit."""
    if not before.predicted.fits:
        return 1.0
    return 1 - after.predicted.step_seconds / before.predicted.step_seconds


def _changed(job: Job, layout: Layout, group: Sequence[_Change]) -> Layout | None:
    """Return ``layout`` with the changes of ``group`` on the same devices; None where that is impossible."""
    try:
        for change in group:
            layout = change.apply(layout)
        inner = layout.tp * layout.pp * layout.cp
        if job.cluster.devices % inner:
            return None
        return replace(layout, dp=job.cluster.devices // inner)
    except AutoplanError:
        return None


def _changes_towards(best: Layout) -> list[_Change]:
    """Return the choices of ``best``, each as a change of another layout."""
    return [
        _Change("tensor parallelism", lambda a: _with_tensor(a, best)),
        _Change("context parallelism", lambda a: replace(a, cp=best.cp)),
        _Change("expert parallelism", lambda a: replace(a, ep=best.ep, expert_tensor=best.expert_tensor)),
        _Change("pipeline", lambda a: _with_stages(a, best)),
        _Change("microbatch", lambda a: replace(a, microbatch=best.microbatch)),
        _Change("sharding", lambda a: replace(a, zero=best.zero, dp_shard=best.dp_shard)),
        _Change("recompute", lambda a: _with_recompute(a, best)),
        _Change(
            "offload",
            lambda a: replace(
                a,
                optimizer_offload=best.optimizer_offload,
                activation_offload=best.activation_offload,
                offload_every=best.offload_every,
            ),
        ),
        _Change("order of ranks", lambda a: replace(a, order=best.order)),
    ]


def _with_tensor(layout: Layout, best: Layout) -> Layout:
    return replace(layout, tp=best.tp, sequence_parallel=best.sequence_parallel)


def _with_stages(layout: Layout, best: Layout) -> Layout:
    """Return ``layout`` with the pipeline of ``best``, and its own recompute if uniform."""
    mode = layout.mode or "none"
    changed = replace(
        layout,
        pp=best.pp,
        vpp=best.vpp,
        schedule=best.schedule,
        layers=best.layers,
        recomputed=(),
        recompute_num_layers=1,
    )
    return changed.with_uniform_recompute(mode)


def _with_recompute(layout: Layout, best: Layout) -> Layout:
    """Return ``layout`` with the recompute of ``best``: the same counts, or its mode on other stages."""
    if layout.layers == best.layers:
        return replace(layout, recomputed=best.recomputed, recompute_num_layers=best.recompute_num_layers)
    return layout.with_uniform_recompute(best.mode or "none")


def _small_changes(run: Layout) -> Iterator[_Change]:
    """Yield changes of one choice that need not be those of the best layout."""
    for mode in USUAL_MODES:
        yield _Change("recompute", partial(_with_mode, mode=mode), str(mode))
    for count in _BLOCKS:
        if count < max(run.layers):
            yield _Change("recompute", partial(_with_blocks, count=count), str(count))
    for microbatch in (run.microbatch * 4, run.microbatch * 2, run.microbatch // 2):
        if microbatch:
            yield _Change("microbatch", partial(replace, microbatch=microbatch), str(microbatch))
    for zero in range(4):
        yield _Change("sharding", partial(replace, zero=zero, dp_shard=0), str(zero))
    if run.tp > 1:
        other = not run.sequence_parallel
        yield _Change("sequence parallelism", partial(replace, sequence_parallel=other), str(other))
    yield from _small_degrees(run)


def _small_degrees(run: Layout) -> Iterator[_Change]:
    """Yield changes of one degree to twice or half of it, and of virtual stages."""
    for tp in (run.tp * 2, run.tp // 2):
        if tp:
            yield _Change("tensor parallelism", partial(_with_degree, tp=tp), str(tp))
    for pp in (run.pp * 2, run.pp // 2):
        if pp and sum(run.layers) >= pp:
            yield _Change("pipeline", partial(_with_depth, pp=pp), str(pp))
    for cp in (run.cp * 2, run.cp // 2):
        if cp:
            yield _Change("context parallelism", partial(replace, cp=cp), str(cp))
    for ep in (run.ep * 2, run.ep // 2) if run.ep > 1 else ():
        yield _Change("expert parallelism", partial(replace, ep=ep), str(ep))
    for vpp in (2, 4):
        if run.pp > 1 and run.vpp != vpp and sum(run.layers) % (run.pp * vpp) == 0:
            yield _Change("virtual stages", partial(_interleaved, vpp=vpp), str(vpp))


def _with_mode(layout: Layout, *, mode: RecomputeMode) -> Layout:
    return layout.with_uniform_recompute(mode)


def _with_degree(layout: Layout, *, tp: int) -> Layout:
    """Return ``layout`` with another tensor-parallel degree, and sequence parallelism as it had."""
    return replace(layout, tp=tp, sequence_parallel=layout.sequence_parallel and tp > 1, expert_tensor=0)


def _with_depth(layout: Layout, *, pp: int) -> Layout:
    """Return ``layout`` with so many even stages, one virtual one each."""
    stages = even_stages(sum(layout.layers), pp)
    even = replace(layout, pp=pp, vpp=1, schedule="1f1b", layers=stages, recomputed=())
    return even.with_uniform_recompute(layout.mode or "none")


def _with_blocks(layout: Layout, count: int) -> Layout:
    """Return ``layout`` with full recompute of the first layers of each virtual stage."""
    chunks = chunks_of(layout.layers, layout.vpp)
    full = tuple(sum(min(count, n) for n in stage) for stage in chunks)
    return replace(layout, recomputed=((FULL, full),), recompute_num_layers=1)


def _interleaved(layout: Layout, vpp: int) -> Layout:
    stages = even_stages(sum(layout.layers), layout.pp, vpp)
    even = replace(layout, vpp=vpp, schedule="interleaved", layers=stages, recomputed=())
    return even.with_uniform_recompute(layout.mode or "none")
