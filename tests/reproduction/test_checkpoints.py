"""Unfinished work that is kept: networks, figures of methods, and a seed that continues."""

import json

import pytest
import torch

from onsphere import InvalidInputError
from reproduction import reproduce
from reproduction.checkpoints import Checkpoints


def test_a_saved_state_is_returned_and_replaced(tmp_path):
    checkpoints = Checkpoints(tmp_path / "new")
    assert checkpoints.load("network") is None
    checkpoints.save("network", {"epoch": 1, "weights": torch.ones(2)})
    checkpoints.save("network", {"epoch": 2, "weights": torch.zeros(2)})
    found = checkpoints.load("network")
    assert found["epoch"] == 2
    assert found["weights"].tolist() == [0, 0]


def test_figures_are_computed_once_and_an_interrupted_computation_again(tmp_path):
    checkpoints, calls = Checkpoints(tmp_path), []

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.compute_once("HCM", stop)
    for _ in range(2):
        assert checkpoints.compute_once("HCM", lambda: calls.append(1) or {"AUROC": 0.5}) == {"AUROC": 0.5}
    assert calls == [1]


@pytest.mark.parametrize("content", [b"", b"PK", b"abc", b"not a checkpoint", b'{"AUROC": 0.'])
def test_what_cannot_be_read_is_computed_again(tmp_path, content):
    checkpoints = Checkpoints(tmp_path)
    for name in ("HCM.pt", "HCM.json"):
        (tmp_path / name).write_bytes(content)
    assert checkpoints.load("HCM") is None
    assert checkpoints.compute_once("HCM", lambda: 1) == 1
    assert checkpoints.compute_once("HCM", lambda: 2) == 1
    checkpoints.save("network", torch.ones(100))
    whole = (tmp_path / "network.pt").read_bytes()
    (tmp_path / "network.pt").write_bytes(whole[: len(whole) // 2])
    assert checkpoints.load("network") is None


def test_other_settings_or_seeds_have_other_checkpoints(tmp_path):
    folders = {
        Checkpoints.of_seed(tmp_path, settings, seed).folder
        for settings, seed in [
            ({"a": 1, "b": 2}, 0),
            ({"b": 2, "a": 1}, 0),
            ({"a": 1, "b": 3}, 0),
            ({"a": 1, "b": 2}, 1),
        ]
    }
    assert len(folders) == 3


def test_a_stopped_seed_continues_with_its_checkpoints_and_leaves_none(tmp_path, monkeypatch):
    from reproduction import experiment

    module = experiment.load_experiment("toy")
    seen = []

    def measure(settings, seed, *, checkpoints, **_):
        seen.append(checkpoints.load("step"))
        checkpoints.save("step", 1)
        if seen == [None]:
            raise KeyboardInterrupt
        return {"done": True}

    for name, replacement in [("measure", measure), ("tabulate", lambda runs: []), ("check_claims", lambda runs: [])]:
        monkeypatch.setattr(module, name, replacement)
    monkeypatch.setattr(module, "draw", lambda runs: {})
    with pytest.raises(KeyboardInterrupt):
        reproduce("toy", n_seeds=1, out=tmp_path)
    reproduce("toy", n_seeds=1, out=tmp_path)
    assert seen == [None, 1]
    assert not list((tmp_path / "checkpoints").rglob("*.*"))
    assert json.loads((tmp_path / "runs/toy/quick/seed-0.json").read_text())["done"]


def test_only_the_experiment_on_text_takes_an_encoder(tmp_path):
    with pytest.raises(InvalidInputError, match="left out: only the experiment 'text' has one"):
        reproduce("toy", encoder=tmp_path, out=tmp_path)
