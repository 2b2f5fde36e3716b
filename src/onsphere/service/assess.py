"""Assess requests in a child process: read their rows, call the model once for all that can share it, and answer."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from onsphere.assessment import Assessment
from onsphere.errors import OnsphereError
from onsphere.export.deployed import Deployed, Facts
from onsphere.service.answers import (
    FaultError,
    RequestError,
    answer_rows,
    encode_json,
    find_place,
    make_problem_error,
    write_arrow,
    write_csv,
)
from onsphere.service.labels import MAX_KEYS, dump_answers, name_rows
from onsphere.service.rows import CSV, JSON, Batch, add_key_column, join_values, read_json, read_table
from onsphere.service.settings import Settings
from onsphere.service.store import Record
from onsphere.table.cells import Problem

ROWS_PER_CALL = 1_000  # of several requests that share a call of the model
_REJECTED_KEPT = 5  # rows of one request
_LAST_ROWS = 200  # of one request, to see which columns moved


@dataclass(frozen=True, eq=False)
class AssessRequest:
    """A request for the assessment of rows."""

    body: bytes
    media_type: str  # JSON, CSV or ARROW
    answer_type: str
    coverage: float
    number: str
    started: float  # when it arrived, by `time.perf_counter`
    is_recorded: bool = True  # whether the answer is to be stored
    idempotency: tuple[str, str] | None = None  # the key that names the request, and the hash of its body
    key: str | None = None  # the column that names its rows, to join labels to them


@dataclass(frozen=True, eq=False)
class Reply:
    """The answer to a request: its body (of JSON the list of rows), and the record of it, pickled."""

    body: bytes
    record: bytes
    n_rows: int
    n_accepted: int
    logged: dict[str, Any]  # features, if the logs may hold them


Outcome = Reply | RequestError | FaultError


def assess_requests(deployed: Deployed, settings: Settings, requests: Sequence[AssessRequest]) -> list[Outcome]:
    """Return the outcome of each request, with one call of the model for as many as can share it.

    Each row gets the answer that it would get alone but for rounding, which depends on how many rows share a call, as
    it does for the rows of one request. A request that fails fails alone.
    """
    groups: dict[Any, list[int]] = {}
    for place, request in enumerate(requests):
        shared = (request.coverage, request.key) if request.media_type == JSON else request
        groups.setdefault(shared, []).append(place)
    found: dict[int, Outcome] = {}
    for places in groups.values():
        outcomes = _assess_group(deployed, settings, [requests[place] for place in places])
        found.update(zip(places, outcomes, strict=True))
    return [found[place] for place in range(len(requests))]


def _assess_group(deployed: Deployed, settings: Settings, group: list[AssessRequest]) -> list[Outcome]:
    batches: list[Batch] = []
    try:
        batches = _read(group, deployed.facts, settings)
        ends = np.cumsum([len(batch) for batch in batches]).tolist()
        if len(group) > 1 and ends[-1] > ROWS_PER_CALL:
            half = len(group) // 2
            return [each for part in (group[:half], group[half:]) for each in _assess_group(deployed, settings, part)]
        result = deployed.assess(join_values(batches), coverage=group[0].coverage)
        answers, starts = answer_rows(result, deployed.facts), [0, *ends]
        parts = [result] if len(group) == 1 else [result[start:end] for start, end in pairwise(starts)]
        return [
            _build_reply(request, batch, part, answers[start:end], deployed.facts, settings)
            for request, batch, part, (start, end) in zip(group, batches, parts, pairwise(starts), strict=True)
        ]
    except Exception as error:
        if len(group) > 1:  # one of them is to blame, and the others must not suffer
            return [_assess_group(deployed, settings, [request])[0] for request in group]
        return [_explain_error(error, batches)]


def _explain_error(error: Exception, batches: list[Batch]) -> RequestError | FaultError:
    """Return what to answer; rows without a value are named if the model rejects those."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, MemoryError):
        return RequestError(413, "Expected a request that fits in memory. Got a larger one. Send fewer rows at a time.")
    if not isinstance(error, OnsphereError):
        return FaultError(type(error).__name__, find_place(error), str(error))
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


def _read(group: list[AssessRequest], facts: Facts, settings: Settings) -> list[Batch]:
    first = group[0]
    facts, max_rows = add_key_column(facts, first.key), settings.max_rows
    max_rows = max_rows if first.key is None else min(max_rows, MAX_KEYS)
    if first.media_type == JSON:
        return read_json([request.body for request in group], facts, max_rows=max_rows)
    return [read_table(first.body, facts, first.media_type, max_rows=max_rows)]


def _build_reply(
    request: AssessRequest,
    batch: Batch,
    result: Assessment,
    answers: list[dict[str, Any]],
    facts: Facts,
    settings: Settings,
) -> Reply:
    rejected = [index for index, answer in enumerate(answers) if answer["accepted"] is False]
    record = Record(
        at=time.time(),
        started=request.started,
        request=request.number,
        uncertainty=np.asarray(result.uncertainty, dtype=np.float64),
        missed=None if result.missed is None else np.asarray(result.missed, dtype=np.float64),
        n_accepted=len(answers) - len(rejected),
        rejected=[
            {"index": index, "answer": answers[index]}
            | ({"row": batch.get_row(index), "key": batch.get_key(index)} if settings.keep_rows else {})
            for index in rejected[:_REJECTED_KEPT]
        ],
        answers=[] if request.key is None else _describe_answers(result, request, batch, facts, settings),
        idempotency=request.idempotency,
        last_rows={name: values[-_LAST_ROWS:] for name, values in batch.values.items()},
    )
    if request.answer_type == JSON:
        body = encode_json(answers)
    else:
        body = (write_csv if request.answer_type == CSV else write_arrow)(result, facts, batch.keys)
    n_logged = min(len(batch), 100) if settings.log_values else 0
    logged = {"values": [batch.get_row(row) for row in range(n_logged)]} if n_logged else {}
    return Reply(body, pickle.dumps(record), len(answers), record.n_accepted, logged)


def _describe_answers(
    result: Assessment, request: AssessRequest, batch: Batch, facts: Facts, settings: Settings
) -> list[tuple[str, float, str, str | None]]:
    names, answers = name_rows(batch, str(request.key)), dump_answers(result, facts)
    rows = batch.to_json() if settings.keep_rows else [None] * len(batch)
    return list(zip(names, [request.coverage] * len(batch), answers, rows, strict=True))
