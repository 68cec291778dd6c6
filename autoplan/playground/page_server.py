"""The server of the page: its socket, its processes, and an end within a second when a signal asks for it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

import uvicorn

from autoplan.errors import UnsupportedError
from autoplan.playground.request_guard import RequestGuard, is_loopback
from autoplan.playground.routes import application
from autoplan.playground.solving.admission import Admission, Bounds
from autoplan.playground.solving.solve_processes import SolveProcesses
from autoplan.playground.timed_connection import TimedConnection

__all__ = ["Listening", "listen", "serve"]

#: Connections at once; more are answered with 503.
_MOST_CONNECTIONS: Final = 128
#: Largest head of a request [byte].
_MOST_HEAD_BYTES: Final = 16 * 2**10
#: How long requests at work may take to end after a signal [s].
_SHUTDOWN_SECONDS: Final = 0.4
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Listening:
    """An open socket, what the user called its host, and the address that it is bound to."""

    sock: socket.socket
    host: str
    address: str
    port: int

    @property
    def url(self) -> str:
        """Where the page is."""
        name = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{name}:{self.port}/"

    @property
    def is_local(self) -> bool:
        """Whether this machine alone can ask."""
        return is_loopback(self.address)


def listen(host: str, port: int) -> Listening:
    """Return a socket that is bound to ``host`` and ``port``; port 0 is any free one.

    Raises UnsupportedError where the port is taken, or the host is not one of this machine.
    """
    try:
        (family, kind, protocol, _, place), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise UnsupportedError(f"--host {host!r} is no address: {error}") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(place)
        sock.listen()
    except OSError as error:
        sock.close()
        raise UnsupportedError(_not_bound(host, port, error)) from error
    address, bound = sock.getsockname()[:2]
    return Listening(sock, host, str(address), int(bound))


def _not_bound(host: str, port: int, error: OSError) -> str:
    reason = error.strerror or str(error)
    return (
        f"cannot listen on port {port} of {host}: {reason}:"
        " name another port with --port, or any free one with --port 0"
    )


def serve(
    listening: Listening,
    *,
    solves: int,
    seconds: float,
    names: frozenset[str] = frozenset(),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until SIGINT or SIGTERM.

    Args:
        listening: the socket.
        solves: questions that are worked on at once, each in a process.
        seconds: how long a question may take.
        names: host names that requests may call this server, besides those of the loopback.
        ready: called when requests are answered.
    """
    asyncio.run(_serve(listening, solves, seconds, names, ready))


async def _serve(
    listening: Listening, solves: int, seconds: float, names: frozenset[str], ready: Callable[[], None]
) -> None:
    processes = SolveProcesses(solves, seconds)
    try:
        admitted = application(Admission(processes, Bounds()))
        known = names if listening.is_local else names | _names_of_machine(listening.host)
        server = _server(RequestGuard(admitted, known, open=not listening.is_local))
        with _stopped_by_signals(server, processes):
            ready()
            await server.serve(sockets=[listening.sock])
    finally:
        processes.close()


def _server(guard: RequestGuard) -> uvicorn.Server:
    config = uvicorn.Config(
        guard,
        http=TimedConnection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
    )
    config.timeout_graceful_shutdown = _SHUTDOWN_SECONDS
    server = uvicorn.Server(config)
    # Its own handlers would raise the signal once more when all is done.
    server.capture_signals = contextlib.nullcontext
    return server


def _names_of_machine(host: str) -> frozenset[str]:
    """Return what others may call this machine: the name that was given, and its own."""
    return frozenset(name.lower() for name in (host, socket.gethostname(), socket.getfqdn()) if name)


@contextlib.contextmanager
def _stopped_by_signals(server: uvicorn.Server, processes: SolveProcesses) -> Iterator[None]:
    """Make SIGINT and SIGTERM end the server, with the questions that are at work."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        processes.close()

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        loop.call_soon_threadsafe(stop)

    before = {one: signal.signal(one, handle) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
