"""Rows that a kept model was trained on: its leaves know them, and new rows are not taken for them."""

import warnings

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier, XGBRegressor

from onsphere import HCMClassifier, HCMRegressor, OnsphereWarning
from onsphere.models.known_rows import _count_leaves, compute_p_value


def make_rows(seed, n=500):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    X[::7, 3] = np.nan
    return X, 3 * X[:, 0] + X[:, 1] ** 2 + rng.normal(size=n)


X, Y = make_rows(0)
SMALL = {"n_estimators": 5, "n_jobs": 1}
LGBM = LGBMRegressor(verbose=-1, **SMALL)
MODELS = {
    "LightGBM": LGBM,
    "XGBoost": XGBRegressor(**SMALL),
    "CatBoost": CatBoostRegressor(iterations=5, verbose=0, thread_count=1, allow_writing_files=False),
    "boosting": HistGradientBoostingRegressor(max_iter=5),
    "random forest": RandomForestRegressor(5, random_state=0),
    "extra trees": ExtraTreesRegressor(5, min_samples_leaf=3, random_state=0),
    "a pipeline": make_pipeline(StandardScaler(), LGBM),
}
CLASSIFIERS = {
    "LightGBM": LGBMClassifier(verbose=-1, **SMALL),
    "XGBoost": XGBClassifier(**SMALL),
    "boosting": HistGradientBoostingClassifier(max_iter=5),
}


@pytest.mark.parametrize("calibration", [None, "split"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_that_a_kept_regressor_was_trained_on(name, calibration):
    model = HCMRegressor(FrozenEstimator(MODELS[name].fit(X, Y)), calibration=calibration)
    with pytest.warns(OnsphereWarning, match="fill the leaves of the fitted .* just as the rows did"):
        model.fit(X, Y)
    model.fit(*make_rows(1))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_rows_that_a_kept_classifier_was_trained_on(name):
    model = HCMClassifier(FrozenEstimator(CLASSIFIERS[name].fit(X, Y > 1)))
    with pytest.warns(OnsphereWarning, match="fill the leaves of the fitted"):
        model.fit(X, Y > 1)
    fresh, y = make_rows(1)
    model.fit(fresh, y > 1)


def test_boosters_are_read_like_their_models():
    light, extreme = LGBM.fit(X, Y), MODELS["XGBoost"].fit(X, Y)
    for model, booster in ((light, light.booster_), (extreme, extreme.get_booster())):
        for one, other in zip(_count_leaves(model, X), _count_leaves(booster, X), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.sum() == 500


def test_new_rows_are_hardly_ever_taken_for_known_ones():
    """As p-values must, those of new rows fall below a level at most that often: none of 60 below 1 in 1,000."""
    shallow = GradientBoostingRegressor(n_estimators=1, max_depth=2)
    for plain in (LGBM, shallow):
        values = []
        for seed in range(30):
            rows, y = make_rows(2 * seed, 200)
            fitted = plain.fit(np.nan_to_num(rows), y)
            fresh = np.nan_to_num(make_rows(2 * seed + 1, 200)[0])
            values.append(compute_p_value(*_count_leaves(fitted, fresh)))
        assert min(values) > 1e-3
        assert np.mean(np.array(values) < 0.5) < 0.5 + 2 * 0.5 / np.sqrt(30)


def test_models_without_leaves_and_with_categories_are_passed_over():
    assert _count_leaves(Ridge().fit(np.nan_to_num(X), Y), X) is None
    frame = pd.DataFrame(X, columns=list("abcd")).assign(kind=pd.Categorical(np.where(Y > 0, "x", "y")))
    for rows, options in ((frame, {"categorical_features": "from_dtype"}), (frame[list("abcd")], {})):
        fitted = HistGradientBoostingRegressor(max_iter=2, **options).fit(rows, Y)
        assert (_count_leaves(fitted, rows) is None) == (rows is frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HCMRegressor(FrozenEstimator(Ridge().fit(np.nan_to_num(X), Y))).fit(np.nan_to_num(X), Y)
