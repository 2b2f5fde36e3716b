"""Confusion, recall and precision, by hand; many classes are folded."""

import base64
import csv
import io
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose
from sklearn.metrics import precision_score, recall_score

from onsphere import Assessment
from onsphere.report import classes
from onsphere.report.classes import show_classes


def read(download):
    header, *lines = csv.reader(io.StringIO(base64.b64decode(download.address.split(",")[1]).decode()))
    return dict(zip(header, map(list, zip(*lines, strict=True)), strict=True))


def make(rows, truth, called):
    truth, called = np.array(truth), np.array(called)
    n = len(truth)
    plain = rows((truth != called).astype(float), np.arange(n), is_class=True)
    answer = Assessment(called, np.arange(n, dtype=float), prediction_set=np.ones((n, 2), dtype=bool))
    return replace(plain, target=truth, assessment=answer, frame=pd.DataFrame({"x": np.zeros(n)}))


def test_recall_and_precision_by_hand(classification):
    called = classification.model.assess(classification.X, coverage=0.8)
    y = classification.y.to_numpy()
    table = classification.table("classes.csv")
    labels = table["class"].tolist()
    assert sorted(labels) == sorted(set(y))
    assert np.all(np.diff(table["rows"]) <= 0)
    assert_allclose(table["recall"], recall_score(y, called.value, labels=labels, average=None), rtol=1e-6)
    assert_allclose(table["precision"], precision_score(y, called.value, labels=labels, average=None), rtol=1e-6)
    sizes = called.prediction_set.sum(axis=1)
    assert_allclose(table["classes in its set"], [sizes[y == label].mean() for label in labels], rtol=1e-6)
    pairs = classification.table("confusion.csv")
    counts = pd.Series(list(zip(y, called.value, strict=True))).value_counts()
    found = zip(pairs["truth"], pairs["prediction"], pairs["rows"], strict=True)
    assert {(truth, call): rows for truth, call, rows in found} == counts.to_dict()


def test_the_most_common_mistake_is_named(rows):
    section = show_classes(make(rows, list("aaabbbcc"), list("aabbbacc")))
    assert section.paragraphs == ["The most common mistake: a called b, in 1 row (33\u202f% of a)."]
    twice = show_classes(make(rows, list("aaabbbcc"), list("abbbbacc")))
    assert twice.paragraphs == ["The most common mistake: a called b, in 2 rows (67\u202f% of a)."]
    assert "Lowest: a, with 67\u202f%." in section.pictures[1].reading
    right = show_classes(make(rows, list("aabb"), list("aabb")))
    assert right.paragraphs == ["No class was confused with another."]


def test_a_class_that_is_never_called_or_never_true_has_no_share(rows):
    (table,) = show_classes(make(rows, list("aab"), list("aac"))).tables
    shown = {line[0]: line[1:4] for line in table.rows}
    assert shown["b"] == ["1", "0\u202f%", "–"]
    assert shown["c"] == ["0", "–", "0\u202f%"]


def test_many_classes_are_folded_and_the_files_have_all(rows):
    truth = np.array([f"class {index:02}" for index in range(30) for _ in range(30 - index)])
    called = np.where(np.arange(len(truth)) % 2 == 0, truth, np.roll(truth, 40))
    section = show_classes(make(rows, truth, called))
    picture, (table,) = section.pictures[0], section.tables
    assert f"The {classes.MOST_DRAWN - 1} most frequent classes are drawn" in picture.reading
    assert "21 others" in picture.svg
    assert len(table.rows) == classes.MOST_LISTED
    rest = np.isin(truth, [f"class {index:02}" for index in range(19, 30)])
    assert table.rows[-1][:3] == ["11 others", str(rest.sum()), f"{100 * (truth == called)[rest].mean():.0f}\u202f%"]
    assert len(read(table.download)["class"]) == 30
    assert sum(map(int, read(picture.download)["rows"])) == len(truth)
