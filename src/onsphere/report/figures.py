"""The pictures of `onsphere.plots`, each with a sentence on how to read it and the numbers it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from onsphere import metrics, plots
from onsphere._internal.validation import Floats
from onsphere.metrics._checks import average_bins, bin_by_width, pick_evenly
from onsphere.report.judged import Judged
from onsphere.report.parts import Picture, Section, clean, download, number, percent
from onsphere.report.svg import counts, draw, put_legend
from onsphere.sphere.embedding import as_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["figures"]

# Points that are drawn, at most, and outputs whose intervals are.
MOST_ROWS, MOST_OUTPUTS = 2_000, 4
# A bin should hold some thirty rows, or its mean is noise.
FEWEST_BINS, ROWS_PER_BIN = 5, 30


def figures(rows: Judged) -> Section:
    """What the metrics say, in pictures."""
    if rows.is_class:
        pictures = [_reliability(rows), _set_sizes(rows), _risk_coverage(rows), _error_and_confidence(rows)]
    else:
        shown = range(min(len(rows.output_names), MOST_OUTPUTS))
        pictures = [_intervals(rows, output) for output in shown]
        pictures += [_risk_coverage(rows), _error_and_confidence(rows), _boxes(rows)]
        if rows.answer.uncertainty.min() >= 0:
            pictures.append(_scatter(rows))
    if rows.answer.direction_norm is not None:
        pictures.append(_norms(rows, rows.answer.direction_norm))
    lead = "Every picture is drawn from the rows of this report; below each is a link to its numbers."
    if not rows.is_class and len(rows.output_names) > MOST_OUTPUTS:
        lead += f" Of {len(rows.output_names)} outputs, the intervals of the first {MOST_OUTPUTS} are drawn."
    return Section("pictures", "In pictures", [lead], pictures, [])


def _intervals(rows: Judged, output: int) -> Picture:
    answer = rows.answer
    value, lower, upper = (
        as_columns(np.asarray(each))[:, output] for each in (answer.value, answer.lower, answer.upper)
    )
    truth = rows.target[:, output]
    several = len(rows.output_names) > 1
    chosen = pick_evenly(value, plots.MOST_INTERVALS)
    columns = {"row": rows.row_names, "prediction": value, "lower": lower, "upper": upper, "truth": truth}
    name = f"intervals-{output}" if several else "intervals"
    reading = (
        "Each bar is the interval of one row, from the smallest prediction to the largest. "
        f"{percent(rows.coverage)} of the true values should lie inside."
    )
    if several:
        reading = (
            "Each bar is the interval of one row. All outputs of a row at once should lie inside for "
            f"{percent(rows.coverage)} of the rows, so one alone lies inside more often."
        )

    def paint(ax: Axes) -> None:
        plots.intervals(value, lower, upper, y_true=truth, ax=ax)
        # In two columns it would be wider than the picture.
        put_legend(ax, "upper left")

    return Picture(
        title=f"Intervals: {clean(rows.output_names[output])}" if several else "Predictions and truth",
        reading=reading + _of_all(len(chosen), len(rows)),
        svg=draw(name, paint),
        download=download(name, {title: column[chosen] for title, column in columns.items()}),
    )


def _risk_coverage(rows: Judged) -> Picture:
    share, risk = metrics.risk_coverage_curve(rows.error, rows.answer.uncertainty)
    _, best = metrics.risk_coverage_curve(rows.error, rows.error)
    shown = np.unique(np.linspace(0, len(share) - 1, min(len(share), 500)).astype(np.intp))
    what = "share of wrong classes" if rows.is_class else "mean error"
    columns = {"share accepted": share[shown], what: risk[shown], f"{what}, oracle": best[shown]}
    return Picture(
        title="What rejecting buys",
        reading=f"Going left, only the surest rows are kept: the {what} should fall, the nearer to the dashed line, "
        "which knows every error beforehand, the better.",
        svg=draw("risk-coverage", lambda ax: plots.risk_coverage(rows.error, rows.answer.uncertainty, ax=ax)),
        download=download("risk-coverage", columns),
    )


def _error_and_confidence(rows: Judged) -> Picture:
    n_bins = _n_bins(rows, 20)
    mass, confidence, error = _binned(rows.confidence, rows.error, n_bins)
    what = "share of wrong classes" if rows.is_class else "mean error"
    return Picture(
        title="Error by confidence",
        reading=f"The {what} of rows with about the same confidence: it should fall from left to right. A confidence "
        "of 0.2 means that 20\u202f% of the calibration rows were at least as uncertain.",
        svg=draw(
            "error-by-confidence",
            lambda ax: plots.calibration_curve(rows.error, rows.confidence, n_bins=n_bins, ax=ax),
        ),
        download=download("error-by-confidence", {"rows": mass.astype(int), "confidence": confidence, what: error}),
    )


def _boxes(rows: Judged) -> Picture:
    from matplotlib.cbook import boxplot_stats

    n_bins = _n_bins(rows, 10)
    index = bin_by_width(rows.confidence, 0.0, 1.0, n_bins)
    filled = np.unique(index)
    boxes = boxplot_stats([rows.error[index == each] for each in filled])
    columns: dict[str, Any] = {
        "confidence from": filled / n_bins,
        "confidence to": (filled + 1) / n_bins,
        "rows": np.bincount(index)[filled],
    }
    parts = {"lower whisker": "whislo", "quartile 1": "q1", "median": "med", "quartile 3": "q3"}
    parts["upper whisker"] = "whishi"
    columns |= {title: np.array([box[key] for box in boxes]) for title, key in parts.items()}
    return Picture(
        title="How the errors spread",
        reading="Each box holds the middle half of the errors at that confidence, the line in it the median; boxes "
        "should sink and shrink from left to right.",
        svg=draw(
            "error-boxes", lambda ax: plots.error_by_confidence(rows.error, rows.confidence, n_bins=n_bins, ax=ax)
        ),
        download=download("error-boxes", columns),
    )


def _scatter(rows: Judged) -> Picture:
    chosen = pick_evenly(rows.answer.uncertainty, MOST_ROWS)
    error, uncertainty = rows.error[chosen], rows.answer.uncertainty[chosen]
    columns = {"row": rows.row_names[chosen], "uncertainty": uncertainty, "error": error}
    return Picture(
        title="Error and uncertainty",
        reading="Each point is a row. To the left, where the model is sure, there should be few points high up."
        + _of_all(len(chosen), len(rows)),
        svg=draw("error-and-uncertainty", lambda ax: plots.uncertainty_error(error, uncertainty, ax=ax)),
        download=download("error-and-uncertainty", columns),
    )


def _norms(rows: Judged, norm: Floats) -> Picture:
    found: dict[str, list[float | str]] = {"kind": [], "from": [], "to": [], "rows": []}

    def paint(ax: Axes) -> None:
        drawn = plots.direction_norms(norm, ax=ax)
        for bars in drawn.containers:
            kind = str(bars[0].get_label()).split(":")[0]
            for bar in bars:
                if bar.get_height() > 0:
                    low = bar.get_x()
                    place = (kind, low, low + bar.get_width(), int(bar.get_height()))
                    for column, value in zip(found.values(), place, strict=True):
                        column.append(value)

    svg = draw("direction-norms", paint)
    return Picture(
        title="Ambiguous or unknown",
        reading="The length of what the model predicts on its sphere: below 1 it has seen rows like this one with "
        "different outcomes, above 1 it goes beyond what it has seen.",
        svg=svg,
        download=download("direction-norms", found),
    )


def _reliability(rows: Judged) -> Picture:
    likely, right = np.asarray(rows.answer.probabilities).max(axis=1), 1.0 - rows.error
    n_bins = _n_bins(rows, 15)
    mass, probability, share = _binned(likely, right, n_bins)
    gap = metrics.expected_calibration_error(right, likely, n_bins=n_bins)

    def paint(ax: Axes) -> None:
        plots.reliability(right, likely, n_bins=n_bins, ax=ax)
        put_legend(ax, "lower right")
        ax.set_xlabel("Probability of the predicted class")

    return Picture(
        title="Are the probabilities right?",
        reading="On the dashed line a class with probability 0.8 is right 8 times out of 10. Above it the model is too "
        f"modest, below it too bold; on average it is off by {number(gap)}.",
        svg=draw("reliability", paint),
        download=download("reliability", {"rows": mass.astype(int), "probability": probability, "share right": share}),
    )


def _set_sizes(rows: Judged) -> Picture:
    prediction_set = np.asarray(rows.answer.prediction_set)
    sizes = prediction_set.sum(axis=1)
    # A few empty places beside it keep a single bar from looking like a wall.
    largest = max(int(sizes.max()), min(prediction_set.shape[1], 3))
    shown = np.arange(1, largest + 1)
    n_rows = np.bincount(sizes, minlength=largest + 1)
    n_covered = np.bincount(sizes, rows.is_covered, minlength=largest + 1).astype(int)
    columns = {"classes in the set": shown, "rows": n_rows[shown], "rows with the true class": n_covered[shown]}
    return Picture(
        title="Classes in question",
        reading=f"Each row gets a set of classes that holds the true one in {percent(rows.coverage)} of the cases; "
        "a set of one class is a plain answer.",
        svg=draw(
            "set-sizes",
            lambda ax: counts(ax, shown, n_rows[shown] / len(rows), x="Classes in the set", y="Share of rows"),
        ),
        download=download("set-sizes", columns),
    )


def _binned(values: Floats, measured: Floats, n_bins: int) -> list[Floats]:
    """Rows, mean value and mean of what is measured in each bin of [0, 1] that holds a row, as the plots have them."""
    return average_bins(bin_by_width(values, 0.0, 1.0, n_bins), np.ones(len(values)), values, measured)


def _n_bins(rows: Judged, most: int) -> int:
    return int(np.clip(len(rows) // ROWS_PER_BIN, FEWEST_BINS, most))


def _of_all(n_shown: int, n_all: int) -> str:
    return "" if n_shown == n_all else f" {n_shown:,} of {n_all:,} rows are drawn, evenly spread."
