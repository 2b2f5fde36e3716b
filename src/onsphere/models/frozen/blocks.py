"""The features of one or several layers side by side, as the input frame sees them.

A block, the features of one layer, is scaled to length 1, and its length stands beside it: what a network sees shows in
the angles between its features, and how strongly it sees it in their length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace

from onsphere._internal.validation import Floats
from onsphere.models.novelty import InputFrame, fit_input_frame
from onsphere.sphere import geometry
from onsphere.sphere.geometry import Array
from onsphere.sphere.kernel import find_bandwidth

__all__ = ["fit_block_frame", "place_blocks", "take_last_block"]

# Lengths that differ by less than this share count as equal: features that were scaled to one length before.
_SAME_LENGTH = 1e-3

# Of longer ones only the angles count.
_LONGEST = 1e140


def take_last_block(X: Array, widths: Sequence[int]) -> Array:
    """Return the features of the last layer, which the heads see."""
    return X if len(widths) < 2 else X[:, -widths[-1] :]


def place_blocks(X: Array, widths: Sequence[int]) -> Array:
    """Return the blocks of each row, scaled to length 1, each with its length; numpy, torch, or arrays of a graph.

    Examples
    --------
    >>> import numpy as np
    >>> place_blocks(np.array([[3.0, 4.0, 0.0, 7.0]]), widths=(2, 2))
    array([[0.6, 0.8, 5. , 0. , 1. , 7. ]])
    """
    parts: list[Array] = []
    start = 0
    for width in widths:
        units, length = geometry.split(X[:, start : start + width])
        parts += [units, length[:, None]]
        start += width
    return array_namespace(X).concat(parts, axis=-1)


def fit_block_frame(X: Floats, widths: Sequence[int]) -> tuple[InputFrame, Floats]:
    """Fit an input frame on `place_blocks` of the rows; return it and the shortfall of each row without itself.

    Every block counts alike, in units of its median squared distance, and a length counts like one feature. So the
    kernel is a product of one kernel per layer: a row is novel where any layer sees something new.
    """
    places = place_blocks(X, widths)
    relevance: list[Floats] = []
    start = 0
    for width in widths:
        units, length = places[:, start : start + width], places[:, start + width]
        relevance += [np.full(width, 1.0 / find_bandwidth(units)), np.array([_weigh_length(length) / width])]
        start += width + 1
    return fit_input_frame(places, relevance=np.concatenate(relevance), standardize=False)


def _weigh_length(length: Floats) -> float:
    """Return 1/h for the mean squared distance h = 2σ² of lengths."""
    largest = float(length.max())
    if largest == 0:
        return 1.0
    shares = length / largest  # whose squares do not overflow
    spread = max(float(np.std(shares)), _SAME_LENGTH * float(np.mean(shares))) * min(largest, _LONGEST)
    return 1.0 / (2.0 * spread**2)
