"""Models calibrated by group, with weights and for shifted rows; and kept up to date with labels that come in."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import betabinom
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from onsphere import FrozenHead, HCMClassifier, HCMRegressor, InvalidInputError, load


def draw(rng, n):
    """Return rows of two regions, the second ten times as noisy in a way that the backbone cannot see."""
    X = rng.normal(size=(n, 2))
    region = rng.choice(["north", "south"], size=n)
    return X, X[:, 0] + np.where(region == "south", 1.0, 0.1) * rng.normal(size=n), region


@pytest.fixture(scope="module")
def plain():
    """Return a model whose sigma is the same everywhere, so that groups differ in coverage."""
    rng = np.random.default_rng(0)
    X, y, _ = draw(rng, 200)
    return HCMRegressor(Ridge(), frames="target", embedding="duplicate", decoder="mean").fit(X, y)


def find_covered(interval, y):
    return (interval[:, 0] <= y) & (y <= interval[:, 1])


def test_every_group_is_covered(plain):
    """Counts of each group are beta-binomial, with the group's own calibration rows."""
    rng = np.random.default_rng(1)
    X, y, region = draw(rng, 1000)
    X_new, y_new, new = draw(rng, 4000)
    plain.calibrate(X, y)
    before = find_covered(plain.predict_interval(X_new), y_new)
    assert before[new == "south"].mean() < 0.85 < 0.95 < before[new == "north"].mean()
    plain.calibrate(X, y, groups=region)
    result = plain.assess(X_new, groups=new)
    for name in ("north", "south"):
        n_calibration, n = int(np.sum(region == name)), int(np.sum(new == name))
        rank = int(np.ceil((n_calibration + 1) * 0.9))
        exact = betabinom(n, rank, n_calibration + 1 - rank)
        held = (result.lower <= y_new) & (y_new <= result.upper)
        assert exact.ppf(0.0005) <= held[new == name].sum() <= exact.ppf(0.9995)
    interval = plain.predict_interval(X_new, groups=new)
    np.testing.assert_array_equal(interval[:, 0], result.lower)
    radius = plain.predict_radius(X_new, groups=new)
    np.testing.assert_allclose(radius * plain.spread_[0], (interval[:, 1] - interval[:, 0]) / 2)


def test_groups_are_those_of_models_that_are_calibrated_on_them_alone(plain):
    rng = np.random.default_rng(2)
    X, y, region = draw(rng, 400)
    new = draw(rng, 20)[0]
    south = plain.calibrate(X, y, groups=region).predict_interval(new, groups=["south"] * 20)
    is_south = region == "south"
    alone = plain.calibrate(X[is_south], y[is_south]).predict_interval(new)
    np.testing.assert_array_equal(south, alone)


@pytest.mark.parametrize("source", ["prediction", "novelty", 1, lambda X: X[:, 1] > 0])
def test_groups_of_new_rows_are_found_again(source):
    rng = np.random.default_rng(0)
    X, y, _ = draw(rng, 1500)
    model = HCMRegressor(Ridge(), random_state=0).fit(X[:500], y[:500])
    whole = model.calibrate(X[500:], y[500:]).predict_interval(X[:50])
    model.calibrate(X[500:], y[500:], groups=source)
    known = model.calibration_.groups
    assert len(known.names) == (2 if callable(source) else 5)
    assert (known.n_rows >= 200).all()
    interval = model.predict_interval(X[:50])
    assert (interval != whole).any()
    by_row = np.concatenate([model.predict_interval(X[[row]]) for row in range(50)])
    np.testing.assert_allclose(interval, by_row)


def test_small_groups_and_unknown_ones(plain):
    rng = np.random.default_rng(0)
    X, y, _ = draw(rng, 300)
    groups = np.repeat(["a", "b", "c"], [260, 30, 10])
    plain.calibrate(X, y, groups=groups)
    assert plain.calibration_.groups.parts.tolist() == [0, -1, -1]
    borrowed = plain.predict_interval(X[:5], groups=["b"] * 5)
    np.testing.assert_array_equal(borrowed, plain.calibrate(X, y).predict_interval(X[:5]))
    plain.calibrate(X, y, groups=groups)
    with pytest.raises(InvalidInputError, match=r"Expected groups with calibration rows: a, b, c\. Got d"):
        plain.assess(X[:2], groups=["a", "d"])
    with pytest.raises(InvalidInputError, match="assess needs the group of each row"):
        plain.assess(X[:2])
    with pytest.raises(InvalidInputError, match="one group for each of the 2 rows"):
        plain.predict_interval(X[:2], groups=["a"])
    with pytest.raises(InvalidInputError, match="predict_radius takes groups= for a model that was calibrated with"):
        plain.calibrate(X, y).predict_radius(X[:2], groups=["a", "a"])


def test_groups_by_a_column_of_a_table_survive_saving(tmp_path):
    rng = np.random.default_rng(0)
    X, y, region = draw(rng, 800)
    frame = pd.DataFrame({"a": X[:, 0], "region": region})
    backbone = make_pipeline(OneHotEncoder(handle_unknown="ignore", sparse_output=False), Ridge())
    model = HCMRegressor(backbone, frames="target").fit(frame[:300], y[:300])
    model.calibrate(frame[300:], y[300:], groups="region").update(frame[:40], y[:40])
    again = load(model.save(tmp_path / "model.onsphere"))
    np.testing.assert_array_equal(again.predict_interval(frame), model.predict_interval(frame))
    assert again.calibration_.groups.names == ("north", "south")
    assert again.calibration_.online.n_labels == 40
    np.testing.assert_array_equal(
        again.update(frame[40:80], y[40:80]).predict_interval(frame),
        model.update(frame[40:80], y[40:80]).predict_interval(frame),
    )
    with pytest.raises(InvalidInputError, match="Got west, without any"):
        model.assess(frame[:1].assign(region="west"))
    with pytest.raises(InvalidInputError, match="calibrate needs the column that gives the groups, one of a, region"):
        model.calibrate(frame, y, groups="place")


def test_groups_that_a_model_cannot_give(plain):
    rng = np.random.default_rng(0)
    X, y, _ = draw(rng, 60)
    with pytest.raises(InvalidInputError, match="groups='novelty' needs a model with the frame 'input'"):
        plain.calibrate(X, y, groups="novelty")
    with pytest.raises(InvalidInputError, match="another one for numbers, which have no classes"):
        plain.calibrate(X, y, groups="class")
    two = HCMRegressor(Ridge(), frames="target").fit(X, X)
    with pytest.raises(InvalidInputError, match="needs one output"):
        two.calibrate(X, X, groups="prediction")


# --- classes ---


def draw_classes(rng, n):
    """Return three classes, the last rare and hard to tell from the second."""
    labels = rng.choice([0, 1, 2], p=[0.5, 0.4, 0.1], size=n)
    return rng.normal(np.array([-2.0, 1.0, 1.5])[labels][:, None], 1.0, size=(n, 2)), labels


def test_every_class_is_covered_by_its_own_limit():
    rng = np.random.default_rng(0)
    model = HCMClassifier(Ridge()).fit(*draw_classes(rng, 500))
    X, labels = draw_classes(rng, 2000)
    X_new, new = draw_classes(rng, 4000)
    rows = np.arange(len(new))
    before = model.calibrate(X, labels).predict_set(X_new)[rows, new]
    assert before[new == 2].mean() < 0.8
    model.calibrate(X, labels, groups="class")
    after = model.predict_set(X_new)[rows, new]
    for label in range(3):
        n_calibration, n = int(np.sum(labels == label)), int(np.sum(new == label))
        rank = int(np.ceil((n_calibration + 1) * 0.9))
        assert after[new == label].sum() >= betabinom(n, rank, n_calibration + 1 - rank).ppf(0.0005)
    with pytest.raises(InvalidInputError, match="takes groups= for a model"):
        model.predict_set(X_new, groups=new)
    model.update(X_new[:100], new[:100])
    assert model.calibration_.online.n_labels == 100
    assert len(model.calibration_) == 2000


def test_a_class_without_calibration_rows_borrows_from_the_whole():
    rng = np.random.default_rng(0)
    X, labels = draw_classes(rng, 600)
    head = FrozenHead("linear", frames="target").fit(X, labels)
    X, labels = draw_classes(rng, 600)
    head.calibrate(X[labels < 2], labels[labels < 2], groups="class")
    assert head.calibration_.groups.parts.tolist() == [0, 1, -1]
    assert head.predict_set(X).shape == (600, 3)


def test_labels_without_drift_leave_every_class_covered():
    """Easy classes are held more often than asked, which must not cost the rare one."""
    rng = np.random.default_rng(0)

    def draw_uneven(n):
        labels = rng.choice(3, p=[0.5, 0.35, 0.15], size=n)
        return np.array([-3.0, 1.0, 1.9])[labels][:, None] + rng.normal(size=(n, 3)), labels

    model = HCMClassifier(Ridge(), frames="target").fit(*draw_uneven(1000))
    model.calibrate(*draw_uneven(1000), groups="class").update(*draw_uneven(1500))
    X, labels = draw_uneven(4000)
    held = model.predict_set(X)[np.arange(4000), labels]
    for label in range(3):
        assert held[labels == label].mean() > 0.85


def test_penalties_make_large_sets_smaller():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(30, 4))

    def draw_many(n):
        labels = rng.integers(30, size=n)
        return centres[labels] + rng.normal(size=(n, 4)), labels

    backbone = RandomForestRegressor(30, min_samples_leaf=10, random_state=0)
    model = HCMClassifier(backbone, frames="target").fit(*draw_many(1500))
    rows, new = draw_many(1000), draw_many(2000)
    plain = model.calibrate(*rows).predict_set(new[0])
    model.calibrate(*rows, set_penalty=0.1, n_free=8)
    short = model.predict_set(new[0])
    for chosen in (plain, short):
        assert chosen[np.arange(2000), new[1]].mean() == pytest.approx(0.9, abs=0.03)
    assert short.sum(axis=1).max() < 0.7 * plain.sum(axis=1).max()
    assert short.sum(axis=1).min() >= 1
    model.update(rows[0][:10], rows[1][:10])
    assert model.calibration_.penalty == 0.1
    model.fit(*new)
    assert model.calibrate(*rows).calibration_.penalty == 0
    with pytest.raises(InvalidInputError, match="'set_penalty' parameter of calibrate"):
        model.calibrate(*rows, set_penalty=-1.0)
    with pytest.raises(InvalidInputError, match="'n_free' parameter of calibrate"):
        model.calibrate(*rows, n_free=0)


def test_predicted_classes_are_groups_too():
    rng = np.random.default_rng(0)
    model = HCMClassifier(Ridge()).fit(*draw_classes(rng, 500))
    model.calibrate(*draw_classes(rng, 600), groups="prediction")
    assert set(model.calibration_.groups.names) <= {"0", "1", "2"}
    assert model.assess(draw_classes(rng, 50)[0]).prediction_set.shape == (50, 3)


def test_a_column_for_groups_need_not_be_a_feature():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=900)})
    y = frame["size"] + rng.normal(size=900)
    tagged = frame.assign(region=rng.choice(["north", "south"], size=900))
    model = HCMRegressor(Ridge()).fit(frame[:300], y[:300])
    model.calibrate(tagged[300:600], y[300:600], groups="region", target_rows=tagged[600:])
    ends = model.predict_interval(tagged[600:])
    model.calibrate(frame[300:600], y[300:600], groups=tagged["region"][300:600], target_rows=frame[600:])
    np.testing.assert_array_equal(ends, model.predict_interval(frame[600:], groups=tagged["region"][600:]))
    model.calibrate(tagged[300:600], y[300:600], groups="region").update(tagged[600:], y[600:])
    assert model.assess(tagged[:5]).lower.shape == (5,)
    with (
        pytest.warns(UserWarning, match="does not have valid feature names"),
        pytest.raises(InvalidInputError, match=r"predict_interval finds the groups in column 'region' of X, a name"),
    ):
        model.predict_interval(frame[:5].to_numpy())
    with pytest.raises(InvalidInputError, match=r"predict_interval needs the column .*, one of size\. Got 'region'"):
        model.predict_interval(frame[:5])


def test_groups_that_the_model_finds_itself_are_not_given_again():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), rng.normal(size=200)
    model = HCMRegressor(Ridge()).fit(X[:100], y[:100])
    with pytest.raises(InvalidInputError, match="that was calibrated without groups"):
        model.calibrate(X[100:], y[100:]).predict_interval(X, groups=y)
    with pytest.raises(InvalidInputError, match="calibrated by prediction, and finds the groups of new rows itself"):
        model.calibrate(X[100:], y[100:], groups="prediction").predict_interval(X, groups=y)
    labels = (y > 0).astype(int)
    sets = HCMClassifier(Ridge()).fit(X[:100], labels[:100]).calibrate(X[100:], labels[100:], groups="class")
    with pytest.raises(InvalidInputError, match="calibrated by class"):
        sets.predict_set(X, groups=labels)


# --- weights and shift ---


def draw_growing(rng, n, centre):
    """Return rows whose noise grows with the feature, which sigma does not see."""
    X = rng.normal(centre, 1.0, size=(n, 1))
    return X, np.exp(0.7 * X[:, 0]) * rng.normal(size=n)


@pytest.fixture(scope="module")
def blind():
    rng = np.random.default_rng(0)
    return HCMRegressor(Ridge(), frames="target", embedding="duplicate").fit(
        rng.normal(size=(200, 1)), np.arange(200.0)
    )


def test_weights_keep_coverage_under_a_known_shift(blind):
    rng = np.random.default_rng(1)
    X, y = draw_growing(rng, 2000, 0.0)
    X_new, y_new = draw_growing(rng, 4000, 1.0)
    y, y_new = y + blind.predict(X), y_new + blind.predict(X_new)

    def cover():
        return find_covered(blind.predict_interval(X_new), y_new).mean()

    blind.calibrate(X, y)
    assert cover() < 0.8
    blind.calibrate(X, y, sample_weight=np.exp(X[:, 0] - 0.5))  # the true ratio of densities
    assert 0.87 < cover() < 0.95
    assert blind.calibration_.effective_size < 1200
    blind.calibrate(X, y, target_rows=X_new[:2000])
    assert 0.87 < cover() < 0.95
    shift = blind.calibration_.shift
    assert shift.effective_size == blind.calibration_.effective_size
    assert shift.auroc == pytest.approx(0.76, abs=0.03)
    before = blind.calibration_.weights.max()
    blind.update(X_new[:30], y_new[:30])
    np.testing.assert_array_equal(blind.calibration_.weights[-30:], before)


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan])
def test_weights_that_are_not_above_zero_are_rejected(blind, weight):
    X, y = draw_growing(np.random.default_rng(0), 50, 0.0)
    before = blind.calibration_
    weights = np.ones(50)
    weights[7] = weight
    with pytest.raises(InvalidInputError, match=r"Got 0 in row 7|negative|Negative|NaN"):
        blind.calibrate(X, y, sample_weight=weights)
    assert blind.calibration_ is before


def test_shifts_that_cannot_be_met_are_errors(blind):
    rng = np.random.default_rng(0)
    X, y = draw_growing(rng, 200, 0.0)
    with pytest.raises(InvalidInputError, match=r"even once these are weighted"):
        blind.calibrate(X, y, target_rows=rng.normal(4, 0.1, size=(200, 1)))
    with pytest.raises(InvalidInputError, match=r"target_rows or a sample_weight\. Got both"):
        blind.calibrate(X, y, target_rows=X, sample_weight=np.ones(200))
    with pytest.raises(InvalidInputError, match="2 features"):
        blind.calibrate(X, y, target_rows=np.zeros((100, 2)))
    words = pd.DataFrame({"word": rng.choice(["a", "b"], size=100)})
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.preprocessing import FunctionTransformer

    hasher = make_pipeline(
        FunctionTransformer(lambda frame: frame.to_numpy()), FeatureHasher(2**14, input_type="string"), Ridge()
    )
    model = HCMRegressor(hasher, frames="target").fit(words, y[:100])
    with pytest.raises(InvalidInputError, match="needs rows that are a table of numbers"):
        model.calibrate(words, y[:100], target_rows=words)


# --- over time ---


def test_labels_keep_intervals_up_to_date(plain):
    """Noise grows to five times its size; without labels coverage is lost."""
    rng = np.random.default_rng(0)
    X, y, _ = draw(rng, 300)
    plain.calibrate(X, y)
    n = 1500
    X, y, _ = draw(rng, n)
    y = X[:, 0] + (y - X[:, 0]) * np.linspace(1, 5, n)
    fixed = find_covered(plain.predict_interval(X), y)
    covered = np.empty(n, dtype=bool)
    for start in range(0, n, 10):
        rows = slice(start, start + 10)
        covered[rows] = find_covered(plain.predict_interval(X[rows]), y[rows])
        plain.update(X[rows], y[rows], time=np.arange(start, start + 10))
    assert fixed[-500:].mean() < 0.7
    assert np.convolve(covered, np.ones(300) / 300, "valid").min() > 0.84
    online = plain.calibration_.online
    assert online.n_labels == n
    assert online.last_time == n - 1
    assert len(plain.calibration_) == 300
    assert online.compute_rolling_coverage(0.9)[-1] == pytest.approx(0.9, abs=0.04)
    assert plain.predict_interval(X[:1], coverage=0.5)[0, 1] < plain.predict_interval(X[:1])[0, 1]


def test_errors_of_update_lose_nothing(plain):
    rng = np.random.default_rng(0)
    X, y, region = draw(rng, 300)
    plain.calibrate(X, y, groups=region).update(X[:10], y[:10], groups=region[:10], time=np.arange(10), step=0.05)
    before = plain.calibration_
    for options, words in [
        ({"groups": region[:5], "time": np.arange(5)}, "row 0 with an earlier time than the last label"),
        ({"groups": ["west"] * 5}, "Got west, without any"),
        ({}, "update needs the group of each row"),
        ({"groups": region[:5], "step": 0.02}, r"'step' parameter of update must be 0.05, as at the first call"),
        ({"groups": region[:4]}, "one group for each of the 5 rows"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            plain.update(X[:5], y[:5], **options)
        assert plain.calibration_ is before
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        plain.update(X[:5], y[:4], groups=region[:5])
    assert plain.calibrate(X, y).calibration_.online is None


def test_a_large_batch_is_taken_in_bit_by_bit(plain):
    rng = np.random.default_rng(5)
    X, y, _ = draw(rng, 200)
    wide = plain.calibrate(X, y).predict_interval(X[:1])[0, 1]
    X, y, _ = draw(rng, 2000)
    plain.update(X, X[:, 0] + 30 * (y - X[:, 0]), step=0.05)
    assert plain.predict_interval(X[:1])[0, 1] > 10 * wide
    assert plain.calibration_.online.find_covered(0.9)[-500:].mean() == pytest.approx(0.9, abs=0.04)


def test_both_tails_follow_the_labels():
    """The noise of a drifting stream becomes one-sided, which symmetric intervals pay for on both sides."""
    rng = np.random.default_rng(0)

    def draw_skewed(n, skew):
        X = rng.normal(size=(n, 2))
        return X, X[:, 0] + np.where(rng.random(n) < skew, rng.exponential(3.0, size=n), 0.3 * rng.normal(size=n))

    model = HCMRegressor(Ridge(), random_state=0).fit(*draw_skewed(300, 0.0))
    X, y = draw_skewed(1500, np.linspace(0, 1, 1500))
    held, found = draw_skewed(300, 0.0), {}
    for tails in ("equal", "symmetric"):
        model.calibrate(*held)
        ends = np.empty((1500, 2))
        for start in range(0, 1500, 10):
            rows = slice(start, start + 10)
            ends[rows] = model.predict_interval(X[rows], tails=tails)
            model.update(X[rows], y[rows])
        found[tails] = ends
        assert np.convolve(find_covered(ends, y), np.ones(500) / 500, "valid").min() > 0.85
    below, above = np.mean(y < found["equal"][:, 0]), np.mean(y > found["equal"][:, 1])
    assert below == pytest.approx(0.05, abs=0.02)
    assert above == pytest.approx(0.05, abs=0.02)
    assert np.ptp(found["equal"], axis=1).mean() < 0.9 * np.ptp(found["symmetric"], axis=1).mean()
    assert (
        model.predict_interval(X, tails="shortest")[:, 0] <= model.predict_interval(X, tails="shortest")[:, 1]
    ).all()


def test_labels_of_novel_rows_take_novelty_out_of_the_width(tmp_path):
    """Rows far away, on which the model is as good as ever: after their labels, intervals are as narrow as before."""
    rng = np.random.default_rng(0)

    def draw_far(n, centre):
        X = rng.normal(centre, 1.0, size=(n, 2))
        return X, X[:, 0] + 0.3 * rng.normal(size=n)

    model = HCMRegressor(Ridge(), random_state=0).fit(*draw_far(300, 0.0)).calibrate(*draw_far(200, 0.0))
    new = np.concatenate([draw_far(20, 0.0)[0], draw_far(20, 4.0)[0]])
    widths = np.ptp(model.predict_interval(new), axis=1)
    assert widths[20:].mean() > 3 * widths[:20].mean()
    model.update(*draw_far(500, np.repeat(rng.choice([0.0, 4.0], size=500), 2).reshape(500, 2)))
    assert model.calibration_.width != "total"
    after = np.ptp(model.predict_interval(new), axis=1)
    assert after[20:].mean() < 1.5 * widths[:20].mean()
    np.testing.assert_allclose(2 * model.spread_[0] * model.predict_radius(new), after)
    model.save(tmp_path / "model.onsphere")
    np.testing.assert_array_equal(np.ptp(load(tmp_path / "model.onsphere").predict_interval(new), axis=1), after)
