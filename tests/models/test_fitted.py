"""Models that are fitted already: the prediction stays the model's own, and held-out rows give the rest."""

import pickle
import sys
import warnings
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from catboost import CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    StackingRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor
from xgboost import XGBRegressor

from onsphere import (
    AcceptShare,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    MissingExtraError,
    OnsphereWarning,
    export_onnx,
    load,
    select,
)
from onsphere.export.parity import _find_tied_leaves
from onsphere.models import noise
from onsphere.models.fitted import wrap_fitted
from onsphere.persistence import read_manifest
from onsphere.sphere import Lift

QUIET = {"n_estimators": 15, "n_jobs": 1}


def make_rows(n=600, seed=0):
    """Return rows whose noise grows with the third feature."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, 3 * X[:, 0] + X[:, 1] ** 2 + rng.normal(size=n) * (0.1 + 2 * np.abs(X[:, 2]))


X, Y = make_rows()
TRAIN, HELD, TEST = slice(0, 200), slice(200, 450), slice(450, 600)


def fit_boosters():
    """Return each fitted model with the function that predicts as it does by itself."""
    lgbm = LGBMRegressor(verbose=-1, **QUIET).fit(X[TRAIN], Y[TRAIN])
    xgb = XGBRegressor(**QUIET).fit(X[TRAIN], Y[TRAIN])
    cat = CatBoostRegressor(iterations=15, verbose=0, thread_count=1, allow_writing_files=False).fit(X[TRAIN], Y[TRAIN])
    hist = HistGradientBoostingRegressor(max_iter=15).fit(X[TRAIN], Y[TRAIN])
    piped = make_pipeline(StandardScaler(), Ridge()).fit(X[TRAIN], Y[TRAIN])
    return {
        "scikit-learn": (FrozenEstimator(hist), hist.predict),
        "a pipeline": (FrozenEstimator(piped), piped.predict),
        "LightGBM": (FrozenEstimator(lgbm), lgbm.predict),
        "LightGBM Booster": (lgbm.booster_, lgbm.predict),
        "XGBoost": (FrozenEstimator(xgb), xgb.predict),
        "XGBoost Booster": (xgb.get_booster(), xgb.predict),
        "CatBoost": (FrozenEstimator(cat), cat.predict),
        "a function": (add_columns, add_columns),
    }


def add_columns(rows):
    rows = np.asarray(rows)
    return 3 * rows[:, 0] + rows[:, 1] ** 2


FITTED = fit_boosters()


@pytest.mark.parametrize("name", FITTED)
def test_the_prediction_is_the_models_own_and_held_out_rows_give_the_rest(name):
    estimator, predict = FITTED[name]
    model = HCMRegressor(estimator, calibration="cv").fit(X[HELD], Y[HELD]).set_threshold(AcceptShare(0.9))
    result = model.assess(X[TEST])
    assert np.array_equal(result.value, predict(X[TEST]))
    assert np.corrcoef(result.noise, np.abs(X[TEST, 2]))[0, 1] > 0.3
    assert result.direction_norm is None
    # 250 calibration and 150 test rows: standard errors of 1.9 and 2.4 %, together 3.1 %; four are allowed.
    assert 0.776 < np.mean((result.lower <= Y[TEST]) & (result.upper >= Y[TEST])) < 1.0
    assert model.assess(X[TEST] + 100).novelty.min() > 0.9
    assert 0.6 < result.accepted.mean() <= 1
    assert len(select(model, X[TEST], 3)) == 3


@pytest.mark.parametrize("name", sorted(set(FITTED) - {"a function"}))
def test_a_fitted_model_is_saved_loaded_and_exported(name, tmp_path):
    model = HCMRegressor(FITTED[name][0]).fit(X[HELD], Y[HELD]).calibrate(X[TEST], Y[TEST])
    again = load(model.save(tmp_path / "model.onsphere"))
    copied = pickle.loads(pickle.dumps(model))
    for other in (again, copied):
        assert np.array_equal(other.assess(X[TEST]).uncertainty, model.assess(X[TEST]).uncertainty)
    assert export_onnx(model, tmp_path / "model.onnx", X=X[TEST]).n_rows == 150


def test_a_model_of_catboost_can_come_from_a_file(tmp_path):
    plain = FITTED["CatBoost"][0].estimator
    plain.save_model(tmp_path / "model.cbm")
    read = CatBoostRegressor().load_model(tmp_path / "model.cbm")
    model = HCMRegressor(FrozenEstimator(read)).fit(X[HELD], Y[HELD])
    assert np.array_equal(model.predict(X[TEST]), plain.predict(X[TEST]))
    with pytest.raises(InvalidInputError, match=r"Expected rows with 4 features.*Got 3"):
        HCMRegressor(FrozenEstimator(read)).fit(X[HELD, :3], Y[HELD])


def test_a_graph_in_an_onnx_file_is_a_model_too(tmp_path):
    plain = HCMRegressor(Ridge(), frames="target").fit(X[TRAIN], Y[TRAIN])
    export_onnx(plain, tmp_path / "plain.onnx", X=X[TRAIN])
    model = HCMRegressor(str(tmp_path / "plain.onnx")).fit(X[HELD], Y[HELD])
    np.testing.assert_allclose(model.predict(X[TEST]), plain.predict(X[TEST]), rtol=1e-12)
    again = load(model.save(tmp_path / "model.onsphere"))
    assert list(read_manifest(tmp_path / "model.onsphere")["needs"]) == ["onnxruntime"]
    assert np.array_equal(again.predict(X[TEST]), model.predict(X[TEST]))
    parity = export_onnx(model, tmp_path / "both.onnx", X=X[TEST])
    assert parity.largest["value"] < 1e-9
    for path, content in ((tmp_path / "none.onnx", None), (tmp_path / "bad.onnx", b"no graph")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"ONNX file that onnxruntime can run"):
            HCMRegressor(path).fit(X[HELD], Y[HELD])


def test_a_graph_needs_onnxruntime(tmp_path, monkeypatch):
    path = tmp_path / "some.onnx"
    path.write_bytes(b"any")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="onnxruntime"):
        HCMRegressor(path).fit(X[HELD], Y[HELD])


def test_a_graph_in_single_precision_with_flat_answers(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    nodes = [helper.make_node("ReduceSum", ["X", "axes"], ["sum"], keepdims=0)]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    taken = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 4])
    given = helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(nodes, "sums", [taken], [given], [axes])
    path = tmp_path / "sums.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    model = HCMRegressor(path).fit(X[HELD], Y[HELD])
    np.testing.assert_allclose(model.predict(X[TEST]), X[TEST].sum(axis=1), atol=1e-5)
    with pytest.raises(InvalidInputError, match=r"4 features"):
        HCMRegressor(path).fit(X[HELD, :3], Y[HELD])
    assert export_onnx(model, tmp_path / "model.onnx", X=X[TEST]).largest["value"] < 1e-5


def test_several_outputs_and_few_rows():
    Y2 = np.column_stack([Y, X[:, 1]])
    plain = LinearRegression().fit(X[TRAIN], Y2[TRAIN])
    model = HCMRegressor(FrozenEstimator(plain)).fit(X[HELD], Y2[HELD])
    assert np.array_equal(model.predict(X[TEST]), plain.predict(X[TEST]))
    assert model.predict_noise(X[TEST]).shape == (150, 2)
    few = HCMRegressor(FrozenEstimator(plain)).fit(X[:20], Y2[:20]).assess(X[TEST])
    assert np.ptp(few.noise, axis=0).max() == 0  # one level for all rows
    with pytest.raises(InvalidInputError, match=r"expected 1 columns.* Pass as many targets as it predicts"):
        HCMRegressor(FrozenEstimator(plain)).fit(X[HELD], Y[HELD])


def test_rows_that_are_no_table_of_numbers_have_noise_and_no_novelty():
    words = pd.DataFrame({"text": [f"{value:.3f} metres" for value in X[:, 0]]})

    def read(rows):
        return 3 * rows["text"].str.removesuffix(" metres").astype(float).to_numpy()

    with pytest.warns(OnsphereWarning, match=r"no novelty, and noise by the prediction alone.*in a Pipeline\.$"):
        model = HCMRegressor(read).fit(words[HELD], Y[HELD])
    result = model.assess(words[TEST])
    assert np.array_equal(result.value, read(words[TEST]))
    assert result.novelty is None
    assert (result.noise > 0).all()


# --- classes ---

LABELS = np.where(Y > 6, "high", np.where(Y > 2, "middle", "low"))


@pytest.mark.parametrize(
    "plain",
    [RandomForestClassifier(20, random_state=0), LogisticRegression(), LGBMClassifier(verbose=-1, **QUIET)],
    ids=lambda model: type(model).__name__,
)
def test_a_fitted_classifier_keeps_its_labels(plain, tmp_path):
    fitted = clone(plain).fit(X[TRAIN], LABELS[TRAIN])
    model = HCMClassifier(FrozenEstimator(fitted)).fit(X[HELD], LABELS[HELD]).calibrate(X[TEST], LABELS[TEST])
    result = model.assess(X[TEST])
    assert np.array_equal(result.value, fitted.predict(X[TEST]))
    ordinary = result.novelty == 0
    np.testing.assert_allclose(result.probabilities[ordinary], fitted.predict_proba(X[TEST])[ordinary], atol=1e-12)
    assert result.prediction_set.any(axis=1).all()
    again = load(model.save(tmp_path / "model.onsphere"))
    assert np.array_equal(again.predict(X[TEST]), result.value)
    assert export_onnx(model, tmp_path / "model.onnx", X=X[TEST]).relative["probabilities"] < 1e-9


def test_a_booster_of_probabilities_and_one_for_many_classes():
    wet = Y > 2
    booster = LGBMClassifier(verbose=-1, **QUIET).fit(X[TRAIN], wet[TRAIN]).booster_
    model = HCMClassifier(booster).fit(X[HELD], wet[HELD])
    assert np.array_equal(model.predict(X[TEST]), booster.predict(X[TEST]) > 0.5)
    with pytest.raises(InvalidInputError, match=r"each of the 3 classes of the labels, but got 2"):
        HCMClassifier(booster).fit(X[HELD], LABELS[HELD])


def test_labels_that_a_fitted_classifier_does_not_know():
    fitted = LogisticRegression().fit(X[TRAIN], Y[TRAIN] > 2)
    with pytest.raises(InvalidInputError, match=r"knows: False, True"):
        HCMClassifier(FrozenEstimator(fitted)).fit(X[HELD], LABELS[HELD])


# --- bad input ---


def test_models_that_cannot_be_kept():
    regressor, classifier = Ridge().fit(X, Y), LogisticRegression().fit(X, Y > 0)
    with pytest.raises(InvalidTypeError, match=r"LogisticRegression, a classifier. Use HCMClassifier"):
        HCMRegressor(FrozenEstimator(classifier)).fit(X, Y)
    with pytest.raises(InvalidTypeError, match=r"Ridge, a regressor. Use HCMRegressor"):
        HCMClassifier(FrozenEstimator(regressor)).fit(X, Y > 0)
    with pytest.raises(InvalidTypeError, match=r"predict_proba"):
        HCMClassifier(FrozenEstimator(SVC().fit(X, Y > 0))).fit(X, Y > 0)
    with pytest.raises(InvalidInputError, match=r"Ridge that is not fitted"):
        HCMRegressor(FrozenEstimator(FrozenEstimator(Ridge()))).fit(X, Y)


@pytest.mark.parametrize("name", ["scikit-learn", "LightGBM Booster", "XGBoost Booster", "CatBoost"])
def test_rows_with_other_columns_than_the_model_was_trained_on(name):
    with pytest.raises(InvalidInputError, match=r"Expected rows with 4 features, on which the fitted .* was trained"):
        HCMRegressor(FITTED[name][0]).fit(X[HELD, :3], Y[HELD])


def test_a_fitted_pipeline_has_novelty_and_noise_of_the_numbers_it_makes(tmp_path):
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(kind=np.where(X[:, 0] > 0, "a", "b"))
    columns = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
    pipe = make_pipeline(columns, LGBMRegressor(verbose=-1, **QUIET)).fit(frame[TRAIN], Y[TRAIN])
    model = HCMRegressor(FrozenEstimator(pipe)).fit(frame[HELD], Y[HELD])
    result = model.assess(frame[TEST])
    assert np.array_equal(result.value, pipe.predict(frame[TEST]))
    assert np.corrcoef(result.noise, np.abs(X[TEST, 2]))[0, 1] > 0.3
    assert model.assess(frame[TEST].assign(w=50.0)).novelty.min() > 0.5
    again = load(model.save(tmp_path / "model.onsphere"))
    assert np.array_equal(again.predict(frame[TEST]), result.value)
    wet = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[TRAIN], LABELS[TRAIN])
    kept = HCMClassifier(FrozenEstimator(wet)).fit(X[HELD], LABELS[HELD])
    assert np.array_equal(kept.predict(X[TEST]), wet.predict(X[TEST]))


def test_trees_of_an_older_version_of_onnx_are_not_exported_again(tmp_path):
    import skl2onnx

    tree = DecisionTreeRegressor(max_depth=3).fit(X[TRAIN], Y[TRAIN])
    path = tmp_path / "trees.onnx"
    path.write_bytes(skl2onnx.to_onnx(tree, X[:1].astype(np.float32)).SerializeToString())
    kept = HCMRegressor(str(path)).fit(X[HELD], Y[HELD])
    with pytest.raises(InvalidTypeError, match=r"older version of ONNX.*FrozenEstimator"):
        export_onnx(kept, tmp_path / "again.onnx", X=X[TEST])


@pytest.mark.parametrize(
    "options",
    [{"frames": "target"}, {"embedding": "torus"}, {"uncertainty_score": "distance"}, {"decoder": "product"}],
    ids=str,
)
def test_a_fitted_model_has_no_target_frame(options):
    ((name, value),) = options.items()
    with pytest.raises(InvalidInputError, match=rf"has no target frame. Got {name}='{value}'"):
        HCMRegressor(FITTED["LightGBM"][0], **options).fit(X[HELD], Y[HELD])


def test_a_fitted_model_needs_the_error_frame():
    with pytest.raises(InvalidInputError, match=r"sigma from the error frame. Got frames=\('input',\)"):
        HCMRegressor(FITTED["LightGBM"][0], frames=("input",)).fit(X[HELD], Y[HELD])


def test_the_default_embedding_may_be_written_out():
    named, written = (HCMRegressor(FITTED["LightGBM"][0], embedding=each) for each in ("lift", Lift()))
    expected = named.fit(X[HELD], Y[HELD]).predict_sigma(X[TEST])
    assert np.array_equal(written.fit(X[HELD], Y[HELD]).predict_sigma(X[TEST]), expected)


def test_the_level_of_sigma_is_weighted_like_the_intervals():
    model = HCMRegressor(FITTED["LightGBM"][0]).fit(X[HELD], Y[HELD])
    error = np.abs(Y[TEST] - model.predict(X[TEST]))
    plain, weighted = (
        model.calibrate(X[TEST], Y[TEST], sample_weight=weights).predict_sigma(X[TEST])
        for weights in (None, 0.01 + error**2)
    )
    assert (weighted > 1.1 * plain).all()


def test_rows_that_the_model_was_trained_on():
    tree = DecisionTreeRegressor().fit(X[TRAIN], Y[TRAIN])
    with pytest.warns(OnsphereWarning, match=r"reproduces the target of 100% of the rows"):
        HCMRegressor(FrozenEstimator(tree)).fit(X[TRAIN], Y[TRAIN])
    forest = HistGradientBoostingRegressor(max_iter=200, min_samples_leaf=3).fit(X[TRAIN], Y[TRAIN])
    with pytest.warns(OnsphereWarning, match=r"fill the leaves"):
        model = HCMRegressor(FrozenEstimator(forest)).fit(X[TRAIN], Y[TRAIN])
    with pytest.warns(OnsphereWarning, match=r"less than half of those on the calibration rows"):
        model.calibrate(X[HELD], Y[HELD])
    HCMRegressor(FrozenEstimator(forest)).fit(X[HELD], Y[HELD]).calibrate(X[TEST], Y[TEST])


def test_a_function_can_be_saved_by_name_only_and_is_not_exported(tmp_path):
    model = HCMRegressor(lambda rows: rows[:, 0]).fit(X[HELD], Y[HELD])
    with pytest.raises(InvalidTypeError, match=r"found again by name"):
        model.save(tmp_path / "model.onsphere")
    with pytest.raises(InvalidTypeError, match=r"a function. Put it in an ONNX file"):
        export_onnx(model, tmp_path / "model.onnx", X=X[TEST])


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    import importlib.util

    from onsphere.persistence import read_manifest

    path = HCMRegressor(FITTED["LightGBM"][0]).fit(X[HELD], Y[HELD]).save(tmp_path / "model.onsphere")
    assert read_manifest(path)["needs"] == {"lightgbm": lightgbm.__version__}
    xgb = HCMRegressor(FITTED["XGBoost Booster"][0]).fit(X[HELD], Y[HELD]).save(tmp_path / "xgb.onsphere")
    assert read_manifest(xgb)["needs"] == {"xgboost": xgboost.__version__}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lightgbm" else find(name))
    with pytest.raises(InvalidInputError, match=r"Expected lightgbm.*pip install 'lightgbm=="):
        load(path)


# --- backbones that predict the mean alone ---


@pytest.mark.parametrize(
    "plain",
    [
        HistGradientBoostingRegressor(max_iter=20, random_state=0),
        LGBMRegressor(verbose=-1, random_state=0, **QUIET),
        XGBRegressor(random_state=0, **QUIET),
        CatBoostRegressor(iterations=20, verbose=0, thread_count=1, allow_writing_files=False, random_state=0),
        StackingRegressor([("ridge", Ridge())], HistGradientBoostingRegressor(max_iter=5, random_state=0)),
        GridSearchCV(Ridge(), {"alpha": [0.1, 10.0]}, cv=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_boosting_and_searches_predict_as_without_hcm(plain):
    expected = clone(plain).fit(X[:450], Y[:450]).predict(X[TEST])
    model = HCMRegressor(plain).fit(X[:450], Y[:450])
    result = model.assess(X[TEST])
    assert np.array_equal(result.value, expected)
    assert np.corrcoef(result.noise, np.abs(X[TEST, 2]))[0, 1] > 0.4


def test_a_search_runs_once_for_each_output(monkeypatch):
    runs = []
    fit = GridSearchCV.fit
    monkeypatch.setattr(GridSearchCV, "fit", lambda self, *given, **more: runs.append(1) or fit(self, *given, **more))
    search = GridSearchCV(Ridge(), {"alpha": [0.1, 10.0]}, cv=2)
    for backbone, target, n_runs in (
        (search, Y, 1),
        (make_pipeline(StandardScaler(), search), Y, 1),
        (search, np.column_stack([Y, Y]), 2),
    ):
        runs.clear()
        HCMRegressor(backbone).fit(X[TRAIN], target[TRAIN])
        assert len(runs) == n_runs


def test_the_target_frame_of_boosting_is_there_for_whoever_names_it():
    hist = HistGradientBoostingRegressor(max_iter=10)
    for options in (
        {"frames": ("target", "error", "input")},
        {"frames": "target"},
        {"embedding": "torus"},
        {"uncertainty_score": "anchored"},
    ):
        assert HCMRegressor(hist, **options).fit(X[TRAIN], Y[TRAIN]).assess(X[TEST]).direction_norm is not None
    alone = HCMRegressor(Ridge(), frames=("error", "input")).fit(X[TRAIN], Y[TRAIN])
    assert alone.assess(X[TEST]).direction_norm is None
    with pytest.raises(InvalidInputError, match=r"'distance' needs a target frame"):
        alone.set_params(uncertainty_score="distance").predict_uncertainty(X[TEST])
    forest = HCMRegressor(frames=("error", "input"), random_state=0).fit(X[TRAIN], Y[TRAIN])
    assert np.corrcoef(forest.predict_noise(X[TEST]), np.abs(X[TEST, 2]))[0, 1] > 0.3


def test_losses_that_take_no_negative_targets():
    positive = np.exp(Y / 4)
    hist = HistGradientBoostingRegressor(max_iter=10, loss="poisson")
    expected = clone(hist).fit(X[TRAIN], positive[TRAIN]).predict(X[TEST])
    assert np.array_equal(HCMRegressor(hist).fit(X[TRAIN], positive[TRAIN]).predict(X[TEST]), expected)
    with pytest.raises(InvalidInputError, match=r"directions are negative.*frames=\('error', 'input'\)"):
        HCMRegressor(hist, frames="target").fit(X[TRAIN], positive[TRAIN])
    with pytest.raises(InvalidInputError, match=r"could not be fitted"):
        HCMRegressor(hist).fit(X[TRAIN], Y[TRAIN])


def test_native_categories_and_missing_values(tmp_path):
    rng = np.random.default_rng(0)
    kinds = rng.choice(["a", "b", "c"], size=600)
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(kind=pd.Categorical(kinds))
    frame.loc[::9, "w"] = np.nan
    target = Y + 5 * (kinds == "b")
    for plain in (
        HistGradientBoostingRegressor(max_iter=20, categorical_features="from_dtype"),
        LGBMRegressor(verbose=-1, **QUIET),
        XGBRegressor(enable_categorical=True, **QUIET),
    ):
        expected = clone(plain).fit(frame[:450], target[:450]).predict(frame[450:])
        model = HCMRegressor(plain).fit(frame[:450], target[:450])
        result = model.assess(frame[450:])
        assert np.array_equal(result.value, expected)
        assert np.corrcoef(result.noise, np.abs(X[450:, 2]))[0, 1] > 0.3
        assert model.noise_importances_.shape == model.novelty_importances_.shape == (5,)
        assert model.noise_importances_[2] > 2 * model.noise_importances_[3]
        assert np.isclose(model.novelty_importances_.sum(), 1)
        again = load(model.save(tmp_path / "model.onsphere"))
        assert np.array_equal(again.predict(frame[450:]), expected)
        with pytest.raises(InvalidInputError, match=r"Expected columns of numbers, to export. Got categories.*: kind"):
            export_onnx(model, tmp_path / "model.onnx", X=frame[450:])
    unseen = frame[450:].assign(kind=pd.Categorical(["a"] * 150, categories=["a", "b", "c", "new"]))
    assert len(select(model, unseen, 2)) == 2


def test_few_rows_take_one_level_of_noise():
    hist = HistGradientBoostingRegressor(max_iter=5)
    result = HCMRegressor(hist).fit(X[:20], Y[:20]).assess(X[TEST])
    assert np.ptp(result.noise) == 0
    with pytest.warns(OnsphereWarning, match=r"takes the spread of the target for the noise"):
        lone = HCMRegressor(KNeighborsRegressor(5), frames=("error", "input")).fit(X[:5], Y[:5])
    assert np.ptp(lone.predict_noise(X[TEST])) == 0


def test_the_file_names_in_errors_are_paths():
    with pytest.raises(InvalidInputError, match=r"nowhere"):
        HCMRegressor(Path("nowhere.onnx")).fit(X, Y)


def test_noise_of_many_rows_is_learned_from_some_of_them(monkeypatch):
    rows, y = make_rows(1_200)
    monkeypatch.setattr(noise, "_N_TREE_ROWS", 500)
    model = HCMRegressor(HistGradientBoostingRegressor(max_iter=20, random_state=0)).fit(rows, y)
    assert model._frames.error.trees.max_samples == 500
    fresh, _ = make_rows(400, seed=1)
    assert np.corrcoef(model.predict_noise(fresh), np.abs(fresh[:, 2]))[0, 1] > 0.7


def test_rounding_of_the_value_can_decide_between_leaves_of_boosting_too():
    model = HCMRegressor(HistGradientBoostingRegressor(max_iter=5, random_state=0)).fit(X, Y)
    everything, nothing = (_find_tied_leaves(model, X, np.arange(20), rounding) for rounding in (10.0, 0.0))
    assert len(everything) > len(nothing) == 0


def test_rare_categories_count_with_their_column():
    kinds = np.array([f"k{min(number, 40)}" for number in np.random.default_rng(0).geometric(0.08, size=600)])
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(kind=pd.Categorical(kinds))
    model = HCMRegressor(LGBMRegressor(verbose=-1, **QUIET)).fit(frame, Y)
    assert model.noise_importances_.shape == (5,)


def test_what_a_fitted_model_is_off_by_is_a_part_of_its_noise():
    plain = LinearRegression().fit(X[TRAIN, :2], Y[TRAIN])
    changed = Y + 20 * (X[:, 1] > 0.8)  # since it was trained

    def predict(rows):
        return plain.predict(rows[:, :2])

    model = HCMRegressor(predict).fit(X[HELD], changed[HELD])
    result = model.assess(X[TEST])
    where = X[TEST, 1] > 0.8
    assert np.median(result.sigma[where]) > 10
    assert np.median(result.sigma[~where]) < 5
    off = HCMRegressor(predict).fit(X[HELD], Y[HELD] + 100)
    assert 90 < np.median(off.assess(X[TEST]).uncertainty) < 110


def test_intervals_of_a_nearly_exact_model_are_as_narrow_as_its_errors():
    target = 100 * X[:, 0] + 0.01 * (Y - 3 * X[:, 0] - X[:, 1] ** 2)
    model = HCMRegressor(lambda rows: 100 * rows[:, 0]).fit(X[HELD], target[HELD]).calibrate(X[TEST], target[TEST])
    width = np.ptp(model.predict_interval(X[TEST]), axis=1)
    quiet = np.abs(X[TEST, 2]) < 0.3
    assert np.median(width[quiet]) < 0.6 * np.median(width[~quiet])


def test_noise_that_no_column_tells_has_no_importances():
    few = HCMRegressor(LGBMRegressor(verbose=-1, **QUIET)).fit(X[:30], Y[:30])
    with pytest.raises(InvalidInputError, match=r"noise is one level"):
        _ = few.noise_importances_


@pytest.mark.parametrize("n_rows", [2, 4])
def test_a_few_rows_are_enough_for_boosting(n_rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two rows none can be left out
        model = HCMRegressor(LGBMRegressor(verbose=-1, **QUIET)).fit(X[:n_rows], Y[:n_rows])
    assert np.isfinite(model.predict_sigma(X)).all()


def test_fitting_again_leaves_a_fitted_model_as_it_is():
    kept = wrap_fitted(HCMRegressor(), Ridge().fit(X[TRAIN], Y[TRAIN]))
    before = kept.predict(X[TEST])
    np.testing.assert_array_equal(kept.fit(X[HELD], Y[HELD]).predict(X[TEST]), before)
