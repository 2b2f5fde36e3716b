"""Compare the rows of a second table with those of the report, without knowing their targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_curve

from onsphere import metrics, plots
from onsphere._internal.validation import Floats
from onsphere.assessment import Assessment
from onsphere.errors import InvalidInputError
from onsphere.metrics._checks import pick_evenly
from onsphere.report.elements import Picture, Section, Table, draw_picture, make_table, style_axes
from onsphere.report.formatting import format_number, format_percent, shorten
from onsphere.report.measured_rows import CHANCE_LEVEL, FEWEST_ROWS, Feature, MeasuredRows, read_features, to_frame

__all__ = ["ColumnShift", "compare_columns", "show_shift"]

MOST_COLUMNS, N_BINS, N_POINTS = 15, 30, 500


class ColumnShift(NamedTuple):
    """The distance a column has moved, from 0 to 1 (no value in common), and how often chance alone moves it so far."""

    name: str
    distance: float
    p_value: float
    missing_before: float
    missing_after: float


def show_shift(
    rows: MeasuredRows, model: Any, X_shifted: Any, name: str, show_rows: Callable[[Any], Any] | None = None
) -> Section:
    """Compare the uncertainties and the columns of two tables."""
    other = model.assess(X_shifted, coverage=rows.coverage)
    if len(other) < FEWEST_ROWS:
        raise InvalidInputError(
            f"write_report needs at least {FEWEST_ROWS} rows in X_shifted. Got {len(other)}. Pass more rows."
        )
    here, there = rows.assessment.uncertainty, _replace_infinite(rows.assessment.uncertainty, other.uncertainty)
    frame = to_frame(model, X_shifted)
    features = zip(rows.features, read_features(frame if show_rows is None else show_rows(frame)), strict=True)
    shifts = sorted((compare_columns(*pair) for pair in features), key=lambda shift: -shift.distance)
    level = CHANCE_LEVEL / len(shifts)
    moved = [shift.name for shift in shifts if shift.p_value < level]
    columns_text = "No column has moved by more than chance."
    if moved:
        names = ", ".join(shorten(each) for each in moved[:5])
        more = f" and {len(moved) - 5} more" if len(moved) > 5 else ""
        columns_text = f"{len(moved)} of {len(shifts)} columns have moved by more than chance: {names}{more}."
    return Section(
        "shift",
        f"Compared with {name}",
        [_describe_uncertainty(rows, other, here, there, name), columns_text],
        [_draw_histograms(here, there, name), _draw_roc(here, there, name)],
        [_make_shift_table(shifts, level)],
    )


def _replace_infinite(here: Floats, there: Floats) -> Floats:
    """Make rows without a finite uncertainty the most uncertain of all."""
    is_finite = np.isfinite(there)
    top = float(np.concatenate([here, there[is_finite]]).max())
    return np.where(is_finite, there, np.nextafter(top, np.inf))


def _describe_uncertainty(rows: MeasuredRows, other: Assessment, here: Floats, there: Floats, name: str) -> str:
    from scipy.stats import mannwhitneyu

    score = metrics.auroc(here, there)
    p_value = float(mannwhitneyu(here, there).pvalue) if np.ptp(np.concatenate([here, there])) > 0 else 1.0
    found = "The model is about as sure of these rows as of those of this report"
    if p_value < CHANCE_LEVEL:
        found = f"The model is {'less' if score > 0.5 else 'more'} sure of these rows than of those of this report"
    odds = "p < 0.001" if p_value < 0.001 else f"p = {format_number(p_value, digits=2)}"
    text = (
        f"{found}: a random row of {name} is more uncertain than a random row of this report in "
        f"{format_percent(score)} of the cases (50\u202f% means no difference; {odds}, {len(there):,} rows against "
        f"{len(here):,})."
    )
    if rows.assessment.novelty is not None and other.novelty is not None:
        novel = [
            format_percent(float(np.mean(each > 0)), decimals=1) for each in (other.novelty, rows.assessment.novelty)
        ]
        text += f" {novel[0]} of them are unlike the training rows (novel), and {novel[1]} of those of this report."
    if rows.assessment.accepted is None or other.accepted is None:
        return text
    before, after = (format_percent(float(np.mean(each))) for each in (rows.assessment.accepted, other.accepted))
    return f"{text} It accepts {after} of them, and {before} of those of this report."


def _draw_histograms(here: Floats, there: Floats, name: str) -> Picture:
    both = np.concatenate([here, there])
    # A few rows far away must not squeeze all others into one bar.
    low, high = float(both.min()), float(np.quantile(both, 0.99))
    edges = np.linspace(low, high if high > low else low + 1.0, N_BINS + 1)
    first, second = (np.histogram(np.minimum(each, edges[-1]), edges)[0] / len(each) for each in (here, there))

    def draw(ax: Any) -> None:
        ax.stairs(first, edges, fill=True, color=plots.BLUE, alpha=0.45, label="this report")
        ax.stairs(second, edges, color=plots.VERMILLION, linewidth=2, label=shorten(name, longest=30))
        style_axes(ax, "Uncertainty", "Share of rows")
        ax.margins(y=0.25)
        ax.legend(loc="upper right", **plots.LEGEND)

    return draw_picture(
        "shift-histogram",
        draw,
        {
            "from": edges[:-1],
            "to": [*edges[1:-1], float(both.max())],
            "share of this report": first,
            "share of the second": second,
        },
        title="Uncertainty in both tables",
        reading="Where the outline lies to the right of the filled shape, the model is less sure of the second table. "
        "The last bar also holds all rows beyond it.",
    )


def _draw_roc(here: Floats, there: Floats, name: str) -> Picture:
    is_second = np.repeat([0.0, 1.0], [len(here), len(there)])
    false_alarms, found, _ = roc_curve(is_second, np.concatenate([here, there]))
    shown = pick_evenly(false_alarms, N_POINTS)

    def draw(ax: Any) -> None:
        plots.roc(here, there, ax=ax).set(xlabel="Share of this report flagged", ylabel="Share of the second flagged")

    return draw_picture(
        "shift-roc",
        draw,
        {"share flagged": false_alarms[shown], "share of the second flagged": found[shown]},
        title="Can it separate them?",
        reading="On the dashed line it cannot. The further the curve bends to the upper left, the more "
        f"{shorten(name)} differs, and the better a limit on the uncertainty would find its rows.",
    )


def compare_columns(before: Feature, after: Feature) -> ColumnShift:
    """Return how far a column has moved: numbers and dates by their Kolmogorov–Smirnov distance, text by its levels."""
    from scipy.stats import ks_2samp

    missing = [feature.is_missing for feature in (before, after)]
    first, second = (each.values[~gone] for each, gone in zip((before, after), missing, strict=True))
    # A change in how many values are missing is a move as well.
    moves = [_compare_levels(*(Counter(gone.tolist()) for gone in missing))]
    if len(first) and len(second):
        if "category" in (before.kind, after.kind):
            moves.append(_compare_levels(Counter(map(str, first)), Counter(map(str, second))))
        else:
            found: Any = ks_2samp(first, second, method="asymp")
            moves.append((float(found.statistic), float(found.pvalue)))
    return ColumnShift(
        name=before.name,
        distance=max(distance for distance, _ in moves),
        p_value=min(len(moves) * min(p_value for _, p_value in moves), 1.0),
        missing_before=float(missing[0].mean()),
        missing_after=float(missing[1].mean()),
    )


def _compare_levels(first: Counter[Any], second: Counter[Any]) -> tuple[float, float]:
    """Return the share of rows that would have to change their level (total variation), and its p-value."""
    from scipy.stats import chi2_contingency

    levels = sorted(first | second)
    if len(levels) < 2:
        return 0.0, 1.0
    table = np.array([[count[level] for level in levels] for count in (first, second)], dtype=np.float64)
    shares = table / table.sum(axis=1, keepdims=True)
    found: Any = chi2_contingency(table, correction=False)
    return float(0.5 * np.abs(shares[0] - shares[1]).sum()), float(found.pvalue)


def _make_shift_table(shifts: list[ColumnShift], level: float) -> Table:
    caption = (
        "Which columns moved most, from 0 (not at all) to 1 (nothing in common): the largest gap between the "
        "distributions of numbers and dates, or the share of rows that would have to change their category."
    )
    if len(shifts) > MOST_COLUMNS:
        caption += f" The first {MOST_COLUMNS} of {len(shifts)}; the CSV file has all."
    columns: list[Any] = [
        ("column", [shift.name for shift in shifts], shorten),
        ("distance", [shift.distance for shift in shifts], "{:.2f}".format),
        ("more than chance", ["yes" if shift.p_value < level else "no" for shift in shifts], str),
        ("missing before", [shift.missing_before for shift in shifts], format_percent),
        ("missing after", [shift.missing_after for shift in shifts], format_percent),
    ]
    return make_table("moved-columns", caption, columns, most_rows=MOST_COLUMNS)
