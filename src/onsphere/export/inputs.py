"""What a graph is given: one table of numbers, or the raw columns of a table, which it turns into numbers itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, is_frame
from onsphere.errors import InvalidInputError
from onsphere.export.graph import Graph
from onsphere.export.symbols import ROWS, Symbol, concat, unary
from onsphere.table.columns import Column
from onsphere.table.encoder import DAY, YEAR, TableEncoder, plain_values

__all__ = ["encoded_columns", "graph_inputs", "number_table"]

_FLOAT, _TEXT = np.dtype(np.float64), np.dtype(np.str_)


def number_table(graph: Graph, n_features: int, names: Any) -> tuple[Symbol, list[dict[str, Any]]]:
    """One input for all features, and its description."""
    name = graph.input("X", _FLOAT, n_features)
    columns = None if names is None else [str(each) for each in names]
    return Symbol(graph, name, (ROWS, n_features)), [{"name": name, "kind": "table", "columns": columns}]


def encoded_columns(graph: Graph, encoder: TableEncoder) -> tuple[Symbol, list[dict[str, Any]]]:
    """One input for each column that a TableEncoder reads, and their descriptions.

    Numbers and booleans come as float64 with NaN for missing, categories as text with "" for missing, dates as seconds
    since 1970 in float64; each of shape (n, 1).
    """
    parts: list[Symbol] = []
    described: list[dict[str, Any]] = []
    for column in encoder.columns_:
        dtype = _TEXT if column.kind == "category" else _FLOAT
        given = Symbol(graph, graph.input(column.name, dtype, 1), (ROWS, 1), dtype)
        described.append({"name": given.name, "kind": column.kind, "column": asdict(column)})
        parts += _encoded(encoder, column, given)
    return concat(parts), described


def _encoded(encoder: TableEncoder, column: Column, given: Symbol) -> list[Symbol]:
    match column.kind:
        case "category":
            levels = encoder.levels_[column.name]
            if "" in levels:
                raise InvalidInputError(
                    f"Expected categories without an empty text, which stands for missing in a graph. Got one in the "
                    f"column {column.name}. Read it as missing (NaN) before the model is fitted."
                )
            known = [*levels, ""] if column.name in encoder._missing_seen else levels
            return [(given == np.array([known], dtype=object)).cast(np.float64)]
        case "date":
            return _calendar(given)
        case _:
            return [given]


def _calendar(seconds: Symbol) -> list[Symbol]:
    """As in `onsphere.table`, step by step."""
    days = unary("Floor", seconds / DAY)
    return [seconds / DAY, _modulo(days, YEAR), _modulo(days + 3.0, 7.0), _modulo(seconds, DAY) / 3600.0]


def _modulo(x: Symbol, by: float) -> Symbol:
    """The remainder with the sign of `by`; the operator's has that of x."""
    rest = x.made("Mod", x.like(by), shape=x.shape, fmod=1)
    return (rest < 0.0).made("Where", rest + by, rest, shape=x.shape, dtype=_FLOAT)


def graph_inputs(described: list[dict[str, Any]], X: Any) -> dict[str, NDArray[Any]]:
    """What to feed a graph for these rows, by the description of its inputs.

    Parameters
    ----------
    described : list of dict
        The inputs in the metadata of the graph.
    X : array or DataFrame
        Rows as the model takes them.
    """
    if described[0]["kind"] == "table":
        return {described[0]["name"]: _table(X, described[0]["columns"])}
    missing = [each["column"]["name"] for each in described if each["column"]["name"] not in getattr(X, "columns", ())]
    if missing:
        raise InvalidInputError(f"Expected a table with the column(s) {', '.join(missing)}. Got one without.")
    return {each["name"]: _raw(Column(**each["column"]), X) for each in described}


def _table(X: Any, columns: list[str] | None) -> Floats:
    rows = X.toarray() if hasattr(X, "toarray") else X
    return np.ascontiguousarray(rows[columns] if is_frame(rows) and columns else rows, dtype=np.float64)


def _raw(column: Column, X: Any) -> NDArray[Any]:
    values = plain_values(column, X[column.name])
    return (np.asarray(values.fillna(""), dtype=object) if column.kind == "category" else values)[:, None]
