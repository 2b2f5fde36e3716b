"""Models and their reports, made once for all tests of this folder, and a reader of a page."""

import base64
import csv
import io
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from onsphere import AcceptShare, Assessment, HCMClassifier, HCMRegressor
from onsphere.report import write_report
from onsphere.report.measured_rows import MeasuredRows


class Reader(HTMLParser):
    """Downloads, headings, ids, tags and text of a page."""

    def __init__(self):
        super().__init__()
        self.downloads, self.headings, self.ids, self.tags, self.targets = {}, [], [], [], []
        self.handlers = []
        self.texts, self._open = [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.handlers += [name for name in given if name.startswith("on")]
        self.tags.append(tag)
        self._open.append(tag)
        if "download" in given:
            assert given["download"] not in self.downloads, "two files of one name"
            code = given["href"].removeprefix("data:text/csv;charset=utf-8;base64,")
            self.downloads[given["download"]] = list(csv.reader(io.StringIO(base64.b64decode(code).decode("utf-8"))))
        if "id" in given:
            self.ids.append(given["id"])
        if given.get("href", "").startswith("#"):
            self.targets.append(given["href"][1:])

    def handle_data(self, data):
        inside = self._open[-1] if self._open else ""
        if inside in ("h1", "h2", "h3"):
            self.headings.append(data)
        if inside not in ("style",) and data.strip():
            self.texts.append(re.sub(r"[ \n]+", " ", data.strip(" \n")))

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass


class Report:
    """A page, its model and its rows."""

    def __init__(self, path, model, X, y):
        self.path, self.model, self.X, self.y = path, model, X, y
        self.html = path.read_text(encoding="utf-8")
        self.page = Reader()
        self.page.feed(self.html)
        self.text = "\n".join(self.page.texts)

    def measure(self):
        """Return the assessment of the rows, and their errors, for one number."""
        assessment = self.model.assess(self.X)
        return assessment, np.abs(np.asarray(self.y, dtype=float) - assessment.value)

    def table(self, name):
        """Return a downloaded file as columns; a column is numbers if all its cells are."""
        header, *lines = self.page.downloads[name]
        columns = {}
        for title, *cells in zip(header, *lines, strict=True):
            try:
                columns[title] = np.array([float(cell or "nan") for cell in cells])
            except ValueError:
                columns[title] = np.array(cells)
        return columns


@pytest.fixture(scope="session")
def read():
    return Report


def trees():
    return ExtraTreesRegressor(30, min_samples_leaf=2)


def diabetes():
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    rng = np.random.default_rng(0)
    high = X["bmi"] + rng.normal(0, 3, len(X)) > 27
    X["clinic"] = np.where(high, 'North "A" & West', np.where(rng.uniform(size=len(X)) > 0.5, "=South", "East <new>"))
    X["smoker"] = rng.uniform(size=len(X)) > 0.7
    X["seen"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, len(X)), unit="D")
    X.loc[X.index[::9], "clinic"] = None
    return X, y.rename("progression")


@pytest.fixture(scope="session")
def regression(tmp_path_factory):
    X, y = diabetes()
    numbers = ["age", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"]
    columns = [("numbers", "passthrough", numbers), ("words", OneHotEncoder(handle_unknown="ignore"), ["clinic"])]
    model = HCMRegressor(make_pipeline(ColumnTransformer(columns, sparse_threshold=0), trees()), random_state=0)
    model.fit(X[:200], y[:200]).calibrate(X[200:300], y[200:300]).set_threshold(AcceptShare(0.85))
    shifted = X[300:].assign(bmi=X["bmi"][300:] + 6, clinic="=South")
    shifted.loc[shifted.index[:30], "seen"] = pd.NaT
    path = write_report(
        model,
        X[300:],
        y[300:],
        tmp_path_factory.mktemp("regression") / "report.html",
        X_shifted=shifted,
        shifted_name="the <second> intake",
        facts={"File": "diabetes.csv"},
    )
    report = Report(path, model, X[300:], y[300:])
    report.shifted = shifted
    return report


@pytest.fixture(scope="session")
def classification(tmp_path_factory):
    X, labels = load_wine(return_X_y=True, as_frame=True)
    y = labels.map({0: "Barolo", 1: "Grignolino", 2: "Barbera"}).rename("cultivar")
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X.iloc[order, [0, 1, 2]], y.iloc[order]
    model = HCMClassifier(trees(), random_state=0).fit(X[:60], y[:60])
    model.calibrate(X[60:100], y[60:100]).set_threshold(AcceptShare(0.8))
    path = write_report(model, X[100:], y[100:], tmp_path_factory.mktemp("classes") / "report.html", coverage=0.8)
    return Report(path, model, X[100:], y[100:])


@pytest.fixture(scope="session")
def several(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (500, 3))
    Y = pd.DataFrame({"thickness": 50 + 10 * X[:, 0], "stress": 200 + 80 * X[:, 1]})
    Y += rng.normal(size=Y.shape) * [1, 8]
    model = HCMRegressor(trees(), random_state=0).fit(X[:200], Y[:200]).calibrate(X[200:300], Y[200:300])
    path = write_report(
        model, X[300:], Y[300:], tmp_path_factory.mktemp("several") / "report.html", groups=["x1", "x0"]
    )
    return Report(path, model, X[300:], Y[300:])


@pytest.fixture
def rows():
    """Rows of one number with chosen errors, uncertainties and so on."""

    def make(error, uncertainty, *, accepted=None, covered=None, target=None, frame=None, is_class=False):
        error, uncertainty = np.asarray(error, dtype=float), np.asarray(uncertainty, dtype=float)
        n = len(error)
        limits = (
            {"prediction_set": np.ones((n, 2), dtype=bool)} if is_class else {"lower": -np.ones(n), "upper": np.ones(n)}
        )
        confidence = 1 - np.argsort(np.argsort(uncertainty)) / n
        return MeasuredRows(
            assessment=Assessment(np.zeros(n), uncertainty, confidence=confidence, accepted=accepted, **limits),
            target=np.arange(n) % 2 if is_class else np.zeros((n, 1)) if target is None else target,
            error=error,
            is_covered=np.ones(n, dtype=bool) if covered is None else covered,
            frame=pd.DataFrame({"x": np.arange(n)}) if frame is None else frame,
            row_names=np.array([str(index) for index in range(n)], dtype=object),
            target_name="y",
            output_names=[] if is_class else ["y"],
            coverage=0.9,
            n_calibration=1000,
        )

    return make
