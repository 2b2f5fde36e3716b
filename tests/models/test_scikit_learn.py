"""What users of scikit-learn expect: searches, routing, splitters, jobs, importances and nested parameters."""

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostRegressor
from lightgbm import LGBMRegressor
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBRegressor

from onsphere import HCMClassifier, HCMRegressor, InvalidInputError, InvalidTypeError
from onsphere.models import choice
from onsphere.scorers import crps_scorer, selective_scorer, winkler_scorer

X, Y = load_diabetes(return_X_y=True)
SMALL = {"n_estimators": 20, "min_samples_leaf": 2, "random_state": 0}


def test_parameters_of_the_default_backbone_are_nested():
    model = HCMRegressor(random_state=0).set_params(estimator__n_estimators=7)
    assert len(model.fit(X, Y).estimator_) == 7
    search = GridSearchCV(HCMRegressor(random_state=0), {"estimator__n_estimators": [2, 5]}, cv=2).fit(X, Y)
    assert len(search.best_estimator_.estimator_) in (2, 5)


@pytest.mark.parametrize("scorer", [winkler_scorer, crps_scorer, selective_scorer])
def test_scorers_prefer_the_better_model(scorer):
    good = HCMRegressor(ExtraTreesRegressor(**SMALL), calibration="split", random_state=0)
    noise = np.random.default_rng(0).normal(size=(len(X), 3))
    scores = [cross_val_score(good, rows, Y, scoring=scorer, cv=3).mean() for rows in (X, noise)]
    assert scores[1] < scores[0] < 0
    several = clone(good).fit(X, np.column_stack([Y, Y]))
    assert scorer(several, X, np.column_stack([Y, Y])) == pytest.approx(scorer(several, X, np.column_stack([Y, Y])))


@pytest.mark.parametrize("scorer", [winkler_scorer, crps_scorer, selective_scorer])
def test_scorers_take_pipelines(scorer):
    model = HCMRegressor(Ridge(), calibration="split", random_state=0)
    scaled = StandardScaler().fit(X)
    pipe = make_pipeline(StandardScaler(), model).fit(X, Y)
    assert scorer(pipe, X, Y) == pytest.approx(scorer(clone(model).fit(scaled.transform(X), Y), scaled.transform(X), Y))


def test_the_winkler_scorer_is_for_numbers():
    flowers, kinds = load_iris(return_X_y=True)
    model = HCMClassifier(ExtraTreesRegressor(**SMALL), calibration="split").fit(flowers, kinds)
    with pytest.raises(InvalidTypeError, match=r"Use selective_scorer"):
        winkler_scorer(model, flowers, kinds)


@pytest.mark.parametrize(
    ("scorer", "method"),
    [
        (winkler_scorer, "predict_interval"),
        (crps_scorer, r"predict\(X, return_std=True\)"),
        (selective_scorer, "predict_uncertainty"),
    ],
)
def test_scorers_need_a_model_with_an_uncertainty(scorer, method):
    for plain, wrapper in ((Ridge(), "HCMRegressor"), (LogisticRegression(), "HCMClassifier")):
        pipe = make_pipeline(StandardScaler(), plain).fit(X, Y > 150)
        with pytest.raises(InvalidTypeError, match=f"with {method} in {scorer.__name__}.*Put it into an {wrapper}"):
            scorer(pipe, X, Y > 150)


def test_the_selective_scorer_takes_classes():
    flowers, kinds = load_iris(return_X_y=True)
    model = HCMClassifier(ExtraTreesRegressor(**SMALL)).fit(flowers[::2], kinds[::2])
    assert -0.2 < selective_scorer(model, flowers[1::2], kinds[1::2]) <= 0


@pytest.mark.parametrize(
    ("calibration", "n_rows"),
    [
        (KFold(3), 442),
        (ShuffleSplit(1, test_size=100, random_state=0), 100),
        ([(np.arange(300), np.arange(300, 442))], 142),
    ],
    ids=["folds", "one split", "a list"],
)
def test_calibration_takes_a_splitter_or_a_list(calibration, n_rows):
    model = HCMRegressor(Ridge(), calibration=calibration).fit(X, Y)
    assert len(model.calibration_) == n_rows
    assert model.predict_interval(X).shape == (442, 2)


def test_a_splitter_that_cannot_split():
    with pytest.raises(InvalidInputError, match="cannot hold rows out"):
        HCMRegressor(Ridge(), calibration=GroupKFold(3)).fit(X, Y)


def test_several_coverages_in_one_call():
    model = HCMRegressor(Ridge(), calibration="split", random_state=0).fit(X, Y)
    both = model.predict_interval(X, coverage=[0.5, 0.9])
    assert both.shape == (2, 442, 2)
    assert np.array_equal(both[1], model.predict_interval(X, coverage=0.9))
    assert np.array_equal(both, model.predict_interval(X, coverage=np.array([0.5, 0.9])))
    for wrong in ([], [0.9, "a"], "0.9", [0.5, 2]):
        with pytest.raises(InvalidInputError, match=r"'coverage' parameter of predict_interval must be a"):
            model.predict_interval(X, coverage=wrong)


def test_jobs_change_nothing_but_the_time():
    for options in ({"calibration": "cv"}, {}):
        one, two = (HCMRegressor(Ridge(), n_jobs=n, random_state=0, **options).fit(X, Y) for n in (None, 2))
        assert np.array_equal(one.predict_sigma(X), two.predict_sigma(X))


def test_weights_and_eval_set_are_routed():
    weights = np.where(Y > 150, 1.0, 0.1)
    cat = CatBoostRegressor(
        iterations=300, early_stopping_rounds=3, verbose=0, allow_writing_files=False, thread_count=1
    )
    light = LGBMRegressor(n_estimators=300, n_jobs=1, verbose=-1, early_stopping_rounds=3)
    rest, last = slice(0, 400), [(X[400:], Y[400:])]
    for boosted, options in ((cat, {"eval_set": last}), (light, {"eval_X": X[400:], "eval_y": Y[400:]})):
        plain = clone(boosted).fit(X[rest], Y[rest], **options)
        assert plain.best_iteration_ < 300
        model = HCMRegressor(boosted).fit(X[rest], Y[rest], eval_set=last)
        assert np.array_equal(model.predict(X), plain.predict(X))
    folds = HCMRegressor(light, calibration="cv").fit(X[rest], Y[rest], eval_set=last)
    assert len(folds.calibration_) == 400
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False),
            HCMRegressor(Ridge()).set_fit_request(sample_weight=True, eval_set=False),
        )
        routed = pipe.fit(X, Y, sample_weight=weights)
    scaled = StandardScaler().fit_transform(X)
    expected = HCMRegressor(Ridge()).fit(scaled, Y, sample_weight=weights).predict(scaled)
    assert np.array_equal(routed.predict(X), expected)


@pytest.mark.parametrize(
    ("backbone", "options", "message"),
    [
        (Ridge(), {}, "does not take an eval_set in fit"),
        (make_pipeline(StandardScaler(), LGBMRegressor(verbose=-1)), {}, "does not take an eval_set in fit"),
        (XGBRegressor(n_estimators=2), {"frames": "target"}, "learns directions beside the value"),
    ],
)
def test_an_eval_set_that_cannot_be_used(backbone, options, message):
    with pytest.raises(InvalidInputError, match=message):
        HCMRegressor(backbone, **options).fit(X, Y, eval_set=[(X, Y)])


@pytest.mark.parametrize(
    ("eval_set", "message"),
    [
        ([X], r"must be a pair \(X, y\), or a list"),
        ([], r"must be a pair \(X, y\), or a list"),
        ((X[:9, :3], Y[:9]), "rows of eval_set are not like those of fit: X has 3 features"),
        ([(X[:9], Y[:8])], "rows of eval_set .* inconsistent numbers of samples"),
        ([(X[:9], -Y[:9])], "rows of eval_set .*: Expected every target"),
    ],
)
def test_rows_to_stop_early_by_are_checked(eval_set, message):
    with pytest.raises(InvalidInputError, match=message):
        HCMRegressor(LGBMRegressor(n_estimators=2, verbose=-1), domain=(0, None)).fit(X, Y, eval_set=eval_set)


@pytest.mark.parametrize(
    "boosted",
    [
        LGBMRegressor(n_estimators=3, verbose=-1, n_jobs=1, early_stopping_rounds=2),
        XGBRegressor(n_estimators=3, n_jobs=1, early_stopping_rounds=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_one_pair_is_an_eval_set_and_nothing_is_printed(boosted, capfd):
    one, several = (HCMRegressor(boosted).fit(X, Y, eval_set=given) for given in ((X[:99], Y[:99]), [(X[:99], Y[:99])]))
    assert np.array_equal(one.predict(X), several.predict(X))
    assert capfd.readouterr().out == ""


class Spy(CatBoostRegressor):
    """CatBoost that remembers the means of the targets it learns from, and of those it stops by."""

    means: ClassVar = []

    def fit(self, X, y, sample_weight=None, eval_set=None):
        self.means.append((np.mean(y), np.mean(eval_set[0][1])))
        return super().fit(X, y, eval_set=eval_set)


def test_targets_to_stop_early_by_are_on_the_scale_of_the_domain():
    skewed = np.exp(3 * (Y - Y.mean()) / Y.std())
    backbone = Spy(iterations=2, verbose=0, thread_count=1, allow_writing_files=False)
    model = HCMRegressor(backbone, domain="positive").fit(X, skewed, eval_set=[(X, skewed)])
    assert model.domain_.scale == "log"
    learned, stopped = Spy.means[-1]
    assert learned == pytest.approx(stopped, abs=0.5)
    assert np.mean(skewed) > 20


def test_a_fitted_model_has_no_use_for_an_eval_set():
    with pytest.raises(InvalidInputError, match=r"A fitted Ridge stays as it is.*Leave it out"):
        HCMRegressor(FrozenEstimator(Ridge().fit(X, Y))).fit(X, Y, eval_set=(X, Y))


def test_weights_are_routed_to_a_step_that_asks_for_them():
    weights = np.where(Y > 150, 1.0, 0.1)
    plain = HCMRegressor(make_pipeline(StandardScaler(), Ridge())).fit(X, Y, sample_weight=weights)
    with config_context(enable_metadata_routing=True):
        steps = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False), Ridge().set_fit_request(sample_weight=True)
        )
        routed = HCMRegressor(steps).fit(X, Y, sample_weight=weights)
    assert np.array_equal(routed.predict(X), plain.predict(X))


def test_folds_by_group_need_the_groups():
    groups = np.arange(len(Y)) // 50
    model = HCMRegressor(Ridge(), calibration=GroupKFold(3)).fit(X, Y, groups=groups)
    given = HCMRegressor(Ridge(), calibration=list(GroupKFold(3).split(X, Y, groups))).fit(X, Y)
    assert np.array_equal(model.predict_interval(X), given.predict_interval(X))
    with pytest.raises(InvalidInputError, match=r"cannot hold rows out without groups= in fit"):
        HCMRegressor(Ridge(), calibration=GroupKFold(3)).fit(X, Y)
    labels = (Y > 150).astype(int)
    classes = HCMClassifier(ExtraTreesRegressor(**SMALL), calibration=GroupKFold(3)).fit(X, labels, groups=groups)
    assert len(classes.calibration_) == len(Y)


def test_a_number_of_folds_is_a_calibration():
    model, expected = (HCMRegressor(Ridge(), calibration=given).fit(X, Y) for given in (3, KFold(3)))
    assert np.array_equal(model.predict_interval(X), expected.predict_interval(X))


def test_rows_in_both_parts_of_a_fold():
    rows = np.arange(len(Y))
    with pytest.raises(InvalidInputError, match="Got a row in both"):
        HCMRegressor(Ridge(), calibration=[(rows, rows[:50])]).fit(X, Y)


def test_rows_of_a_fold_that_are_not_there():
    with pytest.raises(InvalidInputError, match=rf"folds .* of the {len(Y)} rows given to fit .*Got row {len(Y) + 99}"):
        HCMRegressor(Ridge(), calibration=[(np.arange(50), np.arange(100) + len(Y))]).fit(X, Y)


def test_folds_are_a_list():
    with pytest.raises(InvalidInputError, match=r"a list of \(train, test\). Got <generator"):
        HCMRegressor(Ridge(), calibration=KFold(3).split(X)).fit(X, Y)


def test_catboost_with_a_list_of_categories_is_a_backbone():
    frame = pd.DataFrame(X[:, :3], columns=list("abc")).assign(city=np.where(X[:, 1] > 0, "Rome", "Oslo"))
    frame = frame.astype({"city": "category"})
    boosted = CatBoostRegressor(
        iterations=5, cat_features=["city"], verbose=0, thread_count=1, allow_writing_files=False, random_state=0
    )
    model = HCMRegressor(boosted, calibration=2, frames=("error", "input"))
    assert len(cross_val_score(model, frame, Y, cv=2)) == 2
    expected = CatBoostRegressor(**boosted.get_params()).fit(frame, Y).predict(frame)
    assert np.array_equal(clone(model).fit(frame, Y).predict(frame), expected)
    assert clone(model).frames == ("error", "input")


class Uncopied(Ridge):
    """A regressor that changes its parameter."""

    def __init__(self, alpha=1.0):
        self.alpha = [alpha]


def test_what_scikit_learn_cannot_clone_is_its_own_error():
    with pytest.raises(RuntimeError, match="Cannot clone"):
        clone(HCMRegressor(Uncopied()))


def test_importances_name_the_columns_behind_noise_and_novelty():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 3))
    y = 5 * rows[:, 0] + rng.normal(size=500) * (0.1 + 2 * np.abs(rows[:, 1]))
    model = HCMRegressor(HistGradientBoostingRegressor(max_iter=30)).fit(rows, y)
    assert model.noise_importances_.shape == model.novelty_importances_.shape == (3,)
    assert model.noise_importances_.argmax() == 1
    assert model.novelty_importances_.sum() == pytest.approx(1)
    assert model.novelty_importances_.argmin() == 2
    linear = HCMRegressor(Ridge()).fit(rows, y)
    assert linear.noise_importances_.argmax() == 1
    assert linear.novelty_importances_.argmin() == 2  # Ridge takes no missing values, so each column is seen once
    forest = HCMRegressor(ExtraTreesRegressor(**SMALL)).fit(rows, y)
    assert forest.noise_importances_.argmax() == 0
    plain = HCMRegressor(Ridge(), frames="target").fit(rows, y)
    for name in ("noise_importances_", "novelty_importances_"):
        with pytest.raises(InvalidInputError, match=f"{name} needs a model with the frame"):
            getattr(plain, name)


def test_sigma_is_calibrated_once_the_model_is():
    """Errors of the calibration rows are in units of sigma: their root mean square is 1."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-2, 2, size=(600, 2))
    y = np.sin(rows[:, 0]) + rows[:, 1]  # without noise
    model = HCMRegressor(Ridge()).fit(rows[:200], y[:200])
    before = model.predict_sigma(rows)
    model.calibrate(rows[200:400], y[200:400])
    error = y - model.predict(rows)
    assert np.sqrt(np.mean((error / model.predict_sigma(rows))[200:400] ** 2)) == pytest.approx(1)
    assert np.sqrt(np.mean((error / model.predict_sigma(rows))[400:] ** 2)) == pytest.approx(1, abs=0.2)
    assert not np.allclose(before, model.predict_sigma(rows))
    assert np.array_equal(model.predict(rows, return_std=True)[1], model.assess(rows).sigma)


def test_text_in_a_frame_points_to_the_table_path():
    frame = pd.DataFrame({"city": ["Rome", "Oslo"] * 20, "size": np.arange(40.0)})
    with pytest.raises(InvalidInputError, match=r"could not convert string.*onsphere\.table\.fit_table"):
        HCMRegressor().fit(frame, np.arange(40.0))


def test_an_outer_pipeline_gives_its_assessment_in_one_line():
    pipe = make_pipeline(StandardScaler().set_output(transform="pandas"), HCMRegressor(Ridge(), calibration="split"))
    frame = load_diabetes(as_frame=True).data
    pipe.fit(frame, Y)
    result = pipe[-1].assess(pipe[:-1].transform(frame))
    assert np.array_equal(result.value, pipe.predict(frame))
    assert result.to_frame().index.equals(frame.index)


# --- estimator="auto" ---


@pytest.fixture
def _two_candidates(monkeypatch):
    """Leave the two cheapest candidates: what is tested here does not depend on how many there are."""
    some = {name: choice.CANDIDATES[name] for name in ("kernel", "hist-gradient-boosting")}
    monkeypatch.setattr(choice, "CANDIDATES", some)


@pytest.mark.usefixtures("_two_candidates")
def test_auto_takes_the_candidate_whose_intervals_are_best():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-2, 2, size=(300, 2))
    smooth, jumps = np.sin(rows[:, 0]) + rows[:, 1], 5.0 * (np.floor(rows[:, 0] * 4) % 2) + rng.normal(size=300)
    # Trees do not mind how skewed a column is.
    for X, y, expected in ((rows, smooth, "ridge"), (np.exp(3 * rows), jumps, "boosting")):
        model = HCMRegressor("auto", calibration="cv", random_state=0).fit(X, y)
        assert expected in model.estimator_.named_steps
        assert {row["backbone"] for row in model.candidates_} == {"kernel", "hist-gradient-boosting"}
        assert len(model.calibration_) == 300


def test_too_few_rows_to_compare_take_the_default():
    few = HCMRegressor("auto", random_state=0).fit(X[:30], Y[:30])
    assert ("trees" in few.estimator_.named_steps, few.candidates_) == (True, [])


def test_very_many_rows_take_a_fast_candidate_without_comparing(monkeypatch):
    monkeypatch.setattr(choice, "_MANY_ROWS", 100)
    many = HCMRegressor("auto", frames="target", random_state=0).fit(X[:150], Y[:150])
    assert ("boosting" in many.estimator_.named_steps, many.candidates_) == (True, [])


@pytest.mark.usefixtures("_two_candidates")
def test_auto_takes_classes_and_is_the_same_for_the_same_seed():
    flowers, kinds = load_iris(return_X_y=True)
    first, again = (HCMClassifier("auto", random_state=3).fit(flowers, kinds) for _ in range(2))
    assert first.candidates_ == again.candidates_
    assert first.score(flowers, kinds) > 0.9
    assert min(row["Brier"] for row in first.candidates_ if "Brier" in row) < 0.2


def test_ties_go_to_the_cheaper_candidate_and_the_worse_half_stops_early(monkeypatch):
    made = {name: (lambda *_: [("ridge", Ridge())]) for name in ("first", "second", "third", "fourth")}
    made["fourth"] = lambda *_: [("mean", Ridge(1e9))]
    monkeypatch.setattr(choice, "CANDIDATES", made)
    model = HCMRegressor("auto", random_state=0).fit(X, Y)
    assert ["Winkler" in row for row in model.candidates_] == [True, True, True, False]
    assert all("first look" in row for row in model.candidates_)
