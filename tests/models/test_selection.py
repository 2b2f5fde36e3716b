"""Active learning: which rows are chosen, and that they teach more than others."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

from onsphere import FrozenHead, HCMClassifier, HCMRegressor, InvalidInputError, InvalidTypeError, select


def make_model(**settings):
    X = np.random.default_rng(0).uniform(0, 1, size=(200, 2))
    return HCMRegressor(KNeighborsRegressor(5), **settings).fit(X, X[:, 0])


def test_chosen_rows_are_unlike_the_training_rows_and_each_other():
    pool = np.vstack([np.full((50, 2), 0.5), np.full((50, 2), 4.0), np.full((50, 2), -4.0)])
    chosen = select(make_model(), pool, 4)
    assert sorted(chosen[:2] // 50) == [1, 2]
    assert len(set(chosen)) == 4


def test_more_rows_than_there_are_different_ones_are_the_most_novel():
    pool = np.repeat([[0.5, 0.5], [3.0, 3.0]], 5, axis=0)
    assert set(select(make_model(), pool, 10)) == set(range(10))


def test_noise_chooses_rows_where_errors_are_large():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(1000, 1))
    y = np.where(X[:, 0] > 0, 1.0, 0.05) * rng.normal(size=1000)
    pool = np.linspace(-1, 1, 101)[:, None]
    model = HCMRegressor(KNeighborsRegressor(20)).fit(X, np.column_stack([y, y]))
    assert (pool[select(model, pool, 20, by="noise"), 0] > 0).mean() > 0.9


def test_classes_are_selected_too():
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = HCMClassifier(Ridge()).fit(X, X[:, 0] > 0)
    assert select(model, [[0.0, 0.0], [50.0, 0.0]], 1).tolist() == [1]
    assert len(select(model, X, 3, by="noise")) == 3


def test_bad_input_says_what_to_do():
    model = make_model()
    with pytest.raises(InvalidInputError, match="'by' parameter of select"):
        select(model, [[0.0, 0.0]], 1, by="chance")
    with pytest.raises(InvalidInputError, match="'n' parameter of select"):
        select(model, [[0.0, 0.0]], 0)
    for by in ("novelty", "noise"):
        with pytest.raises(InvalidInputError, match=r"asked for 3 rows\. Got a pool of 1"):
            select(model, [[0.0, 0.0]], 3, by=by)
    with pytest.raises(InvalidInputError, match="with the frame 'input'"):
        select(make_model(frames="target"), [[0.0, 0.0]], 1)
    with pytest.raises(InvalidTypeError, match=r"needs an HCMRegressor or HCMClassifier\. Got FrozenHead"):
        select(FrozenHead(), [[0.0, 0.0]], 1)
