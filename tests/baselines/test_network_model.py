"""Several predictions of one row, combined into one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onsphere.baselines.network_model import combine_draws, disagreement


@pytest.mark.parametrize("unit", [1e-200, 1e160])
def test_draws_of_any_unit_are_combined_alike(unit):
    rng = np.random.default_rng(0)
    values, sigmas = rng.normal(size=(4, 6, 2)), rng.uniform(size=(4, 6, 2))
    plain, scaled = combine_draws(values, sigmas), combine_draws(unit * values, unit * sigmas)
    for one, other in zip(plain[:3], scaled[:3], strict=True):
        np.testing.assert_allclose(other / unit, one)


@given(arrays(float, (3, 4, 5), elements=st.floats(0, 1)))
def test_disagreement_is_the_mutual_information(raw):
    probabilities = (raw + 1e-12) / (raw + 1e-12).sum(axis=2, keepdims=True)
    found = disagreement(probabilities)

    def entropy(shares):
        return -np.sum(shares * np.log(shares), axis=-1)

    np.testing.assert_allclose(
        found, entropy(probabilities.mean(axis=0)) - entropy(probabilities).mean(axis=0), atol=1e-9
    )
    assert (found >= 0).all()
    assert (found <= np.log(3) + 1e-9).all()
    assert (disagreement(np.repeat(probabilities[:1], 3, axis=0)) < 1e-15).all()
