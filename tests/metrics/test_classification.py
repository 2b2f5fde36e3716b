"""Classification and out-of-distribution metrics: against scikit-learn, scipy and torchmetrics, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onsphere.errors import InvalidInputError
from onsphere.metrics import (
    accuracy,
    aupr,
    auroc,
    brier_score,
    expected_calibration_error,
    fpr_at_tpr,
    log_loss,
)


def fpr_at_tpr_out(*scores, **options):
    return fpr_at_tpr(*scores, positive="out", **options)


OOD_METRICS = [auroc, aupr, fpr_at_tpr, fpr_at_tpr_out]


def random_scores(seed, *, tied):
    """Overlapping scores of 300 rows inside and 200 outside, on a coarse grid where ties are wanted."""
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(size=300), rng.normal(1.0, size=200)
    return (inside.round(1), outside.round(1)) if tied else (inside, outside)


@st.composite
def weighted_scores(draw):
    """Two small sets of tied scores with whole weights that are not all zero."""
    sets = []
    for _ in range(2):
        n = draw(st.integers(1, 8))
        sets.append(np.array(draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)), dtype=float))
        sets.append(np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))))
    return sets


# --- accuracy, Brier, ECE ---


def test_accuracy_agrees_with_sklearn():
    from sklearn.metrics import accuracy_score

    rng = np.random.default_rng(0)
    labels, predicted, weights = rng.integers(0, 3, 200), rng.integers(0, 3, 200), rng.uniform(size=200)
    assert accuracy(labels, predicted) == accuracy_score(labels, predicted)
    expected = accuracy_score(labels, predicted, sample_weight=weights)
    assert accuracy(labels, predicted, sample_weight=weights) == pytest.approx(expected, rel=1e-13)


def test_accuracy_takes_text_in_object_arrays():
    assert accuracy(np.array(["a", "b"], dtype=object), ["a", "c"]) == 0.5


@pytest.mark.parametrize(
    ("labels", "predicted", "message"),
    [
        (["1", "2"], [1, 2], "text never equals"),
        ([1.0, np.nan], [1, 2], "finite"),
        ([], [], "at least one row"),
        ([1, 2, 3], [1, 2], "one shape"),
        ([[1], [2]], [[1], [2]], r"shape \(n,\)"),
        (["a", None], ["a", "b"], "numbers"),
    ],
)
def test_accuracy_rejects_bad_input(labels, predicted, message):
    with pytest.raises(InvalidInputError, match=message):
        accuracy(labels, predicted)


def test_log_loss_agrees_with_sklearn():
    from sklearn.metrics import log_loss as expected_log_loss

    rng = np.random.default_rng(0)
    probabilities, labels, weights = rng.dirichlet(np.ones(4), 50), rng.integers(4, size=50), rng.random(50)
    expected = expected_log_loss(labels, probabilities, sample_weight=weights, labels=[0, 1, 2, 3])
    assert log_loss(labels, probabilities, sample_weight=weights) == pytest.approx(expected, rel=1e-12)
    assert log_loss(np.eye(4)[labels], probabilities, sample_weight=weights) == pytest.approx(expected, rel=1e-12)
    assert log_loss([0], [[0.0, 1.0]]) == pytest.approx(52 * np.log(2))
    with pytest.raises(InvalidInputError, match="Expected each row of probabilities of log_loss to sum to 1"):
        log_loss([0], [[0.5, 0.4]])


def test_brier_agrees_with_sklearn():
    from sklearn.metrics import brier_score_loss

    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet(np.ones(4), size=150)
    labels, weights = rng.integers(0, 4, 150), rng.uniform(size=150)
    expected = brier_score_loss(labels, probabilities, sample_weight=weights, labels=[0, 1, 2, 3], scale_by_half=False)
    assert brier_score(labels, probabilities, sample_weight=weights) == pytest.approx(expected, rel=1e-12)
    assert brier_score(np.eye(4)[labels], probabilities, sample_weight=weights) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("labels", "probabilities", "message"),
    [
        ([0, 1], [[0.5, 0.4], [0.5, 0.5]], "sum to 1"),
        ([0, 1], [[1.5, -0.5], [0.5, 0.5]], r"\[0, 1\]"),
        ([0, 2], [[0.5, 0.5], [0.5, 0.5]], "class indices from 0 to 1"),
        ([[1, 1], [0, 1]], [[0.5, 0.5], [0.5, 0.5]], "one-hot"),
        ([[0.5, 0.5], [0, 1]], [[0.5, 0.5], [0.5, 0.5]], "one-hot"),
        ([0], [[0.5, 0.5], [0.5, 0.5]], "one shape"),
        ([0, np.nan], [[0.5, 0.5], [0.5, 0.5]], "finite"),
        ([0, 1], [0.5, 0.5], r"shape \(n, columns\)"),
        ([], np.empty((0, 2)), "at least one row"),
    ],
)
def test_brier_rejects_bad_input(labels, probabilities, message):
    with pytest.raises(InvalidInputError, match=message):
        brier_score(labels, probabilities)


def test_ece_agrees_with_torchmetrics():
    import torch
    from torchmetrics.functional.classification import binary_calibration_error

    rng = np.random.default_rng(2)
    confidence = rng.uniform(size=400)
    correct = rng.uniform(size=400) < confidence**2
    expected = binary_calibration_error(torch.tensor(confidence), torch.tensor(correct).int(), n_bins=15)
    # torchmetrics adds up in single precision.
    assert expected_calibration_error(correct, confidence) == pytest.approx(float(expected), rel=1e-5)


def test_ece_edges_worked_by_hand():
    # Two bins: 0.25 alone in the first (gap 0.25); the edge 0.5 and the end 1.0 in the second, where 1 of 2 is right
    # and the mean confidence is 0.75 (gap 0.25).
    assert expected_calibration_error([0, 0, 1], [0.25, 0.5, 1.0], n_bins=2) == pytest.approx(0.25, rel=1e-14)


# The first example may have to wait for an import.
@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=15))
def test_ece_weights_bounds_and_order(rows):
    correct, confidence, weights = map(np.array, zip(*rows, strict=True))
    weights = weights + (weights.sum() == 0)
    value = expected_calibration_error(correct, confidence, n_bins=5, sample_weight=weights)
    repeated = np.repeat(correct, weights)[::-1], np.repeat(confidence, weights)[::-1]
    assert value == pytest.approx(expected_calibration_error(*repeated, n_bins=5), rel=1e-11, abs=1e-12)
    assert 0.0 <= value <= 1.0
    assert accuracy(correct, correct, sample_weight=weights) == 1.0


@pytest.mark.parametrize(
    ("correct", "confidence", "n_bins"),
    [([2], [0.5], 15), ([1], [1.5], 15), ([1], [np.nan], 15), ([], [], 15), ([1, 0], [1], 15), ([1], [0.5], 0)],
)
def test_ece_rejects_bad_input(correct, confidence, n_bins):
    with pytest.raises(InvalidInputError, match="expected_calibration_error"):
        expected_calibration_error(correct, confidence, n_bins=n_bins)


# --- out of distribution ---


@pytest.mark.parametrize("tied", [False, True])
def test_auroc_is_the_mann_whitney_statistic(tied):
    from scipy.stats import mannwhitneyu

    inside, outside = random_scores(3, tied=tied)
    pairs = len(inside) * len(outside)
    assert auroc(inside, outside) == pytest.approx(mannwhitneyu(outside, inside).statistic / pairs, rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_aupr_agrees_with_torchmetrics(tied):
    import torch
    from torchmetrics.functional.classification import binary_average_precision

    inside, outside = random_scores(4, tied=tied)
    is_out = np.repeat([0, 1], [len(inside), len(outside)])
    # torchmetrics takes probabilities: any increasing map into (0, 1) keeps the order.
    scores = 1.0 / (1.0 + np.exp(-np.concatenate((inside, outside))))
    out = binary_average_precision(torch.tensor(scores), torch.tensor(is_out))
    into = binary_average_precision(torch.tensor(1.0 - scores), torch.tensor(1 - is_out))
    # It returns single precision.
    assert aupr(inside, outside) == pytest.approx(float(out), rel=1e-5)
    assert aupr(inside, outside, positive="in") == pytest.approx(float(into), rel=1e-5)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("tpr", [0.07, 0.5, 0.95, 1.0])
def test_fpr_agrees_with_the_roc_curve(tied, tpr):
    from sklearn.metrics import roc_curve

    inside, outside = random_scores(5, tied=tied)
    is_out, scores = np.repeat([0, 1], [len(inside), len(outside)]), np.concatenate((inside, outside))
    false, true, _ = roc_curve(is_out, scores, drop_intermediate=False)
    assert fpr_at_tpr(inside, outside, tpr=tpr, positive="out") == pytest.approx(false[true >= tpr][0], rel=1e-13)
    false, true, _ = roc_curve(1 - is_out, -scores, drop_intermediate=False)
    assert fpr_at_tpr(inside, outside, tpr=tpr) == pytest.approx(false[true >= tpr][0], rel=1e-13)


def test_fpr_conventions_worked_by_hand():
    inside = np.arange(1.0, 21.0)  # 1 to 20
    outside = np.array([0.0, 18.5, 19.0, 19.5, 30.0])
    # 19 of 20 inside rows are 95 %, so all up to 19 are accepted; of the outside 0, 18.5 and 19 are: 3 of 5.
    assert fpr_at_tpr(inside, outside) == pytest.approx(0.6, rel=1e-14)
    # 95 % of 5 outside rows needs all 5, so all from 0 on are rejected: every inside row.
    assert fpr_at_tpr(inside, outside, positive="out") == 1.0
    # 80 % of the outside are 4 rows, so all from 18.5 on are rejected: 19 and 20 of 20 inside rows.
    assert fpr_at_tpr(inside, outside, tpr=0.8, positive="out") == pytest.approx(0.1, rel=1e-14)


def test_fpr_with_ties_worked_by_hand():
    # Two thirds of the inside need the threshold 1, which brings all three ties along, and one of two outside rows.
    assert fpr_at_tpr([1, 1, 1], [1, 2], tpr=2 / 3) == 0.5
    assert fpr_at_tpr([1, 1, 2, 3], [2, 2, 2], tpr=1 / 3, positive="out") == 0.5


@pytest.mark.parametrize("metric", OOD_METRICS)
@settings(deadline=None)
@given(sets=weighted_scores())
def test_ood_weights_bounds_order_and_monotone_maps(metric, sets):
    inside, in_weight, outside, out_weight = sets
    value = metric(inside, outside, in_weight=in_weight, out_weight=out_weight)
    repeated = np.repeat(inside, in_weight)[::-1], np.repeat(outside, out_weight)[::-1]
    assert value == pytest.approx(metric(*repeated), rel=1e-11, abs=1e-12)
    assert value == metric(np.exp(inside), np.exp(outside), in_weight=in_weight, out_weight=out_weight)
    assert 0.0 <= value <= 1.0


@settings(deadline=None)
@given(sets=weighted_scores())
def test_swapping_the_sets_mirrors_the_metrics(sets):
    inside, _, outside, _ = sets
    assert auroc(outside, inside) == pytest.approx(1.0 - auroc(inside, outside), abs=1e-12)
    assert aupr(inside, outside, positive="in") == pytest.approx(aupr(-outside, -inside), rel=1e-12)
    assert fpr_at_tpr(inside, outside) == fpr_at_tpr(-outside, -inside, positive="out")


def test_perfect_separation():
    assert auroc([1, 2], [3, 4]) == aupr([1, 2], [3, 4]) == 1.0
    assert fpr_at_tpr([1, 2], [3, 4]) == fpr_at_tpr([1, 2], [3, 4], positive="out") == 0.0


@pytest.mark.parametrize("metric", OOD_METRICS)
@pytest.mark.parametrize(
    ("inside", "outside", "options"),
    [
        ([np.nan], [1.0], {}),
        ([1.0], [np.inf], {}),
        ([], [1.0], {}),
        ([1.0], [], {}),
        ([1.0], ["high"], {}),
        ([1.0, 2.0], [1.0], {"in_weight": [1.0]}),
        ([1.0], [1.0, 2.0], {"out_weight": [0.0, 0.0]}),
    ],
)
def test_ood_metrics_reject_bad_input(metric, inside, outside, options):
    with pytest.raises(InvalidInputError, match=f"of {metric.__name__.removesuffix('_out')}"):
        metric(inside, outside, **options)


@pytest.mark.parametrize("metric", [fpr_at_tpr, fpr_at_tpr_out])
@pytest.mark.parametrize("tpr", [0.0, -0.1, 1.1, np.nan, "high"])
def test_fpr_rejects_a_bad_tpr(metric, tpr):
    with pytest.raises(InvalidInputError, match=r"'tpr' parameter of fpr_at_tpr .* \(0, 1\]"):
        metric([1.0], [2.0], tpr=tpr)


def test_aupr_rejects_a_bad_positive():
    with pytest.raises(InvalidInputError, match="'positive' parameter of aupr must be one of 'out', 'in'"):
        aupr([1.0], [2.0], positive="ood")


@pytest.mark.parametrize("weight", [0.1, 0.7, 3.0])
def test_equal_weights_change_no_rate(weight):
    scores = np.arange(10.0)
    weights = np.full(10, weight)
    for positive in ("in", "out"):
        plain = fpr_at_tpr(scores, scores, positive=positive, tpr=0.8)
        weighted = fpr_at_tpr(scores, scores, positive=positive, tpr=0.8, in_weight=weights, out_weight=weights)
        assert weighted == pytest.approx(plain, rel=1e-12)


def test_masked_scores_are_rejected():
    with pytest.raises(InvalidInputError, match="without masked entries"):
        auroc(np.ma.array([1.0, 2.0], mask=[False, True]), [1.0])
