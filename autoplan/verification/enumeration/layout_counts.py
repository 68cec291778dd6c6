"""Independent counts of layouts: of one choice of degrees, and of the whole search space of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates
from autoplan.rules.user_constraints import embedding_and_loss_counted
from autoplan.schema.job import Job
from autoplan.schema.stage_layers import even_stages
from autoplan.verification.enumeration.choice_listing import JudgedChoices, judged_choices, modes_of

__all__ = ["ChoiceCounts", "counted", "even_only", "layouts_of", "layouts_of_choice"]


@dataclass(frozen=True, slots=True)
class ChoiceCounts:
    """Counts of layouts: all, covered, by broken rule, by kind of equivalence; and of choices left."""

    total: int
    covered: int
    by_rule: dict[str, int]
    by_equivalence: dict[int, int]
    candidates: int

    @property
    def equivalent(self) -> int:
        """Layouts that are equivalent to a considered one, or dominated by one."""
        return sum(self.by_equivalence.values())


def counted(job: Job, judged: Iterable[JudgedChoices] | None = None) -> ChoiceCounts:
    """Return the counts of the layouts of ``job``, whose ``judged`` choices are enumerated unless given."""
    total = covered = choices = 0
    by_rule: Counter[str] = Counter()
    by_equivalence: Counter[int] = Counter()
    for group in judged_choices(job) if judged is None else judged:
        total += layouts_of(job, group.candidates, np.ones(len(group.candidates), dtype=bool))
        for rule in np.unique(group.first_broken[group.first_broken >= 0]).tolist():
            by_rule[group.sentences[rule]] += layouts_of(job, group.candidates, group.first_broken == rule)
        for reason in np.unique(group.equivalent[group.equivalent > 0]).tolist():
            by_equivalence[reason] += layouts_of(job, group.candidates, group.equivalent == reason)
        covered += layouts_of(job, group.candidates, group.covered)
        choices += int(group.covered.sum())
    return ChoiceCounts(total, covered, dict(by_rule), dict(by_equivalence), choices)


def layouts_of(job: Job, candidates: Candidates, which: NDArray[np.bool_]) -> int:
    """Return how many layouts the choices ``which`` of ``candidates`` stand for."""
    columns = np.stack(
        [candidates.vpp, candidates.recompute_num_layers, candidates.activation_offload.astype(np.int64)]
    )
    kinds, counts = np.unique(columns[:, which], axis=1, return_counts=True)
    return sum(
        count * layouts_of_choice(job, candidates.pp, vpp, unit, one_mode=bool(one_mode))
        for (vpp, unit, one_mode), count in zip(kinds.T.tolist(), counts.tolist(), strict=True)
    )


def even_only(job: Job, pp: int, vpp: int) -> bool:
    """Return whether only the even split of layers over stages is allowed."""
    wanted = job.search.stages == "even" or not job.stack.rules.uneven_stages
    return wanted or embedding_and_loss_counted(job, pp, vpp)


def layouts_of_choice(job: Job, pp: int, vpp: int, unit: int = 1, *, one_mode: bool = False) -> int:
    """Return how many layouts a choice stands for: splits of the layers times recompute mixes.

    Layers in full recompute come in multiples of ``unit``; where that is above 1, at least one
    unit exists. With ``one_mode``, all layers have the same mode: one mix.
    """
    layers, modes = job.model.layers, 1 if one_mode else len(modes_of(job))
    if not embedding_and_loss_counted(job, pp, vpp) and (pp * vpp > layers or layers % vpp):
        return 1
    if unit == 1:
        return _splits_and_mixes(job, pp, vpp, modes, 1)
    return _splits_and_mixes(job, pp, vpp, modes, unit) - _splits_and_mixes(job, pp, vpp, modes - 1, 1)


def _splits_and_mixes(job: Job, pp: int, vpp: int, modes: int, unit: int) -> int:
    layers = job.model.layers
    if even_only(job, pp, vpp):
        count = 1
        for stage_layers in even_stages(layers, pp, vpp):
            count *= _mixes(stage_layers, modes, unit)
        return count
    return _splits(pp, layers, vpp, modes, unit)


@cache
def _mixes(layers: int, modes: int, unit: int) -> int:
    """Return the number of mixes of ``modes`` over ``layers``, one mode in multiples of ``unit``."""
    if modes == 0:
        return int(layers == 0)
    return sum(_mixes(layers - n, modes - 1, 1) for n in range(0, layers + 1, unit))


@cache
def _splits(stages: int, layers: int, multiple: int, modes: int, unit: int) -> int:
    """Return the number of splits into ``stages`` multiples of ``multiple`` layers, times their mixes."""
    if stages == 1:
        return _mixes(layers, modes, unit) if layers >= multiple else 0
    most = layers - (stages - 1) * multiple
    return sum(
        _mixes(stage_layers, modes, unit) * _splits(stages - 1, layers - stage_layers, multiple, modes, unit)
        for stage_layers in range(multiple, most + 1, multiple)
    )
