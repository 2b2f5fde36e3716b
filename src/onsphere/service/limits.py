"""Guard the application: keep one client from taking it from all others, keep strangers out, log and count requests."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from contextlib import suppress
from typing import Any

from onsphere.service.answers import FaultError, RequestError, find_place
from onsphere.service.metrics import Metrics, log_event
from onsphere.service.settings import Key, Settings, hash_key, is_loopback
from onsphere.table.cells import show_value

_MAX_BODIES = 8  # of the largest size, held in memory at a time
_LARGEST_OTHER = 2**20  # bytes of a body without rows, such as labels
_OPERATING = ("/v1/reload", "/v1/reset")  # for keys with the role operate; other addresses of /v1 are for all keys
_ONCE = b"authorization x-api-key content-length transfer-encoding host content-type idempotency-key".split()
_THIS_MACHINE = re.compile(rb"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"[\w.:-]{1,64}")
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
]


class Gate:
    """The layer around the application: rejects what is too much, before it is read where possible, and logs the rest.

    It finds out whose key a request has. The paths are counted by name. The logs quote the error of a failure only if
    they may hold features. `POST /v1/assess` goes to the service past FastAPI, which takes as long as the model.
    """

    def __init__(self, app: Any, *, service: Any, paths: frozenset[str]) -> None:
        self._app, self._service, self._paths = app, service, paths
        settings: Settings = service.settings
        keys: dict[str, Key] = service.keys
        metrics: Metrics = service.metrics
        self._settings, self._keys, self._metrics = settings, keys, metrics
        self._held = 0  # bytes of bodies in memory
        # Without keys, a page of another site must not reach the service by giving itself the name of this machine.
        self._own_names = is_loopback(settings.host) and not keys and not settings.open
        self._needs_tls = bool(keys) and not is_loopback(settings.host)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, headers = time.perf_counter(), 0, dict(scope["headers"])
        number = headers.get(b"x-request-id", b"")
        if not _REQUEST_ID.fullmatch(number):
            number = b"%032x" % random.getrandbits(128)  # not a secret
        echoed = [(b"x-request-id", number), *_SAFE_HEADERS]
        if _TRACE.fullmatch(trace := headers.get(b"traceparent", b"")):
            echoed.append((b"traceparent", trace))
        state = scope.setdefault("state", {})
        state.update(request=number.decode(), started=started, headers=headers, key=None, log_fields={})
        body = _Body(headers, receive, self._settings.read_timeout)

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *echoed]}
            await send(message)

        self._metrics.in_flight.inc()
        try:
            self._check(scope, headers)
            while not body.has_ended:
                self._held += await body.read()
                self._check_size(scope, body.n_bytes)
                if self._held > _MAX_BODIES * self._settings.max_body:
                    raise RequestError(503, "Too many large requests arrive at once. Try again in a moment.")
            if scope["path"] == "/v1/assess" and scope["method"] == "POST":
                answer = await self._service.assess(scope, body.take())
                await answer(scope, receive, send_with_headers)
            else:
                messages = [{"type": "http.request", "body": body.take(), "more_body": False}]

                async def replay() -> Any:
                    return messages.pop() if messages else await receive()

                await self._app(scope, replay, send_with_headers)
        except RequestError as error:
            with suppress(RequestError):  # a client that is cut off may never read its answer
                while not (body.has_ended or b"expect" in headers):  # one that asks first sends nothing
                    await body.read(keep=False)
            more = {} if body.has_ended else {"connection": "close"}
            await error.to_response(more)(scope, receive, send_with_headers)
        except Exception as error:
            self._log_fault(error, state["request"])
            if not status:
                fault = RequestError(500, f"onsphere failed. Its logs say more about request {state['request']}.")
                await fault.to_response()(scope, receive, send_with_headers)
        finally:
            self._held -= body.n_bytes
            self._metrics.in_flight.dec()
            self._count_and_log(scope, status, time.perf_counter() - started)

    def _check(self, scope: Any, headers: dict[bytes, bytes]) -> None:
        if len(headers) < len(scope["headers"]):
            names = [name for name, _ in scope["headers"]]
            if twice := [name.decode() for name in _ONCE if names.count(name) > 1]:
                raise RequestError(400, f"Expected the header {twice[0]} once. Got it several times.")
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise RequestError(400, "Expected Content-Length or Transfer-Encoding. Got both. Send one of them.")
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        if self._own_names and not _THIS_MACHINE.fullmatch(host):
            got = show_value(host.decode("latin-1"))
            raise RequestError(421, f"Expected localhost as the Host. Got {got}. Behind a proxy, use keys or --open.")
        if origin is not None and origin.partition(b"://")[2] != host:
            raise RequestError(403, "Expected a request from a page of this service. Got one from another site.")
        if self._keys:
            self._check_key(scope, headers)
        length = headers.get(b"content-length", b"")
        self._check_size(scope, int(length[:20]) if length.isdigit() else 0)

    def _check_key(self, scope: Any, headers: dict[bytes, bytes]) -> None:
        """Check `Authorization: Bearer KEY` or `X-API-Key: KEY`, and that this key may do what the request asks for."""
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key")
        if given is not None and self._needs_tls and scope.get("scheme") != "https":
            raise RequestError(
                403,
                "Expected a key over TLS. Got one that others could read on the way: make a new one, and use https://.",
            )
        state, path = scope["state"], scope["path"]
        state["key"] = key = None if given is None else self._keys.get(hash_key(given.decode("latin-1")))
        if not path.startswith(("/v1/", "/metrics")):
            return
        if key is None:
            raise RequestError(401, "Expected a known API key. Pass Authorization: Bearer KEY, or X-API-Key.")
        state["log_fields"]["key"] = key.name
        if path in _OPERATING and key.role != "operate":
            raise RequestError(403, f"Expected a key with the role operate. Got one that may {key.role}.")

    def _check_size(self, scope: Any, n_bytes: int) -> None:
        """Check the bytes of a body; only those with rows are read in a child process, and may be large."""
        largest = self._settings.max_body if scope["path"] == "/v1/assess" else _LARGEST_OTHER
        if n_bytes > largest:
            raise RequestError(413, f"Expected a body of at most {largest:,} bytes. Got more. Send several requests.")

    def _log_fault(self, error: Exception, number: str) -> None:
        """Log where it happened; the error itself only if the settings allow it, because it may quote features."""
        name, place = type(error).__name__, find_place(error)
        if isinstance(error, FaultError):  # which says where it happened in the other process
            name, place = error.name, error.place
        quoted = error if self._settings.log_values else None
        log_event("fault", level=logging.ERROR, exc_info=quoted, request=number, type=name, at=place)

    def _count_and_log(self, scope: Any, status: int, seconds: float) -> None:
        path, state = scope["path"], scope["state"]
        self._metrics.count(path if path in self._paths else "other", status, seconds)
        about = {"request": state["request"], "method": scope["method"], "path": path, "status": status}
        client = (scope.get("client") or [None])[0]
        log_event("request", **about, seconds=round(seconds, 6), **{"from": client}, **state["log_fields"])


class _Body:
    """The body of a request as it arrives, which has some seconds to do so."""

    def __init__(self, headers: dict[bytes, bytes], receive: Any, seconds: float) -> None:
        self._receive, self._seconds = receive, seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._parts: list[bytes] = []
        self.n_bytes = 0
        self.has_ended = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers

    async def read(self, *, keep: bool = True) -> int:
        """Read the next part and return its length."""
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(408, f"Expected the whole request within {self._seconds:g} s.") from None
        self.has_ended = not message.get("more_body", False)
        if message["type"] == "http.disconnect":
            raise RequestError(408, "The client went away before its request had arrived.")
        if keep:
            self._parts.append(message["body"])
            self.n_bytes += len(message["body"])
        return len(message["body"])

    def take(self) -> bytes:
        """Return the whole body, which is kept here no more."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
