"""Every check of a user's argument, and the only place that words them.

A message says what was expected, what came and what to do next.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_consistent_length,
    has_fit_parameter,
    validate_data,
)

from onsphere.errors import InvalidInputError, InvalidTypeError, MissingExtraError, NotFittedError

Floats = NDArray[np.float64]

_TARGET_OPTIONS: dict[str, Any] = {"ensure_2d": False, "allow_nd": True, "dtype": np.float64}


# --- parameters ---


def bad_parameter(owner: object, name: str, expected: str, got: object) -> InvalidInputError:
    """The one sentence for a parameter that cannot be used."""
    who = owner if isinstance(owner, str) else type(owner).__name__
    return InvalidInputError(f"The {name!r} parameter of {who} must be {expected}. Got {got!r} instead.")


def check_option(owner: object, name: str, value: object, options: Sequence[str]) -> None:
    """One of several words."""
    if not (isinstance(value, str) and value in options):
        raise bad_parameter(owner, name, "one of " + ", ".join(repr(option) for option in options), value)


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
    """A real number between two bounds; `closed` says which of them belong ("neither", "left", "right", "both")."""
    kind = numbers.Integral if whole else numbers.Real
    ok = isinstance(value, kind) and not isinstance(value, bool | np.bool_)
    if ok:
        number = float(value)  # type: ignore[arg-type]
        ok = (number > above or (closed in ("left", "both") and number == above)) and (
            number < below or (closed in ("right", "both") and number == below)
        )
    if not ok:
        left = "[" if closed in ("left", "both") else "("
        right = "]" if closed in ("right", "both") else ")"
        noun = "an int" if whole else "a float"
        raise bad_parameter(owner, name, f"{noun} in {left}{above:g}, {below:g}{right}", value)


def check_flag(owner: object, name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise bad_parameter(owner, name, "True or False", value)


def check_direction_and_magnitude(direction: Any, magnitude: Any, *, name: str = "magnitude") -> None:
    """Shapes (..., k) and (...), exactly."""
    if tuple(direction.shape[:-1]) != tuple(magnitude.shape):
        raise InvalidInputError(
            f"Expected a {name} of shape {tuple(direction.shape[:-1])} for a direction of shape "
            f"{tuple(direction.shape)}. Got {tuple(magnitude.shape)}. Nothing is broadcast: reshape the {name}."
        )


def check_fitted(owner: object, attribute: str) -> None:
    """That `fit` came before."""
    if not hasattr(owner, attribute):
        raise NotFittedError(
            f"This {type(owner).__name__} instance is not fitted yet. Call 'fit' before using this method."
        )


def missing_extra(what: str, package: str, extra: str) -> MissingExtraError:
    """The one sentence for an optional package that is not installed."""
    return MissingExtraError(f"{what} needs {package}. Install it with: pip install 'onsphere[{extra}]'")


# --- data ---


@contextmanager
def _own_errors() -> Generator[None]:
    """Let scikit-learn word what it words well, but raise it as an error of ours."""
    try:
        yield
    except TypeError as error:
        raise InvalidTypeError(str(error)) from None
    except ValueError as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(str(error)) from None


def is_frame(X: object) -> bool:
    """Whether X is a table with named columns (pandas, polars) rather than an array."""
    return hasattr(X, "columns") and hasattr(X, "shape") and hasattr(X, "dtypes")


def check_rows(owner: Any, X: Any, *, fitting: bool, allow_nan: bool, accept_sparse: bool = False) -> Any:
    """The features of a call, with names and number remembered at fit and compared afterwards.

    An array is checked and converted. A table is passed on as it is, because the backbone may be a pipeline that
    picks columns by name; where all its columns are numeric, its values are checked like an array's.
    """
    options: dict[str, Any] = {
        "accept_sparse": ["csr", "csc"] if accept_sparse else False,
        "ensure_all_finite": "allow-nan" if allow_nan else True,
        "ensure_min_samples": 2 if fitting else 1,
        "dtype": "numeric",
    }
    with _own_errors():
        if not is_frame(X):
            return validate_data(owner, X, reset=fitting, **options)
        _check_unique_columns(owner, X)
        validate_data(owner, X, reset=fitting, skip_check_array=True)
        if _num_samples(X) < options["ensure_min_samples"] or _all_numeric(X):
            check_array(X, estimator=owner, input_name="X", **options)
        return X


def _check_unique_columns(owner: object, X: Any) -> None:
    names = [str(name) for name in X.columns]
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise InvalidInputError(
            f"Expected columns with different names for {type(owner).__name__}. Got more than one column named "
            f"{', '.join(repeated)}. Rename or drop the copies."
        )


def _all_numeric(X: Any) -> bool:
    kinds = list(X.dtypes)
    return all(getattr(kind, "kind", "") in "biuf" or getattr(kind, "is_numeric", bool)() for kind in kinds)


def check_regression_target(owner: object, y: Any) -> Floats:
    """A numeric, finite target of shape (n,) or (n, D)."""
    if y is None:
        raise InvalidInputError(
            f"{type(owner).__name__} requires y to be passed, but the target y is None. Call fit(X, y)."
        )
    with _own_errors():
        given = _as_array(owner, y)
        if given.dtype.kind in "USMm":
            raise InvalidInputError(
                f"Expected a numeric target y for {type(owner).__name__}. Got dtype {given.dtype}. "
                "Convert it to numbers, or use HCMClassifier for classes."
            )
        values = check_array(given, **_TARGET_OPTIONS, input_name="y", estimator=owner)
    if values.ndim not in (1, 2) or (values.ndim == 2 and values.shape[1] == 0):
        raise InvalidInputError(
            f"Expected a target y of shape (n,) or (n, D) with D ≥ 1 for {type(owner).__name__}. "
            f"Got shape {values.shape}. Pass one row per sample and one column per output."
        )
    return values


def _as_array(owner: object, y: Any) -> NDArray[Any]:
    try:
        return np.asarray(y)
    except ValueError:
        raise InvalidInputError(
            f"Expected a rectangular target y for {type(owner).__name__}. Got rows of different lengths."
        ) from None


def check_labels(owner: object, y: Any) -> NDArray[Any]:
    """Class labels of shape (n,), with no missing value."""
    if y is None:
        raise InvalidInputError(
            f"{type(owner).__name__} requires y to be passed, but the target y is None. Call fit(X, y)."
        )
    with _own_errors():
        labels = column_or_1d(y, warn=True)
        if labels.dtype.kind in "fc":
            check_array(labels, ensure_2d=False, input_name="y", estimator=owner)
        check_classification_targets(labels)
    return labels


def check_at_least_two_classes(owner: object, classes: NDArray[Any]) -> None:
    """More than one class."""
    if len(classes) < 2:
        raise InvalidInputError(
            f"{type(owner).__name__} needs at least two classes in y. Got one class, {classes[0]!r}. "
            "Add rows of another class: with one class there is nothing to tell apart."
        )


def check_same_length(X: Any, *others: Any) -> None:
    """One target, one weight per row."""
    with _own_errors():
        check_consistent_length(X, *others)


def check_sample_weight(owner: Any, estimator: Any, sample_weight: Any, X: Any) -> Floats | None:
    """Weights that the backbone can use, or None."""
    if sample_weight is None:
        return None
    if not has_fit_parameter(estimator, "sample_weight"):
        raise InvalidInputError(
            f"The backbone {type(estimator).__name__} of {type(owner).__name__} takes no sample_weight. "
            "Leave sample_weight out, or choose a backbone that weighs its rows."
        )
    if not np.any(np.asarray(sample_weight)):
        raise InvalidInputError("Expected at least one sample_weight above zero. Got only zeros.")
    with _own_errors():
        return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)


def check_n_outputs(owner: object, values: NDArray[Any], n_outputs: int) -> None:
    """As many outputs as at fit."""
    if values.shape[-1] != n_outputs:
        raise InvalidInputError(
            f"{type(owner).__name__} was fitted with {n_outputs} output(s). Got {values.shape[-1]}. "
            "Pass the same outputs in the same order, or fit again."
        )
