"""How the columns of a table become numbers."""

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.pipeline import make_pipeline

from onsphere import InvalidInputError, NotFittedError
from onsphere.export import prepare_inputs
from onsphere.export.graph_builder import GraphBuilder, open_session
from onsphere.export.graph_inputs import add_column_inputs
from onsphere.table import BACKBONES, Column, TableEncoder, describe_columns
from onsphere.table.backbone_choice import make_table_model


def encoded(column, values, fit_values=None):
    fit_values = values if fit_values is None else fit_values
    encoder = TableEncoder([column]).fit(pd.DataFrame({column.name: fit_values}))
    return encoder.transform(pd.DataFrame({column.name: values})).T.tolist()


def test_numbers_and_booleans_become_numbers():
    assert encoded(Column("x", "number"), [1, 2]) == [[1.0, 2.0]]
    assert encoded(Column("x", "number"), pd.array([1, None], dtype="Int64")) == [
        [1.0, pytest.approx(np.nan, nan_ok=True)]
    ]
    assert encoded(Column("x", "number"), ["1.5", " 2 "]) == [[1.5, 2.0]]
    assert encoded(Column("x", "boolean"), ["TRUE", "false", "0", True]) == [[1.0, 0.0, 0.0, 1.0]]
    assert encoded(Column("x", "boolean"), [True, False]) == [[1.0, 0.0]]


def test_a_date_becomes_days_day_of_year_weekday_and_hour():
    texts = ["1970-01-01", "2024-02-29T18:30:00Z", "1969-12-31", None]
    days, day_of_year, weekday, hour = encoded(Column("x", "date"), texts)
    moments = [datetime.datetime(1970, 1, 1), datetime.datetime(2024, 2, 29, 18, 30), datetime.datetime(1969, 12, 31)]
    for index, moment in enumerate(moments):
        assert days[index] == (moment - moments[0]).total_seconds() / 86400
        assert weekday[index] == moment.weekday()
        assert hour[index] == moment.hour + moment.minute / 60
        # A year of 365.2425 days is off by less than two days.
        assert abs(day_of_year[index] - (moment.timetuple().tm_yday - 1)) < 2
    assert np.isnan([days[3], day_of_year[3], weekday[3], hour[3]]).all()


def test_dates_are_encoded_alike_in_every_type():
    texts = ["2024-02-29", "1999-12-31"]
    for values in (
        pd.to_datetime(texts),
        pd.to_datetime(texts, utc=True),
        [datetime.date.fromisoformat(t) for t in texts],
    ):
        assert encoded(Column("x", "date"), values) == encoded(Column("x", "date"), texts)
    written = ["29.02.2024", "31.12.1999"]
    assert encoded(Column("x", "date", date_format="%d.%m.%Y"), written) == encoded(Column("x", "date"), texts)


def test_time_zones_are_taken_into_account():
    assert encoded(Column("x", "date"), ["2024-01-01T10:00:00+02:00"]) == encoded(
        Column("x", "date"), ["2024-01-01T08:00:00Z"]
    )


def test_the_most_frequent_categories_get_a_column_and_all_others_share_one():
    frame = pd.DataFrame({"x": ["b", "a", "b", None, "c", "a", "b"]})
    encoder = TableEncoder(max_levels=2).fit(frame)
    assert encoder.levels_ == {"x": ["b", "a"]}
    assert encoder.get_feature_names_out().tolist() == ["x=b", "x=a", "x is missing", "x is other"]
    new = pd.DataFrame({"x": ["a", "c", "never seen", None]})
    assert encoder.transform(new).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]]


def test_a_gap_not_seen_in_training_is_none_of_the_values():
    assert encoded(Column("x", "category"), [None, "a"], ["a", "b"]) == [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]


def test_a_graph_encodes_rare_unseen_and_missing_categories_alike():
    frame = pd.DataFrame({"x": ["b", "a", "b", "c", "a", "b"], "y": ["u", None, "u", "v", "u", "v"]})
    encoder = TableEncoder([Column("x", "category"), Column("y", "category")], max_levels=2).fit(frame)
    rows = pd.DataFrame({"x": ["a", "c", "new", None], "y": ["v", "new", None, "u"]})
    graph = GraphBuilder()
    encoded_rows, inputs = add_column_inputs(graph, encoder)
    graph.add_output("numbers", encoded_rows.name, encoded_rows.dtype, [encoded_rows.shape[1]])
    session = open_session(graph.build({}).SerializeToString())
    [numbers] = session.run(["numbers"], prepare_inputs(inputs, rows))
    assert numbers.tolist() == encoder.transform(rows).tolist()


def test_a_category_that_was_never_seen_is_novel(houses):
    frame = houses(300, 0).dropna(subset=["city"])
    columns = describe_columns(frame.drop(columns="price"))
    names = [column.name for column in columns if column.is_feature]
    model = make_table_model("extra-trees", columns, classes=False).set_params(estimator__trees__n_estimators=20)
    model.fit(frame[names], frame["price"])
    rows = houses(100, 1).dropna(subset=["city"])[names]
    assert model.predict_novelty(rows).mean() < 0.1
    for city in ("Atlantis", None):  # nor was a city missing
        strange = model.assess(rows.assign(city=city))
        assert strange.novelty.min() > 0.8
        assert (strange.sigma > model.spread_ / 2).all()


def test_what_stands_for_unseen_categories_does_not_reach_a_network(houses):
    """Its weights were never trained, and would change predictions at random."""
    frame = houses(200, 0).dropna(subset=["city"])
    encoder = TableEncoder(describe_columns(frame.drop(columns="price"))).fit(frame)
    steps = [step for _, step in BACKBONES["mlp"](200, 4)[:-1]]
    numbers = make_pipeline(encoder, *steps).fit(frame).transform(frame)
    other = encoder.get_feature_names_out().tolist().index("city is other")
    kept = steps[1].get_support()
    assert not kept[other]
    assert numbers.shape[1] == kept.sum() < len(kept)


def test_names_come_in_the_order_of_the_numbers():
    frame = pd.DataFrame(
        {"a": [1.5, 2.0, 2.5], "d": ["2024-01-31", "2024-01-31", "2024-02-01"], "b": [True, False, True]}
    )
    encoder = TableEncoder().fit(frame)
    assert encoder.get_feature_names_out().tolist() == [
        "a",
        "d: days",
        "d: day of year",
        "d: weekday",
        "d: hour",
        "b",
    ]
    assert encoder.transform(frame).shape == (3, 6)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (Column("x", "number"), "abc", r"Expected a number in the column x, row 1 .* Got the text 'abc'"),
        (
            Column("x", "number", written_as_text=True),
            "abc",
            r"Expected a number in the column x, row 1 .* Got the text 'abc'",
        ),
        (Column("x", "number"), "inf", r"Expected a finite number in the column x, row 1 .* Got the text 'inf'"),
        (Column("x", "boolean"), "yes", r"Expected true or false in the column x, row 1 .* Got the text 'yes'"),
        (Column("x", "date"), "tomorrow", "a date, written as 2024-01-31 in the column x, row 1"),
        (Column("x", "date", date_format="%d.%m.%Y"), "01/31/2024", "written as %d.%m.%Y in the column x"),
    ],
)
def test_a_cell_that_cannot_be_read_is_named_with_its_row(column, value, words):
    encoder = TableEncoder([column]).fit(pd.DataFrame({"x": [None]}))
    with pytest.raises(InvalidInputError, match=words):
        encoder.transform(pd.DataFrame({"x": [None, value]}))


def test_other_text_is_missing_in_a_mixed_column():
    assert np.isnan(encoded(Column("x", "number", mixed=True), ["abc"])).all()
    assert np.isnan(encoded(Column("x", "date", mixed=True), ["abc"])).all()


def test_an_infinite_number_is_named_with_its_row():
    with pytest.raises(InvalidInputError, match=r"in the column x, row 7 \(counted from 0\)\. Got the number inf"):
        encoded(Column("x", "number"), pd.Series([1.0, np.inf], index=[3, 7]))


def test_bad_use_of_the_encoder_is_rejected():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "x"]})
    with pytest.raises(NotFittedError):
        TableEncoder().transform(frame)
    with pytest.raises(NotFittedError):
        TableEncoder().get_feature_names_out()
    with pytest.raises(InvalidInputError, match="max_levels"):
        TableEncoder(max_levels=0).fit(frame)
    with pytest.raises(InvalidInputError, match=r"Expected a column to learn from. Got b \(unused, constant\)"):
        TableEncoder().fit(frame[["b"]])
    with pytest.raises(InvalidInputError, match="Got no columns"):
        TableEncoder([]).fit(frame)
    with pytest.raises(InvalidInputError, match=r"Expected the column\(s\) a in the table. Got b."):
        TableEncoder().fit(frame).transform(frame[["b"]])


# --- any table ---

FLOATS = st.floats(allow_nan=True, allow_infinity=False)
CELLS = st.one_of(
    st.lists(FLOATS, min_size=3, max_size=12),
    st.lists(st.integers(-(2**62), 2**62), min_size=3, max_size=12),
    st.lists(st.booleans() | st.none(), min_size=3, max_size=12),
    st.lists(st.sampled_from(["a", "b", "ç", "", " ", "true", "1"]) | st.none(), min_size=3, max_size=12),
    st.lists(st.dates().map(str) | st.none(), min_size=3, max_size=12),
    st.lists(
        st.dates(datetime.date(1800, 1, 1)).map(lambda day: f"{day:%d.%m.%Y}") | st.none(), min_size=3, max_size=12
    ),
    st.lists(FLOATS.map(repr), min_size=3, max_size=12),
    st.lists(st.text(max_size=3) | st.none(), min_size=3, max_size=12),
    st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=2), st.booleans(), st.none()), min_size=3, max_size=12),
    st.lists(st.lists(st.integers(), max_size=2), min_size=3, max_size=12),
)


@settings(max_examples=60)
@given(columns=st.lists(CELLS, min_size=1, max_size=4), order=st.randoms(use_true_random=False))
def test_any_table_becomes_numbers_row_by_row(columns, order):
    n_rows = min(map(len, columns))
    frame = pd.DataFrame({f"c{index}": pd.Series(cells[:n_rows]) for index, cells in enumerate(columns)})
    try:
        encoder = TableEncoder().fit(frame)
        together = encoder.transform(frame)
    except InvalidInputError as error:
        assert "Expected" in str(error)  # noqa: PT017
        return
    assert together.shape == (n_rows, len(encoder.get_feature_names_out()))
    assert together.dtype == np.float64
    assert not np.isinf(together).any()
    # A row's numbers do not depend on its company, nor on its place, nor on the order of the columns.
    apart = np.vstack([encoder.transform(frame.iloc[[row]]) for row in range(n_rows)])
    np.testing.assert_array_equal(apart, together)
    shuffled = list(range(n_rows))
    order.shuffle(shuffled)
    np.testing.assert_array_equal(encoder.transform(frame.iloc[shuffled]), together[shuffled])
    np.testing.assert_array_equal(encoder.transform(frame[frame.columns[::-1]].assign(more=1)), together)


@settings(max_examples=30)
@given(levels=st.lists(st.text(max_size=3), min_size=1), new=st.text(min_size=4, max_size=6))
def test_an_unknown_category_is_none_of_the_known_ones(levels, new):
    assume(new.strip() not in {level.strip() for level in levels})
    encoder = TableEncoder([Column("x", "category")]).fit(pd.DataFrame({"x": levels}))
    assert encoder.transform(pd.DataFrame({"x": [new]})).tolist() == [[0.0] * len(encoder.levels_["x"]) + [1.0]]
    known = encoder.transform(pd.DataFrame({"x": levels}))
    kept = [level.strip() in encoder.levels_["x"] for level in levels]
    assert known[:, :-1].sum(axis=1).tolist() == [float(each) for each in kept]
    assert (known.sum(axis=1) == 1).all()


# --- categories of many values ---


def make_cities(n, seed, n_cities=60):
    """Return cities with a level of their own each, and a target that depends on nothing else."""
    rng = np.random.default_rng(seed)
    levels = np.random.default_rng(99).normal(size=n_cities)
    city = rng.integers(n_cities, size=n)
    frame = pd.DataFrame({"city": [f"city {each}" for each in city], "x": rng.normal(size=n)})
    return frame, levels[city] + 0.3 * rng.normal(size=n)


def test_every_value_of_a_category_tells_something():
    (X, y), (X_new, y_new) = make_cities(1500, 0), make_cities(1000, 1)
    model = make_pipeline(TableEncoder(), ExtraTreesRegressor(50, min_samples_leaf=2, random_state=0)).fit(X, y)
    # The noise alone is 0.3. With columns for the twenty most frequent cities alone, the other forty look alike.
    assert np.sqrt(np.mean((model.predict(X_new) - y_new) ** 2)) < 0.4
    names = model[0].get_feature_names_out().tolist()
    frequent = [place for place, name in enumerate(names) if name != "city by target 0"]
    blind = ExtraTreesRegressor(50, min_samples_leaf=2, random_state=0).fit(model[0].transform(X)[:, frequent], y)
    assert np.sqrt(np.mean((blind.predict(model[0].transform(X_new)[:, frequent]) - y_new) ** 2)) > 0.6
    assert names[20:] == ["city is other", "city by target 0", "x"]
    assert len(model[0].get_known_levels()["city"]) == 60
    assert model[0].describe_encodings() == {
        "city": "60 values placed by their mean target; a column for each of the 20 most frequent",
        "x": "as it is",
    }


def test_no_row_sees_its_own_target():
    # Values that tell nothing: placed by their own rows, they would seem to.
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"code": [f"c{each}" for each in rng.integers(200, size=600)]})
    y = rng.normal(size=600)
    encoder = TableEncoder([Column("code", "category")])
    placed = encoder.fit_transform(X, y)[:, -1]
    assert abs(np.corrcoef(placed, y)[0, 1]) < 0.12  # 3 standard errors
    assert np.corrcoef(encoder.transform(X)[:, -1], y)[0, 1] > 0.4


def test_a_value_that_was_not_seen_is_other_and_lies_in_the_middle():
    X, y = make_cities(600, 0)
    X.loc[:50, "city"] = None
    encoder = TableEncoder().fit(X, y)
    new = pd.DataFrame({"city": ["nowhere", "city 1", None], "x": 0.0})
    other, place = encoder.transform(new)[:, -3:-1].T
    assert other.tolist() == [1, 0, 0]
    assert place[0] == 0
    assert place[1] != 0
    # Without targets, rare values have no place.
    assert "city by target 0" not in TableEncoder().fit(X).get_feature_names_out()
    assert TableEncoder().fit(X).get_known_levels() == {}


def test_a_graph_places_values_too():
    X, y = make_cities(400, 0)
    X.loc[:20, "city"] = None
    encoder = TableEncoder().fit(X, y)
    graph = GraphBuilder()
    rows, inputs = add_column_inputs(graph, encoder)
    graph.add_output("numbers", rows.name, rows.dtype, [rows.shape[1]])
    new = pd.concat([X, pd.DataFrame({"city": ["nowhere"], "x": [0.0]})], ignore_index=True)
    [found] = open_session(graph.build({}).SerializeToString()).run(["numbers"], prepare_inputs(inputs, new))
    np.testing.assert_allclose(found, encoder.transform(new), atol=1e-12)


def test_many_targets_give_few_places():
    X, y = make_cities(800, 0)
    rng = np.random.default_rng(0)
    targets = np.column_stack([y * scale for scale in rng.normal(size=30)] + [np.zeros(800)])
    assert TableEncoder().fit(X, targets).places_["city"][1].shape == (60, 1)
    constant = TableEncoder().fit_transform(X, np.zeros(800))
    assert np.isfinite(constant).all()
