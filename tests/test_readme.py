"""The README's code runs as it is, and its figures are those that were measured."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
def test_code_blocks_run(block):
    exec(compile(block, "README.md", "exec"), {})


def read_row(name):
    """Return the figures of a row of the README's table, as they are printed."""
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {name}")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


@pytest.mark.parametrize(
    ("row", "benchmark", "column"),
    [
        ("Spearman", "spearman", "spearman"),
        ("Winkler, HCM", "winkler", "HCM Winkler"),
        ("Winkler, quantile forest", "winkler", "quantile forest Winkler"),
        ("ratio (", "winkler", "ratio"),
    ],
)
def test_the_figures_of_the_table_are_those_of_the_benchmarks(row, benchmark, column):
    result = json.loads((ROOT / "benchmarks" / "results" / f"{benchmark}.json").read_text())
    header = read_row("| concrete")
    measured = {each["set"].replace("_", " "): each[column] for each in result["rows"]}
    for name, printed in zip(header, read_row(row), strict=True):
        digits = len(printed.partition(".")[2])
        assert float(printed) == pytest.approx(measured[name], abs=0.5 * 10**-digits + 1e-12), name
    if column == "ratio":
        assert f"geometric mean {result['geometric_mean_of_ratios']:.2f}".replace("0.", ".") in README


COVERAGES = ["coverage", "coverage, noise 1", "coverage, noise √5"]


@pytest.mark.parametrize(
    ("row", "method", "figures"),
    [
        ("novelty alone |", "forest", ["", "", "", "novelty AUROC, noise 1", "extrapolation novelty AUROC"]),
        *(
            (row, method, [*COVERAGES, "AUROC, noise 1", "extrapolation AUROC"])
            for row, method in [
                ("forest |", "forest"),
                ('forest, `frames="target"` |', "forest, target frame"),
                ("quantile forest |", "quantile forest"),
                ("one network |", "network"),
                ('one network, `frames="target"` |', "network, target frame"),
                ("five networks, an ensemble |", "ensemble"),
            ]
        ),
    ],
)
def test_the_figures_outside_the_data_are_those_of_the_benchmark(row, method, figures):
    result = json.loads((ROOT / "benchmarks" / "results" / "frames.json").read_text())
    (measured,) = [each for each in result["rows"] if (each["method"], each["set"]) == (method, "mean")]
    for name, printed in zip(figures, read_row(row), strict=True):
        value = measured.get(name, "")
        assert printed == ("–" if value == "" else format(value, ".2f").removeprefix("0")), name


def test_the_cost_of_a_forest_is_that_of_the_benchmark():
    rows = json.loads((ROOT / "benchmarks" / "results" / "overhead.json").read_text())["rows"]
    ratios = [row["ratio, all frames"] for row in rows]
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times the prediction of a forest" in text
