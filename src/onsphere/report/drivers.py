"""The columns that drive the prediction, the noise and the novelty: what changes when a column is shuffled.

A column that has nothing to do with the others or with the target may be shuffled without a trace: its rows in their
own order are then one draw among shuffled ones. So how the shuffles of a column differ among themselves shows what
chance alone does to it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import Floats
from onsphere.assessment import Assessment
from onsphere.calibration import root_mean_square
from onsphere.metrics import spearman
from onsphere.metrics._checks import pick_evenly
from onsphere.plots import BLUE, GREY, REFERENCE
from onsphere.report.elements import Picture, Section, draw_picture
from onsphere.report.formatting import format_percent, shorten
from onsphere.report.measured_rows import CHANCE_LEVEL, Feature, MeasuredRows, read_features
from onsphere.report.redundant_columns import SAME, find_redundant
from onsphere.report.row_groups import compute_r_squared, group_rows
from onsphere.sphere.embeddings import as_columns

__all__ = ["Drivers", "find_drivers", "show_drivers"]

# What is shuffled: at most so many rows, and so often, of so many columns; and so many of a wide table are looked at.
MOST_ROWS, N_SHUFFLES, MOST_COLUMNS, MOST_LOOKED_AT = 400, 8, 16, 1_000
MOST_DRAWN, _MOST_TOLD = 10, 8  # columns in a picture, and groups of columns that say the same


class Effect(NamedTuple):
    """Changes for the worse by shuffling each column, and the largest that chance makes."""

    name: str
    change: Floats
    chance: Floats

    @property
    def is_real(self) -> NDArray[np.bool_]:
        """Return which columns do more than chance."""
        return self.change > self.chance


class Drivers(NamedTuple):
    """Columns that were shuffled, those that say the same together, and what that did."""

    columns: list[list[str]]
    effects: dict[str, Effect]
    n_rows: int
    n_left_out: int
    redundant: list[list[str]]

    def list_idle(self) -> list[str]:
        """Return the columns that do no more than chance to anything."""
        is_real = np.any([effect.is_real for effect in self.effects.values()], axis=0)
        return [name for names, real in zip(self.columns, is_real, strict=True) if not real for name in names]


def find_drivers(rows: MeasuredRows, model: Any, *, as_array: bool) -> Drivers:
    """Shuffle columns, a few times each, and measure what becomes of the prediction, the noise and the novelty.

    `as_array` says that the model takes arrays, not frames.
    """
    features = read_features(rows.frame, most=MOST_LOOKED_AT)
    groups = find_redundant(features)
    names = [[features[place].name for place in group] for group in groups]
    order = _choose_groups(rows, [features[group[0]] for group in groups])
    chosen = pick_evenly(rows.assessment.uncertainty, MOST_ROWS)
    frame = (rows.frame if rows.inputs is None else rows.inputs).iloc[chosen]
    few = replace(rows, assessment=rows.assessment[chosen], target=rows.target[chosen], error=rows.error[chosen])
    before = _measure(few, few.assessment)
    places = [_find_places(frame, names[group]) for group in order]
    after = np.array([_shuffle(few, model, frame, place, list(before), as_array=as_array) for place in places])
    effects = {name: _find_effect(before[name], after[:, :, index], name) for index, name in enumerate(before)}
    return Drivers(
        columns=[names[group] for group in order],
        effects=effects,
        n_rows=len(frame),
        n_left_out=rows.frame.shape[1] - sum(len(names[group]) for group in order),
        redundant=[group for group in names if len(group) > 1],
    )


def _find_places(frame: Any, names: list[str]) -> list[int]:
    wanted = set(names)
    return [place for place, name in enumerate(map(str, frame.columns)) if name in wanted]


def _choose_groups(rows: MeasuredRows, leaders: list[Feature]) -> list[int]:
    """Return the columns to shuffle, of many, those that go most closely with the answers."""
    if len(leaders) <= MOST_COLUMNS:
        return list(range(len(leaders)))
    answers = [*_list_predictions(rows), rows.assessment.uncertainty]
    answers += [] if rows.assessment.missed is None else [rows.assessment.missed]
    groupings = [group_rows(feature) for feature in leaders]
    scores = [max(compute_r_squared(answer, grouping) for answer in answers) for grouping in groupings]
    return sorted(np.argsort([-score for score in scores], kind="stable")[:MOST_COLUMNS].tolist())


def _list_predictions(rows: MeasuredRows) -> list[Floats]:
    values = rows.assessment.probabilities if rows.is_class else as_columns(np.asarray(rows.assessment.value))
    return list(np.asarray(values, dtype=np.float64).T)


def _shuffle(
    rows: MeasuredRows, model: Any, frame: Any, places: list[int], names: list[str], *, as_array: bool
) -> list[list[float]]:
    """Return the measures after each shuffle of these columns, which are shuffled together."""
    import pandas as pd

    rng, n = np.random.default_rng(0), len(frame)
    orders = [rng.permutation(n) for _ in range(N_SHUFFLES)]
    shuffled = pd.concat([frame] * N_SHUFFLES, ignore_index=True)
    source = np.concatenate(orders)
    for place in places:
        shuffled.isetitem(place, frame.iloc[:, place].take(source).reset_index(drop=True))
    result = model.assess(shuffled.to_numpy() if as_array else shuffled, coverage=rows.coverage)
    measured = [_measure(rows, result[index * n : (index + 1) * n]) for index in range(N_SHUFFLES)]
    return [[each[name] for name in names] for each in measured]


def _measure(rows: MeasuredRows, result: Assessment) -> dict[str, float]:
    """Return what is to be small: the error, how badly the noise ranks the errors, and how novel the rows are."""
    found = {"prediction": float(np.mean(_compute_errors(rows, result)))}
    if result.noise is not None and np.ptp(rows.error) > 0:
        noise = root_mean_square(np.asarray(result.noise).reshape(len(rows), -1))
        found["noise"] = -spearman(rows.error, noise) if np.ptp(noise) > 0 else 0.0
    if result.missed is not None:
        found["novelty"] = float(np.mean(result.missed))
    return found


def _compute_errors(rows: MeasuredRows, result: Assessment) -> Floats:
    """Return the error of each row, or for classes the probability that is not given to the true one."""
    if rows.is_class:
        is_true = np.array([str(label) for label in rows.target])[:, None] == np.array(result.output_names)
        return 1 - np.where(is_true, np.asarray(result.probabilities), 0.0).sum(axis=1)
    return np.sqrt(np.mean((rows.target - as_columns(np.asarray(result.value))) ** 2, axis=1))


def _find_effect(before: float, after: Floats, name: str) -> Effect:
    """Compare shuffled rows, of shape (columns, shuffles), with the rows as they are.

    For a column of pure chance, the rows as they are are one more draw, so that their distance from the mean of the
    shuffles follows Student's distribution. The level is shared by all columns.
    """
    from scipy.stats import t

    n_columns, n_shuffles = after.shape
    limit = float(t.ppf(1 - CHANCE_LEVEL / n_columns, n_shuffles - 1))
    chance = limit * np.std(after, axis=1, ddof=1) * math.sqrt(1 + 1 / n_shuffles)
    return Effect(name, after.mean(axis=1) - before, chance)


_READINGS = {
    "prediction": (
        "What drives the prediction",
        "How much the {error} rises when a column is shuffled.",
        "Rise of the {error}",
    ),
    "noise": (
        "What drives the noise",
        "How much worse the noise ranks the errors (Spearman) when a column is shuffled.",
        "Loss of rank correlation",
    ),
    "novelty": (
        "What drives the novelty",
        "How much further rows lie from the training rows when a column is shuffled: high where a value is unusual "
        "only beside the values of other columns.",
        "Rise of the distance",
    ),
}


def show_drivers(rows: MeasuredRows, drivers: Drivers) -> Section:
    """Return a picture of each effect, and a sentence on the columns that say the same."""
    n_columns = sum(map(len, drivers.columns))
    text = (
        f"Each column was shuffled {N_SHUFFLES} times on {drivers.n_rows:,} of these rows, which breaks its tie with "
        "everything else. The grey bar is what chance does: how far shuffles of that column differ from one another, "
        f"so that a picture without any real driver shows none in {format_percent(1 - CHANCE_LEVEL)} of the cases. "
        "Shuffling also makes combinations that never occur, so small differences mean little."
    )
    paragraphs = [text]
    if drivers.n_left_out:
        paragraphs.append(
            f"The {n_columns:,} columns that go most closely with the answers were shuffled; {drivers.n_left_out:,} "
            "others were left out to save time."
        )
    if drivers.redundant:
        told = "; ".join(_describe_group(group) for group in drivers.redundant[:_MOST_TOLD])
        more = (
            f" and {len(drivers.redundant) - _MOST_TOLD:,} more groups" if len(drivers.redundant) > _MOST_TOLD else ""
        )
        paragraphs.append(
            f"Some columns say nearly the same (a rank correlation of at least {SAME}, or the same categories under "
            f"other names); they are shuffled together, and told once on this page: {told}{more}."
        )
    pictures = [_draw_effect(rows, drivers, effect) for effect in drivers.effects.values()]
    return Section("drivers", "What drives it", paragraphs, pictures)


def _describe_group(names: list[str]) -> str:
    first, *others = (shorten(name, longest=26) for name in names)
    more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
    return f"{first} stands for {', '.join(others[:3])}{more}"


def _draw_effect(rows: MeasuredRows, drivers: Drivers, effect: Effect) -> Picture:
    title, reading, axis = _READINGS[effect.name]
    error = "probability of a wrong class" if rows.is_class else "mean error"
    order = np.argsort(-effect.change, kind="stable")
    shown = order[:MOST_DRAWN]
    labels = [_label_group(drivers.columns[place]) for place in shown]
    heights = np.arange(len(shown))
    is_real = effect.is_real[shown]

    def draw(ax: Any) -> None:
        ax.axvline(0, zorder=1, **REFERENCE)
        ax.hlines(heights, -effect.chance[shown], effect.chance[shown], color=GREY, linewidth=7, alpha=0.3, zorder=2)
        for which, colour, marker in ((is_real, BLUE, "o"), (~is_real, GREY, "d")):
            ax.scatter(
                effect.change[shown][which], heights[which], s=40, color=colour, marker=marker, linewidths=0, zorder=3
            )
        ax.set_yticks(heights, labels)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.set(xlabel=axis.format(error=error), axisbelow=True)
        ax.locator_params(axis="x", nbins=5)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.grid(axis="x", alpha=0.2, linewidth=0.6)

    n_real = int(effect.is_real.sum())
    found = f"{n_real} of {len(order)} do more than chance (blue)." if n_real else "None does more than chance."
    some = f" The first {MOST_DRAWN} are drawn; the file has all." if len(order) > MOST_DRAWN else ""
    return draw_picture(
        f"drivers-{effect.name}",
        draw,
        {
            "column": [", ".join(drivers.columns[place]) for place in order],
            axis.format(error=error).lower(): effect.change[order],
            "by chance at most": effect.chance[order],
        },
        title=title,
        reading=f"{reading.format(error=error)} {found}{some}",
        height=0.7 + 0.3 * len(labels),
    )


def _label_group(names: list[str]) -> str:
    return shorten(names[0], longest=22) + (f" +{len(names) - 1}" if len(names) > 1 else "")
