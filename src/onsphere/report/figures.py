"""The plots of `onsphere.plots`, each with a sentence on how to read it and the numbers it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from onsphere import metrics, plots
from onsphere._internal.validation import Floats
from onsphere.metrics._checks import average_bins, bin_by_width, pick_evenly
from onsphere.report.elements import Picture, Section, draw_picture, style_axes
from onsphere.report.formatting import format_number, format_percent, shorten
from onsphere.report.measured_rows import MeasuredRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["show_figures"]

# At most so many points are drawn, points of a curve are in a CSV file, and outputs have a picture of their intervals.
MOST_POINTS, MOST_CURVE_POINTS, MOST_OUTPUTS = 2_000, 500, 50
# A bin should hold about thirty rows, or its mean is noise.
FEWEST_BINS, ROWS_PER_BIN = 5, 30


def show_figures(rows: MeasuredRows) -> Section:
    """Return the pictures of errors, intervals and confidence."""
    text = "Every picture is drawn from the rows of this report; below each is a link to its numbers."
    if rows.is_class:
        pictures = [_draw_reliability(rows), _draw_set_sizes(rows), _draw_risk(rows), _draw_error_by_confidence(rows)]
    else:
        n_outputs = len(rows.output_names)
        if n_outputs > MOST_OUTPUTS:
            text += f" The intervals of the first {MOST_OUTPUTS} of {n_outputs} targets are drawn."
        pictures = [_draw_intervals(rows, output) for output in range(min(n_outputs, MOST_OUTPUTS))]
        pictures += [] if rows.pit is None else [_draw_places(rows, rows.pit)]
        pictures += [_draw_risk(rows), _draw_error_by_confidence(rows), _draw_boxes(rows)]
        if rows.assessment.uncertainty.min() >= 0:
            pictures.append(_draw_points(rows))
    if rows.assessment.direction_norm is not None:
        pictures.append(_draw_norms(rows.assessment.direction_norm))
    return Section("pictures", "In pictures", [text], pictures)


def _draw_intervals(rows: MeasuredRows, output: int) -> Picture:
    value, lower, upper = (each[:, output] for each in rows.intervals)
    truth = rows.target[:, output]
    chosen = pick_evenly(value, plots.MOST_INTERVALS)
    columns = {"row": rows.row_names, "prediction": value, "lower": lower, "upper": upper, "truth": truth}
    name, title = "intervals", "Predictions and truth"
    reading = (
        "Each bar is the interval of one row, from the smallest prediction to the largest. "
        f"{format_percent(rows.coverage)} of the true values should lie inside."
    )
    if len(rows.output_names) > 1:
        name, title = f"intervals-{output}", f"Intervals: {shorten(rows.output_names[output])}"
        reading = (
            f"Each bar is the interval of one row. For {format_percent(rows.coverage)} of the rows, all targets "
            "together should lie inside, so a single target lies inside more often."
        )

    is_log = bool(rows.is_skewed[output])
    if is_log:
        reading += " The axis is logarithmic, because the values are skewed."

    def draw(ax: Axes) -> None:
        plots.intervals(value, lower, upper, y_true=truth, ax=ax)
        if is_log:
            _use_log_axis(ax, low=float(truth.min()), high=max(float(truth.max()), float(np.max(value))))
        # With two columns the legend would be wider than the picture.
        _move_legend(ax, "upper left")

    return draw_picture(
        name,
        draw,
        {header: column[chosen] for header, column in columns.items()},
        title=title,
        reading=reading + _describe_choice(len(chosen), len(rows)),
    )


def _draw_places(rows: MeasuredRows, pit: Floats) -> Picture:
    n_bins = _choose_n_bins(rows, 10)
    shares, edges = np.histogram(pit.ravel(), bins=n_bins, range=(0.0, 1.0))
    n_outputs = len(rows.output_names)

    def draw(ax: Axes) -> None:
        plots.pit_histogram(pit.ravel(), n_bins=n_bins, ax=ax)
        if n_outputs > 1:
            ax.patches[-1].set_label(f"{len(rows):,} rows, {n_outputs:,} targets")
            ax.set_ylabel("Share of true values")
            _move_legend(ax, "upper left")

    return draw_picture(
        "pit",
        draw,
        {"from": edges[:-1], "to": edges[1:], "share": shares / pit.size},
        title="Truth within the distribution",
        reading="Where the truth lies in the distribution that was predicted for it, from its lower end (0) to its "
        "upper end (1). The bars should be about equally high: a hump means distributions that are too wide, a valley "
        "too narrow ones, a slope that they lie too high or too low."
        + ("" if n_outputs == 1 else " All targets are counted together, and chance as if they were independent."),
    )


def _draw_risk(rows: MeasuredRows) -> Picture:
    share, risk = metrics.risk_coverage_curve(rows.error, rows.assessment.uncertainty)
    _, best = metrics.risk_coverage_curve(rows.error, rows.error)
    shown = pick_evenly(share, MOST_CURVE_POINTS)
    return draw_picture(
        "risk-coverage",
        lambda ax: plots.risk_coverage(rows.error, rows.assessment.uncertainty, ax=ax),
        {"share accepted": share[shown], rows.error_name: risk[shown], f"{rows.error_name}, oracle": best[shown]},
        title="What rejecting buys",
        reading=f"Further left, only the surest rows are kept: the {rows.error_name} should fall. The dashed line "
        "knows every error in advance; the closer to it, the better.",
    )


def _draw_error_by_confidence(rows: MeasuredRows) -> Picture:
    n_bins = _choose_n_bins(rows, 20)
    mass, confidence, error = _average_bins(rows.confidence, rows.error, n_bins)
    return draw_picture(
        "error-by-confidence",
        lambda ax: plots.calibration_curve(rows.error, rows.confidence, n_bins=n_bins, ax=ax),
        {"rows": mass.astype(int), "confidence": confidence, rows.error_name: error},
        title="Error by confidence",
        reading=f"The {rows.error_name} of rows with about the same confidence: it should fall from left to right. A "
        "confidence of 0.2 means that 20\u202f% of the calibration rows were at least as uncertain.",
    )


def _draw_boxes(rows: MeasuredRows) -> Picture:
    from matplotlib.cbook import boxplot_stats

    n_bins = _choose_n_bins(rows, 10)
    index = bin_by_width(rows.confidence, 0.0, 1.0, n_bins)
    filled = np.unique(index)
    boxes = boxplot_stats([rows.error[index == each] for each in filled])
    columns: dict[str, Any] = {
        "confidence from": filled / n_bins,
        "confidence to": (filled + 1) / n_bins,
        "rows": np.bincount(index)[filled],
    }
    titles = ("lower whisker", "quartile 1", "median", "quartile 3", "upper whisker")
    for title, key in zip(titles, ("whislo", "q1", "med", "q3", "whishi"), strict=True):
        columns[title] = [box[key] for box in boxes]
    return draw_picture(
        "error-boxes",
        lambda ax: plots.error_by_confidence(rows.error, rows.confidence, n_bins=n_bins, ax=ax),
        columns,
        title="How the errors spread",
        reading="Each box holds the middle half of the errors at that confidence, and its line is the median. The "
        "boxes should get lower and shorter from left to right.",
    )


def _draw_points(rows: MeasuredRows) -> Picture:
    chosen = pick_evenly(rows.assessment.uncertainty, MOST_POINTS)
    error, uncertainty = rows.error[chosen], rows.assessment.uncertainty[chosen]
    # Where errors or uncertainties are 0, there is no logarithm.
    is_log = bool(rows.is_skewed.any()) and min(error.min(), uncertainty.min()) > 0
    log = " Both axes are logarithmic, because the values are skewed." if is_log else ""

    def draw(ax: Axes) -> None:
        plots.uncertainty_error(error, uncertainty, ax=ax)
        if is_log:
            low, high = (float(np.quantile(error, level)) for level in (0.01, 1))
            ax.set_xscale("log")
            ax.set_xlim(uncertainty.min() / 1.2, uncertainty.max() * 1.2)
            _write_ticks(ax.xaxis)
            _use_log_axis(ax, low=low, high=high)

    return draw_picture(
        "error-and-uncertainty",
        draw,
        {"row": rows.row_names[chosen], "uncertainty": uncertainty, "error": error},
        title="Error and uncertainty",
        reading="Each point is a row. On the left, where the model is sure, few points should be high up."
        + log
        + _describe_choice(len(chosen), len(rows)),
    )


def _draw_norms(norm: Floats) -> Picture:
    columns: dict[str, list[Any]] = {"kind": [], "from": [], "to": [], "rows": []}

    def draw(ax: Axes) -> None:
        for bars in plots.direction_norms(norm, ax=ax).containers:
            kind = str(bars[0].get_label()).split(":")[0]
            for bar in bars:
                if bar.get_height() > 0:
                    row = (kind, bar.get_x(), bar.get_x() + bar.get_width(), int(bar.get_height()))
                    for column, value in zip(columns.values(), row, strict=True):
                        column.append(value)

    return draw_picture(
        "direction-norms",
        draw,
        columns,
        title="Ambiguous or unknown",
        reading="The length of what the model predicts on its sphere: below 1, it has seen rows like this one with "
        "different outcomes; above 1, it goes beyond what it has seen.",
    )


def _draw_reliability(rows: MeasuredRows) -> Picture:
    probability, is_right = np.asarray(rows.assessment.probabilities).max(axis=1), 1.0 - rows.error
    n_bins = _choose_n_bins(rows, 15)
    mass, mean_probability, share_right = _average_bins(probability, is_right, n_bins)
    gap = metrics.expected_calibration_error(is_right, probability, n_bins=n_bins)

    def draw(ax: Axes) -> None:
        plots.reliability(is_right, probability, n_bins=n_bins, ax=ax)
        _move_legend(ax, "lower right")
        ax.set_xlabel("Probability of the predicted class")

    return draw_picture(
        "reliability",
        draw,
        {"rows": mass.astype(int), "probability": mean_probability, "share right": share_right},
        title="Are the probabilities right?",
        reading="On the dashed line, a class with probability 0.8 is right 8 times out of 10. Above it the model is "
        f"too cautious, below it too sure; on average it is off by {format_number(gap)}.",
    )


def _draw_set_sizes(rows: MeasuredRows) -> Picture:
    prediction_set = np.asarray(rows.assessment.prediction_set)
    sizes = prediction_set.sum(axis=1)
    # Leave room for at least three bars; a single one would fill the picture.
    largest = max(int(sizes.max()), min(prediction_set.shape[1], 3))
    shown = np.arange(1, largest + 1)
    n_rows = np.bincount(sizes, minlength=largest + 1)[shown]
    n_covered = np.bincount(sizes, rows.is_covered, minlength=largest + 1).astype(int)[shown]

    def draw(ax: Axes) -> None:
        ax.bar(shown, n_rows / len(rows), color=plots.BLUE, width=0.7)
        ax.locator_params(axis="x", integer=True)
        style_axes(ax, "Classes in the set", "Share of rows")

    return draw_picture(
        "set-sizes",
        draw,
        {"classes in the set": shown, "rows": n_rows, "rows with the true class": n_covered},
        title="Possible classes",
        reading=f"Each row gets a set of classes that contains the true one in {format_percent(rows.coverage)} of the "
        "cases; a set of one class is a clear answer.",
    )


def _use_log_axis(ax: Axes, *, low: float, high: float) -> None:
    """Draw the y axis logarithmically from half the low value, with room for the legend above the high one."""
    ax.set_yscale("log")
    ax.set_ylim(low / 2, high * (2 * high / low) ** 0.45)
    _write_ticks(ax.yaxis)


def _write_ticks(axis: Any) -> None:
    """Write the powers of ten of a logarithmic axis as plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axis.set_minor_formatter(NullFormatter())


def _average_bins(values: Floats, others: Floats, n_bins: int) -> list[Floats]:
    """Return the rows, the mean value and the mean of the others in each non-empty bin of [0, 1], as in the plots."""
    return average_bins(bin_by_width(values, 0.0, 1.0, n_bins), np.ones(len(values)), values, others)


def _choose_n_bins(rows: MeasuredRows, most: int) -> int:
    return int(np.clip(len(rows) // ROWS_PER_BIN, FEWEST_BINS, most))


def _describe_choice(n_shown: int, n_all: int) -> str:
    return "" if n_shown == n_all else f" {n_shown:,} of {n_all:,} rows are drawn, evenly spread."


def _move_legend(ax: Axes, corner: Any) -> None:
    """Put the legend of a plot into another corner, in one column."""
    legend = ax.legend(*ax.get_legend_handles_labels(), loc=corner, **plots.LEGEND)
    for handle in filter(None, legend.legend_handles):
        handle.set_alpha(1)
