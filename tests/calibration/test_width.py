"""Widths that labels choose between: sigma, the noise, or one for all rows."""

from dataclasses import replace

import numpy as np
import pytest

from onsphere.calibration import RegressionCalibration
from onsphere.calibration.width import N_LABELS_NEEDED, choose_width


@pytest.mark.parametrize("true", ["total", "noise", "flat"])
def test_the_width_that_fits_the_errors_is_chosen(true):
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(size=(400, 2)))
    widths = {"total": noise * np.exp(rng.normal(size=(400, 2))), "noise": noise, "flat": np.ones((400, 2))}
    assert choose_width(widths[true] * rng.normal(size=(400, 2)), widths) == true


def test_sigma_stays_unless_another_width_is_clearly_better():
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(400, 1))
    nearly = np.exp(0.05 * rng.normal(size=(400, 1)))
    widths = {"total": nearly, "flat": np.ones((400, 1))}
    assert choose_width(errors, widths) == "total"
    assert choose_width(errors, widths, usual="flat") == "flat"


def draw(rng, n, novelty=1.0, *, spread=(2.0, 5.0)):
    """Return a calibration whose sigma counts a novelty that errors do not have."""
    spread = np.array(spread)
    noise = spread * np.exp(0.5 * rng.normal(size=(n, len(spread))))
    sigma = noise * novelty * np.exp(rng.normal(size=(n, 1)) * (novelty > 1))
    residual = noise * rng.normal(size=(n, len(spread)))
    others = {"total": sigma, "noise": noise}
    return RegressionCalibration.measure(residual, sigma, np.ones(n), spread, others=others), residual, noise, sigma


def test_errors_in_units_of_another_width_are_those_measured_in_it():
    known, residual, noise, _ = draw(np.random.default_rng(0), 200, 3.0)
    spread = np.array([2.0, 5.0])
    for width, sigma in (("noise", noise), ("flat", np.broadcast_to(spread, noise.shape))):
        expected = RegressionCalibration.measure(residual, sigma, np.ones(200), spread)
        np.testing.assert_allclose(known.use_width(width).residuals, expected.residuals)
        np.testing.assert_allclose(known.use_width(width).ball_ratios, expected.ball_ratios)
    back = known.use_width("flat").use_width("total")
    np.testing.assert_allclose(back.residuals, known.residuals)


def test_labels_choose_the_width_and_it_can_change_again():
    rng = np.random.default_rng(0)
    known = draw(rng, 300)[0]
    few = known.take_in(draw(rng, N_LABELS_NEEDED - 1, 5.0)[0])
    assert (few.width, known.take_in(draw(rng, 300)[0]).width) == ("total", "total")
    novel = few.take_in(draw(rng, 200, 5.0)[0])
    assert novel.width == "noise"
    assert len(novel) == 300
    # Rows without novelty, for which both are the same.
    assert novel.take_in(draw(rng, 400)[0]).width == "total"


def test_without_a_noise_or_a_spread_sigma_is_the_only_width():
    rng = np.random.default_rng(0)
    known, residual, noise, sigma = draw(rng, 150, 5.0)
    plain = RegressionCalibration.measure(residual, sigma, np.ones(150), np.array([2.0, 5.0]))
    constant = RegressionCalibration.measure(
        residual, sigma, np.ones(150), np.array([2.0, 0.0]), others={"total": sigma, "noise": noise}
    )
    for each in (plain, constant):
        assert each.scaled_errors is None
        assert each.take_in(each).take_in(each).width == "total"
    # A file of an older version has none either.
    older = replace(known, scaled_errors=None, sigma=None, noise=None)
    assert older.take_in(draw(rng, 200, 5.0)[0]).width == "total"
