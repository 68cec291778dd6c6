"""The application ``autoplan``: its commands, and what becomes of every error.

Exit codes: 0 there is an answer, 1 nothing is feasible, 2 bad input, 130 interrupted, 141 whoever
read the output went away.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from autoplan.commands.output import (
    BAD_INPUT,
    BROKEN_PIPE,
    INTERRUPTED,
    NOTHING_FEASIBLE,
    complain,
    discard,
    escaped,
)
from autoplan.errors import AutoplanError, InfeasibleError
from autoplan.version import __version__

if TYPE_CHECKING:
    app: typer.Typer

_LONGEST_LINE: Final = 600


#: What a command line is refused with, of click or of typer's copy of it.
#: What other programs call options of a job.
_MEANT: Final = {
    **dict.fromkeys(("--gpus", "--num-gpus", "--n-gpus", "--world-size"), "--devices"),
    **dict.fromkeys(("--gpu", "--node", "--cluster", "--device"), "--hardware"),
    **dict.fromkeys(
        ("--seq-len", "--seq-length", "--seqlen", "--max-seq-length", "--max-length"), "--sequence-length"
    ),
    **dict.fromkeys(("--batch-size", "--global-batch-size", "--gbs"), "--batch"),
    **dict.fromkeys(("--lora-rank", "--lora-r", "--r"), "--rank"),
    **dict.fromkeys(("--lora-target-modules", "--target-modules"), "--targets"),
    **dict.fromkeys(("--dtype", "--quantization"), "--precision, or --base below adapters"),
    **dict.fromkeys(("--framework", "--trainer"), "--program"),
    **dict.fromkeys(("--optim",), "--optimizer"),
    **dict.fromkeys(("--model-name", "--model-name-or-path", "--base-model"), "--model"),
}
_USAGE_ERROR: Final[Any] = typer.BadParameter.__base__


class Commands(TyperGroup):
    """The commands, with every expected error turned into a message and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Read the command line; ``--help`` and ``--version`` are answered here."""
        with _outcomes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # noqa: ANN401
        """Run the command that was asked for."""
        with _outcomes():
            return super().invoke(ctx)


@contextmanager
def _outcomes() -> Iterator[None]:
    """Turn every expected error of the block into a message and an exit code."""
    try:
        yield
    except AutoplanError as error:
        complain(error_lines(error))
        infeasible = isinstance(error, InfeasibleError)
        raise typer.Exit(NOTHING_FEASIBLE if infeasible else BAD_INPUT) from error
    except _USAGE_ERROR as error:
        complain(_usage_lines(error))
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt as error:
        complain(["interrupted"])
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError as error:
        discard(sys.stdout)
        raise typer.Exit(BROKEN_PIPE) from error
    except OSError as error:
        _give_up(error)
        raise typer.Exit(BAD_INPUT) from error


class _Command(NamedTuple):
    """Module of a command or of a group of commands below ``autoplan``, and its short help."""

    module: str
    short_help: str


#: Commands in the order of the help. A module has the function or the group of its command.
_COMMANDS: Final = {
    "plan": _Command("answers.plan.command", "Find the best layouts of a job."),
    "evaluate": _Command("answers.evaluate.command", "Predict one layout of a job."),
    "compare": _Command(
        "answers.compare.command", "Set layouts side by side, and say where the order flips."
    ),
    "guide": _Command("answers.guide.command", "Say how to train a model on hardware."),
    "capacity": _Command("answers.capacity.command", "Say what a serving job's engines hold."),
    "sweep": _Command("answers.sweep.command", "Plan a grid of jobs."),
    "explain": _Command("answers.explain.command", "Say why a layout wins or loses."),
    "diagnose": _Command("answers.diagnose.command", "Say why a run is slower than its plan."),
    "verify": _Command("answers.verify.command", "Check a saved plan without the solver."),
    "emit": _Command("answers.configure.emit_command", "Write a plan as a framework's configuration."),
    "launch": _Command("answers.configure.emit_command", "Run a training command with a plan's flags."),
    "read": _Command("answers.configure.read_command", "Say what a training script runs."),
    "gemm": _Command("answers.gemm.command", "Say what one matrix product takes."),
    "calibrate": _Command("answers.calibrate.command", "Fit a cost model to what was measured."),
    "catalog": _Command("answers.catalog.command", "Hardware, models and software."),
    "hardware": _Command("answers.catalog.command", "Find this machine's hardware."),
    "serve-ui": _Command("cli.serve_ui", "Serve a page to play with."),
    "schema": _Command("answers.catalog.command", "Print the JSON Schema of a file."),
}


def _version(value: bool) -> None:
    if value:
        typer.echo(f"autoplan {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Find the best parallel layout for training a model on given devices, and prove it.

    Exit codes: 0 there is an answer, 1 nothing is feasible, 2 bad input.
    """


def error_lines(error: AutoplanError) -> list[str]:
    """Return the message for ``error``: one line, or a head and a line for every problem.

    >>> error_lines(AutoplanError("no job is called 'x'"))
    ["error: no job is called 'x'"]
    """
    problems = getattr(error, "problems", None) or getattr(error, "reasons", None)
    sentences = [str(problem) for problem in problems] if problems else str(error).splitlines()
    sentences = [_one_line(line) for line in sentences]
    if len(sentences) == 1:
        return [f"error: {sentences[0]}"]
    return [f"error: {len(sentences)} problems", *(f"  {line}" for line in sentences)]


def _one_line(text: str) -> str:
    """Return ``text`` as one line that a terminal can show, cut where nobody would read on."""
    cut = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."
    return escaped(cut.replace("\n", "\\n"))


def _usage_lines(error: Any) -> list[str]:  # noqa: ANN401 - click's
    """Return what click says of a command line that it refuses: the usage, and what is wrong."""
    text = io.StringIO()
    error.show(file=text)
    lines = text.getvalue().splitlines()
    meant = _MEANT.get(str(getattr(error, "option_name", "")).replace("_", "-"))
    return [*lines[:-1], f"Error: {error.option_name} is {meant} here"] if meant else lines


def _give_up(error: OSError) -> None:
    """Say that output could not be written, such as to a disk that is full."""
    complain([f"error: {error.strerror or error}"])
    discard(sys.stdout)


def application(names: Iterable[str] = _COMMANDS) -> typer.Typer:
    """Return the application with the commands of these ``names``, by default all of them.

    To import all of them takes a twentieth of a short run.
    """
    built = typer.Typer(
        name="autoplan",
        cls=Commands,
        add_completion=False,
        no_args_is_help=True,
        # Plain help: rich costs more time than all the rest of `autoplan --help`.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    built.callback()(root)
    for name in names:
        home, short_help = _COMMANDS[name]
        command = getattr(import_module(f"autoplan.{home}"), name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            built.add_typer(command, name=name, short_help=short_help)
        else:
            built.command(name, short_help=short_help)(command)
    return built


def __getattr__(name: str) -> typer.Typer:
    """Return ``app``, the application with all of its commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return application()


def main() -> None:
    """Run the command line and leave with its exit code."""
    # Collecting garbage while modules load, or at exit, would only walk those modules. Commands that may
    # take long switch it on again once they are loaded.
    gc.disable()
    # Nor does it multiply large matrices, for which numpy would start a thread for each processor.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # No plugin of pydantic is looked for: that would read the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        commands = [name for name in sys.argv[1:2] if name in _COMMANDS]
        application(commands or _COMMANDS)(prog_name="autoplan")
    except KeyboardInterrupt:
        complain(["interrupted"])
        sys.exit(INTERRUPTED)
    except OSError as error:
        _give_up(error)
        sys.exit(BAD_INPUT)
    finally:
        gc.freeze()
