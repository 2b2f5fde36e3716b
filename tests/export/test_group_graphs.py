"""Graphs of models that are calibrated by group, or kept up to date with labels, and those that cannot be exported."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from onsphere import HCMClassifier, HCMRegressor, InvalidInputError, export_onnx
from onsphere.export import prepare_inputs
from onsphere.export.onnx_file import open_graph
from onsphere.table import fit_table

rng = np.random.default_rng(0)


def draw(n):
    X = rng.normal(size=(n, 3))
    X[:, 2] = rng.integers(3, size=n)
    return X, X[:, 0] + (0.2 + X[:, 2]) * rng.normal(size=n)


@pytest.fixture(scope="module")
def model():
    X, y = draw(300)
    return HCMRegressor(Ridge(), random_state=0).fit(X, y)


def run(path, X):
    session, metadata = open_graph(path)
    return dict(zip(metadata["outputs"], session.run(None, prepare_inputs(metadata["inputs"], X)), strict=True))


@pytest.mark.parametrize("groups", ["prediction", "novelty", 0, 2])
def test_groups_are_in_the_graph(model, groups, tmp_path):
    X, y = draw(1000)
    model.calibrate(X, y, groups=groups).update(*draw(100))
    new = draw(200)[0]
    export_onnx(model, tmp_path / "model.onnx", X=new, coverage=0.8)
    answers, expected = run(tmp_path / "model.onnx", new), model.assess(new, coverage=0.8)
    np.testing.assert_allclose(answers["lower"], expected.lower)
    np.testing.assert_allclose(answers["upper"], expected.upper)
    widths = (expected.upper - expected.lower) / expected.sigma
    assert len(np.unique(widths.round(6))) > 1


@pytest.mark.parametrize("tails", ["symmetric", "equal"])
@pytest.mark.parametrize("width", ["noise", "flat"])
def test_the_width_that_labels_chose_is_in_the_graph(model, width, tails, tmp_path):
    model.calibrate(*draw(300)).update(*draw(50))
    model.calibration_ = model.calibration_.use_width(width)
    new = 3 * draw(200)[0]
    export_onnx(model, tmp_path / "model.onnx", X=new, tails=tails)
    answers, expected = run(tmp_path / "model.onnx", new), model.assess(new, tails=tails)
    np.testing.assert_allclose(answers["lower"], expected.lower)
    np.testing.assert_allclose(answers["upper"], expected.upper)


def test_missing_values_and_unknown_levels_of_a_column(tmp_path):
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline

    X, y = draw(900)
    X[::5, 2] = X[::7, 0] = np.nan
    model = HCMRegressor(make_pipeline(SimpleImputer(), Ridge()), frames="target").fit(X[:300], y[:300])
    for column in (0, 2):
        model.calibrate(X[300:], y[300:], groups=column)
        export_onnx(model, tmp_path / "model.onnx", X=X[:100])
        np.testing.assert_allclose(run(tmp_path / "model.onnx", X[:100])["lower"], model.assess(X[:100]).lower)
    X[0, 2] = 7.0
    assert np.isnan(run(tmp_path / "model.onnx", X[:1])["lower"]).all()
    is_known = ~np.isnan(X[:, 0])
    model.calibrate(X[is_known], y[is_known], groups=0)
    export_onnx(model, tmp_path / "model.onnx", X=X[is_known][:50])
    assert np.isnan(run(tmp_path / "model.onnx", X[~is_known][:3])["upper"]).all()


def test_columns_of_a_table(tmp_path):
    X, y = draw(900)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, region=np.array(["n", "s", "w"])[X[:, 2].astype(int)])
    frame.loc[::4, "region"] = None
    fit = fit_table(frame.drop(columns="c"), ["y"], backbone="kernel", groups="region")
    export_onnx(fit.model, tmp_path / "model.onnx", summary=fit.summary())
    export_onnx(fit.model, tmp_path / "model.onnx", X=fit.X_test)
    answers = run(tmp_path / "model.onnx", fit.X_test)
    np.testing.assert_allclose(answers["lower"], fit.model.assess(fit.X_test).lower)
    named = HCMRegressor(Ridge(), frames="target").fit(frame[["a", "c"]][:300], y[:300])
    named.calibrate(frame[["a", "c"]][300:], y[300:], groups="c")
    export_onnx(named, tmp_path / "model.onnx", X=frame[["a", "c"]])


def test_other_groups_are_refused(model, tmp_path):
    X, y = draw(300)
    for groups in (X[:, 2], lambda X: X[:, 2]):
        model.calibrate(X, y, groups=groups)
        with pytest.raises(InvalidInputError, match="groups that a graph can find"):
            export_onnx(model, tmp_path / "model.onnx", X=X)
    labels = rng.integers(3, size=300)
    classifier = HCMClassifier(Ridge()).fit(X, labels)
    X, labels = draw(300)[0], rng.integers(3, size=300)
    for options in ({"groups": "class"}, {"set_penalty": 0.1}):
        with pytest.raises(InvalidInputError, match="sets have one limit"):
            export_onnx(classifier.calibrate(X, labels, **options), tmp_path / "model.onnx", X=X)
    assert not (tmp_path / "model.onnx").exists()
