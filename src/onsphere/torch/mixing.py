"""Mixed samples with mixed labels: only they teach a classifier what lies between its classes.

A mixed label stays as it is. Its norm is below 1, and that is what the direction should learn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from onsphere._internal.validation import check_flag, check_number, check_option, parameter_error
from onsphere.errors import InvalidInputError
from onsphere.torch.head import check_shares

__all__ = ["MixingCollate", "dirichlet_mix", "mixup"]


def mixup(
    x: Tensor, labels: Tensor, *, alpha: float = 1.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Mix each sample with one other of the batch, the shares drawn from Beta(alpha, alpha).

    Parameters
    ----------
    x : floating Tensor of shape (n, ...)
    labels : floating Tensor of shape (n, C)
        One-hot or soft: not negative, and summing to 1 in every row.
    alpha : float > 0, default 1.0
        The smaller, the nearer the mixtures are to one of the two.
    generator : torch.Generator, optional

    Returns
    -------
    x, labels : Tensors of the same shapes

    Examples
    --------
    >>> import torch
    >>> x, labels = mixup(torch.rand(4, 3), torch.eye(4), generator=torch.Generator().manual_seed(0))
    >>> (labels > 0).sum(dim=1).tolist()
    [2, 2, 2, 2]
    """
    return _mix("mixup", x, labels, 2, alpha, generator)


def dirichlet_mix(
    x: Tensor, soft: Tensor, *, k: int = 20, alpha: float = 0.5, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Replace each sample by a mixture of k different ones, the shares drawn from Dirichlet(alpha, …, alpha).

    Parameters
    ----------
    x : floating Tensor of shape (n, ...)
    soft : floating Tensor of shape (n, C)
        One-hot or soft labels: not negative, and summing to 1 in every row.
    k : int ≥ 2, default 20
        A batch with fewer samples, as the last of an epoch may be, is mixed from all it has.
    alpha : float > 0, default 0.5
        The smaller, the fewer of the k matter.
    generator : torch.Generator, optional

    Returns
    -------
    x, soft : Tensors of the same shapes

    Examples
    --------
    >>> import torch
    >>> x, soft = dirichlet_mix(torch.rand(32, 3), torch.eye(32), generator=torch.Generator().manual_seed(0))
    >>> bool(torch.allclose(soft.sum(dim=1), torch.ones(32))), bool((soft.norm(dim=1) < 1).all())
    (True, True)
    """
    check_number("dirichlet_mix", "k", k, above=2, closed="left", whole=True)
    return _mix("dirichlet_mix", x, soft, k, alpha, generator)


def _mix(
    owner: str, x: Tensor, labels: Tensor, k: int, alpha: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    _check_shares_and_generator(owner, alpha, generator)
    _check_batch(x, labels)
    # Shares of half precision would sum to 1 too loosely; doubles get shares of their own precision.
    dtype = torch.promote_types(torch.promote_types(x.dtype, labels.dtype), torch.float32)
    weights = _draw_weights(len(x), min(k, len(x)), alpha, generator, x.device, dtype)
    return _combine(weights, x), _combine(weights, labels)


def _check_batch(x: Any, labels: Any) -> None:
    if not (
        _is_floating(x) and _is_floating(labels) and x.dim() > 0 and labels.dim() == 2 and len(x) == len(labels) > 0
    ):
        raise InvalidInputError(
            "Expected tensors: floating samples (n, ...) and one-hot or soft labels (n, C). "
            f"Got {_describe(x)} and {_describe(labels)}. "
            "Scale images to floats, and turn class labels into one_hot(labels, n_classes).float()."
        )
    check_shares(labels)


def _is_floating(values: Any) -> bool:
    return isinstance(values, Tensor) and values.is_floating_point()


def _describe(values: Any) -> str:
    return f"{values.dtype} of shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__


def _check_shares_and_generator(owner: object, alpha: float, generator: Any) -> None:
    check_number(owner, "alpha", alpha, above=0)
    if not (generator is None or isinstance(generator, torch.Generator)):
        raise parameter_error(owner, "generator", "a torch.Generator or None", generator)


def _draw_weights(
    n: int, k: int, alpha: float, generator: torch.Generator | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return one row of shares per mixture, k of them above zero; as a matrix, no sample is copied k times."""
    where = device if generator is None else generator.device
    # torch.distributions takes no generator; this is the function that it calls.
    concentration = torch.full((n, k), float(alpha), device=where, dtype=dtype)
    shares = torch._sample_dirichlet(concentration, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
    # The k largest of n random numbers are k different samples, each as likely as the others.
    members = torch.rand(n, n, device=where, generator=generator)
    members.fill_diagonal_(2.0)  # each sample is one of its own mixture
    index = members.topk(k, dim=1).indices
    return torch.zeros(n, n, device=where, dtype=dtype).scatter_(1, index, shares).to(device)


def _combine(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.to(values.dtype) @ values.reshape(len(values), -1)).reshape(values.shape)


class MixingCollate:
    """A collate function that adds mixed samples to each batch of (sample, label) pairs as it is put together.

    The clean samples keep the directions at the classes; only the mixed ones teach what lies between.

    Parameters
    ----------
    n_classes : int
        Integer labels become one-hot vectors of this length; labels (n, n_classes) stay as they are.
    method : {"dirichlet", "mixup"}, default "dirichlet"
    k : int, default 20
        As in `dirichlet_mix`; "mixup" mixes two and ignores it.
    alpha : float > 0, optional
        By default that of the method: 0.5 as in `dirichlet_mix`, or 1 as in `mixup`.
    keep_clean : bool, default True
        Whether the batch holds its own samples first, and then as many mixed ones, so that it is twice as long; or
        mixed ones only.
    generator : torch.Generator, optional
        For a DataLoader without workers. With workers, leave it out and seed the loader: each worker would get a
        copy of the generator, and all would draw the same shares.

    Examples
    --------
    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.rand(64, 3), torch.arange(64) % 10)
    >>> loader = torch.utils.data.DataLoader(data, batch_size=32, collate_fn=MixingCollate(10))
    >>> x, soft = next(iter(loader))
    >>> x.shape, soft.shape
    (torch.Size([64, 3]), torch.Size([64, 10]))
    """

    def __init__(
        self,
        n_classes: int,
        *,
        method: str = "dirichlet",
        k: int = 20,
        alpha: float | None = None,
        keep_clean: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        check_number(self, "n_classes", n_classes, above=2, closed="left", whole=True)
        check_option(self, "method", method, ["dirichlet", "mixup"])
        check_number(self, "k", k, above=2, closed="left", whole=True)
        check_flag(self, "keep_clean", keep_clean)
        alpha = (1.0 if method == "mixup" else 0.5) if alpha is None else alpha
        _check_shares_and_generator(self, alpha, generator)
        self.n_classes = n_classes
        self.method = method
        self.k = k
        self.alpha = alpha
        self.keep_clean = keep_clean
        self.generator = generator

    def __call__(self, batch: list[Any]) -> tuple[Tensor, Tensor]:
        x, labels = _collate(batch)
        if not labels.is_floating_point():
            if not bool(((labels >= 0) & (labels < self.n_classes)).all()):
                raise InvalidInputError(
                    f"Expected class labels from 0 to {self.n_classes - 1}. "
                    f"Got labels from {int(labels.min())} to {int(labels.max())}. Number the classes from 0."
                )
            labels = nn.functional.one_hot(labels.long(), self.n_classes).to(x.dtype)
        elif labels.dim() == 2 and labels.shape[1] != self.n_classes:
            raise InvalidInputError(
                f"Expected soft labels of {self.n_classes} classes. Got {labels.shape[1]} numbers per sample. "
                "Make the labels, or MixingCollate, for as many classes."
            )
        k = 2 if self.method == "mixup" else self.k
        mixed, shares = _mix("MixingCollate", x, labels, k, self.alpha, self.generator)
        return (torch.cat([x, mixed]), torch.cat([labels, shares])) if self.keep_clean else (mixed, shares)


def _collate(batch: list[Any]) -> tuple[Tensor, Tensor]:
    """Stack the samples, and the labels, into one tensor each."""
    first: Any = batch[0] if len(batch) else None
    if not (isinstance(first, tuple | list) and len(first) == 2):
        got = f"{len(first)} parts" if isinstance(first, tuple | list) else type(first).__name__
        raise InvalidInputError(
            f"Expected a data set of pairs (sample, label). Got {got}. Wrap the data set in one that yields pairs."
        )
    try:
        x, labels = default_collate(batch)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"Expected samples, and labels, that can be stacked. Got {error} Bring all samples to one shape and type."
        ) from error
    if not (isinstance(x, Tensor) and isinstance(labels, Tensor)):
        raise InvalidInputError(
            f"Expected pairs of a tensor and a label that is a number or a vector. Got {_describe(x)} and "
            f"{_describe(labels)} of {type(first[1]).__name__}. Number the classes from 0."
        )
    return x, labels
