"""Start the service: one process, or several that listen on one address."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from uvicorn.supervisors import multiprocess

from onsphere._internal.processes import exit_with_parent
from onsphere.errors import InvalidInputError
from onsphere.service.app import create_app
from onsphere.service.metrics import LOG_CONFIG
from onsphere.service.served_model import ServedModel
from onsphere.service.settings import Settings, is_loopback, read_keys
from onsphere.service.store import open_database

_WORKER_SECONDS = 60  # for a worker to say that it lives: on a busy machine it imports for longer than uvicorn's 5 s
_END_SECONDS = 2.0  # after the grace period, before a process that is still there is ended
_FAIR_PART = 64 * 2**10  # bytes of an answer
_SWITCH_SECONDS = 5e-4  # between threads: an answer must not wait 5 ms for each of the threads that work on it


def serve(settings: Settings, *, on_ready: Callable[[str], None] = lambda address: None) -> None:
    """Serve a model until SIGINT or SIGTERM comes; requests in flight are answered first.

    SIGHUP loads the model's file again.

    Parameters
    ----------
    settings : Settings
    on_ready : function of a str, optional
        Called with the address once the service listens on it.
    """
    _check_reachable(settings)
    open_database(settings.store_url)  # fails for a wrong URL; /readyz says whether the database answers
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection takes an open file
    with _listen(settings) as listener:
        served = ServedModel(settings)  # which a signal may stop
        with _ignore_stop_signals():
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            scheme = "https" if settings.certfile else "http"
            on_ready(f"{scheme}://{host}:{listener.getsockname()[1]}")
            if settings.workers == 1:
                TimedServer(TimedConfig(create_app(settings, served=served), settings)).run(sockets=[listener])
                return
            served.live.close()  # each worker loads its own
            with _share_with_workers(settings):
                config = TimedConfig("onsphere.service.app:create_app_from_environment", settings)
                _Workers(config, sockets=[listener]).run()


def _check_reachable(settings: Settings) -> None:
    keys = read_keys(settings.api_keys, settings.keys_file)
    if settings.keyfile and not settings.certfile:
        raise InvalidInputError("Expected a certificate with its private key. Got the key alone. Pass certfile too.")
    if is_loopback(settings.host):
        return
    if not (keys or settings.open):
        raise InvalidInputError(
            f"Expected API keys for a service that others can reach. Got the address {settings.host} and no keys. Make "
            "one with `onsphere new-key` and put its hash in ONSPHERE_API_KEYS or a keys file, listen on 127.0.0.1, or "
            "set ONSPHERE_OPEN=1 where something else guards the service."
        )
    if keys and not (settings.certfile or settings.forwarded_allow_ips):
        raise InvalidInputError(
            f"Expected TLS for keys that travel to the address {settings.host}. Got none. Set ONSPHERE_CERTFILE and "
            "ONSPHERE_KEYFILE, or name the proxy that ends TLS in ONSPHERE_FORWARDED_ALLOW_IPS."
        )


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        reason = "which another program uses" if error.errno == errno.EADDRINUSE else f"which failed: {error.strerror}"
        raise InvalidInputError(
            f"Expected to listen on {settings.host} port {settings.port}, {reason}. Choose another port or "
            "host; port 0 takes a free one."
        ) from None
    # An answer goes out in two parts, and the second would wait 40 ms for the client to acknowledge the first. asyncio
    # sees to that only where the socket names its protocol, as one that is made from its number does.
    return socket.socket(fileno=listener.detach())


@contextmanager
def _ignore_stop_signals() -> Generator[None]:
    """Ignore the signal that stopped uvicorn, which it raises again when all is done."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _share_with_workers(settings: Settings) -> Generator[None]:
    """Hand settings and counters to the workers, which are separate processes."""
    with tempfile.TemporaryDirectory(prefix="onsphere-metrics-") as folder:
        before = dict(os.environ)
        os.environ.update(settings.to_environment() | {"PROMETHEUS_MULTIPROC_DIR": folder})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


class TimedConfig(uvicorn.Config):
    """The options of uvicorn, and the seconds that a `TimedServer` waits for a client."""

    def __init__(self, app: Any, settings: Settings) -> None:
        super().__init__(
            app,
            http="h11",  # not httptools, which uvicorn prefers where it is installed: it accepts headers without end
            factory=isinstance(app, str),
            workers=settings.workers,
            ws="none",
            log_config=LOG_CONFIG,
            access_log=False,
            server_header=False,
            proxy_headers=bool(settings.forwarded_allow_ips),
            forwarded_allow_ips=list(settings.forwarded_allow_ips),
            timeout_keep_alive=15,
            timeout_graceful_shutdown=max(1, round(settings.grace)),
            timeout_worker_healthcheck=_WORKER_SECONDS,
            h11_max_incomplete_event_size=64 * 2**10,
            ssl_certfile=settings.certfile or None,
            ssl_keyfile=settings.keyfile or None,
        )
        self.seconds = settings.read_timeout


class TimedServer(uvicorn.Server):
    """A server that closes slow connections, and whose process ends in time, whatever its threads are waiting for."""

    _last_resort: threading.Timer | None = None

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._waiting: dict[Any, tuple[float, int]] = {}

    def run(self, sockets: Any = None) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            super().run(sockets)
        finally:
            if self._last_resort is not None:
                self._last_resort.cancel()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        gc.collect()  # all that the libraries and the model hold would be looked through again and again, which
        gc.freeze()  # takes a tenth of a second in which nobody is answered

    async def on_tick(self, counter: int) -> bool:
        """Close connections that keep the service waiting, for which uvicorn has no limit.

        Headers have to arrive within some seconds (a body has its own time, and so has a connection between requests),
        and in each such time a fair part of an answer has to be taken.
        """
        now, waiting, connections = time.monotonic(), self._waiting, cast("set[Any]", self.server_state.connections)
        self._waiting = {}
        for connection in list(connections):
            cycle, n_left = connection.cycle, connection.transport.get_write_buffer_size()
            is_between = cycle is None or cycle.response_complete
            is_waiting = connection.flow.write_paused or (is_between and connection.timeout_keep_alive_task is None)
            since, n_before = waiting.get(connection, (now, n_left))
            if is_waiting and now - since > cast("TimedConfig", self.config).seconds:
                connection.transport.abort()
            elif is_waiting:
                is_taken = n_left <= n_before - _FAIR_PART
                self._waiting[connection] = (now, n_left) if is_taken else (since, n_before)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        if self._last_resort is None:
            seconds = cast("int", self.config.timeout_graceful_shutdown) + _END_SECONDS
            self._last_resort = threading.Timer(seconds, os._exit, (1,))
            self._last_resort.name, self._last_resort.daemon = "onsphere-end", True
            self._last_resort.start()


class _Worker(multiprocess.Process):
    """A worker that ends with its parent."""

    def target(self, sockets: Any = None) -> None:
        exit_with_parent()
        self._server = TimedServer(self.config)
        super().target(sockets)


class _Workers(multiprocess.Multiprocess):
    """Workers that reload the model on SIGHUP, rather than being replaced, which could drop a request."""

    def run(self) -> None:
        module: Any = multiprocess
        before, module.Process = module.Process, _Worker  # for those that take the place of others as well
        try:
            super().run()
        finally:
            module.Process = before

    def handle_hup(self) -> None:
        for process in self.processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, signal.SIGHUP)
