"""The committed results: claims, tables and pages follow from the committed runs."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from reproduction import EXPERIMENTS, error_tables, experiment, uci
from reproduction.experiment import load_experiment

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def result_of(name):
    result = json.loads((RESULTS / f"{name}.json").read_text())
    return result, [json.loads((RESULTS / path).read_text()) for path in result["runs"]]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_claims_and_table_follow_from_the_runs(name):
    result, runs = result_of(name)
    module = load_experiment(name)
    assert result["preset"] == "cpu"
    assert result["claims"] == [asdict(claim) for claim in module.check_claims(runs)]
    # Another processor adds up in another order.
    for kept, found in zip(result["rows"], module.tabulate(runs), strict=True):
        assert kept.keys() == found.keys()
        for name, value in found.items():
            assert kept[name] == value or math.isclose(kept[name], value, rel_tol=1e-9), name
    assert all(run["settings"] == result["settings"] for run in runs)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_page_and_figures_are_there(name):
    result, runs = result_of(name)
    page = (RESULTS / f"{name}.md").read_text()
    assert result["figures"]
    for figure in result["figures"]:
        assert f"({figure})" in page
        assert (RESULTS / figure).stat().st_size > 5_000
    for claim in result["claims"]:
        assert f"**{'holds' if claim['holds'] else 'does not hold'}**: {claim['text']}" in page
    assert f"{len(runs)} seed(s)" in page
    assert page == experiment.format_page(result, load_experiment(name).ABOUT)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_index_counts_what_holds(name):
    result, runs = result_of(name)
    counts = []
    for ours in (False, True):
        held = [claim["holds"] for claim in result["claims"] if claim["ours"] is ours]
        counts.append(f"{sum(held)} of {len(held)}" if held else "–")
    row = f"| [{name}]({name}.md) | {len(runs)} | {counts[0]} | {counts[1]} |"
    assert row in (RESULTS / "index.md").read_text()


def n_best(method, rivals):
    """In how many of the sixteen correlations the method is ahead of its rivals; those of depth are trained one way."""
    best = [
        error_tables.find_best_correlations(result_of("depth")[1], method, rivals=error_tables.RIVALS),
        error_tables.find_best_correlations(result_of("industrial")[1], method, rivals=rivals),
        uci.find_best_correlations(result_of("uci")[1], method, rivals=rivals),
    ]
    assert sum(map(len, best)) == 16
    return sum(sum(each.values()) for each in best)


def test_the_index_counts_the_correlations():
    index = " ".join((RESULTS / "index.md").read_text().split())
    alike, either_way = error_tables.RIVALS, (*error_tables.RIVALS, *error_tables.STANDARDIZED)
    for words, method, rivals in [
        ("ahead of rivals trained alike", "HCM", alike),
        ("and of rivals trained either way (with scaled targets too)", "HCM", either_way),
        ("HCM Lift is ahead of rivals trained either way", "HCM Lift", either_way),
    ]:
        assert f"{words} in {n_best(method, rivals)} of 16" in index, (words, n_best(method, rivals))


def test_the_pages_count_the_conclusions_that_hold():
    held = [claim["holds"] for name in EXPERIMENTS for claim in result_of(name)[0]["claims"] if not claim["ours"]]
    for page in (RESULTS / "index.md", RESULTS.parent / "guide" / "faq.md"):
        text = " ".join(page.read_text().split())
        assert f"{sum(held)} of the paper's {len(held)}" in text or f"{sum(held)} of its {len(held)}" in text, page
