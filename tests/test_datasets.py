"""Readers, on small files made here and on the real ones where they are."""

import numpy as np
import pytest

from onsphere import InvalidInputError
from onsphere.datasets import UCI_NAMES, load_uci
from onsphere.datasets.uci import data_folder


def written(folder, text):
    (folder / "uci").mkdir()
    (folder / "uci" / "yacht.csv").write_text(text)
    return folder


def test_a_csv_is_read_with_the_target_apart(tmp_path):
    X, y = load_uci("yacht", folder=written(tmp_path, "a,y,b\n1,2,3\n4,5,6\n"))
    np.testing.assert_array_equal(X, [[1, 3], [4, 6]])
    np.testing.assert_array_equal(y, [2, 5])


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ONSPHERE_DATA", str(written(tmp_path, "a,y\n1,2\n3,4\n")))
    assert data_folder() == tmp_path
    assert load_uci("yacht")[0].shape == (2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "the target in 'y'"),
        ("a,y\n1,\n3,4\n", "as a table of numbers"),
        ("a,y\n1,cat\n3,4\n", "as a table of numbers"),
        ("a,y\n1,2\n3\n", "as a table of numbers"),
        ("a,y\n1,nan\n3,4\n", "finite numbers"),
        ("y\n1\n2\n", "at least two columns"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, message):
    with pytest.raises(InvalidInputError, match=message):
        load_uci("yacht", folder=written(tmp_path, text))


def test_a_missing_file_and_an_unknown_set_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"Expected the UCI set 'wine' as .*wine\.csv"):
        load_uci("wine", folder=tmp_path)
    with pytest.raises(InvalidInputError, match="'name' parameter of load_uci must be one of 'concrete'"):
        load_uci("iris")


@pytest.mark.parametrize(("name", "shape"), list(zip(UCI_NAMES, [1030, 768, 8192, 9568, 1599, 308], strict=True)))
def test_the_real_sets_have_their_published_sizes(name, shape):
    try:
        X, y = load_uci(name)
    except InvalidInputError as missing:
        pytest.skip(str(missing))
    assert len(X) == len(y) == shape
