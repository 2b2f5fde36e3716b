"""Active learning: which rows of a pool to label next."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import check_number, check_option
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.models.backbone import BackboneModel
from onsphere.models.novelty import InputFrame
from onsphere.sphere import kernel

__all__ = ["select"]

# Rows, at most, that are chosen from: those that the landmarks miss most.
_N_CANDIDATES = 20_000


def select(model: Any, pool: Any, n: int, *, by: str = "novelty") -> NDArray[np.intp]:
    """Choose the rows of a pool whose labels would teach a model most.

    Parameters
    ----------
    model : HCMRegressor or HCMClassifier
        Fitted with frames="all", the default.
    pool : array or DataFrame of shape (m, p)
        Rows without labels.
    n : int
        How many to choose, at most m.
    by : {"novelty", "noise"}, default "novelty"
        "novelty" chooses rows unlike the training rows and unlike each other: the next is always the one that landmarks
        of the training rows and the rows chosen so far reconstruct worst. "noise" chooses the rows where errors are
        largest among similar rows: there, a better or a repeated measurement helps, and one more row does not.

    Returns
    -------
    int array of shape (n,)
        Places in the pool, the best first.

    Examples
    --------
    >>> import numpy as np
    >>> from onsphere import HCMRegressor, select
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = HCMRegressor(random_state=0).fit(X, X[:, 0])
    >>> pool = np.array([[0.5], [3.0], [3.1], [-2.0]])
    >>> select(model, pool, 2).tolist()
    [1, 3]
    """
    check_option("select", "by", by, ("novelty", "noise"))
    if not isinstance(model, BackboneModel):
        raise InvalidTypeError(f"select needs an HCMRegressor or HCMClassifier. Got {type(model).__name__}.")
    if by == "noise":
        noise = model.predict_noise(pool)  # type: ignore[reportAttributeAccessIssue]
        order = np.argsort(-(noise if noise.ndim == 1 else noise.mean(axis=1)), kind="stable")
        _check_n(n, len(order))
        return order[:n]
    frame, places = model._place_rows(pool)
    _check_n(n, len(places))
    return _choose_novel(frame, places, n)


def _check_n(n: int, n_rows: int) -> None:
    check_number("select", "n", n, above=1, closed="left", whole=True)
    if n > n_rows:
        raise InvalidInputError(f"select was asked for {n} rows. Got a pool of {n_rows}. Ask for fewer, or add rows.")


def _choose_novel(frame: InputFrame, places: Any, n: int) -> NDArray[np.intp]:
    missed = kernel.shortfall(places, frame.landmarks, frame.whitener, frame.bandwidth)
    ranked = np.argsort(-missed, kind="stable")
    candidates = ranked[: max(_N_CANDIDATES, n)]
    chosen = candidates[
        kernel.choose_landmarks(places[candidates], frame.bandwidth, n_landmarks=n, known=frame.landmarks)
    ]
    # Once every row is reconstructed, the most novel of the others follow.
    others = ranked[~np.isin(ranked, chosen)]
    return np.concatenate([chosen, others])[:n]
