"""``autoplan emit``: a plan as the configuration of a framework."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.answers.configure.read_command import arguments_of
from autoplan.catalog.job_option_names import reference_words
from autoplan.catalog.roots import is_folder
from autoplan.commands.options import CacheOption, DeadlineOption, takes_job_options
from autoplan.commands.output import argument, complain, option, standard_output, write
from autoplan.commands.planned import asked_plan, planned, planned_plan

if TYPE_CHECKING:
    from autoplan.launch.target import Emission
    from autoplan.results.front import Front
    from autoplan.results.plan import Plan
    from autoplan.results.serving.serving_front import ServingPlan
    from autoplan.schema.serving.serving_spec import ServingJob

JobOrPlan = Annotated[
    str,
    argument(
        "JOB|PLAN",
        "A job file or the name of a shipped job, which is planned;"
        " or output of `autoplan plan JOB --format json`.",
    ),
]
TargetOption = Annotated[
    str,
    option(
        "--for",
        "TARGET",
        "The framework (megatron-lm, megatron-bridge, deepspeed, accelerate, torchtitan, trainer,"
        " axolotl, llama-factory, torchtune, unsloth, litgpt), or what starts it (torchrun, slurm, skypilot,"
        " kubernetes). Of a serving job the engine (vllm, sglang, tensorrt-llm), or what runs it (kubernetes,"
        " dynamo, llm-d).",
    ),
]
PlanNumber = Annotated[
    int | None,
    option(
        "--plan",
        "N",
        "Which plan of the front, the fastest is 1; left out: the fastest that the target can express.",
        min=1,
    ),
]
LayoutOfJob = Annotated[
    str | None, option("--layout", "LAYOUT", "This layout of JOB instead of planning it.", "-l")
]
EmittedOutput = Annotated[
    Path | None,
    option(
        "--output",
        "FILE",
        "Write to FILE, or into the folder FILE, atomically, instead of standard output (-).",
        "-o",
    ),
]
StartedFramework = Annotated[
    str | None,
    option(
        "--framework",
        "NAME",
        "The framework that a launcher starts. Left out: the plan's program, or the stack's.",
    ),
]
StartedProgramWords = Annotated[
    str | None,
    option(
        "--program",
        "NAME|WORDS",
        "The program whose plans are meant, such as axolotl; or of a launcher the words that it starts,"
        ' such as "pretrain_gpt.py --data-path DATA".',
    ),
]
ContainerImage = Annotated[str, option("--image", "IMAGE", "The container of the program or engine.")]
ServedCheckpoint = Annotated[
    str | None,
    option(
        "--checkpoint",
        "NAME",
        "What engines of a serving job load. Left out: what the model was published as.",
    ),
]
DraftCheckpoint = Annotated[
    str | None,
    option(
        "--draft-checkpoint",
        "NAME",
        "The draft model, or the heads that draft, of a serving job with speculation.",
    ),
]


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


@takes_job_options
def emit(  # noqa: PLR0913, PLR0917 - a parameter for each option
    job: JobOrPlan,
    target: TargetOption,
    plan: PlanNumber = None,
    layout: LayoutOfJob = None,
    output: EmittedOutput = None,
    deadline: DeadlineOption = None,
    framework: StartedFramework = None,
    program: StartedProgramWords = None,
    image: ContainerImage = "",
    checkpoint: ServedCheckpoint = None,
    draft_checkpoint: DraftCheckpoint = None,
) -> None:
    """Write a plan of JOB as the configuration of a framework, with its prediction in a comment.

    Where JOB leaves its program open, it is planned for those that TARGET writes. Of a serving job: the serve
    commands of its engines in its version, or what runs them in containers.

    What the framework or engine cannot express is an error with the nearest layout that it can, and exit code
    2; nothing is written then. Exit code 1: no layout is feasible.
    """
    from autoplan.kinds import kind_of

    request = AskedEmission(
        job, target, plan, layout, deadline, framework, program, image, checkpoint, draft_checkpoint
    )
    emission = kind_of(job).asked_emission(request)
    _written(emission, standard_output(output))
    complain(f"note: {note}" for note in emission.notes)


def fastest_for(target: str) -> Callable[[Front], int]:
    """Return what takes the fastest plan of a front that ``target`` can express, and says which if not 1."""

    def choose(front: Front) -> int:
        from autoplan.launch.registry import expressible_number

        number = expressible_number(front, target)
        if number > 1:
            complain([f"note: plan {number} of the front, the fastest that {target} can express"])
        return number

    return choose


def asked_training(request: AskedEmission) -> Emission:
    """Return a plan of a training job as the files of a target."""
    from autoplan.answers.configure import ask
    from autoplan.catalog import entry_names
    from autoplan.launch.registry import find_target

    if request.checkpoint or request.draft_checkpoint:
        raise typer.BadParameter("only engines of a serving job load a checkpoint", param_hint="--checkpoint")
    starts = find_target(request.target).starts
    named = request.program if request.program in entry_names("program") or not starts else None
    written = request.framework or request.target
    job, plan, number = asked_plan(
        request.job,
        request.number,
        request.layout,
        request.deadline,
        target=written,
        program=named,
        choose=fastest_for(written),
    )
    if request.layout is None:
        request = replace(request, number=number)
    options = {"--framework": request.framework, "--program": request.program, "--image": request.image}
    words = None if request.program == named else request.program
    return ask.emit(
        plan,
        request.target,
        job=job,
        command=request.command([*request.chosen, *words_of(options)]),
        framework=request.framework,
        program=arguments_of([words] if words else None),
        image=request.image,
    )


def asked_engines(request: AskedEmission) -> Emission:
    """Return the engines of a layout, or of a plan of the front, as the files of a target."""
    from autoplan.answers.configure import ask
    from autoplan.launch.engines.engine_targets import engine_target

    if request.framework or request.program:
        raise typer.BadParameter("engines serve: they start no training program", param_hint="--program")
    engine_target(request.target)
    job, plan = _engines(request)
    options = {
        "--image": request.image,
        "--checkpoint": request.checkpoint,
        "--draft-checkpoint": request.draft_checkpoint,
    }
    return ask.emit(
        plan,
        request.target,
        job=job,
        command=request.command([*words_of(options), *request.chosen]),
        image=request.image,
        checkpoint=request.checkpoint,
        draft_checkpoint=request.draft_checkpoint,
    )


def _engines(request: AskedEmission) -> tuple[ServingJob, ServingPlan]:
    """Return the plan of a serving job that is asked for, after its job: saved, evaluated or planned."""
    from autoplan.catalog import load_serving_job
    from autoplan.kinds import SERVING
    from autoplan.planning.saved_plans import is_saved_plan

    number = request.number or 1
    if is_saved_plan(request.job):
        if request.layout is not None:
            raise typer.BadParameter(
                "a saved answer has its layouts: choose with --plan", param_hint="--layout"
            )
        return SERVING.saved_plan(request.job, number)
    job: ServingJob = load_serving_job(request.job)
    if request.layout is not None:
        return SERVING.evaluate(job, request.layout)
    front = planned(job, request.deadline)
    return front.job, planned_plan(front, number)


def _written(emission: Emission, output: Path | None) -> None:
    """Write the files of an emission: one to a file or standard output, several into a folder."""
    files = emission.files
    if output is None or (len(files) == 1 and not is_folder(output)):
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise typer.BadParameter(
                f"there are several files ({names}): name a folder", param_hint="--output"
            )
        write(files[0].text, output)
        return
    from autoplan.catalog.file_writing import write_together

    try:
        write_together({output / file.name: file.text.encode() for file in files})
    except OSError as error:
        reason = error.strerror or str(error)
        raise typer.BadParameter(f"cannot write {str(output)!r}: {reason}", param_hint="--output") from error


#: Word of the command that the flags take the place of.
PLACE = "{autoplan}"


def launch(
    job: JobOrPlan,
    target: TargetOption,
    command: Annotated[
        list[str],
        argument(
            "-- COMMAND...",
            f"The training command. The flags take the place of its word {PLACE}, or follow it.",
        ),
    ],
    plan: PlanNumber = None,
    layout: LayoutOfJob = None,
    cache: CacheOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command, quoted for a shell, and do not run it.")
    ] = False,
) -> None:
    """Run a training COMMAND with the flags of a plan of JOB.

    The command takes the place of this program: signals and the exit code are its own. Variables that the
    target needs are set where the environment does not have them. Exit code 1: no layout is feasible; 2: bad
    input, or a plan that the target cannot express; nothing is run then.
    """
    from autoplan.answers.configure import ask
    from autoplan.launch.registry import find_target

    find_target(target)
    program = command[0] if dry_run else _program(command[0])
    the_job, the_plan, _ = asked_plan(
        job, plan, layout, None, target=target, choose=fastest_for(target), cache=cache
    )
    emission = ask.emit(the_plan, target, job=the_job)
    words = _with_flags(command, emission, target)
    environment = {**emission.environment, **os.environ}
    if dry_run:
        typer.echo(_run_text(words, emission))
        return
    complain([_running(the_plan), *(f"note: {note}" for note in emission.notes)])
    os.execve(program, words, environment)  # noqa: S606 - the words are the user's own, and no shell reads them


def _program(name: str) -> str:
    """Return the path of the program to run; refuses one that cannot be found or executed."""
    path = shutil.which(name)
    if path is None:
        raise typer.BadParameter(f"there is no program {name!r} to run", param_hint="COMMAND")
    return path


def _with_flags(command: list[str], emission: Emission, target: str) -> list[str]:
    """Return ``command`` with the flags of ``emission``."""
    if not emission.by_arguments:
        message = f"{target} is configured by files, not by flags: `autoplan emit` writes them"
        raise typer.BadParameter(message, param_hint="--for")
    if PLACE not in command:
        return [*command, *emission.arguments]
    at = command.index(PLACE)
    return [*command[:at], *emission.arguments, *command[at + 1 :]]


def _run_text(words: list[str], emission: Emission) -> str:
    settings = [f"{name}={shlex.quote(value)}" for name, value in emission.environment.items()]
    return " ".join([*settings, shlex.join(words)])


def _running(plan: Plan) -> str:
    """Return what is run, and how long a step is predicted to take."""
    from autoplan.units import format_bytes, format_seconds

    predicted = plan.predicted
    ends = f"{format_seconds(predicted.step_seconds_low)} to {format_seconds(predicted.step_seconds_high)}"
    memory = format_bytes(predicted.peak_memory_bytes_per_device)
    step = f"{format_seconds(predicted.step_seconds)} ({ends}) per step"
    return f"autoplan: {plan.layout_string}: {step}, {memory} per device"
