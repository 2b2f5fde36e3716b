"""A file is read, and a file with predictions is written."""

import copy
import io
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from onsphere import AcceptShare, InvalidInputError, Novelty, OnsphereWarning
from onsphere.table import files, fit_table, predict_file, read_table
from onsphere.table.model_file import load_table_model

FRAMES = ["noise", "novelty", "novelty_p_value"]
OUTPUTS = ["value", "uncertainty", *FRAMES, "lower", "upper", "confidence", "accepted", "reason"]


@pytest.fixture(scope="module")
def fitted(houses):
    return fit_table(houses(120, 0), ["price"], backbone="extra-trees")


def predicted(found, path, tmp_path, name="out.csv", **options):
    counts, _ = predict_file(found.model, found.columns, path, tmp_path / name, targets=found.targets, **options)
    frame = read_table(tmp_path / name)
    assert counts == {"rows": len(frame), "accepted": int(frame["accepted"].sum())}
    return frame


def test_rows_keep_their_order_and_keys(fitted, houses, tmp_path):
    new = houses(50, 1)
    new.to_csv(tmp_path / "new.csv", index=False)
    frame = predicted(fitted, tmp_path / "new.csv", tmp_path)
    assert list(frame.columns) == ["house_id", *OUTPUTS]
    assert frame["house_id"].tolist() == new["house_id"].tolist()
    result = fitted.model.assess(new[list(fitted.model.feature_names_in_)])
    for name in OUTPUTS:
        np.testing.assert_array_equal(
            frame[name].fillna("") if name == "reason" else frame[name], getattr(result, name)
        )


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_batches_do_not_change_the_answers(fitted, houses, tmp_path, monkeypatch, suffix):
    new = houses(300, 1)
    path = tmp_path / f"new{suffix}"
    if suffix == ".csv":
        new.to_csv(path, index=False)
    elif suffix == ".parquet":
        new.to_parquet(path)
    else:
        new.to_feather(path)
    whole = predicted(fitted, path, tmp_path, f"whole{suffix}")
    monkeypatch.setattr(files, "_BATCH_ROWS", 7)
    monkeypatch.setattr(files, "_BLOCK_BYTES", 1000)
    told = []
    parts = predicted(fitted, path, tmp_path, f"parts{suffix}", on_progress=told.append)
    pd.testing.assert_frame_equal(parts, whole, check_exact=True)
    assert (tmp_path / f"parts{suffix}").stat().st_size > 0
    assert len(told) > 40
    assert told[-1] == 300


def test_column_order_and_extra_columns_do_not_matter(fitted, houses, tmp_path):
    new = houses(30, 1)
    new.to_csv(tmp_path / "a.csv", index=False)
    new[new.columns[::-1]].drop(columns=["price", "country"]).assign(more="x", **{"a b": 1}).to_csv(
        tmp_path / "b.csv", index=False
    )
    first, second = (predicted(fitted, tmp_path / name, tmp_path) for name in ("a.csv", "b.csv"))
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_rows_are_numbered_where_there_is_no_key(fitted, houses, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_ROWS", 4)
    houses(10, 1).drop(columns="house_id").to_csv(tmp_path / "new.csv", index=False)
    frame = predicted(fitted, tmp_path / "new.csv", tmp_path)
    assert (frame.columns[0], frame["row"].tolist()) == ("row", list(range(10)))


def test_a_key_with_the_name_of_an_answer_is_renamed(houses, tmp_path):
    renamed = {"house_id": "value"}
    found = fit_table(houses(60, 0).rename(columns=renamed), ["price"], backbone="kernel")
    new = houses(10, 1).rename(columns=renamed)
    new.to_csv(tmp_path / "new.csv", index=False)
    frame = predicted(found, tmp_path / "new.csv", tmp_path)
    assert list(frame.columns) == ["key_value", *OUTPUTS]
    assert frame["key_value"].tolist() == new["value"].tolist()


def test_keys_with_gaps_and_large_numbers_stay_whole(fitted, houses, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_ROWS", 2)
    new = pa.Table.from_pandas(houses(6, 1), preserve_index=False)
    keys = pa.array([2**60 + 1, 2, None, None, 5, 2**53 + 1])
    pa.parquet.write_table(new.set_column(0, "house_id", keys), tmp_path / "new.parquet")
    predict_file(fitted.model, fitted.columns, tmp_path / "new.parquet", tmp_path / "out.parquet")
    assert pa.parquet.read_table(tmp_path / "out.parquet")["house_id"].to_pylist() == keys.to_pylist()


def test_a_column_may_be_empty_in_the_new_file(fitted, houses, tmp_path):
    new = houses(10, 1).assign(age=None, city=None, sold=None)
    new.to_parquet(tmp_path / "new.parquet")
    new.to_csv(tmp_path / "new.csv", index=False)
    first, second = (predicted(fitted, tmp_path / name, tmp_path) for name in ("new.csv", "new.parquet"))
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_unknown_categories_are_predicted_as_none_of_the_known_ones(fitted, houses, tmp_path):
    new = houses(10, 1)
    frames = []
    for city in ("Atlantis", "El Dorado"):
        new.assign(city=city).to_csv(tmp_path / "new.csv", index=False)
        frames.append(predicted(fitted, tmp_path / "new.csv", tmp_path))
    pd.testing.assert_frame_equal(*frames, check_exact=True)


def test_classes_come_with_sets_and_probabilities(houses, tmp_path):
    frame = houses(150, 0)
    frame["kind"] = np.where(frame.pop("price") > 700, "dear|old", "cheap")
    found = fit_table(frame, ["kind"], backbone="kernel")
    houses(30, 1).to_csv(tmp_path / "new.csv", index=False)
    result = predicted(found, tmp_path / "new.csv", tmp_path, coverage=0.95)
    names = ["house_id", "value", "probability", "uncertainty", *FRAMES, "set", "confidence", "accepted", "reason"]
    assert list(result.columns) == names
    assert set(result["value"]) <= {"dear|old", "cheap"}
    assert set(result["set"]) <= {"dear|old", "cheap", "cheap|dear|old"}


def test_several_targets_have_columns_of_their_own(houses, tmp_path):
    frame = houses(80, 0)
    frame["tax"] = frame["price"] * 0.1
    found = fit_table(frame, ["price", "tax"], backbone="kernel")
    houses(10, 1).to_csv(tmp_path / "new.csv", index=False)
    result = predicted(found, tmp_path / "new.csv", tmp_path)
    assert list(result.columns)[1:] == [
        "value_price",
        "value_tax",
        "uncertainty",
        "noise_price",
        "noise_tax",
        "novelty",
        "novelty_p_value",
        "lower_price",
        "lower_tax",
        "upper_price",
        "upper_tax",
        "confidence",
        "accepted",
        "reason",
        "lower_alone_price",
        "lower_alone_tax",
        "upper_alone_price",
        "upper_alone_tax",
    ]


def test_quantiles_have_columns_of_their_own_and_need_numbers(houses, tmp_path):
    frame = houses(150, 0).assign(double=lambda rows: 2 * rows["price"])
    frame.to_csv(tmp_path / "in.csv", index=False)
    fit = fit_table(frame, ["price", "double"], backbone="kernel", domain="auto")
    out, levels = tmp_path / "out.csv", [0.1, 0.9]
    options = {"targets": ["price", "double"], "quantiles": levels, "tails": "equal"}
    predict_file(fit.model, fit.columns, tmp_path / "in.csv", out, **options)
    answers = pd.read_csv(out)
    names = [f"quantile_{level}_{name}" for level in levels for name in ("price", "double")]
    assert list(answers.columns[-4:]) == names
    assert (answers["quantile_0.1_price"] <= answers["quantile_0.9_price"]).all()
    labels = frame.drop(columns=["price", "double"]).assign(kind=np.where(frame["price"] > 700, "dear", "cheap"))
    classes = fit_table(labels, ["kind"], backbone="kernel", domain="auto")
    with pytest.raises(InvalidInputError, match="predicts numbers, for quantiles"):
        predict_file(classes.model, classes.columns, tmp_path / "in.csv", out, quantiles=levels)
    with pytest.raises(InvalidInputError, match="Expected no domain for classes"):
        fit_table(labels, ["kind"], backbone="kernel", domain="positive")


def test_without_a_threshold_nothing_is_accepted_or_rejected(houses, tmp_path):
    found = fit_table(houses(60, 0), ["price"], backbone="kernel")
    found.model.set_threshold(None)
    houses(10, 1).to_csv(tmp_path / "new.csv", index=False)
    counts, unusual = predict_file(found.model, found.columns, tmp_path / "new.csv", tmp_path / "out.csv")
    assert (counts, unusual) == ({"rows": 10, "accepted": 0}, [])
    assert "accepted" not in read_table(tmp_path / "out.csv")
    found.model.calibration_ = None
    predict_file(found.model, found.columns, tmp_path / "new.csv", tmp_path / "out.csv")
    assert list(read_table(tmp_path / "out.csv")) == ["house_id", "value", "uncertainty", "noise", "novelty"]


def test_with_a_limit_on_novelty_the_reasons_are_counted(fitted, houses, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_ROWS", 4)
    model = copy.deepcopy(fitted.model).set_threshold(AcceptShare(0.9), novelty=Novelty(max=0.3))
    new = houses(60, 1)
    new.loc[:20, "size"] = 9_000.0
    new.to_csv(tmp_path / "new.csv", index=False)
    counts, _ = predict_file(model, fitted.columns, tmp_path / "new.csv", tmp_path / "out.csv")
    reasons = read_table(tmp_path / "out.csv")["reason"].fillna("").tolist()
    names = ("uncertain", "novel", "uncertain and novel")
    assert counts == {"rows": 60, "accepted": reasons.count("")} | {name: reasons.count(name) for name in names}
    assert counts["novel"] + counts["uncertain and novel"] >= 21


def test_models_of_older_files_give_what_they_gave(tmp_path):
    """Such a model has no frames, and its encoder no column for values that were not seen."""
    folder = Path(__file__).parents[1] / "data" / "format-1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OnsphereWarning)
        model, summary, columns = load_table_model(folder / "prices.onsphere")
    recorded = json.loads((folder / "answers.json").read_text())["prices"]
    pd.DataFrame(recorded["rows"]).to_csv(tmp_path / "new.csv", index=False)
    predict_file(model, columns, tmp_path / "new.csv", tmp_path / "out.csv", targets=summary["targets"])
    answers = read_table(tmp_path / "out.csv")
    for name in ("value", "uncertainty", "lower", "upper"):
        np.testing.assert_allclose(answers[name], recorded["assess"][name], rtol=1e-6)
    assert not {"novelty", "novelty_p_value"} & set(answers)


def test_an_error_leaves_the_old_file(fitted, houses, tmp_path):
    new = houses(10, 1)
    (tmp_path / "out.csv").write_text("old")
    new[:0].to_csv(tmp_path / "empty.csv", index=False)
    new[:0].to_parquet(tmp_path / "empty.parquet")
    new.drop(columns="size").to_csv(tmp_path / "lacking.csv", index=False)
    new.assign(sold=["2024-01-31"] * 9 + ["soon"]).to_csv(tmp_path / "mixed.csv", index=False)
    for name, words in (
        ("empty.csv", "which has a header and no rows"),
        ("empty.parquet", "which has no rows"),
        ("lacking.csv", r"Expected the column\(s\) size"),
        ("mixed.csv", r"in the column sold of .*mixed\.csv, row 9 .* Got the text 'soon'"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            predict_file(fitted.model, fitted.columns, tmp_path / name, tmp_path / "out.csv")
    with pytest.raises(InvalidInputError, match="coverage"):
        predict_file(fitted.model, fitted.columns, tmp_path / "mixed.csv", tmp_path / "out.csv", coverage=2)
    assert (tmp_path / "out.csv").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 5


def test_an_error_counts_rows_from_the_start_of_the_file(fitted, houses, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_ROWS", 3)
    houses(10, 1).assign(sold=["2024-01-31"] * 8 + ["soon"] * 2).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(InvalidInputError, match=r"row 8 .* Got the text 'soon'"):
        predict_file(fitted.model, fitted.columns, tmp_path / "new.csv", tmp_path / "out.csv")


def test_an_open_file_gets_each_batch_as_it_is_done(fitted, houses, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_ROWS", 4)
    houses(10, 1).to_csv(tmp_path / "new.csv", index=False)
    sink, n_lines = io.BytesIO(), []
    options = {"on_progress": lambda n_rows: n_lines.append(sink.getvalue().count(b"\n"))}
    predict_file(fitted.model, fitted.columns, tmp_path / "new.csv", sink, **options)
    assert n_lines == [5, 9, 11]  # with a header
    predict_file(fitted.model, fitted.columns, tmp_path / "new.csv", tmp_path / "out.csv")
    assert sink.getvalue() == (tmp_path / "out.csv").read_bytes()


def test_an_error_leaves_the_batches_before_it_in_an_open_file(fitted, houses, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_ROWS", 4)
    houses(10, 1).assign(sold=["2024-01-31"] * 9 + ["soon"]).to_csv(tmp_path / "new.csv", index=False)
    sink = io.BytesIO()
    with pytest.raises(InvalidInputError, match="row 9"):
        predict_file(fitted.model, fitted.columns, tmp_path / "new.csv", sink)
    assert sink.getvalue().count(b"\n") == 9
