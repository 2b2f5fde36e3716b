"""The parts of a report on their own: words and numbers, columns and groups, and what is said of them."""

import base64

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onsphere.report.extremes import _as_read, _told, extremes
from onsphere.report.features import MOST_LEVELS, grouped, read_feature, read_features
from onsphere.report.groups import coverage_by_group, least_trusted, ranked_features
from onsphere.report.parts import aligned, clean, download, number, percent
from onsphere.report.shift import _column, _comparable
from onsphere.report.summary import about, headline, verdicts

RNG = np.random.default_rng(0)


# --- words and numbers ---


@given(st.floats(-1e300, 1e300))
def test_a_number_says_its_value_to_three_digits(value):
    read = float(number(value).replace("−", "-").replace(",", ""))
    assert read == pytest.approx(value, rel=0.0051, abs=1e-300)


def test_numbers_without_a_value():
    assert [number(value) for value in (np.nan, np.inf, -np.inf)] == ["–", "∞", "−∞"]
    assert percent(np.nan) == "–"
    assert percent(0.0001) == "<\u202f0.1\u202f%"


@given(st.floats(0, 1))
def test_only_all_is_said_to_be_all_and_only_none_to_be_none(share):
    assert (percent(share) == "100\u202f%") == (share == 1)
    assert (percent(share) == "0\u202f%") == (share == 0)


def test_a_column_of_numbers_has_as_many_decimals_each():
    assert aligned([1.5, -22.25, 0.125]) == ["1.50", "−22.25", "0.12"]
    assert aligned([12345.0, 2.0]) == ["12,345", "2"]
    assert aligned([np.nan, np.inf]) == ["–", "∞"]
    assert aligned([1e-12, 3e-12]) == ["1e−12", "3e−12"]
    assert aligned([0.5, 2e12]) == ["0.5", "2e+12"]
    assert aligned([0.0, 0.25]) == ["0.000", "0.250"]


@given(st.text(), st.integers(2, 20))
def test_a_cleaned_text_is_one_short_line(text, longest):
    line = clean(text, longest=longest)
    assert len(line) <= longest
    assert line.isprintable()
    assert line == line.strip()


def test_an_empty_cell_stands_for_what_is_missing():
    file = download("A b/c", {"x": [None, np.nan, True], "y": [1, 2.5, "a,b"]})
    assert (file.name, file.n_rows) == ("a-b-c.csv", 3)
    assert base64.b64decode(file.address.split(",")[1]) == b'x,y\n,1\n,2.5\nTrue,"a,b"\n'


# --- columns ---


def groups_of(values, name="x"):
    grouping = grouped(read_feature(name, pd.Series(values)))
    assert len(grouping.member) == len(values)
    counts = np.bincount(grouping.member, minlength=len(grouping.labels))
    assert counts.min() > 0, "no group is empty"
    return dict(zip(grouping.labels, counts.tolist(), strict=True))


def test_numbers_are_grouped_by_quarters_or_by_value():
    assert groups_of(np.arange(100.0)) == {"≤ 24": 25, "24 to 49": 25, "49 to 74": 25, "> 74": 25}
    assert groups_of([0, 1] * 6) == {"0": 6, "1": 6}
    assert groups_of([1.0001, 1.0002] * 6) == {"1.0001": 6, "1.0002": 6}
    assert groups_of([5.0] * 12) == {"5": 12}
    assert groups_of([*range(6), *[9] * 30]) == {"≤ 5": 6, "> 5": 30}


def test_missing_values_are_a_group_of_their_own():
    assert groups_of([0.0, 1.0, np.nan, np.inf]) == {"0": 1, "1": 1, "missing": 2}
    assert groups_of([None, "a", "a"]) == {"a": 2, "missing": 1}
    assert groups_of(pd.array([1, None, 2], dtype="Int64")) == {"1": 1, "2": 1, "missing": 1}
    assert groups_of([np.nan] * 3) == {"missing": 3}


def test_dates_are_grouped_like_numbers():
    days = pd.Series(pd.date_range("2024-01-01", periods=8))
    assert list(groups_of(days)) == [
        "≤ 2024-01-02",
        "2024-01-02 to 2024-01-04",
        "2024-01-04 to 2024-01-06",
        "> 2024-01-06",
    ]
    assert groups_of(days.dt.tz_localize("Europe/Vienna").where(days.index > 3)).keys() >= {"missing"}
    hours = pd.Series(pd.to_datetime(["2024-01-01 08:00", "2024-01-01 09:00"]))
    assert list(groups_of(hours)) == ["2024-01-01 08:00:00", "2024-01-01 09:00:00"]


def test_rare_levels_are_put_together():
    levels = [f"level {index:02}" for index in range(15) for _ in range(20 if index < 12 else 3)]
    found = groups_of(levels)
    assert len(found) == MOST_LEVELS
    assert found["6 others"] == 3 * 20 + 3 * 3
    assert groups_of(["a"] * 20 + ["b"] * 2) == {"a": 20, "b": 2}
    assert groups_of([str(index) for index in range(30)]) == {"30 others": 30}


def test_every_kind_of_cell_can_be_grouped():
    assert groups_of([True, False, True]) == {"False": 1, "True": 2}
    assert groups_of(pd.Series([[1], {2: 3}, [1]], dtype=object)) == {"[1]": 2, "{2: 3}": 1}
    assert groups_of(pd.Series([1, 2, 2], dtype=object)) == {"1": 1, "2": 2}
    assert groups_of(pd.Categorical(["a", "b", "a"])) == {"a": 2, "b": 1}


@given(st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), min_size=1, max_size=60))
def test_groups_of_numbers_are_in_order(values):
    grouping = grouped(read_feature("x", pd.Series(values, dtype=float)))
    known = ~np.isnan(values)
    member, numbers = grouping.member[known], np.array(values)[known]
    order = np.argsort(numbers, kind="stable")
    assert np.all(np.diff(member[order]) >= 0)
    assert len(set(grouping.labels)) == len(grouping.labels)


# --- what is said ---


def kinds(rows):
    return [verdict.kind for verdict in verdicts(rows)]


def test_good_news_and_bad_news(rows):
    uncertainty = np.arange(1.0, 201.0)
    target = RNG.normal(size=(200, 1)) * 300
    accepted = uncertainty < 180
    assert kinds(rows(uncertainty / 10, uncertainty, accepted=accepted, target=target)) == [
        "good",
        "fair",
        "good",
        "good",
    ]
    covered = uncertainty < 120
    bad = rows(400 - uncertainty, uncertainty, accepted=accepted, target=target, covered=covered)
    assert kinds(bad) == ["poor", "poor", "poor", "poor"]
    assert "too small" in verdicts(bad)[1].title
    covered = uncertainty <= 180
    error = 190.0 + 10 * (uncertainty % 4) + uncertainty / 40
    so_so = rows(error, uncertainty, accepted=accepted, target=target, covered=covered)
    assert kinds(so_so) == ["fair", "good", "fair", "fair"]


def test_what_cannot_be_judged_is_not(rows):
    same = rows(np.ones(50), np.arange(50.0), accepted=np.ones(50, dtype=bool))
    assert kinds(same)[2:] == ["know", "know"]
    assert "accepts all of these rows" in headline(same)
    none = rows(np.ones(50), np.ones(50), accepted=np.zeros(50, dtype=bool))
    assert "accepts none of these rows" in headline(none)
    assert "the same uncertainty" in verdicts(rows(np.arange(50), np.ones(50)))[2].text
    assert kinds(rows(np.arange(50), np.arange(50)))[3] == "know"
    perfect = rows(np.zeros(50), np.arange(50.0))
    assert kinds(perfect)[0] == "poor", "a constant target needs no model"


def test_the_columns_are_counted_by_kind(rows):
    frame = pd.DataFrame({"a": np.arange(20.0), "b": ["x", "y"] * 10, "c": pd.date_range("2024-01-01", periods=20)})
    told = about(rows(np.arange(20), np.arange(20), frame=frame), read_features(frame))
    assert "from 3 columns (1 of numbers, 1 of categories, 1 of dates)." in told[0]
    assert "from 1 column of numbers." in about(rows(np.arange(20), np.arange(20)), read_features(frame[["a"]]))[0]
    yes = frame.assign(d=[True, None] * 10, e=[None] * 20)
    told = about(rows(np.arange(20), np.arange(20), frame=yes), read_features(yes))
    assert "from 5 columns (1 of numbers, 2 of categories, 1 of yes/no, 1 of dates)." in told[0]
    wide = pd.concat([frame] * 80, axis=1)
    assert "from 240 columns." in about(rows(np.arange(20), np.arange(20), frame=wide), read_features(wide))[0]


def test_sets_that_hold_more_than_promised_are_usual(rows):
    found = verdicts(rows(np.arange(200) % 2, np.arange(200), is_class=True))[1]
    assert (found.kind, "More than promised is usual" in found.text) == ("good", True)


def test_a_group_without_coverage_is_found_and_noise_is_not(rows):
    n = 600
    frame = pd.DataFrame({"tool": np.repeat(["a", "b", "c"], [60, 240, 300]), "noise": RNG.normal(size=n)})
    covered = RNG.uniform(size=n) < 0.9
    fair = rows(RNG.exponential(size=n), RNG.uniform(size=n), covered=covered, frame=frame)
    says = coverage_by_group(fair, ranked_features(fair, read_features(frame)), None).paragraphs[1]
    assert says.startswith("No group is covered so rarely")
    covered[:60] = np.arange(60) % 2
    unfair = rows(fair.error, fair.answer.uncertainty, covered=covered, frame=frame)
    section = coverage_by_group(unfair, ranked_features(unfair, read_features(frame)), None)
    assert section.paragraphs[1].startswith("Covered too rarely, by more than chance: tool: a.")
    assert [picture.title for picture in section.pictures] == ["tool", "noise"]
    assert "not by chance" in section.pictures[0].reading


def test_the_feature_that_explains_the_uncertainty_comes_first(rows):
    frame = pd.DataFrame({f"noise {index}": RNG.normal(size=400) for index in range(7)})
    frame["tilt"] = np.arange(400.0)
    judged = rows(RNG.exponential(size=400), np.maximum(frame["tilt"] - 300, 0) + RNG.uniform(size=400), frame=frame)
    ranked = ranked_features(judged, read_features(frame))
    section = least_trusted(judged, ranked)
    assert section.pictures[0].title == "tilt"
    assert len(section.pictures) == 6
    assert "for the 6 of 8 columns where it differs most" in section.paragraphs[0]
    assert section.tables[0].rows[0][:2] == ["tilt", "> 299"]
    named = coverage_by_group(judged, ranked, ["noise 3"])
    assert [picture.title for picture in named.pictures] == ["noise 3"]


def test_groups_of_one_row_have_no_range(rows):
    frame = pd.DataFrame({"x": [0.0] * 19 + [1.0]})
    judged = rows(np.arange(20.0), np.arange(20.0), frame=frame)
    section = least_trusted(judged, ranked_features(judged, read_features(frame)))
    assert section.pictures[0].download.n_rows == 2
    equal = rows(np.arange(20.0), np.ones(20), frame=frame)
    equal.answer.confidence[:] = 0.5
    assert len(ranked_features(equal, read_features(frame))) == 1


def test_a_threshold_that_errs_in_nothing(rows):
    right = rows(np.zeros(20), np.arange(20.0), accepted=np.ones(20, dtype=bool), is_class=True)
    section = extremes(right, ["x"])
    assert section.paragraphs[1:] == ["No wrong rows were accepted.", "No right rows were rejected."]
    assert section.tables == []


# --- two tables ---


def moved(before, after):
    return _column(*(read_feature("x", pd.Series(values)) for values in (before, after)))


def test_columns_that_come_and_go():
    gone = moved([1.0] * 40, [np.nan] * 40)
    assert (gone.distance, gone.missing_before, gone.missing_after) == (1.0, 0.0, 1.0)
    assert gone.chance < 1e-6
    never = moved([np.nan] * 40, [np.nan] * 40)
    assert (never.distance, never.chance) == (0.0, 1.0)
    assert moved(["a"] * 40, ["a"] * 40).distance == 0
    assert moved([1.0] * 40, ["1.0"] * 40).distance == 0, "numbers that became text are compared as text"
    assert moved(["a", "b"] * 20, ["a", "c"] * 20).distance == 0.5


def test_rows_beyond_all_measure_are_the_most_uncertain():
    here, there = _comparable(np.array([1.0, 2.0]), np.array([np.inf, np.nan, 3.0]))
    assert here.tolist() == [1.0, 2.0]
    assert np.all(there[:2] > there[2])
    assert np.isfinite(there).all()


def test_values_of_a_row_are_shown_as_they_are_read():
    days = pd.Series(pd.to_datetime(["2024-01-31", None]))
    assert _as_read(days) == ["2024-01-31", None]
    assert _as_read(days + pd.Timedelta("90s")) == ["2024-01-31 00:01:30", None]
    assert _told("x", _as_read(pd.Series(["a", None, "b"]))) == ["a", "–", "b"]
    assert _told("x", _as_read(pd.Series([1.5, np.nan]))) == ["1.50", "–"]
