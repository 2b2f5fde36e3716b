"""Risk control: thresholds at which the expected loss is small enough, for any bounded loss.

`control_risk` is for a loss that never rises along the thresholds: it holds the expected loss on average over
calibration sets. `find_safe_settings` takes any losses and any settings, several thresholds at once: with a stated
probability, all settings that it returns are safe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats, check_number, check_option, wrap_errors
from onsphere.errors import InvalidInputError

__all__ = ["control_risk", "find_safe_settings", "hoeffding_bentkus_p_value"]


def hoeffding_bentkus_p_value(mean_loss: Any, n_rows: int, max_risk: float) -> Any:
    """Return p-values of the claim that the expected loss is above `max_risk`, from the mean of losses in [0, 1].

    The smaller of Hoeffding's bound, in its form with the relative entropy, and Bentkus' bound by the binomial tail.

    Parameters
    ----------
    mean_loss : float or array
        Means over `n_rows` rows each.
    n_rows : int
    max_risk : float in (0, 1)

    Examples
    --------
    >>> float(hoeffding_bentkus_p_value(0.05, 500, 0.1).round(5))
    0.0001
    """
    from scipy.stats import binom

    check_number("hoeffding_bentkus_p_value", "max_risk", max_risk, above=0, below=1)
    mean = np.asarray(mean_loss, dtype=np.float64)
    below = np.minimum(mean, max_risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(below > 0, below * np.log(below / max_risk), 0.0)
        second = np.where(below < 1, (1 - below) * np.log((1 - below) / (1 - max_risk)), 0.0)
    hoeffding = np.exp(-n_rows * (first + second))
    bentkus = math.e * binom.cdf(np.ceil(n_rows * mean - 1e-9), n_rows, max_risk)
    return np.minimum(np.minimum(hoeffding, bentkus), 1.0)


def control_risk(losses: Any, max_risk: float, *, largest_loss: float = 1.0) -> int:
    """Return the first threshold whose expected loss is at most `max_risk`, by conformal risk control.

    Promises: the expected loss of a new row drawn like these, at the threshold that is returned, is at most `max_risk`,
    on average over calibration sets (Angelopoulos and others, 2024). Does not promise it for the one set at hand.

    Parameters
    ----------
    losses : array of shape (n, m)
        The loss of each row at each of m thresholds, in [0, largest_loss], that never rises from one threshold to the
        next: from the boldest to the most careful.
    max_risk : float in (0, largest_loss)
    largest_loss : float, default 1

    Returns
    -------
    int
        The place of the threshold.

    Examples
    --------
    >>> import numpy as np
    >>> error = np.arange(100) / 100
    >>> widths = np.linspace(0, 1, 101)
    >>> control_risk(error[:, None] > widths, 0.1)  # the share outside, by the half-width of an interval
    90
    """
    check_number("control_risk", "largest_loss", largest_loss, above=0)
    check_number("control_risk", "max_risk", max_risk, above=0, below=largest_loss)
    table = _check_losses("control_risk", losses, largest_loss)
    if table.ndim != 2:
        raise InvalidInputError(
            f"control_risk needs losses of shape (n, m). Got {table.shape}. For several thresholds at once use "
            "find_safe_settings."
        )
    rising = np.flatnonzero((np.diff(table, axis=1) > 1e-12).any(axis=0))
    if len(rising):
        raise InvalidInputError(
            f"control_risk needs losses that never rise along the thresholds. Got one that rises at place "
            f"{rising[0] + 1}. Order thresholds from the boldest to the most careful, or use find_safe_settings."
        )
    n = len(table)
    safe = np.flatnonzero((table.sum(axis=0) + largest_loss) / (n + 1) <= max_risk + 1e-12)
    if len(safe) == 0:
        raise InvalidInputError(
            f"No threshold keeps an expected loss of {max_risk:g}: the most careful has a mean of "
            f"{table[:, -1].mean():.3g} over {n} rows, and a new row counts as {largest_loss:g}. Add more careful "
            "thresholds or more rows, or allow a higher risk."
        )
    return int(safe[0])


def find_safe_settings(
    losses: Any, max_risk: float | Sequence[float], *, delta: float = 0.05, correction: str = "bonferroni"
) -> NDArray[np.bool_]:
    """Return which settings have an expected loss of at most `max_risk`, by Learn then Test.

    Promises: with probability at least 1 − delta over calibration sets, every setting that is returned as safe is safe
    on new rows drawn like these, whichever of them is then chosen, and by whatever (Angelopoulos and others, 2021).
    Does not promise that safe settings are found.

    Parameters
    ----------
    losses : array of shape (n, ...), or a sequence of them
        The loss of each row, in [0, 1], at each setting: (n, m) for m thresholds, (n, m, k) for all pairs of two
        thresholds, and so on. A list of such arrays holds one for each kind of loss; a setting is safe if it is for
        all of them.
    max_risk : float in (0, 1), or one for each kind of loss
    delta : float in (0, 1), default 0.05
        The share of calibration sets for which the promise may be broken.
    correction : {"bonferroni", "fixed-sequence"}
        How delta is shared among settings: evenly; or given whole to one after the other, in their order, until one
        fails, which finds more where the order is from the safest to the boldest.

    Returns
    -------
    bool array of the shape of the settings

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> uncertainty = rng.uniform(size=2000)
    >>> is_wrong = rng.uniform(size=2000) < 0.3 * uncertainty
    >>> thresholds = np.linspace(0.05, 1, 20)
    >>> accepted = uncertainty[:, None] <= thresholds
    >>> safe = find_safe_settings(is_wrong[:, None] & accepted, 0.05, correction="fixed-sequence")
    >>> float(thresholds[safe].max().round(2))
    0.5
    """
    check_number("find_safe_settings", "delta", delta, above=0, below=1)
    check_option("find_safe_settings", "correction", correction, ("bonferroni", "fixed-sequence"))
    several = isinstance(losses, list | tuple) and (not losses or np.ndim(losses[0]) > 1)
    kinds = [_check_losses("find_safe_settings", each, 1.0) for each in (losses if several else [losses])]
    given: Any = max_risk
    limits = [given] * len(kinds) if np.ndim(given) == 0 else list(given)
    for limit in limits:
        check_number("find_safe_settings", "max_risk", limit, above=0, below=1)
    if len(limits) != len(kinds) or len({each.shape for each in kinds}) != 1:
        raise InvalidInputError(
            "find_safe_settings needs losses of one shape, and a max_risk for each kind of loss. Got "
            f"{', '.join(str(each.shape) for each in kinds) or 'no losses'} and {max_risk!r}."
        )
    p_values = np.max(
        [
            hoeffding_bentkus_p_value(each.mean(axis=0), len(each), limit)
            for each, limit in zip(kinds, limits, strict=True)
        ],
        axis=0,
    )
    if correction == "bonferroni":
        return p_values <= delta / p_values.size
    return np.cumprod(p_values.ravel() <= delta).astype(bool).reshape(p_values.shape)


def _check_losses(caller: str, losses: Any, largest: float) -> Floats:
    with wrap_errors(f"{caller} needs losses that are numbers, a row for each calibration row: "):
        table = np.asarray(losses, dtype=np.float64)
    if table.ndim < 2 or table.size == 0 or not np.all((table >= 0) & (table <= largest)):
        found = f"the shape {table.shape}"
        if table.ndim > 1 and table.size:
            place = np.argwhere(~((table >= 0) & (table <= largest)))[0]
            found = f"{table[tuple(place)]:g} in row {place[0]} (counted from 0)"
        raise InvalidInputError(
            f"{caller} needs losses from 0 to {largest:g}, a row for each calibration row and a column for each "
            f"threshold. Got {found}. Cap losses at the largest that counts, and divide by it."
        )
    return table
