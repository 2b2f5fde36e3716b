"""Text sets, on small files made here and on the real ones where they are."""

import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from onsphere import InvalidInputError, MissingExtraError
from reproduction.data import TEXT_NAMES, load_text


@pytest.fixture
def base(tmp_path):
    (tmp_path / "text").mkdir()
    return tmp_path / "text"


def test_parquet_is_read(base):
    parquet.write_table(pa.table({"label": [2, 0], "text": ["ä b", ""]}), base / "ag_news_test.parquet")
    texts, labels = load_text("ag_news", folder=base.parent)
    assert texts == ["ä b", ""]
    assert labels is not None
    assert labels.tolist() == [2, 0]
    assert labels.dtype == np.int64


def test_csv_is_read(base):
    (base / "imdb_train.csv").write_text('label,text\n1,"two\nlines, ""quoted"""\n0,é\n', encoding="utf-8")
    texts, labels = load_text("imdb", "train", folder=base.parent)
    assert texts == ['two\nlines, "quoted"', "é"]
    (base / "yelp_test.csv").write_text("text,label\na,1\n", encoding="utf-8-sig")
    assert load_text("yelp", folder=base.parent)[0] == ["a"]
    assert labels is not None
    assert labels.tolist() == [1, 0]


def test_files_without_labels_give_none(base):
    parquet.write_table(pa.table({"text": ["a"]}), base / "yelp_test.parquet")
    (base / "dbpedia_test.csv").write_text("text\na\n")
    assert load_text("yelp", folder=base.parent) == (["a"], None)
    assert load_text("dbpedia", folder=base.parent) == (["a"], None)


def test_the_whole_set_goes_before_a_part_of_it(base):
    def found(split="test"):
        return load_text("yelp", split, folder=base.parent)[0]

    (base / "yelp_5k.csv").write_text("text\nsample\n")
    assert found() == ["sample"]
    with pytest.raises(InvalidInputError, match=r"yelp_train\.parquet or \.csv"):
        found("train")
    (base / "yelp_train_subset.csv").write_text("text\npart\n")
    assert found("train") == ["part"]
    (base / "yelp_test.csv").write_text("text\nwhole\n")
    assert found() == ["whole"]
    parquet.write_table(pa.table({"text": ["table"]}), base / "yelp_test.parquet")
    assert found() == ["table"]


def test_files_of_the_hub_and_of_the_authors_are_the_whole_set(base):
    (base / "ag_news_train_subset.csv").write_text("text,label\npart,0\n")
    with pytest.raises(InvalidInputError, match=r"Get the whole split 'train' of 'ag_news'"):
        load_text("ag_news", "train", folder=base.parent, whole=True)
    (base / "ag_news").mkdir()
    for names in ("", "Class Index,Title,Description\n"):
        (base / "ag_news" / "train.csv").write_text(f'{names}"3","A title","of, a text"\n"4","B","c"\n')
        texts, labels = load_text("ag_news", "train", folder=base.parent, whole=True)
        assert texts == ["A title of, a text", "B c"]
        assert labels is not None
        assert labels.tolist() == [2, 3]
    table = pa.table({"text": ["hub"], "label": [1]})
    parquet.write_table(table, base / "ag_news" / "train-00000-of-00001.parquet")
    assert load_text("ag_news", "train", folder=base.parent)[0] == ["hub"]
    parquet.write_table(pa.table({"title": ["a"], "content": ["b"], "label": [0]}), base / "dbpedia_test.parquet")
    assert load_text("dbpedia", folder=base.parent)[0] == ["b"]


def test_the_folder_comes_from_the_environment(base, monkeypatch):
    (base / "emotion_test.csv").write_text("text\na\n")
    monkeypatch.setenv("ONSPHERE_DATA", str(base.parent))
    assert load_text("emotion")[0] == ["a"]


def test_missing_files_and_bad_arguments_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"dbpedia_test\.parquet or \.csv\. Got no.*'dbpedia_14'.* in /"):
        load_text("dbpedia", folder=tmp_path)
    with pytest.raises(InvalidInputError, match="'name' parameter of load_text must be one of 'ag_news'"):
        load_text("news")
    with pytest.raises(InvalidInputError, match="'split' parameter of load_text"):
        load_text("imdb", "valid")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "with a column 'text'"),
        (b"words,label\na,1\n", "with a column 'text'"),
        (b"text\n", "a text in every row"),
        (b"label,text\n1\n", "a text in every row"),
        (b"text,label\na,b\n", "a whole number of at least 0 as label"),
        (b"text,label\na\n", "a whole number of at least 0 as label"),
        (b"text,label\na,-1\n", "a whole number of at least 0 as label"),
        (b"text,label\na,1.5\n", "a whole number of at least 0 as label"),
        (b"text,label\na,1,2\n", "as many columns as different names"),
        (b"text,text\na,b\n", "as many columns as different names"),
        (b'"x1","a","b"\n', "with a column 'text'"),
        (b"Class Index,Title,Description\nx,a,b\n", "a whole number of at least 0 as label"),
        (b'"0","a","b"\n', "a whole number of at least 0 as label"),
        (b"text\n\xff\xfe\n", "a CSV file in UTF-8"),
        (b'text\n"never closed\n', "a CSV file in UTF-8"),
    ],
)
def test_broken_csv_files_are_named(base, content, message):
    (base / "ag_news_test.csv").write_bytes(content)
    with pytest.raises(InvalidInputError, match=rf"ag_news_test\.csv as .*{message}"):
        load_text("ag_news", folder=base.parent)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"words": ["a"]}, "with a column 'text'"),
        ({"text": [1]}, "a text in every row"),
        ({"text": ["a", None]}, "a text in every row"),
        ({"text": pa.array([], pa.string())}, "a text in every row"),
        ({"text": ["a"], "label": ["b"]}, "a whole number of at least 0 as label"),
        ({"text": ["a", "b"], "label": [1, None]}, "a whole number of at least 0 as label"),
        ({"text": ["a"], "label": [float("inf")]}, "a whole number"),
        ({"text": ["a"], "label": [1.5]}, "a whole number"),
        ({"text": ["a"], "label": [-1]}, "a whole number"),
        ({"text": pa.array([b"\xff"]).view(pa.string())}, "with a column 'text'"),
    ],
)
def test_broken_tables_are_named(base, table, message):
    parquet.write_table(pa.table(table), base / "ag_news_test.parquet")
    with pytest.raises(InvalidInputError, match=rf"ag_news_test\.parquet as .*{message}"):
        load_text("ag_news", folder=base.parent)


def test_parquet_files_cut_anywhere_are_named(base):
    path = base / "ag_news_test.parquet"
    parquet.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), path)
    whole = path.read_bytes()
    for length in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInputError, match="as a Parquet file with a column 'text'"):
            load_text("ag_news", folder=base.parent)


def test_without_pyarrow_the_extra_is_named(base, monkeypatch):
    (base / "imdb_test.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="load_text needs pyarrow"):
        load_text("imdb", folder=base.parent)


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_the_real_sets_hold_texts(name):
    try:
        texts, labels = load_text(name)
    except InvalidInputError as missing:
        pytest.skip(str(missing))
    assert len(texts) >= 2000
    assert sum(map(bool, texts)) == len(texts)
    if name == "ag_news":
        assert labels is not None
        assert np.bincount(labels).tolist() == [1900] * 4
