"""Plots: each draws the numbers of the metrics, in the documented colours, on the given axes."""

import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from sklearn.linear_model import Ridge
from sklearn.metrics import auc

from onsphere import HCMRegressor, InvalidInputError, MissingExtraError, metrics, plots

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RNG = np.random.default_rng(0)
ERROR = RNG.gamma(2.0, size=300)
UNCERTAINTY = ERROR * RNG.uniform(0.2, 1.1, size=300)
CONFIDENCE = np.exp(-UNCERTAINTY)
CORRECT = RNG.uniform(size=300) < CONFIDENCE
NORM = RNG.normal(0.95, 0.1, size=300)
VALUE = RNG.normal(size=300)

# Each plot with data that it can draw.
CALLS = {
    "calibration_curve": (ERROR, CONFIDENCE),
    "direction_norms": (NORM,),
    "error_by_confidence": (ERROR, CONFIDENCE),
    "evidence": (UNCERTAINTY,),
    "intervals": (VALUE, VALUE - 1.0, VALUE + 1.0),
    "noise_novelty": (UNCERTAINTY, CONFIDENCE),
    "pit_histogram": (CONFIDENCE,),
    "quantile_bands": (VALUE, np.stack([VALUE - 1.0, VALUE, VALUE + 1.0], axis=1), [0.05, 0.5, 0.95]),
    "reliability": (CORRECT, CONFIDENCE),
    "risk_coverage": (ERROR, UNCERTAINTY),
    "roc": (UNCERTAINTY, UNCERTAINTY + 0.5),
    "uncertainty_error": (ERROR, UNCERTAINTY),
}
every_plot = pytest.mark.parametrize("name", CALLS)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def ax():
    return plt.subplots(layout="constrained")[1]


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def line(ax, label):
    (found,) = [each for each in ax.lines if each.get_label() == label]
    return found


def colours(collection):
    return {tuple(colour[:3]) for colour in collection.get_facecolor()}


def rgb(colour):
    return to_rgba(colour)[:3]


# --- all plots ---


def test_every_public_plot_is_tested_and_the_rest_are_colours_and_styles():
    drawn = [*CALLS, "overview"]  # which draws a figure of its own
    assert sorted(drawn) == sorted(name for name in plots.__all__ if callable(getattr(plots, name)))
    assert all(name.isupper() for name in plots.__all__ if name not in drawn)


@every_plot
def test_draws_only_on_the_given_axes(name, ax):
    assert getattr(plots, name)(*CALLS[name], ax=ax) is ax
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.has_data()
    assert plt.get_fignums() == [ax.figure.number]


@every_plot
def test_makes_a_figure_if_no_axes_are_given(name):
    ax = getattr(plots, name)(*CALLS[name])
    assert plt.get_fignums() == [ax.figure.number]
    assert ax.figure.get_layout_engine() is not None
    ax.figure.canvas.draw()


@every_plot
def test_draws_a_single_row(name):
    getattr(plots, name)(
        *(array[:1] if len(array) == len(ERROR) else array for array in CALLS[name])
    ).figure.canvas.draw()


@every_plot
def test_paints_no_background(name, ax):
    before = ax.get_facecolor(), ax.figure.get_facecolor()
    getattr(plots, name)(*CALLS[name], ax=ax)
    assert (ax.get_facecolor(), ax.figure.get_facecolor()) == before
    assert not ax.get_legend().get_frame_on()


@every_plot
def test_bad_values_raise_and_leave_no_figure(name):
    for bad in ([np.nan], ["text"], [], [[0.5]]):
        with pytest.raises(InvalidInputError, match=r"Expected .* of " + name):
            getattr(plots, name)(*([bad] * len(CALLS[name])))
    assert plt.get_fignums() == []


@every_plot
def test_an_array_of_axes_is_rejected(name):
    axes = plt.subplots(1, 2)[1]
    with pytest.raises(InvalidInputError, match="'ax' parameter of plots must be one matplotlib Axes"):
        getattr(plots, name)(*CALLS[name], ax=axes)


@every_plot
def test_missing_matplotlib_names_the_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtraError, match=r"plots needs matplotlib.*pip install 'onsphere\[report\]'"):
        getattr(plots, name)(*CALLS[name])


@pytest.mark.parametrize("name", ["calibration_curve", "error_by_confidence", "reliability"])
@pytest.mark.parametrize("n_bins", [0, 2.5, True])
def test_a_bad_number_of_bins_is_rejected(name, n_bins):
    with pytest.raises(InvalidInputError, match=f"'n_bins' parameter of {name}"):
        getattr(plots, name)(*CALLS[name], n_bins=n_bins)


@pytest.mark.parametrize("name", ["calibration_curve", "risk_coverage", "roc"])
def test_methods_on_one_axes_have_names_and_colours(name, ax):
    for label in ("first", "second"):
        getattr(plots, name)(*CALLS[name], label=label, ax=ax)
    drawn = [each for each in ax.lines if each.get_linestyle() == "-"]
    assert [each.get_label().split(":")[0] for each in drawn] == ["first", "second"]
    assert [each.get_color() for each in drawn] == list(plots.PALETTE[:2])
    assert len(ax.lines) - len(drawn) == (name != "calibration_curve")
    assert len(labels(ax)) == len(ax.lines)


def test_more_methods_do_not_add_more_room_for_the_legend(ax):
    plots.risk_coverage(ERROR, UNCERTAINTY, ax=ax)
    before = ax.get_ylim()
    plots.risk_coverage(ERROR, UNCERTAINTY, ax=ax)
    assert ax.get_ylim() == before
    assert before[1] > 1.25 * ax.lines[-1].get_ydata().max()


# --- each plot ---


def test_calibration_curve_is_the_mean_error_per_bin(ax):
    # Bins of width ½: errors 4 and 2 at 0.1 and 0.3, error 1 at 0.9.
    plots.calibration_curve([4.0, 2.0, 1.0], [0.1, 0.3, 0.9], n_bins=2, ax=ax)
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[0.2, 3.0], [0.9, 1.0]])
    areas = ax.collections[0].get_sizes() - 10
    assert areas[0] == pytest.approx(2 * areas[1])
    assert labels(ax) == ["3 rows"]


def test_boxes_are_those_of_the_bins_that_hold_rows(ax):
    plots.error_by_confidence([1.0, 2.0, 6.0, 5.0], [0.5, 0.52, 0.58, 0.95], ax=ax)
    assert len(ax.patches) == 2
    medians = [each for each in ax.lines if each.get_color() == plots.ORANGE]
    assert [each.get_ydata()[0] for each in medians] == [2.0, 5.0]
    assert [np.mean(each.get_xdata()) for each in medians] == pytest.approx([0.55, 0.95])
    widths = [np.ptp(each.get_xdata()) for each in medians]
    assert widths[0] == pytest.approx(np.sqrt(3) * widths[1])


def test_reliability_shows_accuracy_gap_and_ece(ax):
    plots.reliability([1, 0, 1, 1], [0.25, 0.25, 0.75, 1.0], n_bins=2, ax=ax)
    np.testing.assert_allclose(line(ax, "ECE 0.188").get_xydata(), [[0.25, 0.5], [0.875, 1.0]])
    np.testing.assert_allclose(line(ax, "no gap").get_xydata(), [[0, 0], [1, 1]])
    gaps = [np.ptp(segment[:, 1]) for segment in ax.collections[0].get_segments()]
    assert np.mean(gaps) == metrics.expected_calibration_error([1, 0, 1, 1], [0.25, 0.25, 0.75, 1.0], n_bins=2)


def test_risk_coverage_draws_curve_and_oracle(ax):
    plots.risk_coverage(ERROR, UNCERTAINTY, label="HCM", ax=ax)
    drawn = line(ax, f"HCM: AURC {metrics.aurc(ERROR, UNCERTAINTY):.3g}")
    np.testing.assert_array_equal(drawn.get_data(), metrics.risk_coverage_curve(ERROR, UNCERTAINTY))
    oracle = line(ax, "oracle")
    np.testing.assert_array_equal(oracle.get_data(), metrics.risk_coverage_curve(ERROR, ERROR))
    assert oracle.get_linestyle() == "--"


def test_large_risks_have_no_exponent_and_no_risk_is_below_zero(ax):
    plots.risk_coverage(np.full(4, 123_456.0), UNCERTAINTY[:4], ax=ax)
    assert line(ax, "AURC 123,456")
    ax.clear()
    plots.risk_coverage(np.zeros(4), UNCERTAINTY[:4], ax=ax)
    assert ax.get_ylim() == (0, 1)


def test_other_errors_have_another_oracle(ax):
    for error in (ERROR, ERROR, 2.0 * ERROR):
        plots.risk_coverage(error, UNCERTAINTY, ax=ax)
    assert [each.get_label() for each in ax.lines].count("oracle") == 2


def test_scatter_shows_the_share_above_the_line(ax):
    plots.uncertainty_error([3.0, 1.0, 2.0, 4.0], [1.0, 2.0, 2.0, 1.0], ax=ax)
    assert labels(ax) == ["error = uncertainty", "above the line: 50.0%", "on or below: 50.0%"]
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[0, 0], [2, 2]])
    above, below = ax.collections
    np.testing.assert_array_equal(above.get_offsets(), [[1, 3], [1, 4]])
    np.testing.assert_array_equal(below.get_offsets(), [[2, 1], [2, 2]])
    assert colours(above) == {rgb(plots.BLUE)}
    assert colours(below) == {rgb(plots.VERMILLION)}
    assert not above.get_rasterized()


def test_large_scatter_is_thinned_and_says_so(ax):
    uncertainty = RNG.gamma(2.0, size=100_000)
    error = uncertainty * RNG.uniform(0.5, 3.0, size=100_000)
    plots.uncertainty_error(error, uncertainty, ax=ax)
    assert sum(len(each.get_offsets()) for each in ax.collections) == plots.MOST_POINTS
    assert all(each.get_rasterized() for each in ax.collections)
    assert ax.get_legend().get_title().get_text() == "20,000 of 100,000 rows drawn"
    assert f"above the line: {np.mean(error > uncertainty):.1%}" in labels(ax)


def test_scatter_rejects_a_negative_uncertainty():
    with pytest.raises(InvalidInputError, match="'uncertainty' of uncertainty_error to lie in"):
        plots.uncertainty_error([1.0], [-1.0])


def bars(ax):
    """Left edge, height and colour of each bar that holds a row."""
    return [(bar.get_x(), bar.get_height(), bar.get_facecolor()[:3]) for bar in ax.patches if bar.get_height()]


@pytest.mark.parametrize("n", [1, 2, 10, 300, 5000])
def test_norms_split_at_one(n, ax):
    norm = RNG.normal(0.95, 0.1, size=n)
    plots.direction_norms(norm, ax=ax)
    drawn = bars(ax)
    assert all(colour == rgb(plots.BLUE if left < 1 - 1e-12 else plots.ORANGE) for left, _, colour in drawn)
    assert sum(height for _, height, _ in drawn) == n
    assert sum(height for left, height, _ in drawn if left < 1 - 1e-12) == np.sum(norm < 1)
    assert set(ax.lines[0].get_xdata()) == {1}
    assert labels(ax) == [f"shrink, below 1: {np.mean(norm < 1):.1%}", f"overshoot, above 1: {np.mean(norm > 1):.1%}"]


def test_norms_on_the_sphere_count_on_neither_side(ax):
    plots.direction_norms([0.5, 1.0, 1.0 - 6e-8, 1.5], ax=ax)
    assert labels(ax)[2] == "on the sphere, 1: 50.0%"
    assert [(height, colour) for left, height, colour in bars(ax) if left == 1] == [(2, rgb(plots.GREY))]


def test_negative_norms_are_rejected():
    with pytest.raises(InvalidInputError, match="'direction_norm' of direction_norms to lie in"):
        plots.direction_norms([-0.5])


def test_intervals_in_the_order_of_the_prediction(ax):
    plots.intervals([2.0, 1.0, 3.0], [1.0, 0.5, 2.0], [3.0, 1.5, 4.0], y_true=[2.5, 9.0, 2.0], ax=ax)
    spans, inside, outside = ax.collections
    assert [segment[:, 1].tolist() for segment in spans.get_segments()] == [[0.5, 1.5], [1.0, 3.0], [2.0, 4.0]]
    assert line(ax, "prediction").get_ydata().tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(inside.get_offsets(), [[2, 2.5], [3, 2.0]])
    np.testing.assert_array_equal(outside.get_offsets(), [[1, 9.0]])
    assert colours(inside) == {rgb(plots.BLUE)}
    assert colours(outside) == {rgb(plots.VERMILLION)}
    assert labels(ax) == ["interval, mean width 1.67", "prediction", "true value inside: 66.7%", "outside: 33.3%"]


def test_intervals_without_true_values(ax):
    plots.intervals([2.0, 1.0], [1.0, 0.5], [3.0, 1.5], ax=ax)
    assert labels(ax) == ["interval, mean width 1.5", "prediction"]


def test_many_intervals_are_thinned_and_say_so(ax):
    value = RNG.normal(size=100_000)
    true = value + RNG.normal(size=100_000)
    plots.intervals(value, value - 1.0, value + 1.0, y_true=true, ax=ax)
    assert len(ax.collections[0].get_segments()) == plots.MOST_INTERVALS
    assert ax.get_legend().get_title().get_text() == "200 of 100,000 rows drawn"
    assert f"true value inside: {metrics.interval_coverage(true, value - 1.0, value + 1.0):.1%}" in labels(ax)


@pytest.mark.parametrize("bad", [{"lower": [5.0, 5.0]}, {"y_true": [1.0]}, {"y_true": [[1.0], [2.0]]}])
def test_intervals_reject_crossed_bounds_and_other_shapes(bad):
    good = {"value": [1.0, 2.0], "lower": [0.0, 1.0], "upper": [2.0, 3.0]}
    with pytest.raises(InvalidInputError):
        plots.intervals(**(good | bad))
    assert plt.get_fignums() == []


def test_area_under_roc_is_the_auroc(ax):
    inside, outside = RNG.normal(size=400), RNG.normal(1.0, size=300)
    plots.roc(inside, outside, ax=ax)
    area = metrics.auroc(inside, outside)
    assert auc(*line(ax, f"AUROC {area:.3f}").get_data()) == pytest.approx(area, rel=1e-12)
    np.testing.assert_array_equal(line(ax, "chance").get_xydata(), [[0, 0], [1, 1]])


# --- evidence of drift ---


def test_evidence_is_cut_off_far_above_the_alarm_line(ax):
    capital = np.r_[np.zeros(50), np.linspace(0, 500, 50)]
    plots.evidence(capital, alpha=0.05, alarmed_at=51, ax=ax)
    np.testing.assert_allclose(line(ax, "evidence").get_ydata(), capital)
    assert labels(ax) == ["evidence", "alarm at 3.0", "alarm at row 51"]
    assert ax.get_ylim() == pytest.approx((-1, 4 * np.log(20)))
    with pytest.raises(InvalidInputError, match="'alpha' parameter"):
        plots.evidence(capital, alpha=2)


def test_the_evidence_of_several_scores_shares_one_alarm_line(ax):
    plots.evidence([0.0, 1.0, 9.0], alpha=0.05, alarmed_at=3, label="uncertainty", ax=ax)
    plots.evidence([0.0, -7.0, -2.0], alpha=0.05, label="novelty", ax=ax)
    assert labels(ax) == ["uncertainty", "alarm at 3.0", "alarm at row 3", "novelty"]
    assert line(ax, "uncertainty").get_color() != line(ax, "novelty").get_color()
    assert ax.get_ylim() == pytest.approx((-8, 10))


# --- noise and novelty ---


def test_rejected_rows_differ_in_colour_and_shape_among_noise_and_novelty(ax):
    accepted = np.array([True, True, False, False, True])
    plots.noise_novelty([1.0, 2.0, 9.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.8, 0.3], accepted=accepted, ax=ax)
    assert labels(ax) == ["accepted: 60.0%", "rejected: 40.0%"]
    good, bad = ax.collections
    assert (colours(good), colours(bad)) == ({rgb(plots.BLUE)}, {rgb(plots.VERMILLION)})
    assert sorted(bad.get_offsets()[:, 1]) == [2.0, 9.0]
    # Novelty is where it is; rows without have a band of their own, no two at one place.
    places = np.vstack([good.get_offsets(), bad.get_offsets()])
    assert {0.8, 0.3} <= set(places[:, 0])
    assert len(set(places[:, 0])) == 5
    assert places[:, 0].min() > ax.get_xlim()[0]


def test_lines_part_quiet_from_noisy_and_known_from_novel(ax):
    noise, novelty = np.arange(10.0), np.arange(10) / 10
    plots.noise_novelty(noise, novelty, max_noise=4.0, max_novelty=0.6, ax=ax)
    assert [text.get_text() for text in ax.texts] == ["known: 70.0%", "novel: 30.0%", "quiet: 50.0%", "noisy: 50.0%"]
    upright, level = ax.lines
    assert (upright.get_xdata()[0], level.get_ydata()[0]) == (0.6, 4.0)
    assert labels(ax) == ["10 rows"]
    for options, words in (
        ({"max_novelty": 1.0}, "'max_novelty' parameter"),
        ({"accepted": [True]}, "arrays of one shape"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            plots.noise_novelty(noise, novelty, **options)
    with pytest.raises(InvalidInputError, match="novelty"):
        plots.noise_novelty(noise, noise)


def test_an_overview_of_a_model_in_one_line():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=200)
    for frames, n_axes in (("all", 4), ("target", 3)):
        model = HCMRegressor(Ridge(), frames=frames, calibration="split", random_state=0).fit(X, y)
        assert len(plots.overview(model, X, y).axes) == n_axes


def test_bars_of_a_pit_histogram_are_the_shares_of_rows():
    ax = plots.pit_histogram([0.05, 0.15, 0.12, 0.95], label="HCM")
    shares = ax.patches[-1].get_data().values
    np.testing.assert_allclose(shares[[0, 1, 9]], [0.25, 0.5, 0.25])
    assert shares.sum() == pytest.approx(1)
    assert "HCM: 4 rows" in ax.get_legend_handles_labels()[1]
    with pytest.raises(InvalidInputError, match=r"'pit' of pit_histogram to lie in \[0, 1\]"):
        plots.pit_histogram([1.5])


def test_bands_go_from_the_outermost_pair_to_the_median_and_show_the_truth():
    quantiles = np.sort(RNG.normal(size=(30, 5)), axis=1)
    x, truth = RNG.permutation(30).astype(float), RNG.normal(size=30)
    ax = plots.quantile_bands(x, quantiles, [0.05, 0.25, 0.5, 0.75, 0.95], y_true=truth)
    assert ax.get_legend_handles_labels()[1] == ["5 % to 95 %", "25 % to 75 %", "50 %", "truth"]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), quantiles[np.argsort(x), 2])
    assert plots.quantile_bands(x, quantiles[:, :2], [0.1, 0.9]).get_legend_handles_labels()[1] == ["10 % to 90 %"]
    with pytest.raises(InvalidInputError, match=r"an array of shape \(30, 2\)"):
        plots.quantile_bands(x, quantiles, [0.1, 0.9])
