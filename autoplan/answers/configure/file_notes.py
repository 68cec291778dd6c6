"""Notes on a launch file: what it leaves open, where it is unlike the job, and which choices are slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from autoplan.costs.predict import predict
from autoplan.launch.configuration import Configuration, Written
from autoplan.results.plan import Plan, layout_fields
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.job import Job
from autoplan.schema.post_training import RLSpec
from autoplan.units import format_seconds

#: Choices of software that are slow, and what is faster, as a file says it.
_SLOW: Final = {"attention": "eager", "overlap_grad_reduce": False}
_FASTER: Final = {
    "attention=sdpa": "eager attention has its scores in memory: with PyTorch's (sdpa in the file)",
    "overlap_grad_reduce=true": "gradients are reduced behind backward: with --overlap-grad-reduce",
}
#: Gains below this share of a step are not told.
_LEAST_GAIN: Final = 0.005


def file_notes(job: Job, configuration: Configuration, run: Plan) -> list[str]:
    """Return notes on a file whose layout is compared: its open fields, and differences to the job."""
    notes = [*_left_open(configuration, run), *_unlike(job, configuration), *_slow_choices(job, run)]
    return [*configuration.warnings, *notes]


def _slow_choices(job: Job, run: Plan) -> Iterator[str]:
    """Yield what the step takes with a choice of software that the file leaves out, where it is shorter."""
    for change, words in _FASTER.items():
        name, _, value = change.partition("=")
        if getattr(job.software, name) != _SLOW[name] or (name == "attention" and job.model.attention_sinks):
            continue
        faster = with_software(job.stack, SoftwareSpec.model_validate({name: yaml.safe_load(value)}))
        step = predict(replace(job, stack=faster), run.layout).step_seconds
        if step < (1.0 - _LEAST_GAIN) * run.predicted.step_seconds:
            yield f"{words} a step takes {format_seconds(step)}"


def _left_open(configuration: Configuration, run: Plan) -> Iterator[str]:
    """Yield a note on fields of the layout that the file does not give, and what they are taken as."""
    fields = layout_fields(run.layout)
    taken = [f"{key}={fields[key]}" for key in configuration.unspecified if key in fields]
    if taken:
        yield f"not in the file, and taken as usual: {', '.join(taken)}"


def _unlike(job: Job, configuration: Configuration) -> Iterator[str]:
    """Yield in what the file and the job differ, which the job decides."""
    job_values: Mapping[str, Any] = {
        "sequence_length": job.workload.sequence_length,
        "global_batch_size": job.workload.global_batch_size,
        "precision": job.precision,
        "optimizer": job.optimizer,
    }
    for key, value in job_values.items():
        written = configuration.values.get(key)
        if written is not None and written.value != value:
            theirs = f"{written.value} in the file{_where(written)}"
            yield f"{key} is {theirs}, and {value} in the job, which is priced"
    yield from _unlike_software(job, configuration)
    if (sentence := _unlike_method(job, configuration)) is not None:
        yield sentence
    model = configuration.job.get("model")
    name = model if isinstance(model, str) else None
    if name is not None and name != job.model.name:
        yield f"the model of the file is {name}, and that of the job {job.model.name}, which is priced"
    elif isinstance(model, Mapping):
        sizes = ("layers", "hidden_size", "heads")
        unlike = [key for key in sizes if model.get(key) != getattr(job.model, key)]
        unlike_values = ", ".join(f"{key} {model.get(key)}" for key in unlike)
        if unlike:
            yield f"the model of the file has {unlike_values}, unlike {job.model.name}, which is priced"


def _unlike_software(job: Job, configuration: Configuration) -> Iterator[str]:
    """Yield in what adapters and choices of software of the file are not the job's."""
    for key, ours in (("software", job.software), ("adapters", job.adapters)):
        theirs: Mapping[str, Any] = configuration.job.get(key) or {}
        unlike = {
            name: value
            for name, value in theirs.items()
            if value and getattr(ours, name, None) != (tuple(value) if isinstance(value, list) else value)
        }
        if unlike:
            unlike_values = ", ".join(f"{name}: {_yaml_text(value)}" for name, value in unlike.items())
            yield (
                f"{key} is {unlike_values} in the file, unlike the job, which is priced:"
                f" `{key}: {{{unlike_values}}}` in the job has it"
            )


def _yaml_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unlike_method(job: Job, configuration: Configuration) -> str | None:
    """Return in what preference or reinforcement learning of the file is not the job's; None for nothing."""
    written = configuration.values.get("rl")
    theirs = None if written is None else RLSpec.model_validate(written.value)
    if theirs == job.rl or "rl" in configuration.unspecified:
        return None
    in_file, in_job = ("none" if rl is None else _rl_text(rl) for rl in (theirs, job.rl))
    where = _where(written) if written is not None else ""
    return f"rl is {in_file} in the file{where}, and {in_job} in the job, which is priced"


def _rl_text(rl: RLSpec) -> str:
    return ", ".join(f"{key}: {value}" for key, value in rl.model_dump(exclude_defaults=True).items())


def _where(written: Written) -> str:
    return f" (line {written.line})" if written.line else " (by default)" if written.default else ""
