"""Readers of standard formats, makers of synthetic sets, and simulated wafers with the optics behind them.

>>> from reproduction.data import make_toy
>>> X, y, sigma = make_toy(100, random_state=0)
>>> X.shape
(100, 1)
"""

from reproduction.data.depth import load_nyu
from reproduction.data.ellipsometry import EllipsometrySpectra, load_ellipsometry
from reproduction.data.files import data_folder
from reproduction.data.image_sets import IMAGE_SETS, load_image_set, normalize_images
from reproduction.data.images import (
    load_cifar10,
    load_cifar100,
    load_image_folder,
    load_mnist,
    load_svhn,
    resize_images,
)
from reproduction.data.materials import cauchy_index, silica_index, silicon_index, silicon_nitride_index
from reproduction.data.openml import fetch_uci
from reproduction.data.optics import (
    Amplitudes,
    Powers,
    angles_from_ncs,
    bruggeman,
    ellipsometric_angles,
    ellipsometric_ncs,
    fresnel,
    maxwell_garnett,
    ncs_from_angles,
    stack_amplitudes,
    stack_powers,
    stack_reflection,
)
from reproduction.data.synthetic import NOISE_KINDS, make_noise_1d, make_toy
from reproduction.data.text import TEXT_NAMES, load_text
from reproduction.data.uci import UCI_NAMES, load_uci
from reproduction.data.wafers import (
    WAFER_ANOMALIES,
    WAFER_KINDS,
    WaferBenchmark,
    Wafers,
    make_wafer_benchmark,
    make_wafers,
    wafer_spectra,
)

__all__ = [
    "IMAGE_SETS",
    "NOISE_KINDS",
    "TEXT_NAMES",
    "UCI_NAMES",
    "WAFER_ANOMALIES",
    "WAFER_KINDS",
    "Amplitudes",
    "EllipsometrySpectra",
    "Powers",
    "WaferBenchmark",
    "Wafers",
    "angles_from_ncs",
    "bruggeman",
    "cauchy_index",
    "data_folder",
    "ellipsometric_angles",
    "ellipsometric_ncs",
    "fetch_uci",
    "fresnel",
    "load_cifar10",
    "load_cifar100",
    "load_ellipsometry",
    "load_image_folder",
    "load_image_set",
    "load_mnist",
    "load_nyu",
    "load_svhn",
    "load_text",
    "load_uci",
    "make_noise_1d",
    "make_toy",
    "make_wafer_benchmark",
    "make_wafers",
    "maxwell_garnett",
    "ncs_from_angles",
    "normalize_images",
    "resize_images",
    "silica_index",
    "silicon_index",
    "silicon_nitride_index",
    "stack_amplitudes",
    "stack_powers",
    "stack_reflection",
    "wafer_spectra",
]
