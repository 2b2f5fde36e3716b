"""The loss: its values, its gradients, its refusals."""

import numpy as np
import pytest
import torch
from torch import nn

from onsphere import InvalidInputError, InvalidTypeError
from onsphere.torch import DenseHead, HCMLoss, SphericalHead, SphericalOutput, attach

torch.set_num_threads(1)  # the tests run beside each other, one per core

FAMILY = [
    {"phi": "squared"},
    {"phi": "power", "exponent": 1.5},
    {"phi": "power", "exponent": 3.0},
    {"phi": "huber", "threshold": 0.7},
    {"phi": "smooth_l1", "threshold": 0.3},
]


FAMILY_AND_MORE = {"phi": "huber", "exponent": 3.0, "threshold": 5.0, "norm_weight": 0.1, "reduction": "none"}


def phi_by_hand(a, phi="squared", exponent=1.5, threshold=1.0):
    """The family, one number at a time."""
    a = abs(a)
    match phi:
        case "squared":
            return a * a
        case "power":
            return a**exponent
        case "huber":
            return 0.5 * a * a if a <= threshold else threshold * (a - 0.5 * threshold)
        case "smooth_l1":
            return 0.5 * a * a / threshold if a < threshold else a - 0.5 * threshold


def equation_of_the_paper(output, truth, norm_weight, **family):
    """Eq. (loss) row by row, with the mean's squared error behind it."""
    total = []
    for d_hat, R_hat, d, R, m_hat, m in zip(
        output.direction, output.magnitude, truth.direction, truth.magnitude, output.mean, truth.mean, strict=True
    ):
        e_d, e_R = d_hat - d, R_hat - R
        value = phi_by_hand(float(R) * np.linalg.norm(e_d), **family) + phi_by_hand(float(e_R), **family)
        value += norm_weight * phi_by_hand(abs(np.linalg.norm(d_hat) - 1), **family)
        total.append(value + sum((float(a) - float(b)) ** 2 for a, b in zip(m_hat, m, strict=True)))
    return np.array(total)


def drawn(n=6, k=4, D=3, seed=0):
    """An output and a target in double precision."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    direction = torch.nn.functional.normalize(normal(n, k), dim=1)
    return SphericalOutput(normal(n, k), normal(n), normal(n, D)), SphericalOutput(
        direction, normal(n).abs() + 0.5, normal(n, D)
    )


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("norm_weight", [0.0, 0.4])
def test_values_are_those_of_the_equation(family, norm_weight):
    output, truth = drawn()
    expected = equation_of_the_paper(output, truth, norm_weight, **family)
    for reduction, reduce in {"none": np.asarray, "sum": np.sum, "mean": np.mean}.items():
        loss = HCMLoss(norm_weight=norm_weight, reduction=reduction, **family)(output, truth)
        np.testing.assert_allclose(loss.numpy(), reduce(expected), rtol=1e-12)


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("norm_weight", [0.0, 0.4])
def test_gradients_are_right(family, norm_weight):
    output, truth = drawn()
    loss = HCMLoss(norm_weight=norm_weight, reduction="none", **family)
    leaves = [part.requires_grad_() for part in output]
    assert torch.autograd.gradcheck(lambda *parts: loss(SphericalOutput(*parts), truth), leaves)


@pytest.mark.parametrize("family", [*FAMILY, {"phi": "power", "exponent": 1.0}, {"preset": "cifar10"}])
def test_a_perfect_output_has_no_slope(family):
    _, truth = drawn()
    truth = SphericalOutput(truth.direction, torch.ones_like(truth.magnitude))
    direction, magnitude = truth.direction.clone().requires_grad_(), truth.magnitude.clone().requires_grad_()
    loss = HCMLoss(**family)(SphericalOutput(direction, magnitude), truth)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-30)
    assert torch.equal(direction.grad, torch.zeros_like(direction))
    assert torch.equal(magnitude.grad, torch.zeros_like(magnitude))


@pytest.mark.parametrize(("epoch", "warm_up"), [(0, 0.1), (1, 0.1), (2, 1.0), (50, 1.0)])
def test_the_cifar_script(epoch, warm_up):
    """Soft labels y, R = 1; means over every entry of the batch."""
    output, _ = drawn(k=3)
    output = output._replace(mean=None)
    y = torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5], [0.2, 0.3, 0.5]] * 2, dtype=torch.float64)
    d_hat, R_hat = output.direction.numpy(), output.magnitude.numpy()
    first = np.mean((d_hat - y.numpy()) ** 2)
    second = np.mean((R_hat[:, None] * y.numpy() - y.numpy()) ** 2)
    loss = HCMLoss(preset="cifar10")
    loss.epoch = epoch
    value = loss(output, SphericalOutput(y, torch.ones(6, dtype=torch.float64)))
    assert float(value) == pytest.approx(warm_up * (first**0.75 + second**0.75), rel=1e-12)


def test_the_two_moons_script():
    output, truth = drawn(k=2)
    output = output._replace(mean=None)
    d_hat, R_hat = output.direction.numpy(), output.magnitude.numpy()[:, None]
    d, R = truth.direction.numpy(), truth.magnitude.numpy()[:, None]
    expected = np.mean((R_hat * d_hat - R * d) ** 2) + np.mean((R * d_hat - R * d) ** 2)
    assert float(HCMLoss(preset="two-moons")(output, truth)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("preset", ["cifar10", "two-moons"])
def test_gradients_of_the_scripts_are_right(preset):
    output, truth = drawn()
    loss = HCMLoss(preset=preset)
    leaves = [part.requires_grad_() for part in output[:2]]
    assert torch.autograd.gradcheck(lambda *parts: loss(SphericalOutput(*parts), truth), leaves)


def test_a_loss_with_the_head_takes_targets_as_they_are_and_has_no_weights():
    head = SphericalHead(3, 2)
    loss = HCMLoss(head)
    output, y = head(torch.ones(4, 3)), torch.rand(4, 2)
    assert torch.equal(loss(output, y), HCMLoss()(output, head.embed(y)))
    assert list(loss.parameters()) == []


def test_maps_have_one_value_per_pixel():
    output = SphericalOutput(torch.rand(2, 5, 4, 3), torch.rand(2, 5, 4))
    truth = SphericalOutput(torch.rand(2, 5, 4, 3), torch.rand(2, 5, 4))
    loss = HCMLoss(reduction="none")
    rows = [SphericalOutput(maps.direction.flatten(0, 2), maps.magnitude.flatten()) for maps in (output, truth)]
    assert torch.equal(loss(output, truth).flatten(), loss(*rows))


# Dynamo looks through the cache of array-api-compat, which is right, and says so.
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_a_compiled_loss_agrees_and_still_counts():
    loss = HCMLoss(norm_weight=0.1)
    compiled = torch.compile(loss, backend="eager")
    for seed in range(12):  # more steps than dynamo would compile anew
        output, truth = drawn(seed=seed)
        assert float(compiled(output, truth)) == pytest.approx(float(HCMLoss(norm_weight=0.1)(output, truth)))
    assert loss.step == 12


def replaced(**parts):
    output, truth = drawn()
    return output, truth._replace(**parts)


@pytest.mark.parametrize(
    ("output", "truth"),
    [
        replaced(magnitude=torch.ones(6, 1)),
        replaced(magnitude=torch.ones(1)),
        replaced(direction=torch.ones(1, 4)),
        replaced(mean=torch.ones(6, 1)),
        replaced(mean=None),
    ],
)
def test_nothing_is_broadcast(output, truth):
    with pytest.raises(InvalidInputError, match="Nothing is broadcast"):
        HCMLoss()(output, truth)


def test_an_output_of_inconsistent_shapes_is_rejected():
    _, truth = drawn()
    with pytest.raises(InvalidInputError, match="Nothing is broadcast"):
        HCMLoss()(SphericalOutput(torch.ones(6, 4), torch.ones(6, 1)), truth)


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda o, t: (o, t._replace(magnitude=t.magnitude * torch.nan)), "targets are not finite"),
        (lambda o, t: (o._replace(direction=o.direction * torch.inf), t), "lower the learning rate"),
        (lambda o, t: (o, t._replace(magnitude=t.magnitude * 1e200)), "standardise the targets"),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_that_is_not_finite_stops_with_step_and_cause(spoil, cause, reduction):
    output, truth = drawn()
    loss = HCMLoss(reduction=reduction)
    loss(output, truth)
    loss.eval()(output, truth)
    with pytest.raises(InvalidInputError, match=rf"not finite at step 2.*{cause}"):
        loss.train()(*spoil(output, truth))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phi": "cubic"}, "'phi' parameter of HCMLoss must be one of 'squared', 'power', 'huber', 'smooth_l1'"),
        ({"norm_weight": -0.1}, r"'norm_weight' parameter of HCMLoss must be a float in \[0, inf\). Got -0.1"),
        ({"exponent": 0.5}, r"'exponent' parameter of HCMLoss must be a float in \[1, inf\)"),
        ({"threshold": 0}, "'threshold' parameter"),
        ({"reduction": "median"}, "'reduction' parameter"),
        ({"preset": "imagenet"}, "'preset' parameter of HCMLoss must be one of 'cifar10', 'two-moons'"),
        *(
            (
                {"preset": preset, name: value},
                "'preset' parameter of HCMLoss must be None where anything else is chosen",
            )
            for preset in ("cifar10", "two-moons")
            for name, value in FAMILY_AND_MORE.items()
        ),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(InvalidInputError, match=message):
        HCMLoss(**options)


def test_a_preset_has_no_mean_and_plain_targets_need_a_head():
    output, truth = drawn()
    with pytest.raises(InvalidInputError, match=r"mean=False; .* HCMRegressor\(decoder='product'\) has none"):
        HCMLoss(preset="two-moons")(output, truth)
    with pytest.raises(InvalidInputError, match=r"Got Tensor.*HCMLoss\(head\)"):
        HCMLoss()(output, torch.ones(6, 3))


def test_every_kind_of_head_is_accepted():
    compiled = torch.compile(SphericalHead(3, 2), backend="eager")
    for head in (SphericalHead(3, 2), DenseHead(3, 2), attach(nn.Linear(3, 1), 2), compiled):
        assert list(HCMLoss(head).parameters()) == []


class WithEmbedding(nn.Module):
    """Has something called `embed`, as many networks have."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3, 2)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (nn.Sequential(nn.Linear(4, 4), SphericalHead(4, 1)), "Sequential"),
        ("cifar10", "str"),
        (SphericalHead, "type"),
        (WithEmbedding(), "WithEmbedding"),
    ],
)
def test_something_other_than_a_head_is_rejected(wrong, name):
    message = rf"Expected a SphericalHead, a DenseHead or an attached model\. Got {name}\. Pass the head itself"
    with pytest.raises(InvalidTypeError, match=message):
        HCMLoss(wrong)


def test_outputs_and_targets_of_the_wrong_kind():
    head = SphericalHead(4, 1)
    for output in (torch.zeros(3, 4), (torch.zeros(3, 2), torch.zeros(3)), None):
        with pytest.raises(
            InvalidTypeError, match=rf"the output of a head, .* Got {type(output).__name__}\. Pass what"
        ):
            HCMLoss(head)(output, torch.zeros(3, 1))
    for target, name in [(None, "NoneType"), (["a", "b", "c"], "list"), ([[1.0], [1.0, 2.0]], "list")]:
        with pytest.raises(InvalidInputError, match=rf"targets as a tensor or an array of numbers\. Got {name} \("):
            HCMLoss(head)(head(torch.zeros(3, 4)), target)


def test_an_empty_batch_is_named_as_the_cause():
    head = SphericalHead(4, 1)
    with pytest.raises(InvalidInputError, match=r"not finite at step 1.*The batch is empty"):
        HCMLoss(head)(head(torch.zeros(0, 4)), torch.zeros(0, 1))


def test_repr_shows_the_options():
    assert "phi='huber', norm_weight=0.5" in repr(HCMLoss(phi="huber", norm_weight=0.5))
    assert "preset='cifar10'" in repr(HCMLoss(preset="cifar10"))


# --- samples that do not count, and classes that count more ---


def labelled(n_classes=3, n=8):
    torch.manual_seed(0)
    head = SphericalHead(4, n_classes, embedding="onehot")
    return head, head(torch.randn(n, 4)), torch.arange(n) % n_classes


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_samples_that_do_not_count_are_as_good_as_absent(reduction):
    head, output, y = labelled()
    kept = torch.tensor([True, False, True, True, False, True, True, False])
    part = SphericalOutput(output.direction[kept], output.magnitude[kept])
    expected = HCMLoss(head, reduction=reduction)(part, y[kept])
    by_mask = HCMLoss(head, reduction=reduction)(output, y, kept)
    ignored = torch.where(kept, y, -100)
    by_index = HCMLoss(head, reduction=reduction, ignore_index=-100)(output, ignored)
    soft = torch.nn.functional.one_hot(y, 3).double()
    soft[~kept] = torch.nan
    by_nan = HCMLoss(reduction=reduction, ignore_nan=True)(output, SphericalOutput(soft, torch.ones(8)))
    both = HCMLoss(head, reduction=reduction, ignore_index=-100)(output, torch.where(kept, y, -100), kept)
    for loss in (by_mask, by_index, by_nan, both):
        torch.testing.assert_close(loss, expected, check_dtype=False)
    for preset in ("cifar10", "two-moons"):
        expected = HCMLoss(head, preset=preset)(part, y[kept])
        torch.testing.assert_close(HCMLoss(head, preset=preset, ignore_index=-100)(output, ignored), expected)
    apart = HCMLoss(head, reduction="none", ignore_index=-100)(output, ignored)
    torch.testing.assert_close(apart, torch.where(kept, HCMLoss(head, reduction="none")(output, y), 0.0))


def test_what_does_not_count_has_no_gradient():
    head, _, y = labelled()
    x = torch.randn(8, 4)
    x[3] = 1e15
    HCMLoss(head)(head(x), y, torch.arange(8) != 3).backward()
    found = head.linear.weight.grad.clone()
    head.zero_grad()
    kept = torch.arange(8) != 3
    HCMLoss(head)(head(x[kept]), y[kept]).backward()
    torch.testing.assert_close(found, head.linear.weight.grad)


def test_a_batch_in_which_nothing_counts_has_loss_0():
    """A crop of a picture may lie in a hole."""
    head, output, y = labelled()
    loss = HCMLoss(head, ignore_index=-1)(output, torch.full_like(y, -1))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not head.linear.weight.grad.any()
    apart = HCMLoss(head, reduction="none")(output, y, torch.zeros(8, dtype=torch.bool))
    assert apart.tolist() == [0.0] * 8


def test_holes_of_a_depth_map():
    head = DenseHead(4, 2)
    output = head(torch.randn(2, 4, 3, 3))
    depth = torch.randn(2, 2, 3, 3)
    whole = HCMLoss(head, reduction="none")(output, depth)
    depth[0, 1, 2, 2] = torch.nan
    with pytest.raises(InvalidInputError, match=r"targets are not finite: .* ignore_nan=True"):
        HCMLoss(head)(output, depth)
    found = HCMLoss(head, reduction="none", ignore_nan=True)(output, depth)
    whole[0, 2, 2] = 0.0
    torch.testing.assert_close(found, whole)
    mask = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    mask[0, 0, 2, 2] = False
    for given in (mask, mask[:, 0], mask.numpy()):
        torch.testing.assert_close(HCMLoss(head)(output, depth.nan_to_num(), given), whole.sum() / 17)


def test_labels_of_a_segmentation_that_do_not_count():
    head = DenseHead(4, 3, embedding="onehot")
    output = head(torch.randn(2, 4, 3, 3))
    labels = torch.randint(3, (2, 3, 3))
    expected = HCMLoss(head, reduction="none")(output, labels)
    labels[1, 0] = 255
    found = HCMLoss(head, ignore_index=255)(output, labels)
    torch.testing.assert_close(found, (expected.sum() - expected[1, 0].sum()) / 15)


def test_class_weights_are_those_of_a_weighted_mean():
    head, output, y = labelled()
    weight = torch.tensor([1.0, 3.0, 0.0])
    each = HCMLoss(head, reduction="none")(output, y)
    loss = HCMLoss(head, class_weight=[1, 3, 0])
    torch.testing.assert_close(loss(output, y), (each * weight[y]).sum() / weight[y].sum())
    by_sum = HCMLoss(head, class_weight=weight, reduction="sum")(output, y)
    torch.testing.assert_close(by_sum, (each * weight[y]).sum())
    apart = HCMLoss(head, class_weight=weight, reduction="none")(output, y)
    torch.testing.assert_close(apart, each * weight[y])
    assert float(loss(output, torch.full_like(y, 2)).detach()) == 0.0  # classes of weight 0 alone
    assert not loss.state_dict()
    soft = torch.tensor([[0.5, 0.5, 0.0]]).expand(8, 3)
    mixed = HCMLoss(head, class_weight=weight, reduction="none")(output, soft)
    torch.testing.assert_close(mixed, 2 * HCMLoss(head, reduction="none")(output, soft))


def test_masks_labels_and_weights_that_cannot_be_used():
    head, output, y = labelled()
    loss = HCMLoss(head)
    for mask in (torch.ones(8), torch.ones(8, 1, 1, dtype=torch.bool), torch.ones(7, dtype=torch.bool)):
        with pytest.raises(InvalidInputError, match=r"mask of bools of shape \(8,\). Got torch\."):
            loss(output, y, mask)
    with pytest.raises(InvalidInputError, match=r"labels of an integer dtype beside ignore_index=7. Got torch.float32"):
        HCMLoss(head, ignore_index=7)(output, torch.zeros(8, 3))
    for other in (None, SphericalHead(4, 1)):
        with pytest.raises(InvalidInputError, match="'ignore_index' parameter of HCMLoss must be None without a head"):
            HCMLoss(other, ignore_index=7)
    with pytest.raises(InvalidInputError, match="'ignore_index' parameter of HCMLoss must be an int"):
        HCMLoss(head, ignore_index=0.5)
    for wrong in ([[1.0]], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0], [0.0, 0.0, 0.0]):
        with pytest.raises(
            InvalidInputError, match="'class_weight' parameter of HCMLoss must be one finite number per"
        ):
            HCMLoss(head, class_weight=wrong)
    with pytest.raises(InvalidInputError, match=r"class weights for 3 classes\. Got 2"):
        HCMLoss(head, class_weight=[1.0, 2.0])(output, y)
    with pytest.raises(InvalidInputError, match="'preset' parameter"):
        HCMLoss(head, class_weight=[1.0, 2.0, 1.0], preset="cifar10")
    with pytest.raises(InvalidInputError, match="'ignore_nan' parameter of HCMLoss must be True or False"):
        HCMLoss(head, ignore_nan="yes")
