"""From a fitted model to all outputs of its graph.

Decoding, sigma and scores are computed by the library's own functions, called with arrays of the graph. This file has
what they leave to numpy: probabilities, sets, confidence and the decision. It is the only one that reads the parts of
a fitted model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import check_fitted
from onsphere.calibration import ClassCalibration, RegressionCalibration, conformal_quantile
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.export.backbone_graphs import convert_steps, list_steps
from onsphere.export.graph_arrays import ROWS, GraphArray, hide_infinite_rows
from onsphere.export.graph_builder import GraphBuilder
from onsphere.export.graph_inputs import Inputs, add_column_inputs, add_table_input
from onsphere.export.tree_graphs import look_up_steps
from onsphere.models import HCMClassifier, HCMRegressor
from onsphere.models.backbone import split_columns
from onsphere.models.frozen import FrozenHead
from onsphere.models.frozen.ridge import Head, Kernel
from onsphere.models.frozen.sums import LARGEST_OUTPUT
from onsphere.models.frozen.targets import NumberTarget
from onsphere.models.regressor import SIGMA_FLOOR
from onsphere.sphere import geometry
from onsphere.table.encoder import TableEncoder

__all__ = ["OUTPUTS", "check_exportable", "compute_half_widths", "convert_model", "project_to_simplex"]

OUTPUTS = ("value", "label", "probabilities", "uncertainty", "sigma", "lower", "upper", "set", "confidence", "accepted")

Outputs = dict[str, GraphArray]


def check_exportable(model: Any) -> None:
    """Check that a model is fitted and of a kind that can be exported."""
    if not isinstance(model, HCMRegressor | HCMClassifier | FrozenHead):
        raise InvalidTypeError(
            f"Expected a fitted HCMRegressor, HCMClassifier or FrozenHead to export. Got {type(model).__name__}."
        )
    check_fitted(model, "estimator_")


def convert_model(graph: GraphBuilder, model: Any, coverage: float) -> tuple[Outputs, Inputs]:
    """Add a model to a graph, and return its outputs by name and the description of its inputs."""
    steps = [] if isinstance(model, FrozenHead) else list_steps(model.estimator_)
    if steps and isinstance(steps[0], TableEncoder):
        x, inputs = add_column_inputs(graph, steps.pop(0))
    else:
        x, inputs = add_table_input(graph, model.n_features_in_, getattr(model, "feature_names_in_", None))
    if isinstance(model, FrozenHead):
        outputs = _convert_frozen(model, x, coverage)
    else:
        columns = split_columns(hide_infinite_rows(x, convert_steps(steps, x)), **model._layout)  # type: ignore
        if isinstance(model, HCMRegressor):
            sigma: Any = model.embedding_.sigma(columns)
            value: Any = model.embedding_.decode(columns, decoder=model.decoder)
            outputs = _convert_numbers(model, value, sigma, model._compute_uncertainty(columns, sigma), coverage)
        else:
            outputs = _convert_classes(model, columns.direction, model._compute_uncertainty(columns), coverage)
    if model.calibration_ is not None:
        calibration = model._require_calibration("export_onnx")
        outputs["confidence"] = _convert_confidence(calibration, outputs["uncertainty"])
        if model.threshold_ is not None:
            outputs["accepted"] = outputs["uncertainty"] <= model.threshold_
    return outputs, inputs


# --- numbers ---


def _convert_numbers(model: Any, value: GraphArray, sigma: GraphArray, uncertainty: Any, coverage: float) -> Outputs:
    def shape_like_target(columns: GraphArray) -> GraphArray:
        return columns[:, 0] if model._target_is_flat else columns

    outputs = {"value": shape_like_target(value), "uncertainty": uncertainty, "sigma": shape_like_target(sigma)}
    if model.calibration_ is not None:
        half = (sigma + SIGMA_FLOOR * model.spread_) * compute_half_widths(model.calibration_, coverage)
        outputs |= {"lower": shape_like_target(value - half), "upper": shape_like_target(value + half)}
    return outputs


def compute_half_widths(calibration: RegressionCalibration, coverage: float) -> Any:
    """Return half of an interval in units of sigma, (D,): that of a row with value 0 and sigma 1."""
    shape = (1, calibration.ratios.shape[1])
    return calibration.interval(np.zeros(shape), np.ones(shape), coverage=coverage)[0, :, 1]


# --- classes ---


def _convert_classes(model: Any, direction: Any, uncertainty: Any, coverage: float) -> Outputs:
    probabilities = project_to_simplex(direction)
    index = direction.apply("ArgMax", shape=(ROWS,), dtype=np.int64, axis=1, keepdims=0)
    labels = direction.to_array(_convert_labels(model.classes_))
    label = labels.apply("Gather", index, shape=(ROWS,), axis=0)
    outputs = {"label": label, "probabilities": probabilities, "uncertainty": uncertainty}
    if model.calibration_ is not None:
        outputs["set"] = _convert_sets(probabilities, model.calibration_, coverage)
    return outputs


def _convert_labels(classes: NDArray[Any]) -> NDArray[Any]:
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


def project_to_simplex(direction: GraphArray) -> GraphArray:
    """Return the class probabilities nearest to each direction, as `onsphere.models.classifier` computes them."""
    n_classes = direction.shape[1]
    direction = direction - direction.reduce("ReduceMax", axis=1, keepdims=True)
    descending = _sort_descending(direction)
    excess = _cumulate(descending) - 1.0
    counts = np.arange(1.0, n_classes + 1)
    n_positive = (excess < descending * counts).cast(np.float64).reduce("ReduceSum", axis=1, keepdims=True)
    last = (n_positive - 1.0).cast(np.int64)
    shift = excess.apply("GatherElements", last, shape=(ROWS, 1), axis=1) / n_positive
    cut = (direction - shift).combine("Max", 0.0)
    return cut / cut.reduce("ReduceSum", axis=1, keepdims=True)


def _convert_sets(probabilities: GraphArray, calibration: ClassCalibration, coverage: float) -> GraphArray:
    """Return for each class whether it is as likely as the last, by rank, with little enough probability before it."""
    limit = float(conformal_quantile(calibration.true_scores, coverage)) + 1e-12
    ranked = _sort_descending(probabilities)
    inside = (_cumulate(ranked) - ranked) <= limit
    least = inside.apply("Where", ranked, ranked.to_array(2.0), dtype=ranked.dtype)
    return probabilities >= least.reduce("ReduceMin", axis=1, keepdims=True)


def _sort_descending(x: GraphArray) -> GraphArray:
    return x.apply("TopK", np.array([x.shape[1]]), n_outputs=2, axis=1)


def _cumulate(x: GraphArray) -> GraphArray:
    return x.apply("CumSum", np.array(1))


# --- frozen heads ---


def _convert_frozen(model: FrozenHead, x: GraphArray, coverage: float) -> Outputs:
    solution, target = model._solve(), model.target_
    xp = x.__array_namespace__()
    tables: dict[str, Any] = {name: _convert_head(head, x) for name, head in solution.heads.items()}
    # A head whose prediction is too large for floats has no prediction, and its score is infinite.
    lost = {
        name: (abs(table) < LARGEST_OUTPUT).cast(np.float64).reduce("ReduceMin", axis=1, keepdims=True) == 0.0
        for name, table in tables.items()
    }
    scores: list[GraphArray] = []
    for name, table in tables.items():
        score = target.score(target.read_table(table), solution.reach[name])
        known: GraphArray = xp.where(lost[name][:, 0], np.inf, score)
        scores.append(known if len(tables) == 1 else (known - solution.center[name]) / solution.spread[name])
    uncertainty = scores[0]
    for score in scores[1:]:
        uncertainty = uncertainty + score
    is_numeric = isinstance(target, NumberTarget)
    empty = np.nan if is_numeric else 0.0  # without a direction, all classes are equally likely
    columns: Any = target.read_table(xp.where(lost[solution.value_head], empty, tables[solution.value_head]))
    if not is_numeric:
        return _convert_classes(model, columns.direction, uncertainty, coverage)
    value: Any = target.embedding.decode(columns, decoder="mean")
    sigma: Any = target.embedding.sigma(columns)
    return _convert_numbers(model, value, sigma, uncertainty, coverage)


def _convert_head(head: Head, x: GraphArray) -> GraphArray:
    """Compute what `Head.predict` does; there numpy makes the columns of a kernel."""
    design = head.design
    if not isinstance(design, Kernel):
        return head.predict(x)  # type: ignore
    distances = (geometry.split(x)[0] @ design.landmarks.T) * -2.0 + 2.0
    columns = (distances.combine("Max", 0.0) / -design.bandwidth).apply("Exp")
    return columns @ head.weights + head.intercept


# --- confidence ---


def _convert_confidence(calibration: Any, uncertainty: GraphArray) -> GraphArray:
    steps, counts = np.unique(calibration.uncertainty, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    n_rows = len(calibration)
    return look_up_steps(uncertainty[:, None], steps, (1.0 + n_rows - below) / (1.0 + n_rows))[:, 0]
