"""Open a model file, .onsphere or .onnx, from the very bytes that are hashed: describe the model, and assess rows."""

from __future__ import annotations

import hashlib
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onsphere._internal.validation import Floats, is_frame, missing_extra_error
from onsphere.assessment import Assessment
from onsphere.errors import InvalidInputError
from onsphere.export.graph_answers import list_answers, run_graph
from onsphere.export.onnx_file import open_graph
from onsphere.persistence import get_calibration_method, load_with_manifest
from onsphere.sphere.domain import Domain
from onsphere.table.cells import import_pandas
from onsphere.table.columns import Column
from onsphere.table.encoder import TableEncoder
from onsphere.table.model_file import read_model_columns, read_summary_columns

__all__ = ["Deployed", "DeployedModel", "Facts", "Values", "make_trial_row", "open_deployed", "read_content"]

_LARGEST_FILE = 16 * 2**30  # bytes

Values = Any  # what `read_cells` returned for each feature, as a dict or a DataFrame


@dataclass(frozen=True, eq=False)
class Facts:
    """The facts about a model, whatever file it came from."""

    name: str  # of the file, as its hash
    sha256: str
    kind: str  # onsphere or onnx
    task: str
    targets: tuple[str, ...]
    columns: tuple[Column, ...]  # of the table that it was fitted on; all numbers where the file does not say
    is_table: bool  # whether the file says what its columns hold
    as_array: bool  # whether it was fitted on an array without names
    levels: dict[str, list[str]]  # the values of each category that are known from training
    coverage: float  # of intervals or sets, where a request does not ask for another
    threshold: float | None  # the largest uncertainty that is accepted
    novelty_threshold: float | None  # the largest shortfall
    calibration: Floats | None  # the uncertainties of the calibration rows
    missed: Floats | None  # their shortfalls: how far the training rows fall short of each
    calibrated_by: str | None  # only "held-out rows" keep the promise of the drift alarm
    reference: dict[str, Any] | None  # a summary of each column of ordinary rows; see `onsphere.drift`
    domain: Domain | None  # what its target can be, where the file says
    more: dict[str, Any]  # plain JSON values: rule, figures, libraries and the like

    @cached_property
    def features(self) -> tuple[Column, ...]:
        """The columns that a row must have."""
        return tuple(column for column in self.columns if column.is_feature)

    @cached_property
    def feature_names(self) -> dict[str, Column]:
        """The columns that a row must have, by name."""
        return {column.name: column for column in self.features}

    @cached_property
    def known_names(self) -> frozenset[str]:
        """The columns that a row may have: targets and unused columns may come along, as they did in training."""
        return frozenset([column.name for column in self.columns] + [*(() if self.as_array else self.targets)])

    @cached_property
    def key_names(self) -> list[str]:
        """The columns that name rows."""
        return [column.name for column in self.columns if column.kind == "key"]

    @cached_property
    def calibration_hash(self) -> str:
        """The hash of all that a drift monitor knows of the model, which a refit with the same seed does not change."""
        if self.calibration is None:
            return self.sha256
        scores = [self.calibration] if self.missed is None else [self.calibration, self.missed]
        return hashlib.sha256(b"".join(np.sort(each).astype("<f8").tobytes() for each in scores)).hexdigest()

    @property
    def decides(self) -> bool:
        """Whether the model accepts or rejects rows."""
        return self.threshold is not None or self.novelty_threshold is not None

    def describe(self) -> dict[str, Any]:
        """Return plain values for `GET /v1/model`."""
        plain = ("name", "sha256", "kind", "task", "coverage", "calibrated_by", "targets", "novelty_threshold")
        return {
            **{name: getattr(self, name) for name in plain},
            "columns": [
                {
                    **{name: getattr(column, name) for name in ("name", "kind", "note")},
                    "required": column.is_feature,
                    "levels": self.levels.get(column.name, []),
                }
                for column in self.columns
            ],
            "threshold": self.threshold,
            "calibration_band": _describe_band(self.calibration),
            "novelty_band": _describe_band(self.missed),
            **self.more,
        }


def _describe_band(scores: Floats | None) -> dict[str, float] | None:
    if scores is None:
        return None
    return dict(zip(("low", "middle", "high"), np.quantile(scores, [0.05, 0.5, 0.95]).tolist(), strict=True))


class DeployedModel:
    """The model of a .onsphere file; a coverage of 0 is that of the fit."""

    def __init__(self, path: Path, content: bytes, *, coverage: float = 0.0, trusted: Sequence[str] = ()) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.model, manifest = load_with_manifest(path, content=content, trusted=trusted)
        calibration, summary = self.model.calibration_, manifest["summary"]
        manifest.setdefault("calibrated_by", get_calibration_method(self.model))  # older files do not say
        columns = read_model_columns(path, self.model, summary) if "columns" in summary else None
        scores = (None, None) if calibration is None else (calibration.uncertainty, calibration.missed)
        facts = _build_facts(path, content, manifest, columns, coverage, scores, _name_targets(self.model))
        self.facts = replace(facts, levels=_find_levels(self.model), domain=vars(self.model).get("domain_"))
        self.facts.more["notes"] = list(dict.fromkeys([*(str(each.message) for each in caught), *facts.more["notes"]]))

    def assess(self, values: Values, *, coverage: float) -> Assessment:
        """Assess each row; values are those that `read_cells` returned for each feature."""
        rows = self.build_rows(values)
        with np.errstate(all="ignore"):  # rows far away may overflow, and get an infinite uncertainty
            return self.model.assess(rows, coverage=coverage)

    def build_rows(self, values: Values) -> Any:
        """Return the array or the table that the model expects."""
        if is_frame(values):
            return values
        if self.facts.as_array:
            return np.column_stack(list(values.values()))
        pandas = import_pandas()
        return pandas.DataFrame({name: pandas.Series(each, dtype=each.dtype) for name, each in values.items()})


class DeployedGraph:
    """A graph that `export_onnx` wrote, run by onnxruntime; the coverage of its intervals is fixed, 0 is that one."""

    def __init__(self, path: Path, content: bytes, *, coverage: float = 0.0) -> None:
        try:
            self._session, found = open_graph(path, content=content)
        except ImportError:
            raise missing_extra_error("Running an ONNX file", "onnxruntime", "export") from None
        self._inputs, self._answers = found["inputs"], list_answers(found["outputs"])
        if self._inputs[0]["kind"] == "tensor":
            raise InvalidInputError(
                f"Expected a model of rows of a table. Got {path}, the graph of a network, which takes tensors. Run it "
                "with onnxruntime."
            )
        manifest, summary = found["manifest"], found["manifest"]["summary"]
        columns = read_summary_columns(path, summary) if "columns" in summary else None
        scores = found.get("calibration"), found.get("calibration_missed")
        shape = {output.name: output.shape for output in self._session.get_outputs()}.get("value", [])
        targets = [str(index) for index in range(shape[1])] if len(shape) == 2 else ["value"]
        self.facts = _build_facts(path, content, manifest, columns, found["coverage"], scores, targets)
        self._check_coverage(coverage or self.facts.coverage)
        self._classes = manifest["classes"]

    def assess(self, values: Values, *, coverage: float) -> Assessment:
        """Assess each row; the columns go to the graph as they are."""
        self._check_coverage(coverage)
        return run_graph(self._session, self._answers, self._feed(values), classes=self._classes)

    def _feed(self, values: Values) -> Values:
        if self._inputs[0]["kind"] == "table":
            return {self._inputs[0]["name"]: np.column_stack([values[name] for name in self.facts.feature_names])}
        fed = {each["name"]: np.asarray(values[each["column"]["name"]]) for each in self._inputs}
        for each in self._inputs:
            if each["kind"] == "category":  # where "" stands for missing
                fed[each["name"]] = np.array([text or "" for text in fed[each["name"]].tolist()], dtype=object)
        return {name: cells[:, None] for name, cells in fed.items()}

    def _check_coverage(self, coverage: float) -> None:
        if coverage != self.facts.coverage:
            raise InvalidInputError(
                f"Expected a coverage of {self.facts.coverage:g}, the one that this ONNX file was written with. Got "
                f"{coverage:g}. Leave it out, or use the .onsphere file."
            )


Deployed = DeployedModel | DeployedGraph


def read_content(path: Path) -> bytes:
    """Read a file once: all that is said about a model is said about these bytes."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_FILE:
            raise InvalidInputError(
                f"Expected the file of a model. Got {path}, which is "
                f"{'larger than 16 GiB' if stat.S_ISREG(found.st_mode) else 'no file'}. Pass another path."
            )
        return path.read_bytes()
    except OSError as error:
        reason = "which does not exist" if isinstance(error, FileNotFoundError) else f"which failed: {error.strerror}"
        raise InvalidInputError(f"Expected the file of a model. Got {path}, {reason}. Pass another path.") from None


def open_deployed(
    path: str | Path, content: bytes | None = None, *, coverage: float = 0.0, trusted: Sequence[str] = ()
) -> Deployed:
    """Open a .onsphere or .onnx file, or what was read from it."""
    path = Path(path)
    content = read_content(path) if content is None else content
    if path.suffix.lower() == ".onnx":
        return DeployedGraph(path, content, coverage=coverage)
    return DeployedModel(path, content, coverage=coverage, trusted=trusted)


def make_trial_row(facts: Facts) -> Values:
    """Make one ordinary row, to see whether a model answers at all."""
    values: Values = {}
    for column in facts.features:
        summary = (facts.reference or {}).get(column.name, {})
        if column.kind == "category":
            values[column.name] = np.array([next(iter(summary.get("shares", ())), "")], dtype=object)
        else:
            known = sorted(number for number in summary.get("sample", ()) if number is not None) or [0.0]
            values[column.name] = np.array([known[len(known) // 2]], dtype=np.float64)
    return values


def _build_facts(
    path: Path,
    content: bytes,
    manifest: dict[str, Any],
    columns: Sequence[Column] | None,
    coverage: float,
    scores: tuple[Any, Any],
    targets: Sequence[str],
) -> Facts:
    """Collect what a manifest and a file say about a model; without columns of a table, all are numbers."""
    summary, classes, threshold = manifest["summary"], manifest["classes"], manifest["threshold"]
    names = manifest["columns"] or [f"x{index}" for index in range(manifest["n_features"] or 0)]
    calibration, missed = (None if each is None else np.asarray(each, dtype=np.float64) for each in scores)
    described = ("model", "calibration_rows", "onsphere", "libraries", "rule")
    return Facts(
        name=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        kind="onnx" if path.suffix.lower() == ".onnx" else "onsphere",
        task="regression" if classes is None else "classification",
        targets=tuple(summary.get("targets", targets)),
        columns=tuple([Column(name, "number") for name in names] if columns is None else columns),
        is_table=columns is not None,
        as_array=columns is None and manifest["columns"] is None,
        levels={},
        coverage=coverage or float(summary.get("coverage", 0.9)),
        threshold=None if threshold is None else float(threshold),
        novelty_threshold=manifest.get("novelty_threshold"),  # older files do not have it
        calibration=calibration,
        missed=missed,
        calibrated_by=manifest.get("calibrated_by"),
        reference=summary.get("reference"),
        domain=None,
        more={
            **{name: manifest[name] for name in described},
            **{name: manifest.get(name) for name in ("novelty_rule", "frames")},
            **{"classes": classes, "backbone": summary.get("backbone"), "figures": summary.get("figures", {})},
            "notes": list(summary.get("notes", ())),
        },
    )


def _name_targets(model: Any) -> Sequence[str]:
    names = getattr(model, "_output_names", None)
    n_outputs = 1 if getattr(model, "_target_is_flat", True) else len(np.atleast_1d(model.spread_))
    if n_outputs == 1 and not names:
        return ["value"]
    return names or [str(index) for index in range(n_outputs)]


def _find_levels(model: Any) -> dict[str, list[str]]:
    """Return the categories known from training, where the model begins with a TableEncoder."""
    for _, step in getattr(model.estimator_, "steps", ()):
        if isinstance(step, TableEncoder):
            return step.levels_ | step.get_known_levels()
    return {}
