"""Table columns for devices, batch, cost and energy, and the table of answers by devices and batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from autoplan.report.render.blocks import GAP, Block, Column, Sentence, data_table
from autoplan.report.render.terminal import Terminal
from autoplan.results.front import Front
from autoplan.results.merged_front import (
    at_batch,
    batch_of,
    choice_key,
    cost_per_step,
    energy_per_step,
    plan_key,
    steps_per_billion_tokens,
)
from autoplan.results.plan import Plan
from autoplan.schema.job import ChosenProgram, Job

_KWH: Final = 3.6e6


def question_columns(job: Job, plans: Sequence[Plan]) -> list[Column]:
    """Return columns of devices and batch where they differ, and of quantities with a limit or objective."""
    choices, limits = job.choices or (job,), job.limits
    columns = []
    if len({choice.program for choice in choices}) > 1:
        names = tuple("" if plan.program is None else program_name(plan.program, job) for plan in plans)
        columns.append(Column("program", names, "text"))
    if len({choice.cluster.devices for choice in choices}) > 1:
        columns.append(Column("devices", tuple(f"{plan.layout.devices:,}" for plan in plans)))
    if len({choice.workload.global_batch_size for choice in choices}) > 1:
        columns.append(Column("batch", tuple(f"{batch_of(plan):,}" for plan in plans)))
    if "tokens_per_second" in job.objectives or limits.tokens_per_second is not None:
        columns.append(Column("tokens/s", tuple(f"{p.predicted.tokens_per_second:,.0f}" for p in plans)))
    if job.price is not None:
        costs = tuple(f"{_cost(job, plan):,.2f}" for plan in plans)
        columns.append(Column(f"{job.price.currency}/1e9\ntokens", costs))
    if "energy" in job.objectives or limits.energy is not None:
        columns.append(Column("kWh/1e9\ntokens", tuple(f"{_energy(job, plan):,.1f}" for plan in plans)))
    return columns


def program_name(program: ChosenProgram, job: Job) -> str:
    """Return the title of a program, with its way where ``job`` has it in several."""
    ways = {one.program.way for one in job.choices if one.program and one.program.name == program.name}
    return program.words if len(ways) > 1 else program.title


#: Rows of answers in a table, and sentences on those without a plan, that somebody may want to read.
_MOST_ROWS: Final = 64
_MOST_SENTENCES: Final = 12


def _cost(job: Job, plan: Plan) -> float:
    job = at_batch(job, plan)
    return (cost_per_step(job, plan.predicted.step_seconds) or 0.0) * steps_per_billion_tokens(job)


def _energy(job: Job, plan: Plan) -> float:
    job = at_batch(job, plan)
    joules = energy_per_step(job, plan.predicted.step_seconds) or 0.0
    return joules * steps_per_billion_tokens(job) / _KWH


def answers_table(front: Front, terminal: Terminal) -> Iterator[Block]:
    """Yield a table by devices and batch: fastest plan, number of plans, and plans on the merged front."""
    if not front.answers:
        return
    on_front = {(plan.layout, plan_key(plan)) for plan in front.plans}
    answers = _answers_in_table(front.answers)
    jobs = [answer.job for answer in answers]
    first = [answer.plans[0].predicted if answer.plans else None for answer in answers]
    missing = ["not solved" if answer.certificate.stopped else "none fits" for answer in answers]
    steps = [f"{p.step_seconds:,.2f}" if p else why for p, why in zip(first, missing, strict=True)]
    counts = [sum((plan.layout, plan_key(plan)) in on_front for plan in answer.plans) for answer in answers]
    columns = (
        *_choice_columns(jobs, front.job),
        Column("fastest step\n(s)", tuple(steps), values=tuple(p.step_seconds if p else None for p in first)),
        *_program_columns([answer.plans for answer in answers], jobs, terminal),
        Column("tokens/s", tuple(f"{p.tokens_per_second:,.0f}" if p else "" for p in first)),
        _counts("plans", [len(answer.plans) for answer in answers]),
        _counts("on the front", counts),
    )
    yield data_table(columns)
    if len(answers) < len(front.answers):
        yield Sentence(f"{len(front.answers) - len(answers):,} more: --format json has all")
    yield GAP


def _choice_columns(jobs: Sequence[Job], of: Job) -> Iterator[Column]:
    """Yield the columns of what tells ``jobs`` apart: program, devices and batch."""
    if len({job.program for job in jobs}) > 1:
        names = tuple(program_name(job.program, of) if job.program else "" for job in jobs)
        yield Column("program", names, "text")
        if len({choice_key(job)[:2] for job in jobs}) == 1:
            return
    yield _counts("devices", [job.cluster.devices for job in jobs])
    yield _counts("batch", [job.workload.global_batch_size for job in jobs])


def _counts(head: str, numbers: Sequence[int]) -> Column:
    return Column(head, tuple(f"{number:,}" for number in numbers), values=tuple(numbers))


def _program_columns(
    plans: Sequence[Sequence[Plan]], jobs: Sequence[Job], terminal: Terminal
) -> Iterator[Column]:
    """Yield interval and memory of the fastest plan under each of several programs."""
    if len({job.program for job in jobs}) == 1:
        return
    fastest = [some[0].predicted if some else None for some in plans]
    yield Column(
        "90 % interval\n(s)",
        tuple(
            f"{p.step_seconds_low:,.2f} {terminal.to} {p.step_seconds_high:,.2f}" if p else ""
            for p in fastest
        ),
    )
    sizes = (f"{p.peak_memory_bytes_per_device / 2**30:.1f}" if p else "" for p in fastest)
    yield Column("memory\n(GiB)", tuple(sizes))


def _answers_in_table(answers: Sequence[Front]) -> Sequence[Front]:
    """Return the answers that a table has: of very many those with plans, and not all of these."""
    if len(answers) <= _MOST_ROWS:
        return answers
    return [answer for answer in answers if answer.plans][:_MOST_ROWS]


def basis_sentences(job: Job) -> list[str]:
    """Return sentences on the price and on the estimate of energy that costs and energies rest on."""
    sentences = []
    if job.price is not None:
        price = job.price
        sentences.append(
            f"price: {price.per_device_hour:,.6g} {price.currency} per device-hour on {price.date}"
        )
    power = job.cluster.device.power
    if power is not None and ("energy" in job.objectives or job.limits.energy is not None):
        sentences.append(
            f"energy: estimate with every device at its power limit of {power.value:g} W ({power.kind})"
        )
    return sentences


def question_sentences(front: Front) -> list[str]:
    """Return sentences on the price, the energy estimate, and devices and batches without a plan."""
    job = front.job
    sentences = basis_sentences(job)
    without: dict[str, list[str]] = {}
    for answer in front.answers:
        if answer.plans:
            continue
        where = _where(answer.job, front.job)
        if answer.reasons:
            without.setdefault(f"no plan for {{}}: {'; '.join(answer.reasons)}", []).append(where)
        elif answer.certificate.stopped:
            without.setdefault(f"not solved for {{}}: {answer.certificate.stopped}", []).append(where)
    sentences += [f"{title} cannot run this job: {words}" for title, words in job.lacking]
    reasons = [
        text.replace("{}", listed, 1) for text, places in without.items() for listed in _places(places)
    ]
    more = len(reasons) - _MOST_SENTENCES
    return [*sentences, *reasons[:_MOST_SENTENCES], *([f"{more:,} more without a plan"] if more > 0 else [])]


def _where(job: Job, of: Job) -> str:
    """Return what tells ``job`` apart from the other choices of the job ``of``."""
    size = f"{job.cluster.devices_words}, batch {job.workload.global_batch_size:,}"
    if job.program is None:
        return size
    name = program_name(job.program, of)
    sizes = {(one.cluster.devices, one.workload.global_batch_size) for one in of.choices}
    return f"{name}, {size}" if len(sizes) > 1 else name


def _places(places: Sequence[str]) -> list[str]:
    """Return devices and batches as they are, or in one where they are many."""
    if len(places) <= _MOST_SENTENCES:
        return list(places)
    return [f"{len(places):,} numbers of devices and batches, the first {places[0]}"]
