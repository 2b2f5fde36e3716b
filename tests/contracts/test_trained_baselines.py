"""Every baseline that trains a model satisfies the same contract, so that it can take the place of HCM."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

from onsphere import AcceptShare, InvalidInputError, InvalidTypeError, NotCalibratedError, NotFittedError
from onsphere.baselines import SoftmaxNetwork
from onsphere.baselines.dropout import MCDropout, MCDropoutClassifier
from onsphere.baselines.ensemble import DeepEnsemble, EnsembleClassifier
from onsphere.baselines.evidential import Evidential
from onsphere.baselines.likelihood import GaussianNLL, MixtureDensity
from onsphere.torch import TorchRegressor

torch.set_num_threads(1)  # the tests run in parallel, one per core


def network(**options):
    return TorchRegressor(**({"hidden_sizes": (20, 20), "max_epochs": 3, "learning_rate": 1e-2} | options))


REGRESSORS = [
    DeepEnsemble(network(), n_members=2, random_state=0),
    DeepEnsemble(GaussianNLL(network()), n_members=2, random_state=0),
    Evidential(network(), random_state=0),
    GaussianNLL(network(), random_state=0),
    MCDropout(network(dropout=0.1), n_passes=5, random_state=0),
    MixtureDensity(network(), n_components=2, random_state=0),
]
CLASSIFIERS = [
    EnsembleClassifier(SoftmaxNetwork(network()), n_members=2, random_state=0),
    MCDropoutClassifier(network(dropout=0.1), n_passes=5, random_state=0),
    SoftmaxNetwork(network(), random_state=0),
]
FOR_NETWORKS_ONLY = [
    model for model in REGRESSORS + CLASSIFIERS if not isinstance(model, DeepEnsemble | EnsembleClassifier)
]


def draws(model):
    """Return whether training draws for each row, so that a repeated row differs from a weighted one."""
    return isinstance(model, MCDropout | MCDropoutClassifier)


def name_of(model):
    return type(model).__name__


def with_network(model, **options):
    """Return a copy with other options of the network, which may be inside another model."""
    part = "estimator__" if isinstance(model.estimator, TorchRegressor) else "estimator__estimator__"
    return clone(model).set_params(**{part + name: value for name, value in options.items()})


regressors = pytest.mark.parametrize("model", REGRESSORS, ids=name_of)
classifiers = pytest.mark.parametrize("model", CLASSIFIERS, ids=name_of)
models = pytest.mark.parametrize("model", REGRESSORS + CLASSIFIERS, ids=name_of)


def numbers(n=120, *, flat=True, seed=0):
    """Features and targets far from 0 and 1, as a user has them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(50.0, 10.0, size=(n, 3))
    noisy = (X - 50.0) / 10.0 + 0.3 * rng.normal(size=(n, 3))
    Y = noisy * [1.0, 100.0, 1e-3] + [1000.0, 0.0, 0.0]
    return (X, Y[:, 0]) if flat else (X, Y)


def classes(n=120, *, labels=("ant", "bee", "cat"), seed=0):
    rng = np.random.default_rng(seed)
    index = np.arange(n) % len(labels)
    X = 50.0 + 10.0 * (np.eye(3)[index] * 2 + rng.normal(size=(n, 3)))
    return X, np.array(labels)[index]


def rows_for(model, n=120, seed=0):
    return classes(n, seed=seed) if hasattr(model, "predict_proba") else numbers(n, seed=seed)


# --- predictions ---


@regressors
@pytest.mark.parametrize("flat", [True, False], ids=["one output", "three outputs"])
def test_numbers_in_the_shape_and_unit_of_the_target(model, flat):
    X, y = numbers(flat=flat)
    # More epochs than elsewhere, so that a wrong unit or place would show.
    fitted = with_network(model, max_epochs=30).fit(X, y)
    result = fitted.assess(X)
    assert result.value.shape == result.sigma.shape == y.shape
    assert result.uncertainty.shape == (len(X),)
    assert np.isfinite(result.value).all()
    assert np.isfinite(result.uncertainty).all()
    assert (result.sigma > 0).all()
    assert (result.uncertainty > 0).all()
    error = np.sqrt(np.mean((result.value - y) ** 2, axis=0))
    assert (error < 0.6 * y.std(axis=0)).all()
    assert (result.sigma < 2 * y.std(axis=0)).all()
    value, sigma = fitted.predict(X, return_std=True)
    assert np.array_equal(value, result.value)
    assert np.array_equal(sigma, result.sigma)


@classifiers
@pytest.mark.parametrize("labels", [("no", "yes"), (7, 3, 5)], ids=["two words", "three numbers"])
def test_classes_of_any_kind(model, labels):
    X, y = classes(labels=labels)
    fitted = with_network(model, max_epochs=20).fit(X, y)
    result = fitted.assess(X)
    assert fitted.classes_.tolist() == sorted(labels)
    assert result.probabilities.shape == (len(X), len(labels))
    np.testing.assert_allclose(result.probabilities.sum(axis=1), 1)
    assert (result.uncertainty >= 0).all()
    assert np.array_equal(fitted.predict(X), fitted.classes_[result.probabilities.argmax(axis=1)])
    assert fitted.score(X, y) > 0.8


@models
def test_the_seed_fixes_the_model_and_leaves_other_random_numbers_alone(model):
    X, y = rows_for(model)
    before = torch.random.get_rng_state()
    first, again = (clone(model).fit(X, y).predict_uncertainty(X) for _ in range(2))
    other = clone(model).set_params(random_state=1).fit(X, y).predict_uncertainty(X)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


@models
def test_a_row_gets_the_same_prediction_whatever_rows_it_comes_with(model):
    X, y = rows_for(model)
    fitted = clone(model).fit(X, y)
    together = fitted.predict_uncertainty(X)
    alone = np.concatenate([fitted.predict_uncertainty(X[[index]]) for index in range(5)])
    np.testing.assert_allclose(alone, together[:5], rtol=1e-4, atol=1e-7)


@models
def test_clone_parameters_and_pickle(model):
    copy = clone(model)
    assert copy.get_params().keys() == model.get_params().keys()
    assert copy.set_params(random_state=5).get_params()["random_state"] == 5
    X, y = rows_for(model)
    copy.fit(X, y)
    stored = pickle.loads(pickle.dumps(copy))
    assert np.array_equal(stored.predict_uncertainty(X), copy.predict_uncertainty(X))


# --- calibration and decisions ---


@regressors
def test_intervals_cover(model):
    """200 calibration and 400 test rows have standard errors of 2.1 and 1.5 %, together 2.6 %; four are allowed."""
    X, y = numbers(700)
    fitted = clone(model).fit(X[:100], y[:100]).calibrate(X[100:300], y[100:300])
    lower, upper = fitted.predict_interval(X[300:], coverage=0.9).T
    covered = np.mean((lower <= y[300:]) & (y[300:] <= upper))
    assert 0.796 < covered < 1.0
    X, Y = numbers(300, flat=False)
    several = clone(model).fit(X[:100], Y[:100]).calibrate(X[100:], Y[100:])
    assert several.predict_interval(X[:7]).shape == (7, 3, 2)
    assert several.predict_radius(X[:7]).shape == (7,)


@classifiers
def test_sets_cover(model):
    X, y = classes(700)
    fitted = clone(model).fit(X[:100], y[:100]).calibrate(X[100:300], y[100:300])
    inside = fitted.predict_set(X[300:], coverage=0.9)
    covered = inside[np.arange(400), np.searchsorted(fitted.classes_, y[300:])].mean()
    assert covered > 0.796
    assert inside.shape == (400, 3)


@models
def test_decisions_accept_the_share_that_was_set(model):
    X, y = rows_for(model, 360)
    fitted = clone(model).fit(X[:60], y[:60]).calibrate(X[60:160], y[60:160]).set_threshold(AcceptShare(0.8))
    decided = fitted.decide(X[160:])
    # 100 calibration rows: a standard error of 4 %; 200 test rows: 2.8 %.
    assert 0.6 < 1 - np.ma.getmaskarray(decided).mean() < 0.98
    assert np.array_equal(fitted.assess(X[160:]).accepted, ~np.ma.getmaskarray(decided))


@models
def test_calibration_inside_fit(model):
    X, y = rows_for(model)
    fitted = clone(model).set_params(calibration="split").fit(X, y)
    assert len(fitted.calibration_) == 24
    assert fitted.predict_confidence(X).shape == (len(X),)
    with pytest.raises(NotCalibratedError, match="calibrate"):
        clone(model).fit(X, y).predict_confidence(X)


@pytest.mark.parametrize(
    ("model", "changed"),
    [
        (Evidential(network(), random_state=0), {"uncertainty_score": "total"}),
        (MCDropout(network(dropout=0.1), n_passes=5, random_state=0), {"n_passes": 6}),
        (CLASSIFIERS[0], {"uncertainty_score": "disagreement"}),
        (CLASSIFIERS[1], {"uncertainty_score": "disagreement"}),
    ],
    ids=name_of,
)
def test_a_score_that_changed_must_be_calibrated_again(model, changed):
    X, y = rows_for(model)
    fitted = clone(model).fit(X[:60], y[:60]).calibrate(X[60:], y[60:]).set_params(**changed)
    with pytest.raises(NotCalibratedError, match="calibrate"):
        fitted.predict_confidence(X)
    fitted.set_params(**dict.fromkeys(changed, "mean"))
    with pytest.raises(InvalidInputError, match=next(iter(changed))):
        fitted.predict_uncertainty(X)


# --- bad input ---


@models
def test_bad_rows_are_rejected_and_change_nothing(model):
    X, y = rows_for(model)
    fitted = clone(model).fit(X, y)
    before = fitted.predict_uncertainty(X)
    holed = np.where(np.arange(3) == 1, np.nan, X)
    text = np.full(X.shape, "text", dtype=object)
    frame = pd.DataFrame(X, columns=list("abc")).assign(c="text")
    for rows, target, message in (
        (holed, y, "contains NaN"),
        (X * np.inf, y, "contains (infinity|NaN)"),
        (text, y, "could not convert string to float"),
        (frame, y, "could not convert string to float"),
        (X[:1], y[:1], "minimum of 2 is required"),
        (X[:0], y[:0], "0 sample"),
        (X, y[:7], "inconsistent numbers of samples"),
        (X, None, "target y is None"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            fitted.fit(rows, target)
    with pytest.raises(InvalidInputError, match="at least one sample_weight above zero"):
        fitted.fit(X, y, sample_weight=np.zeros(len(X)))
    for rows, message in ((X[:, :2], "2 features"), (holed, "contains NaN"), (text, "could not convert")):
        with pytest.raises(InvalidInputError, match=message):
            fitted.predict(rows)
    assert np.array_equal(fitted.predict_uncertainty(X), before)


@regressors
@pytest.mark.parametrize("bad", [np.nan, np.inf, "text"])
def test_bad_targets(model, bad):
    X, y = numbers(20)
    with pytest.raises(InvalidInputError):
        clone(model).fit(X, np.where(np.arange(20) == 3, bad, y))


@classifiers
def test_one_class_is_not_enough(model):
    X, y = classes(20)
    with pytest.raises(InvalidInputError, match="at least two classes"):
        clone(model).fit(X, np.full(20, "ant"))
    with pytest.raises(InvalidInputError, match="class label in every row"):
        clone(model).fit(X, np.where(np.arange(20) == 3, None, y))


@models
def test_training_that_fails_leaves_the_fitted_model_as_it_was(model):
    X, y = rows_for(model)
    fitted = clone(model).fit(X, y)
    before = fitted.predict_uncertainty(X)
    fitted.estimator = with_network(model, optimizer=torch.optim.SGD, learning_rate=1e30).estimator
    with pytest.raises(InvalidInputError, match="not finite"):
        fitted.fit(X[:, :2], y)
    assert np.array_equal(fitted.predict_uncertainty(X), before)


@models
def test_rows_beyond_the_range_of_the_network_are_an_error(model):
    X, y = rows_for(model)
    fitted = clone(model).fit(X, y)
    with pytest.raises(InvalidInputError, match="NaN or infinity"):
        fitted.predict(np.full((1, 3), 1e60))


@models
def test_no_method_works_before_fit(model):
    X, _ = rows_for(model)
    for method in ("predict", "predict_uncertainty", "assess"):
        with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
            getattr(clone(model), method)(X)


@models
def test_a_bad_seed_is_rejected(model):
    with pytest.raises(InvalidInputError, match="random_state"):
        clone(model).set_params(random_state="x").fit(*rows_for(model))


@pytest.mark.parametrize("model", FOR_NETWORKS_ONLY, ids=name_of)
def test_methods_for_networks_reject_other_regressors(model):
    for estimator in (Ridge(), "network", TorchRegressor):
        with pytest.raises(InvalidTypeError, match="must be a TorchRegressor"):
            clone(model).set_params(estimator=estimator).fit(*rows_for(model))


@pytest.mark.parametrize("method", [Evidential, GaussianNLL, MCDropoutClassifier, MixtureDensity, SoftmaxNetwork])
def test_methods_with_a_loss_of_their_own_reject_another(method):
    model = method(TorchRegressor(loss="squared", dropout=0.1))
    with pytest.raises(
        InvalidInputError, match=r"must be a TorchRegressor\(loss='auto'\), because the method trains with \w+Loss"
    ):
        model.fit(*rows_for(model))


@pytest.mark.parametrize("model", [model for model in REGRESSORS + CLASSIFIERS if not draws(model)], ids=name_of)
def test_a_weight_counts_like_repeated_rows(model):
    """With one batch per epoch the order of rows does not matter."""
    X, y = rows_for(model, 30)
    counts = np.arange(30) // 3 % 3  # some rows of every class
    whole = with_network(model, batch_size=100)
    repeated = clone(whole).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts, axis=0)).predict_uncertainty(X)
    weighted = clone(whole).fit(X, y, sample_weight=counts).predict_uncertainty(X)
    plain = clone(whole).fit(X, y).predict_uncertainty(X)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-3, atol=1e-6)
    assert not np.allclose(weighted, plain, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", sorted({type(model) for model in REGRESSORS + CLASSIFIERS}, key=str))
def test_the_default_is_a_network(method, monkeypatch):
    epochs = []
    fit = TorchRegressor.fit

    def hasty(self, *given, **options):
        epochs.append(self.max_epochs)
        return fit(self.set_params(max_epochs=1), *given, **options)

    monkeypatch.setattr(TorchRegressor, "fit", hasty)
    model = method(random_state=0)
    X, y = rows_for(model, 20)
    assert model.fit(X, y).predict_uncertainty(X).shape == (20,)
    assert set(epochs) == {200}
    assert not model.__sklearn_tags__().input_tags.allow_nan


# --- scikit-learn ---


SMALLEST = {"hidden_sizes": (4,), "max_epochs": 1}


def expected_failures(model):
    kind = "classifiers" if hasattr(model, "predict_proba") else "regressors"
    failures = {f"check_{kind}_train": "one epoch is too few to learn"}
    if draws(model):
        failures["check_sample_weight_equivalence_on_dense_data"] = "a repeated row draws twice, a weighted one once"
    return failures


# One for each way of fitting and predicting.
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        DeepEnsemble(TorchRegressor(**SMALLEST), n_members=2),
        EnsembleClassifier(SoftmaxNetwork(TorchRegressor(**SMALLEST)), n_members=2),
        GaussianNLL(TorchRegressor(**SMALLEST)),
        MCDropoutClassifier(TorchRegressor(**SMALLEST, dropout=0.1), n_passes=2),
    ],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
