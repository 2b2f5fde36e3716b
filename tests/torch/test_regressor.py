"""TorchRegressor: an ordinary regressor, what it learns, how it stops, and what it refuses."""

import importlib
import os
import pickle
import socket
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch.callbacks import Callback, GradientNormClipping
from torch import nn

import onsphere.torch
from onsphere import (
    HCMClassifier,
    HCMRegressor,
    InvalidInputError,
    Lift,
    MissingExtraError,
    NotFittedError,
    OneHot,
    Polar,
)
from onsphere.models.backbone import join_columns
from onsphere.torch import HCMLoss, TorchRegressor
from onsphere.torch.running import find_device
from onsphere.torch.training import Rows

torch.set_num_threads(1)  # the tests run beside each other, one per core


def small(**options):
    return TorchRegressor(**({"hidden_sizes": (16,), "max_epochs": 3, "random_state": 0} | options))


def table(n=200, n_outputs=2, seed=0):
    """Features and targets far from 0 and 1, as a user has them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(1000.0, 50.0, size=(n, 4))
    z = (X - 1000.0) / 50.0
    y = np.stack([z[:, 0] + z[:, 1] ** 2, 100 * np.tanh(z[:, 2])], axis=1)[:, :n_outputs]
    return X, y


# --- an ordinary regressor ---


def expected_failures(model):
    return {"check_regressors_train": "three epochs are too few to learn; see test_it_learns_in_any_unit"}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        TorchRegressor(hidden_sizes=(8,), max_epochs=3),
        HCMRegressor(TorchRegressor(hidden_sizes=(8,), max_epochs=3), frames="target"),
    ],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_it_learns_in_any_unit():
    X, y = table(600)
    model = small(max_epochs=60, learning_rate=1e-2).fit(X[:500], y[:500])
    assert model.score(X[500:], y[500:]) > 0.95
    assert [epoch["epoch"] for epoch in model.history_] == list(range(1, 61))
    assert model.history_[-1]["train_loss"] < 0.1 * model.history_[0]["train_loss"]


def test_as_a_backbone_it_finds_the_noise():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(1500, 1))
    y = 3 * X[:, 0] + (0.1 + (X[:, 0] > 0)) * rng.normal(size=1500)
    model = HCMRegressor(small(max_epochs=60, learning_rate=1e-2), random_state=0).fit(X, y)
    sigma = model.predict_sigma([[-0.6], [0.6]])
    assert sigma[0] < 0.5
    assert sigma[1] == pytest.approx(1.1, rel=0.25)


def test_as_the_backbone_of_a_classifier():
    X, y = table(400)
    labels = np.where(y[:, 1] > 0, "up", "down")
    model = HCMClassifier(small(max_epochs=20, learning_rate=1e-2), random_state=0).fit(X[:300], labels[:300])
    assert np.mean(model.predict(X[300:]) == labels[300:]) > 0.9


def test_the_seed_fixes_the_network_and_leaves_other_random_numbers_alone():
    X, y = table()
    before = torch.random.get_rng_state()
    first, again = (small(module=dropping, early_stopping=2).fit(X, y).predict(X) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, small(module=dropping, early_stopping=2, random_state=1).fit(X, y).predict(X))
    assert torch.equal(before, torch.random.get_rng_state())
    assert small(random_state=np.random.RandomState(0)).fit(X, y).predict(X).shape == y.shape


def dropping(n_features, n_outputs):
    return nn.Sequential(nn.Linear(n_features, 8), nn.Dropout(), nn.Linear(8, n_outputs))


def test_clone_parameters_pickle_and_search():
    X, y = table(n_outputs=1)
    model = small(callbacks=[GradientNormClipping(1.0)], loss=nn.HuberLoss(reduction="none"), schedule="cosine")
    assert clone(model).set_params(max_epochs=2).get_params()["max_epochs"] == 2
    model.fit(X, y[:, 0])
    assert model.predict(X).shape == (len(X),)
    stored = pickle.dumps(model)
    assert len(stored) < 40_000  # no rows, no batches and no optimiser in it
    assert np.array_equal(pickle.loads(stored).predict(X), model.predict(X))
    search = GridSearchCV(small(max_epochs=1), {"learning_rate": [1e-3, 1e-2]}, cv=2).fit(X, y)
    assert search.best_params_ == {"learning_rate": 1e-2}


def test_tables_are_accepted_and_text_is_not():
    X, y = table()
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = small().fit(frame, y)
    assert list(model.feature_names_in_) == list("abcd")
    assert np.array_equal(model.predict(frame), small().fit(X, y).predict(X))
    with pytest.raises(InvalidInputError, match="could not convert string to float"):
        small().fit(frame.assign(d="text"), y)


def test_a_weight_counts_like_repeated_rows():
    X, y = table(30)
    counts = np.arange(30) % 3
    full = {"batch_size": 100, "max_epochs": 20}
    repeated = small(**full).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts, axis=0))
    weighted = small(**full).fit(X, y, sample_weight=counts)
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-3, atol=1e-3)
    HCMRegressor(small(), random_state=0).fit(X, y, sample_weight=counts)


# --- the loss ---


@pytest.mark.parametrize("standardize", [True, False, "inputs"])
def test_on_the_sphere_the_loss_is_that_of_the_paper(standardize):
    """One step of plain gradient descent with weight decay 0 shows the gradient."""
    X, y = table(40)
    embedding = Lift().fit(y)
    columns = join_columns(embedding.embed(y), magnitude=True, mean=True)
    layout = {"n_outputs": 2, "magnitude": True, "mean": True}
    options = {"optimizer": torch.optim.SGD, "max_epochs": 1, "batch_size": 40, "weight_decay": 0.0}
    start = nn.Linear(4, columns.shape[1])
    options |= {"module": start, "learning_rate": 1e-3, "standardize": standardize}
    X = (X - 1000.0) / 50.0
    model = small(**options).fit(X, columns, column_layout=layout)

    center, scale = (columns.mean(axis=0), columns.std(axis=0)) if standardize is True else (0.0, 1.0)
    inputs = (X - X.mean(axis=0)) / X.std(axis=0) if standardize else X
    raw = start(torch.tensor(inputs, dtype=torch.float32)) * torch.tensor(scale) + torch.tensor(center)
    output = onsphere.torch.SphericalOutput(raw[:, :3], raw[:, 3], raw[:, 4:])
    truth = onsphere.torch.SphericalOutput(*map(torch.tensor, embedding.embed(y)))
    gradient = torch.autograd.grad(HCMLoss()(output, truth), start.weight)[0]
    moved = (start.weight - model.net_.module_.weight) / 1e-3
    np.testing.assert_allclose(moved.detach(), gradient, rtol=1e-2, atol=1e-2)


def test_classes_have_no_magnitude_to_learn():
    columns = OneHot().fit([0, 1, 2]).embed(np.arange(60) % 3).direction
    layout = {"n_outputs": 3, "magnitude": False, "mean": False}
    X = columns + 0.1
    model = small(max_epochs=60, learning_rate=1e-2).fit(X, columns, column_layout=layout)
    np.testing.assert_allclose(model.predict(X), columns, atol=0.1)


def test_presets_get_the_epoch(monkeypatch):
    columns = join_columns(Lift().fit(table()[1]).embed(table()[1]), magnitude=True, mean=False)
    layout = {"n_outputs": 2, "magnitude": True, "mean": False}
    seen = []
    forward = HCMLoss.forward
    monkeypatch.setattr(HCMLoss, "forward", lambda loss, *given: seen.append(loss.epoch) or forward(loss, *given))
    given = HCMLoss(preset="cifar10")
    model = small(loss=given, batch_size=200)
    model.fit(table()[0], columns, column_layout=layout)
    assert seen == [0, 1, 2]
    assert given.epoch == given.step == 0  # the user's own is left alone
    with pytest.raises(InvalidInputError, match=r"one value per row.*reduction='none'"):
        model.fit(table()[0], columns, np.arange(200), column_layout=layout)


def test_the_loss_of_the_sphere_needs_to_know_the_columns():
    with pytest.raises(InvalidInputError, match=r"which columns are direction.*HCMRegressor"):
        small(loss=HCMLoss()).fit(*table())


@pytest.mark.parametrize("loss", ["squared", nn.MSELoss(), lambda prediction, target: (prediction - target).square()])
def test_a_squared_error_by_any_name(loss):
    X, y = table(130)
    expected = small().fit(X, y).predict(X)
    np.testing.assert_allclose(small(loss=loss).fit(X, y).predict(X), expected, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"early_stopping": 5}])
def test_a_loss_that_is_not_finite_stops_with_step_and_cause(options):
    X, y = table()
    wild = {"optimizer": torch.optim.SGD, "learning_rate": 1e6, "max_epochs": 50}
    with pytest.raises(InvalidInputError, match=r"not finite in epoch \d+ at step \d+: it is (nan|inf).*learning_rate"):
        small(**wild, **options).fit(X, y)


class TwoPerColumn(nn.Module):
    """A squared error of the sum of two outputs for each column."""

    outputs_per_column = 2

    def forward(self, outputs, target):
        return (outputs.unflatten(-1, (-1, 2)).sum(dim=-1) - target).square()


def test_a_loss_may_ask_for_several_outputs_per_column():
    X, y = table(400)
    model = small(loss=TwoPerColumn(), max_epochs=40, learning_rate=1e-2).fit(X, y)
    outputs = model.predict_outputs(X)
    assert outputs.shape == (400, 4)
    value = model.unstandardize(outputs.reshape(400, 2, 2).sum(axis=2))
    assert np.sqrt(np.mean((value - y) ** 2, axis=0) / y.var(axis=0)).max() < 0.4
    with pytest.raises(InvalidInputError, match=r"2 outputs per column.*they are not predictions. Use predict_outputs"):
        model.predict(X)
    with pytest.raises(InvalidInputError, match=r"turns 4 features into a tensor of shape \(n, 4\)"):
        small(loss=TwoPerColumn(), module=nn.Linear(4, 2)).fit(X, y)


class AsTheyAre(nn.MSELoss):
    standardizes = False


@pytest.mark.parametrize("standardize", [True, False, "inputs"])
@pytest.mark.parametrize("loss", ["squared", AsTheyAre()], ids=str)
def test_columns_are_standardised_by_default(standardize, loss):
    X, y = table()
    model = small(loss=loss, standardize=standardize).fit(X, y)
    scaled = standardize is True and loss == "squared"
    center, scale = (y.mean(axis=0), y.std(axis=0)) if scaled else (0.0, np.ones(2))
    draws = np.random.default_rng(0).normal(size=(3, 5, 2))
    np.testing.assert_allclose(model.unstandardize(draws), draws * scale + center)
    np.testing.assert_allclose(model.unstandardize(draws, centered=False), draws * scale)
    np.testing.assert_allclose(model.predict(X), model.predict_outputs(X) * scale + center)
    seen = (X - X.mean(axis=0)) / X.std(axis=0) if standardize else X
    np.testing.assert_allclose(model.standardize_rows(X), seen, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        np.testing.assert_allclose(
            model.net_.module_(model.standardize_rows(X)), model.predict_outputs(X), rtol=1e-5, atol=1e-5
        )


def test_with_scaled_inputs_the_outputs_are_the_columns_themselves(tmp_path):
    X, y = table()
    y = 50.0 + 0.1 * y / y.std(axis=0)
    hcm = HCMRegressor(
        small(standardize="inputs"), embedding=Polar(standardize=False), decoder="product", frames="target"
    )
    model = hcm.fit(1e3 * X, y)
    network = model.estimator_
    with torch.no_grad():
        outputs = network.net_.module_(network.standardize_rows(1e3 * X)).double().numpy()
    np.testing.assert_array_equal(network.predict(1e3 * X), outputs)
    np.testing.assert_allclose(model.predict(1e3 * X), outputs[:, :2] * outputs[:, 2:], rtol=1e-6)  # R·d, as they are
    norms = np.linalg.norm(outputs[:, :2], axis=1)
    np.testing.assert_allclose(model.predict_uncertainty(1e3 * X), np.abs(outputs[:, 2] * (norms - 1)), rtol=1e-4)
    model.save(tmp_path / "model.onsphere")
    loaded = onsphere.load(tmp_path / "model.onsphere")
    assert loaded.estimator_.standardize == "inputs"
    np.testing.assert_array_equal(loaded.predict(1e3 * X), model.predict(1e3 * X))


class Pulled(nn.Linear):
    """A layer whose penalty falls with its weights at a known rate."""

    def penalty(self):
        return 100.0 * self.weight.sum()


@pytest.mark.parametrize(
    ("options", "n_trained"), [({}, 200), ({"early_stopping": 5, "validation_fraction": 0.25}, 150)]
)
def test_the_penalty_of_a_network_is_shared_by_the_rows_that_are_trained_on(options, n_trained):
    X, y = table(200)
    start = Pulled(4, 2)
    plain = nn.Linear(4, 2)
    plain.load_state_dict(start.state_dict())
    once = {
        "optimizer": torch.optim.SGD,
        "max_epochs": 1,
        "batch_size": 200,
        "weight_decay": 0.0,
        "learning_rate": 1e-2,
    }
    without, with_penalty = (small(module=module, **once, **options).fit(X, y) for module in (plain, start))
    moved = without.net_.module_.weight - with_penalty.net_.module_.weight
    np.testing.assert_allclose(moved.detach(), 1e-2 * 100.0 / n_trained, rtol=1e-3)
    assert with_penalty.history_[0]["train_loss"] - without.history_[0]["train_loss"] == pytest.approx(
        100.0 * float(start.weight.detach().sum()) / n_trained, rel=1e-3
    )


# --- draws of what is random ---


class Shifted(nn.Module):
    """A layer of a user that is random in training, and draws once for all rows where no gradients are kept."""

    is_random = True

    def forward(self, x):
        if not self.training:
            return x
        return x + torch.randn_like(x if torch.is_grad_enabled() else x[:1])


def images(layer):
    """Rows as maps of two channels, with a layer on them."""

    def make(n_features, n_outputs):
        return nn.Sequential(nn.Unflatten(1, (2, 2, 1)), layer, nn.Flatten(), nn.Linear(4, n_outputs))

    return make


DRAWING = {
    "MLP": {"dropout": 0.3},
    "dropout": {"module": dropping},
    "channels": {"module": images(nn.Dropout2d(0.5))},
    "own": {"module": lambda n_features, n_outputs: nn.Sequential(Shifted(), nn.Linear(n_features, n_outputs))},
}


@pytest.mark.parametrize("options", DRAWING.values(), ids=DRAWING)
def test_draws_are_seeded_and_the_same_for_all_rows(options):
    X, y = table(100)
    model = small(batch_size=2, max_epochs=1, **options).fit(X, y)  # 32 rows at a time in prediction
    before = torch.random.get_rng_state()
    draws = model.predict_outputs(X, n_samples=6)
    assert draws.shape == (6, 100, 2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(draws, model.predict_outputs(X, n_samples=6))
    assert not np.array_equal(draws, model.predict_outputs(X, n_samples=6, seed=1))
    assert len({draw.tobytes() for draw in draws}) > 3
    # A row in the third batch, alone and among others.
    np.testing.assert_allclose(model.predict_outputs(X[[70]], n_samples=6)[:, 0], draws[:, 70], rtol=1e-5, atol=1e-6)
    equal = model.predict_outputs(np.repeat(X[:1], 50, axis=0), n_samples=6)
    np.testing.assert_allclose(equal, equal[:, :1].repeat(50, axis=1), rtol=1e-5, atol=1e-6)
    # Nothing stays random afterwards.
    assert np.array_equal(model.predict(X), model.predict(X))
    assert not any(layer.training for layer in model.net_.module_.modules())
    assert not any(layer._forward_hooks for layer in model.net_.module_.modules())


def test_draws_of_dropout_average_to_the_prediction():
    """Of a linear function of what was dropped: no row may be off by 5 standard errors."""
    X, y = table(20)
    model = small(module=lambda a, b: nn.Sequential(nn.Dropout(0.4), nn.Linear(a, b))).fit(X, y)
    draws = model.predict_outputs(X, n_samples=200)
    error = draws.std(axis=0) / 200**0.5
    assert (np.abs(draws.mean(axis=0) - model.predict_outputs(X)) < 5 * error).all()


def test_other_dropout_is_drawn_row_by_row():
    X, y = table(50)
    model = small(module=lambda a, b: nn.Sequential(nn.Linear(a, 8), nn.AlphaDropout(0.5), nn.Linear(8, b))).fit(X, y)
    draws = model.predict_outputs(np.repeat(X[:1], 50, axis=0), n_samples=2)
    assert np.array_equal(draws, model.predict_outputs(np.repeat(X[:1], 50, axis=0), n_samples=2))
    assert draws[0].std(axis=0).min() > 0


def test_without_anything_random_all_draws_are_the_prediction():
    X, y = table(50)
    model = small(module=images(nn.Dropout(0.0))).fit(X, y)
    draws = model.predict_outputs(X, n_samples=3)
    for draw in draws:
        assert np.array_equal(draw, model.predict_outputs(X))


def test_a_draw_that_fails_leaves_the_network_as_it_was():
    X, y = table(20)
    model = small(module=dropping).fit(X, y)
    with pytest.raises(InvalidInputError, match="features"):
        model.predict_outputs(X[:, :2], n_samples=3)
    with pytest.raises(RuntimeError), model.net_.use_one_draw(0):
        model.net_.predict(Rows(np.zeros((3, 7))))
    assert model.net_.draw_seed_ is None
    assert not any(layer.training or layer._forward_hooks for layer in model.net_.module_.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_samples": 0}, r"'n_samples' parameter of predict_outputs must be an int in \[1, inf\)"),
        ({"n_samples": 2.5}, "'n_samples' parameter"),
        ({"n_samples": 3, "seed": -1}, "'seed' parameter of predict_outputs"),
        ({"seed": "x"}, "'seed' parameter"),
    ],
)
def test_bad_draws(options, message):
    X, y = table(20)
    with pytest.raises(InvalidInputError, match=message):
        small(max_epochs=1).fit(X, y).predict_outputs(X, **options)


# --- training ---


def test_early_stopping_returns_to_the_best_weights():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 10)), rng.normal(size=80)  # nothing to learn, much to remember
    model = small(max_epochs=200, early_stopping=4, validation_fraction=0.25, learning_rate=1e-2).fit(X, y)
    losses = [epoch["valid_loss"] for epoch in model.history_]
    assert len(losses) < 200
    assert np.argmin(losses) == len(losses) - 5
    assert model.net_.device == "cpu"


@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_schedules_lower_the_learning_rate(schedule):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 10)), rng.normal(size=40)
    model = small(schedule=schedule, max_epochs=80, learning_rate=1e-2).fit(X, y)
    rates = [epoch["event_lr"] for epoch in model.history_]
    assert rates[0] == 1e-2
    assert min(rates) < 2e-3
    assert ("valid_loss" in model.history_[0]) == (schedule == "plateau")


def test_progress_is_shown_on_request(capsys):
    small().fit(*table())
    assert capsys.readouterr() == ("", "")
    small(progress=True, early_stopping=3).fit(*table())
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "valid_loss=" in shown


def test_nothing_is_printed_where_another_library_has_replaced_print(capsys, monkeypatch):
    original = print
    monkeypatch.setattr("builtins.print", lambda *args, **options: original(*args, **options))
    small().fit(*table())
    assert capsys.readouterr() == ("", "")


def test_mixed_precision_is_close_and_predicts_in_full_precision():
    X, y = table()
    rough, exact = (small(mixed_precision=mixed).fit(X, y) for mixed in (True, False))
    assert rough.net_.module_.linear.weight.dtype == torch.float32
    assert not np.array_equal(rough.predict(X), exact.predict(X))
    np.testing.assert_allclose(rough.predict(X), exact.predict(X), atol=0.05 * y.std())


def test_the_device_is_found(monkeypatch):
    assert str(find_device(small(), "auto")) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert str(find_device(small(), "auto")) == "cuda"


def test_an_interrupted_training_leaves_no_network():
    """skorch would take what was trained so far for the result, and nobody would know."""

    class Stop(Callback):
        def on_batch_end(self, net, **_):
            if len(net.history) == 2:
                raise KeyboardInterrupt

    X, y = table()
    model = small(callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert not hasattr(model, "net_")


# --- modules ---


@pytest.mark.parametrize("module", [dropping, nn.Linear, nn.Linear(4, 2)])
def test_modules_of_a_user(module):
    X, y = table()
    model = small(module=module).fit(X, y)
    assert model.predict(X).shape == y.shape
    assert model.net_.module_ is not module


def test_an_instance_keeps_its_weights_and_is_not_trained_itself():
    module = nn.Linear(4, 2)
    before = module.weight.detach().clone()
    model = small(module=module, learning_rate=1e-9).fit(*table())
    assert torch.equal(module.weight, before)
    assert torch.allclose(model.net_.module_.weight, before, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(4, 3), r"turns 4 features into a tensor of shape \(n, 2\).*Got shape \(2, 3\) for n = 2"),
        (nn.Linear(5, 2), r"Got RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (lambda n_features, n_outputs: nn.GRU(n_features, n_outputs), "Got tuple for n = 2"),
        (lambda n_features, n_outputs: "network", "must be a callable that returns a Module. Got 'network'"),
        ("network", "must be a Module, or a callable that makes one. Got 'network'"),
    ],
)
def test_modules_that_do_not_fit(module, message):
    with pytest.raises(InvalidInputError, match=message):
        small(module=module).fit(*table())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_epochs": 0}, r"'max_epochs' parameter of TorchRegressor must be an int in \[1, inf\)"),
        ({"batch_size": 2.5}, "'batch_size' parameter"),
        ({"learning_rate": 0}, r"'learning_rate' parameter of TorchRegressor must be a float in \(0, inf\)"),
        ({"weight_decay": -1}, "'weight_decay' parameter"),
        ({"early_stopping": 0}, "'early_stopping' parameter"),
        ({"validation_fraction": 1.0}, "'validation_fraction' parameter"),
        ({"dropout": 1.0}, r"'dropout' parameter of TorchRegressor must be a float in \[0, 1\)"),
        ({"schedule": "linear"}, "'schedule' parameter of TorchRegressor must be one of 'cosine', 'plateau'"),
        ({"loss": "cubic"}, "'loss' parameter of TorchRegressor must be one of 'auto', 'squared'"),
        ({"loss": 3}, "'loss' parameter"),
        ({"device": "abacus"}, "'device' parameter of TorchRegressor must be 'auto' or a device that torch finds here"),
        ({"standardize": 1}, "'standardize' parameter of TorchRegressor must be True, False or 'inputs'. Got 1"),
        ({"standardize": "targets"}, "must be True, False or 'inputs'. Got 'targets'"),
        ({"random_state": "x"}, "'random_state' parameter"),
        ({"hidden_sizes": ()}, "'hidden_sizes' parameter"),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(InvalidInputError, match=message):
        small(**options).fit(*table())


def test_a_fit_that_fails_leaves_the_old_one():
    X, y = table()
    model = small().fit(X, y)
    before = model.predict(X)
    with pytest.raises(InvalidInputError, match="not finite"):
        model.set_params(optimizer=torch.optim.SGD, learning_rate=1e6, max_epochs=50).fit(X[:, :2], y[:, 0])
    assert np.array_equal(model.predict(X), before)


def test_bad_rows():
    X, y = table(20)
    with pytest.raises(NotFittedError):
        small().predict(X)
    with pytest.raises(InvalidInputError, match="contains NaN"):
        small().fit(np.where(X > 1000, np.nan, X), y)
    with pytest.raises(InvalidInputError, match="inconsistent numbers of samples"):
        small().fit(X, y[:10])
    with pytest.raises(InvalidInputError, match="features"):
        small().fit(X, y).predict(X[:, :2])


# --- packages and processes ---


def test_without_skorch_only_the_regressor_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "skorch", None)
    for name in ("regressor", "training"):
        monkeypatch.delitem(sys.modules, f"onsphere.torch.{name}")
    message = r"TorchRegressor needs skorch. Install it with: pip install 'onsphere\[torch\]'"
    with pytest.raises(MissingExtraError, match=message):
        importlib.import_module("onsphere.torch.regressor")
    with pytest.raises(AttributeError, match="no attribute 'KerasRegressor'"):
        _ = onsphere.torch.KerasRegressor


def test_without_accelerate_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match=r"TorchRegressor\(multi_process=True\) needs accelerate"):
        small(multi_process=True).fit(*table())


def test_one_process_under_accelerate_learns_the_same(capsys):
    X, y = table()
    options = {"early_stopping": 2, "max_epochs": 10, "learning_rate": 1e-2}
    alone, shared = (small(**options, multi_process=flag).fit(X, y) for flag in (False, True))
    assert capsys.readouterr() == ("", "")
    np.testing.assert_allclose(shared.predict(X), alone.predict(X), rtol=1e-5)
    assert np.array_equal(pickle.loads(pickle.dumps(shared)).predict(X), shared.predict(X))


def test_batches_are_split_evenly_among_processes(monkeypatch):
    three = SimpleNamespace(num_processes=3)
    monkeypatch.setattr("onsphere.torch.regressor.make_accelerator", lambda device: three)
    with pytest.raises(InvalidInputError, match=r"must be a multiple of 3, the number of processes. Got 64"):
        small(multi_process=True).fit(*table())


# Each process stops early by the validation loss of all of them, or one would wait for the other for ever. There is one
# batch, because accelerate shuffles in an order of its own.
TWO_PROCESSES = """
import sys
import numpy as np, torch
from onsphere.torch import MLP, TorchRegressor
torch.set_num_threads(1)
class Pulled(MLP):
    def penalty(self):
        return 30.0 * sum((weight**2).sum() for weight in self.parameters())
def pulled(n_features, n_outputs):
    return Pulled(n_features, n_outputs, hidden_sizes=(8,))
rng = np.random.default_rng(0)
X = rng.normal(size=(160, 3))
y = X[:, :2] + 0.5 * rng.normal(size=(160, 2))
options = {"module": pulled, "max_epochs": 90, "learning_rate": 0.05, "random_state": 0, "early_stopping": 3}
options |= {"batch_size": 144, "validation_fraction": 0.1, "schedule": "plateau"}
model = TorchRegressor(multi_process=sys.argv[1] == "2", **options).fit(X, y)
np.savez(sys.argv[2], values=model.predict(X), n_epochs=len(model.history_))
if sys.argv[1] == "2":
    torch.distributed.destroy_process_group()
"""


def test_two_processes_learn_what_one_learns(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    runs = {"alone.npz": ("1", {})}
    runs |= {f"{rank}.npz": ("2", {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_PROCESSES, n_processes, str(tmp_path / name)],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, (n_processes, environment) in runs.items()
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(errors)
    alone, *both = (np.load(tmp_path / name) for name in runs)
    for each in both:
        assert each["n_epochs"] == alone["n_epochs"] < 90
        np.testing.assert_allclose(each["values"], alone["values"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("wrap", [lambda network: network, lambda network: make_pipeline(StandardScaler(), network)])
def test_a_network_inside_hcm_knows_which_columns_are_which(wrap, monkeypatch):
    told = []
    fit = TorchRegressor.fit

    def listening(self, *given, column_layout):
        told.append(column_layout)
        return fit(self, *given, column_layout=column_layout)

    monkeypatch.setattr(TorchRegressor, "fit", listening)
    X, y = table()
    HCMRegressor(wrap(small()), frames="target").fit(X, y)
    HCMClassifier(wrap(small())).fit(X, np.arange(len(X)) % 3)
    assert told == [
        {"n_outputs": 1 if y.ndim == 1 else y.shape[1], "magnitude": True, "mean": True},
        {"n_outputs": 3, "magnitude": False, "mean": False},
    ]


class IndexedWrongly(nn.Module):
    def forward(self, x):
        return x[:, 7]


class Steep(nn.Module):
    def forward(self, prediction, target):
        return 1e6 * (prediction - target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_sizes": 5}, "hidden_sizes"),
        ({"hidden_sizes": (0,)}, "hidden_sizes"),
        ({"module": lambda: nn.Linear(3, 1)}, "a callable that makes one from two numbers"),
        ({"module": lambda n_features, n_outputs: IndexedWrongly()}, "IndexError"),
        ({"module": lambda n_features, n_outputs: nn.Linear(3, 1).requires_grad_(False)}, "weights to train"),
        ({"optimizer": "adam"}, "'optimizer' parameter"),
        ({"callbacks": None}, "'callbacks' parameter"),
        ({"callbacks": [3]}, "'callbacks' parameter"),
        ({"loss": nn.MSELoss}, "'loss' parameter"),
        ({"loss": nn.BCELoss()}, "could not be trained"),
        ({"loss": lambda prediction, target: 1.0}, "returns a tensor. Got float"),
        ({"loss": lambda prediction, target: prediction.missing}, "could not be trained"),
        ({"learning_rate": 1e38}, "could not be trained"),
        (
            {"learning_rate": 1e38, "batch_size": 60, "optimizer": torch.optim.SGD, "loss": Steep()},
            "weights are not finite after training",
        ),
    ],
)
def test_errors_in_training_are_explained(options, message):
    X = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(InvalidInputError, match=message):
        TorchRegressor(**{"hidden_sizes": (8,), "max_epochs": 1, "random_state": 0, **options}).fit(X, X[:, 0])


def test_numbers_beyond_single_precision_are_named():
    X = np.random.default_rng(0).normal(size=(60, 3))
    network = TorchRegressor(hidden_sizes=(8,), max_epochs=1, standardize=False, random_state=0)
    with pytest.raises(InvalidInputError, match="features that single precision holds"):
        network.fit(1e50 * X, X[:, 0])
    with pytest.raises(InvalidInputError, match="targets that single precision holds"):
        network.fit(X, 1e50 * X[:, 0])
    with pytest.raises(InvalidInputError, match="finite predictions of the network"):
        network.fit(X, X[:, 0]).predict(1e50 * X)


# --- data sets, and rows of several axes ---


class Pooled(nn.Module):
    def __init__(self, n_channels, n_outputs):
        super().__init__()
        self.body, self.last = nn.Conv2d(n_channels, 8, 3, padding=1), nn.Linear(8, n_outputs)

    def forward(self, x):
        return self.last(torch.relu(self.body(x)).mean(dim=(2, 3)))


def draw_pictures(n=120):
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(n, 2, 5, 5, generator=generator) + torch.randn(n, 1, 1, 1, generator=generator)
    return pictures, pictures.mean(dim=(1, 2, 3))


def test_pictures_reach_the_network_in_their_shape():
    x, y = (part.numpy() for part in draw_pictures())
    model = TorchRegressor(Pooled, max_epochs=40, learning_rate=0.02, random_state=0).fit(x, y)
    assert model.net_.module_.body.in_channels == 2
    assert model.score(x, y) > 0.8
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    for wrong in (x[:, :, :4], x.reshape(120, -1)):
        with pytest.raises(InvalidInputError, match=r"fitted on rows of shape \(2, 5, 5\)\. Got"):
            model.predict(wrong)
    flat = TorchRegressor(hidden_sizes=(4,), max_epochs=1, random_state=0).fit(x.reshape(120, -1), y)
    with pytest.raises(InvalidInputError, match=r"fitted on rows of shape \(50,\)\. Got \(2, 5, 5\)"):
        flat.predict(x)


def test_a_data_set_and_a_loader_are_rows_with_targets():
    x, y = draw_pictures(60)
    options = {"max_epochs": 2, "random_state": 0}
    expected = TorchRegressor(Pooled, **options).fit(x.numpy(), y.numpy()).predict(x.numpy())
    data = torch.utils.data.TensorDataset(x, y)
    for given in (data, torch.utils.data.DataLoader(data, batch_size=7)):
        model = TorchRegressor(Pooled, **options).fit(given)
        np.testing.assert_allclose(model.predict(x.numpy()), expected, rtol=1e-5)
        np.testing.assert_allclose(model.predict(given), expected, rtol=1e-5)
        with pytest.raises(
            InvalidInputError, match=r"of pairs \(x, y\) alone, whose targets are taken\. Got a y beside it"
        ):
            model.fit(given, y)
    named = torch.utils.data.DataLoader([{"left": row, "labels": value} for row, value in zip(x, y, strict=True)])
    with pytest.raises(InvalidInputError, match=r"one tensor of rows in each batch .* Got named inputs, or no batch"):
        model.predict(named)
    with pytest.raises(InvalidInputError, match="Expected a target y, or a Dataset or DataLoader"):
        TorchRegressor(**options).fit([[1.0], [2.0]])
    for nothing in (torch.utils.data.TensorDataset(x), torch.utils.data.TensorDataset(x[:0], y[:0])):
        with pytest.raises(InvalidInputError, match=r"pairs \(x, y\) of tensors"):
            TorchRegressor(**options).fit(nothing)


def test_an_unknown_device_is_answered_with_those_that_are_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    message = r"finds here \(cpu, cuda:0, mps\)\. Got 'toaster'"
    with pytest.raises(InvalidInputError, match=message):
        TorchRegressor(device="toaster").fit([[1.0], [2.0]], [1.0, 2.0])


def test_channels_of_pictures_are_standardised_as_a_whole():
    generator = np.random.default_rng(0)
    x = generator.normal([[[5.0]], [[-3.0]]], [[[0.1]], [[10.0]]], size=(50, 2, 4, 4))
    weights = generator.integers(1, 4, 50)
    model = TorchRegressor(Pooled, max_epochs=1, random_state=0)
    for given, repeated in ((None, x), (weights, np.repeat(x, weights, axis=0))):
        scaled = model.fit(x, x[:, 1, 0, 0], given).standardize_rows(repeated).numpy()
        np.testing.assert_allclose(scaled.mean(axis=(0, 2, 3)), 0, atol=1e-5)
        np.testing.assert_allclose(scaled.std(axis=(0, 2, 3)), 1, rtol=1e-5)
    as_they_are = model.set_params(standardize=False).fit(x, x[:, 1, 0, 0]).standardize_rows(x)
    np.testing.assert_allclose(as_they_are, x, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(torch.tensor(x)), model.predict(x))


@pytest.mark.parametrize("form", ["pair", "list of a pair", "data set", "loader"])
def test_training_stops_by_rows_of_ones_own(form):
    x, y = draw_line(200)
    torch_rows = torch.utils.data.TensorDataset(torch.tensor(x), -torch.tensor(y))
    forms = {
        "pair": (x, -y),
        "list of a pair": [(x, -y)],
        "data set": torch_rows,
        "loader": torch.utils.data.DataLoader(torch_rows, 64),
    }
    # Rows that say the opposite: every step makes their loss worse, and the first epoch is the best.
    model = TorchRegressor(hidden_sizes=(10,), max_epochs=30, early_stopping=3, random_state=0)
    model.fit(x, y, eval_set=forms[form])
    assert len(model.history_) == 4
    expected = TorchRegressor(hidden_sizes=(10,), max_epochs=1, random_state=0).fit(x, y)
    np.testing.assert_allclose(model.predict(x), expected.predict(x), rtol=1e-6)


def draw_line(n):
    x = np.random.default_rng(0).normal(size=(n, 2))
    return x, x[:, 0] - 2 * x[:, 1]


@pytest.mark.parametrize("given", [[], [(1, 2, 3)], "rows"])
def test_bad_eval_sets(given):
    x, y = draw_line(20)
    with pytest.raises(InvalidInputError, match=r"a pair \(X, y\), a list of one, a Dataset or a DataLoader"):
        TorchRegressor(max_epochs=1).fit(x, y, eval_set=given)


def test_a_warm_start_goes_on_as_if_training_had_not_stopped(tmp_path):
    x, y = draw_line(64)
    # One batch per epoch, so that the order of rows changes nothing.
    options = {"hidden_sizes": (10,), "batch_size": 64, "learning_rate": 0.01, "random_state": 0}
    whole = TorchRegressor(max_epochs=40, **options).fit(x, y)
    halves = TorchRegressor(max_epochs=20, warm_start=True, **options).fit(x, y)
    before = halves.predict(x)
    again = pickle.loads(pickle.dumps(halves))
    for model in (halves, again):
        model.fit(x, y)
        np.testing.assert_allclose(model.predict(x), whole.predict(x), atol=1e-4)
        assert len(model.history_) == 40
    parts = TorchRegressor(**options)
    for _ in range(40):
        parts.partial_fit(x, y)
    np.testing.assert_allclose(parts.predict(x), whole.predict(x), atol=1e-4)
    # Without what Adam has learned, the first steps are larger.
    halves = TorchRegressor(max_epochs=20, **options).fit(x, y)
    np.testing.assert_array_equal(halves.predict(x), before)
    halves.set_params(warm_start=True).fit(x, y)
    assert np.abs(halves.predict(x) - whole.predict(x)).max() > 1e-3
    # And a new fit is a new network.
    halves.set_params(warm_start=False).fit(x, y)
    np.testing.assert_array_equal(halves.predict(x), before)
    kept = HCMRegressor(clone(parts).set_params(max_epochs=2, warm_start=True), frames="target").fit(x, y)
    kept.save(tmp_path / "network.onsphere")
    loaded = onsphere.load(tmp_path / "network.onsphere").estimator_
    assert loaded._optimizer_state == kept.estimator_._optimizer_state


def make_linear(n_features, n_outputs):
    return torch.nn.Linear(n_features, n_outputs)


@pytest.mark.parametrize("change", [{"hidden_sizes": (4,)}, {"dropout": 0.5}, {"module": make_linear}])
def test_parameters_of_another_network_leave_the_trained_one_as_it_is(change):
    """A file would be lost if they decided how the network is built again."""
    x, y = draw_line(30)
    model = TorchRegressor(hidden_sizes=(8,), max_epochs=1, warm_start=True, random_state=0).fit(x, y)
    before = model.predict(x)
    model.set_params(**change)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), before)
    with pytest.raises(InvalidInputError, match=r"goes on with a network that was built with .*\. Set these back"):
        model.fit(x, y)
    with pytest.raises(InvalidInputError, match=r"goes on with a network that was built with"):
        model.partial_fit(x, y)
    np.testing.assert_array_equal(model.predict(x), before)
    model.set_params(warm_start=False).fit(x, y)
    assert np.abs(model.predict(x) - before).max() > 0


def test_another_optimizer_and_learning_rate_go_on_with_the_weights():
    x, y = draw_line(64)
    model = TorchRegressor(hidden_sizes=(10,), max_epochs=5, warm_start=True, random_state=0).fit(x, y)
    before = model.predict(x)
    model.set_params(optimizer=torch.optim.SGD, learning_rate=1e-12, schedule="cosine").fit(x, y)
    np.testing.assert_allclose(model.predict(x), before, atol=1e-6)


def test_the_epoch_of_a_loss_goes_on(monkeypatch):
    seen = []
    monkeypatch.setattr(HCMLoss, "epoch", property(lambda _: 0, lambda _, epoch: seen.append(epoch)), raising=False)
    x, y = draw_line(30)
    columns = np.column_stack([x, y])
    model = TorchRegressor(hidden_sizes=(4,), max_epochs=2, warm_start=True, loss=HCMLoss(), random_state=0)
    layout = {"n_outputs": 1, "magnitude": False, "mean": True}
    for _ in range(2):
        model.fit(x, columns, column_layout=layout)
    assert seen[-4:] == [0, 1, 2, 3]


def test_a_training_that_goes_on_needs_the_same_shapes():
    x, y = draw_line(30)
    model = TorchRegressor(hidden_sizes=(4,), max_epochs=1, random_state=0).partial_fit(x, y)
    before = model.predict(x)
    for target in (y[:, None], np.column_stack([y, y])):
        with pytest.raises(InvalidInputError, match=r"network for 1 column\(s\)\. Got a target of shape"):
            model.partial_fit(x, target)
    with pytest.raises(InvalidInputError, match="3 features"):
        model.partial_fit(np.column_stack([x, y]), y)
    with pytest.raises(InvalidInputError, match="single precision"):
        model.partial_fit(x, 1e50 * y)
    np.testing.assert_array_equal(model.predict(x), before)
