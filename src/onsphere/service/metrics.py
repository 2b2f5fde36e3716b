"""Log one line of JSON for each event, count for Prometheus, and trace with OpenTelemetry."""

from __future__ import annotations

import logging
import math
import os
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError
from onsphere.service.answers import encode_json

_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

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


def log_event(event: str, *, level: int = logging.INFO, exc_info: Exception | None = None, **fields: Any) -> None:
    """Log an event with its fields."""
    logging.getLogger("onsphere.service").log(
        level, event, extra={"fields": {"event": event, **fields}}, exc_info=exc_info
    )


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
        requests = Counter("onsphere_requests", "Requests.", ["path", "status"], **options)
        seconds = Histogram("onsphere_request_seconds", "Time to answer.", ["path"], buckets=_BUCKETS, **options)
        self._find = lru_cache(lambda path, status: (requests.labels(path, str(status)), seconds.labels(path)))
        rows = Counter("onsphere_rows", "Rows assessed, by decision.", ["accepted"], **options)
        self._rows = [rows.labels(decision) for decision in ("yes", "no", "undecided")]
        self.labels = Counter("onsphere_labels", "Labels taken.", **options)
        self.in_flight = Gauge(
            "onsphere_requests_in_flight", "Requests being answered.", multiprocess_mode="livesum", **options
        )
        latest: dict[str, Any] = {"multiprocess_mode": "mostrecent", **options}
        self.loaded = Gauge("onsphere_model_loaded_timestamp_seconds", "When the model was loaded.", **latest)
        self._store = Gauge("onsphere_store_working", "Whether assessments are being stored.", **latest)
        self._alarm = Gauge("onsphere_drift_alarm", "Whether the drift alarm is raised.", **latest)
        about = "Evidence of drift; the alarm is at log(1/alpha)."
        self._capital = Gauge("onsphere_drift_log_capital", about, **latest)
        self._coverage = Gauge("onsphere_rolling_coverage", "Share covered among the latest 500 labels.", **latest)
        self._error = Gauge("onsphere_rolling_error", "Mean error of the latest 500 labels.", **latest)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        requests, times = self._find(path, status)
        requests.inc()
        times.observe(seconds)

    def count_rows(self, n_rows: int, n_accepted: int | None) -> None:
        """Count rows by decision; None where the model makes none."""
        counts = (0, 0, n_rows) if n_accepted is None else (n_accepted, n_rows - n_accepted, 0)
        for rows, count in zip(self._rows, counts, strict=True):
            rows.inc(count)

    def write_text(self, live: dict[str, Any]) -> bytes:
        """Return what `GET /metrics` answers, with what `GET /v1/live` does."""
        labels, drift = live["labels"] or {}, live["drift"]
        for gauge, name in ((self._coverage, "coverage"), (self._error, "mean_error")):
            gauge.set(math.nan if labels.get(name) is None else labels[name])
        self._store.set(live["store"]["working"])
        if drift is not None:
            self._alarm.set(drift["alarm"])
            self._capital.set(drift["log_capital"])
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            from prometheus_client.multiprocess import MultiProcessCollector

            MultiProcessCollector(registry := CollectorRegistry())
        return generate_latest(registry)


def start_tracing() -> Callable[[Any], None]:
    """Let traces be sent as the OTEL_… variables say, and return what makes an application write them."""
    try:
        from opentelemetry import trace
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise missing_extra_error("Tracing", "opentelemetry-instrumentation-fastapi", "telemetry") from None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # nobody has chosen another
        name, protocol = os.getenv("OTEL_TRACES_EXPORTER", "otlp"), os.getenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http")
        full = f"otlp_proto_{protocol.partition('/')[0]}" if name == "otlp" else name
        exporters = [each.load() for each in entry_points(group="opentelemetry_traces_exporter", name=full)]
        if not exporters:
            raise InvalidInputError(
                f"Expected an exporter of traces that is installed. Got {full}. Install the extra telemetry, or name "
                "another in OTEL_TRACES_EXPORTER, such as console."
            )
        trace.set_tracer_provider(provider := TracerProvider())
        provider.add_span_processor(BatchSpanProcessor(exporters[0]()))
    return FastAPIInstrumentor.instrument_app
