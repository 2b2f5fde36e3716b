"""From a fitted model to all that its graph answers.

Decoding, sigma and scores are those of the library itself, called with symbols; what is written here is what they leave
to numpy: probabilities, sets, confidence and the decision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import check_fitted
from onsphere.calibration import ClassCalibration, RegressionCalibration, conformal_quantile
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.export.backbone_graphs import columns_of, steps_of
from onsphere.export.graph import Graph
from onsphere.export.inputs import encoded_columns, number_table
from onsphere.export.symbols import ROWS, Symbol, unary, unsaid_of_infinite
from onsphere.export.trees import step_function
from onsphere.models import HCMClassifier, HCMRegressor
from onsphere.models.frozen import FrozenHead
from onsphere.models.frozen.designs import Kernel
from onsphere.models.frozen.ridge import Head
from onsphere.models.frozen.sums import LARGEST_OUTPUT
from onsphere.models.frozen.targets import NumberTarget
from onsphere.models.regressor import SIGMA_FLOOR
from onsphere.sphere import geometry
from onsphere.sphere.geometry import SphericalOutput
from onsphere.table.encoder import TableEncoder

__all__ = ["OUTPUTS", "Described", "answers", "check_exportable", "half_widths", "nearest_probabilities"]

OUTPUTS = (
    *("value", "label", "probabilities", "uncertainty", "sigma", "lower", "upper", "set", "confidence", "accepted"),
)

Described = list[dict[str, Any]]


def check_exportable(model: Any) -> None:
    """A fitted model of a kind that has a graph."""
    if not isinstance(model, HCMRegressor | HCMClassifier | FrozenHead):
        raise InvalidTypeError(
            f"Expected a fitted HCMRegressor, HCMClassifier or FrozenHead to export. Got {type(model).__name__}."
        )
    check_fitted(model, "estimator_")


def answers(graph: Graph, model: Any, coverage: float) -> tuple[dict[str, Symbol], Described]:
    """The answers of a model by their names, and the description of the inputs that they are made from."""
    if isinstance(model, FrozenHead):
        x, described = number_table(graph, model.n_features_in_, getattr(model, "feature_names_in_", None))
        found, calibrated = _of_frozen(model, x, coverage)
    else:
        table, described = _backbone_table(graph, model)
        read = _of_numbers if isinstance(model, HCMRegressor) else _of_classes
        found, calibrated = read(model, table, coverage)
    if model.calibration_ is not None:
        found |= calibrated | _judged(model._require_calibration("export_onnx"), model.threshold_, found["uncertainty"])
    return found, described


def _backbone_table(graph: Graph, model: Any) -> tuple[Symbol, Described]:
    steps = steps_of(model.estimator_)
    if isinstance(steps[0], TableEncoder):
        x, described = encoded_columns(graph, steps.pop(0))
    else:
        x, described = number_table(graph, model.n_features_in_, getattr(model, "feature_names_in_", None))
    return unsaid_of_infinite(x, columns_of(steps, x)), described


# --- numbers ---


def _of_numbers(model: Any, table: Symbol, coverage: float) -> tuple[dict[str, Symbol], dict[str, Symbol]]:
    outputs = _read(table, **model._layout)
    sigma = model.embedding_.sigma(outputs)
    value = model.embedding_.decode(outputs, decoder=model.decoder)
    uncertainty = model._compute_uncertainty(outputs, sigma)
    return _numbers_told(model, value, sigma, uncertainty, model.spread_, model._target_is_flat, coverage)


def _numbers_told(
    model: Any, value: Symbol, sigma: Symbol, uncertainty: Symbol, spread: Any, flat: bool, coverage: float
) -> tuple[dict[str, Symbol], dict[str, Symbol]]:
    def shaped(columns: Symbol) -> Symbol:
        return columns[:, 0] if flat else columns

    found = {"value": shaped(value), "uncertainty": uncertainty, "sigma": shaped(sigma)}
    if model.calibration_ is None:
        return found, {}
    half = (sigma + SIGMA_FLOOR * spread) * half_widths(model.calibration_, coverage)
    return found, {"lower": shaped(value - half), "upper": shaped(value + half)}


def half_widths(calibration: RegressionCalibration, coverage: float) -> Any:
    """Half of an interval in units of sigma, (D,): that of a row with value 0 and sigma 1."""
    shape = (1, calibration.ratios.shape[1])
    return calibration.interval(np.zeros(shape), np.ones(shape), coverage=coverage)[0, :, 1]


def _read(table: Symbol, *, n_outputs: int, magnitude: bool, mean: bool) -> SphericalOutput:
    """As `onsphere.models.backbone.split_columns`, which makes a magnitude that nobody learned by numpy."""
    n_direction = table.shape[1] - (n_outputs if mean else 0) - magnitude
    direction = table[:, :n_direction]
    length = table[:, n_direction] if magnitude else table.__array_namespace__().ones_like(table[:, 0])
    return SphericalOutput(direction, length, table[:, n_direction + magnitude :] if mean else None)


# --- classes ---


def _of_classes(model: Any, table: Symbol, coverage: float) -> tuple[dict[str, Symbol], dict[str, Symbol]]:
    outputs = _read(table, **model._layout)
    return _classes_told(model, outputs.direction, model._compute_uncertainty(outputs), coverage)


def _classes_told(
    model: Any, direction: Symbol, uncertainty: Symbol, coverage: float
) -> tuple[dict[str, Symbol], dict[str, Symbol]]:
    probabilities = nearest_probabilities(direction)
    index = direction.made("ArgMax", shape=(ROWS,), dtype=np.dtype(np.int64), axis=1, keepdims=0)
    labels = direction.like(_labels(model.classes_))
    label = labels.made("Gather", index, shape=(ROWS,), axis=0)
    found = {"label": label, "probabilities": probabilities, "uncertainty": uncertainty}
    if model.calibration_ is None:
        return found, {}
    return found, {"set": _prediction_set(probabilities, model.calibration_, coverage)}


def _labels(classes: NDArray[Any]) -> NDArray[Any]:
    if classes.dtype.kind in "iu":
        return classes.astype(np.int64)
    if classes.dtype.kind in "bf":
        return classes.astype(np.bool_ if classes.dtype.kind == "b" else np.float64)
    if all(isinstance(label, str) for label in classes):
        return classes.astype(object)
    raise InvalidInputError(
        f"Expected classes that are text, whole numbers, numbers or booleans. Got {classes[:3].tolist()}. "
        "Name them by text, and fit again."
    )


def nearest_probabilities(direction: Symbol) -> Symbol:
    """The point of the probability simplex nearest to each direction; see `onsphere.models.classifier`."""
    n_classes = direction.shape[1]
    direction = direction - direction.reduced("ReduceMax", 1, keepdims=True)
    descending = _descending(direction)
    excess = _cumulated(descending) - 1.0
    counts = np.arange(1.0, n_classes + 1)
    reached = (excess < descending * counts).cast(np.float64).reduced("ReduceSum", 1, keepdims=True)
    last = (reached - 1.0).cast(np.int64)
    shift = excess.made("GatherElements", last, shape=(ROWS, 1), axis=1) / reached
    cut = (direction - shift).with_other("Max", 0.0)
    return cut / cut.reduced("ReduceSum", 1, keepdims=True)


def _prediction_set(probabilities: Symbol, calibration: ClassCalibration, coverage: float) -> Symbol:
    """A set holds the classes that are as likely as the last, by rank, with little enough before it."""
    limit = float(conformal_quantile(calibration.true_scores, coverage)) + 1e-12
    ranked = _descending(probabilities)
    inside = (_cumulated(ranked) - ranked) <= limit
    least = inside.made("Where", ranked, ranked.like(2.0), shape=ranked.shape, dtype=ranked.dtype)
    return probabilities >= least.reduced("ReduceMin", 1, keepdims=True)


def _descending(x: Symbol) -> Symbol:
    name = x.graph.add_all("TopK", [x.name, x.graph.constant(np.array([x.shape[1]]))], 2, axis=1)[0]
    return Symbol(x.graph, name, x.shape)


def _cumulated(x: Symbol) -> Symbol:
    return x.made("CumSum", np.array(1), shape=x.shape)


# --- frozen heads ---


def _of_frozen(model: FrozenHead, x: Symbol, coverage: float) -> tuple[dict[str, Symbol], dict[str, Symbol]]:
    solution, target = model._solve(), model.target_
    tables = {name: _head_table(head, x) for name, head in solution.heads.items()}
    # Where a head says more than numbers can hold it has nothing to say, and its score is infinite.
    silent = {name: _any_beyond(table, LARGEST_OUTPUT) for name, table in tables.items()}
    scores: list[Symbol] = []
    for name, table in tables.items():
        score = target.score(_frozen_outputs(target, table), solution.reach[name])
        said: Symbol = x.__array_namespace__().where(silent[name][:, 0], np.inf, score)
        scores.append(said if len(tables) == 1 else (said - solution.center[name]) / solution.spread[name])
    uncertainty = scores[0]
    for score in scores[1:]:
        uncertainty = uncertainty + score
    numeric = isinstance(target, NumberTarget)
    unsaid = np.nan if numeric else 0.0  # without a direction, all classes are equally likely
    table = x.__array_namespace__().where(silent[solution.value_head], unsaid, tables[solution.value_head])
    outputs = _frozen_outputs(target, table)
    if not numeric:
        return _classes_told(model, outputs.direction, uncertainty, coverage)
    value, sigma = target.embedding.decode(outputs, decoder="mean"), target.embedding.sigma(outputs)
    spread = target.embedding.spread_
    return _numbers_told(model, value, sigma, uncertainty, spread, target.is_flat, coverage)  # type: ignore


def _frozen_outputs(target: Any, table: Symbol) -> SphericalOutput:
    if isinstance(target, NumberTarget):
        return _read(table, n_outputs=target.embedding.n_outputs_, magnitude=True, mean=True)
    return _read(table, n_outputs=target.width, magnitude=False, mean=False)


def _head_table(head: Head, x: Symbol) -> Symbol:
    """As `Head.predict`; the kernel's columns are made by numpy there."""
    design = head.design
    if not isinstance(design, Kernel):
        return head.predict(x)  # type: ignore[reportArgumentType]
    distances = (geometry.split(x)[0] @ design.landmarks.T) * -2.0 + 2.0
    columns = unary("Exp", distances.with_other("Max", 0.0) / -design.bandwidth)
    return columns @ head.weights + head.intercept


def _any_beyond(table: Symbol, largest: float) -> Symbol:
    """Whether an entry of a row is that large or NaN, (n, 1)."""
    inside = (abs(table) < largest).cast(np.float64).reduced("ReduceMin", 1, keepdims=True)
    return inside == 0.0


# --- judgement ---


def _judged(calibration: Any, threshold: float | None, uncertainty: Symbol) -> dict[str, Symbol]:
    steps, counts = np.unique(calibration.uncertainty, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    n_rows = len(calibration)
    confidence = step_function(uncertainty[:, None], steps, (1.0 + n_rows - below) / (1.0 + n_rows))[:, 0]
    return {"confidence": confidence} | ({} if threshold is None else {"accepted": uncertainty <= threshold})
