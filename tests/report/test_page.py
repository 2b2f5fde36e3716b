"""The page: every model and every table, nothing harmful, and a complete file or none."""

import os
import re
import stat
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from onsphere import (
    AcceptShare,
    FrozenHead,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    MissingExtraError,
    NotCalibratedError,
    NotFittedError,
)
from onsphere.baselines import MSP, PostHoc
from onsphere.report import elements, figures, page, write_report

RNG = np.random.default_rng(0)
X = RNG.normal(size=(160, 3))
Y = X[:, 0] + RNG.normal(size=160) * np.exp(X[:, 1] / 2)
LABELS = np.where(X[:, 0] + 0.5 * RNG.normal(size=160) > 0, "up", "down")
TREES = ExtraTreesRegressor(10, min_samples_leaf=2)


@pytest.fixture(scope="module")
def model():
    fitted = HCMRegressor(TREES, random_state=0).fit(X[:60], Y[:60]).calibrate(X[60:100], Y[60:100])
    return fitted.set_threshold(AcceptShare(0.8))


@pytest.fixture(scope="module")
def classifier():
    return HCMClassifier(TREES, random_state=0).fit(X[:60], LABELS[:60]).calibrate(X[60:100], LABELS[60:100])


@pytest.fixture
def undrawn(monkeypatch):
    """Skip the drawing, which takes most of the time; most tests do not look at the pictures."""
    monkeypatch.setattr(elements, "draw_svg", lambda *_: "<svg></svg>")


@pytest.fixture
def write(tmp_path, read, undrawn):
    """Write the report of a model on the last sixty rows, or on others, without its pictures."""
    return _writer(tmp_path, read)


@pytest.fixture
def write_all(tmp_path, read):
    """Write a report with its pictures."""
    return _writer(tmp_path, read)


def _writer(tmp_path, read):

    def write(model, features=X[100:], y=Y[100:], **options):
        path = write_report(model, features, y, tmp_path / "report.html", **options)
        return read(path, model, features, y)

    return write


# --- every model ---


def test_the_sections_are_in_order(regression, classification):
    heads = [
        "What it does, and how far to trust it",
        "In pictures",
        "Which classes it finds",
        "Over time",
        "What drives it",
        "Noise and novelty",
        "Where it is least trusted",
        "Worst accepted, best rejected",
        "Does the promise hold for every group?",
        "Compared with the <second> intake",
        "How it was made",
        "What this does not promise",
        "What to do next",
    ]
    of_numbers = [head for head in heads if head != "Which classes it finds"]
    of_classes = [head for head in heads if head != "Over time" and "intake" not in head]
    for report, expected in ((regression, of_numbers), (classification, of_classes)):
        assert [head for head in report.page.headings if head in heads] == expected
    assert regression.page.headings[0] == "Predicting progression"
    assert "diabetes.csv" in regression.text
    assert "AcceptShare(share=0.85)" in regression.text
    assert "ColumnTransformer → ExtraTreesRegressor" in regression.text


def test_a_model_without_a_threshold_says_so(classifier, write):
    report = write(classifier, y=LABELS[100:], X_shifted=X[:40])
    assert "The model has no threshold" in report.text
    assert "It rejects nothing" in report.text
    assert "accepts" not in report.page.downloads.keys() | set(
        report.text.split("Where it is least trusted")[0].split()
    )
    assert not {"worst-accepted.csv", "best-rejected.csv"} & report.page.downloads.keys()
    assert "accepted" not in report.table("least-trusted.csv")


def test_frozen_heads_and_detectors_have_reports_too(write):
    head = FrozenHead(kind="linear", random_state=0).fit(X[:60], Y[:60]).calibrate(X[60:100], Y[60:100])
    assert "FrozenHead" in write(head).text
    head = FrozenHead(kind="linear", random_state=0).fit(X[:60], LABELS[:60]).calibrate(X[60:100], LABELS[60:100])
    assert "one of 2 classes" in write(head, y=LABELS[100:]).text
    detector = PostHoc(MSP()).fit(X[:60], LABELS[:60]).calibrate(X[60:100], LABELS[60:100])
    report = write(detector, y=LABELS[100:])
    assert "direction-norms.csv" not in report.page.downloads


def test_rows_without_a_finite_prediction_are_left_out_and_counted(write):
    head = FrozenHead(kind="linear", random_state=0).fit(X[:60], Y[:60]).calibrate(X[60:100], Y[60:100])
    features = X[100:].copy()
    features[:3] = 1e308
    report = write(head, features, X_shifted=features)
    assert "On 57 rows" in report.text
    assert "3 further rows lie so far" in report.text
    assert len(report.table("intervals.csv")["row"]) == 57
    with pytest.raises(InvalidInputError, match="at least 10 rows with a finite prediction"):
        write(head, np.full((60, 3), 1e308))


def test_a_negative_uncertainty_has_no_scatter_plot(model, write, monkeypatch):
    assert "error-and-uncertainty.csv" in write(model).page.downloads
    assess = model.assess

    def lower(*rows, **options):
        found = assess(*rows, **options)
        return replace(found, uncertainty=found.uncertainty - 5)

    monkeypatch.setattr(model, "assess", lower, raising=False)
    assert "error-and-uncertainty.csv" not in write(model).page.downloads


def test_all_outputs_are_drawn_unless_there_are_too_many(write, monkeypatch):
    targets = X @ RNG.normal(size=(3, 5)) + RNG.normal(size=(160, 5))
    model = HCMRegressor(TREES, random_state=0).fit(X[:60], targets[:60]).calibrate(X[60:100], targets[60:100])
    report = write(model.set_threshold(AcceptShare(0.8)), y=targets[100:])
    assert all(f"Intervals: output {index}" in report.text for index in range(5))
    assert report.table("outputs.csv")["target"].tolist() == [f"output {index}" for index in range(5)]
    assert "truth output 3" in report.table("worst-accepted.csv")
    assert "How far to trust this model" in report.page.headings
    monkeypatch.setattr(figures, "MOST_OUTPUTS", 4)
    named = write(model, y=pd.DataFrame(targets[100:], columns=list("abcde")))
    assert "predicts a, b, c and 2 more from" in named.text
    assert "The intervals of the first 4 of 5 targets are drawn." in named.text
    assert "Intervals: e" not in named.text


def test_sparse_rows_have_reports_too(write):
    linear = HCMRegressor(LinearRegression(), random_state=0)
    linear.fit(sparse.csr_matrix(X[:60]), Y[:60]).calibrate(sparse.csr_matrix(X[60:100]), Y[60:100])
    assert "trust-1-x" in " ".join(write(linear, sparse.csr_matrix(X[100:])).page.downloads)


# --- every table ---


def test_given_names_of_rows_and_target_are_used(model, write):
    report = write(model, row_names=[f"wafer {index}" for index in range(60)], target_name="yield", title="Line 4")
    assert report.page.headings[0] == "Line 4"
    assert "predicts yield from 3 columns of numbers" in report.text
    assert report.table("intervals.csv")["row"][0].startswith("wafer ")
    assert "feature x2" in report.table("worst-accepted.csv")
    assert "Predicting yield" in write(model, target_name="yield").page.headings


def test_an_array_gets_the_column_names_of_the_model(write):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = HCMRegressor(TREES, random_state=0).fit(frame[:60], Y[:60]).calibrate(frame[60:100], Y[60:100])
    with pytest.warns(UserWarning, match="valid feature names"):
        report = write(model, groups=["b"])
    assert "coverage-1-b.csv" in report.page.downloads


def test_only_some_columns_of_a_wide_table_are_looked_at(write):
    wide = RNG.normal(size=(120, 301))
    model = HCMRegressor(ExtraTreesRegressor(3), random_state=0).fit(wide[:50], Y[:50]).calibrate(wide[50:80], Y[50:80])
    report = write(model, wide[80:], Y[80:120], X_shifted=wide[:50] + 5)
    assert "200 of 301, evenly spread" in report.text
    assert "predicts the target from 301 columns of numbers" in report.text
    assert "The first 15 of 200; the CSV file has all." in report.text
    assert len(report.table("moved-columns.csv")["column"]) == 200
    assert "and 195 more" in report.text


def test_constant_columns_make_no_groups(model, write):
    constant = np.ones((60, 3))
    report = write(model, constant)
    assert "No column splits these rows into groups of at least ten." in report.text
    assert "No column splits these rows into groups." in report.text
    assert "All of these rows have" not in report.text
    assert "all have the same uncertainty" in report.text


def test_the_page_of_a_large_table_stays_small(rows, monkeypatch, tmp_path, read):
    n = 100_000
    rng = np.random.default_rng(0)
    features = pd.DataFrame({"a": rng.normal(size=n), "b": rng.integers(0, 50, n).astype(str)})
    uncertainty = rng.gamma(2.0, size=n)
    many = rows(
        rng.exponential(uncertainty),
        uncertainty,
        accepted=uncertainty < 5,
        frame=features,
        target=rng.normal(size=(n, 1)),
    )
    numbers = FunctionTransformer(np.asarray, kw_args={"dtype": float})
    model = HCMRegressor(make_pipeline(numbers, TREES), random_state=0)
    model.fit(features[:60], Y[:60]).calibrate(features[60:100], Y[60:100])
    monkeypatch.setattr(page, "measure_rows", lambda *_, **__: many)
    path = write_report(model, features, None, tmp_path / "report.html")
    assert path.stat().st_size < 3e6
    report = read(path, model, features, None)
    assert "200 of 100,000 rows are drawn, evenly spread." in report.text
    assert "2,000 of 100,000 rows are drawn, evenly spread." in report.text
    assert max(len(lines) for lines in report.page.downloads.values()) <= 2001
    assert "<image" in report.html


# --- safety ---


def test_names_and_values_are_never_run_as_code(write_all):
    bad = ["<script>alert(1)</script>", '" onload="alert(1)', "a $x_1$ & $"]
    frame = pd.DataFrame(X, columns=bad)
    words = ["</svg><script>1</script>" if value > 0 else '=cmd|"x"\x00' for value in X[:, 2]]
    frame["']--><img src=x onerror=alert(1)>"] = pd.Series(words, dtype=object)
    model = HCMRegressor(LinearOnNumbers(), frames="target").fit(frame[:60], Y[:60]).calibrate(frame[60:100], Y[60:100])
    report = write_all(
        model.set_threshold(AcceptShare(0.5)),
        frame[100:],
        title="<b>bold</b>",
        target_name="</title><script>",
        X_shifted=frame[:60],
        shifted_name="<i>second</i>",
        row_names=["=1+1", *["@x", "+y", "-z", "<u>"] * 14, "-1", "-1.5", "\ud800"],
        facts={"<td>": "</table>"},
    )
    assert not {"script", "img", "b", "i", "u"} & set(report.page.tags)
    assert not report.page.handlers
    assert "<b>bold</b>" in report.page.headings
    assert any("a $x_1$ & $" in text for text in report.page.texts)
    cells = {cell for lines in report.page.downloads.values() for line in lines for cell in line}
    assert {"'=1+1", "'@x", "'+y", "'-z", "<u>", "-1", "-1.5"} <= cells
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "@")]
    assert report.html.count("Content-Security-Policy") == 1


class LinearOnNumbers(LinearRegression):
    """Looks at the columns of numbers only."""

    def fit(self, X, y, sample_weight=None):
        return super().fit(X.select_dtypes("number").to_numpy(), y, sample_weight)

    def predict(self, X):
        return super().predict(X.select_dtypes("number").to_numpy())


def test_every_picture_uses_the_colours_of_the_page(regression, classification):
    for report in (regression, classification):
        drawings = re.findall(r"<svg.*?</svg>", report.html, flags=re.DOTALL)
        assert len(drawings) >= 8
        for drawing in drawings:
            assert re.findall(r"(?:fill|stroke): *(#\w+)", drawing) == []
            assert "var(--ink)" in drawing
            assert "metadata" not in drawing
        assert len(report.page.ids) == len(set(report.page.ids))
        used = report.page.targets + re.findall(r"url\(#([^)]+)\)", report.html)
        assert len(used) > 100
        assert set(used) <= set(report.page.ids)


def test_the_page_has_no_network_address(regression):
    assert re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*", regression.html) == []
    assert "@import" not in regression.html
    assert "url(http" not in regression.html


def test_the_same_rows_give_the_same_page(model, write):
    assert write(model).html == write(model).html


# --- the file ---


def test_a_report_that_fails_keeps_the_old_file(model, tmp_path, monkeypatch, undrawn):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(InvalidInputError):
        write_report(model, X[100:], Y[100:], path, groups=["nowhere"])

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InvalidInputError, match="no space"):
        write_report(model, X[100:], Y[100:], path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_the_file_has_the_usual_permissions(model, tmp_path, undrawn):
    (tmp_path / "plain").touch()
    path = write_report(model, X[100:], Y[100:], str(tmp_path / "report.html"))
    modes = {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "plain", path)}
    assert len(modes) == 1
    assert sorted(os.listdir(tmp_path)) == ["plain", "report.html"]


# --- bad input ---


def test_models_without_calibration_are_rejected(tmp_path):
    path = tmp_path / "report.html"
    fitted = HCMRegressor(TREES, random_state=0).fit(X[:60], Y[:60])
    with pytest.raises(NotCalibratedError, match="write_report needs a calibrated HCMRegressor"):
        write_report(fitted, X[100:], Y[100:], path)
    with pytest.raises(NotFittedError):
        write_report(HCMRegressor(), X[100:], Y[100:], path)
    for other in (LinearRegression(), HCMRegressor, None):
        with pytest.raises(InvalidTypeError, match="write_report needs a fitted and calibrated model"):
            write_report(other, X[100:], Y[100:], path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"features": X[100:105], "y": Y[100:105]}, "at least 10 rows"),
        ({"y": Y[100:150]}, "inconsistent numbers of samples"),
        ({"y": np.where(X[100:, 0] > 0, Y[100:], np.nan)}, "contains NaN"),
        ({"y": np.column_stack([Y[100:], Y[100:]])}, r"was fitted with 1 output\(s\)"),
        ({"y": None}, "the target y is None"),
        ({"features": X[100:, :2]}, "features"),
        ({"coverage": 1.5}, "'coverage' parameter of write_report must be a float"),
        ({"coverage": 0.99}, "needs at least 99 calibration rows"),
        ({"groups": ["x0", "y0"]}, "Got y0. Choose among x0, x1, x2"),
        ({"groups": "x0"}, "must be a list of column names"),
        ({"row_names": ["a"]}, "inconsistent numbers of samples"),
        ({"facts": "file"}, "must be a mapping of names to values"),
        ({"X_shifted": X[:4]}, "at least 10 rows in X_shifted"),
    ],
)
def test_bad_arguments_are_rejected(model, write, tmp_path, options, problem):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=problem):
        write(model, **options)
    assert os.listdir(tmp_path) == []


def test_paths_that_cannot_be_written_are_rejected(model, tmp_path):
    with pytest.raises(InvalidInputError, match=r"Expected to write .* it is a folder"):
        write_report(model, X[100:], Y[100:], tmp_path)
    with pytest.raises(InvalidInputError, match=r"Expected to write .* No such file or directory"):
        write_report(model, X[100:], Y[100:], tmp_path / "none" / "report.html")
    with pytest.raises(InvalidTypeError, match="must be a str or a path"):
        write_report(model, X[100:], Y[100:], 3)


@pytest.mark.parametrize("package", ["pandas", "matplotlib", "jinja2"])
def test_a_missing_package_is_named(model, tmp_path, monkeypatch, package):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"write_report needs {package}.*onsphere\[report\]"):
        write_report(model, X[100:], Y[100:], tmp_path / "report.html")
    assert os.listdir(tmp_path) == []
