"""Changes of a layout that save memory: of each kind a sequence of steps, the smallest saving first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from autoplan.costs.core.divisors import divisors
from autoplan.rules import broken_rules
from autoplan.schema.costmodel.block_policy import BlockPolicy
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, Schedule
from autoplan.schema.stage_layers import even_stages

__all__ = ["KINDS", "SavingKind", "SavingStep"]

#: Bytes per logit of a fused loss kernel: 16-bit logits and its workspace.
_FUSED_LOSS: Final = {
    "logits_bytes": 2,
    "logits_forward_bytes": 4,
    "logits_backward_bytes": 4,
    "loss_forward_traffic": 2,
    "loss_backward_traffic": 4,
}

_TENSOR_FACTORS: Final = (2, 4)
_CONTEXT_FACTORS: Final = (2, 4)


@dataclass(frozen=True, slots=True)
class SavingStep:
    """A changed job and layout, and the steps that lead to them, in words."""

    steps: tuple[str, ...]
    job: Job
    layout: Layout

    def to(self, layout: Layout, step: str) -> SavingStep:
        """Return this change with one more ``step``, to ``layout``."""
        return SavingStep((*self.steps, step), self.job, layout)

    @property
    def allowed(self) -> bool:
        """Whether the layout satisfies every rule."""
        return not broken_rules(self.job, self.layout)


@dataclass(frozen=True, slots=True)
class SavingKind:
    """One kind of change; with ``by_stage``, each stage may take a different step."""

    changes: Callable[[SavingStep], Iterator[SavingStep]]
    by_stage: Callable[[SavingStep, Layout], SavingStep] | None = None

    def steps(self, start: SavingStep, most: int | None = None) -> list[SavingStep]:
        """Return the allowed changes of this kind, the smallest first: all, or about ``most`` of them."""
        steps = list(self.changes(start))
        # Count from the end, so that the largest saving stays.
        thinned = steps if most is None else steps[::-1][:: max(1, -(-len(steps) // most))][::-1]
        if self.by_stage is not None and not start.job.rules:
            # No built-in rule depends on recompute: if one step is allowed, all are.
            return thinned if thinned and thinned[0].allowed else []
        return [change for change in thinned if change.allowed]


def _more_tensor(start: SavingStep) -> Iterator[SavingStep]:
    layout = start.layout
    for factor in _TENSOR_FACTORS:
        if layout.dp % factor == 0:
            split = replace(layout, tp=layout.tp * factor, dp=layout.dp // factor)
            yield _with_sequence(start, split)


def _with_sequence(start: SavingStep, split: Layout) -> SavingStep:
    """Return the step to ``split``; as in a layout string, tp > 1 implies sequence parallelism."""
    step = f"tensor parallelism of {split.tp} instead of {start.layout.tp}, dp={split.dp}"
    if start.layout.tp == 1:
        both = start.to(replace(split, sequence_parallel=True), f"{step}, sp=on")
        if both.allowed:
            return both
    return start.to(split, step)


def _more_experts(start: SavingStep) -> Iterator[SavingStep]:
    """Yield higher expert parallelism, with the same expert tensor parallelism where allowed, else with 1."""
    layout, moe = start.layout, start.job.model.moe
    ep = 2 * layout.ep
    while moe is not None and ep <= moe.experts:
        step = f"expert parallelism of {ep} instead of {layout.ep}"
        split = start.to(replace(layout, ep=ep), step)
        unsplit = start.to(replace(layout, ep=ep, expert_tensor=1), f"{step}, etp=1")
        yield split if split.allowed or layout.etp == 1 else unsplit
        ep *= 2


def _more_context(start: SavingStep) -> Iterator[SavingStep]:
    layout = start.layout
    for factor in _CONTEXT_FACTORS:
        if layout.dp % factor == 0:
            split = replace(layout, cp=layout.cp * factor, dp=layout.dp // factor)
            step = f"context parallelism of {split.cp} instead of {layout.cp}, dp={split.dp}"
            yield start.to(split, step)


def _more_pipeline(start: SavingStep) -> Iterator[SavingStep]:
    layout, rules = start.layout, start.job.stack.rules
    if layout.dp % 2:
        return
    # A stack may run pipelines at lower ZeRO stages only, and a deeper one without virtual stages only.
    zeros = sorted({layout.zero, *rules.zero_stages_with_pipeline}, key=lambda zero: -zero)
    non_interleaved = [(schedule, 1) for schedule in rules.schedules if schedule != "interleaved"]
    for zero in (zero for zero in zeros if zero <= layout.zero):
        for schedule, vpp in dict.fromkeys([(layout.schedule, layout.vpp), *non_interleaved]):
            if 2 * layout.pp * vpp <= sum(layout.layers):
                deeper = start.to(*_deeper(layout, zero, schedule, vpp))
                if deeper.allowed:
                    yield deeper
                    return


def _deeper(layout: Layout, zero: int, schedule: Schedule, vpp: int) -> tuple[Layout, str]:
    """Return ``layout`` with twice the stages, split evenly with the same share recomputed, and the step."""
    total, pp = sum(layout.layers), 2 * layout.pp
    layers = even_stages(total, pp, vpp)
    full = tuple(-(-n * sum(layout.full) // total) for n in layers)
    selective = tuple(
        min(n - f, -(-n * sum(layout.selective) // total)) for n, f in zip(layers, full, strict=True)
    )
    deeper = replace(
        layout,
        pp=pp,
        dp=layout.dp // 2,
        zero=zero,
        vpp=vpp,
        schedule=schedule,
        layers=layers,
        selective=selective,
        full=full,
    )
    step = f"pipeline of {pp} stages instead of {layout.pp}, dp={deeper.dp}"
    changes = (("zero", zero, layout.zero), ("schedule", schedule, layout.schedule), ("vpp", vpp, layout.vpp))
    return deeper, step + "".join(f", {key}={new}" for key, new, old in changes if new != old)


def _smaller_microbatch(start: SavingStep) -> Iterator[SavingStep]:
    layout = start.layout
    share = start.job.workload.global_batch_size // layout.dp
    for size in reversed(divisors(share)):
        if size < layout.microbatch:
            step = f"microbatch of {size} instead of {layout.microbatch}"
            yield start.to(replace(layout, microbatch=size), step)


def _higher_zero(start: SavingStep) -> Iterator[SavingStep]:
    layout = start.layout
    if layout.dp * layout.cp > 1:
        for zero in range(layout.zero + 1, 4):
            yield start.to(replace(layout, zero=zero), f"ZeRO stage {zero} instead of {layout.zero}")


def _sequence_parallel(start: SavingStep) -> Iterator[SavingStep]:
    if start.layout.tp > 1 and not start.layout.sequence_parallel:
        yield start.to(replace(start.layout, sequence_parallel=True), "sequence parallelism")


def _with_block(start: SavingStep, step: str, **policy: int) -> SavingStep:
    stack = start.job.stack
    block: BlockPolicy = stack.block.model_copy(update=policy)
    changed: StackSpec = stack.model_copy(update={"block": block})
    return SavingStep((*start.steps, step), replace(start.job, stack=changed), start.layout)


def _fused_loss(start: SavingStep) -> Iterator[SavingStep]:
    block = start.job.stack.block
    less = {name: size for name, size in _FUSED_LOSS.items() if getattr(block, name) > size}
    if less:
        yield _with_block(start, "fused loss", **less)


def _split_loss(start: SavingStep) -> Iterator[SavingStep]:
    if start.layout.tp > 1 and not start.job.stack.block.vocabulary_parallel_loss:
        yield _with_block(start, "vocabulary-parallel loss", vocabulary_parallel_loss=True)


def _offload(start: SavingStep) -> Iterator[SavingStep]:
    offloaded = replace(start.layout, optimizer_offload=True)
    wanted = offloaded != start.layout and _allowed_offload(start.job, offloaded)
    if wanted and start.job.stack.optimizer_offload is not None:
        yield start.to(offloaded, "optimizer state in host memory")


def _activation_offload(start: SavingStep) -> Iterator[SavingStep]:
    """Yield offload of activations with the layout's recompute mode, then with the stack's other modes."""
    policy, layout = start.job.stack.activation_offload, start.layout
    if policy is None or layout.activation_offload:
        return
    requested = start.job.search.offload_every
    intervals = sorted(
        (1, 2, 4, 8) if requested == "any" else requested if isinstance(requested, tuple) else (requested,)
    )
    for mode in sorted(policy.recompute, key=lambda mode: mode != layout.mode):
        for every in reversed(intervals):
            offloaded = replace(
                layout.with_uniform_recompute(mode), activation_offload=True, offload_every=every
            )
            if _allowed_offload(start.job, offloaded):
                part = f" of one in {every} layers" if every > 1 else ""
                mode_change = "" if mode == layout.mode else f", recompute={mode}"
                yield start.to(offloaded, f"activations{part} in host memory{mode_change}")


def _allowed_offload(job: Job, layout: Layout) -> bool:
    requested = job.search.offload
    return layout.offload in (requested if isinstance(requested, tuple) else (requested,))


def _recompute(mode: Literal["selective", "full"]) -> SavingKind:
    """Return the kind of change that recomputes ever more layers of every stage."""

    def steps(start: SavingStep) -> Iterator[SavingStep]:
        requested = start.job.search.recompute
        if requested != "any" and mode not in (requested if isinstance(requested, tuple) else (requested,)):
            return
        if start.layout.activation_offload:
            # Then all layers have the same mode, see ``_activation_offload``.
            return
        # The layers of one recompute unit are recomputed together.
        unit, most = start.layout.recompute_num_layers if mode == "full" else 1, max(start.layout.layers)
        previous = start.layout
        for count in [*range(unit, most, unit), most]:
            layout = _recomputing(start.layout, mode, count)
            if layout != previous:
                yield named(start, layout)
            previous = layout

    def named(start: SavingStep, layout: Layout) -> SavingStep:
        count, total = sum(getattr(layout, mode)), sum(layout.layers)
        mode_words = {"selective": "selectively", "full": "in full"}[mode]
        return start.to(layout, f"recompute {count} of {total} layers {mode_words}")

    return SavingKind(steps, named)


def _recomputing(layout: Layout, mode: Literal["selective", "full"], count: int) -> Layout:
    """Return ``layout`` with recompute of at least ``count`` layers of every stage, or of all."""
    if mode == "full":
        full = tuple(max(f, min(count, n)) for n, f in zip(layout.layers, layout.full, strict=True))
        stages = zip(layout.layers, layout.selective, full, strict=True)
        return replace(layout, full=full, selective=tuple(min(s, n - f) for n, s, f in stages))
    stages = zip(layout.layers, layout.selective, layout.full, strict=True)
    return replace(layout, selective=tuple(max(s, min(count, n - f)) for n, s, f in stages))


#: In the order in which two are combined: recompute last, so that it is no more than still needed.
KINDS: Final = (
    SavingKind(_more_tensor),
    SavingKind(_more_experts),
    SavingKind(_more_context),
    SavingKind(_more_pipeline),
    SavingKind(_smaller_microbatch),
    SavingKind(_higher_zero),
    SavingKind(_sequence_parallel),
    SavingKind(_fused_loss),
    SavingKind(_split_loss),
    SavingKind(_offload),
    SavingKind(_activation_offload),
    _recompute("selective"),
    _recompute("full"),
)
