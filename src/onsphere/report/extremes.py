"""The rows that a threshold got most wrong: the worst that were accepted, and the best that were rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere.report.judged import Judged
from onsphere.report.parts import Section, Table, aligned, clean, download, percent
from onsphere.sphere.embedding import as_columns

__all__ = ["extremes"]

MOST_ROWS, MOST_OUTPUTS = 10, 4
# Features that are shown beside a row, and those in the CSV file.
MOST_FEATURES, MOST_FEATURES_IN_FILE = 4, 100


def extremes(rows: Judged, feature_names: list[str]) -> Section:
    """Two tables; of the features, those named first are shown, and more are in the CSV file."""
    title, accepted = "Worst accepted, best rejected", rows.answer.accepted
    if accepted is None:
        text = (
            "The model has no threshold, so it neither accepts nor rejects rows. Set one, for example "
            "model.set_threshold(AcceptShare(0.95)), to see here what it would have let through."
        )
        return Section("extremes", title, [text], [], [])
    # Of equal errors, a wrong answer is the worse the more certain it is, and a right one the better.
    order = np.lexsort((rows.answer.uncertainty, -rows.error))
    worst, best = order[accepted[order]], order[~accepted[order]][::-1]
    if rows.is_class:
        worst, best = worst[rows.error[worst] > 0], best[rows.error[best] == 0]
    wrong, right = ("wrong rows", "right rows") if rows.is_class else ("rows", "rows")
    captions = ("Worst accepted: the largest errors.", "Best rejected: the smallest errors.")
    if rows.is_class:
        captions = ("Worst accepted: wrong, the surest first.", "Best rejected: right, the least sure first.")
    lead = (
        "Look at these rows first: what was trusted and should not have been, and what was rejected for nothing. They "
        "show errors in the data as often as limits of the model."
    )
    nothing = [text for found, text in ((worst, f"No {wrong} were accepted."), (best, f"No {right} were rejected."))
               if len(found) == 0]  # fmt: skip
    tables = [
        _table(rows, chosen[:MOST_ROWS], feature_names, caption=caption, name=name)
        for chosen, caption, name in zip((worst, best), captions, ("worst-accepted", "best-rejected"), strict=True)
        if len(chosen)
    ]
    return Section("extremes", title, [lead, *nothing], [], tables)


def _table(rows: Judged, chosen: NDArray[np.intp], feature_names: list[str], *, caption: str, name: str) -> Table:
    said = _said_classes(rows, chosen) if rows.is_class else _said_numbers(rows, chosen)
    places = [str(each) for each in rows.frame.columns]
    features = {
        feature: _as_read(rows.frame.iloc[chosen, places.index(feature)])
        for feature in feature_names[:MOST_FEATURES_IN_FILE]
    }
    columns = {"row": rows.row_names[chosen].tolist(), **said, "confidence": rows.confidence[chosen].tolist()}
    shown = [(title, _told(title, values), _are_numbers(values)) for title, values in columns.items()]
    shown += [(key, _told(key, features[key]), _are_numbers(features[key])) for key in feature_names[:MOST_FEATURES]]
    in_file = columns | {f"feature {title}": values for title, values in features.items()}
    return Table(
        caption=caption,
        columns=[clean(title, longest=24) for title, _, _ in shown],
        rows=[list(line) for line in zip(*(told for _, told, _ in shown), strict=True)],
        is_number=[is_number for _, _, is_number in shown],
        download=download(name, in_file),
    )


def _as_read(column: Any) -> list[Any]:
    """The values of a column: None where text or a date is missing, and days alone where no date has a time."""
    missing = column.isna()
    if column.dtype.kind == "M":
        known = column[~missing]
        column = column.dt.strftime("%Y-%m-%d" if (known == known.dt.normalize()).all() else "%Y-%m-%d %H:%M:%S")
    values = column.tolist()
    if _are_numbers(values):
        return values
    return [None if gone else value for value, gone in zip(values, missing, strict=True)]


def _said_classes(rows: Judged, chosen: NDArray[np.intp]) -> dict[str, list[Any]]:
    return {
        "truth": [str(label) for label in rows.target[chosen].tolist()],
        "prediction": [str(label) for label in rows.answer.value[chosen].tolist()],
        "probability": np.asarray(rows.answer.probabilities).max(axis=1)[chosen].tolist(),
    }


def _said_numbers(rows: Judged, chosen: NDArray[np.intp]) -> dict[str, list[Any]]:
    answer = rows.answer
    value, lower, upper = (as_columns(np.asarray(each))[chosen] for each in (answer.value, answer.lower, answer.upper))
    truth = rows.target[chosen]
    if len(rows.output_names) == 1:
        ends = {"truth": truth, "prediction": value, "lower": lower, "upper": upper}
        said = {title: column[:, 0].tolist() for title, column in ends.items()}
    else:
        said = {
            f"{title} {name}": column[:, output].tolist()
            for output, name in enumerate(rows.output_names[:MOST_OUTPUTS])
            for title, column in (("truth", truth), ("prediction", value))
        }
    return said | {"error": rows.error[chosen].tolist()}


def _told(title: str, values: list[Any]) -> list[str]:
    if not _are_numbers(values):
        return ["–" if value is None else clean(value, longest=32) for value in values]
    if title == "probability":
        return [percent(value) for value in values]
    return [f"{value:.2f}" for value in values] if title == "confidence" else aligned(values)


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, float | int) and not isinstance(value, bool) for value in values)
