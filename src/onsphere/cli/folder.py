"""`onsphere predict` of a folder: every file of it, on all cores or on a Ray cluster."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from onsphere._internal.validation import check_share
from onsphere.cli.console import print_json, print_message, spin
from onsphere.errors import InvalidInputError
from onsphere.scale import assess_dataset

__all__ = ["predict_folder"]

_ALPHA = 0.01  # of the word on drift


def predict_folder(model: Path, data: str, out: str | None, *, quiet: bool, as_json: bool, **options: Any) -> None:
    """Predict each row of each file of a folder, and say what became of it; the exit code is 1 if a file failed."""
    if out is None:
        raise InvalidInputError(f"Expected --out with the folder {data}. Got none. Add --out predictions/.")
    if options["coverage"] is not None:
        check_share("--coverage", options["coverage"])
    before: list[float] = []  # what former runs have done
    with spin("predict", hidden=quiet or as_json) as progress:

        def on_progress(n_rows: int, share: float) -> None:
            if not before:
                before.extend((n_rows, share, time.monotonic()))
                return
            seconds, new = max(time.monotonic() - before[2], 1e-9), share - before[1]
            left = seconds * (1 - share) / new if new else 0.0
            speed = (n_rows - before[0]) / seconds
            progress(f"{n_rows:,} rows, {speed:,.0f} rows/s, {share:.0%}, {_format_time(left)} left")

        summary = assess_dataset(model, data, out, on_progress=on_progress, **options)
    if as_json:
        print_json(asdict(summary) | {"out": out})
    elif not quiet:
        why = ", ".join(f"{count:,} {reason}" for reason, count in summary.rejected.items())
        print(
            f"{summary.files:,} file{'' if summary.files == 1 else 's'}, {summary.rows:,} rows, "
            f"{summary.accepted:,} accepted"
            f"{f'; rejected: {why}' if why else ''}. Written to {out}"
        )
        if summary.log_e_value is not None and summary.log_e_value >= -math.log(_ALPHA):
            print_message(
                "Drift: these rows are not like those of the calibration. `onsphere monitor` shows where in a file."
            )
    for message in summary.failures.values():
        print_message(message)
    if summary.failures:
        raise typer.Exit(1)


def _format_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
