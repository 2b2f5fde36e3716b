"""compare: its figures are those of the metrics on the same rows, and one failure does not stop the others."""

import io
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from onsphere import FrozenHead, HCMClassifier, HCMRegressor, InvalidInputError, InvalidTypeError, compare, metrics
from onsphere.baselines import KNN, MSP, PostHoc

X, Y = load_diabetes(return_X_y=True)
DIGITS, LABELS = load_digits(return_X_y=True)
DIGITS, LABELS = DIGITS[:600], LABELS[:600]


def trees(**options):
    return HCMRegressor(ExtraTreesRegressor(20, min_samples_leaf=2), **options)


class Minimal(RegressorMixin, BaseEstimator):
    """The three methods of the protocol, and no others."""

    def fit(self, X, y):
        self.mean_ = np.mean(y, axis=0)
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)

    def predict_uncertainty(self, X):
        return np.abs(X).sum(axis=1)


def test_the_figures_are_those_of_the_metrics_on_the_same_rows():
    shifted = X + 0.2
    result = compare({"hcm": trees()}, X, Y, X_shifted=shifted, coverage=0.8, random_state=5)
    rest, test, y_rest, y_test = train_test_split(X, Y, test_size=0.2, random_state=5)
    train, held, y_train, y_held = train_test_split(rest, y_rest, test_size=0.25, random_state=5)
    model = result.models["hcm"]
    again = trees(random_state=model.random_state)
    again.estimator.random_state = model.estimator.random_state
    again.fit(train, y_train).calibrate(held, y_held)
    value, uncertainty = again.predict(test), again.predict_uncertainty(test)
    interval = again.predict_interval(test, coverage=0.8)
    row = result.rows[1]
    assert row["error"] == pytest.approx(np.sqrt(np.mean((value - y_test) ** 2)))
    assert row["Spearman"] == pytest.approx(metrics.spearman(np.abs(value - y_test), uncertainty))
    assert row["coverage"] == pytest.approx(metrics.interval_coverage(y_test, interval[:, 0], interval[:, 1]))
    assert row["width"] == pytest.approx(np.mean(interval[:, 1] - interval[:, 0]))
    assert row["Winkler"] == pytest.approx(metrics.winkler_score(y_test, interval[:, 0], interval[:, 1], coverage=0.8))
    assert row["AUROC"] == pytest.approx(metrics.auroc(uncertainty, again.predict_uncertainty(shifted)))


def test_rows_given_as_test_rows_are_used():
    result = compare({"line": HCMRegressor(Ridge())}, X[:300], Y[:300], X_test=X[300:], y_test=Y[300:])
    model = result.models["line"]
    assert result.rows[1]["error"] == pytest.approx(np.sqrt(np.mean((model.predict(X[300:]) - Y[300:]) ** 2)))


def test_a_kept_model_stays_as_it_is_beside_one_that_is_fitted():
    fitted = ExtraTreesRegressor(20, min_samples_leaf=2, random_state=0).fit(X[:150], Y[:150])
    methods = {
        "kept": HCMRegressor(FrozenEstimator(fitted)),
        "function": HCMRegressor(fitted.predict),
        "plain kept": FrozenEstimator(fitted),
        "hcm": trees(),
    }
    result = compare(methods, X[150:300], Y[150:300], X_test=X[300:], y_test=Y[300:])
    assert result.failures == {}
    errors = {row["method"]: row["error"] for row in result.rows}
    own = np.sqrt(np.mean((fitted.predict(X[300:]) - Y[300:]) ** 2))
    assert [errors[name] for name in ("plain", "kept", "function", "plain kept")] == pytest.approx([own] * 4)
    assert errors["hcm"] != pytest.approx(own)
    assert {row["method"] for row in result.rows if "Winkler" in row} == set(methods)


def test_several_outputs_are_averaged():
    targets = np.column_stack([Y, Y[::-1]])
    result = compare({"hcm": trees()}, X, targets, random_state=1)
    assert 0.8 < result.rows[1]["coverage"] <= 1
    frozen = compare({"frozen": FrozenHead(n_landmarks=50, random_state=0)}, X, targets)
    assert {"coverage", "Winkler"} <= set(frozen.rows[1])


def test_classifiers_and_detectors_are_compared():
    methods = {"hcm": HCMClassifier(), "frozen": FrozenHead(n_landmarks=100), "knn": KNN(k=5), "msp": MSP()}
    result = compare(methods, DIGITS, LABELS, X_shifted={"flipped": DIGITS[:, ::-1], "scaled": 3 * DIGITS})
    assert [row["method"] for row in result.rows] == ["plain", *methods]
    assert not result.failures
    assert {"AUROC flipped", "AUROC scaled", "coverage", "width"} <= set(result.columns)
    assert "Winkler" not in result.columns
    assert isinstance(result.models["knn"], PostHoc)
    plain, knn, msp = result.rows[0], result.rows[3], result.rows[4]
    assert plain["error"] == knn["error"] == msp["error"] < 0.1
    for row in result.rows[1:]:
        assert 0.85 < row["coverage"] <= 1
        assert 1 <= row["width"] < 3


def test_a_failure_is_shown_and_does_not_stop_the_others():
    result = compare({"broken": HCMRegressor("trees"), "hcm": trees(), "unknown decoder": trees(decoder="song")}, X, Y)
    assert [row["method"] for row in result.rows] == ["plain", "hcm"]
    assert set(result.failures) == {"broken", "unknown decoder"}
    assert "InvalidTypeError: The 'estimator' parameter" in result.to_markdown()
    frame = result.to_frame()
    assert frame.index.tolist() == ["plain", "hcm", "broken", "unknown decoder"]
    assert "decoder" in frame.loc["unknown decoder", "failure"]
    assert pd.isna(frame.loc["unknown decoder", "error"])


def test_a_custom_model_needs_three_methods():
    result = compare({"minimal": Minimal()}, X, Y, X_shifted=2 * X, plain=LinearRegression())
    assert set(result.rows[1]) == {"method", "fit s", "predict ×", "error", "Spearman", "AUROC"}
    assert "–" in result.to_markdown()
    assert str(result) == result.to_markdown()


def test_a_constant_error_has_no_rank():
    result = compare({"minimal": Minimal()}, X, np.full(len(X), 7.0), plain=LinearRegression())
    assert "Spearman" not in result.rows[1]


def test_the_same_seed_gives_the_same_figures():
    first, again, other = (compare({"hcm": trees()}, X, Y, random_state=seed).rows[1] for seed in (3, 3, 4))
    figures = ("error", "Spearman", "Winkler")
    assert [first[name] for name in figures] == [again[name] for name in figures]
    assert first["error"] != other["error"]


def test_the_models_given_are_not_changed():
    model = trees()
    compare({"hcm": model}, X, Y)
    assert not hasattr(model, "estimator_")
    assert model.random_state is None


def test_the_plain_model_is_the_backbone_by_default():
    assert isinstance(compare({"hcm": HCMRegressor(Ridge())}, X, Y).models["plain"], Ridge)
    assert isinstance(compare({"hcm": HCMRegressor()}, X, Y).models["plain"], ExtraTreesRegressor)
    chosen = compare({"knn": KNN(k=5)}, DIGITS, LABELS, plain=LogisticRegression(C=0.1, max_iter=500))
    assert chosen.models["plain"].C == 0.1


def test_the_number_of_digits_can_be_chosen():
    result = compare({"line": HCMRegressor(Ridge())}, X, Y)
    assert f"{result.rows[1]['error']:.5g}" in result.to_markdown(digits=5)
    with pytest.raises(InvalidInputError, match="digits"):
        result.to_markdown(digits=0)


def test_a_progress_bar_is_drawn_in_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    compare({"line": HCMRegressor(Ridge())}, X, Y)
    assert "compare" in screen.getvalue()
    screen.truncate(0)
    compare({"line": HCMRegressor(Ridge())}, X, Y, progress=False)
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("methods", "options", "error", "message"),
    [
        ({}, {}, InvalidTypeError, "non-empty mapping"),
        ([trees()], {}, InvalidTypeError, "non-empty mapping"),
        ({"plain": trees()}, {}, InvalidInputError, "another name"),
        ({"scaler": StandardScaler()}, {}, InvalidTypeError, "without predict"),
        ({"hcm": HCMRegressor}, {}, InvalidTypeError, "must be an instance"),
        (
            {"pipe": make_pipeline(StandardScaler(), HCMRegressor())},
            {},
            InvalidInputError,
            r"Put the Pipeline inside: HCMRegressor\(make_pipeline",
        ),
        ({"hcm": trees(), "knn": KNN()}, {}, InvalidInputError, "Compare them separately"),
        ({"hcm": trees()}, {"coverage": 1.5}, InvalidInputError, "coverage"),
        ({"hcm": trees()}, {"test_size": 0}, InvalidInputError, "test_size"),
        ({"hcm": trees()}, {"calibration_size": 0.8}, InvalidInputError, "calibration_size"),
        ({"hcm": trees()}, {"X_test": X}, InvalidInputError, "together"),
        ({"hcm": trees()}, {"X_test": X, "y_test": Y[:5]}, InvalidInputError, "inconsistent"),
        ({"hcm": trees()}, {"random_state": "now"}, InvalidInputError, "random_state"),
        ({"hcm": trees()}, {"plain": LogisticRegression()}, InvalidTypeError, "must be a regressor"),
        ({"hcm": trees()}, {"plain": "ridge"}, InvalidTypeError, "must be a regressor"),
        ({"hcm": trees()}, {"plain": Ridge}, InvalidTypeError, "must be a regressor"),
        ({"hcm": trees()}, {"X_test": X, "y_test": np.c_[Y, Y]}, InvalidInputError, "y_test like y"),
        ({"hcm": trees()}, {"coverage": 0.999}, InvalidInputError, "Raise calibration_size"),
    ],
)
def test_bad_input_is_rejected(methods, options, error, message):
    with pytest.raises(error, match=message):
        compare(methods, X, Y, **options)


def test_bad_rows_are_rejected():
    with pytest.raises(InvalidInputError, match="inconsistent"):
        compare({"hcm": trees()}, X, Y[:-1])
    with pytest.raises(InvalidInputError, match="y is None"):
        compare({"hcm": trees()}, X, None)
    with pytest.raises(InvalidInputError, match="cannot split"):
        compare({"hcm": trees()}, X[:1], Y[:1])
    with pytest.raises(InvalidInputError, match="cannot split"):
        compare({"knn": KNN()}, DIGITS[:3], [0, 1, 2])
    with pytest.raises(InvalidTypeError, match="must be a classifier"):
        compare({"knn": KNN()}, DIGITS, LABELS, plain=Ridge())


def test_a_plain_model_that_fails_does_not_stop_the_others():
    chosen = compare({"hcm": trees()}, X, Y, plain=Ridge(alpha=-1))
    assert "alpha" in chosen.failures["plain"]
    assert [row["method"] for row in chosen.rows] == ["hcm"]
    assert "predict ×" not in chosen.rows[0]
    implied = compare({"bad": HCMRegressor(Ridge(alpha=-1)), "good": HCMRegressor(Ridge())}, X, Y)
    assert list(implied.failures) == ["bad"]
    assert isinstance(implied.models["plain"], Ridge)
    detectors = compare({"msp": MSP()}, DIGITS, LABELS, plain=LogisticRegression(C=-1))
    assert set(detectors.failures) == {"plain", "msp"}


def test_a_shifted_set_that_fails_loses_only_its_own_figure():
    result = compare({"hcm": trees()}, X, Y, X_shifted={"good": X + 1, "narrow": X[:, :2]})
    assert list(result.failures) == ["hcm, AUROC narrow"]
    assert {"AUROC good", "Winkler"} <= set(result.rows[1])


def test_a_class_never_trained_on_is_wrong_and_not_covered():
    known = LABELS != 1
    result = compare({"msp": MSP()}, DIGITS[known], LABELS[known], X_test=DIGITS, y_test=LABELS)
    row = result.rows[1]
    assert row["error"] >= np.mean(~known)
    assert row["coverage"] <= np.mean(known)


def test_labels_in_one_column_are_labels():
    flat = compare({"msp": MSP()}, DIGITS, LABELS).rows
    with pytest.warns(match="column-vector"):
        column = compare({"msp": MSP()}, DIGITS, LABELS[:, None]).rows
    assert [row["error"] for row in flat] == [row["error"] for row in column]


def test_labels_of_two_kinds_are_rejected():
    with pytest.raises(InvalidInputError, match="y_test like y"):
        compare({"msp": MSP()}, DIGITS, LABELS.astype(str), X_test=DIGITS, y_test=LABELS)


def test_whole_numbers_are_numbers_for_a_regressor():
    methods = {"hcm": HCMRegressor(Ridge()), "frozen": FrozenHead("linear")}
    result = compare(methods, X, np.round(Y).astype(int))
    assert not result.failures
    assert all("Winkler" in row for row in result.rows[1:])


def test_the_plain_classifier_is_fitted_once_for_all_detectors():
    result = compare({"msp": MSP(), "knn": KNN(k=5)}, DIGITS, LABELS, plain=LogisticRegression(max_iter=500))
    plain = result.models["plain"]
    assert all(result.models[name].estimator_.estimator is plain for name in ("msp", "knn"))


def test_a_bar_in_a_name_does_not_break_the_table():
    lines = compare({"a|b": HCMRegressor(Ridge())}, X, Y).to_markdown().splitlines()
    assert lines[-1].replace("\\|", "").count("|") == lines[0].count("|")


def test_to_frame_without_pandas_says_what_to_install(monkeypatch):
    result = compare({"line": HCMRegressor(Ridge())}, X, Y)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="onsphere"):
        result.to_frame()


def test_frozen_heads_are_measured_like_other_models_on_several_outputs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4))
    Y = X @ rng.normal(size=(4, 5)) + rng.normal(size=(900, 5))
    # The target frame of both: with all frames, error trees make the intervals of one of them narrower.
    methods = {"frozen": FrozenHead("linear", frames="target"), "hcm": HCMRegressor(Ridge(), frames="target")}
    result = compare(methods, X, Y, progress=False)
    figures = {row["method"]: row for row in result.rows}
    assert result.failures == {}
    # Each output by itself: intervals that hold all five at once would cover about 98 % of each.
    for method in ("frozen", "hcm"):
        assert figures[method]["coverage"] == pytest.approx(0.9, abs=0.04)
    assert figures["frozen"]["width"] == pytest.approx(figures["hcm"]["width"], rel=0.1)


def test_a_method_is_measured_by_its_total_uncertainty():
    """Far from the data a forest repeats its last leaf; only novelty tells."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X[:, 0] + rng.normal(size=300)
    trees = ExtraTreesRegressor(20, min_samples_leaf=2)
    methods = {"all": HCMRegressor(trees), "target": HCMRegressor(trees, frames="target")}
    result = compare(methods, X, y, X_shifted=X + np.array([0.0, 6.0, 0.0]), progress=False)
    assert result.failures == {}
    scores = {row["method"]: row["AUROC"] for row in result.rows if "AUROC" in row}
    assert scores["all"] > 0.95 > 0.9 > scores["target"]


def test_plain_models_are_compared_too_with_intervals_of_one_width():
    X, y = load_diabetes(return_X_y=True)
    result = compare({"hcm": trees(), "ridge": Ridge()}, X, y, X_shifted=X + 1, progress=False)
    hcm, ridge = ({row["method"]: row for row in result.rows}[name] for name in ("hcm", "ridge"))
    assert {"AUROC", "Spearman"} <= set(hcm)
    assert not {"AUROC", "Spearman"} & set(ridge)
    # 88 calibration and 88 test rows have a standard error of 4.5 % together; four are allowed.
    assert 0.72 < ridge["coverage"] <= 1
    assert ridge["Winkler"] > ridge["width"] > 0
    flowers, kinds = load_iris(return_X_y=True)
    classes = compare({"plain trees": DecisionTreeClassifier(), "msp": MSP()}, flowers, kinds, progress=False)
    assert classes.rows[1].keys() == {"method", "fit s", "predict ×", "error"}
