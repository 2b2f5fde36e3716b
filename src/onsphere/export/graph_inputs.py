"""The inputs of a graph: one table of numbers, or the raw columns of a table, which the graph encodes itself.

Each input is described in the metadata by a dict of its name, its kind and what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, is_frame
from onsphere.drift.reference import MISSING, OTHER, is_reference
from onsphere.errors import InvalidInputError
from onsphere.export.graph_arrays import ROWS, GraphArray, concat
from onsphere.export.graph_builder import GraphBuilder
from onsphere.table.cells import import_pandas, raise_problems, read_cells
from onsphere.table.columns import Column
from onsphere.table.encoder import DAY, YEAR, TableEncoder

__all__ = ["Inputs", "add_column_inputs", "add_table_input", "draw_rows", "prepare_inputs"]

Inputs = list[dict[str, Any]]

_FLOAT, _TEXT = np.dtype(np.float64), np.dtype(np.str_)
_N_DRAWN = 1_000
_SHARE = 0.05  # of values that are missing, and of categories that are unknown, at least


def add_table_input(graph: GraphBuilder, n_features: int, names: Any) -> tuple[GraphArray, Inputs]:
    """Add one input for all features, and describe it."""
    name = graph.add_input("X", _FLOAT, n_features)
    columns = None if names is None else [str(each) for each in names]
    return GraphArray(graph, name, (ROWS, n_features)), [{"name": name, "kind": "table", "columns": columns}]


def add_column_inputs(graph: GraphBuilder, encoder: TableEncoder) -> tuple[GraphArray, Inputs]:
    """Add one input for each column that a TableEncoder reads, describe them, and encode them.

    Numbers and booleans come as float64 with NaN for missing, categories as text with "" for missing, dates as seconds
    since 1970 in float64; each of shape (n, 1).
    """
    parts: list[GraphArray] = []
    inputs: Inputs = []
    for column in encoder.columns_:
        dtype = _TEXT if column.kind == "category" else _FLOAT
        x = GraphArray(graph, graph.add_input(column.name, dtype, 1), (ROWS, 1), dtype)
        inputs.append({"name": x.name, "kind": column.kind, "column": column.to_dict()})
        parts += _encode_column(encoder, column, x)
    return concat(parts), inputs


def _encode_column(encoder: TableEncoder, column: Column, x: GraphArray) -> list[GraphArray]:
    match column.kind:
        case "category":
            return _encode_category(encoder, column.name, x)
        case "date":
            return _encode_dates(x)
        case _:
            return [x]


def _encode_category(encoder: TableEncoder, name: str, x: GraphArray) -> list[GraphArray]:
    levels, (placed, places) = encoder.levels_[name], encoder.places_.get(name, ([], None))
    if "" in levels or "" in placed:
        raise InvalidInputError(
            f"Expected categories without an empty text, which stands for missing in a graph. Got one in the "
            f"column {name}. Read it as missing (NaN) before the model is fitted."
        )
    shown = _match(x, [*levels, ""] if name in encoder._missing_seen else levels)
    if places is not None:
        known = _match(x, [level or "" for level in placed])
        return [shown, 1.0 - known.reduce("ReduceSum", axis=-1, keepdims=True), known @ places]
    return [shown, 1.0 - shown.reduce("ReduceSum", axis=-1, keepdims=True)] if encoder._has_other else [shown]


def _match(x: GraphArray, levels: list[str]) -> GraphArray:
    return (x == np.array([levels], dtype=object)).cast(np.float64)


def _encode_dates(seconds: GraphArray) -> list[GraphArray]:
    """Compute what a TableEncoder does, step by step."""
    days = (seconds / DAY).apply("Floor")
    return [seconds / DAY, _modulo(days, YEAR), _modulo(days + 3.0, 7.0), _modulo(seconds, DAY) / 3600.0]


def _modulo(x: GraphArray, by: float) -> GraphArray:
    """Return the remainder with the sign of `by`; the operator's has that of x."""
    rest = x.apply("Mod", x.to_array(by), fmod=1)
    return (rest < 0.0).apply("Where", rest + by, rest, dtype=_FLOAT)


def prepare_inputs(inputs: Inputs, X: Any) -> dict[str, NDArray[Any]]:
    """Turn rows into what a session of onnxruntime takes.

    Parameters
    ----------
    inputs : list of dict
        The description of the inputs in the metadata of the graph.
    X : array or DataFrame, or for a network its input or a mapping of its inputs by name
        Rows as the model takes them.
    """
    if inputs[0]["kind"] == "tensor":
        return _read_tensors(inputs, X)
    if inputs[0]["kind"] == "table":
        return {inputs[0]["name"]: _read_table(X, inputs[0]["columns"])}
    names = X.columns if is_frame(X) else ()
    missing = [each["column"]["name"] for each in inputs if each["column"]["name"] not in names]
    if missing:
        raise InvalidInputError(f"Expected a table with the column(s) {', '.join(missing)}. Got one without.")
    return {each["name"]: _read_column(Column(**each["column"]), X[each["column"]["name"]]) for each in inputs}


def _read_tensors(inputs: Inputs, X: Any) -> dict[str, NDArray[Any]]:
    given: Mapping[str, Any] = X if isinstance(X, Mapping) else {inputs[0]["name"]: X}
    missing = [each["name"] for each in inputs if each["name"] not in given]
    if missing:
        raise InvalidInputError(f"Expected inputs under the name(s) {', '.join(missing)}. Got {', '.join(given)}.")
    return {each["name"]: np.ascontiguousarray(given[each["name"]], dtype=each["dtype"]) for each in inputs}


def _read_table(X: Any, columns: list[str] | None) -> Floats:
    rows = X.toarray() if hasattr(X, "toarray") else X
    return np.ascontiguousarray(rows[columns] if is_frame(rows) and columns else rows, dtype=np.float64)


def _read_column(column: Column, cells: Any) -> NDArray[Any]:
    values, problems = read_cells(column, cells)
    raise_problems(problems, index=cells.index)
    if column.kind == "category":
        values = np.array([text or "" for text in values.tolist()], dtype=object)
    return values[:, None]


# --- rows to compare on if there are no real ones ---


def draw_rows(inputs: Inputs, summary: dict[str, Any] | None) -> Any:
    """Draw a table of plausible rows, each column by itself from the reference in a summary; always the same ones.

    Dates are seconds since 1970, as in the reference.
    """
    kinds = {each["column"]["name"]: each["kind"] for each in inputs if "column" in each}
    reference: Any = (summary or {}).get("reference")
    if not (kinds and is_reference(reference)) or any(
        name not in reference or ("shares" in reference[name]) != (kind == "category") for name, kind in kinds.items()
    ):
        raise InvalidInputError(
            "Expected rows to compare the graph and the model on. Got none, and no summary of the columns to draw them "
            "from. Pass real rows as X, or the summary of fit_table."
        )
    rng = np.random.default_rng(0)
    drawn = {
        name: _draw_categories(reference[name]["shares"], rng)
        if kind == "category"
        else _draw_numbers(reference[name]["sample"], rng)
        for name, kind in kinds.items()
    }
    return import_pandas().DataFrame(drawn)


def _draw_numbers(sample: list[float | None], rng: np.random.Generator) -> Floats:
    """Draw numbers between neighbours in the sample, whole ones if all in the sample are."""
    known = np.sort([number for number in sample if number is not None])
    if len(known) == 0:
        return np.full(_N_DRAWN, math.nan)
    places = rng.uniform(0, len(known) - 1, _N_DRAWN)
    numbers = 2 * np.interp(places, np.arange(len(known)), known / 2)  # differences of halves do not overflow
    numbers = np.clip(numbers, known[0], known[-1])
    numbers = np.round(numbers) if np.array_equal(known, np.round(known)) else numbers
    return np.where(rng.random(_N_DRAWN) < max(_SHARE, 1.0 - len(known) / len(sample)), math.nan, numbers)


def _draw_categories(shares: dict[str, float], rng: np.random.Generator) -> NDArray[Any]:
    rare = max(_SHARE, 1.0 - sum(shares.values()))
    weights = shares | {MISSING: max(_SHARE, shares.get(MISSING, 0.0)), OTHER: rare}
    texts = np.array([*weights], dtype=object)
    drawn = texts[rng.choice(len(texts), _N_DRAWN, p=np.array([*weights.values()]) / sum(weights.values()))]
    drawn[drawn == MISSING] = None
    return drawn
