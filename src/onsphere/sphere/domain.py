"""The range of a target, and the scale on which it is placed on the sphere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, is_number, parameter_error
from onsphere.errors import InvalidInputError
from onsphere.sphere.geometry import Array

__all__ = ["SCALES", "Domain", "find_domain", "list_scales", "measure_scale", "pick_scale"]

SCALES = ("linear", "root", "log")

# From fewer targets than this, nothing is concluded.
_FEWEST = 20

# Below this skewness a target is learned as it is.
_SKEWED = 1.0

_LARGEST_LOG = 700.0

# How much of the loss another scale may leave, to be preferred.
_CLEARLY = 0.98


@dataclass(frozen=True)
class Domain:
    """The values that a target can have, and the scale on which it is learned.

    Attributes
    ----------
    low, high : float
        The ends of its range, infinite where there are none.
    is_whole : bool
        Whether it has whole numbers only.
    scale : {"linear", "root", "log"}
        What is learned: the target, the square root or the logarithm of target + shift.
    shift : float
        Above 0 where the target may be 0 and is learned on the scale of the logarithm.
    share_zero : float
        The share of zeros among the training targets.
    reason : str
        What was found in the targets, and what follows, in a sentence.

    Examples
    --------
    >>> import numpy as np
    >>> prices = Domain(low=0.0, scale="log")
    >>> prices.from_scale(prices.to_scale(np.array([1.0, 1000.0]))).round(6)
    array([   1., 1000.])
    """

    low: float = -math.inf
    high: float = math.inf
    is_whole: bool = False
    scale: str = "linear"
    shift: float = 0.0
    share_zero: float = 0.0
    reason: str = ""

    @property
    def is_limited(self) -> bool:
        """Whether there are numbers that the target cannot have."""
        return self.is_whole or self.low > -math.inf or self.high < math.inf

    def to_scale(self, target: Floats) -> Floats:
        """Return targets on the scale on which they are learned; −∞ for a 0 that has no logarithm."""
        if self.scale == "linear":
            return target
        with np.errstate(divide="ignore"):
            return np.sqrt(target + self.shift) if self.scale == "root" else np.log(target + self.shift)

    def from_scale(self, values: Array) -> Array:
        """Return values of that scale as targets within the range; numpy, or arrays of a graph."""
        xp = array_namespace(values)
        if self.scale == "root":
            values = xp.clip(values, 0.0, None)
            values = values * values - self.shift
        elif self.scale == "log":
            values = xp.exp(xp.clip(values, -_LARGEST_LOG, _LARGEST_LOG)) - self.shift
        return self.clip(values)

    def clip(self, target: Array) -> Array:
        """Return targets moved to the nearest end of the range if they lie outside."""
        if self.low == -math.inf and self.high == math.inf:
            return target
        xp = array_namespace(target)
        return xp.clip(target, self.low, None if self.high == math.inf else self.high)

    def convert_sigma(self, value: Array, sigma: Array) -> Array:
        """Return standard deviations of that scale in the unit of the target: half the way from −sigma to +sigma."""
        return (
            sigma if self.scale == "linear" else 0.5 * (self.from_scale(value + sigma) - self.from_scale(value - sigma))
        )

    def to_target(self, values: Array) -> Array:
        """Return values of that scale as possible targets: within the range, and whole if targets are.

        Ends of intervals may be rounded too. A lower end moves up only if no whole number lies between, and an upper
        end down, so that no target that was inside is lost.
        """
        target = self.from_scale(values)
        return array_namespace(target).round(target) if self.is_whole else target

    def check(self, target: Floats, *, row_names: Any = None) -> None:
        """Raise an error that names the rows with a target outside the domain; by their places, or names if given."""
        outside = ~np.isfinite(target) | (target < self.low) | (target > self.high)
        if self.is_whole:
            outside |= target != np.round(target)
        rows = np.flatnonzero(outside.reshape(len(target), -1).any(axis=1))
        if len(rows) == 0:
            return
        values, names = target[outside], rows if row_names is None else np.asarray(row_names)[rows]
        raise InvalidInputError(
            f"Expected every target {self.describe()}. Got {', '.join(f'{value:g}' for value in values[:3])}"
            f"{' and others' if len(values) > 3 else ''} in {_name_rows(names)}. Fix or drop these rows, or choose "
            "another domain."
        )

    def describe(self) -> str:
        """Return the range in words."""
        ends = [f"at least {self.low:g}"] * (self.low > -math.inf) + [f"at most {self.high:g}"] * (self.high < math.inf)
        kind = ["a whole number"] if self.is_whole else []
        return f"to be {', '.join(kind + ends)}" if kind or ends else "to be a number"


def _name_rows(rows: NDArray[Any]) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more} (counted from 0)"


def find_domain(owner: Any, asked: Any, target: Floats, *, row_names: Any = None) -> Domain:
    """Return the domain that a `domain` parameter asks for, checked against the targets.

    Parameters
    ----------
    owner : model or str
        Whose parameter it is.
    asked : "auto", "positive", "count" or (low, high)
    target : array of shape (n,) or (n, D)
    row_names : array of shape (n,), optional
        How errors name the rows; by default their places.
    """
    share_zero = float(np.mean(target == 0))
    if isinstance(asked, str) and asked == "auto":
        return replace(_detect_domain(target), share_zero=share_zero)
    if isinstance(asked, str) and asked in ("positive", "count"):
        domain = Domain(
            low=0.0, is_whole=asked == "count", share_zero=share_zero, reason=f"domain={asked!r} was asked for"
        )
    else:
        low, high = _check_ends(owner, asked)
        domain = Domain(low, high, share_zero=share_zero, reason=f"domain={asked!r} was asked for")
    domain.check(target, row_names=row_names)
    return domain


def _check_ends(owner: Any, asked: Any) -> tuple[float, float]:
    expected = "None, 'auto', 'positive', 'count' or a pair (low, high) with low < high, None for no end"
    if not isinstance(asked, tuple | list) or len(asked) != 2:
        raise parameter_error(owner, "domain", expected, asked)
    ends = [end if given is None else given for given, end in zip(asked, (-math.inf, math.inf), strict=True)]
    if not all(isinstance(end, float) or is_number(end) for end in ends) or not ends[0] < ends[1]:
        raise parameter_error(owner, "domain", expected, asked)
    return float(ends[0]), float(ends[1])


def _detect_domain(target: Floats) -> Domain:
    """Return the narrowest domain that all targets lie in, with the reason."""
    if len(target) < _FEWEST:
        return Domain(reason=f"{len(target)} targets are too few to tell their domain, so any number is possible")
    is_whole, least = bool(np.all(target == np.round(target))), float(target.min())
    if least < 0:
        found = f"some targets are negative (the least is {least:g})"
        if is_whole:
            return Domain(is_whole=True, reason=f"{found} and all are whole, so any whole number is possible")
        return Domain(reason=f"{found}, so any number is possible")
    found = f"all {len(target):,} targets are {'whole numbers' if is_whole else 'numbers'} of at least 0"
    if np.any(target == 0):
        found += f" ({np.mean(target == 0):.0%} are 0)"
    elif not is_whole and _may_reach_below(target, least):
        return Domain(
            reason=f"{found}, but they thin out towards 0 (the least is {least:g}), so lower ones are possible; say "
            "domain='positive' if they are not"
        )
    return Domain(low=0.0, is_whole=is_whole, reason=f"{found}, so lower ones are not expected")


def _may_reach_below(target: Floats, least: float) -> bool:
    """Return whether the lower end of positive targets, as long again as its last twentieth, ends below 0.

    It does not for targets that pile up there, as skewed ones do.
    """
    columns = target.reshape(len(target), -1)
    return float(np.min(_compute_skewness(columns))) < _SKEWED and 2.0 * least < float(np.quantile(columns, 0.05))


def _compute_skewness(target: Floats) -> Floats:
    spread = target.std(axis=0)
    standardized = (target - target.mean(axis=0)) / np.where(spread == 0, 1.0, spread)
    return np.mean(standardized**3, axis=0)


def list_scales(domain: Domain, target: Floats) -> list[Domain]:
    """Return the domain on each scale worth trying: its own, and others for a skewed target that is never negative."""
    if domain.low < 0 or domain.high < math.inf or len(target) < _FEWEST:
        return [domain]
    if np.min(_compute_skewness(target)) < _SKEWED:
        return [domain]
    positive = target[target > 0]
    shift = 0.0 if len(positive) == target.size else 0.5 * float(np.quantile(positive, 0.05))
    return [domain, *(replace(domain, scale=scale, shift=shift) for scale in SCALES[1:])]


def measure_scale(domain: Domain, value: Floats, sigma: Floats, target: Floats) -> float:
    """Return the Winkler score of equal-tailed 90 % intervals on left-out rows, in standard deviations of the target.

    Parameters
    ----------
    domain : Domain
    value, sigma : arrays of shape (n, D)
        What was predicted, on the scale of the domain.
    target : array of shape (n, D)
    """
    residuals = (domain.to_scale(target) - value) / sigma
    lower, upper = (domain.from_scale(value + sigma * end) for end in np.quantile(residuals, (0.05, 0.95), axis=0))
    miss = np.maximum(lower - target, 0.0) + np.maximum(target - upper, 0.0)
    return float(np.mean((upper - lower + 20.0 * miss) / target.std(axis=0)))


def pick_scale(candidates: list[Domain], losses: list[float]) -> Domain:
    """Return the domain on the scale with the least loss; the first, which is linear, if no other is clearly better."""
    best = int(np.argmin(losses))
    if losses[best] > _CLEARLY * losses[0]:
        return candidates[0]
    chosen, gain = candidates[best], 1.0 - losses[best] / losses[0]
    what = "square root" if chosen.scale == "root" else "logarithm"
    reason = (
        f"{chosen.reason}; the targets are skewed, and intervals on the scale of the {what} score {gain:.0%} better"
    )
    return replace(chosen, reason=reason)
