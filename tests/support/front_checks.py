"""What holds for the front of every job: checks that need no other search of the same job."""

from __future__ import annotations

import random

from autoplan import evaluate
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.errors import LayoutError, UnsupportedError
from autoplan.results.front import Front
from autoplan.rules.layout_rules import broken_rules
from autoplan.rules.user_constraints import recompute_menu
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import MODES
from autoplan.search.alternatives.stage_alternatives import Scale
from autoplan.search.space.candidate_space import space_of

__all__ = ["ROUNDING", "assert_evaluated_again", "assert_not_dominated", "points"]

#: Layouts that are drawn of each job.
SAMPLED = 30
THINNING = 0.01
ROUNDING = 1 + 1e-6


def points(front):
    """Return step and memory of the plans of a front."""
    return [(p.predicted.step_seconds, p.predicted.peak_memory_bytes_per_device) for p in front.plans]


def sampled(job: Job, seed: int) -> list[Layout]:
    """Return layouts of ``job`` that keep its rules, drawn at random: any candidate, split and recompute."""
    rng = random.Random(seed)  # noqa: S311 - a test draws, it does not encrypt
    groups, layouts = space_of(job).groups, []
    for _ in range(SAMPLED * bool(groups)):
        group = rng.choice(groups)
        i = rng.randrange(len(group))
        pp, vpp = group.pp, int(group.vpp[i])
        chunks = job.model.layers // vpp
        if job.model.layers % vpp or chunks < pp:
            continue
        cuts = sorted(rng.sample(range(1, chunks), pp - 1))
        layers = [(b - a) * vpp for a, b in zip([0, *cuts], [*cuts, chunks], strict=True)]
        modes = recompute_menu(job)
        drawn = [[rng.choice(modes) for _ in range(count)] for count in layers]
        recomputed = {mode.name: [of_stage.count(mode.name) for of_stage in drawn] for mode in MODES}
        layout = group.layout(i, layers, recomputed)
        if not broken_rules(job, layout):
            layouts.append(layout)
    return layouts


def assert_evaluated_again(job: Job, front: Front) -> None:
    """Check that plans whose layout strings are read and priced by `evaluate` have the same numbers."""
    for one in front.plans[:5]:
        again = evaluate(job, one.layout_string)
        assert again.layout == one.layout
        assert again.predicted == one.predicted


def assert_not_dominated(job: Job, front: Front, seed: int) -> None:
    """Check that random layouts within the limits dominate no plan of the front, but for the thinning."""
    for layout in sampled(job, seed):
        try:
            predicted = evaluate(job, layout).predicted
        except (LayoutError, UnsupportedError):
            continue
        if predicted.fits:
            assert front.plans, f"{layout} fits, and the front is empty"
            step, memory = predicted.step_seconds, predicted.peak_memory_bytes_per_device
            assert any(_as_good(job, point, step, memory) for point in points(front)), str(layout)


def _as_good(job: Job, point: tuple[float, float], step: float, memory: float) -> bool:
    """Return whether a plan is as good in the objectives: no worse in one, a hundredth worse in the other."""
    if job.objectives == ("peak_memory",):
        return point[1] <= memory * ROUNDING
    if job.objectives == ("step_time",):
        return point[0] <= step * ROUNDING
    # The sweep's limits are whole ticks of memory, rounded down; a layout's memory is rounded up.
    rounding = 2 * Scale.of(1.0, memory_limit_bytes(job)).tick_bytes
    as_fast = point[0] <= step * ROUNDING and point[1] * (1 - THINNING) <= memory * ROUNDING + rounding
    return as_fast or (point[0] <= step * (1 + THINNING) * ROUNDING and point[1] <= memory * ROUNDING)
