"""Draw errors, uncertainties, intervals and scores: each function takes arrays and an axes, and returns the axes.

Arrays are those of `onsphere.metrics`: one entry per row, errors of at least 0, confidence in [0, 1], uncertainty and
scores higher where less trustworthy. Without `ax`, a matplotlib Axes, a new figure is made. A plot with a `label`, the
name of a method, can be drawn again on the same axes to compare methods. Every number comes from `onsphere.metrics`
and from all rows given, even if only some are drawn. The colours are safe for colour-blind readers, and no background
is painted, so that a plot fits a light or a dark style.

For plots of your own, `PALETTE` has the colours in their order, and `BLUE`, `ORANGE`, `VERMILLION` and `GREY` some of
them by name; `REFERENCE` is the style of a line to compare with, and `LEGEND` that of a legend.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import roc_curve

from onsphere import metrics
from onsphere._internal.validation import Floats, check_number, missing_extra_error, parameter_error
from onsphere.errors import InvalidTypeError, NotCalibratedError
from onsphere.metrics._checks import average_bins, bin_by_width, check_floats, check_range, check_rows, pick_evenly
from onsphere.metrics.classification import stack_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BLUE",
    "GREY",
    "LEGEND",
    "ORANGE",
    "PALETTE",
    "REFERENCE",
    "VERMILLION",
    "calibration_curve",
    "direction_norms",
    "error_by_confidence",
    "evidence",
    "intervals",
    "noise_novelty",
    "overview",
    "pit_histogram",
    "quantile_bands",
    "reliability",
    "risk_coverage",
    "roc",
    "uncertainty_error",
]

# Okabe and Ito's colours that stand out on both white and black; methods on one axes get them in this order.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
(BLUE, ORANGE, _, _, VERMILLION, _), GREY = PALETTE, "#888888"
REFERENCE: dict[str, Any] = {"color": GREY, "linestyle": "--", "linewidth": 1.5}
BOX: dict[str, Any] = {"boxprops": {"facecolor": BLUE}, "medianprops": {"color": ORANGE, "linewidth": 2}}
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": "small", "title_fontsize": "small", "alignment": "left"}
# More would hide each other. From MANY_POINTS on, points go into a vector file as one bitmap, to keep it small.
MOST_POINTS, MOST_INTERVALS, MANY_POINTS = 20_000, 200, 2_000
# In the plot of noise and novelty: the share of rows that count as quiet, and the width of the band of known rows.
QUIET_SHARE, _BAND = 0.8, 0.25
# A norm this close to 1 differs from it only by single-precision rounding.
ON_SPHERE = 2.5e-7


def calibration_curve(
    error: ArrayLike, confidence: ArrayLike, *, n_bins: int = 20, label: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the mean error in each of `n_bins` equal confidence bins against their mean confidence; it should fall.

    The area of a dot is the share of the rows in its bin; an empty bin has no dot.

    Examples
    --------
    >>> calibration_curve([3.0, 1.0, 2.0], [0.2, 0.75, 0.85], n_bins=2).lines[0].get_xydata()
    array([[0.2, 3. ],
           [0.8, 1.5]])
    """
    index, confidence, error, weights = _bin_by_confidence(
        "calibration_curve", n_bins, confidence=confidence, error=error
    )
    ax = _prepare_axes(ax)
    mass, x, y = average_bins(index, weights, confidence, error)
    _draw_dots(ax, x, y, mass, _join_label(label, f"{len(error):,} rows"))
    ax.update_datalim([(0, 0), (1, 0)])
    return _finish(ax, "Confidence", "Mean error", title="dot area: share of rows", top=y.max())


def error_by_confidence(error: ArrayLike, confidence: ArrayLike, *, n_bins: int = 10, ax: Axes | None = None) -> Axes:
    """Draw a box plot of the errors in each of `n_bins` equal confidence bins.

    Whiskers are at most 1.5 boxes long, and dots are the rows beyond. The width is proportional to the root of the
    number of rows.

    Examples
    --------
    >>> len(error_by_confidence([3.0, 1.0, 2.0], [0.2, 0.75, 0.85], n_bins=2).patches)
    2
    """
    index, _, error, weights = _bin_by_confidence("error_by_confidence", n_bins, confidence=confidence, error=error)
    ax = _prepare_axes(ax)
    filled, (mass,) = np.unique(index), average_bins(index, weights)
    # A box for only a few rows must still be visible.
    widths = 0.8 / n_bins * np.maximum(np.sqrt(mass / mass.max()), 0.15)
    place: dict[str, Any] = {"positions": (filled + 0.5) / n_bins, "widths": widths, "manage_ticks": False}
    far = {"marker": ".", "markersize": 3, "markeredgecolor": GREY, "rasterized": len(error) > MANY_POINTS}
    ax.boxplot([error[index == each] for each in filled], flierprops=far, patch_artist=True, **place, **BOX)
    ax.update_datalim([(0, 0), (1, 0)])
    return _finish(ax, "Confidence", "Error", title="box width: root of number of rows", top=error.max())


def pit_histogram(pit: ArrayLike, *, n_bins: int = 10, label: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw how many rows have their truth in each tenth of their predicted distribution: equally many if it is right.

    A hump means distributions that are too wide, a valley too narrow ones, a slope that they lie too high or too low.
    The band holds 95 % of the bars by chance, with a fixed distribution.

    Examples
    --------
    >>> ax = pit_histogram([0.1, 0.3, 0.6, 0.9], n_bins=2)
    >>> ax.get_legend_handles_labels()[1]
    ['if calibrated', 'by chance', '4 rows']
    """
    from scipy.stats import binom

    owner = "pit_histogram"
    check_number(owner, "n_bins", n_bins, above=1, closed="left", whole=True)
    values = check_floats(owner, "pit", pit)
    check_range(owner, "pit", values, low=0.0, high=1.0)
    ax = _prepare_axes(ax)
    shares = np.histogram(values, bins=n_bins, range=(0.0, 1.0))[0] / len(values)
    ax.axhline(1 / n_bins, label="if calibrated", **REFERENCE)
    low, high = binom.ppf([0.025, 0.975], len(values), 1 / n_bins) / len(values)
    ax.axhspan(low, high, color=GREY, alpha=0.15, linewidth=0, label="by chance")
    edges = np.linspace(0, 1, n_bins + 1)
    ax.stairs(shares, edges, fill=True, color=BLUE, alpha=0.7, label=_join_label(label, f"{len(values):,} rows"))
    ax.update_datalim([(0, 0), (1, 0)])
    return _finish(ax, "Place of the truth in its distribution (PIT)", "Share of rows", top=max(shares.max(), high))


def quantile_bands(
    x: ArrayLike, quantiles: ArrayLike, q: ArrayLike, *, y_true: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Draw a fan: bands between pairs of quantiles, the median, and the truth if it is given, over one number per row.

    Parameters
    ----------
    x : array of shape (n,)
        Where each row is drawn, such as a feature or a time.
    quantiles : array of shape (n, Q)
        As `predict_quantiles` gives them.
    q : array of shape (Q,)
        Their levels, rising. The first and the last are a pair, and so on; one in the middle is a line.
    y_true : array of shape (n,), optional
    ax : Axes, optional

    Examples
    --------
    >>> ax = quantile_bands([0.0, 1.0], [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]], [0.05, 0.5, 0.95])
    >>> ax.get_legend_handles_labels()[1]
    ['5 % to 95 %', '50 %']
    """
    owner = "quantile_bands"
    place, levels = check_floats(owner, "x", x), check_floats(owner, "q", q)
    bands = check_floats(owner, "quantiles", quantiles, n_dims=(2,))
    if bands.shape != (len(place), len(levels)):
        raise parameter_error(owner, "quantiles", f"an array of shape ({len(place)}, {len(levels)})", bands.shape)
    check_range(owner, "q", levels, low=0.0, high=1.0)
    ax = _prepare_axes(ax)
    order = np.argsort(place, kind="stable")
    for first in range(len(levels) // 2):
        low, high = bands[order, first], bands[order, -1 - first]
        name = f"{100 * levels[first]:g} % to {100 * levels[-1 - first]:g} %"
        ax.fill_between(place[order], low, high, color=BLUE, alpha=0.2, linewidth=0, label=name)
    if len(levels) % 2:
        middle = len(levels) // 2
        ax.plot(place[order], bands[order, middle], color=BLUE, linewidth=2, label=f"{100 * levels[middle]:g} %")
    if y_true is not None:
        true = check_floats(owner, "y_true", y_true)
        ax.scatter(place, true, s=10, color=ORANGE, linewidths=0, zorder=3, label="truth")
    return _finish(ax, "Row", "Target")


def reliability(correct: ArrayLike, confidence: ArrayLike, *, n_bins: int = 15, ax: Axes | None = None) -> Axes:
    """Draw the share of right predictions in each of `n_bins` equal confidence bins against their mean confidence.

    The area of a dot is the share of the rows in its bin, and its bar is the gap that the ECE averages.

    Examples
    --------
    >>> reliability([True, False, True], [0.25, 0.25, 1.0], n_bins=2).get_legend_handles_labels()[1]
    ['no gap', 'ECE 0.167']
    """
    index, confidence, correct, weights = _bin_by_confidence(
        "reliability", n_bins, confidence=confidence, correct=correct
    )
    ax = _prepare_axes(ax)
    _draw_diagonal(ax, "no gap")
    mass, x, y = average_bins(index, weights, confidence, correct)
    ax.vlines(x, x, y, color=VERMILLION, alpha=0.6, linewidth=2)
    _draw_dots(ax, x, y, mass, f"ECE {metrics.expected_calibration_error(correct, confidence, n_bins=n_bins):.3g}")
    return _finish(ax, "Confidence", "Share of right predictions", title="dot area: share of rows")


def risk_coverage(
    error: ArrayLike, uncertainty: ArrayLike, *, label: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the mean error of the accepted rows as more and more are accepted, least uncertain first, with the AURC.

    The dashed oracle accepts rows in the order of their errors; it is drawn once for methods with the same errors.

    Examples
    --------
    >>> ax = risk_coverage([0.0, 4.0, 2.0, 2.0], [0.1, 0.9, 0.5, 0.3], label="HCM")
    >>> ax = risk_coverage([0.0, 4.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0], label="constant", ax=ax)
    >>> ax.get_legend_handles_labels()[1]
    ['oracle', 'HCM: AURC 1.08', 'constant: AURC 2']
    """
    error, uncertainty, _ = check_rows("risk_coverage", None, error=error, uncertainty=uncertainty)
    ax = _prepare_axes(ax)
    coverage, risk = metrics.risk_coverage_curve(error, error)
    if not any(line.get_label() == "oracle" and np.array_equal(line.get_ydata(), risk) for line in ax.lines):
        ax.plot(coverage, risk, label="oracle", **REFERENCE)
    coverage, risk = metrics.risk_coverage_curve(error, uncertainty)
    ax.plot(
        coverage, risk, linewidth=2, label=_join_label(label, f"AURC {_format_size(metrics.aurc(error, uncertainty))}")
    )
    ax.update_datalim([(0, 0)])
    return _finish(ax, "Coverage: share of rows accepted", "Risk: mean error of the accepted", top=risk.max())


def uncertainty_error(error: ArrayLike, uncertainty: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw error against uncertainty, with the line below which the error should not fall.

    By Proposition 1 of the paper, the norm of the error of R·d is at least u where R is right; give both in one unit.
    At most 20,000 rows are drawn, evenly spread over the ordered uncertainty.

    Examples
    --------
    >>> uncertainty_error([3.0, 1.0, 2.0, 4.0], [1.0, 2.0, 1.5, 1.0]).get_legend_handles_labels()[1]
    ['error = uncertainty', 'above the line: 75.0%', 'on or below: 25.0%']
    """
    error, uncertainty, _ = check_rows("uncertainty_error", None, error=error, uncertainty=uncertainty)
    check_range("uncertainty_error", "uncertainty", uncertainty, low=0.0)
    ax = _prepare_axes(ax)
    ax.plot([0, uncertainty.max()], [0, uncertainty.max()], label="error = uncertainty", zorder=4, **REFERENCE)
    rows = pick_evenly(uncertainty, MOST_POINTS)
    x, y = uncertainty[rows], error[rows]
    above = 1.0 - metrics.coverage_at_sigma(error, uncertainty, k=1)
    _draw_good_and_bad(ax, x, y, y > x, above, "above the line", "on or below")
    return _finish(ax, "Uncertainty", "Error", title=_describe_choice(len(rows), len(error)), top=ax.dataLim.y1)


def direction_norms(direction_norm: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw a histogram of ‖d‖: below 1 the direction shrinks (ambiguity), above 1 it overshoots (extrapolation).

    Rows exactly on the sphere, as when all trees of a forest agree, are neither and have their own colour.

    Examples
    --------
    >>> direction_norms([0.4, 0.8, 0.9, 1.1]).get_legend_handles_labels()[1]
    ['shrink, below 1: 75.0%', 'overshoot, above 1: 25.0%']
    """
    norm = check_floats("direction_norms", "direction_norm", direction_norm)
    check_range("direction_norms", "direction_norm", norm, low=0.0)
    ax = _prepare_axes(ax)
    norm = np.where(np.abs(norm - 1.0) <= ON_SPHERE, 1.0, norm)
    # Bins start at 1, so that no bar mixes the two sides, and reach beyond the smallest and the largest norm.
    below, above = 1.0 - min(norm.min(), 1.0), max(norm.max(), 1.0) - 1.0
    step = max((below + above) / np.clip(np.sqrt(len(norm)), 10, 50), 1e-3)
    edges = 1.0 + step * np.arange(-np.floor(below / step) - 1, np.floor(above / step) + 2)
    parts = {"shrink, below 1": norm[norm < 1.0], "overshoot, above 1": norm[norm > 1.0]}
    if len(on_sphere := norm[norm == 1.0]):
        parts["on the sphere, 1"] = on_sphere
    labels = [f"{name}: {len(part) / len(norm):.1%}" for name, part in parts.items()]
    ax.hist(list(parts.values()), edges, stacked=True, color=[BLUE, ORANGE, GREY][: len(parts)], label=labels)
    top = ax.dataLim.y1
    ax.plot([1, 1], [0, top], **REFERENCE)
    ax.locator_params(axis="y", integer=True)
    return _finish(ax, "Norm of the direction", "Number of rows", top=top)


def intervals(
    value: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, y_true: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Draw prediction intervals in the order of the prediction, with the true values inside and outside of them.

    Pass one output at a time. At most 200 rows are drawn, evenly spread over the order.

    Examples
    --------
    >>> intervals([1.0, 2.0], [0.0, 1.5], [2.0, 2.5], y_true=[0.5, 3.0]).get_legend_handles_labels()[1]
    ['interval, mean width 1.5', 'prediction', 'true value inside: 50.0%', 'outside: 50.0%']
    """
    known: dict[str, Any] = {} if y_true is None else {"y_true": y_true}
    value, lower, upper, *true, _ = check_rows("intervals", None, value=value, lower=lower, upper=upper, **known)
    width = metrics.interval_width(lower, upper)
    ax = _prepare_axes(ax)
    rows = pick_evenly(value, MOST_INTERVALS)
    rank, low, high = np.arange(1, len(rows) + 1), lower[rows], upper[rows]
    thick = float(np.clip(250 / len(rows), 1.5, 8.0))
    ax.vlines(
        rank, low, high, color=GREY, alpha=0.35, linewidth=thick, label=f"interval, mean width {_format_size(width)}"
    )
    ax.plot(rank, value[rows], color=ORANGE, linewidth=1.5, label="prediction")
    for each in true:
        y, share = each[rows], float(metrics.interval_coverage(each, lower, upper))
        _draw_good_and_bad(ax, rank, y, (low <= y) & (y <= high), share, "true value inside", "outside")
    note = _describe_choice(len(rows), len(value))
    return _finish(ax, "Rows in the order of the prediction", "Value", title=note, top=ax.dataLim.y1)


def overview(model: Any, X: Any, y: ArrayLike) -> Any:
    """Draw what a calibrated model for one output is worth on rows with known targets, and return the figure.

    Intervals with the true values, the error if rows are rejected by their uncertainty, uncertainty beside error and,
    for a model with frames, noise beside novelty.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from onsphere import HCMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HCMRegressor(calibration="split", random_state=0).fit(X[:300], y[:300])
    >>> len(overview(model, X[300:], y[300:]).axes)
    4
    """
    from matplotlib.figure import Figure

    result: Any = model.assess(X)
    if result.probabilities is not None:
        raise InvalidTypeError(
            f"overview is for models that predict numbers. Got {type(model).__name__}, which predicts classes. Use "
            "reliability and risk_coverage."
        )
    if result.lower is None:
        raise NotCalibratedError(
            f"overview needs a calibrated {type(model).__name__}. Call calibrate(X, y) on rows that were not trained "
            "on, or fit with calibration='split' or 'cv'."
        )
    error = np.abs(result.value - np.asarray(y, dtype=np.float64))
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    intervals(result.value, result.lower, result.upper, y_true=y, ax=axes[0])
    risk_coverage(error, result.uncertainty, ax=axes[1])
    uncertainty_error(error, result.uncertainty, ax=axes[2])
    if result.novelty is None:
        axes[3].remove()
    else:
        noise_novelty(result.noise, result.novelty, accepted=result.accepted, ax=axes[3])
    return figure


def noise_novelty(
    noise: ArrayLike,
    novelty: ArrayLike,
    *,
    accepted: ArrayLike | None = None,
    max_noise: float | None = None,
    max_novelty: float = 0.0,
    ax: Axes | None = None,
) -> Axes:
    """Draw the noise of each row against its novelty, with a line between quiet and noisy, and known and novel rows.

    Rows with a novelty of 0 would lie on one line: they are drawn side by side, in a band at the left. At most 20,000
    rows are drawn, evenly spread over the ordered noise.

    Parameters
    ----------
    noise, novelty : arrays of shape (n,)
        Of an Assessment; for several outputs, one of their noises or a mean of them.
    accepted : bool array of shape (n,), optional
        Rejected rows get another colour and shape.
    max_noise : float, optional
        The noise up to which a row is quiet; by default four fifths of the rows are.
    max_novelty : float in [0, 1), default 0
        The novelty up to which a row is known.

    Examples
    --------
    >>> ax = noise_novelty([1.0, 2.0, 9.0, 2.0], [0.0, 0.0, 0.0, 0.8], accepted=[True, True, False, False])
    >>> [text.get_text() for text in ax.texts]
    ['known: 75.0%', 'novel: 25.0%', 'quiet: 75.0%', 'noisy: 25.0%']
    """
    check_number("noise_novelty", "max_novelty", max_novelty, above=0, below=1, closed="left")
    given: dict[str, Any] = {} if accepted is None else {"accepted": accepted}
    noise, novelty, *taken, _ = check_rows("noise_novelty", None, noise=noise, novelty=novelty, **given)
    check_range("noise_novelty", "novelty", novelty, low=0.0, high=1.0)
    limit = float(np.quantile(noise, QUIET_SHARE)) if max_noise is None else float(max_noise)
    ax = _prepare_axes(ax)
    rows = pick_evenly(noise, MOST_POINTS)
    x, y = novelty[rows], noise[rows]
    # In an order that has nothing to do with the noise: the order of the rows.
    known_place = -_BAND * (0.1 + 0.8 * (np.argsort(np.argsort(rows)) + 0.5) / len(rows))
    x = np.where(x > 0, x, known_place)
    if taken:
        share = float(taken[0].mean())
        _draw_good_and_bad(ax, x, y, taken[0][rows] > 0, share, "accepted", "rejected")
    else:
        ax.scatter(x, y, s=18, color=BLUE, linewidths=0, alpha=0.5, zorder=3, label=f"{len(noise):,} rows")
    ax.axvline(max_novelty, **REFERENCE)
    ax.axhline(limit, **REFERENCE)
    _finish(ax, "Novelty", "Noise", title=_describe_choice(len(rows), len(noise)), top=y.max(), corner="upper right")
    ax.set_xlim(-_BAND, 1.02)
    ax.set_xticks([-_BAND / 2, 0.25, 0.5, 0.75, 1.0], ["0", "0.25", "0.5", "0.75", "1"])
    known, quiet = float(np.mean(novelty <= max_novelty)), float(np.mean(noise <= limit))
    small: dict[str, Any] = {"fontsize": "small", "color": GREY}
    for text, share, left in (("known", known, True), ("novel", 1 - known, False)):
        place, side = (0.0, "left") if left else (1.0, "right")
        ax.text(place, 1.01, f"{text}: {share:.1%}", transform=ax.transAxes, ha=side, va="bottom", **small)
    for text, share, low in (("quiet", quiet, True), ("noisy", 1 - quiet, False)):
        place, side = (0.0, "bottom") if low else (1.0, "top")
        ax.text(1.01, place, f"{text}: {share:.1%}", transform=ax.transAxes, va=side, rotation=270, **small)
    return ax


def evidence(
    log_capital: ArrayLike,
    *,
    alpha: float = 0.01,
    alarmed_at: int | None = None,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the evidence of drift after each row: the log_capital of `DriftMonitor.update`, with the alarm line.

    If several scores are watched, draw the `evidence` of each on the same axes, with its name as the label.

    Examples
    --------
    >>> evidence([0.0, 1.0, 5.0], alpha=0.01, alarmed_at=3).get_legend_handles_labels()[1]
    ['evidence', 'alarm at 4.6', 'alarm at row 3']
    """
    check_number("evidence", "alpha", alpha, above=0, below=1)
    capital, _ = check_rows("evidence", None, log_capital=log_capital)
    ax = _prepare_axes(ax)
    rows, limit = np.arange(1, len(capital) + 1), -math.log(alpha)
    step = max(len(rows) // MOST_POINTS, 1)
    ax.plot(rows[::step], capital[::step], linewidth=1.5, label=label or "evidence")
    line = f"alarm at {limit:.1f}"
    if line not in ax.get_legend_handles_labels()[1]:
        ax.plot(rows[[0, -1]], [limit, limit], **REFERENCE, label=line)
    if alarmed_at is not None:
        ax.axvline(alarmed_at, color=VERMILLION, linewidth=1.5, label=f"alarm at row {alarmed_at:,}")
    # Far above the line the evidence is overwhelming; showing it all would flatten the rest.
    ax.set_ylim(min(ax.dataLim.y0, 0.0) - 1, min(max(ax.dataLim.y1, limit) + 1, 4 * limit))
    return _finish(ax, "Row", "Evidence of drift (log capital)")


def roc(in_scores: ArrayLike, out_scores: ArrayLike, *, label: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the share of out-of-distribution rows flagged against that of in-distribution rows, for every threshold.

    Examples
    --------
    >>> roc([0.1, 0.2, 0.3], [0.2, 0.9], label="HCM").get_legend_handles_labels()[1]
    ['chance', 'HCM: AUROC 0.750']
    """
    is_out, scores, _ = stack_scores("roc", in_scores, out_scores, None, None)
    ax = _prepare_axes(ax)
    _draw_diagonal(ax, "chance")
    false_alarms, found, _ = roc_curve(is_out, scores)
    area = metrics.auroc(in_scores, out_scores)
    ax.plot(false_alarms, found, linewidth=2, label=_join_label(label, f"AUROC {area:.3f}"))
    return _finish(ax, "Share of in-distribution flagged", "Share of out-of-distribution flagged", corner="lower right")


def _prepare_axes(ax: Axes | None) -> Axes:
    """Return the axes to draw on, with our order of colours if it has no line yet."""
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise missing_extra_error("plots", "matplotlib", "report") from None
        ax = plt.subplots(layout="constrained")[1]
    if not hasattr(ax, "update_datalim"):
        raise parameter_error("plots", "ax", "one matplotlib Axes, or None for a new figure", ax)
    if not ax.lines:
        ax.set_prop_cycle(color=PALETTE)
    return ax


def _bin_by_confidence(owner: str, n_bins: int, **arrays: Any) -> tuple[Any, Floats, Floats, Floats]:
    """Return the confidence bin of each row, the checked arrays, confidence first, and the weights."""
    check_number(owner, "n_bins", n_bins, above=1, closed="left", whole=True)
    confidence, values, weights = check_rows(owner, None, **arrays)
    return bin_by_width(confidence, 0.0, 1.0, n_bins), confidence, values, weights


def _describe_choice(n_drawn: int, n_rows: int) -> str:
    return "" if n_drawn == n_rows else f"{n_drawn:,} of {n_rows:,} rows drawn"


def _format_size(size: float) -> str:
    """Return three digits, or all that come before the point."""
    return f"{size:,.0f}" if 1000 <= size < 1e9 else f"{size:.3g}"


def _join_label(label: str | None, text: str) -> str:
    return text if label is None else f"{label}: {text}"


def _draw_diagonal(ax: Axes, label: str) -> None:
    if label not in ax.get_legend_handles_labels()[1]:
        ax.plot([0, 1], [0, 1], label=label, **REFERENCE)
        ax.set_aspect("equal")


def _draw_dots(ax: Axes, x: Floats, y: Floats, mass: Floats, label: str) -> None:
    (line,) = ax.plot(x, y, linewidth=2, label=label)
    ax.scatter(x, y, s=10 + 600 * mass / mass.sum(), color=line.get_color(), linewidths=0, zorder=3)


def _draw_good_and_bad(ax: Axes, x: Any, y: Floats, is_good: Any, share: float, good: str, bad: str) -> None:
    """Draw points that differ in colour and shape, fainter the more there are, so that overlap shows as density."""
    alpha = float(np.clip(100 / len(x) ** 0.7, 0.12, 0.8))
    style: dict[str, Any] = {"alpha": alpha, "linewidths": 0, "zorder": 3, "rasterized": len(x) > MANY_POINTS}
    ax.scatter(x[is_good], y[is_good], s=18, color=BLUE, label=f"{good}: {share:.1%}", **style)
    ax.scatter(x[~is_good], y[~is_good], s=26, marker="X", color=VERMILLION, label=f"{bad}: {1 - share:.1%}", **style)


def _finish(ax: Axes, x: str, y: str, *, title: str = "", top: float | None = None, corner: Any = "upper left") -> Axes:
    """Add labels, a faint grid and a legend without a box; above `top`, leave room for the legend."""
    ax.set(xlabel=x, ylabel=y, axisbelow=True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    if top is not None:
        ax.update_datalim([(ax.dataLim.x0, top + 0.3 * (top - ax.dataLim.y0))])
    ax.autoscale_view()
    if top == 0:  # no errors at all: matplotlib would go below 0 as well
        ax.set_ylim(0, 1)
    handles, labels = ax.get_legend_handles_labels()
    legend = ax.legend(handles, labels, title=title, loc=corner, ncols=1 + (len(labels) > 3), **LEGEND)
    for handle in filter(None, legend.legend_handles):
        handle.set_alpha(1)
    return ax
