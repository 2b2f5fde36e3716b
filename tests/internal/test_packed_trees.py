"""Forests in few bytes: they answer as before, and what would lose something stays as it is."""

import pickle

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from onsphere import HCMClassifier, HCMRegressor, load
from onsphere._internal.packed_trees import PackedForest, pack_trees, round_leaves, unpack_trees
from onsphere.errors import InvalidInputError

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 5))
X[::7, 1] = np.nan
y = 3 * X[:, 0] + np.nan_to_num(X[:, 1]) ** 2 + rng.normal(size=300)


def make_forest(kind=ExtraTreesRegressor, **options):
    return kind(**({"n_estimators": 5, "min_samples_leaf": 2, "random_state": 0} | options))


@pytest.mark.parametrize("target", [y, np.column_stack([y, y**2]), 1e9 + y], ids=["one", "two", "far from 0"])
@pytest.mark.parametrize("kind", [ExtraTreesRegressor, RandomForestRegressor])
def test_a_forest_answers_as_before_it_was_packed(kind, target):
    forest = make_forest(kind).fit(X, target)
    round_leaves(forest)
    expected, importances = forest.predict(X), forest.feature_importances_
    packed = pack_trees(forest)
    assert isinstance(packed.estimators_, PackedForest)
    again = unpack_trees(packed)
    np.testing.assert_array_equal(again.predict(X), expected)
    np.testing.assert_array_equal(again.apply(X), forest.apply(X))
    if np.abs(target).max() < 1e6:  # scikit-learn's own are rounding errors far from 0
        np.testing.assert_allclose(again.feature_importances_, importances, atol=1e-3)
    for new, old in zip(again.estimators_, forest.estimators_, strict=True):
        assert new.get_params() == old.get_params()
        np.testing.assert_array_equal(new.tree_.n_node_samples, old.tree_.n_node_samples)
        np.testing.assert_array_equal(new.tree_.weighted_n_node_samples, old.tree_.weighted_n_node_samples)
        np.testing.assert_allclose(new.tree_.value, old.tree_.value, rtol=1e-6, atol=1e-6)
        assert new.tree_.max_depth == old.tree_.max_depth


def test_leaves_far_from_zero_keep_double_precision():
    near, far = (make_forest().fit(X, target) for target in (y, 1e9 + y))
    for forest in (near, far):
        round_leaves(forest)
    assert pack_trees(near).estimators_.values.dtype == np.float32
    assert pack_trees(far).estimators_.values.dtype == np.float64


def test_a_tree_of_one_leaf_and_weights_that_are_no_counts_are_kept():
    forest = make_forest().fit(X, y, sample_weight=rng.uniform(0.5, 2, len(y)))
    again = unpack_trees(pack_trees(forest))
    np.testing.assert_array_equal(again.predict(X), forest.predict(X))
    weights = [tree.tree_.weighted_n_node_samples for tree in again.estimators_]
    np.testing.assert_allclose(weights[0], forest.estimators_[0].tree_.weighted_n_node_samples)
    stump = make_forest(min_samples_leaf=200).fit(X, y)
    np.testing.assert_array_equal(unpack_trees(pack_trees(stump)).predict(X), stump.predict(X))


@pytest.mark.parametrize("options", [{"max_leaf_nodes": 20}, {"criterion": "absolute_error"}])
def test_trees_in_another_order_or_of_another_criterion_are_not_packed(options):
    forest = make_forest(**options).fit(np.nan_to_num(X), y)
    assert pack_trees(forest) is forest


def test_forests_inside_a_pipeline_are_packed():
    pipeline = Pipeline([("scale", StandardScaler()), ("forest", make_forest())]).fit(X, y)
    packed = pack_trees(pipeline)
    assert isinstance(packed[-1].estimators_, PackedForest)
    assert packed[0] is pipeline[0]
    np.testing.assert_array_equal(unpack_trees(packed).predict(X), pipeline.predict(X))


def test_trees_without_a_seed_are_not_packed():
    forest = make_forest().fit(X, y)
    forest.estimators_[0].random_state = None
    assert pack_trees(forest) is forest


def test_trees_of_a_user_are_not_rounded():
    kept = RandomForestRegressor(5, random_state=0).fit(X, y / 3)
    before = [tree.tree_.value.copy() for tree in kept.estimators_]
    model = HCMRegressor(FrozenEstimator(kept), calibration="cv").fit(X + 0.1, y / 3)
    assert pack_trees(model).estimator_.model.estimators_.values.dtype == np.float64
    for value, tree in zip(before, kept.estimators_, strict=True):
        np.testing.assert_array_equal(tree.tree_.value, value)


@pytest.mark.parametrize("kind", [HCMRegressor, HCMClassifier])
def test_a_model_file_is_small_and_gives_the_same_answers(kind, tmp_path):
    target = y if kind is HCMRegressor else y > 0
    model = kind(make_forest(n_estimators=100), calibration="split", random_state=0).fit(X, target)
    path = model.save(tmp_path / "model.onsphere")
    assert isinstance(model.estimator_.estimators_, list)  # saving changes nothing
    again = load(path)
    np.testing.assert_array_equal(again.assess(X).uncertainty, model.assess(X).uncertainty)
    assert path.stat().st_size < 0.35 * len(pickle.dumps(model.estimator_))
    again.save(path)
    np.testing.assert_array_equal(load(path).predict(X), model.predict(X))


@pytest.mark.parametrize("jump", [0, 255])
def test_nodes_that_point_outside_their_tree_are_rejected(jump):
    packed = pack_trees(make_forest().fit(X, y))
    packed.estimators_.jumps[-1] = jump
    with pytest.raises(InvalidInputError, match="points outside"):
        unpack_trees(packed)
