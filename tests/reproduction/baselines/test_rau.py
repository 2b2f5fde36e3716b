"""RAU: the sphere, the loss and the training."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits

from reproduction.baselines import RAU, rau_loss
from reproduction.baselines.rau import label_vectors, spherical_logits


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[::2], np.zeros((len(X[::2]), 10)), y[::2], X[1::2], y[1::2]


@pytest.fixture(scope="module")
def head(digits):
    return RAU(n_steps=300, random_state=0).fit(*digits[:3])


def predict_proba(head, X):
    return softmax(spherical_logits(X, head.weight_, head.bias_, scale=head.scale), axis=1)


@pytest.mark.parametrize("n_classes", [2, 3, 10, 77])
def test_label_vectors_are_units_at_equal_angles(n_classes):
    cosines = label_vectors(n_classes) @ label_vectors(n_classes).T
    expected = np.where(np.eye(n_classes) == 1, 1.0, -1.0 / (n_classes - 1))
    np.testing.assert_allclose(cosines, expected, atol=1e-12)


def test_logits_are_scaled_cosines():
    rng = np.random.default_rng(0)
    features, weight, bias = rng.normal(size=(6, 4)), rng.normal(size=(3, 4)), rng.normal(size=3)
    corners = [[2, -1, -1], [-1, 2, -1], [-1, -1, 2]]
    expected = []
    for row in features:
        place = [sum(w * x for w, x in zip(line, row, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
        expected.append([7.0 * np.dot(place, corner) / math.hypot(*place) / math.sqrt(6) for corner in corners])
    np.testing.assert_allclose(spherical_logits(features, weight, bias, scale=7.0), expected, atol=1e-12)


def written_out(probabilities, labels, threshold):
    counts = dict.fromkeys(("AC", "AU", "IC", "IU"), 0.0)
    for row, label in zip(probabilities, labels, strict=True):
        confidence, doubt = max(row), -sum(p * math.log(p) for p in row)
        right, certain = int(np.argmax(row)) == label, doubt <= threshold
        value = (confidence if right else 1 - confidence) * (1 - math.tanh(doubt) if certain else math.tanh(doubt))
        counts[("A" if right else "I") + ("C" if certain else "U")] += value
    accurate = counts["AU"] / (counts["AC"] + counts["AU"] or 1.0)
    inaccurate = counts["IC"] / (counts["IC"] + counts["IU"] or 1.0)
    return math.log(1 + accurate + inaccurate)


@pytest.mark.parametrize("threshold", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_loss(seed, threshold):
    rng = np.random.default_rng(seed)
    log_probabilities = log_softmax(3.0 * rng.normal(size=(40, 4)), axis=1)
    labels = rng.integers(4, size=40)
    loss = rau_loss(torch.as_tensor(log_probabilities), torch.as_tensor(labels), threshold=threshold)
    assert float(loss) == pytest.approx(written_out(np.exp(log_probabilities), labels, threshold), rel=1e-9)


@pytest.mark.parametrize(
    ("probabilities", "labels", "expected"),
    [
        ([[0.99, 0.01]], [0], 0.0),  # right and certain
        ([[0.5001, 0.4999]], [1], 0.0),  # wrong and uncertain
        ([[0.5001, 0.4999]], [0], math.log(2)),  # right and uncertain
        ([[0.99, 0.01]], [1], math.log(2)),  # wrong and certain
        ([[0.5001, 0.4999], [0.99, 0.01]], [0, 1], math.log(3)),  # both
        (
            [[0.99, 0.01]] * 1000 + [[0.01, 0.99]],
            [0] * 1001,
            math.log(2),
        ),  # one wrong row weighs as much as all right ones
    ],
)
def test_the_loss_by_hand(probabilities, labels, expected):
    log_probabilities = torch.tensor(probabilities, dtype=torch.float64).log()
    assert float(rau_loss(log_probabilities, torch.tensor(labels))) == pytest.approx(expected, abs=1e-9)


def test_the_loss_has_finite_slopes_where_probabilities_are_zero_in_numbers():
    logits = torch.tensor([[2000.0, 0.0], [0.0, 2000.0]], dtype=torch.float64, requires_grad=True)
    rau_loss(torch.log_softmax(logits, dim=1), torch.tensor([0, 0])).backward()
    assert torch.isfinite(logits.grad).all()


def test_one_step_down_the_loss_asks_for_doubt_where_wrong_and_certainty_where_right():
    """Among the wrong, those that doubt already weigh against those that do not, so they too gain by more doubt."""
    logits = torch.tensor([[1.0, 0.0], [4.0, 0.0], [3.0, 0.0], [1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor(
        [0, 0, 1, 1]
    )  # right and uncertain, right and certain, wrong and certain, wrong and uncertain

    def doubt(values):
        probabilities = torch.softmax(values, dim=1)
        return -(probabilities * probabilities.log()).sum(dim=1)

    rau_loss(torch.log_softmax(logits, dim=1), labels, threshold=0.5).backward()
    change = doubt(logits.detach() - 0.01 * logits.grad) - doubt(logits.detach())
    assert (change.sign() == torch.tensor([-1.0, -1.0, 1.0, 1.0])).all()


def test_the_head_classifies_and_doubts_what_it_gets_wrong(head, digits):
    *_, X, y = digits
    probabilities = predict_proba(head, X)
    predicted = probabilities.argmax(axis=1)
    assert (predicted == y).mean() > 0.91
    scores = head.score(X, np.zeros((len(X), 10)))
    np.testing.assert_allclose(scores, 1.0 - probabilities.max(axis=1), atol=1e-12)
    assert scores[predicted != y].mean() > 3 * scores[predicted == y].mean()


def test_probabilities_are_bounded_by_the_scale(digits):
    mild = RAU(scale=2.0, n_steps=50, random_state=0).fit(*digits[:3])
    highest = 1 / (1 + 9 * math.exp(-2.0 * (1 + 1 / 9)))
    assert predict_proba(mild, digits[3]).max() <= highest + 1e-9


def test_seeds(digits, head):
    features, logits, labels, rows, _ = digits
    zeros = np.zeros((len(rows), 10))
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    with torch.no_grad():  # which must not keep it from training
        again = RAU(n_steps=300, random_state=0).fit(features, logits, labels)
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(again.score(rows, zeros), head.score(rows, zeros))
    other = RAU(n_steps=20, random_state=np.random.RandomState(5)).fit(features, logits, labels)
    assert not np.array_equal(other.score(rows, zeros), head.score(rows, zeros))


def test_the_rebalanced_loss_is_lowered_where_the_head_must_err():
    """Clouds that overlap; without the loss, beside it."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=1000)
    features = np.eye(3)[labels] + 0.7 * rng.normal(size=(1000, 3))
    losses = []
    for weight in (0.0, 1.0, 10.0):
        model = RAU(rau_weight=weight, n_steps=300, random_state=0).fit(features, features, labels)
        probabilities = predict_proba(model, features)
        losses.append(float(rau_loss(torch.as_tensor(np.log(probabilities)), torch.as_tensor(labels))))
        assert (probabilities.argmax(axis=1) == labels).mean() > 0.65
    assert losses[0] > losses[1] > losses[2]
