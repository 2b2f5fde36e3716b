"""Write records in one thread, where requests that wait at the same time share a transaction.

An answer waits until its record is on the disk. While the database is down, answers go out without a record, and say
so; the thread keeps trying, and later requests are recorded again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from onsphere.service.databases import StoreError
from onsphere.service.store import Record, Store

__all__ = ["Recorder"]

logger = logging.getLogger("onsphere.service")

_MAX_TOGETHER = 200  # records of one transaction
_MAX_WAITING = 2_000
_PAUSE = 1.0  # seconds between attempts while the database is down, and between checks while nothing comes


class Recorder:
    """Writes records to a store, and knows whether it works.

    Parameters
    ----------
    store : Store

    Attributes
    ----------
    trouble : str or None
        Why the store cannot be written to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: queue.Queue[tuple[Any, Future[None]] | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="onsphere-recorder", daemon=True)
        self._last_attempt = 0.0
        self.trouble: str | None = "The store has not been reached yet."

    def start(self) -> None:
        """Try the store once, and start the thread."""
        self._attempt(self._store.check)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and stop the thread."""
        self._waiting.put(None)
        self._thread.join()
        self._store.close()

    def record(self, record: Record) -> Future[None]:
        """Hand a record over; the future is done when it is on the disk, and fails if it cannot be written."""
        return self._enqueue(record)

    def do(self, task: Callable[[Store], Any]) -> Future[Any]:
        """Run another task on the store, in the same thread."""
        return self._enqueue(task)

    def _enqueue(self, item: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.trouble is not None and time.monotonic() - self._last_attempt < _PAUSE:
            future.set_exception(StoreError(self.trouble))
            return future
        try:
            self._waiting.put_nowait((item, future))
        except queue.Full:
            future.set_exception(StoreError("More assessments wait to be stored than there is room for."))
        return future

    def _run(self) -> None:
        while True:
            try:
                first = self._waiting.get(timeout=_PAUSE)
            except queue.Empty:
                self._attempt(self._store.check)
                continue
            items, ended = self._take_waiting(first)
            self._work(items)
            if ended:
                return

    def _work(self, items: list[Any]) -> None:
        records = [(item, future) for item, future in items if isinstance(item, Record)]
        if records:
            self._attempt(
                lambda: self._store.write([record for record, _ in records]), [future for _, future in records]
            )
        for task, future in items:
            if not isinstance(task, Record):
                self._attempt(lambda task=task: task(self._store), [future])

    def _take_waiting(self, item: Any) -> tuple[list[Any], bool]:
        """Take all items that wait now, and say whether the end is among them."""
        items: list[Any] = []
        while item is not None:
            items.append(item)
            if len(items) == _MAX_TOGETHER:
                return items, False
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return items, False
        return items, True

    def _attempt(self, work: Callable[[], Any], futures: list[Future[Any]] | None = None) -> None:
        try:
            result, error, trouble = work(), None, None
        except StoreError as caught:
            result, error, trouble = None, caught, str(caught)
        except Exception as caught:
            # The tables do not hold what was written there; the thread goes on, whatever it is.
            result, error, trouble = None, caught, f"The store cannot be read: {caught}"
        self._last_attempt = time.monotonic()
        if trouble != self.trouble:
            event = {"event": "store", "working": trouble is None, "reason": trouble}
            logger.log(logging.INFO if trouble is None else logging.ERROR, "store", extra={"fields": event})
        self.trouble = trouble
        for future in futures or []:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
