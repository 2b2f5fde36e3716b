"""Compare the answers of a graph with those of its model on the same rows: rounding must explain each difference."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from onsphere._internal.validation import Floats
from onsphere.calibration import conformal_quantile, set_scores
from onsphere.errors import InvalidInputError
from onsphere.export.backbone_graphs import compute_amplification, has_trees, uses_float32
from onsphere.export.graph_inputs import Inputs, prepare_inputs
from onsphere.export.model_graphs import compute_half_widths
from onsphere.models.frozen import FrozenHead

__all__ = ["DRAWN", "GIVEN", "Parity", "compare_answers"]

# Which rows were compared.
GIVEN = "given rows"
DRAWN = "rows drawn column by column from the summary of each column, some values missing or unknown"

# How far two computations may differ, relative to the size of the result.
_DOUBLE, _SINGLE = 1e-9, 1e-5
_AMPLIFIED = 1e-12  # times the factor by which the backbone enlarges rounding errors
_N_BLOCK = 1_000  # rows at once: a graph of trees holds leaves of many trees for each

_FIELDS: dict[str, str] = {"label": "value", "set": "prediction_set"}  # of an Assessment, if named differently
_CHOICES = ("label", "set", "accepted")
_SCORES_WITH_UNIT = ("distance", "anchored", "sigma", "linear", "quadratic", "kernel")  # that of the target


@dataclass(frozen=True)
class Parity:
    """The difference between a graph and its model, on some rows.

    Attributes
    ----------
    n_rows : int
        How many rows were compared.
    rows : str
        Which ones: given or drawn.
    largest : dict of str to float
        For each output the largest difference; for labels, sets and accepted the number of rows that differ.
    relative : dict of str to float
        The same differences relative to the size of the answer plus that of an ordinary one.
    tolerance : dict of str to float
        The largest relative difference that is allowed; a graph that exceeds it on these rows is rejected.
    n_flag_differs : int
        Rows that only one of the two accepts; all of them have an uncertainty within the tolerance of the threshold.
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
        largest = ", ".join(f"{name} {value:.2g}" for name, value in self.largest.items())
        return f"Compared on {self.n_rows:,} {self.rows}. Largest difference: {largest}. {self.explanation}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def compare_answers(
    model: Any, session: Any, inputs: Inputs, X: Any, coverage: float, *, source: str = GIVEN
) -> Parity:
    """Run the model and the graph on some rows, and reject a graph whose differences rounding does not explain."""
    ours = model.assess(X, coverage=coverage)
    theirs = _run(session, inputs, X, len(ours))
    expected = {name: np.asarray(getattr(ours, _FIELDS.get(name, name))) for name in theirs}
    backbone = model.estimator_
    rounding = _SINGLE if uses_float32(backbone) else max(_DOUBLE, _AMPLIFIED * compute_amplification(backbone))
    bounds = _Bounds(model, expected, ours.direction_norm, rounding, coverage)
    largest, relative, tolerance = dict[str, float](), dict[str, float](), dict[str, float]()
    for name, answer in theirs.items():
        if name in _CHOICES:
            differs = _find_differing_rows(expected[name], answer)
            largest[name] = float(differs.sum())
            unexplained = differs & ~bounds.find_close_calls(name)
        elif name == "confidence":
            largest[name] = float(np.abs(expected[name] - answer).max())
            unexplained = ~bounds.allows_confidence(answer)
        else:
            difference = _subtract(expected[name], answer)
            largest[name] = float(difference.max())
            difference = difference / bounds.get_size(name)
            relative[name], tolerance[name] = float(difference.max()), bounds.get_tolerance(name)
            unexplained = np.any(_to_columns(difference) > tolerance[name], axis=1)
        if unexplained.any():
            raise InvalidInputError(
                f"Expected a graph that answers as the model does. Got another {name} in {int(unexplained.sum())} of "
                f"{len(ours)} row(s), beyond what rounding explains (largest difference {largest[name]:.3g}). Nothing "
                "was written; please export another backbone, and report this one."
            )
    n_flags = int(largest.get("accepted", 0))
    return Parity(len(ours), source, largest, relative, tolerance, n_flags, _explain(backbone, rounding))


def _run(session: Any, inputs: Inputs, X: Any, n_rows: int) -> dict[str, NDArray[Any]]:
    blocks: list[list[Any]] = []
    for start in range(0, n_rows, _N_BLOCK):
        rows = _safe_indexing(X, np.arange(start, min(start + _N_BLOCK, n_rows)))
        blocks.append(session.run(None, prepare_inputs(inputs, rows)))
    names = [output.name for output in session.get_outputs()]
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*blocks, strict=True), strict=True)}


def _to_columns(values: NDArray[Any]) -> NDArray[Any]:
    return values[:, None] if values.ndim == 1 else values


def _find_differing_rows(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.bool_]:
    same = ours.astype(str) == theirs.astype(str) if ours.dtype.kind in "UO" else ours == theirs
    return np.asarray(~_to_columns(np.asarray(same)).all(axis=1))


def _subtract(ours: Floats, theirs: Floats) -> Floats:
    """Return the size of each difference: 0 if both are infinite or both NaN, infinite if only one is."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
    alike = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return np.where(alike, 0.0, np.where(np.isnan(difference), np.inf, difference))


class _Bounds:
    """The size of each answer, how far it may be off, and which choices are too close to call within that."""

    def __init__(self, model: Any, answers: dict[str, Any], length: Any, rounding: float, coverage: float) -> None:
        self._model, self._answers, self._rounding, self._coverage = model, answers, rounding, coverage
        # The size of an ordinary answer: the spread of the target, or for classes a direction of length 1.
        spread = model.spread_ if "value" in answers else np.ones(1)
        self._ordinary = np.where(spread == 0, 1.0, spread)
        self._length = np.maximum(np.nan_to_num(length, nan=1.0), 1.0)
        self._score: str = model.kind if isinstance(model, FrozenHead) else model.uncertainty_score

    def get_tolerance(self, name: str) -> float:
        """Return the largest relative difference; a square root turns one of ε near zero into √ε."""
        is_root = name in ("sigma", "lower", "upper") or (name == "uncertainty" and self._score == "sigma")
        return self._rounding**0.5 if is_root else self._rounding

    def get_size(self, name: str) -> Any:
        """Return what a difference is relative to, for each row (and column)."""
        answer = self._answers[name]
        with np.errstate(invalid="ignore"):
            known = np.where(np.isfinite(answer), np.abs(answer), 1.0) if answer.dtype.kind == "f" else np.ones(1)
        if name == "probabilities":
            return self._length[:, None] + known
        if name == "uncertainty":
            unit = float(self._ordinary.max()) if self._score in _SCORES_WITH_UNIT else 1.0
            return known + unit * self._length
        ordinary = self._ordinary
        if name in ("lower", "upper"):
            ordinary = ordinary * (1.0 + compute_half_widths(self._model.calibration_, self._coverage))
        return known + (ordinary if answer.ndim > 1 else ordinary[0])

    def find_close_calls(self, name: str) -> NDArray[np.bool_]:
        """Return the rows whose choice is too close to call."""
        if name == "accepted":
            distance = np.abs(self._answers["uncertainty"] - self._model.threshold_)
            return distance <= self.get_tolerance("uncertainty") * self.get_size("uncertainty")
        probabilities = self._answers["probabilities"]
        allowed = 4.0 * probabilities.shape[1] * self._rounding * self._length[:, None]
        ranked = -np.sort(-probabilities, axis=1)
        tied = (ranked[:, :-1] - ranked[:, 1:] <= allowed) & (ranked[:, :-1] > allowed)
        if name == "set":
            limit = conformal_quantile(self._model.calibration_.true_scores, self._coverage)
            tied |= np.any(np.abs(set_scores(probabilities) - limit) <= allowed + 2e-12, axis=1, keepdims=True)
        return np.asarray(np.any(tied, axis=1))

    def allows_confidence(self, theirs: Floats) -> NDArray[np.bool_]:
        """Return whether each confidence differs only by calibration rows that lie within the tolerance."""
        uncertainty, confidence = self._answers["uncertainty"], self._model.calibration_.confidence
        off = self.get_tolerance("uncertainty") * self.get_size("uncertainty")
        least, most = confidence(uncertainty + off), confidence(uncertainty - off)
        return (theirs >= least - 1e-12) & (theirs <= most + 1e-12)


def _explain(backbone: Any, rounding: float) -> str:
    parts: list[str] = []
    if has_trees(backbone):
        parts.append(
            "Trees send every row to the same leaf: where scikit-learn rounds features to float32 (forests), so does "
            "the graph, and thresholds and leaves keep float64."
        )
    source = "The network computes in float32" if rounding == _SINGLE else "Sums are added up in another order"
    if _DOUBLE < rounding < _SINGLE:
        enlarged = f"{compute_amplification(backbone):,.0f} times"
        source += f", which a kernel whose landmarks nearly coincide enlarges up to {enlarged}"
    parts.append(f"{source}: differences of up to {rounding:g} of an answer's size count as rounding.")
    parts.append(
        f"Near zero a root makes that up to {rounding**0.5:.1g} for sigma, lower and upper. Confidence and decisions "
        "can differ only for rows whose uncertainty is that close to a calibration row or to the threshold."
    )
    return " ".join(parts)
