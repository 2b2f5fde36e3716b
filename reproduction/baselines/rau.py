"""RAU: a head on the sphere, trained to be certain where it is right and uncertain where it is wrong."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsphere.baselines import Detector, msp
from onsphere.sphere.geometry import split
from reproduction.arguments import Floats, make_random_state

__all__ = ["RAU", "label_vectors", "rau_loss", "spherical_logits"]

# Keeps the ratios of the loss defined where one kind of row does not occur.
_TINY = 1e-12


def label_vectors(n_classes: int) -> Floats:
    """Return one unit vector per class, spread evenly over the sphere: all at the same angle, shape (C, C).

    Examples
    --------
    >>> (label_vectors(3) @ label_vectors(3).T).round(3)
    array([[ 1. , -0.5, -0.5],
           [-0.5,  1. , -0.5],
           [-0.5, -0.5,  1. ]])
    """
    centered = np.eye(n_classes) - 1.0 / n_classes
    return centered * np.sqrt(n_classes / (n_classes - 1.0))


def spherical_logits(features: Floats, weight: Floats, bias: Floats, *, scale: float = 16.0) -> Floats:
    """Return the scaled cosines between mapped features and the label vectors, shape (n, C).

    Parameters
    ----------
    features : array of shape (n, p)
    weight : array of shape (C, p)
    bias : array of shape (C,)
    scale : float, default 16.0

    Examples
    --------
    >>> import numpy as np
    >>> spherical_logits(np.array([[3.0, 0.0], [0.0, 2.0]]), np.eye(2), np.zeros(2), scale=2.0).round(3).tolist()
    [[1.414, -1.414], [-1.414, 1.414]]
    """
    return scale * split(features @ weight.T + bias)[0] @ label_vectors(len(bias)).T


def rau_loss(log_probabilities: Tensor, label_index: Tensor, *, threshold: float = 0.5) -> Tensor:
    """Return the rebalanced accuracy-uncertainty loss of a batch, a scalar.

    Rows are accurate or not and, by their entropy u, certain or not. With weights c·(1 − tanh u) for certain and
    c·tanh u for uncertain rows, c being the largest probability of accurate rows and one minus it for others, the loss
    is log(1 + n_AU/(n_AC + n_AU) + n_IC/(n_IC + n_IU)). Each kind of row is balanced by itself, so that the many
    accurate rows do not drown the few inaccurate ones. Gradients flow through u alone.

    Parameters
    ----------
    log_probabilities : tensor of shape (n, C)
    label_index : tensor of shape (n,)
    threshold : float, default 0.5
        Entropy in nats up to which a row is certain.

    Examples
    --------
    >>> import torch
    >>> log_probabilities = torch.tensor([[0.99, 0.01], [0.99, 0.01]]).log()
    >>> round(float(rau_loss(log_probabilities, torch.tensor([0, 0]))), 3)  # right and certain
    0.0
    >>> round(float(rau_loss(log_probabilities, torch.tensor([0, 1]))), 3)  # the second is wrong and certain
    0.693
    """
    largest, predicted = log_probabilities.exp().max(dim=1)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=1)
    is_right, is_certain = predicted == label_index, entropy <= threshold
    doubt = torch.tanh(entropy)
    # Without a gradient: a wrong row could otherwise lower the loss by being even more certain.
    confidence = torch.where(is_right, largest, 1.0 - largest).detach()
    weight = confidence * torch.where(is_certain, 1.0 - doubt, doubt)

    def count(accurate: Tensor, certain: Tensor) -> Tensor:
        return (weight * (accurate & certain)).sum()

    right_unsure, wrong_sure = count(is_right, ~is_certain), count(~is_right, is_certain)
    right = count(is_right, is_certain) + right_unsure + _TINY
    wrong = count(~is_right, ~is_certain) + wrong_sure + _TINY
    return torch.log1p(right_unsure / right + wrong_sure / wrong)


class RAU(Detector):
    """A linear head on the sphere, trained with cross-entropy and the rebalanced accuracy-uncertainty loss.

    Features are mapped onto the sphere and compared with label vectors spread evenly over it, which keeps logits
    bounded; the second loss rewards certainty where the head is right and doubt where it is wrong. The score is
    one minus the head's largest probability.

    Gong, Liu, Yang, Cai, Wan, Chen, Zhu and Wang, "Confidence Calibration for Intent Detection via Hyperspherical
    Space and Rebalanced Accuracy-Uncertainty Loss", AAAI 2022. There the whole network is trained; here features stay
    as they are, and a linear map of them is trained.

    Cost: a short training with Adam to fit, O(pC) per row. Fails far out, where only the direction of the mapped
    features counts, and where the head makes no mistakes on its training rows to learn doubt from.

    Parameters
    ----------
    scale : float, default 16.0
        Logits are cosines times this; the largest probability cannot come closer to 1 than it allows.
    rau_weight : float, default 1.0
        Weight of the rebalanced loss, which is added to the cross-entropy; 0 leaves it out.
    threshold : float, default 0.5
        Entropy in nats up to which a row is certain.
    n_steps : int, default 1000
        Of Adam, each on a batch of rows; all rows are seen before any is seen again.
    batch_size : int, default 256
    learning_rate : float, default 0.01
    random_state : int, RandomState or None
        Seeds the first weights and the order of rows.

    Attributes
    ----------
    weight_ : array of shape (C, p)
    bias_ : array of shape (C,)

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> features = rng.normal(size=(200, 2)) + 5.0 * np.eye(2)[labels]
    >>> detector = RAU(n_steps=100, random_state=0).fit(features, features, labels)
    >>> detector.score(features, features).shape
    (200,)
    """

    weight_: Floats
    bias_: Floats

    def __init__(
        self,
        *,
        scale: float = 16.0,
        rau_weight: float = 1.0,
        threshold: float = 0.5,
        n_steps: int = 1000,
        batch_size: int = 256,
        learning_rate: float = 0.01,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.scale = scale
        self.rau_weight = rau_weight
        self.threshold = threshold
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _score(self, features: Floats, logits: Floats) -> Floats:
        return msp(spherical_logits(features, self.weight_, self.bias_, scale=self.scale))

    def _fit(self, features: Floats, logits: Floats, label_index: NDArray[np.intp]) -> None:
        seed = int(make_random_state("RAU", self.random_state).randint(2**31 - 1))
        # Trained on standardised features, so that one learning rate serves all; kept in terms of those given.
        center, scale = features.mean(axis=0), features.std(axis=0)
        scale = np.where(scale > 0.0, scale, 1.0)
        weight, bias = self._train((features - center) / scale, label_index, logits.shape[1], seed)
        self.weight_ = weight / scale
        self.bias_ = bias - self.weight_ @ center

    def _train(
        self, columns: Floats, label_index: NDArray[np.intp], n_classes: int, seed: int
    ) -> tuple[Floats, Floats]:
        # A generator of its own leaves the caller's random numbers alone.
        generator = torch.Generator().manual_seed(seed)
        rows, labels = torch.as_tensor(columns), torch.as_tensor(label_index)
        vectors = torch.as_tensor(label_vectors(n_classes))
        shape = (n_classes, columns.shape[1])
        weight = torch.randn(shape, generator=generator, dtype=rows.dtype) / columns.shape[1] ** 0.5
        bias = torch.zeros(n_classes, dtype=rows.dtype)
        parameters = [weight.requires_grad_(), bias.requires_grad_()]
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        with torch.enable_grad():
            for batch in islice(_draw_batches(len(rows), self.batch_size, generator), self.n_steps):
                mapped = torch.nn.functional.normalize(rows[batch] @ weight.T + bias, dim=1)
                log_probabilities = torch.log_softmax(self.scale * mapped @ vectors.T, dim=1)
                loss = torch.nn.functional.nll_loss(log_probabilities, labels[batch])
                if self.rau_weight:
                    extra = rau_loss(log_probabilities, labels[batch], threshold=self.threshold)
                    loss = loss + self.rau_weight * extra
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return weight.detach().numpy(), bias.detach().numpy()


def _draw_batches(n_rows: int, batch_size: int, generator: torch.Generator) -> Generator[Tensor]:
    """Yield batches of rows without end, in a new order each time all have been seen."""
    while True:
        yield from torch.randperm(n_rows, generator=generator).split(batch_size)
