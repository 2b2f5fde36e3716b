"""From the bodies of requests to their answers and records: the work of one thread, off the event loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onsphere.assessment import Assessment
from onsphere.errors import OnsphereError
from onsphere.service.batches import rows_of_arrow, rows_of_csv
from onsphere.service.engine import Engine, Facts
from onsphere.service.problems import RequestError
from onsphere.service.replies import answer_rows, arrow_of, csv_of
from onsphere.service.rows import Batch, joined_rows, rows_of_json
from onsphere.service.settings import Settings
from onsphere.service.store import Record

__all__ = ["ARROW", "CSV", "JSON", "MEDIA_TYPES", "Asked", "Assessed", "assess_all", "media_type_of"]

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"
MEDIA_TYPES = (JSON, CSV, ARROW, "application/vnd.apache.arrow.file")

_READERS = {JSON: rows_of_json, CSV: rows_of_csv, ARROW: rows_of_arrow}
_WRITERS = {CSV: csv_of, ARROW: arrow_of}
_REJECTED_KEPT = 5  # of one request
_TOGETHER = 1_000  # rows of several requests that the model is asked about at once


@dataclass(frozen=True, eq=False)
class Asked:
    """A request that waits for its assessment.

    Attributes
    ----------
    engine : Engine
        The one that answered when the request arrived.
    body : bytes
    media_type, answer_type : str
        Of JSON, CSV and ARROW.
    coverage : float
    request : str
        Its number.
    started : float
        When it arrived, by `time.perf_counter`.
    future : Future of Assessed
    """

    engine: Engine
    body: bytes
    media_type: str
    answer_type: str
    coverage: float
    request: str
    started: float
    future: Future[Assessed] = field(default_factory=Future)


@dataclass(frozen=True, eq=False)
class Assessed:
    """What is answered, and what is kept of it.

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


def media_type_of(header: str) -> str:
    """One of JSON, CSV and ARROW for a Content-Type."""
    given = header.partition(";")[0].strip().lower()
    if given not in MEDIA_TYPES:
        told = f"Expected a body of the type {', '.join(MEDIA_TYPES)}. Got {given[:100] or 'none'}."
        raise RequestError(415, told)
    return given if given in _READERS else ARROW


def assess_all(asked: Sequence[Asked], settings: Settings) -> None:
    """Settle the future of each request; the model is asked once about the rows of as many as can share the call.

    Each row gets the answer that it would get alone but for rounding, which depends on how many rows are asked about at
    once, as it does for rows of one request. A request that fails fails alone.
    """
    waiting = [one for one in asked if one.future.set_running_or_notify_cancel()]
    read = [(one, batch) for one in waiting if (batch := _read(one, settings)) is not None]
    while read:
        together = _sharing(read)
        read = [pair for pair in read if pair not in together]
        _ask(together, settings)


def _read(one: Asked, settings: Settings) -> Batch | None:
    try:
        return _READERS[one.media_type](one.body, one.engine.facts, max_rows=settings.max_rows)
    except Exception as error:
        one.future.set_exception(error)
        return None


def _sharing(read: list[tuple[Asked, Batch]]) -> list[tuple[Asked, Batch]]:
    """The first request, and others that ask the same model for the same coverage, up to a number of rows."""
    first, n_rows = read[0][0], 0
    together: list[tuple[Asked, Batch]] = []
    for one, batch in read:
        if one.engine is first.engine and one.coverage == first.coverage:
            n_rows += len(batch)
            if together and n_rows > _TOGETHER:
                break
            together.append((one, batch))
    return together


def _ask(together: list[tuple[Asked, Batch]], settings: Settings) -> None:
    engine, coverage = together[0][0].engine, together[0][0].coverage
    try:
        result = engine.assess(joined_rows(engine.facts, [batch for _, batch in together]), coverage=coverage)
    except Exception as error:
        if len(together) == 1:
            told = RequestError(422, str(error)) if isinstance(error, OnsphereError) else error
            together[0][0].future.set_exception(told)
        else:  # one of them is to blame, which the others must not feel
            for pair in together:
                _ask([pair], settings)
        return
    ends = np.cumsum([len(batch) for _, batch in together]).tolist()
    for (one, batch), start, end in zip(together, [0, *ends], ends, strict=False):
        try:
            one.future.set_result(_answered(one, batch, _part(result, start, end), settings))
        except Exception as error:
            one.future.set_exception(error)


def _part(result: Assessment, start: int, stop: int) -> Assessment:
    found: dict[str, Any] = {name: values[start:stop] for name, values in result._arrays()}
    return Assessment(**found, output_names=result.output_names)


def _answered(one: Asked, batch: Batch, result: Assessment, settings: Settings) -> Assessed:
    facts = one.engine.facts
    accepted = np.ones(len(result), dtype=bool) if result.accepted is None else result.accepted
    rejected = np.flatnonzero(~accepted)[:_REJECTED_KEPT].tolist()
    rows = answer_rows(result, facts) if one.answer_type == JSON else None
    record = Record(
        facts=facts,
        at=time.time(),
        seconds=time.perf_counter() - one.started,
        request=one.request,
        uncertainty=np.asarray(result.uncertainty, dtype=np.float64),
        n_accepted=int(accepted.sum()),
        rejected=[_kept(result, facts, batch, index, settings.keep_rows) for index in rejected],
    )
    body = b"" if rows is not None else _WRITERS[one.answer_type](result, facts, batch)
    return Assessed(rows, body, record, batch)


def _kept(result: Assessment, facts: Facts, batch: Batch, index: int, with_row: bool) -> dict[str, Any]:
    kept: dict[str, Any] = {"index": index, "answer": answer_rows(_part(result, index, index + 1), facts)[0]}
    return kept | {"row": batch.row(index), "key": batch.key(index)} if with_row else kept
