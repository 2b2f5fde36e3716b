"""Evaluation on rows with known targets: errors, coverage and ranks, for numbers, several outputs and classes."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import LinearRegression, Ridge

from onsphere import AcceptShare, Assessment, HCMClassifier, HCMRegressor, Novelty, Tolerance, metrics
from onsphere.evaluation import (
    assess_model,
    compute_error,
    compute_row_errors,
    evaluate,
    find_covered,
    measure_assessment,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
Y = X @ [[1.0, -20.0], [2.0, 0.0], [0.0, 10.0]] + RNG.normal(size=(600, 2)) * [1.0, 10.0]
LABELS = np.array(["ant", "bee", "cat"])[np.argmax(X + RNG.normal(size=X.shape) * 0.3, axis=1)]
TRAIN, HELD, TEST = slice(200), slice(200, 400), slice(400, 600)


@pytest.fixture(scope="module")
def one_output():
    return HCMRegressor(Ridge()).fit(X[TRAIN], Y[TRAIN, 0]).calibrate(X[HELD], Y[HELD, 0])


@pytest.fixture(scope="module")
def two_outputs():
    return HCMRegressor(Ridge()).fit(X[TRAIN], Y[TRAIN]).calibrate(X[HELD], Y[HELD])


@pytest.fixture(scope="module")
def classifier():
    forest = ExtraTreesRegressor(20, min_samples_leaf=3, random_state=0)
    return HCMClassifier(forest).fit(X[TRAIN], LABELS[TRAIN]).calibrate(X[HELD], LABELS[HELD])


def by_hand(**values):
    return Assessment(**{name: np.asarray(value) for name, value in values.items()})


# --- errors and coverage by hand ---


def test_errors_by_hand():
    target, value = np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[4.0, 6.0], [0.0, 0.0]])
    np.testing.assert_allclose(compute_row_errors(target, value), [np.sqrt(12.5), 0.0])
    assert compute_error(target, value) == pytest.approx(2.5)
    labels = np.array(["a", "b", "b", "b"])
    np.testing.assert_array_equal(compute_row_errors(labels, ["a", "a", "b", "b"]), [0, 1, 0, 0])
    assert compute_error(labels, ["a", "a", "b", "b"]) == 0.25


def test_covered_numbers_lie_in_their_intervals_ends_included():
    result = by_hand(value=[0.0] * 4, uncertainty=[1.0] * 4, lower=[-1.0] * 4, upper=[1.0] * 4)
    np.testing.assert_array_equal(find_covered(result, np.array([-1.0, 1.0, 1.1, np.nan])), [True, True, False, False])


def test_covered_outputs_have_the_shape_of_the_target():
    result = by_hand(value=np.zeros((2, 2)), uncertainty=[1.0, 1.0], lower=[[-1, -5], [-1, -5]], upper=[[1, 5], [1, 5]])
    covered = find_covered(result, np.array([[0.0, 4.0], [2.0, 4.0]]))
    np.testing.assert_array_equal(covered, [[True, True], [False, True]])


def test_covered_labels_are_in_their_sets_and_unknown_ones_in_none():
    sets = [[True, True], [True, False], [True, True]]
    result = by_hand(value=["a", "a", "b"], uncertainty=[1.0, 1.0, 1.0], prediction_set=sets)
    covered = find_covered(result, np.array(["b", "b", "never trained on"]), np.array(["a", "b"]))
    np.testing.assert_array_equal(covered, [True, False, False])


# --- evaluate ---


def test_figures_of_numbers_are_those_of_the_metrics(one_output):
    figures = evaluate(one_output, X[TEST], Y[TEST, 0], coverage=0.8)
    value, uncertainty = one_output.predict(X[TEST]), one_output.predict_uncertainty(X[TEST])
    lower, upper = one_output.predict_interval(X[TEST], coverage=0.8).T
    errors = np.abs(value - Y[TEST, 0])
    assert figures["rows"] == 200
    assert figures["coverage_asked"] == 0.8
    assert figures["error"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert figures["mean_absolute_error"] == figures["mean_error"] == pytest.approx(errors.mean())
    assert figures["coverage"] == metrics.interval_coverage(Y[TEST, 0], lower, upper)
    assert figures["coverage_by_chance"][0] < 0.8 < figures["coverage_by_chance"][1]
    assert figures["width"] == pytest.approx(np.mean(upper - lower))
    assert figures["winkler"] == pytest.approx(metrics.winkler_score(Y[TEST, 0], lower, upper, coverage=0.8))
    assert figures["spearman"] == pytest.approx(metrics.spearman(errors, uncertainty))
    assert figures["aurc"] == pytest.approx(metrics.aurc(errors, uncertainty))
    assert not {"accepted", "targets"} & set(figures)


def test_coverage_of_several_outputs_is_that_of_all_at_once(two_outputs):
    figures = evaluate(two_outputs, X[TEST], Y[TEST], targets=["small", "large"])
    boxes = two_outputs.predict_interval(X[TEST])
    inside = (boxes[..., 0] <= Y[TEST]) & (Y[TEST] <= boxes[..., 1])
    assert figures["coverage"] == inside.all(axis=1).mean()
    assert list(figures["targets"]) == ["small", "large"]
    for place, each in enumerate(figures["targets"].values()):
        assert each["coverage"] == inside[:, place].mean() >= figures["coverage"]
        assert each["width"] == pytest.approx(np.mean(boxes[:, place, 1] - boxes[:, place, 0]))
    alone = two_outputs.predict_interval(X[TEST], simultaneous=False)
    winkler = [metrics.winkler_score(Y[TEST, j], alone[:, j, 0], alone[:, j, 1], coverage=0.9) for j in (0, 1)]
    assert figures["winkler"] == pytest.approx(np.mean(winkler))
    assert list(evaluate(two_outputs, X[TEST], Y[TEST])["targets"]) == ["output 0", "output 1"]


def test_classes_never_trained_on_are_wrong_and_not_covered(classifier):
    known = evaluate(classifier, X[TEST], LABELS[TEST])
    assert known["coverage"] > 0.8
    assert 1 <= known["width"] <= 3
    assert not {"winkler", "mean_absolute_error", "mean_error"} & set(known)
    labels = LABELS[TEST].copy()
    labels[:50] = "dog"
    figures = evaluate(classifier, X[TEST], labels)
    assert figures["coverage"] <= 0.75
    assert figures["error"] >= 0.25
    assert figures["width"] == known["width"]


def test_accepted_and_rejected_rows_are_measured_apart(one_output):
    uncertainty = one_output.predict_uncertainty(X[TEST])
    one_output.set_threshold(AcceptShare(0.7))
    figures = evaluate(one_output, X[TEST], Y[TEST, 0])
    accepted = uncertainty <= one_output.threshold_
    errors = np.abs(one_output.predict(X[TEST]) - Y[TEST, 0])
    assert figures["accepted"] == accepted.mean()
    assert figures["error_accepted"] == pytest.approx(errors[accepted].mean())
    assert figures["error_rejected"] == pytest.approx(errors[~accepted].mean())
    one_output.set_threshold(Tolerance(float(np.sort(uncertainty)[-2])))
    most = int(uncertainty.argmax())
    alone = evaluate(one_output, X[TEST][[most]], Y[TEST, 0][[most]])
    assert (alone["accepted"], alone["error_accepted"], alone["spearman"]) == (0.0, None, None)
    assert "aurc" not in alone
    one_output.set_threshold(None)


# --- the figures of compare ---


def test_any_object_that_predicts_is_assessed():
    class Minimal(LinearRegression):
        def predict_uncertainty(self, X):
            return np.ones(len(X), dtype=int)

    result = assess_model(Minimal().fit(X, Y[:, 0]), X, coverage=0.9)
    assert result.uncertainty.dtype == np.float64
    assert result.lower is None
    assert list(measure_assessment(result, Y[:, 0], coverage=0.9)) == ["error"]


def test_outputs_are_measured_in_intervals_of_their_own(two_outputs):
    result = assess_model(two_outputs, X[TEST], coverage=0.9)
    alone = two_outputs.predict_interval(X[TEST], coverage=0.9, simultaneous=False)
    np.testing.assert_array_equal(np.stack([result.lower, result.upper], axis=-1), alone)
    figures = measure_assessment(result, Y[TEST], coverage=0.9)
    assert set(figures) == {"error", "Spearman", "coverage", "width", "Winkler"}
    assert figures["coverage"] == pytest.approx(np.mean((alone[..., 0] <= Y[TEST]) & (Y[TEST] <= alone[..., 1])))


def test_classes_are_measured_in_their_sets(classifier):
    result = assess_model(classifier, X[TEST], coverage=0.9)
    figures = measure_assessment(result, LABELS[TEST], coverage=0.9, classes=classifier.classes_)
    assert set(figures) == {"error", "Spearman", "coverage", "width", "NLL", "ECE", "Brier"}
    assert figures["coverage"] == np.mean(find_covered(result, LABELS[TEST], classifier.classes_))
    truth = np.searchsorted(classifier.classes_, LABELS[TEST])
    assert figures["NLL"] == metrics.log_loss(truth, result.probabilities)
    assert figures["Brier"] == metrics.brier_score(truth, result.probabilities)
    is_right = result.value == LABELS[TEST]
    assert figures["ECE"] == metrics.expected_calibration_error(is_right, result.probabilities.max(axis=1))
    unknown = np.where(np.arange(len(truth)) == 0, "unknown", LABELS[TEST])
    assert "NLL" not in measure_assessment(result, unknown, coverage=0.9, classes=classifier.classes_)


def test_novel_rows_and_the_reasons_of_rejected_ones_are_counted():
    y = Y[:, 0]
    model = HCMRegressor(Ridge(), frames=("target", "input")).fit(X[TRAIN], y[TRAIN]).calibrate(X[HELD], y[HELD])
    far = X[TEST] + np.where(np.arange(200)[:, None] < 60, 20.0, 0.0)
    figures = evaluate(model, far, y[TEST])
    assert 0.3 <= figures["novel"] < 0.4
    assert "rejected_as" not in figures
    model.set_threshold(AcceptShare(0.9), novelty=Novelty(max=0.5))
    figures = evaluate(model, far, y[TEST])
    assert sum(figures["rejected_as"].values()) == round(200 * (1 - figures["accepted"]))
    assert figures["rejected_as"]["novel"] + figures["rejected_as"]["uncertain and novel"] >= 60
    plain = HCMRegressor(Ridge(), frames="target").fit(X[TRAIN], y[TRAIN]).calibrate(X[HELD], y[HELD])
    assert not {"novel", "rejected_as"} & set(evaluate(plain, far, y[TEST]))


# --- groups ---


def test_the_coverage_of_each_group_is_measured(two_outputs, classifier):
    side = np.where(X[:, 0] > 0, "right", "left")
    model = HCMRegressor(Ridge()).fit(X[TRAIN], Y[TRAIN]).calibrate(X[HELD], Y[HELD], groups=side[HELD])
    figures = evaluate(model, X[TEST], Y[TEST], groups=side[TEST])
    result = model.assess(X[TEST], groups=side[TEST])
    covered = find_covered(result, Y[TEST]).all(axis=1)
    for name in ("left", "right"):
        assert figures["groups"][name]["rows"] == np.sum(side[TEST] == name)
        assert figures["groups"][name]["coverage"] == pytest.approx(covered[side[TEST] == name].mean())
    assert figures["winkler"] > 0
    assert "groups" not in evaluate(two_outputs, X[TEST], Y[TEST])


def test_classes_that_were_never_trained_on_are_no_group():
    model = HCMClassifier(Ridge()).fit(X[TRAIN], LABELS[TRAIN]).calibrate(X[HELD], LABELS[HELD], groups="class")
    labels = LABELS[TEST].astype("<U5")
    labels[:5] = "wasp"
    figures = evaluate(model, X[TEST], labels)
    assert set(figures["groups"]) == {"ant", "bee", "cat"}
    assert sum(each["rows"] for each in figures["groups"].values()) == 195


def test_chance_counts_weighted_rows_by_what_they_tell():
    model = HCMRegressor(Ridge()).fit(X[TRAIN], Y[TRAIN, 0])
    equal = evaluate(model.calibrate(X[HELD], Y[HELD, 0]), X[TEST], Y[TEST, 0])["coverage_by_chance"]
    weights = np.where(np.arange(200) % 10 == 0, 10.0, 1.0)
    other = evaluate(model.calibrate(X[HELD], Y[HELD, 0], sample_weight=weights), X[TEST], Y[TEST, 0])
    assert np.ptp(other["coverage_by_chance"]) > np.ptp(equal)
