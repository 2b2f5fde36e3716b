"""Run a graph that `export_onnx` wrote, and return its outputs as an Assessment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere.assessment import Assessment

__all__ = ["list_answers", "run_graph"]

_ROWS_PER_RUN = 1_000  # a graph of trees holds a leaf of every tree for each row
_FIELDS = {"label": "value", "set": "prediction_set"}


def list_answers(outputs: Sequence[str]) -> list[str]:
    """Return the outputs of a graph that an Assessment has a place for, which quantiles do not have."""
    known = {field.name for field in fields(Assessment)}
    return [name for name in outputs if _FIELDS.get(name, name) in known]


def run_graph(
    session: Any,
    answers: Sequence[str],
    fed: dict[str, NDArray[Any]],
    *,
    classes: Sequence[Any] | None,
) -> Assessment:
    """Assess rows, a thousand at a time.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
    answers : sequence of str
        See `list_answers`.
    fed : dict of arrays
        All rows, as `prepare_inputs` returns them.
    classes : sequence or None
        Of the manifest of the graph.
    """
    n_rows = len(next(iter(fed.values())))
    parts = [
        session.run(answers, {name: rows[start : start + _ROWS_PER_RUN] for name, rows in fed.items()})
        for start in range(0, n_rows, _ROWS_PER_RUN)
    ]
    found: dict[str, Any] = {
        _FIELDS.get(name, name): np.concatenate([part[place] for part in parts]) for place, name in enumerate(answers)
    }
    texts = {name: values.astype(np.str_) for name, values in found.items() if values.dtype == object}
    names = None if classes is None else tuple(str(label) for label in classes)
    return Assessment(**found | texts, output_names=names)
