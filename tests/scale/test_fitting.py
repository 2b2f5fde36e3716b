"""Fitting from merged sums, and calibration from merged sketches, against one machine that sees all rows."""

import pickle
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from onsphere import FrozenHead, HCMRegressor
from onsphere.decision import AcceptShare
from onsphere.errors import InvalidInputError, MissingExtraError
from onsphere.scale import CalibrationSketch, calibrate_dataset, fit_head

NAMES = ["a", "b", "c"]


def make_rows(n_rows=1_500, seed=0):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(5 + rng.normal(size=(n_rows, 3)), columns=NAMES)
    noise = 0.1 * rng.normal(size=(n_rows, 2)) * rows[["a"]].to_numpy()
    rows["y"], rows["z"] = rows["a"] * rows["b"] + noise[:, 0], rows["c"] + noise[:, 1]
    rows["label"] = np.where(rows["a"] > 5.5, "high", np.where(rows["b"] > 5, "mid", "low"))
    return rows


ROWS = make_rows()
NEW = make_rows(200, seed=1)[NAMES] * 1.1


def write_shards(folder, rows, n_shards):
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(rows)), n_shards)):
        rows.iloc[part].to_parquet(folder / f"{number}.parquet")
    return folder


def list_answers(head, X):
    found = head.assess(X)
    parts = [found.uncertainty, found.novelty, found.noise]
    return [*parts, found.value if found.value.dtype.kind == "f" else head.predict_proba(X)]


@pytest.mark.parametrize(("kind", "target"), [("linear", "y"), ("kernel", ["y", "z"]), ("joint", "label")])
def test_any_number_of_shards_gives_the_fit_on_one_machine(tmp_path, monkeypatch, kind, target):
    monkeypatch.setattr("onsphere.models.frozen.sums._N_KEPT", 500)  # the others are in the sums alone
    head = FrozenHead(kind, n_landmarks=60, random_state=0)
    whole = head.fit(ROWS[NAMES], ROWS[target])
    for n_shards in (1, 3, 7):
        folder = write_shards(tmp_path / str(n_shards), ROWS, n_shards)
        found = fit_head(head, folder, target, features=NAMES, n_workers=1)
        assert found.n_rows_ == len(ROWS)
        for ours, theirs in zip(list_answers(found, NEW), list_answers(whole, NEW), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    assert found._output_names == (("y", "z") if target == ["y", "z"] else None)


def test_two_processes_give_the_same_as_one_and_files_without_rows_are_passed_over(tmp_path):
    head = FrozenHead("linear", frames="target", random_state=0)
    folder = write_shards(tmp_path / "in", ROWS[:1_000], 3)
    ROWS[:0].to_parquet(folder / "empty.parquet")
    ROWS[1_000:1_001].to_parquet(folder / "single.parquet")
    found = [fit_head(head, folder, "y", features=NAMES, n_workers=n_workers) for n_workers in (1, 2)]
    np.testing.assert_array_equal(*(each.predict(NEW) for each in found))
    whole = head.fit(ROWS[:1_001][NAMES], ROWS[:1_001]["y"])
    np.testing.assert_allclose(found[0].predict(NEW), whole.predict(NEW), rtol=1e-10)


def test_features_are_all_other_columns_and_csv_needs_a_task(tmp_path):
    ROWS[[*NAMES, "label"]][:300].to_csv(tmp_path / "a.csv", index=False)
    head = FrozenHead("linear", frames="target", task="classification")
    assert fit_head(head, tmp_path, "label", n_workers=1).classes_.tolist() == ["high", "low", "mid"]
    for name in ("a.csv", "A.CSV", "a.csv.gz"):
        [path] = tmp_path.iterdir()
        path.rename(tmp_path / name)
        with pytest.raises(InvalidInputError, match="CSV files, which have no types"):
            fit_head(FrozenHead(), tmp_path, "label")


def test_the_index_of_pandas_is_no_feature(tmp_path):
    ROWS.loc[ROWS["a"] > 5, [*NAMES, "y"]].to_parquet(tmp_path / "a.parquet")
    ROWS.loc[ROWS["a"] > 5, [*NAMES, "y"]].set_index("c").to_parquet(tmp_path / "b.parquet")
    head = FrozenHead("linear", frames="target")
    assert fit_head(head, tmp_path, "y", n_workers=1).feature_names_in_.tolist() == NAMES
    (tmp_path / "a.parquet").unlink()
    assert fit_head(head, tmp_path, "y", n_workers=1).feature_names_in_.tolist() == NAMES[:2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": None}, "'head'.*a FrozenHead"),
        ({"head": FrozenHead("cubic")}, "^The 'kind' parameter of FrozenHead"),  # and not of a file
        ({"targets": None}, "'targets'"),
        ({"targets": []}, "'targets'"),
        ({"targets": 3}, "'targets'"),
        ({"features": []}, "'features'"),
        ({"features": "a"}, "'features'"),
        ({"features": None, "targets": list(ROWS)}, "Expected columns beside"),
        ({"features": ["a", "y"]}, "more than one column named y"),
        ({"n_workers": 0}, "'n_workers' parameter of fit_head"),
    ],
)
def test_what_is_asked_of_a_fit_is_checked(tmp_path, options, message):
    ROWS[:9].to_parquet(tmp_path / "0.parquet")
    with pytest.raises(InvalidInputError, match=message):
        fit_head(**({"head": FrozenHead("linear"), "source": tmp_path, "targets": "y"} | options))


def test_what_cannot_be_fitted_is_named_with_its_file(tmp_path):
    head = FrozenHead("linear", frames="target")
    with pytest.raises(InvalidInputError, match="Expected a folder with tables"):
        fit_head(head, tmp_path, "y")
    ROWS[:0].to_parquet(tmp_path / "0.parquet")
    with pytest.raises(InvalidInputError, match="Expected files with rows"):
        fit_head(head, tmp_path, "y", features=NAMES, n_workers=1)
    ROWS[:9].to_parquet(tmp_path / "1.parquet")
    ROWS[:9].assign(a=np.nan).to_parquet(tmp_path / "2.parquet")
    with pytest.raises(InvalidInputError, match=r"^2\.parquet: .*NaN"):
        fit_head(head, tmp_path, "y", features=NAMES, n_workers=1)
    ROWS[:9].assign(b=[*"12345678", "nine"]).to_parquet(tmp_path / "2.parquet")
    with pytest.raises(InvalidInputError, match=r"^2\.parquet: Expected a number in the column b, row 8 .*'nine'"):
        fit_head(head, tmp_path, "y", features=NAMES, n_workers=1)
    ROWS[:9].assign(y=np.arange(9)).to_parquet(tmp_path / "2.parquet")
    with pytest.raises(InvalidInputError, match=r"^2\.parquet: .*Got numbers in some and classes in others"):
        fit_head(head, tmp_path, "y", features=NAMES, n_workers=1)
    for number in (1, 2):
        ROWS[: 2 - number].to_parquet(tmp_path / f"{number}.parquet")
    with pytest.raises(InvalidInputError, match=r"Expected files with at least two rows\. Got one in"):
        fit_head(head, tmp_path, "y", features=NAMES, n_workers=1)
    with pytest.raises(InvalidInputError, match="without a calibration of its own"):
        fit_head(FrozenHead(calibration="cv"), tmp_path, "y")
    with pytest.raises(InvalidInputError, match="nothing"):
        fit_head(head, tmp_path, "nothing")


# --- calibration ---

pytest.importorskip("datasketches")


@pytest.fixture(scope="module")
def model():
    return HCMRegressor(Ridge(), frames="target").fit(ROWS[NAMES][:400], ROWS["y"][:400])


def test_a_calibration_of_few_rows_is_that_of_the_model(tmp_path, model):
    folder = write_shards(tmp_path / "in", make_rows(900, seed=3), 3)
    rows = pd.concat([pd.read_parquet(path) for path in sorted(folder.iterdir())])
    expected = model.calibrate(rows[NAMES], rows["y"]).predict_interval(NEW, coverage=0.9)
    ROWS[:0].to_parquet(folder / "empty.parquet")
    found = calibrate_dataset(model, folder, "y", n_workers=1)
    np.testing.assert_allclose(found.predict_interval(NEW, coverage=0.9), expected, rtol=1e-12)
    assert len(found.calibration_) == 900


def test_a_threshold_is_fitted_to_the_new_rows_as_calibrate_does(tmp_path, model):
    folder = write_shards(tmp_path / "in", make_rows(300, seed=3), 2)
    model.calibrate(ROWS[NAMES][400:], ROWS["y"][400:]).set_threshold(AcceptShare(0.9))
    before = model.threshold_
    found = calibrate_dataset(model, folder, "y", n_workers=1).threshold_
    assert found == model.calibrate(make_rows(300, seed=3)[NAMES], make_rows(300, seed=3)["y"]).threshold_ != before


def test_classes_are_calibrated_too(tmp_path):
    head = FrozenHead("linear", frames="target", random_state=0).fit(ROWS[NAMES], ROWS["label"])
    folder = write_shards(tmp_path / "in", make_rows(400, seed=4), 2)
    sets = calibrate_dataset(head, folder, "label", n_workers=1).predict_set(NEW, coverage=0.9)
    rows = make_rows(400, seed=4)
    np.testing.assert_array_equal(sets, head.calibrate(rows[NAMES], rows["label"]).predict_set(NEW, coverage=0.9))


def test_labels_that_are_numbers_are_calibrated_from_csv_too(tmp_path):
    rows = make_rows(400, seed=4)
    labels = (rows["a"] > 5).astype(int)
    head = FrozenHead("linear", frames="target", random_state=0).fit(ROWS[NAMES], (ROWS["a"] > 5).astype(int))
    rows[NAMES].assign(label=labels).to_csv(tmp_path / "a.csv", index=False)
    found = calibrate_dataset(head, tmp_path, "label", n_workers=1).predict_set(NEW, coverage=0.9)
    np.testing.assert_array_equal(found, head.calibrate(rows[NAMES], labels).predict_set(NEW, coverage=0.9))
    with pytest.raises(InvalidInputError, match="'engine' parameter of calibrate_dataset"):
        calibrate_dataset(head, tmp_path, "label", engine="spark")


def make_calibration(model, residuals):
    from onsphere.calibration import RegressionCalibration

    ones = np.ones((len(residuals), 1))
    return RegressionCalibration.measure(residuals[:, None], ones, np.abs(residuals), np.ones(1))


def test_merged_sketches_of_many_rows_keep_the_coverage(model):
    """By repetition: the exact coverage of each limit is known, and no rank error may bring it below what is asked."""
    from scipy.stats import norm

    rng, covered = np.random.default_rng(0), {0.5: [], 0.9: [], 0.999: []}
    for _ in range(8):
        merged = CalibrationSketch(make_calibration(model, rng.normal(size=100)))
        for n_rows in (12_000, 3, 8_000):
            part = CalibrationSketch(make_calibration(model, rng.normal(size=n_rows)))
            merged.merge(pickle.loads(pickle.dumps(part)))
        assert len(merged) == 20_103
        assert 0 < merged.rank_error < 0.002
        calibration = merged.make_calibration()
        assert len(calibration) == 10_000
        for coverage, found in covered.items():
            found.append(2 * norm.cdf(calibration.find_ends(coverage)[1]) - 1)
    for coverage, found in covered.items():
        deviation = (coverage * (1 - coverage) / 20_103 / len(found)) ** 0.5
        # The mean over calibration sets is at least what is asked for, and at most the error above that.
        assert coverage - 3 * deviation < np.mean(found) < coverage + 0.003 + 3 * deviation


def test_a_raised_rank_never_lies_below_that_of_all_rows(model):
    for seed in range(3):
        residuals = np.random.default_rng(seed).normal(size=30_000)
        found = CalibrationSketch(make_calibration(model, residuals)).make_calibration()
        exact = make_calibration(model, residuals)
        for coverage in (0.1, 0.8, 0.9, 0.95, 0.9999):
            assert found.find_ends(coverage)[1] >= exact.find_ends(coverage)[1]


def test_what_cannot_be_calibrated_is_said(tmp_path, model, monkeypatch):
    with pytest.raises(InvalidInputError, match="Got one fitted on an array"):
        calibrate_dataset(
            HCMRegressor(Ridge(), frames="target").fit(ROWS[NAMES][:50].to_numpy(), ROWS["y"][:50]), tmp_path, "y"
        )
    ROWS[:0].to_parquet(tmp_path / "0.parquet")
    with pytest.raises(InvalidInputError, match="Expected files with rows"):
        calibrate_dataset(model, tmp_path, "y", n_workers=1)
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(MissingExtraError, match="datasketches"):
        CalibrationSketch(make_calibration(model, np.ones(2)))
