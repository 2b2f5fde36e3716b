"""The domain of a target: its range, whole numbers, and the scale on which it is learned."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onsphere import InvalidInputError
from onsphere.sphere.domain import Domain, find_domain, list_scales, measure_scale, pick_scale

rng = np.random.default_rng(0)


def find(domain, target):
    return find_domain("HCMRegressor", domain, np.asarray(target, dtype=float))


@pytest.mark.parametrize("scale", ["linear", "root", "log"])
@given(hnp.arrays(np.float64, 10, elements=st.floats(0, 1e6)))
def test_targets_come_back_from_their_scale(scale, target):
    domain = Domain(low=0.0, scale=scale, shift=0.5)
    np.testing.assert_allclose(domain.from_scale(domain.to_scale(target)), target, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", ["linear", "root", "log"])
@given(hnp.arrays(np.float64, 10, elements=st.floats(-1e4, 1e4)))
def test_nothing_leaves_the_range_and_order_is_kept(scale, values):
    domain = Domain(low=0.0, high=90.0, is_whole=True, scale=scale)
    target = domain.to_target(np.sort(values))
    assert ((target >= 0) & (target <= 90) & (target == np.round(target))).all()
    assert (np.diff(target) >= 0).all()


@given(st.floats(-50, 50), st.floats(0, 30), st.integers(-60, 60))
def test_rounded_ends_hold_every_whole_number_that_was_inside(lower, width, target):
    domain = Domain(is_whole=True)
    low, high = domain.to_target(np.array([lower, lower + width]))
    if lower <= target <= lower + width:
        assert low <= target <= high


def test_sigma_in_the_unit_of_the_target():
    """Half of e^(2 + .5) − e^(2 − .5), which for a small sigma is e^2 times sigma."""
    domain = Domain(low=0.0, scale="log")
    assert domain.convert_sigma(np.array(2.0), np.array(0.5)) == pytest.approx(np.exp(2) * np.sinh(0.5))
    assert Domain().convert_sigma(np.array(2.0), np.array(0.5)) == 0.5


def test_each_domain_that_can_be_asked_for():
    assert find("positive", [0.0, 2.5]) == Domain(low=0.0, share_zero=0.5, reason="domain='positive' was asked for")
    assert find("count", [0, 2]).is_whole
    assert (find((0, 100), [1.0]).low, find((0, 100), [1.0]).high) == (0.0, 100.0)
    assert find((None, 5.0), [1.0]).low == -np.inf
    assert find((0.0, np.inf), [1.0]).high == np.inf


@pytest.mark.parametrize(
    ("asked", "target", "message"),
    [
        ("positive", [1.0, -2.0, 3.0], r"to be at least 0\. Got -2 in row 1 \(counted from 0\)"),
        ("count", [1.0, 2.5, -3.0, 4.0], r"a whole number, at least 0\. Got 2\.5, -3 in rows 1, 2 "),
        ((0, 1), np.arange(9.0), r"at least 0, at most 1\. Got 2, 3, 4 and others in rows 2, 3, 4, 5, 6 and 2 more"),
    ],
)
def test_rows_outside_the_domain_are_named(asked, target, message):
    with pytest.raises(InvalidInputError, match=message):
        find(asked, target)


@pytest.mark.parametrize("asked", ["prices", 3, (1, 0), (1, 1), ("a", 2), (1, 2, 3), (np.nan, 1)])
def test_an_impossible_domain_is_rejected(asked):
    with pytest.raises(InvalidInputError, match=r"'domain' parameter .* pair \(low, high\)"):
        find(asked, [1.0])


@pytest.mark.parametrize(
    ("target", "expected", "reason"),
    [
        (
            np.arange(30.0) % 7,
            Domain(low=0.0, is_whole=True),
            r"30 targets are whole numbers of at least 0 \(17% are 0\)",
        ),
        (np.linspace(0.5, 9, 30), Domain(low=0.0), "targets are numbers of at least 0, so lower ones are not expected"),
        (np.linspace(0.01, 9, 30) ** 0.5, Domain(), r"thin out towards 0 \(the least is 0\.1\), so lower ones are"),
        (np.linspace(0.2, 3, 30) ** 4, Domain(low=0.0), "so lower ones are not expected"),
        (np.linspace(-1, 9, 30), Domain(), r"some targets are negative \(the least is -1\), so any number"),
        (np.arange(-3.0, 27.0), Domain(is_whole=True), "all are whole, so any whole number"),
        (np.arange(5.0), Domain(), "5 targets are too few"),
    ],
)
def test_what_is_found_is_said(target, expected, reason):
    found = find("auto", target)
    assert (found.low, found.high, found.is_whole) == (expected.low, expected.high, expected.is_whole)
    assert found.share_zero == np.mean(target == 0)
    assert re.search(reason, found.reason)


def test_without_ends_a_target_is_a_number():
    with pytest.raises(InvalidInputError, match=r"to be a number\. Got nan in row 1"):
        Domain().check(np.array([1.0, np.nan]))


def test_scales_worth_trying():
    skewed, positive = rng.lognormal(0, 1.5, size=(500, 1)), Domain(low=0.0)
    assert [each.scale for each in list_scales(positive, skewed)] == ["linear", "root", "log"]
    assert list_scales(positive, skewed)[2].shift == 0
    with_zeros = np.where(rng.random((500, 1)) < 0.3, 0.0, skewed)
    assert 0 < list_scales(positive, with_zeros)[2].shift < np.median(skewed)
    for target, domain in [
        (rng.uniform(size=(500, 1)), positive),
        (skewed, Domain()),
        (skewed, Domain(low=0.0, high=1e9)),
        (skewed[:10], positive),
        (np.ones((500, 1)), positive),
    ]:
        assert list_scales(domain, target) == [domain]


def test_the_scale_with_the_better_intervals_is_picked():
    """Multiplicative noise: on the logarithm it is the same everywhere, on the target as large as the target."""
    center = rng.uniform(0, 8, size=(2000, 1))
    target = np.exp(center + 0.5 * rng.normal(size=(2000, 1)))
    linear, _, log = list_scales(Domain(low=0.0, reason="found"), target)
    middle, sigma = np.exp(center), np.full_like(center, target.std())
    losses = [
        measure_scale(linear, middle, sigma, target),
        measure_scale(log, center, np.full_like(center, 0.5), target),
    ]
    assert losses[1] < 0.8 * losses[0]
    chosen = pick_scale([linear, log], losses)
    assert chosen.scale == "log"
    assert "scale of the logarithm score" in chosen.reason
    assert pick_scale([linear, log], [1.0, 0.99]) is linear
    root = list_scales(Domain(low=0.0), target)[1]
    assert "square root" in pick_scale([linear, root], [1.0, 0.5]).reason
