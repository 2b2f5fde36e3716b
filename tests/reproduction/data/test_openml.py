"""Fetching from OpenML: what is done with the answer. The answer itself is made here; no network is used."""

import os
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets
from sklearn.utils import Bunch

from onsphere import InvalidInputError
from reproduction.data import fetch_uci, load_uci


def answer(n_rows, n_columns, **changes):
    random = np.random.default_rng(0)
    content = {
        "data": random.normal(size=(n_rows, n_columns)),
        "target": random.normal(size=n_rows),
        "feature_names": [f"column {number}" for number in range(n_columns)],
        "categories": {},
    }
    return Bunch(**{**content, **changes})


def giving(bunch, asked=None):
    def fetch(**options):
        if asked is not None:
            asked.update(options)
        return bunch

    return fetch


def test_what_is_fetched_is_what_is_read(tmp_path):
    asked, bunch = {}, answer(308, 6)
    path = fetch_uci("yacht", folder=tmp_path, fetch=giving(bunch, asked))
    assert path == tmp_path / "uci" / "yacht.csv"
    assert asked["data_id"] == 42370
    assert asked["target_column"] == "Residuary.resistance"
    X, y = load_uci("yacht", folder=tmp_path)
    np.testing.assert_array_equal(X, bunch.data)
    np.testing.assert_array_equal(y, bunch.target)
    assert [file.name for file in path.parent.iterdir()] == ["yacht.csv"]


def test_the_second_target_of_the_energy_set_is_left_out(tmp_path):
    bunch = answer(768, 9)
    bunch.feature_names[3] = "cooling_load"
    fetch_uci("energy", folder=tmp_path, fetch=giving(bunch))
    np.testing.assert_array_equal(load_uci("energy", folder=tmp_path)[0], np.delete(bunch.data, 3, axis=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"data": np.zeros((307, 6))},
        {"data": np.zeros((308, 5)), "feature_names": list("abcde")},
        {"target": np.zeros(307)},
        {"target": np.full(308, np.nan)},
        {"target": np.array(["a"] * 308)},
        {"categories": {"column 2": ["low", "high"]}},
    ],
)
def test_another_set_is_rejected_and_nothing_is_written(tmp_path, changes):
    with pytest.raises(
        InvalidInputError, match=r"Expected set 42370 of OpenML as 'yacht': numbers of shape \(308, 6\)"
    ):
        fetch_uci("yacht", folder=tmp_path, fetch=giving(answer(308, 6, **changes)))
    assert not (tmp_path / "uci").exists()


@pytest.mark.parametrize(
    "error", [URLError("no network"), TimeoutError("late"), ValueError("no such set"), KeyError("y")]
)
def test_without_an_answer_the_error_says_what_to_do(tmp_path, error):
    def fetch(**_):
        raise error

    with pytest.raises(
        InvalidInputError, match=r"set 44959 from OpenML\. Got .*where there is a network.*concrete\.csv"
    ):
        fetch_uci("concrete", folder=tmp_path, fetch=fetch)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    fetch_uci("yacht", folder=tmp_path, fetch=giving(answer(308, 6)))
    before = (tmp_path / "uci" / "yacht.csv").read_bytes()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(InvalidInputError, match="disk full"):
        fetch_uci("yacht", folder=tmp_path, fetch=giving(answer(308, 6, target=np.ones(308))))
    assert (tmp_path / "uci" / "yacht.csv").read_bytes() == before
    assert [file.name for file in (tmp_path / "uci").iterdir()] == ["yacht.csv"]


def test_scikit_learn_fetches_by_default(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", giving(answer(8192, 8), asked))
    monkeypatch.setenv("ONSPHERE_DATA", str(tmp_path))
    assert fetch_uci("kin8nm") == tmp_path / "uci" / "kin8nm.csv"
    assert asked["data_id"] == 44980


def test_unknown_sets_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match="'name' parameter of fetch_uci must be one of 'concrete'"):
        fetch_uci("iris")
    with pytest.raises(InvalidInputError, match=r"Combined Cycle Power Plant.*power_plant\.csv, the column PE"):
        fetch_uci("power_plant", folder=tmp_path)
