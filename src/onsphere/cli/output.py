"""What is printed of a model on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onsphere.cli.console import print_table
from onsphere.table import TableFit

__all__ = ["show_figures", "show_files", "show_fit"]


def show_fit(found: TableFit) -> None:
    """What was found on the way from a table to a model."""
    print(f"{found.task}: {found.why}.")
    columns = [{"column": column.name, "taken as": column.kind, "why": column.note} for column in found.columns]
    print_table(columns, ["column", "taken as", "why"])
    if found.candidates:
        names = dict.fromkeys(name for row in found.candidates for name in row)
        print_table(found.candidates, list(names), title=f"Backbones by cross-validation; taken: {found.backbone}")
    show_figures(found.figures, classes=found.task == "classification")
    for note in found.notes:
        print(f"Note: {note}.")


def show_figures(figures: dict[str, Any], *, classes: bool) -> None:
    """What a model is worth on rows that it has not seen."""
    low, high = figures["coverage_by_chance"]
    targets: dict[str, Any] = figures.get("targets", {})
    what = "sets" if classes else "intervals"

    def told(error: float | None) -> str:
        return "–" if error is None else f"{error:.1%} wrong" if classes else f"off by {error:.4g} on average"

    rows = [
        ("rows it has not seen", f"{figures['rows']:,}"),
        ("error", told(figures["error" if classes else "mean_error"])),
        *[(f"… of {name}", told(each["mean_absolute_error"])) for name, each in targets.items()],
        *([] if classes else [("root mean square error", f"{figures['error']:.4g}")]),
        (f"{what} hold the truth", f"{figures['coverage']:.1%} of {figures['coverage_asked']:.1%} asked"),
        ("… by chance between", f"{low:.1%} and {high:.1%}"),
        ("classes in a set" if classes else "width of an interval", f"{figures['width']:.4g}"),
        *[(f"… of {name}", f"{each['width']:.4g}") for name, each in targets.items()],
        ("Spearman of uncertainty and error", "–" if figures["spearman"] is None else f"{figures['spearman']:.2f}"),
    ]
    if "accepted" in figures:
        rows += [
            ("accepted", f"{figures['accepted']:.1%}, {told(figures['error_accepted'])}"),
            ("rejected", f"{1 - figures['accepted']:.1%}, {told(figures['error_rejected'])}"),
        ]
    print_table([{"measured": name, "figure": figure} for name, figure in rows], ["measured", "figure"])


def show_files(**paths: Path | None) -> None:
    """Where things were written."""
    for name, path in paths.items():
        if path is not None:
            print(f"{name}: {path}")
