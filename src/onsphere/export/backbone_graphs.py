"""Fitted backbones as parts of a graph: trees and a few steps by our own hand, all else by skl2onnx, networks by torch.

skl2onnx writes trees for float32, and has no Nyström method and no imputer that onnxruntime runs in double precision.
What it writes right in double precision it writes here.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidTypeError, MissingExtraError
from onsphere.export.graph import OPSET, session_of
from onsphere.export.symbols import ROWS, Symbol, concat, unary
from onsphere.export.trees import boosted, forest

__all__ = ["amplification", "columns_of", "computes_in_single", "has_trees", "steps_of"]

_WHAT_CAN = "Forests, histogram gradient boosting, MLPs, linear models and kernels can."


def steps_of(backbone: Any) -> list[Any]:
    """The steps of a pipeline, those of pipelines in it too, without those that do nothing; or the backbone alone."""
    from sklearn.pipeline import Pipeline

    if not isinstance(backbone, Pipeline):
        return [backbone]
    active = [step for _, step in backbone.steps if step is not None and step != "passthrough"]
    return [inner for step in active for inner in steps_of(step)]


def computes_in_single(backbone: Any) -> bool:
    """Whether a step computes in float32, as networks of torch do."""
    return any(_is_network(part) for part in _parts(backbone))


def has_trees(backbone: Any) -> bool:
    """Whether a step is or holds a tree."""
    return any(hasattr(part, "tree_") or hasattr(part, "_predictors") for part in _parts(backbone))


def amplification(backbone: Any) -> float:
    """How many times a step enlarges the rounding of those before it.

    Nyström's method divides by the roots of singular values, cut at 1e-12: where landmarks nearly coincide, by 1e-6.
    """
    kernels = [part.normalization_ for part in _parts(backbone) if hasattr(part, "normalization_")]
    return max((float(np.linalg.norm(matrix, 2)) for matrix in kernels), default=1.0)


def _parts(backbone: Any) -> Generator[Any]:
    """All steps, and those of estimators that they hold."""
    for step in steps_of(backbone):
        yield step
        for inner in getattr(step, "estimators_", ()):
            yield from _parts(inner)


def columns_of(steps: list[Any], x: Symbol) -> Symbol:
    """What the steps, of which the last predicts, make of rows of numbers."""
    for step in steps:
        x = _converted(step, x)
    return x


def _converted(step: Any, x: Symbol) -> Symbol:
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.kernel_approximation import Nystroem
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.tree import DecisionTreeRegressor

    match step:
        case ExtraTreesRegressor() | RandomForestRegressor():
            return forest(x, [tree.tree_ for tree in step.estimators_])
        case DecisionTreeRegressor():
            return forest(x, [step.tree_])
        case MultiOutputRegressor():
            learners: Any = step.estimators_
            if all(isinstance(each, HistGradientBoostingRegressor) for each in learners):
                return _boosting(learners, x)
            return concat([columns_of(steps_of(each), x) for each in learners])
        case SimpleImputer():
            return _imputed(step, x)
        case Nystroem():
            return _kernel(step, x)
        case _ if _is_network(step):
            return _network(step, x)
        case _:
            return _by_skl2onnx(step, x)


def _refused(step: Any, why: str, instead: str) -> InvalidTypeError:
    return InvalidTypeError(f"Expected a backbone that can be exported. Got {type(step).__name__}, {why}. {instead}")


def _boosting(learners: list[Any], x: Symbol) -> Symbol:
    for learner in learners:
        if type(learner._loss.link).__name__ != "IdentityLink":
            raise _refused(learner, f"with loss={learner.loss!r}, whose predictions are not sums", "Use squared_error.")
        if learner._preprocessor is not None:
            raise _refused(learner, "with categorical features", "Encode them as zeros and ones first.")
    columns = [[tree for step in learner._predictors for tree in step] for learner in learners]
    return boosted(x, columns, np.array([float(learner._baseline_prediction[0, 0]) for learner in learners]))


def _imputed(step: Any, x: Symbol) -> Symbol:
    if step.add_indicator or not (isinstance(step.missing_values, float) and np.isnan(step.missing_values)):
        raise _refused(step, "with an indicator or a missing value other than NaN", "Use SimpleImputer() without them.")
    statistics = np.asarray(step.statistics_, dtype=np.float64)
    kept = np.flatnonzero(~np.isnan(statistics))  # columns that were always missing are dropped
    if len(kept) < len(statistics):
        x, statistics = x.take(kept), statistics[kept]
    return unary("IsNaN", x, np.bool_).made("Where", statistics, x, shape=x.shape, dtype=x.dtype)


def _kernel(step: Any, x: Symbol) -> Symbol:
    if step.kernel != "rbf":
        raise _refused(step, f"with kernel={step.kernel!r}", "Use kernel='rbf'.")
    landmarks = np.asarray(step.components_, dtype=np.float64)
    gamma = 1.0 / x.shape[-1] if step.gamma is None else float(step.gamma)
    squares = (x * x).reduced("ReduceSum", -1, keepdims=True)
    distances = (x @ (-2.0 * landmarks.T)) + squares + np.sum(landmarks * landmarks, axis=1)
    kernel = unary("Exp", distances.with_other("Max", 0.0) * -gamma)
    return kernel @ np.asarray(step.normalization_, dtype=np.float64).T


def _is_network(step: Any) -> bool:
    return hasattr(step, "net_") and hasattr(step, "standardize_rows")


def _network(step: Any, x: Symbol) -> Symbol:
    """A TorchRegressor: its scalers in float64, as in Python, and the network itself in float32."""
    import torch

    if step.mixed_precision:
        raise _refused(step, "with mixed_precision=True", "Fit with mixed_precision=False.")
    module = step.net_.module_
    device = next(module.parameters()).device
    n_features = x.shape[-1]
    try:
        import onnxscript  # noqa: F401  # type: ignore[reportUnusedImport]
    except ImportError:
        raise missing_extra_error("Exporting a network", "onnxscript", "export") from None
    try:
        with _quiet():
            sizes = ({0: torch.export.Dim("rows")},)
            traced = torch.export.export(module.cpu().eval(), (torch.zeros(2, n_features),), dynamic_shapes=sizes)
            program: Any = torch.onnx.export(traced, dynamo=True, opset_version=OPSET, verbose=False)
    except Exception as error:  # torch lets through whatever a network of the user's own stumbles over
        why = f"whose network torch.onnx cannot export ({type(error).__name__}: {str(error).splitlines()[0]})"
        raise _refused(step, why, "Use layers that it knows.") from None
    finally:
        module.to(device)
    scaler = step._feature_scaler
    scaled = x if scaler.mean_ is None else (x - scaler.mean_)
    scaled = scaled if scaler.scale_ is None else scaled / scaler.scale_
    single = scaled.cast(np.float32)
    name = x.graph.include(program.model_proto, single.name)
    outputs = Symbol(x.graph, name, (ROWS, step._column_scaler.n_features_in_), single.dtype)
    return step.unstandardize(outputs.cast(np.float64))


@contextmanager
def _quiet() -> Generator[None]:
    """Without what torch warns, prints and logs while it exports."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _by_skl2onnx(step: Any, x: Symbol) -> Symbol:
    try:
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import DoubleTensorType
    except ImportError:
        raise missing_extra_error("ONNX export", "skl2onnx", "export") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            types: Any = [("rows", DoubleTensorType([None, x.shape[-1]]))]
            model: Any = to_onnx(step, initial_types=types, target_opset={"": OPSET, "ai.onnx.ml": 3})
        result = session_of(model.SerializeToString()).run(None, {"rows": np.zeros((1, x.shape[-1]))})[0]
    except MissingExtraError:
        raise
    except Exception as error:  # of skl2onnx and onnxruntime, which have many
        why = f"which skl2onnx and onnxruntime cannot do in double precision ({' '.join(str(error).split())[:150]})"
        raise _refused(step, why, _WHAT_CAN) from None
    if result.dtype != np.float64:
        raise _refused(step, f"which skl2onnx writes for {result.dtype}", _WHAT_CAN)
    return Symbol(x.graph, x.graph.include(model, x.name), (ROWS, result.shape[1]))
