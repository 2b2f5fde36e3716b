"""Saved models: the same answers elsewhere, and nothing but a model is ever loaded."""

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import onsphere
from onsphere import (
    AcceptShare,
    Duplicate,
    FalseAlarm,
    FrozenHead,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    MaxErrorRate,
    NotFittedError,
    OnsphereWarning,
    Tolerance,
    baselines,
    load,
    persistence,
)
from onsphere.persistence import FORMAT, read_manifest
from onsphere.torch import TorchRegressor

KEPT = Path(__file__).parent / "data" / "format-1.onsphere"

trees = ExtraTreesRegressor(5)
network = TorchRegressor(hidden_sizes=(6,), max_epochs=2)


def rows(n=60, n_features=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, n_features))


def numbers(X):
    return X[:, 0] + 0.3 * X[:, 1] ** 2


def fitted(model=None, **options):
    model = HCMRegressor(trees) if model is None else model
    X = rows()
    model.set_params(random_state=0, calibration="split", **options)
    return model.fit(X, numbers(X)).set_threshold(AcceptShare(0.8))


def same(one, other):
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
    HCMRegressor(network),
    FrozenHead(),
    baselines.DeepEnsemble(network, n_members=2),
    baselines.MCDropout(TorchRegressor(hidden_sizes=(6,), max_epochs=2, dropout=0.2), n_passes=3),
    baselines.GaussianNLL(network),
    baselines.MixtureDensity(network),
    baselines.Evidential(network),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model)[:60].replace("\n", ""))
def test_round_trip_is_bit_equal(model, path):
    fitted(model)
    X = rows(40, seed=1)
    assert model.save(path) == path
    same(load(path).assess(X), model.assess(X))


@pytest.mark.parametrize("rule", [Tolerance(0.01), FalseAlarm(0.5), MaxErrorRate(0.5, tolerance=10.0), None], ids=str)
def test_rules_and_calibration_are_kept(rule, path):
    model = fitted().set_threshold(rule)
    model.save(path)
    again = load(path)
    assert again.threshold_ == model.threshold_
    assert np.array_equal(again.calibration_.uncertainty, model.calibration_.uncertainty)
    X = rows(60, seed=2)
    assert again.calibrate(X, numbers(X)).threshold_ == model.calibrate(X, numbers(X)).threshold_


def test_classes_of_text(path):
    X = rows()
    model = HCMClassifier(trees, calibration="split", random_state=0).fit(X, np.where(X[:, 0] > 0, "up", "döwn"))
    model.save(path)
    same(load(path).assess(X), model.assess(X))
    assert read_manifest(path)["classes"] == ["döwn", "up"]


def test_several_outputs_of_a_frame(path):
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(rows(), columns=["a", "b", "c"])
    Y = pd.DataFrame({"p": X["a"], "q": X["b"] * 2})
    model = HCMRegressor(trees, calibration="split", random_state=0).fit(X, Y)
    model.save(path)
    again = load(path)
    same(again.assess(X), model.assess(X))
    with pytest.raises(InvalidInputError, match="feature names"):
        again.predict(X[["c", "b", "a"]])
    assert read_manifest(path)["columns"] == ["a", "b", "c"]


def test_in_another_process(path):
    model = fitted()
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
    model.save(path)
    with pytest.raises(InvalidInputError, match=r"torch\.nn\.modules\.linear\.Linear"):
        load(path)
    again = load(path, trusted=["torch.nn.modules.linear.Linear"])
    same(again.assess(rows()), model.assess(rows()))


def test_a_file_of_format_1_can_be_read_for_ever():
    with zipfile.ZipFile(KEPT) as archive:
        assert set(archive.namelist()) == {"manifest.json", "model.skops"}
    manifest = read_manifest(KEPT)
    assert manifest["format"] == 1
    made_with, here = manifest["libraries"]["scikit-learn"], persistence._list_versions()["scikit-learn"]
    model = load(KEPT)
    assert made_with == here, "load would have warned"
    expected = json.loads(KEPT.with_suffix(".json").read_text())
    got = model.assess(np.array(expected["X"])).to_dict()
    assert got.keys() == expected["answer"].keys()
    for name, values in expected["answer"].items():
        if name != "output_names":
            np.testing.assert_allclose(got[name], values, rtol=1e-12)


def test_the_manifest_says_what_the_model_is(path):
    model = fitted()
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


# --- what cannot be saved ---


def test_an_unfitted_model_is_not_saved(path):
    with pytest.raises(NotFittedError):
        HCMRegressor().save(path)
    assert not path.exists()


def test_a_network_given_as_it_is_cannot_be_saved(path):
    model = HCMRegressor(TorchRegressor(nn.Linear(3, 4), max_epochs=1)).fit(rows(), numbers(rows()))
    with pytest.raises(InvalidTypeError, match="without pickle"):
        model.save(path)
    assert not path.exists()


@pytest.mark.parametrize("summary", [{"a": object()}, {"a": float("nan")}])
def test_a_summary_must_be_plain(summary, path):
    with pytest.raises(InvalidTypeError, match="plain JSON"):
        fitted().save(path, summary=summary)
    assert not path.exists()


def test_places_that_cannot_be_written(tmp_path):
    model = fitted()
    for place in (tmp_path, tmp_path / "nowhere" / "model.onsphere"):
        with pytest.raises(InvalidInputError, match="Expected to write"):
            model.save(place)


def test_a_failed_save_leaves_the_old_file(path, monkeypatch):
    model = fitted()
    model.save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InvalidInputError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# --- what is not loaded ---


def repacked(path, **parts):
    """The file with other parts, and checksums that fit unless the manifest is given."""
    with zipfile.ZipFile(path) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    new = old | {name.replace("__", "."): content for name, content in parts.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in new.items():
            if content is not None:
                archive.writestr(name, content)


def with_manifest(path, **changes):
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    repacked(path, manifest__json=json.dumps(manifest | changes))


def signed(path, content):
    """The file with another model, and the checksum that fits it."""
    import hashlib

    repacked(path, model__skops=content)
    with_manifest(path, parts={"model.skops": {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}})


def skops_of(thing):
    import skops.io

    return skops.io.dumps(thing)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 and no more", b"name,value\n1,2\n", os.urandom(3000)],
    ids=["empty", "cut", "csv", "noise"],
)
def test_files_that_are_no_model(content, path):
    path.write_bytes(content)
    for read in (load, read_manifest):
        with pytest.raises(InvalidInputError, match="Expected a file written by save"):
            read(path)


def test_no_file(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        load(tmp_path / "nothing")
    with pytest.raises(InvalidInputError, match="is a folder"):
        load(tmp_path)


def test_every_cut_file_is_refused(path):
    fitted().save(path)
    whole = path.read_bytes()
    for end in np.linspace(0, len(whole) - 1, 25).astype(int):
        path.write_bytes(whole[:end])
        with pytest.raises(InvalidInputError):
            load(path)


def test_every_flipped_byte_is_refused_or_harmless(path):
    model = fitted()
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
        ({"manifest__json": '{"format": 1}'}, "lacks parts"),
        ({"manifest__json": '{"format": 1, "parts": [], "summary": {}, "libraries": {}}'}, "lacks parts"),
        ({"manifest__json": '{"format": 1, "parts": {}, "summary": null, "libraries": {}}'}, "lacks parts"),
        ({"manifest__json": '{"format": 1, "parts": {}, "summary": {}, "libraries": {}}'}, "no checksum"),
        ({"manifest__json": "{"}, "cannot be read"),
        ({"model__skops": b"PK other"}, "checksum"),
    ],
)
def test_parts_that_are_missing_or_wrong(parts, message, path):
    fitted().save(path)
    repacked(path, **parts)
    with pytest.raises(InvalidInputError, match=message):
        load(path)


def test_a_newer_format_is_refused(path):
    fitted().save(path)
    with_manifest(path, format=FORMAT + 1, onsphere="9.9")
    with pytest.raises(InvalidInputError, match=r"format 3, made by onsphere 9\.9"):
        load(path)


def test_other_versions_are_warned_of(path):
    fitted().save(path)
    with_manifest(path, libraries={"scikit-learn": "0.1", "unheard-of": "1"})
    with pytest.warns(OnsphereWarning, match=r"scikit-learn 0\.1 \(here"):
        load(path)


class Stranger:
    """What a file may name, and no more."""

    made = 0

    def __init__(self):
        Stranger.made += 1


def test_untrusted_types_are_never_made(path):
    fitted().save(path)
    for thing, name in ((Stranger(), "Stranger"), (threading.Event(), "Event"), (os.system, "system")):
        before = Stranger.made
        try:
            content = skops_of(thing)
        except Exception:  # what skops does not even write, nobody can sign
            continue
        signed(path, content)
        with pytest.raises(InvalidInputError, match=name):
            load(path)
        assert Stranger.made == before


@pytest.mark.parametrize("name", ["onsphere.nowhere.Thing", "onsphere.torch.nowhere.Thing", "onsphere.decision.math"])
def test_names_in_our_rooms_that_are_no_classes(name):
    assert not persistence._is_own_class(name)


def test_a_model_of_another_kind_is_refused(path):
    fitted().save(path)
    signed(path, skops_of(Ridge().fit(rows(), numbers(rows()))))
    with pytest.raises(InvalidInputError, match="Ridge, which is not a model of onsphere"):
        load(path)


@pytest.mark.parametrize("changes", [{"calibration_": "boo"}, {"estimator_": None}])
def test_a_model_that_was_not_fitted_by_onsphere(changes, path):
    model = fitted()
    model.save(path)
    vars(model).update(changes)
    signed(path, skops_of(model))
    with pytest.raises(InvalidInputError, match="not fitted by onsphere"):
        load(path)


def test_a_model_that_cannot_be_put_together(path):
    fitted().save(path)
    for content in (b"no zip", _zip({"schema.json": b"{}"}), _zip({"other": b""})):
        signed(path, content)
        with pytest.raises(InvalidInputError, match="undamaged file"):
            load(path)


def _zip(parts, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_bombs_are_not_unpacked(path):
    fitted().save(path)
    repacked(path, model__skops=bytes(50_000_000))
    with pytest.raises(InvalidInputError, match="would unpack to 50,000,000 bytes"):
        load(path)
    fitted().save(path)
    repacked(path, manifest__json=b'{"format": 1}' + b" " * 50_000_000)
    with pytest.raises(InvalidInputError, match="would unpack"):
        load(path)
    fitted().save(path)
    signed(path, _zip({"schema.json": b"{}", "big": bytes(1_000_000)}, zipfile.ZIP_DEFLATED))
    with pytest.raises(InvalidInputError, match="would unpack"):
        load(path)


@pytest.mark.parametrize("backbone", [trees, HistGradientBoostingRegressor(max_iter=3)], ids=["forest", "boosting"])
@pytest.mark.parametrize("harm", ["child", "loop", "feature"])
def test_trees_that_point_outside_are_refused(backbone, harm, path):
    """Asked as they are, they would read memory that is not theirs, or never end."""
    model = fitted(HCMRegressor(backbone))
    inside = model.estimator_.estimators_[0]
    if isinstance(backbone, ExtraTreesRegressor):
        tree = inside.tree_
        state = tree.__getstate__()
        names, left = ("left_child", "right_child", "feature"), state["nodes"]
    else:
        names, left = ("left", "right", "feature_idx"), inside._predictors[0][0].nodes
    place = {"child": 0, "loop": 1, "feature": 2}[harm]
    left[names[place]][0] = {"child": 10**6, "loop": 0, "feature": 999}[harm]
    if isinstance(backbone, ExtraTreesRegressor):
        tree.__setstate__(state)
    model.save(path)
    with pytest.raises(InvalidInputError, match="points outside"):
        load(path)


def test_without_skops_it_says_what_to_install(path, monkeypatch):
    model = fitted()
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    for call in (lambda: model.save(path), lambda: load(path)):
        with pytest.raises(onsphere.MissingExtraError, match=r"needs skops.*onsphere\[cli\]"):
            call()


def test_libraries_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr(persistence, "_LIBRARIES", ("numpy", "unheard-of"))
    assert list(persistence._list_versions()) == ["numpy"]
