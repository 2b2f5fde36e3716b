"""Scores against their formulas, written out once more by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onsphere import SphericalOutput
from onsphere.sphere import scores

directions = hnp.arrays(np.float64, (4, 3), elements=st.floats(-3, 3))
magnitudes = hnp.arrays(np.float64, 4, elements=st.floats(0, 5))


@given(directions, magnitudes)
def test_each_score_equals_its_formula(direction, magnitude):
    outputs = SphericalOutput(direction, magnitude)
    n = np.sqrt((direction**2).sum(axis=1))
    expected = {
        scores.uncertainty: magnitude * np.abs(n - 1),
        scores.violation: np.abs(n - 1),
        scores.signed: 1 - n,
        scores.gini: 1 - n**2,
    }
    for score, values in expected.items():
        np.testing.assert_allclose(score(outputs), values, rtol=1e-12, atol=1e-12)
    residual = np.abs(magnitude * direction[:, 2] - 2.0)
    np.testing.assert_allclose(scores.anchor_residual(outputs, 2.0), residual, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(scores.anchored(outputs, 2.0), magnitude * np.abs(n - 1) + residual, atol=1e-12)


@pytest.mark.parametrize(
    ("length", "confidence"),
    [(1.0, 1.0), (2.0, np.exp(-1)), (0.5, np.exp(-1)), (0.25, np.exp(-3)), (2e-311, 0.0), (0.0, 0.0)],
)
def test_the_reference_confidence_falls_on_both_sides_of_the_sphere(length, confidence):
    outputs = SphericalOutput(np.array([[length, 0.0]]), np.ones(1))
    assert scores.reference_confidence(outputs)[0] == pytest.approx(confidence, abs=1e-15)
    assert scores.reference(outputs)[0] == pytest.approx(1 - confidence, abs=1e-15)


@given(directions)
def test_scores_run_on_torch_too(direction):
    ours = SphericalOutput(direction, np.ones(4))
    theirs = SphericalOutput(torch.tensor(direction), torch.ones(4, dtype=torch.float64))
    for score in (scores.uncertainty, scores.violation, scores.signed, scores.gini, scores.reference):
        np.testing.assert_allclose(score(ours), score(theirs).numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(scores.anchored(ours, 3.0), scores.anchored(theirs, 3.0).numpy(), rtol=1e-12)
