"""Does the graph say what the model says? Both are asked about the same rows, and differences must be explained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from onsphere._internal.validation import Floats
from onsphere.calibration import RegressionCalibration, conformal_quantile, set_scores
from onsphere.errors import InvalidInputError
from onsphere.export.backbone_graphs import amplification, computes_in_single, has_trees
from onsphere.export.inputs import graph_inputs
from onsphere.export.outputs import half_widths
from onsphere.models.frozen import FrozenHead

__all__ = ["Parity", "compared"]

# How far two computations may differ, relative to the size of what they compute.
_DOUBLE, _SINGLE = 1e-9, 1e-5
_AMPLIFIED = 1e-12  # for each time that the backbone enlarges what was rounded before
_N_BLOCK = 1_000  # rows at once: a graph of trees holds leaves of many trees for each

_OF_ASSESSMENT: dict[str, str] = {"label": "value", "set": "prediction_set"}
_CHOICES = ("label", "set", "accepted")


@dataclass(frozen=True)
class Parity:
    """How far a graph and its model differ, on some rows.

    Attributes
    ----------
    n_rows : int
        That were compared.
    rows : str
        Which ones: those that were given, or drawn ones.
    largest : dict of str to float
        For each output the largest difference; for labels, sets and accepted the number of rows that differ.
    relative : dict of str to float
        The same differences relative to the size of the answer plus that of an ordinary one.
    tolerance : dict of str to float
        What the relative difference may be at most; a graph that exceeds it on these rows is refused.
    n_flag_differs : int
        Rows that one accepts and the other does not; all of them have an uncertainty within the tolerance of the
        threshold.
    explanation : str
        Where differences come from.
    """

    n_rows: int
    rows: str
    largest: dict[str, float]
    relative: dict[str, float]
    tolerance: dict[str, float]
    n_flag_differs: int
    explanation: str

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value:.2g}" for name, value in self.largest.items())
        return f"Compared on {self.n_rows:,} {self.rows}. Largest difference: {told}. {self.explanation}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def compared(
    model: Any, session: Any, described: list[dict[str, Any]], X: Any, coverage: float, *, rows: str = "given rows"
) -> Parity:
    """Ask both about rows, and refuse a graph whose differences are not explained."""
    ours = model.assess(X, coverage=coverage)
    theirs = _run(session, described, X, len(ours))
    names: list[str] = [output.name for output in session.get_outputs()]
    expected = {name: np.asarray(getattr(ours, _OF_ASSESSMENT.get(name, name))) for name in names}
    base = _rounding(model.estimator_)
    bounds = _Bounds(model, expected, ours.direction_norm, base, coverage)
    largest, relative, tolerance = dict[str, float](), dict[str, float](), dict[str, float]()
    for name in names:
        if name in _CHOICES:
            differs = _rows_that_differ(expected[name], theirs[name])
            largest[name] = float(differs.sum())
            unexplained = int(np.sum(differs & ~bounds.near(name)))
        elif name == "confidence":
            difference = np.abs(expected[name] - theirs[name])
            largest[name] = float(difference.max())
            unexplained = int(np.sum(~bounds.confidence_explains(theirs[name])))
        else:
            difference = _difference(expected[name], theirs[name])
            largest[name] = float(difference.max())
            relative[name] = float((difference / bounds.size(name)).max())
            tolerance[name] = bounds.tolerance(name)
            unexplained = int(np.sum(np.any(_columns(difference / bounds.size(name)) > tolerance[name], axis=1)))
        if unexplained:
            raise InvalidInputError(
                f"Expected a graph that answers as the model does. Got another {name} in {unexplained} of {len(ours)} "
                f"row(s), beyond what rounding explains (largest difference {largest[name]:.3g}). Nothing was written; "
                "please export another backbone, and report this one."
            )
    n_flags = int(largest.get("accepted", 0))
    return Parity(len(ours), rows, largest, relative, tolerance, n_flags, _explained(model, base))


def _rounding(backbone: Any) -> float:
    return _SINGLE if computes_in_single(backbone) else max(_DOUBLE, _AMPLIFIED * amplification(backbone))


def _run(session: Any, described: list[dict[str, Any]], X: Any, n_rows: int) -> dict[str, NDArray[Any]]:
    blocks: list[list[Any]] = []
    for start in range(0, n_rows, _N_BLOCK):
        rows = _safe_indexing(X, np.arange(start, min(start + _N_BLOCK, n_rows)))
        blocks.append(session.run(None, graph_inputs(described, rows)))
    names = [output.name for output in session.get_outputs()]
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*blocks, strict=True), strict=True)}


def _columns(values: NDArray[Any]) -> NDArray[Any]:
    return values[:, None] if values.ndim == 1 else values


def _rows_that_differ(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.bool_]:
    same = ours.astype(str) == theirs.astype(str) if ours.dtype.kind in "UO" else ours == theirs
    return np.asarray(~_columns(np.asarray(same)).all(axis=1))


def _difference(ours: Floats, theirs: Floats) -> Floats:
    """0 where both are infinite, or both not a number; infinite where only one is."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
    alike = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return np.where(alike, 0.0, np.where(np.isnan(difference), np.inf, difference))


class _Bounds:
    """How large each answer is, how far it may be off, and which choices are too close to call within that."""

    def __init__(self, model: Any, answers: dict[str, Any], length: Any, base: float, coverage: float) -> None:
        self._model, self._answers, self._base, self._coverage = model, answers, base, coverage
        spread = getattr(model, "spread_", None)
        if spread is None and isinstance(model, FrozenHead):
            spread = getattr(model.target_.embedding, "spread_", None)
        # An ordinary answer: the spread of the target, or for classes a direction of length 1.
        self._ordinary = np.ones(1) if spread is None else np.where(spread == 0, 1.0, spread)
        self._length = np.maximum(np.nan_to_num(length, nan=1.0), 1.0)

    def tolerance(self, name: str) -> float:
        """A root turns a difference of ε near zero into one of √ε."""
        rooted = name in ("sigma", "lower", "upper") or (name == "uncertainty" and self._score == "sigma")
        return self._base**0.5 if rooted else self._base

    def size(self, name: str) -> Any:
        """What a difference is relative to, for each row (and column)."""
        answer = self._answers[name]
        with np.errstate(invalid="ignore"):
            known = np.where(np.isfinite(answer), np.abs(answer), 1.0) if answer.dtype.kind == "f" else np.ones(1)
        match name:
            case "probabilities":
                return self._length[:, None] + known
            case "uncertainty":
                return known + self._unit * self._length
            case "lower" | "upper":
                return known + self._shaped(self._ordinary * (1.0 + self._half_widths), answer)
            case _:
                return known + self._shaped(self._ordinary, answer)

    def near(self, name: str) -> NDArray[np.bool_]:
        """Rows whose choice is too close to call."""
        if name == "accepted":
            distance = np.abs(self._answers["uncertainty"] - self._model.threshold_)
            return distance <= self.tolerance("uncertainty") * self.size("uncertainty")
        probabilities = self._answers["probabilities"]
        allowed = 4.0 * probabilities.shape[1] * self._base * self._length[:, None]
        ranked = -np.sort(-probabilities, axis=1)
        tied = (ranked[:, :-1] - ranked[:, 1:] <= allowed) & (ranked[:, :-1] > allowed)
        if name == "set":
            limit = conformal_quantile(self._model.calibration_.true_scores, self._coverage)
            tied |= np.any(np.abs(set_scores(probabilities) - limit) <= allowed + 2e-12, axis=1, keepdims=True)
        return np.asarray(np.any(tied, axis=1))

    def confidence_explains(self, theirs: Floats) -> NDArray[np.bool_]:
        """Confidence is a count of calibration rows: it may differ by those that lie within the tolerance."""
        uncertainty, confidence = self._answers["uncertainty"], self._model.calibration_.confidence
        off = self.tolerance("uncertainty") * self.size("uncertainty")
        least, most = confidence(uncertainty + off), confidence(uncertainty - off)
        return (theirs >= least - 1e-12) & (theirs <= most + 1e-12)

    @property
    def _score(self) -> str:
        return getattr(self._model, "uncertainty_score", "")

    @property
    def _unit(self) -> float:
        """Of the score: that of the target, or 1."""
        has_unit = self._score in ("distance", "anchored", "sigma") or getattr(self._model, "kind", "joint") != "joint"
        return float(self._ordinary.max()) if has_unit else 1.0

    @property
    def _half_widths(self) -> Any:
        calibration = self._model.calibration_
        return half_widths(calibration, self._coverage) if isinstance(calibration, RegressionCalibration) else 0.0

    def _shaped(self, columns: Any, answer: NDArray[Any]) -> Any:
        return columns if answer.ndim > 1 else columns[0]


def _explained(model: Any, base: float) -> str:
    parts: list[str] = []
    if has_trees(model.estimator_):
        parts.append(
            "Trees send every row to the same leaf: where scikit-learn rounds features to float32 (forests), so does "
            "the graph, and thresholds and leaves keep float64."
        )
    source = "The network computes in float32" if base == _SINGLE else "Sums are added up in another order"
    if _DOUBLE < base < _SINGLE:
        enlarged = f"{amplification(model.estimator_):,.0f} times"
        source += f", which a kernel whose landmarks nearly coincide enlarges up to {enlarged}"
    parts.append(f"{source}: differences of up to {base:g} of an answer's size are let pass as rounding.")
    parts.append(
        f"Near zero a root makes that up to {base**0.5:.1g} for sigma, lower and upper. Confidence and decisions can "
        "differ only for rows whose uncertainty is that close to a calibration row or to the threshold."
    )
    return " ".join(parts)
