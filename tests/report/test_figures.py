"""The numbers behind the pictures, computed by hand."""

import numpy as np
from numpy.testing import assert_allclose


def test_the_risk_curve_by_hand(regression):
    assessment, error = regression.measure()
    table = regression.table("risk-coverage.csv")
    ranked = error[np.argsort(assessment.uncertainty)]
    assert_allclose(table["mean error"], np.cumsum(ranked) / np.arange(1, 143), rtol=1e-6)
    assert_allclose(table["mean error, oracle"], np.cumsum(np.sort(error)) / np.arange(1, 143), rtol=1e-6)
    assert_allclose(table["share accepted"], np.arange(1, 143) / 142, rtol=1e-6)


def test_the_intervals_by_hand(regression):
    assessment, _ = regression.measure()
    table = regression.table("intervals.csv")
    order = np.argsort(assessment.value, kind="stable")
    for title, values in {"prediction": assessment.value, "lower": assessment.lower, "upper": assessment.upper}.items():
        assert_allclose(table[title], values[order], rtol=1e-6)
    assert_allclose(table["truth"], regression.y.to_numpy()[order])
    assert_allclose(table["row"], regression.X.index.to_numpy()[order])


def test_errors_by_confidence_by_hand(regression):
    assessment, error = regression.measure()
    table, boxes = regression.table("error-by-confidence.csv"), regression.table("error-boxes.csv")
    place = np.minimum((assessment.confidence * 5).astype(int), 4)
    filled = [place == each for each in range(5) if np.any(place == each)]
    assert_allclose(table["rows"], [here.sum() for here in filled])
    assert_allclose(table["mean error"], [error[here].mean() for here in filled], rtol=1e-6)
    assert_allclose(table["confidence"], [assessment.confidence[here].mean() for here in filled], rtol=1e-6)
    assert_allclose(boxes["rows"], table["rows"])
    for title, q in {"quartile 1": 25, "median": 50, "quartile 3": 75}.items():
        assert_allclose(boxes[title], [np.percentile(error[here], q) for here in filled], rtol=1e-6)
    assert np.all(boxes["upper whisker"] <= [error[here].max() * (1 + 1e-6) for here in filled])


def test_the_points_and_norms_by_hand(regression):
    assessment, error = regression.measure()
    points, norms = regression.table("error-and-uncertainty.csv"), regression.table("direction-norms.csv")
    order = np.argsort(assessment.uncertainty, kind="stable")
    assert_allclose(points["uncertainty"], assessment.uncertainty[order], rtol=1e-6)
    assert_allclose(points["error"], error[order], rtol=1e-6)
    assert norms["rows"].sum() == 142
    below = np.char.startswith(norms["kind"], "shrink")
    assert norms["rows"][below].sum() == np.sum(assessment.direction_norm < 1 - 1e-6)


def test_sets_and_probabilities_by_hand(classification):
    assessment = classification.model.assess(classification.X, coverage=0.8)
    sizes, sets = assessment.prediction_set.sum(axis=1), classification.table("set-sizes.csv")
    assert_allclose(sets["rows"], [np.sum(sizes == size) for size in (1, 2, 3)])
    likely, right = assessment.probabilities.max(axis=1), assessment.value == classification.y.to_numpy()
    table = classification.table("reliability.csv")
    place = np.minimum((likely * 5).astype(int), 4)
    filled = [place == each for each in range(5) if np.any(place == each)]
    assert_allclose(table["share right"], [right[here].mean() for here in filled], rtol=1e-6)
    assert_allclose(table["probability"], [likely[here].mean() for here in filled], rtol=1e-6)
