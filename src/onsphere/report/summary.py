"""The report in a few sentences and figures: what the model does, and how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onsphere import metrics
from onsphere._internal.validation import Floats
from onsphere.calibration import find_coverage_range
from onsphere.report.chance import find_auroc_range, find_mean_range, find_spearman_range
from onsphere.report.elements import Table, Tile, Verdict, make_table
from onsphere.report.formatting import format_number, format_percent, shorten
from onsphere.report.measured_rows import CHANCE_LEVEL, Feature, MeasuredRows

__all__ = ["compute_gain", "find_chance_range", "format_mean_error", "summarize"]

# The uncertainty is a clear guide to the errors from the first value on, a loose guide from the second on, and none at
# the third: of the AUROC for classes (True), and of the rank correlation for numbers (False).
_GUIDE_LEVELS = {True: (0.8, 0.65, 0.5), False: (0.3, 0.1, 0.0)}
_CLEARLY_WORSE = 1.2  # times the error of the accepted rows
_MOST_NAMED = 3  # groups in a verdict
_KINDS = {"number": "of numbers", "category": "of categories", "boolean": "of yes/no", "date": "of dates"}


def summarize(rows: MeasuredRows, *, low_groups: Sequence[str] = ()) -> dict[str, Any]:
    """Return the parts of the page that come before its sections; `low_groups` are covered too rarely."""
    return {
        "headline": _write_headline(rows),
        "tiles": _make_tiles(rows),
        "about": _describe_model(rows),
        "verdicts": [
            _judge_error(rows),
            _judge_coverage(rows, low_groups),
            _judge_ranking(rows),
            _judge_threshold(rows),
        ],
        "outputs": _make_output_tables(rows),
    }


def format_mean_error(rows: MeasuredRows, errors: Floats, *, decimals: int = 0) -> str:
    """Return the mean of some errors as text: a share for classes, and a number in the unit of the target."""
    mean = float(np.mean(errors))
    return format_percent(mean, decimals=decimals) if rows.is_class else format_number(mean)


def _write_headline(rows: MeasuredRows) -> str:
    """Return the whole report in two sentences."""
    error = format_mean_error(rows, rows.error, decimals=1)
    covered = format_percent(float(np.mean(rows.is_covered)), decimals=1)
    promised = format_percent(rows.coverage)
    low, high = (format_percent(share, decimals=1) for share in find_chance_range(rows))
    if rows.is_class:
        text = (
            f"it names the wrong class in {error} of the cases; {covered} of the true classes are in their {promised} "
            f"set (chance alone rarely goes below {low})."
        )
    else:
        inside = f"{covered} of the true values lie inside their {promised} interval"
        if len(rows.output_names) > 1:
            inside = f"for {covered} of the rows, all targets lie inside their intervals, {promised} promised"
        off = f"predictions are off by {error} on average"
        if len(rows.output_names) > 1:
            off = f"the root mean square error over the {len(rows.output_names)} targets of a row is {error} on average"
        text = f"{off}; {inside} (chance alone gives {low} to {high})."
    acceptance = _describe_acceptance(rows)
    if rows.is_fresh:
        return f"On {len(rows):,} rows it has not seen, {text} {acceptance}".strip()
    seen = (
        f"{format_percent(rows.share_seen)} of these {len(rows):,} rows were trained on, so its figures look better "
        "than they will be on new rows, and promise nothing."
    )
    return f"{seen} Here {text} {acceptance}".strip()


def find_chance_range(rows: MeasuredRows) -> tuple[float, float]:
    """Return the range in which the share of covered rows lies by chance, if the promise is kept."""
    return find_coverage_range(len(rows), rows.n_calibration, rows.coverage, level=CHANCE_LEVEL)


def _describe_acceptance(rows: MeasuredRows) -> str:
    accepted = rows.assessment.accepted
    if accepted is None:
        return ""
    if accepted.all():
        return "It accepts all of these rows."
    if not accepted.any():
        return "It accepts none of these rows."
    share = format_percent(float(np.mean(accepted)), decimals=1)
    kept, lost = (format_mean_error(rows, rows.error[which], decimals=1) for which in (accepted, ~accepted))
    if rows.is_class:
        return f"It accepts {share} of the rows; of those {kept} are wrong, of the rejected ones {lost}."
    return f"It accepts {share} of the rows; those are off by {kept} on average, the rejected ones by {lost}."


def _describe_model(rows: MeasuredRows) -> list[str]:
    """Return what the model predicts, and from what."""
    kinds = ["boolean" if _is_boolean(feature) else feature.kind for feature in rows.features]
    counts = [f"{kinds.count(kind)} {text}" for kind, text in _KINDS.items() if kind in kinds]
    n_columns = rows.frame.shape[1]
    columns = f"{n_columns:,} column{'' if n_columns == 1 else 's'}"
    if len(counts) == 1:
        columns += f" {_KINDS[kinds[0]]}"
    elif len(kinds) == n_columns:
        columns += f" ({', '.join(counts)})"
    gives = "a number, an interval that should hold the true one"
    if rows.is_class:
        n_classes = len(rows.assessment.output_names or ())
        gives = f"one of {n_classes} classes, a set of classes that should hold the true one"
    elif len(rows.output_names) > 1:
        gives = f"{len(rows.output_names)} numbers, an interval for each, which together should hold the truth"
    paragraphs = [
        f"The model predicts {shorten(rows.target_name)} from {columns}. For each row it gives {gives} in "
        f"{format_percent(rows.coverage)} of the cases, and an uncertainty: the higher, the less to be trusted."
    ]
    if rows.n_left_out:
        paragraphs.append(
            f"{rows.n_left_out:,} further rows lie so far from the training rows that the model has no finite "
            "prediction for them. It would never accept them; they are left out of everything below."
        )
    return paragraphs


def _is_boolean(feature: Feature) -> bool:
    levels = set(feature.values.tolist()) - {None} if feature.kind == "category" else set[Any]()
    return len(levels) > 0 and levels <= {"True", "False"}


def _make_tiles(rows: MeasuredRows) -> list[Tile]:
    """Return a few large figures."""
    low, high = (format_percent(share) for share in find_chance_range(rows))
    chance = f"{low} or more is as promised" if rows.is_class else f"chance: {low} to {high}"
    _, guess = _measure_guess(rows)
    guessing = f"{guess} by guessing the {'most common class' if rows.is_class else 'middle'}"
    covered = format_percent(float(np.mean(rows.is_covered)))
    seen = "which the model has not seen" if rows.is_fresh else f"{format_percent(rows.share_seen)} were trained on"
    tiles = [
        Tile(f"{len(rows):,}", "rows", seen),
        Tile(format_mean_error(rows, rows.error), "wrong" if rows.is_class else "mean error", guessing),
        Tile(covered, f"coverage, {format_percent(rows.coverage)} promised", chance),
    ]
    if rows.is_class:
        size = float(np.asarray(rows.assessment.prediction_set).sum(axis=1).mean())
        tiles.append(Tile(format_number(size), "classes in a set", "on average; 1 is a clear answer"))
    elif len(rows.output_names) == 1:
        _, lower, upper = rows.intervals
        spread = float(np.quantile(rows.target, 0.95) - np.quantile(rows.target, 0.05))
        note = f"90\u202f% of the true values span {format_number(spread)}"
        tiles.append(Tile(format_number(metrics.interval_width(lower, upper)), "interval width", note))
    accepted = rows.assessment.accepted
    if accepted is not None:
        n_rejected = int(np.sum(~accepted))
        note = f"{n_rejected:,} {'row' if n_rejected == 1 else 'rows'} rejected"
        if rows.limits_novelty:
            n_novel = int(np.sum(np.char.find(np.asarray(rows.assessment.reason), "novel") >= 0))
            note += f", {n_novel:,} of them as novel"
        tiles.append(Tile(format_percent(float(np.mean(accepted))), "accepted", note))
    return tiles


def _measure_guess(rows: MeasuredRows) -> tuple[float, str]:
    """Return the error of the best constant guess, as a number and as text."""
    if rows.is_class:
        error = 1 - float(np.unique(rows.target.astype(str), return_counts=True)[1].max()) / len(rows)
        return error, format_percent(error)
    middle = np.broadcast_to(np.median(rows.target, axis=0), rows.target.shape)
    error = metrics.mean_sample_rmse(rows.target, middle)
    return error, format_number(error)


def compute_gain(rows: MeasuredRows) -> float:
    """Return the share of the error of the best constant guess that the model takes off."""
    guess, _ = _measure_guess(rows)
    return 1 - float(np.mean(rows.error)) / guess if guess > 0 else 0.0


def _judge_error(rows: MeasuredRows) -> Verdict:
    gain, (_, guess_text) = compute_gain(rows), _measure_guess(rows)
    guessing = "always naming the most common class" if rows.is_class else "always guessing the middle of these rows"
    wrong = "is wrong in" if rows.is_class else "is off by"
    text = f"It {wrong} {format_mean_error(rows, rows.error)}; {guessing} {wrong} {guess_text}."
    if not rows.is_fresh:
        return Verdict("fair", "It knows these rows already", f"{text} On new rows it will be off by more.")
    if gain >= 0.25:
        return Verdict("good", "It has learned something", text)
    if gain > 0.05:
        return Verdict("fair", "It has learned a little", text)
    return Verdict("poor", "It is hardly better than a guess", text)


def _judge_coverage(rows: MeasuredRows, low_groups: Sequence[str]) -> Verdict:
    low, high = find_chance_range(rows)
    share = float(np.mean(rows.is_covered))
    what = "set" if rows.is_class else "interval"
    text = f"{format_percent(share)} of the rows lie inside their {what}, {format_percent(rows.coverage)} promised."
    if not rows.is_fresh:
        text += " Rows that were trained on lie inside more often than new ones: measure it on other rows."
        return Verdict("fair", f"Its {what}s cannot be judged on these rows", text)
    if share < low:
        text += f" Chance alone rarely goes below {format_percent(low)}: these rows are not like the calibration rows."
        return Verdict("poor", f"Its {what}s are too small", text)
    if share > high:
        chance = "More than promised is usual, because a set holds whole classes."
        text += f" {chance if rows.is_class else f'More than {format_percent(high)} is not chance.'}"
    if low_groups:
        named = "; ".join(low_groups[:_MOST_NAMED])
        more = f" and {len(low_groups) - _MOST_NAMED:,} more" if len(low_groups) > _MOST_NAMED else ""
        text += f" Covered too rarely, by more than chance: {named}{more}."
        return Verdict("fair", f"Its {what}s keep their promise, but not for every group", text)
    if share > high and not rows.is_class:
        return Verdict("fair", f"Its {what}s are larger than needed", text)
    return Verdict("good", f"Its {what}s keep their promise", text)


def _judge_ranking(rows: MeasuredRows) -> Verdict:
    uncertainty, error = rows.assessment.uncertainty, rows.error
    if np.ptp(error) == 0 or np.ptp(uncertainty) == 0:
        same = "are all equally good" if np.ptp(error) == 0 else "all have the same uncertainty"
        return Verdict("know", "Its uncertainty cannot be judged", f"These rows {same}: there is nothing to compare.")
    order = np.argsort(uncertainty, kind="stable")
    half = len(order) // 2
    surer, other = (format_mean_error(rows, error[part]) for part in (order[:half], order[half:]))
    if rows.is_class:
        n_wrong = int(error.sum())
        score = metrics.auroc(uncertainty[error == 0], uncertainty[error == 1])
        low, high = find_auroc_range(score, len(rows) - n_wrong, n_wrong, level=CHANCE_LEVEL)
        text = f"Of the half it is surer of, {surer} are wrong, of the other half {other} (AUROC {score:.2f})."
    else:
        score = metrics.spearman(error, uncertainty)
        low, high = find_spearman_range(score, len(rows), level=CHANCE_LEVEL)
        text = f"The half it is surer of is off by {surer}, the other half by {other} (Spearman {score:.2f})."
    clear, loose, none = _GUIDE_LEVELS[rows.is_class]
    if score >= clear and low > none:
        return Verdict("good", "Its uncertainty separates good rows from bad ones", text)
    if score >= loose and low > none:
        return Verdict("fair", "Its uncertainty is a loose guide", text)
    if high < (clear + loose) / 2:
        return Verdict("poor", "Its uncertainty is hardly a guide", text)
    text += f" On so few rows, chance alone moves that from {low:.2f} to {high:.2f}."
    return Verdict("know", "Its uncertainty cannot be judged on so few rows", text)


def _judge_threshold(rows: MeasuredRows) -> Verdict:
    accepted, text = rows.assessment.accepted, _describe_acceptance(rows)
    if accepted is None:
        text = "No threshold is set, so it accepts every row; set_threshold changes that."
        return Verdict("know", "It rejects nothing", text)
    if accepted.all() or not accepted.any() or np.ptp(rows.error) == 0:
        return Verdict("know", "Its threshold cannot be judged here", text)
    kept, lost = float(np.mean(rows.error[accepted])), float(np.mean(rows.error[~accepted]))
    n_rejected = int(np.sum(~accepted))
    low, high = find_mean_range(rows.error, n_rejected, level=CHANCE_LEVEL)
    if lost > max(high, _CLEARLY_WORSE * kept):
        return Verdict("good", "What it rejects is worse", text)
    if low <= lost and high >= _CLEARLY_WORSE * kept:  # rows drawn at random could be as much worse
        text += f" With {n_rejected:,} rejected, that may be chance."
        return Verdict("know", "Its threshold cannot be judged on so few rows", text)
    return Verdict("fair" if lost > kept else "poor", "What it rejects is hardly worse than what it accepts", text)


def _make_output_tables(rows: MeasuredRows) -> list[Table]:
    """Return a table of the figures of each output, if there are several."""
    if len(rows.output_names) < 2:
        return []
    value, lower, upper = rows.intervals
    columns: list[Any] = [
        ("target", rows.output_names, shorten),
        ("mean error", np.abs(rows.target - value).mean(axis=0), format_number),
    ]
    alone = np.asarray(rows.alone)
    for name, low, high in (("", lower, upper), (", alone", alone[..., 0], alone[..., 1])):
        columns += [
            (f"interval width{name}", (high - low).mean(axis=0), format_number),
            (f"share inside{name}", ((low <= rows.target) & (rows.target <= high)).mean(axis=0), format_percent),
        ]
    caption = (
        f"The figures of each target. The intervals together hold all targets of {format_percent(rows.coverage)} of "
        f"the rows; the narrower ones hold {format_percent(rows.coverage)} of each target alone. Everywhere else, the "
        "error of a row is the root mean square over its targets, in which those with large numbers weigh most."
    )
    return [make_table("outputs", caption, columns)]
