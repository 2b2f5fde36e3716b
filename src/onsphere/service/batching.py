"""Hand requests to the processes that assess them: small ones that wait together, and large ones one by one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onsphere.service.answers import RequestError
from onsphere.service.assess import ROWS_PER_CALL, AssessRequest, Reply
from onsphere.service.recorder import Recorder
from onsphere.service.rows import JSON
from onsphere.service.served_model import LiveModel
from onsphere.service.settings import Settings

_SMALL_BODY = 16 * 2**10  # bytes
_MAX_LARGE = 8  # large requests that wait


@dataclass(eq=False)
class _Pending:
    """A request that waits for its answer, and whether that was stored."""

    live: LiveModel  # the one that answered when the request arrived
    request: AssessRequest
    future: asyncio.Future[tuple[Reply, bool]]
    reply: Reply | None = None  # the answer before it is stored

    def settle(self, result: Any) -> None:
        if self.future.done():  # its client waits no more
            return
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class Batcher:
    """Hands small requests over together, all that wait, and large ones one after the other.

    A call of a model takes about as long for one row as for a hundred, so requests together take hardly longer than
    one of them alone. A client that is alone never waits for others. The recorder gets what was assessed.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings, self._recorder = settings, recorder
        self._small, self._large = list[_Pending](), list[_Pending]()
        self._tasks = set[asyncio.Task[None]]()
        self._is_busy = {True: False, False: False}  # with large requests, and with small ones

    async def assess(self, live: LiveModel, request: AssessRequest) -> tuple[Reply, bool]:
        """Return the answer to a request, and whether it was stored."""
        is_large = request.media_type != JSON or len(request.body) > _SMALL_BODY
        if is_large and len(self._large) >= _MAX_LARGE:
            raise RequestError(503, f"{_MAX_LARGE} large requests wait already. Try again in a moment.")
        pending = _Pending(live, request, asyncio.get_running_loop().create_future())
        (self._large if is_large else self._small).append(pending)
        if not self._is_busy[is_large]:
            self._is_busy[is_large] = True
            self._start(self._work(is_large))
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await pending.future
        except TimeoutError:
            if pending.reply is not None:
                return pending.reply, False
            raise RequestError(
                504, f"Expected to answer within {self._settings.timeout:g} s. Send fewer rows at a time."
            ) from None

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # or else nobody holds it
        task.add_done_callback(self._tasks.discard)

    async def _work(self, is_large: bool) -> None:
        """Hand over all that wait, until nothing does."""
        waiting, n_most = (self._large, 1) if is_large else (self._small, ROWS_PER_CALL)
        try:
            while waiting:
                taken, waiting[:n_most] = waiting[:n_most], []
                groups: dict[LiveModel, list[_Pending]] = {}
                for pending in taken:
                    if not pending.future.done():
                        groups.setdefault(pending.live, []).append(pending)
                for live, group in groups.items():
                    try:
                        outcomes: list[Any] = await live.assess([each.request for each in group], is_large=is_large)
                    except Exception as error:  # whatever it is, the next ones are worked on
                        outcomes = [error] * len(group)
                    self._hand_over(list(zip(group, outcomes, strict=True)))
                    await live.restart(is_large=is_large)  # after a request that ended the process
        finally:
            self._is_busy[is_large] = False

    def _hand_over(self, outcomes: list[tuple[_Pending, Any]]) -> None:
        """Give the answers that are to be stored to the recorder, and the others to their clients."""
        to_store: list[_Pending] = []
        for pending, outcome in outcomes:
            if isinstance(outcome, Reply) and pending.request.is_recorded:
                pending.reply = outcome
                to_store.append(pending)
            else:
                pending.settle((outcome, False) if isinstance(outcome, Reply) else outcome)
        if to_store:
            self._start(self._store(to_store))

    async def _store(self, to_store: list[_Pending]) -> None:
        results: list[Any] = [False] * len(to_store)
        records = [pending.reply.record for pending in to_store if pending.reply is not None]
        with suppress(Exception):  # the recorder notes what is wrong with the store
            results = await asyncio.wrap_future(self._recorder.do(records))
        for pending, result in zip(to_store, results, strict=True):
            pending.settle(result if isinstance(result, Exception) else (pending.reply, result))
