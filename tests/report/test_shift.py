"""Two tables compared, by hand."""

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose
from scipy import stats

from onsphere.report.formatting import format_percent
from onsphere.report.measured_rows import read_feature
from onsphere.report.shift import _replace_infinite, compare_columns


def test_the_uncertainties_of_two_tables_by_hand(regression):
    here = regression.model.predict_uncertainty(regression.X)
    there = regression.model.predict_uncertainty(regression.shifted)
    score = np.mean((there[:, None] > here) + 0.5 * (there[:, None] == here))
    assert (
        f"is more uncertain than a random row of this report in {format_percent(score)} of the cases" in regression.text
    )
    accepted = np.mean(there <= regression.model.threshold_)
    assert f"It accepts {format_percent(accepted)} of them" in regression.text
    table = regression.table("shift-histogram.csv")
    assert_allclose([table["share of this report"].sum(), table["share of the second"].sum()], 1, rtol=1e-6)
    for place in (0, 10):
        inside = (table["from"][place] <= there) & (there < table["to"][place])
        assert_allclose(table["share of the second"][place], inside.mean(), atol=0.008)
    roc = regression.table("shift-roc.csv")
    assert_allclose(np.trapezoid(roc["share of the second flagged"], roc["share flagged"]), score, rtol=1e-6)


def test_the_columns_that_moved_by_hand(regression):
    table = regression.table("moved-columns.csv")
    moved = dict(zip(table["column"], table["distance"], strict=True))
    assert np.all(np.diff(table["distance"]) <= 0)
    before, after = regression.X, regression.shifted
    assert_allclose(moved["bmi"], stats.ks_2samp(before["bmi"], after["bmi"]).statistic, rtol=1e-6)
    assert_allclose(moved["seen"], 30 / 142, rtol=1e-6)  # so many dates have gone missing
    assert moved["age"] == moved["smoker"] == 0
    levels = before["clinic"].value_counts(normalize=True)
    assert_allclose(moved["clinic"], 1 - levels["=South"], rtol=1e-6)
    beyond = {
        name for name, is_moved in zip(table["column"], table["more than chance"], strict=True) if is_moved == "yes"
    }
    assert beyond == {"bmi", "clinic", "seen"}
    assert "3 of 13 columns have moved by more than chance" in regression.text


def compare(before, after):
    return compare_columns(*(read_feature("x", pd.Series(values)) for values in (before, after)))


def test_values_that_go_missing_or_change_kind_are_a_move():
    gone = compare([1.0] * 40, [np.nan] * 40)
    assert (gone.distance, gone.missing_before, gone.missing_after) == (1.0, 0.0, 1.0)
    assert gone.p_value < 1e-6
    never = compare([np.nan] * 40, [np.nan] * 40)
    assert (never.distance, never.p_value) == (0.0, 1.0)
    assert compare(["a"] * 40, ["a"] * 40).distance == 0
    assert compare([1.0] * 40, ["1.0"] * 40).distance == 0, "numbers that became text are compared as text"
    assert compare(["a", "b"] * 20, ["a", "c"] * 20).distance == 0.5


def test_rows_without_a_finite_uncertainty_are_the_most_uncertain():
    there = _replace_infinite(np.array([1.0, 2.0]), np.array([np.inf, np.nan, 3.0]))
    assert np.all(there[:2] > there[2])
    assert np.isfinite(there).all()
