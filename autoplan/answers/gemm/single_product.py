"""Use case: one matrix product on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal, get_args

from pydantic import ValidationError

from autoplan.answers.gemm.value import (
    FreeExtent,
    ProductAnswer,
    ProductFacts,
    Purpose,
    PurposeMemory,
    PurposeTime,
    Roofline,
    SplitK,
    TensorBytes,
)
from autoplan.catalog.entries import device as device_named
from autoplan.catalog.entries import engine
from autoplan.catalog.hardware_names import derived_name
from autoplan.catalog.job_files import resolve_job
from autoplan.costs.device.machine import Machine, machine_of
from autoplan.costs.device.memory_limit import (
    cublas_workspace_bytes,
    hipblas_workspace_bytes,
    lt_workspace_bytes,
    overheads_of,
)
from autoplan.costs.matmul.product import (
    MOST_EXTENT,
    Extent,
    Product,
    bytes_of,
    flops_of,
    hbm_bytes,
    intensity,
    largest_extent,
    output_precision,
    ridge_point,
    smallest_compute_bound,
    with_extent,
)
from autoplan.costs.matmul.product_costs import (
    LiveTensor,
    NeededMemory,
    backward_seconds,
    forward_seconds,
    inference_tensors,
    largest_split,
    needed_memory,
    split_k_bytes,
    training_events,
    unmeasured,
)
from autoplan.costs.uncertainty import half_widths
from autoplan.errors import Problem, SpecError
from autoplan.schema.job import Job, JobSpec, Limits, Workload
from autoplan.schema.precision import Optimizer, Precision, ResultState, SchemeName, StartState
from autoplan.units import format_bytes, format_rate

# The question of ``gemm``: its values checked, and the job and machine that price it.


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
    """Return a problem for each option that has no meaning on this number of devices."""
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
        return [Problem("is for one device: leave it out", name) for name, value in alone.items() if value]
    return [Problem("needs several: --devices N", name) for name, value in spread.items() if value]


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
    limits = {"memory_headroom": settings.headroom, "peak_memory": settings.memory}
    try:
        return Limits.model_validate({key: value for key, value in limits.items() if value is not None})
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


_EXTENTS: Final[tuple[Extent, ...]] = get_args(Extent)
_INFINITE: Final = 2**60

#: Where numbers of the answer that no catalogue holds come from.
_SOURCES: Final = (
    (
        "workspace",
        (
            "PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize (cuBLAS, as"
            " costmodels/engines/vllm.yaml says; hipBLAS 32 MiB, 128 MiB on gfx94 and gfx95) and"
            " parseCUDABlasLtWorkspaceSize (cuBLASLt 1 MiB, hipBLASLt 76 MiB)"
        ),
    ),
    (
        "allocator",
        (
            "PyTorch 2.13, c10/core/AllocatorConfig.h: blocks of 512 B, segments of 2 MiB and 20 MiB, large"
            " ones rounded to 2 MiB"
        ),
    ),
    (
        "split-k",
        "NVIDIA cuBLAS documentation: cublasLtReductionScheme_t, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
    ),
    ("roofline", "Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785"),
    ("states", "Rajbhandari et al. 2020, arXiv:1910.02054; bytes as the stack's file says"),
)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What a product is asked about: the job, its machine, the workspace and the parts of split-k."""

    job: Job
    machine: Machine
    workspace: float
    parts: int

    @property
    def workspaces(self) -> tuple[float, float]:
        """Workspaces of cuBLAS and cuBLASLt."""
        return self.workspace, lt_workspace_bytes(self.job.cluster.device)

    def inference(self, product: Product) -> tuple[LiveTensor, ...]:
        """Return what inference allocates."""
        return inference_tensors(product, self.workspaces, self.parts)

    def training(self, product: Product) -> dict[str, tuple[LiveTensor, ...]]:
        """Return what the events of training allocate."""
        return training_events(product, self.job, self.workspaces, self.parts)

    def fits(self, product: Product, purpose: Purpose) -> bool:
        """Return whether all events of ``purpose`` fit."""
        events = self.training(product).values() if purpose == "training" else [self.inference(product)]
        return all(needed_memory(tensors, self.job).fits for tensors in events)


def single_product(question: GemmQuestion) -> ProductAnswer:
    """Return bytes, memory, roofline and time of a product on one device.

    An extent that is left out is solved for: the largest that fits, or the smallest that is compute-bound.
    Raises SpecError for values out of range, CatalogError for unknown names, UnsupportedError for a format
    that the device has no rate for.
    """
    product, job = product_of(question), pricing_job(question)
    bench = _Bench(job, machine_of(job), workspace_of(job), question.settings.split_k)
    roof = ridge_point(bench.machine.peak_flops, job.cluster.device.memory.bandwidth.value)
    free = _free_extent(question, product, bench, roof)
    if free is not None:
        product = with_extent(product, free.extent, free.used)
    memory = (_inference(product, bench), _training(product, bench))
    return ProductAnswer(
        job=job,
        device=job.cluster.device.name,
        facts=facts_of(product),
        memory=memory,
        time=(_time(product, bench, "inference"), _time(product, bench, "training")),
        roofline=_roofline(product, bench, roof),
        split_k=_split_k(product, bench),
        free=free,
        reasons=tuple(_reasons(question, free, memory)),
        changes=tuple(_changes(product, bench, memory)),
        notes=tuple(_notes(product, memory)),
        sources=(*_SOURCES, *_catalogue_sources(job)),
    )


def facts_of(product: Product) -> ProductFacts:
    """Return extents, formats, bytes and FLOPs of ``product``."""
    m, n, k, g = product.m, product.n, product.k, product.batch
    return ProductFacts(
        m=m,
        n=n,
        k=k,
        batch=g,
        operands=product.operands,
        output=product.output,
        partial=product.partial,
        bias=product.bias,
        residual=product.residual,
        a_bytes=bytes_of(g * m * k, product.operands),
        w_bytes=bytes_of(g * k * n, product.operands),
        y_bytes=bytes_of(g * m * n, product.output),
        flops=flops_of(product),
        hbm_bytes=float(hbm_bytes(product)),
    )


def _free_extent(
    question: GemmQuestion, product: Product, bench: _Bench, ridge: Fraction
) -> FreeExtent | None:
    extent = question.free
    if extent is None:
        return None

    def fitting(purpose: Purpose) -> Callable[[int], bool]:
        return lambda value: bench.fits(with_extent(product, extent, value), purpose)

    inference, training = largest_extent(fitting("inference")), largest_extent(fitting("training"))
    smallest = smallest_compute_bound(product, extent, ridge)
    used = smallest if question.find == "compute-bound" else inference
    return FreeExtent(
        extent=extent,
        largest_inference=inference,
        largest_training=training,
        smallest_compute_bound=smallest,
        most_intensity=float(intensity(with_extent(product, extent, _INFINITE))),
        used=min(used or 1, MOST_EXTENT),
    )


def _inference(product: Product, bench: _Bench) -> PurposeMemory:
    tensors = bench.inference(product)
    return _memory("inference", "forward", tensors, needed_memory(tensors, bench.job), bench.job)


def _training(product: Product, bench: _Bench) -> PurposeMemory:
    events = bench.training(product)
    needs = {event: needed_memory(tensors, bench.job) for event, tensors in events.items()}
    event = max(needs, key=lambda name: needs[name].needed)
    return _memory("training", event, events[event], needs[event], bench.job)


def _memory(
    purpose: Purpose, event: str, tensors: tuple[LiveTensor, ...], needs: NeededMemory, job: Job
) -> PurposeMemory:
    return PurposeMemory(
        purpose=purpose,
        event=event,
        tensors=tuple(TensorBytes(x.name, x.size, x.resident) for x in tensors),
        allocated_bytes=needs.allocated,
        reserved_bytes=needs.reserved,
        context_bytes=overheads_of(job).context,
        total_bytes=needs.total,
        needed_bytes=needs.needed,
        limit_bytes=needs.limit,
        fits=needs.fits,
    )


def _time(product: Product, bench: _Bench, purpose: Purpose) -> PurposeTime:
    parts = _parts(product, bench.machine, purpose)
    seconds = sum(parts.values())
    modelled = sum(_parts(product, unmeasured(bench.job, bench.machine), purpose).values()) / seconds
    below, above = half_widths(modelled, bench.job.stack.uncertainty)
    peak, bandwidth = bench.machine.peak_flops, bench.job.cluster.device.memory.bandwidth.value
    passes = len(parts)
    rate = passes * flops_of(product) / seconds
    return PurposeTime(
        purpose=purpose,
        parts=tuple(parts.items()),
        seconds=seconds,
        seconds_low=seconds * (1.0 - below),
        seconds_high=seconds * (1.0 + above),
        least_seconds=passes * max(flops_of(product) / peak, float(hbm_bytes(product)) / bandwidth),
        modelled_share=modelled,
        flops_per_second=rate,
        peak_share=rate / peak,
    )


def _parts(product: Product, machine: Machine, purpose: Purpose) -> dict[str, float]:
    forward = {"forward": forward_seconds(product, machine)}
    if purpose == "inference":
        return forward
    below, weight = backward_seconds(product, machine)
    return {**forward, "input gradient": below, "weight gradient": weight}


def _roofline(product: Product, bench: _Bench, ridge: Fraction) -> Roofline:
    at = intensity(product)
    return Roofline(
        intensity=float(at),
        ridge=float(ridge),
        peak_flops=bench.machine.peak_flops,
        hbm_bandwidth=bench.job.cluster.device.memory.bandwidth.value,
        bound="compute" if at >= ridge else "memory",
    )


def _split_k(product: Product, bench: _Bench) -> SplitK:
    partial = split_k_bytes(product, bench.parts)
    return SplitK(
        library="hipBLAS" if bench.job.cluster.device.vendor == "amd" else "cuBLAS",
        parts=bench.parts,
        bytes=partial,
        in_workspace=partial <= bench.workspace,
        workspace_bytes=bench.workspace,
        lt_workspace_bytes=bench.workspaces[1],
        most_parts=largest_split(product, bench.workspace),
    )


def _reasons(
    question: GemmQuestion, free: FreeExtent | None, memory: tuple[PurposeMemory, ...]
) -> Iterator[str]:
    """Yield why there is no answer: nothing fits, or no extent is compute-bound."""
    if free is not None and question.find == "compute-bound" and free.smallest_compute_bound is None:
        yield (
            f"no {free.extent} is compute-bound: intensity stays below {free.most_intensity:,.1f} FLOP/byte,"
            " which is less than the ridge point; enlarge the smaller of the other two extents"
        )
    inference = memory[0]
    if not inference.fits:
        what = (
            f"no {free.extent} fits"
            if free is not None and not free.largest_inference
            else "the product does not fit"
        )
        yield (
            f"{what}: it needs {format_bytes(inference.needed_bytes)} of the"
            f" {format_bytes(inference.limit_bytes)} that a device may use"
        )


def _changes(product: Product, bench: _Bench, memory: tuple[PurposeMemory, ...]) -> Iterator[str]:
    """Yield the smallest changes of one extent with which the product fits, the smallest first."""
    failing = next((x.purpose for x in memory if not x.fits), None)
    if failing is None:
        return
    changes = []
    for extent in _EXTENTS:
        value = getattr(product, extent)
        most = largest_extent(
            lambda x, extent=extent: bench.fits(with_extent(product, extent, x), failing)  # type: ignore[misc]
        )
        if 0 < most < value:
            changes.append((most / value, f"{failing} fits with {extent} = {most:,} instead of {value:,}"))
    yield from (sentence for _, sentence in sorted(changes, reverse=True))
    needed, limit = (
        next(getattr(x, y) for x in memory if not x.fits) for y in ("needed_bytes", "limit_bytes")
    )
    yield f"{failing} fits on a device with {format_bytes(needed - limit)} more memory for it"


def _notes(product: Product, memory: tuple[PurposeMemory, ...]) -> Iterator[str]:
    if product.operands != "fp32":
        yield (
            "Products are accumulated in fp32 in registers: that costs no memory. It costs memory only where"
            " partial sums leave registers, as those of split-k do."
        )
    yield (
        "Fits: what stays + what comes and goes x fragmentation + CUDA context, with the upper ends of both"
        f" ranges, is within usable memory less headroom ({format_bytes(memory[0].limit_bytes)})."
    )
    if memory[0].fits and not memory[1].fits:
        yield "It fits for inference, not for training."


def _catalogue_sources(job: Job) -> Iterator[tuple[str, str]]:
    device, table = job.cluster.device, job.kernels.gemm_table
    for name, number in (
        ("usable memory", device.memory.usable),
        ("memory bandwidth", device.memory.bandwidth),
    ):
        yield name, device.sources[number.source]
    measured = job.kernels.sources[table.source] if table is not None else job.kernels.valid_for
    yield "time of the product", f"costmodels/kernels/{job.kernels.name}.yaml: {measured}"
    stack = job.stack
    yield (
        "context and fragmentation",
        (f"costmodels/stacks/{stack.name}.yaml: {stack.sources[stack.memory.cuda_context.source]}"),
    )
    rate = format_rate(device.memory.bandwidth.value, "B/s")
    yield "ridge point", f"dense peak rate of the format over {rate}, both of the data sheet"
