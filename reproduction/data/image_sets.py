"""CIFAR-10 and the image sets to tell it apart from, by name: at 32×32 pixels, and scaled for its networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from array_api_compat import array_namespace, device

from reproduction.arguments import check_option
from reproduction.data.files import advise, missing_file_error, resolve_folder
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

__all__ = ["IMAGE_SETS", "load_image_set", "normalize_images"]


def _read_folders(folder: str | Path | None, place: str, source: str) -> tuple[Images, Labels]:
    path = resolve_folder(folder) / place
    if not path.exists():
        raise missing_file_error(path, advise(source, folder))
    return load_image_folder(path)


_TINY = "Tiny ImageNet from Stanford University (http://cs231n.stanford.edu/tiny-imagenet-200.zip), unpacked,"
_DTD = "DTD from the University of Oxford (https://www.robots.ox.ac.uk/~vgg/data/dtd/), unpacked,"
_PLACES = "the validation images of Places365 (val_256.tar from http://places2.csail.mit.edu), unpacked,"
_READERS: dict[str, Callable[[str | Path | None], tuple[Images, Labels]]] = {
    "CIFAR-10": lambda folder: load_cifar10("test", folder=folder),
    "CIFAR-100": lambda folder: load_cifar100("test", folder=folder),
    "Tiny ImageNet": lambda folder: _read_folders(folder, "tiny-imagenet-200/val", _TINY),
    "MNIST": lambda folder: load_mnist("test", folder=folder),
    "SVHN": lambda folder: load_svhn("test", folder=folder),
    "DTD": lambda folder: _read_folders(folder, "dtd/images", _DTD),
    "Places365": lambda folder: _read_folders(folder, "places365", _PLACES),
}
IMAGE_SETS = tuple(_READERS)

# Mean and standard deviation by channel.
_STATISTICS = {
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


def load_image_set(name: str, *, folder: str | Path | None = None) -> tuple[Images, Labels]:
    """Read the test images of a set.

    Parameters
    ----------
    name : {"CIFAR-10", "CIFAR-100", "Tiny ImageNet", "MNIST", "SVHN", "DTD", "Places365"}
    folder : path, optional
        Holds the sets, each in the folder that its reader in `images` names, Tiny ImageNet in `tiny-imagenet-200/val`,
        DTD in `dtd/images` and Places365 in `places365/val_256`; by default `data_folder()`.

    Returns
    -------
    images : uint8 array of shape (n, 32, 32, 3)
    labels : int64 array of shape (n,)
    """
    check_option("load_image_set", "name", name, IMAGE_SETS)
    images, labels = _READERS[name](folder)
    return resize_images(images), labels


def normalize_images(pixels: Any, *, like: str = "ImageNet") -> Any:
    """Return bytes as floats, standardised with the mean and deviation of a large set, in numpy or torch.

    Parameters
    ----------
    pixels : uint8 array of shape (..., 3, H, W)
    like : {"ImageNet", "CIFAR-10"}, default "ImageNet"
        The set with these statistics.

    Returns
    -------
    float32 array of the same shape

    Examples
    --------
    >>> import numpy as np
    >>> normalize_images(np.full((1, 3, 2, 2), 255, dtype=np.uint8))[0, :, 0, 0].round(2)
    array([2.25, 2.43, 2.64], dtype=float32)
    """
    check_option("normalize_images", "like", like, list(_STATISTICS))
    mean, deviation = _STATISTICS[like]
    xp = array_namespace(pixels)

    def shape_channels(values: tuple[float, ...]) -> Any:
        return xp.reshape(xp.asarray(values, dtype=xp.float32, device=device(pixels)), (3, 1, 1))

    return (xp.astype(pixels, xp.float32) / 255 - shape_channels(mean)) / shape_channels(deviation)
