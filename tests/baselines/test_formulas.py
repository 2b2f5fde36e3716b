"""Each score against its paper's formula, written out once more with loops, and small cases worked by hand."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.covariance import ledoit_wolf

from onsphere import InvalidInputError, OnsphereWarning
from onsphere.baselines import (
    FDBD,
    KNN,
    MSP,
    NCI,
    Energy,
    Entropy,
    Gini,
    Mahalanobis,
    ViM,
    energy,
    entropy,
    fdbd,
    gini,
    knn,
    last_layer,
    mahalanobis,
    msp,
    nci,
    vim,
)

N_CLASSES, N_FEATURES = 4, 7


@pytest.fixture(scope="module")
def layer():
    rng = np.random.default_rng(5)
    return rng.normal(size=(N_CLASSES, N_FEATURES)), rng.normal(size=N_CLASSES) + 2.0


@pytest.fixture(scope="module")
def train(layer):
    return made(layer, 300, seed=0)


@pytest.fixture(scope="module")
def rows(layer):
    return made(layer, 40, seed=1)


def made(layer, n, seed):
    """Features that vary more in some directions than in others, logits, and labels that are not always predicted."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(N_CLASSES, size=n)
    features = 2.0 * np.eye(N_CLASSES, N_FEATURES)[labels] + rng.normal(size=(n, N_FEATURES)) * np.linspace(1.5, 0.2, 7)
    return features, features @ layer[0].T + layer[1], labels


def scored(detector, train, rows):
    return detector.fit(*train).score(*rows[:2])


# --- logits ---


def softmax_of(row, temperature=1.0):
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 7.0])
def test_scores_of_logits(train, rows, temperature):
    probabilities = [softmax_of(row) for row in rows[1]]
    warm = [softmax_of(row, temperature) for row in rows[1]]
    expected = [1 - max(each) for each in warm]
    np.testing.assert_allclose(scored(MSP(temperature=temperature), train, rows), expected, atol=1e-12)
    expected = [-temperature * math.log(sum(math.exp(value / temperature) for value in row)) for row in rows[1]]
    np.testing.assert_allclose(scored(Energy(temperature=temperature), train, rows), expected, atol=1e-12)
    expected = [1 - sum(p * p for p in each) for each in probabilities]
    np.testing.assert_allclose(scored(Gini(), train, rows), expected, atol=1e-12)
    expected = [-sum(p * math.log(p) for p in each) for each in probabilities]
    np.testing.assert_allclose(scored(Entropy(), train, rows), expected, atol=1e-12)


LOGITS = arrays(float, (3, 4), elements=st.floats(-50, 50))


@given(LOGITS, st.floats(-1e3, 1e3))
def test_a_constant_added_to_logits_moves_the_energy_alone(logits, constant):
    for score in (msp, gini, entropy):
        np.testing.assert_allclose(score(logits + constant), score(logits), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(energy(logits + constant), energy(logits) - constant, rtol=1e-9, atol=1e-9)


@given(LOGITS, st.permutations(range(3)), st.permutations(range(4)))
def test_the_order_of_rows_and_classes_does_not_matter(logits, order, classes):
    for score in (msp, gini, entropy, energy):
        np.testing.assert_allclose(
            score(logits[order][:, classes]), score(logits)[np.array(order)], rtol=1e-9, atol=1e-12
        )


def test_sure_rows_are_still_told_apart():
    """1 − p would be 0 for both."""
    logits = [[60.0, 0.0, 0.0], [80.0, 0.0, 0.0]]
    np.testing.assert_allclose(msp(logits), [2 * math.exp(-60), 2 * math.exp(-80)])
    np.testing.assert_allclose(gini(logits), [4 * math.exp(-60), 4 * math.exp(-80)])


# --- distances ---


def test_mahalanobis(train, rows):
    features, _, labels = train
    means = [features[labels == index].mean(axis=0) for index in range(N_CLASSES)]
    covariance = np.zeros((N_FEATURES, N_FEATURES))
    for row, label in zip(features, labels, strict=True):
        covariance += np.outer(row - means[label], row - means[label]) / len(features)
    precision = np.linalg.inv(covariance)
    expected = [min((row - mean) @ precision @ (row - mean) for mean in means) for row in rows[0]]
    np.testing.assert_allclose(scored(Mahalanobis(), train, rows), expected, rtol=1e-9)


def test_mahalanobis_by_hand():
    features = [[-1.0], [1.0], [9.0], [11.0]]  # means 0 and 10, variance 1
    detector = Mahalanobis().fit(features, np.zeros((4, 2)), ["a", "a", "b", "b"])
    np.testing.assert_allclose(detector.score([[2.0], [10.0], [13.0]], np.zeros((3, 2))), [4.0, 0.0, 9.0])
    np.testing.assert_allclose(mahalanobis([[1.0, 2.0]], np.zeros((1, 2)), np.array([[1.0, 1.0], [0.0, 3.0]])), [45.0])


def with_copy(train):
    return np.hstack([train[0], train[0][:, :1]]), train[1], train[2]


def with_constant(train):
    return np.hstack([train[0], np.ones((len(train[0]), 1))]), train[1], train[2]


def with_few_rows(train):
    keep = np.concatenate([np.flatnonzero(train[2] == index)[:2] for index in range(N_CLASSES)])
    wide = np.random.default_rng(0).normal(size=(len(keep), 12))
    return wide, train[1][keep], train[2][keep]


@pytest.mark.parametrize("change", [with_copy, with_constant, with_few_rows])
def test_a_singular_covariance_is_shrunk_and_says_so(train, change):
    features, logits, labels = change(train)
    with pytest.warns(OnsphereWarning, match=r"is singular; Mahalanobis shrinks it by .* Drop constant") as caught:
        detector = Mahalanobis().fit(features, logits, labels)
    assert caught[0].filename == __file__
    means = np.array([features[labels == index].mean(axis=0) for index in range(N_CLASSES)])
    centered = features - means[labels]
    scale = np.sqrt(np.mean(centered**2, axis=0))
    scale[scale == 0.0] = min(each for each in scale if each > 0.0)
    correlation, shrinkage = ledoit_wolf(centered / scale, assume_centered=True)
    np.fill_diagonal(correlation, 1.0)
    assert shrinkage > 1e-6
    expected = []
    for row in features:
        steps = [(row - mean) / scale for mean in means]
        expected.append(min(step @ np.linalg.solve(correlation, step) for step in steps))
    np.testing.assert_allclose(detector.score(features, logits), expected, rtol=1e-6)


def test_columns_of_unlike_units_are_not_singular(train, rows):
    units = 10.0 ** np.arange(-9, 12, 3)
    there = Mahalanobis().fit(train[0] * units, *train[1:]).score(rows[0] * units, rows[1])
    np.testing.assert_allclose(there, scored(Mahalanobis(), train, rows), rtol=1e-8)


def test_a_singular_covariance_is_shrunk_where_ledoit_and_wolf_would_not():
    """Two rows to either side of each mean: their squares do not vary, so the covariance counts as exact."""
    features = np.array([[1.0, 0.0], [-1.0, 0.0], [11.0, 0.0], [9.0, 0.0]])
    with pytest.warns(OnsphereWarning, match=r"shrinks it by 1e-06"):
        detector = Mahalanobis().fit(features, np.zeros((4, 2)), [0, 0, 1, 1])
    # The constant feature counts as much as the other one.
    np.testing.assert_allclose(detector.score([[2.0, 0.0], [0.0, 2.0]], np.zeros((2, 2))), [4.0, 4.0], rtol=1e-5)


@pytest.mark.parametrize("constant", [7.0, 0.1, -1e9 / 3])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_constant_feature_does_not_hide_small_features_behind_large_ones(constant, unit):
    """A mean of 0.1s is 0.1 but for rounding, which is no variation."""
    rng = np.random.default_rng(0)
    features = np.c_[rng.normal(size=400) * 1e4, rng.normal(size=400), np.full(400, constant)] * unit
    logits, labels = np.zeros((400, 2)), np.arange(400) % 2
    with pytest.warns(OnsphereWarning, match="is singular"):
        detector = Mahalanobis().fit(features, logits, labels)
    strange = np.array([[0.0, 100.0, constant], [0.0, 0.0, constant + 100.0]]) * unit
    scores = detector.score(strange, np.zeros((2, 2)))
    assert scores.min() > 100 * detector.score(features, logits).max()
    np.testing.assert_allclose(scores, 100.0**2, rtol=0.2)


@pytest.mark.parametrize(("k", "every"), [(1, 1), (5, 1), (50, 3)])
def test_knn(train, rows, k, every):
    def unit(row):
        return row / math.sqrt(sum(value * value for value in row))

    kept = [unit(row) for row in train[0][::every]]
    expected = [sorted(math.dist(unit(row), other) for other in kept)[k - 1] for row in rows[0]]
    np.testing.assert_allclose(scored(KNN(k=k, every=every), train, rows), expected, atol=1e-7)
    np.testing.assert_allclose(knn(rows[0], train[0][::every], k=k), expected, atol=1e-7)


def test_knn_by_hand():
    kept = [[2.0, 0.0], [0.0, 0.1], [-3.0, 0.0]]
    np.testing.assert_allclose(knn([[9.0, 0.0]], kept, k=1), [0.0], atol=1e-7)
    np.testing.assert_allclose(knn([[9.0, 0.0]], kept, k=2), [math.sqrt(2)])
    np.testing.assert_allclose(knn([[9.0, 0.0]], kept, k=3), [2.0])
    np.testing.assert_allclose(knn([[0.0, 0.0]], kept, k=1), [1.0])  # no direction: equally far from all


# --- the last layer ---


@pytest.mark.parametrize("kind", ["double", "single", "half"])
def test_the_last_layer_comes_back(train, layer, kind):
    features, tolerance = train[0] * 10.0 ** np.arange(-3, 4), {"double": 1e-9, "single": 1e-4, "half": 3e-2}[kind]
    weight = layer[0] / 10.0 ** np.arange(-3, 4)
    logits = (features @ weight.T + layer[1]).astype({"double": "f8", "single": "f4", "half": "f2"}[kind])
    found, bias = last_layer(features, logits)
    scale = 10.0 ** np.arange(-3, 4)
    np.testing.assert_allclose(found * scale, weight * scale, atol=tolerance)
    np.testing.assert_allclose(bias, layer[1], atol=tolerance)


def test_a_feature_that_never_varies_has_no_weight(train, layer):
    found, bias = last_layer(np.hstack([train[0], np.full((300, 1), 5.0)]), train[1])
    np.testing.assert_allclose(found, np.hstack([layer[0], np.zeros((N_CLASSES, 1))]), atol=1e-9)
    np.testing.assert_allclose(bias, layer[1], atol=1e-9)


def test_logits_that_do_not_depend_on_features_have_no_weights(train):
    weight, bias = last_layer(train[0], np.tile([3.0, 4.0], (300, 1)))
    np.testing.assert_array_equal(weight, np.zeros((2, N_FEATURES)))
    np.testing.assert_array_equal(bias, [3.0, 4.0])


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)),
        lambda logits: np.maximum(logits, 0.0),
        lambda logits: logits[::-1],
    ],
    ids=["log-probabilities", "rectified", "other rows"],
)
@pytest.mark.parametrize("detector", [ViM(), FDBD(), NCI()], ids=lambda each: type(each).__name__)
def test_logits_that_are_no_linear_function_of_features(train, detector, change):
    message = r"linear function of the features.* Got logits with \d+% of their spread left over\. Pass the inputs"
    with pytest.raises(InvalidInputError, match=message):
        detector.fit(train[0], change(train[1]), train[2])


def test_the_last_layer_needs_more_rows_than_features(train):
    with pytest.raises(InvalidInputError, match=r"more rows than features\. Got 7 rows of 7 features"):
        last_layer(train[0][:7], train[1][:7])
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        last_layer(train[0], train[1][1:])


@pytest.mark.parametrize("n_principal", [None, 2, 6])
def test_vim(train, rows, layer, n_principal):
    weight, bias = layer
    origin = -np.linalg.pinv(weight) @ bias
    np.testing.assert_allclose(weight @ origin + bias, 0.0, atol=1e-9)  # all logits vanish there
    moved = train[0] - origin
    principal = np.linalg.svd(moved, full_matrices=False)[2][: n_principal or 3]

    def residual(row):
        inside = sum(((row - origin) @ axis) * axis for axis in principal)
        return math.sqrt(sum((row - origin - inside) ** 2))

    alpha = sum(max(row) for row in train[1]) / sum(residual(row) for row in train[0])
    expected = []
    for features, logits in zip(*rows[:2], strict=True):
        virtual = math.exp(alpha * residual(features))
        probability = virtual / (virtual + sum(math.exp(value) for value in logits))
        expected.append(math.log(probability / (1 - probability)))
    np.testing.assert_allclose(scored(ViM(n_principal=n_principal), train, rows), expected, rtol=1e-6)


def test_vim_by_hand():
    axis = np.array([[0.0], [0.0], [1.0]])
    score = vim([[1.0, 1.0, 5.0], [1.0, 1.0, 2.0]], [[0.0], [0.0]], np.array([0.0, 0.0, 2.0]), axis, 0.5)
    np.testing.assert_allclose(score, [1.5, 0.0])


@pytest.mark.parametrize(("n_features", "n_principal"), [(2, 1), (64, 32), (767, 383), (768, 512), (2048, 1000)])
def test_the_choose_n_principal_for_the_principal_space(n_features, n_principal):
    from onsphere.baselines.subspace import _choose_n_principal

    assert _choose_n_principal(n_features) == n_principal


def test_what_vim_cannot_use(train, layer):
    flat = train[0] * [1, 1, 0, 0, 0, 0, 0]
    weight = layer[0] * [1, 1, 0, 0, 0, 0, 0]
    with pytest.raises(InvalidInputError, match=r"within the 3 principal dimensions\. Got residuals of zero\. Choose"):
        ViM().fit(flat, flat @ weight.T, train[2])
    with pytest.raises(InvalidInputError, match=r"above zero on average. Got -\d+"):
        ViM().fit(train[0], train[1] - 100.0, train[2])
    with pytest.raises(InvalidInputError, match="at least two features"):
        ViM().fit(train[0][:, :1], train[0][:, :1] * [1.0, 2.0, 3.0, 4.0], train[2])


def test_fdbd(train, rows, layer):
    """Distances to boundaries by walking there: the foot of the perpendicular has two equal logits."""
    weight, bias = layer
    mean = train[0].mean(axis=0)
    expected = []
    for features in rows[0]:
        logits = weight @ features + bias
        best, distances = int(np.argmax(logits)), []
        for other in set(range(N_CLASSES)) - {best}:
            normal = (weight[best] - weight[other]) / np.linalg.norm(weight[best] - weight[other])
            low, high = 0.0, 1e3
            for _ in range(100):
                middle = (low + high) / 2
                there = weight @ (features - middle * normal) + bias
                low, high = (middle, high) if there[best] > there[other] else (low, middle)
            distances.append(low)
        expected.append(-np.mean(distances) / math.dist(features, mean))
    np.testing.assert_allclose(scored(FDBD(), train, rows), expected, rtol=1e-7)


def test_fdbd_where_there_is_no_ratio():
    weight, mean = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), np.array([1.0, 1.0])
    score = fdbd([[1.0, 1.0], [4.0, 1.0]], [[1.0, 1.0, 0.0], [4.0, 4.0, 0.0]], weight, mean)
    # At the mean; and a class with the weights of the predicted one, which leaves the third, at distance 4.
    assert score.tolist() == [0.0, -4.0 / 3.0]
    assert fdbd([[2.0]], [[1.0, 1.0]], np.ones((2, 1)), np.zeros(1)).tolist() == [0.0]


def test_fdbd_is_the_same_from_weights_and_from_a_fit(train, rows):
    detector = FDBD().fit(*train)
    expected = fdbd(rows[0], rows[1], detector.weight_, detector.mean_)
    np.testing.assert_array_equal(detector.score(rows[0], rows[1]), expected)
    distances = [[math.dist(one, other) for other in detector.weight_] for one in detector.weight_]
    np.testing.assert_allclose(detector.gaps_, distances, rtol=1e-12)


def test_fdbd_leaves_out_classes_of_exactly_the_same_weights():
    weight = np.repeat(np.random.default_rng(0).normal(size=(2, 37)), 2, axis=0)
    features = np.random.default_rng(1).normal(size=(20, 37))
    logits = features @ weight.T + [0.0, 5.0, 0.0, 5.0]
    scores = fdbd(features, logits, weight, np.zeros(37))
    for row, said, score in zip(features, logits, scores, strict=True):
        best = int(said.argmax())
        others = [2, 3] if best < 2 else [0, 1]
        mean = np.mean([(said[best] - said[other]) / math.dist(weight[best], weight[other]) for other in others])
        assert score == pytest.approx(-mean / math.hypot(*row))


def test_fdbd_of_many_classes_takes_little_memory():
    n_classes, n_features = 200, 128
    rng = np.random.default_rng(0)
    weight, mean = rng.normal(size=(n_classes, n_features)), np.zeros(n_features)
    features = rng.normal(size=(400, n_features))
    detector = FDBD().fit(features, features @ weight.T, np.arange(400) % n_classes)
    row = features[:1], features[:1] @ weight.T
    for score in (lambda: fdbd(*row, weight, mean), lambda: detector.score(*row)):
        tracemalloc.start()
        score()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # All differences of weights would take 41 MB.
        assert peak < 2e6


@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.3])
def test_nci(train, rows, layer, alpha):
    mean = train[0].mean(axis=0)
    expected = []
    for features, logits in zip(*rows[:2], strict=True):
        centered, chosen = features - mean, layer[0][int(np.argmax(logits))]
        cosine = centered @ chosen / np.linalg.norm(centered) / np.linalg.norm(chosen)
        expected.append(-cosine * np.linalg.norm(chosen) - alpha * sum(abs(features)))
    np.testing.assert_allclose(scored(NCI(alpha=alpha), train, rows), expected, rtol=1e-9)


def test_nci_at_the_mean():
    assert nci([[1.0, -2.0]], [[0.0, 1.0]], np.eye(2), np.array([1.0, -2.0]), alpha=0.5).tolist() == [-1.5]
