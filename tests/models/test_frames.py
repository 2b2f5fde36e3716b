"""All frames together: the total, decisions by two conditions, and what stays the paper's."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge

from onsphere import (
    AcceptShare,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    NotCalibratedError,
    Novelty,
    OnsphereWarning,
    Tolerance,
)
from onsphere.sphere import scores


def small_forest(seed=0):
    return ExtraTreesRegressor(n_estimators=20, min_samples_leaf=2, random_state=seed)


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture
def model(diabetes):
    X, y = diabetes
    return HCMRegressor(small_forest()).fit(X[:250], y[:250]).calibrate(X[250:400], y[250:400])


def test_the_target_frame_alone_is_the_paper_s(diabetes):
    X, y = diabetes
    model = HCMRegressor(small_forest(), frames="target").fit(X[:250], y[:250])
    result = model.assess(X[250:])
    unit = y[:250].std()
    np.testing.assert_allclose(result.uncertainty, result.magnitude * abs(result.direction_norm - 1) * unit)
    assert result.novelty is None


def test_frames_do_not_change_the_prediction(model, diabetes):
    X, y = diabetes
    alone = HCMRegressor(small_forest(), frames="target").fit(X[:250], y[:250])
    np.testing.assert_array_equal(model.predict(X), alone.predict(X))


def test_the_total_is_the_noise_at_home_and_the_spread_of_the_target_far_away(model, diabetes):
    X, y = diabetes
    result = model.assess(np.vstack([X[400:], X[400:] + 1]))
    at_home = model._predict(np.vstack([X[400:], X[400:] + 1])).missed <= model._frames.input.onset
    assert at_home.sum() > 30
    np.testing.assert_allclose(result.sigma[at_home], result.noise[at_home])
    assert (result.sigma[~at_home] > result.noise[~at_home]).all()
    # The score is sigma before the calibration rows gave it its level.
    np.testing.assert_allclose(result.sigma, model._calibrate_sigma(result.uncertainty[:, None])[:, 0])
    far = result[42:]
    np.testing.assert_allclose(far.novelty, 1)
    spread = y[:250].std()
    assert (far.uncertainty >= spread).all()
    assert (far.uncertainty <= np.sqrt(2 * spread**2 + (far.value - y[:250].mean()) ** 2) + 1e-9).all()
    assert np.mean((far.lower <= y[400:]) & (y[400:] <= far.upper)) > 0.8
    np.testing.assert_allclose(far.novelty_p_value, 1 / 151)


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e150])
def test_the_total_does_not_depend_on_the_unit(unit):
    rng = np.random.default_rng(0)
    noise, sigma, distance = rng.uniform(size=(3, 50, 2)) * unit
    novelty, spread = rng.uniform(size=50), np.array([1.0, 0.5])
    found = scores.total_sigma(noise, sigma, novelty, spread=spread * unit, distance=distance)
    plain = scores.total_sigma(noise / unit, sigma / unit, novelty, spread=spread, distance=distance / unit)
    np.testing.assert_allclose(found, plain * unit)


def test_an_output_that_never_varied_has_no_spread_to_add():
    ones = np.ones((1, 1))
    total = scores.total_sigma(0 * ones, 0 * ones, np.ones(1), spread=np.zeros(1), distance=0 * ones)
    assert total == 0


def test_a_row_says_why_it_is_rejected(model, diabetes):
    X, _ = diabetes
    model.set_threshold(Tolerance(60.0), novelty=Novelty(max=0.5))
    result = model.assess(np.vstack([X[400:], X[400:402] + 1]))
    uncertain, novel = result.uncertainty > 60.0, result.novelty > 0.5
    assert (result.reason == np.array(["", "uncertain", "novel", "uncertain and novel"])[uncertain + 2 * novel]).all()
    np.testing.assert_array_equal(result.accepted, ~(uncertain | novel))
    assert (result.reason[-2:] == "uncertain and novel").all()
    assert result.accepted.any()
    np.testing.assert_array_equal(model.decide(X[400:]).mask, ~model.assess(X[400:]).accepted)
    assert list(result.to_frame()["reason"]) == result.reason.tolist()


def test_novelty_can_be_the_only_condition(model, diabetes):
    X, y = diabetes
    model.set_threshold(None, novelty=Novelty(false_alarm=0.05))
    result = model.assess(X[400:] + 1)
    assert (result.reason == "novel").all()
    assert model.threshold_ is None
    assert 0.02 < np.mean(~model.assess(X[250:400]).accepted) <= 0.05
    model.calibrate(X[300:], y[300:])
    assert model.novelty_threshold_ is not None
    model.set_threshold(None)
    assert model.assess(X).accepted is None
    with pytest.raises(NotCalibratedError, match="needs a HCMRegressor with a threshold"):
        model.decide(X)


def test_a_novelty_rule_that_no_longer_fits_is_dropped_with_a_warning(model, diabetes):
    X, y = diabetes
    model.set_threshold(AcceptShare(0.9), novelty=Novelty(false_alarm=0.01))
    with pytest.warns(OnsphereWarning, match="threshold was dropped"):
        model.calibrate(X[400:], y[400:])
    assert model.threshold_ is None
    assert model.novelty_threshold_ is None


def test_rules_in_the_wrong_place_are_told(model):
    with pytest.raises(InvalidTypeError, match=r"Novelty\(...\) as novelty="):
        model.set_threshold(Novelty(max=0.5))
    with pytest.raises(InvalidTypeError, match="needs a Novelty rule"):
        model.set_threshold(None, novelty=0.5)


def test_a_model_without_an_input_frame_takes_no_novelty_rule(diabetes):
    X, y = diabetes
    for HCM, target in ((HCMRegressor, y), (HCMClassifier, y > 140)):
        model = HCM(small_forest(), frames="target").fit(X[:250], target[:250]).calibrate(X[250:], target[250:])
        with pytest.raises(InvalidInputError, match="needs a model with an input frame"):
            model.set_threshold(None, novelty=Novelty(max=0.5))
        assert model.assess(X[:2]).novelty_p_value is None


def test_the_error_frame_needs_no_input_frame(diabetes):
    X, y = diabetes
    model = HCMRegressor(small_forest(), frames=("target", "error")).fit(X[:250], y[:250]).calibrate(X[250:], y[250:])
    result = model.assess(X)
    assert result.novelty is None
    np.testing.assert_array_equal(result.sigma, result.noise)
    with pytest.raises(InvalidInputError, match="needs a model with an input frame"):
        model.set_threshold(None, novelty=Novelty(max=0.5))


def test_folds_of_a_cross_validation_join_their_novelty(diabetes):
    X, y = diabetes
    model = HCMRegressor(small_forest(), calibration="cv").fit(X, y)
    assert model.calibration_.missed.shape == (442,)
    classes = HCMClassifier(small_forest(), calibration="cv", frames="target").fit(*load_iris(return_X_y=True))
    assert classes.calibration_.missed is None


def test_doubt_begins_earlier_for_models_that_extrapolate(diabetes):
    X, y = diabetes
    forest, line = (HCMRegressor(backbone).fit(X, y)._frames.input for backbone in (small_forest(), Ridge()))
    assert line.onset < forest.onset < forest.ordinary
    assert line.ordinary == pytest.approx(forest.ordinary)


def test_doubt_begins_later_for_fitted_trees_whose_training_rows_are_not_known():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    y = X[:, 0] + rng.normal(size=600)
    boosted = HistGradientBoostingRegressor(max_iter=20).fit(X[:300], y[:300])
    kept = HCMRegressor(FrozenEstimator(boosted)).fit(X[300:], y[300:])._frames.input
    fresh = HCMRegressor(HistGradientBoostingRegressor(max_iter=20)).fit(X[300:], y[300:])._frames.input
    assert fresh.onset < kept.ordinary == fresh.ordinary < kept.onset
