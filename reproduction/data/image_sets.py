"""The image sets that CIFAR-10 is told apart from, by name: at 32×32 pixels, and scaled for its networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from array_api_compat import array_namespace, device

from onsphere._internal.validation import check_option
from onsphere.sphere.geometry import Array
from reproduction.data.files import data_root, missing_file, where_to_get
from reproduction.data.images import (
    Images,
    Labels,
    load_cifar10,
    load_cifar100,
    load_image_folder,
    load_mnist,
    load_svhn,
    resize_images,
)

__all__ = ["IMAGE_SETS", "load_image_set", "normalized_images"]


def _folders(folder: str | Path | None, place: str, source: str) -> tuple[Images, Labels]:
    path = data_root(folder) / place
    if not path.exists():
        raise missing_file(path, where_to_get(source, folder))
    return load_image_folder(path)


_TINY = "Tiny ImageNet from Stanford University (http://cs231n.stanford.edu/tiny-imagenet-200.zip), unpacked,"
_DTD = "DTD from the University of Oxford (https://www.robots.ox.ac.uk/~vgg/data/dtd/), unpacked,"
_READERS: dict[str, Callable[[str | Path | None], tuple[Images, Labels]]] = {
    "CIFAR-10": lambda folder: load_cifar10("test", folder=folder),
    "CIFAR-100": lambda folder: load_cifar100("test", folder=folder),
    "Tiny ImageNet": lambda folder: _folders(folder, "tiny-imagenet-200/val", _TINY),
    "MNIST": lambda folder: load_mnist("test", folder=folder),
    "SVHN": lambda folder: load_svhn("test", folder=folder),
    "DTD": lambda folder: _folders(folder, "dtd/images", _DTD),
}
IMAGE_SETS = tuple(_READERS)

# Of ImageNet, by channel.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_image_set(name: str, *, folder: str | Path | None = None) -> tuple[Images, Labels]:
    """The test images of a set.

    Parameters
    ----------
    name : {"CIFAR-10", "CIFAR-100", "Tiny ImageNet", "MNIST", "SVHN", "DTD"}
    folder : path, optional
        Holds the sets, each in the folder that its reader in `images` names, Tiny ImageNet in `tiny-imagenet-200/val`
        and DTD in `dtd/images`; by default `data_folder()`.

    Returns
    -------
    images : uint8 array of shape (n, 32, 32, 3)
    labels : int64 array of shape (n,)
    """
    check_option("load_image_set", "name", name, IMAGE_SETS)
    images, labels = _READERS[name](folder)
    return resize_images(images), labels


def normalized_images(pixels: Array) -> Array:
    """Bytes as floats with the mean and the deviation of ImageNet taken off, of numpy or torch.

    Parameters
    ----------
    pixels : uint8 array of shape (..., 3, H, W)

    Returns
    -------
    float32 array of the same shape

    Examples
    --------
    >>> import numpy as np
    >>> normalized_images(np.full((1, 3, 2, 2), 255, dtype=np.uint8))[0, :, 0, 0].round(2)
    array([2.25, 2.43, 2.64], dtype=float32)
    """
    xp = array_namespace(pixels)

    def by_channel(values: tuple[float, ...]) -> Array:
        return xp.reshape(xp.asarray(values, dtype=xp.float32, device=device(pixels)), (3, 1, 1))

    return (xp.astype(pixels, xp.float32) / 255 - by_channel(_MEAN)) / by_channel(_DEVIATION)
