"""Mixed samples and their labels."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from onsphere import InvalidInputError
from onsphere.torch import MixingCollate, dirichlet_mix, mixup

torch.set_num_threads(1)  # the tests run beside each other, one per core


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("mix", [mixup, dirichlet_mix])
def test_labels_and_samples_are_mixed_with_the_same_shares(mix):
    """Labels that are the identity are the shares themselves."""
    x = torch.rand(32, 3, 4, 4, dtype=torch.float64)
    mixed, shares = mix(x, torch.eye(32, dtype=torch.float64), generator=seeded())
    np.testing.assert_allclose(mixed, np.einsum("ij,jchw->ichw", shares, x), rtol=1e-12)
    np.testing.assert_allclose(shares.sum(dim=1), 1.0, rtol=1e-6)
    assert (shares >= 0).all()
    assert (shares.norm(dim=1) < 1).all()


@pytest.mark.parametrize(("mix", "k"), [(mixup, 2), (dirichlet_mix, 20), (partial(dirichlet_mix, k=5), 5)])
def test_so_many_samples_take_part(mix, k):
    _, shares = mix(torch.rand(64, 1), torch.eye(64), alpha=5.0, generator=seeded())
    assert ((shares > 0).sum(dim=1) == k).all()


@pytest.mark.parametrize("k", [2, 4])
def test_shares_follow_the_dirichlet_distribution(k):
    """Mean 1/k and variance (k − 1)/(k²(kα + 1)) of a share; 2,000 mixtures leave standard errors of 3 % and 4 %."""
    alpha = 0.5
    _, shares = dirichlet_mix(torch.rand(2000, 1), torch.eye(2000), k=k, alpha=alpha, generator=seeded())
    own = shares.diagonal()
    assert own.mean() == pytest.approx(1 / k, rel=0.09)
    assert own.var() == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.12)


def test_every_other_sample_is_as_likely():
    """Each of 9 partners is drawn with chance 1/9 in 2,000 mixtures: within 5 standard errors."""
    counts = torch.zeros(10)
    generator = seeded()
    for _ in range(2000):
        _, shares = mixup(torch.rand(10, 1), torch.eye(10), generator=generator)
        counts += (shares[0] > 0).float()
    assert counts[0] == 2000
    assert (counts[1:] - 2000 / 9).abs().max() < 5 * (2000 * 8 / 81) ** 0.5


@pytest.mark.parametrize("mix", [mixup, dirichlet_mix])
def test_the_generator_decides(mix):
    x, labels = torch.rand(16, 2), torch.eye(16)
    first, second, other = (mix(x, labels, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[1], other[1])
    assert torch.isfinite(mix(x, labels)[0]).all()


@pytest.mark.parametrize("n", [1, 7])
def test_a_batch_smaller_than_k_is_mixed_of_all_it_has(n):
    _, shares = dirichlet_mix(torch.rand(n, 1), torch.eye(n), k=20, alpha=5.0, generator=seeded())
    assert ((shares > 0).sum(dim=1) == n).all()


def test_soft_labels_stay_soft_labels():
    soft = torch.softmax(torch.randn(16, 5, generator=seeded()), dim=1)
    _, mixed = dirichlet_mix(torch.rand(16, 1), soft, generator=seeded())
    np.testing.assert_allclose(mixed.sum(dim=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("method", ["dirichlet", "mixup"])
@pytest.mark.parametrize("soft", [False, True])
def test_collate_mixes_the_batches_of_a_loader(method, soft):
    labels = torch.arange(20) % 4
    data = TensorDataset(torch.rand(20, 3), torch.eye(4)[labels] if soft else labels)

    def epoch():
        collate = MixingCollate(4, method=method, k=3, generator=seeded())
        return list(DataLoader(data, batch_size=8, collate_fn=collate))

    batches = epoch()
    assert [x.shape for x, _ in batches] == [(8, 3), (8, 3), (4, 3)]
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
        (lambda: MixingCollate(1), "'n_classes' parameter of MixingCollate"),
        (lambda: MixingCollate(3, method="cutmix"), "'method' parameter of MixingCollate"),
        (lambda: MixingCollate(2)([(torch.rand(2), 2)]), "Number the classes from 0"),
    ],
)
def test_bad_input_is_told_what_to_do(attempt, message):
    with pytest.raises(InvalidInputError, match=message):
        attempt()
