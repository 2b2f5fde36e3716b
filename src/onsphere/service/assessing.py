"""From the body of a request to its answer and its record: the work of one thread, off the event loop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from onsphere.assessment import Assessment
from onsphere.errors import OnsphereError
from onsphere.service.batches import rows_of_arrow, rows_of_csv
from onsphere.service.engine import Engine, Facts
from onsphere.service.problems import RequestError
from onsphere.service.replies import answer_rows, arrow_of, csv_of
from onsphere.service.rows import Batch, rows_of_json
from onsphere.service.settings import Settings
from onsphere.service.store import Record

__all__ = ["ARROW", "CSV", "JSON", "MEDIA_TYPES", "Assessed", "assess", "media_type_of"]

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"
MEDIA_TYPES = (JSON, CSV, ARROW, "application/vnd.apache.arrow.file")

_READERS = {JSON: rows_of_json, CSV: rows_of_csv, ARROW: rows_of_arrow}
_REJECTED_KEPT = 5  # of one request


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


def assess(
    engine: Engine,
    body: bytes,
    media_type: str,
    answer_type: str,
    *,
    coverage: float | None,
    settings: Settings,
    request: str,
    started: float,
) -> Assessed:
    """Read rows, ask the model, and write its answer."""
    facts = engine.facts
    batch = _READERS[media_type](body, facts, max_rows=settings.max_rows)
    try:
        result = engine.assess(batch.rows, coverage=coverage or facts.coverage)
    except OnsphereError as error:
        raise RequestError(422, str(error)) from None
    writers: dict[str, Any] = {CSV: csv_of, ARROW: arrow_of}
    accepted = np.ones(len(result), dtype=bool) if result.accepted is None else result.accepted
    rejected = np.flatnonzero(~accepted)[:_REJECTED_KEPT].tolist()
    rows = answer_rows(result, facts) if answer_type == JSON else None
    record = Record(
        facts=facts,
        at=time.time(),
        seconds=time.perf_counter() - started,
        request=request,
        uncertainty=np.asarray(result.uncertainty, dtype=np.float64),
        n_accepted=int(accepted.sum()),
        rejected=[_kept(result, facts, batch, index, settings.keep_rows) for index in rejected],
    )
    return Assessed(rows, b"" if rows is not None else writers[answer_type](result, facts, batch), record, batch)


def _kept(result: Assessment, facts: Facts, batch: Batch, index: int, with_row: bool) -> dict[str, Any]:
    one = {name: values[index : index + 1] for name, values in result._arrays()}
    answer = answer_rows(Assessment(**one, output_names=result.output_names), facts)[0]
    kept: dict[str, Any] = {"index": index, "answer": answer}
    return kept | {"row": batch.row(index), "key": batch.key(index)} if with_row else kept
