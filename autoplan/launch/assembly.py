"""Values of a launch file, checked against each other, as a layout and a job.

What contradicts is reported with the lines of all values that are involved. What a file leaves open and the
framework has no default for stays open: nothing is assumed here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from autoplan.errors import LayoutError, Problem, SpecError
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Values, Written
from autoplan.launch.known_models import model_entry
from autoplan.results.plan import layout_fields
from autoplan.schema.layout import LAYOUT_KEYS, Layout, parse_layout

#: What holds where a file says nothing else of a layout.
_ALONE: Final = {**dict.fromkeys(("tp", "pp", "cp", "ep"), 1), "sp": False, "zero": 0, "recompute": "none"}


def alone(*but: str) -> Fields:
    """Return the values of data parallelism alone, without sharding and recompute, ``but`` some fields."""
    return {key: Written(value, default=True) for key, value in _ALONE.items() if key not in but}


def without_open(values: Values) -> Fields:
    """Return the values that are known."""
    return {key: written for key, written in values.items() if written.value is not None}


def assembled_document(
    document: WrittenDocument,
    file: LaunchFile,
    values: Values,
    model: Mapping[str, Any] | str | None = None,
    *,
    framework: str = "",
    opened: Collection[str] | None = None,
    hints: Sequence[str] = (),
) -> Configuration:
    """Return the configuration of a document, by default of the framework of its table; see ``assembled``."""
    name, notes = framework or document.table.name, [*document.notes, *hints]
    fields = document.opened if opened is None else opened
    return assembled(name, file, values, model=model, opened=fields, warnings=notes)


#: Fields of a layout string that a reader may give, and those that each file has to give, or its framework.
_LAYOUT: Final = tuple(key.name for key in LAYOUT_KEYS if key.written)
_NEEDED: Final = tuple(key.name for key in LAYOUT_KEYS if key.launched)
#: Values that a layout string leaves out.
_USUAL: Final[Mapping[str, Any]] = {key.name: key.usual for key in LAYOUT_KEYS if key.usual is not None}
#: Frameworks whose stages have as many layers each, unless a file says how many.
_EVEN: Final = frozenset({"llama-factory"})
_JOB: Final = ("devices", "precision", "optimizer", "adapters", "rl", "routing", "software")
_WORKLOAD: Final = ("sequence_length", "global_batch_size")


def with_devices(file: LaunchFile, values: Values) -> Values:
    """Return ``values`` with the number of devices that the user says, and the data-parallel degree.

    Raises SpecError where the other degrees do not divide the devices, or a degree of the file differs.
    """
    completed = dict(values)
    if file.devices is not None:
        completed["devices"] = Written(file.devices, None, "--devices")
    degrees = {key: completed[key] for key in ("tp", "pp", "cp") if completed.get(key) is not None}
    devices, data_ranks = completed.get("devices"), completed.get("dp")
    if devices is not None and devices.value < 1:
        _refuse(file, completed, "devices", f"{_shown('devices', devices)} run nothing")
    if devices is None or len(degrees) < 3:
        return completed
    product, all_of_them = math.prod(degree.value for degree in degrees.values()), _shown("devices", devices)
    shown = " x ".join(_shown(key, degree) for key, degree in degrees.items())
    if product < 1 or devices.value % product:
        _refuse(file, completed, "tp", f"{shown} = {product} does not divide the {all_of_them}")
    if data_ranks is not None and data_ranks.value * product != devices.value:
        _refuse(file, completed, "dp", f"{shown} x {_shown('dp', data_ranks)} is not {all_of_them}")
    return {**completed, "dp": data_ranks or devices.of(devices.value // product)}


def assembled(
    framework: str,
    file: LaunchFile,
    values: Values,
    *,
    model: Mapping[str, Any] | str | None = None,
    open_fields: Sequence[str] = (),
    opened: Collection[str] = (),
    warnings: Sequence[str] = (),
) -> Configuration:
    """Return the configuration that ``values`` and ``model`` are.

    ``way`` of the values is which of several ways of the framework's program shards. ``model`` is the name
    of an entry, or a description with ``layers``; ``open_fields`` are fields of it that stay open, such as
    ``model.vocabulary``; ``opened`` are fields that a key which is not read may decide, so that they and what
    follows from them stay open. Raises SpecError with every contradiction.
    """
    way = values.get("way")
    values = with_devices(file, known_alone(values, {*opened, "way"}))
    values = known_alone(values, opened)
    sizes = _sizes_of(model)
    layers = sizes["layers"]
    problems = [*_batch_problems(file, values), *_stage_problems(file, values, layers)]
    if framework in _EVEN:
        problems += _even_problems(file, values, layers)
    problems += [*_expert_problems(file, values, sizes), *_head_problems(file, values, sizes)]
    problems += _sequence_problems(file, values)
    if problems:
        raise SpecError(problems)
    layout = _layout(file, values, layers) if not set(opened) & set(_LAYOUT) - set(values) else None
    needed = (*_NEEDED, *_WORKLOAD, "devices", "precision", "optimizer")
    missing = [key for key in needed if key not in values]
    missing += [key for key in sorted(opened) if key not in values and key not in missing]
    fields = layout_fields(layout) if layout else {key: _plain(values.get(key)) for key in _LAYOUT}
    return Configuration(
        framework=framework,
        file=file.name,
        layout=layout,
        layout_fields=fields,
        layout_string=str(layout) if layout else _layout_string(values),
        job=_job(values, model),
        values=values,
        defaults=tuple(key for key, written in values.items() if written.default),
        unspecified=(*missing, *(() if model else ("model",)), *open_fields),
        warnings=tuple(dict.fromkeys(warnings)),
        way=way.value if way is not None else None,
    )


def _job(values: Values, model: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return what is known of the job, with keys and order of a job file."""
    workload = {key: values[key].value for key in _WORKLOAD if key in values}
    stated = {key: values[key].value for key in _JOB if key in values and values[key].value is not None}
    return {
        **({"model": model} if model else {}),
        **{key: value for key, value in stated.items() if key == "devices"},
        **({"workload": workload} if workload else {}),
        **{key: value for key, value in stated.items() if key != "devices" and value != {}},
    }


def _layout(file: LaunchFile, values: Values, layers: int | None) -> Layout | None:
    """Return the layout; None where the layers, the devices or a degree is unknown."""
    if layers is None or any(key not in values for key in ("devices", *_NEEDED)):
        return None
    text = _layout_string(values)
    try:
        return parse_layout(text, layers=layers, devices=values["devices"].value)
    except LayoutError as error:
        raise SpecError([Problem(reason, "layout", file.name) for reason in error.reasons]) from error


def _layout_string(values: Values) -> str:
    """Return what is known as a layout string."""
    stated = [(key, values[key].value) for key in _LAYOUT if key in values and values[key].value is not None]
    return ",".join(f"{key}={_text(value)}" for key, value in stated if value != _USUAL.get(key))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _plain(written: Written | None) -> Any:  # noqa: ANN401 - any JSON value
    value = written.value if written else None
    return list(value) if isinstance(value, tuple) else value


def _batch_problems(file: LaunchFile, values: Values) -> Iterator[Problem]:
    """Yield the problem of a microbatch that does not divide the batch of a data-parallel rank."""
    mbs, dp, batch = (values.get(key) for key in ("mbs", "dp", "global_batch_size"))
    if mbs is None or dp is None or batch is None or batch.value % (mbs.value * dp.value) == 0:
        return
    shown = f"{_shown('mbs', mbs)} x {_shown('dp', dp)} = {mbs.value * dp.value}"
    sentence = f"{shown} does not divide the {_shown('global_batch_size', batch)}"
    yield Problem(sentence, "global_batch_size", file.name, batch.line or mbs.line)


def _stage_problems(file: LaunchFile, values: Values, layers: int | None) -> Iterator[Problem]:
    """Yield the problems of stages that do not have the layers of the model."""
    pp, vpp, stages = values.get("pp"), values.get("vpp"), values.get("stages")
    if pp is None or layers is None or stages is None:
        return
    if len(stages.value) != pp.value or sum(stages.value) != layers:
        sizes = f"{len(stages.value)} stages of {_text(stages.value)} = {sum(stages.value)} layers"
        sentence = f"{sizes}, but {_shown('pp', pp)} and the model has {layers} layers"
        yield Problem(sentence, "stages", file.name, stages.line or pp.line)
    if vpp is not None and vpp.value > 1 and pp.value == 1:
        yield Problem(f"{_shown('vpp', vpp)} needs pp > 1", "vpp", file.name, vpp.line)


def _even_problems(file: LaunchFile, values: Values, layers: int | None) -> Iterator[Problem]:
    """Yield the problem of layers that stages, which have as many each, do not divide."""
    pp, vpp = values.get("pp"), values.get("vpp")
    chunks = (pp.value if pp else 1) * (vpp.value if vpp else 1)
    if pp is not None and layers is not None and "stages" not in values and layers % chunks:
        sentence = f"{chunks} stages ({_shown('pp', pp)}) do not divide the {layers} layers of the model"
        yield Problem(sentence, "pp", file.name, pp.line)


def _sizes_of(model: Mapping[str, Any] | str | None) -> Mapping[str, int | None]:
    """Return the layers, the heads and the experts of a model, as far as they are known."""
    entry = model_entry(model) if isinstance(model, str) else None
    if entry is not None:
        experts = entry.moe.experts if entry.moe is not None else None
        return {"layers": entry.layers, "heads": entry.heads, "kv_heads": entry.kv_heads, "experts": experts}
    fields = model if isinstance(model, Mapping) else {}
    moe = fields.get("moe")
    sizes = {key: fields.get(key) for key in ("layers", "heads", "kv_heads")}
    return {**sizes, "experts": moe.get("experts") if isinstance(moe, Mapping) else None}


def _expert_problems(file: LaunchFile, values: Values, sizes: Mapping[str, int | None]) -> Iterator[Problem]:
    """Yield the problems of expert parallelism: ep x etp x pp divides the devices, and ep the experts."""
    ep, pp, devices = (values.get(key) for key in ("ep", "pp", "devices"))
    if ep is None or ep.value == 1:
        return
    experts, key = sizes["experts"], "etp" if values.get("etp") else "tp"
    if isinstance(experts, int) and experts % ep.value:
        yield Problem(f"{_shown('ep', ep)} does not divide the {experts} experts", "ep", file.name, ep.line)
    split = values.get(key)
    if pp is None or devices is None or split is None:
        return
    product = ep.value * split.value * pp.value
    if devices.value % product:
        shown = f"{_shown('ep', ep)} x {_shown(key, split)} x {_shown('pp', pp)} = {product}"
        sentence = f"{shown} does not divide the {_shown('devices', devices)}"
        yield Problem(sentence, "ep", file.name, ep.line or split.line or pp.line)


def _head_problems(file: LaunchFile, values: Values, sizes: Mapping[str, int | None]) -> Iterator[Problem]:
    """Yield the problem of attention heads that tensor parallelism does not divide evenly."""
    tp, heads, shared = values.get("tp"), sizes["heads"], sizes["kv_heads"]
    if tp is None:
        return
    if isinstance(heads, int) and heads % tp.value:
        sentence = f"does not divide the {heads} attention heads"
    elif isinstance(shared, int) and shared % tp.value and tp.value % shared:
        sentence = f"neither divides nor multiplies the {shared} key-value heads"
    else:
        return
    yield Problem(f"{_shown('tp', tp)} {sentence}", "tp", file.name, tp.line)


def _sequence_problems(file: LaunchFile, values: Values) -> Iterator[Problem]:
    """Yield the problem of a sequence that context and sequence parallelism do not divide evenly."""
    length, cp, tp, sp = (values.get(key) for key in ("sequence_length", "cp", "tp", "sp"))
    if length is None or cp is None:
        return
    scattered = tp is not None and sp is not None and sp.value
    ranks = cp.value * (tp.value if scattered and tp is not None else 1)
    if length.value % ranks:
        sentence = f"{ranks} ranks do not divide sequences of {length.value} tokens"
        where = cp if cp.value > 1 or tp is None else tp
        yield Problem(sentence, "cp" if cp.value > 1 else "tp", file.name, length.line or where.line)


def _shown(key: str, written: Written) -> str:
    """Return a value with its key and line, as messages name it."""
    where = f" (line {written.line})" if written.line else ""
    return f"{written.value} devices{where}" if key == "devices" else f"{key}={written.value}{where}"


def _refuse(file: LaunchFile, values: Values, key: str, sentence: str) -> None:
    line = next(
        (values[k].line for k in (key, "pp", "cp", "devices") if k in values and values[k].line), None
    )
    raise SpecError([Problem(sentence, key, file.name, line)])
