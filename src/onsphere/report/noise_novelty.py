"""Noise and novelty: whether a row is uncertain because similar rows disagree, or because there were none like it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere import plots
from onsphere._internal.validation import Floats
from onsphere.evaluation import count_reasons
from onsphere.metrics._checks import pick_evenly
from onsphere.report.elements import Picture, Section, Table, draw_picture, make_table
from onsphere.report.formatting import format_number, format_percent, shorten
from onsphere.report.measured_rows import MeasuredRows

__all__ = ["describe_reasons", "show_noise_and_novelty"]

MOST_POINTS = 2_000  # in the CSV file

# What to do about the rows in each corner: first of the quiet ones, then of the noisy ones; known before novel.
ADVICE = {
    "quiet and known": "Trust it: there were many rows like it, and they agree.",
    "noisy and known": "Measure better, or measure again: rows like it disagree, and more of them do not help.",
    "quiet and novel": "Collect rows like it: there were none, and how sure the model seems says nothing.",
    "noisy and novel": "Both: collect rows like it, and measure each more than once.",
}


def show_noise_and_novelty(rows: MeasuredRows) -> Section:
    """Return the picture of noise against novelty, its four corners, and why rows were rejected."""
    noise, novelty = rows.noise, np.asarray(rows.assessment.novelty)
    limit = float(np.quantile(noise, plots.QUIET_SHARE))
    is_noisy, is_novel = noise > limit, novelty > rows.max_novelty
    beyond = "above 0" if rows.max_novelty == 0 else f"above the limit of {format_number(rows.max_novelty)}"
    unit = "from 0 to 1" if rows.is_class else "in the unit of the target"
    paragraphs = [
        f"Noise is how far similar rows disagree, {unit}. Novelty is how unlike all training rows a row is: 0, as for "
        "98\u202f% of them, to 1, for a row that has nothing in common with any. Both make a prediction uncertain, and "
        "each calls for something else. Here a row is noisy if it is noisier than four fifths of these rows, and novel "
        f"if its novelty is {beyond}.",
        f"{format_percent(float(np.mean(novelty > 0)), decimals=1)} of these rows have a novelty above 0, and "
        f"{format_percent(rows.share_novel_before, decimals=1)} of the calibration rows had. {describe_reasons(rows)}",
    ]
    corner = is_noisy + 2 * is_novel
    return Section(
        "noise-and-novelty",
        "Noise and novelty",
        [text.strip() for text in paragraphs],
        [_draw(rows, noise, novelty, limit)],
        [_make_table(rows, corner)],
    )


def describe_reasons(rows: MeasuredRows) -> str:
    """Return a sentence on why rows were rejected; none if no row was."""
    counts = count_reasons(rows.assessment)
    n_rejected = sum(counts.values())
    if n_rejected == 0:
        return ""
    if not rows.limits_novelty:
        return f"The {n_rejected:,} rejected rows are too uncertain; novelty has no limit of its own here."
    uncertain, novel, both = counts.values()
    return f"Of the {n_rejected:,} rejected rows, {uncertain:,} are uncertain, {novel:,} novel, and {both:,} both."


def _draw(rows: MeasuredRows, noise: Floats, novelty: Floats, limit: float) -> Picture:
    chosen = pick_evenly(noise, MOST_POINTS)
    accepted = rows.assessment.accepted
    columns: dict[str, Any] = {"row": rows.row_names, "noise": noise, "novelty": novelty}
    columns |= {} if accepted is None else {"accepted": accepted, "reason": rows.assessment.reason}
    marks = "" if accepted is None else " Crosses are rejected."
    some = "" if len(chosen) == len(rows) else f" {len(chosen):,} of {len(rows):,} rows are in the file, evenly spread."

    limits = {"max_noise": limit, "max_novelty": rows.max_novelty}
    return draw_picture(
        "noise-and-novelty",
        lambda ax: plots.noise_novelty(noise, novelty, accepted=accepted, **limits, ax=ax),
        {name: values[chosen] for name, values in columns.items()},
        title="Why it is unsure",
        reading="Each point is a row; those at the left are like the training rows, and lie side by side. Up is noise: "
        f"measure better. To the right is novelty: collect rows like these.{marks}{some}",
    )


def _make_table(rows: MeasuredRows, corner: NDArray[Any]) -> Table:
    members = [corner == place for place in range(len(ADVICE))]

    def average(values: NDArray[Any]) -> list[float]:
        return [float(np.mean(values[each])) if each.any() else math.nan for each in members]

    columns: list[Any] = [
        ("rows that are", list(ADVICE), shorten),
        ("rows", [int(each.sum()) for each in members], "{:,}".format),
        (rows.error_name, average(rows.error), format_percent if rows.is_class else format_number),
    ]
    if rows.assessment.accepted is not None:
        columns.append(("accepted", average(rows.assessment.accepted), format_percent))
    columns.append(("what to do", list(ADVICE.values()), lambda text: shorten(text, longest=120)))
    return make_table("corners", "The four corners of the picture.", columns)
