"""Check by exhaustive search that no layout is in a box of objective space that an answer excludes."""

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
from autoplan.verification.enumeration.choice_listing import counted, layouts_of_choice, valid_choices
from autoplan.verification.listing.dominated_boxes import Box, boxes_of
from autoplan.verification.listing.layout_listing import Listing, below, reach
from autoplan.verification.stated_answers import StatedAnswer

__all__ = ["MOST_DEVICES", "Progress", "nothing_better"]

#: Callback with the number of choices done, their total, and the next one.
Progress: TypeAlias = Callable[[int, int, str], None]
#: Candidates of one depth, and the index of one of them.
_Choice: TypeAlias = tuple[Candidates, int]

#: Largest number of devices for which all layouts are listed by default.
MOST_DEVICES: Final = 8


@dataclass(slots=True)
class _Refutation:
    """Attempt to refute one answer: layouts in excluded boxes, and counts.

    ``listed`` layouts, ``undecided`` questions, layouts ``without_fit`` of choices that fit in no way.
    """

    violations: list[str] = field(default_factory=list)
    listed: int = 0
    undecided: int = 0
    without_fit: int = 0

    def attempt(self, answer: StatedAnswer, choice: _Choice, boxes: list[Box], machine: Machine) -> None:
        """Search ``boxes`` for a layout of ``choice``."""
        listing = Listing.of(answer.job, *choice, machine)
        ideal = reach(listing)
        if ideal is None:
            one_mode = bool(listing.candidates.activation_offload[0])
            self.without_fit += layouts_of_choice(
                answer.job, choice[0].pp, listing.v, listing.recompute_num_layers, one_mode=one_mode
            )
            return
        for box in boxes:
            if box.memory_bytes < ideal.memory_bytes or box.step_seconds <= ideal.step_seconds:
                continue
            outcome = below(listing, box)
            self.listed += outcome.listed
            self.undecided += outcome.open
            if outcome.layout is not None:
                self.violations.append(f"{outcome.layout} takes {outcome.step_seconds!r} s{_where(box)}")
                return


def nothing_better(
    answers: Sequence[StatedAnswer], progress: Progress, *, exhaustive: bool
) -> Iterator[Check]:
    """Yield one check for each kind of claim that ``answers`` make about all other layouts.

    On more than ``MOST_DEVICES`` devices the search runs only if ``exhaustive``.
    """
    outcomes_of_claim: dict[str, list[tuple[Finding, list[str]]]] = {}
    choices_of_answer = [_choices(answer, exhaustive=exhaustive) for answer in answers]
    done, total = 0, sum(len(choices or ()) for choices in choices_of_answer)
    for answer, choices in zip(answers, choices_of_answer, strict=True):
        claim, boxes = _claims(answer)
        finding, sentences = _unlisted(answer)
        if choices is not None:
            search, machine = _Refutation(), machine_of(answer.job)
            for choice in choices:
                progress(done, total, " ".join((*filter(None, [answer.words]), f"pp={choice[0].pp}")))
                search.attempt(answer, choice, boxes, machine)
                done += 1
            finding, sentences = _outcome(answer, search, len(choices))
        outcomes_of_claim.setdefault(claim, []).append(
            (finding, [answer.about(sentence) for sentence in sentences])
        )
    for claim, outcomes in outcomes_of_claim.items():
        findings = {finding for finding, _ in outcomes}
        order: tuple[Finding, ...] = ("fails", "not checked", "holds")
        yield Check(
            claim,
            next(finding for finding in order if finding in findings),
            tuple(
                sentence
                for finding in order
                for f, sentences in outcomes
                if f == finding
                for sentence in sentences
            ),
        )


def _choices(answer: StatedAnswer, *, exhaustive: bool) -> list[_Choice] | None:
    """Return the choices to search; None where the search does not run."""
    if len(answer.points) < len(answer.plans):
        return None
    if answer.job.cluster.devices > MOST_DEVICES and not exhaustive:
        return None
    return [(group, i) for group in valid_choices(answer.job) for i in range(len(group))]


def _unlisted(answer: StatedAnswer) -> tuple[Finding, list[str]]:
    """Return the finding and the reason where an answer's layouts are not listed."""
    if len(answer.points) < len(answer.plans):
        return "not checked", ["the front itself is wrong"]
    devices = answer.job.cluster.devices
    return "not checked", [f"{devices} devices: up to {MOST_DEVICES} are listed unless --exhaustive is given"]


def _outcome(answer: StatedAnswer, search: _Refutation, choices: int) -> tuple[Finding, list[str]]:
    wrong, memory = search.violations, answer.rejections("memory")
    if not isinstance(memory, str) and memory != search.without_fit:
        wrong.append(
            f"{memory} layouts are said to belong to choices that do not fit: they are {search.without_fit}"
        )
    layouts = counted(answer.job).covered
    covered = (
        f"{choices} choices, {layouts:,} layouts: every way to be among them was looked at"
        f" ({search.listed:,} listed, the others cut stage by stage)"
    )
    if wrong:
        return "fails", wrong
    if search.undecided:
        return "not checked", [f"{search.undecided} questions had too many layouts to list", covered]
    return "holds", [f"{covered}; status {answer.certificate.status}"]


def _where(box: Box) -> str:
    return f" within {format_bytes(box.memory_bytes)}, where the front says that there is none"


def _claims(answer: StatedAnswer) -> tuple[str, list[Box]]:
    """Return the claim of an answer about all other layouts, in words and as excluded boxes."""
    job, stated = answer.job, answer.certificate
    most = step_limit(job)
    limit, longest = memory_limit_bytes(job), most[0] if most else float("inf")
    if stated.status == "infeasible":
        return "no layout is feasible", [Box(limit, longest)]
    if stated.status == "feasible":
        bound = (stated.best_bound_step_seconds or 0.0) / (1 + 1e-6)
        return "no layout is faster than the bound", [Box(limit, bound)]
    claim = f"no layout dominates a plan, and every other is dominated, within {stated.thinning:.3g}, by one"
    least = Box(limit, (stated.best_bound_step_seconds or 0.0) / (1 + 1e-6))
    boxes = boxes_of(
        answer.points,
        thinning=stated.thinning,
        limit=limit,
        longest=longest,
        objectives=inner_objectives(job.objectives),
    )
    return claim, [least, *boxes]
