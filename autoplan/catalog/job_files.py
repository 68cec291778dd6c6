"""Jobs: reading a job file, and resolving the names in it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from autoplan.catalog.entries import assumed_stack, is_hardware, kernels_at, model, stack_at
from autoplan.catalog.job_option_names import is_option_job
from autoplan.catalog.look_ups import Attempts, clusters_of
from autoplan.catalog.model_names import model_called
from autoplan.catalog.option_jobs import read_options, serves
from autoplan.catalog.programs import with_programs
from autoplan.catalog.relatives import kernels_for
from autoplan.catalog.roots import EntryKind, entry_names, entry_text, is_path, names_file, read_file
from autoplan.errors import AutoplanError, Problem, SpecError, UnsupportedError
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.software import with_software
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Cluster, Job, JobFile, JobSpec, Objective, Workload
from autoplan.schema.job_choices import batches_of
from autoplan.schema.model import ModelSpec
from autoplan.schema.yaml.loader import valid_part
from autoplan.schema.yaml.parser import parse_yaml

#: What a command for training says of a serving job.
SERVING_JOB: Final = "this is a serving job, which this command does not take"

_MOST_CHOICES: Final = 64
#: Placeholders of invalid required keys, so that the other keys are validated.
_STAND_INS: Final = {
    "kind": "training",
    "model": "none",
    "hardware": "none",
    "workload": {"sequence_length": 1, "global_batch_size": 1},
}


def is_serving_job(reference: str | Path) -> bool:
    """Return whether ``reference`` names a serving job; False where it cannot be read, too."""
    text = str(reference)
    if is_option_job(reference):
        return serves(text)
    if not (isinstance(reference, Path) or is_path(text)):
        return text not in entry_names("job") and text in entry_names("serving")
    try:
        document = parse_yaml(read_file(Path(reference)), name=text)
    except AutoplanError:
        return False
    return document.at(["kind"]) == "serving"


def load_job(reference: str | Path) -> Job:
    """Return the job that ``reference`` names: the path of a job file, or the name of a shipped job.

    It may also be a line of options, ``--model NAME --hardware NODE --task lora``. Raises SpecError with all
    problems of the file, CatalogError for unknown names.
    """
    if is_option_job(reference) and not serves(str(reference)):
        return read_options(str(reference), job_of_text)
    content, file, name, base = opened("job", reference)
    return job_of_text(content, file, name=name, base=base, reference=str(reference))


def job_of_text(text: str, file: str, *, name: str, base: Path, reference: str) -> Job:
    """Return the job of ``text``, a job file that messages call ``file``, with paths relative to ``base``.

    ``reference`` is what the user calls it. Raises SpecError with all problems of the text.
    """
    document = parse_yaml(text, name=file)
    if document.at(["kind"]) == "serving":
        message = f"{SERVING_JOB}: `autoplan plan {reference}` plans it"
        raise SpecError([Problem(message, "$.kind", document.name, document.line(["kind"]))])
    spec, wrong, problems = valid_part(document, JobSpec, _STAND_INS)
    job = _resolved(spec, name, base, Attempts(document, wrong, problems))
    keys = frozenset(document.value) if isinstance(document.value, dict) else frozenset()
    source = JobFile(reference, text, base, keys, str(document.at(["hardware"])))
    return replace(job, source=source)


def opened(kind: EntryKind, reference: str | Path) -> tuple[str, str, str, Path]:
    """Return text, file and name of a path or an entry, and the folder of its relative paths."""
    _refuse_other_kind(reference)
    text = str(reference)
    _refuse_parts(text, kind)
    if isinstance(reference, Path) or is_path(text):
        path = Path(reference)
        return read_file(path), text, path.stem, path.parent
    if kind == "job" and text not in entry_names("job") and text in entry_names("serving"):
        raise UnsupportedError(f"{text}: {SERVING_JOB}: `autoplan plan {text}` plans it")
    content, file = entry_text(kind, text)
    return content, file, text, Path()


def opened_job(reference: str | Path) -> tuple[str, str, str, Path]:
    """Return what ``opened`` does of a job of whatever kind."""
    return opened("serving" if is_serving_job(reference) else "job", reference)


def _refuse_other_kind(reference: object) -> None:
    """Raise UnsupportedError for a loaded job, which is one of the other kind."""
    kind = getattr(reference, "kind", None)
    if kind is not None:
        other = "training" if kind == "serving" else "serving"
        raise UnsupportedError(f"the job is one of {kind}, and this takes one of {other}")


def _refuse_parts(text: str, kind: EntryKind) -> None:
    """Raise UnsupportedError where a job is asked for by a line of options of the other kind, or by a part.

    A part is a model or hardware: the message says how a job is made of them.
    """
    if is_option_job(text):
        if kind == "serving":
            raise UnsupportedError(f"this command takes a job of serving: {text} --task serve")
        raise UnsupportedError(f"{SERVING_JOB}: `autoplan plan {text}` plans it")
    if names_file(text) or text in (*entry_names("job"), *entry_names("serving")):
        return
    if os.path.isfile(text):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return
    device = text in entry_names("device")
    if model_called(text) is not None:
        what, line = "a model", f"--model {text} --hardware 2x-rtx4090"
    elif device or (not is_path(text) and is_hardware(text)):
        what, line = "hardware", f"--model llama3.1-8b --hardware {'2x-' if device else ''}{text}"
    else:
        return
    raise UnsupportedError(
        f"{text} is {what}, not a job: `autoplan plan {line} --task lora` plans one (or --task train, serve)"
    )


def resolve_job(spec: JobSpec, *, name: str = "job", base: Path | None = None) -> Job:
    """Return ``spec`` with every name resolved; paths in it are relative to ``base``."""
    return _resolved(spec, name, base or Path(), Attempts(None))


def _resolved(spec: JobSpec, name: str, base: Path, attempts: Attempts) -> Job:
    the_model = attempts.find("model", lambda: _model(spec, base), needs={"model"})
    clusters = attempts.find(
        "hardware", lambda: clusters_of(spec.hardware, spec.devices, base), needs={"hardware"}
    )
    cluster = clusters[0] if clusters else None
    the_stack = attempts.find("stack", lambda: _stack(spec, cluster, base))
    kernels = attempts.find("kernels", lambda: _kernels(spec, cluster, base))
    batches = attempts.find("workload.global_batch_size", lambda: _batches(spec))
    for key in ("objectives", "limits"):
        attempts.find(key, lambda key=key: _priced(spec, key, cluster), needs={"price"})  # type: ignore[misc]
    if attempts.problems or not (the_model and cluster and clusters and the_stack and kernels and batches):
        raise SpecError(attempts.in_order())
    job = Job(
        name=name,
        model=the_model,
        cluster=cluster,
        stack=the_stack,
        kernels=kernels,
        workload=_workload(spec, batches[0]),
        precision=spec.precision,
        optimizer=spec.optimizer,
        adapters=spec.adapters,
        rl=spec.rl,
        routing=spec.routing,
        search=spec.search,
        limits=spec.limits,
        rules=spec.rules,
        objectives=spec.objectives or usual_objectives(len(clusters), len(batches)),
        price=spec.price,
        stack_assumed=not spec.stack,
        software=spec.software,
        deadline=spec.deadline,
        rule_lines=attempts.lines("rules", len(spec.rules)),
    )
    if len(clusters) * len(batches) > 1:
        choices = (replace(job, cluster=c, workload=_workload(spec, b)) for c in clusters for b in batches)
        job = replace(job, choices=tuple(choices))
    run = attempts.find("program", lambda: with_programs(job, spec.program, stack_named=bool(spec.stack)))
    if run is None:
        raise SpecError(attempts.in_order())
    return run


def _model(spec: JobSpec, base: Path) -> ModelSpec:
    """Return the model that the job names, or describes itself."""
    return spec.model if isinstance(spec.model, ModelSpec) else model(spec.model, base)


def _workload(spec: JobSpec, batch: int) -> Workload:
    work = spec.workload
    return Workload(sequence_length=work.sequence_length, global_batch_size=batch, documents=work.documents)


def _batches(spec: JobSpec) -> tuple[int, ...]:
    batches = batches_of(spec.workload.global_batch_size)
    if not 1 <= len(batches) <= _MOST_CHOICES:
        raise UnsupportedError(f"the range has {len(batches)} batches: 1 to {_MOST_CHOICES} are supported")
    return batches


def usual_objectives(devices: int, batches: int) -> tuple[Objective, ...]:
    """Return the default objectives of a job with these numbers of devices and of batches."""
    objectives: list[Objective] = ["step_time", "peak_memory"]
    if batches > 1:
        objectives.append("tokens_per_second")
    if devices > 1:
        objectives.append("devices")
    return tuple(objectives)


def _priced(spec: JobSpec, key: str, cluster: Cluster | None) -> None:
    """Raise UnsupportedError if objectives or limits need an unknown price or power."""
    needed = {"cost", "energy"}.intersection(spec.objectives or ())
    if key == "limits":
        needed = {name for name in ("cost", "energy") if getattr(spec.limits, name) is not None}
    if "cost" in needed and spec.price is None:
        raise UnsupportedError("cost needs a price, such as price: {per_device_hour: 2.5, date: 2026-11-01}")
    if "energy" in needed and cluster is not None and cluster.device.power is None:
        raise UnsupportedError(
            f"energy needs the power of {cluster.device.name}, which is missing in its file"
        )


def _stack(spec: JobSpec, cluster: Cluster | None, base: Path) -> StackSpec | None:
    """Return the stack of the job, or the one to assume on its node; None if neither is known."""
    if spec.stack:
        return with_software(stack_at(spec.stack, base), spec.software)
    return with_software(assumed_stack(cluster.node), spec.software) if cluster else None


def _kernels(spec: JobSpec, cluster: Cluster | None, base: Path) -> KernelSpec | None:
    """Return the kernel curves of the job, or of the device; None if neither is known."""
    if spec.kernels:
        return kernels_at(spec.kernels, base)
    return kernels_for(cluster.device.name) if cluster else None
