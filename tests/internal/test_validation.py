"""Checks of input: numbers that do not fit in a float, and shapes that do not go together."""

import numpy as np
import pytest

from onsphere import InvalidInputError, Lift
from onsphere._internal.validation import check_direction_and_magnitude, check_number, check_outputs


def test_a_whole_number_too_large_for_a_float_is_rejected():
    check_number("fit", "n", 10**300, above=0, whole=True)
    with pytest.raises(InvalidInputError, match="'n' parameter of fit must be"):
        check_number("fit", "n", 10**400, above=0, whole=True)


def test_a_magnitude_must_have_the_shape_of_its_directions():
    check_direction_and_magnitude(np.ones((4, 3)), np.ones(4))
    with pytest.raises(InvalidInputError, match=r"Expected a magnitude of shape \(4,\)"):
        check_direction_and_magnitude(np.ones((4, 3)), np.ones((4, 1)))


@pytest.mark.parametrize(("width", "mean"), [(2, None), (3, np.ones((4, 2)))])
def test_directions_and_means_must_have_the_width_of_the_embedding(width, mean):
    check_outputs(Lift(), np.ones((4, 3)), np.ones((4, 1)), 3, 1)
    with pytest.raises(InvalidInputError, match=r"Lift with 1 output\(s\) has directions of width 3"):
        check_outputs(Lift(), np.ones((4, width)), mean, 3, 1)
