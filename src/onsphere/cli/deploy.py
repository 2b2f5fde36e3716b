"""The commands `onsphere export` and `onsphere monitor`: a model in another runtime, and whether its rows changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onsphere.cli.console import print_files, print_json, spin
from onsphere.cli.options import TAILS, AsJson, CoverageOfFit, Data, Delimiter, Model, Quantiles, Quiet, Tails
from onsphere.cli.predict_command import choose_coverage, read_levels

if TYPE_CHECKING:
    from onsphere.drift import DriftMonitor

__all__ = ["export", "monitor"]


def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="Where to write the graph: a name that ends in .onnx.")] = Path(
        "model.onnx"
    ),
    rows: Annotated[
        Path | None,
        typer.Option(help="A table of real rows to compare on.", show_default="rows drawn by what the model file says"),
    ] = None,
    coverage: CoverageOfFit = None,
    tails: Tails = "symmetric",
    quantiles: Quantiles = None,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as one ONNX graph, once it gives the same answers as the model."""
    from onsphere._internal.atomic_files import check_writable
    from onsphere._internal.validation import check_choice
    from onsphere.cli.model_rows import read_feature_rows
    from onsphere.errors import InvalidInputError
    from onsphere.export import export_onnx
    from onsphere.table.model_file import load_table_model

    if out.suffix != ".onnx":  # a table in this place would be overwritten
        raise InvalidInputError(
            f"Expected a file to write whose name ends in .onnx. Got {out}. Choose another name; rows to compare on "
            "are given by --rows."
        )
    check_choice("--tails", tails, TAILS)
    levels = read_levels(quantiles)
    check_writable(out, model, *([] if rows is None else [rows]))
    fitted, summary, columns = load_table_model(model)
    share = choose_coverage(coverage, summary)
    if rows is None and summary.get("reference") is None:
        raise InvalidInputError(
            f"Expected rows to compare the graph and the model on. Got none, and {model} does not say what its columns "
            "hold. Pass real rows: --rows rows.csv."
        )
    with spin("export", hidden=quiet or as_json) as progress:
        progress("reading")
        frame = None if rows is None else read_feature_rows(rows, columns, delimiter)
        progress("comparing")
        options: Any = {"coverage": share, "tails": tails, "quantiles": levels or None}
        parity = export_onnx(fitted, out, X=frame, summary=summary, **options)
    if as_json:
        print_json(parity.to_dict() | {"out": out})
    elif not quiet:
        print(parity)
        print_files(graph=out)


def monitor(
    model: Model,
    data: Data,
    alpha: Annotated[float, typer.Option(help="The largest chance of a false alarm, over all rows.")] = 0.01,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="A table of ordinary rows, to say which columns moved.", show_default="what the model file says"
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Where to draw the evidence: .png, .svg or .pdf.", show_default=False)
    ] = None,
    delimiter: Delimiter = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go through the rows of a table in order, and say whether and when they stopped being like those it knows."""
    from onsphere._internal.atomic_files import check_writable
    from onsphere._internal.validation import check_choice, check_share
    from onsphere.cli.model_rows import read_feature_rows
    from onsphere.drift import DriftMonitor
    from onsphere.persistence import get_calibration_method
    from onsphere.table.model_file import load_table_model
    from onsphere.table.predict import read_feature_batches

    check_share("--alpha", alpha)
    if plot is not None:
        check_choice("a --plot that ends in", plot.suffix, [".png", ".svg", ".pdf"])
        check_writable(plot, model, data, *([] if reference is None else [reference]))
    fitted, summary, columns = load_table_model(model)
    features = [column for column in columns if column.is_feature]
    ordinary = summary.get("reference")
    if reference is not None:
        ordinary = read_feature_rows(reference, columns, delimiter)
    watch = DriftMonitor(fitted, alpha=alpha, reference=ordinary)
    evidence: dict[str, list[float]] = {name: [] for name in watch.watched}
    with spin("monitor", hidden=quiet or as_json) as progress:
        for _, rows in read_feature_batches(data, features, delimiter=delimiter):
            result = fitted.assess(rows)
            update = watch.update(result) if ordinary is None else watch.observe(rows, result)
            for name, log_capital in update.evidence.items():
                evidence[name] += log_capital.tolist()
            progress(f"{watch.n_seen:,} rows")
    hints = [] if ordinary is None else [hint for hint in watch.compare_columns() if hint.moved][:5]
    if plot is not None:
        _draw(plot, evidence, watch)
    if as_json:
        facts = {"rows": watch.n_seen, "alarmed_at": watch.alarmed_at, "alarmed_by": watch.alarmed_by}
        facts |= {"log_capital": watch.log_capital, "evidence": {name: each[-1] for name, each in evidence.items()}}
        facts |= {"changed_at": watch.changed_at, "alpha": alpha, "hints": [hint.to_dict() for hint in hints]}
        print_json(facts | {"plot": plot})
    elif not quiet:
        print(_describe_alarm(watch, exact=get_calibration_method(fitted) == "held-out rows"))
        if hints:
            where = (
                f" since about row {watch.changed_at:,}"
                if watch.alarm
                else f", though {' and '.join(watch.watched)} do not show it"
            )
            print(f"Columns that moved{where}:")
        for hint in hints:
            print(f"  {hint}")
        print_files(plot=plot)


def _describe_alarm(watch: DriftMonitor, *, exact: bool) -> str:
    if not watch.alarm:
        return f"No alarm in {watch.n_seen:,} rows."
    promise = (
        f"a false alarm has a chance of at most {watch.alpha:g}"
        if exact
        else "calibrated by cross-validation, so a false alarm is more likely than asked for; fit on more rows"
    )
    return (
        f"Alarm at row {watch.alarmed_at:,} of {watch.n_seen:,}, by their {watch.alarmed_by}: the rows are no longer "
        f"like those the model was calibrated on ({promise})."
    )


def _draw(path: Path, evidence: dict[str, list[float]], watch: DriftMonitor) -> None:
    from onsphere import plots
    from onsphere._internal.atomic_files import write_atomically

    axes: Any = None
    for name, values in evidence.items():
        at = watch.alarmed_at if name == watch.alarmed_by else None
        # After the alarm there is nothing left to decide, and the evidence grows without bounds.
        axes = plots.evidence(values[: watch.alarmed_at], alpha=watch.alpha, alarmed_at=at, label=name, ax=axes)
    with write_atomically(path) as part:
        figure: Any = axes.figure
        figure.savefig(part, format=path.suffix.lstrip("."), bbox_inches="tight")
