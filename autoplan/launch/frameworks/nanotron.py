"""The target ``nanotron``: the YAML file of ``run_train.py``.

Keys, defaults and meanings are those of ``src/nanotron/config/`` and ``src/nanotron/parallel/context.py`` of
the version that TARGET names. Gradients of a data-parallel rank are accumulated, ranks are numbered along
tensor, context, data and pipeline parallelism, and the layers of stages follow from the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

from autoplan.errors import AutoplanError
from autoplan.launch.assembly import assembled_document
from autoplan.launch.bindings.interface import interface, nested, plan_values, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, layout_edits, read_yaml
from autoplan.launch.configuration import Configuration, Fields, FileEdit, LaunchFile, Values, Written
from autoplan.launch.frameworks.interpolated_values import overridden
from autoplan.launch.frameworks.missing_parts import microbatches, refuse_order, refuse_software
from autoplan.launch.known_models import named_model
from autoplan.launch.target import InexpressibleError
from autoplan.schema.huggingface.model_config import model_from_huggingface
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec

_TABLE: Final = interface("nanotron")
#: Fields of a model that another key of the table has the name of.
_EXPERTS: Final = {"expert_count": "experts"}
_NOTHING_OFFLOADED: Final[dict[str, Any]] = {"optimizer_offload": False, "activation_offload": False}
#: Defaults, which an edit does not add to a file.
_DEFAULTS: Final = {"cp": "1", "recompute": "false"}


def is_nanotron(file: LaunchFile) -> bool:
    """Return whether a file is one of nanotron."""
    text = file.text
    return all(re.search(rf"(?m)^{section}\s*:", text) for section in ("parallelism", "tokens", "model"))


def read_nanotron(file: LaunchFile) -> Configuration:
    """Return what a YAML file of nanotron says; raises SpecError with all problems."""
    document = read_yaml(file, _TABLE)
    overridden(document, file.arguments)
    document.check_sections()
    values = {**_degrees(document), **_training(document)}
    document.stop_at_problems()
    _devices(document, file, values)
    document.stop_at_problems()
    model = _model(document)
    document.stop_at_problems()
    fields, hints = (None, []) if model is None else _described(model)
    if model is not None:
        values |= _stages(model, values, document)
    return assembled_document(document, file, values, fields, hints=hints)


def _degrees(document: WrittenDocument) -> Fields:
    degrees = document.bound("dp", "pp", "tp")
    for name in ("dp", "pp", "tp"):
        if name not in degrees:
            document.refuse("it is missing", name)
    tp, pp, mode = degrees.get("tp"), degrees.get("pp"), document.text("sp", ("all_reduce", "reduce_scatter"))
    scattered = mode is not None and mode.value == "reduce_scatter" and tp is not None and tp.value > 1
    schedule, experts = document.bound("schedule"), document.bound("ep")
    if experts["ep"].value > 1:
        document.refuse("experts are an axis of their own here, which is not read", "ep")
    values = {
        **degrees,
        **document.bound("cp"),
        **experts,
        "sp": mode.of(scattered) if mode else Written(value=False, default=True),
        "schedule": schedule.get("schedule", Written("gpipe", default=True)),
        **document.bound("recompute"),
    }
    if pp is not None and pp.value == 1:
        values["schedule"] = pp.of("1f1b")
    return values


def _training(document: WrittenDocument) -> Fields:
    values = document.bound("mbs", "sequence_length", "zero", "precision", "optimizer")
    if "zero" in values and values["zero"].value > 1:
        document.refuse("nanotron has ZeRO stages 0 and 1", "zero")
    former = document.given("earlier_adam")
    if former is not None and "optimizer" not in values:
        # Before there were several, the section of the optimizer had Adam's settings.
        values["optimizer"] = replace(former, value="adamw")
    return values | document.bound("gradients")


def _devices(document: WrittenDocument, file: LaunchFile, values: Fields) -> None:
    """Add the devices, which are the product of the degrees, and the batch of a step."""
    degrees = [values[key] for key in ("tp", "cp", "dp", "pp")]
    count = math.prod(written.value for written in degrees)
    words = " ".join(written.words for written in degrees if written.words)
    if file.devices is not None and file.devices != count:
        document.refuse(f"{words}: {count} devices, and not --devices {file.devices}", "parallelism")
    values["devices"] = Written(count, values["dp"].line, words)
    steps, mbs = document.number("steps"), values.get("mbs")
    if steps is not None and mbs is not None:
        batch = steps.value * mbs.value * values["dp"].value
        values["global_batch_size"] = Written(batch, steps.line, f"{mbs.words} {steps.words}")


def _model(document: WrittenDocument) -> ModelSpec | None:
    """Return the model; None, with a note, for a class that is not known."""
    prefix = f"{document.path('model')}."
    fields = {
        path.removeprefix(prefix): written.value
        for path, written in document.entries.items()
        if path.startswith(prefix) and "." not in path.removeprefix(prefix)
    }
    family = next((name for sign, name in _TABLE.data["families"].items() if fields.get(sign) is True), None)
    other = next((kind for sign, kind in _TABLE.data["other_families"].items() if fields.get(sign)), None)
    if other is not None:
        document.refuse(f"it is {other}, and plans are of decoder-only transformers", "model")
        return None
    if family is None:
        document.notes.append("the class of the model is not known: name the model in the job")
        return None
    stated = {key: value for key, value in fields.items() if value is not None}
    stated |= {
        "model_type": family,
        "qkv_bias": bool(fields.get(document.path("biased_attention").removeprefix(prefix))),
        "sliding_window": None,
    }
    window = document.path("window").removeprefix(prefix)
    if fields.get(window) is not None:
        document.notes.append(f"{window}: the model is read without a window")
    try:
        model = model_from_huggingface(stated, name="model-of-nanotron")
    except AutoplanError as error:
        document.refuse(f"no model: {error}", "model")
        return None
    return _with_experts(document, model)


def _with_experts(document: WrittenDocument, model: ModelSpec) -> ModelSpec:
    """Return the model with the experts of its section; their defaults are those of ``MoEConfig``."""
    if not document.section("experts"):
        return model
    sizes = document.bound("expert_count", "top_k", "expert_ffn_size")
    moe = {_EXPERTS.get(name, name): written.value for name, written in sizes.items()}
    shared, width = document.flag("shared_expert"), document.bound("shared_expert_ffn_size")
    if shared is not None and shared.value:
        moe |= {name: written.value for name, written in width.items()}
    layers = document.given("expert_layers")
    if layers is not None and layers.value not in ([-1], list(range(model.layers))):
        document.refuse("experts in some layers alone are not read", "expert_layers")
    return ModelSpec.model_validate({**model.model_dump(by_alias=True), "moe": moe})


def _described(model: ModelSpec) -> tuple[Mapping[str, Any] | str | None, list[str]]:
    """Return the name of the entry that a model is, or its description as in a model file."""
    fields = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return named_model({**fields, "source": "model_config of a file of nanotron"})


def _stages(model: ModelSpec, values: Values, document: WrittenDocument) -> Fields:
    pp = values["pp"]
    stages = balanced_stages(model, pp.value)
    if min(stages) < 1:
        shown = "/".join(map(str, stages))
        document.refuse(f"nanotron's balance gives the stages {shown} layers", "pp")
        document.stop_at_problems()
    return {"stages": pp.of(stages)} if pp.value > 1 else {}


def balanced_stages(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Return the layers of each stage: a stage is full once the costs up to it pass its share of the total.

    A layer costs the parameters of its projections, with as many key-value heads as query heads, and the
    output layer its own; the embedding costs nothing. A stage may be left with none. Source:
    huggingface/nanotron 2411b02, src/nanotron/models/base.py (build_model) and models/llama.py,
    models/qwen.py (get_block_compute_costs).

    >>> balanced_stages(load_entry("model", "llama3-8b"), 4)
    (9, 9, 8, 6)
    """
    layer = 4 * model.hidden_size**2 + 3 * model.ffn_size * model.hidden_size
    head = model.vocabulary * model.hidden_size
    costs = [*accumulate([layer] * model.layers), layer * model.layers + head]
    stages = [0] * pp
    stage = 0
    for cost in costs[:-1]:
        stages[stage] += 1
        if stage + 1 < pp and cost > costs[-1] * ((stage + 1) / pp):
            stage += 1
    return tuple(stages)


def nanotron_document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of a plan; raises InexpressibleError for the first part that has none."""
    _refuse(job, layout)
    values = {
        **plan_values(_TABLE, "written", job, layout),
        "schedule": _TABLE["schedule"].names["gpipe" if layout.schedule == "gpipe" else "1f1b"],
        "sp": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
        "recompute": layout.mode == "full",
        "steps": microbatches(job, layout),
        "zero": layout.zero,
    }
    return nested(_TABLE, values)


def _refuse(job: Job, layout: Layout) -> None:
    refuse_software(job, ("gradients",))
    refuse_order(layout)
    for part, lacking, change in _lacking(layout):
        if lacking:
            raise InexpressibleError(part, [replace(layout, **change)])
    if layout.mode not in {"none", "full"} or layout.recompute_num_layers > 1:
        one = replace(layout, recompute_num_layers=1)
        part = f"recompute that is selective, of some layers or of units (recompute={layout.recompute})"
        raise InexpressibleError(part, [one.with_uniform_recompute(mode) for mode in ("none", "full")])
    stages = balanced_stages(job.model, layout.pp)
    if layout.layers != stages:
        shown = "/".join(map(str, stages))
        near = replace(layout, layers=stages, recomputed=()) if min(stages) > 0 else None
        part = f"stages of {layout.layers} layers: its balance gives {shown}"
        raise InexpressibleError(part, [near.with_uniform_recompute(layout.mode)] if near else [])


def _lacking(layout: Layout) -> Iterator[tuple[str, bool, dict[str, Any]]]:
    """Yield the parts that nanotron lacks, whether the layout has them, and it without them."""
    yield "virtual stages", layout.vpp > 1, {"vpp": 1, "schedule": "1f1b"}
    other = layout.schedule not in {"1f1b", "gpipe"}
    yield f"the schedule {layout.schedule}", other, {"schedule": "1f1b"}
    yield "ZeRO-2 and ZeRO-3", layout.zero > 1, {"zero": 1, "dp_shard": 0}
    yield "hybrid sharding", layout.dp_shard > 0, {"dp_shard": 0}
    yield "expert parallelism", layout.ep > 1, {"ep": 1}
    yield "experts with a degree of their own", layout.etp != layout.tp, {"expert_tensor": 0}
    yield "offload to host memory", layout.offload != "none", _NOTHING_OFFLOADED


def nanotron_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file that make its layout ``new``."""
    del old
    return layout_edits(_TABLE, read_yaml(file).entries, nanotron_document(job, new), _DEFAULTS)


TARGET: Final = target_of(_TABLE, recognises=is_nanotron, read=read_nanotron, edits=nanotron_edits)
