"""FrozenHead: closed forms against scikit-learn, sums that add up, and bad input."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from onsphere import (
    AcceptShare,
    InvalidInputError,
    InvalidTypeError,
    NotCalibratedError,
    NotFittedError,
    Novelty,
    OnsphereWarning,
    load,
)
from onsphere._internal.row_hashes import hash_numbers
from onsphere.metrics import auroc, expected_calibration_error, log_loss
from onsphere.models.frozen import FrozenHead
from onsphere.models.frozen.ridge import (
    RIDGES,
    Kernel,
    Linear,
    Quadratic,
    Statistics,
    _cross_validate,
    leave_out,
    solve,
)

KINDS = ["joint", "linear", "quadratic", "kernel"]


def head(kind="joint", **options):
    return FrozenHead(kind, **({"n_landmarks": 60, "random_state": 0} | options))


@pytest.fixture(scope="module")
def classes():
    """Return three clouds in eight dimensions, with words as labels."""
    rng = np.random.default_rng(0)
    index = rng.integers(3, size=900)
    X = np.abs(2.0 * np.eye(8)[index] + rng.normal(size=(900, 8)) * 0.7)
    return X, np.array(["cat", "dog", "owl"])[index]


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(900, 6)) + 1.0
    return X, 50.0 + X @ rng.normal(size=6) * 10 + rng.normal(size=900) * 2


@pytest.fixture(scope="module", params=["classes", "numbers"])
def data(request):
    return request.getfixturevalue(request.param)


def same(first, second, X, atol=1e-9):
    np.testing.assert_allclose(first.predict_uncertainty(X), second.predict_uncertainty(X), rtol=0, atol=atol)
    np.testing.assert_allclose(first.predict_novelty(X), second.predict_novelty(X), rtol=0, atol=atol)
    if isinstance(first.predict(X)[0], str):
        assert (first.predict(X) == second.predict(X)).all()
        np.testing.assert_allclose(first.predict_proba(X), second.predict_proba(X), rtol=0, atol=atol)
    else:
        np.testing.assert_allclose(first.predict(X), second.predict(X), rtol=0, atol=atol)


# --- the closed form ---


def one_hot(y):
    return (y[:, None] == np.unique(y)).astype(float)


@pytest.mark.parametrize("kind", ["linear", "quadratic"])
@pytest.mark.parametrize("ridge", [0.1, 30.0])
def test_a_head_is_scikit_learns_ridge_on_standardised_columns(classes, kind, ridge):
    X, y = classes
    columns = X if kind == "linear" else np.hstack([X, X**2, np.sqrt(np.abs(X))])
    standardised = StandardScaler().fit_transform(columns)
    expected = Ridge(alpha=ridge).fit(standardised, one_hot(y)).predict(standardised)
    fitted = head(kind, ridge=ridge, frames="target").fit(X, y)
    np.testing.assert_allclose(fitted.heads_[kind].predict(X), expected, atol=1e-9)
    norms, reach = np.linalg.norm(expected, axis=1), fitted._solve().reach[kind]
    np.testing.assert_allclose(fitted.predict_uncertainty(X), np.abs(norms - reach), atol=1e-9)
    assert (fitted.predict(X) == np.unique(y)[expected.argmax(axis=1)]).all()


@pytest.mark.parametrize("ridge", [0.1, 3.0])
def test_the_kernel_head_is_ridge_on_the_nystroem_columns(classes, ridge):
    X, y = classes
    fitted = head("kernel", ridge=ridge).fit(X, y)
    landmarks, bandwidth = fitted.sums_.designs["kernel"].landmarks, fitted.sums_.designs["kernel"].bandwidth
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    assert landmarks.shape == (60, 8)
    assert {tuple(row) for row in landmarks.round(12)} <= {tuple(row) for row in units.round(12)}
    distances = ((landmarks[:, None] - landmarks) ** 2).sum(axis=2)
    assert bandwidth == pytest.approx(0.1 * np.median(distances[np.triu_indices(60, 1)]))
    between = np.exp(-((units[:, None] - landmarks) ** 2).sum(axis=2) / bandwidth)
    root = np.linalg.cholesky(np.exp(-distances / bandwidth) + 1e-6 * np.eye(60))
    columns = np.linalg.solve(root, between.T).T
    expected = Ridge(alpha=ridge, fit_intercept=False).fit(columns, one_hot(y)).predict(columns)
    np.testing.assert_allclose(fitted.heads_["kernel"].predict(X), expected, atol=1e-9)


@pytest.mark.parametrize("kind", ["linear", "quadratic", "kernel"])
def test_cross_validation_is_that_of_the_hat_matrix(classes, kind):
    X, y = classes[0][:200], one_hot(classes[1][:200])
    design = {"linear": Linear, "quadratic": Quadratic}[kind].from_rows(X) if kind != "kernel" else None
    design = design or Kernel.from_landmarks(X[:40], 0.5)
    columns = design.make_columns(X)
    sums = Statistics.from_rows(columns, y)
    if design.has_intercept:
        columns = columns - columns.mean(axis=0)
        sums = sums.center()
    penalty = design.make_penalty(columns.var(axis=0))
    target = y - y.mean(axis=0) if design.has_intercept else y
    values = {}
    for ridge in RIDGES:
        hat = columns @ np.linalg.solve(columns.T @ columns + ridge * penalty, columns.T)
        n_free = np.trace(hat) + design.has_intercept
        values[ridge] = 200 * np.sum((target - hat @ target) ** 2) / (200 - n_free) ** 2
        assert _cross_validate(design, sums, penalty, ridge) == pytest.approx(values[ridge], rel=1e-6)
    assert solve(design, Statistics.from_rows(design.make_columns(X), y), "gcv").ridge == min(values, key=values.get)


def test_cross_validation_shrinks_noise_and_leaves_signal():
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(200, 50)), rng.normal(size=200)
    design = Linear.from_rows(X)
    assert solve(design, Statistics.from_rows(design.make_columns(X), noise[:, None]), "gcv").ridge >= 100
    signal = X @ rng.normal(size=(50, 1)) + 0.01 * noise[:, None]
    assert solve(design, Statistics.from_rows(design.make_columns(X), signal), "gcv").ridge <= 0.01


@pytest.mark.parametrize("kind", ["linear", "quadratic", "kernel"])
def test_rows_are_left_out_in_closed_form(numbers, kind):
    X, y = numbers[0][:60], numbers[1][:60, None]
    design = {"linear": Linear, "quadratic": Quadratic}[kind].from_rows(X) if kind != "kernel" else None
    design = design or Kernel.from_landmarks(X[:40], 0.5)
    # The penalty of an ordinary ridge does not change with the rows.
    object.__setattr__(design, "make_penalty", lambda variance: np.eye(design.n_columns))
    sums = [Statistics.from_rows(design.make_columns(X[[row]]), y[[row]]) for row in range(60)]
    total = Statistics.empty(design.n_columns, 1)
    for each in sums:
        total += each
    left_out = leave_out(solve(design, total, 0.5), total, X[:5], y[:5])
    for row in range(5):
        others = Statistics.empty(design.n_columns, 1)
        for place, each in enumerate(sums):
            others = others if place == row else others + each
        np.testing.assert_allclose(left_out[row], solve(design, others, 0.5).predict(X[[row]])[0], rtol=1e-6)


def test_a_ridge_too_small_to_solve_with_is_an_error_and_never_chosen(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = np.tile(rng.normal(size=(400, 6)), 2), np.arange(400) % 3
    with pytest.raises(InvalidInputError, match=r"Got 1e-14, for which rounding leaves no solution.*Raise ridge"):
        head("linear", ridge=1e-14).fit(X, y)
    design = Linear.from_rows(X)
    sums = Statistics.from_rows(design.make_columns(X), one_hot(y)).center()
    assert _cross_validate(design, sums, design.make_penalty(X.var(axis=0)), 1e-14) == np.inf
    monkeypatch.setattr("onsphere.models.frozen.ridge.RIDGES", (1e-14, 1.0))
    assert head("linear").fit(X, y).heads_["linear"].ridge == 1.0


def tight_clusters(rng, width):
    """Return two clusters much farther apart than they are wide; most pairs lie within one of them."""
    place = np.where(rng.random((2000, 1)) < 0.8, [[1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0]])
    return place + width * rng.normal(size=(2000, 3))


@pytest.mark.parametrize("width", [1e-3, 1e-4, 1e-5, 1e-6, 1e-8])
@pytest.mark.parametrize("make", [lambda rng, width: 1.0 + width * rng.normal(size=(2000, 3)), tight_clusters])
def test_landmarks_that_nearly_coincide_still_tell_rows_apart(make, width):
    """Rounding is as large as their distances; below a millionth of the length the distances themselves are lost."""
    rng = np.random.default_rng(0)
    X, y = make(rng, width), np.arange(2000) % 3
    X[np.arange(2000), y] += 3 * width
    fitted = head("kernel", n_landmarks=300).fit(X, y)
    assert np.isfinite(fitted.predict_uncertainty(X)).all()
    if width > 1e-7:
        assert np.mean(fitted.predict(X) == y) > 0.9


# --- sums that add up ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [None, (2, 4)])
def test_batches_and_shards_equal_one_fit(data, kind, layers, monkeypatch):
    """There is room for 100 rows, so that rows are kept, replaced and joined along the way."""
    monkeypatch.setattr("onsphere.models.frozen.sums._N_KEPT", 100)
    X, y = data[0][:, :6], data[1]
    whole = head(kind, layers=layers).fit(X, y)
    batches = FrozenHead.like(whole)
    for start in range(0, 900, 130):
        batches.partial_fit(X[start : start + 130], y[start : start + 130])
    same(batches, whole, X)
    shards = [FrozenHead.like(whole).partial_fit(X[part::3], y[part::3]) for part in range(3)]
    merged = shards[2].merge(shards[0]).merge(shards[1])
    same(merged, whole, X)
    assert merged.n_rows_ == batches.n_rows_ == 900
    assert shards[0].n_rows_ == 300


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_rows_does_not_matter(data, kind):
    X, y = data
    order = np.random.default_rng(5).permutation(len(X))
    same(head(kind).fit(X, y), head(kind).fit(X[order], y[order]), X)


def test_predicting_between_batches_changes_nothing(classes):
    X, y = classes
    silent, used = head().partial_fit(X[:500], y[:500]), head().partial_fit(X[:500], y[:500])
    used.predict_uncertainty(X)
    same(silent.partial_fit(X[500:], y[500:]), used.partial_fit(X[500:], y[500:]), X, atol=0)


def test_rows_of_batches_and_shards_are_remembered(classes):
    """Calibrating on them gives a warning, as it does after one fit."""
    X, y = classes
    streamed = head("linear").partial_fit(X[:300], y[:300]).partial_fit(X[300:600], y[300:600])
    sharded = head("linear").partial_fit(X[:300], y[:300])
    sharded.merge(FrozenHead.like(sharded).partial_fit(X[300:600], y[300:600]))
    continued = head("linear").fit(X[:300], y[:300]).partial_fit(X[300:600], y[300:600])
    for fitted in (streamed, sharded, continued):
        assert len(fitted.calibrate(X[600:], y[600:]).calibration_) == 300  # and no warning
        for part in (slice(0, 300), slice(300, 600)):
            with pytest.warns(OnsphereWarning, match="100% of the 300 calibration rows were also trained on"):
                fitted.calibrate(X[part], y[part])


def test_a_head_survives_pickling_and_merges_afterwards(classes):
    X, y = classes
    first = head().partial_fit(X[:500], y[:500])
    second = pickle.loads(pickle.dumps(FrozenHead.like(first))).partial_fit(X[500:], y[500:])
    same(first.merge(second), FrozenHead.like(first).partial_fit(X, y), X)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8, unique=True), st.integers(0, 2**31 - 2))
@settings(max_examples=50, deadline=None)
def test_codes_depend_on_what_a_row_holds(values, seed):
    rows = np.array([values, values[::-1], values])
    codes = hash_numbers(rows, seed)
    assert codes[0] == codes[2] == hash_numbers(rows[2:], seed)[0]
    assert codes[0] != codes[1]
    assert (hash_numbers(-0.0 * rows, seed) == hash_numbers(0.0 * rows, seed)).all()


def test_codes_draw_evenly():
    """A tenth of 10,000 rows that differ only in single bits is drawn: ± 3 standard errors are 9 %."""
    rows = np.arange(10_000, dtype=np.float32).astype(float)[:, None] * [1.0, 0.0]
    codes = hash_numbers(rows, 0)
    assert abs(np.mean(codes < 2**64 // 10) - 0.1) < 0.009
    assert len(np.unique(codes)) == 10_000


# --- the joint head ---


def test_joint_is_the_calibrated_sum(classes):
    """Lengths, medians and 90 % quantiles come from rows on which the heads were not fitted."""
    X, y = classes
    fitted = head(ridge=1.0).fit(X, y)
    held = np.argsort(hash_numbers(np.hstack([X, one_hot(y)]), fitted.sums_.seed))[:90]
    kept = np.setdiff1d(np.arange(900), held)
    scaler = StandardScaler().fit(X[kept])
    trial = Ridge(alpha=1.0).fit(scaler.transform(X[kept]), one_hot(y)[kept])
    norms = np.linalg.norm(trial.predict(scaler.transform(X[held])), axis=1)
    score = np.abs(norms - np.quantile(norms, 0.99))
    solution = fitted._solve()
    assert solution.reach["linear"] == pytest.approx(np.quantile(norms, 0.99), abs=1e-9)
    assert solution.center["linear"] == pytest.approx(np.median(score), abs=1e-9)
    assert solution.spread["linear"] == pytest.approx(np.quantile(score, 0.9) - np.median(score), abs=1e-9)
    parts = fitted.predict_uncertainty_per_head(X)
    assert list(parts) == ["kernel", "quadratic", "linear"]
    expected = sum((parts[name] - solution.center[name]) / solution.spread[name] for name in parts)
    without = clone(fitted).set_params(frames="target").fit(X, y)
    np.testing.assert_allclose(without.predict_uncertainty(X), expected, atol=1e-12)
    for name in parts:  # the heads themselves are fitted on all rows
        alone = clone(without).set_params(kind=name).fit(X, y)
        np.testing.assert_allclose(parts[name], alone.predict_uncertainty(X), atol=1e-9)


def test_labels_come_from_the_head_that_errs_least():
    """Classes that differ in length alone are invisible to the kernel head; by angle, to the linear one."""
    rng = np.random.default_rng(0)
    angle, length = rng.uniform(0, 2 * np.pi, 2000), rng.uniform(1, 3, 2000)
    X = length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    by_length = head().fit(X, (length > 2).astype(int))
    assert by_length.value_head_ == "quadratic"
    assert np.mean(by_length.predict(X) == (length > 2)) > 0.95
    by_angle = head().fit(X, np.sign(np.sin(3 * angle)).astype(int))
    assert by_angle.value_head_ == "kernel"
    assert by_angle.estimator_ is by_angle.heads_["kernel"]


def test_unusual_rows_get_more_uncertainty_than_ordinary_ones():
    X, y = load_digits(return_X_y=True)
    fitted = FrozenHead(random_state=0).fit(X[::2], y[::2])
    assert np.mean(fitted.predict(X[1::2]) == y[1::2]) > 0.97
    rng = np.random.default_rng(0)
    unusual = rng.permuted(X[1::2], axis=1)
    assert auroc(fitted.predict_uncertainty(X[1::2]), fitted.predict_uncertainty(unusual)) > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_features_of_unusual_size_are_not_trusted(kind):
    """Ridge regression overshoots there, and 1 − ‖d‖ would call these rows the most certain of all."""
    rng = np.random.default_rng(0)
    index = rng.integers(3, size=2000)
    X = np.abs(2.0 * np.eye(8)[index] + rng.normal(size=(2000, 8)) * 0.7)
    for frames in ("target", "all"):
        fitted = head(kind, frames=frames).fit(X[:1000], index[:1000])
        separation = auroc(fitted.predict_uncertainty(X[1000:]), fitted.predict_uncertainty(10 * X[1000:]))
        if (kind, frames) == ("kernel", "target"):  # which sees angles only
            assert separation == pytest.approx(0.5, abs=1e-3)
        else:
            assert separation > 0.95


def test_held_out_scores_that_are_all_alike_leave_a_finite_answer():
    X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 30, axis=0)
    fitted = head().fit(X, np.repeat([0, 1], 30))
    assert set(fitted._solve().spread.values()) == {1.0}
    assert np.isfinite(fitted.predict_uncertainty(X)).all()
    assert (fitted.predict(X) == np.repeat([0, 1], 30)).all()


@pytest.mark.parametrize("size", [1e20, 1e90, 1e200])
@pytest.mark.parametrize("kind", ["joint", "linear", "quadratic"])
def test_huge_features_are_trusted_least(data, kind, size):
    """Warnings are errors here, so this also checks that numpy gives none."""
    X, y = data
    fitted = head(kind).fit(X[:600], y[:600]).calibrate(X[600:], y[600:]).set_threshold(AcceptShare(0.9))
    far = X[:50] * size
    uncertainty = fitted.predict_uncertainty(far)
    assert not np.isnan(uncertainty).any()
    assert (uncertainty > fitted.predict_uncertainty(X).max()).all()
    result = fitted.assess(far)
    np.testing.assert_array_equal(result.uncertainty, uncertainty)
    assert not result.accepted.any()
    assert fitted.decide(far).mask.all()
    assert (fitted.predict_confidence(far) == 1 / 301).all()
    assert all((scores >= 0).all() for scores in fitted.predict_uncertainty_per_head(far).values())
    assert fitted.predict(far).shape == (50,)
    if result.probabilities is not None:
        np.testing.assert_allclose(result.probabilities.sum(axis=1), 1.0)
        assert result.prediction_set.any(axis=1).all()
    if size == 1e200:
        with pytest.raises(InvalidInputError, match=r"calibration rows with a finite uncertainty\. Got 50 of 50"):
            fitted.calibrate(far, y[:50])
        assert fitted.threshold_ is not None


@pytest.mark.parametrize("X", [np.ones((30, 3)), np.zeros((30, 3)), np.arange(30.0)[:, None], 1e6 + np.eye(30, 4)])
def test_features_that_say_little_are_no_error(X):
    fitted = head().fit(X, np.arange(30) % 2)
    assert np.isfinite(fitted.predict_uncertainty(X)).all()


# --- novelty and noise ---


def test_heads_see_the_last_layer_and_novelty_sees_all(classes):
    X, y = classes
    rng = np.random.default_rng(0)
    early = np.abs(rng.normal([3.0, 3.0, 0.0, 0.0], size=(900, 4)))
    both, unusual = np.hstack([early, X]), np.hstack([early[:, ::-1], X])
    fitted, alone = head(layers=(4, 8)).fit(both[:600], y[:600]), head().fit(X[:600], y[:600])
    for kind, each in fitted.heads_.items():
        np.testing.assert_allclose(each.predict(X), alone.heads_[kind].predict(X), atol=1e-9)
    np.testing.assert_array_equal(fitted.heads_["kernel"].design.landmarks, alone.heads_["kernel"].design.landmarks)
    assert np.mean(fitted.predict_novelty(both[600:]) == 0) > 0.93  # 98 % of rows are ordinary
    assert fitted.predict_novelty(unusual[600:]).mean() > 0.5
    assert auroc(fitted.predict_uncertainty(both[600:]), fitted.predict_uncertainty(unusual[600:])) > 0.95
    for part, norms in fitted.predict_uncertainty_per_head(unusual).items():
        np.testing.assert_array_equal(norms, fitted.predict_uncertainty_per_head(both)[part])


def test_the_shortfall_is_that_of_a_product_of_kernels(classes):
    """One kernel for each layer, in units of its median squared distance, with its length as one more feature."""
    X, y = classes
    fitted = head(layers=(3, 5)).fit(X, y)
    kept, frame = fitted.sums_.kept.X, fitted._frames.input
    parts = []
    for block in (slice(0, 3), slice(3, 8)):
        lengths = np.linalg.norm(X[:, block], axis=1)
        units, known = X[:, block] / lengths[:, None], np.linalg.norm(kept[:, block], axis=1)
        rows = kept[:, block] / known[:, None]
        distances = ((rows[:, None] - rows) ** 2).sum(axis=2)[np.triu_indices(len(rows), 1)]
        parts += [units / np.median(distances) ** 0.5, lengths[:, None] / (known.std() * (2 * units.shape[1]) ** 0.5)]
    places = np.hstack(parts)
    gaps = ((places - places.mean(axis=0))[:, None] - frame.landmarks) ** 2
    between = np.exp(-gaps.sum(axis=2) / frame.bandwidth)
    among = np.exp(-((frame.landmarks[:, None] - frame.landmarks) ** 2).sum(axis=2) / frame.bandwidth)
    solved = np.linalg.solve(among + 0.01 * np.eye(len(among)), between.T).T
    missed = fitted._predict(X).missed
    np.testing.assert_allclose(missed, 1 - np.sum(between * solved, axis=1), atol=1e-9)
    scale = fitted._solve()
    without = clone(fitted).set_params(frames="target").fit(X, y)
    added = np.maximum((missed - scale.center["input"]) / scale.spread["input"], 0.0)
    np.testing.assert_allclose(fitted.predict_uncertainty(X), without.predict_uncertainty(X) + added, atol=1e-9)


def test_calibration_makes_probabilities_of_directions(classes):
    """The head is right more often than its flat directions say; sets and labels stay as they were."""
    X, y = classes
    fitted = head().fit(X[:400], y[:400])
    index = np.unique(y[650:], return_inverse=True)[1]
    before, labels = fitted.predict_proba(X[650:]), fitted.predict(X[650:])
    fitted.calibrate(X[400:650], y[400:650])
    after = fitted.predict_proba(X[650:])
    np.testing.assert_array_equal(fitted.predict(X[650:]), labels)
    assert (np.unique(y)[after.argmax(axis=1)] == labels).all()
    assert log_loss(index, after) < log_loss(index, before)
    errors = [expected_calibration_error(labels == y[650:], each.max(axis=1)) for each in (before, after)]
    assert errors[1] < 0.06 < errors[0]
    again = fitted.calibrate(X[400:650], y[400:650]).predict_proba(X[650:])
    np.testing.assert_array_equal(again, after)
    folds = head(calibration="cv").fit(X[:400], y[:400]).predict_proba(X[650:])
    assert log_loss(index, folds) < log_loss(index, before)


def test_novel_rows_get_even_probabilities_and_a_reason(classes):
    X, y = classes
    fitted = head().fit(X[:400], y[:400]).calibrate(X[400:700], y[400:700])
    rows = np.vstack([X[700:], -X[700:]])
    fitted.set_threshold(AcceptShare(0.9), novelty=Novelty(false_alarm=0.05))
    unaware = head(frames="target").fit(X[:400], y[:400]).calibrate(X[400:700], y[400:700])
    result, plain = fitted.assess(rows), unaware.assess(rows)
    share = result.novelty[:, None]
    np.testing.assert_allclose(result.probabilities, (1 - share) * plain.probabilities + share / 3, atol=1e-12)
    np.testing.assert_allclose(result.noise, np.maximum(1 - result.direction_norm, 0))
    assert plain.noise is plain.novelty is plain.novelty_p_value is None
    assert (result.novelty[200:] > 0.5).all()
    assert (result.novelty_p_value[200:] == 1 / 301).all()
    assert np.isin(result.reason[200:], ["novel", "uncertain and novel"]).all()
    assert np.mean(np.isin(result.reason[:200], ["novel", "uncertain and novel"])) < 0.11  # 5 %, and 3 deviations
    assert result.prediction_set[200:].sum(axis=1).mean() > result.prediction_set[:200].sum(axis=1).mean()


def test_sigma_covers_errors_outside_the_data(numbers):
    X, y = numbers
    fitted = head("linear").fit(X[:600], y[:600]).calibrate(X[600:], y[600:])
    inside, outside = fitted.assess(X), fitted.assess(X[:50] * [1, -1, 1, -1, 1, -1] - 9)
    np.testing.assert_allclose(outside.novelty, 1.0, atol=0.05)
    assert (outside.sigma > 0.9 * fitted.spread_).all()
    at_home = inside.novelty == 0
    assert at_home.mean() > 0.9
    np.testing.assert_allclose(inside.sigma[at_home], inside.noise[at_home])
    within = np.abs(y - inside.value)[600:] <= 1.645 * inside.noise[600:]
    assert np.mean(within) == pytest.approx(0.9, abs=0.06)  # 300 rows, and 600 that the noise was fitted on
    assert fitted.predict_noise(X).shape == (900,)
    pair = head("linear").fit(X, np.column_stack([y, -y]))
    assert pair.predict_noise(X).shape == pair.predict_sigma(X).shape == (900, 2)


def test_frames_can_be_had_one_by_one(numbers):
    X, y = numbers
    plain = head("linear", frames="target").fit(X, y)
    noisy = head("linear", frames=("target", "error")).fit(X, y)
    novel = head("linear", frames=["input"]).fit(X, y)
    np.testing.assert_array_equal(noisy.predict(X), plain.predict(X))
    np.testing.assert_array_equal(noisy.predict_uncertainty(X), noisy.predict_noise(X))
    np.testing.assert_array_equal(novel.predict_noise(X), plain.predict_sigma(X))
    for fitted, method in [(plain, "predict_noise"), (plain, "predict_novelty"), (noisy, "predict_novelty")]:
        with pytest.raises(InvalidInputError, match=f"{method} needs a model with the frame"):
            getattr(fitted, method)(X)
    few = [head("linear", frames=frames).fit(X[:39], y[:39]) for frames in ("all", "target")]
    np.testing.assert_array_equal(few[0].predict_noise(X), few[1].predict_sigma(X))  # they say too little of the noise
    with pytest.raises(InvalidInputError, match=r"Novelty\(max=0.5.*needs a model with an input frame"):
        plain.calibrate(X[:1], y[:1] + 1).set_threshold(None, novelty=Novelty(max=0.5))


@pytest.mark.parametrize("size", [1e-10, 1e10, 1e200])
def test_features_of_another_size_are_novel(classes, size):
    X, y = classes
    fitted = head().fit(X, y)
    # A silent network is several deviations away from an ordinary one, and a loud one as many as it likes.
    assert (fitted.predict_novelty(X * size) > (0.5 if size < 1 else 1 - 1e-9)).all()
    assert (fitted.predict_noise(X * size) <= 1).all()


def test_features_that_were_scaled_to_one_length_are_ordinary(classes):
    """What rounding leaves of their lengths does not count."""
    X, y = classes
    units = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    fitted = head().fit(units[:600], y[:600])
    assert np.mean(fitted.predict_novelty(units[600:]) == 0) > 0.93
    assert (fitted.predict_novelty(2 * units[600:]) > 0.9).all()


def test_a_head_with_novelty_is_saved_and_loaded(classes, numbers, tmp_path):
    for X, y in (classes, numbers):
        fitted = head(layers=(2, X.shape[1] - 2)).fit(X[:600], y[:600]).calibrate(X[600:], y[600:])
        fitted.set_threshold(None, novelty=Novelty(max=0.5))
        loaded = load(fitted.save(tmp_path / "head.onsphere"))
        same(fitted, loaded, X, atol=0)
        assert (loaded.assess(-X).reason == fitted.assess(-X).reason).all()
        same(fitted.partial_fit(X[600:], y[600:]), loaded.partial_fit(X[600:], y[600:]), X, atol=0)


# --- what a classifier and a regressor give ---


def test_an_assessment_of_classes(classes):
    X, y = classes
    fitted = head(calibration="split").fit(X[:600], y[:600])
    result = fitted.assess(X[600:])
    assert np.mean(result.value == y[600:]) > 0.85
    np.testing.assert_array_equal(result.value, fitted.predict(X[600:]))
    np.testing.assert_allclose(result.probabilities, fitted.predict_proba(X[600:]))
    np.testing.assert_allclose(result.probabilities.sum(axis=1), 1.0)
    np.testing.assert_allclose(result.uncertainty, fitted.predict_uncertainty(X[600:]))
    assert result.output_names == ("cat", "dog", "owl")
    assert fitted.classes_.tolist() == ["cat", "dog", "owl"]
    covered = result.prediction_set[np.arange(300), np.searchsorted(fitted.classes_, y[600:])]
    assert covered.mean() > 0.83  # 300 rows and 120 to calibrate on: a standard error of 3 %
    fitted.set_threshold(AcceptShare(0.9))
    assert 0.8 < fitted.assess(X[600:]).accepted.mean() < 0.98
    assert np.ma.count_masked(fitted.decide(X[600:])) == (~fitted.assess(X[600:]).accepted).sum()
    assert ((fitted.predict_confidence(X) > 0) & (fitted.predict_confidence(X) <= 1)).all()


def test_calibration_by_folds_and_by_hand_and_that_it_ends_with_new_rows(data):
    X, y = data
    fitted = head(calibration="cv").fit(X[:600], y[:600])
    assert len(fitted.calibration_) == 600
    fitted = head().fit(X[:600], y[:600]).calibrate(X[600:], y[600:]).set_threshold(AcceptShare(0.9))
    assert fitted.threshold_ is not None
    fitted.partial_fit(X[600:], y[600:])
    assert fitted.calibration_ is fitted.threshold_ is None
    with pytest.raises(NotCalibratedError, match="decide needs a calibrated FrozenHead"):
        fitted.decide(X)


@pytest.mark.parametrize("kind", ["linear", "joint"])
def test_sigma_is_the_noise_in_the_unit_of_the_target(kind):
    """2,000 rows on each side leave a standard error of 1.6 %; noise of .6 deviations is read 2 % too small."""
    rng = np.random.default_rng(0)
    X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 2000, axis=0)
    y = 1000.0 + 100 * X[:, 1] + np.where(X[:, 1] > 0, 30.0, 10.0) * rng.normal(size=4000)
    fitted = head(kind).fit(X, y)
    np.testing.assert_allclose(fitted.predict_sigma(X[[0, -1]]), [10.0, 30.0], rtol=0.06)
    np.testing.assert_allclose(fitted.predict(X[[0, -1]]), [1000.0, 1100.0], atol=3.0)


def test_an_assessment_of_numbers(numbers):
    """Intervals of 90 % on 300 rows, calibrated on 300: a standard error of 2.5 %."""
    X, y = numbers
    fitted = head().fit(X[:300], y[:300]).calibrate(X[300:600], y[300:600])
    result = fitted.assess(X[600:])
    assert np.sqrt(np.mean((result.value - y[600:]) ** 2)) < 2.5  # the noise is 2
    assert 0.82 < np.mean((result.lower <= y[600:]) & (y[600:] <= result.upper)) < 0.98
    np.testing.assert_array_equal(result.sigma, fitted.predict_sigma(X[600:]))
    assert result.anchor_residual.shape == (300,)
    rng = np.random.default_rng(0)
    shifted = X[600:] + rng.normal(size=(300, 6)) * 5
    assert auroc(result.uncertainty, fitted.predict_uncertainty(shifted)) > 0.9
    for kind in ("linear", "quadratic"):
        alone = head(kind).fit(X[:300], y[:300])
        assert auroc(alone.predict_uncertainty(X[600:]), alone.predict_uncertainty(shifted)) > 0.8


def test_several_outputs_keep_their_shape_and_one_head_its_unit(numbers):
    X, y = numbers
    both = head().fit(X, np.stack([y, -y], axis=1))
    assert both.predict(X).shape == both.assess(X).sigma.shape == (900, 2)
    alone = head("quadratic", frames="target")
    small, large = clone(alone).fit(X, y), alone.fit(X, 1024 * y)
    np.testing.assert_allclose(large.predict_uncertainty(X), 1024 * small.predict_uncertainty(X), rtol=1e-9)
    small, large = head().fit(X, y), head().fit(X, 1024 * y)
    np.testing.assert_allclose(large.predict_sigma(X), 1024 * small.predict_sigma(X), rtol=1e-9)


@pytest.mark.parametrize(
    ("y", "is_class"),
    [
        (np.arange(90) % 3, True),
        (np.arange(90) % 2 == 0, True),
        ((np.arange(90) % 3)[:, None], True),
        (np.arange(90) % 3 / 1.0, False),
        (np.stack([np.arange(90)] * 2, axis=1), False),
    ],
)
@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
def test_auto_reads_the_task_from_the_target(y, is_class):
    X = np.random.default_rng(0).normal(size=(90, 3))
    fitted = head("linear").fit(X, y)
    assert hasattr(fitted, "classes_") == is_class
    if y.dtype.kind == "i" and y.ndim == 1:
        assert not hasattr(head("linear", task="regression").fit(X, y), "classes_")


def test_many_whole_numbers_are_taken_for_classes_with_a_warning():
    """They may be amounts, and a head of classes would answer without a word."""
    X = np.random.default_rng(0).normal(size=(90, 3))
    ages = np.arange(90) % 30
    with pytest.warns(OnsphereWarning, match=r"30 different whole numbers in y, from 0 to 29, for classes"):
        assert len(head("linear").fit(X, ages).classes_) == 30
    head("linear", task="classification").fit(X, ages)
    head("linear", task="regression").fit(X, ages)
    head("linear").partial_fit(X, ages, classes=range(30))
    head("linear").fit(X, ages.astype(str))
    head("linear").fit(X, ages % 20)


def test_frames_and_single_precision_are_taken(classes):
    X, y = classes
    single = X.astype(np.float32)
    frame = pd.DataFrame(single, columns=[f"f{index}" for index in range(8)])
    fitted = head().fit(frame, pd.Series(y))
    plain = head().fit(single, y)
    np.testing.assert_array_equal(fitted.predict_uncertainty(frame), plain.predict_uncertainty(single))
    assert FrozenHead.like(fitted).feature_names_in_.tolist() == list(frame.columns)


def test_small_data_use_every_row_as_a_landmark(classes):
    X, y = classes
    assert FrozenHead(random_state=0).fit(X[:40], y[:40]).sums_.designs["kernel"].landmarks.shape == (40, 8)
    assert head().fit(X[[0, 1]], ["a", "b"]).predict(X[[0, 1]]).tolist() == ["a", "b"]


def test_a_changed_kind_takes_effect_at_the_next_fit(classes):
    X, y = classes
    fitted = head("linear").fit(X[:600], y[:600]).calibrate(X[600:], y[600:])
    before, shard = fitted.predict_uncertainty(X), FrozenHead.like(fitted).partial_fit(X, y)
    for kind in ("kernel", "joint"):
        fitted.set_params(kind=kind)
        np.testing.assert_array_equal(fitted.predict_uncertainty(X), before)
        np.testing.assert_array_equal(fitted.assess(X).uncertainty, before)
    assert list(fitted.merge(shard).heads_) == ["linear"]
    assert list(fitted.fit(X, y).heads_) == ["kernel", "quadratic", "linear"]


def test_random_state_decides_the_draw(classes):
    X, y = classes
    first, again = head(random_state=3).fit(X, y), head(random_state=3).fit(X, y)
    np.testing.assert_array_equal(first.predict_uncertainty(X), again.predict_uncertainty(X))
    other = head(random_state=4).fit(X, y)
    assert not np.array_equal(first.sums_.designs["kernel"].landmarks, other.sums_.designs["kernel"].landmarks)


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "cubic"}, "'kind' parameter of FrozenHead must be one of 'joint'"),
        ({"task": "ranking"}, "'task' parameter of FrozenHead must be one of 'auto'"),
        ({"ridge": "loo"}, "'ridge' parameter of FrozenHead must be 'gcv' or a float above 0. Got 'loo'"),
        ({"ridge": 0.0}, "'ridge' parameter of FrozenHead must be a float in"),
        ({"ridge": np.array([1.0, 2.0])}, "'ridge' parameter of FrozenHead must be a float in"),
        ({"random_state": "a", "n_landmarks": 60}, "'random_state' parameter of FrozenHead must be an int"),
        ({"bandwidth": -1.0}, "'bandwidth' parameter of FrozenHead"),
        ({"n_landmarks": 0}, "'n_landmarks' parameter of FrozenHead must be an int"),
        ({"n_landmarks": "all"}, "'n_landmarks' parameter of FrozenHead must be an int"),
        ({"calibration": "fold"}, "'calibration' parameter of FrozenHead"),
        ({"frames": "output"}, "'frames' parameter of FrozenHead must be 'all', 'target' or a tuple of some"),
        ({"layers": (3, 4)}, r"'layers' parameter of FrozenHead must be None or a list.*the 8 features.*Got \(3, 4\)"),
        ({"layers": (0, 8)}, "'layers' parameter of FrozenHead must be None or a list of widths above 0"),
        ({"layers": (4.0, 4.0)}, "'layers' parameter of FrozenHead must be None or a list"),
        ({"layers": 8}, "'layers' parameter of FrozenHead must be None or a list"),
        ({"layers": []}, "'layers' parameter of FrozenHead must be None or a list"),
    ],
)
def test_bad_parameters_are_rejected(classes, options, message):
    with pytest.raises(InvalidInputError, match=message):
        FrozenHead(**options).fit(*classes)
    if "calibration" not in options:
        with pytest.raises(InvalidInputError, match=message):
            FrozenHead(**options).partial_fit(*classes)


def test_bad_rows_are_rejected_and_change_nothing(classes):
    X, y = classes
    fitted = head().fit(X, y)
    before = fitted.predict_uncertainty(X)
    broken = X.copy()
    broken[3, 2] = np.nan
    for call in (fitted.predict, fitted.predict_uncertainty, fitted.assess, fitted.predict_proba):
        with pytest.raises(InvalidInputError, match="X has 7 features, but FrozenHead is expecting 8"):
            call(X[:, :7])
        with pytest.raises(InvalidInputError, match="Input X contains NaN"):
            call(broken)
        with pytest.raises(InvalidInputError, match="0 sample"):
            call(X[:0])
    for rows, labels, message in [
        (broken, y, "contains NaN"),
        (X[:, :7], y, "expecting 8"),
        (X[:0], y[:0], "0 sample"),
        (X[:5], y[:4], "inconsistent"),
        (X[:2], ["cat", "bat"], r"Expected labels among \['cat', 'dog', 'owl'\]. Got \['bat'\]"),
        (X[:2], ["cat", None], "missing value"),
        (X[:2], None, "target y is None"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            fitted.partial_fit(rows, labels)
    np.testing.assert_array_equal(fitted.predict_uncertainty(X), before)
    with pytest.raises(InvalidInputError, match="counts every row once"):
        head().fit(X, y, sample_weight=np.ones(900))
    with pytest.raises(InvalidInputError, match="could not convert"):
        head().fit(pd.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]}), [0, 1])


@pytest.mark.parametrize(("kind", "size"), [("linear", 1e150), ("quadratic", 1e80), ("joint", 1e300)])
def test_features_and_targets_too_large_to_be_squared_are_rejected_and_leave_the_sums_alone(classes, kind, size):
    """Warnings are errors here, so this also checks that numpy does not warn first."""
    X, y = classes
    with pytest.raises(
        InvalidInputError, match=r"Expected features of at most 1e\+\d+ in size.*Got \d.*Drop such rows"
    ):
        head(kind).fit(X * size, y)
    fitted = head(kind).partial_fit(X, y)
    before = fitted.predict_uncertainty(X)
    with pytest.raises(InvalidInputError, match="Expected features of at most"):
        fitted.partial_fit(np.full((3, 8), -size), y[:3])
    assert fitted.n_rows_ == 900
    np.testing.assert_array_equal(fitted.predict_uncertainty(X), before)
    numbers = head(kind).partial_fit(X, X[:, 0])
    with pytest.raises(InvalidInputError, match="Expected standardised targets of at most"):
        numbers.partial_fit(X[:3], [1e200, 0.0, 1.0])
    assert numbers.n_rows_ == 900
    assert head("kernel").fit(X * size, y).n_rows_ == 900  # which sees angles only


def test_tensors_with_a_gradient_are_rejected(classes):
    import torch

    X, _ = classes
    fitted, tensor = head("linear").fit(X, X[:, 0]), torch.tensor(X, requires_grad=True)
    for call in (
        fitted.predict,
        fitted.predict_uncertainty,
        fitted.assess,
        lambda rows: fitted.partial_fit(rows, X[:, 0]),
    ):
        with pytest.raises(InvalidInputError, match=r"Expected X without a gradient.*Pass X\.detach\(\)"):
            call(tensor)
    for method in (fitted.fit, fitted.partial_fit, fitted.calibrate):
        with pytest.raises(InvalidInputError, match=r"Expected y without a gradient.*Pass y\.detach\(\)"):
            method(X, tensor[:, 0])


def test_the_coverage_of_an_assessment_is_named(classes):
    fitted = head("linear", calibration="split").fit(*classes)
    for coverage in (0.0, 1.5, "most"):
        with pytest.raises(InvalidInputError, match="'coverage' parameter of assess must be a float in"):
            fitted.assess(classes[0], coverage=coverage)


def test_bad_targets_are_rejected(classes):
    X, y = classes
    for labels, message in [
        (np.zeros(900, dtype=int), r"FrozenHead needs at least two classes in y\. Got one class, 0\. Add rows"),
        ([], "inconsistent"),
        (None, "target y is None"),
        (np.full(900, np.nan), "contains NaN"),
        (y[:5], "inconsistent"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            head().fit(X, labels)
    with pytest.raises(InvalidInputError, match=r"was fitted with 1 output\(s\). Got 2"):
        head().fit(X, X[:, 0]).partial_fit(X, X[:, :2])


def test_classes_can_be_named_before_their_rows_come(classes):
    X, y = classes
    order = np.argsort(y, kind="stable")
    named = head().partial_fit(X[order][:300], y[order][:300], classes=["owl", "cat", "dog"])
    named.partial_fit(X[order][300:], y[order][300:], classes=["cat", "dog", "owl"])
    assert np.mean(named.predict(X) == y) > 0.85
    with pytest.raises(InvalidInputError, match=r"'classes' parameter of FrozenHead must be \['cat', 'dog', 'owl'\]"):
        named.partial_fit(X, y, classes=["cat", "dog"])
    with pytest.raises(
        InvalidInputError, match=r"'classes' parameter of FrozenHead must be None for a head fitted on numbers"
    ):
        head().fit(X, X[:, 0]).partial_fit(X, X[:, 0], classes=[1, 2])
    with pytest.raises(InvalidInputError, match="'classes' parameter of FrozenHead must be None if task='regression'"):
        head(task="regression").partial_fit(X, X[:, 0], classes=[0, 1])
    for classes_given in ([], ["cat"]):
        with pytest.raises(InvalidInputError, match="at least two classes"):
            head().partial_fit(X, y, classes=classes_given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_batch_needs_a_row_for_each_landmark(classes, kind):
    X, y = classes
    if kind in ("linear", "quadratic"):
        assert head(kind).partial_fit(X[:50], y[:50]).n_rows_ == 50
        return
    with pytest.raises(InvalidInputError, match=r"at least n_landmarks=60 rows.*Got 50\. Pass a larger first batch"):
        head(kind).partial_fit(X[:50], y[:50])


def test_a_head_without_rows_is_not_fitted(classes):
    X, y = classes
    fitted = head().fit(X, y)
    for empty in (head(), FrozenHead.like(fitted)):
        for method in ("predict", "predict_proba", "predict_sigma", "predict_uncertainty", "assess"):
            with pytest.raises(NotFittedError, match="not fitted yet"):
                getattr(empty, method)(X)
        for name in ("heads_", "value_head_", "estimator_"):
            assert not hasattr(empty, name)
        with pytest.raises(NotFittedError):
            empty.calibrate(X, y)
    for call in (lambda: head().merge(fitted), lambda: fitted.merge(head()), lambda: FrozenHead.like(head())):
        with pytest.raises(NotFittedError):
            call()


def test_heads_that_differ_are_not_merged(classes):
    X, y = classes
    fitted = head().fit(X, y)
    before = fitted.predict_uncertainty(X)
    for other, message in [
        (head("linear").fit(X, y), "differ in kind"),
        (head().fit(X[:, :5], y), "number of features"),
        (head().fit(X, np.where(y == "cat", "bat", y)), "differ in classes"),
        (head().fit(X, X[:, 0]), "differ in task, classes"),
        (head(random_state=1).fit(X, y), "columns of the kernel head, draw of rows"),
        (head(n_landmarks=61).fit(X, y), "differ in columns of the kernel head"),
        (head(bandwidth=0.2).fit(X, y), "differ in columns of the kernel head"),
        (head().fit(X[:800], y[:800]), "columns of the linear head"),
        (head(frames="target").fit(X, y), r"These differ in frames\."),
        (head(layers=(2, 6)).fit(X, y), r"differ in columns of the kernel head.*layers\."),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            fitted.merge(other)
    shifted = [head("linear").fit(X, X[:, 0]), head("linear").fit(X, X[:, 0] + 1)]
    with pytest.raises(InvalidInputError, match=r"differ in centre of the target\. Fit one shard first"):
        shifted[0].merge(shifted[1])
    for wrong in (None, Ridge()):
        with pytest.raises(InvalidTypeError, match="merge needs another FrozenHead"):
            fitted.merge(wrong)
        with pytest.raises(InvalidTypeError, match="like needs another FrozenHead"):
            FrozenHead.like(wrong)
    np.testing.assert_array_equal(fitted.predict_uncertainty(X), before)


def test_methods_of_the_other_task_are_rejected(classes, numbers):
    with pytest.raises(InvalidInputError, match=r"fitted on numbers\. Got one fitted on classes"):
        head().fit(*classes).predict_sigma(classes[0])
    with pytest.raises(InvalidInputError, match=r"fitted on classes\. Got one fitted on numbers"):
        head().fit(*numbers).predict_proba(numbers[0])


def test_a_head_gives_intervals_balls_and_sets(numbers, classes):
    X, y = numbers
    Y = np.column_stack([y, X[:, 0] ** 2 - 2 * y])
    frame = pd.DataFrame(Y, columns=["north", "south"])
    fitted = head().fit(X[:300], frame[:300]).calibrate(X[300:600], frame[300:600])
    alone = fitted.predict_interval(X[600:], simultaneous=False)
    boxes = fitted.predict_interval(X[600:])
    assert alone.shape == boxes.shape == (len(X) - 600, 2, 2)
    assert (alone[..., 1] - alone[..., 0] <= boxes[..., 1] - boxes[..., 0]).all()
    result = fitted.assess(X[600:])
    assert result.output_names == ("north", "south")
    assert np.array_equal(boxes, np.stack([result.lower, result.upper], axis=-1))
    inside = np.linalg.norm((Y[600:] - fitted.predict(X[600:])) / fitted.spread_, axis=1)
    assert np.mean(inside <= fitted.predict_radius(X[600:])) == pytest.approx(0.9, abs=0.1)
    value, sigma = fitted.predict(X[600:], return_std=True)
    assert np.array_equal(value, result.value)
    assert np.array_equal(sigma, result.sigma)
    with pytest.raises(InvalidInputError, match=r"predict_set needs a FrozenHead that was fitted on classes\. Got one"):
        fitted.predict_set(X)
    with pytest.raises(InvalidInputError, match=r"predict_proba needs a FrozenHead that was fitted on classes"):
        fitted.predict_proba(X)
    assert not hasattr(fitted, "classes_")

    X, y = classes
    fitted = head().fit(X[:300], y[:300]).calibrate(X[300:600], y[300:600])
    assert np.array_equal(
        fitted.predict_set(X[600:], coverage=0.8), fitted.assess(X[600:], coverage=0.8).prediction_set
    )
    with pytest.raises(
        InvalidInputError, match=r"predict_interval needs a FrozenHead that was fitted on numbers\. Got"
    ):
        fitted.predict_interval(X)
    assert not hasattr(fitted, "spread_")
