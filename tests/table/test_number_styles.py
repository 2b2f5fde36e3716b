"""Numbers that are written with marks, signs and units: read where that is certain, and otherwise said."""

import numpy as np
import pandas as pd
import pytest

from onsphere import InvalidInputError
from onsphere.table import Column, describe_columns, read_table
from onsphere.table.cells import parse_as, read_cells, read_features
from onsphere.table.columns import describe_column, force_kind
from onsphere.table.number_styles import NumberStyle, parse_styled_numbers


def read_column(cells, name="x"):
    """Return what a column of text is taken for, and its numbers."""
    values = pd.Series(cells, dtype=object)
    column = describe_column(name, values)
    return column, read_cells(column, values).values.tolist() if column.is_feature else None


def read_lines(folder, lines, ending=".csv"):
    """Return the notes on the columns of a file, and its numbers."""
    path = folder / f"a{ending}"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    frame = read_table(path)
    columns = describe_columns(frame)
    return {column.name: column.note for column in columns}, read_features(frame, columns)


def test_thousands_in_a_file_with_tabs_are_no_decimals(tmp_path):
    notes, rows = read_lines(tmp_path, ["id\tpop", "a\t950", "b\t1,234", "a\t12,500", "b\t1,001"], ".tsv")
    assert rows["pop"].tolist() == [950, 1234, 12_500, 1001]
    assert notes["pop"] == ", is read as the separator of thousands"


def test_a_comma_that_can_be_either_is_said(tmp_path):
    notes, rows = read_lines(tmp_path, ["id;pop", "a;1,234", "b;2,345", "a;3,456"])
    assert rows["pop"].tolist() == [1234, 2345, 3456]
    assert notes["pop"] == ", is read as the separator of thousands; ',' could be the decimal mark (--number pop=,)"
    column = force_kind("pop", pd.Series(["1,234", "2,345"]), "number=,")
    assert parse_as(column, pd.Series(["1,234", "1.234,5", "1.5"])).tolist()[:2] == [1.234, 1234.5]
    assert force_kind("pop", pd.Series(["1,234", "2,345"]), "number=.").thousands == ","
    with pytest.raises(InvalidInputError, match=r"Expected the decimal mark of the numbers in pop, .* Got 'x'"):
        force_kind("pop", pd.Series(["1,234", "2,345"]), "number=x")


def test_decimals_elsewhere_in_the_file_decide(tmp_path):
    _, rows = read_lines(tmp_path, ["x;y;z", "1,234;0,5;1.234", "2,345;1,5;12.500", "3,456;2,5;1.234.567"])
    assert rows.to_numpy().tolist() == [[1.234, 0.5, 1234], [2.345, 1.5, 12_500], [3.456, 2.5, 1_234_567]]
    _, rows = read_lines(tmp_path, ["x;y", "1,234;0.5", "2,345;1.5", "3,456;2.5"])
    assert rows["x"].tolist() == [1234, 2345, 3456]
    _, rows = read_lines(tmp_path, ["x;y", "1.234,50;a", "950,25;b", "12,10;a"])
    assert rows["x"].tolist() == [1234.5, 950.25, 12.1]


def test_points_between_thousands_are_no_decimals(tmp_path):
    notes, rows = read_lines(tmp_path, ["g;cost;area", "a;950 €;950", "b;1.234 €;1.234", "a;12.500 €;12.500"])
    assert rows["cost"].tolist() == rows["area"].tolist() == [950, 1234, 12_500]
    assert notes["cost"] == "numbers in €; . is read as the separator of thousands and , as the decimal mark"
    _, rows = read_lines(tmp_path, ["g,area", "a,950", "b,1.234", "a,12.500"])
    assert rows["area"].tolist() == [950, 1.234, 12.5]  # where commas delimit, a point is the decimal mark
    column, numbers = read_column(["1.234 €", "2.345 €"] * 2)
    assert numbers == [1.234, 2.345] * 2
    assert column.note == "numbers in €; '.' could be the separator of thousands (--number x=,)"


def test_a_mark_at_another_place_than_in_training_is_no_number():
    style = NumberStyle(",")
    assert np.isnan(parse_styled_numbers(pd.Series(["1,5", "12,34", "0,500"]), style)).all()
    assert parse_styled_numbers(pd.Series(["1,500", "1,500.5", "15"]), style).tolist() == [1500, 1500.5, 15]


def test_an_open_comma_in_a_later_file_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x;y\n1,234;3\n")
    with pytest.raises(
        InvalidInputError, match=r"column x .*row 0 .* Got the text '1,234'. It can be a decimal comma or"
    ):
        read_table(path, columns=[Column("x", "number"), Column("y", "number")])


def test_losses_in_brackets_and_a_typeset_minus_are_numbers():
    column, numbers = read_column(["(1,200.00)", "6.64", "(5.00)", "3.10"])
    assert numbers == [-1200, 6.64, -5, 3.1]
    assert column.note == ", is read as the separator of thousands; numbers in brackets are negative"
    assert read_column(["(12.30)", "6.64", "3.10", "6.64"])[1] == [-12.3, 6.64, 3.1, 6.64]
    assert read_column(["$(5)", "($7)", "$3", "$2"])[1] == [-5, -7, 3, 2]
    assert read_column(["\u22127", "-3", "4", "\u20132"])[1] == [-7, -3, 4, -2]
    assert read_column(["(1)", "(2)", "(1)", "(2)"])[0].kind == "category"  # all of them have brackets
    assert read_column(["(1 kg)", "(2 kg)", "(1 kg)", "(2 kg)"])[0].kind == "category"


def test_a_few_numbers_with_marks_are_read_too():
    column, numbers = read_column([*map(str, range(100, 140)), "1,200"])
    assert (numbers[-1], column.mixed) == (1200, False)


def test_bare_numbers_among_marked_ones_are_said():
    column, numbers = read_column(["4%", "0.04", "12%", "0.5"] * 2)
    assert numbers[:4] == [4, 0.04, 12, 0.5]
    assert (
        column.note
        == "numbers in %; '0.04' and others without % are read as % too and could be shares: write all alike"
    )
    column, numbers = read_column(["5 m", "700", "1.2 m", "700"])
    assert numbers == [5, 700, 1.2, 700]
    assert (
        column.note == "numbers in m; '700' and others without m are read as m too; m could be million (--number x=m)"
    )
    asked = force_kind("x", pd.Series(["5 m", "700"]), "number=m")
    assert parse_as(asked, pd.Series(["5 m", "700"])).tolist() == [5e6, 700]
    assert read_column(["5 M", "700", "1.2 M", "700"])[1] == [5e6, 700, 1.2e6, 700]
