"""Kept classifiers in a graph: the probabilities of the libraries, and clear errors for the rest."""

import numpy as np
import onnxruntime
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier

from onsphere import AcceptShare, HCMClassifier, InvalidTypeError, export_onnx
from onsphere.export.booster_graphs import sum_booster

rng = np.random.default_rng(0)
X = rng.normal(size=(600, 3)).round(2)
NOISY = X[:, 0] + 0.5 * rng.normal(size=600)
TWO = np.where(NOISY > 0, "yes", "no")
THREE = np.digitize(NOISY, [-0.5, 0.8])
FEW = {"n_estimators": 8, "n_jobs": 1}
CAT = {"iterations": 8, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
MODELS = [
    LGBMClassifier(verbose=-1, **FEW),
    XGBClassifier(**FEW),
    CatBoostClassifier(**CAT),
    HistGradientBoostingClassifier(max_iter=8),
    RandomForestClassifier(8, min_samples_leaf=5, random_state=0),
    make_pipeline(StandardScaler(), LogisticRegression()),
]


def keep(model, labels, rows=X):
    """Return a calibrated HCMClassifier over a model that was fitted on other rows."""
    kept = HCMClassifier(FrozenEstimator(model.fit(rows[:300], labels[:300]))).fit(rows[300:450], labels[300:450])
    return kept.calibrate(rows[450:], labels[450:]).set_threshold(AcceptShare(0.9))


@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two classes", "three classes"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_probabilities_of_a_kept_classifier_are_its_own(model, labels, tmp_path):
    labels = (labels == "yes").astype(int) if isinstance(model, XGBClassifier) and labels is TWO else labels
    kept = keep(model, labels)
    parity = export_onnx(kept, tmp_path / "model.onnx", X=X)
    assert parity.relative["probabilities"] < 1e-6
    assert {"label", "set", "accepted"} <= set(parity.largest)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(["label", "probabilities", "novelty"], {session.get_inputs()[0].name: X[450:]})
    np.testing.assert_array_equal(found[0], kept.predict(X[450:]))
    ordinary = found[2] == 0
    np.testing.assert_allclose(found[1][ordinary], model.predict_proba(X[450:])[ordinary], atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeClassifier(max_depth=3),
        ExtraTreesClassifier(8, min_samples_leaf=5, random_state=0),
        MLPClassifier((5,), max_iter=2000, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_classifiers(model, tmp_path):
    assert export_onnx(keep(model, THREE), tmp_path / "model.onnx", X=X).relative["probabilities"] < 1e-9


def test_boosters_missing_values_and_early_stopping(tmp_path):
    holed = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    assert export_onnx(keep(MODELS[0], TWO, holed), tmp_path / "model.onnx", X=holed).relative["probabilities"] < 1e-9
    booster = MODELS[0].fit(X[:300], THREE[:300]).booster_
    kept = HCMClassifier(booster).fit(X[300:], THREE[300:])
    assert export_onnx(kept, tmp_path / "model.onnx", X=X).relative["probabilities"] < 1e-9
    stopped = XGBClassifier(n_estimators=300, n_jobs=1, early_stopping_rounds=2)
    stopped.fit(X[:200], THREE[:200], eval_set=[(X[200:300], THREE[200:300])], verbose=False)
    assert stopped.best_iteration < 299
    kept = HCMClassifier(FrozenEstimator(stopped)).fit(X[300:], THREE[300:])
    assert export_onnx(kept, tmp_path / "model.onnx", X=X).relative["probabilities"] < 1e-6


def test_an_onnx_file_of_a_classifier(tmp_path):
    import skl2onnx
    from skl2onnx.common.data_types import FloatTensorType

    network = MLPClassifier((5,), max_iter=2000, random_state=0).fit(X[:300], THREE[:300])
    given = {"initial_types": [("rows", FloatTensorType([None, 3]))], "target_opset": 18}
    for zipmap in (False, True):
        graph = skl2onnx.to_onnx(network, options={id(network): {"zipmap": zipmap}}, **given)
        path = tmp_path / f"{zipmap}.onnx"
        path.write_bytes(graph.SerializeToString())
        kept = HCMClassifier(path).fit(X[300:], THREE[300:])
        if not zipmap:
            assert export_onnx(kept, tmp_path / "model.onnx", X=X).relative["probabilities"] < 1e-5
            continue
        with pytest.raises(InvalidTypeError, match="zipmap=False"):
            export_onnx(kept, tmp_path / "model.onnx", X=X)


def test_classifiers_that_cannot_be_exported(tmp_path):
    spread = keep(LabelSpreading(), THREE)
    with pytest.raises(InvalidTypeError, match="LabelSpreading, which skl2onnx"):
        export_onnx(spread, tmp_path / "model.onnx", X=X)
    several = LGBMClassifier(verbose=-1, objective="multiclassova", **FEW).fit(X, THREE)
    with pytest.raises(InvalidTypeError, match="multiclassova, whose sums of trees are no logits"):
        sum_booster(None, several, has_classes=True)
    with pytest.raises(InvalidTypeError, match="booster=gblinear"):
        sum_booster(None, XGBClassifier(n_jobs=1, booster="gblinear", n_estimators=2).fit(X, THREE), has_classes=True)
    coded = np.hstack([X[:, :2], rng.integers(3, size=(600, 1))])
    grouped = keep(HistGradientBoostingClassifier(max_iter=3, categorical_features=[2]), THREE, coded)
    with pytest.raises(InvalidTypeError, match="categorical features"):
        export_onnx(grouped, tmp_path / "model.onnx", X=coded)
