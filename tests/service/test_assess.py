"""Requests with keys, and rows that cannot be read, as the child processes assess them."""

import json
import os
import pickle

import numpy as np
import pandas as pd
import pytest

from onsphere.errors import InvalidInputError
from onsphere.export.deployed import make_trial_row, open_deployed, read_content
from onsphere.service import Settings
from onsphere.service.answers import RequestError
from onsphere.service.assess import AssessRequest, assess_requests
from onsphere.service.labels import update_model
from onsphere.service.rows import JSON, Batch

SETTINGS = Settings("m.onsphere", max_rows=50)


def assess(path, rows, *, key="id", settings=SETTINGS):
    request = AssessRequest(json.dumps({"rows": rows}).encode(), JSON, JSON, 0.9, "r", 0.0, key=key)
    (outcome,) = assess_requests(open_deployed(path), settings, [request])
    return outcome


def test_answers_that_wait_for_a_label_hold_what_it_is_compared_with(models, helpers):
    rows = [{**helpers.row, "id": number} for number in (7, "b")]
    reply = assess(models["table"], rows)
    record, answers = pickle.loads(reply.record), json.loads(reply.body)
    assert [answer[0] for answer in record.answers] == ['"7"', '"b"']
    for (_, coverage, answer, features), shown in zip(record.answers, answers, strict=True):
        assert coverage == 0.9
        assert json.loads(answer) == [[shown["value"]], [shown["lower"]], [shown["upper"]]]
        batch = Batch.from_json(open_deployed(models["table"]).facts, [features])
        assert batch.get_row(0) == {**helpers.row, "rooms": 3.0, "day": "2024-03-01T00:00:00+00:00"}
    hidden = assess(models["table"], rows, settings=Settings("m.onsphere", keep_rows=False))
    assert [answer[3] for answer in pickle.loads(hidden.record).answers] == [None, None]


def test_answers_of_classes_hold_the_set(models):
    rows = [{"a": 1.0, "b": 1.0, "id": 1}, {"a": -1.0, "b": -1.0, "id": 2}]
    reply = assess(models["classes"], rows)
    expected = [[row["value"], row["set"]] for row in json.loads(reply.body)]
    assert [json.loads(answer[2]) for answer in pickle.loads(reply.record).answers] == expected
    plain = assess(models["plain"], [{"x0": 1.0, "x1": 1.0, "id": 1}])
    assert len(json.loads(pickle.loads(plain.record).answers[0][2])) == 1  # without calibration there is no interval


@pytest.mark.parametrize(
    ("rows", "key", "expected"),
    [
        ([[1.0, 2.0]], "x0", "a column that names rows"),
        ([[1.0, 2.0]], "id", "a key for each row"),
        ([{"x0": 1, "x1": 2, "id": 1}, {"x0": 1, "x1": 2, "id": 1.0}], "id", "each key once"),
        ([[1.0, 2.0, 3.0]], None, "2 values"),
        ([7], None, "an object with the columns"),
        ([{"x0": 1}], None, "x1"),
        ([[1.0, 2.0]] * 51, None, "at most 50 rows"),
        ([], None, "at least one row"),
        ([[1e39, 2.0]], None, "3.4e+38"),
        ([{"x0": 1, "x1": 2, "id": "x" * 2_000}], "id", "1,000 characters"),
        ([{"x0": 1, "x1": 2, "id": 1e300}], "id", "3.4e+38"),
    ],
)
def test_rows_that_cannot_be_used_are_named(models, rows, key, expected):
    error = assess(models["array"], rows, key=key)
    assert isinstance(error, RequestError)
    assert expected in error.detail


def test_a_name_that_comes_twice_and_what_the_model_rejects_are_told(models):
    deployed = open_deployed(models["array"])
    twice = AssessRequest(b'{"rows": [{"x0": 1, "x0": 2, "x1": 3}]}', JSON, JSON, 0.9, "r", 0.0)
    (error,) = assess_requests(deployed, SETTINGS, [twice])
    assert (error.status, "each name once" in error.detail) == (422, True)

    class Rejecting:
        facts = deployed.facts

        def assess(self, values, *, coverage):
            raise InvalidInputError("Expected another coverage.")

    plain = AssessRequest(b'{"rows": [[1, 2]]}', JSON, JSON, 0.9, "r", 0.0)
    (error,) = assess_requests(Rejecting(), SETTINGS, [plain])
    assert (error.status, error.detail) == (422, "Expected another coverage.")


@pytest.mark.parametrize("name", ["table", "array"])
def test_a_model_answers_its_trial_row(models, name):
    deployed = open_deployed(models[name])
    found = deployed.assess(make_trial_row(deployed.facts), coverage=0.9)
    assert np.isfinite(found.uncertainty).all()


def test_labels_that_a_model_cannot_take_leave_it_as_it_was(models, helpers):
    deployed = open_deployed(models["array"])
    before = deployed.model.calibration_
    labels = [(1, "a", "[1.0]", "[0.5]"), (2, "b", "[1.0]", "[0.5, 1.0]")]
    calibration, skipped = update_model(deployed, SETTINGS, labels[:1], [])
    assert calibration is before
    assert skipped == [("a", 1, "ValueError")]
    calibration, skipped = update_model(deployed, SETTINGS, labels, [0.5])
    assert calibration.online.n_labels == 1
    assert [request for request, *_ in skipped] == ["a"]


def test_a_graph_and_a_model_take_frames_as_well_as_columns(models, helpers):
    frame = helpers.table(5)
    deployed = open_deployed(models["table"])
    values = {name: frame[name].to_numpy() for name in ("size", "rooms")}
    values |= {"shop": frame["shop"].to_numpy(object), "new": frame["new"].to_numpy(float)}
    values["day"] = frame["day"].to_numpy().astype("datetime64[s]").astype(float)
    found = deployed.assess(pd.DataFrame(values), coverage=0.9)
    np.testing.assert_array_equal(found.upper, deployed.assess(values, coverage=0.9).upper)


def test_neither_a_folder_nor_a_huge_file_is_read(tmp_path):
    with pytest.raises(InvalidInputError, match="which is no file"):
        read_content(tmp_path)
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 2**43)
    with pytest.raises(InvalidInputError, match="larger than 16 GiB"):
        read_content(tmp_path / "huge")
