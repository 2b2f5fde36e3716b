"""The rows that a threshold got most wrong: the worst that were accepted, and the best that were rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere.report.elements import Section, Table, are_numbers, make_table
from onsphere.report.formatting import choose_number_format, format_percent, shorten
from onsphere.report.measured_rows import MeasuredRows

__all__ = ["show_extreme_rows"]

MOST_ROWS, MOST_OUTPUTS = 10, 4
# How many features of a row are shown in the table, and how many are in the CSV file.
MOST_FEATURES, MOST_FEATURES_IN_FILE = 4, 100


def show_extreme_rows(rows: MeasuredRows, feature_names: list[str]) -> Section:
    """Return two tables of rows; the features that are named first are shown, and more are in the CSV file."""
    title, accepted = "Worst accepted, best rejected", rows.assessment.accepted
    if accepted is None:
        text = (
            "The model has no threshold, so it neither accepts nor rejects rows. Set one, for example "
            "model.set_threshold(AcceptShare(0.95)), to see here what it would have let through."
        )
        return Section("extremes", title, [text])
    # Among equal errors, a wrong row is worse and a right row is better the surer the model was.
    order = np.lexsort((rows.assessment.uncertainty, -rows.error))
    worst, best = order[accepted[order]], order[~accepted[order]][::-1]
    empty = ("No rows were accepted.", "No rows were rejected.")
    captions = ("Worst accepted: the largest errors.", "Best rejected: the smallest errors.")
    if rows.is_class:
        worst, best = worst[rows.error[worst] > 0], best[rows.error[best] == 0]
        empty = ("No wrong rows were accepted.", "No right rows were rejected.")
        captions = ("Worst accepted: wrong, the surest first.", "Best rejected: right, the least sure first.")
    paragraphs = [
        "Look at these rows first: rows that were accepted in spite of a large error, and rows that were rejected in "
        "spite of a small one. They reveal errors in the data as often as limits of the model."
    ]
    paragraphs += [text for chosen, text in zip((worst, best), empty, strict=True) if len(chosen) == 0]
    tables = [
        _make_table(rows, chosen[:MOST_ROWS], feature_names, caption=caption, name=name)
        for chosen, caption, name in zip((worst, best), captions, ("worst-accepted", "best-rejected"), strict=True)
        if len(chosen)
    ]
    return Section("extremes", title, paragraphs, tables=tables)


def _make_table(
    rows: MeasuredRows, chosen: NDArray[np.intp], feature_names: list[str], *, caption: str, name: str
) -> Table:
    predictions = _list_classes(rows, chosen) if rows.is_class else _list_numbers(rows, chosen)
    columns = {"row": rows.row_names[chosen].tolist(), **predictions, "confidence": rows.confidence[chosen].tolist()}
    if name == "best-rejected" and rows.limits_novelty:
        columns["reason"] = np.asarray(rows.assessment.reason)[chosen].tolist()
    places = {str(each): place for place, each in reversed(list(enumerate(rows.frame.columns)))}
    features = {
        feature: _list_values(rows.frame.iloc[chosen, places[feature]])
        for feature in feature_names[:MOST_FEATURES_IN_FILE]
    }
    shown = [*columns.items(), *((feature, features[feature]) for feature in feature_names[:MOST_FEATURES])]
    return make_table(
        name,
        caption,
        [(title, values, _choose_format(title, values)) for title, values in shown],
        file_columns=columns | {f"feature {feature}": values for feature, values in features.items()},
    )


def _list_values(column: Any) -> list[Any]:
    """Return the values of a column: None where text or a date is missing, and only the day if no date has a time."""
    missing = column.isna()
    if column.dtype.kind == "M":
        dates = column[~missing]
        column = column.dt.strftime("%Y-%m-%d" if (dates == dates.dt.normalize()).all() else "%Y-%m-%d %H:%M:%S")
    values = column.tolist()
    if are_numbers(values):
        return values
    return [None if is_missing else value for value, is_missing in zip(values, missing, strict=True)]


def _list_classes(rows: MeasuredRows, chosen: NDArray[np.intp]) -> dict[str, list[Any]]:
    return {
        "truth": [str(label) for label in rows.target[chosen].tolist()],
        "prediction": [str(label) for label in rows.assessment.value[chosen].tolist()],
        "probability": np.asarray(rows.assessment.probabilities).max(axis=1)[chosen].tolist(),
    }


def _list_numbers(rows: MeasuredRows, chosen: NDArray[np.intp]) -> dict[str, list[Any]]:
    truth, (value, lower, upper) = rows.target, rows.intervals
    if len(rows.output_names) == 1:
        columns = {"truth": truth[:, 0], "prediction": value[:, 0], "lower": lower[:, 0], "upper": upper[:, 0]}
    else:
        columns = {
            f"{title} {name}": numbers[:, output]
            for output, name in enumerate(rows.output_names[:MOST_OUTPUTS])
            for title, numbers in (("truth", truth), ("prediction", value))
        }
    return {title: numbers[chosen].tolist() for title, numbers in (columns | {"error": rows.error}).items()}


def _choose_format(title: str, values: list[Any]) -> Callable[[Any], str]:
    if not are_numbers(values):
        return lambda value: "–" if value is None else shorten(value, longest=32)
    if title == "probability":
        return format_percent
    return "{:.2f}".format if title == "confidence" else choose_number_format(values)
