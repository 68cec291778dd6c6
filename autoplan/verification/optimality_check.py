"""Whether any layout of the space is where an answer says that there is none, looked for one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.device.machine import Machine, machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.results.merged_front import inner_objectives, step_limit
from autoplan.results.verdict import Check, Finding
from autoplan.units import format_bytes
from autoplan.verification.choice_listing import counted, layouts_behind, valid_choices
from autoplan.verification.dominated_boxes import Box, boxes_of
from autoplan.verification.layout_listing import Listing, below, reach
from autoplan.verification.stated_answers import StatedAnswer

__all__ = ["MOST_DEVICES", "Progress", "nothing_better"]

#: Told choices done, choices in all, and which is next.
Progress: TypeAlias = Callable[[int, int, str], None]
#: Candidates of one depth, and which of them.
_Choice: TypeAlias = tuple[Candidates, int]

#: Devices up to which all layouts are listed unless more is asked for.
MOST_DEVICES: Final = 8


@dataclass(slots=True)
class _Search:
    """What was looked at for one answer: layouts where there should be none, and what was counted."""

    found: list[str] = field(default_factory=list)
    listed: int = 0
    open: int = 0
    lost: int = 0

    def look(self, answer: StatedAnswer, choice: _Choice, boxes: list[Box], machine: Machine) -> None:
        """Look below ``boxes`` for a layout of ``choice``."""
        listing = Listing.of(answer.job, *choice, machine)
        least = reach(listing)
        if least is None:
            alike = bool(listing.candidates.moved[0])
            self.lost += layouts_behind(answer.job, choice[0].pp, listing.v, listing.each, alike=alike)
            return
        for box in boxes:
            if box.memory_bytes < least.memory_bytes or box.step_seconds <= least.step_seconds:
                continue
            outcome = below(listing, box)
            self.listed += outcome.listed
            self.open += outcome.open
            if outcome.layout is not None:
                self.found.append(f"{outcome.layout} takes {outcome.step_seconds!r} s{_where(box)}")
                return


def nothing_better(
    answers: Sequence[StatedAnswer], progress: Progress, *, exhaustive: bool
) -> Iterator[Check]:
    """Yield a check of what each kind of answer says of all other layouts.

    On more than ``MOST_DEVICES`` devices it is not looked for unless ``exhaustive``.
    """
    found: dict[str, list[tuple[Finding, list[str]]]] = {}
    looked_at = [_choices(answer, exhaustive=exhaustive) for answer in answers]
    done, total = 0, sum(len(choices or ()) for choices in looked_at)
    for answer, choices in zip(answers, looked_at, strict=True):
        claim, boxes = _claims(answer)
        finding, said = _unlisted(answer)
        if choices is not None:
            search, machine = _Search(), machine_of(answer.job)
            for choice in choices:
                progress(done, total, " ".join((*filter(None, [answer.words]), f"pp={choice[0].pp}")))
                search.look(answer, choice, boxes, machine)
                done += 1
            finding, said = _outcome(answer, search, len(choices))
        found.setdefault(claim, []).append((finding, [answer.said(sentence) for sentence in said]))
    for claim, outcomes in found.items():
        findings = {finding for finding, _ in outcomes}
        order: tuple[Finding, ...] = ("fails", "not checked", "holds")
        yield Check(
            claim,
            next(finding for finding in order if finding in findings),
            tuple(sentence for finding in order for f, said in outcomes if f == finding for sentence in said),
        )


def _choices(answer: StatedAnswer, *, exhaustive: bool) -> list[_Choice] | None:
    """Return the choices to look at; None where they are not to be."""
    if len(answer.points) < len(answer.plans):
        return None
    if answer.job.cluster.devices > MOST_DEVICES and not exhaustive:
        return None
    return [(group, i) for group in valid_choices(answer.job) for i in range(len(group))]


def _unlisted(answer: StatedAnswer) -> tuple[Finding, list[str]]:
    """Return why an answer's layouts are not listed."""
    if len(answer.points) < len(answer.plans):
        return "not checked", ["the front itself is wrong"]
    devices = answer.job.cluster.devices
    return "not checked", [f"{devices} devices: up to {MOST_DEVICES} are listed unless --exhaustive is given"]


def _outcome(answer: StatedAnswer, search: _Search, choices: int) -> tuple[Finding, list[str]]:
    wrong, memory = search.found, answer.rejections("memory")
    if not isinstance(memory, str) and memory != search.lost:
        wrong.append(
            f"{memory} layouts are said to belong to choices that do not fit: they are {search.lost}"
        )
    layouts = counted(answer.job).covered
    covered = (
        f"{choices} choices, {layouts:,} layouts: every way to be among them was looked at"
        f" ({search.listed:,} listed, the others cut stage by stage)"
    )
    if wrong:
        return "fails", wrong
    if search.open:
        return "not checked", [f"{search.open} questions had too many layouts to list", covered]
    return "holds", [f"{covered}; status {answer.certificate.status}"]


def _where(box: Box) -> str:
    return f" within {format_bytes(box.memory_bytes)}, where the front says that there is none"


def _claims(answer: StatedAnswer) -> tuple[str, list[Box]]:
    """Return what an answer says of all other layouts, in words and as corners."""
    job, stated = answer.job, answer.certificate
    most = step_limit(job)
    limit, longest = memory_limit_bytes(job), most[0] if most else float("inf")
    if stated.status == "infeasible":
        return "no layout is feasible", [Box(limit, longest)]
    if stated.status == "feasible":
        bound = (stated.best_bound_step_seconds or 0.0) / (1 + 1e-6)
        return "no layout is faster than the bound", [Box(limit, bound)]
    claim = f"no layout beats a plan, and every one is matched within {stated.thinning:.3g} of one"
    least = Box(limit, (stated.best_bound_step_seconds or 0.0) / (1 + 1e-6))
    boxes = boxes_of(
        answer.points,
        thinning=stated.thinning,
        limit=limit,
        longest=longest,
        objectives=inner_objectives(job.objectives),
    )
    return claim, [least, *boxes]
