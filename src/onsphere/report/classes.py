"""The classes that are found and those that are confused: all pairs, and recall and precision of each class."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere.plots import BLUE
from onsphere.report.elements import Picture, Section, Table, draw_picture, make_table
from onsphere.report.formatting import format_number, format_percent, shorten
from onsphere.report.measured_rows import CHANCE_LEVEL, Feature, MeasuredRows
from onsphere.report.row_groups import Means, draw_means, group_rows

__all__ = ["show_classes"]

# Classes in the picture and in the table; the others become one.
MOST_DRAWN, MOST_LISTED = 10, 20


class Confusion(NamedTuple):
    """Counts of each true class (in rows) by the class that it is called (in columns)."""

    names: list[str]
    counts: NDArray[np.intp]


def show_classes(rows: MeasuredRows) -> Section:
    """Return what is confused with what, and the figures of each class."""
    confusion = _count(rows)
    mistakes = confusion.counts - np.diag(np.diag(confusion.counts))
    text = "No class was confused with another."
    if mistakes.any():
        truth, call = np.unravel_index(int(np.argmax(mistakes)), mistakes.shape)
        share = mistakes[truth, call] / confusion.counts[truth].sum()
        rows_text = f"{mistakes[truth, call]:,} row{'' if mistakes[truth, call] == 1 else 's'}"
        first, second = (shorten(confusion.names[place], longest=26) for place in (truth, call))
        text = (
            f"The most common mistake: {first} called {second}, in {rows_text} "
            f"({format_percent(float(share))} of {first})."
        )
    return Section(
        "classes",
        "Which classes it finds",
        [text],
        [_draw(confusion), _draw_recall(rows)],
        [_make_table(rows, confusion)],
    )


def _count(rows: MeasuredRows) -> Confusion:
    """Count each pair of truth and prediction; the most frequent classes come first."""
    truth, called = (np.array([str(label) for label in each]) for each in (rows.target, rows.assessment.value))
    names, codes = np.unique(np.concatenate([truth, called]), return_inverse=True)
    first, second = codes[: len(truth)], codes[len(truth) :]
    counts = np.zeros((len(names), len(names)), dtype=np.intp)
    np.add.at(counts, (first, second), 1)
    order = np.argsort(-counts.sum(axis=1), kind="stable")
    return Confusion(names[order].tolist(), counts[np.ix_(order, order)])


def _fold(confusion: Confusion, most: int) -> Confusion:
    """Return the most frequent classes, with all others as one."""
    if len(confusion.names) <= most:
        return confusion
    kept = np.minimum(np.arange(len(confusion.names)), most - 1)
    counts = np.zeros((most, most), dtype=np.intp)
    np.add.at(counts, (kept[:, None], kept[None, :]), confusion.counts)
    others = f"{len(confusion.names) - most + 1} others"
    return Confusion([*confusion.names[: most - 1], others], counts)


def _draw(confusion: Confusion) -> Picture:
    from matplotlib.patches import Rectangle

    shown = _fold(confusion, MOST_DRAWN)
    n = len(shown.names)
    totals = shown.counts.sum(axis=1, keepdims=True)
    shares = shown.counts / np.maximum(totals, 1)
    labels = [shorten(name, longest=14 if n > 4 else 18) for name in shown.names]
    size = 8.5 if n <= 6 else 6.5

    def draw(ax: Any) -> None:
        for (row, column), count in np.ndenumerate(shown.counts):
            share = float(shares[row, column])
            square = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=BLUE, alpha=0.05 + 0.6 * share, linewidth=0)
            ax.add_patch(square)
            if count:
                ax.text(column, row, f"{count:,}", ha="center", va="center", fontsize=size)
        ax.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), xlabel="Predicted", ylabel="True")
        ax.set_xticks(range(n), labels, rotation=0 if n * max(map(len, labels)) <= 30 else 90)
        ax.set_yticks(range(n), labels)
        ax.tick_params(length=0, labelsize=8.5 if n > 4 else 9.5)
        ax.spines[:].set_visible(False)

    pairs = [(truth, call) for truth in range(len(confusion.names)) for call in range(len(confusion.names))]
    pairs = [pair for pair in pairs if confusion.counts[pair]]
    folded = ""
    if n < len(confusion.names):
        folded = (
            f" The {n - 1} most frequent classes are drawn; the last square also holds the mistakes among the others, "
            "and the file has each pair."
        )
    return draw_picture(
        "confusion",
        draw,
        {
            "truth": [confusion.names[truth] for truth, _ in pairs],
            "prediction": [confusion.names[call] for _, call in pairs],
            "rows": [int(confusion.counts[pair]) for pair in pairs],
        },
        title="What is called what",
        reading="Rows of each true class by the class that was predicted; the darker, the larger the share of the true "
        f"class. Everything off the diagonal is wrong.{folded}",
        height=3.2 if n <= 6 else 3.9,
    )


def _draw_recall(rows: MeasuredRows) -> Picture:
    from scipy.stats import binomtest

    classes = np.array([str(label) for label in rows.target.tolist()], dtype=object)
    grouping = group_rows(Feature("share found by class", "category", classes))
    is_right = rows.error == 0
    recall, n_right = grouping.average(is_right), np.bincount(grouping.member, is_right).astype(int)
    counts = zip(n_right.tolist(), grouping.n_rows.tolist(), strict=True)
    ends = [binomtest(count, n).proportion_ci(1 - CHANCE_LEVEL) for count, n in counts]
    low, high = np.array([(end.low, end.high) for end in ends]).T
    overall = float(np.mean(is_right))
    lowest = int(np.argmin(recall))
    reading = (
        f"The share of each class that is found (recall); the dashed line is that of all rows, "
        f"{format_percent(overall)}. Lowest: {grouping.labels[lowest]}, with {format_percent(float(recall[lowest]))}."
    )
    means = Means("share found", recall, low, high, is_bad=high < overall)
    return draw_means(grouping, means, "recall", reading, line=overall, limits=(-0.02, 1.02), title="What is found")


def _make_table(rows: MeasuredRows, confusion: Confusion) -> Table:
    truth, called = (np.array([str(label) for label in each]) for each in (rows.target, rows.assessment.value))
    sizes = np.asarray(rows.assessment.prediction_set).sum(axis=1)
    is_folded = len(confusion.names) > MOST_LISTED
    kept = confusion.names[: MOST_LISTED - 1] if is_folded else confusion.names

    def list_columns(members: dict[str, list[str]]) -> dict[str, list[Any]]:
        groups = [(np.isin(truth, names), np.isin(called, names)) for names in members.values()]
        is_right = truth == called
        return {
            "class": list(members),
            "rows": [int(here.sum()) for here, _ in groups],
            "recall": [_average(is_right[here]) for here, _ in groups],
            "precision": [_average(is_right[there]) for _, there in groups],
            "true class in its set": [_average(rows.is_covered[here]) for here, _ in groups],
            "classes in its set": [_average(sizes[here]) for here, _ in groups],
        }

    each = {name: [name] for name in confusion.names}
    shown = {name: [name] for name in kept}
    caption = (
        "Each class. Recall is the share of its rows that are found, precision the share of the rows called so that "
        f"are right. That {format_percent(rows.coverage)} have their true class in their set is promised over all "
        "classes together, not for each."
    )
    if is_folded:
        shown[f"{len(confusion.names) - len(kept)} others"] = confusion.names[len(kept) :]
        caption += f" The {len(kept)} most frequent classes and all others; the CSV file has each."
    formats: dict[str, Any] = {"class": shorten, "rows": "{:,}".format, "classes in its set": format_number}
    columns = [(name, values, formats.get(name, format_percent)) for name, values in list_columns(shown).items()]
    return make_table("classes", caption, columns, file_columns=list_columns(each))


def _average(values: NDArray[Any]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
