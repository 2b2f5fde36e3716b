"""A fitted FrozenHead as a torch module."""

import copy
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from onsphere import AcceptShare, InvalidInputError, InvalidTypeError, NotFittedError, Novelty
from onsphere.models.frozen import FrozenHead
from onsphere.models.noise import ErrorFrame
from onsphere.torch.features import features
from onsphere.torch.frozen_module import FrozenModule, to_torch


def heads_and_rows():
    rng = np.random.default_rng(0)
    X = np.abs(rng.normal(size=(400, 8)))
    X[0] = 0.0  # a network can be silent
    labels, noise = X[:, :3].argmax(axis=1), rng.normal(size=(400, 2)) * 0.5
    for kind in ("joint", "linear", "quadratic", "kernel"):
        for y in (labels, X @ rng.normal(size=8) + 3.0 + noise[:, 0], X @ rng.normal(size=(8, 2)) + noise):
            yield FrozenHead(kind, n_landmarks=50, random_state=0).fit(X, y), X
    for options in ({"frames": "target"}, {"layers": (2, 6)}):
        for y in (labels, X @ rng.normal(size=8) + noise[:, 0]):
            yield FrozenHead(n_landmarks=50, random_state=0, **options).fit(X, y), X


@pytest.mark.parametrize(("head", "X"), list(heads_and_rows()), ids=lambda value: getattr(value, "kind", ""))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_module_agrees_with_the_head(head, X, dtype, tolerance):
    module = to_torch(head, dtype=dtype)
    # Rows and answer are as exact as the type allows, so the head is asked about the rows as rounded.
    rounded = torch.from_numpy(X).to(dtype)
    said = module(rounded)
    expected = head.assess(rounded.numpy())
    np.testing.assert_allclose(said.uncertainty.numpy(), expected.uncertainty, rtol=tolerance, atol=10 * tolerance)
    np.testing.assert_allclose(
        torch.linalg.vector_norm(said.direction, dim=1).numpy(), expected.direction_norm, rtol=0, atol=tolerance
    )
    if module.classes is None:
        np.testing.assert_allclose(said.value.numpy(), expected.value, rtol=tolerance, atol=tolerance)
    else:
        assert [module.classes[index] for index in said.value] == expected.value.tolist()
    if head.frames == "target":
        assert said.novelty is expected.novelty is None
    else:
        unusual = rounded[:, [3, 4, 5, 6, 7, 0, 1, 2]]
        found, known = module(unusual).novelty.numpy(), head.predict_novelty(unusual.numpy())
        assert known.max() > 0.1
        np.testing.assert_allclose(found, known, rtol=0, atol=10 * tolerance)
    assert list(module.parameters()) == []


def test_the_module_can_be_exported_with_its_network():
    body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.ReLU()).eval()
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    head = FrozenHead(n_landmarks=10, random_state=0).fit(body(x).detach().numpy(), np.arange(50) % 3)
    model = nn.Sequential(body, to_torch(head)).eval()
    exported = torch.export.export(model, (x,)).module()
    for ours, theirs in zip(model(x), exported(x), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(3, 1), (3, 7), (8,), (2, 3, 8), ()])
@pytest.mark.parametrize("kind", ["joint", "linear", "quadratic", "kernel"])
def test_the_module_rejects_rows_of_another_width(kind, shape):
    rng = np.random.default_rng(0)
    module = to_torch(FrozenHead(kind, n_landmarks=50, random_state=0).fit(rng.normal(size=(90, 8)), np.arange(90) % 3))
    message = rf"Expected features of shape \(n, 8\), as .* Got {re.escape(str(shape))}\. Nothing is broadcast"
    with pytest.raises(InvalidInputError, match=message):
        module(torch.zeros(shape))


# Dynamo looks through the cache of array-api-compat, which is right, and says so.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_the_module_compiles():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 8)), np.arange(90) % 3
    module, rows = to_torch(FrozenHead(n_landmarks=50, random_state=0).fit(X, y)), torch.from_numpy(X).float()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for ours, theirs in zip(module(rows), compiled(rows), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("head", "X"), list(heads_and_rows()), ids=lambda value: getattr(value, "kind", ""))
def test_the_module_trusts_huge_rows_as_little_as_the_head(head, X):
    """In single precision squares of 10²⁵ are infinite, and what follows would be no number."""
    module, far = to_torch(head), torch.from_numpy(X[1:] * 1e25).float()
    said = module(far).uncertainty.numpy()
    assert not np.isnan(said).any()
    expected = head.predict_uncertainty(far.numpy())
    within = expected < 1e38
    np.testing.assert_allclose(said[within], expected[within], rtol=1e-4, atol=1e-4)
    assert (said[~within] > 1e37).all()
    if head.kind == "kernel":  # which sees angles only
        assert within.all()


def test_only_a_fitted_frozen_head_becomes_a_module():
    head = FrozenHead("linear").fit(np.eye(4), [0, 1, 0, 1])
    for dtype in (torch.int64, "float32"):
        with pytest.raises(InvalidInputError, match="'dtype' parameter of to_torch must be a floating dtype"):
            to_torch(head, dtype=dtype)
    with pytest.raises(InvalidTypeError, match=r"to_torch needs a FrozenHead or a CalibratedNetwork\. Got Linear"):
        to_torch(nn.Linear(1, 1))
    with pytest.raises(NotFittedError):
        FrozenModule(FrozenHead())


# --- calibration and threshold, and the network in front ---


def compare(output, expected, classes, atol=1e-4):
    """Check that a module says what `assess` says."""
    value = output.value.numpy() if classes is None else np.array(classes)[output.value.numpy()]
    np.testing.assert_allclose(value, expected.value, atol=atol)
    for name in ("uncertainty", "noise", "novelty", "sigma", "lower", "upper", "confidence", "accepted"):
        ours, theirs = getattr(output, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            np.testing.assert_allclose(ours.numpy(), theirs, atol=atol, rtol=1e-4, err_msg=name)
    if classes is not None:
        np.testing.assert_allclose(output.probabilities.numpy(), expected.probabilities, atol=atol)


@pytest.fixture(scope="module")
def body():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Dropout(0.5), nn.ReLU(), nn.Linear(9, 4), nn.ReLU())


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6)).astype(np.float32)
    numbers = x[:, 0] + np.where(x[:, 1] > 0, 1.0, 0.1) * rng.normal(size=600)
    return torch.from_numpy(x), {"classes": (x[:, 0] > 0) + (x[:, 1] > 1).astype(int), "numbers": numbers}


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_a_network_its_head_and_all_that_was_calibrated_in_one_module(body, data, task):
    x, y = data[0], data[1][task]
    X, _ = features(body, [x], layer=["3", "5"])
    head = FrozenHead(layers=(9, 4), n_landmarks=50, random_state=0).fit(X[:300], y[:300]).calibrate(X[300:], y[300:])
    head.set_threshold(AcceptShare(0.9), novelty=Novelty(false_alarm=0.1))
    before = [each.training for each in body.modules()]
    module = to_torch(head, body, layer=["3", "5"], dtype=torch.float64).eval()  # behind an encoder in float32
    output = module(x)
    # Rounding may put a calibration row on the other side of itself.
    compare(module(x[:300]), head.assess(X[:300]), module.head.classes)
    assert 0.7 < output.accepted.float().mean() < 0.95
    assert [each.training for each in body.modules()] == before
    assert not any(each._forward_hooks for each in body.modules())
    exported = torch.export.export(module, (x,), strict=False).module()
    for ours, theirs in zip(output, exported(x), strict=True):
        assert ours is None or torch.allclose(ours.float(), theirs.float(), atol=1e-5)
    compiled = torch.compile(module, backend="eager", fullgraph=True)(x)
    assert torch.allclose(compiled.uncertainty, output.uncertainty, atol=1e-5)


def test_a_coverage_can_be_chosen(data):
    x, y = data[0].numpy(), data[1]["numbers"]
    head = FrozenHead("linear", random_state=0).fit(x[:300], y[:300]).calibrate(x[300:], y[300:])
    expected = head.predict_interval(x, coverage=0.5)
    output = to_torch(head, coverage=0.5, dtype=torch.float64)(data[0].double())
    np.testing.assert_allclose(torch.stack([output.lower, output.upper], dim=1), expected, atol=1e-4)
    with pytest.raises(InvalidInputError, match="'coverage' parameter of to_torch"):
        to_torch(head, coverage=1.5)


def test_named_tensors_go_through(data):
    class Named(nn.Module):
        def forward(self, rows):
            return rows * 1.0

    X, y = data[0].numpy(), data[1]["classes"]
    head = FrozenHead("linear", random_state=0).fit(X, y)
    module = to_torch(head, Named(), layer="")
    np.testing.assert_array_equal(module(rows=data[0]).value, head.predict(X))


def test_a_head_of_an_older_file_scales_sigma_and_adds_up_scores(data):
    """Its error frame has a factor and no trees."""
    x, y = data[0].numpy(), data[1]["numbers"]
    head = FrozenHead("linear", random_state=0).fit(x, y)
    plain = ErrorFrame(np.array([1.3]), None, False, head.spread_)
    head._solution = replace(head._solution, frames=replace(head._solution.frames, error=plain))
    expected = head.assess(x)
    output = to_torch(head, dtype=torch.float64)(data[0].double())
    np.testing.assert_allclose(output.sigma, expected.sigma, rtol=1e-6)
    np.testing.assert_allclose(output.uncertainty, expected.uncertainty, rtol=1e-4, atol=1e-4)
    assert np.corrcoef(expected.uncertainty, expected.sigma)[0, 1] < 0.999


def test_a_head_calibrated_by_groups_is_refused(data):
    x, y = data[0].numpy(), data[1]["numbers"]
    head = FrozenHead("linear", random_state=0).fit(x[:300], y[:300]).calibrate(x[300:], y[300:], groups="prediction")
    with pytest.raises(
        InvalidInputError, match=r"one limit for all rows into a module. Got a head that was calibrated by"
    ):
        to_torch(head)


@pytest.fixture(scope="module")
def module(body, data):
    X, _ = features(body, [data[0]], layer=["3", "5"])
    head = FrozenHead(layers=(9, 4), n_landmarks=50, random_state=0).fit(X, data[1]["numbers"])
    return to_torch(head, body, layer=["3", "5"])


def test_a_module_stays_in_evaluation_mode_when_what_holds_it_is_trained(module, data):
    expected = module(data[0])
    nn.Sequential(module).train()
    for ours, theirs in zip(expected, module(data[0]), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_of_a_module_answers_by_itself(module, data, copied):
    other = copied(module)
    for values in other.reader.network.state_dict().values():
        values.zero_()
    silent, expected = other(data[0]).value, module(data[0]).value
    assert (silent == silent[0]).all()
    assert not (expected == expected[0]).all()


def test_another_precision_is_that_of_the_network_alone(module, data):
    """The head of a network in half precision would lose its digits, and its trees their leaves."""
    expected = module(data[0])
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 0.2)):
        other = copy.deepcopy(module).to(dtype)
        assert next(other.reader.parameters()).dtype == dtype
        assert other.head.frames.trees.threshold.dtype == torch.float64
        output = other(data[0].to(dtype))
        assert output.value.dtype == torch.float32
        torch.testing.assert_close(output.value, expected.value, rtol=tolerance, atol=tolerance)


def test_inputs_come_alone_or_by_name(module, data):
    for inputs, named in (((data[0], data[0]), {}), ((data[0],), {"mask": data[0]}), ((), {})):
        with pytest.raises(InvalidInputError, match=r"Expected one tensor, or all inputs by name\. Got "):
            module(*inputs, **named)


def test_only_a_module_and_a_known_pooling_come_before_a_head(body):
    head = FrozenHead("linear").fit(np.eye(4), [0, 1, 0, 1])
    with pytest.raises(InvalidTypeError, match=r"needs a torch\.nn\.Module as backbone\. Got function"):
        to_torch(head, lambda x: x)
    with pytest.raises(InvalidInputError, match="'pooling' parameter of to_torch must be one of 'cls', 'mean'"):
        to_torch(head, body, pooling="max")
