"""Saved answers, parsed, priced again and compared with what they state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Any, Final

from autoplan.costs.core.prediction import JobFacts, Prediction
from autoplan.costs.predict import facts_of, predict_all
from autoplan.errors import LayoutError
from autoplan.results.merged_front import ChoiceKey, choice_key, question_words, values_of
from autoplan.results.plan import Plan, layout_fields
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout
from autoplan.schema.saved_front import SavedCertificate, SavedFront, SavedPlan, SavedRejection, SavedShort

#: Relative tolerance: sums may be rounded in another order.
_SAME: Final = 1e-9

#: Longest text of a value in a sentence.
_LONGEST: Final = 80

#: Fields of a prediction that answers omit.
_LEFT_OUT: Final = frozenset({"events"})


def differences(stated: object, actual: object, place: str) -> Iterator[str]:
    """Yield one sentence per difference between ``stated``, read from JSON, and ``actual``.

    >>> list(differences({"a": 1.0, "b": [2]}, {"a": 1.5, "b": (2,)}, "x"))
    ['x.a is stated as 1.0 and is 1.5']
    """
    if dataclasses.is_dataclass(actual) and not isinstance(actual, type):
        actual = {f.name: getattr(actual, f.name) for f in dataclasses.fields(actual)}
    if isinstance(actual, Mapping):
        yield from _in_mapping(stated, actual, place)
    elif isinstance(actual, tuple | list):
        yield from _in_list(stated, actual, place)
    elif not _same(stated, actual):
        yield f"{place} is stated as {_short(stated)} and is {_short(actual)}"


def _in_mapping(stated: object, actual: Mapping[str, Any], place: str) -> Iterator[str]:
    if not isinstance(stated, Mapping):
        yield f"{place} is not a mapping"
        return
    for key in (*actual, *(key for key in stated if key not in actual)):
        if key not in actual:
            yield f"{place}.{key} is stated and is nothing that is predicted"
        elif key in stated:
            yield from differences(stated[key], actual[key], f"{place}.{key}")
        elif key not in _LEFT_OUT:
            yield f"{place}.{key} is not stated"


def _in_list(stated: object, actual: tuple[Any, ...] | list[Any], place: str) -> Iterator[str]:
    if not isinstance(stated, list | tuple) or len(stated) != len(actual):
        yield f"{place} is not a list of {len(actual)}"
        return
    for i, (stated_item, actual_item) in enumerate(zip(stated, actual, strict=True)):
        yield from differences(stated_item, actual_item, f"{place}[{i}]")


def _same(stated: object, actual: Any) -> bool:  # noqa: ANN401 - a number of numpy is one too
    if isinstance(actual, bool | str) or actual is None or isinstance(stated, bool):
        return type(stated) is type(actual) and bool(stated == actual)
    if not isinstance(stated, int | float):
        # JSON has no word for infinity.
        return stated is None and not math.isfinite(actual)
    if isinstance(actual, int):
        return isinstance(stated, int) and stated == actual
    return math.isclose(stated, actual, rel_tol=_SAME, abs_tol=1e-15)


def field_differences(one: object, other: object, place: str = "$") -> Iterator[str]:
    """Yield one sentence per field in which two JSON values differ, exactly.

    >>> list(field_differences({"a": 1, "b": [2]}, {"a": 1, "b": [3], "c": None}))
    ['$.b[0]: 2 and 3', '$.c: only in the second']
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in (*one, *(key for key in other if key not in one)):
            if key not in other or key not in one:
                yield f"{place}.{key}: only in the {'first' if key in one else 'second'}"
            else:
                yield from field_differences(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from field_differences(first, second, f"{place}[{i}]")
    elif isinstance(one, list) and isinstance(other, list):
        yield f"{place}: {len(one)} and {len(other)} entries"
    elif type(one) is not type(other) or one != other:
        yield f"{place}: {_short(one)} and {_short(other)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


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


#: Statuses in ascending order: the merged status is the last one of the parts.
_WEAKEST: Final = ("infeasible", "optimal", "feasible")


@dataclass(frozen=True, slots=True)
class Stated:
    """A saved answer and its job: its answers, and the plans of the front over several choices.

    ``wrong`` says which answers are missing or too many.
    """

    saved: SavedFront
    job: Job
    answers: tuple[StatedAnswer, ...]
    front: tuple[tuple[StatedPlan, Job], ...]
    wrong: tuple[str, ...]

    @staticmethod
    def of(saved: SavedFront, job: Job) -> Stated:
        """Return the parsed form of ``saved``, the answer to ``job``."""
        answers, wrong = answers_of(saved, job)
        return Stated(saved, job, answers, front_of(saved, job) if job.choices else (), tuple(wrong))


@dataclass(frozen=True, slots=True)
class _Rated:
    """A plan of an answer, and the values of its objectives, to be minimised."""

    words: str
    layout: str
    values: tuple[float, ...]
    key: tuple[object, ...]
    marked: bool

    def weakly_dominates(self, other: _Rated) -> bool:
        """Return whether this is no worse than ``other`` in every objective."""
        return all(a <= b + _SAME * abs(b) for a, b in zip(self.values, other.values, strict=True))

    def precedes(self, other: _Rated) -> bool:
        """Return whether this precedes ``other`` on a front: lexicographic order of the values."""
        pairs = zip(self.values, other.values, strict=True)
        return next((a < b for a, b in pairs if not isclose(a, b, rel_tol=_SAME)), False)

    def dominates(self, other: _Rated) -> bool:
        """Return whether this is no worse in every objective and better in one."""
        pairs = zip(self.values, other.values, strict=True)
        return self.weakly_dominates(other) and any(a < b - _SAME * abs(b) for a, b in pairs)


def front_errors(stated: Stated) -> Iterator[str]:
    """Yield the dominated plans of the front over all choices, and the non-dominated ones that it lacks."""
    if not stated.job.choices:
        return
    rated = [_rated(answer, plan) for answer in stated.answers for plan in answer.plans if plan.plan]
    by_key = {plan.key: plan for plan in rated}
    on_front: list[_Rated] = []
    for plan, job in stated.front:
        if plan.layout is None:
            continue
        rated_plan = by_key.get(_key(plan.layout, job))
        if rated_plan is None:
            yield f"{plan.name} is in none of the answers: {plan.layout_string}"
        else:
            yield from _position_errors(plan.name, rated_plan, on_front, rated)
            on_front.append(rated_plan)
    for other in rated:
        is_on_front = other in on_front
        if not is_on_front and not any(plan.weakly_dominates(other) for plan in on_front):
            yield f"no plan of the front is as good as one on {other.words}: {other.layout}"
        if is_on_front != other.marked:
            is_ = "is" if is_on_front else "is not"
            yield f"{other.words}: on_front is stated as {other.marked} of {other.layout}, which {is_} there"


def _position_errors(
    name: str, position: _Rated, before: Sequence[_Rated], others: Sequence[_Rated]
) -> Iterator[str]:
    """Yield the errors of a plan's position on the front, after the plans ``before``."""
    better = next((other for other in others if other.dominates(position)), None)
    if better is not None:
        yield f"{name} is dominated by one on {better.words}: {better.layout}"
    if position in before:
        yield f"{name} is on the front twice"
    elif before and position.precedes(before[-1]):
        yield f"{name} is before one that it should follow"


def _key(layout: Layout, job: Job) -> tuple[Layout, ChoiceKey]:
    return layout, choice_key(job)


def _rated(answer: StatedAnswer, stated: StatedPlan) -> _Rated:
    plan = stated.plan
    assert plan is not None  # noqa: S101 - the caller leaves out what is not valid
    values, key = values_of(answer.job, plan), _key(plan.layout, answer.job)
    return _Rated(answer.words, stated.layout_string, values, key, stated.marked)


def certificate_errors(stated: Stated) -> Iterator[str]:
    """Yield the differences of the certificate over all choices from that merged from the answers."""
    if not stated.job.choices or len(stated.answers) < len(stated.job.choices):
        return
    overall, parts = stated.saved.certificate, [answer.certificate for answer in stated.answers]
    for name, computed in _merged_certificate(parts).items():
        stated_value = getattr(overall, name)
        yield from differences(stated_value, computed, f"over all, {name}")
    if bool(stated.saved.front) == (overall.status == "infeasible"):
        yield f"over all, status {overall.status} with {len(stated.saved.front)} plans"


def _merged_certificate(parts: Sequence[SavedCertificate]) -> dict[str, object]:
    """Return the certificate that follows from ``parts``."""
    feasible = [part for part in parts if part.status != "infeasible"]
    bounds = [part.best_bound_step_seconds for part in feasible if part.best_bound_step_seconds is not None]
    merged: dict[str, object] = {
        "status": max((part.status for part in parts), key=_WEAKEST.index),
        "best_bound_step_seconds": min(bounds, default=None),
        "gap": max((part.gap for part in feasible if part.gap is not None), default=None),
        "fastest_gap": max((x.fastest_gap for x in feasible if x.fastest_gap is not None), default=None),
        "thinning": max(part.thinning for part in parts),
    }
    for name in ("layouts_total", "layouts_covered", "candidates", "candidates_solved", "solves"):
        merged[name] = sum(getattr(part, name) for part in parts)
    merged["unsearched"] = tuple(dict.fromkeys(words for part in parts for words in part.unsearched))
    # The rest is that of the first answer that is as weak as the whole.
    weakest = next(part for part in parts if part.status == merged["status"])
    for name in ("stopped", "solver", "solver_parameters", "autoplan_version"):
        merged[name] = getattr(weakest, name)
    return merged
