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


def n_best(method):
    """In how many of the sixteen correlations the method is ahead of its three rivals."""
    best = [
        error_tables.find_best_correlations(result_of("depth")[1], method),
        error_tables.find_best_correlations(result_of("industrial")[1], method),
        uci.find_best_correlations(result_of("uci")[1], method),
    ]
    assert sum(map(len, best)) == 16
    return sum(sum(each.values()) for each in best)


def test_the_index_counts_the_correlations():
    index = (RESULTS / "index.md").read_text()
    assert f"HCM Lift is ahead in {n_best('HCM Lift')} of 16" in index
    assert f"own HCM in {n_best('HCM')} of 16" in " ".join(index.split())
