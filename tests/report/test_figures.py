"""The numbers behind the pictures, computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from onsphere.report.figures import show_figures


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


# --- skewed values ---


@pytest.fixture
def skewed(rows):
    """Rows of positive values over three decades, with an interval that reaches below 0."""
    target = np.exp(np.linspace(0, 7, 60))
    plain = rows(0.1 * target, 0.1 * target, target=target[:, None])
    return replace(plain, assessment=replace(plain.assessment, value=target, lower=target - 3, upper=target + 3))


def test_skewed_positive_values_have_a_logarithmic_axis(skewed):
    pictures = {picture.title: picture for picture in show_figures(skewed).pictures}
    for title, words in {"Predictions and truth": "The axis is", "Error and uncertainty": "Both axes are"}.items():
        assert f"{words} logarithmic, because the values are skewed." in pictures[title].reading
        assert {">10<", ">100<"} <= {f">{text}<" for text in _list_texts(pictures[title].svg)}
        assert "mathdefault" not in pictures[title].svg
    exact = replace(skewed, error=np.where(np.arange(60) == 3, 0.0, skewed.error))
    by_title = {picture.title: picture for picture in show_figures(exact).pictures}
    assert "logarithmic" not in by_title["Error and uncertainty"].reading, "0 has no logarithm"


def _list_texts(svg):
    from xml.etree import ElementTree

    return ["".join(text.itertext()).strip() for text in ElementTree.fromstring(svg).iter("text")]


@pytest.mark.parametrize(
    ("target", "is_skewed"),
    [
        (np.exp(np.linspace(0, 7, 60)), True),
        (np.exp(np.linspace(0, 7, 60)) - 1, False),  # 0 has no logarithm
        (np.linspace(1, 100, 60), False),  # wide, but even
        (-np.exp(np.linspace(0, 7, 60)), False),
        (100 + np.exp(np.linspace(0, 4, 60)), False),  # narrow
    ],
)
def test_which_values_are_skewed(rows, target, is_skewed):
    assert rows(np.ones(60), np.arange(60), target=target[:, None]).is_skewed.tolist() == [is_skewed]
    assert not rows(np.ones(60), np.arange(60), is_class=True).is_skewed.any()


def test_the_rows_of_several_targets_are_counted_once(several):
    """The 200 rows of the report have two targets each."""
    assert ">200 rows, 2 targets<" in several.html
    assert ">400 rows<" not in several.html
    assert ">Share of true values<" in several.html
