"""Connections that say nothing, or little, or do not read: each has a time limit, and makes room for others.

The server's own limit begins with its first answer. A browser opens a few connections before it needs them,
and whoever opens very many must not keep others from being answered.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["TimedConnection"]

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
        """Begin to wait for a request, in place of the connection that waits longest where many do."""
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
