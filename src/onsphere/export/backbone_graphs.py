"""Fitted backbones as parts of a graph: trees and a few steps by our own code, networks by torch, the rest by skl2onnx.

skl2onnx writes trees for float32, and has no Nyström method and no imputer that onnxruntime runs in double precision.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline
from sklearn.tree import BaseDecisionTree, DecisionTreeRegressor

from onsphere.errors import InvalidTypeError, MissingExtraError
from onsphere.export.booster_graphs import get_booster_library, sum_booster
from onsphere.export.class_graphs import add_first_class, convert_classifier
from onsphere.export.graph_arrays import ROWS, GraphArray, concat
from onsphere.export.graph_builder import OPSET, import_extra, open_session
from onsphere.export.tree_graphs import average_forest, sum_boosted_trees
from onsphere.models.fitted import FittedModel, OnnxModel
from onsphere.models.relevance import RelevanceScaler

__all__ = ["compute_amplification", "convert_steps", "has_trees", "list_steps", "uses_float32"]

_CONVERTIBLE = "Use a forest, histogram gradient boosting, an MLP, a linear model or a kernel."


def list_steps(backbone: Any) -> list[Any]:
    """Return the steps of a pipeline and of pipelines inside it, without those that do nothing; or the backbone."""
    if not isinstance(backbone, Pipeline):
        return [backbone]
    active = [step for _, step in backbone.steps if step is not None and step != "passthrough"]
    return [inner for step in active for inner in list_steps(step)]


def uses_float32(backbone: Any) -> bool:
    """Return whether a step computes in float32, as networks of torch do."""
    return any(_is_network(part) or _rounds_sums(part) for part in _walk_parts(backbone))


def _rounds_sums(part: Any) -> bool:
    """Return whether a model adds up in float32: XGBoost, and graphs from elsewhere."""
    return get_booster_library(part) == "xgboost" or isinstance(part, OnnxModel)


def has_trees(backbone: Any) -> bool:
    """Return whether a step is or holds a tree."""
    trees = BaseDecisionTree | HistGradientBoostingClassifier | HistGradientBoostingRegressor
    return any(isinstance(part, trees) or get_booster_library(part) is not None for part in _walk_parts(backbone))


def compute_amplification(backbone: Any) -> float:
    """Return how many times a step enlarges the rounding errors of the steps before it.

    Nyström's method divides by the roots of singular values, cut at 1e-12: by 1e-6 if landmarks nearly coincide.
    """
    kernels = [part.normalization_ for part in _walk_parts(backbone) if isinstance(part, Nystroem)]
    return max((float(np.linalg.norm(matrix, 2)) for matrix in kernels), default=1.0)


def _walk_parts(backbone: Any) -> Generator[Any]:
    """Yield all steps, and the estimators inside them."""
    for step in list_steps(backbone):
        yield step
        if isinstance(step, FittedModel):
            yield from _walk_parts(step.model)
        for inner in getattr(step, "estimators_", ()):
            yield from _walk_parts(inner)


def convert_steps(steps: list[Any], x: GraphArray) -> GraphArray:
    """Run rows of numbers through the steps; the last one predicts."""
    for step in steps:
        x = _convert_step(step, x)
    return x


def _convert_step(step: Any, x: GraphArray) -> GraphArray:
    match step:
        case ExtraTreesRegressor() | RandomForestRegressor():
            return average_forest(x, [tree.tree_ for tree in step.estimators_])
        case DecisionTreeRegressor():
            return average_forest(x, [step.tree_])
        case MultiOutputRegressor():
            learners: Any = step.estimators_
            if all(isinstance(each, HistGradientBoostingRegressor) for each in learners):
                return _convert_boosting(learners, x)
            return concat([convert_steps(list_steps(each), x) for each in learners])
        case FittedModel():
            return _convert_fitted(step, x)
        case HistGradientBoostingRegressor():
            return _convert_boosting([step], x)
        case _ if get_booster_library(step) is not None:
            return sum_booster(x, step)
        case SimpleImputer():
            return _convert_imputer(step, x)
        case RelevanceScaler():
            return (x - step.mean_) / step.scale_
        case Nystroem():
            return _convert_kernel(step, x)
        case _ if _is_network(step):
            return _convert_network(step, x)
        case _:
            return _convert_by_skl2onnx(step, x)


def _backbone_error(step: Any, why: str, advice: str) -> InvalidTypeError:
    return InvalidTypeError(f"Expected a backbone that can be exported. Got {type(step).__name__}, {why}. {advice}")


def _convert_boosting(learners: list[Any], x: GraphArray) -> GraphArray:
    for learner in learners:
        if type(learner._loss.link).__name__ != "IdentityLink":
            why = f"with loss={learner.loss!r}, whose predictions are not sums"
            raise _backbone_error(learner, why, "Use squared_error.")
        _check_without_categories(learner)
    columns = [[tree for step in learner._predictors for tree in step] for learner in learners]
    return sum_boosted_trees(x, columns, np.array([float(learner._baseline_prediction[0, 0]) for learner in learners]))


def _check_without_categories(learner: Any) -> None:
    """Raise an error for histogram gradient boosting whose nodes ask for categories."""
    if learner._preprocessor is not None:
        raise _backbone_error(learner, "with categorical features", "Encode them as zeros and ones first.")


def _convert_fitted(step: FittedModel, x: GraphArray) -> GraphArray:
    model = step.model
    if isinstance(model, OnnxModel):
        table = _include_graph(model, x)
        return add_first_class(table) if step.has_classes else table
    if not hasattr(model, "predict"):
        raise _backbone_error(model, "a function", "Put it in an ONNX file, and pass the name of the file.")
    if not step.has_classes:
        return convert_steps(list_steps(model), x)
    *steps, last = list_steps(model)
    x = convert_steps(steps, x)
    if isinstance(last, HistGradientBoostingClassifier):
        _check_without_categories(last)
    table = convert_classifier(last, x)
    return add_first_class(_convert_by_skl2onnx(last, x, has_classes=True) if table is None else table)


def _include_graph(model: OnnxModel, x: GraphArray) -> GraphArray:
    onnx = import_extra("onnx", "ONNX export")
    graph = onnx.load_from_string(model.content)
    if any(node.op_type.startswith("TreeEnsemble") and node.op_type != "TreeEnsemble" for node in graph.graph.node):
        why = "a graph whose trees are written in an older version of ONNX than ours, and the two do not mix"
        raise _backbone_error(
            model, why, "Pass the fitted model itself in a FrozenEstimator; its trees are written anew."
        )
    if any(node.op_type == "ZipMap" for node in graph.graph.node):
        why = "a graph that names each probability by its class"
        raise _backbone_error(model, why, "Write it with one table of probabilities (zipmap=False in skl2onnx).")
    kind = np.float64 if model._open().get_inputs()[0].type == "tensor(double)" else np.float32
    rows = x.cast(kind)
    found = model.predict(np.zeros((1, x.shape[-1])))
    name = x.graph.include_model(graph, rows.name, place=model.place)
    included = GraphArray(x.graph, name, (ROWS, *found.shape[1:]), found.dtype)
    table = included if found.ndim == 2 else included.apply("Reshape", np.array([-1, 1]), shape=(ROWS, 1))
    return table.cast(np.float64)


def _convert_imputer(step: Any, x: GraphArray) -> GraphArray:
    if step.add_indicator or not (isinstance(step.missing_values, float) and np.isnan(step.missing_values)):
        why = "with an indicator or a missing value other than NaN"
        raise _backbone_error(step, why, "Use SimpleImputer() without them.")
    statistics = np.asarray(step.statistics_, dtype=np.float64)
    kept = np.flatnonzero(~np.isnan(statistics))  # columns that were always missing are dropped
    if len(kept) < len(statistics):
        x, statistics = x.apply("Gather", kept, shape=(ROWS, len(kept)), axis=1), statistics[kept]
    return x.apply("IsNaN", dtype=np.bool_).apply("Where", statistics, x, dtype=x.dtype)


def _convert_kernel(step: Any, x: GraphArray) -> GraphArray:
    if step.kernel != "rbf":
        raise _backbone_error(step, f"with kernel={step.kernel!r}", "Use kernel='rbf'.")
    landmarks = np.asarray(step.components_, dtype=np.float64)
    gamma = 1.0 / x.shape[-1] if step.gamma is None else float(step.gamma)
    squares = (x * x).reduce("ReduceSum", axis=-1, keepdims=True)
    distances = (x @ (-2.0 * landmarks.T)) + squares + np.sum(landmarks * landmarks, axis=1)
    kernel = (distances.combine("Max", 0.0) * -gamma).apply("Exp")
    return kernel @ np.asarray(step.normalization_, dtype=np.float64).T


def _is_network(step: Any) -> bool:
    if "onsphere.torch" not in sys.modules:  # then nobody has made one, and torch need not be installed
        return False
    from onsphere.torch import TorchRegressor

    return isinstance(step, TorchRegressor)


def _convert_network(step: Any, x: GraphArray) -> GraphArray:
    """Convert a TorchRegressor: its scalers in float64, as in Python, and the network itself in float32."""
    if step.mixed_precision:
        raise _backbone_error(step, "with mixed_precision=True", "Fit with mixed_precision=False.")
    module = step.net_.module_
    device = next(module.parameters()).device
    try:
        proto = trace_network(module.cpu().eval(), [np.zeros((2, x.shape[-1]), dtype=np.float32)], step)
    finally:
        module.to(device)
    scaler = step._feature_scaler
    scaled = x if scaler.mean_ is None else (x - scaler.mean_)
    scaled = scaled if scaler.scale_ is None else scaled / scaler.scale_
    single = scaled.cast(np.float32)
    name = x.graph.include_model(proto, single.name)
    outputs = GraphArray(x.graph, name, (ROWS, step._column_scaler.n_features_in_), single.dtype)
    return step.unstandardize(outputs.cast(np.float64))


def trace_network(module: Any, examples: list[NDArray[Any]], owner: Any) -> Any:
    """Return a network as an ONNX model, for any number of rows like those of the examples, one for each input.

    Texts (rows of whole numbers, one for each token) may have any length, unless the network depends on it.
    """
    import torch

    import_extra("onnxscript", "Exporting a network")
    try:
        with _silence():
            given = tuple(torch.from_numpy(each) for each in examples)
            rows, any_length = torch.export.Dim("rows"), torch.export.Dim.AUTO
            sizes: Any = torch.export.ShapesCollection()
            for values in given:
                is_text = values.dim() == 2 and not values.is_floating_point()
                sizes[values] = {0: rows, 1: any_length} if is_text else {0: rows}
            traced = torch.export.export(module, given, dynamic_shapes=sizes)
            return cast(Any, torch.onnx.export(traced, dynamo=True, opset_version=OPSET, verbose=False)).model_proto
    except Exception as error:  # torch raises whatever a user's own network raises
        first = str(error).strip().partition("\n")[0]
        why = f"whose network torch.onnx cannot export ({type(error).__name__}: {first})"
        raise _backbone_error(owner, why, "Use layers that it knows.") from None


@contextmanager
def _silence() -> Generator[None]:
    """Drop what torch warns, prints and logs while it exports."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _convert_by_skl2onnx(step: Any, x: GraphArray, *, has_classes: bool = False) -> GraphArray:
    skl2onnx = import_extra("skl2onnx", "ONNX export")
    from skl2onnx.common.data_types import DoubleTensorType

    place = int(has_classes)  # probabilities come after the label
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            types: Any = [("rows", DoubleTensorType([None, x.shape[-1]]))]
            options: Any = {"target_opset": {"": OPSET, "ai.onnx.ml": 3}}
            if has_classes:
                options["options"] = {id(step): {"zipmap": False}}
            model: Any = skl2onnx.to_onnx(step, initial_types=types, **options)
        result = open_session(model.SerializeToString()).run(None, {"rows": np.zeros((1, x.shape[-1]))})[place]
    except MissingExtraError:
        raise
    except Exception as error:  # skl2onnx and onnxruntime raise many kinds
        why = f"which skl2onnx and onnxruntime cannot do in double precision ({' '.join(str(error).split())[:150]})"
        raise _backbone_error(step, why, _CONVERTIBLE) from None
    if result.dtype != np.float64:
        raise _backbone_error(step, f"which skl2onnx writes for {result.dtype}", _CONVERTIBLE)
    return GraphArray(x.graph, x.graph.include_model(model, x.name, place=place), (ROWS, result.shape[1]))
