"""The command `onsphere predict`: from rows to answers, each with its uncertainty and a decision."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from onsphere.cli.console import print_json, print_message, spin
from onsphere.cli.options import (
    KEPT,
    TAILS,
    AsJson,
    CoverageOfFit,
    Delimiter,
    Model,
    Quantiles,
    Quiet,
    Tails,
)

__all__ = ["choose_coverage", "predict", "read_levels"]

_MOST_UNUSUAL = 10  # columns that are named


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
        Literal["local", "ray"], typer.Option(help="For a folder: local, all cores of this machine, or ray, a cluster.")
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster.", show_default="a new one here")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="For a folder: how many files at once.", show_default="one on each core")
    ] = None,
    on_error: Annotated[
        Literal["stop", "skip"], typer.Option(help="For a folder: stop at a file that cannot be read, or skip it.")
    ] = "stop",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict each row of a table, with its uncertainty, noise, novelty, interval, and whether to accept it."""
    from onsphere._internal.atomic_files import check_writable
    from onsphere._internal.validation import check_choice
    from onsphere.errors import InvalidInputError
    from onsphere.table import predict_file
    from onsphere.table.encoder import find_ordinary_values
    from onsphere.table.model_file import load_table_model
    from onsphere.table.predict import check_suffix

    check_choice("--tails", tails, TAILS)
    check_choice("--keep", keep, KEPT)
    levels = read_levels(quantiles)
    for_folders: Any = {"engine": engine, "address": address, "n_workers": workers, "on_error": on_error}
    if "://" in data or data.endswith("/") or Path(data).is_dir():
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
    if model.suffix.lower() == ".onnx":
        raise InvalidInputError(
            f"Expected a folder with {model}, since graphs answer folders alone. Got the file {data}. Put it in a "
            "folder, or use the .onsphere file."
        )
    if out is not None:
        check_writable(out, model, data)
        check_suffix(Path(out))
    elif quiet or as_json:
        raise InvalidInputError(
            f"Expected --out with --{'json' if as_json else 'quiet'}, which prints no predictions. Got none. "
            "Add --out predictions.csv."
        )
    fitted, summary, columns = load_table_model(model)
    if summary["task"] == "regression":
        _refuse({"--probabilities": probabilities}, "a model of classes", f"{model}, a model of numbers")
    else:
        of_numbers = {"--quantiles": quantiles, "--tails": tails != "symmetric"}
        _refuse(of_numbers, "a model of numbers", f"{model}, a model of classes")
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
        from onsphere.errors import InvalidInputError

        raise InvalidInputError(f"Expected {needed} with {' and '.join(names)}. Got {got}. Leave the option out.")


def read_levels(text: str | None) -> list[float]:
    """Return the levels of quantiles that an option lists."""
    if text is None:
        return []
    from onsphere.cli.choices import read_numbers
    from onsphere.errors import InvalidInputError

    levels = read_numbers(text)
    if levels is None or not all(0 < level < 1 for level in levels):
        raise InvalidInputError(
            f"Expected levels above 0 and below 1 as --quantiles, separated by commas. Got {text!r}. Write for example "
            "--quantiles 0.05,0.5,0.95."
        )
    return levels


def choose_coverage(coverage: float | None, summary: dict[str, Any]) -> float:
    """Return the coverage that was asked for, or else that of the fit."""
    if coverage is None:
        return summary["coverage"]
    from onsphere._internal.validation import check_share

    check_share("--coverage", coverage)
    return coverage
