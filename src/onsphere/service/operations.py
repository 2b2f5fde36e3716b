"""Do the work behind the addresses: assess, watch, reload and reset, with one model, one store and some threads."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect

from onsphere.drift.column_changes import Window
from onsphere.errors import OnsphereError
from onsphere.service.batching import JSON, Batcher, PendingRequest, Reply, read_media_type
from onsphere.service.databases import open_database
from onsphere.service.engine import Engine, Facts, ModelEngine, ServedModel
from onsphere.service.labels import read_labels, update_model
from onsphere.service.logs import Metrics
from onsphere.service.recorder import Recorder
from onsphere.service.replies import RequestError
from onsphere.service.rows import Batch, join_batches
from onsphere.service.settings import Keys, Settings
from onsphere.service.store import Store
from onsphere.table.cells import Problem, show_value

__all__ = ["RecentRows", "Service", "find_hints"]

logger = logging.getLogger("onsphere.service")

_STORE_SECONDS = 10.0  # that an answer waits for its record at most
_LABELS_SECONDS = 1.0  # between looks at labels that other workers took
_LIVE_SECONDS = 1.0  # that one look at the store is shown to all pages
_WINDOW = 200  # rows that say which columns moved
_MAX_HINTS = 3
_MAX_LOGGED = 100  # rows of one request


class Service:
    """The model, the store and the threads that all addresses share.

    Parameters
    ----------
    settings : Settings
    served : ServedModel, optional
        The model, where it is loaded already.
    """

    def __init__(self, settings: Settings, served: ServedModel | None = None) -> None:
        self.settings = settings
        self.keys = Keys(settings.api_keys, settings.api_keys_file)
        self.served = served or ServedModel(settings.model, coverage=settings.coverage, trusted=settings.trusted)
        kept = {"keep": settings.keep, "keep_answers": settings.keep_answers}
        self.recorder = Recorder(Store(open_database(settings.store_url), alpha=settings.alpha, **kept))
        self.metrics = Metrics()
        self._batcher = Batcher(settings)
        self._recent = RecentRows(self.served.engine.facts)
        self._n_working = 0
        self._live: tuple[float, dict[str, Any]] = (0.0, {})
        self._live_lock = asyncio.Lock()

    @asynccontextmanager
    async def run(self, app: FastAPI) -> AsyncGenerator[None]:
        """Start and stop the store, and reload the model when its file changes or SIGHUP comes."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.recorder.start)
        await loop.run_in_executor(None, self._catch_up, self.served.engine)
        self.metrics.loaded.set(self.served.loaded_at)
        watching = asyncio.gather(self._watch_file(), self._watch_labels())
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread:
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, self._reload_and_log))
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            if in_main_thread:
                loop.remove_signal_handler(signal.SIGHUP)
            await loop.run_in_executor(None, self.recorder.stop)
            self._batcher.stop()

    async def _watch_file(self) -> None:
        while self.settings.watch:
            await asyncio.sleep(self.settings.watch)
            if self.served.has_changed():
                await asyncio.get_running_loop().run_in_executor(None, self._reload_and_log)

    async def _watch_labels(self) -> None:
        while True:
            await asyncio.sleep(_LABELS_SECONDS)
            await asyncio.get_running_loop().run_in_executor(None, self._catch_up, self.served.engine)

    def _catch_up(self, engine: Engine) -> None:
        """Update a model with the labels that it has not seen; if the store does not work, at the next look."""
        if not isinstance(engine, ModelEngine) or engine.facts.calibration is None:
            return
        sha256, last = engine.facts.sha256, engine.last_label
        with suppress(Exception):  # the recorder says what it is
            found = self.recorder.do(lambda store: store.read_labels(sha256, last)).result(_STORE_SECONDS)
            update_model(engine, found)

    def reload(self) -> bool:
        """Load the model's file again, and return whether another model answers now."""
        changed = self.served.reload(self._catch_up)
        self.metrics.loaded.set(self.served.loaded_at)
        self._forget_recent()
        return changed

    def _forget_recent(self) -> None:
        """Forget what was seen of another model, or before a reset."""
        self._recent = RecentRows(self.served.engine.facts)
        self._live = (0.0, {})

    def _reload_and_log(self) -> None:
        try:
            changed, reason = self.reload(), None
        except OnsphereError as error:
            changed, reason = False, str(error)
        fields = {"event": "reload", "changed": changed, "reason": reason, "sha256": self.served.engine.facts.sha256}
        logger.log(logging.WARNING if reason else logging.INFO, "reload", extra={"fields": fields})

    async def assess(self, request: Request, coverage: float | None, key: str | None) -> tuple[Reply, bool, str]:
        """Return the answer to a request, whether it was recorded, and its media type."""
        media_type = read_media_type(request.headers.get("content-type", ""))
        accept = request.headers.get("accept", "").partition(",")[0]
        try:
            answer_type = read_media_type(accept)
        except RequestError:
            answer_type = media_type
        body = await _read_body(request)
        if self._n_working >= self.settings.max_concurrent:
            raise RequestError(503, f"{self._n_working} requests are being worked on. Try again in a moment.")
        state, engine = request.scope["state"], self.served.engine
        share = coverage or engine.facts.coverage
        pending = PendingRequest(engine, body, media_type, answer_type, share, state["request"], state["started"], key)
        self._n_working += 1
        try:
            reply = await self._assess_in_thread(pending)
        finally:
            self._n_working -= 1
        self._recent.add(reply.record.facts, reply.batch)
        recorded = await _wait_until_done(self.recorder.record(reply.record))
        self._count_and_log(request, reply, recorded)
        return reply, recorded, answer_type

    async def _assess_in_thread(self, pending: PendingRequest) -> Reply:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await asyncio.wrap_future(self._batcher.submit(pending))
        except TimeoutError:
            raise RequestError(
                504, f"Expected to answer within {self.settings.timeout:g} s. Send fewer rows at a time."
            ) from None

    def _count_and_log(self, request: Request, reply: Reply, recorded: bool) -> None:
        """Update the metrics and the logs, which hold no features unless the settings say so."""
        n_rows, n_accepted = len(reply.record.uncertainty), reply.record.n_accepted
        self.metrics.rows.labels("yes").inc(n_accepted)
        self.metrics.rows.labels("no").inc(n_rows - n_accepted)
        log_fields = request.scope["state"]["log_fields"]
        log_fields.update(rows=n_rows, accepted=n_accepted, recorded=recorded)
        if self.settings.log_values:
            log_fields["values"] = [reply.batch.get_row(index) for index in range(min(n_rows, _MAX_LOGGED))]

    async def get_live(self) -> dict[str, Any]:
        """Return what the page shows; many pages share one look at the store a second."""
        async with self._live_lock:
            at, found = self._live
            if not found or time.monotonic() - at > _LIVE_SECONDS:
                found = await self._read_live()
                self._live = (time.monotonic(), found)
            return found

    async def _read_live(self) -> dict[str, Any]:
        facts = self.served.engine.facts
        future = self.recorder.do(lambda store: store.read_live(facts))
        found: dict[str, Any] = {"minute": None, "points": [], "rejected": [], "drift": None, "labels": None}
        done = await _wait_until_done(future)
        reason = None if done else self.recorder.trouble or "The store does not answer in time."
        if reason is None:
            found = future.result()
            if facts.threshold is None and facts.novelty_threshold is None:
                found["minute"]["accepted"] = None
            if found["drift"] is not None:
                self._recent.follow_resets(found["drift"].pop("resets"))
                found["drift"]["hints"] = await self._find_hints(facts)
        store = {"working": reason is None, "reason": reason}
        return {"now": time.time(), "model": facts.sha256, "store": store, **found}

    async def _find_hints(self, facts: Facts) -> list[str] | None:
        if facts.reference is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(None, find_hints, facts, self._recent.list_batches())

    def describe_model(self) -> dict[str, Any]:
        """Return what `GET /v1/model` answers."""
        return self.served.engine.facts.describe() | {
            "loaded_at": self.served.loaded_at,
            "reload_trouble": self.served.trouble,
        }

    async def reset(self) -> None:
        """Start the drift monitor again."""
        facts = self.served.engine.facts
        await self._do_in_store(lambda store: store.reset(facts))
        self._forget_recent()

    async def take_labels(self, request: Request) -> dict[str, Any]:
        """Join the labels of a request to the answers in the store, and return what `POST /v1/labels` answers."""
        if read_media_type(request.headers.get("content-type", "")) != JSON:
            raise RequestError(415, f"Expected labels of the type {JSON}. Got another.")
        body, engine, loop = await _read_body(request), self.served.engine, asyncio.get_running_loop()
        labels = await loop.run_in_executor(None, lambda: read_labels(body, engine, max_rows=self.settings.max_rows))
        number = request.scope["state"]["request"]
        found = await self._do_in_store(lambda store: store.write_labels(labels, number))
        taken = found.pop("taken")
        if not taken:
            raise RequestError(
                422,
                f"Expected keys of rows that wait for a label. Got {len(found['unknown'])} unknown and "
                f"{len(found['labelled_already'])} labelled already. Pass key= when you assess rows.",
                [Problem("key", None, "one that waits for a label", show_value(label.key)) for label in labels[:20]],
            )
        self.metrics.labels.inc(len(taken))
        await loop.run_in_executor(None, self._catch_up, engine)
        note = _explain_no_update(engine, taken)
        return {"taken": len(taken), **found, "model_updated": note is None, "note": note}

    async def _do_in_store(self, task: Callable[[Store], Any]) -> Any:
        future = self.recorder.do(task)
        if not await _wait_until_done(future):
            raise RequestError(
                503, f"The store does not work: {self.recorder.trouble or 'it does not answer in time'}."
            )
        return future.result()

    async def write_metrics(self) -> bytes:
        """Return what `GET /metrics` answers."""
        live = await self.get_live()
        drift, labels = live["drift"], live["labels"] or {}
        for gauge, name in ((self.metrics.coverage, "coverage"), (self.metrics.error, "mean_error")):
            gauge.set(math.nan if labels.get(name) is None else labels[name])
        self.metrics.store.set(self.recorder.trouble is None)
        if drift is not None:
            self.metrics.alarm.set(drift["alarm"])
            self.metrics.capital.set(drift["log_capital"])
        return self.metrics.write_text()


async def _read_body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise RequestError(408, "The client went away before its request had arrived.") from None


def _explain_no_update(engine: Engine, models: list[str | None]) -> str | None:
    """Say why intervals do not follow labels that were taken for answers of these models; None if they do."""
    only = "Labels give coverage and error only"
    if not isinstance(engine, ModelEngine):
        return f"{only}, because an ONNX graph is fixed. Serve the .onsphere file, whose intervals and sets follow."
    if engine.facts.calibration is None:
        return f"{only}, because the model was not calibrated."
    if engine.facts.sha256 in models:
        return None
    reason = "their rows were not kept" if set(models) == {None} else "an earlier model answered these rows"
    return f"{only}, because {reason}."


async def _wait_until_done(future: Future[Any]) -> bool:
    """Wait for the store, and return whether it did its work in time."""
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())  # so that asyncio does not warn
    done, _ = await asyncio.wait([wrapped], timeout=_STORE_SECONDS)
    return bool(done) and wrapped.exception() is None


class RecentRows:
    """The last rows that one model assessed, in memory only; none where there is no reference to compare them with.

    Every request passes here, so rows are only put aside; `find_hints` does the costly work.

    Parameters
    ----------
    facts : Facts
        Of the model.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._batches: deque[Batch] = deque()
        self._n_rows = 0
        self._resets: int | None = None

    def follow_resets(self, n_resets: int) -> None:
        """Forget all rows where any worker reset the monitor since the last look."""
        if self._resets not in (None, n_resets):
            self._batches.clear()
            self._n_rows = 0
        self._resets = n_resets

    def add(self, facts: Facts, batch: Batch) -> None:
        """Put rows aside, unless another model assessed them."""
        if facts is not self.facts or facts.reference is None:
            return
        self._batches.append(batch.copy_last(_WINDOW))
        self._n_rows += len(self._batches[-1])
        while self._n_rows - len(self._batches[0]) >= _WINDOW:
            self._n_rows -= len(self._batches.popleft())

    def list_batches(self) -> list[Batch]:
        """Return the batches that hold the last rows."""
        return list(self._batches)


def find_hints(facts: Facts, batches: list[Batch]) -> list[str]:
    """Say which columns moved most; nothing where the rows and the reference do not fit each other."""
    if not batches:
        return []
    try:
        window = Window(_WINDOW, facts.reference or {})
        window.add(join_batches(facts, batches))
        return [str(hint) for hint in window.compare() if hint.moved][:_MAX_HINTS]
    except Exception:  # whatever a file says about its columns, the alarm is shown
        return []
