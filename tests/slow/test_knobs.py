"""Every knob that a stack's file states moves something that is predicted, or what may be run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from autoplan.catalog import resolve_job, stack
from autoplan.costs.predict import facts_of, predict
from autoplan.errors import AutoplanError
from autoplan.results.front import order_noise
from autoplan.results.plan import Plan
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.post_training import RLSpec

STACKS = Path(__file__).resolve().parents[2] / "costmodels" / "stacks"
#: What names and explains a stack: no knobs. Which target starts it and which files are read as its jobs
#: changes what is written and read, which ``tests/unit/launch/test_stack_targets.py`` holds.
TEXTS = frozenset(
    {"schema", "kind", "name", "extends", "title", "description", "sources", "launched_by", "files_of"}
)
#: Parts of a sourced number beside its value.
PAPERS = frozenset({"kind", "source", "note"})

#: Questions that together use every mechanism: model, hardware, devices, precision, sequence, batch; layouts.
QUESTIONS = (
    (
        ("llama3-8b", "dgx-a100-80gb", 8, "bf16", 4096, 64),
        (
            "dp=8,mbs=2,zero=3",
            "dp=8,mbs=2,zero=2",
            "dp=8,mbs=1,zero=1,recompute=full",
            "dp=8,mbs=1,zero=0,recompute=selective",
            "tp=2,dp=4,mbs=2,zero=1,sp=on,recompute=selective",
            "tp=2,dp=4,mbs=2,zero=1,sp=on,recompute=full",
            "tp=2,dp=4,mbs=2,zero=3,sp=on,recompute=full",
            "tp=2,dp=4,mbs=2,zero=1,sp=off",
            "tp=2,dp=4,mbs=2,zero=0,sp=off",
            "tp=2,dp=4,mbs=2,zero=3,sp=off",
            "tp=8,mbs=2",
            "tp=2,cp=2,dp=2,mbs=1,order=tp-pp-cp-dp",
            "tp=2,pp=2,cp=2,mbs=1,order=tp-cp-pp-dp",
            "tp=2,pp=2,dp=2,mbs=1,zero=1,sp=on",
            "tp=2,pp=2,dp=2,mbs=1,zero=0,sp=off",
            "tp=2,pp=2,dp=2,mbs=1,vpp=2,schedule=interleaved",
            "pp=4,dp=2,mbs=1,schedule=gpipe",
            "pp=4,dp=2,mbs=1,schedule=zero-bubble",
            "pp=2,dp=4,mbs=1,stages=17/15",
            "dp=4,cp=2,mbs=1",
            "tp=2,pp=2,dp=2,mbs=1,order=tp-pp-cp-dp",
            "dp=8,mbs=1,zero=1,offload=optimizer",
            "dp=8,mbs=8,zero=3",
            "dp=8,mbs=1,zero=3,offload=optimizer",
            "dp=8,mbs=1,zero=3,recompute=full,recompute_num_layers=4",
            "dp=8,mbs=1,zero=3,recompute=full,offload=activations",
            "dp=8,mbs=1,zero=2,recompute=full,offload=activations",
            "dp=8,mbs=1,zero=1,recompute=full,offload=activations",
            "tp=2,pp=2,dp=2,mbs=1,zero=1,recompute=full,offload=activations",
            "dp=8,mbs=1,zero=1,offload=activations",
            "dp=8,mbs=1,zero=0,recompute=full,offload=activations",
            "dp=8,mbs=1,zero=0,recompute=full,offload=activations,offload_every=2",
            "dp=8,mbs=1,zero=3,recompute=full,offload=activations,offload_every=2",
            "dp=8,mbs=1,zero=1,recompute=full,offload=activations,offload_every=2",
            "tp=2,pp=2,dp=2,mbs=1,recompute=full,offload=activations,offload_every=2",
        ),
    ),
    (
        ("llama3-8b", "dgx-h100", 16, "fp8", 4096, 64),
        (
            "dp=16,mbs=1,zero=3",
            "dp=16,mbs=1,zero=3,dp_shard=8",
            "dp=16,mbs=1,zero=1",
            "dp=16,mbs=1,zero=1,dp_shard=8",
            "tp=2,dp=8,mbs=1,zero=1,sp=on",
            "tp=2,pp=2,dp=4,mbs=1,zero=1,sp=on,order=tp-pp-cp-dp",
            "tp=2,dp=8,mbs=2,zero=3,sp=on",
            "dp=8,cp=2,mbs=1",
            "tp=2,pp=2,cp=2,dp=2,mbs=1,zero=1,order=tp-cp-pp-dp",
        ),
    ),
    (
        ("gpt3-1.3b", "dgx-a100-80gb", 8, "fp16", 2048, 64),
        (
            "dp=8,mbs=4",
            "dp=8,mbs=4,zero=0",
            "dp=8,mbs=4,zero=1",
            "dp=8,mbs=4,zero=2",
            "tp=2,dp=4,mbs=4,zero=0,sp=off",
            "tp=2,dp=4,mbs=4,zero=1,sp=on",
            "tp=2,pp=2,dp=2,mbs=2,zero=0,recompute=selective",
            "pp=4,dp=2,mbs=1,zero=0",
        ),
    ),
    (
        ("mixtral-8x7b", "hgx-h200", 8, "bf16", 2048, 64),
        (
            "ep=8,mbs=1,zero=1",
            "ep=4,mbs=1,zero=3,recompute=selective",
            "tp=2,ep=4,mbs=1,sp=on,zero=1,etp=1",
            "tp=2,ep=2,mbs=1,sp=off,zero=1",
            "tp=2,ep=4,mbs=1,sp=on,zero=1,etp=2",
            "ep=1,dp=8,mbs=1,zero=3",
            "dp=8,mbs=1,zero=1",
            "dp=8,mbs=1",
        ),
    ),
    # Its experts have biases and a clamp.
    (("gpt-oss-20b", "hgx-h200", 8, "bf16", 2048, 64), ("ep=8,mbs=1,zero=1",)),
    # Its logits take more memory than its layers.
    (
        ("qwen2.5-0.5b", "dgx-a100-80gb", 8, "bf16", 2048, 128),
        ("dp=8,mbs=16,zero=1,recompute=full", "dp=8,mbs=16,zero=3,recompute=full"),
    ),
    (("llama3.2-1b", "dgx-h100", 1, "fp8", 2048, 8), ("mbs=1", "mbs=1,zero=2")),
    # Rings through the memory of a host, and sends between nodes.
    (("gpt3-1.3b", "2x-rtx3090", 2, "bf16", 2048, 16), ("dp=2,mbs=1,zero=3", "dp=2,mbs=1,zero=0")),
    (("llama3-8b", "dgx-h100", 16, "bf16", 4096, 64), ("tp=8,pp=2,mbs=1",)),
    (
        ("llama3.1-405b", "dgx-h100", 128, "bf16", 4096, 64),
        ("tp=8,pp=8,dp=2,mbs=1,vpp=8,schedule=interleaved,stages=15/16/16/16/16/16/16/15",),
    ),
    *(
        (
            ("llama3-8b", "dgx-b200", 8, precision, 4096, 64),
            ("dp=8,mbs=1,zero=0", "dp=8,mbs=1,zero=1", "tp=2,dp=4,mbs=1,sp=on"),
        )
        for precision in ("mxfp8", "nvfp4")
    ),
    (("llama3-8b", "dgx-a100-80gb", 8, "fp32", 2048, 64), ("dp=8,mbs=1,zero=3", "dp=8,mbs=1,zero=0")),
    (
        ("gemma2-9b", "dgx-h100", 8, "bf16", 4096, 64),
        ("dp=8,mbs=1,zero=3", "tp=2,dp=4,mbs=1,zero=1,sp=on", "tp=2,dp=4,mbs=1,zero=3,sp=on"),
    ),
)


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of the knobs that a file states; a sourced number is one knob."""
    paths = []
    for key, value in tree.items():
        if (not path and key in TEXTS) or (path and key in PAPERS):
            continue
        if isinstance(value, dict) and not {"value"} & value.keys():
            paths += leaves(value, (*path, key))
        elif value is not None:
            paths.append((*path, key))
    return paths


STATED = [
    (file.stem, path)
    for file in sorted(STACKS.glob("*.yaml"))
    for path in leaves(yaml.safe_load(file.read_text(encoding="utf-8")))
]


@cache
def jobs(name: str):
    """Return the questions that ``name`` can be asked, each with its layouts."""
    asked = []
    for (model, hardware, devices, precision, sequence, batch), layouts in QUESTIONS:
        workload = Workload(sequence_length=sequence, global_batch_size=batch)
        spec = JobSpec(
            kind="training",
            model=model,
            hardware=hardware,
            devices=devices,
            precision=precision,
            stack=name,
            workload=workload,
            search={"offload": ("none", "optimizer", "activations", "optimizer+activations")},
        )
        try:
            job = resolve_job(spec)
        except AutoplanError:
            continue
        asked.append((job, layouts))
        if precision == "bf16" and model == "llama3-8b":
            asked += fine_tunes(job, layouts)
        if precision == "bf16" and job.model.moe is not None:
            for more in ({"base": "nf4"}, {"experts": True}):
                adapters = AdapterSpec(rank=8, targets="attention", **more)
                asked.append((replace(job, adapters=adapters), ("dp=8,mbs=1,zero=3", "dp=8,mbs=1,zero=0")))
    return asked


def fine_tunes(job, layouts):
    """Return fine-tunes of ``job``: adapters on each base, DoRA, pages, DPO, and choices of software."""
    bases = (None, "nf4", "fp4", "int8")
    adapted = [replace(job, adapters=AdapterSpec(rank=8, base=base)) for base in bases]
    adapted.append(replace(job, adapters=AdapterSpec(rank=8, dora=True)))
    choices = ({"frozen_weights": "fp32"}, {"fused_adapters": True})
    adapted += [replace(adapted[0], software=SoftwareSpec(**chosen)) for chosen in choices]
    adapted.append(replace(job, optimizer="paged-adamw-8bit"))
    adapted.append(replace(job, rl=RLSpec(method="dpo")))
    software = (
        {"optimizer_in_backward": True},
        {"offload_parameters": True},
        {"compile": True},
        {"attention": "eager"},
        {"attention": "masked"},
        {"gelu": "formula", "dropout": True},
        {"host_waits": 100},
        {"deterministic": True},
    )
    adapted += [replace(job, software=SoftwareSpec(**chosen)) for chosen in software]
    return [(one, (*layouts[:3], "dp=8,mbs=8,zero=3", "dp=8,mbs=8,zero=0")) for one in adapted]


def answers(spec: StackSpec):
    """Yield what ``spec`` says of every question: the rules that a layout breaks, or its prediction.

    Of the layouts of a question, it also says which it cannot tell apart from the fastest.
    """
    for job, layouts in jobs(spec.name):
        mine, plans = replace(job, stack=with_software(spec, job.software)), []
        for text in layouts:
            try:
                default = spec.rules.default_zero
                layout = parse_layout(
                    text, layers=job.model.layers, devices=job.cluster.devices, zero=default
                )
            except AutoplanError:
                continue
            broken = broken_rules(mine, layout)
            if broken:
                yield text, tuple(broken)
                continue
            p = predict(mine, layout)
            stages = tuple((s.total, s.total_low, s.total_high, s.allocated) for s in p.memory.stages)
            reported = p.peak_memory_bytes_low, p.peak_memory_bytes_high
            yield text, (p.step_seconds, p.step_seconds_low, p.step_seconds_high, reported, stages)
            plans.append(Plan(layout, p, facts_of(mine)))
        yield job.name, order_noise(plans, spec)


@cache
def shipped(name: str):
    """Return the answers of a stack as it is."""
    return tuple(answers(stack(name)))


def others(model: type[BaseModel], field: str, value: Any) -> list[Any]:
    """Return values that a knob might have instead."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1, 2 * value + 2, 0, 3, value + 20]
        case tuple():
            return [value[1:], value[:-1], ()]
        case str():
            hint = model.model_fields[field].annotation
            names = next((x for x in (hint, *get_args(hint)) if get_origin(x) is Literal), None)
            return [x for x in get_args(names) if x != value]
    numbers = {k: getattr(value, k) for k in ("value", "low", "high") if hasattr(value, k)}
    return [value.model_copy(update={k: s * x for k, x in numbers.items()}) for s in (0.5, 0.1, 2.0)]


def moved(spec: BaseModel, path: tuple[str, ...]) -> list[Any]:
    """Return ``spec`` with the knob at ``path`` at each other value."""
    head, *rest = path
    if isinstance(spec, dict):
        return [{**spec, head: inner} for inner in moved(spec[head], tuple(rest))]
    value = getattr(spec, head)
    if rest:
        inner = moved(value, tuple(rest))
        return [spec.model_copy(update={head: x}) for x in inner]
    return [spec.model_copy(update={head: x}) for x in others(type(spec), head, value)]


def differs(changed, before):
    """Return whether a changed stack answers otherwise; one that answers nothing says nothing."""
    try:
        return any(one != other for one, other in zip(answers(changed), before, strict=True))
    except (ValueError, KeyError, ZeroDivisionError):
        return False


@pytest.mark.parametrize(("name", "path"), STATED, ids=lambda x: x if isinstance(x, str) else ".".join(x))
def test_a_knob_that_a_stack_states_moves_an_answer(name, path):
    """A knob that changes no prediction and no rule is none: it does not belong in the file."""
    assert any(differs(changed, shipped(name)) for changed in moved(stack(name), path)), (
        f"{name}: {'.'.join(path)} changes no answer, whatever its value"
    )
