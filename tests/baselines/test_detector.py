"""What all detectors promise: one protocol, no surprises with odd input, and what their theory says stays the same."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import null_space
from scipy.stats import ortho_group
from sklearn.base import clone

import onsphere.baselines
from onsphere import InvalidInputError, MissingExtraError, NotFittedError
from onsphere.baselines import (
    KNN,
    MSP,
    Energy,
    Entropy,
    Gini,
    Mahalanobis,
    energy,
    knn,
    mahalanobis,
    msp,
)

ALL = [
    MSP(temperature=2.0),
    Energy(),
    Gini(),
    Entropy(),
    Mahalanobis(),
    KNN(k=10),
]
LOGITS_ONLY = ALL[:4]


def get_name(detector):
    return type(detector).__name__


every_detector = pytest.mark.parametrize("detector", ALL, ids=get_name)


def some(*kinds):
    return pytest.mark.parametrize("detector", [each for each in ALL if isinstance(each, kinds)], ids=get_name)


@pytest.fixture(scope="module")
def layer():
    """A last layer whose rows are the corners of a simplex, as in a well-trained network, among six features."""
    corners = np.eye(3, 6) - np.pad(np.full((3, 3), 1 / 3), ((0, 0), (0, 3)))
    return 3.0 * corners, np.array([2.0, 2.5, 3.0])


@pytest.fixture(scope="module")
def data(layer):
    """Three clouds; logits; labels that are words."""
    rng = np.random.default_rng(0)
    index = rng.integers(3, size=300)
    features = 3.0 * np.eye(3, 6)[index] + 0.5 * rng.normal(size=(300, 6)) + [0, 0, 0, 1, 1, 1]
    return features, features @ layer[0].T + layer[1], np.array(["cat", "dog", "owl"])[index]


@pytest.fixture(scope="module")
def rows(data):
    rng = np.random.default_rng(1)
    return data[0][:50] + rng.normal(size=(50, 6)), data[1][:50] + rng.normal(size=(50, 3))


def refit(detector, data):
    return clone(detector).fit(*data)


# --- the protocol ---


@every_detector
def test_one_finite_number_per_row_which_does_not_depend_on_the_others(detector, data, rows):
    before = [np.array(each) for each in (*data, *rows)]
    model = clone(detector)
    assert model.fit(*data) is model
    scores = model.score(*rows)
    assert scores.shape == (50,)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    assert len(np.unique(scores)) > 10
    order = np.random.default_rng(2).permutation(50)
    np.testing.assert_allclose(model.score(rows[0][order], rows[1][order]), scores[order], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.score(rows[0][:1], rows[1][:1]), scores[:1], rtol=1e-7, atol=1e-9)
    for given, kept in zip((*data, *rows), before, strict=True):
        np.testing.assert_array_equal(given, kept)
    assert model.classes_.tolist() == ["cat", "dog", "owl"]
    assert model.n_features_in_ == 6


@every_detector
def test_fitting_again_copying_and_pickling_give_the_same(detector, data, rows):
    first = refit(detector, data)
    scores = first.score(*rows)
    copy = clone(first)
    assert str(copy) == str(detector)
    assert not hasattr(copy, "classes_")
    np.testing.assert_array_equal(copy.fit(*data).score(*rows), scores)
    np.testing.assert_array_equal(first.fit(*data).score(*rows), scores)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first)).score(*rows), scores)


@every_detector
def test_lists_tables_and_labels_of_any_kind(detector, data, rows):
    scores = refit(detector, data).score(*rows)
    numbers = np.unique(data[2], return_inverse=True)[1]
    frame = pd.DataFrame(data[0], columns=list("abcdef"))
    for labels in (numbers, numbers * 10 - 10, list(data[2]), pd.Series(data[2]), data[2].astype(object)):
        other = clone(detector).fit(frame, data[1].tolist(), labels)
        np.testing.assert_allclose(
            other.score(frame.to_numpy() * 0 + 1, data[1] * 0), fit_fixed(detector, data), rtol=1e-9
        )
        np.testing.assert_allclose(other.score(rows[0].tolist(), rows[1].tolist()), scores, rtol=1e-9, atol=1e-12)


def fit_fixed(detector, data):
    return refit(detector, data).score(data[0] * 0 + 1, data[1] * 0)


@every_detector
def test_a_class_may_be_absent_where_labels_number_the_columns(detector, data, rows):
    numbers = np.unique(data[2], return_inverse=True)[1]
    keep = numbers != 1
    model = clone(detector).fit(data[0][keep], data[1][keep], numbers[keep])
    assert model.classes_.tolist() == [0, 1, 2]
    assert np.isfinite(model.score(*rows)).all()
    message = rf"{get_name(detector)} needs one column of logits for each class. Got 3 column\(s\) and 2 classes"
    with pytest.raises(InvalidInputError, match=message):
        clone(detector).fit(data[0][keep], data[1][keep], data[2][keep])
    for wrong in (numbers[keep] + 1, numbers[keep] - 1, numbers[keep] / 1.0):
        with pytest.raises(InvalidInputError, match=r"number the classes from 0 to 2"):
            clone(detector).fit(data[0][keep], data[1][keep], wrong)
    with pytest.raises(InvalidInputError, match=r"Got 2 column\(s\) and 3 classes"):
        clone(detector).fit(data[0], data[1][:, :2], data[2])


@every_detector
@pytest.mark.parametrize("size", [1e6, 1e-6])
def test_rows_and_training_rows_of_extreme_size(detector, data, rows, size):
    model = refit(detector, data)
    with np.errstate(all="raise", under="ignore", over="ignore", invalid="ignore"):
        assert np.isfinite(model.score(size * rows[0], size * rows[1])).all()
        assert np.isfinite(model.score(-size * rows[0], rows[1])).all()
        large = clone(detector).fit(size * data[0], size * data[1], data[2])
        assert np.isfinite(large.score(size * rows[0], size * rows[1])).all()
        assert np.isfinite(large.score(*rows)).all()


def test_overflow_is_an_error(data):
    message = r"Mahalanobis can square and add up. Got values so large that the score of 1 row\(s\) overflows"
    with pytest.raises(InvalidInputError, match=message):
        refit(Mahalanobis(), data).score([[1e300] * 6, [1.0] * 6], np.ones((2, 3)))


@every_detector
@pytest.mark.parametrize("size", [1e154, 1e200, 1e300])
def test_values_that_cannot_be_squared_are_rejected(detector, data, rows, size):
    message = rf"{get_name(detector)} can square and add up. Got values so large that the score of"
    model = refit(detector, data)
    before = model.score(*rows)
    for large in ((size * data[0], data[1]), (data[0], size * data[1]), (size * data[0], size * data[1])):
        with pytest.raises(InvalidInputError, match=rf"{message} \d+ row\(s\) overflows"):
            model.fit(*large, data[2])
    np.testing.assert_array_equal(model.score(*rows), before)
    for features, logits in ((size * 10, 1.0), (1.0, size * 10), (-size * 10, size * 10)):
        with pytest.raises(InvalidInputError, match=rf"{message} 50 row\(s\) overflows"):
            model.score(features * (np.abs(rows[0]) + 1), logits * (np.abs(rows[1]) + 1))


@every_detector
def test_the_largest_values_that_can_be_squared(detector, data, rows):
    """What passes the check is fitted and scored, in numbers."""
    size = 1e150
    model = clone(detector).fit(size * data[0], size * data[1], data[2])
    scores = model.score(size * rows[0], size * rows[1])
    assert np.isfinite(scores).all()
    if not isinstance(detector, MSP | Gini | Entropy):  # logits of this size leave no doubt at all
        assert len(np.unique(scores)) > 10


def test_training_rows_that_do_not_vary():
    with pytest.raises(InvalidInputError, match=r"vary within classes.* Got each row equal to the mean of its class"):
        Mahalanobis().fit(np.ones((4, 2)), np.ones((4, 2)), [0, 1, 0, 1])


# --- what cannot be used ---


def without(array, *index, value=np.nan):
    changed = np.array(array)
    changed[index] = value
    return changed


BAD = {
    "one row of features": (lambda X, Z, y: (X[0], Z, y), "The features of .*: Expected 2D array, got 1D array"),
    "one row of logits": (lambda X, Z, y: (X, Z[0], y), "The logits of .*: Expected 2D array, got 1D array"),
    "three axes": (lambda X, Z, y: (X[None], Z, y), "Found array with dim 3"),
    "a missing feature": (lambda X, Z, y: (without(X, 3, 2), Z, y), "contains NaN"),
    "a missing logit": (lambda X, Z, y: (X, without(Z, 3, 2), y), "contains NaN"),
    "infinity": (lambda X, Z, y: (without(X, 3, 2, value=np.inf), Z, y), "contains infinity"),
    "words": (lambda X, Z, y: (X.astype(str).astype(object) + "x", Z, y), "could not convert string to float"),
    "a mask": (lambda X, Z, y: (np.ma.masked_less(X, 0), Z, y), "features without masked entries"),
    "fewer logits": (lambda X, Z, y: (X, Z[1:], y), "inconsistent numbers of samples"),
    "fewer labels": (lambda X, Z, y: (X, Z, y[1:]), "inconsistent numbers of samples"),
    "no rows": (lambda X, Z, y: (X[:0], Z[:0], y[:0]), r"Found array with 0 sample\(s\)"),
    "no features": (lambda X, Z, y: (X[:, :0], Z, y), r"Found array with 0 feature\(s\)"),
    "labels in a table": (lambda X, Z, y: (X, Z, np.column_stack([y, y])), "should be a 1d array"),
    "no labels": (lambda X, Z, y: (X, Z, None), "requires y to be passed"),
    "a missing label": (lambda X, Z, y: (X, Z, np.where(y == "cat", None, y)), "class label in every row"),
    "one class": (lambda X, Z, y: (X, Z, np.full(len(y), "cat")), "at least two classes in y. Got one class"),
    "numbers for labels": (lambda X, Z, y: (X, Z, X[:, 0]), "Unknown label type: continuous"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
@pytest.mark.parametrize("detector", [MSP(), Mahalanobis()], ids=get_name)
def test_training_rows_that_cannot_be_used(detector, data, case):
    change, message = case
    with pytest.raises((InvalidInputError, TypeError), match=message):
        clone(detector).fit(*change(*data))


@every_detector
def test_rows_that_cannot_be_scored(detector, data, rows):
    model = refit(detector, data)
    name = get_name(detector)
    with pytest.raises(NotFittedError, match=f"This {name} instance is not fitted yet"):
        clone(detector).score(*rows)
    with pytest.raises(InvalidInputError, match=f"{name} was fitted with 6 columns of features. Got 5"):
        model.score(rows[0][:, 1:], rows[1])
    with pytest.raises(InvalidInputError, match=f"{name} was fitted with 3 columns of logits. Got 2"):
        model.score(rows[0], rows[1][:, 1:])
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        model.score(rows[0], rows[1][1:])
    with pytest.raises(InvalidInputError, match=r"Found array with 0 sample\(s\)"):
        model.score(rows[0][:0], rows[1][:0])
    with pytest.raises(InvalidInputError, match="contains NaN"):
        model.score(without(rows[0], 0, 0), rows[1])


@every_detector
def test_a_fit_that_fails_leaves_the_last_one(detector, data, rows):
    model = refit(detector, data)
    scores = model.score(*rows)
    with pytest.raises(InvalidInputError):
        model.fit(data[0][:, :3], data[1], np.full(300, "cat"))
    with pytest.raises(InvalidInputError):
        model.fit(without(data[0], 0, 0), *data[1:])
    np.testing.assert_array_equal(model.score(*rows), scores)


def test_a_fit_that_fails_half_way_leaves_the_last_one(data, rows):
    model = refit(KNN(k=10), data)
    with pytest.raises(InvalidInputError, match="k=10 among the training rows"):
        model.fit(np.ones((4, 2)), np.ones((4, 2)), [0, 1, 0, 1])
    assert model.n_features_in_ == 6
    assert model.score(*rows).shape == (50,)


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        (MSP(temperature=0.0), r"'temperature' parameter of MSP must be a float in \(0, inf\). Got 0.0"),
        (Energy(temperature=-1.0), "'temperature' parameter of Energy"),
        (KNN(k=0), r"'k' parameter of KNN must be an int in \[1, inf\)"),
        (KNN(k=2.5), "'k' parameter of KNN must be an int"),
        (KNN(every=0), "'every' parameter of KNN must be an int"),
        (KNN(k=301), "KNN looks for neighbour number k=301 among the training rows it keeps. Got 300 rows"),
        (KNN(k=50, every=7), r"k=50 among the training rows it keeps. Got 43 rows\. Pass more rows, keep more"),
    ],
)
def test_parameters_that_cannot_be_used(detector, data, message):
    with pytest.raises(InvalidInputError, match=message):
        detector.fit(*data)


@pytest.mark.parametrize(
    "call",
    [
        lambda: msp([1.0, 2.0]),
        lambda: msp([[1.0, 2.0]], temperature=0.0),
        lambda: energy([[1.0, np.inf]]),
        lambda: energy([[1.0, 2.0]], temperature=-1.0),
        lambda: mahalanobis([1.0], np.zeros((1, 1)), np.eye(1)),
        lambda: knn([[1.0]], [[1.0], [2.0]], k=3),
        lambda: knn([[1.0]], [[1.0], [2.0]], k=0),
    ],
)
def test_the_functions_reject_bad_input_too(call):
    with pytest.raises(InvalidInputError):
        call()


# --- what the theory says ---


@pytest.mark.parametrize("detector", LOGITS_ONLY, ids=get_name)
def test_scores_of_logits_ignore_features(detector, data, rows):
    model = refit(detector, data)
    np.testing.assert_array_equal(model.score(rows[0] * 0, rows[1]), model.score(*rows))


@some(Mahalanobis, KNN)
def test_scores_of_features_ignore_logits(detector, data, rows):
    model = refit(detector, (data[0], data[1] * 0 + 1, data[2]))
    np.testing.assert_array_equal(model.score(rows[0], rows[1] * 0), refit(detector, data).score(*rows))


@some(Mahalanobis, KNN)
def test_detectors_of_features_need_no_logits(detector, data, rows):
    model = clone(detector).fit(data[0], labels=data[2])
    assert model.classes_.tolist() == ["cat", "dog", "owl"]
    expected = refit(detector, data).score(*rows)
    np.testing.assert_array_equal(model.score(rows[0]), expected)
    np.testing.assert_array_equal(model.score(*rows), expected)
    np.testing.assert_array_equal(refit(detector, data).score(rows[0]), expected)


def test_neighbours_need_no_labels_either(data, rows):
    model = KNN(k=10).fit(data[0])
    assert len(model.classes_) == 0
    np.testing.assert_array_equal(model.score(rows[0]), refit(KNN(k=10), data).score(*rows))


@pytest.mark.parametrize("detector", LOGITS_ONLY, ids=get_name)
def test_detectors_that_need_logits_say_so(detector, data, rows):
    message = f"{get_name(detector)} needs the logits of the classifier. Got None"
    with pytest.raises(InvalidInputError, match=message):
        clone(detector).fit(data[0], labels=data[2])
    with pytest.raises(InvalidInputError, match=message):
        refit(detector, data).score(rows[0])


def test_mahalanobis_needs_labels(data):
    with pytest.raises(InvalidInputError, match="Mahalanobis requires y to be passed"):
        Mahalanobis().fit(data[0])


def score_after(detector, data, rows, change):
    return clone(detector).fit(change(data[0]), *data[1:]).score(change(rows[0]), rows[1])


def add_logits(rows, layer):
    """Rows whose logits are those of their features."""
    return rows[0], rows[0] @ layer[0].T + layer[1]


def test_knn_does_not_change_when_features_are_rotated(data, rows):
    rotation = ortho_group.rvs(6, random_state=3)
    there = score_after(KNN(k=10), data, rows, lambda X: X @ rotation)
    np.testing.assert_allclose(there, refit(KNN(k=10), data).score(*rows), rtol=1e-6, atol=1e-7)


def test_mahalanobis_does_not_change_under_an_invertible_affine_map(data, rows):
    rng = np.random.default_rng(0)
    for _ in range(10):
        matrix, shift = rng.normal(size=(6, 6)), 10 * rng.normal(size=6)
        there = score_after(Mahalanobis(), data, rows, lambda X, A=matrix, b=shift: X @ A + b)
        np.testing.assert_allclose(there, refit(Mahalanobis(), data).score(*rows), rtol=1e-6)


def test_knn_ignores_the_length_of_rows(data, rows):
    rng = np.random.default_rng(0)
    lengths, others = 10.0 ** rng.uniform(-3, 3, size=(300, 1)), 10.0 ** rng.uniform(-3, 3, size=(50, 1))
    there = KNN(k=10).fit(lengths * data[0], *data[1:]).score(others * rows[0], rows[1])
    np.testing.assert_allclose(there, refit(KNN(k=10), data).score(*rows), atol=1e-7)


# --- rows from elsewhere ---


def make_unusual_rows(data, layer):
    """Ordinary rows and the same rows far off in directions that the last layer does not see."""
    ordinary = data[0][:20]
    unusual = ordinary + 50.0 * null_space(layer[0])[:, :3] @ np.array([1.0, -1.0, 1.0])
    return add_logits((ordinary,), layer), add_logits((unusual,), layer)


@some(Mahalanobis, KNN)
def test_detectors_of_features_see_an_unusual_row(detector, data, layer):
    model = refit(detector, data)
    _, unusual = make_unusual_rows(data, layer)
    assert model.score(*unusual).min() > np.median(model.score(*data[:2]))


@pytest.mark.parametrize("detector", LOGITS_ONLY, ids=get_name)
def test_detectors_of_logits_do_not_see_an_unusual_row(detector, data, layer):
    model = refit(detector, data)
    ordinary, unusual = make_unusual_rows(data, layer)
    np.testing.assert_allclose(model.score(*unusual), model.score(*ordinary), rtol=1e-9)


@pytest.mark.parametrize("detector", LOGITS_ONLY, ids=get_name)
def test_detectors_that_trust_a_row_far_out_in_the_direction_of_a_class(detector, data, layer):
    """As their docstrings say: large logits are taken for a good sign."""
    model = refit(detector, data)
    far = add_logits((100.0 * data[0].mean(axis=0) + 1e4 * layer[0][:1],), layer)
    assert model.score(*far)[0] < np.quantile(model.score(*data[:2]), 0.1)


def test_mahalanobis_does_not_trust_a_row_far_out(data, layer):
    model = refit(Mahalanobis(), data)
    far = add_logits((-100.0 * layer[0][:1] + [0, 0, 0, 90, 0, 0],), layer)
    assert model.score(*far)[0] > model.score(*data[:2]).max()


# --- the package ---


def test_the_package_imports_without_torch_and_names_what_needs_it(monkeypatch):
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
import onsphere.baselines
print(onsphere.baselines.KNN().k)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "50\n", run.stderr
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("Evidential", "DeepEnsemble"):
        with pytest.raises(MissingExtraError, match=rf"{name} needs torch\. Install it with"):
            getattr(onsphere.baselines, name)


def test_every_public_name_has_a_docstring():
    for name in onsphere.baselines.__all__:
        assert getattr(onsphere.baselines, name).__doc__
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchDetector'"):
        onsphere.baselines.NoSuchDetector  # noqa: B018
