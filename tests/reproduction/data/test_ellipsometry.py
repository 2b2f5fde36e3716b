"""Real spectra: small files made here, and the physics on the real ones where they are."""

import numpy as np
import pytest
from scipy.integrate import trapezoid

from onsphere import InvalidInputError
from reproduction.data import bruggeman, ellipsometric_ncs, load_ellipsometry, stack_reflection

HEADER = "X (cm),Y (cm),Unweighted Error,Surface Layer Thickness,a-SiH Thickness,Amp,Br,Eo,Eg,Ep"
TABLES = ("nk_Si_JAW.csv", "nk_NTVE_JAW.csv", "nk_Void.csv")


@pytest.fixture
def folder(tmp_path):
    """Two spectra at three energies, in the layout of the source."""
    base = tmp_path / "ellipsometry"
    base.mkdir()
    arrays = {
        "ncs": np.arange(18, dtype=np.float32).reshape(2, 3, 3) / 20,
        "energy_eV": np.array([4.0, 3.0, 2.0]),
        "sample": np.array(["A", "B"]),
    }
    np.savez(base / "spectra_ncs.npz", **arrays)
    rows = ["1,2,3,4,5,6,7,8,9,10", "11,12,13,14,15,16,17,18,19,20"]
    (base / "fit_params_Surface_Layer.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    for number, name in enumerate(TABLES):
        # the columns are found by name: one table has them in another order
        lines = ["Energy (eV),k,Wavelength (nm),n"] + [f"{9 - i},{i},{300 + i},{number + i}" for i in range(3)]
        (base / name).write_text("\n".join(lines))
    return tmp_path


def test_all_parts_are_read(folder):
    spectra = load_ellipsometry(folder=folder)
    assert spectra.ncs.shape == (2, 3, 3)
    assert spectra.ncs.dtype == np.float64
    assert spectra.ncs[1, 2, 0] == pytest.approx(15 / 20)
    assert spectra.energies.tolist() == [4, 3, 2]
    assert spectra.wavelengths.tolist() == [300, 301, 302]
    assert spectra.sample.tolist() == ["A", "B"]
    assert spectra.parameters["film_thickness"].tolist() == [5, 15]
    assert spectra.parameters["transition"].tolist() == [10, 20]
    assert len(spectra.parameters) == 10
    assert spectra.indices["silicon"].tolist() == [0, 1 + 1j, 2 + 2j]
    assert spectra.indices["native_oxide"].tolist() == [1, 2 + 1j, 3 + 2j]
    assert set(spectra.indices) == {"silicon", "native_oxide", "void"}


def test_the_folder_comes_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv("ONSPHERE_DATA", str(folder))
    assert len(load_ellipsometry().ncs) == 2


@pytest.mark.parametrize("name", ["spectra_ncs.npz", "fit_params_Surface_Layer.csv", *TABLES])
def test_missing_and_broken_files_are_named(folder, name):
    path = folder / "ellipsometry" / name
    whole = path.read_bytes()
    for content in (
        b"",
        whole[: len(whole) // 2],
        whole[:-2] if name.endswith("npz") else b"\xff" + whole,
        b"a,b\n1,2\n",
        b"<!DOCTYPE html>",
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"Make the file again") as caught:
            load_ellipsometry(folder=folder)
        assert str(path) in str(caught.value)
        assert "pickle" not in str(caught.value)
    path.unlink()
    with pytest.raises(InvalidInputError, match=rf"Got no such file.*ANN-Spectroscopic-Ellipsometry.* in {folder}\."):
        load_ellipsometry(folder=folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"ncs": np.zeros((2, 3, 4))},
        {"ncs": np.zeros((2, 2, 3))},
        {"ncs": np.zeros((6, 3))},
        {"ncs": np.zeros((2, 3, 3), dtype=int)},
        {"sample": np.array(["A"])},
        {"sample": np.array([1, 2])},
        {"energy_eV": np.array(["a", "b", "c"])},
        {"sample": np.array([{}, {}], dtype=object)},
    ],
)
def test_arrays_that_do_not_fit_are_named(folder, changes):
    """The last holds a pickle, which is not opened."""
    path = folder / "ellipsometry" / "spectra_ncs.npz"
    with np.load(path) as content:
        arrays = {**content, **changes}
    np.savez(path, **arrays)
    with pytest.raises(InvalidInputError, match="with ncs of shape"):
        load_ellipsometry(folder=folder)


@pytest.mark.parametrize("text", [f"{HEADER}\n" + "1," * 9 + "2\n", f"{HEADER}\n" + ("1," * 9 + "nan\n") * 2, HEADER])
def test_tables_that_do_not_fit_are_named(folder, text):
    (folder / "ellipsometry" / "fit_params_Surface_Layer.csv").write_text(text)
    with pytest.raises(InvalidInputError, match="and 2 rows of finite numbers"):
        load_ellipsometry(folder=folder)


# --- the real spectra ---


@pytest.fixture(scope="module")
def real():
    try:
        return load_ellipsometry()
    except InvalidInputError as missing:
        pytest.skip(str(missing))


def test_the_real_set_has_its_published_size(real):
    assert real.ncs.shape == (243, 3, 697)
    assert {name: int((real.sample == name).sum()) for name in np.unique(real.sample)} == {
        "MV1519": 81,
        "MV1523": 81,
        "MV1530": 81,
    }
    np.testing.assert_allclose((real.ncs**2).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(real.wavelengths * real.energies, 1239.842, rtol=2e-4)


def absorption(energy, amplitude, broadening, resonance, gap, transition):
    """Imaginary part of Cody and Lorentz: an oscillator that sets in with the square of the energy above the gap."""
    oscillator = amplitude * resonance * broadening * energy
    oscillator = oscillator / ((energy**2 - resonance**2) ** 2 + (broadening * energy) ** 2)
    above = np.maximum(energy - gap, 0.0) ** 2
    return oscillator * above / (above + transition**2)


def film_permittivity(energies, **oscillator):
    """1 + i·absorption and, from Kramers and Kronig, the dispersion; the pole is subtracted and integrated by hand."""
    gap, end = oscillator["gap"], 2000.0
    grid = np.concatenate([np.linspace(gap, 12, 6001)[:-1], np.geomspace(12, end, 4001)])
    there = absorption(energies, **oscillator)
    difference = grid**2 - energies[:, None] ** 2
    rest = (grid * absorption(grid, **oscillator) - (energies * there)[:, None]) / np.where(
        difference == 0, np.inf, difference
    )
    pole = np.log(np.abs((end - energies) / (end + energies))) - np.log(np.abs((gap - energies) / (gap + energies)))
    return 1 + 2 / np.pi * (trapezoid(rest, grid, axis=1) + there / 2 * pole) + 1j * there


def model_spectra(real, row, substrate):
    names = ("amplitude", "broadening", "resonance", "gap", "transition")
    film = film_permittivity(real.energies, **{name: real.parameters[name][row] for name in names})
    surface = np.sqrt(bruggeman(1.0, film, 0.5))
    lengths = [real.parameters["surface_thickness"][row], real.parameters["film_thickness"][row]]
    if substrate == "silicon":
        below, more = [real.indices["native_oxide"], real.indices["silicon"]], [1.7]
    else:
        below, more = [1.52], []
    reflected = stack_reflection([1.0, surface, np.sqrt(film), *below], [*lengths, *more], real.wavelengths, 64.93)
    return np.stack(ellipsometric_ncs(*reflected))


@pytest.mark.parametrize("sample", ["MV1519", "MV1523"])
def test_optics_repeats_real_spectra_on_silicon(real, sample):
    """As close as the published fits, with one angle and one oxide for all, within 5 % of their error."""
    rows = np.flatnonzero(real.sample == sample)[::16]
    for row in rows:
        left = np.sqrt(np.mean((model_spectra(real, row, "silicon") - real.ncs[row]) ** 2))
        assert left < 0.004
        assert left < 1.05 * real.parameters["error"][row]


def test_optics_repeats_real_spectra_on_glass_where_the_film_hides_it(real):
    """No table of this glass comes with the data; below 380 nm the film is opaque and hides the substrate."""
    hidden = real.wavelengths < 380
    for row in np.flatnonzero(real.sample == "MV1530")[::16]:
        left = model_spectra(real, row, "glass")[:, hidden] - real.ncs[row][:, hidden]
        assert np.sqrt(np.mean(left**2)) < 0.006
