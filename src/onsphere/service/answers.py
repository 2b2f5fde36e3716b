"""Write what a client gets: answers as JSON rows, CSV or Arrow, and errors."""

from __future__ import annotations

import io
import math
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic_core import to_json
from starlette.responses import Response

from onsphere.assessment import Assessment
from onsphere.export.deployed import Facts
from onsphere.table.cells import Problem, describe_problems
from onsphere.table.predict import tabulate_assessment

_MAX_PROBLEMS = 20  # listed in one answer
_SHOWN = (
    *("value", "lower", "upper", "sigma", "noise", "uncertainty", "novelty", "novelty_p_value"),
    *("confidence", "expected_error", "direction_norm", "anchor_residual"),
)
_NOVEL = 0.5  # above it, novelty is the better part of the uncertainty
_FORMULA = re.compile(r"^(?=[=+\-@\t\r\n＝＋－＠])")  # how a formula begins in a spreadsheet


def encode_json(values: Any) -> bytes:
    """Return JSON; infinity and NaN become null."""
    return to_json(values, inf_nan_mode="null")


def answer_rows(result: Assessment, facts: Facts) -> list[dict[str, Any]]:
    """Return one object for each row; `encode_json` writes it."""
    parts: dict[str, list[Any]] = {}
    for name in _SHOWN:
        values = getattr(result, name)
        if values is not None:
            parts[name] = values.tolist()
            if values.ndim == 2:
                parts[name] = [dict(zip(facts.targets, row, strict=True)) for row in parts[name]]
    if result.probabilities is not None:
        names = result.output_names or ()
        parts["probabilities"] = [dict(zip(names, row, strict=True)) for row in result.probabilities.tolist()]
        if result.prediction_set is not None:
            inside = result.prediction_set.tolist()
            parts["set"] = [[name for name, is_in in zip(names, row, strict=True) if is_in] for row in inside]
    n_rows = len(result)
    parts["accepted"] = [None] * n_rows if result.accepted is None else result.accepted.tolist()
    parts["reason"] = [
        _explain_rejection(result, facts, index) if accepted is False else None
        for index, accepted in enumerate(parts["accepted"])
    ]
    names = tuple(parts)
    return [dict(zip(names, row, strict=True)) for row in zip(*parts.values(), strict=True)]


def _explain_rejection(result: Assessment, facts: Facts, index: int) -> str | None:
    """Say in a sentence or two why a row was rejected."""
    if not math.isfinite(float(result.uncertainty[index])):
        return "The row lies too far from all that the model has learned from to say anything about it."
    reason = "uncertain" if result.reason is None else str(result.reason[index])
    parts: list[str] = []
    if facts.threshold is not None and "uncertain" in reason:
        text = f"The uncertainty {float(result.uncertainty[index]):.4g} is above the threshold {facts.threshold:.4g}"
        if result.confidence is not None:
            text += f"; {float(result.confidence[index]):.1%} of the calibration rows were at least as uncertain"
        parts += [text, *([] if "novel" in reason else _explain_uncertainty(result, index))]
    if "novel" in reason:
        text = "The row is too unlike those that the model has learned from"
        if result.missed is not None and facts.novelty_threshold is not None:
            # Not the novelty, which is 0 for a row that is ordinary but beyond what the rule accepts.
            shortfall = f"{float(result.missed[index]):.4g}"
            text += f": its shortfall {shortfall} is above the threshold {facts.novelty_threshold:.4g}"
        if result.novelty_p_value is not None:
            text += f"; {float(result.novelty_p_value[index]):.1%} of the calibration rows were at least as novel"
        parts.append(text)
    return " ".join(f"{part}." for part in parts) or None


def _explain_uncertainty(result: Assessment, index: int) -> list[str]:
    """Say where the uncertainty comes from, if the scores tell."""
    if result.novelty is not None:
        if float(result.novelty[index]) > _NOVEL:
            return ["The row is unlike those that the model has learned from"]
        return ["Rows like this one had different targets, or were predicted badly"]
    if result.direction_norm is None:
        return []
    if float(result.direction_norm[index]) < 1:
        return ["Rows like this one had different targets, or there were hardly any to learn from"]
    return ["The model extrapolates: the row is unlike those it has learned from"]


def write_csv(result: Assessment, facts: Facts, keys: dict[str, list[Any]]) -> bytes:
    """Return CSV with the keys of the rows before the answers; no cell is a formula to a spreadsheet."""
    import pyarrow.csv as arrow_csv

    table, out = _build_table(result, facts, keys, escape=lambda text: _FORMULA.sub("'", text)), io.BytesIO()
    arrow_csv.write_csv(table, out, arrow_csv.WriteOptions(quoting_style="needed"))
    return out.getvalue()


def write_arrow(result: Assessment, facts: Facts, keys: dict[str, list[Any]]) -> bytes:
    """Return an Arrow stream with the keys of the rows before the answers."""
    import pyarrow as pa

    table, out = _build_table(result, facts, keys), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _build_table(result: Assessment, facts: Facts, keys: dict[str, list[Any]], *, escape: Any = str) -> Any:
    import pyarrow as pa

    answers = {name: np.asarray(values) for name, values in tabulate_assessment(result, facts.targets).items()}
    named = {f"key_{name}" if name in answers else name: values for name, values in keys.items()}
    columns: dict[str, Any] = {}
    for name, values in (named | answers).items():
        if isinstance(values, list) or values.dtype.kind in "OU":
            values = [escape(value) if isinstance(value, str) else value for value in values]
        try:
            columns[escape(name)] = pa.array(values)
        except (pa.ArrowException, OverflowError):  # JSON may have keys of several kinds
            columns[escape(name)] = pa.array([None if value is None else str(value) for value in values])
    return pa.table(columns)


class ServiceError(Exception):
    """An error that goes from one process to another as it is."""


class StoreError(ServiceError):
    """The database failed; the message says why."""


class RequestError(ServiceError):
    """A request that cannot be answered with an assessment: the HTTP status, a sentence, and the problems of cells."""

    def __init__(self, status: int, detail: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(status, detail, problems)
        self.status, self.detail, self.problems = status, detail, problems

    def to_response(self, headers: Mapping[str, str] | None = None) -> Response:
        """Return the answer, with headers beside those that its status needs."""
        needed = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}.get(self.status, {})
        body = encode_json({"detail": self.detail, "errors": [problem._asdict() for problem in self.problems]})
        return Response(body, self.status, headers={**needed, **(headers or {})}, media_type="application/json")


class FaultError(ServiceError):
    """An error in a child process that should not happen: its type and its place, for the logs, and what it says."""

    def __init__(self, name: str, place: str, message: str) -> None:
        super().__init__(name, place, message)
        self.name, self.place = name, place

    def __str__(self) -> str:
        return f"{self.name}: {self.args[2]}"


def find_place(error: Exception) -> str:
    """Return the file and the line where an error was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


def make_problem_error(problems: Sequence[Problem]) -> RequestError:
    """Make a RequestError that lists the first problems and counts the others."""
    return RequestError(422, describe_problems(problems), problems[:_MAX_PROBLEMS])


def reject_problems(problems: Sequence[Problem]) -> None:
    """Raise a RequestError if there are problems."""
    if problems:
        raise make_problem_error(problems)
