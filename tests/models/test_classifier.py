"""HCMClassifier: probabilities, scores and bad input."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Ridge

from onsphere import HCMClassifier, InvalidInputError, NotFittedError


def small_forest(**options):
    return ExtraTreesRegressor(n_estimators=30, min_samples_leaf=2, random_state=0, **options)


ONE = np.ones((4, 2))


@pytest.fixture(scope="module")
def fitted():
    X, y = load_digits(return_X_y=True)
    return HCMClassifier(small_forest()).fit(X[:1000], y[:1000])


@pytest.mark.parametrize("score", ["violation", "signed", "gini", "reference"])
def test_scores_of_the_classifier_prefer_right_predictions(score, fitted):
    X, y = load_digits(return_X_y=True)
    model = fitted.set_params(uncertainty_score=score)
    result = model.assess(X[1000:])
    wrong = result.value != y[1000:]
    assert wrong.mean() < 0.12
    assert np.median(result.uncertainty[wrong]) > np.median(result.uncertainty[~wrong])
    np.testing.assert_allclose(model.predict_uncertainty(X[1000:]), result.uncertainty)


def test_probabilities_are_the_nearest_on_the_simplex():
    X, y = load_digits(return_X_y=True)
    model = HCMClassifier(Ridge(), frames="target").fit(X[:500], y[:500])
    probabilities = model.predict_proba(X[500:600])
    directions = model.estimator_.predict(X[500:600])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (probabilities >= 0).all()
    assert (probabilities.argmax(axis=1) == directions.argmax(axis=1)).all()
    # No other point of the simplex is nearer: the projection's inequality (d − p)·(q − p) ≤ 0, at every corner q.
    slack = np.einsum("ni,nji->nj", directions - probabilities, np.eye(10)[None] - probabilities[:, None])
    assert slack.max() <= 1e-9


@pytest.mark.parametrize("method", ["predict", "predict_proba", "assess", "predict_uncertainty"])
def test_no_method_works_before_fit(method):
    with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
        getattr(HCMClassifier(), method)(ONE)


def test_a_class_of_weight_zero_is_still_a_class():
    X, y = load_digits(return_X_y=True)
    model = HCMClassifier(small_forest()).fit(X, y, sample_weight=np.where(y == 3, 0.0, 1.0))
    assert model.predict_proba(X).shape == (1797, 10)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: HCMClassifier().fit(ONE, None), "target y is None"),
        (lambda: HCMClassifier().fit(ONE, ["a", None, "b", "b"]), "class label in every row"),
        (lambda: HCMClassifier().fit(ONE, np.array(["a", pd.NA, "b", "b"], dtype=object)), "class label in every row"),
        (lambda: HCMClassifier().fit(ONE, [1, 1, 1, 1]), "at least two classes"),
        (lambda: HCMClassifier().fit(ONE, [0.5, 1.7, 2.2, 3.1]), "Unknown label type"),
        (lambda: HCMClassifier().fit(ONE, [0.0, 1.0, np.nan, 1.0]), "contains NaN"),
        (lambda: HCMClassifier(uncertainty_score="u").fit(ONE, [0, 1, 0, 1]), "'uncertainty_score' parameter"),
    ],
)
def test_bad_input_is_rejected(attempt, message):
    with pytest.raises(InvalidInputError, match=message):
        attempt()
