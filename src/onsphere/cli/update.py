"""The command `onsphere update`: labels that have become known, so that intervals or sets keep their coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onsphere.cli.console import print_files, print_json, print_message, spin
from onsphere.cli.options import AsJson, CoverageOfFit, Data, Delimiter, Model, Quiet
from onsphere.cli.predict_command import choose_coverage

__all__ = ["update"]


def update(
    model: Model,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Where to save the model.", show_default="in its place")] = None,
    coverage: CoverageOfFit = None,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take in rows whose target has become known, in the order of time, so that coverage is kept."""
    from onsphere._internal.atomic_files import check_writable
    from onsphere.cli.choices import check_no_table
    from onsphere.cli.model_rows import read_labelled_rows, read_moments
    from onsphere.cli.taken_labels import TakenLabels
    from onsphere.evaluation import find_covered
    from onsphere.table.model_file import load_table_model

    saved = model if out is None else out
    check_writable(saved, data, *([] if out is None else [model]))
    if out is not None:
        check_no_table(out, "--out model.onsphere")
    fitted, summary, columns = load_table_model(model)
    share = choose_coverage(coverage, summary)
    with spin("update", hidden=quiet or as_json) as progress:
        progress("reading")
        rows = read_labelled_rows(data, fitted, summary, columns, delimiter)
        notes, time = rows.notes, read_moments(rows, summary, data)
        taken = TakenLabels(summary.get("taken_in") or [])
        if time is None:  # by which labels that are not new are found
            notes = notes + taken.check(rows, data)
        progress(f"{len(rows.y):,} labels")
        result: Any = fitted.assess(rows.X, coverage=share)
        classes = None if result.prediction_set is None else fitted.classes_
        was_covered = find_covered(result, rows.y, classes).reshape(len(rows.y), -1).all(axis=1)
        fitted.update(rows.X, rows.y, time=time)
        fitted.save(saved, summary=summary | {"taken_in": taken.add(rows)})
    online = fitted.calibration_.online
    rolling = online.compute_rolling_coverage(share)
    facts = {
        "labels": len(rows.y),
        "labels_so_far": online.n_labels,
        "coverage_asked": share,
        "coverage_before": float(was_covered.mean()),
        "coverage_rolling": float(rolling[-1]),
        "coverage_rolling_worst": float(rolling.min()),
    }
    if as_json:
        print_json(facts | {"model": saved})
    elif not quiet:
        what, n_latest = "intervals" if classes is None else "sets", min(500, online.n_labels)
        print(
            f"{len(rows.y):,} labels taken in, {online.n_labels:,} so far. The {what} that stood before hold "
            f"{facts['coverage_before']:.1%} of them, {share:.1%} were asked; those that stood before each update "
            f"held {facts['coverage_rolling']:.1%} of the latest {n_latest:,} (at worst "
            f"{facts['coverage_rolling_worst']:.1%} of any {n_latest:,} in a row)."
        )
        print_files(model=saved)
        for note in notes:
            print_message(f"{note}.")
