"""Backbones: any scikit-learn regressor can be one, and an error in it names it."""

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMRegressor
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    StackingRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBRegressor

from onsphere import HCMClassifier, HCMRegressor, InvalidInputError, InvalidTypeError


def small_forest(**options):
    return ExtraTreesRegressor(n_estimators=30, min_samples_leaf=2, random_state=0, **options)


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def five_outputs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    noise = rng.normal(size=(300, 5)) * (0.05 + np.abs(X[:, :1]))
    return X, X @ rng.normal(size=(4, 5)) * [1, 10, 100, 1, 1] + noise * [1, 10, 100, 1, 1]


ONE = np.ones((4, 2))
Y4 = np.arange(4.0)


class NotAnEstimator:
    def fit(self, X, y):
        return self

    def predict(self, X):
        return X


BACKBONES = [
    None,
    small_forest(),
    Ridge(),
    KNeighborsRegressor(),
    HistGradientBoostingRegressor(max_iter=5, learning_rate=0.3),
    LGBMRegressor(n_estimators=10, n_jobs=1, verbose=-1),
    XGBRegressor(n_estimators=10, n_jobs=1),
    make_pipeline(StandardScaler(), Ridge()),
    make_pipeline(StandardScaler(), HistGradientBoostingRegressor(max_iter=5, learning_rate=0.3)),
]


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda backbone: type(backbone).__name__)
@pytest.mark.parametrize("shape", ["(n,)", "(n, 1)", "(n, 5)"])
def test_every_backbone_and_shape_gives_value_and_uncertainty(backbone, shape, five_outputs):
    X, Y = five_outputs
    y = {"(n,)": Y[:, 0], "(n, 1)": Y[:, :1], "(n, 5)": Y}[shape]
    result = HCMRegressor(backbone, random_state=0).fit(X[:250], y[:250]).assess(X[250:])
    assert result.value.shape == result.sigma.shape == y[250:].shape
    assert result.uncertainty.shape == (50,)
    assert np.isfinite(result.value).all()
    assert (result.uncertainty >= 0).all()
    assert np.corrcoef(result.value.ravel(), y[250:].ravel())[0, 1] > 0.7


def test_the_seed_fixes_the_prediction_and_reaches_every_unseeded_backbone(diabetes):
    X, y = diabetes
    backbone = make_pipeline(StandardScaler(), ExtraTreesRegressor(n_estimators=5))
    first, again, other = (
        HCMRegressor(backbone, random_state=seed).fit(X[::2], y[::2]).predict(X[1::2])
        for seed in (7, 7, np.random.RandomState(8))
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_sample_weight_passes_through(diabetes):
    X, y = diabetes
    weights = np.where(y > 150, 5.0, 0.0)
    for backbone in (Ridge(), make_pipeline(StandardScaler(), Ridge()), HistGradientBoostingRegressor(max_iter=20)):
        weighted = HCMRegressor(backbone).fit(X, y, sample_weight=weights).predict(X)
        subset = HCMRegressor(backbone).fit(X[y > 150], y[y > 150]).predict(X)
        assert (
            np.abs(weighted - subset).mean()
            < 0.25 * np.abs(HCMRegressor(backbone).fit(X, y).predict(X) - subset).mean()
        )


def test_a_model_with_a_wrong_backbone_can_still_be_shown():
    assert "trees" in HCMRegressor("trees")._repr_html_()


def test_missing_features_are_allowed_where_the_backbone_allows_them(diabetes):
    X, y = diabetes
    holed = X.copy()
    holed[::7, 2] = np.nan
    assert np.isfinite(HCMRegressor(small_forest()).fit(holed, y).predict(holed)).all()
    for rows in (holed, pd.DataFrame(holed)):
        with pytest.raises(InvalidInputError, match="contains NaN"):
            HCMRegressor(Ridge()).fit(rows, y)


@pytest.mark.parametrize(
    "estimator", ["trees", 3, ExtraTreesRegressor, StandardScaler(), ExtraTreesClassifier(), NotAnEstimator()]
)
@pytest.mark.parametrize("HCM", [HCMRegressor, HCMClassifier])
def test_a_backbone_that_is_not_a_regressor_is_rejected(HCM, estimator):
    with pytest.raises(InvalidTypeError, match="must be a regressor"):
        HCM(estimator).fit(ONE, [0, 1, 0, 1])


@pytest.mark.parametrize(
    "backbone",
    [
        make_pipeline(SimpleImputer(), Ridge()),
        GridSearchCV(make_pipeline(SimpleImputer(), Ridge()), {"ridge__alpha": [1.0, 10.0]}, cv=2),
        TransformedTargetRegressor(make_pipeline(SimpleImputer(), Ridge())),
    ],
    ids=lambda backbone: type(backbone).__name__,
)
def test_pipelines_and_searches_may_handle_missing_values_themselves(backbone, diabetes):
    X, y = diabetes
    holed = X.copy()
    holed[::7, 2] = np.nan
    assert HCMRegressor(backbone).fit(holed, y).predict(holed).shape == y.shape


def test_weights_reach_the_regressor_inside_another(diabetes):
    X, y = diabetes
    weights = np.where(y > 150, 1.0, 0.0)
    search = GridSearchCV(Ridge(), {"alpha": [1.0]}, cv=2)
    for backbone in (TransformedTargetRegressor(Ridge()), search):
        weighted = HCMRegressor(backbone).fit(X, y, sample_weight=weights).predict(X)
        assert weighted.mean() > HCMRegressor(backbone).fit(X, y).predict(X).mean() + 20
    with pytest.raises(InvalidInputError, match="The backbone GridSearchCV of HCMRegressor takes no sample_weight"):
        HCMRegressor(search, frames="target").fit(X, y, sample_weight=weights)


def test_a_regressor_that_cannot_be_fitted_per_column_is_rejected(diabetes):
    X, y = diabetes
    with pytest.raises(InvalidTypeError, match="StackingRegressor is for one output"):
        HCMRegressor(StackingRegressor([("ridge", Ridge())])).fit(X, np.column_stack([y, y]))


class Fixed(RegressorMixin, BaseEstimator):
    """A regressor that predicts the answer it was given."""

    def __init__(self, answer=None):
        self.answer = answer

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X, y):
        return self

    def predict(self, X):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.full((4, 4), np.nan), "hold NaN or infinity"),
        (np.ones(4), r"expected 4 columns.* shape \(4,\)"),
        (np.ones((4, 3)), r"expected 4 columns.* shape \(4, 3\)"),
    ],
)
def test_an_error_names_a_backbone_that_predicts_bad_values(answer, message):
    model = HCMRegressor(Fixed(answer)).fit(ONE, Y4)
    with pytest.raises(InvalidInputError, match=f"The backbone Fixed of HCMRegressor could not predict: .*{message}"):
        model.predict(ONE)


def test_an_error_inside_the_backbone_names_it(diabetes):
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    with pytest.raises(InvalidInputError, match="The backbone Ridge of HCMRegressor could not be fitted"):
        HCMRegressor(Ridge(alpha=-1.0)).fit(X, y)
    with pytest.raises(InvalidInputError, match="could not convert string to float"):
        HCMRegressor(Ridge()).fit(X.assign(ward="north"), y)
    with pytest.raises(InvalidInputError, match="contains infinity"):
        HCMRegressor(Ridge()).fit(X.assign(ward="north", bmi=np.inf), y)


@pytest.mark.parametrize("random_state", ["x", 1.5, -1])
def test_a_bad_seed_is_rejected(random_state):
    with pytest.raises(InvalidInputError, match="'random_state' parameter of HCMRegressor"):
        HCMRegressor(random_state=random_state).fit(ONE, Y4)


def test_a_numpy_seed_is_accepted(diabetes):
    X, y = diabetes
    trees = ExtraTreesRegressor(n_estimators=5)
    first, second = (HCMRegressor(trees, random_state=seed).fit(X, y).predict(X) for seed in (3, np.int64(3)))
    np.testing.assert_array_equal(first, second)


def test_a_backbone_that_predicts_float32_is_accepted(diabetes):
    X, y = diabetes
    gaussian = GaussianProcessRegressor(alpha=1.0, optimizer=None)
    assert HCMRegressor(gaussian).fit(X.astype(np.float32), y.astype(np.float32)).predict(X).dtype == np.float64
