"""NYU Depth v2, the labelled part: 1,449 indoor pictures with the depth of every pixel.

Silberman et al., Indoor segmentation and support inference from RGBD images, ECCV 2012.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.arguments import check_count, check_option, import_package
from reproduction.data.files import advise, broken_file_error, read_npz, require_file, resolve_folder

__all__ = ["load_nyu"]

_FILE = "nyu_depth_v2_labeled.mat"
_SOURCE = (
    "the folder 'nyu_v2', with the labelled NYU Depth Dataset V2 and its split (splits.mat or splits.npz) from New "
    "York University (https://cs.nyu.edu/~silberman/datasets/nyu_depth_v2.html),"
)
# The projected depth does not reach the edge of the original pictures of 640 × 480; the authors' toolbox crops to this.
_FULL, _CROP = (480, 640), (slice(44, 471), slice(40, 601))


def load_nyu(
    split: str = "train", *, size: int = 64, folder: str | Path | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Read one part of the official split, 795 pictures for training and 654 for testing.

    The authors' file of 2.8 GB is read picture by picture, cropped to where depth was measured and resized bilinearly;
    one with small pictures is read as it is.

    Parameters
    ----------
    split : {"train", "test"}
    size : int, default 64
        Pixels along each edge.
    folder : path, optional
        Holds `nyu_v2/nyu_depth_v2_labeled.mat` and, from the same authors, `nyu_v2/splits.mat` (or `splits.npz`, arrays
        train and test counted from 0); by default `data_folder()`.

    Returns
    -------
    images : uint8 array of shape (n, size, size, 3)
    depth : float32 array of shape (n, size, size)
        In metres.
    """
    check_option("load_nyu", "split", split, ("train", "test"))
    check_count("load_nyu", "size", size)
    h5py = import_package("h5py", needed_by="load_nyu")
    base = resolve_folder(folder) / "nyu_v2"
    advice = advise(_SOURCE, folder)
    path = require_file(base / _FILE, advice)
    try:
        with h5py.File(path, "r") as file:
            pictures: Any = file["images"]
            depths: Any = file["depths"]
            _check_layout(path, pictures, depths)
            which = _read_split(base, split, len(depths), advice)
            images = np.empty((len(which), size, size, 3), dtype=np.uint8)
            metres = np.empty((len(which), size, size), dtype=np.float32)
            for row, index in enumerate(which.tolist()):
                # MATLAB stores x before y.
                images[row] = _resize(np.asarray(pictures[index]).transpose(2, 1, 0), size)
                metres[row] = _resize(np.asarray(depths[index], dtype=np.float32).T, size)
    except (OSError, KeyError, RuntimeError) as error:  # h5py's errors for a file cut short, or without these arrays
        raise broken_file_error(path, "an HDF5 file with the arrays images and depths", error) from None
    wrong = ~(np.isfinite(metres) & (metres > 0))
    if wrong.any():
        raise broken_file_error(path, "depths that are finite and above 0", f"{int(wrong.sum())} that are not")
    return images, metres


def _check_layout(path: Path, pictures: Any, depths: Any) -> None:
    shapes = getattr(pictures, "shape", ()), getattr(depths, "shape", ())
    fits = len(shapes[1]) == 3 and 0 not in shapes[1] and shapes[0] == (shapes[1][0], 3, *shapes[1][1:])
    if not fits or pictures.dtype != np.uint8 or depths.dtype.kind != "f":
        expected = "images of uint8 and shape (n, 3, width, height) with depths of floats and shape (n, width, height)"
        raise broken_file_error(path, expected, f"shapes {shapes[0]} and {shapes[1]}")


def _read_split(base: Path, split: str, n_pictures: int, advice: str) -> NDArray[np.int64]:
    """Read the rows of one part, counted from 0."""
    from scipy.io import loadmat

    original, plain = base / "splits.mat", base / "splits.npz"
    path = original if original.is_file() else require_file(plain, advice)
    expected = f"the rows of {split!r} among {n_pictures} pictures"
    try:
        if path == original:
            which = np.asarray(loadmat(path)[f"{split}Ndxs"]).ravel().astype(np.int64) - 1
        else:
            which = read_npz(path, split)[0].ravel().astype(np.int64)
    except Exception as error:  # scipy, numpy and zipfile raise many kinds
        raise broken_file_error(path, expected, error) from None
    if which.size == 0 or which.min() < 0 or which.max() >= n_pictures:
        raise broken_file_error(
            path, expected, f"{which.size} rows from {which.min(initial=0)} to {which.max(initial=0)}"
        )
    return which


def _resize(picture: NDArray[Any], size: int) -> NDArray[Any]:
    """Resize a picture, or a map of floats, to size × size."""
    if picture.shape[:2] == (size, size):
        return picture
    image = import_package("PIL.Image", needed_by="load_nyu", install_as="pillow")
    inner = picture[_CROP] if picture.shape[:2] == _FULL else picture
    return np.asarray(image.fromarray(np.ascontiguousarray(inner)).resize((size, size), image.Resampling.BILINEAR))
