"""Ensembles of anything: members that differ, what their disagreement says, and what is no member."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import ExtraTreeClassifier, ExtraTreeRegressor
from xgboost import XGBClassifier

from onsphere import HCMRegressor, InvalidInputError, InvalidTypeError
from onsphere.baselines import SoftmaxNetwork
from onsphere.baselines.ensemble import DeepEnsemble, EnsembleClassifier
from onsphere.baselines.likelihood import GaussianNLL
from onsphere.torch import TorchRegressor

torch.set_num_threads(1)


def network(**options):
    return TorchRegressor(**({"hidden_sizes": (20, 20), "max_epochs": 5, "learning_rate": 1e-2} | options))


def rows(n=100, n_outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    Y = (X @ rng.normal(size=(3, n_outputs)) + X[:, :1] ** 2) * 10.0 ** np.arange(n_outputs)
    return X, Y[:, 0] if n_outputs == 1 else Y


# --- numbers ---


@pytest.mark.parametrize(
    "member",
    [
        network(),
        ExtraTreeRegressor(min_samples_leaf=3),
        HistGradientBoostingRegressor(max_iter=5, early_stopping=True),
        make_pipeline(StandardScaler(), ExtraTreeRegressor(min_samples_leaf=3)),
        make_pipeline(StandardScaler(), network()),
    ],
    ids=["network", "tree", "one output", "pipeline", "network in a pipeline"],
)
def test_value_and_sigma_are_mean_and_spread_of_any_members(member):
    X, Y = rows(n_outputs=3)
    model = DeepEnsemble(member, n_members=4, random_state=0).fit(X, Y)
    said = np.stack([each.predict(X) for each in model.estimators_])
    assert said.shape == (4, 100, 3)
    value, sigma = model.predict(X, return_std=True)
    np.testing.assert_allclose(value, said.mean(axis=0))
    np.testing.assert_allclose(sigma, said.std(axis=0), atol=1e-9)
    np.testing.assert_allclose(model.predict_uncertainty(X), np.sqrt(np.mean(said.var(axis=0), axis=1)))
    assert sigma.max() > 0
    assert np.corrcoef(value[:, 2], Y[:, 2])[0, 1] > 0.5  # a squared error of the columns, not that of a sphere


@pytest.mark.parametrize(
    "member",
    [
        ExtraTreeRegressor(),
        RandomForestRegressor(n_estimators=3),
        HistGradientBoostingRegressor(max_iter=3),
        make_pipeline(StandardScaler(), HistGradientBoostingRegressor(max_iter=3)),
        GaussianNLL(network()),
    ],
    ids=lambda member: type(member).__name__,
)
def test_one_output_in_both_shapes(member):
    X, y = rows()
    for target in (y, y[:, None]):
        value, sigma = DeepEnsemble(member, n_members=2, random_state=0).fit(X, target).predict(X, return_std=True)
        assert value.shape == sigma.shape == target.shape
        assert np.corrcoef(value.ravel(), y)[0, 1] > 0.4


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_members_that_predict_their_noise_add_it(in_pipeline):
    X, Y = rows(n_outputs=2)
    member = GaussianNLL(network())
    model = DeepEnsemble(
        make_pipeline(StandardScaler(), member) if in_pipeline else member, n_members=3, random_state=0
    )
    model.fit(X, Y)
    values, sigmas = (
        np.stack(parts) for parts in zip(*[each.predict(X, return_std=True) for each in model.estimators_], strict=True)
    )
    value, sigma = model.predict(X, return_std=True)
    np.testing.assert_allclose(value, values.mean(axis=0))
    np.testing.assert_allclose(sigma, np.sqrt(np.mean(sigmas**2, axis=0) + values.var(axis=0)))


def test_hcm_is_a_member_like_any_other():
    X, y = rows()
    model = DeepEnsemble(HCMRegressor(ExtraTreeRegressor(min_samples_leaf=5)), n_members=3, random_state=0).fit(X, y)
    own = np.sqrt(np.mean([each.predict_sigma(X) ** 2 for each in model.estimators_], axis=0))
    assert (model.predict_sigma(X) >= own).all()
    assert (model.predict_sigma(X) > own).any()


def test_uncertainty_grows_outside_the_training_rows():
    """Measured: ten times as far out, the median is 27 times as large."""
    X, y = rows(300)
    model = DeepEnsemble(network(max_epochs=30), random_state=0).fit(X, y)
    assert len(model.estimators_) == 5
    inside, outside = (np.median(model.predict_uncertainty(given)) for given in (X, 10 * X))
    assert outside > 5 * inside


@pytest.mark.parametrize("seed", [3, np.random.RandomState(3)], ids=["int", "RandomState"])
def test_members_with_a_seed_differ_and_can_be_repeated(seed):
    X, y = rows()
    first, again = (DeepEnsemble(ExtraTreeRegressor(random_state=seed), n_members=3).fit(X, y) for _ in range(2))
    seeds = [each.random_state for each in first.estimators_]
    assert len(set(seeds)) == 3
    assert seeds == [each.random_state for each in again.estimators_]


def test_seeds_reach_nested_estimators():
    X, y = rows(30)
    model = DeepEnsemble(GaussianNLL(network(random_state=1)), n_members=3, random_state=0).fit(X, y)
    assert len({each.estimator_.random_state for each in model.estimators_}) == 3
    assert len({each.random_state for each in model.estimators_}) == 3
    unseeded = DeepEnsemble(network(max_epochs=1), n_members=2).fit(X, y)
    assert [each.random_state for each in unseeded.estimators_] == [None, None]
    assert unseeded.predict_sigma(X).max() > 0


def test_members_without_anything_random_agree():
    X, y = rows()
    model = DeepEnsemble(Ridge(), random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict_sigma(X), 0, atol=1e-12)


def test_missing_and_sparse_rows_where_the_member_takes_them():
    X, y = rows()
    holed = np.where(X > 1, np.nan, X)
    assert DeepEnsemble(HistGradientBoostingRegressor(max_iter=3)).fit(holed, y).predict(holed).shape == (100,)
    assert EnsembleClassifier(HistGradientBoostingClassifier(max_iter=3)).fit(holed, y > 0).predict(holed).shape == (
        100,
    )
    assert DeepEnsemble(ExtraTreeRegressor()).fit(sparse.csr_matrix(X), y).predict(sparse.csr_matrix(X)).shape == (100,)
    for method in (DeepEnsemble, EnsembleClassifier):
        with pytest.raises(InvalidInputError, match="contains NaN"):
            method().fit(holed, y > 0)


def test_weights_reach_the_members():
    X, y = rows()
    weights = np.where(y > np.median(y), 1.0, 0.0)
    for member in (Ridge(), make_pipeline(StandardScaler(), Ridge())):
        plain, weighted = (DeepEnsemble(member).fit(X, y, sample_weight=w).predict(X).mean() for w in (None, weights))
        assert weighted > plain
    with pytest.raises(InvalidInputError, match="KNeighborsClassifier of EnsembleClassifier takes no sample_weight"):
        EnsembleClassifier(KNeighborsClassifier()).fit(X, y > 0, sample_weight=weights)


# --- classes ---


@pytest.mark.parametrize(
    "member",
    [
        SoftmaxNetwork(network()),
        ExtraTreeClassifier(min_samples_leaf=3),
        make_pipeline(StandardScaler(), ExtraTreeClassifier(min_samples_leaf=3)),
        XGBClassifier(n_estimators=3, subsample=0.5),
    ],
    ids=["network", "tree", "pipeline", "one that wants numbers"],
)
def test_probabilities_are_the_mean_of_any_members(member):
    X, y = rows()
    labels = np.array(["low", "middle", "up"])[np.digitize(y, [-0.5, 1.5])]
    model = EnsembleClassifier(member, n_members=4, random_state=0).fit(X, labels)
    said = np.stack([each.predict_proba(X) for each in model.estimators_])
    mean = said.mean(axis=0)
    assert not np.array_equal(said[0], said[1])
    np.testing.assert_allclose(model.predict_proba(X), mean, rtol=1e-6)
    assert model.classes_.tolist() == ["low", "middle", "up"]
    assert np.array_equal(model.predict(X), model.classes_[mean.argmax(axis=1)])
    assert model.score(X, labels) > 0.5

    def entropy(shares):
        return -np.sum(shares * np.log(np.maximum(shares, 1e-300)), axis=-1)

    np.testing.assert_allclose(model.predict_uncertainty(X), entropy(mean), atol=1e-6)
    model.set_params(uncertainty_score="disagreement")
    np.testing.assert_allclose(model.predict_uncertainty(X), entropy(mean) - entropy(said).mean(axis=0), atol=1e-6)


# --- what is rejected ---


class Stubborn(BaseEstimator):
    """A model that answers whatever it was told."""

    def __init__(self, answer=None):
        self.answer = answer

    def fit(self, X, y):
        return self

    def predict(self, X, return_std=False):
        return self.answer

    def predict_proba(self, X):
        return self.answer


class StubbornRegressor(RegressorMixin, Stubborn):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class NoisyRegressor(StubbornRegressor):
    def predict_sigma(self, X):
        raise NotImplementedError


class StubbornClassifier(ClassifierMixin, Stubborn):
    pass


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DeepEnsemble(StubbornRegressor(np.ones((20, 2)))), r"1 columns.* shape \(20, 2\)"),
        (DeepEnsemble(StubbornRegressor(np.full((20, 1), np.nan))), "NaN or infinity"),
        (DeepEnsemble(NoisyRegressor((np.ones(20), np.ones((20, 1, 1))))), r"in 1 columns.* shape \(20, 1, 1\)"),
        (DeepEnsemble(NoisyRegressor((np.ones((20, 1)), np.full((20, 1), np.inf)))), r"\(20, 1\) with NaN or infinity"),
        (EnsembleClassifier(StubbornClassifier(np.ones((20, 3)))), r"in 2 columns.* shape \(20, 3\)"),
        (EnsembleClassifier(StubbornClassifier(np.full((20, 2), np.nan))), r"\(20, 2\) with NaN or infinity"),
    ],
)
def test_members_with_unusable_predictions_are_named(model, message):
    X, y = rows(20)
    model.fit(X, y > 0)
    with pytest.raises(
        InvalidInputError, match=f"The backbone .* of {type(model).__name__} could not predict: .*{message}"
    ):
        model.predict(X)


@pytest.mark.parametrize("estimator", ["forest", 3, ExtraTreeRegressor, StandardScaler(), LogisticRegression()])
def test_an_estimator_that_is_not_a_regressor_is_rejected(estimator):
    with pytest.raises(InvalidTypeError, match="'estimator' parameter of DeepEnsemble must be a regressor"):
        DeepEnsemble(estimator).fit(*rows(20))


@pytest.mark.parametrize("estimator", ["forest", 3, ExtraTreeClassifier, StandardScaler(), Ridge(), SVC()])
def test_an_estimator_without_probabilities_is_rejected(estimator):
    X, y = rows(20)
    with pytest.raises(
        InvalidTypeError, match=r"EnsembleClassifier must be a classifier.*predict_proba.*SoftmaxNetwork"
    ):
        EnsembleClassifier(estimator).fit(X, y > 0)


@pytest.mark.parametrize("method", [DeepEnsemble, EnsembleClassifier])
@pytest.mark.parametrize("n_members", [1, 2.5, "five"])
def test_bad_number_of_members(method, n_members):
    with pytest.raises(InvalidInputError, match=rf"'n_members' parameter of {method.__name__} must be an int in \[2"):
        method(n_members=n_members).fit(*rows(20))


def test_bad_seeds_and_scores():
    X, y = rows(20)
    with pytest.raises(InvalidInputError, match=r"'random_state' parameter of \w+ must be an int"):
        DeepEnsemble(ExtraTreeRegressor(random_state="x")).fit(X, y)
    with pytest.raises(InvalidInputError, match="'uncertainty_score' parameter of EnsembleClassifier"):
        EnsembleClassifier(ExtraTreeClassifier(), uncertainty_score="msp").fit(X, y > 0)
