"""Readers, on small files made here and on the real ones where they are."""

import numpy as np
import pytest

from onsphere import InvalidInputError
from reproduction.data import UCI_NAMES, data_folder, load_uci

HEADER = "a,y,b,c,d,e,f"
ROWS = [",".join(str(7 * row + column) for column in range(7)) for row in range(308)]


def table(header=HEADER, rows=ROWS):
    return "\n".join([header, *rows]) + "\n"


def written(folder, content):
    (folder / "uci").mkdir()
    (folder / "uci" / "yacht.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize(
    "content", [table(), table().encode("utf-8-sig"), table().replace("\n", "\r\n"), table() + "\n"]
)
def test_a_csv_is_read_with_the_target_apart(tmp_path, content):
    X, y = load_uci("yacht", folder=written(tmp_path, content))
    values = np.arange(308 * 7).reshape(308, 7)
    np.testing.assert_array_equal(X, values[:, [0, 2, 3, 4, 5, 6]])
    np.testing.assert_array_equal(y, values[:, 1])


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ONSPHERE_DATA", str(written(tmp_path, table())))
    assert data_folder() == tmp_path
    assert load_uci("yacht")[0].shape == (308, 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"0 row\(s\) under ''"),
        (HEADER, r"0 row\(s\)"),
        (table(rows=ROWS[:-1]), r"307 row\(s\)"),
        (table(rows=[*ROWS, ROWS[0]]), r"309 row\(s\)"),
        (table("a,z,b,c,d,e,f"), "under 'a,z,"),
        (table("a,y,b,c,d,e,e"), "under 'a,y,"),
        (table("a,y,b,c,d,e"), "under 'a,y,"),
        (table(rows=[f"{row},1" for row in ROWS]), "8 values in a row"),
        (table(rows=[*ROWS[:-1], ROWS[0] + ",1"]), "columns"),
        (table(rows=[*ROWS[:-1], "1,2"]), "columns"),
        (table(rows=[*ROWS[:-1], "1,2,3,4,5,6,"]), "convert"),
        (table(rows=[*ROWS[:-1], "1,2,3,4,5,6,cat"]), "cat"),
        (table(rows=[*ROWS[:-1], "1,2,3,4,5,6,nan"]), "not finite"),
        (table("a,y,b,c,d,e,ö").encode("latin-1"), "codec"),
        (table().encode("utf-16"), "codec"),
        (bytes(range(256)), "codec"),
        ("<!DOCTYPE html>\n<p>moved</p>\n", "under '<!DOCTYPE"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, message):
    with pytest.raises(InvalidInputError, match=rf"yacht\.csv as a CSV file .* 308 rows .*Got .*{message}"):
        load_uci("yacht", folder=written(tmp_path, content))


def test_a_missing_file_and_an_unknown_set_are_named(tmp_path, monkeypatch):
    with pytest.raises(InvalidInputError, match=r"Expected the UCI set 'wine' as .*wine\.csv") as caught:
        load_uci("wine", folder=tmp_path)
    assert f"reproduction.data.fetch_uci('wine', folder={str(tmp_path)!r})" in str(caught.value)
    assert "ONSPHERE_DATA" not in str(caught.value)
    monkeypatch.setenv("ONSPHERE_DATA", str(tmp_path))
    with pytest.raises(InvalidInputError, match=r"fetch_uci\('wine'\).*archive\.ics\.uci\.edu.*ONSPHERE_DATA"):
        load_uci("wine")
    with pytest.raises(InvalidInputError, match=r"archive\.ics\.uci\.edu") as caught:
        load_uci("power_plant")
    assert "fetch_uci" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="'name' parameter of load_uci must be one of 'concrete'"):
        load_uci("iris")


@pytest.mark.parametrize(("name", "shape"), list(zip(UCI_NAMES, [1030, 768, 8192, 9568, 1599, 308], strict=True)))
def test_the_real_sets_have_their_published_sizes(name, shape):
    try:
        X, y = load_uci(name)
    except InvalidInputError as missing:
        pytest.skip(str(missing))
    assert len(X) == len(y) == shape
