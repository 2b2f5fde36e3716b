"""Distributions, domains and shapes of fitted models: what users ask for, and that it survives a file and a graph."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge

from onsphere import HCMRegressor, InvalidInputError, NotCalibratedError, OnsphereWarning, export_onnx, load
from onsphere.export import open_graph, prepare_inputs
from onsphere.metrics import interval_coverage, winkler_score
from onsphere.sphere import Domain

LEVELS = [0.05, 0.5, 0.95]


def draw_prices(n, seed=0):
    """Prices over more than four orders of magnitude: a product of several effects, with noise in proportion."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    return X, np.exp(5 + X @ np.array([1.2, 0.8, 0.6, 0.4, 0.2]) + 0.5 * rng.normal(size=n))


def draw_counts(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, size=(n, 3))
    return X, rng.poisson(1.0 + 4 * X[:, 0]).astype(float)


def draw_skewed(n, seed=0):
    """Errors that are skewed to the left for negative features and to the right for others; two outputs."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 2))
    errors = rng.exponential(size=(n, 2)) - 1.0
    return X, X + np.where(X[:, :1] < 0, -errors, errors)


def draw_sales(n, seed=0, *, whole=False):
    """Sales that are 0 with a probability that one feature tells, and otherwise depend on another."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    is_zero = rng.uniform(size=n) < 1 / (1 + np.exp(-1.5 * X[:, 1]))
    positive = (
        rng.poisson(np.exp(1.5 + 0.5 * X[:, 0])) if whole else np.exp(1 + 0.7 * X[:, 0] + 0.5 * rng.normal(size=n))
    )
    return X, np.where(is_zero, 0.0, positive)


@pytest.fixture(scope="module")
def sales():
    return HCMRegressor(domain="auto", random_state=0).fit(*draw_sales(600)).calibrate(*draw_sales(600, 1))


@pytest.fixture(scope="module")
def prices():
    return HCMRegressor(domain="auto", random_state=0).fit(*draw_prices(500)).calibrate(*draw_prices(199, 1))


@pytest.fixture(scope="module")
def counts():
    return HCMRegressor(Ridge(), domain="auto").fit(*draw_counts(400)).calibrate(*draw_counts(199, 1))


@pytest.fixture(scope="module")
def plain():
    return HCMRegressor(Ridge()).fit(*draw_counts(400)).calibrate(*draw_counts(199, 1))


@pytest.fixture(scope="module")
def skewed():
    model = HCMRegressor(Ridge(), shape="auto", domain=(-30, 30), random_state=0)
    return model.fit(*draw_skewed(600)).calibrate(*draw_skewed(399, 1))


def test_prices_are_learned_on_the_logarithm_and_it_is_said(prices):
    assert prices.domain_.scale == "log"
    assert prices.domain_.low == 0
    assert "all 500 targets are numbers of at least 0" in prices.domain_.reason
    assert "scale of the logarithm score" in prices.domain_.reason


def test_prices_stay_positive_and_their_intervals_score_better(prices):
    X, y = draw_prices(2000, 2)
    plain = HCMRegressor(random_state=0).fit(*draw_prices(500)).calibrate(*draw_prices(199, 1))
    ours, theirs = prices.predict_interval(X, tails="equal"), plain.predict_interval(X)
    assert (ours > 0).all()
    assert (theirs < 0).any()
    low, high = (winkler_score(y, *each.T, coverage=0.9) for each in (ours, theirs))
    assert low < 0.8 * high
    assert interval_coverage(y, *ours.T) == pytest.approx(0.9, abs=0.07)  # three standard errors, of 199 rows
    drawn = prices.sample(X[:50], 20, random_state=0)
    assert drawn.shape == (20, 50)
    assert (drawn > 0).all()
    value, sigma = prices.predict(X, return_std=True)
    assert (value > 0).all()
    cheap, dear = np.array_split(np.argsort(value), 2)
    assert sigma[dear].mean() > 5 * sigma[cheap].mean()  # noise in proportion
    assert np.median(prices.predict_mean(X) / prices.predict_median(X)) > 1.05  # the mean of a skewed target
    with pytest.raises(InvalidInputError, match="predict_radius needs a target that is learned as it is"):
        prices.predict_radius(X)


def test_errors_and_uncertainty_are_in_the_unit_of_the_target(prices):
    X, y = draw_prices(199, 1)
    np.testing.assert_allclose(prices.calibration_.error, np.abs(y - prices.predict(X)))
    learned = prices._predict(X)
    total = prices.domain_.convert_sigma(learned.value, learned.sigma)[:, 0]
    np.testing.assert_allclose(prices.predict_uncertainty(X), total)
    # Sigma is that of the errors of the calibration rows, on the scale that is learned.
    scores = (np.log(y) - learned.value[:, 0]) / prices._calibrate_sigma(learned.sigma)[:, 0]
    assert np.sqrt(np.mean(scores**2)) == pytest.approx(1)
    assert (prices.predict_noise(X) > 0).all()


def test_counts_are_whole_and_have_a_probability_of_zero(counts):
    X, y = draw_counts(4000, 2)
    assert counts.domain_.is_whole
    assert counts.domain_.share_zero == np.mean(draw_counts(400)[1] == 0)
    for found in (counts.predict_interval(X), counts.predict_quantiles(X, LEVELS), counts.sample(X, random_state=0)):
        assert (found == np.round(found)).all()
        assert (found >= 0).all()
    zero = counts.predict_zero_probability(X)
    assert zero.mean() == pytest.approx(np.mean(y == 0), abs=0.06)
    assert zero[X[:, 0] < 0.2].mean() > 2 * zero[X[:, 0] > 0.8].mean()
    np.testing.assert_allclose(counts.predict_pdf(X, 0.0), zero)
    assert interval_coverage(y, *counts.predict_interval(X).T) > 0.87


def test_the_probability_of_zero_is_the_share_of_zeros(sales):
    X, y = draw_sales(4000, 2)
    zero = sales.predict_zero_probability(X)
    assert zero.mean() == pytest.approx(np.mean(y == 0), abs=0.05)
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        rows = (zero >= low) & (zero < low + 0.2)
        assert np.mean(y[rows] == 0) == pytest.approx(zero[rows].mean(), abs=0.12)
    draws = sales.sample(X, 20, random_state=0)
    np.testing.assert_allclose(np.mean(draws == 0, axis=0), zero, atol=0.6)
    assert np.mean(draws == 0) == pytest.approx(zero.mean(), abs=0.01)
    quantiles = sales.predict_quantiles(X, [0.3, 0.9])
    apart = np.abs(zero - 0.3) > 0.01
    np.testing.assert_array_equal(quantiles[apart, 0] == 0, zero[apart] > 0.3)
    assert np.mean(y <= quantiles[:, 1]) == pytest.approx(0.9, abs=0.05)
    places = sales.predict_distribution(X).pit(y, random_state=0)
    assert np.histogram(places, 5, (0, 1))[0].min() > 600  # of 800
    for tails in ("symmetric", "equal", "shortest"):
        assert interval_coverage(y, *sales.predict_interval(X, tails=tails).T) > 0.86


@pytest.mark.parametrize("calibration", [None, "cv"])
def test_counts_with_too_many_zeros_have_a_step_there(calibration):
    model = HCMRegressor(domain="count", calibration=calibration, random_state=0).fit(*draw_sales(400, whole=True))
    if calibration is None:
        model.calibrate(*draw_sales(400, 1, whole=True))
    X, y = draw_sales(3000, 2, whole=True)
    assert model.predict_zero_probability(X).mean() == pytest.approx(np.mean(y == 0), abs=0.06)


def test_a_probability_of_zero_needs_zeros(prices, plain):
    with pytest.raises(InvalidInputError, match=r"5% or more are 0\. Got 0\.0% of zeros"):
        prices.predict_zero_probability(draw_prices(3)[0])
    with pytest.raises(InvalidInputError, match="Got no such domain"):
        plain.predict_zero_probability(draw_counts(3)[0])


def test_targets_outside_the_domain_are_named_in_fit_and_in_calibrate(counts):
    X, y = draw_counts(60)
    with pytest.raises(InvalidInputError, match=r"Expected every target to be at least 0\. Got -1 in row 3"):
        HCMRegressor(Ridge(), domain="positive").fit(X, np.where(np.arange(60) == 3, -1.0, y))
    with pytest.raises(InvalidInputError, match=r"a whole number, at least 0\. Got 0\.5 in row 0"):
        counts.calibrate(X, np.where(np.arange(60) == 0, 0.5, y))


def test_shapes_of_their_own_follow_the_skew_of_each_row(skewed):
    assert skewed._shape.trees is not None
    left, right = skewed.predict_quantiles([[-0.6, 0.0], [0.6, 0.0]], [0.05, 0.95])[:, 0]
    value = skewed.predict([[-0.6, 0.0], [0.6, 0.0]])[:, 0]
    assert value[0] - left[0] > left[1] - value[0]
    assert right[1] - value[1] > value[1] - right[0]
    X, Y = draw_skewed(2000, 2)
    for tails in ("symmetric", "equal", "shortest"):
        ends = skewed.predict_interval(X, tails=tails)
        assert interval_coverage(Y, ends[..., 0], ends[..., 1]) > 0.86
    result = skewed.assess(X, tails="equal")
    np.testing.assert_array_equal(result.upper, skewed.predict_interval(X, tails="equal")[..., 1])


def test_sigma_has_the_level_of_the_errors_with_local_shapes_too():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2))
    y = X[:, 0] + rng.exponential(size=900) * (X[:, 1] > 0)
    trees = ExtraTreesRegressor(20, min_samples_leaf=3, random_state=0)
    model = HCMRegressor(trees, shape="local").fit(X[:400], y[:400])
    assert model._shape.trees is not None
    ends = model.calibrate(X[400:650], y[400:650]).predict_interval(X[650:])
    value, sigma = model.predict(X[650:], return_std=True)
    assert np.sqrt(np.mean(((y[650:] - value) / sigma) ** 2)) == pytest.approx(1.0, abs=0.3)
    model._sigma_factor = None  # of which intervals are independent
    np.testing.assert_array_equal(model.predict_interval(X[650:]), ends)
    still = np.stack([y, np.full(900, 3.0)], axis=1)  # an output that never varies has no level
    model = HCMRegressor(trees, shape="local").fit(X[:400], still[:400]).calibrate(X[400:650], still[400:650])
    assert model._sigma_factor is None


def test_folds_calibrate_the_scores_of_the_model_itself():
    """Each fold takes the scale and the kind of shape that all rows chose."""
    X, y = draw_prices(300)
    trees = ExtraTreesRegressor(50, min_samples_leaf=3, random_state=0)
    model = HCMRegressor(trees, domain="auto", shape="local", calibration="cv").fit(X, y)
    assert model.domain_.scale == "log"
    assert model._shape.trees is not None
    X, y = draw_prices(2000, 2)
    low, high = model.predict_quantiles(X, [0.05, 0.95]).T
    assert np.mean((y >= low) & (y <= high)) == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize("name", ["prices", "counts", "plain", "skewed", "sales"])
def test_files_and_graphs_keep_all_of_it(name, request, tmp_path):
    model = request.getfixturevalue(name)
    draw = {"prices": draw_prices, "skewed": draw_skewed, "sales": draw_sales}.get(name, draw_counts)
    X = draw(300, 3)[0]
    again = load(model.save(tmp_path / "model.onsphere"))
    assert again.domain_ == model.domain_
    for tails in ("symmetric", "shortest"):
        ends = again.predict_interval(X, tails=tails)
        np.testing.assert_array_equal(ends, model.predict_interval(X, tails=tails))
    np.testing.assert_array_equal(again.predict_quantiles(X, LEVELS), model.predict_quantiles(X, LEVELS))
    np.testing.assert_array_equal(again.sample(X, 2, random_state=0), model.sample(X, 2, random_state=0))
    export_onnx(model, tmp_path / "model.onnx", X=X, tails="equal", quantiles=LEVELS)
    session, facts = open_graph(tmp_path / "model.onnx")
    assert facts["quantiles"] == LEVELS
    assert facts["tails"] == "equal"
    answers = dict(zip(facts["outputs"], session.run(None, prepare_inputs(facts["inputs"], X)), strict=True))
    np.testing.assert_allclose(answers["quantiles"], model.predict_quantiles(X, LEVELS), rtol=1e-4, atol=1e-6)
    ends = model.predict_interval(X, tails="equal")
    np.testing.assert_allclose(answers["lower"], ends[..., 0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(answers["sigma"], model.predict_sigma(X), rtol=1e-4)


def test_a_graph_needs_numbers_for_quantiles(tmp_path):
    X, y = draw_counts(60)
    model = HCMRegressor(Ridge()).fit(X, y)
    with pytest.raises(InvalidInputError, match="Got one that is not calibrated"):
        export_onnx(model, tmp_path / "model.onnx", X=X, quantiles=[0.5])
    with pytest.raises(InvalidInputError, match="each above 0 and below 1"):
        export_onnx(model.calibrate(*draw_counts(60, 1)), tmp_path / "model.onnx", X=X, quantiles=[1.5])
    assert not (tmp_path / "model.onnx").exists()


def test_frames_of_pandas_and_the_shape_of_the_target_are_kept():
    X, Y = draw_skewed(120)
    frame, target = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(Y, columns=["u", "v"])
    model = HCMRegressor(Ridge()).fit(frame[:80], target[:80]).calibrate(frame[80:], target[80:])
    assert model.predict_quantiles(frame, [0.5]).shape == (120, 2, 1)
    assert model.predict_cdf(frame, target).shape == (120, 2)
    assert model.predict_mean(frame).shape == model.predict_median(frame).shape == (120, 2)


def test_a_scale_is_not_changed_for_a_constant_or_small_target():
    X, y = draw_prices(30)
    assert HCMRegressor(Ridge(), domain="positive").fit(X, np.ones(30)).domain_.scale == "linear"
    assert HCMRegressor(Ridge(), domain="auto").fit(X[:10], y[:10]).domain_.low == -np.inf


def test_rows_without_weight_do_not_count_in_the_domain():
    X, y = draw_counts(60)
    y[5] = -4.0
    weights = np.where(np.arange(60) == 5, 0.0, 1.0)
    with pytest.raises(InvalidInputError, match="Got -4 in row 5"):
        HCMRegressor(Ridge(), domain="count").fit(X, y)
    assert HCMRegressor(Ridge(), domain="count").fit(X, y, sample_weight=weights).domain_.is_whole


def test_a_model_that_knows_nothing_has_the_distribution_of_the_target():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(999, 1)), rng.gamma(2.0, size=999)
    with pytest.warns(OnsphereWarning, match="The score cannot tell rows apart"):
        model = HCMRegressor(DummyRegressor(), frames="target").fit(X[:500], y[:500]).calibrate(X[500:], y[500:])
    np.testing.assert_allclose(model.predict_quantiles(X[:1], LEVELS)[0], np.quantile(y[500:], LEVELS), atol=0.05)
    with pytest.raises(InvalidInputError, match="'shortest' needs a model that left rows out"):
        model.predict_interval(X, tails="shortest")


def test_coverages_are_numbers_inside_zero_and_one(plain):
    X = draw_counts(5)[0]
    both = plain.predict_interval(X, coverage=[0.5, 0.9])
    np.testing.assert_array_equal(both[1], plain.predict_interval(X))
    for wrong in ([], "a", [0.5, 1.0], ["a"]):
        with pytest.raises(InvalidInputError, match="'coverage' parameter of predict_interval"):
            plain.predict_interval(X, coverage=wrong)


def test_draws_take_the_generators_of_numpy(plain):
    X = draw_counts(5)[0]
    draws = [plain.sample(X, 3, random_state=np.random.default_rng(0)) for _ in range(2)]
    np.testing.assert_array_equal(*draws)


def test_distributions_need_a_calibration_and_known_options():
    X, y = draw_counts(60)
    model = HCMRegressor(Ridge()).fit(X, y)
    with pytest.raises(NotCalibratedError, match="predict_distribution needs a calibrated"):
        model.predict_quantiles(X, 0.5)
    with pytest.raises(InvalidInputError, match="'shape' parameter"):
        HCMRegressor(Ridge(), shape="round").fit(X, y)
    with pytest.raises(InvalidInputError, match="'tails' parameter of assess"):
        model.assess(X, tails="left")
    for wrong in ([], "a", [2, 0.9]):
        with pytest.raises(InvalidInputError, match="'coverage' parameter of predict_interval"):
            model.predict_interval(X, coverage=wrong)
    with pytest.raises(InvalidInputError, match="'tails' parameter of predict_interval"):
        model.calibrate(*draw_counts(60, 1)).predict_interval(X, tails="left")


def test_groups_have_tails_and_domains_of_their_own(tmp_path):
    X, y = draw_counts(600, 1)
    model = HCMRegressor(Ridge(), domain="count").fit(*draw_counts(400)).calibrate(X, y, groups="prediction")
    X, y = draw_counts(2000, 2)
    low, high = model.predict_interval(X, tails="equal").T
    assert (low == np.round(low)).all()
    dear = X[:, 0] > 0.5
    for rows in (dear, ~dear):
        assert np.mean((y >= low)[rows] & (y <= high)[rows]) > 0.86
    np.testing.assert_array_equal(model.predict_distribution(X).interval(tails="equal").T, [low, high])
    with pytest.raises(InvalidInputError, match="Expected symmetric intervals of groups, to export"):
        export_onnx(model, tmp_path / "model.onnx", X=X)


@pytest.mark.parametrize("answer", ["quantiles", "median", "mean", "cdf", "pdf", "pit", "crps"])
def test_each_group_has_the_distribution_of_a_model_that_is_calibrated_on_it_alone(answer):
    X, Y = draw_skewed(400)
    groups = np.where(np.arange(400) % 3, "south", "north")
    model = HCMRegressor(Ridge(), random_state=0).fit(X[:200], Y[:200])
    new, mixed = X[200:], np.where(np.arange(200) % 2, "south", "north")
    given = {"quantiles": [[0.1, 0.5, 0.9]], "median": [], "mean": []}.get(answer, [Y[200:]])
    found = getattr(
        model.calibrate(X[200:], Y[200:], groups=groups[200:]).predict_distribution(new, groups=mixed), answer
    )
    by_group = found(*given)
    for name in ("north", "south"):
        alone = model.calibrate(X[200:][groups[200:] == name], Y[200:][groups[200:] == name]).predict_distribution(new)
        assert len(alone) == 200
        np.testing.assert_allclose(by_group[mixed == name], getattr(alone, answer)(*given)[mixed == name])


def test_draws_and_places_of_groups_are_repeatable_and_calibrated():
    rng = np.random.default_rng(0)

    def draw_regions(n):
        X, south = rng.normal(size=(n, 2)), rng.random(n) < 0.3
        return X, X[:, 0] + np.where(south, 3.0, 0.3) * rng.normal(size=n), south

    model = HCMRegressor(Ridge(), frames="target").fit(*draw_regions(200)[:2])
    X, y, south = draw_regions(1000)
    model.calibrate(X, y, groups=south)
    X, y, south = draw_regions(1000)
    distribution = model.predict_distribution(X, groups=south)
    assert (len(distribution), distribution.is_flat, distribution.domain) == (1000, True, Domain())
    assert distribution.shape is model._shape
    for each in (south, ~south):
        assert kstest(distribution.pit(y, random_state=0)[each], "uniform").pvalue > 0.001
    draws = model.sample(X, 50, groups=south, random_state=0)
    np.testing.assert_array_equal(draws, model.sample(X, 50, groups=south, random_state=0))
    assert draws.shape == (50, 1000)
    spread = (draws - model.predict(X)).std(axis=0)
    assert spread[south].mean() > 5 * spread[~south].mean()
    np.testing.assert_allclose(distribution.pit(y)[:3], distribution.pit(y[:, None])[:3])
    with pytest.raises(InvalidInputError, match="as y of cdf"):
        model.predict_cdf(X, y[:5], groups=south)
    with pytest.raises(InvalidInputError, match="predict_distribution needs the group of each row"):
        model.predict_median(X)


def test_quantiles_follow_labels_and_never_cross():
    """The noise grows to five times its size, with which quantiles of fixed rows do not keep up."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    y = X[:, 0] + np.linspace(0.3, 1.5, 2000) * rng.normal(size=2000)
    model = HCMRegressor(Ridge(), random_state=0).fit(X[:300], y[:300]).calibrate(X[300:500], y[300:500])
    levels = [0.9, 0.1, 0.5]
    fixed, online = model.predict_quantiles(X[500:], levels), np.empty((1500, 3))
    for start in range(0, 1500, 10):
        rows = slice(500 + start, 510 + start)
        online[start : start + 10] = model.predict_quantiles(X[rows], levels)
        model.update(X[rows], y[rows])
    assert np.mean(y[500:] <= fixed[:, 0]) < 0.85
    np.testing.assert_allclose(np.mean(y[500:, None] <= online, axis=0), levels, atol=0.03)
    assert (online[:, 1] <= online[:, 2]).all()
    assert (online[:, 2] <= online[:, 0]).all()


def test_novelty_is_no_factor_of_prices():
    """Rows far away: on the scale of the logarithm their sigma, which counts novelty, would be an exponent."""
    model = HCMRegressor(domain="positive", random_state=0).fit(*draw_prices(400)).calibrate(*draw_prices(199, 1))
    assert model.domain_.scale == "log"
    far = np.full((5, 5), 6.0)
    assert (model.predict_novelty(far) > 0.9).all()
    assert (model.predict_sigma(far) > 0).all()
    high = model.predict_interval(far, tails="equal")[:, 1]
    assert (high < 100 * model.predict(far)).all()
    X, y = draw_prices(500, 2)
    model.update(X, y)
    assert model.calibration_.width == "noise"
    assert interval_coverage(y, *model.predict_interval(X, tails="equal").T) == pytest.approx(0.9, abs=0.05)


def test_labels_that_came_later_move_all_tails():
    model = HCMRegressor(Ridge(), domain="count").fit(*draw_counts(400)).calibrate(*draw_counts(199, 1))
    model.update(*draw_counts(100, 2))
    X = draw_counts(50, 3)[0]
    for tails in ("symmetric", "equal", "shortest"):
        ends = model.predict_interval(X, tails=tails)
        assert (ends >= 0).all()
        assert (ends == np.round(ends)).all()


def test_models_that_predict_the_value_alone_have_domains_and_shapes_too():
    X, y = draw_prices(500)
    boosting = HistGradientBoostingRegressor(max_iter=30, max_leaf_nodes=7, random_state=0)
    model = HCMRegressor(boosting, domain="auto", shape="local").fit(X, y).calibrate(*draw_prices(199, 1))
    assert model.domain_.scale != "linear"
    X, y = draw_prices(1000, 2)
    low, high = model.predict_interval(X, tails="equal").T
    assert (low >= 0).all()
    assert np.mean((y >= low) & (y <= high)) == pytest.approx(0.9, abs=0.07)
    # A model that is fitted already predicts prices themselves, so they stay as they are.
    fitted = FrozenEstimator(boosting.fit(*draw_prices(300, 3)))
    model = HCMRegressor(fitted, domain="auto").fit(*draw_prices(200, 4)).calibrate(*draw_prices(199, 5))
    assert (model.domain_.scale, model.domain_.low) == ("linear", 0.0)
    assert (model.predict_quantiles(X, LEVELS) >= 0).all()
