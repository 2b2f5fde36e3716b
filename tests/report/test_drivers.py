"""What drives prediction, noise and novelty: known drivers are found, chance is not, and columns are told once."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.ensemble import ExtraTreesRegressor

from onsphere import HCMClassifier, HCMRegressor
from onsphere.metrics import spearman
from onsphere.report import drivers
from onsphere.report.drivers import find_drivers, show_drivers
from onsphere.report.measured_rows import measure_rows, read_feature
from onsphere.report.redundant_columns import find_redundant

N = 900


def make_table(seed=0):
    """Return a table whose target is driven by one column, its noise by another, and by chance not at all."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.uniform(-1, 1, N) for name in ("slope", "spread", "chance")})
    frame["copy"] = 2 * frame["slope"] + 1
    y = 5 * frame["slope"] + rng.normal(size=N) * np.where(frame["spread"] > 0, 2.0, 0.2)
    return frame, y.to_numpy()


@pytest.fixture(scope="module")
def fitted():
    X, y = make_table()
    trees = ExtraTreesRegressor(30, min_samples_leaf=3, random_state=0)
    model = HCMRegressor(trees, random_state=0).fit(X[:500], y[:500]).calibrate(X[500:700], y[500:700])
    return model, measure(model, X[700:], y[700:])


def measure(model, X, y):
    return measure_rows(model, X, y, coverage=0.9, target_name="y", row_names=None)


@pytest.fixture(scope="module")
def found(fitted):
    model, rows = fitted
    return find_drivers(rows, model, as_array=False)


def test_what_drives_prediction_and_noise_is_found_and_chance_is_not(found):
    assert found.columns == [["slope", "copy"], ["spread"], ["chance"]]
    assert found.effects["prediction"].is_real.tolist() == [True, False, False]
    assert found.effects["noise"].is_real.tolist()[1:] == [True, False]
    assert found.list_idle() == ["chance"]


def test_effects_and_chance_by_hand(fitted, found):
    """The effect is the mean over shuffles minus the rows as they are; the band is Student's for one more draw."""
    model, rows = fitted
    order, n = np.random.default_rng(0), len(rows)
    chosen = np.argsort(rows.assessment.uncertainty, kind="stable")
    X, y = rows.frame.iloc[chosen], rows.target[chosen, 0]
    errors, ranks = [], []
    for _ in range(drivers.N_SHUFFLES):
        shuffled = X.assign(spread=X["spread"].to_numpy()[order.permutation(n)])
        result = model.assess(shuffled)
        errors.append(np.abs(y - result.value).mean())
        ranks.append(spearman(np.abs(y - rows.assessment.value[chosen]), result.noise))
    for name, after, before in (
        ("prediction", errors, rows.error.mean()),
        ("noise", np.negative(ranks), -spearman(rows.error, rows.assessment.noise)),
    ):
        effect = found.effects[name]
        assert_allclose(effect.change[1], np.mean(after) - before, rtol=1e-6, atol=1e-12)
        limit = stats.t.ppf(1 - 0.05 / 3, 7) * np.std(after, ddof=1) * np.sqrt(1 + 1 / 8)
        assert_allclose(effect.chance[1], limit, rtol=1e-6)


def test_a_column_of_pure_chance_leaves_its_band_as_rarely_as_promised():
    """Without a driver, the rows as they are are one more draw like the shuffles: 5 % leave the band."""
    draws = np.random.default_rng(0).normal(size=(1_000, drivers.N_SHUFFLES + 1))
    effects = [drivers._find_effect(row[0], row[None, 1:], "noise") for row in draws]
    low, high = stats.binom.ppf([0.001, 0.999], 1_000, 0.05)
    assert low <= sum(bool(effect.is_real[0]) for effect in effects) <= high


def test_the_section_says_what_was_done(fitted, found):
    section = show_drivers(fitted[1], found)
    assert [picture.title.split()[-1] for picture in section.pictures] == ["prediction", "noise", "novelty"]
    assert "shuffled 8 times on 200 of these rows" in section.paragraphs[0]
    assert section.paragraphs[1].endswith("told once on this page: slope stands for copy.")
    assert "slope +1" in section.pictures[0].svg
    assert "1 of 3 do more than chance (blue)." in section.pictures[0].reading
    nothing = found._replace(effects={"noise": drivers.Effect("noise", np.zeros(3), np.ones(3))}, redundant=[])
    section = show_drivers(fitted[1], nothing)
    assert len(section.paragraphs) == 1
    assert "None does more than chance." in section.pictures[0].reading


def test_of_many_columns_those_that_go_with_the_answers_are_shuffled(fitted, monkeypatch):
    model, rows = fitted
    monkeypatch.setattr(drivers, "MOST_COLUMNS", 2)
    monkeypatch.setattr(drivers, "MOST_DRAWN", 1)
    few = find_drivers(rows, model, as_array=False)
    assert few.columns == [["slope", "copy"], ["spread"]]
    assert few.n_left_out == 1
    section = show_drivers(rows, few)
    assert (
        "The 3 columns that go most closely with the answers were shuffled; 1 others were left" in section.paragraphs[1]
    )
    assert "The first 1 are drawn; the file has all." in section.pictures[0].reading


def test_many_columns_that_say_the_same_are_named_in_part(fitted, found):
    wide = found._replace(redundant=[[f"a{group}", *"bcdef"] for group in range(10)])
    text = show_drivers(fitted[1], wide).paragraphs[-1]
    assert "a0 stands for b, c, d and 2 more; a1 stands" in text
    assert text.endswith("and 2 more groups.")


def test_classes_arrays_and_models_without_frames(fitted):
    X, y = make_table(1)
    labels = np.where(X["slope"] + np.random.default_rng(0).normal(size=N) > 0, "up", "down")
    rows = X[["slope", "chance"]].to_numpy()
    trees = ExtraTreesRegressor(20, min_samples_leaf=3, random_state=0)
    model = HCMClassifier(trees, random_state=0).fit(rows[:500], labels[:500]).calibrate(rows[500:700], labels[500:700])
    measured = measure(model, rows[700:], labels[700:])
    found = find_drivers(measured, model, as_array=True)
    assert found.effects["prediction"].is_real.tolist() == [True, False]
    assert "probability of a wrong class" in show_drivers(measured, found).pictures[0].reading
    # Without errors to rank, and without noise or an input frame, only the prediction is left.
    plain = HCMRegressor(trees, random_state=0, frames="target").fit(rows[:500], y[:500])
    plain.calibrate(rows[500:700], y[500:700])
    assert list(find_drivers(measure(plain, rows[700:], y[700:]), plain, as_array=True).effects) == ["prediction"]
    perfect = replace(measured, error=np.zeros(len(measured)))
    assert "noise" not in find_drivers(perfect, model, as_array=True).effects
    flat = measured.assessment
    flat = replace(flat, noise=np.ones(len(flat)))
    assert drivers._measure(measured, flat)["noise"] == 0.0


# --- columns that say the same ---


def group(**columns):
    frame = pd.DataFrame(columns)
    return find_redundant([read_feature(name, frame[name]) for name in frame])


def test_numbers_that_rank_rows_alike_say_the_same():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=200)
    assert group(a=x, b=rng.uniform(size=200), c=np.exp(x), d=-x) == [[0, 2, 3], [1]]
    assert group(a=x, b=x + 0.5 * rng.normal(size=200)) == [[0], [1]]
    dates = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.argsort(np.argsort(x)), unit="D")
    assert group(a=x, b=dates) == [[0, 1]]
    assert group(a=np.ones(200), b=np.ones(200)) == [[0], [1]]


def test_missing_numbers_do_not_hide_what_is_the_same():
    x = np.random.default_rng(0).uniform(size=200)
    assert group(a=x, b=np.where(np.arange(200) % 50, x, np.nan)) == [[0, 1]]
    assert group(a=x, b=np.where(np.arange(200) % 3, np.nan, x)) == [[0], [1]]
    assert find_redundant([]) == []


def test_categories_under_other_names_say_the_same():
    codes = np.arange(60) % 3
    names, short = np.array(["red", "green", "blue"])[codes], np.array(list("rgb"))[codes]
    assert group(a=names, b=short, c=np.roll(short, 1), d=["x"] * 60) == [[0, 1, 2], [3]]
    assert group(a=names, b=np.random.default_rng(0).permutation(short)) == [[0], [1]]
    unique = [f"name {index}" for index in range(60)]
    assert group(a=unique, b=[f"other {index}" for index in range(60)]) == [[0], [1]]
