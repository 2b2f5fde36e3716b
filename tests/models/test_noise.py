"""The error frame: errors of rows left out, and the local noise that is learned from them."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onsphere import HCMRegressor, OnsphereWarning
from onsphere.models.noise import fit_error_frame, has_mean_leaves, predict_left_out, read_noise
from onsphere.sphere import Lift


def make_uneven(n, seed=0):
    """Return rows whose noise is .1 on the left and 1 on the right."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 2))
    return X, 3 * X[:, 1] + np.where(X[:, 0] < 0, 0.1, 1.0) * rng.normal(size=n)


@pytest.mark.parametrize(
    "backbone", [make_pipeline(StandardScaler(), KNeighborsRegressor(7)), ExtraTreesRegressor(100, min_samples_leaf=5)]
)
def test_noise_follows_the_noise_of_the_target(backbone):
    X, y = make_uneven(3000)
    noise = HCMRegressor(backbone, random_state=0).fit(X, y).predict_noise(X)
    quiet, loud = np.median(noise[X[:, 0] < -0.1]), np.median(noise[X[:, 0] > 0.1])
    # The error of the model itself comes on top of the noise: 1.0·√(1 + 1/7) for seven neighbours.
    assert 0.1 < quiet < 0.35
    assert 0.75 < loud < 1.3


def test_each_output_has_a_noise_of_its_own():
    X, y = make_uneven(2000)
    rng = np.random.default_rng(1)
    Y = np.column_stack([y, 10 * X[:, 1] + 2 * rng.normal(size=2000)])
    noise = HCMRegressor(KNeighborsRegressor(20)).fit(X, Y).predict_noise(X)
    assert noise.shape == (2000, 2)
    left = X[:, 0] < -0.1
    assert np.median(noise[left, 0]) < 0.4
    assert np.median(noise[left, 1]) == pytest.approx(2, rel=0.2)


def test_the_contrast_of_the_noise_is_that_of_errors_left_out():
    # Columns that tell nothing make leaves that mix rows of both sides.
    (X, y), (new, truth) = make_uneven(400), make_uneven(4000, seed=1)
    X, new = (np.hstack([rows, np.random.default_rng(2).normal(size=(len(rows), 10))]) for rows in (X, new))
    model = HCMRegressor(Ridge()).fit(X, y)
    frames = model._frames
    error, quiet = truth - model.predict(new), new[:, 0] < 0

    def measure():
        noise = model.predict_noise(new)
        loss = np.mean(np.log(noise) + 0.5 * (error / noise) ** 2)
        return loss, np.median(noise[quiet]), np.median(noise[~quiet])

    loss, low, high = measure()
    model._frames = replace(frames, error=replace(frames.error, level=None))  # as the trees say it
    blurred_loss, blurred_low, blurred_high = measure()
    assert loss < blurred_loss
    assert 0.09 < low < blurred_low
    assert blurred_high < high < 1.1
    for other in (HCMRegressor(Ridge()).fit(X[:299], y[:299]), HCMRegressor(Ridge(), shape="auto").fit(X, y)):
        assert other._frames.error.level is None


def test_sigma_of_a_forest_is_scaled_to_its_errors_on_fresh_rows():
    X, y = make_uneven(2000)
    model = HCMRegressor(random_state=0).fit(X[:1000], y[:1000])
    ratio = np.abs(model.predict(X[1000:]) - y[1000:]) / model.predict_noise(X[1000:])
    # 90 % of errors within 1.645 noises, as for a Gaussian; .9 ± three standard errors, and what scaling leaves.
    assert np.mean(ratio < 1.645) == pytest.approx(0.9, abs=0.04)
    alone = HCMRegressor(random_state=0, frames="target").fit(X[:1000], y[:1000])
    assert not np.allclose(alone.predict_sigma(X), model.predict_sigma(X))
    np.testing.assert_array_equal(alone.predict(X), model.predict(X))


def test_too_few_rows_leave_sigma_as_it_is():
    X, y = make_uneven(30)
    model = HCMRegressor(random_state=0, frames=("target", "error")).fit(X, y)
    np.testing.assert_array_equal(
        model.predict_noise(X), HCMRegressor(random_state=0, frames="target").fit(X, y).predict_sigma(X)
    )


def test_wide_rows_are_left_out_of_the_second_model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 150))
    model = HCMRegressor(Ridge(10.0)).fit(X, X[:, 0] + rng.normal(size=200))
    assert model._frames.error.trees.n_features_in_ == 3  # prediction, sigma, shortfall
    assert (model.predict_noise(X) > 0).all()


# --- rows left out ---


def fit_forest(forest, X, columns, weights=None):
    return clone(forest).fit(X, columns, sample_weight=weights)


@pytest.mark.parametrize("weights", [None, np.linspace(0.5, 2, 80)])
def test_leaving_a_row_out_of_its_leaves_is_the_mean_of_the_others(weights):
    X, y = make_uneven(80)
    columns = np.column_stack([y, X[:, 0]])
    forest = fit_forest(ExtraTreesRegressor(10, min_samples_leaf=3, random_state=0), X, columns, weights)
    found = predict_left_out(None, forest, X, columns, weights, {})
    counted = np.ones(80) if weights is None else weights
    leaves = forest.apply(X)
    for row in range(0, 80, 9):
        means = []
        for tree in range(10):
            others = (leaves[:, tree] == leaves[row, tree]) & (np.arange(80) != row)
            means.append(np.average(columns[others], axis=0, weights=counted[others]))
        np.testing.assert_allclose(found[row], np.mean(means, axis=0))


def test_bootstrap_forests_predict_rows_out_of_bag():
    X, y = make_uneven(100)
    forest = RandomForestRegressor(60, oob_score=True, random_state=0).fit(X, np.column_stack([y, -y]))
    found = predict_left_out(None, forest, X, np.column_stack([y, -y]), None, {})
    np.testing.assert_allclose(found, forest.oob_prediction_)


def test_a_row_that_no_tree_leaves_out_is_predicted_as_it_is():
    X, y = make_uneven(50)
    columns = y[:, None] * [1.0, 2.0]
    forest = ExtraTreesRegressor(1, max_leaf_nodes=12, random_state=0).fit(X, columns)
    leaves = forest.apply(X)[:, 0]
    alone = np.bincount(leaves)[leaves] == 1
    assert 0 < alone.mean() <= 0.1
    found = predict_left_out(None, forest, X, columns, None, {})
    np.testing.assert_allclose(found[alone], forest.predict(X[alone]))
    assert (found[~alone] != forest.predict(X[~alone])).any()


def test_a_forest_with_a_row_in_each_leaf_is_fitted_without_each_fold():
    X, y = make_uneven(600)
    noise = HCMRegressor(ExtraTreesRegressor(30, random_state=0)).fit(X[:300], y[:300]).predict_noise(X[300:])
    assert noise.mean() > 0.2


def test_the_errors_of_rows_without_weight_do_not_count():
    X, y = make_uneven(300)
    weights, wild = np.repeat([1.0, 0.0], 150), y.copy()
    wild[150:] = 1e6
    for backbone in (ExtraTreesRegressor(30, min_samples_leaf=2, random_state=0), Ridge()):
        noise = HCMRegressor(backbone).fit(X, wild, sample_weight=weights).predict_noise(X[:150])
        assert noise.max() < 10


def test_forests_whose_leaves_are_no_means_are_fitted_again():
    assert has_mean_leaves(RandomForestRegressor())
    for other in (RandomForestRegressor(criterion="absolute_error"), ExtraTreesRegressor(monotonic_cst=[1]), Ridge()):
        assert not has_mean_leaves(other)


def test_other_backbones_are_fitted_without_each_fold():
    X, y = make_uneven(200)
    columns = np.column_stack([y, y])
    nearest = KNeighborsRegressor(1).fit(X, columns)
    found = predict_left_out(None, nearest, X, columns, None, {})
    # A model that had seen the row would return its target.
    assert np.abs(found - columns).min() > 0
    weighted = predict_left_out(None, Ridge().fit(X, columns), X, columns, np.ones(200), {})
    np.testing.assert_allclose(weighted, predict_left_out(None, Ridge().fit(X, columns), X, columns, None, {}))


# --- formulas ---


def test_columns_of_lifted_errors_give_their_standard_deviation():
    rng = np.random.default_rng(0)
    error = rng.normal(size=(100_000, 2)) * [0.3, 0.8]
    direction, magnitude = Lift(standardize=False).to_sphere(error[..., None])
    columns = np.concatenate([direction, magnitude[..., None]], axis=-1).reshape(len(error), 6).mean(axis=0)
    # Lift(3) is within 1 % for σ ≤ .3 and within 6 % for σ ≤ 1.
    np.testing.assert_allclose(read_noise(columns[None], 2)[0], [0.3, 0.8], rtol=0.06)
    # Signs cancel out, so that the first part of each direction is not needed.
    np.testing.assert_allclose(read_noise(columns[[[1, 2, 4, 5]]], 2)[0], [0.3, 0.8], rtol=0.06)


def test_outputs_without_errors_have_no_noise():
    value = np.column_stack([np.arange(50.0), np.zeros(50)])
    for learns in (False, True):
        frame = fit_error_frame(
            value, value, np.ones((50, 2)), value, None, spread=np.array([1.0, 0.0]), learns=learns, random_state=0
        )
        assert np.isfinite(frame.measure(value, value, np.ones((50, 2)), None)).all()


def test_a_small_corner_of_large_noise_is_found_among_very_few_rows():
    """Six of sixty rows: in leaves of ten they would be averaged with quiet ones."""
    rng = np.random.default_rng(0)
    rows = np.linspace(0, 1, 60)[:, None]
    value = np.zeros((60, 1))
    error = rng.normal(size=(60, 1)) * np.where(rows > 0.9, 10.0, 0.1)
    frame = fit_error_frame(rows, value, None, error, None, spread=np.ones(1), learns=True, random_state=0)
    noise = frame.measure(rows, value, None, None)[:, 0]
    assert noise[rows[:, 0] > 0.9].mean() > 12 * np.median(noise)


def test_a_backbone_that_cannot_learn_without_some_rows_keeps_its_own_sigma():
    X, y = make_uneven(100)
    frame = pd.DataFrame({"size": X[:, 0], "shop": ["rare", *["a", "b", "c"] * 33]})
    columns = make_column_transformer((OneHotEncoder(), ["shop"]), remainder="passthrough")
    backbone = make_pipeline(columns, Ridge())
    with pytest.warns(OnsphereWarning, match="takes sigma for the noise"):
        model = HCMRegressor(backbone).fit(frame, y)
    assert model._frames.error is None
    assert (model.predict_novelty(frame) < 1).all()


def test_fits_without_a_fold_do_not_repeat_their_warnings():
    class Loud(Ridge):
        def fit(self, X, y):
            warnings.warn(f"fitted on {len(y)} rows", UserWarning, stacklevel=2)
            return super().fit(X, y)

    X, y = make_uneven(100)
    with pytest.warns(UserWarning, match="rows") as caught:
        HCMRegressor(Loud()).fit(X, y)
    assert [str(each.message) for each in caught] == ["fitted on 100 rows"]


@pytest.mark.parametrize(("n_rows", "expected"), [(900, [720] * 5), (1_200, [600] * 2), (5_000, [2_500])])
def test_of_many_rows_fewer_are_left_out(n_rows, expected):
    fitted = []

    class CountedBoosting(HistGradientBoostingRegressor):
        def fit(self, X, y):
            fitted.append(len(X))
            return super().fit(X, y)

    model = HCMRegressor(CountedBoosting(max_iter=10)).fit(*make_uneven(n_rows))
    assert fitted == [n_rows, *expected]
    quiet, noisy = model.predict_noise(np.array([[-0.5, 0.0], [0.5, 0.0]]))
    assert noisy > 1.5 * quiet
