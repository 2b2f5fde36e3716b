"""Saved models give the same predictions after loading, and nothing but a model is ever loaded."""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import threading
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import randint
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, ShuffleSplit
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

import onsphere
from onsphere import (
    AcceptShare,
    DriftMonitor,
    Duplicate,
    FalseAlarm,
    FrozenHead,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    MaxErrorRate,
    NotFittedError,
    Novelty,
    OnsphereWarning,
    Tolerance,
    baselines,
    load,
    persistence,
)
from onsphere._internal.saved_models import rename_settings
from onsphere.persistence import FORMAT, read_manifest
from onsphere.torch import TorchRegressor

FORMAT_1 = Path(__file__).parent / "data" / "format-1.onsphere"

trees = ExtraTreesRegressor(5)
network = TorchRegressor(hidden_sizes=(6,), max_epochs=2)


def rows(n=60, n_features=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, n_features))


def numbers(X):
    return X[:, 0] + 0.3 * X[:, 1] ** 2


def fit_model(model=None, **options):
    model = HCMRegressor(trees) if model is None else model
    X = rows()
    model.set_params(random_state=0, calibration="split", **options)
    return model.fit(X, numbers(X)).set_threshold(AcceptShare(0.8))


def assert_same(one, other):
    mine, theirs = one.to_dict(), other.to_dict()
    assert mine.keys() == theirs.keys()
    assert mine == theirs


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onsphere"


MODELS = [
    HCMRegressor(trees),
    HCMRegressor(RandomForestRegressor(5)),
    HCMRegressor(HistGradientBoostingRegressor(max_iter=3)),
    HCMRegressor(make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(5,), max_iter=2000, tol=0.1))),
    HCMRegressor(make_pipeline(SimpleImputer(), Nystroem(n_components=10), Ridge())),
    HCMRegressor(trees, embedding="torus"),
    HCMRegressor(trees, embedding=Duplicate(), decoder="product"),
    HCMRegressor(trees, uncertainty_score="anchored"),
    HCMRegressor(trees, frames="target"),
    HCMRegressor(network),
    HCMRegressor(GridSearchCV(Ridge(), {"alpha": [1, 2]}, cv=2)),
    HCMRegressor(GridSearchCV(Ridge(), {"alpha": [1, 2]}, cv=ShuffleSplit(2), scoring="neg_mean_absolute_error")),
    HCMRegressor(StackingRegressor([("ridge", Ridge())], cv=2)),
    HCMRegressor(GaussianProcessRegressor(ConstantKernel() * RBF(), alpha=0.1)),
    FrozenHead(),
    baselines.DeepEnsemble(network, n_members=2),
    baselines.MCDropout(TorchRegressor(hidden_sizes=(6,), max_epochs=2, dropout=0.2), n_passes=3),
    baselines.GaussianNLL(network),
    baselines.MixtureDensity(network),
    baselines.Evidential(network),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model)[:60].replace("\n", ""))
def test_round_trip_is_bit_equal(model, path):
    fit_model(model)
    X = rows(40, seed=1)
    assert model.save(path) == path
    assert_same(load(path).assess(X), model.assess(X))


@pytest.mark.parametrize("backbone", [trees, Ridge()], ids=["forest", "trees of the error frame"])
def test_noise_novelty_and_their_rule_are_kept(backbone, path):
    model = fit_model(HCMRegressor(backbone)).set_threshold(AcceptShare(0.8), novelty=Novelty(max=0.5))
    model.save(path)
    again, X = load(path), rows(40, seed=1) * 2
    assert_same(again.assess(X), model.assess(X))
    assert {"novel" in reason for reason in again.assess(X).reason} == {True, False}
    assert again.novelty_threshold_ == model.novelty_threshold_
    X = rows(60, seed=2)
    assert again.calibrate(X, numbers(X)).novelty_threshold_ == model.calibrate(X, numbers(X)).novelty_threshold_
    manifest = read_manifest(path)
    assert manifest["frames"] == ["target", "error", "input"]
    assert manifest["novelty_threshold"] == model.novelty_threshold_
    assert manifest["novelty_rule"] == "Novelty(max=0.5, false_alarm=None)"


@pytest.mark.parametrize(
    ("model", "frames"),
    [
        (HCMRegressor(trees, frames="target"), ["target"]),
        (HCMRegressor(trees, frames=("target", "input")), ["target", "input"]),
        (baselines.GaussianNLL(network), None),
    ],
    ids=["target", "input", "baseline"],
)
def test_the_manifest_says_which_frames_were_fitted(model, frames, path):
    fit_model(model).save(path)
    manifest = read_manifest(path)
    assert (manifest["frames"], manifest["novelty_threshold"], manifest["novelty_rule"]) == (frames, None, None)


@pytest.mark.parametrize("rule", [Tolerance(0.01), FalseAlarm(0.5), MaxErrorRate(0.5, tolerance=10.0), None], ids=str)
def test_rules_and_calibration_are_kept(rule, path):
    model = fit_model().set_threshold(rule)
    model.save(path)
    again = load(path)
    assert again.threshold_ == model.threshold_
    assert np.array_equal(again.calibration_.uncertainty, model.calibration_.uncertainty)
    X = rows(60, seed=2)
    assert again.calibrate(X, numbers(X)).threshold_ == model.calibrate(X, numbers(X)).threshold_


def test_classes_of_text_are_kept(path):
    X = rows()
    model = HCMClassifier(trees, calibration="split", random_state=0).fit(X, np.where(X[:, 0] > 0, "up", "döwn"))
    model.save(path)
    assert_same(load(path).assess(X), model.assess(X))
    assert read_manifest(path)["classes"] == ["döwn", "up"]


def test_several_outputs_of_a_frame_are_kept(path):
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(rows(), columns=["a", "b", "c"])
    Y = pd.DataFrame({"p": X["a"], "q": X["b"] * 2})
    model = HCMRegressor(trees, calibration="split", random_state=0).fit(X, Y)
    model.save(path)
    again = load(path)
    assert_same(again.assess(X), model.assess(X))
    with pytest.raises(InvalidInputError, match="feature names"):
        again.predict(X[["c", "b", "a"]])
    assert read_manifest(path)["columns"] == ["a", "b", "c"]


def test_another_process_predicts_the_same(path):
    model = fit_model()
    model.save(path)
    X = rows(20, seed=3)
    code = (
        "import json, sys, numpy as np, onsphere\n"
        "X = np.array(json.loads(sys.stdin.read()))\n"
        f"print(json.dumps(onsphere.load({str(path)!r}).assess(X).to_dict()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(X.tolist()), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == model.assess(X).to_dict()


def test_networks_load_without_training_again(path):
    model = HCMRegressor(TorchRegressor(nn.Linear, max_epochs=1), random_state=0).fit(rows(), numbers(rows()))
    with pytest.warns(OnsphereWarning, match=r"load\(path, trusted=\['torch\.nn\.modules\.linear\.Linear'\]\)") as told:
        model.save(path)
    assert told[0].filename == __file__
    assert set(read_manifest(path)["needs"]) == {"torch"}
    with pytest.raises(InvalidInputError, match=r"torch\.nn\.modules\.linear\.Linear"):
        load(path)
    again = load(path, trusted=["torch.nn.modules.linear.Linear"])
    assert_same(again.assess(rows()), model.assess(rows()))


def test_a_module_that_is_gone_is_named(path, tmp_path, monkeypatch):
    (tmp_path / "own_trees.py").write_text(
        "from sklearn.tree import DecisionTreeRegressor\n\nclass OwnTree(DecisionTreeRegressor):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own_trees = importlib.import_module("own_trees")
    model = HCMRegressor(own_trees.OwnTree(random_state=0)).fit(rows(), numbers(rows()))
    with pytest.warns(OnsphereWarning, match=r"trusted=\['own_trees\.OwnTree'\]"):
        model.save(path)
    assert read_manifest(path)["needs"] == {}  # no package has it
    monkeypatch.delitem(sys.modules, "own_trees")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    with pytest.raises(InvalidInputError, match=r"Expected the module own_trees.*a machine without it"):
        load(path, trusted=["own_trees.OwnTree"])


def test_a_file_of_format_1_can_still_be_read():
    with zipfile.ZipFile(FORMAT_1) as archive:
        assert set(archive.namelist()) == {"manifest.json", "model.skops"}
    manifest = read_manifest(FORMAT_1)
    assert manifest["format"] == 1
    made_with, here = manifest["libraries"]["scikit-learn"], persistence._list_versions()["scikit-learn"]
    model = load(FORMAT_1)
    assert made_with == here, "load would have warned"
    expected = json.loads(FORMAT_1.with_suffix(".json").read_text())
    got = model.assess(np.array(expected["X"])).to_dict()
    assert got.keys() == {*expected["answer"], "reason"}
    for name, values in expected["answer"].items():
        if name != "output_names":
            np.testing.assert_allclose(got[name], values, rtol=1e-12)


def test_the_manifest_describes_the_model(path):
    model = fit_model()
    model.save(path, summary={"made from": "rows.csv", "share": np.float64(0.5), "list": np.arange(2)})
    manifest = read_manifest(path)
    assert manifest["format"] == FORMAT
    assert manifest["onsphere"] == onsphere.__version__
    assert manifest["model"] == "HCMRegressor"
    assert manifest["n_features"] == 3
    assert manifest["calibration_rows"] == 12
    assert manifest["threshold"] == model.threshold_
    assert manifest["rule"] == "AcceptShare(share=0.8)" or "0.8" in manifest["rule"]
    assert manifest["target_spread"] == np.asarray(model.spread_).tolist()
    assert manifest["summary"] == {"made from": "rows.csv", "share": 0.5, "list": [0, 1]}
    assert manifest["libraries"].keys() >= {"numpy", "scikit-learn", "skops"}


# --- saving fails ---


def test_a_search_over_distributions_says_what_can_be_kept(path):
    search = RandomizedSearchCV(Ridge(), {"alpha": randint(1, 9)}, n_iter=2, cv=2, random_state=0)
    with pytest.raises(InvalidTypeError, match=r"RecursionError: .*[a-z]\. Use .*its best_estimator_"):
        fit_model(HCMRegressor(search)).save(path)


def test_an_unfitted_model_is_not_saved(path):
    with pytest.raises(NotFittedError):
        HCMRegressor().save(path)
    assert not path.exists()


def test_a_network_given_as_an_object_cannot_be_saved(path):
    model = HCMRegressor(TorchRegressor(nn.Linear(3, 4), max_epochs=1)).fit(rows(), numbers(rows()))
    with pytest.raises(InvalidTypeError, match="without pickle"):
        model.save(path)
    assert not path.exists()


@pytest.mark.parametrize("summary", [{"a": object()}, {"a": float("nan")}])
def test_a_summary_must_be_plain(summary, path):
    with pytest.raises(InvalidTypeError, match="plain JSON"):
        fit_model().save(path, summary=summary)
    assert not path.exists()


def test_a_path_that_cannot_be_written_is_an_error(tmp_path):
    model = fit_model()
    for place in (tmp_path, tmp_path / "nowhere" / "model.onsphere"):
        with pytest.raises(InvalidInputError, match="Expected to write"):
            model.save(place)


def test_a_failed_save_leaves_the_old_file(path, monkeypatch):
    model = fit_model()
    model.save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InvalidInputError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# --- loading fails ---


def replace_parts(path, **parts):
    """Write the file again with some parts replaced."""
    with zipfile.ZipFile(path) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    new = old | {name.replace("__", "."): content for name, content in parts.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in new.items():
            if content is not None:
                archive.writestr(name, content)


def change_manifest(path, **changes):
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    replace_parts(path, manifest__json=json.dumps(manifest | changes))


def replace_model(path, content):
    """Write the file again with another model and its checksum."""
    import hashlib

    replace_parts(path, model__skops=content)
    change_manifest(path, parts={"model.skops": {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}})


def dump_skops(thing):
    import skops.io

    return skops.io.dumps(thing)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 and no more", b"name,value\n1,2\n", os.urandom(3000)],
    ids=["empty", "cut", "csv", "noise"],
)
def test_files_that_are_not_models_are_rejected(content, path):
    path.write_bytes(content)
    for read in (load, read_manifest):
        with pytest.raises(InvalidInputError, match="Expected a file written by save"):
            read(path)


def test_a_path_without_a_file_is_rejected(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        load(tmp_path / "nothing")
    with pytest.raises(InvalidInputError, match="is a folder"):
        load(tmp_path)


def test_every_truncated_file_is_rejected(path):
    fit_model().save(path)
    whole = path.read_bytes()
    for end in np.linspace(0, len(whole) - 1, 25).astype(int):
        path.write_bytes(whole[:end])
        with pytest.raises(InvalidInputError):
            load(path)


def test_every_flipped_byte_is_rejected_or_damageless(path):
    model = fit_model()
    model.save(path)
    expected = model.predict(rows())
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 60).astype(int):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with contextlib.suppress(InvalidInputError):
            assert np.array_equal(load(path).predict(rows()), expected)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model__skops": None}, "no part model.skops"),
        ({"manifest__json": None}, "no part manifest.json"),
        ({"manifest__json": "[]"}, "which format"),
        ({"manifest__json": "{}"}, "which format"),
        ({"manifest__json": '{"format": true}'}, "which format"),
        ({"manifest__json": '{"format": -5}'}, "which format"),
        ({"manifest__json": '{"format": 1}'}, "should about: onsphere, libraries, model, n_features, columns"),
        ({"manifest__json": '{"format": 1, "summary": null, "libraries": {}}'}, "rule, summary"),
        ({"manifest__json": "{"}, "cannot be read"),
        ({"model__skops": b"PK other"}, "checksum"),
    ],
)
def test_missing_or_wrong_parts_are_rejected(parts, message, path):
    fit_model().save(path)
    replace_parts(path, **parts)
    with pytest.raises(InvalidInputError, match=message):
        load(path)


@pytest.mark.parametrize("parts", [None, [], {}, {"model.skops": {}}])
def test_a_manifest_without_a_checksum_is_rejected(parts, path):
    fit_model().save(path)
    change_manifest(path, parts=parts)
    with pytest.raises(InvalidInputError, match="no checksum"):
        load(path)


def test_a_newer_format_is_rejected(path):
    fit_model().save(path)
    change_manifest(path, format=FORMAT + 1, onsphere="9.9")
    with pytest.raises(InvalidInputError, match=rf"format {FORMAT + 1}, made by onsphere 9\.9"):
        load(path)


def test_other_versions_give_a_warning(path):
    fit_model().save(path)
    change_manifest(path, libraries={"scikit-learn": "0.1", "unknown": "1"})
    with pytest.warns(OnsphereWarning, match=r"scikit-learn 0\.1 \(here"):
        load(path)


class Untrusted:
    """A class that is not trusted; it counts its objects."""

    made = 0

    def __init__(self):
        Untrusted.made += 1


def test_objects_of_untrusted_types_are_never_created(path):
    fit_model().save(path)
    for thing, name in ((Untrusted(), "Untrusted"), (threading.Event(), "Event"), (os.system, "system")):
        before = Untrusted.made
        try:
            content = dump_skops(thing)
        except Exception:  # skops does not write it, so no file can hold it
            continue
        replace_model(path, content)
        with pytest.raises(InvalidInputError, match=name):
            load(path)
        assert Untrusted.made == before


@pytest.mark.parametrize(
    ("name", "trusted"),
    [
        ("onsphere.models.regressor.HCMRegressor", True),
        ("onsphere.calibration.calibration.RegressionCalibration", True),
        ("onsphere.decision.AcceptShare", True),
        ("onsphere.models.frames.Frames", True),
        ("onsphere.models.novelty.InputFrame", True),
        ("onsphere.models.noise.ErrorFrame", True),
        ("onsphere.torch.networks.MLP", True),
        ("onsphere.drift.monitor.DriftMonitor", False),
        ("onsphere.errors.InvalidInputError", False),
        ("onsphere.models.classifier.ClassificationMixin", False),
        ("onsphere.persistence.load", False),
        ("onsphere.decision.math", False),
        ("onsphere.decision.Unknown", False),
        ("onsphere.unknown.Thing", False),
        ("onsphere.torch.unknown.Thing", False),
        ("onsphere", False),
        ("sklearn.linear_model._ridge.Ridge", False),
        ("onsphere_addon.models.HCMRegressor", False),
    ],
)
def test_only_estimators_dataclasses_and_networks_of_onsphere_are_trusted(name, trusted):
    assert persistence._is_own_class(name) == trusted


def test_a_file_with_another_class_of_onsphere_is_rejected(path):
    model = fit_model()
    model.save(path)
    model.monitor_ = DriftMonitor(model)
    replace_model(path, dump_skops(model))
    with pytest.raises(
        InvalidInputError, match=r"types that onsphere trusts\. Got .*onsphere\.drift\.monitor\.DriftMonitor"
    ):
        load(path)


# --- files of version 0.1 ---


def load_format_1(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The model was made with", OnsphereWarning)
        return load(FORMAT_1.with_suffix("") / f"{name}.onsphere")


@pytest.mark.parametrize(("name", "score"), [("two-outputs", "distance"), ("torus", "sigma")])
def test_settings_of_version_0_1_have_their_new_names(name, score):
    model = load_format_1(name)
    assert model.uncertainty_score == model._calibrated_with["uncertainty_score"] == score
    assert not hasattr(model, "_measured_with")


def test_settings_of_an_uncalibrated_model_of_version_0_1_are_renamed():
    model = HCMRegressor(trees, uncertainty_score="uncertainty")
    rename_settings(model)
    assert model.uncertainty_score == "distance"
    assert not hasattr(model, "_calibrated_with")


@pytest.mark.parametrize("name", ["two-outputs", "frozen-numbers", "frozen-classes"])
def test_a_model_of_version_0_1_can_be_calibrated_again_and_keeps_its_rule(name, path):
    model = load_format_1(name)
    assert repr(model._rule) == "AcceptShare(share=0.9)"
    X = rows(200, 2, seed=5)
    y = {"two-outputs": X, "frozen-numbers": numbers(X)}.get(name)
    y = model.classes_[(X[:, 0] > 0).astype(int)] if y is None else y
    before = model.threshold_
    model.calibrate(X, y)
    assert len(model.calibration_) == 200
    assert model.threshold_ != before
    assert model.threshold_ == AcceptShare(0.9).threshold(model.calibration_)
    model.save(path)
    assert read_manifest(path)["rule"] == "AcceptShare(share=0.9)"
    assert_same(load(path).assess(X), model.assess(X))


def test_a_model_of_another_library_is_rejected(path):
    fit_model().save(path)
    replace_model(path, dump_skops(Ridge().fit(rows(), numbers(rows()))))
    with pytest.raises(InvalidInputError, match="Ridge, which is not a model of onsphere"):
        load(path)


@pytest.mark.parametrize("changes", [{"calibration_": "boo"}, {"estimator_": None}, {"_frames": "boo"}])
def test_a_model_that_was_not_fitted_by_onsphere_is_rejected(changes, path):
    model = fit_model()
    model.save(path)
    vars(model).update(changes)
    replace_model(path, dump_skops(model))
    with pytest.raises(InvalidInputError, match="not fitted by onsphere"):
        load(path)


def test_a_model_part_that_cannot_be_read_is_rejected(path):
    fit_model().save(path)
    for content in (b"no zip", _zip({"schema.json": b"{}"}), _zip({"other": b""})):
        replace_model(path, content)
        with pytest.raises(InvalidInputError, match="undamaged file"):
            load(path)


def _zip(parts, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_zip_bombs_are_not_unpacked(path):
    fit_model().save(path)
    replace_parts(path, model__skops=bytes(50_000_000))
    with pytest.raises(InvalidInputError, match="would unpack to 50,000,000 bytes"):
        load(path)
    fit_model().save(path)
    replace_parts(path, manifest__json=b'{"format": 1}' + b" " * 50_000_000)
    with pytest.raises(InvalidInputError, match="would unpack"):
        load(path)
    fit_model().save(path)
    replace_model(path, _zip({"schema.json": b"{}", "big": bytes(1_000_000)}, zipfile.ZIP_DEFLATED))
    with pytest.raises(InvalidInputError, match="would unpack"):
        load(path)


@pytest.mark.parametrize(
    "backbone", [trees, HistGradientBoostingRegressor(max_iter=3), Ridge()], ids=["forest", "boosting", "error frame"]
)
@pytest.mark.parametrize("damage", ["child", "loop", "feature"])
def test_trees_that_point_outside_are_rejected(backbone, damage, path):
    """Predicting with them would read memory outside the tree, or never end."""
    model = fit_model(HCMRegressor(backbone))
    has_nodes = not isinstance(backbone, HistGradientBoostingRegressor)
    inside = model._frames.error.trees if isinstance(backbone, Ridge) else model.estimator_
    if has_nodes:
        tree = inside.estimators_[0].tree_
        state = tree.__getstate__()
        names, left = ("left_child", "right_child", "feature"), state["nodes"]
    else:
        names, left = ("left", "right", "feature_idx"), inside._predictors[0][0].nodes
    place = {"child": 0, "loop": 1, "feature": 2}[damage]
    left[names[place]][0] = {"child": 10**6, "loop": 0, "feature": 999}[damage]
    if has_nodes:
        tree.__setstate__(state)
    model.save(path)
    with pytest.raises(InvalidInputError, match="points outside"):
        load(path)


def test_what_could_not_be_found_again_is_refused_when_it_is_saved(path):
    """A file that names a lambda could be written, and never be loaded."""

    def keep(rows):
        return rows

    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60.0)
    for function, name in ((lambda rows: rows, "test_persistence.<lambda>"), (keep, "test_persistence.keep")):
        model = HCMRegressor(make_pipeline(FunctionTransformer(function), Ridge()), frames="target").fit(X, y)
        with pytest.raises(InvalidTypeError, match=rf"found again by name\. Got \S*{name}\. A lambda"):
            model.save(path)
        assert not path.exists()


def test_a_function_of_the_script_that_is_run_is_refused_too(path, monkeypatch):
    def add_columns(rows):
        return rows.sum(axis=1)

    add_columns.__module__, add_columns.__qualname__ = "__main__", "add_columns"
    monkeypatch.setattr(sys.modules["__main__"], "add_columns", add_columns, raising=False)
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = HCMRegressor(add_columns).fit(X, X.sum(axis=1) + X[:, 0] ** 3)
    with pytest.raises(
        InvalidTypeError, match=r"Got __main__\.add_columns\. A lambda, or what is defined .*in the script"
    ):
        model.save(path)
    assert not path.exists()


def test_without_skops_it_says_what_to_install(path, monkeypatch):
    model = fit_model()
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    for call in (lambda: model.save(path), lambda: load(path)):
        with pytest.raises(onsphere.MissingExtraError, match=r"needs skops.*onsphere\[cli\]"):
            call()


@pytest.mark.parametrize("is_loaded", [True, False])
def test_what_skops_would_import_on_its_way_is_left_as_it_was(is_loaded, monkeypatch):
    name = "sklearn.externals.array_api_compat.torch"
    monkeypatch.delitem(sys.modules, name, raising=False)
    if is_loaded:
        monkeypatch.setitem(sys.modules, name, sys)
    persistence._import_skops("A test")
    assert (name in sys.modules) is is_loaded


def test_the_manifest_leaves_out_libraries_that_are_not_installed(monkeypatch):
    monkeypatch.setattr(persistence, "_LIBRARIES", ("numpy", "unknown"))
    assert list(persistence._list_versions()) == ["numpy"]
