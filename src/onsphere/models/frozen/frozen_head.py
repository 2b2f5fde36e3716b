"""FrozenHead: an uncertainty for every prediction of a network that stays as it is, from its features alone."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from onsphere._internal.packed_trees import round_leaves
from onsphere._internal.row_hashes import hash_rows
from onsphere._internal.validation import (
    Floats,
    check_fitted,
    check_labels,
    check_no_gradient,
    check_number,
    check_option,
    check_regression_target,
    check_same_length,
    check_target_given,
    is_frame,
    make_random_state,
    parameter_error,
    restore_on_error,
)
from onsphere.errors import InvalidInputError, InvalidTypeError, OnsphereWarning
from onsphere.models.frames import FRAMES, check_frames
from onsphere.models.frozen.blocks import take_last_block
from onsphere.models.frozen.ridge import Head
from onsphere.models.frozen.solved import SolvedModel
from onsphere.models.frozen.sums import Solution, Sums, list_differences
from onsphere.models.frozen.survey import Moments, Survey
from onsphere.models.frozen.targets import ClassTarget, NumberTarget

__all__ = ["FrozenHead"]

_KINDS = ("joint", "linear", "quadratic", "kernel")
_TASKS = ("auto", "classification", "regression")

# More different whole numbers than this may be amounts.
_MOST_PLAIN_CLASSES = 20

# Of equal errors on held-out rows, the first head's labels are taken.
_JOINT = ("kernel", "quadratic", "linear")


class FrozenHead(SolvedModel):
    """Labels or values, each with an uncertainty, from the features of a network that is not trained again.

    The target is placed on a sphere and regressed on the features by ridge regression, which has a closed form. The
    features lie on a sphere too, and how far some training rows fall short of a row is its novelty, which adds to the
    uncertainty. Only sums over rows and a few rows are kept, so rows can come in batches (`partial_fit`) and from
    several machines (`merge`).

    Parameters
    ----------
    kind : {"joint", "linear", "quadratic", "kernel"}, default "joint"
        What is made of the features f: f itself; f, f² and √|f|; a kernel between f and some landmarks, all scaled to
        length 1; or all three heads. "joint" adds up their scores, each centred at its median and divided by the
        distance from there to its 90 % quantile, and takes labels or values from the head that errs least. Both are
        measured on a tenth of the rows (at most 5,000), which the heads measured have not seen; afterwards these rows
        are fitted as well.
    layers : sequence of int, optional
        Widths of the layers whose features stand side by side in a row, as `onsphere.torch.features` gives them for
        several layers. The heads see the last one. Novelty is measured on all of them, each scaled to length 1: early
        layers still see what the last one has learned to ignore. By default all features are of one layer.
    frames : "all", "target", or a tuple of "target", "error" and "input", default "all"
        "target" alone gives the heads without novelty. "input" adds novelty: up to 300 landmarks among at most 5,000
        rows, which see angles between features and their length. "error" makes sigma fit the errors on these rows,
        each left out in turn (in closed form); for classes, and with fewer than 40 rows, it changes nothing.
    task : {"auto", "classification", "regression"}, default "auto"
        "auto" takes floats and tables of several columns for regression, anything else for classes; more than 20
        different whole numbers are taken for classes with a warning.
    ridge : "gcv" or float, default "gcv"
        Strength of the penalty, by generalised cross-validation for each head or as given. Columns count as
        standardised; in the kernel head it is that of kernel ridge regression.
    bandwidth : float, default 0.1
        Of the kernel, in units of the median squared distance between landmarks.
    n_landmarks : int, default 1500
        At most so many rows of the first batch are landmarks, drawn at random.
    calibration : None, "split", "cv" or float in (0, 1), default None
        What `fit` keeps back to calibrate on; see `HCMRegressor`.
    random_state : int, RandomState or None
        Seeds the draw of landmarks and of the rows kept back. The draw depends on what rows hold and not on their
        order.

    Attributes
    ----------
    classes_ : array of shape (C,)
        For classification.
    target_ : ClassTarget or NumberTarget
        How the target lies on the sphere.
    sums_ : Sums
        Everything that is kept of the rows.
    heads_ : dict of str to Head
    value_head_ : str
        The head that gives labels or values.
    n_rows_ : int
        Rows seen so far.
    calibration_ : ClassCalibration, RegressionCalibration or None
    threshold_ : float or None
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    The uncertainty of one head is, for classes, how far ‖d‖ is from the length that 99 % of ordinary rows stay below:
    shorter directions are ambiguous, and longer ones extrapolate. (The signed score 1 − ‖d‖ would trust these most of
    all: features of ten times the usual size, say.) For regression it is u + a in the unit of the target; see
    `onsphere.sphere.scores`. That of "joint", and that of any kind with novelty, has no unit: 0 is an ordinary row. The
    shortfall counts like one more head there, but only above its median, so that novelty never makes a row surer.

    The shares of a direction are no probabilities yet. `calibrate` fits five numbers that make them so, on the held-out
    rows (`onsphere.calibration.ProbabilityScaling`); before, and in the sets, they are used as they are.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from onsphere import FrozenHead
    >>> X, y = load_digits(return_X_y=True)
    >>> head = FrozenHead(random_state=0).fit(X[::2], y[::2])
    >>> bool((head.predict(X[1::2]) == y[1::2]).mean() > 0.97)
    True
    >>> upside_down = X[1::2, ::-1]
    >>> bool(head.predict_uncertainty(upside_down).mean() > head.predict_uncertainty(X[1::2]).mean())
    True
    """

    sums_: Sums

    layers: Sequence[int] | None = None  # heads of older files have none

    def __init__(
        self,
        kind: str = "joint",
        *,
        layers: Sequence[int] | None = None,
        frames: str | Collection[str] = "all",
        task: str = "auto",
        ridge: float | str = "gcv",
        bandwidth: float = 0.1,
        n_landmarks: int = 1500,
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kind = kind
        self.layers = layers
        self.frames = frames
        self.task = task
        self.ridge = ridge
        self.bandwidth = bandwidth
        self.n_landmarks = n_landmarks
        self.calibration = calibration
        self.random_state = random_state

    # --- fitting ---

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        if sample_weight is not None:
            raise InvalidInputError(
                "FrozenHead counts every row once. Got a sample_weight. Leave it out, or repeat rows instead."
            )
        rows = self._check_rows(X, fitting=True)
        self._begin(rows, y, classes=None)
        self._add_rows(rows, y)
        self._solve()

    def partial_fit(self, X: Any, y: ArrayLike, *, classes: ArrayLike | None = None) -> Self:
        """Add more rows; the head is then what one fit on all rows so far would be.

        The first batch fixes what cannot be changed afterwards: the kind, the classes unless they are given, centre and
        scale of a numeric target, and the landmarks. It should be a fair sample with at least n_landmarks rows. A
        calibration is dropped, because it was measured without these rows.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
        y : labels of shape (n,), or targets of shape (n,) or (n, D)
        classes : labels, optional
            All that will ever come; needed if the first batch does not hold them all.

        Returns
        -------
        self
        """
        check_no_gradient(y=y)
        with restore_on_error(self):
            first = not hasattr(self, "sums_")
            rows = self._check_rows(X, fitting=first)
            if first:
                self._begin(rows, y, classes=classes)
                if "kernel" in self.sums_.designs and len(rows) < self.n_landmarks:
                    raise InvalidInputError(
                        f"The first batch of partial_fit must hold at least n_landmarks={self.n_landmarks} rows: the "
                        f"landmarks are drawn from it. Got {len(rows)}. Pass a larger first batch, ask for fewer "
                        "landmarks, or start from FrozenHead.like(another head)."
                    )
            elif classes is not None:
                if isinstance(self.target_, NumberTarget):
                    raise parameter_error(self, "classes", "None for a head fitted on numbers", classes)
                known = self.classes_
                if not np.array_equal(np.unique(np.asarray(classes)), known):
                    raise parameter_error(self, "classes", f"{known.tolist()}, as in the first batch", classes)
            self._add_rows(rows, y)
            self._remember(hash_rows(X, y))
        return self

    def merge(self, other: FrozenHead) -> Self:
        """Add all rows of another head; this head is then what one fit on the rows of both would be.

        Parameters
        ----------
        other : FrozenHead
            Made by `FrozenHead.like` of this head, or the other way round; it is left as it is.

        Returns
        -------
        self
        """
        different = list_differences(self._get_identity(), _check_head("merge", other)._get_identity())
        if different:
            raise InvalidInputError(
                f"merge needs two heads that measure alike. These differ in {', '.join(different)}. "
                "Fit one shard first and the others as FrozenHead.like(first).partial_fit(X, y)."
            )
        self._set_sums(self.sums_ + other.sums_)
        self._remember(other._seen)
        return self

    @classmethod
    def like(cls, other: FrozenHead) -> Self:
        """Return a head without rows that can be merged with another: the same classes, scales and landmarks.

        Parameters
        ----------
        other : FrozenHead
            With at least one batch of rows.

        Examples
        --------
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(300, 4)), np.arange(300) % 3
        >>> first = FrozenHead(n_landmarks=50, random_state=0).partial_fit(X[:100], y[:100])
        >>> second = FrozenHead.like(first).partial_fit(X[100:], y[100:])
        >>> first.merge(second).n_rows_
        300
        """
        _check_head("like", other)._get_identity()
        head: Any = clone(other)
        names = ("target_", "n_features_in_", "feature_names_in_")
        vars(head).update({name: getattr(other, name) for name in names if hasattr(other, name)})
        head._set_sums(other.sums_.copy_empty())
        head._seen = np.empty(0, dtype=np.uint64)
        return head

    def _begin(self, rows: Floats, y: Any, *, classes: Any) -> None:
        """Fix everything that must be known before the first sum."""
        seed = self._draw_seed()
        self._begin_from(self._survey(rows, y, seed, classes=classes), y)
        if isinstance(self.target_, ClassTarget) and classes is None and self.task == "auto":
            _warn_about_integers(self.classes_)

    def _draw_seed(self) -> int:
        return int(make_random_state(self, self.random_state).randint(2**31 - 1))

    def _survey(self, rows: Floats, y: Any, seed: int, *, classes: Any = None) -> Survey:
        """Return what must be known of all rows before the first sum, for these ones."""
        self._check_parameters()
        widths = self._check_layers(rows)
        check_frames(self, FRAMES)
        check_target_given(self, y)
        check_same_length(rows, y)
        if self.task == "regression" and classes is not None:
            raise parameter_error(self, "classes", "None if task='regression'", classes)
        if classes is not None or self._has_classes(y):
            target = np.unique(check_labels(self, y if classes is None else classes))
        else:
            target = Moments.from_target(check_regression_target(self, y))
        with np.errstate(over="ignore", invalid="ignore"):  # huge features are refused with the rows themselves
            return Survey.from_rows(take_last_block(rows, widths), target, seed, self.n_landmarks)

    def _begin_from(self, survey: Survey, y: Any) -> None:
        """Fix everything from a survey of all rows, of which y is the target of some."""
        target = survey.target
        is_number = isinstance(target, Moments)
        self.target_ = NumberTarget.make(target) if isinstance(target, Moments) else ClassTarget.fit(self, target)
        self._output_names = tuple(str(name) for name in y.columns) if is_number and is_frame(y) else None
        names, beside = _JOINT if self.kind == "joint" else (self.kind,), check_frames(self, FRAMES)
        with np.errstate(over="ignore", invalid="ignore"):
            designs = {name: survey.make_design(name, self.bandwidth) for name in names}
        widths = (self.n_features_in_,) if self.layers is None else tuple(int(width) for width in self.layers)
        self._set_sums(
            Sums.empty(
                designs,
                survey.seed,
                n_features=self.n_features_in_,
                n_targets=self.target_.width,
                widths=widths,
                frames=tuple(name for name in FRAMES[1:] if name in beside),
            )
        )
        self._seen = np.empty(0, dtype=np.uint64)

    def _check_parameters(self) -> None:
        check_option(self, "kind", self.kind, _KINDS)
        check_option(self, "task", self.task, _TASKS)
        if not isinstance(self.ridge, str):
            check_number(self, "ridge", self.ridge, above=0)
        elif self.ridge != "gcv":
            raise parameter_error(self, "ridge", "'gcv' or a float above 0", self.ridge)
        check_number(self, "bandwidth", self.bandwidth, above=0)
        check_number(self, "n_landmarks", self.n_landmarks, above=1, closed="left", whole=True)

    def _check_layers(self, rows: Floats) -> tuple[int, ...]:
        """Return the widths of the layers; one if none are given."""
        given: Any = self.layers
        if given is None:
            return (rows.shape[1],)
        is_list = isinstance(given, list | tuple) and all(isinstance(width, Integral) for width in given)
        if not (is_list and given and min(given) > 0 and sum(given) == rows.shape[1]):
            expected = f"None or a list of widths above 0 that add up to the {rows.shape[1]} features of a row"
            raise parameter_error(self, "layers", expected, given)
        return tuple(int(width) for width in given)

    def _add_rows(self, rows: Floats, y: Any) -> None:
        targets = self.target_.make_table(self, y)
        check_same_length(rows, targets)
        self._set_sums(self.sums_.add_rows(rows, targets))

    def _set_sums(self, sums: Sums) -> None:
        """Set these sums, and forget what was fitted from others."""
        self.sums_ = sums
        self._solution: Solution | None = None
        self.calibration_ = None
        self._drop_thresholds()

    def _solve(self) -> Solution:
        """Return the solution, found when it is first needed, so that small batches stay cheap."""
        if self._solution is None:
            self._solution = self.sums_.solve(self.target_, self.ridge)
            round_leaves(self)
        return self._solution

    @property
    def n_rows_(self) -> int:
        """Rows seen so far."""
        return self.sums_.n_rows

    @property
    def heads_(self) -> dict[str, Head]:
        """The fitted heads by name."""
        check_fitted(self, "estimator_")
        return self._solve().heads

    @property
    def value_head_(self) -> str:
        """The name of the head that gives labels or values."""
        check_fitted(self, "estimator_")
        return self._solve().value_head

    @property
    def estimator_(self) -> Head:
        """The head that gives labels or values."""
        if not (hasattr(self, "sums_") and self.n_rows_):
            raise AttributeError("there are no rows yet")
        solution = self._solve()
        return solution.heads[solution.value_head]

    # --- predicting ---

    def predict_uncertainty_per_head(self, X: Any) -> dict[str, Floats]:
        """Return the score of each row by each head, on the head's own scale; see Notes."""
        check_fitted(self, "estimator_")
        solution = self._solve()
        return solution.score(solution.predict_per_head(self._check_rows(X)))

    def _has_classes(self, y: Any) -> bool:
        """Return what the task says or, for "auto", whether y holds neither floats nor several columns."""
        if self.task != "auto":
            return self.task == "classification"
        given = np.asarray(y)
        return not (given.dtype.kind == "f" or (given.ndim > 1 and given.shape[1] > 1))

    def _get_identity(self) -> dict[str, Any]:
        """Return what two heads must share for their sums to mean the same."""
        check_fitted(self, "sums_")
        sizes = {"number of features": self.n_features_in_, "task": type(self.target_).__name__}
        return {**sizes, **self.target_.identity, **self.sums_.identity}


def _warn_about_integers(classes: NDArray[Any]) -> None:
    if classes.dtype.kind in "iu" and len(classes) > _MOST_PLAIN_CLASSES:
        warnings.warn(
            f"FrozenHead takes the {len(classes)} different whole numbers in y, from {classes[0]} to {classes[-1]}, "
            "for classes. If they are amounts, pass task='regression' or floats; if they are classes, "
            "task='classification' says so.",
            OnsphereWarning,
            stacklevel=5,
        )


def _check_head(what: str, head: Any) -> FrozenHead:
    if not isinstance(head, FrozenHead):
        raise InvalidTypeError(f"{what} needs another FrozenHead. Got {type(head).__name__}.")
    return head
