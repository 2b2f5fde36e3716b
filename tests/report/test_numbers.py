"""Every figure of a report, computed once more by hand."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from onsphere.calibration import covered_rows, covered_share_range
from onsphere.report.chance import share_range
from onsphere.report.parts import number, percent

THIN = "\u202f"


def answers(report, **options):
    answer = report.model.assess(report.X, **options)
    return answer, np.abs(np.asarray(report.y, dtype=float) - answer.value)


# --- numbers ---


def test_the_headline_of_numbers(regression):
    answer, error = answers(regression)
    y = regression.y.to_numpy()
    covered = np.mean((answer.lower <= y) & (y <= answer.upper))
    kept = answer.accepted
    assert 0 < kept.sum() < len(kept)
    says = regression.text
    assert f"On 142 rows it has not seen, predictions are off by {number(error.mean())} on average" in says
    assert f"{percent(covered, decimals=1)} of the true values lie inside their 90{THIN}% interval" in says
    share = percent(kept.mean(), decimals=1)
    assert f"It accepts {share} of the rows; those are off by {number(error[kept].mean())}" in says
    assert f"the rejected ones by {number(error[~kept].mean())}" in says
    guess = np.abs(y - np.median(y)).mean()
    assert f"{number(guess)} by guessing the middle" in says
    assert f"Spearman {stats.spearmanr(error, answer.uncertainty).statistic:.2f}" in says
    assert number((answer.upper - answer.lower).mean()) in regression.page.texts


def test_the_curve_of_risk(regression):
    answer, error = answers(regression)
    table = regression.table("risk-coverage.csv")
    ranked = error[np.argsort(answer.uncertainty)]
    assert_allclose(table["mean error"], np.cumsum(ranked) / np.arange(1, 143), rtol=1e-6)
    assert_allclose(table["mean error, oracle"], np.cumsum(np.sort(error)) / np.arange(1, 143), rtol=1e-6)
    assert_allclose(table["share accepted"], np.arange(1, 143) / 142, rtol=1e-6)


def test_the_intervals(regression):
    answer, _ = answers(regression)
    table = regression.table("intervals.csv")
    order = np.argsort(answer.value, kind="stable")
    for title, values in {"prediction": answer.value, "lower": answer.lower, "upper": answer.upper}.items():
        assert_allclose(table[title], values[order], rtol=1e-6)
    assert_allclose(table["truth"], regression.y.to_numpy()[order])
    assert_allclose(table["row"], regression.X.index.to_numpy()[order])


def test_errors_by_confidence(regression):
    answer, error = answers(regression)
    table, boxes = regression.table("error-by-confidence.csv"), regression.table("error-boxes.csv")
    place = np.minimum((answer.confidence * 5).astype(int), 4)
    filled = [place == each for each in range(5) if np.any(place == each)]
    assert_allclose(table["rows"], [here.sum() for here in filled])
    assert_allclose(table["mean error"], [error[here].mean() for here in filled], rtol=1e-6)
    assert_allclose(table["confidence"], [answer.confidence[here].mean() for here in filled], rtol=1e-6)
    assert_allclose(boxes["rows"], table["rows"])
    for title, q in {"quartile 1": 25, "median": 50, "quartile 3": 75}.items():
        assert_allclose(boxes[title], [np.percentile(error[here], q) for here in filled], rtol=1e-6)
    assert np.all(boxes["upper whisker"] <= [error[here].max() * (1 + 1e-6) for here in filled])


def test_the_points_and_the_norms(regression):
    answer, error = answers(regression)
    points, norms = regression.table("error-and-uncertainty.csv"), regression.table("direction-norms.csv")
    order = np.argsort(answer.uncertainty, kind="stable")
    assert_allclose(points["uncertainty"], answer.uncertainty[order], rtol=1e-6)
    assert_allclose(points["error"], error[order], rtol=1e-6)
    assert norms["rows"].sum() == 142
    below = np.char.startswith(norms["kind"], "shrink")
    assert norms["rows"][below].sum() == np.sum(answer.direction_norm < 1 - 1e-6)


def test_where_it_is_least_trusted(regression):
    answer, error = answers(regression)
    table = regression.table("least-trusted.csv")
    assert np.all(np.diff(table["mean confidence"]) >= 0)
    assert len(table["rows"]) == 10
    assert table["rows"].min() >= 10
    # Every group of numbers is found again from its name and its range.
    for place, (name, value) in enumerate(zip(table["column"], table["value"], strict=True)):
        if name == "clinic":
            here = regression.X[name].isna() if value == "missing" else regression.X[name] == value.lstrip("'")
        else:
            low, high = (np.quantile(regression.X[name], q, method="inverted_cdf") for q in (0.25, 0.75))
            if value.startswith("≤"):
                here = regression.X[name] <= low
            elif value.startswith(">"):
                here = regression.X[name] > high
            else:
                continue
        here = here.to_numpy()
        assert table["rows"][place] == here.sum()
        assert_allclose(table["mean confidence"][place], answer.confidence[here].mean(), rtol=1e-6)
        assert_allclose(table["mean error"][place], error[here].mean(), rtol=1e-6)
        assert_allclose(table["accepted"][place], answer.accepted[here].mean(), rtol=1e-6)


def test_the_bars_of_trust(several):
    answer = several.model.assess(several.X)
    files = sorted(name for name in several.page.downloads if name.startswith("trust-"))
    assert sorted(name[8:-4] for name in files) == ["x0", "x1", "x2"]
    for file in files:
        table, column = several.table(file), several.X[:, int(file[-5])]
        edges = np.quantile(column, [0.25, 0.5, 0.75], method="inverted_cdf")
        groups = [answer.confidence[np.searchsorted(edges, column) == place] for place in range(4)]
        assert_allclose(table["rows"], [len(group) for group in groups])
        assert_allclose(table["mean confidence"], [group.mean() for group in groups], rtol=1e-6)
        half = [1.96 * group.std(ddof=1) / len(group) ** 0.5 for group in groups]
        assert_allclose(table["to"] - table["from"], np.multiply(half, 2), rtol=1e-5)


def test_the_worst_accepted_and_the_best_rejected(regression):
    answer, error = answers(regression)
    names = regression.X.index.to_numpy()
    worst, best = regression.table("worst-accepted.csv"), regression.table("best-rejected.csv")
    kept = answer.accepted
    assert_allclose(worst["row"], names[kept][np.argsort(-error[kept])[:10]])
    assert_allclose(best["row"], names[~kept][np.argsort(error[~kept])[:10]])
    assert_allclose(worst["error"], np.sort(error[kept])[::-1][:10], rtol=1e-6)
    assert_allclose(worst["feature bmi"], regression.X["bmi"].loc[worst["row"].astype(int)], rtol=1e-6)
    assert_allclose(worst["truth"], regression.y.loc[worst["row"].astype(int)], rtol=1e-6)


def test_coverage_by_group(several):
    answer, Y = several.model.assess(several.X), several.y.to_numpy()
    covered = ((answer.lower <= Y) & (answer.upper >= Y)).all(axis=1)
    assert f"for {percent(covered.mean(), decimals=1)} of the rows, all outputs lie inside" in several.text
    for place, name in enumerate(["x1", "x0"], start=1):
        table, column = several.table(f"coverage-{place}-{name}.csv"), several.X[:, int(name[1])]
        group = np.searchsorted(np.quantile(column, [0.25, 0.5, 0.75], method="inverted_cdf"), column)
        counts = pd.Series(covered).groupby(group).agg(["sum", "count"]).to_numpy()
        assert_allclose(table["share covered"], counts[:, 0] / counts[:, 1], rtol=1e-6)
        exact = [stats.binomtest(k, n).proportion_ci(0.95, method="exact") for k, n in counts.tolist()]
        assert_allclose(np.column_stack([table["from"], table["to"]]), exact, rtol=1e-5)


def test_several_outputs(several):
    answer, Y = several.model.assess(several.X), several.y.to_numpy()
    table = several.table("outputs.csv")
    assert table["output"].tolist() == ["thickness", "stress"]
    assert_allclose(table["mean error"], np.abs(Y - answer.value).mean(axis=0), rtol=1e-6)
    assert_allclose(table["share inside"], ((answer.lower <= Y) & (answer.upper >= Y)).mean(axis=0), rtol=1e-6)
    error = np.sqrt(np.mean((Y - answer.value) ** 2, axis=1)).mean()
    assert f"predictions are off by {number(error)} on average" in several.text
    assert "The model predicts thickness, stress from 3 columns of numbers." in several.text


# --- the second table ---


def test_the_shift(regression):
    here = regression.model.predict_uncertainty(regression.X)
    there = regression.model.predict_uncertainty(regression.shifted)
    score = np.mean((there[:, None] > here) + 0.5 * (there[:, None] == here))
    assert f"is the more uncertain one of a pair in {percent(score)} of the cases" in regression.text
    accepted = np.mean(there <= regression.model.threshold_)
    assert f"It accepts {percent(accepted)} of them" in regression.text
    table = regression.table("shift-histogram.csv")
    assert_allclose([table["share of this report"].sum(), table["share of the second"].sum()], 1, rtol=1e-6)
    for place in (0, 10):
        inside = (table["from"][place] <= there) & (there < table["to"][place])
        assert_allclose(table["share of the second"][place], inside.mean(), atol=0.008)
    roc = regression.table("shift-roc.csv")
    assert_allclose(np.trapezoid(roc["share of the second flagged"], roc["share flagged"]), score, rtol=1e-6)


def test_the_columns_that_moved(regression):
    table = regression.table("moved-columns.csv")
    moved = dict(zip(table["column"], table["distance"], strict=True))
    assert np.all(np.diff(table["distance"]) <= 0)
    before, after = regression.X, regression.shifted
    assert_allclose(moved["bmi"], stats.ks_2samp(before["bmi"], after["bmi"]).statistic, rtol=1e-6)
    assert_allclose(moved["seen"], 30 / 142, rtol=1e-6)  # so many dates have gone missing
    assert moved["age"] == moved["smoker"] == 0
    levels = before["clinic"].value_counts(normalize=True)
    assert_allclose(moved["clinic"], 1 - levels["=South"], rtol=1e-6)
    beyond = {name for name, told in zip(table["column"], table["more than chance"], strict=True) if told == "yes"}
    assert beyond == {"bmi", "clinic", "seen"}
    assert "3 of 13 columns have moved by more than chance" in regression.text


# --- classes ---


def test_the_headline_of_classes(classification):
    answer = classification.model.assess(classification.X, coverage=0.8)
    y = classification.y.to_numpy()
    wrong = answer.value != y
    place = {label: index for index, label in enumerate(classification.model.classes_)}
    prediction_set = np.array([row[place[label]] for row, label in zip(answer.prediction_set, y, strict=True)])
    says = classification.text
    assert f"it names the wrong class in {percent(wrong.mean(), decimals=1)} of the cases" in says
    assert f"{percent(prediction_set.mean(), decimals=1)} of the true classes are in their 80{THIN}% set" in says
    kept = answer.accepted
    errors = [percent(wrong[which].mean(), decimals=1) for which in (kept, ~kept)]
    assert f"of those {errors[0]} are wrong, of the rejected ones {errors[1]}" in says
    commonest = pd.Series(y).value_counts(normalize=True).max()
    assert f"{percent(1 - commonest)} by guessing the commonest class" in says
    table = classification.table("coverage-1-true-class.csv")
    by_class = pd.Series(prediction_set).groupby(y).mean()
    assert table["true class"].tolist() == by_class.index.tolist()
    assert_allclose(table["share covered"], by_class, rtol=1e-6)


def test_sets_and_probabilities(classification):
    answer = classification.model.assess(classification.X, coverage=0.8)
    sizes, sets = answer.prediction_set.sum(axis=1), classification.table("set-sizes.csv")
    assert_allclose(sets["rows"], [np.sum(sizes == size) for size in (1, 2, 3)])
    likely, right = answer.probabilities.max(axis=1), answer.value == classification.y.to_numpy()
    table = classification.table("reliability.csv")
    place = np.minimum((likely * 5).astype(int), 4)
    filled = [place == each for each in range(5) if np.any(place == each)]
    assert_allclose(table["share right"], [right[here].mean() for here in filled], rtol=1e-6)
    assert_allclose(table["probability"], [likely[here].mean() for here in filled], rtol=1e-6)


def test_the_worst_classes(classification):
    answer = classification.model.assess(classification.X, coverage=0.8)
    wrong = answer.value != classification.y.to_numpy()
    names = classification.X.index.to_numpy()
    chosen = np.flatnonzero(wrong & answer.accepted)
    chosen = chosen[np.argsort(answer.uncertainty[chosen])][:10]
    assert_allclose(classification.table("worst-accepted.csv")["row"], names[chosen])
    chosen = np.flatnonzero(~wrong & ~answer.accepted)
    chosen = chosen[np.argsort(-answer.uncertainty[chosen])][:10]
    assert_allclose(classification.table("best-rejected.csv")["row"], names[chosen])


# --- chance ---


def test_the_band_holds_as_often_as_it_says():
    rng = np.random.default_rng(0)
    n, m, n_times = 150, 60, 4000
    scores = np.sort(rng.uniform(size=(n_times, m)), axis=1)[:, int(np.ceil(61 * 0.9)) - 1]
    shares = rng.binomial(n, scores) / n
    low, high = covered_share_range(n, m, 0.9, level=0.05)
    inside = np.mean((low <= shares) & (shares <= high))
    # At least 95 %, more because counts are whole; 0.01 is three standard errors.
    assert 0.94 <= inside <= 0.98
    assert_allclose(np.mean(shares <= low), covered_rows(n, m, 0.9).cdf(round(low * n)), atol=0.01)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_range_of_a_share_is_the_exact_one(n):
    counts = np.arange(n + 1.0)
    found = np.column_stack(share_range(counts, np.full(n + 1, float(n))))
    exact = [stats.binomtest(int(count), n).proportion_ci(0.95, method="exact") for count in counts]
    assert_allclose(found, exact, atol=1e-9)
