"""What the service answers, for OpenAPI."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

__all__ = ["Answer", "Answers", "ErrorAnswer", "Health", "Live", "ModelFacts", "Readiness", "Reloaded", "ResetDone"]

Number = float | None
PerOutput = float | dict[str, Number] | None


class ErrorAt(BaseModel):
    """One thing that is wrong with a request."""

    column: str | None = Field(description="Which column; null where it is the whole row or request.")
    row: int | None = Field(description="Which row, counted from 0; null where it is all of them.")
    expected: str
    got: str


class ErrorAnswer(BaseModel):
    """Why a request was not answered."""

    detail: str = Field(description="A sentence: what was expected, what came, what to do.")
    errors: list[ErrorAt]


class Answer(BaseModel):
    """What the model says about one row; null where it cannot."""

    value: float | int | bool | str | dict[str, Number] | None = Field(description="The prediction; several by name.")
    uncertainty: Number = Field(description="Higher means less trustworthy; null where it is infinite.")
    lower: PerOutput = None
    upper: PerOutput = None
    sigma: PerOutput = Field(None, description="Standard deviation of the noise, in the unit of the target.")
    confidence: Number = Field(None, description="The share of calibration rows that were at least as uncertain.")
    expected_error: Number = None
    direction_norm: Number = None
    anchor_residual: Number = None
    probabilities: dict[str, Number] | None = None
    set: list[str] | None = Field(None, description="The classes that hold the true one with the coverage asked for.")
    accepted: bool | None = Field(description="Whether to trust the row; null where the model has no threshold.")
    reason: str | None = Field(description="Why it was rejected.")


class Answers(BaseModel):
    """What the model says about each row of a request, in their order."""

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
    """Uncertainties of the calibration rows: of 5 %, half and 95 % of them at most this."""

    low: float
    middle: float
    high: float


class ModelFacts(BaseModel):
    """What is served."""

    name: str
    sha256: str
    kind: str
    model: str
    task: str
    targets: list[str]
    columns: list[ModelColumn]
    coverage: float
    threshold: Number
    calibration_band: Band | None
    calibration_rows: int | None
    calibrated_by: str | None = Field(
        description='"held-out rows" or "cross-validation", after which a false alarm is more likely than alpha.'
    )
    classes: list[Any] | None
    rule: str | None
    backbone: str | None
    figures: dict[str, Any]
    onsphere: str
    libraries: dict[str, str]
    notes: list[str]
    loaded_at: float
    reload_trouble: str | None = Field(description="Why the file could not be loaded when it last changed.")


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    """Whether everything works; the status is 503 where something does not."""

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
    """What the page shows."""

    now: float
    model: str
    store: StoreState
    minute: Minute | None
    points: list[Point]
    rejected: list[Rejected]
    drift: Drift | None
