"""The commands `onsphere evaluate`, `report` and `compare`: how good a model is, and how good others are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onsphere.cli.console import print_figures, print_files, print_json, print_message, print_table, spin
from onsphere.cli.options import (
    COVERAGE,
    AsJson,
    Coverage,
    CoverageOfFit,
    Data,
    Delimiter,
    Ignore,
    Model,
    Quiet,
    Seed,
    Shifted,
    Target,
    Task,
)
from onsphere.cli.predict_command import choose_coverage

__all__ = ["compare", "evaluate", "report"]


def evaluate(
    model: Model,
    data: Data,
    coverage: CoverageOfFit = None,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure a model on a table with known targets."""
    from onsphere.cli.model_rows import read_labelled_rows
    from onsphere.evaluation import evaluate as measure
    from onsphere.table.model_file import load_table_model

    fitted, summary, columns = load_table_model(model)
    share = choose_coverage(coverage, summary)
    with spin("evaluate", hidden=quiet or as_json) as progress:
        progress("reading")
        rows = read_labelled_rows(data, fitted, summary, columns, delimiter)
        progress(f"{len(rows.y):,} rows")
        figures = measure(fitted, rows.X, rows.y, coverage=share, targets=summary["targets"])
        figures["trained_on"] = rows.share_seen
    if as_json:
        print_json(figures)
    elif not quiet:
        print_figures(figures, classes=summary["task"] == "classification")
        for note in rows.notes:
            print_message(f"{note}.")


def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    shifted: Shifted = None,
    coverage: CoverageOfFit = None,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write an HTML page on how good a model is on a table with known targets that it has not seen."""
    from onsphere._internal.atomic_files import check_writable
    from onsphere.cli.choices import check_no_table
    from onsphere.cli.model_rows import read_feature_rows, read_labelled_rows
    from onsphere.cli.report_page import write_report_page
    from onsphere.table.model_file import load_table_model

    check_writable(out, model, data, *([shifted] if shifted else []))
    check_no_table(out, "--out report.html")
    fitted, summary, columns = load_table_model(model)
    share = choose_coverage(coverage, summary)
    with spin("report", hidden=quiet or as_json) as progress:
        progress("reading")
        rows = read_labelled_rows(data, fitted, summary, columns, delimiter)
        other = None if shifted is None else read_feature_rows(shifted, columns, delimiter)
        progress("measuring and drawing")
        write_report_page(
            out,
            fitted,
            rows,
            columns,
            summary,
            data=data,
            coverage=share,
            shifted=other,
            shifted_path=shifted,
            model_path=model,
        )
    if as_json:
        print_json({"rows": len(rows.y), "report": out})
    elif not quiet:
        print_files(report=out)
        for note in rows.notes:
            print_message(f"{note}.")


def compare(
    data: Data,
    target: Target,
    task: Task = "auto",
    shifted: Shifted = None,
    coverage: Coverage = COVERAGE,
    ignore: Ignore = None,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit HCM and other methods on a table, and tabulate how good their uncertainty is."""
    from onsphere.cli.choices import check_options, find_columns
    from onsphere.cli.model_rows import read_feature_rows
    from onsphere.table import compare_table, read_table
    from onsphere.table.files import check_file

    check_options(task, coverage, seed)
    if shifted is not None:
        check_file(shifted)
    with spin("compare", hidden=quiet or as_json) as progress:
        progress("reading")
        frame = read_table(data, delimiter=delimiter)
        other = None
        if shifted is not None:
            other = read_feature_rows(shifted, find_columns(frame, target, ignore=ignore or ()), delimiter)
        progress("fitting all methods")
        result = compare_table(
            frame, target, task=task, coverage=coverage, ignore=ignore or (), shifted=other, random_state=seed
        )
    if as_json:
        print_json({"rows": result.rows, "failures": result.failures})
    elif not quiet:
        print_table(result.rows, result.columns, title=f"{data.name}: {', '.join(target)}")
        for name, message in result.failures.items():
            print_message(f"{name} failed: {message}")
