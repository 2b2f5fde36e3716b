"""Tables are read from files and written to files."""

import datetime
import gzip
import io
import os
import re
import sys
import zipfile
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onsphere import InvalidInputError, MissingExtraError, OnsphereWarning
from onsphere.table import Column, TableEncoder, describe_columns, files, read_batches, read_table
from onsphere.table.cells import read_features
from onsphere.table.files import read_schema, to_frame
from onsphere.table.predict import open_writer


def in_batches(path, columns, **options):
    return pd.concat([to_frame(table) for table in read_batches(path, columns, **options)], ignore_index=True)


def assert_same_numbers(path, **options):
    """Assert that reading whole files and reading batches give the same numbers, bit for bit."""
    frame = read_table(path, **options)
    columns = describe_columns(frame)
    encoder = TableEncoder(columns).fit(frame)
    numbers = encoder.transform(frame)
    np.testing.assert_array_equal(encoder.transform(in_batches(path, columns, **options)), numbers)
    np.testing.assert_array_equal(encoder.transform(read_table(path, columns=columns, **options)), numbers)
    return frame


def csv(tmp_path, text, name="a.csv", encoding="utf-8"):
    path = tmp_path / name
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


# --- CSV in all its forms ---


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("size,city\n1.5,Köln\n2.5,Rom\n1,Köln\n", {}),
        ("size,city\r\n1.5,Köln\r\n2.5,Rom\r\n1,Köln\r\n", {}),
        ("size,city\r1.5,Köln\r2.5,Rom\r1,Köln\r", {}),
        ("\n\nsize,city\n1.5,Köln\n\n2.5,Rom\n1,Köln", {}),
        ("size;city\n1,5;Köln\n2,5;Rom\n1;Köln\n", {}),
        ('size;city\n"1,5";Köln\n2,5;Rom\n1;Köln\n', {}),
        ("size\tcity\n1.5\tKöln\n2.5\tRom\n1\tKöln\n", {}),
        ("size|city\n1.5|Köln\n2.5|Rom\n1|Köln\n", {}),
        ("size:city\n1.5:Köln\n2.5:Rom\n1:Köln\n", {"delimiter": ":"}),
        ("size\tcity\n1.5\tKöln\n2.5\tRom\n1\tKöln\n", {"delimiter": r"\t"}),
        (' size , city\n"1.5","Köln"\n2.5,Rom\n1,"Köln"\n', {}),
    ],
)
@pytest.mark.parametrize(("name", "encoding"), [("a.csv", "utf-8"), ("a.csv.gz", "utf-8-sig"), ("a", "cp1252")])
def test_every_dialect_of_csv_gives_the_same_table(tmp_path, text, options, name, encoding):
    frame = assert_same_numbers(csv(tmp_path, text, name, encoding), **options)
    assert frame.to_dict("list") == {"size": [1.5, 2.5, 1.0], "city": ["Köln", "Rom", "Köln"]}


def test_a_file_can_turn_out_to_be_cp1252_after_the_first_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SNIFFED", 25)
    text = "size,city\n1.5,Köln\n2.5,Köln\n1,Rom\n"
    for encoding in ("utf-8", "cp1252"):
        assert read_table(csv(tmp_path, text, encoding=encoding))["city"].tolist() == ["Köln", "Köln", "Rom"]
    # The last byte looked at is the first of two that make a letter.
    assert read_table(csv(tmp_path, "size,city\n1.5,Köln\n2.50,éé\n1,Rom\n"))["city"].tolist() == ["Köln", "éé", "Rom"]


def test_names_of_columns_may_hold_anything(tmp_path):
    path = csv(tmp_path, '"a, b";"c\nd";"say ""x""";é;1;;value\n1;2;3;4;5;6;7\n2;3;4;5;6;7;8\n1;3;4;5;6;7;7\n')
    frame = assert_same_numbers(path)
    assert list(frame.columns) == ["a, b", "c\nd", 'say "x"', "é", "1", "column_6", "value"]
    assert len(frame) == 3


def test_cells_may_hold_anything(tmp_path):
    text = 'x,y\n"a, b",1\n"line\none",2\n"say ""x""",3\n"a, b",4\n'
    assert assert_same_numbers(csv(tmp_path, text))["x"].tolist() == ["a, b", "line\none", 'say "x"', "a, b"]


def test_a_comma_is_a_decimal_point_only_where_most_numbers_have_it(tmp_path):
    path = csv(tmp_path, "x;code\n1.5;3,4\n2.5;a\n3.5;a\n")
    assert assert_same_numbers(path)["x"].tolist() == [1.5, 2.5, 3.5]
    # Among text, too: one odd word does not turn numbers into words.
    rows = "\n".join(f"{index},5;{index}" for index in range(40))
    frame = assert_same_numbers(csv(tmp_path, f"x;y\n{rows}\nbroken;7\n"))
    assert describe_columns(frame)[0].mixed
    assert frame["x"].tolist()[:2] == ["0.5", "1.5"]


def test_the_columns_of_a_file_are_read_without_its_rows(tmp_path):
    table = pa.table({"size": [1.0], "city": ["Ulm"]})
    pyarrow.feather.write_feather(table, tmp_path / "t.arrow")
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("size,city\n1,Ulm\n")
    for name in ("t.arrow", "t.parquet", "t.csv"):
        assert read_schema(tmp_path / name).names == ["size", "city"]


def test_keys_are_not_changed(tmp_path):
    path = csv(tmp_path, "key;x\n007;1,5\n1,50;2,5\n")
    (table,) = read_batches(path, [Column("key", "key"), Column("x", "number")])
    assert table["key"].to_pylist() == ["007", "1,50"]


def test_times_of_day_are_the_same_text_in_both_readers(tmp_path):
    rows = "".join(f"{10 + index % 2}:00,{index}.5\n" for index in range(10))
    assert assert_same_numbers(csv(tmp_path, f"at,x\n{rows}"))["at"].tolist()[:2] == ["10:00", "11:00"]


def test_categories_are_read_as_they_were_in_fit_whatever_they_look_like_now(tmp_path):
    path = csv(tmp_path, "code,x\n01,1\n02,2\n")
    assert read_table(path)["code"].tolist() == ["01", "02"]  # which numbers would lose
    assert read_table(path, columns=[Column("code", "number")])["code"].tolist() == [1, 2]
    path = csv(tmp_path, "code,x\n1,1\n2,2\n")
    assert read_table(path)["code"].tolist() == [1, 2]
    assert read_table(path, columns=[Column("code", "category")])["code"].tolist() == ["1", "2"]


def test_many_words_stand_for_missing(tmp_path):
    frame = assert_same_numbers(csv(tmp_path, 'x,y\n1,a\n,NA\nNaN,""\nnull,n/a\n2,b\n'))
    assert frame["x"].isna().tolist() == frame["y"].isna().tolist() == [False, True, True, True, False]


def test_ten_thousand_columns_can_be_read(tmp_path):
    names = [f"a_rather_long_name_{index}" for index in range(10_000)]
    rows = [",".join(str(row + column) for column in range(10_000)) for row in range(3)]
    path = csv(tmp_path, "\n".join([",".join(names), *rows]))
    frame = read_table(path)
    assert (list(frame.columns), frame.shape) == (names, (3, 10_000))
    with pytest.raises(InvalidInputError, match="10,000 in all") as told:
        read_table(path, columns=[Column("price", "number")])
    assert len(str(told.value)) < 2_000


CELL = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5) | st.sampled_from(
    ["1", "1,5", "a\nb", '"', "x\r\ny"]
)


@settings(max_examples=40)
@given(
    rows=st.lists(
        st.tuples(CELL, st.integers() | st.floats(allow_nan=False, allow_infinity=False)), min_size=3, max_size=8
    )
)
def test_both_readers_agree_on_any_table_written_by_pandas(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "a.csv"
    pd.DataFrame(rows, columns=["text", "x"]).to_csv(path, index=False)
    try:
        frame = assert_same_numbers(path)
    except InvalidInputError as error:
        assert any(words in str(error) for words in ("to learn from", "finite", "of size"))  # noqa: PT017
        return
    np.testing.assert_array_equal(frame["x"].astype(float), [float(x) for _, x in rows])


# --- Parquet and Arrow ---

RICH = pa.table(
    {
        "whole": pa.array([2**60, None, 5, 5], pa.int64()),
        "flag": pa.array([True, None, False, True]),
        "name": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        "day": pa.array([datetime.date(2024, 1, 31), None, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
        "stamp": pa.array([0, 10**9, None, 10**9], pa.timestamp("ms", tz="Asia/Tokyo")),
        "money": pa.array([Decimal("1.50"), Decimal("2.50"), None, Decimal("1.50")]),
        "at": pa.array([datetime.time(10), datetime.time(11), None, datetime.time(10)]),
        "wait": pa.array([1, 2, None, 1], pa.duration("s")),
        "nothing": pa.nulls(4),
        "pairs": pa.array([[1, 2], [3], None, []]),
        "half": pa.array(np.array([1, 2, 3, 3], dtype=np.float16)),
    }
)


def write(table, path):
    match path.suffix:
        case ".parquet":
            pa.parquet.write_table(table, path, row_group_size=2)
        case ".feather":
            pa.feather.write_feather(table, str(path), compression="uncompressed")
        case ".arrow":
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow"])
def test_all_arrow_types_become_plain_ones(tmp_path, name):
    frame = assert_same_numbers(write(RICH, tmp_path / name))
    kinds = {column.name: column.kind for column in describe_columns(frame)}
    assert kinds == {
        "whole": "number",
        "flag": "boolean",
        "name": "category",
        "day": "date",
        "stamp": "date",
        "money": "number",
        "at": "category",
        "wait": "number",
        "nothing": "unused",
        "pairs": "unused",
        "half": "number",
    }


@pytest.mark.parametrize("name", ["a.csv", "a", "a.data"])
def test_the_format_is_recognised_by_the_first_bytes(tmp_path, name):
    for suffix in (".parquet", ".feather"):
        write(RICH, tmp_path / f"b{suffix}").replace(tmp_path / name)
        assert len(read_table(tmp_path / name)) == 4


def test_the_index_of_pandas_is_a_column(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0, 4.0]}, index=[12, 7, 9])
    frame.to_parquet(tmp_path / "a.parquet")
    read = read_table(tmp_path / "a.parquet")
    assert [column.kind for column in describe_columns(read)] == ["number", "key"]


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow", "a.csv"])
def test_batches_are_small_and_lose_nothing(tmp_path, monkeypatch, name):
    monkeypatch.setattr(files, "_BATCH_ROWS", 3)
    table = pa.table({"x": np.arange(10.0), "y": ["a"] * 10})
    path = tmp_path / name
    if name == "a.csv":
        table.to_pandas().to_csv(path, index=False)
    else:
        write(table, path)
    batches = list(read_batches(path, [Column("x", "number")]))
    assert max(batch.num_rows for batch in batches) == 3
    assert [batch.column_names for batch in batches] == [["x"]] * len(batches)
    assert [x for batch in batches for x in batch["x"].to_pylist()] == list(range(10))


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "which is empty"),
        (b" \n\n \n", "which holds no text"),
        (b'a,"b\nc"\n\n', "which has a header and no rows"),
        (b"a,b\n1,\x002\n", "which is none of them"),
        (b"a,b,c\n1,2\n3,4,5\n", "Expected 3 cells in every row"),
        (b"a,b\n1,2,3\n", "Got 3 in line 2: the text '1,2,3'"),
        (b"a,b,a\n1,2,3\n", "more than one column named a"),
        (b"PAR1 is how Parquet begins", "cannot be read"),
        (b"ARROW1 is how Arrow begins", "cannot be read"),
        (b'"' + b"x" * 200_000 + b'",b\n1,2\n', "field larger than field limit"),
        (b"a,b\n1,\x81\xe9\n", "cannot be read"),
    ],
)
def test_files_that_are_no_table_are_rejected(tmp_path, content, words):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=words):
        read_table(path)
    with pytest.raises(InvalidInputError, match=words):
        list(read_batches(path, []))


def test_paths_that_are_no_file_are_rejected(tmp_path):
    with pytest.raises(InvalidInputError, match="which does not exist"):
        read_table(tmp_path / "a.csv")
    with pytest.raises(InvalidInputError, match="which is a folder"):
        read_table(tmp_path)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.parquet", "a.arrow"])
def test_a_damaged_file_is_rejected(tmp_path, name):
    content = gzip.compress(b"a,b\n" + b"1,2\n" * 1000)
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_table(tmp_path / name)
    (tmp_path / name).write_bytes(content[:14] + b"\xff" * 8 + content[22:])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "§"])
def test_bad_delimiters_are_rejected(tmp_path, delimiter):
    with pytest.raises(InvalidInputError, match="a delimiter of one character"):
        read_table(csv(tmp_path, "a,b\n1,2\n"), delimiter=delimiter)


def test_text_in_a_column_of_numbers_is_named_with_its_row(tmp_path):
    path = csv(tmp_path, "x,y\n1,2\nabc,3\n")
    with pytest.raises(InvalidInputError, match=r"number in the column x of .*, row 1 .* Got the text 'abc'"):
        list(read_batches(path, [Column("x", "number")]))
    with pytest.raises(InvalidInputError, match=r"number in the column x of .*, row 1 .* Got the text 'abc'"):
        read_table(path, columns=[Column("x", "number")])


def test_gzip_is_recognised_by_the_first_bytes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(b"x,y\n1,2\n3,4\n"))
    assert read_table(path).values.tolist() == [[1, 2], [3, 4]]
    assert sum(batch.num_rows for batch in read_batches(path, [Column("x", "number")])) == 2
    plain = tmp_path / "a.csv.gz"
    plain.write_text("x,y\n1,2\n")
    assert read_table(plain).values.tolist() == [[1, 2]]


def test_other_errors_are_explained(tmp_path):
    for encoding in ("utf-16", "utf-16-be"):
        text = "\ufeffx,y\n1,2\n" if encoding == "utf-16-be" else "x,y\n1,2\n"
        (tmp_path / "wide.csv").write_bytes(text.encode(encoding))
        with pytest.raises(InvalidInputError, match=r"which is in UTF-16\. Save it as UTF-8"):
            read_table(tmp_path / "wide.csv")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match="which is not an ordinary file; save it first"):
        read_table(tmp_path / "pipe")
    for name in ("a.parquet", "a.arrow"):
        write(pa.table({"x": pa.array([], pa.float64())}), tmp_path / name)
        for read in (read_table, lambda path: list(read_batches(path, [Column("x", "number")]))):
            with pytest.raises(InvalidInputError, match="which has no rows"):
                read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv"])
def test_features_must_be_there_and_keys_may_be_missing(tmp_path, name):
    table = pa.table({"x": [1.0, 2.0], "id": [1, 2]})
    path = tmp_path / name
    if name == "a.csv":
        table.to_pandas().to_csv(path, index=False)
    else:
        write(table, path)
    wanted = [Column("size", "number"), Column("x", "number")]
    for read in (lambda: list(read_batches(path, wanted)), lambda: read_table(path, columns=wanted)):
        with pytest.raises(InvalidInputError, match=r"Expected the column\(s\) size in .* Got x, id."):
            read()
    (batch,) = read_batches(path, [Column("x", "number"), Column("name", "key"), Column("id", "key")])
    assert batch.column_names == ["x", "id"]


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"onsphere\[cli\]"):
        read_table(tmp_path / "a.csv")


# --- writing ---


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet", "a.feather", "a.arrow"])
def test_written_tables_are_read_back_unchanged(tmp_path, name):
    path = tmp_path / name
    columns = {
        "name": ["a, b", 'say "x"\n', None],
        "x": [1.5, 2.5, 1e-300],
        "n": [2**60, 1, 2],
        "good": [True, False, True],
    }
    with open_writer(path) as writer:
        writer.add(columns)
        writer.add(columns)
        assert not path.exists()
    frame = read_table(path)
    assert frame["name"].tolist()[:2] == columns["name"][:2]
    assert frame["name"].isna().tolist() == [False, False, True] * 2
    for column in ("x", "n", "good"):
        assert frame[column].tolist() == columns[column] * 2
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("old")
    with (
        pytest.raises(InvalidInputError, match="Expected key columns that can be written as csv"),
        open_writer(path) as writer,
    ):
        writer.add({"pairs": [[1], [2]]})

    def stopped():
        with open_writer(path) as writer:
            writer.add({"x": [1]})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.csv", "old")]


def test_an_unknown_suffix_is_rejected(tmp_path):
    with pytest.raises(InvalidInputError, match=r"whose name ends in \.csv"), open_writer(tmp_path / "a.xlsx"):
        pass


# --- files that are not plain ---


@pytest.mark.parametrize(
    "text",
    [
        "sep=|\na|b;c\n1|2\n3|4\n",
        '"sep=|"\na|b;c\n1|2\n3|4\n',
        "# measured, on Monday\n# by hand\na|b;c\n1|2\n3|4\n",
    ],
)
def test_lines_before_the_header_are_skipped(tmp_path, text):
    path = csv(tmp_path, text)
    assert read_table(path).to_dict("list") == {"a": [1, 3], "b;c": [2, 4]}
    batches = list(read_batches(path, [Column("a", "number"), Column("b;c", "number")]))
    assert [each for batch in batches for each in batch["b;c"].to_pylist()] == [2, 4]


def test_a_header_may_begin_with_a_hash(tmp_path):
    assert list(read_table(csv(tmp_path, "#id,x\n1,2\n"))) == ["#id", "x"]


def test_a_ragged_row_is_named_by_its_line(tmp_path):
    path = csv(tmp_path, '# note\na,b\n1,"two\nlines"\n3,4,5\n')
    with pytest.raises(InvalidInputError, match="Got 3 in line 5: the text '3,4,5'"):
        read_table(path)
    path = csv(tmp_path, "a,b\n1,2\n\n3\n")
    with pytest.raises(InvalidInputError, match="Got 1 in line 4"):
        list(read_batches(path, [Column("a", "number")]))


def test_standard_input_is_a_file_too(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n1,2\n")))
    assert read_table("-").to_dict("list") == {"a": [1], "b": [2]}


def test_a_zip_archive_holds_one_file(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/a.tsv", "a\tb\n1\t2\n")
        archive.writestr("__MACOSX/folder/._a.tsv", "x")
    assert read_table(path).to_dict("list") == {"a": [1], "b": [2]}
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("b.csv", "x")
    with pytest.raises(InvalidInputError, match=r"Expected one file in .*a.zip. Got 2: folder/a.tsv, b.csv"):
        read_table(path)
    path.write_bytes(b"PK no")
    with pytest.raises(InvalidInputError, match="Expected a zip archive"):
        read_table(path)


def test_the_first_sheet_of_an_excel_file_is_read(tmp_path):
    path = tmp_path / "a.xlsx"
    frame = pd.DataFrame({"size": [1.5, None], "shop": ["a", "b"], "day": pd.to_datetime(["2024-01-31", "2024-02-01"])})
    frame.to_excel(path, index=False)
    assert read_table(path)["size"].tolist()[0] == 1.5
    kinds = {column.name: column.kind for column in describe_columns(read_table(path))}
    assert kinds == {"size": "number", "shop": "category", "day": "date"}
    with pd.ExcelWriter(path) as writer:
        frame.to_excel(writer, sheet_name="one", index=False)
        frame.to_excel(writer, sheet_name="two", index=False)
    with pytest.warns(OnsphereWarning, match="has 2 sheets; the first, one, is read"):
        read_table(path)
    path.write_bytes(b"no")
    with pytest.raises(InvalidInputError, match="Expected an Excel file"):
        read_table(path)


def test_without_openpyxl_it_says_what_to_install(tmp_path, monkeypatch):
    pd.DataFrame({"a": [1]}).to_excel(tmp_path / "a.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'onsphere\[cli\]'"):
        read_table(tmp_path / "a.xlsx")


def test_a_file_of_remarks_alone_has_no_header():
    assert files._skip_preamble("# made by\n# nobody\n") == (2, "", None)


def test_dates_that_are_whole_numbers_are_read_by_their_format_from_every_file(tmp_path):
    frame = pd.DataFrame({"day": pd.array([20240131, None, 20240302], dtype="Int64"), "x": [1.5, 2.5, 3.5]})
    columns = [Column("day", "date", date_format="%Y%m%d"), Column("x", "number")]
    first, last = (pd.Timestamp(day).timestamp() for day in ("2024-01-31", "2024-03-02"))
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    frame.astype({"day": float}).to_parquet(tmp_path / "b.parquet", index=False)
    for name in ("a.csv", "a.parquet", "b.parquet"):
        for rows in (read_table(tmp_path / name, columns=columns), in_batches(tmp_path / name, columns)):
            np.testing.assert_array_equal(read_features(rows, columns)["day"], [first, np.nan, last])


def test_errors_name_the_file_that_was_given(tmp_path, monkeypatch):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("b.csv", "size\n1\n2\n")
    with pytest.raises(
        InvalidInputError, match=rf"Expected the column\(s\) price in {re.escape(str(path))}\. Got size\."
    ):
        read_table(path, columns=[Column("price", "number")])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InvalidInputError, match="Got standard input, which is empty"):
        read_table("-")


def test_a_zip_archive_with_a_password_is_named(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("b.csv", "size\n1\n2\n")
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag of encryption, in both headers
        content[content.index(mark) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"without a password\. Got .*a\.zip, which has one"):
        read_table(path)
