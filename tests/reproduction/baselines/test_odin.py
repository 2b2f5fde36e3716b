"""ODIN against a transcription without autograd, and a network that is left as it was."""

import copy

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from onsphere import InvalidInputError, InvalidTypeError
from onsphere.baselines import MSP, Detector, msp
from reproduction.baselines import ODIN, odin


@pytest.fixture
def network():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    layers[2].running_mean += 0.3
    layers[2].running_var *= 2.0
    return layers


@pytest.fixture
def inputs():
    return np.random.default_rng(0).normal(size=(30, 5))


def compute_odin(network, x, temperature, epsilon):
    """One row, with slopes from finite differences."""
    first, _, norm, _, second = (
        {name: value.numpy() for name, value in layer.state_dict().items()} for layer in network
    )

    def probabilities(row):
        hidden = np.tanh(first["weight"] @ row + first["bias"])
        hidden = (hidden - norm["running_mean"]) / np.sqrt(norm["running_var"] + 1e-5) * norm["weight"] + norm["bias"]
        powers = np.exp((second["weight"] @ hidden + second["bias"]) / temperature)
        return powers / powers.sum()

    chosen = int(np.argmax(probabilities(x)))
    steps = 1e-5 * np.eye(5)
    slopes = [np.log(probabilities(x + step)[chosen]) - np.log(probabilities(x - step)[chosen]) for step in steps]
    return 1.0 - probabilities(x - epsilon * np.sign([-slope for slope in slopes])).max()


@pytest.mark.parametrize(("temperature", "epsilon"), [(1.0, 0.2), (1000.0, 0.0014), (10.0, 0.01)])
def test_odin_follows_the_paper(network, inputs, temperature, epsilon):
    expected = [compute_odin(network, row, temperature, epsilon) for row in inputs]
    scores = ODIN(network, temperature=temperature, epsilon=epsilon).score(inputs)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12)


def test_without_a_step_it_is_msp_at_that_temperature(network, inputs):
    network.eval()
    logits = network(torch.as_tensor(inputs)).detach().numpy()
    expected = MSP(temperature=50.0).fit(inputs, logits, np.arange(30) % 3).score(inputs, logits)
    np.testing.assert_allclose(ODIN(network, temperature=50.0, epsilon=0.0).score(inputs), expected, atol=1e-14)
    # A step raises the probability of the predicted class, so the score falls.
    assert (ODIN(network, temperature=50.0, epsilon=1e-3).score(inputs) < expected).all()


def test_rows_differ_at_a_high_temperature_in_single_precision_too(network, inputs):
    exact = ODIN(network, temperature=1000.0).score(inputs)
    single = ODIN(copy.deepcopy(network).float(), temperature=1000.0).score(inputs)
    np.testing.assert_allclose(single, exact, rtol=0, atol=1e-4 * np.ptp(exact))


@pytest.mark.parametrize("batch_size", [1, 7, 30, 1000])
def test_batches_do_not_matter(network, inputs, batch_size):
    expected = ODIN(network).score(inputs)
    np.testing.assert_allclose(ODIN(network, batch_size=batch_size).score(inputs), expected, rtol=0, atol=1e-14)


def test_tensors_arrays_and_whole_numbers(network, inputs):
    expected = ODIN(network).score(inputs)
    tensor = torch.tensor(inputs, requires_grad=True)
    np.testing.assert_array_equal(ODIN(network).score(tensor), expected)
    assert tensor.grad is None
    assert tensor.requires_grad
    np.testing.assert_array_equal(ODIN(network).score(inputs.tolist()), expected)
    pixels = np.arange(150, dtype=np.uint8).reshape(30, 5)
    np.testing.assert_array_equal(ODIN(network).score(pixels), ODIN(network).score(pixels.astype(float)))
    np.testing.assert_allclose(ODIN(nn.Identity()).score(pixels), msp(pixels, temperature=1000.0), atol=1e-5)


def test_images_and_a_network_without_gradients(inputs):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    images = torch.rand(6, 3, 8, 8)
    expected = ODIN(network).score(images)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    np.testing.assert_array_equal(ODIN(network).score(images), expected)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    with torch.no_grad():
        np.testing.assert_array_equal(ODIN(network).score(images), expected)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        np.testing.assert_array_equal(ODIN(network).score(images + 0.0), expected)
        assert torch.is_inference_mode_enabled()


def state(network):
    return {
        "modes": [module.training for module in network.modules()],
        "slopes": [None if each.grad is None else each.grad.clone() for each in network.parameters()],
        "flags": [each.requires_grad for each in network.parameters()],
        "values": copy.deepcopy(network.state_dict()),
    }


def same_state(before, after):
    assert before["modes"] == after["modes"]
    assert before["flags"] == after["flags"]
    for old, new in zip(before["slopes"], after["slopes"], strict=True):
        assert (old is None and new is None) or torch.equal(old, new)
    assert all(torch.equal(value, after["values"][name]) for name, value in before["values"].items())


def test_the_network_does_not_change_even_where_it_fails(network, inputs):
    network.train()
    network[2].eval()  # a user may freeze one layer's running means
    network[0].weight.requires_grad_(False)
    network(torch.as_tensor(inputs)).sum().backward()
    before = state(network)
    ODIN(network).score(inputs)
    same_state(before, state(network))
    calls = []

    def fail(module, given):
        calls.append(given)
        if len(calls) == 2:
            raise RuntimeError("half-way")

    handle = network[4].register_forward_pre_hook(fail)
    with pytest.raises(InvalidInputError, match="half-way"):
        ODIN(network).score(inputs)
    handle.remove()
    same_state(before, state(network))
    assert torch.is_grad_enabled()


def test_a_clone_has_a_network_of_its_own(network, inputs):
    detector = ODIN(network, temperature=10.0)
    copied = clone(detector)
    assert copied.network is not network
    assert copied.temperature == 10.0
    np.testing.assert_array_equal(copied.score(inputs), detector.score(inputs))


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Pair(), r"shape \(30, C\) with C ≥ 2. Got tuple. Wrap the network"),
        (nn.Flatten(0), r"Got shape \(150,\)"),
        (nn.Linear(5, 1).double(), r"Got shape \(30, 1\)"),
    ],
)
def test_networks_that_do_not_give_logits(given, message, inputs):
    for epsilon in (0.0, 0.1):
        with pytest.raises(InvalidInputError, match=message):
            ODIN(given, epsilon=epsilon).score(inputs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(5), r"Expected inputs of shape \(n, ...\) with at least one row for ODIN. Got shape \(5,\)"),
        (np.zeros((0, 5)), r"Got shape \(0, 5\)"),
        (np.full((2, 5), np.nan), "Expected finite inputs for ODIN"),
        (torch.full((2, 5), torch.inf), "Expected finite inputs for ODIN"),
        (np.ma.masked_array(np.zeros((2, 5)), mask=True), "inputs without masked entries"),
        ([[1.0, 2.0], [3.0]], "inputs for ODIN that torch can read as numbers"),
        ([["a", "b"]], "inputs for ODIN that torch can read as numbers"),
    ],
)
def test_inputs_that_cannot_be_used(network, given, message):
    with pytest.raises(InvalidInputError, match=message):
        ODIN(network).score(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"'temperature' parameter of ODIN must be a float in \(0, inf\). Got 0.0"),
        ({"temperature": np.inf}, "'temperature' parameter of ODIN"),
        ({"temperature": "high"}, "'temperature' parameter of ODIN"),
        ({"epsilon": -0.1}, r"'epsilon' parameter of ODIN must be a float in \[0, inf\). Got -0.1"),
        ({"epsilon": True}, "'epsilon' parameter of ODIN"),
        ({"batch_size": 0}, "'batch_size' parameter of ODIN"),
    ],
)
def test_parameters_that_cannot_be_used(network, inputs, options, message):
    with pytest.raises(InvalidInputError, match=message):
        ODIN(network, **options).score(inputs)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(4, 3), (4, 6), (4, 2, 3)])
def test_inputs_of_a_shape_that_the_network_does_not_take(network, shape, epsilon):
    message = rf"network failed on inputs of shape \({', '.join(map(str, shape))}\): .*\. Pass inputs of the shape"
    with pytest.raises(InvalidInputError, match=f"(?s){message}") as caught:
        ODIN(network, epsilon=epsilon).score(np.zeros(shape))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), InvalidTypeError("its own words")])
def test_errors_that_are_not_about_the_inputs_are_passed_on(inputs, error):
    def fail(given):
        raise error

    with pytest.raises(type(error)) as caught:
        odin(fail, torch.as_tensor(inputs))
    assert caught.value is error


def test_odin_is_not_a_detector(network, inputs):
    """It takes inputs, so what feeds detectors with features must be able to tell."""
    assert not isinstance(ODIN(network), Detector)
    with pytest.raises(TypeError):
        ODIN(network).score(inputs, inputs)


def test_a_function_is_not_a_network(inputs):
    with pytest.raises(InvalidTypeError, match=r"ODIN needs a torch.nn.Module. Got function"):
        ODIN(lambda x: x).score(inputs)
    assert odin(lambda x: x, torch.as_tensor(inputs)).shape == (30,)  # the plain function takes any
