"""The target ``accelerate``: the YAML file of ``accelerate launch``: FSDP2, DeepSpeed or Megatron-LM.

Keys are those of ``commands/config/config_args.py``, ``commands/launch.py``, ``utils/launch.py`` and of the
plugins in ``utils/dataclasses.py`` of the version that TARGET names. Batches are no part of the file: they
are arguments of the training program, named as the Hugging Face Trainer has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from autoplan.launch.bindings.interface import argument_words, nested, plan_values, target_of
from autoplan.launch.bindings.written_document import KeyEdit, changed_keys, key_edits, read_yaml
from autoplan.launch.configuration import FileEdit, LaunchFile, Values
from autoplan.launch.emitted_text import yaml_file
from autoplan.launch.frameworks import missing_parts
from autoplan.launch.frameworks.accelerate_values import (
    ACCELERATE,
    is_accelerate,
    is_launch_script,
    read_accelerate,
)
from autoplan.launch.frameworks.deepspeed import refuse_for_zero
from autoplan.launch.frameworks.megatron.megatron_lm import dropout_rate
from autoplan.launch.target import Emission, InexpressibleError, PlannedRun
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.post_training import RL_METHODS
from autoplan.schema.stage_layers import even_stages

_FILE: Final = "accelerate.yaml"
_STAGES: Final = "it has stages in the Megatron section alone (a stack of Megatron-LM)"
_KINDS: Final[Mapping[str, str]] = ACCELERATE.data["kinds"]
#: What distributed_type calls each kind of section.
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
#: FSDP1's strategies without groups, by ZeRO stage.
_STRATEGIES: Final = {
    zero: name.upper() for name, (zero, hybrid) in ACCELERATE.data["strategies"].items() if not hybrid
}
_Values = dict[str, Any]


def emit_accelerate(run: PlannedRun) -> Emission:
    """Return the plan as a file, its section by stack and ZeRO, and arguments; raises InexpressibleError."""
    job, layout = run.job, run.layout
    kind = _kind(job, layout)
    missing_parts.refuse_software(job, ("offload_parameters",) if kind == "deepspeed" else (), rl=RL_METHODS)
    if job.precision not in ACCELERATE["precision"].names:
        raise InexpressibleError(f"the precision {job.precision}, whose recipe is chosen in fp8_config")
    document = nested(ACCELERATE, _machines(job, layout) | _SECTIONS[kind](job, layout))
    arguments = _arguments(job, layout, kind)
    usage = f"usage: accelerate launch --config_file {_FILE} train.py {' '.join(arguments)}"
    notes = (f"the optimizer, {job.optimizer}, is created by the training program", *_notes(job))
    return Emission((yaml_file(_FILE, document, (*run.header, usage)),), arguments, notes=notes)


def _kind(job: Job, layout: Layout) -> str:
    stack = job.stack.name
    if stack.startswith("megatron"):
        return "megatron"
    if stack.startswith("deepspeed"):
        return "deepspeed"
    return "fsdp" if layout.zero or layout.tp * layout.cp > 1 else "replicas"


def _machines(job: Job, layout: Layout) -> _Values:
    nodes = max(1, -(-layout.devices // job.cluster.node.devices))
    values = plan_values(ACCELERATE, "machines", job, layout)
    return {"environment": "LOCAL_MACHINE", "machines": nodes, **values}


def _replicas(job: Job, layout: Layout) -> _Values:
    """Return the keys of DistributedDataParallel, or of a single process."""
    del job
    if layout.activation_offload:
        part = f"offload without FSDP or DeepSpeed (zero=0, offload={layout.offload})"
        raise InexpressibleError(part, [missing_parts.resident(layout)])
    missing_parts.refuse_for_replicas(layout, _STAGES)
    return {"kind": "MULTI_GPU" if layout.devices > 1 else "NO"}


def _fsdp(job: Job, layout: Layout) -> _Values:
    """Return the sections ``fsdp_config`` and ``parallelism_config``."""
    del job
    missing_parts.refuse_for_fsdp(layout, _STAGES)
    replicate, shard = missing_parts.mesh_sizes(layout)
    return {
        "kind": _NAMES["fsdp"],
        "fsdp_version": 2,
        "resharded": layout.zero == 3,
        "wrapped": "TRANSFORMER_BASED_WRAP",
        "checkpoint_format": "SHARDED_STATE_DICT",
        "recompute": layout.mode == "full",
        "activation_offload": layout.activation_offload,
        "replicas": replicate,
        "shards": shard,
        "mesh_tp": layout.tp,
        "mesh_cp": layout.cp,
    }


def _deepspeed(job: Job, layout: Layout) -> _Values:
    """Return the section ``deepspeed_config``."""
    if layout.tp * layout.cp > 1:
        part = f"tensor and context parallelism with DeepSpeed (tp={layout.tp}, cp={layout.cp})"
        raise InexpressibleError(part, [missing_parts.with_data_alone(layout)])
    refuse_for_zero(job, layout)
    if layout.activation_offload:
        part = "offload of activations, a section of DeepSpeed's own file (deepspeed_config_file)"
        raise InexpressibleError(part, [replace(layout, activation_offload=False)])
    return {
        "kind": _NAMES["deepspeed"],
        "zero": layout.zero,
        "deepspeed_steps": missing_parts.microbatches(job, layout),
        "optimizer_offload": "cpu" if layout.optimizer_offload else "none",
        "parameter_offload": "cpu" if job.software.offload_parameters else "none",
        "zero3_init": layout.zero == 3,
    }


def _megatron(job: Job, layout: Layout) -> _Values:
    """Return the whole ``megatron_lm_config``: its defaults are cp=2 and a dropout of 0.1."""
    _refuse_for_megatron(layout)
    last = layout.layers[-1]
    return {
        "kind": _NAMES["megatron"],
        **plan_values(ACCELERATE, "megatron", job, layout),
        "steps": missing_parts.microbatches(job, layout),
        "sp": layout.sequence_parallel,
        "recompute_kind": "full",
        "recompute_method": "uniform",
        "distributed_optimizer": layout.zero == 1,
        "megatron_offload": layout.optimizer_offload,
        "clipping": 1.0,
        "attention_dropout": dropout_rate(job),
        "hidden_dropout": dropout_rate(job),
        "last_stage": last if last != layout.layers[0] else None,
    }


def _refuse_for_megatron(layout: Layout) -> None:
    missing_parts.refuse_order(layout)
    alone = {"cp": 1, "dp": layout.dp * layout.cp}
    even = {"layers": even_stages(sum(layout.layers), layout.pp)}
    lacking: tuple[tuple[str, bool, dict[str, Any]], ...] = (
        ("context parallelism, which its data-parallel degree does not count", layout.cp > 1, alone),
        ("ZeRO-2 and ZeRO-3", layout.zero > 1, {"zero": 1}),
        ("hybrid sharding", layout.dp_shard > 0, {}),
        ("offload of activations", layout.activation_offload, {"activation_offload": False}),
        ("virtual stages", layout.vpp > 1, {"vpp": 1, "schedule": "1f1b", **even}),
        (f"the schedule {layout.schedule}", layout.schedule != "1f1b", {"schedule": "1f1b"}),
        ("stages other than even ones", not layout.even, even),
    )
    for part, present, change in lacking:
        if present:
            plain = replace(layout, recomputed=(), dp_shard=0, **change)
            raise InexpressibleError(part, [plain.with_uniform_recompute("full")])
    if layout.mode != "full":
        part = f"recompute={layout.recompute}: its plugin recomputes all of each layer unless told of some"
        raise InexpressibleError(part, [layout.with_uniform_recompute("full")])
    if len(set(layout.layers[:-1])) > 1:
        part = f"stages of {layout.layers} layers: only the last one may differ"
        raise InexpressibleError(part, [missing_parts.without_pipeline(layout)])


def _arguments(job: Job, layout: Layout, kind: str) -> tuple[str, ...]:
    """Return the arguments of the training program that the file has no key for."""
    recomputes = kind in {"replicas", "deepspeed"} and layout.mode == "full"
    values = {
        "mbs": layout.microbatch,
        "program_steps": missing_parts.microbatches(job, layout) if kind != "megatron" else None,
        "program_recompute": "true" if recomputes else None,
    }
    return tuple(word for words in argument_words(ACCELERATE, values) for word in words)


def _notes(job: Job) -> tuple[str, ...]:
    machines = "give each machine --machine_rank and all --main_process_ip"
    several = (machines,) if job.cluster.nodes > 1 else ()
    prefixes = ("fsdp2", "hf-", "ddp", "deepspeed", "megatron")
    return (*several, *missing_parts.stack_note(job, prefixes, "hf-fsdp2", "accelerate's FSDP2"))


_SECTIONS: Final[Mapping[str, Any]] = {
    "replicas": _replicas,
    "fsdp": _fsdp,
    "deepspeed": _deepspeed,
    "megatron": _megatron,
}


def accelerate_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file that make its layout ``new``; raises InexpressibleError without a key."""
    if is_launch_script(file):
        raise InexpressibleError("edits of a script that starts a program of its own")

    def documents(layout: Layout, kind: str) -> tuple[_Values, tuple[str, ...]]:
        return nested(ACCELERATE, _SECTIONS[kind](job, layout)), _arguments(job, layout, kind)

    entries = read_yaml(file).entries
    kind = _edited_kind(entries, new)
    after, words = documents(new, kind)
    try:
        before, old_words = documents(old, kind)
    except InexpressibleError:
        before, old_words = {}, ()
    wanted = list(changed_keys(before, after)) if before else _of_layout(entries, after)
    version = entries.get(ACCELERATE.keys["fsdp_version"])
    if kind == "fsdp" and (version is None or str(version.value) == "1"):
        wanted = _of_first(wanted, (old, new), after)
    return (*key_edits(entries, wanted), *_program_edits(file.arguments, old_words, words))


def _edited_kind(entries: Values, new: Layout) -> str:
    written = entries.get(ACCELERATE.keys["kind"])
    name = str(written.value) if written else ""
    plain = "fsdp" if new.zero or new.tp * new.cp > 1 else "replicas"
    return _KINDS.get(name, plain)


def _of_layout(entries: Values, after: Mapping[str, Any]) -> list[KeyEdit]:
    """Return the keys of a layout that follows one which has none: all in which the file differs."""
    return [
        edit
        for edit in changed_keys({}, after)
        if edit.path in entries or "." in edit.path or edit.path == ACCELERATE.keys["kind"]
    ]


def _of_first(
    wanted: list[KeyEdit],
    layouts: tuple[Layout, Layout],
    after: Mapping[str, Any],
) -> list[KeyEdit]:
    """Return the edits of a file of FSDP1: its strategy, or the keys of FSDP2 where it has none."""
    old, new = layouts
    keys = ACCELERATE.keys
    groups = bool(new.dp_shard or old.dp_shard)
    if new.tp * new.cp == 1 and not groups and new.zero in _STRATEGIES:
        first_edits = [edit for edit in wanted if edit.path not in (keys["resharded"], keys["fsdp_version"])]
        first_edits = [edit for edit in first_edits if not edit.path.startswith("parallelism_config")]
        return (
            [*first_edits, KeyEdit(keys["strategy"], _STRATEGIES[new.zero])]
            if old.zero != new.zero
            else first_edits
        )
    removed = [KeyEdit(path, None, removed=True) for path in ACCELERATE.data["former"]]
    return [*removed, *(edit for edit in changed_keys({}, after) if "." in edit.path)]


def _program_edits(arguments: Sequence[str], old: Sequence[str], new: Sequence[str]) -> Iterator[FileEdit]:
    """Yield the edits of arguments of the training program, which are pairs of an option and its value."""
    before = dict(pairwise(old))
    options = {
        option.replace("_", "-"): value for option, value in pairwise(arguments) if option.startswith("--")
    }
    for option, value in pairwise(new):
        if option.startswith("--") and before.get(option) != value:
            entry = options.get(option.replace("_", "-"))
            yield FileEdit(f"{option} {entry}" if entry else "", f"{option} {value}")
    for option, value in before.items():
        if option.startswith("--") and option not in new:
            yield FileEdit(f"{option} {value}", "")


TARGET: Final = target_of(
    ACCELERATE, emit=emit_accelerate, recognises=is_accelerate, read=read_accelerate, edits=accelerate_edits
)
