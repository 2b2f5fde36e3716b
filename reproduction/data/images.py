"""Image sets in the formats they are published in: CIFAR batches, idx files, SVHN's .mat and folders of images.

Images come as uint8 of shape (n, H, W, 3), labels as int64 of shape (n,). Files are not trusted: a CIFAR batch is a
pickle, and a pickle can name any function for its reader to call. The reader here knows five names, replaces them with
stand-ins of its own, and rejects every other.
"""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere import InvalidInputError
from reproduction.arguments import check_count, check_option, import_package
from reproduction.data.files import advise, broken_file_error, missing_file_error, require_file, resolve_folder

__all__ = ["load_cifar10", "load_cifar100", "load_image_folder", "load_mnist", "load_svhn", "resize_images"]

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

_SPLITS = ("train", "test")
_TORONTO = "from the University of Toronto (https://www.cs.toronto.edu/~kriz/cifar.html), unpacked,"
_MNIST = "MNIST from Yann LeCun's site (http://yann.lecun.com/exdb/mnist/), unpacked in 'MNIST/raw',"
_SVHN = "format 2 of SVHN from Stanford University (http://ufldl.stanford.edu/housenumbers/), in a folder 'svhn',"
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".ppm"}


def load_cifar10(split: str = "train", *, folder: str | Path | None = None) -> tuple[Images, Labels]:
    """Read CIFAR-10 from the folder `cifar-10-batches-py` of its Python version.

    Parameters
    ----------
    split : {"train", "test"}
    folder : path, optional
        Holds `cifar-10-batches-py`; by default `data_folder()`.

    Returns
    -------
    images : uint8 array of shape (n, 32, 32, 3)
    labels : int64 array of shape (n,)
    """
    check_option("load_cifar10", "split", split, _SPLITS)
    names = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
    base, advice = resolve_folder(folder) / "cifar-10-batches-py", advise(f"CIFAR-10 {_TORONTO}", folder)
    parts = [_read_cifar(require_file(base / name, advice), b"labels", 10) for name in names]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def load_cifar100(split: str = "train", *, folder: str | Path | None = None) -> tuple[Images, Labels]:
    """Read CIFAR-100, with its fine labels, from the folder `cifar-100-python` of its Python version.

    Parameters and returns are those of `load_cifar10`.
    """
    check_option("load_cifar100", "split", split, _SPLITS)
    path = require_file(resolve_folder(folder) / "cifar-100-python" / split, advise(f"CIFAR-100 {_TORONTO}", folder))
    return _read_cifar(path, b"fine_labels", 100)


def load_mnist(split: str = "train", *, folder: str | Path | None = None) -> tuple[Images, Labels]:
    """Read MNIST from the idx files in `MNIST/raw`, unpacked; the grey value is repeated in all three channels.

    Parameters
    ----------
    split : {"train", "test"}
    folder : path, optional
        Holds `MNIST/raw`; by default `data_folder()`.

    Returns
    -------
    images : uint8 array of shape (n, 28, 28, 3)
    labels : int64 array of shape (n,)
    """
    check_option("load_mnist", "split", split, _SPLITS)
    base, advice = resolve_folder(folder) / "MNIST" / "raw", advise(_MNIST, folder)
    prefix = "train" if split == "train" else "t10k"
    pixels = _read_idx(require_file(base / f"{prefix}-images-idx3-ubyte", advice), 3)
    path = require_file(base / f"{prefix}-labels-idx1-ubyte", advice)
    labels = _check_labels(path, _read_idx(path, 1), 10)
    if len(pixels) != len(labels):
        raise InvalidInputError(
            f"Expected as many labels as images in {base}. Got {len(pixels)} images and {len(labels)} labels. "
            "Download both files again."
        )
    return np.repeat(pixels[..., None], 3, axis=3), labels


def load_svhn(split: str = "train", *, folder: str | Path | None = None) -> tuple[Images, Labels]:
    """Read SVHN, format 2 (cropped digits), from `svhn/train_32x32.mat` or `test_32x32.mat`.

    The class 10 is the digit 0. Parameters and returns are those of `load_cifar10`, with `svhn` in the folder.
    """
    from scipy.io import loadmat

    check_option("load_svhn", "split", split, _SPLITS)
    path = require_file(resolve_folder(folder) / "svhn" / f"{split}_32x32.mat", advise(_SVHN, folder))
    try:
        content = loadmat(path, variable_names=["X", "y"])
        pixels, labels = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
    except Exception as error:  # scipy raises whatever its parser ran into
        raise broken_file_error(path, "a MATLAB file with the arrays X and y", error) from None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or 0 in pixels.shape or pixels.shape[2:] != (3, len(labels)):
        got = f"X of {pixels.dtype} and shape {pixels.shape}, and {len(labels)} label(s)"
        raise broken_file_error(path, "X of uint8 and shape (32, 32, 3, n) with n labels", got)
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), _check_labels(path, labels, 11) % 10


def load_image_folder(path: str | Path, *, size: int = 32) -> tuple[Images, Labels]:
    """Read images in one folder per class, resized to squares; classes are numbered in the order of the folder names.

    Parameters
    ----------
    path : path
        Holds one folder per class with .png, .jpg, .jpeg, .bmp or .ppm files.
    size : int, default 32

    Returns
    -------
    images : uint8 array of shape (n, size, size, 3)
    labels : int64 array of shape (n,)
    """
    check_count("load_image_folder", "size", size)
    image_module = import_package("PIL.Image", needed_by="load_image_folder", install_as="pillow")
    root = Path(path)
    if not root.exists():
        raise missing_file_error(root, "Give the path of a folder with one folder of images per class.")
    folders = sorted(child for child in root.iterdir() if child.is_dir()) if root.is_dir() else []
    images: list[Images] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        for file in sorted(child for child in folder.iterdir() if child.suffix.lower() in _SUFFIXES):
            try:
                with image_module.open(file) as opened:
                    images.append(_resize(opened, size))
            except Exception as error:  # as many kinds as there are formats
                raise broken_file_error(file, "an image", error) from None
            labels.append(label)
    if not images:
        raise InvalidInputError(
            f"Expected {root} as a folder with one folder of images per class. Got no image. "
            f"Put files with one of the endings {', '.join(sorted(_SUFFIXES))} into folders named after the classes."
        )
    return np.stack(images), np.array(labels, dtype=np.int64)


def resize_images(images: Images, size: int = 32) -> Images:
    """Resize images to size × size pixels, bilinearly.

    Parameters
    ----------
    images : uint8 array of shape (n, H, W, 3)
    size : int, default 32

    Returns
    -------
    uint8 array of shape (n, size, size, 3)

    Examples
    --------
    >>> import numpy as np
    >>> resize_images(np.zeros((2, 28, 28, 3), dtype=np.uint8)).shape
    (2, 32, 32, 3)
    """
    check_count("resize_images", "size", size)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise InvalidInputError(
            f"Expected images of uint8 and shape (n, H, W, 3). Got {images.dtype} and shape {images.shape}. "
            "Put the channels last, and repeat a grey one three times."
        )
    if images.shape[1:3] == (size, size):
        return images
    image_module = import_package("PIL.Image", needed_by="resize_images", install_as="pillow")
    result = np.empty((len(images), size, size, 3), dtype=np.uint8)
    for index, pixels in enumerate(images):
        result[index] = _resize(image_module.fromarray(pixels), size)
    return result


def _check_labels(path: Path, given: NDArray[Any], n_classes: int) -> Labels:
    """Return labels of any kind of number as int64; raise unless each is one of the classes."""
    if given.ndim != 1 or given.dtype.kind not in "iuf" or not np.isin(given, np.arange(n_classes)).all():
        raise broken_file_error(path, f"labels that are whole numbers from 0 to {n_classes - 1}", "others")
    return given.astype(np.int64)


def _resize(image: Any, size: int) -> Images:
    from PIL.Image import Resampling

    colours = image.convert("RGB")
    return np.asarray(colours if colours.size == (size, size) else colours.resize((size, size), Resampling.BILINEAR))


# --- idx ---


def _read_idx(path: Path, n_dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of bytes: 0, 0, the type 8, the number of dimensions, their sizes, then the values."""
    content = path.read_bytes()
    n_header = 4 + 4 * n_dimensions
    if len(content) < n_header or content[:4] != bytes([0, 0, 8, n_dimensions]):
        expected = f"an idx file of bytes with {n_dimensions} dimension(s)"
        raise broken_file_error(path, expected, f"{len(content)} byte(s) that start with {content[:4].hex()!r}")
    shape = struct.unpack(f">{n_dimensions}I", content[4:n_header])
    n_values = len(content) - n_header
    if n_values == 0 or n_values != np.prod(shape, dtype=object):
        raise broken_file_error(path, f"an idx file of shape {shape} with at least one value", f"{n_values} value(s)")
    return np.frombuffer(content, dtype=np.uint8, offset=n_header).reshape(shape)


# --- CIFAR ---


def _read_cifar(path: Path, label_key: bytes, n_classes: int) -> tuple[Images, Labels]:
    expected = f"a CIFAR batch: a pickle of a dict with b'data' and {label_key!r}"
    with path.open("rb") as file:
        try:
            content = _BatchUnpickler(file, encoding="bytes").load()
            pixels, labels = content[b"data"].to_numpy(), np.asarray(content[label_key])
            if len(labels) == 0:
                raise ValueError("no image")
            images = pixels.reshape(len(labels), 3, 32, 32).transpose(0, 2, 3, 1)
        except Exception as error:  # a broken pickle can raise anything
            raise broken_file_error(path, expected, error) from None
    return np.ascontiguousarray(images), _check_labels(path, labels, n_classes)


class _ArrayRecord:
    """An array as a pickle describes it: shape and bytes, read only at the end and by us."""

    _state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def to_numpy(self) -> NDArray[np.uint8]:
        _, shape, dtype, in_columns, content = self._state
        if dtype.name != "u1":
            raise ValueError(f"an array of {dtype.name!r} where bytes (u1) belong")
        return np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if in_columns else "C")


class _DtypeRecord:
    """A dtype as a pickle describes it: its name."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = name.decode("ascii") if isinstance(name, bytes) else name

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Ignore byte order and the like, which bytes do not have."""


def _record_array(*_: Any) -> _ArrayRecord:
    return _ArrayRecord()


def _encode(text: str, encoding: str) -> bytes:
    """Return bytes as Python 3 writes them into an old pickle: the codec is always this one, whatever is named."""
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _record_array,
    ("numpy._core.multiarray", "_reconstruct"): _record_array,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _DtypeRecord,
    ("_codecs", "encode"): _encode,
}


class _BatchUnpickler(pickle.Unpickler):
    """A reader of dicts, lists, numbers, strings, bytes and arrays of bytes; imports and calls nothing."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _STAND_INS[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it contains {module_name}.{global_name}, which no CIFAR batch needs; nothing was run"
            ) from None
