"""Engines in ``emit``, ``read`` and ``evaluate --from``: plans as commands, and commands read back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autoplan.catalog.job_option_names import reference_words
from autoplan.commands.lean import load_solver
from autoplan.commands.options import command_deadline
from autoplan.commands.output import Format, asks_for_page, complain, escaped, present, write
from autoplan.commands.planned import stopped_by_signals

if TYPE_CHECKING:
    from autoplan.answers.configure.engine_launches import BetterPlan
    from autoplan.launch.configuration import LaunchFile
    from autoplan.launch.engines.served_run import EngineConfiguration
    from autoplan.launch.target import Emission
    from autoplan.results.serving.serving_front import ServingFront, ServingPlan
    from autoplan.schema.serving.serving_spec import ServingJob


@dataclass(frozen=True, slots=True)
class AskedEmission:
    """What a command line says of the plan to emit."""

    job: str
    target: str
    number: int | None
    layout: str | None
    deadline: float | None
    framework: str | None
    program: str | None
    image: str
    checkpoint: str | None
    draft_checkpoint: str | None

    @property
    def chosen(self) -> list[str]:
        """The words that choose the plan: those of its layout, or its number where that is not 1."""
        if self.layout:
            return ["--layout", self.layout]
        return ["--plan", str(self.number)] if (self.number or 1) > 1 else []

    def command(self, words: Sequence[str]) -> str:
        """Return the command line that writes the same files, with the ``words`` of its options."""
        return f"autoplan emit {reference_words(self.job)} {shlex.join(['--for', self.target, *words])}"


def words_of(options: Mapping[str, str | None]) -> list[str]:
    """Return the words of those ``options`` that are set."""
    return [word for name, value in options.items() if value for word in (name, value)]


def asked_engines(request: AskedEmission) -> Emission:
    """Return the engines of a layout, or of a plan of the front, as the files of a target."""
    from autoplan.answers.configure.engine_launches import emit_engines, saved_engines
    from autoplan.launch.engines.engine_targets import engine_target
    from autoplan.planning.saved_plans import is_saved_plan

    if request.framework or request.program:
        raise typer.BadParameter("engines serve: they start no training program", param_hint="--program")
    engine_target(request.target)
    saved = is_saved_plan(request.job)
    if saved and request.layout is not None:
        raise typer.BadParameter("a saved answer has its layouts: choose with --plan", param_hint="--layout")
    job, plan = saved_engines(request.job, request.number or 1) if saved else _chosen(request)
    options = {
        "--image": request.image,
        "--checkpoint": request.checkpoint,
        "--draft-checkpoint": request.draft_checkpoint,
    }
    return emit_engines(
        job,
        plan,
        request.target,
        command=request.command([*words_of(options), *request.chosen]),
        checkpoint=request.checkpoint,
        draft_checkpoint=request.draft_checkpoint,
        image=request.image,
    )


def _chosen(request: AskedEmission) -> tuple[ServingJob, ServingPlan]:
    """Return a job with its plan, or with the layout that is asked for."""
    from autoplan.catalog import load_serving_job
    from autoplan.planning.serving_plans import evaluate_serving

    job: ServingJob = load_serving_job(request.job)
    if request.layout is None:
        return _planned(job, request)
    return evaluate_serving(job, request.layout)


def _planned(job: ServingJob, request: AskedEmission) -> tuple[ServingJob, ServingPlan]:
    """Return the plan of the front that is asked for; a signal ends the command."""
    from autoplan.errors import InfeasibleError

    front = _front(job, request.deadline)
    if not front.feasible:
        raise InfeasibleError([*front.reasons, "`autoplan plan` says what helps"])
    number = request.number or 1
    if number > len(front.plans):
        raise typer.BadParameter(f"the front has {len(front.plans)} plans", param_hint="--plan")
    return front.job, front.plans[number - 1]


def _front(job: ServingJob, deadline: float | None) -> ServingFront:
    """Return the front of a job; a signal ends the command."""
    from autoplan.planning.serving_plans import plan_serving

    limit = command_deadline(job.deadline if deadline is None else deadline)
    with stopped_by_signals(limit) as interrupted:
        load_solver()
        front = plan_serving(job, deadline=limit)
    if interrupted.exit_code is not None:
        raise typer.Exit(interrupted.exit_code)
    return front


def _compared(better: BetterPlan | None, *, proven: bool) -> str:
    """Return how far the engines of a file are from the front, of which all was searched if it is proven."""
    if better is None and not proven:
        return "No better plan was found before the search ended: a longer --deadline may find one.\n"
    if better is None:
        return "No plan has as many tokens/s a device in as short a time per token.\n"
    lines = [f"Better: {better.plan.layout_string}", _gains(better), *better.changes]
    return "\n- ".join(escaped(line) for line in lines) + "\n"


def _gains(better: BetterPlan) -> str:
    """Return by how much a plan is better, or what it serves where the engines of a file serve nothing."""
    rate, each = better.throughput_per_device_gain, better.time_per_output_token_gain
    if rate is None:
        served = better.plan.output_tokens_per_second_per_device
        return f"{served:,.0f} tokens/s a device, where the engines of the file serve none"
    said = f"{rate:+.0%} tokens/s a device".replace("%", " %")
    if each is None:
        return said
    return f"{said}, time per token {abs(each) * 100:.0f} % {'shorter' if each >= 0 else 'longer'}"


def _better_document(better: BetterPlan) -> dict[str, object]:
    plan = better.plan
    return {
        "layout_string": plan.layout_string,
        "output_tokens_per_second_per_device": plan.output_tokens_per_second_per_device,
        "time_per_output_token_seconds": plan.time_per_output_token,
        "throughput_per_device_gain": better.throughput_per_device_gain,
        "time_per_output_token_gain": better.time_per_output_token_gain,
        "changes": list(better.changes),
    }


def present_engine_configuration(
    configuration: EngineConfiguration, form: Format, output: Path | None, hardware: str | None = None
) -> None:
    """Write what serve commands of a file say."""
    from autoplan.answers.configure.engine_launches import engine_document, serving_job_text

    if form is Format.yaml:
        write(serving_job_text(configuration, hardware), output)
        return
    document = engine_document(configuration)

    from autoplan.answers.configure.blocks import configuration_table

    present(
        form,
        output,
        document=lambda: document,
        table=lambda terminal: configuration_table(document, terminal),
    )


def show_engine_file(
    job: str,
    file: LaunchFile,
    framework: str | None,
    deadline: float | None,
    where: tuple[Format, Path | None, str],
) -> None:
    """Write the prediction of what serve commands in a file start, for a serving job, and what is better."""
    form, output, _ = where
    if asks_for_page(form, output):
        raise typer.BadParameter("there is no page of serve commands: give --layout", param_hint="--output")
    from autoplan.answers.configure.engine_launches import better_plan, engine_document, evaluate_engine_file
    from autoplan.catalog import load_serving_job
    from autoplan.report.render.terminal import render
    from autoplan.report.serving.serving_document import serving_plan_document
    from autoplan.report.serving.serving_plan_report import serving_plan_blocks

    loaded = load_serving_job(job)
    read = evaluate_engine_file(loaded, file, framework)
    front = _front(loaded, deadline)
    better, proven = better_plan(read, front), front.certificate.status == "optimal"
    compared = _compared(better, proven=proven)
    present(
        form,
        output,
        document=lambda: {
            **serving_plan_document(read.job, read.plan),
            "configuration": engine_document(read.configuration),
            "differences": list(read.differences),
            "comparison": None if better is None else _better_document(better),
            "comparison_proven": proven,
        },
        table=lambda terminal: (
            f"{render(serving_plan_blocks(read.job, read.plan, terminal), terminal)}\n{compared}"
        ),
    )
    complain(f"note: {note}" for note in (*read.configuration.warnings, *read.differences))
