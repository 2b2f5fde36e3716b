"""Readers of image sets, on small files made here: what they read, and what they reject."""

import pickle
import struct
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from onsphere import InvalidInputError, MissingExtraError
from reproduction.data.images import (
    load_cifar10,
    load_cifar100,
    load_image_folder,
    load_mnist,
    load_svhn,
    resize_images,
)

LABELS = [3, 0, 9, 3]


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, size=(4, 32, 32, 3), dtype=np.uint8)


def batch_of(pictures, key=b"labels", **changes):
    return {b"data": pictures.transpose(0, 3, 1, 2).reshape(4, -1), key: LABELS, **changes}


def cifar100_file(folder, content):
    path = folder / "cifar-100-python" / "test"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


# --- CIFAR ---


def test_cifar10_joins_its_five_batches(tmp_path, pictures):
    (tmp_path / "cifar-10-batches-py").mkdir()
    for number in range(1, 6):
        path = tmp_path / "cifar-10-batches-py" / f"data_batch_{number}"
        path.write_bytes(pickle.dumps(batch_of(pictures), protocol=2))
    images, labels = load_cifar10(folder=tmp_path)
    np.testing.assert_array_equal(images, np.concatenate([pictures] * 5))
    np.testing.assert_array_equal(labels, LABELS * 5)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    with pytest.raises(InvalidInputError, match=r"Expected .*test_batch\. Got no such file"):
        load_cifar10("test", folder=tmp_path)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("old_numpy", [False, True])
def test_every_pickle_of_an_honest_batch_is_read(tmp_path, pictures, protocol, old_numpy):
    content = pickle.dumps(batch_of(pictures, b"fine_labels"), protocol=protocol)
    if old_numpy and protocol < 4:  # later ones say how long a name is
        content = content.replace(b"numpy._core", b"numpy.core")
    cifar100_file(tmp_path, content)
    images, labels = load_cifar100("test", folder=tmp_path)
    np.testing.assert_array_equal(images, pictures)
    np.testing.assert_array_equal(labels, LABELS)


def test_text_and_names_of_python_2_are_read(tmp_path, pictures):
    """Python 2 wrote strings without saying whether they are bytes; the originals are of this kind."""
    honest = pickle.dumps(batch_of(pictures, b"fine_labels"), protocol=2)
    old = honest.replace(b"X\x02\x00\x00\x00u1", b"U\x02u1")
    assert old != honest
    cifar100_file(tmp_path, old)
    np.testing.assert_array_equal(load_cifar100("test", folder=tmp_path)[0], pictures)


def test_columns_first_arrays_are_read_as_they_are(tmp_path, pictures):
    turned = batch_of(pictures, b"fine_labels")
    turned[b"data"] = np.asfortranarray(turned[b"data"])
    cifar100_file(tmp_path, pickle.dumps(turned, protocol=2))
    np.testing.assert_array_equal(load_cifar100("test", folder=tmp_path)[0], pictures)


class Runs:
    """A pickle that calls what it names."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def hostile(target):
    yield pickle.dumps(Runs(exec, f"open({str(target)!r}, 'w').close()"), protocol=2)
    yield pickle.dumps({b"data": Runs(open, str(target), "w")}, protocol=4)
    yield f"cos\nsystem\n(S'touch {target}'\ntR.".encode()
    yield f"cnumpy\nload\n(S'{target}'\ntR.".encode()
    yield f"cbuiltins\ngetattr\n(cnumpy\ndtype\nS'x'\ntR(S'{target}'\ntR.".encode()
    yield b"c_codecs\ndecode\n(S'x'\nS'zip'\ntR."
    yield b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."


@pytest.mark.parametrize("number", range(7))
def test_a_hostile_pickle_is_rejected_and_runs_nothing(tmp_path, number):
    target = tmp_path / "made-by-the-pickle"
    content = list(hostile(target))[number]
    path = cifar100_file(tmp_path, content)
    with pytest.raises(InvalidInputError, match="nothing was run") as caught:
        load_cifar100("test", folder=tmp_path)
    assert str(path) in str(caught.value)
    assert not target.exists()


def test_the_hostile_pickles_would_have_worked(tmp_path):
    """Otherwise their refusal would show nothing."""
    target = tmp_path / "made-by-the-pickle"
    pickle.loads(next(hostile(target)))
    assert target.exists()


def test_an_encoding_named_by_a_pickle_is_not_looked_up(tmp_path):
    """`_codecs.encode` imports whatever codec it is told to; the stand-in knows one."""
    cifar100_file(tmp_path, b"c_codecs\nencode\n(VA\nVno_such_codec\ntR.")
    with pytest.raises(InvalidInputError, match="TypeError"):  # bytes where a dict belongs
        load_cifar100("test", folder=tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": b"", b"labels": []}),
        pickle.dumps({b"data": np.zeros((2, 3072)), b"fine_labels": [1, 2]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3), dtype=np.uint8), b"fine_labels": [1, 2]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3072), dtype=np.uint8), b"fine_labels": [1]}, protocol=2),
        pickle.dumps({b"data": np.zeros((0, 3072), dtype=np.uint8), b"fine_labels": []}, protocol=4),
    ],
)
def test_a_broken_batch_is_named(tmp_path, content):
    path = cifar100_file(tmp_path, content)
    with pytest.raises(InvalidInputError, match=r"as a CIFAR batch.*Download the file again") as caught:
        load_cifar100("test", folder=tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("wrong", [10, -1, 1.5, np.nan, "a", None, [1]])
def test_labels_of_a_batch_are_classes(tmp_path, pictures, wrong):
    (tmp_path / "cifar-10-batches-py").mkdir()
    labels = [[0]] * 3 + [wrong] if isinstance(wrong, list) else [0, 1, 2, wrong]
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps(batch_of(pictures, labels=0) | {b"labels": labels}, protocol=2))
    with pytest.raises(InvalidInputError, match=rf"{path} as labels that are whole numbers from 0 to 9"):
        load_cifar10("test", folder=tmp_path)
    cifar100_file(tmp_path, pickle.dumps(batch_of(pictures) | {b"fine_labels": [0, 1, 2, 99]}, protocol=2))
    assert load_cifar100("test", folder=tmp_path)[1].max() == 99


def test_a_batch_cut_anywhere_is_named(tmp_path, pictures):
    content = pickle.dumps(batch_of(pictures, b"fine_labels"), protocol=2)
    path = cifar100_file(tmp_path, content)
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(InvalidInputError, match="as a CIFAR batch"):
            load_cifar100("test", folder=tmp_path)


# --- MNIST ---


def write_mnist(folder, n_images=3, n_labels=3, cut=0):
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.arange(n_images * 28 * 28, dtype=np.uint8).tobytes()
    content = struct.pack(">IIII", 2051, n_images, 28, 28) + pixels
    (raw / "t10k-images-idx3-ubyte").write_bytes(content[: len(content) - cut])
    (raw / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, n_labels) + bytes(range(n_labels)))
    return raw


def test_mnist_is_read_as_grey_pictures(tmp_path):
    write_mnist(tmp_path)
    images, labels = load_mnist("test", folder=tmp_path)
    assert images.shape == (3, 28, 28, 3)
    np.testing.assert_array_equal(images[1, 0, :3, 2], np.arange(784, 787, dtype=np.int64) % 256)
    np.testing.assert_array_equal(labels, [0, 1, 2])


def test_broken_idx_files_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"train-images-idx3-ubyte\. Got no such file"):
        load_mnist(folder=tmp_path)
    for number, options in enumerate([{"cut": 1}, {"cut": 3 * 784 + 4}, {"n_labels": 2}]):
        raw = write_mnist(tmp_path / str(number), **options)
        with pytest.raises(InvalidInputError, match=rf"Expected .*{raw}.*Download"):
            load_mnist("test", folder=tmp_path / str(number))
    (raw / "t10k-images-idx3-ubyte").write_bytes(b"\x1f\x8b\x08\x00" + bytes(20))  # still packed
    with pytest.raises(InvalidInputError, match="start with '1f8b0800'"):
        load_mnist("test", folder=tmp_path / str(number))
    (raw / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, 2**31, 2**31, 2**31))
    with pytest.raises(InvalidInputError, match=r"Got 0 value\(s\)"):
        load_mnist("test", folder=tmp_path / str(number))


@pytest.mark.parametrize("shape", [(0, 28, 28), (3, 0, 28), (3, 28, 0)])
def test_idx_files_without_a_pixel_are_named(tmp_path, shape):
    raw = write_mnist(tmp_path)
    (raw / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, *shape))
    with pytest.raises(InvalidInputError, match=r"images-idx3-ubyte as an idx file .* with at least one value"):
        load_mnist("test", folder=tmp_path)


def test_labels_of_idx_files_are_digits(tmp_path):
    raw = write_mnist(tmp_path)
    (raw / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, 3) + bytes([0, 9, 10]))
    with pytest.raises(InvalidInputError, match="labels-idx1-ubyte as labels that are whole numbers from 0 to 9"):
        load_mnist("test", folder=tmp_path)


# --- SVHN ---


def test_svhn_is_read_with_ten_as_zero(tmp_path, pictures):
    (tmp_path / "svhn").mkdir()
    content = {"X": pictures.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [2], [9]], dtype=np.uint8)}
    savemat(tmp_path / "svhn" / "test_32x32.mat", content)
    images, labels = load_svhn("test", folder=tmp_path)
    np.testing.assert_array_equal(images, pictures)
    np.testing.assert_array_equal(labels, [0, 1, 2, 9])


def test_broken_mat_files_are_named(tmp_path, pictures):
    (tmp_path / "svhn").mkdir()
    path = tmp_path / "svhn" / "train_32x32.mat"
    with pytest.raises(InvalidInputError, match=r"train_32x32\.mat\. Got no such file"):
        load_svhn(folder=tmp_path)
    X, y = pictures.transpose(1, 2, 3, 0), np.ones((4, 1))
    for content in ({"X": X}, {"X": X, "y": y[:2]}, {"X": X.astype(float), "y": y}, {"X": X[..., 0], "y": y}):
        savemat(path, content)
        with pytest.raises(InvalidInputError, match=r"train_32x32\.mat as"):
            load_svhn(folder=tmp_path)
    savemat(path, {"X": X, "y": y})
    whole = path.read_bytes()
    for length in (0, 50, 200, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInputError, match=r"train_32x32\.mat as"):
            load_svhn(folder=tmp_path)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1, 2, 3, 11]),
        np.array([1, 2, 3, -1]),
        np.array([1, 2, 3, 0.5]),
        np.array([1, 2, 3, np.nan]),
        np.array(["a", "b", "c", "d"]),
        np.array([1, "b", 3, 4], dtype=object),
    ],
)
def test_labels_of_mat_files_are_digits(tmp_path, pictures, labels):
    (tmp_path / "svhn").mkdir()
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": pictures.transpose(1, 2, 3, 0), "y": labels[:, None]})
    with pytest.raises(InvalidInputError, match=r"test_32x32\.mat as labels that are whole numbers"):
        load_svhn("test", folder=tmp_path)


def test_mat_files_without_an_image_are_named(tmp_path):
    (tmp_path / "svhn").mkdir()
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": np.zeros((0, 0, 3, 4), dtype=np.uint8), "y": np.ones((4, 1))})
    with pytest.raises(InvalidInputError, match="X of uint8"):
        load_svhn("test", folder=tmp_path)


@pytest.mark.parametrize(
    ("load", "home"),
    [
        (load_cifar10, "https://www.cs.toronto.edu/~kriz/cifar.html"),
        (load_cifar100, "https://www.cs.toronto.edu/~kriz/cifar.html"),
        (load_mnist, "http://yann.lecun.com/exdb/mnist/"),
        (load_svhn, "http://ufldl.stanford.edu/housenumbers/"),
    ],
)
def test_a_missing_set_is_named_with_its_home(tmp_path, monkeypatch, load, home):
    with pytest.raises(InvalidInputError, match=f"{home}.*put it in {tmp_path}") as caught:
        load(folder=tmp_path)
    assert "ONSPHERE_DATA" not in str(caught.value)
    monkeypatch.setenv("ONSPHERE_DATA", str(tmp_path))
    with pytest.raises(InvalidInputError, match=f"{home}.*point ONSPHERE_DATA at"):
        load()


# --- folders ---


def test_a_folder_per_class(tmp_path, pictures):
    for name, picture in zip(["b/1.png", "a/2.PNG", "b/0.png"], pictures, strict=False):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / name)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    images, labels = load_image_folder(tmp_path)
    np.testing.assert_array_equal(images, pictures[[1, 2, 0]])
    np.testing.assert_array_equal(labels, [0, 1, 1])
    assert load_image_folder(tmp_path, size=8)[0].shape == (3, 8, 8, 3)


def test_folders_without_images_and_broken_images_are_named(tmp_path, pictures):
    with pytest.raises(InvalidInputError, match="Got no such file"):
        load_image_folder(tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match="Got no image"):
        load_image_folder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="Got no image"):
        load_image_folder(tmp_path / "file")
    (tmp_path / "a").mkdir()
    broken = tmp_path / "a" / "cut.png"
    Image.fromarray(pictures[0]).save(broken)
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(InvalidInputError, match=rf"Expected {broken} as an image"):
        load_image_folder(tmp_path)
    broken.write_text("text")
    with pytest.raises(InvalidInputError, match=rf"Expected {broken} as an image"):
        load_image_folder(tmp_path)


def test_resizing(pictures):
    assert resize_images(pictures) is pictures
    grey = np.full((2, 28, 28, 3), 77, dtype=np.uint8)
    np.testing.assert_array_equal(resize_images(grey), np.full((2, 32, 32, 3), 77))
    for wrong in (pictures.astype(float), pictures[0], pictures[..., :1]):
        with pytest.raises(InvalidInputError, match="uint8 and shape"):
            resize_images(wrong)
    with pytest.raises(InvalidInputError, match="'size' parameter of resize_images"):
        resize_images(pictures, 0)


@pytest.mark.parametrize("load", [load_cifar10, load_cifar100, load_mnist, load_svhn])
def test_an_unknown_split_is_named(load):
    with pytest.raises(InvalidInputError, match=f"'split' parameter of {load.__name__} must be one of 'train', 'test'"):
        load("valid")


def test_without_pillow_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match="load_image_folder needs pillow"):
        load_image_folder(tmp_path)


@pytest.mark.parametrize(("load", "mean"), [(load_cifar10, 121.5), (load_cifar100, 122.2), (load_mnist, 33.8)])
def test_the_real_sets_have_their_published_sizes(load, mean):
    try:
        images, labels = load("test")
    except InvalidInputError as missing:
        pytest.skip(str(missing))
    assert len(images) == len(labels) == 10_000
    assert images.mean() == pytest.approx(mean, abs=0.1)
