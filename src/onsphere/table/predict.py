"""A file in, a file with predictions out, in batches: memory stays the same however long the file is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onsphere._internal.validation import check_number
from onsphere.table.cells import read_features
from onsphere.table.columns import Column
from onsphere.table.files import read_batches, table_writer, to_frame

__all__ = ["answer_columns", "predict_file"]


def predict_file(
    model: Any,
    columns: Sequence[Column],
    path: str | Path,
    out: str | Path,
    *,
    targets: Sequence[str] = ("value",),
    coverage: float = 0.9,
    delimiter: str | None = None,
    report: Callable[[int], None] = lambda n_rows: None,
) -> dict[str, int]:
    """Assess every row of a file.

    The output has the key columns of the input (where there are none, the number of each row, counted from 0), then
    value, uncertainty, lower and upper (for classes the set, its members parted by |), confidence and accepted. A key
    that is called like one of these is written as key_NAME.

    Parameters
    ----------
    model : fitted model of `fit_table`
    columns : sequence of Column
        Of the table that it was fitted on.
    path, out : paths
    targets : sequence of str
        With several, value, lower and upper become value_NAME and so on.
    coverage : float in (0, 1), default 0.9
    delimiter : str, optional
        Of a CSV file.
    report : function of an int, optional
        Told how many rows are done.

    Returns
    -------
    dict
        How many rows there were, and how many were accepted.
    """
    check_number("predict_file", "coverage", coverage, above=0, below=1)
    wanted = [column for column in columns if column.is_feature or column.kind == "key"]
    features = [column.name for column in wanted if column.is_feature]
    n_rows = n_accepted = 0
    with table_writer(out) as writer:
        for table in read_batches(path, wanted, delimiter=delimiter):
            frame = to_frame(table.select(features))
            frame.index += n_rows
            result = model.assess(read_features(frame, wanted), coverage=coverage)
            answers = answer_columns(result, targets)
            keys = [name for name in table.column_names if name not in features]
            # As they were in the file, and not by way of pandas, where whole numbers turn into floats.
            named = {f"key_{name}" if name in answers else name: table[name] for name in keys}
            writer.add((named or {"row": np.asarray(frame.index)}) | answers)
            n_rows += len(frame)
            n_accepted += 0 if result.accepted is None else int(result.accepted.sum())
            report(n_rows)
    return {"rows": n_rows, "accepted": n_accepted}


def answer_columns(result: Any, targets: Sequence[str]) -> dict[str, Any]:
    """The columns of an assessment that are written."""
    table: dict[str, Any] = _spread("value", result.value, targets)
    if result.probabilities is not None:
        table["probability"] = result.probabilities.max(axis=1)
    table["uncertainty"] = result.uncertainty
    if result.prediction_set is not None:
        names = np.asarray(result.output_names, dtype=object)
        table["set"] = ["|".join(names[members]) for members in result.prediction_set]
    if result.lower is not None:
        table |= _spread("lower", result.lower, targets) | _spread("upper", result.upper, targets)
    return table | {
        name: getattr(result, name) for name in ("confidence", "accepted") if getattr(result, name) is not None
    }


def _spread(name: str, values: Any, targets: Sequence[str]) -> dict[str, Any]:
    if values.ndim == 1:
        return {name: values}
    return {f"{name}_{target}": column for target, column in zip(targets, values.T, strict=True)}
