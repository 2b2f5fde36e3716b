"""The input frame: what is ordinary, what is novel, and inputs of every awkward kind."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import random as random_sparse
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from onsphere import HCMClassifier, HCMRegressor, InvalidInputError, OnsphereWarning
from onsphere.baselines import DeepEnsemble
from onsphere.models.novelty import compute_novelty, find_relevance, fit_input_frame


def measure_novelty(frame, rows):
    return compute_novelty(frame.measure(np.asarray(rows, dtype=float)), frame.ordinary)


def draw(seed, n, p=4):
    return np.random.default_rng(seed).normal(size=(n, p))


def small_forest():
    return ExtraTreesRegressor(n_estimators=20, min_samples_leaf=2, random_state=0)


def test_two_percent_of_rows_like_the_training_rows_are_novel_at_all():
    frame, _ = fit_input_frame(draw(0, 2000))
    share = np.mean(measure_novelty(frame, draw(1, 5000)) > 0)
    # 98 % quantile of 2,000 rows on 5,000 rows: a standard error of 0.4 %.
    assert 0.005 < share < 0.035


def test_the_shortfall_of_rows_left_out_is_nearly_that_of_fresh_rows():
    rows = draw(0, 1500)
    frame, left_out = fit_input_frame(rows)
    fresh = frame.measure(draw(1, 20_000))
    for q in (0.5, 0.9, 0.98):
        # A landmark that is left out is not replaced by the next best, so left-out rows miss a little more, not less.
        share = np.mean(left_out <= np.quantile(fresh, q))
        assert q - 0.07 < share < q + 3 * np.sqrt(q * (1 - q) / 1500)


@pytest.mark.parametrize("distance", [30.0, 1e10, 1e300])
def test_rows_far_away_are_wholly_novel(distance):
    frame, _ = fit_input_frame(draw(0, 300))
    novelty = measure_novelty(frame, np.full((2, 4), distance) * [[1], [-1]])
    np.testing.assert_allclose(novelty, 1)


def test_the_order_of_rows_does_not_matter():
    rows = draw(0, 200)
    one, left_out = fit_input_frame(rows)
    other, reversed_out = fit_input_frame(rows[::-1])
    np.testing.assert_array_equal(one.landmarks, other.landmarks)
    np.testing.assert_allclose(left_out, reversed_out[::-1])


def test_more_rows_than_candidates_and_blocks_are_measured_alike(monkeypatch):
    monkeypatch.setattr("onsphere.models.novelty._N_CANDIDATES", 100)
    rows = draw(0, 500)
    whole, left_out = fit_input_frame(rows, n_landmarks=20)
    monkeypatch.setattr("onsphere.models.novelty._N_BLOCK", 7)
    blocks, again = fit_input_frame(rows, n_landmarks=20)
    np.testing.assert_allclose(left_out, again)
    np.testing.assert_allclose(whole.measure(rows), blocks.measure(rows))


def test_only_rows_that_are_needed_are_measured_and_tell_what_is_ordinary():
    rows = np.random.default_rng(0).normal(size=(600, 3))
    measured = np.arange(600) % 2 == 0
    (whole, of_all), (frame, some) = fit_input_frame(rows), fit_input_frame(rows, measured=measured)
    np.testing.assert_array_equal(some[measured], of_all[measured])
    assert np.isnan(some[~measured]).all()
    np.testing.assert_array_equal(frame.landmarks, whole.landmarks)
    assert frame.ordinary == np.quantile(of_all[measured], 0.98)


def test_a_constant_column_that_changes_is_novel_and_one_that_does_not_hardly_matters():
    rows = draw(0, 300)
    plain, _ = fit_input_frame(rows)
    for constant in (0.0, 5.0, -1e-6):
        wide = np.column_stack([rows, np.full(300, constant)])
        frame, _ = fit_input_frame(wide)
        # Rows are drawn in another order, and other landmarks serve as well.
        np.testing.assert_allclose(frame.measure(wide), plain.measure(rows), atol=0.01)
        moved = wide[:50] + np.array([0, 0, 0, 0, abs(constant) or 1.0])
        assert np.median(measure_novelty(frame, moved)) > 0.8


def test_a_cell_that_was_never_missing_is_novel_and_one_that_often_was_is_not():
    rng = np.random.default_rng(0)
    rows = draw(0, 400)
    rows[rng.uniform(size=400) < 0.3, 0] = np.nan
    frame, _ = fit_input_frame(rows, takes_missing=True)
    fresh = draw(1, 400)
    often, never = fresh.copy(), fresh.copy()
    often[:, 0], never[:, 3] = np.nan, np.nan
    assert np.median(measure_novelty(frame, often)) == 0
    assert np.median(measure_novelty(frame, never)) > 0.8
    everything = np.full((1, 4), np.nan)
    assert measure_novelty(frame, everything)[0] > 0.9


@pytest.mark.parametrize(
    "rows",
    [np.ones((30, 3)), np.repeat(draw(0, 2, 3), 20, axis=0), draw(0, 2, 3), draw(0, 20, 500), np.full((5, 2), 1e200)],
    ids=["all alike", "two rows repeated", "two rows", "more columns than rows", "huge"],
)
def test_training_rows_of_any_kind_are_known_and_others_are_novel(rows):
    frame, left_out = fit_input_frame(rows)
    assert np.isfinite(left_out).all()
    assert (measure_novelty(frame, rows) < 0.5).all()
    assert (measure_novelty(frame, rows + 1e210) > 0.99).all()


def test_an_all_missing_column_is_no_obstacle():
    rows = np.column_stack([draw(0, 50, 2), np.full(50, np.nan)])
    frame, left_out = fit_input_frame(rows, takes_missing=True)
    assert np.isfinite(left_out).all()
    assert measure_novelty(frame, [[0.0, 0.0, 1.0]])[0] > measure_novelty(frame, [[0.0, 0.0, np.nan]])[0]


def test_torch_measures_what_numpy_does():
    rows = draw(0, 200)
    rows[::7, 1] = np.nan
    frame, _ = fit_input_frame(rows, takes_missing=True)
    tensor = torch.from_numpy(rows)
    np.testing.assert_allclose(frame.measure(tensor).numpy(), frame.measure(rows))
    assert frame.measure(tensor.float()).dtype == torch.float32


# --- relevance ---


def test_columns_that_tell_nothing_hardly_count():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 30))
    target = rows[:, :2].sum(axis=1) + 0.1 * rng.normal(size=600)
    relevance = find_relevance(rows, target, random_state=0)
    assert (relevance[:2] == 1).all()
    assert relevance[2:].sum() < 3


def test_without_a_relevant_column_all_count():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 3))
    assert (find_relevance(rows, np.zeros(50), random_state=0) == 1).all()


def test_irrelevant_columns_do_not_hide_a_shift():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 33))
    y = X[:, 0] + X[:, 1] * X[:, 2]
    model = HCMRegressor(small_forest()).fit(X[:800], y[:800])
    shifted = X[800:].copy()
    shifted[:, :3] += 2 * rng.normal(size=(400, 3))
    scores = model._predict(np.vstack([X[800:], shifted])).missed
    plain, _ = fit_input_frame(X[:800])
    labels = np.repeat([0, 1], 400)
    weighted = roc_auc_score(labels, scores)
    assert weighted > 0.85
    assert weighted > roc_auc_score(labels, plain.measure(np.vstack([X[800:], shifted]))) + 0.05


# --- in models ---


def test_models_of_every_kind_of_rows_measure_novelty():
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    mixed = X.assign(ward=np.where(X["sex"] > 0, "north", "south"))
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["ward"]), remainder="passthrough")
    for rows, backbone in (
        (X, small_forest()),
        (X.to_numpy(), make_pipeline(StandardScaler(), Ridge())),
        (mixed, make_pipeline(columns, small_forest())),
        (mixed, make_pipeline("passthrough", columns, StandardScaler(), Ridge())),
    ):
        model = HCMRegressor(backbone, frames=("target", "input")).fit(rows, y)
        far = rows.copy()
        if isinstance(far, pd.DataFrame):
            far["bmi"] += 10
        else:
            far[:, 2] += 10
        assert np.median(model.predict_novelty(rows)) == 0
        np.testing.assert_allclose(model.predict_novelty(far), 1)


def test_sparse_rows_have_novelty_unless_they_are_too_wide():
    X = random_sparse(120, 30, density=0.2, format="csr", random_state=0)
    y = np.asarray(X.sum(axis=1)).ravel()
    model = HCMRegressor(Ridge()).fit(X, y)
    assert model.predict_novelty(X * 100).min() > 0.9
    wide = random_sparse(60, 6000, density=0.01, format="csr", random_state=0)
    with pytest.warns(OnsphereWarning, match="neither novelty nor noise"):
        model = HCMRegressor(Ridge()).fit(wide, y[:60])
    with pytest.raises(InvalidInputError, match="predict_novelty needs a model with the frame 'input'"):
        model.predict_novelty(wide)
    with pytest.raises(InvalidInputError, match="predict_noise"):
        DeepEnsemble(Ridge(), n_members=2).fit(X.toarray(), y).predict_noise(X.toarray())


def test_a_row_without_weight_is_not_there():
    X, y = load_diabetes(return_X_y=True)
    far = np.vstack([X, X[:5] + 10])
    weights = np.repeat([1.0, 0.0], [len(X), 5])
    model = HCMRegressor(Ridge()).fit(far, np.append(y, y[:5]), sample_weight=weights)
    np.testing.assert_allclose(model.predict_novelty(X[:5] + 10), 1)


def test_columns_that_change_from_numbers_to_words_are_told():
    X, y = load_diabetes(return_X_y=True, as_frame=True)

    class Patient(Ridge):
        def fit(self, X, y):
            return super().fit(np.zeros((len(y), 1)), y)

        def predict(self, X):
            return super().predict(np.zeros((len(X), 1)))

    model = HCMRegressor(Patient()).fit(X, y)
    with pytest.raises(InvalidInputError, match="numbers again"):
        model.predict(X.assign(bmi="high"))


def test_a_novel_row_loses_its_class():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    model = HCMClassifier(small_forest()).fit(X, X[:, 0] > 0)
    known, far = model.assess([[2.0, 0.0]]), model.assess([[40.0, 0.0]])
    assert known.uncertainty[0] < 0.1
    assert far.uncertainty[0] == pytest.approx(1)
    np.testing.assert_allclose(far.probabilities, 0.5)
    assert far.value[0]  # the class stays the model's own
    assert far.noise[0] < 0.1


@pytest.mark.parametrize("given", ["paper", ("target", "inputs"), (), 3, ["error", 1]])
def test_unknown_frames_are_refused(given):
    with pytest.raises(InvalidInputError, match="'frames' parameter of HCMRegressor"):
        HCMRegressor(frames=given).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(InvalidInputError, match="'frames' parameter of HCMClassifier"):
        HCMClassifier(frames=given).fit([[0.0], [1.0]], [0, 1])


def test_a_column_that_the_pipeline_drops_does_not_count():
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    keyed = X.assign(number=np.arange(442.0))
    kept = make_column_transformer(("passthrough", list(X.columns)), remainder="drop")
    model = HCMRegressor(make_pipeline(kept, small_forest())).fit(keyed, y)
    np.testing.assert_array_equal(model.predict_novelty(keyed.assign(number=1e9)), model.predict_novelty(keyed))


def test_a_step_that_makes_words_is_followed_until_there_are_numbers():
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    frame = pd.DataFrame(
        {"ward": np.where(X["sex"] > 0, "north", "south"), "day": np.where(X["age"] > 0, "mon", "tue")}
    )
    words = FunctionTransformer(lambda rows: np.asarray(rows, dtype=object))
    model = HCMRegressor(make_pipeline(words, OneHotEncoder(), Ridge())).fit(frame, y)
    assert model._frames.n_steps == 2
    assert (model.predict_novelty(frame) < 0.5).all()


def test_missing_values_of_pandas_are_missing_cells():
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    nullable = X.astype("Float64")
    nullable.iloc[3, 2] = pd.NA
    model = HCMRegressor(small_forest()).fit(nullable, y)
    assert model.predict_novelty(nullable).shape == (442,)


def test_a_frame_is_copied_without_what_its_landmarks_give_again():
    rows = np.random.default_rng(0).normal(size=(200, 2))
    frame, _ = fit_input_frame(rows)
    assert "whitener" not in frame.__getstate__()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(frame)).whitener, frame.whitener)
    other = replace(frame, whitener=2 * frame.whitener)  # of another kind, or of an earlier version
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(other)).whitener, other.whitener)
