"""The claims of a saved answer, each checked by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from autoplan.costs.arrays import Candidates
from autoplan.costs.footprint import memory_limit_bytes
from autoplan.costs.machine import machine_of
from autoplan.costs.predict import Prediction, predict_all
from autoplan.errors import LayoutError
from autoplan.plans.plan import Plan, layout_fields
from autoplan.plans.questions import inner_objectives, question_fields, step_limit
from autoplan.plans.rules import broken_rules
from autoplan.plans.verdict import Check, Finding
from autoplan.proof.claims import Corner, corners_of
from autoplan.proof.listing import Listing, below, reach
from autoplan.proof.space import counted, layouts_behind, valid_choices
from autoplan.proof.stated import differences
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout
from autoplan.schema.resolved import hashes
from autoplan.schema.saved import SavedFront
from autoplan.units import format_bytes, format_seconds

__all__ = ["MOST_DEVICES", "Progress", "checks_of"]

Progress: TypeAlias = Callable[[int, int, str], None]

#: Devices up to which all layouts are listed unless more is asked for.
MOST_DEVICES: Final = 8

#: What a sentence shows of a long list.
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class _Answer:
    """A saved answer, its job, and its layouts as they are read and priced now; None where one is not."""

    saved: SavedFront
    job: Job
    layouts: tuple[Layout | None, ...]
    priced: tuple[Prediction | None, ...]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Step [s] and memory [byte] of the plans, as priced now."""
        return [(p.step_seconds, p.peak_memory_bytes_per_device) for p in self.priced if p is not None]


def checks_of(
    saved: SavedFront, job: Job, now: Job | None, progress: Progress, *, exhaustive: bool = False
) -> tuple[Check, ...]:
    """Return every check of ``saved``, whose job is ``job``.

    ``now`` is the job as its file says it today, where it is to be compared. ``exhaustive`` lists all layouts
    on any number of devices.
    """
    layouts, invalid = _layouts(saved, job)
    read = [layout for layout in layouts if layout is not None]
    found = dict(zip(read, predict_all(job, read), strict=True))
    priced = tuple(None if layout is None else found[layout] for layout in layouts)
    answer = _Answer(saved, job, tuple(layouts), priced)
    return (
        _same_job(answer, now),
        _check(f"the {len(layouts)} layouts keep every rule", invalid),
        _check("prices and memory are what the cost model gives", _prices(answer)),
        _check("every plan keeps the limits", _limits(answer)),
        _check("no plan of the front beats another", _order(answer)),
        _check("status, bound and gap go together", _certificate(answer)),
        _check("the counts of layouts are right and add up to the space", _counts(answer)),
        *_nothing_better(answer, progress, exhaustive=exhaustive),
    )


def _check(claim: str, wrong: Sequence[str], found: str = "") -> Check:
    finding: Finding = "fails" if wrong else "holds"
    shown = tuple(wrong[:_SHOWN])
    if len(wrong) > _SHOWN:
        shown = (*shown, f"and {len(wrong) - _SHOWN} more")
    return Check(claim, finding, shown or ((found,) if found else ()))


def _same_job(answer: _Answer, now: Job | None) -> Check:
    """Check that job and cost model are those that the certificate names."""
    stated, job = answer.saved.certificate, answer.job
    mine, model = hashes(job)
    wrong = []
    if mine != stated.job_hash:
        wrong.append(f"the certificate is for the job {stated.job_hash}, the file holds {mine}")
    if model != stated.cost_model_hash:
        wrong.append(
            f"the certificate is for the cost model {stated.cost_model_hash}, the file holds {model}"
        )
    summary = {key: answer.saved.job.get(key) for key in _summary(job)}
    wrong += differences(summary, _summary(job), "job")
    if now is not None and (today := hashes(now)[0]) != mine:
        wrong.append(f"the job is {today} today, the plan is for {mine}")
    return _check("the plan is for this job and this cost model", wrong, mine)


def _summary(job: Job) -> dict[str, object]:
    """Return what an answer says of its job in words of its own and decides how it is read."""
    return {
        "name": job.name,
        "model": job.model.name,
        "devices": job.cluster.devices,
        "stack": job.stack.name,
        "kernels": job.kernels.name,
        "workload": job.workload.model_dump(mode="json"),
        "precision": job.precision,
        "optimizer": job.optimizer,
        "objectives": job.objectives,
    }


def _layouts(saved: SavedFront, job: Job) -> tuple[list[Layout | None], list[str]]:
    """Return the layouts, None for one that cannot be one, and what is wrong with them."""
    layouts: list[Layout | None] = []
    wrong: list[str] = []
    for number, plan in enumerate(saved.front, start=1):
        try:
            layout = parse_layout(plan.layout_string, layers=job.model.layers, devices=job.cluster.devices)
        except LayoutError as error:
            wrong += [f"plan {number}: {reason}" for reason in error.reasons]
            layouts.append(None)
            continue
        broken = broken_rules(job, layout)
        wrong += [f"plan {number} breaks a rule: {sentence}" for sentence in broken]
        wrong += [
            f"plan {number}: {text}" for text in differences(plan.layout, layout_fields(layout), "layout")
        ]
        layouts.append(None if broken else layout)
    if len(set(layouts)) < len(layouts):
        wrong.append("a layout is on the front twice")
    return layouts, wrong


def _prices(answer: _Answer) -> list[str]:
    wrong: list[str] = []
    rows = zip(answer.saved.front, answer.layouts, answer.priced, strict=True)
    for number, (plan, layout, priced) in enumerate(rows, start=1):
        if layout is not None and priced is not None:
            fields = {f.name: getattr(priced, f.name) for f in dataclasses.fields(priced)}
            fields |= question_fields(answer.job, Plan(layout, priced))
            wrong += differences(plan.predicted, fields, f"plan {number}: predicted")
    return wrong


def _limits(answer: _Answer) -> list[str]:
    longest, wrong = step_limit(answer.job), []
    for number, priced in enumerate(answer.priced, start=1):
        if priced is None:
            continue
        if not priced.fits:
            held, limit = format_bytes(priced.peak_memory_bytes_high), format_bytes(priced.memory_limit_bytes)
            wrong.append(f"plan {number} does not fit: up to {held} of {limit}")
        if longest is not None and priced.step_seconds > longest[0] * (1 + 1e-9):
            wrong.append(f"plan {number} takes {format_seconds(priced.step_seconds)}, {longest[1]}")
    return wrong


def _order(answer: _Answer) -> list[str]:
    points = answer.points
    return [
        f"plan {i + 2} is no smaller than plan {i + 1}, or faster"
        for i, (one, other) in enumerate(pairwise(points))
        if not (one[0] <= other[0] and one[1] > other[1])
    ]


def _certificate(answer: _Answer) -> list[str]:
    """Return where what is said to be proven does not agree with itself or with the plans."""
    stated, wrong = answer.saved.certificate, []
    if (stated.status == "infeasible") == bool(answer.saved.front):
        wrong.append(f"status {stated.status} with {len(answer.saved.front)} plans")
    if stated.status == "feasible" and stated.stopped is None:
        wrong.append("status feasible, and nothing is said of what stopped the search")
    if stated.status == "optimal" and stated.stopped is not None:
        wrong.append(f"status optimal, although the search was stopped: {stated.stopped}")
    if stated.status == "infeasible" or not answer.points:
        return wrong
    if stated.best_bound_step_seconds is None or stated.gap is None:
        return [*wrong, "a bound and a gap are missing"]
    fastest = answer.points[0][0]
    if stated.best_bound_step_seconds > fastest * (1 + 1e-9):
        wrong.append(
            f"the bound of {stated.best_bound_step_seconds} s is above the fastest step of {fastest} s"
        )
    distance = 1 - stated.best_bound_step_seconds / fastest
    if "step_time" in inner_objectives(answer.job.objectives) and stated.gap < distance - 1e-9:
        wrong.append(f"the gap of {stated.gap} is less than the distance of the fastest plan from its bound")
    return wrong


def _counts(answer: _Answer) -> list[str]:
    """Return which counts are not those of a count of one's own."""
    stated, mine = answer.saved.certificate, counted(answer.job)
    pairs: list[tuple[str, int | str, int]] = [
        ("layouts_total", stated.layouts_total, mine.total),
        ("layouts_covered", stated.layouts_covered, mine.covered),
        ("candidates", stated.candidates, mine.candidates),
    ]
    fell = {f"rule broken: {sentence}": count for sentence, count in mine.by_rule.items()}
    said = {r.reason: r.layouts for r in answer.saved.rejected if r.kind == "rule"}
    pairs += [(reason, said.get(reason, 0), fell.get(reason, 0)) for reason in {**fell, **said}]
    pairs.append(("alike", _sum(answer, "alike"), mine.alike))
    wrong = [
        f"{name} is stated as {given} and is {own}"
        for name, given, own in pairs
        if not isinstance(given, str) and given != own
    ]
    counts = [r.layouts for r in answer.saved.rejected]
    total = sum(count for count in counts if isinstance(count, int)) + len(answer.saved.front)
    if not any(isinstance(x, str) for x in [*counts, stated.layouts_total]) and total != stated.layouts_total:
        wrong.append(f"what fell and what is on the front are {total} of {stated.layouts_total} layouts")
    return wrong


def _sum(answer: _Answer, kind: str) -> int | str:
    counts = [r.layouts for r in answer.saved.rejected if r.kind == kind]
    if any(isinstance(count, str) for count in counts):
        return "a count of too many digits to write"
    return sum(count for count in counts if isinstance(count, int))


def _nothing_better(answer: _Answer, progress: Progress, *, exhaustive: bool) -> tuple[Check, ...]:
    """Check that no layout of the space is where the front says that there is none."""
    job, stated = answer.job, answer.saved.certificate
    claim, corners = _claims(answer)
    if len(answer.points) < len(answer.saved.front):
        return (Check(claim, "not checked", ("the front itself is wrong",)),)
    if job.cluster.devices > MOST_DEVICES and not exhaustive:
        why = f"{job.cluster.devices} devices: up to {MOST_DEVICES} are listed unless --exhaustive is given"
        return (Check(claim, "not checked", (why,)),)
    found, listed, lost, left, choices = [], 0, 0, 0, list(_all(job))
    machine = machine_of(job)
    for done, (candidates, position) in enumerate(choices):
        progress(done, len(choices), f"pp={candidates.pp}")
        listing = Listing.of(job, candidates, position, machine)
        least = reach(listing)
        if least is None:
            lost += layouts_behind(job, candidates.pp, listing.v, listing.each)
            continue
        near = (
            corner
            for corner in corners
            if corner.memory_bytes >= least.memory_bytes and corner.step_seconds > least.step_seconds
        )
        for corner in near:
            outcome = below(listing, corner)
            listed += outcome.listed
            left += outcome.open
            if outcome.layout is not None:
                found.append(f"{outcome.layout} takes {outcome.step_seconds!r} s{_where(corner)}")
                break
    memory = _sum(answer, "memory")
    if not isinstance(memory, str) and memory != lost:
        found.append(f"{memory} layouts are said to belong to choices that do not fit: they are {lost}")
    covered = (
        f"{len(choices)} choices, {counted(job).covered:,} layouts: every way to be among them was looked at"
        f" ({listed:,} listed, the others cut stage by stage)"
    )
    if left and not found:
        return (Check(claim, "not checked", (f"{left} questions had too many layouts to list", covered)),)
    return (_check(claim, found, f"{covered}; status {stated.status}"),)


def _where(corner: Corner) -> str:
    return f" within {format_bytes(corner.memory_bytes)}, where the front says that there is none"


def _claims(answer: _Answer) -> tuple[str, list[Corner]]:
    """Return what an answer says of all other layouts, in words and as corners."""
    job, stated = answer.job, answer.saved.certificate
    most = step_limit(job)
    limit, longest = memory_limit_bytes(job), most[0] if most else float("inf")
    if stated.status == "infeasible":
        return "no layout is feasible", [Corner(limit, longest)]
    if stated.status == "feasible":
        bound = (stated.best_bound_step_seconds or 0.0) / (1 + 1e-6)
        return "no layout is faster than the bound", [Corner(limit, bound)]
    claim = f"no layout beats a plan, and every one is matched within {stated.thinning:.3g} of one"
    least = Corner(limit, (stated.best_bound_step_seconds or 0.0) / (1 + 1e-6))
    corners = corners_of(
        answer.points,
        thinning=stated.thinning,
        limit=limit,
        longest=longest,
        objectives=inner_objectives(job.objectives),
    )
    return claim, [least, *corners]


def _all(job: Job) -> list[tuple[Candidates, int]]:
    return [(group, i) for group in valid_choices(job) for i in range(len(group))]
