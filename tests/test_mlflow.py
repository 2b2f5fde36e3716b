"""The MLflow flavor, with a real MLflow on SQLite: log → load → serve gives what assess gives."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from lightgbm import LGBMRegressor
from sklearn.datasets import load_diabetes
from sklearn.frozen import FrozenEstimator

import onsphere.mlflow
from onsphere import AcceptShare, HCMRegressor, InvalidTypeError, MissingExtraError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow warns while it is imported
    import mlflow
    from mlflow.models import infer_signature
    from mlflow.pyfunc import scoring_server

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    mlflow.create_experiment("tests", artifact_location=(folder / "artifacts").as_uri())
    mlflow.set_experiment("tests")
    yield folder
    mlflow.set_tracking_uri("")


@pytest.fixture(scope="module")
def fitted():
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    plain = LGBMRegressor(n_estimators=20, n_jobs=1, verbose=-1).fit(X[:200], y[:200])
    model = HCMRegressor(FrozenEstimator(plain), calibration="cv").fit(X[200:400], y[200:400])
    return model.set_threshold(AcceptShare(0.9)), X[400:].reset_index(drop=True)


def test_a_model_that_is_logged_loaded_and_served_assesses_as_before(store, fitted):
    model, rows = fitted
    expected = model.assess(rows, coverage=0.8).to_frame()
    signature = infer_signature(rows, expected, params={"coverage": 0.9})
    with mlflow.start_run():
        logged = onsphere.mlflow.log_model(model, "uncertain", signature=signature)
    again = onsphere.mlflow.load_model(logged.model_uri)
    assert np.array_equal(again.assess(rows).uncertainty, model.assess(rows).uncertainty)
    pyfunc = mlflow.pyfunc.load_model(logged.model_uri)
    pd.testing.assert_frame_equal(pyfunc.predict(rows, params={"coverage": 0.8}), expected)
    client = TestClient(scoring_server.init(pyfunc))
    body = {"dataframe_split": rows.to_dict(orient="split"), "params": {"coverage": 0.8}}
    served = pd.DataFrame(client.post("/invocations", json=body).json()["predictions"])
    pd.testing.assert_frame_equal(served[expected.columns], expected, check_dtype=False)


def test_a_model_of_arrays_and_what_it_needs(store, tmp_path):
    X, y = load_diabetes(return_X_y=True)
    model = HCMRegressor(random_state=0).set_params(estimator__n_estimators=10).fit(X, y)
    onsphere.mlflow.save_model(model, tmp_path / "model", metadata={"made by": "a test"}, signature=None)
    assert "onsphere==" in (tmp_path / "model" / "requirements.txt").read_text()
    pyfunc = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    for rows in (X[:5], pd.DataFrame(X[:5])):
        assert np.array_equal(pyfunc.predict(rows)["value"], model.predict(X[:5]))
    assert pyfunc.metadata.metadata == {"made by": "a test"}


def test_coverage_and_examples_without_a_signature_of_ones_own(store, fitted):
    model, rows = fitted
    with mlflow.start_run():
        logged = onsphere.mlflow.log_model(model, "plain", input_example=rows[:3])
    pyfunc = mlflow.pyfunc.load_model(logged.model_uri)
    expected = model.assess(rows, coverage=0.5).to_frame()
    pd.testing.assert_frame_equal(pyfunc.predict(rows, params={"coverage": 0.5}), expected)
    pd.testing.assert_frame_equal(pyfunc.input_example, rows[:3])


def test_only_models_of_onsphere_are_logged(tmp_path):
    with pytest.raises(InvalidTypeError, match=r"Got a LGBMRegressor.*FrozenEstimator"):
        onsphere.mlflow.save_model(LGBMRegressor(), tmp_path / "model")
    with pytest.raises(TypeError, match="signatur"):
        onsphere.mlflow.save_model(HCMRegressor(), tmp_path / "model", signatur=1)


def test_mlflow_must_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match="pip install 'onsphere\\[mlflow\\]'"):
        onsphere.mlflow.load_model("runs:/none/model")
