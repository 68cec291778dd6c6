"""Emit engines of a serving plan, and read and price what serve commands say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from autoplan.answers.configure.ask import EmitOptions
from autoplan.catalog import load_serving_job, read_file
from autoplan.errors import AutoplanError, CatalogError, LayoutError, UnsupportedError, refuse_broken
from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.emitted_text import as_comment
from autoplan.launch.engines.arguments.engine_settings import InexpressibleEngineError, written_as
from autoplan.launch.engines.engine_reading import is_engine_file, read_engines
from autoplan.launch.engines.engine_targets import ENGINE_TARGETS, engine_target
from autoplan.launch.engines.helm_charts import CHART, VALUES, rendered_chart
from autoplan.launch.engines.served_run import (
    EngineConfiguration,
    EngineFile,
    EngineGroupToServe,
    EngineTarget,
    ServedRun,
    admitted_requests,
)
from autoplan.launch.target import Emission
from autoplan.planning.saved_plans import LARGEST_ANSWER, numbered
from autoplan.planning.serving_plans import evaluate_serving
from autoplan.results.serving.serving_front import ServingFront, ServingPlan
from autoplan.rules.engine_rules import broken_engine_rules, broken_pool_rules
from autoplan.schema.resolved_job import values_from
from autoplan.schema.saved_front import read_document
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout
from autoplan.schema.serving.saved_serving import serving_front_from
from autoplan.schema.serving.serving_choices import ServingSearchSpec
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_bytes, format_seconds
from autoplan.version import __version__

_LARGEST: Final = 2**20
#: Suffixes of files of options that a command names.
_OPTIONS: Final = (".yaml", ".yml", ".json")
#: The folder of a chart's templates, and the most of them that are read.
_TEMPLATES: Final = "templates"
_MOST_TEMPLATES: Final = 100
_MOST_TRIED: Final = 100
#: The argument of vLLM for its longest request, in options, keys and Python, but not in a comment.
_LENGTH_ARGUMENT: Final = re.compile(r"^[^#\n]*max[-_]?model[-_]?len", re.IGNORECASE | re.MULTILINE)
#: A key of YAML in a line.
_KEY: Final = re.compile(r"\s*(?:- )?([\w-]+)\s*:\s*\S")
#: By how much a plan must be better to be named, as fronts are thinned.
_BETTER: Final = 1.01


@dataclass(frozen=True, slots=True)
class BetterPlan:
    """A plan of the front that is no worse than a file's engines, and what of the file it changes.

    ``changes`` are keys of the layout with both values, and the line of the file where it says one. Gains are
    None where the file's engines serve nothing.
    """

    plan: ServingPlan
    throughput_per_device_gain: float | None
    time_per_output_token_gain: float | None
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadEngines:
    """What a file of an engine says, and its price for a job; ``differences``: where the two disagree."""

    job: ServingJob
    configuration: EngineConfiguration
    plan: ServingPlan
    differences: tuple[str, ...]


def emit_engines(
    job: ServingJob | str | Path,
    plan: ServingPlan | DisaggregatedLayout,
    target: str,
    *,
    command: str | None = None,
    checkpoint: str | None = None,
    draft_checkpoint: str | None = None,
    image: str = "",
) -> Emission:
    """Return the engines of ``plan`` as the files of ``target``, such as ``vllm``.

    Args:
        job: the job, which decides the engine and its version.
        plan: a plan of its front, or of ``evaluate``; or the layout of pools, which then have no prediction.
        target: the engine itself, or what runs its containers.
        command: what the header says it was made by.
        checkpoint: what engines load, by default the one that the model was published as.
        draft_checkpoint: a draft model, or heads that draft.
        image: the container, where the target has containers.

    Raises UnsupportedError for an unknown target or a version whose arguments are not listed, and for what
    the target cannot express: with the part, and the nearest layout that it can.
    """
    job = job if isinstance(job, ServingJob) else load_serving_job(job)
    chosen = engine_target(target)
    engine = job.engine
    if engine.name not in chosen.engines:
        others = [name for name, other in ENGINE_TARGETS.items() if engine.name in other.engines]
        advice = f"emit it for {', '.join(others)}" if others else "it cannot be emitted"
        raise UnsupportedError(f"the engine of the job is {engine}, not {chosen.title}: {advice}")
    if isinstance(plan, DisaggregatedLayout):  # a plan has been priced, and so breaks no rule
        refuse_broken(plan, broken_pool_rules(job, plan))
    run = ServedRun(
        job,
        _groups(plan),
        checkpoint=checkpoint,
        draft_checkpoint=draft_checkpoint,
        image=image,
    )
    made_by = command or f'emit_engines(job, plan, "{target}")'
    header = _header((chosen, run), plan, made_by)
    try:
        return chosen.emit(replace(run, header=header))
    except InexpressibleEngineError as error:
        raise UnsupportedError(_refusal(chosen, run, error)) from error


def _groups(plan: ServingPlan | DisaggregatedLayout) -> tuple[EngineGroupToServe, ...]:
    if isinstance(plan, DisaggregatedLayout):
        return EngineGroupToServe(plan.prefill, "prefill"), EngineGroupToServe(plan.decode, "decode")
    if plan.pools is not None:
        return _groups(plan.pools)
    return tuple(
        EngineGroupToServe(replace(group.layout, replicas=group.predicted.engines)) for group in plan.groups
    )


def _header(
    emitted: tuple[EngineTarget, ServedRun], plan: ServingPlan | DisaggregatedLayout, command: str
) -> tuple[str, ...]:
    """Return the lines of the header comment."""
    target, run = emitted
    job, version = run.job, run.known
    layout = plan.layout_string if isinstance(plan, ServingPlan) else str(plan)
    devices = f"{plan.devices} device{'s' if plan.devices > 1 else ''}"
    lines = [f"{job.model.name} on {job.cluster.node.name}, {devices}: {layout}"]
    if isinstance(plan, ServingPlan):
        lines.append(_predicted(plan))
        lines += [
            f"requests of {' and '.join(group.classes)} alone go to {group.layout}"
            for group in plan.groups
            if group.classes
        ]
    else:
        lines.append("not predicted: pools for prefill and decode")
    lines.append(admitted_requests(job))
    around = f", started by {target.title} {target.version} (names checked)" if target.version else ""
    lines.append(f"for {job.engine.title} {version.version} (names checked against {version.source}){around}")
    lines.append(f"made by autoplan {__version__}: {command}")
    return tuple(lines)


def _predicted(plan: ServingPlan) -> str:
    """Return the prediction as one line."""
    if not plan.starts:
        return "predicted: these engines do not start"
    first, each = plan.time_to_first_token, plan.time_per_output_token
    parts = [
        f"time to first token {format_seconds(first)}" if first is not None else _no_first_token(plan),
        f"time per output token {format_seconds(each)}" if each is not None else "",
        f"{plan.output_tokens_per_second:,.0f} output tokens/s",
        f"memory {format_bytes(plan.peak_memory_bytes_per_device)} per device",
    ]
    broken = f"; breaks: {'; '.join(plan.broken)}" if plan.broken else ""
    return f"predicted: {', '.join(part for part in parts if part)}{broken}"


def _no_first_token(plan: ServingPlan) -> str:
    """Return why there is no time to the first token: no load is given, or more than engines answer."""
    loaded = any(group.predicted.load.kind != "maximum" for group in plan.groups)
    return "time to first token without end" if loaded else ""


def _refusal(target: EngineTarget, run: ServedRun, error: InexpressibleEngineError) -> str:
    """Return the sentences on what cannot be expressed, and on the nearest layout that can."""
    parts, nearest = _nearest(target, run, error)
    name = run.job.engine.title if target.version == "" else target.title
    head = f"{name} cannot express this: {'; '.join(parts)}"
    if nearest is None:
        return f"{head}. No layout of this job is without that"
    return f"{head}. The nearest layout that it can: {nearest}{_price(run.job, nearest)}"


def _price(job: ServingJob, layout: EngineLayout) -> str:
    """Return what a layout is predicted to do, where it can be priced."""
    try:
        plan = evaluate_serving(job, layout)[1]
    except AutoplanError:
        return ""
    each = plan.time_per_output_token
    if not plan.starts or each is None:
        return " (which does not start)"
    return f" ({format_seconds(each)} per output token, {plan.output_tokens_per_second:,.0f} tokens/s)"


def _nearest(
    target: EngineTarget, run: ServedRun, error: InexpressibleEngineError
) -> tuple[list[str], EngineLayout | None]:
    """Return the parts that the target lacks, and the nearest layout without them that keeps the rules."""
    parts, left = [error.part], list(error.nearest)
    tried: set[EngineLayout] = set()
    if len(run.groups) > 1:
        return parts, None
    while left and len(tried) < _MOST_TRIED:
        layout = left.pop(0)
        if layout in tried:
            continue
        tried.add(layout)
        try:
            target.emit(replace(run, groups=(EngineGroupToServe(layout, run.groups[0].role),)))
        except InexpressibleEngineError as further:
            parts.append(further.part)
            left.extend(further.nearest)
            continue
        except UnsupportedError:
            continue
        if not broken_engine_rules(run.job, layout):
            return list(dict.fromkeys(parts)), layout
    return list(dict.fromkeys(parts)), None


def engine_file(
    file: str | Path, variables: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> LaunchFile:
    """Return a file to read; raises CatalogError where it cannot be read."""
    return LaunchFile(
        str(file), read_file(Path(file), largest=_LARGEST), dict(variables or {}), tuple(arguments)
    )


def read_engine_file(file: LaunchFile, framework: str | None = None) -> EngineConfiguration | None:
    """Return what serve commands in ``file`` or a file of their options say; None for a file of no engine.

    Files of options that a command names are read where they lie beside it. ``framework`` is an engine, with
    a version such as ``vllm@0.24``. Raises SpecError with every problem, its line and what would be right.
    """
    rendered = None if is_engine_file(file) else _rendered(file)
    if rendered is not None:
        read = read_engine_file(rendered, framework)
        return None if read is None else _with_lines_of(file, read)
    if not is_engine_file(file, framework):
        return None
    folder = Path(file.name).parent

    def sibling_text(name: str) -> str | None:
        if not name.endswith(_OPTIONS):
            return None
        try:
            return read_file(folder / Path(name).name, largest=_LARGEST)
        except CatalogError:
            return None

    return read_engines(EngineFile(file, sibling_text), framework)


def _with_lines_of(file: LaunchFile, read: EngineConfiguration) -> EngineConfiguration:
    """Return what was read of a chart, with the lines of its values where they have a key like an argument.

    Other values keep their words, which the templates of the chart have, and no line.
    """
    keys: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(file.text.splitlines(), 1):
        if (match := _KEY.match(line)) is not None:
            keys.setdefault(_plain_name(match[1]), []).append((number, line.strip()))

    def placed(written: Written) -> Written:
        name, _, value = written.words.replace("=", " ", 1).partition(" ")
        places = [(n, line) for n, line in keys.get(_plain_name(name), ()) if value.strip("\"'") in line]
        if not written.line or len(places) != 1:
            return replace(written, line=None)
        return replace(written, line=places[0][0], words=places[0][1])

    note = "values of a chart as its templates make them, whose lines are those in other notes"
    values = {key: placed(written) for key, written in read.values.items()}
    return replace(read, file=file.name, values=values, warnings=(note, *read.warnings))


def _plain_name(name: str) -> str:
    """Return the name of a key or argument in small letters alone, so that tensorParallelSize is a flag."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _rendered(file: LaunchFile) -> LaunchFile | None:
    """Return what a chart's templates make of its values; None for a file that lies beside no chart."""
    path = Path(file.name)
    chart = path.parent / CHART
    if path.suffix not in _OPTIONS or path.name == CHART or file.script or not chart.is_file():
        return None
    templates = sorted((path.parent / _TEMPLATES).rglob("*"))[:_MOST_TEMPLATES]
    wanted = [chart, path.parent / VALUES, *(t for t in templates if t.suffix in {".yaml", ".yml", ".tpl"})]
    files = {
        one.relative_to(path.parent).as_posix(): read_file(one, largest=_LARGEST)
        for one in wanted
        if one.is_file()
    }
    text = rendered_chart(file.text, file.name, files)
    return (
        None if text is None else replace(file, name=str(path.with_name(f"rendered-{path.name}")), text=text)
    )


def evaluate_engine_file(job: ServingJob, file: LaunchFile, framework: str | None = None) -> ReadEngines:
    """Return the price of what a file of an engine says, for ``job``.

    Layout, share of memory and block of the cache are those of the file; model, requests and version of the
    engine are the job's, and where the file has others, that is said. Raises as ``read_engine_file``,
    LayoutError for a layout that breaks a rule, UnsupportedError for a file of no engine, or of another one.
    """
    same = framework is None or framework == job.engine.name
    launch = (None if is_engine_file(file) else _rendered(file)) or file
    wanted = str(job.engine) if same and _says_no_version(launch, job) else framework
    configuration = read_engine_file(file, wanted)
    if configuration is None:
        raise UnsupportedError(f"{file.name} has no serve command of a known engine: give --framework")
    name, _, version = configuration.engine.partition("@")
    if written_as(name, version) != written_as(job.engine.name, job.engine.version):
        raise UnsupportedError(f"{file.name} is of {configuration.engine}, the job's engine is {job.engine}")
    longest = _longest_admitted(job, configuration, launch)
    workload = job.workload.model_copy(update={"longest_request": longest} if longest else {})
    priced = replace(job, search=_told(job.search, configuration.search), workload=workload)
    file_job, plan = evaluate_serving(priced, configuration.layout)
    differences = [*_differences(job, configuration)]
    if longest and not plan.starts:
        differences.append(
            f"vLLM starts where its cache holds a request of --max-model-len, here {longest:,} tokens; left"
            " out it is the longest context of the model"
        )
    return ReadEngines(file_job, configuration, plan, tuple(differences))


def _longest_admitted(job: ServingJob, configuration: EngineConfiguration, file: LaunchFile) -> int | None:
    """Return the tokens of the longest request for which an engine must have room to start.

    None where the job has longer ones, or the engine starts with less. vLLM asks for its
    ``--max-model-len``, by default the longest context of the model; ``auto`` is what fits (vLLM 0.33.0,
    v1/core/kv_cache_utils.py, _check_enough_kv_cache_memory). SGLang and TensorRT-LLM start, and refuse
    longer requests.
    """
    from autoplan.launch.engines.serve_commands import PROGRAM_OF

    if PROGRAM_OF.get(job.engine.name, job.engine.name) != "vllm":
        return None
    longest = configuration.job.get("workload", {}).get("longest_request")
    if longest is None and _LENGTH_ARGUMENT.search(file.text) is None:
        longest = job.model.max_positions
    return longest if longest is not None and longest > job.longest_request else None


def _told(search: ServingSearchSpec, told: Mapping[str, Any]) -> ServingSearchSpec:
    """Return ``search`` with what a file tells an engine; settings of one pool are merged with the others."""
    merged = {
        key: getattr(search, key).model_copy(update=dict(value)) if isinstance(value, Mapping) else value
        for key, value in told.items()
    }
    return search.model_copy(update=merged)


def better_plan(read: ReadEngines, front: ServingFront) -> BetterPlan | None:
    """Return the plan of ``front`` with most tokens/s a device among those that are no slower.

    None where the engines that were read are on the front: no plan has as many tokens/s a device in as short
    a time per token. Where they start or hold the limits not, every plan of the front is better.
    """
    file_plan = read.plan
    rate, each = file_plan.output_tokens_per_second_per_device, file_plan.time_per_output_token
    plans = front.plans
    if file_plan.feasible and each is not None:
        plans = tuple(plan for plan in plans if _no_worse(plan, rate, each))
    if not plans:
        return None
    best = max(plans, key=lambda plan: plan.output_tokens_per_second_per_device)
    faster = best.time_per_output_token
    return BetterPlan(
        best,
        best.output_tokens_per_second_per_device / rate - 1 if rate else None,
        1 - faster / each if faster is not None and each else None,
        (*_changes(read.configuration, best), *_shorter_requests(read, front.job)),
    )


def _shorter_requests(read: ReadEngines, job: ServingJob) -> Iterator[str]:
    """Yield the change of the longest request with which the engines of a file start."""
    longest = read.job.longest_request
    if not read.plan.starts and longest > job.longest_request:
        yield f"longest_request (--max-model-len): {longest} to {job.longest_request}"


def _no_worse(plan: ServingPlan, rate: float, each: float) -> bool:
    """Return whether a plan is as good in throughput and time per token, and better in one by 1 % or more."""
    plan_rate, plan_each = plan.output_tokens_per_second_per_device, plan.time_per_output_token
    if plan_each is None or plan_rate < rate or plan_each > each:
        return False
    return plan_rate > rate * _BETTER or plan_each * _BETTER < each


def _changes(configuration: EngineConfiguration, best: ServingPlan) -> Iterator[str]:
    """Yield the keys of the layout in which a plan of engines that are alike differs from a file."""
    layout = configuration.layout
    if len(best.groups) > 1 or not isinstance(layout, EngineLayout):
        yield f"engines that differ: {best.layout_string}"
        return
    wanted = replace(best.groups[0].layout, replicas=best.engines)
    for key, value in asdict(wanted).items():
        now = getattr(layout, key)
        written = configuration.values.get(key)
        place = f" (line {written.line}: {written.words})" if written is not None and written.line else ""
        if value != now:
            yield f"{key}: {now or 'default'} to {value or 'default'}{place}"


def _says_no_version(file: LaunchFile, job: ServingJob) -> bool:
    from autoplan.launch.engines.serve_commands import ENGINES, PROGRAM_OF, said_version, serves

    program = PROGRAM_OF.get(job.engine.name, job.engine.name)
    if program not in ENGINES:
        return False
    of_engine = file.name.endswith(_OPTIONS) or serves(file.text)
    return of_engine and said_version(program, file.text) is None and _of_engine(file, job)


def _of_engine(file: LaunchFile, job: ServingJob) -> bool:
    """Return whether a file is one of the job's engine."""
    try:
        configuration = read_engine_file(file)
    except LayoutError:
        raise
    except AutoplanError:
        return True
    return configuration is not None and _same_program(configuration.engine.partition("@")[0], job)


def _same_program(engine: str, job: ServingJob) -> bool:
    from autoplan.launch.engines.serve_commands import PROGRAM_OF

    return PROGRAM_OF.get(engine, engine) == PROGRAM_OF.get(job.engine.name, job.engine.name)


def _differences(job: ServingJob, configuration: EngineConfiguration) -> list[str]:
    """Return what a file has and the job has otherwise, as sentences."""
    lines = []
    model = configuration.job.get("model")
    if model is not None and model != job.model.name:
        lines.append(f"the file serves {model}, and the job's model {job.model.name} is priced")
    if configuration.engine != str(job.engine):
        lines.append(f"the file is for {configuration.engine}, and the job's {job.engine} is priced")
    longest = configuration.job.get("workload", {}).get("longest_request")
    if longest is not None and longest < job.longest_request:
        lines.append(f"the file admits {longest:,} tokens a request, and the job has {job.longest_request:,}")
    layout = configuration.layout
    engines = (layout,) if isinstance(layout, EngineLayout) else (layout.prefill, layout.decode)
    lines += [
        f"the file has weights={weights}, which the job does not allow"
        for weights in dict.fromkeys(engine.weights for engine in engines)
        if weights not in job.precision.weights
    ]
    return lines


def emit_serving(job: ServingJob, plan: ServingPlan, target: str, options: EmitOptions) -> Emission:
    """Return the engines of a serving plan as the files of ``target``, as ``emit`` does."""
    if options.framework or options.program:
        raise UnsupportedError("engines serve: they start no framework and no training program")
    return emit_engines(
        job,
        plan,
        target,
        command=options.command,
        checkpoint=options.checkpoint,
        draft_checkpoint=options.draft_checkpoint,
        image=options.image,
    )


def saved_engines(file: str | Path, number: int = 1) -> tuple[ServingJob, ServingPlan]:
    """Return plan ``number`` of a saved answer to a serving job and its job, priced again.

    Raises as ``saved_plan`` does, and UnsupportedError for a plan of engines that differ.
    """
    name = str(file)
    saved = serving_front_from(
        read_document(read_file(Path(file), largest=LARGEST_ANSWER), name=name), name=name
    )
    job = values_from(ServingJob, saved.resolved, name=name)
    plan = numbered(saved.front, number, f" in {name}")
    if " + " in plan.layout_string:
        raise UnsupportedError(
            f"plan {number} in {name} has engines that differ, whose shares of the load are planned again:"
            " name the job, with --plan"
        )
    return evaluate_serving(job, plan.layout_string)


#: Version of the document; goes up when it changes in a way that breaks a reader.
_SCHEMA: Final = 1
_WIDTH: Final = 100


def _fields(layout: EngineLayout, unspecified: Collection[str]) -> dict[str, Any]:
    """Return the fields of a layout; None for those that stay open."""
    return {key: None if key in unspecified else value for key, value in asdict(layout).items()}


def _layout_text(layout: EngineLayout | DisaggregatedLayout, unspecified: Collection[str]) -> str:
    """Return a layout as a string, without the fields that stay open."""
    if not isinstance(layout, EngineLayout):
        return str(layout)
    return ",".join(x for x in str(layout).split(",") if x.partition("=")[0] not in unspecified)


def engine_document(configuration: EngineConfiguration) -> dict[str, Any]:
    """Return ``configuration`` as a document; of pools the layout is a string alone."""
    layout = configuration.layout
    lines = {key: value.line for key, value in configuration.values.items() if value.line}
    return {
        "schema": _SCHEMA,
        "kind": "serving",
        "framework": configuration.engine,
        "file": configuration.file,
        "checkpoint": configuration.checkpoint,
        "layout": _fields(layout, configuration.unspecified) if isinstance(layout, EngineLayout) else {},
        "layout_string": _layout_text(layout, configuration.unspecified),
        "job": dict(configuration.job),
        "lines": lines,
        "defaults": list(configuration.defaults),
        "unspecified": list(configuration.unspecified),
        "warnings": list(configuration.warnings),
    }


def serving_job_text(configuration: EngineConfiguration, hardware: str | None = None) -> str:
    """Return ``configuration`` as a job file, with comments on what commands and the user do not say."""
    named = {} if hardware is None else {"hardware": hardware}
    missing = "the requests, such as" if named else "the hardware and the requests, such as"
    example = "`workload: {input_tokens: 1024, output_tokens: 256, concurrency: 32}`"
    lines = [
        f"read from {configuration.file}, commands of {configuration.engine}",
        f"its layout: {_layout_text(configuration.layout, configuration.unspecified)}",
        *configuration.warnings,
        *(f"not in the file: {field}" for field in configuration.unspecified if field not in named),
        f"add {missing} {example if named else '`hardware: dgx-h100` (`autoplan catalog list node`)'}",
    ]
    if "speculation" in configuration.job:
        lines.append("add the acceptance of drafts, such as `acceptance: 0.75`, to speculation")
    text: str = yaml.safe_dump({"schema": 1, **configuration.job, **named}, sort_keys=False, width=_WIDTH)
    return as_comment(tuple(lines)) + text
