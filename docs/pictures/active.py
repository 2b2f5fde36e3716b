"""Draw the error on test rows against the number of labelled rows, for each way to choose them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from style import Look, draw_both

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "active.json"
STARTS = {"all rows": "first 50 from all rows", "one half": "first 50 from one half"}


def draw(look: Look, rows: list[dict[str, Any]]) -> Figure:
    names = list(dict.fromkeys(row["set"] for row in rows if row["set"] != "mean"))
    sizes = [key for key in rows[0] if key.isdigit()]
    colours = {"chance": look.faint, "disagreement": look.other, "novelty": look.warn}
    figure, axes = plt.subplots(len(STARTS), len(names), figsize=(10, 4.6), layout="constrained", sharex=True)
    for row in rows:
        if row["set"] == "mean" or row["chosen by"] not in colours:
            continue
        ax = axes[list(STARTS).index(row["start"]), names.index(row["set"])]
        known = [(int(size), row[size]) for size in sizes if row[size] != ""]
        is_ours = row["chosen by"] == "novelty"
        ax.plot(*zip(*known, strict=True), color=colours[row["chosen by"]], linewidth=2.2 if is_ours else 1.6)
        ax.set_title(row["set"].replace("_", " "), fontsize=10)
        ax.set(xticks=(100, 200, 300), ylim=(0, None))
        ax.tick_params(labelsize=8)
    for ax, label in zip(axes[:, 0], STARTS.values(), strict=True):
        ax.set_ylabel(label, fontsize=10)
    handles = [plt.Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in colours.items()]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=3,
        title="RMSE against the number of labelled rows, chosen by",
        alignment="left",
    )
    return figure


if __name__ == "__main__":
    found = json.loads(RESULT.read_text())["rows"]
    draw_both("active", lambda look: draw(look, found))
