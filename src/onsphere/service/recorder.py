"""Write records in a process of their own, where requests that wait at the same time share a transaction.

An answer waits until its record is on the disk, but not for long: once the database is down or silent, answers go out
at once without a record, and say so. The store is tried again and again, and later requests are recorded.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from onsphere.drift.recent_rows import RecentRows
from onsphere.errors import OnsphereError
from onsphere.export.deployed import Facts
from onsphere.service.answers import ServiceError, StoreError
from onsphere.service.batching import Batcher
from onsphere.service.child import Child, ChildError
from onsphere.service.metrics import log_event
from onsphere.service.settings import Settings
from onsphere.service.store import Record, Store, open_database

_MAX_TOGETHER = 200  # records of one transaction
_MAX_WAITING = 2_000  # records
_PAUSE = 0.5  # seconds between attempts while the database is down, and between trial writes while nothing comes
_STORE_SECONDS = 5.0  # of silence after which the store is given up


class OpenStore:
    """The store in its process, with the models whose records it takes and the latest rows of the one that answers."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def watch(self, models: Sequence[Facts]) -> None:
        """Take records of these models, of which the last one answers now, and forget the latest rows."""
        self._models = {facts.sha256: facts for facts in models}
        self._facts, self._recent, self._n_resets = models[-1], RecentRows(models[-1].reference), None

    def write(self, parts: list[tuple[bytes, str]]) -> list[Any]:
        """Write records, which came pickled with the hash of the model that answered; see `Store.write`."""
        records: list[Record] = []
        for content, sha256 in parts:
            record: Record = pickle.loads(content)
            record.facts = self._models[sha256]
            records.append(record)
            if record.last_rows and record.facts is self._facts:
                columns = enumerate(record.last_rows.values()) if self._facts.as_array else record.last_rows.items()
                self._recent.add({str(name): values for name, values in columns})
        return self.store.write(records)

    def catch_up(self) -> bool:
        """Let the monitor read a slice of the rows that were written, and return whether it has read all."""
        return self.store.catch_up(self._facts)

    def reset(self) -> None:
        """Start the monitor again, for all workers."""
        self.store.reset(self._facts)

    def read_live(self) -> dict[str, Any]:
        """Return what the page shows, with the columns that moved in the latest rows."""
        found = self.store.read_live(self._facts)
        if drift := found["drift"]:
            if self._n_resets not in (None, n_resets := drift.pop("resets")):  # by any worker
                self._recent.clear()
            self._n_resets = n_resets
            drift["hints"], drift["outside"] = self._recent.compare()
        return found

    def run(self, task: Callable[..., Any], *arguments: Any) -> Any:
        """Run another task on the store."""
        return task(self.store, *arguments)


def open_store(settings: Settings, limit: float) -> tuple[OpenStore, None]:
    """Open the store of a service, which waits so many seconds for its database."""
    kept = {"keep": settings.keep, "keep_answers": settings.keep_answers}
    database = open_database(settings.store_url, seconds=limit)
    return OpenStore(Store(database, alpha=settings.alpha, service=str(Path(settings.model).resolve()), **kept)), None


class Recorder:
    """Hands records and other tasks to the process of the store; `trouble` says why the store does not work.

    Answers wait for a silent store for some seconds. Its process is killed after more of them, the limit.
    """

    _watching: asyncio.Task[None]

    def __init__(self, settings: Settings) -> None:
        self._seconds, self._limit = settings.store_timeout, max(_STORE_SECONDS, settings.store_timeout)
        open_database(settings.store_url)  # fails for a wrong URL
        self._child = Child(
            open_store, settings, self._limit, start_timeout=settings.trial_timeout, timeout=self._limit + 1.0
        )
        too_many = partial(StoreError, "More assessments wait to be stored than there is room for.")
        work = partial(self.do, OpenStore.write)
        self._records = Batcher(work, n_most=_MAX_TOGETHER, max_waiting=_MAX_WAITING, make_error=too_many)
        self._lock, self._is_used = asyncio.Lock(), False
        self._models: tuple[int, Any, Any] = (0, OpenStore.watch, ())
        self.trouble: str | None = "The store has not been reached yet."

    def watch(self, models: Sequence[Facts]) -> None:
        """Take records of these models from now on, of which the last one answers."""
        self._models = (self._models[0] + 1, OpenStore.watch, models)

    async def start(self) -> None:
        """Try the store, and go on trying it."""
        await self._child.restart()
        await self._check()
        self._watching = asyncio.create_task(self._try_again_and_again())

    async def stop(self) -> None:
        """Close the store once all is written, unless that takes too long."""
        self._watching.cancel()
        with suppress(Exception):
            async with asyncio.timeout(self._limit):
                await self._records.join()
            await self._attempt(OpenStore.run, Store.close)
        self.trouble = "The service has ended."
        self._child.close()

    async def write(self, record: bytes, model: str) -> bool:
        """Write a pickled record of an answer of a model, and return whether it is on the disk.

        If its idempotency key came with another body before, a RequestError is raised.
        """
        if self.trouble is not None:  # nobody waits for a store that is down
            return False
        try:
            return await self._records.do((record, model))
        except StoreError:
            return False

    async def do(self, task: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a task on the `OpenStore` returns, or raise a StoreError."""
        if self.trouble is not None:
            raise StoreError(self.trouble)
        return await self._attempt(task, *arguments)

    async def _attempt(self, task: Callable[..., Any], *arguments: Any) -> Any:
        async with self._lock:
            silence = f"The store has not answered for {self._seconds:g} s."
            timer = asyncio.get_running_loop().call_later(self._seconds, self._note, silence)
            self._is_used = True
            try:
                found = await self._child.run(task, *arguments, state=self._models)
            except (ServiceError, ChildError, OnsphereError, OSError) as error:
                trouble = str(error)
                if isinstance(error, ChildError):
                    trouble = f"The process of the store was {error.reason}."
                elif not isinstance(error, StoreError):  # the tables do not hold what was written there
                    trouble = f"The store cannot be read: {error}"
                self._note(trouble)
                raise StoreError(trouble) from error
            finally:
                timer.cancel()
            self._note(None)
            return found

    async def _check(self) -> None:
        with suppress(StoreError):
            await self._attempt(OpenStore.run, Store.check)

    async def _try_again_and_again(self) -> None:
        while True:
            self._is_used = False
            await asyncio.sleep(_PAUSE)
            if self.trouble is not None or not self._is_used:
                await self._check()

    def _note(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            level = logging.INFO if trouble is None else logging.ERROR
            log_event("store", level=level, working=trouble is None, reason=trouble)
        self.trouble = trouble
        if trouble is not None:
            self._records.fail(StoreError(trouble))
