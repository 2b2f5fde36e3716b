"""HTTP connections that have to say what they want in time, which uvicorn does not ask of them."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["TimedConfig", "TimedProtocol"]

_FAIR_PART = 64 * 2**10  # bytes
# And not httptools, which uvicorn prefers where it is installed: it takes headers without end.
_Base: Any = H11Protocol


class TimedConfig(uvicorn.Config):
    """How uvicorn is to run, with the seconds that a `TimedProtocol` waits."""

    def __init__(self, app: Any, *, seconds: float, **options: Any) -> None:
        super().__init__(app, http=TimedProtocol, **options)
        self.seconds = seconds


class TimedProtocol(_Base):
    """A connection that is closed where it keeps the service waiting.

    The next request has to begin in full within some seconds (a body has its own time, in `limits`; a connection that
    waits between requests has uvicorn's), and in each such time a fair part of the answer has to be taken.
    """

    _beginning: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # An answer goes out in two parts, and the second would wait for the client to acknowledge the first, which it
        # puts off for 40 ms. asyncio sets this by itself only where the listening socket names its protocol.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._begin()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end()
        elif self._beginning is None:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._check_taken(math.inf)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _check_taken(self, n_left: float) -> None:
        n_now = self.transport.get_write_buffer_size()
        if n_now > n_left - _FAIR_PART:
            self.transport.abort()
        else:
            self._taking = self.loop.call_later(self.config.seconds, self._check_taken, n_now)

    def _begin(self) -> None:
        self._beginning = self.loop.call_later(self.config.seconds, self.transport.abort)

    def _end(self) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None
