"""Compare the answers of a graph with those of its model on the same rows: rounding must explain each difference."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from onsphere._internal.validation import Floats
from onsphere.calibration import set_scores
from onsphere.errors import InvalidInputError
from onsphere.export.backbone_graphs import compute_amplification, has_trees, uses_float32
from onsphere.export.graph_inputs import Inputs, prepare_inputs
from onsphere.export.group_graphs import compute_widest_half
from onsphere.export.model_graphs import Asked
from onsphere.models import HCMRegressor
from onsphere.models.frozen import FrozenHead

__all__ = ["DRAWN", "GIVEN", "Parity", "compare_answers"]

# Which rows were compared.
GIVEN = "given rows"
DRAWN = "rows drawn column by column from the summary of each column, some values missing or unknown"

# How far two computations may differ, relative to the size of the result.
_DOUBLE, _SINGLE = 1e-9, 1e-5
_MISSED = 1e-9  # a shortfall, which has ten billion levels, whatever the backbone
_AMPLIFIED = 1e-12  # times the factor by which the backbone enlarges rounding errors
_N_BLOCK = 1_000  # rows at once: a graph of trees holds leaves of many trees for each

_FIELDS: dict[str, str] = {"label": "value", "set": "prediction_set"}  # of an Assessment, if named differently
_CHOICES = ("label", "set", "accepted", "reason")
_SHARES = ("confidence", "novelty_p_value")  # of calibration rows
_OF_NOISE = ("noise", "sigma", "uncertainty", "lower", "upper", "quantiles", "confidence", "accepted", "reason")
_OF_DOMAIN = ("lower", "upper", "quantiles")
_SCORES_WITH_UNIT = ("total", "distance", "anchored", "sigma", "linear", "quadratic", "kernel")  # that of the target


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
        Rows that only one of the two accepts; all of them are within the tolerance of a threshold.
    n_leaf_differs : int
        Rows whose noise comes from other leaves; all of them are within the tolerance of a node's threshold. Their
        noise, sigma and interval, and what follows from them, are not in `relative`.
    explanation : str
        Where differences come from.
    """

    n_rows: int
    rows: str
    largest: dict[str, float]
    relative: dict[str, float]
    tolerance: dict[str, float]
    n_flag_differs: int
    n_leaf_differs: int
    explanation: str

    def __str__(self) -> str:
        largest = ", ".join(f"{name} {value:.2g}" for name, value in self.largest.items())
        return f"Compared on {self.n_rows:,} {self.rows}. Largest difference: {largest}. {self.explanation}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def compare_answers(
    model: Any, session: Any, inputs: Inputs, X: Any, asked: Asked | float, *, source: str = GIVEN
) -> Parity:
    """Run the model and the graph on some rows, and reject a graph whose differences rounding does not explain."""
    asked = asked if isinstance(asked, Asked) else Asked(asked)
    coverage = asked.coverage
    ours = model.assess(X, coverage=coverage, tails=asked.tails)
    theirs = _run(session, inputs, X, len(ours))
    expected = {
        name: np.asarray(getattr(ours, _FIELDS.get(name, name))) for name in theirs if name != "quantiles"
    } | _predict_unrounded(model, X, asked, list(theirs))
    backbone = model.estimator_
    rounding = _SINGLE if uses_float32(backbone) else max(_DOUBLE, _AMPLIFIED * compute_amplification(backbone))
    bounds = _Bounds(model, expected, ours.direction_norm, rounding, coverage)
    largest, relative, tolerance = dict[str, float](), dict[str, float](), dict[str, float]()
    other_leaves: set[int] = set()
    for name, answer in theirs.items():
        difference = np.zeros(len(ours))
        if name in _CHOICES:
            differs = _find_differing_rows(expected[name], answer)
            largest[name] = float(differs.sum())
            unexplained = differs & ~bounds.find_close_calls(name)
        elif name in _SHARES:
            largest[name] = float(np.abs(expected[name] - answer).max())
            unexplained = ~bounds.allows_share(name, answer)
        else:
            difference = _subtract(expected[name], answer)
            if name in _OF_DOMAIN and model.domain_ is not None and model.domain_.is_whole:
                difference = np.maximum(difference - 0.5, 0.0)  # the nearest whole number is no further away
            largest[name] = float(difference.max())
            difference = np.max((difference / bounds.get_size(name)).reshape(len(ours), -1), axis=1)
            tolerance[name] = bounds.get_tolerance(name)
            unexplained = difference > tolerance[name]
        if name in _OF_NOISE and unexplained.any():
            rows = _find_tied_leaves(model, X, np.flatnonzero(unexplained), rounding)
            other_leaves.update(rows.tolist())
            unexplained[rows], difference[rows] = False, 0.0
        if name in tolerance:
            relative[name] = float(difference.max())
        if unexplained.any():
            raise InvalidInputError(
                f"Expected a graph that answers as the model does. Got another {name} in {int(unexplained.sum())} of "
                f"{len(ours)} row(s), beyond what rounding explains (largest difference {largest[name]:.3g}). Nothing "
                "was written; please export another backbone, and report this one."
            )
    n_flags, n_leaves = int(largest.get("accepted", 0)), len(other_leaves)
    return Parity(len(ours), source, largest, relative, tolerance, n_flags, n_leaves, _explain(model, rounding))


def _predict_unrounded(model: Any, X: Any, asked: Asked, names: list[str]) -> dict[str, Any]:
    """Return the quantiles and, of a model with a domain, the ends of intervals before they become whole numbers."""
    if "quantiles" not in names and ("lower" not in names or model.domain_ is None):
        return {}
    raw = copy(model)
    raw.domain_ = None if model.domain_ is None else replace(model.domain_, is_whole=False)
    distribution = raw.predict_distribution(X)
    found: dict[str, Any] = {}
    if raw.domain_ is not None:
        ends = distribution.interval(asked.coverage, tails=asked.tails)
        found = {"lower": ends[..., 0], "upper": ends[..., 1]}
    return found | ({"quantiles": distribution.quantiles(asked.levels)} if asked.levels else {})


def _get_error_trees(model: Any) -> Any:
    """Return the error frame of a model whose noise trees predict, None for others."""
    error = model._frames.error if isinstance(model, HCMRegressor) and model._frames is not None else None
    return None if error is None or error.trees is None else error


def _find_tied_leaves(model: Any, X: Any, rows: NDArray[np.intp], rounding: float) -> NDArray[np.intp]:
    """Return those of the rows for which rounding decides between two leaves in the trees of the error frame."""
    error = _get_error_trees(model)
    if error is None:
        return rows[:0]
    numbers, _, value, sigma = model._predict_outputs(_safe_indexing(X, rows))
    missed = model._frames.measure_novelty(numbers)[1]
    size = np.abs(value) + error.unit
    nudges = {"value": rounding * size}
    if sigma is not None:  # its square is off by ε, so sigma itself by ε/σ
        nudges["sigma"] = rounding * size**2 / np.maximum(sigma, rounding**0.5 * size)
    leaves = error.trees.apply(error.join_inputs(numbers, value, sigma, missed))
    tied = np.zeros(len(rows), dtype=np.bool_)
    for name, nudge in nudges.items():
        for output in range(value.shape[1]):
            for sign in (-1.0, 1.0):
                moved: dict[str, Any] = {"value": value.copy(), "sigma": None if sigma is None else sigma.copy()}
                moved[name][:, output] += sign * nudge[:, output]
                moved["sigma"] = None if sigma is None else np.maximum(moved["sigma"], 0.0)
                inputs = error.join_inputs(numbers, moved["value"], moved["sigma"], missed)
                tied |= np.any(error.trees.apply(inputs) != leaves, axis=1)
    return rows[tied]


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
        self._is_numeric = "value" in answers
        spread = model.spread_ if self._is_numeric else np.ones(1)
        self._ordinary = np.where(spread == 0, 1.0, spread)
        domain = model.domain_ if self._is_numeric else None
        self._domain = None if domain is None or domain.scale == "linear" else domain
        n_rows = len(answers["uncertainty"])
        self._length = np.ones(n_rows) if length is None else np.maximum(np.nan_to_num(length, nan=1.0), 1.0)
        ordinary = model._get_ordinary()
        # Where novelty sets in, it grows by so much with the shortfall.
        self._slope = 0.0 if ordinary is None else 1.0 / (ordinary * (1.0 - ordinary))
        self._score: str
        if isinstance(model, FrozenHead):
            self._score = model.kind if ordinary is None else "joint"
            self._slope = max(self._slope, 0.0 if ordinary is None else 1.0 / model._solve().spread["input"])
        else:
            self._score = model.uncertainty_score
            if self._score == "auto":
                self._score = "distance" if model._frames is None else "total"

    def get_tolerance(self, name: str) -> float:
        """Return the largest relative difference; a square root turns one of ε near zero into √ε."""
        if name == "missed":
            return _MISSED
        roots = ("sigma", "noise", *_OF_DOMAIN)
        is_root = name in roots or (name == "uncertainty" and self._score in ("sigma", "total"))
        return self._rounding**0.5 if self._is_numeric and is_root else self._rounding

    def get_size(self, name: str) -> Any:
        """Return what a difference is relative to, for each row (and column)."""
        answer = self._answers[name]
        with np.errstate(invalid="ignore"):
            known = np.where(np.isfinite(answer), np.abs(answer), 1.0) if answer.dtype.kind == "f" else np.ones(1)
        if name == "missed":
            return 1.0
        if name == "novelty":
            return known + self._slope
        if name == "probabilities":
            return self._length[:, None] + known + self._slope
        if self._domain is not None:
            # A difference on the scale that is learned grows with the target itself.
            learned = np.abs(self._domain.to_scale(self._answers["value"])).max() + self._ordinary.max()
            if name in _OF_DOMAIN:
                learned *= 1.0 + float(np.max(compute_widest_half(self._model.calibration_, self._coverage)))
            return (known + self._domain.shift + 1.0) * (1.0 + learned)
        if name == "uncertainty":
            unit = float(self._ordinary.max()) if self._score in _SCORES_WITH_UNIT else 1.0
            return known + unit * (self._length + self._slope)
        ordinary = self._ordinary
        if name in _OF_DOMAIN:
            ordinary = ordinary * (1.0 + compute_widest_half(self._model.calibration_, self._coverage))
        n_axes = answer.ndim - (name == "quantiles")
        if n_axes == 1:
            return known + ordinary[0]
        return known + (ordinary[:, None] if name == "quantiles" else ordinary)

    def find_close_calls(self, name: str) -> NDArray[np.bool_]:
        """Return the rows whose choice is too close to call."""
        if name in ("accepted", "reason"):
            close = np.zeros(len(self._length), dtype=np.bool_)
            for score, limit in (("uncertainty", self._model.threshold_), ("missed", self._model.novelty_threshold_)):
                if limit is not None:
                    values, off = self._get_score(score)
                    close |= np.abs(values - limit) <= off
            return close
        probabilities = self._answers["probabilities"]
        allowed = 4.0 * probabilities.shape[1] * self._rounding * (self._length + self._slope)[:, None]
        ranked = -np.sort(-probabilities, axis=1)
        tied = (ranked[:, :-1] - ranked[:, 1:] <= allowed) & (ranked[:, :-1] > allowed)
        if name == "set":
            limit = self._model.calibration_.find_set_limit(self._coverage)
            tied |= np.any(np.abs(set_scores(probabilities) - limit) <= allowed + 2e-12, axis=1, keepdims=True)
        return np.asarray(np.any(tied, axis=1))

    def allows_share(self, name: str, theirs: Floats) -> NDArray[np.bool_]:
        """Return whether each share differs only by calibration rows that lie within the tolerance."""
        calibration = self._model.calibration_
        is_novelty = name == "novelty_p_value"
        share = calibration.novelty_p_value if is_novelty else calibration.confidence
        values, off = self._get_score("missed" if is_novelty else "uncertainty")
        least, most = share(values + off), share(values - off)
        return (theirs >= least - 1e-12) & (theirs <= most + 1e-12)

    def _get_score(self, name: str) -> tuple[Any, Any]:
        """Return what is compared with calibration rows and thresholds, and how far it may be off."""
        if name == "missed":
            return self._answers[name], self.get_tolerance(name)  # it is at most 1
        return self._answers[name], self.get_tolerance(name) * self.get_size(name)


def _explain(model: Any, rounding: float) -> str:
    parts: list[str] = []
    backbone = model.estimator_
    if has_trees(backbone):
        parts.append(
            "Trees send every row to the same leaf: where scikit-learn rounds features to float32 (forests), so does "
            "the graph, and thresholds and leaves keep float64."
        )
    source = "The model computes in float32" if rounding == _SINGLE else "Sums are added up in another order"
    if _DOUBLE < rounding < _SINGLE:
        enlarged = f"{compute_amplification(backbone):,.0f} times"
        source += f", which a kernel whose landmarks nearly coincide enlarges up to {enlarged}"
    parts.append(f"{source}: differences of up to {rounding:g} of an answer's size count as rounding.")
    if _get_error_trees(model) is not None:
        parts.append("Trees turn the prediction into noise: one that close to a node's threshold may go the other way.")
    parts.append(
        f"Where sigma is nearly 0, it and the bounds may differ by up to {rounding**0.5:.1g}. Confidence and decisions "
        "can differ only for rows whose uncertainty is that close to a calibration row or to the threshold."
    )
    return " ".join(parts)
