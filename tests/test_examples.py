"""Run the examples unchanged, on less data, and check what they show."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the tests run in parallel, one per core

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plain_loop_finds_the_noise(capsys):
    found = load_example("plain_loop").main(n=800, n_epochs=30)
    assert found["noisy"] > found["quiet"]
    assert "never seen" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # Lightning warns about workers and torch
def test_lightning_module_is_calibrated_when_training_ends():
    result = load_example("lightning_module").main(max_epochs=20)
    assert result.noise[1, 1] > 2 * result.noise[0, 1]
    assert result.novelty[2] > 0.5 > result.novelty[:2].max()
    assert result.accepted[0]
    assert not result.accepted[2]
    assert (result.lower < result.value).all()


@pytest.mark.filterwarnings("ignore")  # the Trainer warns about torch
def test_hugging_face_trainer_learns_classes(capsys):
    accuracy, accepted, covered = load_example("huggingface_trainer").main(n=256, max_steps=80)
    assert "replaced the layer 'classifier'" in capsys.readouterr().out
    assert accuracy > 0.9
    assert accepted > 0.8
    assert covered > 0.8


def test_frozen_network_separates_unknown_images(tmp_path, monkeypatch):
    monkeypatch.setenv("ONSPHERE_DATA", str(tmp_path))  # random weights
    accuracy, known, unknown = load_example("frozen_resnet").main(n=120)
    assert accuracy > 0.9
    assert unknown > known


def test_two_processes_learn_the_same_as_one():
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "two_processes.py")], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout.split()[-1]) < 1e-6
