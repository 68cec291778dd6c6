"""Remedies of a layout that does not fit: the smallest sufficient change of each kind, and its cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from autoplan.catalog.job_files import edited_file
from autoplan.catalog.programs import ANY_LAYOUT, USUAL
from autoplan.costs.core.candidates import divisors
from autoplan.costs.predict import facts_of, predict_all
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.planning.plan_and_evaluate import chosen, evaluate
from autoplan.results.explanation import Explanation, Remedy, judged_bytes, judged_stage
from autoplan.results.plan import Plan
from autoplan.rules.layout_rules import broken_rules
from autoplan.rules.user_constraints import recompute_menu
from autoplan.schema.costmodel.block_policy import BlockPolicy
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, Schedule
from autoplan.schema.recompute import FULL, MODES, USUAL_MODES
from autoplan.schema.stage_layers import even_stages

# Changes of a layout that save memory: of each kind a sequence of steps, the smallest saving first.


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
        if self.by_stage is not None and not start.job.relations:
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
    left, recomputed = layers, []
    for mode, counts in reversed(layout.recomputed):
        share = [min(x, -(-n * sum(counts) // total)) for n, x in zip(layers, left, strict=True)]
        recomputed.append((mode, tuple(share)))
        left = tuple(x - n for x, n in zip(left, share, strict=True))
    deeper = replace(
        layout,
        pp=pp,
        dp=layout.dp // 2,
        zero=zero,
        vpp=vpp,
        schedule=schedule,
        layers=layers,
        recomputed=tuple(recomputed),
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


def _recompute(mode: str) -> SavingKind:
    """Return the kind of change that recomputes ever more layers of every stage."""

    def steps(start: SavingStep) -> Iterator[SavingStep]:
        if mode not in recompute_menu(start.job):
            return
        if start.layout.activation_offload:
            # Then all layers have the same mode, see ``_activation_offload``.
            return
        # The layers of one recompute unit are recomputed together.
        unit, most = start.layout.recompute_num_layers if mode == FULL else 1, max(start.layout.layers)
        previous = start.layout
        for count in [*range(unit, most, unit), most]:
            layout = _recomputing(start.layout, mode, count)
            if layout != previous:
                yield named(start, layout)
            previous = layout

    def named(start: SavingStep, layout: Layout) -> SavingStep:
        count, total = sum(layout.counts(mode)), sum(layout.layers)
        return start.to(layout, f"recompute {count} of {total} layers {_HOW.get(mode, f'by {mode}')}")

    return SavingKind(steps, named)


def _recomputing(layout: Layout, mode: str, count: int) -> Layout:
    """Return ``layout`` with recompute of at least ``count`` layers of every stage, or of all.

    They take the place of layers with modes that free less.
    """
    stages = [_stage_recomputing(layout, mode, count, i) for i in range(layout.pp)]
    return layout.with_recompute({x.name: [stage[x.name] for stage in stages] for x in MODES})


def _stage_recomputing(layout: Layout, mode: str, count: int, stage: int) -> dict[str, int]:
    left, wanted, counts = layout.layers[stage], False, dict[str, int]()
    for name in (x.name for x in reversed(MODES)):
        n = layout.counts(name)[stage]
        counts[name] = max(n, min(count, left)) if name == mode else min(n, left) if wanted else n
        left, wanted = left - counts[name], wanted or name == mode
    return counts


#: How layers are recomputed, in words.
_HOW: Final = {"selective": "selectively", "full": "in full"}

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
    *(_recompute(mode.name) for mode in MODES),
)


# Remedies of a layout applied: the job file with a search of the remedied layout alone.


def remedied(job: Job, explanation: Explanation, number: int, folder: Path | None = None) -> str:
    """Return the file of ``job`` restricted to the layout of the remedy ``number``, from 1.

    ``search`` has the layout's choices and ``rules`` its stages, besides those of the user. Relative paths
    are rewritten for a file in ``folder``, by default the current one. Raises UnsupportedError where there is
    no such remedy, where it changes the stack, which is another file, and where the job comes from no file.
    """
    count = len(explanation.remedies)
    if not 1 <= number <= count:
        have = f"remedies are 1 to {count}" if count else "no change to this layout saves memory"
        raise UnsupportedError(f"there is no remedy {number}: {have}")
    remedy = explanation.remedies[number - 1]
    changes = [*_changes(job, remedy.plan.layout), *_program(job, explanation.plan.layout)]
    text, solution = edited_file(job, changes, folder or Path())
    if not _priced_alike(solution, remedy.plan):
        raise UnsupportedError(f"remedy {number} is no change of the job file alone: {_by_hand(job, remedy)}")
    return text


def _program(job: Job, explained: Layout) -> Iterator[tuple[str, str]]:
    """Yield the program that the layout ``explained`` is of, where ``job`` leaves it open."""
    if job.programs == USUAL:
        run = chosen(job, explained).program
        yield "program", ANY_LAYOUT if run is None else run.name


def _by_hand(job: Job, remedy: Remedy) -> str:
    """Return what to do for a remedy that is not one of the job file."""
    if " in stack " in remedy.change:
        remaining_edits = (
            f"write a stack file with `extends: {job.stack.name}` and these fields, and name it as `stack`"
        )
        return f"{remedy.change}. To make it, {remaining_edits}"
    return f"evaluate {remedy.change} instead"


def _priced_alike(job: Job, plan: Plan) -> bool:
    """Return whether the layout of ``plan`` is allowed in ``job`` and has the same prediction."""
    try:
        return evaluate(job, plan.layout).predicted == plan.predicted
    except AutoplanError:
        return False


def _changes(job: Job, layout: Layout) -> list[tuple[str, str]]:
    """Return the new values of keys that leave ``layout`` alone in the search."""
    choices: dict[str, object] = {
        "tensor_parallel": layout.tp,
        "pipeline_parallel": layout.pp,
        "data_parallel": layout.dp,
        "context_parallel": layout.cp,
        "expert_parallel": layout.ep,
        "expert_tensor_parallel": layout.etp if job.model.moe is not None else "any",
        "microbatch_size": layout.microbatch,
        "virtual_stages": layout.vpp,
        "zero_stage": layout.zero,
        "dp_shard": layout.dp_shard or ("all" if layout.zero else job.search.dp_shard),
        "sequence_parallel": "on" if layout.sequence_parallel else "off",
        "schedule": layout.schedule,
        "order": layout.order,
        "recompute": _modes(layout),
        "recompute_num_layers": layout.recompute_num_layers,
        "offload": layout.offload,
        "offload_every": layout.offload_every,
    }
    changes = [
        (f"search.{key}", str(value))
        for key, value in choices.items()
        if str(value) != str(getattr(job.search, key))
    ]
    if len({choice.cluster.devices for choice in job.choices}) > 1:
        changes.append(("devices", str(layout.devices)))
    stages = _stage_rules(layout)
    if stages:
        rules = [rule.model_dump(exclude_none=True) if rule.because else rule.rule for rule in job.rules]
        changes.append(("rules", json.dumps([*rules, *stages], ensure_ascii=False)))
    return changes


def _modes(layout: Layout) -> str:
    """Return the recompute modes that layers of ``layout`` have, as YAML."""
    none = ["none"] if layout.recomputed_layers < sum(layout.layers) else []
    used = none + [mode for mode, _ in layout.recomputed]
    return used[0] if len(used) == 1 else f"[{', '.join(used)}]"


def _stage_rules(layout: Layout) -> list[str]:
    """Return rules that fix layers and recompute of every stage, where the search leaves them open."""
    counts: list[tuple[str, Sequence[int]]] = [("layers", layout.layers)] if layout.pp > 1 else []
    if layout.mode is None:
        counts += [(mode.name, layout.counts(mode.name)) for mode in MODES if mode.usual]
        counts += [(mode, n) for mode, n in layout.recomputed if mode not in USUAL_MODES]
    return [
        " and ".join(f"{name}[{stage}] == {count}" for stage, count in enumerate(stages))
        for name, stages in counts
    ]


#: Most pairs of changes that are listed where no single change is sufficient.
_MOST_PAIRS: Final = 3

#: Most changes of one kind that are tried in a pair.
_STEPS_OF_A_PAIR: Final = 4

#: Least relative saving of a remedy.
_LEAST_SAVING: Final = 1e-3


class _Evaluations:
    """Cache of the plans of changes; those of one call are priced in one batch."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.jobs = [job]
        self.plans: dict[tuple[int, Layout], Plan] = {(0, plan.layout): plan}

    def of(self, changes: Sequence[SavingStep]) -> list[Plan]:
        """Return the plan of each of ``changes``."""
        keys = [(self._number(change.job), change.layout) for change in changes]
        for number, job in enumerate(self.jobs):
            requested = dict.fromkeys(layout for n, layout in keys if n == number)
            new = [layout for layout in requested if (number, layout) not in self.plans]
            if new:
                facts = facts_of(job)
                for layout, predicted in zip(new, predict_all(job, new), strict=True):
                    self.plans[number, layout] = Plan(layout, predicted, facts)
        return [self.plans[key] for key in keys]

    def _number(self, job: Job) -> int:
        """Return the number of ``job`` among the known jobs, which differ in the stack only."""
        for number, earlier in enumerate(self.jobs):
            if earlier is job or earlier.stack == job.stack:
                return number
        self.jobs.append(job)
        return len(self.jobs) - 1


def remedies_of(job: Job, plan: Plan) -> tuple[Remedy, ...]:
    """Return the changes that make ``plan`` fit, or, where it does, that save memory.

    Of each kind of change the smallest that is sufficient, else the one that saves most; pairs of changes
    where no single one is sufficient. Sufficient ones come first, the fastest first, then the others by their
    saving.
    """
    start, prices = SavingStep((), job, plan.layout), _Evaluations(job, plan)
    steps_by_kind = [(kind, kind.steps(start)) for kind in KINDS]
    prices.of([change for _, steps in steps_by_kind for change in steps])
    fits = plan.predicted.fits
    select = _first_saving if fits else _smallest_sufficient
    chosen = [select(kind, start, steps, prices) for kind, steps in steps_by_kind if steps]
    remedies = _remedies(start, chosen, prices)
    if not fits and not any(remedy.fits for remedy in remedies):
        most = max((remedy.saved_bytes for remedy in remedies), default=0.0)
        pairs = _remedies(start, _best_pairs(start, prices), prices)
        # A pair in which one change adds nothing is listed already as a single change.
        remedies += [pair for pair in pairs if pair.fits or pair.saved_bytes > most * (1 + _LEAST_SAVING)]
    return tuple(sorted(remedies, key=_rank))


def _rank(remedy: Remedy) -> tuple[bool, float]:
    return not remedy.fits, remedy.slowdown if remedy.fits else -remedy.saved_bytes


def _first_saving(
    kind: SavingKind, start: SavingStep, steps: Sequence[SavingStep], prices: _Evaluations
) -> SavingStep:
    """Return the change for a layout that fits: the smallest step, or recompute of all layers."""
    del start, prices
    return steps[0] if kind.by_stage is None else steps[-1]


def _smallest_sufficient(
    kind: SavingKind, start: SavingStep, steps: Sequence[SavingStep], prices: _Evaluations
) -> SavingStep:
    """Return the first of ``steps`` that fits, by stage where possible; else the one of least memory."""
    plans = prices.of(steps)
    if kind.by_stage is not None:
        layout = _least_recompute(start.job, prices.of([start, *steps]))
        # The user's rules may restrict recompute across stages.
        if layout is not None and (picked := kind.by_stage(start, layout)).allowed:
            return picked
    for change, plan in zip(steps, plans, strict=True):
        if plan.predicted.fits:
            return change
    return min(zip(steps, plans, strict=True), key=lambda pair: _judged_bytes(pair[0], pair[1]))[0]


def _least_recompute(job: Job, plans: Sequence[Plan]) -> Layout | None:
    """Return the layout whose stages each have the recompute of the first of ``plans`` in which they fit.

    None where a stage fits in no plan. A stage's memory does not depend on recompute of the others.
    """
    layouts, picked = [plan.layout for plan in plans], []
    for i in range(layouts[0].pp):
        stages = [plan.predicted.memory.stages[i] for plan in plans]
        limit = plans[0].predicted.memory_limit_bytes
        fitting = [k for k, stage in enumerate(stages) if judged_bytes(job, stage) <= limit]
        if not fitting:
            return None
        picked.append(fitting[0])
    return layouts[0].with_recompute(
        {mode.name: [layouts[k].counts(mode.name)[i] for i, k in enumerate(picked)] for mode in MODES}
    )


def _best_pairs(start: SavingStep, prices: _Evaluations) -> list[SavingStep]:
    """Return the best pairs of changes: the fastest that fit, or those of least memory if none does."""
    pairs = list(_pairs(start))
    plans = prices.of([both for _, _, both in pairs])
    best: dict[tuple[int, int], tuple[tuple[bool, float], SavingStep, SavingStep]] = {}
    for (kinds, first, both), plan in zip(pairs, plans, strict=True):
        fits, seconds = plan.predicted.fits, plan.predicted.step_seconds
        rank = (not fits, seconds if fits else _judged_bytes(both, plan))
        if kinds not in best or rank < best[kinds][0]:
            best[kinds] = (rank, first, both)
    ranked = sorted(best.items(), key=lambda item: item[1][0])[:_MOST_PAIRS]
    return [
        both if rank[0] else _refined(KINDS[kinds[1]], first, both, prices)
        for kinds, (rank, first, both) in ranked
    ]


def _pairs(start: SavingStep) -> Iterator[tuple[tuple[int, int], SavingStep, SavingStep]]:
    """Yield pairs of changes: the numbers of their kinds, the first change, and both."""
    for i, kind in enumerate(KINDS):
        for first in kind.steps(start, _STEPS_OF_A_PAIR):
            for j, other in enumerate(KINDS[i + 1 :], start=i + 1):
                for both in other.steps(first, _STEPS_OF_A_PAIR):
                    yield (i, j), first, both


def _refined(kind: SavingKind, first: SavingStep, both: SavingStep, prices: _Evaluations) -> SavingStep:
    """Return the pair with the least recompute that is sufficient after its first change."""
    return both if kind.by_stage is None else _smallest_sufficient(kind, first, kind.steps(first), prices)


def _judged_bytes(change: SavingStep, plan: Plan) -> float:
    return judged_bytes(change.job, judged_stage(change.job, plan.predicted))


def _remedies(start: SavingStep, changes: Sequence[SavingStep], prices: _Evaluations) -> list[Remedy]:
    """Return the savings and slowdowns of ``changes``, without those that save nothing."""
    before, *plans = prices.of([start, *changes])
    judged, step = _judged_bytes(start, before), before.predicted.step_seconds
    remedies = [
        Remedy(
            name=", ".join(change.steps),
            plan=plan,
            saved_bytes=judged - _judged_bytes(change, plan),
            slowdown=plan.predicted.step_seconds / step - 1.0,
            fits=plan.predicted.fits,
            change=_edit(start, change),
        )
        for change, plan in zip(changes, plans, strict=True)
    ]
    return [remedy for remedy in remedies if remedy.saved_bytes > _LEAST_SAVING * judged]


def _edit(start: SavingStep, change: SavingStep) -> str:
    """Return the edits for the user: the layout string, and the fields of the stack's file."""
    old, new = start.job.stack.block, change.job.stack.block
    differs = [name for name in type(old).model_fields if getattr(old, name) != getattr(new, name)]
    policy = ", ".join(f"{name}: {str(getattr(new, name)).lower()}" for name in differs)
    edits = [str(change.layout)] if change.layout != start.layout else []
    edits += [f"block: {{{policy}}} in stack {start.job.stack.name}"] if policy else []
    return ", and ".join(edits)
