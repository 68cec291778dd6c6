"""Jobs: from a file or a name to a job with everything in it resolved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from autoplan.catalog.entries import device, hardware, kernels_at, kernels_for, model, stack, stack_at
from autoplan.catalog.roots import entry_text, is_path, read_file
from autoplan.errors import AutoplanError, Problem, SpecError, UnsupportedError
from autoplan.schema.costmodel import KernelSpec
from autoplan.schema.document import Document
from autoplan.schema.job import Cluster, Job, JobSpec
from autoplan.schema.loader import parse_yaml, validate
from autoplan.schema.stack import StackSpec

__all__ = ["load_job", "resolve_job"]

R = TypeVar("R")


def load_job(reference: str | Path) -> Job:
    """Return the job that ``reference`` names: a path to a job file, or a shipped job's name.

    Raises SpecError with every problem of the file, CatalogError for what cannot be found.
    """
    text = str(reference)
    if isinstance(reference, Path) or is_path(text):
        path = Path(reference)
        content, file, name, base = read_file(path), text, path.stem, path.parent
    else:
        (content, file), name, base = entry_text("job", text), text, Path()
    document = parse_yaml(content, name=file)
    return _resolved(validate(document, JobSpec), name, base, document)


def resolve_job(spec: JobSpec, *, name: str = "job", base: Path | None = None) -> Job:
    """Return ``spec`` with every name resolved; paths in it are relative to ``base``."""
    return _resolved(spec, name, base or Path(), None)


class _Attempts:
    """Look-ups of a job, whose failures are gathered so that all of them are told at once."""

    def __init__(self, document: Document | None) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def find(self, key: str, look_up: Callable[[], R]) -> R | None:
        """Return what ``look_up`` returns, or None with its problem noted at ``key``."""
        try:
            return look_up()
        except SpecError as error:
            self.problems.extend(error.problems)
        except AutoplanError as error:
            document = self.document
            file = document.name if document else None
            line = document.line((key,)) if document else None
            self.problems.append(Problem(str(error), f"$.{key}", file, line))
        return None


def _resolved(spec: JobSpec, name: str, base: Path, document: Document | None) -> Job:
    attempts = _Attempts(document)
    the_model = attempts.find("model", lambda: model(spec.model, base))
    cluster = attempts.find("hardware", lambda: _cluster(spec, base))
    usual = cluster.node.default_stack if cluster else None
    the_stack = attempts.find("stack", lambda: _stack(spec, usual, base))
    kernels = attempts.find("kernels", lambda: _kernels(spec, cluster, base))
    if the_model is None or cluster is None or the_stack is None or kernels is None:
        raise SpecError(attempts.problems)
    return Job(
        name=name,
        model=the_model,
        cluster=cluster,
        stack=the_stack,
        kernels=kernels,
        workload=spec.workload,
        precision=spec.precision,
        optimizer=spec.optimizer,
        adapters=spec.adapters,
        routing=spec.routing,
        search=spec.search,
        limits=spec.limits,
        objectives=spec.objectives,
    )


def _stack(spec: JobSpec, usual: str | None, base: Path) -> StackSpec:
    """Return the job's stack, or the node's: only a job may name a file."""
    return stack_at(spec.stack, base) if spec.stack else stack(usual or "analytic")


def _kernels(spec: JobSpec, cluster: Cluster | None, base: Path) -> KernelSpec | None:
    """Return the job's kernel curves, or the device's; None where neither is known."""
    if spec.kernels:
        return kernels_at(spec.kernels, base)
    return kernels_for(cluster.device.name) if cluster else None


def _cluster(spec: JobSpec, base: Path) -> Cluster:
    """Return the devices of the job: all of the hardware, or whole nodes on its network."""
    if isinstance(spec.devices, tuple):
        numbers = ", ".join(map(str, spec.devices))
        raise UnsupportedError(
            f"one number of devices is planned at a time: set `devices` to one of {numbers}"
        )
    node, held = hardware(spec.hardware, base)
    devices = spec.devices or held
    if devices > node.devices and devices % node.devices:
        raise UnsupportedError(
            f"{devices} devices are not whole nodes of {node.devices}: "
            f"{devices // node.devices * node.devices} or "
            f"{-(-devices // node.devices) * node.devices} would be"
        )
    return Cluster(device=device(node.device), node=node, devices=devices)
