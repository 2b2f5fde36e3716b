"""What keeps one client from taking the service from all others: size, rate, time and memory."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

from onsphere.service.keys import Keys
from onsphere.service.problems import RequestError
from onsphere.service.replies import json_of
from onsphere.service.settings import Settings, is_loopback

__all__ = ["Limits", "Rates", "answer_error", "error_headers", "given_key"]

_UNLIMITED = ("/healthz", "/readyz")  # whoever looks after the service must always get an answer
_BODIES = 8  # of the largest size, that are held in memory at a time


class Rates:
    """A bucket of tokens for each client, refilled at a rate; the clients not heard of for longest are forgotten.

    Examples
    --------
    >>> rates = Rates(1.0)
    >>> [rates.wait("a", now=0.0), rates.wait("a", now=0.0), rates.wait("a", now=0.0), rates.wait("b", now=0.0)]
    [0.0, 0.0, 1.0, 0.0]
    """

    _MOST = 10_000

    def __init__(self, rate: float) -> None:
        self._rate, self._size = rate, max(1.0, 2 * rate)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, *, now: float) -> float:
        """Seconds until the next request is let through; 0 takes a token for this one."""
        if not self._rate:
            return 0.0
        tokens, before = self._buckets.pop(client, (self._size, now))
        tokens = min(self._size, tokens + (now - before) * self._rate)
        short = max(0.0, 1.0 - tokens)
        self._buckets[client] = (tokens if short else tokens - 1.0, now)
        if len(self._buckets) > self._MOST:
            self._buckets.popitem(last=False)
        return short / self._rate


class Limits:
    """Refuses what is too much, before it is read where it can; a layer around the application.

    Parameters
    ----------
    app : ASGI application
    settings : Settings
    keys : Keys
        Clients with a key are told apart by it, others by their address.
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
        body = _Body(receive, headers, self)
        sending = _sending(send, body)
        try:
            self._check(scope, headers)
            await self._app(scope, body.receive, sending)
        except RequestError as error:
            await answer_error(error, sending)
        finally:
            self._held -= body.n_read

    def _check(self, scope: Any, headers: dict[str, str]) -> None:
        if self._own_names and not is_loopback(_host(headers.get("host", ""))):
            raise RequestError(421, "Expected a request to this machine by its own name, such as localhost.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise RequestError(403, "Expected a request from a page of this service. Got one from another site.")
        client = self._keys.name_of(given_key(headers)) or f"address {(scope.get('client') or [''])[0]}"
        seconds = self._rates.wait(client, now=time.monotonic())
        if seconds:
            told = f"Expected at most {self._settings.rate:g} requests per second. Wait {seconds:.1f} s."
            raise RequestError(429, told)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > self._settings.max_body:
            raise self.too_large()

    def too_large(self) -> RequestError:
        """The answer to a body that is."""
        told = f"Expected a body of at most {self._settings.max_body:,} bytes. Got more. Send several requests."
        return RequestError(413, told)

    def hold(self, n_bytes: int, n_read: int) -> None:
        """Count bytes that are kept of one body and of all."""
        self._held += n_bytes
        if n_read > self._settings.max_body:
            raise self.too_large()
        if self._held > _BODIES * self._settings.max_body:
            raise RequestError(503, "Too many large requests arrive at once. Try again in a moment.")

    @property
    def read_timeout(self) -> float:
        """Seconds in which a request has to arrive."""
        return self._settings.read_timeout


class _Body:
    """The body of a request as it arrives, counted and timed."""

    def __init__(self, receive: Any, headers: dict[str, str], limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._deadline = asyncio.get_running_loop().time() + limits.read_timeout
        self._waits = "expect" in headers  # for our word before it sends anything
        self.n_read = 0
        self.ended = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

    async def receive(self) -> Any:
        """The next part, in time."""
        if self.ended:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(408, f"Expected the whole request within {self._limits.read_timeout:g} s.") from None
        self.ended = not message.get("more_body", False)
        n_bytes = len(message.get("body", b""))
        self.n_read += n_bytes
        self._limits.hold(n_bytes, self.n_read)
        return message

    async def drain(self) -> None:
        """Let the rest arrive, for a while: a client that is cut off while it sends may never read its answer."""
        if self._waits:
            return
        try:
            async with asyncio.timeout_at(self._deadline):
                while not self.ended:
                    message = await self._receive()
                    self.ended = not message.get("more_body", False)
        except TimeoutError:
            return


def _sending(send: Any, body: _Body) -> Any:
    """Send the last part of an answer only when the request has come to its end."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start" and not body.ended:
            message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
        elif message["type"] == "http.response.body" and not message.get("more_body", False) and not body.ended:
            await send({**message, "more_body": True})
            await body.drain()
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return sending


def given_key(headers: Any) -> str | None:
    """The API key of a request: `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


async def answer_error(error: RequestError, send: Any) -> None:
    """Send an error as JSON."""
    body = json_of(error.body())
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error_headers(error.status).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_headers(status: int) -> dict[str, str]:
    """What belongs to an answer of this status."""
    if status == 401:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": "1"} if status in (429, 503) else {}


def _host(given: str) -> str:
    """The name in a Host header, without the port; none where it cannot be one."""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""
