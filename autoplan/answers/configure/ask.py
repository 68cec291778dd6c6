"""Emit a plan as the configuration of a framework, or say what it cannot express and what is nearest."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autoplan.catalog import read_file
from autoplan.catalog.programs import targets_of
from autoplan.costs.predict import predict
from autoplan.errors import AutoplanError, Problem, SpecError, UnsupportedError
from autoplan.kinds import kind_of, loaded_job
from autoplan.launch.bindings.written_document import refuse_unparsable
from autoplan.launch.configuration import Configuration, LaunchFile
from autoplan.launch.emitted_text import header_lines
from autoplan.launch.job_manifests import with_script
from autoplan.launch.recognition import named_configuration, recognised
from autoplan.launch.registry import find_target, inexpressible, starting
from autoplan.launch.target import Emission, InexpressibleError, PlannedRun, Target
from autoplan.lazy import Later
from autoplan.planning.saved_plans import numbered
from autoplan.results.front import Front, ParetoFront
from autoplan.results.merged_front import at_batch, target_of
from autoplan.results.plan import Plan, preference
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

if TYPE_CHECKING:
    from autoplan.launch.engines.served_run import EngineConfiguration
    from autoplan.results.serving.serving_front import ServingFront, ServingPlan
    from autoplan.schema.serving.serving_spec import ServingJob


# Read files of launches: what a configuration of a framework says, as a layout and a job.


#: What reads files of engines, which no training job needs.
_READ_ENGINES: Final[Later[[LaunchFile, str | None], EngineConfiguration | None]] = Later(
    "autoplan.answers.configure.engine_launches", "read_engine_file"
)
#: Largest file of a launch [byte].
_LARGEST_SCRIPT: Final = 2**20
#: Endings of files that launch files name, and how many folders above they may be named from.
_SIBLINGS: Final = frozenset(
    {".json", ".yaml", ".yml", ".toml", ".sh", ".bash", ".slurm", ".sbatch", ".env", ".conf", ".py"}
)
_MOST_ABOVE: Final = 4


def read(
    file: str | Path,
    framework: str | None = None,
    *,
    devices: int | None = None,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Configuration | EngineConfiguration:
    """Return what the configuration of a framework or engine in ``file`` says; nothing in it is executed.

    Args:
        file: a shell script or another file that a framework or an engine is launched with.
        framework: the target that it is of, by default recognised by its content; of an engine with its
            version, such as ``vllm@0.24``.
        devices: the number of devices, where the file leaves it open.
        variables: variables of the environment that a script is started with.
        arguments: further arguments of the training program.

    Raises SpecError with every problem of the file, its line and what would be right, CatalogError for a file
    that cannot be read, and UnsupportedError for an unknown framework.
    """
    text = text_of_file(file)
    launched = LaunchFile(
        str(file), text, dict(variables or {}), tuple(arguments), devices, sibling=sibling_reader(file)
    )
    _refuse_binary(launched)
    launched = with_script(launched)
    engines = _READ_ENGINES(launched, framework)
    return read_text(launched, framework) if engines is None else engines


def sibling_reader(file: str | Path) -> Callable[[str], str | None]:
    """Return a reader of the files that ``file`` names, which lie beside it or below a folder above it."""
    folder = Path(file).resolve().parent
    above = (folder, *tuple(folder.parents)[:_MOST_ABOVE])

    def sibling_text(name: str) -> str | None:
        path = Path(name)
        plain = path.suffix in _SIBLINGS and not path.is_absolute() and path.parts.count("..") < _MOST_ABOVE
        # A name that leads out of the folders above is none of a file beside this one.
        named = [Path(os.path.normpath(place / path)) for place in above] if plain else []
        places = [place for place in named if place.is_relative_to(above[-1])]
        for place in (*places, folder / path.name):
            if path.suffix in _SIBLINGS and place.is_file():
                with contextlib.suppress(AutoplanError):
                    return text_of_file(place)
        return None

    return sibling_text


def text_of_file(file: str | Path) -> str:
    """Return the text of a file to read; raises CatalogError where it cannot be read, or is too large."""
    return read_file(Path(file), largest=_LARGEST_SCRIPT)


def read_text(file: LaunchFile, framework: str | None = None) -> Configuration:
    """Return what ``file`` says, as ``read`` does."""
    _refuse_binary(file)
    _refuse_unreadable(file)
    started = named_configuration(file) if framework is None else None
    if started is not None:
        named = read_text(started)
        warnings = (f"{file.name} starts it with {started.name}, which is read", *named.warnings)
        return replace(named, warnings=warnings)
    target = recognised(file) if framework is None else find_target(framework)
    if target.read is None:
        raise UnsupportedError(f"files of {target.name} cannot be read")
    return target.read(file)


def _refuse_unreadable(file: LaunchFile) -> None:
    """Raise SpecError, with the line, for text that is not the YAML, JSON or TOML that its file name says."""
    suffix = Path(file.name).suffix if file.values is None and not file.script else ""
    if suffix in {".yaml", ".yml", ".json"}:
        refuse_unparsable(file)
    elif suffix == ".toml":
        try:
            tomllib.loads(file.text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            sentence = f"it is no TOML: {str(error)[:120]}"
            raise SpecError([Problem(sentence, "$", file.name, int(line[1]) if line else None)]) from error


def _refuse_binary(file: LaunchFile) -> None:
    if "\0" in file.text:
        raise SpecError([Problem("it is no text", "$", file.name)])


def read_values(
    values: object,
    framework: str,
    *,
    devices: int | None = None,
    arguments: Sequence[str] = (),
) -> Configuration:
    """Return what the values that a launcher holds say, as ``read`` does for a file.

    Args:
        values: an ``argparse.Namespace`` or a mapping: arguments of Megatron-LM by their names in Python, or
            the content of a DeepSpeed, accelerate or other file as nested mappings, such as of OmegaConf.
        framework: the target whose values they are.
        devices: the number of devices, where the values leave it open.
        arguments: further arguments of the training program.

    Raises SpecError with every problem, and UnsupportedError for an unknown framework or for values of none.
    """
    target = find_target(framework)
    if target.read is None:
        raise UnsupportedError(f"values of {target.name} cannot be read")
    mapping: Mapping[str, Any] | None = (
        values if isinstance(values, Mapping) else getattr(values, "__dict__", None)
    )
    if not mapping:
        raise UnsupportedError(f"values are a mapping or a namespace, not {type(values).__name__}")
    return target.read(
        LaunchFile(f"values of {target.framework}", "", {}, tuple(arguments), devices, values=mapping)
    )


#: Most layouts tried on the way to one that a target can express.
_MOST_TRIED: Final = 400


def emit(  # noqa: PLR0913 - a keyword for each choice
    plan: Front | Plan | ServingFront | ServingPlan,
    target: str,
    *,
    job: Job | ServingJob | str | Path | None = None,
    number: int | None = None,
    command: str | None = None,
    framework: str | None = None,
    program: Sequence[str] = (),
    image: str = "",
    checkpoint: str | None = None,
    draft_checkpoint: str | None = None,
) -> Emission:
    """Return a plan as the files of ``target``, such as ``megatron-lm``; of a serving plan ``vllm``.

    Args:
        plan: the answer of ``plan``, of which plan ``number`` is taken, from 1 and the fastest first;
            left out the fastest of a program that ``target`` writes. Or one plan, which needs its ``job``.
        target: the name of a framework or launcher; of an engine, or of what runs its containers.
        job: the job of a single plan.
        number: which plan of a front.
        command: what the header says it was made by.
        framework: what a launcher such as ``slurm`` starts; by default the plan's program, or the framework
            of the job's stack.
        program: words of the training program that a launcher starts, such as ``["pretrain_gpt.py"]``.
        image: the container that a launcher of containers runs it in.
        checkpoint: what engines load, by default the one that the model was published as.
        draft_checkpoint: a draft model, or heads that draft, of engines.

    Raises UnsupportedError for an unknown target, and for a plan that the target cannot express: with the
    parts, and the nearest layout that it can, priced.
    """
    made_by = command or f'autoplan.emit(plan, "{target}")'
    options = EmitOptions(made_by, framework, program, image, checkpoint, draft_checkpoint)
    if number is None:
        number = written_number(plan, framework or target) if isinstance(plan, Front) and plan.plans else 1
    return kind_of(plan).emission(*_planned_job(plan, job, number), target, options)


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """What the files of a plan say besides it, as ``emit`` takes it."""

    command: str
    framework: str | None
    program: Sequence[str]
    image: str
    checkpoint: str | None
    draft_checkpoint: str | None


def emit_training(job: Job, plan: Plan, target: str, options: EmitOptions) -> Emission:
    """Return a plan of a training job as the files of ``target``, as ``emit`` does."""
    if options.checkpoint or options.draft_checkpoint:
        raise UnsupportedError("only engines of a serving plan load a checkpoint")
    chosen_target = find_target(target)
    started_by = plan.program or (None if job.choices else job.program)
    if started_by is not None and not chosen_target.starts and target not in targets_of(started_by):
        written = ", ".join(sorted(targets_of(started_by))) or "no target"
        message = f"the plan is one of {started_by.words}, which {written} writes, and not {target}"
        raise UnsupportedError(message)
    job = at_batch(job, plan)
    if chosen_target.starts:
        framework = options.framework or target_of(job, plan)
        chosen_target = starting(chosen_target, framework, job.stack, options.program, options.image)
    elif options.framework or options.program or options.image:
        raise UnsupportedError(f"{target} is no launcher: it starts no framework, program or image")
    emitted = chosen_target.emit
    if emitted is None:
        raise UnsupportedError(f"{target} can be read and not be emitted")
    run = PlannedRun(job, plan.layout, header_lines(chosen_target, job, plan, options.command))
    try:
        return emitted(run)
    except InexpressibleError as error:
        raise UnsupportedError(_refusal(chosen_target, run, plan, error)) from error


def _planned_job(
    plan: Front | Plan | ServingFront | ServingPlan, job: Job | ServingJob | str | Path | None, number: int
) -> tuple[Job | ServingJob, Plan | ServingPlan]:
    """Return the job and the plan to emit: plan ``number`` of a front, or one plan, whose job is ``job``."""
    if isinstance(plan, ParetoFront):
        plans: Sequence[Plan | ServingPlan] = plan.plans
        return plan.job, numbered(plans, number)
    if job is None:
        raise UnsupportedError("a single plan is emitted with its job: emit(plan, target, job=job)")
    loaded = loaded_job(job)
    if loaded.kind != plan.kind:
        raise UnsupportedError(f"the plan is one of {plan.kind}, and its job one of {loaded.kind}")
    return loaded, plan


def written_number(front: Front, target: str) -> int:
    """Return the number of the fastest plan whose program ``target`` writes; 1 where no program runs them.

    Raises UnsupportedError where each plan is of a program that another target writes.
    """
    if find_target(target).starts:
        return 1
    runs = [plan.program or at_batch(front.job, plan).program for plan in front.plans]
    for number, run in enumerate(runs, 1):
        if run is None or target in targets_of(run):
            return number
    others = ", ".join(dict.fromkeys(run.title for run in runs if run is not None))
    raise UnsupportedError(
        f"no plan of the front is one that {target} writes, all are for {others}: name the program in the job"
    )


def _refusal(target: Target, run: PlannedRun, plan: Plan, error: InexpressibleError) -> str:
    """Return the sentences on what the target cannot express, and on the nearest layout that it can."""
    parts, layouts = _expressible(target, run, error)
    head = f"{target.framework} cannot express this plan: {'; '.join(parts)}"
    plans = list(_priced(run.job, plan, layouts))
    if not plans:
        return f"{head}. {_excluded(run.job, layouts)}"
    nearest = min(plans, key=preference)
    change = nearest.predicted.step_seconds / plan.predicted.step_seconds - 1
    fits = "" if nearest.predicted.fits else ", and does not fit"
    step = f"{nearest.predicted.step_seconds:.4g} s, {change * 100:+.1f} %{fits}"
    return f"{head}. The nearest layout that it can: {nearest.layout_string} ({step})"


def _excluded(job: Job, layouts: Sequence[Layout]) -> str:
    """Return which rule of the job excludes the first of ``layouts``, which the target can express."""
    if not layouts:
        return "It can express no layout near it"
    rule, *_ = [*broken_rules(job, layouts[0]), "the cost model does not price it"]
    return f"The nearest layout that it can, {layouts[0]}, breaks a rule of this job: {rule}"


def _expressible(
    target: Target, run: PlannedRun, error: InexpressibleError
) -> tuple[list[str], list[Layout]]:
    """Return the parts that the target lacks, and layouts without them that it can express."""
    parts, expressible = [error.part], []
    tried: set[Layout] = {run.layout}
    left = list(error.nearest)
    while left and len(tried) < _MOST_TRIED:
        layout = left.pop(0)
        if layout in tried:
            continue
        tried.add(layout)
        missing = inexpressible(target, replace(run, layout=layout))
        if missing is None:
            expressible.append(layout)
        else:
            parts.append(missing.part)
            left.extend(missing.nearest)
    return list(dict.fromkeys(parts)), expressible


def _priced(job: Job, plan: Plan, layouts: list[Layout]) -> Iterator[Plan]:
    """Yield the prediction of each layout that keeps the rules of ``job``."""
    for layout in layouts:
        if not broken_rules(job, layout):
            with contextlib.suppress(AutoplanError):
                yield Plan(layout, predict(job, layout), plan.facts)
