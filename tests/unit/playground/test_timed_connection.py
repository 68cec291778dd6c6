"""Connections that say nothing, say little or do not read: how long, and how many of them."""

import asyncio
import contextlib
import socket

import pytest
import uvicorn

from autoplan.playground import page_server
from autoplan.playground.page_server import TimedConnection

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"x" * 32 * 2**20


async def application(scope, _receive, send):
    """Answer with one byte, after a while where the address says so, or with more than any buffer holds."""
    await asyncio.sleep(0.5 if scope["path"] == "/late" else 0.0)
    body = LARGE if scope["path"] == "/large" else b"1"
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def served():
    """Serve the application and yield how to connect to it, and the server."""
    config = uvicorn.Config(application, http=TimedConnection, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield lambda: asyncio.open_connection("127.0.0.1", port), server
        server.should_exit = True
        await serving


async def dripped(writer, text):
    """Send a text byte by byte until somebody closes the connection."""
    with contextlib.suppress(OSError):
        for at in range(len(text)):
            writer.write(text[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0.05)


async def ended(reader):
    """Return what is left to read until the other end closes the connection, soon."""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""


@pytest.mark.parametrize("said", [b"", b"GET / HT", REQUEST[:-2]], ids=["nothing", "a word", "no end"])
@pytest.mark.parametrize("first", [b"", REQUEST], ids=["at first", "after an answer"])
def test_a_head_that_does_not_come_ends_the_connection(monkeypatch, said, first):
    """Silence, a part of a head, and a head that comes byte by byte; before a request, and after one."""
    monkeypatch.setattr(page_server, "_HEAD_SECONDS", 0.3)

    async def run():
        async with served() as (connect, _):
            reader, writer = await connect()
            writer.write(first)
            if first:
                assert (await reader.readuntil(b"\r\n\r\n1")).startswith(b"HTTP/1.1 200")
            sent = asyncio.create_task(dripped(writer, said * 20))
            assert await ended(reader) == b""
            sent.cancel()
            writer.close()

    asyncio.run(run())


def test_a_question_may_take_longer_than_its_head(monkeypatch):
    """The limit is on the head alone: an answer that takes longer comes."""
    monkeypatch.setattr(page_server, "_HEAD_SECONDS", 0.2)

    async def run():
        async with served() as (connect, _):
            reader, writer = await connect()
            writer.write(REQUEST.replace(b"/ ", b"/late ", 1))
            async with asyncio.timeout(10):
                assert (await reader.readuntil(b"\r\n\r\n1")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(run())


def test_whoever_does_not_read_is_not_waited_for(monkeypatch):
    """An answer larger than every buffer, and nobody who takes it."""
    monkeypatch.setattr(page_server, "_READING_SECONDS", 0.3)

    async def run():
        async with served() as (connect, server):
            _, writer = await connect()
            writer.transport.pause_reading()
            writer.write(REQUEST.replace(b"/ ", b"/large ", 1))
            async with asyncio.timeout(10):
                while not server.server_state.connections:
                    await asyncio.sleep(0.01)
                while server.server_state.connections:
                    await asyncio.sleep(0.01)
            writer.transport.abort()
            return len(server.server_state.connections)

    assert asyncio.run(run()) == 0


def test_silent_connections_make_room_for_one_that_asks(monkeypatch):
    """However many there are: the ones that wait longest are closed, and the newest is answered."""
    monkeypatch.setattr(page_server, "_MOST_WAITING", 4)

    async def run():
        async with served() as (connect, server):
            silent = [await connect() for _ in range(20)]
            reader, writer = await connect()
            writer.write(REQUEST)
            async with asyncio.timeout(10):
                assert (await reader.readuntil(b"\r\n\r\n1")).startswith(b"HTTP/1.1 200")
            assert len(server.server_state.connections) <= 5
            assert await ended(silent[0][0]) == b""
            for _, other in [*silent, (reader, writer)]:
                other.transport.abort()

    asyncio.run(run())
