"""The choice of a backbone for some rows: candidates compete on shared folds, and only the best run to the end."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed

from onsphere import metrics
from onsphere._internal.row_hashes import make_indexable
from onsphere._internal.validation import Floats, make_random_state, shorten_message
from onsphere.calibration import rows_needed
from onsphere.errors import InvalidInputError
from onsphere.models.backbone import make_default_backbone, set_random_states
from onsphere.models.landmark_kernel import LandmarkKernel
from onsphere.models.relevance import RelevanceScaler

__all__ = [
    "CANDIDATES",
    "can_choose",
    "choose_backbone",
    "choose_for",
    "count_columns",
    "find_fast_candidate",
    "make_candidate",
]

N_FOLDS = 5
_N_COMPARED = 5_000  # rows, at most, to choose by
_N_TESTED = 500  # rows that are enough to compare backbones on: once they are tested, further folds are skipped
_N_SCREENED = 2_500  # rows, at most, that the first round learns from
_MANY_ROWS = 50_000  # above this, a fast backbone is taken without comparing
_FEW_ROWS = 1_000  # for which half of the usual trees are enough; too few for a network to learn from
_MANY_COLUMNS = 20  # for each of which boosting would be fitted once

_N_LANDMARKS = 300  # of the kernel
_COVERAGE = 0.9  # of the intervals that models with estimator="auto" are compared by

# The error of the plain backbone, by which the first round drops the worse half.
_FIRST_LOOK = "first look"

# Half of the candidates go on to the next round, and so do those within this factor of the best.
_CLOSE = 1.05
# Scores within this factor are a tie, and the cheaper candidate wins.
_TIE = 1.01


def _make_extra_trees(n_rows: int, n_columns: int) -> list[tuple[str, Any]]:
    trees = make_default_backbone(n_rows, n_columns)
    if 0 < n_rows < _FEW_ROWS:
        # Half as many err and score at most .7 % worse, on energy 3 %, in .6 of the time: tried on five tables, on
        # splits that no benchmark uses.
        trees.set_params(n_estimators=trees.n_estimators // 2)
    return [("trees", trees)]


def _make_boosting(n_rows: int, n_columns: int) -> list[tuple[str, Any]]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    # Fewer features for each split and fewer rows in a leaf than by default: of six settings, tried on six tables and
    # on rows that the benchmark of real tables does not measure on, about level with the best and cheaper.
    options: Any = {"max_iter": 200, "learning_rate": 0.08, "max_features": 0.5, "min_samples_leaf": 10}
    return [("boosting", HistGradientBoostingRegressor(**options))]


def _make_network(n_rows: int, n_columns: int) -> list[tuple[str, Any]]:
    from sklearn.neural_network import MLPRegressor
    from sklearn.preprocessing import StandardScaler

    return [
        *_fill(),
        ("scale", StandardScaler()),
        ("network", MLPRegressor(hidden_layer_sizes=(128, 64), early_stopping=True, max_iter=400)),
    ]


def _make_kernel(n_rows: int, n_columns: int) -> list[tuple[str, Any]]:
    from sklearn.linear_model import RidgeCV

    return [
        *_fill(),
        ("scale", RelevanceScaler()),
        ("kernel", LandmarkKernel(n_components=_N_LANDMARKS, gamma=0.5)),
        ("ridge", RidgeCV(np.logspace(-6, 2, 9))),
    ]


def _fill() -> list[tuple[str, Any]]:
    from sklearn.feature_selection import VarianceThreshold
    from sklearn.impute import SimpleImputer

    return [
        ("fill", SimpleImputer(strategy="median", keep_empty_features=True)),
        # A column that never varied, such as that of unseen categories, would be weighed at random.
        ("vary", VarianceThreshold()),
    ]


# From the cheapest to the dearest.
CANDIDATES: dict[str, Callable[[int, int], list[tuple[str, Any]]]] = {
    "kernel": _make_kernel,
    "hist-gradient-boosting": _make_boosting,
    "extra-trees": _make_extra_trees,
    "mlp": _make_network,
}


class Task(NamedTuple):
    """The rows that candidates compete on, and how.

    Attributes
    ----------
    X, target : rows and, as an array, their targets: floats in units of their spread, or labels
    has_classes : bool
    coverage : float
        Of the intervals that are compared.
    is_ordered : bool
        Whether rows are in the order of time.
    make_model : function of a name
        Makes the model, not yet fitted, over the candidate of that name.
    """

    X: Any
    target: NDArray[Any]
    has_classes: bool
    coverage: float
    is_ordered: bool
    make_model: Callable[[str], Any]

    @property
    def criterion(self) -> str:
        """The figure that decides; lower is better."""
        return "Brier" if self.has_classes else "Winkler"


def make_candidate(
    name: str, first: Sequence[tuple[str, Any]] = (), *, n_rows: int = 0, n_columns: int = 1
) -> Pipeline:
    """Return a candidate as a pipeline, after other first steps if there are any.

    Forests have a size for `n_rows`, and for the `n_columns` that they learn.
    """
    return Pipeline([*first, *CANDIDATES[name](n_rows, n_columns)])


def count_columns(y: Any, *, has_classes: bool) -> int:
    """Return how many columns a forest learns: one for each class, or four for each output."""
    return len(np.unique(y)) if has_classes else 4 * (1 if np.ndim(y) == 1 else np.shape(y)[1])


def find_fast_candidate(n_rows: int, n_columns: int) -> str | None:
    """Return the candidate for tables so large that others take too long or too much memory; None for smaller ones.

    Examples
    --------
    >>> find_fast_candidate(5_000, 4), find_fast_candidate(300_000, 4), find_fast_candidate(300_000, 98)
    (None, 'hist-gradient-boosting', 'extra-trees')
    """
    if n_rows <= _MANY_ROWS:
        return None
    return "hist-gradient-boosting" if n_columns <= _MANY_COLUMNS else "extra-trees"


def can_choose(n_rows: int, coverage: float) -> bool:
    """Return whether half of a fold is enough to calibrate the other half.

    Examples
    --------
    >>> can_choose(80, 0.9), can_choose(90, 0.9)
    (False, True)
    """
    return n_rows // N_FOLDS // 2 >= rows_needed(coverage)


def choose_backbone(
    X: Any,
    y: Any,
    make_model: Callable[[str], Any],
    *,
    has_classes: bool,
    coverage: float = 0.9,
    is_ordered: bool = False,
    random_state: int = 0,
    n_jobs: int | None = None,
    on_progress: Callable[[str], None] = lambda step: None,
) -> tuple[str, list[dict[str, Any]]]:
    """Return the candidate with the best score on rows left out, and the figures of all.

    Numbers are compared by the Winkler score of conformal intervals (for several outputs in units of their spread, on
    average), classes by the Brier score. Networks compete from 1,000 rows on. A first round compares the errors of the
    plain backbones, a second one the models on one fold, a third one those that are left on all folds. Each keeps the
    better half and whatever is close to the best; at the end, a tie goes to the cheaper candidate.

    Parameters
    ----------
    X, y : rows and targets
    make_model : function of a name
        Makes the model over the candidate of that name, not yet fitted; its `estimator` is the backbone.
    has_classes : bool
    coverage : float in (0, 1), default 0.9
    is_ordered : bool, default False
        Whether rows are in the order of time. Candidates are then compared on rows later than those they learn from: a
        random fold would favour those that only know what lies between rows.
    random_state : int
        Draws the folds.
    n_jobs : int, optional
        Candidates that are measured at once.
    on_progress : function of a str, optional
        Called with each candidate before it is measured.
    """
    target = np.asarray(y) if has_classes else np.asarray(y, dtype=np.float64)
    task = Task(make_indexable(X), target, has_classes, coverage, is_ordered, make_model)
    folds = _split_by_time(target, has_classes) if is_ordered else _split_folds(target, has_classes, random_state)
    table = {name: dict[str, Any](backbone=name) for name in _list_candidates(len(target))}

    def measure(names: list[str], step: str, job: Callable[..., dict[str, float]], *given: Any) -> None:
        """Add the figures of some candidates to the table, or why they failed."""
        for name in names:
            on_progress(f"{step} {name}")
        found: Any = Parallel(n_jobs=n_jobs)(delayed(_try)(job, task, name, *given) for name in names)
        for name, figures in zip(names, found, strict=True):
            table[name] |= figures

    measure(list(table), "trying", _screen, folds[0])
    names = _keep_best(table, list(table), _FIRST_LOOK)
    measure(names, "comparing", _measure, folds[:1])
    names = _keep_best(table, names, task.criterion)
    if len(names) > 1 and len(folds) > 1:
        first = {name: dict(table[name]) for name in names}
        measure(names, "comparing again", _measure, folds[1:])
        for name in names:  # the mean over all folds, the first of which is known
            table[name] |= {
                figure: (first[name][figure] + table[name][figure] * (len(folds) - 1)) / len(folds)
                for figure in first[name]
                if figure not in ("backbone", _FIRST_LOOK)
            }
    names = [name for name in names if task.criterion in table[name]]
    if not names:
        raise InvalidInputError(
            f"Expected a backbone that can learn these rows. Got: {next(iter(table.values())).get('failed')}"
        )
    best = min(table[name][task.criterion] for name in names)
    chosen = next(name for name in names if table[name][task.criterion] <= best * _TIE)
    return chosen, list(table.values())


def choose_for(owner: Any, X: Any, y: Any, *, has_classes: bool) -> tuple[Any, list[dict[str, Any]]]:
    """Return the backbone for a model with estimator="auto", not yet fitted, and the figures of all candidates.

    With too few rows to compare them, it is the default one, and with very many a fast one; there are no figures then.
    """
    size: Any = {"n_rows": len(y), "n_columns": count_columns(y, has_classes=has_classes)}
    if not can_choose(len(y), _COVERAGE):
        return make_candidate("extra-trees", **size), []
    fast = find_fast_candidate(**size)
    if fast is not None:
        return make_candidate(fast, **size), []

    def make_model(name: str) -> Any:
        copy: Any = clone(owner)
        return copy.set_params(estimator=make_candidate(name, **size), calibration=None, n_jobs=None)

    seed = int(make_random_state(owner, owner.random_state).randint(2**31 - 1)) if owner.random_state is not None else 0
    options: Any = {"has_classes": has_classes, "coverage": _COVERAGE, "random_state": seed, "n_jobs": owner.n_jobs}
    chosen, table = choose_backbone(X, y, make_model, **options)
    backbone = make_candidate(chosen, **size)
    if chosen == "kernel":  # no more landmarks than rows, in folds of folds too
        backbone.set_params(kernel__n_components=min(_N_LANDMARKS, len(y) * 3 // 5))
    return backbone, table


def _list_candidates(n_rows: int) -> list[str]:
    """Return the candidates for a table of this size.

    On 20 splits of tables with fewer than 1,000 rows, which no benchmark uses, the network was taken once, and there
    its intervals were 16 % worse than the next candidate's and held 85 % instead of 90 %.
    """
    return [name for name in CANDIDATES if name != "mlp" or n_rows >= _FEW_ROWS]


def _keep_best(table: dict[str, dict[str, Any]], names: list[str], figure: str) -> list[str]:
    """Return the better half, and whatever is close to the best, in their order."""
    tried = sorted((name for name in names if figure in table[name]), key=lambda name: table[name][figure])
    half = set(tried[: math.ceil(len(tried) / 2)])
    return [
        name
        for name in names
        if name in half or (name in tried and table[name][figure] <= _CLOSE * table[tried[0]][figure])
    ]


def _try(job: Callable[..., dict[str, float]], task: Task, name: str, *given: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the chosen one gives its warnings when it is fitted
        try:
            return job(task, name, *given)
        except (ValueError, TypeError) as error:
            return {"failed": shorten_message(error)}


def _split_folds(target: NDArray[Any], has_classes: bool, random_state: int) -> list[tuple[Any, Any, Any]]:
    """Return rows to train on and the halves of each fold, which calibrate each other; rare classes are left out.

    So four fifths of the rows are learned from. With fewer, candidates win that lose once they have all rows.
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    rows = np.random.RandomState(random_state).permutation(len(target))[:_N_COMPARED]
    n_folds = N_FOLDS
    if has_classes:
        labels, counts = np.unique(target[rows], return_counts=True)
        n_folds = min(N_FOLDS, counts.max())
        rows = rows[np.isin(target[rows], labels[counts >= n_folds])]
        rows = rows[np.argsort(target[rows], kind="stable")]  # every other row is then of the same classes
    splitter = StratifiedKFold(n_folds) if has_classes else KFold(n_folds)
    folds = [(rows[kept], rows[test[::2]], rows[test[1::2]]) for kept, test in splitter.split(rows, target[rows])]
    return folds[: math.ceil(_N_TESTED / (len(rows) // n_folds))]


def _split_by_time(target: NDArray[Any], has_classes: bool) -> list[tuple[Any, Any, Any]]:
    """Return rows to train, calibrate and test on, each part later than the one before; the latest fold comes first.

    A sixth is tested, after all rows before it. Rows of a class that is new in a fold are left out of it.
    """
    ends = np.linspace(0, min(len(target), _N_COMPARED), 7).astype(int) + max(len(target) - _N_COMPARED, 0)
    folds: list[tuple[Any, Any, Any]] = []
    for start, stop in ((ends[5], ends[6]), (ends[4], ends[5])):
        train, held = np.split(np.arange(ends[0], start), [start - (start - ends[0]) // 4 - ends[0]])
        parts = [held, np.arange(start, stop)]
        if has_classes:
            parts = [rows[np.isin(target[rows], target[train])] for rows in parts]
        folds.append((train, *parts))
    return folds[: math.ceil(_N_TESTED / (ends[6] - ends[5]))]


def _screen(task: Task, name: str, fold: tuple[Any, Any, Any]) -> dict[str, float]:
    """Return the error of the plain backbone on rows left out."""
    kept, test = fold[0][-_N_SCREENED:], np.concatenate(fold[1:])
    labels = np.unique(task.target[kept]) if task.has_classes else None
    wanted = task.target if labels is None else (task.target[:, None] == labels).astype(np.float64)
    model = task.make_model(name)
    backbone = set_random_states(model, clone(model.estimator), model.random_state)
    wanted = _standardize(wanted.reshape(len(wanted), -1), kept) if labels is None else wanted
    known, unknown = _safe_indexing(task.X, kept), _safe_indexing(task.X, test)
    columns = wanted.T if name == "hist-gradient-boosting" else [wanted]
    found = [backbone.fit(known, column[kept]).predict(unknown) for column in columns]
    errors = np.hstack([np.asarray(part).reshape(len(test), -1) for part in found]) - wanted[test]
    return {_FIRST_LOOK: float(np.mean(errors**2) if task.has_classes else np.mean(np.abs(errors)))}


def _measure(task: Task, name: str, folds: list[tuple[Any, Any, Any]]) -> dict[str, float]:
    """Return the figures of a model, averaged over folds."""
    rows = [_measure_fold(task, name, fold) for fold in folds]
    return {figure: float(np.mean([row[figure] for row in rows])) for figure in rows[0]}


def _measure_fold(task: Task, name: str, fold: tuple[Any, Any, Any]) -> dict[str, float]:
    """Return the figures of a model on rows that others calibrate; without an order, these are measured as well."""
    # In units of the spread of each output, so that no output outweighs the others.
    target = task.target if task.has_classes else _standardize(task.target, fold[0])
    train, held, test = ((_safe_indexing(task.X, rows), target[rows]) for rows in fold)
    model = task.make_model(name).fit(*train)
    measure = _measure_classes if task.has_classes else _measure_numbers
    pairs = [(held, test)] if task.is_ordered else [(held, test), (test, held)]
    found = [measure(model.calibrate(*known), *unknown, task.coverage) for known, unknown in pairs]
    return {figure: float(np.mean([each[figure] for each in found])) for figure in found[0]}


def _measure_classes(model: Any, X: Any, labels: NDArray[Any], coverage: float) -> dict[str, float]:
    result = model.assess(X, coverage=coverage)
    truth = labels[:, None] == model.classes_
    # By hand, because a class may be too rare to be in every fold.
    brier = np.mean(np.sum((result.probabilities - truth) ** 2, axis=1))
    covered = np.mean(np.any(result.prediction_set & truth, axis=1))
    return {"error": np.mean(result.value != labels), "coverage": covered, "Brier": brier}


def _measure_numbers(model: Any, X: Any, target: Floats, coverage: float) -> dict[str, float]:
    value = model.predict(X).reshape(len(target), -1)
    ends = model.predict_interval(X, coverage=coverage, simultaneous=False).reshape(*value.shape, 2)
    truth, lower, upper = target.reshape(value.shape), ends[..., 0], ends[..., 1]
    scores = [
        metrics.winkler_score(*columns, coverage=coverage) for columns in zip(truth.T, lower.T, upper.T, strict=True)
    ]
    return {
        "error": np.sqrt(np.mean((value - truth) ** 2)),
        "coverage": np.mean((lower <= truth) & (truth <= upper)),
        "width": np.mean(upper - lower),
        "Winkler": float(np.mean(scores)),
    }


def _standardize(target: Floats, kept: Any) -> Floats:
    spread = target[kept].std(axis=0)
    return (target - target[kept].mean(axis=0)) / np.where(spread == 0, 1.0, spread)
