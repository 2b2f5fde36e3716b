"""Load the model that answers, describe it, and replace it by a newer one while it serves."""

from __future__ import annotations

import hashlib
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onsphere._internal.validation import Floats, missing_extra_error
from onsphere.assessment import Assessment
from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.export import open_graph, prepare_inputs
from onsphere.persistence import get_calibration_method, load_with_manifest
from onsphere.table.columns import Column
from onsphere.table.model_file import read_model_columns, read_summary_columns

__all__ = ["Engine", "Facts", "GraphEngine", "ModelEngine", "ServedModel", "load_engine"]

_ROWS_PER_RUN = 1_000  # a graph of trees holds a leaf of every tree for each row
_GRAPH_OUTPUTS = {"label": "value", "set": "prediction_set"}


@dataclass(frozen=True)
class Facts:
    """The facts about a model, whatever file it came from.

    Attributes
    ----------
    name, sha256 : str
        Of the file.
    kind : {"onsphere", "onnx"}
    model : str
        Its class.
    task : {"regression", "classification"}
    targets : tuple of str
    columns : tuple of Column
        Of the table that it was fitted on; all numbers where the model does not say.
    as_array : bool
        Whether it was fitted on an array without names.
    levels : dict
        The values of each category that are known from training.
    coverage : float
        Of intervals or sets, where a request does not ask for another.
    threshold, novelty_threshold : float or None
        The largest uncertainty and the largest shortfall that are accepted.
    calibration, missed : array of shape (n,) or None
        The uncertainties of the calibration rows and, for a model with an input frame, their shortfalls: how far the
        training rows fall short of each.
    calibrated_by : {"held-out rows", "cross-validation"} or None
        Only the first keeps the promise of the drift alarm; None where the file does not say.
    reference : dict or None
        A summary of each column of ordinary rows, to see which of them moved; see `onsphere.drift`.
    notes : tuple of str
        Warnings about the model.
    more : dict
        Plain JSON values: rule, figures, libraries and the like.
    """

    name: str
    sha256: str
    kind: str
    model: str
    task: str
    targets: tuple[str, ...]
    columns: tuple[Column, ...]
    as_array: bool
    levels: dict[str, list[str]]
    coverage: float
    threshold: float | None
    novelty_threshold: float | None
    calibration: Floats | None
    missed: Floats | None
    calibrated_by: str | None
    reference: dict[str, Any] | None
    notes: tuple[str, ...]
    more: dict[str, Any]

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns that a row must have."""
        return tuple(column for column in self.columns if column.is_feature)

    @property
    def known_names(self) -> set[str]:
        """The columns that a row may have: targets and unused columns may come along, as they did in training."""
        return {column.name for column in self.columns} | set(() if self.as_array else self.targets)

    @property
    def key_names(self) -> list[str]:
        """The columns that name rows."""
        return [column.name for column in self.columns if column.kind == "key"]

    def describe(self) -> dict[str, Any]:
        """Return plain values for `GET /v1/model`."""
        finite = self.threshold is not None and np.isfinite(self.threshold)
        plain = ("name", "sha256", "kind", "model", "task", "coverage", "calibrated_by", "targets", "notes")
        return {
            **{name: getattr(self, name) for name in plain},
            "columns": [
                {
                    "name": column.name,
                    "kind": column.kind,
                    "note": column.note,
                    "required": column.is_feature,
                    "levels": self.levels.get(column.name, []),
                }
                for column in self.columns
            ],
            "threshold": self.threshold if finite else None,
            "calibration_band": _describe_band(self.calibration),
            "novelty_threshold": self.novelty_threshold,
            "novelty_band": _describe_band(self.missed),
            **self.more,
        }


def _describe_band(scores: Floats | None) -> dict[str, float] | None:
    if scores is None:
        return None
    low, middle, high = np.quantile(scores, [0.05, 0.5, 0.95]).tolist()
    return {"low": low, "middle": middle, "high": high}


class ModelEngine:
    """The model of a .onsphere file.

    Parameters
    ----------
    path : path
    coverage : float
        Of intervals or sets; 0 for that of the fit.
    trusted : sequence of str
        See `onsphere.load`.

    Attributes
    ----------
    last_label : int
        The number of the last label that the model was updated with; see `onsphere.service.labels`.
    lock : Lock
        Held while the model is updated.
    """

    def __init__(self, path: str | Path, *, coverage: float = 0.0, trusted: Sequence[str] = ()) -> None:
        path = Path(path)
        self.last_label, self.lock = 0, threading.Lock()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.model, manifest = load_with_manifest(path, trusted=trusted)
        calibration, summary = self.model.calibration_, manifest["summary"]
        manifest.setdefault("calibrated_by", get_calibration_method(self.model))  # older files do not say
        self.facts = _build_facts(
            path,
            manifest,
            kind="onsphere",
            targets=summary["targets"] if "targets" in summary else _name_targets(self.model),
            columns=read_model_columns(path, self.model, summary) if "columns" in summary else None,
            levels=_find_levels(self.model),
            coverage=coverage,
            calibration=None if calibration is None else calibration.uncertainty,
            missed=None if calibration is None else calibration.missed,
            notes=[str(warning.message) for warning in caught],
        )

    def assess(self, rows: Any, *, coverage: float) -> Assessment:
        """Assess each row of a DataFrame, or of an array where `facts.as_array`."""
        with np.errstate(all="ignore"):  # rows far away may overflow, and get an infinite uncertainty
            return self.model.assess(rows, coverage=coverage)


class GraphEngine:
    """A graph that `export_onnx` wrote, run by onnxruntime; the coverage of its intervals is fixed.

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
        self.facts = _build_facts(
            path,
            manifest,
            kind="onnx",
            targets=summary["targets"] if "targets" in summary else _name_graph_targets(self._session),
            columns=read_summary_columns(path, summary) if "columns" in summary else None,
            levels={},
            coverage=facts["coverage"],
            calibration=facts.get("calibration"),
            missed=facts.get("calibration_missed"),
            notes=[],
        )
        self._check_coverage(coverage or self.facts.coverage)
        classes = manifest["classes"]
        self._output_names = None if classes is None else tuple(str(label) for label in classes)

    def assess(self, rows: Any, *, coverage: float) -> Assessment:
        """Assess each row."""
        self._check_coverage(coverage)
        parts = [
            self._session.run(self._outputs, prepare_inputs(self._inputs, rows[start : start + _ROWS_PER_RUN]))
            for start in range(0, len(rows), _ROWS_PER_RUN)
        ]
        found: dict[str, Any] = {
            str(_GRAPH_OUTPUTS.get(name, name)): np.concatenate([part[place] for part in parts])
            for place, name in enumerate(self._outputs)
        }
        texts = {name: values.astype(np.str_) for name, values in found.items() if values.dtype == object}
        return Assessment(**found | texts, output_names=self._output_names)

    def _check_coverage(self, coverage: float) -> None:
        if coverage != self.facts.coverage:
            raise InvalidInputError(
                f"Expected a coverage of {self.facts.coverage:g}, the one that this ONNX file was written with. Got "
                f"{coverage:g}. Leave it out, or serve the .onsphere file."
            )


Engine = ModelEngine | GraphEngine


def load_engine(path: str | Path, *, coverage: float = 0.0, trusted: Sequence[str] = ()) -> Engine:
    """Load a .onsphere or .onnx file."""
    if Path(path).suffix.lower() == ".onnx":
        return GraphEngine(path, coverage=coverage)
    return ModelEngine(path, coverage=coverage, trusted=trusted)


def _build_facts(
    path: Path,
    manifest: dict[str, Any],
    *,
    kind: str,
    targets: Sequence[str],
    columns: Sequence[Column] | None,
    levels: dict[str, list[str]],
    coverage: float,
    calibration: Any,
    missed: Any,
    notes: Sequence[str],
) -> Facts:
    """Collect what a manifest and a file say about a model; without columns of a table, all are numbers."""
    summary, classes, threshold = manifest["summary"], manifest["classes"], manifest["threshold"]
    as_array = columns is None and manifest["columns"] is None
    if columns is None:
        names = manifest["columns"] or [f"x{index}" for index in range(manifest["n_features"] or 0)]
        columns = [Column(name, "number") for name in names]
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Facts(
        name=path.name,
        sha256=sha256,
        kind=kind,
        model=manifest["model"],
        task="regression" if classes is None else "classification",
        targets=tuple(targets),
        columns=tuple(columns),
        as_array=as_array,
        levels=levels,
        coverage=coverage or float(summary.get("coverage", 0.9)),
        threshold=None if threshold is None else float(threshold),
        novelty_threshold=manifest.get("novelty_threshold"),  # older files do not have it
        calibration=None if calibration is None else np.asarray(calibration, dtype=np.float64),
        missed=None if missed is None else np.asarray(missed, dtype=np.float64),
        calibrated_by=manifest.get("calibrated_by"),
        reference=summary.get("reference"),
        notes=tuple(dict.fromkeys([*notes, *summary.get("notes", ())])),
        more={
            "classes": classes,
            "rule": manifest["rule"],
            "novelty_rule": manifest.get("novelty_rule"),
            "frames": manifest.get("frames"),
            "backbone": summary.get("backbone"),
            "calibration_rows": manifest["calibration_rows"],
            "figures": summary.get("figures", {}),
            "onsphere": manifest["onsphere"],
            "libraries": manifest["libraries"],
        },
    )


def _name_targets(model: Any) -> Sequence[str]:
    names = getattr(model, "_output_names", None)
    n_outputs = 1 if getattr(model, "_target_is_flat", True) else len(np.atleast_1d(model.spread_))
    if n_outputs == 1 and not names:
        return ["value"]
    return names or [str(index) for index in range(n_outputs)]


def _name_graph_targets(session: Any) -> Sequence[str]:
    shapes = {output.name: output.shape for output in session.get_outputs()}
    shape = shapes.get("value", [])
    return [str(index) for index in range(shape[1])] if len(shape) == 2 else ["value"]


def _find_levels(model: Any) -> dict[str, list[str]]:
    """Return the categories known from training, where the model begins with a TableEncoder."""
    for _, step in getattr(model.estimator_, "steps", ()):
        if hasattr(step, "levels_"):
            return {name: list(levels) for name, levels in step.levels_.items()}
    return {}


class ServedModel:
    """The engine that answers now; a newer one takes its place at once, and requests in flight keep theirs.

    Parameters
    ----------
    path : path
    coverage, trusted :
        As in `ModelEngine`.

    Attributes
    ----------
    engine : Engine
    loaded_at : float
        In seconds since 1970.
    trouble : str or None
        Why the file could not be loaded the last time it changed; the engine before it still answers.
    """

    def __init__(self, path: str | Path, *, coverage: float = 0.0, trusted: Sequence[str] = ()) -> None:
        self._path, self._coverage, self._trusted = Path(path), coverage, tuple(trusted)
        self._lock = threading.Lock()
        self._seen = self._read_signature()
        self.engine: Engine = load_engine(self._path, coverage=coverage, trusted=trusted)
        self.loaded_at, self.trouble = time.time(), None

    def has_changed(self) -> bool:
        """Return whether the file is another one than at the last look."""
        return self._read_signature() not in (self._seen, None)

    def reload(self, prepare: Callable[[Engine], None] = lambda engine: None) -> bool:
        """Load the file again, and return whether another model answers now; after an error the old one answers.

        Parameters
        ----------
        prepare : function of an Engine, optional
            Called with another model before it answers.
        """
        with self._lock:
            self._seen = self._read_signature()
            try:
                engine = load_engine(self._path, coverage=self._coverage, trusted=self._trusted)
            except OnsphereError as error:
                self.trouble = str(error)
                raise
            except OSError as error:
                self.trouble = f"Expected to read {self._path}. Got: {error}."
                raise InvalidInputError(self.trouble) from None
            changed = engine.facts.sha256 != self.engine.facts.sha256
            if changed:  # the same one goes on, with the labels that it was updated with
                prepare(engine)
                self.engine = engine
            self.loaded_at, self.trouble = time.time(), None
            return changed

    def _read_signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:  # being replaced just now, or gone
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
