"""Models that are fitted already: anything that predicts becomes a backbone that is never fitted again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples, check_is_fitted

from onsphere._internal.validation import (
    Floats,
    get_library,
    is_frame,
    is_onnx_path,
    missing_extra_error,
    shorten_message,
    unfreeze,
    wrap_backbone_errors,
)
from onsphere.errors import InvalidInputError, InvalidTypeError, MissingExtraError

__all__ = ["FittedModel", "OnnxModel", "check_features", "is_fitted", "wrap_fitted"]

# By how much probabilities may miss 1 in all: they may be sums of single-precision numbers.
_ROUNDING = 1e-4


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

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Floats:
        """Return the numbers that the model predicts, (n, D), or the probabilities of all classes, (n, C)."""
        n_rows = _num_samples(X)
        values = np.asarray(self._run(X), dtype=np.float64)
        if values.ndim == 0 or values.ndim > 2 or len(values) != n_rows:
            got = "one value" if values.ndim == 0 else f"an array of shape {values.shape}"
            raise ValueError(f"expected as many predictions as rows, {n_rows}, but got {got}.")
        table = values.reshape(n_rows, -1)
        if not self.has_classes:
            return table
        if table.shape[1] == 1:
            table = np.hstack([1.0 - table, table])
        wrong = (table < -_ROUNDING).any(axis=1) | (np.abs(table.sum(axis=1) - 1.0) > _ROUNDING)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"expected probabilities, in [0, 1] and 1 in all for each row, but got {values[row].tolist()} in row "
                f"{row}. If it predicts numbers, use HCMRegressor; if it gives raw scores, let it give probabilities."
            )
        return table

    def _run(self, X: Any) -> Any:
        if self.has_classes and hasattr(self.model, "predict_proba"):
            return self.model.predict_proba(X)
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
        """Return the first output of floats; probabilities that are named by class are put in the order of classes."""
        session = self._open()
        given = session.get_inputs()[0]
        rows = np.asarray(X, dtype=np.float64 if given.type == "tensor(double)" else np.float32)
        answer = session.run([session.get_outputs()[self.place].name], {given.name: rows})[0]
        if isinstance(answer, list):  # a dict for each row
            names = sorted(answer[0])
            return np.array([[row[name] for name in names] for row in answer])
        return answer

    @property
    def place(self) -> int:
        """The place of the prediction among the outputs."""
        kinds = [output.type for output in self._open().get_outputs()]
        usable = [place for place, kind in enumerate(kinds) if "float" in kind or "double" in kind]
        if not usable:
            raise InvalidInputError(
                f"Expected an ONNX file with numbers or probabilities among its outputs. Got {', '.join(kinds)}. "
                "Export the model with its probabilities."
            )
        return usable[0]

    @property
    def has_labels(self) -> bool:
        """Whether the first output is the label of a class."""
        return self._open().get_outputs()[0].type in ("tensor(int64)", "tensor(string)", "tensor(bool)")

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


def wrap_fitted(owner: object, estimator: Any, *, has_classes: bool = False) -> FittedModel | Pipeline:
    """Return a fitted model as a backbone, or raise an error if it cannot be one.

    Of a fitted pipeline the last step is wrapped, so that frames see the numbers that the steps before it make.
    """
    model = unfreeze(estimator)
    if is_onnx_path(model):
        model = _read_onnx(Path(model))
    who, name = type(owner).__name__, type(model).__name__
    if hasattr(model, "fit") and not is_fitted(model):
        raise InvalidInputError(
            f"Expected a fitted model in the FrozenEstimator of {who}. Got a {name} that is not fitted. Fit it "
            "first, or pass it without FrozenEstimator."
        )
    with wrap_backbone_errors(owner, f"fitted {name}", "say what it predicts"):
        given = _find_kind(model)
    if given == ("regressor" if has_classes else "classifier"):
        meant, other = ("classifier", "HCMRegressor") if has_classes else ("regressor", "HCMClassifier")
        raise InvalidTypeError(
            f"Expected a fitted {meant} as the 'estimator' of {who}. Got {name}, a {given}. Use {other} for it."
        )
    is_estimator = hasattr(model, "__sklearn_tags__") and not isinstance(model, OnnxModel)
    if has_classes and is_estimator and given == "classifier" and not hasattr(model, "predict_proba"):
        raise InvalidTypeError(
            f"Expected a fitted classifier with predict_proba as the 'estimator' of {who}. Got {name}, which gives "
            "labels alone. Fit it with probabilities, or wrap it in CalibratedClassifierCV."
        )
    if isinstance(model, Pipeline):
        name, last = model.steps[-1]
        return Pipeline([*model.steps[:-1], (name, FittedModel(last, has_classes=has_classes))])
    return FittedModel(model, has_classes=has_classes)


def is_fitted(model: Any) -> bool:
    """Return whether an estimator was fitted; one that cannot say is taken to be."""
    if hasattr(model, "is_fitted"):  # CatBoost
        return bool(model.is_fitted())
    if not hasattr(model, "__sklearn_tags__"):
        return True
    try:
        check_is_fitted(model)
    except SklearnNotFittedError:
        return False
    return True


def _find_kind(model: Any) -> str | None:
    """Return "regressor" or "classifier"; None for a model that does not say."""
    if isinstance(model, OnnxModel):
        return "classifier" if model.has_labels else None
    objective = _find_objective(model)
    if objective is None:
        return get_tags(model).estimator_type if hasattr(model, "__sklearn_tags__") else None
    if objective.startswith(("binary", "multi", "Logloss", "MultiClass")):
        return "classifier"
    numbers = ("reg", "count:", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie")
    return "regressor" if objective.startswith(numbers) and objective != "reg:logistic" else None


def _find_objective(model: Any) -> str | None:
    """Return what a booster was trained for, in the words of its library; None for any other model."""
    library = get_library(model)
    if library == "lightgbm" and hasattr(model, "model_to_string"):
        lines = model.model_to_string(num_iteration=1).splitlines()
        return next((line.partition("=")[2] for line in lines if line.startswith("objective=")), None)
    if library == "xgboost" and hasattr(model, "save_config"):
        return json.loads(model.save_config())["learner"]["objective"]["name"]
    if library == "catboost" and not hasattr(model, "_estimator_type"):
        return model.get_all_params()["loss_function"]
    return None


def _read_onnx(path: Path) -> OnnxModel:
    try:
        model = OnnxModel(path.read_bytes())
        model._open()
    except MissingExtraError:
        raise
    except Exception as error:  # onnxruntime raises kinds of its own
        raise InvalidInputError(
            f"Expected an ONNX file that onnxruntime can run. Got {path}: {shorten_message(error)[:200]}. Check "
            "the path, or export the model again."
        ) from None
    return model


def check_features(owner: object, backbone: FittedModel | Pipeline, rows: Any) -> None:
    """Check that rows have the columns that a fitted model was trained on, as far as it knows them."""
    model: Any = backbone if isinstance(backbone, Pipeline) else backbone.model
    known = _count_features(model)
    trained = f"the fitted {type(model).__name__} of {type(owner).__name__} was trained"
    if isinstance(known, int | np.integer) and known != rows.shape[1]:
        raise InvalidInputError(
            f"Expected rows with {known} features, on which {trained}. Got {rows.shape[1]}. Pass the columns of its "
            "training rows, in the same order."
        )
    names = _find_names(model) if is_frame(rows) else None
    if names is None:
        return
    given = [str(name) for name in rows.columns]
    for place, (name, other) in enumerate(zip(names, given, strict=True)):
        if name.replace(" ", "_") != other.replace(" ", "_"):  # LightGBM keeps names without spaces
            raise InvalidInputError(
                f"Expected the columns on which {trained}, in the same order: {name!r} as column {place}. Got "
                f"{other!r} there. Sort the columns as in its training rows, or pass an array if only names differ."
            )


def _count_features(model: Any) -> Any:
    """Return the number of columns that a model was trained on; None if it does not say."""
    if get_library(model) == "catboost":  # read from a file, it has 0 as n_features_in_
        return len(model.feature_names_)
    for name in ("num_feature", "num_features"):  # boosters of LightGBM and XGBoost
        if hasattr(model, name):
            return getattr(model, name)()
    return getattr(model, "n_features_in_", None)


def _find_names(model: Any) -> list[str] | None:
    """Return the names of the features of a booster, few of which check them in predict; None without names."""
    match get_library(model):
        case "lightgbm":
            names, unnamed = getattr(model, "booster_", model).feature_name(), "Column_{}"
        case "xgboost":
            names, unnamed = (model.get_booster() if hasattr(model, "get_booster") else model).feature_names, "{}"
        case "catboost":
            names, unnamed = model.feature_names_, "{}"
        case _:
            return None
    return None if names is None or names == [unnamed.format(place) for place in range(len(names))] else names
