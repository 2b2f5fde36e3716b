"""From a fitted model to all outputs of its graph.

Decoding, sigma, scores and frames are computed by the library's own functions, called with arrays of the graph. This
file has what they leave to numpy: probabilities, sets, confidence and the decision. It is the only one that reads the
parts of a fitted model.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_fitted
from onsphere.calibration import ClassCalibration, PredictiveDistribution, RegressionCalibration, root_mean_square
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.export.backbone_graphs import convert_steps, list_steps
from onsphere.export.graph_arrays import ROWS, GraphArray, concat, hide_infinite_rows, hide_lost_rows
from onsphere.export.graph_builder import GraphBuilder
from onsphere.export.graph_inputs import Inputs, add_column_inputs, add_table_input
from onsphere.export.group_graphs import check_groups, compute_half_widths, find_group_column
from onsphere.export.tree_graphs import look_up_steps
from onsphere.models import HCMClassifier, HCMRegressor
from onsphere.models.backbone import get_fitted, split_columns
from onsphere.models.base import REASONS
from onsphere.models.classifier import mix_evenly
from onsphere.models.frames import Measured, pick_width
from onsphere.models.frozen.ridge import Head, Kernel
from onsphere.models.frozen.solved import SolvedModel
from onsphere.models.frozen.sums import LARGEST_OUTPUT, Solution
from onsphere.models.frozen.targets import NumberTarget
from onsphere.sphere import Domain, geometry, scores
from onsphere.table.encoder import TableEncoder

__all__ = [
    "Asked",
    "check_exportable",
    "convert_model",
    "convert_rows",
    "find_ends",
    "list_outputs",
    "project_to_simplex",
]

_OUTPUTS = (
    *("value", "label", "probabilities", "uncertainty", "sigma", "noise", "novelty", "novelty_p_value", "missed"),
    *("lower", "upper", "quantiles", "set", "confidence", "accepted", "reason"),
)
_OF_FRAMES = ("noise", "novelty", "novelty_p_value", "missed", "reason")

Outputs = dict[str, GraphArray]


class Asked(NamedTuple):
    """The settings of a graph, which are fixed.

    Attributes
    ----------
    coverage, tails
        Of intervals; sets have the coverage alone.
    levels : tuple of float
        Of quantiles.
    column : array of the graph, or None
        The column by which intervals are grouped, if one does.
    """

    coverage: float
    tails: str = "symmetric"
    levels: tuple[float, ...] = ()
    column: GraphArray | None = None


def check_exportable(model: Any) -> None:
    """Check that a model is fitted and of a kind that can be exported."""
    if not isinstance(model, HCMRegressor | HCMClassifier | SolvedModel):
        raise InvalidTypeError(
            f"Expected a fitted HCMRegressor, HCMClassifier or FrozenHead to export. Got {type(model).__name__}. "
            "Of a CalibratedNetwork, export what onsphere.torch.to_torch makes of it."
        )
    check_fitted(model, "estimator_")


def list_outputs(model: Any, asked: Asked) -> tuple[str, ...]:
    """Return the names that the outputs of a model may have, in their order."""
    left_out = (*(() if asked.levels else ("quantiles",)), *(() if model._frames is not None else _OF_FRAMES))
    return tuple(name for name in _OUTPUTS if name not in left_out)


def convert_model(graph: GraphBuilder, model: Any, asked: Asked) -> tuple[Outputs, Inputs]:
    """Add a model to a graph, and return its outputs by name and the description of its inputs."""
    first, steps = ([], []) if isinstance(model, SolvedModel) else _split_steps(model)
    if model._frames is not None and model._frames.encoder is not None:
        raise InvalidInputError(
            "Expected columns of numbers, to export. Got categories, which the backbone takes as they are: "
            f"{', '.join(map(str, model._frames.encoder.transformers_[0][2]))}. Fit the table with "
            "onsphere.table.fit_table, or encode its categories before."
        )
    if first and isinstance(first[0], TableEncoder):
        x, inputs = add_column_inputs(graph, first.pop(0))
    else:
        x, inputs = add_table_input(graph, model.n_features_in_, getattr(model, "feature_names_in_", None))
    check_groups(model)
    if model.calibration_ is not None and model.calibration_.groups is not None:
        _check_plain(model, asked)
    asked = asked._replace(column=find_group_column(model, x, inputs))
    if isinstance(model, SolvedModel):
        outputs = _convert_frozen(model, x, asked)
    else:
        numbers = convert_steps(first, x)
        table = hide_infinite_rows(x, convert_steps(steps, numbers))
        convert = _convert_regressor if isinstance(model, HCMRegressor) else _convert_classifier
        outputs = convert(model, numbers, table, asked)
    _add_calibration(model, outputs)
    return outputs, inputs


def convert_rows(model: SolvedModel, rows: GraphArray, asked: Asked) -> Outputs:
    """Add a head behind the rows that a network in the same graph has made, and return its outputs by name."""
    outputs = _convert_frozen(model, rows, asked)
    _add_calibration(model, outputs)
    return outputs


def _add_calibration(model: Any, outputs: Outputs) -> None:
    if model.calibration_ is not None:
        calibration = model._require_calibration("export_onnx")
        outputs["confidence"] = _rank(outputs["uncertainty"], calibration.uncertainty)
        if "missed" in outputs and calibration.missed is not None:
            outputs["novelty_p_value"] = _rank(outputs["missed"], calibration.missed)
        outputs |= _decide(model, outputs["uncertainty"], outputs.get("missed"))


def _split_steps(model: Any) -> tuple[list[Any], list[Any]]:
    """Return the steps of a backbone that make the numbers which frames see, and those after them."""
    backbone, n_steps = model.estimator_, 0 if model._frames is None else model._frames.n_steps
    first = list_steps(backbone[:n_steps]) if n_steps else []
    steps = list_steps(backbone[n_steps:] if n_steps else backbone)
    if not first and isinstance(steps[0], TableEncoder):  # which leaves numbers as they are
        first = [steps.pop(0)]
    return first, steps


# --- numbers ---


def _convert_regressor(model: Any, numbers: GraphArray, table: Any, asked: Asked) -> Outputs:
    columns, value, sigma = model._read_table(table)
    measured: Any = model._measure(numbers, value, sigma, predict=_run_trees)
    if model._frames is not None:
        measured = Measured(*(None if part is None else hide_lost_rows(table, part) for part in measured))
    uncertainty = model._compute_uncertainty(columns, value, sigma, measured.sigma)
    curves = model._read_curves(numbers, value, measured, predict=_run_trees)
    return _convert_numbers(model, value, measured, uncertainty, curves, asked)


def _run_trees(trees: Any, rows: Any) -> GraphArray:
    return convert_steps([trees], rows)


def _convert_numbers(
    model: Any, value: GraphArray, measured: Any, uncertainty: Any, curves: GraphArray | None, asked: Asked
) -> Outputs:
    domain: Domain = model.domain_ or Domain()
    center: Any = domain.from_scale(value)
    outputs: Outputs = {"value": _shape_like_target(model, center), "uncertainty": uncertainty}
    outputs["sigma"] = _shape_like_target(model, domain.convert_sigma(value, model._calibrate_sigma(measured.sigma)))
    if model.calibration_ is not None and _has_plain_intervals(model, asked):
        source: Any = {"column": asked.column, "value": value, "missed": measured.missed}
        widths = compute_half_widths(model.calibration_, asked.coverage, **source)
        half = _pick_width(model, value, measured) * widths
        outputs["lower"] = _shape_like_target(model, value - half)
        outputs["upper"] = _shape_like_target(model, value + half)
    elif model.calibration_ is not None:
        sigma = _pick_width(model, value, measured)
        for name, end in zip(("lower", "upper"), find_ends(model, asked), strict=True):
            outputs[name] = _shape_like_target(model, _convert_scores(model, value, sigma, curves, end))
    if asked.levels:
        sigma = _pick_width(model, value, measured)
        outputs["quantiles"] = _convert_quantiles(model, value, sigma, curves, asked.levels)
    if model._frames is not None:
        outputs["noise"] = _shape_like_target(
            model, domain.convert_sigma(value, model._calibrate_sigma(measured.noise))
        )
    return outputs | _name_novelty(measured.novelty, measured.missed)


def _pick_width(model: Any, value: GraphArray, measured: Any) -> Any:
    return pick_width(model.calibration_.width, value, measured.sigma, measured.noise, model)


def _has_plain_intervals(model: Any, asked: Asked) -> bool:
    """Return whether intervals are value ± a multiple of sigma."""
    has_curves = model._shape is not None and model._shape.trees is not None
    is_limited = model.domain_ is not None and model.domain_.is_limited
    return not is_limited and not has_curves and asked.tails == "symmetric"


def _check_plain(model: Any, asked: Asked) -> None:
    is_plain = _has_plain_intervals(model, asked) and not asked.levels
    if isinstance(model.calibration_, RegressionCalibration) and not is_plain:
        raise InvalidInputError(
            "Expected symmetric intervals of groups, to export: value ± a multiple of sigma. Got groups together with "
            "a domain, a local shape, quantiles or other tails. Calibrate without groups, fit with domain=None, or use "
            "the model itself."
        )


def find_ends(model: Any, asked: Asked) -> tuple[Floats, Floats]:
    """Return the scores of both ends of an interval, (D,)."""
    shape = (1, model.calibration_.residuals.shape[1])
    ordinary = PredictiveDistribution(
        value=np.zeros(shape),
        sigma=np.ones(shape),
        calibration=model.calibration_,
        domain=model.domain_ or Domain(),
        shape=model._shape,
        curves=None,
        is_flat=False,
    )
    lower, upper = ordinary.find_ends(asked.coverage, tails=asked.tails)
    return lower[0], upper[0]


def _convert_quantiles(
    model: Any, value: GraphArray, sigma: Any, curves: GraphArray | None, levels: tuple[float, ...]
) -> GraphArray:
    """Return the quantiles at all levels, (n, Q) or (n, D, Q)."""
    limits = model.calibration_.find_quantile_scores(levels)
    joined = concat([_convert_scores(model, value, sigma, curves, limit)[..., None] for limit in limits])
    return joined[:, 0] if model._target_is_flat else joined


def _convert_scores(model: Any, value: GraphArray, sigma: Any, curves: GraphArray | None, scores: Floats) -> Any:
    """Return the targets (n, D) that have these scores, (D,)."""
    residuals: Any = scores
    if curves is not None:
        columns = [
            model._shape.from_scores(value.to_array(scores[None, output : output + 1]), curves, output)[:, None]
            for output in range(len(scores))
        ]
        residuals = concat(columns)
    return (model.domain_ or Domain()).to_target(value + sigma * residuals)


def _shape_like_target(model: Any, columns: GraphArray) -> GraphArray:
    return columns[:, 0] if model._target_is_flat else columns


def _name_novelty(novelty: GraphArray | None, missed: GraphArray | None) -> Outputs:
    return {} if novelty is None or missed is None else {"novelty": novelty, "missed": missed}


# --- classes ---


def _convert_classifier(model: Any, numbers: GraphArray, table: Any, asked: Asked) -> Outputs:
    columns: Any = split_columns(table, **model._layout)
    found: Any = (None, None) if model._frames is None else model._frames.measure_novelty(numbers)
    novelty, missed = (None if part is None else hide_lost_rows(table, part) for part in found)
    uncertainty = model._compute_uncertainty(columns, novelty)
    direction = columns.direction
    own = direction if get_fitted(model.estimator_) is not None else project_to_simplex(direction)
    return _convert_classes(model, columns, own, uncertainty, novelty, missed, asked)


def _convert_classes(
    model: Any, columns: Any, own: GraphArray, uncertainty: Any, novelty: Any, missed: Any, asked: Asked
) -> Outputs:
    """Return the outputs of classes; `own` are the probabilities before novelty."""
    direction = columns.direction
    probabilities: Any = mix_evenly(own, novelty)
    index = direction.apply("ArgMax", shape=(ROWS,), dtype=np.int64, axis=1, keepdims=0)
    labels = direction.to_array(_convert_labels(model.classes_))
    label = labels.apply("Gather", index, shape=(ROWS,), axis=0)
    outputs = {"label": label, "probabilities": probabilities, "uncertainty": uncertainty}
    if model.calibration_ is not None:
        if model.calibration_.scaling is not None:
            outputs["probabilities"] = mix_evenly(model.calibration_.scaling.apply(direction), novelty)
        outputs["set"] = _convert_sets(probabilities, model.calibration_, asked.coverage)
    if model._frames is not None:
        outputs["noise"] = scores.signed(columns).combine("Max", 0.0)
    return outputs | _name_novelty(novelty, missed)


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
    limit = float(calibration.find_limit(calibration.true_scores, coverage)) + 1e-12
    ranked = _sort_descending(probabilities)
    inside = (_cumulate(ranked) - ranked) <= limit
    least = inside.apply("Where", ranked, ranked.to_array(2.0), dtype=ranked.dtype)
    return probabilities >= least.reduce("ReduceMin", axis=1, keepdims=True)


def _sort_descending(x: GraphArray) -> GraphArray:
    return x.apply("TopK", np.array([x.shape[1]]), n_outputs=2, axis=1)


def _cumulate(x: GraphArray) -> GraphArray:
    return x.apply("CumSum", np.array(1))


# --- frozen heads ---


def _convert_frozen(model: SolvedModel, x: GraphArray, asked: Asked) -> Outputs:
    solution, target = model._solve(), model.target_
    xp = x.__array_namespace__()
    last: Any = solution.take_last(x)
    tables: dict[str, Any] = {name: _convert_head(head, last) for name, head in solution.heads.items()}
    # A head whose prediction is too large for floats has no prediction, and its score is infinite.
    lost = {
        name: (abs(table) < LARGEST_OUTPUT).cast(np.float64).reduce("ReduceMin", axis=1, keepdims=True) == 0.0
        for name, table in tables.items()
    }
    is_numeric = isinstance(target, NumberTarget)
    frames = solution.frames
    has_trees = frames is not None and frames.error is not None and frames.error.trees is not None

    def read() -> tuple[Any, Any, Measured]:
        """Return what the best head predicts, its value (None for classes) and the parts of the uncertainty."""
        # Without a direction, all classes are equally likely; a number is unknown, but trees need one.
        is_lost = lost[solution.value_head]
        empty = np.nan if is_numeric and not has_trees else 0.0
        columns: Any = target.read_table(xp.where(is_lost, empty, tables[solution.value_head]))
        value, measured = _measure_frozen(target, solution, x, columns)
        if has_trees:
            value = xp.where(is_lost, np.nan, value)
            noise, sigma = (xp.where(is_lost, np.nan, part) for part in (measured.noise, measured.sigma))
            measured = measured._replace(noise=noise, sigma=sigma)
        return columns, value, measured

    # With frames the shortfall is a score like those of the heads, so it comes before them.
    found = None if solution.frames is None else read()
    missed: Any = None if found is None else found[2].missed
    is_scaled = len(tables) > 1 or missed is not None
    parts: list[Any] = []
    for name, table in tables.items():
        score = target.score(target.read_table(table), solution.reach[name])
        known: GraphArray = xp.where(lost[name][:, 0], np.inf, score)
        parts.append((known - solution.center[name]) / solution.spread[name] if is_scaled else known)
    if missed is not None:
        parts.append(xp.clip((missed - solution.center["input"]) / solution.spread["input"], 0.0, None))
    uncertainty = reduce(operator.add, parts)
    columns, value, measured = read() if found is None else found
    if is_numeric:
        if has_trees:
            total: Any = root_mean_square(measured.sigma)
            uncertainty = xp.where(lost[solution.value_head][:, 0], np.inf, total)
        return _convert_numbers(model, value, measured, uncertainty, None, asked)
    own = project_to_simplex(columns.direction)
    return _convert_classes(model, columns, own, uncertainty, measured.novelty, missed, asked)


def _measure_frozen(target: Any, solution: Solution, x: GraphArray, columns: Any) -> tuple[Any, Measured]:
    """Return value and parts of the uncertainty; for classes None as value, noise and sigma."""
    frames = solution.frames
    if not isinstance(target, NumberTarget):
        novelty, missed = (None, None) if frames is None else frames.measure_novelty(solution.place(x))
        return None, Measured(None, None, novelty, missed)
    embedding = target.embedding
    value: Any = embedding.decode(columns, decoder="mean")
    sigma: Any = embedding.sigma(columns)
    if frames is None:
        return value, Measured(sigma, sigma, None, None)
    ends = {"center": embedding.center_, "spread": embedding.spread_}
    return value, frames.measure(solution.place(x), value, sigma, **ends, predict=_run_trees)


def _convert_head(head: Head, x: GraphArray) -> GraphArray:
    """Compute what `Head.predict` does; there numpy makes the columns of a kernel."""
    design = head.design
    if not isinstance(design, Kernel):
        return head.predict(x)  # type: ignore
    distances = (geometry.split(x)[0] @ design.landmarks.T) * -2.0 + 2.0
    columns = (distances.combine("Max", 0.0) / -design.bandwidth).apply("Exp")
    return columns @ head.weights + head.intercept


# --- ranks and decisions ---


def _rank(values: GraphArray, held_out: Floats) -> GraphArray:
    """Return the share of held-out rows (counting the row itself) that have at least this value, (n,)."""
    steps, counts = np.unique(held_out, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    n_rows = len(held_out)
    return look_up_steps(values[:, None], steps, (1.0 + n_rows - below) / (1.0 + n_rows))[:, 0]


def _decide(model: Any, uncertainty: GraphArray, missed: GraphArray | None) -> Outputs:
    """Return which rows are accepted and, for a model with an input frame, why the others are not."""
    passed: list[tuple[float, GraphArray]] = []  # and the codes of those that do not pass
    if model.threshold_ is not None:
        passed.append((1.0, uncertainty <= model.threshold_))
        if missed is None:
            return {"accepted": passed[0][1]}
    if missed is not None and model.novelty_threshold_ is not None:
        passed.append((2.0, missed <= model.novelty_threshold_))
    if not passed:
        return {}
    codes = [(1.0 - is_passed.cast(np.float64)) * code for code, is_passed in passed]
    code: Any = sum(codes[1:], codes[0])
    texts = code.to_array(REASONS.astype(object))
    reason = texts.apply("Gather", code.cast(np.int64), shape=(ROWS,), axis=0)
    return {"accepted": code == 0.0, "reason": reason}
