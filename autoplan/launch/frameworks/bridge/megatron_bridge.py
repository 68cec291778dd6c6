"""The target ``megatron-bridge``: overrides of a recipe, as a YAML file and as words of Hydra.

What a layout needs is what Megatron-LM needs, by other names: the parts that are missing are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.bridge.bridge_edits import edits_between, hydra_text
from autoplan.launch.frameworks.bridge.bridge_keys import (
    FLAGS,
    FRACTIONS,
    MIRRORED,
    PRECISION_NAMES,
    SWITCHES,
)
from autoplan.launch.frameworks.bridge.bridge_values import is_bridge, read_bridge
from autoplan.launch.frameworks.megatron.layout_arguments import layout_arguments
from autoplan.launch.frameworks.megatron.model_arguments import dropout_arguments
from autoplan.launch.frameworks.megatron.training_arguments import STATE_TYPES, training_arguments
from autoplan.launch.frameworks.missing_parts import refuse_software, stack_note
from autoplan.launch.header import as_comment
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun, Target
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["TARGET", "emit_bridge", "override_values"]

_FILE: Final = "megatron_bridge.yaml"
#: Arguments that ``mixed_precision`` or a default stands for.
_ASIDE: Final = frozenset(
    {
        *("--bf16", "--fp16", "--fp8-format", "--fp8-recipe", "--fp4-format", "--fp4-recipe"),
        *("--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16"),
    }
)
_OPTIMIZERS: Final = frozenset({"adamw", "sgd", "muon"})
_USAGE: Final = f"usage: process_config_with_overrides(RECIPE(), config_filepath={_FILE!r})"


def emit_bridge(run: PlannedRun) -> Emission:
    """Return the overrides of the plan as a YAML file, and as words that a recipe's runner takes.

    Keys that the plan does not need are null or false, as recipes may have set them. Raises
    InexpressibleError for the first part of the plan that there is no key for.
    """
    job, layout = run.job, run.layout
    values = override_values(job, layout)
    document: dict[str, Any] = {}
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        inner = document.setdefault(section, {}) if section else document
        inner[key] = value
    # A line of YAML is never folded, and text is quoted by the library.
    text = yaml.safe_dump(document, sort_keys=False, width=10_000)
    words = tuple(f"{path}={hydra_text(value)}" for path, value in values.items())
    file = EmittedFile(_FILE, f"{as_comment((*run.header, _USAGE))}{text}")
    notes = stack_note(job, ("megatron",), "megatron-bridge", "Megatron Bridge")
    return Emission((file,), words, notes=notes, by_arguments=True)


def override_values(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the overrides by path."""
    refuse_software(job, ("gradients",))
    if job.optimizer not in _OPTIMIZERS or job.optimizer in STATE_TYPES:
        raise InexpressibleError(f"the optimizer {job.optimizer}")
    if job.routing.capacity_factor is not None:
        raise InexpressibleError("a capacity of experts (routing.capacity_factor), which the recipe chooses")
    given = {words[0]: words[1:] for words in _arguments(job, layout)}
    unknown = [flag for flag in given if flag not in FLAGS and flag not in _ASIDE]
    if unknown:
        raise InexpressibleError(f"what Megatron-LM calls {unknown[0]}, which mixed_precision chooses")
    values: dict[str, Any] = {}
    for flag, path in FLAGS.items():
        values[path] = flag in given if flag in SWITCHES else _value(flag, given.get(flag))
    # Nothing is offloaded by zero layers, and checkpoints are those of the recipe unless FSDP needs others.
    values["model.cpu_offloading_num_layers"] = values["model.cpu_offloading_num_layers"] or 0
    values["model.cpu_offloading"] = values["model.cpu_offloading_num_layers"] > 0
    values["optimizer.optimizer_offload_fraction"] = values["optimizer.optimizer_offload_fraction"] or 0.0
    for path in ("checkpoint.ckpt_format", "model.cp_comm_type", "ddp.data_parallel_sharding_strategy"):
        if values[path] is None:
            del values[path]
    values["ddp.num_distributed_optimizer_instances"] = values["ddp.num_distributed_optimizer_instances"] or 1
    values["model.expert_model_parallel_size"] = values["model.expert_model_parallel_size"] or 1
    values |= {mirror: values[path] for path, mirror in MIRRORED.items()}
    return {**values, "mixed_precision": _formats(job, halved="--grad-reduce-in-bf16" in given)}


def _formats(job: Job, *, halved: bool) -> Any:  # noqa: ANN401 - any value of YAML
    """Return the name of a recipe of formats, all of which reduce gradients in fp32, or the formats."""
    if not halved:
        return PRECISION_NAMES[job.precision]
    if job.precision != "bf16":
        part = f"gradients that are reduced in bf16 with {job.precision} (set software.gradients: fp32)"
        raise InexpressibleError(part)
    number = {"_target_": "torch.bfloat16", "_call_": False}
    return {
        "_target_": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig",
        "_call_": True,
        "bf16": True,
        "params_dtype": number,
        "pipeline_dtype": dict(number),
        "autocast_enabled": False,
        "grad_reduce_in_fp32": False,
    }


def _arguments(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield what Megatron-LM would be given."""
    yield ("--num-layers", str(job.model.layers))
    yield ("--seq-length", str(job.workload.sequence_length))
    yield from dropout_arguments(job)
    yield from layout_arguments(job, layout)
    yield from training_arguments(job, layout)


def _value(flag: str, words: tuple[str, ...] | None) -> Any:  # noqa: ANN401 - any value of YAML
    """Return the value of a key: a number, a list, or text."""
    if words is None:
        return None
    if flag == "--recompute-modules":
        return list(words)
    text = words[0]
    if flag in FRACTIONS:
        return float(text)
    return int(text) if text.isdigit() else text


def bridge_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of ``file`` that make its layout ``new`` instead of ``old``."""
    return tuple(edits_between(file, override_values(job, old), override_values(job, new)))


TARGET: Final = Target(
    name="megatron-bridge",
    framework="Megatron Bridge",
    version="0.3.1",
    check="accepted by the framework's parser",
    emit=emit_bridge,
    recognises=is_bridge,
    read=read_bridge,
    edits=bridge_edits,
)
