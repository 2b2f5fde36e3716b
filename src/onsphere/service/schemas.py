"""Describe requests and answers with pydantic; the rows of a request follow the columns of the model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from onsphere.export.deployed import Facts
from onsphere.table.cells import LARGEST, LONGEST_TEXT
from onsphere.table.columns import Column

Number = float | None
PerOutput = float | dict[str, Number] | None

_Float: TypeAlias = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False, strict=True)]
_Whole: TypeAlias = Annotated[int, Field(ge=-int(LARGEST), le=int(LARGEST), strict=True)]
_Text: TypeAlias = Annotated[str, Field(max_length=LONGEST_TEXT, strict=True)]
_Boolean: TypeAlias = Annotated[bool, Field(strict=True)]
_Key: TypeAlias = _Text | _Boolean | _Whole | _Float | None
_Anything: TypeAlias = str | bool | float | None

_STRICT = ConfigDict(extra="forbid", strict=True)


def build_body_model(facts: Facts, max_rows: int) -> TypeAdapter[Any]:
    """Make the model of {"rows": […]} from the columns of a model; a row is an object, or a list of its features."""
    features = {column.name: _choose_type(column) for column in facts.features}
    others = {column.name: _Key if column.kind == "key" else _Anything for column in facts.columns}
    others |= dict.fromkeys(() if facts.as_array else facts.targets, _Anything)
    fields = {name: NotRequired[kind] for name, kind in others.items() if name not in features} | features
    by_name: Any = TypedDict("Row", fields)  # type: ignore[reportArgumentType]
    by_name.__pydantic_config__ = _STRICT
    in_order: Any = tuple[tuple(features.values())]  # type: ignore[reportInvalidTypeForm]
    rows: Any = Annotated[list[by_name | in_order], Field(min_length=1, max_length=max_rows)]
    body: Any = TypedDict("Rows", {"rows": rows})  # type: ignore[reportGeneralTypeIssues]
    body.__pydantic_config__ = _STRICT
    return TypeAdapter(body)


def _choose_type(column: Column) -> Any:
    kinds: dict[str, Any] = {"number": _Float, "boolean": _Boolean, "category": _Text}
    if column.kind in kinds:
        return kinds[column.kind] | (_Text if column.written_as_text else None) | None
    day: Any = {"format": "date"} if column.date_format in (None, "ISO8601") else {}
    about = Field(max_length=LONGEST_TEXT, description="A date, or a date with a time.", json_schema_extra=day)
    date: Any = Annotated[str, about]
    return date | None


def _check_step(coverage: float) -> float:
    """Reject what is a step but for rounding: each coverage is followed for good once labels come."""
    if coverage != round(coverage, 3):
        raise ValueError("Input should be a multiple of 0.005")
    return coverage


class Options(BaseModel):
    """Options of a request beside its rows."""

    model_config = ConfigDict(extra="forbid")
    coverage: Annotated[float, Field(ge=0.005, le=0.995, multiple_of=0.005), AfterValidator(_check_step)] | None = (
        Field(default=None, description="The coverage of intervals or sets, in steps of 0.005.")
    )
    key: str | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_TEXT,
        description="The column that names rows, for POST /v1/labels.",
    )
    record: bool = Field(default=True, description="Whether to store the answer and count it for drift.")


NO_OPTIONS = Options()


class ErrorAt(BaseModel):
    column: str | None = Field(description="Null where it is the whole row or request.")
    row: int | None = Field(description="Counted from 0; null where it is all of them.")
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
    noise: PerOutput = Field(None, description="How far similar rows disagree, in the target's unit; classes: 0 to 1.")
    novelty: Number = Field(None, description="How unlike all training rows the row is: 0 for most of them, at most 1.")
    novelty_p_value: Number = Field(None, description="The share of calibration rows that were at least as novel.")
    confidence: Number = Field(None, description="The share of calibration rows that were at least as uncertain.")
    expected_error: Number = None
    direction_norm: Number = None
    anchor_residual: Number = None
    probabilities: dict[str, Number] | None = None
    set: list[str] | None = Field(None, description="The classes that hold the true one with the requested coverage.")
    accepted: bool | None = Field(description="Whether to trust the row; null where the model has no threshold.")
    reason: str | None = Field(description="Why it was rejected: for its uncertainty, for its novelty, or for both.")


class Answers(BaseModel):
    """The answers for the rows of a request, in their order."""

    model: str = Field(description="SHA-256 of the model's file.")
    coverage: float
    recorded: bool = Field(description="Whether this was stored, and seen by the drift monitor, before it was sent.")
    rows: list[Answer]


class Label(BaseModel):
    """The true value of a row, or its class."""

    model_config = ConfigDict(extra="forbid")
    key: _Text | float
    value: str | float | bool | dict[str, float] = Field(
        description="The class or the number; an object with the name of each target if there are several."
    )


class Labels(BaseModel):
    """The labels of some rows that were assessed with key=."""

    model_config = ConfigDict(extra="forbid")
    labels: list[Label] = Field(min_length=1)


class LabelsTaken(BaseModel):
    taken: int
    unknown: list[Any] = Field(description="Keys that no row was assessed with, or too long ago.")
    labelled_already: list[Any] = Field(description="Keys whose row has a label.")
    model_updated: bool = Field(description="Whether later intervals or sets follow these labels.")
    note: str | None = Field(description="Why they do not.")


class ModelFacts(BaseModel):
    """The model that is served."""

    model_config = ConfigDict(extra="allow")
    name: str
    sha256: str
    task: str
    targets: list[str]
    columns: list[dict[str, Any]] = Field(description="Of each: name, kind, note, required, and known levels.")
    coverage: float
    threshold: Number = Field(description="The largest uncertainty that is accepted.")
    calibration_band: dict[str, float] | None = Field(description="Quantiles of uncertainties: 5 %, 50 % and 95 %.")
    novelty_threshold: Number = Field(description="The largest shortfall that is accepted, from which novelty follows.")
    novelty_band: dict[str, float] | None = Field(description="Quantiles of shortfalls, as of uncertainties.")
    calibrated_by: Literal["held-out rows", "cross-validation"] | None
    classes: list[Any] | None
    loaded_at: float
    reload_trouble: str | None = Field(description="Why the file could not be loaded when it last changed.")


class Readiness(BaseModel):
    """A report on whether everything works; the status is 503 where it does not. Reasons are for those with a key."""

    ready: bool
    store: str | None = Field(None, description="What is wrong with the store.")
    model: str | None = Field(None, description="What is wrong with the model's file; the one before it answers.")
    process: str | None = Field(None, description="Why the model does not answer at the moment.")


class Minute(BaseModel):
    requests_per_second: float = Field(description="Over the last ten seconds, as are rows.")
    rows_per_second: float
    accepted: Number
    seconds_median: Number = Field(description="From the arrival of a request until its answer is stored.")
    seconds_99: Number
    bin_seconds: float
    requests: list[float]


class Drift(BaseModel):
    alarm: bool
    alarmed_at: int | None = Field(description="The number of the row that raised the alarm.")
    alarmed_by: str | None = Field(description='The score that raised the alarm: "uncertainty" or "novelty".')
    alarm_time: Number = Field(description="In seconds since 1970.")
    watched: list[str] = Field(description="The scores that are watched.")
    rows_seen: int
    log_capital: float
    alarm_line: float
    hints: list[str] | None = Field(description="Columns that moved, by the last rows of one worker; null if unknown.")
    outside: list[str] | None = Field(description="Columns with values beyond all of training; null if unknown.")


class LabelsSummary(BaseModel):
    """The latest labels of answers with the coverage of the service, up to 500."""

    n_labels: int
    promised: float
    coverage: Number = Field(description="The share that was covered; null for a model without intervals.")
    mean_error: Number = Field(description="Absolute; root mean square over several targets; for classes 0 or 1.")
    rolling: list[float] = Field(description="The share among each 500 in a row, up to the latest.")


class Live(BaseModel):
    """The data that the page shows."""

    now: float
    model: str
    store: dict[str, bool | str | None] = Field(description="Whether it is working, and the reason if not.")
    process: str | None = Field(description="Why the model does not answer at the moment.")
    minute: Minute | None
    points: list[dict[str, Number]] = Field(description="Of each request: id, at, uncertainty, missed, log_capital.")
    rejected: list[dict[str, Any]] = Field(description="The latest rejected rows, with answer, row and key.")
    drift: Drift | None
    labels: LabelsSummary | None = Field(description="null before the first label.")


_REASONS = {
    400: "The request is not HTTP that can be read in one way only.",
    401: "The API key is missing or unknown.",
    403: "The key may not do this, or the request comes from a page of another site or without TLS.",
    408: "The request did not arrive in time.",
    409: "The file cannot be loaded; the model before it still answers.",
    413: "The body has too many bytes or rows.",
    415: "The body is of another type.",
    421: "The request names another machine.",
    422: "A column is unknown, missing or wrongly typed, or the body cannot be read.",
    503: "Too much is being worked on, or the store does not work; try again.",
    504: "The answer took too long.",
}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of an address: those that all addresses have, and these."""
    every = (400, 401, 403, 421, *statuses)
    return {status: {"model": ErrorAnswer, "description": _REASONS[status]} for status in every}
