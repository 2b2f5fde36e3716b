"""Lengths of columns: found where they are known, by a gradient that is right, and of use to the kernel."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onsphere import HCMRegressor, export_onnx, load
from onsphere.models.choice import make_candidate
from onsphere.models.relevance import RelevanceScaler, compute_loss, find_length_scales, keep_lengths


def draw_process(n_rows, lengths, *, seed, n_columns=1, noise=0.1):
    """Draw rows, and functions of a Gaussian process with these lengths at them."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, len(lengths)))
    scaled = rows / lengths
    distances = np.sum((scaled[:, None] - scaled) ** 2, axis=-1)
    root = np.linalg.cholesky(np.exp(-0.5 * distances) + noise**2 * np.eye(n_rows))
    return rows, root @ rng.normal(size=(n_rows, n_columns))


def test_lengths_of_a_process_are_found():
    """Four draws: the logarithm of each length is met within .35, about three standard errors."""
    true = np.array([0.7, 2.0, 40.0])
    found = np.array([find_length_scales(*draw_process(250, true, seed=seed, n_columns=2)) for seed in range(4)])
    np.testing.assert_allclose(np.log(found[:, :2]), np.broadcast_to(np.log(true[:2]), (4, 2)), atol=0.35)
    assert (found[:, 2] > 5).all()  # rows are about 1.4 apart: it does not count


@pytest.mark.parametrize("n_lengths", [4, 1])
def test_the_gradient_is_that_of_the_loss(n_lengths):
    rng = np.random.default_rng(0)
    rows, target = rng.normal(size=(30, 4)), rng.normal(size=(30, 2))
    logs, step = rng.normal(size=n_lengths + 2) * 0.3, 1e-6
    gradient = compute_loss(logs, rows, target, 0.3)[1]
    for each, slope in zip(np.eye(len(logs)) * step, gradient, strict=True):
        ends = [compute_loss(logs + sign * each, rows, target, 0.3)[0] for sign in (-1, 1)]
        assert (ends[1] - ends[0]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_many_columns_share_one_length_and_few_rows_tell_none():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(80, 60))
    assert len(np.unique(find_length_scales(rows, rows[:, :1]))) == 1
    usual = np.sqrt(4 / 2)
    np.testing.assert_allclose(find_length_scales(rows[:9, :4], rows[:9, :1]), usual)
    np.testing.assert_allclose(find_length_scales(rows[:, :4], np.ones((80, 1))), usual)
    scaler = RelevanceScaler().fit(rows[:, :4])
    np.testing.assert_allclose(scaler.transform(rows[:, :4]).std(axis=0), 1 / usual)


def test_a_matrix_that_cannot_be_solved_is_no_error():
    rows = np.zeros((20, 2))  # all rows alike, and no noise that is worth the name
    loss, gradient = compute_loss(np.array([0.0, 0.0, 60.0, -60.0]), rows, np.ones((20, 1)), 0.0)
    assert loss == 1e12
    assert not gradient.any()


def test_a_kernel_by_relevance_errs_less_where_half_of_the_columns_say_nothing():
    errors = []
    for seed in range(3):
        X, y = make_friedman1(500, noise=1.0, random_state=seed)
        kernel = {"n_components": 200, "random_state": 0}
        plain = make_pipeline(StandardScaler(), Nystroem(**kernel), RidgeCV(np.logspace(-6, 2, 9)))
        ours = make_candidate("kernel").set_params(kernel__n_components=200, kernel__random_state=0)
        errors.append(
            [np.mean(np.abs(model.fit(X[:300], y[:300]).predict(X[300:]) - y[300:])) for model in (plain, ours)]
        )
    plain, ours = np.mean(errors, axis=0)
    assert ours < 0.75 * plain


def test_parts_of_the_rows_keep_the_lengths_of_all():
    X, y = make_friedman1(120, random_state=0)
    fitted = make_candidate("kernel").set_params(kernel__n_components=50).fit(X, y)
    copy = keep_lengths(clone(fitted), fitted).fit(X[:60], y[:60])
    np.testing.assert_array_equal(copy["scale"].lengths_, fitted["scale"].lengths_)
    fewer = keep_lengths(clone(fitted), fitted).fit(X[:60, :4], y[:60])
    assert len(fewer["scale"].lengths_) == 4
    assert keep_lengths(None, RidgeCV()) is None


def test_it_is_saved_and_exported(tmp_path):
    X, y = make_friedman1(120, random_state=0)
    kernel = make_candidate("kernel").set_params(kernel__n_components=50)
    model = HCMRegressor(kernel, random_state=0).fit(X[:80], y[:80]).calibrate(X[80:], y[80:])
    again = load(model.save(tmp_path / "model.onsphere"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    export_onnx(model, tmp_path / "model.onnx", X=X)
