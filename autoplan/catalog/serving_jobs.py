"""Serving jobs: reading a job file, and resolving the names in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from autoplan.catalog.entries import engine, model, serving_intervals
from autoplan.catalog.job_files import opened
from autoplan.catalog.job_option_names import is_option_job
from autoplan.catalog.option_jobs import Attempts, clusters_of, read_options, serves
from autoplan.catalog.relatives import engine_kernels_for, kernels_for
from autoplan.catalog.request_traces import longest_of, named_trace, request_trace_of
from autoplan.errors import Problem, SpecError, UnsupportedError
from autoplan.schema.job import Cluster, JobFile
from autoplan.schema.model import ModelSpec
from autoplan.schema.resolved_job import resolved_values, values_hash
from autoplan.schema.serving.engine_stack import Engine
from autoplan.schema.serving.request_lengths import RequestLengths, ServingWorkload, longest_tokens
from autoplan.schema.serving.serving_spec import ScalingSpec, ServingJob, ServingSpec
from autoplan.schema.user_rules.expression import Name, Node
from autoplan.schema.yaml.loader import valid_part
from autoplan.schema.yaml.parser import parse_yaml

#: Placeholders of invalid required keys, so that the other keys are validated.
_STAND_INS: Final = {
    "kind": "serving",
    "model": "none",
    "hardware": "none",
    "stack": "none",
    "workload": {"input_tokens": 1, "output_tokens": 1},
}
#: Names of rules that an engine has.
_RULE_NAMES: Final = frozenset({"tp", "pp", "ep", "devices", "devices_per_node", "heads", "kv_heads"})


def load_serving_job(reference: str | Path) -> ServingJob:
    """Return the serving job that ``reference`` names: the path of a job file, or the name of a shipped one.

    It may also be a line of options, ``--model NAME --hardware NODE --task serve``. Raises SpecError with all
    problems of the file, CatalogError for unknown names.
    """
    if is_option_job(reference) and serves(str(reference)):
        return read_options(str(reference), serving_job_of_text)
    text, file, name, base = opened("serving", reference)
    return serving_job_of_text(text, file, name=name, base=base, reference=str(reference))


def serving_job_of_text(
    text: str, file: str, *, name: str, base: Path, reference: str | None = None
) -> ServingJob:
    """Return the serving job of ``text``, which messages call ``file``, with paths relative to ``base``.

    ``reference`` is what the user calls it, by default ``file``. Raises SpecError with all problems.
    """
    reference = reference or file
    document = parse_yaml(text, name=file)
    if document.at(["kind"]) == "training":
        message = f"a training job has no engines: `autoplan plan {reference}` plans it"
        raise SpecError([Problem(message, "$.kind", document.name, document.line(["kind"]))])
    spec, wrong, problems = valid_part(document, ServingSpec, _STAND_INS)
    job = _resolved(spec, name, base, Attempts(document, wrong, problems))
    keys = frozenset(document.value) if isinstance(document.value, dict) else frozenset()
    return _read_from(job, JobFile(reference, text, base, keys, str(document.at(["hardware"]))))


def _read_from(job: ServingJob, source: JobFile) -> ServingJob:
    """Return ``job`` with the file that it was read from, and its choices and loads, which read its trace."""
    choices, loads = (
        tuple(replace(part, source=source) for part in parts) for parts in (job.choices, job.loads)
    )
    return replace(job, source=source, choices=choices, loads=loads)


def resolve_serving_job(spec: ServingSpec, *, name: str = "job", base: Path | None = None) -> ServingJob:
    """Return ``spec`` with every name resolved; paths in it are relative to ``base``.

    A trace of requests is read from that folder whenever the job is priced, so that the job says where it is.
    """
    folder = base or Path()
    job = _resolved(spec, name, folder, Attempts(None))
    if named_trace(spec.workload, folder) is None:
        return job
    return _read_from(job, JobFile(name, "", folder.absolute(), frozenset(), spec.hardware))


def serving_hashes(job: ServingJob) -> tuple[str, str]:
    """Return the SHA-256 of everything in ``job`` but its names, and that of what its prices rest on.

    That is the kernels of its device, the intervals, and the trace of its requests. Raises as
    ``request_trace_of`` does.
    """
    plain, device = resolved_values(job), job.cluster.device.name
    del plain["name"]
    measured, trace = engine_kernels_for(device), request_trace_of(job)
    cost_model = {
        "kernels": resolved_values(kernels_for(device)),
        "engine_kernels": None if measured is None else [resolved_values(part) for part in measured],
        "intervals": resolved_values(serving_intervals()),
        "trace": None if trace is None else resolved_values(trace),
    }
    return values_hash(plain), values_hash(cost_model)


def _resolved(spec: ServingSpec, name: str, base: Path, attempts: Attempts) -> ServingJob:
    the_model = attempts.find("model", lambda: model(spec.model, base), needs={"model"})
    clusters = attempts.find(
        "hardware", lambda: clusters_of(spec.hardware, spec.devices, base), needs={"hardware"}
    )
    the_engine = attempts.find("stack", lambda: engine(spec.stack, base), needs={"stack"})
    if clusters:
        attempts.find("limits", lambda: _powered(spec, clusters[0]), needs={"limits"})
        attempts.find("limits.devices", lambda: _within(spec, clusters), needs={"limits", "devices"})
    traced = attempts.find("workload", lambda: _traced(spec.workload, base), needs={"workload"})
    workload = traced
    if the_model and traced:
        workload = attempts.find("workload", lambda: _admissible(traced, the_model))
    if the_model and the_engine:
        attempts.find("model", lambda: _recurrent(spec, the_model, the_engine))
    if the_engine:
        attempts.find("search.flashinfer_sampler", lambda: _samples(spec, the_engine), needs={"search"})
    draft = attempts.find("speculation.draft_model", lambda: _draft(spec, base), needs={"speculation"})
    attempts.find("rules", lambda: _readable_rules(spec), needs={"rules"})
    if attempts.problems or not (the_model and clusters and the_engine and workload):
        raise SpecError(attempts.in_order())
    job = ServingJob(
        name=name,
        model=the_model,
        cluster=clusters[0],
        engine=the_engine,
        workload=workload,
        precision=spec.precision,
        speculation=spec.speculation,
        draft=draft or None,
        search=spec.search,
        limits=spec.limits,
        rules=spec.rules,
        objectives=spec.objectives,
        price=spec.price,
        deadline=spec.deadline,
        devices_open=spec.devices is None and _has_load(spec, base),
    )
    if spec.scaling is not None:
        return _with_loads(
            replace(job, cluster=clusters[-1], devices_open=spec.devices is None), spec.scaling
        )
    if len(clusters) == 1:
        return job
    return replace(job, choices=tuple(replace(job, cluster=cluster) for cluster in clusters))


def _recurrent(spec: ServingSpec, of_model: ModelSpec, on_engine: Engine) -> None:
    """Raise UnsupportedError for what is not priced of a model with linear attention."""
    if of_model.linear_attention is None:
        return
    prefixes = [spec.workload.prefix, *(kind.prefix for kind in spec.workload.classes if kind.prefix)]
    wrong = {
        f"{on_engine.title} is not priced, only vLLM from 0.11 is": on_engine.facts.cache.hybrid != "groups",
        "speculation is not priced": spec.speculation is not None,
        "a prefix cache is not priced: leave out `prefix`": any(
            prefix.shared_tokens or prefix.hit_rate for prefix in prefixes
        ),
    }
    broken = [sentence for sentence, holds in wrong.items() if holds]
    if broken:
        raise UnsupportedError(f"{of_model.name} has linear attention, with which {'; '.join(broken)}")


def _samples(spec: ServingSpec, on_engine: Engine) -> None:
    """Raise UnsupportedError for a sampler that changes nothing in the engine's version."""
    sampler = on_engine.facts.sampler
    if spec.search.flashinfer_sampler and (sampler is None or sampler.flashinfer_copies is None):
        raise UnsupportedError(
            f"FlashInfer's sampler takes no less memory in {on_engine.title} {on_engine.version}: leave"
            " search.flashinfer_sampler out"
        )


def _draft(spec: ServingSpec, base: Path) -> ModelSpec | None:
    drafts = spec.speculation.draft_model if spec.speculation else None
    return model(drafts, base) if drafts is not None else None


def _with_loads(job: ServingJob, scaling: ScalingSpec) -> ServingJob:
    """Return the job of the largest load, with those of all loads."""
    if scaling.request_rate is not None:
        changes: list[dict[str, float]] = [{"request_rate": rate} for rate in scaling.request_rate]
    else:
        changes = [{"concurrency": clients} for clients in scaling.concurrency or ()]
    jobs = [replace(job, workload=job.workload.model_copy(update=change)) for change in changes]
    return replace(jobs[-1], loads=tuple(jobs))


def _has_load(spec: ServingSpec, base: Path) -> bool:
    """Return whether the job says how requests come, itself or by the times of ``workload.trace``."""
    workload = spec.workload
    if workload.concurrency is not None or workload.request_rate is not None:
        return True
    trace = named_trace(workload, base) if workload.trace is not None else None
    return trace is not None and trace.rate > 0


def _powered(spec: ServingSpec, cluster: Cluster) -> None:
    """Raise UnsupportedError if an energy is asked for and the power is not known."""
    needs_energy = "energy" in spec.objectives or spec.limits.energy is not None
    if needs_energy and cluster.device.power is None:
        raise UnsupportedError(
            f"energy needs the power of {cluster.device.name}, which is missing in its file"
        )


def _within(spec: ServingSpec, clusters: tuple[Cluster, ...]) -> None:
    """Raise UnsupportedError if the job asks for more devices than its limit allows."""
    most, least = spec.limits.devices, min(cluster.devices for cluster in clusters)
    if most is not None and most < least:
        raise UnsupportedError(
            f"limits.devices {most} contradicts the job's {least} devices: raise the limit or set `devices`"
        )


def _traced(workload: ServingWorkload, base: Path) -> ServingWorkload:
    """Return ``workload`` with the longest request of its trace, where it has one and says no other."""
    trace = None if workload.longest_request is not None else named_trace(workload, base)
    if trace is None:
        return workload
    kinds: tuple[RequestLengths, ...] = workload.classes or (workload,)
    longest = max(longest_of(lengths, trace) for lengths in kinds)
    return workload.model_copy(update={"longest_request": longest})


def _admissible(workload: ServingWorkload, of_model: ModelSpec) -> ServingWorkload:
    """Return ``workload`` with requests no longer than the model's positions, where lengths are means.

    Raises UnsupportedError if requests of mean length exceed them.
    """
    longest, most = workload.longest_tokens, of_model.max_positions
    if most is None or longest <= most:
        return workload
    kinds: tuple[RequestLengths, ...] = workload.classes or (workload,)
    needed = max(longest_tokens(x.input_tokens, 0.0) + longest_tokens(x.output_tokens, 0.0) for x in kinds)
    if workload.longest_request is not None or needed > most:
        raise UnsupportedError(
            f"a request of {max(needed, workload.longest_request or 0):,} tokens cannot be admitted:"
            f" {of_model.name} has {most:,} positions"
        )
    return workload.model_copy(update={"longest_request": most})


def _readable_rules(spec: ServingSpec) -> None:
    """Raise UnsupportedError if a rule names what an engine has not."""
    for rule in spec.rules:
        unknown = _names(rule.relation) - _RULE_NAMES
        if unknown:
            raise UnsupportedError(
                f"{rule.rule!r} names {', '.join(sorted(unknown))}: rules of serving may name "
                + ", ".join(sorted(_RULE_NAMES))
            )


def _names(node: Node) -> set[str]:
    names = {node.name} if isinstance(node, Name) else set()
    return names.union(*(_names(part) for part in node.below()))
