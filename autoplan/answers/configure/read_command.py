"""``autoplan read``: what a configuration of a framework says."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.commands.output import (
    Destination,
    Format,
    FormatOption,
    OutputOption,
    argument,
    asks_for_page,
    complain,
    option,
    present,
    write,
)
from autoplan.commands.planned import planned

if TYPE_CHECKING:
    from autoplan.kinds import AnyJob
    from autoplan.launch.configuration import Configuration, LaunchFile
    from autoplan.launch.engines.served_run import EngineConfiguration


FrameworkOption = Annotated[
    str | None,
    option(
        "--framework",
        "NAME",
        "Whose configuration FILE is: megatron-lm, megatron-bridge, deepspeed, accelerate, torchtitan,"
        " trainer, axolotl, ms-swift, primus, automodel, llama-factory, torchtune, litgpt, nemo,"
        " nanotron, llm-foundry, verl, openrlhf; or an engine, with its version: vllm@0.24, sglang,"
        " tensorrt-llm. Left out: recognised by its content.",
    ),
]

VariableOption = Annotated[
    list[str] | None,
    option(
        "--set",
        "NAME=VALUE",
        "A variable of the environment that a script is started with, or its argument, 1=VALUE.",
    ),
]

ArgumentOption = Annotated[
    list[str] | None,
    option("--arg", "WORDS", 'Further arguments of the training program, such as "--micro-batch-size 2".'),
]


def read(  # noqa: PLR0913, PLR0917 - a parameter for each option
    file: Annotated[Path, argument("FILE", "What a training run or an engine is launched with.")],
    framework: FrameworkOption = None,
    devices: Annotated[
        int | None, option("--devices", "N", "Number of devices that it runs on.", min=1)
    ] = None,
    hardware: Annotated[
        str | None,
        option(
            "--hardware",
            "NODE",
            "A node or a cluster that it runs on, such as dgx-h100, which a job file then names; all of"
            " its devices where neither FILE nor --devices says how many.",
        ),
    ] = None,
    variables: VariableOption = None,
    arguments: ArgumentOption = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say what a training script or configuration says: its layout, model, batch and precision.

    Of serve commands of vLLM, SGLang and TensorRT-LLM, a file of their options, or a manifest or chart that
    starts them: engines, formats, sizes.

    Nothing in FILE is executed, programs in Python included. Files that it names are read where they lie.
    What it leaves open takes the framework's default and is said; what a key that is not read may decide
    stays open; what depends on the output of a command or on a loop is an error with its line. --format yaml
    prints a job file for `autoplan plan` and `autoplan evaluate JOB --from FILE`: a whole one with
    --hardware.
    """
    from autoplan.answers.configure import ask
    from autoplan.answers.configure.blocks import configuration_blocks, configuration_document
    from autoplan.answers.configure.engine_launches import engine_document
    from autoplan.launch.engines.served_run import EngineConfiguration

    values = variables_of(variables)
    read_on = partial(ask.read, file, framework, variables=values, arguments=arguments_of(arguments))
    configuration = read_on(devices=devices)
    if hardware is not None:
        of_file = configuration.job.get("devices")
        available = _devices_of(hardware, of_file)
        if of_file is None:
            configuration = read_on(devices=available)
    if form is Format.yaml:
        write(_job_file(configuration, hardware), output)
        return
    if isinstance(configuration, EngineConfiguration):
        document = engine_document(configuration)
    else:
        document = configuration_document(configuration)
    present(Destination(form, output), document, document=dict, table=configuration_blocks)


def _job_file(configuration: Configuration | EngineConfiguration, hardware: str | None) -> str:
    """Return what was read as a job file."""
    from autoplan.answers.configure.blocks import job_text
    from autoplan.answers.configure.engine_launches import serving_job_text
    from autoplan.catalog.programs import stack_of_way
    from autoplan.launch.engines.served_run import EngineConfiguration
    from autoplan.launch.registry import usual_stack

    if isinstance(configuration, EngineConfiguration):
        return serving_job_text(configuration, hardware)
    usual = usual_stack(configuration.framework)
    priced_by = stack_of_way(configuration.framework, configuration.way) or usual
    return job_text(configuration, priced_by, hardware)


def show_engine_file(
    job: str,
    file: LaunchFile,
    framework: str | None,
    deadline: float | None,
    where: Destination,
) -> None:
    """Write the prediction of what serve commands in a file start, for a serving job, and what is better."""
    if asks_for_page(where.form, where.output):
        raise typer.BadParameter("there is no page of serve commands: give --layout", param_hint="--output")
    from autoplan.answers.configure.blocks import better_document, better_text
    from autoplan.answers.configure.engine_launches import better_plan, engine_document, evaluate_engine_file
    from autoplan.catalog import load_serving_job
    from autoplan.report.render.terminal import render
    from autoplan.report.serving.serving_document import serving_plan_document
    from autoplan.report.serving.serving_report import serving_plan_blocks

    loaded = load_serving_job(job)
    read = evaluate_engine_file(loaded, file, framework)
    front = planned(loaded, deadline)
    better, proven = better_plan(read, front), front.certificate.status == "optimal"
    present(
        where,
        document=lambda: {
            **serving_plan_document(read.job, read.plan),
            "configuration": engine_document(read.configuration),
            "differences": list(read.differences),
            "comparison": None if better is None else better_document(better),
            "comparison_proven": proven,
        },
        table=lambda terminal: (
            f"{render(serving_plan_blocks(read.job, read.plan, terminal), terminal)}\n"
            f"{better_text(better, proven=proven)}"
        ),
    )
    complain(f"note: {note}" for note in (*read.configuration.warnings, *read.differences))


def _devices_of(hardware: str, devices: int | None) -> int:
    """Return the number of devices of ``hardware`` that a run has; raises CatalogError for an unknown one."""
    from autoplan.catalog.option_jobs import clusters_of

    return clusters_of(hardware, devices, Path())[0].devices


def launch_file(path: Path, variables: list[str] | None, arguments: list[str] | None) -> LaunchFile:
    """Return the file that an option names, with the values that others give it."""
    from autoplan.answers.configure.ask import sibling_reader, text_of_file
    from autoplan.launch.configuration import LaunchFile
    from autoplan.launch.job_manifests import with_script

    overrides = variables_of(variables), arguments_of(arguments)
    file = LaunchFile(str(path), text_of_file(path), *overrides, sibling=sibling_reader(path))
    return with_script(file)


def job_of(reference: str, file: LaunchFile | None, framework: str | None) -> AnyJob:
    """Return the job of ``reference``: beside a file a line of options leaves to it what it does not say."""
    from autoplan.answers.configure.comparing_files import job_beside
    from autoplan.catalog.job_option_names import is_option_job
    from autoplan.kinds import TRAINING, kind_of

    kind = kind_of(reference)
    if file is None or kind is not TRAINING or not is_option_job(reference):
        return kind.load(reference)
    return job_beside(reference, file, framework)


def served_reference(reference: str, file: LaunchFile | None, framework: str | None) -> str:
    """Return the line of options ``reference`` with task, model and engine of a file that serves.

    So are the format of its weights, and its devices where they are more than those of the hardware.
    """
    from autoplan.answers.configure.ask import read as read_launch_file
    from autoplan.catalog.job_option_names import is_option_job
    from autoplan.launch.engines.served_run import EngineConfiguration

    words = shlex.split(reference) if file is not None and is_option_job(reference) else []
    if file is None or not words or "--task" in words:
        return reference
    read_file = read_launch_file(
        file.name, framework, variables=file.variables, arguments=file.arguments, devices=file.devices
    )
    if not isinstance(read_file, EngineConfiguration):
        return reference
    model = read_file.job.get("model")
    named = ["--model", model] if isinstance(model, str) and "--model" not in words else []
    engine = [] if "--stack" in words else ["--stack", read_file.engine]
    more = [*_weights_of(read_file, words), *_further_devices(read_file, words)]
    return shlex.join([*named, *words, "--task", "serve", *engine, *more])


def _weights_of(read_file: EngineConfiguration, words: Sequence[str]) -> list[str]:
    """Return the option for the one format of weights that a file says, unless ``words`` have it."""
    from autoplan.schema.serving.engine_layout import EngineLayout

    layout = read_file.layout
    engines = (layout,) if isinstance(layout, EngineLayout) else (layout.prefill, layout.decode)
    formats = {engine.weights for engine in engines}
    named = "--precision" not in words and "weights" not in read_file.unspecified
    return ["--precision", *formats] if named and len(formats) == 1 else []


def _further_devices(read_file: EngineConfiguration, words: Sequence[str]) -> list[str]:
    """Return the option for devices of whole nodes where engines take more than the hardware has."""
    from autoplan.errors import AutoplanError

    if "--hardware" not in words[:-1] or {"--devices", "--nodes"} & set(words):
        return []
    try:
        available = _devices_of(words[words.index("--hardware") + 1], None)
    except AutoplanError:
        return []
    nodes = -(-read_file.layout.devices // available)
    return ["--devices", str(nodes * available)] if nodes > 1 else []


def variables_of(texts: list[str] | None) -> dict[str, str]:
    """Return variables by name; refuses what is not of the form NAME=VALUE."""
    variables = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not (name.isidentifier() or name.isdigit()):
            raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--set")
        variables[name] = value
    return variables


def arguments_of(texts: list[str] | None) -> tuple[str, ...]:
    """Return the words of further arguments."""
    try:
        return tuple(word for text in texts or () for word in shlex.split(text))
    except ValueError as error:
        raise typer.BadParameter(f"{error}", param_hint="--arg") from error
