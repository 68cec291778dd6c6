"""Rows of a file to predictions: each row's own layout, or every layout that it may have had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import isfinite
from pathlib import Path

from pydantic import ValidationError

from autoplan.catalog import entry_names
from autoplan.costs.core.prediction import Prediction
from autoplan.costs.device.memory_limit import reported_memory_bytes
from autoplan.errors import AutoplanError, LayoutError
from autoplan.planning.plan_and_evaluate import evaluate
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.stage_layers import fewest_layers
from benchmarks.accuracy.facts import told_of
from benchmarks.accuracy.jobs import (
    job_of,
    recompute_of,
    sequence_parallel,
    sharing_ranks,
    stage_layers,
)
from benchmarks.accuracy.runs import Run, RunLayout
from benchmarks.reading import Unreadable, fixed_sample, read_entries
from benchmarks.skips import EXPECTED, Skipped, skipped_by

__all__ = [
    "Outcome",
    "outcome_of",
    "outcomes_of_file",
    "outcomes_of_files",
    "outcomes_of_sample",
    "publication",
]

#: Microbatches tried where a run's is not told.
_MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)
_RECOMPUTES = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row: its prediction, or why there is none.

    ``plans`` holds one plan, or those of every layout that an incomplete row may have had; ``plan``
    is the fastest of them that fits, the fastest where none fits.
    """

    id: str
    group: str | None
    run: Run | None
    job: Job | None = None
    plans: tuple[Plan, ...] = ()
    skipped: Skipped | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan that stands for the row."""
        return min(self.plans, key=_fits_then_fast) if self.plans else None

    @property
    def predicted(self) -> Prediction | None:
        """The prediction that stands for the row."""
        return self.plan.predicted if self.plan else None

    @property
    def complete(self) -> bool:
        """Whether the row says that it tells everything a prediction needs."""
        return self.run is not None and self.run.complete

    @property
    def stack(self) -> str:
        """The row's stack."""
        return self.run.stack if self.run else "?"

    @property
    def device(self) -> str:
        """The row's device."""
        return self.run.hardware.gpu if self.run else "?"

    @property
    def source(self) -> str:
        """Where the row was published, to the table."""
        return self.run.source if self.run else "?"

    @property
    def publication(self) -> str:
        """What published the row: tables of one repository or paper are one publication."""
        return publication(self.source)

    @property
    def measured_kernels(self) -> bool:
        """Whether the kernels of the row's device were measured."""
        return self.job is not None and self.job.cluster.device.name in self.job.kernels.devices

    @property
    def known_stack(self) -> bool:
        """Whether the row's stack has a cost model of its own; another stands in for it where not."""
        return self.stack in entry_names("stack")

    @property
    def ran(self) -> bool:
        """Whether the run did not run out of memory."""
        return self.run is not None and not self.run.measured.oom

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, less one; None where either is missing."""
        measured = self.run.step_seconds if self.run and self.ran else None
        predicted = self.predicted
        return None if predicted is None or measured is None else predicted.step_seconds / measured - 1.0

    @property
    def covered(self) -> bool | None:
        """Whether the measured step time lies in the predicted interval; None where either is missing."""
        if self.error is None or self.run is None or self.predicted is None:
            return None
        measured = self.run.step_seconds or 0.0
        return self.predicted.step_seconds_low <= measured <= self.predicted.step_seconds_high

    @property
    def peak_memory(self) -> tuple[float, float, float] | None:
        """Predicted peak memory of what the row measured, and both ends of its 90 % interval [byte]."""
        if (predicted := self.predicted) is None or self.job is None or self.run is None:
            return None
        sizes = {
            "allocated": predicted.peak_allocated_bytes,
            "reserved": predicted.peak_reserved_bytes,
            "cached": predicted.peak_reserved_bytes,
        }
        peak = sizes.get(self.run.measured.peak_memory_kind or "")
        if peak is None:
            ends = predicted.peak_memory_bytes_low, predicted.peak_memory_bytes_high
            return predicted.peak_memory_bytes_per_device, *ends
        return peak, *reported_memory_bytes(self.job, peak, peak)

    @property
    def memory_ratio(self) -> float | None:
        """Measured over predicted peak memory; None where either is missing."""
        measured = self.run.measured.peak_memory_gib if self.run else None
        predicted = self.peak_memory
        return None if measured is None or predicted is None else measured * 2.0**30 / predicted[0]

    @property
    def memory_covered(self) -> bool | None:
        """Whether the measured peak lies in the predicted interval; None where either is missing."""
        ratio, predicted = self.memory_ratio, self.peak_memory
        if ratio is None or predicted is None:
            return None
        peak, low, high = predicted
        return low <= ratio * peak <= high


def publication(source: str) -> str:
    """Return the repository or the authors that ``source`` begins with.

    >>> publication("mosaicml/llm-foundry scripts/train/benchmarking/README.md H100 80GB BF16")
    'mosaicml/llm-foundry'
    >>> publication("Korthikanti et al., Reducing Activation Recomputation (MLSys 2023) Table 5")
    'Korthikanti et al.'
    """
    first = source.split(" ", 1)[0]
    return first if "/" in first else source.split(",", 1)[0]


def _fits_then_fast(plan: Plan) -> tuple[bool, float]:
    return (not plan.predicted.fits, plan.predicted.step_seconds)


def outcomes_of_file(path: Path, *, complete: bool = False) -> list[Outcome]:
    """Return the outcome of every row of ``path``, in order; raises as ``read_entries`` does.

    With ``complete`` only of rows that say that they are: others are predicted at many layouts each.
    """
    entries = enumerate(read_entries(path, "runs"))
    return [
        outcome_of(entry, index)
        for index, entry in entries
        if not (complete and isinstance(entry, dict) and entry.get("complete") is False)
    ]


def outcomes_of_files(paths: Iterable[Path], *, complete: bool = False) -> list[Outcome]:
    """Return the outcomes of the rows of all ``paths``; raises as ``read_entries`` does."""
    return [outcome for path in paths for outcome in outcomes_of_file(path, complete=complete)]


def outcomes_of_sample(paths: Iterable[Path], size: int) -> list[Outcome]:
    """Return the outcomes of a fixed sample of the complete rows of all ``paths``."""
    entries = [
        entry
        for path in paths
        for entry in read_entries(path, "runs")
        if isinstance(entry, dict) and entry.get("complete") is not False
    ]
    sample = fixed_sample(entries, size, lambda entry: str(entry.get("id")))
    return [outcome_of(entry, index) for index, entry in enumerate(sample)]


def outcome_of(entry: object, index: int) -> Outcome:
    """Return the outcome of one row, whatever it holds; ``index`` names a row without a name."""
    name, group = _text(entry, "id") or f"row {index}", _text(entry, "group")
    if isinstance(entry, Unreadable):
        return Outcome(name, group, None, skipped=Skipped("malformed row", entry.reason))
    try:
        run = Run.model_validate(entry)
    except ValidationError as error:
        return Outcome(name, group, None, skipped=skipped_by("malformed row", error))
    try:
        job = job_of(run)
        plans = tuple(_plans(run, job))
    except Skipped as skipped:
        return Outcome(name, group, run, skipped=skipped)
    except (AutoplanError, *EXPECTED) as error:
        return Outcome(name, group, run, skipped=skipped_by("autoplan refuses the job", error))
    return Outcome(name, group, run, job=job, plans=plans)


def _text(entry: object, key: str) -> str | None:
    value = entry.get(key) if isinstance(entry, dict) else None
    return value if isinstance(value, str) else None


def _plans(run: Run, job: Job) -> Iterator[Plan]:
    """Yield the plan of every layout that the run may have had; Skipped where there is none."""
    refused: LayoutError | None = None
    empty = True
    for layout in _layouts(run, job):
        try:
            plan = evaluate(job, layout)
        except LayoutError as error:
            refused = refused or error
            continue
        if not isfinite(plan.predicted.step_seconds + plan.predicted.peak_memory_bytes_per_device):
            raise Skipped("the prediction is not finite", str(layout))
        empty = False
        yield plan
    if empty:
        raise Skipped("the layout breaks a rule", _sentences(refused))


def _sentences(error: LayoutError | None) -> str:
    return str(error).replace(" breaks a rule:", ":") if error else "no layout is possible"


def _layouts(run: Run, job: Job) -> Iterator[Layout]:
    """Yield the run's layout; for what the row does not tell, one for each choice."""
    layout = run.layout
    told = recompute_of(run)
    if run.complete and None in (told, layout.micro_batch, layout.zero):
        raise Skipped("malformed row", "complete, but recompute, micro_batch or zero is null")
    if fewest_layers(layout.pp, layout.vpp) > job.model.layers:
        raise Skipped("the layout breaks a rule", "more stages than layers")
    recomputes = _RECOMPUTES if told is None else (told,)
    zeros = job.stack.rules.zero_stages if layout.zero is None else (int(layout.zero),)
    for recompute, microbatch, zero in product(recomputes, _microbatches(run, job), zeros):
        yield _layout(run, job, recompute, microbatch, zero)


def _expert_split(told: RunLayout) -> int:
    """Return what splits the matrices of an expert: untold, what splits tensors, where there is room."""
    if told.etp is not None:
        return told.etp
    return told.tp if told.tp * told.dp * told.cp % (told.ep * told.tp) == 0 else 1


def _microbatches(run: Run, job: Job) -> tuple[int, ...]:
    layout = run.layout
    if layout.micro_batch is not None:
        return (layout.micro_batch,)
    share = job.workload.global_batch_size // layout.dp
    return tuple(b for b in _MICROBATCHES if b == 1 or (b <= share and share % b == 0))


def _layout(run: Run, job: Job, recompute: str, microbatch: int, zero: int) -> Layout:
    told = run.layout
    stages = stage_layers(run, job.model)
    offload = run.tuning.offload if run.tuning else "none"
    return Layout(
        tp=told.tp,
        pp=told.pp,
        dp=told.dp,
        microbatch=microbatch,
        layers=stages,
        recomputed=() if recompute == "none" else ((recompute, stages),),
        zero=zero,
        vpp=told.vpp,
        sequence_parallel=sequence_parallel(run),
        schedule="interleaved" if told.vpp > 1 else "1f1b",
        cp=told.cp,
        ep=told.ep,
        expert_tensor=_expert_split(told_of(run).layout),
        dp_shard=sharing_ranks(run),
        optimizer_offload=offload in {"optimizer", "both"},
        activation_offload=offload in {"activations", "both"},
    )
