"""Rows against the truth: errors, coverage, names and features."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.ensemble import ExtraTreesRegressor

from onsphere import HCMClassifier, HCMRegressor, InvalidInputError
from onsphere.report.measured_rows import measure_rows, read_features, to_frame

RNG = np.random.default_rng(0)
X = RNG.normal(size=(160, 3))
Y = pd.DataFrame({"thickness": X[:, 0], "stress": X[:, 1]}) + RNG.normal(size=(160, 2))
TREES = ExtraTreesRegressor(5, min_samples_leaf=2)


def measure(model, y, **options):
    return measure_rows(model, X[100:], y, **{"coverage": 0.9, "target_name": None, "row_names": None, **options})


@pytest.fixture(scope="module")
def regressor():
    return HCMRegressor(TREES, random_state=0).fit(X[:60], Y[:60]).calibrate(X[60:100], Y[60:100])


@pytest.fixture(scope="module")
def classifier():
    labels = (X[:, 0] > 0).astype(int)
    return HCMClassifier(TREES, random_state=0).fit(X[:60], labels[:60]).calibrate(X[60:100], labels[60:100])


def test_errors_and_coverage_of_numbers_by_hand(regressor):
    rows, truth = measure(regressor, Y[100:]), Y[100:].to_numpy()
    value, lower, upper = rows.intervals
    assert_allclose(rows.error, np.sqrt(np.mean((truth - value) ** 2, axis=1)))
    assert rows.is_covered.tolist() == ((lower <= truth) & (truth <= upper)).all(axis=1).tolist()
    assert (rows.target_name, rows.output_names) == ("thickness, stress", ["thickness", "stress"])
    assert (len(rows), rows.n_calibration, rows.n_left_out) == (60, 40, 0)


def test_a_class_that_was_never_seen_is_wrong_and_not_covered(classifier):
    labels = (X[100:, 0] > 0).astype(int)
    labels[:6] = 7
    rows = measure(classifier, labels)
    assert rows.error[:6].tolist() == [1.0] * 6
    assert not rows.is_covered[:6].any()
    assert_allclose(rows.error[6:], rows.assessment.value[6:] != labels[6:])


def test_labels_of_another_type_are_rejected(classifier):
    with pytest.raises(InvalidInputError, match=r"such as 0\. Got none of them, but labels such as 'a'"):
        measure(classifier, np.full(60, "a"))


def test_outputs_in_another_order_are_rejected(regressor):
    with pytest.raises(InvalidInputError, match="was fitted with the outputs thickness, stress"):
        measure(regressor, Y.loc[100:, ["stress", "thickness"]])


def test_a_frame_of_another_library_becomes_a_pandas_frame(regressor):
    class Table(dict):
        """Columns by name, as a frame of another library has them."""

        columns, shape, dtypes = ["a", "b"], (2, 2), [np.dtype(float)] * 2

    frame = to_frame(regressor, Table(a=[1.0, 2.0], b=["x", "y"]))
    assert frame.to_dict("list") == {"a": [1.0, 2.0], "b": ["x", "y"]}


def test_a_column_is_read_as_its_dtype_says():
    frame = pd.DataFrame({"a": [1, 2], "b": [np.inf, 0.5], "c": ["1", None], "d": [True, False]})
    frame["e"] = pd.to_datetime(["1970-01-02", None])
    features = read_features(frame)
    assert [feature.kind for feature in features] == ["number", "number", "category", "category", "date"]
    assert [feature.is_missing.tolist() for feature in features] == [
        [False, False],
        [True, False],
        [False, True],
        [False, False],
        [False, True],
    ]
    assert features[3].values.tolist() == ["True", "False"]
    assert features[4].values[0] == 86_400
