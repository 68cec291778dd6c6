"""Arguments of one or several serve commands, checked against each other and made a layout and a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from autoplan.catalog import checkpoint_model
from autoplan.catalog.model_names import published_format
from autoplan.errors import LayoutError, Problem, SpecError
from autoplan.launch.configuration import Fields, LaunchFile, Values, Written
from autoplan.launch.engines.arguments.given_arguments import GivenArguments, note_unpriced, refuse_undecided
from autoplan.launch.engines.arguments.sglang_arguments import sglang_values
from autoplan.launch.engines.arguments.tensorrt_llm_arguments import tensorrt_llm_values
from autoplan.launch.engines.arguments.vllm_arguments import vllm_v0_values, vllm_values
from autoplan.launch.engines.serve_commands import ServeCommand, names_others
from autoplan.launch.engines.served_run import EngineConfiguration, format_named
from autoplan.launch.known_models import model_entry, other_architecture
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout, parse_serving_layout

_READERS: Final[Mapping[str, Callable[..., Fields]]] = {
    "vllm": vllm_values,
    "vllm-v0": vllm_v0_values,
    "vllm-rocm": vllm_v0_values,
    "sglang": sglang_values,
    "tensorrt-llm": tensorrt_llm_values,
}
#: Arguments that name what is served, besides the first word.
_LAYOUT: Final = ("tp", "pp", "replicas", "ep", "adp", "dcp", "weights", "kv", "seqs", "tokens", "spec")
#: Fields that a file of options decides, where it lies nowhere.
OF_OPTIONS: Final = frozenset({"tp", "pp", "ep", "adp", "dcp"})
#: Settings of an engine by key of the section ``search`` of a job.
_SEARCH: Final = ("gpu_memory_utilization", "block_tokens", "cache_tokens", "enforce_eager")
#: Those of them that each pool has for itself.
_OF_POOLS: Final = ("cache_tokens",)
_SIXTEEN: Final = frozenset({"bf16", "fp16"})
#: What a job has and a command does not say.
_OPEN: Final = ("hardware", "workload.input_tokens", "workload.output_tokens")


@dataclass(frozen=True, slots=True)
class CommandValues:
    """A serve command, and its arguments."""

    command: ServeCommand
    given: GivenArguments


@dataclass(frozen=True, slots=True)
class _StartedEngine:
    """What one command starts."""

    layout: EngineLayout
    values: Values
    line: int
    role: str | None
    model: str | None
    doubt: str = ""
    copies: int = 1

    @property
    def settings(self) -> tuple[object, ...]:
        """What engines that are alike have in common."""
        keys = ("longest_request", *_SEARCH, "draft_method", "draft_checkpoint", "checkpoint")
        others = tuple(value.value if (value := self.values.get(key)) else None for key in keys)
        return (replace(self.layout, replicas=1), self.role, others)


def configured(
    file: LaunchFile,
    engine: tuple[str, str],
    commands: Sequence[CommandValues],
    notes: Sequence[str],
    hints: Sequence[Problem] = (),
) -> EngineConfiguration:
    """Return the configuration of ``commands`` of an engine; raises SpecError, with ``hints`` added."""
    name, version = engine
    leading = [one for one in commands if not _follows(one.given)]
    engines = [_engine(name, one) for one in leading or commands]
    problems = [problem for one in commands for problem in one.given.problems]
    if problems:
        raise SpecError([*dict.fromkeys(problems), *hints])
    layout = _joined(engines, file.name)
    first = engines[0]
    _refuse_other_devices(file, layout, first, hints)
    checkpoint, model = first.values.get("checkpoint"), first.model
    _refuse_other_architectures(file, checkpoint, model)
    warnings = [*notes, *(note for one in commands for note in one.given.notes)]
    warnings += _of_the_model(checkpoint, model, first)
    values = {key: value for key, value in first.values.items() if not value.default}
    search = _search_of(engines)
    opened = _left_open(first, leading or commands)
    job = _job((f"{name}@{version}", model, checkpoint), first, search)
    job["devices"] = layout.devices
    if {"tp", "pp"} & set(opened):
        del job["devices"]
    return EngineConfiguration(
        engine=f"{name}@{version}",
        file=file.name,
        layout=layout,
        job=job,
        values=values,
        checkpoint=checkpoint.value if checkpoint else None,
        defaults=tuple(
            key for key in _LAYOUT if key not in values and key != "replicas" and key not in opened
        ),
        unspecified=(*(() if checkpoint else ("model",)), *opened, *_OPEN),
        warnings=tuple(dict.fromkeys(warnings)),
        search=search,
    )


def _search_of(engines: Sequence[_StartedEngine]) -> dict[str, Any]:
    """Return the settings that are no part of a layout: those of the first engine, some by pool."""
    first = engines[0]
    keys = [key for key in _SEARCH if first.role is None or key not in _OF_POOLS]
    search: dict[str, Any] = {key: first.values[key].value for key in keys if key in first.values}
    for engine in engines:
        of_pool = {key: engine.values[key].value for key in _OF_POOLS if key in engine.values}
        if engine.role is not None and of_pool:
            search[engine.role] = of_pool
    return search


def _left_open(engine: _StartedEngine, commands: Sequence[CommandValues]) -> tuple[str, ...]:
    """Return the fields that stay open: weights, and those of a file of options that its command has."""
    values = engine.values
    opened = [] if "weights" in values else ["weights"]
    opened += sorted({name for one in commands for name in one.given.opened})
    elsewhere = sorted({name for one in commands for name in one.given.elsewhere})
    opened += [key for key in elsewhere if key not in values or values[key].default]
    if commands[0].command.words or "checkpoint" in values:
        return tuple(opened)
    opened += [key for key in ("tp", "pp", "ep", "dcp") if key not in values]
    return (*opened, *(("adp",) if "tp" in opened and "adp" in values else ()))


def _follows(arguments: GivenArguments) -> bool:
    """Return whether a command starts the part of an engine on a further node, which another one leads."""
    for flag in arguments.known.table.data.get("followers", ()):
        one = arguments.given.get(flag)
        if one is None or one.unknown is not None:
            continue
        rank = str(one.value)
        if one.value is True or (rank.isdigit() and int(rank) > 0):
            return True
    return False


def _refuse_other_devices(
    file: LaunchFile,
    layout: EngineLayout | DisaggregatedLayout,
    first: _StartedEngine,
    hints: Sequence[Problem],
) -> None:
    """Raise SpecError where the user says another number of devices than the engines take."""
    if file.devices is None or file.devices == layout.devices:
        return
    sentence = f"the engines take {layout.devices} devices ({layout}), not --devices {file.devices}"
    raise SpecError([Problem(sentence, "devices", file.name, first.line), *hints])


def _refuse_uneven(layout: EngineLayout, spec: ModelSpec, arguments: GivenArguments, values: Values) -> None:
    """Refuse degrees that do not divide the heads, and more stages than layers."""
    uneven = f"{layout.tp} does not divide the {spec.heads} attention heads"
    missing = f"{layout.pp} stages of {spec.layers} layers"
    for name, wrong, sentence in (
        ("tp", spec.heads % layout.tp, uneven),
        ("pp", layout.pp > spec.layers, missing),
    ):
        if wrong:
            stated = values.get(name) or Written(None, None, name)
            arguments.refuse(sentence, stated.words, stated.line)


def _refuse_hidden(layout: EngineLayout, one: CommandValues, values: Values) -> None:
    """Refuse an engine of one node with more devices than its environment shows it, or its container has."""
    taken, shown = layout.devices_per_engine, "CUDA_VISIBLE_DEVICES shows"
    seen = one.command.visible
    if seen is None or taken <= seen:
        seen, shown = one.command.held, "its container has"
    if seen is None or taken <= seen or names_others(" ".join(word.text for word in one.command.words)):
        return
    degree = values.get("pp") or values.get("tp")
    words, line = (degree.words, degree.line) if degree else ("layout", one.command.line)
    sentence = f"the engine takes {taken} devices ({layout}), and {shown} {seen}"
    one.given.refuse(sentence, words, line)


def _engine(name: str, one: CommandValues) -> _StartedEngine:
    """Return what one command starts; problems are added to its arguments."""
    arguments = one.given
    refuse_undecided(arguments)
    note_unpriced(arguments)
    checkpoint = _checkpoint(arguments)
    model = checkpoint_model(checkpoint.value) if checkpoint else None
    spec = model_entry(model)
    experts = spec.moe is not None if spec is not None else None
    values = _READERS[name](arguments, experts=experts)
    if checkpoint is not None:
        values["checkpoint"] = checkpoint
    values |= _weights(values, checkpoint.value if checkpoint else None, model)
    split = values.pop("experts_split", None)
    if split is not None and experts is False:
        arguments.refuse(f"{model} has no experts to split over devices", split.words, split.line)
    fields = {key: value.value for key, value in values.items() if key in _LAYOUT}
    layout = EngineLayout(**fields)
    if split is not None:
        values["ep"] = replace(split, value=layout.tp * layout.adp)
        layout = replace(layout, ep=layout.tp * layout.adp)
    line = one.command.line
    _consistent(layout, arguments, line)
    _refuse_hidden(layout, one, values)
    if spec is not None:
        _refuse_uneven(layout, spec, arguments, values)
    role = values.get("role")
    named = role.value if role else one.command.role
    return _StartedEngine(layout, values, line, named, model, one.command.doubt, one.command.replicas)


def _checkpoint(arguments: GivenArguments) -> Written | None:
    """Return what is served: the first word, or the value of the argument for it."""
    named = arguments.known.arguments.get(arguments.known.flags.get("model", ""))
    argument = arguments.given.get(named.flag) if named is not None else None
    cause = argument.unknown if argument is not None else None
    if argument is not None and cause is None:
        return arguments.text("model")
    for word in arguments.positional[:1] if argument is None else ():
        if word.unknown is None and word.text:
            return Written(word.text, word.line, word.text)
        cause = word.unknown
    if cause is not None:
        how = f": give --set {cause.name}=VALUE" if cause.name else ""
        arguments.notes.append(f"the model depends on {cause.reason} (line {cause.line}){how}")
    return None


def _weights(values: Fields, checkpoint: str | None, model: str | None) -> Fields:
    """Return the format of the weights: that of an argument, of the checkpoint, or of activations."""
    dtype = values.pop("dtype", None)
    named = format_named(checkpoint) if checkpoint else None
    chosen = values.get("weights")
    if chosen is not None:
        # A checkpoint with scales of blocks keeps them when it is loaded as fp8.
        blocks = "fp8-block" in {named, published_format(model) if model and named is None else None}
        return {"weights": replace(chosen, value="fp8-block")} if blocks and chosen.value == "fp8" else {}
    if named is not None and (dtype is None or named not in _SIXTEEN):
        return {"weights": Written(named, default=True)}
    published = published_format(model) if model and named is None else None
    if published not in {None, "bf16"} or (published and dtype is None):
        return {"weights": Written(published, default=True)}
    return {"weights": dtype} if dtype is not None else {}


def _consistent(layout: EngineLayout, arguments: GivenArguments, line: int) -> None:
    try:
        parse_serving_layout(str(layout))
    except LayoutError as error:
        for reason in error.reasons:
            arguments.refuse(reason, "layout", line)


def _joined(engines: Sequence[_StartedEngine], file: str) -> EngineLayout | DisaggregatedLayout:
    """Return the layout of all commands: engines that are alike, or one pool of each role."""
    pools: dict[str | None, list[_StartedEngine]] = {}
    for engine in engines:
        pools.setdefault(engine.role, []).append(engine)
    for role, engines_of_role in pools.items():
        pools[role] = alike = _started(engines_of_role)
        unlike = next((x for x in alike if x.settings != alike[0].settings), None)
        if unlike is not None:
            sentence = f"engines differ: {alike[0].layout} (line {alike[0].line}) and {unlike.layout}"
            raise SpecError([Problem(sentence, "layout", file, unlike.line)])
    layouts = {
        role: replace(alike[0].layout, replicas=sum(x.layout.replicas * x.copies for x in alike))
        for role, alike in pools.items()
    }
    if layouts.keys() == {"prefill", "decode"}:
        return DisaggregatedLayout(layouts["prefill"], layouts["decode"])
    if len(layouts) > 1:
        line = engines[0].line
        raise SpecError([Problem("some engines have a role in a pool and others none", "layout", file, line)])
    return next(iter(layouts.values()))


def _started(engines: list[_StartedEngine]) -> list[_StartedEngine]:
    """Return the engines that are started: alternatives under conditions that are not known count once."""
    certain = [engine for engine in engines if not engine.doubt]
    doubtful = [engine for engine in engines if engine.doubt]
    if certain or len({engine.settings for engine in doubtful}) > 1:
        return [*certain, *doubtful]
    return doubtful[:1]


def _refuse_other_architectures(file: LaunchFile, checkpoint: Written | None, model: str | None) -> None:
    """Raise SpecError for a model that is no decoder-only transformer, by its name."""
    kind = other_architecture(str(checkpoint.value)) if checkpoint is not None and model is None else None
    if checkpoint is not None and kind is not None:
        sentence = f"{str(checkpoint.value)[:60]} is {kind}, and plans are of decoder-only transformers"
        raise SpecError([Problem(sentence, "model", file.name, checkpoint.line)])


def _of_the_model(checkpoint: Written | None, model: str | None, engine: _StartedEngine) -> list[str]:
    """Return what is to be said of the checkpoint."""
    missing = "weights have the format of the checkpoint, which its name does not say: left open"
    weights = engine.values.get("weights", Written(None))
    unlisted = checkpoint is not None and model is None
    name = checkpoint.value if checkpoint is not None else ""
    stated = {
        f"{name} is not in the catalogue: give the model of the job": unlisted,
        missing: "weights" not in engine.values,
        f"weights={engine.layout.weights} is the format of the checkpoint": weights.default,
        f"engines are of the pool for {engine.role}": engine.role is not None,
    }
    return [sentence for sentence, holds in stated.items() if holds]


def _job(
    named: tuple[str, str | None, Written | None], engine: _StartedEngine, search: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keys of a job file, as far as they are known."""
    stack, model, checkpoint = named
    job: dict[str, Any] = {"kind": "serving"}
    if model or checkpoint:
        job["model"] = model or (checkpoint.value if checkpoint else None)
    job["devices"] = engine.layout.devices
    job["stack"] = stack
    longest = engine.values.get("longest_request")
    if longest is not None:
        job["workload"] = {"longest_request": longest.value}
    stated = {"weights": engine.layout.weights} if "weights" in engine.values else {}
    job["precision"] = {**stated, "kv_cache": engine.layout.kv}
    method = engine.values.get("draft_method")
    if method is not None and engine.layout.spec:
        job["speculation"] = {"method": method.value, "tokens": engine.layout.spec}
    if search:
        share = search.get("gpu_memory_utilization")
        shown = {"gpu_memory_utilization": f"{share * 100:g} %"} if share is not None else {}
        job["search"] = {**search, **shown}
    return job
