"""Real ellipsometric spectra of amorphous silicon films, with the parameters that a physicist's model was fitted to.

They come with the repository ANN-Spectroscopic-Ellipsometry on GitHub: 81 places on each of three samples of
hydrogenated amorphous silicon (a-Si:H), two on oxidised silicon wafers (MV1519, MV1523), one on soda-lime glass
(MV1530). Rows of one sample are similar; split by sample, never at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reproduction.arguments import Floats
from reproduction.data.files import advise, broken_file_error, read_npz, require_file, resolve_folder

__all__ = ["EllipsometrySpectra", "load_ellipsometry"]

_SOURCE = "the folder 'ellipsometry', with data of the repository ANN-Spectroscopic-Ellipsometry on GitHub,"
_PARAMETERS = {
    "X (cm)": "x",
    "Y (cm)": "y",
    "Unweighted Error": "error",
    "Surface Layer Thickness": "surface_thickness",
    "a-SiH Thickness": "film_thickness",
    "Amp": "amplitude",
    "Br": "broadening",
    "Eo": "resonance",
    "Eg": "gap",
    "Ep": "transition",
}
_ADVICE = "Make the file again from its source."
_SPECTRA, _FITTED = "spectra_ncs.npz", "fit_params_Surface_Layer.csv"
_MATERIALS = {"silicon": "nk_Si_JAW.csv", "native_oxide": "nk_NTVE_JAW.csv", "void": "nk_Void.csv"}


@dataclass(frozen=True)
class EllipsometrySpectra:
    """Measured spectra, one per row.

    Attributes
    ----------
    ncs : array of shape (n, 3, w)
        N = cos 2Ψ, C = sin 2Ψ cos Δ and S = sin 2Ψ sin Δ, as in `optics.ellipsometric_ncs`.
    energies : array of shape (w,)
        Of the photons, in electronvolts, descending.
    wavelengths : array of shape (w,)
        In vacuum, in nanometres.
    sample : array of str of shape (n,)
    parameters : dict of arrays of shape (n,)
        `x` and `y` on the sample (cm); `error`, the root mean square that the fit left; `surface_thickness` and
        `film_thickness` (nm); `amplitude`, `broadening`, `resonance`, `gap` and `transition` (eV), the Cody-Lorentz
        oscillator of the film (Ferlauto et al., J. Appl. Phys. 92, 2424, 2002). The surface is film and void in equal
        parts.
    indices : dict of complex arrays of shape (w,)
        n + ik of `silicon`, `native_oxide` (Herzinger et al., J. Appl. Phys. 83, 3323, 1998) and `void`.
    """

    ncs: Floats
    energies: Floats
    wavelengths: Floats
    sample: NDArray[np.str_]
    parameters: dict[str, Floats]
    indices: dict[str, NDArray[np.complex128]]


def load_ellipsometry(*, folder: str | Path | None = None) -> EllipsometrySpectra:
    """Read the 243 spectra, their fitted parameters and the optical constants.

    With the fitted parameters and one angle of incidence (64.93°) and oxide (1.7 nm) for all, `optics` repeats the 162
    spectra on silicon to a root mean square of 0.0023 in N, C and S, 1.00 times what the fits left (at most 1.03).

    Parameters
    ----------
    folder : path, optional
        Holds `ellipsometry/spectra_ncs.npz`, `fit_params_Surface_Layer.csv` and the tables `nk_*.csv`; by default
        `data_folder()`.

    Returns
    -------
    EllipsometrySpectra
    """
    base = resolve_folder(folder) / "ellipsometry"
    for file in (_SPECTRA, _FITTED, *_MATERIALS.values()):
        require_file(base / file, advise(_SOURCE, folder))
    ncs, energies, sample = _read_spectra(base / _SPECTRA)
    fitted = _read_table(base / _FITTED, list(_PARAMETERS), len(ncs))
    tables = {
        name: _read_table(base / file, ["Wavelength (nm)", "n", "k"], len(energies))
        for name, file in _MATERIALS.items()
    }
    return EllipsometrySpectra(
        ncs=ncs,
        energies=energies,
        wavelengths=tables["silicon"]["Wavelength (nm)"],
        sample=sample,
        parameters={name: fitted[column] for column, name in _PARAMETERS.items()},
        indices={name: table["n"] + 1j * table["k"] for name, table in tables.items()},
    )


def _read_spectra(path: Path) -> tuple[Floats, Floats, NDArray[np.str_]]:
    expected = "an .npz file with ncs of shape (n, 3, w), energy_eV of shape (w,) and sample of shape (n,)"
    try:
        ncs, energies, sample = read_npz(path, "ncs", "energy_eV", "sample")
    except Exception as error:  # numpy and zipfile raise many kinds
        raise broken_file_error(path, expected, error, advice=_ADVICE) from None
    fits = ncs.ndim == 3 and ncs.shape[1:] == (3, *energies.shape) and sample.shape == ncs.shape[:1]
    if not fits or ncs.dtype.kind != "f" or energies.dtype.kind != "f" or sample.dtype.kind != "U":
        got = f"ncs {ncs.dtype} {ncs.shape}, energy_eV {energies.dtype} {energies.shape}, sample {sample.shape}"
        raise broken_file_error(path, expected, got, advice=_ADVICE)
    return ncs.astype(np.float64), energies.astype(np.float64), sample


def _read_table(path: Path, columns: list[str], n_rows: int) -> dict[str, Floats]:
    """Read columns of a CSV file by the names in its first line."""
    expected = f"a CSV file with the columns {', '.join(columns)} and {n_rows} rows of finite numbers"
    try:
        names, *rows = path.read_text(encoding="utf-8-sig").splitlines() or [""]
        order = [names.split(",").index(name) for name in columns]
        if len(rows) != n_rows:
            raise ValueError(f"{len(rows)} rows")
        values = np.loadtxt(rows, delimiter=",", ndmin=2, usecols=order)
        if not np.isfinite(values).all():
            raise ValueError("values that are not finite")
    except ValueError as error:  # also a missing column, a word among numbers, bytes that are no text
        raise broken_file_error(path, expected, str(error), advice=_ADVICE) from None
    return dict(zip(columns, values.T, strict=True))
