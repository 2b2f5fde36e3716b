"""Coverage and error over time: by hand, with the time of a column or of the caller."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from onsphere import HCMRegressor, InvalidInputError
from onsphere.calibration import find_coverage_range
from onsphere.report.measured_rows import Feature, _find_dates, measure_rows
from onsphere.report.over_time import measure_over_time, show_over_time

N = 600


@pytest.fixture
def changing(rows):
    """Return rows in a shuffled order whose coverage falls to one half and whose errors double in the last quarter."""
    order = np.random.default_rng(0).permutation(N)
    day = order.astype(float)
    covered = (day < 450) | (day % 2 == 0)
    measured = rows(np.where(day < 450, 1.0, 2.0), np.arange(N), covered=covered)
    return replace(measured, times=Feature("day", "number", day))


def test_rolling_figures_by_hand(changing):
    timeline = measure_over_time(changing)
    assert timeline.window == 60
    order = np.argsort(changing.times.values)
    frame = pd.DataFrame({"covered": changing.is_covered[order], "error": changing.error[order]}).astype(float)
    rolling = frame.rolling(60).mean().dropna()
    assert_allclose(timeline.coverage, rolling["covered"])
    assert_allclose(timeline.error, rolling["error"])
    assert_allclose(timeline.time, np.arange(59.0, N))
    assert timeline.chance == find_coverage_range(60, 1000, 0.9, level=0.05)
    assert timeline.is_low_at_the_end
    earlier = replace(changing, times=changing.times._replace(values=-changing.times.values))
    assert not measure_over_time(earlier).is_low_at_the_end


def test_the_section_tells_start_end_and_the_worst_time(changing):
    section = show_over_time(changing, measure_over_time(changing))
    (text,) = section.paragraphs
    assert "in the order of day, from 0 to 599; each point is a mean over 60 rows" in text
    assert "At the end 50\u202f% are covered, below what chance allows; the lowest is 50\u202f%, up to 509." in text
    assert "The mean error is 1.25 over all rows, 1 in the first half and 1.44 in the second." in text
    assert [picture.title for picture in section.pictures] == ["Coverage over time", "Error over time"]


def test_dates_are_drawn_as_dates(changing):
    seconds = pd.Timestamp("2024-01-01").timestamp() + 86_400 * changing.times.values
    dated = replace(changing, times=Feature("seen", "date", seconds))
    section = show_over_time(dated, measure_over_time(dated))
    assert "from 2024-01-01 to 2025-08-22" in section.paragraphs[0]
    assert "2025-05-24" in section.paragraphs[0]
    assert ">2024<" in section.pictures[0].svg or ">2025<" in section.pictures[0].svg
    # All rows are of one moment.
    still = replace(changing, times=Feature("seen", "date", np.full(N, seconds[0])))
    assert measure_over_time(still) is None


def test_without_a_time_or_with_few_rows_there_is_nothing_to_draw(rows, changing):
    assert measure_over_time(rows(np.ones(N), np.arange(N))) is None
    mostly_missing = np.where(np.arange(N) < 59, np.arange(float(N)), np.nan)
    assert measure_over_time(replace(changing, times=Feature("day", "number", mostly_missing))) is None


# --- where the time comes from ---


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=200)})
    return HCMRegressor(random_state=0).fit(X[:120], X["x"][:120]).calibrate(X[120:], X["x"][120:])


def measure(model, frame, **options):
    options = {"coverage": 0.9, "target_name": None, "row_names": None, **options}
    return measure_rows(model, frame, frame["x"].to_numpy(), **options)


def test_given_times_are_numbers_or_dates(model):
    frame = pd.DataFrame({"x": np.linspace(-1, 1, 40)})
    days = pd.Series(pd.date_range("2024-01-01", periods=40), name="day")
    found = measure(model, frame, times=days)
    assert (found.times.name, found.times.kind, found.is_ordered) == ("day", "date", True)
    found = measure(model, frame, times=list(range(40)), time_name="shift")
    assert (found.times.name, found.times.values.tolist()) == ("shift", list(range(40)))
    assert measure(model, frame, times=list(range(40))).times.name == "time"
    with pytest.raises(InvalidInputError, match=r"Expected times of numbers or dates.*'monday'"):
        measure(model, frame, times=["monday"] * 40)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        measure(model, frame, times=[1, 2])


def test_a_column_of_many_dates_is_the_time():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=200), "some": pd.NaT, "few": pd.Timestamp("2024-01-01")})
    frame["some"] = frame["some"].astype("datetime64[ns]")
    frame["when"] = pd.date_range("2024-01-01", periods=200)
    assert _find_dates(frame).name == "when"
    assert _find_dates(frame[["x", "some", "few"]]) is None
