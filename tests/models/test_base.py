"""The base of all models: fit → calibrate → assess and decide, on real rows."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_matrix, csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV

from onsphere import (
    AcceptShare,
    FalseAlarm,
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    InvalidTypeError,
    MaxErrorRate,
    NotCalibratedError,
    NotFittedError,
    OnsphereWarning,
    Tolerance,
)
from onsphere._internal.row_hashes import hash_rows
from onsphere.metrics import interval_coverage


def forest():
    return ExtraTreesRegressor(n_estimators=30, min_samples_leaf=2, random_state=0)


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


@pytest.fixture(scope="module")
def regressor(diabetes):
    X, y = diabetes
    return HCMRegressor(forest()).fit(X[:200], y[:200]).calibrate(X[200:320], y[200:320])


@pytest.fixture(scope="module")
def classifier(digits):
    X, y = digits
    return HCMClassifier(forest()).fit(X[:700], y[:700]).calibrate(X[700:1200], y[700:1200])


def test_one_calibration_serves_every_coverage(regressor, diabetes):
    X, y = diabetes
    widths = []
    for coverage in (0.5, 0.8, 0.9, 0.95):
        ends = regressor.predict_interval(X[320:], coverage=coverage)
        assert ends.shape == (122, 2)
        widths.append(np.mean(ends[:, 1] - ends[:, 0]))
        # Four standard errors of 122 rows, and of 120 calibration rows.
        assert abs(interval_coverage(y[320:], *ends.T) - coverage) < 4 * np.sqrt(0.25 / 122 + 0.25 / 120)
    assert (np.diff(widths) > 0).all()


def test_the_assessment_is_filled_in(regressor, diabetes):
    X, _ = diabetes
    result = clone(regressor).fit(*(a[:200] for a in diabetes)).assess(X[320:])
    assert result.lower is result.upper is result.confidence is result.expected_error is result.accepted is None
    result = regressor.assess(X[320:], coverage=0.8)
    ends = regressor.predict_interval(X[320:], coverage=0.8)
    np.testing.assert_array_equal(np.c_[result.lower, result.upper], ends)
    np.testing.assert_array_equal(result.confidence, regressor.predict_confidence(X[320:]))
    np.testing.assert_array_equal(result.expected_error, regressor.predict_expected_error(X[320:]))
    assert result.accepted is None
    assert {"lower", "upper", "confidence", "expected_error"} <= set(result.to_frame())


@pytest.mark.parametrize("calibration", ["split", 0.3, "cv"])
def test_fit_can_hold_rows_out_for_calibration(calibration, diabetes, digits):
    X, y = diabetes
    model = HCMRegressor(forest(), calibration=calibration, random_state=0).fit(X[:320], y[:320])
    expected = {"split": 64, 0.3: 96, "cv": 320}[calibration]
    assert len(model.calibration_) == expected
    assert 0.75 < interval_coverage(y[320:], *model.predict_interval(X[320:]).T) < 1
    X, y = digits
    names = np.array([f"digit {label}" for label in y])
    model = HCMClassifier(forest(), calibration=calibration, random_state=0).fit(X[:500], names[:500])
    sets = model.predict_set(X[500:], coverage=0.9)
    right = sets[np.arange(len(sets)), np.searchsorted(model.classes_, names[500:])]
    assert right.mean() > 0.85


def test_cross_calibration_measures_rows_that_were_left_out(diabetes):
    X, y = diabetes
    left_out = HCMRegressor(forest(), calibration="cv", random_state=0).fit(X, y).calibration_
    with pytest.warns(OnsphereWarning, match="100% of the 442 calibration rows were also trained on"):
        trained = HCMRegressor(forest()).fit(X, y).calibrate(X, y).calibration_
    assert left_out.error.mean() > 1.5 * trained.error.mean()
    assert np.median(left_out.error) == pytest.approx(38, abs=6)


def test_folds_learn_their_noise_from_the_errors_of_the_model(diabetes):
    fitted = []

    class CountedRidge(Ridge):
        def fit(self, X, y):
            fitted.append(len(X))
            return super().fit(X, y)

    X, y = diabetes
    HCMRegressor(CountedRidge(), calibration="cv", random_state=0).fit(X[:200], y[:200])
    # Once on all rows, five times to see errors on rows left out, and once for each fold that calibrates.
    assert sorted(fitted) == [160] * 10 + [200]


def test_several_outputs_get_boxes_and_balls():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    Y = X @ rng.normal(size=(3, 4)) * [1, 10, 100, 0] + 0.3 * rng.normal(size=(900, 4)) * [1, 10, 100, 0]
    model = HCMRegressor(forest()).fit(X[:300], Y[:300]).calibrate(X[300:600], Y[300:600])
    boxes = model.predict_interval(X[600:])
    assert boxes.shape == (300, 4, 2)
    assert interval_coverage(Y[600:], boxes[..., 0], boxes[..., 1]) == pytest.approx(0.9, abs=0.08)
    alone = model.predict_interval(X[600:], simultaneous=False)
    assert (alone[..., 1] - alone[..., 0] <= boxes[..., 1] - boxes[..., 0]).all()
    value, radius = model.predict(X[600:]), model.predict_radius(X[600:])
    spread = np.where(model.embedding_.spread_ == 0, 1, model.embedding_.spread_)
    inside = np.linalg.norm((Y[600:] - value) / spread, axis=1) <= radius
    assert inside.mean() == pytest.approx(0.9, abs=0.08)


def test_decisions_follow_the_threshold(regressor, diabetes):
    X, y = diabetes
    model = clone(regressor).fit(X[:200], y[:200]).calibrate(X[200:320], y[200:320]).set_threshold(AcceptShare(0.8))
    result = model.assess(X[320:])
    np.testing.assert_array_equal(result.accepted, result.uncertainty <= model.threshold_)
    assert 0.6 < result.accepted.mean() < 0.95
    decided = model.decide(X[320:])
    np.testing.assert_array_equal(decided.mask, ~result.accepted)
    np.testing.assert_array_equal(decided.compressed(), result.value[result.accepted])
    # A rule that was set stays, fitted to the new calibration.
    before = model.threshold_
    model.calibrate(X[260:], y[260:])
    assert model.threshold_ not in (None, before)
    model.fit(X[:200], y[:200])
    assert model.threshold_ is None


def test_a_row_with_nan_uncertainty_is_never_accepted(diabetes):
    class Unsure(HCMRegressor):
        """Knows nothing about the first row."""

        def _predict(self, X):
            answer = super()._predict(X)
            return answer._replace(uncertainty=np.where(np.arange(len(X)) == 0, np.nan, answer.uncertainty))

    X, y = diabetes
    model = HCMRegressor(forest()).fit(X[:200], y[:200]).calibrate(X[200:320], y[200:320])
    model.__class__ = Unsure
    model.set_threshold(AcceptShare(0.9))
    decided, result = model.decide(X[320:]), model.assess(X[320:])
    assert decided.mask[0]
    assert not result.accepted[0]
    np.testing.assert_array_equal(decided.mask, ~result.accepted)
    with pytest.raises(InvalidInputError, match=r"finite uncertainty\. Got 1 of 122 without\. They lie too far"):
        model.calibrate(X[320:], y[320:])
    assert model.threshold_ is not None


def test_decisions_about_several_outputs_and_classes(classifier, digits):
    X, y = digits
    two = HCMRegressor(forest()).fit(X[:500], X[:500, 2:4]).calibrate(X[500:900], X[500:900, 2:4])
    assert two.set_threshold(AcceptShare(0.9)).decide(X[900:]).mask.shape == (897, 2)
    model = classifier.set_threshold(MaxErrorRate(0.02, delta=0.1))
    decided = model.decide(X[1200:])
    assert np.mean(decided.compressed() != y[1200:][~decided.mask]) < np.mean(model.predict(X[1200:]) != y[1200:])


def test_class_sets_shrink_with_the_coverage(classifier, digits):
    X, _ = digits
    sizes = [classifier.predict_set(X[1200:], coverage=c).sum(axis=1) for c in (0.5, 0.9, 0.99)]
    assert (sizes[0] >= 1).all()
    assert (sizes[0] <= sizes[1]).all()
    assert (sizes[1] <= sizes[2]).all()
    result = classifier.assess(X[1200:], coverage=0.99)
    np.testing.assert_array_equal(result.prediction_set.sum(axis=1), sizes[2])
    assert "prediction_set_3" in result.to_frame()


@pytest.mark.parametrize("normalization", ["quantile", "min-max", "none", "shift"])
def test_confidence_of_a_model(regressor, diabetes, normalization):
    X, y = diabetes
    confidence = regressor.predict_confidence(X[320:], normalization=normalization)
    assert ((confidence >= 0) & (confidence <= 1)).all()
    error = np.abs(regressor.predict(X[320:]) - y[320:])
    assert np.corrcoef(confidence, error)[0, 1] < 0


@pytest.mark.parametrize(
    "method", ["predict_interval", "predict_radius", "predict_confidence", "predict_expected_error", "decide"]
)
def test_an_uncalibrated_model_names_the_call_that_is_missing(method, diabetes):
    X, y = diabetes
    model = HCMRegressor(Ridge()).fit(X, y)
    with pytest.raises(NotCalibratedError, match=rf"{method} needs a calibrated HCMRegressor\. Call calibrate\(X, y\)"):
        getattr(model, method)(X)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(HCMRegressor(), method)(X)


def test_the_other_missing_calls_are_named_too(diabetes, classifier, digits):
    X, y = diabetes
    model = HCMRegressor(Ridge())
    with pytest.raises(NotFittedError, match="Call 'fit'"):
        model.calibrate(X, y)
    with pytest.raises(NotCalibratedError, match="set_threshold needs a calibrated"):
        model.fit(X[:200], y[:200]).set_threshold(AcceptShare(0.9))
    with pytest.raises(NotCalibratedError, match=r"Call set_threshold\(rule\) first"):
        model.calibrate(X[200:], y[200:]).decide(X)
    with pytest.raises(NotCalibratedError, match="predict_set needs a calibrated"):
        HCMClassifier(Ridge()).fit(X, y > 100).predict_set(X)
    for rule in (0.95, AcceptShare, "strict"):
        with pytest.raises(InvalidTypeError, match="needs a rule"):
            model.set_threshold(rule)


def test_a_calibration_of_another_score_is_not_used(diabetes):
    X, y = diabetes
    model = HCMRegressor(forest()).fit(X[:200], y[:200]).calibrate(X[200:], y[200:])
    model.set_params(uncertainty_score="sigma")
    for method in (model.predict_confidence, model.assess, model.predict_interval):
        with pytest.raises(NotCalibratedError, match=r"calibrated with .*'auto'.* now has .*'sigma'"):
            method(X)
    model.set_params(uncertainty_score="auto").assess(X)


@pytest.mark.parametrize("kind", ["array", "frame", "mixed frame", "sparse", "list"])
def test_calibrating_on_training_rows_gives_a_warning(kind, diabetes):
    X, y = diabetes
    frame = pd.DataFrame(X).rename(columns=str)
    rows = {
        "array": X,
        "frame": frame,
        "mixed frame": frame.assign(ward=np.where(X[:, 0] > 0, "north", "south")),
        "sparse": csr_matrix(X),
        "list": X.tolist(),
    }[kind]

    class Blind(LinearRegression):
        """Takes anything, so that only the warning is tested."""

        def fit(self, X, y):
            return super().fit(np.zeros((len(y), 1)), y)

        def predict(self, X):
            return super().predict(np.zeros((X.shape[0], 1)))

    def part(start, stop):
        chosen = rows.iloc[start:stop] if hasattr(rows, "iloc") else rows[start:stop]
        return chosen, y[start:stop]

    model = HCMRegressor(Blind(), frames="target").fit(*part(0, 200))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.calibrate(*part(200, 442))
    assert not [w for w in caught if "trained on" in str(w.message)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.calibrate(*part(50, 150))
    assert [w for w in caught if "100% of the 100 calibration rows were also trained on" in str(w.message)]


def test_only_a_sample_of_many_training_rows_is_remembered(diabetes, monkeypatch):
    """50 of the 442 rows are remembered; only calibration rows that could be among them are compared."""
    monkeypatch.setattr("onsphere.models.base._N_HASHES", 50)
    X, y = diabetes
    model = HCMRegressor(Ridge()).fit(X, y)
    assert len(model._seen) == 50
    model.calibrate(X + 1e-3, y)  # other rows, and no warning
    with pytest.warns(OnsphereWarning, match="100% of the 200 calibration rows were also trained on"):
        model.calibrate(X[:200], y[:200])
    unknown = ~np.isin(hash_rows(X, y), model._seen)
    model.calibrate(X[unknown], y[unknown])  # trained on, but not remembered


def test_different_rows_of_small_integers_are_not_confused():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, size=(3000, 40)).astype(float)
    y = X[:, :3].sum(axis=1)
    HCMRegressor(Ridge()).fit(X[:2000], y[:2000]).calibrate(X[2000:], y[2000:])


def test_a_rule_that_cannot_be_kept_is_dropped_with_a_warning(diabetes):
    X, y = diabetes
    model = HCMRegressor(forest()).fit(X[:200], y[:200]).calibrate(X[200:], y[200:])
    model.set_threshold(MaxErrorRate(0.5, tolerance=80.0))
    with pytest.warns(OnsphereWarning, match="threshold was dropped, because its rule does not fit"):
        model.calibrate(X[200:], y[200:] + 1000)
    assert model.threshold_ is None
    assert model.set_threshold(AcceptShare(0.9)).threshold_ > 0
    assert model.set_threshold(None).threshold_ is None


def test_a_decision_needs_only_as_many_rows_as_its_rule(diabetes):
    X, y = diabetes
    model = HCMRegressor(forest()).fit(X[:200], y[:200]).calibrate(X[200:205], y[200:205])
    assert model.set_threshold(AcceptShare(0.5)).decide(X).shape == y.shape


def test_an_output_that_was_constant_only_in_training_has_no_interval(diabetes):
    X, y = diabetes
    model = HCMRegressor(forest()).fit(X[:200], np.c_[y[:200], np.ones(200)])
    model.calibrate(X[200:], np.c_[y[200:], y[200:]])
    with pytest.raises(InvalidInputError, match="constant in the training rows varies in the calibration rows"):
        model.predict_interval(X)


def test_targets_on_the_edge_stay_inside():
    """A row like the nine calibration rows, all alike, lies on the edge of its interval and counts as inside."""
    rng = np.random.default_rng(0)
    for _ in range(25):
        X = rng.normal(size=(60, 1))
        model = HCMRegressor(Ridge()).fit(X, X[:, 0] + rng.normal(size=60))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.calibrate(np.full((9, 1), 0.3), np.full(9, 1.7))
        low, high = model.predict_interval([[0.3]])[0]
        assert low <= 1.7 <= high


def test_outputs_in_another_order_are_rejected():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(100, 2)), pd.DataFrame(rng.normal(size=(100, 2)), columns=["p", "q"])
    model = HCMRegressor(Ridge()).fit(X[:50], Y[:50])
    with pytest.raises(InvalidInputError, match=r"fitted with the outputs p, q\. Got q, p"):
        model.calibrate(X[50:], Y[50:][["q", "p"]])
    model.calibrate(X[50:], Y[50:])


def test_equal_scores_give_a_warning(diabetes):
    y = diabetes[1] + 1e-6 * np.arange(442)  # no two similar rows
    with pytest.warns(OnsphereWarning, match="All 120 calibration rows have the uncertainty"):
        model = HCMRegressor(forest()).fit(np.zeros((200, 1)), y[:200]).calibrate(np.zeros((120, 1)), y[200:320])
    assert 0.8 < interval_coverage(y[320:], *model.predict_interval(np.zeros((122, 1))).T) < 1


def test_a_constant_target_has_intervals_of_zero_width(diabetes):
    X, _ = diabetes
    with pytest.warns(OnsphereWarning, match="cannot tell rows apart"):
        model = HCMRegressor(forest()).fit(X[:200], np.full(200, 4.0)).calibrate(X[200:], np.full(242, 4.0))
    np.testing.assert_allclose(model.predict_interval(X), 4.0)


def test_bad_calibration_rows_are_rejected_and_change_nothing(regressor, diabetes):
    X, y = diabetes
    before = regressor.calibration_
    for rows, targets, message in [
        (X[:, :3], y, "3 features, but HCMRegressor is expecting 10"),
        (X[:5], y[:4], "inconsistent numbers of samples"),
        (X[:5], np.ones((5, 2)), r"fitted with 1 output\(s\). Got 2"),
        (X[:5], [1, 2, np.nan, 4, 5], "contains NaN"),
        (X[:0], y[:0], "0 sample"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            regressor.calibrate(rows, targets)
    assert regressor.calibration_ is before
    frame = pd.DataFrame(X, columns=list("abcdefghij"))
    named = HCMRegressor(Ridge()).fit(frame, y)
    with pytest.raises(InvalidInputError, match="Feature names unseen at fit time"):
        named.calibrate(frame.rename(columns={"a": "z"}), y)


def test_tensors_with_a_gradient_are_rejected(diabetes):
    import torch

    X, y = diabetes
    model = HCMRegressor(Ridge()).fit(X[:200], y[:200])
    with pytest.raises(InvalidInputError, match=r"Expected X without a gradient\. Got a Tensor.*Pass X\.detach\(\)"):
        model.fit(torch.tensor(X, requires_grad=True), y)
    for method in (model.fit, model.calibrate):
        with pytest.raises(InvalidInputError, match="Expected y without a gradient"):
            method(X, torch.tensor(y, requires_grad=True))


def test_simultaneous_must_be_a_boolean(regressor, diabetes):
    with pytest.raises(InvalidInputError, match="'simultaneous' parameter of predict_interval must be True or False"):
        regressor.predict_interval(diabetes[0], simultaneous="no")


def test_too_few_calibration_rows_are_counted(diabetes):
    X, y = diabetes
    model = HCMRegressor(forest()).fit(X[:400], y[:400]).calibrate(X[400:408], y[400:408])
    with pytest.raises(InvalidInputError, match=r"A coverage of 0\.9 needs at least 9 calibration rows\. Got 8"):
        model.predict_interval(X)
    assert model.predict_interval(X, coverage=0.8).shape == (442, 2)
    with pytest.raises(InvalidInputError, match="needs at least 59 calibration rows"):
        model.set_threshold(FalseAlarm(0.05))


def test_classes_too_rare_to_be_held_out_are_rejected(digits):
    X, y = digits
    rare = np.where(np.arange(len(y)) == 0, 99, y)
    for calibration in ("cv", "split"):
        with pytest.raises(InvalidInputError, match="at least two rows of every class"):
            HCMClassifier(forest(), calibration=calibration).fit(X, rare)
    with pytest.raises(InvalidInputError, match="Expected labels among"):
        HCMClassifier(forest()).fit(X[1:500], y[1:500]).calibrate(X[:5], rare[:5])


@pytest.mark.parametrize("calibration", ["half", 0.0, 1.0, 1, True, [0.2], np.array([0.2, 0.3])], ids=str)
def test_an_unknown_calibration_is_rejected(calibration):
    with pytest.raises(InvalidInputError, match="'calibration' parameter of HCMRegressor must be"):
        HCMRegressor(calibration=calibration).fit(np.eye(4), np.arange(4.0))


@pytest.mark.parametrize("calibration", ["split", "cv"])
def test_an_error_says_why_rows_cannot_be_held_out(calibration, diabetes):
    X, y = diabetes
    model = HCMRegressor(Ridge(), calibration=calibration)
    with pytest.raises(InvalidInputError, match="target y is None"):
        model.fit(X, None)
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])
    with pytest.raises(InvalidInputError, match=r"cannot hold rows out|minimum of 2 is required"):
        model.fit(X[:2], y[:2])
    with pytest.raises(InvalidInputError, match="sample_weight"):
        model.fit(X, y, sample_weight=[1.0, 2.0])
    with pytest.raises(InvalidInputError, match="cannot hold rows out"):
        model.fit([[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]], y[:5])
    sparse = coo_matrix(X)
    assert model.fit(sparse, y).predict_interval(sparse).shape == (442, 2)
    assert model.fit(X.tolist(), y.tolist(), sample_weight=np.ones(442)).predict_interval(X).shape == (442, 2)


def test_a_tolerance_in_the_wrong_unit_says_what_to_check(regressor):
    with pytest.raises(InvalidInputError, match="Check that the tolerance is in the unit of the uncertainty"):
        regressor.set_threshold(Tolerance(1e-6))
    assert regressor.threshold_ is None


def test_grid_search_works_on_a_model_that_calibrates_itself(diabetes):
    X, y = diabetes
    search = GridSearchCV(HCMRegressor(forest(), calibration="split"), {"embedding": ["lift", "torus"]}, cv=2).fit(X, y)
    assert search.best_estimator_.predict_interval(X).shape == (442, 2)
