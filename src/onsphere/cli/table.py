"""The commands `onsphere fit`, `predict`, `evaluate`, `report` and `compare`: from a table to decisions."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from onsphere._internal.atomic_files import check_writable
from onsphere._internal.validation import check_number, check_option
from onsphere.calibration import TAILS
from onsphere.cli.console import print_figures, print_files, print_fit, print_json, print_message, print_table, spin
from onsphere.cli.model_rows import (
    KnownRows,
    name_rows,
    name_targets,
    read_feature_rows,
    read_known_rows,
    read_times,
    restore_types,
)
from onsphere.cli.next_commands import list_given_options, make_command_writer
from onsphere.decision import AcceptShare, MaxErrorRate, Novelty, Tolerance
from onsphere.errors import InvalidInputError
from onsphere.evaluation import evaluate as measure
from onsphere.table import BACKBONES, Column, compare_table, fit_table, predict_file, read_table
from onsphere.table.cells import read_features
from onsphere.table.encoder import find_ordinary_values
from onsphere.table.files import SUFFIXES, check_file
from onsphere.table.fit import CALIBRATIONS
from onsphere.table.model_file import load_table_model
from onsphere.table.predict import KEPT, check_suffix
from onsphere.table.prepare import TASKS, choose_columns

__all__ = ["choose_coverage", "compare", "evaluate", "fit", "predict", "read_levels", "report"]

Data = Annotated[
    Path, typer.Argument(help="A table: CSV, Excel, Parquet or Arrow, zipped or not; - is stdin.", show_default=False)
]
Model = Annotated[Path, typer.Argument(help="What `onsphere fit --save` wrote.", show_default=False)]
Target = Annotated[
    list[str], typer.Option("--target", "-t", help="The column to predict; repeat it for several.", show_default=False)
]
Task = Annotated[str, typer.Option(help=f"{', '.join(TASKS)}.", autocompletion=lambda: TASKS)]
Coverage = Annotated[float, typer.Option(help="The share of true values that intervals or sets are to hold.")]
CoverageOfFit = Annotated[float | None, typer.Option(help="Coverage of intervals or sets.", show_default="as in fit")]
Ignore = Annotated[list[str] | None, typer.Option(help="A column not to learn from; repeat it for several.")]
Delimiter = Annotated[str | None, typer.Option(help="The delimiter of a CSV file.", show_default="found from the file")]
Shifted = Annotated[
    Path | None, typer.Option(help="A second table, without a target, to compare with the first.", show_default=False)
]
Tails = Annotated[
    str,
    typer.Option(
        help="Where intervals miss: symmetric around the value, equal on both sides, or as makes them shortest.",
        autocompletion=lambda: TAILS,
    ),
]
Quantiles = Annotated[
    str | None, typer.Option(help="Levels of quantiles to add, such as 0.05,0.5,0.95.", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Seed = Annotated[int, typer.Option(help="A number that sets the split and the model; the same gives the same model.")]

_Rule = AcceptShare | MaxErrorRate | Tolerance
_FRAMES = ("all", "target")
_COVERAGE = 0.9
_MAX_NOVELTY = 0.5
_MOST_UNUSUAL = 10  # columns that are named
_FEWEST_REPORTED = 10  # rows that the model has not seen


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
    coverage: Coverage = _COVERAGE,
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
            autocompletion=lambda: _FRAMES,
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
            help="What the target can be: none (any number), auto (found, and said), positive, count, or LOW,HIGH."
        ),
    ] = "none",
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
    check_option("fit", "--backbone", backbone, ["auto", *BACKBONES])
    check_option("fit", "--frames", frames, _FRAMES)
    check_option("fit", "--calibration", calibration, CALIBRATIONS)
    _check_options("fit", task, coverage, seed)
    rule, novelty = _choose_rule(accept, tolerance, risk), _choose_novelty(max_novelty, novelty_false_alarm, frames)
    kinds = _join_kinds(number, category, date)
    inputs = [data, *(path for path in (shifted, test) if path)]
    if save is not None:
        check_writable(save, *inputs)
        _check_no_table(save, "--save model.onsphere")
    if report is not None:
        check_writable(report, *inputs, *([save] if save else []))
        _check_no_table(report, "--report report.html")
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
            other_rows = read_table(test, columns=_find_columns(frame, target, kinds), delimiter=delimiter)
        with _name_options(rule, novelty):
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
                domain=_choose_domain(domain),
                keys=key or (),
                ignore=ignore or (),
                kinds=kinds,
                test=other_rows,
                calibration=calibration,
                refit=refit,
                random_state=seed,
                on_progress=progress,
            )
        found = replace(found, notes=[note.replace(str(rule), _format_rule(rule)) for note in found.notes])
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
            names = name_rows(measured_rows.loc[found.X_test.index], found.columns)
            times = read_times(measured_rows.loc[found.X_test.index], summary)
            rows = KnownRows(read_features(found.X_test, found.columns), found.y_test, [], names, times=times)
            options: Any = {"coverage": coverage, "shifted": other, "shifted_path": shifted, "model_path": save}
            _write_report(report, found.measured_model, rows, found.columns, summary, test or data, **options)
    if as_json:
        shown = {name: value for name, value in summary.items() if name != "reference"}  # a hundred numbers a column
        print_json(shown | {"save": save, "report": report})
    elif not quiet:
        print_fit(found)
        print_files(save=save, report=report)
        if save is None:
            print_message("The model was not saved; add --save model.onsphere to use it.")


def predict(
    model: Model,
    data: Annotated[
        str, typer.Argument(help="A table, or a folder of tables, such as in/ or s3://bucket/in.", show_default=False)
    ],
    out: Annotated[
        str | None,
        typer.Option(help="Where to write: .csv, .parquet or .arrow, or a folder.", show_default="stdout, as CSV"),
    ] = None,
    coverage: CoverageOfFit = None,
    tails: Tails = "symmetric",
    quantiles: Quantiles = None,
    keep: Annotated[
        str,
        typer.Option(
            help="keys, or all: write every column that the model was fitted on beside the answers.",
            autocompletion=lambda: KEPT,
        ),
    ] = "keys",
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probability of every class.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what is unusual about rows, and which columns drive rejected ones.")
    ] = False,
    delimiter: Delimiter = None,
    engine: Annotated[
        str, typer.Option(help="For a folder: local, all cores of this machine, or ray, a cluster.")
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster.", show_default="a new one here")] = None,
    workers: Annotated[
        int | None, typer.Option(help="For a folder: how many files at once.", show_default="one on each core")
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="For a folder: stop at a file that cannot be read, or skip it.")
    ] = "stop",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict each row of a table, with its uncertainty, noise, novelty, interval, and whether to accept it."""
    check_option("predict", "--tails", tails, TAILS)
    check_option("predict", "--keep", keep, KEPT)
    levels = read_levels(quantiles)
    for_folders: Any = {"engine": engine, "address": address, "n_workers": workers, "on_error": on_error}
    if "://" in data or Path(data).is_dir():
        from onsphere.cli.folder import predict_folder

        for_files = {
            "--tails": tails != "symmetric",
            "--quantiles": quantiles,
            "--keep": keep != "keys",
            "--probabilities": probabilities,
            "--explain": explain,
            "--delimiter": delimiter,
        }
        _refuse(for_files, "a single file", f"the folder {data}")
        predict_folder(model, data, out, coverage=coverage, quiet=quiet, as_json=as_json, **for_folders)
        return
    given = {
        "--engine": engine != "local",
        "--address": address,
        "--workers": workers,
        "--on-error": on_error != "stop",
    }
    _refuse(given, "a folder", f"the file {data}")
    if out is not None:
        check_writable(out, model, data)
        check_suffix(Path(out))
    elif quiet or as_json:
        raise InvalidInputError(
            f"Expected --out with --{'json' if as_json else 'quiet'}, which prints no predictions. Got none. "
            "Add --out predictions.csv."
        )
    fitted, summary, columns = load_table_model(model)
    share = choose_coverage(coverage, summary)
    # Where predictions go to a terminal, a line that moves would get between them.
    hidden = quiet or as_json or (out is None and sys.stdout.isatty())
    with spin("predict", hidden=hidden) as progress:
        found = predict_file(
            fitted,
            columns,
            data,
            out or sys.stdout.buffer,
            targets=summary["targets"],
            coverage=share,
            tails=tails,
            quantiles=levels,
            delimiter=delimiter,
            ordinary=find_ordinary_values(fitted, summary, columns),
            keep=keep,
            probabilities=probabilities,
            explain=explain,
            on_progress=lambda n_rows: progress(f"{n_rows:,} rows"),
        )
    counts, unusual = found.counts, found.unusual
    if as_json:
        print_json(counts | {"unusual": [each.to_dict() for each in unusual], "out": out})
    elif not quiet:
        if out is not None:
            n_rows, n_accepted, *rejected = counts.values()
            reasons = [f"{count:,} {name}" for name, count in zip(list(counts)[2:], rejected, strict=True) if count]
            why = f"; rejected: {', '.join(reasons)}" if reasons else ""
            print(f"{n_rows:,} rows, {n_accepted:,} accepted{why}. Written to {out}")
        for each in [each for each in unusual if each.deserves_a_look][:_MOST_UNUSUAL]:
            print_message(f"{each}.")


def _refuse(given: dict[str, Any], needed: str, got: str) -> None:
    """Refuse options that are given and do not apply."""
    names = [name for name, value in given.items() if value]
    if names:
        raise InvalidInputError(f"Expected {needed} with {' and '.join(names)}. Got {got}. Leave the option out.")


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
    share = choose_coverage(coverage, summary)
    with spin("evaluate", hidden=quiet or as_json) as progress:
        progress("reading")
        rows = read_known_rows(data, fitted, summary, columns, delimiter)
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
    check_writable(out, model, data, *([shifted] if shifted else []))
    _check_no_table(out, "--out report.html")
    fitted, summary, columns = load_table_model(model)
    share = choose_coverage(coverage, summary)
    with spin("report", hidden=quiet or as_json) as progress:
        progress("reading")
        rows = read_known_rows(data, fitted, summary, columns, delimiter)
        other = None if shifted is None else read_feature_rows(shifted, columns, delimiter)
        progress("measuring and drawing")
        options: Any = {"coverage": share, "shifted": other, "shifted_path": shifted, "model_path": model}
        _write_report(out, fitted, rows, columns, summary, data, **options)
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
    coverage: Coverage = _COVERAGE,
    ignore: Ignore = None,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit HCM and other methods on a table, and tabulate how good their uncertainty is."""
    _check_options("compare", task, coverage, seed)
    if shifted is not None:
        check_file(shifted)
    with spin("compare", hidden=quiet or as_json) as progress:
        progress("reading")
        frame = read_table(data, delimiter=delimiter)
        other = None
        if shifted is not None:
            columns = [column for column in _find_columns(frame, target, {}) if column.name not in (ignore or ())]
            other = read_feature_rows(shifted, columns, delimiter)
        progress("fitting all methods")
        options: Any = {"task": task, "coverage": coverage, "ignore": ignore or (), "random_state": seed}
        result = compare_table(frame, target, shifted=other, **options)
    if as_json:
        print_json({"rows": result.rows, "failures": result.failures})
    elif not quiet:
        print_table(result.rows, result.columns, title=f"{data.name}: {', '.join(target)}")
        for name, message in result.failures.items():
            print_message(f"{name} failed: {message}")


def _check_no_table(path: Path, example: str) -> None:
    """Check that a file which is no table does not get the name of one, and so take its place."""
    if any(suffix.lower() in (*SUFFIXES, ".xlsx", ".zip") for suffix in path.suffixes[-2:]):
        raise InvalidInputError(
            f"Expected a name that is not that of a table, which would be overwritten. Got {path}. Choose another "
            f"name, for example {example}."
        )


def _find_columns(frame: Any, targets: list[str], kinds: dict[str, str]) -> list[Column]:
    """Return the columns that a second table is to be read by: those of the first; wrong names are found by the fit."""
    named = [name for name in targets if name in frame.columns]
    return choose_columns(frame, named, kinds={name: kind for name, kind in kinds.items() if name in frame.columns})


def _join_kinds(numbers: list[str] | None, categories: list[str] | None, dates: list[str] | None) -> dict[str, str]:
    """Return what each column is to be read as."""
    named = [(name, "number") for name in numbers or ()] + [(name, "category") for name in categories or ()]
    for each in dates or ():
        name, mark, date_format = each.partition("=")
        named.append((name, f"date{mark}{date_format}"))
    kinds = dict(named)
    if len(kinds) < len(named):
        repeated = next(name for name in kinds if sum(each == name for each, _ in named) > 1)
        raise InvalidInputError(
            f"Expected {repeated} once among --number, --category and --date. Got it more than once. Choose one."
        )
    return kinds


def _check_options(command: str, task: str, coverage: float, seed: int) -> None:
    check_option(command, "--task", task, TASKS)
    check_number(command, "--coverage", coverage, above=0, below=1)
    check_number(command, "--seed", seed, above=0, below=2**32, closed="left", whole=True)


def read_levels(text: str | None) -> list[float]:
    """Return the levels of quantiles that an option lists."""
    if text is None:
        return []
    levels = _read_numbers(text)
    if levels is None or not all(0 < level < 1 for level in levels):
        raise InvalidInputError(
            f"Expected levels above 0 and below 1 as --quantiles, separated by commas. Got {text!r}. Write for example "
            "--quantiles 0.05,0.5,0.95."
        )
    return levels


def _read_numbers(text: str) -> list[float] | None:
    """Return the numbers in a text, separated by commas; None if a part of it is none."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return None


def _choose_domain(text: str) -> Any:
    if text in ("auto", "positive", "count"):
        return text
    if text == "none":
        return None
    ends = _read_numbers(text)
    if ends is None or len(ends) != 2 or not ends[0] < ends[1]:
        raise InvalidInputError(
            f"Expected auto, none, positive, count, or two numbers LOW,HIGH as --domain. Got {text!r}. A percentage is "
            "--domain 0,100; an open end is inf."
        )
    return tuple(ends)


def _choose_rule(accept: float | None, tolerance: float | None, risk: float | None) -> _Rule:
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
    return AcceptShare() if accept is None else AcceptShare(accept)


def _choose_novelty(largest: float | None, false_alarm: float | None, frames: str) -> Novelty | None:
    if largest is None and false_alarm is None:
        return None if frames == "target" else Novelty(max=_MAX_NOVELTY)
    if largest is not None and false_alarm is not None:
        raise InvalidInputError(
            "Expected --max-novelty or --novelty-false-alarm. Got both. Choose how novel rows are to be rejected."
        )
    novelty = Novelty(max=largest, false_alarm=false_alarm)
    if largest is not None:
        check_number("fit", "--max-novelty", largest, above=0, below=1, closed="left")
    else:
        check_number("fit", "--novelty-false-alarm", false_alarm, above=0, below=1)
    if frames == "target":
        raise InvalidInputError(
            f"Expected no {_format_novelty(novelty)} with --frames target, which knows no novelty. Got both. "
            "Leave one out."
        )
    return novelty


def _format_novelty(novelty: Novelty) -> str:
    """Return the option that stands for a limit on novelty."""
    if novelty.max is not None:
        return f"--max-novelty {novelty.max:g}"
    return f"--novelty-false-alarm {novelty.false_alarm:g}"


def choose_coverage(coverage: float | None, summary: dict[str, Any]) -> float:
    """Return the coverage that was asked for, or else that of the fit."""
    if coverage is None:
        return summary["coverage"]
    check_number("onsphere", "--coverage", coverage, above=0, below=1)
    return coverage


def _format_rule(rule: _Rule) -> str:
    """Return the options that stand for a rule."""
    match rule:
        case Tolerance():
            return f"--tolerance {rule.epsilon:g}"
        case MaxErrorRate():
            return f"--risk {rule.max_error:g}" + ("" if rule.tolerance is None else f" --tolerance {rule.tolerance:g}")
        case _:
            return f"--accept {rule.share:g}"


@contextmanager
def _name_options(rule: _Rule, novelty: Novelty | None) -> Generator[None]:
    """Let an error about a rule name the options that it came from."""
    try:
        yield
    except InvalidInputError as error:
        message = str(error).replace(str(rule), _format_rule(rule))
        if novelty is not None:
            message = message.replace(str(novelty), _format_novelty(novelty))
        if isinstance(rule, AcceptShare):
            message = message.replace(f"A coverage of {rule.share:g}", _format_rule(rule))
        raise InvalidInputError(message) from None


def _write_report(
    path: Path,
    model: Any,
    rows: KnownRows,
    columns: list[Column],
    summary: dict[str, Any],
    data: Path,
    *,
    coverage: float,
    shifted: Any,
    shifted_path: Path | None,
    model_path: Path | None,
) -> None:
    from onsphere.report import write_report

    n_rows, clock = summary["n_rows"], summary.get("time")
    write_report(
        model,
        rows.X,
        name_targets(rows.y, summary["targets"]),
        path,
        title=f"{', '.join(summary['targets'])} from {Path(str(summary.get('data', 'a table'))).name}",
        target_name=", ".join(summary["targets"]),
        coverage=coverage,
        row_names=rows.names,
        share_seen=rows.share_seen,
        times=rows.times,
        time_name=None if clock is None else clock["name"],
        write_command=make_command_writer(summary, model=model_path, report=path),
        show_rows=lambda features: restore_types(features, columns),
        X_shifted=shifted,
        shifted_name=None if shifted_path is None else shifted_path.name,
        facts={
            "Measured on": data.name,
            "Task": f"{summary['task']} ({summary['why']})",
            "Backbone": summary["backbone"],
            "Rows": f"{n_rows['train']:,} trained on, {n_rows['calibration']:,} calibrated on",
            "Notes": "; ".join(summary["notes"]) or "none",
        },
    )
