"""``autoplan serve-ui``: a page to play with, served to this machine."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from autoplan.commands.lean import collect_again
from autoplan.commands.options import DEADLINE_METAVAR, seconds_from
from autoplan.commands.output import complain, option, write
from autoplan.errors import UnsupportedError

_NEEDED: Final = ("starlette", "uvicorn")


def serve_ui(
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="Port; 0 is any free one.")
    ] = 8765,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="HOST", help="Address to listen on; others are open to other machines."
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        option(
            "--allow-host",
            "NAME",
            "A name by which browsers may call this server, such as that of a proxy; may be repeated.",
        ),
    ] = None,
    solves: Annotated[
        int, typer.Option("--solves", metavar="N", min=1, max=64, help="Questions worked on at once.")
    ] = 2,
    deadline: Annotated[
        float,
        typer.Option(
            "--deadline",
            metavar=DEADLINE_METAVAR,
            parser=seconds_from(1.0, 3_600.0),
            help="How long a question may take, such as 40, 40s or 2min; then it is answered with the best"
            " plans so far.",
        ),
    ] = 30.0,
) -> None:
    """Serve a page on which model, hardware and workload are picked, and the plans follow.

    It shows the front, the verdict with memory by stage, remedies where nothing fits, and the launch file of
    the chosen plan; its link reproduces the question. The page loads nothing from elsewhere. Only this
    machine reaches it unless --host says otherwise. Ctrl-C ends it.

    Needs the extra ui: pip install 'autoplan[ui]'.
    """
    _check_extra()
    from autoplan.playground.page_server import listen, serve

    listening = listen(host, port)
    if not listening.is_local:
        warning = f"{listening.address} is open to other machines, which need no password"
        complain([f"warning: {warning}: leave out --host to serve this one alone"])
    collect_again()
    names = frozenset(name.lower() for name in allow_host or ())
    serve(
        listening,
        solves=solves,
        seconds=deadline,
        names=names,
        ready=lambda: write(f"autoplan is at {listening.url} (Ctrl-C ends it)\n"),
    )


def _check_extra() -> None:
    """Raise UnsupportedError where the packages of the extra are missing."""
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"serve-ui needs {' and '.join(missing)}, which are not installed: pip install 'autoplan[ui]'"
        )
