"""Start the service: one process, or several that listen on one address."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from onsphere.errors import InvalidInputError
from onsphere.service.app import create_app
from onsphere.service.databases import open_database
from onsphere.service.engine import ServedModel
from onsphere.service.limits import TimedConfig
from onsphere.service.logs import make_log_config
from onsphere.service.settings import Keys, Settings, is_loopback

__all__ = ["serve"]


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
    served = ServedModel(settings.model, coverage=settings.coverage, trusted=settings.trusted)
    _raise_file_limit()
    with _listen(settings) as listener, _ignore_stop_signals():
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        on_ready(f"http://{host}:{listener.getsockname()[1]}")
        if settings.workers == 1:
            app: Any = create_app(settings, served=served)
            uvicorn.Server(_make_config(app, settings)).run(sockets=[listener])
        else:
            del served  # each worker loads its own
            with _share_with_workers(settings):
                config = _make_config("onsphere.service.app:create_app_from_environment", settings)
                _Workers(config, sockets=[listener]).run()


def _make_config(app: Any, settings: Settings) -> uvicorn.Config:
    return TimedConfig(
        app,
        seconds=settings.read_timeout,
        factory=isinstance(app, str),
        workers=settings.workers,
        ws="none",
        log_config=make_log_config(),
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
        h11_max_incomplete_event_size=64 * 2**10,
    )


def _check_reachable(settings: Settings) -> None:
    keys = Keys(settings.api_keys, settings.api_keys_file)
    if not (keys or settings.open or is_loopback(settings.host)):
        raise InvalidInputError(
            f"Expected API keys for a service that others can reach. Got the address {settings.host} and no keys. Make "
            "one with `onsphere new-key` and put its hash in ONSPHERE_API_KEYS or a keys file, listen on 127.0.0.1, or "
            "set ONSPHERE_OPEN=1 where something else guards the service."
        )


@contextmanager
def _listen(settings: Settings) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        reason = "which another program uses" if error.errno == errno.EADDRINUSE else f"which failed: {error.strerror}"
        raise InvalidInputError(
            f"Expected to listen on {settings.host} port {settings.port}, {reason}. Choose another port or "
            "host; port 0 takes a free one."
        ) from None
    with listener:
        yield listener


def _raise_file_limit() -> None:
    """Allow as many connections as the system permits: each takes an open file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
        wanted = settings.to_environment() | {"PROMETHEUS_MULTIPROC_DIR": folder}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


class _Workers(Multiprocess):
    """Workers that reload the model on SIGHUP, rather than being replaced, which could drop a request."""

    def handle_hup(self) -> None:
        for process in self.processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, signal.SIGHUP)
