"""compare: several methods on the same rows, in one table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from onsphere import metrics
from onsphere._internal.validation import (
    Floats,
    check_labels,
    check_number,
    check_regression_target,
    check_same_length,
    check_target_given,
    missing_extra_error,
    parameter_error,
    wrap_errors,
)
from onsphere.assessment import Assessment
from onsphere.baselines.detector import Detector
from onsphere.baselines.posthoc import PostHoc, make_default_classifier
from onsphere.calibration import conformal_quantile, rows_needed
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.evaluation import assess_model, compute_error, measure_assessment
from onsphere.models import CalibratedModel, ClassificationMixin
from onsphere.models.backbone import make_default_backbone, set_random_states

__all__ = ["Comparison", "compare"]

_PLAIN = "plain"
_N_TIMINGS = 3

Rows = tuple[Any, Any]


class Split(NamedTuple):
    """Rows with their targets."""

    train: Rows
    held: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of `compare`, a row per method.

    Attributes
    ----------
    rows : list of dict
        The measurements of each method that could be fitted, under the names of the columns. A measurement that a
        method does not allow is left out.
    failures : dict
        Why the others could not be, by method.
    models : dict
        The fitted and calibrated models, by method.
    """

    rows: list[dict[str, Any]]
    failures: dict[str, str] = field(default_factory=dict[str, str])
    models: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def columns(self) -> list[str]:
        """Every measurement that some method has, in order."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row per method; those that failed have a message in the column `failure`."""
        try:
            import pandas as pd
        except ImportError:
            raise missing_extra_error("Comparison.to_frame", "pandas", "report") from None
        failed = [{"method": name, "failure": message} for name, message in self.failures.items()]
        frame = pd.DataFrame([*self.rows, *failed], columns=[*self.columns, *(["failure"] if failed else [])])
        return frame.set_index("method")

    def to_markdown(self, *, digits: int = 3) -> str:
        """Return a table in Markdown, and the failures below it.

        Parameters
        ----------
        digits : int, default 3
            Significant ones.
        """
        check_number("to_markdown", "digits", digits, above=1, closed="left", whole=True)
        lines = [[_format_cell(name, digits) for name in self.columns], ["---"] * len(self.columns)]
        lines += [[_format_cell(row.get(name), digits) for name in self.columns] for row in self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        failed = [f"- {name} failed: {message}" for name, message in self.failures.items()]
        return "\n".join([table, "", *failed]) if failed else table

    def __str__(self) -> str:
        return self.to_markdown()


def _format_cell(value: Any, digits: int) -> str:
    """Return a float with this many significant digits, a dash for a missing value, and any other text escaped."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def compare(
    methods: Mapping[str, Any],
    X: Any,
    y: Any,
    *,
    plain: Any = None,
    X_test: Any = None,
    y_test: Any = None,
    X_shifted: Any = None,
    coverage: float = 0.9,
    calibration_size: float = 0.2,
    test_size: float = 0.2,
    random_state: int | None = 0,
    progress: bool = True,
) -> Comparison:
    """Fit several methods on the same rows, and tabulate how good their uncertainty is.

    All are fitted on the same training rows, calibrated on the same others, and measured on rows that none has seen. A
    method that fails does not stop the others.

    Parameters
    ----------
    methods : mapping of names to models
        Each with `fit`, `predict` and `predict_uncertainty`, like those of onsphere and `onsphere.baselines`; models of
        onsphere also get intervals or sets. A plain regressor, without an uncertainty, gets intervals of one width by
        split conformal prediction. A detector (`KNN()`) judges the plain classifier, which is fitted once for all of
        them. A model that keeps a fitted one learns its noise and is calibrated on these rows, which the fitted one
        must not have seen. Models are cloned, and those given are left as they are.
    X, y : rows and targets, as in fit
        Classes if the methods are classifiers or detectors, numbers if they are regressors. If none says
        (`FrozenHead` takes both), targets of floats are numbers.
    plain : regressor or classifier, optional
        The model without an uncertainty, whose prediction takes 1 unit of time. By default the backbone of the first
        method whose backbone can be fitted; otherwise trees, or LogisticRegression for classes.
    X_test, y_test : rows and targets, optional
        By default a share of X and y.
    X_shifted : rows, or a mapping of names to rows, optional
        Unlike those trained on; AUROC measures how well the uncertainty separates them from the test rows.
    coverage : float in (0, 1), default 0.9
        Of intervals or sets.
    calibration_size, test_size : float in (0, 1), default 0.2
        Shares of X and y for calibration and test.
    random_state : int, default 0
        Of the split, and of every method and plain model whose own is None.
    progress : bool, default True
        Whether to show a bar in a terminal.

    Returns
    -------
    Comparison
        With the columns: fit s (seconds); predict × (time for values and uncertainty over that of the plain model, same
        run); error (RMSE over all outputs, or the share of wrong classes); Spearman of uncertainty with |error|;
        coverage and width of intervals (for classes, of sets: the mean number of classes) and, for numbers, their
        Winkler score (for several outputs each by itself, averaged), for classes log loss (NLL), expected calibration
        error (ECE) and Brier score of the probabilities; AUROC for each shifted set.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import ExtraTreesRegressor
    >>> from onsphere import HCMRegressor, compare
    >>> X, y = load_diabetes(return_X_y=True)
    >>> trees = ExtraTreesRegressor(50, min_samples_leaf=2)
    >>> result = compare({"hcm": HCMRegressor(trees), "broken": HCMRegressor("?")}, X, y, X_shifted=X + 1)
    >>> [row["method"] for row in result.rows], list(result.failures)
    (['plain', 'hcm'], ['broken'])
    >>> result.columns
    ['method', 'fit s', 'predict ×', 'error', 'Spearman', 'coverage', 'width', 'Winkler', 'AUROC']
    """
    _check_methods(methods)
    check_number("compare", "coverage", coverage, above=0, below=1)
    classes = _have_classes(methods, y)
    test = _check_test(X_test, y_test, y, classes=classes)
    sizes = (calibration_size, test_size)
    split = _split(X, _check_target(y, classes=classes), test, sizes, random_state=random_state, stratify=classes)
    _check_enough(len(split.held[1]), coverage)
    result = Comparison([])
    with _show_bar(progress, len(methods) + 1) as advance:
        reference, seconds = _add_plain(
            result, _list_plain_models(plain, methods, classes=classes), split, random_state
        )
        advance(_PLAIN)
        for name, given in methods.items():
            try:
                model: Any = PostHoc(given, FrozenEstimator(reference)) if isinstance(given, Detector) else clone(given)
                set_random_states("compare", model, random_state)
                row, uncertainty = _measure(model, split, coverage, plain_seconds=seconds)
                result.rows.append({"method": name, **row})
                result.models[name] = model
                _add_shifted(result, name, _name_shifted_sets(X_shifted), uncertainty)
            except Exception as error:
                result.failures[name] = _format_error(error)
            advance(name)
    return result


def _measure(
    model: Any, split: Split, coverage: float, *, plain_seconds: float | None
) -> tuple[dict[str, Any], Floats]:
    """Fit, calibrate and measure a model; also return its uncertainty on the test rows."""
    row: dict[str, Any] = {"fit s": _time(lambda: model.fit(*split.train))}
    rows, target = split.test
    if isinstance(model, CalibratedModel):
        model.calibrate(*split.held)
    if plain_seconds is not None:
        row["predict ×"] = _time_median(lambda: _assess_once(model, rows, coverage)) / plain_seconds
    if hasattr(model, "predict_uncertainty"):
        answer = assess_model(model, rows, coverage=coverage)
    else:
        answer = _assess_plain(model, split, coverage)
    classes = model.classes_ if isinstance(model, ClassificationMixin) and answer.prediction_set is not None else None
    return row | measure_assessment(answer, target, coverage=coverage, classes=classes), answer.uncertainty


def _assess_plain(model: Any, split: Split, coverage: float) -> Assessment:
    """Return predictions without an uncertainty and, for numbers, intervals of one width for each output."""
    value, uncertainty = np.asarray(model.predict(split.test[0])), np.zeros(len(split.test[1]))
    if split.test[1].dtype.kind != "f":
        return Assessment(value, uncertainty)
    error = np.abs(split.held[1] - np.asarray(model.predict(split.held[0])))
    half = conformal_quantile(error, coverage)
    return Assessment(value, uncertainty, lower=value - half, upper=value + half)


def _assess_once(model: Any, rows: Any, coverage: float) -> None:
    if isinstance(model, CalibratedModel):
        model.assess(rows, coverage=coverage)
        return
    model.predict(rows)
    if hasattr(model, "predict_uncertainty"):
        model.predict_uncertainty(rows)


def _time(work: Callable[[], Any]) -> float:
    """Return the seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _time_median(work: Callable[[], Any]) -> float:
    """Return the median time of work that was done once before, to fill the caches."""
    work()
    return float(np.median([_time(work) for _ in range(_N_TIMINGS)]))


def _check_methods(methods: Any) -> None:
    if not (isinstance(methods, Mapping) and methods):
        raise InvalidTypeError(
            f"The 'methods' parameter of compare must be a non-empty mapping of names to models. Got {methods!r}. "
            "Pass for example {'hcm': HCMRegressor()}."
        )
    if _PLAIN in methods:
        raise InvalidInputError(f"The name {_PLAIN!r} is that of the plain model. Give the method another name.")
    for name, model in methods.items():
        needed = ("fit", "score") if isinstance(model, Detector) else ("fit", "predict")
        missing = [method for method in needed if not hasattr(model, method)]
        if missing or isinstance(model, type):
            raise InvalidTypeError(
                f"The method {name!r} of compare must be an instance with {', '.join(needed)}. Got {model!r}, without "
                f"{', '.join(missing) or 'being an instance'}."
            )
        if isinstance(model, Pipeline) and isinstance(model.steps[-1][1], CalibratedModel):
            inner = type(model.steps[-1][1]).__name__
            raise InvalidInputError(
                f"The method {name!r} of compare is a Pipeline around {inner}, which would hide its uncertainty. Put "
                f"the Pipeline inside: {inner}(make_pipeline(…, YourEstimator()))."
            )


def _have_classes(methods: Mapping[str, Any], y: Any) -> bool:
    """Return whether classes are compared; if no method says (FrozenHead takes both), a target of floats is numbers."""
    for_classes = [name for name, model in methods.items() if isinstance(model, Detector) or is_classifier(model)]
    for_numbers = [name for name, model in methods.items() if is_regressor(model)]
    if for_classes and for_numbers:
        raise InvalidInputError(
            f"Expected methods for classes, or methods for numbers. Got both: {', '.join(for_classes)} and "
            f"{', '.join(for_numbers)}. Compare them separately."
        )
    return bool(for_classes) or not (for_numbers or np.asarray(y).dtype.kind == "f")


def _name_shifted_sets(X_shifted: Any) -> dict[str, Any]:
    """Return the shifted sets by the names of their columns."""
    if X_shifted is None:
        return {}
    if not isinstance(X_shifted, Mapping):
        return {"AUROC": X_shifted}
    return {f"AUROC {name}": rows for name, rows in X_shifted.items()}


def _check_target(y: Any, *, classes: bool) -> Any:
    check_target_given("compare", y)
    return check_labels("compare", y) if classes else check_regression_target("compare", y)


def _check_test(X_test: Any, y_test: Any, y: Any, *, classes: bool) -> Rows | None:
    """Return the user's own test rows, of the same kind as the others; None if there are none."""
    if X_test is None and y_test is None:
        return None
    if X_test is None or y_test is None:
        raise InvalidInputError("Expected X_test and y_test together. Got one of them. Pass both, or neither.")
    target, other = (_check_target(values, classes=classes) for values in (y_test, y))
    check_same_length(X_test, target)
    is_text = [values.dtype.kind in "OUS" for values in (target, other)]
    if target.shape[1:] != other.shape[1:] or is_text[0] != is_text[1]:
        raise InvalidInputError(
            f"Expected a y_test like y, which is {other.dtype} of shape {other.shape}. Got {target.dtype} of shape "
            f"{target.shape}. Pass both in the same form."
        )
    return X_test, target


def _split(
    X: Any, y: Any, test: Rows | None, sizes: tuple[float, float], *, random_state: int | None, stratify: bool
) -> Split:
    """Split the rows; `sizes` are the shares of the calibration and of the test rows."""
    calibration_size, test_size = sizes
    check_number("compare", "calibration_size", calibration_size, above=0, below=1)
    check_number("compare", "test_size", test_size, above=0, below=1)
    check_same_length(X, y)

    def cut(rows: Rows, size: float) -> tuple[Rows, Rows]:
        labels = rows[1] if stratify else None
        kept, held, kept_y, held_y = train_test_split(*rows, test_size=size, stratify=labels, random_state=random_state)
        return (kept, kept_y), (held, held_y)

    with wrap_errors("compare cannot split the rows (pass a numeric target as floats): "):
        if test is not None:
            return Split(*cut((X, y), calibration_size), test)
        if calibration_size + test_size >= 1:
            at_most = f"below 1 − test_size = {1 - test_size:g}"
            raise parameter_error("compare", "calibration_size", at_most, calibration_size)
        rest, held_out = cut((X, y), test_size)
        return Split(*cut(rest, calibration_size / (1 - test_size)), held_out)


def _check_enough(n_calibration: int, coverage: float) -> None:
    if n_calibration < rows_needed(coverage):
        raise InvalidInputError(
            f"A coverage of {coverage:g} needs at least {rows_needed(coverage)} calibration rows. Got {n_calibration}. "
            "Raise calibration_size, lower coverage, or pass more rows."
        )


def _list_plain_models(plain: Any, methods: Mapping[str, Any], *, classes: bool) -> list[Any]:
    """Return the plain models to try; the first that can be fitted is used."""
    kind = is_classifier if classes else is_regressor

    def fits(model: Any) -> bool:
        made = not isinstance(model, type) and hasattr(model, "predict") and hasattr(model, "__sklearn_tags__")
        return made and kind(model)

    if plain is not None:
        if not fits(plain):
            wanted = "a classifier" if classes else "a regressor"
            raise InvalidTypeError(f"The 'plain' parameter of compare must be {wanted}, as an instance. Got {plain!r}.")
        return [plain]
    backbones = [getattr(model, "estimator", None) for model in methods.values()]
    return [*filter(fits, backbones), make_default_classifier() if classes else make_default_backbone()]


def _add_plain(
    result: Comparison, candidates: list[Any], split: Split, random_state: int | None
) -> tuple[Any, float | None]:
    """Return the fitted plain model and the time of its prediction; no time if none could be fitted."""
    for candidate in candidates:
        model = set_random_states("compare", clone(candidate), random_state)
        try:
            fit_seconds = _time(lambda model=model: model.fit(*split.train))
            seconds = _time_median(lambda model=model: model.predict(split.test[0]))
            error = compute_error(split.test[1], np.asarray(model.predict(split.test[0])))
        except Exception as problem:
            result.failures[_PLAIN] = _format_error(problem)
            continue
        result.failures.pop(_PLAIN, None)
        result.rows.append({"method": _PLAIN, "fit s": fit_seconds, "predict ×": 1.0, "error": error})
        result.models[_PLAIN] = model
        return model, seconds
    return candidates[-1], None


def _add_shifted(result: Comparison, name: str, shifted: dict[str, Any], uncertainty: Floats) -> None:
    for column, rows in shifted.items():
        if not hasattr(result.models[name], "predict_uncertainty"):
            continue
        try:
            shifted_uncertainty = result.models[name].predict_uncertainty(rows)
            result.rows[-1][column] = metrics.auroc(uncertainty, shifted_uncertainty)
        except Exception as error:
            result.failures[f"{name}, {column}"] = _format_error(error)


def _format_error(error: Exception) -> str:
    """Return the error in one line, because it goes into a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _show_bar(wanted: bool, n_steps: int) -> Generator[Callable[[str], None]]:
    """Yield a function to call after each step; it moves a bar if one is wanted and there is a terminal and Rich."""
    if not (wanted and sys.stderr.isatty() and find_spec("rich")):
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("compare", total=n_steps)

        def advance(name: str) -> None:
            progress.update(task, advance=1, description=f"compare: {name} done")

        yield advance
