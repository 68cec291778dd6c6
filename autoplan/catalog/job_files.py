"""Jobs: from a file or a name to a job with everything in it resolved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from autoplan.catalog.entries import device, hardware, kernels_at, kernels_for, model, stack, stack_at
from autoplan.catalog.roots import EntryKind, entry_text, is_path, read_file
from autoplan.errors import AutoplanError, Problem, SpecError, UnsupportedError
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Cluster, Job, JobSpec, Objective, Workload
from autoplan.schema.job_choices import batches_of
from autoplan.schema.yaml.document import Document
from autoplan.schema.yaml.loader import valid_part
from autoplan.schema.yaml.parser import parse_yaml

__all__ = ["load_job", "opened", "resolve_job"]

R = TypeVar("R")

_MOST_CHOICES: Final = 64
#: What stands for a required key that is wrong, so that the rest of a file is read; it is not looked at.
_STAND_INS: Final = {
    "kind": "training",
    "model": "none",
    "hardware": "none",
    "workload": {"sequence_length": 1, "global_batch_size": 1},
}


def load_job(reference: str | Path) -> Job:
    """Return the job that ``reference`` names: a path to a job file, or a shipped job's name.

    Raises SpecError with every problem of the file, CatalogError for what cannot be found.
    """
    content, file, name, base = opened("job", reference)
    document = parse_yaml(content, name=file)
    spec, wrong, problems = valid_part(document, JobSpec, _STAND_INS)
    return _resolved(spec, name, base, _Attempts(document, wrong, problems))


def opened(kind: EntryKind, reference: str | Path) -> tuple[str, str, str, Path]:
    """Return the text of a path or an entry, its file, its name and the folder that its paths start from."""
    text = str(reference)
    if isinstance(reference, Path) or is_path(text):
        path = Path(reference)
        return read_file(path), text, path.stem, path.parent
    content, file = entry_text(kind, text)
    return content, file, text, Path()


def resolve_job(spec: JobSpec, *, name: str = "job", base: Path | None = None) -> Job:
    """Return ``spec`` with every name resolved; paths in it are relative to ``base``."""
    return _resolved(spec, name, base or Path(), _Attempts(None))


class _Attempts:
    """Look-ups of a job, whose failures are gathered so that all of them are told at once.

    ``problems`` begin with those of the file's text; ``wrong`` are the keys that they are about.
    """

    def __init__(
        self, document: Document | None, wrong: frozenset[str] = frozenset(), problems: Sequence[Problem] = ()
    ) -> None:
        self.document = document
        self.wrong = wrong
        self.problems = list(problems)

    def find(self, key: str, look_up: Callable[[], R], *, needs: Collection[str] = ()) -> R | None:
        """Return what ``look_up`` returns, or None with its problem noted at ``key``.

        What ``needs`` a key that is wrong is not looked up: its problem would be another's.
        """
        if not self.wrong.isdisjoint(needs):
            return None
        try:
            return look_up()
        except SpecError as error:
            self.problems.extend(error.problems)
        except AutoplanError as error:
            document = self.document
            file = document.name if document else None
            line = document.line(key.split(".")) if document else None
            self.problems.append(Problem(str(error), f"$.{key}", file, line))
        return None

    def lines(self, key: str, entries: int) -> tuple[int, ...]:
        """Return the line of each entry of the list at ``key``; none without a file."""
        document = self.document
        return tuple(document.line([key, i]) for i in range(entries)) if document else ()

    def in_order(self) -> list[Problem]:
        """Return the problems in the order of the file's lines; those of other files come last."""
        name = self.document.name if self.document else None
        return sorted(self.problems, key=lambda problem: (problem.file != name, problem.line or 0))


def _resolved(spec: JobSpec, name: str, base: Path, attempts: _Attempts) -> Job:
    the_model = attempts.find("model", lambda: model(spec.model, base), needs={"model"})
    clusters = attempts.find("hardware", lambda: _clusters(spec, base), needs={"hardware"})
    cluster = clusters[0] if clusters else None
    usual = cluster.node.default_stack if cluster else None
    the_stack = attempts.find("stack", lambda: _stack(spec, usual, base))
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
        routing=spec.routing,
        search=spec.search,
        limits=spec.limits,
        rules=spec.rules,
        objectives=spec.objectives or _usual_objectives(len(clusters), len(batches)),
        price=spec.price,
        rule_lines=attempts.lines("rules", len(spec.rules)),
    )
    if len(clusters) * len(batches) == 1:
        return job
    choices = (replace(job, cluster=c, workload=_workload(spec, b)) for c in clusters for b in batches)
    return replace(job, choices=tuple(choices))


def _workload(spec: JobSpec, batch: int) -> Workload:
    return Workload(sequence_length=spec.workload.sequence_length, global_batch_size=batch)


def _batches(spec: JobSpec) -> tuple[int, ...]:
    batches = batches_of(spec.workload.global_batch_size)
    if not 1 <= len(batches) <= _MOST_CHOICES:
        raise UnsupportedError(
            f"this range holds {len(batches)} batches: from 1 to {_MOST_CHOICES} can be planned"
        )
    return batches


def _usual_objectives(devices: int, batches: int) -> tuple[Objective, ...]:
    """Return what a front trades where the job does not say."""
    found: list[Objective] = ["step_time", "peak_memory"]
    if batches > 1:
        found.append("tokens_per_second")
    if devices > 1:
        found.append("devices")
    return tuple(found)


def _priced(spec: JobSpec, key: str, cluster: Cluster | None) -> None:
    """Raise UnsupportedError where objectives or limits need a price or a power that is not known."""
    asked = {"cost", "energy"}.intersection(spec.objectives or ())
    if key == "limits":
        asked = {name for name in ("cost", "energy") if getattr(spec.limits, name) is not None}
    if "cost" in asked and spec.price is None:
        raise UnsupportedError(
            "cost needs a price: write for example price: {per_device_hour: 2.5, date: 2026-11-01}"
        )
    if "energy" in asked and cluster is not None and cluster.device.power is None:
        raise UnsupportedError(
            f"energy needs the power of {cluster.device.name}, which its file does not tell"
        )


def _stack(spec: JobSpec, usual: str | None, base: Path) -> StackSpec:
    """Return the job's stack, or the node's: only a job may name a file."""
    return stack_at(spec.stack, base) if spec.stack else stack(usual or "analytic")


def _kernels(spec: JobSpec, cluster: Cluster | None, base: Path) -> KernelSpec | None:
    """Return the job's kernel curves, or the device's; None where neither is known."""
    if spec.kernels:
        return kernels_at(spec.kernels, base)
    return kernels_for(cluster.device.name) if cluster else None


def _clusters(spec: JobSpec, base: Path) -> tuple[Cluster, ...]:
    """Return the devices of the job, one cluster for each number of them: by default all of the hardware."""
    node, held = hardware(spec.hardware, base)
    numbers = spec.devices if isinstance(spec.devices, tuple) else (spec.devices or held,)
    for devices in numbers:
        if devices > node.devices and devices % node.devices:
            raise UnsupportedError(
                f"{devices} devices are not whole nodes of {node.devices}: "
                f"{devices // node.devices * node.devices} or "
                f"{-(-devices // node.devices) * node.devices} would be"
            )
    kind = device(node.device)
    return tuple(Cluster(device=kind, node=node, devices=devices) for devices in numbers)
