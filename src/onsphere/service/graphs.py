"""A model of an ONNX file, run by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onsphere._internal.validation import missing_extra_error
from onsphere.assessment import Assessment
from onsphere.errors import InvalidInputError
from onsphere.export import graph_inputs, open_graph
from onsphere.service.engine import facts_of
from onsphere.table.model_file import described_columns

__all__ = ["GraphEngine"]

_TOGETHER = 1_000  # rows: a graph of trees holds a leaf of every tree for each
_NAMES = {"value": "value", "label": "value", "set": "prediction_set"}


class GraphEngine:
    """A graph that `export_onnx` wrote; the coverage of its intervals is fixed in it.

    Parameters
    ----------
    path : path
    coverage : float
        That of the graph, or 0 for whichever it has.
    """

    def __init__(self, path: str | Path, *, coverage: float = 0.0) -> None:
        path = Path(path)
        try:
            self._session, facts = open_graph(path)
        except ImportError:
            raise missing_extra_error("Serving an ONNX file", "onnxruntime", "serve") from None
        self._inputs, self._outputs = facts["inputs"], facts["outputs"]
        manifest, summary = facts["manifest"], facts["manifest"]["summary"]
        self.facts = facts_of(
            path,
            manifest,
            kind="onnx",
            targets=_targets(manifest, self._session),
            columns=described_columns(path, summary) if "columns" in summary else None,
            levels={},
            coverage=facts["coverage"],
            calibration=facts.get("calibration"),
            notes=[],
        )
        self._check_coverage(coverage or self.facts.coverage)
        classes = manifest["classes"]
        self._output_names = None if classes is None else tuple(str(label) for label in classes)

    def assess(self, rows: Any, *, coverage: float) -> Assessment:
        """Everything the graph says about each row."""
        self._check_coverage(coverage)
        parts = [self._run(rows[start : start + _TOGETHER]) for start in range(0, len(rows), _TOGETHER)]
        found: dict[str, Any] = {
            str(_NAMES.get(name, name)): np.concatenate([part[place] for part in parts])
            for place, name in enumerate(self._outputs)
        }
        if found["value"].dtype == object:
            found["value"] = found["value"].astype(np.str_)
        return Assessment(**found, output_names=self._output_names)

    def _run(self, rows: Any) -> list[Any]:
        return self._session.run(self._outputs, graph_inputs(self._inputs, rows))

    def _check_coverage(self, coverage: float) -> None:
        if coverage != self.facts.coverage:
            raise InvalidInputError(
                f"Expected a coverage of {self.facts.coverage:g}, the one that this ONNX file was written with. Got "
                f"{coverage:g}. Leave it out, or serve the .onsphere file."
            )


def _targets(manifest: dict[str, Any], session: Any) -> Sequence[str]:
    if "targets" in manifest["summary"]:
        return manifest["summary"]["targets"]
    shapes = {output.name: output.shape for output in session.get_outputs()}
    shape = shapes.get("value", [])
    return [str(index) for index in range(shape[1])] if len(shape) == 2 else ["value"]
