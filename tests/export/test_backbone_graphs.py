"""Backbones that cannot be exported, and those that need no torch."""

import sys

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from onsphere import HCMClassifier, HCMRegressor, InvalidTypeError, MissingExtraError, export_onnx

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
y = X.sum(axis=1) + 0.1 * rng.normal(size=120)


class Own(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        self.width_ = y.shape[1]
        return self

    def predict(self, X):
        return np.ones((len(X), self.width_))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (Own(), "Got Own, which skl2onnx"),
        (GradientBoostingRegressor(n_estimators=2), "Got GradientBoostingRegressor"),
        (make_pipeline(Nystroem(kernel="poly", n_components=5), Ridge()), "Nystroem, with kernel='poly'"),
        (make_pipeline(SimpleImputer(add_indicator=True), Ridge()), "SimpleImputer, with an indicator"),
        (make_pipeline(SimpleImputer(missing_values=0), Ridge()), "SimpleImputer, with an indicator"),
        (
            make_pipeline(OneHotEncoder(sparse_output=False), Ridge()),
            "OneHotEncoder, which skl2onnx writes for",
        ),
        (HistGradientBoostingRegressor(max_iter=2, categorical_features=[0]), "categorical features"),
    ],
)
def test_backbones_that_cannot_be_exported_are_rejected_by_name(backbone, message, tmp_path):
    whole = np.round(np.abs(X))
    fitted = HCMRegressor(backbone, frames="target").fit(whole, y)
    with pytest.raises(InvalidTypeError, match=message):
        export_onnx(fitted, tmp_path / "model.onnx", X=whole)
    assert list(tmp_path.iterdir()) == []


def test_a_loss_with_another_link_is_rejected(tmp_path):
    fitted = HCMClassifier(HistGradientBoostingRegressor(max_iter=2, loss="poisson")).fit(X, y > 0)
    with pytest.raises(InvalidTypeError, match="loss='poisson'"):
        export_onnx(fitted, tmp_path / "model.onnx", X=X)


def test_networks_that_cannot_be_exported_are_rejected(tmp_path):
    torch = pytest.importorskip("torch")
    from onsphere.torch import TorchRegressor

    class Undecided(torch.nn.Linear):
        def forward(self, rows):
            return super().forward(rows) if rows.sum() > 0 else -super().forward(rows)

    path = tmp_path / "model.onnx"
    fitted = HCMRegressor(TorchRegressor(Undecided, max_epochs=1, random_state=0)).fit(X, y)
    with pytest.raises(InvalidTypeError, match=r"TorchRegressor, whose network torch.onnx cannot export"):
        export_onnx(fitted, path, X=X)
    mixed = HCMRegressor(TorchRegressor(max_epochs=1, mixed_precision=True, random_state=0)).fit(X, y)
    with pytest.raises(InvalidTypeError, match="mixed_precision=True"):
        export_onnx(mixed, path, X=X)


def test_a_package_that_networks_need_is_named(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from onsphere.torch import TorchRegressor

    fitted = HCMRegressor(TorchRegressor(max_epochs=1, random_state=0)).fit(X, y)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"network needs onnxscript.*onsphere\[export\]"):
        export_onnx(fitted, tmp_path / "model.onnx", X=X)


def test_a_model_without_a_network_is_exported_without_loading_torch(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "onsphere.torch", raising=False)
    export_onnx(HCMRegressor(Ridge()).fit(X, y), tmp_path / "model.onnx", X=X)
    assert "onsphere.torch" not in sys.modules
