"""The question of ``gemm``: its values checked, and the job and machine that price it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, get_args

from pydantic import ValidationError

from autoplan.catalog.derived_nodes import derived_name
from autoplan.catalog.entries import device as device_named
from autoplan.catalog.entries import engine
from autoplan.catalog.job_files import resolve_job
from autoplan.costs.device.gemm_workspace import cublas_workspace_bytes, hipblas_workspace_bytes
from autoplan.costs.matmul.extents import MOST_EXTENT, Extent
from autoplan.costs.matmul.grids import ResultState, SchemeName, StartState
from autoplan.costs.matmul.product import Product, output_precision
from autoplan.errors import Problem, SpecError
from autoplan.schema.job import Job, JobSpec, Limits, Optimizer, Workload
from autoplan.schema.precision import Precision

__all__ = ["GemmQuestion", "ProductSettings", "pricing_job", "product_of", "workspace_of"]

#: Any model and workload: a product is priced by the cluster, the stack, the kernels and the limits of a job.
_ANY_MODEL: Final = "gpt2"
_ANY_WORKLOAD: Final = Workload(sequence_length=1, global_batch_size=1)
#: The engine whose file says how PyTorch sizes the workspace of cuBLAS.
_WORKSPACE_ENGINE: Final = "vllm"
_MOST_BATCH: Final = 10**9
_MOST_DEVICES: Final = 16_384
_MOST_PARTS: Final = 10**6


@dataclass(frozen=True, slots=True)
class ProductSettings:
    """Formats and additions of a product; a format left out follows from ``operands``."""

    operands: Precision = "bf16"
    output: Precision | None = None
    partial: Precision | None = None
    bias: bool = False
    residual: bool = False
    split_k: int = 1
    optimizer: Optimizer = "adamw"
    stack: str | None = None
    headroom: str | None = None
    memory: str | None = None


@dataclass(frozen=True, slots=True)
class GemmQuestion:
    """A product and where it runs; at most one of m, n, k is None, on one device only.

    ``find`` says which value of the extent that is left out the answer is about. ``schemes`` may be chosen;
    empty: all.
    """

    m: int | None
    n: int | None
    k: int | None
    batch: int = 1
    device: str | None = None
    hardware: str | None = None
    devices: int | None = None
    settings: ProductSettings = ProductSettings()
    find: Literal["largest", "compute-bound"] = "largest"
    start: StartState = "one-copy"
    result: ResultState = "sharded"
    schemes: tuple[SchemeName, ...] = ()
    overlap: bool = True

    @property
    def several(self) -> bool:
        """Whether it runs on several devices."""
        return self.devices is not None and self.devices > 1

    @property
    def free(self) -> Extent | None:
        """The extent that is left out."""
        extents: tuple[Extent, ...] = get_args(Extent)
        return next((name for name in extents if getattr(self, name) is None), None)


def product_of(question: GemmQuestion) -> Product:
    """Return the product of ``question``, with 1 for the extent that is left out.

    Raises SpecError with every value out of its range.
    """
    problems = list(_problems(question))
    if problems:
        raise SpecError(problems)
    settings = question.settings
    output = settings.output or output_precision(settings.operands)
    return Product(
        m=question.m or 1,
        n=question.n or 1,
        k=question.k or 1,
        batch=question.batch,
        operands=settings.operands,
        output=output,
        partial=settings.partial or output,
        bias=settings.bias,
        residual=settings.residual,
    )


def _problems(question: GemmQuestion) -> list[Problem]:
    ranges = {name: (getattr(question, name), MOST_EXTENT) for name in get_args(Extent)}
    ranges |= {"devices": (question.devices, _MOST_DEVICES)}
    ranges |= {"batch": (question.batch, _MOST_BATCH), "split-k": (question.settings.split_k, _MOST_PARTS)}
    problems = [
        Problem(f"{value} is not a number from 1 to {most:,}", f"--{name}")
        for name, (value, most) in ranges.items()
        if value is not None and not 1 <= value <= most
    ]
    missing = [name for name in get_args(Extent) if getattr(question, name) is None]
    if len(missing) > 1:
        names = " and ".join(f"--{name}" for name in missing)
        problems.append(Problem("only one of m, n and k may be left out", names))
    if question.device is None and question.hardware is None:
        problems.append(Problem("say where it runs: --device NAME, or --hardware NAME", "--device"))
    if question.device is not None and question.hardware is not None:
        problems.append(Problem("the hardware has its device: give one of both", "--device"))
    if question.device is not None and question.several:
        problems.append(Problem("several devices need the links between them: --hardware NAME", "--device"))
    if missing and question.several:
        problems.append(Problem("on several devices all of m, n and k are needed", f"--{missing[0]}"))
    return [*problems, *_misplaced(question)]


def _misplaced(question: GemmQuestion) -> list[Problem]:
    """Return a problem for each option that means nothing on so many devices."""
    settings = question.settings
    alone = {
        "--bias": settings.bias,
        "--residual": settings.residual,
        "--split-k": settings.split_k > 1,
        "--find": question.find != "largest",
    }
    spread = {
        "--scheme": bool(question.schemes),
        "--start": question.start != "one-copy",
        "--result": question.result != "sharded",
        "--no-overlap": not question.overlap,
    }
    if question.several:
        return [Problem("is for one device: leave it out", name) for name, given in alone.items() if given]
    return [Problem("needs several: --devices N", name) for name, given in spread.items() if given]


def pricing_job(question: GemmQuestion) -> Job:
    """Return the job that prices the product: its cluster, stack, kernels, precision and limits.

    Raises SpecError for values that are no quantities, CatalogError for unknown names.
    """
    settings = question.settings
    hardware = question.hardware
    if hardware is None:
        hardware = derived_name(1, device_named(question.device or "").name)
    spec = JobSpec(
        kind="training",
        model=_ANY_MODEL,
        hardware=hardware,
        devices=question.devices or 1,
        stack=settings.stack,
        workload=_ANY_WORKLOAD,  # type: ignore[arg-type]
        precision=settings.operands,
        optimizer=settings.optimizer,
        limits=_limits(settings),
    )
    try:
        return replace(resolve_job(spec), name="gemm")
    except SpecError as error:
        options = {"$.hardware": "--hardware" if question.hardware else "--device", "$.stack": "--stack"}
        named = [replace(x, path=options.get(x.path, x.path)) for x in error.problems]
        raise SpecError(named) from error


def _limits(settings: ProductSettings) -> Limits:
    given = {"memory_headroom": settings.headroom, "peak_memory": settings.memory}
    try:
        return Limits.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        options = {"memory_headroom": "--headroom", "peak_memory": "--memory"}
        raise SpecError(
            [
                Problem(str(problem["msg"]).removeprefix("Value error, "), options[str(problem["loc"][0])])
                for problem in error.errors()
            ]
        ) from error


def workspace_of(job: Job) -> float:
    """Return the workspace that PyTorch gives cuBLAS or hipBLAS on the job's device [byte], 0 if neither."""
    if job.cluster.device.vendor == "amd":
        return hipblas_workspace_bytes(job.cluster.device)
    facts = engine(_WORKSPACE_ENGINE, Path()).facts.forward
    if job.cluster.device.vendor != "nvidia":
        return 0.0
    sizes = (facts.gemm_workspace.value, facts.gemm_workspace_hopper.value)
    return cublas_workspace_bytes(job.cluster.device, *sizes)
