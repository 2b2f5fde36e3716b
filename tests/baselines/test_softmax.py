"""The scores against the formulas of their papers, written out with loops, and small cases worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onsphere.baselines import MSP, Energy, Entropy, Gini, energy, entropy, gini, msp


def fit_and_score(detector, train, rows):
    return detector.fit(*train).score(*rows[:2])


def softmax_of(row, temperature=1.0):
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 7.0])
def test_scores_of_logits(train, rows, temperature):
    probabilities = [softmax_of(row) for row in rows[1]]
    warm = [softmax_of(row, temperature) for row in rows[1]]
    expected = [1 - max(each) for each in warm]
    np.testing.assert_allclose(fit_and_score(MSP(temperature=temperature), train, rows), expected, atol=1e-12)
    expected = [-temperature * math.log(sum(math.exp(value / temperature) for value in row)) for row in rows[1]]
    np.testing.assert_allclose(fit_and_score(Energy(temperature=temperature), train, rows), expected, atol=1e-12)
    expected = [1 - sum(p * p for p in each) for each in probabilities]
    np.testing.assert_allclose(fit_and_score(Gini(), train, rows), expected, atol=1e-12)
    expected = [-sum(p * math.log(p) for p in each) for each in probabilities]
    np.testing.assert_allclose(fit_and_score(Entropy(), train, rows), expected, atol=1e-12)


LOGITS = arrays(float, (3, 4), elements=st.floats(-50, 50))


@given(LOGITS, st.floats(-1e3, 1e3))
def test_a_constant_added_to_logits_moves_only_the_energy(logits, constant):
    for score in (msp, gini, entropy):
        np.testing.assert_allclose(score(logits + constant), score(logits), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(energy(logits + constant), energy(logits) - constant, rtol=1e-9, atol=1e-9)


@given(LOGITS, st.permutations(range(3)), st.permutations(range(4)))
def test_the_order_of_rows_and_classes_does_not_matter(logits, order, classes):
    for score in (msp, gini, entropy, energy):
        np.testing.assert_allclose(
            score(logits[order][:, classes]), score(logits)[np.array(order)], rtol=1e-9, atol=1e-12
        )


def test_very_sure_rows_get_different_scores():
    """1 − p would be 0 for both."""
    logits = [[60.0, 0.0, 0.0], [80.0, 0.0, 0.0]]
    np.testing.assert_allclose(msp(logits), [2 * math.exp(-60), 2 * math.exp(-80)])
    np.testing.assert_allclose(gini(logits), [4 * math.exp(-60), 4 * math.exp(-80)])
