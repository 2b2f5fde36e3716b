"""Whether the rows of a second table are like those of the report, without knowing their targets."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from onsphere import metrics, plots
from onsphere._internal.validation import Floats
from onsphere.errors import InvalidInputError
from onsphere.report.chance import LEVEL
from onsphere.report.features import Feature, as_frame, is_missing, read_features
from onsphere.report.judged import FEWEST_ROWS, Judged
from onsphere.report.parts import Picture, Section, Table, clean, download, number, percent
from onsphere.report.svg import draw, two_histograms

__all__ = ["shift"]

MOST_COLUMNS, N_BINS, N_POINTS = 15, 30, 500


def shift(rows: Judged, model: Any, X_shifted: Any, name: str, pandas: Any) -> Section:
    """Uncertainties and columns of two tables side by side."""
    other_answer = model.assess(X_shifted, coverage=rows.coverage)
    if len(other_answer) < FEWEST_ROWS:
        raise InvalidInputError(
            f"write_report needs at least {FEWEST_ROWS} rows in X_shifted. Got {len(other_answer)}. Pass more rows."
        )
    here, there = _comparable(rows.answer.uncertainty, other_answer.uncertainty)
    moved = _moved(rows.frame, as_frame(model, X_shifted, pandas))
    words = [_words(rows, other_answer, here, there, name), _on_columns(moved)]
    pictures = [_histograms(here, there, name), _roc(here, there, name)]
    return Section("shift", f"Compared with {name}", words, pictures, [_table(moved)])


def _comparable(here: Floats, there: Floats) -> tuple[Floats, Floats]:
    """Rows that nothing can be said about are the most uncertain of all."""
    finite = there[np.isfinite(there)]
    top = float(np.concatenate([here, finite]).max())
    return here, np.where(np.isfinite(there), there, np.nextafter(top, np.inf))


def _words(rows: Judged, other: Any, here: Floats, there: Floats, name: str) -> str:
    from scipy.stats import mannwhitneyu

    score = metrics.auroc(here, there)
    chance = float(mannwhitneyu(here, there).pvalue) if np.ptp(np.concatenate([here, there])) > 0 else 1.0
    if chance >= LEVEL:
        found = "The model is about as sure of these rows as of those of this report"
    else:
        found = f"The model is {'less' if score > 0.5 else 'more'} sure of these rows than of those of this report"
    odds = "p < 0.001" if chance < 0.001 else f"p = {number(chance, digits=2)}"
    text = (
        f"{found}: a row of {name}, picked at random, is the more uncertain one of a pair in {percent(score)} of the "
        f"cases (50\u202f% means no difference; {odds}, {len(there):,} rows against {len(here):,})."
    )
    if rows.answer.accepted is None:
        return text
    before, after = (percent(float(np.mean(each))) for each in (rows.answer.accepted, other.accepted))
    return f"{text} It accepts {after} of them, and {before} of those of this report."


def _histograms(here: Floats, there: Floats, name: str) -> Picture:
    both = np.concatenate([here, there])
    # A few rows far away must not press all others into one bar.
    low, high = float(both.min()), float(np.quantile(both, 0.99))
    edges = np.linspace(low, high if high > low else low + 1.0, N_BINS + 1)
    shares = [np.histogram(np.minimum(each, edges[-1]), edges)[0] / len(each) for each in (here, there)]
    names = ["this report", clean(name, longest=30)]
    columns = {"from": edges[:-1], "to": [*edges[1:-1], float(both.max())]}
    return Picture(
        title="Uncertainty in both tables",
        reading="Where the outline lies to the right of the filled shape, the model is less sure of the second table. "
        "The last bar holds all rows beyond, too.",
        svg=draw("shift-histogram", lambda ax: two_histograms(ax, edges, shares, names, x="Uncertainty")),
        download=download(
            "shift-histogram", columns | {f"share of {names[0]}": shares[0], "share of the second": shares[1]}
        ),
    )


def _roc(here: Floats, there: Floats, name: str) -> Picture:
    from sklearn.metrics import roc_curve

    is_out = np.repeat([0.0, 1.0], [len(here), len(there)])
    false_alarms, found, _ = roc_curve(is_out, np.concatenate([here, there]))
    shown = np.unique(np.linspace(0, len(found) - 1, min(len(found), N_POINTS)).astype(np.intp))

    def paint(ax: Any) -> None:
        plots.roc(here, there, ax=ax).set(xlabel="Share of this report flagged", ylabel="Share of the second flagged")

    return Picture(
        title="Can they be told apart?",
        reading=f"On the dashed line it cannot; the further the curve bends to the upper left, the more {clean(name)} "
        "differs, and the better a limit on the uncertainty would find its rows.",
        svg=draw("shift-roc", paint),
        download=download(
            "shift-roc", {"share flagged": false_alarms[shown], "share of the second flagged": found[shown]}
        ),
    )


class _Moved(NamedTuple):
    """How far a column has moved: 0 not at all, 1 no value in common; and how often chance would do that."""

    name: str
    distance: float
    chance: float
    missing_before: float
    missing_after: float


def _moved(before: Any, after: Any) -> list[_Moved]:
    pairs = zip(read_features(before), read_features(after), strict=True)
    found = [_column(first, second) for first, second in pairs]
    return sorted(found, key=lambda each: -each.distance)


def _column(before: Feature, after: Feature) -> _Moved:
    first, second = _known(before), _known(after)
    n_gone = [len(before.values) - len(first), len(after.values) - len(second)]
    # That values have begun to be missing, or have ceased to, is a move as well.
    moves = [_levels(Counter(known=len(first), gone=n_gone[0]), Counter(known=len(second), gone=n_gone[1]))]
    if len(first) and len(second):
        if "category" in (before.kind, after.kind):
            moves.append(_levels(Counter(map(str, first)), Counter(map(str, second))))
        else:
            moves.append(_numbers(first, second))
    return _Moved(
        name=before.name,
        distance=max(distance for distance, _ in moves),
        chance=min(len(moves) * min(chance for _, chance in moves), 1.0),
        missing_before=n_gone[0] / len(before.values),
        missing_after=n_gone[1] / len(after.values),
    )


def _known(feature: Feature) -> Any:
    return feature.values[~is_missing(feature)]


def _numbers(first: Any, second: Any) -> tuple[float, float]:
    """Kolmogorov and Smirnov's largest gap between the two distributions."""
    from scipy.stats import ks_2samp

    found: Any = ks_2samp(first, second, method="asymp")
    return float(found.statistic), float(found.pvalue)


def _levels(first: Counter[str], second: Counter[str]) -> tuple[float, float]:
    """Total variation: the share of rows that would have to change their level."""
    from scipy.stats import chi2_contingency

    names = sorted(+(first | second))
    if len(names) < 2:
        return 0.0, 1.0
    table = np.array([[count[name] for name in names] for count in (first, second)], dtype=np.float64)
    shares = table / table.sum(axis=1, keepdims=True)
    found: Any = chi2_contingency(table, correction=False)
    return float(0.5 * np.abs(shares[0] - shares[1]).sum()), float(found.pvalue)


def _on_columns(moved: list[_Moved]) -> str:
    beyond = [each for each in moved if _is_beyond(each, moved)]
    if not beyond:
        return "No column has moved by more than chance."
    named = ", ".join(clean(each.name) for each in beyond[:5])
    more = f" and {len(beyond) - 5} more" if len(beyond) > 5 else ""
    return f"{len(beyond)} of {len(moved)} columns have moved by more than chance: {named}{more}."


def _is_beyond(each: _Moved, moved: list[_Moved]) -> bool:
    return each.chance < LEVEL / len(moved)


def _table(moved: list[_Moved]) -> Table:
    columns: dict[str, list[Any]] = {
        "column": [each.name for each in moved],
        "distance": [each.distance for each in moved],
        "more than chance": ["yes" if _is_beyond(each, moved) else "no" for each in moved],
        "missing before": [each.missing_before for each in moved],
        "missing after": [each.missing_after for each in moved],
    }
    told = [[clean(name) for name in columns["column"]], [f"{distance:.2f}" for distance in columns["distance"]]]
    told += [columns["more than chance"]]
    told += [[percent(share) for share in columns[title]] for title in ("missing before", "missing after")]
    caption = (
        "Which columns moved most, from 0 (not at all) to 1 (nothing in common): the largest gap between the "
        "distributions of numbers and dates, or the share of rows that would have to change their level."
    )
    if len(moved) > MOST_COLUMNS:
        caption += f" The first {MOST_COLUMNS} of {len(moved)}; the CSV file has all."
    return Table(
        caption=caption,
        columns=list(columns),
        rows=[list(line) for line in zip(*told, strict=True)][:MOST_COLUMNS],
        is_number=[False, True, False, True, True],
        download=download("moved-columns", columns),
    )
