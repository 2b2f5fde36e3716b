"""The drift alarm itself, on top of ranks, evidence and column changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from onsphere._internal.validation import (
    Floats,
    check_no_gradient,
    check_number,
    check_same_length,
    check_unmasked,
    make_random_state,
    restore_on_error,
    wrap_errors,
)
from onsphere.assessment import Assessment
from onsphere.calibration import Calibration, CalibrationSource
from onsphere.drift.column_changes import ColumnChange, Window
from onsphere.drift.martingale import Evidence
from onsphere.drift.ranks import Ranks
from onsphere.errors import InvalidInputError, InvalidTypeError

__all__ = ["DriftMonitor", "DriftUpdate"]

_FORMAT = "onsphere drift monitor 2"
_FORMER_FORMAT = "onsphere drift monitor 1"  # which did not name its games, and had none on novelty

# The scores that games are played on, by the argument of `update`, in their order; and what their alarms are called.
SCORES = {"uncertainty": "uncertainty", "missed": "novelty", "anchor_residual": "anchor residual"}


@dataclass(frozen=True, eq=False)
class DriftUpdate:
    """The evidence in some rows.

    Attributes
    ----------
    p_values : array of shape (n,)
        One for each uncertainty: small where it is high; without drift independent and uniform on (0, 1).
    log_capital : array of shape (n,)
        The natural logarithm of the capital, after each row, of the game against "nothing changed"; of several games
        that of the richest, divided by their number.
    alarm : bool
        Whether the capital has reached 1/alpha by the last of these rows, now or earlier.
    novelty_p_values, anchor_p_values : arrays of shape (n,) or None
        One for each row, if the monitor watches its novelty or its anchor residual.
    evidence : dict of arrays of shape (n,)
        The logarithm of the capital of each game, divided by their number, under the name of what it watches.
    """

    p_values: Floats
    log_capital: Floats
    alarm: bool
    novelty_p_values: Floats | None = None
    anchor_p_values: Floats | None = None
    evidence: dict[str, Floats] = field(default_factory=dict[str, Floats])


class DriftMonitor:
    """An alarm, without labels, for rows that are no longer like those of the calibration.

    If the calibration rows and all rows of the stream are exchangeable, the alarm is ever raised with a probability of
    at most alpha, however long the stream and however often one looks. This holds exactly, whatever the model and the
    distribution of its scores, on average over calibration sets; it is not promised for one particular calibration
    set, nor for several runs together: `reset` starts with the same set, and one that gave a false alarm may give
    another. The scores must come from rows that were not trained on; after calibration="cv" they come from other
    models, and the promise is only approximate. Rows that depend on each other, as in a slow time series, are not
    exchangeable and may raise the alarm for that reason alone. Drift that does not change the distribution of the
    scores cannot be found.

    The rank of each new score among all earlier ones, of calibration and stream, gives a p-value: see
    `onsphere.drift.ranks`. Seven players bet on these, and the alarm is raised when their capital reaches 1/alpha: see
    `onsphere.drift.martingale`. Since the stream is ranked too, the monitor slowly gets used to drift: a small drift
    soon after a small calibration may count as normal before it is found, while after a long quiet stream new scores
    hardly change the ranks.

    Two scores are watched, each in a game of its own: the uncertainty and, if the model has an input frame, the novelty
    (the shortfall behind it, which is finer), for a row may be unlike all others although the model is sure of it. With
    `anchor_residuals` the anchor residual is a third. Alpha is split evenly: the alarm is raised when the capital of
    one of k games reaches k/alpha, which each does with a probability of at most alpha/k, so that alpha bounds all of
    them together, over all time. (Not their mean: each game is fair given the ranks of its own score, but not always
    given those of the others.)

    Parameters
    ----------
    calibration : a calibrated model, a Calibration, or scores of shape (n,)
        What new scores are compared with; one is enough, but a quick alarm needs some hundreds. Scores alone stand for
        the uncertainty.
    alpha : float in (0, 1), default 0.01
        The largest probability of a false alarm, over all time.
    anchor_residuals : array of shape (m,), optional
        `anchor_residual` of the assessment of the calibration rows, to watch it too.
    reference : array or DataFrame of shape (m, p), or dict, optional
        Features for `compare_columns`, for instance those of the calibration rows; or what `make_reference` returned
        for them, which a model file of `onsphere fit` has under "reference".
    window : int, default 200
        How many of the last rows are compared with the reference.
    random_state : int, RandomState or None, default 0
        Breaks ties between equal scores and draws the p-values within the gaps between calibration scores.

    Attributes
    ----------
    alarm : bool
        Whether the alarm was raised; it stays until `reset`.
    alarmed_at : int or None
        The number of the row that raised it; the first row is 1.
    alarmed_by : {"uncertainty", "novelty", "anchor residual"} or None
        The score that raised it.
    watched : tuple of str
        The names of the scores that are watched.
    n_seen : int
        How many rows were seen.
    log_capital : float
        After the last row; with several games, that of the richest, divided by their number. The alarm is raised at
        log(1/alpha).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> monitor = DriftMonitor(rng.normal(size=500), alpha=0.01)
    >>> monitor.update(rng.normal(size=5000)).alarm
    False
    >>> update = monitor.update(rng.normal(loc=1.0, size=200))
    >>> update.alarm, monitor.alarmed_at
    (True, 5019)
    """

    def __init__(
        self,
        calibration: Any,
        *,
        alpha: float = 0.01,
        anchor_residuals: ArrayLike | None = None,
        reference: Any = None,
        window: int = 200,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        check_number(self, "alpha", alpha, above=0, below=1)
        check_number(self, "window", window, above=1, closed="left", whole=True)
        rng = make_random_state(self, random_state)
        given = {"calibration": calibration} | _find_scores(calibration)
        if anchor_residuals is not None:
            given["anchor_residuals"] = anchor_residuals
        self.alpha = float(alpha)
        self._games = {
            _ARGUMENTS[name]: Evidence(Ranks.from_scores(_check_scores(name, values, finite=True), rng))
            for name, values in given.items()
        }
        self._window = None if reference is None else Window(int(window), reference)
        self.alarmed_at: int | None = None
        self.alarmed_by: str | None = None
        self._lows: dict[str, tuple[float, int]] = dict.fromkeys(self._games, (0.0, 0))

    @property
    def alarm(self) -> bool:
        return self.alarmed_at is not None

    @property
    def watched(self) -> tuple[str, ...]:
        return tuple(SCORES[name] for name in self._games)

    @property
    def n_seen(self) -> int:
        return self._games["uncertainty"].n_seen

    @property
    def log_capital(self) -> float:
        return max(game.log_capital for game in self._games.values()) - math.log(len(self._games))

    def update(
        self,
        uncertainty: Assessment | ArrayLike,
        *,
        missed: ArrayLike | None = None,
        anchor_residual: ArrayLike | None = None,
    ) -> DriftUpdate:
        """Add the next rows, in order; in one array or one by one, the result is the same.

        Parameters
        ----------
        uncertainty : Assessment, a number, or an array of shape (n,)
            `model.assess(X)` of the model that was calibrated, which has all that is watched; or the uncertainties
            alone, of which infinity is allowed.
        missed, anchor_residual : like uncertainty
            Beside uncertainties, what else is watched: see `watched`.
        """
        given = {"uncertainty": uncertainty, "missed": missed, "anchor_residual": anchor_residual}
        if isinstance(uncertainty, Assessment):
            given = {name: getattr(uncertainty, name) if name in self._games else None for name in given}
        self._check_watched({name for name, values in given.items() if values is not None})
        scores = {name: _check_scores(name, given[name]) for name in self._games}
        check_same_length(*scores.values())
        played = {name: game.update(scores[name]) for name, game in self._games.items()}
        evidence = {name: capital - math.log(len(played)) for name, (_, capital) in played.items()}
        log_capital = np.max([*evidence.values()], axis=0)
        self._find_lows(evidence)
        reached = log_capital >= -math.log(self.alpha)
        if self.alarmed_at is None and reached.any():
            first = int(reached.argmax())
            self.alarmed_at = self.n_seen - len(reached) + first + 1
            self.alarmed_by = SCORES[max(evidence, key=lambda name: evidence[name][first])]
        p_values = {name: values for name, (values, _) in played.items()}
        return DriftUpdate(
            p_values["uncertainty"],
            log_capital,
            self.alarm,
            p_values.get("missed"),
            p_values.get("anchor_residual"),
            {SCORES[name]: capital for name, capital in evidence.items()},
        )

    def _find_lows(self, evidence: dict[str, Floats]) -> None:
        """Remember after which row the capital of each game was lowest: a change before an alarm begins about there."""
        if self.alarm:
            return
        for name, capital in evidence.items():
            n_before = self.n_seen - len(capital)
            until = capital if (first := _find_first(capital >= -math.log(self.alpha))) is None else capital[:first]
            if len(until) and until.min() <= self._lows[name][0]:
                place = len(until) - 1 - int(until[::-1].argmin())
                self._lows[name] = float(until[place]), n_before + place + 1

    @property
    def changed_at(self) -> int | None:
        """Return about which row the change began that raised the alarm: after the evidence of it was lowest."""
        names = [name for name, title in SCORES.items() if title == self.alarmed_by]
        return self._lows[names[0]][1] + 1 if names else None

    def _check_watched(self, given: set[str]) -> None:
        """Check that these are the scores which the monitor watches."""
        for name, title in SCORES.items():
            is_watched = name in self._games
            if (name in given) != is_watched:
                raise InvalidInputError(
                    f"Expected {'the' if is_watched else 'no'} {title} of each row ({name}), because the monitor "
                    f"watches {' and '.join(self.watched)}. Got {'none' if is_watched else 'some'}. Pass "
                    "model.assess(X) of the model that was calibrated, which has all that is watched; an anchor "
                    "residual needs a Lift embedding."
                )

    def observe(self, X: Any, assessment: Assessment) -> DriftUpdate:
        """Add the next rows with their features, for `compare_columns`; needs `reference`.

        Parameters
        ----------
        X : array or DataFrame of shape (n, p)
            With the columns of the reference.
        assessment : Assessment
            `model.assess(X)`.
        """
        window = self._require_window("observe")
        if not isinstance(assessment, Assessment):  # type: ignore[reportUnnecessaryIsInstance]
            raise InvalidTypeError(
                f"observe needs an Assessment. Got {type(assessment).__name__}. Pass model.assess(X), or call "
                "update(uncertainty)."
            )
        with restore_on_error(window):
            before, was_alarmed, n_before = window.rows, self.alarm, self.n_seen
            window.add(X)
            check_same_length(X, assessment.uncertainty)
            update = self.update(assessment)
            if self.changed_at is not None and not was_alarmed:
                window.keep_from(before, X, n_before - self.changed_at + 1)
            return update

    def compare_columns(self) -> list[ColumnChange]:
        """Compare rows that were observed with the reference; the column that moved most is first.

        After an alarm these are the `window` rows from where the evidence began to grow, and otherwise the last ones.

        These are only hints: a column may move without harm, and rows may become unusual by a combination of columns
        that each did not move.

        Examples
        --------
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X, scores = rng.normal(size=(300, 2)), rng.uniform(size=300)
        >>> monitor = DriftMonitor(scores, reference=X)
        >>> update = monitor.observe(X[:100] + [0.0, 3.0], Assessment(value=scores[:100], uncertainty=scores[:100]))
        >>> [change.column for change in monitor.compare_columns()]
        ['1', '0']
        >>> print(monitor.compare_columns()[0])
        1: mean +3.10 standard deviations, spread ×0.96, at least 92% of the rows moved
        """
        return self._require_window("compare_columns").compare()

    def reset(self) -> None:
        """Start again, as if no row had been seen. After a lasting drift, calibrate the model again instead."""
        for game in self._games.values():
            game.reset()
        if self._window is not None:
            self._window.reset()
        self.alarmed_at = self.alarmed_by = None
        self._lows = dict.fromkeys(self._games, (0.0, 0))

    def state(self) -> dict[str, Any]:
        """Return all that is needed to continue later, as plain values that JSON can hold; its size does not grow."""
        return {
            "format": _FORMAT,
            "alpha": self.alpha,
            "alarmed_at": self.alarmed_at,
            "alarmed_by": self.alarmed_by,
            "games": {name: game.state() for name, game in self._games.items()},
            "lows": self._lows,
            "window": None if self._window is None else self._window.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Make a monitor that continues, to the last bit, where `state` was called."""
        got: object = state.get("format") if isinstance(state, dict) else state  # type: ignore[reportUnnecessaryIsInstance]
        if got not in (_FORMAT, _FORMER_FORMAT):
            raise InvalidInputError(
                f"Expected a state of the format {_FORMAT!r}. Got {got!r}. Pass what DriftMonitor.state() returned."
            )
        monitor = cls.__new__(cls)
        try:
            monitor.alpha, monitor.alarmed_at = float(state["alpha"]), state["alarmed_at"]
            games, monitor.alarmed_by = _read_games(state)
            monitor._games = {name: Evidence.from_state(games[name]) for name in SCORES if name in games}
            if "uncertainty" not in games or len(monitor._games) < len(games):
                raise InvalidInputError(f"it has games on {', '.join(games)}")
            lows = state.get("lows", {})  # which older states do not have
            monitor._lows = {name: (float(lows[name][0]), int(lows[name][1])) if lows else (0.0, 0) for name in games}
            monitor._window = None if state["window"] is None else Window.from_state(state["window"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"The state cannot be read: {error}. Pass what DriftMonitor.state() returned, unchanged."
            ) from error
        return monitor

    def _require_window(self, what: str) -> Window:
        if self._window is None:
            raise InvalidInputError(
                f"{what} needs features to compare with. Got a DriftMonitor without. Pass reference=X_calibration to "
                "DriftMonitor, or call update(assessment.uncertainty), which compares no columns."
            )
        return self._window


# What an argument of DriftMonitor, or a part of its calibration, is compared with.
_ARGUMENTS = {"calibration": "uncertainty", "missed": "missed", "anchor_residuals": "anchor_residual"}


def _find_scores(source: Any) -> dict[str, Any]:
    """Return the scores of a calibrated model or of a calibration, by the names in errors; none of plain scores."""
    if isinstance(source, CalibrationSource):  # a model, which also knows whether it was changed since
        source = source._require_calibration("DriftMonitor")
    if not isinstance(source, Calibration):
        return {}
    novelty = {} if source.missed is None else {"missed": source.missed}
    return {"calibration": source.uncertainty, **novelty}


def _find_first(is_true: Any) -> int | None:
    return int(is_true.argmax()) if is_true.any() else None


def _read_games(state: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the states of the games by name, and the score that raised the alarm, if that is known."""
    if state["format"] == _FORMAT:
        return dict(state["games"]), state["alarmed_by"]
    games: dict[str, Any] = dict(zip(("uncertainty", "anchor_residual"), state["games"], strict=False))
    is_known = state["alarmed_at"] is not None and len(games) == 1
    return games, "uncertainty" if is_known else None


def _check_scores(name: str, values: Any, *, finite: bool = False) -> Floats:
    """Return scores of shape (n,), none of them NaN or minus infinity."""
    check_unmasked(name, values)
    check_no_gradient(**{name: values})
    with wrap_errors(f"Expected numbers as {name}. "):
        given = np.asarray(values)
        scores = given.astype(np.float64) if given.dtype.kind in "iufO" else np.empty((0, 0))
    if not finite:
        scores = np.atleast_1d(scores)
    if scores.ndim != 1 or scores.size == 0:
        raise InvalidInputError(
            f"Expected {name} of shape (n,), one number for each of at least one row. Got shape {given.shape} of dtype "
            f"{given.dtype}. Pass for example assessment.uncertainty."
        )
    n_bad = int(np.sum(~np.isfinite(scores) if finite else ~(scores > -math.inf)))
    if n_bad:
        allowed = "finite numbers" if finite else "numbers above minus infinity"
        raise InvalidInputError(
            f"Expected {allowed} as {name}. Got {n_bad} of {len(scores)} that are NaN or infinite. Drop these rows, "
            "or find out why the model gave them no score."
        )
    return scores
