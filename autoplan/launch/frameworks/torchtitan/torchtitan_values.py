"""What overrides and TOML files of torchtitan say, by field.

Source: pytorch/torchtitan 0.3.0, torchtitan/distributed/pipeline_parallel.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autoplan.launch.assembly import assembled
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Values, Written
from autoplan.launch.frameworks.torchtitan.override_words import (
    CONFIG_FUNCTIONS,
    DEFAULTS,
    KEYS,
    TABLE,
    is_toml,
    read_overrides,
    read_toml,
)
from autoplan.launch.known_models import model_entry
from autoplan.schema.model import ModelSpec
from autoplan.schema.stage_layers import chunks_of

_SIGNS: Final = ("--parallelism.", "--training.", "--compile.", "activation-checkpoint:")
_SCHEDULES: Final = {name.lower(): ours for ours, name in TABLE.data["schedules"].items()}
#: Schedules of several virtual stages that are priced as interleaved 1F1B.
_LOOPED: Final = frozenset(TABLE.data["looped"])
_TOML_DEFAULTS: Final[Mapping[str, Any]] = {
    **DEFAULTS,
    **{KEYS[name]: value for name, value in TABLE.data["toml_defaults"].items()},
}


@dataclass(slots=True)
class TitanSettings:
    """A document and, by binding, what holds where it says nothing; empty where that is not known."""

    document: WrittenDocument
    defaults: Mapping[str, Any]
    model: ModelSpec | None

    def number(self, name: str, least: int = 1) -> Written | None:
        """Return the integer of a setting, or that of the configuration function; None for neither."""
        return self._or_default(self.document.number(KEYS[name], least), name)

    def flag(self, name: str) -> Written | None:
        """Return the truth value of a setting, or that of the configuration function."""
        return self._or_default(self.document.flag(KEYS[name]), name)

    def text(self, name: str, choices: tuple[str, ...] = ()) -> Written | None:
        """Return the text of a setting, one of ``choices``, or that of the configuration function."""
        return self._or_default(self.document.text(KEYS[name], choices), name)

    def _or_default(self, written: Written | None, name: str) -> Written | None:
        if written is not None or self.defaults.get(KEYS[name]) is None:
            return written
        return Written(self.defaults[KEYS[name]], default=True)

    def any(self, name: str) -> Written | None:
        """Return whatever stands of a setting, or in the configuration function."""
        return self._or_default(self.document.given(KEYS[name]), name)

    def refuse(self, sentence: str, name: str, line: int | None = None) -> None:
        """Add a problem of a setting."""
        self.document.refuse(sentence, KEYS[name], line)


def is_torchtitan(file: LaunchFile) -> bool:
    """Return whether a file has overrides of torchtitan, or is one of its TOML files."""
    named = "torchtitan.train" in file.text
    return is_toml(file) or named or sum(sign in file.text for sign in _SIGNS) >= 2


def read_torchtitan(file: LaunchFile) -> Configuration:
    """Return what a script with overrides or a TOML file says; raises SpecError with all problems."""
    if is_toml(file):
        document = read_toml(file)
        return titan_configuration("torchtitan", file, document, _flavor(document))
    document, devices, over_file = read_overrides(file)
    if over_file:
        return titan_configuration("torchtitan", file, document, _flavor(document), devices=devices)
    name, defaults = _function(document)
    return titan_configuration("torchtitan", file, document, name, defaults=defaults, devices=devices)


def titan_configuration(
    framework: str,
    file: LaunchFile,
    document: WrittenDocument,
    name: str | None,
    *,
    defaults: Mapping[str, Any] = _TOML_DEFAULTS,
    devices: Written | None = None,
) -> Configuration:
    """Return the configuration of a document of settings, of the model called ``name``.

    ``defaults`` hold where it says nothing, by path; ``devices`` are those that a script starts.
    """
    settings = TitanSettings(document, defaults, model_entry(name))
    values = _degrees(settings)
    count = file.devices or (devices.value if devices else None)
    if devices is not None:
        values["devices"] = devices
    values |= _sharding(settings, values, count)
    values |= _stages(settings, values)
    values |= _batch_values(settings, values)
    values |= {**_recompute_values(settings, values), **_training_values(settings)}
    document.stop_at_problems()
    return assembled(framework, file, values, model=name, opened=document.opened, warnings=document.notes)


def _function(document: WrittenDocument) -> tuple[str | None, Mapping[str, Any]]:
    """Return the model and the values of the configuration function; nothing where it is not known."""
    config = document.text(KEYS["function"])
    entry = CONFIG_FUNCTIONS.get(config.value) if config else None
    if entry is not None:
        return entry["models"][0], {**DEFAULTS, **entry["values"]}
    shown = f"{config.words[:60]}: " if config else ""
    document.notes.append(f"{shown}what its configuration function sets is not known, and left open")
    return None, {}


def _flavor(document: WrittenDocument) -> str | None:
    name, flavor = document.text(KEYS["model"]), document.text(KEYS["flavor"])
    entry: str | None = (
        TABLE.data["flavors"].get(name.value, {}).get(flavor.value) if name and flavor else None
    )
    return entry


def _degrees(settings: TitanSettings) -> Fields:
    fields = {key: settings.number(key) for key in ("tp", "pp", "cp", "ep")}
    values = {key: written for key, written in fields.items() if written is not None}
    moe = settings.model is None or settings.model.moe is not None
    tp, ep = values.get("tp"), values.get("ep")
    if ep is not None and not moe:
        if not ep.default and ep.value > 1:
            settings.document.notes.append(f"{ep.words} has no effect on a model without experts")
        values["ep"] = Written(1, default=True)
    elif ep is not None and ep.value > 1:
        split = settings.document.number(KEYS["etp"])
        values["etp"] = split or Written(1, default=True)
    sp = settings.flag("sp")
    if tp is not None and (tp.value == 1 or sp is not None):
        values["sp"] = sp if sp is not None and tp.value > 1 else Written(value=False, default=True)
    return values


def _sharding(settings: TitanSettings, values: Values, devices: int | None) -> Fields:
    """Return the data-parallel degree, what shards, and the ZeRO stage."""
    replicate = settings.number("replicas")
    shard = settings.number("shards", least=-1)
    if replicate is None or shard is None or any(key not in values for key in ("tp", "pp", "cp")):
        return {}
    if shard.value == 0:
        settings.refuse("a shard degree is -1 or at least 1", "shards")
        return {}
    cp, model = values["cp"].value, math.prod(values[key].value for key in ("tp", "pp", "cp"))
    ranks = shard.value if shard.value > 0 else devices // (model * replicate.value) if devices else None
    fields = {"zero": _zero(settings, values, sharded=ranks is None or ranks * cp > 1)}
    if ranks is None:
        return fields
    where = shard if not shard.default or replicate.default else replicate
    fields["dp"] = Written(replicate.value * ranks, where.line, where.words, default=where.default)
    if devices is None:
        fields["devices"] = where.of(replicate.value * ranks * model)
    if replicate.value > 1 and fields["zero"].value:
        fields["dp_shard"] = replicate.of(max(1, ranks) * cp)
    return fields


def _zero(settings: TitanSettings, values: Values, *, sharded: bool) -> Written:
    """Return the ZeRO stage; by default, pipelines keep parameters gathered."""
    policy = settings.text("resharded", ("default", "always", "never"))
    if not sharded:
        return Written(0, default=True)
    name = policy.value if policy else "default"
    stage = 3 if name == "always" or (name == "default" and values["pp"].value == 1) else 2
    if policy is None or policy.default:
        return Written(stage, default=True)
    return policy.of(stage)


def _stages(settings: TitanSettings, values: Values) -> Fields:
    """Return schedule, virtual stages, and the layers of stages where the model is known."""
    pp = values.get("pp")
    if pp is None or pp.value == 1:
        return {"vpp": Written(1, default=True)} if pp else {}
    written = settings.text("schedule")
    name = written.value.lower() if written else "1f1b"
    looped = name in _LOOPED
    if looped and written:
        settings.document.notes.append(f"{written.words or written.value}: priced as interleaved 1F1B")
    if not looped and name not in _SCHEDULES:
        schedules = ", ".join((*_SCHEDULES, *sorted(_LOOPED)))
        settings.refuse(f"{name[:40]!r} is no schedule of PyTorch that is read: {schedules}", "schedule")
    schedule = "interleaved" if looped else _SCHEDULES.get(name, "1f1b")
    split, said = _split(settings, pp.value, interleaved=schedule == "interleaved")
    fields = _virtual(settings, pp.value, split, schedule, said)
    where = written or Written("", default=True)
    return {"schedule": Written(schedule, where.line, where.words, where.default), **fields}


def _split(
    settings: TitanSettings, pp: int, *, interleaved: bool
) -> tuple[tuple[int, ...] | int | None, Written | None]:
    """Return the layers of each virtual stage, or how many there are of them, and what says so."""
    names = settings.document.given(KEYS["modules"])
    if names is not None:
        return _named(settings, names), names
    first, last = (settings.number(f"{end}_stage_less", least=0) for end in ("first", "last"))
    each = settings.number("layers_per_stage")
    layers = settings.model.layers if settings.model else None
    count = pp * (2 if interleaved else 1)
    if each is not None and layers is not None and first is not None and last is not None:
        count = -(-(layers + first.value + last.value) // each.value)
    if each is not None and layers is None:
        return None, each
    if layers is None or first is None or last is None:
        if first is None or last is None or first.value or last.value:
            settings.document.notes.append("the model is not known, and stages are read as even ones")
        return count, each
    split = even_split(layers, count, first.value, last.value)
    if split is None:
        sentence = f"{layers} layers do not divide into {count} stages, with {first.value} less in the first"
        settings.document.refuse(f"{sentence} and {last.value} less in the last", "parallelism", first.line)
    return split, each or first


def _named(settings: TitanSettings, names: Written) -> tuple[int, ...] | None:
    value = names.value
    if not isinstance(value, list) or not all(isinstance(part, list) for part in value):
        settings.refuse("it is no list of lists of modules", "modules")
        return None
    try:
        return layers_in([[str(name) for name in part] for part in value])
    except ValueError as error:
        settings.refuse(str(error), "modules")
        return None


def _virtual(
    settings: TitanSettings,
    pp: int,
    split: tuple[int, ...] | int | None,
    schedule: str,
    where: Written | None,
) -> Fields:
    """Return virtual stages and the layers of stages."""
    if split is None:
        return {}
    count = split if isinstance(split, int) else len(split)
    line, words = (where.line, where.words) if where else (None, "")
    vpp, left = divmod(count, pp)
    if left or (vpp > 1) != (schedule == "interleaved"):
        sentence = f"{count} virtual stages do not suit {pp} ranks and the schedule {schedule}"
        settings.refuse(sentence, "pp", line)
        return {}
    values = {"vpp": Written(vpp, line, words, default=where is None)}
    if isinstance(split, int):
        return values
    stages = tuple(sum(split[stage::pp]) for stage in range(pp))
    chunks = chunks_of(stages, vpp)
    if tuple(chunks[stage][v] for v in range(vpp) for stage in range(pp)) != split:
        shown = "/".join(map(str, split))
        settings.document.notes.append(
            f"virtual stages of {shown} layers are priced as equal parts of stages"
        )
    return {**values, "stages": Written(stages, line, words, default=where is None or where.default)}


def _batch_values(settings: TitanSettings, values: Values) -> Fields:
    """Return microbatch, batch and sequences; a pass of the pipeline has several microbatches."""
    local = settings.number("local_batch_size")
    total = settings.number("global_batch_size", least=-1)
    length = settings.number("sequence_length")
    fields = {"sequence_length": length} if length else {}
    pp, dp = values.get("pp"), values.get("dp")
    if pp is None or local is None:
        return fields
    mbs = settings.number("mbs") if pp.value > 1 else local
    if mbs is not None:
        fields["mbs"] = mbs
        _check_pass(settings, local, mbs)
    if total is not None and total.value > 0:
        fields["global_batch_size"] = total
        _check_accumulation(settings, total, local, dp, pp)
    elif dp is not None:
        batch = local.value * dp.value
        fields["global_batch_size"] = Written(batch, local.line, local.words, default=local.default)
    return fields


def _check_pass(settings: TitanSettings, local: Written, mbs: Written) -> None:
    if local.value % mbs.value:
        sentence = f"microbatches of {mbs.value} do not divide the local batch of {local.value}"
        settings.refuse(sentence, "local_batch_size", local.line or mbs.line)


def _check_accumulation(
    settings: TitanSettings, total: Written, local: Written, dp: Written | None, pp: Written
) -> None:
    """Refuse a batch that is no multiple of the ranks' ones; note several passes of a pipeline."""
    if dp is None:
        return
    together = local.value * dp.value
    if total.value % together:
        sentence = (
            f"a local batch of {local.value} x dp={dp.value} = {together} does not divide {total.value}"
        )
        settings.refuse(sentence, "global_batch_size", total.line)
    elif pp.value > 1 and total.value > together:
        settings.document.notes.append(
            f"{total.value // together} passes of the pipeline make a step, each with a bubble: priced as one"
        )


def _recompute_values(settings: TitanSettings, values: Values) -> Fields:
    """Return what is recomputed; nothing where the compiler or the number of layers decides it."""
    mode = settings.text("recompute", ("none", "selective", "full", "memory_budget"))
    if mode is None:
        return {}
    option = settings.any("recompute_option")
    if mode.value == "memory_budget":
        settings.document.notes.append(f"{mode.words}: the compiler decides what is recomputed; not read")
        return {}
    if mode.value != "selective" or option is None or not _numbered(option):
        return {"recompute": mode}
    every = int(str(option.value))
    if every == 1:
        return {"recompute": mode.of("full")}
    layers, pp = settings.model.layers if settings.model else None, values.get("pp")
    if layers is None or pp is None or pp.value > 1:
        settings.document.notes.append(
            f"recompute of every {every}th layer is not read: their number is open"
        )
        return {}
    return {"recompute": Written(f"full:{layers // every}", option.line, option.words, option.default)}


def _numbered(option: Written) -> bool:
    """Return whether ``selective_ac_option`` of a TOML file recomputes one of so many layers."""
    text = str(option.value)
    return text.isascii() and text.isdigit() and 0 < int(text[:4]) < 1000


def _training_values(settings: TitanSettings) -> Fields:
    """Return precision, optimizer, and choices of software."""
    values = {}
    param = settings.text("precision", ("bfloat16", "float32"))
    dtype = settings.text("parameters", ("bfloat16", "float32"))
    if param is not None:
        pure = dtype is not None and dtype.value == "bfloat16"
        name = "bf16" if param.value == "bfloat16" or pure else "fp32"
        values["precision"] = Written(name, param.line, param.words, param.default)
    values |= _converted(settings)
    optimizer = _optimizer(settings)
    if optimizer is not None:
        values["optimizer"] = optimizer
    software = _software(settings, dtype)
    if software:
        values["software"] = Written(software)
    offload = settings.flag("offload")
    if offload is not None and offload.value:
        values["offload"] = offload.of("optimizer")
        settings.document.notes.append(f"{offload.words}: parameters are in host memory as well, not priced")
    return values


def _converted(settings: TitanSettings) -> Fields:
    """Return the precision that converters of a TOML file choose."""
    converters = settings.document.given(KEYS["converters"])
    if converters is None or not isinstance(converters.value, list):
        return {}
    names = [str(name) for name in converters.value]
    values = next(
        (ours for name in names for theirs, ours in TABLE.data["converters"].items() if name == theirs), None
    )
    return {"precision": converters.of(values)} if values else {}


def _optimizer(settings: TitanSettings) -> Written | None:
    named = settings.document.text(KEYS["optimizer"])
    if named is None:
        return Written("adamw", default=True) if settings.defaults else None
    names = TABLE.data["optimizers"]
    if named.value.lower() not in names:
        settings.document.notes.append(f"the optimizer {named.value[:40]!r} is not priced: left open")
        return None
    return named.of(names[named.value.lower()])


def _software(settings: TitanSettings, dtype: Written | None) -> dict[str, Any]:
    compiled = settings.flag("compiled") or settings.flag("earlier_compiled")
    parts = settings.document.given(KEYS["components"])
    components = parts.value if parts else settings.defaults.get(KEYS["components"], "model")
    values: dict[str, Any] = {}
    if compiled is not None and compiled.value and "model" in components:
        values["compile"] = True
    if dtype is not None and dtype.value == "bfloat16":
        values["pure_bf16"] = True
    uncaptured = settings.flag("uncaptured")
    if uncaptured is not None and not uncaptured.value:
        values["cuda_graphs"] = True
    return values


_FIRST: Final = ("tok_embeddings",)
_LAST: Final = ("norm", "lm_head")


def even_split(layers: int, stages: int, first: int, last: int) -> tuple[int, ...] | None:
    """Return the layers of each stage if embedding and head count as ``first`` and ``last`` layers.

    Remaining layers go to the first stages. None where a stage has fewer layers than embedding or head count.

    >>> even_split(32, 4, 1, 1), even_split(32, 4, 0, 0), even_split(32, 3, 2, 0)
    ((8, 9, 8, 7), (8, 8, 8, 8), (10, 11, 11))
    """
    if stages == 1:
        return (layers,)
    share, rest = divmod(layers + first + last, stages)
    if share < max(first, last, 1):
        return None
    split = [share + (stage < rest) for stage in range(stages)]
    split[0] -= first
    split[-1] -= last
    return tuple(split)


def module_names(split: Sequence[int]) -> tuple[str, ...]:
    """Return the modules of each stage, as ``module_fqns_per_model_part`` has them on a command line.

    >>> module_names((1, 2))
    ('tok_embeddings,layers.0', 'layers.1,layers.2,norm,lm_head')
    """
    begin, parts = 0, []
    for stage, count in enumerate(split):
        names = [f"layers.{layer}" for layer in range(begin, begin + count)]
        first = _FIRST if stage == 0 else ()
        last = _LAST if stage == len(split) - 1 else ()
        parts.append(",".join((*first, *names, *last)))
        begin += count
    return tuple(parts)


def layers_in(parts: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the layers of each stage of lists of modules; raises ValueError where they are not in order.

    >>> layers_in([["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]])
    (1, 1)
    """
    stages = [[name.strip() for name in part if name.strip().startswith("layers.")] for part in parts]
    numbers = [name.removeprefix("layers.") for part in stages for name in part]
    if not all(re.fullmatch(r"[0-9]{1,5}", number) for number in numbers):
        raise ValueError("layers are named layers.0, layers.1 and so on")
    if [int(number) for number in numbers] != list(range(len(numbers))):
        raise ValueError("layers are not in order, each once and from layers.0 on")
    return tuple(len(part) for part in stages)
