"""Optics: conservation laws, limits that textbooks give, and agreement with an independent program."""

import numpy as np
import pytest
import tmm
from hypothesis import assume, given
from hypothesis import strategies as st

from onsphere import InvalidInputError
from reproduction.data import (
    angles_from_ncs,
    bruggeman,
    cauchy_index,
    ellipsometric_angles,
    ellipsometric_ncs,
    fresnel,
    load_ellipsometry,
    maxwell_garnett,
    ncs_from_angles,
    silica_index,
    silicon_index,
    silicon_nitride_index,
    stack_amplitudes,
    stack_powers,
    stack_reflection,
)

dielectrics = st.floats(1.0, 4.0)
absorbers = st.builds(complex, st.floats(0.2, 5.0), st.floats(0.0, 5.0))
angles = st.floats(0.0, 85.0)
thicknesses = st.floats(0.0, 800.0)


def stacks(indices):
    return st.integers(0, 5).flatmap(
        lambda n: st.tuples(
            st.lists(indices, min_size=n + 1, max_size=n + 1), st.lists(thicknesses, min_size=n, max_size=n)
        )
    )


# --- against an independent program ---


@pytest.mark.parametrize("ambient", [1.0, 1.7])
def test_stacks_agree_with_tmm(ambient):
    random = np.random.default_rng(0)
    for _ in range(150):
        n_layers = random.integers(0, 6)
        absorption = random.uniform(0, 5, n_layers + 1) * random.integers(0, 2, n_layers + 1)
        indices = [ambient, *(random.uniform(0.3, 5, n_layers + 1) + 1j * absorption)]
        lengths, wavelength, angle = random.uniform(0, 300, n_layers), random.uniform(200, 1500), random.uniform(0, 89)
        ours, powers = (
            stack_amplitudes(indices, lengths, wavelength, angle),
            stack_powers(indices, lengths, wavelength, angle),
        )
        for letter in "sp":
            theirs = tmm.coh_tmm(letter, indices, [np.inf, *lengths, np.inf], np.radians(angle), wavelength)
            assert getattr(ours, f"r_{letter}") == pytest.approx(theirs["r"], abs=1e-9)
            assert getattr(ours, f"t_{letter}") == pytest.approx(theirs["t"], abs=1e-9)
            assert getattr(powers, f"reflectance_{letter}") == pytest.approx(theirs["R"], abs=1e-9)
            assert getattr(powers, f"transmittance_{letter}") == pytest.approx(theirs["T"], abs=1e-9)


def test_many_samples_at_once_are_each_alone():
    random = np.random.default_rng(1)
    waves = np.linspace(300, 900, 7)
    film = random.uniform(1.2, 2, size=(5, 1)) + 0.1j * random.uniform(size=(5, 7))
    lengths, angle = random.uniform(10, 200, size=(5, 1)), random.uniform(50, 75, size=(5, 1))
    together = stack_amplitudes([1.0, film, 1.5, silicon_index(waves)], [lengths, 30.0], waves, angle)
    for row in range(5):
        for column, wave in enumerate(waves):
            alone = stack_amplitudes(
                [1.0, film[row, column], 1.5, silicon_index(wave)], [lengths[row, 0], 30.0], wave, angle[row, 0]
            )
            for ours, single in zip(together, alone, strict=True):
                assert ours.shape == (5, 7)
                assert ours[row, column] == pytest.approx(single, abs=1e-13)


@given(stacks(absorbers), angles)
def test_reflection_alone_is_that_of_the_amplitudes(stack, angle):
    indices, lengths = stack
    full = stack_amplitudes([1.0, *indices], lengths, 500.0, angle)
    np.testing.assert_allclose(stack_reflection([1.0, *indices], lengths, 500.0, angle), full[:2], rtol=0, atol=1e-12)


# --- energy ---


@given(stacks(dielectrics), angles)
def test_what_is_not_reflected_passes_where_nothing_absorbs(stack, angle):
    indices, lengths = stack
    powers = stack_powers([1.0, *indices], lengths, 500.0, angle)
    assert powers.reflectance_s + powers.transmittance_s == pytest.approx(1, abs=1e-9)
    assert powers.reflectance_p + powers.transmittance_p == pytest.approx(1, abs=1e-9)
    assert abs(powers.absorptance_s) < 1e-9


@given(stacks(absorbers), angles)
def test_absorbing_layers_never_give_power(stack, angle):
    indices, lengths = stack
    powers = stack_powers([1.0, *indices], lengths, 500.0, angle)
    for letter in "sp":
        shares = [getattr(powers, f"{name}_{letter}") for name in ("reflectance", "transmittance", "absorptance")]
        assert min(shares) > -1e-9
        assert sum(shares) == pytest.approx(1)


def test_absorbed_power_follows_beer_and_lambert():
    """Far into a matched medium the absorbed share is 1 − exp(−4πkd/λ)."""
    powers = stack_powers([1.0, 1 + 0.001j, 1.0], [20_000.0], 500.0, 0.0)
    assert powers.absorptance_s == pytest.approx(1 - np.exp(-4 * np.pi * 0.001 * 20_000 / 500), abs=1e-5)


# --- limits ---


@given(dielectrics, dielectrics, angles)
def test_one_interface_follows_fresnel(index_in, index_out, angle):
    """Written with Snell's angles, for real indices and no total reflection."""
    sine = index_in * np.sin(np.radians(angle)) / index_out
    if sine > 0.999:
        return
    first, second = np.radians(angle), np.arcsin(sine)
    a, b = np.cos(first), np.cos(second)
    ours = fresnel(index_in, index_out, angle)
    s_sum, p_sum = index_in * a + index_out * b, index_out * a + index_in * b
    assert ours.r_s == pytest.approx((index_in * a - index_out * b) / s_sum, abs=1e-9)
    assert ours.r_p == pytest.approx((index_out * a - index_in * b) / p_sum, abs=1e-9)
    assert ours.t_s == pytest.approx(2 * index_in * a / s_sum, rel=1e-9)
    assert ours.t_p == pytest.approx(2 * index_in * a / p_sum, rel=1e-9)


@given(absorbers, absorbers, angles, st.integers(1, 4))
def test_layers_without_thickness_are_not_there(film, substrate, angle, n_layers):
    ours = stack_amplitudes([1.0, *[film] * n_layers, substrate], [0.0] * n_layers, 500.0, angle)
    np.testing.assert_allclose(ours, fresnel(1.0, substrate, angle), atol=1e-9)


@given(dielectrics, absorbers, angles, st.floats(0, 200))
def test_a_layer_like_its_neighbour_is_not_there(film, substrate, angle, length):
    bare, below = fresnel(1.0, substrate, angle), stack_amplitudes([1.0, substrate, substrate], [length], 500.0, angle)
    np.testing.assert_allclose(below[:2], bare[:2], atol=1e-9)
    above = stack_amplitudes([1.0, 1.0, substrate], [length], 500.0, angle)
    np.testing.assert_allclose(np.abs(above), np.abs(bare), atol=1e-9)
    split = stack_amplitudes([1.0, film, film, substrate], [length / 3, 2 * length / 3], 500.0, angle)
    np.testing.assert_allclose(split, stack_amplitudes([1.0, film, substrate], [length], 500.0, angle), atol=1e-9)


@given(dielectrics)
def test_no_p_light_is_reflected_at_brewsters_angle(index):
    assert abs(fresnel(1.0, index, np.degrees(np.arctan(index))).r_p) < 1e-12


@given(st.floats(1.1, 4.0))
def test_a_quarter_wave_of_the_root_takes_the_reflection_away(index):
    film = np.sqrt(index)
    ours = stack_powers([1.0, film, index], [550 / 4 / film], 550.0, 0.0)
    assert ours.reflectance_s < 1e-24
    assert ours.reflectance_p < 1e-24


@given(dielectrics, absorbers)
def test_a_half_wave_changes_no_reflection(film, substrate):
    ours = stack_amplitudes([1.0, film, substrate], [550 / 2 / film], 550.0, 0.0)
    np.testing.assert_allclose(ours[:2], fresnel(1.0, substrate, 0.0)[:2], atol=1e-9)


@given(st.floats(1.4, 3.0), st.floats(0.01, 0.99))
def test_beyond_the_critical_angle_all_is_reflected(index, place):
    critical = np.degrees(np.arcsin(1 / index))
    angle = critical + place * (89.9 - critical)
    ours, powers = fresnel(index, 1.0, angle), stack_powers([index, 1.0], [], 500.0, angle)
    assert abs(ours.r_s) == pytest.approx(1, abs=1e-12)
    assert abs(ours.r_p) == pytest.approx(1, abs=1e-12)
    assert max(abs(powers.transmittance_s), abs(powers.transmittance_p)) < 1e-12


def test_negative_zeros_do_not_make_waves_grow():
    safe, risky = (stack_powers([1.5, complex(1, zero), 1.5], [300.0], 500.0, 60.0) for zero in (0.0, -0.0))
    assert safe == risky
    assert 0 < safe.transmittance_s < 1


def test_thick_absorbing_layers_do_not_overflow():
    for length in (1e5, 1e9, 1e200):
        ours = stack_amplitudes([1.0, 2 + 3j, 1.5, 4 + 1j, 3.0], [length, length, length], 500.0, 70.0)
        np.testing.assert_allclose(ours[:2], fresnel(1.0, 2 + 3j, 70.0)[:2], rtol=1e-12)
        assert ours.t_s == 0


# --- ellipsometry ---


@given(absorbers, st.floats(10, 85))
def test_a_bare_substrate_gives_its_permittivity_back(index, angle):
    """The pseudo-dielectric function, in the convention n − ik of ellipsometry, inverts ρ."""
    assume(abs(index - 1) > 1e-3)  # a substrate of air reflects nothing, so there is nothing to invert
    psi, delta = ellipsometric_angles(*stack_reflection([1.0, index], [], 500.0, angle))
    rho, theta = np.tan(np.radians(psi)) * np.exp(1j * np.radians(delta)), np.radians(angle)
    found = np.sin(theta) ** 2 * (1 + np.tan(theta) ** 2 * ((1 - rho) / (1 + rho)) ** 2)
    np.testing.assert_allclose(found, np.conj(index) ** 2, rtol=1e-6, atol=1e-6)


@given(stacks(absorbers), angles)
def test_ranges_and_the_unit_sphere(stack, angle):
    indices, lengths = stack
    r_s, r_p = stack_reflection([1.0, *indices], lengths, 500.0, angle)
    if abs(r_s) + abs(r_p) < 1e-6:
        return
    psi, delta = ellipsometric_angles(r_s, r_p)
    assert 0 <= psi <= 90
    assert 0 <= delta < 360
    ncs = ellipsometric_ncs(r_s, r_p)
    assert sum(value**2 for value in ncs) == pytest.approx(1)
    np.testing.assert_allclose(ncs_from_angles(psi, delta), ncs, atol=1e-9)


def test_angles_that_no_rounding_may_spoil():
    psi, delta = angles_from_ncs([1.0, -1.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, -1e-30])
    np.testing.assert_array_equal(psi, [0, 90, 45])
    np.testing.assert_array_equal(delta, [0, 0, 0])


def test_where_nothing_is_reflected_there_is_no_angle():
    assert np.isnan(ellipsometric_angles([0.0], [0.0])).all()
    N, C, S = ellipsometric_ncs([0.0, 1.0], [1.0, 0.0])
    np.testing.assert_array_equal(N, [-1, 1])
    np.testing.assert_array_equal(np.abs([C, S]), 0)


def test_a_film_on_silicon_turns_delta_down_from_180():
    bare, thin, thick = (
        ellipsometric_angles(*stack_reflection([1.0, 1.46, silicon_index(633.0)], [length], 633.0, 70.0))
        for length in (0.0, 2.0, 10.0)
    )
    assert 175 < bare[1] < 180
    assert bare[1] > thin[1] > thick[1] > 90


# --- mixtures ---

permittivities = st.builds(complex, st.floats(-10, 10), st.floats(0.01, 10))
fractions = st.floats(0.0, 1.0)
factors = st.sampled_from([1 / 3, 1 / 2, 0.1, 0.8])


@given(permittivities, permittivities, fractions, factors)
def test_bruggeman_solves_his_equation_and_absorbs(a, b, fraction, factor):
    mixed = complex(bruggeman(a, b, fraction, depolarization=factor))
    left = [f * (e - mixed) / (mixed + factor * (e - mixed)) for f, e in ((fraction, a), (1 - fraction, b))]
    assert abs(sum(left)) < 1e-6
    assert mixed.imag > -1e-9 * abs(mixed)
    assert mixed == pytest.approx(complex(bruggeman(b, a, 1 - fraction, depolarization=factor)), rel=1e-9)


@given(permittivities, permittivities, factors)
def test_nothing_of_one_leaves_the_other(a, b, factor):
    for mix in (bruggeman, lambda one, other, f, **how: maxwell_garnett(other, one, f, **how)):
        assert complex(mix(a, b, 1.0, depolarization=factor)) == pytest.approx(a, rel=1e-9)
        assert complex(mix(a, b, 0.0, depolarization=factor)) == pytest.approx(b, rel=1e-9)


@given(st.floats(1, 15), st.floats(1, 15), fractions, factors)
def test_mixtures_lie_within_wieners_bounds(a, b, fraction, factor):
    lowest, highest = 1 / (fraction / a + (1 - fraction) / b), fraction * a + (1 - fraction) * b
    for mixed in (
        bruggeman(a, b, fraction, depolarization=factor),
        maxwell_garnett(b, a, fraction, depolarization=factor),
    ):
        assert mixed.imag == 0
        assert lowest * (1 - 1e-12) <= mixed.real <= highest * (1 + 1e-12)


@given(st.floats(1, 15), st.floats(1, 15), fractions)
def test_spheres_follow_the_quadratic_of_the_books(a, b, fraction):
    middle = (3 * fraction - 1) * a + (2 - 3 * fraction) * b
    assert bruggeman(a, b, fraction).real == pytest.approx((middle + np.sqrt(middle**2 + 8 * a * b)) / 4, rel=1e-9)
    ratio = fraction * (a - b) / (a + 2 * b)
    assert maxwell_garnett(b, a, fraction).real == pytest.approx(b * (1 + 2 * ratio) / (1 - ratio), rel=1e-9)


@given(permittivities, st.floats(1, 5))
def test_rare_inclusions_are_alike_in_both(guest, host):
    few = 1e-6
    first, second = bruggeman(guest, host, few), maxwell_garnett(host, guest, few)
    if abs(guest + 2 * host) > 1:  # away from the resonance, where few are not few
        assert abs(first - second) < 1e-3 * few * max(1.0, abs(guest - host)) ** 2


# --- materials ---


def test_materials_repeat_their_sources():
    assert silicon_index(400.0) == pytest.approx(5.613 + 0.296j)
    assert silicon_index(1000.0) == pytest.approx(3.572 + 0.0005093j)
    # rows of the same publication that are not among the nodes
    assert silicon_index(470.0) == pytest.approx(4.497 + 0.062086j, rel=2e-3)
    assert silicon_index(630.0) == pytest.approx(3.879 + 0.016444j, rel=2e-3)
    assert silicon_index(980.0) == pytest.approx(3.579 + 0.00074866j, rel=2e-3)
    # Malitson's table at the mercury and sodium lines
    np.testing.assert_allclose(silica_index([253.652, 435.8343, 589.29]).real, [1.50553, 1.46669, 1.45841], atol=2e-5)
    assert silicon_nitride_index(500.0).real == pytest.approx(np.sqrt(1 + 2.8939 * 0.25 / (0.25 - 0.13967**2)))
    assert cauchy_index(1000.0, 1.5, 0.01, 0.001) == pytest.approx(1.511)
    assert silicon_index(np.linspace(250, 1000, 999)).imag.min() > 0


@pytest.mark.parametrize(
    ("material", "waves"),
    [(silicon_index, 249.0), (silicon_index, [500.0, 1001.0]), (silica_index, 200.0), (silicon_nitride_index, np.nan)],
)
def test_no_material_is_extrapolated(material, waves):
    with pytest.raises(InvalidInputError, match=f"{material.__name__} is known from"):
        material(waves)


def test_silicon_is_close_to_another_table():
    try:
        real = load_ellipsometry()
    except InvalidInputError as missing:
        pytest.skip(str(missing))
    inside = (real.wavelengths >= 250) & (real.wavelengths <= 1000)
    theirs = real.indices["silicon"][inside] ** 2
    deviation = np.abs(silicon_index(real.wavelengths[inside]) ** 2 / theirs - 1)
    assert np.median(deviation) < 0.003
    assert deviation.max() < 0.06


# --- bad input ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [], 500.0, 0.0), "Got 1 indices and 0 thicknesses"),
        (([1.0, 1.5, 2.0], [], 500.0, 0.0), "one thickness for each layer"),
        (([1.0, 1.5 - 0.1j], [], 500.0, 0.0), "conjugate those of n − ik"),
        (([1.0, np.nan], [], 500.0, 0.0), "'indices' parameter"),
        (([1.0, [1.5, np.inf]], [], 500.0, 0.0), "'indices' parameter"),
        (([1.0 + 0.1j, 1.5], [], 500.0, 0.0), "real and above 0 in the ambient"),
        (([0.0, 1.5], [], 500.0, 0.0), "real and above 0 in the ambient"),
        (([1.0, 1.5, 2.0], [-1.0], 500.0, 0.0), "'thicknesses' parameter"),
        (([1.0, 1.5, 2.0], [np.inf], 500.0, 0.0), "'thicknesses' parameter"),
        (([1.0, 1.5], [], 0.0, 0.0), "'wavelength' parameter"),
        (([1.0, 1.5], [], [500.0, np.nan], 0.0), "2 values from nan"),
        (([1.0, 1.5], [], 500.0, 90.0), r"'angle' parameter of a stack must be finite numbers in \[0, 90\). Got 90.0"),
        (([1.0, 1.5], [], 500.0, -1.0), "'angle' parameter"),
        (([1.0, [1.5, 1.6]], [], [400.0, 500.0, 600.0], 0.0), "broadcast together"),
    ],
)
def test_bad_stacks_are_named(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        stack_amplitudes(*arguments)


@pytest.mark.parametrize("mix", [bruggeman, maxwell_garnett])
def test_bad_mixtures_are_named(mix):
    for fraction in (-0.1, 1.1, np.nan, [0.5, 2.0]):
        with pytest.raises(InvalidInputError, match=f"'fraction' parameter of {mix.__name__}"):
            mix(1.0, 2.0, fraction)
    with pytest.raises(InvalidInputError, match="'depolarization' parameter"):
        mix(1.0, 2.0, 0.5, depolarization=1.0)


def test_rounding_below_zero_is_forgiven():
    ours = stack_powers([1.0, 2 - 1e-16j, 1.5], [100.0], 500.0, 30.0)
    assert ours.reflectance_s + ours.transmittance_s == pytest.approx(1)
