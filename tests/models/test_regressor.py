"""HCMRegressor: predictions, scores and sigma in the unit of the target, and bad input."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import (
    ExtraTreesRegressor,
)
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onsphere import (
    Duplicate,
    HCMRegressor,
    InvalidInputError,
    Lift,
    NotFittedError,
    Polar,
    Torus,
)


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


def test_the_prediction_is_as_good_as_the_plain_backbone(diabetes):
    X, y = diabetes
    plain = small_forest().fit(X[::2], y[::2]).predict(X[1::2])
    ours = HCMRegressor(small_forest()).fit(X[::2], y[::2]).predict(X[1::2])
    assert np.sqrt(np.mean((ours - y[1::2]) ** 2)) < 1.05 * np.sqrt(np.mean((plain - y[1::2]) ** 2))


def test_sigma_is_the_noise_in_the_unit_of_the_target():
    """2,000 rows on each side leave a standard error of 1.6 %; noise of .6 deviations is read 2 % too small."""
    rng = np.random.default_rng(0)
    X = np.repeat([[0.0], [1.0]], 2000, axis=0)
    y = 1000.0 + 100 * X[:, 0] + np.where(X[:, 0] > 0, 30.0, 10.0) * rng.normal(size=4000)
    value, sigma = HCMRegressor(small_forest()).fit(X, y).predict([[0.0], [1.0]], return_std=True)
    np.testing.assert_allclose(sigma, [10.0, 30.0], rtol=0.06)
    np.testing.assert_allclose(value, [1000.0, 1100.0], atol=2.0)


def test_uncertainty_grows_with_the_unit_of_the_target(diabetes):
    X, y = diabetes
    small = HCMRegressor(small_forest()).fit(X, y).assess(X)
    large = HCMRegressor(small_forest()).fit(X, 1024 * y).assess(X)
    np.testing.assert_allclose(large.uncertainty, 1024 * small.uncertainty, rtol=1e-12)
    np.testing.assert_allclose(large.sigma, 1024 * small.sigma, rtol=1e-12)


@pytest.mark.parametrize(
    ("embedding", "decoder"),
    [("lift", "product"), ("lift", "projective"), ("lift", "mean"), ("polar", "product"), ("torus", "product")],
)
def test_decoders_predict_the_target(embedding, decoder, five_outputs):
    X, Y = five_outputs
    model = HCMRegressor(small_forest(), embedding=embedding, decoder=decoder).fit(X[:250], Y[:250])
    for predicted, truth in zip(model.predict(X[250:]).T, Y[250:].T, strict=True):
        assert np.corrcoef(predicted, truth)[0, 1] > 0.7


@pytest.mark.parametrize("score", ["distance", "anchored", "sigma", "violation", "signed"])
def test_scores_of_the_regressor(score, diabetes):
    X, y = diabetes
    model = HCMRegressor(small_forest(), frames="target", uncertainty_score=score).fit(X[::2], y[::2])
    result = model.assess(X[1::2])
    expected = {
        "distance": result.magnitude * np.abs(result.direction_norm - 1) * y[::2].std(),
        "anchored": (result.magnitude * np.abs(result.direction_norm - 1) + result.anchor_residual) * y[::2].std(),
        "sigma": result.sigma,
        "violation": np.abs(result.direction_norm - 1),
        "signed": 1 - result.direction_norm,
    }[score]
    np.testing.assert_allclose(model.predict_uncertainty(X[1::2]), expected, rtol=1e-9, atol=1e-12)


def test_only_the_torus_scores_each_output(five_outputs):
    X, Y = five_outputs
    noisy = Y.copy()
    noisy[:, 2] = np.random.default_rng(1).normal(size=300)
    model = HCMRegressor(small_forest(), embedding=Torus((1.0, 2.0))).fit(X[:250], noisy[:250])
    per_output = model.predict_uncertainty_per_output(X[250:])
    assert per_output.shape == (50, 5)
    assert per_output.mean(axis=0).argmax() == 2
    with pytest.raises(InvalidInputError, match="needs embedding='torus'"):
        HCMRegressor(small_forest()).fit(X, Y).predict_uncertainty_per_output(X)


def test_anchored_sees_a_shift_of_the_input(diabetes):
    X, y = diabetes
    model = HCMRegressor(make_pipeline(StandardScaler(), Ridge()), uncertainty_score="anchored").fit(X, y)
    shifted = X + np.random.default_rng(0).normal(size=X.shape) * 5 * X.std(axis=0)
    assert np.median(model.predict_uncertainty(shifted)) > 3 * np.median(model.predict_uncertainty(X))


def test_frames_keep_their_names_and_mixed_columns_reach_the_pipeline(diabetes):
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    frame = X.assign(ward=np.where(X["sex"] > 0, "north", "south"))
    columns = make_column_transformer((OneHotEncoder(), ["ward"]), remainder="passthrough")
    model = HCMRegressor(make_pipeline(columns, small_forest())).fit(frame, y)
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    assert model.predict(frame).shape == (442,)
    with pytest.raises(InvalidInputError, match="Feature names unseen at fit time"):
        model.predict(frame.rename(columns={"bmi": "weight"}))


def test_a_frame_without_a_single_number_is_taken_where_the_pipeline_can(diabetes):
    _, y = diabetes
    frame = pd.DataFrame({"ward": np.where(y > 150, "north", "south"), "day": np.where(y > 200, "mon", "tue")})
    model = HCMRegressor(make_pipeline(OneHotEncoder(), small_forest())).fit(frame, y)
    assert len(np.unique(model.predict(frame))) == 3


def test_scikit_learn_tools_work(diabetes):
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    pipeline = make_pipeline(StandardScaler(), HCMRegressor(small_forest(), embedding=Lift()))
    pipeline.set_output(transform="pandas")
    search = GridSearchCV(pipeline, {"hcmregressor__embedding__anchor": [1.0, 3.0]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.3
    assert search.best_estimator_[-1].feature_names_in_.tolist() == X.columns.tolist()
    assert cross_val_predict(HCMRegressor(small_forest()), X, y, cv=3).shape == (442,)
    copy = clone(HCMRegressor(small_forest(), embedding=Polar(standardize=False), decoder="product"))
    assert copy.get_params()["embedding__standardize"] is False


def test_a_constant_target_has_no_uncertainty(diabetes):
    X, _ = diabetes
    for embedding in ("lift", "duplicate", "torus"):
        result = HCMRegressor(small_forest(), embedding=embedding).fit(X, np.full(442, 4.2)).assess(X)
        np.testing.assert_allclose(result.value, 4.2)
        np.testing.assert_allclose(result.uncertainty, 0, atol=1e-12)


ONE = np.ones((4, 2))
Y4 = np.arange(4.0)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: HCMRegressor().fit(ONE, [1.0, 2.0, np.nan, 3.0]), "Input y contains NaN"),
        (lambda: HCMRegressor().fit(ONE, [1.0, 2.0, np.inf, 3.0]), "Input y contains infinity"),
        (lambda: HCMRegressor().fit(ONE * np.inf, Y4), "contains infinity"),
        (lambda: HCMRegressor().fit(pd.DataFrame(ONE * np.inf), Y4), "contains infinity"),
        (lambda: HCMRegressor().fit(ONE, None), "target y is None"),
        (lambda: HCMRegressor().fit(ONE, np.ones((4, 2, 2))), r"shape \(n,\) or \(n, D\)"),
        (lambda: HCMRegressor().fit(ONE, np.ones((4, 0))), "D ≥ 1"),
        (lambda: HCMRegressor().fit(ONE, ["a", "b", "c", "d"]), "numeric target y"),
        (lambda: HCMRegressor().fit(ONE, np.array([1, "b", None, 2.0], dtype=object)), "target y of numbers"),
        (lambda: HCMRegressor().fit(ONE, Y4 * 1j), "Complex data not supported"),
        (lambda: HCMRegressor().fit(ONE, np.ma.masked_greater(Y4, 2)), "without masked entries. Got 1"),
        (lambda: HCMRegressor().fit(np.ma.masked_less(np.eye(4), 1), Y4), "without masked entries. Got 12"),
        (lambda: HCMRegressor().fit(ONE, pd.DataFrame(ONE, columns=["p", "p"])), "columns of y with different names"),
        (lambda: HCMRegressor().fit(ONE, Y4[:3]), "inconsistent numbers of samples"),
        (lambda: HCMRegressor().fit(ONE[:1], Y4[:1]), "minimum of 2 is required"),
        (lambda: HCMRegressor().fit(pd.DataFrame(ONE[:1]), Y4[:1]), "minimum of 2 is required"),
        (lambda: HCMRegressor().fit(np.ones((0, 2)), []), "0 sample"),
        (lambda: HCMRegressor().fit(pd.DataFrame(ONE, columns=["a", "a"]), Y4), "more than one column named a"),
        (lambda: HCMRegressor().fit(ONE, Y4).predict(np.ones((2, 3))), "3 features, but HCMRegressor is expecting 2"),
        (lambda: HCMRegressor(embedding="sphere").fit(ONE, Y4), "'embedding' parameter .* one of 'lift'"),
        (lambda: HCMRegressor(embedding=3).fit(ONE, Y4), "'embedding' parameter"),
        (lambda: HCMRegressor(embedding=Duplicate).fit(ONE, Y4), "'embedding' parameter"),
        (lambda: HCMRegressor(decoder="mode").fit(ONE, Y4), "'decoder' parameter"),
        (lambda: HCMRegressor(embedding="torus", decoder="projective").fit(ONE, Y4), "'decoder' parameter"),
        (lambda: HCMRegressor(uncertainty_score="best").fit(ONE, Y4), "'uncertainty_score' parameter"),
        (lambda: HCMRegressor(embedding="torus", uncertainty_score="anchored").fit(ONE, Y4), "'uncertainty_score'"),
        (lambda: HCMRegressor(KNeighborsRegressor()).fit(ONE, Y4, sample_weight=Y4), "takes no sample_weight"),
        (lambda: HCMRegressor().fit(ONE, Y4, sample_weight=[1, 1, 1, -1]), "[Nn]egative"),
        (lambda: HCMRegressor().fit(ONE, Y4, sample_weight=[0, 0, 0, 0]), "at least one sample_weight above zero"),
    ],
)
def test_bad_input_is_rejected(attempt, message):
    with pytest.raises(InvalidInputError, match=message):
        attempt()


@pytest.mark.parametrize(
    "method", ["predict", "assess", "predict_uncertainty", "predict_sigma", "predict_uncertainty_per_output"]
)
def test_no_method_works_before_fit(method):
    with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
        getattr(HCMRegressor(), method)(ONE)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(
    ("rows", "targets"),
    [
        (np.ones((6, 2)), np.full(6, np.nan)),
        (np.ones((6, 10)), ["a", "b", "c", "d", "e", "f"]),
        (np.full((6, 10), 1e300), np.arange(6.0)),
    ],
    ids=["other width", "no numbers", "backbone fails"],
)
def test_a_failed_fit_leaves_the_fitted_model_as_it_was(diabetes, rows, targets):
    X, y = diabetes
    model = HCMRegressor(small_forest()).fit(X, y)
    before = model.predict(X)
    with pytest.raises(InvalidInputError):
        model.fit(rows, targets)
    np.testing.assert_array_equal(model.predict(X), before)


def test_changing_parameters_after_fit_gives_right_answers_or_an_error(diabetes):
    X, y = diabetes
    model = HCMRegressor(small_forest()).fit(X, y)
    for decoder in ("product", "projective"):
        assert np.corrcoef(model.set_params(decoder=decoder).predict(X), y)[0, 1] > 0.8
    without_mean = HCMRegressor(small_forest(), decoder="product").fit(X, y).set_params(decoder="mean")
    with pytest.raises(InvalidInputError, match="carry a mean"):
        without_mean.predict(X)
    with pytest.raises(InvalidInputError, match="'uncertainty_score' parameter"):
        model.set_params(uncertainty_score="bogus").predict_uncertainty(X)


@pytest.mark.parametrize("unit", [1e-200, 1e-30, 1e30, 1e160])
def test_targets_in_any_unit_are_fitted(diabetes, unit):
    X, y = diabetes
    model = HCMRegressor(small_forest()).fit(X[::2], unit * y[::2])
    result = model.assess(X[1::2])
    assert np.corrcoef(result.value / unit, y[1::2])[0, 1] > 0.5
    assert 10 < np.median(result.sigma) / unit < 100


def test_scores_of_several_outputs_are_in_the_mean_square_unit():
    rng = np.random.default_rng(0)
    X = np.repeat([[0.0], [1.0]], 200, axis=0)
    Y = rng.normal(size=(400, 2)) * [1.0, 7.0] + 30 * X
    model = HCMRegressor(small_forest(), frames="target", uncertainty_score="violation").fit(X, Y)
    violation = model.predict_uncertainty(X[:1])
    result = model.assess(X[:1])
    unit = np.sqrt(np.mean(Y.var(axis=0)))
    u = model.set_params(uncertainty_score="distance").predict_uncertainty(X[:1])
    np.testing.assert_allclose(u, violation * result.magnitude * unit, rtol=1e-9)
    sigma = model.set_params(uncertainty_score="sigma").predict_uncertainty(X[:1])
    np.testing.assert_allclose(sigma, np.sqrt(np.mean(result.sigma**2, axis=1)), rtol=1e-12)


def test_a_constant_output_among_others_has_no_noise():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    noisy = 1e-3 * (X[:, 0] + 0.3 * rng.normal(size=200))
    result = HCMRegressor(small_forest()).fit(X, np.c_[noisy, np.full(200, 7.0)]).assess(X)
    assert (result.sigma[:, 1] == 0).all()
    assert (result.value[:, 1] == 7).all()
    assert result.uncertainty.max() < 1e-3


def test_weights_reach_the_standardisation(diabetes):
    X, y = diabetes
    weights = np.where(y > 150, 1.0, 0.0)
    for embedding in ("lift", "torus"):
        weighted = HCMRegressor(Ridge(), embedding=embedding).fit(X, y, sample_weight=weights)
        subset = HCMRegressor(Ridge(), embedding=embedding).fit(X[y > 150], y[y > 150])
        np.testing.assert_allclose(weighted.embedding_.center_, subset.embedding_.center_)
        np.testing.assert_allclose(weighted.embedding_.scale_, subset.embedding_.scale_)


def test_extrapolation_overshoots_and_is_uncertain():
    X = np.linspace(-1, 1, 50)[:, None]
    model = HCMRegressor(LinearRegression(), uncertainty_score="violation").fit(X, X[:, 0])
    result = model.assess(np.array([[0.5], [30.0]]))
    assert result.direction_norm[1] > 1
    assert result.uncertainty[1] > 10 * result.uncertainty[0]
