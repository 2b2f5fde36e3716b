"""Image sets by name, on small files made here, and how their pixels are scaled."""

import numpy as np
import pytest
import torch
from PIL import Image

from onsphere import InvalidInputError
from reproduction.data.image_sets import IMAGE_SETS, load_image_set, normalize_images

GREY = np.random.default_rng(0).integers(0, 256, size=(4, 28, 28), dtype=np.uint8)


def test_a_set_comes_at_32_pixels_with_its_labels(tmp_path, monkeypatch):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    sizes = b"".join(size.to_bytes(4, "big") for size in GREY.shape)
    (raw / "t10k-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + sizes + GREY.tobytes())
    (raw / "t10k-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 4, 7, 2, 1, 0]))
    images, labels = load_image_set("MNIST", folder=tmp_path)
    assert (images.shape, images.dtype) == ((4, 32, 32, 3), np.uint8)
    assert labels.tolist() == [7, 2, 1, 0]
    monkeypatch.setenv("ONSPHERE_DATA", str(tmp_path))
    np.testing.assert_array_equal(load_image_set("MNIST")[0], images)


@pytest.mark.parametrize(
    ("name", "place"), [("Tiny ImageNet", "tiny-imagenet-200/val"), ("DTD", "dtd/images"), ("Places365", "places365")]
)
def test_folders_of_images(tmp_path, name, place):
    for label in ("banded", "woven"):
        folder = tmp_path / place / label
        folder.mkdir(parents=True)
        Image.fromarray(GREY[0]).save(folder / "one.png")
    images, labels = load_image_set(name, folder=tmp_path)
    assert images.shape == (2, 32, 32, 3)
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("CIFAR-10", "cifar-10-batches-py/test_batch"),
        ("CIFAR-100", "cifar-100-python/test"),
        ("Tiny ImageNet", "tiny-imagenet-200/val"),
        ("MNIST", "MNIST/raw/t10k-images-idx3-ubyte"),
        ("SVHN", "svhn/test_32x32.mat"),
        ("DTD", "dtd/images"),
        ("Places365", "places365"),
    ],
)
def test_a_set_that_is_missing_is_named_with_its_place(tmp_path, name, place):
    assert name in IMAGE_SETS
    with pytest.raises(InvalidInputError, match="Got no such file") as raised:
        load_image_set(name, folder=tmp_path)
    assert str(tmp_path / place) in str(raised.value)
    assert "http" in str(raised.value)
    assert f"put it in {tmp_path}." in str(raised.value)


def test_a_set_that_nobody_knows():
    with pytest.raises(InvalidInputError, match="'name' parameter of load_image_set must be one of 'CIFAR-10'"):
        load_image_set("Places")


@pytest.mark.parametrize(
    ("like", "statistics"),
    [
        ("ImageNet", [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]),
        ("CIFAR-10", [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)]),
    ],
)
def test_pixels_are_scaled_by_channel_alike_in_numpy_and_torch(like, statistics):
    pixels = np.random.default_rng(1).integers(0, 256, size=(5, 3, 4, 6), dtype=np.uint8)
    wanted = np.empty(pixels.shape)
    for channel, (mean, deviation) in enumerate(statistics):
        wanted[:, channel] = (pixels[:, channel] / 255 - mean) / deviation
    ours = normalize_images(pixels, like=like)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, wanted, atol=1e-6)
    theirs = normalize_images(torch.from_numpy(pixels), like=like)
    assert theirs.dtype == torch.float32
    np.testing.assert_allclose(theirs.numpy(), ours, atol=1e-6)
