"""Models of older files give the answers recorded then: in Python, as ONNX graphs and over HTTP."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from fastapi.testclient import TestClient

from onsphere import export_onnx, load
from onsphere.export import open_graph, prepare_inputs
from onsphere.persistence import read_manifest
from onsphere.service import Settings, create_app

DATA = Path(__file__).parent / "data"
RECORDED = {
    f"{folder}/{name}": answers
    for folder in ("format-1", "format-2")
    for name, answers in json.loads((DATA / folder / "answers.json").read_text()).items()
}
RENAMED = {"in_set": "prediction_set"}

pytestmark = pytest.mark.filterwarnings("ignore:The model was made with")


def get_rows(name):
    """Return the recorded rows as the model takes them, and as JSON."""
    given = RECORDED[name]["rows"]
    if isinstance(given[0], list):
        return np.array(given), given
    frame = pd.DataFrame(given)
    columns = read_manifest(DATA / f"{name}.onsphere")["summary"]["columns"]
    features = [each["name"] for each in columns if each["kind"] in ("number", "boolean", "category", "date")]
    return frame.assign(day=pd.to_datetime(frame["day"]))[features], given


def assert_alike(ours, recorded, where=""):
    """Compare all but the last digits of numbers: another processor adds up in another order."""
    if isinstance(recorded, dict):
        assert ours.keys() == recorded.keys(), where
        for key, value in recorded.items():
            assert_alike(ours[key], value, f"{where}.{key}")
    elif isinstance(recorded, list):
        assert len(ours) == len(recorded), where
        for place, value in enumerate(recorded):
            assert_alike(ours[place], value, f"{where}[{place}]")
    elif isinstance(recorded, float):
        assert math.isclose(ours, recorded, rel_tol=1e-6, abs_tol=1e-9), where
    else:
        assert ours == recorded, where


@pytest.mark.parametrize("name", RECORDED)
def test_a_model_gives_the_recorded_assessment(name):
    rows, _ = get_rows(name)
    recorded = {RENAMED.get(field, field): values for field, values in RECORDED[name]["assess"].items()}
    if "accepted" in recorded:  # to which a reason was added later
        recorded["reason"] = ["" if accepted else "uncertain" for accepted in recorded["accepted"]]
    model = load(DATA / f"{name}.onsphere")
    assert_alike(model.assess(rows).to_dict(), recorded)
    assert model.get_params()["frames"] == "target"


def test_a_model_without_signs_says_so_and_keeps_its_intervals_when_it_is_saved_again(tmp_path):
    name = "format-2/numbers"
    rows, _ = get_rows(name)
    model = load(DATA / f"{name}.onsphere")
    assert not model.calibration_.is_signed
    again = load(model.save(tmp_path / "again.onsphere"))
    assert not again.calibration_.is_signed
    np.testing.assert_array_equal(again.predict_interval(rows), model.predict_interval(rows))


@pytest.mark.parametrize("name", RECORDED)
def test_its_graph_is_the_recorded_one(name, tmp_path):
    rows, _ = get_rows(name)
    recorded = RECORDED[name]["graph"]
    summary = read_manifest(DATA / f"{name}.onsphere")["summary"]
    export_onnx(load(DATA / f"{name}.onsphere"), tmp_path / "model.onnx", X=rows, summary=summary or None)
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert len(graph.node) == recorded["nodes"]
    assert hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest() == recorded["sha256"]
    session, facts = open_graph(tmp_path / "model.onnx")
    assert {key: facts[key] for key in recorded["facts"]} == recorded["facts"]
    answers = session.run(facts["outputs"], prepare_inputs(facts["inputs"], rows))
    assert_alike({key: each.tolist() for key, each in zip(facts["outputs"], answers, strict=True)}, recorded["outputs"])


@pytest.mark.parametrize("kind", ["service", "service of the graph"])
@pytest.mark.parametrize("name", RECORDED)
def test_the_service_gives_the_recorded_answers(name, kind, tmp_path):
    rows, given = get_rows(name)
    recorded, path = RECORDED[name][kind], DATA / f"{name}.onsphere"
    if kind != "service":
        summary = read_manifest(path)["summary"]
        export_onnx(load(path), tmp_path / "model.onnx", X=rows, summary=summary or None)
        path = tmp_path / "model.onnx"
    app = create_app(Settings(str(path), watch=0.0, store=str(tmp_path / "store.sqlite")))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        reply = client.post("/v1/assess", json={"rows": given})
        assert reply.status_code == recorded["status"]
        assert_alike(reply.json() | {"model": None}, recorded["body"] | {"model": None})
        assert_alike(client.get("/v1/model").json()["columns"], recorded["columns"])
        bad = [{"size": "x", "day": "never", "unknown": 1}] if isinstance(given[0], dict) else [[1.0], ["a", 2.0]]
        reply = client.post("/v1/assess", json={"rows": bad})
        assert reply.status_code == recorded["bad"]["status"]
        assert_alike(reply.json(), recorded["bad"]["body"])
