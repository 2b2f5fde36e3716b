"""A model that answers: loaded from its file, described, and exchanged for a newer one while it serves."""

from __future__ import annotations

import hashlib
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.assessment import Assessment
from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.persistence import calibrated_by, load_with_manifest
from onsphere.table.columns import Column
from onsphere.table.model_file import model_columns

__all__ = ["Engine", "Facts", "ModelEngine", "Served", "facts_of", "load_engine"]


@dataclass(frozen=True)
class Facts:
    """What is known of a model, whatever file it came from.

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
    threshold : float or None
        The largest uncertainty that is accepted.
    calibration : array of shape (n,) or None
        The uncertainties of the calibration rows.
    calibrated_by : {"held-out rows", "cross-validation"} or None
        Only after the first does the drift alarm keep its promise; None where the file does not say.
    reference : dict or None
        What is kept of each column of ordinary rows, which says which of them moved; see `onsphere.drift`.
    notes : tuple of str
        What deserves a look.
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
    calibration: Floats | None
    calibrated_by: str | None
    reference: dict[str, Any] | None
    notes: tuple[str, ...]
    more: dict[str, Any]

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns that a row must have."""
        return tuple(column for column in self.columns if column.is_feature)

    def describe(self) -> dict[str, Any]:
        """Plain values for `GET /v1/model`."""
        band = None
        if self.calibration is not None:
            low, middle, high = np.quantile(self.calibration, [0.05, 0.5, 0.95]).tolist()
            band = {"low": low, "middle": middle, "high": high}
        finite = self.threshold is not None and np.isfinite(self.threshold)
        return {
            "name": self.name,
            "sha256": self.sha256,
            "kind": self.kind,
            "model": self.model,
            "task": self.task,
            "targets": list(self.targets),
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
            "coverage": self.coverage,
            "threshold": self.threshold if finite else None,
            "calibration_band": band,
            "calibrated_by": self.calibrated_by,
            "notes": list(self.notes),
            **self.more,
        }


class Engine(Protocol):
    """What the service asks of a model."""

    facts: Facts

    def assess(self, rows: Any, *, coverage: float) -> Assessment:
        """Everything the model says about each row of a DataFrame, or of an array where `facts.as_array`."""
        ...


class ModelEngine:
    """A model of a .onsphere file.

    Parameters
    ----------
    path : path
    coverage : float
        Of intervals or sets; 0 for that of the fit.
    trusted : sequence of str
        See `onsphere.load`.
    """

    def __init__(self, path: str | Path, *, coverage: float = 0.0, trusted: Sequence[str] = ()) -> None:
        path = Path(path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.model, manifest = load_with_manifest(path, trusted=trusted)
        calibration, summary = self.model.calibration_, manifest["summary"]
        manifest.setdefault("calibrated_by", calibrated_by(self.model))  # which older files do not say
        self.facts = facts_of(
            path,
            manifest,
            kind="onsphere",
            targets=_targets(self.model, summary),
            columns=model_columns(path, self.model, summary) if "columns" in summary else None,
            levels=_levels(self.model),
            coverage=coverage,
            calibration=None if calibration is None else calibration.uncertainty,
            notes=[str(warning.message) for warning in caught],
        )

    def assess(self, rows: Any, *, coverage: float) -> Assessment:
        """Everything the model says about each row."""
        with np.errstate(all="ignore"):  # rows far away may overflow, and get an infinite uncertainty
            return self.model.assess(rows, coverage=coverage)


def load_engine(path: str | Path, *, coverage: float = 0.0, trusted: Sequence[str] = ()) -> Engine:
    """The engine for a file, by the ending of its name."""
    if Path(path).suffix.lower() == ".onnx":
        from onsphere.service.graphs import GraphEngine

        return GraphEngine(path, coverage=coverage)
    return ModelEngine(path, coverage=coverage, trusted=trusted)


def facts_of(
    path: Path,
    manifest: dict[str, Any],
    *,
    kind: str,
    targets: Sequence[str],
    columns: Sequence[Column] | None,
    levels: dict[str, list[str]],
    coverage: float,
    calibration: Any,
    notes: Sequence[str],
) -> Facts:
    """What a manifest and a file say of a model; without columns of a table, all are numbers."""
    summary, classes, threshold = manifest["summary"], manifest["classes"], manifest["threshold"]
    return Facts(
        name=path.name,
        sha256=_checksum(path),
        kind=kind,
        model=manifest["model"],
        task="regression" if classes is None else "classification",
        targets=tuple(targets),
        columns=_numbers(manifest) if columns is None else tuple(columns),
        as_array=columns is None and manifest["columns"] is None,
        levels=levels,
        coverage=coverage or float(summary.get("coverage", 0.9)),
        threshold=None if threshold is None else float(threshold),
        calibration=None if calibration is None else np.asarray(calibration, dtype=np.float64),
        calibrated_by=manifest.get("calibrated_by"),
        reference=summary.get("reference"),
        notes=tuple(dict.fromkeys([*notes, *summary.get("notes", ())])),
        more={
            "classes": classes,
            "rule": manifest["rule"],
            "backbone": summary.get("backbone"),
            "calibration_rows": manifest["calibration_rows"],
            "figures": summary.get("figures", {}),
            "onsphere": manifest["onsphere"],
            "libraries": manifest["libraries"],
        },
    )


def _numbers(manifest: dict[str, Any]) -> tuple[Column, ...]:
    names = manifest["columns"] or [f"x{index}" for index in range(manifest["n_features"] or 0)]
    return tuple(Column(name, "number") for name in names)


def _targets(model: Any, summary: dict[str, Any]) -> tuple[str, ...]:
    if "targets" in summary:
        return tuple(summary["targets"])
    names = getattr(model, "_output_names", None)
    n_outputs = 1 if getattr(model, "_target_is_flat", True) else len(np.atleast_1d(model.spread_))
    if n_outputs == 1 and not names:
        return ("value",)
    return tuple(names or (str(index) for index in range(n_outputs)))


def _levels(model: Any) -> dict[str, list[str]]:
    """What the categories were in training, where the model begins with a TableEncoder."""
    for _, step in getattr(model.estimator_, "steps", ()):
        if hasattr(step, "levels_"):
            return {name: list(levels) for name, levels in step.levels_.items()}
    return {}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Served:
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
        self._seen = self._signature()
        self.engine: Engine = load_engine(self._path, coverage=coverage, trusted=trusted)
        self.loaded_at, self.trouble = time.time(), None

    def changed(self) -> bool:
        """Whether the file is another one than when it was last looked at."""
        return self._signature() not in (self._seen, None)

    def reload(self) -> bool:
        """Load the file anew; whether another model answers now. An error leaves the one that answers."""
        with self._lock:
            self._seen = self._signature()
            try:
                engine = load_engine(self._path, coverage=self._coverage, trusted=self._trusted)
            except OnsphereError as error:
                self.trouble = str(error)
                raise
            except OSError as error:
                self.trouble = f"Expected to read {self._path}. Got: {error}."
                raise InvalidInputError(self.trouble) from None
            other = engine.facts.sha256 != self.engine.facts.sha256
            self.engine, self.loaded_at, self.trouble = engine, time.time(), None
            return other

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:  # in the middle of being replaced, or gone
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
