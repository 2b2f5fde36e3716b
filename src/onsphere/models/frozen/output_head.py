"""OutputHead: what held-out rows say of the outputs of a network that has a spherical head of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onsphere._internal.validation import check_same_length, parameter_error
from onsphere.errors import InvalidInputError
from onsphere.models.frames import FRAMES, Frames, check_frames
from onsphere.models.frozen.blocks import fit_block_frame
from onsphere.models.frozen.ridge import Head, Linear
from onsphere.models.frozen.solved import SolvedModel
from onsphere.models.frozen.sums import Solution, find_scale
from onsphere.models.frozen.targets import ClassTarget, NumberTarget
from onsphere.sphere import OneHot

__all__ = ["OutputHead"]

_NETWORK = "network"

# Rows that the frames are fitted on, at most.
_N_ROWS = 20_000


class OutputHead(SolvedModel):
    """Noise, novelty and calibration for a network that predicts direction and magnitude itself.

    A row holds the features of some layers, and behind them the outputs of the network: the direction and, for numbers,
    the magnitude and the standardised value. The outputs are used as they are; `fit` learns on rows that the network
    was not trained on how large its errors are (error frame) and what its features look like (input frame). Usually
    made by `onsphere.torch.calibrate`.

    Parameters
    ----------
    embedding : fitted embedding
        How the target lies on the sphere; OneHot for classes.
    layers : sequence of int
        Widths of the layers before the outputs. Novelty is measured on them, each scaled to length 1.
    is_flat : bool, default True
        Whether numbers have shape (n,) rather than (n, D).
    frames : "all", "target", or a tuple of "target", "error" and "input", default "all"
    calibration : None, "split", "cv" or float in (0, 1), default None
        What `fit` keeps back to calibrate on; see `HCMRegressor`.
    random_state : int, RandomState or None

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere import OneHot
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(300) % 3
    >>> outputs, features = 0.8 * np.eye(3)[y], rng.normal(size=(300, 4)) + np.eye(3, 4)[y]
    >>> model = OutputHead(OneHot().fit(y), (4,), calibration="split", random_state=0)
    >>> model.fit(np.hstack([features, outputs]), y).predict_proba(np.hstack([features, outputs])).shape
    (300, 3)
    """

    def __init__(
        self,
        embedding: Any,
        layers: Sequence[int],
        *,
        is_flat: bool = True,
        frames: str | Collection[str] = "all",
        calibration: str | float | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.embedding = embedding
        self.layers = layers
        self.is_flat = is_flat
        self.frames = frames
        self.calibration = calibration
        self.random_state = random_state

    def __sklearn_clone__(self) -> OutputHead:
        """Return a head that is not fitted, with the same embedding: scikit-learn would forget what it knows."""
        return OutputHead(**self.get_params(deep=False))

    def _has_classes(self, y: Any) -> bool:
        return isinstance(self.embedding, OneHot)

    @property
    def estimator_(self) -> Head:
        """The head that passes the outputs on."""
        return self._solution.heads[_NETWORK]

    def _solve(self) -> Solution:
        return self._solution

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        if sample_weight is not None:
            raise InvalidInputError("OutputHead counts every row once. Got a sample_weight. Leave it out.")
        frames = check_frames(self, FRAMES)
        rows = self._check_rows(X, fitting=True)
        is_class = self._has_classes(y)
        self.target_ = ClassTarget(self.embedding) if is_class else NumberTarget(self.embedding, self.is_flat)
        self._output_names = None
        widths, n_outputs = tuple(int(width) for width in self.layers), self.target_.width
        if sum(widths) + n_outputs != rows.shape[1]:
            expected = f"widths that add up to {rows.shape[1] - n_outputs}, the columns of a row before the outputs"
            raise parameter_error(self, "layers", expected, self.layers)
        targets = self.target_.make_table(self, y)
        check_same_length(rows, targets)
        chosen = np.linspace(0, len(rows) - 1, min(len(rows), _N_ROWS)).astype(np.intp)
        rows, targets = rows[chosen], targets[chosen]
        head = Head(Linear(np.zeros(n_outputs)), np.eye(n_outputs), np.zeros(n_outputs), 0.0)
        solution = Solution(self.target_, {_NETWORK: head}, {}, {}, {}, _NETWORK, widths, None, n_outputs)
        outputs = self.target_.read_table(solution.take_last(rows))
        solution.reach[_NETWORK] = self.target_.find_reach(outputs)
        score = self.target_.score(outputs, solution.reach[_NETWORK])
        solution.center[_NETWORK], solution.spread[_NETWORK] = find_scale(score)
        self._solution = solution
        beside = frames - {"target"}
        if beside:
            input_frame = error_frame = missed = None
            if "input" in beside:
                input_frame, missed = fit_block_frame(rows[:, : sum(widths)], widths)
                solution.center["input"], solution.spread["input"] = find_scale(missed)
            if "error" in beside:
                fitted = solution.take_last(rows)  # none of these rows was trained on
                places = solution.place(rows)
                error_frame = self.target_.fit_noise(fitted, lambda: fitted, targets, places, missed)
            self._solution = replace(solution, frames=Frames(0, input_frame, error_frame))
