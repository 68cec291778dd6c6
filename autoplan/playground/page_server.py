"""The server of the page: its socket, its processes, and an end within a second when a signal asks for it.

Connections that say nothing, or little, or do not read: each has a time limit, and makes room for others.

The server's own limit begins with its first answer. A browser opens a few connections before it needs them,
and whoever opens very many must not keep others from being answered.

The addresses of the server: the page with its script and style sheet, the choices, and three questions.

What every request passes before it is looked at: its Host, its origin, its size; and headers of responses.

The Host header is compared with the names of this server, so that a page of another site whose name was bound
to this address (DNS rebinding) reads nothing. There is no CORS: a request of another origin is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from importlib.resources import files
from types import FrameType
from typing import Any, Final, get_args
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.playground.answers import Answer, error_document
from autoplan.playground.questions import AskPath, ask_from, page_choices
from autoplan.playground.solving import Admission, Bounds, RefusedRequestError, SolveProcesses, error_body

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
        host_names = names if listening.is_local else names | _names_of_machine(listening.host)
        server = _server(RequestGuard(admitted, host_names, open=not listening.is_local))
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


#: How long the head of a request may take from its connection, or from the answer before it [s].
_HEAD_SECONDS: Final = 10.0
#: How long somebody may take to read what is sent to them [s].
_READING_SECONDS: Final = 30.0
#: Connections that may wait for a request: with one more, the one that waits longest is closed.
_MOST_WAITING: Final = 64


class TimedConnection(H11Protocol):  # type: ignore[misc] # the server has no types
    """A connection that is closed where the next head of a request, or its reader, takes too long."""

    #: When it began to wait for a request, by the clock of the loop; None while one is answered [s].
    waiting_since: float | None = None
    _head_late: asyncio.TimerHandle | None = None
    _reading_late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a request; of too many connections the one that waits longest is closed."""
        super().connection_made(transport)
        self._watch()
        waiting = [x for x in self.connections if isinstance(x, TimedConnection) and x.waiting_since]
        if len(waiting) > _MOST_WAITING:
            min(waiting, key=lambda one: one.waiting_since or 0.0).make_room()

    def make_room(self) -> None:
        """Close the connection and count it no longer: the loop tells only later that it is lost."""
        self.waiting_since = None
        self.connections.discard(self)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        super().connection_lost(exc)
        self.waiting_since = None
        for timer in (self._head_late, self._reading_late):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request; once its head is complete, nothing is waited for."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Give the reader a while to go on."""
        super().pause_writing()
        self._reading_late = self.loop.call_later(_READING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Wait for the reader no longer."""
        super().resume_writing()
        if self._reading_late is not None:
            self._reading_late.cancel()

    def _watch(self) -> None:
        """Begin to wait for a request, go on waiting, or end it where one is being answered."""
        cycle: Any = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if answering and self._head_late is not None:
            self._head_late.cancel()
            self._head_late = self.waiting_since = None
        elif not answering and self._head_late is None:
            self.waiting_since = self.loop.time()
            # Closing would wait until all that was written is read.
            self._head_late = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)


#: Files of the page by address, read once: no address leads to any other file.
_FILES: Final = {
    "/": ("playground.html", "text/html; charset=utf-8"),
    "/playground.css": ("playground.css", "text/css; charset=utf-8"),
    "/playground.js": ("playground.js", "text/javascript; charset=utf-8"),
    "/pictures.js": ("pictures.js", "text/javascript; charset=utf-8"),
    "/controls.js": ("controls.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_JSON: Final = "application/json"
#: Names that a page may give itself.
_CLIENT: Final = re.compile(r"[A-Za-z0-9-]{0,64}")

Endpoint = Callable[[Request], Awaitable[Response]]


def application(admission: Admission) -> Starlette:
    """Return the application whose questions go to ``admission``."""
    choices = json.dumps(page_choices(), separators=(",", ":")).encode()
    content = {
        path: ((files("autoplan.playground") / "static" / name).read_bytes(), kind)
        for path, (name, kind) in _FILES.items()
    }
    routes = [Route(path, _constant(body, kind)) for path, (body, kind) in content.items()]
    routes.append(Route("/api/choices", _constant(choices, _JSON)))
    routes += [
        Route(f"/api/{path}", _question(path, admission), methods=["POST"]) for path in get_args(AskPath)
    ]
    handlers = {HTTPException: _no_such_address, RefusedRequestError: _refused, Exception: _defect}
    return Starlette(routes=routes, exception_handlers=handlers)


def _constant(body: bytes, kind: str) -> Endpoint:
    async def answer(_: Request) -> Response:
        return Response(body, media_type=kind)

    return answer


def _question(path: AskPath, admission: Admission) -> Endpoint:
    async def answer(request: Request) -> Response:
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != _JSON:
            raise RefusedRequestError(415, f"a question is {_JSON}")
        address = request.client.host if request.client else ""
        client = _client_of(request)
        body = await body_of(request.receive)
        try:
            request_body = ask_from(path, body)
        except AutoplanError as error:
            return Response(json.dumps(error_document(error)), 400, media_type=_JSON)
        response = await _unless_gone(request, admission.answer(address, client, request_body))
        return Response(response.body, response.status, media_type=_JSON)

    return answer


def _client_of(request: Request) -> str:
    """Return what the page calls itself, so that two pages of one machine do not replace each other."""
    name: str = request.headers.get("x-autoplan-client", "")
    if not _CLIENT.fullmatch(name):
        raise RefusedRequestError(400, "x-autoplan-client has at most 64 letters and digits")
    return name


async def _unless_gone(request: Request, answering: Awaitable[Answer]) -> Answer:
    """Return the answer; where the page is gone before there is one, its question is given up."""
    task = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedRequestError(400, "the page is gone")
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the other end closes the connection."""
    message: dict[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await request.receive()


async def _no_such_address(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    words = {404: "there is no such address", 405: f"{request.method} is not for this address"}
    message = words.get(status, "this request cannot be answered")
    return Response(error_body(message), status, headers=getattr(error, "headers", None), media_type=_JSON)


async def _refused(_: Request, error: Exception) -> Response:
    status, headers = getattr(error, "status", 500), getattr(error, "headers", None)
    return Response(error_body(str(error)), status, headers=headers, media_type=_JSON)


async def _defect(_: Request, error: Exception) -> Response:
    """Answer in place of a traceback; the guard says on the terminal what it was."""
    del error
    return Response(error_body("internal error: please report it"), 500, media_type=_JSON)


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Largest body of a request [byte]: a question has a few hundred.
MOST_BODY_BYTES: Final = 16 * 2**10
#: How long a body may take to arrive [s].
_BODY_SECONDS: Final = 10.0
#: What is read of a body that is too large, without keeping it, so that its sender gets to read the answer.
_MOST_DISCARDED: Final = 64 * 2**20

#: A page of this server loads its own script and style sheet, asks this server, and nothing else.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")


def is_loopback(name: str) -> bool:
    """Return whether ``name``, of a Host header or an address, is this machine and no other.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class RequestGuard:
    """Wraps an application; ``names`` are the host names of this server besides those of the loopback.

    Where it is ``open`` to other machines, any address may be named, too: a rebound name is never one.
    """

    application: Application
    names: frozenset[str] = field(default_factory=frozenset)
    open: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        began = False

        async def answer(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        try:
            self._check(_headers(scope))
            await self.application(scope, receive, answer)
        except RefusedRequestError as error:
            if error.status == 413:
                await _discard(receive)
            await _respond(answer, error.status, error_body(str(error)), error.headers)
        except Exception as error:  # noqa: BLE001 - a defect of ours is a response, and a line on the terminal
            sys.stderr.write(f"error: {type(error).__name__} while answering: please report it\n")
            if not began:
                await _respond(answer, 500, error_body("internal error: please report it"), {})

    def _check(self, headers: dict[str, str]) -> None:
        """Raise RefusedRequestError for another host, another origin or a body that says it is too large."""
        host = headers.get("host", "")
        match = _HOST.fullmatch(host)
        if match is None or not self._is_ours(match["name"]):
            hosts = ", ".join(sorted({"localhost", "127.0.0.1", *self.names}))
            raise RefusedRequestError(421, f"this host name is not one of this server: known are {hosts}")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise RefusedRequestError(403, "a page of another origin may not ask this server")
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 15 or int(length) > MOST_BODY_BYTES:
            raise _too_large()

    def _is_ours(self, name: str) -> bool:
        if is_loopback(name) or name.lower() in self.names:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return self.open


async def body_of(receive: Receive) -> bytes:
    """Return the body of a request; raises RefusedRequestError when it grows too large or takes too long."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedRequestError(400, "the request ended before its body did")
                body += message.get("body", b"")
                if len(body) > MOST_BODY_BYTES:
                    await _discard(receive)
                    raise _too_large()
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise RefusedRequestError(408, f"the body took longer than {_BODY_SECONDS:g} s") from None


def _too_large() -> RefusedRequestError:
    return RefusedRequestError(413, f"a request has at most {MOST_BODY_BYTES} bytes")


async def _discard(receive: Receive) -> None:
    """Read what is left of a body and keep nothing, for a while."""
    left = _MOST_DISCARDED
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request; raises RefusedRequestError where one that decides is given twice."""
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    deciding = [name for name, _ in pairs if name in {"host", "origin", "content-length", "content-type"}]
    if len(set(deciding)) < len(deciding):
        raise RefusedRequestError(400, "a header is given twice")
    return dict(pairs)


async def _respond(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    listed += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
