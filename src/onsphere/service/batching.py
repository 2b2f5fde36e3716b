"""Assess requests in threads, off the event loop: small ones that wait at the same time together, large ones alone."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onsphere.assessment import Assessment
from onsphere.errors import OnsphereError
from onsphere.service.arrow_rows import read_arrow, read_csv
from onsphere.service.engine import Engine, Facts
from onsphere.service.labels import dump_answers, name_rows
from onsphere.service.replies import RequestError, answer_rows, write_arrow, write_csv
from onsphere.service.rows import Batch, add_key_column, join_batches, read_json
from onsphere.service.settings import Settings
from onsphere.service.store import Record

__all__ = [
    "ARROW",
    "CSV",
    "JSON",
    "MEDIA_TYPES",
    "Batcher",
    "PendingRequest",
    "Reply",
    "assess_together",
    "read_media_type",
]

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"
MEDIA_TYPES = (JSON, CSV, ARROW, "application/vnd.apache.arrow.file")

_READERS = {CSV: read_csv, ARROW: read_arrow}
_WRITERS = {CSV: write_csv, ARROW: write_arrow}
_REJECTED_KEPT = 5  # rows of one request
_ROWS_PER_CALL = 1_000  # of several requests that share a call of the model
_SMALL_BODY = 16 * 2**10  # bytes
_MOMENT = 0.002  # seconds for others to come, where there were several a moment ago


@dataclass(frozen=True, eq=False)
class PendingRequest:
    """A request that waits for its assessment.

    Attributes
    ----------
    engine : Engine
        The one that answered when the request arrived.
    body : bytes
    media_type, answer_type : str
        JSON, CSV or ARROW.
    coverage : float
    request : str
        Its number.
    started : float
        When it arrived, by `time.perf_counter`.
    key : str or None
        The column that names its rows, to join labels to them.
    future : Future of Reply
    """

    engine: Engine
    body: bytes
    media_type: str
    answer_type: str
    coverage: float
    request: str
    started: float
    key: str | None = None
    future: Future[Reply] = field(default_factory=Future)


@dataclass(frozen=True, eq=False)
class Reply:
    """The answer to a request, and the record of it.

    Attributes
    ----------
    rows : list of dict, or None
        For JSON, to which the service adds whether they were recorded.
    body : bytes
        For CSV and Arrow.
    record : Record
    batch : Batch
    """

    rows: list[dict[str, Any]] | None
    body: bytes
    record: Record
    batch: Batch


class Batcher:
    """One thread for small requests, which takes all that wait, and some for large ones, which would hold them up.

    A call of a model takes about as long for one row as for a hundred, so requests together take hardly longer than
    one of them alone. A client that is alone never waits for others.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: deque[PendingRequest] = deque()
        self._shared = False  # whether the last call was for several requests
        self._for_small = ThreadPoolExecutor(1, thread_name_prefix="onsphere-small")
        self._for_large = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="onsphere-large")

    def submit(self, pending: PendingRequest) -> Future[Reply]:
        """Hand a request over."""
        if pending.media_type == JSON and len(pending.body) <= _SMALL_BODY:
            self._waiting.append(pending)
            self._for_small.submit(self._assess_waiting)
        else:
            self._for_large.submit(assess_together, [pending], self._settings)
        return pending.future

    def _assess_waiting(self) -> None:
        """Assess all that wait now; an earlier call may have taken them already."""
        if not self._waiting:
            return
        if self._shared:  # their clients are likely to ask again about now
            time.sleep(_MOMENT)
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._shared = len(taken) > 1
        assess_together(taken, self._settings)

    def stop(self) -> None:
        """Take no more requests, and leave those being worked on to themselves."""
        for threads in (self._for_small, self._for_large):
            threads.shutdown(wait=False, cancel_futures=True)


def read_media_type(header: str) -> str:
    """Return JSON, CSV or ARROW for a Content-Type header."""
    given = header.partition(";")[0].strip().lower()
    if given not in MEDIA_TYPES:
        raise RequestError(415, f"Expected a body of the type {', '.join(MEDIA_TYPES)}. Got {given[:100] or 'none'}.")
    return given if given in (JSON, CSV) else ARROW


def assess_together(requests: Sequence[PendingRequest], settings: Settings) -> None:
    """Settle the future of each request, with one call of the model for as many as can share it.

    Each row gets the answer that it would get alone but for rounding, which depends on how many rows share a call, as
    it does for the rows of one request. A request that fails fails alone.
    """
    to_read: dict[Any, list[PendingRequest]] = {}
    for pending in requests:
        if pending.future.set_running_or_notify_cancel():
            shared = (pending.engine, pending.key) if pending.media_type == JSON else pending
            to_read.setdefault(shared, []).append(pending)
    pairs = [pair for group in to_read.values() for pair in _read_group(group, settings.max_rows)]
    while pairs:
        group = _choose_group(pairs)
        pairs = [pair for pair in pairs if pair not in group]
        _assess_group(group, settings)


def _read_group(group: list[PendingRequest], max_rows: int) -> list[tuple[PendingRequest, Batch]]:
    """Read the rows of JSON requests for one model, or of one other request; those that cannot be read fail."""
    facts, media_type, key = group[0].engine.facts, group[0].media_type, group[0].key
    try:
        facts = facts if key is None else add_key_column(facts, key)
        bodies = [pending.body for pending in group]
        if media_type == JSON:
            return list(zip(group, read_json(bodies, facts, max_rows=max_rows), strict=True))
        return [(group[0], _READERS[media_type](bodies[0], facts, max_rows=max_rows))]
    except Exception as error:
        if len(group) == 1:
            group[0].future.set_exception(error)
            return []
        # One of them is to blame, and the others must not suffer.
        return [pair for pending in group for pair in _read_group([pending], max_rows)]


def _choose_group(pairs: list[tuple[PendingRequest, Batch]]) -> list[tuple[PendingRequest, Batch]]:
    """Return the first request, and others for the same model and coverage, up to a number of rows."""
    first, n_rows = pairs[0][0], 0
    group: list[tuple[PendingRequest, Batch]] = []
    for pending, batch in pairs:
        if pending.engine is first.engine and pending.coverage == first.coverage:
            n_rows += len(batch)
            if group and n_rows > _ROWS_PER_CALL:
                break
            group.append((pending, batch))
    return group


def _assess_group(group: list[tuple[PendingRequest, Batch]], settings: Settings) -> None:
    engine, coverage = group[0][0].engine, group[0][0].coverage
    try:
        result = engine.assess(join_batches(engine.facts, [batch for _, batch in group]), coverage=coverage)
    except Exception as error:
        if len(group) == 1:
            group[0][0].future.set_exception(
                RequestError(422, str(error)) if isinstance(error, OnsphereError) else error
            )
        else:  # here too
            for pair in group:
                _assess_group([pair], settings)
        return
    ends = np.cumsum([len(batch) for _, batch in group]).tolist()
    for (pending, batch), start, end in zip(group, [0, *ends], ends, strict=False):
        try:
            pending.future.set_result(_build_reply(pending, batch, result[start:end], settings))
        except Exception as error:
            pending.future.set_exception(error)


def _build_reply(pending: PendingRequest, batch: Batch, result: Assessment, settings: Settings) -> Reply:
    facts = pending.engine.facts
    accepted = np.ones(len(result), dtype=bool) if result.accepted is None else result.accepted
    rejected = np.flatnonzero(~accepted)[:_REJECTED_KEPT].tolist()
    rows = answer_rows(result, facts) if pending.answer_type == JSON else None
    record = Record(
        facts=facts,
        at=time.time(),
        seconds=time.perf_counter() - pending.started,
        request=pending.request,
        uncertainty=np.asarray(result.uncertainty, dtype=np.float64),
        missed=None if result.missed is None else np.asarray(result.missed, dtype=np.float64),
        n_accepted=int(accepted.sum()),
        rejected=[_describe_rejected(result, facts, batch, index, settings.keep_rows) for index in rejected],
        answers=[] if pending.key is None else _describe_answers(result, pending, batch, settings.keep_rows),
    )
    body = b"" if rows is not None else _WRITERS[pending.answer_type](result, facts, batch.keys)
    return Reply(rows, body, record, batch)


def _describe_answers(
    result: Assessment, pending: PendingRequest, batch: Batch, with_rows: bool
) -> list[tuple[str, float, str, str | None]]:
    names, answers = name_rows(batch, str(pending.key)), dump_answers(result, pending.engine.facts)
    rows = batch.to_json() if with_rows else [None] * len(batch)
    return list(zip(names, [pending.coverage] * len(batch), answers, rows, strict=True))


def _describe_rejected(result: Assessment, facts: Facts, batch: Batch, index: int, with_row: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"index": index, "answer": answer_rows(result[index : index + 1], facts)[0]}
    return described | {"row": batch.get_row(index), "key": batch.get_key(index)} if with_row else described
