"""Assessment: as a frame, as a dict, and some of its rows."""

import json
import sys
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_linnerud
from sklearn.ensemble import ExtraTreesRegressor

from onsphere import AcceptShare, Assessment, HCMClassifier, HCMRegressor, InvalidTypeError, MissingExtraError

X, Y = load_linnerud(return_X_y=True, as_frame=True)


def small_forest():
    return ExtraTreesRegressor(n_estimators=10, min_samples_leaf=2, random_state=0)


@pytest.fixture(scope="module")
def numbers():
    """Return an assessment of three outputs in which all that numbers can have is filled in."""
    model = HCMRegressor(small_forest(), calibration="cv").fit(X, Y)
    return model.set_threshold(AcceptShare(0.8)).assess(X)


@pytest.fixture(scope="module")
def classes():
    model = HCMClassifier(small_forest(), calibration="cv").fit(X, np.arange(20) % 2)
    return model.assess(X)


def test_assessment_turns_into_a_frame_and_a_dict(numbers):
    frame = numbers.to_frame()
    assert len(numbers) == len(frame) == 20
    assert [name for name in frame if name.startswith("value")] == ["value_Weight", "value_Waist", "value_Pulse"]
    assert json.loads(json.dumps(numbers.to_dict()))["uncertainty"] == numbers.uncertainty.tolist()
    without_names = HCMRegressor(small_forest()).fit(X, Y.to_numpy()).assess(X)
    assert {"value_0", "sigma_2", "anchor_residual"} <= set(without_names.to_frame())
    polar = HCMRegressor(small_forest(), embedding="polar").fit(X, Y).assess(X)
    assert polar.anchor_residual is None
    assert "anchor_residual" not in polar.to_frame()


def test_to_frame_without_pandas_says_what_to_install(monkeypatch, numbers):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas. Install it with: pip install 'onsphere\[report\]'"):
        numbers.to_frame()


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("rows", [slice(3), [0, 2], np.arange(20) % 3 == 0, np.zeros(20, dtype=bool)], ids=str)
def test_some_rows_are_an_assessment_of_those_rows(kind, rows, request):
    whole = request.getfixturevalue(kind)
    part = whole[rows]
    assert isinstance(part, Assessment)
    assert len(part) == len(np.arange(20)[rows])
    assert part.output_names == whole.output_names
    for name in (field.name for field in fields(Assessment) if field.name != "output_names"):
        values = getattr(whole, name)
        if values is None:
            assert getattr(part, name) is None
        else:
            np.testing.assert_array_equal(getattr(part, name), values[rows])
    assert part.to_frame().shape == (len(part), whole.to_frame().shape[1])


def test_the_rows_of_an_assessment_are_filtered_by_its_own_columns(numbers):
    accepted = numbers[numbers.accepted]
    assert 0 < len(accepted) < 20
    assert accepted.accepted.all()
    assert accepted.uncertainty.max() < numbers[~numbers.accepted].uncertainty.min()


def test_one_index_gives_an_assessment_of_one_row():
    result = Assessment(np.arange(6.0).reshape(3, 2), np.array([0.1, 0.2, 0.3]), accepted=np.array([True, False, True]))
    for index in (1, np.int64(1), -2):
        assert result[index].to_dict() == {"value": [[2.0, 3.0]], "uncertainty": [0.2], "accepted": [False]}
    assert [len(row) for row in result] == [1, 1, 1]
    with pytest.raises(IndexError):
        result[3]


@pytest.mark.parametrize("rows", [None, True, (slice(2), 0)], ids=str)
def test_an_index_that_names_no_rows_is_rejected(rows):
    result = Assessment(np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(InvalidTypeError, match=r"Expected rows of an Assessment.*result\.value\[:, 0\]"):
        result[rows]


# --- other tables ---


def assess_named_rows():
    rows = X.set_axis([f"row {place}" for place in range(len(X))])
    return HCMRegressor(small_forest()).fit(rows, Y).assess(rows)


def test_the_index_of_a_frame_is_kept():
    result = assess_named_rows()
    assert result.to_frame().index.tolist()[:2] == ["row 0", "row 1"]
    assert result[[3, 1]].to_frame().index.tolist() == ["row 3", "row 1"]
    assert result[2].index.tolist() == ["row 2"]
    assert "index" not in result.to_dict()


def test_polars_and_arrow_have_the_same_columns_as_the_frame(monkeypatch):
    import polars
    import pyarrow

    result = assess_named_rows()
    frame = result.to_frame()
    for table in (result.to_polars(), polars.DataFrame(result), pyarrow.table(result).to_pandas()):
        assert list(table.columns) == list(frame.columns)
        assert np.array_equal(np.asarray(table["uncertainty"]), frame["uncertainty"])
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtraError, match="pip install polars"):
        result.to_polars()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        result.__arrow_c_stream__()


def test_a_notebook_shows_the_first_rows(monkeypatch):
    result = assess_named_rows()
    shown = result._repr_html_()
    assert "Assessment of 20 rows" in shown
    assert "row 9" in shown
    assert "row 10" not in shown
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert result._repr_html_().startswith("<pre>Assessment(20 rows, ")


def make_ten_rows(index=None):
    return Assessment(value=np.arange(10.0), uncertainty=np.ones(10), probabilities=np.ones((10, 2)), index=index)


@pytest.mark.parametrize("rows", ["r9", 1.5, [20], np.ones(3, dtype=bool), None, (0, 1), True])
def test_what_chooses_no_rows_is_named(rows):
    with pytest.raises(InvalidTypeError, match=r"Expected rows of an Assessment of 10 rows.*index a field"):
        make_ten_rows()[rows]


def test_rows_can_be_looped_over():
    assert [float(row.value[0]) for row in make_ten_rows()] == list(range(10))
    assert make_ten_rows()[-1].value.tolist() == [9.0]
    with pytest.raises(IndexError, match=r"of 10 rows. Got 1000"):
        make_ten_rows()[1000]


def test_a_mask_of_pandas_must_have_the_index_of_the_rows():
    index = pd.Index(list("abcdefghij"))
    mask = pd.Series(np.arange(10) < 3, index=index)
    assert list(make_ten_rows(index)[mask].index) == ["a", "b", "c"]
    assert len(make_ten_rows()[mask]) == 3
    with pytest.raises(InvalidTypeError, match=r"mask\.reindex\(result\.index\)"):
        make_ten_rows(index)[mask[::-1]]


def test_a_result_is_printed_in_a_few_lines():
    text = repr(make_ten_rows())
    assert text.startswith("Assessment(10 rows, value=[0. 1. ... 8. 9.]")
    assert "probabilities: shape (10, 2)" in text
