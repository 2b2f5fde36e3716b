"""The service on a Ray cluster: the same application in replicas, whose number, batching and restarts are Ray's."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError
from onsphere.scale.engines import connect

__all__ = ["build_app", "run_replicas", "serve_on_ray"]


def serve_on_ray(
    settings: Any, *, address: str | None = None, on_ready: Callable[[str], None] = lambda address: None
) -> None:
    """Serve a model from replicas on a Ray cluster until SIGINT or SIGTERM comes.

    Parameters
    ----------
    settings : onsphere.service.Settings
        `workers` is the number of replicas. Every node must reach the model's file and the store, a PostgreSQL
        database, which all replicas share.
    address : str, optional
        Of the cluster; by default a new one on this machine. If Ray Serve runs there already, its host and port stay.
    on_ready : function of a str, optional
        Called with the address once the service answers there.
    """
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with run_replicas(settings, address=address) as found:
            on_ready(found)
            stopped.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def run_replicas(settings: Any, *, address: str | None = None) -> Generator[str]:
    """Yield the address of a service that runs on a Ray cluster as long as the block."""
    try:
        from ray import serve
    except ImportError:
        raise missing_extra_error("The engine ray of the service", "ray[serve]", "scale") from None

    _check(settings)
    environment = settings.to_environment()
    with connect(address):
        is_ours = not serve.status().proxies
        port = settings.port or _find_free_port(settings.host)
        serve.start(http_options={"host": settings.host, "port": port})
        options: Any = {"num_replicas": settings.workers, "max_ongoing_requests": settings.max_concurrent}
        replica: Any = serve.deployment(name="onsphere", **options)(serve.ingress(lambda: build_app(environment))())
        try:
            _run(serve, replica)
            yield f"http://{settings.host}:{port}"
        finally:
            serve.delete("onsphere")
            if is_ours and not serve.status().applications:  # those of others stay
                serve.shutdown()


def _run(serve: Any, replica: Any) -> None:
    try:
        serve.run(replica.bind(), name="onsphere")
    except RuntimeError as error:
        raise InvalidInputError(
            f"Expected replicas that start. Got: {' '.join(str(error).split())[:300]}. Check that every node reaches "
            "the file of the model and the store."
        ) from None


def build_app(environment: dict[str, str]) -> Any:
    """Return the application of a replica, whose settings these variables are."""
    from onsphere.service.app import create_app_from_environment

    os.environ.update(environment)
    return create_app_from_environment()


def _check(settings: Any) -> None:
    """Check what a service on Ray needs: one store for all replicas, no TLS of our own, and a model."""
    from onsphere.service.settings import is_loopback

    if not settings.store_url.startswith("postgresql"):
        raise InvalidInputError(
            "Expected a PostgreSQL database as the store of a service on Ray, which all replicas share. Got "
            f"{settings.store_url}. Pass a store such as postgresql://user@host/name."
        )
    has_keys = bool(settings.api_keys or settings.keys_file)
    if settings.certfile or not (is_loopback(settings.host) or settings.open or has_keys):
        raise InvalidInputError(
            f"Expected API keys, and a proxy that ends TLS, in front of a service on Ray at {settings.host}. Got "
            f"{'a certificate, which Ray does not take' if settings.certfile else 'no keys'}. Put keys in "
            "ONSPHERE_API_KEYS, listen on 127.0.0.1 behind the proxy, or set ONSPHERE_OPEN=1 where something else "
            "guards the service."
        )
    if not Path(settings.model).is_file():
        raise InvalidInputError(f"Expected the file of a model. Got {settings.model}, which does not exist.")


def _find_free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        return listener.getsockname()[1]
