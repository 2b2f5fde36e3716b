"""The worst accepted and best rejected rows, found by hand."""

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose

from onsphere.report.extreme_rows import _choose_format, _list_values, show_extreme_rows


def test_the_worst_accepted_and_the_best_rejected(regression):
    assessment, error = regression.measure()
    names = regression.X.index.to_numpy()
    worst, best = regression.table("worst-accepted.csv"), regression.table("best-rejected.csv")
    kept = assessment.accepted
    assert_allclose(worst["row"], names[kept][np.argsort(-error[kept])[:10]])
    assert_allclose(best["row"], names[~kept][np.argsort(error[~kept])[:10]])
    assert_allclose(worst["error"], np.sort(error[kept])[::-1][:10], rtol=1e-6)
    assert_allclose(worst["feature bmi"], regression.X["bmi"].loc[worst["row"].astype(int)], rtol=1e-6)
    assert_allclose(worst["truth"], regression.y.loc[worst["row"].astype(int)], rtol=1e-6)


def test_the_worst_accepted_and_best_rejected_classes(classification):
    assessment = classification.model.assess(classification.X, coverage=0.8)
    wrong = assessment.value != classification.y.to_numpy()
    names = classification.X.index.to_numpy()
    chosen = np.flatnonzero(wrong & assessment.accepted)
    chosen = chosen[np.argsort(assessment.uncertainty[chosen])][:10]
    assert_allclose(classification.table("worst-accepted.csv")["row"], names[chosen])
    chosen = np.flatnonzero(~wrong & ~assessment.accepted)
    chosen = chosen[np.argsort(-assessment.uncertainty[chosen])][:10]
    assert_allclose(classification.table("best-rejected.csv")["row"], names[chosen])


def test_a_threshold_without_mistakes_has_no_tables(rows):
    right = rows(np.zeros(20), np.arange(20.0), accepted=np.ones(20, dtype=bool), is_class=True)
    section = show_extreme_rows(right, ["x"])
    assert section.paragraphs[1:] == ["No wrong rows were accepted.", "No right rows were rejected."]
    assert section.tables == []


def test_features_named_like_other_columns_replace_none_of_them(rows):
    frame = pd.DataFrame({"error": ["a"] * 20, "row": ["b"] * 20})
    section = show_extreme_rows(
        rows(np.arange(20.0), np.arange(20.0), accepted=np.arange(20) < 10, frame=frame), ["error", "row"]
    )
    worst = section.tables[0]
    assert worst.columns == ["row", "truth", "prediction", "lower", "upper", "error", "confidence", "error", "row"]
    assert worst.rows[0][0] == worst.rows[0][5] == "9"
    assert worst.rows[0][-2:] == ["a", "b"]


def test_dates_and_missing_values_are_readable():
    days = pd.Series(pd.to_datetime(["2024-01-31", None]))
    assert _list_values(days) == ["2024-01-31", None]
    assert _list_values(days + pd.Timedelta("90s")) == ["2024-01-31 00:01:30", None]
    texts = ["a", None, "b"]
    assert [_choose_format("x", texts)(text) for text in _list_values(pd.Series(texts))] == ["a", "–", "b"]
    numbers = _list_values(pd.Series([1.5, np.nan]))
    assert [_choose_format("x", numbers)(number) for number in numbers] == ["1.50", "–"]
