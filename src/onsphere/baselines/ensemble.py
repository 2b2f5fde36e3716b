"""Several models that differ only in their seed; where they disagree, they are unsure."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, clone, is_classifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline

from onsphere._internal.validation import (
    Floats,
    check_number,
    check_option,
    make_random_state,
    wrap_backbone_errors,
)
from onsphere.baselines.likelihood import SoftmaxNetwork
from onsphere.baselines.network_model import (
    CLASS_SCORES,
    NetworkModel,
    NetworkRegressor,
    combine_class_draws,
    combine_draws,
)
from onsphere.errors import InvalidTypeError
from onsphere.models.backbone import fit_backbone, prepare_backbone, set_random_states
from onsphere.models.classifier import ClassificationMixin, ClassPrediction
from onsphere.models.regressor import RegressionPrediction
from onsphere.torch.regressor import TorchRegressor

__all__ = ["DeepEnsemble", "EnsembleClassifier"]


class DeepEnsemble(NetworkRegressor):
    """An ensemble of regressors that differ only in their seed: by default networks, but any regressor will do.

    Networks that start from different weights agree near the training rows and differ elsewhere: the spread of their
    predictions is the uncertainty. Members that predict their own noise, such as `GaussianNLL`, add it: the variance
    is the mean of their variances plus the variance of their means.

    Lakshminarayanan, Pritzel and Blundell, "Simple and scalable predictive uncertainty estimation using deep
    ensembles", NeurIPS 2017 (without adversarial training; with GaussianNLL() as the member as in the paper).

    Cost: n_members times the training, the prediction and the memory of one. Fails as a measure of noise, unless its
    members predict theirs: all learn the same mean. Members without anything random (a ridge regression) are all the
    same, and the uncertainty is 0.

    Parameters
    ----------
    estimator : regressor, optional
        The member. One for a single output is fitted once per output. By default TorchRegressor().
    n_members : int, default 5
    calibration : as in `HCMRegressor`
    random_state : int, RandomState or None
        Seeds the members, each differently. A random_state of the member itself does the same: each member gets
        another number of its stream.

    Attributes
    ----------
    estimators_ : list of regressors
        The fitted members; also as `estimator_`, the name that all models here share.
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMRegressor`

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere.baselines import DeepEnsemble
    >>> from onsphere.torch import TorchRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> network = TorchRegressor(hidden_sizes=(20,), max_epochs=5)
    >>> model = DeepEnsemble(network, n_members=3, random_state=0).fit(X, X[:, 0])
    >>> inside, outside = model.predict_uncertainty([[0.0, 0.0], [100.0, 0.0]])
    >>> bool(inside < outside)
    True
    """

    estimators_: list[Any]

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_members: int = 5,
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(estimator, calibration=calibration, random_state=random_state)
        self.n_members = n_members

    def _make_network(self) -> Any:
        _check_n_members(self)
        return prepare_backbone(self, TorchRegressor() if self.estimator is None else self.estimator, None)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        members = _copy_members(self, self._make_network())
        rows, columns, weights = self._check_columns(X, y, sample_weight)
        self._n_columns = columns.shape[1]
        # Some regressors warn about a single column; those that are fitted once per column need a table.
        flat = self._n_columns == 1 and not isinstance(_get_learner(members[0]), MultiOutputRegressor)
        _fit_members(self, members, rows, columns[:, 0] if flat else columns, weights)

    def _predict(self, X: Any) -> RegressionPrediction:
        rows = self._check_rows(X)
        if not hasattr(_get_learner(self.estimators_[0]), "predict_sigma"):
            return combine_draws(np.stack([self._run_member(member, rows)[0] for member in self.estimators_]))
        both = np.array([self._run_member(member, rows, return_std=True) for member in self.estimators_])
        return combine_draws(both[:, 0], both[:, 1])

    def _run_member(self, member: Any, rows: Any, **options: bool) -> list[Floats]:
        """Return the values of a member, and with return_std=True its sigmas, each (n, D)."""
        with wrap_backbone_errors(self, member, "predict"):
            tables = member.predict(rows, **options)
            return [_check_table(table, self._n_columns) for table in (tables if options else [tables])]


class EnsembleClassifier(ClassificationMixin, ClassifierMixin, NetworkModel):
    """An ensemble of classifiers that differ only in their seed: by default networks, but any with probabilities.

    The mean of their probabilities is the prediction. Its entropy is high where each member is unsure and where they
    are sure of different classes; the disagreement is high only in the second case.

    Lakshminarayanan, Pritzel and Blundell, "Simple and scalable predictive uncertainty estimation using deep
    ensembles", NeurIPS 2017; Houlsby et al., "Bayesian active learning for classification and preference
    learning", 2011, for the disagreement.

    Cost: n_members times the training, the prediction and the memory of one. Fails where all members are sure of the
    same wrong class, as networks far from the training rows can be.

    Parameters
    ----------
    estimator : classifier, optional
        The member, with predict_proba; it gets the classes as the numbers 0 to C − 1. By default SoftmaxNetwork().
    n_members : int, default 5
    uncertainty_score : {"entropy", "disagreement"}, default "entropy"
        What `predict_uncertainty` returns: the entropy of the mean, or the part of it that comes from members that
        disagree (the mutual information of class and member).
    calibration : as in `HCMClassifier`
    random_state : int, RandomState or None
        Seeds the members, each differently; see `DeepEnsemble`.

    Attributes
    ----------
    classes_ : array of shape (C,)
    estimators_ : list of classifiers
        The fitted members; also as `estimator_`, the name that all models here share.
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMClassifier`

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.tree import ExtraTreeClassifier
    >>> from onsphere.baselines import EnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> member = ExtraTreeClassifier(min_samples_leaf=5)
    >>> model = EnsembleClassifier(member, n_members=10, random_state=0).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    _calibrated_settings: ClassVar[tuple[str, ...]] = ("uncertainty_score",)

    estimators_: list[Any]

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_members: int = 5,
        uncertainty_score: str = "entropy",
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(estimator, calibration=calibration, random_state=random_state)
        self.n_members = n_members
        self.uncertainty_score = uncertainty_score

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        _check_n_members(self)
        self._check_score()
        members = _copy_members(self, _copy_classifier(self, self.estimator))
        rows, labels, weights = self._check_data(X, y, sample_weight, self._check_labels)
        _fit_members(self, members, rows, np.searchsorted(self.classes_, labels), weights)

    def _predict(self, X: Any) -> ClassPrediction:
        self._check_score()
        rows = self._check_rows(X)
        tables = [self._run_member(member, rows) for member in self.estimators_]
        return combine_class_draws(np.stack(tables), self.uncertainty_score)

    def _run_member(self, member: Any, rows: Any) -> Floats:
        with wrap_backbone_errors(self, member, "predict"):
            return _check_table(member.predict_proba(rows), len(self.classes_))

    def _check_score(self) -> None:
        check_option(self, "uncertainty_score", self.uncertainty_score, CLASS_SCORES)


def _check_n_members(owner: Any) -> None:
    check_number(owner, "n_members", owner.n_members, above=2, closed="left", whole=True)


def _copy_members(owner: Any, template: Any) -> list[Any]:
    """Return copies of a checked model, each with seeds of its own."""
    generator = None if owner.random_state is None else make_random_state(owner, owner.random_state)
    # A seed that is set in the model becomes one for each member, or all would be the same.
    streams = {
        name: make_random_state(template, value).randint(2**31 - 1, size=owner.n_members)
        for name, value in template.get_params(deep=True).items()
        if (name == "random_state" or name.endswith("__random_state")) and value is not None
    }
    members: list[Any] = [clone(template) for _ in range(owner.n_members)]
    for index, member in enumerate(members):
        member.set_params(**{name: int(stream[index]) for name, stream in streams.items()})
        set_random_states(owner, member, generator)
    return members


def _fit_members(owner: Any, members: list[Any], rows: Any, target: Any, weights: Floats | None) -> None:
    owner.estimators_ = owner.estimator_ = [
        fit_backbone(owner, member, rows, target, weights, None) for member in members
    ]


def _check_table(values: Any, n_columns: int) -> Floats:
    table = np.asarray(values, dtype=np.float64)
    if n_columns == 1 and table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.shape[1] != n_columns or not np.isfinite(table).all():
        raise ValueError(
            f"expected finite numbers in {n_columns} columns, one per output or class, but got an array of shape "
            f"{table.shape}{'' if np.isfinite(table).all() else ' with NaN or infinity'}."
        )
    return table


def _get_learner(member: Any) -> Any:
    """Return the last step of a pipeline, or the member itself."""
    return member[-1] if isinstance(member, Pipeline) else member


def _copy_classifier(owner: object, estimator: Any) -> Any:
    if estimator is None:
        return SoftmaxNetwork()
    is_instance = not isinstance(estimator, type) and hasattr(estimator, "__sklearn_tags__")
    if not (is_instance and is_classifier(estimator) and hasattr(estimator, "predict_proba")):
        raise InvalidTypeError(
            f"The 'estimator' parameter of {type(owner).__name__} must be a classifier in the manner of scikit-learn, "
            f"with fit, predict_proba and get_params. Got {estimator!r} instead. Pass an instance, for example "
            "SoftmaxNetwork() or ExtraTreesClassifier()."
        )
    return clone(estimator)
