"""Parsed and re-priced form of a saved answer, one part for each number of devices and batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoplan.costs.core.prediction import JobFacts, Prediction
from autoplan.costs.predict import facts_of, predict_all
from autoplan.errors import LayoutError
from autoplan.results.merged_front import ChoiceKey, choice_key, question_words
from autoplan.results.plan import Plan, layout_fields
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout
from autoplan.schema.saved_front import SavedCertificate, SavedFront, SavedPlan, SavedRejection, SavedShort
from autoplan.verification.value_comparison import differences

#: Fields of a short plan, as answers for one number of devices and batch state it.
_SHORT = ("step_seconds", "tokens_per_second", "peak_memory_bytes_per_device")


@dataclass(frozen=True, slots=True)
class StatedPlan:
    """A plan as an answer states it, with its layout and its prediction now; None where it is not valid.

    ``name`` is its name in messages; ``wrong`` the errors of its layout; ``short`` whether only some fields
    of its prediction are stated, and ``marked`` whether it is stated to be on the front over all choices.
    """

    name: str
    layout_string: str
    predicted: Mapping[str, Any]
    layout: Layout | None
    priced: Prediction | None
    facts: JobFacts
    wrong: tuple[str, ...]
    short: bool
    marked: bool

    @property
    def plan(self) -> Plan | None:
        """Layout and prediction now, None where the layout is not valid."""
        if self.layout is None or self.priced is None:
            return None
        return Plan(self.layout, self.priced, self.facts)


@dataclass(frozen=True, slots=True)
class StatedAnswer:
    """Answer for one number of devices and one batch; ``words`` name it among several.

    Where it says that plans of other programs dominate what it leaves out, ``others`` are their steps [s] and
    memory [byte].
    """

    words: str
    job: Job
    plans: tuple[StatedPlan, ...]
    certificate: SavedCertificate
    rejected: tuple[SavedRejection, ...]
    reasons: tuple[str, ...]
    others: tuple[tuple[float, float], ...] = ()

    @property
    def points(self) -> list[tuple[float, float]]:
        """Step [s] and memory [byte] of the valid plans, as priced now."""
        priced = (plan.priced for plan in self.plans)
        return [(p.step_seconds, p.peak_memory_bytes_per_device) for p in priced if p is not None]

    def about(self, sentence: str) -> str:
        """Return ``sentence`` with the name of the answer."""
        return f"{self.words}: {sentence}" if self.words else sentence


def answers_of(saved: SavedFront, job: Job) -> tuple[tuple[StatedAnswer, ...], list[str]]:
    """Return the answers of ``saved``, one for each choice of ``job``, and errors on missing ones."""
    if not job.choices:
        wrong = ["there are answers for several choices, and the job asks for one"] if saved.answers else []
        return (_single(saved, job),), wrong
    wanted = [choice_key(choice) for choice in job.choices]
    keys = [(answer.devices, answer.global_batch_size, answer.program) for answer in saved.answers]
    wrong = []
    if keys != wanted:
        wrong.append(f"there are answers for (devices, batch, program) {keys}, and the job asks for {wanted}")
    saved_by_key, answers, cut = dict(zip(keys, saved.answers, strict=True)), [], []
    for choice, key in zip(job.choices, wanted, strict=True):
        if key in saved_by_key:
            stated, words = saved_by_key[key], question_words(choice, job.choices)
            plans = _read(choice, stated.plans)
            rest = (stated.certificate, stated.rejected, stated.reasons)
            answers.append(StatedAnswer(words, choice, plans, *rest))
            cut.append(stated.cut_by_others)
    with_others = (
        replace(answer, others=_others(answer, answers)) if is_cut else answer
        for answer, is_cut in zip(answers, cut, strict=True)
    )
    return tuple(with_others), wrong


def _others(answer: StatedAnswer, answers: Sequence[StatedAnswer]) -> tuple[tuple[float, float], ...]:
    """Return steps [s] and memory [byte] of the plans of other programs with its devices and batch."""
    size = choice_key(answer.job)[:2]
    alike = (one for one in answers if one is not answer and choice_key(one.job)[:2] == size)
    return tuple(point for one in alike for point in one.points)


def _single(saved: SavedFront, job: Job) -> StatedAnswer:
    plans = _read(job, saved.front)
    return StatedAnswer("", job, plans, saved.certificate, saved.rejected, saved.reasons)


def front_of(saved: SavedFront, job: Job) -> tuple[tuple[StatedPlan, Job], ...]:
    """Return the plans of the front over all choices of ``job``, each with the choice that it is for."""
    choices = {choice_key(choice): choice for choice in job.choices}
    plan_by_number: dict[int, tuple[StatedPlan, Job]] = {}
    for key, numbers in _by_choice(saved.front).items():
        choice = choices.get(key, job)
        for number, plan in zip(numbers, _read(choice, saved.front, numbers), strict=True):
            plan_by_number[number] = (plan if key in choices else _for_another_job(plan, key), choice)
    return tuple(plan_by_number[number] for number in range(len(saved.front)))


def _by_choice(plans: Sequence[SavedPlan]) -> dict[ChoiceKey, list[int]]:
    """Return the indices of ``plans`` by their stated choice; -1 for what is not a number."""
    numbers_by_key: dict[ChoiceKey, list[int]] = {}
    for number, plan in enumerate(plans):
        stated = (plan.predicted.get("devices"), plan.predicted.get("global_batch_size"))
        devices, batch = (n if isinstance(n, int) else -1 for n in stated)
        program = plan.predicted.get("program")
        key = (devices, batch, program if isinstance(program, str) else None)
        numbers_by_key.setdefault(key, []).append(number)
    return numbers_by_key


def _for_another_job(plan: StatedPlan, key: ChoiceKey) -> StatedPlan:
    why = f"{plan.name} is for (devices, batch) {key}, which the job does not ask for"
    return replace(plan, layout=None, priced=None, wrong=(*plan.wrong, why))


def _read(
    job: Job, plans: Sequence[SavedPlan | SavedShort], numbers: Sequence[int] | None = None
) -> tuple[StatedPlan, ...]:
    """Return the ``plans`` at ``numbers``, or all, with their layouts and predictions now."""
    numbers = range(len(plans)) if numbers is None else numbers
    plans, names = [plans[n] for n in numbers], [f"plan {n + 1}" for n in numbers]
    read = [_layout(job, plan, name) for plan, name in zip(plans, names, strict=True)]
    layouts = list(dict.fromkeys(layout for layout, _ in read if layout is not None))
    predictions: dict[Layout | None, Prediction] = dict(zip(layouts, predict_all(job, layouts), strict=True))
    facts = facts_of(job)
    return tuple(
        StatedPlan(
            name=name,
            layout_string=plan.layout_string,
            predicted=_predicted(plan),
            layout=layout,
            priced=predictions.get(layout),
            facts=facts,
            wrong=tuple(wrong),
            short=isinstance(plan, SavedShort),
            marked=isinstance(plan, SavedShort) and plan.on_front,
        )
        for plan, name, (layout, wrong) in zip(plans, names, read, strict=True)
    )


def _predicted(plan: SavedPlan | SavedShort) -> Mapping[str, Any]:
    return plan.predicted if isinstance(plan, SavedPlan) else {name: getattr(plan, name) for name in _SHORT}


def _layout(job: Job, plan: SavedPlan | SavedShort, name: str) -> tuple[Layout | None, list[str]]:
    """Return the parsed layout (None where it is not valid), and its errors."""
    try:
        layout = parse_layout(plan.layout_string, layers=job.model.layers, devices=job.cluster.devices)
    except LayoutError as error:
        return None, [f"{name}: {reason}" for reason in error.reasons]
    broken = broken_rules(job, layout)
    wrong = [f"{name} breaks a rule: {sentence}" for sentence in broken]
    if plan.layout_string != str(layout):
        wrong.append(f"{name}: layout_string is {plan.layout_string!r} and is written {str(layout)!r}")
    if isinstance(plan, SavedPlan):
        wrong += [f"{name}: {text}" for text in differences(plan.layout, layout_fields(layout), "layout")]
    return None if broken else layout, wrong
