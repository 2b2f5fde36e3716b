"""NYU Depth v2, on small files made here and on the real one where it is."""

import sys

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from onsphere import InvalidInputError, MissingExtraError
from reproduction.data import load_nyu


def pictures(n, height, width):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, size=(n, height, width, 3), dtype=np.uint8)
    return images, random.uniform(0.5, 10, size=(n, height, width)).astype(np.float32)


def write(folder, images, depths):
    """As MATLAB writes it: n, channel, x, y."""
    base = folder / "nyu_v2"
    base.mkdir(exist_ok=True)
    with h5py.File(base / "nyu_depth_v2_labeled.mat", "w") as file:
        file["images"] = images.transpose(0, 3, 2, 1)
        file["depths"] = depths.transpose(0, 2, 1)
    np.savez(base / "splits.npz", train=np.array([3, 0]), test=np.array([1, 2]))
    return base


def test_small_pictures_are_read_as_they_are(tmp_path):
    images, depths = pictures(4, 64, 64)
    write(tmp_path, images, depths)
    found, metres = load_nyu(folder=tmp_path)
    np.testing.assert_array_equal(found, images[[3, 0]])
    np.testing.assert_array_equal(metres, depths[[3, 0]])
    assert found.dtype == np.uint8
    assert metres.dtype == np.float32
    np.testing.assert_array_equal(load_nyu("test", folder=tmp_path)[1], depths[[1, 2]])


def test_the_split_of_the_authors_counts_from_one(tmp_path):
    images, depths = pictures(4, 64, 64)
    base = write(tmp_path, images, depths)
    savemat(base / "splits.mat", {"trainNdxs": np.array([[2], [4]]), "testNdxs": np.array([[1], [3]])})
    np.testing.assert_array_equal(load_nyu(folder=tmp_path)[0], images[[1, 3]])
    np.testing.assert_array_equal(load_nyu("test", folder=tmp_path)[0], images[[0, 2]])


def test_full_pictures_lose_their_border_and_are_resized(tmp_path):
    """The border is noise here and the rest a ramp: only a cropped ramp comes out smooth."""
    images, depths = pictures(4, 480, 640)
    images[:, 44:471, 40:601] = np.linspace(0, 250, 427).astype(np.uint8)[:, None, None]
    depths[:, 44:471, 40:601] = np.linspace(1, 9, 561)
    write(tmp_path, images, depths)
    found, metres = load_nyu(folder=tmp_path)
    assert found.shape == (2, 64, 64, 3)
    assert metres.shape == (2, 64, 64)
    ramp = 1 + 8 * (np.arange(64) + 0.5) / 64
    np.testing.assert_allclose(metres, np.broadcast_to(ramp, (2, 64, 64)), atol=0.1)
    assert np.abs(found[0, :, 5, 0] - 250 * (np.arange(64) + 0.5) / 64).max() < 4


def test_other_sizes_keep_all_of_the_picture(tmp_path):
    images, depths = pictures(4, 32, 32)
    images[:], depths[:] = 77, 2.5
    write(tmp_path, images, depths)
    found, metres = load_nyu(size=16, folder=tmp_path)
    np.testing.assert_array_equal(found, np.full((2, 16, 16, 3), 77))
    np.testing.assert_allclose(metres, 2.5)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"Expected .*nyu_depth_v2_labeled\.mat\. Got no such file.*NYU Depth"):
        load_nyu(folder=tmp_path)
    base = write(tmp_path, *pictures(4, 64, 64))
    (base / "splits.npz").unlink()
    with pytest.raises(
        InvalidInputError,
        match=r"splits\.npz\. Got no such file\. .*splits\.mat or splits\.npz\).*silberman.* in /",
    ):
        load_nyu(folder=tmp_path)


def test_broken_files_are_named(tmp_path):
    base = write(tmp_path, *pictures(4, 64, 64))
    path = base / "nyu_depth_v2_labeled.mat"
    whole = path.read_bytes()
    for length in (0, 100, len(whole) // 3):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInputError, match=r"as an HDF5 file with the arrays images and depths.*Download"):
            load_nyu(folder=tmp_path)
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((4, 3, 8, 8), dtype=np.uint8)
    with pytest.raises(InvalidInputError, match="KeyError"):
        load_nyu(folder=tmp_path)


@pytest.mark.parametrize(
    ("images", "depths"),
    [
        (np.zeros((4, 3, 8, 8)), np.zeros((4, 8, 8))),
        (np.zeros((4, 3, 8, 8), dtype=np.uint8), np.zeros((4, 8, 8), dtype=int)),
        (np.zeros((4, 3, 8, 8), dtype=np.uint8), np.zeros((3, 8, 8))),
        (np.zeros((4, 1, 8, 8), dtype=np.uint8), np.zeros((4, 8, 8))),
        (np.zeros((4, 3, 8, 8), dtype=np.uint8), np.zeros((4, 8))),
        (np.zeros((4, 3, 0, 8), dtype=np.uint8), np.zeros((4, 0, 8))),
        (None, np.zeros((4, 8, 8))),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, images, depths):
    base = write(tmp_path, *pictures(4, 64, 64))
    with h5py.File(base / "nyu_depth_v2_labeled.mat", "w") as file:
        file["depths"] = depths
        if images is None:
            file.create_group("images")
        else:
            file["images"] = images
    with pytest.raises(InvalidInputError, match="images of uint8 and shape"):
        load_nyu(folder=tmp_path)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, -1.0])
def test_depths_that_are_not_finite_or_not_positive_are_named(tmp_path, wrong):
    images, depths = pictures(4, 64, 64)
    depths[3, 0, 0] = wrong
    write(tmp_path, images, depths)
    with pytest.raises(InvalidInputError, match=r"as depths that are finite and above 0\. Got 1 that are not"):
        load_nyu(folder=tmp_path)
    assert len(load_nyu("test", folder=tmp_path)[1]) == 2  # where it is not used


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">f8", np.longdouble])
def test_floats_of_every_kind_are_read(tmp_path, dtype):
    images, depths = pictures(4, 32, 32)
    write(tmp_path, images, depths)
    wanted = load_nyu(size=16, folder=tmp_path)[1]
    write(tmp_path, images, depths.astype(dtype))
    np.testing.assert_allclose(load_nyu(size=16, folder=tmp_path)[1], wanted, rtol=2e-3)


def test_a_page_in_place_of_the_split_is_named(tmp_path):
    base = write(tmp_path, *pictures(4, 64, 64))
    (base / "splits.npz").write_text("<!DOCTYPE html>")
    with pytest.raises(InvalidInputError, match=r"splits\.npz as .*a file of another kind") as caught:
        load_nyu(folder=tmp_path)
    assert "pickle" not in str(caught.value)


@pytest.mark.parametrize(
    "arrays",
    [{"train": np.array([4])}, {"train": np.array([-1])}, {"train": np.array([], dtype=int)}, {"test": np.array([1])}],
)
def test_splits_that_do_not_fit_are_named(tmp_path, arrays):
    base = write(tmp_path, *pictures(4, 64, 64))
    np.savez(base / "splits.npz", **arrays)
    with pytest.raises(InvalidInputError, match=r"splits\.npz as the rows of 'train' among 4 pictures"):
        load_nyu(folder=tmp_path)
    (base / "splits.npz").write_bytes((base / "splits.npz").read_bytes()[:-9])
    with pytest.raises(InvalidInputError, match=r"splits\.npz as the rows of 'train' among 4 pictures"):
        load_nyu(folder=tmp_path)
    (base / "splits.mat").write_bytes(b"broken")
    with pytest.raises(InvalidInputError, match=r"splits\.mat as the rows of 'train' among 4 pictures"):
        load_nyu(folder=tmp_path)


def test_bad_arguments_are_named():
    with pytest.raises(InvalidInputError, match="'split' parameter of load_nyu must be one of 'train', 'test'"):
        load_nyu("validation")
    with pytest.raises(InvalidInputError, match="'size' parameter of load_nyu"):
        load_nyu(size=0)


def test_without_its_libraries_the_extra_is_named(monkeypatch, tmp_path):
    write(tmp_path, *pictures(4, 32, 32))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match="load_nyu needs pillow"):
        load_nyu(folder=tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match="load_nyu needs h5py"):
        load_nyu(folder=tmp_path)


@pytest.mark.parametrize(("split", "n"), [("train", 795), ("test", 654)])
def test_the_real_set_has_its_published_size(split, n):
    try:
        images, depth = load_nyu(split)
    except InvalidInputError as missing:
        pytest.skip(str(missing))
    assert images.shape == (n, 64, 64, 3)
    assert depth.shape == (n, 64, 64)
    assert 0.5 < depth.min() < depth.max() < 10
    # ceilings are brighter and, as a rule, the middle of a room is farther than the floor before the camera
    assert depth[:, 20:30].mean() > depth[:, -10:].mean() + 0.3
