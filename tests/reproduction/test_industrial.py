"""The industrial experiment: its measurements, table and claims, and the data it needs."""

import json

import numpy as np
import pytest
import torch

from reproduction import industrial, reproduce
from reproduction.checkpoints import Checkpoints
from reproduction.data import WAFER_ANOMALIES, WAFER_KINDS
from reproduction.error_tables import METRICS, RIVALS, STANDARDIZED, VARIANTS

torch.set_num_threads(1)  # the tests run beside each other, one per core

QUICK = industrial.PRESETS["quick"]


def real_spectra(folder, n=8, seed=0):
    """Three samples, each with spectra of its own, in the files of the real set."""
    rng, base = np.random.default_rng(seed), folder / "ellipsometry"
    base.mkdir()
    sample = np.repeat(["A", "B", "C"], n)
    ncs = rng.normal(size=(3, 3, 6)).repeat(n, axis=0) + 0.05 * rng.normal(size=(3 * n, 3, 6))
    np.savez(base / "spectra_ncs.npz", ncs=ncs, energy_eV=np.linspace(4, 1, 6), sample=sample)
    columns = ["X (cm)", "Y (cm)", "Unweighted Error", "Surface Layer Thickness", "a-SiH Thickness"]
    columns += ["Amp", "Br", "Eo", "Eg", "Ep"]
    values = np.array([[0.0], [1.0], [10.0]]).repeat(n, axis=0) + 0.05 * rng.normal(size=(3 * n, 10))
    rows = [columns, *values.tolist()]
    (base / "fit_params_Surface_Layer.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    for name in ("nk_Si_JAW.csv", "nk_NTVE_JAW.csv", "nk_Void.csv"):
        (base / name).write_text("Wavelength (nm),n,k\n" + "300,1.5,0\n" * 6)
    return folder


def make_published_run(**of_methods):
    """A run that found the paper's figures, HCM's for those that it lacks, and held what is claimed beyond them."""
    run = {"metrics": {}, industrial.NORMAL_ONLY: {}, "low": {}, "kinds": {}, "coverage": {}, "points": {}, "real": {}}
    for method in industrial.METHODS:
        figures = industrial.PAPER.get(method.removesuffix(" standardised"), industrial.PAPER["HCM"])
        is_ours = method.startswith("HCM")
        run["metrics"][method] = dict(zip(METRICS, figures, strict=True)) | of_methods.get(method.replace(" ", "_"), {})
        run[industrial.NORMAL_ONLY][method] = {f"cov@{k}σ": 0.5 for k in (1, 2, 3)}
        run["low"][method] = 3.0 if is_ours else 1.0
        found = {"RMSE": 1.0, "confidence": 0.5, "below .1": 0.1, "Spearman": 0.2, "AUROC": 0.9 if is_ours else 0.6}
        run["kinds"][method] = dict.fromkeys(WAFER_KINDS, found)
        run["coverage"][method] = 0.9
        run["points"][method] = {"error": [1.0, 2.0], "uncertainty": [4.0, 8.0], "confidence": [0.9, 0.1]}
    run["real"] = {method: {"seen": 0.1, "unseen": 5.0, "AUROC": 1.0} for method in VARIANTS}
    return run


def held(run):
    return {claim.text: claim.holds for claim in industrial.check_claims([run])}


# --- the quick preset ---


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    data = real_spectra(tmp_path_factory.mktemp("data"))
    return reproduce("industrial", preset="quick", data=data, out=tmp_path_factory.mktemp("industrial"))


def test_quick_writes_table_claims_and_figures(quick):
    n_methods = len(industrial.METHODS)
    assert len(quick.rows) == n_methods * (len(METRICS) + 3 + len(WAFER_KINDS) + 1) + 3 * len(VARIANTS)
    assert len(json.loads((quick.folder / "industrial.json").read_text())["runs"]) == 1
    for name in ("calibration", "profiles"):
        assert (quick.folder / f"industrial-{name}.png").stat().st_size > 1000


def test_figures_are_in_their_ranges(quick):
    run = quick.runs[0]
    for method in industrial.METHODS:
        figures = run["metrics"][method]
        coverage = [figures[f"cov@{k}σ"] for k in (1, 2, 3)]
        assert sorted(coverage) == coverage
        # Another temperature changes neither errors nor the order of scores.
        others = run[industrial.NORMAL_ONLY][method]
        assert all(others[name] == pytest.approx(figures[name]) for name in ("Pearson", "Spearman", "RMSE"))
        assert all(-1 <= figures[name] <= 1 for name in ("Pearson", "Spearman"))
        kinds = run["kinds"][method]
        assert figures["RMSE"] == pytest.approx(np.mean([kinds[kind]["RMSE"] for kind in WAFER_KINDS]))
        assert kinds["normal"]["AUROC"] == 0.5
        assert all(0 <= kinds[kind][what] <= 1 for kind in kinds for what in ("confidence", "below .1", "AUROC"))
        assert 0.5 < run["coverage"][method] <= 1
        assert np.shape(run["profiles"][method]["error"]) == (industrial.N_PROFILES, industrial.N_RADII)


def test_a_temperature_of_wafers_like_the_tested_ones_covers_nearer_to_what_it_should(quick):
    def gap(what):
        covered = [quick.runs[0][what][method][f"cov@{k}σ"] for method in industrial.METHODS for k in (1, 2)]
        return np.mean(np.abs(np.array(covered) - len(industrial.METHODS) * [0.68, 0.95]))

    assert gap("metrics") < gap(industrial.NORMAL_ONLY)


def test_wafers_with_an_anomaly_of_the_hole_are_predicted_worse(quick):
    # A few epochs do not teach a network radii in nanometres.
    for method in (*STANDARDIZED, "HCM standardised", "HCM Lift"):
        kinds = quick.runs[0]["kinds"][method]
        assert kinds["under_etch"]["RMSE"] > kinds["normal"]["RMSE"]


def test_a_sample_that_was_not_trained_on_is_predicted_worse(quick):
    assert all(each["unseen"] > each["seen"] for each in quick.runs[0]["real"].values())
    assert {row["method"] for row in quick.rows if row["metric"].startswith("real spectra")} == set(VARIANTS)


def test_the_same_seed_gives_the_same_figures_and_missing_real_spectra_are_named(quick, tmp_path):
    again = industrial.measure(
        QUICK, 0, data=tmp_path, device="cpu", checkpoints=Checkpoints(tmp_path), on_progress=lambda *_: None
    )
    assert again["metrics"] == quick.runs[0]["metrics"]
    assert "left out" in again["real"]["skipped"]
    assert "spectra_ncs.npz" in again["real"]["skipped"]
    assert industrial.tabulate([again])[-1] == {"metric": again["real"]["skipped"]}


@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_a_long_run_goes_on_where_real_spectra_are_missing_or_broken(tmp_path, preset):
    def real(data):
        return industrial._measure_real(industrial.PRESETS[preset], 0, data, "cpu")["skipped"]

    assert "spectra_ncs.npz. Got no such file" in real(tmp_path)
    path = real_spectra(tmp_path) / "ellipsometry" / "spectra_ncs.npz"
    path.write_bytes(path.read_bytes()[:300])
    assert "spectra_ncs.npz as" in real(tmp_path)


# --- settings ---


def test_the_whole_set_is_taken_where_no_number_is_given(monkeypatch):
    from reproduction.data import make_wafers

    parts = [make_wafers(n, random_state=n) for n in (3, 2, 4)]
    monkeypatch.setattr(industrial, "make_wafer_benchmark", lambda seed: parts if seed == 7 else None)
    for part, given in zip(industrial._load_wafers(None, 7), parts, strict=True):
        np.testing.assert_array_equal(part.spectra, given.spectra)
        np.testing.assert_array_equal(part.radii, given.radii)
        assert part.kind.tolist() == ["normal"] * len(given)


def test_few_wafers_hold_every_kind():
    train, held_out, test = industrial._load_wafers(18, 0)
    assert [len(part.radii) for part in (train, held_out, test)] == [18, 4, 18]
    assert sorted(set(test.kind)) == sorted(WAFER_KINDS)
    assert set(train.kind) == set(held_out.kind) == {"normal"}


def test_wafers_that_set_the_temperature_have_the_shares_of_the_tested_ones_and_are_none_of_them():
    tested = np.repeat(["normal", "drift", *WAFER_ANOMALIES], [30, 9, *([1] * len(WAFER_ANOMALIES))])
    alike = industrial._draw_alike(tested, 92, 0)
    counts = {kind: int(np.sum(alike.kind == kind)) for kind in WAFER_KINDS}
    assert counts == {"normal": 60, "drift": 18, **dict.fromkeys(WAFER_ANOMALIES, 2)}
    again, other = industrial._draw_alike(tested, 92, 0), industrial._draw_alike(tested, 92, 1)
    np.testing.assert_array_equal(alike.spectra, again.spectra)
    assert not np.array_equal(alike.spectra, other.spectra)
    drawn = {row.tobytes() for part in industrial._load_wafers(18, 0) for row in part.spectra}
    assert not drawn & {row.tobytes() for row in industrial._draw_alike(tested, 4, 0).spectra}


def test_the_paper_preset_has_the_papers_steps():
    models = industrial._make_models(industrial.PRESETS["paper"], 0, "cpu")
    assert list(models) == list(industrial.METHODS)
    for model in models.values():
        network = model.estimator
        assert network.callbacks[0][1].kwargs["milestones"] == [150, 300, 450, 600, 750, 900]
        assert (network.hidden_sizes, network.max_epochs, network.learning_rate) == ((200, 100, 50), 1000, 0.002)
    for name, model in models.items():
        assert model.estimator.dropout == (0.1 if name.startswith("MC Dropout") else 0)
        as_the_paper = name in (*RIVALS, "HCM")
        assert model.estimator.standardize == ("inputs" if as_the_paper else True)


# --- table and claims ---


def test_rows_have_the_published_figures():
    rows = {(row["method"], row["metric"]): row for row in industrial.tabulate([make_published_run()])}
    assert rows["HCM", "Pearson"]["paper"] == 0.8435
    assert rows["EDL", "Spearman"]["paper"] == -0.1837
    assert rows["MC Dropout", "cov@2σ"]["paper"] == 0.8961
    assert rows["Ensemble", "RMSE"]["paper"] == 4.6783
    assert rows["HCM standardised", "RMSE"]["paper"] is None
    assert rows["HCM", "cov@2σ, T from normal wafers"]["ours"] == 0.5
    assert rows["HCM Lift", "drift: share with a confidence below .1"]["ours"] == 0.1
    assert rows["HCM Lift", "drift: share with a confidence below .1"]["AUROC against normal"] == 0.9
    assert rows["HCM", "real spectra: RMSE, unseen sample"]["ours"] == 5.0


def test_the_papers_own_figures_uphold_its_claims():
    found = held(make_published_run())
    assert len(found) == 16
    assert all(found.values())


def test_claims_fail_where_the_figures_say_so():
    poor = {"Pearson": -1.0, "Spearman": -1.0, "cov@2σ": 0.95, "cov@3σ": 0.99, "RMSE": 1.0}
    run = make_published_run(HCM=poor, HCM_Lift=poor)
    for method in VARIANTS:
        run["low"][method] = 0.5
        run["kinds"][method] = {kind: run["kinds"]["EDL"][kind] | {"AUROC": 0.1} for kind in WAFER_KINDS}
        run["real"][method]["AUROC"] = 0.5
    run["coverage"]["HCM Lift"] = 0.8
    run["points"]["HCM"] = {"error": [1.0, 2.0, 2.0], "uncertainty": [40.0, 0.1, 0.1]}
    assert not any(held(run).values())


def test_a_bound_may_hold_and_be_loose_or_fail_and_be_near():
    run = make_published_run()
    run["points"]["HCM"]["uncertainty"] = [0.1, 0.1]
    assert [holds for text, holds in held(run).items() if "bound" in text] == [True, False]
    run["points"]["HCM"]["uncertainty"] = [6.0, 12.0]
    assert [holds for text, holds in held(run).items() if "bound" in text] == [False, True]


def test_there_is_no_claim_about_missing_real_spectra():
    missing = make_published_run() | {"real": {"skipped": "left out"}}
    assert len(held(missing)) == len(held(make_published_run())) - 1


def test_anomalies_are_averaged_without_normal_and_drifting_wafers():
    run = make_published_run()
    run["kinds"]["HCM Lift"] = {kind: {"AUROC": 0.9 * (kind in WAFER_ANOMALIES)} for kind in WAFER_KINDS}
    (found,) = [claim for claim in industrial.check_claims([run]) if "anomalies" in claim.text]
    assert "HCM Lift 0.900" in found.figures
