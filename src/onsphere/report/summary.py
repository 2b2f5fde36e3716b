"""The report in a few sentences and figures: what the model does, and how far to trust it."""

from __future__ import annotations

from typing import Any

import numpy as np

from onsphere import metrics
from onsphere._internal.validation import Floats
from onsphere.calibration import covered_share_range
from onsphere.report.chance import LEVEL
from onsphere.report.features import Feature
from onsphere.report.judged import Judged
from onsphere.report.parts import Section, Table, Tile, Verdict, clean, download, number, percent
from onsphere.sphere.embedding import as_columns

__all__ = ["about", "error_text", "headline", "limits", "outputs", "tiles", "verdicts"]

# From which rank correlation (numbers) or AUROC (classes) on the uncertainty tells good rows from bad ones clearly,
# and loosely.
_CLEAR, _LOOSE = {True: 0.8, False: 0.3}, {True: 0.65, False: 0.1}


def error_text(rows: Judged, errors: Floats, *, decimals: int = 0) -> str:
    """The mean error of some rows, as it is said: a share for classes, and a number in the unit of the target."""
    if len(errors) == 0:
        return "–"
    mean = float(np.mean(errors))
    return percent(mean, decimals=decimals) if rows.is_class else number(mean)


def headline(rows: Judged) -> str:
    """All of it in one breath."""
    n, error = f"{len(rows):,}", error_text(rows, rows.error, decimals=1)
    covered = percent(float(np.mean(rows.is_covered)), decimals=1)
    low, high = (percent(share, decimals=1) for share in _band(rows))
    if rows.is_class:
        text = (
            f"On {n} rows it has not seen, it names the wrong class in {error} of the cases; {covered} of the true "
            f"classes are in their {percent(rows.coverage)} set (less than {low} would be more than chance)."
        )
    else:
        inside = f"{covered} of the true values lie inside their {percent(rows.coverage)} interval"
        if len(rows.output_names) > 1:
            inside = (
                f"for {covered} of the rows, all outputs lie inside their intervals, {percent(rows.coverage)} promised"
            )
        text = (
            f"On {n} rows it has not seen, predictions are off by {error} on average; {inside} "
            f"(between {low} and {high} would be chance)."
        )
    return f"{text} {_accepting(rows)}".strip()


def _accepting(rows: Judged) -> str:
    accepted = rows.answer.accepted
    if accepted is None:
        return ""
    kept, lost = (error_text(rows, rows.error[which], decimals=1) for which in (accepted, ~accepted))
    share = percent(float(np.mean(accepted)), decimals=1)
    if accepted.all():
        return "It accepts all of these rows."
    if not accepted.any():
        return "It accepts none of these rows."
    if rows.is_class:
        return f"It accepts {share} of the rows; of those {kept} are wrong, of the rejected ones {lost}."
    return f"It accepts {share} of the rows; those are off by {kept} on average, the rejected ones by {lost}."


def about(rows: Judged, features: list[Feature]) -> list[str]:
    """What the model does."""
    kinds = ["boolean" if _is_boolean(feature) else feature.kind for feature in features]
    counted = [f"{kinds.count(kind)} {word}" for kind, word in _KINDS.items() if kinds.count(kind)]
    n_columns = rows.frame.shape[1]
    columns = f"{n_columns:,} column{'' if n_columns == 1 else 's'}"
    if len(counted) == 1:
        columns += f" {_KINDS[kinds[0]]}"
    elif len(features) == n_columns:
        columns += f" ({', '.join(counted)})"
    if rows.is_class:
        classes = rows.answer.output_names or ()
        gives = f"one of {len(classes)} classes, a set of classes that should hold the true one"
    elif len(rows.output_names) > 1:
        gives = f"{len(rows.output_names)} numbers, for each an interval, which together should hold the truth"
    else:
        gives = "a number, an interval that should hold the true one"
    first = (
        f"The model predicts {clean(rows.target_name)} from {columns}. For each row it gives {gives} in "
        f"{percent(rows.coverage)} of the cases, and an uncertainty: the higher, the less to be trusted."
    )
    return [first, *_left_out(rows)]


_KINDS = {"number": "of numbers", "category": "of categories", "boolean": "of yes/no", "date": "of dates"}


def _is_boolean(feature: Feature) -> bool:
    levels = set(feature.values.tolist()) - {None} if feature.kind == "category" else set[Any]()
    return len(levels) > 0 and levels <= {"True", "False"}


def _left_out(rows: Judged) -> list[str]:
    if rows.n_left_out == 0:
        return []
    return [
        f"{rows.n_left_out:,} further rows lie so far from all it has learned that it has no finite answer for them. "
        "It would never accept them; they are left out of everything below."
    ]


def tiles(rows: Judged) -> list[Tile]:
    """A few large figures."""
    low, high = _band(rows)
    chance = f"{percent(low)} or more is as promised" if rows.is_class else f"chance: {percent(low)} to {percent(high)}"
    found = [
        Tile(f"{len(rows):,}", "rows", "which the model has not seen"),
        Tile(error_text(rows, rows.error), "wrong" if rows.is_class else "mean error", _compared(rows)),
        Tile(percent(float(np.mean(rows.is_covered))), f"coverage, {percent(rows.coverage)} promised", chance),
    ]
    if rows.is_class:
        size = float(np.asarray(rows.answer.prediction_set).sum(axis=1).mean())
        found.append(Tile(number(size), "classes in a set", "on average; 1 is a plain answer"))
    elif len(rows.output_names) == 1:
        width = metrics.interval_width(np.asarray(rows.answer.lower).ravel(), np.asarray(rows.answer.upper).ravel())
        spread = np.quantile(rows.target, 0.95) - np.quantile(rows.target, 0.05)
        note = f"90\u202f% of the true values span {number(float(spread))}"
        found.append(Tile(number(float(width)), "interval width", note))
    if rows.answer.accepted is not None:
        n_rejected = int(np.sum(~rows.answer.accepted))
        found.append(Tile(percent(float(np.mean(rows.answer.accepted))), "accepted", f"{n_rejected:,} rows rejected"))
    return found


def _compared(rows: Judged) -> str:
    """The error of the best guess that knows only the targets of these rows."""
    return f"{_guess(rows)[1]} by guessing the {'commonest class' if rows.is_class else 'middle'}"


def _guess(rows: Judged) -> tuple[float, str]:
    if rows.is_class:
        error = 1 - float(np.unique(rows.target.astype(str), return_counts=True)[1].max()) / len(rows)
        return error, percent(error)
    middle = np.broadcast_to(np.median(rows.target, axis=0), rows.target.shape)
    error = float(np.mean(metrics.sample_rmse(rows.target, middle)))
    return error, number(error)


def verdicts(rows: Judged) -> list[Verdict]:
    """How far to trust it, in plain words."""
    return [_against_guess(rows), _on_promise(rows), _on_ranking(rows), _on_rejecting(rows)]


def _against_guess(rows: Judged) -> Verdict:
    error, (guess, told) = float(np.mean(rows.error)), _guess(rows)
    better = 1 - error / guess if guess > 0 else 0.0
    guessing = "always naming the commonest class" if rows.is_class else "always guessing the middle of these rows"
    wrong = "is wrong in" if rows.is_class else "is off by"
    compared = f"It {wrong} {error_text(rows, rows.error)}; {guessing} {wrong} {told}."
    if better >= 0.25:
        return Verdict("good", "It has learned something", compared)
    if better > 0.05:
        return Verdict("fair", "It has learned a little", compared)
    return Verdict("poor", "It is hardly better than a guess", compared)


def _on_promise(rows: Judged) -> Verdict:
    low, high = _band(rows)
    share = float(np.mean(rows.is_covered))
    what = "set" if rows.is_class else "interval"
    told = f"{percent(share)} of the rows lie inside their {what}, {percent(rows.coverage)} were promised."
    if share < low:
        return Verdict(
            "poor",
            f"Its {what}s are too small",
            f"{told} Chance alone hardly goes below {percent(low)}: these rows are not like those of the calibration.",
        )
    if share > high and not rows.is_class:
        return Verdict(
            "fair", f"Its {what}s are larger than needed", f"{told} More than {percent(high)} is not chance."
        )
    more = " More than promised is usual, because a set holds whole classes." if rows.is_class and share > high else ""
    return Verdict("good", f"Its {what}s keep their promise", told + more)


def _on_ranking(rows: Judged) -> Verdict:
    uncertainty, error = rows.answer.uncertainty, rows.error
    if np.ptp(error) == 0 or np.ptp(uncertainty) == 0:
        same = "are all equally good" if np.ptp(error) == 0 else "all have the same uncertainty"
        return Verdict(
            "know", "Its uncertainty cannot be judged", f"These rows {same}: there is nothing to tell apart."
        )
    order = np.argsort(uncertainty, kind="stable")
    half = len(order) // 2
    surer, other = error_text(rows, error[order[:half]]), error_text(rows, error[order[half:]])
    if rows.is_class:
        score = metrics.auroc(uncertainty[error == 0], uncertainty[error == 1])
        told = f"Of the half it is surer of, {surer} are wrong, of the other half {other} (AUROC {score:.2f})."
    else:
        score = metrics.spearman(error, uncertainty)
        told = f"The half it is surer of is off by {surer}, the other half by {other} (Spearman {score:.2f})."
    if score >= _CLEAR[rows.is_class]:
        return Verdict("good", "Its uncertainty tells good rows from bad ones", told)
    if score >= _LOOSE[rows.is_class]:
        return Verdict("fair", "Its uncertainty is a loose guide", told)
    return Verdict("poor", "Its uncertainty is hardly a guide", told)


def _on_rejecting(rows: Judged) -> Verdict:
    accepted = rows.answer.accepted
    if accepted is None:
        return Verdict(
            "know", "It rejects nothing", "No threshold is set, so it accepts every row; set_threshold changes that."
        )
    told = _accepting(rows)
    if accepted.all() or not accepted.any():
        return Verdict("know", "Its threshold cannot be judged here", told)
    kept, lost = float(np.mean(rows.error[accepted])), float(np.mean(rows.error[~accepted]))
    if lost > 1.2 * kept:
        return Verdict("good", "What it rejects is worse", told)
    return Verdict("fair" if lost > kept else "poor", "What it rejects is hardly worse than what it accepts", told)


def outputs(rows: Judged) -> list[Table]:
    """The figures of each of several outputs."""
    if len(rows.output_names) < 2:
        return []
    value, lower, upper = (
        as_columns(np.asarray(each)) for each in (rows.answer.value, rows.answer.lower, rows.answer.upper)
    )
    inside = ((lower <= rows.target) & (rows.target <= upper)).mean(axis=0)
    columns: dict[str, Any] = {
        "output": rows.output_names,
        "mean error": np.abs(rows.target - value).mean(axis=0),
        "interval width": (upper - lower).mean(axis=0),
        "share inside": inside,
    }
    told = [[clean(name) for name in rows.output_names]]
    told += [[number(float(value)) for value in columns[title]] for title in ("mean error", "interval width")]
    told.append([percent(float(share)) for share in inside])
    cells = [list(line) for line in zip(*told, strict=True)]
    caption = (
        "Each output by itself. The error of a row, everywhere else, is the root mean square over its outputs, in "
        "which those of large numbers weigh most."
    )
    return [Table(caption, list(columns), cells, [False, True, True, True], download("outputs", columns))]


def limits(rows: Judged) -> Section:
    """What coverage promises and what not."""
    what = "sets" if rows.is_class else "intervals"
    return Section(
        "limits",
        "What this does not promise",
        [
            f"The {what} hold the truth in {percent(rows.coverage)} of the cases on average over rows like those of "
            "the calibration, whatever the model; this is a promise about many rows, not about one row or one group.",
            "It ends where the rows change: on inputs of another kind the coverage may be anything, and a rising "
            "uncertainty is a warning but no measure of the error.",
        ],
        [],
        [],
    )


def _band(rows: Judged) -> tuple[float, float]:
    return covered_share_range(len(rows), rows.n_calibration, rows.coverage, level=LEVEL)
