"""The options that several commands share, and what they may be.

Nothing large is imported here or by the files of the commands, so that help comes at once; commands import what they
need when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "BACKBONES",
    "CALIBRATIONS",
    "COVERAGE",
    "FRAMES",
    "KEPT",
    "TAILS",
    "TASKS",
    "AsJson",
    "Coverage",
    "CoverageOfFit",
    "Data",
    "Delimiter",
    "Ignore",
    "Model",
    "Quantiles",
    "Quiet",
    "Seed",
    "Shifted",
    "Tails",
    "Target",
    "Task",
]

# What the library takes, which a test compares.
TASKS = ("auto", "regression", "classification")
BACKBONES = ("kernel", "hist-gradient-boosting", "extra-trees", "mlp")
CALIBRATIONS = ("auto", "split", "cv")
TAILS = ("symmetric", "equal", "shortest")
KEPT = ("keys", "all")

FRAMES = ("all", "target")
COVERAGE = 0.9

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
