"""Boosters in a graph: the same leaves as the libraries reach, missing values too, and clear errors for the rest."""

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostRegressor
from lightgbm import LGBMRegressor
from sklearn.frozen import FrozenEstimator
from xgboost import XGBRegressor

from onsphere import HCMRegressor, InvalidTypeError, export_onnx
from onsphere.export.booster_graphs import sum_booster

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 3)).round(2)
Y = X[:, 0] + X[:, 1] ** 2 + 0.1 * rng.normal(size=400)
HOLED = np.where(rng.random(X.shape) < 0.1, np.nan, X)
FEW = {"n_estimators": 12, "n_jobs": 1}
CAT = {"iterations": 12, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
LIGHT = {"verbose": -1, **FEW}


def export(model, path, rows=X, **options):
    fitted = HCMRegressor(model, **options).fit(rows, Y)
    return export_onnx(fitted, path / "model.onnx", X=rows)


@pytest.mark.parametrize("rows", [X, HOLED], ids=["whole", "with missing values"])
@pytest.mark.parametrize(
    "model",
    [LGBMRegressor(**LIGHT), XGBRegressor(**FEW), CatBoostRegressor(**CAT)],
    ids=lambda model: type(model).__name__,
)
def test_every_row_reaches_the_leaf_of_the_library(model, rows, tmp_path):
    """Values are rounded to hundredths, so many lie exactly on a threshold."""
    assert export(model, tmp_path, rows).relative["value"] < 1e-6


@pytest.mark.parametrize("model", [LGBMRegressor(**LIGHT), XGBRegressor(**FEW), CatBoostRegressor(**CAT)])
def test_rows_with_missing_values_that_training_did_not_have(model, tmp_path):
    fitted = HCMRegressor(FrozenEstimator(model.fit(X, Y))).fit(HOLED, Y)
    assert export_onnx(fitted, tmp_path / "model.onnx", X=HOLED).relative["value"] < 1e-6


def test_several_columns_and_early_stopping(tmp_path):
    assert export(XGBRegressor(**FEW), tmp_path, frames="target").relative["value"] < 1e-6
    assert export(LGBMRegressor(**LIGHT), tmp_path, frames="target").relative["value"] < 1e-9
    stopped = XGBRegressor(n_estimators=500, n_jobs=1, early_stopping_rounds=2)
    stopped.fit(X[:300], Y[:300], eval_set=[(X[300:], Y[300:])], verbose=False)
    assert stopped.best_iteration < 499
    assert export(FrozenEstimator(stopped), tmp_path).relative["value"] < 1e-6
    assert export(CatBoostRegressor(**CAT, depth=1), tmp_path).relative["value"] < 1e-9
    assert export(LGBMRegressor(**LIGHT, min_child_samples=500), tmp_path).relative["value"] < 1e-9


CATEGORIES = pd.DataFrame(X, columns=list("abc")).assign(c=pd.Categorical(rng.choice(["u", "v", "w"], size=400)))


@pytest.mark.parametrize(
    ("model", "rows", "message"),
    [
        (LGBMRegressor(**LIGHT, objective="poisson"), X, "objective=poisson"),
        (LGBMRegressor(**LIGHT, boosting_type="rf", subsample=0.5, subsample_freq=1), X, "boosting='rf'"),
        (LGBMRegressor(**LIGHT, linear_tree=True), X, "linear_tree"),
        (LGBMRegressor(**LIGHT, zero_as_missing=True), X, "zeros taken for missing values"),
        (XGBRegressor(**FEW, objective="count:poisson"), X, "objective=count:poisson"),
        (XGBRegressor(**FEW, enable_categorical=True, max_cat_to_onehot=1), CATEGORIES, "categorical features"),
        (CatBoostRegressor(**CAT, grow_policy="Lossguide"), X, "not symmetric"),
    ],
)
def test_boosters_that_cannot_be_exported(model, rows, message):
    target = np.abs(Y) + 50 * (CATEGORIES["c"] == "v")
    with pytest.raises(InvalidTypeError, match=message):
        sum_booster(None, model.fit(rows, target))
