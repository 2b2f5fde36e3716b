"""Models and graphs behind the service, and their replacement."""

import asyncio
import os
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from onsphere import HCMRegressor, InvalidInputError, MissingExtraError, load
from onsphere.export import export_onnx
from onsphere.export.deployed import open_deployed
from onsphere.service import Settings
from onsphere.service.answers import answer_rows
from onsphere.service.served_model import ServedModel


def test_graphs_of_arrays_classes_and_several_outputs(models, tmp_path):
    X = 2 * np.random.default_rng(5).normal(size=(40, 2))
    for name in ("array", "several", "classes"):
        model = load(models[name])
        rows = pd.DataFrame(X, columns=["a", "b"]) if name == "classes" else X
        export_onnx(model, tmp_path / f"{name}.onnx", X=rows, coverage=0.8)
        engine = open_deployed(tmp_path / f"{name}.onnx")
        names = [column.name for column in engine.facts.columns]
        found, expected = (
            engine.assess(dict(zip(names, X.T, strict=True)), coverage=0.8),
            model.assess(rows, coverage=0.8),
        )
        if name == "classes":
            assert found.value.tolist() == expected.value.tolist()
            np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-9)
        else:
            np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
        for field in ("noise", "novelty", "missed"):
            np.testing.assert_allclose(getattr(found, field), getattr(expected, field), atol=1e-9)
        np.testing.assert_array_equal(found.novelty_p_value, expected.novelty_p_value)
        assert found.reason.tolist() == expected.reason.tolist()
        assert {"", "uncertain and novel"} < set(found.reason)
        answers = answer_rows(found, engine.facts)
        assert [row["reason"] is None for row in answers] == expected.accepted.tolist()
        assert {"noise", "novelty", "novelty_p_value"} <= answers[0].keys()
        described, own = engine.facts.describe(), open_deployed(models[name]).facts.describe()
        for fact in ("novelty_threshold", "novelty_rule", "frames"):
            assert described[fact] == own[fact] is not None
        assert described["novelty_band"] == pytest.approx(own["novelty_band"])
    assert open_deployed(tmp_path / "several.onnx").facts.targets == ("0", "1")
    with pytest.raises(InvalidInputError, match=r"coverage of 0\.8"):
        open_deployed(tmp_path / "array.onnx", coverage=0.9)


def test_a_graph_with_quantiles_is_served_without_them(models, tmp_path):
    X, model = np.random.default_rng(5).normal(size=(40, 2)), load(models["array"])
    export_onnx(model, tmp_path / "model.onnx", X=X, coverage=0.8, quantiles=[0.1, 0.9])
    found = open_deployed(tmp_path / "model.onnx").assess({"x0": X[:, 0], "x1": X[:, 1]}, coverage=0.8)
    np.testing.assert_allclose(found.upper, model.assess(X, coverage=0.8).upper, rtol=1e-9)


def test_onnxruntime_is_needed_for_graphs(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="onnxruntime"):
        open_deployed(tmp_path / "model.onnx")


def test_a_file_that_cannot_be_opened_is_reported(models, tmp_path):
    path = tmp_path / "m.onsphere"
    path.write_bytes(models["array"].read_bytes())
    served = ServedModel(Settings(str(path), trial_timeout=300.0))
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidInputError, match="which is no file"):
        asyncio.run(served.reload(None))
    assert "which is no file" in served.trouble
    served.live.close()


def test_a_model_with_other_steps_has_no_levels(tmp_path):
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X = np.random.default_rng(0).normal(size=(30, 1))
    path = HCMRegressor(make_pipeline(StandardScaler(), Ridge())).fit(X, X[:, 0]).save(tmp_path / "m.onsphere")
    assert open_deployed(path).facts.levels == {}


def test_a_served_model_survives_a_file_that_is_gone(models, tmp_path):
    model = shutil.copy(models["table"], tmp_path / "model.onsphere")
    served = ServedModel(Settings(str(model), trial_timeout=300.0))
    os.unlink(model)
    assert not served.has_changed()
    assert np.isfinite(served.loaded_at)
    served.live.close()
