"""A table becomes a calibrated model, with figures that hold."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import ShuffleSplit, train_test_split
from sklearn.tree import DecisionTreeRegressor

from onsphere import (
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    MaxErrorRate,
    Novelty,
    OnsphereWarning,
    Tolerance,
)
from onsphere.calibration import find_coverage_range
from onsphere.models import choice
from onsphere.models.choice import _split_folds
from onsphere.table import (
    BACKBONES,
    Column,
    backbone_choice,
    compare_table,
    describe_columns,
    evaluate,
    fit_table,
    read_table,
)
from onsphere.table import compare as comparing
from onsphere.table import fit as fitting
from onsphere.table.backbone_choice import choose_table_backbone, make_table_model
from onsphere.table.model_file import load_table_model, read_target_columns
from onsphere.table.prepare import drop_rows_without_target, prepare_table, read_known_rows, split_target

OPTIONS = {"task": "auto", "coverage": 0.9, "keys": (), "ignore": (), "test_size": 0.2, "random_state": 0}


def simple(n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return pd.DataFrame({"x": x, "group": rng.choice(["a", "b"], n), "y": 3 * x + rng.normal(size=n)})


# --- a table like those of people ---


@pytest.fixture(scope="module")
def fitted(houses):
    return fit_table(houses(700, 0), ["price"], backbone="extra-trees", random_state=1)


def test_a_fit_reports_columns_notes_figures_and_rows(fitted):
    assert (fitted.task, fitted.why) == ("regression", "price has 698 different numbers")
    kinds = {column.name: column.kind for column in fitted.columns}
    assert kinds == {
        "house_id": "key",
        "size": "number",
        "city": "category",
        "sold": "date",
        "heating": "boolean",
        "age": "number",
        "country": "unused",
        "rooms": "number",
    }
    assert fitted.n_rows == {"table": 700, "train": 420, "calibration": 140, "test": 140}
    assert fitted.notes == ["all 420 targets are numbers of at least 0, so lower ones are not expected"]
    assert fitted.candidates == []
    assert fitted.model.threshold_ is not None
    assert "model" not in fitted.summary()
    assert fitted.summary()["columns"][0]["kind"] == "key"


def test_intervals_cover_fresh_rows_as_often_as_promised(fitted, houses):
    """Check a range that a true promise leaves once in twenty times."""
    fresh = houses(1000, 1)
    X, y = split_target(fresh, ["price"], fitted.columns, classes=False)
    figures = evaluate(fitted.model, X, y)
    low, high = figures["coverage_by_chance"]
    assert low <= figures["coverage"] <= high
    assert figures["error_accepted"] < figures["error_rejected"]
    assert figures["spearman"] > 0.3


def test_categories_are_learned_from_training_rows_alone(houses):
    """Repeat the split of the table, and the one that the model makes to calibrate, from their seeds."""
    frame = houses(500, 0)
    found = fit_table(frame, ["price"], backbone="kernel")
    rest, _ = train_test_split(frame, test_size=0.2, random_state=0)
    kept, held = next(ShuffleSplit(1, test_size=0.25, random_state=0).split(rest))
    assert len(held) == found.n_rows["calibration"]
    assert not set(rest.index) & set(found.X_test.index)
    frame.loc[[*rest.index[held], *found.X_test.index], "city"] = "Atlantis"
    again = fit_table(frame, ["price"], backbone="kernel")
    levels = again.model.estimator_.steps[0][1].levels_["city"]
    assert "Atlantis" not in levels
    assert set(levels) == set(frame.loc[rest.index[kept], "city"].dropna())


def test_the_same_seed_gives_the_same_model(houses):
    frame = houses(120, 0)
    figures = [fit_table(frame, ["price"], backbone="kernel", random_state=seed).figures for seed in (3, 3, 4)]
    assert figures[0] == figures[1] != figures[2]


def test_small_tables_are_calibrated_by_folds_with_a_note(houses):
    found = fit_table(houses(40, 0), ["price"])
    assert found.backbone == "extra-trees"
    assert found.notes[0] == "32 rows are too few to choose the backbone by cross-validation"
    assert "with 32 rows the model learns from all of them and is calibrated by cross-validation" in found.notes[-1]
    assert found.n_rows == {"table": 40, "train": 32, "calibration": 32, "test": 8}


def test_rows_without_a_target_are_left_out_with_a_note():
    frame = simple()
    frame.loc[:4, "y"] = None
    found = fit_table(frame, ["y"], backbone="kernel")
    assert found.notes[0] == "5 rows without y are left out"


def test_keys_and_ignored_columns_can_be_chosen():
    table = prepare_table(simple(), ["y"], **{**OPTIONS, "keys": ["group"]})
    assert [(column.name, column.kind) for column in table.columns] == [("x", "number"), ("group", "key")]
    table = prepare_table(simple(), ["y"], **{**OPTIONS, "ignore": ["group"]})
    assert table.columns[1] == Column("group", "unused", "as asked")


def test_several_targets_are_fitted_together():
    frame = simple(150)
    frame["z"] = frame["x"] - 1
    found = fit_table(frame, ["y", "z"], backbone="kernel", rule=Tolerance(100.0))
    assert (found.task, found.why) == ("regression", "several targets are numbers")
    assert found.model.predict(found.X_test).shape == (30, 2)
    assert any("accepts all" in note for note in found.notes)


# --- numbers or classes ---


def what(values, **options):
    n = 60
    frame = pd.DataFrame({"x": np.arange(n) * 0.5, "y": pd.Series([values[index % len(values)] for index in range(n)])})
    table = prepare_table(frame, ["y"], **(OPTIONS | options))
    return table.classes, table.why, sorted(set(np.ravel(table.y).tolist()))


@pytest.mark.parametrize(
    ("values", "classes", "why", "found"),
    [
        (["b", "a"], True, "y is text with 2 different values", ["a", "b"]),
        ([True, False], True, "y is true or false", [False, True]),
        ([True, False, None], True, "y is true or false", [False, True]),
        ([1, 2], True, "y has 2 different whole numbers; choose the task regression if they are amounts", [1, 2]),
        ([1, 2, None], True, "y has 2 different whole numbers; choose the task regression if they are amounts", [1, 2]),
        (
            ["1", "2", None],
            True,
            "y has 2 different whole numbers; choose the task regression if they are amounts",
            [1, 2],
        ),
        ([0.5, 1.0], False, "y has 2 different numbers", [0.5, 1.0]),
        (["0.5", "1.0"], False, "y has 2 different numbers", [0.5, 1.0]),
        (list(range(12)), False, "y has 12 different numbers", list(range(12))),
    ],
)
def test_the_task_follows_from_the_target(values, classes, why, found):
    assert what(values) == (classes, why, found)


def test_the_task_can_be_chosen():
    assert what([1, 2], task="regression") == (False, "as asked", [1.0, 2.0])
    assert what([0.5, 1.5], task="classification") == (True, "as asked", ["0.5", "1.5"])
    assert what(["2024-01", "2024-02"], task="classification") == (True, "as asked", ["2024-01", "2024-02"])


def test_a_rare_class_is_left_out_with_a_note_and_a_small_one_is_kept():
    rng = np.random.default_rng(0)
    labels = np.array(["common"] * 200 + ["other"] * 80 + ["small"] * 5 + ["rare"] * 4)
    frame = pd.DataFrame(
        {"x": rng.normal(size=289) + (labels == "other") * 3, "w": rng.normal(size=289), "label": labels}
    )
    found = fit_table(frame, ["label"], backbone="kernel")
    assert found.task == "classification"
    assert found.model.classes_.tolist() == ["common", "other", "small"]
    assert found.notes[0] == "4 rows of rare classes (rare: fewer than 5 rows) are left out"
    # Choosing by folds must get by with so few of them, too.
    names = {"kernel": BACKBONES["kernel"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "CANDIDATES", names)
        found = fit_table(frame, ["label"])
    assert [set(row) for row in found.candidates] == [{"backbone", "first look", "error", "coverage", "Brier"}]


def test_a_backbone_can_be_chosen_with_many_small_classes():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 4)
    X = pd.DataFrame({"x": labels + rng.normal(size=80), "w": rng.normal(size=80)})
    for train, held, test in choice._split_folds(labels, True, 0):
        assert set(labels[train]) == set(labels)
        assert len({*train, *held, *test}) == len(train) + len(held) + len(test) == 80
        assert len(X.iloc[held]) > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"y": ["2024-01-31", "2024-02-01"] * 30},
            r"Expected a number in the column y, row 0 .* Got the text '2024-01-31'",
        ),
        (
            {"y": [pd.Timestamp("2024-01-31"), pd.Timestamp("2024-02-01")] * 30},
            r"in the column y, row 0 .* Got 2024-01-31",
        ),
        ({"y": None}, "Expected rows with y. Got none: every value is missing"),
        ({"y": 3.0}, "Expected a target that varies. Got y"),
        ({"y": 3.5}, "Expected a target that varies. Got y"),
        ({"y": "a"}, "Expected two classes or more in y, each with at least 5 rows. Got a: 60"),
        ({"x": 1, "group": "a"}, r"Expected a column to learn from. Got x \(unused, constant\), group"),
    ],
)
def test_tables_with_nothing_to_learn_are_rejected(change, words):
    with pytest.raises(InvalidInputError, match=words):
        fit_table(simple().assign(**change), ["y"], backbone="kernel")


def test_one_word_among_the_numbers_of_a_target_is_named():
    frame = simple()
    frame["y"] = frame["y"].round(3).astype(str)
    frame.loc[17, "y"] = "cheap"
    for task in ("auto", "regression"):
        with pytest.raises(InvalidInputError, match=r"a number in the column y, row 17 .* Got the text 'cheap'"):
            fit_table(frame, ["y"], task=task)
    frame.loc[17, "y"] = "unknown"
    assert fit_table(frame, ["y"], backbone="kernel").notes[0] == "1 rows without y are left out"
    frame.loc[17, "y"] = "inf"
    with pytest.raises(InvalidInputError, match=r"number in the column y, row 17 .* Got the number inf"):
        fit_table(frame, ["y"])


def test_a_target_of_lists_is_rejected():
    frame = simple()
    frame["y"] = [[1, 2]] * 60
    with pytest.raises(InvalidInputError, match="in y, which holds a list in each row"):
        fit_table(frame, ["y"])


@pytest.mark.parametrize(
    ("targets", "options", "words"),
    [
        ([], {}, "Expected the name of each column to predict, once. Got none"),
        (["y", "y"], {}, "once. Got y, y"),
        (["Y"], {}, "Expected a column Y. Got the columns x, group, y"),
        (["grup"], {}, "Did you mean group?"),
        (["GROUP"], {}, "Did you mean group?"),
        (["y"], {"keys": ["nr"]}, "Expected a column nr"),
        (["y"], {"backbone": "forest"}, "'backbone' parameter of fit_table must be one of 'auto'"),
        (["y"], {"task": "guess"}, "'task' parameter"),
        (["y"], {"coverage": 1.0}, "'coverage' parameter"),
        (["y"], {"coverage": 0.99}, "Expected at least 124 rows with a target, for a coverage of 0.99. Got 60"),
        (["y"], {"test_size": 0}, "'test_size' parameter"),
        (["y"], {"random_state": -1}, "'random_state' parameter"),
        (["x", "y"], {"task": "classification"}, "Expected one target for classification. Got x, y"),
    ],
)
def test_bad_arguments_are_rejected(targets, options, words):
    with pytest.raises(InvalidInputError, match=words.replace("?", r"\?")):
        fit_table(simple(), targets, **options)


def test_what_is_not_a_table_is_rejected():
    with pytest.raises(InvalidTypeError, match="Expected a DataFrame"):
        fit_table([[1.0]], ["y"])
    with pytest.raises(InvalidInputError, match="Got one column, 'y'"):
        fit_table(simple()[["y"]], ["y"])
    with pytest.raises(InvalidInputError, match="Expected at least 20 rows"):
        fit_table(simple(12), ["y"])


def test_a_target_of_text_can_stay_text():
    known, notes = drop_rows_without_target(pd.DataFrame({"y": ["01", None, "02 "]}), [Column("y", "category")])
    assert (known["y"].tolist(), notes) == (["01", "02"], ["1 rows without y are left out"])


# --- backbones ---


def test_the_backbone_with_the_best_score_is_taken(houses, monkeypatch):
    monkeypatch.setattr(choice, "CANDIDATES", {name: BACKBONES[name] for name in ("kernel", "extra-trees")})
    told = []
    found = fit_table(houses(120, 0), ["price"], on_progress=told.append)
    scores = {row["backbone"]: row["Winkler"] for row in found.candidates if "Winkler" in row}
    assert scores[found.backbone] <= 1.01 * min(scores.values())
    assert told[:2] == ["trying kernel", "trying extra-trees"]
    assert f"fitting {found.backbone} on 96 rows" in told


@pytest.mark.parametrize("name", list(BACKBONES))
def test_every_backbone_takes_any_table(houses, name):
    frame = houses(90, 0)
    frame["rarely"] = [1.0, 2.0] + [np.nan] * 88
    frames = "all" if name in ("extra-trees", "kernel") else "target"  # 36 fits of the others take long
    model = fit_table(frame, ["price"], backbone=name, frames=frames).model
    new = houses(8, 5).assign(rarely=np.nan, city="never seen")
    result = model.assess(new[list(model.feature_names_in_)])
    assert np.isfinite(result.value).all()
    assert (result.lower < result.upper).all()


def test_a_table_whose_folds_cannot_all_be_learned_has_no_error_frame(houses):
    """Boosted trees cannot learn from a column without a value, and here one of five folds has all values of one."""
    frame = houses(130, 0)
    frame["rarely"] = [1.0] + [np.nan] * 129
    columns = describe_columns(frame.drop(columns="price"))
    rows = frame[[column.name for column in columns if column.is_feature]]
    model = make_table_model("hist-gradient-boosting", columns, classes=False)
    with pytest.warns(OnsphereWarning, match="takes the spread of the target for the noise, because not every part"):
        model.fit(rows, frame["price"])
    assert np.ptp(model.assess(rows).noise) == 0
    with pytest.warns(OnsphereWarning, match="takes sigma for the noise, because not every part of the rows can be"):
        model.set_params(frames=("target", "error", "input")).fit(rows, frame["price"])
    result = model.assess(rows)
    np.testing.assert_array_equal(result.noise[result.novelty == 0], result.sigma[result.novelty == 0])
    assert np.mean(result.novelty == 0) > 0.9


def test_large_tables_are_compared_on_enough_rows_and_no_more():
    y = np.arange(3_000.0)
    assert [len(_split_folds(y[:n], False, 0)) for n in (100, 900, 3_000)] == [5, 3, 1]


def test_with_a_time_candidates_are_compared_on_later_rows(monkeypatch):
    asked = {}

    def choose(X, y, make, **options):
        asked.update(rows=X.index, **options)
        return "kernel", []

    monkeypatch.setattr(backbone_choice, "choose_backbone", choose)
    table = streets()
    fit_table(table, ["price"], time="day")
    assert asked["is_ordered"]
    assert table.loc[asked["rows"], "day"].tolist() == list(range(720))
    fit_table(table, ["price"], ignore=["day"])
    assert not asked["is_ordered"]


def test_a_backbone_that_only_knows_what_lies_between_rows_is_not_chosen_for_later_ones():
    """The target goes on rising with a column that counts days; trees answer with the latest level they know."""
    rng = np.random.default_rng(0)
    day = np.arange(600.0)
    target = 0.02 * day + np.where(rng.uniform(size=600) < 0.5, 1.0, -1.0)
    rows = np.column_stack([day, np.sign(target - 0.02 * day)])

    def make(name):
        return HCMRegressor({"trees": DecisionTreeRegressor(), "line": LinearRegression()}[name], frames="target")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "CANDIDATES", dict.fromkeys(["trees", "line"]))
        chosen, figures = choice.choose_backbone(rows, target, make, has_classes=False, is_ordered=True)
    assert chosen == "line"
    assert figures[0]["first look"] > 10 * figures[1]["first look"]


def test_folds_by_time_train_on_the_past_and_the_latest_comes_first():
    for n_rows, n_folds in ((60, 2), (2_000, 2), (3_600, 1), (20_000, 1)):
        folds = choice._split_by_time(np.arange(float(n_rows)), False)
        assert len(folds) == n_folds
        assert folds[0][2][-1] == n_rows - 1
        for train, held, test in folds:
            assert train[-1] + 1 == held[0]
            assert held[-1] + 1 == test[0]
            assert len(train) > 2.5 * len(held)
    assert folds[0][0][0] == 15_000  # the latest 5,000
    labels = np.where(np.arange(600) < 450, np.arange(600) % 2, 2)
    (train, held, test), earlier = choice._split_by_time(labels, True)
    assert set(labels[train]) == set(labels[held]) == {0, 1}
    assert len(test) == 0  # all of a class that the training rows do not have
    assert len(earlier[2]) == 50


def test_frames_and_a_limit_on_novelty_can_be_chosen(houses):
    frame = houses(150, 0)
    found = fit_table(frame, ["price"], backbone="extra-trees", novelty=Novelty(max=0.3))
    assert found.frames == found.summary()["frames"] == ["target", "error", "input"]
    assert set(found.figures["rejected_as"]) == {"uncertain", "novel", "uncertain and novel"}
    strange = frame[list(found.model.feature_names_in_)].assign(city="Atlantis", size=5000.0)
    assert all("novel" in reason for reason in found.model.assess(strange).reason)
    plain = fit_table(frame, ["price"], backbone="extra-trees", frames="target")
    assert plain.frames == ["target"]
    assert plain.model.assess(strange).novelty is None
    with pytest.raises(InvalidInputError, match=r"input frame for a limit on novelty\. Got Novelty\(max=0\.3"):
        fit_table(frame, ["price"], frames="target", novelty=Novelty(max=0.3))
    with pytest.raises(InvalidInputError, match="'frames' parameter of HCMRegressor"):
        fit_table(frame, ["price"], backbone="extra-trees", frames="inputs")


def test_an_error_says_that_no_backbone_can_learn(monkeypatch):
    def broken(n_rows, n_columns):
        raise InvalidInputError("nothing works")

    monkeypatch.setattr(choice, "CANDIDATES", {"broken": broken})
    options = {"classes": False, "coverage": 0.9, "random_state": 0, "on_progress": lambda step: None}
    with pytest.raises(InvalidInputError, match=r"Expected a backbone that can learn these rows\. Got: nothing works"):
        choose_table_backbone(simple()[["x"]], simple()["y"], [Column("x", "number")], **options)
    with pytest.raises(InvalidInputError, match="'backbone' parameter of make_table_model"):
        make_table_model("kernel", [], classes=False)


# --- what it is worth ---


def test_a_few_rows_can_be_measured():
    found = fit_table(simple(), ["y"], backbone="kernel")
    one = evaluate(found.model, found.X_test[:1], found.y_test[:1])
    assert (one["rows"], one["spearman"]) == (1, None)
    assert "aurc" not in one
    kept = found.model.assess(found.X_test).accepted
    assert one["error_rejected" if kept[0] else "error_accepted"] is None
    found.model.set_threshold(None)
    assert "accepted" not in evaluate(found.model, found.X_test, found.y_test)


def test_several_outputs_are_measured_together_and_each():
    frame = simple().assign(z=lambda rows: 10 * rows["x"])
    found = fit_table(frame, ["y", "z"], backbone="kernel")
    answer = found.model.assess(found.X_test)
    off = answer.value - found.y_test
    assert list(found.figures["targets"]) == ["y", "z"]
    each = found.figures["targets"]["z"]
    assert each["mean_absolute_error"] == pytest.approx(np.abs(off[:, 1]).mean())
    assert each["root_mean_square_error"] == pytest.approx(np.sqrt((off[:, 1] ** 2).mean()))
    assert each["width"] == pytest.approx((answer.upper - answer.lower)[:, 1].mean())
    assert each["coverage"] >= found.figures["coverage"]
    assert found.figures["mean_error"] == pytest.approx(np.sqrt((off**2).mean(axis=1)).mean())
    nameless = evaluate(found.model, found.X_test, found.y_test)
    assert list(nameless["targets"].values()) == list(found.figures["targets"].values())


# --- rules ---


def test_a_rule_that_does_not_fit_the_target_is_rejected_before_the_fit(monkeypatch):
    monkeypatch.setattr("onsphere.table.fit.make_table_model", None)
    with pytest.raises(InvalidInputError, match="Expected a tolerance for numbers"):
        fit_table(simple(), ["y"], rule=MaxErrorRate(0.1))
    with pytest.raises(InvalidInputError, match="Expected no tolerance for classes"):
        fit_table(simple(), ["group"], rule=MaxErrorRate(0.1, tolerance=1.0))


def test_the_error_of_a_custom_rule_is_passed_on():
    class Mine:
        def threshold(self, calibration):
            if fails:
                raise InvalidInputError("Not today.")
            warnings.warn("Take care.", OnsphereWarning, stacklevel=1)
            return 1.0

    fails = False
    assert "Take care" in fit_table(simple(), ["y"], backbone="kernel", rule=Mine()).notes
    fails = True
    with pytest.raises(InvalidInputError, match=r"Not today\."):
        fit_table(simple(), ["y"], backbone="kernel", rule=Mine())


def test_infinity_is_rejected_with_its_row():
    frame = simple()
    frame.loc[7, "x"] = -np.inf
    for work in (fit_table, compare_table):
        with pytest.raises(InvalidInputError, match=r"in the column x, row 7 .* Got the number -inf"):
            work(frame, ["y"])


def test_chance_is_a_binomial_once_the_calibration_is_large():
    low, high = find_coverage_range(500, 10**7, 0.9, level=0.01)
    assert (low, high) == tuple(binom(500, 0.9).ppf([0.005, 0.995]) / 500)
    # Where the exact quantiles would take too long, the range is that of a Gaussian.
    low, high = find_coverage_range(10_001, 10**7, 0.9, level=0.01)
    assert (low, high) == pytest.approx(tuple(binom(10_001, 0.9).ppf([0.005, 0.995]) / 10_001), abs=2e-4)


def test_chance_counts_the_luck_of_the_calibration():
    """Draw the coverage of n rows by the k-th largest of m uniform scores a thousand times."""
    rng = np.random.default_rng(0)
    m, n, coverage = 50, 200, 0.9
    limits = np.sort(rng.random((4000, m)), axis=1)[:, int(np.ceil((m + 1) * coverage)) - 1]
    covered = (rng.random((4000, n)) <= limits[:, None]).mean(axis=1)
    low, high = find_coverage_range(n, m, coverage, level=0.01)
    outside = np.mean((covered < low) | (covered > high))
    assert outside < 0.01 + 4 * np.sqrt(0.01 * 0.99 / 4000)


# --- comparing ---


def test_methods_are_compared_on_the_same_rows(monkeypatch, houses):
    monkeypatch.setattr(choice, "CANDIDATES", {"kernel": BACKBONES["kernel"]})
    monkeypatch.setattr(comparing, "find_spec", lambda name: None)
    result = compare_table(houses(150, 0), ["price"], shifted=houses(20, 1).assign(size=1e4), ignore=["rooms"])
    assert [row["method"] for row in result.rows] == ["plain", "HCM kernel"]
    assert 0 <= result.rows[1]["AUROC"] <= 1
    classes = houses(150, 0).assign(cheap=lambda frame: frame["price"] < 500).drop(columns="price")
    result = compare_table(classes, ["cheap"])
    assert {row["method"] for row in result.rows} == {"plain", "HCM kernel", "MSP", "energy", "KNN"}


def test_networks_are_compared_where_torch_is_installed():
    methods = comparing._list_regressors()
    assert {"HCM network", "ensemble of 5", "MC dropout", "evidential", "Gaussian"} < set(methods)


def test_a_table_with_hundreds_of_columns_is_fitted(tmp_path):
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(40, 500)), columns=[f"c{index}" for index in range(500)])
    wide.to_csv(tmp_path / "wide.csv", index=False)
    found = fit_table(read_table(tmp_path / "wide.csv"), ["c7"], backbone="kernel")
    assert len(found.columns) == 499


# --- groups and time ---


def streets(n=900, seed=0):
    """Houses of two streets, one ten times as noisy, whose level rises day by day."""
    rng = np.random.default_rng(seed)
    day, street = np.arange(n), rng.choice(["main", "side"], n)
    level = np.where(street == "main", 10.0, 1.0)
    frame = pd.DataFrame(
        {"size": rng.normal(size=n), "street": street, "is_new": rng.uniform(size=n) < 0.5, "day": day}
    )
    return frame.assign(price=frame["size"] + 0.001 * day + level * rng.normal(size=n)).sample(
        frac=1, random_state=seed
    )


@pytest.mark.parametrize("groups", ["street", "prediction", "novelty", "is_new"])
def test_groups_are_covered_and_measured(groups):
    fit = fit_table(streets(), ["price"], backbone="kernel", groups=groups, ignore=["day"])
    known = fit.model.calibration_.groups
    assert fit.n_rows == {"table": 900, "train": 540, "calibration": 180, "test": 180}
    assert sum(each["rows"] for each in fit.figures["groups"].values()) == 180
    assert set(fit.figures["groups"]) <= set(known.names)
    assert fit.summary()["groups"] == groups
    if groups == "street":
        for name, each in fit.figures["groups"].items():
            low, high = find_coverage_range(each["rows"], known.n_rows[known.names.index(name)], 0.9, level=0.001)
            assert low <= each["coverage"] <= high


def test_small_groups_are_named():
    table = streets().reset_index(drop=True)
    together = table.assign(street=table["street"].where(table.index % 3 > 0, [f"lane {i % 4}" for i in table.index]))
    notes = fit_table(together, ["price"], backbone="kernel", groups="street", ignore=["day"]).notes
    assert any(
        note.startswith("groups of fewer than 50 calibration rows are calibrated together, and not each by itself: ")
        and note.endswith(": lane 0, lane 1, lane 2, lane 3")
        for note in notes
    )
    few = table.assign(street=table["street"].where(table.index % 30 > 0, [f"lane {i % 20}" for i in table.index]))
    notes = fit_table(few, ["price"], backbone="kernel", groups="street", ignore=["day"]).notes
    assert any("are calibrated by all rows, so that nothing is promised for each of them: lane 0," in n for n in notes)
    assert not any("groups of fewer" in note for note in fit_table(table, ["price"], backbone="kernel").notes)


def test_classes_are_covered_one_by_one():
    table = streets().assign(price=lambda frame: np.where(frame["price"] > 3, "high", "low"))
    fit = fit_table(table, ["price"], backbone="kernel", groups="class", ignore=["day"])
    assert set(fit.figures["groups"]) == {"high", "low"}


def test_with_a_time_the_past_is_trained_on_and_the_latest_rows_are_measured():
    table = streets()
    fit = fit_table(table, ["price"], backbone="kernel", time="day")
    assert sorted(table.loc[fit.X_test.index, "day"]) == list(range(720, 900))
    assert "day" not in fit.X_test
    assert {column.name: column.kind for column in fit.columns}["day"] == "key"
    assert fit.summary()["time"]["kind"] == "number"
    counted = fit_table(table.sort_values("day"), ["price"], backbone="kernel", time="day")
    np.testing.assert_array_equal(counted.model.predict(fit.X_test), fit.model.predict(fit.X_test))
    dates = table.assign(day=pd.to_datetime("2024-01-01") + pd.to_timedelta(table["day"], unit="D"))
    other = fit_table(dates, ["price"], backbone="kernel", time="day", groups="street")
    assert other.summary()["time"]["kind"] == "date"
    np.testing.assert_array_equal(other.X_test.index, fit.X_test.index)
    np.testing.assert_array_equal(other.model.predict(fit.X_test), fit.model.predict(fit.X_test))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": "town"}, r"groups by prediction, novelty or one of the columns size.*Got town\. Choose one"),
        ({"groups": "day", "keys": ["day"]}, r"Got day, taken as key \(as asked\)\. Choose one"),
        ({"groups": "class"}, r"Got class\. Choose one"),
        ({"time": "street"}, r"Expected a time of numbers or dates\. Got street, taken as category"),
        ({"time": "week"}, "Expected a column week"),
    ],
)
def test_wrong_groups_and_times_are_rejected(options, words):
    with pytest.raises(InvalidInputError, match=words):
        fit_table(streets(), ["price"], backbone="kernel", **options)


def test_groups_and_time_need_enough_rows_and_a_time_in_each():
    with pytest.raises(InvalidInputError, match=r"at least 400 rows beside those kept out.*Got 240"):
        fit_table(streets(300), ["price"], backbone="kernel", groups="street")
    table = streets()
    table.loc[5, "day"] = np.nan
    with pytest.raises(InvalidInputError, match=r"a time in every row\. Got none in 1 of them.* row 5\. Fill"):
        fit_table(table, ["price"], backbone="kernel", time="day")


# --- which rows are trained on, and which are measured ---


def test_a_model_can_be_measured_on_other_rows_so_that_none_are_kept_out():
    test = simple(40, seed=1).assign(y=lambda rows: rows["y"].where(rows.index != 3))
    found = fit_table(simple(120), ["y"], backbone="kernel", frames="target", test=test)
    assert (found.n_rows["train"], found.n_rows["test"], found.figures["rows"]) == (120, 39, 39)
    assert "in the test rows, 1 rows without y are left out" in found.notes
    assert found.measured_model is found.model
    with pytest.raises(InvalidInputError, match=r"Expected the column\(s\) x in the test rows"):
        fit_table(simple(120), ["y"], backbone="kernel", test=test.drop(columns="x"))


def test_classes_can_be_measured_on_other_rows():
    rows = simple(120).assign(y=lambda rows: np.where(rows["y"] > 0, "01", "02"))
    test = simple(40, seed=1).assign(y=["01", "02"] * 19 + ["03", "03"])
    found = fit_table(rows, ["y"], backbone="kernel", frames="target", test=test)
    assert "in the test rows, 2 rows have a class the model was not fitted on: 03" in found.notes
    assert found.figures["rows"] == 40


def test_a_refit_trains_on_the_rows_kept_out_and_is_measured_before():
    options = {"backbone": "kernel", "frames": "target"}
    once, again = (fit_table(simple(600), ["y"], refit=refit, **options) for refit in (False, True))
    assert again.figures == once.figures
    assert (once.n_rows["train"], again.n_rows["train"]) == (360, 450)
    assert again.n_rows["test"] == 120
    assert again.measured_model._compute_share_seen(again.X_test, again.y_test) == 0
    rows = simple(600)
    shares = [each.model._compute_share_seen(rows[["x", "group"]], rows["y"].to_numpy()) for each in (once, again)]
    assert shares == [0.6, 0.75]
    assert any("fitted again on all rows" in note for note in again.notes)
    # The model that is given out keeps its promise on new rows.
    fresh = simple(1000, seed=2)
    covered = evaluate(again.model, fresh[["x", "group"]], fresh["y"].to_numpy())["coverage"]
    low, high = find_coverage_range(1000, 150, 0.9, level=0.01)
    assert low <= covered <= high


def test_rows_in_the_order_of_a_date_are_noticed():
    rows = simple(60).assign(day=pd.date_range("2024-01-01", periods=60))
    options = {"backbone": "kernel", "frames": "target"}
    words = "the rows are in the order of day, and are split at random"
    for ordered in (rows, rows[::-1].reset_index(drop=True)):
        assert any(note.startswith(words) for note in fit_table(ordered, ["y"], **options).notes)
    mixed = fit_table(rows.sample(60, random_state=0), ["y"], **options)
    assert not any("in the order of" in note for note in mixed.notes)


# --- calibration and the size of tables ---


def test_rows_calibrate_where_there_are_many_or_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(fitting, "_N_CALIBRATION", 60)
    found = fit_table(simple(600), ["y"], backbone="kernel", frames="target")
    assert found.n_rows == {"table": 600, "train": 420, "calibration": 60, "test": 120}
    assert found.notes == []
    by_folds = fit_table(simple(600), ["y"], backbone="kernel", frames="target", calibration="cv")
    assert by_folds.n_rows["train"] == by_folds.n_rows["calibration"] == 480


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibration": "split"}, r"at least 400 rows beside those kept out, .* Got 80\."),
        ({"groups": "group", "calibration": "cv"}, "Got calibration='cv', which has none"),
        ({"groups": "group"}, "at least 400 rows beside those kept out"),
        ({"calibration": "never"}, "'calibration' parameter of fit_table"),
    ],
)
def test_a_calibration_that_the_rows_do_not_allow_is_an_error(options, message):
    with pytest.raises(InvalidInputError, match=message):
        fit_table(simple(100), ["y"], backbone="kernel", **options)


@pytest.mark.parametrize("classes", [False, True])
def test_very_large_tables_go_to_a_fast_backbone_and_the_cost_is_told_before(classes, monkeypatch):
    monkeypatch.setattr(choice, "_MANY_ROWS", 100)
    monkeypatch.setattr(choice, "_MANY_COLUMNS", 1 if classes else 20)
    monkeypatch.setattr(backbone_choice, "_LONG", 100)
    monkeypatch.setattr(backbone_choice, "_TIMED", (40, 80))
    frame, steps = simple(160), []
    if classes:
        frame["y"] = np.where(frame["y"] > 0, "up", "down")
    found = fit_table(frame, ["y"], on_progress=steps.append)
    fast = "extra-trees" if classes else "hist-gradient-boosting"
    assert found.backbone == fast
    assert found.notes[0] == f"for 128 rows the backbone is {fast}; others take long, or much memory"
    assert re.search(rf"fitting {fast} on 128 rows, about 1 minute, for a model file of up to \d+ MB", steps[0])


def test_forests_of_tables_have_fewer_trees_and_larger_leaves_with_many_rows():
    sizes = [
        make_table_model("extra-trees", [Column("x", "number")], classes=False, n_rows=n_rows, n_columns=4).estimator[
            -1
        ]
        for n_rows in (2_000, 9_000, 60_000, 600_000)
    ]
    assert [(forest.n_estimators, forest.min_samples_leaf) for forest in sizes] == [
        (200, 2),
        (186, 2),
        (100, 8),
        (100, 72),
    ]


def test_forests_of_few_rows_have_half_as_many_trees():
    sizes = [choice.make_candidate("extra-trees", n_rows=n)[-1].n_estimators for n in (0, 400, 1_000)]
    assert sizes == [200, 100, 200]


# --- how targets and times are written ---


def write_prices(n=80, seed=0):
    """Return rows with prices in k and M, and the numbers that they are."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(20, 200, n).round(1)
    numbers = (size * 10_000 + rng.normal(0, 5_000, n)).round(-2)
    texts = [f"{each / 1e6:.4f} M" if each > 5e5 else f"{each / 1e3:.1f} k" for each in numbers]
    return pd.DataFrame({"size": size, "price": texts}), numbers


def test_labels_are_read_as_the_target_was_at_fit(tmp_path):
    frame, numbers = write_prices()
    found = fit_table(frame, ["price"], backbone="kernel", frames="target")
    column = found.target_columns[0]
    assert (column.kind, column.unit) == ("number", "k, M, bn")
    assert found.summary()["target_columns"] == [column.to_dict()]
    large = numbers > 5e5  # all of them in M, which would be a unit
    known = read_known_rows(
        frame[large], ["price"], found.columns, target_columns=found.target_columns, source="the labels"
    )
    np.testing.assert_allclose(known.y, numbers[large])
    measured = fit_table(frame, ["price"], backbone="kernel", frames="target", test=frame[large])
    np.testing.assert_allclose(measured.y_test, numbers[large])


def test_a_model_file_keeps_how_its_target_is_written(tmp_path):
    found = fit_table(write_prices()[0], ["price"], backbone="kernel", frames="target")
    found.model.save(tmp_path / "a.onsphere", summary=found.summary())
    _, summary, _ = load_table_model(tmp_path / "a.onsphere")
    assert read_target_columns(summary) == found.target_columns
    del summary["target_columns"]
    assert read_target_columns(summary) is None  # as in files of older versions
    assert read_target_columns({"target_columns": [{"name": "y", "kind": "boolean"}]}) == [Column("y", "boolean")]
    found.model.save(tmp_path / "b.onsphere", summary=found.summary() | {"target_columns": [{"kind": 3}]})
    with pytest.raises(InvalidInputError, match="does not say what it should about: target_columns"):
        load_table_model(tmp_path / "b.onsphere")


def test_categories_of_older_files_lose_the_spaces_around_them(tmp_path):
    frame = simple().assign(group=lambda rows: " " + rows["group"])
    found = fit_table(frame, ["y"], backbone="kernel", frames="target")
    encoder = found.model.estimator_.named_steps["columns"]
    assert encoder.levels_["group"] == ["a", "b"] or encoder.levels_["group"] == ["b", "a"]
    encoder.levels_["group"] = [f" {level}" for level in encoder.levels_["group"]]
    encoder.places_ = {"group": ([" a", " b", None], np.zeros((3, 1)))}
    summary = found.summary()
    summary["reference"]["group"]["shares"] = {" a": 0.25, "a": 0.25, " b": 0.5}
    found.model.save(tmp_path / "a.onsphere", summary=summary)
    model, summary, _ = load_table_model(tmp_path / "a.onsphere")
    encoder = model.estimator_.named_steps["columns"]
    assert sorted(encoder.levels_["group"]) == ["a", "b"]
    assert encoder.places_["group"][0] == ["a", "b", None]
    assert summary["reference"]["group"]["shares"] == {"a": 0.5, "b": 0.5}


def test_classes_of_older_files_may_have_spaces_around_them():
    frame = simple().assign(y=["yes ", "no"] * 30)
    columns = [Column("x", "number")]
    for labels in (["no", "yes"], [" no", " yes"]):
        known = read_known_rows(frame, ["y"], columns, labels=np.array(labels), source="the labels")
        assert (sorted(set(known.y.tolist())), known.notes) == (labels, [])


def test_losses_in_brackets_are_a_target_and_what_is_left_out_is_named():
    frame = simple()
    texts = [f"({-each:.2f})" if each < 0 else f"{each:.2f}" for each in frame["y"]]
    table = prepare_table(frame.assign(y=texts), ["y"], **OPTIONS)
    np.testing.assert_allclose(table.y, frame["y"].round(2), atol=0.006)
    odd = [f"{each:.2f}" if place % 3 else f"{each:.2f} or so {place}" for place, each in enumerate(frame["y"])]
    with pytest.raises(InvalidInputError, match=r"20 rows cannot be read as one, such as '\S+ or so 0'\. Say that"):
        prepare_table(frame.assign(y=odd), ["y"], **OPTIONS)
    table = prepare_table(frame.assign(y=odd), ["y"], kinds={"y": "number"}, **OPTIONS)
    assert table.notes[0] == "20 rows in which y is no number are left out"
    assert "or so 0' is read as missing" in table.notes[1]


def test_the_dates_of_a_time_can_be_said():
    rng = np.random.default_rng(0)
    days = [f"{day:02}/{month:02}/2015" for month in range(1, 13) for day in range(1, 13)] * 4
    frame = simple(len(days)).assign(when=rng.permutation(days))
    options = {"backbone": "kernel", "frames": "target", "time": "when"}
    found = fit_table(frame, ["y"], kinds={"when": "date=%d/%m/%Y"}, **options)
    assert found.time["date_format"] == "%d/%m/%Y"
    column = next(column for column in found.columns if column.name == "when")
    assert (column.kind, column.note) == ("key", "the time; as asked; dates read as %d/%m/%Y")
    found = fit_table(frame, ["y"], **options)
    note = next(column for column in found.columns if column.name == "when").note
    assert note == "the time; dates read as %m/%d/%Y, month first; it could be %d/%m/%Y"
    numbered = frame.assign(when=np.arange(len(frame)) * 1.5)
    assert (
        next(each for each in fit_table(numbered, ["y"], **options).columns if each.name == "when").note == "the time"
    )


@pytest.mark.parametrize("name", ["prediction", "novelty", "class"])
def test_groups_that_could_be_a_column_too_are_rejected(name):
    with pytest.raises(InvalidInputError, match=f"Got '{name}', which is also the name of a column"):
        fit_table(simple().rename(columns={"group": name}), ["y"], groups=name)


def test_small_and_large_targets_are_called_what_they_are():
    with pytest.raises(InvalidInputError, match=r"^Expected at least 20 rows with a target\. Got 1\. Add rows\.$"):
        fit_table(simple(1).assign(y=305_780), ["y"])
    with pytest.raises(InvalidInputError, match=r"Got the number 1e\+40\. .*is not known\.$"):
        fit_table(simple().assign(y=lambda rows: rows["y"].where(rows.index > 0, 1e40)), ["y"])
    titled = simple().set_axis(["Sales 2024", "column_2", "column_3"], axis=1)
    with pytest.raises(InvalidInputError, match="The header may be in a later line"):
        fit_table(titled, ["price"])


def test_one_of_several_targets_that_never_varies_is_named():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 2)), columns=["x", "first"]).assign(second=1.5)
    with pytest.raises(InvalidInputError, match=r"Expected a target that varies\. Got second, with one value"):
        fit_table(frame, ["first", "second"], task="regression")
