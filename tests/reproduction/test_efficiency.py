"""What a score costs: the quick run, the published ratios, the counts and the claims."""

import json

import numpy as np
import pytest
import torch

from reproduction import efficiency, reproduce

NAMES = {*efficiency.PAPER, "MSP again"}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    threads = torch.get_num_threads()
    done = reproduce("efficiency", out=tmp_path_factory.mktemp("efficiency"))
    assert torch.get_num_threads() == threads
    return done


@pytest.fixture(scope="module")
def methods():
    settings = efficiency.PRESETS["quick"]
    torch.manual_seed(0)
    return efficiency.make_methods(settings, "cpu")


def test_quick_measures_every_method(result):
    found = result.runs[0]["methods"]
    assert set(found) == NAMES
    for name, figures in found.items():
        for size in ("one", "many"):
            assert figures[size]["milliseconds"] > 0
            assert 0 <= figures[size]["scoring"] <= figures[size]["milliseconds"]
            assert len(figures[size]["ratios"]) == (2 if name in efficiency.MANY_PASSES else 3)
    assert found["MSP"]["many"]["ratios"] == [1.0] * 3


def test_counts_follow_from_the_passes(result):
    found = result.runs[0]["methods"]
    n_parameters = sum(each.numel() for each in efficiency.NETWORKS["tiny"]().parameters())
    assert found["MSP"]["parameters"] == found["KNN"]["parameters"] == n_parameters
    assert found["Ensemble"]["parameters"] == 5 * n_parameters
    assert found["HCM"]["parameters"] == n_parameters + 17  # one more output of 16 features
    one_pass = found["MSP"]["multiplications"]
    assert found["Ensemble"]["multiplications"] == found["MC Dropout"]["multiplications"] == 5 * one_pass
    assert 2 * one_pass < found["ODIN"]["multiplications"]
    assert found["HCM"]["multiplications"] == one_pass + 16


def test_multiplications_of_the_network_by_hand(result):
    # Of the tiny network on 32×32 pixels: a stem, two blocks of two convolutions, a projection and the last layer.
    stem, first = 32 * 32 * 3 * 8 * 9, 2 * 32 * 32 * 8 * 8 * 9
    second = 16 * 16 * (8 * 16 * 9 + 16 * 16 * 9 + 8 * 16)
    assert result.runs[0]["methods"]["MSP"]["multiplications"] == stem + first + second + 16 * 10


def test_memory_counts_weights_stored_rows_and_the_peak_of_tensors(result):
    found = result.runs[0]["methods"]
    megabytes = {name: figures["megabytes"] for name, figures in found.items()}
    weights = sum(each.nbytes for each in efficiency.NETWORKS["tiny"]().state_dict().values()) / 2**20
    largest_map = 8 * 8 * 32 * 32 * 4 / 2**20  # 8 images of 8 channels in single precision
    assert megabytes["MSP"] > weights + 2 * largest_map
    assert megabytes["Ensemble"] == pytest.approx(megabytes["MSP"] + 4 * weights, rel=0.05)
    assert megabytes["KNN"] == pytest.approx(megabytes["MSP"] + 200 * 16 * 8 / 2**20, rel=0.05)
    assert megabytes["ODIN"] > 1.2 * megabytes["MSP"]  # keeps its maps for the way back


def test_every_method_gives_a_class_and_a_score_for_each_image(methods):
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        for name, method in methods.items():
            said = method(images)
            labels, scores = (np.zeros(4), said) if name == "ODIN" else said
            assert labels.shape == scores.shape == (4,)
            assert np.isfinite(scores).all()


def test_the_last_layers_of_softmax_methods_agree(methods):
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert (methods["MSP"](images)[0] == methods["Ensemble"](images)[0]).all()


def test_a_gpu_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    assert efficiency.CLOCKS["cuda"]() > 0
    assert waited == [True]


def test_the_peak_on_a_gpu_is_what_cuda_counts_above_what_was_taken(monkeypatch):
    # There is no GPU here: the counters of CUDA are replaced, and the batch says that it is on one.
    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    calls = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1500)
    method = efficiency.Method(lambda images: calls.append("run"), lambda output: output, [])
    assert efficiency.measure_peak(method, torch.zeros(2, 2).as_subclass(OnGpu)) == 500
    assert calls == ["reset", "run"]


# --- the table ---


@pytest.mark.parametrize(
    ("quantity", "method", "paper"),
    [
        ("time over MSP, 8 at once", "MC Dropout", 1.7 / 0.175),
        ("time over MSP, 8 at once", "HCM", 0.19 / 0.175),
        ("throughput over MSP, 8 at once", "Ensemble", 3450 / 6500),
        ("throughput over MSP, 8 at once", "MC Dropout", 600 / 6500),
        ("memory over MSP", "ODIN", 452 / 227),
        ("memory over MSP", "MSP again", None),
        ("latency, 1 at once (ms)", "HCM", None),
    ],
)
def test_published_ratios(result, quantity, method, paper):
    found = [row["paper"] for row in result.rows if (row["quantity"], row["method"]) == (quantity, method)]
    assert found == [None if paper is None else pytest.approx(paper)]


def test_every_method_has_every_quantity(result):
    quantities = {row["quantity"] for row in result.rows}
    assert len(quantities) == 10
    assert len(result.rows) == len(quantities) * len(NAMES)


def test_what_is_written(result):
    facts = json.loads((result.folder / "efficiency.json").read_text())
    assert facts["figures"] == ["efficiency-time.png"]
    assert (result.folder / "efficiency-time.png").stat().st_size > 10_000
    assert "not a test" in (result.folder / "efficiency.md").read_text()


# --- claims ---


def make_run(again=(0.97, 1.0, 1.04), **ratios):
    times = dict.fromkeys(efficiency.PAPER, 1.0) | {"Ensemble": 5.1, "MC Dropout": 49.0} | ratios
    methods = {name: {"many": {"ratios": [value] * 3}} for name, value in times.items()}
    return {"methods": methods | {"MSP again": {"many": {"ratios": list(again)}}}}


def test_claims_hold_where_the_figures_say_so():
    found = efficiency.check_claims([make_run(HCM=1.02)])
    assert [claim.holds for claim in found] == [True] * 4
    assert "1.020 of the time of MSP; MSP a second time took from 0.970 to 1.040; paper 1.09" in found[0].figures
    assert "the paper's own table has 9.71" in found[3].figures


@pytest.mark.parametrize("sign", [-1, 1])
def test_claims_fail_where_the_figures_say_so(sign):
    run = make_run(HCM=1.0 + 0.2 * sign, ViM=0.7, Ensemble=5 + 2 * sign, **{"MC Dropout": 50.0 + 20 * sign})
    assert [claim.holds for claim in efficiency.check_claims([run])] == [False] * 4
