"""The recipes of docs/guide/scale.md for other engines, run as they are written, where the packages are installed."""

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from onsphere.scale import Assessor
from tests.scale.conftest import make_rows

PAGE = (Path(__file__).parents[2] / "docs/guide/scale.md").read_text()
RECIPES = {found[1]: found[2] for found in re.finditer(r"^```py title=\"(\w+)\"\n(.*?)^```", PAGE, re.M | re.S)}
pytestmark = pytest.mark.filterwarnings("default")  # those of the engines


def run_recipe(name):
    namespace = {}
    exec(compile(RECIPES[name], f"scale.md, {name}", "exec"), namespace)
    return namespace


@pytest.fixture
def expected(model_path, tmp_path, monkeypatch):
    """Prepare the files that the recipes name, and return what they should answer."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(model_path, "model.onsphere")
    os.mkdir("measurements")
    tables = [make_rows(300, seed=number) for number in range(3)]
    for number, table in enumerate(tables):
        table.to_pandas().to_parquet(f"measurements/{number}.parquet")
    answers = pd.concat([Assessor(model_path, keep=["id"])(table).to_pandas() for table in tables])
    return answers.set_index("id").sort_index()


def check(answers, expected):
    found = answers.set_index("id").sort_index()
    assert found.index.tolist() == expected.index.tolist()
    np.testing.assert_allclose(found["upper"], expected["upper"], rtol=1e-9)


def test_spark(expected, monkeypatch):
    pytest.importorskip("pyspark", reason="needs pyspark and Java")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    namespace = run_recipe("Spark")
    try:
        check(namespace["answers"].toPandas(), expected)
    finally:
        namespace["spark"].stop()


def test_dask(expected):
    pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]")
    check(run_recipe("Dask")["answers"].compute(scheduler="synchronous"), expected)


def test_duckdb(expected):
    pytest.importorskip("duckdb", reason="needs duckdb")
    accepted = run_recipe("DuckDB")["accepted"]
    wanted = expected[expected["accepted"]]
    assert sorted(accepted["id"].to_pylist()) == wanted.index.tolist()


def test_forests_grow_on_ray(node):
    namespace = run_recipe("Forests")
    model, X = namespace["model"], namespace["X"]
    from sklearn.base import clone

    here = clone(model).fit(X, namespace["y"])
    np.testing.assert_array_equal(model.predict(X), here.predict(X))
