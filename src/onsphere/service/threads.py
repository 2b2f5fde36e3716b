"""The threads that assess: small requests that wait at the same time are worked on together, large ones alone."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from onsphere.service.assessing import JSON, Asked, Assessed, assess_all
from onsphere.service.settings import Settings

__all__ = ["Assessors"]

_SMALL = 16 * 2**10  # bytes of a body
_MOMENT = 0.002  # seconds for others to come, where there were several a moment ago


class Assessors:
    """One thread for small requests, which takes all that wait, and some for large ones, which would keep them waiting.

    A call of a model takes about as long for one row as for a hundred, so that requests together take hardly longer
    than one of them alone. A client that is alone is never kept waiting for others.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: deque[Asked] = deque()
        self._shared = False  # whether the last ones were several
        self._for_small = ThreadPoolExecutor(1, thread_name_prefix="onsphere-small")
        self._for_large = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="onsphere-large")

    def submit(self, asked: Asked) -> Future[Assessed]:
        """Hand a request over."""
        if asked.media_type == JSON and len(asked.body) <= _SMALL:
            self._waiting.append(asked)
            self._for_small.submit(self._assess_waiting)
        else:
            self._for_large.submit(assess_all, [asked], self._settings)
        return asked.future

    def _assess_waiting(self) -> None:
        """All that wait now; for those who were taken along by an earlier call, nothing is left to do."""
        if not self._waiting:
            return
        if self._shared:  # their clients are likely to ask again, about now
            time.sleep(_MOMENT)
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._shared = len(taken) > 1
        assess_all(taken, self._settings)

    def stop(self) -> None:
        """Take no more; what is being worked on is left to itself."""
        for threads in (self._for_small, self._for_large):
            threads.shutdown(wait=False, cancel_futures=True)
