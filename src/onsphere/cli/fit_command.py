"""The command `onsphere fit`: from a table to a model, calibrated and measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onsphere.cli.console import print_files, print_fit, print_json, print_message, spin
from onsphere.cli.next_commands import list_given_options
from onsphere.cli.options import (
    BACKBONES,
    CALIBRATIONS,
    COVERAGE,
    FRAMES,
    AsJson,
    Coverage,
    Data,
    Delimiter,
    Ignore,
    Quiet,
    Seed,
    Shifted,
    Target,
    Task,
)

__all__ = ["fit"]

_FEWEST_REPORTED = 10  # rows that the model has not seen
_FEW_ROWS = 5_000


def fit(
    context: typer.Context,
    data: Data,
    target: Target,
    task: Task = "auto",
    backbone: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(BACKBONES)} or auto, the best of them by CV.",
            autocompletion=lambda: ["auto", *BACKBONES],
        ),
    ] = "auto",
    save: Annotated[Path | None, typer.Option(help="Where to save the model.", show_default=False)] = None,
    report: Annotated[Path | None, typer.Option(help="Where to write an HTML report.", show_default=False)] = None,
    coverage: Coverage = COVERAGE,
    accept: Annotated[
        float | None, typer.Option(help="Accept this share of rows like these.", show_default="0.95")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Reject rows that may be off by more than this.", show_default=False)
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(
            help="At most this share of the accepted rows is wrong (off by more than --tolerance).", show_default=False
        ),
    ] = None,
    max_novelty: Annotated[
        float | None,
        typer.Option(help="Reject rows that are more novel than this, from 0 to 1.", show_default="0.5"),
    ] = None,
    novelty_false_alarm: Annotated[
        float | None,
        typer.Option(help="Reject the most novel rows: at most this share of rows like these.", show_default=False),
    ] = None,
    frames: Annotated[
        str,
        typer.Option(
            help="all, or target: the paper's uncertainty, without noise and novelty.",
            autocompletion=lambda: FRAMES,
        ),
    ] = "all",
    groups: Annotated[
        str | None,
        typer.Option(
            help="Cover each group as promised: by a column, by prediction, novelty or class.", show_default=False
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="The column that orders the rows: train on the past, calibrate and measure on later rows.",
            show_default=False,
        ),
    ] = None,
    domain: Annotated[
        str,
        typer.Option(
            help="What the target can be: auto (found, and said), none (any number), positive, count, or LOW,HIGH."
        ),
    ] = "auto",
    key: Annotated[list[str] | None, typer.Option(help="A column that names rows; repeat it for several.")] = None,
    ignore: Ignore = None,
    number: Annotated[list[str] | None, typer.Option(help="A column to read as numbers; repeat it.")] = None,
    category: Annotated[list[str] | None, typer.Option(help="A column to read as categories; repeat it.")] = None,
    date: Annotated[
        list[str] | None, typer.Option(help="A column to read as dates, as NAME or NAME=%d.%m.%Y; repeat it.")
    ] = None,
    shifted: Shifted = None,
    test: Annotated[
        Path | None,
        typer.Option(help="A table to measure the model on; then no rows are kept out for it.", show_default=False),
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(
            help="cv: learn from all rows; split: keep some to calibrate on, for a guarantee; auto: by their number.",
            autocompletion=lambda: CALIBRATIONS,
        ),
    ] = "auto",
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit again on all rows once the model is measured, and save that model.")
    ] = False,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a model with an uncertainty on a table, calibrate it, set a threshold, and say how good it is."""
    from threadpoolctl import threadpool_limits

    from onsphere._internal.atomic_files import check_writable
    from onsphere._internal.validation import check_choice
    from onsphere.cli import choices
    from onsphere.cli.flag_words import name_flags
    from onsphere.cli.model_rows import LabelledRows, name_rows, read_feature_rows, read_times
    from onsphere.cli.report_page import write_report_page
    from onsphere.errors import InvalidInputError
    from onsphere.table import fit_table, read_table
    from onsphere.table.cells import read_features
    from onsphere.table.files import check_file

    check_choice("--backbone", backbone, ["auto", *BACKBONES])
    check_choice("--frames", frames, FRAMES)
    check_choice("--calibration", calibration, CALIBRATIONS)
    choices.check_options(task, coverage, seed)
    rule, novelty = (
        choices.choose_rule(accept, tolerance, risk),
        choices.choose_novelty(max_novelty, novelty_false_alarm, frames),
    )
    kinds = choices.join_kinds(number, category, date)
    inputs = [data, *(path for path in (shifted, test) if path)]
    if save is not None:
        check_writable(save, *inputs)
        choices.check_no_table(save, "--save model.onsphere")
    if report is not None:
        check_writable(report, *inputs, *([save] if save else []))
        choices.check_no_table(report, "--report report.html")
    for path in inputs[1:]:
        check_file(path)
    if refit and test is not None:
        raise InvalidInputError(
            "Expected --refit or --test. Got both. With --test, no rows are kept out: leave --refit out."
        )
    with spin("fit", hidden=quiet or as_json) as progress:
        progress("reading")
        frame = read_table(data, delimiter=delimiter)
        other_rows = None
        if test is not None:
            known = choices.find_columns(
                frame, target, keys=[*(key or ()), *([time] if time else [])], ignore=ignore or (), kinds=kinds
            )
            other_rows = read_table(test, columns=known, delimiter=delimiter)
        # On few rows, threads that wait for each other take longer than one alone.
        n_threads = 1 if len(frame) < _FEW_ROWS else None
        with choices.name_options(rule, novelty), threadpool_limits(n_threads):
            found = fit_table(
                frame,
                target,
                task=task,
                backbone=backbone,
                frames=frames,
                coverage=coverage,
                rule=rule,
                novelty=novelty,
                groups=groups,
                time=time,
                domain=choices.choose_domain(domain),
                keys=key or (),
                ignore=ignore or (),
                kinds=kinds,
                test=other_rows,
                calibration=calibration,
                refit=refit,
                random_state=seed,
                on_progress=progress,
            )
        notes = [name_flags(note.replace(str(rule), choices.format_rule(rule))) for note in found.notes]
        found = replace(found, why=name_flags(found.why), notes=notes)
        share_seen = 0.0
        if test is not None:
            share_seen = found.measured_model._compute_share_seen(found.X_test, found.y_test)
            found.figures["trained_on"] = share_seen
        if report is not None and len(found.y_test) < _FEWEST_REPORTED:
            raise InvalidInputError(
                f"Expected at least {_FEWEST_REPORTED} rows to report on, a fifth of the table. "
                f"Got {len(found.y_test)}. Add rows, or leave --report out."
            )
        other = None if shifted is None else read_feature_rows(shifted, found.columns, delimiter)
        summary = {"data": str(data), "options": list_given_options(context), **found.summary()}
        if save is not None:
            progress("saving")
            found.model.save(save, summary=summary)
        if report is not None:
            progress("writing the report")
            measured_rows = frame if other_rows is None else other_rows
            measured = measured_rows.loc[found.X_test.index]
            rows = LabelledRows(
                read_features(found.X_test, found.columns),
                found.y_test,
                [],
                measured,
                name_rows(measured, found.columns),
                share_seen,
                read_times(measured, summary),
            )
            write_report_page(
                report,
                found.measured_model,
                rows,
                found.columns,
                summary,
                data=test or data,
                coverage=coverage,
                shifted=other,
                shifted_path=shifted,
                model_path=save,
            )
    if as_json:
        shown = {name: value for name, value in summary.items() if name != "reference"}  # a hundred numbers a column
        print_json(shown | {"save": save, "report": report})
    elif not quiet:
        print_fit(found)
        print_files(save=save, report=report)
        if save is None:
            print_message("The model was not saved; add --save model.onsphere to use it.")
