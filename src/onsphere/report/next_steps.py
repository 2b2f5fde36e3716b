"""Steps to take next, which follow from what was found, the most urgent first.

Each has a line of Python or, where the caller writes one, a command that can be pasted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onsphere.models import HCMRegressor
from onsphere.report.drivers import Drivers
from onsphere.report.elements import Section, Step
from onsphere.report.formatting import format_number, format_percent, shorten
from onsphere.report.group_coverage import PREDICTED, TRUE_CLASS, LowGroup
from onsphere.report.measured_rows import MeasuredRows
from onsphere.report.over_time import Timeline
from onsphere.report.row_groups import Grouping, average_confidence, find_least_trusted
from onsphere.report.summary import compute_gain, find_chance_range, format_mean_error

__all__ = ["MORE_ROWS", "Findings", "WriteCommand", "show_next_steps"]

# The options of a fit on the same table with more rows.
MORE_ROWS = {"rows": "more rows"}

# Takes what to do ("fit", "report", "update" or "predict") with which options, and returns the command; None if there
# is none.
WriteCommand = Callable[[str, Mapping[str, Any]], str | None]

MOST_STEPS = 7
# Rows of the least trusted group are worth collecting if its error is this much larger than that of all rows.
_MUCH_WORSE = 1.5
# A model that takes off less than this share of the error of a guess may do better on another backbone.
_SMALL_GAIN = 0.25
_MOST_IGNORED = 10  # columns to leave out
_FEWEST_TO_IGNORE = 200  # rows; with fewer, chance hides what a column does


class Findings(NamedTuple):
    """Findings of the sections of the page."""

    low_groups: Sequence[LowGroup]
    ranked: list[Grouping]
    drivers: Drivers
    timeline: Timeline | None


class _Idea(NamedTuple):
    """A step before its command is written."""

    title: str
    why: str
    action: str
    options: dict[str, Any]
    code: str = ""


def show_next_steps(
    rows: MeasuredRows, model: Any, findings: Findings, write_command: WriteCommand | None
) -> Section | None:
    """Return the steps, each with the command of the caller, or without a caller with a line of Python."""
    ideas = _list_ideas(rows, model, findings) if rows.is_fresh else [_measure_on_new_rows(rows)]
    steps: list[Step] = []
    for idea in ideas:
        command = idea.code if write_command is None else write_command(idea.action, idea.options)
        if command:
            steps.append(Step(idea.title, idea.why, command))
    if not steps:
        return None
    return Section(
        "next",
        "What to do next",
        ["What follows from the findings above, the most urgent first. Try one at a time, and compare the reports."],
        steps=steps[:MOST_STEPS],
    )


def _list_ideas(rows: MeasuredRows, model: Any, findings: Findings) -> list[_Idea]:
    found = [
        _catch_up(rows, findings),
        _calibrate_by_group(rows, findings),
        _use_domain(rows, model),
        _use_time(rows),
        _choose_backbone(rows),
        _look_at_novel_rows(rows),
        _collect_rows(rows, findings),
        _leave_columns_out(rows, findings),
        _set_threshold(rows),
        _Idea(
            "Let it learn from all rows",
            "The rows of this report were kept out of the fit. Once nothing else is to be tried, fit again on all "
            "rows; the figures of this page stay those of the model before.",
            "fit",
            {"refit": True},
        ),
        _Idea(
            "Use it on new rows",
            f"Each row gets its prediction, its {'set' if rows.is_class else 'interval'}, and whether to accept it.",
            "predict",
            {},
            "result = model.assess(X_new)",
        ),
    ]
    return [idea for idea in found if idea is not None]


def _measure_on_new_rows(rows: MeasuredRows) -> _Idea:
    return _Idea(
        "Measure it on fresh rows",
        f"{format_percent(rows.share_seen)} of these rows were trained on, so nothing here can be judged.",
        "report",
        {},
        'write_report(model, X_new, y_new, "report.html")',
    )


def _catch_up(rows: MeasuredRows, findings: Findings) -> _Idea | None:
    """Advise updates where the latest rows, or all of them, are covered too rarely."""
    is_low = float(np.mean(rows.is_covered)) < find_chance_range(rows)[0]
    is_late = rows.is_ordered and findings.timeline is not None and findings.timeline.is_low_at_the_end
    if not (is_low or is_late):
        return None
    share = float(np.mean(rows.is_covered)) if is_low or findings.timeline is None else findings.timeline.coverage[-1]
    which = "these rows" if is_low else "the latest rows"
    return _Idea(
        "Let it catch up with the present",
        f"Only {format_percent(float(share))} of {which} are covered: they differ from those it was calibrated on. "
        f"As true values become known, let it take them in; its {'sets' if rows.is_class else 'intervals'} follow.",
        "update",
        {},
        "model.update(X_latest, y_latest)",
    )


def _calibrate_by_group(rows: MeasuredRows, findings: Findings) -> _Idea | None:
    """Advise to calibrate by the column of the group that is covered worst, or more rows where that was done."""
    kinds = {feature.name: feature.kind for feature in rows.features}
    names = {TRUE_CLASS: "class", PREDICTED: "prediction"}
    names |= {name: name for name, kind in kinds.items() if kind != "date"}
    if rows.groups is not None:
        return _enlarge_group(rows.groups, findings)
    low = [group for group in findings.low_groups if group.column in names]
    if not low:
        return None
    worst = min(low, key=lambda group: group.share)
    kind = "set" if rows.is_class else "interval"
    title = f"Calibrate by {shorten(worst.column)}"
    if worst.column == TRUE_CLASS:
        title = "Calibrate class by class"
    return _Idea(
        title,
        f"{shorten(worst.column)} {worst.label} is covered in {format_percent(worst.share)} of {worst.n_rows:,} rows, "
        f"{format_percent(rows.coverage)} promised. Calibrated by itself, each group has {kind}s of its own size; "
        "those of some become larger.",
        "fit",
        {"groups": names[worst.column]},
        f"model.calibrate(X_calibration, y_calibration, groups={names[worst.column]!r})",
    )


def _enlarge_group(groups: list[dict[str, Any]], findings: Findings) -> _Idea | None:
    """Advise more rows of a group that is covered too rarely because it has too few to be calibrated by itself."""
    low = {group.label for group in findings.low_groups}
    for group in groups:
        if group["calibrated by"] != "its own rows" and str(group["group"]) in low:
            name = shorten(group["group"], longest=30)
            return _Idea(
                f"Collect more rows of {name}",
                f"Only {group['calibration rows']:,} calibration rows are of {name}, too few to calibrate it by "
                "itself, so it is covered no better than before. Add such rows to a copy of the table and fit again.",
                "fit",
                MORE_ROWS,
                "model.calibrate(X_more, y_more, groups=...)",
            )
    return None


def _use_domain(rows: MeasuredRows, model: Any) -> _Idea | None:
    """Advise a domain where the target is never negative, and intervals reach below 0 or values are skewed."""
    if rows.is_class or not isinstance(model, HCMRegressor) or rows.target.min() < 0:
        return None
    if model.domain_ is not None and model.domain_.low > -np.inf:
        return None
    share = float(np.mean(rows.intervals[1] < 0))
    if share == 0 and not rows.is_skewed.any():
        return None
    reasons = []
    if share > 0:
        reasons.append(f"{format_percent(share, decimals=1)} of the intervals reach below 0, which no true value does")
    if rows.is_skewed.any():
        middle, top = (format_number(float(np.quantile(rows.target, level))) for level in (0.5, 0.99))
        reasons.append(f"the values are skewed (median {middle}, one in a hundred above {top})")
    why = " and ".join(reasons)
    return _Idea(
        "Say that the target is never negative",
        f"{why[0].upper()}{why[1:]}. With a domain, intervals stay inside it, and the root or the logarithm is learned "
        "where that is better.",
        "fit",
        {"domain": "positive"},
        'HCMRegressor(..., domain="positive")',
    )


def _use_time(rows: MeasuredRows) -> _Idea | None:
    if rows.times is None or rows.is_ordered:
        return None
    return _Idea(
        "Measure it on later rows than it learned from",
        f"The rows have dates ({shorten(rows.times.name)}), and were drawn at random. If the model is to predict the "
        "future, fit it on the past and measure it on the latest rows: that is harder, and closer to its use.",
        "fit",
        {"time": rows.times.name},
        "model.fit(X_past, y_past).calibrate(X_later, y_later)",
    )


def _choose_backbone(rows: MeasuredRows) -> _Idea | None:
    if compute_gain(rows) >= _SMALL_GAIN:
        return None
    return _Idea(
        "Try other backbones",
        "It is not much better than a guess. Another backbone may find more; if none does, the columns do not tell "
        "more, and only other columns will help.",
        "fit",
        {"backbone": "auto"},
        f'{"HCMClassifier" if rows.is_class else "HCMRegressor"}("auto")',
    )


def _look_at_novel_rows(rows: MeasuredRows) -> _Idea | None:
    novelty = rows.assessment.novelty
    if novelty is None:
        return None
    n_novel = int(np.sum(novelty > rows.max_novelty))
    share = float(np.mean(novelty > 0))
    # Twice as many as before, and not a handful, is no chance.
    is_many = n_novel >= 5 and share > 2 * max(rows.share_novel_before, 0.01)
    if not is_many:
        return None
    return _Idea(
        "Look at the novel rows",
        f"{format_percent(share, decimals=1)} of these rows are unlike the training rows, and "
        f"{format_percent(rows.share_novel_before, decimals=1)} of the calibration rows were. See what is unusual "
        "about them: a wrong unit, a new category, or a part of the world that the table lacks.",
        "predict",
        {"explain": True, "keep": "all"},
        "X[model.assess(X).novelty > 0]",
    )


def _collect_rows(rows: MeasuredRows, findings: Findings) -> _Idea | None:
    """Advise more rows of the least trusted group, if its errors are much larger."""
    mean = float(np.mean(rows.error))
    for _, grouping, place in find_least_trusted(rows, findings.ranked):
        errors = rows.error[grouping.member == place]
        here, overall = (format_mean_error(rows, each) for each in (errors, rows.error))
        if float(np.mean(errors)) > _MUCH_WORSE * mean:
            what = "wrong in" if rows.is_class else "off by"
            return _Idea(
                f"Collect more rows where {shorten(grouping.name, longest=30)} is {grouping.labels[place]}",
                f"There it is {what} {here}, and {what} {overall} over all rows. Add such rows to a copy of the table "
                "and fit again; if the noise is high there, measure them better instead.",
                "fit",
                MORE_ROWS,
                "select(model, X_pool, n=50)",
            )
    return None


def _leave_columns_out(rows: MeasuredRows, findings: Findings) -> _Idea | None:
    """Advise to leave out columns that do nothing, if every column was tried on enough rows and some do something.

    Columns by which the page tells trusted rows from others are not among them.
    """
    n_tried = sum(map(len, findings.drivers.columns))
    all_idle = findings.drivers.list_idle()
    if findings.drivers.n_rows < _FEWEST_TO_IGNORE or len(all_idle) == n_tried or findings.drivers.n_left_out:
        return None
    told = {grouping.name for grouping in findings.ranked if average_confidence(rows, grouping).is_bad.any()}
    told |= {group.column for group in findings.low_groups}
    idle = [name for name in all_idle if name not in told]
    if not idle:
        return None
    shown = idle[:_MOST_IGNORED]
    more = f" and {len(idle) - len(shown):,} more" if len(idle) > len(shown) else ""
    return _Idea(
        "Leave out columns that do nothing",
        f"Shuffling them changes nothing beyond chance: {', '.join(map(shorten, shown))}{more}. A smaller model is "
        "easier to feed and to watch; keep it if its error is no larger.",
        "fit",
        {"ignore": shown},
        f"X.drop(columns={shown!r})",
    )


def _set_threshold(rows: MeasuredRows) -> _Idea | None:
    if rows.assessment.accepted is not None:
        return None
    return _Idea(
        "Set a threshold",
        "It accepts every row. With a threshold, the rows that it is least sure of go to somebody who looks.",
        "fit",
        {"accept": 0.95},
        "model.set_threshold(AcceptShare(0.95))",
    )
