"""Write what a client gets: answers as JSON rows, CSV or Arrow, and errors."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onsphere.assessment import Assessment
from onsphere.service.engine import Facts
from onsphere.table.cells import Problem, describe_problems
from onsphere.table.predict import tabulate_assessment

__all__ = [
    "RequestError",
    "answer_rows",
    "encode_json",
    "explain_rejection",
    "reject_problems",
    "send_error",
    "write_arrow",
    "write_csv",
]

_MAX_PROBLEMS = 20  # listed in one answer
_SCORES = (
    *("uncertainty", "novelty", "novelty_p_value"),
    *("confidence", "expected_error", "direction_norm", "anchor_residual"),
)
_NOVEL = 0.5  # above it, novelty is the better part of the uncertainty


def encode_json(values: Any) -> bytes:
    """Return JSON in ASCII, which can hold any text."""
    return json.dumps(values, allow_nan=False, separators=(",", ":")).encode("ascii")


def answer_rows(result: Assessment, facts: Facts) -> list[dict[str, Any]]:
    """Return one object for each row."""
    return [_answer_row(result, facts, index) for index in range(len(result))]


def _answer_row(result: Assessment, facts: Facts, index: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        name: _name_outputs(values, facts.targets, index)
        for name in ("value", "lower", "upper", "sigma", "noise")
        if (values := getattr(result, name)) is not None
    }
    for name in _SCORES:
        values = getattr(result, name)
        if values is not None:
            answer[name] = _to_json_value(values[index])
    if result.probabilities is not None:
        names = result.output_names or ()
        answer["probabilities"] = dict(zip(names, map(_to_json_value, result.probabilities[index]), strict=True))
        if result.prediction_set is not None:
            answer["set"] = [name for name, inside in zip(names, result.prediction_set[index], strict=True) if inside]
    answer["accepted"] = None if result.accepted is None else bool(result.accepted[index])
    answer["reason"] = explain_rejection(result, facts, index)
    return answer


def _name_outputs(values: Any, targets: tuple[str, ...], index: int) -> Any:
    """Return a row's value or, with several outputs, one value for each target."""
    if values.ndim == 1:
        return _to_json_value(values[index])
    return dict(zip(targets, map(_to_json_value, values[index]), strict=True))


def _to_json_value(value: Any) -> Any:
    """Convert a numpy value for JSON; infinity and NaN become null."""
    found = value.item() if hasattr(value, "item") else value
    return None if isinstance(found, float) and not math.isfinite(found) else found


def explain_rejection(result: Assessment, facts: Facts, index: int) -> str | None:
    """Say in a sentence or two why a row was rejected; None where it was not."""
    if result.accepted is None or bool(result.accepted[index]):
        return None
    if not math.isfinite(float(result.uncertainty[index])):
        return "The row lies too far from all that the model has learned from to say anything about it."
    reason = "uncertain" if result.reason is None else str(result.reason[index])
    novelty = None if result.novelty is None else float(result.novelty[index])
    parts: list[str] = []
    if facts.threshold is not None and "uncertain" in reason:
        parts.append(_explain_uncertainty(result, facts.threshold, novelty, index))
    if novelty is not None and "novel" in reason:
        text = f"The novelty {novelty:.3g} is too large"
        if result.novelty_p_value is not None:
            text += f"; {float(result.novelty_p_value[index]):.1%} of the calibration rows were at least as novel"
        parts.append(f"{text}.")
    return " ".join(parts) or None


def _explain_uncertainty(result: Assessment, threshold: float, novelty: float | None, index: int) -> str:
    text = f"The uncertainty {float(result.uncertainty[index]):.4g} is above the threshold {threshold:.4g}"
    if result.confidence is not None:
        text += f"; {float(result.confidence[index]):.1%} of the calibration rows were at least as uncertain"
    if novelty is not None:
        text += (
            ". The row is unlike those that the model has learned from"
            if novelty > _NOVEL
            else ". Rows like this one had different targets, or were predicted badly"
        )
    elif result.direction_norm is not None:
        norm = float(result.direction_norm[index])
        text += (
            ". Rows like this one had different targets, or there were hardly any to learn from"
            if norm < 1
            else ". The model extrapolates: the row is unlike those it has learned from"
        )
    return text + "."


def write_csv(result: Assessment, facts: Facts, keys: dict[str, list[Any]]) -> bytes:
    """Return CSV with the keys of the rows before the answers."""
    import pyarrow.csv as arrow_csv

    out = io.BytesIO()
    arrow_csv.write_csv(_build_table(result, facts, keys), out, arrow_csv.WriteOptions(quoting_style="needed"))
    return out.getvalue()


def write_arrow(result: Assessment, facts: Facts, keys: dict[str, list[Any]]) -> bytes:
    """Return an Arrow stream with the keys of the rows before the answers."""
    import pyarrow as pa

    table, out = _build_table(result, facts, keys), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _build_table(result: Assessment, facts: Facts, keys: dict[str, list[Any]]) -> Any:
    import pyarrow as pa

    answers = {name: np.asarray(values) for name, values in tabulate_assessment(result, facts.targets).items()}
    named = {f"key_{name}" if name in answers else name: _build_key(pa, values) for name, values in keys.items()}
    return pa.table(named | answers)


def _build_key(pa: Any, values: list[Any]) -> Any:
    """Return a key column; as text where JSON had values of several kinds."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else str(value) for value in values])


class RequestError(Exception):
    """A request that cannot be answered with an assessment.

    Parameters
    ----------
    status : int
        The HTTP status.
    detail : str
        A sentence.
    problems : sequence of Problem
    """

    def __init__(self, status: int, detail: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(detail)
        self.status, self.detail, self.problems = status, detail, problems

    def to_json(self) -> bytes:
        """Return the body of the answer."""
        return encode_json({"detail": self.detail, "errors": [problem._asdict() for problem in self.problems]})

    @property
    def headers(self) -> dict[str, str]:
        """The headers that an answer of this status needs."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        return {"retry-after": "1"} if self.status in (429, 503) else {}


async def send_error(error: RequestError, send: Any) -> None:
    """Send an error as JSON, from a layer around the application."""
    body = error.to_json()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def reject_problems(problems: Sequence[Problem]) -> None:
    """Raise a RequestError that lists the first problems and counts the others, if there are any."""
    if problems:
        raise RequestError(422, describe_problems(problems), problems[:_MAX_PROBLEMS])
