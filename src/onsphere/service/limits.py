"""Keep one client from taking the service from all others, and strangers out: size, rate, time, names and keys."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from onsphere.service.answers import RequestError, send_error
from onsphere.service.settings import Key, Keys, Settings, is_loopback

__all__ = ["Limits", "Rates"]

_UNLIMITED = ("/healthz", "/readyz")  # whoever looks after the service must always get an answer
_MAX_BODIES = 8  # of the largest size, held in memory at a time
_LARGEST_OTHER = 2**20  # bytes of a body without rows, such as labels
_MAX_CLIENTS = 10_000  # whose rates are remembered


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

    It finds out whose key a request has, once for all; the application reads it from the scope.
    """

    def __init__(self, app: Any, *, settings: Settings, keys: Keys) -> None:
        self._app, self._settings, self._keys = app, settings, keys
        self._rates = Rates(settings.rate / settings.workers)
        self._held = 0  # bytes of bodies in memory
        # Without keys, a page of another site must not reach the service by giving itself the name of this machine.
        self._own_names = is_loopback(settings.host) and not keys and not settings.open
        self._needs_tls = bool(keys) and not is_loopback(settings.host)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(scope, receive, self._settings)
        try:
            self._check(scope)
            while not body.ended:
                self._held += await body.read()
                self._check_size(scope, body.n_bytes)
                if self._held > _MAX_BODIES * self._settings.max_body:
                    raise RequestError(503, "Too many large requests arrive at once. Try again in a moment.")
            await self._app(scope, body.replay, send)
        except RequestError as error:
            await send_error(error, send if body.ended else body.wait_before(send))
        finally:
            self._held -= body.n_bytes

    def _check(self, scope: Any) -> None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in (b"authorization", b"x-api-key", b"content-length", b"transfer-encoding"):
                raise RequestError(400, f"Expected the header {name.decode()} once. Got it several times.")
            headers[name] = value
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise RequestError(400, "Expected a body whose length is said in one way. Got two ways. Send one of them.")
        if self._own_names and not is_loopback(_read_host(headers.get(b"host", b""))):
            raise RequestError(421, "Expected a request to this machine by its own name, such as localhost.")
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
            raise RequestError(403, "Expected a request from a page of this service. Got one from another site.")
        scope["state"]["key"] = key = self._find_key(scope, headers)
        if scope["path"] in _UNLIMITED:
            return
        client = f"address {(scope.get('client') or [''])[0]}" if key is None else key.name
        seconds = self._rates.wait(client, now=time.monotonic())
        if seconds:
            raise RequestError(
                429, f"Expected at most {self._settings.rate:g} requests per second. Wait {seconds:.1f} s."
            )
        length = headers.get(b"content-length", b"")
        self._check_size(scope, int(length[:20]) if length.isdigit() else 0)

    def _find_key(self, scope: Any, headers: dict[bytes, bytes]) -> Key | None:
        """Return whose key a request has: `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key")
        if given is not None and self._needs_tls and scope.get("scheme") != "https":
            raise RequestError(
                403, "Expected a key over TLS. Got one that others could read on the way: make a new one. Ask https://."
            )
        return None if given is None else self._keys.find(given.decode("latin-1"))

    def _check_size(self, scope: Any, n_bytes: int) -> None:
        """Check the bytes of a body; only those with rows are read in a child process, and may be large."""
        largest = self._settings.max_body if scope["path"] == "/v1/assess" else _LARGEST_OTHER
        if n_bytes > largest:
            raise RequestError(413, f"Expected a body of at most {largest:,} bytes. Got more. Send several requests.")


class _Body:
    """The body of a request as it arrives, which has some seconds to do so."""

    def __init__(self, scope: Any, receive: Any, settings: Settings) -> None:
        headers = dict(scope["headers"])
        self._receive, self._seconds = receive, settings.read_timeout
        self._deadline = asyncio.get_running_loop().time() + settings.read_timeout
        self._expects = b"expect" in headers  # the client sends nothing before we say so
        self._parts: list[bytes] | None = []
        self.n_bytes = 0
        self.ended = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers

    async def read(self) -> int:
        """Read the next part and return its length."""
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(408, f"Expected the whole request within {self._seconds:g} s.") from None
        if message["type"] == "http.disconnect":
            self.ended = True
            raise RequestError(408, "The client went away before its request had arrived.")
        self.ended = not message.get("more_body", False)
        if self._parts is not None:
            self._parts.append(message["body"])
            self.n_bytes += len(message["body"])
        return len(message["body"])

    async def replay(self) -> Any:
        """Return the whole body to the application, and after that whatever comes."""
        if self._parts is None:
            return await self._receive()
        content, self._parts = b"".join(self._parts), None
        return {"type": "http.request", "body": content, "more_body": False}

    def wait_before(self, send: Any) -> Any:
        """Return a `send` whose answer ends after the request: a client that is cut off may never read its answer."""
        self._parts = None

        async def send_after_body(message: Any) -> None:
            if message["type"] == "http.response.start":
                await send({**message, "headers": [*message["headers"], (b"connection", b"close")]})
                return
            await send({**message, "more_body": True})
            with suppress(RequestError):
                while not (self.ended or self._expects):
                    await self.read()
            await send({"type": "http.response.body", "body": b""})

        return send_after_body


def _read_host(given: bytes) -> str:
    """Return the name in a Host header without the port; empty where it is no name."""
    try:
        return urlsplit(f"//{given.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""
