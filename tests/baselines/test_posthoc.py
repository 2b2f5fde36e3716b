"""A classifier judged by a detector is a model like any other."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import SVC

from onsphere import AcceptShare, InvalidInputError, InvalidTypeError, NotFittedError
from onsphere.baselines import KNN, MSP, Energy, LastLayer, Mahalanobis, PostHoc


@pytest.fixture
def blobs():
    rng = np.random.default_rng(0)
    labels = np.array(["ash", "birch", "cedar"])[np.arange(450) % 3]
    centres = {"ash": (0, 4), "birch": (4, 0), "cedar": (-4, -4)}
    return np.array([centres[label] for label in labels]) + rng.normal(size=(450, 2)), labels


def test_labels_and_probabilities_are_the_classifiers(blobs):
    X, y = blobs
    model = PostHoc(KNN(k=5), LogisticRegression()).fit(X, y)
    plain = LogisticRegression().fit(X, y)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), atol=1e-12)


def test_the_uncertainty_is_the_detectors(blobs):
    X, y = blobs
    model = PostHoc(Energy(), LogisticRegression()).fit(X[:300], y[:300])
    logits = LogisticRegression().fit(X[:300], y[:300]).decision_function(X[300:])
    expected = Energy().fit(X[300:], logits, y[300:]).score(X[300:], logits)
    np.testing.assert_allclose(model.predict_uncertainty(X[300:]), expected)


def test_it_calibrates_and_decides_like_hcm(blobs):
    X, y = blobs
    model = PostHoc(Mahalanobis(), calibration="split", random_state=0).fit(X, y)
    result = model.set_threshold(AcceptShare(0.95)).assess(np.vstack([X[:50], 50 * X[:50]]))
    assert result.accepted[:50].mean() > 0.8
    assert not result.accepted[50:].any()
    assert result.prediction_set.shape == (100, 3)
    assert result.direction_norm is None


def test_two_classes_have_two_logits(blobs):
    X, y = blobs
    rows = y != "cedar"
    model = PostHoc(MSP(), LogisticRegression()).fit(X[rows], y[rows])
    expected = 1 - LogisticRegression().fit(X[rows], y[rows]).predict_proba(X[rows]).max(axis=1)
    np.testing.assert_allclose(model.predict_uncertainty(X[rows]), expected, atol=1e-12)


def test_the_logits_of_a_forest_are_the_logarithms_of_its_probabilities(blobs):
    X, y = blobs
    model = PostHoc(MSP(), RandomForestClassifier(20), random_state=3).fit(X, y)
    assert np.isfinite(model.predict_uncertainty(100 * X)).all()
    np.testing.assert_allclose(model.predict_proba(X), model.estimator_.predict_proba(X), atol=1e-12)


def test_features_come_from_a_classifier_that_has_them(blobs):
    class Doubled(LogisticRegression):
        def features(self, X):
            return 2 * X

        def logits(self, X):
            return self.decision_function(X)

    X, y = blobs
    model = PostHoc(Mahalanobis(), Doubled()).fit(X, y)
    np.testing.assert_allclose(model.detector_.means_.mean(axis=0), 2 * X.mean(axis=0), atol=0.2)


def test_the_same_seed_gives_the_same_prediction(blobs):
    X, y = blobs
    models = [PostHoc(MSP(), RandomForestClassifier(5), random_state=seed).fit(X, y) for seed in (1, 1, 2)]
    first, again, other = (model.predict_uncertainty(X + 1) for model in models)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_weights_reach_the_classifier(blobs):
    X, y = blobs
    weights = np.where(y == "ash", 1e-6, 1.0)
    plain, weighted = (PostHoc(MSP()).fit(X, y, sample_weight=given) for given in (None, weights))
    assert (weighted.predict(X) == "ash").mean() < (plain.predict(X) == "ash").mean()


def test_a_last_layer_is_used_as_it_is():
    rng = np.random.default_rng(1)
    weight, bias, X = rng.normal(size=(4, 6)), rng.normal(size=4), rng.normal(size=(80, 6))
    y = np.array(list("abcd"))[np.arange(80) % 4]
    model = PostHoc(MSP(), LastLayer(weight, bias)).fit(X, y)
    np.testing.assert_allclose(model.predict_uncertainty(X), 1 - softmax(X @ weight.T + bias, axis=1).max(axis=1))
    assert clone(model).fit(X, y).predict(X).tolist() == LastLayer(weight, bias).fit(X, y).predict(X).tolist()


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (lambda: PostHoc("knn"), InvalidTypeError, "must be a detector of onsphere.baselines"),
        (lambda: PostHoc(KNN, LogisticRegression()), InvalidTypeError, "Pass an instance"),
        (lambda: PostHoc(MSP(), LinearRegression()), InvalidTypeError, "must be a classifier"),
        (lambda: PostHoc(MSP(), LogisticRegression), InvalidTypeError, "must be a classifier"),
        (lambda: PostHoc(MSP(), "lr"), InvalidTypeError, "must be a classifier"),
        (lambda: PostHoc(MSP(), SVC(decision_function_shape="ovo")), InvalidInputError, "largest for the class"),
        (lambda: PostHoc(KNN(k=10_000)), InvalidInputError, "k"),
        (lambda: PostHoc(MSP(), LastLayer(np.eye(3), np.zeros(2))), InvalidInputError, "bias of shape"),
        (lambda: PostHoc(MSP(), LastLayer(np.eye(2), np.zeros(2))), InvalidInputError, "labels of 2 classes"),
        (lambda: PostHoc(MSP(), LastLayer(np.ones((3, 5)), np.zeros(3))), InvalidInputError, "5 columns of features"),
    ],
)
def test_parts_that_do_not_fit_are_rejected(blobs, model, error, message):
    with pytest.raises(error, match=message):
        model().fit(*blobs)


def test_bad_rows_are_rejected(blobs):
    X, y = blobs
    with pytest.raises(InvalidInputError, match="NaN"):
        PostHoc(MSP()).fit(np.where(X > 5, np.nan, X), y)
    with pytest.raises(InvalidInputError, match="inconsistent"):
        PostHoc(MSP()).fit(X, y[:-1])
    with pytest.raises(InvalidInputError, match="at least two classes"):
        PostHoc(MSP()).fit(X, np.full(len(X), "ash"))
    with pytest.raises(NotFittedError):
        PostHoc(MSP()).predict(X)
    with pytest.raises(InvalidInputError, match="2 features"):
        PostHoc(MSP()).fit(X, y).predict(X[:, :1])
