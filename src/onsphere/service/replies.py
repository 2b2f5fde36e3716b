"""An assessment as a client gets it: JSON rows, CSV or Arrow."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np

from onsphere.assessment import Assessment
from onsphere.service.engine import Facts
from onsphere.service.rows import Batch
from onsphere.table.predict import answer_columns

__all__ = ["answer_rows", "arrow_of", "csv_of", "json_of", "reason"]

_BESIDE = ("uncertainty", "confidence", "expected_error", "direction_norm", "anchor_residual")


def answer_rows(result: Assessment, facts: Facts) -> list[dict[str, Any]]:
    """One object for each row."""
    return [_answer(result, facts, index) for index in range(len(result))]


def _answer(result: Assessment, facts: Facts, index: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        name: _of_outputs(getattr(result, name), facts.targets, index)
        for name in ("value", "lower", "upper", "sigma")
        if getattr(result, name) is not None
    }
    for name in _BESIDE:
        values = getattr(result, name)
        if values is not None:
            answer[name] = _plain(values[index])
    if result.probabilities is not None:
        names = result.output_names or ()
        answer["probabilities"] = dict(zip(names, map(_plain, result.probabilities[index]), strict=True))
        if result.prediction_set is not None:
            answer["set"] = [name for name, inside in zip(names, result.prediction_set[index], strict=True) if inside]
    answer["accepted"] = None if result.accepted is None else bool(result.accepted[index])
    answer["reason"] = reason(result, facts, index)
    return answer


def _of_outputs(values: Any, targets: tuple[str, ...], index: int) -> Any:
    """A plain value or, for several outputs, one for each by its name."""
    if values.ndim == 1:
        return _plain(values[index])
    return dict(zip(targets, map(_plain, values[index]), strict=True))


def reason(result: Assessment, facts: Facts, index: int) -> str | None:
    """Why a row was rejected, in a sentence; None where it was not."""
    if result.accepted is None or facts.threshold is None or bool(result.accepted[index]):
        return None
    uncertainty = float(result.uncertainty[index])
    if not math.isfinite(uncertainty):
        return "The row lies too far from all that the model has learned from to say anything about it."
    told = f"The uncertainty {uncertainty:.4g} is above the threshold {facts.threshold:.4g}"
    if result.confidence is not None:
        told += f"; {float(result.confidence[index]):.1%} of the calibration rows were at least as uncertain"
    if result.direction_norm is not None:
        norm = float(result.direction_norm[index])
        told += (
            ". Rows like this one had different targets, or there were hardly any to learn from"
            if norm < 1
            else ". The model extrapolates: the row is unlike those it has learned from"
        )
    return told + "."


def _plain(value: Any) -> Any:
    """A value of numpy as JSON can say it; what is not finite is null."""
    found = value.item() if hasattr(value, "item") else value
    return None if isinstance(found, float) and not math.isfinite(found) else found


def json_of(values: Any) -> bytes:
    """JSON in ASCII, which any text can be written in, whatever it holds."""
    return json.dumps(values, allow_nan=False, separators=(",", ":")).encode("ascii")


def _table(result: Assessment, facts: Facts, batch: Batch) -> Any:
    import pyarrow as pa

    answers = {name: np.asarray(values) for name, values in answer_columns(result, facts.targets).items()}
    keys = {f"key_{name}" if name in answers else name: _key(pa, values) for name, values in batch.keys.items()}
    return pa.table(keys | answers)


def _key(pa: Any, values: list[Any]) -> Any:
    """What names the rows as one column; as text where the values are of several kinds, as JSON allows."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else str(value) for value in values])


def csv_of(result: Assessment, facts: Facts, batch: Batch) -> bytes:
    """CSV with the keys of the rows before the answers."""
    import pyarrow.csv as arrow_csv

    out = io.BytesIO()
    arrow_csv.write_csv(_table(result, facts, batch), out, arrow_csv.WriteOptions(quoting_style="needed"))
    return out.getvalue()


def arrow_of(result: Assessment, facts: Facts, batch: Batch) -> bytes:
    """The same as an Arrow stream."""
    import pyarrow as pa

    table, out = _table(result, facts, batch), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()
