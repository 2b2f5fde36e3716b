"""Simulated wafers: ellipsometric spectra of etched holes, and the radius of the hole at 25 depths.

An open stand-in for the proprietary industrial set of the paper, with its sizes: 400 inputs, 25 targets, 1,375 rows to
learn from and 4,596 to test with. Nothing in it was measured; the physics is that of `optics`, the optical constants
are published ones (`materials`), and the process is invented.

Structure. A hexagonal array of round holes, pitch 80 nm, is etched through a silicon nitride hard mask (30 nm are left)
and 800 nm of silica down to silicon. The hole is cut into 25 slices of equal height; each is a homogeneous layer whose
permittivity is Maxwell Garnett's for cylinders across the field (depolarization 1/2), with the share of void
2πr²/(√3 pitch²). Light of 250 to 1000 nm comes in at 65°.

Process. The radius follows depth with a taper, a bow, a neck below the mask, a slow wave (all that twisting leaves in
the area of a slice) and correlated roughness. Film thickness, pitch, mask and angle of incidence vary too; they are
nuisances, not targets.

Instrument. Independent noise on N, C and S with a variance inverse to the detected light (lamp × reflectance), then Ψ
and Δ from these: about 0.1° for Ψ and 0.23° for Δ, whose noise grows where sin 2Ψ is small. The angle of incidence is
off by 0.02° (one sigma).

What the model leaves out. Layers are isotropic and flat: what moves a hole sideways (tilt, twist) or makes it oval
without a change of area leaves no trace; the true array is birefringent (the field along the holes sees the plain mean
of the permittivities); diffraction, cross-polarisation and depolarisation are absent, which needs a pitch well below
the wavelength. Radii can be told apart because the film interferes at many wavelengths, to about a quarter of the
shortest wavelength in depth: roughness on a finer scale cannot be recovered, by any method.

Anomalies change either the hole (`clogged`, `under_etch`, `footing`), the wafer around it (`mask_erosion`,
`contamination`) or the measurement (`angle_fault`, `saturation`). `drift` is an etch bias that grows from wafer to
wafer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reproduction.arguments import Floats, argument_error, check_count, check_option, check_positive, make_random_state
from reproduction.data.materials import silica_index, silicon_index, silicon_nitride_index
from reproduction.data.optics import angles_from_ncs, ellipsometric_ncs, maxwell_garnett, stack_reflection

__all__ = [
    "WAFER_ANOMALIES",
    "WAFER_KINDS",
    "WaferBenchmark",
    "Wafers",
    "make_wafer_benchmark",
    "make_wafers",
    "wafer_spectra",
]

WAFER_ANOMALIES = (
    "clogged",
    "under_etch",
    "footing",
    "mask_erosion",
    "contamination",
    "angle_fault",
    "saturation",
)
WAFER_KINDS = ("normal", "drift", *WAFER_ANOMALIES)

_N_SLICES = 25
_WAVELENGTHS = np.linspace(250.0, 1000.0, 200)
_PLACES = (np.arange(_N_SLICES) + 0.5) / _N_SLICES
_NOMINAL = {"pitch": 80.0, "film_thickness": 800.0, "mask_thickness": 30.0, "residue_thickness": 0.0, "angle": 65.0}
_SMALLEST_RADIUS, _LARGEST_SHARE_OF_PITCH = 1.0, 0.49
_NOISE = 0.003
# So many rows keep the arrays of a chunk in the cache of a core, and memory far below 100 MB.
_CHUNK = 64


@dataclass(frozen=True)
class Wafers:
    """Measured wafers, one per row, in the order of production.

    Attributes
    ----------
    spectra : array of shape (n, 400)
        Ψ at 200 wavelengths, in [0, 90], then Δ, in [0, 360), in degrees. Normal wafers keep Δ between about 70 and
        280, far from where it would jump from 360 to 0, so that it needs no unwrapping.
    radii : array of shape (n, 25)
        Of the hole in nanometres, from the top of the film to its bottom.
    wafer : int array of shape (n,)
        Running number.
    label : array of str of shape (n,)
        One of `WAFER_KINDS`.
    wavelengths : array of shape (200,)
        In nanometres.
    depths : array of shape (25,)
        Middle of each slice below the top of the film in nanometres, for the nominal film of 800 nm.
    parameters : dict of arrays of shape (n,)
        What else the simulation drew for each wafer: `pitch`, `film_thickness`, `mask_thickness`,
        `residue_thickness` (nm), `angle` (degrees) and `severity`, in [0, 1], of the drift.
    """

    spectra: Floats
    radii: Floats
    wafer: NDArray[np.int64]
    label: NDArray[np.str_]
    wavelengths: Floats
    depths: Floats
    parameters: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.radii)

    def select(self, which: ArrayLike | slice) -> Wafers:
        """Return the wafers that indices, a mask or a slice pick.

        Examples
        --------
        >>> wafers = make_wafers(4, random_state=0)
        >>> wafers.select(wafers.wafer > 2).radii.shape
        (2, 25)
        """
        index = which if isinstance(which, slice) else np.asarray(which)
        return replace(
            self,
            spectra=self.spectra[index],
            radii=self.radii[index],
            wafer=self.wafer[index],
            label=self.label[index],
            parameters={name: values[index] for name, values in self.parameters.items()},
        )


class WaferBenchmark(NamedTuple):
    """The standard set: 1,375 normal wafers to train with, 500 to calibrate with, and 4,596 to test with."""

    train: Wafers
    calibration: Wafers
    test: Wafers


def make_wafer_benchmark(random_state: int | np.random.RandomState | None = 0) -> WaferBenchmark:
    """Simulate the standard set, which takes about five seconds of one core; always name the seed with a result.

    The test wafers come in the order of production: 3,000 normal ones, then 896 that drift, and among them, at random
    places, 100 of each of the seven anomalies.

    Examples
    --------
    >>> train, calibration, test = make_wafer_benchmark()  # doctest: +SKIP
    >>> train.spectra.shape, test.radii.shape  # doctest: +SKIP
    ((1375, 400), (4596, 25))
    """
    random = make_random_state("make_wafer_benchmark", random_state)
    train = make_wafers(1375, random_state=random)
    calibration = _renumber(make_wafers(500, random_state=random), first=1376)
    counts = {"normal": 3000, "drift": 896, **dict.fromkeys(WAFER_ANOMALIES, 100)}
    parts = [make_wafers(count, kind=kind, random_state=random) for kind, count in counts.items()]
    joined = _join(parts)
    n_regular = counts["normal"] + counts["drift"]
    order = np.empty(len(joined), dtype=np.int64)
    places = random.permutation(len(joined))
    order[np.sort(places[:n_regular])] = np.arange(n_regular)
    order[places[n_regular:]] = np.arange(n_regular, len(joined))
    return WaferBenchmark(train, calibration, _renumber(joined.select(order), first=1876))


def make_wafers(
    n_samples: int,
    *,
    kind: str = "normal",
    noise: float = 1.0,
    random_state: int | np.random.RandomState | None = None,
) -> Wafers:
    """Simulate wafers of one kind.

    Parameters
    ----------
    n_samples : int
    kind : str, default "normal"
        One of `WAFER_KINDS`: "normal"; "drift", an etch bias that grows from nothing to 6 nm over the rows, with a
        growing bow; "clogged", a hole pinched to a few nanometres at some depth; "under_etch", one that ends before the
        silicon; "footing", one much narrower or wider at the bottom; "mask_erosion", a worn mask and a flared top;
        "contamination", an absorbing residue over the mask; "angle_fault", an angle of incidence off by 0.5° to 1.5°;
        "saturation", a detector that clips the brightest wavelengths. The radii of the last three are those of normal
        wafers.
    noise : float, default 1
        Factor on the noise of the instrument; 0 for clean spectra.
    random_state : int, RandomState or None

    Returns
    -------
    Wafers

    Examples
    --------
    >>> wafers = make_wafers(3, random_state=0)
    >>> wafers.spectra.shape, wafers.radii.shape, wafers.label.tolist()
    ((3, 400), (3, 25), ['normal', 'normal', 'normal'])
    """
    check_count("make_wafers", "n_samples", n_samples)
    check_option("make_wafers", "kind", kind, WAFER_KINDS)
    check_positive("make_wafers", "noise", noise, or_zero=True)
    random = make_random_state("make_wafers", random_state)
    severity = np.linspace(0.0, 1.0, n_samples) if kind == "drift" else np.zeros(n_samples)
    settings = _draw_settings(random, n_samples, kind)
    profile = _draw_profiles(random, n_samples) + severity[:, None] * (6.0 + 2.0 * _bump(0.35, 0.13))
    limit = _LARGEST_SHARE_OF_PITCH * settings["pitch"][:, None]
    radii = np.clip(_deform(random, profile, kind), _SMALLEST_RADIUS, limit)
    return Wafers(
        spectra=_measure(random, radii, settings, noise=noise, saturated=kind == "saturation"),
        radii=radii,
        wafer=np.arange(1, n_samples + 1),
        label=np.full(n_samples, kind),
        wavelengths=_WAVELENGTHS.copy(),
        depths=_PLACES * _NOMINAL["film_thickness"],
        parameters={**settings, "severity": severity},
    )


def wafer_spectra(
    radii: ArrayLike,
    *,
    pitch: ArrayLike = 80.0,
    film_thickness: ArrayLike = 800.0,
    mask_thickness: ArrayLike = 30.0,
    residue_thickness: ArrayLike = 0.0,
    angle: ArrayLike = 65.0,
) -> Floats:
    """Return the spectra, without noise, of holes with given radii.

    Parameters
    ----------
    radii : array of shape (n, 25)
        Positive, at most half the pitch.
    pitch, film_thickness, mask_thickness, residue_thickness : number or array of shape (n,)
        In nanometres.
    angle : number or array of shape (n,)
        Of incidence, in degrees.

    Returns
    -------
    array of shape (n, 400)
        Ψ, then Δ, as in `Wafers`.

    Examples
    --------
    >>> wafer_spectra([[26.0] * 25]).shape
    (1, 400)
    """
    given = np.asarray(radii, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != _N_SLICES or len(given) == 0:
        raise argument_error("wafer_spectra", "radii", f"of shape (n, {_N_SLICES})", given.shape)
    settings: dict[str, Floats] = {}
    for name, value in zip(_NOMINAL, (pitch, film_thickness, mask_thickness, residue_thickness, angle), strict=True):
        values = np.asarray(value, dtype=np.float64)
        if values.shape not in ((), given.shape[:1]):
            raise argument_error("wafer_spectra", name, "a number or one for each row of radii", values.shape)
        settings[name] = np.broadcast_to(values, len(given))
    if not np.all((given > 0) & (given <= settings["pitch"][:, None] / 2)):
        got = f"radii from {given.min():g} to {given.max():g} nm"
        raise argument_error("wafer_spectra", "radii", "above 0 and at most half the pitch", got)
    return np.hstack(angles_from_ncs(*_simulate(given, settings)[0]))


# --- process ---


def _bump(centre: ArrayLike, width: ArrayLike) -> Floats:
    return np.exp(-0.5 * ((_PLACES - np.asarray(centre)) / np.asarray(width)) ** 2)


def _step(centre: ArrayLike, width: ArrayLike) -> Floats:
    """Return a step from 0 above a depth to 1 below it."""
    return 0.5 * (1 + np.tanh((_PLACES - np.asarray(centre)) / np.asarray(width)))


def _draw_profiles(random: np.random.RandomState, n: int) -> Floats:
    def draw_column(mean: float, deviation: float) -> Floats:
        return random.normal(mean, deviation, size=(n, 1))

    radius = draw_column(25.5, 2.2) - draw_column(7.0, 2.2) * (_PLACES - 0.5)
    radius = (
        radius
        + draw_column(2.5, 1.2) * _bump(draw_column(0.35, 0.07), 0.13)
        - draw_column(2.0, 0.9) * _bump(0.08, 0.06)
    )
    turns, phase = random.uniform(1, 2, size=(n, 1)), random.uniform(0, 1, size=(n, 1))
    radius = radius + draw_column(0.0, 0.8) * np.sin(2 * np.pi * (turns * _PLACES + phase))
    covariance = np.exp(-0.5 * ((_PLACES[:, None] - _PLACES) / 0.08) ** 2) + 1e-9 * np.eye(_N_SLICES)
    return radius + 0.5 * random.normal(size=(n, _N_SLICES)) @ np.linalg.cholesky(covariance).T


def _draw_settings(random: np.random.RandomState, n: int, kind: str) -> dict[str, Floats]:
    deviations = {"pitch": 0.3, "film_thickness": 12.0, "mask_thickness": 1.5, "residue_thickness": 0.0, "angle": 0.02}
    settings = {name: _NOMINAL[name] + deviations[name] * random.normal(size=n) for name in _NOMINAL}
    if kind == "mask_erosion":
        settings["mask_thickness"] = random.uniform(2, 15, size=n)
    elif kind == "contamination":
        settings["residue_thickness"] = random.uniform(2, 8, size=n)
    elif kind == "angle_fault":
        settings["angle"] = settings["angle"] + random.choice([-1.0, 1.0], size=n) * random.uniform(0.5, 1.5, size=n)
    return settings


def _deform(random: np.random.RandomState, radius: Floats, kind: str) -> Floats:
    n = (len(radius), 1)
    if kind == "clogged":
        left = random.uniform(2, 8, size=n)
        return left + (radius - left) * (
            1 - _bump(random.uniform(0.15, 0.85, size=n), random.uniform(0.05, 0.09, size=n))
        )
    if kind == "under_etch":
        left = random.uniform(1, 3, size=n)
        return left + (radius - left) * (1 - _step(random.uniform(0.6, 0.9, size=n), 0.04))
    if kind == "footing":
        change = random.choice([-1.0, 1.0], size=n) * random.uniform(6, 12, size=n)
        return radius + change * _step(random.uniform(0.8, 0.92, size=n), 0.04)
    if kind == "mask_erosion":
        return radius + random.uniform(5, 10, size=n) * np.exp(-_PLACES / random.uniform(0.08, 0.15, size=n))
    return radius


# --- measurement ---


def _measure(
    random: np.random.RandomState, radii: Floats, settings: dict[str, Floats], *, noise: float, saturated: bool
) -> Floats:
    (n, c, s), light = _simulate(radii, settings)
    counts = light * (0.15 + np.exp(-0.5 * ((_WAVELENGTHS - 550) / 220) ** 2))
    if saturated:
        # Clipping the peaks of a signal weakens its fourth harmonic (N, C) more than its second (S).
        brightest = random.randint(60, 120, size=(len(radii), 1))
        full = np.take_along_axis(np.sort(counts, axis=1), counts.shape[1] - brightest, axis=1)
        kept = np.minimum(1.0, full / counts)
        n, c, s = n * kept**2, c * kept**2, s * kept
    level = noise * _NOISE / np.sqrt(counts / 0.25)
    n, c, s = (value + level * random.normal(size=value.shape) for value in (n, c, s))
    return np.hstack(angles_from_ncs(n, c, s))


def _simulate(radii: Floats, settings: dict[str, Floats]) -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """Return N, C, S and the mean reflectance, computed in chunks."""
    parts: list[tuple[Floats, ...]] = []
    for start in range(0, len(radii), _CHUNK):
        some = slice(start, start + _CHUNK)
        r_s, r_p = _reflection(radii[some], {name: values[some, None] for name, values in settings.items()})
        parts.append((*ellipsometric_ncs(r_s, r_p), (np.abs(r_s) ** 2 + np.abs(r_p) ** 2) / 2))
    n, c, s, light = (np.concatenate(values) for values in zip(*parts, strict=True))
    return (n, c, s), light


def _reflection(radii: Floats, settings: dict[str, Floats]) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    void = 2 * np.pi * radii**2 / (np.sqrt(3) * settings["pitch"] ** 2)
    silica, nitride = silica_index(_WAVELENGTHS) ** 2, silicon_nitride_index(_WAVELENGTHS) ** 2
    # A carbonaceous residue: round numbers of a plausible size, not measured ones.
    residue = 1.6 + 0.25j * (400 / _WAVELENGTHS) ** 2
    mask = np.sqrt(maxwell_garnett(nitride, 1.0, void[:, :1], depolarization=0.5))
    film = [np.sqrt(maxwell_garnett(silica, 1.0, void[:, [j]], depolarization=0.5)) for j in range(_N_SLICES)]
    slices = [settings["film_thickness"] / _N_SLICES] * _N_SLICES
    return stack_reflection(
        [1.0, residue, mask, *film, silicon_index(_WAVELENGTHS)],
        [settings["residue_thickness"], settings["mask_thickness"], *slices],
        _WAVELENGTHS,
        settings["angle"],
    )


# --- tables ---


def _join(parts: list[Wafers]) -> Wafers:
    return replace(
        parts[0],
        spectra=np.concatenate([part.spectra for part in parts]),
        radii=np.concatenate([part.radii for part in parts]),
        wafer=np.concatenate([part.wafer for part in parts]),
        label=np.concatenate([part.label for part in parts]),
        parameters={name: np.concatenate([part.parameters[name] for part in parts]) for name in parts[0].parameters},
    )


def _renumber(wafers: Wafers, *, first: int) -> Wafers:
    return replace(wafers, wafer=np.arange(first, first + len(wafers)))
