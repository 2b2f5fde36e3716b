"""Values that no training row had, by column and by row."""

import numpy as np
import pandas as pd
import pytest

from onsphere import InvalidInputError, Novelty
from onsphere.drift import make_reference
from onsphere.table import Column, fit_table, predict_file
from onsphere.table.encoder import OrdinaryValues, _find_typical, describe_rows, find_ordinary_values

COLUMNS = [
    Column("size", "number"),
    Column("gap", "number"),
    Column("day", "date"),
    Column("new", "boolean"),
    Column("shop", "category"),
    Column("site", "category"),
    Column("empty", "number"),
]


def make_rows(**changes):
    rows = {
        "size": [1.0, 2.0, 5000.0],
        "gap": [1.0, np.nan, 3.0],
        "day": [0.0, 86_400.0, 172_800.0],
        "new": [0.0, 1.0, 1.0],
        "shop": ["a", "b", "a"],
        "site": ["u", None, "v"],
        "empty": [np.nan] * 3,
    }
    kinds = {column.name: object if column.kind == "category" else float for column in COLUMNS}
    return pd.DataFrame({name: pd.Series(each, dtype=kinds[name]) for name, each in (rows | changes).items()})


def test_values_beyond_those_of_training_are_found():
    ordinary = OrdinaryValues(COLUMNS, make_reference(make_rows()), {"shop": ["a", "b"], "site": ["u", "v"]}, {"site"})
    assert ordinary.find(make_rows()) == {}
    changed = make_rows(
        size=[0.0, np.nan, 2.0],
        gap=[np.nan, 4.0, 2.0],
        day=[0.0, 259_200.0, 0.0],
        new=[np.nan, 1.0, 0.0],
        shop=["c", None, "a"],
        site=["w", None, "u"],
    )
    found = ordinary.find(changed)
    assert {key: rows.tolist() for key, rows in found.items()} == {
        ("size", "missing", ""): [False, True, False],
        ("size", "below", "1"): [True, False, False],
        ("gap", "above", "3"): [False, True, False],
        ("day", "above", "1970-01-03 00:00:00"): [False, True, False],
        ("new", "missing", ""): [True, False, False],
        ("shop", "unknown", ""): [True, False, False],
        ("shop", "missing", ""): [False, True, False],
        ("site", "unknown", ""): [True, False, False],
    }
    assert describe_rows(found, 3)[2] == ""
    assert describe_rows(found, 3)[0] == (
        "size is below all training rows (1); new is missing, which it never was in training; shop has a value that no "
        "training row had; site has a value that no training row had"
    )
    counts = ordinary.summarize()
    assert {each.n_all for each in counts} == {6}
    assert str(counts[0]) == "1 of 6 rows: size is missing, which it never was in training"
    assert counts[0].to_dict()["n_rows"] == 1


def test_a_category_whose_values_are_not_all_known_has_no_unknown_ones():
    ordinary = OrdinaryValues(COLUMNS[4:5], make_reference(make_rows()), {})
    assert ordinary.find(make_rows(shop=["z", "z", "z"])) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"size": lambda rows: 1000 * rows["size"]}, "150 of 150 rows: size is above all training rows ("),
        ({"city": "Atlantis"}, "150 of 150 rows: city has a value that no training row had"),
        ({"rooms": None}, "150 of 150 rows: rooms is missing, which it never was in training"),
    ],
)
def test_a_file_that_cannot_be_right_is_said_to_be_so(houses, tmp_path, change, words):
    found = fit_table(houses(300, 0), ["price"], backbone="kernel", frames="target")
    houses(150, 1).assign(**change).to_csv(tmp_path / "new.csv", index=False)
    ordinary = find_ordinary_values(found.model, found.summary(), found.columns)
    unusual = predict_file(found.model, found.columns, tmp_path / "new.csv", tmp_path / "o.csv", ordinary=ordinary)[1]
    said = [str(each) for each in unusual if each.deserves_a_look]
    assert said == [] if words is None else any(each.startswith(words) for each in said)
    assert find_ordinary_values(found.model, {}, found.columns) is None


def test_ordinary_values_are_the_middle_and_the_most_frequent():
    assert _find_typical({"sample": [1.0, 2.0, 9.0]}) == 2.0
    assert _find_typical({"sample": [1.0, None, None]}) == 1.0
    assert np.isnan(_find_typical({"sample": [None, None]}))
    assert _find_typical({"shares": {"a": 0.3, "b": 0.7}}) == "b"
    assert _find_typical({"shares": {}}) is None


def test_a_rejected_row_names_the_columns_that_drive_it(houses, tmp_path):
    found = fit_table(houses(300, 0), ["price"], backbone="extra-trees", novelty=Novelty(max=0.5))
    new = houses(40, 1)
    new.loc[:4, "size"] = 9_000.0
    new.to_csv(tmp_path / "new.csv", index=False)
    ordinary = find_ordinary_values(found.model, found.summary(), found.columns)
    out = tmp_path / "out.csv"
    options = {"ordinary": ordinary, "explain": True, "targets": ["price"]}
    predict_file(found.model, found.columns, tmp_path / "new.csv", out, keep="all", **options)
    answers = pd.read_csv(out, keep_default_na=False)
    assert answers["unusual"][:5].str.startswith("size is above all training rows").all()
    assert not answers["accepted"][:5].any()
    assert answers["driven_by"][:5].str.startswith("size").all()
    assert (answers["driven_by"][answers["accepted"]] == "").all()
    assert answers["size"].tolist() == new["size"].tolist()
    assert answers["price"].tolist() == pytest.approx(new["price"].tolist())
    assert {"country", "house_id", "city"} <= set(answers)
    found.model.set_threshold(None)
    predict_file(found.model, found.columns, tmp_path / "new.csv", out, **options)
    assert (pd.read_csv(out, keep_default_na=False)["driven_by"] == "").all()
    with pytest.raises(InvalidInputError, match="keeps a summary of its training rows"):
        predict_file(found.model, found.columns, tmp_path / "new.csv", out, explain=True)


def test_each_value_of_a_few_rows_deserves_a_look():
    ordinary = OrdinaryValues(COLUMNS, make_reference(make_rows()), {"shop": ["a", "b"], "site": ["u", "v"]}, {"site"})
    ordinary.find(make_rows(shop=["hall", "a", "b"]))
    assert [str(each) for each in ordinary.summarize() if each.deserves_a_look] == [
        "1 of 3 rows: shop has a value that no training row had"
    ]
