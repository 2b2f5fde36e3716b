"""The committed results: what they conclude follows from the runs that stand beside it."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from onsphere.paper import EXPERIMENTS
from onsphere.paper.experiment import load_experiment

RESULTS = Path(__file__).parents[2] / "docs" / "results"
COMMITTED = [name for name in EXPERIMENTS if (RESULTS / f"{name}.json").is_file()]


def result_of(name):
    result = json.loads((RESULTS / f"{name}.json").read_text())
    return result, [json.loads((RESULTS / path).read_text()) for path in result["runs"]]


@pytest.mark.parametrize("name", COMMITTED)
def test_claims_and_table_follow_from_the_runs(name):
    result, runs = result_of(name)
    experiment = load_experiment(name)
    assert result["preset"] == "cpu"
    assert result["claims"] == [asdict(claim) for claim in experiment.claims(runs)]
    assert result["rows"] == json.loads(json.dumps(experiment.tabulate(runs)))
    assert all(run["settings"] == result["settings"] for run in runs)


@pytest.mark.parametrize("name", COMMITTED)
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


@pytest.mark.parametrize("name", COMMITTED)
def test_the_index_counts_what_holds(name):
    result, runs = result_of(name)
    n_held = sum(claim["holds"] for claim in result["claims"])
    row = f"| [{name}]({name}.md) | {len(runs)} | {n_held} of {len(result['claims'])} |"
    assert row in (RESULTS / "index.md").read_text()


def test_the_index_names_every_experiment():
    index = (RESULTS / "index.md").read_text()
    assert all(name in index for name in EXPERIMENTS)
