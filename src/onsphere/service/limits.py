"""Keep one client from taking the service from all others: size, rate, time and memory."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from onsphere.service.replies import RequestError, send_error
from onsphere.service.settings import Keys, Settings, is_loopback

__all__ = ["Limits", "Rates", "TimedConfig", "TimedProtocol", "read_key"]

_UNLIMITED = ("/healthz", "/readyz")  # whoever looks after the service must always get an answer
_MAX_BODIES = 8  # of the largest size, held in memory at a time
_MAX_CLIENTS = 10_000  # whose rates are remembered
_WORKER_SECONDS = 60  # for a worker to say that it lives
_FAIR_PART = 64 * 2**10  # bytes of an answer
# Not httptools, which uvicorn prefers where it is installed: it accepts headers without end.
_Base: Any = H11Protocol


class Rates:
    """A bucket of tokens for each client, refilled at a rate; the clients that were silent longest are forgotten.

    Examples
    --------
    >>> rates = Rates(1.0)
    >>> [rates.wait("a", now=0.0), rates.wait("a", now=0.0), rates.wait("a", now=0.0), rates.wait("b", now=0.0)]
    [0.0, 0.0, 1.0, 0.0]
    """

    def __init__(self, rate: float) -> None:
        self._rate, self._size = rate, max(1.0, 2 * rate)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, *, now: float) -> float:
        """Return the seconds until the next request may come; 0 takes a token for this one."""
        if not self._rate:
            return 0.0
        tokens, before = self._buckets.pop(client, (self._size, now))
        tokens = min(self._size, tokens + (now - before) * self._rate)
        short = max(0.0, 1.0 - tokens)
        self._buckets[client] = (tokens if short else tokens - 1.0, now)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return short / self._rate


class Limits:
    """A layer around the application that rejects what is too much, before it is read where possible.

    Parameters
    ----------
    app : ASGI application
    settings : Settings
    keys : Keys
        Clients with a key are recognised by it, others by their address.
    """

    def __init__(self, app: Any, *, settings: Settings, keys: Keys) -> None:
        self._app, self._settings, self._keys = app, settings, keys
        self._rates = Rates(settings.rate / settings.workers)
        self._held = 0  # bytes of bodies in memory
        # Without keys, a page of another site must not reach the service by giving itself the name of this machine.
        self._own_names = is_loopback(settings.host) and not keys and not settings.open

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] in _UNLIMITED:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body = _Body(receive, headers, self, self._settings.read_timeout)
        send_after_body = _wait_for_body(send, body)
        try:
            self._check(scope, headers)
            await self._app(scope, body.receive, send_after_body)
        except RequestError as error:
            await send_error(error, send_after_body)
        finally:
            self._held -= body.n_read

    def _check(self, scope: Any, headers: dict[str, str]) -> None:
        if self._own_names and not is_loopback(_read_host(headers.get("host", ""))):
            raise RequestError(421, "Expected a request to this machine by its own name, such as localhost.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise RequestError(403, "Expected a request from a page of this service. Got one from another site.")
        client = self._keys.find_name(read_key(headers)) or f"address {(scope.get('client') or [''])[0]}"
        seconds = self._rates.wait(client, now=time.monotonic())
        if seconds:
            raise RequestError(
                429, f"Expected at most {self._settings.rate:g} requests per second. Wait {seconds:.1f} s."
            )
        length = headers.get("content-length", "")
        if length.isdigit():
            self._check_size(int(length[:20]))

    def _check_size(self, n_bytes: int) -> None:
        if n_bytes > self._settings.max_body:
            raise RequestError(
                413, f"Expected a body of at most {self._settings.max_body:,} bytes. Got more. Send several requests."
            )

    def hold(self, n_bytes: int, n_read: int) -> None:
        """Count the bytes held of one body and of all."""
        self._held += n_bytes
        self._check_size(n_read)
        if self._held > _MAX_BODIES * self._settings.max_body:
            raise RequestError(503, "Too many large requests arrive at once. Try again in a moment.")


class _Body:
    """The body of a request as it arrives, counted and timed."""

    def __init__(self, receive: Any, headers: dict[str, str], limits: Limits, seconds: float) -> None:
        self._receive, self._limits, self._seconds = receive, limits, seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._expects = "expect" in headers  # the client sends nothing before we say so
        self.n_read = 0
        self.ended = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

    async def receive(self) -> Any:
        """Return the next part, or raise if it does not come in time."""
        if self.ended:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(408, f"Expected the whole request within {self._seconds:g} s.") from None
        self.ended = not message.get("more_body", False)
        n_bytes = len(message.get("body", b""))
        self.n_read += n_bytes
        self._limits.hold(n_bytes, self.n_read)
        return message

    async def drain(self) -> None:
        """Let the rest arrive, for a while: a client that is cut off while it sends may never read its answer."""
        if self._expects:
            return
        try:
            async with asyncio.timeout_at(self._deadline):
                while not self.ended:
                    message = await self._receive()
                    self.ended = not message.get("more_body", False)
        except TimeoutError:
            return


def _wait_for_body(send: Any, body: _Body) -> Any:
    """Return a `send` that holds the last part of an answer back until the whole request has arrived."""

    async def send_after_body(message: Any) -> None:
        if message["type"] == "http.response.start" and not body.ended:
            message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
        elif message["type"] == "http.response.body" and not message.get("more_body", False) and not body.ended:
            await send({**message, "more_body": True})
            await body.drain()
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return send_after_body


def read_key(headers: Any) -> str | None:
    """Return the API key of a request: `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def _read_host(given: str) -> str:
    """Return the name in a Host header without the port; empty where it is no name."""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""


class TimedConfig(uvicorn.Config):
    """The options of uvicorn, and the seconds that a `TimedProtocol` waits."""

    def __init__(self, app: Any, *, seconds: float, **options: Any) -> None:
        super().__init__(app, http=TimedProtocol, **options)
        self.seconds = seconds
        # On a busy machine a worker imports for longer than the 5 s after which uvicorn would kill and replace it.
        self.timeout_worker_healthcheck = _WORKER_SECONDS


class TimedProtocol(_Base):
    """A connection that is closed where it keeps the service waiting, which uvicorn does not do.

    The headers of the next request have to arrive within some seconds (the body has its own time, in `_Body`; a
    connection that waits between requests has uvicorn's), and in each such time a fair part of the answer has to be
    taken.
    """

    _headers_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # An answer goes out in two parts, and the second would wait for the client to acknowledge the first, which
        # takes 40 ms. asyncio sets this by itself only where the listening socket names its protocol.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_headers_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_headers_timer()
        elif self._headers_timer is None:
            self._start_headers_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_headers_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._check_taken(math.inf)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _check_taken(self, n_left: float) -> None:
        n_now = self.transport.get_write_buffer_size()
        if n_now > n_left - _FAIR_PART:
            self.transport.abort()
        else:
            self._answer_timer = self.loop.call_later(self.config.seconds, self._check_taken, n_now)

    def _start_headers_timer(self) -> None:
        self._headers_timer = self.loop.call_later(self.config.seconds, self.transport.abort)

    def _stop_headers_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None
