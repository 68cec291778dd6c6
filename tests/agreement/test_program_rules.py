"""What the rules of a program allow is what its launch target can write, layout by layout."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import get_args

import pytest

from autoplan.catalog import entry_names, resolve_job
from autoplan.catalog.programs import program, rules_of
from autoplan.errors import AutoplanError
from autoplan.launch.registry import find_target
from autoplan.launch.target import InexpressibleError, PlannedRun
from autoplan.rules.layout_rules import broken_rules, missing_fine_tuning
from autoplan.rules.user_constraints import breaks
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import parse_layout
from autoplan.schema.precision import Optimizer, Precision
from autoplan.schema.program import lacks

WRITTEN = [
    (name, way) for name in entry_names("program") for way in program(name).ways if way.target is not None
]
JOBS = {
    "dense": {"model": "llama3-8b", "hardware": "dgx-h100", "devices": 8},
    "experts": {"model": "mixtral-8x7b", "hardware": "dgx-h100", "devices": 16},
}
#: Ways, and the jobs that each runs.
WAYS = [(name, way.title, kind) for name, way in WRITTEN for kind in JOBS if way.experts or kind != "experts"]
LAYOUTS = 2_000
FEW = 150
DEGREES = (1, 1, 1, 2, 2, 4, 8)


def job(kind, name, way):
    """Return a job that ``way`` of the program ``name`` runs, one choice for each way that does."""
    workload = Workload(sequence_length=4096, global_batch_size=64)
    more = {"optimizer": "adamw" if "adamw" in way.optimizers else way.optimizers[0]}
    if "pretrain" not in way.tasks and "fine-tune" not in way.tasks:
        targets = "attention" if kind == "experts" else "all"
        base = way.bases[0] if "base" in way.needs else None
        more["adapters"] = AdapterSpec(rank=8, targets=targets, base=base)
    if "pure_bf16" in way.needs:
        more["software"] = SoftwareSpec(pure_bf16=True)
    alone = {"devices": 1} if any(rule.rule == "dp == 1" for rule in way.rules) else {}
    where = {**JOBS[kind], **alone}
    return resolve_job(JobSpec(kind="training", workload=workload, program=name, **where, **more))


def texts(kind, devices, layers, draw, count):
    """Yield layout strings at random, most of them of unusual parts."""
    for index in range(count):
        # Every fourth is of data-parallel ranks alone, as some programs train.
        tp, pp, cp = (draw.choice(DEGREES) if index % 4 else 1 for _ in range(3))
        if devices % (tp * pp * cp):
            continue
        ep = draw.choice((1, 2, 4)) if kind == "experts" and index % 4 else 1
        keys = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "mbs": 1, "zero": draw.choice((0, 1, 2, 3))}
        keys["sp"] = draw.choice(("on", "off"))
        keys["recompute"] = draw.choice(
            (
                "none",
                "none",
                "selective",
                "mlp",
                "layernorm_moe_act",
                "full",
                "full:2",
                "full:4",
                "mlp:2",
                "full:2/none",
            )
        )
        if pp > 1:
            keys["schedule"] = draw.choice(("1f1b", "1f1b", "gpipe", "interleaved", "zero-bubble"))
            keys["vpp"] = draw.choice((2, 4)) if keys["schedule"] == "interleaved" else 1
            if pp == 2 and draw.random() < 0.4:
                keys["stages"] = f"{layers // 2 + 1}/{layers // 2 - 1}"
        if draw.random() < 0.2:
            keys["order"] = draw.choice(("tp-cp-pp-dp", "tp-pp-cp-dp"))
        if draw.random() < 0.2:
            keys["offload"] = draw.choice(("optimizer", "activations", "optimizer+activations"))
        if draw.random() < 0.2:
            keys["dp_shard"] = draw.choice((2, 4))
        if kind == "experts" and draw.random() < 0.3:
            keys["etp"] = draw.choice((1, 2))
        yield ",".join(f"{key}={value}" for key, value in keys.items())


def layouts(one, kind, count):
    """Yield the layouts of ``texts`` that the stack of ``one`` runs, whatever its program can express."""
    free, draw = replace(one, program=None, choices=()), random.Random(5)  # noqa: S311 - layouts are no secret
    layers = one.model.layers
    for text in texts(kind, one.cluster.devices, layers, draw, count):
        try:
            layout = parse_layout(text, layers=layers, devices=one.cluster.devices, zero=0)
        except AutoplanError:
            continue
        if not broken_rules(free, layout):
            yield layout


@pytest.mark.parametrize("count", [FEW, pytest.param(LAYOUTS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "title", "kind"), WAYS)
def test_a_program_allows_what_its_target_writes(name, title, kind, count):
    """One truth: what the search leaves out for a program is what ``emit`` would refuse."""
    base = job(kind, name, next(way for one, way in WRITTEN if (one, way.title) == (name, title)))
    one = next(choice for choice in base.choices or (base,) if choice.program.way == title)
    target, seen = find_target(one.program.target), {True: 0, False: 0}
    for layout in layouts(one, kind, count):
        allowed = not any(breaks(one, rule.relation, layout) for rule in one.program.rules)
        try:
            target.emit(PlannedRun(one, layout))
            written, why = True, ""
        except InexpressibleError as error:
            written, why = False, str(error)
        assert allowed == written, f"{layout}: {'allowed' if allowed else 'excluded'}, {why or 'written'}"
        seen[allowed] += 1
    assert seen[True] or count == FEW, "no layout is allowed"


#: Adapters of every kind, by what each has besides rank and targets.
ADAPTERS = {
    "plain": {},
    "attention": {"targets": "attention"},
    "single GEMMs": {"targets": ("q_proj", "v_proj")},
    "DoRA": {"dora": True},
    "dropout": {"dropout": 0.1},
    "nf4": {"base": "nf4"},
    "plain scales": {"base": "nf4", "double_quantization": False},
    "fp4": {"base": "fp4"},
    "int8": {"base": "int8"},
}
TRAINS_ADAPTERS = [(name, way) for name, way in WRITTEN if "adapters" in way.tasks]


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit"])
@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize(("name", "way"), TRAINS_ADAPTERS, ids=lambda x: getattr(x, "title", x))
def test_a_way_has_the_adapters_that_its_target_writes(name, way, kind, optimizer):
    """What a program lacks of adapters and optimizer is what ``emit`` would refuse, and nothing else."""
    pure = "pure_bf16" in way.needs
    spec = JobSpec(
        kind="training",
        model="llama3-8b",
        hardware="dgx-h100",
        devices=2,
        stack=way.stack,
        workload=Workload(sequence_length=4096, global_batch_size=8),
        optimizer=optimizer,
        adapters=AdapterSpec(rank=8, **ADAPTERS[kind]),
        software=SoftwareSpec(pure_bf16=True) if pure else SoftwareSpec(),
    )
    one = resolve_job(spec)
    rules = rules_of(way, one)
    written = []
    for text in ("dp=1,zero=0", "dp=2,zero=0", "dp=2,zero=2,recompute=full", "dp=2,zero=3,recompute=full"):
        layout = parse_layout(text, layers=one.model.layers, devices=int(text[3]))
        keeps = not broken_rules(one, layout) and not any(breaks(one, r.relation, layout) for r in rules)
        if keeps:
            try:
                written.append(bool(find_target(way.target).emit(PlannedRun(one, layout))))
            except InexpressibleError:
                written.append(False)
    missing = lacks(way, one)
    if missing is None:
        assert all(written)
    elif missing_fine_tuning(one, one.stack) is None and missing != f"no {optimizer}":
        assert not any(written), missing


#: Jobs whose choices are changed one by one.
TASKS = {
    "all": {},
    "adapters": {"adapters": AdapterSpec(rank=8, targets="attention")},
    "pairs": {"adapters": AdapterSpec(rank=8, targets="attention"), "rl": "dpo"},
    "experts": {"model": "mixtral-8x7b", "adapters": AdapterSpec(rank=8, targets="attention")},
}
FEW_LAYOUTS = ("zero=0", "zero=1,offload=optimizer", "zero=2,recompute=full", "zero=3,recompute=full")
MORE_LAYOUTS = ("tp=2,pp=2,dp=2,zero=0", "pp=2,dp=4,zero=1,recompute=full")


def single_choices():
    """Yield every value of a job's precision, optimizer and software, one at a time."""
    for key, kind in (("precision", Precision), ("optimizer", Optimizer)):
        yield from ({key: value} for value in get_args(kind))
    for key, field in SoftwareSpec.model_fields.items():
        parts = [part for part in get_args(field.annotation) if part is not type(None)]
        values = {bool: (True, False), int: (8,)}.get(parts[0], get_args(parts[0]))
        yield from (
            {"software": SoftwareSpec(**{key: value})} for value in values if isinstance(value, str | int)
        )


def jobs_of_choices(way, task):
    """Yield jobs of a way, each with one choice, and what is chosen; none that no job can have."""
    least = {"optimizer": "adamw" if "adamw" in way.optimizers else way.optimizers[0]}
    least["software"] = SoftwareSpec(pure_bf16=True) if "pure_bf16" in way.needs else SoftwareSpec()
    if "base" in way.needs and "adapters" in task:
        task = {**task, "adapters": AdapterSpec(rank=8, targets="attention", base=way.bases[0])}
    alone = any(rule.rule == "dp == 1" for rule in way.rules)
    work = Workload(sequence_length=4096, global_batch_size=8)
    where = {"model": "llama3-8b", "hardware": "dgx-h100", "devices": 1 if alone else 8, "stack": way.stack}
    for choice in single_choices():
        fields = {"kind": "training", "workload": work, **where, **least, **task, **choice}
        with suppress(AutoplanError, ValueError):
            yield choice, resolve_job(JobSpec(**fields))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("name", "way"), WRITTEN, ids=lambda x: getattr(x, "title", x))
def test_what_a_way_does_not_lack_is_written(name, way, task):
    """Each single value of precision, optimizer and software is a lack, a rule, or in the program's file."""
    target, kept = find_target(way.target), 0
    for choice, one in jobs_of_choices(way, TASKS[task]):
        if lacks(way, one) is not None:
            continue
        for text in (*FEW_LAYOUTS, *(MORE_LAYOUTS if one.cluster.devices > 1 else ())):
            layout = parse_layout(text, layers=one.model.layers, devices=one.cluster.devices)
            rules = rules_of(way, one)
            if broken_rules(one, layout) or any(breaks(one, rule.relation, layout) for rule in rules):
                continue
            kept += 1
            assert target.emit(PlannedRun(one, layout)).files, (choice, text)
    assert kept or not {"adapters": {"adapters"}, "all": {"pretrain", "fine-tune"}}.get(task, set()) & {
        *way.tasks
    }


@pytest.mark.parametrize("name", entry_names("model"))
def test_megatron_lm_lacks_the_parts_of_models_that_it_has_no_argument_for(name):
    """What its file says that it is without is what ``emit`` refuses of every model of the catalogue."""
    (way,) = program("megatron-lm").ways
    workload = Workload(sequence_length=1024, global_batch_size=64)
    where = {"model": name, "hardware": "dgx-h100", "stack": way.stack}
    one = resolve_job(JobSpec(kind="training", workload=workload, **where))
    layout = parse_layout("dp=8,zero=1", layers=one.model.layers, devices=8)
    try:
        written = bool(find_target(way.target).emit(PlannedRun(one, layout)))
    except InexpressibleError:
        written = False
    assert written == (lacks(way, one) is None)


@pytest.mark.parametrize(
    ("model", "name", "missing"),
    [
        ("pythia-6.9b", "torchtitan", "no MLP without a gate"),
        ("pythia-6.9b", "megatron-bridge", "no attention and MLP in parallel"),
        ("pythia-6.9b", "litgpt", None),
        ("gemma2-9b", "torchtitan", "no activation geglu"),
        ("gemma2-9b", "megatron-bridge", None),
        ("gemma2-9b", "torchtune", None),
        ("olmo2-7b", "megatron-lm", "no norms of queries and keys over all heads"),
        ("olmo2-7b", "litgpt", None),
        ("minimax-m2", "megatron-bridge", None),
        ("gpt-oss-20b", "torchtitan", None),
        ("mistral-7b", "torchtitan", "no sliding windows without attention sinks"),
        ("qwen3-8b", "torchtune", "no norms of queries and keys"),
        ("qwen3-8b", "torchtitan", None),
        ("starcoder2-7b", "torchtitan", "no MLP without a gate"),
        ("starcoder2-7b", "megatron-bridge", None),
    ],
)
def test_a_program_plans_the_models_that_its_source_has(model, name, missing):
    """Facts of each program's model definitions, at a sequence longer than Mistral's window."""
    workload = Workload(sequence_length=8192, global_batch_size=64)
    longer = resolve_job(
        JobSpec(kind="training", workload=workload, model=model, hardware="dgx-h100", program="any-layout")
    )

    assert lacks(program(name).ways[0], longer) == missing
