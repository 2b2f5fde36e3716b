"""The scores against the formulas of their papers, written out with loops, and small cases worked by hand."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.stats import ortho_group
from sklearn.base import clone

from onsphere import InvalidInputError
from reproduction.baselines import FDBD, NCI, ViM, fdbd, nci, vim
from reproduction.baselines.subspace import _choose_n_principal, recover_last_layer

N_CLASSES, N_FEATURES = 4, 7


ALL = [ViM(), FDBD(), NCI()]


def name_detector(detector):
    return type(detector).__name__


def parametrize(*kinds):
    return pytest.mark.parametrize("detector", [each for each in ALL if isinstance(each, kinds)], ids=name_detector)


def score(detector, train, rows):
    return clone(detector).fit(*train).score(*rows[:2])


@pytest.mark.parametrize("kind", ["double", "single", "half"])
def test_the_last_layer_is_recovered(train, layer, kind):
    features, tolerance = train[0] * 10.0 ** np.arange(-3, 4), {"double": 1e-9, "single": 1e-4, "half": 3e-2}[kind]
    weight = layer[0] / 10.0 ** np.arange(-3, 4)
    logits = (features @ weight.T + layer[1]).astype({"double": "f8", "single": "f4", "half": "f2"}[kind])
    found, bias = recover_last_layer(features, logits)
    scale = 10.0 ** np.arange(-3, 4)
    np.testing.assert_allclose(found * scale, weight * scale, atol=tolerance)
    np.testing.assert_allclose(bias, layer[1], atol=tolerance)


def test_a_constant_feature_has_weight_zero(train, layer):
    found, bias = recover_last_layer(np.hstack([train[0], np.full((300, 1), 5.0)]), train[1])
    np.testing.assert_allclose(found, np.hstack([layer[0], np.zeros((N_CLASSES, 1))]), atol=1e-9)
    np.testing.assert_allclose(bias, layer[1], atol=1e-9)


def test_logits_that_do_not_depend_on_features_have_weights_of_zero(train):
    weight, bias = recover_last_layer(train[0], np.tile([3.0, 4.0], (300, 1)))
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
@parametrize(ViM, FDBD, NCI)
def test_logits_that_are_not_linear_in_the_features_are_rejected(train, detector, change):
    message = r"linear function of the features.* Got logits with \d+% of their spread left over\. Pass the inputs"
    with pytest.raises(InvalidInputError, match=message):
        clone(detector).fit(train[0], change(train[1]), train[2])


def test_the_last_layer_needs_more_rows_than_features(train):
    with pytest.raises(InvalidInputError, match=r"more rows than features\. Got 7 rows of 7 features"):
        recover_last_layer(train[0][:7], train[1][:7])
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        recover_last_layer(train[0], train[1][1:])


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
    np.testing.assert_allclose(score(ViM(n_principal=n_principal), train, rows), expected, rtol=1e-6)


def test_vim_by_hand():
    axis = np.array([[0.0], [0.0], [1.0]])
    score = vim([[1.0, 1.0, 5.0], [1.0, 1.0, 2.0]], [[0.0], [0.0]], np.array([0.0, 0.0, 2.0]), axis, 0.5)
    np.testing.assert_allclose(score, [1.5, 0.0])


@pytest.mark.parametrize(("n_features", "n_principal"), [(2, 1), (64, 32), (767, 383), (768, 512), (2048, 1000)])
def test_the_default_size_of_the_principal_space(n_features, n_principal):
    assert _choose_n_principal(n_features) == n_principal


def test_vim_rejects_features_and_logits_it_cannot_use(train, layer):
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
    np.testing.assert_allclose(score(FDBD(), train, rows), expected, rtol=1e-7)


def test_fdbd_is_zero_where_the_ratio_is_undefined():
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


def test_fdbd_leaves_out_classes_with_the_same_weights():
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
    np.testing.assert_allclose(score(NCI(alpha=alpha), train, rows), expected, rtol=1e-9)


def test_nci_at_the_mean():
    assert nci([[1.0, -2.0]], [[0.0, 1.0]], np.eye(2), np.array([1.0, -2.0]), alpha=0.5).tolist() == [-1.5]


# --- what cannot be used ---


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        (ViM(n_principal=7), r"'n_principal' parameter of ViM must be an int in \(0, 7\). Got 7"),
        (ViM(n_principal=0), "'n_principal' parameter of ViM"),
        (ViM(n_principal=2.5), "'n_principal' parameter of ViM"),
        (NCI(alpha=-0.1), "'alpha' parameter of NCI"),
    ],
)
def test_parameters_that_cannot_be_used(detector, train, message):
    with pytest.raises(InvalidInputError, match=message):
        detector.fit(*train)


@pytest.mark.parametrize(
    "call",
    [
        lambda: vim([[1.0]], [[np.nan]], np.zeros(1), np.eye(1), 1.0),
        lambda: fdbd([1.0], [[1.0, 2.0]], np.ones((2, 1)), np.zeros(1)),
        lambda: nci([[1.0]], [[1.0, 2.0]], np.ones((2, 1)), np.zeros(1), alpha=-1.0),
        lambda: vim([[1.0]], np.ones((5, 2)), np.zeros(1), np.eye(1), 1.0),
        lambda: fdbd([[1.0]], np.ones((5, 2)), np.ones((2, 1)), np.zeros(1)),
        lambda: nci([[1.0]], np.ones((5, 2)), np.ones((2, 1)), np.zeros(1)),
    ],
)
def test_the_functions_reject_bad_input_too(call):
    with pytest.raises(InvalidInputError):
        call()


# --- what the theory says ---


def score_after(detector, train, rows, change):
    return clone(detector).fit(change(train[0]), *train[1:]).score(change(rows[0]), rows[1])


ROTATION = ortho_group.rvs(N_FEATURES, random_state=3)


@parametrize(ViM, FDBD)
def test_rotated_features_and_another_unit_give_the_same_scores(detector, train, rows):
    turned = score_after(detector, train, rows, lambda X: 1e3 * X @ ROTATION)
    np.testing.assert_allclose(turned, score(detector, train, rows), rtol=1e-6, atol=1e-7)


@parametrize(ViM, FDBD)
def test_shifted_features_give_the_same_scores(detector, train, rows, layer):
    shift = np.arange(7.0)
    # ViM's origin is the point nearest to zero where the logits vanish; it moves along with the layer's rows alone.
    shift = shift @ np.linalg.pinv(layer[0]) @ layer[0] if isinstance(detector, ViM) else shift
    moved = score_after(detector, train, rows, lambda X: X + shift)
    np.testing.assert_allclose(moved, score(detector, train, rows), rtol=1e-6, atol=1e-7)


@parametrize(FDBD, NCI)
def test_a_constant_added_to_all_logits_gives_the_same_scores(detector, train, rows):
    moved = clone(detector).fit(train[0], train[1] + 9.0, train[2]).score(rows[0], rows[1] + 9.0)
    np.testing.assert_allclose(moved, score(detector, train, rows), rtol=1e-9)


def test_nci_without_the_size_of_features(train, rows):
    """Its weights are those of the layer, so they shrink as features grow."""
    detector = NCI(alpha=0.0)
    expected = score(detector, train, rows)
    turned = score_after(detector, train, rows, lambda X: X @ ROTATION + 7.0)
    np.testing.assert_allclose(turned, expected, rtol=1e-7)
    np.testing.assert_allclose(score_after(detector, train, rows, lambda X: 10.0 * X), expected / 10, rtol=1e-7)


@parametrize(ViM, FDBD, NCI)
def test_an_unusual_row_that_the_last_layer_does_not_see(detector, train, layer):
    model = clone(detector).fit(*train)
    unusual = train[0][:20] + 50.0 * null_space(layer[0]) @ np.array([1.0, -1.0, 1.0])
    assert model.score(unusual, train[1][:20]).min() > np.median(model.score(*train[:2]))


def add_logits(features, layer):
    return features, features @ layer[0].T + layer[1]


def test_nci_trusts_a_row_far_out_in_the_direction_of_a_class(train, layer):
    """As its docstring says: large features are taken for a good sign."""
    model = NCI().fit(*train)
    far = add_logits(100.0 * train[0].mean(axis=0) + 1e4 * layer[0][:1], layer)
    assert model.score(*far)[0] < np.quantile(model.score(*train[:2]), 0.1)


def test_vim_does_not_trust_a_row_far_out(train, layer):
    model = ViM().fit(*train)
    far = add_logits(-100.0 * layer[0][:1] + 90.0 * null_space(layer[0])[:, 0], layer)
    assert model.score(*far)[0] > model.score(*train[:2]).max()
    with pytest.raises(InvalidInputError, match=r"Got values so large that the score of 1 row\(s\) overflows"):
        model.score([[1e300] * 7, [1.0] * 7], np.ones((2, 4)))
