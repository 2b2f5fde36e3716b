"""The last rows of a worker, and which of their columns moved."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa

from onsphere.drift import make_reference
from onsphere.service.arrow_rows import read_arrow
from onsphere.service.engine import load_engine
from onsphere.service.operations import RecentRows, find_hints
from onsphere.service.rows import read_json


def make_batch(n_rows, first=0.0):
    rows = [[first + index, 3, "a", True, "2024-03-01"] for index in range(n_rows)]
    return lambda facts: read_json([json.dumps({"rows": rows}).encode()], facts, max_rows=10_000)[0]


def test_a_reset_by_another_worker_clears_the_last_rows(facts):
    recent = RecentRows(facts)
    recent.add(facts, make_batch(5)(facts))
    for resets, n_batches in ((3, 1), (3, 1), (4, 0)):
        recent.follow_resets(resets)
        assert len(recent.list_batches()) == n_batches
    recent.add(facts, make_batch(200)(facts))
    recent.add(facts, make_batch(1)(facts))
    assert [len(batch) for batch in recent.list_batches()] == [200, 1]


def test_the_last_200_rows_are_kept_and_no_more(facts, other_facts, helpers):
    recent = RecentRows(facts)
    for n_rows in (5, 190, 7, 3, 1):
        recent.add(facts, make_batch(n_rows)(facts))
    assert [len(batch) for batch in recent.list_batches()] == [190, 7, 3, 1]
    recent.add(facts, large := make_batch(5_000)(facts))
    (kept,) = recent.list_batches()
    assert kept.get_row(199)["size"] == 4_999.0
    assert kept.values["size"].base is None  # so that the memory of the others is free
    assert len(large) == 5_000
    columns = {"id": ["named"], "size": [0.5], "rooms": [3.0], "shop": ["a"], "new": [True], "day": ["2024-03-01"]}
    few = read_arrow(helpers.arrow(pa.table(columns)), facts, max_rows=10)
    recent.add(facts, few)
    assert recent.list_batches()[-1].keys == {}
    assert recent.list_batches()[-1].values["size"].base is None  # which may be the whole body of Arrow
    recent = RecentRows(facts)
    recent.add(facts, large)
    (kept,) = recent.list_batches()
    recent.add(other_facts, make_batch(1)(other_facts))
    assert recent.list_batches() == [kept]
    unknown = replace(facts, reference=None)
    recent = RecentRows(unknown)
    recent.add(unknown, make_batch(1)(unknown))
    assert recent.list_batches() == []


def test_rows_that_do_not_fit_the_reference_give_no_hints(facts):
    batch = make_batch(50, first=100.0)(facts)
    assert find_hints(facts, [batch, batch])[0].startswith("size: mean +")
    assert find_hints(facts, []) == []
    for wrong in ({}, {"size": facts.reference["size"]}, {"size": 3}, {**facts.reference, "day": {"n_rows": "x"}}):
        assert find_hints(replace(facts, reference=wrong), [batch]) == []


def test_rows_with_all_values_missing_give_hints(facts):
    nothing = read_json([b'{"rows": [[null, null, null, null, null]]}'], facts, max_rows=10)[0]
    hints = find_hints(facts, [nothing] * 200)
    assert all("missing" in hint for hint in hints)
    assert len(hints) == 3


def test_ordinary_rows_give_no_hints(facts, helpers):
    frame = helpers.table(150, seed=8)[["size", "rooms", "shop", "new", "day"]]
    body = json.dumps({"rows": frame.assign(day=frame["day"].astype(str)).values.tolist()}).encode()
    assert find_hints(facts, [read_json([body], facts, max_rows=200)[0]]) == []


def test_an_array_has_hints_by_the_number_of_its_columns(models):
    plain = load_engine(models["array"]).facts
    X = np.random.default_rng(0).normal(size=(300, 2))
    watched = replace(plain, reference=make_reference(X))
    rows = json.dumps({"rows": (X[:100] + np.array([0.0, 3.0])).tolist()}).encode()
    (hint,) = find_hints(watched, [read_json([rows], watched, max_rows=200)[0]])
    assert hint.startswith("1: mean +3")
