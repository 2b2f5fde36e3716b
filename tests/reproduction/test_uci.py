"""The UCI experiment: its measurements, table and claims; and the rows and the network of all tables."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from onsphere import InvalidInputError
from reproduction import reproduce, tabular, uci
from reproduction.checkpoints import Checkpoints

torch.set_num_threads(1)  # the tests run beside each other, one per core

SPLIT = {"split_seed": None}
CONFIDENT, UNSURE = {"confidence": 0.95}, {"confidence": 0.5}


def make_published_run(*, spread=1.0, **of_methods):
    """A run that found the paper's figures (for our own methods, HCM's), and what is given for all sets of a method."""
    sets = {}
    for name, table in uci.PAPER.items():
        methods = {}
        for method in uci.METHODS:
            published = table.get(method.removesuffix(" standardised"), table["HCM"])
            figures = dict(zip(uci.METRICS, published, strict=True)) | UNSURE
            figures |= of_methods.get(method.replace(" ", "_"), {})
            curve = np.linspace(1, 0, uci.N_POINTS).tolist()
            noises = dict.fromkeys(uci.NOISES, figures)
            methods[method] = {"coverage": 0.9, "validation": curve, "noised": curve, "noises": noises}
        sets[name] = {"spread": spread, "methods": methods}
    return {"sets": sets}


def held(runs):
    return {claim.text: claim.holds for claim in uci.check_claims(runs)}


# --- the quick preset ---


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return reproduce("uci", preset="quick", out=tmp_path_factory.mktemp("uci"))


def test_quick_writes_table_claims_and_figures(quick):
    assert len(quick.rows) == len(uci.METHODS) * (len(uci.METRICS) + 1)
    assert {row["method"] for row in quick.rows} == set(uci.METHODS)
    assert len(json.loads((quick.folder / "uci.json").read_text())["runs"]) == 1
    assert "HCM Lift" in (quick.folder / "uci.md").read_text()
    for name in ("shift", "spearman", "confidence"):
        assert (quick.folder / f"uci-{name}.png").stat().st_size > 1000


def test_figures_are_in_their_ranges(quick):
    for found in quick.runs[0]["sets"]["diabetes"]["methods"].values():
        assert 0.5 <= found["coverage"] <= 1
        assert min(found["validation"]) == pytest.approx(0.9, abs=1e-3)
        assert found["noised"] == sorted(found["noised"], reverse=True)
        for figures in found["noises"].values():
            assert all(0 <= figures[name] <= 1 for name in ("MI", "confidence", "alarms"))
            assert all(-1 <= figures[name] <= 1 for name in uci.CORRELATIONS)
            assert all(figures[name] >= 0 for name in ("ICE", "E-AURC", "RMSE"))


def test_noise_costs_accuracy(quick):
    for method, found in quick.runs[0]["sets"]["diabetes"]["methods"].items():
        if method in (*uci.RIVALS, "HCM"):  # five epochs do not teach a network a target around 150
            continue
        errors = [found["noises"][name]["RMSE"] for name in ("0", "5")]
        assert errors[0] < errors[1], method


def test_the_same_seed_gives_the_same_figures(quick, monkeypatch, tmp_path):
    monkeypatch.setattr(uci, "NOISES", {"5": 5.0})
    again = uci.measure(
        uci.PRESETS["quick"], 0, data=None, device="cpu", checkpoints=Checkpoints(tmp_path), on_progress=lambda *_: None
    )
    for method, found in again["sets"]["diabetes"]["methods"].items():
        first = quick.runs[0]["sets"]["diabetes"]["methods"][method]
        assert found == first | {"noises": {"5": first["noises"]["5"]}}


def test_missing_data_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"concrete.*OpenML"):
        reproduce("uci", preset="cpu", data=tmp_path, out=tmp_path / "results")


# --- table and claims ---


def test_the_published_figures():
    assert uci.PAPER["power_plant"]["HCM"] == (1.000, 57.82, 0.838, 0.969, 7.18, 387.25)
    assert uci.PAPER["kin8nm"]["EDL"][2] == -0.082
    rows = [row for row in uci.tabulate([make_published_run()]) if row["paper"] is not None]
    assert len(rows) == 6 * 4 * 6
    assert all(row["agrees?"] == "yes" and row["ours"] == row["paper"] == row["ours, variance 5"] for row in rows)


def test_errors_of_yacht_are_in_standard_deviations():
    rows = [row for row in uci.tabulate([make_published_run(spread=2.0)]) if row["paper"] is not None]
    halved = {(row["set"], row["metric"]) for row in rows if row["ours"] == pytest.approx(row["paper"] / 2)}
    assert halved == {("yacht", metric) for metric in ("ICE", "E-AURC", "RMSE")}


def test_hcm_is_best_in_nine_comparisons_of_the_paper():
    best = uci.find_best_correlations([make_published_run()], "HCM")
    assert len(best) == 12
    assert [name for name, is_best in best.items() if not is_best] == [
        "concrete Pearson",
        "concrete Spearman",
        "yacht Spearman",
    ]
    assert uci.find_best_correlations(
        [make_published_run(Ensemble={"Pearson": 1.0, "Spearman": 1.0})], "HCM"
    ) == dict.fromkeys(best, False)


def test_a_tie_is_no_win():
    tie = {"Pearson": 0.5, "Spearman": 0.5}
    assert not any(uci.find_best_correlations([make_published_run(**dict.fromkeys(("EDL", "HCM_Lift"), tie))]).values())


def test_comparisons_are_of_means_over_seeds():
    low, high = ({"Pearson": value, "Spearman": value} for value in (0.0, 1.0))
    runs = [make_published_run(HCM_Lift=low), make_published_run(HCM_Lift=high)]
    best = uci.find_best_correlations(runs)
    assert not best["energy Pearson"]  # .5, and MC Dropout .752
    assert best["kin8nm Pearson"]  # .5, and MC Dropout .260


def test_claims_on_the_published_figures():
    quiet = make_published_run(Ensemble=CONFIDENT, MC_Dropout=CONFIDENT, EDL=CONFIDENT)
    partly = make_published_run(MC_Dropout=CONFIDENT, EDL=CONFIDENT)
    partly["sets"]["wine"]["methods"]["Ensemble"]["noises"]["5"] = CONFIDENT | dict.fromkeys(uci.METRICS, 0.0)
    assert all(claim.holds for claim in uci.check_claims([partly]))
    by_text = {claim.text: claim for claim in uci.check_claims([partly])}
    assert [claim.figures.startswith("9 of 12 at σ = 5") for claim in by_text.values()][:4] == [True] * 4
    assert [claim.ours for claim in by_text.values()][:4] == [False, True, True, True]
    failed = [text for text, holds in held([quiet]).items() if not holds]
    assert failed == ["the confidence of Ensemble drops under noise on some sets only"]


def test_claims_fail_where_the_figures_say_so():
    worst = dict(zip(uci.METRICS, (-1, 1e9, -1, -1, 1e9, 1e9), strict=True)) | CONFIDENT
    run = make_published_run(HCM=worst, HCM_Lift=worst, HCM_standardised=worst)
    for found in run["sets"].values():
        found["methods"]["HCM Lift"]["coverage"] = 0.8
    assert [text for text, holds in held([run]).items() if holds] == []
    assert "0 of 12 at σ = 5" in uci.check_claims([run])[0].figures


def test_figures_of_a_perfect_and_of_a_constant_score():
    error = np.linspace(0, 3, 50)
    perfect = uci._compute_figures(error, error, np.exp(-error))
    assert (perfect["MI"], perfect["E-AURC"]) == (1.0, 0.0)
    assert perfect["ICE"] == pytest.approx(0, abs=1e-12)
    assert [perfect[name] for name in uci.CORRELATIONS] == pytest.approx([1.0, 1.0])
    assert perfect["RMSE"] == pytest.approx(1.5)
    constant = uci._compute_figures(error, np.ones(50), np.full(50, 0.9))
    assert (constant["MI"], constant["Pearson"], constant["alarms"]) == (0.0, 0.0, 0.0)


def test_all_sets_are_drawn():
    figures = uci.draw([make_published_run()])
    assert set(figures) == {"shift", "spearman", "confidence"}
    for figure in figures.values():
        plt.close(figure)
        assert [ax.get_title() for ax in figure.axes] == [name.replace("_", " ") for name in uci.PAPER]


# --- rows and network ---


def test_a_split_holds_every_row_once():
    split = tabular.split_rows(SPLIT, "diabetes", 3, data=None)
    parts = [split.train, split.validation, split.test]
    assert [len(y) for _, y in parts] == [353, 44, 45]
    rows = np.concatenate([np.column_stack(part) for part in parts])
    assert len(np.unique(rows, axis=0)) == 442
    assert split.train[0].mean(axis=0) == pytest.approx(0, abs=1e-9)
    assert split.train[0].std(axis=0) == pytest.approx(1)
    assert not np.array_equal(split.test[1], tabular.split_rows(SPLIT, "diabetes", 4, data=None).test[1])


def test_a_split_of_a_file(tmp_path):
    rows = np.random.default_rng(0).normal(size=(308, 7))
    (tmp_path / "uci").mkdir()
    np.savetxt(tmp_path / "uci" / "yacht.csv", rows, delimiter=",", header="x1,x2,x3,x4,x5,x6,y", comments="")
    split = tabular.split_rows(SPLIT, "yacht", 0, data=tmp_path)
    assert [len(y) for _, y in split[:3]] == [246, 31, 31]
    assert split.spread == pytest.approx(split.train[1].std())


@pytest.mark.parametrize(("n_rows", "batch_size"), [(246, 32), (7654, 957)])
def test_the_network_of_the_paper(n_rows, batch_size):
    network = tabular.make_network(uci.PRESETS["cpu"], n_rows, device="cpu", dropout=0.2)
    assert (network.hidden_sizes, network.batch_size, network.dropout) == ((20, 20, 20), batch_size, 0.2)


def test_the_paper_preset_is_the_papers():
    network = tabular.make_network(uci.PRESETS["paper"], 7654, device="cpu")
    assert (network.learning_rate, network.max_epochs, network.weight_decay) == (1e-4, 200, 1e-4)
    assert (network.schedule, network.batch_size, network.standardize) == (None, 8, "inputs")


def test_the_paper_preset_has_one_split_for_all_seeds():
    settings = uci.PRESETS["paper"]
    first, second = (tabular.split_rows(settings, "diabetes", seed, data=None) for seed in (1, 2))
    np.testing.assert_array_equal(first.test[0], second.test[0])


def test_the_rivals_are_trained_both_ways():
    split = tabular.split_rows(SPLIT, "diabetes", 0, data=None)
    models = uci._make_models(uci.PRESETS["cpu"], split, 0, "cpu")
    del models["HCM ExtraTrees"]
    for method, model in models.items():
        assert model.estimator.standardize == ("inputs" if method in (*uci.RIVALS, "HCM") else True)


def test_a_rival_that_is_best_only_when_standardised_counts_for_our_claims():
    run = make_published_run(Ensemble_standardised={"Pearson": 1.0, "Spearman": 1.0})
    assert sum(uci.find_best_correlations([run], "HCM").values()) == 9
    assert not any(uci.find_best_correlations([run], "HCM Lift").values())


def test_a_stopped_run_continues_after_the_methods_that_are_done(tmp_path):
    settings = uci.PRESETS["quick"] | {"max_epochs": 1}
    steps = []

    def stop(done, total, what):
        steps.append(what)
        if len(steps) == 3:
            raise KeyboardInterrupt

    options = {"data": None, "device": "cpu", "checkpoints": Checkpoints(tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        uci.measure(settings, 0, on_progress=stop, **options)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"diabetes, EDL.json", "diabetes, MC Dropout.json"}
