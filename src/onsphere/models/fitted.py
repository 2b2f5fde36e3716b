"""Models that are fitted already: anything that predicts becomes a backbone that is never fitted again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from onsphere._internal.validation import Floats, is_frame, is_onnx_path, missing_extra_error
from onsphere.errors import InvalidInputError, InvalidTypeError, MissingExtraError

__all__ = ["FittedModel", "OnnxModel", "check_n_features", "wrap_fitted"]


class FittedModel(RegressorMixin, BaseEstimator):
    """A model that was fitted elsewhere, as a backbone: `fit` changes nothing, and `predict` is the model's own.

    Parameters
    ----------
    model : object
        A fitted estimator, a booster, a function of rows, or an `OnnxModel`.
    has_classes : bool
        Whether it gives the probability of each class, or numbers.
    """

    def __init__(self, model: Any, *, has_classes: bool = False) -> None:
        self.model = model
        self.has_classes = has_classes

    def fit(self, X: Any, y: Any = None) -> Self:
        """Return the model as it is."""
        return self

    def predict(self, X: Any) -> Floats:
        """Return the numbers that the model predicts, (n, D), or the probabilities of all classes, (n, C)."""
        if self.has_classes and hasattr(self.model, "predict_proba"):
            return np.asarray(self.model.predict_proba(X), dtype=np.float64)
        values = np.asarray(self._run(X), dtype=np.float64)
        table = values.reshape(len(values), -1)
        return np.hstack([1.0 - table, table]) if self.has_classes and table.shape[1] == 1 else table

    def _run(self, X: Any) -> Any:
        if not hasattr(self.model, "predict"):
            return self.model(X)
        if hasattr(self.model, "inplace_predict"):  # a Booster of XGBoost, which takes rows of its own kind
            from xgboost import DMatrix

            return self.model.predict(DMatrix(X, enable_categorical=is_frame(X)))
        return self.model.predict(X)


class OnnxModel(BaseEstimator):
    """A graph from an ONNX file that takes one table of numbers.

    Parameters
    ----------
    content : bytes
        What the file holds.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the first output that is a table of floats, or else the first one."""
        session = self._open()
        given = session.get_inputs()[0]
        rows = np.asarray(X, dtype=np.float64 if given.type == "tensor(double)" else np.float32)
        answers = session.run(None, {given.name: rows})
        tables = [answer for answer in answers if isinstance(answer, np.ndarray) and answer.dtype.kind == "f"]
        return np.asarray((tables or answers)[0])

    @property
    def n_features_in_(self) -> Any:
        """The number of columns that the graph takes; not an int if it takes any."""
        return self._open().get_inputs()[0].shape[-1]

    def _open(self) -> Any:
        if "_session" not in vars(self):
            try:
                import onnxruntime
            except ImportError:
                raise missing_extra_error("A model in an ONNX file", "onnxruntime", "export") from None
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(self.content, options, providers=["CPUExecutionProvider"])
        return self._session

    def __getstate__(self) -> dict[str, Any]:
        return {"content": self.content}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.content = state["content"]


def wrap_fitted(owner: object, estimator: Any, *, has_classes: bool = False) -> FittedModel:
    """Return a fitted model as a backbone, or raise an error if it cannot be one."""
    model = estimator
    while isinstance(model, FrozenEstimator):
        model = model.estimator
    if is_onnx_path(model):
        model = _read_onnx(Path(model))
    who, name = type(owner).__name__, type(model).__name__
    given = get_tags(model).estimator_type if hasattr(model, "__sklearn_tags__") else None
    if given == ("regressor" if has_classes else "classifier"):
        meant, other = ("classifier", "HCMRegressor") if has_classes else ("regressor", "HCMClassifier")
        raise InvalidTypeError(
            f"Expected a fitted {meant} as the 'estimator' of {who}. Got {name}, a {given}. Use {other} for it."
        )
    if has_classes and given == "classifier" and not hasattr(model, "predict_proba"):
        raise InvalidTypeError(
            f"Expected a fitted classifier with predict_proba as the 'estimator' of {who}. Got {name}, which gives "
            "labels alone. Fit it with probabilities, or wrap it in CalibratedClassifierCV."
        )
    if isinstance(model, BaseEstimator) and hasattr(model, "fit"):
        try:
            check_is_fitted(model)
        except SklearnNotFittedError:
            raise InvalidInputError(
                f"Expected a fitted model in the FrozenEstimator of {who}. Got a {name} that is not fitted. Fit it "
                "first, or pass it without FrozenEstimator."
            ) from None
    return FittedModel(model, has_classes=has_classes)


def _read_onnx(path: Path) -> OnnxModel:
    try:
        model = OnnxModel(path.read_bytes())
        model._open()
    except MissingExtraError:
        raise
    except Exception as error:  # onnxruntime raises kinds of its own
        raise InvalidInputError(
            f"Expected an ONNX file that onnxruntime can run. Got {path}: {' '.join(str(error).split())[:200]}. Check "
            "the path, or export the model again."
        ) from None
    return model


def check_n_features(owner: object, fitted: FittedModel, rows: Any) -> None:
    """Check that rows have as many columns as a fitted model was trained on, if it knows."""
    model = fitted.model
    known: Any = getattr(model, "n_features_in_", None)
    for name in ("num_feature", "num_features"):  # boosters of LightGBM and XGBoost
        known = getattr(model, name)() if known is None and hasattr(model, name) else known
    if isinstance(known, int | np.integer) and known != rows.shape[1]:
        raise InvalidInputError(
            f"Expected rows with {known} features, on which the fitted {type(model).__name__} of "
            f"{type(owner).__name__} was trained. Got {rows.shape[1]}. Pass the columns of its training rows, in the "
            "same order."
        )
