"""Assess requests off the event loop: small ones that wait at the same time together, large ones in a child process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from onsphere.assessment import Assessment
from onsphere.errors import OnsphereError
from onsphere.service.answers import RequestError, answer_rows, encode_json, make_problem_error, write_arrow, write_csv
from onsphere.service.child import LiveModel
from onsphere.service.labels import MAX_KEYS, dump_answers, name_rows
from onsphere.service.recorder import Recorder
from onsphere.service.rows import CSV, JSON, Batch, join_values, read_json, read_table
from onsphere.service.settings import Settings
from onsphere.service.store import Record
from onsphere.table.cells import Problem

_REJECTED_KEPT = 5  # rows of one request
_ROWS_KEPT = 200  # of one request, to see which columns moved
_ROWS_PER_CALL = 1_000  # of several requests that share a call of the model
_SMALL_BODY = 16 * 2**10  # bytes; larger ones would hold the interpreter up while they are read
_MAX_LARGE = 8  # large requests that wait
_MAX_STUCK = 3  # threads


@dataclass(eq=False)
class PendingRequest:
    """A request that waits for its assessment."""

    live: LiveModel  # the one that answered when the request arrived
    body: bytes
    media_type: str  # JSON, CSV or ARROW
    answer_type: str
    coverage: float
    request: str  # its number
    started: float  # when it arrived, by `time.perf_counter`
    is_recorded: bool = True  # whether the answer is to be stored
    idempotency: tuple[str, str] | None = None  # the key that names the request, and the hash of its body
    key: str | None = None  # the column that names its rows, to join labels to them
    future: asyncio.Future[tuple[Reply, bool]] | None = None  # the answer, and whether it was stored
    reply: Reply | None = None  # the answer before it is stored

    @property
    def is_over(self) -> bool:
        """Whether its client waits no more."""
        return self.future is not None and self.future.done()


@dataclass(frozen=True, eq=False)
class Reply:
    """The answer to a request: its body (of JSON the list of rows), the record of it, and its last rows."""

    body: bytes
    record: Record
    batch: Batch
    logged: dict[str, Any]  # features, if the logs may hold them


Outcome = Reply | Exception


class Batcher:
    """One thread for small requests, which takes all that wait, and one that hands large ones to the child process.

    A call of a model takes about as long for one row as for a hundred, so requests together take hardly longer than
    one of them alone. A client that is alone never waits for others. The recorder gets what was assessed. `n_stuck`
    counts threads in which a model never came back.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings, self._recorder = settings, recorder
        self._small: SimpleQueue[PendingRequest | None] = SimpleQueue()
        self._large: SimpleQueue[PendingRequest | None] = SimpleQueue()
        self._working: tuple[float, list[PendingRequest]] | None = None
        self.n_stuck = 0

    def start(self) -> None:
        """Start the threads."""
        for target in (self._assess_small, self._assess_large):
            threading.Thread(target=target, name="onsphere-assess", daemon=True).start()

    def stop(self) -> None:
        """Take no more requests, and leave those being worked on to themselves."""
        self._small.put(None)
        self._large.put(None)

    async def assess(self, pending: PendingRequest) -> tuple[Reply, bool]:
        """Return the answer to a request, and whether it was stored."""
        pending.future = asyncio.get_running_loop().create_future()
        if pending.media_type == JSON and len(pending.body) <= _SMALL_BODY:
            if self.n_stuck >= _MAX_STUCK:
                raise RequestError(503, "The model hangs on earlier requests. Start the service again.")
            self._small.put(pending)
        else:
            if self._large.qsize() >= _MAX_LARGE:
                raise RequestError(503, f"{_MAX_LARGE} large requests wait already. Try again in a moment.")
            self._large.put(pending)
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await pending.future
        except TimeoutError:
            if pending.reply is not None:
                return pending.reply, False
            raise RequestError(
                504, f"Expected to answer within {self._settings.timeout:g} s. Send fewer rows at a time."
            ) from None

    def check_time(self) -> None:
        """Stop a graph that runs for too long, and replace a thread that does not come back."""
        working = self._working
        if working is None or time.monotonic() - working[0] < self._settings.timeout:
            return
        for pending in working[1]:
            pending.live.engine.interrupt()
        if time.monotonic() - working[0] > self._settings.timeout + 2 and self.n_stuck < _MAX_STUCK:
            self.n_stuck += 1
            self._working = None
            threading.Thread(target=self._assess_small, name="onsphere-assess", daemon=True).start()

    def _assess_small(self) -> None:
        """Assess all that wait, again and again, unless another thread has taken over."""
        while (pending := self._small.get()) is not None:
            taken = [pending]
            while len(taken) < _ROWS_PER_CALL and not self._small.empty():
                if (pending := self._small.get()) is None:
                    self._small.put(None)
                    break
                taken.append(pending)
            taken = [pending for pending in taken if not pending.is_over]
            working = self._working = (time.monotonic(), taken)
            outcomes = assess_together(taken, self._settings)
            is_replaced = self._working is not working
            if not is_replaced:
                self._working = None
            self._hand_over(outcomes)
            if is_replaced:
                self.n_stuck -= 1
                return

    def _assess_large(self) -> None:
        while (pending := self._large.get()) is not None:
            if pending.is_over:
                continue
            left = self._settings.timeout - (time.perf_counter() - pending.started)
            try:
                outcome: Outcome = pending.live.child.assess(pending, seconds=left)
            except Exception as error:
                outcome = error
            self._hand_over([(pending, outcome)])
            with suppress(
                OnsphereError, RequestError
            ):  # after a request that ended it, the next one finds the process running
                pending.live.child.start_if_ended()

    def _hand_over(self, outcomes: list[tuple[PendingRequest, Outcome]]) -> None:
        """Give the answers that are to be stored to the recorder, and the others to their clients."""
        to_store: list[tuple[PendingRequest, Reply]] = []
        done: list[tuple[PendingRequest, Any]] = []
        for pending, outcome in outcomes:
            if isinstance(outcome, Reply) and pending.is_recorded:
                pending.reply = outcome
                to_store.append((pending, outcome))
            else:
                done.append((pending, (outcome, False) if isinstance(outcome, Reply) else outcome))
        _settle(done)
        if to_store:
            self._recorder.record(
                [reply.record for _, reply in to_store],
                lambda results: _settle(
                    [
                        (pending, result if isinstance(result, Exception) else (reply, result))
                        for (pending, reply), result in zip(to_store, results, strict=True)
                    ]
                ),
            )


def _settle(done: list[tuple[PendingRequest, Any]]) -> None:
    """Wake the requests, with one message to the event loop for all of them."""
    if done and done[0][0].future is not None:
        loop = done[0][0].future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(_set_results, done)


def _set_results(done: list[tuple[PendingRequest, Any]]) -> None:
    for pending, result in done:
        if pending.future is not None and not pending.future.done():
            if isinstance(result, Exception):
                pending.future.set_exception(result)
            else:
                pending.future.set_result(result)


def assess_together(requests: Sequence[PendingRequest], settings: Settings) -> list[tuple[PendingRequest, Outcome]]:
    """Return the outcome of each request, with one call of the model for as many as can share it.

    Each row gets the answer that it would get alone but for rounding, which depends on how many rows share a call, as
    it does for the rows of one request. A request that fails fails alone.
    """
    groups: dict[Any, list[PendingRequest]] = {}
    for pending in requests:
        shared = (pending.live, pending.coverage, pending.key) if pending.media_type == JSON else pending
        groups.setdefault(shared, []).append(pending)
    return [pair for group in groups.values() for pair in _assess_group(group, settings)]


def _assess_group(group: list[PendingRequest], settings: Settings) -> list[tuple[PendingRequest, Outcome]]:
    live, coverage = group[0].live, group[0].coverage
    batches: list[Batch] = []
    try:
        batches = _read(group, settings)
        n_rows = sum(map(len, batches))
        if len(group) > 1 and n_rows > _ROWS_PER_CALL:
            half = len(group) // 2
            return _assess_group(group[:half], settings) + _assess_group(group[half:], settings)
        result = live.engine.assess(join_values(batches), coverage=coverage)
        answers = answer_rows(result, live.engine.facts)
        found: list[tuple[PendingRequest, Outcome]] = []
        start = 0
        for pending, batch in zip(group, batches, strict=True):
            end = start + len(batch)
            part = result if len(group) == 1 else result[start:end]
            found.append((pending, _build_reply(pending, batch, part, answers[start:end], settings)))
            start = end
        return found
    except Exception as error:
        if len(group) == 1:
            return [(group[0], _explain_error(error, batches) if isinstance(error, OnsphereError) else error)]
        # One of them is to blame, and the others must not suffer.
        return [pair for pending in group for pair in _assess_group([pending], settings)]


def _explain_error(error: OnsphereError, batches: list[Batch]) -> RequestError:
    """Return what to answer where a model rejects rows; those without a value are named if it accepts no such rows."""
    missing = [
        Problem(name, row, "a value (the model accepts no missing ones)", "none")
        for batch in batches
        for name, values in batch.values.items()
        for row, value in enumerate(values.tolist())
        if value is None or value != value
    ]
    if missing and "NaN" in str(error):
        return make_problem_error(missing)
    return RequestError(422, str(error))


def _read(group: list[PendingRequest], settings: Settings) -> list[Batch]:
    first = group[0]
    facts = first.live.choose_facts(first.key)
    max_rows = settings.max_rows if first.key is None else min(settings.max_rows, MAX_KEYS)
    if first.media_type == JSON:
        return read_json([pending.body for pending in group], facts, max_rows=max_rows)
    return [read_table(first.body, facts, first.media_type, max_rows=max_rows)]


def _build_reply(
    pending: PendingRequest, batch: Batch, result: Assessment, answers: list[dict[str, Any]], settings: Settings
) -> Reply:
    facts = pending.live.engine.facts
    is_rejected = [answer["accepted"] is False for answer in answers]
    rejected = [index for index, is_out in enumerate(is_rejected) if is_out][:_REJECTED_KEPT]
    record = Record(
        facts=facts,
        at=time.time(),
        started=pending.started,
        request=pending.request,
        uncertainty=np.asarray(result.uncertainty, dtype=np.float64),
        missed=None if result.missed is None else np.asarray(result.missed, dtype=np.float64),
        n_accepted=len(answers) - sum(is_rejected),
        rejected=[
            {"index": index, "answer": answers[index]}
            | ({"row": batch.get_row(index), "key": batch.get_key(index)} if settings.keep_rows else {})
            for index in rejected
        ],
        answers=[] if pending.key is None else _describe_answers(result, pending, batch, settings.keep_rows),
        idempotency=pending.idempotency,
    )
    if pending.answer_type == JSON:
        body = encode_json(answers)
    else:
        body = (write_csv if pending.answer_type == CSV else write_arrow)(result, facts, batch.keys)
    logged = [batch.get_row(index) for index in range(min(len(batch), 100))] if settings.log_values else []
    return Reply(body, record, batch.copy_last(_ROWS_KEPT), {"values": logged} if logged else {})


def _describe_answers(
    result: Assessment, pending: PendingRequest, batch: Batch, with_rows: bool
) -> list[tuple[str, float, str, str | None]]:
    names, answers = name_rows(batch, str(pending.key)), dump_answers(result, pending.live.engine.facts)
    rows = batch.to_json() if with_rows else [None] * len(batch)
    return list(zip(names, [pending.coverage] * len(batch), answers, rows, strict=True))
