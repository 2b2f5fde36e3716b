"""`onsphere fit`, `predict`, `evaluate`, `report` and `compare`: from a table to a decision about each row."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from onsphere._internal.atomic_files import check_writable
from onsphere._internal.validation import check_number, check_option
from onsphere.cli.console import print_json, print_table, spinner, tell
from onsphere.cli.model_rows import feature_rows, known_rows, names_of_rows, share_asked, typed_features
from onsphere.cli.output import show_figures, show_files, show_fit
from onsphere.decision import AcceptShare, MaxErrorRate, Rule, Tolerance
from onsphere.errors import InvalidInputError
from onsphere.table import BACKBONES, Column, compare_table, describe_columns, fit_table, predict_file, read_table
from onsphere.table import evaluate as measure
from onsphere.table.cells import read_features
from onsphere.table.files import check_file, check_suffix
from onsphere.table.fit import TASKS
from onsphere.table.model_file import load_table_model

__all__ = ["compare", "evaluate", "fit", "predict", "report"]

Data = Annotated[Path, typer.Argument(help="A table: CSV, Parquet or Arrow.", show_default=False)]
Model = Annotated[Path, typer.Argument(help="What `onsphere fit --save` wrote.", show_default=False)]
Target = Annotated[
    list[str], typer.Option("--target", "-t", help="The column to predict; repeat it for several.", show_default=False)
]
Task = Annotated[str, typer.Option(help=f"{', '.join(TASKS)}.", autocompletion=lambda: TASKS)]
Coverage = Annotated[float, typer.Option(help="Which share of the truth intervals or sets are to hold.")]
CoverageOfFit = Annotated[float | None, typer.Option(help="Of intervals or sets.", show_default="as in fit")]
Ignore = Annotated[list[str] | None, typer.Option(help="A column not to learn from; repeat it for several.")]
Delimiter = Annotated[str | None, typer.Option(help="Of a CSV file.", show_default="found from the file")]
Shifted = Annotated[
    Path | None, typer.Option(help="A second table, without a target, to compare with the first.", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Seed = Annotated[int, typer.Option(help="Of the split and the model; the same seed gives the same model.")]

_COVERAGE = 0.9
_FEWEST_REPORTED = 10  # rows that the model has not seen


def fit(
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
    save: Annotated[Path | None, typer.Option(help="Where to keep the model.", show_default=False)] = None,
    report: Annotated[Path | None, typer.Option(help="Where to write an HTML report.", show_default=False)] = None,
    coverage: Coverage = _COVERAGE,
    accept: Annotated[
        float | None, typer.Option(help="Accept this share of rows like these.", show_default="0.95")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Reject what may be off by more than this.", show_default=False)
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(
            help="Of the accepted, at most this share is wrong (off by more than --tolerance).", show_default=False
        ),
    ] = None,
    key: Annotated[list[str] | None, typer.Option(help="A column that names rows; repeat it for several.")] = None,
    ignore: Ignore = None,
    shifted: Shifted = None,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a model with an uncertainty on a table, calibrate it, set a threshold, and say what it is worth."""
    check_option("fit", "--backbone", backbone, ["auto", *BACKBONES])
    _check_options("fit", task, coverage, seed)
    rule = _rule(accept, tolerance, risk)
    inputs = [data, *([shifted] if shifted else [])]
    if save is not None:
        check_writable(save, *inputs)
    if report is not None:
        check_writable(report, *inputs, *([save] if save else []))
    if shifted is not None:
        check_file(shifted)
    with spinner("fit", hidden=quiet or as_json) as progress:
        progress("reading")
        frame = read_table(data, delimiter=delimiter)
        found = fit_table(
            frame,
            target,
            task=task,
            backbone=backbone,
            coverage=coverage,
            rule=rule,
            keys=key or (),
            ignore=ignore or (),
            random_state=seed,
            report=progress,
        )
        if report is not None and len(found.y_test) < _FEWEST_REPORTED:
            raise InvalidInputError(
                f"Expected at least {_FEWEST_REPORTED} rows to report on, a fifth of the table. "
                f"Got {len(found.y_test)}. Add rows, or leave --report out."
            )
        other = None if shifted is None else _shown_rows(shifted, found.columns, delimiter)
        summary = {"data": str(data), **found.summary()}
        if save is not None:
            progress("saving")
            found.model.save(save, summary=summary)
        if report is not None:
            progress("writing the report")
            names = names_of_rows(frame.loc[found.X_test.index], found.columns)
            options: Any = {"coverage": coverage, "names": names, "shifted": other, "shifted_path": shifted}
            X_test = typed_features(read_features(found.X_test, found.columns), found.columns)
            _write_report(found.model, X_test, found.y_test, report, summary, data, **options)
    if as_json:
        told = {name: value for name, value in summary.items() if name != "reference"}  # a hundred numbers a column
        print_json(told | {"save": save, "report": report})
    elif not quiet:
        show_fit(found)
        show_files(save=save, report=report)
        if save is None:
            tell("The model was not kept; add --save model.onsphere to use it.")


def predict(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="Where to write: .csv, .parquet or .arrow.", show_default="stdout, as CSV")
    ] = None,
    coverage: CoverageOfFit = None,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict each row of a table, with its uncertainty, interval, confidence, and whether to accept it."""
    if out is not None:
        check_writable(out, model, data)
        check_suffix(out)
    elif quiet or as_json:
        raise InvalidInputError(
            f"Expected --out with --{'json' if as_json else 'quiet'}, which prints no predictions. Got none. "
            "Add --out predictions.csv."
        )
    fitted, summary, columns = load_table_model(model)
    share = share_asked(coverage, summary)
    with tempfile.TemporaryDirectory() as folder, spinner("predict", hidden=quiet or as_json) as progress:
        counts = predict_file(
            fitted,
            columns,
            data,
            out or Path(folder) / "predictions.csv",
            targets=summary["targets"],
            coverage=share,
            delimiter=delimiter,
            report=lambda n_rows: progress(f"{n_rows:,} rows"),
        )
        if out is None:
            with (Path(folder) / "predictions.csv").open(encoding="utf-8", newline="") as lines:
                sys.stdout.writelines(lines)
    if as_json:
        print_json(counts | {"out": out})
    elif out is not None and not quiet:
        print(f"{counts['rows']:,} rows, {counts['accepted']:,} accepted. Written to {out}")


def evaluate(
    model: Model,
    data: Data,
    coverage: CoverageOfFit = None,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure a model on a table with known targets."""
    fitted, summary, columns = load_table_model(model)
    share = share_asked(coverage, summary)
    with spinner("evaluate", hidden=quiet or as_json) as progress:
        progress("reading")
        rows = known_rows(data, fitted, summary, columns, delimiter)
        progress(f"{len(rows.y):,} rows")
        figures = measure(fitted, rows.X, rows.y, coverage=share, targets=summary["targets"])
    if as_json:
        print_json(figures)
    elif not quiet:
        show_figures(figures, classes=summary["task"] == "classification")
        for note in rows.notes:
            tell(f"{note}.")


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
    """Write an HTML page on what a model is worth on a table with known targets, which it has not seen."""
    check_writable(out, model, data, *([shifted] if shifted else []))
    fitted, summary, columns = load_table_model(model)
    share = share_asked(coverage, summary)
    with spinner("report", hidden=quiet or as_json) as progress:
        progress("reading")
        rows = known_rows(data, fitted, summary, columns, delimiter)
        other = None if shifted is None else _shown_rows(shifted, columns, delimiter)
        progress("measuring and drawing")
        options: Any = {"coverage": share, "names": rows.names, "shifted": other, "shifted_path": shifted}
        _write_report(fitted, typed_features(rows.X, columns), rows.y, out, summary, data, **options)
    if as_json:
        print_json({"rows": len(rows.y), "report": out})
    elif not quiet:
        show_files(report=out)
        for note in rows.notes:
            tell(f"{note}.")


def compare(
    data: Data,
    target: Target,
    task: Task = "auto",
    shifted: Shifted = None,
    coverage: Coverage = _COVERAGE,
    ignore: Ignore = None,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit HCM and other methods on a table, and tabulate what their uncertainty is worth."""
    _check_options("compare", task, coverage, seed)
    if shifted is not None:
        check_file(shifted)
    with spinner("compare", hidden=quiet or as_json) as progress:
        progress("reading")
        frame = read_table(data, delimiter=delimiter)
        other = None
        if shifted is not None:
            left_out = {*target, *(ignore or ())}
            columns = [column for column in describe_columns(frame) if column.name not in left_out]
            other = feature_rows(shifted, columns, delimiter)
        progress("fitting all methods")
        options: Any = {"task": task, "coverage": coverage, "ignore": ignore or (), "random_state": seed}
        result = compare_table(frame, target, shifted=other, **options)
    if as_json:
        print_json({"rows": result.rows, "failures": result.failures})
    elif not quiet:
        print_table(result.rows, result.columns, title=f"{data.name}: {', '.join(target)}")
        for name, message in result.failures.items():
            tell(f"{name} failed: {message}")


def _check_options(command: str, task: str, coverage: float, seed: int) -> None:
    check_option(command, "--task", task, TASKS)
    check_number(command, "--coverage", coverage, above=0, below=1)
    check_number(command, "--seed", seed, above=0, below=2**32, closed="left", whole=True)


def _rule(accept: float | None, tolerance: float | None, risk: float | None) -> Rule | None:
    for name, share in (("--accept", accept), ("--risk", risk)):
        if share is not None:
            check_number("fit", name, share, above=0, below=1)
    if tolerance is not None:
        check_number("fit", "--tolerance", tolerance, above=0)
    if accept is not None and risk is not None:
        raise InvalidInputError("Expected --accept or --risk. Got both. Choose how rows are to be accepted.")
    if risk is not None:
        return MaxErrorRate(risk, tolerance=tolerance)
    if accept is not None and tolerance is not None:
        raise InvalidInputError("Expected --accept or --tolerance. Got both. Choose how rows are to be accepted.")
    if tolerance is not None:
        return Tolerance(tolerance)
    return None if accept is None else AcceptShare(accept)


def _shown_rows(path: Path, columns: list[Column], delimiter: str | None) -> Any:
    return typed_features(feature_rows(path, columns, delimiter), columns)


def _write_report(
    model: Any,
    X: Any,
    y: Any,
    path: Path,
    summary: dict[str, Any],
    data: Path,
    *,
    coverage: float,
    names: list[str] | None,
    shifted: Any,
    shifted_path: Any,
) -> None:
    from onsphere.report import write_report

    n_rows = summary["n_rows"]
    write_report(
        model,
        X,
        y,
        path,
        title=f"{', '.join(summary['targets'])} from {Path(str(summary.get('data', 'a table'))).name}",
        target_name=", ".join(summary["targets"]),
        coverage=coverage,
        row_names=names,
        X_shifted=None if shifted is None else shifted[list(X.columns)],
        shifted_name=None if shifted_path is None else shifted_path.name,
        facts={
            "Measured on": data.name,
            "Task": f"{summary['task']} ({summary['why']})",
            "Backbone": summary["backbone"],
            "Rows": f"{n_rows['train']:,} trained on, {n_rows['calibration']:,} calibrated on",
            "Notes": "; ".join(summary["notes"]) or "none",
        },
    )
