"""Optics of flat layers: Fresnel coefficients, stacks of films, ellipsometry and mixtures.

Light of vacuum wavelength λ meets a stack of homogeneous, isotropic layers at an angle of incidence in degrees.
A refractive index is the complex number n + ik with k ≥ 0: the time factor is exp(−iωt), and absorption makes a wave
decay as exp(−2πkz/λ). Lengths share one unit. Everything broadcasts, so that one call serves any number of samples
(n, 1) and wavelengths (w,) at once; the only loop is over the layers. `materials` has refractive indices.

A stack is folded from the substrate upwards with Rouard's recursion (Airy's formula, layer by layer), the stable form
of the transfer-matrix method: it holds only factors exp(iβ) of magnitude at most one, so that thick absorbing layers
underflow to the truth where products of matrices overflow.

References
----------
Born and Wolf, Principles of Optics, 7th ed., §1.5 and §1.6. Azzam and Bashara, Ellipsometry and Polarized Light, 1977,
chapters 4 and 5. Sihvola, Electromagnetic Mixing Formulas and Applications, 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onsphere import InvalidInputError
from reproduction.arguments import Floats, argument_error

__all__ = [
    "Amplitudes",
    "Powers",
    "angles_from_ncs",
    "bruggeman",
    "ellipsometric_angles",
    "ellipsometric_ncs",
    "fresnel",
    "maxwell_garnett",
    "ncs_from_angles",
    "stack_amplitudes",
    "stack_powers",
    "stack_reflection",
]

Complexes = NDArray[np.complex128]


class Amplitudes(NamedTuple):
    """Reflected and transmitted fields over the incident one; s is across the plane of incidence, p in it."""

    r_s: Complexes
    r_p: Complexes
    t_s: Complexes
    t_p: Complexes


class Powers(NamedTuple):
    """Shares of the incident power."""

    reflectance_s: Floats
    reflectance_p: Floats
    transmittance_s: Floats
    transmittance_p: Floats
    absorptance_s: Floats
    absorptance_p: Floats


# --- interfaces and stacks ---


def fresnel(index_in: ArrayLike, index_out: ArrayLike, angle: ArrayLike) -> Amplitudes:
    """Return the Fresnel coefficients of one interface.

    At normal incidence r_p = −r_s, the convention of ellipsometry (Verdet's).

    Parameters
    ----------
    index_in, index_out : array of n + ik
        Before and behind the interface; the first must be real.
    angle : array of degrees in [0, 90)

    Examples
    --------
    >>> round(float(fresnel(1.0, 1.5, 0.0).r_s.real), 3)
    -0.2
    """
    return stack_amplitudes([index_in, index_out], [], 1.0, angle)


def stack_amplitudes(
    indices: Sequence[ArrayLike], thicknesses: Sequence[ArrayLike], wavelength: ArrayLike, angle: ArrayLike
) -> Amplitudes:
    """Return the fields that a stack of layers reflects and transmits.

    Parameters
    ----------
    indices : sequence of arrays of n + ik
        The ambient (real), the layers from top to bottom, the substrate.
    thicknesses : sequence of arrays
        One for each layer, two fewer than indices, in the unit of the wavelength.
    wavelength : array
        In vacuum.
    angle : array of degrees in [0, 90)
        Of incidence, in the ambient.

    Returns
    -------
    Amplitudes
        Four complex arrays, of the shape to which the arguments broadcast.

    Examples
    --------
    A quarter wave of index √n takes the reflection away.

    >>> response = stack_amplitudes([1.0, 1.5**0.5, 1.5], [600 / 4 / 1.5**0.5], 600.0, 0.0)
    >>> bool(abs(response.r_s) < 1e-12)
    True
    """
    media, permittivities, phases, normals = _prepare(indices, thicknesses, wavelength, angle)
    r_s, r_p = _interface(permittivities, normals, -2)
    t_s, t_p = _transmission(media, normals, -2)
    for layer in range(len(phases) - 1, -1, -1):
        once = np.exp(1j * phases[layer])
        interface_s, interface_p = _interface(permittivities, normals, layer)
        through_s, through_p = _transmission(media, normals, layer)
        echo_s, echo_p = r_s * once**2, r_p * once**2
        t_s = through_s * t_s * once / (1 + interface_s * echo_s)
        t_p = through_p * t_p * once / (1 + interface_p * echo_p)
        r_s, r_p = _fold(interface_s, echo_s), _fold(interface_p, echo_p)
    return Amplitudes(*np.broadcast_arrays(r_s, r_p, t_s, t_p))


def stack_powers(
    indices: Sequence[ArrayLike], thicknesses: Sequence[ArrayLike], wavelength: ArrayLike, angle: ArrayLike
) -> Powers:
    """Return the reflectance, transmittance and absorptance of a stack.

    Parameters are those of `stack_amplitudes`. The transmittance is the power that enters the substrate; the
    absorptance, what the layers between keep.

    Examples
    --------
    >>> powers = stack_powers([1.0, 2 + 0.5j, 1.5], [40.0], 500.0, 60.0)
    >>> bool(powers.absorptance_p > 0)
    True
    """
    r_s, r_p, t_s, t_p = stack_amplitudes(indices, thicknesses, wavelength, angle)
    media, _, _, normals = _prepare([indices[0], indices[-1]], [], wavelength, angle)
    reflectance_s, reflectance_p = np.abs(r_s) ** 2, np.abs(r_p) ** 2
    transmittance_s = np.abs(t_s) ** 2 * normals[1].real / normals[0].real
    flow = [(index * np.conj(normal / index)).real for index, normal in zip(media, normals, strict=True)]
    transmittance_p = np.abs(t_p) ** 2 * flow[1] / flow[0]
    absorptance_s = 1 - reflectance_s - transmittance_s
    absorptance_p = 1 - reflectance_p - transmittance_p
    return Powers(reflectance_s, reflectance_p, transmittance_s, transmittance_p, absorptance_s, absorptance_p)


def stack_reflection(
    indices: Sequence[ArrayLike], thicknesses: Sequence[ArrayLike], wavelength: ArrayLike, angle: ArrayLike
) -> tuple[Complexes, Complexes]:
    """Return r_s and r_p of `stack_amplitudes`, in half the time."""
    _, permittivities, phases, normals = _prepare(indices, thicknesses, wavelength, angle)
    r_s, r_p = _interface(permittivities, normals, -2)
    for layer in range(len(phases) - 1, -1, -1):
        twice = np.exp(2j * phases[layer])
        interface_s, interface_p = _interface(permittivities, normals, layer)
        r_s, r_p = _fold(interface_s, r_s * twice), _fold(interface_p, r_p * twice)
    return r_s, r_p


def _fold(interface: Complexes, echo: Complexes) -> Complexes:
    """Return the reflection of an interface with something behind it that echoes (Airy)."""
    return (interface + echo) / (1 + interface * echo)


def _interface(permittivities: list[Complexes], normals: list[Complexes], above: int) -> tuple[Complexes, Complexes]:
    q_above, q_below = normals[above], normals[above + 1]
    across, along = permittivities[above + 1] * q_above, permittivities[above] * q_below
    return (q_above - q_below) / (q_above + q_below), (across - along) / (across + along)


def _transmission(indices: list[Complexes], normals: list[Complexes], above: int) -> tuple[Complexes, Complexes]:
    q_above, q_below = normals[above], normals[above + 1]
    n_above, n_below = indices[above], indices[above + 1]
    twice = 2 * q_above
    return twice / (q_above + q_below), n_above * n_below * twice / (n_below**2 * q_above + n_above**2 * q_below)


def _prepare(
    indices: Sequence[ArrayLike], thicknesses: Sequence[ArrayLike], wavelength: ArrayLike, angle: ArrayLike
) -> tuple[list[Complexes], list[Complexes], list[Complexes], list[Complexes]]:
    """Check the arguments; return indices, their squares, the phase of one pass of each layer, and q = n cos θ."""
    if len(indices) < 2 or len(thicknesses) != len(indices) - 2:
        raise InvalidInputError(
            "Expected the indices of an ambient, of the layers and of a substrate, and one thickness for each layer. "
            f"Got {len(indices)} indices and {len(thicknesses)} thicknesses. Leave ambient and substrate without one."
        )
    media = [_check_index(index) for index in indices]
    lengths = [_check_real("thicknesses", thickness, above=0.0, closed=True) for thickness in thicknesses]
    waves = _check_real("wavelength", wavelength, above=0.0)
    degrees = _check_real("angle", angle, above=0.0, below=90.0, closed=True)
    if np.any(media[0].imag > 0) or np.any(media[0].real <= 0):
        raise argument_error(
            "a stack", "indices", "real and above 0 in the ambient, where light comes from", indices[0]
        )
    try:
        np.broadcast_shapes(*(array.shape for array in (*media, *lengths, waves, degrees)))
    except ValueError:
        shapes = sorted({array.shape for array in (*media, *lengths, waves, degrees)})
        raise InvalidInputError(
            f"Expected indices, thicknesses, wavelength and angle that broadcast together. Got the shapes {shapes}. "
            "Give samples an axis before that of the wavelengths, as in (n, 1) and (w,)."
        ) from None
    tangential = (media[0] * np.sin(np.radians(degrees))) ** 2
    permittivities: list[Complexes] = [index**2 for index in media]
    normals: list[Complexes] = [np.sqrt(permittivity - tangential) for permittivity in permittivities]
    numbers = 2 * np.pi / waves
    phases = [numbers * length * normal for length, normal in zip(lengths, normals[1:-1], strict=True)]
    return media, permittivities, phases, normals


def _check_index(value: ArrayLike) -> Complexes:
    index = np.asarray(value, dtype=np.complex128)
    lowest = min(index.real.min(initial=0.0), index.imag.min(initial=0.0))
    if not np.isfinite(index).all() or lowest < -1e-12 * np.abs(index).max(initial=0.0):
        raise argument_error(
            "a stack", "indices", "finite n + ik with n and k at least 0 (conjugate those of n − ik)", _summarize(index)
        )
    # Rounding errors of mixtures are put right, and negative zeros, which would make a decaying wave grow.
    return index + 0.0 if lowest == 0 else np.maximum(index.real, 0.0) + 1j * np.maximum(index.imag, 0.0)


def _check_real(name: str, value: ArrayLike, *, above: float, below: float = np.inf, closed: bool = False) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    enough = array >= above if closed else array > above
    if not np.all(np.isfinite(array) & enough & (array < below)):
        bounds = f"{'[' if closed else '('}{above:g}, {below:g})"
        raise argument_error("a stack", name, f"finite numbers in {bounds}", _summarize(array))
    return array


def _summarize(array: NDArray[Any]) -> object:
    """Return a number as it is, and an array by its extremes, to keep messages short."""
    return array.item() if array.ndim == 0 else f"{array.size} values from {array.min():g} to {array.max():g}"


# --- ellipsometry ---


def ellipsometric_ncs(r_s: ArrayLike, r_p: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return N = cos 2Ψ, C = sin 2Ψ cos Δ and S = sin 2Ψ sin Δ.

    This is what a rotating-compensator ellipsometer measures.

    Ψ and Δ follow the convention of ellipsometry, tan Ψ exp(iΔ) = r_p/r_s with the time factor exp(+iωt), so that S is
    positive for a thin transparent film on silicon. Where nothing is reflected they are NaN.

    Examples
    --------
    >>> N, C, S = ellipsometric_ncs(*stack_reflection([1.0, 1.46, 3.9 + 0.02j], [10.0], 630.0, 70.0))
    >>> round(float(N**2 + C**2 + S**2), 12), bool(S > 0)
    (1.0, True)
    """
    s, p = np.asarray(r_s, dtype=np.complex128), np.asarray(r_p, dtype=np.complex128)
    power_s, power_p, product = np.abs(s) ** 2, np.abs(p) ** 2, p * np.conj(s)
    with np.errstate(invalid="ignore"):
        total = np.divide(1.0, power_s + power_p, out=np.full(product.shape, np.nan), where=power_s + power_p > 0)
    return (power_s - power_p) * total, 2 * product.real * total, -2 * product.imag * total


def ellipsometric_angles(r_s: ArrayLike, r_p: ArrayLike) -> tuple[Floats, Floats]:
    """Return Ψ in [0, 90] and Δ in [0, 360), in degrees, in the convention of `ellipsometric_ncs`.

    Examples
    --------
    At normal incidence s and p are the same.

    >>> psi, delta = ellipsometric_angles(*stack_reflection([1.0, 1.5], [], 500.0, 0.0))
    >>> round(float(psi), 9), round(float(delta), 9)
    (45.0, 180.0)
    """
    return angles_from_ncs(*ellipsometric_ncs(r_s, r_p))


def angles_from_ncs(N: ArrayLike, C: ArrayLike, S: ArrayLike) -> tuple[Floats, Floats]:
    """Return Ψ in [0, 90] and Δ in [0, 360), in degrees; measured N² + C² + S² need not be exactly 1.

    Examples
    --------
    >>> psi, delta = angles_from_ncs(0.0, 0.0, 1.0)
    >>> float(psi), float(delta)
    (45.0, 90.0)
    """
    n, c, s = (np.asarray(value, dtype=np.float64) for value in (N, C, S))
    delta = np.mod(np.degrees(np.arctan2(s, c)), 360.0)
    # A rounding error below 0 would come out as 360.
    return np.degrees(np.arctan2(np.hypot(c, s), n)) / 2, np.where(delta == 360.0, 0.0, delta)


def ncs_from_angles(psi: ArrayLike, delta: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return N, C and S of Ψ and Δ in degrees.

    Examples
    --------
    >>> [round(float(value), 3) for value in ncs_from_angles(45.0, 90.0)]
    [0.0, 0.0, 1.0]
    """
    twice, phase = 2 * np.radians(np.asarray(psi, dtype=np.float64)), np.radians(np.asarray(delta, dtype=np.float64))
    return np.cos(twice), np.sin(twice) * np.cos(phase), np.sin(twice) * np.sin(phase)


# --- mixtures ---


def bruggeman(
    permittivity_a: ArrayLike, permittivity_b: ArrayLike, fraction_a: ArrayLike, *, depolarization: float = 1 / 3
) -> Complexes:
    """Return the permittivity (n + ik)² of a mixture in which neither component is the host.

    It solves Σ f (ε_j − ε)/(ε + L(ε_j − ε)) = 0 in closed form. With z = ε_a/ε_b and ε = √(ε_a ε_b) v the equation is
    (1 − L) v² − βv − L = 0, and the root in the right half-plane is the one that runs from 1/√z to √z as f goes from 0
    to 1: the discriminant β² + 4L(1 − L) never meets the branch cut of the square root, unless z is negative.

    Parameters
    ----------
    permittivity_a, permittivity_b : arrays of (n + ik)²
    fraction_a : array in [0, 1]
        Share of the volume.
    depolarization : float in (0, 1), default 1/3
        L: 1/3 for spheres, 1/2 for cylinders across the field.

    Examples
    --------
    >>> [round(float(bruggeman(1.0, 2.25, fraction).real), 4) for fraction in (0.0, 0.5, 1.0)]
    [2.25, 1.542, 1.0]
    """
    a, b, f = _check_mixture("bruggeman", permittivity_a, permittivity_b, fraction_a, depolarization)
    factor = depolarization
    ratio = np.sqrt(a / b)
    slope = f * ((1 - factor) * ratio - factor / ratio) + (1 - f) * ((1 - factor) / ratio - factor * ratio)
    root = (slope + np.sqrt(slope**2 + 4 * factor * (1 - factor))) / (2 * (1 - factor))
    return ratio * b * root


def maxwell_garnett(
    host: ArrayLike, inclusion: ArrayLike, fraction: ArrayLike, *, depolarization: float = 1 / 3
) -> Complexes:
    """Return the permittivity (n + ik)² of separate inclusions in a host.

    Parameters
    ----------
    host, inclusion : arrays of (n + ik)²
    fraction : array in [0, 1]
        Share of the volume that is inclusion.
    depolarization : float in (0, 1), default 1/3
        1/3 for spheres; 1/2 for cylinders across the field, which is Rayleigh's formula (1892) to first order.

    Examples
    --------
    >>> float(maxwell_garnett(2.25, 1.0, 0.0).real), float(maxwell_garnett(2.25, 1.0, 1.0).real)
    (2.25, 1.0)
    """
    medium, guest, f = _check_mixture("maxwell_garnett", host, inclusion, fraction, depolarization)
    contrast = guest - medium
    return medium * (1 + f * contrast / (medium + depolarization * (1 - f) * contrast))


def _check_mixture(function: str, one: ArrayLike, other: ArrayLike, fraction: ArrayLike, depolarization: float) -> Any:
    if not 0 < depolarization < 1:
        raise argument_error(function, "depolarization", "a float in (0, 1)", depolarization)
    share = np.asarray(fraction, dtype=np.float64)
    if not np.all((share >= 0) & (share <= 1)):
        raise argument_error(function, "fraction", "shares of the volume in [0, 1]", _summarize(share))
    return np.asarray(one, dtype=np.complex128), np.asarray(other, dtype=np.complex128), share
