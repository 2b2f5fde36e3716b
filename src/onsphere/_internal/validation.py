"""Every check of a user's argument, worded once.

A message says what was expected, what was given and what to do next.
"""

from __future__ import annotations

import inspect
import math
import numbers
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_consistent_length,
    validate_data,
)

from onsphere.errors import InvalidInputError, InvalidTypeError, MissingExtraError, NotFittedError, OnsphereError

Floats = NDArray[np.float64]

# Characters of another library's error that are passed on; a report of compilers and frames is longer.
_LONGEST_MESSAGE = 500
# Characters of a value that cannot be used.
_LONGEST_VALUE = 200

_TARGET_OPTIONS: dict[str, Any] = {"ensure_2d": False, "allow_nd": True, "dtype": np.float64}


# --- parameters ---


def get_name(owner: object) -> str:
    """Return the name of the function or class that was given a wrong value."""
    return owner if isinstance(owner, str) else type(owner).__name__


def parameter_error(owner: object, name: str, expected: str, got: object) -> InvalidInputError:
    """Make the error for a parameter that cannot be used."""
    shown = repr(got)
    if len(shown) > _LONGEST_VALUE:  # a table, or an array
        shown = f"{' '.join(shown.split())[:_LONGEST_VALUE]}…"
    return InvalidInputError(f"The {name!r} parameter of {get_name(owner)} must be {expected}. Got {shown} instead.")


def check_option(owner: object, name: str, value: object, options: Sequence[str]) -> None:
    """Check that a value is one of several words."""
    if not (isinstance(value, str) and value in options):
        raise parameter_error(owner, name, "one of " + ", ".join(repr(option) for option in options), value)


def check_number(
    owner: object,
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    closed: str = "neither",
    whole: bool = False,
) -> None:
    """Check that a value is a real number between two bounds; `closed` is "neither", "left", "right" or "both"."""
    kind = numbers.Integral if whole else numbers.Real
    try:
        number = float(value) if isinstance(value, kind) and not isinstance(value, bool | np.bool_) else math.nan
    except OverflowError:
        number = math.nan
    above_ok = number > above or (closed in ("left", "both") and number == above)
    below_ok = number < below or (closed in ("right", "both") and number == below)
    if not (above_ok and below_ok):
        left = "[" if closed in ("left", "both") else "("
        right = "]" if closed in ("right", "both") else ")"
        noun = "an int" if whole else "a float"
        raise parameter_error(owner, name, f"{noun} in {left}{above:g}, {below:g}{right}", value)


def is_number(value: object) -> bool:
    """Return whether a value of JSON is a finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_flag(owner: object, name: str, value: object) -> None:
    """Check that a value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise parameter_error(owner, name, "True or False", value)


def check_n_jobs(owner: object, n_jobs: object) -> None:
    """Check that a number of jobs is None, or a whole number other than 0: -1 for all processors, as in joblib."""
    if n_jobs is not None and (not isinstance(n_jobs, int | np.integer) or n_jobs == 0):
        raise parameter_error(owner, "n_jobs", "None, or an int other than 0", n_jobs)


def make_random_state(owner: object, random_state: Any) -> np.random.RandomState:
    """Return the generator for an int, a RandomState, a Generator or None."""
    if isinstance(random_state, np.random.Generator):
        return np.random.RandomState(random_state.bit_generator)
    with wrap_errors(
        f"The 'random_state' parameter of {get_name(owner)} must be an int, a RandomState, a Generator or None. "
    ):
        return check_random_state(random_state)


def check_direction_and_magnitude(direction: Any, magnitude: Any, *, name: str = "magnitude") -> None:
    """Check that the shapes are exactly (..., k) and (...)."""
    if tuple(direction.shape[:-1]) != tuple(magnitude.shape):
        raise InvalidInputError(
            f"Expected a {name} of shape {tuple(direction.shape[:-1])} for a direction of shape "
            f"{tuple(direction.shape)}. Got {tuple(magnitude.shape)}. Nothing is broadcast: reshape the {name}."
        )


def check_fitted(owner: object, attribute: str) -> None:
    """Check that `fit` was called before."""
    if not hasattr(owner, attribute):
        raise NotFittedError(
            f"This {type(owner).__name__} instance is not fitted yet. Call 'fit' before using this method."
        )


def missing_extra_error(what: str, package: str, extra: str) -> MissingExtraError:
    """Make the error for an optional package that is not installed."""
    return MissingExtraError(f"{what} needs {package}. Install it with: pip install 'onsphere[{extra}]'")


def missing_frame_error(owner: object, caller: str, frame: str) -> InvalidInputError:
    """Make the error for a model that was fitted without a frame."""
    return InvalidInputError(
        f"{caller} needs a model with the frame {frame!r}. Got one of {type(owner).__name__} without. Fit an "
        "HCMRegressor or HCMClassifier with frames='all', which is the default, on a table of numbers."
    )


# --- data ---


@contextmanager
def wrap_errors(prefix: str = "") -> Generator[None]:
    """Raise a ValueError or TypeError as an error of ours, with a prefix."""
    try:
        yield
    except OnsphereError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"{prefix}{error}") from error
    except TypeError as error:
        raise InvalidTypeError(f"{prefix}{error}") from error


@contextmanager
def wrap_backbone_errors(owner: object, backbone: object, task: str) -> Generator[None]:
    """Raise errors of a backbone, of whatever type, as ours, and say what it could not do.

    Parameters
    ----------
    owner : model, for errors
    backbone : estimator, or str
        What could not do it, or words for it such as "fitted Ridge".
    task : str
    """
    what = backbone if isinstance(backbone, str) else f"backbone {type(backbone).__name__}"
    try:
        yield
    except (OnsphereError, MemoryError):
        raise
    except Exception as error:  # boosters and users' own functions raise any type
        text = shorten_message(error)
        if not isinstance(error, ValueError | TypeError):
            text = f"{type(error).__name__}: {text}"
        is_type = isinstance(error, TypeError) and not isinstance(error, ValueError)  # scikit-learn has errors of both
        kind = InvalidTypeError if is_type else InvalidInputError
        raise kind(f"The {what} of {get_name(owner)} could not {task}: {text}") from error


def shorten_message(error: Exception) -> str:
    """Return the message of another library's error in one line, without its stack trace.

    Examples
    --------
    >>> shorten_message(ValueError("label must be positive\\nStack trace:\\n  [bt] (0) lib.so"))
    'label must be positive'
    """
    return " ".join(str(error).partition("Stack trace")[0].split())[:_LONGEST_MESSAGE]


@contextmanager
def restore_on_error(owner: object) -> Generator[None]:
    """Restore the attributes of an object if the block fails."""
    before = dict(vars(owner))
    try:
        yield
    except BaseException:
        vars(owner).clear()
        vars(owner).update(before)
        raise


def is_onnx_path(estimator: object) -> bool:
    """Return whether a parameter is the name of an ONNX file."""
    return isinstance(estimator, str | Path) and str(estimator).endswith(".onnx")


def is_fitted_already(estimator: Any) -> bool:
    """Return whether an `estimator` parameter is a model that was fitted elsewhere and stays as it is.

    These are a FrozenEstimator of scikit-learn, the name of an ONNX file, and whatever predicts and cannot be fitted:
    boosters and functions.
    """
    if isinstance(estimator, FrozenEstimator) or is_onnx_path(estimator):
        return True
    return (
        not isinstance(estimator, type | str)
        and not hasattr(estimator, "fit")
        and (hasattr(estimator, "predict") or callable(estimator))
    )


def unfreeze(estimator: Any) -> Any:
    """Return the model inside a FrozenEstimator, or the estimator itself."""
    while isinstance(estimator, FrozenEstimator):
        estimator = estimator.estimator
    return estimator


def get_library(model: Any) -> str:
    """Return the name of the package that a model comes from."""
    return type(model).__module__.partition(".")[0]


def is_frame(X: object) -> bool:
    """Return whether X is a table with named columns (pandas, polars) rather than an array."""
    return hasattr(X, "columns") and hasattr(X, "shape") and hasattr(X, "dtypes")


def check_rows(owner: Any, X: Any, *, fitting: bool, allow_nan: bool, accept_sparse: bool = False) -> Any:
    """Check the features of a call; their names and number are remembered at fit and compared afterwards.

    An array is checked and converted. A table is passed on as it is, because the backbone may be a pipeline that
    picks columns by name; its numeric columns are checked like an array's.
    """
    options: dict[str, Any] = {
        "accept_sparse": ["csr", "csc"] if accept_sparse else False,
        "ensure_all_finite": "allow-nan" if allow_nan else True,
        "ensure_min_samples": 2 if fitting else 1,
        "dtype": "numeric",
    }
    check_unmasked("X", X)
    with wrap_errors():
        if not is_frame(X):
            return validate_data(owner, X, reset=fitting, **options)
        check_unique_names("X", X.columns)
        validate_data(owner, X, reset=fitting, skip_check_array=True)
        if _num_samples(X) < options["ensure_min_samples"]:
            raise InvalidInputError(
                f"Found array with {_num_samples(X)} sample(s) while a minimum of {options['ensure_min_samples']} is "
                f"required by {type(owner).__name__}. Pass more rows."
            )
        numeric = [name for name, kind in zip(X.columns, X.dtypes, strict=True) if _is_numeric(kind)]
        if numeric:
            check_array(X if has_only_numbers(X) else X[numeric], estimator=owner, input_name="X", **options)
        return X


def has_only_numbers(frame: Any) -> bool:
    """Return whether all columns of a table with named columns are numeric."""
    return all(_is_numeric(kind) for kind in frame.dtypes)


def _is_numeric(kind: Any) -> bool:
    """Return whether a column type of pandas (a kind letter) or polars (a method) is numeric."""
    return kind.kind in "biuf" if hasattr(kind, "kind") else bool(getattr(kind, "is_numeric", bool)())


def check_unique_names(what: str, names: Any) -> None:
    """Check that no two columns have the same name."""
    given = [str(name) for name in names]
    if len(set(given)) < len(given):
        repeated = sorted({name for name in given if given.count(name) > 1})
        raise InvalidInputError(
            f"Expected columns of {what} with different names. Got more than one column named {', '.join(repeated)}. "
            "Rename or drop the copies."
        )


def check_unmasked(what: str, values: Any) -> None:
    """Check that there are no masked entries, whose mask would be lost."""
    if np.ma.is_masked(values):
        raise InvalidInputError(
            f"Expected {what} without masked entries. Got {int(np.ma.count_masked(values))} of them. "
            "Fill or drop them first."
        )


def check_no_gradient(**given: Any) -> None:
    """Check that values to be converted to arrays are not tensors that require a gradient."""
    for name, values in given.items():
        if getattr(values, "requires_grad", False):
            raise InvalidInputError(
                f"Expected {name} without a gradient. Got a {type(values).__name__} that requires one. "
                f"Pass {name}.detach()."
            )


def check_target_given(owner: object, y: Any) -> Any:
    """Check that there is a target, without masked entries or repeated column names."""
    if y is None:
        raise InvalidInputError(
            f"{get_name(owner)} requires y to be passed, but the target y is None. Pass one target per row of X."
        )
    check_unmasked("y", y)
    if is_frame(y):
        check_unique_names("y", y.columns)
    return y


def check_regression_target(owner: object, y: Any) -> Floats:
    """Return a numeric, finite target of shape (n,) or (n, D)."""
    try:
        given = np.asarray(check_target_given(owner, y))
        numeric = given.dtype.kind not in "USMmcO"
        values = given if numeric or given.dtype.kind != "O" else given.astype(np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            f"Expected a target y of numbers for {get_name(owner)}, one row per sample. Got {error}. "
            "Convert or drop values that are not numbers, and give every row the same length."
        ) from error
    if values.dtype.kind in "USMmc":
        raise InvalidInputError(
            f"Expected a numeric target y for {get_name(owner)}. Got dtype {values.dtype} "
            f"({'Complex data not supported' if values.dtype.kind == 'c' else 'no real numbers'}). "
            "Convert it to numbers, or use HCMClassifier for classes."
        )
    if values.ndim not in (1, 2) or 0 in values.shape[1:]:
        raise InvalidInputError(
            f"Expected a target y of shape (n,) or (n, D) with D ≥ 1 for {get_name(owner)}. "
            f"Got shape {values.shape}. Pass one row per sample and one column per output."
        )
    with wrap_errors():
        return check_array(values, **_TARGET_OPTIONS, input_name="y", estimator=owner)


def check_labels(owner: object, y: Any) -> NDArray[Any]:
    """Return class labels of shape (n,), without missing values."""
    given = check_target_given(owner, y)
    with wrap_errors():
        labels = column_or_1d(given, warn=True)
    n_missing = sum(map(_is_missing, labels)) if labels.dtype.kind in "Of" else 0
    if n_missing:
        raise InvalidInputError(
            f"Expected a class label in every row of y. Input y contains NaN or another missing value in {n_missing} "
            "row(s). Drop these rows, or give them a class of their own."
        )
    with wrap_errors(), warnings.catch_warnings():
        # Many classes in a small batch need no warning.
        warnings.filterwarnings("ignore", message="The number of unique classes", category=UserWarning)
        check_classification_targets(labels)
    return labels


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA cannot be compared
        return True


def check_at_least_two_classes(owner: object, classes: NDArray[Any]) -> None:
    """Check that there is more than one class."""
    if len(classes) < 2:
        got = f"one class, {classes.tolist()[0]!r}" if len(classes) else "none"
        raise InvalidInputError(
            f"{type(owner).__name__} needs at least two classes in y. Got {got}. "
            "Add rows of another class: with one class there is nothing to tell apart."
        )


def check_same_length(X: Any, *others: Any) -> None:
    """Check that all have the same number of rows."""
    with wrap_errors():
        check_consistent_length(X, *others)


def check_sample_weight(sample_weight: Any, X: Any) -> Floats | None:
    """Return one weight per row, none negative and not all zero; or None."""
    if sample_weight is None:
        return None
    if not np.any(np.asarray(sample_weight)):
        raise InvalidInputError("Expected at least one sample_weight above zero. Got only zeros.")
    with wrap_errors():
        return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)


def check_calibration_weight(sample_weight: Any, X: Any) -> Floats | None:
    """Return one weight above zero per row; or None."""
    weights = check_sample_weight(sample_weight, X)
    if weights is not None and not np.all(weights > 0):
        row = int(np.flatnonzero(~(weights > 0))[0])
        raise InvalidInputError(
            f"Expected a sample_weight above zero for every calibration row. Got {weights[row]:g} in row {row}. Leave "
            "rows out that should not count."
        )
    return weights


def check_takes_weights(owner: object, learner: Any, *, by_name: bool) -> None:
    """Check that a backbone's `fit` takes weights: by that name or, unless `by_name`, by **kwargs."""
    takes = inspect.signature(learner.fit).parameters.values()
    if not any(item.name == "sample_weight" or (item.kind is item.VAR_KEYWORD and not by_name) for item in takes):
        raise InvalidInputError(
            f"The backbone {type(learner).__name__} of {type(owner).__name__} takes no sample_weight. "
            "Leave sample_weight out, or choose a backbone that weighs its rows."
        )


def check_n_outputs(owner: object, values: NDArray[Any], n_outputs: int) -> None:
    """Check that there are as many outputs as at fit."""
    if values.shape[-1] != n_outputs:
        raise InvalidInputError(
            f"{type(owner).__name__} was fitted with {n_outputs} output(s). Got {values.shape[-1]}. "
            "Pass the same outputs in the same order, or fit again."
        )


def check_output_names(owner: object, names: Any, fitted: tuple[str, ...] | None) -> None:
    """Check that outputs have the same names in the same order as at fit, if both have names."""
    given = tuple(str(name) for name in names)
    if fitted is not None and given != fitted:
        raise InvalidInputError(
            f"{type(owner).__name__} was fitted with the outputs {', '.join(fitted)}. Got {', '.join(given)}. "
            "Pass the same columns of y in the same order, or fit again."
        )


def check_outputs(owner: object, direction: Any, mean: Any, width: int, n_outputs: int) -> None:
    """Check that directions, and means if there are any, have the width that an embedding gives them."""
    if direction.shape[-1] != width or (mean is not None and mean.shape[-1] != n_outputs):
        raise InvalidInputError(
            f"{type(owner).__name__} with {n_outputs} output(s) has directions of width {width} and means of width "
            f"{n_outputs}. Got {direction.shape[-1]} and {'none' if mean is None else mean.shape[-1]}. "
            "Decode with the embedding that the model was trained with."
        )


def check_share(option: str, share: float, *, zero: bool = False) -> None:
    """Check that a share is above 0 (or with `zero`, at least 0) and below 1."""
    if not (0 < share < 1 or (zero and share == 0)):
        percent = f" {share:g} percent is {share / 100:g}." if 1 < share < 100 else ""
        raise InvalidInputError(
            f"Expected {option} {'of at least' if zero else 'above'} 0 and below 1. Got {share:g}.{percent}"
        )


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    """Check that the value of an option is one of those that it may have."""
    if value not in choices:
        raise InvalidInputError(f"Expected {option} {', '.join(choices[:-1])} or {choices[-1]}. Got {value!r}.")
