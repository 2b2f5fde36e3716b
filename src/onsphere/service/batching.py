"""Hand items over together: all that came while the ones before were worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


class Batcher:
    """Hands items that wait together to a function, which returns the result of each; an exception is raised.

    A call takes about as long for one item as for a hundred, so items together take hardly longer than one of them
    alone, and one that is alone never waits for others. If too many wait, an error is raised.
    """

    def __init__(
        self,
        work: Callable[[list[Any]], Awaitable[Sequence[Any]]],
        *,
        n_most: int,
        max_waiting: int | None = None,
        make_error: Callable[[], Exception] | None = None,
    ) -> None:
        self._work, self._n_most = work, n_most
        self._max_waiting, self._make_error = max_waiting, make_error
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._taken: list[tuple[Any, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def do(self, item: Any) -> Any:
        """Return the result of an item, or raise it."""
        if self._make_error is not None and len(self._waiting) == self._max_waiting:
            raise self._make_error()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def join(self) -> None:
        """Wait until nothing waits."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def fail(self, error: Exception) -> None:
        """Let all items fail that wait, or are being worked on."""
        waiting, self._waiting = self._waiting, []
        _settle([*self._taken, *waiting], error)

    async def _run(self) -> None:
        while waiting := [each for each in self._waiting if not each[1].done()]:  # others are no longer waited for
            self._taken, self._waiting = waiting[: self._n_most], waiting[self._n_most :]
            try:
                results = await self._work([item for item, _ in self._taken])
            except Exception as error:  # whatever it is, the next ones are worked on
                _settle(self._taken, error)
            else:
                for each, result in zip(self._taken, results, strict=True):
                    _settle([each], result)
            self._taken = []
        self._waiting, self._task = [], None


def _settle(items: list[tuple[Any, asyncio.Future[Any]]], result: Any) -> None:
    for _, future in items:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
