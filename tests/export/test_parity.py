"""Answers of onnxruntime and of the model on 10,000 rows: ordinary, missing, extreme and on the thresholds of trees."""

import copy
import json
import warnings

import numpy as np
import onnx
import pytest
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from onsphere import AcceptShare, FrozenHead, HCMClassifier, HCMRegressor, InvalidInputError, MaxErrorRate, Novelty
from onsphere.calibration import ClassCalibration, RegressionCalibration
from onsphere.export import Parity, export_onnx, open_graph, prepare_inputs, tree_graphs
from onsphere.export import parity as parity_module
from onsphere.export.parity import compare_answers

N_FEATURES = 5
# What was measured is below 1e-11 (1e-6 for networks in float32); the tolerances promised are looser.
MEASURED = 1e-10


def fill(*steps):
    return make_pipeline(SimpleImputer(), StandardScaler(), *steps)


BACKBONES = {
    "extra-trees": lambda: ExtraTreesRegressor(25, min_samples_leaf=2),
    "random-forest": lambda: RandomForestRegressor(20),
    "tree": lambda: DecisionTreeRegressor(max_depth=4),
    "boosting": lambda: HistGradientBoostingRegressor(max_iter=15, min_samples_leaf=5),
    "mlp": lambda: fill(MLPRegressor(hidden_layer_sizes=(16, 8), max_iter=40, tol=1e9)),
    "kernel": lambda: fill(Nystroem(n_components=60), RidgeCV(np.logspace(-6, 2, 9))),
    "linear": lambda: make_pipeline("passthrough", fill(Ridge())),
    "kernel-gamma": lambda: fill(MultiOutputRegressor(make_pipeline(Nystroem(gamma=0.3, n_components=40), Ridge()))),
}


def make_rows(n, seed, *, missing=True):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, N_FEATURES))
    if missing:
        X[rng.random(X.shape) < 0.08] = np.nan
    return X


def make_targets(X, task):
    rng = np.random.default_rng(len(X))
    known = np.nan_to_num(X)
    noise = rng.normal(size=(len(X), 5))
    Y = np.c_[known.sum(axis=1), 100 * known[:, 0] ** 2, np.sin(known[:, 1]), 1e-3 * known[:, 2], known[:, 3]]
    Y = Y + 0.1 * Y.std(axis=0) * noise
    if task == "classes":
        return np.array(["low", "middle", "high"])[np.digitize(Y[:, 0], [-1, 1])]
    return Y[:, 0] if task == "one" else Y


def make_extreme_rows(X, extreme=1e6):
    """10,000 rows: ordinary, with missing values, far away, and copies of training rows."""
    rng = np.random.default_rng(7)
    far = rng.normal(size=(2_000, N_FEATURES)) * np.exp(rng.uniform(0, np.log(extreme), size=(2_000, 1)))
    return np.vstack([make_rows(7_000, 1), far, X[rng.integers(len(X), size=1_000)]])


def fit_model(backbone, task, **options):
    X = make_rows(400, 0)
    kind = HCMClassifier if task == "classes" else HCMRegressor
    model = kind(backbone, random_state=0, **options).fit(X[:250], make_targets(X, task)[:250])
    model.calibrate(X[250:], make_targets(X, task)[250:])
    return model.set_threshold(AcceptShare(0.9), novelty=Novelty(false_alarm=0.05)), X


@pytest.mark.parametrize("task", ["one", "five", "classes"])
@pytest.mark.parametrize("name", list(BACKBONES))
def test_every_backbone_answers_in_onnxruntime_as_in_python(name, task, tmp_path):
    model, X = fit_model(BACKBONES[name](), task)
    parity = export_onnx(model, tmp_path / "model.onnx", X=make_extreme_rows(X))
    assert parity.n_rows == 10_000
    assert ("same leaf" in parity.explanation) == (name in ("extra-trees", "random-forest", "tree", "boosting"))
    is_forest = name in ("extra-trees", "random-forest")
    assert ("into noise" in parity.explanation) == (task != "classes" and not is_forest)
    given = ["label", "probabilities", "set"] if task == "classes" else ["value", "sigma", "lower", "upper"]
    new = ["noise", "novelty", "novelty_p_value", "missed", "reason"]
    assert set(parity.largest) == {*given, *new, "uncertainty", "confidence", "accepted"}
    assert parity.n_leaf_differs == 0
    assert max(parity.relative.values()) < MEASURED
    # The figures are those of the file, which numpy confirms.
    session, metadata = open_graph(tmp_path / "model.onnx")
    some = make_extreme_rows(X)[::10]
    names = [output.name for output in session.get_outputs()]
    answers = dict(zip(names, session.run(None, {"X": some}), strict=True))
    result = model.assess(some)
    assert metadata["parity"] == parity.to_dict()
    assert metadata["coverage"] == 0.9
    np.testing.assert_allclose(answers["uncertainty"], result.uncertainty, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(answers["noise"], result.noise, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(answers["novelty"], result.novelty, atol=1e-9)
    far = np.abs(result.uncertainty - model.threshold_) > 1e-6
    far &= np.abs(result.missed - model.novelty_threshold_) > 1e-9
    assert far.sum() > 900
    assert (answers["accepted"] == result.accepted)[far].all()
    assert (answers["reason"] == result.reason)[far].all()
    assert {"", "uncertain", "uncertain and novel"} <= set(answers["reason"])
    assert answers["novelty_p_value"].min() == 1 / 151
    assert (answers["novelty_p_value"] == result.novelty_p_value).mean() > 0.99
    if task == "classes":
        assert (answers["label"] == result.value).all()
        assert (answers["set"] == result.prediction_set).all()
        np.testing.assert_allclose(answers["probabilities"], result.probabilities, atol=1e-9)
    else:
        for output in given:
            assert answers[output].shape == getattr(result, output).shape
            np.testing.assert_allclose(answers[output], getattr(result, output), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task", ["one", "five", "classes"])
@pytest.mark.parametrize("kind", ["joint", "quadratic"])
def test_frozen_heads_answer_as_in_python(task, kind, tmp_path):
    X = make_rows(400, 0, missing=False)
    y = make_targets(X, task)
    head = FrozenHead(kind, n_landmarks=80, random_state=0).fit(X[:250], y[:250])
    head.calibrate(X[250:], y[250:]).set_threshold(AcceptShare(0.9))
    given = make_extreme_rows(X)[2_000:]
    given = np.vstack([np.nan_to_num(given), np.zeros((1, N_FEATURES)), make_rows(1_999, 3, missing=False) * 1e80])
    parity = export_onnx(head, tmp_path / "head.onnx", X=given)
    assert parity.n_rows == 10_000
    assert max(parity.relative.values()) < MEASURED
    assert not head.assess(given[-1:]).accepted[0]  # so far away that there is nothing to say
    # Copies of calibration rows whose uncertainty is the threshold itself.
    assert parity.n_flag_differs < 20


@pytest.mark.parametrize(("task", "standardize"), [("five", True), ("five", "inputs"), ("classes", False)])
def test_networks_answer_within_the_bound_of_float32(task, standardize, tmp_path):
    torch = pytest.importorskip("torch")
    from onsphere.torch import TorchRegressor

    network = TorchRegressor(hidden_sizes=(20, 20), max_epochs=5, dropout=0.1, standardize=standardize, random_state=0)
    X = np.nan_to_num(make_rows(400, 0))
    y = make_targets(X, task)
    kind = HCMClassifier if task == "classes" else HCMRegressor
    model = kind(network).fit(X[:250], y[:250]).calibrate(X[250:], y[250:]).set_threshold(AcceptShare(0.9))
    before = torch.get_rng_state()
    parity = export_onnx(model, tmp_path / "model.onnx", X=np.nan_to_num(make_extreme_rows(X, extreme=10.0)))
    assert parity.n_rows == 10_000
    assert "float32" in parity.explanation
    assert parity.tolerance["novelty"] == 1e-5
    assert 0 < max(parity.relative.values()) < 1e-4
    assert torch.equal(before, torch.get_rng_state())


def test_rows_on_the_thresholds_of_trees_fall_into_the_same_leaves(tmp_path, monkeypatch):
    """Where float32 and float64 of a feature lie on different sides of a threshold, only the former counts."""
    X = make_rows(400, 0)
    model = HCMRegressor(ExtraTreesRegressor(25), random_state=0).fit(X, make_targets(X, "five"))
    edges = make_rows(4_000, 2)
    nodes = np.concatenate([tree.tree_.__getstate__()["nodes"] for tree in model.estimator_.estimators_])
    nodes = nodes[nodes["left_child"] >= 0][:4_000]
    exact = nodes["threshold"]
    near = [exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf), exact.astype(np.float32)]
    edges[np.arange(4_000), nodes["feature"]] = np.choose(np.arange(4_000) % 4, near)
    sizes = [tree.tree_.node_count for tree in model.estimator_.estimators_]
    for largest, n_groups in {sum(sizes): 1, sum(sizes) // 2: 3, 1: 25}.items():  # nodes that are gone through together
        monkeypatch.setattr(tree_graphs, "_N_NODES", largest)
        parity = export_onnx(model, tmp_path / "model.onnx", X=edges)
        assert parity.largest["value"] == 0
        operations = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
        assert operations.count("TreeEnsemble") == n_groups
    assert "float32" in parity.explanation


@pytest.mark.parametrize(
    ("embedding", "decoder", "score"),
    [
        ("lift", "product", "anchored"),
        ("lift", "projective", "distance"),
        ("lift", "mean", "sigma"),
        ("polar", "product", "violation"),
        ("polar", "mean", "signed"),
        ("torus", "product", "distance"),
        ("torus", "mean", "sigma"),
    ],
)
def test_every_embedding_decoder_and_score(embedding, decoder, score, tmp_path):
    options = {"embedding": embedding, "decoder": decoder, "uncertainty_score": score}
    model, X = fit_model(fill(Ridge()), "five", **options)
    assert max(export_onnx(model, tmp_path / "model.onnx", X=make_extreme_rows(X)).relative.values()) < 1e-8


def test_the_duplicate_embedding_and_a_target_of_one_column(tmp_path):
    X = np.nan_to_num(make_rows(200, 0))
    y = make_targets(X, "one")
    model = HCMRegressor(Ridge(), embedding="duplicate", decoder="product").fit(X, y)
    names = {"value", "uncertainty", "sigma"}
    assert set(export_onnx(model, tmp_path / "a.onnx", X=X).largest) == {*names, "noise", "novelty", "missed"}
    model = HCMRegressor(Ridge(), frames="target").fit(X, y)
    assert set(export_onnx(model, tmp_path / "a.onnx", X=X).largest) == names
    column = HCMRegressor(KNeighborsRegressor()).fit(X, y[:, None])
    export_onnx(column, tmp_path / "b.onnx", X=X)
    session, _ = open_graph(tmp_path / "b.onnx")
    assert session.run(["value"], {"X": X[:3]})[0].shape == (3, 1)


@pytest.mark.parametrize("score", ["violation", "signed", "gini", "reference"])
@pytest.mark.parametrize("kind", ["int", "bool", "float", "object"])
def test_class_scores_and_kinds_of_labels(score, kind, tmp_path):
    X = np.nan_to_num(make_rows(200, 0))
    labels = (X[:, 0] > 0).astype(object if kind == "object" else kind)
    if kind == "object":
        labels = np.where(X[:, 0] > 0, "yes", "no").astype(object)
    model = HCMClassifier(Ridge(), uncertainty_score=score, calibration=0.3, random_state=0).fit(X, labels)
    parity = export_onnx(model, tmp_path / "model.onnx", X=X, coverage=0.8)
    assert parity.largest["label"] == parity.largest["set"] == 0
    session, metadata = open_graph(tmp_path / "model.onnx")
    new = ["noise", "novelty", "novelty_p_value", "missed"]
    assert metadata["outputs"] == ["label", "probabilities", "uncertainty", *new, "set", "confidence"]
    assert (session.run(["label"], {"X": X})[0] == model.predict(X)).all()


def test_lone_leaves_dropped_columns_and_infinite_thresholds(tmp_path):
    """Trees of a single leaf, columns that the imputer drops, a rule that accepts all."""
    X = make_rows(120, 0)
    y = make_targets(X, "one")
    leaf = HCMRegressor(RandomForestRegressor(3, min_samples_leaf=100), random_state=0).fit(X, y)
    assert export_onnx(leaf, tmp_path / "a.onnx", X=X).largest["value"] < 1e-12
    X[:, 2] = np.nan
    model = HCMRegressor(make_pipeline(SimpleImputer(), Ridge()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Skipping features")
        model.fit(X[:60], y[:60]).calibrate(X[60:], y[60:]).set_threshold(MaxErrorRate(0.5, tolerance=1e9))
        export_onnx(model, tmp_path / "b.onnx", X=X)
    assert model.threshold_ == np.inf
    _, metadata = open_graph(tmp_path / "b.onnx")
    assert metadata["manifest"]["threshold"] == "inf"


def test_rows_that_the_model_rejects_are_never_accepted(tmp_path):
    for backbone in (ExtraTreesRegressor(5), Ridge()):
        X = np.nan_to_num(make_rows(120, 0))
        y = make_targets(X, "one")
        model = HCMRegressor(backbone, random_state=0).fit(X[:60], y[:60]).calibrate(X[60:], y[60:])
        model.set_threshold(MaxErrorRate(0.5, tolerance=1e9), novelty=Novelty(max=0.99))
        export_onnx(model, tmp_path / "model.onnx", X=X)
        session, _ = open_graph(tmp_path / "model.onnx")
        bad = np.zeros((3, N_FEATURES))
        bad[0, 1], bad[1, 1] = np.inf, -np.inf
        bad[2] = X[60]
        names = ["value", "sigma", "noise", "novelty", "missed"]
        for values in session.run(names, {"X": bad}):
            assert np.isnan(values).tolist() == [True, True, False]
        accepted, reason = session.run(["accepted", "reason"], {"X": bad})
        assert accepted.tolist() == [False, False, True]
        assert reason.tolist() == ["uncertain and novel", "uncertain and novel", ""]
    forest, X = fit_model(ExtraTreesRegressor(5), "one")
    export_onnx(forest, tmp_path / "forest.onnx", X=X)
    huge = np.full((1, N_FEATURES), 1e39)
    with np.errstate(over="ignore"), pytest.raises(InvalidInputError, match="too large"):
        forest.predict(huge)
    assert np.isnan(open_graph(tmp_path / "forest.onnx")[0].run(["uncertainty"], {"X": huge})[0]).all()


# --- differences that rounding does not explain ---


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    model, X = fit_model(fill(Ridge()), "one")
    path = tmp_path_factory.mktemp("numbers") / "model.onnx"
    export_onnx(model, path, X=X)
    return model, X, *open_graph(path)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    model, X = fit_model(fill(Ridge()), "classes")
    path = tmp_path_factory.mktemp("classes") / "model.onnx"
    export_onnx(model, path, X=X)
    return model, X, *open_graph(path)


def with_calibration(model, **changes):
    other = copy.copy(model)
    kind = RegressionCalibration if isinstance(model, HCMRegressor) else ClassCalibration
    kept = {name: value for name, value in vars(model.calibration_).items() if name in kind.__dataclass_fields__}
    other.calibration_ = kind(**(kept | changes))
    return other


def test_another_value_is_rejected(numbers):
    _, X, session, metadata = numbers
    other, _ = fit_model(fill(Ridge(alpha=2.0)), "one")
    with pytest.raises(InvalidInputError, match="another value in 400 of 400"):
        compare_answers(other, session, metadata["inputs"], X, 0.9)


def test_a_wrong_interval_or_confidence_is_rejected(numbers):
    model, X, session, metadata = numbers
    with pytest.raises(InvalidInputError, match="another lower"):
        compare_answers(model, session, metadata["inputs"], X, 0.8)
    other = with_calibration(model, uncertainty=model.calibration_.uncertainty * 1.5)
    with pytest.raises(InvalidInputError, match="another confidence"):
        compare_answers(other, session, metadata["inputs"], X, 0.9)


def test_flags_may_differ_only_at_the_threshold(numbers):
    model, X, session, metadata = numbers
    other = copy.copy(model)
    other.threshold_ = np.nextafter(model.threshold_, -np.inf)
    parity = compare_answers(other, session, metadata["inputs"], X, 0.9)
    assert parity.n_flag_differs == parity.largest["accepted"] >= 1
    other.threshold_ = model.threshold_ * 0.9
    with pytest.raises(InvalidInputError, match="another accepted"):
        compare_answers(other, session, metadata["inputs"], X, 0.9)


def test_a_wrong_share_or_reason_of_novelty_is_rejected(numbers):
    model, X, session, metadata = numbers
    other = with_calibration(model, missed=model.calibration_.missed * 0.9)
    with pytest.raises(InvalidInputError, match="another novelty_p_value"):
        compare_answers(other, session, metadata["inputs"], X, 0.9)
    other = copy.copy(model)
    other.novelty_threshold_ = np.nextafter(model.novelty_threshold_, -np.inf)
    assert compare_answers(other, session, metadata["inputs"], X, 0.9).largest["reason"] >= 1
    other.novelty_threshold_ = model.novelty_threshold_ * 0.5
    with pytest.raises(InvalidInputError, match=r"another (accepted|reason)"):
        compare_answers(other, session, metadata["inputs"], X, 0.9)


@pytest.mark.parametrize("is_tied", [True, False])
def test_noise_of_another_leaf_is_rejected_unless_rounding_decides(numbers, is_tied, monkeypatch):
    """A node's threshold is moved past the prediction of one row, by little or by much, to leaves with more noise."""
    model, X, session, metadata = numbers
    monkeypatch.setattr(parity_module, "_DOUBLE", 1e-6)  # more than trees round away
    other, row = copy.deepcopy(model), X[[7]]
    error = other._frames.error
    rows, _, value, sigma = model._predict_outputs(row)
    given = error.join_inputs(rows, value, sigma, model._frames.measure_novelty(rows)[1])[0, N_FEATURES]
    tree = next(each.tree_ for each in error.trees.estimators_ if each.tree_.feature[0] == N_FEATURES)
    state = tree.__getstate__()
    nodes, middle = state["nodes"], tree.children_right[0]
    is_left = given <= nodes["threshold"][0]
    nodes["threshold"][0] = given + (-1 if is_left else 1) * (5e-7 if is_tied else 1e-2)
    state["values"][middle:] *= 1e6 if is_left else 1
    state["values"][1:middle] *= 1 if is_left else 1e6
    tree.__setstate__(state)
    if is_tied:
        parity = compare_answers(other, session, metadata["inputs"], row, 0.9)
        assert parity.n_leaf_differs == 1
        assert parity.largest["noise"] > 1
        assert parity.relative["noise"] == 0
    else:
        with pytest.raises(InvalidInputError, match="another uncertainty"):
            compare_answers(other, session, metadata["inputs"], row, 0.9)


def test_a_wrong_label_or_set_is_rejected(classes):
    model, X, session, metadata = classes
    other = copy.copy(model)
    other.classes_ = model.classes_[::-1]
    with pytest.raises(InvalidInputError, match="another label"):
        compare_answers(other, session, metadata["inputs"], X, 0.9)
    other = with_calibration(model, uncertainty=model.calibration_.uncertainty * 1.5)
    with pytest.raises(InvalidInputError, match="another confidence"):
        compare_answers(other, session, metadata["inputs"], X, 0.9)
    other = with_calibration(model, true_scores=model.calibration_.true_scores * 0.5)
    with pytest.raises(InvalidInputError, match="another set"):
        compare_answers(other, session, metadata["inputs"], X, 0.9)


def test_a_graph_that_returns_nan_is_rejected(numbers):
    model, X, session, metadata = numbers

    class Silent:
        def get_outputs(self):
            return session.get_outputs()

        def run(self, names, given):
            value, *others = session.run(names, given)
            return [np.full_like(value, np.nan), *others]

    with pytest.raises(InvalidInputError, match=r"another value in 400 of 400 row\(s\).*inf"):
        compare_answers(model, Silent(), metadata["inputs"], X, 0.9)


def test_parity_as_text_and_as_json(numbers):
    model, X, session, metadata = numbers
    parity = compare_answers(model, session, metadata["inputs"], X, 0.9)
    assert isinstance(parity, Parity)
    assert str(parity).startswith("Compared on 400 given rows. Largest difference: value ")
    assert json.loads(json.dumps(parity.to_dict()))["n_rows"] == 400
    assert prepare_inputs(metadata["inputs"], X)["X"].dtype == np.float64


def test_a_kernel_that_enlarges_rounding_has_a_larger_tolerance(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    X[:, 1] = X[:, 0] ** 2  # on a curve, where landmarks nearly coincide
    y = X[:, 0] + 0.01 * rng.normal(size=400)
    backbone = fill(Nystroem(n_components=200, random_state=0), RidgeCV(np.logspace(-6, 2, 9)))
    model = HCMRegressor(backbone, calibration="split", random_state=0).fit(X, y)
    parity = export_onnx(model, tmp_path / "model.onnx", X=X)
    assert 1e-9 < parity.tolerance["value"] <= 1.01e-6
    assert parity.relative["value"] < parity.tolerance["value"]
    assert "a kernel whose landmarks nearly coincide enlarges up to 1,000,000 times" in parity.explanation
    assert "differences of up to 1e-06 of an answer's size" in parity.explanation
