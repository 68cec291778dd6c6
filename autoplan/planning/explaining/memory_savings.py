"""The changes that make room, each kind as a ladder: its mildest change first, its strongest last."""

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

#: Bytes of a logit of a loss that is one kernel: 16-bit logits, and beside them what it works on.
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
    """A job and a layout in place of the explained ones, and the steps that led there, in words."""

    steps: tuple[str, ...]
    job: Job
    layout: Layout

    def to(self, layout: Layout, step: str) -> SavingStep:
        """Return this change and one more ``step``, which leads to ``layout``."""
        return SavingStep((*self.steps, step), self.job, layout)

    @property
    def allowed(self) -> bool:
        """Whether the layout keeps every rule."""
        return not broken_rules(self.job, self.layout)


@dataclass(frozen=True, slots=True)
class SavingKind:
    """One kind of change; where it is ``by_stage``, each stage may take a step of its own."""

    changes: Callable[[SavingStep], Iterator[SavingStep]]
    by_stage: Callable[[SavingStep, Layout], SavingStep] | None = None

    def steps(self, start: SavingStep, most: int | None = None) -> list[SavingStep]:
        """Return the changes of this kind that keep every rule, the mildest first: all, or about ``most``."""
        steps = list(self.changes(start))
        # The last one is the strongest: it stays.
        thinned = steps if most is None else steps[::-1][:: max(1, -(-len(steps) // most))][::-1]
        if self.by_stage is not None and not start.job.rules:
            # No built-in rule is about recompute: what holds for one of them holds for all.
            return thinned if thinned and thinned[0].allowed else []
        return [change for change in thinned if change.allowed]


def _more_tensor(start: SavingStep) -> Iterator[SavingStep]:
    layout = start.layout
    for factor in _TENSOR_FACTORS:
        if layout.dp % factor == 0:
            split = replace(layout, tp=layout.tp * factor, dp=layout.dp // factor)
            yield _with_sequence(start, split)


def _with_sequence(start: SavingStep, split: Layout) -> SavingStep:
    """Return the step to ``split``; as in a layout string, tp > 1 brings sequence parallelism."""
    step = f"tensor parallelism of {split.tp} instead of {start.layout.tp}, dp={split.dp}"
    if start.layout.tp == 1:
        both = start.to(replace(split, sequence_parallel=True), f"{step}, sp=on")
        if both.allowed:
            return both
    return start.to(split, step)


def _more_experts(start: SavingStep) -> Iterator[SavingStep]:
    """Spread experts over more ranks, split as they are, else whole."""
    layout, moe = start.layout, start.job.model.moe
    ep = 2 * layout.ep
    while moe is not None and ep <= moe.experts:
        step = f"expert parallelism of {ep} instead of {layout.ep}"
        wider = start.to(replace(layout, ep=ep), step)
        whole = start.to(replace(layout, ep=ep, expert_tensor=1), f"{step}, etp=1")
        yield wider if wider.allowed or layout.etp == 1 else whole
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
    plain = [(schedule, 1) for schedule in rules.schedules if schedule != "interleaved"]
    for zero in (zero for zero in zeros if zero <= layout.zero):
        for schedule, vpp in dict.fromkeys([(layout.schedule, layout.vpp), *plain]):
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
    more = (("zero", zero, layout.zero), ("schedule", schedule, layout.schedule), ("vpp", vpp, layout.vpp))
    return deeper, step + "".join(f", {key}={new}" for key, new, old in more if new != old)


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
    moved = replace(start.layout, optimizer_offload=True)
    asked = moved != start.layout and _asks(start.job, moved)
    if asked and start.job.stack.offload is not None:
        yield start.to(moved, "optimizer state in host memory")


def _activation_offload(start: SavingStep) -> Iterator[SavingStep]:
    """Move what layers keep, recomputed as they are, else in the other ways that the stack has it with."""
    policy, layout = start.job.stack.activation_offload, start.layout
    if policy is None or layout.activation_offload:
        return
    wish = start.job.search.offload_every
    some = sorted((1, 2, 4, 8) if wish == "any" else wish if isinstance(wish, tuple) else (wish,))
    for mode in sorted(policy.recompute, key=lambda mode: mode != layout.mode):
        for every in reversed(some):
            moved = replace(layout.alike(mode), activation_offload=True, offload_every=every)
            if _asks(start.job, moved):
                part = f" of one in {every} layers" if every > 1 else ""
                also = "" if mode == layout.mode else f", recompute={mode}"
                yield start.to(moved, f"activations{part} in host memory{also}")


def _asks(job: Job, layout: Layout) -> bool:
    wish = job.search.offload
    return layout.offload in (wish if isinstance(wish, tuple) else (wish,))


def _recompute(mode: Literal["selective", "full"]) -> SavingKind:
    """Return the kind that recomputes one layer after the other on every stage."""

    def steps(start: SavingStep) -> Iterator[SavingStep]:
        wish = start.job.search.recompute
        if wish != "any" and mode not in (wish if isinstance(wish, tuple) else (wish,)):
            return
        if start.layout.activation_offload:
            # All layers go together, see ``_activation_offload``.
            return
        # Layers that share a checkpoint are recomputed together.
        each, most = start.layout.checkpoint if mode == "full" else 1, max(start.layout.layers)
        seen = start.layout
        for count in [*range(each, most, each), most]:
            layout = _recomputing(start.layout, mode, count)
            if layout != seen:
                yield named(start, layout)
            seen = layout

    def named(start: SavingStep, layout: Layout) -> SavingStep:
        count, total = sum(getattr(layout, mode)), sum(layout.layers)
        how = {"selective": "selectively", "full": "in full"}[mode]
        return start.to(layout, f"recompute {count} of {total} layers {how}")

    return SavingKind(steps, named)


def _recomputing(layout: Layout, mode: Literal["selective", "full"], count: int) -> Layout:
    """Return ``layout`` with at least ``count`` layers of every stage recomputed, where it has as many."""
    if mode == "full":
        full = tuple(max(f, min(count, n)) for n, f in zip(layout.layers, layout.full, strict=True))
        rest = zip(layout.layers, layout.selective, full, strict=True)
        return replace(layout, full=full, selective=tuple(min(s, n - f) for n, s, f in rest))
    stages = zip(layout.layers, layout.selective, layout.full, strict=True)
    return replace(layout, selective=tuple(max(s, min(count, n - f)) for n, s, f in stages))


#: In the order in which two of them are made: recompute last, so that it is no more than is still needed.
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
