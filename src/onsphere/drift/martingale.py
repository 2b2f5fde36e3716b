"""A betting game against the hypothesis that nothing changed: it starts with a capital of 1 and wins on small p-values.

Each of seven players multiplies its capital by a density of the p-value, whose mean under uniform p-values is 1: powers
κ·p^(κ−1) win on a few very high scores, normal shifts exp(δz − δ²/2) with z = Φ⁻¹(1 − p) win on many scores that are a
little higher, and one power of 1 − p wins where scores fall. The capital is staked bit by bit: just before row t a
share t^(−1/5) − (t + 1)^(−1/5) of it is split equally among the players, and the rest stays in reserve. So finding a
change after row t costs about 1.2·log t (plus 3.6) of the log capital and no more, whereas players that stake
everything on the first row would have lost it by then. The shares add up to 1, so the total is a martingale that starts
at 1 and is never negative: it ever reaches 1/α with probability at most α (Ville's inequality).
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from scipy.special import ndtri

from onsphere._internal.validation import Floats
from onsphere.drift.ranks import Ranks
from onsphere.errors import InvalidInputError

__all__ = ["N_PLAYERS", "Evidence", "log_bets", "log_reserve", "log_stake"]

_UPWARD_POWERS = (0.2, 0.5, 0.8)
_NORMAL_SHIFTS = (0.25, 0.5, 1.0)
_DOWNWARD_POWERS = (0.6,)
N_PLAYERS = len(_UPWARD_POWERS) + len(_NORMAL_SHIFTS) + len(_DOWNWARD_POWERS)

_STAKE_POWER = 0.2  # the lower, the cheaper a late change and the more expensive an early one
_CHUNK = 2**16  # rows at a time, to save memory


def log_bets(p_values: Floats) -> Floats:
    """Return the logarithm of each player's factor, shape (N_PLAYERS, n)."""
    p = np.clip(p_values, 2.0**-53, 1 - 2.0**-53)  # a rounded p-value may be 1; costs the players a little
    log_p, log_rest, z = np.log(p), np.log1p(-p), -ndtri(p)
    return np.stack(
        [
            *(math.log(power) + (power - 1) * log_p for power in _UPWARD_POWERS),
            *(shift * z - shift**2 / 2 for shift in _NORMAL_SHIFTS),
            *(math.log(power) + (power - 1) * log_rest for power in _DOWNWARD_POWERS),
        ]
    )


def log_reserve(step: Floats) -> Floats:
    """Return the logarithm of the capital that is not staked by row `step`, counted from 1."""
    return -_STAKE_POWER * np.log1p(step)


def log_stake(step: Floats) -> Floats:
    """Return the logarithm of the capital that is staked just before row `step`, counted from 1."""
    return -_STAKE_POWER * np.log(step) + np.log(-np.expm1(-_STAKE_POWER * np.log1p(1 / step)))


class Evidence:
    """The ranks of one score, and what the players won on them.

    For each player, `log_gain` is what a stake of 1 on the first row has become, and `log_stakes` is the sum of all
    stakes so far, each divided by the gain at its time. Both are running sums from the first row to the last, so rows
    in one array and rows one by one give the same bits.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.reset()

    def reset(self) -> None:
        """Forget the stream."""
        self.ranks.reset()
        self.n_seen, self.log_capital = 0, 0.0
        self.log_gain = np.zeros(N_PLAYERS)
        self.log_stakes = np.full(N_PLAYERS, log_stake(np.ones(1)) - math.log(N_PLAYERS))

    def update(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return the p-value of each score, and the logarithm of the capital after it."""
        p_values = self.ranks.update(scores)
        parts = range(0, len(scores), _CHUNK)
        log_capital = np.concatenate([self._play(p_values[start : start + _CHUNK]) for start in parts])
        self.log_capital = float(log_capital[-1])
        return p_values, log_capital

    def _play(self, p_values: Floats) -> Floats:
        step = np.arange(self.n_seen + 1.0, self.n_seen + len(p_values) + 1.0)
        gain = np.add.accumulate(np.column_stack([self.log_gain, log_bets(p_values)]), axis=1)[:, 1:]
        new_stakes = log_stake(step + 1) - math.log(N_PLAYERS) - gain
        stakes = np.logaddexp.accumulate(np.column_stack([self.log_stakes, new_stakes]), axis=1)
        self.n_seen += len(p_values)
        self.log_gain, self.log_stakes = gain[:, -1].copy(), stakes[:, -1].copy()
        return np.logaddexp.reduce(np.vstack([gain + stakes[:, :-1], log_reserve(step)]), axis=0)

    def state(self) -> dict[str, Any]:
        """Return plain numbers and lists."""
        return {
            "ranks": self.ranks.state(),
            "n_seen": self.n_seen,
            "log_capital": self.log_capital,
            "log_gain": self.log_gain.tolist(),
            "log_stakes": self.log_stakes.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Continue from what `state` returned."""
        evidence = cls.__new__(cls)
        evidence.ranks = Ranks.from_state(state["ranks"])
        evidence.n_seen, evidence.log_capital = int(state["n_seen"]), float(state["log_capital"])
        evidence.log_gain, evidence.log_stakes = (np.array(state[name], float) for name in ("log_gain", "log_stakes"))
        if not (evidence.log_gain.shape == evidence.log_stakes.shape == (N_PLAYERS,)):
            raise InvalidInputError(f"it does not hold the capital of {N_PLAYERS} players")
        return evidence
