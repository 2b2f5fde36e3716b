"""Headline, tiles and verdicts of a report, computed by hand."""

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose
from scipy import stats

from onsphere.calibration import find_coverage_range, make_coverage_distribution
from onsphere.report.formatting import format_number, format_percent
from onsphere.report.summary import summarize

THIN = "\u202f"


# --- figures ---


def test_the_headline_of_numbers_by_hand(regression):
    assessment, error = regression.measure()
    y = regression.y.to_numpy()
    covered = np.mean((assessment.lower <= y) & (y <= assessment.upper))
    kept = assessment.accepted
    assert 0 < kept.sum() < len(kept)
    says = regression.text
    assert f"On 142 rows it has not seen, predictions are off by {format_number(error.mean())} on average" in says
    assert f"{format_percent(covered, decimals=1)} of the true values lie inside their 90{THIN}% interval" in says
    share = format_percent(kept.mean(), decimals=1)
    assert f"It accepts {share} of the rows; those are off by {format_number(error[kept].mean())}" in says
    assert f"the rejected ones by {format_number(error[~kept].mean())}" in says
    guess = np.abs(y - np.median(y)).mean()
    assert f"{format_number(guess)} by guessing the middle" in says
    assert f"Spearman {stats.spearmanr(error, assessment.uncertainty).statistic:.2f}" in says
    assert format_number((assessment.upper - assessment.lower).mean()) in regression.page.texts


def test_the_headline_of_classes_by_hand(classification):
    assessment = classification.model.assess(classification.X, coverage=0.8)
    y = classification.y.to_numpy()
    wrong = assessment.value != y
    place = {label: index for index, label in enumerate(classification.model.classes_)}
    prediction_set = np.array([row[place[label]] for row, label in zip(assessment.prediction_set, y, strict=True)])
    says = classification.text
    assert f"it names the wrong class in {format_percent(wrong.mean(), decimals=1)} of the cases" in says
    assert f"{format_percent(prediction_set.mean(), decimals=1)} of the true classes are in their 80{THIN}% set" in says
    kept = assessment.accepted
    errors = [format_percent(wrong[which].mean(), decimals=1) for which in (kept, ~kept)]
    assert f"of those {errors[0]} are wrong, of the rejected ones {errors[1]}" in says
    most_common = pd.Series(y).value_counts(normalize=True).max()
    assert f"{format_percent(1 - most_common)} by guessing the most common class" in says
    table = classification.table("coverage-1-true-class.csv")
    by_class = pd.Series(prediction_set).groupby(y).mean()
    assert table["true class"].tolist() == by_class.index.tolist()
    assert_allclose(table["share covered"], by_class, rtol=1e-6)


def test_the_table_of_several_outputs_by_hand(several):
    assessment, Y = several.model.assess(several.X), several.y.to_numpy()
    table = several.table("outputs.csv")
    assert table["target"].tolist() == ["thickness", "stress"]
    assert_allclose(table["mean error"], np.abs(Y - assessment.value).mean(axis=0), rtol=1e-6)
    assert_allclose(table["share inside"], ((assessment.lower <= Y) & (assessment.upper >= Y)).mean(axis=0), rtol=1e-6)
    error = np.sqrt(np.mean((Y - assessment.value) ** 2, axis=1)).mean()
    told = f"the root mean square error over the 2 targets of a row is {format_number(error)} on average"
    assert told in several.text
    assert "The figures of each target." in several.text
    assert "The model predicts thickness, stress from 3 columns of numbers." in several.text


def test_the_chance_range_holds_as_often_as_it_should():
    rng = np.random.default_rng(0)
    n, m, n_times = 150, 60, 4000
    scores = np.sort(rng.uniform(size=(n_times, m)), axis=1)[:, int(np.ceil(61 * 0.9)) - 1]
    shares = rng.binomial(n, scores) / n
    low, high = find_coverage_range(n, m, 0.9, level=0.05)
    inside = np.mean((low <= shares) & (shares <= high))
    # At least 95 %, more because counts are whole; 0.01 is three standard errors.
    assert 0.94 <= inside <= 0.98
    assert_allclose(np.mean(shares <= low), make_coverage_distribution(n, m, 0.9).cdf(round(low * n)), atol=0.01)


# --- verdicts ---


def list_kinds(rows):
    return [verdict.kind for verdict in summarize(rows)["verdicts"]]


def test_each_verdict_follows_from_the_rows(rows):
    uncertainty = np.arange(1.0, 201.0)
    target = np.random.default_rng(0).normal(size=(200, 1)) * 300
    accepted = uncertainty < 180
    assert list_kinds(rows(uncertainty / 10, uncertainty, accepted=accepted, target=target)) == [
        "good",
        "fair",
        "good",
        "good",
    ]
    covered = uncertainty < 120
    bad = rows(400 - uncertainty, uncertainty, accepted=accepted, target=target, covered=covered)
    assert list_kinds(bad) == ["poor", "poor", "poor", "poor"]
    assert "too small" in summarize(bad)["verdicts"][1].title
    covered = uncertainty <= 180
    error = 190.0 + 10 * (uncertainty % 4) + uncertainty / 20
    middling = rows(error, uncertainty, accepted=accepted, target=target, covered=covered)
    assert list_kinds(middling) == ["fair", "good", "fair", "fair"]


def test_few_rows_allow_no_verdict_on_the_uncertainty(rows):
    uncertainty = np.arange(60.0)
    # The AUROC is 0.62.
    is_wrong = np.isin(uncertainty, [1, 5, 11, 17, 23, 26, 29, 33, 36, 38, 41, 44, 47, 49, 51, 53, 56, 58])
    accepted = np.ones(60, dtype=bool)
    accepted[[*np.flatnonzero(is_wrong)[:2], np.flatnonzero(~is_wrong)[0]]] = False
    few = summarize(rows(is_wrong, uncertainty, accepted=accepted, is_class=True))["verdicts"]
    assert [verdict.kind for verdict in few[2:]] == ["know", "know"]
    assert few[2].title == "Its uncertainty cannot be judged on so few rows"
    assert few[2].text.endswith("On so few rows, chance alone moves that from 0.45 to 0.78.")
    assert few[3].text.endswith("With 3 rejected, that may be chance.")
    # As many more of the same are enough.
    many = rows(np.tile(is_wrong, 30), np.tile(uncertainty, 30), accepted=np.tile(accepted, 30), is_class=True)
    assert list_kinds(many)[2:] == ["poor", "good"]


def test_rows_that_allow_no_verdict_get_none(rows):
    same = rows(np.ones(50), np.arange(50.0), accepted=np.ones(50, dtype=bool))
    assert list_kinds(same)[2:] == ["know", "know"]
    assert "accepts all of these rows" in summarize(same)["headline"]
    none = rows(np.ones(50), np.ones(50), accepted=np.zeros(50, dtype=bool))
    assert "accepts none of these rows" in summarize(none)["headline"]
    assert "the same uncertainty" in summarize(rows(np.arange(50), np.ones(50)))["verdicts"][2].text
    assert list_kinds(rows(np.arange(50), np.arange(50)))[3] == "know"
    accepted = np.arange(50) < 40
    right = rows(np.zeros(50), np.arange(50.0), accepted=accepted)
    assert list_kinds(right)[3] == "know", "rejected rows cannot be worse if none is wrong"
    perfect = rows(np.zeros(50), np.arange(50.0))
    assert list_kinds(perfect)[0] == "poor", "a constant target needs no model"


def test_a_group_that_breaks_the_promise_turns_the_verdict(rows):
    uncertainty = np.arange(1.0, 201.0)
    measured = rows(uncertainty, uncertainty, covered=uncertainty <= 180)
    assert summarize(measured)["verdicts"][1].kind == "good"
    found = summarize(measured, low_groups=["tool: a", "tool: b", "day: 1", "day: 2"])["verdicts"][1]
    assert (found.kind, found.title) == ("fair", "Its intervals keep their promise, but not for every group")
    assert found.text.endswith("Covered too rarely, by more than chance: tool: a; tool: b; day: 1 and 1 more.")
    too_wide = summarize(rows(uncertainty, uncertainty), low_groups=["tool: a"])["verdicts"][1]
    assert (too_wide.kind, "More than" in too_wide.text, "tool: a" in too_wide.text) == ("fair", True, True)


def test_sets_that_hold_more_than_promised_are_usual(rows):
    found = summarize(rows(np.arange(200) % 2, np.arange(200), is_class=True))["verdicts"][1]
    assert (found.kind, "More than promised is usual" in found.text) == ("good", True)


# --- what the model does ---


def test_the_columns_are_counted_by_kind(rows):
    frame = pd.DataFrame({"a": np.arange(20.0), "b": ["x", "y"] * 10, "c": pd.date_range("2024-01-01", periods=20)})
    text = summarize(rows(np.arange(20), np.arange(20), frame=frame))["about"]
    assert "from 3 columns (1 of numbers, 1 of categories, 1 of dates)." in text[0]
    assert "from 1 column of numbers." in summarize(rows(np.arange(20), np.arange(20)))["about"][0]
    yes = frame.assign(d=[True, None] * 10, e=[None] * 20)
    text = summarize(rows(np.arange(20), np.arange(20), frame=yes))["about"]
    assert "from 5 columns (1 of numbers, 2 of categories, 1 of yes/no, 1 of dates)." in text[0]
    wide = pd.concat([frame] * 80, axis=1)
    assert "from 240 columns." in summarize(rows(np.arange(20), np.arange(20), frame=wide))["about"][0]
