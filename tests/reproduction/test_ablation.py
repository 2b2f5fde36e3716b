"""The ablation of λ: its measurements, table and claims, and the data it needs."""

import json

import matplotlib.pyplot as plt
import pytest
import torch

from onsphere import InvalidInputError
from reproduction import ablation, reproduce
from reproduction.checkpoints import Checkpoints

torch.set_num_threads(1)  # the tests run beside each other, one per core


def make_published_run(**changed):
    """A run that found the paper's figures, or others for some sets."""
    table = ablation.PAPER | changed
    return {"sets": {name: dict(zip(ablation.WEIGHTS, errors, strict=True)) for name, errors in table.items()}}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return reproduce("ablation", preset="quick", out=tmp_path_factory.mktemp("ablation"))


def test_quick_writes_table_claims_and_figure(quick):
    assert [row["λ"] for row in quick.rows] == [0, 1, 3, 5]
    assert all(0 < row["ours"] < 200 and row["paper"] is None for row in quick.rows)
    assert json.loads((quick.folder / "ablation.json").read_text())["settings"]["max_epochs"] == 5
    assert "validation MAE" in (quick.folder / "ablation.md").read_text()
    assert (quick.folder / "ablation-lambda.png").stat().st_size > 1000


def test_every_seed_has_its_own_split(quick):
    first, second = (run["sets"]["diabetes"]["0"] for run in quick.runs)
    assert first != second


def test_lambda_reaches_the_loss(tmp_path):
    # With the same seed, nothing else can make a difference.
    settings = ablation.PRESETS["quick"] | {"max_epochs": 2}
    found = ablation.measure(
        settings, 0, data=None, device="cpu", checkpoints=Checkpoints(tmp_path), on_progress=lambda *_: None
    )["sets"]["diabetes"]
    assert found["5"] != found["0"]


def test_the_published_figures():
    assert ablation.PAPER["kin8nm"][-1] == 1.3765
    assert ablation.PAPER["wine"] == (0.5539, 0.5502, 0.5522, 0.5538)
    assert all(
        row["agrees?"] == "yes" and row["ours"] == row["paper"] for row in ablation.tabulate([make_published_run()])
    )


def test_claims_hold_for_the_published_figures():
    near, steady, fails = ablation.check_claims([make_published_run()])
    assert near.holds
    assert "on 5 of 6" in near.figures  # yacht just misses it
    assert "energy 1.000" in near.figures
    assert steady.holds
    assert "on 3 of 6" in steady.figures
    assert fails.holds
    assert "kin8nm 21.474" in fails.figures


def test_claims_fail_where_the_figures_say_so():
    reversed_ = dict.fromkeys(("concrete", "energy", "kin8nm", "wine"), (3.0, 2.0, 1.0, 1.1))
    claims = ablation.check_claims([make_published_run(**reversed_)])
    assert [claim.holds for claim in claims] == [False, False, False]
    assert "on 1 of 6" in claims[0].figures


def test_a_bar_beyond_the_axis_is_written():
    figure = ablation.draw([make_published_run()])["lambda"]
    plt.close(figure)
    assert [text.get_text() for ax in figure.axes for text in ax.texts] == ["21.5", "21.5"]


def test_missing_data_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"concrete.*OpenML"):
        reproduce("ablation", preset="cpu", data=tmp_path, out=tmp_path / "results")
