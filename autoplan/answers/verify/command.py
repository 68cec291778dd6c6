"""``autoplan verify``: verification of a saved answer without the solver, and comparison with another one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from autoplan.commands.lean import collect_again
from autoplan.commands.options import DEADLINE_METAVAR, command_deadline, seconds_from
from autoplan.commands.output import (
    Destination,
    Format,
    FormatOption,
    OutputOption,
    argument,
    option,
    present,
)
from autoplan.commands.planned import Bar

#: Exit code where a claim is false, or two answers differ.
REFUTED: Final = 1
#: Exit code where no claim is false, and one that matters could not be checked.
NOT_ALL_CHECKED: Final = 3


def verify(
    plan: Annotated[Path, argument("PLAN", "Output of `autoplan plan JOB --format json`.")],
    job: Annotated[
        str | None,
        option("--job", "JOB", "A job file: the plan must be one of this job, with the current catalogue."),
    ] = None,
    against: Annotated[
        Path | None,
        option("--against", "OTHER", "Another saved plan: only say in which fields the two differ."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--deadline",
            metavar=DEADLINE_METAVAR,
            parser=seconds_from(),
            help="How long layouts may be looked for: 40, 40s or 2min.",
        ),
    ] = 60.0,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="No deadline: until every layout is decided.")
    ] = False,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Verify a saved PLAN without the solver that computed it.

    Recomputes rules, step times, memory, counts and facts, and bounds every choice of degrees independently
    of the search: no layout may dominate the plans. The last line says what came of it.

    Exit code 0: all claims that matter hold; 1: a claim is false, or PLAN and OTHER differ; 2: a file cannot
    be read; 3: no claim is false, and one that matters could not be checked, such as for lack of time.
    """
    from autoplan.answers.verify import ask

    collect_again()
    where = Destination(form, output)
    if against is not None:
        _compare(plan, against, where)
        return
    deadline = command_deadline(None if exhaustive else seconds)
    with Bar("checking layouts") as bar:
        verdict = ask.verify(plan, job=job, deadline=deadline, progress=bar)

    from autoplan.answers.verify.blocks import verdict_blocks, verdict_document

    present(where, verdict, document=verdict_document, table=verdict_blocks)
    if not verdict.verified:
        raise typer.Exit(REFUTED if verdict.failed else NOT_ALL_CHECKED)


def _compare(plan: Path, other: Path, where: Destination) -> None:
    """Write the fields in which two saved plans differ."""
    from autoplan.answers.verify.ask import compared
    from autoplan.answers.verify.blocks import comparison_blocks, comparison_document

    comparison = compared(plan, other)
    present(where, comparison, document=comparison_document, table=comparison_blocks)
    if comparison.differences:
        raise typer.Exit(REFUTED)
