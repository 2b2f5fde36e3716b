"""What all addresses of a service share: the model, the store and the threads."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect

from onsphere.errors import OnsphereError
from onsphere.service.assessing import Asked, Assessed, media_type_of
from onsphere.service.databases import open_database
from onsphere.service.engine import Facts, Served
from onsphere.service.keys import Keys
from onsphere.service.logs import Metrics
from onsphere.service.problems import RequestError
from onsphere.service.recent import Recent, hints_of
from onsphere.service.recorder import Recorder
from onsphere.service.settings import Settings
from onsphere.service.store import Store
from onsphere.service.threads import Assessors

__all__ = ["Service"]

logger = logging.getLogger("onsphere.service")

_STORE_SECONDS = 10.0  # that an answer waits for its record at most


class Service:
    """What the addresses share: the model, the store and the threads.

    Parameters
    ----------
    settings : Settings
    served : Served, optional
        The model, where it is loaded already.
    """

    def __init__(self, settings: Settings, served: Served | None = None) -> None:
        self.settings = settings
        self.keys = Keys(settings.api_keys, settings.api_keys_file)
        self.served = served or Served(settings.model, coverage=settings.coverage, trusted=settings.trusted)
        store = Store(open_database(settings.store_url), alpha=settings.alpha, keep=settings.keep)
        self.recorder = Recorder(store)
        self.metrics = Metrics()
        self._assessors = Assessors(settings)
        self._recent = Recent(self.served.engine.facts)
        self._n_working = 0
        self._live: tuple[float, dict[str, Any]] = (0.0, {})
        self._looking = asyncio.Lock()

    @asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncGenerator[None]:
        """Start and stop the store, and load the model anew when its file changes or SIGHUP comes."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.recorder.start)
        self.metrics.loaded.set(self.served.loaded_at)
        watching = asyncio.create_task(self._watch())
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
            self._assessors.stop()

    async def _watch(self) -> None:
        while self.settings.watch:
            await asyncio.sleep(self.settings.watch)
            if self.served.changed():
                await asyncio.get_running_loop().run_in_executor(None, self._reload_and_log)

    def reload(self) -> bool:
        """Load the model's file anew; whether another model answers now."""
        changed = self.served.reload()
        self.metrics.loaded.set(self.served.loaded_at)
        self._start_looking()
        return changed

    def _start_looking(self) -> None:
        """Forget what was seen of another model, or before a reset."""
        self._recent = Recent(self.served.engine.facts)
        self._live = (0.0, {})

    def _reload_and_log(self) -> None:
        try:
            changed, reason = self.reload(), None
        except OnsphereError as error:
            changed, reason = False, str(error)
        fields = {"event": "reload", "changed": changed, "reason": reason, "sha256": self.served.engine.facts.sha256}
        logger.log(logging.WARNING if reason else logging.INFO, "reload", extra={"fields": fields})

    async def assess(self, request: Request, coverage: float | None) -> tuple[Assessed, bool, str]:
        """The answer to a request, whether it was recorded, and its type."""
        media_type = media_type_of(request.headers.get("content-type", ""))
        accept = request.headers.get("accept", "").partition(",")[0]
        try:
            answer_type = media_type_of(accept)
        except RequestError:
            answer_type = media_type
        try:
            body = await request.body()
        except ClientDisconnect:
            raise RequestError(408, "The client went away before its request had arrived.") from None
        if self._n_working >= self.settings.max_concurrent:
            raise RequestError(503, f"{self._n_working} requests are being worked on. Try again in a moment.")
        state, engine = request.scope["state"], self.served.engine
        share = coverage or engine.facts.coverage
        asked = Asked(engine, body, media_type, answer_type, share, state["request"], state["started"])
        self._n_working += 1
        try:
            assessed = await self._in_thread(asked)
        finally:
            self._n_working -= 1
        self._recent.add(assessed.record.facts, assessed.batch)
        recorded = await _is_done(self.recorder.record(assessed.record))
        self._tell(request, assessed, recorded)
        return assessed, recorded, answer_type

    async def _in_thread(self, asked: Asked) -> Assessed:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await asyncio.wrap_future(self._assessors.submit(asked))
        except TimeoutError:
            told = f"Expected to answer within {self.settings.timeout:g} s. Send fewer rows at a time."
            raise RequestError(504, told) from None

    def _tell(self, request: Request, assessed: Assessed, recorded: bool) -> None:
        """The metrics and the logs, which hold no features unless asked."""
        n_rows, n_accepted = len(assessed.record.uncertainty), assessed.record.n_accepted
        self.metrics.rows.labels("yes").inc(n_accepted)
        self.metrics.rows.labels("no").inc(n_rows - n_accepted)
        told = request.scope["state"]["told"]
        told.update(rows=n_rows, accepted=n_accepted, recorded=recorded)
        if self.settings.log_values:
            told["values"] = [assessed.batch.row(index) for index in range(min(n_rows, 100))]

    async def live(self) -> dict[str, Any]:
        """What the page shows; many pages share one look at the store a second."""
        async with self._looking:
            at, found = self._live
            if not found or time.monotonic() - at > 1.0:
                found = await self._looked()
                self._live = (time.monotonic(), found)
            return found

    async def _looked(self) -> dict[str, Any]:
        facts = self.served.engine.facts
        future = self.recorder.do(lambda store: store.live(facts))
        found: dict[str, Any] = {"minute": None, "points": [], "rejected": [], "drift": None}
        reason = None if await _is_done(future) else self.recorder.trouble or "The store does not answer in time."
        if reason is None:
            found = future.result()
            if facts.threshold is None:
                found["minute"]["accepted"] = None
            if found["drift"] is not None:
                self._recent.follow(found["drift"].pop("resets"))
                found["drift"]["hints"] = await self._hints(facts)
        store = {"working": reason is None, "reason": reason}
        return {"now": time.time(), "model": facts.sha256, "store": store, **found}

    async def _hints(self, facts: Facts) -> list[str] | None:
        if facts.reference is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(None, hints_of, facts, self._recent.batches())

    def described(self) -> dict[str, Any]:
        """What `GET /v1/model` answers."""
        return self.served.engine.facts.describe() | {
            "loaded_at": self.served.loaded_at,
            "reload_trouble": self.served.trouble,
        }

    async def reset(self) -> None:
        """Start the drift monitor again."""
        facts = self.served.engine.facts
        if not await _is_done(self.recorder.do(lambda store: store.reset(facts))):
            raise RequestError(
                503, f"The store does not work: {self.recorder.trouble or 'it does not answer in time'}."
            )
        self._start_looking()

    async def measured(self) -> bytes:
        """What `GET /metrics` answers."""
        drift = (await self.live())["drift"]
        self.metrics.store.set(self.recorder.trouble is None)
        if drift is not None:
            self.metrics.alarm.set(drift["alarm"])
            self.metrics.capital.set(drift["log_capital"])
        return self.metrics.text()


async def _is_done(future: Future[Any]) -> bool:
    """Whether what was asked of the store was done in time."""
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())  # which counts as having looked
    done, _ = await asyncio.wait([wrapped], timeout=_STORE_SECONDS)
    return bool(done) and wrapped.exception() is None
