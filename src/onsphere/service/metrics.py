"""Log one line of JSON for each event, and count for Prometheus."""

from __future__ import annotations

import logging
import os
import random
import re
import time
import traceback
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from onsphere.service.answers import RequestError, encode_json, send_error

__all__ = ["LOG_CONFIG", "JsonLines", "Metrics", "RequestLogger"]

logger = logging.getLogger("onsphere.service")

_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_REQUEST_ID = re.compile(rb"[\w.:-]{1,64}")
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
]

LOG_CONFIG: dict[str, Any] = {  # all to stderr, without uvicorn's own line per request
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "onsphere.service.metrics.JsonLines"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {
        "onsphere.service": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        "uvicorn.access": {"handlers": [], "propagate": False},
    },
}


class JsonLines(logging.Formatter):
    """Formats a log record as a line of JSON; `extra={"fields": {...}}` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            **getattr(record, "fields", {"event": "message", "message": record.getMessage()}),
        }
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return encode_json(line).decode()


class Metrics:
    """Counters of this process, or of all workers where PROMETHEUS_MULTIPROC_DIR says that there are several."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self._registry}
        self.requests = Counter("onsphere_requests", "Requests.", ["path", "status"], **options)
        self.seconds = Histogram("onsphere_request_seconds", "Time to answer.", ["path"], buckets=_BUCKETS, **options)
        self.rows = Counter("onsphere_rows", "Rows assessed, by decision.", ["accepted"], **options)
        self.labels = Counter("onsphere_labels", "Labels taken.", **options)
        self.in_flight = Gauge(
            "onsphere_requests_in_flight", "Requests being answered.", multiprocess_mode="livesum", **options
        )
        latest: dict[str, Any] = {"multiprocess_mode": "mostrecent", **options}
        self.store = Gauge("onsphere_store_working", "Whether assessments are being stored.", **latest)
        self.alarm = Gauge("onsphere_drift_alarm", "Whether the drift alarm is raised.", **latest)
        self.capital = Gauge("onsphere_drift_log_capital", "Evidence of drift; the alarm is at log(1/alpha).", **latest)
        self.coverage = Gauge("onsphere_rolling_coverage", "Share covered among the latest 500 labels.", **latest)
        self.error = Gauge("onsphere_rolling_error", "Mean error of the latest 500 labels.", **latest)
        self.loaded = Gauge("onsphere_model_loaded_timestamp_seconds", "When the model was loaded.", **latest)

    def write_text(self) -> bytes:
        """Return what `GET /metrics` answers."""
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            from prometheus_client.multiprocess import MultiProcessCollector

            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        return generate_latest(self._registry)


class RequestLogger:
    """The outermost layer: numbers, times and logs each request, and answers a failure with a sentence.

    The given paths are counted by name. The logs quote the error of a failure only if they may hold features.
    """

    def __init__(self, app: Any, *, metrics: Metrics, paths: frozenset[str], log_values: bool) -> None:
        self._app, self._metrics, self._paths, self._log_values = app, metrics, paths, log_values

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        given = dict(scope["headers"])
        number = given.get(b"x-request-id", b"")
        if not _REQUEST_ID.fullmatch(number):
            number = b"%032x" % random.getrandbits(128)  # not a secret
        echoed = [(b"x-request-id", number)]
        if _TRACE.fullmatch(trace := given.get(b"traceparent", b"")):
            echoed.append((b"traceparent", trace))
        fields: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request=number.decode(), started=started, log_fields=fields)

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *echoed, *_SAFE_HEADERS]}
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            self._log_fault(error, number.decode())
            if not status:
                fault = RequestError(500, f"onsphere failed. Its logs say more about request {number.decode()}.")
                await send_error(fault, send_with_headers)
        finally:
            self._metrics.in_flight.dec()
            self._count_and_log(scope, status, time.perf_counter() - started)

    def _log_fault(self, error: Exception, number: str) -> None:
        """Log where it happened; the error itself only if the settings allow it, because it may quote features."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}:{last.lineno}"
        fields = {"event": "fault", "request": number, "type": type(error).__name__, "at": place}
        logger.error("fault", extra={"fields": fields}, exc_info=error if self._log_values else None)

    def _count_and_log(self, scope: Any, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        fields = {
            "event": "request",
            "request": scope["state"]["request"],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 6),
            "from": (scope.get("client") or [None])[0],
            **scope["state"]["log_fields"],
        }
        logger.info("request", extra={"fields": fields})
