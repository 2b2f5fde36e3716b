"""Models of other libraries that fail, or give what was not meant: an error names them and what to do."""

import warnings

import lightgbm
import numpy as np
import onnx
import pandas as pd
import pytest
import xgboost
from catboost import CatBoost, CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from onnx import TensorProto, helper
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import GammaRegressor, LogisticRegression, Ridge, TweedieRegressor
from xgboost import XGBClassifier, XGBRegressor

from onsphere import HCMClassifier, HCMRegressor, InvalidInputError, InvalidTypeError, OnsphereWarning, export_onnx

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(240, 3)), columns=["a size", "b", "c"])
Y = 3 * X["a size"].to_numpy() + RNG.normal(size=240)
WET = Y > 0
KINDS = np.digitize(Y, [-1, 1])
TRAIN, HELD, TEST = slice(0, 80), slice(80, 160), slice(160, 240)
SMALL = {"n_estimators": 3, "n_jobs": 1}
LGBM = LGBMRegressor(verbose=-1, **SMALL).fit(X[TRAIN], Y[TRAIN])
LGBM_CLASSES = LGBMClassifier(verbose=-1, **SMALL).fit(X[TRAIN], WET[TRAIN])
XGB = XGBRegressor(**SMALL).fit(X[TRAIN], Y[TRAIN])
XGB_CLASSES = XGBClassifier(**SMALL).fit(X[TRAIN], WET[TRAIN])
CAT = {"iterations": 3, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
CATBOOST = CatBoostRegressor(**CAT).fit(X[TRAIN], Y[TRAIN])


@pytest.mark.parametrize("model", [LGBM, LGBM.booster_, XGB, XGB.get_booster(), CATBOOST], ids=type)
def test_columns_in_another_order_than_a_booster_was_trained_on(model):
    kept = HCMRegressor(FrozenEstimator(model) if hasattr(model, "fit") else model)
    with pytest.raises(InvalidInputError, match=r"same order: 'a[ _]size' as column 0. Got 'c' there"):
        kept.fit(X.iloc[HELD, ::-1], Y[HELD])
    assert kept.fit(X[HELD], Y[HELD]).predict(X[TEST]).shape == (80,)


@pytest.mark.parametrize("model", [LGBM, XGB, CATBOOST], ids=lambda each: type(each).__name__)
def test_names_of_columns_are_not_compared_if_the_model_has_none(model):
    plain = clone(model).fit(X[TRAIN].to_numpy(), Y[TRAIN])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X has feature names", category=UserWarning)
        assert HCMRegressor(FrozenEstimator(plain)).fit(X[HELD], Y[HELD]).predict(X[TEST]).shape == (80,)


@pytest.mark.parametrize(
    ("kind", "model", "is_a"),
    [
        (HCMClassifier, LGBM.booster_, "regressor. Use HCMRegressor"),
        (HCMClassifier, XGB.get_booster(), "regressor. Use HCMRegressor"),
        (HCMRegressor, LGBM_CLASSES.booster_, "classifier. Use HCMClassifier"),
        (HCMRegressor, XGB_CLASSES.get_booster(), "classifier. Use HCMClassifier"),
        (
            HCMRegressor,
            FrozenEstimator(CatBoost(CAT | {"loss_function": "Logloss"}).fit(X[TRAIN], WET[TRAIN])),
            "classifier. Use HCMClassifier",
        ),
    ],
)
def test_a_booster_for_classes_is_told_from_one_for_numbers(kind, model, is_a):
    with pytest.raises(InvalidTypeError, match=f"Got (Booster|CatBoost), a {is_a}"):
        kind(model).fit(X[HELD], WET[HELD] if kind is HCMClassifier else Y[HELD])


@pytest.mark.parametrize(
    "predict",
    [
        lambda rows: LGBM_CLASSES.predict(rows, raw_score=True),
        lambda rows: np.full((len(rows), 2), 0.7),
        lambda rows: np.tile([1.5, -0.5], (len(rows), 1)),
    ],
    ids=["raw scores", "a sum of 1.4", "negative"],
)
def test_what_is_no_probability_is_not_taken_for_one(predict):
    with pytest.raises(InvalidInputError, match=r"function of HCMClassifier could not predict: expected probabilities"):
        HCMClassifier(predict).fit(X[HELD], WET[HELD])


def test_a_booster_that_knows_more_classes_than_the_labels():
    booster = LGBMClassifier(verbose=-1, **SMALL).fit(X[TRAIN], KINDS[TRAIN]).booster_
    with pytest.raises(InvalidInputError, match=r"each of the 2 classes of the labels, but got 3"):
        HCMClassifier(booster).fit(X[HELD], WET[HELD])


def test_probabilities_of_a_kept_classifier_are_its_own_bit_for_bit():
    kinds = LGBMClassifier(verbose=-1, **SMALL).fit(X[TRAIN], KINDS[TRAIN])
    result = HCMClassifier(FrozenEstimator(kinds)).fit(X[HELD], KINDS[HELD]).assess(X[TEST])
    ordinary = result.novelty == 0
    assert ordinary.sum() > 40
    assert np.array_equal(result.probabilities[ordinary], kinds.predict_proba(X[TEST])[ordinary])


@pytest.mark.parametrize(
    ("kind", "model"), [(HCMRegressor, CatBoostRegressor(**CAT)), (HCMClassifier, CatBoostClassifier(**CAT))]
)
def test_catboost_that_is_not_fitted(kind, model):
    with pytest.raises(InvalidInputError, match=r"Got a CatBoost\w+ that is not fitted"):
        kind(FrozenEstimator(model)).fit(X[HELD], WET[HELD])


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (lambda rows: np.ones(5), r"as many predictions as rows, 80, but got an array of shape \(5,\)"),
        (lambda rows: 30.0, "80, but got one value"),
        (lambda rows: np.ones((len(rows), 1, 1)), r"got an array of shape \(80, 1, 1\)"),
        (lambda rows: rows["foo"], "KeyError: 'foo'"),
        (lambda rows: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda rows: ["some text"] * len(rows), "could not convert string to float"),
    ],
)
def test_a_function_that_fails_or_gives_something_else(predict, message):
    with pytest.raises(InvalidInputError, match=f"The function of HCMRegressor could not predict: .*{message}"):
        HCMRegressor(predict).fit(X[HELD], Y[HELD])


def test_an_error_of_another_library_has_no_stack_trace():
    with pytest.raises(InvalidInputError) as caught:
        HCMRegressor(xgboost.Booster()).fit(X[HELD], Y[HELD])
    assert "\n" not in str(caught.value)
    assert "[bt]" not in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"fitted Booster of HCMRegressor could not predict: .*a size, b, c"):
        HCMRegressor(XGB.get_booster()).fit(X[HELD].to_numpy(), Y[HELD])
    with pytest.raises(InvalidInputError, match=r"backbone LGBMRegressor of HCMRegressor could not be .*LightGBMError"):
        HCMRegressor(LGBMRegressor(objective="gamma", verbose=-1, **SMALL)).fit(X[HELD], Y[HELD])


def test_memory_that_runs_out_is_nobodys_mistake():
    def run_out(rows):
        raise MemoryError

    with pytest.raises(MemoryError):
        HCMRegressor(run_out).fit(X[HELD], Y[HELD])


@pytest.mark.parametrize(
    "backbone",
    [
        LGBMRegressor(objective="gamma", verbose=-1),
        XGBRegressor(objective="count:poisson"),
        CatBoostRegressor(loss_function="Poisson", **CAT),
        HistGradientBoostingRegressor(loss="gamma"),
        RandomForestRegressor(3, criterion="poisson"),
        GammaRegressor(),
        TweedieRegressor(power=1.5),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_loss_without_negative_targets_learns_no_directions(backbone):
    with pytest.raises(InvalidInputError, match=r"directions are negative for some rows. Fit with frames=\('error'"):
        HCMRegressor(backbone, frames="target").fit(X[HELD], np.exp(Y[HELD]))


def test_a_tweedie_loss_of_power_zero_is_that_of_a_gaussian():
    model = HCMRegressor(TweedieRegressor(power=0), frames="target").fit(X[HELD], Y[HELD])
    assert model.assess(X[TEST]).direction_norm is not None


@pytest.mark.parametrize("backbone", [LGBMRegressor(verbose=-1, **SMALL), XGBRegressor(**SMALL), None, "auto"])
def test_text_points_to_the_table_path_whatever_the_backbone_says(backbone):
    words = X.assign(city=np.tile(["Rome", "Oslo"], 120))
    with pytest.raises(InvalidInputError, match=r"onsphere\.table\.fit_table"):
        HCMRegressor(backbone).fit(words, Y)


@pytest.mark.parametrize(
    ("given", "cure"),
    [("lightgbm", "with that library"), ("model.txt", "with that library"), (3, "Pass an instance"), (Ridge, "Pass")],
)
def test_what_is_no_estimator_is_told_what_can_be_passed(given, cure):
    with pytest.raises(InvalidTypeError, match=rf"'auto'; or a model that is fitted .* FrozenEstimator, .*{cure}"):
        HCMRegressor(given).fit(X, Y)


@pytest.mark.parametrize("model", [LGBM, XGB, CatBoostRegressor(**CAT).fit(X, Y), Ridge().fit(X, Y)])
def test_a_fitted_model_that_is_fitted_anew_is_warned_about(model):
    with pytest.warns(OnsphereWarning, match=r"is fitted already.*FrozenEstimator\(model\) to keep it"):
        HCMRegressor(model).fit(X[HELD], Y[HELD])
    HCMRegressor(clone(model)).fit(X[HELD], Y[HELD])


class Untagged(RegressorMixin, BaseEstimator):
    """A model that cannot say whether it is fitted."""

    def __sklearn_is_fitted__(self):
        return True

    def predict(self, X):
        return np.zeros(len(X))


class Plain:
    """A model that is no estimator of scikit-learn, with a fit of its own."""

    def fit(self):
        return self

    def predict(self, X):
        return np.zeros(len(X))


@pytest.mark.parametrize("model", [Untagged(), Plain()])
def test_anything_that_predicts_can_be_frozen(model):
    assert HCMRegressor(FrozenEstimator(model)).fit(X[HELD], Y[HELD]).predict(X[TEST]).max() == 0


# --- ONNX files of classifiers ---


def write_graph(path, nodes, outputs, constants=()):
    taken = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "some", [taken], outputs, list(constants))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.mark.parametrize(("labels", "zipmap"), [(WET, True), (KINDS, True), (WET, False), (KINDS, False)])
def test_a_classifier_in_an_onnx_file_is_read_by_its_probabilities(labels, zipmap, tmp_path):
    from skl2onnx import to_onnx

    plain = LogisticRegression().fit(X[TRAIN].to_numpy(np.float32), labels[TRAIN].astype(int))
    path = tmp_path / "classes.onnx"
    path.write_bytes(
        to_onnx(plain, X[:1].to_numpy(np.float32), options={"zipmap": zipmap}, target_opset=18).SerializeToString()
    )
    result = HCMClassifier(str(path)).fit(X[HELD].to_numpy(), labels[HELD]).assess(X[TEST].to_numpy())
    ordinary = result.novelty == 0
    expected = plain.predict_proba(X[TEST].to_numpy(np.float32))[ordinary]
    np.testing.assert_allclose(result.probabilities[ordinary], expected, atol=1e-5)
    with pytest.raises(InvalidTypeError, match=r"OnnxModel, a classifier. Use HCMClassifier"):
        HCMRegressor(str(path)).fit(X[HELD].to_numpy(), Y[HELD])


def test_a_graph_of_labels_alone_gives_no_probabilities(tmp_path):
    axis = {"axis": 1, "keepdims": 0}
    nodes = [helper.make_node("ArgMax", ["rows"], ["label"], **axis)]
    path = write_graph(
        tmp_path / "labels.onnx", nodes, [helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])]
    )
    with pytest.raises(InvalidInputError, match=r"numbers or probabilities among its outputs. Got tensor\(int64\)"):
        HCMClassifier(path).fit(X[HELD].to_numpy(), KINDS[HELD])


def test_the_library_of_a_booster_from_a_file_tells_what_it_predicts(tmp_path):
    LGBM.booster_.save_model(tmp_path / "model.txt")
    again = lightgbm.Booster(model_file=tmp_path / "model.txt")
    assert np.array_equal(HCMRegressor(again).fit(X[HELD], Y[HELD]).predict(X[TEST]), LGBM.predict(X[TEST]))


# --- parameters ---


@pytest.mark.parametrize("n_jobs", [0, "two", 1.5])
def test_a_number_of_jobs_is_checked(n_jobs):
    with pytest.raises(InvalidInputError, match=r"'n_jobs' parameter of HCMRegressor must be None, or an int"):
        HCMRegressor(Ridge(), n_jobs=n_jobs).fit(X, Y)


def test_what_is_chosen_in_fit_has_no_parameters_before():
    with pytest.raises(InvalidTypeError, match=r"Got estimator='auto', which chooses one in fit"):
        HCMRegressor("auto").set_params(estimator__n_estimators=3)
    assert HCMRegressor("auto").set_params(estimator=Ridge(), estimator__alpha=2.0).estimator.alpha == 2.0


def test_several_coverages_are_for_intervals():
    model = HCMRegressor(Ridge(), calibration="split", random_state=0).fit(X, Y)
    with pytest.raises(InvalidInputError, match=r"one float in \(0, 1\); predict_interval takes several"):
        model.assess(X, coverage=[0.5, 0.9])


def test_an_overview_is_for_calibrated_models_of_numbers():
    from onsphere import NotCalibratedError, plots

    with pytest.raises(NotCalibratedError, match="overview needs a calibrated HCMRegressor"):
        plots.overview(HCMRegressor(Ridge()).fit(X, Y), X, Y)
    with pytest.raises(InvalidTypeError, match=r"overview is for models that predict numbers. Got HCMClassifier"):
        plots.overview(HCMClassifier(LGBM_CLASSES.booster_).fit(X[HELD], WET[HELD]), X[HELD], WET[HELD])


@pytest.mark.parametrize(
    ("backbone", "why"),
    [
        (LGBMRegressor(linear_tree=True, verbose=-1, **SMALL), "with linear_tree=True"),
        (LGBMRegressor(objective="poisson", verbose=-1, **SMALL), "poisson, which predicts another number"),
        (XGBRegressor(objective="count:poisson", **SMALL), "count:poisson, which predicts another number"),
        (CatBoostRegressor(loss_function="Poisson", **CAT), "Poisson, which predicts another number"),
    ],
)
def test_boosters_that_are_more_than_a_sum_of_trees_are_not_exported(backbone, why, tmp_path):
    model = HCMRegressor(backbone).fit(X.to_numpy(), np.exp(Y / 3))
    with pytest.raises(InvalidTypeError, match=why):
        export_onnx(model, tmp_path / "model.onnx", X=X.to_numpy())
