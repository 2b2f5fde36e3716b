"""Write records in one thread, where requests that wait at the same time share a transaction.

An answer waits until its record is on the disk, but not for long: once the database is down or silent, answers go out
at once without a record, and say so. The thread keeps trying, and later requests are recorded again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from onsphere.service.metrics import log_event
from onsphere.service.store import Record, Store, StoreError

_MAX_TOGETHER = 200  # records of one transaction
_MAX_WAITING = 2_000  # items
_PAUSE = 0.5  # seconds between attempts while the database is down, and between trial writes while nothing comes

Job = tuple[Any, Future[Any]]  # records or a task for the store, and its result


def _finish(jobs: list[Job], result: Any) -> None:
    """Tell whoever waits for jobs; the first to tell wins."""
    for _, future in jobs:
        with suppress(InvalidStateError):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


class Recorder:
    """Writes records to a store; `trouble` says why it does not work.

    Answers wait for a silent store for some seconds. Its connection is ended after more of them, the limit.
    """

    def __init__(self, store: Store, *, seconds: float, limit: float) -> None:
        self._store, self._seconds, self._limit = store, seconds, limit
        self._waiting: queue.Queue[Job | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="onsphere-recorder", daemon=True)
        self._working: tuple[float, list[Job]] | None = None
        self.trouble: str | None = "The store has not been reached yet."

    def start(self) -> None:
        """Try the store, and start the thread."""
        self._attempt([], self._store.check)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and stop the thread; leave it to itself if that takes too long."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=self._limit)
        self._thread.join(2 * self._limit)

    def do(self, work: list[Record] | Callable[[Store], Any]) -> Future[Any]:
        """Write records, or run another task on the store, in the one thread that uses it."""
        future: Future[Any] = Future()
        if self.trouble is not None:  # nobody waits for a store that is down
            future.set_exception(StoreError(self.trouble))
            return future
        try:
            self._waiting.put_nowait((work, future))
        except queue.Full:
            future.set_exception(StoreError("More assessments wait to be stored than there is room for."))
        return future

    def check_time(self) -> None:
        """Let clients go that wait for a silent store, and later give up on it; called from time to time."""
        working = self._working
        if working is None or (elapsed := time.monotonic() - working[0]) < self._seconds:
            return
        self._note(f"The store has not answered for {self._seconds:g} s.")
        is_over = elapsed > self._limit
        _finish([job for job in working[1] if is_over or isinstance(job[0], list)], StoreError(self.trouble))
        self._fail_waiting()
        if is_over:
            self._store.abort()

    def _fail_waiting(self) -> None:
        with suppress(queue.Empty):
            while (job := self._waiting.get_nowait()) is not None:
                _finish([job], StoreError(self.trouble))
            self._waiting.put(None)

    def _run(self) -> None:
        jobs: list[Job | None] = []
        while None not in jobs:
            jobs = self._take_waiting()
            to_write = [job for job in jobs if job is not None and isinstance(job[0], list)]
            if to_write or not jobs:
                self._attempt(to_write, lambda jobs=to_write: self._write(jobs))
            for job in jobs:
                if job is not None and job not in to_write:
                    self._attempt([job], lambda job=job: _finish([job], job[0](self._store)))
        self._store.close()
        self.trouble = "The service has ended."
        self._fail_waiting()

    def _take_waiting(self) -> list[Job | None]:
        """Take the records that wait up to the first task or the end (None); nothing if nothing comes for a while."""
        jobs: list[Job | None] = []
        n_records = 0
        with suppress(queue.Empty):
            while n_records < _MAX_TOGETHER:
                jobs.append(job := self._waiting.get(block=not jobs, timeout=_PAUSE))
                if job is None or not isinstance(job[0], list):  # more records have their turn after a task
                    break
                n_records += len(job[0])
        return jobs

    def _write(self, jobs: list[Job]) -> None:
        """Write the records of jobs; without any, see whether the store would take them."""
        if not jobs:
            self._store.check()
            return
        results = self._store.write([record for records, _ in jobs for record in records])
        start = 0
        for job in jobs:
            _finish([job], results[start : (start := start + len(job[0]))])

    def _attempt(self, jobs: list[Job], work: Callable[[], Any]) -> None:
        self._working = (time.monotonic(), jobs)
        error = trouble = None
        try:
            work()
        except Exception as caught:  # the thread goes on, whatever it is
            # If it is no StoreError, the tables do not hold what was written there.
            error, trouble = caught, f"{'' if isinstance(caught, StoreError) else 'The store cannot be read: '}{caught}"
        self._working = None
        self._note(trouble)
        if error is not None:
            _finish(jobs, error)
            self._fail_waiting()

    def _note(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            level = logging.INFO if trouble is None else logging.ERROR
            log_event("store", level=level, working=trouble is None, reason=trouble)
        self.trouble = trouble
