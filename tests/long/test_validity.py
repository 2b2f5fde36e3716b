"""The statistical promises, each repeated many times on fresh rows: 50 times by default, 300 with ONSPHERE_LONG=1.

The model is fitted once; every repetition draws new calibration and test rows. Given the model these are exchangeable,
so the number of test rows covered is Beta-binomial, exactly, where no two scores are equal.
"""

import os
from functools import cache

import numpy as np
import pytest
from scipy.stats import beta, betabinom, binom, kstest, norm
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, Ridge

from onsphere import (
    AcceptShare,
    Calibration,
    FalseAlarm,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    MaxErrorRate,
    Novelty,
)
from onsphere.metrics import interval_coverage, winkler_score

pytestmark = pytest.mark.long

REPETITIONS = 300 if os.environ.get("ONSPHERE_LONG") else 50
N_CALIBRATION, N_TEST = 199, 200
COVERAGES = (0.5, 0.8, 0.9, 0.95)

# A right procedure leaves the bounds of one comparison once in a thousand runs.
LEVEL = 0.001


def draw(rng, n, n_outputs):
    """A curved signal with heavy-tailed noise that grows along the first feature."""
    X = rng.uniform(-2, 2, size=(n, 3))
    signal = np.stack([np.sin(X[:, 0] + j) + X[:, 1] * X[:, 2] for j in range(n_outputs)], axis=1)
    return X, signal + (0.1 + np.abs(X[:, :1])) * rng.standard_t(4, size=(n, n_outputs))


@cache
def find_bounds(n_counts, coverage):
    """Return the bounds that the mean of so many Beta-binomial counts leaves once in a thousand runs."""
    rank = int(np.ceil((N_CALIBRATION + 1) * coverage - 1e-9))
    exact = betabinom(N_TEST, rank, N_CALIBRATION + 1 - rank)
    draws = exact.rvs(size=(20_000, n_counts), random_state=0).mean(axis=1)
    return np.quantile(draws, [LEVEL / 2, 1 - LEVEL / 2])


def assert_beta_binomial(counts, coverage):
    low, high = find_bounds(len(counts), coverage)
    assert low <= np.mean(counts) <= high


@pytest.mark.parametrize("n_outputs", [1, 5])
@pytest.mark.parametrize("backbone", [Ridge(), KernelRidge(kernel="rbf")], ids=lambda b: type(b).__name__)
def test_intervals_boxes_and_balls_cover_as_promised(n_outputs, backbone):
    rng = np.random.default_rng(0)
    model = HCMRegressor(backbone).fit(*draw(rng, 300, n_outputs))
    spread = model.embedding_.spread_
    in_box, in_ball, alone = ({coverage: [] for coverage in COVERAGES} for _ in range(3))
    for _ in range(REPETITIONS):
        model.calibrate(*draw(rng, N_CALIBRATION, n_outputs))
        X, Y = draw(rng, N_TEST, n_outputs)
        value = model.predict(X)
        for coverage in COVERAGES:
            box = model.predict_interval(X, coverage=coverage)
            in_box[coverage].append(N_TEST * interval_coverage(Y, box[..., 0], box[..., 1]))
            radius = model.predict_radius(X, coverage=coverage)
            in_ball[coverage].append(np.sum(np.linalg.norm((Y - value) / spread, axis=1) <= radius))
            each = model.predict_interval(X, coverage=coverage, simultaneous=False)
            alone[coverage].append(np.sum((Y[:, 0] >= each[:, 0, 0]) & (Y[:, 0] <= each[:, 0, 1])))
    for coverage in COVERAGES:
        for counts in (in_box, in_ball, alone):
            assert_beta_binomial(counts[coverage], coverage)


def test_cross_validation_covers_while_the_backbone_still_learns_much_from_more_rows():
    # With 50 features the error falls by a fifth from 64 rows to 80, and by an eighth from 80 to 100. If every fold
    # learns its noise from fits of its own, on 64 rows, intervals hold .85. Given X the outputs are independent: the
    # share that each holds varies with its calibration rows by sqrt(.9 · .1 / 100) = .03.
    n_repetitions, n_outputs = REPETITIONS // 25, 20
    shares = []
    for seed in range(n_repetitions):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(1_100, 50))
        Y = X @ rng.normal(size=(50, n_outputs)) + rng.normal(size=(1_100, n_outputs))
        options = {"frames": ("error",), "calibration": "cv", "random_state": seed}
        model = HCMRegressor(LinearRegression(), **options).fit(X[:100], Y[:100])
        ends = model.predict_interval(X[100:], coverage=0.9, simultaneous=False)
        shares.append(np.mean((ends[..., 0] <= Y[100:]) & (Y[100:] <= ends[..., 1])))
    assert np.mean(shares) >= 0.9 - norm.ppf(1 - LEVEL) * 0.03 / np.sqrt(n_repetitions * n_outputs)


def overlapping_classes(rng, n):
    labels = rng.integers(0, 10, size=n)
    return rng.normal(size=(n, 4)) + 0.5 * np.stack([np.cos(labels * k) for k in range(1, 5)], axis=1), labels


def test_class_sets_cover_as_promised():
    """Ten overlapping classes, so that even a coverage of .5 needs more than the most likely one."""
    rng = np.random.default_rng(0)
    backbone = RandomForestRegressor(n_estimators=25, min_samples_leaf=30, random_state=0)
    model = HCMClassifier(backbone).fit(*overlapping_classes(rng, 3000))
    covered = {coverage: [] for coverage in COVERAGES}
    for _ in range(REPETITIONS):
        X, labels = overlapping_classes(rng, N_CALIBRATION + N_TEST)
        probabilities = model.predict_proba(X)
        assert len(np.unique(probabilities)) > 0.9 * probabilities.size
        model.calibrate(X[:N_CALIBRATION], labels[:N_CALIBRATION])
        for coverage in COVERAGES:
            chosen = model.predict_set(X[N_CALIBRATION:], coverage=coverage)
            covered[coverage].append(chosen[np.arange(N_TEST), labels[N_CALIBRATION:]].sum())
    assert np.mean(model.predict(X) == labels) < 0.5
    for coverage in COVERAGES:
        assert_beta_binomial(covered[coverage], coverage)


def test_cross_calibration_covers_nearly_as_promised():
    """No guarantee, so only a band: within five points of 90 % on average."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(REPETITIONS // 5):
        X, Y = draw(rng, 200, 1)
        model = HCMRegressor(KernelRidge(kernel="rbf"), calibration="cv").fit(X, Y[:, 0])
        X, Y = draw(rng, 2000, 1)
        covered.append(interval_coverage(Y[:, 0], *model.predict_interval(X).T))
    assert np.mean(covered) == pytest.approx(0.9, abs=0.05)


@pytest.fixture(scope="module")
def forest():
    """Return a model, and for each of many rows whether it is off by more than 2 and how uncertain it is."""
    rng = np.random.default_rng(0)
    backbone = RandomForestRegressor(n_estimators=20, min_samples_leaf=10, random_state=0)
    model = HCMRegressor(backbone).fit(*draw(rng, 8000, 1))
    X, Y = draw(rng, 50_000, 1)
    result = model.assess(X)
    return model, np.abs(result.value - Y)[:, 0] > 2.0, result.uncertainty


@pytest.mark.parametrize(
    "backbone", [Ridge(), RandomForestRegressor(n_estimators=20, random_state=0)], ids=["ridge", "forest"]
)
def test_p_values_of_novelty_are_uniform_on_fresh_rows(backbone):
    """The rank of a fresh row among calibration rows is uniform, exactly, where no two shortfalls are equal."""
    rng = np.random.default_rng(0)
    model = HCMRegressor(backbone, frames=("target", "input")).fit(*draw(rng, 300, 1))
    ranks, rejected = [], 0
    for _ in range(REPETITIONS):
        model.calibrate(*draw(rng, N_CALIBRATION, 1)).set_threshold(None, novelty=Novelty(false_alarm=0.05))
        # One row of each repetition: several would share their calibration rows and not be independent.
        result = model.assess(draw(rng, 1, 1)[0])
        ranks.append(round(result.novelty_p_value[0] * (N_CALIBRATION + 1)))
        rejected += int(result.reason[0] == "novel")
    # Spread each rank over its 200th, so that the test for continuous numbers applies.
    spread = (np.array(ranks) - rng.uniform(size=REPETITIONS)) / (N_CALIBRATION + 1)
    assert kstest(spread, "uniform").pvalue > LEVEL
    assert rejected <= binom.ppf(1 - LEVEL, REPETITIONS, 0.05)


@pytest.mark.parametrize(("max_error", "delta"), [(0.1, 0.1), (0.13, 0.05)])
def test_the_error_rate_of_accepted_rows_is_kept(max_error, delta, forest):
    rng = np.random.default_rng(1)
    model, wrong, uncertainty = forest
    rule = MaxErrorRate(max_error, delta, tolerance=2.0)
    broken, accepted = [], []
    for _ in range(REPETITIONS):
        limit = model.calibrate(*draw(rng, 1000, 1)).set_threshold(rule).threshold_
        broken.append(wrong[uncertainty <= limit].mean() > max_error)
        accepted.append(np.mean(uncertainty <= limit))
    assert wrong.mean() > max_error
    assert 0.05 < np.mean(accepted) < 1
    assert np.mean(broken) <= delta


def test_the_error_rate_is_kept_at_the_edge():
    """Every threshold has a risk just above the limit, so each that is accepted is a broken promise.

    Without the division of delta by the number of thresholds about a third of the repetitions would break it.
    """
    rng = np.random.default_rng(0)
    delta, broken, repetitions = 0.1, 0, 8 * REPETITIONS
    for _ in range(repetitions):
        calibration = Calibration(rng.uniform(size=400), (rng.uniform(size=400) < 0.201).astype(float))
        try:
            MaxErrorRate(0.2, delta, tolerance=0.5).threshold(calibration)
            broken += 1
        except InvalidInputError:
            pass
    assert broken <= binom.ppf(1 - LEVEL, repetitions, delta)


@pytest.mark.parametrize(("rate", "delta"), [(0.05, 0.1), (0.1, 0.05)])
def test_the_false_alarm_rate_is_kept(rate, delta):
    """The share rejected is Beta distributed, exactly, and above the rate with at most the probability delta."""
    rng = np.random.default_rng(0)
    model = HCMRegressor(Ridge()).fit(*draw(rng, 300, 1))
    uncertainty = model.predict_uncertainty(draw(rng, 100_000, 1)[0])
    n = 400
    alarms = np.array(
        [
            np.mean(uncertainty > model.calibrate(*draw(rng, n, 1)).set_threshold(FalseAlarm(rate, delta)).threshold_)
            for _ in range(REPETITIONS)
        ]
    )
    assert np.sum(alarms > rate) <= binom.ppf(1 - LEVEL, REPETITIONS, delta)
    rank = next(k for k in range(1, n + 1) if beta(n - k + 1, k).sf(rate) <= delta)
    assert kstest(alarms, beta(n - rank + 1, rank).cdf).pvalue > LEVEL


def test_the_accepted_share_is_kept_on_average():
    rng = np.random.default_rng(0)
    model = HCMRegressor(Ridge()).fit(*draw(rng, 300, 1))
    uncertainty = model.predict_uncertainty(draw(rng, 100_000, 1)[0])
    shares = [
        np.mean(uncertainty <= model.calibrate(*draw(rng, 199, 1)).set_threshold(AcceptShare(0.9)).threshold_)
        for _ in range(REPETITIONS)
    ]
    # The share is Beta(180, 20); four standard errors of its mean.
    assert np.mean(shares) == pytest.approx(0.9, abs=4 * 0.0212 / np.sqrt(REPETITIONS))


# --- whole distributions ---


def draw_prices(rng, n):
    """Prices over five orders of magnitude: a product of several effects, with noise in proportion."""
    X = rng.normal(size=(n, 5))
    return X, np.exp(5 + X @ np.array([1.2, 0.8, 0.6, 0.4, 0.2]) + 0.5 * rng.normal(size=n))


@pytest.mark.parametrize("shape", ["pooled", "local"])
def test_quantiles_and_the_cdf_are_calibrated_and_tails_balanced(shape):
    """At levels k/200, as many of the targets lie at or below a quantile as its level says: Beta-binomial, exactly."""
    rng = np.random.default_rng(6)
    model = HCMRegressor(Ridge(), shape=shape).fit(*draw(rng, 300, 2))
    assert (model._shape.trees is None) == (shape == "pooled")
    levels = (0.05, *COVERAGES)
    below = {level: [] for level in levels}
    left, right, places = [], [], []
    for _ in range(REPETITIONS):
        model.calibrate(*draw(rng, N_CALIBRATION, 2))
        X, Y = draw(rng, N_TEST, 2)
        distribution = model.predict_distribution(X)
        quantiles = distribution.quantiles(levels)
        assert (np.diff(quantiles, axis=-1) >= 0).all()
        for place, level in enumerate(levels):
            below[level].append(np.sum(Y[:, 0] <= quantiles[:, 0, place]))
        ends = distribution.interval(0.9, tails="equal", simultaneous=False)[:, 0]
        left.append(N_TEST - np.sum(Y[:, 0] < ends[:, 0]))
        right.append(N_TEST - np.sum(Y[:, 0] > ends[:, 1]))
        # One row of each repetition has a calibration set of its own, so that these are independent.
        places.append(distribution.pit(Y, random_state=len(places))[0, 0])
    for level in levels:
        assert_beta_binomial(below[level], level)
    assert_beta_binomial(left, 0.95)
    assert_beta_binomial(right, 0.95)
    assert kstest(places, "uniform").pvalue > LEVEL


@pytest.mark.parametrize("tails", ["symmetric", "equal", "shortest"])
def test_intervals_on_another_scale_cover_as_promised_and_stay_positive(tails):
    rng = np.random.default_rng(7)
    boosting = HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=15)
    model = HCMRegressor(boosting, domain="positive", random_state=0).fit(*draw_prices(rng, 500))
    assert model.domain_.scale != "linear"
    inside, above = [], []
    for _ in range(REPETITIONS):
        model.calibrate(*draw_prices(rng, N_CALIBRATION))
        X, y = draw_prices(rng, N_TEST)
        low, high = model.predict_interval(X, tails=tails).T
        assert (low >= 0).all()
        inside.append(np.sum((y >= low) & (y <= high)))
        above.append(N_TEST - np.sum(y > high))
    if tails == "equal":
        assert_beta_binomial(above, 0.95)
    if tails != "shortest":  # whose tails are no multiples of 1/200, so that it covers a little more
        assert_beta_binomial(inside, 0.9)
    assert np.mean(inside) >= find_bounds(len(inside), 0.9)[0]


@pytest.mark.parametrize(
    "backbone", [Ridge(), HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=15)], ids=["Ridge", "boosting"]
)
def test_prices_have_intervals_that_score_a_fifth_better(backbone):
    """Against the symmetric intervals of the same backbone on the prices themselves."""
    rng = np.random.default_rng(8)
    train, held, (X, y) = draw_prices(rng, 600), draw_prices(rng, 300), draw_prices(rng, 2000)
    scores = {}
    for name, domain, tails in (("prices", "auto", "equal"), ("plain", None, "symmetric")):
        model = HCMRegressor(backbone, domain=domain, random_state=0).fit(*train).calibrate(*held)
        scores[name] = winkler_score(y, *model.predict_interval(X, tails=tails).T, coverage=0.9)
    assert scores["prices"] <= 0.8 * scores["plain"]


def test_prices_have_better_intervals_with_the_default_forest_too():
    """By about a fifth on average: a forest's sigma grows with the price by itself, so that there is less to gain."""
    rng = np.random.default_rng(9)
    ratios = []
    for _ in range(max(REPETITIONS // 25, 4)):
        train, held, (X, y) = draw_prices(rng, 600), draw_prices(rng, 300), draw_prices(rng, 4000)
        scores = []
        for domain, tails in (("auto", "equal"), (None, "symmetric")):
            model = HCMRegressor(domain=domain, random_state=0).fit(*train).calibrate(*held)
            low, high = model.predict_interval(X, tails=tails).T
            scores.append(winkler_score(y, low, high, coverage=0.9))
            assert domain is None or (low > 0).all()
        ratios.append(scores[0] / scores[1])
    assert np.exp(np.mean(np.log(ratios))) < 0.84  # .80 in 12 other samples, with a standard error of .01
    assert max(ratios) < 0.95  # novel rows once made it 1.8


def test_whole_numbers_are_covered_at_least_as_promised():
    rng = np.random.default_rng(9)

    def draw_counts(n):
        X = rng.uniform(0, 1, size=(n, 2))
        return X, rng.poisson(1 + 4 * X[:, 0]).astype(float)

    model = HCMRegressor(Ridge(), domain="count").fit(*draw_counts(300))
    inside = []
    for _ in range(REPETITIONS):
        model.calibrate(*draw_counts(N_CALIBRATION))
        X, y = draw_counts(N_TEST)
        low, high = model.predict_interval(X, tails="equal").T
        assert ((low == np.round(low)) & (low >= 0)).all()
        inside.append(np.sum((y >= low) & (y <= high)))
    assert np.mean(inside) >= find_bounds(len(inside), 0.9)[0]
