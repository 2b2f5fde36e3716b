"""Files that anybody may have written: whatever they say, they are loaded or rejected with a sentence."""

import copy
import hashlib
import io
import json
import os
import random
import zipfile

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from onsphere import HCMRegressor, InvalidInputError, OnsphereError, load
from onsphere._internal.saved_models import check_trees
from onsphere.export.deployed import open_deployed
from onsphere.persistence import read_manifest

N_FORGED = 1_200  # manifests of each of two files
N_LOADED = N_FORGED if os.environ.get("ONSPHERE_LONG") else 20  # of them, with the model, which takes most of the time
WRONG = [None, True, -1, 0, 10**8, 10**30, 1e308, -0.5, "", "x", "inf", "\x00", [], [None], ["a"], [[1]], {}, {"a": 1}]


def read_parts(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("manifest.json")), archive.read("model.skops")


def write_parts(path, manifest, content, packing=zipfile.ZIP_STORED):
    if isinstance(manifest, dict) and isinstance(manifest.get("parts"), dict):
        part = manifest["parts"].get("model.skops")
        if isinstance(part, dict) and "sha256" in part:
            part["sha256"] = hashlib.sha256(content).hexdigest()
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("model.skops", content)
    return path


def list_places(value, place=()):
    """Every place in nested dicts and lists."""
    yield place
    for name, part in (
        value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    ):
        yield from list_places(part, (*place, name))


def forge(manifest, rng, places):
    """A manifest with something wrong, missing or new at one or two places."""
    forged = copy.deepcopy(manifest)
    for _ in range(rng.choice([1, 1, 2])):
        *way, last = rng.choice(places)
        part = forged
        try:
            for name in way:
                part = part[name]
            if rng.random() < 0.2:
                del part[last]
            else:
                part[last] = copy.deepcopy(rng.choice(WRONG))
        except (KeyError, IndexError, TypeError):
            continue
    return forged


@pytest.mark.parametrize("name", ["table", "classes"])
def test_forged_manifests_are_loaded_or_rejected(models, tmp_path, name):
    rng = random.Random(name)
    manifest, content = read_parts(models[name])
    places = [place for place in list_places(manifest) if place and place[0] != "parameters"]
    n_rejected = 0
    for index in range(N_FORGED):
        model = content if index < N_LOADED else b"none"
        path = write_parts(tmp_path / "forged.onsphere", forge(manifest, rng, places), model)
        try:
            read_manifest(path)
            if index < N_LOADED:
                described = open_deployed(path).facts.describe()
                json.dumps(described, default=str)
                assert len(described["columns"]) <= 10
        except OnsphereError:
            n_rejected += 1
    assert n_rejected > N_FORGED / 5


def test_a_manifest_about_another_model_is_rejected(models, tmp_path):
    manifest, content = read_parts(models["array"])
    for part, value in (("n_features", 10**8), ("columns", ["a", "b"]), ("classes", ["a"]), ("model", "FrozenHead")):
        path = write_parts(tmp_path / "forged.onsphere", manifest | {part: value}, content)
        with pytest.raises(InvalidInputError, match=f"another model, by its {part}"):
            open_deployed(path)


def pack(parts, packing):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", packing) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return packed.getvalue()


def test_an_archive_inside_the_model_cannot_grow_without_limit(models, tmp_path):
    manifest, content = read_parts(models["array"])
    bomb = pack({"data.npy": b"\x00" * 50_000_000}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    path = write_parts(tmp_path / "bomb.onsphere", manifest, pack(parts | {"1.npz": bomb}, zipfile.ZIP_STORED))
    with pytest.raises(InvalidInputError, match="would unpack to"):
        load(path)
    small = pack({"data.npy": b"\x00" * 1000}, zipfile.ZIP_STORED)
    path = write_parts(tmp_path / "fine.onsphere", manifest, pack(parts | {"1.npz": small}, zipfile.ZIP_STORED))
    assert load(path).n_features_in_ == 2
    path = write_parts(tmp_path / "odd.onsphere", manifest, pack(parts | {"1.npz": b"odd"}, zipfile.ZIP_STORED))
    with pytest.raises(InvalidInputError, match="not a zip file"):
        load(path)


@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_damage_in_any_packing_is_rejected(models, tmp_path, packing):
    manifest, content = read_parts(models["array"])
    whole = bytearray(write_parts(tmp_path / "whole.onsphere", manifest, content, packing).read_bytes())
    for place in range(60, len(whole) - 200, len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place : place + 20] = b"\xff" * 20
        (tmp_path / "damaged.onsphere").write_bytes(damaged)
        with pytest.raises(InvalidInputError):
            load(tmp_path / "damaged.onsphere")


def test_a_tree_that_points_outside_its_categories_is_rejected():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": pd.Categorical(rng.choice(list("abcdef"), 300)), "size": rng.normal(size=300)})
    target = frame["size"] + frame["shop"].cat.codes % 2
    backbone = HistGradientBoostingRegressor(max_iter=3, categorical_features="from_dtype", random_state=0)
    backbone.fit(frame, target)
    check_trees(backbone)
    predictor = backbone._predictors[0][0]
    places = np.flatnonzero((predictor.nodes["is_categorical"] != 0) & (predictor.nodes["is_leaf"] == 0))
    assert len(places)
    predictor.nodes["bitset_idx"][places[0]] = 10_000
    with pytest.raises(InvalidInputError, match="points outside"):
        check_trees(backbone)


def test_a_forest_without_categories_is_accepted():
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = HCMRegressor(HistGradientBoostingRegressor(max_iter=2), random_state=0).fit(X, X[:, 0])
    check_trees(model)
