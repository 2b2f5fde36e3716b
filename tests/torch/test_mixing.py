"""Mixed samples and their labels."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from onsphere import InvalidInputError
from onsphere.torch import HCMLoss, MixingCollate, SphericalHead, dirichlet_mix, mixup

torch.set_num_threads(1)  # the tests run beside each other, one per core


def make_rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("mix", [mixup, dirichlet_mix])
def test_labels_and_samples_are_mixed_with_the_same_shares(mix):
    """Labels that are the identity are the shares themselves."""
    x = torch.rand(32, 3, 4, 4, dtype=torch.float64)
    mixed, shares = mix(x, torch.eye(32, dtype=torch.float64), generator=make_rng())
    np.testing.assert_allclose(mixed, np.einsum("ij,jchw->ichw", shares, x), rtol=1e-12)
    np.testing.assert_allclose(shares.sum(dim=1), 1.0, rtol=1e-6)
    assert (shares >= 0).all()
    assert (shares.norm(dim=1) < 1).all()


@pytest.mark.parametrize(("mix", "k"), [(mixup, 2), (dirichlet_mix, 20), (partial(dirichlet_mix, k=5), 5)])
def test_each_mixture_has_k_samples(mix, k):
    _, shares = mix(torch.rand(64, 1), torch.eye(64), alpha=5.0, generator=make_rng())
    assert ((shares > 0).sum(dim=1) == k).all()


@pytest.mark.parametrize("k", [2, 4])
def test_shares_follow_the_dirichlet_distribution(k):
    """Mean 1/k and variance (k − 1)/(k²(kα + 1)) of a share; 2,000 mixtures leave standard errors of 3 % and 4 %."""
    alpha = 0.5
    _, shares = dirichlet_mix(torch.rand(2000, 1), torch.eye(2000), k=k, alpha=alpha, generator=make_rng())
    own = shares.diagonal()
    assert own.mean() == pytest.approx(1 / k, rel=0.09)
    assert own.var() == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.12)


def test_every_other_sample_is_equally_likely():
    """Each of 9 partners is drawn with chance 1/9 in 2,000 mixtures: within 5 standard errors."""
    counts = torch.zeros(10)
    generator = make_rng()
    for _ in range(2000):
        _, shares = mixup(torch.rand(10, 1), torch.eye(10), generator=generator)
        counts += (shares[0] > 0).float()
    assert counts[0] == 2000
    assert (counts[1:] - 2000 / 9).abs().max() < 5 * (2000 * 8 / 81) ** 0.5


@pytest.mark.parametrize("mix", [mixup, dirichlet_mix])
def test_the_generator_fixes_the_mixture(mix):
    x, labels = torch.rand(16, 2), torch.eye(16)
    first, second, other = (mix(x, labels, generator=make_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[1], other[1])
    assert torch.isfinite(mix(x, labels)[0]).all()


@pytest.mark.parametrize("n", [1, 7])
def test_a_batch_smaller_than_k_is_mixed_from_all_it_has(n):
    _, shares = dirichlet_mix(torch.rand(n, 1), torch.eye(n), k=20, alpha=5.0, generator=make_rng())
    assert ((shares > 0).sum(dim=1) == n).all()


def test_soft_labels_stay_soft_labels():
    soft = torch.softmax(torch.randn(16, 5, generator=make_rng()), dim=1)
    _, mixed = dirichlet_mix(torch.rand(16, 1), soft, generator=make_rng())
    np.testing.assert_allclose(mixed.sum(dim=1), 1.0, rtol=1e-5)


def test_one_number_per_sample_is_a_sample_too():
    x = torch.rand(32)
    mixed, shares = mixup(x, torch.eye(32), generator=make_rng())
    torch.testing.assert_close(mixed, shares @ x)


@pytest.mark.parametrize("mix", [mixup, dirichlet_mix])
def test_shares_are_as_precise_as_the_samples(mix):
    labels = torch.eye(32, dtype=torch.float64)
    for x in (torch.rand(32, 2, dtype=torch.float64), torch.rand(32, 2)):
        _, shares = mix(x, labels, generator=make_rng())
        assert float((shares.sum(dim=1) - 1).abs().max()) < 1e-14
    mixed, shares = mix(torch.rand(32, 2).bfloat16(), torch.eye(32), generator=make_rng())
    assert (mixed.dtype, shares.dtype) == (torch.bfloat16, torch.float32)
    assert float((shares.sum(dim=1) - 1).abs().max()) < 1e-6


def test_batches_of_doubles_reach_the_loss():
    batch = MixingCollate(4, generator=make_rng())([(torch.rand(3, dtype=torch.float64), i % 4) for i in range(32)])
    head = SphericalHead(3, 4, embedding="onehot").double()
    assert torch.isfinite(HCMLoss(head)(head(batch[0]), batch[1]))


@pytest.mark.parametrize("method", ["dirichlet", "mixup"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("keep_clean", [False, True])
def test_collate_adds_mixed_samples_to_the_batches_of_a_loader_or_replaces_them(method, soft, keep_clean):
    labels = torch.arange(20) % 4
    data = TensorDataset(torch.rand(20, 3), torch.eye(4)[labels] if soft else labels)

    def epoch():
        collate = MixingCollate(4, method=method, k=3, keep_clean=keep_clean, generator=make_rng())
        return list(DataLoader(data, batch_size=8, collate_fn=collate))

    batches = epoch()
    assert [x.shape for x, _ in batches] == [((1 + keep_clean) * n, 3) for n in (8, 8, 4)]
    if keep_clean:
        assert torch.equal(torch.cat([x[: len(x) // 2] for x, _ in batches]), data.tensors[0])
        assert torch.equal(torch.cat([y[: len(y) // 2] for _, y in batches]), torch.eye(4)[labels])
    for (x, y), (again, _) in zip(batches, epoch(), strict=True):
        assert torch.equal(x, again)
        assert y.dtype == x.dtype
        np.testing.assert_allclose(y.sum(dim=1), 1.0, rtol=1e-6)
        assert (y.norm(dim=1) <= 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: mixup(torch.rand(3, 2), torch.eye(3), alpha=0), "'alpha' parameter of mixup"),
        (lambda: dirichlet_mix(torch.rand(3, 2), torch.eye(3), alpha=-1.0), "'alpha' parameter of dirichlet_mix"),
        (
            lambda: dirichlet_mix(torch.rand(3, 2), torch.eye(3), k=1),
            r"'k' parameter of dirichlet_mix must be an int in \[2",
        ),
        (lambda: mixup(torch.rand(3, 2), torch.arange(3)), "one_hot"),
        (lambda: mixup(torch.zeros(3, 2, dtype=torch.uint8), torch.eye(3)), "Scale images to floats"),
        (lambda: mixup(torch.rand(3, 2), torch.eye(4)), r"shape \(3, 2\) and torch.float32 of shape \(4, 4\)"),
        (lambda: mixup(torch.rand(3, 2), torch.ones(3)), "soft labels"),
        (lambda: mixup(torch.rand(0, 2), torch.ones(0, 3)), "soft labels"),
        (lambda: mixup(np.ones((3, 2)), torch.eye(3)), r"Expected tensors: .* Got ndarray and torch.float32"),
        (lambda: mixup([1.0, 2.0], [1.0, 2.0]), "Got list and list"),
        (lambda: mixup(torch.tensor(1.0), torch.eye(1)), r"Got torch.float32 of shape \(\) and"),
        (lambda: mixup(torch.rand(3, 2), 2 * torch.eye(3)), "sums that are off by up to 1 and"),
        (lambda: dirichlet_mix(torch.rand(2, 2), torch.tensor([[1.5, -0.5]] * 2)), "not negative"),
        (lambda: mixup(torch.rand(3, 2), torch.eye(3), generator=3), "'generator' parameter of mixup .* Got 3"),
        (lambda: dirichlet_mix(torch.rand(3, 2), torch.eye(3), generator=3), "'generator' parameter of dirichlet_mix"),
        (lambda: MixingCollate(1), "'n_classes' parameter of MixingCollate"),
        (lambda: MixingCollate(3, method="cutmix"), "'method' parameter of MixingCollate"),
        (lambda: MixingCollate(3, k=0), "'k' parameter of MixingCollate"),
        (lambda: MixingCollate(3, alpha=-1), "'alpha' parameter of MixingCollate"),
        (lambda: MixingCollate(3, keep_clean="yes"), "'keep_clean' parameter of MixingCollate"),
        (lambda: MixingCollate(3, generator="cpu"), "'generator' parameter of MixingCollate"),
        (lambda: MixingCollate(2)([(torch.rand(2), 2)]), "Number the classes from 0"),
        (lambda: MixingCollate(2)([(torch.rand(2), 1, 2)] * 3), r"pairs \(sample, label\). Got 3 parts"),
        (lambda: MixingCollate(2)([torch.rand(2)] * 2), r"pairs \(sample, label\). Got Tensor"),
        (lambda: MixingCollate(2)([{"x": torch.rand(2), "y": 1}] * 3), "Got dict"),
        (lambda: MixingCollate(2)([]), "Got NoneType"),
        (lambda: MixingCollate(2)([(torch.rand(2), "cat")] * 3), "Got torch.float32 .* and tuple of str. Number the"),
        (lambda: MixingCollate(2)([({"x": torch.rand(2)}, 1)] * 3), "Got dict and torch.int64"),
        (lambda: MixingCollate(2)([(torch.rand(2), None)] * 3), "that can be stacked. Got .*NoneType"),
        (lambda: MixingCollate(2)([(torch.rand(2), 1), (torch.rand(3), 1)]), "Bring all samples to one shape"),
        (lambda: MixingCollate(2)([(torch.rand(2), torch.eye(3)[0])] * 3), "soft labels of 2 classes. Got 3 numbers"),
        (lambda: MixingCollate(2)([(torch.rand(2), torch.ones(2))] * 3), "off by up to 1"),
        (lambda: MixingCollate(2)([(torch.rand(2), 1.0)] * 3), r"labels \(n, C\). Got .* and torch.float64 of shape"),
    ],
)
def test_bad_input_is_rejected_with_advice(attempt, message):
    with pytest.raises(InvalidInputError, match=message):
        attempt()


def test_each_method_of_the_collate_function_has_its_own_shares():
    assert [MixingCollate(3, method=method).alpha for method in ("dirichlet", "mixup")] == [0.5, 1.0]
    assert MixingCollate(3, method="mixup", alpha=0.2).alpha == 0.2
