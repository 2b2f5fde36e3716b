"""Describe requests and answers for OpenAPI; the schema of a row follows the columns of the model."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from onsphere.service.batching import ARROW, CSV, JSON, MEDIA_TYPES
from onsphere.service.engine import Facts
from onsphere.table.cells import LARGEST, LONGEST_TEXT
from onsphere.table.columns import Column

__all__ = [
    "LABELS_BODY",
    "Answers",
    "ErrorAnswer",
    "Health",
    "LabelsTaken",
    "Live",
    "ModelFacts",
    "Readiness",
    "Reloaded",
    "ResetDone",
    "build_body_schema",
    "describe_batch_answers",
    "describe_errors",
]

Number = float | None
PerOutput = float | dict[str, Number] | None


class ErrorAt(BaseModel):
    """One thing that is wrong with a request."""

    column: str | None = Field(description="Which column; null where it is the whole row or request.")
    row: int | None = Field(description="Which row, counted from 0; null where it is all of them.")
    expected: str
    got: str


class ErrorAnswer(BaseModel):
    """The reason why a request was not answered."""

    detail: str = Field(description="A sentence: what was expected, what came, what to do.")
    errors: list[ErrorAt]


class Answer(BaseModel):
    """The answer of the model for one row; null where it has none."""

    value: float | int | bool | str | dict[str, Number] | None = Field(description="The prediction; several by name.")
    uncertainty: Number = Field(description="Higher means less trustworthy; null where it is infinite.")
    lower: PerOutput = None
    upper: PerOutput = None
    sigma: PerOutput = Field(None, description="Standard deviation of the whole error, in the unit of the target.")
    noise: PerOutput = Field(
        None, description="How far similar rows disagree, in the unit of the target; classes: 0 to 1."
    )
    novelty: Number = Field(None, description="How unlike all training rows the row is: 0 for most of them, at most 1.")
    novelty_p_value: Number = Field(None, description="The share of calibration rows that were at least as novel.")
    confidence: Number = Field(None, description="The share of calibration rows that were at least as uncertain.")
    expected_error: Number = None
    direction_norm: Number = None
    anchor_residual: Number = None
    probabilities: dict[str, Number] | None = None
    set: list[str] | None = Field(
        None, description="The classes that contain the true one with the requested coverage."
    )
    accepted: bool | None = Field(description="Whether to trust the row; null where the model has no threshold.")
    reason: str | None = Field(description="Why it was rejected: for its uncertainty, for its novelty, or for both.")


class Answers(BaseModel):
    """The answers for the rows of a request, in their order."""

    model: str = Field(description="SHA-256 of the model's file.")
    coverage: float
    recorded: bool = Field(description="Whether this was stored, and seen by the drift monitor, before it was sent.")
    rows: list[Answer]


class ModelColumn(BaseModel):
    name: str
    kind: str
    note: str
    required: bool
    levels: list[str]


class Band(BaseModel):
    """Quantiles of a score of the calibration rows: 5 %, 50 % and 95 %."""

    low: float
    middle: float
    high: float


class ModelFacts(BaseModel):
    """The model that is served."""

    name: str
    sha256: str
    kind: str
    model: str
    task: str
    targets: list[str]
    columns: list[ModelColumn]
    coverage: float
    threshold: Number = Field(description="The largest uncertainty that is accepted.")
    calibration_band: Band | None = Field(description="Of the uncertainties.")
    novelty_threshold: Number = Field(
        description="The largest shortfall that is accepted: how much of a row the training rows cannot account for."
    )
    novelty_band: Band | None = Field(description="Of the shortfalls.")
    calibration_rows: int | None
    calibrated_by: str | None = Field(
        description='"held-out rows" or "cross-validation", after which a false alarm is more likely than alpha.'
    )
    classes: list[Any] | None
    rule: str | None
    novelty_rule: str | None
    frames: list[str] | None = Field(description="The frames that were fitted; null for a model of another method.")
    backbone: str | None
    figures: dict[str, Any]
    onsphere: str
    libraries: dict[str, str]
    notes: list[str]
    loaded_at: float
    reload_trouble: str | None = Field(description="Why the file could not be loaded when it last changed.")


class LabelsTaken(BaseModel):
    taken: int
    unknown: list[Any] = Field(description="Keys that no row was assessed with, or too long ago.")
    labelled_already: list[Any] = Field(description="Keys whose row has a label.")
    model_updated: bool = Field(description="Whether later intervals or sets follow these labels.")
    note: str | None = Field(description="Why they do not.")


class LabelsSummary(BaseModel):
    """The latest labels of answers with the coverage of the service, up to 500."""

    n_labels: int
    promised: float
    coverage: Number = Field(description="The share that was covered; null for a model without intervals.")
    mean_error: Number = Field(description="Absolute; root mean square over several targets; for classes 0 or 1.")
    rolling: list[float] = Field(description="The share among each 500 in a row, up to the latest.")


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    """A report on whether everything works; the status is 503 where it does not."""

    ready: bool
    store: str | None = Field(description="What is wrong with the store.")
    model: str | None = Field(description="What is wrong with the model's file; the model before it still answers.")


class Reloaded(BaseModel):
    changed: bool
    sha256: str


class ResetDone(BaseModel):
    reset: bool


class Minute(BaseModel):
    requests_per_second: float
    rows_per_second: float
    accepted: Number
    seconds_median: Number
    seconds_99: Number
    bin_seconds: float
    requests: list[float]


class Point(BaseModel):
    id: int
    at: float
    uncertainty: Number
    missed: Number = Field(description="The shortfall, from which novelty follows.")
    log_capital: Number


class Rejected(BaseModel):
    id: int
    at: float
    request: str
    index: int
    answer: dict[str, Any]
    row: dict[str, Any] | None = None
    key: dict[str, Any] | None = None


class Drift(BaseModel):
    alarm: bool
    alarmed_at: int | None
    alarmed_by: str | None = Field(description='The score that raised the alarm: "uncertainty" or "novelty".')
    watched: list[str] = Field(description="The scores that are watched.")
    rows_seen: int
    log_capital: float
    alarm_line: float
    hints: list[str] | None = Field(
        description="Which columns moved, with or without an alarm, by the last rows of the worker that answers; "
        "null where the model's file does not say what they were like."
    )


class StoreState(BaseModel):
    working: bool
    reason: str | None


class Live(BaseModel):
    """The data that the page shows."""

    now: float
    model: str
    store: StoreState
    minute: Minute | None
    points: list[Point]
    rejected: list[Rejected]
    drift: Drift | None
    labels: LabelsSummary | None = Field(description="null before the first label.")


_REASONS = {
    401: "The API key is missing or unknown.",
    403: "The request comes from a page of another site.",
    408: "The request did not arrive in time.",
    409: "The file cannot be loaded; the model before it still answers.",
    413: "The body has too many bytes or rows.",
    415: "The body is of another type.",
    421: "The request names another machine.",
    422: "A column is unknown, missing or wrongly typed, or the body cannot be read.",
    429: "Too many requests from one client.",
    503: "Too much is being worked on; try again.",
    504: "The answer took too long.",
}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of an address: those that all addresses have, and these."""
    return {
        status: {"model": ErrorAnswer, "description": _REASONS[status]} for status in (401, 403, 421, 429, *statuses)
    }


def describe_batch_answers() -> dict[str, Any]:
    """Describe the answers that are not JSON."""
    return {media_type: {"schema": {"type": "string"}} for media_type in (CSV, ARROW)}


_LABEL_KEY: dict[str, Any] = {"type": ["string", "number"], "maxLength": LONGEST_TEXT}
_LABEL_VALUE: dict[str, Any] = {
    "type": ["string", "number", "boolean", "object"],
    "description": "The class or the number; an object with the name of each target if there are several.",
}
_LABEL: dict[str, Any] = {
    "type": "object",
    "properties": {"key": _LABEL_KEY, "value": _LABEL_VALUE},
    "required": ["key", "value"],
    "additionalProperties": False,
}
_LABELS: dict[str, Any] = {
    "type": "object",
    "properties": {"labels": {"type": "array", "minItems": 1, "items": _LABEL}},
    "required": ["labels"],
    "additionalProperties": False,
}
LABELS_BODY: dict[str, Any] = {"required": True, "content": {JSON: {"schema": _LABELS}}}


def build_body_schema(facts: Facts, max_rows: int) -> dict[str, Any]:
    """Build the schema of the body of `POST /v1/assess`."""
    features = {column.name: _build_column_schema(column) for column in facts.features}
    others = {
        column.name: _KEY if column.kind == "key" else _ANYTHING for column in facts.columns if not column.is_feature
    }
    if not facts.as_array:
        others |= {target: _ANYTHING for target in facts.targets if target not in features}
    by_name = {
        "type": "object",
        "properties": others | features,
        "required": list(features),
        "additionalProperties": False,
    }
    in_order = {
        "type": "array",
        "prefixItems": list(features.values()),
        "items": False,
        "minItems": len(features),
        "maxItems": len(features),
    }
    rows = {"type": "array", "items": {"anyOf": [by_name, in_order]}, "minItems": 1, "maxItems": max_rows}
    schema = {"type": "object", "properties": {"rows": rows}, "required": ["rows"], "additionalProperties": False}
    content: dict[str, Any] = {JSON: {"schema": schema}}
    for media_type in MEDIA_TYPES[1:]:
        content[media_type] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": True, "content": content}


_ANYTHING: dict[str, Any] = {"type": ["string", "number", "boolean", "null"]}
_KEY = _ANYTHING | {"maxLength": LONGEST_TEXT, "minimum": -LARGEST, "maximum": LARGEST}


def _build_column_schema(column: Column) -> dict[str, Any]:
    match column.kind:
        case "number":
            types = ["number", "null", *(["string"] if column.written_as_text else [])]
            return {"type": types, "minimum": -LARGEST, "maximum": LARGEST}
        case "boolean":
            return {"type": ["boolean", "null", *(["string"] if column.written_as_text else [])]}
        case "category":
            return {"type": ["string", "null"], "maxLength": LONGEST_TEXT}
        case _:
            schema: dict[str, Any] = {"type": ["string", "null"], "description": "A date or a date with a time."}
            return schema | ({"format": "date"} if column.date_format in (None, "ISO8601") else {})
